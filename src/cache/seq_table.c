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
    s->has_state = false;
}

void seq_snapshots_truncate(struct kv_seq *s, uint32_t n) {
    while (s->n_snapshots > n)
        page_unref(s->cache->pool, s->snapshots[--s->n_snapshots].addr);
}
