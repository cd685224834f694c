/* SPDX-License-Identifier: Apache-2.0 */
/* tree_world.h: a prefix tree on the null backend, and requests that find and store prompts in it:
 * for the unit tests of the tree. */
#ifndef TESTS_SUPPORT_TREE_WORLD_H
#define TESTS_SUPPORT_TREE_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "backend/null/null.h"
#include "cache/tree_internal.h"

#include <cmocka.h>

enum { LONG = 1000 };

static kvasir_error err;

struct world {
    struct backend *backend;
    struct kv_cache *cache;
    struct prefix_tree *tree;
};

static struct world make(uint32_t window, uint64_t state_bytes, uint64_t budget_bytes) {
    struct world w;
    const struct kv_shape shape = {.layers = 2, .kv_heads = 2, .head_dim = 64, .window = window};
    const struct kv_cache_options o = {.k = {.bits = 8},
                                       .v = {.bits = 4},
                                       .state_bytes = state_bytes,
                                       .budget_bytes = budget_bytes};
    assert_int_equal(backend_null_create(&w.backend, &err), KVASIR_OK);
    assert_int_equal(kv_cache_create(w.backend, &shape, 1, &o, &w.cache, &err), KVASIR_OK);
    assert_int_equal(tree_create(w.cache, 1000, &w.tree, &err), KVASIR_OK);
    tree_remember_gone(w.tree);
    return w;
}

static void unmake(struct world *w) {
    tree_check(w->tree);
    tree_destroy(w->tree);
    assert_int_equal(kv_pool_stats(kv_cache_pool(w->cache)).used_bytes, 0);
    kv_cache_destroy(w->cache);
    backend_destroy(w->backend);
}

/* Tokens: `head` for the first `same`, then `tail`. */
static const int32_t *prompt(int32_t head, uint32_t same, int32_t tail) {
    static int32_t tokens[LONG];
    for (uint32_t i = 0; i < LONG; i++)
        tokens[i] = i < same ? head : tail;
    return tokens;
}

struct running {
    struct kv_seq *seq;
    struct tree_cursor at;
};

/* Finds what it can of n tokens, runs the rest and stores all for so many seconds (0: no limit).
 * Returns the hit's length. */
static uint32_t begin(struct world *w, const char *salt, const int32_t *tokens, uint32_t n,
                      uint32_t seconds, struct running *r) {
    struct tree_hit hit;
    assert_int_equal(seq_create(w->cache, &r->seq, &err), KVASIR_OK);
    assert_int_equal(
        tree_resume(w->tree, salt, strlen(salt), tokens, n, r->seq, &r->at, &hit, &err), KVASIR_OK);
    tree_count(w->tree, &r->at, tokens, n);
    assert_true(tree_make_room(w->tree, seq_need_bytes(r->seq, n, n, 0)));
    assert_int_equal(seq_prepare(r->seq, n - hit.length, &err), KVASIR_OK);
    seq_commit(r->seq, tokens + hit.length, n - hit.length);
    tree_store_until(w->tree, &r->at, r->seq, true, tree_expiry(w->tree, seconds));
    return hit.length;
}

static void finish(struct world *w, struct running *r) {
    seq_destroy(r->seq);
    tree_close(w->tree, &r->at);
    tree_check(w->tree);
}

static uint32_t request(struct world *w, const int32_t *tokens, uint32_t n, uint32_t seconds) {
    struct running r;
    const uint32_t found = begin(w, "", tokens, n, seconds, &r);
    finish(w, &r);
    return found;
}

static uint32_t look(const struct world *w, const int32_t *tokens, uint32_t n) {
    return tree_look(w->tree, "", 0, tokens, n).length;
}

#endif
