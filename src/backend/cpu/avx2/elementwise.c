/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise.c: the small operations of a layer, AVX2.
 *
 * A value of silu_mul and add depends on its operands alone, not on where in a range it stands:
 * what is left over at the end of a range goes through the same vector code, masked. rms_norm's sum
 * has a fixed order: 8 lanes x four registers taken in turn, then one tree; dims behind the last
 * count as 0.
 */
#include "backend/cpu/avx2/vector.h"

/* Lanes [0, n) of eight. */
ALWAYS_INLINE __m256i first_lanes(size_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < 8 ? (int)n : 8),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* ---- rms_norm -------------------------------------------------------------------------------- */

static float sum_of_squares(const float *x, uint32_t dim) {
    __m256 sum[4];
    uint32_t i = 0;
    for (int j = 0; j < 4; j++)
        sum[j] = _mm256_setzero_ps();
    for (; i + 32 <= dim; i += 32) {
        for (uint32_t j = 0; j < 4; j++) {
            __m256 v = _mm256_loadu_ps(x + i + 8 * j);
            sum[j] = _mm256_fmadd_ps(v, v, sum[j]);
        }
    }
    for (uint32_t j = 0; i < dim; i += 8, j++) {
        __m256 v = _mm256_maskload_ps(x + i, first_lanes(dim - i));
        sum[j] = _mm256_fmadd_ps(v, v, sum[j]);
    }
    return sum_lanes(_mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3])));
}

void avx2_rms_norm(const float *x, const float *gain, uint32_t dim, float eps, float *y) {
    __m128 mean = _mm_set_ss(sum_of_squares(x, dim) / (float)dim + eps);
    __m256 factor = _mm256_set1_ps(1.0f / _mm_cvtss_f32(_mm_sqrt_ss(mean)));
    uint32_t i = 0;
    for (; i + 8 <= dim; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), factor);
        _mm256_storeu_ps(y + i, _mm256_mul_ps(v, _mm256_loadu_ps(gain + i)));
    }
    if (i < dim) {
        __m256i lanes = first_lanes(dim - i);
        __m256 v = _mm256_mul_ps(_mm256_maskload_ps(x + i, lanes), factor);
        v = _mm256_mul_ps(v, _mm256_maskload_ps(gain + i, lanes));
        _mm256_maskstore_ps(y + i, lanes, v);
    }
}

/* ---- rope ------------------------------------------------------------------------------------ */

/* (2i, 2i+1) pairs to two halves. */
static void split_pairs(const float *pairs, uint32_t n, float *first, float *second) {
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 a = _mm256_loadu_ps(pairs + 2 * (size_t)i);
        __m256 b = _mm256_loadu_ps(pairs + 2 * (size_t)i + 8);
        __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
        __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
        _mm256_storeu_ps(first + i, _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8)));
        _mm256_storeu_ps(second + i, _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8)));
    }
    for (; i < n; i++) {
        first[i] = pairs[2 * (size_t)i];
        second[i] = pairs[2 * (size_t)i + 1];
    }
}

void avx2_rope(float *head, uint32_t n, const float *cos_in, const float *sin_in, bool adjacent) {
    float halves[HEAD_DIM_MAX];
    const float *first = head, *second = head + n;
    if (adjacent) {
        split_pairs(head, n, halves, halves + n);
        first = halves;
        second = halves + n;
    }
    for (uint32_t i = 0; i < n; i += 8) {
        __m256i lanes = first_lanes(n - i);
        __m256 a = _mm256_maskload_ps(first + i, lanes), b = _mm256_maskload_ps(second + i, lanes);
        __m256 c = _mm256_maskload_ps(cos_in + i, lanes), s = _mm256_maskload_ps(sin_in + i, lanes);
        __m256 x = _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s));
        __m256 y = _mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c));
        _mm256_maskstore_ps(head + i, lanes, x);
        _mm256_maskstore_ps(head + n + i, lanes, y);
    }
}

/* ---- silu_mul, add --------------------------------------------------------------------------- */

/* e^x for x <= 0, 1.01 ulp: 0 below -104, subnormals kept, NaN stays NaN.
 * x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial whose coefficients minimise the relative
 * error (3e-9) there; 2^n in two factors, as n may be below -126. */
ALWAYS_INLINE __m256 exp_lanes(__m256 x) {
    x = _mm256_max_ps(_mm256_set1_ps(-104.0f), x);
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.62e43p-1f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-0x1.05c61p-29f), r);
    __m256 p = _mm256_set1_ps(0x1.6a215ap-10f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.123b9ap-7f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.5558fcp-5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.55549p-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.fffffcp-2f));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1.0f));
    __m256i k = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(k, 1);
    __m256i bias = _mm256_set1_epi32(127);
    __m256i low = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i high = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(k, half), bias), 23);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(low));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(high));
}

/* g / (1 + e^-g) * u, written with e = e^-|g| (for negative g both sides of the fraction times
 * e^g), so that nothing overflows and small results keep their bits. */
ALWAYS_INLINE __m256 silu_mul(__m256 g, __m256 u) {
    __m256 e = exp_lanes(_mm256_or_ps(g, _mm256_set1_ps(-0.0f)));
    __m256 numerator = _mm256_blendv_ps(g, _mm256_mul_ps(g, e), g);
    return _mm256_mul_ps(_mm256_div_ps(numerator, _mm256_add_ps(_mm256_set1_ps(1.0f), e)), u);
}

void avx2_silu_mul(const float *gate, const float *up, size_t n, float *y) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, silu_mul(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
    if (i < n) {
        __m256i lanes = first_lanes(n - i);
        __m256 v = silu_mul(_mm256_maskload_ps(gate + i, lanes), _mm256_maskload_ps(up + i, lanes));
        _mm256_maskstore_ps(y + i, lanes, v);
    }
}

void avx2_add(float *x, const float *y, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(x + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    for (; i < n; i++)
        x[i] += y[i];
}
