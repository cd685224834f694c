/* SPDX-License-Identifier: Apache-2.0 */
/* recurrent.c: one token of the recurrent layers, AVX2.
 *
 * Lanes are channels or value dims and never meet: a lane's arithmetic is the same in a full vector
 * and in a masked one. Sums over taps and over key dims are one FMA chain each, in order.
 */
#include "backend/cpu/avx2/gates.h"

/* ---- short_conv ------------------------------------------------------------------------------ */

void avx2_short_conv(float *state, const float *w, size_t stride, uint32_t width, const float *x,
                     size_t n, bool silu, float *y) {
    uint32_t last = width - 1;
    for (size_t c = 0; c < n; c += 8) {
        size_t left = n - c;
        __m256 in = load_first(x + c, left), sum = _mm256_setzero_ps();
        for (uint32_t j = 0; j < last; j++) {
            float *at = state + j * stride + c;
            __m256 v = load_first(at, left);
            sum = _mm256_fmadd_ps(load_first(w + j * stride + c, left), v, sum);
            store_first(at, left, j + 1 < last ? load_first(at + stride, left) : in);
        }
        sum = _mm256_fmadd_ps(load_first(w + last * stride + c, left), in, sum);
        store_first(y + c, left, silu ? times_sigmoid(sum, sum) : sum);
    }
}

/* ---- delta_step ------------------------------------------------------------------------------ */

enum { VECTORS = 4 }; /* chains side by side */

/* `vectors` registers of value dims from `at` on; the only or last one has n of eight lanes. */
ALWAYS_INLINE void delta_lanes(float *state, uint32_t key_dim, uint32_t value_dim,
                               const struct delta_token *t, uint32_t at, int vectors, size_t n,
                               float *y) {
    __m256 held[VECTORS], change[VECTORS], out[VECTORS];
    __m256 decay = _mm256_set1_ps(t->decay), beta = _mm256_set1_ps(t->beta);
    for (int j = 0; j < vectors; j++)
        held[j] = out[j] = _mm256_setzero_ps();
    for (uint32_t i = 0; i < key_dim; i++) {
        const float *s = state + (size_t)i * value_dim + at;
        __m256 k = _mm256_set1_ps(t->k[i]);
        for (int j = 0; j < vectors; j++) {
            __m256 v = _mm256_mul_ps(decay, load_first(s + 8 * j, n));
            held[j] = _mm256_fmadd_ps(k, v, held[j]);
        }
    }
    for (int j = 0; j < vectors; j++) {
        __m256 v = load_first(t->v + at + 8 * j, n);
        change[j] = _mm256_mul_ps(beta, _mm256_sub_ps(v, held[j]));
    }
    for (uint32_t i = 0; i < key_dim; i++) {
        float *s = state + (size_t)i * value_dim + at;
        __m256 k = _mm256_set1_ps(t->k[i]), q = _mm256_set1_ps(t->q[i]);
        for (int j = 0; j < vectors; j++) {
            __m256 v = _mm256_mul_ps(decay, load_first(s + 8 * j, n));
            v = _mm256_fmadd_ps(k, change[j], v);
            store_first(s + 8 * j, n, v);
            out[j] = _mm256_fmadd_ps(q, v, out[j]);
        }
    }
    for (int j = 0; j < vectors; j++)
        store_first(y + at + 8 * j, n, out[j]);
}

void avx2_delta_step(float *state, uint32_t key_dim, uint32_t value_dim,
                     const struct delta_token *t, float *y) {
    uint32_t at = 0;
    for (; at + 8 * VECTORS <= value_dim; at += 8 * VECTORS)
        delta_lanes(state, key_dim, value_dim, t, at, VECTORS, 8, y);
    for (; at < value_dim; at += 8)
        delta_lanes(state, key_dim, value_dim, t, at, 1, value_dim - at, y);
}
