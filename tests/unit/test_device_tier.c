/* SPDX-License-Identifier: Apache-2.0 */
/* A device whose memory is small, and host memory below it: pages that its tree evicts come back
 * from the memory tier with the bytes they had. The device is the null backend with bytes; what a
 * page or state holds is made from its prompt and place. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "backend/null/null.h"
#include "cache/cache_internal.h"
#include "cache/tree_internal.h"

#include <cmocka.h>

enum { PROMPTS = 12, PAGES = 10, TOKENS = PAGES * TILE_TOKENS + 1, WINDOW = 100 };

static kvasir_error err;

struct world {
    struct backend *backend;
    struct kv_cache *cache;
    struct prefix_tree *tree;
    struct tiers *tiers;
};

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static struct world make_world(uint64_t device_bytes, uint64_t host_bytes, uint64_t state_bytes) {
    struct world w;
    const struct kv_shape shapes[] = {
        {.layers = 2, .kv_heads = 2, .head_dim = 64},
        {.layers = 3, .kv_heads = 1, .head_dim = 64, .window = WINDOW},
    };
    const struct kv_cache_options o = {.k = {.bits = 8, .group = 64, .scalar = SCALAR_F16},
                                       .v = {.bits = 4, .group = 64, .scalar = SCALAR_F16},
                                       .group_k = 64,
                                       .group_v = 64,
                                       .state_bytes = state_bytes,
                                       .budget_bytes = device_bytes};
    struct tiers_options t = {.n = 1, .context = {{3, 4}}, .late_seconds = 20};
    need(backend_null_create_bytes(&w.backend, &err));
    need(kv_cache_create(w.backend, shapes, 2, &o, &w.cache, &err));
    need(tree_create(w.cache, 1000, &w.tree, &err));
    need(tier_memory_create(host_bytes, &t.tiers[0], &err));
    need(tiers_create(w.tree, &t, &w.tiers, &err));
    return w;
}

static void free_world(struct world *w) {
    tiers_destroy(w->tiers);
    tree_destroy(w->tree);
    assert_int_equal(kv_pool_stats(kv_cache_pool(w->cache)).used_bytes, 0);
    kv_cache_destroy(w->cache);
    backend_destroy(w->backend);
}

static void make_prompt(uint32_t prompt, int32_t tokens[TOKENS]) {
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = (int32_t)(mix_bits(prompt * 65536ull + i) % 500);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* part: a layer group, or 9 for a state. */
static void bytes_of(uint32_t prompt, uint32_t part, uint32_t number, uint8_t *out, uint64_t n) {
    const uint64_t seed = mix_bits(((uint64_t)prompt << 40) + ((uint64_t)part << 32) + number);
    for (uint64_t i = 0; i + 8 <= n; i += 8) {
        const uint64_t x = mix_bits(seed + i);
        memcpy(out + i, &x, 8);
    }
}

static uint8_t *host_of(const struct world *w, uint32_t addr, uint64_t bytes) {
    return w->backend->ops->arena_host(w->backend, pool_arena(w->cache->pool), addr, bytes);
}

/* The page of the sequence's state; false: it has none. */
static bool get_state(struct kv_seq *s, const struct world *w, uint32_t *addr) {
    assert_int_equal(seq_snapshot_take(s, seq_length(s), addr, NULL), KVASIR_OK);
    if (*addr == NO_SNAPSHOT)
        return false;
    page_unref(w->cache->pool, *addr); /* which the sequence holds, too */
    return true;
}

/* What the device would have computed: the page that ends at the sequence's length. */
static void fill(const struct world *w, struct kv_seq *s, uint32_t prompt) {
    const uint32_t number = seq_length(s) / TILE_TOKENS - 1;
    struct kv_page page;
    for (uint32_t g = 0; g < w->cache->n_groups; g++) {
        const uint64_t bytes = w->cache->layouts[g][LAYOUT_OWN].page_bytes;
        assert_true(seq_get_page(s, g, number, &page));
        bytes_of(prompt, g, number, host_of(w, page.addr, bytes), bytes);
    }
    if (get_state(s, w, &page.addr))
        bytes_of(prompt, 9, number, host_of(w, page.addr, w->cache->state_page_bytes),
                 w->cache->state_page_bytes);
}

/* Every page and state that the sequence holds has its bytes. Returns how many. */
static uint32_t check(const struct world *w, struct kv_seq *s, uint32_t prompt) {
    static uint8_t want[1 << 20];
    uint32_t seen = 0;
    struct kv_page page;
    for (uint32_t g = 0; g < w->cache->n_groups; g++)
        for (uint32_t i = 0; i < seq_length(s) / TILE_TOKENS; i++) {
            const uint64_t bytes = w->cache->layouts[g][LAYOUT_OWN].page_bytes;
            if (!seq_get_page(s, g, i, &page))
                continue;
            bytes_of(prompt, g, i, want, bytes);
            assert_memory_equal(host_of(w, page.addr, bytes), want, bytes);
            seen++;
        }
    if (get_state(s, w, &page.addr) && seq_length(s)) {
        bytes_of(prompt, 9, seq_length(s) / TILE_TOKENS - 1, want, w->cache->state_page_bytes);
        assert_memory_equal(host_of(w, page.addr, w->cache->state_page_bytes), want,
                            w->cache->state_page_bytes);
        seen++;
    }
    return seen;
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* Waits for what the host's memory has of the prompt. */
static void load(const struct world *w, const int32_t *tokens) {
    struct tier_load *l = tiers_load(w->tiers, "", 0, tokens, TOKENS, UINT64_MAX);
    while (l && !tier_load_is_done(l)) {
        usleep(200);
        tiers_collect(w->tiers, clock_seconds());
    }
    tier_load_close(w->tiers, l);
}

/* Begins with what is stored, computes the rest, stores it and gives it to the host's memory.
 * Returns the tokens that were stored. */
static uint32_t run_prompt(const struct world *w, uint32_t prompt) {
    int32_t tokens[TOKENS];
    struct kv_seq *s;
    struct tree_cursor at;
    struct tree_hit hit;
    make_prompt(prompt, tokens);
    load(w, tokens);
    need(seq_create(w->cache, &s, &err));
    need(tree_resume(w->tree, "", 0, tokens, TOKENS, s, &at, &hit, &err));
    tree_count(w->tree, &at, tokens, TOKENS);
    assert_int_equal(hit.length % TILE_TOKENS, 0);
    assert_true(hit.length == 0 || check(w, s, prompt) > 0);
    while (seq_length(s) < PAGES * TILE_TOKENS) {
        const uint32_t length = seq_length(s);
        tree_make_room(w->tree, seq_need_bytes(s, length + TILE_TOKENS, TILE_TOKENS, 0));
        need(seq_prepare(s, TILE_TOKENS, &err));
        seq_commit(s, tokens + length, TILE_TOKENS);
        fill(w, s, prompt);
        tree_store(w->tree, &at, s, true);
    }
    check(w, s, prompt);
    tiers_offer(w->tiers, &at);
    seq_destroy(s);
    tree_close(w->tree, &at);
    tiers_flush(w->tiers, 20);
    return hit.length;
}

static struct tier_stats stats_of(const struct world *w) {
    struct tier_stats stats;
    assert_string_equal(tiers_get_tier(w->tiers, 0, &stats), "memory");
    return stats;
}

/* The device has room for about two prompts, the host for all: each comes back whole. */
static void move_out_and_back(uint64_t state_bytes) {
    struct world w = make_world((900 << 10) + 24 * state_bytes, 64 << 20, state_bytes);
    for (uint32_t p = 0; p < PROMPTS; p++)
        assert_int_equal(run_prompt(&w, p), 0);
    assert_true(tree_stats(w.tree).evicted_pages > PROMPTS * PAGES / 2);
    for (int round = 0; round < 2; round++)
        for (uint32_t p = 0; p < PROMPTS; p++)
            assert_int_equal(run_prompt(&w, p), PAGES * TILE_TOKENS);
    const struct tier_stats stats = stats_of(&w);
    assert_int_equal(stats.damaged + stats.failed + stats.write_failures + stats.dropped, 0);
    assert_true(stats.reads >= PROMPTS * PAGES && stats.writes == stats.records);
    free_world(&w);
}

static void test_pages(void **state) {
    (void)state;
    move_out_and_back(0);
}

static void test_states(void **state) {
    (void)state;
    move_out_and_back(20000);
}

/* The host's memory is small, too: what it dropped is computed again, and what it has is right. */
static void test_small_host(void **state) {
    (void)state;
    struct world w = make_world(900 << 10, 2 << 20, 0);
    uint32_t whole = 0, none = 0;
    for (uint32_t i = 0; i < 400; i++) {
        const uint32_t found = run_prompt(&w, (uint32_t)(mix_bits(i) % PROMPTS));
        whole += found == PAGES * TILE_TOKENS;
        none += found == 0;
    }
    const struct tier_stats stats = stats_of(&w);
    assert_int_equal(stats.damaged + stats.failed, 0);
    assert_true(stats.dropped > 100 && stats.bytes <= stats.limit_bytes && stats.reads > 100);
    assert_true(whole > 20 && none > 20);
    free_world(&w);
}

/* Without bytes there is nothing to move. */
static void test_no_bytes(void **state) {
    (void)state;
    struct backend *backend;
    struct kv_cache *cache;
    struct prefix_tree *tree;
    struct tiers *tiers;
    const struct kv_shape shape = {.layers = 1, .kv_heads = 1, .head_dim = 64};
    const struct kv_cache_options o = {.k = {.bits = 16, .scalar = SCALAR_F16},
                                       .v = {.bits = 16, .scalar = SCALAR_F16},
                                       .budget_bytes = 1 << 20};
    struct tiers_options t = {.n = 1, .context = {{3, 4}}};
    need(backend_null_create(&backend, &err));
    need(kv_cache_create(backend, &shape, 1, &o, &cache, &err));
    need(tree_create(cache, 1000, &tree, &err));
    need(tier_memory_create(1 << 20, &t.tiers[0], &err));
    assert_int_equal(tiers_create(tree, &t, &tiers, &err), KVASIR_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "whose pages the host cannot reach"));
    tree_destroy(tree);
    kv_cache_destroy(cache);
    backend_destroy(backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_small_host),
        cmocka_unit_test(test_no_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
