/* SPDX-License-Identifier: Apache-2.0 */
/* seq_requantize.c: a sequence's pages in other formats. */
#include "cache/seq_internal.h"

struct page_list {
    struct kv_page *pages; /* [cap] */
    uint32_t n, cap;
};

/* Page number of a table's entry. */
static uint32_t number_of(const struct kv_seq *s, uint32_t group, uint32_t entry) {
    uint32_t kept = s->cache->groups[group].kept_pages;
    return entry < kept ? entry : s->tables[group].base_page + (entry - kept);
}

/* Whether an entry's page does not have the layout that the rule gives it. */
static bool must_change(const struct kv_seq *s, const struct layout_rule *rule, uint32_t group,
                        uint32_t entry) {
    return s->tables[group].pages[entry].layout !=
           layout_of(rule, group, number_of(s, group, entry));
}

static bool any_must_change(const struct kv_seq *s, const struct layout_rule *rule) {
    for (uint32_t g = 0; g < s->cache->n_groups; g++)
        for (uint32_t i = 0; i < s->tables[g].n; i++)
            if (must_change(s, rule, g, i))
                return true;
    return false;
}

/* The page that holds the rows of an entry: its shadow if it has one. */
static struct kv_page rows_of(const struct kv_seq *s, uint32_t group, uint32_t entry) {
    const struct kv_page *shadow = shadow_at(s, group, number_of(s, group, entry));
    return shadow ? *shadow : s->tables[group].pages[entry];
}

static bool is_open(const struct kv_seq *s, uint32_t number) {
    return s->length < (number + 1) * TILE_TOKENS;
}

/* The layout of an entry's shadow by a rule; NO_LAYOUT: it has none. */
static uint32_t shadow_by(const struct kv_seq *s, const struct layout_rule *rule, uint32_t group,
                          uint32_t number) {
    return number >= cache_first_shadow(s->cache, rule, group, s->length)
               ? cache_shadow_of(s->cache, group, layout_of(rule, group, number))
               : NO_LAYOUT;
}

/* Bytes of the pages that an entry takes by a rule: its page and its shadow. */
static uint64_t bytes_by(const struct kv_seq *s, const struct layout_rule *rule, uint32_t group,
                         uint32_t number) {
    const struct page_layout *layouts = s->cache->layouts[group];
    const uint32_t shadow = shadow_by(s, rule, group, number);
    return layouts[layout_of(rule, group, number)].page_bytes +
           (shadow == NO_LAYOUT ? 0 : layouts[shadow].page_bytes);
}

/* Bytes that are free once an entry has been exchanged. */
static uint64_t bytes_given(const struct kv_seq *s, uint32_t group, uint32_t entry) {
    const struct page_layout *layouts = s->cache->layouts[group];
    const struct kv_page *page = &s->tables[group].pages[entry],
                         *shadow = shadow_at(s, group, number_of(s, group, entry));
    uint64_t bytes = page_shared(s->cache->pool, page->addr) ? 0 : layouts[page->layout].page_bytes;
    if (shadow && !page_shared(s->cache->pool, shadow->addr))
        bytes += layouts[shadow->layout].page_bytes;
    return bytes;
}

/* The most bytes in use beyond those in use now, while pages are exchanged one by one. Dropping
 * a page that somebody else holds frees nothing. */
static uint64_t requantize_bytes(const struct kv_seq *s, const struct layout_rule *rule) {
    uint64_t taken = 0, given = 0, most = 0;
    for (uint32_t g = 0; g < s->cache->n_groups; g++) {
        for (uint32_t i = 0; i < s->tables[g].n; i++) {
            if (!must_change(s, rule, g, i))
                continue;
            taken += bytes_by(s, rule, g, number_of(s, g, i));
            if (taken > given && taken - given > most)
                most = taken - given;
            given += bytes_given(s, g, i);
        }
    }
    return most;
}

/* Claims address space for all new pages. Groups may share a page class, so pages are counted
 * first. */
static kvasir_status requantize_claim(const struct kv_seq *s, const struct layout_rule *rule,
                                      kvasir_error *err) {
    const struct kv_cache *c = s->cache;
    uint64_t pages[PAGE_CLASSES_MAX] = {0};
    for (uint32_t g = 0; g < c->n_groups; g++)
        for (uint32_t i = 0; i < s->tables[g].n; i++) {
            const uint32_t number = number_of(s, g, i), shadow = shadow_by(s, rule, g, number);
            if (!must_change(s, rule, g, i))
                continue;
            pages[c->groups[g].page_class[layout_of(rule, g, number)]]++;
            if (shadow != NO_LAYOUT)
                pages[c->groups[g].page_class[shadow]]++;
        }
    for (uint32_t i = 0; i < PAGE_CLASSES_MAX; i++)
        if (pages[i])
            TRY(pool_claim(c->pool, i, pages[i], err));
    return KVASIR_OK;
}

/* Cannot fail: budget and address space have been checked. */
static struct kv_page take(struct kv_cache *c, uint32_t group, uint32_t layout) {
    struct kv_page page = {.layout = (uint16_t)layout};
    kvasir_status status =
        page_take(c->pool, c->groups[group].page_class[layout], &page.addr, NULL);
    ASSERT(status == KVASIR_OK);
    (void)status;
    return page;
}

/* Exchanges an entry's page, and its shadow: the new one becomes the next of `shadows`. */
static void requantize_entry(struct kv_seq *s, const struct layout_rule *rule, uint32_t group,
                             uint32_t entry, struct page_list *shadows) {
    struct kv_cache *c = s->cache;
    struct kv_page *page = &s->tables[group].pages[entry];
    const uint32_t number = number_of(s, group, entry), shadow = shadow_by(s, rule, group, number),
                   rows = min_u32(s->length - number * TILE_TOKENS, TILE_TOKENS);
    const struct kv_page from = rows_of(s, group, entry), old = *page,
                         *old_shadow = shadow_at(s, group, number);
    *page = take(c, group, layout_of(rule, group, number));
    if (shadow == NO_LAYOUT || !is_open(s, number))
        page_requantize(c, group, number, rows, from, *page);
    if (shadow != NO_LAYOUT) {
        shadows->pages[shadows->n] = take(c, group, shadow);
        page_requantize(c, group, number, rows, from, shadows->pages[shadows->n++]);
    }
    page_unref(c->pool, old.addr);
    if (old_shadow)
        page_unref(c->pool, old_shadow->addr);
}

/* Exchanges the group's pages that must change. shadows: empty, with room for all that the table
 * has then; on return the old list, empty. Returns whether any did. */
static bool requantize_group(struct kv_seq *s, const struct layout_rule *rule, uint32_t group,
                             struct page_list *shadows) {
    struct table *t = &s->tables[group];
    bool some = false;
    for (uint32_t i = 0; i < t->n; i++) {
        const struct kv_page *shadow = shadow_at(s, group, number_of(s, group, i));
        if (must_change(s, rule, group, i)) {
            requantize_entry(s, rule, group, i, shadows);
            some = true;
        } else if (shadow) {
            shadows->pages[shadows->n++] = *shadow;
        }
    }
    const struct page_list old = {t->shadows, 0, t->cap_shadows};
    ASSERT(shadows->n <= shadows->cap);
    t->shadows = shadows->pages;
    t->n_shadows = shadows->n;
    t->cap_shadows = shadows->cap;
    t->shadow_first = cache_first_shadow(s->cache, rule, group, s->length);
    ASSERT(!t->n_shadows || t->shadow_first + t->n_shadows == pages_for(s->length));
    *shadows = old;
    return some;
}

/* Room in lists of shadows as long as the tables', and for all that there will be. */
static kvasir_status reserve_shadows(const struct kv_seq *s, const struct layout_rule *rule,
                                     struct page_list lists[CACHE_GROUPS_MAX], kvasir_error *err) {
    for (uint32_t g = 0; g < s->cache->n_groups; g++) {
        const uint32_t first = cache_first_shadow(s->cache, rule, g, s->length),
                       end = pages_for(s->length);
        TRY(seq_pages_room(&lists[g].pages, &lists[g].cap,
                           max_u32(s->tables[g].cap_shadows, end > first ? end - first : 0), err));
    }
    return KVASIR_OK;
}

kvasir_status seq_requantize(struct kv_seq *s, struct kv_format k, struct kv_format v,
                             uint32_t group_k, uint32_t group_v, kvasir_error *err) {
    struct kv_cache *c = s->cache;
    struct layout_rule rule;
    struct page_list shadows[CACHE_GROUPS_MAX] = {{0}};
    bool some = false;
    ASSERT(s->prepared == s->length);
    TRY(cache_rule_find(c, k, v, group_k, group_v, &rule, err));
    if (any_must_change(s, &rule)) {
        TRY(pool_check_room(c->pool, unpack_bytes(s), err));
        TRY(seq_unpack(s, err));
    }
    TRY(pool_check_room(c->pool, requantize_bytes(s, &rule), err));
    kvasir_status status = reserve_shadows(s, &rule, shadows, err);
    if (status == KVASIR_OK)
        status = cache_rule_adopt(c, &rule, err);
    if (status == KVASIR_OK)
        status = requantize_claim(s, &rule, err);
    for (uint32_t g = 0; g < c->n_groups && status == KVASIR_OK; g++)
        some |= requantize_group(s, &rule, g, &shadows[g]);
    if (some && rule.tail_pages) /* their shadows are of other pages */
        seq_snapshots_truncate(s, 0);
    s->not_reproducible |= some;
    if (status == KVASIR_OK)
        s->rule = rule;
    pool_unclaim(c->pool);
    for (uint32_t g = 0; g < c->n_groups; g++)
        mem_free(shadows[g].pages);
    return status;
}
