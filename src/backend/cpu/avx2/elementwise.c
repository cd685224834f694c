/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise.c: the small operations of a layer, AVX2.
 *
 * A value of gate_mul, add, scale and softcap depends on its operands alone, not on where in a
 * range it stands: what is left over at the end goes through the same vector code, masked.
 * rms_norm's sum has a fixed order: 8 lanes x four registers taken in turn, then one tree; dims
 * behind the last count as 0.
 */
#include "backend/cpu/avx2/gates.h"

/* ---- rms_norm -------------------------------------------------------------------------------- */

static float sum_of_squares(const float *x, uint32_t dim) {
    __m256 sum[4];
    uint32_t i = 0;
    for (int j = 0; j < 4; j++)
        sum[j] = _mm256_setzero_ps();
    for (; i + 32 <= dim; i += 32) {
        for (uint32_t j = 0; j < 4; j++) {
            __m256 v = _mm256_loadu_ps(x + i + 8 * j);
            sum[j] = _mm256_fmadd_ps(v, v, sum[j]);
        }
    }
    for (uint32_t j = 0; i < dim; i += 8, j++) {
        __m256 v = _mm256_maskload_ps(x + i, first_lanes(dim - i));
        sum[j] = _mm256_fmadd_ps(v, v, sum[j]);
    }
    return sum_lanes(_mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3])));
}

void avx2_rms_norm(const float *x, const float *gain, uint32_t dim, float eps, float *y) {
    __m128 mean = _mm_set_ss(sum_of_squares(x, dim) / (float)dim + eps);
    __m256 factor = _mm256_set1_ps(1.0f / _mm_cvtss_f32(_mm_sqrt_ss(mean)));
    uint32_t i = 0;
    for (; i + 8 <= dim; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), factor);
        _mm256_storeu_ps(y + i, gain ? _mm256_mul_ps(v, _mm256_loadu_ps(gain + i)) : v);
    }
    if (i < dim) {
        __m256i lanes = first_lanes(dim - i);
        __m256 v = _mm256_mul_ps(_mm256_maskload_ps(x + i, lanes), factor);
        v = gain ? _mm256_mul_ps(v, _mm256_maskload_ps(gain + i, lanes)) : v;
        _mm256_maskstore_ps(y + i, lanes, v);
    }
}

/* ---- rope ------------------------------------------------------------------------------------ */

/* (2i, 2i+1) pairs to two halves. */
static void split_pairs(const float *pairs, uint32_t n, float *first, float *second) {
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 a = _mm256_loadu_ps(pairs + 2 * (size_t)i);
        __m256 b = _mm256_loadu_ps(pairs + 2 * (size_t)i + 8);
        __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
        __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
        _mm256_storeu_ps(first + i, _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8)));
        _mm256_storeu_ps(second + i, _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8)));
    }
    for (; i < n; i++) {
        first[i] = pairs[2 * (size_t)i];
        second[i] = pairs[2 * (size_t)i + 1];
    }
}

void avx2_rope(float *head, uint32_t n, const float *cos_in, const float *sin_in, bool adjacent) {
    float halves[HEAD_DIM_MAX];
    const float *first = head, *second = head + n;
    if (adjacent) {
        split_pairs(head, n, halves, halves + n);
        first = halves;
        second = halves + n;
    }
    for (uint32_t i = 0; i < n; i += 8) {
        __m256i lanes = first_lanes(n - i);
        __m256 a = _mm256_maskload_ps(first + i, lanes), b = _mm256_maskload_ps(second + i, lanes);
        __m256 c = _mm256_maskload_ps(cos_in + i, lanes), s = _mm256_maskload_ps(sin_in + i, lanes);
        __m256 x = _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s));
        __m256 y = _mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c));
        _mm256_maskstore_ps(head + i, lanes, x);
        _mm256_maskstore_ps(head + n + i, lanes, y);
    }
}

/* ---- gate_mul -------------------------------------------------------------------------------- */

ALWAYS_INLINE __m256 gate_lanes(enum gate_kind kind, __m256 g, __m256 u) {
    const __m256 limit = _mm256_set1_ps(SWIGLU_LIMIT), lowest = _mm256_set1_ps(-SWIGLU_LIMIT);
    switch (kind) {
    case GATE_SILU:
        return _mm256_mul_ps(times_sigmoid(g, g), u);
    case GATE_GELU_TANH:
        return _mm256_mul_ps(times_sigmoid(g, gelu_argument(g)), u);
    case GATE_SIGMOID:
        return _mm256_mul_ps(times_sigmoid(_mm256_set1_ps(1.0f), g), u);
    default: /* min and max return their second operand where one is NaN */
        g = _mm256_min_ps(limit, g);
        u = _mm256_max_ps(lowest, _mm256_min_ps(limit, u));
        u = _mm256_add_ps(u, _mm256_set1_ps(1.0f));
        g = times_sigmoid(g, _mm256_mul_ps(g, _mm256_set1_ps((float)SWIGLU_ALPHA)));
        return _mm256_mul_ps(g, u);
    }
}

ALWAYS_INLINE void gate_mul(enum gate_kind kind, const float *gate, const float *up, size_t n,
                            float *y) {
    for (size_t i = 0; i < n; i += 8) {
        __m256 g = load_first(gate + i, n - i), u = load_first(up + i, n - i);
        store_first(y + i, n - i, gate_lanes(kind, g, u));
    }
}

void avx2_gate_silu(const float *gate, const float *up, size_t n, float *y) {
    gate_mul(GATE_SILU, gate, up, n, y);
}
void avx2_gate_gelu_tanh(const float *gate, const float *up, size_t n, float *y) {
    gate_mul(GATE_GELU_TANH, gate, up, n, y);
}
void avx2_gate_sigmoid(const float *gate, const float *up, size_t n, float *y) {
    gate_mul(GATE_SIGMOID, gate, up, n, y);
}
void avx2_gate_swiglu_clamped(const float *gate, const float *up, size_t n, float *y) {
    gate_mul(GATE_SWIGLU_CLAMPED, gate, up, n, y);
}

/* ---- add, scale, softcap --------------------------------------------------------------------- */

/* One rounding: where scale is 1, that of x + y. */
void avx2_add(float *x, const float *y, float scale, size_t n) {
    __m256 factor = _mm256_set1_ps(scale);
    for (size_t i = 0; i < n; i += 8) {
        __m256 v = load_first(x + i, n - i);
        store_first(x + i, n - i, _mm256_fmadd_ps(factor, load_first(y + i, n - i), v));
    }
}

void avx2_scale(float *x, float scale, size_t n) {
    __m256 factor = _mm256_set1_ps(scale);
    for (size_t i = 0; i < n; i += 8)
        store_first(x + i, n - i, _mm256_mul_ps(load_first(x + i, n - i), factor));
}

void avx2_softcap(float *x, size_t n, float cap) {
    __m256 caps = _mm256_set1_ps(cap);
    for (size_t i = 0; i < n; i += 8) {
        __m256 t = tanh_lanes(_mm256_div_ps(load_first(x + i, n - i), caps));
        store_first(x + i, n - i, _mm256_mul_ps(caps, t));
    }
}
