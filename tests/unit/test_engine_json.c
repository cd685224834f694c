/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for a JSON object through the engine: an answer that ends with "stop" parses, whatever
 * the model prefers; its tokens are the same alone, in batches and through preemptions; which other
 * options work together with it, and which are refused.
 */
#include "model_files.h"

#include <pthread.h>

#include "answers.h"
#include "tensors.h"

#define OBJECT  "{\"type\":\"object\"}"
#define STORIES SHARED_DIR "/models/stories260K/stories260K-f32.gguf"
enum { VOCAB = 512, PROMPT = 40, CHOICES = 8 };

static kvasir_error err;
static kvasir_model *model;
static kvasir_grammar *any_object;
static int32_t prompt[16][PROMPT];
static kvasir_logit_bias bias[VOCAB]; /* favours what ends an object */
static size_t n_bias;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static bool piece_is(int32_t id, const char *text) {
    size_t len;
    const char *piece = kvasir_token_piece(kvasir_model_tokenizer(model), id, &len);
    return piece && len == strlen(text) && memcmp(piece, text, len) == 0;
}

static int set_up(void **state) {
    static const char *const ends[] = {"\"", "}", "]", "<0x22>", "<0x7D>", "<0x5D>"};
    uint32_t r = 7;
    (void)state;
    for (int p = 0; p < 16; p++)
        for (int i = 0; i < PROMPT; i++) {
            r = r * 1664525 + 1013904223;
            prompt[p][i] = (int32_t)(r >> 16) % VOCAB;
        }
    if (kvasir_model_open(STORIES, &model, &err) != KVASIR_OK)
        return 1;
    need(kvasir_grammar_create(KVASIR_GRAMMAR_JSON_SCHEMA, OBJECT, strlen(OBJECT), &any_object,
                               &err));
    for (int32_t id = 0; id < VOCAB; id++)
        for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
            if (piece_is(id, ends[i]))
                bias[n_bias++] = (kvasir_logit_bias){id, 12};
    return n_bias < 3;
}

static int tear_down(void **state) {
    (void)state;
    kvasir_grammar_destroy(any_object);
    kvasir_model_close(model);
    return 0;
}

static kvasir_engine_options options(void) {
    kvasir_engine_options o = answers_options(48);
    o.context.kv_bits = "f16"; /* heads of 8 */
    return o;
}

static struct answer *request(int p, uint32_t max_tokens) {
    struct answer *a = answer_new(prompt[p], PROMPT - (size_t)p, max_tokens);
    a->request.grammar = any_object;
    a->request.sampling.temp = 2;
    a->request.sampling.seed = 1000 * (uint64_t)p;
    a->request.sampling.logit_bias = bias;
    a->request.sampling.n_logit_bias = n_bias;
    return a;
}

static json_t *parsed(const struct answer_choice *c) {
    return json_loadb(c->text, c->len, JSON_DECODE_INT_AS_REAL, NULL);
}

/* Checks a choice. True: it ended by itself, with a complete object. */
static bool check_choice(const struct answer_choice *c, uint32_t max_tokens) {
    json_t *value = parsed(c);
    const bool object = json_is_object(value);
    json_decref(value);
    assert_int_equal(c->completion, c->n); /* nothing is sampled after the last brace */
    if (c->finish != KVASIR_FINISH_STOP) {
        assert_int_equal(c->finish, KVASIR_FINISH_LENGTH);
        assert_int_equal(c->n, max_tokens);
        assert_false(object);
        return false;
    }
    if (!object)
        fail_msg("no object: %.*s", (int)c->len, c->text);
    return true;
}

static void free_all(struct answer **a, int n) {
    for (int i = 0; i < n; i++)
        free(a[i]);
}

/* ---- objects --------------------------------------------------------------------------------- */

static void test_answers_parse(void **state) {
    (void)state;
    enum { MOST = 300 };
    const kvasir_engine_options o = options();
    kvasir_engine *e = answers_engine(model, &o);
    struct answer *a[16];
    uint32_t stopped = 0;
    for (int i = 0; i < 16; i++) {
        a[i] = request(i, MOST);
        a[i]->request.n = CHOICES;
        if (i % 4 == 1)
            a[i]->request.sampling.top_p = 0.9f;
        if (i % 4 == 2) {
            a[i]->request.sampling.xtc_probability = 0.5f;
            a[i]->request.sampling.top_k = 20;
        }
        if (i % 4 == 3)
            a[i]->request.sampling.repetition_penalty = 1.3f;
        need(answer_submit(e, a[i], &err));
    }
    for (int i = 0; i < 16; i++) {
        answer_wait(a[i]);
        for (int c = 0; c < CHOICES; c++)
            stopped += check_choice(&a[i]->choices[c], MOST);
    }
    print_message("%u of %d answers are complete, as %.*s\n", stopped, 16 * CHOICES,
                  (int)a[3]->choices[0].len, a[3]->choices[0].text);
    assert_true(stopped >= 100);
    free_all(a, 16);
    engine_settled(e);
    kvasir_engine_destroy(e);
}

/* Greedy and sampled, without and with a huge bias on every token, allowed or not. */
static void test_whatever_the_model_likes(void **state) {
    (void)state;
    static kvasir_logit_bias all[VOCAB];
    const kvasir_engine_options o = options();
    kvasir_engine *e = answers_engine(model, &o);
    for (int32_t id = 0; id < VOCAB; id++) /* the end token, blanks, letters ... */
        all[id] = (kvasir_logit_bias){id, 1e30f};
    for (int temp = 0; temp < 3; temp++) {
        struct answer *a = request(0, 300);
        a->request.sampling.temp = (float)temp;
        answer_run(e, a);
        check_choice(&a->choices[0], 300);
        a->lasts = a->starts = 0;
        memset(a->choices, 0, sizeof a->choices);
        a->prompt_done = a->progress = 0;
        a->request.sampling.logit_bias = all;
        a->request.sampling.n_logit_bias = VOCAB;
        answer_run(e, a);
        check_choice(&a->choices[0], 300);
        free(a);
    }
    kvasir_engine_destroy(e);
}

/* ---- the same tokens ------------------------------------------------------------------------- */

static void expect_same(const struct answer *a, const struct answer *b) {
    for (uint32_t c = 0; c < a->request.n; c++) {
        const struct answer_choice *x = &a->choices[c], *y = &b->choices[c];
        assert_int_equal(x->n, y->n);
        assert_memory_equal(x->tokens, y->tokens, x->n * sizeof *x->tokens);
        assert_int_equal(x->finish, y->finish);
        assert_int_equal(x->len, y->len);
        assert_memory_equal(x->text, y->text, x->len);
    }
}

static void check_same(uint32_t n, bool preempt) {
    enum { REQUESTS = 8, MOST = 150 };
    kvasir_engine_options o = options();
    struct answer *alone[REQUESTS], *beside[REQUESTS];
    kvasir_engine_stats s;
    o.cache_memory_bytes = 2 << 20;
    for (int i = 0; i < REQUESTS; i++) { /* each in its own engine */
        kvasir_engine *e = answers_engine(model, &o);
        alone[i] = request(i, MOST);
        alone[i]->request.n = n;
        answer_run(e, alone[i]);
        s = engine_settled(e);
        kvasir_engine_destroy(e);
    }
    o.context.prefill_chunk = preempt ? 48 : 20;
    o.no_prefix_cache = preempt;
    o.cache_memory_bytes = 64 << 20;
    if (preempt)
        o.cache_memory_bytes = s.fixed_bytes + (300 << 10);
    kvasir_engine *e = answers_engine(model, &o);
    answers_hold();
    for (int i = 0; i < REQUESTS; i++) {
        beside[i] = request(i, MOST);
        beside[i]->request.n = n;
        beside[i]->hold_at = i == 0; /* until all are waiting */
        need(answer_submit(e, beside[i], &err));
        if (i == 0)
            answer_wait_held();
    }
    answers_release();
    for (int i = 0; i < REQUESTS; i++) {
        answer_wait(beside[i]);
        expect_same(alone[i], beside[i]);
    }
    s = engine_settled(e);
    assert_int_equal(s.preemptions > 0, preempt);
    kvasir_engine_destroy(e);
    free_all(alone, REQUESTS);
    free_all(beside, REQUESTS);
}

static void test_same_tokens(void **state) {
    (void)state;
    check_same(1, false);
    check_same(3, false);
    check_same(1, true);
    check_same(3, true);
}

/* ---- together with other options ------------------------------------------------------------- */

static void test_cut_answers(void **state) {
    (void)state;
    const kvasir_engine_options o = options();
    kvasir_engine *e = answers_engine(model, &o);
    struct answer *whole = request(3, 400), *a = request(3, 2);
    answer_run(e, whole);
    assert_int_equal(whole->choices[0].finish, KVASIR_FINISH_STOP);
    assert_true(whole->choices[0].n > 2);
    answer_run(e, a); /* cut by max_tokens */
    assert_int_equal(a->choices[0].finish, KVASIR_FINISH_LENGTH);
    assert_memory_equal(a->choices[0].tokens, whole->choices[0].tokens, 2 * sizeof(int32_t));
    free(a);
    a = request(3, whole->choices[0].n); /* the last token closes the object: it is not cut */
    answer_run(e, a);
    assert_int_equal(a->choices[0].finish, KVASIR_FINISH_STOP);
    free(a);
    const char *const stops[] = {"}"}; /* cut by a stop text, which the answer omits */
    a = request(3, 400);
    a->request.stops = stops;
    a->request.n_stops = 1;
    answer_run(e, a);
    assert_int_equal(a->choices[0].finish, KVASIR_FINISH_STOP);
    assert_null(memchr(a->choices[0].text, '}', a->choices[0].len));
    assert_memory_equal(a->choices[0].text, whole->choices[0].text, a->choices[0].len);
    free(a);
    free(whole);
    kvasir_engine_destroy(e);
}

/* Log-probabilities are the model's own: the likeliest tokens need not be allowed ones. */
static void test_logprobs(void **state) {
    (void)state;
    const kvasir_engine_options o = options();
    kvasir_engine *e = answers_engine(model, &o);
    struct answer *json = request(0, 1), *plain = request(0, 1);
    plain->request.grammar = NULL;
    json->request.top_logprobs = plain->request.top_logprobs = 20;
    answer_run(e, json);
    answer_run(e, plain);
    assert_int_equal(json->choices[0].n_top[0], 20);
    assert_memory_equal(json->choices[0].top[0], plain->choices[0].top[0],
                        sizeof json->choices[0].top[0]);
    assert_true(json->choices[0].logprobs[0] < 0 && json->choices[0].logprobs[0] > -1000);
    free(json);
    free(plain);
    kvasir_engine_destroy(e);
}

/* End and stop tokens, which end any other answer, are never chosen: they cut nothing. */
static void test_end_and_stop_tokens(void **state) {
    (void)state;
    const kvasir_engine_options o = options();
    kvasir_engine *e = answers_engine(model, &o);
    int32_t stops[VOCAB + 2] = {-1, 1 << 30}; /* all tokens but those of one byte */
    size_t n = 2;
    for (int32_t id = 0; id < VOCAB; id++) {
        size_t len;
        const char *piece = kvasir_token_piece(kvasir_model_tokenizer(model), id, &len);
        if (len > 1 && memcmp(piece, "<0x", 3) != 0)
            stops[n++] = id;
    }
    assert_true(n > 100);
    kvasir_logit_bias ends[] = {{2, 1e9f}, {stops[n - 1], 1e9f}};
    struct answer *a = request(5, 300);
    a->request.stop_tokens = stops;
    a->request.n_stop_tokens = n;
    a->request.sampling.logit_bias = ends;
    a->request.sampling.n_logit_bias = 2;
    answer_run(e, a);
    check_choice(&a->choices[0], 300);
    for (uint32_t i = 0; i < a->choices[0].n; i++)
        for (size_t k = 0; k < n; k++)
            assert_int_not_equal(a->choices[0].tokens[i], stops[k]);
    free(a);
    kvasir_engine_destroy(e);
}

static void refused(kvasir_engine *e, const struct answer *a, kvasir_status code,
                    const char *text) {
    kvasir_error why = {0};
    assert_int_equal(kvasir_engine_submit(e, &a->request, NULL, &why), code);
    assert_string_equal(why.text, text);
}

static void test_refused(void **state) {
    (void)state;
    kvasir_engine_options o = options();
    kvasir_engine *e = answers_engine(model, &o);
    struct answer *a = request(0, 10);
    a->request.ignore_end = true;
    refused(e, a, KVASIR_ERR_ARGUMENT, "cannot be combined with ignore_end");
    a->request.ignore_end = false;
    answer_run(e, a);
    assert_int_equal(engine_settled(e).requests, 1);
    kvasir_engine_destroy(e);
    kvasir_model *mute;
    need(kvasir_model_open(SHARED_DIR "/fixtures/tiny/llama", &mute, &err));
    o = answers_options(48);
    e = answers_engine(mute, &o);
    refused(e, a, KVASIR_ERR_UNSUPPORTED, "the model has no tokenizer");
    kvasir_engine_destroy(e);
    kvasir_model_close(mute);
    free(a);
}

/* A vocabulary that can begin "true" and cannot finish it. */
static void test_a_dead_end(void **state) {
    (void)state;
    static const char tokenizer[] =
        "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":{\"type\":"
        "\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},\"decoder\":{\"type\":"
        "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"{\":0,\"}\":10,\"]\":11,\"\\\"\":"
        "3,"
        "\":\":4,\"\\\\\":5,\"u\":6,\"0\":7,\"d\":8,\"\\\":t\":9},\"merges\":[]}}";
    struct temp_folder folder;
    kvasir_model *odd;
    temp_folder_make(&folder);
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        char from[512];
        snprintf(from, sizeof from, "%s/fixtures/tiny/llama/%s", SHARED_DIR, files[i]);
        assert_int_equal(symlink(from, temp_file(&folder, files[i])), 0);
    }
    temp_write(&folder, "tokenizer.json", tokenizer, sizeof tokenizer - 1);
    need(kvasir_model_open(folder.path, &odd, &err));
    const kvasir_engine_options o = answers_options(48);
    kvasir_engine *e = answers_engine(odd, &o);
    const kvasir_logit_bias liked = {9, 1000}; /* opens a key; next closes it and begins "t" */
    struct answer *a = request(0, 20);
    a->request.n = 2;
    a->request.sampling.logit_bias = &liked;
    a->request.sampling.n_logit_bias = 1;
    need(answer_submit(e, a, &err));
    answer_wait(a);
    for (int c = 0; c < 2; c++)
        assert_int_equal(a->choices[c].finish, KVASIR_FINISH_ERROR);
    assert_string_equal(a->error.text, "no token of the vocabulary can come next");
    assert_string_equal(a->choices[0].text, "{\":t\":t");
    assert_int_equal(engine_settled(e).failed, 1);
    free(a);
    kvasir_engine_destroy(e);
    kvasir_model_close(odd);
    temp_folder_remove(&folder);
}

/* ---- the first requests ---------------------------------------------------------------------- */

static void *submit_one(void *user) {
    struct answer *a = user;
    kvasir_error why;
    return answer_submit(a->engine, a, &why) == KVASIR_OK ? NULL : user;
}

static void test_first_requests_at_once(void **state) {
    (void)state;
    enum { THREADS = 6 };
    const kvasir_engine_options o = options();
    for (int round = 0; round < 5; round++) {
        kvasir_engine *e = answers_engine(model, &o);
        struct answer *a[THREADS];
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) {
            a[i] = request(i, 60);
            a[i]->engine = e;
            assert_int_equal(pthread_create(&threads[i], NULL, submit_one, a[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            void *failed;
            assert_int_equal(pthread_join(threads[i], &failed), 0);
            assert_null(failed);
            answer_wait(a[i]);
            check_choice(&a[i]->choices[0], 60);
        }
        free_all(a, THREADS);
        kvasir_engine_destroy(e);
    }
}

int main(void) {
    skip_without(SHARED_DIR "/fixtures/tiny/llama/config.json");
    skip_without(STORIES);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_parse),
        cmocka_unit_test(test_whatever_the_model_likes),
        cmocka_unit_test(test_same_tokens),
        cmocka_unit_test(test_cut_answers),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_end_and_stop_tokens),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_a_dead_end),
        cmocka_unit_test(test_first_requests_at_once),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
