/* SPDX-License-Identifier: Apache-2.0 */
/* centre.c: what centred keys add to the scores of a tile, AVX2.
 *
 * The waves are even and odd about the tile's middle, so one half of them serves both halves of the
 * tile:
 *
 *     even = sum A cos((u + 0.5) w)        scores[32 + u] += even + odd
 *     odd  = sum B sin((u + 0.5) w)        scores[31 - u] += even - odd         u = 0..31
 *
 * Per row and u two chains of FMAs over the pairs. Rows and u are cut into blocks of three rows
 * x 16 that share what they load: 12 chains, 3 factors and 1 vector of waves are the 16 registers.
 * The chains do not know how they were cut.
 */
#include "backend/cpu/avx2/vector.h"

enum { ROWS_AT_ONCE = 3, VECTORS = 2, HALF = TILE_TOKENS / 2 };

struct sums {
    __m256 v[ROWS_AT_ONCE][VECTORS];
};

/* sums += factor of each row, `width` from row to row, times the waves at `wave`. */
ALWAYS_INLINE void add_waves(int n, const float *wave, const float *factor, size_t width,
                             struct sums *sums) {
    __m256 f[ROWS_AT_ONCE];
#pragma GCC unroll 3
    for (int i = 0; i < ROWS_AT_ONCE; i++)
        f[i] = _mm256_broadcast_ss(factor + (size_t)(i < n ? i : 0) * width);
#pragma GCC unroll 2
    for (size_t v = 0; v < VECTORS; v++) {
        __m256 x = _mm256_loadu_ps(wave + 8 * v);
        asm("" : "+x"(x)); /* a register: a folded load would be repeated per row */
#pragma GCC unroll 3
        for (int i = 0; i < ROWS_AT_ONCE; i++) {
            if (i >= n)
                break;
            sums->v[i][v] = _mm256_fmadd_ps(f[i], x, sums->v[i][v]);
        }
    }
}

/* Without a register for the order: the loop before it has none to spare. */
ALWAYS_INLINE __m256 reversed(__m256 x) {
    x = _mm256_permute_ps(x, 0x1b);
    return _mm256_permute2f128_ps(x, x, 1);
}

ALWAYS_INLINE void add_scores(float *at, __m256 x) {
    _mm256_storeu_ps(at, _mm256_add_ps(_mm256_loadu_ps(at), x));
}

/* n rows, u = first .. first + 15. */
ALWAYS_INLINE void block(int n, const float *waves, const uint32_t *index, uint32_t pairs,
                         const float *ab, uint32_t first, float *scores, size_t stride) {
    struct sums even, odd;
#pragma GCC unroll 3
    for (int i = 0; i < ROWS_AT_ONCE; i++) {
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            even.v[i][v] = odd.v[i][v] = _mm256_setzero_ps();
    }
    for (uint32_t j = 0; j < pairs; j++) {
        const float *wave = waves + (size_t)index[j] * 2 * TILE_TOKENS + HALF + first;
        add_waves(n, wave, ab + 2 * (size_t)j, 2 * (size_t)pairs, &even);
        add_waves(n, wave + TILE_TOKENS, ab + 2 * (size_t)j + 1, 2 * (size_t)pairs, &odd);
    }
#pragma GCC unroll 3
    for (int i = 0; i < ROWS_AT_ONCE; i++) {
        if (i >= n)
            break;
#pragma GCC unroll 2
        for (size_t v = 0; v < VECTORS; v++) {
            __m256 e = even.v[i][v], o = odd.v[i][v];
            float *row = scores + (size_t)i * stride;
            size_t u = first + 8 * v;
            add_scores(row + HALF + u, _mm256_add_ps(e, o));
            add_scores(row + HALF - 8 - u, reversed(_mm256_sub_ps(e, o)));
        }
    }
}

void avx2_centre_tile(const float *waves, const uint32_t *index, uint32_t pairs, const float *ab,
                      uint32_t rows, float *scores, size_t stride) {
    for (uint32_t row = 0, n; row < rows; row += n) {
        uint32_t left = rows - row;
        n = left == 4 ? 2 : left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE;
        const float *a = ab + (size_t)row * 2 * pairs;
        float *out = scores + row * stride;
        for (uint32_t first = 0; first < HALF; first += 8 * VECTORS) {
            if (n == 3)
                block(3, waves, index, pairs, a, first, out, stride);
            else if (n == 2)
                block(2, waves, index, pairs, a, first, out, stride);
            else
                block(1, waves, index, pairs, a, first, out, stride);
        }
    }
}
