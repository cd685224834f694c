/* SPDX-License-Identifier: Apache-2.0 */
/* What the scheduler promises (SCHED-2 to 5 and SCHED-7 of scheduler.h), on the null backend: which
 * rows steps have, which task waits for which, which one is preempted. tests/sim/engine.c checks
 * that tokens are right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "backend/null/null.h"
#include "cache/tree_internal.h"
#include "engine/scheduler.h"

#include <cmocka.h>

enum { TASKS = 16, STEP_ROWS = 256, LENGTH = 4096 };

struct world {
    struct backend *backend;
    struct kv_cache *cache;
    struct prefix_tree *tree;
    struct sched *sched;
    struct task tasks[TASKS];
    uint64_t rows;               /* run in all */
    uint32_t most_parts;         /* of a step */
    uint32_t prompt_rows[TASKS]; /* of the last step */
    uint64_t last_step[TASKS];   /* in which the task generated */
    uint64_t steps;
    enum task_end ends[TASKS];
    uint32_t ended, order[TASKS];
};

static kvasir_status host_run(void *user, const struct step_part *parts, uint32_t n,
                              kvasir_error *err) {
    struct world *w = user;
    (void)err;
    uint32_t rows = 0;
    memset(w->prompt_rows, 0, sizeof w->prompt_rows);
    for (uint32_t i = 0; i < n; i++) {
        for (int t = 0; t < TASKS; t++)
            if (w->tasks[t].seq == parts[i].seq)
                w->prompt_rows[t] = parts[i].rows;
        seq_commit(parts[i].seq, parts[i].tokens, parts[i].rows);
        rows += parts[i].rows;
    }
    assert_true(rows <= STEP_ROWS);
    w->rows += rows;
    w->most_parts = n > w->most_parts ? n : w->most_parts;
    w->steps++;
    return KVASIR_OK;
}

static bool host_next(void *user, struct task *t, uint32_t row) {
    struct world *w = user;
    (void)row;
    w->last_step[t - w->tasks] = w->steps;
    t->tokens[t->n_tokens] = (int32_t)(t->n_tokens * 7);
    t->n_tokens++;
    return t->n_tokens < t->cap;
}

static void host_ended(void *user, struct task *t, enum task_end end, const kvasir_error *error) {
    struct world *w = user;
    (void)error;
    w->ends[t - w->tasks] = end;
    w->order[w->ended++] = (uint32_t)(t - w->tasks);
}

/* state_bytes: of recurrent layers; 0: there are none. NEAR_ENDS tokens between snapshots:
 * more of them near the ends of prompts. */
enum { NEAR_ENDS = 1024 };
static struct world *make_recurrent(uint64_t budget, uint32_t max_running, uint64_t state_bytes,
                                    uint32_t snapshot_tokens) {
    struct world *w = calloc(1, sizeof *w);
    const struct kv_shape shape = {.layers = 2, .kv_heads = 2, .head_dim = 64};
    const struct kv_cache_options o = {
        .k = {.bits = 8}, .v = {.bits = 4}, .state_bytes = state_bytes, .budget_bytes = budget};
    const struct sched_options options = {.max_running = max_running,
                                          .step_rows = STEP_ROWS,
                                          .snapshot_tokens = snapshot_tokens,
                                          .points_near_ends = snapshot_tokens == NEAR_ENDS};
    const struct sched_host host = {
        .user = w, .run = host_run, .next = host_next, .ended = host_ended};
    kvasir_error err;
    assert_int_equal(backend_null_create(&w->backend, &err), KVASIR_OK);
    assert_int_equal(kv_cache_create(w->backend, &shape, 1, &o, &w->cache, &err), KVASIR_OK);
    assert_int_equal(tree_create(w->cache, 1000, &w->tree, &err), KVASIR_OK);
    assert_int_equal(sched_create(w->cache, w->tree, &options, &host, &w->sched, &err), KVASIR_OK);
    return w;
}

static struct world *make(uint64_t budget, uint32_t max_running) {
    return make_recurrent(budget, max_running, 0, 0);
}

static void drop(struct world *w) {
    for (int i = 0; i < TASKS; i++)
        free(w->tasks[i].tokens);
    sched_destroy(w->sched);
    tree_destroy(w->tree);
    const struct kv_pool_stats pool = kv_pool_stats(kv_cache_pool(w->cache));
    assert_int_equal(pool.used_bytes + pool.charged_bytes, 0);
    kv_cache_destroy(w->cache);
    backend_destroy(w->backend);
    free(w);
}

/* Task i of a tenant: `shared` tokens that all tasks have, then its own. */
static void submit_salted(struct world *w, uint32_t i, const char *salt, uint32_t prompt,
                          uint32_t shared, uint32_t answer) {
    struct task *t = &w->tasks[i];
    *t = (struct task){
        .salt = salt, .salt_len = strlen(salt), .n_prompt = prompt, .cap = prompt + answer};
    t->tokens = malloc(t->cap * sizeof *t->tokens);
    for (uint32_t p = 0; p < prompt; p++)
        t->tokens[p] = (int32_t)(p < shared ? p : p * 31 + (i + 1) * 100003);
    sched_submit(w->sched, t);
}

static void submit(struct world *w, uint32_t i, uint32_t prompt, uint32_t shared, uint32_t answer) {
    submit_salted(w, i, "", prompt, shared, answer);
}

static uint32_t step(struct world *w) {
    kvasir_error err;
    uint32_t rows;
    assert_int_equal(sched_step(w->sched, &rows, &err), KVASIR_OK);
    tree_check(w->tree);
    return rows;
}

static void run_all(struct world *w) {
    while (step(w))
        ;
}

/* SCHED-4: eight requests with the same new prefix, all at once: only one computes its pages. */
static void test_prefix_computed_once(void **state) {
    (void)state;
    struct world *w = make((uint64_t)64 << 20, 8);
    for (uint32_t i = 0; i < 8; i++)
        submit(w, i, 2100, 2000, 1);
    run_all(w);
    assert_int_equal(w->ended, 8);
    assert_int_equal(w->rows, 2100 + 7 * (2100 - 2000)); /* hits are exact to the token */
    assert_int_equal(sched_stats(w->sched).hits[KVASIR_HIT_COMMON_PREFIX], 7);
    drop(w);
}

/* SCHED-4: a task that waits for a prefix delays none of those after it, and goes on when the one
 * that computed the prefix is gone. */
static void test_waiting_for_a_prefix(void **state) {
    (void)state;
    struct world *w = make((uint64_t)64 << 20, 8);
    submit(w, 0, 3000, 2000, 1);
    submit(w, 1, 3000, 2000, 1);
    submit(w, 2, 600, 0, 1);
    step(w);
    assert_true(w->tasks[0].seq && !w->tasks[1].seq && w->tasks[2].seq);
    sched_cancel(w->sched, &w->tasks[0]);
    assert_int_equal(w->ends[0], END_CANCELLED);
    step(w);
    assert_non_null(w->tasks[1].seq);
    run_all(w);
    assert_int_equal(w->ends[1], END_COMPLETE);
    drop(w);
}

/* A task does not wait for another tenant's task with the same prompt: it cannot use its pages, and
 * the wait would show that they are being computed. */
static void test_no_waiting_for_other_tenants(void **state) {
    (void)state;
    static const char *const SALTS[] = {"a", "b", "ab", ""};
    struct world *w = make((uint64_t)64 << 20, 8);
    for (uint32_t i = 0; i < 4; i++)
        submit_salted(w, i, SALTS[i], 3000, 3000, 1);
    submit_salted(w, 4, "b", 3000, 3000, 1);
    step(w);
    for (uint32_t i = 0; i < 4; i++)
        assert_non_null(w->tasks[i].seq);
    assert_null(w->tasks[4].seq); /* of the same tenant: it waits */
    run_all(w);
    assert_in_range(w->rows, 4 * 3000 + 1, 4 * 3000 + 3000 % TILE_TOKENS); /* whole pages hit */
    drop(w);
}

/* SCHED-2: a task that generates has a row in every step. Of the others' rows the oldest prompt
 * gets a quarter, the shortest the rest. */
static void test_rows_are_shared(void **state) {
    (void)state;
    enum { REST = STEP_ROWS - 2, AGED = (REST + AGED_EACH - 1) / AGED_EACH };
    struct world *w = make((uint64_t)64 << 20, 8);
    submit(w, 0, 10, 0, 60);
    submit(w, 1, 10, 0, 60);
    step(w);
    submit(w, 2, 3000, 0, 4);
    step(w);
    submit(w, 3, 2500, 0, 4);
    submit(w, 4, 2000, 0, 4);
    for (int s = 0; s < 8; s++) {
        step(w);
        assert_int_equal(w->last_step[0], w->steps);
        assert_int_equal(w->last_step[1], w->steps);
        assert_int_equal(w->prompt_rows[2], AGED);
        assert_int_equal(w->prompt_rows[3], 0);
        assert_int_equal(w->prompt_rows[4], REST - AGED);
    }
    run_all(w);
    assert_int_equal(w->ended, 5);
    assert_int_equal(w->order[0], 4);
    assert_int_equal(w->order[1], 2); /* by then it is shorter than 3 */
    drop(w);
}

/* A short prompt after a long one does not wait for the long one's end. */
static void test_short_behind_long(void **state) {
    (void)state;
    struct world *w = make((uint64_t)64 << 20, 8);
    submit(w, 0, 4000, 0, 1);
    submit(w, 1, 100, 0, 1);
    step(w);
    step(w);
    assert_int_equal(w->ended, 1);
    assert_int_equal(w->order[0], 1);
    run_all(w);
    drop(w);
}

/* SCHED-3: the budget is too small for all: the newest is preempted, the oldest never, and all
 * complete. */
static void test_the_newest_gives_way(void **state) {
    (void)state;
    struct world *w = make(2600000, 8);
    for (uint32_t i = 0; i < 8; i++)
        submit(w, i, 600, 0, 900);
    bool preempted = false;
    for (uint32_t rows = 1; rows;) {
        rows = step(w);
        assert_true(w->ended > 0 || w->tasks[0].seq); /* the oldest runs from the first step on */
        preempted |= sched_stats(w->sched).preemptions > 0;
        const struct kv_pool_stats pool = kv_pool_stats(kv_cache_pool(w->cache));
        assert_true(pool.peak_bytes <= pool.budget_bytes);
    }
    assert_true(preempted);
    assert_int_equal(w->ended, 8);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(w->ends[i], END_COMPLETE);
    assert_int_equal(w->order[0], 0);
    drop(w);
}

/* A task that resumes after a preemption takes from the tree what has been kept there. */
static void test_preempted_pages_stay(void **state) {
    (void)state;
    struct world *w = make(2600000, 8);
    for (uint32_t i = 0; i < 8; i++)
        submit(w, i, 600, 0, 900);
    run_all(w);
    const struct sched_stats s = sched_stats(w->sched);
    assert_true(s.preemptions > 0);
    assert_true(s.rerun_tokens < s.preemptions * 1500);
    assert_int_equal(w->rows - s.rerun_tokens, 8 * (600 + 900 - 1));
    assert_int_equal(w->tree->clock, 8); /* resuming is not another request */
    drop(w);
}

/* The number of requests that used the tree's first page of submit's shared tokens. */
static uint32_t uses_of_shared(const struct world *w) {
    for (uint32_t x = 0; x < w->tree->n_made; x++) {
        const struct node *n = &w->tree->nodes[x];
        if (n->to && n->number == 0 && n->from == 0 && n->tokens[0] == 0 && n->tokens[1] == 1)
            return n->uses;
    }
    return 0;
}

/* A request that waits for room until three others have ended is tried many times. It counts as one
 * use of what it finds, at the time it begins. */
static void test_waiting_counts_as_one_use(void **state) {
    (void)state;
    enum { OTHERS = 6, LATE = 1 + OTHERS };
    struct world *w = make(2600000, 8);
    submit(w, 0, 600, 600, 1);
    run_all(w);
    assert_int_equal(uses_of_shared(w), 1);
    for (uint32_t i = 1; i <= OTHERS; i++)
        submit(w, i, 600, 0, 20 * i);
    step(w);
    const uint64_t clock = w->tree->clock, ages = w->tree->ages;
    submit(w, LATE, 3800, 600, 1);
    while (!w->tasks[LATE].seq) {
        assert_int_equal(w->tree->clock, clock);
        assert_int_equal(uses_of_shared(w), 1);
        assert_true(step(w));
    }
    assert_true(w->ended >= 1 + 3);
    assert_int_equal(w->tasks[LATE].hit.length, 600);
    assert_int_equal(w->tree->clock, clock + 1);
    assert_int_equal(w->tree->ages, ages + 10); /* its ten pages */
    assert_int_equal(uses_of_shared(w), 2);
    run_all(w);
    assert_int_equal(w->ends[LATE], END_COMPLETE);
    assert_int_equal(uses_of_shared(w), 2);
    drop(w);
}

/* A task of the longest length that the budget has room for completes alone. */
static void test_need_is_enough(void **state) {
    (void)state;
    for (uint64_t budget = 200000; budget < 2000000; budget += 123457) {
        struct world *w = make(budget, 4);
        uint32_t longest = 2;
        while (longest < LENGTH && sched_need(w->sched, longest + 1) <= budget)
            longest++;
        submit(w, 0, longest - 1, 0, 1);
        submit(w, 1, longest / 2 + 1, 0, longest - longest / 2 - 1);
        run_all(w);
        assert_int_equal(w->ends[0], END_COMPLETE);
        assert_int_equal(w->ends[1], END_COMPLETE);
        assert_int_equal(w->ended, 2);
        drop(w);
    }
}

/* A task that fails while it runs alone does not end the step: the task after it is served. (The
 * test submits it without asking sched_need whether it fits.) */
static void test_failure_serves_the_next(void **state) {
    (void)state;
    struct world *w = make(200000, 1);
    submit(w, 0, 2000, 0, 1);
    submit(w, 1, 20, 0, 1);
    run_all(w);
    assert_int_equal(w->ended, 2);
    assert_int_equal(w->ends[0], END_FAILED);
    assert_int_equal(w->ends[1], END_COMPLETE);
    drop(w);
}

/* SCHED-3 with a tree that earlier tasks have split at every token: the task has more nodes above
 * it than sched_need counts on, and completes all the same. */
static void test_alone_under_many_nodes(void **state) {
    (void)state;
    enum { PROMPT = 62 };
    struct world *w = make(1 << 20, 1);
    const uint64_t need = sched_need(w->sched, PROMPT + 1);
    drop(w);
    w = make(need, 1);
    for (uint32_t n = 1; n <= PROMPT; n++) {
        submit(w, 0, n, PROMPT, 1);
        run_all(w);
        assert_int_equal(w->ends[0], END_COMPLETE);
        free(w->tasks[0].tokens);
        w->tasks[0].tokens = NULL;
        w->ended = 0;
    }
    drop(w);
}

/* Recurrent layers: a prompt that continues from the middle of an answer begins with the last state
 * that was kept before that point. */
static void test_states_inside_answers(void **state) {
    (void)state;
    enum { PROMPT = 100, ANSWER = 2000 };
    struct world *w = make_recurrent((uint64_t)64 << 20, 4, 40000, 256);
    submit(w, 0, PROMPT, PROMPT, ANSWER);
    run_all(w);
    for (uint32_t i = 1; i < 8; i++) {
        const uint32_t same = 250 * i;
        submit(w, i, PROMPT + ANSWER, 0, 1);
        memcpy(w->tasks[i].tokens, w->tasks[0].tokens, same * sizeof(int32_t));
        run_all(w);
        assert_int_equal(w->tasks[i].hit.length, same < 256 ? PROMPT - 1 : same / 256 * 256);
    }
    drop(w);
}

/* Near a prompt's end states are kept 1, 2, 4 .. pages apart. */
static void test_states_near_ends(void **state) {
    (void)state;
    static const uint32_t CASES[][2] = {{1000, 1000}, {999, 999}, {998, 960}, {959, 896},
                                        {895, 768},   {767, 512}, {511, 0}};
    enum { PROMPT = 1000, N = sizeof CASES / sizeof *CASES };
    for (uint32_t i = 0; i < N; i++) {
        struct world *w = make_recurrent((uint64_t)64 << 20, 4, 40000, NEAR_ENDS);
        for (uint32_t k = 0; k < 2; k++) {
            submit(w, k, PROMPT + k, 0, 1);
            memcpy(w->tasks[k].tokens, w->tasks[0].tokens, (k ? CASES[i][0] : 0) * sizeof(int32_t));
            run_all(w);
        }
        assert_int_equal(w->tasks[1].hit.length, CASES[i][1]);
        drop(w);
    }
}

/* A step that ends two tokens before the prompt's end is followed by one that ends where the state
 * of the prompt is kept. */
static void test_state_of_a_prompt(void **state) {
    (void)state;
    for (uint32_t over = 1; over < 4; over++) {
        const uint32_t prompt = STEP_ROWS + over;
        struct world *w = make_recurrent((uint64_t)64 << 20, 4, 40000, 0);
        for (uint32_t i = 0; i < 2; i++) {
            submit(w, i, prompt, prompt, 1);
            run_all(w);
        }
        assert_int_equal(w->tasks[1].hit.length, prompt - 1);
        drop(w);
    }
}

struct outcome {
    uint64_t steps, preemptions;
    uint32_t states; /* kept in the tree, of answers */
};

static struct outcome run_answers(uint64_t budget, uint32_t n, uint32_t snapshot_tokens) {
    struct world *w = make_recurrent(budget, n, 40000, snapshot_tokens);
    for (uint32_t i = 0; i < n; i++)
        submit(w, i, 40, 0, 300 + 100 * i);
    run_all(w);
    struct outcome o = {w->steps, sched_stats(w->sched).preemptions, 0};
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(w->ends[i], END_COMPLETE);
    for (uint32_t x = 0; x < w->tree->n_made; x++) {
        const struct node *node = &w->tree->nodes[x];
        o.states += node->to == TILE_TOKENS && node->state != NO_ADDR;
    }
    drop(w);
    return o;
}

/* SCHED-7, with budgets from what one answer needs to one that has room for everything. */
static void test_states_inside_answers_take_no_room(void **state) {
    (void)state;
    enum { N = 4 };
    uint32_t quiet = 0, kept = 0;
    for (uint64_t budget = 500000; budget < 3000000; budget += 23456) {
        const struct outcome without = run_answers(budget, N, 0),
                             with = run_answers(budget, N, TILE_TOKENS);
        if (with.preemptions > without.preemptions)
            fail_msg("%llu bytes: %llu preemptions, %llu without states",
                     (unsigned long long)budget, (unsigned long long)with.preemptions,
                     (unsigned long long)without.preemptions);
        quiet += without.preemptions == 0;
        kept += with.states > 0;
    }
    assert_true(quiet > 20 && kept > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefix_computed_once),
        cmocka_unit_test(test_waiting_for_a_prefix),
        cmocka_unit_test(test_no_waiting_for_other_tenants),
        cmocka_unit_test(test_rows_are_shared),
        cmocka_unit_test(test_short_behind_long),
        cmocka_unit_test(test_the_newest_gives_way),
        cmocka_unit_test(test_preempted_pages_stay),
        cmocka_unit_test(test_waiting_counts_as_one_use),
        cmocka_unit_test(test_need_is_enough),
        cmocka_unit_test(test_states_inside_answers),
        cmocka_unit_test(test_states_inside_answers_take_no_room),
        cmocka_unit_test(test_states_near_ends),
        cmocka_unit_test(test_state_of_a_prompt),
        cmocka_unit_test(test_failure_serves_the_next),
        cmocka_unit_test(test_alone_under_many_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
