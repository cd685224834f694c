/* SPDX-License-Identifier: Apache-2.0 */
/* What loads wait for, what they teach, and when a tier is asked at all. Without a model. */
#include "tiers_world.h"

/* A world over a place that has the pages of a prompt of FEW tokens. */
static struct world stored(struct place *p, bool instant, double late_seconds) {
    struct world w = make(p, NULL, 0, 8 << 20);
    request(&w, text[0], FEW);
    expect(&w, p, &p->writes, FEW_PAGES);
    unmake(&w);
    const struct tiers_options t = {.tiers = {place_open(p, instant)},
                                    .n = 1,
                                    .context = {{5, 6}},
                                    .late_seconds = late_seconds};
    return make_on(&t, 0);
}

/* What is damaged is removed from its tier after the load has its results: a tier that takes its
 * time over that keeps nobody waiting. */
static void test_loads_do_not_wait_for_drops(void **state) {
    (void)state;
    struct place *p = place_new();
    struct world w = stored(p, true, 20);
    p->read_from = 2;
    p->damages = true;
    gate_set(p, GATE_DROP, true);
    assert_int_equal(load(&w, text[0], FEW), 2 * TILE_TOKENS);
    assert_int_equal(count_of_place(p, &p->drops), 0);
    gate_set(p, GATE_DROP, false);
    expect(&w, p, &p->drops, FEW_PAGES - 2);
    unmake(&w);
    place_free(p);
}

static struct tier_stats store_of(const struct world *w) {
    struct tier_stats s;
    assert_non_null(tiers_get_tier(w->tiers, 0, &s));
    return s;
}

static void finish_readers(struct world *w, struct place *p) {
    gate_set(p, GATE_READ, false);
    idle(w, 50);
}

/* What has come of a batch when its load is late is used. */
static void test_late_loads_have_what_has_come(void **state) {
    (void)state;
    struct place *p = place_new();
    struct world w = stored(p, true, 0.01); /* 0.4 s: no prompt was computed yet */
    p->read_from = 2;
    gate_set(p, GATE_READ, true);
    assert_int_equal(load(&w, text[0], FEW), 2 * TILE_TOKENS);
    assert_int_equal(stats_of(&w).loads_late, 1);
    assert_int_equal(stats_of(&w).loaded_pages, 2);
    assert_int_equal(store_of(&w).hit_pages, 2);
    assert_int_equal(store_of(&w).loads, 1);
    assert_int_equal(store_of(&w).loads_late, 1);
    finish_readers(&w, p);
    unmake(&w);
    place_free(p);
}

/* A tier of which nothing has come in time is slow, so it is not asked for what is computed sooner;
 * it is trusted again bit by bit. */
static void test_late_loads_teach(void **state) {
    (void)state;
    for (int pages = 0; pages < 2; pages++) { /* that came before */
        struct place *p = place_new();
        struct world w = stored(p, true, 0.01);
        p->read_from = (uint32_t)pages;
        gate_set(p, GATE_READ, true);
        assert_int_equal(load(&w, text[0], FEW), (uint32_t)pages * TILE_TOKENS);
        finish_readers(&w, p);
        tiers_note_step(w.tiers, 64, 64 * 1e-5);
        for (int i = 0; i < 100; i++) {
            assert_null(tiers_load(w.tiers, "", 0, text[0], FEW, 32 << 20));
            assert_int_equal(stats_of(&w).loads_slow, i + 1);
            assert_int_equal(store_of(&w).loads_slow, i + 1);
        }
        for (int i = 0; i < 1000 && stats_of(&w).loads == 1; i++)
            load(&w, text[0], FEW);
        assert_int_equal(stats_of(&w).loads, 2);
        unmake(&w);
        place_free(p);
    }
}

/* A tier is asked for what the tree lacks only. */
static void test_only_what_is_lacking_is_asked_for(void **state) {
    (void)state;
    struct place *p = place_new();
    struct world w = stored(p, false, 20);
    const uint32_t keys = count_of_place(p, &p->found_keys);
    assert_int_equal(load(&w, text[0], 2 * TILE_TOKENS + 1), 2 * TILE_TOKENS);
    assert_int_equal(count_of_place(p, &p->found_keys), keys + 2);
    assert_int_equal(load(&w, text[0], FEW), FEW_PAGES * TILE_TOKENS);
    assert_int_equal(count_of_place(p, &p->found_keys), keys + FEW_PAGES);
    unmake(&w);
    place_free(p);
}

/* A short prompt waits for an answer about as long as it takes to compute, and the next one does
 * not ask; but it is asked again after a while. */
static void test_slow_answers(void **state) {
    (void)state;
    struct place *p = place_new();
    struct world w = stored(p, false, 2); /* an answer is awaited for 4 s, or for 0.2 s */
    tiers_note_step(w.tiers, 64, 64 * 1e-5);
    gate_set(p, GATE_FIND, true);
    const double begin = clock_seconds();
    assert_int_equal(load(&w, text[0], FEW), 0);
    assert_in_range((uint64_t)((clock_seconds() - begin) * 1000), 150, 2000);
    gate_set(p, GATE_FIND, false);
    idle(&w, 50);
    const uint32_t finds = count_of_place(p, &p->finds);
    for (int i = 0; i < 50; i++)
        assert_null(tiers_load(w.tiers, "", 0, text[0], FEW, 32 << 20));
    assert_int_equal(count_of_place(p, &p->finds), finds);
    assert_int_equal(stats_of(&w).loads_slow, 50);
    assert_int_equal(store_of(&w).loads_slow, 50);
    assert_int_equal(store_of(&w).loads_late, 1);
    for (int i = 0; i < 1000 && count_of_place(p, &p->finds) == finds; i++)
        load(&w, text[0], FEW);
    assert_int_equal(count_of_place(p, &p->finds), finds + 1);
    tiers_note_step(w.tiers, 64, 64); /* a slow model asks in any case */
    load(&w, text[0], FEW);
    assert_int_equal(tree_look(w.tree, "", 0, text[0], FEW).length, FEW_PAGES * TILE_TOKENS);
    unmake(&w);
    place_free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_late_loads_have_what_has_come),
                                       cmocka_unit_test(test_late_loads_teach),
                                       cmocka_unit_test(test_only_what_is_lacking_is_asked_for),
                                       cmocka_unit_test(test_slow_answers),
                                       cmocka_unit_test(test_loads_do_not_wait_for_drops)};
    return cmocka_run_group_tests(tests, set_up, NULL);
}
