/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise.c: the small operations of a layer, NEON.
 *
 * A value of gate_mul, add, scale and softcap depends on its operands alone, not on where in a
 * range it stands: what is left over at the end goes through the same vector code, padded.
 * rms_norm's sum has a fixed order: 4 lanes x four registers taken in turn, then one tree; dims
 * behind the last count as 0.
 */
#include "backend/cpu/neon/gates.h"

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
        store_up_to_4(y + i, dim - i, gain ? vmulq_f32(v, load_end(gain, i, dim)) : v);
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

/* ---- gate_mul -------------------------------------------------------------------------------- */

ALWAYS_INLINE float32x4_t gate_lanes(enum gate_kind kind, float32x4_t g, float32x4_t u) {
    const float32x4_t limit = vdupq_n_f32(SWIGLU_LIMIT);
    switch (kind) {
    case GATE_SILU:
        return vmulq_f32(times_sigmoid(g, g), u);
    case GATE_GELU_TANH:
        return vmulq_f32(times_sigmoid(g, gelu_argument(g)), u);
    case GATE_SIGMOID:
        return vmulq_f32(times_sigmoid(vdupq_n_f32(1.0f), g), u);
    default: /* NaN stays NaN in min and max */
        g = vminq_f32(g, limit);
        u = vaddq_f32(vmaxq_f32(vminq_f32(u, limit), vnegq_f32(limit)), vdupq_n_f32(1.0f));
        return vmulq_f32(times_sigmoid(g, vmulq_n_f32(g, (float)SWIGLU_ALPHA)), u);
    }
}

ALWAYS_INLINE void gate_mul(enum gate_kind kind, const float *gate, const float *up, size_t n,
                            float *y) {
    for (size_t i = 0; i < n; i += 4)
        store_up_to_4(y + i, n - i, gate_lanes(kind, load_end(gate, i, n), load_end(up, i, n)));
}

void neon_gate_silu(const float *gate, const float *up, size_t n, float *y) {
    gate_mul(GATE_SILU, gate, up, n, y);
}
void neon_gate_gelu_tanh(const float *gate, const float *up, size_t n, float *y) {
    gate_mul(GATE_GELU_TANH, gate, up, n, y);
}
void neon_gate_sigmoid(const float *gate, const float *up, size_t n, float *y) {
    gate_mul(GATE_SIGMOID, gate, up, n, y);
}
void neon_gate_swiglu_clamped(const float *gate, const float *up, size_t n, float *y) {
    gate_mul(GATE_SWIGLU_CLAMPED, gate, up, n, y);
}

/* ---- add, scale, softcap --------------------------------------------------------------------- */

/* One rounding: where scale is 1, that of x + y. */
void neon_add(float *x, const float *y, float scale, size_t n) {
    for (size_t i = 0; i < n; i += 4)
        store_up_to_4(x + i, n - i, vfmaq_n_f32(load_end(x, i, n), load_end(y, i, n), scale));
}

void neon_scale(float *x, float scale, size_t n) {
    for (size_t i = 0; i < n; i += 4)
        store_up_to_4(x + i, n - i, vmulq_n_f32(load_end(x, i, n), scale));
}

void neon_softcap(float *x, size_t n, float cap) {
    float32x4_t caps = vdupq_n_f32(cap);
    for (size_t i = 0; i < n; i += 4) {
        float32x4_t t = tanh_lanes(vdivq_f32(load_end(x, i, n), caps));
        store_up_to_4(x + i, n - i, vmulq_f32(caps, t));
    }
}
