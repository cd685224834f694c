/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise.c: the small operations of a layer.
 *
 * A value of gate_mul, add, scale and softcap depends on its operands alone, not on its place in a
 * range: what is left over at the end goes through the same vector code, masked. rms_norm's sum has
 * a fixed order: LANES lanes x four registers taken in turn, then one tree; dims after the last
 * count as 0.
 */
#include "backend/cpu/simd/simd.h"

/* ---- rms_norm -------------------------------------------------------------------------------- */

enum { REGISTERS = 4 };

static float sum_of_squares(const float *x, uint32_t dim) {
    vf sum[REGISTERS];
    uint32_t i = 0;
    UNROLL_FOR(j, REGISTERS) {
        sum[j] = splat(0);
    }
    for (; i + LANES * REGISTERS <= dim; i += LANES * REGISTERS) {
        UNROLL_FOR(j, REGISTERS) {
            vf v = load(x + i + LANES * j);
            sum[j] = fmadd(v, v, sum[j]);
        }
    }
    UNROLL_FOR(j, REGISTERS) {
        if (i < dim) {
            vf v = load_first(x + i, dim - i);
            sum[j] = fmadd(v, v, sum[j]);
            i += LANES;
        }
    }
    return sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

void TIER(rms_norm)(const float *x, const float *gain, uint32_t dim, float eps, float *y) {
    ASSERT(dim > 0);
    vf factor = splat(1.0f / sqrtf(sum_of_squares(x, dim) / (float)dim + eps));
    FOR_VECTORS(i, left, dim, {
        vf v = load_first(x + i, left) * factor;
        if (gain)
            v = v * load_first(gain + i, left);
        store_first(y + i, left, v);
    });
}

/* ---- rope ------------------------------------------------------------------------------------ */

/* (2i, 2i+1) pairs to two halves. */
static void split_pairs(const float *pairs, uint32_t n, float *first, float *second) {
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf even, odd;
        load_pairs(pairs + 2 * (size_t)i, &even, &odd);
        store(first + i, even);
        store(second + i, odd);
    }
    for (; i < n; i++) {
        first[i] = pairs[2 * (size_t)i];
        second[i] = pairs[2 * (size_t)i + 1];
    }
}

void TIER(rope)(float *head, uint32_t n, const float *cos_in, const float *sin_in, bool adjacent) {
    float halves[HEAD_DIM_MAX];
    const float *first = head, *second = head + n;
    ASSERT(2 * n <= HEAD_DIM_MAX);
    if (adjacent) {
        split_pairs(head, n, halves, halves + n);
        first = halves;
        second = halves + n;
    }
    FOR_VECTORS(i, left, n, {
        vf a = load_first(first + i, left);
        vf b = load_first(second + i, left);
        vf c = load_first(cos_in + i, left);
        vf s = load_first(sin_in + i, left);
        store_first(head + i, left, fmsub(a, c, b * s));
        store_first(head + n + i, left, fmadd(a, s, b * c));
    });
}

/* ---- gate_mul -------------------------------------------------------------------------------- */

ALWAYS_INLINE vf gate_lanes(enum gate_kind kind, vf g, vf u) {
    const vf limit = splat(SWIGLU_LIMIT), lowest = splat(-SWIGLU_LIMIT);
    switch (kind) {
    case GATE_SILU:
        return times_sigmoid(g, g) * u;
    case GATE_GELU_TANH:
        return times_sigmoid(g, gelu_argument(g)) * u;
    case GATE_SIGMOID:
        return times_sigmoid(splat(1.0f), g) * u;
    default:
        g = vmin(limit, g);
        u = vmax(lowest, vmin(limit, u)) + splat(1.0f);
        return times_sigmoid(g, g * splat((float)SWIGLU_ALPHA)) * u;
    }
}

ALWAYS_INLINE void gate_mul(enum gate_kind kind, const float *gate, const float *up, size_t n,
                            float *y) {
    FOR_VECTORS(i, left, n, {
        vf product = gate_lanes(kind, load_first(gate + i, left), load_first(up + i, left));
        store_first(y + i, left, product);
    });
}

void TIER(gate_silu)(const float *gate, const float *up, size_t n, float *y) {
    gate_mul(GATE_SILU, gate, up, n, y);
}
void TIER(gate_gelu_tanh)(const float *gate, const float *up, size_t n, float *y) {
    gate_mul(GATE_GELU_TANH, gate, up, n, y);
}
void TIER(gate_sigmoid)(const float *gate, const float *up, size_t n, float *y) {
    gate_mul(GATE_SIGMOID, gate, up, n, y);
}
void TIER(gate_swiglu_clamped)(const float *gate, const float *up, size_t n, float *y) {
    gate_mul(GATE_SWIGLU_CLAMPED, gate, up, n, y);
}

/* ---- add, scale, softcap --------------------------------------------------------------------- */

/* One rounding: if scale is 1, that of x + y. */
void TIER(add)(float *x, const float *y, float scale, size_t n) {
    vf factor = splat(scale);
    FOR_VECTORS(i, left, n, {
        vf sum = fmadd(factor, load_first(y + i, left), load_first(x + i, left));
        store_first(x + i, left, sum);
    });
}

void TIER(scale)(float *x, float scale, size_t n) {
    vf factor = splat(scale);
    FOR_VECTORS(i, left, n, { store_first(x + i, left, load_first(x + i, left) * factor); });
}

void TIER(softcap)(float *x, size_t n, float cap) {
    vf caps = splat(cap);
    FOR_VECTORS(i, left, n,
                { store_first(x + i, left, caps * tanh_lanes(load_first(x + i, left) / caps)); });
}
