/* SPDX-License-Identifier: Apache-2.0 */
/* product.c: activations of 8 bits times quantized weights, many rows, AMX.
 *
 * Panels are unpacked by avx512/product_codes.c, which calls a pass of this file for each chunk of
 * two of them. For 16 rows of activations and one panel it takes a few blocks at a time:
 *
 *     tiles      rows [16][32] x panel [8][16][4]    sums [block][16][16] s32
 *     vectors    AVX512-1 of product_codes.c         16 accumulators
 *
 * Not both at once: beside tile instructions a core executes one vector operation a cycle instead
 * of two (docs/speed.md, "AMX tiles").
 *
 * Weights are signed here, unlike in AVX512-2: a pass takes the offset off the panels once.
 *
 * AVX512VNNI has the rest: types with runs of 16 inputs and activations of 15 bits, which have more
 * of both for the same inputs, are no faster with tiles, nor are few rows.
 */
#include "backend/cpu/avx512/product.h"
#include "backend/cpu/amx/tile.h"

enum {
    ROWS = 16,
    ROWS_LEAST = 2 * ROWS, /* 17 would fill half of two tiles */
    PART = 16,             /* blocks of two panels: 20 KiB, in L1 with as many of some rows */
    STEPS = 8,             /* blocks at a time: 8 KiB of sums */
    SUMS_BYTES = OUTPUTS * sizeof(int32_t),
};

struct sums {
    _Alignas(64) int32_t of[STEPS][ROWS][OUTPUTS];
};

/* Tiles: 0 and 1 sums, 4 and 5 rows, 6 and 7 columns. */
static void set_shapes(void) {
    struct tile_shapes s = {.palette = 1};
    for (int t = 0; t < 2; t++) {
        s.rows[t] = ROWS, s.bytes[t] = SUMS_BYTES;
        s.rows[4 + t] = ROWS, s.bytes[4 + t] = BLOCK;
        s.rows[6 + t] = GROUPS, s.bytes[6 + t] = sizeof(__m512i);
    }
    TILES_SET(&s);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

#define MULTIPLY(sums, rows, columns, codes, stride, block)                                        \
    do {                                                                                           \
        TILE_LOAD(columns, (block)->w, sizeof(__m512i));                                           \
        TILE_LOAD(rows, codes, stride);                                                            \
        TILE_ZERO(sums);                                                                           \
        TILE_DOT_S8S8(sums, rows, columns);                                                        \
    } while (0)

/* n blocks of a panel and of the rows from codes on. The sums of one are stored after the next one
 * is multiplied: stores that wait for a product would fill the queue that others need. */
ALWAYS_INLINE void multiply(const int8_t *codes, size_t stride, const struct panel_block *block,
                            uint32_t n, struct sums *out) {
    for (uint32_t i = 0; i < n; i++, codes += BLOCK, block = panel_block((void *)block, 1, 1)) {
        if (i % 2 == 0) {
            MULTIPLY(0, 4, 6, codes, stride, block);
            if (i > 0)
                TILE_STORE(1, out->of[i - 1], SUMS_BYTES);
        } else {
            MULTIPLY(1, 5, 7, codes, stride, block);
            TILE_STORE(0, out->of[i - 1], SUMS_BYTES);
        }
    }
    if (n % 2)
        TILE_STORE(0, out->of[n - 1], SUMS_BYTES);
    else
        TILE_STORE(1, out->of[n - 1], SUMS_BYTES);
}

/* A pointer of unknown origin, or compilers keep one for each row in more registers than there are.
 */
ALWAYS_INLINE const float *anew(const float *p) {
    __asm__("" : "+r"(p));
    return p;
}

/* AVX512-1 for one block. scale, sum: the first row's; blocks: of a row. */
ALWAYS_INLINE void add(bool has_min, const struct panel_block *block, const float *scale,
                       const float *sum, size_t blocks, int32_t (*sums)[OUTPUTS],
                       __m512 acc[ROWS]) {
    const __m512 d = block->run[0].d, m = has_min ? block->run[0].m : _mm512_setzero_ps();
    scale = anew(scale);
    sum = anew(sum);
    UNROLL_FOR(r, ROWS) {
        __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(sums[r]));
        acc[r] = _mm512_fmadd_ps(_mm512_mul_ps(d, _mm512_set1_ps(*scale)), dot, acc[r]);
        if (has_min)
            acc[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(*sum), acc[r]);
        scale += blocks;
        sum += blocks;
    }
}

/* Half of the rows that are next, with each block: a line holds two blocks. */
ALWAYS_INLINE void prefetch_rows(const int8_t *codes, size_t stride, uint32_t b) {
    codes += (size_t)b * BLOCK + (b % 2 ? ROWS / 2 : 0) * stride;
    UNROLL_FOR(r, ROWS / 2) {
        _mm_prefetch((const char *)codes + (size_t)r * stride, _MM_HINT_T0);
    }
}

/* ---- passes ---------------------------------------------------------------------------------- */

/* Blocks [b0, b1) of a chunk, for the rows from `row` on, of which the first `done` are another
 * tile's, too: that one has added these blocks. */
struct part {
    const struct pass *t;
    uint32_t b0, b1, row, done;
};

ALWAYS_INLINE void add_panel(bool has_min, const struct part *w, uint32_t p, struct ahead *ahead) {
    const struct act_rows *a = w->t->a;
    const size_t blocks = a->k / BLOCK, at = w->row * blocks + w->t->b0, y_stride = w->t->y_stride;
    const int8_t *codes = (const int8_t *)a->codes + at * BLOCK;
    const __mmask16 lanes = w->t->lanes[p], before = w->t->b0 + w->b0 == 0 ? 0 : lanes;
    float *y = w->t->y[p] + w->row * y_stride;
    struct sums sums;
    __m512 acc[ROWS];
    UNROLL_FOR(r, ROWS) {
        acc[r] = _mm512_maskz_loadu_ps(before, y + (size_t)r * y_stride);
    }
    for (uint32_t b = w->b0, n; b < w->b1; b += n) {
        const struct panel_block *block = panel_block(w->t->panel[p], b, 1);
        n = w->b1 - b < STEPS ? w->b1 - b : STEPS;
        multiply(codes + (size_t)b * BLOCK, a->k, block, n, &sums);
        for (uint32_t i = 0; i < n; i++) {
            if (p == 0)
                prefetch_rows(codes + ROWS * (size_t)a->k, a->k, b + i);
            else
                prefetch_ahead(ahead);
            add(has_min, panel_block((void *)block, i, 1), a->scale + at + b + i,
                a->sum + at + b + i, blocks, sums.of[i], acc);
        }
    }
    UNROLL_FOR(r, ROWS) {
        _mm512_mask_storeu_ps(y + (size_t)r * y_stride, (uint32_t)r < w->done ? 0 : lanes, acc[r]);
    }
}

/* Bytes of a chunk, codes plus the offset, become codes. */
static void take_offset_off(const struct pass *t, uint32_t panels) {
    const __m512i offset = _mm512_set1_epi8((char)t->offset);
    for (uint32_t p = 0; t->offset != 0 && p < panels; p++)
        for (uint32_t b = 0; b < t->blocks; b++) {
            struct panel_block *block = panel_block(t->panel[p], b, 1);
            UNROLL_FOR(g, GROUPS) {
                block->w[g] = _mm512_sub_epi8(block->w[g], offset);
            }
        }
}

/* The last tile ends with the last row. */
ALWAYS_INLINE void pass_rows(bool has_min, const struct pass *t) {
    struct ahead ahead = t->ahead;
    const uint32_t panels = t->panel[1] == t->panel[0] ? 1 : PANELS, rows = t->a->rows;
    ahead.lines *= 3; /* it was counted for tiles of six rows */
    DEBUG_ASSERT(rows >= ROWS);
    take_offset_off(t, panels);
    for (uint32_t b = 0; b < t->blocks; b += PART)
        for (uint32_t r = 0; r < rows; r += ROWS) {
            const uint32_t row = r + ROWS <= rows ? r : rows - ROWS;
            const uint32_t end = t->blocks - b < PART ? t->blocks : b + PART;
            const struct part w = {t, b, end, row, r - row};
            for (uint32_t p = 0; p < panels; p++)
                add_panel(has_min, &w, p, &ahead);
        }
}

static void pass(const struct pass *t) {
    pass_rows(false, t);
}
static void pass_min(const struct pass *t) {
    pass_rows(true, t);
}

static void product_codes(const struct weight *w, uint32_t n0, uint32_t n1,
                          const struct act_rows *a, float *y, size_t y_stride, void *scratch) {
    if (a->rows < ROWS_LEAST || a->bits != 8) {
        TIER(product_by)(NULL, w, n0, n1, a, y, y_stride, scratch);
        return;
    }
    set_shapes();
    TIER(product_by)
    (weight_traits_of(w->type)->has_min ? pass_min : pass, w, n0, n1, a, y, y_stride, scratch);
    TILES_END();
}

void amx_set_products(struct kernels *k) {
    const struct weight_traits *t;
    for (uint32_t i = 0; (t = weight_traits_at(i)); i++)
        if (t->run_values == BLOCK)
            k->product[i] = product_codes;
}
