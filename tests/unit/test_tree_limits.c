/* SPDX-License-Identifier: Apache-2.0 */
/* TREE-7 of tree.h: which stored prompt is evicted when there are too many, what counts as a
 * prompt, and the limit on bytes. On the null backend; random programs: tests/sim/tree.c. */
#include <pthread.h>

#include "tree_world.h"

static uint64_t ends(const struct world *w) {
    return tree_stats(w->tree).entries;
}

/* ---- stored prompts -------------------------------------------------------------------------- */

static void test_the_oldest_prompt_goes_as_a_whole(void **state) {
    (void)state;
    struct world w = make(0, 0, 64 << 20);
    tree_limit(w.tree, 3, 0);
    for (int32_t i = 1; i <= 3; i++)
        request(&w, prompt(i, LONG, 0), 300, 0);
    assert_int_equal(ends(&w), 3);
    assert_int_equal(tree_stats(w.tree).tokens, 900);
    const uint64_t nodes = tree_stats(w.tree).nodes;
    request(&w, prompt(4, LONG, 0), 300, 0);
    assert_int_equal(ends(&w), 3);
    assert_int_equal(look(&w, prompt(1, LONG, 0), 300), 0); /* not a page of it is left */
    for (int32_t i = 2; i <= 4; i++)
        assert_int_equal(look(&w, prompt(i, LONG, 0), 300), 299);
    assert_int_equal(tree_stats(w.tree).nodes, nodes);
    assert_int_equal(tree_stats(w.tree).tokens, 900);
    assert_int_equal(tree_stats(w.tree).evicted_pages, 5);
    request(&w, prompt(2, LONG, 0), 300, 0); /* used again, so that 3 is older */
    request(&w, prompt(5, LONG, 0), 300, 0);
    assert_int_equal(look(&w, prompt(3, LONG, 0), 300), 0);
    assert_int_equal(look(&w, prompt(2, LONG, 0), 300), 299);
    unmake(&w);
}

/* If only the beginning of a prompt is requested again, only what comes after it may count as
 * old. */
static void test_a_beginning_that_is_used_stays(void **state) {
    (void)state;
    struct world w = make(0, 0, 64 << 20);
    tree_limit(w.tree, 2, 0);
    request(&w, prompt(1, LONG, 0), 500, 0);
    request(&w, prompt(2, LONG, 0), 500, 0);
    assert_int_equal(request(&w, prompt(1, LONG, 0), 200, 0), 199);
    request(&w, prompt(3, LONG, 0), 500, 0);
    assert_int_equal(ends(&w), 2);
    assert_int_equal(look(&w, prompt(1, LONG, 0), 500), 200);
    assert_int_equal(look(&w, prompt(2, LONG, 0), 500), 0);
    assert_int_equal(look(&w, prompt(3, LONG, 0), 500), 499);
    unmake(&w);
}

static void test_a_conversation_is_one_prompt(void **state) {
    (void)state;
    struct world w = make(0, 0, 64 << 20);
    tree_limit(w.tree, 2, 0);
    request(&w, prompt(9, LONG, 0), 100, 0);
    for (uint32_t n = 50; n < 900; n += 77) { /* each turn continues the one before */
        request(&w, prompt(1, LONG, 0), n, 0);
        assert_int_equal(ends(&w), 2);
    }
    assert_int_equal(look(&w, prompt(9, LONG, 0), 100), 99);
    /* the beginning of a stored prompt adds no entry either */
    request(&w, prompt(1, LONG, 0), 33, 0);
    assert_int_equal(ends(&w), 2);
    unmake(&w);
}

/* What two prompts share stays with the one that is not evicted. */
static void test_a_shared_beginning_stays(void **state) {
    (void)state;
    struct world w = make(0, 0, 64 << 20);
    tree_limit(w.tree, 2, 0);
    for (int32_t i = 1; i <= 6; i++) {
        const uint32_t found = request(&w, prompt(7, 200, i + 10), 400, 0);
        assert_int_equal(found, i == 1 ? 0 : 200);
        assert_int_equal(ends(&w), i == 1 ? 1 : 2);
    }
    assert_int_equal(look(&w, prompt(7, 200, 16), 400), 399);
    assert_int_equal(look(&w, prompt(7, 200, 15), 400), 399);
    assert_int_equal(look(&w, prompt(7, 200, 14), 400), 200);
    unmake(&w);
}

static void test_running_ones_do_not_count(void **state) {
    (void)state;
    struct world w = make(0, 0, 64 << 20);
    struct running r[5];
    tree_limit(w.tree, 1, 0);
    for (int32_t i = 0; i < 5; i++) {
        (void)begin(&w, "", prompt(i, LONG, 0), 200, 0, &r[i]);
        assert_int_equal(ends(&w), 0);
    }
    for (int32_t i = 0; i < 5; i++)
        assert_int_equal(look(&w, prompt(i, LONG, 0), 200), 199);
    for (int32_t i = 0; i < 5; i++) {
        finish(&w, &r[i]);
        assert_int_equal(ends(&w), 1);
    }
    assert_int_equal(look(&w, prompt(4, LONG, 0), 200), 199);
    assert_int_equal(tree_stats(w.tree).tokens, 200);
    /* a sequence that continues the only stored prompt pins it */
    (void)begin(&w, "", prompt(4, LONG, 0), 300, 0, &r[0]);
    assert_int_equal(ends(&w), 0);
    request(&w, prompt(8, LONG, 0), 200, 0);
    assert_int_equal(ends(&w), 1);
    assert_int_equal(look(&w, prompt(4, LONG, 0), 300), 299);
    finish(&w, &r[0]);
    assert_int_equal(ends(&w), 1);
    unmake(&w);
}

/* The limit is for all salts together; a root goes with its last prompt. */
static void test_salts_share_the_limit(void **state) {
    (void)state;
    struct world w = make(0, 0, 64 << 20);
    struct running r;
    const char *const salts[] = {"a", "b", "c"};
    tree_limit(w.tree, 2, 0);
    for (int i = 0; i < 3; i++) {
        (void)begin(&w, salts[i], prompt(1, LONG, 0), 100, 0, &r);
        finish(&w, &r);
    }
    assert_int_equal(ends(&w), 2);
    assert_int_equal(tree_stats(w.tree).nodes, 2 * 3); /* a root and two pages each */
    assert_int_equal(tree_look(w.tree, "a", 1, prompt(1, LONG, 0), 100).length, 0);
    assert_int_equal(tree_look(w.tree, "c", 1, prompt(1, LONG, 0), 100).length, 99);
    tree_limit(w.tree, 1, 0); /* a lower limit holds at once */
    assert_int_equal(ends(&w), 1);
    tree_limit(w.tree, 0, 0); /* no limit */
    for (int32_t i = 2; i < 20; i++)
        request(&w, prompt(i, LONG, 0), 70, 0);
    assert_int_equal(ends(&w), 19);
    unmake(&w);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static void test_bytes(void **state) {
    (void)state;
    static const struct {
        uint32_t window;
        uint64_t state_bytes;
    } kinds[] = {{0, 0}, {100, 0}, {0, 4096}, {70, 8192}};
    for (int k = 0; k < 4; k++) {
        struct world w = make(kinds[k].window, kinds[k].state_bytes, 64 << 20);
        const uint64_t most = 60000;
        tree_limit(w.tree, 0, most);
        uint64_t seen = 0;
        for (int32_t i = 0; i < 40; i++) {
            request(&w, prompt(i % 13, 50 + (uint32_t)i * 5, i), 300, 0);
            assert_true(tree_stored_bytes(w.tree) <= most);
            seen = tree_stored_bytes(w.tree) > seen ? tree_stored_bytes(w.tree) : seen;
        }
        assert_true(seen > most / 2); /* and something is kept */
        assert_true(tree_stats(w.tree).evicted_pages > 40);
        tree_limit(w.tree, 0, 1);
        assert_int_equal(tree_stored_bytes(w.tree), 0);
        assert_int_equal(request(&w, prompt(1, LONG, 0), 500, 0), 0);
        assert_int_equal(request(&w, prompt(1, LONG, 0), 500, 0), 0);
        assert_int_equal(tree_stats(w.tree).nodes, 0);
        unmake(&w);
    }
}

/* The pool's figures for each kind of page add up to those for all pages. */
static void test_kinds_of_pages(void **state) {
    (void)state;
    struct world w = make(0, 8192, 64 << 20);
    struct running r;
    struct kv_pool_class c;
    request(&w, prompt(1, LONG, 0), 300, 0);
    (void)begin(&w, "", prompt(2, LONG, 0), 200, 0, &r);
    uint64_t live = 0, stored = 0, states = 0;
    uint32_t n = 0;
    for (; kv_pool_class(kv_cache_pool(w.cache), n, &c); n++) {
        live += c.live_bytes;
        stored += c.stored_bytes;
        states += c.k.bits ? 0 : c.live_bytes + c.stored_bytes;
        assert_true((c.k.bits == 0) == (c.v.bits == 0));
    }
    const struct kv_pool_stats pool = kv_pool_stats(kv_cache_pool(w.cache));
    assert_int_equal(n, 3); /* its formats, the exact start's, states */
    assert_true(live > 0 && stored > 0 && states == 2 * 8192);
    assert_int_equal(stored, pool.stored_bytes);
    assert_int_equal(live + stored, pool.used_bytes);
    finish(&w, &r);
    unmake(&w);
}

/* ---- paths as deep as they are long ---------------------------------------------------------- */

enum { DEEP = 200000, SMALL_STACK = 256 << 10 };

static void *check_and_forget(void *user) {
    const struct world *w = user;
    tree_check(w->tree);
    tree_forget(w->tree, "", 0);
    return NULL;
}

/* A prompt stored after each of its tokens is a path of as many nodes. Nothing may recurse over
 * them: the engine's thread has a stack of 8 MiB, this one has 256 KiB. */
static void test_a_path_of_one_token_nodes(void **state) {
    (void)state;
    struct world w = make(0, 0, 1 << 30);
    struct running r;
    static int32_t tokens[DEEP];
    for (uint32_t i = 0; i < DEEP; i++)
        tokens[i] = (int32_t)(i % 1000);
    (void)begin(&w, "", tokens, 1, 0, &r);
    for (uint32_t i = 1; i < DEEP; i++) {
        assert_int_equal(seq_prepare(r.seq, 1, &err), KVASIR_OK);
        seq_commit(r.seq, tokens + i, 1);
        tree_store(w.tree, &r.at, r.seq, true);
    }
    assert_int_equal(tree_stats(w.tree).nodes, DEEP + 1);
    seq_destroy(r.seq);
    tree_close(w.tree, &r.at);
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, SMALL_STACK);
    assert_int_equal(pthread_create(&thread, &attributes, check_and_forget, &w), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attributes);
    assert_int_equal(tree_stats(w.tree).nodes, 0);
    unmake(&w);
}

/* Requests that diverge from a stored prompt inside a page split it. Once they are evicted, it is
 * whole again. */
static void test_what_was_split_merges_again(void **state) {
    (void)state;
    struct world w = make(0, 0, 64 << 20);
    tree_limit(w.tree, 2, 0);
    request(&w, prompt(1, LONG, 0), 320, 0);
    const uint64_t nodes = tree_stats(w.tree).nodes;
    for (uint32_t same = 250; same < 260; same++) { /* the next one evicts the one before */
        request(&w, prompt(1, same, 2), 320, 0);
        request(&w, prompt(1, LONG, 0), 320, 0);
    }
    struct running r;
    (void)begin(&w, "", prompt(3, LONG, 0), 320, 0, &r); /* evicts the last of them */
    finish(&w, &r);
    assert_int_equal(look(&w, prompt(1, LONG, 0), 320), 319);
    assert_int_equal(tree_stats(w.tree).nodes, 2 * nodes - 1); /* and one root */
    unmake(&w);
}

/* A leaf of the first page that was used twice: it is as good as one half the mean age younger. */
static void test_uses_count_as_age(void **state) {
    (void)state;
    struct world w = make(0, 0, 64 << 20);
    uint32_t found = 0;
    request(&w, prompt(1, LONG, 0), 60, 0);
    for (int32_t i = 2; i < 12; i++)
        request(&w, prompt(i, LONG, 0), 60, 0);
    request(&w, prompt(1, LONG, 0), 60, 0);
    assert_true(w.tree->mean_age > 0);
    for (uint32_t x = 0; x < w.tree->n_made; x++) {
        const struct node *n = &w.tree->nodes[x];
        if (!n->to || n->uses != 2 || n->heap_at == NO_NODE || n->heap != LEAVES)
            continue;
        const double more = n->key - ((double)n->used + w.tree->mean_age / 2);
        assert_true(more > -1e-6 && more < 1e-6);
        found++;
    }
    assert_int_equal(found, 1);
    unmake(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_oldest_prompt_goes_as_a_whole),
        cmocka_unit_test(test_a_beginning_that_is_used_stays),
        cmocka_unit_test(test_a_conversation_is_one_prompt),
        cmocka_unit_test(test_a_shared_beginning_stays),
        cmocka_unit_test(test_running_ones_do_not_count),
        cmocka_unit_test(test_salts_share_the_limit),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_kinds_of_pages),
        cmocka_unit_test(test_a_path_of_one_token_nodes),
        cmocka_unit_test(test_what_was_split_merges_again),
        cmocka_unit_test(test_uses_count_as_age),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
