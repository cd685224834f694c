/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise.c: the small operations of a layer, AVX-512.
 *
 * A value of gate_mul, add, scale and softcap depends on its operands alone, not on where in a
 * range it stands: what is left over at the end goes through the same vector code, masked.
 * rms_norm's sum has a fixed order: 16 lanes x four registers taken in turn, then one tree; dims
 * behind the last count as 0.
 */
#include "backend/cpu/avx512/gates.h"

enum { REGISTERS = 4 };

/* ---- rms_norm -------------------------------------------------------------------------------- */

static float sum_of_squares(const float *x, uint32_t dim) {
    __m512 sum[REGISTERS];
    uint32_t i = 0;
    UNROLL_FOR(j, REGISTERS) {
        sum[j] = _mm512_setzero_ps();
    }
    for (; i + 16 * REGISTERS <= dim; i += 16 * REGISTERS) {
        UNROLL_FOR(j, REGISTERS) {
            __m512 v = _mm512_loadu_ps(x + i + 16 * j);
            sum[j] = _mm512_fmadd_ps(v, v, sum[j]);
        }
    }
    UNROLL_FOR(j, REGISTERS) {
        if (i < dim) {
            __m512 v = _mm512_maskz_loadu_ps(first_lanes(dim - i), x + i);
            sum[j] = _mm512_fmadd_ps(v, v, sum[j]);
            i += 16;
        }
    }
    return sum_lanes(_mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
}

void avx512_rms_norm(const float *x, const float *gain, uint32_t dim, float eps, float *y) {
    __m128 mean = _mm_set_ss(sum_of_squares(x, dim) / (float)dim + eps);
    __m512 factor = _mm512_set1_ps(1.0f / _mm_cvtss_f32(_mm_sqrt_ss(mean)));
    for (uint32_t i = 0; i < dim; i += 16) {
        __mmask16 lanes = first_lanes(dim - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), factor);
        if (gain)
            v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(lanes, gain + i));
        _mm512_mask_storeu_ps(y + i, lanes, v);
    }
}

/* ---- rope ------------------------------------------------------------------------------------ */

/* (2i, 2i+1) pairs to two halves. */
static void split_pairs(const float *pairs, uint32_t n, float *first, float *second) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    for (uint32_t i = 0; i < n; i += 16) {
        size_t left = 2 * (size_t)(n - i);
        const float *at = pairs + 2 * (size_t)i;
        __m512 a = _mm512_maskz_loadu_ps(first_lanes(left), at);
        __m512 b = _mm512_maskz_loadu_ps(first_lanes(left > 16 ? left - 16 : 0), at + 16);
        _mm512_mask_storeu_ps(first + i, first_lanes(n - i), _mm512_permutex2var_ps(a, even, b));
        _mm512_mask_storeu_ps(second + i, first_lanes(n - i), _mm512_permutex2var_ps(a, odd, b));
    }
}

void avx512_rope(float *head, uint32_t n, const float *cos_in, const float *sin_in, bool adjacent) {
    float halves[HEAD_DIM_MAX];
    const float *first = head, *second = head + n;
    if (adjacent) {
        split_pairs(head, n, halves, halves + n);
        first = halves;
        second = halves + n;
    }
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 lanes = first_lanes(n - i);
        __m512 a = _mm512_maskz_loadu_ps(lanes, first + i);
        __m512 b = _mm512_maskz_loadu_ps(lanes, second + i);
        __m512 c = _mm512_maskz_loadu_ps(lanes, cos_in + i);
        __m512 s = _mm512_maskz_loadu_ps(lanes, sin_in + i);
        _mm512_mask_storeu_ps(head + i, lanes, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        _mm512_mask_storeu_ps(head + n + i, lanes, _mm512_fmadd_ps(a, s, _mm512_mul_ps(b, c)));
    }
}

/* ---- gate_mul -------------------------------------------------------------------------------- */

ALWAYS_INLINE __m512 gate_lanes(enum gate_kind kind, __m512 g, __m512 u) {
    const __m512 limit = _mm512_set1_ps(SWIGLU_LIMIT), lowest = _mm512_set1_ps(-SWIGLU_LIMIT);
    switch (kind) {
    case GATE_SILU:
        return _mm512_mul_ps(times_sigmoid(g, g), u);
    case GATE_GELU_TANH:
        return _mm512_mul_ps(times_sigmoid(g, gelu_argument(g)), u);
    case GATE_SIGMOID:
        return _mm512_mul_ps(times_sigmoid(_mm512_set1_ps(1.0f), g), u);
    default: /* min and max return their second operand where one is NaN */
        g = _mm512_min_ps(limit, g);
        u = _mm512_max_ps(lowest, _mm512_min_ps(limit, u));
        u = _mm512_add_ps(u, _mm512_set1_ps(1.0f));
        g = times_sigmoid(g, _mm512_mul_ps(g, _mm512_set1_ps((float)SWIGLU_ALPHA)));
        return _mm512_mul_ps(g, u);
    }
}

ALWAYS_INLINE void gate_mul(enum gate_kind kind, const float *gate, const float *up, size_t n,
                            float *y) {
    for (size_t i = 0; i < n; i += 16) {
        __m512 g = load_first(gate + i, n - i), u = load_first(up + i, n - i);
        store_first(y + i, n - i, gate_lanes(kind, g, u));
    }
}

void avx512_gate_silu(const float *gate, const float *up, size_t n, float *y) {
    gate_mul(GATE_SILU, gate, up, n, y);
}
void avx512_gate_gelu_tanh(const float *gate, const float *up, size_t n, float *y) {
    gate_mul(GATE_GELU_TANH, gate, up, n, y);
}
void avx512_gate_sigmoid(const float *gate, const float *up, size_t n, float *y) {
    gate_mul(GATE_SIGMOID, gate, up, n, y);
}
void avx512_gate_swiglu_clamped(const float *gate, const float *up, size_t n, float *y) {
    gate_mul(GATE_SWIGLU_CLAMPED, gate, up, n, y);
}

/* ---- add, scale, softcap --------------------------------------------------------------------- */

/* One rounding: where scale is 1, that of x + y. */
void avx512_add(float *x, const float *y, float scale, size_t n) {
    __m512 factor = _mm512_set1_ps(scale);
    for (size_t i = 0; i < n; i += 16) {
        __m512 v = load_first(x + i, n - i);
        store_first(x + i, n - i, _mm512_fmadd_ps(factor, load_first(y + i, n - i), v));
    }
}

void avx512_scale(float *x, float scale, size_t n) {
    __m512 factor = _mm512_set1_ps(scale);
    for (size_t i = 0; i < n; i += 16)
        store_first(x + i, n - i, _mm512_mul_ps(load_first(x + i, n - i), factor));
}

void avx512_softcap(float *x, size_t n, float cap) {
    __m512 caps = _mm512_set1_ps(cap);
    for (size_t i = 0; i < n; i += 16) {
        __m512 t = tanh_lanes(_mm512_div_ps(load_first(x + i, n - i), caps));
        store_first(x + i, n - i, _mm512_mul_ps(caps, t));
    }
}
