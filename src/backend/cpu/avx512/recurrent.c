/* SPDX-License-Identifier: Apache-2.0 */
/* recurrent.c: one token of the recurrent layers, AVX-512.
 *
 * Lanes are channels or value dims and never meet: a lane's arithmetic is the same in a full vector
 * and in a masked one. Sums over taps and over key dims are one FMA chain each, in order.
 */
#include "backend/cpu/avx512/gates.h"

/* ---- short_conv ------------------------------------------------------------------------------ */

void avx512_short_conv(float *state, const float *w, size_t stride, uint32_t width, const float *x,
                       size_t n, bool silu, float *y) {
    uint32_t last = width - 1;
    for (size_t c = 0; c < n; c += 16) {
        size_t left = n - c;
        __m512 in = load_first(x + c, left), sum = _mm512_setzero_ps();
        for (uint32_t j = 0; j < last; j++) {
            float *at = state + j * stride + c;
            __m512 v = load_first(at, left);
            sum = _mm512_fmadd_ps(load_first(w + j * stride + c, left), v, sum);
            store_first(at, left, j + 1 < last ? load_first(at + stride, left) : in);
        }
        sum = _mm512_fmadd_ps(load_first(w + last * stride + c, left), in, sum);
        store_first(y + c, left, silu ? times_sigmoid(sum, sum) : sum);
    }
}

/* ---- delta_step ------------------------------------------------------------------------------ */

enum { VECTORS = 4 }; /* chains side by side */

/* `vectors` registers of value dims from `at` on; the only or last one has n of sixteen lanes. */
ALWAYS_INLINE void delta_lanes(float *state, uint32_t key_dim, uint32_t value_dim,
                               const struct delta_token *t, uint32_t at, int vectors, size_t n,
                               float *y) {
    __m512 held[VECTORS], change[VECTORS], out[VECTORS];
    __m512 decay = _mm512_set1_ps(t->decay), beta = _mm512_set1_ps(t->beta);
    UNROLL_FOR(j, vectors) {
        held[j] = out[j] = _mm512_setzero_ps();
    }
    for (uint32_t i = 0; i < key_dim; i++) {
        const float *s = state + (size_t)i * value_dim + at;
        __m512 k = _mm512_set1_ps(t->k[i]);
        UNROLL_FOR(j, vectors) {
            __m512 v = _mm512_mul_ps(decay, load_first(s + 16 * j, n));
            held[j] = _mm512_fmadd_ps(k, v, held[j]);
        }
    }
    UNROLL_FOR(j, vectors) {
        __m512 v = load_first(t->v + at + 16 * j, n);
        change[j] = _mm512_mul_ps(beta, _mm512_sub_ps(v, held[j]));
    }
    for (uint32_t i = 0; i < key_dim; i++) {
        float *s = state + (size_t)i * value_dim + at;
        __m512 k = _mm512_set1_ps(t->k[i]), q = _mm512_set1_ps(t->q[i]);
        UNROLL_FOR(j, vectors) {
            __m512 v = _mm512_mul_ps(decay, load_first(s + 16 * j, n));
            v = _mm512_fmadd_ps(k, change[j], v);
            store_first(s + 16 * j, n, v);
            out[j] = _mm512_fmadd_ps(q, v, out[j]);
        }
    }
    UNROLL_FOR(j, vectors) {
        store_first(y + at + 16 * j, n, out[j]);
    }
}

void avx512_delta_step(float *state, uint32_t key_dim, uint32_t value_dim,
                       const struct delta_token *t, float *y) {
    uint32_t at = 0;
    for (; at + 16 * VECTORS <= value_dim; at += 16 * VECTORS)
        delta_lanes(state, key_dim, value_dim, t, at, VECTORS, 16, y);
    for (; at < value_dim; at += 16)
        delta_lanes(state, key_dim, value_dim, t, at, 1, value_dim - at, y);
}
