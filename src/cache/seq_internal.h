/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a sequence share (seq.c has the drawing and the invariants). Each calls only
 * those before it:
 *
 *     seq_table.c       entries of tables
 *     seq_shadow.c      rows at 16 bits of pages that are encoded when they are full
 *     seq_snapshot.c    what a sequence goes on with from a length that it had
 *     seq_trim.c        shrinking, and which lengths can be reached
 *     ladder.c          pages at fewer bits as the budget fills
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
    /* Of pages that are not full, or were not when the step began, and of the exact tail
     * (seq_shadow.c). */
    struct kv_page *shadows; /* [cap_shadows]; entry i: of page number shadow_first + i */
    uint32_t n_shadows, cap_shadows, shadow_first;
};

/* What a sequence of `length` tokens goes on with (seq_snapshot.c); addr is its page. */
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
    bool descended;  /* tokens were computed after pages that the ladder has re-encoded */
    bool stale_tail; /* slots from `length` on in the open page may hold another branch's tokens */
    struct table tables[CACHE_GROUPS_MAX];
    /* recurrent layers */
    uint32_t state; /* its page, if has_state; without one the state is all zeros */
    bool has_state;
    /* The snapshot that it goes on from, until the next step unpacks it. */
    uint32_t packed;
    bool has_packed;
    struct snapshot *snapshots; /* [n_snapshots], rising by length; each holds a reference */
    uint32_t n_snapshots, cap_snapshots;
    bool listed; /* in the cache's list */
    struct kv_seq *prev, *next;
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
/* Forgets the state, unpacked or not. */
void seq_state_drop(struct kv_seq *s);
/* Forgets the snapshots from entry n on. */
void seq_snapshots_truncate(struct kv_seq *s, uint32_t n);

/* ---- seq_shadow.c ---------------------------------------------------------------------------- */

/* Room in the table for those of a step, as seq_reserve makes it; the bytes of that. */
kvasir_status shadows_reserve(struct kv_seq *s, uint32_t group, kvasir_error *err) MUST_CHECK;
uint64_t shadows_overhead_bytes(const struct kv_cache *c, uint32_t group);
/* Whether any page of the group has a shadow. */
bool shadows_used(const struct kv_cache *c, const struct layout_rule *rule, uint32_t group);
/* The shadow of page `number`; NULL: it has none. */
struct kv_page *shadow_at(const struct kv_seq *s, uint32_t group, uint32_t number);
/* Bytes that a private copy of the open page's shadow will take, if it is shared. */
uint64_t shadow_copy_bytes(const struct kv_seq *s, uint32_t group);
/* Takes the shadows that a table to `end` lacks. */
kvasir_status shadows_take(struct kv_seq *s, uint32_t group, uint32_t end,
                           kvasir_error *err) MUST_CHECK;
/* The same for a step to there, which writes to the open page's shadow: it is private then. */
kvasir_status shadows_prepare(struct kv_seq *s, uint32_t group, uint32_t end,
                              kvasir_error *err) MUST_CHECK;
/* Frees all but those of the page that `length` is in and of the exact tail before it. */
void shadows_keep(struct kv_seq *s, uint32_t group, uint32_t length);
void shadows_fork(const struct kv_seq *s, uint32_t group, struct kv_seq *fork);
void shadows_drop(struct kv_seq *s, uint32_t group); /* all */
void shadows_free(struct kv_seq *s, uint32_t group); /* and their list */
/* Whether a sequence of `length` tokens could go on with the shadows that are there. */
bool shadows_serve(const struct kv_seq *s, uint32_t group, uint32_t length);

/* ---- seq_snapshot.c -------------------------------------------------------------------------- */

/* Makes the sequence go on from this snapshot, whose reference it takes over. */
void seq_restore(struct kv_seq *s, uint32_t addr);
/* Room for n snapshots in the list. */
kvasir_status seq_snapshots_room(struct kv_seq *s, uint32_t n, kvasir_error *err) MUST_CHECK;
/* Bytes that seq_unpack will take. */
uint64_t unpack_bytes(const struct kv_seq *s);
/* Gives the sequence the state and shadows that its snapshot has. */
kvasir_status seq_unpack(struct kv_seq *s, kvasir_error *err) MUST_CHECK;
/* Bytes of a snapshot of it; of all of them, and of its state; those of states at 16 bits. */
uint64_t snapshot_page_bytes(const struct kv_seq *s);
uint64_t snapshots_bytes(const struct kv_seq *s);
uint64_t snapshots_bytes_16bit(const struct kv_seq *s);

/* ---- seq_trim.c ------------------------------------------------------------------------------ */

/* Whether a sequence could go back to its snapshot of this length: the pages that a query there
 * sees have not been dropped. */
bool snapshot_serves(const struct kv_seq *s, uint32_t length);

#endif
