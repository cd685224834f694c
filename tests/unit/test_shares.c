/* SPDX-License-Identifier: Apache-2.0 */
/* Fair shares (shares.h, SCHED-2 to 4): tenants whose clients always have a request get tokens in
 * proportion to their weights, however many clients each has, with room for all and without. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "backend/null/null.h"
#include "engine/scheduler.h"

#include <cmocka.h>

enum { CLIENTS_MAX = 200, TENANTS = 4, STEP_ROWS = 128, PLENTY = 256 << 20 };

/* One client: sends its next request when the last one has ended. */
struct client {
    struct task task;
    uint32_t tenant, prompt, answer; /* mean lengths */
    uint32_t weight;
    bool waits; /* its request ended in this step */
};

struct world {
    struct backend *backend;
    struct kv_cache *cache;
    struct prefix_tree *tree;
    struct sched *sched;
    struct client clients[CLIENTS_MAX];
    uint32_t n_clients;
    uint64_t random, tokens[TENANTS], answers[TENANTS], ended[TENANTS];
    uint32_t prompt_rows[TENANTS]; /* of the last step */
    int32_t priority[TENANTS];
};

static struct client *client_of(const struct world *w, const struct kv_seq *seq) {
    for (uint32_t i = 0; i < w->n_clients; i++)
        if (w->clients[i].task.seq == seq)
            return (struct client *)&w->clients[i];
    fail_msg("a row of nobody's");
    return NULL;
}

static kvasir_status host_run(void *user, const struct step_part *parts, uint32_t n,
                              kvasir_error *err) {
    struct world *w = user;
    (void)err;
    memset(w->prompt_rows, 0, sizeof w->prompt_rows);
    for (uint32_t i = 0; i < n; i++) {
        const struct client *c = client_of(w, parts[i].seq);
        if (seq_length(parts[i].seq) < c->task.n_prompt)
            w->prompt_rows[c->tenant] += parts[i].rows;
        seq_commit(parts[i].seq, parts[i].tokens, parts[i].rows);
    }
    return KVASIR_OK;
}

static bool host_next(void *user, struct task *t, uint32_t row) {
    struct world *w = user;
    const struct client *c = t->owner;
    (void)row;
    w->tokens[c->tenant] += 1 + (t->n_tokens == t->n_prompt ? t->n_prompt : 0);
    w->answers[c->tenant]++;
    t->tokens[t->n_tokens] = (int32_t)t->n_tokens;
    t->n_tokens++;
    return t->n_tokens < t->cap;
}

static void host_ended(void *user, struct task *t, enum task_end end, const kvasir_error *error) {
    struct world *w = user;
    struct client *c = t->owner;
    (void)error;
    assert_true(end == END_COMPLETE || end == END_CANCELLED);
    w->ended[c->tenant]++;
    free(t->tokens);
    c->waits = true;
}

static struct world *make(uint64_t budget, uint32_t max_running) {
    struct world *w = calloc(1, sizeof *w);
    const struct kv_shape shape = {.layers = 2, .kv_heads = 2, .head_dim = 64};
    const struct kv_cache_options o = {.k = {.bits = 8}, .v = {.bits = 4}, .budget_bytes = budget};
    const struct sched_options options = {.max_running = max_running, .step_rows = STEP_ROWS};
    const struct sched_host host = {
        .user = w, .run = host_run, .next = host_next, .ended = host_ended};
    kvasir_error err;
    w->random = 1;
    assert_int_equal(backend_null_create(&w->backend, &err), KVASIR_OK);
    assert_int_equal(kv_cache_create(w->backend, &shape, 1, &o, &w->cache, &err), KVASIR_OK);
    assert_int_equal(tree_create(w->cache, 1000, &w->tree, &err), KVASIR_OK);
    assert_int_equal(sched_create(w->cache, w->tree, &options, &host, &w->sched, &err), KVASIR_OK);
    return w;
}

static void drop(struct world *w) {
    for (uint32_t i = 0; i < w->n_clients; i++)
        sched_cancel(w->sched, &w->clients[i].task);
    sched_destroy(w->sched);
    tree_destroy(w->tree);
    kv_cache_destroy(w->cache);
    backend_destroy(w->backend);
    free(w);
}

/* From half of the mean to one and a half. */
static uint32_t around(struct world *w, uint32_t mean) {
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return mean / 2 + 1 + (uint32_t)((w->random >> 33) % mean);
}

static void send(struct world *w, struct client *c) {
    const uint32_t prompt = around(w, c->prompt), answer = around(w, c->answer);
    c->waits = false;
    c->task = (struct task){.owner = c,
                            .salt = "",
                            .n_prompt = prompt,
                            .cap = prompt + answer,
                            .tenant = c->tenant + 1,
                            .weight = c->weight,
                            .priority = w->priority[c->tenant]};
    c->task.tokens = malloc(c->task.cap * sizeof *c->task.tokens);
    for (uint32_t i = 0; i < prompt; i++)
        c->task.tokens[i] = (int32_t)around(w, 1 << 20);
    sched_submit(w->sched, &c->task);
}

static void add_clients(struct world *w, uint32_t n, uint32_t tenant, uint32_t weight,
                        uint32_t prompt, uint32_t answer) {
    for (uint32_t i = 0; i < n; i++) {
        struct client *c = &w->clients[w->n_clients++];
        *c =
            (struct client){.tenant = tenant, .weight = weight, .prompt = prompt, .answer = answer};
        send(w, c);
    }
}

static void steps(struct world *w, uint32_t n) {
    while (n--) {
        uint32_t rows;
        kvasir_error err;
        assert_int_equal(sched_step(w->sched, &rows, &err), KVASIR_OK);
        assert_true(rows > 0);
        for (uint32_t i = 0; i < w->n_clients; i++)
            if (w->clients[i].waits)
                send(w, &w->clients[i]);
    }
}

/* That tenant 0's tokens are to tenant 1's as expected, within 5 %. */
static void check_ratio(const struct world *w, const uint64_t n[TENANTS], double expected) {
    const double ratio = (double)n[0] / (double)n[1];
    if (!(ratio > expected * 0.95 && ratio < expected * 1.05))
        fail_msg("%llu and %llu tokens: a ratio of %.3f, not %.3f, after %llu and %llu requests",
                 (unsigned long long)n[0], (unsigned long long)n[1], ratio, expected,
                 (unsigned long long)w->ended[0], (unsigned long long)w->ended[1]);
}

static void test_clients_do_not_count(void **state) {
    (void)state;
    struct world *w = make(PLENTY, 32);
    add_clients(w, 150, 0, 1, 100, 60);
    add_clients(w, 50, 1, 1, 100, 60);
    steps(w, 4000);
    check_ratio(w, w->tokens, 1);
    check_ratio(w, w->answers, 1);
    drop(w);
}

static void test_weights(void **state) {
    (void)state;
    for (int many = 0; many < 2; many++) { /* whoever has more clients */
        struct world *w = make(PLENTY, 32);
        add_clients(w, many ? 60 : 120, 0, 3, 100, 60);
        add_clients(w, many ? 120 : 60, 1, 1, 100, 60);
        steps(w, 4000);
        check_ratio(w, w->tokens, 3);
        drop(w);
    }
}

/* A priority orders a tenant's own tasks: it takes nothing from others. */
static void test_priorities(void **state) {
    (void)state;
    struct world *w = make(PLENTY, 32);
    w->priority[0] = -1000;
    w->priority[1] = 1000;
    add_clients(w, 60, 0, 1, 100, 60);
    add_clients(w, 60, 1, 1, 100, 60);
    steps(w, 4000);
    check_ratio(w, w->tokens, 1);
    drop(w);
}

/* Long prompts with short answers against short prompts with long answers. */
static void test_other_lengths(void **state) {
    (void)state;
    struct world *w = make(PLENTY, 32);
    add_clients(w, 60, 0, 1, 400, 8);
    add_clients(w, 60, 1, 1, 20, 120);
    steps(w, 6000);
    check_ratio(w, w->tokens, 1);
    drop(w);
}

/* Too little memory for all that run: tasks are preempted, and rows run again. */
static void test_short_of_memory(void **state) {
    (void)state;
    struct world *w = make(2600000, 32);
    add_clients(w, 150, 0, 1, 200, 300);
    add_clients(w, 50, 1, 1, 200, 300);
    steps(w, 20000);
    assert_true(sched_stats(w->sched).preemptions > 100);
    check_ratio(w, w->tokens, 1);
    drop(w);
}

/* One task at a time: they take turns. */
static void test_one_place(void **state) {
    (void)state;
    struct world *w = make(PLENTY, 1);
    add_clients(w, 30, 0, 2, 20, 10);
    add_clients(w, 2, 1, 1, 20, 10);
    steps(w, 6000);
    check_ratio(w, w->tokens, 2);
    drop(w);
}

/* Places that become free at once do not all go to the tenant with the shorter prompts. */
static void test_free_places(void **state) {
    (void)state;
    struct world *w = make(PLENTY, 16);
    uint32_t running = 0;
    add_clients(w, 40, 0, 1, 2, 60);
    add_clients(w, 40, 1, 1, 64, 60);
    steps(w, 1);
    for (uint32_t i = 40; i < 80; i++)
        running += w->clients[i].task.seq != NULL;
    assert_in_range(running, 4, 8);
    drop(w);
}

/* A tenant that comes late gets its share from then on, not what it missed. */
static void test_idle_time_is_not_saved(void **state) {
    (void)state;
    struct world *w = make(PLENTY, 16);
    add_clients(w, 100, 0, 1, 100, 60);
    add_clients(w, 1, 1, 1, 100, 60);
    steps(w, 4000);
    assert_true(w->tokens[1] < w->tokens[0] / 4);
    add_clients(w, 60, 1, 1, 100, 60);
    memset(w->tokens, 0, sizeof w->tokens);
    steps(w, 3000);
    check_ratio(w, w->tokens, 1);
    drop(w);
}

/* A tenant alone with one that sends little has the rest. */
static void test_work_conserving(void **state) {
    (void)state;
    struct world *w = make(PLENTY, 8), *alone = make(PLENTY, 8);
    add_clients(w, 20, 0, 1, 100, 60);
    add_clients(w, 1, 1, 100, 20, 30);
    add_clients(alone, 20, 0, 1, 100, 60);
    steps(w, 2000);
    steps(alone, 2000);
    assert_true(w->answers[0] + w->answers[1] > alone->answers[0] * 98 / 100);
    assert_true(w->answers[1] > 2000 * 8 / 10); /* it never waits for long */
    drop(w);
    drop(alone);
}

/* SCHED-2: the rows of prompts are shared among tenants first. */
static void test_rows_of_prompts(void **state) {
    (void)state;
    struct world *w = make(PLENTY, 16);
    add_clients(w, 6, 0, 1, 4000, 4);
    add_clients(w, 1, 1, 1, 4000, 4);
    add_clients(w, 3, 2, 2, 4000, 4);
    for (int i = 0; i < 10; i++) {
        steps(w, 1);
        assert_in_range(w->prompt_rows[0], STEP_ROWS / 4 - 3, STEP_ROWS / 4 + 5);
        assert_in_range(w->prompt_rows[1], STEP_ROWS / 4 - 3, STEP_ROWS / 4 + 5);
        assert_in_range(w->prompt_rows[2], STEP_ROWS / 2 - 3, STEP_ROWS / 2 + 5);
    }
    drop(w);
}

/* SCHED-4: a tenant's tasks, if they are as long, start in the order in which they came. */
static void test_order_within_a_tenant(void **state) {
    (void)state;
    struct world *w = make(PLENTY, 4);
    add_clients(w, 40, 0, 1, 1, 20); /* prompts of one token */
    add_clients(w, 40, 1, 1, 1, 20);
    for (uint32_t i = 0; i < 40; i++) {
        while (!w->clients[i].task.admitted) {
            assert_false(i + 1 < 40 && w->clients[i + 1].task.admitted);
            assert_false(i + 1 < 40 && w->clients[40 + i + 1].task.admitted &&
                         !w->clients[40 + i].task.admitted);
            uint32_t rows;
            kvasir_error err;
            assert_int_equal(sched_step(w->sched, &rows, &err), KVASIR_OK);
        }
    }
    for (uint32_t i = 0; i < w->n_clients; i++) /* drop cancels those that have not ended */
        if (w->clients[i].waits)
            send(w, &w->clients[i]);
    drop(w);
}

/* Four tenants get a quarter each. */
static void test_many_tenants(void **state) {
    (void)state;
    struct world *w = make(PLENTY, 32);
    for (uint32_t i = 0; i < TENANTS; i++)
        add_clients(w, 20 + 10 * i, i, 1, 80, 40);
    steps(w, 4000);
    for (uint32_t i = 1; i < TENANTS; i++)
        check_ratio(w, (uint64_t[TENANTS]){w->tokens[0], w->tokens[i]}, 1);
    drop(w);
}

/* SHARE-3: shares of tenants that are gone do not stay. */
static void test_shares_are_freed(void **state) {
    (void)state;
    struct shares all;
    struct task t[3] = {{.tenant = 1, .n_prompt = 10, .cap = 20},
                        {.tenant = 2, .n_prompt = 10, .cap = 20},
                        {.tenant = 3, .n_prompt = 10, .cap = 20}};
    shares_init(&all);
    for (int i = 0; i < 1000; i++) {
        struct task *a = &t[i % 3];
        uint32_t n = 0;
        a->tenant = (uint64_t)i + 1;
        a->n_tokens = 10;
        a->admitted = false;
        share_join(&all, a);
        share_start(&all, a, 0);
        a->admitted = true;
        for (a->n_tokens = 10; a->n_tokens < 20; a->n_tokens++)
            share_run(a, a->n_tokens);
        share_leave(&all, a);
        for (const struct share *h = &all.common; h; h = h->next)
            n++;
        assert_true(n <= 4);
    }
    shares_deinit(&all);
}

/* SHARE-2: what a task pays in the end is what was run for it, and rows run again cost nothing. */
static void test_tokens_are_paid_once(void **state) {
    (void)state;
    struct shares all;
    struct task t = {.tenant = 7, .weight = 4, .n_prompt = 1000, .n_tokens = 1000, .cap = 2000};
    shares_init(&all);
    share_join(&all, &t);
    share_start(&all, &t, 600); /* a stored prefix */
    t.admitted = true;
    assert_true(t.prepaid >= 400);
    share_run(&t, 900);
    share_stop(&t); /* preempted */
    const uint64_t spent = t.share->spent;
    assert_int_equal(spent, (uint64_t)300 * 65536 / 4);
    share_start(&all, &t, 100);
    share_run(&t, 800);
    share_stop(&t);
    assert_int_equal(t.share->spent, spent);
    share_start(&all, &t, 0);
    t.n_tokens = 1700;
    share_run(&t, 1700);
    assert_int_equal(t.share->spent, (uint64_t)1100 * 65536 / 4);
    share_leave(&all, &t);
    shares_deinit(&all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clients_do_not_count),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_priorities),
        cmocka_unit_test(test_other_lengths),
        cmocka_unit_test(test_short_of_memory),
        cmocka_unit_test(test_one_place),
        cmocka_unit_test(test_free_places),
        cmocka_unit_test(test_idle_time_is_not_saved),
        cmocka_unit_test(test_work_conserving),
        cmocka_unit_test(test_rows_of_prompts),
        cmocka_unit_test(test_order_within_a_tenant),
        cmocka_unit_test(test_many_tenants),
        cmocka_unit_test(test_shares_are_freed),
        cmocka_unit_test(test_tokens_are_paid_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
