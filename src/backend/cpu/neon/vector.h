/* SPDX-License-Identifier: Apache-2.0 */
/* vector.h: the few vector idioms that several kernels of this folder share: arrays of a scalar
 * type as floats, ends of arrays, how a vector of floats is rounded to codes, sums across the lanes
 * of a register, exp. Static inline, no state.
 */
#ifndef KVASIR_CPU_NEON_VECTOR_H
#define KVASIR_CPU_NEON_VECTOR_H

#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/neon/neon.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* for (int i = 0; i < n; i++), unrolled at every level of optimisation, because the vectors it
 * indexes have to be registers; always with braces. */
#if defined(__clang__)
#define UNROLL_FOR(i, n) _Pragma("clang loop unroll(full)") for (int i = 0; i < (n); i++)
#else
#define UNROLL_FOR(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#endif

/* What is loaded behind this is loaded there. Compilers move loads up and keep what is used twice,
 * also where all registers hold sums, which they then spill. */
ALWAYS_INLINE void load_anew(void) {
    __asm__ volatile("" ::: "memory");
}

/* ---- loads ----------------------------------------------------------------------------------- */

ALWAYS_INLINE float32x4_t f16_to_f32x4(uint16x4_t h) {
    return vcvt_f32_f16(vreinterpret_f16_u16(h));
}

ALWAYS_INLINE float32x4_t bf16_to_f32x4(uint16x4_t h) {
    return vreinterpretq_f32_u32(vshll_n_u16(h, 16));
}

/* Elements [i, i + 4) of an array of scalar type t. */
ALWAYS_INLINE float32x4_t load4(enum scalar_type t, const void *p, size_t i) {
    if (t == SCALAR_F32)
        return vld1q_f32((const float *)p + i);
    uint16x4_t h = vld1_u16((const uint16_t *)p + i);
    return t == SCALAR_F16 ? f16_to_f32x4(h) : bf16_to_f32x4(h);
}

/* Elements [i, i + count), count <= 4; 0 in the lanes behind them, which are not read. */
ALWAYS_INLINE float32x4_t load_up_to_4(enum scalar_type t, const void *p, size_t i, size_t count) {
    if (count >= 4)
        return load4(t, p, i);
    size_t size = t == SCALAR_F32 ? 4 : 2;
    float padded[4] = {0};
    memcpy(padded, (const char *)p + i * size, count * size);
    return load4(t, padded, 0);
}

ALWAYS_INLINE void store_up_to_4(float *p, size_t count, float32x4_t v) {
    if (count >= 4) {
        vst1q_f32(p, v);
        return;
    }
    float padded[4];
    vst1q_f32(padded, v);
    memcpy(p, padded, count * sizeof *p);
}

ALWAYS_INLINE int32x4_t broadcast_dword(const void *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return vdupq_n_s32(v);
}

/* ---- across lanes ---------------------------------------------------------------------------- */

/* Always as (0 + 1) + (2 + 3). */
ALWAYS_INLINE float sum_lanes(float32x4_t v) {
    float32x4_t pairs = vpaddq_f32(v, v);
    return vpadds_f32(vget_low_f32(pairs));
}

/* Lane i = the sum of the lanes of v[i], each as (0 + 1) + (2 + 3). */
ALWAYS_INLINE float32x4_t sum_each(const float32x4_t v[4]) {
    return vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3]));
}

/* ---- rounding to codes ----------------------------------------------------------------------- */

/* Bits of a magnitude. Compared as integers floats >= 0 keep their order and NaN is the largest, so
 * that a NaN is never lost. */
ALWAYS_INLINE uint32x4_t magnitude_bits(float32x4_t v) {
    return vreinterpretq_u32_f32(vabsq_f32(v));
}

/* The largest of magnitude_bits of a vector, of each lane. */
ALWAYS_INLINE float max_magnitude(uint32x4_t max) {
    uint32_t bits = vmaxvq_u32(max);
    float magnitude;
    memcpy(&magnitude, &bits, sizeof magnitude);
    return magnitude;
}

/* Nearest even. Of NaN, as of Inf times a per_unit of 0, it makes 0. */
ALWAYS_INLINE int32x4_t to_codes(float32x4_t x, struct rounding r) {
    return vcvtnq_s32_f32(vmulq_n_f32(x, r.per_unit));
}

/* ---- exp ------------------------------------------------------------------------------------- */

/* e^x = 2^n (1 + rest) for x in [-104, 0]. x = n ln 2 + r with |r| <= ln 2 / 2; e^r - 1 by a
 * polynomial whose coefficients minimise the relative error (3e-9) of e^r. */
struct exp_parts {
    float32x4_t rest;
    int32x4_t n;
};
ALWAYS_INLINE struct exp_parts exp_split(float32x4_t x) {
    float32x4_t n = vrndnq_f32(vmulq_n_f32(x, 1.44269504f));
    float32x4_t r = vfmsq_f32(x, n, vdupq_n_f32(0x1.62e43p-1f));
    r = vfmsq_f32(r, n, vdupq_n_f32(-0x1.05c61p-29f));
    float32x4_t p = vdupq_n_f32(0x1.6a215ap-10f);
    p = vfmaq_f32(vdupq_n_f32(0x1.123b9ap-7f), p, r);
    p = vfmaq_f32(vdupq_n_f32(0x1.5558fcp-5f), p, r);
    p = vfmaq_f32(vdupq_n_f32(0x1.55549p-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(0x1.fffffcp-2f), p, r);
    p = vfmaq_f32(r, p, vmulq_f32(r, r));
    return (struct exp_parts){p, vcvtq_s32_f32(n)};
}

/* 2^n for n in [-126, 127]. */
ALWAYS_INLINE float32x4_t power_of_2(int32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}

/* e^x for x <= 0, 1.01 ulp: 0 below -104, subnormals kept, NaN stays NaN. 2^n in two factors, as n
 * may be below -126. */
ALWAYS_INLINE float32x4_t exp_lanes(float32x4_t x) {
    struct exp_parts e = exp_split(vmaxq_f32(x, vdupq_n_f32(-104.0f)));
    int32x4_t half = vshrq_n_s32(e.n, 1);
    float32x4_t p = vaddq_f32(e.rest, vdupq_n_f32(1.0f));
    p = vmulq_f32(p, power_of_2(half));
    return vmulq_f32(p, power_of_2(vsubq_s32(e.n, half)));
}

#endif
