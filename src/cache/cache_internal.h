/* SPDX-License-Identifier: Apache-2.0 */
/* What pool.c, cache.c and seq.c share. Not for other folders. */
#ifndef KVASIR_CACHE_INTERNAL_H
#define KVASIR_CACHE_INTERNAL_H

#include "cache/cache.h"

/* ---- pages (pool.c) -------------------------------------------------------------------------- */

/* Pages of one size come from superblocks of their own. Registered once, at cache creation. */
enum { PAGE_CLASSES_MAX = 2 * CACHE_GROUPS_MAX + 1 };
kvasir_status page_class(struct kv_pool *p, size_t page_bytes, uint32_t *class_index,
                         kvasir_error *err) MUST_CHECK;

/* A zeroed page with one reference. KVASIR_ERR_BUDGET leaves everything as it was. */
kvasir_status page_take(struct kv_pool *p, uint32_t class_index, uint32_t *addr,
                        kvasir_error *err) MUST_CHECK;
void page_ref(struct kv_pool *p, uint32_t addr);
void page_unref(struct kv_pool *p, uint32_t addr);
bool page_shared(const struct kv_pool *p, uint32_t addr); /* more than one reference */
void page_copy(struct kv_pool *p, uint32_t to, uint32_t from);
uint8_t *pool_arena(const struct kv_pool *p);
/* Fills err with budget, use and need, and returns KVASIR_ERR_BUDGET, where `need` more bytes would
 * not fit. */
kvasir_status pool_check_room(const struct kv_pool *p, uint64_t need, kvasir_error *err) MUST_CHECK;

/* ---- cache ----------------------------------------------------------------------------------- */

/* One layer group: its two page layouts and what its queries see. */
struct kv_group {
    struct kv_shape shape;
    uint32_t page_class[2]; /* [0] the cache's format, [1] the exact start's */
    uint32_t keep, span;    /* a query at p sees positions < keep and those in (p - span, p] */
    uint32_t kept_pages;    /* pages that hold positions < keep: never dropped */
};

struct kv_cache {
    struct backend *backend;
    struct kv_pool *pool;
    struct kv_cache_options options;
    uint32_t n_groups;
    struct kv_group groups[CACHE_GROUPS_MAX];
    struct page_layout layouts[CACHE_GROUPS_MAX][2]; /* the group's format; the exact start's */
    uint32_t state_class;  /* of records, where options.state_bytes is not 0 */
    uint64_t record_bytes; /* state_bytes in whole units */
    uint32_t start_pages;  /* pages with a smaller number are exact (quantized-kv-start) */
};

/* Which of its group's layouts page `number` has: a function of the number alone (C7). */
static inline uint32_t layout_of(const struct kv_cache *c, uint32_t number) {
    return number < c->start_pages ? 1 : 0;
}

uint32_t pages_for(uint32_t tokens); /* pages that hold positions below `tokens` */
/* Number of the first page behind the kept ones that a query at position p or later sees. */
uint32_t first_seen(const struct kv_group *g, uint32_t p);
/* Bytes of the pages that a sequence holds when its next query is at `length` and positions below
 * `prepared` have pages. */
uint64_t all_bytes(const struct kv_cache *c, uint32_t length, uint32_t prepared);
/* The most of them while it grows from `from` to `length` in steps. */
uint64_t peak_bytes(const struct kv_cache *c, uint32_t from, uint32_t length, uint32_t step);

#endif
