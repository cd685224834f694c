/* SPDX-License-Identifier: Apache-2.0 */
/* tree_evict.c: makes room, enforces the limits, removes what has expired, and re-encodes stored
 * pages with fewer bits.
 *
 * To make room, the better of the two heaps' first candidates is evicted (tree_policy.c). If there
 * are too many entries, each of which is a leaf, the first leaf is removed with the nodes that lead
 * to it alone (evict_entry).
 */
#include <string.h>

#include "cache/tree_internal.h"

/* ---- making room ----------------------------------------------------------------------------- */

/* Drops the window pages and the state of an inner node that no live sequence holds. False:
 * there are none. */
static bool drop_inner(struct prefix_tree *t, uint32_t x) {
    struct kv_pool *pool = t->cache->pool;
    struct node *n = &t->nodes[x];
    bool dropped = false;
    for (uint32_t g = 0; g < t->cache->n_groups; g++) {
        struct kv_page *page = node_page(t, x, g);
        if (!may_drop(t, x, g) || page->addr == NO_ADDR || page_is_live(pool, page->addr))
            continue;
        node_unshare_page_upwards(t, x, g);
        page_unstore(pool, page->addr);
        page->addr = NO_ADDR;
        dropped = true;
    }
    if (n->state != NO_ADDR && !page_is_live(pool, n->state)) {
        page_unstore(pool, n->state);
        n->state = NO_ADDR;
        dropped = true;
    }
    if (!dropped) /* live sequences hold them all (TREE-4) */
        n->resumed = t->clock;
    node_settle(t, x);
    return dropped;
}

/* What eviction must reach: so many bytes of the budget free, at most so many stored. */
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

/* Returns whether anything was evicted. An inner node may hold nothing that can be dropped now,
 * because running sequences hold it (TREE-4). Such nodes leave the heap for the rest of the round
 * and wait at the end of its array; otherwise they would hide nodes with larger keys. So a round
 * that evicts e candidates and tries k in vain costs O((e + k) log n).
 *
 * A node tried in vain returns with the current clock as its key, after inner nodes that nobody
 * uses. So k is mostly 0 while more is stored than running sequences see. At most k is the
 * number of nodes whose window pages or states running sequences hold. If little else is stored,
 * each round may try them all. (Measured with conversations, half of the layers with a window of
 * 4,096, 32 at once. At a budget of 10 %: none, and 2,965,164 evicted. At 0.3 %, a few requests:
 * 1,688,286 in vain and 4,439,339 evicted, at most 1,053 in one round.) */
static bool evict_round(struct prefix_tree *t, struct goal goal) {
    struct kv_pool *pool = t->cache->pool;
    uint32_t in_vain = 0, x;
    uint32_t *waiting = t->heaps[INNER].nodes + t->max_nodes;
    bool some = false;
    while (!is_met(t, goal) && (x = tree_first_candidate(t)) != NO_NODE) {
        const uint64_t pages = kv_pool_stats(pool).pages_used;
        if (is_leaf(t, x)) {
            node_note_gone(t, x, false);
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
            tree_heap_update(t, *waiting); /* neither removed nor a leaf by now */
    return some;
}

/* False: nothing is left to evict. One round may not be enough: after a node was removed, a node
 * that waited may reference another page (TREE-2), which can be dropped. */
static bool evict(struct prefix_tree *t, struct goal goal) {
    while (!is_met(t, goal) && evict_round(t, goal))
        ;
    return is_met(t, goal);
}

bool tree_make_room(struct prefix_tree *t, uint64_t bytes) {
    return kv_cache_make_room(t->cache, bytes) || evict(t, (struct goal){bytes, UINT64_MAX});
}

/* ---- limits ---------------------------------------------------------------------------------- */

void tree_limit(struct prefix_tree *t, uint32_t max_entries, uint64_t max_bytes) {
    t->max_entries = max_entries ? max_entries : UINT32_MAX;
    t->max_bytes = max_bytes ? max_bytes : UINT64_MAX;
    tree_keep_limits(t);
}

/* Removes the leaf that would be evicted first, and the nodes that lead to it alone. It stops at
 * a node that was used later than the leaf: a later prompt ended there, so that node is now an
 * entry. */
static void evict_entry(struct prefix_tree *t) {
    const uint64_t pages = kv_pool_stats(t->cache->pool).pages_used;
    uint32_t x = t->heaps[LEAVES].nodes[0];
    const uint64_t used = t->nodes[x].used;
    for (bool last = false; !last;) {
        const uint32_t parent = t->nodes[x].parent;
        last = is_root(t, parent) || t->nodes[parent].pins || t->nodes[parent].used > used ||
               t->nodes[x].next != NO_NODE || t->nodes[x].prev != NO_NODE;
        node_note_gone(t, x, false);
        node_remove(t, x);
        x = parent;
    }
    t->stats.evicted_pages += pages - kv_pool_stats(t->cache->pool).pages_used;
}

void tree_keep_limits(struct prefix_tree *t) {
    while (t->heaps[LEAVES].n > t->max_entries)
        evict_entry(t);
    (void)evict(t, (struct goal){0, t->max_bytes});
}

static uint32_t first_leaf(const struct prefix_tree *t, uint32_t x) {
    while (t->nodes[x].first_child != NO_NODE)
        x = t->nodes[x].first_child;
    return x;
}

/* A node that stays although its salt is forgotten: tiers have forgotten its page. */
static void keep_pinned(struct prefix_tree *t, uint32_t x) {
    t->nodes[x].offered = t->nodes[x].refused = 0;
    node_settle(t, x);
}

/* Removes every node of a salt that no cursor pins, children first. The root goes with its last
 * child. While a child is removed its parent is pinned, so that it does not merge before its
 * turn. */
static void forget_below(struct prefix_tree *t, uint32_t root) {
    for (uint32_t x = first_leaf(t, root); x != root;) {
        const uint32_t parent = t->nodes[x].parent, next = t->nodes[x].next;
        t->nodes[parent].pins += parent != root;
        node_set_favour(t, x, 0);
        if (is_leaf(t, x) && !t->nodes[x].pins)
            node_remove(t, x);
        else
            keep_pinned(t, x);
        if (parent != root)
            t->nodes[parent].pins--;
        x = next != NO_NODE ? first_leaf(t, next) : parent;
    }
}

void tree_forget(struct prefix_tree *t, const void *salt, size_t salt_len) {
    uint32_t root = salt ? tree_find_root(t, salt, salt_len) : t->first_root;
    tree_forget_gone(t);
    while (root != NO_NODE) {
        const uint32_t next = salt ? NO_NODE : t->nodes[root].next;
        forget_below(t, root);
        root = next;
    }
}

/* ---- ends of lives --------------------------------------------------------------------------- */

/* Removes a leaf that has expired, and then the ancestors that lead to it alone, likewise. */
static void expire(struct prefix_tree *t, uint32_t x) {
    for (bool last = false; !last && is_leaf(t, x) && !t->nodes[x].pins && has_expired(t, x);) {
        const struct node *n = &t->nodes[x];
        const uint32_t parent = n->parent;
        last = is_root(t, parent) || n->next != NO_NODE || n->prev != NO_NODE;
        t->stats.expired_tokens += (uint64_t)(n->to - n->from);
        node_note_gone(t, x, true);
        node_remove(t, x);
        x = parent;
    }
}

bool tree_expire(struct prefix_tree *t, uint64_t now, uint32_t nodes) {
    t->now = now > t->now ? now : t->now; /* a clock that was put back brings nothing back */
    if (t->now < t->next_expiry)
        return false;
    if (t->expire_at == 0)
        t->expiry_seen = TREE_FOREVER;
    for (uint32_t i = 0; i < nodes && t->expire_at < t->n_made; i++) {
        const uint32_t x = t->expire_at++;
        if (t->nodes[x].from == t->nodes[x].to) /* a root, or free */
            continue;
        expire(t, x);
        if (t->nodes[x].from != t->nodes[x].to && t->nodes[x].expires < t->expiry_seen)
            t->expiry_seen = t->nodes[x].expires;
    }
    if (t->expire_at < t->n_made)
        return true;
    t->next_expiry = t->expiry_seen; /* in the past, if cursors pin what has expired */
    t->expire_at = 0;
    return false;
}

uint64_t tree_next_expiry(const struct prefix_tree *t) {
    return t->next_expiry;
}

uint64_t tree_expiry(const struct prefix_tree *t, uint32_t seconds) {
    const uint64_t at = t->now + seconds;
    return seconds && at < TREE_FOREVER ? at : TREE_FOREVER;
}

/* ---- favour ---------------------------------------------------------------------------------- */

/* What it costs to favour a node. */
static uint64_t favour_bytes(const struct prefix_tree *t, uint32_t x) {
    return round_up(t->node_bytes + node_held_bytes(t, x), FAVOUR_UNIT);
}

static void set_favour(struct prefix_tree *t, uint32_t x, uint64_t bytes) {
    node_set_favour(t, x, bytes);
    if (t->nodes[x].heap_at != NO_NODE)
        tree_heap_update(t, x);
}

/* The path that ends with node `end`, as far as there is room. */
static void favour_path(struct prefix_tree *t, uint32_t end, enum favour by) {
    const uint64_t most = kv_pool_stats(t->cache->pool).budget_bytes / TREE_PINNED_SHARE;
    uint64_t wanted = t->stats.pinned_bytes;
    for (uint32_t x = end; !is_root(t, x); x = t->nodes[x].parent)
        wanted += t->nodes[x].favour ? 0 : favour_bytes(t, x);
    for (uint32_t x = end; !is_root(t, x); x = t->nodes[x].parent) {
        if (!t->nodes[x].favour && wanted > most) {
            wanted -= favour_bytes(t, x); /* the path's end is of no use without the rest */
            continue;
        }
        if (!t->nodes[x].favour)
            set_favour(t, x, favour_bytes(t, x));
        t->nodes[x].favoured_by |= (uint8_t)by;
    }
}

void tree_favour(struct prefix_tree *t, const struct tree_cursor *at) {
    if (at->node != TREE_NOWHERE)
        favour_path(t, at->node, FAVOUR_REQUESTS);
}

void tree_hold(struct prefix_tree *t, const void *salt, size_t salt_len, const int32_t *tokens,
               uint32_t n) {
    const uint32_t root = tree_find_root(t, salt, salt_len);
    if (root != NO_NODE)
        favour_path(t, tree_walk(t, root, tokens, n, n).node, FAVOUR_HOLD);
}

void tree_release(struct prefix_tree *t, const void *salt, size_t salt_len, const int32_t *tokens,
                  uint32_t n, uint32_t keep) {
    const uint32_t root = tree_find_root(t, salt, salt_len);
    if (root == NO_NODE)
        return;
    for (uint32_t x = tree_walk(t, root, tokens, n, n).node; !is_root(t, x);) {
        struct node *node = &t->nodes[x];
        if (node->number * TILE_TOKENS + node->from < keep)
            return;
        node->favoured_by &= (uint8_t)~FAVOUR_HOLD;
        if (!node->favoured_by && node->favour)
            set_favour(t, x, 0);
        x = node->parent;
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

/* Whether a stored sequence through x has at least so many tokens. */
static bool reaches(const struct prefix_tree *t, uint32_t x, uint32_t tokens) {
    for (uint32_t y = x; y != NO_NODE; y = node_next(t, y, x))
        if (node_end(t, y) >= tokens)
            return true;
    return false;
}

/* Whether the page must be re-encoded. The node covers the whole page and only the tree holds
 * it. (A page that is split, or in which a sequence ended, keeps its format: whoever continues
 * there writes to a copy of it.) */
static bool must_requantize(const struct prefix_tree *t, uint32_t x, uint32_t group) {
    const struct kv_page *page = node_page(t, x, group);
    return page->addr != NO_ADDR && !page_is_live(t->cache->pool, page->addr) &&
           !t->nodes[x].queued &&
           page->layout != layout_of(&t->stored_rule, group, t->nodes[x].number);
}

static bool requantize_page(struct prefix_tree *t, uint32_t x, uint32_t group) {
    struct kv_cache *c = t->cache;
    const uint32_t layout = layout_of(&t->stored_rule, group, t->nodes[x].number);
    struct kv_page to;
    node_pin(t, x); /* or making room might evict it */
    const bool good =
        tree_make_room(t, c->layouts[group][layout].page_bytes) &&
        page_convert_new(c, group, t->nodes[x].number, *node_page(t, x, group), layout, &to);
    if (good) {
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
