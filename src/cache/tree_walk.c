/* SPDX-License-Identifier: Apache-2.0 */
/* tree_walk.c: follows a prompt through the tree: how far its tokens agree, what of that a sequence
 * may start with, and why it is no more. tree.h has the drawing and the invariants.
 */
#include <string.h>

#include "cache/tree_internal.h"

/* ---- walking --------------------------------------------------------------------------------- */

/* While walking: the last page that is missing in each group; -1: none. */
struct gaps {
    int64_t before[CACHE_GROUPS_MAX], now[CACHE_GROUPS_MAX]; /* without the current page; with it */
    uint32_t number;
};

static void gaps_pass(const struct prefix_tree *t, struct gaps *gaps, uint32_t x) {
    if (t->nodes[x].number != gaps->number) {
        memcpy(gaps->before, gaps->now, sizeof gaps->before);
        gaps->number = t->nodes[x].number;
    }
    for (uint32_t g = 0; g < t->cache->n_groups; g++)
        gaps->now[g] =
            node_page(t, x, g)->addr == NO_ADDR ? (int64_t)gaps->number : gaps->before[g];
}

/* Whether a sequence may start with `length` tokens, the last of them in node x: the tree has
 * all that its next query sees, and a page that it will write to has the live format, which is not
 * encoded only when the page is full. */
static bool serves(const struct prefix_tree *t, const struct gaps *gaps, uint32_t x,
                   uint32_t length) {
    const struct kv_cache *c = t->cache;
    if (c->snapshot_bytes && (length < node_end(t, x) || t->nodes[x].state == NO_ADDR))
        return false;
    for (uint32_t g = 0; g < c->n_groups; g++) {
        if (gaps->now[g] >= (int64_t)first_held(&c->groups[g], length))
            return false;
        const uint32_t live = layout_of(&c->rule, g, length / TILE_TOKENS);
        if (length % TILE_TOKENS &&
            (node_page(t, x, g)->layout != live || cache_is_whole(c, g, live)))
            return false;
    }
    return true;
}

struct walk tree_walk(const struct prefix_tree *t, uint32_t root, const int32_t *tokens, uint32_t n,
                      uint32_t usable) {
    struct walk w = {.node = root, .best = NO_NODE};
    struct gaps gaps = {.number = UINT32_MAX};
    memset(gaps.now, -1, sizeof gaps.now);
    while (w.common < n) {
        const uint32_t x = node_find_child(t, w.node, tokens[w.common]);
        if (x == NO_NODE || has_expired(t, x))
            break;
        const struct node *node = &t->nodes[x];
        const uint32_t m = common_run(node, tokens + w.common, n - w.common);
        uint32_t use = w.common < usable ? usable - w.common : 0;
        use = use < m ? use : m;
        gaps_pass(t, &gaps, x);
        if (use && serves(t, &gaps, x, w.common + use)) {
            w.best = x;
            w.length = w.common + use;
        }
        w.node = x;
        w.matched = m;
        w.common += m;
        if (m < (uint32_t)(node->to - node->from))
            break;
    }
    return w;
}

kvasir_hit walk_hit_kind(const struct prefix_tree *t, const struct walk *w, uint32_t n) {
    if (w->length == 0)
        return KVASIR_HIT_MISS;
    const struct node *x = &t->nodes[w->node];
    const bool ended = w->matched == (uint32_t)(x->to - x->from) && x->hit_point;
    if (w->common == n)
        return ended ? KVASIR_HIT_EXACT : KVASIR_HIT_SUPERSEQUENCE;
    return ended ? KVASIR_HIT_PREFIX : KVASIR_HIT_COMMON_PREFIX;
}

/* ---- looking --------------------------------------------------------------------------------- */

struct tree_hit tree_look(const struct prefix_tree *t, const void *salt, size_t salt_len,
                          const int32_t *tokens, uint32_t n) {
    const uint32_t root = tree_find_root(t, salt, salt_len);
    if (root == NO_NODE || n == 0)
        return (struct tree_hit){.kind = KVASIR_HIT_MISS};
    const struct walk w = tree_walk(t, root, tokens, n, n - 1);
    return (struct tree_hit){w.length, w.common, walk_hit_kind(t, &w, n)};
}

/* The walk's last tokens are in the tree and may not be used: what is missing for a sequence that
 * ends with them. */
static kvasir_miss why_unusable(const struct prefix_tree *t, const struct walk *w,
                                uint32_t length) {
    const struct kv_cache *c = t->cache;
    for (uint32_t g = 0; g < c->n_groups; g++) {
        uint32_t above = pages_for(length); /* of the nodes in a page the deepest counts */
        for (uint32_t y = w->node; !is_root(t, y); y = t->nodes[y].parent) {
            const uint32_t number = t->nodes[y].number;
            if (number < above && number >= first_held(&c->groups[g], length) &&
                node_page(t, y, g)->addr == NO_ADDR)
                return KVASIR_MISS_WINDOW;
            above = min_u32(above, number);
        }
    }
    return c->snapshot_bytes ? KVASIR_MISS_STATE : KVASIR_MISS_FORMATS;
}

/* What the tree has after the walk instead of the prompt's next token; -1: nothing. */
static int32_t other_token(const struct prefix_tree *t, const struct walk *w) {
    const struct node *n = &t->nodes[w->node];
    uint32_t best = NO_NODE;
    if (!is_root(t, w->node) && w->matched < (uint32_t)(n->to - n->from))
        return n->tokens[n->from + w->matched];
    for (uint32_t y = n->first_child; y != NO_NODE; y = t->nodes[y].next)
        if (!has_expired(t, y) && (best == NO_NODE || t->nodes[y].used > t->nodes[best].used))
            best = y;
    return best == NO_NODE ? -1 : t->nodes[best].tokens[t->nodes[best].from];
}

/* Whether the prompt's page in which the walk ended is one that is known to be gone. */
static kvasir_miss why_ended(const struct prefix_tree *t, struct tier_key before,
                             const int32_t *tokens, uint32_t n, uint32_t common) {
    const uint32_t begin = common / TILE_TOKENS * TILE_TOKENS;
    if (!t->chained || n - begin < TILE_TOKENS)
        return KVASIR_MISS_NEW;
    return tree_why_gone(t, chain_next(before, tokens + begin));
}

struct tree_hit tree_explain(const struct prefix_tree *t, const void *salt, size_t salt_len,
                             const int32_t *tokens, uint32_t n, struct tree_miss *miss) {
    const uint32_t root = tree_find_root(t, salt, salt_len), usable = n ? n - 1 : 0;
    struct walk w = {0};
    *miss = (struct tree_miss){KVASIR_MISS_NOTHING, -1};
    if (root != NO_NODE && n)
        w = tree_walk(t, root, tokens, n, usable);
    const struct tree_hit hit = {w.length, w.common,
                                 root == NO_NODE || !n ? KVASIR_HIT_MISS : walk_hit_kind(t, &w, n)};
    if (w.common < n && root != NO_NODE)
        miss->other = other_token(t, &w);
    if (w.length < min_u32(w.common, usable)) {
        miss->why = why_unusable(t, &w, min_u32(w.common, usable));
    } else if (w.length < usable) {
        struct tier_key before = {{0}};
        if (root == NO_NODE && t->chained)
            before = chain_root(t->context, salt, salt_len);
        else if (root != NO_NODE)
            before = t->nodes[w.common % TILE_TOKENS ? node_before_page(t, w.node) : w.node].chain;
        miss->why = why_ended(t, before, tokens, n, w.common);
    }
    return hit;
}

uint32_t tree_common_elsewhere(const struct prefix_tree *t, const void *salt, size_t salt_len,
                               const int32_t *tokens, uint32_t n) {
    const uint32_t own = tree_find_root(t, salt, salt_len);
    uint32_t most = 0;
    for (uint32_t root = t->first_root; root != NO_NODE; root = t->nodes[root].next)
        if (root != own)
            most = max_u32(most, tree_walk(t, root, tokens, n, n).common);
    return most;
}
