/* SPDX-License-Identifier: Apache-2.0 */
/* Text that a grammar forces: the same tokens appended at once as one by one (which a request with
 * logprobs gets), alone, beside others, after hits, in several choices and after preemptions, also
 * with recurrent layers; cut by max_tokens and stop texts. */
#include <unistd.h>

#include "model_files.h"

#include "answers.h"
#include "byte_tokenizer.h"
#include "tensors.h"

#define STORIES SHARED_DIR "/models/stories260K/stories260K-f32.gguf"
#define HYBRID  SHARED_DIR "/fixtures/tiny/qwen3_next"
enum { PROMPT = 70, REQUESTS = 8, MOST = 150, MODELS = 2 };

static const char TEXT[] = "root ::= [a-d]{2} \" and then there was a long way to go: \" word "
                           "\" (this is said of the word) \" word \". That is the end.\"\n"
                           "word ::= [a-z]{1,6} | \"(\" [a-z] \"|\" [0-9] \")\"";
static kvasir_error err;
static kvasir_model *models[MODELS];
static kvasir_grammar *grammar;
static int32_t prompt[REQUESTS][PROMPT];
static struct temp_folder folder;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

/* The tiny model with a tokenizer of bytes. */
static void open_hybrid(void) {
    static const char *const FILES[] = {"config.json", "model.safetensors"};
    char config[256], from[256];
    temp_folder_make(&folder);
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        snprintf(from, sizeof from, "%s/%s", HYBRID, FILES[i]);
        assert_int_equal(symlink(from, temp_file(&folder, FILES[i])), 0);
    }
    snprintf(config, sizeof config, "%s", temp_file(&folder, "tokenizer_config.json"));
    byte_tokenizer_write(temp_file(&folder, "tokenizer.json"), config, NULL);
    need(kvasir_model_open(folder.path, &models[1], &err));
}

static int set_up(void **state) {
    uint32_t r = 11;
    (void)state;
    for (int p = 0; p < REQUESTS; p++)
        for (int i = 0; i < PROMPT; i++) {
            r = r * 1664525 + 1013904223;
            prompt[p][i] = i < 10 ? i + 5 : (int32_t)(r >> 16) % 250;
        }
    need(kvasir_grammar_create(KVASIR_GRAMMAR_GBNF, TEXT, strlen(TEXT), &grammar, &err));
    need(kvasir_model_open(STORIES, &models[0], &err));
    open_hybrid();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    kvasir_grammar_destroy(grammar);
    for (int i = 0; i < MODELS; i++)
        kvasir_model_close(models[i]);
    temp_folder_remove(&folder);
    return 0;
}

static kvasir_engine_options options(void) {
    kvasir_engine_options o = answers_options(48);
    o.context.kv_bits = "f16"; /* heads of 8 */
    return o;
}

static struct answer *request(int p, bool jump) {
    struct answer *a = answer_new(prompt[p], PROMPT - (size_t)p, MOST);
    a->request.grammar = grammar;
    a->request.sampling.temp = (float)(p % 3);
    a->request.sampling.seed = 1000 * (uint64_t)p;
    a->request.n = p % 4 == 3 ? 3 : 1;
    a->request.top_logprobs = jump ? -1 : 0;
    return a;
}

static void check_equal(const struct answer *a, const struct answer *b) {
    for (uint32_t i = 0; i < a->request.n; i++) {
        const struct answer_choice *x = &a->choices[i], *y = &b->choices[i];
        assert_int_equal(x->n, y->n);
        assert_memory_equal(x->tokens, y->tokens, x->n * sizeof *x->tokens);
        assert_int_equal(x->len, y->len);
        assert_memory_equal(x->text, y->text, x->len);
        assert_int_equal(x->finish, y->finish);
    }
}

/* All requests one by one. */
static kvasir_engine_stats run_alone(const kvasir_model *m, bool jump, struct answer **a) {
    const kvasir_engine_options o = options();
    kvasir_engine_stats s = {0}, sum = {0};
    for (int i = 0; i < REQUESTS; i++) {
        kvasir_engine *e = answers_engine(m, &o);
        a[i] = request(i, jump);
        answer_run(e, a[i]);
        s = engine_settled(e);
        sum.steps += s.steps;
        sum.forced_tokens += s.forced_tokens;
        sum.generated_tokens += s.generated_tokens;
        sum.masks += s.masks;
        sum.fixed_bytes = s.fixed_bytes;
        kvasir_engine_destroy(e);
    }
    return sum;
}

/* All at once, twice: the second time after hits. */
static kvasir_engine_stats run_beside(const kvasir_model *m, const kvasir_engine_options *o,
                                      int jump, struct answer **alone) {
    struct answer *a[REQUESTS];
    kvasir_engine *e = answers_engine(m, o);
    for (int lap = 0; lap < 2; lap++) {
        answers_hold();
        for (int i = 0; i < REQUESTS; i++) {
            a[i] = request(i, jump < 0 ? (i + lap) % 2 : jump);
            a[i]->hold_at = i == 0; /* until all are waiting */
            need(answer_submit(e, a[i], &err));
            if (i == 0)
                answer_wait_held();
        }
        answers_release();
        for (int i = 0; i < REQUESTS; i++) {
            answer_wait(a[i]);
            check_equal(alone[i], a[i]);
            free(a[i]);
        }
    }
    const kvasir_engine_stats s = engine_settled(e);
    kvasir_engine_destroy(e);
    return s;
}

static void check_model(const kvasir_model *m) {
    struct answer *one[REQUESTS], *jump[REQUESTS];
    const kvasir_engine_stats s = run_alone(m, false, one), j = run_alone(m, true, jump);
    kvasir_engine_options o = options();
    bool matches;
    size_t at;
    for (int i = 0; i < REQUESTS; i++) {
        const struct answer_choice *c = &jump[i]->choices[0];
        check_equal(one[i], jump[i]);
        need(kvasir_grammar_match(grammar, c->text, c->len, &matches, &at, &err));
        assert_true(matches && c->finish == KVASIR_FINISH_STOP);
        free(jump[i]);
    }
    assert_int_equal(s.forced_tokens, j.forced_tokens);
    assert_int_equal(s.generated_tokens, j.generated_tokens);
    assert_int_equal(s.masks, j.masks);
    assert_true(j.forced_tokens > 8 * 30);
    assert_true(j.steps * 2 < s.steps);
    for (int k = -1; k < 2; k++)
        run_beside(m, &o, k, one);
    o.no_prefix_cache = true;
    o.cache_memory_bytes = s.fixed_bytes + (250 << 10);
    assert_true(run_beside(m, &o, -1, one).preemptions > 0);
    for (int i = 0; i < REQUESTS; i++)
        free(one[i]);
}

static void test_plain(void **state) {
    (void)state;
    check_model(models[0]);
}

static void test_hybrid(void **state) {
    (void)state;
    check_model(models[1]);
}

/* The same tokens, up to where max_tokens or a stop text ends them. */
static void test_cut(void **state) {
    (void)state;
    static const char *const STOPS[] = {"ong way"};
    const kvasir_engine_options o = options();
    kvasir_engine *e = answers_engine(models[1], &o);
    for (uint32_t n = 1; n < 30; n += 7) {
        struct answer *a = request(0, true);
        a->request.max_tokens = n;
        answer_run(e, a);
        assert_int_equal(a->choices[0].n, n);
        assert_int_equal(a->choices[0].finish, KVASIR_FINISH_LENGTH);
        free(a);
    }
    struct answer *a = request(0, true);
    a->request.stops = STOPS;
    a->request.n_stops = 1;
    answer_run(e, a);
    assert_int_equal(a->choices[0].finish, KVASIR_FINISH_STOP);
    assert_string_equal(a->choices[0].stop, STOPS[0]);
    assert_int_equal(a->choices[0].len, 2 + strlen(" and then there was a l"));
    free(a);
    engine_settled(e);
    kvasir_engine_destroy(e);
}

/* kvasir_guide with a sequence and a sampler of one's own: the same tokens as the engine's. */
static void check_guide(kvasir_model *m, const struct answer *a) {
    const kvasir_context_options o = options().context;
    kvasir_model_info info;
    kvasir_context *ctx;
    kvasir_seq *seq;
    kvasir_sampler *sampler;
    kvasir_guide *guide;
    bool complete = false;
    kvasir_model_get_info(m, &info);
    float *logits = malloc(info.vocab * sizeof *logits);
    const kvasir_eval_options last = {.struct_size = sizeof last, .last_logits = logits};
    need(kvasir_context_create(m, &o, &ctx, &err));
    need(kvasir_seq_create(ctx, &seq, &err));
    need(kvasir_sampler_create(&a->request.sampling, info.vocab, &sampler, &err));
    need(kvasir_guide_create(kvasir_model_tokenizer(m), info.vocab, grammar, &guide, &err));
    need(kvasir_seq_eval(seq, a->request.tokens, a->request.n_tokens, &last, &err));
    for (uint32_t i = 0; !complete; i++) {
        int32_t id;
        need(kvasir_guide_pick(guide, sampler, logits, &id, &err));
        assert_true(i < a->choices[0].n);
        assert_int_equal(id, a->choices[0].tokens[i]);
        need(kvasir_guide_add(guide, id, &complete, &err));
        assert_int_equal(complete, i + 1 == a->choices[0].n);
        need(kvasir_seq_eval(seq, &id, 1, &last, &err));
    }
    kvasir_guide_destroy(guide);
    kvasir_sampler_destroy(sampler);
    kvasir_seq_destroy(seq);
    kvasir_context_destroy(ctx);
    free(logits);
}

static void test_guide(void **state) {
    (void)state;
    const kvasir_engine_options o = options();
    for (int m = 0; m < MODELS; m++) {
        kvasir_engine *e = answers_engine(models[m], &o);
        for (int i = 0; i < 3; i++) {
            struct answer *a = answer_new(prompt[i], PROMPT, MOST);
            a->request.grammar = grammar;
            a->request.sampling.temp = (float)i;
            a->request.sampling.seed = 5;
            answer_run(e, a);
            check_guide(models[m], a);
            free(a);
        }
        kvasir_engine_destroy(e);
    }
}

/* Cancelled while sets are made. */
static void test_cancelled(void **state) {
    (void)state;
    const kvasir_engine_options o = options();
    kvasir_engine *e = answers_engine(models[0], &o);
    for (int i = 0; i < 12; i++) {
        struct answer *a = request(i % REQUESTS, i % 2);
        a->cancel_at = (uint32_t)i % 5;
        a->cancel_running = a->cancel_at == 0;
        need(answer_submit(e, a, &err));
        answer_wait(a);
        free(a);
    }
    engine_settled(e);
    kvasir_engine_destroy(e);
}

int main(void) {
    skip_without(STORIES);
    skip_without(HYBRID "/config.json");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain), cmocka_unit_test(test_hybrid),    cmocka_unit_test(test_cut),
        cmocka_unit_test(test_guide), cmocka_unit_test(test_cancelled),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
