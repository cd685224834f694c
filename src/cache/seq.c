/* SPDX-License-Identifier: Apache-2.0 */
/* seq.c: a sequence is token ids, and one page table per layer group.
 *
 * A table with kept pages (rotation, keep = 4, so one kept page) after a long run:
 *
 *      number     0     1  2  3  4     5      6      7
 *               [kept]  (dropped)    [page] [page] [open]
 *      index      0                    1      2      3          base_page = 5, n = 4
 *
 * Which page numbers are in the table is a function of `length` (and of `prepared` during a step):
 *
 *      pages [0, kept)  and  pages [first_seen(length), last page of prepared]
 *
 * where first_seen(p) is the first page after the kept ones that a query at p sees. Appending moves
 * the right end of that range; rotation and windows move the left end; trimming moves the right end
 * back. No byte of a page moves for any of it.
 *
 * Invariants, besides those of cache.h
 *   SEQ-1  length <= prepared. prepared > length only between seq_prepare and seq_commit or
 *          seq_trim.
 *   SEQ-2  Entries of a table have rising page numbers. Each holds one reference.
 *   SEQ-3  From seq_prepare on, the partly filled page of position `length` is private to the
 *          sequence: seq_prepare copies it if anyone else holds it.
 *   SEQ-4  From seq_prepare on, slots of that page at and after `length` read as zeros or as what
 *          this step writes, never as tokens of another branch.
 *   SEQ-5  Pages that are encoded when they are full have shadows, which hold their rows until
 *          then: between steps the partly filled page of position `length`, in a step all that it
 *          writes to. SEQ-3 and SEQ-4 hold for the shadow, too. Those of the exact tail before that
 *          page are there, too, or in a snapshot (seq_shadow.c, seq_snapshot.c).
 */
#include <string.h>

#include "cache/seq_internal.h"

/* ---- which pages a table holds: functions of positions alone --------------------------------- */

/* Index of the open page (the partly filled one that `length` is in), or -1. */
static int64_t open_entry(const struct kv_seq *s, uint32_t group) {
    if (s->length % TILE_TOKENS == 0)
        return -1;
    const struct table *t = &s->tables[group];
    uint32_t number = s->length / TILE_TOKENS, kept = s->cache->groups[group].kept_pages;
    return number < kept ? (int64_t)number : (int64_t)kept + (number - t->base_page);
}

static bool open_is_shared(const struct kv_seq *s, uint32_t group) {
    int64_t i = open_entry(s, group);
    return i >= 0 && page_shared(s->cache->pool, s->tables[group].pages[i].addr);
}

static bool state_is_shared(const struct kv_seq *s) {
    return s->has_state && page_shared(s->cache->pool, s->state);
}

/* Bytes of shared pages that the table will drop while it grows to a query at `end`. Their other
 * holders keep them in use, so dropping them frees nothing. */
static uint64_t shared_dropped_bytes(const struct kv_seq *s, uint32_t end) {
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < s->cache->n_groups; g++) {
        const struct table *t = &s->tables[g];
        uint32_t kept = s->cache->groups[g].kept_pages,
                 first = first_seen(&s->cache->groups[g], end);
        for (uint32_t i = kept; i < t->n && t->base_page + (i - kept) < first; i++)
            if (page_shared(s->cache->pool, t->pages[i].addr) && (int64_t)i != open_entry(s, g))
                bytes += s->cache->layouts[g][t->pages[i].layout].page_bytes;
    }
    return bytes;
}

/* Bytes that private copies of shared open pages and of a shared state will take. */
static uint64_t copy_bytes(const struct kv_seq *s) {
    uint64_t bytes = (state_is_shared(s) ? s->cache->state_page_bytes : 0) + unpack_bytes(s);
    for (uint32_t g = 0; g < s->cache->n_groups; g++) {
        if (open_is_shared(s, g))
            bytes +=
                s->cache->layouts[g][layout_of(&s->rule, g, s->length / TILE_TOKENS)].page_bytes;
        bytes += shadow_copy_bytes(s, g);
    }
    return bytes;
}

/* ---- life ------------------------------------------------------------------------------------ */

kvasir_status seq_create(struct kv_cache *c, struct kv_seq **out, kvasir_error *err) {
    struct kv_seq *s = mem_calloc(1, sizeof *s);
    if (!s)
        return fail(err, KVASIR_ERR_MEMORY, "sequence: out of memory");
    s->cache = c;
    s->rule = c->rule;
    for (uint32_t g = 0; g < c->n_groups; g++)
        s->tables[g].base_page = c->groups[g].kept_pages;
    s->listed = true;
    s->prev = c->last_seq;
    if (s->prev)
        s->prev->next = s;
    else
        c->first_seq = s;
    c->last_seq = s;
    *out = s;
    return KVASIR_OK;
}

void seq_destroy(struct kv_seq *s) {
    if (!s)
        return;
    seq_unlist(s);
    seq_state_drop(s);
    seq_snapshots_truncate(s, 0);
    mem_free(s->snapshots);
    for (uint32_t g = 0; g < s->cache->n_groups; g++) {
        seq_table_truncate(s, g, 0);
        shadows_free(s, g);
        mem_free(s->tables[g].pages);
    }
    mem_free(s->tokens);
    mem_free(s);
}

/* Capacity for n items: `cap`, or `least` if that is 0, doubled until it is enough. */
static uint64_t grown(uint64_t cap, uint64_t least, uint64_t n) {
    cap = cap ? cap : least;
    while (cap < n)
        cap *= 2;
    return cap < UINT32_MAX ? cap : UINT32_MAX;
}
enum { TABLE_LEAST = 16, TOKENS_LEAST = 256 };

static kvasir_status table_room(struct table *t, uint32_t n, kvasir_error *err) {
    const uint32_t cap = n <= t->cap ? t->cap : (uint32_t)grown(t->cap, TABLE_LEAST, n);
    return seq_pages_room(&t->pages, &t->cap, cap, err);
}

static kvasir_status token_room(struct kv_seq *s, uint32_t length, kvasir_error *err) {
    if (length <= s->token_cap)
        return KVASIR_OK;
    const uint32_t cap = (uint32_t)grown(s->token_cap, TOKENS_LEAST, length);
    int32_t *tokens = mem_realloc(s->tokens, cap, sizeof *tokens);
    if (!tokens)
        return fail(err, KVASIR_ERR_MEMORY, "%u tokens: out of memory", length);
    /* They have memory now, so that no step causes page faults. */
    memset(tokens + s->token_cap, 0, (cap - s->token_cap) * sizeof *tokens);
    s->tokens = tokens;
    s->token_cap = cap;
    return KVASIR_OK;
}

/* The most entries of a table up to `length`. A bounded table never has more than its kept
 * pages, its span and one step. */
static uint32_t entries_until(const struct kv_group *g, uint32_t length) {
    uint64_t n = pages_for(length), step_pages = STEP_TOKENS_MAX / TILE_TOKENS + 2;
    if (g->span != UINT32_MAX && n > g->kept_pages + pages_for(g->span) + step_pages)
        n = g->kept_pages + pages_for(g->span) + step_pages;
    return (uint32_t)n;
}

kvasir_status seq_reserve(struct kv_seq *s, uint32_t length, kvasir_error *err) {
    TRY(token_room(s, length, err));
    for (uint32_t g = 0; g < s->cache->n_groups; g++) {
        TRY(table_room(&s->tables[g], entries_until(&s->cache->groups[g], length), err));
        TRY(shadows_reserve(s, g, err));
    }
    return KVASIR_OK;
}

uint64_t seq_overhead_bytes(const struct kv_cache *c, uint32_t length) {
    uint64_t bytes = sizeof(struct kv_seq) + grown(0, TOKENS_LEAST, length) * sizeof(int32_t);
    for (uint32_t g = 0; g < c->n_groups; g++)
        bytes +=
            grown(0, TABLE_LEAST, entries_until(&c->groups[g], length)) * sizeof(struct kv_page) +
            shadows_overhead_bytes(c, g);
    return bytes;
}

kvasir_status seq_fork(struct kv_seq *s, struct kv_seq **out, kvasir_error *err) {
    struct kv_seq *f = NULL;
    ASSERT(s->prepared == s->length); /* pages that a step is writing are not shared */
    TRY(seq_create(s->cache, &f, err));
    kvasir_status status;
    TRY_GOTO(token_room(f, s->length, err));
    f->rule = s->rule;
    for (uint32_t g = 0; g < s->cache->n_groups; g++) {
        TRY_GOTO(table_room(&f->tables[g], s->tables[g].n, err));
        TRY_GOTO(shadows_reserve(f, g, err));
    }
    TRY_GOTO(seq_snapshots_room(f, s->n_snapshots, err));
    f->not_reproducible = s->not_reproducible;
    f->descended = s->descended;
    f->stale_tail = s->stale_tail;
    f->length = f->prepared = s->length;
    f->has_state = s->has_state;
    f->state = s->state;
    if (s->has_state)
        page_ref(s->cache->pool, s->state);
    f->has_packed = s->has_packed;
    f->packed = s->packed;
    if (s->has_packed)
        page_ref(s->cache->pool, s->packed);
    for (uint32_t i = 0; i < s->n_snapshots; i++) {
        f->snapshots[f->n_snapshots++] = s->snapshots[i];
        page_ref(s->cache->pool, s->snapshots[i].addr);
    }
    if (s->length)
        memcpy(f->tokens, s->tokens, s->length * sizeof *s->tokens);
    for (uint32_t g = 0; g < s->cache->n_groups; g++) {
        const struct table *from = &s->tables[g];
        struct table *to = &f->tables[g];
        to->n = from->n;
        to->base_page = from->base_page;
        to->missing = from->missing;
        for (uint32_t i = 0; i < from->n; i++) {
            to->pages[i] = from->pages[i];
            page_ref(s->cache->pool, to->pages[i].addr);
        }
        shadows_fork(s, g, f);
    }
    *out = f;
    return KVASIR_OK;
done:
    seq_destroy(f);
    return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

uint32_t seq_length(const struct kv_seq *s) {
    return s->length;
}
const int32_t *seq_tokens(const struct kv_seq *s) {
    return s->tokens;
}

uint64_t seq_bytes(const struct kv_seq *s) {
    uint64_t bytes = snapshots_bytes(s);
    for (uint32_t g = 0; g < s->cache->n_groups; g++) {
        const struct table *t = &s->tables[g];
        for (uint32_t i = 0; i < t->n; i++)
            bytes += s->cache->layouts[g][t->pages[i].layout].page_bytes;
        for (uint32_t i = 0; i < t->n_shadows; i++)
            bytes += s->cache->layouts[g][t->shadows[i].layout].page_bytes;
    }
    return bytes;
}

uint64_t seq_bytes_16bit(const struct kv_seq *s) {
    return snapshots_bytes_16bit(s) + kv_cache_bytes_16bit(s->cache, s->length);
}

void seq_state(const struct kv_seq *s, struct state_view *view) {
    *view = (struct state_view){pool_arena(s->cache->pool), s->state};
}

void seq_view(const struct kv_seq *s, uint32_t group, struct kv_view *view) {
    const struct kv_group *g = &s->cache->groups[group];
    const struct table *t = &s->tables[group];
    *view = (struct kv_view){
        .arena = pool_arena(s->cache->pool),
        .layouts = s->cache->layouts[group],
        .centre = g->centred ? g->shape.centre : NULL,
        .basis = g->shape.basis,
        .pages = t->pages,
        .shadows = t->shadows,
        .n_shadows = t->n_shadows,
        .shadow_first = t->shadow_first,
        .tail_pages = s->rule.tail_pages,
        .n_pages = t->n,
        .kept_pages = g->kept_pages,
        .base_page = t->base_page,
        .keep = g->keep,
        .span = g->span,
    };
}

/* The page of the tables that holds the rows of page `number`: its shadow until the page is full.
 * NULL: the tables do not hold it. */
static const struct kv_page *find_page(const struct kv_seq *s, const struct kv_view *view,
                                       uint32_t number) {
    const uint32_t i = kv_view_index(view, number);
    const struct kv_page *shadow = kv_view_shadow(view, number);
    if (shadow && number == s->prepared / TILE_TOKENS)
        return shadow;
    return i == UINT32_MAX ? NULL : &view->pages[i];
}

const struct page_layout *seq_layout(const struct kv_seq *s, uint32_t group,
                                     uint32_t *start_pages) {
    *start_pages = s->rule.start_pages;
    return &s->cache->layouts[group][s->rule.layout[group]];
}

const struct page_layout *seq_page_layout(const struct kv_seq *s, uint32_t group, uint32_t number) {
    struct kv_view view;
    seq_view(s, group, &view);
    const struct kv_page *page = find_page(s, &view, number);
    return page ? &view.layouts[page->layout] : NULL;
}

/* Layout of page `number`, and in *at the offset of one of its tiles in the arena. NULL: the
 * page is not in the table. */
static const struct page_layout *find_tile(const struct kv_seq *s, uint32_t group,
                                           enum tile_kind part, uint32_t layer, uint32_t head,
                                           uint32_t number, size_t *at) {
    struct kv_view view;
    seq_view(s, group, &view);
    const struct kv_page *page = find_page(s, &view, number);
    if (!page)
        return NULL;
    const struct page_layout *l = &view.layouts[page->layout];
    ASSERT(layer < l->layers && head < l->kv_heads);
    *at = page_offset(page->addr) + page_tile(l, layer, head, part);
    return l;
}

kvasir_status seq_read_tile(const struct kv_seq *s, uint32_t group, enum tile_kind part,
                            uint32_t layer, uint32_t head, uint32_t number, bool *there,
                            const struct tile_layout **layout, void *bytes, kvasir_error *err) {
    size_t at;
    const struct page_layout *l = find_tile(s, group, part, layer, head, number, &at);
    *there = l != NULL;
    if (!l)
        return KVASIR_OK;
    *layout = part == TILE_K ? &l->k : &l->v;
    return backend_arena_read(s->cache->backend, pool_arena(s->cache->pool), at, bytes,
                              (*layout)->bytes, err);
}

void seq_write_tile(struct kv_seq *s, uint32_t group, enum tile_kind part, uint32_t layer,
                    uint32_t head, uint32_t number, const void *bytes) {
    size_t at;
    ASSERT(number >= s->length / TILE_TOKENS && number < pages_for(s->prepared));
    s->not_reproducible = true;
    const struct page_layout *l = find_tile(s, group, part, layer, head, number, &at);
    if (l)
        backend_arena_write(s->cache->backend, pool_arena(s->cache->pool), at, bytes,
                            part == TILE_K ? l->k.bytes : l->v.bytes);
}

kvasir_status seq_read_state(const struct kv_seq *s, void *state, kvasir_error *err) {
    ASSERT(s->has_state);
    return backend_arena_read(s->cache->backend, pool_arena(s->cache->pool), page_offset(s->state),
                              state, s->cache->options.state_bytes, err);
}

void seq_write_state(struct kv_seq *s, const void *state) {
    ASSERT(s->has_state && s->prepared > s->length);
    backend_arena_write(s->cache->backend, pool_arena(s->cache->pool), page_offset(s->state), state,
                        s->cache->options.state_bytes);
}

void seq_fill_tail(struct kv_seq *s) {
    const struct kv_cache *c = s->cache;
    const uint32_t end = s->prepared / TILE_TOKENS;
    for (uint32_t g = 0; g < c->n_groups && s->rule.tail_pages; g++) {
        struct kv_view view;
        seq_view(s, g, &view);
        uint32_t n =
            max_u32(cache_first_shadow(c, &s->rule, g, s->prepared), s->length / TILE_TOKENS);
        for (; n < end && shadows_used(c, &s->rule, g); n++) {
            const uint32_t i = kv_view_index(&view, n);
            ASSERT(i != UINT32_MAX && shadow_at(s, g, n) && s->length <= n * TILE_TOKENS);
            page_requantize(c, g, n, TILE_TOKENS, view.pages[i], *shadow_at(s, g, n));
        }
    }
}

void seq_mark_missing(struct kv_seq *s, uint32_t group, uint32_t first) {
    s->tables[group].missing = first;
}

kvasir_status seq_read(const struct kv_seq *s, uint32_t group, enum tile_kind part, uint32_t layer,
                       uint32_t head, uint32_t position, uint32_t n, float *rows, bool *centred,
                       kvasir_error *err) {
    size_t at;
    const struct page_layout *l =
        find_tile(s, group, part, layer, head, position / TILE_TOKENS, &at);
    if (position >= s->length || n > s->length - position || !l)
        return fail(err, KVASIR_ERR_ARGUMENT, "positions %u to %u are not in the cache", position,
                    position + n - 1);
    ASSERT(n <= TILE_TOKENS - position % TILE_TOKENS);
    const struct tile_layout *tl = part == TILE_K ? &l->k : &l->v;
    *centred = part == TILE_K && l->centred;
    void *copy = mem_alloc(tl->bytes);
    if (!copy)
        return fail(err, KVASIR_ERR_MEMORY, "reading the cache: out of memory");
    const kvasir_status status =
        backend_arena_read(s->cache->backend, pool_arena(s->cache->pool), at, copy, tl->bytes, err);
    const struct row_place place = {part, layer, head, position};
    for (uint32_t r = 0; status == KVASIR_OK && r < n; r++) {
        float *row = rows + (size_t)r * tl->head_dim;
        tile_decode_row(tl, copy, position % TILE_TOKENS + r, row);
        page_row_to_plain(l, s->cache->groups[group].shape.basis, &place, row);
    }
    mem_free(copy);
    return status;
}

/* ---- beginning with stored pages (tree.c) ---------------------------------------------------- */

uint32_t first_held(const struct kv_group *g, uint32_t length) {
    return pages_for(length) <= g->kept_pages ? g->kept_pages : first_seen(g, length);
}

kvasir_status seq_begin_at(struct kv_seq *s, const int32_t *tokens, uint32_t length,
                           kvasir_error *err) {
    ASSERT(s->length == 0 && s->prepared == 0);
    TRY(token_room(s, length, err));
    for (uint32_t g = 0; g < s->cache->n_groups; g++) {
        struct table *t = &s->tables[g];
        t->base_page = first_held(&s->cache->groups[g], length);
        const uint32_t n = seq_entries_for(s, g, length);
        kvasir_status status = table_room(t, n, err);
        if (status != KVASIR_OK) {
            for (uint32_t i = 0; i <= g; i++) {
                s->tables[i].n = 0;
                s->tables[i].base_page = s->cache->groups[i].kept_pages;
            }
            return status;
        }
        t->n = n;
    }
    memcpy(s->tokens, tokens, length * sizeof *tokens);
    s->length = s->prepared = length;
    s->stale_tail = true;
    return KVASIR_OK;
}

/* Index of a page in a table, even if its entry is not filled yet. */
static uint32_t entry_of(const struct kv_seq *s, uint32_t group, uint32_t number) {
    struct kv_view view;
    seq_view(s, group, &view);
    return kv_view_index(&view, number);
}

void seq_put_page(struct kv_seq *s, uint32_t group, uint32_t number, struct kv_page page) {
    const uint32_t i = entry_of(s, group, number);
    ASSERT(i != UINT32_MAX);
    s->tables[group].pages[i] = page;
}

void seq_put_state(struct kv_seq *s, uint32_t addr) {
    seq_restore(s, addr);
}

bool seq_get_page(const struct kv_seq *s, uint32_t group, uint32_t number, struct kv_page *page) {
    const uint32_t i = entry_of(s, group, number);
    if (i != UINT32_MAX)
        *page = s->tables[group].pages[i];
    return i != UINT32_MAX;
}

bool seq_is_plain(const struct kv_seq *s) {
    for (uint32_t g = 0; g < s->cache->n_groups; g++)
        if (s->rule.layout[g] != s->cache->rule.layout[g])
            return false;
    return s->rule.start_pages == s->cache->rule.start_pages && !s->not_reproducible;
}

/* ---- growing --------------------------------------------------------------------------------- */

uint64_t seq_need_bytes(const struct kv_seq *s, uint32_t length, uint32_t step,
                        uint32_t snapshots) {
    uint64_t held = all_bytes(s->cache, &s->rule, s->length, s->length);
    uint64_t most = peak_bytes(s->cache, &s->rule, s->length, length, step);
    return (most > held ? most - held : 0) + copy_bytes(s) + shared_dropped_bytes(s, length) +
           snapshots * snapshot_page_bytes(s);
}

/* Appends a new page for `number`. */
static kvasir_status table_push(struct kv_seq *s, uint32_t group, uint32_t number,
                                kvasir_error *err) {
    struct kv_cache *c = s->cache;
    struct table *t = &s->tables[group];
    uint32_t layout = layout_of(&s->rule, group, number), addr;
    TRY(table_room(t, t->n + 1, err));
    TRY(page_take(c->pool, c->groups[group].page_class[layout], &addr, err));
    t->pages[t->n++] = (struct kv_page){.addr = addr, .layout = (uint16_t)layout};
    return KVASIR_OK;
}

/* SEQ-3 */
static kvasir_status open_unshare(struct kv_seq *s, uint32_t group, kvasir_error *err) {
    const int64_t i = open_entry(s, group);
    return i >= 0 ? seq_page_unshare(s, group, &s->tables[group].pages[i], err) : KVASIR_OK;
}

/* SEQ-4: makes the private open page's slots from `length` on read as zeros. Attention gives them
 * weight 0, but 0 times an infinity would be NaN. */
static void open_clear_tail(struct kv_seq *s, uint32_t group) {
    const struct kv_cache *c = s->cache;
    const int64_t entry = open_entry(s, group);
    if (entry < 0)
        return;
    const struct kv_page *shadow = shadow_at(s, group, s->length / TILE_TOKENS),
                         *page = shadow ? shadow : &s->tables[group].pages[entry];
    ASSERT(!page_shared(c->pool, page->addr));
    page_clear_tail(c->backend, pool_arena(c->pool), &c->layouts[group][page->layout], page->addr,
                    s->length % TILE_TOKENS);
}

/* CACHE-8: makes the state private: zeros at first, a copy if a snapshot or a fork also holds
 * it. */
static kvasir_status state_unshare(struct kv_seq *s, kvasir_error *err) {
    struct kv_cache *c = s->cache;
    uint32_t addr;
    if (!c->state_page_bytes || (s->has_state && !state_is_shared(s)))
        return KVASIR_OK;
    TRY(page_take(c->pool, c->state_class, &addr, err));
    if (s->has_state) {
        page_copy(c->pool, addr, s->state);
        page_unref(c->pool, s->state);
    }
    s->state = addr;
    s->has_state = true;
    return KVASIR_OK;
}

kvasir_status seq_prepare(struct kv_seq *s, uint32_t n, kvasir_error *err) {
    struct kv_cache *c = s->cache;
    uint32_t end;
    ASSERT(s->prepared == s->length);
    if (__builtin_add_overflow(s->length, n, &end) || end > UINT32_MAX - TILE_TOKENS)
        return fail(err, KVASIR_ERR_CONTEXT, "a sequence of more than 2^32 tokens");
    /* All or none: what is needed is known before anything is taken. */
    uint64_t need =
        all_bytes(c, &s->rule, s->length, end) - all_bytes(c, &s->rule, s->length, s->length);
    (void)kv_cache_make_room(c, need + copy_bytes(s));
    TRY(pool_check_room(c->pool, need + copy_bytes(s), err));
    TRY(token_room(s, end, err));
    kvasir_status status;
    TRY_GOTO(seq_unpack(s, err));
    TRY_GOTO(state_unshare(s, err));
    for (uint32_t g = 0; g < c->n_groups; g++) {
        TRY_GOTO(open_unshare(s, g, err));
        TRY_GOTO(shadows_prepare(s, g, end, err));
        for (uint32_t number = pages_for(s->length); number < pages_for(end); number++)
            TRY_GOTO(table_push(s, g, number, err));
    }
    for (uint32_t g = 0; g < c->n_groups && s->stale_tail; g++)
        open_clear_tail(s, g);
    s->stale_tail = false;
    s->prepared = end;
    return KVASIR_OK;
done:
    /* Open pages and states that were made private remain so: they hold the same bytes. */
    if (s->length == 0)
        seq_state_drop(s);
    for (uint32_t g = 0; g < c->n_groups; g++) {
        seq_table_truncate(s, g, seq_entries_for(s, g, s->length));
        shadows_keep(s, g, s->length);
    }
    return status;
}

/* Frees the pages after the kept ones that no query from `length` on sees. */
static void drop_unseen(struct kv_seq *s, uint32_t group) {
    const struct kv_group *g = &s->cache->groups[group];
    struct table *t = &s->tables[group];
    uint32_t first = first_seen(g, s->length), drop = 0;
    while (t->base_page + drop < first && g->kept_pages + drop < t->n)
        page_unref(s->cache->pool, t->pages[g->kept_pages + drop++].addr);
    if (!drop)
        return;
    t->n -= drop;
    t->base_page += drop;
    memmove(&t->pages[g->kept_pages], &t->pages[g->kept_pages + drop],
            (t->n - g->kept_pages) * sizeof *t->pages);
}

/* Drops the snapshots to which no trim can return, because pages that they need are gone. */
static void drop_useless(struct kv_seq *s) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->n_snapshots; i++)
        if (snapshot_serves(s, s->snapshots[i].length))
            s->snapshots[kept++] = s->snapshots[i];
        else
            page_unref(s->cache->pool, s->snapshots[i].addr);
    s->n_snapshots = kept;
}

void seq_commit(struct kv_seq *s, const int32_t *tokens, uint32_t n) {
    const uint32_t before = s->length;
    ASSERT(n <= s->prepared - s->length);
    /* After a trim, `tokens` may be this very memory. */
    memmove(s->tokens + s->length, tokens, n * sizeof *tokens);
    s->length += n;
    s->prepared = s->length;
    for (uint32_t g = 0; g < s->cache->n_groups; g++) {
        seq_table_truncate(s, g, seq_entries_for(s, g, s->length)); /* pages that were not used */
        drop_unseen(s, g);
        shadows_keep(s, g, s->length);
    }
    if (before / TILE_TOKENS != s->length / TILE_TOKENS) /* pages and shadows went */
        drop_useless(s);
}
