/* SPDX-License-Identifier: Apache-2.0 */
/* cache/: THE HEART. Pages, and sequences that are lists of pages. Start here, then pool.c, then
 * seq.c, then tree.h and tree.c: what was computed once, found again; requantizing last.
 *
 * A page holds 64 consecutive tokens of one sequence for one layer group, all layers and heads of
 * it, K and V, in the format they were encoded to when they were produced. It is one contiguous
 * extent of the arena and never moves.
 *
 *     sequence A  tokens  0 ...... 63 | 64 ..... 127 | 128 .... 150
 *        table            [ page 7  ]   [ page 2   ]   [ page 9   ]  <- open: private to A
 *                              |             |
 *     sequence B (fork)   [ page 7  ]   [ page 2   ]   [ page 4   ]  <- its copy of the open page
 *
 *      arena    |  0  |  1  |  2  |  3  | ...   a page's address is a 32-bit number of 4 KiB units
 *      page 7   [layer 0: head 0: K tile | V tile, head 1: K | V][layer 1: ...] ...
 *
 * Invariants (tests/unit/test_cache.c and tests/sim/ try to break them)
 *   C1  A page's bytes are written only while exactly one sequence holds it and only at positions
 *       that sequence has prepared and not yet committed, or before it stands in any table
 *       (copies, seq_requantize). A full, shared page is never written.
 *   C2  A page's reference count is the number of page tables and tree nodes it stands in; at 0 it
 *       goes back to the pool at once.
 *   C3  Bytes in use and charged never exceed the budget: a take that would is refused before
 *       anything changes.
 *   C4  Which positions a query at p sees is a function of p alone (keep, span): never of the
 *       table's history. A table holds every page that position `length` or a later one can see.
 *   C5  A failed call leaves the sequence as it was.
 *   C6  A taken page is all zeros: a slot that was never written reads as zero and is never NaN.
 *   C7  The format belongs to the page: an entry of its group's layouts, a table that only grows.
 *       Which one a page of a sequence has is a function of its number (quantized-kv-start), until
 *       seq_requantize gives all pages of that sequence another. Whether its keys are centred
 *       belongs to the page too: affine ones are where the group has a centre, 16- and 32-bit ones
 *       never.
 *
 *   C8  A sequence's state record (recurrent layers) is the state behind its last committed token.
 *       It is written only while that sequence alone holds it; snapshots and forks hold the record
 *       itself, and the next step copies it. What a snapshot holds never changes.
 *
 * Everything here runs on the one thread that owns the cache. Nothing allocates after seq_create
 * and seq_reserve but seq_fork, seq_snapshot and seq_requantize, which are no part of a step.
 */
#ifndef KVASIR_CACHE_H
#define KVASIR_CACHE_H

#include "backend/backend.h"
#include "cache/tree.h"

/* ---- pool (pool.c): one arena, one budget ---------------------------------------------------- */

/* Layer groups; layouts of each that a cache has had pages in; kinds of pages, states included. */
enum {
    CACHE_GROUPS_MAX = BACKEND_GROUPS_MAX,
    CACHE_LAYOUTS_MAX = 16,
    PAGE_CLASSES_MAX = CACHE_LAYOUTS_MAX * CACHE_GROUPS_MAX + 1
};

struct kv_pool;
/* budget_bytes: the most that pages in use may add up to. Address space is reserved for it, memory
 * taken page by page. */
kvasir_status kv_pool_create(struct backend *b, uint64_t budget_bytes, struct kv_pool **out,
                             kvasir_error *err) MUST_CHECK;
void kv_pool_destroy(struct kv_pool *p); /* all pages must have been given back */

struct kv_pool_stats {
    uint64_t budget_bytes;
    uint64_t used_bytes;              /* pages in use, each rounded up to 4 KiB */
    uint64_t charged_bytes;           /* what is kept beside pages under the same budget */
    uint64_t peak_bytes;              /* of both together */
    uint64_t stored_bytes;            /* of used_bytes: pages that only the prefix tree holds */
    uint64_t pages_used, pages_taken; /* now; ever */
};
struct kv_pool_stats kv_pool_stats(const struct kv_pool *p);
/* Of used_bytes: pages of one kind, by who holds them. */
struct kv_pool_class {
    struct kv_format k, v; /* bits 0: states of recurrent layers */
    uint64_t live_bytes, stored_bytes;
};
/* The pool's classes by number, which they keep; several may have the same formats. False: there
 * are not so many. */
bool kv_pool_class(const struct kv_pool *p, uint32_t i, struct kv_pool_class *out);
/* Memory beside pages (tables, buffers of steps) that counts against the budget, too. */
kvasir_status pool_charge(struct kv_pool *p, uint64_t bytes, kvasir_error *err) MUST_CHECK;
void pool_discharge(struct kv_pool *p, uint64_t bytes);

/* ---- cache (cache.c): what all sequences of a context have in common ------------------------- */

struct kv_cache_options {
    /* group 0: settled per head size (kv_format_settle) with group_k, group_v */
    struct kv_format k, v;
    uint32_t group_k, group_v; /* 0: the default */
    uint32_t quantized_start;  /* the first this many tokens, rounded up to pages, stay f16 */
    uint32_t max_size;         /* rotation: most tokens a query sees; 0: all */
    uint32_t keep;             /* first tokens that are always seen when rotating; < max_size */
    uint64_t state_bytes;      /* of a sequence's recurrent layers; 0: there are none */
    uint64_t budget_bytes;
};

/* The layer group as the cache sees it. */
struct kv_shape {
    uint32_t layers, kv_heads, head_dim;
    /* 0: none. A window group keeps its own bound; rotation does not apply to it */
    uint32_t window;
    struct kv_format k, v; /* bits 0: the options' */
    bool stays;            /* in those, whatever others are changed to */
    /* Borrowed for the cache's life. Affine K pages are centred with it; NULL: no page is */
    const struct key_centre *centre;
};

struct kv_cache;
kvasir_status kv_cache_create(struct backend *b, const struct kv_shape *groups, uint32_t n_groups,
                              const struct kv_cache_options *opt, struct kv_cache **out,
                              kvasir_error *err) MUST_CHECK;
void kv_cache_destroy(struct kv_cache *c);
struct kv_pool *kv_cache_pool(struct kv_cache *c);
/* The most bytes that one sequence holds while it grows from nothing to `length` in steps of `step`
 * tokens: what to plan a budget with, before there is a cache. */
kvasir_status kv_cache_plan_bytes(const struct kv_shape *groups, uint32_t n_groups,
                                  const struct kv_cache_options *opt, uint32_t length,
                                  uint32_t step, uint64_t *bytes, kvasir_error *err) MUST_CHECK;
/* The most bytes of pages and states that one sequence needs while it grows from nothing to
 * `length` in steps, alone, what is copied where prefixes part included. */
uint64_t kv_cache_need_bytes(const struct kv_cache *c, uint32_t length, uint32_t step);
/* Of `length` tokens, those that each layer sees, at 16 bits without pages; states not. */
uint64_t kv_cache_bytes_16bit(const struct kv_cache *c, uint32_t length);
bool kv_cache_is_recurrent(const struct kv_cache *c); /* sequences have states */
/* A group's settled formats. */
void kv_cache_formats(const struct kv_cache *c, uint32_t group, struct kv_format *k,
                      struct kv_format *v);
/* Pages with a smaller number are f16 (quantized_start; 0 where no format is quantized). */
uint32_t kv_cache_start_pages(const struct kv_cache *c);

/* ---- sequence (seq.c) ------------------------------------------------------------------------ */

/* Life of positions:
 *
 *      [0 ........ length) committed    [length .. prepared) may be written by the step under way
 *
 *      seq_prepare(n)  takes the pages that n more tokens need (all or none), makes the open page
 *                      private
 *      ... the step encodes K and V into them ...
 *      seq_commit(n)   the tokens are part of the sequence; pages that no later query sees go back
 *      seq_trim(len)   forgets the tail; also undoes a prepare
 */
struct kv_seq;
enum { STEP_TOKENS_MAX = 4096 }; /* what seq_reserve plans for as one step */
kvasir_status seq_create(struct kv_cache *c, struct kv_seq **out, kvasir_error *err) MUST_CHECK;
void seq_destroy(struct kv_seq *s);
/* A new sequence with the same tokens, not while a step is under way. Full pages are shared, an
 * open page is copied at the next prepare of either. */
kvasir_status seq_fork(struct kv_seq *s, struct kv_seq **out, kvasir_error *err) MUST_CHECK;

uint32_t seq_length(const struct kv_seq *s);
const int32_t *seq_tokens(const struct kv_seq *s); /* [length] */

/* Room for tokens up to `length` in the sequence's own tables (not pages), so that later steps do
 * not allocate. */
kvasir_status seq_reserve(struct kv_seq *s, uint32_t length, kvasir_error *err) MUST_CHECK;
/* What a sequence with room for so many tokens takes beside its pages. */
uint64_t seq_overhead_bytes(const struct kv_cache *c, uint32_t length);
/* The most bytes that growing from now to `length` in steps of `step` tokens, with so many
 * snapshots before the last step, will need at any time, beyond what the sequence holds: what a
 * caller checks against the budget before any work. */
uint64_t seq_need_bytes(const struct kv_seq *s, uint32_t length, uint32_t step, uint32_t snapshots);
/* KVASIR_ERR_BUDGET names budget, use and need. */
kvasir_status seq_prepare(struct kv_seq *s, uint32_t n, kvasir_error *err) MUST_CHECK;
/* n: at most what was prepared; what is left over goes back. */
void seq_commit(struct kv_seq *s, const int32_t *tokens, uint32_t n);
/* Forgets everything from `length` on. Fails (KVASIR_ERR_ARGUMENT, naming the nearest lengths that
 * work) when a page that position `length` sees was dropped by rotation or a window. 0 always
 * works. With recurrent layers it goes back further: to the newest snapshot at or before `length`
 * whose pages are there, or to 0, and never fails. *reached: the new length; what lies between it
 * and `length` is to be run again. seq_tokens still has those tokens until the next commit. */
kvasir_status seq_trim(struct kv_seq *s, uint32_t length, uint32_t *reached,
                       kvasir_error *err) MUST_CHECK;
/* Keeps the state of the recurrent layers at the present length for later trims; nothing where
 * there are none, or one is kept already. */
kvasir_status seq_snapshot(struct kv_seq *s, kvasir_error *err) MUST_CHECK;
/* Stores every page in other formats, settled per head size as those of struct kv_cache_options,
 * and later tokens from their first on; quantized-kv-start is over for this sequence. Not while a
 * step is under way. Forks keep what they have: this sequence takes pages of its own. Pages that
 * have the formats already stay as they are; states and snapshots always do. KVASIR_ERR_BUDGET
 * where exchanging pages one by one would exceed the budget at any time, KVASIR_ERR_UNSUPPORTED
 * where the cache has had pages of too many formats: nothing has changed then. */
kvasir_status seq_requantize(struct kv_seq *s, struct kv_format k, struct kv_format v,
                             uint32_t group_k, uint32_t group_v, kvasir_error *err) MUST_CHECK;
/* Bytes of pages in this sequence's tables, of its state and its snapshots (shared ones count in
 * full). */
uint64_t seq_bytes(const struct kv_seq *s);
/* What a 16-bit cache without pages would take for what the next query sees: each group's tokens,
 * and the same states. What seq_bytes is measured by. */
uint64_t seq_bytes_16bit(const struct kv_seq *s);
/* The group's pages as a step sees them. Valid until the sequence's next call. */
void seq_view(const struct kv_seq *s, uint32_t group, struct kv_view *view);
/* The state record as a step sees it, likewise; of a cache with state_bytes. */
void seq_state(const struct kv_seq *s, struct state_view *view);
/* A stored tile as it is: the K or V of a head and page, of which positions below the length hold
 * something. layer counts inside the group. *layout: of its page; bytes [layout bytes]. False: the
 * page is not in the table. */
bool seq_read_tile(const struct kv_seq *s, uint32_t group, enum tile_kind part, uint32_t layer,
                   uint32_t head, uint32_t number, const struct tile_layout **layout, void *bytes);
/* Puts a whole tile into a page that is prepared and not committed: what a file held (prompt-cache
 * files) in place of what a step would encode. */
void seq_write_tile(struct kv_seq *s, uint32_t group, enum tile_kind part, uint32_t layer,
                    uint32_t head, uint32_t number, const void *bytes);
/* The recurrent layers' state behind the last token [state_bytes], read, and written between
 * prepare and commit. */
void seq_read_state(const struct kv_seq *s, void *record);
void seq_write_state(struct kv_seq *s, const void *record);
/* Says that of the group's pages positions from `first` on hold something, those before it (behind
 * the kept ones) nothing: trims that would show them are refused. */
void seq_mark_missing(struct kv_seq *s, uint32_t group, uint32_t first);
/* Reads n stored rows of one page back, decoded: rows [n][head_dim]. layer counts inside the group.
 * *centred says that their centres are not in them. Slow: for tests and tools. */
kvasir_status seq_read(const struct kv_seq *s, uint32_t group, enum tile_kind part, uint32_t layer,
                       uint32_t head, uint32_t position, uint32_t n, float *rows, bool *centred,
                       kvasir_error *err) MUST_CHECK;

#endif
