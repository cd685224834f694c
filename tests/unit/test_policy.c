/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of policy.h: as functions, and as the scheduler applies them on the null backend. What
 * bounds starvation is checked with random arrivals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "backend/null/null.h"
#include "engine/scheduler.h"

#include <cmocka.h>

/* ---- functions ------------------------------------------------------------------------------- */

static uint64_t rank(int32_t priority, uint32_t tokens) {
    return policy_rank(POLICY_SHORTEST, priority, tokens);
}

static void test_ranks(void **state) {
    (void)state;
    assert_true(RANK_FIRST < rank(INT32_MIN, 0));
    assert_true(rank(INT32_MIN, UINT32_MAX) < rank(INT32_MIN + 1, 1));
    assert_true(rank(-1, 100000) < rank(0, 1));
    assert_true(rank(0, 100000) < rank(1, 1));
    assert_true(rank(7, 10) < rank(7, 11));
    assert_true(rank(INT32_MAX - 1, UINT32_MAX) < rank(INT32_MAX, 1));
    for (enum policy p = POLICY_EQUAL; p < POLICY_KINDS; p++) {
        assert_int_equal(policy_rank(p, 5, 10), policy_rank(p, -5, 10000));
        assert_false(policy_is_aged_turn(p, 1000));
        assert_int_equal(policy_aged_rows(p, 1000), 0);
        assert_true(policy_holds(p, 0, false));
    }
}

static void test_ages(void **state) {
    (void)state;
    assert_false(policy_is_aged_turn(POLICY_SHORTEST, AGED_EACH - 2));
    assert_true(policy_is_aged_turn(POLICY_SHORTEST, AGED_EACH - 1));
    for (uint32_t rows = 0; rows < 1000; rows++)
        assert_in_range(policy_aged_rows(POLICY_SHORTEST, rows) * AGED_EACH, rows,
                        rows + AGED_EACH - 1);
    assert_false(policy_holds(POLICY_SHORTEST, PASSES - 1, false));
    assert_true(policy_holds(POLICY_SHORTEST, PASSES, false));
    assert_true(policy_holds(POLICY_SHORTEST, 0, true));
}

/* Steps of a machine that needs 20 ms and 1 ms a row come to take the target, from both sides. */
static void test_pace(void **state) {
    (void)state;
    static const double TARGETS[] = {0.1, 0.2, 0.3};
    for (int i = 0; i < 3; i++)
        for (uint32_t first = 1; first <= 512; first += 511) {
            struct pace p = {.seconds = TARGETS[i], .most = 512, .rows = first};
            for (int step = 0; step < 60; step++) {
                const uint32_t rows = 4 + pace_prompt_rows(&p, 4, 508);
                pace_note(&p, rows, 0.02 + 0.001 * rows);
            }
            assert_in_range(p.rows, 1000 * TARGETS[i] - 20 - 2, 1000 * TARGETS[i] - 20 + 2);
        }
}

static void test_pace_limits(void **state) {
    (void)state;
    struct pace off = {0, 512, 512}, p = {0.1, 512, 512};
    pace_note(&off, 512, 100);
    assert_int_equal(pace_prompt_rows(&off, 5, 507), 507);
    pace_note(&p, 512, 100); /* one slow step */
    assert_int_equal(p.rows, 256);
    assert_int_equal(pace_prompt_rows(&p, 56, 456), 200);
    assert_int_equal(pace_prompt_rows(&p, 0, 512), 512); /* nobody waits for a token */
    for (int i = 0; i < 20; i++)
        pace_note(&p, 512, 100);
    pace_note(&p, p.rows, 100);
    for (int i = 0; i < 20; i++)
        pace_note(&p, p.rows, 100);
    assert_int_equal(p.rows, 1);
    assert_int_equal(pace_prompt_rows(&p, 5, 507), 512 / PACE_LEAST); /* prompts go on */
    assert_int_equal(pace_prompt_rows(&p, 5, 3), 3);
    for (int i = 0; i < 100; i++) /* steps that are not full say nothing */
        pace_note(&p, p.rows - 1, 0.001);
    assert_int_equal(p.rows, 1);
    for (int i = 0; i < 100; i++)
        pace_note(&p, max_u32(p.rows, 64), 0.001);
    assert_int_equal(p.rows, 512);
}

/* ---- the scheduler --------------------------------------------------------------------------- */

enum { TASKS = 400, STEP_ROWS = 64, PLENTY = 256 << 20, TENANTS = 3 };

struct arrival {
    struct task task;
    uint32_t older;   /* of its tenant, that waited when it came */
    uint64_t came_at; /* admissions of its tenant by then */
    uint64_t first;   /* step of its first token; 0: none yet */
    bool admitted, ended;
};

struct world {
    struct backend *backend;
    struct kv_cache *cache;
    struct prefix_tree *tree;
    struct sched *sched;
    struct arrival list[TASKS];
    uint32_t n, ended, order[TASKS]; /* order: of admissions */
    uint64_t steps, random, admissions[TENANTS], all_admissions;
};

static kvasir_status host_admitted(void *user, struct task *t, kvasir_error *err) {
    struct world *w = user;
    struct arrival *a = t->owner;
    (void)err;
    if (!a->admitted) {
        w->admissions[t->tenant]++;
        w->order[w->all_admissions++] = (uint32_t)(a - w->list);
    }
    a->admitted = true;
    return KVASIR_OK;
}

static kvasir_status host_run(void *user, const struct step_part *parts, uint32_t n,
                              kvasir_error *err) {
    struct world *w = user;
    (void)err;
    w->steps++;
    for (uint32_t i = 0; i < n; i++)
        seq_commit(parts[i].seq, parts[i].tokens, parts[i].rows);
    return KVASIR_OK;
}

static bool host_next(void *user, struct task *t, uint32_t row) {
    const struct world *w = user;
    struct arrival *a = t->owner;
    (void)row;
    a->first = a->first ? a->first : w->steps;
    t->tokens[t->n_tokens] = (int32_t)t->n_tokens;
    t->n_tokens++;
    return t->n_tokens < t->cap;
}

static void host_ended(void *user, struct task *t, enum task_end end, const kvasir_error *error) {
    struct world *w = user;
    struct arrival *a = t->owner;
    (void)error;
    assert_int_equal(end, END_COMPLETE);
    free(t->tokens);
    a->ended = true;
    w->ended++;
}

static struct world *make(uint64_t budget, uint32_t max_running) {
    struct world *w = calloc(1, sizeof *w);
    const struct kv_shape shape = {.layers = 2, .kv_heads = 2, .head_dim = 64};
    const struct kv_cache_options o = {.k = {.bits = 8}, .v = {.bits = 4}, .budget_bytes = budget};
    const struct sched_options options = {.max_running = max_running, .step_rows = STEP_ROWS};
    const struct sched_host host = {.user = w,
                                    .admitted = host_admitted,
                                    .run = host_run,
                                    .next = host_next,
                                    .ended = host_ended};
    kvasir_error err;
    assert_int_equal(backend_null_create(&w->backend, &err), KVASIR_OK);
    assert_int_equal(kv_cache_create(w->backend, &shape, 1, &o, &w->cache, &err), KVASIR_OK);
    assert_int_equal(tree_create(w->cache, 1000, &w->tree, &err), KVASIR_OK);
    assert_int_equal(sched_create(w->cache, w->tree, &options, &host, &w->sched, &err), KVASIR_OK);
    return w;
}

static void drop(struct world *w) {
    assert_int_equal(w->ended, w->n);
    sched_destroy(w->sched);
    tree_destroy(w->tree);
    kv_cache_destroy(w->cache);
    backend_destroy(w->backend);
    free(w);
}

/* Its first `shared` tokens are those of others. */
static struct arrival *arrive(struct world *w, uint32_t prompt, uint32_t shared, uint32_t answer,
                              int32_t priority, uint32_t tenant) {
    struct arrival *a = &w->list[w->n++];
    *a = (struct arrival){.came_at = w->admissions[tenant]};
    for (uint32_t i = 0; i + 1 < w->n; i++)
        a->older += !w->list[i].admitted && w->list[i].task.tenant == tenant;
    a->task = (struct task){.owner = a,
                            .salt = "",
                            .n_prompt = prompt,
                            .cap = prompt + answer,
                            .priority = priority,
                            .tenant = tenant};
    a->task.tokens = malloc(a->task.cap * sizeof(int32_t));
    for (uint32_t p = 0; p < prompt; p++)
        a->task.tokens[p] = (int32_t)(p < shared ? p : p * 31 + w->n * 100003);
    sched_submit(w->sched, &a->task);
    return a;
}

static bool step(struct world *w) {
    kvasir_error err;
    uint32_t rows;
    assert_int_equal(sched_step(w->sched, &rows, &err), KVASIR_OK);
    return rows > 0;
}

static void run_all(struct world *w) {
    while (step(w))
        ;
}

static void check_order(const struct world *w, const uint32_t *expected, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(w->order[i], expected[i]);
}

/* One place: the lowest priority, then the shortest, then the oldest; each fourth is the oldest. */
static void test_admission_order(void **state) {
    (void)state;
    static const uint32_t ORDER[] = {0, 5, 6, 1, 3, 4, 7, 2};
    struct world *w = make(PLENTY, 1);
    arrive(w, 100, 0, 2, 0, 0);
    step(w);
    arrive(w, 300, 0, 2, 9, 0);
    arrive(w, 300, 0, 2, 9, 0);
    arrive(w, 200, 0, 2, 1, 0);
    arrive(w, 100, 0, 2, 2, 0);
    arrive(w, 300, 0, 2, -1, 0);
    arrive(w, 50, 0, 2, 1, 0);
    arrive(w, 299, 0, 2, 9, 0);
    run_all(w);
    check_order(w, ORDER, 8);
    drop(w);
}

/* A long prompt of which nearly all is stored goes before a short one, also if it came before that
 * was stored. */
static void test_stored_goes_first(void **state) {
    (void)state;
    static const uint32_t ORDER[] = {0, 1, 3, 2};
    struct world *w = make(PLENTY, 1);
    arrive(w, 2000, 2000, 2, 0, 0);
    step(w);
    arrive(w, 100, 0, 2, 0, 0);
    arrive(w, 200, 0, 2, 0, 0);
    arrive(w, 2010, 2000, 2, 0, 0);
    run_all(w);
    check_order(w, ORDER, 4);
    drop(w);
}

/* Little memory: a task that does not fit is passed PASSES times, and then all wait for it. */
static void test_passing(void **state) {
    (void)state;
    struct world *w = make(1300000, 8);
    struct arrival *first = arrive(w, 1000, 0, 700, 0, 0), *large;
    for (int i = 0; i < 20; i++)
        step(w);
    assert_true(first->admitted);
    large = arrive(w, 2200, 0, 2, -1, 0);
    for (uint32_t i = 0; i < 20; i++) {
        arrive(w, 20, 0, 2, 0, 0);
        step(w);
        step(w);
        step(w);
        assert_false(large->admitted);
        assert_int_equal(w->all_admissions, 1 + (i < PASSES ? i + 1 : PASSES));
    }
    run_all(w);
    assert_int_equal(w->order[1 + PASSES], large - w->list);
    drop(w);
}

/* Rule 4: beside any number of shorter prompts one takes at most AGED_EACH times as long. */
static void test_lone_time(void **state) {
    (void)state;
    enum { LONG = 3000 };
    struct world *w = make(PLENTY, 8);
    struct arrival *a = arrive(w, LONG, 0, 1, 100, 0);
    const uint64_t alone = (LONG + STEP_ROWS - 1) / STEP_ROWS;
    step(w);
    for (int i = 0; !a->ended; i++) {
        if (w->n - w->ended < 4)
            arrive(w, 40 + (uint32_t)i % 20, 0, 1, -100, 0);
        step(w);
    }
    assert_in_range(a->first, alone * 2, alone * AGED_EACH); /* others were served, too */
    run_all(w);
    drop(w);
}

static uint32_t below(struct world *w, uint32_t n) {
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((w->random >> 33) % n);
}

/* Random arrivals, priorities, lengths and tenants, more than can be served for most of the time.
 * Returns the most admissions that one waited for, divided by what is promised. */
static double run_random(uint64_t seed, uint64_t budget, uint32_t each) {
    struct world *w = make(budget, 1 + (uint32_t)seed % 5);
    double most = 0;
    w->random = seed;
    while (w->n < TASKS || w->ended < w->n) {
        for (uint32_t i = below(w, 3); i > 0 && w->n < TASKS && w->n - w->ended < 100; i--)
            arrive(w, 1 + below(w, below(w, 8) ? 100 : 1500), 0, 1 + below(w, 20),
                   (int32_t)below(w, 3) - 1, below(w, TENANTS));
        step(w);
    }
    uint64_t seen[TENANTS] = {0};
    for (uint32_t i = 0; i < w->all_admissions; i++) {
        const struct arrival *a = &w->list[w->order[i]];
        const uint64_t waited = ++seen[a->task.tenant] - a->came_at;
        const double part = (double)waited / (each * (a->older + 1.0));
        most = part > most ? part : most;
    }
    drop(w);
    return most;
}

/* What policy.h promises: with room for all, and with hardly room for the longest. */
static void test_nobody_starves(void **state) {
    (void)state;
    double most = 0, most_short = 0;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        const double a = run_random(seed, PLENTY, AGED_EACH),
                     b = run_random(seed, 1100000, AGED_EACH + PASSES);
        most = a > most ? a : most;
        most_short = b > most_short ? b : most_short;
    }
    assert_true(most > 0.5 && most <= 1); /* the bound is met, and not by far */
    assert_true(most_short <= 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_ages),
        cmocka_unit_test(test_pace),
        cmocka_unit_test(test_pace_limits),
        cmocka_unit_test(test_admission_order),
        cmocka_unit_test(test_stored_goes_first),
        cmocka_unit_test(test_passing),
        cmocka_unit_test(test_lone_time),
        cmocka_unit_test(test_nobody_starves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
