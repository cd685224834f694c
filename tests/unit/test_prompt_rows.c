/* SPDX-License-Identifier: Apache-2.0 */
/* What a kvasir_engine says of a prompt's rows: log-probabilities of its tokens are those of a
 * sequence alone, embeddings are what the head multiplies; both have the same bits whatever runs
 * beside them, is stored, or is preempted. */
#include "model_files.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "answers.h"
#include "engine/sampler.h"
#include "tensors.h"

enum { VOCAB = 512, WIDTH = 256, LENGTH = 300, PROMPTS = 6, TOP = 4 };

static kvasir_error err;
static int32_t prompt[PROMPTS][LENGTH];

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static const char *model_path(const char *name, const char *file) {
    static char path[512];
    snprintf(path, sizeof path, "%s/fixtures/tiny/%s%s", SHARED_DIR, name, file);
    skip_without(path);
    return path;
}

static kvasir_model *open_model(const char *name) {
    kvasir_model *model;
    need(kvasir_model_open(model_path(name, ""), &model, &err));
    return model;
}

/* All begin alike, for 0 to 200 tokens. */
static int make_prompts(void **state) {
    uint32_t r = 11;
    (void)state;
    for (int p = 0; p < PROMPTS; p++)
        for (int i = 0; i < LENGTH; i++) {
            r = r * 1664525 + 1013904223;
            prompt[p][i] = i < p * 40 ? prompt[0][i] : (int32_t)(r >> 16) % VOCAB;
        }
    return 0;
}

/* ---- requests -------------------------------------------------------------------------------- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

struct rows {
    kvasir_request request;
    int32_t tokens[LENGTH];
    float logprobs[LENGTH];
    kvasir_token_logprob top[LENGTH][TOP];
    uint32_t ranks[LENGTH], n, cached, answered;
    float embedding[WIDTH];
    size_t n_embedding;
    float asked[KVASIR_TOP_LOGPROBS_MAX];
    size_t n_asked;
    kvasir_finish finish;
    bool complete;
};

static void on_event(void *user, const kvasir_event *e) {
    struct rows *r = user;
    pthread_mutex_lock(&mutex);
    r->cached = e->cached_tokens;
    r->answered += e->kind == KVASIR_EVENT_TOKEN;
    if (e->kind == KVASIR_EVENT_PROMPT_TOKEN && r->n < LENGTH) {
        r->tokens[r->n] = e->token;
        r->logprobs[r->n] = e->logprob;
        r->ranks[r->n] = e->rank;
        for (size_t i = 0; i < e->n_top && i < TOP; i++)
            r->top[r->n][i] = e->top[i];
        r->n++;
    }
    if (e->kind == KVASIR_EVENT_DONE) {
        r->finish = e->finish;
        r->n_embedding = e->n_embedding;
        r->n_asked = e->n_asked;
        if (e->asked_logprobs)
            memcpy(r->asked, e->asked_logprobs, e->n_asked * sizeof *r->asked);
        if (e->embedding && e->n_embedding <= WIDTH)
            memcpy(r->embedding, e->embedding, e->n_embedding * sizeof(float));
    }
    r->complete |= e->last;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static void submit(kvasir_engine *e, struct rows *r, int p, size_t n, int32_t logprobs,
                   kvasir_pooling embed) {
    *r = (struct rows){.request = kvasir_request_defaults()};
    r->request.tokens = prompt[p];
    r->request.n_tokens = n;
    r->request.prompt_logprobs = logprobs;
    r->request.no_answer = true;
    r->request.embed = embed;
    r->request.on_event = on_event;
    r->request.user = r;
    need(kvasir_engine_submit(e, &r->request, NULL, &err));
}

static void wait_for(struct rows *r) {
    pthread_mutex_lock(&mutex);
    while (!r->complete)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
    assert_int_equal(r->finish, KVASIR_FINISH_LENGTH);
    assert_int_equal(r->answered, 0);
}

/* ---- alone ----------------------------------------------------------------------------------- */

static float alone_logits[LENGTH][VOCAB];

static bool keep_logits(void *user, size_t first, size_t rows, const float *logits) {
    (void)user;
    memcpy(alone_logits[first], logits, rows * VOCAB * sizeof *logits);
    return true;
}

static void eval_alone(const kvasir_model *model, const kvasir_context_options *o,
                       const int32_t *tokens, size_t n) {
    kvasir_context *ctx;
    kvasir_seq *seq;
    kvasir_eval_options all = kvasir_eval_defaults();
    all.on_logits = keep_logits;
    need(kvasir_context_create(model, o, &ctx, &err));
    need(kvasir_seq_create(ctx, &seq, &err));
    need(kvasir_seq_eval(seq, tokens, n, &all, &err));
    kvasir_seq_destroy(seq);
    kvasir_context_destroy(ctx);
}

/* ---- log-probabilities ----------------------------------------------------------------------- */

static void expect_logprobs(const kvasir_model *model, const kvasir_context_options *o, int p,
                            size_t n, const struct rows *r) {
    assert_int_equal(r->n, n - 1);
    eval_alone(model, o, prompt[p], n);
    for (size_t i = 0; i + 1 < n; i++) {
        kvasir_token_logprob top[TOP];
        float logprob;
        sampler_logprobs(alone_logits[i], VOCAB, prompt[p][i + 1], TOP, &logprob, top);
        assert_int_equal(r->tokens[i], prompt[p][i + 1]);
        assert_memory_equal(&r->logprobs[i], &logprob, sizeof logprob);
        assert_memory_equal(r->top[i], top, sizeof top);
        uint32_t rank = 0;
        for (int k = 0; k < VOCAB; k++)
            rank += alone_logits[i][k] >= alone_logits[i][prompt[p][i + 1]];
        assert_int_equal(r->ranks[i], rank);
    }
}

static void check_logprobs(const char *name, const char *kv_bits, uint32_t chunk) {
    static struct rows r[PROMPTS];
    kvasir_model *model = open_model(name);
    kvasir_engine_options o = answers_options(chunk);
    o.context.kv_bits = kv_bits;
    kvasir_engine *e = answers_engine(model, &o);
    struct answer *beside = answer_new(prompt[0], 90, 60);
    beside->request.ignore_end = true;
    submit(e, &r[0], 0, LENGTH, TOP, KVASIR_POOLING_NONE);
    wait_for(&r[0]);
    expect_logprobs(model, &o.context, 0, LENGTH, &r[0]);
    submit(e, &r[0], 0, LENGTH, TOP, KVASIR_POOLING_NONE); /* the prompt is stored now */
    need(answer_submit(e, beside, &err));
    for (int p = 1; p < PROMPTS; p++)
        submit(e, &r[p], p, LENGTH - (size_t)p * 7, TOP, KVASIR_POOLING_NONE);
    for (int p = 0; p < PROMPTS; p++) {
        wait_for(&r[p]);
        assert_int_equal(r[p].cached, 0);
        expect_logprobs(model, &o.context, p, LENGTH - (size_t)p * 7, &r[p]);
    }
    answer_wait(beside);
    free(beside);
    engine_settled(e);
    kvasir_engine_destroy(e);
    kvasir_model_close(model);
}

static void test_logprobs(void **state) {
    (void)state;
    check_logprobs("llama", "8,4", 48);
    check_logprobs("llama", "f16", 7);
    check_logprobs("gemma2", "8", 48);
    check_logprobs("qwen3_next", "8,4", 48);
}

/* Older answers grow, and have newer requests preempted in the midst of their prompts: they go on
 * with what is stored, and give no row twice. Returns how many were preempted. */
static uint64_t check_preempted(const kvasir_model *model, uint64_t bytes) {
    static struct rows r[2];
    kvasir_engine_options o = answers_options(4);
    kvasir_engine *e = answers_engine(model, &o);
    kvasir_engine_stats s;
    kvasir_engine_get_stats(e, &s);
    kvasir_engine_destroy(e);
    o.cache_memory_bytes = s.fixed_bytes + bytes;
    e = answers_engine(model, &o);
    struct answer *older[3];
    for (int i = 0; i < 3; i++) {
        older[i] = answer_new(prompt[3 * (i % 2)] + 10 * i, 30, 400);
        older[i]->request.ignore_end = true;
        need(answer_submit(e, older[i], &err));
    }
    submit(e, &r[0], 1, LENGTH, TOP, KVASIR_POOLING_NONE);
    submit(e, &r[1], 2, LENGTH, -1, KVASIR_POOLING_MEAN);
    for (int i = 0; i < 2; i++)
        wait_for(&r[i]);
    expect_logprobs(model, &o.context, 1, LENGTH, &r[0]);
    for (int i = 0; i < 3; i++) {
        answer_wait(older[i]);
        free(older[i]);
    }
    s = engine_settled(e);
    struct rows alone;
    submit(e, &alone, 2, LENGTH, -1, KVASIR_POOLING_MEAN);
    wait_for(&alone);
    assert_memory_equal(alone.embedding, r[1].embedding, sizeof alone.embedding);
    kvasir_engine_destroy(e);
    return s.preemptions;
}

static void test_preempted(void **state) {
    (void)state;
    kvasir_model *model = open_model("llama");
    kvasir_engine_options o = answers_options(4);
    kvasir_engine *e = answers_engine(model, &o);
    kvasir_sequence_plan plan;
    uint64_t preemptions = 0;
    kvasir_engine_plan_sequence(e, 430, &plan);
    kvasir_engine_destroy(e);
    for (uint64_t part = 9; part < 18; part += 4)
        preemptions += check_preempted(model, plan.need_bytes * part / 8);
    assert_true(preemptions > 0);
    kvasir_model_close(model);
}

/* An answer follows the prompt's log-probabilities. */
static void test_with_an_answer(void **state) {
    static struct rows r;
    (void)state;
    kvasir_model *model = open_model("llama");
    const kvasir_engine_options o = answers_options(48);
    kvasir_engine *e = answers_engine(model, &o);
    r = (struct rows){.request = kvasir_request_defaults()};
    r.request.tokens = prompt[0];
    r.request.n_tokens = 100;
    r.request.max_tokens = 9;
    r.request.n = 2;
    r.request.ignore_end = true;
    r.request.prompt_logprobs = TOP;
    r.request.on_event = on_event;
    r.request.user = &r;
    need(kvasir_engine_submit(e, &r.request, NULL, &err));
    pthread_mutex_lock(&mutex);
    while (!r.complete)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
    assert_int_equal(r.answered, 2 * 9);
    expect_logprobs(model, &o.context, 0, 100, &r);
    kvasir_engine_destroy(e);
    kvasir_model_close(model);
}

/* Of tokens that are asked for after the prompt, computed or stored. */
static void test_asked_tokens(void **state) {
    static const int32_t ASKED[] = {0, 7, VOCAB - 1, 7};
    enum { N = sizeof ASKED / sizeof *ASKED };
    static struct rows r;
    (void)state;
    kvasir_model *model = open_model("llama");
    const kvasir_engine_options o = answers_options(48);
    kvasir_engine *e = answers_engine(model, &o);
    eval_alone(model, &o.context, prompt[0], 130);
    for (int turn = 0; turn < 2; turn++) {
        r = (struct rows){.request = kvasir_request_defaults()};
        r.request.tokens = prompt[0];
        r.request.n_tokens = 130;
        r.request.asked_tokens = ASKED;
        r.request.n_asked_tokens = N;
        r.request.on_event = on_event;
        r.request.user = &r;
        need(kvasir_engine_submit(e, &r.request, NULL, &err));
        wait_for(&r);
        assert_int_equal(r.n_asked, N);
        assert_int_equal(r.cached, turn ? 129 : 0);
        for (int i = 0; i < N; i++) {
            float logprob;
            sampler_logprobs(alone_logits[129], VOCAB, ASKED[i], 0, &logprob, NULL);
            assert_memory_equal(&r.asked[i], &logprob, sizeof logprob);
        }
    }
    r.request.n_asked_tokens = KVASIR_TOP_LOGPROBS_MAX + 1;
    assert_int_equal(kvasir_engine_submit(e, &r.request, NULL, &err), KVASIR_ERR_ARGUMENT);
    assert_string_equal(err.field, "request.asked_tokens");
    r.request.n_asked_tokens = 1;
    r.request.n = 2;
    assert_int_equal(kvasir_engine_submit(e, &r.request, NULL, &err), KVASIR_ERR_ARGUMENT);
    r.request.n = 1;
    r.request.asked_tokens = (const int32_t[]){VOCAB};
    assert_int_equal(kvasir_engine_submit(e, &r.request, NULL, &err), KVASIR_ERR_ARGUMENT);
    kvasir_engine_destroy(e);
    kvasir_model_close(model);
}

/* ---- embeddings ------------------------------------------------------------------------------ */

static double length_of(const struct rows *r) {
    double squares = 0;
    for (size_t i = 0; i < r->n_embedding; i++)
        squares += (double)r->embedding[i] * (double)r->embedding[i];
    return sqrt(squares);
}

static void check_embeddings(const char *name, const char *kv_bits, uint32_t chunk,
                             kvasir_pooling pooling) {
    static struct rows cold[PROMPTS], r[PROMPTS];
    kvasir_model *model = open_model(name);
    kvasir_engine_options o = answers_options(chunk);
    kvasir_model_info info;
    kvasir_model_get_info(model, &info);
    assert_in_range(info.dim, 1, WIDTH);
    o.context.kv_bits = kv_bits;
    for (int p = 0; p < PROMPTS; p++) {
        kvasir_engine *e = answers_engine(model, &o);
        submit(e, &cold[p], p, LENGTH - (size_t)p, -1, pooling);
        wait_for(&cold[p]);
        assert_int_equal(cold[p].n_embedding, info.dim);
        assert_true(fabs(length_of(&cold[p]) - 1) < 1e-6);
        assert_true(p == 0 || memcmp(cold[p].embedding, cold[0].embedding, sizeof r[0].embedding));
        kvasir_engine_destroy(e);
    }
    kvasir_engine *e = answers_engine(model, &o);
    struct answer *beside = answer_new(prompt[0], 90, 60);
    beside->request.ignore_end = true;
    need(answer_submit(e, beside, &err));
    for (int turn = 0; turn < 2; turn++) { /* the second time, all prompts are stored */
        for (int p = 0; p < PROMPTS; p++)
            submit(e, &r[p], p, LENGTH - (size_t)p, -1, pooling);
        for (int p = 0; p < PROMPTS; p++) {
            wait_for(&r[p]);
            assert_memory_equal(r[p].embedding, cold[p].embedding, info.dim * sizeof(float));
            assert_true(pooling == KVASIR_POOLING_LAST ? !turn || r[p].cached >= LENGTH - 70
                                                       : r[p].cached == 0);
        }
    }
    answer_wait(beside);
    free(beside);
    kvasir_engine_destroy(e);
    kvasir_model_close(model);
}

static void test_embeddings_have_the_same_bits(void **state) {
    (void)state;
    check_embeddings("llama", "8,4", 48, KVASIR_POOLING_LAST);
    check_embeddings("llama", "8,4", 48, KVASIR_POOLING_MEAN);
    check_embeddings("gemma3", "f16", 7, KVASIR_POOLING_MEAN);
    check_embeddings("qwen3_next", "8", 48, KVASIR_POOLING_LAST);
}

/* How far `logits` is from the head's product with the embedding, scaled to fit: a part of it. */
static double misfit(const struct golden *head, const struct rows *r, const double *logits) {
    static double product[VOCAB];
    double dot = 0, squares = 0, apart = 0, all = 0;
    const uint16_t *w = head->data; /* bf16 [VOCAB][dim] */
    for (size_t v = 0; v < VOCAB; v++) {
        product[v] = 0;
        for (size_t i = 0; i < r->n_embedding; i++) {
            const uint32_t bits = (uint32_t)w[v * r->n_embedding + i] << 16;
            float x;
            memcpy(&x, &bits, sizeof x);
            product[v] += (double)x * (double)r->embedding[i];
        }
        dot += product[v] * logits[v];
        squares += product[v] * product[v];
    }
    assert_true(dot > 0);
    for (size_t v = 0; v < VOCAB; v++) {
        const double d = product[v] * dot / squares - logits[v];
        apart += d * d;
        all += logits[v] * logits[v];
    }
    return sqrt(apart / all);
}

/* The head times the embedding gives the logits of transformers (a model with a plain head). */
static void test_golden(void **state) {
    static struct rows last, mean;
    static double wanted[VOCAB];
    struct golden_file goldens, weights;
    (void)state;
    assert_true(golden_open(&goldens, model_path("llama", "/golden.safetensors")));
    assert_true(golden_open(&weights, model_path("llama", "/model.safetensors")));
    const struct golden ids = golden_get(&goldens, "input_ids"),
                        at = golden_get(&goldens, "positions"),
                        logits = golden_get(&goldens, "logits"),
                        head = golden_get(&weights, "model.embed_tokens.weight");
    kvasir_model *model = open_model("llama");
    kvasir_engine_options o = answers_options(48);
    o.context.kv_bits = "f32";
    kvasir_engine *e = answers_engine(model, &o);
    for (size_t k = 0; k < at.n; k += 9) {
        const size_t n = (size_t)((const int32_t *)at.data)[k] + 1;
        if (n > LENGTH)
            continue;
        memcpy(prompt[0], ids.data, n * sizeof(int32_t));
        submit(e, &last, 0, n, -1, KVASIR_POOLING_LAST);
        wait_for(&last);
        for (size_t v = 0; v < VOCAB; v++)
            wanted[v] = (double)((const float *)logits.data)[k * VOCAB + v];
        assert_true(misfit(&head, &last, wanted) < 1e-4);
    }
    /* the mean of the logits is the head times the mean state */
    memcpy(prompt[0], ids.data, 200 * sizeof(int32_t));
    submit(e, &mean, 0, 200, -1, KVASIR_POOLING_MEAN);
    wait_for(&mean);
    eval_alone(model, &o.context, prompt[0], 200);
    memset(wanted, 0, sizeof wanted);
    for (size_t i = 0; i < 200; i++)
        for (size_t v = 0; v < VOCAB; v++)
            wanted[v] += (double)alone_logits[i][v];
    assert_true(misfit(&head, &mean, wanted) < 1e-4);
    kvasir_engine_destroy(e);
    kvasir_model_close(model);
    golden_close(&goldens);
    golden_close(&weights);
    make_prompts(NULL);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void test_limits(void **state) {
    static struct rows r;
    (void)state;
    kvasir_model *model = open_model("llama");
    kvasir_engine_options o = answers_options(48);
    o.context.ctx = LENGTH;
    kvasir_engine *e = answers_engine(model, &o);
    submit(e, &r, 0, LENGTH, 1, KVASIR_POOLING_NONE); /* the prompt may fill the context */
    wait_for(&r);
    assert_int_equal(r.n, LENGTH - 1);
    submit(e, &r, 0, 1, 1, KVASIR_POOLING_NONE);
    wait_for(&r);
    assert_int_equal(r.n, 0);
    submit(e, &r, 0, 1, -1, KVASIR_POOLING_MEAN);
    wait_for(&r);
    r.request.prompt_logprobs = 21;
    assert_int_equal(kvasir_engine_submit(e, &r.request, NULL, &err), KVASIR_ERR_ARGUMENT);
    assert_string_equal(err.field, "request.prompt_logprobs");
    r.request.prompt_logprobs = -1;
    r.request.embed = KVASIR_POOLING_MEAN;
    r.request.n = 2;
    assert_int_equal(kvasir_engine_submit(e, &r.request, NULL, &err), KVASIR_ERR_ARGUMENT);
    assert_string_equal(err.field, "request.embed");
    r.request.n = 1;
    r.request.embed = (kvasir_pooling)7;
    assert_int_equal(kvasir_engine_submit(e, &r.request, NULL, &err), KVASIR_ERR_ARGUMENT);
    kvasir_engine_destroy(e);
    kvasir_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_preempted),
        cmocka_unit_test(test_with_an_answer),
        cmocka_unit_test(test_asked_tokens),
        cmocka_unit_test(test_embeddings_have_the_same_bits),
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, make_prompts, NULL);
}
