/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise.c: the small operations of a layer, NEON.
 *
 * A value of silu_mul and add depends on its operands alone, not on where in a range it stands:
 * what is left over at the end of a range goes through the same vector code, padded. rms_norm's sum
 * has a fixed order: 4 lanes x four registers taken in turn, then one tree; dims behind the last
 * count as 0.
 */
#include "backend/cpu/neon/vector.h"

/* Floats [i, n), at most four. */
ALWAYS_INLINE float32x4_t load_end(const float *x, size_t i, size_t n) {
    return load_up_to_4(SCALAR_F32, x, i, n - i);
}

/* ---- rms_norm -------------------------------------------------------------------------------- */

static float sum_of_squares(const float *x, uint32_t dim) {
    float32x4_t sum[4];
    UNROLL_FOR(j, 4) {
        sum[j] = vdupq_n_f32(0);
    }
    uint32_t i = 0;
    for (; i + 16 <= dim; i += 16) {
        UNROLL_FOR(j, 4) {
            float32x4_t v = vld1q_f32(x + i + 4 * j);
            sum[j] = vfmaq_f32(sum[j], v, v);
        }
    }
    for (uint32_t j = 0; i < dim; i += 4, j++) {
        float32x4_t v = load_end(x, i, dim);
        sum[j] = vfmaq_f32(sum[j], v, v);
    }
    return sum_lanes(vaddq_f32(vaddq_f32(sum[0], sum[1]), vaddq_f32(sum[2], sum[3])));
}

void neon_rms_norm(const float *x, const float *gain, uint32_t dim, float eps, float *y) {
    float mean = sum_of_squares(x, dim) / (float)dim + eps;
    float factor = 1.0f / sqrtf(mean);
    for (uint32_t i = 0; i < dim; i += 4) {
        float32x4_t v = vmulq_n_f32(load_end(x, i, dim), factor);
        store_up_to_4(y + i, dim - i, vmulq_f32(v, load_end(gain, i, dim)));
    }
}

/* ---- rope ------------------------------------------------------------------------------------ */

/* (2i, 2i+1) pairs to two halves. */
static void split_pairs(const float *pairs, uint32_t n, float *first, float *second) {
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        float32x4x2_t v = vld2q_f32(pairs + 2 * (size_t)i);
        vst1q_f32(first + i, v.val[0]);
        vst1q_f32(second + i, v.val[1]);
    }
    for (; i < n; i++) {
        first[i] = pairs[2 * (size_t)i];
        second[i] = pairs[2 * (size_t)i + 1];
    }
}

void neon_rope(float *head, uint32_t n, const float *cos_in, const float *sin_in, bool adjacent) {
    float halves[HEAD_DIM_MAX];
    const float *first = head, *second = head + n;
    if (adjacent) {
        split_pairs(head, n, halves, halves + n);
        first = halves;
        second = halves + n;
    }
    for (uint32_t i = 0; i < n; i += 4) {
        float32x4_t a = load_end(first, i, n), b = load_end(second, i, n);
        float32x4_t c = load_end(cos_in, i, n), s = load_end(sin_in, i, n);
        float32x4_t x = vfmaq_f32(vnegq_f32(vmulq_f32(b, s)), a, c);
        float32x4_t y = vfmaq_f32(vmulq_f32(b, c), a, s);
        store_up_to_4(head + i, n - i, x);
        store_up_to_4(head + n + i, n - i, y);
    }
}

/* ---- silu_mul, add --------------------------------------------------------------------------- */

/* g / (1 + e^-g) * u, written with e = e^-|g| (for negative g both sides of the fraction times
 * e^g), so that nothing overflows and small results keep their bits. */
ALWAYS_INLINE float32x4_t silu_mul(float32x4_t g, float32x4_t u) {
    float32x4_t e = exp_lanes(vnegq_f32(vabsq_f32(g)));
    float32x4_t numerator = vbslq_f32(vcltzq_f32(g), vmulq_f32(g, e), g);
    return vmulq_f32(vdivq_f32(numerator, vaddq_f32(vdupq_n_f32(1.0f), e)), u);
}

void neon_silu_mul(const float *gate, const float *up, size_t n, float *y) {
    for (size_t i = 0; i < n; i += 4)
        store_up_to_4(y + i, n - i, silu_mul(load_end(gate, i, n), load_end(up, i, n)));
}

void neon_add(float *x, const float *y, size_t n) {
    for (size_t i = 0; i < n; i += 4)
        store_up_to_4(x + i, n - i, vaddq_f32(load_end(x, i, n), load_end(y, i, n)));
}
