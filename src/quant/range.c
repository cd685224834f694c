/* SPDX-License-Identifier: Apache-2.0 */
/* range.c: the arithmetic of KV_TILE: a range from its least to its largest value.
 *
 *     bias = min                                    max
 *       |---------|---------|---- ... ----|----------|
 *     code 0    code 1    code 2               2^bits - 1
 *
 * mx.quantize (affine.c) makes the larger end and zero exact instead, which stretches the step. In
 * a rotated basis zero is a value like any other, and ranges of 3 and 4 bits lose a third of their
 * quality by it (docs/quality.md).
 *
 * RANGE-1  every operation is one float32 operation, rounded (-ffp-contract=off)
 * RANGE-2  codes come from the scale and bias that are stored, by a true division
 * RANGE-3  rint is half to even
 * RANGE-4  a bias that is zero is +0, so that it does not depend on the order of the values
 */
#include <math.h>

#include "quant/quant.h"

/* The smallest step: a constant range must not divide by zero. float16 holds it as 2^-23. */
static const float STEP_MIN = 1e-7f;

void range_find(const float *x, size_t n, size_t stride, unsigned bits, enum scalar_type t,
                float *scale, float *bias) {
    float lo = INFINITY, hi = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        const float v = x[i * stride];
        lo = v < lo ? v : lo;
        hi = v > hi ? v : hi;
    }
    const float step = (hi - lo) / (float)((1u << bits) - 1);
    *scale = scalar_round(t, step < STEP_MIN ? STEP_MIN : step); /* NaN stays NaN */
    *bias = scalar_round(t, lo + 0.0f);                          /* -0 + 0 = 0 */
}

uint8_t range_code(float x, unsigned bits, float scale, float bias) {
    const float shifted = x - bias, top = (float)((1u << bits) - 1), q = rintf(shifted / scale);
    return !(q > 0) ? 0 : q >= top ? (uint8_t)top : (uint8_t)q;
}
