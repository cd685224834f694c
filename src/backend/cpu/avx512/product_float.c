/* SPDX-License-Identifier: Apache-2.0 */
/* product_float.c: activations times weights in float32, f16, bf16 and 8-bit floats, AVX-512.
 *
 * F1 The one order of sums of an output, whatever runs beside it: sixteen lanes, lane i adds the
 *    products of inputs i, i + 16, i + 32, ... in rising order, each with one rounding (FMA);
 *    inputs behind k count as 0. Then the lanes as a tree (sum_each).
 *
 * A tile is four outputs times up to six rows of activations: 24 sums, six activations and one
 * weight. 16-bit weights are widened as they are read; where several tiles of rows read the same
 * ones (prefill), a panel of them is widened into scratch once, and 8-bit floats, which have a
 * scale to be multiplied with, always:
 *
 *     panel:  f32 [16 outputs][k rounded up to 16], zeros behind k
 */
#include <math.h>

#include "backend/cpu/avx512/vector.h"

enum { TILE_OUTPUTS = 4, TILE_ROWS = 6 };

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Elements [i, i + count), count <= 16; 0 in the lanes behind them, which are not read. */
ALWAYS_INLINE __m512 load_up_to_16(enum scalar_type t, const void *p, size_t i, uint32_t count) {
    if (count == 16)
        return load16(t, p, i);
    if (t == SCALAR_F32)
        return _mm512_maskz_loadu_ps(first_lanes(count), (const float *)p + i);
    uint16_t padded[16] = {0};
    memcpy(padded, (const uint16_t *)p + i, count * sizeof *padded);
    return load16(t, padded, 0);
}

/* Lane j = the sum of the lanes of v[j]: within every four lanes (0 + 2) + (1 + 3), of the four
 * such sums (0 + 2) + (1 + 3). */
ALWAYS_INLINE __m128 sum_each(const __m512 v[TILE_OUTPUTS]) {
    __m512 u[2];
    UNROLL_FOR(i, 2) {
        u[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]),
                             _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    }
    __m512 s =
        _mm512_add_ps(_mm512_shuffle_ps(u[0], u[1], 0x44), _mm512_shuffle_ps(u[0], u[1], 0xee));
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(s), upper_half(s));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

/* acc[row][output] += inputs [i, i + count). x [rows][k]. */
ALWAYS_INLINE void add_products(enum scalar_type t, const void *const w[TILE_OUTPUTS],
                                const float *x, uint32_t k, uint32_t i, uint32_t count, int rows,
                                __m512 acc[][TILE_OUTPUTS]) {
    __m512 v[TILE_ROWS];
    UNROLL_FOR(r, rows) {
        v[r] = load_up_to_16(SCALAR_F32, x + (size_t)r * k, i, count);
    }
    UNROLL_FOR(o, TILE_OUTPUTS) {
        __m512 weights = load_up_to_16(t, w[o], i, count);
        UNROLL_FOR(r, rows) {
            acc[r][o] = _mm512_fmadd_ps(v[r], weights, acc[r][o]);
        }
    }
}

/* sums[row] of four outputs. */
ALWAYS_INLINE void tile(enum scalar_type t, const void *const w[TILE_OUTPUTS], const float *x,
                        uint32_t k, int rows, __m128 *sums) {
    __m512 acc[TILE_ROWS][TILE_OUTPUTS];
    const size_t size = t == SCALAR_F32 ? 4 : 2;
    const char *next = (const char *)w[TILE_OUTPUTS - 1] + k * size;
    uint32_t i = 0;
    UNROLL_FOR(r, rows) {
        UNROLL_FOR(o, TILE_OUTPUTS) {
            acc[r][o] = _mm512_setzero_ps();
        }
    }
    for (; i + 16 <= k; i += 16) {
        if (rows == 1) /* decode: fetch the rows behind these four, which are read next */
            for (size_t line = 0; line < 16 * TILE_OUTPUTS * size; line += 64)
                _mm_prefetch(next + i * TILE_OUTPUTS * size + line, _MM_HINT_T0);
        add_products(t, w, x, k, i, 16, rows, acc);
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

/* All rows of activations times the panel, n of whose 16 weight rows are outputs. */
ALWAYS_INLINE void product_panel(enum scalar_type t, const void *const *row, uint32_t n,
                                 const struct act_rows *a, float *y, size_t y_stride) {
    for (uint32_t r = 0, now; r < a->rows; r += now) {
        const uint32_t left = a->rows - r;
        const float *x = a->x + (size_t)r * a->k;
        float *to = y + r * y_stride;
        now = left >= 6 ? 6 : left >= 3 ? 3 : left;
        if (now == 6)
            tiles(t, row, n, x, a->k, 6, to, y_stride);
        else if (now == 3)
            tiles(t, row, n, x, a->k, 3, to, y_stride);
        else if (now == 2)
            tiles(t, row, n, x, a->k, 2, to, y_stride);
        else
            tiles(t, row, n, x, a->k, 1, to, y_stride);
    }
}

/* ---- panels ---------------------------------------------------------------------------------- */

ALWAYS_INLINE void widen_row(enum scalar_type t, const void *row, uint32_t k, float *to) {
    for (uint32_t i = 0; i < k; i += 16)
        _mm512_storeu_ps(to + i, load_up_to_16(t, row, i, k - i < 16 ? k - i : 16));
}

/* Sixteen E4M3 floats s eeee mmm: as the f16 s 0eeee mmm0000000 they are 2^-8 of themselves, their
 * subnormals too; all ones is NaN. */
ALWAYS_INLINE __m512 e4m3_floats(__m128i bytes) {
    __m256i v = _mm256_cvtepu8_epi16(bytes), low = _mm256_set1_epi16(0x7f);
    __m256i magnitude = _mm256_and_si256(v, low);
    __m256i sign = _mm256_slli_epi16(_mm256_andnot_si256(low, v), 8);
    __m512 x = _mm512_cvtph_ps(_mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign));
    x = _mm512_mul_ps(x, _mm512_set1_ps(256));
    return _mm512_mask_mov_ps(x, _mm256_cmpeq_epi16_mask(magnitude, low), _mm512_set1_ps(NAN));
}

/* Row j, stretch by stretch of one scale. */
static void widen_e4m3(const struct weight *w, uint32_t j, float *to) {
    const uint8_t *row = (const uint8_t *)w->data + (size_t)j * w->k;
    const uint32_t group = w->scales ? w->group : w->k;
    const size_t first = w->scales ? (size_t)(j / w->group_rows) * ((w->k - 1) / group + 1) : 0;
    _mm512_storeu_ps(to + (w->k - 1) / 16 * 16, _mm512_setzero_ps());
    for (uint32_t start = 0; start < w->k; start += group) {
        float s = w->scales ? scalar_load(w->scalar, w->scales, first + start / group) : 1;
        uint32_t end = w->k - start < group ? w->k : start + group;
        for (uint32_t i = start; i < end; i += 16) {
            __mmask16 lanes = first_lanes(end - i);
            __m512 x = e4m3_floats(_mm_maskz_loadu_epi8(lanes, row + i));
            _mm512_mask_storeu_ps(to + i, lanes, _mm512_mul_ps(x, _mm512_set1_ps(s)));
        }
    }
}

/* Widens the panel's rows, first + i up to last, into scratch and lets row point there. */
static void widen_panel(const struct weight *w, uint32_t first, uint32_t n, const void **row,
                        float *panel) {
    for (uint32_t o = 0; o < PRODUCT_PANEL; o++) {
        float *to = panel + (size_t)(o < n ? o : n - 1) * ((w->k + 15) / 16 * 16);
        if (o < n && w->type == WEIGHT_F8_E4M3)
            widen_e4m3(w, first + o, to);
        else if (o < n)
            widen_row(w->type == WEIGHT_F16 ? SCALAR_F16 : SCALAR_BF16, row[o], w->k, to);
        row[o] = to;
    }
}

void avx512_product_float(const struct weight *w, uint32_t n0, uint32_t n1,
                          const struct act_rows *a, float *y, size_t y_stride, void *scratch) {
    const size_t row_bytes = weight_row_bytes(weight_traits_of(w->type), w->k);
    const bool widen = w->type == WEIGHT_F8_E4M3 || (w->type != WEIGHT_F32 && a->rows > TILE_ROWS);
    for (uint32_t j = n0; j < n1; j += PRODUCT_PANEL) {
        const void *row[PRODUCT_PANEL];
        uint32_t n = n1 - j < PRODUCT_PANEL ? n1 - j : PRODUCT_PANEL;
        for (uint32_t i = 0; i < PRODUCT_PANEL; i++)
            row[i] = (const char *)w->data + (j + (i < n ? i : n - 1)) * row_bytes;
        if (widen)
            widen_panel(w, j, n, row, scratch);
        if (widen || w->type == WEIGHT_F32)
            product_panel(SCALAR_F32, row, n, a, y + (j - n0), y_stride);
        else if (w->type == WEIGHT_F16)
            product_panel(SCALAR_F16, row, n, a, y + (j - n0), y_stride);
        else
            product_panel(SCALAR_BF16, row, n, a, y + (j - n0), y_stride);
    }
}
