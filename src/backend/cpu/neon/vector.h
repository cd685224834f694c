/* SPDX-License-Identifier: Apache-2.0 */
/* neon/: two tiers, `neon` (Armv8-A) and `neondot` (Armv8.2-A's dot products). simd/ has the
 * kernels that differ from other tiers' in width alone. All files are compiled for both tiers; the
 * float arithmetic of the two is the same, so are their bits.
 *
 *     vector.h          the vectors of simd/ (simd.h says what each name means)
 *     dot.h             exact integer dots of both tiers: all that they do differently
 *     affine.c          score and value over tiles of codes, any bits
 *     product_quant.c   products with quantized weights
 *
 * Codes of queries, probabilities and activations are in natural order.
 */
#ifndef KVASIR_CPU_NEON_VECTOR_H
#define KVASIR_CPU_NEON_VECTOR_H

#include <arm_neon.h>

#include "backend/cpu/simd/tier.h"

enum { LANES = 4 };
typedef float32x4_t vf;
typedef float32x4_t vf4; /* four floats */
typedef int32_t vi __attribute__((vector_size(16)));
typedef int64_t vq __attribute__((vector_size(16)));
typedef uint16_t vh __attribute__((vector_size(8)));

/* 32 registers */
enum {
    EXACT_VECTORS = 8, /* of one tile lane each */
    EXACT_ROWS = 3,    /* 24 sums, 3 factors and the elements at hand */
    CENTRE_VECTORS = 4,
    CENTRE_ROWS = 2, /* 16 sums */
    FLOAT_VECTORS = 2,
    FLOAT_ROWS = 2, /* 16 sums; one row alone still has eight chains */
    FLOAT_PREFETCH = 0,
    ACT_CODE_SUMS = 0,
};

/* What is loaded after this is loaded there. Compilers move loads up and keep what is used twice,
 * even if all registers hold sums, which they then spill. */
ALWAYS_INLINE void load_anew(void) {
    __asm__ volatile("" ::: "memory");
}
ALWAYS_INLINE vf keep_float(vf v) {
    return v;
}

/* ---- memory ---------------------------------------------------------------------------------- */

ALWAYS_INLINE vf splat(float x) {
    return vdupq_n_f32(x);
}
ALWAYS_INLINE vf load(const float *p) {
    return vld1q_f32(p);
}
ALWAYS_INLINE void store(float *p, vf v) {
    vst1q_f32(p, v);
}
ALWAYS_INLINE vf load_first(const float *p, size_t n) {
    if (n >= LANES)
        return load(p);
    float padded[4] = {0};
    memcpy(padded, p, n * sizeof *p);
    return load(padded);
}
ALWAYS_INLINE void store_first(float *p, size_t n, vf v) {
    if (n >= LANES) {
        store(p, v);
        return;
    }
    float padded[4];
    store(padded, v);
    memcpy(p, padded, n * sizeof *p);
}
ALWAYS_INLINE vf load_four(const float *p) {
    return load(p);
}
/* Pairs (2i, 2i+1) to two vectors. */
ALWAYS_INLINE void load_pairs(const float *p, vf *even, vf *odd) {
    float32x4x2_t v = vld2q_f32(p);
    *even = v.val[0];
    *odd = v.val[1];
}
ALWAYS_INLINE void prefetch_line(const char *p) {
    __builtin_prefetch(p);
}
ALWAYS_INLINE int32x4_t broadcast_dword(const void *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return vdupq_n_s32(v);
}

/* ---- floats ---------------------------------------------------------------------------------- */

ALWAYS_INLINE vf fmadd(vf a, vf b, vf c) {
    return vfmaq_f32(c, a, b);
}
ALWAYS_INLINE vf fmsub(vf a, vf b, vf c) {
    return vfmaq_f32(vnegq_f32(c), a, b);
}
ALWAYS_INLINE vf fnmadd(vf a, vf b, vf c) {
    return vfmsq_f32(c, a, b);
}
/* x f + acc where f is not 0, whatever x holds; elsewhere acc, or acc + 0. */
ALWAYS_INLINE vf fmadd_seen(vf x, vf f, vf acc) {
    vf seen = vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), vceqzq_f32(f)));
    return fmadd(seen, f, acc);
}
ALWAYS_INLINE vf vmin(vf a, vf b) {
    return vminq_f32(a, b);
}
ALWAYS_INLINE vf vmax(vf a, vf b) {
    return vmaxq_f32(a, b);
}
ALWAYS_INLINE vf vmax_number(vf a, vf b) {
    return vmaxnmq_f32(a, b);
}
ALWAYS_INLINE vf round_even(vf x) {
    return vrndnq_f32(x);
}
ALWAYS_INLINE vf if_negative(vf s, vf yes, vf no) {
    return vbslq_f32(vcltzq_f32(s), yes, no);
}
ALWAYS_INLINE vf f16_floats(vh h) {
    return vcvt_f32_f16((float16x4_t)h);
}
ALWAYS_INLINE vh f16_bits(vf x) {
    return (vh)vcvt_f16_f32(x);
}

/* ---- integers -------------------------------------------------------------------------------- */

/* NaN becomes 0. */
ALWAYS_INLINE vi to_int(vf x) {
    return (vi)vcvtnq_s32_f32(x);
}
ALWAYS_INLINE vf to_float(vi x) {
    return vcvtq_f32_s32((int32x4_t)x);
}
/* Unsigned 16-bit values as s32. */
ALWAYS_INLINE vi widen_int(vh h) {
    return (vi)vmovl_u16((uint16x4_t)h);
}
ALWAYS_INLINE vi max_int(vi a, vi b) {
    return (vi)vmaxq_s32((int32x4_t)a, (int32x4_t)b);
}

/* ---- across lanes ---------------------------------------------------------------------------- */

/* Always as (0 + 1) + (2 + 3). */
ALWAYS_INLINE float sum_lanes(vf v) {
    vf pairs = vpaddq_f32(v, v);
    return vpadds_f32(vget_low_f32(pairs));
}

/* Lane i = the sum of the lanes of v[i], each as (0 + 1) + (2 + 3). */
ALWAYS_INLINE vf sum_four(vf v0, vf v1, vf v2, vf v3) {
    return vpaddq_f32(vpaddq_f32(v0, v1), vpaddq_f32(v2, v3));
}

/* Lane j = the sum of the eight lanes of v[j]: ((0+4) + (1+5)) + ((2+6) + (3+7)). */
ALWAYS_INLINE vf4 sum_each(const vf v[4][FLOAT_VECTORS]) {
    return sum_four(v[0][0] + v[0][1], v[1][0] + v[1][1], v[2][0] + v[2][1], v[3][0] + v[3][1]);
}

ALWAYS_INLINE void sum_fours(const vf v[EXACT_VECTORS], float *sums) {
    store(sums, sum_four(v[0], v[1], v[2], v[3]));
    store(sums + 4, sum_four(v[4], v[5], v[6], v[7]));
}

ALWAYS_INLINE float min_lane(vf v) {
    return vminnmvq_f32(v);
}
ALWAYS_INLINE float max_lane(vf v) {
    return vmaxnmvq_f32(v);
}
ALWAYS_INLINE int32_t sum_int(vi v) {
    return vaddvq_s32((int32x4_t)v);
}
/* sums[0] of a, sums[1] of b. */
ALWAYS_INLINE void sum_two(vi a, vi b, int32_t sums[2]) {
    sums[0] = sum_int(a);
    sums[1] = sum_int(b);
}
ALWAYS_INLINE int32_t max_int_lane(vi v) {
    return vmaxvq_s32((int32x4_t)v);
}
/* Whether any lane of a comparison holds. */
ALWAYS_INLINE bool any_lane(vi v) {
    return vminvq_s32((int32x4_t)v) != 0;
}
ALWAYS_INLINE vf reversed(vf x) {
    x = vrev64q_f32(x);
    return vextq_f32(x, x, 2);
}

/* Lane i of it is lane i ^ distance of x: 1 or 2. */
ALWAYS_INLINE vf swap_lanes(vf x, int distance) {
    return distance == 1 ? vrev64q_f32(x) : vextq_f32(x, x, 2);
}

/* ---- what differs ---------------------------------------------------------------------------- */

/* 2^n for whole n in [-126, 127]. */
ALWAYS_INLINE vf power_of_2(vf n) {
    return (vf)((to_int(n) + 127) << 23);
}
/* x 2^n for whole n in [-152, 0]: in two factors, as n may be below -126. */
ALWAYS_INLINE vf times_power_of_2(vf x, vf n) {
    vi all = to_int(n), half = all >> 1;
    x = x * (vf)((half + 127) << 23);
    return x * (vf)((all - half + 127) << 23);
}

/* Codes, a byte each. */
ALWAYS_INLINE void store_bytes(uint8_t *to, vi codes) {
    uint8x8_t bytes = vmovn_u16(vcombine_u16(vmovn_u32((uint32x4_t)codes), vdup_n_u16(0)));
    memcpy(to, &bytes, 4);
}

/* LANES / 2 16-bit values as 64-bit words. */
ALWAYS_INLINE vq words_of(const uint16_t *p) {
    return (vq){p[0], p[1]};
}

/* Codes of n <= 32 dims of a query, a multiple of 4; returns their sum. */
ALWAYS_INLINE int32_t query_codes(const float *x, uint32_t n, float per_unit, int16_t *codes) {
    vi sum = {0};
    for (uint32_t d = 0; d < n; d += 4) {
        vi c = to_int(load(x + d) * splat(per_unit));
        vst1_s16(codes + d, vmovn_s32((int32x4_t)c));
        sum += c;
    }
    return sum_int(sum);
}

/* A block's codes of activations. */
ALWAYS_INLINE void store_act_codes(void *codes, size_t at, int bits, const vi c[ACT_BLOCK / 4]) {
    UNROLL_FOR(i, ACT_BLOCK / 8) {
        int16x8_t eight =
            vcombine_s16(vmovn_s32((int32x4_t)c[2 * i]), vmovn_s32((int32x4_t)c[2 * i + 1]));
        if (bits == 8)
            vst1_s8((int8_t *)codes + at + 8 * i, vmovn_s16(eight));
        else
            vst1q_s16((int16_t *)codes + at + 8 * i, eight);
    }
}

#endif
