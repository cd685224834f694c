/* SPDX-License-Identifier: Apache-2.0 */
/* seq_shadow.c: rows at 16 bits of pages that are encoded when they are full (kv_format_whole).
 *
 *      positions   0 ......... 63 | 64 ....... 127 | 128 .. 191 | 192 .. length
 *      pages       [ codes       ]  [ codes       ]  [ codes   ]  [ zeros      ]
 *      shadows                                       [ f16 rows]  [ f16 rows   ]
 *                                                    tail_pages 1: shadow_first 2, n_shadows 2
 *
 * A step writes its rows into shadows, and the row that fills a page has it encoded from there,
 * once. A query sees the page of its own position and tail_pages pages before it as their shadows
 * have them, and earlier pages as they were encoded, also inside one step (kv_sees_shadow). So
 * between steps there is a shadow of the open page and of each page of the exact tail; during a
 * step every page that it writes to has one, too. Nobody writes to the shadow of a full page.
 *
 * Without its shadows a sequence cannot go on. If there is no exact tail, none are needed where a
 * page ends: a trim to inside an earlier page, and a hit that ends in one, go back to its start
 * (seq_trim.c, tree_walk.c). With an exact tail they go back to a snapshot (seq_snapshot.c).
 */
#include <string.h>

#include "cache/seq_internal.h"

/* Pages that a step can touch. */
enum { SHADOWS_MOST = STEP_TOKENS_MAX / TILE_TOKENS + 2 };

bool shadows_used(const struct kv_cache *c, const struct layout_rule *rule, uint32_t group) {
    return cache_is_whole(c, group, rule->layout[group]);
}

/* The most shadows that a table has in a step. */
static uint32_t most_shadows(const struct kv_cache *c, uint32_t group) {
    const uint32_t shadow = cache_shadow_of(c, group, LAYOUT_OWN);
    const uint64_t tail =
        shadow == NO_LAYOUT ? 0 : cache_tail_bytes(c, group) / c->layouts[group][shadow].page_bytes;
    return SHADOWS_MOST + (uint32_t)tail;
}

kvasir_status shadows_reserve(struct kv_seq *s, uint32_t group, kvasir_error *err) {
    return shadows_used(s->cache, &s->rule, group)
               ? seq_pages_room(&s->tables[group].shadows, &s->tables[group].cap_shadows,
                                most_shadows(s->cache, group), err)
               : KVASIR_OK;
}

uint64_t shadows_overhead_bytes(const struct kv_cache *c, uint32_t group) {
    return shadows_used(c, &c->rule, group) ? most_shadows(c, group) * sizeof(struct kv_page) : 0;
}

struct kv_page *shadow_at(const struct kv_seq *s, uint32_t group, uint32_t number) {
    const struct table *t = &s->tables[group];
    const uint32_t i = number - t->shadow_first; /* a smaller number wraps round */
    return i < t->n_shadows ? &t->shadows[i] : NULL;
}

uint64_t shadow_copy_bytes(const struct kv_seq *s, uint32_t group) {
    const struct kv_page *open = shadow_at(s, group, s->length / TILE_TOKENS);
    ASSERT(s->prepared == s->length);
    return open && page_shared(s->cache->pool, open->addr)
               ? s->cache->layouts[group][open->layout].page_bytes
               : 0;
}

kvasir_status shadows_take(struct kv_seq *s, uint32_t group, uint32_t end, kvasir_error *err) {
    struct kv_cache *c = s->cache;
    struct table *t = &s->tables[group];
    if (!shadows_used(c, &s->rule, group))
        return KVASIR_OK;
    if (!t->n_shadows)
        t->shadow_first = cache_first_shadow(c, &s->rule, group, s->length);
    const uint32_t pages = pages_for(end),
                   shadow = cache_shadow_of(c, group, s->rule.layout[group]);
    TRY(seq_pages_room(&t->shadows, &t->cap_shadows,
                       pages > t->shadow_first ? pages - t->shadow_first : 0, err));
    while (t->shadow_first + t->n_shadows < pages) {
        uint32_t addr;
        TRY(page_take(c->pool, c->groups[group].page_class[shadow], &addr, err));
        t->shadows[t->n_shadows++] = (struct kv_page){.addr = addr, .layout = (uint16_t)shadow};
    }
    return KVASIR_OK;
}

kvasir_status shadows_prepare(struct kv_seq *s, uint32_t group, uint32_t end, kvasir_error *err) {
    struct kv_page *open = shadow_at(s, group, s->length / TILE_TOKENS);
    ASSERT(shadows_serve(s, group, s->length));
    if (open)
        TRY(seq_page_unshare(s, group, open, err));
    return shadows_take(s, group, end, err);
}

void shadows_keep(struct kv_seq *s, uint32_t group, uint32_t length) {
    struct table *t = &s->tables[group];
    const uint32_t first = cache_first_shadow(s->cache, &s->rule, group, length),
                   end = pages_for(length);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < t->n_shadows; i++)
        if (t->shadow_first + i >= first && t->shadow_first + i < end)
            t->shadows[kept++] = t->shadows[i];
        else
            page_unref(s->cache->pool, t->shadows[i].addr);
    t->shadow_first = max_u32(t->shadow_first, first);
    t->n_shadows = kept;
}

void shadows_fork(const struct kv_seq *s, uint32_t group, struct kv_seq *fork) {
    const struct table *from = &s->tables[group];
    struct table *to = &fork->tables[group];
    ASSERT(from->n_shadows <= to->cap_shadows);
    to->n_shadows = from->n_shadows;
    to->shadow_first = from->shadow_first;
    for (uint32_t i = 0; i < from->n_shadows; i++) {
        to->shadows[i] = from->shadows[i];
        page_ref(s->cache->pool, to->shadows[i].addr);
    }
}

void shadows_drop(struct kv_seq *s, uint32_t group) {
    struct table *t = &s->tables[group];
    while (t->n_shadows)
        page_unref(s->cache->pool, t->shadows[--t->n_shadows].addr);
}

void shadows_free(struct kv_seq *s, uint32_t group) {
    shadows_drop(s, group);
    mem_free(s->tables[group].shadows);
    s->tables[group].shadows = NULL;
}

bool shadows_serve(const struct kv_seq *s, uint32_t group, uint32_t length) {
    const struct table *t = &s->tables[group];
    const uint32_t first = cache_first_shadow(s->cache, &s->rule, group, length),
                   end = pages_for(length);
    return !shadows_used(s->cache, &s->rule, group) || first >= end ||
           (t->shadow_first <= first && end <= t->shadow_first + t->n_shadows);
}
