/* SPDX-License-Identifier: Apache-2.0 */
/* check_step.c: a step as a graph. What is run is a model's step, as the Llama family has it
 * (model/llama.c), with x from a constant and the rows turned round at the end, so that host arrays
 * take part. Each layer's input is the last one's output: one row that came too early or went wrong
 * changes every bit after it. The same calls are made one by one, and recorded, which joins
 * operations and replays steps; what they leave, outputs and the whole arena, must be equal byte
 * for byte:
 *
 *     batch A     sequences of the scene: rows for decode and for prefill, windows, two formats
 *     batch B     of A's bucket: sequences in another order, at other positions. The graph of A
 *                 runs it, then A again
 *     forgotten   more different steps than there are graphs
 *     sticky      a batch, or attention, that was not reserved for: an error that stays
 *
 * A step stores into pages that the next one reads, so the arena is written again before each.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/graph.h"
#include "opcheck.h"

enum { SEQS_MAX = 32, ROWS_MAX = 128, WEIGHTS_MAX = 4, WEIGHT_GROUP = 64 };

/* Matrices of a layer, in the order of their use. */
enum { W_Q, W_K, W_V, W_O, W_GATE, W_UP, W_DOWN, MATRICES };

struct model {
    struct scene scene;
    const struct backend_weight *weights[WEIGHTS_MAX][MATRICES];
    uint32_t n_weights; /* layer i has weights[i % n_weights] */
    uint32_t dim;       /* heads * head_dim: inputs and outputs of W */
    bool adjacent;      /* the rope's pairs */
    float scale;
    uint32_t pos[ROWS_MAX];                                      /* of the rows; host memory */
    const float *embedded;                                       /* device: what x begins as */
    float *x, *h, *q, *k, *v, *attended, *gate, *up, *cos, *sin; /* device, [rows][...] */
    float *y;                                                    /* device: [rows][dim] */
    size_t y_bytes;
};

/* A batch with what it points to. */
struct own_batch {
    struct batch batch;
    struct batch_seq seqs[SEQS_MAX];
    struct kv_view views[SEQS_MAX];
};

/* ---- the model ------------------------------------------------------------------------------- */

static struct kv_format affine(uint8_t bits, uint8_t group) {
    return (struct kv_format){.bits = bits, .scalar = SCALAR_F16, .group = group};
}

/* n x k, of a size that keeps a row's length about the same from layer to layer: of 4 bits, or
 * f16, for which no operation is joined with the one before it. */
static const struct backend_weight *make_matrix(uint32_t n, uint32_t k, bool halves) {
    kvasir_error err = {0};
    const struct backend_weight *out;
    const size_t values = (size_t)n * k, groups = values / WEIGHT_GROUP;
    uint16_t *data = mem_calloc(values, sizeof *data);
    uint16_t *scales = mem_calloc(groups, sizeof *scales), *biases = mem_calloc(groups, 2);
    if (!data || !scales || !biases)
        give_up("no memory for a matrix of %u x %u", n, k);
    const float size = 6.0f / sqrtf((float)k);
    for (size_t i = 0; i < values; i++)
        data[i] = halves ? f32_to_f16(size * ((float)random_below(1 << 16) * 0x1p-15f - 1))
                         : (uint16_t)random_bits();
    for (size_t i = 0; i < groups; i++) {
        float wide = size * (0.75f + (float)random_below(1 << 16) * 0x1p-17f);
        scales[i] = f32_to_f16(wide / 7.5f);
        biases[i] = f32_to_f16(-wide);
    }
    const struct weight w = {.data = data,
                             .scales = scales,
                             .biases = biases,
                             .type = halves ? WEIGHT_F16 : WEIGHT_AFFINE4,
                             .n = n,
                             .k = k,
                             .group = WEIGHT_GROUP,
                             .scalar = SCALAR_F16};
    must(backend_weight_put(device, &w, &out, &err), &err, "weight_put");
    mem_free(data);
    mem_free(scales);
    mem_free(biases);
    return out;
}

static void make_weights(struct model *m, uint32_t count, bool halves) {
    const uint32_t kv_dim = m->scene.kv_heads * m->scene.head_dim;
    m->n_weights = count;
    for (uint32_t i = 0; i < count; i++)
        for (int w = 0; w < MATRICES; w++)
            m->weights[i][w] =
                make_matrix(w == W_K || w == W_V ? kv_dim : m->dim, m->dim, halves && i % 2 == 1);
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
static void model_make(struct model *m, bool checked, uint32_t n_weights, bool halves) {
    struct scene *s = &m->scene;
    scene_build(s, checked);
    const size_t rows = s->batch.rows, kv_dim = (size_t)s->kv_heads * s->head_dim;
    ASSERT(rows <= ROWS_MAX);
    m->dim = s->heads * s->head_dim;
    m->scale = 1.0f / sqrtf((float)s->head_dim);
    m->embedded = random_rows(rows * m->dim);
    m->y_bytes = rows * m->dim * sizeof(float);
    float **wide[] = {&m->x, &m->h, &m->q, &m->attended, &m->gate, &m->up, &m->y};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        *wide[i] = device_buffer(m->y_bytes);
    m->k = device_buffer(rows * kv_dim * sizeof(float));
    m->v = device_buffer(rows * kv_dim * sizeof(float));
    m->cos = device_buffer(rows * s->head_dim / 2 * sizeof(float));
    m->sin = device_buffer(rows * s->head_dim / 2 * sizeof(float));
    make_weights(m, n_weights, halves);
}

static void model_free(struct model *m) {
    for (uint32_t i = 0; i < m->n_weights; i++)
        for (int w = 0; w < MATRICES; w++)
            backend_weight_drop(device, m->weights[i][w]);
    scene_free(&m->scene);
}

static void enqueue_attention(const struct model *m, const struct batch *batch, uint32_t layer,
                              const struct backend_weight *const *w) {
    const struct scene *s = &m->scene;
    const uint32_t rows = batch->rows, half = s->head_dim / 2;
    const struct attention_args args = {.heads = s->heads, .scale = m->scale};
    const float *const no_bias[MATMULS_MAX] = {NULL};
    op_rms_norm(device, m->x, NULL, rows, m->dim, 1e-5f, m->h);
    op_matmul(device, m->h, rows, w + W_Q, no_bias, (float *[]){m->q, m->k, m->v}, 3);
    op_rope(device, m->q, rows, s->heads, s->head_dim, m->cos, m->sin, half, m->adjacent);
    op_rope(device, m->k, rows, s->kv_heads, s->head_dim, m->cos, m->sin, half, m->adjacent);
    op_kv_store(device, batch, batch->views, layer, m->k, m->v);
    op_attention(device, batch, batch->views, layer, m->q, &args, m->attended);
    op_matmul(device, m->attended, rows, w + W_O, no_bias, (float *[]){m->h}, 1);
    op_add(device, m->x, m->h, 0.5f, (size_t)rows * m->dim);
}

static void enqueue_mlp(const struct model *m, uint32_t rows,
                        const struct backend_weight *const *w) {
    const float *const no_bias[MATMULS_MAX] = {NULL};
    const size_t n = (size_t)rows * m->dim;
    op_rms_norm(device, m->x, NULL, rows, m->dim, 1e-5f, m->h);
    op_matmul(device, m->h, rows, w + W_GATE, no_bias, (float *[]){m->gate, m->up}, 2);
    op_gate_mul(device, GATE_SILU, m->gate, m->up, n, m->gate);
    op_matmul(device, m->gate, rows, w + W_DOWN, no_bias, (float *[]){m->h}, 1);
    op_add(device, m->x, m->h, 0.5f, n);
}

/* The rows come out in the opposite order, norms of x. */
static void enqueue_step(struct model *m, const struct batch *batch) {
    const uint32_t rows = batch->rows, half = m->scene.head_dim / 2;
    const struct block_strides packed = {m->dim, m->dim};
    double inv_freq[HEAD_DIM_MAX / 2];
    uint32_t back[ROWS_MAX];
    for (uint32_t i = 0; i < half; i++)
        inv_freq[i] = m_pow(10000, -(double)i / half);
    for (uint32_t s = 0; s < batch->n_seqs; s++)
        for (uint32_t i = 0; i < batch->seqs[s].rows; i++)
            m->pos[batch->seqs[s].row + i] = batch->seqs[s].pos + i;
    for (uint32_t i = 0; i < rows; i++)
        back[i] = rows - 1 - i;
    backend_step_begin(device, batch, 1);
    op_rope_table(device, m->pos, rows, inv_freq, half, 1, m->cos, m->sin);
    op_rearrange(device, rows, 1, m->dim, m->embedded, packed, m->x, packed);
    for (uint32_t layer = 0; layer < m->scene.layers; layer++) {
        const struct backend_weight *const *w = m->weights[layer % m->n_weights];
        enqueue_attention(m, batch, layer, w);
        enqueue_mlp(m, rows, w);
    }
    op_gather_rows(device, m->x, back, rows, m->dim, m->y);
    op_rms_norm(device, m->y, NULL, rows, m->dim, 1e-5f, m->y);
    memset(back, 0xff, sizeof back); /* the arrays are the caller's again */
    memset(inv_freq, 0xff, sizeof inv_freq);
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

/* The same rows in another order and at other positions: a sequence without a window is some tokens
 * shorter, one with a window moves on by some pages' positions over the same pages. Either way the
 * slots of tokens before a row hold what they held, and those after it stay unseen. */
static void batch_other(struct own_batch *b, const struct scene *s) {
    batch_begin(b);
    for (uint32_t i = s->n_seqs; i-- > 0;) {
        const struct scene_seq *q = &s->seqs[i];
        struct kv_view view = s->views[i];
        const uint32_t shift = 1 + i % 3;
        uint32_t length = q->length;
        if (q->span == UINT32_MAX)
            length -= shift;
        else {
            view.base_page += shift;
            view.shadow_first += shift;
            length += shift * TILE_TOKENS;
        }
        batch_add(b, &view, length - q->rows, q->rows);
    }
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* What a step leaves behind; of plain(). */
struct outcome {
    const uint8_t *y, *k, *arena; /* k: of the last layer, turned */
    size_t y_bytes, k_bytes;
};

/* Arena and output as they were before any step: a step that writes nothing shows. */
static void reset(const struct model *m) {
    uint8_t *poison = plain(m->y_bytes);
    memset(poison, 0xff, m->y_bytes);
    backend_write(device, m->y, poison, m->y_bytes);
    backend_write(device, m->x, poison, m->y_bytes);
    backend_arena_write(device, m->scene.arena, 0, m->scene.image, m->scene.arena_bytes);
}

static struct outcome outcome_of(const struct model *m, const struct batch *batch) {
    const size_t bytes = (size_t)batch->rows * m->dim * sizeof *m->y,
                 k_bytes = bytes / m->scene.heads * m->scene.kv_heads;
    kvasir_error err = {0};
    uint8_t *arena = plain(m->scene.arena_bytes);
    must(backend_arena_read(device, m->scene.arena, 0, arena, m->scene.arena_bytes, &err), &err,
         "arena_read");
    return (struct outcome){.y = from_device(m->y, bytes),
                            .k = from_device(m->k, k_bytes),
                            .arena = arena,
                            .y_bytes = bytes,
                            .k_bytes = k_bytes};
}

static struct outcome run(struct model *m, const struct batch *batch) {
    reset(m);
    enqueue_step(m, batch);
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
    n = differing(got->k, want->k, want->k_bytes);
    check_that(n == 0, "%s: %zu of %zu bytes of K differ", what, n, want->k_bytes);
    n = differing(got->arena, want->arena, m->scene.arena_bytes);
    check_that(n == 0, "%s: %zu bytes of the arena differ", what, n);
}

/* A and B, operation by operation and recorded: the first time joined, then as a graph. A's outputs
 * are finite and there. same_bucket: B runs as A's graph. */
static void check_replay(struct model *m, bool same_bucket) {
    const struct batch *a = &m->scene.batch;
    struct own_batch other, one;
    batch_other(&other, &m->scene);
    batch_of_one(&one, &m->scene, 1);
    cuda_one_by_one(device, true);
    struct outcome a_plain = run(m, a), b_plain = run(m, &other.batch),
                   one_plain = run(m, &one.batch);
    const float *y = (const float *)(const void *)a_plain.y;
    for (uint32_t i = 0; i < a->rows; i++)
        check_that(isfinite(y[(size_t)i * m->dim]), "row %u of the plain step is not finite", i);

    cuda_one_by_one(device, false);
    const struct cuda_graph_counts before = cuda_graph_counts(device);
    struct outcome got = run(m, a);
    check_same(m, &got, &a_plain, "the recorded step");
    got = run(m, a);
    check_same(m, &got, &a_plain, "the captured step");
    got = run(m, &other.batch);
    check_same(m, &got, &b_plain, "another step of the bucket");
    got = run(m, a);
    check_same(m, &got, &a_plain, "the captured step after another");
    const struct cuda_graph_counts after = cuda_graph_counts(device);
    check_that(after.captured == before.captured + 1 &&
                   after.launched >= before.launched + 2 + same_bucket,
               "%d graphs were captured and %d launched", (int)(after.captured - before.captured),
               (int)(after.launched - before.launched));
    for (int i = 0; i < 3; i++) {
        got = run(m, &one.batch);
        check_same(m, &got, &one_plain, "a step of another bucket");
    }
    check_that(cuda_graph_counts(device).captured == before.captured + 2,
               "the step of another bucket has no graph");
}

/* More steps of different rows than there are graphs: those that did not come for the longest time
 * are forgotten, and come again. */
static void check_forgotten(struct model *m) {
    enum { STEPS = 80 };
    struct own_batch b;
    struct outcome want[2];
    ASSERT(m->scene.seqs[0].length > 2 * STEPS && m->scene.seqs[0].span == UINT32_MAX);
    for (int round = 0; round < 2; round++)
        for (uint32_t rows = 1; rows <= STEPS; rows++) {
            batch_begin(&b);
            batch_add(&b, &m->scene.views[0], m->scene.seqs[0].length - rows, rows);
            for (int again = 0; again < 2; again++)
                if (rows == 1)
                    want[round] = run(m, &b.batch);
                else
                    enqueue_step(m, &b.batch);
        }
    check_that(memcmp(want[0].y, want[1].y, m->dim * sizeof(float)) == 0,
               "a step whose graph was forgotten differs");
}

/* A sticky error must be reported by all that waits; reads give zeros, and later calls do nothing.
 * The device is given up after it. */
static void check_sticks(struct model *m, kvasir_status code, const char *what) {
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
        model_make(&m, true, 1, false);
        const struct backend_limits limits = scene_limits(&m.scene);
        struct own_batch b;
        batch_of_one(&b, &m.scene, 0);
        b.batch.rows += kind == 0;
        backend_step_begin(device, &b.batch, kind == 1 ? 2 : 1);
        if (kind == 2) {
            const struct attention_args args = {.heads = 2, .scale = 1, .softcap = 30};
            op_attention(device, &b.batch, b.batch.views, 0, m.x, &args, m.attended);
        }
        check_sticks(&m, KVASIR_ERR_ARGUMENT, WHAT[kind]);
        model_free(&m);
        device_begin(&limits, 8); /* canaries of the lost device are not looked at */
    }
    family_end();
}

enum step_with { PREFILL = 1, HALVES = 2, CENTRED = 4 };

/* with: of enum step_with. Centred tiles are balanced, too. */
static void check_formats(const char *name, struct kv_format k, struct kv_format v,
                          uint32_t head_dim, uint32_t with) {
    const bool prefill = (with & PREFILL) != 0, halves = (with & HALVES) != 0,
               centred = (with & CENTRED) != 0;
    const struct kv_format exact = {.bits = 16, .scalar = SCALAR_F16, .group = 0};
    struct model m = {
        .scene = {.heads = 8, .kv_heads = 2, .head_dim = head_dim, .layers = quick ? 2 : 4},
        .adjacent = head_dim == 128};
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
    const bool whole = kv_format_whole(k); /* after an exact start; one of the pages becomes full */
    s->seqs = seqs;
    s->n_seqs = prefill ? sizeof seqs / sizeof *seqs : 4;
    page_layout_init(&s->layouts[whole], s->layers, s->kv_heads, head_dim, k, v);
    page_layout_init(&s->layouts[!whole], s->layers, s->kv_heads, head_dim, exact, exact);
    for (uint32_t i = 0; whole && i < s->n_seqs; i++)
        seqs[i].switch_at = 1;
    if (whole) {
        seqs[1].length = 5 * TILE_TOKENS;
        seqs[2].length = TILE_TOKENS - 10; /* in the exact start */
    }
    s->turned_start = whole;
    s->layouts[whole].centred = centred;
    s->layouts[!whole].centred = centred && whole;
    if (!family_begin("step", "%s dim %u%s%s%s", name, head_dim, prefill ? ", prefill" : "",
                      halves ? ", f16" : "", centred ? ", centred" : ""))
        return;
    case_begin("%u layers, %u sequences", s->layers, s->n_seqs);
    scene_set_bases(s, centred);
    model_make(&m, true, 2, halves);
    if (centred)
        scene_set_centre(s, head_dim / 2, 9);
    /* plain rows depend on the page that they begin in, and B fills no page */
    check_replay(&m, v.bits != 3 && !whole);
    if (prefill && !quick && head_dim == 128 && v.bits == 4)
        check_forgotten(&m);
    model_free(&m);
    family_end();
}

void check_cuda_step(void) {
    const struct kv_format exact = {.bits = 16, .scalar = SCALAR_BF16, .group = 0};
    check_formats("8/4", affine(8, 64), affine(4, 64), 128, 0);
    check_formats("8/4", affine(8, 64), affine(4, 64), 128, PREFILL | HALVES);
    check_formats("6/3", affine(6, 64), affine(3, 64), 128, PREFILL); /* plain rows too */
    check_formats("r8/4", rotated_format(8), rotated_format(4), 128, 0);
    check_formats("8/4", affine(8, 64), affine(4, 64), 128, CENTRED);
    check_formats("r8/4", rotated_format(8), rotated_format(4), 128, CENTRED);
    check_formats("t4", tile_format(4), tile_format(4), 128, CENTRED);
    check_errors_stick();
    if (quick)
        return;
    check_formats("4/4", affine(4, 64), affine(4, 64), 64, 0);
    check_formats("4/2 g32", affine(4, 32), affine(2, 32), 64, PREFILL);
    check_formats("bf16", exact, exact, 128, PREFILL | HALVES);
    check_formats("t4", tile_format(4), tile_format(4), 64, 0);
    check_formats("t3", tile_format(3), tile_format(3), 128, PREFILL);
    check_formats("t4", tile_format(4), tile_format(4), 64, PREFILL | CENTRED);
}

/* ---- times ----------------------------------------------------------------------------------- */

static void time_step(void *ctx) {
    struct model *m = ctx;
    enqueue_step(m, &m->scene.batch);
    cuda_step_submit(device);
}

static double us_per_step(struct model *m) {
    enum { WARM = 3, TIMES = 20 };
    cuda_time_us(device, time_step, m, WARM);
    return cuda_time_us(device, time_step, m, TIMES) / TIMES;
}

/* The matrices are several, so that they do not all stay in the L2 cache from layer to layer. */
void bench_step(void) {
    static const uint32_t counts[] = {1, 8, 32};
    struct scene_seq seqs[SEQS_MAX];
    printf("step: 32 layers, 32 over 8 heads of 128, seven matrices of 4096 inputs at 4 bits; 8/4 "
           "pages,\n"
           "      8192 tokens a sequence, one row each; microseconds a step\n"
           "  sequences   one by one    as a graph\n");
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
        model_make(&m, false, WEIGHTS_MAX, false);
        cuda_one_by_one(device, true);
        const double plain_us = us_per_step(&m);
        cuda_one_by_one(device, false);
        printf("  %9u %12.1f %13.1f\n", counts[i], plain_us, us_per_step(&m));
        fflush(stdout);
        model_free(&m);
    }
    case_begin("end of the bench"); /* gives the last one's buffers back */
}
