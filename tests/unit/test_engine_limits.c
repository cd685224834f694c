/* SPDX-License-Identifier: Apache-2.0 */
/* kvasir_engine through its public calls: refusals and their texts, cancels at every point, engines
 * destroyed with requests in them, small budgets. (answers.c checks the order of all events,
 * budget.c all bytes.) */
#include "model_files.h"

#include <math.h>
#include <pthread.h>

#include "answers.h"
#include "tensors.h"

enum { VOCAB = 512, PROMPT = 150 };

static kvasir_error err;
static kvasir_model *model;
static int32_t prompt[10][PROMPT];

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static struct answer *request(int p, uint32_t max_tokens) {
    struct answer *a = answer_new(prompt[p], PROMPT, max_tokens);
    a->request.sampling.temp = 1;
    a->request.sampling.seed = (uint64_t)p;
    a->request.ignore_end = true;
    return a;
}

static int set_up(void **state) {
    uint32_t r = 7;
    (void)state;
    for (int p = 0; p < 10; p++)
        for (int i = 0; i < PROMPT; i++) {
            r = r * 1664525 + 1013904223;
            prompt[p][i] = (int32_t)(r >> 16) % VOCAB;
        }
    return kvasir_model_open(SHARED_DIR "/fixtures/tiny/llama", &model, &err) != KVASIR_OK;
}

static int tear_down(void **state) {
    (void)state;
    kvasir_model_close(model);
    return 0;
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refused(kvasir_engine *e, const struct answer *a, kvasir_status code, const char *a1,
                    const char *a2) {
    uint64_t id = 77;
    kvasir_error why = {0};
    assert_int_equal(kvasir_engine_submit(e, &a->request, &id, &why), code);
    assert_int_equal(why.code, code);
    assert_int_equal(id, 77);
    const char *field = why.field ? why.field : "";
    if (!(strstr(why.text, a1) || strcmp(field, a1) == 0) || !strstr(why.text, a2))
        fail_msg("%s: %s: does not say both %s and %s", field, why.text, a1, a2);
    assert_int_not_equal(kvasir_engine_submit(e, &a->request, NULL, NULL), KVASIR_OK);
}

static void test_bad_requests(void **state) {
    (void)state;
    kvasir_engine_options o = answers_options(48);
    o.max_running = 4;
    kvasir_engine *e = answers_engine(model, &o);
    const int32_t bad[] = {1, 2, VOCAB}, negative[] = {-1};
    struct answer *a = request(0, 10);
    const kvasir_request good = a->request;
    a->request.tokens = bad;
    a->request.n_tokens = 3;
    refused(e, a, KVASIR_ERR_ARGUMENT, "token 512", "index 2");
    a->request.tokens = negative;
    a->request.n_tokens = 1;
    refused(e, a, KVASIR_ERR_ARGUMENT, "token -1", "index 0");
    a->request.n_tokens = 0;
    refused(e, a, KVASIR_ERR_ARGUMENT, "request.tokens", "no tokens");
    a->request = good;
    a->request.n = 5;
    refused(e, a, KVASIR_ERR_ARGUMENT, "request.n", "5 is not between 1 and 4");
    a->request.n = 0;
    refused(e, a, KVASIR_ERR_ARGUMENT, "request.n", "0 is not");
    a->request = good;
    a->request.top_logprobs = 21;
    refused(e, a, KVASIR_ERR_ARGUMENT, "request.top_logprobs", "21 is not between 0 and 20");
    a->request.top_logprobs = -2;
    refused(e, a, KVASIR_ERR_ARGUMENT, "request.top_logprobs", "-2");
    a->request = good;
    a->request.max_tokens = 512 - PROMPT + 1;
    refused(e, a, KVASIR_ERR_CONTEXT, "150", "512");
    a->request.max_tokens = UINT32_MAX;
    refused(e, a, KVASIR_ERR_CONTEXT, "4294967295", "context");
    a->request = good;
    a->request.sampling.temp = -1;
    refused(e, a, KVASIR_ERR_ARGUMENT, "sampling.temp", "-1");
    a->request = good;
    a->request.stops = (const char *const[]){""};
    a->request.n_stops = 1;
    refused(e, a, KVASIR_ERR_ARGUMENT, "request.stops", "empty");
    a->request.stops = (const char *const[]){"x"}; /* this model has no tokenizer */
    assert_int_not_equal(kvasir_engine_submit(e, &a->request, NULL, &err), KVASIR_OK);
    assert_int_equal(engine_settled(e).requests, 0);
    a->request = good;
    answer_run(e, a); /* the engine still works */
    free(a);
    kvasir_engine_destroy(e);
}

/* An engine whose budget is its fixed buffers and `bytes`. */
static kvasir_engine *start_with(uint64_t bytes, uint32_t max_running) {
    kvasir_engine_options o = answers_options(48);
    for (int i = 0; i < 2; i++) { /* the buffers depend on the budget a little */
        kvasir_engine *e = answers_engine(model, &o);
        kvasir_engine_stats s;
        kvasir_engine_get_stats(e, &s);
        kvasir_engine_destroy(e);
        o.cache_memory_bytes = s.fixed_bytes + bytes;
    }
    o.max_running = max_running;
    return answers_engine(model, &o);
}

static void test_never_fitting_requests_are_refused_with_the_numbers(void **state) {
    (void)state;
    kvasir_engine *e = start_with(400 << 10, 4);
    kvasir_engine_stats s;
    char budget[32];
    kvasir_engine_get_stats(e, &s);
    snprintf(budget, sizeof budget, "%llu", (unsigned long long)s.budget_bytes);
    uint32_t longest = 0, refusals = 0;
    for (uint32_t n = 1; n <= 512 - PROMPT; n += 7) {
        struct answer *a = request(0, n);
        const kvasir_status status = kvasir_engine_submit(e, &a->request, NULL, &err);
        if (status != KVASIR_OK) {
            refused(e, a, KVASIR_ERR_BUDGET, budget, "budget");
            refusals++;
        } else {
            assert_int_equal(refusals, 0); /* after a refusal, no longer request may be accepted */
            longest = n;
        }
        if (status != KVASIR_OK) {
            free(a);
            continue;
        }
        while (engine_settled(e).finished == 0)
            ;
        free(a);
    }
    if (!longest || !refusals)
        fail_msg("longest %u, %u refusals: %s", longest, refusals, err.text);
    struct answer *a = request(1, longest); /* an accepted request can run, at least alone */
    answer_run(e, a);
    assert_int_equal(a->choices[0].n, longest);
    free(a);
    a = request(2, 0); /* max_tokens 0: as many as there is room for */
    answer_run(e, a);
    assert_true(a->choices[0].n >= longest && a->choices[0].n < longest + 7);
    free(a);
    assert_int_equal(engine_settled(e).failed, 0);
    kvasir_engine_destroy(e);
}

static void not_created(const kvasir_engine_options *o, const char *field) {
    kvasir_engine *e = NULL;
    kvasir_error why = {0};
    assert_int_not_equal(kvasir_engine_create(model, o, &e, &why), KVASIR_OK);
    assert_null(e);
    if (!why.field || strcmp(why.field, field) != 0)
        fail_msg("%s: %s: is not about %s", why.field ? why.field : "-", why.text, field);
}

static void test_bad_options_name_their_field(void **state) {
    (void)state;
    kvasir_engine_options o = answers_options(48);
    o.max_running = 0;
    not_created(&o, "engine.max_running");
    o = answers_options(48);
    o.max_waiting = 0;
    not_created(&o, "engine.max_waiting");
    o = answers_options(48);
    o.cache_memory_bytes = 0;
    static const double percents[] = {0, -1, 100.5, 1e300, NAN, INFINITY};
    for (size_t i = 0; i < sizeof percents / sizeof *percents; i++) {
        o.cache_memory_percent = percents[i];
        not_created(&o, "engine.cache_memory_percent");
    }
    static const uint64_t budgets[] = {1, 4096, 100000, 1 << 20, UINT64_MAX / 2, UINT64_MAX};
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        o = answers_options(48);
        o.cache_memory_bytes = budgets[i];
        o.context.prefill_chunk = 512;
        not_created(&o, "engine.cache_memory_bytes");
    }
    o = answers_options(48);
    o.stored_kv_bits = "7";
    not_created(&o, "engine.stored_kv_bits");
    o.stored_kv_bits = "f32"; /* more than 8,4 */
    not_created(&o, "engine.stored_kv_bits");
    o.stored_kv_bits = "4";
    o.stored_kv_group_size = "48";
    not_created(&o, "engine.stored_kv_bits");
    o = answers_options(48);
    o.context.kv_bits = "9";
    not_created(&o, "context.kv_bits");
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Written on the engine's thread. */
static struct { int order[8], n; } starts;
static void note_start(void *user, const kvasir_event *e) {
    if (e->kind == KVASIR_EVENT_START && starts.n < 8)
        starts.order[starts.n++] = *(const int *)user;
}

/* The lowest priority first, of equal ones the shortest prompt, and each fourth the oldest. (The
 * first of all counts.) Steps of an impossible target serve all the same. */
static void test_priorities(void **state) {
    (void)state;
    static const int priorities[] = {9, 3, -2, 0, 0}, order[] = {2, 4, 0, 3, 1};
    static int numbers[] = {0, 1, 2, 3, 4};
    kvasir_engine_options o = answers_options(48);
    o.max_running = 1;
    o.target_step_ms = 1;
    kvasir_engine *e = answers_engine(model, &o);
    struct answer *first = request(9, 5);
    first->hold_at = 2;
    answers_hold();
    need(answer_submit(e, first, &err));
    answer_wait_held();
    starts.n = 0;
    for (int i = 0; i < 5; i++) {
        kvasir_request r = kvasir_request_defaults();
        r.tokens = prompt[i];
        r.n_tokens = (size_t)(PROMPT - i);
        r.max_tokens = 3;
        r.priority = priorities[i];
        r.on_event = note_start;
        r.user = &numbers[i];
        need(kvasir_engine_submit(e, &r, NULL, &err));
    }
    answers_release();
    answer_wait(first);
    free(first);
    assert_int_equal(engine_settled(e).finished, 6);
    kvasir_engine_destroy(e);
    assert_int_equal(starts.n, 5);
    assert_memory_equal(starts.order, order, sizeof order);
}

static void test_a_full_queue_is_busy(void **state) {
    (void)state;
    kvasir_engine_options o = answers_options(48);
    o.max_running = 1;
    o.max_waiting = 3;
    kvasir_engine *e = answers_engine(model, &o);
    struct answer *a[5];
    for (int i = 0; i < 5; i++)
        a[i] = request(i, 5);
    a[0]->hold_at = 2;
    answers_hold();
    need(answer_submit(e, a[0], &err));
    answer_wait_held();
    for (int i = 1; i < 4; i++)
        need(answer_submit(e, a[i], &err));
    kvasir_engine_stats s;
    kvasir_engine_get_stats(e, &s);
    assert_int_equal(s.waiting, 3);
    refused(e, a[4], KVASIR_ERR_BUSY, "3", "wait");
    kvasir_engine_cancel(e, a[2]->id); /* frees its place once the engine has noticed */
    answers_release();
    for (int i = 0; i < 4; i++)
        answer_wait(a[i]);
    assert_int_equal(a[2]->choices[0].finish, KVASIR_FINISH_CANCELLED);
    assert_int_equal(a[2]->starts, 0);
    answer_run(e, a[4]);
    s = engine_settled(e);
    assert_int_equal(s.requests, 5);
    assert_int_equal(s.finished, 4);
    assert_int_equal(s.cancelled, 1);
    kvasir_engine_destroy(e);
    for (int i = 0; i < 5; i++)
        free(a[i]);
}

/* Requests that come at once take one place in the queue until the first of them starts. */
static void test_many_take_one_place(void **state) {
    (void)state;
    kvasir_engine_options o = answers_options(48);
    o.max_running = 1;
    o.max_waiting = 2;
    kvasir_engine *e = answers_engine(model, &o);
    struct answer *a[7];
    kvasir_engine_stats s;
    for (int i = 0; i < 7; i++)
        a[i] = request(i, 5);
    a[0]->hold_at = 2;
    answers_hold();
    need(answer_submit(e, a[0], &err));
    answer_wait_held();
    need(answers_submit_all(e, a + 1, 4, &err));
    kvasir_engine_get_stats(e, &s);
    assert_int_equal(s.waiting, 1);
    need(answer_submit(e, a[5], &err));
    refused(e, a[6], KVASIR_ERR_BUSY, "2", "wait");
    answers_release();
    for (int i = 0; i < 6; i++)
        answer_wait(a[i]);
    s = engine_settled(e);
    assert_true(s.waiting == 0 && s.requests == 6 && s.finished == 6);
    kvasir_engine_destroy(e);
    for (int i = 0; i < 7; i++)
        free(a[i]);
}

/* ---- cancels --------------------------------------------------------------------------------- */

static void expect_cancelled(struct answer *a) {
    answer_wait(a);
    for (uint32_t i = 0; i < a->request.n; i++)
        assert_int_equal(a->choices[i].finish, KVASIR_FINISH_CANCELLED);
}

/* Waits for a request that was cancelled at some moment: it has finished, or each of its choices
 * that had not finished by then has ended as cancelled. */
static bool ended_cancelled(struct answer *a) {
    bool cancelled = false;
    answer_wait(a);
    for (uint32_t i = 0; i < a->request.n; i++) {
        const struct answer_choice *c = &a->choices[i];
        assert_true(c->done);
        if (c->finish == KVASIR_FINISH_CANCELLED) {
            cancelled = true;
        } else {
            assert_int_equal(c->finish, KVASIR_FINISH_LENGTH);
            assert_int_equal(c->n, a->request.max_tokens);
        }
    }
    return cancelled;
}

static void test_cancels(void **state) {
    (void)state;
    for (uint32_t n = 1; n < 6; n += 2) {
        uint64_t cancelled = 4 + 1; /* from the callback, and during the prompt */
        const kvasir_engine_options o = answers_options(48);
        kvasir_engine *e = answers_engine(model, &o);
        struct answer *beside = request(9, 300), *a;
        need(answer_submit(e, beside, &err));
        for (uint32_t at = 1; at < 5; at++) { /* from the callback, during the answer */
            a = request((int)at, 100);
            a->request.n = n;
            a->cancel_at = at;
            need(answer_submit(e, a, &err));
            expect_cancelled(a);
            assert_true(a->choices[0].n == at);
            kvasir_engine_cancel(e, a->id); /* has no effect: it has ended */
            free(a);
        }
        a = request(5, 100); /* during the prompt */
        a->request.n = n;
        a->cancel_running = true;
        need(answer_submit(e, a, &err));
        expect_cancelled(a);
        assert_int_equal(a->choices[0].n, 0);
        assert_true(a->prompt_done < PROMPT);
        free(a);
        for (int i = 0; i < 20; i++) { /* right away or a little later, wherever it is then */
            a = request(i % 9, 100);
            a->request.n = n;
            need(answer_submit(e, a, &err));
            if (i % 2)
                usleep((useconds_t)i * 300);
            kvasir_engine_cancel(e, a->id);
            cancelled += ended_cancelled(a);
            free(a);
        }
        kvasir_engine_cancel(e, 123456);
        kvasir_engine_cancel(e, beside->id);
        cancelled += ended_cancelled(beside);
        free(beside);
        const kvasir_engine_stats s = engine_settled(e);
        assert_int_equal(s.cancelled, cancelled);
        assert_int_equal(s.requests, 1 + 4 + 1 + 20);
        assert_int_equal(s.finished, s.requests - cancelled);
        kvasir_engine_forget(e, NULL);
        a = request(0, 1);
        answer_run(e, a);
        assert_int_equal(a->hit, KVASIR_HIT_MISS);
        free(a);
        kvasir_engine_destroy(e);
    }
}

/* A thread that submits and cancels its own requests, at the same time as others. */
static void *storm(void *user) {
    kvasir_engine *e = user;
    for (int i = 0; i < 150; i++) {
        struct answer *a = request(i % 10, 3);
        kvasir_error why;
        a->request.n = 1 + (uint32_t)i % 3;
        if (answer_submit(e, a, &why) != KVASIR_OK)
            abort();
        if (i % 4)
            kvasir_engine_cancel(e, a->id);
        answer_wait(a);
        free(a);
    }
    return NULL;
}

static void test_cancels_from_many_threads(void **state) {
    (void)state;
    enum { THREADS = 6 };
    const kvasir_engine_options o = answers_options(48);
    kvasir_engine *e = answers_engine(model, &o);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, storm, e), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    const kvasir_engine_stats s = engine_settled(e);
    assert_int_equal(s.requests, THREADS * 150);
    assert_int_equal(s.failed, 0);
    kvasir_engine_destroy(e);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void test_destroy_ends_all_requests(void **state) {
    (void)state;
    for (int run = 0; run < 6; run++) {
        kvasir_engine_options o = answers_options(48);
        o.max_running = 1 + (uint32_t)run * 2;
        kvasir_engine *e = answers_engine(model, &o);
        struct answer *a[10];
        for (int i = 0; i < 10; i++) {
            a[i] = request(i, 300);
            a[i]->request.n = i % 3 == 0 && run ? 2 : 1;
            need(answer_submit(e, a[i], &err));
        }
        usleep((useconds_t)run * 2000);
        kvasir_engine_destroy(e);
        for (int i = 0; i < 10; i++) {
            assert_int_equal(a[i]->lasts, 1);
            answer_wait(a[i]);
            free(a[i]);
        }
    }
    const kvasir_engine_options o = answers_options(48);
    kvasir_engine_destroy(answers_engine(model, &o)); /* without requests */
    kvasir_engine_destroy(NULL);
}

/* ---- preemption ------------------------------------------------------------------------------ */

static void check_preemption(bool no_prefix_cache, bool no_store, uint32_t n) {
    enum { ANSWER = 120 };
    kvasir_engine_options o = answers_options(48);
    kvasir_engine *big = answers_engine(model, &o);
    kvasir_engine_stats s;
    struct answer *a[8], *b[8];
    kvasir_engine_get_stats(big, &s);
    o.cache_memory_bytes = s.fixed_bytes + (400 << 10);
    o.no_prefix_cache = no_prefix_cache;
    kvasir_engine *small = answers_engine(model, &o);
    answers_hold();
    for (int i = 0; i < 8; i++) {
        a[i] = request(i, ANSWER);
        b[i] = request(i, ANSWER);
        a[i]->request.n = b[i]->request.n = n;
        b[i]->request.no_store = no_store;
        b[i]->hold_at = i == 0; /* until all are waiting */
        need(answer_submit(big, a[i], &err));
        need(answer_submit(small, b[i], &err));
        if (i == 0)
            answer_wait_held();
    }
    answers_release();
    for (int i = 0; i < 8; i++) {
        answer_wait(a[i]);
        answer_wait(b[i]);
        for (uint32_t c = 0; c < n; c++) {
            assert_int_equal(b[i]->choices[c].n, ANSWER);
            assert_int_equal(b[i]->choices[c].finish, KVASIR_FINISH_LENGTH);
            assert_memory_equal(a[i]->choices[c].tokens, b[i]->choices[c].tokens,
                                ANSWER * sizeof(int32_t));
        }
        free(a[i]);
        free(b[i]);
    }
    assert_int_equal(engine_settled(big).preemptions, 0);
    s = engine_settled(small);
    assert_true(s.preemptions > 0);
    assert_true((!no_prefix_cache && !no_store) || (s.rerun_tokens > 0 && s.stored_bytes == 0));
    kvasir_engine_destroy(big);
    kvasir_engine_destroy(small);
}

static void test_preempted_requests_give_the_same_tokens(void **state) {
    (void)state;
    for (uint32_t n = 1; n <= 3; n += 2) {
        check_preemption(false, false, n);
        check_preemption(true, false, n);
        check_preemption(false, true, n);
    }
}

int main(void) {
    skip_without(SHARED_DIR "/fixtures/tiny/llama/config.json");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_never_fitting_requests_are_refused_with_the_numbers),
        cmocka_unit_test(test_bad_options_name_their_field),
        cmocka_unit_test(test_priorities),
        cmocka_unit_test(test_a_full_queue_is_busy),
        cmocka_unit_test(test_many_take_one_place),
        cmocka_unit_test(test_cancels),
        cmocka_unit_test(test_cancels_from_many_threads),
        cmocka_unit_test(test_destroy_ends_all_requests),
        cmocka_unit_test(test_preempted_requests_give_the_same_tokens),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
