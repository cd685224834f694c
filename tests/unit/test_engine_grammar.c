/* SPDX-License-Identifier: Apache-2.0 */
/* Requests with a grammar through the engine: an answer that ends by itself is a text of it,
 * whatever the model prefers, and one that is cut off begins one; its tokens are the same alone, in
 * batches and through preemptions. */
#include "model_files.h"

#include "answers.h"
#include "tensors.h"

#define STORIES SHARED_DIR "/models/stories260K/stories260K-f32.gguf"
enum { VOCAB = 512, PROMPT = 40, GRAMMARS = 3 };

static const char *const TEXTS[GRAMMARS] = {
    "root ::= \"yes\" | \"no\" \" never\"{0,3}",
    "root ::= [A-Z] [a-z]{1,8} (\" \" [a-z\\u00e4-\\u00fc]+){0,4} \".\"",
    "root ::= \"(\" root? \")\" | \"[\" root \"]\"",
};
static kvasir_error err;
static kvasir_model *model;
static kvasir_grammar *grammars[GRAMMARS];
static int32_t prompt[16][PROMPT];

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static int set_up(void **state) {
    uint32_t r = 7;
    (void)state;
    for (int p = 0; p < 16; p++)
        for (int i = 0; i < PROMPT; i++) {
            r = r * 1664525 + 1013904223;
            prompt[p][i] = (int32_t)(r >> 16) % VOCAB;
        }
    for (int i = 0; i < GRAMMARS; i++)
        need(kvasir_grammar_create(KVASIR_GRAMMAR_GBNF, TEXTS[i], strlen(TEXTS[i]), &grammars[i],
                                   &err));
    return kvasir_model_open(STORIES, &model, &err) != KVASIR_OK;
}

static int tear_down(void **state) {
    (void)state;
    for (int i = 0; i < GRAMMARS; i++)
        kvasir_grammar_destroy(grammars[i]);
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
    a->request.grammar = grammars[p % GRAMMARS];
    a->request.sampling.temp = (float)(p % 4);
    a->request.sampling.seed = 1000 * (uint64_t)p;
    return a;
}

static void check_choice(const kvasir_grammar *g, const struct answer_choice *c) {
    bool matches;
    size_t at;
    need(kvasir_grammar_match(g, c->text, c->len, &matches, &at, &err));
    if (c->finish == KVASIR_FINISH_STOP ? !matches : at < c->len)
        fail_msg("finish %d, wrong from byte %zu on: %.*s", (int)c->finish, at, (int)c->len,
                 c->text);
}

static void test_answers_match(void **state) {
    (void)state;
    const kvasir_engine_options o = options();
    kvasir_engine *e = answers_engine(model, &o);
    struct answer *a[16];
    uint32_t stopped = 0;
    for (int i = 0; i < 16; i++) {
        a[i] = request(i, 60);
        a[i]->request.n = 4;
        need(answer_submit(e, a[i], &err));
    }
    for (int i = 0; i < 16; i++) {
        answer_wait(a[i]);
        for (int c = 0; c < 4; c++) {
            check_choice(grammars[i % GRAMMARS], &a[i]->choices[c]);
            stopped += a[i]->choices[c].finish == KVASIR_FINISH_STOP;
        }
        free(a[i]);
    }
    assert_true(stopped > 20);
    engine_settled(e);
    kvasir_engine_destroy(e);
}

/* Alone, beside others, and after preemptions. */
static void check_same(bool preempt) {
    enum { REQUESTS = 9, MOST = 80 };
    kvasir_engine_options o = options();
    struct answer *alone[REQUESTS], *beside[REQUESTS];
    kvasir_engine_stats s;
    for (int i = 0; i < REQUESTS; i++) {
        kvasir_engine *e = answers_engine(model, &o);
        alone[i] = request(i, MOST);
        answer_run(e, alone[i]);
        s = engine_settled(e);
        kvasir_engine_destroy(e);
    }
    o.context.prefill_chunk = preempt ? 48 : 20;
    o.no_prefix_cache = preempt;
    if (preempt)
        o.cache_memory_bytes = s.fixed_bytes + (300 << 10);
    kvasir_engine *e = answers_engine(model, &o);
    for (int i = 0; i < REQUESTS; i++) {
        beside[i] = request(i, MOST);
        need(answer_submit(e, beside[i], &err));
    }
    for (int i = 0; i < REQUESTS; i++) {
        answer_wait(beside[i]);
        const struct answer_choice *x = &alone[i]->choices[0], *y = &beside[i]->choices[0];
        assert_int_equal(x->n, y->n);
        assert_memory_equal(x->tokens, y->tokens, x->n * sizeof *x->tokens);
        assert_int_equal(x->finish, y->finish);
        free(alone[i]);
        free(beside[i]);
    }
    engine_settled(e);
    kvasir_engine_destroy(e);
}

static void test_same_tokens(void **state) {
    (void)state;
    check_same(false);
    check_same(true);
}

/* A grammar may be destroyed while requests use it. */
static void test_kept(void **state) {
    (void)state;
    static const char TEXT[] = "root ::= [a-z]{5,9}";
    const kvasir_engine_options o = options();
    kvasir_engine *e = answers_engine(model, &o);
    kvasir_grammar *g;
    need(kvasir_grammar_create(KVASIR_GRAMMAR_GBNF, TEXT, strlen(TEXT), &g, &err));
    struct answer *a = request(1, 30);
    a->request.grammar = g;
    need(answer_submit(e, a, &err));
    kvasir_grammar_destroy(g);
    answer_wait(a);
    assert_in_range(a->choices[0].len, 5, 9);
    free(a);
    kvasir_engine_destroy(e);
}

static void test_refused(void **state) {
    (void)state;
    const kvasir_engine_options o = options();
    kvasir_engine *e = answers_engine(model, &o);
    struct answer *a = request(0, 10);
    kvasir_error why = {0};
    a->request.ignore_end = true;
    assert_int_equal(kvasir_engine_submit(e, &a->request, NULL, &why), KVASIR_ERR_ARGUMENT);
    assert_string_equal(why.text, "cannot be combined with ignore_end");
    free(a);
    kvasir_engine_destroy(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_match),
        cmocka_unit_test(test_same_tokens),
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
