/* SPDX-License-Identifier: Apache-2.0 */
/* Tiny models of every cache shape, for tests that try caches at random. */
#ifndef SIM_MODELS_H
#define SIM_MODELS_H

#include "engine/engine.h"

#include "model_files.h"

enum { SIM_N_MODELS = 20, SIM_VOCAB = 512 };
/* Windows of all layers and of some, two head sizes, layers that share K and V, sinks, experts,
 * recurrent layers; "blocks" is a plain one with every quantized weight type. */
extern const char *const SIM_MODELS[SIM_N_MODELS];

struct sim_models {
    kvasir_model *models[SIM_N_MODELS];
    struct temp_folder folder;
    char centres[SIM_N_MODELS][192]; /* random calibration files; "": its keys cannot be centred */
};
/* Ends the program if there are no fixtures (skipped), or if one does not open. */
void sim_models_open(struct sim_models *s);
void sim_models_close(struct sim_models *s);

#endif
