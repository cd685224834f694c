/* SPDX-License-Identifier: Apache-2.0 */
/* centre.c: what the centres of a tile's keys add to its scores, NEON.
 *
 * A token's sum is one chain, pair after pair, cos then sin, each with one rounding (FMA); the sum
 * is added to the score once, at the end. A block is 32 tokens (eight vectors) and up to two rows:
 * 16 chains, and the waves of a pair are read once for both rows.
 */
#include "backend/cpu/neon/vector.h"

enum { BLOCK_VECTORS = 8, BLOCK_TOKENS = 4 * BLOCK_VECTORS, ROWS_AT_ONCE = 2 };

/* waves: from the block's first token on. ab, scores: of the first row. */
ALWAYS_INLINE void centre_block(const float *waves, const uint32_t *index, uint32_t pairs,
                                const float *ab, int rows, float *scores, size_t stride) {
    float32x4_t sum[ROWS_AT_ONCE][BLOCK_VECTORS];
    UNROLL_FOR(r, rows) {
        UNROLL_FOR(v, BLOCK_VECTORS) {
            sum[r][v] = vdupq_n_f32(0);
        }
    }
    for (size_t j = 0; j < pairs; j++) {
        const float *wave = waves + (size_t)index[j] * 2 * TILE_TOKENS;
        UNROLL_FOR(v, BLOCK_VECTORS) {
            float32x4_t c = vld1q_f32(wave + 4 * v), s = vld1q_f32(wave + TILE_TOKENS + 4 * v);
            UNROLL_FOR(r, rows) {
                const float *factors = ab + 2 * ((size_t)r * pairs + j);
                sum[r][v] = vfmaq_n_f32(sum[r][v], c, factors[0]);
                sum[r][v] = vfmaq_n_f32(sum[r][v], s, factors[1]);
            }
        }
    }
    UNROLL_FOR(r, rows) {
        UNROLL_FOR(v, BLOCK_VECTORS) {
            float *at = scores + (size_t)r * stride + 4 * v;
            vst1q_f32(at, vaddq_f32(vld1q_f32(at), sum[r][v]));
        }
    }
}

void neon_centre_tile(const float *waves, const uint32_t *index, uint32_t pairs, const float *ab,
                      uint32_t rows, float *scores, size_t stride) {
    for (uint32_t row = 0; row < rows; row += ROWS_AT_ONCE) {
        const float *factors = ab + 2 * (size_t)row * pairs;
        for (uint32_t t = 0; t < TILE_TOKENS; t += BLOCK_TOKENS) {
            float *to = scores + row * stride + t;
            if (rows - row >= 2)
                centre_block(waves + t, index, pairs, factors, 2, to, stride);
            else
                centre_block(waves + t, index, pairs, factors, 1, to, stride);
        }
    }
}
