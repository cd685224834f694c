/* SPDX-License-Identifier: Apache-2.0 */
/* centre.h: what is known of a model's keys beforehand: which pairs of which heads get a centre,
 * and the bases in which keys are balanced.
 *
 *     the checkpoint's key biases  --+
 *                                    +-->  struct key_stats  --centres_choose-->  struct centres
 *     a calibration file           --+     all pairs                               chosen pairs
 *                                    |
 *                                    +-->  struct key_bases                  kv_shape.basis
 *
 * centre.c chooses, key_bases.c holds the bases, centre_file.c reads and writes the file,
 * calibration.h measures a model.
 */
#ifndef KVASIR_ENGINE_CENTRE_H
#define KVASIR_ENGINE_CENTRE_H

#include "engine/engine.h"

/* Keys before rope, per layer, KV head and rotary pair (i, i + n). All 0 for a model whose keys are
 * not alike (model_keys_alike): none of them has a centre. */
struct key_stats {
    uint32_t layers, kv_heads, n;
    float *mean; /* [layer][kv head][pair][2] */
    float *rms;  /* [layer][kv head][pair] standard deviation of a dim */
};
kvasir_status key_stats_init(struct key_stats *s, const struct model *m,
                             kvasir_error *err) MUST_CHECK;
void key_stats_deinit(struct key_stats *s); /* zero-initialised: nothing */

/* ---- bases (key_bases.c) --------------------------------------------------------------------- */

/* Of a model's keys, by layer group (backend.h). All matrices are one piece of memory. */
struct key_bases {
    uint32_t n_groups; /* 0: there are none */
    struct key_basis group[CACHE_GROUPS_MAX];
    float *values; /* [group][inverse, forward] */
    size_t n;
};
/* Of the model's layer groups, with matrices of zeros. */
kvasir_status key_bases_init(struct key_bases *b, const struct model *m,
                             kvasir_error *err) MUST_CHECK;
void key_bases_deinit(struct key_bases *b); /* zero-initialised: nothing */
/* The matrices of a layer: inverse, forward [kv head][in][out], of n values each. */
struct layer_basis {
    float *inverse, *forward;
    size_t n;
};
struct layer_basis key_bases_of(const struct key_bases *b, struct kv_place place);
size_t key_basis_values(const struct key_basis *g);  /* of one of a group's two arrays */
uint64_t key_bases_bytes(const struct key_bases *b); /* or NULL: 0 */

/* ---- the file (centre_file.c) ---------------------------------------------------------------- */

/* Writes the whole file into out, which is empty. Bases NULL: a file without them, of version 1.
 * model_id: of model_identity. */
kvasir_status centre_file_write(const struct model *m, uint64_t model_id, const struct key_stats *s,
                                const struct key_bases *b, uint32_t tokens, struct text_buf *out,
                                kvasir_error *err) MUST_CHECK;
/* Fills stats that were initialised for the model, and zero-initialised bases unless they are NULL,
 * which stay as they are if the file has none. The caller deinits both, also after an error.
 * Refuses damaged files and those of another model. */
kvasir_status centre_file_read(const char *path, const struct model *m, uint64_t model_id,
                               struct key_stats *s, struct key_bases *b,
                               kvasir_error *err) MUST_CHECK;

/* The path that "auto" reads and calibrate writes: MODEL.gguf.key-centre.safetensors, or
 * FOLDER/key-centre.safetensors. The caller frees out, also after an error. */
kvasir_status centre_file_path(const struct kvasir_model *m, struct text_buf *out,
                               kvasir_error *err) MUST_CHECK;

/* What such a file holds, and more of what was measured. */
struct calibration {
    struct key_stats stats;
    struct key_bases bases;
    uint32_t tokens; /* averaged over; this and the next two only if it has just been measured */
    uint32_t heads;  /* KV heads of all layers: each has a basis */
    double gain;     /* as in lab_calibration */
};
void calibration_deinit(struct calibration *c); /* zero-initialised: nothing */

/* ---- choosing (centre.c) --------------------------------------------------------------------- */

/* The centres of one context's keys. */
struct centres {
    struct key_centre centre;
    double *inv_freq;
    uint32_t *first;
    struct centre_pair *pairs;
};
/* Chooses pairs within the budget (centre.c); *out NULL: no pair gains anything. turning: for pages
 * that hold the mean of their tile's keys apart. */
kvasir_status centres_choose(const struct key_stats *s, const struct model *m, bool turning,
                             struct centres **out, kvasir_error *err) MUST_CHECK;
void centres_destroy(struct centres *c);
/* Resolves the option key_centre for a context. *out NULL: no key is centred; *bases NULL: there
 * are none, or the formats have no use for them. The caller destroys both, also after an error. A
 * fact says what was chosen. known: a calibration for "auto", whose bases are taken; NULL, or
 * without bases: none. */
kvasir_status centres_settle(const struct kvasir_model *m, const char *how,
                             struct calibration *known, struct settled *settled,
                             struct centres **out, struct key_bases **bases,
                             kvasir_error *err) MUST_CHECK;
/* The one place that knows which formats store balanced keys. */
bool centres_want_bases(const struct kv_cache_options *formats);
void key_bases_destroy(struct key_bases *b); /* of centres_settle; or NULL */

#endif
