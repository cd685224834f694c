/* SPDX-License-Identifier: Apache-2.0 */
/* gates.h: e^x, sigmoid and tanh of a vector, and the ends of ranges: what elementwise.c and
 * recurrent.c share. Static inline, no state.
 */
#ifndef KVASIR_CPU_AVX2_GATES_H
#define KVASIR_CPU_AVX2_GATES_H

#include "backend/cpu/avx2/vector.h"

/* Lanes [0, n) of eight. */
ALWAYS_INLINE __m256i first_lanes(size_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < 8 ? (int)n : 8),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* The first n of eight floats at p, zeros behind them. What lies there is not touched. */
ALWAYS_INLINE __m256 load_first(const float *p, size_t n) {
    return n >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, first_lanes(n));
}
ALWAYS_INLINE void store_first(float *p, size_t n, __m256 v) {
    if (n >= 8)
        _mm256_storeu_ps(p, v);
    else
        _mm256_maskstore_ps(p, first_lanes(n), v);
}

/* e^x = 2^n (1 + rest) for x in [-104, 0]. x = n ln 2 + r with |r| <= ln 2 / 2;
 * e^r - 1 by a polynomial whose coefficients minimise the relative error (3e-9) of e^r. */
struct exp_parts {
    __m256 rest;
    __m256i n;
};
ALWAYS_INLINE struct exp_parts exp_split(__m256 x) {
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
    return (struct exp_parts){p, _mm256_cvtps_epi32(n)};
}

/* 2^n for n in [-126, 127]. */
ALWAYS_INLINE __m256 power_of_2(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* e^x for x <= 0, 1.01 ulp: 0 below -104, subnormals kept, NaN stays NaN. 2^n in two factors, as n
 * may be below -126. */
ALWAYS_INLINE __m256 exp_lanes(__m256 x) {
    struct exp_parts e = exp_split(_mm256_max_ps(_mm256_set1_ps(-104.0f), x));
    __m256i half = _mm256_srai_epi32(e.n, 1);
    __m256 p = _mm256_add_ps(e.rest, _mm256_set1_ps(1.0f));
    p = _mm256_mul_ps(p, power_of_2(half));
    return _mm256_mul_ps(p, power_of_2(_mm256_sub_epi32(e.n, half)));
}

/* x / (1 + e^-v), written with e = e^-|v| (for negative v both sides of the fraction times e^v), so
 * that nothing overflows and small results keep their bits. */
ALWAYS_INLINE __m256 times_sigmoid(__m256 x, __m256 v) {
    __m256 e = exp_lanes(_mm256_or_ps(v, _mm256_set1_ps(-0.0f)));
    __m256 numerator = _mm256_blendv_ps(x, _mm256_mul_ps(x, e), v);
    return _mm256_div_ps(numerator, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
}

/* (1 + tanh u) / 2 is the sigmoid of 2 u: no cancellation. 2 sqrt(2 / pi) (x + 0.044715 x^3). */
ALWAYS_INLINE __m256 gelu_argument(__m256 x) {
    const __m256 linear = _mm256_set1_ps((float)(2 * GELU_ROOT));
    const __m256 cubic = _mm256_set1_ps((float)(2 * GELU_ROOT * GELU_CUBIC));
    return _mm256_mul_ps(x, _mm256_fmadd_ps(_mm256_mul_ps(x, x), cubic, linear));
}

/* tanh |x| = -d / (2 + d) with d = e^-2|x| - 1, whose small values come from rest itself. Below -40
 * d is -1. NaN stays NaN. */
ALWAYS_INLINE __m256 tanh_lanes(__m256 x) {
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    __m256 y = _mm256_mul_ps(_mm256_or_ps(x, sign), _mm256_set1_ps(2.0f));
    struct exp_parts e = exp_split(_mm256_max_ps(_mm256_set1_ps(-40.0f), y));
    __m256 power = power_of_2(e.n);
    __m256 d = _mm256_fmadd_ps(power, e.rest, _mm256_sub_ps(power, one));
    __m256 t = _mm256_div_ps(d, _mm256_add_ps(_mm256_set1_ps(2.0f), d));
    return _mm256_or_ps(_mm256_andnot_ps(sign, t), _mm256_and_ps(sign, x));
}

#endif
