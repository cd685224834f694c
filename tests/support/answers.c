/* SPDX-License-Identifier: Apache-2.0 */
#include "answers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pthread.h>

#include <cmocka.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool holding, held;

static void wrong_if(struct answer *a, bool broken, const char *what) {
    if (broken && !a->wrong)
        a->wrong = what;
}

kvasir_engine_options answers_options(uint32_t prefill_chunk) {
    kvasir_engine_options o = kvasir_engine_defaults();
    o.context.ctx = 512;
    o.context.threads = 2;
    o.context.prefill_chunk = prefill_chunk;
    o.cache_memory_bytes = 64 << 20;
    return o;
}

kvasir_engine *answers_engine(const kvasir_model *model, const kvasir_engine_options *o) {
    kvasir_error err;
    kvasir_engine *e;
    if (kvasir_engine_create(model, o, &e, &err))
        fail_msg("%s", err.text);
    return e;
}

#define RULE(a, x) wrong_if(a, !(x), #x)

static void take_token(struct answer *a, struct answer_choice *c, const kvasir_event *e) {
    RULE(a, a->starts == 1 && e->token >= 0);
    RULE(a, e->completion_tokens == c->n + 1);
    RULE(a, e->n_top <= ANSWER_TOPS && c->n < ANSWER_TOKENS);
    if (e->n_top > ANSWER_TOPS || c->n == ANSWER_TOKENS)
        return;
    c->logprobs[c->n] = e->logprob;
    c->n_top[c->n] = e->n_top;
    for (size_t i = 0; i < e->n_top; i++)
        c->top[c->n][i] = e->top[i];
    c->tokens[c->n++] = e->token;
}

static void take_done(struct answer *a, struct answer_choice *c, const kvasir_event *e) {
    c->done = true;
    c->finish = e->finish;
    RULE(a, !e->stop || (e->finish == KVASIR_FINISH_STOP && *e->stop));
    snprintf(c->stop, sizeof c->stop, "%s", e->stop ? e->stop : "");
    RULE(a, (e->finish == KVASIR_FINISH_ERROR) == (e->error != NULL));
    if (e->error)
        a->error = *e->error;
    if (!e->last)
        return;
    for (uint32_t i = 0; i < a->request.n; i++)
        RULE(a, a->choices[i].done);
    a->lasts++;
}

static void take_down(struct answer *a, const kvasir_event *e) {
    RULE(a, a->lasts == 0 && e->choice < a->request.n);
    struct answer_choice *c = &a->choices[e->choice % ANSWER_CHOICES];
    RULE(a, !c->done);
    RULE(a, e->prompt_done <= e->prompt_tokens);
    RULE(a, e->prompt_done >= a->prompt_done);
    RULE(a, e->cached_tokens < e->prompt_tokens);
    RULE(a, e->kind != KVASIR_EVENT_TOKEN || e->prompt_done == e->prompt_tokens);
    RULE(a, e->completion_tokens >= c->completion && c->len + e->len < ANSWER_TEXT);
    RULE(a, e->kind == KVASIR_EVENT_DONE || (!e->last && !e->cache_bytes));
    RULE(a, !e->completion_tokens || e->kind != KVASIR_EVENT_DONE || e->cache_bytes);
    if (c->len + e->len < ANSWER_TEXT) {
        memcpy(c->text + c->len, e->text, e->len);
        c->len += e->len;
    }
    c->completion = e->completion_tokens;
    a->prompt_tokens = e->prompt_tokens;
    a->prompt_done = e->prompt_done;
    a->cached_tokens = e->cached_tokens;
    a->hit = e->hit;
    a->common_tokens = e->common_tokens;
    a->why = e->why;
    a->other_token = e->other_token;
    a->starts += e->kind == KVASIR_EVENT_START;
    a->progress += e->kind == KVASIR_EVENT_PROGRESS;
    if (e->kind == KVASIR_EVENT_TOKEN)
        take_token(a, c, e);
    else if (e->kind == KVASIR_EVENT_DONE)
        take_done(a, c, e);
    else
        RULE(a, a->starts == 1 && c->n == 0);
}

static void on_event(void *user, const kvasir_event *e) {
    struct answer *a = user;
    pthread_mutex_lock(&mutex);
    take_down(a, e);
    const bool token = e->kind == KVASIR_EVENT_TOKEN && e->choice == 0;
    if (token && a->hold_at == a->choices[0].n) {
        held = true;
        pthread_cond_broadcast(&changed);
        while (holding)
            pthread_cond_wait(&changed, &mutex);
        held = false;
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    if ((token && a->cancel_at == e->completion_tokens) ||
        (e->kind == KVASIR_EVENT_START && a->cancel_running))
        kvasir_engine_cancel(a->engine, e->request);
}

void answers_hold(void) {
    pthread_mutex_lock(&mutex);
    holding = true;
    pthread_mutex_unlock(&mutex);
}

void answers_release(void) {
    pthread_mutex_lock(&mutex);
    holding = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

void answer_wait_held(void) {
    pthread_mutex_lock(&mutex);
    while (!held)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

kvasir_status answer_submit(kvasir_engine *e, struct answer *a, kvasir_error *err) {
    a->engine = e;
    a->request.on_event = on_event;
    a->request.user = a;
    return kvasir_engine_submit(e, &a->request, &a->id, err);
}

kvasir_status answers_submit_all(kvasir_engine *e, struct answer **a, size_t n, kvasir_error *err) {
    const kvasir_request *all[8];
    uint64_t id = 0;
    assert_true(n <= sizeof all / sizeof *all);
    for (size_t i = 0; i < n; i++) {
        a[i]->engine = e;
        a[i]->request.on_event = on_event;
        a[i]->request.user = a[i];
        all[i] = &a[i]->request;
    }
    const kvasir_status status = kvasir_engine_submit_all(e, all, n, &id, NULL, err);
    for (size_t i = 0; i < n; i++)
        a[i]->id = id;
    return status;
}

void answer_wait(struct answer *a) {
    pthread_mutex_lock(&mutex);
    while (!a->lasts)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
    if (a->wrong)
        fail_msg("event of request %llu: not %s", (unsigned long long)a->id, a->wrong);
}

void answer_run(kvasir_engine *e, struct answer *a) {
    kvasir_error err;
    if (answer_submit(e, a, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    answer_wait(a);
    for (uint32_t i = 0; i < a->request.n; i++)
        if (a->choices[i].finish == KVASIR_FINISH_ERROR)
            fail_msg("%s", a->error.text);
}

struct answer *answer_new(const int32_t *tokens, size_t n, uint32_t max_tokens) {
    struct answer *a = calloc(1, sizeof *a);
    assert_non_null(a);
    a->request = kvasir_request_defaults();
    a->request.tokens = tokens;
    a->request.n_tokens = n;
    a->request.max_tokens = max_tokens;
    return a;
}

/* Bytes per format add up to the totals of the same moment; step counts by duration add up to all
 * steps. */
static void check_figures(kvasir_engine *e) {
    kvasir_engine_stats s;
    kvasir_format_bytes f[8];
    const size_t n = kvasir_engine_get_formats(e, f, 8, &s);
    uint64_t stored = 0, used = 0, steps = 0;
    assert_in_range(n, 1, 8);
    for (size_t i = 0; i < n; i++) {
        stored += f[i].stored_bytes;
        used += f[i].stored_bytes + f[i].live_bytes;
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(f[i].format, f[k].format);
    }
    assert_true(stored == s.stored_bytes && used == s.used_bytes);
    for (int i = 0; i < KVASIR_STEP_COUNTS; i++)
        steps += s.step_counts[i];
    assert_int_equal(steps, s.steps);
    assert_true((s.step_seconds > 0) == (s.steps > 0));
    assert_true(s.stored_entries <= s.tree_nodes && s.tree_nodes <= s.stored_tokens + s.requests);
}

kvasir_engine_stats engine_settled(kvasir_engine *e) {
    kvasir_engine_stats s;
    uint64_t hits = 0;
    for (;;) { /* figures are updated after a step, so after its last event */
        kvasir_engine_get_stats(e, &s);
        if (s.finished + s.cancelled + s.failed == s.requests && !s.running)
            break;
        usleep(1000);
    }
    for (int i = 0; i < KVASIR_HIT_KINDS; i++)
        hits += s.hits[i];
    assert_int_equal(s.waiting, 0);
    check_figures(e);
    assert_true(s.peak_bytes <= s.budget_bytes && s.used_bytes <= s.peak_bytes);
    assert_true(s.fixed_bytes + s.stored_bytes == s.used_bytes); /* nobody else holds anything */
    assert_true(s.cached_tokens <= s.prompt_tokens && hits <= s.requests);
    return s;
}

uint32_t answer_alone(const kvasir_model *model, const kvasir_context_options *o,
                      const kvasir_request *r, uint32_t choice, int32_t *tokens) {
    kvasir_context *ctx;
    kvasir_seq *seq;
    kvasir_sampler *sampler;
    kvasir_model_info info;
    kvasir_error err;
    kvasir_sampling sampling = r->sampling;
    uint32_t n = 0;
    kvasir_model_get_info(model, &info);
    float *logits = malloc(info.vocab * sizeof *logits);
    kvasir_eval_options last = {.struct_size = sizeof(kvasir_eval_options), .last_logits = logits};
    sampling.seed += choice;
    if (kvasir_context_create(model, o, &ctx, &err) != KVASIR_OK ||
        kvasir_seq_create(ctx, &seq, &err) != KVASIR_OK ||
        kvasir_sampler_create(&sampling, info.vocab, &sampler, &err) != KVASIR_OK ||
        kvasir_seq_eval(seq, r->tokens, r->n_tokens, &last, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < r->n_tokens; i++)
        kvasir_sampler_accept(sampler, r->tokens[i]);
    while (n < r->max_tokens) {
        const int32_t id = kvasir_sampler_pick(sampler, logits);
        if (!r->ignore_end && kvasir_token_is_end(kvasir_model_tokenizer(model), id))
            break;
        kvasir_sampler_accept(sampler, id);
        tokens[n++] = id;
        if (n < r->max_tokens && kvasir_seq_eval(seq, &id, 1, &last, &err) != KVASIR_OK)
            fail_msg("%s", err.text);
    }
    kvasir_sampler_destroy(sampler);
    kvasir_seq_destroy(seq);
    kvasir_context_destroy(ctx);
    free(logits);
    return n;
}
