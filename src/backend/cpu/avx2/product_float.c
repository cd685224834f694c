/* SPDX-License-Identifier: Apache-2.0 */
/* product_float.c: activations times weights in float32, f16, bf16 and 8-bit floats.
 *
 * F1 The one order of sums of an output, whatever runs beside it: eight lanes, lane i adds the
 *    products of inputs i, i + 8, i + 16, ... in rising order, each with one rounding (FMA); inputs
 *    behind k count as 0. Then ((0+2) + (1+3)) + ((4+6) + (5+7)).
 *
 * A tile is four outputs times up to three rows of activations: 12 sums, three activations and one
 * weight are the 16 registers. 16-bit weights are widened as they are read; where several tiles of
 * rows read the same ones (prefill), a panel of them is widened into scratch once. 8-bit floats
 * always are, with their scales, which may stand for any number of inputs:
 *
 *     panel:  f32 [16 outputs][k rounded up to 8], zeros behind k
 *
 * Leaves out: quantized weights (product_quant.c), which activations are rounded for.
 */
#include "backend/cpu/avx2/product.h"

enum { TILE_OUTPUTS = 4 };

/* Elements [i, i + count), count <= 8; 0 in the lanes behind them, which are not read. */
ALWAYS_INLINE __m256 load_up_to_8(enum scalar_type t, const void *p, uint32_t i, uint32_t count) {
    if (count == 8)
        return load8(t, p, i);
    size_t size = t == SCALAR_F32 ? 4 : 2;
    float padded[8] = {0};
    memcpy(padded, (const char *)p + i * size, count * size);
    return load8(t, padded, 0);
}

/* Lane j = the sum of the lanes of v[j] (F1). */
ALWAYS_INLINE __m128 sum_each(const __m256 v[TILE_OUTPUTS]) {
    __m256 u[2];
    UNROLL_FOR(i, 2) {
        u[i] = _mm256_add_ps(_mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]),
                             _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    }
    __m256 s =
        _mm256_add_ps(_mm256_shuffle_ps(u[0], u[1], 0x44), _mm256_shuffle_ps(u[0], u[1], 0xee));
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

/* acc[row][output] += inputs [i, i + count). x [rows][k]. */
ALWAYS_INLINE void add_products(enum scalar_type t, const void *const w[TILE_OUTPUTS],
                                const float *x, uint32_t k, uint32_t i, uint32_t count, int rows,
                                __m256 acc[][TILE_OUTPUTS]) {
    __m256 v[TILE_ROWS];
    UNROLL_FOR(r, rows) {
        v[r] = load_up_to_8(SCALAR_F32, x + (size_t)r * k, i, count);
    }
    UNROLL_FOR(o, TILE_OUTPUTS) {
        __m256 weights = load_up_to_8(t, w[o], i, count);
        UNROLL_FOR(r, rows) {
            acc[r][o] = _mm256_fmadd_ps(v[r], weights, acc[r][o]);
        }
    }
}

/* sums[row] of four outputs. */
ALWAYS_INLINE void tile(enum scalar_type t, const void *const w[TILE_OUTPUTS], const float *x,
                        uint32_t k, int rows, __m128 *sums) {
    __m256 acc[TILE_ROWS][TILE_OUTPUTS];
    uint32_t i = 0, size = t == SCALAR_F32 ? 4 : 2;
    const char *next = (const char *)w[TILE_OUTPUTS - 1] + (size_t)k * size;
    UNROLL_FOR(r, rows) {
        UNROLL_FOR(o, TILE_OUTPUTS) {
            acc[r][o] = _mm256_setzero_ps();
        }
    }
    for (; i + 8 <= k; i += 8) {
        if (rows == 1) /* decode: fetch the rows behind these four, which are read next */
            for (size_t line = 0; line < 8 * TILE_OUTPUTS * size; line += 64)
                _mm_prefetch(next + (size_t)i * TILE_OUTPUTS * size + line, _MM_HINT_T0);
        add_products(t, w, x, k, i, 8, rows, acc);
    }
    if (i < k)
        add_products(t, w, x, k, i, k - i, rows, acc);
    UNROLL_FOR(r, rows) {
        sums[r] = sum_each(acc[r]);
    }
}

/* n outputs of `rows` rows of activations. row: pointers to n weight rows, repeated up to a
 * multiple of four. */
ALWAYS_INLINE void tiles(enum scalar_type t, const void *const *row, uint32_t n, const float *x,
                         uint32_t k, int rows, float *y, size_t y_stride) {
    for (uint32_t j = 0; j < n; j += TILE_OUTPUTS) {
        __m128 sums[TILE_ROWS];
        uint32_t count = n - j < TILE_OUTPUTS ? n - j : TILE_OUTPUTS;
        tile(t, row + j, x, k, rows, sums);
        for (int r = 0; r < rows; r++)
            memcpy(y + (size_t)r * y_stride + j, &sums[r], count * sizeof *y);
    }
}

/* Widens the panel's rows into scratch and lets row point there. */
ALWAYS_INLINE void widen_panel(enum scalar_type t, const void **row, uint32_t k, float *panel) {
    uint32_t stride = (k + 7) / 8 * 8;
    for (int o = 0; o < PRODUCT_PANEL; o++) {
        float *to = panel + (size_t)o * stride;
        for (uint32_t i = 0; i < k; i += 8)
            _mm256_storeu_ps(to + i, load_up_to_8(t, row[o], i, k - i < 8 ? k - i : 8));
        row[o] = to;
    }
}

/* All rows of activations times the panel, n of whose 16 weight rows are outputs. */
ALWAYS_INLINE void product_panel(enum scalar_type t, const void *const *row, uint32_t n,
                                 const struct act_rows *a, float *y, size_t y_stride) {
    for (uint32_t r = 0; r < a->rows; r += TILE_ROWS) {
        const float *x = a->x + (size_t)r * a->k;
        float *to = y + r * y_stride;
        if (a->rows - r >= 3)
            tiles(t, row, n, x, a->k, 3, to, y_stride);
        else if (a->rows - r == 2)
            tiles(t, row, n, x, a->k, 2, to, y_stride);
        else
            tiles(t, row, n, x, a->k, 1, to, y_stride);
    }
}

ALWAYS_INLINE void product(enum scalar_type t, const struct weight *w, uint32_t n0, uint32_t n1,
                           const struct act_rows *a, float *y, size_t y_stride, void *scratch) {
    size_t row_bytes = (size_t)w->k * (t == SCALAR_F32 ? 4 : 2);
    for (uint32_t j = n0; j < n1; j += PRODUCT_PANEL) {
        const void *row[PRODUCT_PANEL];
        uint32_t n = n1 - j < PRODUCT_PANEL ? n1 - j : PRODUCT_PANEL;
        for (uint32_t i = 0; i < PRODUCT_PANEL; i++)
            row[i] = (const char *)w->data + (j + (i < n ? i : n - 1)) * row_bytes;
        if (t != SCALAR_F32 && a->rows > TILE_ROWS) {
            widen_panel(t, row, w->k, scratch);
            product_panel(SCALAR_F32, row, n, a, y + (j - n0), y_stride);
        } else {
            product_panel(t, row, n, a, y + (j - n0), y_stride);
        }
    }
}

/* One copy of everything above per type. */
#define DEFINE_PRODUCT(name, type)                                                                 \
    void avx2_product_##name(const struct weight *w, uint32_t n0, uint32_t n1,                     \
                             const struct act_rows *a, float *y, size_t y_stride, void *scratch) { \
        product(type, w, n0, n1, a, y, y_stride, scratch);                                         \
    }
DEFINE_PRODUCT(f32, SCALAR_F32)
DEFINE_PRODUCT(f16, SCALAR_F16)
DEFINE_PRODUCT(bf16, SCALAR_BF16)

/* ---- 8-bit floats ---------------------------------------------------------------------------- */

/* Eight E4M3: s eeee mmm put where f16 has its sign, the lower four bits of its exponent and the
 * upper three of its mantissa is the number times 2^-8, subnormals as well. 127 is NaN. */
ALWAYS_INLINE __m256 widen_e4m3(__m128i bytes) {
    const __m128i magnitude = _mm_set1_epi16(127 << 7), top = _mm_set1_epi16((short)0x8000);
    __m128i v = _mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7);
    __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(v, magnitude), magnitude);
    v = _mm_or_si128(_mm_and_si128(v, _mm_or_si128(magnitude, top)), _mm_andnot_si128(top, nan));
    return _mm256_mul_ps(_mm256_cvtph_ps(v), _mm256_set1_ps(256));
}

ALWAYS_INLINE __m256 scaled_e4m3(__m128i bytes, __m256 scale) {
    return _mm256_mul_ps(widen_e4m3(bytes), scale);
}

/* Inputs [i, end) of a row, all of one scale. */
static void widen_scaled(const uint8_t *row, uint32_t i, uint32_t end, float scale, float *to) {
    const __m256 factor = _mm256_set1_ps(scale);
    for (; i + 8 <= end; i += 8)
        _mm256_storeu_ps(to + i, scaled_e4m3(_mm_loadl_epi64((const __m128i *)(row + i)), factor));
    if (i < end) {
        __m128i bytes = _mm_setzero_si128();
        memcpy(&bytes, row + i, end - i);
        __m256 v = scaled_e4m3(bytes, factor);
        memcpy(to + i, &v, (end - i) * sizeof *to);
    }
}

/* Row j, scaled, as f32. Zeros behind k. */
static void widen_f8_row(const struct weight *w, uint32_t j, float *to) {
    const uint8_t *row = (const uint8_t *)w->data + (size_t)j * w->k;
    uint32_t group = w->scales ? w->group : w->k, per_row = w->k / group + (w->k % group != 0);
    size_t scale = w->scales ? (size_t)(j / w->group_rows) * per_row : 0;
    memset(to + w->k, 0, (-w->k & 7) * sizeof *to);
    for (uint32_t i = 0; i < w->k; i += group, scale++)
        widen_scaled(row, i, w->k - i < group ? w->k : i + group,
                     w->scales ? scalar_load(w->scalar, w->scales, scale) : 1, to);
}

void avx2_product_f8_e4m3(const struct weight *w, uint32_t n0, uint32_t n1,
                          const struct act_rows *a, float *y, size_t y_stride, void *scratch) {
    uint32_t stride = (w->k + 7) / 8 * 8;
    for (uint32_t j = n0; j < n1; j += PRODUCT_PANEL) {
        const void *row[PRODUCT_PANEL];
        uint32_t n = n1 - j < PRODUCT_PANEL ? n1 - j : PRODUCT_PANEL;
        for (uint32_t o = 0; o < n; o++)
            widen_f8_row(w, j + o, (float *)scratch + (size_t)o * stride);
        for (uint32_t o = 0; o < PRODUCT_PANEL; o++)
            row[o] = (float *)scratch + (size_t)(o < n ? o : n - 1) * stride;
        product_panel(SCALAR_F32, row, n, a, y + (j - n0), y_stride);
    }
}
