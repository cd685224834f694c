/* SPDX-License-Identifier: Apache-2.0 */
/* dot.h: exact dots of s8 codes with factors of 8 or 15 bits: everything that neon and neondot do
 * differently. Two shapes:
 *
 *   lanes    a vector of codes is 4 lanes (tokens, dims, outputs) x 4 elements of the reduction
 *            axis, and meets four factors that are the same for every lane
 *
 *                | lane 0: e0 e1 e2 e3 | lane 1: e0 e1 e2 e3 | lane 2 | lane 3 |     16 bytes
 *
 *   across   a vector is 16 elements of one lane and meets 16 factors; its sum is made across. For
 *            codes that would have to be transposed for a single use.
 *
 * Factors of 8 bits are used as they are. Those of 15 bits are s16 and are first brought into an
 * order of the tier's own, which takes as many bytes:
 *
 *                       four factors for lanes                    32 factors for across
 *     neon       s16    | q0 q2 | q1 q3 |                         as they are
 *     neondot    s8     | h0 h1 h2 h3 | l0 l1 l2 l3 |             | h0 .. h31 | l0 .. l31 |
 *
 * neon widens the even and the odd codes of each lane; neondot has q = 128 h + l, -64 <= l < 64.
 *
 * Ranges: |code| <= 128, factors of 8 bits <= 127, of 15 bits <= ACT16_MAX, at most 128 products to
 * a dot: every s32 stays below 2^29. Sums of s16 have their bound where they are made.
 */
#ifndef KVASIR_CPU_NEON_DOT_H
#define KVASIR_CPU_NEON_DOT_H

#include "backend/cpu/simd/simd.h"

/* A block of a panel: the codes of 32 inputs of 16 outputs, as [8 steps][4 vectors of outputs]. */
enum { DOT_STEPS = 8, DOT_VECTORS = 4, DOT_BLOCK = 4 * DOT_STEPS };
typedef int8x16_t dot_panel[DOT_STEPS][DOT_VECTORS];

/* Two sums that make one: neon's are of the same lanes, neondot's of the high and the low plane. */
struct dot {
    int32x4_t a, b;
};

ALWAYS_INLINE struct dot dot_zero(void) {
    return (struct dot){vdupq_n_s32(0), vdupq_n_s32(0)};
}

ALWAYS_INLINE int8x16_t broadcast_bytes(const void *dword) {
    return vreinterpretq_s8_s32(broadcast_dword(dword));
}

#ifdef KVASIR_NEONDOT

/* ---- neondot --------------------------------------------------------------------------------- */

ALWAYS_INLINE int8x8_t high_plane(int16x8_t q) {
    return vrshrn_n_s16(q, 7);
}
ALWAYS_INLINE int8x8_t low_plane(int16x8_t q) {
    return vshr_n_s8(vshl_n_s8(vmovn_s16(q), 1), 1);
}

ALWAYS_INLINE void order_for_lanes(const int16_t *codes, uint32_t n, int32_t *out) {
    for (uint32_t i = 0; i < n; i += 8) {
        int16x8_t q = vld1q_s16(codes + i);
        int32x2_t h = vreinterpret_s32_s8(high_plane(q)), l = vreinterpret_s32_s8(low_plane(q));
        vst1q_s32(out + i / 2, vcombine_s32(vzip1_s32(h, l), vzip2_s32(h, l)));
    }
}

ALWAYS_INLINE struct dot dot_lanes_16(struct dot d, int8x16_t codes, const int32_t *factors) {
    d.a = vdotq_s32(d.a, codes, broadcast_bytes(factors));
    d.b = vdotq_s32(d.b, codes, broadcast_bytes(factors + 1));
    return d;
}
ALWAYS_INLINE int32x4_t dot_lanes_end(struct dot d) {
    return vaddq_s32(vshlq_n_s32(d.a, 7), d.b);
}

ALWAYS_INLINE void dot_panel_8(const dot_panel w, bool nibbles, const int8_t *const x[], int rows,
                               int32x4_t out[][DOT_VECTORS]) {
    (void)nibbles;
    UNROLL_FOR(r, rows) {
        UNROLL_FOR(v, DOT_VECTORS) {
            out[r][v] = vdupq_n_s32(0);
        }
    }
    UNROLL_FOR(s, DOT_STEPS) {
        load_anew();
        UNROLL_FOR(r, rows) {
            int8x16_t factors = broadcast_bytes(x[r] + 4 * s);
            UNROLL_FOR(v, DOT_VECTORS) {
                out[r][v] = vdotq_s32(out[r][v], w[s][v], factors);
            }
        }
    }
}

ALWAYS_INLINE void order_for_across(const int16_t *codes, int16_t *out) {
    int8_t *planes = (int8_t *)out;
    UNROLL_FOR(i, DOT_BLOCK / 8) {
        int16x8_t q = vld1q_s16(codes + 8 * i);
        vst1_s8(planes + 8 * i, high_plane(q));
        vst1_s8(planes + DOT_BLOCK + 8 * i, low_plane(q));
    }
}

ALWAYS_INLINE int32x4_t dot_across_8(const int8x16_t w[2], bool nibbles, const int8_t *x) {
    (void)nibbles;
    return vdotq_s32(vdotq_s32(vdupq_n_s32(0), w[0], vld1q_s8(x)), w[1], vld1q_s8(x + 16));
}

ALWAYS_INLINE int32x4_t dot_across_16(const int8x16_t w[2], const int16_t *factors) {
    const int8_t *planes = (const int8_t *)factors;
    int32x4_t high = dot_across_8(w, false, planes);
    int32x4_t low = dot_across_8(w, false, planes + DOT_BLOCK);
    return vaddq_s32(vshlq_n_s32(high, 7), low);
}

#else

/* ---- neon ------------------------------------------------------------------------------------ */

ALWAYS_INLINE void order_for_lanes(const int16_t *codes, uint32_t n, int32_t *out) {
    for (uint32_t i = 0; i < n; i += 8) {
        int16x8_t q = vld1q_s16(codes + i);
        int32x4_t even = vreinterpretq_s32_s16(vuzp1q_s16(q, q));
        int32x4_t odd = vreinterpretq_s32_s16(vuzp2q_s16(q, q));
        vst1q_s32(out + i / 2, vzip1q_s32(even, odd));
    }
}

ALWAYS_INLINE int16x8_t broadcast_words(const void *dword) {
    return vreinterpretq_s16_s32(broadcast_dword(dword));
}

ALWAYS_INLINE struct dot dot_lanes_16(struct dot d, int8x16_t codes, const int32_t *factors) {
    int16x8_t words = vreinterpretq_s16_s8(codes);
    int16x8_t even = vshrq_n_s16(vshlq_n_s16(words, 8), 8), odd = vshrq_n_s16(words, 8);
    int16x8_t q02 = broadcast_words(factors), q13 = broadcast_words(factors + 1);
    d.a = vmlal_s16(d.a, vget_low_s16(even), vget_low_s16(q02));
    d.b = vmlal_high_s16(d.b, even, q02);
    d.a = vmlal_s16(d.a, vget_low_s16(odd), vget_low_s16(q13));
    d.b = vmlal_high_s16(d.b, odd, q13);
    return d;
}
ALWAYS_INLINE int32x4_t dot_lanes_end(struct dot d) {
    return vpaddq_s32(d.a, d.b);
}

/* `steps` from `first` on, products summed in s16: eight of nibbles are below 8 * 15 * 127 < 2^14,
 * two of bytes below 2 * 128 * 127 < 2^15. */
ALWAYS_INLINE struct dot dot_words(struct dot d, const dot_panel w, int first, int steps, int v,
                                   const int8_t *x) {
    int8x16_t factors = broadcast_bytes(x + 4 * first);
    int16x8_t a = vmull_s8(vget_low_s8(w[first][v]), vget_low_s8(factors));
    int16x8_t b = vmull_high_s8(w[first][v], factors);
    UNROLL_FOR(i, steps - 1) {
        const int s = first + 1 + i;
        factors = broadcast_bytes(x + 4 * s);
        a = vmlal_s8(a, vget_low_s8(w[s][v]), vget_low_s8(factors));
        b = vmlal_high_s8(b, w[s][v], factors);
    }
    d.a = vpadalq_s16(d.a, a);
    d.b = vpadalq_s16(d.b, b);
    return d;
}

ALWAYS_INLINE void dot_panel_8(const dot_panel w, bool nibbles, const int8_t *const x[], int rows,
                               int32x4_t out[][DOT_VECTORS]) {
    UNROLL_FOR(v, DOT_VECTORS) {
        load_anew();
        UNROLL_FOR(r, rows) {
            struct dot d = dot_zero();
            if (nibbles)
                d = dot_words(d, w, 0, DOT_STEPS, v, x[r]);
            else
                UNROLL_FOR(i, DOT_STEPS / 2) {
                    d = dot_words(d, w, 2 * i, 2, v, x[r]);
                }
            out[r][v] = dot_lanes_end(d);
        }
    }
}

ALWAYS_INLINE void order_for_across(const int16_t *codes, int16_t *out) {
    memcpy(out, codes, DOT_BLOCK * sizeof *out);
}

/* Sums of s16 as in dot_words: four of nibbles, two of bytes. */
ALWAYS_INLINE int32x4_t dot_across_8(const int8x16_t w[2], bool nibbles, const int8_t *x) {
    int8x16_t x0 = vld1q_s8(x), x1 = vld1q_s8(x + 16);
    int16x8_t a = vmull_s8(vget_low_s8(w[0]), vget_low_s8(x0));
    a = vmlal_high_s8(a, w[0], x0);
    if (nibbles) {
        a = vmlal_s8(a, vget_low_s8(w[1]), vget_low_s8(x1));
        return vpaddlq_s16(vmlal_high_s8(a, w[1], x1));
    }
    int16x8_t b = vmull_s8(vget_low_s8(w[1]), vget_low_s8(x1));
    return vpadalq_s16(vpaddlq_s16(a), vmlal_high_s8(b, w[1], x1));
}

ALWAYS_INLINE int32x4_t dot_across_16(const int8x16_t w[2], const int16_t *factors) {
    int32x4_t sum = vdupq_n_s32(0);
    UNROLL_FOR(i, 2) {
        int16x8_t low = vmovl_s8(vget_low_s8(w[i])), high = vmovl_high_s8(w[i]);
        int16x8_t x0 = vld1q_s16(factors + 16 * i), x1 = vld1q_s16(factors + 16 * i + 8);
        sum = vmlal_s16(sum, vget_low_s16(low), vget_low_s16(x0));
        sum = vmlal_high_s16(sum, low, x0);
        sum = vmlal_s16(sum, vget_low_s16(high), vget_low_s16(x1));
        sum = vmlal_high_s16(sum, high, x1);
    }
    return sum;
}

#endif
#endif
