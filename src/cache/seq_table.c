/* SPDX-License-Identifier: Apache-2.0 */
/* seq_table.c: what a sequence's tables and snapshots hold, for the files that change them. */
#include "cache/seq_internal.h"

uint32_t seq_entries_for(const struct kv_seq *s, uint32_t group, uint32_t length) {
    uint32_t pages = pages_for(length), kept = s->cache->groups[group].kept_pages;
    return pages <= kept ? pages : kept + (pages - s->tables[group].base_page);
}

void seq_table_truncate(struct kv_seq *s, uint32_t group, uint32_t n) {
    struct table *t = &s->tables[group];
    while (t->n > n)
        page_unref(s->cache->pool, t->pages[--t->n].addr);
}

void seq_state_drop(struct kv_seq *s) {
    if (s->has_state)
        page_unref(s->cache->pool, s->state);
    if (s->has_packed)
        page_unref(s->cache->pool, s->packed);
    s->has_state = s->has_packed = false;
}

void seq_snapshots_truncate(struct kv_seq *s, uint32_t n) {
    while (s->n_snapshots > n)
        page_unref(s->cache->pool, s->snapshots[--s->n_snapshots].addr);
}

kvasir_status seq_pages_room(struct kv_page **pages, uint32_t *cap, uint32_t n, kvasir_error *err) {
    if (n <= *cap)
        return KVASIR_OK;
    struct kv_page *more = mem_realloc(*pages, n, sizeof *more);
    if (!more)
        return fail(err, KVASIR_ERR_MEMORY, "page table of %u entries: out of memory", n);
    *pages = more;
    *cap = n;
    return KVASIR_OK;
}

kvasir_status seq_page_unshare(struct kv_seq *s, uint32_t group, struct kv_page *page,
                               kvasir_error *err) {
    struct kv_cache *c = s->cache;
    uint32_t addr;
    if (!page_shared(c->pool, page->addr))
        return KVASIR_OK;
    TRY(page_take(c->pool, c->groups[group].page_class[page->layout], &addr, err));
    page_copy(c->pool, addr, page->addr);
    page_unref(c->pool, page->addr);
    page->addr = addr;
    return KVASIR_OK;
}
