/* SPDX-License-Identifier: Apache-2.0 */
/* Which pages tiers are offered (TIERS-4 and TIERS-6 of tiers.h): each tier what it lacks, and
 * nothing that it has. On a tree without a model; with one: unit.tiers, sim.engine. */
#include "tiers_world.h"

/* ---- what a tier lacks ----------------------------------------------------------------------- */

/* One of two tiers fails: it gets all once it works, the other one nothing twice. */
static void test_a_tier_that_failed_gets_all_later(void **state) {
    (void)state;
    for (int which = 0; which < 2; which++) {
        struct place *p[2] = {place_new(), place_new()}, *bad = p[which], *good = p[1 - which];
        struct world w = make(p[0], p[1], 48, 8 << 20);
        const double start = clock_seconds();
        place_fail(bad, UINT32_MAX);
        request(&w, text[0], FEW);
        expect(&w, good, &good->writes, 2 * FEW_PAGES - 3); /* the window group has one page */
        const uint32_t tries = 2 * FEW_PAGES - 3;
        expect(&w, bad, &bad->tries, tries);
        place_fail(bad, 0);
        idle(&w, 100); /* it is left alone for a second */
        const uint32_t later = count_of_place(bad, &bad->tries);
        assert_true(later == tries || clock_seconds() > start + 1);
        expect(&w, bad, &bad->writes, tries);
        assert_int_equal(count_of_place(good, &good->tries), tries);
        const struct tiers_stats s = stats_of(&w); /* pages, whatever the number of records */
        assert_int_equal(s.unwritten_pages, FEW_PAGES);
        assert_int_equal(s.offered_pages, 3 * FEW_PAGES);
        unmake(&w);
        place_free(p[0]);
        place_free(p[1]);
    }
}

/* A tier that stays down costs a few tries, ever more rarely; nothing spins meanwhile. */
static void test_a_tier_that_is_down_is_tried_rarely(void **state) {
    (void)state;
    enum { MANY = 100, SOME = 16 }; /* at the writer and in the queue when a try fails */
    struct place *p = place_new();
    struct world w = make(p, NULL, 0, 8 << 20);
    place_fail(p, UINT32_MAX);
    request(&w, text[0], MANY * TILE_TOKENS);
    double failed = clock_seconds(); /* not before */
    expect(&w, p, &p->tries, MANY);
    for (int round = 0; round < 2; round++) { /* after 1 s, and 2 s later */
        const double now = clock_seconds(), due = tiers_next_deadline(w.tiers);
        assert_true(due >= failed + 1 + round && due <= now + 1 + round);
        const uint32_t tries = count_of_place(p, &p->tries);
        if (due > now + 0.4)
            usleep((useconds_t)((due - now - 0.4) * 1e6));
        idle(&w, 10);
        assert_true(count_of_place(p, &p->tries) == tries || clock_seconds() > due);
        failed = due;
        while (count_of_place(p, &p->tries) == tries)
            idle(&w, 1);
        idle(&w, 50);
        assert_in_range(count_of_place(p, &p->tries), tries + 1, tries + SOME);
    }
    place_fail(p, 0); /* what a later request needs is offered at once, the rest in time */
    const uint32_t written = count_of_place(p, &p->writes);
    request(&w, text[1], FEW);
    expect(&w, p, &p->writes, written + FEW_PAGES);
    expect(&w, p, &p->writes, written + FEW_PAGES + MANY);
    assert_true(tiers_next_deadline(w.tiers) > clock_seconds() + 20); /* a look for what it lost */
    unmake(&w);
    place_free(p);
}

/* A page that one tier has and the other lacks is written to that one, and only there. */
static void test_what_one_tier_has_comes_to_the_other(void **state) {
    (void)state;
    for (int which = 0; which < 2; which++) {
        struct place *p[2] = {place_new(), place_new()}, *full = p[which], *empty = p[1 - which];
        struct world w = make(full, NULL, 48, 8 << 20);
        request(&w, text[0], FEW);
        expect(&w, full, &full->writes, 2 * FEW_PAGES - 3);
        unmake(&w);
        for (int again = 0; again < 2; again++) {
            w = make(p[0], p[1], 48, 8 << 20);
            assert_int_equal(load(&w, text[0], FEW), FEW_PAGES * TILE_TOKENS);
            assert_int_equal(stats_of(&w).loaded_tokens, FEW_PAGES * TILE_TOKENS);
            if (again)
                request(&w, text[0], FEW);
            expect(&w, empty, &empty->writes, 2 * FEW_PAGES - 3);
            assert_int_equal(count_of_place(empty, &empty->tries), 2 * FEW_PAGES - 3);
            assert_int_equal(count_of_place(full, &full->tries), 2 * FEW_PAGES - 3);
            unmake(&w);
        }
        place_free(p[0]);
        place_free(p[1]);
    }
}

/* What waits for a slow tier is given up for it alone. */
static void test_what_was_given_up_is_offered_to_that_tier(void **state) {
    (void)state;
    struct place *slow = place_new(), *quick = place_new();
    struct world w = make(slow, quick, 0, 8 << 20);
    gate_set(slow, GATE_WRITE, true);
    request(&w, text[0], 20 * TILE_TOKENS);
    expect(&w, quick, &quick->writes, 20);
    tiers_relent(w.tiers);
    gate_set(slow, GATE_WRITE, false);
    expect(&w, slow, &slow->writes, 20);
    assert_int_equal(count_of_place(slow, &slow->tries), 20);
    assert_int_equal(count_of_place(quick, &quick->tries), 20);
    unmake(&w);
    place_free(slow);
    place_free(quick);
}

/* A queue that is smaller than a page has room for one all the same. */
static void test_pages_that_are_larger_than_the_queue(void **state) {
    (void)state;
    struct place *p = place_new();
    struct world w = make(p, NULL, 0, 1);
    request(&w, text[0], FEW);
    expect(&w, p, &p->writes, FEW_PAGES);
    gate_set(p, GATE_WRITE, true); /* one is written, slots and the queue have the next */
    request(&w, text[1], 20 * TILE_TOKENS);
    gate_wait(p, GATE_WRITE);
    idle(&w, 50);
    assert_in_range(stats_of(&w).waiting_pages, 0, 1);
    gate_set(p, GATE_WRITE, false);
    tiers_flush(w.tiers, 20); /* it ends when all is written */
    assert_int_equal(count_of_place(p, &p->writes), FEW_PAGES + 20);
    unmake(&w);
    place_free(p);
}

/* A node is gone, and its number another one's, when it turns out that it was not written. */
static void test_failures_of_nodes_that_are_gone(void **state) {
    (void)state;
    struct place *p = place_new();
    struct world w = make(p, NULL, 0, 8 << 20);
    gate_set(p, GATE_WRITE, true);
    request(&w, text[0], TILE_TOKENS);
    gate_wait(p, GATE_WRITE);
    tiers_collect(w.tiers, clock_seconds());
    tree_limit(w.tree, 0, 1); /* all is evicted */
    assert_int_equal(tree_stats(w.tree).tokens, 0);
    tree_limit(w.tree, 0, 0);
    place_fail(p, 1);
    request(&w, text[1], TILE_TOKENS);
    gate_set(p, GATE_WRITE, false);
    expect(&w, p, &p->tries, 2);
    idle(&w, 1200); /* nothing that is there was refused */
    assert_int_equal(count_of_place(p, &p->tries), 2);
    assert_int_equal(count_of_place(p, &p->writes), 1);
    assert_int_equal(stats_of(&w).unwritten_pages, 1);
    unmake(&w);
    place_free(p);
}

/* A running request keeps its pages when all is forgotten. They are stored again when it ends. */
static void test_pages_that_were_kept_are_stored_after_a_forget(void **state) {
    (void)state;
    struct place *p = place_new();
    struct world w = make(p, NULL, 0, 8 << 20);
    request(&w, text[0], FEW);
    expect(&w, p, &p->writes, FEW_PAGES);
    struct running r = begin(&w, text[0], FEW + 1);
    tiers_forget(w.tiers, NULL, 0);
    tree_forget(w.tree, NULL, 0);
    assert_int_equal(tree_look(w.tree, "", 0, text[0], FEW).length, FEW - 1);
    end(&w, &r);
    expect(&w, p, &p->writes, 2 * FEW_PAGES);
    unmake(&w);
    w = make(p, NULL, 0, 8 << 20);
    assert_int_equal(load(&w, text[0], FEW), FEW_PAGES * TILE_TOKENS);
    unmake(&w);
    place_free(p);
}

/* A tier that cannot forget is told again. Until it has, nothing is read from it or written to it
 * below that root. */
static void test_a_tier_that_cannot_forget_is_told_again(void **state) {
    (void)state;
    struct place *p = place_new();
    struct world w = make(p, NULL, 0, 8 << 20);
    request(&w, text[0], FEW);
    expect(&w, p, &p->writes, FEW_PAGES);
    p->forget_fails = 1;
    const double start = clock_seconds();
    tiers_forget(w.tiers, "", 0);
    tree_forget(w.tree, "", 0);
    expect(&w, p, &p->forgets, 1);
    assert_int_equal(load(&w, text[0], FEW), 0);
    request(&w, text[1], FEW);
    idle(&w, 50);
    const bool some = tiers_are_forgetting(w.tiers);
    const uint32_t tries = count_of_place(p, &p->tries);
    assert_true((some && tries == FEW_PAGES) || clock_seconds() > start + 1);
    expect(&w, p, &p->forgets, 2);
    assert_false(tiers_are_forgetting(w.tiers));
    expect(&w, p, &p->writes, 2 * FEW_PAGES);
    tree_forget(w.tree, "", 0);
    assert_int_equal(load(&w, text[0], FEW), 0);
    assert_int_equal(load(&w, text[1], FEW), FEW_PAGES * TILE_TOKENS);
    unmake(&w);
    place_free(p);
}

/* ---- long paths ------------------------------------------------------------------------------ */

static uint64_t root_steps; /* nodes that node_root passed */

uint32_t __real_node_root(const struct prefix_tree *t, uint32_t x);
uint32_t __wrap_node_root(const struct prefix_tree *t, uint32_t x);
uint32_t __wrap_node_root(const struct prefix_tree *t, uint32_t x) {
    root_steps += 1 + t->nodes[x].number;
    return __real_node_root(t, x);
}

/* The root of a path is looked for once, not for each page. */
static void test_the_root_of_a_long_path(void **state) {
    (void)state;
    struct place *p = place_new();
    struct world w = make(p, NULL, 0, 32 << 20);
    root_steps = 0;
    request(&w, text[0], LONG);
    expect(&w, p, &p->writes, LONG / TILE_TOKENS);
    assert_in_range(root_steps, 1, 2 * LONG / TILE_TOKENS);
    unmake(&w);
    w = make(p, NULL, 0, 32 << 20);
    assert_int_equal(load(&w, text[0], LONG), LONG / TILE_TOKENS * TILE_TOKENS);
    unmake(&w);
    place_free(p);
}

/* ---- windows --------------------------------------------------------------------------------- */

static kvasir_status host_run(void *user, const struct step_part *parts, uint32_t n,
                              kvasir_error *e) {
    (void)user;
    (void)e;
    for (uint32_t i = 0; i < n; i++)
        seq_commit(parts[i].seq, parts[i].tokens, parts[i].rows);
    return KVASIR_OK;
}

static bool host_next(void *user, struct task *t, uint32_t row) {
    (void)user;
    (void)row;
    t->tokens[t->n_tokens++] = 0;
    return false;
}

static void host_ended(void *user, struct task *t, enum task_end how, const kvasir_error *e) {
    (void)user;
    (void)t;
    (void)e;
    assert_int_equal(how, END_COMPLETE);
}

/* Runs a prompt of n tokens with the scheduler. */
static void schedule(struct world *w, uint32_t n) {
    struct sched *sched;
    struct task task = {.salt = "", .n_prompt = n, .cap = n + 1};
    const struct sched_options o = {.tiers = w->tiers, .max_running = 4, .step_rows = STEP};
    const struct sched_host host = {.run = host_run, .next = host_next, .ended = host_ended};
    int32_t tokens[4 * STEP];
    uint32_t rows = 1;
    assert_true(n < sizeof tokens / sizeof *tokens);
    memcpy(tokens, text[0], n * sizeof *tokens);
    task.tokens = tokens;
    need(sched_create(w->cache, w->tree, &o, &host, &sched, &err));
    sched_submit(sched, &task);
    while (rows)
        need(sched_step(sched, &rows, &err));
    sched_destroy(sched);
}

/* A prompt is found up to its last whole page, also if a window is shorter than a step: page 0 of
 * 128 tokens is not seen any more at their end. */
static void test_windows_shorter_than_a_step(void **state) {
    (void)state;
    static const uint32_t WINDOWS[] = {1, 16, 48, 64, 65, 100, 128, 200, 256, 300},
                          PAGES[] = {1, 2, 4, 8}, MORE[] = {1, 2, 30, 47, 48, 49, 62, 63, 64};
    enum { N_WINDOWS = sizeof WINDOWS / 4, N_PAGES = sizeof PAGES / 4, N_MORE = sizeof MORE / 4 };
    for (uint32_t i = 0; i < N_WINDOWS * N_PAGES * N_MORE; i++) {
        const uint32_t window = WINDOWS[i % N_WINDOWS],
                       pages = PAGES[i / N_WINDOWS % N_PAGES] * TILE_TOKENS,
                       n = pages + MORE[i / N_WINDOWS / N_PAGES];
        struct place *p = place_new();
        struct world w = make(p, NULL, window, 8 << 20);
        schedule(&w, n);
        tiers_flush(w.tiers, 20);
        unmake(&w);
        w = make(p, NULL, window, 8 << 20);
        const uint32_t found = load(&w, text[0], n);
        if (found != pages)
            fail_msg("window %u: of %u tokens %u are found", window, n, found);
        unmake(&w);
        place_free(p);
    }
}

/* ---- what the ladder has re-encoded ---------------------------------------------------------- */

static struct world make_ladder(struct place *p) {
    const struct tiers_options t = {.tiers = {place_open(p, true)},
                                    .n = 1,
                                    .context = {{5, 6}},
                                    .queue_bytes = 8 << 20,
                                    .late_seconds = 20};
    struct kv_cache_options o = {.n_rungs = 1};
    need(kv_format_parse_pair("r8,4", &o.k, &o.v, &err));
    need(kv_format_parse_pair("t4", &o.rungs[0].k, &o.rungs[0].v, &err));
    return make_of(&t, 0, 8, o);
}

/* Neither such pages nor what was computed after them; what a tier has of them stays valid. The
 * first page of a prompt stays as it was made, so tiers get that. */
static void test_no_tier_gets_what_follows_re_encoded_pages(void **state) {
    (void)state;
    struct place *p = place_new();
    struct world w = make_ladder(p);
    struct running r = begin(&w, text[0], 2 * TILE_TOKENS);
    seq_destroy(r.seq); /* it is not offered */
    tree_close(w.tree, &r.at);
    (void)!kv_cache_make_room(w.cache, UINT64_MAX);
    assert_int_equal(kv_cache_descended(w.cache, 0), 1);
    request(&w, text[0], FEW);
    idle(&w, 50);
    assert_int_equal(count_of_place(p, &p->writes), 1);
    request(&w, text[1], FEW);
    expect(&w, p, &p->writes, 1 + FEW_PAGES);
    (void)!kv_cache_make_room(w.cache, UINT64_MAX);
    assert_int_equal(kv_cache_descended(w.cache, 0), 2 * (FEW_PAGES - 1));
    request(&w, text[1], 2 * FEW);
    idle(&w, 50);
    assert_int_equal(count_of_place(p, &p->writes), 1 + FEW_PAGES);
    unmake(&w);
    w = make_ladder(p);
    assert_int_equal(load(&w, text[0], FEW), TILE_TOKENS);
    assert_int_equal(load(&w, text[1], FEW), FEW_PAGES * TILE_TOKENS);
    unmake(&w);
    place_free(p);
}

int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_tier_that_failed_gets_all_later),
        cmocka_unit_test(test_a_tier_that_is_down_is_tried_rarely),
        cmocka_unit_test(test_what_one_tier_has_comes_to_the_other),
        cmocka_unit_test(test_what_was_given_up_is_offered_to_that_tier),
        cmocka_unit_test(test_pages_that_are_larger_than_the_queue),
        cmocka_unit_test(test_failures_of_nodes_that_are_gone),
        cmocka_unit_test(test_pages_that_were_kept_are_stored_after_a_forget),
        cmocka_unit_test(test_a_tier_that_cannot_forget_is_told_again),
        cmocka_unit_test(test_the_root_of_a_long_path),
        cmocka_unit_test(test_windows_shorter_than_a_step),
        cmocka_unit_test(test_no_tier_gets_what_follows_re_encoded_pages),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
