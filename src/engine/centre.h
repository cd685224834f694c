/* SPDX-License-Identifier: Apache-2.0 */
/* Key centres: what is known of a model's keys, and which pairs of which heads get a centre.
 *
 *     the checkpoint's key biases  --+
 *                                    +-->  struct key_stats  --centres_choose-->  struct centres
 *     a calibration file           --+     all pairs                               pairs that pay
 *
 * centre.c chooses, centre_file.c knows the file, calibrate.c makes one from a text.
 */
#ifndef KVASIR_ENGINE_CENTRE_H
#define KVASIR_ENGINE_CENTRE_H

#include "engine/engine.h"

/* Keys before rope, per layer, KV head and rotary pair (i, i + n). */
struct key_stats {
    uint32_t layers, kv_heads, n;
    float *mean; /* [layer][kv head][pair][2] */
    float *rms;  /* [layer][kv head][pair] spread of a dim around its mean */
};
kvasir_status key_stats_init(struct key_stats *s, const struct model *m,
                             kvasir_error *err) MUST_CHECK;
void key_stats_deinit(struct key_stats *s); /* zero-initialised: nothing */

/* ---- the file (centre_file.c) ---------------------------------------------------------------- */

/* The whole file in out, which was empty. model_id: model_identity of the model. */
kvasir_status centre_file_write(const struct key_stats *s, uint64_t model_id, uint32_t tokens,
                                struct text_buf *out, kvasir_error *err) MUST_CHECK;
/* Fills the stats, initialised for the model, from a file. Damaged files and those of another model
 * are refused. */
kvasir_status centre_file_read(const char *path, uint64_t model_id, struct key_stats *s,
                               kvasir_error *err) MUST_CHECK;

/* Where auto looks and calibrate writes: MODEL.gguf.key-centre.safetensors, or
 * FOLDER/key-centre.safetensors. out is text_free'd by the caller, also after a failure. */
kvasir_status centre_file_path(const struct kvasir_model *m, struct text_buf *out,
                               kvasir_error *err) MUST_CHECK;

/* ---- choosing (centre.c) --------------------------------------------------------------------- */

/* What one context's cache takes off its keys. */
struct centres {
    struct key_centre centre;
    double *inv_freq;
    uint32_t *first;
    struct centre_pair *pairs;
};
/* The pairs that pay, within the budget; *out NULL where there are none. */
kvasir_status centres_choose(const struct key_stats *s, const struct model *m, struct centres **out,
                             kvasir_error *err) MUST_CHECK;
void centres_destroy(struct centres *c);
/* --key-centre settled for a context; *out NULL where no key will be centred. A note says what was
 * taken. */
kvasir_status centres_settle(const struct kvasir_model *m, const char *how, struct settled *settled,
                             struct centres **out, kvasir_error *err) MUST_CHECK;

#endif
