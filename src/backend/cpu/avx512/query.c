/* SPDX-License-Identifier: Apache-2.0 */
/* query.c: rounding query rows to 15 bits, AVX-512.
 *
 *     q * scale -> f32 -> codes rint(f32 * (ACT16_MAX / max|f32|)) -> sums of 32 codes, and the
 *     codes as the halves that affine.c multiplies with (vector.h)
 */
#include <math.h>

#include "backend/cpu/avx512/vector.h"

static float scale_query(const float *q, uint32_t dim, float q_scale, float *out) {
    __m512i max = _mm512_setzero_si512();
    for (uint32_t d = 0; d < dim; d += 16) {
        __mmask16 lanes = first_lanes(dim - d);
        __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, q + d), _mm512_set1_ps(q_scale));
        _mm512_mask_storeu_ps(out + d, lanes, x);
        max = _mm512_max_epi32(max, _mm512_maskz_mov_epi32(lanes, magnitude_bits(x)));
    }
    return max_magnitude(max);
}

/* Codes of n <= 32 dims, a multiple of 4; returns their sum. */
static int32_t pack_codes(const float *x, uint32_t n, __m512 factor, int16_t *codes) {
    __mmask16 low = first_lanes(n), high = first_lanes(n > 16 ? n - 16 : 0);
    __m512i c = round_s16(_mm512_maskz_loadu_ps(low, x),
                          _mm512_maskz_loadu_ps(high, high ? x + 16 : x), factor);
    _mm512_mask_storeu_epi16(codes, (__mmask32)high << 16 | low, halves_of_runs(c));
    return _mm512_reduce_add_epi32(_mm512_madd_epi16(c, _mm512_set1_epi16(1)));
}

/* A row that holds NaN or Inf has the scale NaN: its scores must not look plausible. */
void TIER(query_pack)(const float *q, size_t q_stride, float q_scale, struct query_rows *out) {
    uint32_t dim = out->dim, sums = dim / 32;
    for (size_t row = 0; row < out->rows; row++) {
        float *x = out->f32 + row * dim;
        struct rounding r =
            rounding_of(scale_query(q + row * q_stride, dim, q_scale, x), ACT16_MAX);
        out->scale[row] = r.scale;
        __m512 factor = _mm512_set1_ps(r.per_unit);
        for (uint32_t d = 0; d < dim; d += 32) {
            uint32_t n = dim - d < 32 ? dim - d : 32;
            int32_t sum = pack_codes(x + d, n, factor, out->codes + row * dim + d);
            if (n == 32)
                out->sum32[row * sums + d / 32] = sum;
        }
    }
}
