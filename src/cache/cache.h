/* SPDX-License-Identifier: Apache-2.0 */
/* cache/: THE HEART. Pages, and sequences that are lists of pages. Read this file first, then
 * pool.c and seq.c, then tree.h and tree.c (what was computed once is found again).
 *
 * A page holds 64 consecutive tokens of one sequence for one layer group: K and V of all its layers
 * and heads, in the format in which they were encoded when they were computed. A page is one
 * contiguous extent of the arena and never moves.
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
 *   CACHE-1  A page is written only at two times: before any table holds it (copies, other
 *            formats), or while exactly one sequence holds it, at positions that this sequence
 *            has prepared and not yet committed. A full or shared page is never written.
 *   CACHE-2  A page's reference count is the number of page tables and tree nodes that hold it. At
 *            0 it goes back to the pool at once.
 *   CACHE-3  Bytes in use and charged never exceed the budget. A take that would exceed it is
 *            refused before anything changes.
 *   CACHE-4  Which positions a query at p sees is a function of p alone (keep, span), never of the
 *            table's history. A table holds every page that a query at `length` or later can see.
 *   CACHE-5  A failed call leaves the sequence as it was.
 *   CACHE-6  A taken page is all zeros: a slot that was never written reads as zero, never as NaN.
 *            (Pages that a tier fills hold anything until then; nobody sees them: TIERS-3.)
 *   CACHE-7  The format belongs to the page: it is an entry of its group's layouts, a table that
 *            only grows. Which entry a page has is a function of its number (--quantized-kv-start)
 *            until seq_requantize gives all pages of that sequence another one, or the ladder one
 *            of its rungs to a page (ladder.c). Whether its keys
 *            are centred belongs to the page, too: keys of codes are if the group has a centre, 16-
 *            and 32-bit keys are not (but in shadows, and in an exact start before pages that have
 *            shadows); and so does the basis of its rows.
 *   CACHE-8  A sequence's state (recurrent layers) is the one after its last committed token. It is
 *            written only while that sequence alone holds it. Snapshots and forks share it; the
 *            next step copies it first. So what a snapshot holds never changes.
 *   CACHE-9  A page that is encoded when it is full is all zeros before; its rows are in a shadow,
 *            a page of its own in the same budget, until then or, in the exact tail, longer
 *            (seq_shadow.c).
 *
 * Everything here runs on the one thread that owns the cache. After seq_create and seq_reserve only
 * seq_fork, seq_snapshot and seq_requantize allocate, and these are no part of a step.
 */
#ifndef KVASIR_CACHE_H
#define KVASIR_CACHE_H

#include "backend/backend.h"
#include "cache/tiers.h"
#include "cache/tree.h"

/* ---- pool (pool.c): one arena, one budget ---------------------------------------------------- */

/* Most layer groups; most layouts that the pages of one group have had; most kinds of pages,
 * states included. */
enum {
    CACHE_GROUPS_MAX = BACKEND_GROUPS_MAX,
    CACHE_LAYOUTS_MAX = 16,
    PAGE_CLASSES_MAX = CACHE_LAYOUTS_MAX * CACHE_GROUPS_MAX + 2
};

struct kv_pool;
/* budget_bytes: the most bytes of pages that are in use or have memory. Address space for them is
 * reserved at once; memory is taken page by page. */
kvasir_status kv_pool_create(struct backend *b, uint64_t budget_bytes, struct kv_pool **out,
                             kvasir_error *err) MUST_CHECK;
void kv_pool_destroy(struct kv_pool *p); /* all pages have been freed */

struct kv_pool_stats {
    uint64_t budget_bytes;
    uint64_t used_bytes;              /* pages in use, each rounded up to 4 KiB */
    uint64_t charged_bytes;           /* charged by others to the same budget */
    uint64_t peak_bytes;              /* highest used + charged */
    uint64_t stored_bytes;            /* pages of used_bytes that only the prefix tree holds */
    uint64_t pages_used, pages_taken; /* now; ever */
    uint64_t resident_bytes;          /* pages that have memory: in use, or free and ready */
    uint64_t table_bytes;             /* the pool's own tables; not part of used or charged */
};
struct kv_pool_stats kv_pool_stats(const struct kv_pool *p);
/* One kind of pages, by who holds them: a sequence, or the prefix tree alone. */
struct kv_pool_class {
    struct kv_format k, v; /* bits 0: states of recurrent layers */
    uint64_t live_bytes, stored_bytes;
};
/* The pool's classes by number. A class keeps its number; several may have the same formats.
 * False: there is no class i. */
bool kv_pool_class(const struct kv_pool *p, uint32_t i, struct kv_pool_class *out);
/* For moments in which nothing runs. Gives memory of free pages back to the system, or gets memory
 * ready for the next steps (pool_keep_ready). Returns true while there may be more to do: each
 * call takes a millisecond or so. */
bool kv_pool_rest(struct kv_pool *p);
/* For moments between steps, in which others run: has a thread get memory ready for the next ones.
 * Takes no time and makes no system call but waking that thread. */
void kv_pool_ahead(struct kv_pool *p);
/* Charges memory other than pages (tables, buffers of steps) to the budget. */
kvasir_status pool_charge(struct kv_pool *p, uint64_t bytes, kvasir_error *err) MUST_CHECK;
void pool_discharge(struct kv_pool *p, uint64_t bytes);

/* ---- cache (cache.c): what all sequences of a context have in common ------------------------- */

/* Most formats that pages go down to (ladder.c). */
enum { LADDER_RUNGS_MAX = 2 };

struct kv_cache_options {
    /* group 0: chosen by head size (kv_format_settle) from group_k, group_v */
    struct kv_format k, v;
    uint32_t group_k, group_v; /* 0: the default */
    uint32_t quantized_start;  /* so many first tokens, rounded up to pages, are f16 */
    uint32_t exact_tail;       /* so many before a query, rounded up to pages, it sees as f16 */
    uint32_t max_size;         /* rotation: the most tokens that a query sees; 0: all */
    uint32_t keep;             /* with rotation: so many first tokens are always seen; < max_size */
    uint64_t state_bytes;      /* of one sequence's recurrent layers; 0: no such layers */
    uint64_t budget_bytes;
    /* The ladder: full pages but a sequence's first go from k, v to these formats, one after the
     * other, as the budget fills. All are encoded when a page is full, and each takes fewer bytes
     * than the one before. n_rungs 0: pages keep their formats. */
    struct {
        struct kv_format k, v;
    } rungs[LADDER_RUNGS_MAX];
    uint32_t n_rungs;
};

/* The layer group as the cache sees it. */
struct kv_shape {
    uint32_t layers, kv_heads, head_dim;
    /* 0: none. Rotation does not apply to a group with a window */
    uint32_t window;
    struct kv_format k, v; /* bits 0: the options' */
    bool fixed_format;     /* seq_requantize and the prefix tree leave its format as it is */
    /* Borrowed for the cache's life: what affine keys are centred with; NULL: nothing is centred */
    const struct key_centre *centre;
    /* Likewise, for keys of KV_TILE; NULL: they are rotated by Hadamard */
    const struct key_basis *basis;
};

struct kv_cache;
kvasir_status kv_cache_create(struct backend *b, const struct kv_shape *groups, uint32_t n_groups,
                              const struct kv_cache_options *opt, struct kv_cache **out,
                              kvasir_error *err) MUST_CHECK;
void kv_cache_destroy(struct kv_cache *c);
/* kv_pool_rest and kv_pool_ahead get memory ready for new pages of so many sequences, in at most
 * 1/16 of the budget; kv_pool_rest also for load_bytes of pages that are read from tiers, in at
 * most half of it: page faults would cost a load more than reading. Until this is called they keep
 * none. */
void kv_cache_keep_ready(struct kv_cache *c, uint32_t sequences, uint64_t load_bytes);
struct kv_pool *kv_cache_pool(struct kv_cache *c);
/* The most bytes that one sequence holds while it grows from nothing to `length` in steps of
 * `step` tokens: for planning a budget before there is a cache. */
kvasir_status kv_cache_plan_bytes(const struct kv_shape *groups, uint32_t n_groups,
                                  const struct kv_cache_options *opt, uint32_t length,
                                  uint32_t step, uint64_t *bytes, kvasir_error *err) MUST_CHECK;
/* Of that, what is 16-bit beside pages in formats that are encoded when a page is full: the open
 * page, and the exact tail. 0: none. */
kvasir_status kv_cache_plan_shadows(const struct kv_shape *groups, uint32_t n_groups,
                                    const struct kv_cache_options *opt, uint64_t *open_page,
                                    uint64_t *tail, kvasir_error *err) MUST_CHECK;
/* The most bytes of pages and states that one sequence alone needs while it grows from nothing
 * to `length` in steps. Includes the copy of a page that it shares with the prefix tree. */
uint64_t kv_cache_need_bytes(const struct kv_cache *c, uint32_t length, uint32_t step);
/* Bytes of what a query after `length` tokens sees, at 16 bits and without pages or states. */
uint64_t kv_cache_bytes_16bit(const struct kv_cache *c, uint32_t length);
/* Bytes of a snapshot (seq_snapshot): of the state of recurrent layers and of the exact tail. 0:
 * sequences go on without one, and hits end anywhere. */
uint64_t kv_cache_snapshot_bytes(const struct kv_cache *c);
/* Whether a step from `from` to `to` computes and drops a page that a query at `point`, between the
 * two, sees: a window or rotation shorter than the step. So a sequence that has to be found again
 * at `point` needs a step that ends there. */
bool kv_cache_outruns(const struct kv_cache *c, uint32_t from, uint32_t point, uint32_t to);
/* What the rows of a group's page are stored in, after the exact start: a full one, and one that is
 * not, which is another layout if pages are encoded when they are full. */
const struct page_layout *kv_cache_layout(const struct kv_cache *c, uint32_t group, bool full);
/* And in the exact start. */
const struct page_layout *kv_cache_start_layout(const struct kv_cache *c, uint32_t group);
/* Whether pages are encoded when they are full: then hits end where a page does. */
bool kv_cache_is_whole(const struct kv_cache *c);
/* A group's settled formats. */
void kv_cache_formats(const struct kv_cache *c, uint32_t group, struct kv_format *k,
                      struct kv_format *v);
/* Pages with a smaller number are f16 (quantized_start); 0 if no format is quantized. */
uint32_t kv_cache_start_pages(const struct kv_cache *c);
/* So many pages before its own a query sees as f16 (exact_tail); 0 if no format is encoded when a
 * page is full. */
uint32_t kv_cache_tail_pages(const struct kv_cache *c);

/* ---- ladder (ladder.c) ----------------------------------------------------------------------- */

/* Between steps: if more than LADDER_MARK_PERCENT of the budget is in use, re-encodes at most so
 * many pages at fewer bits, and returns how many. 0: nothing is to be done. */
enum { LADDER_MARK_PERCENT = 85 };
uint32_t kv_cache_descend(struct kv_cache *c, uint32_t pages);
/* Re-encodes pages until so many bytes of the budget are free. False: there are not, and no page
 * can go further down. */
bool kv_cache_make_room(struct kv_cache *c, uint64_t bytes);
/* What going down to the floor would free of the pages that sequences hold. */
uint64_t kv_cache_ladder_bytes(const struct kv_cache *c);
/* How many formats there are to go down to; 0: there is no ladder. */
uint32_t kv_cache_rungs(const struct kv_cache *c);
/* Pages re-encoded so far, to each rung. */
uint64_t kv_cache_descended(const struct kv_cache *c, uint32_t rung);

/* ---- sequence (seq.c) ------------------------------------------------------------------------ */

/* Life of positions:
 *
 *      [0 ........ length) committed    [length .. prepared) may be written by the current step
 *
 *      seq_prepare(n)  takes the pages that n more tokens need (all or none) and makes the open
 *                      page private
 *      ... the step encodes K and V into them ...
 *      seq_commit(n)   the tokens are part of the sequence; pages that no later query sees are
 *                      freed
 *      seq_trim(len)   forgets the tail; also undoes a prepare
 */
struct kv_seq;
enum { STEP_TOKENS_MAX = 4096 }; /* tokens of one step, as seq_reserve plans for */
kvasir_status seq_create(struct kv_cache *c, struct kv_seq **out, kvasir_error *err) MUST_CHECK;
void seq_destroy(struct kv_seq *s);
/* A new sequence with the same tokens. Full pages are shared. The open page is, too, until the
 * next prepare of either sequence copies it. Not during a step. */
kvasir_status seq_fork(struct kv_seq *s, struct kv_seq **out, kvasir_error *err) MUST_CHECK;

uint32_t seq_length(const struct kv_seq *s);
const int32_t *seq_tokens(const struct kv_seq *s); /* [length] */

/* Makes room for tokens up to `length` in the sequence's own tables, so that later steps do not
 * allocate. Takes no pages. */
kvasir_status seq_reserve(struct kv_seq *s, uint32_t length, kvasir_error *err) MUST_CHECK;
/* Bytes that a sequence with room for `length` tokens takes beside its pages. */
uint64_t seq_overhead_bytes(const struct kv_cache *c, uint32_t length);
/* The most bytes beyond those it holds that the sequence will need at any time while it grows to
 * `length` in steps of `step` tokens, with so many snapshots before the last step. A caller
 * checks it against the budget before any work. */
uint64_t seq_need_bytes(const struct kv_seq *s, uint32_t length, uint32_t step, uint32_t snapshots);
/* KVASIR_ERR_BUDGET: the error names budget, use and need. */
kvasir_status seq_prepare(struct kv_seq *s, uint32_t n, kvasir_error *err) MUST_CHECK;
/* n: at most what was prepared. Prepared pages that are left over are freed. */
void seq_commit(struct kv_seq *s, const int32_t *tokens, uint32_t n);
/* Forgets everything from `length` on. *reached is the new length.
 *
 * Without recurrent layers the new length is `length`. Fails (KVASIR_ERR_ARGUMENT, naming the
 * nearest lengths that work) if rotation or a window dropped a page that a query at `length` sees.
 * Length 0 always works.
 *
 * With recurrent layers the new length is that of the newest snapshot at or before `length`
 * whose pages are still held, or 0; this never fails. With an exact tail that is so, too, unless
 * `length` is in the page that the sequence ends in. If `length` is inside a full page that was
 * encoded whole, the new length is at most the page's start. The tokens from *reached to `length`
 * must be run again; seq_tokens still has them until the next commit. */
kvasir_status seq_trim(struct kv_seq *s, uint32_t length, uint32_t *reached,
                       kvasir_error *err) MUST_CHECK;
/* What *reached would be, if the trim does not fail. Changes nothing. */
uint32_t seq_trim_reach(const struct kv_seq *s, uint32_t length);
/* Keeps the recurrent layers' state at the current length for later trims, and the exact tail; with
 * one, only where a page ends. Does nothing without either, or if that is kept already. */
kvasir_status seq_snapshot(struct kv_seq *s, kvasir_error *err) MUST_CHECK;
/* Stores every page in other formats (chosen by head size as those of struct kv_cache_options),
 * and all later tokens, too: --quantized-kv-start no longer applies to this sequence. Not during
 * a step. Forks keep their pages; this sequence takes new ones. Pages that already have the
 * formats are left alone, and so are states and snapshots (but snapshots of an exact tail are
 * dropped with the pages that they belong to). KVASIR_ERR_BUDGET if exchanging the
 * pages one by one would exceed the budget at any time, KVASIR_ERR_UNSUPPORTED if the cache has
 * had pages in too many formats; nothing has changed then. */
kvasir_status seq_requantize(struct kv_seq *s, struct kv_format k, struct kv_format v,
                             uint32_t group_k, uint32_t group_v, kvasir_error *err) MUST_CHECK;
/* How many of its pages the ladder has given fewer bits than new ones have, counted once for each
 * layer group. */
uint32_t seq_descended_pages(const struct kv_seq *s);
/* Bytes of the pages in its tables, its state, shadows and snapshots. Shared ones count in full. */
uint64_t seq_bytes(const struct kv_seq *s);
/* What a 16-bit cache without pages would take for what the next query sees, and for the same
 * states. Savings are measured against this. */
uint64_t seq_bytes_16bit(const struct kv_seq *s);
/* The group's pages as a step sees them. Valid until the next call with this sequence. */
void seq_view(const struct kv_seq *s, uint32_t group, struct kv_view *view);
/* The state as a step sees it, likewise. Only if the cache has state_bytes. */
void seq_state(const struct kv_seq *s, struct state_view *view);
/* The layout of the sequence's full pages after its exact start of *start_pages, unless the ladder
 * or the prefix tree gave them fewer bits. */
const struct page_layout *seq_layout(const struct kv_seq *s, uint32_t group, uint32_t *start_pages);
/* The layout of the tiles of page `number`: of its codes, or if it is encoded when it is full and
 * not full yet (by what is prepared, in a step) that of its rows at 16 bits. NULL: the tables do
 * not hold it. */
const struct page_layout *seq_page_layout(const struct kv_seq *s, uint32_t group, uint32_t number);
/* Copies a stored tile: K or V of one head in page `number`. Positions from the length on hold
 * nothing. layer counts inside the group. *layout: the tile's layout; bytes [layout->bytes].
 * *there is false if the page is not in the table; then nothing else is set. */
kvasir_status seq_read_tile(const struct kv_seq *s, uint32_t group, enum tile_kind part,
                            uint32_t layer, uint32_t head, uint32_t number, bool *there,
                            const struct tile_layout **layout, void *bytes,
                            kvasir_error *err) MUST_CHECK;
/* Writes a whole tile into a page that is prepared and not committed: a tile from a prompt-cache
 * file instead of one that a step encodes. */
void seq_write_tile(struct kv_seq *s, uint32_t group, enum tile_kind part, uint32_t layer,
                    uint32_t head, uint32_t number, const void *bytes);
/* The recurrent layers' state after the last token [state_bytes]. It is written between prepare
 * and commit. */
kvasir_status seq_read_state(const struct kv_seq *s, void *state, kvasir_error *err) MUST_CHECK;
void seq_write_state(struct kv_seq *s, const void *state);
/* After whole tiles were written to the prepared pages: the exact tail has their rows, too. */
void seq_fill_tail(struct kv_seq *s);
/* Declares that the group's positions from the kept ones up to `first` hold nothing. Trims after
 * which a query would see them are refused. */
void seq_mark_missing(struct kv_seq *s, uint32_t group, uint32_t first);
/* Decodes n stored rows of one page, in the plain basis: rows [n][head_dim]. layer counts inside
 * the group. *centred: the rows lack their centre. Slow: for tests and tools. */
kvasir_status seq_read(const struct kv_seq *s, uint32_t group, enum tile_kind part, uint32_t layer,
                       uint32_t head, uint32_t position, uint32_t n, float *rows, bool *centred,
                       kvasir_error *err) MUST_CHECK;

#endif
