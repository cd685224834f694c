/* SPDX-License-Identifier: Apache-2.0 */
/* tree_evict.c: makes room, keeps the limits, and re-encodes stored pages with fewer bits.
 *
 * If pages are wanted, the candidate with the lower key of the two heaps' first ones goes
 * (tree_policy.c). If there are too many stored prompts, each of which is a leaf, the first leaf
 * goes with the nodes that lead to it alone (evict_end).
 */
#include <string.h>

#include "cache/tree_internal.h"

/* ---- making room ----------------------------------------------------------------------------- */

/* Windows' pages and the record of an inner node, where nobody else holds them. */
static bool drop_inner(struct prefix_tree *t, uint32_t x) {
    struct kv_pool *pool = t->cache->pool;
    struct node *n = &t->nodes[x];
    bool dropped = false;
    for (uint32_t g = 0; g < t->cache->n_groups; g++) {
        struct kv_page *page = node_page(t, x, g);
        if (!may_drop(t, x, g) || page->addr == NO_ADDR || page_is_live(pool, page->addr))
            continue;
        node_lend_elsewhere(t, x, g);
        page_unstore(pool, page->addr);
        page->addr = NO_ADDR;
        dropped = true;
    }
    if (n->state != NO_ADDR && !page_is_live(pool, n->state)) {
        page_unstore(pool, n->state);
        n->state = NO_ADDR;
        dropped = true;
    }
    if (!dropped) /* a live sequence sees them now (T4) */
        n->ended = t->clock;
    node_settle(t, x);
    return dropped;
}

/* What eviction is to bring about: so many bytes of the budget free, at most so many stored. */
struct goal {
    uint64_t free_bytes, stored_bytes;
};

uint64_t tree_stored_bytes(const struct prefix_tree *t) {
    return kv_pool_stats(t->cache->pool).stored_bytes + t->stats.bytes;
}

static bool is_met(const struct prefix_tree *t, struct goal goal) {
    return pool_check_room(t->cache->pool, goal.free_bytes, NULL) == KVASIR_OK &&
           tree_stored_bytes(t) <= goal.stored_bytes;
}

/* Whether anything went. Inner nodes of which nothing can go now, because running sequences hold
 * it (T4), wait at the end of their heap's array: among the others they would hide those whose key
 * is larger. So a round in which e candidates go and k are tried in vain costs O((e + k) log n).
 * Who was tried in vain comes back with the key of what is used now, behind the inner nodes that
 * nobody uses; so k is mostly 0 while more is stored than running sequences see. At most it is the
 * number of nodes whose windows' pages or records these hold, and where little else is stored each
 * round may meet them all. (Conversations, half of the layers with a window of 4,096, 32 at once:
 * none beside 2,965,164 that went at a budget of 10 %; at 0.3 %, a few requests, 1,688,286 beside
 * 4,439,339, in one round 1,053 at most.) */
static bool evict_round(struct prefix_tree *t, struct goal goal) {
    struct kv_pool *pool = t->cache->pool;
    uint32_t in_vain = 0, x;
    uint32_t *waiting = t->heaps[INNER].nodes + t->max_nodes;
    bool some = false;
    while (!is_met(t, goal) && (x = tree_first_candidate(t)) != NO_NODE) {
        const uint64_t pages = kv_pool_stats(pool).pages_used;
        if (is_leaf(t, x)) {
            node_remove(t, x);
            some = true;
        } else if (drop_inner(t, x)) {
            some = true;
        } else {
            tree_heap_remove(t, x);
            *--waiting = x;
            in_vain++;
        }
        t->stats.evicted_pages += pages - kv_pool_stats(pool).pages_used;
    }
    for (; in_vain > 0; in_vain--, waiting++)
        if (t->nodes[*waiting].to && t->nodes[*waiting].heap_at == NO_NODE)
            tree_heap_update(t, *waiting); /* not gone, nor a leaf since */
    return some;
}

/* False: nothing is left to evict. Another round where one was not enough: what went may have had a
 * page that a node waited with, which has another one then (T2). */
static bool evict(struct prefix_tree *t, struct goal goal) {
    while (!is_met(t, goal) && evict_round(t, goal))
        ;
    return is_met(t, goal);
}

bool tree_make_room(struct prefix_tree *t, uint64_t bytes) {
    return evict(t, (struct goal){bytes, UINT64_MAX});
}

/* ---- limits ---------------------------------------------------------------------------------- */

void tree_limit(struct prefix_tree *t, uint32_t max_ends, uint64_t max_bytes) {
    t->max_ends = max_ends ? max_ends : UINT32_MAX;
    t->max_bytes = max_bytes ? max_bytes : UINT64_MAX;
    tree_keep_limits(t);
}

/* The leaf that would be evicted first, and what leads to it alone; but not what somebody has used
 * since, where only part of a prompt was asked for again: that is the prompt's end then. */
static void evict_end(struct prefix_tree *t) {
    const uint64_t pages = kv_pool_stats(t->cache->pool).pages_used;
    uint32_t x = t->heaps[ENDS].nodes[0];
    const uint64_t used = t->nodes[x].used;
    for (bool last = false; !last;) {
        const uint32_t parent = t->nodes[x].parent;
        last = is_root(t, parent) || t->nodes[parent].pins || t->nodes[parent].used > used ||
               t->nodes[x].next != NO_NODE || t->nodes[x].prev != NO_NODE;
        node_remove(t, x);
        x = parent;
    }
    t->stats.evicted_pages += pages - kv_pool_stats(t->cache->pool).pages_used;
}

void tree_keep_limits(struct prefix_tree *t) {
    while (t->heaps[ENDS].n > t->max_ends)
        evict_end(t);
    (void)evict(t, (struct goal){0, t->max_bytes});
}

static uint32_t first_leaf(const struct prefix_tree *t, uint32_t x) {
    while (t->nodes[x].first_child != NO_NODE)
        x = t->nodes[x].first_child;
    return x;
}

/* Removes every node below a root that no cursor stands on or below, children first. A root without
 * children goes with the last of them. A parent must not merge before its turn, so it is locked
 * while a child goes. */
static void forget_below(struct prefix_tree *t, uint32_t root) {
    for (uint32_t x = first_leaf(t, root); x != root;) {
        const uint32_t parent = t->nodes[x].parent, next = t->nodes[x].next;
        t->nodes[parent].pins += parent != root;
        if (is_leaf(t, x) && !t->nodes[x].pins)
            node_remove(t, x);
        else
            node_settle(t, x);
        if (parent != root)
            t->nodes[parent].pins--;
        x = next != NO_NODE ? first_leaf(t, next) : parent;
    }
}

void tree_forget(struct prefix_tree *t, const void *salt, size_t salt_len) {
    for (uint32_t i = 0; i < t->cap_salts; i++) {
        const struct salt *s = &t->salts[i];
        if (s->bytes && (!salt || (s->len == salt_len && memcmp(s->bytes, salt, salt_len) == 0)))
            forget_below(t, s->root);
    }
}

/* ---- fewer bits ------------------------------------------------------------------------------ */

kvasir_status tree_requantize_begin(struct prefix_tree *t, struct kv_format k, struct kv_format v,
                                    uint32_t group_k, uint32_t group_v, uint32_t min_tokens,
                                    kvasir_error *err) {
    struct kv_cache *c = t->cache;
    TRY(cache_rule_find(c, k, v, group_k, group_v, &t->stored_rule, err));
    for (uint32_t g = 0; g < c->n_groups; g++)
        if (c->layouts[g][t->stored_rule.layout[g]].page_bytes >
            c->layouts[g][LAYOUT_OWN].page_bytes)
            return fail(err, KVASIR_ERR_ARGUMENT,
                        "stored pages would take %zu bytes, more than the live cache's %zu",
                        c->layouts[g][t->stored_rule.layout[g]].page_bytes,
                        c->layouts[g][LAYOUT_OWN].page_bytes);
    TRY(cache_rule_adopt(c, &t->stored_rule, err));
    t->stored_rule.start_pages = c->rule.start_pages; /* the exact start stays exact */
    t->min_tokens = min_tokens;
    t->requantizes = true;
    return KVASIR_OK;
}

/* Whether something stored that goes through x is at least so long. */
static bool reaches(const struct prefix_tree *t, uint32_t x, uint32_t tokens) {
    for (uint32_t y = x; y != NO_NODE; y = node_next(t, y, x))
        if (node_end(t, y) >= tokens)
            return true;
    return false;
}

/* A page of a node that is all of it, in another format than stored ones have. (A page that parts,
 * or in which something ended, stays as it is: whoever goes on from there writes on in it.) */
static bool must_requantize(const struct prefix_tree *t, uint32_t x, uint32_t group) {
    const struct kv_page *page = node_page(t, x, group);
    return page->addr != NO_ADDR && !page_is_live(t->cache->pool, page->addr) &&
           page->layout != layout_of(&t->stored_rule, group, t->nodes[x].number);
}

static bool requantize_page(struct prefix_tree *t, uint32_t x, uint32_t group) {
    struct kv_cache *c = t->cache;
    const uint32_t layout = layout_of(&t->stored_rule, group, t->nodes[x].number);
    struct kv_page to = {.layout = (uint16_t)layout};
    node_pin(t, x); /* not to be evicted for its own sake */
    bool good =
        tree_make_room(t, c->layouts[group][layout].page_bytes) &&
        page_take(c->pool, c->groups[group].page_class[layout], &to.addr, NULL) == KVASIR_OK;
    if (good) {
        page_requantize(c, group, t->nodes[x].number, TILE_TOKENS, *node_page(t, x, group), to);
        node_hold_page(t, x, group, to);
        page_unref(c->pool, to.addr);
        t->stats.requantized_pages++;
    }
    node_unpin(t, x);
    return good;
}

uint32_t tree_requantize(struct prefix_tree *t, uint32_t pages, uint32_t nodes) {
    uint32_t done = 0;
    if (!t->requantizes)
        return 0;
    for (uint32_t i = 0; i < nodes && i < t->n_made && done < pages; i++) {
        const uint32_t x = t->requantize_at++ % t->n_made;
        t->requantize_at %= t->n_made;
        if (t->nodes[x].from != 0 || t->nodes[x].to != TILE_TOKENS)
            continue;
        for (uint32_t g = 0; g < t->cache->n_groups; g++)
            if (must_requantize(t, x, g) && reaches(t, x, t->min_tokens))
                done += requantize_page(t, x, g);
    }
    return done;
}
