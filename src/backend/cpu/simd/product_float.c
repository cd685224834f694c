/* SPDX-License-Identifier: Apache-2.0 */
/* product_float.c: activations times weights in float32, f16, bf16 and 8-bit floats.
 *
 * F1 The one order of sums of an output, however rows and outputs are grouped: STEP lanes, lane i
 * adds the
 *    products of inputs i, i + STEP, i + 2 STEP, ... in rising order, each with one rounding (FMA);
 *    inputs after the last count as 0. Then the lanes as sum_each of the tier says.
 *
 * A tile is four outputs times up to FLOAT_ROWS rows of activations. 16-bit weights are widened as
 * they are read; if several tiles of rows read the same ones (prefill), a panel of them is widened
 * into scratch once, and 8-bit floats, which have a scale to be multiplied with, always:
 *
 *     panel:  f32 [16 outputs][k rounded up to STEP], zeros after the last input
 *
 * Leaves out: quantized weights, which activations are rounded for.
 */
#include "backend/cpu/simd/simd.h"

enum { TILE_OUTPUTS = 4, STEP = LANES * FLOAT_VECTORS };
_Static_assert(PRODUCT_PANEL % TILE_OUTPUTS == 0, "a panel is whole tiles");

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Vector h of elements [i, i + count), count <= STEP. */
ALWAYS_INLINE vf load_step(enum scalar_type t, const void *p, size_t i, size_t count, int h) {
    size_t first = LANES * (size_t)h;
    return load_first_as(t, p, i + first, count > first ? count - first : 0);
}

/* acc[row][output] += inputs [i, i + count). x [rows][k]. */
ALWAYS_INLINE void add_products(enum scalar_type t, const void *const w[TILE_OUTPUTS],
                                const float *x, uint32_t k, uint32_t i, uint32_t count, int rows,
                                vf acc[][TILE_OUTPUTS][FLOAT_VECTORS]) {
    vf v[FLOAT_ROWS][FLOAT_VECTORS];
    UNROLL_FOR(r, rows) {
        UNROLL_FOR(h, FLOAT_VECTORS) {
            v[r][h] = load_step(SCALAR_F32, x + (size_t)r * k, i, count, h);
        }
    }
    UNROLL_FOR(o, TILE_OUTPUTS) {
        UNROLL_FOR(h, FLOAT_VECTORS) {
            vf weights = load_step(t, w[o], i, count, h);
            UNROLL_FOR(r, rows) {
                acc[r][o][h] = fmadd(v[r][h], weights, acc[r][o][h]);
            }
        }
    }
}

/* sums[row] of four outputs. */
ALWAYS_INLINE void tile(enum scalar_type t, const void *const w[TILE_OUTPUTS], const float *x,
                        uint32_t k, int rows, vf4 *sums) {
    vf acc[FLOAT_ROWS][TILE_OUTPUTS][FLOAT_VECTORS];
    const size_t size = t == SCALAR_F32 ? 4 : 2;
    const char *next = (const char *)w[TILE_OUTPUTS - 1] + k * size;
    uint32_t i = 0;
    UNROLL_FOR(r, rows) {
        UNROLL_FOR(o, TILE_OUTPUTS) {
            UNROLL_FOR(h, FLOAT_VECTORS) {
                acc[r][o][h] = splat(0);
            }
        }
    }
    for (; i + STEP <= k; i += STEP) {
        if (FLOAT_PREFETCH && rows == 1) /* decode: the rows after these four are read next */
            for (size_t line = 0; line < STEP * TILE_OUTPUTS * size; line += 64)
                prefetch_line(next + i * TILE_OUTPUTS * size + line);
        add_products(t, w, x, k, i, STEP, rows, acc);
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
    DEBUG_ASSERT(n <= PRODUCT_PANEL);
    for (uint32_t j = 0; j < n; j += TILE_OUTPUTS) {
        vf4 sums[FLOAT_ROWS];
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
        now = left >= FLOAT_ROWS ? FLOAT_ROWS : left >= 3 ? 3 : left;
        if (now == FLOAT_ROWS)
            tiles(t, row, n, x, a->k, FLOAT_ROWS, to, y_stride);
        else if (FLOAT_ROWS > 3 && now == 3)
            tiles(t, row, n, x, a->k, FLOAT_ROWS > 3 ? 3 : 1, to, y_stride);
        else if (FLOAT_ROWS > 2 && now == 2)
            tiles(t, row, n, x, a->k, 2, to, y_stride);
        else
            tiles(t, row, n, x, a->k, 1, to, y_stride);
    }
}

/* ---- panels ---------------------------------------------------------------------------------- */

ALWAYS_INLINE void widen_row(enum scalar_type t, const void *row, uint32_t k, float *to) {
    for (uint32_t i = 0; i < k; i += STEP)
        UNROLL_FOR(h, FLOAT_VECTORS) {
            store(to + i + LANES * h, load_step(t, row, i, k - i, h));
        }
}

/* Row j, stretch by stretch of one scale. */
static void widen_e4m3(const struct weight *w, uint32_t j, float *to) {
#if defined(HAVE_E4M3)
    const uint8_t *row = (const uint8_t *)w->data + (size_t)j * w->k;
    const uint32_t group = w->scales ? w->group : w->k;
    const size_t first = w->scales ? (size_t)(j / w->group_rows) * ((w->k - 1) / group + 1) : 0;
    store(to + (w->k - 1) / LANES * LANES, splat(0));
    for (uint32_t start = 0; start < w->k; start += group) {
        float s = w->scales ? scalar_load(w->scalar, w->scales, first + start / group) : 1;
        uint32_t end = w->k - start < group ? w->k : start + group;
        for (uint32_t i = start; i < end; i += LANES)
            store_first(to + i, end - i, e4m3_floats(row + i, end - i) * splat(s));
    }
#else
    (void)w, (void)j, (void)to;
    ASSERT(!"the table leaves 8-bit floats to ref/");
#endif
}

/* Widens the panel's rows, first + i up to last, into scratch and lets row point there. */
static void widen_panel(const struct weight *w, uint32_t first, uint32_t n, const void **row,
                        float *panel) {
    for (uint32_t o = 0; o < PRODUCT_PANEL; o++) {
        float *to = panel + (size_t)(o < n ? o : n - 1) * round_up(w->k, STEP);
        if (o < n && w->type == WEIGHT_F8_E4M3)
            widen_e4m3(w, first + o, to);
        else if (o < n)
            widen_row(w->type == WEIGHT_F16 ? SCALAR_F16 : SCALAR_BF16, row[o], w->k, to);
        row[o] = to;
    }
}

void TIER(product_float)(const struct weight *w, uint32_t n0, uint32_t n1, const struct act_rows *a,
                         float *y, size_t y_stride, void *scratch) {
    const size_t row_bytes = weight_row_bytes(weight_traits_of(w->type), w->k);
    const bool widen = w->type == WEIGHT_F8_E4M3 || (w->type != WEIGHT_F32 && a->rows > FLOAT_ROWS);
    ASSERT(n1 <= w->n && a->k == w->k);
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
