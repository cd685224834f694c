/* SPDX-License-Identifier: Apache-2.0 */
/* bench.c: times of the operations, and how fast this device reads memory in the same run.
 *
 *   decode    attention of one row a sequence over 1 .. 64 sequences
 *   prefill   attention of 2,048 new tokens over 32,768 cached ones
 *   encode    storing 8,192 tokens in 32 layers, as a fraction of the attention over them
 *   product   4-bit weights
 *
 * A time is the median of five, each over several repetitions of one operation. Repetitions walk
 * over the layers of the scene (over copies of the weights), as a model's step does: with a single
 * layer of 1,024 or 8,192 tokens, the second repetition would find the bytes in the second-level
 * cache. If the cost of launches matters, the same repetitions are also timed as one graph, which
 * is how a step runs; targets apply to that time.
 *
 * Unless stated otherwise, shapes are those of a model with 32 query heads and 8 KV heads of 128
 * dims. Bytes are those of K and V that must be read; targets are printed next to the figures, met
 * or MISSED.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/graph.h"
#include "opcheck.h"

enum { TIMES = 5, HEADS = 32, KV_HEADS = 8, HEAD_DIM = 128, LAYERS_MAX = 128, GRAPH_MIN = 32 };
#define COLD_BYTES ((size_t)1 << 30) /* much more than the second-level cache holds */
#define FULL_SPAN  UINT32_MAX
#define NEVER      UINT32_MAX

static double ceiling; /* bytes per second */
static int missed;

/* ---- formats --------------------------------------------------------------------------------- */

enum { SHAPES_MAX = 6 };
struct format {
    const char *name;
    struct kv_format k, v;
    bool common;           /* one of those meant for use: timed everywhere */
    double percent;        /* target of decode where there is much to read; 0: none */
    double us[SHAPES_MAX]; /* targets of decode by shape; 0: none */
};
#define EXACT(scalar)                                                                              \
    { 16, (scalar), 0, KV_ROWS }
#define AFFINE(bits, group)                                                                        \
    { (bits), SCALAR_F16, (group), KV_ROWS }
#define ROTATED(bits)                                                                              \
    { (bits), SCALAR_F16, 64, KV_ROTATED }
#define TILE(bits)                                                                                 \
    { (bits), SCALAR_F16, 0, KV_TILE }
static const struct format FORMATS[] = {
    {"f16", EXACT(SCALAR_F16), EXACT(SCALAR_F16), true, 92, {12, 25, 140}},
    {"bf16", EXACT(SCALAR_BF16), EXACT(SCALAR_BF16), false, 0, {12, 25}},
    {"8/8 g64", AFFINE(8, 64), AFFINE(8, 64), true, 80, {12, 25, 90, 0, 0, 1220}},
    {"8/4 g64", AFFINE(8, 64), AFFINE(4, 64), true, 75, {12, 25, 78, 0, 0, 1030}},
    {"4/4 g64", AFFINE(4, 64), AFFINE(4, 64), true, 65, {12, 25, 66, 0, 0, 800}},
    {"4/4 g32", AFFINE(4, 32), AFFINE(4, 32), false, 0, {12, 25}},
    {"4/2 g64", AFFINE(4, 64), AFFINE(2, 64), false, 0, {12, 25}},
    {"r8/4", ROTATED(8), ROTATED(4), true, 0, {0}},
    {"t5/4", TILE(5), TILE(4), true, 0, {0}},
    {"t4", TILE(4), TILE(4), true, 0, {0}},
    {"t3", TILE(3), TILE(3), true, 0, {0}},
};
enum { N_FORMATS = sizeof FORMATS / sizeof *FORMATS };

/* ---- data ------------------------------------------------------------------------------------ */

/* n floats around +-1.5 on the device. A table is repeated: the values do not matter, and making
 * millions of them would take longer than the timing. */
static float *random_floats(size_t n) {
    enum { TABLE = 1 << 18 };
    float *x = mem_alloc(n * sizeof *x), *on_device = backend_alloc(device, n * sizeof *x);
    if (!x || !on_device)
        give_up("no memory for %zu floats", n);
    for (size_t i = 0; i < n && i < TABLE; i++)
        x[i] = (float)random_below(1 << 16) * (3.0f / 65536) - 1.5f;
    for (size_t i = TABLE; i < n; i++)
        x[i] = x[i - TABLE];
    backend_write(device, on_device, x, n * sizeof *x);
    mem_free(x);
    return on_device;
}

static float *device_floats(size_t n) {
    float *x = backend_alloc(device, n * sizeof *x);
    if (!x)
        give_up("no memory for %zu floats on the device", n);
    return x;
}

static void random_words(void *to, size_t bytes) {
    uint8_t *p = to;
    for (size_t i = 0; i + 4 <= bytes; i += 4) {
        uint32_t r = random_bits();
        memcpy(p + i, &r, 4);
    }
}

/* ---- times ----------------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Microseconds of one of `repetitions` that a call of enqueue(ctx) enqueues. */
static double median_us(void (*enqueue)(void *), void *ctx, int calls, int repetitions) {
    double us[TIMES];
    enqueue(ctx); /* warms clocks and code */
    device_must_work();
    for (int i = 0; i < TIMES; i++)
        us[i] = cuda_time_us(device, enqueue, ctx, calls) / ((double)calls * repetitions);
    device_must_work();
    qsort(us, TIMES, sizeof *us, compare_doubles);
    return us[TIMES / 2];
}

/* Calls that fill about 20 ms. */
static int calls_for(double us) {
    double n = 20000 / us;
    return n < 2 ? 2 : n > 50 ? 50 : (int)n;
}

static void target(bool met, const char *format, ...) PRINTF_LIKE(2, 3);
static void target(bool met, const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("  ");
    vprintf(format, args);
    printf(" %s", met ? "met" : "MISSED");
    va_end(args);
    missed += !met;
}

/* ---- attention ------------------------------------------------------------------------------- */

struct attention {
    struct scene scene;
    struct scene_seq seqs[64];
    float *q, *out;
    uint32_t at; /* layer of the next repetition */
    int repetitions;
};

static size_t layer_kv_bytes(const struct attention *a) {
    size_t tokens = 0;
    for (uint32_t i = 0; i < a->scene.n_seqs; i++)
        tokens += a->seqs[i].length;
    return tokens / TILE_TOKENS * a->scene.layouts[0].layer_bytes;
}

/* layers 0: as many as it takes to read from memory. */
static void attention_begin(struct attention *a, const struct format *f, uint32_t heads,
                            uint32_t head_dim, uint32_t batch, uint32_t length, uint32_t rows,
                            uint32_t layers) {
    struct scene *s = &a->scene;
    memset(a, 0, sizeof *a);
    s->heads = heads;
    s->kv_heads = KV_HEADS;
    s->head_dim = head_dim;
    s->n_seqs = batch;
    s->seqs = a->seqs;
    for (uint32_t i = 0; i < batch; i++)
        a->seqs[i] = (struct scene_seq){length, rows, 0, FULL_SPAN, NEVER};
    page_layout_init(&s->layouts[0], 1, KV_HEADS, head_dim, f->k, f->v);
    if (layers == 0) {
        size_t n = COLD_BYTES / layer_kv_bytes(a) + 1;
        layers = n > LAYERS_MAX ? LAYERS_MAX : (uint32_t)n;
    }
    s->layers = layers;
    page_layout_init(&s->layouts[0], layers, KV_HEADS, head_dim, f->k, f->v);
    scene_set_bases(s, false);
    scene_build(s, false);
    size_t n = (size_t)s->batch.rows * heads * head_dim;
    a->q = random_floats(n);
    a->out = device_floats(n);
    backend_step_begin(device, &s->batch, 1);
    device_must_work();
}

static void attention_end(struct attention *a) {
    backend_free(device, a->q);
    backend_free(device, a->out);
    scene_free(&a->scene);
}

static void attention_enqueue(void *ctx) {
    struct attention *a = ctx;
    const struct scene *s = &a->scene;
    const struct attention_args args = {.heads = s->heads,
                                        .scale = (float)(1 / m_sqrt(s->head_dim))};
    for (int i = 0; i < a->repetitions; i++) {
        op_attention(device, &s->batch, s->views, a->at, a->q, &args, a->out);
        a->at = (a->at + 1) % s->layers;
    }
}

static double attention_us(struct attention *a) {
    a->repetitions = 1;
    double once = median_us(attention_enqueue, a, 2, 1);
    a->repetitions = calls_for(once);
    return median_us(attention_enqueue, a, 1, a->repetitions);
}

static void graph_enqueue(void *ctx) {
    struct attention *a = ctx;
    a->at = 0;
    backend_step_begin(device, &a->scene.batch, 1);
    attention_enqueue(a);
    cuda_step_submit(device);
}

static double attention_graph_us(struct attention *a) {
    uint32_t layers = a->scene.layers;
    a->repetitions =
        (int)(layers < GRAPH_MIN ? (GRAPH_MIN + layers - 1) / layers * layers : layers);
    graph_enqueue(a); /* the second time it is a graph */
    return median_us(graph_enqueue, a, 3, a->repetitions);
}

/* ---- decode ---------------------------------------------------------------------------------- */

static const struct shape {
    uint32_t batch, context;
    bool graph, percent; /* small enough for a launch to count; large enough for the ceiling */
} SHAPES[] = {
    {1, 1024, true, false},  {1, 8192, true, false},  {1, 131072, true, false},
    {8, 32768, false, true}, {32, 8192, false, true}, {64, 32768, false, true},
};
enum { N_SHAPES = sizeof SHAPES / sizeof *SHAPES, WIDE_SHAPE = 3 };
_Static_assert((int)N_SHAPES == SHAPES_MAX, "targets are by shape");

static void decode_head(const char *what) {
    printf("\n%s; us of one layer, bytes of K and V\n", what);
    printf("%-9s %3s   %6s %10s %10s %8s %9s %8s\n", "", "", "", "launches", "graph", "TB/s",
           "% ceiling", "x f16");
}

/* f16_us: of the same shape; set where the format is f16. */
static void decode_one(const struct format *f, uint32_t heads, uint32_t head_dim,
                       const struct shape *shape, double us_at_most, double percent,
                       double *f16_us) {
    struct attention a;
    char line[80];
    snprintf(line, sizeof line, "%s, %u x %u, %u heads, D %u", f->name, shape->batch,
             shape->context, heads, head_dim);
    if (!filter_keeps(line))
        return;
    attention_begin(&a, f, heads, head_dim, shape->batch, shape->context, 1, 0);
    double us = attention_us(&a), best = us, bytes = (double)layer_kv_bytes(&a);
    char graph[16] = "-";
    if (shape->graph) {
        best = attention_graph_us(&a);
        snprintf(graph, sizeof graph, "%.1f", best);
    }
    attention_end(&a);
    if (f == &FORMATS[0])
        *f16_us = best;
    double reached = 100 * bytes / best * 1e6 / ceiling;
    printf("%-9s %3u x %6u %10.1f %10s %8.2f %9.1f %8.2f", f->name, shape->batch, shape->context,
           us, graph, bytes / best * 1e-6, reached, *f16_us / best);
    if (percent > 0)
        target(reached >= percent, ">= %.0f %%", percent);
    if (us_at_most > 0)
        target(best <= us_at_most, "<= %.0f us", us_at_most);
    printf("\n");
    fflush(stdout);
}

static void bench_decode(void) {
    double f16_us[N_SHAPES];
    decode_head("decode attention, 32 query heads, 8 KV heads, D 128");
    for (uint32_t i = 0; i < N_FORMATS; i++)
        for (uint32_t j = 0; j < N_SHAPES; j++)
            decode_one(&FORMATS[i], HEADS, HEAD_DIM, &SHAPES[j], FORMATS[i].us[j],
                       SHAPES[j].percent ? FORMATS[i].percent : 0, &f16_us[j]);
    static const struct {
        uint32_t heads, head_dim;
    } OTHERS[] = {{64, 128}, {128, 128}, {32, 64}, {32, 256}};
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) {
        char what[80];
        snprintf(what, sizeof what, "decode attention, %u query heads, 8 KV heads, D %u",
                 OTHERS[i].heads, OTHERS[i].head_dim);
        decode_head(what);
        for (uint32_t j = 0; j < N_FORMATS; j++)
            if (FORMATS[j].common)
                decode_one(&FORMATS[j], OTHERS[i].heads, OTHERS[i].head_dim, &SHAPES[WIDE_SHAPE], 0,
                           0, &f16_us[0]);
    }
}

/* ---- prefill --------------------------------------------------------------------------------- */

/* Operations for `rows` rows at the end of `length` tokens: a query and a key take 2 D of them, and
 * so do a weight and a value. */
static double attention_operations(uint32_t length, uint32_t rows) {
    double pairs = (double)rows * (length - rows) + (double)rows * (rows + 1) / 2;
    return 4.0 * HEAD_DIM * HEADS * pairs;
}

static void bench_prefill(void) {
    enum { NEW = 2048, CACHED = 32768 };
    double operations = attention_operations(NEW + CACHED, NEW), f16 = 0;
    printf("\nprefill attention, %d new tokens over %d, 32 query heads, 8 KV heads, D 128\n", NEW,
           CACHED);
    printf("%-9s %8s %9s %8s\n", "", "ms", "TFLOP/s", "x f16");
    for (uint32_t i = 0; i < N_FORMATS; i++) {
        const struct format *f = &FORMATS[i];
        struct attention a;
        if (!f->common)
            continue;
        attention_begin(&a, f, HEADS, HEAD_DIM, 1, NEW + CACHED, NEW, 2);
        double us = attention_us(&a), speed = operations / us * 1e-6;
        attention_end(&a);
        if (i == 0)
            f16 = speed;
        printf("%-9s %8.3f %9.1f %8.2f", f->name, us * 1e-3, speed, speed / f16);
        if (i == 0)
            target(speed >= 315, ">= 315");
        else if (f->v.bits == 4)
            target(speed >= 0.8 * f16, ">= 0.8 x f16");
        printf("\n");
        fflush(stdout);
    }
}

/* ---- encode ---------------------------------------------------------------------------------- */

struct storing {
    struct attention *a;
    float *k, *v;
};

static void store_enqueue(void *ctx) {
    struct storing *st = ctx;
    const struct scene *s = &st->a->scene;
    for (uint32_t layer = 0; layer < s->layers; layer++)
        op_kv_store(device, &s->batch, s->views, layer, st->k, st->v);
}

static void bench_encode(void) {
    enum { TOKENS = 8192, LAYERS = 32 };
    printf("\nencode, %d tokens in %d layers, beside attention of these tokens over themselves\n",
           TOKENS, LAYERS);
    printf("%-9s %10s %13s %8s\n", "", "encode ms", "attention ms", "%");
    for (uint32_t i = 0; i < N_FORMATS; i++) {
        const struct format *f = &FORMATS[i];
        struct attention a;
        attention_begin(&a, f, HEADS, HEAD_DIM, 1, TOKENS, TOKENS, LAYERS);
        size_t n = (size_t)TOKENS * KV_HEADS * HEAD_DIM;
        struct storing st = {&a, random_floats(n), random_floats(n)};
        double attention = attention_us(&a) * LAYERS;
        double encode = median_us(store_enqueue, &st, 3, 1);
        backend_free(device, st.k);
        backend_free(device, st.v);
        attention_end(&a);
        double percent = 100 * encode / attention;
        printf("%-9s %10.3f %13.3f %8.2f", f->name, encode * 1e-3, attention * 1e-3, percent);
        target(percent < 3, "< 3 %%");
        printf("\n");
        fflush(stdout);
    }
}

/* ---- product --------------------------------------------------------------------------------- */

enum { PRODUCT_ROWS_MAX = 2048, PRODUCT_INPUTS = 4096, COPIES_MAX = 64, PRODUCT_REPETITIONS = 64 };

struct product {
    const struct backend_weight *copies[COPIES_MAX]; /* the same matrix at other addresses */
    uint32_t n_copies, rows;
    float *x, *y;
    int act_bits;
};

static void product_enqueue(void *ctx) {
    struct product *p = ctx;
    const float *const no_bias = NULL;
    for (uint32_t i = 0; i < PRODUCT_REPETITIONS; i++)
        op_matmul(device, p->x, p->rows, &p->copies[i % p->n_copies], &no_bias, &p->y, 1);
}

static void begin_products(int act_bits) {
    const struct backend_limits limits = {.rows = PRODUCT_ROWS_MAX,
                                          .seqs = 1,
                                          .dim = PRODUCT_INPUTS,
                                          .head_dim = HEAD_DIM,
                                          .pages = 1,
                                          .groups = 1,
                                          .group = {{HEADS, KV_HEADS, HEAD_DIM, false}}};
    device_begin(&limits, act_bits);
}

/* Random codes under small scales. Returns the bytes of the matrix. */
static size_t make_matrix(struct weight *w, uint32_t n) {
    w->n = n;
    w->k = PRODUCT_INPUTS;
    const struct weight_traits *t = weight_traits_of(w->type);
    size_t data_bytes = weight_row_bytes(t, w->k) * n, scales = 0;
    uint8_t *data = mem_alloc(data_bytes);
    if (!data)
        give_up("no memory for a matrix");
    random_words(data, data_bytes);
    if (w->type == WEIGHT_Q4_0) /* a block begins with its scale */
        for (size_t i = 0; i < data_bytes; i += t->block_bytes)
            scalar_store(SCALAR_F16, data + i, 0, 0.01f);
    if (w->group > 0) {
        scales = (size_t)n * w->k / w->group;
        uint16_t *s = mem_alloc(scales * 2), *b = mem_alloc(scales * 2);
        if (!s || !b)
            give_up("no memory for a matrix");
        for (size_t i = 0; i < scales; i++) {
            scalar_store(w->scalar, s, i, 0.01f);
            scalar_store(w->scalar, b, i, -0.07f);
        }
        w->scales = s;
        w->biases = b;
    }
    w->data = data;
    return data_bytes + scales * 4;
}

static void product_times(struct product *p, const char *name, uint32_t n, size_t bytes) {
    static const uint32_t ROWS[] = {1, 2, 8, 16, 64, 256, PRODUCT_ROWS_MAX};
    const size_t count = sizeof ROWS / sizeof *ROWS;
    for (size_t i = 0; i < (p->act_bits == 8 ? count : count - 2); i++) {
        p->rows = ROWS[i];
        double us = median_us(product_enqueue, p, 3, PRODUCT_REPETITIONS);
        double operations = 2.0 * n * PRODUCT_INPUTS * p->rows;
        printf("%-12s %5u x %4d %5u %4d %9.2f %7.2f %9.1f %8.2f\n", name, n, PRODUCT_INPUTS,
               p->rows, p->act_bits, us, (double)bytes / us * 1e-6,
               100 * (double)bytes / us * 1e6 / ceiling, operations / us * 1e-6);
        fflush(stdout);
    }
}

/* One matrix in copies enough that they do not stay in the second-level cache. */
static void bench_matrix(struct weight *w, const char *name, uint32_t n, int act_bits) {
    kvasir_error err = {0};
    struct product p = {.act_bits = act_bits};
    size_t bytes = make_matrix(w, n);
    begin_products(act_bits);
    p.x = random_floats((size_t)PRODUCT_ROWS_MAX * PRODUCT_INPUTS);
    p.y = device_floats((size_t)PRODUCT_ROWS_MAX * n);
    for (size_t held = 0; held < COLD_BYTES / 2 && p.n_copies < COPIES_MAX; held += bytes)
        must(backend_weight_put(device, w, &p.copies[p.n_copies++], &err), &err, "weight_put");
    product_times(&p, name, n, bytes);
    while (p.n_copies > 0)
        backend_weight_drop(device, p.copies[--p.n_copies]);
    backend_free(device, p.x);
    backend_free(device, p.y);
    mem_free((void *)w->data);
    mem_free((void *)w->scales);
    mem_free((void *)w->biases);
}

static void bench_product(void) {
    static const struct {
        const char *name;
        enum weight_type type;
        uint32_t group;
    } TYPES[] = {{"Q4_0", WEIGHT_Q4_0, 0}, {"AFFINE4 g64", WEIGHT_AFFINE4, 64}};
    static const uint32_t OUTPUTS[] = {4096, 14336};
    printf("\nproducts, outputs x inputs; bytes of the weights\n");
    printf("%-12s %12s %5s %4s %9s %7s %9s %8s\n", "", "", "rows", "act", "us", "TB/s", "% ceiling",
           "TOP/s");
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        for (size_t j = 0; j < sizeof OUTPUTS / sizeof *OUTPUTS; j++)
            for (int act_bits = 8; act_bits <= 16; act_bits += 8) {
                struct weight w = {
                    .type = TYPES[i].type, .group = TYPES[i].group, .scalar = SCALAR_F16};
                bench_matrix(&w, TYPES[i].name, OUTPUTS[j], act_bits);
            }
}

/* ---- all ------------------------------------------------------------------------------------- */

static void measure_ceiling(void) {
    for (int i = 0; i < 5; i++) {
        double speed = cuda_read_ceiling(device, (size_t)8 << 30);
        if (ceiling < speed)
            ceiling = speed;
    }
    device_must_work();
    printf("read ceiling: %.2f TB/s, the best of five over 8 GiB\n", ceiling * 1e-12);
    fflush(stdout);
}

void bench(void) {
    measure_ceiling();
    if (bench_wants("decode"))
        bench_decode();
    if (bench_wants("prefill"))
        bench_prefill();
    if (bench_wants("encode"))
        bench_encode();
    if (bench_wants("matmul"))
        bench_product();
    printf("\nbench: %d targets missed\n", missed);
}
