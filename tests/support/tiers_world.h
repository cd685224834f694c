/* SPDX-License-Identifier: Apache-2.0 */
/* A tree with tiers below it, without a model: pages are zeros, and a test does what an engine
 * would. For tests of one file each. */
#ifndef TIERS_WORLD_H
#define TIERS_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "cache/tree_internal.h"
#include "engine/scheduler.h"

#include <cmocka.h>

#include "gated_tier.h"

enum { LONG = 2000 * TILE_TOKENS + 1, STEP = 256, FEW = 300, FEW_PAGES = FEW / TILE_TOKENS };

static kvasir_error err;
static int32_t text[2][LONG];

static inline void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static inline int set_up(void **state) {
    (void)state;
    for (int32_t i = 0; i < LONG; i++) {
        text[0][i] = i * 31 % 5000;
        text[1][i] = i * 37 % 5000 + 5000;
    }
    return 0;
}

/* ---- a tree with tiers, without a model ------------------------------------------------------ */

struct world {
    struct backend *backend;
    struct kv_cache *cache;
    struct prefix_tree *tree;
    struct tiers *tiers;
};

/* window: of a second layer group; 0: there is none. The tiers are those of t. */
static inline struct world make_of(const struct tiers_options *t, uint32_t window, uint32_t layers,
                                   struct kv_cache_options o) {
    struct world w = {0};
    const struct kv_shape shapes[] = {
        {.layers = layers, .kv_heads = 1, .head_dim = 32},
        {.layers = 1, .kv_heads = 1, .head_dim = 32, .window = window}};
    const struct backend_cpu_options cpu = {.threads = 1, .tier = CPU_TIER_REF, .act_bits = 8};
    need(backend_cpu_create(&w.backend, &cpu, &err));
    o.budget_bytes = 64 << 20;
    need(kv_cache_create(w.backend, shapes, window ? 2 : 1, &o, &w.cache, &err));
    need(tree_create(w.cache, 1000, &w.tree, &err));
    need(tiers_create(w.tree, t, &w.tiers, &err));
    return w;
}

static inline struct world make_on(const struct tiers_options *t, uint32_t window) {
    return make_of(t, window, 1, (struct kv_cache_options){.k = {.bits = 8}, .v = {.bits = 4}});
}

static inline struct world make(struct place *near, struct place *far, uint32_t window,
                                uint64_t queue) {
    struct tiers_options t = {.tiers = {place_open(near, true)},
                              .n = 1,
                              .context = {{5, 6}},
                              .queue_bytes = queue,
                              .late_seconds = 20};
    if (far)
        t.tiers[t.n++] = place_open(far, true);
    return make_on(&t, window);
}

static inline void unmake(struct world *w) {
    tree_check(w->tree);
    tiers_destroy(w->tiers);
    tree_destroy(w->tree);
    assert_int_equal(kv_pool_stats(kv_cache_pool(w->cache)).used_bytes, 0);
    kv_cache_destroy(w->cache);
    backend_destroy(w->backend);
}

struct running {
    struct kv_seq *seq;
    struct tree_cursor at;
};

/* Runs what the tree lacks of a prompt, all pages of it zeros. */
static inline struct running begin(struct world *w, const int32_t *tokens, uint32_t n) {
    struct running r;
    struct tree_hit hit;
    need(seq_create(w->cache, &r.seq, &err));
    need(tree_resume(w->tree, "", 0, tokens, n, r.seq, &r.at, &hit, &err));
    need(seq_prepare(r.seq, n - hit.length, &err));
    seq_commit(r.seq, tokens + hit.length, n - hit.length);
    tree_store(w->tree, &r.at, r.seq, true);
    return r;
}

static inline void end(struct world *w, struct running *r) {
    tiers_offer(w->tiers, &r->at);
    seq_destroy(r->seq);
    tree_close(w->tree, &r->at);
}

static inline void request(struct world *w, const int32_t *tokens, uint32_t n) {
    struct running r = begin(w, tokens, n);
    end(w, &r);
}

/* What an engine does while it is idle, for so long. */
static inline void idle(struct world *w, uint32_t ms) {
    for (uint32_t i = 0; i < ms; i++) {
        tiers_collect(w->tiers, clock_seconds());
        while (tiers_rest(w->tiers, 4096))
            ;
        usleep(1000);
    }
}

/* Until a count of a place has reached so much, and a while longer: it is not exceeded. */
static inline void expect(struct world *w, struct place *p, const uint32_t *count, uint32_t want) {
    for (int i = 0; i < 20000 && count_of_place(p, count) < want; i++)
        idle(w, 1);
    idle(w, 30);
    assert_int_equal(count_of_place(p, count), want);
}

/* Loads a prompt and returns how long a hit the tree then has. */
static inline uint32_t load(struct world *w, const int32_t *tokens, uint32_t n) {
    struct tier_load *l = tiers_load(w->tiers, "", 0, tokens, n, 32 << 20);
    for (int i = 0; l && i < 20000 && !tier_load_is_done(l); i++) {
        usleep(1000);
        tiers_collect(w->tiers, clock_seconds());
    }
    tier_load_close(w->tiers, l);
    return tree_look(w->tree, "", 0, tokens, n).length;
}

static inline struct tiers_stats stats_of(const struct world *w) {
    struct tiers_stats stats;
    tiers_get_stats(w->tiers, &stats);
    return stats;
}

#endif
