/* SPDX-License-Identifier: Apache-2.0 */
/* Which tiny model, cache format and rotation a test of random programs uses. They take turns, so
 * that SIM_WORLDS consecutive seeds contain every pair of shape and format, and of shape and
 * rotation. Also counts what was tried. */
#ifndef SIM_WORLDS_H
#define SIM_WORLDS_H

#include "engine/scheduler.h"
#include "sim_models.h"

/* Shapes of a cache. A model has one of the first three, depending on the rotation, if it has none
 * of the others. It may have several of the others, whatever the rotation. */
enum sim_shape {
    SHAPE_PLAIN,
    SHAPE_KEEPING,  /* rotating, some tokens kept */
    SHAPE_ROTATING, /* none kept */
    SHAPE_WINDOW,
    SHAPE_SINKS,
    SHAPE_SHARED, /* layers that read another's K and V */
    SHAPE_RECURRENT,
    SHAPE_EXPERTS,
    SIM_SHAPES
};
enum sim_format {
    FORMAT_F16,
    FORMAT_8,
    FORMAT_8_4,
    FORMAT_8_4_CENTRED, /* FORMAT_OTHER instead if a model's keys cannot be centred */
    FORMAT_4_2,
    FORMAT_3,
    FORMAT_R8_4, /* these two are encoded when a page is full */
    FORMAT_T4,
    FORMAT_OTHER, /* one of several others */
    SIM_FORMATS
};
enum sim_rotation { ROTATION_NONE, ROTATION_KEEPING, ROTATION_KEEPING_NONE, SIM_ROTATIONS };

/* In this many consecutive seeds every model meets every format and every rotation, and the plain
 * ones together every format with every rotation. */
enum { SIM_WORLDS = SIM_FORMATS * SIM_N_MODELS };

struct sim_world {
    uint32_t model;
    enum sim_format format;
    enum sim_rotation rotation;
};
/* Sets kv_bits, kv_exact_tail (if that is possible), key_centre, max_kv_size and kv_keep of the
 * options; a function of the seed. */
struct sim_world sim_world_make(const struct sim_models *s, uint64_t seed,
                                kvasir_context_options *o);

/* Options of a scheduler with steps of at most so many rows: any policy. bits: random. */
struct sched_options sim_sched_draw(uint32_t (*random_below)(uint32_t), uint32_t step_rows,
                                    uint32_t bits);

/* "auto", or any tier that this machine has. */
const char *sim_tier_draw(uint32_t (*below)(uint32_t));

/* Whether no stored page that only the tree holds could go down the ladder. */
bool sim_all_is_down(const struct prefix_tree *t);

/* Rows of logits that were compared. */
struct sim_coverage {
    uint64_t formats[SIM_SHAPES][SIM_FORMATS], rotations[SIM_SHAPES][SIM_ROTATIONS];
};
void sim_coverage_add(struct sim_coverage *c, const struct sim_models *s, const struct sim_world *w,
                      uint64_t rows);
/* Prints the counts. False, and prints which, if a pair was not tried that one of the models could
 * have had. */
bool sim_coverage_whole(const struct sim_coverage *c, const struct sim_models *s);

#endif
