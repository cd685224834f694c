/* SPDX-License-Identifier: Apache-2.0 */
/* Centred keys: subtracting a constant from the keys and adding its part to the scores changes only
 * rounding, at any position; which pairs are chosen; the calibration file and its refusals. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/centre.h"

#include "centres.h"
#include "model_files.h"
#include "random_programs.h"
#include "tensors.h"

#define TINY SHARED_DIR "/fixtures/tiny/"

static kvasir_error err;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static float random_float(float size) {
    return size * ((float)random_below(20001) / 10000 - 1);
}

/* ---- attention over centred pages ------------------------------------------------------------ */

/* A sequence whose positions before `start` were dropped: two layers of two KV heads with three
 * query heads each, in 32-bit pages, once with centred keys and once without. Each of the last
 * tokens attends to the SPAN positions before it. */
enum { LAYERS = 2, KV_HEADS = 2, GQA = 3, HEADS = KV_HEADS * GQA, DIM = 64 };
enum { TOKENS = 800, SPAN = 700, QUERIES = TOKENS - SPAN };

struct pages {
    struct page_layout layout;
    struct kv_page table[TOKENS / TILE_TOKENS + 2];
    struct kv_view view;
};

static void pages_init(struct pages *p, struct backend *b, uint32_t start,
                       const struct key_centre *c) {
    struct kv_format f32 = {32, SCALAR_F32, 0, KV_ROWS};
    *p = (struct pages){0};
    page_layout_init(&p->layout, LAYERS, KV_HEADS, DIM, f32, f32);
    p->layout.centred = c != NULL;
    uint32_t n = sizeof p->table / sizeof *p->table;
    struct backend_arena *arena = backend_arena_create(b, n * p->layout.page_bytes);
    for (uint32_t i = 0; i < n; i++)
        p->table[i].addr = (uint32_t)(i * p->layout.page_bytes / PAGE_ADDR_UNIT);
    p->view = (struct kv_view){.arena = arena,
                               .layouts = &p->layout,
                               .centre = c,
                               .pages = p->table,
                               .n_pages = n,
                               .base_page = start / TILE_TOKENS,
                               .span = SPAN};
}

static struct centres *make_centre(uint32_t n) {
    struct centres *c = calloc(1, sizeof *c);
    c->inv_freq = calloc(n, sizeof *c->inv_freq);
    c->first = calloc(LAYERS * KV_HEADS + 1, sizeof *c->first);
    c->pairs = calloc((size_t)LAYERS * KV_HEADS * n, sizeof *c->pairs);
    for (uint32_t j = 0; j < n; j++)
        c->inv_freq[j] = pow(10000, -1.0 * j / n);
    uint32_t at = 0, most = 0;
    for (uint32_t head = 0; head < LAYERS * KV_HEADS; head++) {
        for (uint32_t j = 0; head != 1 && j < n; j++) /* head 1 has no pairs */
            if (random_below(3))
                c->pairs[at++] = (struct centre_pair){j, random_float(20), random_float(20)};
        c->first[head + 1] = at;
        most = at - c->first[head] > most ? at - c->first[head] : most;
    }
    c->centre = (struct key_centre){.layers = LAYERS,
                                    .kv_heads = KV_HEADS,
                                    .n = n,
                                    .pairs_max = most,
                                    .inv_freq = c->inv_freq,
                                    .first = c->first,
                                    .pairs = c->pairs};
    return c;
}

/* k [rows][KV_HEADS][DIM]: small noise plus rope(c, t). */
static void fill_keys(float *k, const struct key_centre *c, uint32_t layer, uint32_t start,
                      uint32_t rows) {
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t head = 0; head < KV_HEADS; head++, k += DIM) {
            for (uint32_t i = 0; i < DIM; i++)
                k[i] = random_float(1);
            key_centre_add(c, layer, head, start + r, 1, k);
        }
}

static void fill_random(float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        x[i] = random_float(1);
}

static double worst_difference(const float *a, const float *b, size_t n) {
    double worst = 0;
    for (size_t i = 0; i < n; i++)
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    return worst;
}

static void check_attention(enum cpu_tier tier, uint32_t start, uint32_t n) {
    struct backend *b;
    struct backend_cpu_options o = {.threads = 2, .tier = tier, .act_bits = 16};
    struct centres *c = make_centre(n);
    need(backend_cpu_create(&b, &o, &err));
    need(backend_reserve(b, &(struct backend_limits){.rows = TOKENS, .dim = 256, .head_dim = DIM},
                         &err));
    need(backend_reserve_centre(b, &c->centre, &err));
    struct pages plain, centred;
    pages_init(&plain, b, start, NULL);
    pages_init(&centred, b, start, &c->centre);
    size_t kv = (size_t)TOKENS * KV_HEADS * DIM, qs = (size_t)QUERIES * HEADS * DIM;
    float *k = malloc(kv * 4), *v = malloc(kv * 4), *q = malloc(qs * 4);
    float *out = malloc(qs * 4), *want = malloc(qs * 4);
    struct batch_seq all = {.rows = TOKENS, .pos = start};
    struct batch_seq last = {.rows = QUERIES, .pos = start + SPAN};
    struct attention_args args = {.heads = HEADS, .scale = 0.125f};
    struct batch store = {.rows = TOKENS, .n_seqs = 1, .seqs = &all};
    struct batch attend = {.rows = QUERIES, .n_seqs = 1, .seqs = &last};
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        fill_keys(k, &c->centre, layer, start, TOKENS);
        fill_random(v, kv);
        fill_random(q, qs);
        op_kv_store(b, &store, &plain.view, layer, k, v);
        op_kv_store(b, &store, &centred.view, layer, k, v);
        op_attention(b, &attend, &plain.view, layer, q, &args, want);
        op_attention(b, &attend, &centred.view, layer, q, &args, out);
        double worst = worst_difference(out, want, qs);
        if (worst > 5e-5) /* scores reach 100, with errors of a few times 1e-7 of that */
            fail_msg("tier %s, from %u, %u pairs, layer %u: off by %g", cpu_tier_name(tier), start,
                     n, layer, worst);
    }
    backend_arena_destroy(b, plain.view.arena);
    backend_arena_destroy(b, centred.view.arena);
    backend_destroy(b);
    free(k);
    free(v);
    free(q);
    free(out);
    free(want);
    free(c->inv_freq);
    free(c->first);
    free(c->pairs);
    free(c);
}

static void test_attention(void **state) {
    (void)state;
    /* from the start of a split, from inside one, with higher digits in its number, and far beyond
     * any context, where the angles themselves are only known to 1e-6 */
    static const uint32_t STARTS[] = {0, 448, 16 * 512 - 128, 512 * 4096 + 64, 1u << 30};
    for (int tier = 0; tier < CPU_TIER_COUNT; tier++)
        for (size_t i = 0; cpu_tier_have((enum cpu_tier)tier) && i < 5; i++)
            check_attention((enum cpu_tier)tier, STARTS[i], i % 2 ? 24 : 32);
}

/* ---- choosing -------------------------------------------------------------------------------- */

static kvasir_model *open_tiny(const char *name) {
    char path[512];
    kvasir_model *m;
    snprintf(path, sizeof path, TINY "%s", name);
    need(kvasir_model_open(path, &m, &err));
    return m;
}

static float *mean_at(struct key_stats *s, size_t head, uint32_t pair) {
    return s->mean + (head * s->n + pair) * 2;
}

/* All spreads are 1, and there are no constants. */
static void flat_stats(struct key_stats *s, const kvasir_model *m) {
    need(key_stats_init(s, m->model, &err));
    for (size_t i = 0; i < (size_t)s->layers * s->kv_heads * s->n; i++)
        s->rms[i] = 1;
}

static void test_choosing(void **state) {
    (void)state;
    kvasir_model *m = open_tiny("llama");
    struct key_stats s;
    struct centres *c;
    flat_stats(&s, m);
    need(centres_choose(&s, m->model, false, &c, &err));
    assert_null(c); /* nothing to subtract */

    mean_at(&s, 1, 3)[0] = -5;
    mean_at(&s, 1, 2)[1] = 4;
    mean_at(&s, 0, 0)[0] = 0.5f; /* less than the spread */
    mean_at(&s, 0, 1)[0] = NAN;
    need(centres_choose(&s, m->model, false, &c, &err));
    assert_non_null(c);
    assert_int_equal(c->first[1], 0);
    assert_int_equal(c->first[2], 2);
    assert_int_equal(c->first[s.layers * s.kv_heads], 2);
    assert_int_equal(c->centre.pairs_max, 2);
    assert_int_equal(c->pairs[0].pair, 2); /* in ascending order */
    assert_int_equal(c->pairs[1].pair, 3);
    assert_true(c->pairs[0].c1 == 0 && c->pairs[0].c2 == 4);
    assert_true(c->pairs[1].c1 == -5 && c->pairs[1].c2 == 0);
    centres_destroy(c);

    /* more than the budget: those largest relative to their head's spread are kept */
    size_t heads = (size_t)s.layers * s.kv_heads;
    for (size_t head = 0; head < heads; head++)
        for (uint32_t j = 0; j < s.n; j++) {
            mean_at(&s, head, j)[0] = head == 0 ? 1000 : 100 - (float)j;
            s.rms[head * s.n + j] = head == 0 ? 500 : 1;
        }
    need(centres_choose(&s, m->model, false, &c, &err));
    assert_non_null(c);
    size_t taken = c->first[heads];
    assert_int_equal(taken, heads * s.n / 8); /* the budget: an eighth of all pairs */
    assert_int_equal(c->first[1], 0);         /* the large spread of head 0 hides its constants */
    for (size_t head = 1; head < heads; head++)
        for (uint32_t i = c->first[head]; i < c->first[head + 1]; i++)
            assert_int_equal(c->pairs[i].pair, i - c->first[head]);
    centres_destroy(c);
    key_stats_deinit(&s);
    kvasir_model_close(m);
}

/* If a tile holds its mean apart, only what turns within the tile counts. */
static void test_choosing_turning(void **state) {
    (void)state;
    kvasir_model *m = open_tiny("llama");
    struct key_stats s;
    struct centres *c;
    double w[ROPE_PAIRS_MAX];
    flat_stats(&s, m);
    (void)model_inv_freq(m->model, 0, 0, w);
    const uint32_t slow = s.n - 1;
    const double half = TILE_TOKENS * w[slow] / 2, part = sqrt(1 - pow(sin(half) / half, 2));
    assert_true(part < 0.1);
    mean_at(&s, 1, 0)[0] = 1.1f;                    /* turns many times in a tile */
    mean_at(&s, 1, slow)[1] = (float)(0.99 / part); /* many spreads, but hardly turns */
    mean_at(&s, 2, slow)[1] = (float)(-1.01 / part);
    need(centres_choose(&s, m->model, true, &c, &err));
    assert_int_equal(c->first[s.layers * s.kv_heads], 2);
    assert_int_equal(c->first[2], 1);
    assert_int_equal(c->pairs[0].pair, 0);
    assert_int_equal(c->pairs[1].pair, slow);
    assert_true(c->pairs[1].c2 < 0); /* the whole constant is taken off, not a part */
    assert_true(fabs((double)c->pairs[1].c2 * part + 1.01) < 1e-5);
    centres_destroy(c);
    need(centres_choose(&s, m->model, false, &c, &err));
    assert_int_equal(c->first[s.layers * s.kv_heads], 3);
    centres_destroy(c);
    key_stats_deinit(&s);
    kvasir_model_close(m);
}

/* ---- the file -------------------------------------------------------------------------------- */

static struct temp_folder folder;

/* A model and what is written and read of it. */
struct written {
    kvasir_model *m;
    struct key_stats s, back;
    struct key_bases b, back_b;
    bool based;
    struct text_buf file;
};
enum { ID = 0x1234567 };

static void written_make(struct written *w, const char *model, bool based) {
    uint64_t seed = 5;
    *w = (struct written){.m = open_tiny(model), .based = based};
    need(key_stats_init(&w->s, w->m->model, &err));
    need(key_stats_init(&w->back, w->m->model, &err));
    fill_random(w->s.mean, (size_t)w->s.layers * w->s.kv_heads * w->s.n * 2);
    if (based) {
        need(key_bases_init(&w->b, w->m->model, &err));
        random_bases(&w->b, &seed);
    }
}

static void write_again(struct written *w) {
    text_free(&w->file);
    need(centre_file_write(w->m->model, ID, &w->s, w->based ? &w->b : NULL, 99, &w->file, &err));
}

static kvasir_status read_back(struct written *w, size_t size, uint64_t id) {
    const char *path = temp_write(&folder, "c.safetensors", w->file.data, size);
    key_bases_deinit(&w->back_b);
    return centre_file_read(path, w->m->model, id, &w->back, &w->back_b, &err);
}

static void written_free(struct written *w) {
    key_stats_deinit(&w->s);
    key_stats_deinit(&w->back);
    key_bases_deinit(&w->b);
    key_bases_deinit(&w->back_b);
    text_free(&w->file);
    kvasir_model_close(w->m);
}

static void check_file(const char *model, bool based) {
    struct written w;
    written_make(&w, model, based);
    write_again(&w);
    const size_t pairs = (size_t)w.s.layers * w.s.kv_heads * w.s.n;
    need(read_back(&w, w.file.len, ID));
    assert_memory_equal(w.s.mean, w.back.mean, 2 * pairs * sizeof *w.s.mean);
    assert_memory_equal(w.s.rms, w.back.rms, pairs * sizeof *w.s.rms);
    assert_int_equal(w.b.n_groups, w.back_b.n_groups);
    assert_int_equal(w.b.n, w.back_b.n);
    if (based)
        assert_memory_equal(w.b.values, w.back_b.values, w.b.n * sizeof *w.b.values);
    /* who wants no bases takes the same means */
    const char *path = temp_write(&folder, "c.safetensors", w.file.data, w.file.len);
    need(centre_file_read(path, w.m->model, ID, &w.back, NULL, &err));
    assert_memory_equal(w.s.mean, w.back.mean, 2 * pairs * sizeof *w.s.mean);
    assert_int_equal(read_back(&w, w.file.len, ID + 1), KVASIR_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "another model"));

    /* refused, although the checksum is right */
    float *values[] = {w.s.mean, w.s.rms, w.b.values};
    for (int i = 0; i < 3; i++) {
        if ((i < 2 && !pairs) || (i == 2 && !based))
            continue;
        const float good = values[i][3];
        values[i][3] = i ? NAN : INFINITY;
        write_again(&w);
        assert_int_equal(read_back(&w, w.file.len, ID), KVASIR_ERR_FORMAT);
        assert_non_null(strstr(err.text, "finite"));
        values[i][3] = good;
    }
    written_free(&w);
}

static void check_damage(bool based) {
    struct written w;
    written_make(&w, "llama", based);
    write_again(&w);
    const size_t step = 1 + w.file.len / 100, of_header = based ? 5 : 1;
    for (size_t i = 0; i < w.file.len; i += i < 64 ? of_header : step)
        assert_int_not_equal(read_back(&w, i, ID), KVASIR_OK);
    for (size_t i = 0; i < w.file.len; i += i < 1024 ? of_header : step) {
        w.file.data[i] ^= (char)(1 << i % 8);
        if (read_back(&w, w.file.len, ID) == KVASIR_OK)
            fail_msg("byte %zu of %zu flipped, and taken", i, w.file.len);
        w.file.data[i] ^= (char)(1 << i % 8);
    }
    written_free(&w);
}

static void test_file(void **state) {
    (void)state;
    check_file("llama", false);
    check_file("llama", true);
    check_file("gemma4_full", true); /* no means; head sizes differ by layer */
    check_file("gemma4_shared", true);
    check_file("qwen3_next", true);
    check_damage(false);
    check_damage(true);
}

/* Sizes are those of the model, whatever the file's header says. */
static void test_other_shape(void **state) {
    (void)state;
    struct written llama, gemma;
    written_make(&llama, "llama", true);
    written_make(&gemma, "gemma4_full", true);
    write_again(&llama);
    write_again(&gemma);
    struct text_buf file = llama.file;
    llama.file = gemma.file;
    gemma.file = file;
    for (int i = 0; i < 2; i++) {
        struct written *w = i ? &gemma : &llama;
        assert_int_equal(read_back(w, w->file.len, ID), KVASIR_ERR_FORMAT);
        assert_non_null(strstr(err.text, "does not have the model's shape"));
    }
    /* a file without bases of a model without means holds nothing */
    gemma.based = false;
    write_again(&gemma);
    assert_int_equal(read_back(&gemma, gemma.file.len, ID), KVASIR_ERR_FORMAT);
    written_free(&llama);
    written_free(&gemma);
}

/* ---- the flag -------------------------------------------------------------------------------- */

static kvasir_status context_of(const kvasir_model *m, const char *bits, const char *centre,
                                kvasir_context **ctx) {
    kvasir_context_options o = kvasir_context_defaults();
    o.kv_bits = bits;
    o.key_centre = centre;
    o.ctx = 256;
    o.cache_bytes = 16 << 20;
    o.threads = 1;
    return kvasir_context_create(m, &o, ctx, &err);
}

static kvasir_context_info info_of(const kvasir_model *m, const char *bits, const char *centre) {
    kvasir_context *ctx;
    kvasir_context_info info;
    need(context_of(m, bits, centre, &ctx));
    kvasir_context_get_info(ctx, &info);
    kvasir_context_destroy(ctx);
    return info;
}

static const char *write_file(const kvasir_model *m, const char *name, float size) {
    struct text_buf file = random_centres(m, size, 1);
    const char *path = temp_write(&folder, name, file.data, file.len);
    text_free(&file);
    return path;
}

/* The kind of a context's only fact; -1: no fact. */
static int fact_of(const kvasir_model *m, const char *bits, const char *how) {
    const kvasir_context_info info = info_of(m, bits, how);
    assert_true(info.n_facts <= 1);
    return info.n_facts ? (int)info.facts[0].kind : -1;
}

static void test_flag(void **state) {
    (void)state;
    kvasir_model *llama = open_tiny("llama"), *qwen2 = open_tiny("qwen2");
    kvasir_context *ctx;
    char path[192], small[192];
    snprintf(path, sizeof path, "%s", write_file(llama, "large.safetensors", 20));
    snprintf(small, sizeof small, "%s", write_file(llama, "small.safetensors", 0.1f));

    assert_int_equal(context_of(llama, "8", "bias", &ctx), KVASIR_ERR_ARGUMENT);
    assert_string_equal(err.field, "context.key_centre");
    assert_non_null(strstr(err.text, "no key biases"));
    assert_int_equal(context_of(llama, "8", "/no/such/file", &ctx), KVASIR_ERR_IO);
    assert_string_equal(err.field, "context.key_centre");
    assert_non_null(strstr(err.text, "/no/such/file"));
    assert_int_equal(context_of(qwen2, "8", path, &ctx), KVASIR_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "another model"));

    /* one fact if keys are centred, or if they are not although the user gave a file */
    assert_int_equal(fact_of(llama, "8", path), KVASIR_FACT_CENTRED);
    assert_int_equal(fact_of(llama, "8", small), KVASIR_FACT_CENTRE_NOTHING);
    assert_int_equal(fact_of(llama, "f16", path), KVASIR_FACT_CENTRE_UNUSED);
    assert_int_equal(fact_of(llama, "8", "auto"), -1);
    assert_int_equal(fact_of(llama, "8", "off"), -1);

    /* the fingerprint depends only on what pages hold */
    char off[17], on[17];
    snprintf(off, sizeof off, "%s", info_of(llama, "8", "off").fingerprint);
    snprintf(on, sizeof on, "%s", info_of(llama, "8", path).fingerprint);
    assert_int_equal(strlen(off), 16);
    assert_string_not_equal(off, on);
    assert_string_equal(off, info_of(llama, "8", "auto").fingerprint);
    assert_string_equal(off, info_of(llama, "8", small).fingerprint);
    assert_string_equal(on, info_of(llama, "8", path).fingerprint);
    assert_string_not_equal(off, info_of(llama, "8,4", "off").fingerprint);
    assert_string_not_equal(off, info_of(qwen2, "8", "off").fingerprint);
    kvasir_model_close(llama);
    kvasir_model_close(qwen2);
}

/* Rows are read back as the model made them, although a constant was subtracted to store them. */
static void test_read_back(void **state) {
    (void)state;
    enum { N = 200 };
    kvasir_model *m = open_tiny("llama");
    kvasir_model_info model;
    kvasir_model_get_info(m, &model);
    char path[192];
    snprintf(path, sizeof path, "%s", write_file(m, "large.safetensors", 20));
    int32_t tokens[N];
    for (int i = 0; i < N; i++)
        tokens[i] = (int32_t)random_below(model.vocab);
    size_t n = (size_t)N * model.head_dim;
    float *exact = malloc(n * 4), *stored = malloc(n * 4);
    kvasir_context *ctx[2];
    kvasir_seq *seq[2];
    for (int i = 0; i < 2; i++) {
        need(context_of(m, i ? "8" : "f32", i ? path : "off", &ctx[i]));
        need(kvasir_seq_create(ctx[i], &seq[i], &err));
        need(kvasir_seq_eval(seq[i], tokens, N, NULL, &err));
    }
    for (uint32_t head = 0; head < model.kv_heads; head++) { /* layer 0: the same K in both */
        need(kvasir_seq_read_kv(seq[0], KVASIR_PART_K, 0, head, 0, N, exact, &err));
        need(kvasir_seq_read_kv(seq[1], KVASIR_PART_K, 0, head, 0, N, stored, &err));
        /* stored values span less than 100; the error is at most half a step of 8 bits */
        assert_true(worst_difference(exact, stored, n) < 100.0 / 255 / 2 * 1.1);
        need(kvasir_seq_read_kv(seq[1], KVASIR_PART_V, 0, head, 0, N, stored, &err));
    }
    for (int i = 0; i < 2; i++) {
        kvasir_seq_destroy(seq[i]);
        kvasir_context_destroy(ctx[i]);
    }
    free(exact);
    free(stored);
    kvasir_model_close(m);
}

/* Centred pages requantized to exact ones and back, through the public call. */
static void test_requantized(void **state) {
    (void)state;
    enum { N = 200, VOCAB = 512 };
    static const struct {
        const char *bits, *group, *field;
    } bad[] = {{"7", NULL, "context.kv_bits"},
               {"8", "48", "context.kv_group_size"},
               {"8", "128", "context.kv_group_size"}};
    kvasir_model *m = open_tiny("llama");
    kvasir_model_info model;
    kvasir_model_get_info(m, &model);
    assert_int_equal(model.vocab, VOCAB);
    int32_t tokens[N + 1];
    for (int i = 0; i <= N; i++)
        tokens[i] = (int32_t)random_below(VOCAB);
    size_t n = (size_t)N * model.head_dim;
    float *before = malloc(n * 4), *after = malloc(n * 4), logits[3][VOCAB];
    kvasir_context *ctx;
    kvasir_seq *s, *fork[3];
    need(context_of(m, "8", write_file(m, "requantized.safetensors", 20), &ctx));
    need(kvasir_seq_create(ctx, &s, &err));
    need(kvasir_seq_eval(s, tokens, N, NULL, &err));
    for (int i = 0; i < 3; i++)
        need(kvasir_seq_fork(s, &fork[i], &err));
    uint64_t bytes = kvasir_seq_bytes(s);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(kvasir_seq_requantize(s, bad[i].bits, bad[i].group, &err),
                         KVASIR_ERR_ARGUMENT);
        assert_string_equal(err.field, bad[i].field);
    }
    assert_int_equal(kvasir_seq_bytes(s), bytes);
    need(kvasir_seq_requantize(fork[1], "f32", NULL, &err));
    need(kvasir_seq_requantize(fork[2], "f32", NULL, &err));
    need(kvasir_seq_requantize(fork[2], "8", "64", &err));
    assert_true(kvasir_seq_bytes(fork[1]) > 3 * bytes);
    for (uint32_t layer = 0; layer < model.layers; layer++)
        for (uint32_t head = 0; head < model.kv_heads; head++) {
            need(kvasir_seq_read_kv(s, KVASIR_PART_K, layer, head, 0, N, before, &err));
            need(kvasir_seq_read_kv(fork[1], KVASIR_PART_K, layer, head, 0, N, after, &err));
            assert_memory_equal(before, after, n * 4);
            need(kvasir_seq_read_kv(fork[2], KVASIR_PART_K, layer, head, 0, N, after, &err));
            assert_true(worst_difference(before, after, n) < 0.5);
        }
    for (int i = 0; i < 3; i++) {
        kvasir_eval_options last = {.struct_size = sizeof(kvasir_eval_options),
                                    .last_logits = logits[i]};
        need(kvasir_seq_eval(fork[i], tokens + N, 1, &last, &err));
        kvasir_seq_destroy(fork[i]);
    }
    double largest = 0;
    for (int i = 0; i < VOCAB; i++)
        largest = fmax(largest, fabs((double)logits[0][i]));
    printf("logits up to %g, differ by %g and %g\n", largest,
           worst_difference(logits[0], logits[1], VOCAB),
           worst_difference(logits[0], logits[2], VOCAB));
    assert_true(worst_difference(logits[0], logits[1], VOCAB) < 0.02 * largest);
    assert_true(worst_difference(logits[0], logits[2], VOCAB) < 0.1 * largest);
    kvasir_seq_destroy(s);
    kvasir_context_destroy(ctx);
    free(before);
    free(after);
    kvasir_model_close(m);
}

int main(void) {
    skip_without(TINY "llama/config.json");
    temp_folder_make(&folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),        cmocka_unit_test(test_choosing),
        cmocka_unit_test(test_choosing_turning), cmocka_unit_test(test_file),
        cmocka_unit_test(test_other_shape),      cmocka_unit_test(test_flag),
        cmocka_unit_test(test_read_back),        cmocka_unit_test(test_requantized),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    temp_folder_remove(&folder);
    return failed;
}
