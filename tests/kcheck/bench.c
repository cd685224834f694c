/* SPDX-License-Identifier: Apache-2.0 */
/* bench.c: speeds of the kernels, one thread.
 *
 *   L2     the data of all passes fits in half of a 512 KiB second-level cache
 *   DRAM   256 MiB, more than the last-level cache of the machines at hand
 *   ref    how many times faster than ref/ on the data in L2
 *
 * GB/s counts what must be read: tiles, weights, or the inputs of the other kernels. Data is random
 * (a handful of different tiles and rows, repeated at distinct addresses); zeros would flatter
 * denormals, branches and memory alike. A figure is a median of times that the thread itself ran;
 * the minimum would pick up the errors of a virtual machine's clock.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kcheck.h"

enum {
    L2_BYTES = 256 << 10,
    DRAM_BYTES = 256 << 20,
    PATTERNS = 16, /* different tiles */
    ROWS_MAX = 64
};

typedef void pass_fn(void *ctx);

/* Seconds this thread has run: time in which others had its core does not count. */
static double thread_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of a pass: the median of stretches of at least 1 ms; at least 3 of them and `budget`
 * seconds in all. */
static double pass_seconds(pass_fn *pass, void *ctx, double budget) {
    enum { STRETCHES = 128 };
    double took[STRETCHES], total = 0;
    int n = 0, passes = 1;
    pass(ctx); /* warms caches and pages; not counted */
    while (n < STRETCHES && (n < 3 || total < budget)) {
        double start = thread_seconds();
        for (int i = 0; i < passes; i++)
            pass(ctx);
        double stretch = thread_seconds() - start;
        if (n == 0 && stretch < 1e-3) { /* too short for the clock: longer stretches */
            passes *= 2;
            continue;
        }
        took[n++] = stretch / passes;
        total += stretch;
    }
    qsort(took, (size_t)n, sizeof *took, compare_doubles);
    return took[n / 2];
}

/* bytes and products of one tile or output, seconds of each; 0: not measured. */
static void print_speed(const struct tier *t, const char *kernel, const char *text, double bytes,
                        double products, double l2, double dram, double slow) {
    char from_dram[32] = "-";
    if (dram > 0)
        snprintf(from_dram, sizeof from_dram, "%.2f GB/s", bytes / dram * 1e-9);
    printf("%-5s %-7s %-27s L2 %7.2f GB/s %7.2f G mul/s  DRAM %11s  %6.1f x ref\n", t->name, kernel,
           text, bytes / l2 * 1e-9, products / l2 * 1e-9, from_dram, slow / l2);
    fflush(stdout);
}

static void *take(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!p) {
        fprintf(stderr, "kcheck: no memory for a bench of %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

/* ---- attention ------------------------------------------------------------------------------- */

struct tile_bench {
    const struct kernels *k; /* whose kernels are timed */
    struct tile_layout l;
    uint8_t *tiles;
    size_t count;
    uint32_t rows;
    struct query_rows q;
    float *p, *out; /* [rows][64], [rows][head_dim] */
};

static void pass_score(void *ctx) {
    struct tile_bench *b = ctx;
    const struct kv_format f = b->l.format;
    score_tile_fn *fn = kv_format_exact(f)  ? b->k->score_exact
                        : f.kind == KV_TILE ? b->k->score_channels
                                            : b->k->score_affine;
    for (size_t i = 0; i < b->count; i++)
        fn(&b->l, b->tiles + i * b->l.bytes, &b->q, b->p, TILE_TOKENS);
}

static void pass_value(void *ctx) {
    struct tile_bench *b = ctx;
    value_tile_fn *fn = kv_format_exact(b->l.format) ? b->k->value_exact : b->k->value_affine;
    for (size_t i = 0; i < b->count; i++)
        fn(&b->l, b->tiles + i * b->l.bytes, b->p, TILE_TOKENS, b->rows, b->out, b->l.head_dim);
}

static void make_tiles(struct tile_bench *b, size_t bytes) {
    b->count = bytes / b->l.bytes;
    b->tiles = take(b->count * b->l.bytes);
    for (size_t i = 0; i < b->count; i++) {
        uint8_t *tile = b->tiles + i * b->l.bytes;
        if (i >= PATTERNS) {
            memcpy(tile, tile - PATTERNS * b->l.bytes, b->l.bytes);
            continue;
        }
        static float rows[TILE_TOKENS * HEAD_DIM_MAX];
        fill(rows, (size_t)TILE_TOKENS * b->l.head_dim, FILL_NORMAL);
        tile_encode(&b->l, tile, rows);
    }
}

static void make_rows(struct tile_bench *b) {
    uint32_t dim = b->l.head_dim;
    size_t n = (size_t)b->rows * dim;
    float *q = take(n * sizeof *q);
    b->q = (struct query_rows){b->rows, dim, take(n * 4), take(n * 2), take(n), take(b->rows * 4)};
    b->p = take((size_t)b->rows * TILE_TOKENS * sizeof *b->p);
    b->out = take(n * sizeof *b->out);
    fill(q, n, FILL_NORMAL);
    fill(b->p, (size_t)b->rows * TILE_TOKENS, FILL_UNIFORM);
    fill(b->out, n, FILL_NORMAL);
    b->k->query_pack(q, dim, 1, &b->q);
    free(q);
}

static void free_rows(struct tile_bench *b) {
    free(b->q.f32);
    free(b->q.codes);
    free(b->q.sum32);
    free(b->q.scale);
    free(b->p);
    free(b->out);
}

static double tile_seconds(const struct kernels *k, const struct tile_bench *like, pass_fn *pass,
                           double budget) {
    struct tile_bench b = *like;
    b.k = k;
    make_rows(&b);
    double s = pass_seconds(pass, &b, budget) / (double)b.count;
    free_rows(&b);
    return s;
}

/* Tiles at two sizes, made when first needed. */
struct tile_sets {
    struct tile_bench l2, dram;
};

static void bench_tiles(const struct tier *t, struct tile_sets *sets, uint32_t rows) {
    struct tile_bench *b = &sets->l2;
    bool keys = b->l.kind == TILE_K;
    pass_fn *pass = keys ? pass_score : pass_value;
    uint32_t dim = b->l.head_dim;
    char name[24], text[64];
    snprintf(text, sizeof text, "%s D%u rows %u", kv_format_name(b->l.format, name), dim, rows);
    if (!family_begin(t, keys ? "score" : "value", text))
        return;
    b->rows = sets->dram.rows = rows;
    if (!b->tiles)
        make_tiles(b, L2_BYTES);
    double fast = tile_seconds(&t->k, b, pass, 0.05), dram = 0;
    struct tile_bench few = *b;
    few.count = 4;
    double slow = tile_seconds(&ref, &few, pass, 0);
    if (rows <= 8 && t->k.tier != CPU_TIER_REF) {
        if (!sets->dram.tiles)
            make_tiles(&sets->dram, DRAM_BYTES);
        dram = tile_seconds(&t->k, &sets->dram, pass, 0);
    }
    print_speed(t, keys ? "score" : "value", text, b->l.bytes, (double)rows * TILE_TOKENS * dim,
                fast, dram, slow);
}

static void bench_attention(const struct tier *t) {
    static const struct kv_format FORMATS[] = {
        {8, SCALAR_F16, 64, KV_ROWS}, {6, SCALAR_F16, 64, KV_ROWS},  {5, SCALAR_F16, 64, KV_ROWS},
        {4, SCALAR_F16, 64, KV_ROWS}, {3, SCALAR_F16, 64, KV_ROWS},  {2, SCALAR_F16, 64, KV_ROWS},
        {16, SCALAR_F16, 0, KV_ROWS}, {16, SCALAR_BF16, 0, KV_ROWS}, {32, SCALAR_F32, 0, KV_ROWS},
        {8, SCALAR_F16, 0, KV_TILE},  {6, SCALAR_F16, 0, KV_TILE},   {5, SCALAR_F16, 0, KV_TILE},
        {4, SCALAR_F16, 0, KV_TILE},  {3, SCALAR_F16, 0, KV_TILE},   {2, SCALAR_F16, 0, KV_TILE}};
    static const uint32_t ROWS[] = {1, 3, 8, ROWS_MAX};
    for (int kind = TILE_K; kind <= TILE_V; kind++)
        for (uint32_t dim = 64; dim <= 128; dim += 64)
            for (size_t f = 0; f < sizeof FORMATS / sizeof *FORMATS; f++) {
                struct tile_sets sets = {0};
                tile_layout_init(&sets.l2.l, (enum tile_kind)kind, FORMATS[f], dim);
                sets.dram.l = sets.l2.l;
                for (size_t r = 0; r < sizeof ROWS / sizeof *ROWS; r++)
                    bench_tiles(t, &sets, ROWS[r]);
                free(sets.l2.tiles);
                free(sets.dram.tiles);
            }
}

/* ---- pages that are encoded whole ------------------------------------------------------------ */

struct page_bench {
    const struct kernels *k;
    struct tile_layout l, from;
    const uint8_t *shadow; /* a tile of `from` */
    const float *rows;     /* [64][head_dim] */
    uint8_t *tile;
};

static void pass_encode_tile(void *ctx) {
    struct page_bench *b = ctx;
    b->k->encode_tile(&b->l, b->tile, &b->from, b->shadow);
}

/* What a page of rows costs that are encoded as they come. */
static void pass_encode_rows(void *ctx) {
    struct page_bench *b = ctx;
    for (uint32_t t = 0; t < TILE_TOKENS; t++)
        b->k->encode_row(&b->l, b->tile, t, b->rows + (size_t)t * b->l.head_dim);
}

static void bench_page(const struct tier *t, struct page_bench *b) {
    char name[24], text[64];
    const bool whole = kv_format_whole(b->l.format);
    const uint32_t dim = b->l.head_dim;
    snprintf(text, sizeof text, "%c %s D%u", b->l.kind == TILE_K ? 'K' : 'V',
             kv_format_name(b->l.format, name), dim);
    if (!family_begin(t, "tile", text))
        return;
    pass_fn *pass = whole ? pass_encode_tile : pass_encode_rows;
    b->k = &ref;
    const double slow = pass_seconds(pass, b, 0);
    b->k = &t->k;
    const double fast = pass_seconds(pass, b, 0.05);
    printf("%-5s %-7s %-27s L1 %7.2f us a tile %6.2f ns a value  %19.1f x ref\n", t->name, "tile",
           text, fast * 1e6, fast * 1e9 / TILE_TOKENS / dim, slow / fast);
    fflush(stdout);
}

static void bench_pages(const struct tier *t) {
    static const struct kv_format FORMATS[] = {
        {8, SCALAR_F16, 64, KV_ROWS}, {4, SCALAR_F16, 64, KV_ROWS}, {8, SCALAR_F16, 64, KV_ROTATED},
        {5, SCALAR_F16, 0, KV_TILE},  {4, SCALAR_F16, 0, KV_TILE},  {3, SCALAR_F16, 0, KV_TILE},
        {2, SCALAR_F16, 0, KV_TILE}};
    for (uint32_t dim = 64; dim <= 128; dim += 64)
        for (int kind = TILE_K; kind <= TILE_V; kind++)
            for (size_t f = 0; f < sizeof FORMATS / sizeof *FORMATS; f++) {
                struct page_bench b = {.k = NULL};
                tile_layout_init(&b.l, (enum tile_kind)kind, FORMATS[f], dim);
                tile_layout_init(&b.from, (enum tile_kind)kind,
                                 (struct kv_format){16, SCALAR_F16, 0, KV_ROWS}, dim);
                float *rows = take((size_t)TILE_TOKENS * dim * sizeof *rows);
                uint8_t *shadow = take(b.from.bytes);
                b.tile = take(b.l.bytes);
                fill(rows, (size_t)TILE_TOKENS * dim, FILL_NORMAL);
                tile_encode(&b.from, shadow, rows);
                memset(b.tile, 0, b.l.bytes);
                b.rows = rows;
                b.shadow = shadow;
                bench_page(t, &b);
                free(rows);
                free(shadow);
                free(b.tile);
            }
}

struct basis_bench {
    const struct kernels *k;
    uint32_t dim, rows;
    float *matrix, *x, *y; /* [dim][dim], [rows][dim] */
};

static void pass_basis(void *ctx) {
    struct basis_bench *b = ctx;
    b->k->basis_rows(b->matrix, b->dim, b->x, b->dim, b->rows, b->y);
}

static void pass_hadamard(void *ctx) {
    struct basis_bench *b = ctx;
    b->k->hadamard_rows(b->x, b->dim, b->rows);
}

static void bench_basis(const struct tier *t) {
    static const uint32_t ROWS[] = {1, 3, 64};
    for (uint32_t dim = 64; dim <= 256; dim *= 2)
        for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
            const size_t n = (size_t)ROWS[i] * dim;
            struct basis_bench b = {NULL,        dim,
                                    ROWS[i],     take((size_t)dim * dim * sizeof(float)),
                                    take(n * 4), take(n * 4)};
            char text[32];
            snprintf(text, sizeof text, "D%u rows %u", dim, ROWS[i]);
            fill(b.matrix, (size_t)dim * dim, FILL_NORMAL);
            fill(b.x, n, FILL_NORMAL);
            if (family_begin(t, "basis", text)) {
                b.k = &ref;
                const double slow = pass_seconds(pass_basis, &b, 0);
                b.k = &t->k;
                const double fast = pass_seconds(pass_basis, &b, 0.05);
                const double turn = pass_seconds(pass_hadamard, &b, 0.05);
                print_speed(t, "basis", text, (double)dim * dim * 4, (double)n * dim, fast, 0,
                            slow);
                printf("%-5s %-7s %-27s L1 %7.2f ns a row, Hadamard %.2f\n", t->name, "basis", text,
                       fast * 1e9 / ROWS[i], turn * 1e9 / ROWS[i]);
            }
            free(b.matrix);
            free(b.x);
            free(b.y);
        }
}

/* ---- centres --------------------------------------------------------------------------------- */

enum { CENTRE_PAIRS = 8 };

struct centre_bench {
    const struct kernels *k;
    uint32_t rows, index[CENTRE_PAIRS];
    float waves[CENTRE_PAIRS * 2 * TILE_TOKENS], ab[ROWS_MAX * CENTRE_PAIRS * 2];
    float scores[ROWS_MAX * TILE_TOKENS];
};

/* Its tables are hot: they serve every tile of a head. */
static void pass_centre(void *ctx) {
    struct centre_bench *b = ctx;
    b->k->centre_tile(b->waves, b->index, CENTRE_PAIRS, b->ab, b->rows, b->scores, TILE_TOKENS);
}

static void bench_centre(const struct tier *t) {
    static const uint32_t ROWS[] = {1, 3, 7, ROWS_MAX};
    static struct centre_bench b;
    for (uint32_t j = 0; j < CENTRE_PAIRS; j++)
        b.index[j] = j;
    fill(b.waves, sizeof b.waves / sizeof *b.waves, FILL_UNIFORM);
    fill(b.ab, sizeof b.ab / sizeof *b.ab, FILL_ZERO); /* scores stay as they are */
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        char text[32];
        snprintf(text, sizeof text, "%d pairs, rows %u", CENTRE_PAIRS, ROWS[i]);
        if (!family_begin(t, "centre", text))
            continue;
        b.rows = ROWS[i];
        b.k = &ref;
        double slow = pass_seconds(pass_centre, &b, 0);
        b.k = &t->k;
        double fast = pass_seconds(pass_centre, &b, 0.05);
        print_speed(t, "centre", text, sizeof b.waves, 2.0 * CENTRE_PAIRS * TILE_TOKENS * ROWS[i],
                    fast, 0, slow);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

struct product_bench {
    const struct kernels *k;
    struct weight w;
    struct act_rows a;
    float *y;
    void *scratch;
};

static void pass_product(void *ctx) {
    struct product_bench *b = ctx;
    uint32_t step = 8 * PRODUCT_PANEL; /* as work items cut it */
    for (uint32_t n = 0; n < b->w.n; n += step)
        b->k->product[weight_index(b->w.type)](&b->w, n, n + step < b->w.n ? n + step : b->w.n,
                                               &b->a, b->y, step, b->scratch);
}

/* n / m copies of the m rows of a matrix's array. */
static void *repeat(const void *rows, size_t bytes, uint32_t m, uint32_t n) {
    uint8_t *p = take(bytes / m * n);
    for (uint32_t j = 0; j < n; j += m)
        memcpy(p + bytes / m * j, rows, bytes / m * (n - j < m ? n - j : m));
    free((void *)rows);
    return p;
}

/* `bytes` of weights with their scales; rows repeat after the first 64. */
static void make_product_weight(struct product_bench *b, enum weight_type type, uint32_t k,
                                size_t bytes) {
    enum { DIFFERENT = 64 };
    struct weight *w = &b->w;
    weight_shape(w, type, 0, DIFFERENT, k);
    struct weight_sizes s = weight_sizes(w);
    make_weight(w, false, take);
    w->n = (uint32_t)(bytes * DIFFERENT / (s.data + s.scales + s.biases));
    w->data = repeat(w->data, s.data, DIFFERENT, w->n);
    w->scales = w->scales ? repeat(w->scales, s.scales, DIFFERENT, w->n) : NULL;
    w->biases = w->biases ? repeat(w->biases, s.biases, DIFFERENT, w->n) : NULL;
}

static void free_weight(struct weight *w) {
    free((void *)w->data);
    free((void *)w->scales);
    free((void *)w->biases);
}

static double product_seconds(const struct kernels *k, struct product_bench *b, double budget) {
    b->k = k;
    for (uint32_t row = 0; row < b->a.rows; row++)
        k->act_pack(&b->a, row);
    return pass_seconds(pass_product, b, budget) / b->w.n;
}

static void bench_product(const struct tier *t, const struct weight_traits *traits, int bits,
                          uint32_t rows) {
    struct product_bench b;
    uint32_t k = 1536;
    char text[64];
    snprintf(text, sizeof text, "%s act %d rows %u", traits->name, bits, rows);
    if (!family_begin(t, "product", text))
        return;
    size_t n = (size_t)rows * k;
    float *x = take(n * 4);
    fill(x, n, FILL_NORMAL);
    b.a = (struct act_rows){.x = x, .rows = rows, .k = k, .bits = bits};
    b.a.codes = take(n * 2);
    b.a.scale = take(n / 8);
    b.a.sum = take(n / 8);
    b.a.sum16 = take(n / 4);
    b.a.codes_sum16 = take(n / 4);
    b.y = take((size_t)rows * 8 * PRODUCT_PANEL * 4);
    b.scratch = take(product_scratch_bytes(k));
    make_product_weight(&b, traits->type, k, traits->type == WEIGHT_F32 ? 2 * L2_BYTES : L2_BYTES);
    struct weight_sizes sizes = weight_sizes(&b.w);
    double row_bytes = (double)(sizes.data + sizes.scales + sizes.biases) / b.w.n;
    double l2 = product_seconds(&t->k, &b, 0.05), slow = product_seconds(&ref, &b, 0), dram = 0;
    free_weight(&b.w);
    if (rows <= 8 && t->k.tier != CPU_TIER_REF) {
        make_product_weight(&b, traits->type, k, DRAM_BYTES);
        dram = product_seconds(&t->k, &b, 0);
        free_weight(&b.w);
    }
    print_speed(t, "product", text, row_bytes, (double)rows * k, l2, dram, slow);
    free(x);
    free(b.a.codes);
    free(b.a.scale);
    free(b.a.sum);
    free(b.a.sum16);
    free(b.a.codes_sum16);
    free(b.y);
    free(b.scratch);
}

static void bench_products(const struct tier *t) {
    static const uint32_t ROWS[] = {1, 8, ROWS_MAX};
    const struct weight_traits *traits;
    for (uint32_t i = 0; (traits = weight_traits_at(i)); i++)
        for (int bits = 8; bits <= (traits->run_values > 0 ? 16 : 8); bits += 8)
            for (size_t r = 0; r < sizeof ROWS / sizeof *ROWS; r++)
                bench_product(t, traits, bits, ROWS[r]);
}

/* ---- the rest: small rows, data in L1 -------------------------------------------------------- */

enum { SMALL = 1536, TIMES = 64 };

struct small_bench {
    const struct kernels *k;
    float *x, *y, *z; /* [SMALL] */
    struct act_rows a;
    struct query_rows q;
    struct tile_layout l;
    uint8_t *tile;
    enum gate_kind gate;
    float *state, *taps; /* [3][SMALL], [4][SMALL] */
};

static void pass_rms_norm(void *ctx) {
    struct small_bench *b = ctx;
    for (int i = 0; i < TIMES; i++)
        b->k->rms_norm(b->x, b->y, SMALL, 1e-5f, b->z);
}
static void pass_rope(void *ctx) {
    struct small_bench *b = ctx;
    for (int i = 0; i < TIMES; i++) {
        memcpy(b->z, b->x, SMALL * sizeof *b->z); /* a rotation of a rotation would drift */
        for (int head = 0; head < SMALL / 128; head++)
            b->k->rope(b->z + 128 * head, 64, b->y, b->y + 64, false);
    }
}
static void pass_gate_mul(void *ctx) {
    struct small_bench *b = ctx;
    for (int i = 0; i < TIMES; i++)
        b->k->gate_mul[b->gate](b->x, b->y, SMALL, b->z);
}
static void pass_scale(void *ctx) {
    struct small_bench *b = ctx;
    memcpy(b->z, b->x, SMALL * sizeof *b->z);
    for (int i = 0; i < TIMES; i++)
        b->k->scale(b->z, i % 2 ? 0.5f : 2, SMALL);
}
static void pass_softcap(void *ctx) {
    struct small_bench *b = ctx;
    for (int i = 0; i < TIMES; i++) {
        memcpy(b->z, b->x, SMALL * sizeof *b->z);
        b->k->softcap(b->z, SMALL, 2);
    }
}
static void pass_short_conv(void *ctx) {
    struct small_bench *b = ctx;
    for (int i = 0; i < TIMES; i++)
        b->k->short_conv(b->state, b->taps, SMALL, 4, b->x, SMALL, true, b->z);
}
static void pass_add(void *ctx) {
    struct small_bench *b = ctx;
    memset(b->z, 0, SMALL * sizeof *b->z);
    for (int i = 0; i < TIMES; i++)
        b->k->add(b->z, b->x, 1, SMALL);
}
static void pass_softmax(void *ctx) {
    struct small_bench *b = ctx;
    float max, sum;
    for (int i = 0; i < TIMES; i++) {
        memcpy(b->z, b->x, SMALL * sizeof *b->z);
        for (int run = 0; run < SMALL / SPLIT_TOKENS; run++)
            b->k->softmax_run(b->z + SPLIT_TOKENS * run, SPLIT_TOKENS, &max, &sum);
    }
}
static void pass_query_pack(void *ctx) {
    struct small_bench *b = ctx;
    for (int i = 0; i < TIMES; i++)
        b->k->query_pack(b->x, 128, 0.1f, &b->q);
}
static void pass_act_pack(void *ctx) {
    struct small_bench *b = ctx;
    for (int i = 0; i < TIMES; i++)
        b->k->act_pack(&b->a, 0);
}
static void pass_encode(void *ctx) {
    struct small_bench *b = ctx;
    for (uint32_t i = 0; i < TIMES; i++)
        for (uint32_t at = 0; at < SMALL; at += 128)
            b->k->encode_row(&b->l, b->tile, i, b->x + at);
}

static void bench_small(const struct tier *t, const char *kernel, const char *format, pass_fn *pass,
                        struct small_bench *b) {
    if (!family_begin(t, kernel, format))
        return;
    b->k = &t->k;
    double s = pass_seconds(pass, b, 0.02), bytes = (double)SMALL * TIMES * sizeof(float);
    b->k = &ref;
    double slow = pass_seconds(pass, b, 0);
    printf("%-5s %-12s %-22s L1 %7.2f GB/s of float32  %28.1f x ref\n", t->name, kernel, format,
           bytes / s * 1e-9, slow / s);
    fflush(stdout);
}

static void bench_smalls(const struct tier *t) {
    static const uint8_t BITS[] = {8, 6, 5, 4, 3, 2, 16};
    struct small_bench b = {.x = take(SMALL * 4), .y = take(SMALL * 4), .z = take(SMALL * 4)};
    fill(b.x, SMALL, FILL_NORMAL);
    fill(b.y, SMALL, FILL_UNIFORM);
    b.a = (struct act_rows){.x = b.x, .rows = 1, .k = SMALL, .bits = 8};
    b.a.codes = take(SMALL * 2);
    b.a.scale = take(SMALL / 8);
    b.a.sum = take(SMALL / 8);
    b.a.sum16 = take(SMALL / 4);
    b.a.codes_sum16 = take(SMALL / 4);
    b.q = (struct query_rows){SMALL / 128, 128, b.z, take(SMALL * 2), take(SMALL), take(SMALL)};
    b.tile = take(TILE_TOKENS * HEAD_DIM_MAX * 4);
    b.state = take(3 * SMALL * 4);
    b.taps = take(4 * SMALL * 4);
    fill(b.state, 3 * SMALL, FILL_NORMAL);
    fill(b.taps, 4 * SMALL, FILL_NORMAL);
    bench_small(t, "query_pack", "D128", pass_query_pack, &b);
    bench_small(t, "softmax_run", "512", pass_softmax, &b);
    for (int kind = TILE_K; kind <= TILE_V; kind++)
        for (size_t i = 0; i < sizeof BITS; i++) {
            struct kv_format f = {BITS[i], SCALAR_F16, BITS[i] == 16 ? 0 : 64, KV_ROWS};
            char name[24], text[32];
            tile_layout_init(&b.l, (enum tile_kind)kind, f, 128);
            memset(b.tile, 0, b.l.bytes);
            snprintf(text, sizeof text, "%c %s D128", kind == TILE_K ? 'K' : 'V',
                     kv_format_name(f, name));
            bench_small(t, "encode", text, pass_encode, &b);
        }
    for (b.a.bits = 8; b.a.bits <= 16; b.a.bits += 8)
        bench_small(t, "act_pack", b.a.bits == 8 ? "8" : "16", pass_act_pack, &b);
    bench_small(t, "rms_norm", "1536", pass_rms_norm, &b);
    bench_small(t, "rope", "64 pairs", pass_rope, &b);
    static const char *const GATES[GATE_KINDS] = {"none", "silu", "gelu_tanh", "sigmoid",
                                                  "swiglu_clamped"};
    for (int i = 0; i < GATE_KINDS; i++) {
        b.gate = (enum gate_kind)i;
        bench_small(t, "gate_mul", GATES[i], pass_gate_mul, &b);
    }
    bench_small(t, "add", "1536", pass_add, &b);
    bench_small(t, "scale", "1536", pass_scale, &b);
    bench_small(t, "softcap", "1536", pass_softcap, &b);
    bench_small(t, "short_conv", "width 4", pass_short_conv, &b);
    free(b.x);
    free(b.y);
    free(b.z);
    free(b.a.codes);
    free(b.a.scale);
    free(b.a.sum);
    free(b.a.sum16);
    free(b.a.codes_sum16);
    free(b.q.codes);
    free(b.q.sum32);
    free(b.q.scale);
    free(b.tile);
    free(b.state);
    free(b.taps);
}

/* ---- the delta rule: a state of 64 KiB, in L2 ------------------------------------------------ */

enum { DELTA_DIM = 128 };

struct delta_bench {
    const struct kernels *k;
    float state[DELTA_DIM * DELTA_DIM], q[DELTA_DIM], key[DELTA_DIM], v[DELTA_DIM], y[DELTA_DIM];
};

static void pass_delta(void *ctx) {
    struct delta_bench *b = ctx;
    struct delta_token t = {b->q, b->key, b->v, 0.99f, 0.5f};
    b->k->delta_step(b->state, DELTA_DIM, DELTA_DIM, &t, b->y);
}

static void bench_delta(const struct tier *t) {
    static struct delta_bench b;
    if (!family_begin(t, "delta", "128 x 128"))
        return;
    fill(b.state, DELTA_DIM * DELTA_DIM, FILL_NORMAL);
    fill(b.q, DELTA_DIM, FILL_UNIFORM);
    fill(b.v, DELTA_DIM, FILL_NORMAL);
    for (int i = 0; i < DELTA_DIM; i++)
        b.key[i] = i % 2 ? 0.088f : -0.088f; /* of length 1: the state stays in range */
    b.k = &ref;
    double slow = pass_seconds(pass_delta, &b, 0);
    b.k = &t->k;
    double fast = pass_seconds(pass_delta, &b, 0.05);
    print_speed(t, "delta", "128 x 128", sizeof b.state, 3.0 * DELTA_DIM * DELTA_DIM, fast, 0,
                slow);
}

void bench_tier(const struct tier *t) {
    bench_attention(t);
    bench_pages(t);
    bench_basis(t);
    bench_centre(t);
    bench_products(t);
    bench_smalls(t);
    bench_delta(t);
}
