/* SPDX-License-Identifier: Apache-2.0 */
/* centre.c: what centred keys add to the scores of a tile, NEON.
 *
 * The waves are even and odd about the tile's middle, so one half of them serves both halves of the
 * tile:
 *
 *     even = sum A cos((u + 0.5) w)        scores[32 + u] += even + odd
 *     odd  = sum B sin((u + 0.5) w)        scores[31 - u] += even - odd         u = 0..31
 *
 * Per row and u two chains of FMAs over the pairs. A block is 16 u (four vectors) and up to two
 * rows, which share what they load: 16 chains are half of the registers. The chains do not know how
 * they were cut.
 */
#include "backend/cpu/neon/vector.h"

enum { VECTORS = 4, BLOCK = 4 * VECTORS, HALF = TILE_TOKENS / 2, ROWS_AT_ONCE = 2 };

ALWAYS_INLINE float32x4_t reverse(float32x4_t v) {
    v = vrev64q_f32(v);
    return vextq_f32(v, v, 2);
}

ALWAYS_INLINE void add_scores(float *at, float32x4_t x) {
    vst1q_f32(at, vaddq_f32(vld1q_f32(at), x));
}

/* u = first .. first + 15. ab, scores: of the first row. */
ALWAYS_INLINE void block(int rows, const float *waves, const uint32_t *index, uint32_t pairs,
                         const float *ab, uint32_t first, float *scores, size_t stride) {
    float32x4_t even[ROWS_AT_ONCE][VECTORS], odd[ROWS_AT_ONCE][VECTORS];
    UNROLL_FOR(r, rows) {
        UNROLL_FOR(v, VECTORS) {
            even[r][v] = odd[r][v] = vdupq_n_f32(0);
        }
    }
    for (size_t j = 0; j < pairs; j++) {
        const float *cosine = waves + (size_t)index[j] * 2 * TILE_TOKENS + HALF + first;
        const float *sine = cosine + TILE_TOKENS;
        UNROLL_FOR(v, VECTORS) {
            float32x4_t c = vld1q_f32(cosine + 4 * v), s = vld1q_f32(sine + 4 * v);
            UNROLL_FOR(r, rows) {
                const float *factors = ab + 2 * ((size_t)r * pairs + j);
                even[r][v] = vfmaq_n_f32(even[r][v], c, factors[0]);
                odd[r][v] = vfmaq_n_f32(odd[r][v], s, factors[1]);
            }
        }
    }
    UNROLL_FOR(r, rows) {
        UNROLL_FOR(v, VECTORS) {
            float *row = scores + (size_t)r * stride;
            uint32_t u = first + 4 * (uint32_t)v;
            add_scores(row + HALF + u, vaddq_f32(even[r][v], odd[r][v]));
            add_scores(row + HALF - 4 - u, reverse(vsubq_f32(even[r][v], odd[r][v])));
        }
    }
}

void neon_centre_tile(const float *waves, const uint32_t *index, uint32_t pairs, const float *ab,
                      uint32_t rows, float *scores, size_t stride) {
    for (uint32_t row = 0; row < rows; row += ROWS_AT_ONCE) {
        const float *factors = ab + 2 * (size_t)row * pairs;
        for (uint32_t first = 0; first < HALF; first += BLOCK) {
            if (rows - row >= 2)
                block(2, waves, index, pairs, factors, first, scores + row * stride, stride);
            else
                block(1, waves, index, pairs, factors, first, scores + row * stride, stride);
        }
    }
}
