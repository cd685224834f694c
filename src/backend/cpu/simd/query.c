/* SPDX-License-Identifier: Apache-2.0 */
/* query.c: what attention does before and between its tile kernels: rounding query rows to 15 bits,
 * and the exponentials of one run.
 *
 *     query_pack    q * scale -> f32 -> codes rint(f32 * (ACT16_MAX / max|f32|)) in the tier's
 *                   order -> sums of 32 codes
 *
 * Invariant: the sum of a run has LANES lanes x four registers, taken in turn, then one tree.
 * Masked tokens add exact zeros, so a run's sum does not depend on how many masked tokens follow
 * the last one seen.
 */
#include "backend/cpu/simd/simd.h"

/* ---- query_pack ------------------------------------------------------------------------------ */

static float scale_query(const float *q, uint32_t dim, float q_scale, float *out) {
    vi max = {0};
    FOR_VECTORS(d, left, dim, {
        vf x = load_first(q + d, left) * splat(q_scale);
        store_first(out + d, left, x);
        max = max_int(max, magnitude_bits(x));
    });
    return max_magnitude(max);
}

/* A row that holds NaN or Inf has the scale NaN: its scores must not look plausible. */
void TIER(query_pack)(const float *q, size_t q_stride, float q_scale, struct query_rows *out) {
    uint32_t dim = out->dim, sums = dim / 32;
    ASSERT(dim % 4 == 0 && isfinite(q_scale)); /* lanes after the last dim are 0 * q_scale */
    for (size_t row = 0; row < out->rows; row++) {
        float *x = out->f32 + row * dim;
        float max = scale_query(q + row * q_stride, dim, q_scale, x);
        struct rounding r = rounding_of(max, ACT16_MAX);
        out->scale[row] = r.scale;
        for (uint32_t d = 0; d < dim; d += 32) {
            uint32_t n = dim - d < 32 ? dim - d : 32;
            int32_t sum = query_codes(x + d, n, r.per_unit, out->codes + row * dim + d);
            if (n == 32)
                out->sum32[row * sums + d / 32] = sum;
        }
    }
}

/* ---- softmax_run ----------------------------------------------------------------------------- */

enum { REGISTERS = 4, STEP = LANES * REGISTERS };

/* A NaN among the scores may be passed over: it comes out again in the sum. */
static float run_max(const float *p, uint32_t n) {
    vf m[REGISTERS];
    UNROLL_FOR(j, REGISTERS) {
        m[j] = splat(-INFINITY);
    }
    for (uint32_t i = 0; i < n; i += STEP) {
        UNROLL_FOR(j, REGISTERS) {
            m[j] = vmax_number(m[j], load(p + i + LANES * j));
        }
    }
    return max_lane(vmax_number(vmax_number(m[0], m[1]), vmax_number(m[2], m[3])));
}

void TIER(softmax_run)(float *p, uint32_t n, float *max_out, float *sum_out) {
    ASSERT(n % STEP == 0);
    float max = run_max(p, n);
    *max_out = max;
    *sum_out = 0;
    if (max == -INFINITY) {
        memset(p, 0, n * sizeof *p);
        return;
    }
    vf sum[REGISTERS];
    UNROLL_FOR(j, REGISTERS) {
        sum[j] = splat(0);
    }
    for (uint32_t i = 0; i < n; i += STEP) {
        UNROLL_FOR(j, REGISTERS) {
            float *at = p + i + LANES * j;
            vf e = exp_score(load(at) - splat(max));
            store(at, e);
            sum[j] = sum[j] + e;
        }
    }
    *sum_out = sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}
