/* SPDX-License-Identifier: Apache-2.0 */
/* A device whose memory is small, and host memory or a disk below it: pages that its tree evicts
 * come back from the tier with the bytes they had. The device is a null backend with bytes, which
 * the host reaches or only lanes do; what a page or state holds is made from its prompt and place.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
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

enum reach { NEAR, FAR }; /* of pages, for the host */

/* The tree of a device, without tiers yet. */
static struct world make_device(enum reach reach, uint64_t device_bytes, uint64_t state_bytes) {
    struct world w = {0};
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
    need(reach == FAR ? backend_null_create_lanes(&w.backend, &err)
                      : backend_null_create_bytes(&w.backend, &err));
    need(kv_cache_create(w.backend, shapes, 2, &o, &w.cache, &err));
    need(tree_create(w.cache, 1000, &w.tree, &err));
    return w;
}

static void begin_tiers(struct world *w, struct tier *tier) {
    const struct tiers_options t = {
        .tiers = {tier}, .n = 1, .context = {{3, 4}}, .late_seconds = 20};
    need(tiers_create(w->tree, &t, &w->tiers, &err));
}

static struct world make_world(enum reach reach, uint64_t device_bytes, uint64_t host_bytes,
                               uint64_t state_bytes) {
    struct world w = make_device(reach, device_bytes, state_bytes);
    const struct tier_memory_options o = {.limit_bytes = host_bytes, .backend = w.backend};
    struct tier *tier;
    need(tier_memory_create(&o, &tier, &err));
    begin_tiers(&w, tier);
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

/* Gives a page its bytes. */
static void set_page(const struct world *w, uint32_t addr, uint32_t prompt, uint32_t part,
                     uint32_t number, uint64_t n) {
    static uint8_t bytes[1 << 20];
    bytes_of(prompt, part, number, bytes, n);
    backend_arena_write(w->backend, pool_arena(w->cache->pool), page_offset(addr), bytes, n);
}

static void check_page(const struct world *w, uint32_t addr, uint32_t prompt, uint32_t part,
                       uint32_t number, uint64_t n) {
    static uint8_t want[1 << 20], have[1 << 20];
    bytes_of(prompt, part, number, want, n);
    need(backend_arena_read(w->backend, pool_arena(w->cache->pool), page_offset(addr), have, n,
                            &err));
    assert_memory_equal(have, want, n);
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
        set_page(w, page.addr, prompt, g, number, bytes);
    }
    if (get_state(s, w, &page.addr))
        set_page(w, page.addr, prompt, 9, number, w->cache->state_page_bytes);
}

/* Every page and state that the sequence holds has its bytes. Returns how many. */
static uint32_t check(const struct world *w, struct kv_seq *s, uint32_t prompt) {
    uint32_t seen = 0;
    struct kv_page page;
    for (uint32_t g = 0; g < w->cache->n_groups; g++)
        for (uint32_t i = 0; i < seq_length(s) / TILE_TOKENS; i++) {
            const uint64_t bytes = w->cache->layouts[g][LAYOUT_OWN].page_bytes;
            if (!seq_get_page(s, g, i, &page))
                continue;
            check_page(w, page.addr, prompt, g, i, bytes);
            seen++;
        }
    if (get_state(s, w, &page.addr) && seq_length(s)) {
        check_page(w, page.addr, prompt, 9, seq_length(s) / TILE_TOKENS - 1,
                   w->cache->state_page_bytes);
        seen++;
    }
    return seen;
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* Waits for what the host's memory has of the prompt. Free pages have given their memory back. */
static void load(const struct world *w, const int32_t *tokens) {
    while (kv_pool_rest(kv_cache_pool(w->cache)))
        ;
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
    assert_non_null(tiers_get_tier(w->tiers, 0, &stats));
    return stats;
}

/* The device has room for about two prompts, the tier for all: each comes back whole. */
static void check_all_come_back(const struct world *w) {
    for (uint32_t p = 0; p < PROMPTS; p++)
        assert_int_equal(run_prompt(w, p), 0);
    assert_true(tree_stats(w->tree).evicted_pages > PROMPTS * PAGES / 2);
    for (int round = 0; round < 2; round++)
        for (uint32_t p = 0; p < PROMPTS; p++)
            assert_int_equal(run_prompt(w, p), PAGES * TILE_TOKENS);
    const struct tier_stats stats = stats_of(w);
    assert_int_equal(stats.damaged + stats.failed + stats.write_failures + stats.dropped, 0);
    assert_true(stats.reads >= PROMPTS * PAGES && stats.writes == stats.records);
}

static void move_out_and_back(enum reach reach, uint64_t state_bytes) {
    struct world w = make_world(reach, (900 << 10) + 24 * state_bytes, 64 << 20, state_bytes);
    check_all_come_back(&w);
    free_world(&w);
}

static void test_pages(void **state) {
    (void)state;
    move_out_and_back(NEAR, 0);
    move_out_and_back(FAR, 0);
}

static void test_states(void **state) {
    (void)state;
    move_out_and_back(NEAR, 20000);
    move_out_and_back(FAR, 20000);
}

/* A tier whose records lanes cannot read: by way of its readers' memory. */
static void test_disk(void **state) {
    (void)state;
    char dir[] = "device-tier-XXXXXX";
    struct world w = make_device(FAR, 900 << 10, 0);
    struct tier *tier;
    assert_non_null(mkdtemp(dir));
    const struct tier_disk_options o = {.dir = dir, .limit_bytes = TIER_DISK_LEAST};
    need(tier_disk_create(&o, &tier, &err));
    begin_tiers(&w, tier);
    check_all_come_back(&w);
    free_world(&w);
    need(tier_folder_clear(dir, NULL, &(uint64_t){0}, &err));
    char path[64];
    snprintf(path, sizeof path, "%s/lock", dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

/* The key of the record of a prompt's page. */
static struct tier_key key_of(const struct world *w, uint32_t prompt, uint32_t group,
                              uint32_t number) {
    int32_t tokens[TOKENS];
    struct record_head head = {.kind = RECORD_PAGE, .group = group};
    make_prompt(prompt, tokens);
    head.chain = chain_root((struct tier_key){{3, 4}}, "", 0);
    for (uint32_t i = 0; i <= number; i++)
        head.chain = chain_next(head.chain, tokens + (size_t)i * TILE_TOKENS);
    head.k = w->cache->layouts[group][LAYOUT_OWN].k.format;
    head.v = w->cache->layouts[group][LAYOUT_OWN].v.format;
    return record_key(&head);
}

/* A bit of a record in the host's memory has changed: what the device has copied of it is not used,
 * the pages before it are. */
static void test_damage(void **state) {
    (void)state;
    struct world w = make_device(FAR, 900 << 10, 0);
    const struct tier_memory_options o = {.limit_bytes = 64 << 20, .backend = w.backend};
    struct tier *tier;
    struct tier_loan loan;
    size_t bytes;
    need(tier_memory_create(&o, &tier, &err));
    begin_tiers(&w, tier);
    for (uint32_t p = 0; p < PROMPTS; p++)
        assert_int_equal(run_prompt(&w, p), 0);
    assert_true(tier->ops->lend(tier, key_of(&w, 0, 0, 6), &loan));
    const uint8_t *at = tier->ops->lent(tier, &loan, &bytes);
    ((uint8_t *)(uintptr_t)at)[bytes / 2] ^= 1;
    tier->ops->give_back(tier, &loan, TIER_OK, 0);
    assert_true(run_prompt(&w, 0) <= 6 * TILE_TOKENS); /* a window may need pages not asked for */
    assert_int_equal(stats_of(&w).damaged, 1);
    for (uint32_t p = 1; p < PROMPTS; p++)
        assert_int_equal(run_prompt(&w, p), PAGES * TILE_TOKENS);
    assert_int_equal(run_prompt(&w, 0), PAGES * TILE_TOKENS); /* written again */
    free_world(&w);
}

/* A device that fails to copy: no page of the load is used, as none is known to have its bytes. */
static void test_broken_lanes(void **state) {
    (void)state;
    struct world w = make_world(FAR, 900 << 10, 64 << 20, 0);
    int32_t tokens[TOKENS];
    for (uint32_t p = 0; p < PROMPTS; p++)
        assert_int_equal(run_prompt(&w, p), 0);
    make_prompt(0, tokens);
    const uint32_t had = tree_look(w.tree, "", 0, tokens, TOKENS).length;
    assert_true(had < PAGES * TILE_TOKENS);
    backend_null_break_lanes(w.backend, true);
    load(&w, tokens);
    backend_null_break_lanes(w.backend, false);
    assert_int_equal(tree_look(w.tree, "", 0, tokens, TOKENS).length, had);
    assert_true(stats_of(&w).failed > 0 && stats_of(&w).damaged == 0);
    assert_int_equal(run_prompt(&w, 0), PAGES * TILE_TOKENS);
    free_world(&w);
}

/* The host's memory is small, too: what it dropped is computed again, and what it has is right. */
static void test_small_host(void **state) {
    (void)state;
    struct world w = make_world(FAR, 900 << 10, 2 << 20, 0);
    uint32_t whole = 0, none = 0;
    for (uint32_t i = 0; i < 150; i++) {
        const uint32_t found = run_prompt(&w, (uint32_t)(mix_bits(i) % PROMPTS));
        whole += found == PAGES * TILE_TOKENS;
        none += found == 0;
    }
    const struct tier_stats stats = stats_of(&w);
    assert_int_equal(stats.damaged + stats.failed, 0);
    assert_true(stats.dropped > 100 && stats.bytes <= stats.limit_bytes && stats.reads > 50);
    assert_true(whole > 7 && none > 7);
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
    need(tier_memory_create(&(struct tier_memory_options){.limit_bytes = 1 << 20}, &t.tiers[0],
                            &err));
    assert_int_equal(tiers_create(tree, &t, &tiers, &err), KVASIR_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "whose pages the host cannot reach"));
    tree_destroy(tree);
    kv_cache_destroy(cache);
    backend_destroy(backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages),        cmocka_unit_test(test_states),
        cmocka_unit_test(test_disk),         cmocka_unit_test(test_damage),
        cmocka_unit_test(test_broken_lanes), cmocka_unit_test(test_small_host),
        cmocka_unit_test(test_no_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
