/* SPDX-License-Identifier: Apache-2.0 */
/* recurrent.c: one token of the recurrent layers, NEON.
 *
 * Lanes are channels or value dims and never meet: a lane's arithmetic is the same in a full vector
 * and in a padded one. Sums over taps and over key dims are one FMA chain each, in order.
 */
#include "backend/cpu/neon/gates.h"

/* ---- short_conv ------------------------------------------------------------------------------ */

void neon_short_conv(float *state, const float *w, size_t stride, uint32_t width, const float *x,
                     size_t n, bool silu, float *y) {
    uint32_t last = width - 1;
    for (size_t c = 0; c < n; c += 4) {
        size_t left = n - c;
        float32x4_t in = load_end(x + c, 0, left), sum = vdupq_n_f32(0);
        for (uint32_t j = 0; j < last; j++) {
            float *at = state + j * stride + c;
            float32x4_t v = load_end(at, 0, left);
            sum = vfmaq_f32(sum, load_end(w + j * stride + c, 0, left), v);
            store_up_to_4(at, left, j + 1 < last ? load_end(at + stride, 0, left) : in);
        }
        sum = vfmaq_f32(sum, load_end(w + last * stride + c, 0, left), in);
        store_up_to_4(y + c, left, silu ? times_sigmoid(sum, sum) : sum);
    }
}

/* ---- delta_step ------------------------------------------------------------------------------ */

enum { VECTORS = 4 }; /* chains side by side */

/* `vectors` registers of value dims from `at` on; the only or last one has n of four lanes. */
ALWAYS_INLINE void delta_lanes(float *state, uint32_t key_dim, uint32_t value_dim,
                               const struct delta_token *t, uint32_t at, int vectors, size_t n,
                               float *y) {
    float32x4_t held[VECTORS], change[VECTORS], out[VECTORS];
    UNROLL_FOR(j, vectors) {
        held[j] = out[j] = vdupq_n_f32(0);
    }
    for (uint32_t i = 0; i < key_dim; i++) {
        const float *s = state + (size_t)i * value_dim + at;
        float k = t->k[i];
        UNROLL_FOR(j, vectors) {
            float32x4_t v = vmulq_n_f32(load_end(s + 4 * j, 0, n), t->decay);
            held[j] = vfmaq_n_f32(held[j], v, k);
        }
    }
    UNROLL_FOR(j, vectors) {
        float32x4_t v = load_end(t->v + at + 4 * j, 0, n);
        change[j] = vmulq_n_f32(vsubq_f32(v, held[j]), t->beta);
    }
    for (uint32_t i = 0; i < key_dim; i++) {
        float *s = state + (size_t)i * value_dim + at;
        float k = t->k[i], q = t->q[i];
        UNROLL_FOR(j, vectors) {
            float32x4_t v = vmulq_n_f32(load_end(s + 4 * j, 0, n), t->decay);
            v = vfmaq_n_f32(v, change[j], k);
            store_up_to_4(s + 4 * j, n, v);
            out[j] = vfmaq_n_f32(out[j], v, q);
        }
    }
    UNROLL_FOR(j, vectors) {
        store_up_to_4(y + at + 4 * j, n, out[j]);
    }
}

void neon_delta_step(float *state, uint32_t key_dim, uint32_t value_dim,
                     const struct delta_token *t, float *y) {
    uint32_t at = 0;
    for (; at + 4 * VECTORS <= value_dim; at += 4 * VECTORS)
        delta_lanes(state, key_dim, value_dim, t, at, VECTORS, 4, y);
    for (; at < value_dim; at += 4)
        delta_lanes(state, key_dim, value_dim, t, at, 1, value_dim - at, y);
}
