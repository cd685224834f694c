/* SPDX-License-Identifier: Apache-2.0 */
/* tree.h: the prefix tree. It keeps what sequences have computed, under the same budget, and finds
 * it again by its tokens. Included by cache.h.
 *
 * It is a radix tree over tokens whose nodes never cross a page border: a node is a run of tokens
 * inside one page, and it references that page in every layer group. Its path from the root gives
 * all tokens before it.
 *
 *     tokens   0 .......... 63 | 64 ...... 99 | 100 .. 127 | 128 ...
 *     nodes    [ a  page 7    ]-[ b  page 2  ]-[ c page 2  ]-[ d page 9 ]
 *                                            `-[ e  page 4          ]        <- split at 100
 *
 * c and e have pages of their own, whose first 36 tokens are the same bytes (I1 of docs/design.md).
 * b was split off when e came. It shares c's page, or e's when c is gone: a page is one extent, so
 * a page with b's part alone would save nothing.
 *
 * A prompt is followed token by token down to the last one that agrees; a hash only chooses where
 * to look. That one walk finds exact, prefix, supersequence and common-prefix hits. What it finds
 * is used up to the longest length at which every group has all pages that the next query sees, and
 * recurrent layers have their state (a node may hold the state after its last token). The sequence
 * gets references to the pages. Only a page that it shares in part is copied, when it continues.
 *
 * A hit point is a node at which a stored sequence ended: all its tokens are in the tree, and so is
 * its state. With recurrent layers or an exact tail, hits can end only there: that state is a
 * snapshot (seq_snapshot.c) of both.
 *
 * A tree belongs to one cache and so to one context: model, formats, RoPE variant, max size, keep,
 * exact start and exact tail are the same for everything in it. So they are not part of the key,
 * which is a salt and the tokens. Prompt-cache files outlive a context, so they carry the model's
 * fingerprint, formats and rotation, which are checked when a file is read.
 *
 * Invariants (tests/sim/tree.c, tests/unit/test_traps.c and test_tree_limits.c try to break them)
 *   TREE-1  A node's pages hold the encoding of its tokens, after those of its path: the same
 *           bytes, whoever computed them. Only full pages are re-encoded (tree_requantize).
 *   TREE-2  Nodes of one page on one path reference the page of the deepest of them. So a page
 *           whose tokens grew frees the shorter one. (After a split: the page of any of its
 *           children in that page.)
 *   TREE-3  A node is removed only if it has no children and no cursor is at it: leaf first. Window
 *           pages and states of inner nodes may be dropped before; then hits end elsewhere.
 *   TREE-4  Pages that a live sequence holds are never evicted to make room: that would free
 *           nothing.
 *   TREE-5  A node is charged to the pool, and its pages are the pool's. So the budget covers both.
 *   TREE-6  Nothing is allocated except for a new salt.
 *   TREE-7  tree_limit's limits hold: that on entries always, that on bytes after each store and
 *           close, unless nothing that is left may be evicted.
 *   TREE-8  A node lives at least as long as its children. What has expired is not found.
 *
 * What is evicted first: docs/cache-policy.md, tree_policy.c.
 *
 * Everything here runs on the thread that owns the cache.
 */
#ifndef KVASIR_CACHE_TREE_H
#define KVASIR_CACHE_TREE_H

#include "kvasir.h"
#include "quant/quant.h"
#include "util/util.h"

struct kv_cache;
struct kv_seq;
struct prefix_tree;

/* rebuild_tokens: the position at which a token's attention costs as much as everything else of
 * it. Eviction uses it to weigh what computing a page again would cost. */
kvasir_status tree_create(struct kv_cache *c, uint32_t rebuild_tokens, struct prefix_tree **out,
                          kvasir_error *err) MUST_CHECK;
/* All cursors must have been closed. */
void tree_destroy(struct prefix_tree *t);

/* A live sequence's place in the tree: the node at which the tokens end that it has found or
 * stored. It pins that node. */
struct tree_cursor {
    uint32_t node;
};
enum { TREE_NOWHERE = UINT32_MAX };

struct tree_hit {
    uint32_t length; /* tokens that the sequence starts with */
    uint32_t common; /* tokens of the prompt that are in the tree, usable or not */
    kvasir_hit kind; /* KVASIR_HIT_MISS if length is 0 */
};

/* Why no more of a prompt can be used, and what the tree has instead of its first other token:
 * that of the continuation that was used last, or -1: nothing. */
struct tree_miss {
    kvasir_miss why;
    int32_t other;
};

/* Looks for n tokens among those stored with the same salt (any bytes). The new sequence s
 * starts with what can be used of the first n - 1: the last token is always run, for its logits.
 * *at is the cursor there; close it with tree_close after the last store. A failure leaves the
 * sequence empty and *at closed. Does not count as a use (tree_count does), but clears the
 * `abandoned` mark of the path. */
kvasir_status tree_resume(struct prefix_tree *t, const void *salt, size_t salt_len,
                          const int32_t *tokens, uint32_t n, struct kv_seq *s,
                          struct tree_cursor *at, struct tree_hit *hit,
                          kvasir_error *err) MUST_CHECK;
/* Counts a request with these n tokens as a use of what its sequence started with: once for each
 * request, not each time that it tries to start, and before anything is stored from *at.
 * Eviction goes by these counts. */
void tree_count(struct prefix_tree *t, const struct tree_cursor *at, const int32_t *tokens,
                uint32_t n);
/* The hit that tree_resume would find. Changes nothing. */
struct tree_hit tree_look(const struct prefix_tree *t, const void *salt, size_t salt_len,
                          const int32_t *tokens, uint32_t n);
/* The same, and why there is no more. */
struct tree_hit tree_explain(const struct prefix_tree *t, const void *salt, size_t salt_len,
                             const int32_t *tokens, uint32_t n, struct tree_miss *miss);
/* The most tokens of a prompt that are stored under any other salt. Looks at every salt. */
uint32_t tree_common_elsewhere(const struct prefix_tree *t, const void *salt, size_t salt_len,
                               const int32_t *tokens, uint32_t n);

/* Stores the full pages that the sequence has computed after *at. With hit_point stores all of
 * its tokens and what seq_snapshot_take has of it: hits may end there. If the tree already has a
 * page, the sequence takes the tree's and drops its own. If there is no room even after
 * eviction, the rest is not stored, and that counts as a rejection. All of the path lives until
 * `expires` at least (TREE-8). */
void tree_store_until(struct prefix_tree *t, struct tree_cursor *at, struct kv_seq *s,
                      bool hit_point, uint64_t expires);
#define TREE_FOREVER UINT32_MAX /* as a time: until 2106 */
static inline void tree_store(struct prefix_tree *t, struct tree_cursor *at, struct kv_seq *s,
                              bool hit_point) {
    tree_store_until(t, at, s, hit_point, TREE_FOREVER);
}
/* A second cursor at the same place, for a fork. */
struct tree_cursor tree_cursor_copy(struct prefix_tree *t, struct tree_cursor at);
void tree_close(struct prefix_tree *t, struct tree_cursor *at);

/* Limits besides the budget; 0: no limit. max_entries: stored prompts. Each is a leaf without a
 * cursor: a prompt that another one continues is part of that one. If there are too many, the
 * leaf that would be evicted first goes, with the nodes that only it used. max_bytes: of
 * tree_stored_bytes. */
void tree_limit(struct prefix_tree *t, uint32_t max_entries, uint64_t max_bytes);
/* Bytes of the budget that stored prompts take: pages and states that only the tree holds, and
 * the tree itself. */
uint64_t tree_stored_bytes(const struct prefix_tree *t);

/* From now on what was evicted or has expired lately is told from what was never stored. The tree
 * is empty. With tiers that is so without it. */
void tree_remember_gone(struct prefix_tree *t);
/* Tells the time, in the seconds of `expires` (those since 1970), and removes what has expired,
 * looking at so many nodes, from where it stopped last time. False: it has looked at all. */
bool tree_expire(struct prefix_tree *t, uint64_t now, uint32_t nodes);
/* Before this time nothing expires; TREE_FOREVER: nothing does. */
uint64_t tree_next_expiry(const struct prefix_tree *t);
/* When what is stored now, for so many seconds, expires; 0 seconds: TREE_FOREVER. */
uint64_t tree_expiry(const struct prefix_tree *t, uint32_t seconds);
/* The nodes of the path are evicted after all others from now on: as many of them, from the root
 * on, as TREE_PINNED_SHARE of the budget has room for. tree_forget ends that. */
void tree_favour(struct prefix_tree *t, const struct tree_cursor *at);
enum { TREE_PINNED_SHARE = 2 }; /* one half */
/* The same for what is stored of these tokens, until tree_release of those after the first `keep`
 * (of a node that has both, it does nothing). What tree_favour was asked for stays so. */
void tree_hold(struct prefix_tree *t, const void *salt, size_t salt_len, const int32_t *tokens,
               uint32_t n);
void tree_release(struct prefix_tree *t, const void *salt, size_t salt_len, const int32_t *tokens,
                  uint32_t n, uint32_t keep);

/* Bytes charged for the nodes of one sequence of so many tokens, if other prompts split none of
 * them. */
uint64_t tree_path_bytes(const struct prefix_tree *t, uint32_t tokens);
/* Evicts until so many bytes of the budget are free. False: nothing is left to evict. */
bool tree_make_room(struct prefix_tree *t, uint64_t bytes);
/* Removes everything except what cursors pin, of one salt or (salt NULL) of all. Nothing tells any
 * more what was evicted before. */
void tree_forget(struct prefix_tree *t, const void *salt, size_t salt_len);

/* Stores prefixes in other formats than live sequences have. Only whole pages of stored sequences
 * of at least min_tokens are re-encoded, and only while nobody but the tree holds them.
 * KVASIR_ERR_ARGUMENT if that would not save bytes.
 *
 * tree_requantize is called between steps. It looks at so many nodes, from where it stopped last
 * time, re-encodes at most so many pages and returns how many it did. 0 after looking at all
 * nodes (UINT32_MAX): nothing is left to do. */
kvasir_status tree_requantize_begin(struct prefix_tree *t, struct kv_format k, struct kv_format v,
                                    uint32_t group_k, uint32_t group_v, uint32_t min_tokens,
                                    kvasir_error *err) MUST_CHECK;
uint32_t tree_requantize(struct prefix_tree *t, uint32_t pages, uint32_t nodes);

struct tree_stats {
    uint64_t nodes, bytes;    /* now; bytes charged for them */
    uint64_t entries, tokens; /* stored prompts; tokens of all nodes */
    uint64_t evicted_pages, requantized_pages, rejections;
    uint64_t expired_tokens, pinned_bytes; /* pinned: tree_favour; as they were then */
};
struct tree_stats tree_stats(const struct prefix_tree *t);
/* For tests: checks the invariants of every node. Aborts at the first that does not hold. */
void tree_check(const struct prefix_tree *t);
/* Calls fn for every reference of a node to a page or state. */
typedef void tree_page_fn(void *user, uint32_t addr, uint64_t bytes);
void tree_each_page(const struct prefix_tree *t, tree_page_fn *fn, void *user);

#endif
