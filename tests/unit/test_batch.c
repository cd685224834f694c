/* SPDX-License-Identifier: Apache-2.0 */
/* kvasir_batch: merge, filter, extend and extract only edit a list. Each sequence of a batch has a
 * twin, alone in another context. Whatever is done to the list, the sequence's logits equal the
 * twin's bit for bit, and no page is taken or copied. A refused call changes nothing. */
#include "model_files.h"

#include "engine/engine.h"
#include "tensors.h"

enum { VOCAB = 512, LONG = 500, TWINS = 5, NO_LOGITS = 0x7f };

static kvasir_error err;
static int32_t text[TWINS][LONG];

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static int set_up(void **state) {
    uint32_t r = 23;
    (void)state;
    for (int p = 0; p < TWINS; p++)
        for (int i = 0; i < LONG; i++) {
            r = r * 1664525 + 1013904223;
            text[p][i] = (int32_t)(r >> 16) % VOCAB;
        }
    return 0;
}

/* ---- a context with batches, and one where every sequence runs alone ------------------------- */

struct world {
    kvasir_model *model;
    kvasir_context *ctx, *other;
};

/* A sequence and its twin; both get the same text. */
struct twin {
    kvasir_seq *seq, *alone; /* of world.ctx, of world.other */
    const int32_t *text;
};

static void open_world(struct world *w, const char *name, const char *bits, uint32_t max_size) {
    char path[512];
    kvasir_context_options o = kvasir_context_defaults();
    snprintf(path, sizeof path, "%s/fixtures/tiny/%s", SHARED_DIR, name);
    o.kv_bits = bits;
    o.max_kv_size = max_size;
    o.ctx = 1024;
    o.threads = 1;
    o.cache_bytes = 64 << 20;
    need(kvasir_model_open(path, &w->model, &err));
    need(kvasir_context_create(w->model, &o, &w->other, &err));
    o.prefill_chunk = 40; /* a step of a batch takes several turns */
    need(kvasir_context_create(w->model, &o, &w->ctx, &err));
}

static struct kv_pool_stats pool_of(const kvasir_context *ctx) {
    return kv_pool_stats(kv_cache_pool(ctx->cache));
}

static void close_world(struct world *w) {
    assert_int_equal(pool_of(w->ctx).used_bytes, 0);
    assert_int_equal(pool_of(w->other).used_bytes, 0);
    kvasir_context_destroy(w->ctx);
    kvasir_context_destroy(w->other);
    kvasir_model_close(w->model);
}

/* Both of text[i]'s first `length` tokens; bits not NULL: then requantized to these formats. */
static struct twin make_twin(const struct world *w, int i, uint32_t length, const char *bits) {
    struct twin t = {.text = text[i]};
    need(kvasir_seq_create(w->ctx, &t.seq, &err));
    need(kvasir_seq_create(w->other, &t.alone, &err));
    need(kvasir_seq_eval(t.seq, t.text, length, NULL, &err));
    need(kvasir_seq_eval(t.alone, t.text, length, NULL, &err));
    if (bits) {
        need(kvasir_seq_requantize(t.seq, bits, NULL, &err));
        need(kvasir_seq_requantize(t.alone, bits, NULL, &err));
    }
    return t;
}

/* Evaluates n more tokens of the twin; `logits` are those after the last. */
static void eval_alone(const struct twin *t, uint32_t n, float *logits) {
    need(kvasir_seq_eval(
        t->alone, t->text + kvasir_seq_length(t->alone), n,
        &(kvasir_eval_options){.struct_size = sizeof(kvasir_eval_options), .last_logits = logits},
        &err));
}

/* The batch holds these sequences, in this order. Evaluates counts[i] more tokens of each: the
 * logits equal the twin's, and those of a sequence without tokens stay as they were. */
static void check_eval(kvasir_batch *b, struct twin *const *twins, size_t n,
                       const uint32_t *counts) {
    static int32_t tokens[TWINS * LONG];
    static float logits[TWINS][VOCAB], alone[VOCAB];
    size_t total = 0;
    assert_int_equal(kvasir_batch_size(b), n);
    for (size_t i = 0; i < n; i++) {
        const uint32_t at = kvasir_seq_length(twins[i]->seq);
        assert_ptr_equal(kvasir_batch_seq(b, i), twins[i]->seq);
        assert_true(at + counts[i] <= LONG);
        memcpy(tokens + total, twins[i]->text + at, counts[i] * sizeof *tokens);
        total += counts[i];
    }
    memset(logits, NO_LOGITS, sizeof logits);
    need(kvasir_batch_eval(b, tokens, counts, &logits[0][0], &err));
    for (size_t i = 0; i < n; i++) {
        memset(alone, NO_LOGITS, sizeof alone);
        if (counts[i])
            eval_alone(twins[i], counts[i], alone);
        assert_memory_equal(logits[i], alone, sizeof alone);
        assert_int_equal(kvasir_seq_length(twins[i]->seq), kvasir_seq_length(twins[i]->alone));
    }
}

/* A sequence taken out of its batch continues as its twin does. */
static void check_alone(const struct twin *t, uint32_t n) {
    float logits[VOCAB], alone[VOCAB];
    need(kvasir_seq_eval(
        t->seq, t->text + kvasir_seq_length(t->seq), n,
        &(kvasir_eval_options){.struct_size = sizeof(kvasir_eval_options), .last_logits = logits},
        &err));
    eval_alone(t, n, alone);
    assert_memory_equal(logits, alone, sizeof logits);
}

/* ---- edits ----------------------------------------------------------------------------------- */

static void no_page_moved(const struct world *w, struct kv_pool_stats before) {
    const struct kv_pool_stats now = pool_of(w->ctx);
    assert_int_equal(now.pages_taken, before.pages_taken);
    assert_int_equal(now.pages_used, before.pages_used);
    assert_int_equal(now.used_bytes, before.used_bytes);
    assert_int_equal(now.charged_bytes, before.charged_bytes);
}

static void check_edits(const char *model, const char *bits, const char *fewer, uint32_t max_size) {
    struct world w;
    kvasir_batch *batch, *more;
    kvasir_seq *out;
    open_world(&w, model, bits, max_size);
    struct twin t[TWINS] = {make_twin(&w, 0, 1, NULL), make_twin(&w, 1, 150, fewer),
                            make_twin(&w, 2, 63, NULL), make_twin(&w, 3, 64, "f16"),
                            make_twin(&w, 4, 30, NULL)};
    kvasir_seq *const seqs[] = {t[0].seq, t[1].seq, t[2].seq, t[3].seq};
    struct kv_pool_stats before = pool_of(w.ctx);
    need(kvasir_batch_merge(w.ctx, seqs, 4, &batch, &err));
    no_page_moved(&w, before);
    check_eval(batch, (struct twin *[]){&t[0], &t[1], &t[2], &t[3]}, 4,
               (const uint32_t[]){70, 1, 0, 33});
    check_eval(batch, (struct twin *[]){&t[0], &t[1], &t[2], &t[3]}, 4,
               (const uint32_t[]){1, 1, 1, 1});

    /* filter removes one: exactly its pages are freed */
    before = pool_of(w.ctx);
    const uint64_t bytes = kvasir_seq_bytes(t[2].seq);
    need(kvasir_batch_filter(batch, (const size_t[]){0, 1, 3}, 3, &err));
    assert_true(bytes > 0);
    assert_int_equal(pool_of(w.ctx).used_bytes, before.used_bytes - bytes);
    assert_int_equal(pool_of(w.ctx).pages_taken, before.pages_taken);
    kvasir_seq_destroy(t[2].alone);
    check_eval(batch, (struct twin *[]){&t[0], &t[1], &t[3]}, 3, (const uint32_t[]){1, 45, 1});
    before = pool_of(w.ctx);
    need(kvasir_batch_filter(batch, (const size_t[]){0, 1, 2}, 3, &err)); /* keeps all */
    no_page_moved(&w, before);

    /* extend appends the other batch's sequences; that batch remains, empty */
    need(kvasir_batch_merge(w.ctx, &t[4].seq, 1, &more, &err));
    before = pool_of(w.ctx);
    need(kvasir_batch_extend(batch, more, &err));
    assert_int_equal(kvasir_batch_size(more), 0);
    need(kvasir_batch_extend(batch, more, &err)); /* with an empty batch */
    check_eval(more, NULL, 0, NULL);
    kvasir_batch_destroy(more);
    no_page_moved(&w, before);
    check_eval(batch, (struct twin *[]){&t[0], &t[1], &t[3], &t[4]}, 4,
               (const uint32_t[]){3, 1, 64, 60});

    /* extract returns one to the caller; those after it move up */
    before = pool_of(w.ctx);
    need(kvasir_batch_extract(batch, 1, &out, &err));
    assert_ptr_equal(out, t[1].seq);
    no_page_moved(&w, before);
    check_eval(batch, (struct twin *[]){&t[0], &t[3], &t[4]}, 3, (const uint32_t[]){1, 1, 1});
    check_alone(&t[1], 20);
    check_eval(batch, (struct twin *[]){&t[0], &t[3], &t[4]}, 3, (const uint32_t[]){5, 0, 50});
    kvasir_batch_destroy(batch); /* with the sequences left in it, but not the extracted one */
    assert_int_equal(pool_of(w.ctx).used_bytes, kvasir_seq_bytes(t[1].seq));
    check_alone(&t[1], 1);
    kvasir_seq_destroy(t[1].seq);
    for (int i = 0; i < TWINS; i++)
        if (i != 2)
            kvasir_seq_destroy(t[i].alone);
    close_world(&w);
}

static void test_edits_of_full_attention(void **state) {
    (void)state;
    check_edits("llama", "8,4", "4,2", 0);
    check_edits("qwen2", "8", "3", 0); /* another shape, with biases */
}

static void test_edits_of_rotating_sequences(void **state) {
    (void)state;
    check_edits("llama", "8,4", "4", 100);
}

static void test_edits_of_windows_and_states(void **state) {
    (void)state;
    check_edits("gemma2", "4", "2", 0);
    check_edits("qwen3_next", "8,4", "4,2", 0);
}

/* Forks share pages: filter frees only the pages that no other sequence holds. */
static void test_a_filter_leaves_shared_pages(void **state) {
    (void)state;
    struct world w;
    kvasir_batch *batch;
    open_world(&w, "llama", "8,4", 0);
    struct twin a = make_twin(&w, 0, 200, NULL), f = {.text = text[0]};
    need(kvasir_seq_fork(a.seq, &f.seq, &err));
    need(kvasir_seq_fork(a.alone, &f.alone, &err));
    need(kvasir_batch_merge(w.ctx, (kvasir_seq *const[]){a.seq, f.seq}, 2, &batch, &err));
    check_eval(batch, (struct twin *[]){&a, &f}, 2, (const uint32_t[]){1, 30});
    assert_true(pool_of(w.ctx).used_bytes < kvasir_seq_bytes(a.seq) + kvasir_seq_bytes(f.seq));
    need(kvasir_batch_filter(batch, (const size_t[]){1}, 1, &err));
    assert_int_equal(pool_of(w.ctx).used_bytes, kvasir_seq_bytes(f.seq));
    check_eval(batch, (struct twin *[]){&f}, 1, (const uint32_t[]){40});
    need(kvasir_batch_filter(batch, NULL, 0, &err)); /* keeps none */
    assert_int_equal(kvasir_batch_size(batch), 0);
    assert_int_equal(pool_of(w.ctx).used_bytes, 0);
    need(kvasir_batch_filter(batch, NULL, 0, &err));
    kvasir_batch_destroy(batch);
    kvasir_seq_destroy(a.alone);
    kvasir_seq_destroy(f.alone);
    close_world(&w);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refused(kvasir_status status, const char *why) {
    assert_int_equal(status, KVASIR_ERR_ARGUMENT);
    if (!strstr(err.text, why))
        fail_msg("\"%s\" does not say \"%s\"", err.text, why);
}

/* After a refused merge the caller still owns the sequences and may use and destroy them. */
static void test_refused_merges(void **state) {
    (void)state;
    struct world w;
    kvasir_batch *batch = NULL;
    open_world(&w, "llama", "8,4", 0);
    struct twin a = make_twin(&w, 0, 70, NULL), b = make_twin(&w, 1, 10, "4");
    const struct kv_pool_stats before = pool_of(w.ctx);
    refused(kvasir_batch_merge(w.ctx, (kvasir_seq *const[]){a.seq, b.seq, a.seq}, 3, &batch, &err),
            "sequence 2 is listed twice");
    refused(kvasir_batch_merge(w.ctx, (kvasir_seq *const[]){a.seq, b.alone}, 2, &batch, &err),
            "sequence 1 belongs to another context");
    refused(kvasir_batch_merge(w.other, &a.seq, 1, &batch, &err),
            "sequence 0 belongs to another context");
    assert_null(batch);
    no_page_moved(&w, before);
    check_alone(&a, 5);
    check_alone(&b, 60);
    need(kvasir_batch_merge(w.ctx, NULL, 0, &batch, &err)); /* empty */
    assert_int_equal(kvasir_batch_size(batch), 0);
    kvasir_batch_destroy(batch);
    kvasir_batch_destroy(NULL);
    for (int i = 0; i < 2; i++) {
        kvasir_seq_destroy(i ? a.seq : b.seq);
        kvasir_seq_destroy(i ? a.alone : b.alone);
    }
    close_world(&w);
}

static void refuse_edits(kvasir_batch *b, kvasir_batch *others) {
    static const struct {
        size_t keep[4], n;
    } wrong[] = {{{1, 0}, 2}, {{0, 0}, 2}, {{0, 2, 2}, 3},    {{2, 1, 0}, 3},
                 {{3}, 1},    {{0, 3}, 2}, {{0, 1, 2, 3}, 4}, {{SIZE_MAX}, 1}};
    kvasir_seq *out = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refused(kvasir_batch_filter(b, wrong[i].keep, wrong[i].n, &err), "be below 3");
    refused(kvasir_batch_extract(b, 3, &out, &err), "sequence 3 is out of range: the batch has 3");
    refused(kvasir_batch_extract(b, SIZE_MAX, &out, &err), "out of range: the batch has 3");
    assert_null(out);
    refused(kvasir_batch_extend(b, b, &err), "another batch of the same context");
    refused(kvasir_batch_extend(b, others, &err), "another batch of the same context");
    refused(kvasir_batch_extend(others, b, &err), "another batch of the same context");
    assert_int_equal(kvasir_batch_size(b), 3);
    assert_int_equal(kvasir_batch_size(others), 1);
}

static void test_refused_edits_change_nothing(void **state) {
    (void)state;
    struct world w;
    kvasir_batch *batch, *others;
    kvasir_seq *out = NULL;
    open_world(&w, "llama", "8,4", 0);
    struct twin t[] = {make_twin(&w, 0, 10, NULL), make_twin(&w, 1, 64, "4"),
                       make_twin(&w, 2, 100, NULL)};
    struct twin lone = make_twin(&w, 3, 20, NULL);
    need(kvasir_batch_merge(w.ctx, (kvasir_seq *const[]){t[0].seq, t[1].seq, t[2].seq}, 3, &batch,
                            &err));
    need(kvasir_batch_merge(w.other, &lone.alone, 1, &others, &err));
    const struct kv_pool_stats before = pool_of(w.ctx);
    refuse_edits(batch, others);
    no_page_moved(&w, before);
    check_eval(batch, (struct twin *[]){&t[0], &t[1], &t[2]}, 3, (const uint32_t[]){60, 1, 30});
    need(kvasir_batch_filter(batch, NULL, 0, &err));
    refused(kvasir_batch_extract(batch, 0, &out, &err),
            "sequence 0 is out of range: the batch has 0");
    refused(kvasir_batch_filter(batch, (const size_t[]){0}, 1, &err), "be below 0");
    assert_null(out);
    kvasir_batch_destroy(batch);
    kvasir_batch_destroy(others); /* destroys lone.alone too */
    kvasir_seq_destroy(lone.seq);
    for (int i = 0; i < 3; i++)
        kvasir_seq_destroy(t[i].alone);
    close_world(&w);
}

/* If one sequence of a step is refused, none of them changes. */
static void test_refused_steps_change_nothing(void **state) {
    (void)state;
    struct world w;
    kvasir_batch *batch;
    static int32_t tokens[2 * 1024];
    float logits[2][VOCAB], poison[2][VOCAB];
    open_world(&w, "llama", "8,4", 0);
    struct twin a = make_twin(&w, 0, 10, NULL), b = make_twin(&w, 1, 70, "4");
    need(kvasir_batch_merge(w.ctx, (kvasir_seq *const[]){a.seq, b.seq}, 2, &batch, &err));
    memset(logits, NO_LOGITS, sizeof logits);
    memset(poison, NO_LOGITS, sizeof poison);
    const struct kv_pool_stats before = pool_of(w.ctx);
    tokens[7] = VOCAB;
    refused(kvasir_batch_eval(batch, tokens, (const uint32_t[]){5, 3}, &logits[0][0], &err),
            "token 512 at index 2 is not in the vocabulary");
    tokens[7] = 0;
    assert_int_equal(
        kvasir_batch_eval(batch, tokens, (const uint32_t[]){5, 955}, &logits[0][0], &err),
        KVASIR_ERR_CONTEXT);
    /* there is room for either one, but not for both */
    struct kv_pool *pool = kv_cache_pool(w.ctx->cache);
    const uint64_t one = seq_need_bytes(a.seq->seq, 410, 40, 0),
                   left = before.budget_bytes - before.used_bytes - before.charged_bytes;
    need(pool_charge(pool, left - one - 1, &err));
    assert_int_equal(
        kvasir_batch_eval(batch, tokens, (const uint32_t[]){400, 200}, &logits[0][0], &err),
        KVASIR_ERR_BUDGET);
    assert_non_null(strstr(err.text, "2 sequences"));
    pool_discharge(pool, left - one - 1);
    no_page_moved(&w, before);
    assert_memory_equal(logits, poison, sizeof logits);
    check_eval(batch, (struct twin *[]){&a, &b}, 2, (const uint32_t[]){60, 60});
    kvasir_batch_destroy(batch);
    kvasir_seq_destroy(a.alone);
    kvasir_seq_destroy(b.alone);
    close_world(&w);
}

int main(void) {
    skip_without(SHARED_DIR "/fixtures/tiny/llama/config.json");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edits_of_full_attention),
        cmocka_unit_test(test_edits_of_rotating_sequences),
        cmocka_unit_test(test_edits_of_windows_and_states),
        cmocka_unit_test(test_a_filter_leaves_shared_pages),
        cmocka_unit_test(test_refused_merges),
        cmocka_unit_test(test_refused_edits_change_nothing),
        cmocka_unit_test(test_refused_steps_change_nothing),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
