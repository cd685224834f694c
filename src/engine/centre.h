/* SPDX-License-Identifier: Apache-2.0 */
/* centre.h: key centres: statistics of a model's keys, and which pairs of which heads get a centre.
 *
 *     the checkpoint's key biases  --+
 *                                    +-->  struct key_stats  --centres_choose-->  struct centres
 *     a calibration file           --+     all pairs                               chosen pairs
 *
 * centre.c chooses, centre_file.c reads and writes the file, lab/calibration.c measures a model.
 */
#ifndef KVASIR_ENGINE_CENTRE_H
#define KVASIR_ENGINE_CENTRE_H

#include "engine/engine.h"

/* Keys before rope, per layer, KV head and rotary pair (i, i + n). */
struct key_stats {
    uint32_t layers, kv_heads, n;
    float *mean; /* [layer][kv head][pair][2] */
    float *rms;  /* [layer][kv head][pair] standard deviation of a dim */
};
kvasir_status key_stats_init(struct key_stats *s, const struct model *m,
                             kvasir_error *err) MUST_CHECK;
void key_stats_deinit(struct key_stats *s); /* zero-initialised: nothing */

/* ---- the file (centre_file.c) ---------------------------------------------------------------- */

/* Writes the whole file into out, which is empty. model_id: of model_identity. */
kvasir_status centre_file_write(const struct key_stats *s, uint64_t model_id, uint32_t tokens,
                                struct text_buf *out, kvasir_error *err) MUST_CHECK;
/* Fills stats that were initialised for the model from a file. Refuses damaged files and those of
 * another model. */
kvasir_status centre_file_read(const char *path, uint64_t model_id, struct key_stats *s,
                               kvasir_error *err) MUST_CHECK;

/* The path that "auto" reads and calibrate writes: MODEL.gguf.key-centre.safetensors, or
 * FOLDER/key-centre.safetensors. The caller frees out, also after an error. */
kvasir_status centre_file_path(const struct kvasir_model *m, struct text_buf *out,
                               kvasir_error *err) MUST_CHECK;

/* ---- choosing (centre.c) --------------------------------------------------------------------- */

/* The centres of one context's keys. */
struct centres {
    struct key_centre centre;
    double *inv_freq;
    uint32_t *first;
    struct centre_pair *pairs;
};
/* Chooses pairs within the budget (centre.c); *out NULL: no pair gains anything. */
kvasir_status centres_choose(const struct key_stats *s, const struct model *m, struct centres **out,
                             kvasir_error *err) MUST_CHECK;
void centres_destroy(struct centres *c);
/* Resolves the option key_centre for a context; *out NULL: no key is centred. A fact says what was
 * chosen. */
kvasir_status centres_settle(const struct kvasir_model *m, const char *how, struct settled *settled,
                             struct centres **out, kvasir_error *err) MUST_CHECK;

#endif
