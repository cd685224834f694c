/* SPDX-License-Identifier: Apache-2.0 */
/* centre.c: what centred keys add to the scores of a tile, AVX-512.
 *
 *     | 64 tokens |  +=  sum over pairs of A_j | cos(t w_j), t = 0..63 | + B_j | sin(t w_j) |
 *
 * A row of the table of waves is eight vectors, which up to three query rows share. A score has two
 * sums, of cosines and of sines, each a chain of FMAs over the pairs in order; they are joined,
 * then added to the score. Three rows x four vectors x two sums are 24 registers, the
 * coefficients at hand 3.
 */
#include "backend/cpu/avx512/vector.h"

enum { ROWS_AT_ONCE = 3, VECTORS = TILE_TOKENS / 16 };

/* Rows [0, n) of ab and scores. */
ALWAYS_INLINE void add_rows(int n, const float *waves, const uint32_t *index, uint32_t pairs,
                            const float *ab, float *scores, size_t stride) {
    __m512 sum[ROWS_AT_ONCE][VECTORS][2];
    UNROLL_FOR(i, n) {
        UNROLL_FOR(v, VECTORS) {
            sum[i][v][0] = sum[i][v][1] = _mm512_setzero_ps();
        }
    }
    for (uint32_t j = 0; j < pairs; j++) {
        const float *wave = waves + (size_t)index[j] * 2 * TILE_TOKENS;
        UNROLL_FOR(kind, 2) {
            __m512 c[ROWS_AT_ONCE];
            UNROLL_FOR(i, n) {
                c[i] = _mm512_set1_ps(ab[2 * ((size_t)i * pairs + j) + (size_t)kind]);
                __asm__("" : "+v"(c[i])); /* a register: not a load for each of its uses */
            }
            UNROLL_FOR(v, VECTORS) {
                __m512 w = _mm512_loadu_ps(wave + kind * TILE_TOKENS + 16 * v);
                __asm__("" : "+v"(w));
                UNROLL_FOR(i, n) {
                    sum[i][v][kind] = _mm512_fmadd_ps(c[i], w, sum[i][v][kind]);
                }
            }
        }
    }
    UNROLL_FOR(i, n) {
        UNROLL_FOR(v, VECTORS) {
            float *at = scores + (size_t)i * stride + 16 * v;
            __m512 all = _mm512_add_ps(sum[i][v][0], sum[i][v][1]);
            _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), all));
        }
    }
}

void avx512_centre_tile(const float *waves, const uint32_t *index, uint32_t pairs, const float *ab,
                        uint32_t rows, float *scores, size_t stride) {
    for (uint32_t row = 0; row < rows; row += ROWS_AT_ONCE) {
        if (rows - row >= 3)
            add_rows(3, waves, index, pairs, ab, scores, stride);
        else if (rows - row == 2)
            add_rows(2, waves, index, pairs, ab, scores, stride);
        else
            add_rows(1, waves, index, pairs, ab, scores, stride);
        ab += 2 * (size_t)ROWS_AT_ONCE * pairs;
        scores += ROWS_AT_ONCE * stride;
    }
}
