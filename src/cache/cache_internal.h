/* SPDX-License-Identifier: Apache-2.0 */
/* What pool.c, cache.c, seq.c and the prefix tree share. Other folders include cache.h only;
 * what the files of the tree share is in tree_internal.h. */
#ifndef KVASIR_CACHE_INTERNAL_H
#define KVASIR_CACHE_INTERNAL_H

#include "cache/ahead.h"
#include "cache/cache.h"

/* ---- pages (pool.c) -------------------------------------------------------------------------- */

/* Registers a class: pages of one size and pair of formats, which share superblocks. States have
 * formats with bits 0. */
kvasir_status page_class(struct kv_pool *p, size_t page_bytes, struct kv_format k,
                         struct kv_format v, uint32_t *class_index, kvasir_error *err) MUST_CHECK;

/* Takes a zeroed page with one reference. KVASIR_ERR_BUDGET leaves everything as it was. */
kvasir_status page_take(struct kv_pool *p, uint32_t class_index, uint32_t *addr,
                        kvasir_error *err) MUST_CHECK;
/* The same, but it holds anything, and may have no memory yet if the host reaches it: for whoever
 * writes all of it before any table of a running sequence holds it. */
kvasir_status page_take_unset(struct kv_pool *p, uint32_t class_index, uint32_t *addr,
                              kvasir_error *err) MUST_CHECK;
void page_ref(struct kv_pool *p, uint32_t addr);
void page_unref(struct kv_pool *p, uint32_t addr);
bool page_shared(const struct kv_pool *p, uint32_t addr); /* more than one reference */
/* References of the prefix tree are counted apart: a page that only the tree holds can be
 * evicted. A page must have a reference when it is stored. */
void page_store(struct kv_pool *p, uint32_t addr);
void page_unstore(struct kv_pool *p, uint32_t addr);
bool page_is_live(const struct kv_pool *p, uint32_t addr);       /* not the tree's alone */
bool page_is_stored(const struct kv_pool *p, uint32_t addr);     /* the tree's, and maybe others' */
uint32_t page_live_refs(const struct kv_pool *p, uint32_t addr); /* those that are not the tree's */
void page_copy(struct kv_pool *p, uint32_t to, uint32_t from);
struct backend_arena *pool_arena(const struct kv_pool *p);
/* Claims address space for so many more pages of the class. Until pool_unclaim only the budget
 * can refuse to take them, as long as no unclaimed pages are taken. A second claim for the same
 * class replaces the first one. */
kvasir_status pool_claim(struct kv_pool *p, uint32_t class_index, uint64_t pages,
                         kvasir_error *err) MUST_CHECK;
void pool_unclaim(struct kv_pool *p); /* frees what was not taken, of all classes */
/* The class's reserve: so many free pages get memory while steps run (kv_pool_ahead), and so many,
 * which is at least as many, in a rest (kv_pool_rest), if it fits. */
void pool_keep_ready(struct kv_pool *p, uint32_t class_index, uint64_t pages, uint64_t at_rest);
/* From now on a thread gets memory while steps run (kv_pool_ahead); NULL: there is none. */
void pool_ahead_begin(struct kv_pool *p);
struct ahead *pool_ahead(const struct kv_pool *p);
/* KVASIR_ERR_BUDGET, with budget, use and need in err, unless `need` more bytes fit. */
kvasir_status pool_check_room(const struct kv_pool *p, uint64_t need, kvasir_error *err) MUST_CHECK;

/* ---- cache ----------------------------------------------------------------------------------- */

/* One layer group: its page layouts and what its queries see. */
struct kv_group {
    struct kv_shape shape;
    uint32_t n_layouts;                     /* registered, for the cache's life */
    uint32_t page_class[CACHE_LAYOUTS_MAX]; /* of each layout */
    uint32_t shadow[CACHE_LAYOUTS_MAX]; /* layout of the shadows of its pages; NO_LAYOUT: none */
    bool centred;                       /* some layout is */
    uint32_t keep, span; /* a query at p sees positions < keep and those in (p - span, p] */
    uint32_t kept_pages; /* pages that hold positions < keep: never dropped */
};

/* The first two layouts of a group: the cache's formats, those of the exact start, which are also
 * those of shadows if pages are encoded when they are full. The others are those of other shadows,
 * and come from seq_requantize and the prefix tree. */
enum { LAYOUT_OWN, LAYOUT_START };
#define NO_LAYOUT UINT32_MAX

/* Which of its group's layouts a page has: one rule for all pages of a sequence (CACHE-7). */
struct layout_rule {
    uint32_t start_pages;              /* pages with a smaller number have LAYOUT_START */
    uint32_t tail_pages;               /* so many before a query's are seen by their shadows */
    uint32_t layout[CACHE_GROUPS_MAX]; /* all other pages */
};

static inline uint32_t layout_of(const struct layout_rule *r, uint32_t group, uint32_t number) {
    return number < r->start_pages ? LAYOUT_START : r->layout[group];
}

/* Formats that full pages go down to (ladder.c), from this page after the exact start on. */
enum { LADDER_FIRST_PAGE = 1 };
struct ladder {
    struct layout_rule rungs[LADDER_RUNGS_MAX]; /* the last one is the floor */
    uint32_t n_rungs;
    uint64_t spare_bytes; /* charged; free while a page is exchanged */
    uint64_t descended[LADDER_RUNGS_MAX];
    uint64_t vain_taken, vain_stored; /* of the pool when nothing was found last */
};

struct kv_cache {
    struct backend *backend;
    struct kv_pool *pool;
    struct kv_cache_options options;
    uint32_t n_groups;
    struct kv_group groups[CACHE_GROUPS_MAX];
    struct page_layout layouts[CACHE_GROUPS_MAX][CACHE_LAYOUTS_MAX];
    struct layout_rule rule;   /* of new sequences */
    uint32_t state_class;      /* class of states, if there are any */
    uint64_t state_page_bytes; /* of one state's page; 0: there are no states */
    /* Likewise what a sequence needs beside its pages to go on from a length (seq_snapshot.c): its
     * state and, after it, the exact tail. */
    uint32_t snapshot_class;
    uint64_t snapshot_bytes;
    struct ladder ladder;
    struct kv_seq *first_seq, *last_seq; /* all but those of seq_unlist, the oldest first */
    struct prefix_tree *tree;            /* the one that keeps its pages; NULL: there is none */
};

/* The layout of the shadows of pages of a layout; NO_LAYOUT: they have none (seq_shadow.c). */
static inline uint32_t cache_shadow_of(const struct kv_cache *c, uint32_t group, uint32_t layout) {
    return c->groups[group].shadow[layout];
}
/* Whether a sequence can go on inside the page only with its shadow. */
static inline bool cache_is_whole(const struct kv_cache *c, uint32_t group, uint32_t layout) {
    return cache_shadow_of(c, group, layout) != NO_LAYOUT;
}

/* The first page that may have a shadow in a table whose next query is at `length`. */
uint32_t cache_first_shadow(const struct kv_cache *c, const struct layout_rule *r, uint32_t group,
                            uint32_t length);
/* Bytes of those shadows up to the page of the last position before `prepared`. */
uint64_t cache_shadow_bytes(const struct kv_cache *c, const struct layout_rule *r, uint32_t group,
                            uint32_t length, uint32_t prepared);
/* The most of them at a page's end: what a snapshot has of the group. */
uint64_t cache_tail_bytes(const struct kv_cache *c, uint32_t group);

/* Finds the rule of a sequence that has K and V in these formats from its first token on. New
 * layouts are written after the group's registered ones, for the caller to plan with. */
kvasir_status cache_rule_find(struct kv_cache *c, struct kv_format k, struct kv_format v,
                              uint32_t group_k, uint32_t group_v, struct layout_rule *rule,
                              kvasir_error *err) MUST_CHECK;
/* Registers those new layouts. No other rule may be looked for in between. */
kvasir_status cache_rule_adopt(struct kv_cache *c, const struct layout_rule *rule,
                               kvasir_error *err) MUST_CHECK;

uint32_t pages_for(uint32_t tokens); /* pages that hold positions below `tokens` */
/* Number of the first page, after the kept ones, that a query at position p or later sees. */
uint32_t first_seen(const struct kv_group *g, uint32_t p);
/* Bytes of the pages and state of a sequence whose next query is at `length` and whose positions
 * before `prepared` have pages. */
uint64_t all_bytes(const struct kv_cache *c, const struct layout_rule *r, uint32_t length,
                   uint32_t prepared);
/* The most of them while it grows from `from` to `length` in steps. */
uint64_t peak_bytes(const struct kv_cache *c, const struct layout_rule *r, uint32_t from,
                    uint32_t length, uint32_t step);

/* ---- what the prefix tree does to sequences (seq.c) ------------------------------------------ */

/* The first page, after the kept ones, in a table whose next query is at `length`. */
uint32_t first_held(const struct kv_group *g, uint32_t length);
/* Starts a new sequence with tokens that have been computed. The caller must then fill its
 * tables with the next two functions, giving it a reference to each page and state: every page
 * below pages_for(length) that is kept or from first_held on. KVASIR_ERR_MEMORY leaves the
 * sequence new. */
kvasir_status seq_begin_at(struct kv_seq *s, const int32_t *tokens, uint32_t length,
                           kvasir_error *err) MUST_CHECK;
void seq_put_page(struct kv_seq *s, uint32_t group, uint32_t number, struct kv_page page);
void seq_put_state(struct kv_seq *s, uint32_t addr);
/* A page of its tables; false: the tables do not hold it. */
bool seq_get_page(const struct kv_seq *s, uint32_t group, uint32_t number, struct kv_page *page);
/* Whether the sequence has an exact tail: then snapshots are pages of their own, not states. */
bool seq_has_tail(const struct kv_seq *s);
/* A reference to a snapshot of the sequence as it was at `length`; NO_SNAPSHOT: it has none of
 * that. Takes a page if it has an exact tail (KVASIR_ERR_BUDGET). */
#define NO_SNAPSHOT UINT32_MAX
kvasir_status seq_snapshot_take(struct kv_seq *s, uint32_t length, uint32_t *addr,
                                kvasir_error *err) MUST_CHECK;
/* Whether its pages are what its tokens alone would give: not requantized, and not from a file
 * that lacks tokens or pages. */
bool seq_is_plain(const struct kv_seq *s);

/* ---- ladder (ladder.c) ----------------------------------------------------------------------- */

/* Another thread writes to pages of its tables: the ladder leaves all of them as they are. */
void seq_unlist(struct kv_seq *s);
/* The ladder has re-encoded a page that its tokens were computed after, or the tree's nodes have
 * (struct node): tiers do not get what it computes. */
void seq_note_descended(struct kv_seq *s);
bool seq_has_descended(const struct kv_seq *s);
/* How far down the ladder a page of this layout is; 0: as it was made; NO_RANK: it is not on it. */
#define NO_RANK UINT32_MAX
uint32_t ladder_rank(const struct kv_cache *c, uint32_t group, uint32_t layout);

/* ---- other formats (cache.c) ----------------------------------------------------------------- */

/* Converts the first `rows` rows of the group's page `number` from one page to another, which is
 * all zeros and has another layout. */
void page_requantize(const struct kv_cache *c, uint32_t group, uint32_t number, uint32_t rows,
                     struct kv_page from, struct kv_page to);
/* The same for a full page, to a new page of this layout. False: there is no room for it. */
bool page_convert_new(struct kv_cache *c, uint32_t group, uint32_t number, struct kv_page from,
                      uint32_t layout, struct kv_page *to);

#endif
