/* SPDX-License-Identifier: Apache-2.0 */
/* product_float.c: activations times weights in float32, f16 and bf16, NEON.
 *
 * F1 The one order of sums of an output, whatever runs beside it: eight lanes, lane i adds the
 *    products of inputs i, i + 8, i + 16, ... in rising order, each with one rounding (FMA); inputs
 *    behind k count as 0. Then ((0+4) + (1+5)) + ((2+6) + (3+7)).
 *
 * A tile is four outputs times up to two rows of activations: 16 registers of sums, and one row
 * alone still has eight chains. Weights are widened as they are read; where several tiles of rows
 * read the same 16-bit weights (prefill), a panel of them is widened into scratch once:
 *
 *     panel:  f32 [16 outputs][k rounded up to 8], zeros behind k
 *
 * Leaves out: quantized weights (product_quant.c), which activations are rounded for, and F8_E4M3
 * (ref/).
 */
#include "backend/cpu/neon/vector.h"

enum { TILE_OUTPUTS = 4, TILE_ROWS = 2, LANES = 8 };

/* Elements [i, i + count), count <= 8; 0 in the lanes behind them, which are not read. */
ALWAYS_INLINE float32x4x2_t load_up_to_8(enum scalar_type t, const void *p, size_t i,
                                         uint32_t count) {
    if (count >= 4)
        return (float32x4x2_t){{load4(t, p, i), load_up_to_4(t, p, i + 4, count - 4)}};
    return (float32x4x2_t){{load_up_to_4(t, p, i, count), vdupq_n_f32(0)}};
}

/* Sums of one row and output: lanes 0..3 and 4..7. */
struct sums {
    float32x4_t v[2];
};

/* acc[row][output] += inputs [i, i + count). x [rows][k]. */
ALWAYS_INLINE void add_products(enum scalar_type t, const void *const w[TILE_OUTPUTS],
                                const float *x, uint32_t k, uint32_t i, uint32_t count, int rows,
                                struct sums acc[][TILE_OUTPUTS]) {
    float32x4x2_t v[TILE_ROWS];
    UNROLL_FOR(r, rows) {
        v[r] = load_up_to_8(SCALAR_F32, x + (size_t)r * k, i, count);
    }
    UNROLL_FOR(o, TILE_OUTPUTS) {
        float32x4x2_t weights = load_up_to_8(t, w[o], i, count);
        UNROLL_FOR(r, rows) {
            UNROLL_FOR(h, 2) {
                acc[r][o].v[h] = vfmaq_f32(acc[r][o].v[h], v[r].val[h], weights.val[h]);
            }
        }
    }
}

/* sums[row] of four outputs. */
ALWAYS_INLINE void tile(enum scalar_type t, const void *const w[TILE_OUTPUTS], const float *x,
                        uint32_t k, int rows, float32x4_t *sums) {
    struct sums acc[TILE_ROWS][TILE_OUTPUTS];
    uint32_t i = 0;
    UNROLL_FOR(r, rows) {
        UNROLL_FOR(o, TILE_OUTPUTS) {
            acc[r][o].v[0] = acc[r][o].v[1] = vdupq_n_f32(0);
        }
    }
    for (; i + LANES <= k; i += LANES)
        add_products(t, w, x, k, i, LANES, rows, acc);
    if (i < k)
        add_products(t, w, x, k, i, k - i, rows, acc);
    UNROLL_FOR(r, rows) {
        float32x4_t joined[TILE_OUTPUTS];
        UNROLL_FOR(o, TILE_OUTPUTS) {
            joined[o] = vaddq_f32(acc[r][o].v[0], acc[r][o].v[1]);
        }
        sums[r] = sum_each(joined);
    }
}

/* n outputs of `rows` rows of activations. row: pointers to n weight rows, repeated up to a
 * multiple of four. */
ALWAYS_INLINE void tiles(enum scalar_type t, const void *const *row, uint32_t n, const float *x,
                         uint32_t k, int rows, float *y, size_t y_stride) {
    for (uint32_t j = 0; j < n; j += TILE_OUTPUTS) {
        float32x4_t sums[TILE_ROWS];
        tile(t, row + j, x, k, rows, sums);
        for (int r = 0; r < rows; r++)
            store_up_to_4(y + (size_t)r * y_stride + j, n - j, sums[r]);
    }
}

/* Widens the panel's rows into scratch and lets row point there. */
ALWAYS_INLINE void widen_panel(enum scalar_type t, const void **row, uint32_t k, float *panel) {
    size_t stride = round_up(k, LANES);
    for (int o = 0; o < PRODUCT_PANEL; o++) {
        float *to = panel + (size_t)o * stride;
        for (uint32_t i = 0; i < k; i += LANES) {
            float32x4x2_t v = load_up_to_8(t, row[o], i, k - i < LANES ? k - i : LANES);
            vst1q_f32(to + i, v.val[0]);
            vst1q_f32(to + i + 4, v.val[1]);
        }
        row[o] = to;
    }
}

/* All rows of activations times the panel, n of whose 16 weight rows are outputs. */
ALWAYS_INLINE void product_panel(enum scalar_type t, const void *const *row, uint32_t n,
                                 const struct act_rows *a, float *y, size_t y_stride) {
    for (uint32_t r = 0; r < a->rows; r += TILE_ROWS) {
        const float *x = a->x + (size_t)r * a->k;
        if (a->rows - r >= 2)
            tiles(t, row, n, x, a->k, 2, y + r * y_stride, y_stride);
        else
            tiles(t, row, n, x, a->k, 1, y + r * y_stride, y_stride);
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
    void neon_product_##name(const struct weight *w, uint32_t n0, uint32_t n1,                     \
                             const struct act_rows *a, float *y, size_t y_stride, void *scratch) { \
        product(type, w, n0, n1, a, y, y_stride, scratch);                                         \
    }
DEFINE_PRODUCT(f32, SCALAR_F32)
DEFINE_PRODUCT(f16, SCALAR_F16)
DEFINE_PRODUCT(bf16, SCALAR_BF16)
