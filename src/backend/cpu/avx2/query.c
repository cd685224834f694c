/* SPDX-License-Identifier: Apache-2.0 */
/* query.c: what stands before and between the tile kernels of attention, AVX2: rounding query rows
 * to 15 bits, and the exponentials of one run.
 *
 *     query_pack    q * scale -> f32 -> codes rint(f32 * (ACT16_MAX / max|f32|)) in the order
 *                   0 2 1 3 -> sums of 32 codes
 *     softmax_run   exp is ours: x = n ln 2 + r with |r| <= ln 2 / 2, e^r by a polynomial of degree
 *                   7 (Cephes' coefficients; below 1 ulp with FMA), 2^n by adding n to the
 *                   exponent. Weights below 2^-126 become 0.
 *
 * Invariant: the sum of a run has eight lanes x four registers, taken in turn, then one tree.
 * Masked tokens add exact zeros, so a run's sum does not depend on how many masked tokens stand
 * behind the last one seen.
 */
#include <math.h>

#include "backend/cpu/avx2/vector.h"

/* ---- query_pack ------------------------------------------------------------------------------ */

static float scale_query(const float *q, uint32_t dim, float q_scale, float *out) {
    __m256 factor = _mm256_set1_ps(q_scale);
    __m256i max = _mm256_setzero_si256();
    uint32_t d = 0;
    for (; d + 8 <= dim; d += 8) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(q + d), factor);
        _mm256_storeu_ps(out + d, x);
        max = _mm256_max_epi32(max, magnitude_bits(x));
    }
    if (d < dim) {
        __m128 x = _mm_mul_ps(_mm_loadu_ps(q + d), _mm256_castps256_ps128(factor));
        _mm_storeu_ps(out + d, x);
        max = _mm256_max_epi32(max, magnitude_bits(_mm256_zextps128_ps256(x)));
    }
    return max_magnitude(max);
}

/* Codes of n <= 32 dims, a multiple of 4; returns their sum. */
static int32_t pack_codes(const float *x, uint32_t n, __m256 factor, int16_t *codes) {
    float padded[32] = {0};
    int16_t packed[32];
    memcpy(padded, x, n * sizeof *x);
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < 2; i++) {
        const float *at = padded + 16 * i;
        __m256i c = round_codes(_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8), factor);
        _mm256_storeu_si256((__m256i *)(packed + 16 * i), c);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(c, _mm256_set1_epi16(1)));
    }
    memcpy(codes, packed, n * sizeof *codes);
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

void avx2_query_pack(const float *q, size_t q_stride, float q_scale, struct query_rows *out) {
    uint32_t dim = out->dim, sums = dim / 32;
    for (size_t row = 0; row < out->rows; row++) {
        float *x = out->f32 + row * dim;
        struct rounding r =
            rounding_of(scale_query(q + row * q_stride, dim, q_scale, x), ACT16_MAX);
        out->scale[row] = r.scale;
        __m256 factor = _mm256_set1_ps(r.per_unit);
        for (uint32_t d = 0; d < dim; d += 32) {
            uint32_t n = dim - d < 32 ? dim - d : 32;
            int32_t sum = pack_codes(x + d, n, factor, out->codes + row * dim + d);
            if (n == 32)
                out->sum32[row * sums + d / 32] = sum;
        }
    }
}

/* ---- softmax_run ----------------------------------------------------------------------------- */

/* e^x for x <= 0; 0 where the result would be subnormal. NaN stays NaN. */
ALWAYS_INLINE __m256 exp_lanes(__m256 x) {
    const __m256 smallest = _mm256_set1_ps(-87.336f); /* e^-87.336 is just above 2^-126 */
    __m256 normal = _mm256_cmp_ps(x, smallest, _CMP_NLT_UQ);
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    /* ln 2 in two parts, the first short enough that n times it is exact */
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 y = _mm256_set1_ps(1.9875691500e-4f);
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.3981999507e-3f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(8.3334519073e-3f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(4.1665795894e-2f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.6666665459e-1f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(5.0000001201e-1f));
    y = _mm256_fmadd_ps(y, _mm256_mul_ps(r, r), r);
    y = _mm256_add_ps(y, _mm256_set1_ps(1.0f));
    __m256i bits =
        _mm256_add_epi32(_mm256_castps_si256(y), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23));
    return _mm256_and_ps(normal, _mm256_castsi256_ps(bits));
}

static float run_max(const float *p, uint32_t n) {
    __m256 m[4];
    for (int j = 0; j < 4; j++)
        m[j] = _mm256_set1_ps(-INFINITY);
    for (uint32_t i = 0; i < n; i += 32) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            m[j] = _mm256_max_ps(m[j], _mm256_loadu_ps(p + i + 8 * j));
    }
    __m256 all = _mm256_max_ps(_mm256_max_ps(m[0], m[1]), _mm256_max_ps(m[2], m[3]));
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

void avx2_softmax_run(float *p, uint32_t n, float *max_out, float *sum_out) {
    float max = run_max(p, n);
    *max_out = max;
    *sum_out = 0;
    if (max == -INFINITY) {
        memset(p, 0, n * sizeof *p);
        return;
    }
    __m256 shift = _mm256_set1_ps(max), sum[4];
    for (int j = 0; j < 4; j++)
        sum[j] = _mm256_setzero_ps();
    for (uint32_t i = 0; i < n; i += 32) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            float *at = p + i + 8 * j;
            __m256 e = exp_lanes(_mm256_sub_ps(_mm256_loadu_ps(at), shift));
            _mm256_storeu_ps(at, e);
            sum[j] = _mm256_add_ps(sum[j], e);
        }
    }
    *sum_out =
        sum_lanes(_mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3])));
}
