/* SPDX-License-Identifier: Apache-2.0 */
/* check_step.c: a step as a graph. What is run is a model's step without its small operations:
 *
 *     q = random
 *     for each layer
 *         k, v into the pages           kv_store
 *         a = attention(q, pages)       attention
 *         q = W a                       product
 *
 * so each layer's input is the last one's output, and one row that came too early or went wrong
 * changes every bit after it. The same calls are made one by one and captured; what they
 * leave, outputs and the whole arena, must be equal byte for byte:
 *
 *     batch A   sequences of the scene: rows for decode and for prefill, windows, two page formats
 *     batch B   of A's bucket: sequences in another order, with fewer rows, at other positions,
 *               over other pages. The graph of A runs it, then A again
 *     refused   more items, more rows, a format more than the captured step had; the graph still
 *               runs its own step afterwards
 *     sticky    a batch, or attention, that was not reserved for: an error that stays
 *
 * A step stores into pages that the next one reads, so the arena is written again before each.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/graph.h"
#include "opcheck.h"

enum { SEQS_MAX = 32, WEIGHTS_MAX = 8, WEIGHT_GROUP = 64 };

struct model {
    struct scene scene;
    const struct backend_weight *weights[WEIGHTS_MAX];
    uint32_t n_weights; /* layer i has weights[i % n_weights] */
    uint32_t dim;       /* heads * head_dim: inputs and outputs of W */
    float scale;
    float *q, *k, *v;    /* device: [rows][heads][head_dim], [rows][kv_heads][head_dim] */
    float *attended, *y; /* device: [rows][dim] */
    size_t y_bytes;
};

/* A batch with what it points to. */
struct own_batch {
    struct batch batch;
    struct batch_seq seqs[SEQS_MAX];
    struct kv_view views[SEQS_MAX];
};

/* ---- the model ------------------------------------------------------------------------------- */

static struct kv_format affine(uint8_t bits, uint16_t group) {
    return (struct kv_format){.bits = bits, .scalar = SCALAR_F16, .group = group};
}

/* W of 4 bits, of a size that keeps a row's length about the same from layer to layer. */
static void make_weights(struct model *m, uint32_t count) {
    kvasir_error err = {0};
    size_t n = m->dim, words = n * n / 8, groups = n * n / WEIGHT_GROUP;
    uint32_t *codes = mem_calloc(words, sizeof *codes);
    uint16_t *scales = mem_calloc(groups, sizeof *scales);
    uint16_t *biases = mem_calloc(groups, sizeof *biases);
    if (!codes || !scales || !biases)
        give_up("no memory for a matrix of %zu x %zu", n, n);
    for (size_t i = 0; i < words; i++)
        codes[i] = random_bits();
    float size = 6.0f / sqrtf((float)m->dim);
    for (size_t i = 0; i < groups; i++) {
        float wide = size * (0.75f + (float)random_below(1 << 16) * 0x1p-17f);
        scales[i] = f32_to_f16(wide / 7.5f);
        biases[i] = f32_to_f16(-wide);
    }
    const struct weight w = {.data = codes,
                             .scales = scales,
                             .biases = biases,
                             .type = WEIGHT_AFFINE4,
                             .n = m->dim,
                             .k = m->dim,
                             .group = WEIGHT_GROUP,
                             .scalar = SCALAR_F16};
    m->n_weights = count;
    for (uint32_t i = 0; i < count; i++)
        must(backend_weight_put(device, &w, &m->weights[i], &err), &err, "weight_put");
    mem_free(codes);
    mem_free(scales);
    mem_free(biases);
}

static float *random_rows(size_t n) {
    float *host = mem_calloc(n, sizeof *host);
    if (!host)
        give_up("no memory for %zu floats", n);
    fill(host, n, FILL_NORMAL);
    float *rows = device_copy(host, n * sizeof *host);
    mem_free(host);
    return rows;
}

/* Takes m->scene as scene_build does; the batch is the scene's. Buffers last until case_begin. */
static void model_make(struct model *m, bool checked, uint32_t n_weights) {
    struct scene *s = &m->scene;
    scene_build(s, checked);
    size_t rows = s->batch.rows, kv_dim = (size_t)s->kv_heads * s->head_dim;
    m->dim = s->heads * s->head_dim;
    m->scale = 1.0f / sqrtf((float)s->head_dim);
    m->q = random_rows(rows * m->dim);
    m->k = random_rows(rows * kv_dim);
    m->v = random_rows(rows * kv_dim);
    m->y_bytes = rows * m->dim * sizeof *m->y;
    m->attended = device_buffer(m->y_bytes);
    m->y = device_buffer(m->y_bytes);
    make_weights(m, n_weights);
}

static void model_free(struct model *m) {
    for (uint32_t i = 0; i < m->n_weights; i++)
        backend_weight_drop(device, m->weights[i]);
    scene_free(&m->scene);
}

static void enqueue_layers(const struct model *m, const struct batch *batch) {
    const float *q = m->q;
    const struct attention_args args = {.heads = m->scene.heads, .scale = m->scale};
    const float *const no_bias = NULL;
    for (uint32_t layer = 0; layer < m->scene.layers; layer++, q = m->y) {
        op_kv_store(device, batch, batch->views, layer, m->k, m->v);
        op_attention(device, batch, batch->views, layer, q, &args, m->attended);
        op_matmul(device, m->attended, batch->rows, &m->weights[layer % m->n_weights], &no_bias,
                  &m->y, 1);
    }
}

static void enqueue_step(const struct model *m, const struct batch *batch) {
    backend_step_begin(device, batch, 1);
    enqueue_layers(m, batch);
}

static struct cuda_graph *capture(const struct model *m, const struct batch *batch) {
    kvasir_error err = {0};
    struct cuda_graph *graph;
    cuda_capture_begin(device);
    enqueue_step(m, batch);
    must(cuda_capture_end(device, &graph, &err), &err, "cuda_capture_end");
    return graph;
}

/* ---- batches --------------------------------------------------------------------------------- */

static void batch_begin(struct own_batch *b) {
    memset(b, 0, sizeof *b);
    b->batch.seqs = b->seqs;
    b->batch.views = b->views;
}

static void batch_add(struct own_batch *b, const struct kv_view *view, uint32_t pos,
                      uint32_t rows) {
    uint32_t s = b->batch.n_seqs++;
    b->views[s] = *view;
    b->seqs[s] = (struct batch_seq){.row = b->batch.rows, .rows = rows, .pos = pos};
    b->batch.rows += rows;
}

/* Sequence `seq` of the scene alone. */
static void batch_of_one(struct own_batch *b, const struct scene *s, uint32_t seq) {
    const struct scene_seq *q = &s->seqs[seq];
    batch_begin(b);
    batch_add(b, &s->views[seq], q->length - q->rows, q->rows);
}

/* A sequence without a window loses its first pages, so that all others change their numbers; one
 * with a window moves on by some pages' positions over the same pages. Either way a page's slots
 * that hold tokens stay the same, and those after them, which hold NaN, stay unseen. */
static void batch_other(struct own_batch *b, const struct scene *s) {
    batch_begin(b);
    for (uint32_t i = s->n_seqs; i-- > 0;) {
        const struct scene_seq *q = &s->seqs[i];
        struct kv_view view = s->views[i];
        uint32_t rows = q->rows > 3 ? q->rows - 3 : q->rows, length = q->length, shift = 1 + i % 3;
        if (q->span == UINT32_MAX) {
            view.pages += shift;
            view.n_pages -= shift;
            length -= shift * TILE_TOKENS;
        } else {
            view.base_page += shift;
            length += shift * TILE_TOKENS;
        }
        batch_add(b, &view, length - rows, rows);
    }
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* What a step leaves behind; of plain(). */
struct outcome {
    const uint8_t *y, *arena;
    size_t y_bytes;
};

/* Arena and output as they were before any step: a step that writes nothing shows. */
static void reset(const struct model *m) {
    uint8_t *poison = plain(m->y_bytes);
    memset(poison, 0xff, m->y_bytes);
    backend_write(device, m->y, poison, m->y_bytes);
    backend_write(device, m->attended, poison, m->y_bytes);
    backend_arena_write(device, m->scene.arena, 0, m->scene.image, m->scene.arena_bytes);
}

static struct outcome outcome_of(const struct model *m, const struct batch *batch) {
    size_t bytes = (size_t)batch->rows * m->dim * sizeof *m->y;
    kvasir_error err = {0};
    uint8_t *arena = plain(m->scene.arena_bytes);
    must(backend_arena_read(device, m->scene.arena, 0, arena, m->scene.arena_bytes, &err), &err,
         "arena_read");
    return (struct outcome){.y = from_device(m->y, bytes), .arena = arena, .y_bytes = bytes};
}

static struct outcome run_plain(const struct model *m, const struct batch *batch) {
    reset(m);
    enqueue_step(m, batch);
    return outcome_of(m, batch);
}

static struct outcome run_graph(const struct model *m, struct cuda_graph *graph,
                                const struct batch *batch) {
    reset(m);
    cuda_graph_launch(device, graph);
    return outcome_of(m, batch);
}

static size_t differing(const uint8_t *a, const uint8_t *b, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += a[i] != b[i];
    return count;
}

static void check_same(const struct model *m, const struct outcome *got, const struct outcome *want,
                       const char *what) {
    size_t n = differing(got->y, want->y, want->y_bytes);
    check_that(n == 0, "%s: %zu of %zu bytes of the output differ", what, n, want->y_bytes);
    n = differing(got->arena, want->arena, m->scene.arena_bytes);
    check_that(n == 0, "%s: %zu bytes of the arena differ", what, n);
}

static void check_refused(struct cuda_graph *graph, const struct batch *batch, const char *what) {
    kvasir_error err = {0};
    kvasir_status status = cuda_step_update(device, graph, batch, &err);
    check_that(status == KVASIR_ERR_ARGUMENT && err.text[0], "%s: status %d \"%s\"", what,
               (int)status, err.text);
}

/* A and B, one by one and as the graph of A; A's outputs are finite and there. */
static void check_replay(const struct model *m) {
    kvasir_error err = {0};
    const struct batch *a = &m->scene.batch;
    struct own_batch other;
    batch_other(&other, &m->scene);
    struct outcome a_plain = run_plain(m, a), b_plain = run_plain(m, &other.batch);
    const float *y = (const float *)(const void *)a_plain.y;
    for (uint32_t i = 0; i < a->rows; i++)
        check_that(isfinite(y[(size_t)i * m->dim]), "row %u of the plain step is not finite", i);

    struct cuda_graph *graph = capture(m, a);
    struct outcome got = run_graph(m, graph, a);
    check_same(m, &got, &a_plain, "the captured step");
    got = run_graph(m, graph, a);
    check_same(m, &got, &a_plain, "the captured step once more");
    must(cuda_step_update(device, graph, &other.batch, &err), &err, "cuda_step_update");
    got = run_graph(m, graph, &other.batch);
    check_same(m, &got, &b_plain, "another step of the bucket");
    got = run_plain(m, a);
    check_same(m, &got, &a_plain, "a plain step between the graph's");
    must(cuda_step_update(device, graph, a, &err), &err, "cuda_step_update");
    got = run_graph(m, graph, a);
    check_same(m, &got, &a_plain, "the captured step after another");
    cuda_graph_destroy(graph);
}

/* The graph of sequence 1, which is short, has one row and pages of the first layout only. */
static void check_refusals(const struct model *m) {
    struct own_batch one, other;
    batch_of_one(&one, &m->scene, 1);
    struct outcome want = run_plain(m, &one.batch);
    struct cuda_graph *graph = capture(m, &one.batch);
    batch_of_one(&other, &m->scene, 0);
    check_refused(graph, &other.batch, "a longer sequence");
    batch_of_one(&other, &m->scene, 2);
    check_refused(graph, &other.batch, "a sequence with another page format");
    check_refused(graph, &m->scene.batch, "more rows");
    other = one;
    other.batch.views = other.views;
    other.batch.seqs = other.seqs;
    other.views[0].n_pages--; /* the page that the row is stored into */
    check_refused(graph, &other.batch, "a page that is missing");
    struct outcome got = run_graph(m, graph, &one.batch);
    check_same(m, &got, &want, "the captured step after refusals");
    cuda_graph_destroy(graph);
}

/* A sticky error must be reported by all that waits; reads give zeros, and later calls do nothing.
 * The device is given up after it. */
static void check_sticks(const struct model *m, kvasir_status code, const char *what) {
    kvasir_error err = {0};
    uint8_t byte = 1;
    check_that(backend_flush(device, &err) == code && err.text[0], "%s: flush: \"%s\"", what,
               err.text);
    enqueue_step(m, &m->scene.batch);
    check_that(backend_read(device, &byte, m->y, 1, &err) == code && byte == 0,
               "%s: a read after it", what);
    byte = 1;
    check_that(backend_arena_read(device, m->scene.arena, 0, &byte, 1, &err) == code && byte == 0,
               "%s: a read of the arena after it", what);
    check_that(backend_alloc(device, 1) == NULL, "%s: memory after it", what);
}

static void check_errors_stick(void) {
    if (!family_begin("step", "errors stick"))
        return;
    struct scene_seq seqs[] = {
        {.length = 100, .rows = 2, .span = UINT32_MAX, .switch_at = UINT32_MAX}};
    for (int kind = 0; kind < 3; kind++) {
        static const char *const WHAT[] = {"rows", "groups", "a soft cap"};
        struct model m = {
            .scene = {
                .heads = 2, .kv_heads = 1, .head_dim = 64, .layers = 1, .n_seqs = 1, .seqs = seqs}};
        page_layout_init(&m.scene.layouts[0], 1, 1, 64, affine(8, 64), affine(8, 64));
        case_begin("%s", WHAT[kind]);
        model_make(&m, true, 1);
        const struct backend_limits limits = scene_limits(&m.scene);
        struct own_batch b;
        batch_of_one(&b, &m.scene, 0);
        b.batch.rows += kind == 0;
        backend_step_begin(device, &b.batch, kind == 1 ? 2 : 1);
        if (kind == 2) {
            const struct attention_args args = {.heads = 2, .scale = 1, .softcap = 30};
            op_attention(device, &b.batch, b.batch.views, 0, m.q, &args, m.attended);
        }
        check_sticks(&m, KVASIR_ERR_ARGUMENT, WHAT[kind]);
        model_free(&m);
        device_begin(&limits, 8); /* canaries of the lost device are not looked at */
    }
    family_end();
}

static void check_formats(const char *name, struct kv_format k, struct kv_format v,
                          uint32_t head_dim, bool prefill) {
    const struct kv_format exact = {.bits = 16, .scalar = SCALAR_F16, .group = 0};
    struct model m = {
        .scene = {.heads = 8, .kv_heads = 2, .head_dim = head_dim, .layers = quick ? 2 : 4}};
    struct scene *s = &m.scene;
    struct scene_seq seqs[] = {
        {.length = 5000, .rows = 1, .span = UINT32_MAX, .switch_at = UINT32_MAX},
        {.length = 330, .rows = 1, .span = UINT32_MAX, .switch_at = UINT32_MAX},
        {.length = 300, .rows = 1, .span = UINT32_MAX, .switch_at = 4},
        {.length = 3000, .rows = 1, .keep = 4, .span = 1000, .switch_at = UINT32_MAX},
        {.length = 500, .rows = 70, .span = UINT32_MAX, .switch_at = 5},
        {.length = 400, .rows = 5, .span = 130, .switch_at = UINT32_MAX},
        {.length = 200, .rows = 3, .span = UINT32_MAX, .switch_at = 0},
        {.length = 150, .rows = 1, .span = UINT32_MAX, .switch_at = 0},
    };
    s->seqs = seqs;
    s->n_seqs = prefill ? sizeof seqs / sizeof *seqs : 4;
    page_layout_init(&s->layouts[0], s->layers, s->kv_heads, head_dim, k, v);
    page_layout_init(&s->layouts[1], s->layers, s->kv_heads, head_dim, exact, exact);
    if (!family_begin("step", "%s dim %u%s", name, head_dim, prefill ? ", prefill" : ""))
        return;
    case_begin("%u layers, %u sequences", s->layers, s->n_seqs);
    model_make(&m, true, 2);
    check_replay(&m);
    check_refusals(&m);
    model_free(&m);
    family_end();
}

void check_cuda_step(void) {
    const struct kv_format exact = {.bits = 16, .scalar = SCALAR_BF16, .group = 0};
    check_formats("8/4", affine(8, 64), affine(4, 64), 128, false);
    check_formats("8/4", affine(8, 64), affine(4, 64), 128, true);
    check_formats("6/3", affine(6, 64), affine(3, 64), 128, true); /* plain rows, and others */
    check_errors_stick();
    if (quick)
        return;
    check_formats("4/2 g32", affine(4, 32), affine(2, 32), 64, true);
    check_formats("bf16", exact, exact, 128, true);
}

/* ---- times ----------------------------------------------------------------------------------- */

struct timed {
    const struct model *m;
    struct cuda_graph *graph;
};

static void time_plain(void *ctx) {
    const struct timed *t = ctx;
    enqueue_step(t->m, &t->m->scene.batch);
}

static void time_updated(void *ctx) {
    const struct timed *t = ctx;
    kvasir_error err = {0};
    must(cuda_step_update(device, t->graph, &t->m->scene.batch, &err), &err, "cuda_step_update");
    cuda_graph_launch(device, t->graph);
}

static void time_launched(void *ctx) {
    const struct timed *t = ctx;
    cuda_graph_launch(device, t->graph);
}

static double us_per_step(void (*enqueue)(void *), struct timed *t) {
    enum { WARM = 3, TIMES = 20 };
    cuda_time_us(device, enqueue, t, WARM);
    return cuda_time_us(device, enqueue, t, TIMES) / TIMES;
}

/* The matrices are several, so that they do not all stay in the L2 cache from layer to layer. */
void bench_step(void) {
    static const uint32_t counts[] = {1, 8, 32};
    struct scene_seq seqs[SEQS_MAX];
    printf("step: 32 layers of store, attention and one product 4096 x 4096 at 4 bits; 8/4 pages, "
           "32 over 8 heads of 128,\n"
           "      8192 tokens a sequence, one row each; microseconds a step\n"
           "  sequences   one by one   graph   graph, tables written each time\n");
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct model m = {
            .scene = {
                .heads = 32, .kv_heads = 8, .head_dim = 128, .layers = 32, .n_seqs = counts[i]}};
        struct scene *s = &m.scene;
        for (uint32_t j = 0; j < counts[i]; j++)
            seqs[j] = (struct scene_seq){
                .length = 8192, .rows = 1, .span = UINT32_MAX, .switch_at = UINT32_MAX};
        s->seqs = seqs;
        page_layout_init(&s->layouts[0], s->layers, s->kv_heads, s->head_dim, affine(8, 64),
                         affine(4, 64));
        case_begin("bench of %u sequences", counts[i]);
        model_make(&m, false, WEIGHTS_MAX);
        struct timed t = {.m = &m};
        double plain_us = us_per_step(time_plain, &t);
        t.graph = capture(&m, &s->batch);
        double launched_us = us_per_step(time_launched, &t);
        double updated_us = us_per_step(time_updated, &t);
        printf("  %9u %12.1f %7.1f %12.1f\n", counts[i], plain_us, launched_us, updated_us);
        fflush(stdout);
        cuda_graph_destroy(t.graph);
        model_free(&m);
    }
    case_begin("end of the bench"); /* gives the last one's buffers back */
}
