/* SPDX-License-Identifier: Apache-2.0 */
/* kvasir_engine through its public calls: which prefixes of earlier requests a request finds, their
 * statistics, salts, forgetting, prompt-cache files, stored prefixes in other formats. */
#include "model_files.h"

#include "answers.h"
#include "exchange.h"
#include "tensors.h"

enum { VOCAB = 512, LONG = 400 };

static kvasir_error err;
static kvasir_model *model;
static int32_t text[2][LONG];
static struct temp_folder folder;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static int set_up(void **state) {
    uint32_t r = 11;
    (void)state;
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < LONG; i++) {
            r = r * 1664525 + 1013904223;
            text[p][i] = (int32_t)(r >> 16) % VOCAB;
        }
    temp_folder_make(&folder);
    return kvasir_model_open(SHARED_DIR "/fixtures/tiny/llama", &model, &err) != KVASIR_OK;
}

static int tear_down(void **state) {
    (void)state;
    kvasir_model_close(model);
    temp_folder_remove(&folder);
    return 0;
}

/* Runs a prompt: its hit and cached tokens are these, and its answer is that of a lone sequence. */
static void expect_hit(kvasir_engine *e, const kvasir_engine_options *o, const int32_t *tokens,
                       uint32_t n, const char *salt, kvasir_hit hit, uint32_t cached) {
    struct answer *a = answer_new(tokens, n, 5);
    int32_t alone[5];
    kvasir_engine_stats before = engine_settled(e), after;
    a->request.salt = salt;
    a->request.ignore_end = true;
    answer_run(e, a);
    assert_int_equal(a->hit, hit);
    assert_int_equal(a->cached_tokens, cached);
    assert_int_equal(a->prompt_tokens, n);
    after = engine_settled(e);
    assert_int_equal(after.hits[hit], before.hits[hit] + 1);
    assert_int_equal(after.cached_tokens, before.cached_tokens + cached);
    assert_int_equal(after.prompt_tokens, before.prompt_tokens + n);
    assert_int_equal(answer_alone(model, &o->context, &a->request, 0, alone), 5);
    assert_memory_equal(a->choices[0].tokens, alone, sizeof alone);
    free(a);
}

/* ---- hits ------------------------------------------------------------------------------------ */

static void test_kinds_of_hits(void **state) {
    (void)state;
    const kvasir_engine_options o = answers_options(64);
    kvasir_engine *e = answers_engine(model, &o);
    struct answer *a = answer_new(text[0], 100, 1);
    answer_run(e, a); /* stores just the prompt: the one token of its answer is never run */
    assert_int_equal(a->hit, KVASIR_HIT_MISS);
    free(a);
    int32_t other[LONG];
    memcpy(other, text[1], sizeof other);
    expect_hit(e, &o, text[0], 100, NULL, KVASIR_HIT_EXACT, 99);
    expect_hit(e, &o, text[0], 70, NULL, KVASIR_HIT_SUPERSEQUENCE, 69);
    expect_hit(e, &o, text[0], 64, NULL, KVASIR_HIT_SUPERSEQUENCE, 63);
    expect_hit(e, &o, text[0], 1, NULL, KVASIR_HIT_MISS, 0); /* its only token has to be run */
    memcpy(other, text[0], 130 * sizeof *other);
    expect_hit(e, &o, other, 130, NULL, KVASIR_HIT_PREFIX, 100);
    memcpy(other, text[0], 90 * sizeof *other);
    memcpy(other + 90, text[1] + 90, 60 * sizeof *other);
    expect_hit(e, &o, other, 150, NULL, KVASIR_HIT_COMMON_PREFIX, 90);
    expect_hit(e, &o, text[1], 200, NULL, KVASIR_HIT_MISS, 0);
    kvasir_engine_destroy(e);
}

/* Recurrent layers: a prompt that goes on from the middle of a long answer (to generate it again
 * from there) starts from the last snapshot inside the answer, not from the prompt's end. */
static void test_hits_inside_answers_of_a_hybrid(void **state) {
    (void)state;
    enum { PROMPT = 70, ANSWER = 400, EVERY = 128 };
    kvasir_model *hybrid;
    kvasir_engine_options o = answers_options(64);
    need(kvasir_model_open(SHARED_DIR "/fixtures/tiny/qwen3_next", &hybrid, &err));
    o.context.snapshot_tokens = EVERY;
    kvasir_engine *e = answers_engine(hybrid, &o);
    struct answer *a = answer_new(text[0], PROMPT, ANSWER);
    a->request.ignore_end = true;
    answer_run(e, a);
    static const uint32_t same[] = {390, 320, 250, 100, 58, 57, 20}; /* tokens of the answer */
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        int32_t tokens[PROMPT + ANSWER], alone[5];
        const uint32_t common = PROMPT + same[i], at = common / EVERY * EVERY;
        memcpy(tokens, text[0], PROMPT * sizeof *tokens);
        memcpy(tokens + PROMPT, a->choices[0].tokens, same[i] * sizeof *tokens);
        tokens[common] = (a->choices[0].tokens[same[i]] + 1 + (int32_t)i) % VOCAB;
        struct answer *b = answer_new(tokens, common + 1, 5);
        b->request.ignore_end = true;
        answer_run(e, b);
        assert_int_equal(b->cached_tokens, at > PROMPT ? at : PROMPT - 1);
        assert_int_equal(answer_alone(hybrid, &o.context, &b->request, 0, alone), 5);
        assert_memory_equal(b->choices[0].tokens, alone, sizeof alone);
        free(b);
    }
    free(a);
    kvasir_engine_destroy(e);
    kvasir_model_close(hybrid);
}

static void test_salts_share_nothing(void **state) {
    (void)state;
    const kvasir_engine_options o = answers_options(64);
    kvasir_engine *e = answers_engine(model, &o);
    static const char *const salts[] = {NULL, "a", "b", "ab", "a b", "\xff"};
    for (int i = 0; i < 6; i++)
        expect_hit(e, &o, text[0], 200, salts[i], KVASIR_HIT_MISS, 0);
    for (int i = 0; i < 6; i++)
        expect_hit(e, &o, text[0], 150, salts[i], KVASIR_HIT_SUPERSEQUENCE, 149);
    expect_hit(e, &o, text[0], 120, "", KVASIR_HIT_SUPERSEQUENCE, 119); /* NULL is "" */
    kvasir_engine_forget(e, "a");
    kvasir_engine_forget(e, "no such salt");
    expect_hit(e, &o, text[0], 200, "a", KVASIR_HIT_MISS, 0);
    expect_hit(e, &o, text[0], 150, "ab", KVASIR_HIT_SUPERSEQUENCE, 149);
    kvasir_engine_forget(e, NULL);
    for (int i = 0; i < 6; i++)
        expect_hit(e, &o, text[0], 200, salts[i], KVASIR_HIT_MISS, 0);
    kvasir_engine_forget(e, NULL);
    struct answer *a = answer_new(text[0], 1, 1); /* runs after the forget took effect */
    a->request.salt = "last";
    answer_run(e, a);
    free(a);
    const kvasir_engine_stats s = engine_settled(e);
    assert_true(s.stored_bytes < 64 << 10); /* one page and two nodes */
    kvasir_engine_destroy(e);
}

static void test_nothing_is_kept_with_no_prefix_cache(void **state) {
    (void)state;
    kvasir_engine_options o = answers_options(64);
    o.no_prefix_cache = true;
    o.stored_kv_bits = "4"; /* without effect */
    kvasir_engine *e = answers_engine(model, &o);
    expect_hit(e, &o, text[0], 200, NULL, KVASIR_HIT_MISS, 0);
    expect_hit(e, &o, text[0], 200, NULL, KVASIR_HIT_MISS, 0);
    kvasir_engine_forget(e, NULL);
    kvasir_engine_forget(e, "x");
    assert_int_equal(engine_settled(e).stored_bytes, 0);
    kvasir_engine_destroy(e);
}

/* The limits on stored prefixes apart from the budget, and the statistics about them. */
static void test_limits_of_what_is_stored(void **state) {
    (void)state;
    kvasir_engine_options o = answers_options(64);
    o.stored_max_entries = 2;
    kvasir_engine *e = answers_engine(model, &o);
    expect_hit(e, &o, text[0], 200, "a", KVASIR_HIT_MISS, 0);
    expect_hit(e, &o, text[1], 200, "a", KVASIR_HIT_MISS, 0);
    assert_int_equal(engine_settled(e).stored_entries, 2);
    expect_hit(e, &o, text[1] + 100, 200, "a", KVASIR_HIT_MISS, 0);
    const kvasir_engine_stats s = engine_settled(e);
    assert_int_equal(s.stored_entries, 2);
    assert_int_equal(s.stored_tokens, 2 * 204); /* the fifth token of an answer is not run */
    assert_int_equal(s.tree_nodes, 2 * 4 + 1);
    assert_int_equal(s.store_rejections, 0);
    expect_hit(e, &o, text[1], 200, "a", KVASIR_HIT_SUPERSEQUENCE, 199);
    expect_hit(e, &o, text[0], 200, "a", KVASIR_HIT_MISS, 0);
    kvasir_engine_destroy(e);
    o.stored_max_entries = 0;
    o.stored_max_bytes = s.stored_bytes;
    e = answers_engine(model, &o);
    for (int i = 0; i < 8; i++) {
        struct answer *a = answer_new(text[i % 2] + 10 * i, 200, 5);
        answer_run(e, a);
        assert_true(engine_settled(e).stored_bytes <= s.stored_bytes);
        free(a);
    }
    assert_true(engine_settled(e).stored_entries >= 2);
    kvasir_engine_destroy(e);
}

static kvasir_format_bytes format_in(kvasir_engine *e, const char *name) {
    kvasir_format_bytes f[8];
    (void)engine_settled(e);
    const size_t n = kvasir_engine_get_formats(e, f, 8, NULL);
    for (size_t i = 0; i < n; i++)
        if (strcmp(f[i].format, name) == 0)
            return f[i];
    return (kvasir_format_bytes){.format = "?"};
}

static void test_bytes_by_format(void **state) {
    (void)state;
    kvasir_engine_options o = answers_options(64);
    o.context.kv_bits = "8,4";
    o.context.quantized_kv_start = 64;
    o.stored_kv_bits = "4,2";
    o.min_quantize_tokens = 300;
    kvasir_engine *e = answers_engine(model, &o);
    assert_int_equal(kvasir_engine_get_formats(e, NULL, 0, NULL), 1);
    assert_true(format_in(e, "tables").live_bytes > 0);
    assert_int_equal(format_in(e, "tables").live_bytes, engine_settled(e).fixed_bytes);
    struct answer *a = answer_new(text[0], 200, 1);
    answer_run(e, a);
    assert_true(format_in(e, "K f16, V f16").stored_bytes > 0);
    const uint64_t page = format_in(e, "K 8 g64, V 4 g64").stored_bytes / 3;
    assert_true(page > 0);
    assert_string_equal(format_in(e, "K 4 g64, V 2 g64").format, "?");
    free(a);
    a = answer_new(text[0], 350, 1); /* an idle engine requantizes stored pages to fewer bits */
    answer_run(e, a);
    for (int i = 0; i < 1000 && engine_settled(e).requantized_pages < 3; i++)
        usleep(1000);
    /* not requantized: the open page, and the one in which the first prompt ended */
    assert_int_equal(format_in(e, "K 8 g64, V 4 g64").stored_bytes, 2 * page);
    assert_true(format_in(e, "K 4 g64, V 2 g64").stored_bytes > 0);
    assert_int_equal(format_in(e, "K 4 g64, V 2 g64").live_bytes, 0);
    kvasir_engine_destroy(e);
    free(a);
}

/* A prefix that many requests bring at once is computed once, by the first. */
/* Groups of layers whose pages have the same format are one entry. */
static void test_formats_are_listed_once(void **state) {
    (void)state;
    const kvasir_engine_options o = answers_options(64);
    kvasir_format_bytes f[8];
    kvasir_model *gemma;
    need(kvasir_model_open(SHARED_DIR "/fixtures/tiny/gemma3", &gemma, &err));
    kvasir_engine *e = answers_engine(gemma, &o);
    struct answer *a = answer_new(text[0], 100, 1);
    answer_run(e, a);
    free(a);
    engine_settled(e);
    assert_int_equal(kvasir_engine_get_formats(e, f, 8, NULL), 2); /* and "tables" */
    kvasir_engine_destroy(e);
    kvasir_model_close(gemma);
}

static void test_a_prefix_brought_at_once_is_computed_once(void **state) {
    (void)state;
    enum { N = 8, SHARED = 320 };
    static int32_t prompts[N][LONG];
    const kvasir_engine_options o = answers_options(64);
    kvasir_engine *e = answers_engine(model, &o);
    struct answer *a[N], *first = answer_new(text[1], 10, 400);
    first->hold_at = 1; /* so that all requests are waiting when the engine looks */
    answers_hold();
    need(answer_submit(e, first, &err));
    answer_wait_held();
    for (int i = 0; i < N; i++) {
        memcpy(prompts[i], text[0], SHARED * sizeof *prompts[i]);
        memcpy(prompts[i] + SHARED, text[1] + 10 * i, 60 * sizeof *prompts[i]);
        a[i] = answer_new(prompts[i], SHARED + 60, 10);
        need(answer_submit(e, a[i], &err));
    }
    answers_release();
    uint32_t cached = 0;
    for (int i = 0; i < N; i++) {
        answer_wait(a[i]);
        cached += a[i]->cached_tokens;
        free(a[i]);
    }
    assert_int_equal(cached, (N - 1) * SHARED);
    kvasir_engine_cancel(e, first->id);
    answer_wait(first);
    free(first);
    kvasir_engine_destroy(e);
}

/* ---- prompt-cache files ---------------------------------------------------------------------- */

/* A file of the text's first n tokens; `tokens`: what a sequence generates after it and `rest`. */
static kvasir_prompt_cache *make_file(const kvasir_engine_options *o, uint32_t n,
                                      const int32_t *rest, uint32_t n_rest, int32_t *tokens,
                                      uint32_t n_tokens) {
    kvasir_context *ctx;
    kvasir_seq *seq;
    kvasir_prompt_cache *file;
    float logits[VOCAB];
    kvasir_eval_options last = {.struct_size = sizeof(kvasir_eval_options), .last_logits = logits};
    const char *path = temp_file(&folder, "prompt.safetensors");
    need(kvasir_context_create(model, &o->context, &ctx, &err));
    need(kvasir_seq_create(ctx, &seq, &err));
    need(kvasir_seq_eval(seq, text[0], n, NULL, &err));
    need(kvasir_seq_save(seq, path, false, &err));
    need(kvasir_seq_eval(seq, rest, n_rest, &last, &err));
    for (uint32_t i = 0; i < n_tokens; i++) {
        kvasir_sampler *greedy;
        const kvasir_sampling sampling = kvasir_sampling_defaults();
        need(kvasir_sampler_create(&sampling, VOCAB, &greedy, &err));
        tokens[i] = kvasir_sampler_pick(greedy, logits);
        kvasir_sampler_destroy(greedy);
        need(kvasir_seq_eval(seq, &tokens[i], 1, &last, &err));
    }
    kvasir_seq_destroy(seq);
    kvasir_context_destroy(ctx);
    need(kvasir_prompt_cache_open(model, path, &file, &err));
    return file;
}

static void test_requests_begin_with_a_prompt_cache_file(void **state) {
    (void)state;
    static const char *const bits[] = {"8,4", "f16", "4", "bf16"};
    for (int b = 0; b < 4; b++) {
        kvasir_engine_options o = answers_options(64);
        int32_t tokens[30];
        o.context.kv_bits = bits[b];
        o.context.key_centre = "off";
        kvasir_prompt_cache *file = make_file(&o, 130, text[1], 20, tokens, 30);
        kvasir_engine *e = answers_engine(model, &o);
        for (int twice = 0; twice < 2; twice++) {
            struct answer *a = answer_new(text[1], 20, 30);
            a->request.prompt_cache = file;
            a->request.ignore_end = true;
            answer_run(e, a);
            assert_int_equal(a->prompt_tokens, 150);
            assert_int_equal(a->cached_tokens, 130);
            assert_memory_equal(a->choices[0].tokens, tokens, sizeof tokens);
            free(a);
        }
        const kvasir_engine_stats s = engine_settled(e);
        assert_int_equal(s.cached_tokens, 260);
        assert_int_equal(s.prompt_tokens, 300);
        for (int i = 0; i < KVASIR_HIT_KINDS; i++)
            assert_int_equal(s.hits[i], 0); /* such requests do not look in the tree */
        struct answer *a = answer_new(text[1], 20, 512 - 150 + 1);
        a->request.prompt_cache = file;
        assert_int_equal(kvasir_engine_submit(e, &a->request, NULL, &err), KVASIR_ERR_CONTEXT);
        a->request.max_tokens = 1;
        a->request.n = 2;
        assert_int_equal(kvasir_engine_submit(e, &a->request, NULL, &err), KVASIR_ERR_ARGUMENT);
        free(a);
        kvasir_engine_destroy(e);
        kvasir_prompt_cache_close(file);
    }
}

static void test_a_prompt_cache_of_other_formats_fails_its_request_alone(void **state) {
    (void)state;
    kvasir_engine_options o = answers_options(64);
    int32_t tokens[1];
    o.context.kv_bits = "4";
    o.context.key_centre = "off";
    kvasir_prompt_cache *file = make_file(&o, 130, text[1], 20, tokens, 1);
    o.context.kv_bits = "8";
    kvasir_engine *e = answers_engine(model, &o);
    struct answer *a = answer_new(text[1], 20, 30);
    a->request.prompt_cache = file;
    need(answer_submit(e, a, &err));
    answer_wait(a);
    assert_int_equal(a->choices[0].finish, KVASIR_FINISH_ERROR);
    assert_int_equal(a->starts, 0);
    assert_non_null(strstr(a->error.text, "4"));
    assert_int_equal(engine_settled(e).failed, 1);
    free(a);
    kvasir_engine_destroy(e);
    kvasir_prompt_cache_close(file);
}

/* Stored prefixes fill the budget: a request with a file evicts them, as any other request does. */
static void test_prompt_caches_find_room_in_a_full_budget(void **state) {
    (void)state;
    kvasir_engine_options o = answers_options(64);
    int32_t tokens[30];
    o.context.kv_bits = "8,4";
    o.context.key_centre = "off";
    kvasir_prompt_cache *file = make_file(&o, 380, text[1], 20, tokens, 30);
    kvasir_engine *e = answers_engine(model, &o);
    o.cache_memory_bytes = engine_settled(e).fixed_bytes + (700 << 10);
    kvasir_engine_destroy(e);
    e = answers_engine(model, &o);
    for (int i = 0; i < 8; i++) {
        struct answer *a = answer_new(text[1] + i, 300, 5);
        answer_run(e, a);
        free(a);
    }
    assert_true(engine_settled(e).evicted_pages > 0);
    struct answer *a = answer_new(text[1], 20, 30);
    a->request.prompt_cache = file;
    a->request.ignore_end = true;
    answer_run(e, a);
    assert_memory_equal(a->choices[0].tokens, tokens, sizeof tokens);
    free(a);
    kvasir_engine_destroy(e);
    kvasir_prompt_cache_close(file);
}

/* After a preemption they start from their file again. */
static void test_preempted_requests_with_prompt_caches(void **state) {
    (void)state;
    enum { N = 6 };
    kvasir_engine_options o = answers_options(64);
    int32_t tokens[200];
    o.context.key_centre = "off";
    kvasir_prompt_cache *file = make_file(&o, 130, text[1], 20, tokens, 200);
    kvasir_engine *e = answers_engine(model, &o);
    o.cache_memory_bytes = engine_settled(e).fixed_bytes + (700 << 10);
    kvasir_engine_destroy(e);
    e = answers_engine(model, &o);
    struct answer *a[N];
    answers_hold();
    for (int i = 0; i < N; i++) {
        a[i] = answer_new(text[1], 20, 200);
        a[i]->request.prompt_cache = file;
        a[i]->request.ignore_end = true;
        a[i]->hold_at = i == 0; /* until all are waiting */
        need(answer_submit(e, a[i], &err));
        if (i == 0)
            answer_wait_held();
    }
    answers_release();
    for (int i = 0; i < N; i++) {
        answer_wait(a[i]);
        assert_int_equal(a[i]->choices[0].finish, KVASIR_FINISH_LENGTH);
        assert_memory_equal(a[i]->choices[0].tokens, tokens, sizeof tokens);
        free(a[i]);
    }
    const kvasir_engine_stats s = engine_settled(e);
    assert_true(s.preemptions > 0);
    assert_int_equal(s.cached_tokens, N * 130);
    assert_int_equal(s.prompt_tokens, N * 150);
    kvasir_engine_destroy(e);
    kvasir_prompt_cache_close(file);
}

/* ---- stored formats -------------------------------------------------------------------------- */

static void settle_requantized(kvasir_engine *e, uint64_t pages) {
    for (int i = 0; i < 2000 && engine_settled(e).requantized_pages < pages; i++)
        usleep(1000);
    usleep(20000);
    assert_int_equal(engine_settled(e).requantized_pages, pages);
}

/* The answer to the text's first 330 tokens if the first five pages have these formats. */
static void answer_behind(const kvasir_context_options *o, const char *bits, int32_t *tokens,
                          uint32_t n_tokens) {
    kvasir_context *ctx;
    kvasir_seq *seq;
    kvasir_sampler *greedy;
    const kvasir_sampling sampling = kvasir_sampling_defaults();
    float logits[VOCAB];
    kvasir_eval_options last = {.struct_size = sizeof(kvasir_eval_options), .last_logits = logits};
    need(kvasir_context_create(model, o, &ctx, &err));
    need(kvasir_seq_create(ctx, &seq, &err));
    need(kvasir_sampler_create(&sampling, VOCAB, &greedy, &err));
    need(kvasir_seq_eval(seq, text[0], 320, NULL, &err));
    exchange_pages(seq, 0x1f, bits);
    need(kvasir_seq_eval(seq, text[0] + 320, 10, &last, &err));
    for (uint32_t i = 0; i < n_tokens; i++) {
        tokens[i] = kvasir_sampler_pick(greedy, logits);
        need(kvasir_seq_eval(seq, &tokens[i], 1, &last, &err));
    }
    kvasir_sampler_destroy(greedy);
    kvasir_seq_destroy(seq);
    kvasir_context_destroy(ctx);
}

static void test_stored_prefixes_at_fewer_bits(void **state) {
    (void)state;
    kvasir_engine_options o = answers_options(64);
    o.context.kv_bits = "8";
    o.stored_kv_bits = "4";
    o.min_quantize_tokens = 300;
    kvasir_engine *e = answers_engine(model, &o);
    uint64_t stored[8];
    for (int i = 0; i < 8; i++) { /* each is requantized, even if many are stored already */
        struct answer *a = answer_new(text[0] + 10 * i, 320, 1);
        answer_run(e, a);
        free(a);
        settle_requantized(e, 5 * (uint64_t)(i + 1));
        stored[i] = engine_settled(e).stored_bytes;
        assert_true(i < 2 || stored[i] - stored[i - 1] == stored[1] - stored[0]);
    }
    int32_t tokens[20], as_they_were[20];
    answer_behind(&o.context, "4", tokens, 20);
    answer_behind(&o.context, "8", as_they_were, 20);
    assert_memory_not_equal(tokens, as_they_were, sizeof tokens);
    struct answer *a = answer_new(text[0], 330, 20); /* goes on after pages of 4 bits */
    a->request.ignore_end = true;
    answer_run(e, a);
    assert_int_equal(a->cached_tokens, 320);
    assert_memory_equal(a->choices[0].tokens, tokens, sizeof tokens);
    free(a);
    kvasir_engine_destroy(e);
}

int main(void) {
    skip_without(SHARED_DIR "/fixtures/tiny/llama/config.json");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds_of_hits),
        cmocka_unit_test(test_hits_inside_answers_of_a_hybrid),
        cmocka_unit_test(test_salts_share_nothing),
        cmocka_unit_test(test_nothing_is_kept_with_no_prefix_cache),
        cmocka_unit_test(test_limits_of_what_is_stored),
        cmocka_unit_test(test_bytes_by_format),
        cmocka_unit_test(test_formats_are_listed_once),
        cmocka_unit_test(test_a_prefix_brought_at_once_is_computed_once),
        cmocka_unit_test(test_requests_begin_with_a_prompt_cache_file),
        cmocka_unit_test(test_a_prompt_cache_of_other_formats_fails_its_request_alone),
        cmocka_unit_test(test_prompt_caches_find_room_in_a_full_budget),
        cmocka_unit_test(test_preempted_requests_with_prompt_caches),
        cmocka_unit_test(test_stored_prefixes_at_fewer_bits),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
