/* SPDX-License-Identifier: Apache-2.0 */
/* What can go wrong in prefix caches (test_traps.c), without a model: hashes that collide, of nodes
 * and of salts, and a hit that needs room while not a byte is free. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "backend/cpu/cpu.h"
#include "cache/tree_internal.h"

#include <cmocka.h>

static kvasir_error err;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

struct bare {
    struct backend *backend;
    struct kv_cache *cache;
    struct prefix_tree *tree;
};

static void open_bare(struct bare *b, uint32_t window, uint64_t budget) {
    const struct kv_shape shape = {.layers = 1, .kv_heads = 1, .head_dim = 32, .window = window};
    const struct kv_cache_options o = {.k = {.bits = 8}, .v = {.bits = 4}, .budget_bytes = budget};
    const struct backend_cpu_options cpu = {.threads = 1, .tier = CPU_TIER_REF, .act_bits = 8};
    need(backend_cpu_create(&b->backend, &cpu, &err));
    need(kv_cache_create(b->backend, &shape, 1, &o, &b->cache, &err));
    need(tree_create(b->cache, 1000, &b->tree, &err));
}

static void close_bare(struct bare *b) {
    tree_check(b->tree);
    tree_destroy(b->tree);
    kv_cache_destroy(b->cache);
    backend_destroy(b->backend);
}

/* The word that stands for a position's K and V. */
static uint32_t *slot(struct kv_seq *s, uint32_t p) {
    struct kv_view v;
    seq_view(s, 0, &v);
    const uint32_t i = kv_view_index(&v, p / TILE_TOKENS);
    assert_int_not_equal(i, UINT32_MAX);
    return (uint32_t *)(backend_cpu_arena_bytes(v.arena) +
                        (size_t)v.pages[i].addr * PAGE_ADDR_UNIT) +
           p % TILE_TOKENS;
}

/* Begins with what the tree has, checks it, writes the rest and stores it. Returns the hit's
 * length. */
static uint32_t store_bare(struct bare *b, const int32_t *tokens, uint32_t n, bool write) {
    struct kv_seq *s;
    struct tree_cursor at;
    struct tree_hit hit;
    uint32_t h = 1;
    need(seq_create(b->cache, &s, &err));
    need(tree_resume(b->tree, "", 0, tokens, n, s, &at, &hit, &err));
    tree_count(b->tree, &at, tokens, n);
    if (write)
        (void)!tree_make_room(b->tree, seq_need_bytes(s, n, n, 0));
    if (write)
        need(seq_prepare(s, n - hit.length, &err));
    for (uint32_t p = 0; p < (write ? n : hit.length); p++) {
        h = (h + (uint32_t)tokens[p] + 1) * 0x9e3779b1u;
        if (p >= hit.length)
            *slot(s, p) = h;
        else if (b->cache->groups[0].span == UINT32_MAX)
            assert_int_equal(*slot(s, p), h);
    }
    if (write) {
        seq_commit(s, tokens + hit.length, n - hit.length);
        tree_store(b->tree, &at, s, true);
    }
    seq_destroy(s);
    tree_close(b->tree, &at);
    return hit.length;
}

/* Far more nodes than buckets (the budget is small), made of only two different tokens: most
 * buckets hold nodes that differ only in their parents, and nodes that differ in parents and
 * tokens. Both are compared, so each prompt finds its own. */
static void test_colliding_hashes_serve_no_wrong_pages(void **state) {
    (void)state;
    enum { PROMPTS = 150, TOKENS = 128 };
    static int32_t tokens[PROMPTS][TOKENS];
    struct bare b;
    uint32_t r = 5;
    open_bare(&b, 0, 8 << 20);
    for (int i = 0; i < PROMPTS; i++) {
        for (int k = 0; k < TOKENS; k++) {
            r = r * 1664525 + 1013904223;
            tokens[i][k] = (int32_t)(r >> 31);
        }
        store_bare(&b, tokens[i], TOKENS, true);
        for (uint32_t n = 2; n <= TOKENS; n++) /* splits its pages at every token, for good */
            assert_int_equal(store_bare(&b, tokens[i], n, true), n - 1);
    }
    assert_true(tree_stats(b.tree).nodes > 5 * b.tree->n_buckets);
    for (int i = 0; i < PROMPTS; i++) {
        assert_int_equal(store_bare(&b, tokens[i], TOKENS, false), TOKENS - 1);
        for (int k = 0; k < TOKENS; k += 5) {
            tokens[i][k] += 2; /* in no stored prompt: the hit ends before it */
            assert_int_equal(store_bare(&b, tokens[i], TOKENS, false), k);
            tokens[i][k] -= 2;
        }
    }
    close_bare(&b);
}

/* The tree finds a salt by 32 bits of its hash, and compares its bytes. These two have the
 * same bits and the same length. */
static void test_salts_with_equal_hashes_stay_apart(void **state) {
    (void)state;
    static const char *const SALTS[] = {"tenant-000321", "tenant-001910"};
    const size_t len = strlen(SALTS[0]);
    struct bare b;
    int32_t tokens[128];
    assert_int_equal(strlen(SALTS[1]), len);
    assert_int_equal((uint32_t)XXH3_64bits(SALTS[0], len), (uint32_t)XXH3_64bits(SALTS[1], len));
    for (int i = 0; i < 128; i++)
        tokens[i] = i;
    open_bare(&b, 0, 4 << 20);
    for (int i = 0; i < 2; i++) {
        struct kv_seq *s;
        struct tree_cursor at;
        struct tree_hit hit;
        assert_int_equal(tree_look(b.tree, SALTS[i], len, tokens, 128).common, 0);
        need(seq_create(b.cache, &s, &err));
        need(tree_resume(b.tree, SALTS[i], len, tokens, 128, s, &at, &hit, &err));
        assert_int_equal(hit.common, 0);
        need(seq_prepare(s, 100, &err));
        seq_commit(s, tokens, 100);
        tree_store(b.tree, &at, s, true);
        seq_destroy(s);
        tree_close(b.tree, &at);
        assert_int_equal(tree_look(b.tree, SALTS[i], len, tokens, 128).length, 100);
    }
    tree_forget(b.tree, SALTS[0], len);
    assert_int_equal(tree_look(b.tree, SALTS[0], len, tokens, 128).length, 0);
    assert_int_equal(tree_look(b.tree, SALTS[1], len, tokens, 128).length, 100);
    close_bare(&b);
}

/* Eviction makes room for the node that splits a hit's last page, but not from what the hit
 * sees. */
static void test_a_hit_does_not_evict_its_own_window(void **state) {
    (void)state;
    for (uint32_t n = 66; n < 250; n += 7) {
        struct bare b;
        int32_t tokens[256];
        for (int i = 0; i < 256; i++)
            tokens[i] = i;
        open_bare(&b, 100, 4 << 20);
        store_bare(&b, tokens, 256, true);
        const struct kv_pool_stats s = kv_pool_stats(b.cache->pool);
        const uint64_t left = s.budget_bytes - s.used_bytes - s.charged_bytes;
        need(pool_charge(b.cache->pool, left, &err)); /* not a byte is free */
        struct kv_seq *seq;
        struct tree_cursor at;
        struct tree_hit hit;
        need(seq_create(b.cache, &seq, &err));
        need(tree_resume(b.tree, "", 0, tokens, n, seq, &at, &hit, &err));
        tree_check(b.tree);
        for (uint32_t p = hit.length > 99 ? hit.length - 99 : 0; p < hit.length; p++)
            (void)slot(seq, p);
        seq_destroy(seq);
        tree_close(b.tree, &at);
        pool_discharge(b.cache->pool, left);
        close_bare(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_colliding_hashes_serve_no_wrong_pages),
        cmocka_unit_test(test_salts_with_equal_hashes_stay_apart),
        cmocka_unit_test(test_a_hit_does_not_evict_its_own_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
