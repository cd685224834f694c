/* SPDX-License-Identifier: Apache-2.0 */
/* seq_requantize.c: a sequence's pages in other formats. */
#include "cache/seq_internal.h"

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

/* The page that holds the rows of the partly filled page `number`: its shadow if it has one. */
static struct kv_page rows_of_open(const struct kv_seq *s, uint32_t group, uint32_t entry) {
    const struct table *t = &s->tables[group];
    return t->n_shadows ? t->shadows[0] : t->pages[entry];
}

static bool is_open(const struct kv_seq *s, uint32_t number) {
    return s->length < (number + 1) * TILE_TOKENS;
}

/* The layout of an entry's shadow by a rule; NO_LAYOUT: it has none. */
static uint32_t shadow_by(const struct kv_seq *s, const struct layout_rule *rule, uint32_t group,
                          uint32_t number) {
    return is_open(s, number) ? cache_shadow_of(s->cache, group, layout_of(rule, group, number))
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
    const struct table *t = &s->tables[group];
    const struct page_layout *layouts = s->cache->layouts[group];
    const struct kv_page *page = &t->pages[entry];
    uint64_t bytes = page_shared(s->cache->pool, page->addr) ? 0 : layouts[page->layout].page_bytes;
    if (is_open(s, number_of(s, group, entry)) && t->n_shadows &&
        !page_shared(s->cache->pool, t->shadows[0].addr))
        bytes += layouts[t->shadows[0].layout].page_bytes;
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

static void requantize_entry(struct kv_seq *s, const struct layout_rule *rule, uint32_t group,
                             uint32_t entry) {
    struct kv_cache *c = s->cache;
    struct table *t = &s->tables[group];
    const uint32_t number = number_of(s, group, entry), shadow = shadow_by(s, rule, group, number),
                   rows = min_u32(s->length - number * TILE_TOKENS, TILE_TOKENS);
    const bool open = is_open(s, number);
    const struct kv_page from = open ? rows_of_open(s, group, entry) : t->pages[entry],
                         to = take(c, group, layout_of(rule, group, number));
    struct kv_page rows_to = to; /* of an open page without a shadow, too */
    if (shadow != NO_LAYOUT)
        rows_to = take(c, group, shadow);
    page_requantize(c, group, number, rows, from, rows_to);
    page_unref(c->pool, t->pages[entry].addr);
    t->pages[entry] = to;
    if (!open)
        return;
    if (t->n_shadows)
        page_unref(c->pool, t->shadows[0].addr);
    t->n_shadows = shadow != NO_LAYOUT;
    t->shadow_first = number;
    if (t->n_shadows)
        t->shadows[0] = rows_to;
}

kvasir_status seq_requantize(struct kv_seq *s, struct kv_format k, struct kv_format v,
                             uint32_t group_k, uint32_t group_v, kvasir_error *err) {
    struct kv_cache *c = s->cache;
    struct layout_rule rule;
    kvasir_status status;
    ASSERT(s->prepared == s->length);
    TRY(cache_rule_find(c, k, v, group_k, group_v, &rule, err));
    TRY(pool_check_room(c->pool, requantize_bytes(s, &rule), err));
    for (uint32_t g = 0; g < c->n_groups; g++)
        TRY(seq_pages_room(&s->tables[g].shadows, &s->tables[g].cap_shadows, 1, err));
    TRY(cache_rule_adopt(c, &rule, err));
    TRY_GOTO(requantize_claim(s, &rule, err));
    for (uint32_t g = 0; g < c->n_groups; g++)
        for (uint32_t i = 0; i < s->tables[g].n; i++)
            if (must_change(s, &rule, g, i)) {
                requantize_entry(s, &rule, g, i);
                s->not_reproducible = true;
            }
    s->rule = rule;
done:
    pool_unclaim(c->pool);
    return status;
}
