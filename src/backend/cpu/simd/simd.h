/* SPDX-License-Identifier: Apache-2.0 */
/* simd.h: the vectors that the kernels of simd/ are written in. The kernels are the same in every
 * tier but for the width of a vector; each tier's vector.h defines
 *
 *     types      vf: LANES floats; vi: as many s32; vh: as many 16-bit floats as bits
 *                (+, -, *, /, &, |, <<, >> and casts of the same size are the compiler's own)
 *     memory     load, store; load_first, store_first: the first n lanes, the others zero or left
 *                alone, their memory not touched
 *     floats     fmadd a b + c, fmsub a b - c, fnmadd c - a b: one rounding each; vmin, vmax: NaN
 *                if b is NaN; vmax_number: a NaN may be lost; round_even; f16_floats, f16_bits
 *     integers   to_int (nearest even), to_float, max_int, widen_int
 *     lanes      sum_lanes, sum_each (whose order of additions is stated there alone), min_lane,
 *                max_lane, sum_int, max_int_lane, any_lane, reversed, swap_lanes, load_pairs
 *     limits     EXACT_ROWS and so on: how many sums the registers hold
 *
 * and the few operations that the tiers do in their own way (below "what differs"). What can be
 * said in these terms is here, once for all tiers.
 */
#ifndef KVASIR_CPU_SIMD_H
#define KVASIR_CPU_SIMD_H

#include <math.h>

#if defined(KVASIR_AVX2)
#include "backend/cpu/avx2/vector.h"
#elif defined(KVASIR_AVX512) || defined(KVASIR_AVX512VNNI)
#include "backend/cpu/avx512/vector.h"
#elif defined(KVASIR_NEON) || defined(KVASIR_NEONDOT)
#include "backend/cpu/neon/vector.h"
#else
#error "compile files of a tier with the tier's definition (tier.h)"
#endif

_Static_assert(sizeof(vf) == LANES * sizeof(float) && sizeof(vi) == sizeof(vf), "one width");
_Static_assert(2 * sizeof(vh) == sizeof(vf), "a 16-bit float for each lane");
_Static_assert(TILE_TOKENS % (4 * LANES) == 0, "kernels walk the tokens of a tile in fours");
_Static_assert(ACT_BLOCK % LANES == 0, "a block of activations is whole vectors");

/* Does `...` for all vectors of n floats: i is the index of the first lane, left the number of
 * lanes. It is written out twice, so that for whole vectors compilers know that left is LANES. */
#define FOR_VECTORS(i, left, n, ...)                                                               \
    do {                                                                                           \
        size_t i = 0;                                                                              \
        for (; i + LANES <= (n); i += LANES) {                                                     \
            const size_t left = LANES;                                                             \
            __VA_ARGS__                                                                            \
        }                                                                                          \
        if (i < (n)) {                                                                             \
            const size_t left = (n)-i;                                                             \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    } while (0)

/* ---- arrays of a scalar type ----------------------------------------------------------------- */

ALWAYS_INLINE vf widen(enum scalar_type t, vh h) {
    return t == SCALAR_F16 ? f16_floats(h) : (vf)(widen_int(h) << 16);
}

/* Elements [i, i + LANES) of an array of scalar type t. */
ALWAYS_INLINE vf load_as(enum scalar_type t, const void *p, size_t i) {
    if (t == SCALAR_F32)
        return load((const float *)p + i);
    vh h;
    memcpy(&h, (const uint16_t *)p + i, sizeof h);
    return widen(t, h);
}

/* Elements [i, i + count); 0 in the lanes after them, which are not read. */
ALWAYS_INLINE vf load_first_as(enum scalar_type t, const void *p, size_t i, size_t count) {
    if (count >= LANES)
        return load_as(t, p, i);
    if (t == SCALAR_F32)
        return load_first((const float *)p + i, count);
    uint16_t padded[LANES] = {0};
    memcpy(padded, (const uint16_t *)p + i, count * sizeof *padded);
    return load_as(t, padded, 0);
}

/* bfloat16 bits of finite x, nearest even, in 32-bit lanes. */
ALWAYS_INLINE vi bf16_bits(vf x) {
    vi u = (vi)x;
    return (u + (u >> 16 & 1) + 0x7fff) >> 16 & 0xffff;
}

/* Finite values as 16-bit floats, nearest even. */
ALWAYS_INLINE vh to_half(enum scalar_type t, vf x) {
    return t == SCALAR_F16 ? f16_bits(x) : __builtin_convertvector(bf16_bits(x), vh);
}

/* Finite values rounded to t. */
ALWAYS_INLINE vf round_to(enum scalar_type t, vf x) {
    if (t == SCALAR_F16)
        return f16_floats(f16_bits(x));
    return t == SCALAR_BF16 ? (vf)(bf16_bits(x) << 16) : x;
}

ALWAYS_INLINE void store_scalar(enum scalar_type t, uint8_t *array, size_t i, float x) {
    if (t == SCALAR_F16) {
        vh h = f16_bits(splat(x));
        memcpy(array + 2 * i, &h, 2);
    } else {
        scalar_store(t, array, i, x);
    }
}

/* ---- signs and magnitudes -------------------------------------------------------------------- */

/* As integers floats >= 0 keep their order and NaN is the largest, so that a NaN is never lost. */
ALWAYS_INLINE vi magnitude_bits(vf v) {
    return (vi)v & 0x7fffffff;
}

/* The largest lane of magnitude_bits, as the float it is. */
ALWAYS_INLINE float max_magnitude(vi bits) {
    int32_t max = max_int_lane(bits);
    float magnitude;
    memcpy(&magnitude, &max, sizeof magnitude);
    return magnitude;
}

ALWAYS_INLINE vf negative_magnitude(vf v) {
    return (vf)((vi)v | INT32_MIN);
}

/* v >= 0 with the sign of `of`. */
ALWAYS_INLINE vf with_sign(vf v, vf of) {
    return (vf)(((vi)v & INT32_MAX) | ((vi)of & INT32_MIN));
}

/* ---- sum of q_i * b_i over the channels of a tile -------------------------------------------- */

#if !defined(HAVE_CHANNEL_SUM)
typedef vf channel_sum;
ALWAYS_INLINE channel_sum channel_add(channel_sum sum, vf q, vf b) {
    return fmadd(q, b, sum);
}
ALWAYS_INLINE float channel_total(channel_sum sum) {
    return sum_lanes(sum);
}
#endif

/* ---- e^x and what is made of it -------------------------------------------------------------- */

/* e^x = 2^n (1 + rest) for x in [-104, 0]. x = n ln 2 + r with |r| <= ln 2 / 2; e^r - 1 by a
 * polynomial whose coefficients minimise the relative error (3e-9) of e^r. */
struct exp_parts {
    vf rest, n;
};
ALWAYS_INLINE struct exp_parts exp_split(vf x) {
    vf n = round_even(x * splat(1.44269504f));
    vf r = fnmadd(n, splat(0x1.62e43p-1f), x);
    r = fnmadd(n, splat(-0x1.05c61p-29f), r);
    vf p = splat(0x1.6a215ap-10f);
    p = fmadd(p, r, splat(0x1.123b9ap-7f));
    p = fmadd(p, r, splat(0x1.5558fcp-5f));
    p = fmadd(p, r, splat(0x1.55549p-3f));
    p = fmadd(p, r, splat(0x1.fffffcp-2f));
    return (struct exp_parts){fmadd(p, r * r, r), n};
}

/* e^x for x <= 0, 1.01 ulp: 0 below -104, subnormals kept, NaN stays NaN. */
ALWAYS_INLINE vf exp_lanes(vf x) {
    struct exp_parts e = exp_split(vmax(splat(-104.0f), x));
    return times_power_of_2(e.rest + splat(1.0f), e.n);
}

/* e^x of scores, x <= 0; below 2^-126 AVX2 and AVX-512 make it 0. */
#if !defined(HAVE_EXP_SCORE)
ALWAYS_INLINE vf exp_score(vf x) {
#if defined(HAVE_ZERO_BELOW)
    return zero_below(-87.336f, x, exp_lanes(x)); /* e^-87.336 is just above 2^-126 */
#else
    return exp_lanes(x);
#endif
}
#endif

/* x / (1 + e^-v), written with e = e^-|v| (for negative v both sides of the fraction times e^v), so
 * that nothing overflows and small results keep their bits. */
ALWAYS_INLINE vf times_sigmoid(vf x, vf v) {
    vf e = exp_lanes(negative_magnitude(v));
    return if_negative(v, x * e, x) / (splat(1.0f) + e);
}

/* (1 + tanh u) / 2 is the sigmoid of 2 u: no cancellation. 2 sqrt(2 / pi) (x + 0.044715 x^3). */
ALWAYS_INLINE vf gelu_argument(vf x) {
    const vf linear = splat((float)(2 * GELU_ROOT));
    const vf cubic = splat((float)(2 * GELU_ROOT * GELU_CUBIC));
    return x * fmadd(x * x, cubic, linear);
}

/* tanh |x| = -d / (2 + d) with d = e^-2|x| - 1, whose small values come from exp's own rest. Below
 * -40 d is -1. NaN stays NaN. */
ALWAYS_INLINE vf tanh_lanes(vf x) {
    struct exp_parts e = exp_split(vmax(splat(-40.0f), negative_magnitude(x) * splat(2.0f)));
    vf power = power_of_2(e.n);
    vf d = fmadd(power, e.rest, power - splat(1.0f));
    return with_sign(d / (splat(2.0f) + d), x);
}

#endif
