/* SPDX-License-Identifier: Apache-2.0 */
/* affine.c: the arithmetic of mx.quantize / mx.dequantize, mode "affine" (CPU, mlx 0.32), bit for
 * bit.
 *
 * A group of consecutive values gets one scale s and one bias b, value ~ s * code + b. The end of
 * the range with the larger magnitude (the edge) is bias, so it is exact and code 0; s is then
 * stretched so that 0 is exact as well:
 *
 *     |max| >= |min|:   b = max, s < 0            |min| > |max|:   b = min, s > 0
 *
 *       min        0              max               min              0         max
 *        |---------|---------------|                 |---------------|----------|
 *      code n    code -q0        code 0            code 0         code -q0     code n
 *
 * Rules that make the bits what they are:
 *   AFFINE-1  every operation is one float32 operation, rounded: no double, no FMA
 *             (-ffp-contract=off)
 *   AFFINE-2  codes come from the unrounded s and b by a true division; only the stored pair is T
 *   AFFINE-3  rint is half to even; a tie |min| == |max| takes the max branch
 *   AFFINE-4  min and max skip NaN; a NaN quotient gives code 0, written out (undefined as a cast)
 *   AFFINE-5  subnormals are kept everywhere
 */
#include <math.h>

#include "quant/quant.h"

/* The smallest step before the sign is given to it: a constant group must not divide by zero. mlx's
 * number. */
static const float STEP_MIN = 1e-7f;

static void group_range(const float *x, unsigned n, float *lo, float *hi) {
    *lo = INFINITY;
    *hi = -INFINITY;
    for (unsigned i = 0; i < n; i++) {
        if (x[i] < *lo)
            *lo = x[i];
        if (x[i] > *hi)
            *hi = x[i];
    }
}

static void group_quantize(const float *x, unsigned group, unsigned bits, uint8_t *codes,
                           float *scale, float *bias) {
    float lo, hi, top = (float)((1u << bits) - 1);
    group_range(x, group, &lo, &hi);
    float range = hi - lo, step = range / top;
    bool negative_edge = fabsf(lo) > fabsf(hi);
    float s = step > STEP_MIN ? step : STEP_MIN, b = 0;
    if (!negative_edge)
        s = -s;
    float edge = negative_edge ? lo : hi;
    float q0 = rintf(edge / s);
    if (q0 != 0) { /* true for NaN: one Inf makes the scale of its group NaN */
        s = edge / q0;
        b = edge;
    }
    for (unsigned i = 0; i < group; i++) {
        float shifted = x[i] - b;
        float q = rintf(shifted / s);
        codes[i] = !(q > 0) ? 0 : q >= top ? (uint8_t)top : (uint8_t)q;
    }
    *scale = s;
    *bias = b;
}

void affine_quantize(const float *x, size_t n, unsigned bits, unsigned group, enum scalar_type t,
                     uint8_t *codes, float *scales, float *biases) {
    ASSERT(bits >= 1 && bits <= 8 && group > 0 && n % group == 0);
    for (size_t g = 0; g < n / group; g++) {
        float s, b;
        group_quantize(x + g * group, group, bits, codes + g * group, &s, &b);
        scales[g] = scalar_round(t, s);
        biases[g] = scalar_round(t, b);
    }
}

void affine_dequantize(const uint8_t *codes, const float *scales, const float *biases, size_t n,
                       unsigned group, enum scalar_type t, float *x) {
    for (size_t i = 0; i < n; i++) {
        float product = scalar_round(t, (float)codes[i] * scales[i / group]);
        x[i] = scalar_round(t, product + biases[i / group]);
    }
}

void affine_pack_row(const uint8_t *codes, size_t n, unsigned bits, uint32_t *words) {
    uint64_t pending = 0;
    unsigned held = 0;
    DEBUG_ASSERT(bits <= 8 && n * bits % 32 == 0);
    for (size_t i = 0; i < n; i++) {
        pending |= (uint64_t)codes[i] << held;
        held += bits;
        if (held >= 32) {
            *words++ = (uint32_t)pending;
            pending >>= 32;
            held -= 32;
        }
    }
}

void affine_unpack_row(const uint32_t *words, size_t n, unsigned bits, uint8_t *codes) {
    uint64_t pending = 0;
    unsigned held = 0;
    for (size_t i = 0; i < n; i++) {
        if (held < bits) {
            pending |= (uint64_t)*words++ << held;
            held += 32;
        }
        codes[i] = (uint8_t)(pending & ((1u << bits) - 1));
        pending >>= bits;
        held -= bits;
    }
}
