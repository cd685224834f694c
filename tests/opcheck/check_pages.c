/* SPDX-License-Identifier: Apache-2.0 */
/* check_pages.c: operations over pages and states against the reference's table, and what the
 * contract says of arenas and buffers. What kv_store writes is checked in check_encode.c.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "opcheck.h"

/* ---- buffers and arenas ---------------------------------------------------------------------- */

static struct backend_limits some_limits(void) {
    return (struct backend_limits){.rows = 32,
                                   .seqs = 4,
                                   .dim = 64,
                                   .head_dim = 64,
                                   .pages = 16,
                                   .groups = 1,
                                   .group = {{1, 1, 64, false}}};
}

static void check_buffers(void) {
    enum { BYTES = 3000 };
    if (!family_begin("buffers", "alloc, upload, write, read"))
        return;
    const struct backend_limits limits = some_limits();
    kvasir_error err = {0};
    case_begin("%d bytes", BYTES);
    device_begin(&limits, 8);
    uint8_t *host = plain(BYTES), *copy = plain(BYTES), *back = plain(BYTES);
    for (size_t i = 0; i < BYTES; i++)
        copy[i] = host[i] = (uint8_t)random_bits();
    uint8_t *buffer = backend_alloc(device, BYTES);
    const void *constant = backend_upload(device, copy, BYTES);
    check_that(buffer && constant, "no memory");
    backend_write(device, buffer, host, BYTES);
    memset(host, 0, BYTES); /* it was consumed */
    must(backend_read(device, back, buffer, BYTES, &err), &err, "read");
    check_that(memcmp(back, copy, BYTES) == 0, "what was written is not what is read");
    memset(back, 0, BYTES);
    must(backend_read(device, back, constant, BYTES, &err), &err, "read");
    check_that(memcmp(back, copy, BYTES) == 0, "what was uploaded is not what is read");
    backend_upload_free(device, constant);
    backend_free(device, buffer);
    family_end();
}

static void *arena_bytes(struct backend_arena *a, size_t at, size_t bytes) {
    kvasir_error err = {0};
    void *p = plain(bytes);
    must(backend_arena_read(device, a, at, p, bytes, &err), &err, "arena_read");
    return p;
}

static bool all_are(const uint8_t *p, size_t n, uint8_t value) {
    while (n > 0 && p[n - 1] == value)
        n--;
    return n == 0;
}

/* Pages of 3 units at addresses 0, 3, 6, 9; memory comes in units of its own. */
static void check_arena(void) {
    enum { PAGE = 3 * PAGE_ADDR_UNIT, ARENA = 8 << 20 };
    if (!family_begin("arena", "take, write, copy, zero, release"))
        return;
    const struct backend_limits limits = some_limits();
    case_begin("pages of %d bytes", (int)PAGE);
    device_begin(&limits, 8);
    struct backend_arena *a = backend_arena_create(device, ARENA);
    if (!a)
        give_up("no arena of %d bytes", (int)ARENA);
    uint8_t *ones = plain(PAGE);
    memset(ones, 1, PAGE);
    for (uint32_t i = 0; i < 4; i++) {
        backend_arena_take(device, a, 3 * i, PAGE, true);
        check_that(all_are(arena_bytes(a, page_offset(3 * i), PAGE), PAGE, 0), "page %u: no zeros",
                   i);
    }
    backend_arena_write(device, a, page_offset(3) + 5, ones, PAGE - 5);
    backend_arena_copy(device, a, 6, 3, PAGE);
    memset(ones, 2, PAGE); /* it was consumed */
    const uint8_t *p = arena_bytes(a, page_offset(6), PAGE);
    check_that(all_are(p, 5, 0) && all_are(p + 5, PAGE - 5, 1), "a copy of a page");
    check_that(all_are(arena_bytes(a, 0, PAGE), PAGE, 0) &&
                   all_are(arena_bytes(a, page_offset(9), PAGE), PAGE, 0),
               "pages beside it");
    backend_arena_zero(device, a, page_offset(6) + 100, 7, 50, 3);
    p = arena_bytes(a, page_offset(6), PAGE);
    for (size_t i = 0; i < 3; i++)
        check_that(all_are(p + 100 + i * 50, 7, 0) && all_are(p + 107 + i * 50, 43, 1),
                   "piece %zu of a page", i);
    check_that(all_are(p + 5, 95, 1) && all_are(p + 250, PAGE - 250, 1), "bytes beside pieces");
    backend_arena_take(device, a, 3, PAGE, false);
    check_that(all_are(arena_bytes(a, page_offset(3), PAGE), PAGE, 0), "a page that is used again");
    backend_arena_release(device, a, 6, PAGE);
    backend_arena_take(device, a, 6, PAGE, true);
    check_that(all_are(arena_bytes(a, page_offset(6), PAGE), PAGE, 0), "a released page");
    /* a whole extent that others do not share */
    backend_arena_take(device, a, (4 << 20) / PAGE_ADDR_UNIT, 2 << 20, true);
    backend_arena_write(device, a, 4 << 20, ones, PAGE);
    backend_arena_release(device, a, (4 << 20) / PAGE_ADDR_UNIT, 2 << 20);
    backend_arena_take(device, a, (4 << 20) / PAGE_ADDR_UNIT, 2 << 20, true);
    check_that(all_are(arena_bytes(a, 4 << 20, PAGE), PAGE, 0), "a released extent");
    backend_arena_destroy(device, a);
    family_end();
}

/* ---- formats --------------------------------------------------------------------------------- */

static const struct pair {
    const char *name;
    struct kv_format k, v;
} PAIRS[] = {
    {"f16", {16, SCALAR_F16, 0, KV_ROWS}, {16, SCALAR_F16, 0, KV_ROWS}},
    {"bf16", {16, SCALAR_BF16, 0, KV_ROWS}, {16, SCALAR_BF16, 0, KV_ROWS}},
    {"f32", {32, SCALAR_F32, 0, KV_ROWS}, {32, SCALAR_F32, 0, KV_ROWS}},
    {"8/8", {8, SCALAR_F16, 64, KV_ROWS}, {8, SCALAR_F16, 64, KV_ROWS}},
    {"8/4", {8, SCALAR_F16, 64, KV_ROWS}, {4, SCALAR_F16, 64, KV_ROWS}},
    {"4/2 g32", {4, SCALAR_F16, 32, KV_ROWS}, {2, SCALAR_F16, 32, KV_ROWS}},
    {"6/3", {6, SCALAR_F16, 64, KV_ROWS}, {3, SCALAR_F16, 64, KV_ROWS}},
    {"5/5 bf16", {5, SCALAR_BF16, 32, KV_ROWS}, {5, SCALAR_BF16, 32, KV_ROWS}},
    {"r8/4", {8, SCALAR_F16, 64, KV_ROTATED}, {4, SCALAR_F16, 64, KV_ROTATED}},
    {"t4", {4, SCALAR_F16, 0, KV_TILE}, {4, SCALAR_F16, 0, KV_TILE}},
};
enum { N_PAIRS = sizeof PAIRS / sizeof *PAIRS };

/* False, and prints so, if the device lacks these pages. */
static bool device_has_pages(const struct page_layout *l, const char *name) {
    kvasir_error err = {0};
    const kvasir_status status = backend_check_layout(device, l, &err);
    if (status == KVASIR_OK)
        return true;
    check_that(status == KVASIR_ERR_UNSUPPORTED, "check_layout: %s", err.text);
    printf("absent: pages %s\n", name);
    return false;
}

static void check_convert(void) {
    enum { LAYERS = 2, KV_HEADS = 2, HEAD_DIM = 64, ROWS = 50, TO = 64 };
    if (!family_begin("page", "convert"))
        return;
    static const uint32_t WAYS[][2] = {{0, 4}, {0, 3}, {3, 5}, {4, 4}, {1, 0}};
    const struct backend_limits limits = some_limits();
    for (size_t i = 0; i < sizeof WAYS / sizeof *WAYS; i++) {
        const struct pair *from = &PAIRS[WAYS[i][0]], *to = &PAIRS[WAYS[i][1]];
        struct page_layout l[2];
        page_layout_init(&l[0], LAYERS, KV_HEADS, HEAD_DIM, from->k, from->v);
        page_layout_init(&l[1], LAYERS, KV_HEADS, HEAD_DIM, to->k, to->v);
        case_begin("%s to %s", from->name, to->name);
        device_begin(&limits, 8);
        uint8_t *page = plain(l[0].page_bytes), *want = plain(l[1].page_bytes);
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            for (uint32_t head = 0; head < KV_HEADS; head++)
                for (uint32_t t = 0; t < ROWS; t++) {
                    uint8_t *k = page + page_tile(&l[0], layer, head, TILE_K);
                    tile_encode_row(&l[0].k, k, t, plain_floats(HEAD_DIM));
                    tile_encode_row(&l[0].v, k + l[0].k.bytes, t, plain_floats(HEAD_DIM));
                }
        const struct page_conversion c = {
            .from = &l[0], .to = &l[1], .from_addr = 1, .to_addr = TO, .rows = ROWS};
        page_convert(&c, page, want);
        struct backend_arena *a = backend_arena_create(device, 2 << 20);
        backend_arena_take(device, a, 1, l[0].page_bytes, true);
        backend_arena_take(device, a, TO, l[1].page_bytes, true);
        backend_arena_write(device, a, page_offset(1), page, l[0].page_bytes);
        backend_page_convert(device, a, &c);
        check_that(
            memcmp(arena_bytes(a, page_offset(TO), l[1].page_bytes), want, l[1].page_bytes) == 0,
            "other bytes than the definition's");
        backend_arena_destroy(device, a);
    }
    family_end();
}

/* ---- attention ------------------------------------------------------------------------------- */

enum { LAYERS = 2, KV_HEADS = 2 };

/* Heads with pages of some format. */
static const struct shape {
    struct pair formats;
    uint32_t head_dim, gqa;
} SHAPES[] = {
    {{"f16", {16, SCALAR_F16, 0, KV_ROWS}, {16, SCALAR_F16, 0, KV_ROWS}}, 80, 1},
    {{"8/4 g32", {8, SCALAR_F16, 32, KV_ROWS}, {4, SCALAR_F16, 32, KV_ROWS}}, 96, GQA_MAX},
    {{"bf16", {16, SCALAR_BF16, 0, KV_ROWS}, {16, SCALAR_BF16, 0, KV_ROWS}}, 112, 2},
    {{"2/6", {2, SCALAR_F16, 64, KV_ROWS}, {6, SCALAR_F16, 64, KV_ROWS}}, 192, 7},
    {{"4/4 g128", {4, SCALAR_F16, 128, KV_ROWS}, {4, SCALAR_BF16, 128, KV_ROWS}}, 256, 4},
    {{"5/8 g128", {5, SCALAR_BF16, 128, KV_ROWS}, {8, SCALAR_F16, 128, KV_ROWS}}, 128, 5},
    {{"8/f32", {8, SCALAR_F16, 32, KV_ROWS}, {32, SCALAR_F32, 0, KV_ROWS}}, 32, 8},
    {{"3/2", {3, SCALAR_F16, 64, KV_ROWS}, {2, SCALAR_F16, 64, KV_ROWS}}, 512, 1},
    {{"t5/4", {5, SCALAR_F16, 0, KV_TILE}, {4, SCALAR_F16, 0, KV_TILE}}, 128, 4},
    {{"t3", {3, SCALAR_F16, 0, KV_TILE}, {3, SCALAR_F16, 0, KV_TILE}}, 96, 8},
    {{"t8/2", {8, SCALAR_F16, 0, KV_TILE}, {2, SCALAR_F16, 0, KV_TILE}}, 256, 1},
    {{"t2/8", {2, SCALAR_F16, 0, KV_TILE}, {8, SCALAR_F16, 0, KV_TILE}}, 64, GQA_MAX},
    {{"t6/5", {6, SCALAR_F16, 0, KV_TILE}, {5, SCALAR_F16, 0, KV_TILE}}, 512, 2},
    {{"r5/3 g32", {5, SCALAR_F16, 32, KV_ROTATED}, {3, SCALAR_F16, 32, KV_ROTATED}}, 160, 3},
};
enum { N_SHAPES = sizeof SHAPES / sizeof *SHAPES, HEAD_DIM = 64, GQA = 3 };

/* Rows of many tokens and of one, windows, kept positions, two formats, more than one split. */
static const struct scene_seq SEQS[] = {
    {.length = 700, .rows = 5, .span = UINT32_MAX, .switch_at = 4},
    {.length = 130, .rows = 1, .keep = 4, .span = 60, .switch_at = UINT32_MAX},
    {.length = 2300, .rows = 1, .span = UINT32_MAX, .switch_at = UINT32_MAX},
    {.length = 70, .rows = 70, .span = UINT32_MAX, .switch_at = 0},
    {.length = 600, .rows = 40, .keep = 70, .span = 100, .switch_at = 3},
};
enum { N_SEQS = sizeof SEQS / sizeof *SEQS };

static void compare_attention(const struct scene *c, const struct attention_args *args,
                              const float *device_sinks, double tolerance) {
    const uint32_t rows = c->batch.rows, layer = LAYERS - 1;
    const size_t width = (size_t)c->heads * c->head_dim, bytes = rows * width * sizeof(float);
    const struct batch ref_batch = scene_reference_batch(c);
    const float *q = plain_floats(rows * width);
    float *want = plain(bytes), *out = device_buffer(bytes);
    const float *device_q = device_copy(q, bytes);
    struct attention_args device_args = *args;
    device_args.sinks = device_sinks;
    backend_step_begin(reference, &ref_batch, 1);
    op_attention(reference, &ref_batch, ref_batch.views, layer, q, args, want);
    backend_step_begin(device, &c->batch, 1);
    op_attention(device, &c->batch, c->batch.views, layer, device_q, &device_args, out);
    const float *got = from_device(out, bytes);
    check_rows_near("out", got, want, (size_t)rows * c->heads, c->head_dim, tolerance);
    for (uint32_t s = 0; s < c->n_seqs; s++) { /* alone, and only its last rows */
        const struct batch_seq *seq = &c->batch.seqs[s];
        const uint32_t first = random_below(seq->rows), n = seq->rows - first;
        struct batch_seq one;
        const struct batch b = scene_part(c, s, first, n, &one);
        const size_t at = (seq->row + first) * width, part = n * width;
        float *alone = device_buffer(part * sizeof *alone);
        backend_step_begin(device, &b, 1);
        op_attention(device, &b, b.views, layer, device_q + at, &device_args, alone);
        check_that(
            memcmp(from_device(alone, part * sizeof *alone), got + at, part * sizeof *alone) == 0,
            "sequence %u from row %u on: other bits alone", s, first);
    }
}

static void make_scene(struct scene *c, struct scene_seq *seqs, const struct shape *s) {
    memcpy(seqs, SEQS, sizeof SEQS);
    *c = (struct scene){.heads = KV_HEADS * s->gqa,
                        .kv_heads = KV_HEADS,
                        .head_dim = s->head_dim,
                        .layers = LAYERS,
                        .n_seqs = N_SEQS,
                        .seqs = seqs,
                        .tail_pages = random_below(4)};
    page_layout_init(&c->layouts[0], LAYERS, KV_HEADS, s->head_dim, PAIRS[0].k, PAIRS[0].v);
    page_layout_init(&c->layouts[1], LAYERS, KV_HEADS, s->head_dim, s->formats.k, s->formats.v);
}

/* Without and with a soft cap and sinks. */
static void check_attention(const struct shape *s) {
    if (!family_begin("attention", "%s, %u over %d heads of %u", s->formats.name, KV_HEADS * s->gqa,
                      (int)KV_HEADS, s->head_dim))
        return;
    for (int more = 0; more < 2; more++) {
        struct scene c;
        struct scene_seq seqs[N_SEQS];
        make_scene(&c, seqs, s);
        c.softcap_or_sinks = more != 0;
        case_begin("%d sequences, tails of %u pages%s", (int)N_SEQS, c.tail_pages,
                   more ? ", soft cap and sinks" : "");
        scene_set_bases(&c, true);
        if (!device_has_pages(&c.layouts[1], s->formats.name))
            break;
        scene_build(&c, true);
        struct attention_args args = {.heads = c.heads, .scale = 0.125f};
        const float *sinks = NULL;
        if (more) {
            args.softcap = 3;
            args.sinks = plain_floats(c.heads);
            sinks = device_copy(args.sinks, c.heads * sizeof(float));
        }
        compare_attention(&c, &args, sinks, choice->pages_near);
        scene_free(&c);
    }
    family_end();
}

/* More rows than have a block for each part of what they see: the bits are the same. */
static void check_many_rows(void) {
    if (!family_begin("attention", "6/3, many rows"))
        return;
    struct scene_seq seq = {
        .length = 2500, .rows = 900, .span = UINT32_MAX, .switch_at = UINT32_MAX};
    struct scene c = {.heads = GQA_MAX,
                      .kv_heads = 1,
                      .head_dim = 32,
                      .layers = LAYERS,
                      .n_seqs = 1,
                      .seqs = &seq};
    const struct kv_format k = {6, SCALAR_F16, 32, KV_ROWS}, v = {3, SCALAR_F16, 32, KV_ROWS};
    page_layout_init(&c.layouts[0], LAYERS, 1, c.head_dim, k, v);
    case_begin("%u rows", seq.rows);
    scene_build(&c, true);
    const struct attention_args args = {.heads = c.heads, .scale = 0.125f};
    compare_attention(&c, &args, NULL, choice->pages_near);
    scene_free(&c);
    family_end();
}

/* ---- centred keys ---------------------------------------------------------------------------- */

/* K and V of the step's rows are stored by each side in its own way, then attended to. Codes may
 * differ by one where a value is at the edge of two. */
static void compare_centred(const struct scene *c) {
    const struct batch ref_batch = scene_reference_batch(c);
    const size_t n = (size_t)c->batch.rows * KV_HEADS * c->head_dim;
    const struct attention_args args = {.heads = c->heads, .scale = 0.125f};
    backend_step_begin(reference, &ref_batch, 1);
    backend_step_begin(device, &c->batch, 1);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const float *k = plain_floats(n), *v = plain_floats(n);
        op_kv_store(reference, &ref_batch, ref_batch.views, layer, k, v);
        op_kv_store(device, &c->batch, c->batch.views, layer, device_copy(k, n * sizeof *k),
                    device_copy(v, n * sizeof *v));
    }
    compare_attention(c, &args, NULL, choice->pages_near > 0 ? choice->pages_near + 1e-2 : 0);
}

/* The first pages of sequences have a centre, then their last ones. */
static void check_centred(const struct shape *shape, uint32_t pairs, uint32_t per_head) {
    if (!family_begin("attention", "centred keys, %s, heads of %u", shape->formats.name,
                      shape->head_dim))
        return;
    for (int last = 0; last < 2; last++) {
        struct scene c;
        struct scene_seq seqs[N_SEQS];
        kvasir_error err = {0};
        make_scene(&c, seqs, shape);
        c.layouts[0] = c.layouts[1];
        c.layouts[last].centred = true;
        case_begin("%u pairs of %u, in the %s pages", per_head, pairs, last ? "last" : "first");
        scene_set_bases(&c, true);
        scene_build(&c, true);
        must(backend_check_layout(device, &c.layouts[last], &err), &err, "check_layout");
        scene_set_centre(&c, pairs, per_head);
        compare_centred(&c);
        scene_free(&c);
    }
    family_end();
}

static void check_attentions(void) {
    for (uint32_t i = 0; i < N_PAIRS; i++)
        check_attention(&(struct shape){PAIRS[i], HEAD_DIM, GQA});
    for (uint32_t i = 0; i < N_SHAPES;
         i++) /* of whole pages kcheck has all for the CPU's kernels */
        if (choice->cuda || !kv_format_whole(SHAPES[i].formats.k))
            check_attention(&SHAPES[i]);
    if (choice->cuda && !quick)
        check_many_rows();
    if (!device_has(kv_store))
        return;
    /* pairs of the rope, and of a head: whole eights or not, more than decode keeps, more than
     * prefill has room for */
    check_centred(&(struct shape){PAIRS[4], HEAD_DIM, GQA}, 32, 5);
    check_centred(&(struct shape){PAIRS[4], 128, 2}, 64, 16);
    check_centred(&(struct shape){PAIRS[4], 256, 1}, 128, 40);
    check_centred(&(struct shape){PAIRS[0], 128, 2}, 64, 40);
    check_centred(&(struct shape){PAIRS[8], HEAD_DIM, GQA}, 32, 20);
    check_centred(&(struct shape){PAIRS[8], 128, 4}, 32, 13);
    check_centred(&(struct shape){PAIRS[9], 128, 2}, 64, 20);
    check_centred(&(struct shape){PAIRS[9], 128, 7}, 64, 9);
    check_centred(&(struct shape){PAIRS[9], 256, 12}, 128, 20);
}

/* ---- recurrent layers ------------------------------------------------------------------------ */

enum { STATES = 3, STATE_UNITS = 128, STATE_AT = 192, ROWS_OF_ALL = 24 };

/* Three sequences of 1, 19 and 4 rows, their states in an arena. */
struct recurrent {
    struct backend_arena *arena[2]; /* of the reference, of the device */
    struct state_view states[2][STATES];
    struct batch_seq seqs[STATES];
    struct batch batch[2];
};

static void recurrent_make(struct recurrent *r) {
    static const uint32_t N_ROWS[STATES] = {1, 19, 4};
    struct backend *const backends[2] = {reference, device};
    uint32_t row = 0;
    for (uint32_t s = 0; s < STATES; s++) {
        r->seqs[s] = (struct batch_seq){row, N_ROWS[s], 10 * s};
        row += N_ROWS[s];
    }
    ASSERT(row == ROWS_OF_ALL);
    for (int i = 0; i < 2; i++) {
        r->arena[i] = backend_arena_create(backends[i], 2 << 20);
        for (uint32_t s = 0; s < STATES; s++) {
            r->states[i][s] = (struct state_view){r->arena[i], (STATES - 1 - s) * STATE_UNITS};
            backend_arena_take(backends[i], r->arena[i], r->states[i][s].addr,
                               (size_t)STATE_UNITS * PAGE_ADDR_UNIT, true);
        }
        r->batch[i] = (struct batch){
            .rows = ROWS_OF_ALL, .n_seqs = STATES, .seqs = r->seqs, .states = r->states[i]};
    }
}

static void recurrent_free(struct recurrent *r) {
    backend_arena_destroy(reference, r->arena[0]);
    backend_arena_destroy(device, r->arena[1]);
}

/* A step of an operation over a batch: its y. `at` is the first row's place in all inputs. */
struct recurrent_op {
    size_t width;       /* of a row of y */
    size_t state_bytes; /* from STATE_AT on */
    void (*run)(struct backend *b, const struct batch *batch, int side, uint32_t at, float *y);
};

/* Two steps on both sides; then the second sequence again on the device, one row after the other
 * from the state after the first step: the same bits. */
static void check_recurrent(const struct recurrent_op *op) {
    const size_t n = ROWS_OF_ALL * op->width;
    struct recurrent r;
    recurrent_make(&r);
    kvasir_error err = {0};
    float *want = plain(n * sizeof *want), *y = device_buffer(n * sizeof *y);
    const size_t one = page_offset(r.states[1][1].addr) + STATE_AT;
    uint8_t *before = plain(op->state_bytes);
    for (int step = 0; step < 2; step++) {
        must(backend_arena_read(device, r.arena[1], one, before, op->state_bytes, &err), &err,
             "arena_read");
        backend_step_begin(reference, &r.batch[0], 0);
        op->run(reference, &r.batch[0], 0, 0, want);
        backend_step_begin(device, &r.batch[1], 0);
        op->run(device, &r.batch[1], 1, 0, y);
        check_rows_near("y", from_device(y, n * sizeof *y), want, ROWS_OF_ALL, op->width,
                        choice->rows_near * 10);
        for (uint32_t s = 0; s < STATES; s++) {
            const size_t at = page_offset(r.states[1][s].addr) + STATE_AT;
            float *state = plain(op->state_bytes);
            must(backend_arena_read(reference, r.arena[0], at, state, op->state_bytes, &err), &err,
                 "arena_read");
            check_rows_near("state", arena_bytes(r.arena[1], at, op->state_bytes), state, 1,
                            op->state_bytes / sizeof(float), choice->rows_near * 10);
        }
    }
    const float *got = from_device(y, n * sizeof *y);
    backend_arena_write(device, r.arena[1], one, before, op->state_bytes);
    for (uint32_t i = 0; i < r.seqs[1].rows; i++) {
        const struct batch_seq seq = {.row = 0, .rows = 1, .pos = r.seqs[1].pos + i};
        const struct batch b = {.rows = 1, .n_seqs = 1, .seqs = &seq, .states = &r.states[1][1]};
        float *alone = device_buffer(op->width * sizeof *alone);
        backend_step_begin(device, &b, 0);
        op->run(device, &b, 1, r.seqs[1].row + i, alone);
        check_that(memcmp(from_device(alone, op->width * sizeof *alone),
                          got + (r.seqs[1].row + i) * op->width, op->width * sizeof *alone) == 0,
                   "row %u alone: other bits", i);
    }
    recurrent_free(&r);
}

enum { CONV_CHANNELS = 300 };
static struct {
    const float *x[2], *w[2];
    uint32_t width;
} conv;

static void run_conv(struct backend *b, const struct batch *batch, int side, uint32_t at,
                     float *y) {
    op_short_conv(b, batch, STATE_AT, conv.x[side] + (size_t)at * CONV_CHANNELS, conv.w[side],
                  conv.width, CONV_CHANNELS, conv.width % 2 == 0, y);
}

enum { KEY_HEADS = 2, VALUE_HEADS = 4 };
static struct {
    const float *qkv[2], *beta[2], *a[2];
    struct delta_layer layer[2];
    size_t row; /* values of qkv */
} delta;

static void run_delta(struct backend *b, const struct batch *batch, int side, uint32_t at,
                      float *y) {
    op_delta_rule(b, batch, STATE_AT, delta.qkv[side] + at * delta.row,
                  delta.beta[side] + (size_t)at * VALUE_HEADS,
                  delta.a[side] + (size_t)at * VALUE_HEADS, &delta.layer[side], y);
}

static void put_both(const float *side[2], size_t n) {
    side[0] = plain_floats(n);
    side[1] = device_copy(side[0], n * sizeof(float));
}

static void check_convs(const struct backend_limits *limits) {
    static const uint32_t WIDTHS[] = {4, 2, 3, 7, 64};
    if (!device_has(short_conv) || !family_begin("short_conv", "%d channels", CONV_CHANNELS))
        return;
    for (size_t i = 0; i < sizeof WIDTHS / sizeof *WIDTHS; i++) {
        conv.width = WIDTHS[i];
        case_begin("width %u", conv.width);
        device_begin(limits, 8);
        put_both(conv.x, (size_t)ROWS_OF_ALL * CONV_CHANNELS);
        put_both(conv.w, (size_t)conv.width * CONV_CHANNELS);
        check_recurrent(&(struct recurrent_op){
            CONV_CHANNELS, sizeof(float) * (conv.width - 1) * CONV_CHANNELS, run_conv});
    }
    family_end();
}

static void delta_case(const struct backend_limits *limits, uint32_t key_dim, uint32_t value_dim,
                       bool cycle) {
    const float *rate[2], *bias[2];
    case_begin("%d value heads, keys of %u, values of %u", VALUE_HEADS, key_dim, value_dim);
    device_begin(limits, 8);
    delta.row = 2 * (size_t)KEY_HEADS * key_dim + (size_t)VALUE_HEADS * value_dim;
    put_both(delta.qkv, ROWS_OF_ALL * delta.row);
    put_both(delta.beta, (size_t)ROWS_OF_ALL * VALUE_HEADS);
    put_both(delta.a, (size_t)ROWS_OF_ALL * VALUE_HEADS);
    float *rates = plain_floats(VALUE_HEADS);
    for (uint32_t h = 0; h < VALUE_HEADS; h++) /* positive, so that states do not grow */
        rates[h] = fabsf(rates[h]);
    rate[0] = rates;
    rate[1] = device_copy(rates, VALUE_HEADS * sizeof *rates);
    put_both(bias, VALUE_HEADS);
    for (int side = 0; side < 2; side++)
        delta.layer[side] = (struct delta_layer){KEY_HEADS,  VALUE_HEADS, key_dim, value_dim,
                                                 rate[side], bias[side],  cycle};
    check_recurrent(&(struct recurrent_op){
        (size_t)VALUE_HEADS * value_dim, sizeof(float) * VALUE_HEADS * (size_t)key_dim * value_dim,
        run_delta});
}

static void check_recurrents(void) {
    static const struct {
        uint32_t key_dim, value_dim;
    } SIZES[] = {{32, 24}, {128, 70}, {129, 33}, {257, 24}};
    const struct backend_limits limits = some_limits();
    check_convs(&limits);
    for (int cycle = 0; cycle < 2 && device_has(delta_rule); cycle++) {
        if (!family_begin("delta_rule", "keys %s", cycle ? "cycle" : "in turn"))
            continue;
        for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++)
            delta_case(&limits, SIZES[i].key_dim, SIZES[i].value_dim, cycle != 0);
        family_end();
    }
}

void check_pages(void) {
    check_buffers();
    check_arena();
    check_convert();
    if (device_has(attention))
        check_attentions();
    check_recurrents();
}
