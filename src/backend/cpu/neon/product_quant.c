/* SPDX-License-Identifier: Apache-2.0 */
/* product_quant.c: activations times weights in runs of 32 codes (Q4_0, Q4_1, Q8_0, AFFINE4,
 * AFFINE8), NEON, both tiers.
 *
 * NEON-1 An output is one float32 accumulator over the blocks in order,
 *        acc = fma(d_b * scale_b, dot_b, acc)    and if the type has a minimum
 *        acc = fma(m_b, sum_b, acc)
 *    with dot_b exact in s32. Both ways below do exactly this and differ only in how they come by
 *    the integers, so an output has the same bits from one row of activations and from 512, and
 *    from any cut of the outputs.
 *
 *    one row    (decode; bound by weight bytes) eight weight rows side by side, read from where
 *               they are mapped; each block is summed across its lanes (dot.h)
 *    more       (prefill; bound by multiplies) 16 weight rows are unpacked into scratch once,
 *               transposed so that lanes are outputs and nothing is summed across, then used for
 *               every row of activations, two at a time
 *
 * NEON-2 All codes are s8: Q4_0's are code - 8, AFFINE8's code - 128, for which m = bias + 128 d,
 *        as their parts functions say.
 *
 * Weights are in GGUF's or MLX's own layout and not aligned. Leaves out: float weights
 * (simd/product_float.c), the other block types (ref/).
 */
#include "backend/cpu/neon/dot.h"

enum {
    BLOCK = 32,
    PANEL = 4 * DOT_VECTORS, /* outputs of a panel */
    ROW_OUTPUTS = 8,         /* outputs side by side if there is one row */
    TILE_ROWS = 2,           /* x 4 vectors x 2 sums of a dot: half of the registers */
};
_Static_assert(PANEL == (int)PRODUCT_PANEL, "a work item is whole panels");
_Static_assert(BLOCK == (int)DOT_BLOCK, "a block of a panel is a block of activations");

_Static_assert(2 + BLOCK / 2 == WEIGHT_BYTES_Q4_0 && 4 + BLOCK / 2 == WEIGHT_BYTES_Q4_1 &&
                   2 + BLOCK == WEIGHT_BYTES_Q8_0,
               "block_bytes is quant/weight.c's");

/* ---- types ----------------------------------------------------------------------------------- */

ALWAYS_INLINE bool is_affine(enum weight_type t) {
    return t == WEIGHT_AFFINE4 || t == WEIGHT_AFFINE8;
}
ALWAYS_INLINE bool has_min(enum weight_type t) {
    return t == WEIGHT_Q4_1 || is_affine(t);
}
ALWAYS_INLINE bool is_nibbles(enum weight_type t) {
    return t != WEIGHT_Q8_0 && t != WEIGHT_AFFINE8;
}
ALWAYS_INLINE size_t header_bytes(enum weight_type t) {
    return is_affine(t) ? 0 : t == WEIGHT_Q4_1 ? 4 : 2;
}
ALWAYS_INLINE size_t block_bytes(enum weight_type t) {
    return header_bytes(t) + (is_nibbles(t) ? BLOCK / 2 : BLOCK);
}

/* ---- reading weights ------------------------------------------------------------------------- */

/* A row of weights: its blocks, and, if scales and biases are arrays of their own, its part of
 * them. */
struct row {
    const uint8_t *blocks, *scales, *biases;
};

ALWAYS_INLINE struct row row_at(enum weight_type t, const struct weight *w, uint32_t j) {
    struct row r = {(const uint8_t *)w->data + (size_t)j * (w->k / BLOCK) * block_bytes(t), NULL,
                    NULL};
    if (is_affine(t)) {
        size_t at = (size_t)j * (w->k / w->group) * scalar_bytes(w->scalar);
        r.scales = (const uint8_t *)w->scales + at;
        r.biases = (const uint8_t *)w->biases + at;
    }
    return r;
}

ALWAYS_INLINE float load_f16(const uint8_t *p) {
    __fp16 h;
    memcpy(&h, p, sizeof h);
    return (float)h;
}

ALWAYS_INLINE float load_scalar(enum scalar_type t, const uint8_t *p, size_t i) {
    return t == SCALAR_F16 ? load_f16(p + 2 * i) : scalar_load(t, p, i);
}

/* d and m of block b of a row; m is 0 without a minimum. group: that the block is in. */
ALWAYS_INLINE void load_scales(enum weight_type t, enum scalar_type scalar, const struct row *r,
                               size_t b, size_t group, float *d, float *m) {
    if (is_affine(t)) {
        *d = load_scalar(scalar, r->scales, group);
        *m = load_scalar(scalar, r->biases, group);
        if (t == WEIGHT_AFFINE8)
            *m += 128 * *d;
        return;
    }
    const uint8_t *p = r->blocks + b * block_bytes(t);
    *d = load_f16(p);
    *m = has_min(t) ? load_f16(p + 2) : 0;
}

/* The codes of block b of a row in natural order, 16 and 16. */
ALWAYS_INLINE void load_codes(enum weight_type t, const struct row *r, size_t b, int8x16_t w[2]) {
    const uint8_t *p = r->blocks + b * block_bytes(t) + header_bytes(t);
    if (!is_nibbles(t)) {
        const uint8x16_t flip = vdupq_n_u8(t == WEIGHT_AFFINE8 ? 0x80 : 0); /* code - 128 */
        w[0] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p), flip));
        w[1] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p + 16), flip));
        return;
    }
    uint8x16_t bytes = vld1q_u8(p);
    int8x16_t low = vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));
    int8x16_t high = vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4));
    if (t == WEIGHT_Q4_0) {
        low = vsubq_s8(low, vdupq_n_s8(8));
        high = vsubq_s8(high, vdupq_n_s8(8));
    }
    /* GGUF: input j and j + 16 share a byte; MLX: 2 j and 2 j + 1 */
    w[0] = is_affine(t) ? vzip1q_s8(low, high) : low;
    w[1] = is_affine(t) ? vzip2q_s8(low, high) : high;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* NEON-1, for four outputs of one row. at: the block's index in scale and sum. */
ALWAYS_INLINE float32x4_t add_block(enum weight_type t, float32x4_t acc, int32x4_t dot,
                                    float32x4_t d, float32x4_t m, const struct act_rows *a,
                                    size_t at) {
    acc = vfmaq_f32(acc, vmulq_n_f32(d, a->scale[at]), vcvtq_f32_s32(dot));
    return has_min(t) ? vfmaq_n_f32(acc, m, a->sum[at]) : acc;
}

/* ---- one row --------------------------------------------------------------------------------- */

/* Factors of a block: the codes as packed, or if of 16 bits in the order of order_for_across. */
ALWAYS_INLINE int32x4_t dot_block(enum weight_type t, int bits, const struct row *r, size_t b,
                                  const void *factors) {
    int8x16_t w[2];
    load_codes(t, r, b, w);
    if (bits == 8)
        return dot_across_8(w, is_nibbles(t), (const int8_t *)factors + b * BLOCK);
    return dot_across_16(w, (const int16_t *)factors + b * BLOCK);
}

/* Lane i = the sum of p[i]'s four. */
ALWAYS_INLINE int32x4_t sum_each_s32(const int32x4_t p[4]) {
    return vpaddq_s32(vpaddq_s32(p[0], p[1]), vpaddq_s32(p[2], p[3]));
}

/* Eight outputs of the one row of activations. */
ALWAYS_INLINE void one_row(enum weight_type t, int bits, const struct weight *w,
                           const struct row row[ROW_OUTPUTS], const struct act_rows *a,
                           const void *factors, float32x4_t acc[2]) {
    const size_t per_group = is_affine(t) ? w->group / BLOCK : 1;
    acc[0] = acc[1] = vdupq_n_f32(0);
    for (size_t b = 0; b < a->k / BLOCK; b++) {
        const size_t group = b / per_group;
        UNROLL_FOR(h, 2) {
            float32x4_t d = vdupq_n_f32(0), m = d;
            int32x4_t p[4];
            UNROLL_FOR(i, 4) {
                const struct row *r = row + 4 * h + i;
                float di, mi;
                load_scales(t, w->scalar, r, b, group, &di, &mi);
                d[i] = di;
                m[i] = mi;
                p[i] = dot_block(t, bits, r, b, factors);
            }
            acc[h] = add_block(t, acc[h], sum_each_s32(p), d, m, a, b);
        }
    }
}

/* ---- more rows ------------------------------------------------------------------------------- */

struct panel_block {
    float d[PANEL], m[PANEL];
    dot_panel w;
};

/* Four rows of 16 codes to four steps of four outputs: dword o of to[i][.] is dword i of row o. */
ALWAYS_INLINE void turn(const int8x16_t row[4], int8x16_t (*to)[DOT_VECTORS], int vector) {
    int32x4_t a[4];
    UNROLL_FOR(i, 4) {
        a[i] = vreinterpretq_s32_s8(row[i]);
    }
    int64x2_t t0 = vreinterpretq_s64_s32(vtrn1q_s32(a[0], a[1]));
    int64x2_t t1 = vreinterpretq_s64_s32(vtrn2q_s32(a[0], a[1]));
    int64x2_t t2 = vreinterpretq_s64_s32(vtrn1q_s32(a[2], a[3]));
    int64x2_t t3 = vreinterpretq_s64_s32(vtrn2q_s32(a[2], a[3]));
    to[0][vector] = vreinterpretq_s8_s64(vtrn1q_s64(t0, t2));
    to[1][vector] = vreinterpretq_s8_s64(vtrn1q_s64(t1, t3));
    to[2][vector] = vreinterpretq_s8_s64(vtrn2q_s64(t0, t2));
    to[3][vector] = vreinterpretq_s8_s64(vtrn2q_s64(t1, t3));
}

ALWAYS_INLINE void unpack_panel(enum weight_type t, const struct weight *w,
                                const struct row row[PANEL], struct panel_block *panel) {
    const size_t per_group = is_affine(t) ? w->group / BLOCK : 1;
    for (size_t b = 0; b < w->k / BLOCK; b++, panel++) {
        const size_t group = b / per_group;
        for (int v = 0; v < DOT_VECTORS; v++) {
            int8x16_t low[4], high[4];
            UNROLL_FOR(i, 4) {
                const struct row *r = row + 4 * v + i;
                int8x16_t codes[2];
                load_codes(t, r, b, codes);
                low[i] = codes[0];
                high[i] = codes[1];
                load_scales(t, w->scalar, r, b, group, panel->d + 4 * v + i, panel->m + 4 * v + i);
            }
            turn(low, panel->w, v);
            turn(high, panel->w + DOT_STEPS / 2, v);
        }
    }
}

/* out[row] = block . the codes of `rows` rows. */
ALWAYS_INLINE void dot_panel_16(const dot_panel w, const int16_t *const x[], int rows,
                                int32x4_t out[][DOT_VECTORS]) {
    int32_t factors[TILE_ROWS][2 * DOT_STEPS];
    struct dot d[TILE_ROWS][DOT_VECTORS];
    UNROLL_FOR(r, rows) {
        order_for_lanes(x[r], BLOCK, factors[r]);
        UNROLL_FOR(v, DOT_VECTORS) {
            d[r][v] = dot_zero();
        }
    }
    UNROLL_FOR(s, DOT_STEPS) {
        load_anew();
        UNROLL_FOR(v, DOT_VECTORS) {
            UNROLL_FOR(r, rows) {
                d[r][v] = dot_lanes_16(d[r][v], w[s][v], factors[r] + 2 * s);
            }
        }
    }
    UNROLL_FOR(r, rows) {
        UNROLL_FOR(v, DOT_VECTORS) {
            out[r][v] = dot_lanes_end(d[r][v]);
        }
    }
}

/* 16 outputs of `rows` rows of activations, from row r0 on. out [rows][4]. */
ALWAYS_INLINE void tile(enum weight_type t, int bits, const struct panel_block *panel,
                        const struct act_rows *a, uint32_t r0, int rows,
                        float32x4_t (*out)[DOT_VECTORS]) {
    const size_t blocks = a->k / BLOCK;
    UNROLL_FOR(r, rows) {
        UNROLL_FOR(v, DOT_VECTORS) {
            out[r][v] = vdupq_n_f32(0);
        }
    }
    for (size_t b = 0; b < blocks; b++, panel++) {
        const int8_t *x8[TILE_ROWS];
        const int16_t *x16[TILE_ROWS];
        int32x4_t dot[TILE_ROWS][DOT_VECTORS];
        UNROLL_FOR(r, rows) {
            size_t at = ((r0 + (size_t)r) * blocks + b) * BLOCK;
            x8[r] = (const int8_t *)a->codes + at;
            x16[r] = (const int16_t *)a->codes + at;
        }
        if (bits == 8)
            dot_panel_8(panel->w, is_nibbles(t), x8, rows, dot);
        else
            dot_panel_16(panel->w, x16, rows, dot);
        UNROLL_FOR(v, DOT_VECTORS) {
            float32x4_t d = vld1q_f32(panel->d + 4 * v), m = vld1q_f32(panel->m + 4 * v);
            UNROLL_FOR(r, rows) {
                out[r][v] =
                    add_block(t, out[r][v], dot[r][v], d, m, a, (r0 + (size_t)r) * blocks + b);
            }
        }
    }
}

/* ---- the products ---------------------------------------------------------------------------- */

/* Weight rows j, j+1, ...; after n1 the last one is repeated and its results are not stored. */
ALWAYS_INLINE void find_rows(enum weight_type t, const struct weight *w, uint32_t j, uint32_t n1,
                             uint32_t count, struct row *row) {
    DEBUG_ASSERT(j < n1 && count <= PANEL);
    for (uint32_t i = 0; i < count; i++)
        row[i] = row_at(t, w, j + i < n1 ? j + i : n1 - 1);
}

ALWAYS_INLINE void product_row(enum weight_type t, int bits, const struct weight *w, uint32_t n0,
                               uint32_t n1, const struct act_rows *a, float *y, int16_t *scratch) {
    const void *factors = a->codes;
    if (bits == 16) {
        for (size_t i = 0; i < a->k; i += BLOCK)
            order_for_across((const int16_t *)a->codes + i, scratch + i);
        factors = scratch;
    }
    for (uint32_t j = n0; j < n1; j += ROW_OUTPUTS) {
        struct row row[ROW_OUTPUTS];
        float32x4_t out[2];
        find_rows(t, w, j, n1, ROW_OUTPUTS, row);
        one_row(t, bits, w, row, a, factors, out);
        memcpy(y + (j - n0), out, (n1 - j < ROW_OUTPUTS ? n1 - j : ROW_OUTPUTS) * sizeof *y);
    }
}

/* All rows of activations times the panel, n of whose 16 weight rows are outputs. */
ALWAYS_INLINE void product_panel(enum weight_type t, int bits, const struct panel_block *panel,
                                 uint32_t n, const struct act_rows *a, float *y, size_t y_stride) {
    for (uint32_t r = 0; r < a->rows; r += TILE_ROWS) {
        float32x4_t out[TILE_ROWS][DOT_VECTORS];
        uint32_t rows = a->rows - r < TILE_ROWS ? a->rows - r : TILE_ROWS;
        if (rows == 2)
            tile(t, bits, panel, a, r, 2, out);
        else
            tile(t, bits, panel, a, r, 1, out);
        for (uint32_t i = 0; i < rows; i++)
            memcpy(y + (r + i) * y_stride, out[i], n * sizeof *y);
    }
}

ALWAYS_INLINE void product_panels(enum weight_type t, int bits, const struct weight *w, uint32_t n0,
                                  uint32_t n1, const struct act_rows *a, float *y, size_t y_stride,
                                  void *scratch) {
    for (uint32_t j = n0; j < n1; j += PANEL) {
        struct row row[PANEL];
        find_rows(t, w, j, n1, PANEL, row);
        unpack_panel(t, w, row, scratch);
        product_panel(t, bits, scratch, n1 - j < PANEL ? n1 - j : PANEL, a, y + (j - n0), y_stride);
    }
}

ALWAYS_INLINE void product(enum weight_type t, int bits, const struct weight *w, uint32_t n0,
                           uint32_t n1, const struct act_rows *a, float *y, size_t y_stride,
                           void *scratch) {
    ASSERT(n0 <= n1 && n1 <= w->n && a->k == w->k && a->rows > 0);
    if (a->rows == 1)
        product_row(t, bits, w, n0, n1, a, y, scratch);
    else
        product_panels(t, bits, w, n0, n1, a, y, y_stride, scratch);
}

/* One copy of everything above per type and width. */
#define TYPES(USE)                                                                                 \
    USE(q4_0, WEIGHT_Q4_0)                                                                         \
    USE(q4_1, WEIGHT_Q4_1)                                                                         \
    USE(q8_0, WEIGHT_Q8_0)                                                                         \
    USE(affine4, WEIGHT_AFFINE4)                                                                   \
    USE(affine8, WEIGHT_AFFINE8)

#define DEFINE_PRODUCT(name, type)                                                                 \
    static void product_##name(const struct weight *w, uint32_t n0, uint32_t n1,                   \
                               const struct act_rows *a, float *y, size_t y_stride,                \
                               void *scratch) {                                                    \
        if (a->bits == 8)                                                                          \
            product(type, 8, w, n0, n1, a, y, y_stride, scratch);                                  \
        else                                                                                       \
            product(type, 16, w, n0, n1, a, y, y_stride, scratch);                                 \
    }
TYPES(DEFINE_PRODUCT)

void TIER(set_products)(struct kernels *k) {
#define SET_PRODUCT(name, type) k->product[weight_index(type)] = product_##name;
    TYPES(SET_PRODUCT)
}
