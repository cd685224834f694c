/* SPDX-License-Identifier: Apache-2.0 */
/* recurrent.c: one token of the recurrent layers.
 *
 * Lanes are channels or value dims and never meet: a lane's arithmetic is the same in a full vector
 * and in a masked one. Sums over taps and over key dims are one FMA chain each, in order.
 */
#include "backend/cpu/simd/simd.h"

/* ---- short_conv ------------------------------------------------------------------------------ */

void TIER(short_conv)(float *state, const float *w, size_t stride, uint32_t width, const float *x,
                      size_t n, bool silu, float *y) {
    ASSERT(width > 0 && (width == 1 || n <= stride));
    uint32_t last = width - 1;
    FOR_VECTORS(c, left, n, {
        vf in = load_first(x + c, left);
        vf sum = splat(0);
        for (uint32_t j = 0; j < last; j++) {
            float *at = state + j * stride + c;
            vf v = load_first(at, left);
            sum = fmadd(load_first(w + j * stride + c, left), v, sum);
            store_first(at, left, j + 1 < last ? load_first(at + stride, left) : in);
        }
        sum = fmadd(load_first(w + last * stride + c, left), in, sum);
        store_first(y + c, left, silu ? times_sigmoid(sum, sum) : sum);
    });
}

/* ---- delta_step ------------------------------------------------------------------------------ */

enum { VECTORS = 4 }; /* chains side by side */

/* `vectors` registers of value dims from `at` on; the only or last one has n lanes. */
ALWAYS_INLINE void delta_lanes(float *state, uint32_t key_dim, uint32_t value_dim,
                               const struct delta_token *t, uint32_t at, int vectors, size_t n,
                               float *y) {
    vf held[VECTORS], change[VECTORS], out[VECTORS];
    vf decay = splat(t->decay), beta = splat(t->beta);
    DEBUG_ASSERT(at < value_dim && (vectors == 1 || at + LANES * (uint32_t)vectors <= value_dim));
    UNROLL_FOR(j, vectors) {
        held[j] = out[j] = splat(0);
    }
    for (uint32_t i = 0; i < key_dim; i++) {
        const float *s = state + (size_t)i * value_dim + at;
        vf k = splat(t->k[i]);
        UNROLL_FOR(j, vectors) {
            vf v = decay * load_first(s + LANES * j, n);
            held[j] = fmadd(k, v, held[j]);
        }
    }
    UNROLL_FOR(j, vectors) {
        change[j] = beta * (load_first(t->v + at + LANES * j, n) - held[j]);
    }
    for (uint32_t i = 0; i < key_dim; i++) {
        float *s = state + (size_t)i * value_dim + at;
        vf k = splat(t->k[i]), q = splat(t->q[i]);
        UNROLL_FOR(j, vectors) {
            vf v = decay * load_first(s + LANES * j, n);
            v = fmadd(k, change[j], v);
            store_first(s + LANES * j, n, v);
            out[j] = fmadd(q, v, out[j]);
        }
    }
    UNROLL_FOR(j, vectors) {
        store_first(y + at + LANES * j, n, out[j]);
    }
}

void TIER(delta_step)(float *state, uint32_t key_dim, uint32_t value_dim,
                      const struct delta_token *t, float *y) {
    uint32_t at = 0;
    for (; at + LANES * VECTORS <= value_dim; at += LANES * VECTORS)
        delta_lanes(state, key_dim, value_dim, t, at, VECTORS, LANES, y);
    for (; at < value_dim; at += LANES)
        delta_lanes(state, key_dim, value_dim, t, at, 1, value_dim - at, y);
}
