/* SPDX-License-Identifier: Apache-2.0 */
/* softmax.c: the exponentials of one run, AVX-512.
 *
 * Invariant: the sum of a run has sixteen lanes x four registers, which take 64 scores in turn,
 * then one tree. Masked tokens add exact zeros, so a run's sum does not depend on how many masked
 * tokens stand behind the last one seen. Weights below 2^-126 become 0.
 */
#include <math.h>

#include "backend/cpu/avx512/vector.h"

enum { REGISTERS = 4, STEP = 16 * REGISTERS };

static float run_max(const float *p, uint32_t n) {
    __m512 m[REGISTERS];
    UNROLL_FOR(j, REGISTERS) {
        m[j] = _mm512_set1_ps(-INFINITY);
    }
    for (uint32_t i = 0; i < n; i += STEP) {
        UNROLL_FOR(j, REGISTERS) {
            m[j] = _mm512_max_ps(m[j], _mm512_loadu_ps(p + i + 16 * j));
        }
    }
    return _mm512_reduce_max_ps(
        _mm512_max_ps(_mm512_max_ps(m[0], m[1]), _mm512_max_ps(m[2], m[3])));
}

void avx512_softmax_run(float *p, uint32_t n, float *max_out, float *sum_out) {
    const __m512 smallest = _mm512_set1_ps(-87.336f); /* e^-87.336 is just above 2^-126 */
    float max = run_max(p, n);
    *max_out = max;
    *sum_out = 0;
    if (max == -INFINITY) {
        memset(p, 0, n * sizeof *p);
        return;
    }
    __m512 shift = _mm512_set1_ps(max), sum[REGISTERS];
    UNROLL_FOR(j, REGISTERS) {
        sum[j] = _mm512_setzero_ps();
    }
    for (uint32_t i = 0; i < n; i += STEP) {
        UNROLL_FOR(j, REGISTERS) {
            float *at = p + i + 16 * j;
            __m512 x = _mm512_sub_ps(_mm512_loadu_ps(at), shift);
            __mmask16 normal = _mm512_cmp_ps_mask(x, smallest, _CMP_NLT_UQ); /* NaN is let in */
            __m512 e = _mm512_maskz_mov_ps(normal, exp_lanes(x));
            _mm512_storeu_ps(at, e);
            sum[j] = _mm512_add_ps(sum[j], e);
        }
    }
    *sum_out =
        sum_lanes(_mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
}
