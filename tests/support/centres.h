/* SPDX-License-Identifier: Apache-2.0 */
/* Calibration files of random numbers, for tests whose models have no keys worth centring. Equal
 * seeds give equal files; NULL data: an error. */
#ifndef KVASIR_TEST_CENTRES_H
#define KVASIR_TEST_CENTRES_H

#include "engine/centre.h"

static inline float random_value(uint64_t *seed) { /* from -1 to 1 */
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(*seed >> 40) * 0x1p-23f - 1;
}

/* M = 1 + u v^T for vectors of length 1/2, and its inverse, for every head. */
static inline void random_bases(struct key_bases *b, uint64_t *seed) {
    float u[HEAD_DIM_MAX], v[HEAD_DIM_MAX];
    for (uint32_t g = 0; g < b->n_groups; g++) {
        const uint32_t dim = b->group[g].head_dim, layers = b->group[g].layers;
        const size_t head = (size_t)dim * dim;
        for (size_t at = 0; at < (size_t)layers * b->group[g].kv_heads * head; at += head) {
            const struct layer_basis all = key_bases_of(b, (struct kv_place){g, 0});
            double uu = 0, vv = 0, uv = 0;
            for (uint32_t i = 0; i < dim; i++) {
                u[i] = random_value(seed);
                v[i] = random_value(seed);
                uu += (double)u[i] * (double)u[i];
                vv += (double)v[i] * (double)v[i];
                uv += (double)u[i] * (double)v[i];
            }
            const double size = 0.25 / m_sqrt(uu * vv), back = size / (1 + size * uv);
            for (uint32_t in = 0; in < dim; in++)
                for (uint32_t out = 0; out < dim; out++) {
                    const size_t k = at + (size_t)in * dim + out;
                    all.forward[k] = (float)((in == out) + size * (double)u[in] * (double)v[out]);
                    all.inverse[k] = (float)((in == out) - back * (double)u[out] * (double)v[in]);
                }
        }
    }
}

/* The file's bytes: means up to `size` and spreads of 1, if the model's keys are alike. */
static inline struct text_buf random_calibration(const kvasir_model *m, float size, bool based,
                                                 uint64_t seed) {
    struct key_stats s = {0};
    struct key_bases b = {0};
    struct text_buf file = {0};
    if (key_stats_init(&s, m->model, NULL) == KVASIR_OK &&
        (!based || key_bases_init(&b, m->model, NULL) == KVASIR_OK)) {
        const size_t pairs = (size_t)s.layers * s.kv_heads * s.n;
        for (size_t i = 0; i < 2 * pairs; i++)
            s.mean[i] = size * random_value(&seed);
        for (size_t i = 0; i < pairs; i++)
            s.rms[i] = 1;
        random_bases(&b, &seed);
        if (centre_file_write(m->model, m->id, &s, based ? &b : NULL, 1, &file, NULL) != KVASIR_OK)
            text_free(&file);
    }
    key_stats_deinit(&s);
    key_bases_deinit(&b);
    return file;
}

/* The same without bases. */
static inline struct text_buf random_centres(const kvasir_model *m, float size, uint64_t seed) {
    return random_calibration(m, size, false, seed);
}

#endif
