/* SPDX-License-Identifier: Apache-2.0 */
/* gates.h: sigmoid and tanh of a vector, and the ends of ranges: what elementwise.c and recurrent.c
 * share. Static inline, no state.
 */
#ifndef KVASIR_CPU_AVX512_GATES_H
#define KVASIR_CPU_AVX512_GATES_H

#include "backend/cpu/avx512/vector.h"

/* The first n of sixteen floats at p, zeros behind them. What lies there is not touched. */
ALWAYS_INLINE __m512 load_first(const float *p, size_t n) {
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
ALWAYS_INLINE void store_first(float *p, size_t n, __m512 v) {
    _mm512_mask_storeu_ps(p, first_lanes(n), v);
}

/* x / (1 + e^-v), written with e = e^-|v| (for negative v both sides of the fraction times e^v), so
 * that nothing overflows and small results keep their bits. */
ALWAYS_INLINE __m512 times_sigmoid(__m512 x, __m512 v) {
    __m512 e = exp_lanes(_mm512_or_ps(v, _mm512_set1_ps(-0.0f)));
    __m512 numerator = _mm512_mask_mul_ps(x, _mm512_movepi32_mask(_mm512_castps_si512(v)), x, e);
    return _mm512_div_ps(numerator, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

/* (1 + tanh u) / 2 is the sigmoid of 2 u: no cancellation. 2 sqrt(2 / pi) (x + 0.044715 x^3). */
ALWAYS_INLINE __m512 gelu_argument(__m512 x) {
    const __m512 linear = _mm512_set1_ps((float)(2 * GELU_ROOT));
    const __m512 cubic = _mm512_set1_ps((float)(2 * GELU_ROOT * GELU_CUBIC));
    return _mm512_mul_ps(x, _mm512_fmadd_ps(_mm512_mul_ps(x, x), cubic, linear));
}

/* tanh |x| = -d / (2 + d) with d = e^-2|x| - 1, whose small values come from exp's own rest. Below
 * -40 d is -1. NaN stays NaN. */
ALWAYS_INLINE __m512 tanh_lanes(__m512 x) {
    const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1.0f);
    __m512 y = _mm512_mul_ps(_mm512_or_ps(x, sign), _mm512_set1_ps(2.0f));
    struct exp_parts e = exp_split(_mm512_max_ps(_mm512_set1_ps(-40.0f), y));
    __m512 power = _mm512_scalef_ps(one, e.n);
    __m512 d = _mm512_fmadd_ps(power, e.rest, _mm512_sub_ps(power, one));
    __m512 t = _mm512_div_ps(d, _mm512_add_ps(_mm512_set1_ps(2.0f), d));
    return _mm512_or_ps(_mm512_andnot_ps(sign, t), _mm512_and_ps(sign, x));
}

#endif
