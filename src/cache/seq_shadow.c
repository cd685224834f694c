/* SPDX-License-Identifier: Apache-2.0 */
/* seq_shadow.c: the rows of pages that are encoded when they are full (kv_format_whole).
 *
 *      positions   0 ......... 63 | 64 ....... 127 | 128 .. length
 *      pages       [ codes       ]  [ codes       ]  [ zeros      ]
 *      shadows                                       [ f16 rows   ]  shadow_first 2, n_shadows 1
 *
 * A step writes its rows into shadows, and the row that fills a page has it encoded from there,
 * once. A query sees the page of its own position as the shadow has it and earlier pages as they
 * were encoded, also inside one step. So between steps one shadow is enough; during a step every
 * page that it writes to has one.
 *
 * Without its shadow a sequence cannot go on inside such a page. A trim to there, and a hit that
 * ends there, go back to the page's start (seq_trim.c, tree_walk.c).
 */
#include "cache/seq_internal.h"

/* Pages that a step can touch. */
enum { SHADOWS_MOST = STEP_TOKENS_MAX / TILE_TOKENS + 2 };

static uint32_t shadow_index(const struct kv_seq *s, uint32_t group, uint32_t number) {
    return cache_shadow_of(s->cache, group, layout_of(&s->rule, group, number));
}

/* Whether any page of the group has a shadow. */
static bool has_shadows(const struct kv_cache *c, const struct layout_rule *rule, uint32_t group) {
    return cache_is_whole(c, group, rule->layout[group]);
}

kvasir_status shadows_reserve(struct kv_seq *s, uint32_t group, kvasir_error *err) {
    return has_shadows(s->cache, &s->rule, group)
               ? seq_pages_room(&s->tables[group].shadows, &s->tables[group].cap_shadows,
                                SHADOWS_MOST, err)
               : KVASIR_OK;
}

uint64_t shadows_overhead_bytes(const struct kv_cache *c, uint32_t group) {
    return has_shadows(c, &c->rule, group) ? SHADOWS_MOST * sizeof(struct kv_page) : 0;
}

uint64_t shadow_copy_bytes(const struct kv_seq *s, uint32_t group) {
    const struct table *t = &s->tables[group];
    ASSERT(s->prepared == s->length);
    return t->n_shadows && page_shared(s->cache->pool, t->shadows[0].addr)
               ? s->cache->layouts[group][t->shadows[0].layout].page_bytes
               : 0;
}

kvasir_status shadows_prepare(struct kv_seq *s, uint32_t group, uint32_t end, kvasir_error *err) {
    struct kv_cache *c = s->cache;
    struct table *t = &s->tables[group];
    if (!has_shadows(c, &s->rule, group))
        return KVASIR_OK;
    if (t->n_shadows)
        TRY(seq_page_unshare(s, group, &t->shadows[0], err));
    else
        t->shadow_first = max_u32(s->length / TILE_TOKENS, s->rule.start_pages);
    const uint32_t pages = pages_for(end);
    TRY(seq_pages_room(&t->shadows, &t->cap_shadows,
                       pages > t->shadow_first ? pages - t->shadow_first : 0, err));
    for (uint32_t n; (n = t->shadow_first + t->n_shadows) < pages; t->n_shadows++) {
        const uint32_t layout = shadow_index(s, group, n);
        uint32_t addr;
        ASSERT(layout != NO_LAYOUT);
        TRY(page_take(c->pool, c->groups[group].page_class[layout], &addr, err));
        t->shadows[t->n_shadows] = (struct kv_page){.addr = addr, .layout = (uint16_t)layout};
    }
    return KVASIR_OK;
}

void shadows_keep(struct kv_seq *s, uint32_t group, uint32_t length) {
    struct table *t = &s->tables[group];
    const uint32_t open = length / TILE_TOKENS, i = open - t->shadow_first;
    const bool keeps = length % TILE_TOKENS != 0 && open >= t->shadow_first && i < t->n_shadows;
    const struct kv_page kept = keeps ? t->shadows[i] : (struct kv_page){0};
    for (uint32_t j = 0; j < t->n_shadows; j++)
        if (!keeps || j != i)
            page_unref(s->cache->pool, t->shadows[j].addr);
    t->n_shadows = keeps;
    t->shadow_first = open;
    if (keeps)
        t->shadows[0] = kept;
}

void shadows_fork(const struct kv_seq *s, uint32_t group, struct kv_seq *fork) {
    const struct table *from = &s->tables[group];
    struct table *to = &fork->tables[group];
    ASSERT(from->n_shadows <= 1 && from->n_shadows <= to->cap_shadows);
    to->n_shadows = from->n_shadows;
    to->shadow_first = from->shadow_first;
    if (from->n_shadows) {
        to->shadows[0] = from->shadows[0];
        page_ref(s->cache->pool, to->shadows[0].addr);
    }
}

void shadows_free(struct kv_seq *s, uint32_t group) {
    struct table *t = &s->tables[group];
    for (uint32_t i = 0; i < t->n_shadows; i++)
        page_unref(s->cache->pool, t->shadows[i].addr);
    mem_free(t->shadows);
    t->shadows = NULL;
    t->n_shadows = 0;
}

bool shadow_serves(const struct kv_seq *s, uint32_t group, uint32_t length) {
    const struct table *t = &s->tables[group];
    const uint32_t number = length / TILE_TOKENS;
    return length % TILE_TOKENS == 0 || shadow_index(s, group, number) == NO_LAYOUT ||
           (t->n_shadows && t->shadow_first == number);
}
