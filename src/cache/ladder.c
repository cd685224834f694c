/* SPDX-License-Identifier: Apache-2.0 */
/* ladder.c: full pages go down to formats of fewer bits, one by one, as the budget fills.
 *
 *     rank 0: the cache's formats (new pages)  -->  rank 1  -->  ...  -->  the floor
 *
 * This is I1's exception: what a query sees of earlier pages depends on how full memory was. When
 * it is full, pages go down first; only when none can, stored prefixes are evicted and tasks are
 * preempted or refused.
 *
 * Invariants (tests/unit/test_ladder.c and tests/sim/ try to break them)
 *   LADDER-1  A page goes down by one rank, never beyond the floor and never up. No page of rank
 *             r + 1 goes down while one of rank r can.
 *   LADDER-2  Of one rank, stored pages that no sequence holds go first, then stored pages that
 *             some hold: both in the order of eviction (node_use_key), whatever hangs below them.
 *             Then pages that the tree does not have: the oldest sequence's first, in order.
 *   LADDER-3  A page is exchanged in all tables and nodes that hold it, or stays as it is: one that
 *             a tier's load holds too, or that waits to be written. So do pages that have a shadow
 *             (the exact tail), and 16-bit pages.
 *   LADDER-4  Exchanging pages never exceeds the budget: room for one page is charged for it.
 *   LADDER-5  What was computed after re-encoded pages is marked, as are nodes with such pages:
 *             tiers get none of it, so records are the bytes that their tokens alone give.
 *   LADDER-6  The first page of a sequence that is not of its exact start stays as it was made.
 *             Without a start, all later tokens attend to its first ones (attention sinks), so half
 *             of what t3 costs is that page's; with one, it makes up for values that are encoded
 *             twice (docs/quality.md).
 *
 * Choosing a page looks at all nodes: 2 ms for 50,000 of them, where re-encoding a page of SmolLM2
 * takes 15 to 30 ms on two cores.
 */
#include "cache/seq_internal.h"
#include "cache/tree_internal.h"

uint32_t ladder_rank(const struct kv_cache *c, uint32_t group, uint32_t layout) {
    if (c->groups[group].shape.fixed_format)
        return NO_RANK;
    for (uint32_t rank = c->ladder.n_rungs; rank > 0; rank--)
        if (layout == c->ladder.rungs[rank - 1].layout[group])
            return rank;
    return c->ladder.n_rungs && layout == LAYOUT_OWN ? 0 : NO_RANK;
}

/* ---- sequences ------------------------------------------------------------------------------- */

void seq_unlist(struct kv_seq *s) {
    struct kv_cache *c = s->cache;
    if (!s->listed)
        return;
    s->listed = false;
    *(s->prev ? &s->prev->next : &c->first_seq) = s->next;
    *(s->next ? &s->next->prev : &c->last_seq) = s->prev;
}

void seq_note_descended(struct kv_seq *s) {
    s->descended = true;
}

bool seq_has_descended(const struct kv_seq *s) {
    return s->descended;
}

static uint32_t number_at(const struct kv_seq *s, uint32_t group, uint32_t entry) {
    const uint32_t kept = s->cache->groups[group].kept_pages;
    return entry < kept ? entry : s->tables[group].base_page + (entry - kept);
}

/* The entry of page `number`, if that is full and has no shadow; NULL: it is not. */
static struct kv_page *full_page(const struct kv_seq *s, uint32_t group, uint32_t number) {
    const struct table *t = &s->tables[group];
    const uint32_t kept = s->cache->groups[group].kept_pages,
                   entry = number < kept ? number : kept + (number - t->base_page);
    if (number >= s->length / TILE_TOKENS || (number >= kept && number < t->base_page) ||
        entry >= t->n || shadow_at(s, group, number))
        return NULL;
    return &t->pages[entry];
}

uint32_t seq_descended_pages(const struct kv_seq *s) {
    uint32_t n = 0;
    for (uint32_t g = 0; g < s->cache->n_groups; g++)
        for (uint32_t i = 0; i < s->tables[g].n; i++) {
            const uint32_t layout = s->tables[g].pages[i].layout;
            n += layout != LAYOUT_OWN && ladder_rank(s->cache, g, layout) != NO_RANK;
        }
    return n;
}

/* ---- which page ------------------------------------------------------------------------------ */

/* Who holds a page, in the order in which pages go down. */
enum holders { HELD_BY_TREE, HELD_BY_BOTH, HELD_BY_SEQUENCES };

struct descent {
    uint32_t rank; /* NO_RANK: there is none */
    enum holders held;
    double key;
    uint32_t node; /* or NO_NODE */
    uint32_t group, number;
    struct kv_page page;
};

/* Whether a goes before b. */
static bool is_before(const struct descent *a, const struct descent *b) {
    if (a->rank != b->rank)
        return a->rank < b->rank;
    return a->held != b->held ? a->held < b->held : a->key < b->key;
}

static bool can_descend(const struct kv_cache *c, uint32_t number, uint32_t rank) {
    return number >= c->rule.start_pages + LADDER_FIRST_PAGE && rank < c->ladder.n_rungs;
}

/* LADDER-3: whether listed sequences are all that hold the page beside the tree. */
static bool holders_are_known(const struct kv_cache *c, const struct descent *x) {
    uint32_t known = 0;
    for (const struct kv_seq *s = c->first_seq; s; s = s->next) {
        const struct kv_page *page = full_page(s, x->group, x->number);
        known += page && page->addr == x->page.addr;
    }
    return known == page_live_refs(c->pool, x->page.addr);
}

static void look_at_node(const struct kv_cache *c, uint32_t x, struct descent *best) {
    const struct prefix_tree *t = c->tree;
    struct descent now = {.node = x, .number = t->nodes[x].number};
    for (now.group = 0; now.group < c->n_groups; now.group++) {
        now.page = *node_page(t, x, now.group);
        if (now.page.addr == NO_ADDR)
            continue;
        now.rank = ladder_rank(c, now.group, now.page.layout);
        now.held = page_is_live(c->pool, now.page.addr) ? HELD_BY_BOTH : HELD_BY_TREE;
        now.key = node_use_key(t, x);
        if (can_descend(c, now.number, now.rank) && is_before(&now, best) &&
            holders_are_known(c, &now))
            *best = now;
    }
}

/* Among full pages of the tree. A page that is split is that of the node which ends it. */
static void look_at_tree(const struct kv_cache *c, struct descent *best) {
    const struct prefix_tree *t = c->tree;
    for (uint32_t x = 0; t && x < t->n_made; x++)
        if (t->nodes[x].to == TILE_TOKENS && !t->nodes[x].queued)
            look_at_node(c, x, best);
}

static void look_at_sequences(const struct kv_cache *c, struct descent *best) {
    struct descent now = {.node = NO_NODE, .held = HELD_BY_SEQUENCES};
    for (const struct kv_seq *s = c->first_seq; s; s = s->next)
        for (now.group = 0; now.group < c->n_groups; now.group++)
            for (uint32_t i = 0; i < s->tables[now.group].n; i++) {
                now.number = number_at(s, now.group, i);
                now.page = s->tables[now.group].pages[i];
                now.rank = ladder_rank(c, now.group, now.page.layout);
                if (can_descend(c, now.number, now.rank) && is_before(&now, best) &&
                    full_page(s, now.group, now.number) && holders_are_known(c, &now) &&
                    !page_is_stored(c->pool, now.page.addr))
                    *best = now;
            }
}

/* ---- going down ------------------------------------------------------------------------------ */

/* The tables that hold the page get the other one. */
static void replace_in_tables(struct kv_cache *c, const struct descent *x, struct kv_page to) {
    for (struct kv_seq *s = c->first_seq; s; s = s->next) {
        struct kv_page *page = full_page(s, x->group, x->number);
        if (!page || page->addr != x->page.addr)
            continue;
        page_ref(c->pool, to.addr);
        page_unref(c->pool, page->addr);
        *page = to;
        s->descended = true;
    }
}

static bool descend(struct kv_cache *c, const struct descent *x) {
    const uint32_t layout = c->ladder.rungs[x->rank].layout[x->group];
    struct kv_page to;
    pool_discharge(c->pool, c->ladder.spare_bytes);
    const bool good = page_convert_new(c, x->group, x->number, x->page, layout, &to);
    if (good) {
        if (x->node != NO_NODE)
            node_descend(c->tree, x->node, x->group, to);
        replace_in_tables(c, x, to);
        page_unref(c->pool, to.addr);
        c->ladder.descended[x->rank]++;
    }
    const kvasir_status status = pool_charge(c->pool, c->ladder.spare_bytes, NULL);
    ASSERT(status == KVASIR_OK); /* LADDER-4 */
    (void)status;
    return good;
}

/* The next page goes down. False: none can. */
static bool descend_next(struct kv_cache *c) {
    struct descent best = {.rank = NO_RANK};
    look_at_tree(c, &best);
    look_at_sequences(c, &best);
    return best.rank != NO_RANK && descend(c, &best);
}

bool kv_cache_make_room(struct kv_cache *c, uint64_t bytes) {
    while (pool_check_room(c->pool, bytes, NULL) != KVASIR_OK)
        if (!c->ladder.n_rungs || !descend_next(c))
            return false;
    return true;
}

static bool is_above_mark(const struct kv_cache *c) {
    const struct kv_pool_stats p = kv_pool_stats(c->pool);
    return p.used_bytes + p.charged_bytes > p.budget_bytes / 100 * LADDER_MARK_PERCENT;
}

uint32_t kv_cache_descend(struct kv_cache *c, uint32_t pages) {
    const struct kv_pool_stats p = kv_pool_stats(c->pool);
    uint32_t n = 0;
    if (!c->ladder.n_rungs ||
        (p.pages_taken == c->ladder.vain_taken && p.stored_bytes == c->ladder.vain_stored))
        return 0;
    while (n < pages && is_above_mark(c)) {
        if (!descend_next(c)) {
            const struct kv_pool_stats now = kv_pool_stats(c->pool);
            c->ladder.vain_taken = now.pages_taken;
            c->ladder.vain_stored = now.stored_bytes;
            break;
        }
        n++;
    }
    return n;
}

/* ---- figures --------------------------------------------------------------------------------- */

uint64_t kv_cache_ladder_bytes(const struct kv_cache *c) {
    uint64_t bytes = 0;
    if (!c->ladder.n_rungs)
        return 0;
    const struct layout_rule *floor = &c->ladder.rungs[c->ladder.n_rungs - 1];
    for (const struct kv_seq *s = c->first_seq; s; s = s->next)
        for (uint32_t g = 0; g < c->n_groups; g++)
            for (uint32_t i = 0; i < s->tables[g].n; i++) {
                const struct kv_page page = s->tables[g].pages[i];
                const uint32_t number = number_at(s, g, i);
                if (!can_descend(c, number, ladder_rank(c, g, page.layout)) ||
                    !full_page(s, g, number))
                    continue;
                /* each of those who share it counts its part */
                bytes += (c->layouts[g][page.layout].page_bytes -
                          c->layouts[g][floor->layout[g]].page_bytes) /
                         page_live_refs(c->pool, page.addr);
            }
    return bytes;
}

uint32_t kv_cache_rungs(const struct kv_cache *c) {
    return c->ladder.n_rungs;
}

uint64_t kv_cache_descended(const struct kv_cache *c, uint32_t rung) {
    ASSERT(rung < c->ladder.n_rungs);
    return c->ladder.descended[rung];
}
