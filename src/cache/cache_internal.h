/* SPDX-License-Identifier: Apache-2.0 */
/* What pool.c, cache.c, seq.c and the prefix tree share (the last two more:
 * tree_internal.h). Not for other folders. */
#ifndef KVASIR_CACHE_INTERNAL_H
#define KVASIR_CACHE_INTERNAL_H

#include "cache/cache.h"

/* ---- pages (pool.c) -------------------------------------------------------------------------- */

/* Pages of one size and pair of formats (bits 0: none, states) come from superblocks of their own.
 * Registered with the layouts. */
kvasir_status page_class(struct kv_pool *p, size_t page_bytes, struct kv_format k,
                         struct kv_format v, uint32_t *class_index, kvasir_error *err) MUST_CHECK;

/* A zeroed page with one reference. KVASIR_ERR_BUDGET leaves everything as it was. */
kvasir_status page_take(struct kv_pool *p, uint32_t class_index, uint32_t *addr,
                        kvasir_error *err) MUST_CHECK;
void page_ref(struct kv_pool *p, uint32_t addr);
void page_unref(struct kv_pool *p, uint32_t addr);
bool page_shared(const struct kv_pool *p, uint32_t addr); /* more than one reference */
/* References of the prefix tree, counted apart: a page that nobody else holds can be evicted. The
 * page has a reference of somebody when it is stored. */
void page_store(struct kv_pool *p, uint32_t addr);
void page_unstore(struct kv_pool *p, uint32_t addr);
bool page_is_live(const struct kv_pool *p, uint32_t addr); /* somebody else holds it, too */
void page_copy(struct kv_pool *p, uint32_t to, uint32_t from);
struct backend_arena *pool_arena(const struct kv_pool *p);
/* Address space for so many pages of the class beside those in use: until pool_unclaim only the
 * budget can refuse to take them, as long as no other pages are taken than were claimed. A class
 * that is claimed again: all of it, not more of it. */
kvasir_status pool_claim(struct kv_pool *p, uint32_t class_index, uint64_t pages,
                         kvasir_error *err) MUST_CHECK;
void pool_unclaim(struct kv_pool *p); /* gives back what was not taken, of all classes */
/* Fills err with budget, use and need, and returns KVASIR_ERR_BUDGET, where `need` more bytes would
 * not fit. */
kvasir_status pool_check_room(const struct kv_pool *p, uint64_t need, kvasir_error *err) MUST_CHECK;

/* ---- cache ----------------------------------------------------------------------------------- */

/* One layer group: its page layouts and what its queries see. */
struct kv_group {
    struct kv_shape shape;
    uint32_t n_layouts;                     /* registered; they stay for the cache's life */
    uint32_t page_class[CACHE_LAYOUTS_MAX]; /* of each layout */
    bool centred;                           /* some layout is */
    uint32_t keep, span; /* a query at p sees positions < keep and those in (p - span, p] */
    uint32_t kept_pages; /* pages that hold positions < keep: never dropped */
};

/* The cache's formats; the exact start's. Behind them those of later seq_requantize calls. */
enum { LAYOUT_OWN, LAYOUT_START };

/* Which of its group's layouts a page has: of all pages of one sequence (C7). */
struct layout_rule {
    uint32_t start_pages;              /* pages with a smaller number have LAYOUT_START */
    uint32_t layout[CACHE_GROUPS_MAX]; /* all others */
};

static inline uint32_t layout_of(const struct layout_rule *r, uint32_t group, uint32_t number) {
    return number < r->start_pages ? LAYOUT_START : r->layout[group];
}

struct kv_cache {
    struct backend *backend;
    struct kv_pool *pool;
    struct kv_cache_options options;
    uint32_t n_groups;
    struct kv_group groups[CACHE_GROUPS_MAX];
    struct page_layout layouts[CACHE_GROUPS_MAX][CACHE_LAYOUTS_MAX];
    struct layout_rule rule; /* of new sequences */
    uint32_t state_class;    /* of records, where options.state_bytes is not 0 */
    uint64_t record_bytes;   /* state_bytes in whole units */
};

/* The rule of a sequence that has K and V in these formats from its first token on. Layouts that
 * are new stand behind their group's registered ones, for the caller to plan with. */
kvasir_status cache_rule_find(struct kv_cache *c, struct kv_format k, struct kv_format v,
                              uint32_t group_k, uint32_t group_v, struct layout_rule *rule,
                              kvasir_error *err) MUST_CHECK;
/* Registers what cache_rule_find found, before anything else looks for a rule. */
kvasir_status cache_rule_adopt(struct kv_cache *c, const struct layout_rule *rule,
                               kvasir_error *err) MUST_CHECK;

uint32_t pages_for(uint32_t tokens); /* pages that hold positions below `tokens` */
/* Number of the first page behind the kept ones that a query at position p or later sees. */
uint32_t first_seen(const struct kv_group *g, uint32_t p);
/* Bytes of the pages that a sequence holds when its next query is at `length` and positions below
 * `prepared` have pages. */
uint64_t all_bytes(const struct kv_cache *c, const struct layout_rule *r, uint32_t length,
                   uint32_t prepared);
/* The most of them while it grows from `from` to `length` in steps. */
uint64_t peak_bytes(const struct kv_cache *c, const struct layout_rule *r, uint32_t from,
                    uint32_t length, uint32_t step);

/* ---- what the prefix tree does to sequences (seq.c) ------------------------------------------ */

/* The first page, behind the kept ones, that a table holds whose next query is at `length`. */
uint32_t first_held(const struct kv_group *g, uint32_t length);
/* Begins a new sequence with tokens whose pages and state, with references of its own, are to be
 * put in place by the next two: every page that its tables hold (pages below pages_for(length) that
 * are kept or from first_held on). KVASIR_ERR_MEMORY leaves it new. */
kvasir_status seq_begin_at(struct kv_seq *s, const int32_t *tokens, uint32_t length,
                           kvasir_error *err) MUST_CHECK;
void seq_put_page(struct kv_seq *s, uint32_t group, uint32_t number, struct kv_page page);
void seq_put_state(struct kv_seq *s, uint32_t addr);
/* A page of its tables; false: it is not there. */
bool seq_get_page(const struct kv_seq *s, uint32_t group, uint32_t number, struct kv_page *page);
bool seq_get_state(const struct kv_seq *s, uint32_t *addr);
/* Whether its pages are what its tokens alone would give: not requantized, and not from a file that
 * leaves tokens or pages open. */
bool seq_is_plain(const struct kv_seq *s);

/* ---- other formats (cache.c) ----------------------------------------------------------------- */

/* Rows below `rows` of page `number` of the group go from one page to another, which is zero and of
 * another layout. */
void page_requantize(const struct kv_cache *c, uint32_t group, uint32_t number, uint32_t rows,
                     struct kv_page from, struct kv_page to);

#endif
