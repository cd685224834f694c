/* SPDX-License-Identifier: Apache-2.0 */
/* What requests may ask of the tree (TREE-8 of tree.h): lives that end, prefixes that are evicted
 * last; and why a prompt is not found. On the null backend; random programs: tests/sim/tree.c. */
#include "tree_world.h"

enum { ALL = UINT32_MAX };

static void pin(struct world *w, const char *salt, const int32_t *tokens, uint32_t n) {
    struct running r;
    (void)begin(w, salt, tokens, n, 0, &r);
    tree_favour(w->tree, &r.at);
    finish(w, &r);
}

/* ---- lives ----------------------------------------------------------------------------------- */

static void test_what_has_expired_is_not_found(void **state) {
    (void)state;
    struct world w = make(0, 0, 64 << 20);
    assert_false(tree_expire(w.tree, 100, ALL));
    assert_true(tree_next_expiry(w.tree) == TREE_FOREVER);
    request(&w, prompt(1, LONG, 0), 300, 60);
    assert_true(tree_next_expiry(w.tree) == 160);
    assert_int_equal(look(&w, prompt(1, LONG, 0), 300), 299);
    (void)tree_expire(w.tree, 159, ALL);
    assert_int_equal(look(&w, prompt(1, LONG, 0), 300), 299);
    assert_true(tree_expire(w.tree, 160, 1)); /* it is there, but is not found */
    assert_true(tree_stats(w.tree).tokens > 0);
    assert_int_equal(look(&w, prompt(1, LONG, 0), 300), 0);
    (void)tree_expire(w.tree, 100, 0); /* the clock was put back */
    assert_int_equal(look(&w, prompt(1, LONG, 0), 300), 0);
    assert_false(tree_expire(w.tree, 160, ALL));
    assert_int_equal(tree_stats(w.tree).nodes, 0);
    assert_int_equal(tree_stats(w.tree).expired_tokens, 300);
    (void)tree_expire(w.tree, 160, ALL); /* the first look began before they were removed */
    assert_true(tree_next_expiry(w.tree) == TREE_FOREVER);
    unmake(&w);
}

static void test_the_longer_life_counts(void **state) {
    (void)state;
    struct world w = make(0, 0, 64 << 20);
    (void)tree_expire(w.tree, 100, ALL);
    request(&w, prompt(1, LONG, 0), 300, 60);
    request(&w, prompt(1, 150, 2), 300, 0); /* shares 150 tokens */
    request(&w, prompt(3, LONG, 0), 300, 60);
    request(&w, prompt(3, LONG, 0), 300, 90); /* the same */
    request(&w, prompt(3, LONG, 0), 300, 10); /* shortens nothing */
    while (tree_expire(w.tree, 160, 2))       /* step by step */
        tree_check(w.tree);
    tree_check(w.tree);
    (void)tree_expire(w.tree, 160, ALL);
    assert_int_equal(look(&w, prompt(1, 150, 2), 300), 299);
    assert_int_equal(look(&w, prompt(1, LONG, 0), 300), 150);
    assert_int_equal(look(&w, prompt(3, LONG, 0), 300), 299);
    assert_int_equal(tree_stats(w.tree).tokens, 600);
    assert_int_equal(tree_stats(w.tree).expired_tokens, 150);
    assert_true(tree_next_expiry(w.tree) == 190);
    (void)tree_expire(w.tree, 190, ALL);
    assert_int_equal(tree_stats(w.tree).tokens, 300);
    unmake(&w);
}

/* What a running request uses stays until it ends; what it stores then lives on. */
static void test_lives_end_while_they_are_used(void **state) {
    (void)state;
    struct world w = make(0, 0, 64 << 20);
    (void)tree_expire(w.tree, 100, ALL);
    struct running a;
    (void)begin(&w, "", prompt(1, LONG, 0), 300, 60, &a);
    struct running b;
    (void)begin(&w, "", prompt(2, LONG, 0), 300, 60, &b);
    assert_false(tree_expire(w.tree, 200, ALL));
    tree_check(w.tree);
    assert_int_equal(look(&w, prompt(1, LONG, 0), 300), 0);
    assert_true(tree_next_expiry(w.tree) <= 200);
    tree_store_until(w.tree, &a.at, a.seq, true, tree_expiry(w.tree, 60));
    assert_int_equal(look(&w, prompt(1, LONG, 0), 300), 299);
    finish(&w, &a);
    finish(&w, &b);
    (void)tree_expire(w.tree, 200, ALL);
    assert_int_equal(tree_stats(w.tree).tokens, 300);
    request(&w, prompt(1, LONG, 0), 200, 100); /* a part of it: at 260 the rest goes */
    (void)tree_expire(w.tree, 260, ALL);
    assert_int_equal(tree_stats(w.tree).tokens, 200);
    unmake(&w);
}

/* As if tiers had taken all pages that are not offered yet. Returns how many there are. */
static uint32_t offer_all(const struct world *w) {
    uint32_t n = 0;
    for (uint32_t x = 0; x < w->tree->n_made; x++) {
        struct node *node = &w->tree->nodes[x];
        if (node->to != TILE_TOKENS || node->offered)
            continue;
        node->offered = true;
        node->offered_until = node->expires;
        n++;
    }
    return n;
}

/* What is offered is the beginning of a path: a page is offered again with all after it. */
static void test_longer_lives_are_offered(void **state) {
    (void)state;
    struct world w = make(0, 0, 64 << 20);
    (void)tree_expire(w.tree, 100, ALL);
    request(&w, prompt(1, LONG, 0), 128, 100);
    assert_int_equal(offer_all(&w), 2);
    (void)tree_expire(w.tree, 120, ALL);
    request(&w, prompt(1, LONG, 0), 256, 100); /* not twice the time that is left */
    assert_int_equal(offer_all(&w), 2);
    (void)tree_expire(w.tree, 155, ALL);
    request(&w, prompt(1, LONG, 0), 320, 100); /* of the first pages, not of those after them */
    assert_int_equal(offer_all(&w), 5);
    request(&w, prompt(1, LONG, 0), 192, 0);
    assert_int_equal(offer_all(&w), 3);
    request(&w, prompt(1, LONG, 0), 192, 0);
    assert_int_equal(offer_all(&w), 0);
    unmake(&w);
}

/* ---- favour ---------------------------------------------------------------------------------- */

enum { ROOM = 2 << 20 };

/* Other prompts until some have been evicted many times over. */
static void fill(struct world *w, int32_t first) {
    for (int32_t i = 0; i < 60; i++)
        request(w, prompt(first + i, LONG, 0), 900, 0);
}

static void test_pinned_prefixes_go_last(void **state) {
    (void)state;
    struct world w = make(0, 0, ROOM);
    request(&w, prompt(1, LONG, 0), 500, 0);
    pin(&w, "", prompt(2, LONG, 0), 500);
    const uint64_t bytes = tree_stats(w.tree).pinned_bytes;
    assert_true(bytes > 500 * 2 * 64 && bytes < ROOM / 2);
    fill(&w, 10);
    assert_int_equal(look(&w, prompt(1, LONG, 0), 500), 0);
    assert_int_equal(look(&w, prompt(2, LONG, 0), 500), 499);
    request(&w, prompt(2, 300, 3), 500, 0); /* shares a part: its own end is not pinned */
    assert_true(tree_stats(w.tree).pinned_bytes == bytes);
    fill(&w, 100);
    assert_int_equal(look(&w, prompt(2, 300, 3), 500), 300);
    assert_int_equal(look(&w, prompt(2, LONG, 0), 500), 499);
    tree_limit(w.tree, 1, 0);
    assert_int_equal(look(&w, prompt(2, LONG, 0), 500), 499);
    tree_limit(w.tree, 0, 0);
    assert_true(tree_make_room(w.tree, kv_pool_stats(kv_cache_pool(w.cache)).budget_bytes));
    assert_int_equal(tree_stats(w.tree).nodes, 0); /* when nothing else is left, they go, too */
    assert_int_equal(tree_stats(w.tree).pinned_bytes, 0);
    unmake(&w);
}

static void test_pins_are_bounded(void **state) {
    (void)state;
    struct world w = make(0, 0, ROOM);
    for (int32_t i = 1; i < 12; i++) {
        pin(&w, "", prompt(i, LONG, 0), 900);
        assert_true(tree_stats(w.tree).pinned_bytes <= ROOM / TREE_PINNED_SHARE);
    }
    fill(&w, 100);
    assert_int_equal(look(&w, prompt(1, LONG, 0), 900), 899);
    assert_int_equal(look(&w, prompt(11, LONG, 0), 900), 0);
    const uint64_t full = tree_stats(w.tree).pinned_bytes;
    assert_true(full > ROOM / TREE_PINNED_SHARE - ROOM / 16); /* the last in part, from the root */
    pin(&w, "", prompt(1, LONG, 0), 900);                     /* again: counted once */
    assert_true(tree_stats(w.tree).pinned_bytes == full);
    unmake(&w);
}

static void test_forgetting_unpins(void **state) {
    (void)state;
    struct world w = make(0, 0, ROOM);
    pin(&w, "a", prompt(1, LONG, 0), 500);
    pin(&w, "b", prompt(1, LONG, 0), 500);
    const uint64_t both = tree_stats(w.tree).pinned_bytes;
    struct running r;
    (void)begin(&w, "b", prompt(1, LONG, 0), 500, 0, &r);
    tree_forget(w.tree, "a", 1);
    assert_true(tree_stats(w.tree).pinned_bytes == both / 2);
    tree_forget(w.tree, "b", 1); /* a cursor is there: it stays, and is not pinned any more */
    assert_int_equal(tree_stats(w.tree).pinned_bytes, 0);
    assert_int_equal(tree_stats(w.tree).tokens, 500);
    finish(&w, &r);
    fill(&w, 10);
    assert_int_equal(tree_look(w.tree, "b", 1, prompt(1, LONG, 0), 500).length, 0);
    unmake(&w);
}

static void test_holds_end(void **state) {
    (void)state;
    struct world w = make(0, 0, ROOM);
    tree_hold(w.tree, "", 0, prompt(1, LONG, 0), 500); /* nothing is stored yet */
    assert_int_equal(tree_stats(w.tree).pinned_bytes, 0);
    request(&w, prompt(1, LONG, 0), 500, 0);
    tree_hold(w.tree, "", 0, prompt(1, LONG, 0), 500);
    const uint64_t bytes = tree_stats(w.tree).pinned_bytes;
    assert_true(bytes > 500 * 2 * 64 && bytes < ROOM / 2);
    tree_hold(w.tree, "", 0, prompt(1, LONG, 0), 500); /* again: counted once */
    tree_hold(w.tree, "x", 1, prompt(1, LONG, 0), 500);
    assert_true(tree_stats(w.tree).pinned_bytes == bytes);
    fill(&w, 10);
    assert_int_equal(look(&w, prompt(1, LONG, 0), 500), 499);
    tree_release(w.tree, "x", 1, prompt(1, LONG, 0), 500, 0);
    tree_release(w.tree, "", 0, prompt(1, LONG, 0), 500, 500);
    assert_true(tree_stats(w.tree).pinned_bytes == bytes);
    tree_release(w.tree, "", 0, prompt(1, LONG, 0), 500, 200); /* the page of 192 to 256 stays */
    tree_check(w.tree);
    assert_true(tree_stats(w.tree).pinned_bytes == bytes / 2);
    fill(&w, 10);
    assert_int_equal(look(&w, prompt(1, LONG, 0), 500), 256);
    tree_release(w.tree, "", 0, prompt(1, LONG, 0), 100, 0); /* the page that 100 ends in, too */
    assert_true(tree_stats(w.tree).pinned_bytes == bytes / 4);
    tree_release(w.tree, "", 0, prompt(1, LONG, 0), 500, 0);
    assert_int_equal(tree_stats(w.tree).pinned_bytes, 0);
    unmake(&w);
}

/* Whoever asked for it: each ends what it asked for. */
static void test_holds_and_pins(void **state) {
    (void)state;
    struct world w = make(0, 0, ROOM);
    request(&w, prompt(1, LONG, 0), 500, 0);
    tree_hold(w.tree, "", 0, prompt(1, LONG, 0), 500);
    const uint64_t bytes = tree_stats(w.tree).pinned_bytes;
    pin(&w, "", prompt(1, LONG, 0), 300);
    request(&w, prompt(1, 150, 7), 300, 0); /* splits a page that both want */
    tree_check(w.tree);
    tree_release(w.tree, "", 0, prompt(1, LONG, 0), 500, 0);
    tree_check(w.tree);
    const uint64_t left = tree_stats(w.tree).pinned_bytes;
    assert_true(left > bytes / 2 && left < bytes);
    fill(&w, 10);
    assert_true(look(&w, prompt(1, LONG, 0), 500) >= 299);
    tree_hold(w.tree, "", 0, prompt(1, LONG, 0), 300);
    tree_forget(w.tree, "", 0);
    assert_int_equal(tree_stats(w.tree).pinned_bytes, 0);
    unmake(&w);
}

/* ---- why ------------------------------------------------------------------------------------- */

static void expect(const struct world *w, const int32_t *tokens, uint32_t n, uint32_t common,
                   uint32_t length, kvasir_miss why, int32_t other) {
    struct tree_miss miss;
    const struct tree_hit hit = tree_explain(w->tree, "", 0, tokens, n, &miss);
    assert_int_equal(hit.common, common);
    assert_int_equal(hit.length, length);
    assert_string_equal(kvasir_miss_text(miss.why), kvasir_miss_text(why));
    assert_int_equal(miss.other, other);
    assert_int_equal(hit.length, look(w, tokens, n));
}

static void test_what_is_explained(void **state) {
    (void)state;
    struct world w = make(0, 0, 64 << 20);
    expect(&w, prompt(1, LONG, 0), 300, 0, 0, KVASIR_MISS_NEW, -1);
    expect(&w, prompt(1, LONG, 0), 0, 0, 0, KVASIR_MISS_NOTHING, -1);
    request(&w, prompt(1, LONG, 0), 300, 0);
    expect(&w, prompt(1, LONG, 0), 300, 300, 299, KVASIR_MISS_NOTHING, -1);
    expect(&w, prompt(1, LONG, 0), 200, 200, 199, KVASIR_MISS_NOTHING, -1);
    expect(&w, prompt(1, 200, 7), 400, 200, 200, KVASIR_MISS_NEW, 1);
    expect(&w, prompt(1, LONG, 0), 400, 300, 300, KVASIR_MISS_NEW, -1); /* it ends there */
    expect(&w, prompt(2, LONG, 0), 400, 0, 0, KVASIR_MISS_NEW, 1);
    request(&w, prompt(1, 192, 5), 300, 0);
    expect(&w, prompt(1, 192, 7), 300, 192, 192, KVASIR_MISS_NEW, 5); /* the last one used */
    assert_int_equal(tree_common_elsewhere(w.tree, "x", 1, prompt(1, 250, 3), 300), 250);
    assert_int_equal(tree_common_elsewhere(w.tree, "", 0, prompt(1, 250, 3), 300), 0);
    unmake(&w);
}

static void test_what_is_gone(void **state) {
    (void)state;
    struct world w = make(0, 0, 64 << 20);
    (void)tree_expire(w.tree, 100, ALL);
    request(&w, prompt(1, LONG, 0), 300, 0);
    request(&w, prompt(2, LONG, 0), 300, 50);
    assert_true(tree_make_room(w.tree, kv_pool_stats(kv_cache_pool(w.cache)).budget_bytes));
    expect(&w, prompt(1, LONG, 0), 300, 0, 0, KVASIR_MISS_EVICTED, -1);
    expect(&w, prompt(2, LONG, 0), 300, 0, 0, KVASIR_MISS_EVICTED, -1);
    expect(&w, prompt(3, LONG, 0), 300, 0, 0, KVASIR_MISS_NEW, -1);
    expect(&w, prompt(1, 30, 3), 300, 0, 0, KVASIR_MISS_NEW, -1); /* another page */
    request(&w, prompt(1, LONG, 0), 130, 0);
    expect(&w, prompt(1, LONG, 0), 300, 130, 130, KVASIR_MISS_EVICTED, -1);
    request(&w, prompt(4, LONG, 0), 300, 50);
    (void)tree_expire(w.tree, 150, ALL);
    expect(&w, prompt(4, LONG, 0), 300, 0, 0, KVASIR_MISS_EXPIRED, 1);
    tree_forget(w.tree, "other", 5);
    expect(&w, prompt(4, LONG, 0), 300, 0, 0, KVASIR_MISS_NEW, 1);
    expect(&w, prompt(1, LONG, 0), 300, 130, 130, KVASIR_MISS_NEW, -1);
    unmake(&w);
}

static void test_what_cannot_be_used(void **state) {
    (void)state;
    struct world w = make(70, 0, 64 << 20);
    request(&w, prompt(1, LONG, 0), 600, 0);
    expect(&w, prompt(1, 300, 2), 600, 300, 0, KVASIR_MISS_WINDOW, 1);
    expect(&w, prompt(1, LONG, 0), 700, 600, 600, KVASIR_MISS_NEW, -1);
    unmake(&w);
    w = make(0, 4096, 64 << 20);
    request(&w, prompt(1, LONG, 0), 600, 0);
    expect(&w, prompt(1, 300, 2), 600, 300, 0, KVASIR_MISS_STATE, 1);
    expect(&w, prompt(1, LONG, 0), 700, 600, 600, KVASIR_MISS_NEW, -1);
    unmake(&w);
    w = make(0, 0, 64 << 20);
    assert_int_equal(tree_requantize_begin(w.tree, (struct kv_format){.bits = 4},
                                           (struct kv_format){.bits = 4}, 0, 0, 64, &err),
                     KVASIR_OK);
    request(&w, prompt(1, LONG, 0), 600, 0);
    while (tree_requantize(w.tree, 100, ALL))
        ;
    assert_true(tree_stats(w.tree).requantized_pages >= 8);
    expect(&w, prompt(1, 300, 2), 600, 300, 256, KVASIR_MISS_FORMATS, 1);
    expect(&w, prompt(1, 320, 2), 600, 320, 320, KVASIR_MISS_NEW, 1);
    unmake(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_has_expired_is_not_found),
        cmocka_unit_test(test_the_longer_life_counts),
        cmocka_unit_test(test_lives_end_while_they_are_used),
        cmocka_unit_test(test_longer_lives_are_offered),
        cmocka_unit_test(test_pinned_prefixes_go_last),
        cmocka_unit_test(test_pins_are_bounded),
        cmocka_unit_test(test_forgetting_unpins),
        cmocka_unit_test(test_holds_end),
        cmocka_unit_test(test_holds_and_pins),
        cmocka_unit_test(test_what_is_explained),
        cmocka_unit_test(test_what_is_gone),
        cmocka_unit_test(test_what_cannot_be_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
