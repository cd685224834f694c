/* SPDX-License-Identifier: Apache-2.0 */
/* What tiers lose after they took it is offered to them again (TIERS-6 of tiers.h), and nothing
 * else is. On a tree without a model. */
#include "tiers_world.h"

#define SOON 0.05 /* s between two rounds */

static struct world make_checking(struct place *p, double seconds) {
    const struct tiers_options t = {.tiers = {place_open(p, true)},
                                    .n = 1,
                                    .context = {{5, 6}},
                                    .queue_bytes = 8 << 20,
                                    .late_seconds = 20,
                                    .check_seconds = seconds};
    return make_on(&t, 48);
}

/* A request as an engine counts it: it uses what it finds. */
static void use(struct world *w, const int32_t *tokens, uint32_t n) {
    struct running r;
    struct tree_hit hit;
    need(seq_create(w->cache, &r.seq, &err));
    need(tree_resume(w->tree, "", 0, tokens, n, r.seq, &r.at, &hit, &err));
    tree_count(w->tree, &r.at, tokens, n);
    need(seq_prepare(r.seq, n - hit.length, &err));
    seq_commit(r.seq, tokens + hit.length, n - hit.length);
    tree_store(w->tree, &r.at, r.seq, true);
    end(w, &r);
}

enum { RECORDS = 2 * FEW_PAGES - 3 }; /* the window group has one page */

/* A Redis that starts again with nothing, while a prefix is answered from memory. */
static void test_what_a_tier_lost_comes_back(void **state) {
    (void)state;
    struct place *p = place_new();
    struct world w = make_checking(p, SOON);
    use(&w, text[0], FEW);
    use(&w, text[1], FEW);
    expect(&w, p, &p->writes, 2 * RECORDS);
    idle(&w, 300); /* rounds that find nothing write nothing */
    assert_int_equal(count_of_place(p, &p->tries), 2 * RECORDS);
    assert_true(count_of_place(p, &p->finds) > 0);
    const uint32_t finds = count_of_place(p, &p->finds);
    idle(&w, 300); /* what is not used is not asked for */
    assert_in_range(count_of_place(p, &p->finds), finds, finds + 3);
    faulty_store_clear(p->store);
    use(&w, text[0], FEW);
    expect(&w, p, &p->writes, 3 * RECORDS);
    unmake(&w);
    w = make_checking(p, SOON);
    assert_int_equal(load(&w, text[0], FEW), FEW_PAGES * TILE_TOKENS);
    assert_int_equal(load(&w, text[1], FEW), 0);
    unmake(&w);
    place_free(p);
}

/* At the end all is asked for, used or not, and what is there is not written again. */
static void test_a_flush_writes_what_a_tier_lost(void **state) {
    (void)state;
    enum { MANY = 500 }; /* some questions */
    struct place *p = place_new();
    for (int lost = 0; lost < 2; lost++) {
        struct world w = make_checking(p, 1000);
        use(&w, text[0], MANY * TILE_TOKENS);
        expect(&w, p, &p->writes, (1 + (uint32_t)lost) * (MANY + 1));
        if (lost)
            faulty_store_clear(p->store);
        const double begin = clock_seconds();
        tiers_flush(w.tiers, 20);
        assert_true(clock_seconds() < begin + 10);
        assert_int_equal(count_of_place(p, &p->tries), (1 + 2 * (uint32_t)lost) * (MANY + 1));
        unmake(&w);
        w = make_checking(p, 1000);
        assert_int_equal(load(&w, text[0], MANY * TILE_TOKENS + 1), MANY * TILE_TOKENS);
        unmake(&w);
        faulty_store_clear(p->store);
    }
    place_free(p);
}

/* A tier that is down says of nothing that it is there: that means nothing. */
static void test_a_tier_that_is_down_has_lost_nothing(void **state) {
    (void)state;
    struct place *p = place_new();
    struct world w = make_checking(p, SOON);
    use(&w, text[0], FEW);
    expect(&w, p, &p->writes, RECORDS);
    pthread_mutex_lock(&p->mutex);
    p->down = true;
    pthread_mutex_unlock(&p->mutex);
    use(&w, text[0], FEW); /* it is asked for again, also if a round has just ended */
    idle(&w, 300);
    assert_int_equal(count_of_place(p, &p->tries), RECORDS);
    faulty_store_clear(p->store); /* and then it is back, with nothing */
    pthread_mutex_lock(&p->mutex);
    p->down = false;
    pthread_mutex_unlock(&p->mutex);
    expect(&w, p, &p->writes, 2 * RECORDS);
    unmake(&w);
    place_free(p);
}

/* A tier that loses all that it gets is not given the same pages without end. */
static void test_a_tier_that_keeps_nothing(void **state) {
    (void)state;
    struct place *p = place_new();
    struct world w = make_checking(p, 0.02);
    const double begin = clock_seconds();
    while (clock_seconds() < begin + 1) {
        use(&w, text[0], FEW);
        idle(&w, 5);
        faulty_store_clear(p->store);
    }
    assert_in_range(count_of_place(p, &p->writes), 3 * RECORDS, 9 * RECORDS);
    unmake(&w);
    place_free(p);
}

/* A tier without room for all of the tree gets back what requests share: the rest would push out
 * what is newer. */
static void test_a_small_tier_gets_back_what_is_shared(void **state) {
    (void)state;
    struct place *p = place_new();
    p->limit_bytes = 1 << 10;
    struct world w = make_checking(p, 1000);
    for (int i = 0; i < 3; i++)
        use(&w, text[0], FEW);
    use(&w, text[1], FEW);
    expect(&w, p, &p->writes, 2 * RECORDS);
    faulty_store_clear(p->store);
    tiers_flush(w.tiers, 20);
    assert_int_equal(count_of_place(p, &p->writes), 3 * RECORDS);
    unmake(&w);
    w = make_checking(p, 1000);
    assert_int_equal(load(&w, text[0], FEW), FEW_PAGES * TILE_TOKENS);
    assert_int_equal(load(&w, text[1], FEW), 0);
    unmake(&w);
    place_free(p);
}

int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_a_tier_lost_comes_back),
        cmocka_unit_test(test_a_flush_writes_what_a_tier_lost),
        cmocka_unit_test(test_a_tier_that_is_down_has_lost_nothing),
        cmocka_unit_test(test_a_tier_that_keeps_nothing),
        cmocka_unit_test(test_a_small_tier_gets_back_what_is_shared),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
