/* SPDX-License-Identifier: Apache-2.0 */
/* kvasir_engine through its public calls: answers equal those of the same tokens evaluated alone,
 * whatever else runs; seeds, choices, log-probabilities; where answers end. (Stored prefixes:
 * test_engine_cache.c. Refusals and cancels: test_engine_limits.c. Random programs: sim/.) */
#include "model_files.h"

#include <math.h>

#include "answers.h"
#include "tensors.h"

enum { VOCAB = 512, PROMPT = 150, REPLY = 40 };
#define STORIES SHARED_DIR "/models/stories260K/stories260K-f32.gguf"

static kvasir_error err;
static int32_t prompt[10][PROMPT];

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static kvasir_model *open_model(const char *name) {
    char path[512];
    kvasir_model *model;
    snprintf(path, sizeof path, "%s/fixtures/tiny/%s", SHARED_DIR, name);
    need(kvasir_model_open(path, &model, &err));
    return model;
}

/* Prompts that share prefixes of various lengths with the first one. */
static int make_prompts(void **state) {
    static const int shared[] = {0, 0, 1, 63, 64, 65, 100, 128, 149, 150};
    uint32_t r = 7;
    (void)state;
    for (int p = 0; p < 10; p++)
        for (int i = 0; i < PROMPT; i++) {
            r = r * 1664525 + 1013904223;
            prompt[p][i] = i < shared[p] ? prompt[0][i] : (int32_t)(r >> 16) % VOCAB;
        }
    return 0;
}

static void expect_alone(const struct answer *a, const kvasir_model *model,
                         const kvasir_context_options *o) {
    int32_t tokens[ANSWER_TOKENS];
    for (uint32_t i = 0; i < a->request.n; i++) {
        const uint32_t n = answer_alone(model, o, &a->request, i, tokens);
        assert_int_equal(a->choices[i].n, n);
        assert_memory_equal(a->choices[i].tokens, tokens, n * sizeof *tokens);
    }
}

/* ---- the same tokens ------------------------------------------------------------------------- */

static void check_model(const char *name, const char *kv_bits, float temp, uint32_t chunk) {
    kvasir_model *model = open_model(name);
    kvasir_engine_options o = answers_options(48);
    struct answer *a[10];
    o.context.kv_bits = kv_bits;
    o.context.prefill_chunk = chunk;
    o.max_running = 1000; /* as many as fit in a step */
    kvasir_engine *e = answers_engine(model, &o);
    for (int i = 0; i < 10; i++) {
        a[i] = answer_new(prompt[i], PROMPT - (size_t)(i % 3) * 20, REPLY);
        a[i]->request.ignore_end = true;
        a[i]->request.sampling.temp = temp;
        a[i]->request.sampling.seed = (uint64_t)i;
    }
    answer_run(e, a[0]); /* alone */
    for (int i = 1; i < 10; i++)
        need(answer_submit(e, a[i], &err));
    for (int i = 0; i < 10; i++) {
        answer_wait(a[i]);
        expect_alone(a[i], model, &o.context);
        assert_int_equal(a[i]->choices[0].finish, KVASIR_FINISH_LENGTH);
        free(a[i]);
    }
    const kvasir_engine_stats s = engine_settled(e);
    assert_int_equal(s.finished, 10);
    assert_int_equal(s.generated_tokens, 10 * REPLY);
    assert_int_equal(s.preemptions, 0);
    kvasir_engine_destroy(e);
    kvasir_model_close(model);
}

static void test_answers_are_those_of_a_sequence_alone(void **state) {
    (void)state;
    check_model("llama", "8,4", 0, 48);
    check_model("llama", "f16", 1, 48);
    check_model("gemma2", "4,2", 1, 1);
    check_model("gpt_oss", "8,4", 1, 200);
    check_model("lfm2", "8,4", 1, 3);
    check_model("qwen3_next", "3", 1, 48);
}

static void test_rotation(void **state) {
    (void)state;
    kvasir_model *model = open_model("llama");
    kvasir_engine_options o = answers_options(48);
    struct answer *a[4];
    o.context.max_kv_size = 100;
    kvasir_engine *e = answers_engine(model, &o);
    for (int i = 0; i < 4; i++) {
        a[i] = answer_new(prompt[i], PROMPT, 700); /* past --ctx */
        a[i]->request.sampling.temp = 1;
        a[i]->request.ignore_end = true;
        need(answer_submit(e, a[i], &err));
    }
    for (int i = 0; i < 4; i++) {
        answer_wait(a[i]);
        expect_alone(a[i], model, &o.context);
        free(a[i]);
    }
    engine_settled(e);
    kvasir_engine_destroy(e);
    kvasir_model_close(model);
}

/* ---- seeds, choices -------------------------------------------------------------------------- */

static void sample(struct answer *a, uint64_t seed) {
    a->request.sampling.temp = 1;
    a->request.sampling.repetition_penalty = 1.3f;
    a->request.sampling.frequency_penalty = 0.2f;
    a->request.sampling.top_p = 0.95f;
    a->request.sampling.seed = seed;
    a->request.ignore_end = true;
}

static bool same_tokens(const struct answer *a, uint32_t i, const struct answer *b, uint32_t j) {
    return a->choices[i].n == b->choices[j].n && memcmp(a->choices[i].tokens, b->choices[j].tokens,
                                                        a->choices[i].n * sizeof(int32_t)) == 0;
}

static void check_seeds(const char *name) {
    kvasir_model *model = open_model(name);
    const kvasir_engine_options o = answers_options(48);
    struct answer *a = answer_new(prompt[0], PROMPT, REPLY),
                  *again = answer_new(prompt[0], PROMPT, REPLY), *several, *one[5];
    kvasir_engine *e = answers_engine(model, &o);
    sample(a, 5);
    sample(again, 5);
    answer_run(e, a);
    several = answer_new(prompt[0], PROMPT, REPLY);
    several->request.n = 5;
    sample(several, 3);
    need(answer_submit(e, several, &err));
    for (uint32_t i = 0; i < 5; i++) {
        one[i] = answer_new(prompt[0], PROMPT, REPLY);
        sample(one[i], 3 + i);
        need(answer_submit(e, one[i], &err));
    }
    answer_run(e, again);
    assert_true(same_tokens(a, 0, again, 0));
    answer_wait(several);
    assert_int_equal(several->starts, 1);
    for (uint32_t i = 0; i < 5; i++) {
        answer_wait(one[i]);
        assert_true(same_tokens(one[i], 0, several, i));
        assert_true(i == 0 || !same_tokens(one[i], 0, one[0], 0));
    }
    assert_true(same_tokens(a, 0, several, 2)); /* seed 3 + 2 */
    expect_alone(several, model, &o.context);
    for (uint32_t i = 0; i < 5; i++)
        free(one[i]);
    free(a);
    free(again);
    free(several);
    const kvasir_engine_stats s = engine_settled(e);
    assert_int_equal(s.finished, 8);
    assert_int_equal(s.prompt_tokens, 8 * PROMPT); /* a prompt counts once for all its choices */
    kvasir_engine_destroy(e);
    kvasir_model_close(model);
}

static void test_seeds_and_choices(void **state) {
    (void)state;
    check_seeds("llama");
    check_seeds("qwen3_next");
}

/* Choices end at different times, each in turn the first: the others go on. */
static void test_choices_end_apart(void **state) {
    (void)state;
    kvasir_model *model = open_model("llama");
    const kvasir_engine_options o = answers_options(48);
    kvasir_engine *e = answers_engine(model, &o);
    struct answer *all = answer_new(prompt[0], PROMPT, REPLY), *a;
    all->request.n = 4;
    sample(all, 0);
    answer_run(e, all);
    for (uint32_t first = 0; first < 4; first++) {
        const int32_t stop = all->choices[first].tokens[3];
        a = answer_new(prompt[0], PROMPT, REPLY);
        a->request.n = 4;
        a->request.stop_tokens = &stop;
        a->request.n_stop_tokens = 1;
        sample(a, 0);
        answer_run(e, a);
        for (uint32_t i = 0; i < 4; i++) {
            const struct answer_choice *c = &a->choices[i], *whole = &all->choices[i];
            uint32_t n = 0;
            while (n < REPLY && whole->tokens[n] != stop)
                n++;
            assert_int_equal(c->n, n);
            assert_memory_equal(c->tokens, whole->tokens, n * sizeof *c->tokens);
            assert_int_equal(c->finish, n < REPLY ? KVASIR_FINISH_STOP : KVASIR_FINISH_LENGTH);
            assert_int_equal(c->completion, n < REPLY ? n + 1 : n);
        }
        free(a);
    }
    free(all);
    kvasir_engine_destroy(e);
    kvasir_model_close(model);
}

/* ---- log-probabilities ----------------------------------------------------------------------- */

static double logprob_of(const float *logits, int32_t token) {
    double max = logits[0], sum = 0;
    for (int i = 1; i < VOCAB; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int i = 0; i < VOCAB; i++)
        sum += exp(logits[i] - max);
    return logits[token] - max - log(sum);
}

static void check_top(const struct answer_choice *c, uint32_t at, const float *logits) {
    assert_true(fabs(c->logprobs[at] - logprob_of(logits, c->tokens[at])) < 1e-4);
    for (size_t i = 0; i < c->n_top[at]; i++) {
        const kvasir_token_logprob *top = c->top[at];
        uint32_t larger = 0;
        assert_true(fabs(top[i].logprob - logprob_of(logits, top[i].token)) < 1e-4);
        for (int t = 0; t < VOCAB; t++)
            larger += logits[t] > logits[top[i].token];
        assert_true(larger <= i);
        assert_true(i == 0 || top[i].logprob <= top[i - 1].logprob);
        for (size_t j = 0; j < i; j++)
            assert_int_not_equal(top[i].token, top[j].token);
    }
}

static void test_logprobs(void **state) {
    (void)state;
    static const int tops[] = {-1, 0, 1, 20};
    kvasir_model *model = open_model("llama");
    const kvasir_engine_options o = answers_options(48);
    kvasir_engine *e = answers_engine(model, &o);
    float logits[VOCAB];
    for (int t = 0; t < 4; t++) {
        struct answer *a = answer_new(prompt[0], PROMPT, 10);
        kvasir_context *ctx;
        kvasir_seq *seq;
        sample(a, 9);
        a->request.top_logprobs = tops[t];
        a->request.n = 2;
        answer_run(e, a);
        for (uint32_t c = 0; c < 2; c++) {
            kvasir_eval_options last = {.struct_size = sizeof(kvasir_eval_options),
                                        .last_logits = logits};
            need(kvasir_context_create(model, &o.context, &ctx, &err));
            need(kvasir_seq_create(ctx, &seq, &err));
            need(kvasir_seq_eval(seq, prompt[0], PROMPT, &last, &err));
            for (uint32_t i = 0; i < a->choices[c].n; i++) {
                assert_int_equal(a->choices[c].n_top[i], tops[t] > 0 ? tops[t] : 0);
                if (tops[t] >= 0)
                    check_top(&a->choices[c], i, logits);
                need(kvasir_seq_eval(seq, &a->choices[c].tokens[i], 1, &last, &err));
            }
            kvasir_seq_destroy(seq);
            kvasir_context_destroy(ctx);
        }
        free(a);
    }
    kvasir_engine_destroy(e);
    kvasir_model_close(model);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void test_lengths(void **state) {
    (void)state;
    kvasir_model *model = open_model("llama");
    const kvasir_engine_options o = answers_options(48);
    kvasir_engine *e = answers_engine(model, &o);
    static const uint32_t lengths[] = {1, 2, 0, 512 - PROMPT};
    for (int i = 0; i < 4; i++) {
        struct answer *a = answer_new(prompt[0], PROMPT, lengths[i]);
        a->request.ignore_end = true;
        answer_run(e, a);
        assert_int_equal(a->choices[0].n, lengths[i] ? lengths[i] : 512 - PROMPT);
        assert_int_equal(a->choices[0].finish, KVASIR_FINISH_LENGTH);
        free(a);
    }
    struct answer *one = answer_new(prompt[0], 1, 3); /* a prompt of one token, twice */
    answer_run(e, one);
    free(one);
    one = answer_new(prompt[0], 1, 3);
    answer_run(e, one);
    expect_alone(one, model, &o.context);
    free(one);
    engine_settled(e);
    kvasir_engine_destroy(e);
    kvasir_model_close(model);
}

/* The answer's text must be that of a run without stop texts (`whole`), cut at the first occurrence
 * of any stop text. */
static void expect_text(const struct answer *a, const char *whole) {
    const char *end = whole + strlen(whole);
    bool stopped = false;
    for (size_t i = 0; i < a->request.n_stops; i++) {
        const char *at = strstr(whole, a->request.stops[i]);
        if (at && at < end)
            end = at;
        stopped |= at != NULL;
    }
    const struct answer_choice *c = &a->choices[0];
    assert_int_equal(c->len, end - whole);
    assert_memory_equal(c->text, whole, c->len);
    assert_int_equal(c->finish, stopped ? KVASIR_FINISH_STOP : KVASIR_FINISH_LENGTH);
    assert_int_equal(c->stop[0] != 0, stopped);
    assert_memory_equal(end, c->stop, strlen(c->stop)); /* the stop text begins at the cut */
}

static void run_stops(kvasir_engine *e, const int32_t *ids, size_t n, const char *const *stops,
                      size_t n_stops, const char *whole) {
    struct answer *a = answer_new(ids, n, 60);
    a->request.stops = stops;
    a->request.n_stops = n_stops;
    a->request.ignore_end = true;
    answer_run(e, a);
    expect_text(a, whole);
    free(a);
}

static void test_stop_texts(void **state) {
    (void)state;
    kvasir_model *model;
    int32_t *ids;
    size_t n;
    need(kvasir_model_open(STORIES, &model, &err));
    kvasir_engine_options o = answers_options(48);
    o.context.kv_bits = "f16"; /* heads of 8 */
    kvasir_engine *e = answers_engine(model, &o);
    need(kvasir_tokenize(kvasir_model_tokenizer(model), "Once upon a time", 16,
                         KVASIR_TOKENIZE_ADD_SPECIAL, &ids, &n, &err));
    struct answer *plain = answer_new(ids, n, 60);
    plain->request.ignore_end = true;
    answer_run(e, plain);
    expect_alone(plain, model, &o.context);
    char whole[ANSWER_TEXT] = {0};
    memcpy(whole, plain->choices[0].text, plain->choices[0].len);
    assert_true(strlen(whole) > 60);
    /* stop texts of 1 to 9 bytes from all over the answer, wherever token boundaries cut them */
    for (size_t len = 1; len < 10; len += 2)
        for (size_t at = 0; at + len <= strlen(whole); at += 5) {
            char stop[16] = {0}, other[16] = {0};
            memcpy(stop, whole + at, len);
            memcpy(other, whole + (at + 17) % 40, 3);
            run_stops(e, ids, n, (const char *const[]){stop, "never there", other}, 2, whole);
            run_stops(e, ids, n, (const char *const[]){other, stop}, 2, whole);
        }
    run_stops(e, ids, n, (const char *const[]){"no such text"}, 1, whole);
    char beyond[32]; /* begins like the answer's end: held back, then released */
    snprintf(beyond, sizeof beyond, "%s?", whole + strlen(whole) - 4);
    run_stops(e, ids, n, (const char *const[]){beyond}, 1, whole);
    free(plain);
    kvasir_free(ids);
    engine_settled(e);
    kvasir_engine_destroy(e);
    kvasir_model_close(model);
}

/* The vocabulary's end token, forced by a bias: it ends the answer, unless ends are ignored. */
static void test_end_tokens(void **state) {
    (void)state;
    kvasir_model *model;
    need(kvasir_model_open(STORIES, &model, &err));
    kvasir_engine_options o = answers_options(48);
    o.context.kv_bits = "f16";
    kvasir_engine *e = answers_engine(model, &o);
    const kvasir_logit_bias bias = {2, 1000};
    assert_true(kvasir_token_is_end(kvasir_model_tokenizer(model), 2));
    for (int ignore = 0; ignore < 2; ignore++) {
        struct answer *a = answer_new(prompt[0], 20, 8);
        a->request.sampling.logit_bias = &bias;
        a->request.sampling.n_logit_bias = 1;
        a->request.ignore_end = ignore;
        answer_run(e, a);
        assert_int_equal(a->choices[0].n, ignore ? 8 : 0);
        assert_int_equal(a->choices[0].len, 0);
        assert_int_equal(a->choices[0].finish, ignore ? KVASIR_FINISH_LENGTH : KVASIR_FINISH_STOP);
        free(a);
    }
    kvasir_engine_destroy(e);
    kvasir_model_close(model);
}

/* Control tokens have no text unless shown; one that ends the answer never has. */
static void test_shown_tokens(void **state) {
    (void)state;
    kvasir_model *model;
    need(kvasir_model_open(STORIES, &model, &err));
    kvasir_engine_options o = answers_options(48);
    o.context.kv_bits = "f16";
    kvasir_engine *e = answers_engine(model, &o);
    static const struct {
        int32_t token;
        bool shown, ignore_end;
        const char *stop, *text;
    } CASES[] = {
        {1, false, false, NULL, ""},           {1, true, false, NULL, "<s><s><s>"},
        {1, true, false, "s><", "<"},          {2, true, false, NULL, ""},
        {2, true, true, NULL, "</s></s></s>"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const kvasir_logit_bias bias = {CASES[i].token, 1000};
        int32_t shown[] = {5, CASES[i].token, -1, INT32_MAX};
        struct answer *a = answer_new(prompt[0], 20, 3);
        a->request.sampling.logit_bias = &bias;
        a->request.sampling.n_logit_bias = 1;
        a->request.ignore_end = CASES[i].ignore_end;
        a->request.stops = &CASES[i].stop;
        a->request.n_stops = CASES[i].stop != NULL;
        a->request.shown_tokens = shown;
        a->request.n_shown_tokens = CASES[i].shown ? 4 : 0;
        need(answer_submit(e, a, &err));
        memset(shown, 0, sizeof shown); /* it was copied */
        answer_wait(a);
        assert_int_equal(a->choices[0].len, strlen(CASES[i].text));
        assert_memory_equal(a->choices[0].text, CASES[i].text, a->choices[0].len);
        free(a);
    }
    kvasir_engine_destroy(e);
    kvasir_model_close(model);
}

int main(void) {
    skip_without(SHARED_DIR "/fixtures/tiny/llama/config.json");
    skip_without(STORIES);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_are_those_of_a_sequence_alone),
        cmocka_unit_test(test_rotation),
        cmocka_unit_test(test_seeds_and_choices),
        cmocka_unit_test(test_choices_end_apart),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_stop_texts),
        cmocka_unit_test(test_end_tokens),
        cmocka_unit_test(test_shown_tokens),
    };
    return cmocka_run_group_tests(tests, make_prompts, NULL);
}
