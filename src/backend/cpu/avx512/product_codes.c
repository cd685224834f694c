/* SPDX-License-Identifier: Apache-2.0 */
/* product_codes.c: activations times quantized weights of every type, AVX-512.
 *
 * AVX512-1 An output is one float32 accumulator over the runs in order,
 *        acc = fma(d_u * scale_b, dot_u, acc)    and with a minimum    acc = fma(m_u, sum_u, acc)
 *    with dot_u exact in s32. All ways below do exactly this, so an output has the same bits in
 *    any company.
 *
 *        one row    16 outputs at a time; a block goes from the mapped weights to the sums without
 *                   a detour over memory (add_block of unpack.h)
 *        2 to 8     of 8 bits, without VNNI of narrow types (AVX512-3): 16 outputs at a time; a
 *                   block is multiplied with all rows while the next one is unpacked
 *                   (multiply_group of unpack.h)
 *        more       for each two panels (32 outputs)
 *                       for each chunk of 48 blocks
 *                           unpack the chunk of the weights into scratch
 *                           for each six rows of activations
 *                               accumulators from y, 24 sums in registers, accumulators to y;
 *                               with each block some lines of the next two panels are prefetched
 *
 * AVX512-2 A lane is an output; four of its codes meet four activations that are broadcast. Weights
 * are unsigned bytes as they are unpacked (a nibble of Q4_0 is its code plus 8), activations signed
 * ones, so sums start from minus that offset times the sum of the activations' codes. Activations
 * of 15 bits are two planes of bytes, or with one row what vector.h makes of them.
 *
 * AVX512-3 Without VNNI pairs of products are summed in 16 bits: two bytes of at most 128 times
 * codes from -128 to 127 are -32768 to 32512. Types with larger bytes have them cut into two halves
 * (factors_of), but for the high plane, whose codes are from -64 to 64; with one row they are
 * multiplied as words (split_bytes).
 */
#include "backend/cpu/avx512/product.h"

enum {
    CHUNK = 48,    /* blocks of 640 or 768 bytes: 60 or 72 KiB for two panels, in L2 */
    TILE_ROWS = 6, /* x 2 panels: 12 sums and 12 accumulators */
};

/* ---- sums ------------------------------------------------------------------------------------ */

/* dot[r][p] += groups [g0, g0 + n) of one plane. x[r]: the plane's 32 bytes. */
ALWAYS_INLINE void add_products(int rows, bool wide, const struct panel_block *const block[PANELS],
                                int g0, int n, const int8_t *const x[], __m512i dot[][PANELS]) {
    UNROLL_FOR(i, n) {
        struct factors f[PANELS];
        UNROLL_FOR(p, PANELS) {
            f[p] = factors_of(keep(block[p]->w[g0 + i]), wide);
        }
        UNROLL_FOR(r, rows) {
            __m512i c = keep(broadcast_group(x[r] + 4 * (g0 + i)));
            UNROLL_FOR(p, PANELS) {
                UNROLL_FOR(part, f[p].count) {
                    dot[r][p] = keep(dot4_u8s8(dot[r][p], f[p].part[part], c));
                }
            }
        }
    }
}

/* Where the sum of a run of activations starts: AVX512-2. */
ALWAYS_INLINE int32_t start_of(int offset, int runs, const int32_t *codes_sum16, size_t run) {
    if (runs == 2)
        return -offset * codes_sum16[run];
    return -offset * (codes_sum16[2 * run] + codes_sum16[2 * run + 1]);
}

/* Of run u of block `at` of all rows. */
ALWAYS_INLINE __m512i start_of_run(const struct pass *t, int runs, size_t at, int u) {
    if (t->offset == 0)
        return _mm512_setzero_si512();
    const size_t run = at * (size_t)runs + (size_t)u;
    return _mm512_set1_epi32(start_of(t->offset, runs, t->a->codes_sum16, run));
}

/* AVX512-1 and AVX512-2 for `rows` rows from row r0 on. */
ALWAYS_INLINE void tile(int rows, int runs, int planes, bool wide, const struct pass *t,
                        uint32_t r0, struct ahead *ahead) {
    const struct act_rows *a = t->a;
    const size_t blocks = a->k / BLOCK;
    const float *sums = runs == 1 ? a->sum : a->sum16;
    __m512 acc[TILE_ROWS][PANELS];
    UNROLL_FOR(r, rows) {
        UNROLL_FOR(p, PANELS) {
            const float *y = t->y[p] + (r0 + (size_t)r) * t->y_stride;
            acc[r][p] = _mm512_maskz_loadu_ps(t->b0 == 0 ? 0 : t->lanes[p], y);
        }
    }
    for (uint32_t b = 0; b < t->blocks; b++) {
        const struct panel_block *block[PANELS];
        const int8_t *x[TILE_ROWS];
        UNROLL_FOR(p, PANELS) {
            block[p] = (const struct panel_block *)(t->panel[p] + b * panel_block_bytes(runs));
        }
        UNROLL_FOR(r, rows) { /* the next tile's activations, a row of which is a short stretch */
            size_t at = (r0 + (size_t)rows + (size_t)r) * blocks + t->b0 + b;
            _mm_prefetch((const char *)a->codes + at * BLOCK * (size_t)planes, _MM_HINT_T0);
        }
        prefetch_ahead(ahead);
        UNROLL_FOR(u, runs) {
            __m512i dot[TILE_ROWS][PANELS];
            UNROLL_FOR(r, rows) {
                size_t at = (r0 + (size_t)r) * blocks + t->b0 + b;
                x[r] = (const int8_t *)a->codes + at * BLOCK * (size_t)planes;
                __m512i start = planes == 1 ? start_of_run(t, runs, at, u) : _mm512_setzero_si512();
                UNROLL_FOR(p, PANELS) {
                    dot[r][p] = start;
                }
            }
            add_products(rows, wide && planes == 1, block, u * GROUPS / runs, GROUPS / runs, x,
                         dot);
            if (planes == 2) {
                UNROLL_FOR(r, rows) {
                    size_t at = (r0 + (size_t)r) * blocks + t->b0 + b;
                    __m512i start = start_of_run(t, runs, at, u);
                    x[r] += BLOCK;
                    UNROLL_FOR(p, PANELS) {
                        dot[r][p] = _mm512_add_epi32(_mm512_slli_epi32(dot[r][p], 8), start);
                    }
                }
                add_products(rows, wide, block, u * GROUPS / runs, GROUPS / runs, x, dot);
            }
            UNROLL_FOR(r, rows) {
                size_t at = (r0 + (size_t)r) * blocks + t->b0 + b;
                __m512 scale = _mm512_set1_ps(a->scale[at]);
                __m512 sum = _mm512_set1_ps(sums[at * (size_t)runs + (size_t)u]);
                UNROLL_FOR(p, PANELS) {
                    const struct panel_run *run = &block[p]->run[u];
                    acc[r][p] = _mm512_fmadd_ps(_mm512_mul_ps(run->d, scale),
                                                _mm512_cvtepi32_ps(dot[r][p]), acc[r][p]);
                    if (t->has_min)
                        acc[r][p] = _mm512_fmadd_ps(run->m, sum, acc[r][p]);
                }
            }
        }
    }
    UNROLL_FOR(r, rows) {
        UNROLL_FOR(p, PANELS) {
            float *y = t->y[p] + (r0 + (size_t)r) * t->y_stride;
            _mm512_mask_storeu_ps(y, t->lanes[p], acc[r][p]);
        }
    }
}

/* ---- passes ---------------------------------------------------------------------------------- */

/* Tiles of six rows; the last two are of equal size, or one more: a tile of one or two rows takes
 * about as long as one of four, since its sums wait for each other (docs/speed.md). */
ALWAYS_INLINE void pass_rows(int runs, int planes, bool wide, const struct pass *t) {
    const uint32_t rows = t->a->rows;
    struct ahead ahead = t->ahead;
    for (uint32_t r = 0, n; r < rows; r += n) {
        const uint32_t left = rows - r;
        n = left <= TILE_ROWS ? left : left < 2 * TILE_ROWS ? (left + 1) / 2 : TILE_ROWS;
        switch (n) {
        case 6:
            tile(6, runs, planes, wide, t, r, &ahead);
            break;
        case 5:
            tile(5, runs, planes, wide, t, r, &ahead);
            break;
        case 4:
            tile(4, runs, planes, wide, t, r, &ahead);
            break;
        case 3:
            tile(3, runs, planes, wide, t, r, &ahead);
            break;
        case 2:
            tile(2, runs, planes, wide, t, r, &ahead);
            break;
        default:
            tile(1, runs, planes, wide, t, r, &ahead);
            break;
        }
    }
}

#define DEFINE_PASS(name, runs, planes, wide)                                                      \
    static void name(const struct pass *t) {                                                       \
        pass_rows(runs, planes, wide, t);                                                          \
    }
DEFINE_PASS(pass_32_8, 1, 1, false)
DEFINE_PASS(pass_32_16, 1, 2, false)
DEFINE_PASS(pass_16_8, 2, 1, false)
DEFINE_PASS(pass_16_16, 2, 2, false)
#ifndef KVASIR_AVX512VNNI
DEFINE_PASS(pass_wide_8, 1, 1, true)
DEFINE_PASS(pass_wide_16, 1, 2, true)
#endif

static pass_fn *pass_of(int runs, int planes, bool wide) {
    static pass_fn *const PASSES[2][2] = {{pass_32_8, pass_32_16}, {pass_16_8, pass_16_16}};
#ifndef KVASIR_AVX512VNNI
    static pass_fn *const WIDE[2] = {pass_wide_8, pass_wide_16}; /* none of them has two runs */
    if (wide)
        return WIDE[planes - 1];
#endif
    (void)wide;
    return PASSES[runs - 1][planes - 1];
}

/* ---- panels ---------------------------------------------------------------------------------- */

static const struct panel_type *type_of(enum weight_type t) {
#define TYPE(name, NAME, offset, wide)                                                             \
    {WEIGHT_##NAME, offset, wide, TIER(unpack_##name), TIER(row_##name), TIER(few_##name)},
    static const struct panel_type TYPES[] = {PANEL_TYPES(TYPE)};
    size_t i = 0;
    while (i < sizeof TYPES / sizeof *TYPES && TYPES[i].type != t)
        i++;
    ASSERT(i < sizeof TYPES / sizeof *TYPES); /* set_products left it out otherwise */
    return &TYPES[i];
}

/* What a call is about. */
struct product {
    const struct panel_type *type;
    pass_fn *pass; /* of many rows */
    const struct weight *w;
    const struct act_rows *a;
    int runs, planes;
    bool has_min;
    size_t row_bytes; /* of weights */
    uint32_t blocks, n0, n1;
    float *y;
    size_t y_stride;
};

/* The panel with outputs [j, n1): it starts earlier if the matrix ends too soon. lanes: of those
 * outputs; *y: where lane 0 belongs. `step` outputs later is what is read next. */
static __mmask16 panel_at(const struct product *p, uint32_t j, uint32_t step,
                          struct panel_rows *rows, float **y) {
    DEBUG_ASSERT(j < p->n1 && p->w->n >= OUTPUTS);
    uint32_t first = j + OUTPUTS <= p->w->n ? j : p->w->n - OUTPUTS;
    const uint8_t *data = p->w->data;
    *rows = (struct panel_rows){.w = p->w,
                                .first = first,
                                .base = data + first * p->row_bytes,
                                .stride = p->row_bytes,
                                .next = data + (j + (size_t)step) * p->row_bytes};
    *y = p->y + ((ptrdiff_t)first - (ptrdiff_t)p->n0);
    return (__mmask16)(first_lanes(p->n1 - first) & ~first_lanes(j - first));
}

/* Block b of a row of activations, as store_act_codes leaves it, as halves. */
ALWAYS_INLINE __m512i block_halves(const int8_t *codes, int planes) {
    __m512i c = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)codes));
    if (planes == 2) {
        __m256i low = _mm256_loadu_si256((const __m256i *)codes + 1);
        c = _mm512_add_epi16(_mm512_slli_epi16(c, 8), _mm512_cvtepi8_epi16(low));
    }
    return halves_of_runs(c);
}

/* Where the sums of the first n runs of activations start. */
static void fill_starts(const struct product *p, uint32_t n, int32_t *start) {
    for (uint32_t i = 0; p->type->offset != 0 && i < n; i++)
        start[i] = start_of(p->type->offset, p->runs, p->a->codes_sum16, i);
}

/* The row of activations; in scratch what is not there yet. */
static struct act_row only_row(const struct product *p, void *scratch) {
    const struct act_rows *a = p->a;
    const bool halves = p->planes == 2 || (p->type->wide && PAIRS_OVERFLOW);
    const uint32_t runs = p->blocks * (uint32_t)p->runs;
    int32_t *start = scratch;
    uint8_t *codes = (uint8_t *)(start + round_up(runs, 16));
    fill_starts(p, runs, start);
    for (uint32_t b = 0; halves && b < p->blocks; b++) {
        const int8_t *from = (const int8_t *)a->codes + (size_t)b * BLOCK * (size_t)p->planes;
        _mm512_storeu_si512(codes + 2 * BLOCK * (size_t)b, block_halves(from, p->planes));
    }
    return (struct act_row){.codes = halves ? codes : a->codes,
                            .start = start,
                            .scale = a->scale,
                            .sums = p->runs == 1 ? a->sum : a->sum16,
                            .halves = halves};
}

/* One row of activations: no detour of the weights over scratch. */
static void product_row(const struct product *p, void *scratch) {
    const struct act_row row = only_row(p, scratch);
    for (uint32_t j = p->n0; j < p->n1; j += OUTPUTS) {
        struct panel_rows rows;
        float *y;
        __mmask16 lanes = panel_at(p, j, OUTPUTS, &rows, &y);
        _mm512_mask_storeu_ps(y, lanes, p->type->row(&rows, &row, p->blocks));
    }
}

/* A few rows of activations: a block of the weights is multiplied while the next is unpacked. */
static void product_few(const struct product *p, void *scratch) {
    const struct act_rows *a = p->a;
    const uint32_t runs = a->rows * p->blocks * (uint32_t)p->runs;
    int32_t *start = scratch;
    fill_starts(p, runs, start);
    const struct act_few few = {.rows = a->rows,
                                .codes = a->codes,
                                .start = start,
                                .scale = a->scale,
                                .sums = p->runs == 1 ? a->sum : a->sum16};
    for (uint32_t j = p->n0; j < p->n1; j += OUTPUTS) {
        struct panel_rows rows;
        float *y;
        __mmask16 lanes = panel_at(p, j, OUTPUTS, &rows, &y);
        p->type->few(&rows, &few, p->blocks, lanes, y, p->y_stride);
    }
}

/* Of the two panels that begin at `next`: their share for blocks [b, b + blocks). */
static struct ahead ahead_of(const struct product *p, const uint8_t *next, uint32_t b,
                             uint32_t blocks) {
    const size_t bytes = PANELS * OUTPUTS * p->row_bytes;
    const uint32_t tiles = (p->a->rows + TILE_ROWS - 1) / TILE_ROWS;
    const size_t first = bytes * b / p->blocks, end = bytes * (b + blocks) / p->blocks;
    return (struct ahead){.at = (const char *)next + first,
                          .end = (const char *)next + end,
                          .lines = (uint32_t)((end - first) / 64 / (blocks * tiles)) + 1};
}

static void product_panels(const struct product *p, void *scratch) {
    struct pass t = {
        .a = p->a, .offset = p->type->offset, .has_min = p->has_min, .y_stride = p->y_stride};
    for (uint32_t j = p->n0; j < p->n1; j += PANELS * OUTPUTS) {
        struct panel_rows rows[PANELS];
        uint32_t panels = p->n1 - j > OUTPUTS ? PANELS : 1;
        for (uint32_t i = 0; i < PANELS; i++)
            t.lanes[i] =
                i < panels ? panel_at(p, j + i * OUTPUTS, PANELS * OUTPUTS, &rows[i], &t.y[i]) : 0;
        for (uint32_t b = 0; b < p->blocks; b += CHUNK) {
            t.b0 = b;
            t.blocks = p->blocks - b < CHUNK ? p->blocks - b : CHUNK;
            for (uint32_t i = 0; i < panels; i++) {
                uint8_t *panel = (uint8_t *)scratch + i * t.blocks * panel_block_bytes(p->runs);
                p->type->unpack(&rows[i], b, t.blocks, panel);
                t.panel[i] = panel;
            }
            if (panels < PANELS)
                t.panel[1] = t.panel[0], t.y[1] = t.y[0];
            t.ahead = ahead_of(p, rows[0].next, b, t.blocks);
            p->pass(&t);
        }
    }
}

/* A matrix with fewer rows than a panel: filled from the definition's parts, the last row standing
 * in for those that are missing, all inputs at once. */
static void product_small(const struct product *p, void *scratch) {
    const struct weight_traits *traits = weight_traits_of(p->w->type);
    const uint32_t k = p->a->k, run = traits->run_values;
    float *d = scratch, *m = d + k / run;
    int8_t *codes = (int8_t *)(m + k / run);
    uint8_t *panel = (uint8_t *)scratch + ((size_t)k / run * 8 + k + 63) / 64 * 64;
    for (uint32_t o = 0; o < OUTPUTS; o++) {
        traits->parts(p->w, o < p->w->n ? o : p->w->n - 1, codes, d, m);
        for (uint32_t i = 0; i < k; i++) {
            struct panel_block *b = panel_block(panel, i / BLOCK, p->runs);
            ((uint8_t *)&b->w[i % BLOCK / 4])[4 * o + i % 4] =
                (uint8_t)(codes[i] + p->type->offset);
            ((float *)&b->run[i % BLOCK / run].d)[o] = d[i / run];
            ((float *)&b->run[i % BLOCK / run].m)[o] = m[i / run];
        }
    }
    const struct pass t = {.a = p->a,
                           .panel = {panel, panel},
                           .blocks = p->blocks,
                           .offset = p->type->offset,
                           .has_min = p->has_min,
                           .lanes = {first_lanes(p->n1) & ~first_lanes(p->n0), 0},
                           .y = {p->y - p->n0, p->y - p->n0},
                           .y_stride = p->y_stride};
    p->pass(&t);
}

void TIER(product_by)(pass_fn *pass, const struct weight *w, uint32_t n0, uint32_t n1,
                      const struct act_rows *a, float *y, size_t y_stride, void *scratch) {
    const struct weight_traits *traits = weight_traits_of(w->type);
    struct product p = {.type = type_of(w->type),
                        .pass = pass,
                        .w = w,
                        .a = a,
                        .runs = BLOCK / (int)traits->run_values,
                        .planes = a->bits / 8,
                        .has_min = traits->has_min,
                        .row_bytes = weight_row_bytes(traits, w->k),
                        .blocks = a->k / BLOCK,
                        .n0 = n0,
                        .n1 = n1,
                        .y = y,
                        .y_stride = y_stride};
    ASSERT(n0 <= n1 && n1 <= w->n && a->k == w->k && a->rows > 0);
    ASSERT(a->bits == 8 || a->bits == 16);
    if (!pass)
        p.pass = pass_of(p.runs, p.planes, p.type->wide);
    if (w->n < OUTPUTS)
        product_small(&p, scratch);
    else if (a->rows == 1)
        product_row(&p, scratch);
    else if (a->rows <= FEW_ROWS && p.planes == 1 && !(p.type->wide && PAIRS_OVERFLOW))
        product_few(&p, scratch);
    else
        product_panels(&p, scratch);
}

static void product_codes(const struct weight *w, uint32_t n0, uint32_t n1,
                          const struct act_rows *a, float *y, size_t y_stride, void *scratch) {
    TIER(product_by)(NULL, w, n0, n1, a, y, y_stride, scratch);
}

void TIER(set_products)(struct kernels *k) {
    const struct weight_traits *t;
    for (uint32_t i = 0; (t = weight_traits_at(i)); i++)
        if (t->run_values > 0)
            k->product[i] = product_codes;
}
