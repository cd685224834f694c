/* SPDX-License-Identifier: Apache-2.0 */
/* cache.c: what all sequences of one context have in common: layer groups, formats, what a query
 * sees, the pool. It is fixed at creation, and everything after that is arithmetic on it. Which
 * pages a sequence holds is a function of positions alone, so its cost is known before it grows. */

#include "cache/cache_internal.h"

static const struct kv_format EXACT = {.bits = 16, .scalar = SCALAR_F16, .group = 0};

/* Keeps spans below UINT32_MAX (which means that everything is seen) and page numbers from
 * overflow. */
#define MAX_SIZE_LIMIT (UINT32_MAX / 2)

static kvasir_status layout_make(const struct kv_shape *shape, struct kv_format k,
                                 struct kv_format v, uint32_t group_k, uint32_t group_v,
                                 struct page_layout *out, kvasir_error *err) {
    TRY(kv_format_settle(&k, shape->head_dim, group_k, err));
    TRY(kv_format_settle(&v, shape->head_dim, group_v, err));
    page_layout_init(out, shape->layers, shape->kv_heads, shape->head_dim, k, v);
    out->centred = shape->centre && !kv_format_exact(k);
    if (k.kind == KV_TILE && shape->basis)
        out->basis = BASIS_BALANCED;
    else if (kv_format_whole(k))
        out->basis = BASIS_HADAMARD;
    return KVASIR_OK;
}

/* The layout of the shadows of such pages. */
static void shadow_make(const struct kv_shape *shape, const struct page_layout *of,
                        struct page_layout *out) {
    page_layout_init(out, shape->layers, shape->kv_heads, shape->head_dim, EXACT, EXACT);
    out->centred = of->centred;
    out->basis = of->basis;
}

/* The layout of the exact start before such pages: that of their shadows, or plain f16. In their
 * basis it is read in the same pass of attention as they are. */
static void start_make(const struct kv_shape *shape, const struct page_layout *before,
                       struct page_layout *out) {
    if (page_is_whole(before))
        shadow_make(shape, before, out);
    else
        page_layout_init(out, shape->layers, shape->kv_heads, shape->head_dim, EXACT, EXACT);
}

static bool same_layout(const struct page_layout *a, const struct page_layout *b) {
    return kv_format_equal(a->k.format, b->k.format) && kv_format_equal(a->v.format, b->v.format) &&
           a->centred == b->centred && a->basis == b->basis;
}

/* The index of a layout among the group's first n, or n: there it is written, if that is below
 * CACHE_LAYOUTS_MAX. */
static uint32_t layout_find(struct page_layout *list, uint32_t n,
                            const struct page_layout *wanted) {
    uint32_t i = 0;
    while (i < n && !same_layout(&list[i], wanted))
        i++;
    if (i == n && n < CACHE_LAYOUTS_MAX)
        list[n] = *wanted;
    return i;
}

/* Likewise for the shadows of layout i, once there are n layouts. NO_LAYOUT: it has none. */
static uint32_t shadow_find(struct kv_cache *c, uint32_t group, uint32_t i, uint32_t n) {
    struct page_layout shadow;
    if (!page_is_whole(&c->layouts[group][i]))
        return NO_LAYOUT;
    shadow_make(&c->groups[group].shape, &c->layouts[group][i], &shadow);
    return layout_find(c->layouts[group], n, &shadow);
}

static kvasir_status group_init(struct kv_cache *c, uint32_t g, const struct kv_shape *shape,
                                kvasir_error *err) {
    const struct kv_cache_options *o = &c->options;
    struct kv_group *group = &c->groups[g];
    group->shape = *shape;
    group->span = UINT32_MAX;
    if (shape->window) {
        group->span = shape->window;
    } else if (o->max_size) {
        group->keep = o->keep;
        group->span = o->max_size - o->keep;
        group->kept_pages = pages_for(o->keep);
    }
    const struct kv_format k = shape->k.bits ? shape->k : o->k, v = shape->v.bits ? shape->v : o->v;
    TRY(layout_make(shape, k, v, shape->k.bits ? shape->k.group : o->group_k,
                    shape->v.bits ? shape->v.group : o->group_v, &c->layouts[g][LAYOUT_OWN], err));
    start_make(shape, &c->layouts[g][LAYOUT_OWN], &c->layouts[g][LAYOUT_START]);
    group->shadow[LAYOUT_OWN] = shadow_find(c, g, LAYOUT_OWN, LAYOUT_START + 1);
    group->shadow[LAYOUT_START] = NO_LAYOUT;
    return KVASIR_OK;
}

/* The exact tail. Shadows have it, so other codes cannot; 16-bit pages are one already. */
static kvasir_status settle_tail(struct kv_cache *c, kvasir_error *err) {
    c->snapshot_bytes = c->state_page_bytes;
    for (uint32_t g = 0; g < c->n_groups && c->options.exact_tail; g++) {
        const struct page_layout *l = &c->layouts[g][LAYOUT_OWN];
        if (!page_is_whole(l) && !(kv_format_exact(l->k.format) && kv_format_exact(l->v.format)))
            return fail_field(err, KVASIR_ERR_ARGUMENT, "context.kv_exact_tail",
                              "needs pages that are encoded when they are full: formats \"r...\" "
                              "and \"t...\", such as r8,4 and t4; others encode each token at "
                              "once");
        if (page_is_whole(l))
            c->rule.tail_pages = pages_for(c->options.exact_tail);
    }
    for (uint32_t g = 0; g < c->n_groups && c->rule.tail_pages; g++)
        c->snapshot_bytes += cache_tail_bytes(c, g);
    return KVASIR_OK;
}

/* The ladder's rungs. Their layouts, and those of their shadows, follow the group's first ones. One
 * that saves nothing, since pages are whole units, is the one above it. */
static kvasir_status settle_ladder(struct kv_cache *c, kvasir_error *err) {
    const struct kv_cache_options *o = &c->options;
    c->ladder.n_rungs = o->n_rungs;
    for (uint32_t i = 0; i < o->n_rungs; i++)
        c->ladder.rungs[i] = (struct layout_rule){.start_pages = c->rule.start_pages,
                                                  .tail_pages = c->rule.tail_pages};
    for (uint32_t g = 0; g < c->n_groups && o->n_rungs; g++) {
        struct page_layout *layouts = c->layouts[g], made;
        if (c->groups[g].shape.fixed_format)
            continue; /* LAYOUT_OWN */
        ASSERT(c->groups[g].shadow[LAYOUT_OWN] != NO_LAYOUT);
        uint32_t n = c->groups[g].shadow[LAYOUT_OWN] + 1, above = LAYOUT_OWN;
        for (uint32_t i = 0; i < o->n_rungs; i++) {
            TRY(layout_make(&c->groups[g].shape, o->rungs[i].k, o->rungs[i].v, 0, 0, &made, err));
            c->ladder.rungs[i].layout[g] = above;
            if (made.page_bytes >= layouts[above].page_bytes)
                continue;
            c->ladder.rungs[i].layout[g] = above = layout_find(layouts, n, &made);
            ASSERT(above == n);
            c->groups[g].shadow[n] = shadow_find(c, g, n, n + 1);
            n = max_u32(n + 1, c->groups[g].shadow[n] + 1);
            c->ladder.spare_bytes = max_size(c->ladder.spare_bytes, made.page_bytes);
        }
    }
    return KVASIR_OK;
}

/* Checks the options and fills in everything but the pool. */
static kvasir_status settle(struct kv_cache *c, const struct kv_shape *groups, uint32_t n_groups,
                            const struct kv_cache_options *opt, kvasir_error *err) {
    if (n_groups == 0 || n_groups > CACHE_GROUPS_MAX)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "%u layer groups (1 to %d are supported)",
                    n_groups, CACHE_GROUPS_MAX);
    if (opt->max_size && opt->keep >= opt->max_size)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "context.kv_keep",
                          "%u tokens leave no room for others: a token sees at most %u", opt->keep,
                          opt->max_size);
    if (opt->max_size > MAX_SIZE_LIMIT)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "context.max_kv_size", "%u is more than %u",
                          opt->max_size, MAX_SIZE_LIMIT);
    c->options = *opt;
    c->state_page_bytes = round_up(opt->state_bytes, PAGE_ADDR_UNIT);
    c->n_groups = n_groups;
    if (!kv_format_exact(opt->k) || !kv_format_exact(opt->v))
        c->rule.start_pages = pages_for(opt->quantized_start);
    for (uint32_t g = 0; g < n_groups; g++)
        TRY(group_init(c, g, &groups[g], err));
    TRY(settle_ladder(c, err));
    return settle_tail(c, err);
}

/* ---- layouts --------------------------------------------------------------------------------- */

kvasir_status cache_rule_find(struct kv_cache *c, struct kv_format k, struct kv_format v,
                              uint32_t group_k, uint32_t group_v, struct layout_rule *rule,
                              kvasir_error *err) {
    *rule = (struct layout_rule){.tail_pages = c->rule.tail_pages};
    for (uint32_t g = 0; g < c->n_groups; g++) {
        const uint32_t n = c->groups[g].n_layouts;
        struct page_layout made;
        if (c->groups[g].shape.fixed_format)
            continue; /* LAYOUT_OWN */
        TRY(layout_make(&c->groups[g].shape, k, v, group_k, group_v, &made, err));
        const uint32_t i = layout_find(c->layouts[g], n, &made), most = i < n ? n : n + 1;
        const uint32_t shadow = i < CACHE_LAYOUTS_MAX ? shadow_find(c, g, i, most) : NO_LAYOUT;
        if (i == CACHE_LAYOUTS_MAX || shadow == CACHE_LAYOUTS_MAX)
            return fail(err, KVASIR_ERR_UNSUPPORTED,
                        "a cache holds pages of %d pairs of K and V formats at most, and this one "
                        "has had %u",
                        CACHE_LAYOUTS_MAX, n);
        c->groups[g].shadow[i] = shadow;
        rule->layout[g] = i;
    }
    return KVASIR_OK;
}

static kvasir_status layout_register(struct kv_cache *c, uint32_t g, uint32_t i,
                                     kvasir_error *err) {
    struct kv_group *group = &c->groups[g];
    if (i == NO_LAYOUT || i < group->n_layouts)
        return KVASIR_OK;
    const struct page_layout *l = &c->layouts[g][i];
    TRY(backend_check_layout(c->backend, l, err));
    TRY(page_class(c->pool, l->page_bytes, l->k.format, l->v.format, &group->page_class[i], err));
    group->centred |= l->centred;
    if (!page_is_whole(l))
        group->shadow[i] = NO_LAYOUT;
    group->n_layouts = i + 1;
    return KVASIR_OK;
}

kvasir_status cache_rule_adopt(struct kv_cache *c, const struct layout_rule *rule,
                               kvasir_error *err) {
    for (uint32_t g = 0; g < c->n_groups; g++) {
        TRY(layout_register(c, g, rule->layout[g], err));
        TRY(layout_register(c, g, c->groups[g].shadow[rule->layout[g]], err));
    }
    return KVASIR_OK;
}

/* ---- which pages a table holds --------------------------------------------------------------- */

uint32_t pages_for(uint32_t tokens) {
    return tokens / TILE_TOKENS + (tokens % TILE_TOKENS != 0);
}

uint32_t first_seen(const struct kv_group *g, uint32_t p) {
    return max_u32(kv_window_start(g->span, p) / TILE_TOKENS, g->kept_pages);
}

bool kv_cache_outruns(const struct kv_cache *c, uint32_t from, uint32_t point, uint32_t to) {
    ASSERT(from <= point && point <= to);
    for (uint32_t g = 0; g < c->n_groups; g++) {
        const uint32_t first = first_seen(&c->groups[g], to);
        if (first > first_seen(&c->groups[g], point) && first > from / TILE_TOKENS)
            return true;
    }
    return false;
}

/* Bytes of the pages in a table whose next query is at `length` and whose positions before
 * `prepared` have pages. */
static uint64_t table_bytes(const struct kv_cache *c, const struct layout_rule *r, uint32_t group,
                            uint32_t length, uint32_t prepared) {
    const struct kv_group *g = &c->groups[group];
    uint32_t end = pages_for(prepared);
    uint32_t kept = g->kept_pages < end ? g->kept_pages : end;
    uint32_t first = first_seen(g, length) < end ? first_seen(g, length) : end;
    if (first < kept)
        first = kept;
    uint32_t count = kept + (end - first);
    uint32_t start_kept = kept < r->start_pages ? kept : r->start_pages;
    uint32_t start_end = end < r->start_pages ? end : r->start_pages;
    uint32_t start = start_kept + (start_end > first ? start_end - first : 0);
    return (uint64_t)start * c->layouts[group][LAYOUT_START].page_bytes +
           (uint64_t)(count - start) * c->layouts[group][r->layout[group]].page_bytes;
}

uint32_t cache_first_shadow(const struct kv_cache *c, const struct layout_rule *r, uint32_t group,
                            uint32_t length) {
    const uint32_t span = c->groups[group].span,
                   exact = kv_tail_first(r->tail_pages, span, length / TILE_TOKENS),
                   seen = kv_window_start(span, length) / TILE_TOKENS;
    return max_u32(max_u32(exact, seen), r->start_pages);
}

uint64_t cache_tail_bytes(const struct kv_cache *c, uint32_t group) {
    const uint32_t shadow = cache_shadow_of(c, group, LAYOUT_OWN), span = c->groups[group].span,
                   most = span == UINT32_MAX ? UINT32_MAX : pages_for(span);
    return shadow == NO_LAYOUT
               ? 0
               : (uint64_t)min_u32(c->rule.tail_pages, most) * c->layouts[group][shadow].page_bytes;
}

uint64_t cache_shadow_bytes(const struct kv_cache *c, const struct layout_rule *r, uint32_t group,
                            uint32_t length, uint32_t prepared) {
    const uint32_t shadow = cache_shadow_of(c, group, r->layout[group]),
                   first = cache_first_shadow(c, r, group, length), end = pages_for(prepared);
    return shadow == NO_LAYOUT || end <= first
               ? 0
               : (uint64_t)(end - first) * c->layouts[group][shadow].page_bytes;
}

/* What the ladder saves of a table's full pages once they are at the floor: not of those that have
 * shadows, nor of those that stay (LADDER-6). */
static uint64_t ladder_saves(const struct kv_cache *c, const struct layout_rule *r, uint32_t group,
                             uint32_t length) {
    const uint32_t full = length / TILE_TOKENS, tail = min_u32(r->tail_pages, full),
                   end = (full - tail) * TILE_TOKENS,
                   stay = min_u32(r->start_pages + LADDER_FIRST_PAGE, full - tail) * TILE_TOKENS;
    if (!c->ladder.n_rungs || r->layout[group] != LAYOUT_OWN)
        return 0;
    const struct layout_rule *floor = &c->ladder.rungs[c->ladder.n_rungs - 1];
    return table_bytes(c, r, group, length, end) - table_bytes(c, r, group, length, stay) -
           (table_bytes(c, floor, group, length, end) - table_bytes(c, floor, group, length, stay));
}

uint64_t all_bytes(const struct kv_cache *c, const struct layout_rule *r, uint32_t length,
                   uint32_t prepared) {
    uint64_t bytes = prepared ? c->state_page_bytes : 0;
    for (uint32_t g = 0; g < c->n_groups; g++)
        bytes += table_bytes(c, r, g, length, prepared) - ladder_saves(c, r, g, length) +
                 cache_shadow_bytes(c, r, g, length, prepared);
    return bytes;
}

uint64_t peak_bytes(const struct kv_cache *c, const struct layout_rule *r, uint32_t from,
                    uint32_t length, uint32_t step) {
    uint64_t most = 0;
    for (uint32_t at = from; at < length;) {
        uint32_t next = length - at > step ? at + step : length;
        uint64_t bytes = all_bytes(c, r, at, next);
        if (bytes > most)
            most = bytes;
        at = next;
    }
    return most;
}

kvasir_status kv_cache_plan_bytes(const struct kv_shape *groups, uint32_t n_groups,
                                  const struct kv_cache_options *opt, uint32_t length,
                                  uint32_t step, uint64_t *bytes, kvasir_error *err) {
    struct kv_cache c = {0};
    TRY(settle(&c, groups, n_groups, opt, err));
    *bytes = peak_bytes(&c, &c.rule, 0, length, step) + c.ladder.spare_bytes;
    return KVASIR_OK;
}

kvasir_status kv_cache_plan_shadows(const struct kv_shape *groups, uint32_t n_groups,
                                    const struct kv_cache_options *opt, uint64_t *open_page,
                                    uint64_t *tail, kvasir_error *err) {
    struct kv_cache c = {0};
    TRY(settle(&c, groups, n_groups, opt, err));
    *open_page = *tail = 0;
    for (uint32_t g = 0; g < n_groups; g++) {
        const uint32_t shadow = cache_shadow_of(&c, g, LAYOUT_OWN);
        *open_page += shadow == NO_LAYOUT ? 0 : c.layouts[g][shadow].page_bytes;
        *tail += cache_tail_bytes(&c, g);
    }
    return KVASIR_OK;
}

/* The most pages that a step writes to. */
static uint64_t pages_crossed(uint32_t step) {
    return ((uint64_t)step + TILE_TOKENS - 2) / TILE_TOKENS + 1;
}

/* Bytes of so many pages after the exact start. With a ladder all are at its floor if need be, but
 * the newest and those that stay (LADDER-6). */
static uint64_t own_bytes(const struct kv_cache *c, uint32_t group, uint64_t pages, uint32_t step) {
    const uint64_t own = c->layouts[group][LAYOUT_OWN].page_bytes,
                   best = LADDER_FIRST_PAGE + pages_crossed(step) + c->rule.tail_pages;
    if (!c->ladder.n_rungs || pages <= best)
        return pages * own;
    const uint32_t floor = c->ladder.rungs[c->ladder.n_rungs - 1].layout[group];
    return best * own + (pages - best) * c->layouts[group][floor].page_bytes;
}

/* The most bytes that one table holds up to `length`, wherever steps begin. What a step's first
 * query sees and the step's own rows are consecutive positions; they are assumed to cross as many
 * page borders as possible.
 */
static uint64_t table_most_bytes(const struct kv_cache *c, uint32_t group, uint32_t length,
                                 uint32_t step) {
    const struct kv_group *g = &c->groups[group];
    const uint64_t start = c->layouts[group][LAYOUT_START].page_bytes,
                   own = c->layouts[group][LAYOUT_OWN].page_bytes;
    uint64_t pages = pages_for(length);
    if (g->span != UINT32_MAX) {
        const uint64_t positions = (uint64_t)g->span + step - 1,
                       most = g->kept_pages + (positions + TILE_TOKENS - 2) / TILE_TOKENS + 1;
        pages = pages < most ? pages : most;
    }
    const uint64_t at_start = pages < c->rule.start_pages ? pages : c->rule.start_pages;
    if (g->span == UINT32_MAX || start > own)
        return at_start * start + own_bytes(c, group, pages - at_start, step);
    return own_bytes(c, group, pages,
                     step); /* it has dropped the smaller pages of the exact start by then */
}

/* The most bytes of shadows, with a copy of one that a fork has, too. */
static uint64_t shadows_most_bytes(const struct kv_cache *c, uint32_t group, uint32_t length,
                                   uint32_t step) {
    const uint32_t shadow = cache_shadow_of(c, group, LAYOUT_OWN);
    if (shadow == NO_LAYOUT)
        return 0;
    const uint64_t each = c->layouts[group][shadow].page_bytes, pages = pages_for(length),
                   most = pages_crossed(step) + cache_tail_bytes(c, group) / each;
    return ((most < pages ? most : pages) + 1) * each;
}

uint64_t kv_cache_need_bytes(const struct kv_cache *c, uint32_t length, uint32_t step) {
    uint64_t bytes = c->state_page_bytes + c->snapshot_bytes;
    for (uint32_t g = 0; g < c->n_groups; g++) {
        const size_t own = c->layouts[g][LAYOUT_OWN].page_bytes,
                     start = c->layouts[g][LAYOUT_START].page_bytes;
        bytes += table_most_bytes(c, g, length, step) + shadows_most_bytes(c, g, length, step);
        bytes += c->rule.start_pages && start > own ? start : own;
    }
    return bytes;
}

uint64_t kv_cache_bytes_16bit(const struct kv_cache *c, uint32_t length) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < c->n_groups; i++) {
        const struct kv_group *g = &c->groups[i];
        uint32_t seen = length;
        if (g->span != UINT32_MAX && seen > g->keep + g->span)
            seen = g->keep + g->span;
        bytes += (uint64_t)seen * g->shape.layers * g->shape.kv_heads * g->shape.head_dim * 2 * 2;
    }
    return bytes;
}

uint64_t kv_cache_snapshot_bytes(const struct kv_cache *c) {
    return c->snapshot_bytes;
}

/* ---- life ------------------------------------------------------------------------------------ */

kvasir_status kv_cache_create(struct backend *b, const struct kv_shape *groups, uint32_t n_groups,
                              const struct kv_cache_options *opt, struct kv_cache **out,
                              kvasir_error *err) {
    struct kv_cache *c = mem_calloc(1, sizeof *c);
    if (!c)
        return fail(err, KVASIR_ERR_MEMORY, "cache: out of memory");
    c->backend = b;
    kvasir_status status;
    TRY_GOTO(settle(c, groups, n_groups, opt, err));
    TRY_GOTO(kv_pool_create(b, opt->budget_bytes, &c->pool, err));
    for (uint32_t g = 0; g < n_groups; g++)
        for (uint32_t i = LAYOUT_OWN; i <= LAYOUT_START; i++)
            TRY_GOTO(layout_register(c, g, i, err));
    for (uint32_t g = 0; g < n_groups; g++)
        TRY_GOTO(layout_register(c, g, c->groups[g].shadow[LAYOUT_OWN], err));
    for (uint32_t i = 0; i < c->ladder.n_rungs; i++)
        TRY_GOTO(cache_rule_adopt(c, &c->ladder.rungs[i], err));
    if (c->state_page_bytes)
        TRY_GOTO(page_class(c->pool, (size_t)c->state_page_bytes, (struct kv_format){0},
                            (struct kv_format){0}, &c->state_class, err));
    if (c->snapshot_bytes)
        TRY_GOTO(page_class(c->pool, (size_t)c->snapshot_bytes, (struct kv_format){0},
                            (struct kv_format){0}, &c->snapshot_class, err));
    TRY_GOTO(pool_charge(c->pool, c->ladder.spare_bytes, err));
    *out = c;
    return KVASIR_OK;
done:
    c->ladder.spare_bytes = 0;
    kv_cache_destroy(c);
    return status;
}

void kv_cache_destroy(struct kv_cache *c) {
    if (!c)
        return;
    ASSERT(!c->first_seq && !c->tree);
    if (c->pool)
        pool_discharge(c->pool, c->ladder.spare_bytes);
    kv_pool_destroy(c->pool);
    mem_free(c);
}

void kv_cache_keep_ready(struct kv_cache *c, uint32_t sequences, uint64_t load_bytes) {
    enum { BUDGET_PART = 16, LOADS_PART = 2 };
    uint64_t loaded = c->state_page_bytes, each = loaded; /* a record's page; a sequence's */
    const bool start = c->rule.start_pages > 0;
    for (uint32_t g = 0; g < c->n_groups; g++) {
        loaded += c->layouts[g][LAYOUT_OWN].page_bytes;
        each += c->layouts[g][LAYOUT_OWN].page_bytes + shadows_most_bytes(c, g, 1, 1) / 2 +
                (start ? c->layouts[g][LAYOUT_START].page_bytes : 0);
    }
    const uint64_t budget = c->options.budget_bytes,
                   pages = min_size(sequences, budget / BUDGET_PART / each),
                   loads = min_size(load_bytes, budget / LOADS_PART) / loaded,
                   at_rest = max_size(pages, loads);
    for (uint32_t g = 0; g < c->n_groups; g++) {
        const uint32_t shadow = cache_shadow_of(c, g, LAYOUT_OWN);
        pool_keep_ready(c->pool, c->groups[g].page_class[LAYOUT_OWN], pages, at_rest);
        if (shadow != NO_LAYOUT)
            pool_keep_ready(c->pool, c->groups[g].page_class[shadow], pages, pages);
        if (start)
            pool_keep_ready(c->pool, c->groups[g].page_class[LAYOUT_START], pages, pages);
    }
    if (c->state_page_bytes)
        pool_keep_ready(c->pool, c->state_class, pages, pages);
    pool_ahead_begin(c->pool);
}

struct kv_pool *kv_cache_pool(struct kv_cache *c) {
    return c->pool;
}

void kv_cache_formats(const struct kv_cache *c, uint32_t group, struct kv_format *k,
                      struct kv_format *v) {
    *k = c->layouts[group][LAYOUT_OWN].k.format;
    *v = c->layouts[group][LAYOUT_OWN].v.format;
}

const struct page_layout *kv_cache_layout(const struct kv_cache *c, uint32_t group, bool full) {
    const uint32_t shadow = cache_shadow_of(c, group, LAYOUT_OWN);
    return &c->layouts[group][full || shadow == NO_LAYOUT ? LAYOUT_OWN : shadow];
}

const struct page_layout *kv_cache_start_layout(const struct kv_cache *c, uint32_t group) {
    return &c->layouts[group][LAYOUT_START];
}

bool kv_cache_is_whole(const struct kv_cache *c) {
    for (uint32_t g = 0; g < c->n_groups; g++)
        if (cache_is_whole(c, g, LAYOUT_OWN))
            return true;
    return false;
}

uint32_t kv_cache_start_pages(const struct kv_cache *c) {
    return c->rule.start_pages;
}

uint32_t kv_cache_tail_pages(const struct kv_cache *c) {
    return c->rule.tail_pages;
}

/* ---- other formats --------------------------------------------------------------------------- */

void page_requantize(const struct kv_cache *c, uint32_t group, uint32_t number, uint32_t rows,
                     struct kv_page from, struct kv_page to) {
    const struct page_conversion conversion = {.from = &c->layouts[group][from.layout],
                                               .to = &c->layouts[group][to.layout],
                                               .from_addr = from.addr,
                                               .to_addr = to.addr,
                                               .centre = c->groups[group].shape.centre,
                                               .basis = c->groups[group].shape.basis,
                                               .position = number * TILE_TOKENS,
                                               .rows = rows};
    ASSERT(rows > 0 && rows <= TILE_TOKENS && from.addr != to.addr);
    backend_page_convert(c->backend, pool_arena(c->pool), &conversion);
}

bool page_convert_new(struct kv_cache *c, uint32_t group, uint32_t number, struct kv_page from,
                      uint32_t layout, struct kv_page *to) {
    *to = (struct kv_page){.layout = (uint16_t)layout};
    if (page_take(c->pool, c->groups[group].page_class[layout], &to->addr, NULL) != KVASIR_OK)
        return false;
    page_requantize(c, group, number, TILE_TOKENS, from, *to);
    return true;
}
