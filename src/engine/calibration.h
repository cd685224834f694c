/* SPDX-License-Identifier: Apache-2.0 */
/* calibration.h: what is measured of a model's keys and queries (struct calibration of centre.h).
 *
 *     calibration.c       runs the model over a text
 *     calibration_kept.c  for a context that has none: kept earlier, or measured now
 *     moments.h           what attention gets during the run
 *     balance.h           bases from that
 */
#ifndef KVASIR_ENGINE_CALIBRATION_H
#define KVASIR_ENGINE_CALIBRATION_H

#include "engine/centre.h"

struct calibrate_options {
    const char *text; /* [len]; NULL: a built-in text */
    size_t len;
    uint32_t tokens; /* how many of its first tokens to run; 0: 512 */
    int threads;
    const char *cpu_tier;            /* NULL: "auto" */
    kvasir_progress_fn *on_progress; /* NULL: none */
    void *user;
};
/* The caller deinits *out, also after an error. */
kvasir_status calibration_measure(const struct kvasir_model *m, const struct calibrate_options *o,
                                  struct calibration *out, kvasir_error *err) MUST_CHECK;

/* What a context with these options, which have all their fields, needs and its option `calibrate`
 * allows. *out has no bases if that is nothing: they are not wanted, or there is a file beside the
 * model, or the model has no tokenizer. The caller deinits *out, also after an error. */
kvasir_status calibration_find(const struct kvasir_model *m, const kvasir_context_options *o,
                               struct calibration *out, kvasir_error *err) MUST_CHECK;

#endif
