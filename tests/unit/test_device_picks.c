/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens that a device picks are those that the CPU would pick. What a device is told of a pick
 * says as much as the sampler; an engine, a sequence and a batch whose device picks give the tokens
 * of those whose device does not, and read no row that they do not need. The device is the CPU's
 * backend with pick_reference as its operation `pick`, or one that gives every third pick back. */
#include "model_files.h"

#include <math.h>
#include <stdatomic.h>

#include "answers.h"
#include "backend/cpu/cpu.h"
#include "engine/engine_internal.h"
#include "pick_reference.h"
#include "random_data.h"

static kvasir_error err;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

/* ---- what a device is told ------------------------------------------------------------------- */

enum { BIASES = 4 };

static kvasir_sampling any_sampling(uint32_t vocab, kvasir_logit_bias bias[BIASES]) {
    static const float TEMPS[] = {0, 1, 0.7f, 1e-3f, 5}, TOP_PS[] = {0, 0, 1, 0.9f, 0.2f, 1e-4f},
                       MIN_PS[] = {0, 0, 0, 0.05f, 0.9f}, PENALTIES[] = {0, 0, 1.1f, -0.5f};
    kvasir_sampling o = kvasir_sampling_defaults();
    o.seed = random_bits();
    o.temp = random_of(TEMPS, 5);
    o.top_p = random_of(TOP_PS, 6);
    o.min_p = random_of(MIN_PS, 5);
    o.top_k = random_below(2) ? 0 : (int32_t)random_below(vocab + 1);
    o.min_tokens_to_keep = random_below(3) ? 1 : random_below(min_u32(vocab, 20) + 1);
    o.repetition_penalty = random_below(2) ? 0 : 1.3f;
    o.presence_penalty = random_of(PENALTIES, 4);
    o.frequency_penalty = random_of(PENALTIES, 4);
    if (random_below(2)) {
        o.n_logit_bias = BIASES;
        o.logit_bias = bias;
        for (int i = 0; i < BIASES; i++)
            bias[i] = (kvasir_logit_bias){(int32_t)random_below(vocab), random_normal() * 5};
    }
    return o;
}

static void check_logs(const float *logits, uint32_t vocab, int32_t token, uint32_t n_top,
                       const struct pick_logs *logs) {
    kvasir_token_logprob top[2][TOP_LOGPROBS_MAX] = {0};
    float logprob[2];
    sampler_logprobs(logits, vocab, token, n_top, &logprob[0], top[0]);
    sampler_finish_logprobs(logs, n_top, &logprob[1], top[1]);
    assert_memory_equal(&logprob[0], &logprob[1], sizeof logprob[0]);
    assert_memory_equal(top[0], top[1], sizeof top[0]);
}

static void test_told_enough(void **state) {
    static const uint32_t VOCABS[] = {1, 2, 60, 256, 257, 1000, 3000};
    static float logits[3000];
    (void)state;
    random_start(1, "told_enough");
    for (int round = 0; round < 4000; round++) {
        const uint32_t vocab = VOCABS[random_below(7)];
        kvasir_logit_bias bias[BIASES];
        const kvasir_sampling o = any_sampling(vocab, bias);
        struct pick_edit edits[PICK_EDITS_MAX];
        struct picked made;
        struct pick told;
        kvasir_sampler *s;
        need(kvasir_sampler_create(&o, vocab, &s, &err));
        for (uint32_t i = random_below(40); i > 0; i--)
            kvasir_sampler_accept(s, (int32_t)random_below(vocab));
        for (int draw = 0; draw < 3; draw++) {
            pick_fill_logits(logits, vocab);
            assert_true(sampler_describe(s, edits, &told));
            told.n_top = (int32_t)random_below(min_u32(vocab, PICK_TOP_MAX) + 1);
            pick_reference(logits, vocab, &told, &made);
            const int32_t token = kvasir_sampler_pick(s, logits);
            if (token != made.token)
                fail_msg("round %d: %d, not %d", round, made.token, token);
            check_logs(logits, vocab, token, (uint32_t)told.n_top, &made.logs);
        }
        kvasir_sampler_destroy(s);
    }
}

static void test_what_no_device_is_told(void **state) {
    enum { VOCAB = 1000 };
    struct pick_edit edits[PICK_EDITS_MAX];
    struct pick told;
    kvasir_sampling o = kvasir_sampling_defaults();
    const uint64_t allowed[VOCAB / 64 + 1] = {1};
    kvasir_sampler *s;
    (void)state;
    o.frequency_penalty = 1;
    o.frequency_context = PICK_EDITS_MAX + 1;
    need(kvasir_sampler_create(&o, VOCAB, &s, &err));
    for (int i = 0; i < PICK_EDITS_MAX; i++)
        kvasir_sampler_accept(s, i);
    assert_true(sampler_describe(s, edits, &told));
    assert_int_equal(told.n_edits, PICK_EDITS_MAX);
    kvasir_sampler_accept(s, 0);
    assert_false(sampler_describe(s, edits, &told));
    kvasir_sampler_destroy(s);
    o = kvasir_sampling_defaults();
    need(kvasir_sampler_create(&o, VOCAB, &s, &err));
    sampler_allow(s, allowed);
    assert_false(sampler_describe(s, edits, &told));
    kvasir_sampler_destroy(s);
    o.temp = 1;
    o.xtc_probability = 0.1f;
    need(kvasir_sampler_create(&o, VOCAB, &s, &err));
    assert_false(sampler_describe(s, edits, &told));
    kvasir_sampler_destroy(s);
}

/* ---- an engine ------------------------------------------------------------------------------- */

enum { VOCAB = 512, PROMPT = 40, REPLY = 24, REQUESTS = 12, HEAD_ROWS = 4 };

static struct {
    const struct backend_ops *cpu;
    struct backend_ops ops;
    bool gives_back;
    atomic_uint picks, fetched; /* picks made; rows of logits that were fetched */
} device;

static kvasir_status device_pick(struct backend *b, const float *logits, const struct pick *picks,
                                 uint32_t n, struct picked *out, kvasir_error *e) {
    (void)b;
    (void)e;
    assert_true(n > 0 && n <= HEAD_ROWS);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t number = atomic_fetch_add(&device.picks, 1);
        assert_true(picks[i].row < HEAD_ROWS && (i == 0 || picks[i].row > picks[i - 1].row));
        if (device.gives_back && number % 3 == 0)
            out[i].token = -1;
        else
            pick_reference(logits + (size_t)picks[i].row * VOCAB, VOCAB, &picks[i], &out[i]);
    }
    return KVASIR_OK;
}

static kvasir_status device_fetch(struct backend *b, const void *from, size_t bytes,
                                  const void **out, kvasir_error *e) {
    if (bytes % (VOCAB * sizeof(float)) == 0)
        atomic_fetch_add(&device.fetched, (uint32_t)(bytes / (VOCAB * sizeof(float))));
    return device.cpu->fetch(b, from, bytes, out, e);
}

static void device_info(const struct backend *b, struct backend_info *out) {
    device.cpu->info(b, out);
    out->logit_rows = HEAD_ROWS;
}

/* picks: it has the operation, and no threads of the host for picks. */
static struct backend *make_device(bool picks, bool gives_back) {
    struct backend *b;
    need(backend_cpu_create(
        &b, &(struct backend_cpu_options){.threads = 2, .tier = CPU_TIER_COUNT, .act_bits = 8},
        &err));
    device.cpu = b->ops;
    device.ops = *b->ops;
    device.ops.info = device_info;
    device.ops.fetch = device_fetch;
    device.ops.pick = picks ? device_pick : NULL;
    device.ops.host_run = picks ? NULL : b->ops->host_run;
    device.gives_back = gives_back;
    atomic_store(&device.picks, 0);
    atomic_store(&device.fetched, 0);
    b->ops = &device.ops;
    return b;
}

/* Requests of all kinds: greedy ones, random ones, with log-probabilities, of the prompt too,
 * several choices, and one that no device can pick for. */
static void ask(struct answer *a[REQUESTS]) {
    static int32_t prompt[REQUESTS][PROMPT];
    static const kvasir_logit_bias BIAS[] = {{7, 3}, {9, -2}};
    random_start(2, "requests");
    for (int i = 0; i < REQUESTS; i++) {
        for (int t = 0; t < PROMPT; t++)
            prompt[i][t] = (int32_t)random_below(VOCAB);
        a[i] = answer_new(prompt[i], (size_t)(PROMPT - i), REPLY);
        kvasir_request *r = &a[i]->request;
        r->ignore_end = true;
        r->sampling.seed = (uint64_t)i;
        r->sampling.temp = i % 3 ? 0.9f : 0;
        r->sampling.top_p = i % 4 == 1 ? 0.8f : 0;
        r->sampling.top_k = i % 4 == 2 ? 20 : 0;
        r->sampling.frequency_penalty = i % 5 == 1 ? 0.7f : 0;
        if (i % 5 == 2) {
            r->sampling.n_logit_bias = 2;
            r->sampling.logit_bias = BIAS;
        }
        r->sampling.xtc_probability = i == 11 ? 0.5f : 0;
        r->top_logprobs = i % 4 == 3 ? 5 : -1;
        r->prompt_logprobs = i == 7 ? 2 : -1;
        r->n = i == 5 || i == 8 ? 3 : 1;
    }
}

static void run_all(const kvasir_model *model, struct backend *b, struct answer *a[REQUESTS]) {
    kvasir_engine_options o = answers_options(48);
    kvasir_engine *e;
    need(engine_create_take(model, &o, b, NULL, &e, &err));
    ask(a);
    for (int i = 0; i < REQUESTS; i++)
        need(answer_submit(e, a[i], &err));
    for (int i = 0; i < REQUESTS; i++) {
        answer_wait(a[i]);
        assert_int_equal(a[i]->error.code, KVASIR_OK);
    }
    kvasir_engine_destroy(e);
}

static void check_same(const struct answer *a, const struct answer *b) {
    for (uint32_t c = 0; c < a->request.n; c++) {
        const struct answer_choice *x = &a->choices[c], *y = &b->choices[c];
        assert_int_equal(x->n, REPLY);
        assert_int_equal(y->n, REPLY);
        assert_memory_equal(x->tokens, y->tokens, sizeof x->tokens);
        assert_memory_equal(x->logprobs, y->logprobs, sizeof x->logprobs);
        assert_memory_equal(x->n_top, y->n_top, sizeof x->n_top);
        assert_memory_equal(x->top, y->top, sizeof x->top);
    }
}

static kvasir_model *open_tiny(void) {
    char path[512];
    kvasir_model *model;
    snprintf(path, sizeof path, "%s/fixtures/tiny/llama", SHARED_DIR);
    need(kvasir_model_open(path, &model, &err));
    return model;
}

static void test_answers_are_the_same(void **state) {
    kvasir_model *model = open_tiny();
    struct answer *plain[REQUESTS], *picked[REQUESTS];
    uint32_t fetched = 0, all;
    (void)state;
    run_all(model, make_device(false, false), plain);
    all = atomic_load(&device.fetched);
    for (int gives_back = 0; gives_back < 2; gives_back++) {
        run_all(model, make_device(true, gives_back), picked);
        assert_true(atomic_load(&device.picks) > REQUESTS * REPLY / 2);
        for (int i = 0; i < REQUESTS; i++) {
            check_same(plain[i], picked[i]);
            free(picked[i]);
        }
        /* xtc's rows, the first ones of several choices, a prompt's: else what it gives back */
        if (!gives_back)
            fetched = atomic_load(&device.fetched);
        assert_true(atomic_load(&device.fetched) < (gives_back ? all * 2 / 3 : all / 3));
    }
    assert_true(fetched > 0);
    for (int i = 0; i < REQUESTS; i++)
        free(plain[i]);
    kvasir_model_close(model);
}

/* ---- sequences and batches ------------------------------------------------------------------- */

enum { SEQS = 6 }; /* the last has xtc, which no device picks for */

static kvasir_sampler *sampler_of(int i) {
    static const kvasir_logit_bias BIAS[] = {{7, 3}, {9, -2}};
    kvasir_sampling o = kvasir_sampling_defaults();
    kvasir_sampler *s;
    o.seed = (uint64_t)i;
    o.temp = i == 0 ? 0 : 0.9f;
    o.top_p = i == 1 ? 0.8f : 0;
    o.top_k = i == 2 ? 20 : 0;
    o.frequency_penalty = i == 3 ? 0.7f : 0;
    o.n_logit_bias = i == 4 ? 2 : 0;
    o.logit_bias = BIAS;
    o.xtc_probability = i == SEQS - 1 ? 0.5f : 0;
    need(kvasir_sampler_create(&o, VOCAB, &s, &err));
    return s;
}

static kvasir_context *context_on(const kvasir_model *model, struct backend *b) {
    kvasir_context_options o = kvasir_context_defaults();
    kvasir_context *c;
    o.ctx = 2 * PROMPT + REPLY;
    o.cache_bytes = 16 << 20;
    need(context_create_take(model, &o, NULL, b, &c, &err));
    return c;
}

/* The same tokens by logits that the caller reads: kvasir_seq_eval and kvasir_sampler_pick. */
static void by_logits(kvasir_context *c, const int32_t *ids, int i, int32_t reply[REPLY]) {
    float logits[VOCAB];
    const kvasir_eval_options last = {.struct_size = sizeof last, .last_logits = logits};
    kvasir_sampler *s = sampler_of(i);
    kvasir_seq *seq;
    need(kvasir_seq_create(c, &seq, &err));
    need(kvasir_seq_eval(seq, ids, (size_t)(PROMPT - i), &last, &err));
    for (int t = 0; t < REPLY; t++) {
        reply[t] = kvasir_sampler_pick(s, logits);
        kvasir_sampler_accept(s, reply[t]);
        need(kvasir_seq_eval(seq, &reply[t], 1, &last, &err));
    }
    kvasir_seq_destroy(seq);
    kvasir_sampler_destroy(s);
}

static void by_seq(kvasir_context *c, const int32_t *ids, int i, const int32_t expected[REPLY]) {
    kvasir_sampler *s = sampler_of(i);
    kvasir_seq *seq;
    int32_t id;
    need(kvasir_seq_create(c, &seq, &err));
    need(kvasir_seq_pick(seq, ids, (size_t)(PROMPT - i), NULL, s, &id, &err));
    for (int t = 0; t < REPLY; t++) {
        assert_int_equal(id, expected[t]);
        kvasir_sampler_accept(s, id);
        need(kvasir_seq_pick(seq, &expected[t], 1, NULL, s, &id, &err));
    }
    kvasir_seq_destroy(seq);
    kvasir_sampler_destroy(s);
}

/* Sequence i has no token in step i + 1, so that rows and samplers do not go together. */
static void by_batch(kvasir_context *c, int32_t ids[SEQS][PROMPT], int32_t expected[SEQS][REPLY]) {
    kvasir_sampler *s[SEQS];
    kvasir_seq *seqs[SEQS];
    kvasir_batch *batch;
    int32_t tokens[SEQS * PROMPT], picked[SEQS];
    uint32_t counts[SEQS], n = 0, at[SEQS] = {0};
    for (int i = 0; i < SEQS; i++) {
        s[i] = sampler_of(i);
        need(kvasir_seq_create(c, &seqs[i], &err));
        counts[i] = (uint32_t)(PROMPT - i);
        memcpy(tokens + n, ids[i], counts[i] * sizeof *tokens);
        n += counts[i];
    }
    need(kvasir_batch_merge(c, seqs, SEQS, &batch, &err));
    for (uint32_t step = 0; step < REPLY; step++) {
        need(kvasir_batch_pick(batch, tokens, counts, s, picked, &err));
        n = 0;
        for (uint32_t i = 0; i < SEQS; i++) {
            if (counts[i]) {
                assert_int_equal(picked[i], expected[i][at[i]++]);
                kvasir_sampler_accept(s[i], picked[i]);
            }
            counts[i] = i != step;
            if (counts[i])
                tokens[n++] = picked[i];
        }
    }
    kvasir_batch_destroy(batch);
    for (int i = 0; i < SEQS; i++)
        kvasir_sampler_destroy(s[i]);
}

static void test_sequences_and_batches(void **state) {
    static int32_t ids[SEQS][PROMPT], expected[SEQS][REPLY];
    kvasir_model *model = open_tiny();
    kvasir_context *c;
    (void)state;
    random_start(3, "sequences");
    c = context_on(model, make_device(false, false));
    for (int i = 0; i < SEQS; i++) {
        for (int t = 0; t < PROMPT; t++)
            ids[i][t] = (int32_t)random_below(VOCAB);
        by_logits(c, ids[i], i, expected[i]);
    }
    by_batch(c, ids, expected); /* by a device that does not pick */
    kvasir_context_destroy(c);
    for (int gives_back = 0; gives_back < 2; gives_back++) {
        c = context_on(model, make_device(true, gives_back));
        for (int i = 0; i < SEQS; i++)
            by_seq(c, ids[i], i, expected[i]);
        by_batch(c, ids, expected);
        /* each alone REPLY + 1 rows, in the batch one step less than REPLY; read are xtc's only */
        assert_int_equal(atomic_load(&device.picks), (SEQS - 1) * 2 * REPLY);
        if (!gives_back)
            assert_int_equal(atomic_load(&device.fetched), 2 * REPLY);
        kvasir_context_destroy(c);
    }
    kvasir_model_close(model);
}

/* Logits that are asked for are those of the pick. A sampler of other tokens is refused. */
static void test_pick_beside_logits(void **state) {
    const int32_t ids[] = {1, 2, 3};
    kvasir_model *model = open_tiny();
    kvasir_context *c = context_on(model, make_device(true, false));
    float logits[VOCAB];
    const kvasir_eval_options last = {.struct_size = sizeof last, .last_logits = logits};
    kvasir_sampler *s = sampler_of(0), *other;
    const kvasir_sampling greedy = kvasir_sampling_defaults();
    kvasir_seq *seq;
    int32_t id = -1;
    (void)state;
    need(kvasir_seq_create(c, &seq, &err));
    need(kvasir_seq_pick(seq, ids, 3, &last, s, &id, &err));
    assert_int_equal(id, kvasir_sampler_pick(s, logits));
    assert_int_equal(atomic_load(&device.picks), 0);
    need(kvasir_sampler_create(&greedy, VOCAB + 1, &other, &err));
    assert_int_equal(kvasir_seq_pick(seq, ids, 3, NULL, other, &id, &err), KVASIR_ERR_ARGUMENT);
    assert_int_equal(kvasir_seq_length(seq), 3);
    kvasir_sampler_destroy(s);
    kvasir_sampler_destroy(other);
    kvasir_seq_destroy(seq);
    kvasir_context_destroy(c);
    kvasir_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_told_enough),          cmocka_unit_test(test_what_no_device_is_told),
        cmocka_unit_test(test_answers_are_the_same), cmocka_unit_test(test_sequences_and_batches),
        cmocka_unit_test(test_pick_beside_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
