/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a sequence share (seq.c has the drawing and the invariants). Each calls only
 * those before it:
 *
 *     seq_table.c       entries of tables
 *     seq_shadow.c      rows at 16 bits of pages that are encoded when they are full
 *     seq_trim.c        shrinking, and which lengths can be reached
 *     seq.c             life, reading, growing
 *     seq_requantize.c  other formats
 */
#ifndef KVASIR_CACHE_SEQ_INTERNAL_H
#define KVASIR_CACHE_SEQ_INTERNAL_H

#include "cache/cache_internal.h"

struct table {
    struct kv_page *pages; /* [cap] */
    uint32_t n, cap;
    uint32_t base_page; /* number of the first page after the kept ones */
    uint32_t missing;   /* positions from the kept ones to here hold nothing (seq_mark_missing) */
    /* Of the pages that are not full, or were not when the step began (seq_shadow.c). */
    struct kv_page *shadows; /* [cap_shadows]; entry i: of page number shadow_first + i */
    uint32_t n_shadows, cap_shadows, shadow_first;
};

/* The recurrent layers' state after `length` tokens; addr is its page. */
struct snapshot {
    uint32_t length, addr;
};

struct kv_seq {
    struct kv_cache *cache;
    struct layout_rule rule; /* layouts of all pages of its tables, also of new ones */
    int32_t *tokens;         /* [token_cap] */
    uint32_t token_cap;
    uint32_t length, prepared;
    /* Computing its tokens again would give other bytes: some are from a file, or requantized. */
    bool not_reproducible;
    bool stale_tail; /* slots from `length` on in the open page may hold another branch's tokens */
    struct table tables[CACHE_GROUPS_MAX];
    /* recurrent layers */
    uint32_t state; /* its page, if has_state; without one the state is all zeros */
    bool has_state;
    struct snapshot *snapshots; /* [n_snapshots], rising by length; each holds a reference */
    uint32_t n_snapshots, cap_snapshots;
};

/* ---- seq_table.c ----------------------------------------------------------------------------- */

/* Number of entries of a table that covers positions before `length`. */
uint32_t seq_entries_for(const struct kv_seq *s, uint32_t group, uint32_t length);
void seq_table_truncate(struct kv_seq *s, uint32_t group, uint32_t n);
/* Room for n pages in a list with room for *cap. */
kvasir_status seq_pages_room(struct kv_page **pages, uint32_t *cap, uint32_t n,
                             kvasir_error *err) MUST_CHECK;
/* SEQ-3: replaces a page by a private copy if it is shared. The other holders keep the original. */
kvasir_status seq_page_unshare(struct kv_seq *s, uint32_t group, struct kv_page *page,
                               kvasir_error *err) MUST_CHECK;
void seq_state_drop(struct kv_seq *s);
/* Forgets the snapshots from entry n on. */
void seq_snapshots_truncate(struct kv_seq *s, uint32_t n);

/* ---- seq_shadow.c ---------------------------------------------------------------------------- */

/* Room in the table for those of a step, as seq_reserve makes it; the bytes of that. */
kvasir_status shadows_reserve(struct kv_seq *s, uint32_t group, kvasir_error *err) MUST_CHECK;
uint64_t shadows_overhead_bytes(const struct kv_cache *c, uint32_t group);
/* Bytes that a private copy of a shared shadow will take. */
uint64_t shadow_copy_bytes(const struct kv_seq *s, uint32_t group);
/* Takes the shadows of a step to `end`, and makes the first one private. */
kvasir_status shadows_prepare(struct kv_seq *s, uint32_t group, uint32_t end,
                              kvasir_error *err) MUST_CHECK;
/* Frees all but that of the page which `length` is in. */
void shadows_keep(struct kv_seq *s, uint32_t group, uint32_t length);
void shadows_fork(const struct kv_seq *s, uint32_t group, struct kv_seq *fork);
void shadows_free(struct kv_seq *s, uint32_t group);
/* Whether a sequence of `length` tokens could go on: if that is inside a page which is encoded when
 * it is full, its shadow is there. */
bool shadow_serves(const struct kv_seq *s, uint32_t group, uint32_t length);

/* ---- seq_trim.c ------------------------------------------------------------------------------ */

/* Whether every group has what a query at `length` sees. */
bool seq_can_trim(const struct kv_seq *s, uint32_t length);

#endif
