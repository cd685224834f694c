/* SPDX-License-Identifier: Apache-2.0 */
/* gates.h: sigmoid and tanh of a vector, and the ends of ranges: what elementwise.c and recurrent.c
 * share. Static inline, no state.
 */
#ifndef KVASIR_CPU_NEON_GATES_H
#define KVASIR_CPU_NEON_GATES_H

#include "backend/cpu/neon/vector.h"

/* Floats [i, n), at most four. */
ALWAYS_INLINE float32x4_t load_end(const float *x, size_t i, size_t n) {
    return load_up_to_4(SCALAR_F32, x, i, n - i);
}

/* x / (1 + e^-v), written with e = e^-|v| (for negative v both sides of the fraction times e^v), so
 * that nothing overflows and small results keep their bits. */
ALWAYS_INLINE float32x4_t times_sigmoid(float32x4_t x, float32x4_t v) {
    float32x4_t e = exp_lanes(vnegq_f32(vabsq_f32(v)));
    float32x4_t numerator = vbslq_f32(vcltzq_f32(v), vmulq_f32(x, e), x);
    return vdivq_f32(numerator, vaddq_f32(vdupq_n_f32(1.0f), e));
}

/* (1 + tanh u) / 2 is the sigmoid of 2 u: no cancellation. 2 sqrt(2 / pi) (x + 0.044715 x^3). */
ALWAYS_INLINE float32x4_t gelu_argument(float32x4_t x) {
    const float32x4_t linear = vdupq_n_f32((float)(2 * GELU_ROOT));
    return vmulq_f32(x, vfmaq_n_f32(linear, vmulq_f32(x, x), (float)(2 * GELU_ROOT * GELU_CUBIC)));
}

/* tanh |x| = -d / (2 + d) with d = e^-2|x| - 1, whose small values come from exp's own rest. Below
 * -40 d is -1. NaN stays NaN. */
ALWAYS_INLINE float32x4_t tanh_lanes(float32x4_t x) {
    float32x4_t y = vmulq_n_f32(vabsq_f32(x), -2.0f);
    struct exp_parts e = exp_split(vmaxq_f32(y, vdupq_n_f32(-40.0f)));
    float32x4_t power = power_of_2(e.n);
    float32x4_t d = vfmaq_f32(vsubq_f32(power, vdupq_n_f32(1.0f)), power, e.rest);
    float32x4_t t = vdivq_f32(d, vaddq_f32(vdupq_n_f32(2.0f), d));
    return vbslq_f32(vdupq_n_u32(0x80000000), x, t);
}

#endif
