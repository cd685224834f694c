/* SPDX-License-Identifier: Apache-2.0 */
/* query.c: what stands before and between the tile kernels of attention, NEON: rounding query rows
 * to 15 bits, and the exponentials of one run.
 *
 *     query_pack    q * scale -> f32 -> codes rint(f32 * (ACT16_MAX / max|f32|)) -> sums of 32
 *
 * Invariant: the sum of a run has four lanes x four registers, taken in turn, then one tree. Masked
 * tokens add exact zeros, so a run's sum does not depend on how many masked tokens stand behind the
 * last one seen.
 */
#include "backend/cpu/neon/vector.h"

/* ---- query_pack ------------------------------------------------------------------------------ */

static uint32x4_t scale_query(const float *q, uint32_t dim, float q_scale, float *out) {
    uint32x4_t max = vdupq_n_u32(0);
    for (uint32_t d = 0; d < dim; d += 4) {
        float32x4_t x = vmulq_n_f32(vld1q_f32(q + d), q_scale);
        vst1q_f32(out + d, x);
        max = vmaxq_u32(max, magnitude_bits(x));
    }
    return max;
}

/* Codes of n dims, a multiple of 4; returns their sum. */
static int32_t pack_codes(const float *x, uint32_t n, struct rounding r, int16_t *codes) {
    int32x4_t sum = vdupq_n_s32(0);
    for (uint32_t d = 0; d < n; d += 4) {
        int32x4_t c = to_codes(vld1q_f32(x + d), r);
        vst1_s16(codes + d, vmovn_s32(c));
        sum = vaddq_s32(sum, c);
    }
    return vaddvq_s32(sum);
}

void neon_query_pack(const float *q, size_t q_stride, float q_scale, struct query_rows *out) {
    uint32_t dim = out->dim, sums = dim / 32;
    for (size_t row = 0; row < out->rows; row++) {
        float *x = out->f32 + row * dim;
        uint32x4_t max = scale_query(q + row * q_stride, dim, q_scale, x);
        struct rounding r = rounding_of(max_magnitude(max), ACT16_MAX);
        out->scale[row] = r.scale;
        for (uint32_t d = 0; d < dim; d += 32) {
            uint32_t n = dim - d < 32 ? dim - d : 32;
            int32_t sum = pack_codes(x + d, n, r, out->codes + row * dim + d);
            if (n == 32)
                out->sum32[row * sums + d / 32] = sum;
        }
    }
}

/* ---- softmax_run ----------------------------------------------------------------------------- */

/* A NaN among the scores is passed over: it comes out again in the sum. */
static float run_max(const float *p, uint32_t n) {
    float32x4_t m[4];
    UNROLL_FOR(j, 4) {
        m[j] = vdupq_n_f32(-INFINITY);
    }
    for (uint32_t i = 0; i < n; i += 16) {
        UNROLL_FOR(j, 4) {
            m[j] = vmaxnmq_f32(m[j], vld1q_f32(p + i + 4 * j));
        }
    }
    return vmaxnmvq_f32(vmaxnmq_f32(vmaxnmq_f32(m[0], m[1]), vmaxnmq_f32(m[2], m[3])));
}

void neon_softmax_run(float *p, uint32_t n, float *max_out, float *sum_out) {
    float max = run_max(p, n);
    *max_out = max;
    *sum_out = 0;
    if (max == -INFINITY) {
        memset(p, 0, n * sizeof *p);
        return;
    }
    float32x4_t sum[4];
    UNROLL_FOR(j, 4) {
        sum[j] = vdupq_n_f32(0);
    }
    for (uint32_t i = 0; i < n; i += 16) {
        UNROLL_FOR(j, 4) {
            float *at = p + i + 4 * j;
            float32x4_t e = exp_lanes(vsubq_f32(vld1q_f32(at), vdupq_n_f32(max)));
            vst1q_f32(at, e);
            sum[j] = vaddq_f32(sum[j], e);
        }
    }
    *sum_out = sum_lanes(vaddq_f32(vaddq_f32(sum[0], sum[1]), vaddq_f32(sum[2], sum[3])));
}
