/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the prefix tree share. Each calls only those before it:
 *
 *     tree_policy.c   which node goes first: keys, two heaps
 *     tree_nodes.c    nodes: children, pages, roots, splitting, merging
 *     tree_evict.c    making room, limits, fewer bits
 *     tree.c          life, hits, storing, checking
 */
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
    uint32_t pins;               /* cursors at this node */
    uint32_t heap_at;            /* index in its heap, or NO_NODE */
    uint32_t state;              /* the state after its last token, or NO_ADDR */
    uint32_t uses;               /* requests that went through it since it was stored */
    bool abandoned;              /* see node_abandon_rest */
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

/* Nodes that may be evicted, or parts of them: a heap for each kind, lowest key first. */
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

static inline bool is_leaf(const struct prefix_tree *t, uint32_t x) {
    return t->nodes[x].first_child == NO_NODE;
}

/* ---- which goes first (tree_policy.c) -------------------------------------------------------- */

/* After a change of what a node's place among the candidates depends on: children, pins, pages,
 * use. */
void tree_heap_update(struct prefix_tree *t, uint32_t x);
void tree_heap_remove(struct prefix_tree *t, uint32_t x);
/* The candidate with the lowest key, or NO_NODE. */
uint32_t tree_first_candidate(const struct prefix_tree *t);
void tree_heap_check(const struct prefix_tree *t);
/* A request uses the node; the clock has counted it already. ends: its next query sees the node's
 * windowed pages, or begins with its state. */
void node_note_use(struct prefix_tree *t, uint32_t x, bool ends);
/* A request went along node x, of which `matched` tokens agree, and goes on elsewhere. */
void node_abandon_rest(struct prefix_tree *t, uint32_t x, uint32_t matched);

/* ---- nodes (tree_nodes.c) -------------------------------------------------------------------- */

/* The child whose first token it is, or NO_NODE. */
uint32_t node_find_child(const struct prefix_tree *t, uint32_t parent, int32_t token);
void node_link(struct prefix_tree *t, uint32_t parent, uint32_t x);
/* An empty node, charged to the budget, which has room for it (tree_make_room); NO_NODE: all
 * numbers are taken. */
uint32_t node_make(struct prefix_tree *t);
/* The root of a salt, or NO_NODE; what a root costs beside a node; a new root, for which there is
 * room, or NO_NODE: out of memory. */
uint32_t tree_find_root(const struct prefix_tree *t, const void *salt, size_t len);
uint64_t tree_salt_bytes(size_t len);
uint32_t node_make_root(struct prefix_tree *t, const void *salt, size_t len);
/* A pinned node is not evicted; pins are counted. */
void node_pin(struct prefix_tree *t, uint32_t x);
void node_unpin(struct prefix_tree *t, uint32_t x);
/* Splits node x at token `cut` of its page: the empty node u becomes the upper part. */
void node_split(struct prefix_tree *t, uint32_t x, uint32_t u, uint8_t cut);
/* Removes a node without children, with all that it holds. Its parent may then merge with its only
 * child, which frees the parent's number. */
void node_remove(struct prefix_tree *t, uint32_t x);
/* After a node lost a child, its last cursor or its state: merges it with its only child, or
 * updates its place among the candidates. */
void node_settle(struct prefix_tree *t, uint32_t x);
/* The node holds this page of the group, instead of the one it held. */
void node_hold_page(struct prefix_tree *t, uint32_t x, uint32_t group, struct kv_page page);
/* Replaces the page `from` of a group by `to` in the node and in those above it in its page. */
void node_exchange_page(struct prefix_tree *t, uint32_t x, uint32_t group, uint32_t from,
                        struct kv_page to);
/* Before a node loses its page of the group: nodes above it in that page take another child's
 * (T2). */
void node_lend_elsewhere(struct prefix_tree *t, uint32_t x, uint32_t group);

/* ---- eviction (tree_evict.c) ----------------------------------------------------------------- */

/* T7 */
void tree_keep_limits(struct prefix_tree *t);

#endif
