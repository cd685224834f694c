/* SPDX-License-Identifier: Apache-2.0 */
/* What tree.c and tree_evict.c share: nodes, and where they stand. */
#ifndef KVASIR_CACHE_TREE_INTERNAL_H
#define KVASIR_CACHE_TREE_INTERNAL_H

#include "cache/cache_internal.h"

enum { NO_NODE = UINT32_MAX, NO_ADDR = UINT32_MAX };

struct node {
    uint32_t parent;             /* NO_NODE: this is the root of a salt */
    uint32_t first_child;        /* or NO_NODE */
    uint32_t prev, next;         /* siblings; next also links free nodes and salts */
    uint32_t hash_next;          /* of the bucket */
    uint32_t number;             /* of its page; of a root: its salt's index */
    uint8_t from, to;            /* tokens [from, to) of that page; of roots, free nodes: 0, 0 */
    bool point;                  /* a stored sequence ended here */
    uint8_t heap;                /* enum candidate: which one */
    uint32_t locks;              /* cursors that stand here */
    uint32_t heap_at;            /* place in its heap, or NO_NODE */
    uint32_t state;              /* the record behind its last token, or NO_ADDR */
    uint32_t uses;               /* requests that went through it since it was stored */
    bool left_behind;            /* see leave_behind in tree_evict.c */
    uint64_t used, ended;        /* clock of the last hit through it; of the last that saw its
                                    windowed pages or began with its state */
    double key;                  /* of its place in the heap */
    int32_t tokens[TILE_TOKENS]; /* [from, to) are set */
};

struct salt {
    char *bytes; /* NULL: free */
    size_t len;
    uint32_t root;
};

/* Nodes that may be evicted, or parts of them, those of each kind in a heap of its own: lowest key
 * first. */
enum candidate { ENDS, INNER, CANDIDATES };
struct node_heap {
    uint32_t *nodes; /* [max_nodes] */
    uint32_t n;
};

struct prefix_tree {
    struct kv_cache *cache;
    /* Address space for as many nodes as the budget could pay; memory comes when touched. */
    uint32_t max_nodes, n_made, free_node;
    struct node *nodes;    /* [max_nodes] */
    struct kv_page *pages; /* [max_nodes][n_groups]; addr NO_ADDR: not there */
    uint32_t *buckets;     /* [n_buckets] of (parent, first token) */
    uint32_t n_buckets;
    struct node_heap heaps[CANDIDATES];
    uint32_t max_ends; /* UINT32_MAX, UINT64_MAX: no limit */
    uint64_t max_bytes;
    struct salt *salts; /* [cap_salts] */
    uint32_t cap_salts;
    uint64_t node_bytes; /* what one is charged */
    uint64_t clock;      /* requests so far */
    /* the policy's: requests between two uses of a page on average, over `ages` of them; where a
     * page costs twice as much as a first one to compute anew */
    double mean_age;
    uint64_t ages;
    uint32_t rebuild_tokens;
    struct tree_stats stats;
    /* stored formats */
    bool requantizes;
    struct layout_rule stored_rule;
    uint32_t min_tokens, requantize_at; /* the node to look at next */
};

static inline struct kv_page *node_page(const struct prefix_tree *t, uint32_t x, uint32_t group) {
    return &t->pages[(size_t)x * t->cache->n_groups + group];
}
static inline bool is_root(const struct prefix_tree *t, uint32_t x) {
    return t->nodes[x].parent == NO_NODE;
}
/* Tokens up to and with the node's last one. */
static inline uint32_t node_end(const struct prefix_tree *t, uint32_t x) {
    return is_root(t, x) ? 0 : t->nodes[x].number * TILE_TOKENS + t->nodes[x].to;
}
/* Whether a node and its parent are parts of one page. */
static inline bool in_parents_page(const struct prefix_tree *t, uint32_t x) {
    const struct node *n = &t->nodes[x];
    return !is_root(t, n->parent) && t->nodes[n->parent].number == n->number;
}
/* The node after x in a walk over the subtree of `top`, parents first; NO_NODE: x was the last one.
 * Paths may be as deep as a sequence has tokens, so nothing here recurses. */
static inline uint32_t node_next(const struct prefix_tree *t, uint32_t x, uint32_t top) {
    if (t->nodes[x].first_child != NO_NODE)
        return t->nodes[x].first_child;
    while (x != top && t->nodes[x].next == NO_NODE)
        x = t->nodes[x].parent;
    return x == top ? NO_NODE : t->nodes[x].next;
}
/* Pages of inner nodes that may go: those of groups whose queries do not see everything. */
static inline bool may_drop(const struct prefix_tree *t, uint32_t x, uint32_t group) {
    const struct kv_group *g = &t->cache->groups[group];
    return g->span != UINT32_MAX && t->nodes[x].number >= g->kept_pages;
}

/* A locked node is not evicted; locks count. */
void node_lock(struct prefix_tree *t, uint32_t x);
void node_unlock(struct prefix_tree *t, uint32_t x);
/* Takes a node without children off the tree, with all that it holds (tree.c). Its parent may merge
 * with the only child that is left: parent's number is then free. */
void node_remove(struct prefix_tree *t, uint32_t x);
/* After a node lost a child, its last cursor or its state: merges it with its only child, or gives
 * it its place among the candidates. */
void node_settle(struct prefix_tree *t, uint32_t x);
/* The node holds this page of the group, in place of the one it held. */
void hold_page(struct prefix_tree *t, uint32_t x, uint32_t group, struct kv_page page);
/* Puts the page `to` of a group in place of `from` in the node and those above it in its page. */
void page_exchange(struct prefix_tree *t, uint32_t x, uint32_t group, uint32_t from,
                   struct kv_page to);
/* Before a node loses its page of the group: what is above it in that page takes another child's
 * (T2). */
void page_lend_elsewhere(struct prefix_tree *t, uint32_t x, uint32_t group);

/* ---- eviction (tree_evict.c) ---- */

/* After anything that its place among the candidates depends on: children, locks, pages, use. */
void heap_update(struct prefix_tree *t, uint32_t x);
void heap_remove(struct prefix_tree *t, uint32_t x);
void heap_check(const struct prefix_tree *t);
/* T7 */
void keep_limits(struct prefix_tree *t);
/* A request uses the node, after `clock` has counted it; ends: its next query sees the node's
 * windowed pages, or begins with its state. */
void note_use(struct prefix_tree *t, uint32_t x, bool ends);
/* A request went along node x, of which `matched` tokens agree, and goes on elsewhere. */
void leave_behind(struct prefix_tree *t, uint32_t x, uint32_t matched);

#endif
