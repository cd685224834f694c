/* SPDX-License-Identifier: Apache-2.0 */
/* act.c: rounding the activations of a product, NEON. Blocks of 32, codes in natural order. A block
 * that holds an Inf or a NaN gets codes 0 and scale NaN: its outputs become NaN instead of
 * something plausible.
 */
#include "backend/cpu/neon/vector.h"

enum { BLOCK = 32, HALF = 16, VECTORS = BLOCK / 4 };

ALWAYS_INLINE struct rounding block_rounding(const float32x4_t x[VECTORS], int bits) {
    uint32x4_t max = vdupq_n_u32(0);
    UNROLL_FOR(i, VECTORS) {
        max = vmaxq_u32(max, magnitude_bits(x[i]));
    }
    return rounding_of(max_magnitude(max), bits == 8 ? ACT8_MAX : ACT16_MAX);
}

ALWAYS_INLINE void store_codes(struct act_rows *a, size_t at, const int32x4_t c[VECTORS]) {
    UNROLL_FOR(i, VECTORS / 2) {
        int16x8_t eight = vcombine_s16(vmovn_s32(c[2 * i]), vmovn_s32(c[2 * i + 1]));
        if (a->bits == 8)
            vst1_s8((int8_t *)a->codes + at + 8 * i, vmovn_s16(eight));
        else
            vst1q_s16((int16_t *)a->codes + at + 8 * i, eight);
    }
}

/* x - scale * code, in one rounding. */
ALWAYS_INLINE void store_rest(float *to, const float32x4_t x[VECTORS], const int32x4_t c[VECTORS],
                              float scale) {
    UNROLL_FOR(i, VECTORS) {
        vst1q_f32(to + 4 * i, vfmsq_n_f32(x[i], vcvtq_f32_s32(c[i]), scale));
    }
}

ALWAYS_INLINE int32_t sum_codes(const int32x4_t c[VECTORS / 2]) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(c[0], c[1]), vaddq_s32(c[2], c[3])));
}

void neon_act_pack(struct act_rows *a, uint32_t row) {
    for (uint32_t b = 0; b < a->k / BLOCK; b++) {
        size_t at = (size_t)row * a->k + (size_t)b * BLOCK;
        float32x4_t x[VECTORS];
        int32x4_t c[VECTORS];
        UNROLL_FOR(i, VECTORS) {
            x[i] = vld1q_f32(a->x + at + 4 * i);
        }
        struct rounding r = block_rounding(x, a->bits);
        UNROLL_FOR(i, VECTORS) {
            c[i] = to_codes(x[i], r);
        }
        store_codes(a, at, c);
        if (a->rest)
            store_rest(a->rest + at, x, c, r.scale);
        int32_t low = sum_codes(c), high = sum_codes(c + VECTORS / 2);
        a->scale[at / BLOCK] = r.scale;
        a->sum[at / BLOCK] = r.scale * (float)(low + high);
        a->sum16[at / HALF] = r.scale * (float)low;
        a->sum16[at / HALF + 1] = r.scale * (float)high;
    }
}
