/* SPDX-License-Identifier: Apache-2.0 */
/* tree.c: the prefix tree: life, hits, storing, checking. tree.h has the drawing and the
 * invariants, tree_internal.h lists the files.
 */
#include <string.h>

#include "cache/tree_internal.h"

/* ---- life ------------------------------------------------------------------------------------ */

static size_t reserve_bytes(size_t count, size_t size) {
    return round_up(count * size, 4096);
}

/* Bytes of one page of every group: budget / this is about how many nodes there can be. There
 * are more only if pages are split, or if window pages were dropped. */
static uint64_t page_bytes_of_all(const struct kv_cache *c) {
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < c->n_groups; g++)
        bytes += c->layouts[g][LAYOUT_OWN].page_bytes;
    return bytes;
}

static bool is_reserved(const struct prefix_tree *t) {
    return t->nodes && t->pages && t->heaps[LEAVES].nodes && t->heaps[INNER].nodes && t->buckets;
}

kvasir_status tree_create(struct kv_cache *c, uint32_t rebuild_tokens, struct prefix_tree **out,
                          kvasir_error *err) {
    struct prefix_tree *t = mem_calloc(1, sizeof *t);
    if (!t)
        return fail(err, KVASIR_ERR_MEMORY, "prefix tree: out of memory");
    const size_t entry = c->n_groups * sizeof *t->pages;
    const uint64_t budget = kv_pool_stats(c->pool).budget_bytes;
    t->cache = c;
    t->rebuild_tokens = rebuild_tokens;
    t->free_node = t->first_root = NO_NODE;
    t->max_entries = UINT32_MAX;
    t->max_bytes = UINT64_MAX;
    t->next_expiry = t->expiry_seen = TREE_FOREVER;
    t->node_bytes =
        sizeof *t->nodes + entry + CANDIDATES * sizeof *t->heaps->nodes + sizeof *t->buckets;
    const uint64_t most = budget / t->node_bytes + 1;
    t->max_nodes = most < NO_NODE ? (uint32_t)most : NO_NODE - 1;
    t->n_buckets = 1024;
    while (t->n_buckets < 1u << 26 && t->n_buckets < budget / page_bytes_of_all(c))
        t->n_buckets *= 2;
    t->nodes = mem_reserve(reserve_bytes(t->max_nodes, sizeof *t->nodes));
    t->pages = mem_reserve(reserve_bytes(t->max_nodes, entry));
    for (int i = 0; i < CANDIDATES; i++)
        t->heaps[i].nodes = mem_reserve(reserve_bytes(t->max_nodes, sizeof *t->heaps[i].nodes));
    t->buckets = mem_reserve(reserve_bytes(t->n_buckets, sizeof *t->buckets));
    if (!is_reserved(t)) {
        tree_destroy(t);
        return fail(err, KVASIR_ERR_MEMORY, "prefix tree: no address space is left for %u nodes",
                    t->max_nodes);
    }
    c->tree = t;
    *out = t;
    return KVASIR_OK;
}

void tree_destroy(struct prefix_tree *t) {
    if (!t)
        return;
    if (is_reserved(t))
        tree_forget(t, NULL, 0);
    ASSERT(t->stats.nodes == 0 && t->stats.tokens == 0);
    t->cache->tree = NULL;
    mem_unreserve(t->nodes, reserve_bytes(t->max_nodes, sizeof *t->nodes));
    mem_unreserve(t->pages, reserve_bytes(t->max_nodes, t->cache->n_groups * sizeof *t->pages));
    for (int i = 0; i < CANDIDATES; i++)
        mem_unreserve(t->heaps[i].nodes, reserve_bytes(t->max_nodes, sizeof *t->heaps[i].nodes));
    mem_unreserve(t->buckets, reserve_bytes(t->n_buckets, sizeof *t->buckets));
    mem_free(t);
}

struct tree_stats tree_stats(const struct prefix_tree *t) {
    struct tree_stats stats = t->stats;
    stats.entries = t->heaps[LEAVES].n;
    return stats;
}

uint64_t tree_path_bytes(const struct prefix_tree *t, uint32_t tokens) {
    return (pages_for(tokens) + 4) * t->node_bytes; /* a root, and ends inside pages */
}

/* ---- new nodes ------------------------------------------------------------------------------- */

/* An empty node, charged to the budget. NO_NODE: no room even after eviction. */
static uint32_t make_node(struct prefix_tree *t) {
    return tree_make_room(t, t->node_bytes) ? node_make(t) : NO_NODE;
}

static uint32_t make_root(struct prefix_tree *t, const void *salt, size_t len) {
    return tree_make_room(t, t->node_bytes + tree_salt_bytes(len)) ? node_make_root(t, salt, len)
                                                                   : NO_NODE;
}

/* Splits a node after its first m tokens. Returns the new upper part, or NO_NODE: no room. The
 * node is pinned while room is made, because it might be evicted itself. Its parent may merge
 * with it meanwhile, so the cut is a position in the page. */
static uint32_t split(struct prefix_tree *t, uint32_t x, uint32_t m) {
    const uint8_t cut = (uint8_t)(t->nodes[x].from + m);
    node_pin(t, x);
    const uint32_t u = make_node(t);
    t->nodes[x].pins--;
    if (u == NO_NODE)
        node_settle(t, x);
    else
        node_split(t, x, u, cut);
    return u;
}

/* ---- cursors --------------------------------------------------------------------------------- */

static void cursor_move(struct prefix_tree *t, struct tree_cursor *at, uint32_t x) {
    if (at->node == x)
        return;
    node_pin(t, x);
    if (at->node != TREE_NOWHERE)
        node_unpin(t, at->node);
    at->node = x;
}

struct tree_cursor tree_cursor_copy(struct prefix_tree *t, struct tree_cursor at) {
    if (at.node != TREE_NOWHERE)
        node_pin(t, at.node);
    return at;
}

void tree_close(struct prefix_tree *t, struct tree_cursor *at) {
    if (at->node != TREE_NOWHERE)
        node_unpin(t, at->node);
    at->node = TREE_NOWHERE;
    tree_keep_limits(t); /* it may be an entry now, and its pages the tree's alone */
}

/* ---- hits ------------------------------------------------------------------------------------ */

/* Counts a hit of `length` tokens that ends at node x, for every node of the path. Only those
 * that the next query sees, and x for its state, count as resumed. */
static void touch(struct prefix_tree *t, uint32_t x, uint32_t length) {
    uint32_t seen_from = UINT32_MAX;
    for (uint32_t g = 0; g < t->cache->n_groups; g++) {
        const uint32_t first = first_held(&t->cache->groups[g], length);
        if (t->cache->groups[g].span != UINT32_MAX && first < seen_from)
            seen_from = first;
    }
    for (uint32_t y = x; !is_root(t, y); y = t->nodes[y].parent)
        node_note_use(t, y, y == x || t->nodes[y].number >= seen_from);
}

/* Fills the new sequence's tables along the path that ends in node x. */
static void put_path(struct prefix_tree *t, uint32_t x, uint32_t length, struct kv_seq *s) {
    const struct kv_cache *c = t->cache;
    uint32_t previous = UINT32_MAX; /* page of the node before: the deepest one has it all */
    for (uint32_t y = x; !is_root(t, y); y = t->nodes[y].parent) {
        const uint32_t number = t->nodes[y].number;
        t->nodes[y].abandoned = false; /* somebody continues it */
        if (t->nodes[y].descended)
            seq_note_descended(s);
        for (uint32_t g = 0; g < c->n_groups && number != previous; g++) {
            const struct kv_group *group = &c->groups[g];
            if (number >= group->kept_pages && number < first_held(group, length))
                continue;
            page_ref(c->pool, node_page(t, y, g)->addr);
            seq_put_page(s, g, number, *node_page(t, y, g));
        }
        previous = number;
    }
    if (c->snapshot_bytes) {
        page_ref(c->pool, t->nodes[x].state);
        seq_put_state(s, t->nodes[x].state);
    }
}

kvasir_status tree_resume(struct prefix_tree *t, const void *salt, size_t salt_len,
                          const int32_t *tokens, uint32_t n, struct kv_seq *s,
                          struct tree_cursor *at, struct tree_hit *hit, kvasir_error *err) {
    /* Room for the split, before the walk: making it later might evict what the walk found. */
    (void)tree_make_room(t, t->node_bytes);
    uint32_t root = tree_find_root(t, salt, salt_len);
    *at = (struct tree_cursor){TREE_NOWHERE};
    *hit = (struct tree_hit){.kind = KVASIR_HIT_MISS};
    if (root == NO_NODE)
        root = make_root(t, salt, salt_len);
    if (root == NO_NODE || n == 0)
        return KVASIR_OK; /* nothing will be stored */
    cursor_move(t, at, root);
    const struct walk w = tree_walk(t, root, tokens, n, n - 1);
    *hit = (struct tree_hit){w.length, w.common, walk_hit_kind(t, &w, n)};
    if (!w.length)
        return KVASIR_OK;
    uint32_t x = w.best;
    if (node_end(t, x) > w.length) {
        const uint32_t m = w.length - (t->nodes[x].number * TILE_TOKENS + t->nodes[x].from);
        x = split(t, x, m);
    }
    /* A miss if there is not even room for a node. */
    kvasir_status status = x == NO_NODE ? KVASIR_OK : seq_begin_at(s, tokens, w.length, err);
    if (x == NO_NODE || status != KVASIR_OK) {
        if (x != NO_NODE)
            node_settle(t, x);
        *hit = (struct tree_hit){.common = w.common, .kind = KVASIR_HIT_MISS};
        if (status != KVASIR_OK)
            tree_close(t, at);
        return status;
    }
    cursor_move(t, at, x);
    put_path(t, x, w.length, s);
    return KVASIR_OK;
}

void tree_count(struct prefix_tree *t, const struct tree_cursor *at, const int32_t *tokens,
                uint32_t n) {
    uint32_t x = at->node;
    if (x == TREE_NOWHERE)
        return;
    t->clock++;
    /* From the cursor on: what was found after it may be gone since. */
    uint32_t common = node_end(t, x), matched = (uint32_t)(t->nodes[x].to - t->nodes[x].from);
    for (uint32_t child; common < n && matched == (uint32_t)(t->nodes[x].to - t->nodes[x].from) &&
                         (child = node_find_child(t, x, tokens[common])) != NO_NODE;) {
        x = child;
        matched = common_run(&t->nodes[x], tokens + common, n - common);
        common += matched;
    }
    if (common > 0 && common < n)
        node_abandon_rest(t, x, matched);
    touch(t, at->node, node_end(t, at->node));
}

/* ---- storing --------------------------------------------------------------------------------- */

/* A child of x in the same page that references page `addr` of the group, or any page if addr is
 * NO_ADDR. */
static uint32_t child_with(const struct prefix_tree *t, uint32_t x, uint32_t group, uint32_t addr) {
    uint32_t y = t->nodes[x].to < TILE_TOKENS ? t->nodes[x].first_child : NO_NODE;
    while (y != NO_NODE && (node_page(t, y, group)->addr == NO_ADDR ||
                            (addr != NO_ADDR && node_page(t, y, group)->addr != addr)))
        y = t->nodes[y].next;
    return y;
}

/* TREE-2, after a node got a page: ancestors in the same page take it, too, unless another child
 * has the page that they reference. */
static void share_page_upwards(struct prefix_tree *t, uint32_t x, uint32_t group) {
    const uint32_t parent = t->nodes[x].parent;
    if (!in_parents_page(t, x))
        return;
    const uint32_t above = node_page(t, parent, group)->addr;
    if (above != NO_ADDR && child_with(t, parent, group, above) == NO_NODE)
        node_replace_page(t, parent, group, above, *node_page(t, x, group));
}

/* Gives a node the page that it lacks: a child's if it has one, otherwise the sequence's. */
static void node_restore(struct prefix_tree *t, uint32_t x, uint32_t group, struct kv_page mine) {
    const uint32_t child = child_with(t, x, group, NO_ADDR);
    node_hold_page(t, x, group, child == NO_NODE ? mine : *node_page(t, child, group));
    share_page_upwards(t, x, group);
}

/* Whether both pages are on the ladder: then the sequence can do with the other's bits. */
static bool on_ladder(const struct kv_cache *c, uint32_t group, const struct kv_page *a,
                      const struct kv_page *b) {
    return ladder_rank(c, group, a->layout) != NO_RANK &&
           ladder_rank(c, group, b->layout) != NO_RANK;
}

/* The sequence has computed the tokens of an existing node. The node takes pages that it lacks;
 * a full page that both have is taken from the tree, which frees the sequence's own. */
static void node_adopt_pages(struct prefix_tree *t, uint32_t x, struct kv_seq *s) {
    const uint32_t number = t->nodes[x].number;
    for (uint32_t g = 0; g < t->cache->n_groups; g++) {
        struct kv_page mine, *held = node_page(t, x, g);
        if (!seq_get_page(s, g, number, &mine) || held->addr == mine.addr)
            continue;
        if (held->addr == NO_ADDR) {
            node_restore(t, x, g, mine);
        } else if (t->nodes[x].to == TILE_TOKENS &&
                   (held->layout == mine.layout || on_ladder(t->cache, g, held, &mine))) {
            page_ref(t->cache->pool, held->addr);
            page_unref(t->cache->pool, mine.addr);
            seq_put_page(s, g, number, *held);
        }
    }
    if (t->nodes[x].descended)
        seq_note_descended(s);
}

/* Adds a child for tokens [pos, end) of the sequence, inside one page. */
static uint32_t node_add(struct prefix_tree *t, uint32_t parent, struct kv_seq *s, uint32_t pos,
                         uint32_t end) {
    const uint32_t x = make_node(t); /* the cursor pins the parent */
    if (x == NO_NODE)
        return NO_NODE;
    struct node *n = &t->nodes[x];
    n->number = pos / TILE_TOKENS;
    n->from = (uint8_t)(pos % TILE_TOKENS);
    n->to = (uint8_t)(end - n->number * TILE_TOKENS);
    n->descended = seq_has_descended(s);
    memcpy(n->tokens + n->from, seq_tokens(s) + pos, (end - pos) * sizeof *n->tokens);
    t->stats.tokens += end - pos;
    node_link(t, parent, x);
    node_set_chain(t, x);
    for (uint32_t g = 0; g < t->cache->n_groups; g++) {
        struct kv_page page;
        if (seq_get_page(s, g, n->number, &page)) {
            node_hold_page(t, x, g, page);
            share_page_upwards(t, x, g);
        }
    }
    return x;
}

/* The child of `at` that continues with the sequence's tokens at pos. It is split if it goes on
 * differently or past `end`, and made if there is none. NO_NODE: no room. */
static uint32_t step_down(struct prefix_tree *t, uint32_t at, struct kv_seq *s, uint32_t pos,
                          uint32_t end) {
    const int32_t *tokens = seq_tokens(s);
    const uint32_t x = node_find_child(t, at, tokens[pos]);
    if (x == NO_NODE) {
        const uint32_t page_end = (pos / TILE_TOKENS + 1) * TILE_TOKENS;
        return node_add(t, at, s, pos, end < page_end ? end : page_end);
    }
    const struct node *n = &t->nodes[x];
    const uint32_t m = common_run(n, tokens + pos, end - pos);
    const uint32_t y = m < (uint32_t)(n->to - n->from) ? split(t, x, m) : x;
    if (y != NO_NODE)
        node_adopt_pages(t, y, s);
    return y;
}

/* Stores what the sequence has computed of its first `end` tokens. False: no room. */
static bool store_path(struct prefix_tree *t, struct tree_cursor *at, struct kv_seq *s,
                       uint32_t end, uint64_t expires) {
    uint32_t pos = node_end(t, at->node);
    node_keep(t, at->node, expires);
    while (pos < end) {
        const uint32_t x = step_down(t, at->node, s, pos, end);
        if (x == NO_NODE)
            return false;
        t->nodes[x].used = t->nodes[x].resumed = t->clock;
        t->nodes[x].abandoned = false;
        node_keep(t, x, expires);
        cursor_move(t, at, x);
        pos = node_end(t, x);
    }
    return true;
}

/* Makes node x a hit point and stores the sequence's state there. An exact tail takes a page for
 * it, unless there is no room. The cursor pins the node. */
static void store_hit_point(struct prefix_tree *t, uint32_t x, struct kv_seq *s) {
    struct kv_cache *c = t->cache;
    uint32_t state;
    t->nodes[x].hit_point = true;
    if (t->nodes[x].state != NO_ADDR || !c->snapshot_bytes)
        return;
    if (seq_has_tail(s))
        (void)tree_make_room(t, c->snapshot_bytes);
    if (seq_snapshot_take(s, node_end(t, x), &state, NULL) != KVASIR_OK || state == NO_SNAPSHOT)
        return;
    page_store(c->pool, state);
    page_unref(c->pool, state);
    t->nodes[x].state = state;
    t->nodes[x].resumed = t->clock;
}

/* Whether page `number` is encoded when it is full: before that it is nothing to store. */
static bool ends_in_whole(const struct kv_cache *c, uint32_t number) {
    for (uint32_t g = 0; g < c->n_groups; g++)
        if (cache_is_whole(c, g, layout_of(&c->rule, g, number)))
            return true;
    return false;
}

void tree_store_until(struct prefix_tree *t, struct tree_cursor *at, struct kv_seq *s,
                      bool hit_point, uint64_t expires) {
    const uint32_t length = seq_length(s), pages = length / TILE_TOKENS;
    const bool inside = hit_point && !ends_in_whole(t->cache, pages);
    const uint32_t end = inside ? length : pages * TILE_TOKENS;
    const bool can = at->node != TREE_NOWHERE && seq_is_plain(s);
    if (can && !store_path(t, at, s, end, expires))
        t->stats.rejections++;
    else if (can && hit_point && node_end(t, at->node) == end && !is_root(t, at->node) &&
             (end == length || seq_has_tail(s)))
        store_hit_point(t, at->node, s);
    tree_keep_limits(t);
}

/* ---- checking -------------------------------------------------------------------------------- */

struct counted {
    uint64_t nodes, tokens, ends, favour;
};

static void check_node(const struct prefix_tree *t, uint32_t x, struct counted *seen) {
    const struct node *n = &t->nodes[x];
    seen->nodes++;
    seen->tokens += (uint64_t)(n->to - n->from);
    seen->ends += n->first_child == NO_NODE && !n->pins;
    seen->favour += node_favour(t, x);
    ASSERT((n->favour == 0) == (n->favoured_by == 0));
    if (!is_root(t, x)) {
        const uint32_t before = node_end(t, n->parent);
        ASSERT(n->expires >= t->next_expiry || n->expires >= t->expiry_seen);
        ASSERT(is_root(t, n->parent) || t->nodes[n->parent].expires >= n->expires); /* TREE-8 */
        ASSERT(n->to > n->from && n->to <= TILE_TOKENS);
        ASSERT(n->number * TILE_TOKENS + n->from == before);
        ASSERT(node_find_child(t, n->parent, n->tokens[n->from]) == x);
        for (uint32_t g = 0; g < t->cache->n_groups; g++) {
            const struct kv_page *page = node_page(t, x, g);
            if (page->addr == NO_ADDR)
                continue;
            /* TREE-2 */
            ASSERT(child_with(t, x, g, NO_ADDR) == NO_NODE ||
                   child_with(t, x, g, page->addr) != NO_NODE);
        }
    }
    for (uint32_t y = n->first_child; y != NO_NODE; y = t->nodes[y].next)
        ASSERT(t->nodes[y].parent == x);
}

void tree_check(const struct prefix_tree *t) {
    struct counted seen = {0};
    for (uint32_t root = t->first_root; root != NO_NODE; root = t->nodes[root].next) {
        ASSERT(is_root(t, root));
        for (uint32_t x = root; x != NO_NODE; x = node_next(t, x, root))
            check_node(t, x, &seen);
    }
    ASSERT(seen.nodes == t->stats.nodes && seen.tokens == t->stats.tokens);
    ASSERT(seen.favour == t->stats.pinned_bytes);
    ASSERT(seen.ends == t->heaps[LEAVES].n && seen.ends <= t->max_entries);
    tree_heap_check(t);
    const struct kv_pool_stats pool = kv_pool_stats(t->cache->pool);
    ASSERT(pool.used_bytes + pool.charged_bytes <= pool.budget_bytes);
    ASSERT(pool.stored_bytes <= pool.used_bytes && t->stats.bytes <= pool.charged_bytes);
}

void tree_each_page(const struct prefix_tree *t, tree_page_fn *fn, void *user) {
    const struct kv_cache *c = t->cache;
    for (uint32_t x = 0; x < t->n_made; x++) {
        if (t->nodes[x].from == t->nodes[x].to) /* a root, or free */
            continue;
        for (uint32_t g = 0; g < c->n_groups; g++) {
            const struct kv_page *page = node_page(t, x, g);
            if (page->addr != NO_ADDR)
                fn(user, page->addr, c->layouts[g][page->layout].page_bytes);
        }
        if (t->nodes[x].state != NO_ADDR)
            fn(user, t->nodes[x].state, c->snapshot_bytes);
    }
}
