/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the prefix tree share. Each calls only those before it:
 *
 *     tree_policy.c   which node is evicted first: keys, two heaps
 *     tree_chain.c    what a node's page is called in tiers; which of them are gone
 *     tree_nodes.c    nodes: children, pages, roots, splitting, merging
 *     tree_walk.c     following a prompt: what can be used of it, and why no more
 *     ladder.c        (of the cache) pages at fewer bits as the budget fills
 *     tree_evict.c    making room, limits, ends of lives, fewer bits
 *     tree.c          life, hits, storing, checking
 */
#ifndef KVASIR_CACHE_TREE_INTERNAL_H
#define KVASIR_CACHE_TREE_INTERNAL_H

#include "cache/cache_internal.h"
#include "cache/tier.h"

enum { NO_NODE = UINT32_MAX, NO_ADDR = UINT32_MAX };

struct node {
    uint32_t parent;        /* NO_NODE: it is the root of a salt */
    uint32_t first_child;   /* or NO_NODE */
    uint32_t prev, next;    /* siblings; roots are the list first_root; free nodes: next */
    uint32_t hash_next;     /* of the bucket */
    uint32_t number;        /* of its page */
    uint8_t from, to;       /* tokens [from, to) of that page; 0, 0: a root or free */
    bool hit_point;         /* a stored sequence ended here */
    uint8_t heap;           /* its heap (enum candidate) */
    uint32_t pins;          /* cursors at this node */
    uint32_t heap_at;       /* index in its heap, or NO_NODE */
    uint32_t state;         /* page of the snapshot after its last token, or NO_ADDR */
    uint32_t uses;          /* requests that went through it since it was stored */
    bool abandoned;         /* see node_abandon_rest */
    uint8_t offered;        /* tiers that were given its page, or that it came from: a bit each */
    uint8_t refused;        /* tiers that did not take it when they were given it last */
    uint8_t queued;         /* so many tiers have not copied its pages yet: they must not change */
    bool descended;         /* the ladder has re-encoded its pages, or some before them: LADDER-5 */
    bool outlives;          /* what tiers have is to be replaced: the node lives much longer */
    uint32_t expires;       /* seconds since 1970, or TREE_FOREVER */
    uint32_t offered_until; /* likewise, of what tiers have of its page, if it was offered */
    uint32_t favour;        /* what tree_favour counted, in units; 0: it is evicted in its turn */
    uint8_t favoured_by;    /* by whom (enum favour); 0 if favour is */
    uint64_t used;          /* clock of the last hit through it */
    uint64_t resumed;       /* clock of the last hit that needed its window pages or state */
    double key;             /* its order in the heap */
    /* With tiers: K(i) of a node that ends a page (to is TILE_TOKENS); K(0) of a root. */
    struct tier_key chain;
    union {
        int32_t tokens[TILE_TOKENS]; /* [from, to) are set */
        struct {
            int32_t salt_hash; /* of a root: is tokens[0], by which it is found */
            struct salt *salt;
        };
    };
};

struct salt {
    size_t len;
    char bytes[];
};

/* Names of pages that were evicted or have expired lately: each in the one place that its first
 * bits give, where a later one replaces it. */
enum { GONE_MAX = 4096 };

enum { FAVOUR_UNIT = 1024 };                          /* bytes */
enum favour { FAVOUR_REQUESTS = 1, FAVOUR_HOLD = 2 }; /* tree_favour, tree_hold: bits */

/* Candidates for eviction, or for losing pages: one heap for leaves, one for inner nodes; the
 * lowest key is first. */
enum candidate { LEAVES, INNER, CANDIDATES };
struct node_heap {
    uint32_t *nodes; /* [max_nodes] */
    uint32_t n;
};

struct prefix_tree {
    struct kv_cache *cache;
    /* Address space for as many nodes as the budget could pay for. Memory comes when touched. */
    uint32_t max_nodes, n_made, free_node;
    struct node *nodes;    /* [max_nodes] */
    struct kv_page *pages; /* addr NO_ADDR: not held */
    uint32_t *buckets;     /* [n_buckets] of (parent, first token) */
    uint32_t n_buckets;
    struct node_heap heaps[CANDIDATES];
    uint32_t max_entries; /* UINT32_MAX, UINT64_MAX: no limit */
    uint64_t max_bytes;
    uint32_t first_root; /* or NO_NODE */
    uint64_t node_bytes; /* charged for one node */
    uint64_t clock;      /* requests so far */
    /* For the policy: the mean number of requests between two uses of a page, over `ages` uses;
     * the position at which computing a page costs twice as much as computing the first page. */
    double mean_age;
    uint64_t ages;
    uint32_t rebuild_tokens;
    struct tree_stats stats;
    bool chained; /* nodes have chain keys, which begin with this context's */
    struct tier_key context;
    struct tier_key gone[GONE_MAX]; /* with them; the last bit says that it has expired */
    /* Ends of lives: the time as tree_expire was told; no node expires before next_expiry; the
     * next node to look at, and the first expiry of those before it. */
    uint64_t now, next_expiry, expiry_seen;
    uint32_t expire_at;
    /* formats of stored pages */
    bool requantizes;
    struct layout_rule stored_rule;
    uint32_t min_tokens, requantize_at; /* next node to look at */
};

static inline struct kv_page *node_page(const struct prefix_tree *t, uint32_t x, uint32_t group) {
    return &t->pages[(size_t)x * t->cache->n_groups + group];
}
static inline bool is_root(const struct prefix_tree *t, uint32_t x) {
    return t->nodes[x].parent == NO_NODE;
}
/* Number of tokens up to the node's end. */
static inline uint32_t node_end(const struct prefix_tree *t, uint32_t x) {
    return is_root(t, x) ? 0 : t->nodes[x].number * TILE_TOKENS + t->nodes[x].to;
}
/* Whether a node and its parent are parts of one page. */
static inline bool in_parents_page(const struct prefix_tree *t, uint32_t x) {
    const struct node *n = &t->nodes[x];
    return !is_root(t, n->parent) && t->nodes[n->parent].number == n->number;
}
/* The node after x in a walk over the subtree of `top`, parents first; NO_NODE: x was the last
 * one. A path can have as many nodes as a sequence has tokens, so nothing here recurses. */
static inline uint32_t node_next(const struct prefix_tree *t, uint32_t x, uint32_t top) {
    if (t->nodes[x].first_child != NO_NODE)
        return t->nodes[x].first_child;
    while (x != top && t->nodes[x].next == NO_NODE)
        x = t->nodes[x].parent;
    return x == top ? NO_NODE : t->nodes[x].next;
}
/* Whether an inner node may lose its page of this group: only groups with a window or rotation,
 * and no kept pages. */
static inline bool may_drop(const struct prefix_tree *t, uint32_t x, uint32_t group) {
    const struct kv_group *g = &t->cache->groups[group];
    return g->span != UINT32_MAX && t->nodes[x].number >= g->kept_pages;
}

static inline bool has_expired(const struct prefix_tree *t, uint32_t x) {
    return t->nodes[x].expires <= t->now && !is_root(t, x);
}

/* How many of the node's tokens are those of a prompt, at most `most`. */
static inline uint32_t common_run(const struct node *n, const int32_t *tokens, uint32_t most) {
    uint32_t run = (uint32_t)(n->to - n->from), m = 0;
    run = run < most ? run : most;
    while (m < run && n->tokens[n->from + m] == tokens[m])
        m++;
    return m;
}

static inline uint64_t node_favour(const struct prefix_tree *t, uint32_t x) {
    return (uint64_t)t->nodes[x].favour * FAVOUR_UNIT;
}

static inline bool is_leaf(const struct prefix_tree *t, uint32_t x) {
    return t->nodes[x].first_child == NO_NODE;
}

/* ---- which goes first (tree_policy.c) -------------------------------------------------------- */

/* To call after a change of a node's children, pins, pages or use: updates its place among the
 * candidates. */
void tree_heap_update(struct prefix_tree *t, uint32_t x);
void tree_heap_remove(struct prefix_tree *t, uint32_t x);
/* Its order in the heap of leaves, if it were one at which hits can end. */
double node_use_key(const struct prefix_tree *t, uint32_t x);
/* The candidate with the lowest key, or NO_NODE. */
uint32_t tree_first_candidate(const struct prefix_tree *t);
void tree_heap_check(const struct prefix_tree *t);
/* A request uses the node, and the clock has counted that request. resumes: its next query sees
 * the node's window pages, or starts with its state. */
void node_note_use(struct prefix_tree *t, uint32_t x, bool resumes);
/* A request shares the first `matched` tokens of node x and then continues with others. */
void node_abandon_rest(struct prefix_tree *t, uint32_t x, uint32_t matched);

/* ---- names (tree_chain.c) -------------------------------------------------------------------- */

/* From now on nodes have chain keys. The tree is empty. */
void tree_chain_begin(struct prefix_tree *t, struct tier_key context);
/* For a node that has just been linked, or a root that has just been made. */
void node_set_chain(struct prefix_tree *t, uint32_t x);
/* All tokens of the page that node x ends (its `to` is TILE_TOKENS). */
void node_page_tokens(const struct prefix_tree *t, uint32_t x, int32_t tokens[TILE_TOKENS]);
/* The node or root that ends the page before node x's. */
uint32_t node_before_page(const struct prefix_tree *t, uint32_t x);
/* The root of node x. */
uint32_t node_root(const struct prefix_tree *t, uint32_t x);
/* The node is about to be removed: if it ends a page, that is known to be gone. */
void node_note_gone(struct prefix_tree *t, uint32_t x, bool expired);
/* Why the page of this name is not there, as far as is known. */
kvasir_miss tree_why_gone(const struct prefix_tree *t, struct tier_key chain);
void tree_forget_gone(struct prefix_tree *t);

/* ---- nodes (tree_nodes.c) -------------------------------------------------------------------- */

/* The child that begins with this token, or NO_NODE. */
uint32_t node_find_child(const struct prefix_tree *t, uint32_t parent, int32_t token);
/* The node that ends the page of these tokens after node `at`, which is a root or ends a page; or
 * NO_NODE: there is none, or it has expired. */
uint32_t node_find_page(const struct prefix_tree *t, uint32_t at,
                        const int32_t tokens[TILE_TOKENS]);
void node_link(struct prefix_tree *t, uint32_t parent, uint32_t x);
/* An empty node, charged to the budget, which must have room for it (tree_make_room). NO_NODE:
 * all node numbers are in use. */
uint32_t node_make(struct prefix_tree *t);
/* The root of a salt, or NO_NODE. What a root is charged besides a node. A new root, for which
 * there must be room, or NO_NODE: out of memory. */
uint32_t tree_find_root(const struct prefix_tree *t, const void *salt, size_t len);
uint64_t tree_salt_bytes(size_t len);
uint32_t node_make_root(struct prefix_tree *t, const void *salt, size_t len);
/* A pinned node is not evicted. Pins are counted. */
void node_pin(struct prefix_tree *t, uint32_t x);
void node_unpin(struct prefix_tree *t, uint32_t x);
/* Splits node x at token `cut` of its page. The empty node u becomes the upper part. */
void node_split(struct prefix_tree *t, uint32_t x, uint32_t u, uint8_t cut);
/* Removes a node without children and frees what it holds. Its parent may then merge with its
 * only remaining child; the parent's number is free after that. */
void node_remove(struct prefix_tree *t, uint32_t x);
/* To call after a node lost a child, its last cursor or its state: merges it with its only
 * child, or updates its place among the candidates. */
void node_settle(struct prefix_tree *t, uint32_t x);
/* The node and its ancestors live until then at least (TREE-8). What tiers have of them is written
 * again if it has less than half of that time left, and so is what comes after it: then what was
 * offered is a beginning of a path, as tiers_offer expects, and a conversation that renews its life
 * with every turn is not written with every turn. */
void node_keep(struct prefix_tree *t, uint32_t x, uint64_t expires);
/* Bytes of its pages and its state. */
uint64_t node_held_bytes(const struct prefix_tree *t, uint32_t x);
/* 0 bytes: nobody favours it any more. */
void node_set_favour(struct prefix_tree *t, uint32_t x, uint64_t bytes);
/* Makes the node reference this page of the group instead of its present one. */
void node_hold_page(struct prefix_tree *t, uint32_t x, uint32_t group, struct kv_page page);
/* Replaces the group's page `from` by `to` in the node and in its ancestors in the same page. */
void node_replace_page(struct prefix_tree *t, uint32_t x, uint32_t group, uint32_t from,
                       struct kv_page to);
/* The ladder has given the node's page of the group, which is full, fewer bits: the node and its
 * ancestors in the same page reference the new one. */
void node_descend(struct prefix_tree *t, uint32_t x, uint32_t group, struct kv_page to);
/* TREE-2, before a node drops its page of the group: ancestors that share it take another
 * child's page. */
void node_unshare_page_upwards(struct prefix_tree *t, uint32_t x, uint32_t group);

/* ---- following a prompt (tree_walk.c) -------------------------------------------------------- */

/* How far a prompt's tokens agree, and the longest length that can be used. */
struct walk {
    uint32_t node, matched; /* the last node, and how many of its tokens agree */
    uint32_t common;        /* tokens that agree in all */
    uint32_t best, length;  /* the node that contains token `length` - 1, or NO_NODE */
};
/* Follows n tokens; at most `usable` of them may be used. */
struct walk tree_walk(const struct prefix_tree *t, uint32_t root, const int32_t *tokens, uint32_t n,
                      uint32_t usable);
kvasir_hit walk_hit_kind(const struct prefix_tree *t, const struct walk *w, uint32_t n);

/* ---- eviction (tree_evict.c) ----------------------------------------------------------------- */

/* TREE-7 */
void tree_keep_limits(struct prefix_tree *t);

#endif
