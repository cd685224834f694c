/* SPDX-License-Identifier: Apache-2.0 */
/* tree_policy.c: which node of the prefix tree is evicted first. docs/cache-policy.md explains the
 * keys and what they were measured against.
 *
 * Candidates are in two heaps by key, lowest first, so an update costs O(log n):
 *
 *     leaves       without a cursor: the node is removed, and its parent may become a leaf
 *     inner nodes  with window pages or a state: those are dropped, the node is kept (TREE-3)
 *
 * Leaves at which no hit can end (a page or the state is gone) are evicted first, then abandoned
 * ones, then the rest; of those and of inner nodes the favoured ones (tree_favour) last.
 */
#include "cache/tree_internal.h"

/* ---- the policy ------------------------------------------------------------------------------ */

static bool is_useless(const struct prefix_tree *t, uint32_t x) {
    for (uint32_t g = 0; g < t->cache->n_groups; g++)
        if (node_page(t, x, g)->addr == NO_ADDR)
            return true;
    return t->cache->snapshot_bytes && t->nodes[x].state == NO_ADDR;
}

/* Let G be the mean age at which pages are used again. The chance that a page is used again
 * halves for every G/2 requests that pass; a page used twice as often is about twice as likely
 * to be used again; a late page costs more to compute. So pages are ordered by uses * cost *
 * 2^(-age / (G/2)). That order does not change as time passes, and neither does that of the
 * logarithm, which is the key. */
static double leaf_key(const struct prefix_tree *t, const struct node *n) {
    static const double LN2 = 0.693147180559945309417;
    const double position = (double)n->number * TILE_TOKENS,
                 cost = 1 + position / (double)t->rebuild_tokens;
    return (double)n->used + t->mean_age / 2 * m_log((double)n->uses * cost) / LN2;
}

/* What favour adds to a key. */
static double later(const struct node *n) {
    static const double LAST = 0x1p50; /* above the keys of all others; fractions still count */
    return n->favour ? LAST : 0;
}

double node_use_key(const struct prefix_tree *t, uint32_t x) {
    const struct node *n = &t->nodes[x];
    return n->abandoned && !n->favour ? -1 : leaf_key(t, n) + later(n);
}

static double node_key(const struct prefix_tree *t, uint32_t x) {
    const struct node *n = &t->nodes[x];
    if (!is_leaf(t, x))
        return (double)n->resumed + later(n);
    return is_useless(t, x) ? -2 : node_use_key(t, x);
}

void node_note_use(struct prefix_tree *t, uint32_t x, bool resumes) {
    enum { MEMORY = 10000 }; /* uses that the mean age remembers */
    struct node *n = &t->nodes[x];
    t->ages += t->ages < MEMORY;
    t->mean_age += ((double)(t->clock - n->used) - t->mean_age) / (double)t->ages;
    n->used = t->clock;
    n->uses++;
    if (resumes)
        n->resumed = t->clock;
    if (n->heap_at != NO_NODE)
        tree_heap_update(t, x);
}

static uint32_t only_child(const struct prefix_tree *t, uint32_t x) {
    const uint32_t y = t->nodes[x].first_child;
    return y != NO_NODE && t->nodes[y].next == NO_NODE ? y : NO_NODE;
}

/* A chain of nodes with equal use counts is a conversation: each request used all of it and
 * added a step. If a request leaves the chain and continues with other tokens, the rest of the
 * chain is the conversation's old end (an answer generated again, or a template that renders
 * past turns differently). Nobody will come back for it. */
void node_abandon_rest(struct prefix_tree *t, uint32_t x, uint32_t matched) {
    const uint32_t uses = t->nodes[x].uses;
    const bool whole = matched == (uint32_t)(t->nodes[x].to - t->nodes[x].from);
    const uint32_t first = whole ? only_child(t, x) : x;
    for (uint32_t y = first; y != NO_NODE; y = only_child(t, y))
        if (t->nodes[y].pins) /* a running sequence is on it */
            return;
    for (uint32_t y = first; y != NO_NODE && t->nodes[y].uses == uses; y = only_child(t, y)) {
        t->nodes[y].abandoned = true;
        if (t->nodes[y].heap_at != NO_NODE)
            tree_heap_update(t, y);
    }
}

/* ---- the heaps ------------------------------------------------------------------------------- */

static bool is_candidate(const struct prefix_tree *t, uint32_t x) {
    const struct node *n = &t->nodes[x];
    if (is_root(t, x) || n->pins)
        return false;
    if (is_leaf(t, x) || n->state != NO_ADDR)
        return true;
    for (uint32_t g = 0; g < t->cache->n_groups; g++)
        if (may_drop(t, x, g) && node_page(t, x, g)->addr != NO_ADDR)
            return true;
    return false;
}

static double key_at(const struct prefix_tree *t, const struct node_heap *h, uint32_t at) {
    return t->nodes[h->nodes[at]].key;
}

static void heap_put(struct prefix_tree *t, struct node_heap *h, uint32_t at, uint32_t x) {
    h->nodes[at] = x;
    t->nodes[x].heap_at = at;
}

static void sift_up(struct prefix_tree *t, struct node_heap *h, uint32_t at) {
    const uint32_t x = h->nodes[at];
    const double key = t->nodes[x].key;
    while (at > 0 && key_at(t, h, (at - 1) / 2) > key) {
        heap_put(t, h, at, h->nodes[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_put(t, h, at, x);
}

static void sift_down(struct prefix_tree *t, struct node_heap *h, uint32_t at) {
    const uint32_t x = h->nodes[at];
    const double key = t->nodes[x].key;
    for (uint32_t child; (child = 2 * at + 1) < h->n; at = child) {
        if (child + 1 < h->n && key_at(t, h, child + 1) < key_at(t, h, child))
            child++;
        if (key_at(t, h, child) >= key)
            break;
        heap_put(t, h, at, h->nodes[child]);
    }
    heap_put(t, h, at, x);
}

void tree_heap_remove(struct prefix_tree *t, uint32_t x) {
    const uint32_t at = t->nodes[x].heap_at;
    struct node_heap *h = &t->heaps[t->nodes[x].heap];
    if (at == NO_NODE)
        return;
    t->nodes[x].heap_at = NO_NODE;
    const uint32_t last = h->nodes[--h->n];
    if (last == x)
        return;
    heap_put(t, h, at, last);
    sift_up(t, h, at);
    sift_down(t, h, t->nodes[last].heap_at);
}

void tree_heap_update(struct prefix_tree *t, uint32_t x) {
    struct node *n = &t->nodes[x];
    const uint8_t kind = is_leaf(t, x) ? LEAVES : INNER;
    struct node_heap *h = &t->heaps[kind];
    if (!is_candidate(t, x) || n->heap != kind)
        tree_heap_remove(t, x);
    if (!is_candidate(t, x))
        return;
    n->heap = kind;
    n->key = node_key(t, x);
    if (n->heap_at == NO_NODE)
        heap_put(t, h, h->n++, x);
    sift_up(t, h, n->heap_at);
    sift_down(t, h, n->heap_at);
}

uint32_t tree_first_candidate(const struct prefix_tree *t) {
    const struct node_heap *leaves = &t->heaps[LEAVES], *inner = &t->heaps[INNER];
    if (leaves->n && (!inner->n || key_at(t, leaves, 0) <= key_at(t, inner, 0)))
        return leaves->nodes[0];
    return inner->n ? inner->nodes[0] : NO_NODE;
}

void tree_heap_check(const struct prefix_tree *t) {
    for (int kind = 0; kind < CANDIDATES; kind++) {
        const struct node_heap *h = &t->heaps[kind];
        for (uint32_t i = 0; i < h->n; i++) {
            const struct node *n = &t->nodes[h->nodes[i]];
            ASSERT(n->heap_at == i && n->heap == kind && is_candidate(t, h->nodes[i]));
            ASSERT(is_leaf(t, h->nodes[i]) == (kind == LEAVES));
            ASSERT(i == 0 || key_at(t, h, (i - 1) / 2) <= n->key);
        }
    }
}
