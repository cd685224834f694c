/* SPDX-License-Identifier: Apache-2.0 */
/* Orders to forget: each tier is told each salt, many at once and only what was asked for; and what
 * becomes of orders when the process ends. Without a model. */
#include "tiers_world.h"

static char said[512];
static void complain(void *user, const char *line) {
    (void)user;
    snprintf(said, sizeof said, "%s", line);
}

/* Over a place that has the pages of a prompt without a salt. */
static struct world stored(struct place *p) {
    const struct tiers_options t = {.tiers = {place_open(p, true)},
                                    .n = 1,
                                    .context = {{5, 6}},
                                    .queue_bytes = 8 << 20,
                                    .late_seconds = 20,
                                    .complain = complain};
    struct world w = make_on(&t, 0);
    said[0] = 0;
    request(&w, text[0], FEW);
    expect(&w, p, &p->writes, FEW_PAGES);
    return w;
}

static void forget_salts(struct world *w, int n) {
    for (int i = 0; i < n; i++) {
        char salt[16];
        snprintf(salt, sizeof salt, "%d", i);
        tiers_forget(w->tiers, salt, strlen(salt));
    }
}

static void wait_until_forgotten(struct world *w) {
    for (int i = 0; i < 20000 && tiers_are_forgetting(w->tiers); i++)
        idle(w, 1);
    assert_false(tiers_are_forgetting(w->tiers));
}

/* However many salts are to be forgotten, others are not, and a tier is not told one by one. */
static void test_many_salts(void **state) {
    (void)state;
    enum { MANY = 1000 };
    struct place *p = place_new();
    struct world w = stored(p);
    gate_set(p, GATE_FORGET, true);
    forget_salts(&w, MANY);
    gate_set(p, GATE_FORGET, false);
    wait_until_forgotten(&w);
    assert_int_equal(count_of_place(p, &p->forgotten_roots), MANY);
    assert_int_equal(count_of_place(p, &p->forgotten_alls), 0);
    assert_in_range(count_of_place(p, &p->forgets), 1, 2);
    tree_forget(w.tree, NULL, 0);
    assert_int_equal(load(&w, text[0], FEW), FEW_PAGES * TILE_TOKENS);
    unmake(&w);
    place_free(p);
}

/* A salt that is to be forgotten again and again is listed once, and once more while the tier is
 * being told; also if the tier fails. */
static void test_the_same_salts_again(void **state) {
    (void)state;
    enum { SALTS = 3, TIMES = 100 };
    struct place *p = place_new();
    struct world w = stored(p);
    for (int fails = 0; fails < 2; fails++) {
        const uint32_t roots = count_of_place(p, &p->forgotten_roots);
        const uint32_t calls = count_of_place(p, &p->forgets);
        p->forget_fails = (uint32_t)fails;
        gate_set(p, GATE_FORGET, true);
        forget_salts(&w, 1);
        gate_wait(p, GATE_FORGET);
        for (int i = 0; i < TIMES; i++)
            forget_salts(&w, SALTS);
        gate_set(p, GATE_FORGET, false);
        wait_until_forgotten(&w);
        assert_int_equal(count_of_place(p, &p->forgotten_roots) - roots, 1 + SALTS);
        assert_int_equal(count_of_place(p, &p->forgets) - calls, 2);
    }
    assert_int_equal(count_of_place(p, &p->forgotten_alls), 0);
    tree_forget(w.tree, NULL, 0);
    assert_int_equal(load(&w, text[0], FEW), FEW_PAGES * TILE_TOKENS);
    unmake(&w);
    assert_string_equal(said, "");
    place_free(p);
}

/* An order that is due is carried out before the end. One that failed is left, and that is said. */
static void test_orders_at_the_end(void **state) {
    (void)state;
    for (int fails = 0; fails < 2; fails++) {
        struct place *p = place_new();
        struct world w = stored(p);
        p->forget_fails = fails ? 100 : 0;
        const double begin = clock_seconds();
        tiers_forget(w.tiers, "", 0);
        if (fails)
            expect(&w, p, &p->forgets, 1);
        tree_forget(w.tree, "", 0);
        unmake(&w);
        assert_true(clock_seconds() - begin < 5);
        assert_int_equal(strstr(said, "the quick cache has not forgotten") != NULL, fails);
        w = make(p, NULL, 0, 8 << 20);
        assert_int_equal(load(&w, text[0], FEW), fails ? FEW_PAGES * TILE_TOKENS : 0);
        unmake(&w);
        place_free(p);
    }
}

/* A tier that takes its time to forget is waited for as long as tiers_flush is told to, then it is
 * stopped. */
static void test_the_end_stops_an_order(void **state) {
    (void)state;
    struct place *p = place_new();
    struct world w = stored(p);
    gate_set(p, GATE_FORGET, true);
    tiers_forget(w.tiers, "", 0);
    gate_wait(p, GATE_FORGET);
    tree_forget(w.tree, "", 0);
    const double begin = clock_seconds();
    tiers_flush(w.tiers, 0.2);
    assert_in_range((uint64_t)((clock_seconds() - begin) * 1000), 200, 10000);
    unmake(&w);
    assert_true(clock_seconds() - begin < 10);
    assert_non_null(strstr(said, "has not forgotten"));
    place_free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_salts), cmocka_unit_test(test_the_same_salts_again),
        cmocka_unit_test(test_orders_at_the_end), cmocka_unit_test(test_the_end_stops_an_order)};
    return cmocka_run_group_tests(tests, set_up, NULL);
}
