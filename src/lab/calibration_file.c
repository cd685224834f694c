/* SPDX-License-Identifier: Apache-2.0 */
/* calibration_file.c: a calibration (engine/calibration.h) as the contents of its file. */
#include "engine/calibration.h"
#include "lab/lab.h"

/* How many pairs a context with this file centres. */
static kvasir_status count_pairs(const kvasir_model *m, const struct calibration *c,
                                 lab_calibration *out, kvasir_error *err) {
    struct centres *chosen = NULL;
    TRY(centres_choose(&c->stats, m->model, false, &chosen, err));
    const size_t heads = (size_t)c->stats.layers * c->stats.kv_heads;
    out->rotary_pairs = c->stats.n;
    out->pairs = chosen ? (double)chosen->first[heads] / (double)heads : 0;
    centres_destroy(chosen);
    return KVASIR_OK;
}

kvasir_status lab_calibrate(const kvasir_model *m, const lab_calibrate_options *o,
                            lab_calibration *out, kvasir_error *err) {
    const struct calibrate_options options = {.text = o->text,
                                              .len = o->len,
                                              .tokens = o->tokens,
                                              .threads = o->threads,
                                              .cpu_tier = o->cpu_tier,
                                              .on_progress = o->on_progress,
                                              .user = o->user};
    struct calibration c;
    struct text_buf file = {0};
    kvasir_status status;
    TRY_GOTO(calibration_measure(m, &options, &c, err));
    *out = (lab_calibration){.tokens = c.tokens, .heads = c.heads, .gain = c.gain};
    TRY_GOTO(count_pairs(m, &c, out, err));
    TRY_GOTO(centre_file_write(m->model, m->id, &c.stats, &c.bases, c.tokens, &file, err));
    ASSERT(file.len > 0);
    out->file = file.data;
    out->size = file.len;
done:
    calibration_deinit(&c);
    return status;
}

kvasir_status lab_calibration_path(const kvasir_model *m, char **path, kvasir_error *err) {
    struct text_buf text = {0};
    kvasir_status status = centre_file_path(m, &text, err);
    *path = text.data;
    return status;
}
