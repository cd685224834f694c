/* SPDX-License-Identifier: Apache-2.0 */
/* centre.c: what centred keys add to the scores of a tile.
 *
 * The waves are even and odd about the tile's middle, so one half of them serves both halves of the
 * tile:
 *
 *     even = sum A cos((u + 0.5) w)        scores[32 + u] += even + odd
 *     odd  = sum B sin((u + 0.5) w)        scores[31 - u] += even - odd         u = 0..31
 *
 * Per row and u two chains of FMAs over the pairs. Rows and u are cut into blocks of CENTRE_ROWS x
 * CENTRE_VECTORS vectors that share what they load. The cut changes no chain.
 */
#include "backend/cpu/simd/simd.h"

enum { HALF = TILE_TOKENS / 2, BLOCK = LANES * CENTRE_VECTORS };
_Static_assert(HALF % BLOCK == 0, "half of a tile is whole blocks");

struct sums {
    vf v[CENTRE_ROWS][CENTRE_VECTORS];
};

/* sums += factor of each row, `width` from row to row, times the waves at `wave`. */
ALWAYS_INLINE void add_waves(int n, const float *wave, const float *factor, size_t width,
                             struct sums *sums) {
    vf f[CENTRE_ROWS];
    UNROLL_FOR(i, n) {
        f[i] = splat(factor[(size_t)i * width]);
    }
    UNROLL_FOR(v, CENTRE_VECTORS) {
        vf x = keep_float(load(wave + LANES * v));
        UNROLL_FOR(i, n) {
            sums->v[i][v] = fmadd(f[i], x, sums->v[i][v]);
        }
    }
}

ALWAYS_INLINE void add_scores(float *at, vf x) {
    store(at, load(at) + x);
}

/* n rows, u = first .. first + BLOCK - 1. */
ALWAYS_INLINE void block(int n, const float *waves, const uint32_t *index, uint32_t pairs,
                         const float *ab, uint32_t first, float *scores, size_t stride) {
    struct sums even, odd;
    UNROLL_FOR(i, n) {
        UNROLL_FOR(v, CENTRE_VECTORS) {
            even.v[i][v] = odd.v[i][v] = splat(0);
        }
    }
    for (uint32_t j = 0; j < pairs; j++) {
        const float *wave = waves + (size_t)index[j] * 2 * TILE_TOKENS + HALF + first;
        add_waves(n, wave, ab + 2 * (size_t)j, 2 * (size_t)pairs, &even);
        add_waves(n, wave + TILE_TOKENS, ab + 2 * (size_t)j + 1, 2 * (size_t)pairs, &odd);
    }
    UNROLL_FOR(i, n) {
        UNROLL_FOR(v, CENTRE_VECTORS) {
            float *row = scores + (size_t)i * stride;
            size_t u = first + LANES * (size_t)v;
            add_scores(row + HALF + u, even.v[i][v] + odd.v[i][v]);
            add_scores(row + HALF - LANES - u, reversed(even.v[i][v] - odd.v[i][v]));
        }
    }
}

void TIER(centre_tile)(const float *waves, const uint32_t *index, uint32_t pairs, const float *ab,
                       uint32_t rows, float *scores, size_t stride) {
    for (uint32_t row = 0, n; row < rows; row += n) {
        uint32_t left = rows - row;
        n = left == 4 ? 2 : left < CENTRE_ROWS ? left : CENTRE_ROWS;
        const float *a = ab + (size_t)row * 2 * pairs;
        float *out = scores + row * stride;
        for (uint32_t first = 0; first < HALF; first += BLOCK) {
            if (CENTRE_ROWS > 2 && n == 3)
                block(CENTRE_ROWS, waves, index, pairs, a, first, out, stride);
            else if (n == 2)
                block(2, waves, index, pairs, a, first, out, stride);
            else
                block(1, waves, index, pairs, a, first, out, stride);
        }
    }
}
