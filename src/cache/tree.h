/* SPDX-License-Identifier: Apache-2.0 */
/* tree.h: the prefix tree. What sequences have computed, kept under the same budget, found again by
 * the tokens: cache.h includes it.
 *
 * A radix tree over tokens whose nodes never cross a page: a node is a run of tokens inside one
 * page and holds that page of every layer group, by reference. Its path from the root says all
 * tokens before it.
 *
 *     tokens   0 .......... 63 | 64 ...... 99 | 100 .. 127 | 128 ...
 *     nodes    [ a  page 7    ]-[ b  page 2  ]-[ c page 2  ]-[ d page 9 ]
 *                                            `-[ e  page 4          ]        <- parted at 100
 *
 * c and e have pages of their own, of which the first 36 tokens are the same bytes (I1 of
 * DESIGN.md); b, cut off when e came, borrows c's, or e's when c goes. A page is one extent, so
 * nothing is gained by holding b's part alone.
 *
 * A prompt is followed down to the last token that agrees, token by token: a hash only chooses
 * where to look. Exact, prefix, supersequence and common-prefix hits are all that one walk. What it
 * finds counts up to the longest length at which every group has all pages that the next query
 * sees, and recurrent layers have their state (a node holds the record behind its last token). The
 * sequence gets references; only a page that is partly its own is copied, when it goes on.
 *
 * A tree belongs to one cache and so to one context: model, formats, rope variant, max size, keep
 * and exact start are the same for all that is in it. So they are no part of the key, which is the
 * tokens behind a salt. Prompt-cache files, which outlive a context, carry the model's fingerprint,
 * formats and rotation; those are checked when a file is read.
 *
 * Invariants (tests/sim/tree.c, tests/unit/test_traps.c and test_tree_limits.c try to break them)
 *   T1  A node's pages hold what its tokens, after those of its path, were encoded to: the same
 *       bytes whoever computed them. Only full pages are re-encoded (tree_requantize).
 *   T2  Nodes of one page on one path hold the page of the deepest of them, so that a page whose
 *       tokens grew frees the shorter one. (If a page is split, of any of its children in the
 *       page.)
 *   T3  A node goes only when it has no children and no cursor stands at it: leaf first. Pages of
 *       windows, and records, of inner nodes may go before; then hits end elsewhere.
 *   T4  Pages that a live sequence holds are never evicted to make room: that would make none.
 *   T5  A node is charged to the pool, its pages are the pool's: the budget holds with all of it.
 *   T6  Nothing is allocated but for a new salt.
 *   T7  What is stored keeps within tree_limit's limits: ends always; bytes behind each store and
 *       close, as far as there is something that may go.
 *
 * Which goes first: docs/cache-policy.md, tree_policy.c.
 *
 * Belongs to the thread that owns the cache.
 */
#ifndef KVASIR_CACHE_TREE_H
#define KVASIR_CACHE_TREE_H

#include "kvasir.h"
#include "quant/quant.h"
#include "util/util.h"

struct kv_cache;
struct kv_seq;
struct prefix_tree;

/* rebuild_tokens: the position from which on a token's attention costs more to compute than all
 * else of it; what eviction weighs the cost of computing a page anew with. */
kvasir_status tree_create(struct kv_cache *c, uint32_t rebuild_tokens, struct prefix_tree **out,
                          kvasir_error *err) MUST_CHECK;
/* No cursor stands in it any more. */
void tree_destroy(struct prefix_tree *t);

/* Where a live sequence stands: a node that ends at tokens that it has stored or found. Holds
 * it. */
struct tree_cursor {
    uint32_t node;
};
enum { TREE_NOWHERE = UINT32_MAX };

struct tree_hit {
    uint32_t length; /* tokens that the sequence begins with */
    uint32_t
        common; /* tokens of the prompt that are in the tree, whether their pages serve or not */
    kvasir_hit kind; /* MISS where length is 0 */
};

/* Looks for n tokens among those stored with the same salt, and begins the sequence, which is new,
 * with what serves of the first n - 1: the last one is always run, for its logits. *at stands
 * behind them (close it with tree_close, after what was computed is stored). A failure leaves the
 * sequence empty and *at nowhere. salt: any bytes. Counts as no use (that is tree_count's), but
 * nothing on its path is left behind any more. */
kvasir_status tree_resume(struct prefix_tree *t, const void *salt, size_t salt_len,
                          const int32_t *tokens, uint32_t n, struct kv_seq *s,
                          struct tree_cursor *at, struct tree_hit *hit,
                          kvasir_error *err) MUST_CHECK;
/* Says that a request with these n tokens uses what its sequence began with, before anything is
 * stored from *at: once for each request, not each time that it tries to begin. What eviction goes
 * by is counted here. */
void tree_count(struct prefix_tree *t, const struct tree_cursor *at, const int32_t *tokens,
                uint32_t n);
/* tree_resume without a sequence, changing nothing. */
struct tree_hit tree_look(const struct prefix_tree *t, const void *salt, size_t salt_len,
                          const int32_t *tokens, uint32_t n);

/* Stores the full pages that the sequence has computed behind *at; with `point`, all of its tokens,
 * with the state of recurrent layers: a place where hits are allowed. Pages that are there already
 * take the place of the sequence's own. What does not fit the budget, with all eviction, is not
 * stored, which counts as a rejection. */
void tree_store(struct prefix_tree *t, struct tree_cursor *at, struct kv_seq *s, bool point);
/* A second cursor at the same place (forks). */
struct tree_cursor tree_cursor_copy(struct prefix_tree *t, struct tree_cursor at);
void tree_close(struct prefix_tree *t, struct tree_cursor *at);

/* The most that is kept, beside the budget; 0: no limit. max_ends: stored prompts, each an end of
 * the tree on which no cursor stands: a prompt that another one goes on from is part of that one.
 * Too many: the end that would be evicted first goes, with what was only used for it.
 * max_bytes: tree_stored_bytes. */
void tree_limit(struct prefix_tree *t, uint32_t max_ends, uint64_t max_bytes);
/* Of the budget: pages and states that only the tree holds, and the tree itself. */
uint64_t tree_stored_bytes(const struct prefix_tree *t);

/* What the nodes of one sequence of so many tokens are charged, while nothing else parts them. */
uint64_t tree_path_bytes(const struct prefix_tree *t, uint32_t tokens);
/* Evicts until so many bytes of the budget are free, or nothing is left to evict: false. */
bool tree_make_room(struct prefix_tree *t, uint64_t bytes);
/* Forgets all that no cursor stands on, of one salt or (salt NULL) of all. */
void tree_forget(struct prefix_tree *t, const void *salt, size_t salt_len);

/* Stored prefixes in other formats than live ones: whole pages of stored sequences of at least
 * min_tokens. KVASIR_ERR_ARGUMENT where that would not be fewer bytes. Called between steps,
 * tree_requantize looks at so many nodes, from where it stopped last time, re-encodes at most so
 * many of their pages, of those that nobody but the tree holds, and says how many it did. 0 of all
 * nodes (UINT32_MAX): nothing is left to be done. */
kvasir_status tree_requantize_begin(struct prefix_tree *t, struct kv_format k, struct kv_format v,
                                    uint32_t group_k, uint32_t group_v, uint32_t min_tokens,
                                    kvasir_error *err) MUST_CHECK;
uint32_t tree_requantize(struct prefix_tree *t, uint32_t pages, uint32_t nodes);

struct tree_stats {
    uint64_t nodes, bytes; /* now; charged for them */
    uint64_t ends, tokens; /* stored prompts (tree_limit); tokens of all nodes */
    uint64_t evicted_pages, requantized_pages, rejections;
};
struct tree_stats tree_stats(const struct prefix_tree *t);
/* Checks all that the invariants say, of every node; for tests. Dies with what is wrong. */
void tree_check(const struct prefix_tree *t);
/* Calls fn for every reference to a page or state that a node holds; for who counts them, too. */
typedef void tree_page_fn(void *user, uint32_t addr, uint64_t bytes);
void tree_each_page(const struct prefix_tree *t, tree_page_fn *fn, void *user);

#endif
