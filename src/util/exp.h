/* SPDX-License-Identifier: Apache-2.0 */
/* The exponentials of sampling, here because a device draws tokens with the same bits as the CPU
 * (backend/pick.h). Only +, -, *, comparisons, conversions and bits of IEEE numbers, in the order
 * written; every build is without contraction to FMA (-ffp-contract=off, -fmad=false). No branches,
 * so that compilers vectorize them. */
#ifndef KVASIR_UTIL_EXP_H
#define KVASIR_UTIL_EXP_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define EVERYWHERE_INLINE static __host__ __device__ __forceinline__
#else
#define EVERYWHERE_INLINE static inline __attribute__((always_inline))
#endif

EVERYWHERE_INLINE double double_of_bits(uint64_t u) {
    double d;
    memcpy(&d, &u, sizeof d);
    return d;
}

EVERYWHERE_INLINE uint64_t bits_of_double(double d) {
    uint64_t u;
    memcpy(&u, &d, sizeof u);
    return u;
}

/* ln 2 as a sum: the first part has 21 trailing zero bits, so k * LN2_HIGH is exact for |k| <
 * 2^20. */
#define LN2_HIGH 6.93147180369123816490e-01
#define LN2_LOW  1.90821492927058770002e-10

/* e^r - 1 for |r| <= ln2/2 by its Taylor series: the term left out is r^14/14! < 5e-18. */
EVERYWHERE_INLINE double exp_rest(double r) {
    double p = 1.0 / 6227020800.0; /* 1/13! */
    p = p * r + 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    return r + r * r * p;
}

/* e^x. x = k ln2 + r, |r| <= ln2/2. Doubles near 1.5 * 2^52 are 1 apart, so adding that constant
 * rounds to an integer, which is then in the low bits. With 2046 added, they are the sum of the
 * exponent fields of two factors whose product is 2^k: two, so that results below 2^-1022 are
 * rounded once, into a subnormal. */
EVERYWHERE_INLINE double exp_lane(double x) {
    const double whole = 6755399441055744.0 + 2046, low = -745.2, high = 709.782712893384;
    double t = x > low ? x : low;
    t = t < high ? t : high;
    double shifted = t * 1.4426950408889634 + whole;
    double k = shifted - whole;
    double r = (t - k * LN2_HIGH) - k * LN2_LOW;
    uint64_t fields = bits_of_double(shifted) & 0xfff, half = fields >> 1;
    double e =
        (1.0 + exp_rest(r)) * double_of_bits(half << 52) * double_of_bits((fields - half) << 52);
    e = x < low ? 0.0 : e;
    e = x > high ? (double)INFINITY : e;
    return x != x ? x : e;
}

/* e^x for x <= 0, but at least e^-87, as exp_lane does it: floats near 1.5 * 2^23 are 1 apart. The
 * term left out of the series is r^8/8! < 6e-9. */
EVERYWHERE_INLINE float exp_lane_f(float x) {
    const float whole = 12582912.0f;
    const float t = x > -87.0f ? x : -87.0f, shifted = t * 1.44269504f + whole, k = shifted - whole;
    const float r = (t - k * 0.693359375f) - k * -2.12194440e-4f;
    float p = 1.0f / 5040, e;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127) << 23; /* the low bits of whole's are zeros */
    memcpy(&e, &bits, sizeof e);
    return (r + r * r * p + 1.0f) * e;
}

/* How m_exp_sum adds: floats of a block in lanes, lane l every 32nd value from l on (the last
 * n % 32 all in lane 0); then the lanes in double, l and l + 16, l and l + 8 ...; then the blocks
 * in order. */
enum { EXP_SUM_LANES = 32, EXP_SUM_BLOCK = 1024 };

#endif
