/* SPDX-License-Identifier: Apache-2.0 */
/* tree.c: the prefix tree's structure: finding, storing, splitting and merging nodes. tree.h has
 * the drawing and the invariants; tree_evict.c decides what goes.
 *
 * Children are found by (parent, first token): one bucket each step of a walk, then the run of
 * tokens is compared. Splitting a node keeps its number for the lower part, so that cursors and
 * children stay where they are, and makes a new one for the upper part. Once nothing ends at the
 * upper part and nothing else goes on from it, both merge again.
 *
 *     before   parent -- x [from ............. to)
 *     after    parent -- u [from .. m) -- x [m .. to)        u holds x's page, too
 */
#include <string.h>

#include <xxhash.h>

#include "cache/tree_internal.h"

/* ---- life ------------------------------------------------------------------------------------ */

static size_t reserve_bytes(size_t count, size_t size) {
    return round_up(count * size, 4096);
}

/* The smallest page of a path, all groups together: more nodes than the budget has room for pages
 * exist only where they part pages, or where only part of a window model's pages are kept. */
static uint64_t page_bytes_of_all(const struct kv_cache *c) {
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < c->n_groups; g++)
        bytes += c->layouts[g][LAYOUT_OWN].page_bytes;
    return bytes;
}

static bool is_reserved(const struct prefix_tree *t) {
    return t->nodes && t->pages && t->heaps[ENDS].nodes && t->heaps[INNER].nodes && t->buckets;
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
    t->free_node = NO_NODE;
    t->max_ends = UINT32_MAX;
    t->max_bytes = UINT64_MAX;
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
    *out = t;
    return KVASIR_OK;
}

void tree_destroy(struct prefix_tree *t) {
    if (!t)
        return;
    if (is_reserved(t))
        tree_forget(t, NULL, 0);
    ASSERT(t->stats.nodes == 0 && t->stats.tokens == 0);
    mem_unreserve(t->nodes, reserve_bytes(t->max_nodes, sizeof *t->nodes));
    mem_unreserve(t->pages, reserve_bytes(t->max_nodes, t->cache->n_groups * sizeof *t->pages));
    for (int i = 0; i < CANDIDATES; i++)
        mem_unreserve(t->heaps[i].nodes, reserve_bytes(t->max_nodes, sizeof *t->heaps[i].nodes));
    mem_unreserve(t->buckets, reserve_bytes(t->n_buckets, sizeof *t->buckets));
    mem_free(t->salts);
    mem_free(t);
}

struct tree_stats tree_stats(const struct prefix_tree *t) {
    struct tree_stats stats = t->stats;
    stats.ends = t->heaps[ENDS].n;
    return stats;
}

uint64_t tree_stored_bytes(const struct prefix_tree *t) {
    return kv_pool_stats(t->cache->pool).stored_bytes + t->stats.bytes;
}

uint64_t tree_path_bytes(const struct prefix_tree *t, uint32_t tokens) {
    return (pages_for(tokens) + 4) * t->node_bytes; /* a root, and ends inside pages */
}

/* ---- children -------------------------------------------------------------------------------- */

/* Buckets hold a node's number + 1: their memory begins as zeros. */
static uint32_t *bucket_of(const struct prefix_tree *t, uint32_t parent, int32_t token) {
    uint64_t h = ((uint64_t)parent << 32 | (uint32_t)token) * 0x9e3779b97f4a7c15u;
    return &t->buckets[(h >> 32 ^ h >> 57) & (t->n_buckets - 1)];
}

static void bucket_insert(struct prefix_tree *t, uint32_t x) {
    struct node *n = &t->nodes[x];
    uint32_t *b = bucket_of(t, n->parent, n->tokens[n->from]);
    n->hash_next = *b;
    *b = x + 1;
}

static void bucket_remove(struct prefix_tree *t, uint32_t x) {
    struct node *n = &t->nodes[x];
    uint32_t *b = bucket_of(t, n->parent, n->tokens[n->from]);
    while (*b != x + 1)
        b = &t->nodes[*b - 1].hash_next;
    *b = n->hash_next;
}

static uint32_t find_child(const struct prefix_tree *t, uint32_t parent, int32_t token) {
    for (uint32_t x = *bucket_of(t, parent, token); x; x = t->nodes[x - 1].hash_next) {
        const struct node *n = &t->nodes[x - 1];
        if (n->parent == parent && n->tokens[n->from] == token)
            return x - 1;
    }
    return NO_NODE;
}

static void link_child(struct prefix_tree *t, uint32_t parent, uint32_t x) {
    struct node *p = &t->nodes[parent], *n = &t->nodes[x];
    n->parent = parent;
    n->prev = NO_NODE;
    n->next = p->first_child;
    if (n->next != NO_NODE)
        t->nodes[n->next].prev = x;
    p->first_child = x;
    bucket_insert(t, x);
}

static void unlink_child(struct prefix_tree *t, uint32_t x) {
    struct node *n = &t->nodes[x];
    bucket_remove(t, x);
    if (n->prev != NO_NODE)
        t->nodes[n->prev].next = n->next;
    else
        t->nodes[n->parent].first_child = n->next;
    if (n->next != NO_NODE)
        t->nodes[n->next].prev = n->prev;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* An empty node, charged; NO_NODE where neither the budget nor eviction has room for it. */
static uint32_t node_make(struct prefix_tree *t) {
    if (!tree_make_room(t, t->node_bytes))
        return NO_NODE;
    uint32_t x = t->free_node;
    if (x != NO_NODE)
        t->free_node = t->nodes[x].next;
    else if (t->n_made < t->max_nodes)
        x = t->n_made++;
    else
        return NO_NODE;
    kvasir_status status = pool_charge(t->cache->pool, t->node_bytes, NULL);
    ASSERT(status == KVASIR_OK);
    (void)status;
    t->stats.nodes++;
    t->stats.bytes += t->node_bytes;
    t->nodes[x] = (struct node){.parent = NO_NODE,
                                .first_child = NO_NODE,
                                .prev = NO_NODE,
                                .next = NO_NODE,
                                .heap_at = NO_NODE,
                                .state = NO_ADDR,
                                .uses = 1,
                                .used = t->clock,
                                .ended = t->clock};
    for (uint32_t g = 0; g < t->cache->n_groups; g++)
        *node_page(t, x, g) = (struct kv_page){.addr = NO_ADDR};
    return x;
}

static void node_free(struct prefix_tree *t, uint32_t x) {
    t->nodes[x].next = t->free_node;
    t->free_node = x;
    t->stats.nodes--;
    t->stats.bytes -= t->node_bytes;
    t->nodes[x].from = t->nodes[x].to = 0;
    pool_discharge(t->cache->pool, t->node_bytes);
}

void hold_page(struct prefix_tree *t, uint32_t x, uint32_t group, struct kv_page page) {
    struct kv_page *mine = node_page(t, x, group);
    page_store(t->cache->pool, page.addr);
    if (mine->addr != NO_ADDR)
        page_unstore(t->cache->pool, mine->addr);
    *mine = page;
}

void page_exchange(struct prefix_tree *t, uint32_t x, uint32_t group, uint32_t from,
                   struct kv_page to) {
    for (uint32_t y = x, up; !is_root(t, y); y = up) {
        up = t->nodes[y].parent;
        if (node_page(t, y, group)->addr == from)
            hold_page(t, y, group, to);
        if (is_root(t, up) || t->nodes[up].number != t->nodes[y].number)
            break;
    }
}

static void release_contents(struct prefix_tree *t, uint32_t x) {
    for (uint32_t g = 0; g < t->cache->n_groups; g++)
        if (node_page(t, x, g)->addr != NO_ADDR)
            page_unstore(t->cache->pool, node_page(t, x, g)->addr);
    if (t->nodes[x].state != NO_ADDR)
        page_unstore(t->cache->pool, t->nodes[x].state);
}

/* ---- salts ----------------------------------------------------------------------------------- */

static int32_t salt_hash(const void *salt, size_t len) {
    return (int32_t)XXH3_64bits(salt, len);
}

static uint32_t find_root(const struct prefix_tree *t, const void *salt, size_t len) {
    const int32_t hash = salt_hash(salt, len);
    for (uint32_t x = *bucket_of(t, NO_NODE, hash); x; x = t->nodes[x - 1].hash_next) {
        const struct node *n = &t->nodes[x - 1];
        if (n->parent != NO_NODE || n->tokens[0] != hash)
            continue;
        const struct salt *s = &t->salts[n->number];
        if (s->len == len && memcmp(s->bytes, salt, len) == 0)
            return x - 1;
    }
    return NO_NODE;
}

static uint64_t salt_bytes(size_t len) {
    return sizeof(struct salt) + len + 1;
}

static uint32_t free_salt(struct prefix_tree *t) {
    uint32_t i = 0;
    while (i < t->cap_salts && t->salts[i].bytes)
        i++;
    if (i < t->cap_salts)
        return i;
    const uint32_t cap = t->cap_salts ? 2 * t->cap_salts : 8;
    struct salt *salts = mem_realloc(t->salts, cap, sizeof *salts);
    if (!salts)
        return NO_NODE;
    memset(salts + t->cap_salts, 0, (cap - t->cap_salts) * sizeof *salts);
    t->salts = salts;
    t->cap_salts = cap;
    return i;
}

static uint32_t root_make(struct prefix_tree *t, const void *salt, size_t len) {
    const uint32_t i = free_salt(t), x = i == NO_NODE ? NO_NODE : node_make(t);
    if (x == NO_NODE)
        return NO_NODE;
    char *bytes = tree_make_room(t, salt_bytes(len)) ? mem_alloc(len + 1) : NULL;
    if (!bytes || pool_charge(t->cache->pool, salt_bytes(len), NULL) != KVASIR_OK) {
        mem_free(bytes);
        node_free(t, x);
        return NO_NODE;
    }
    t->stats.bytes += salt_bytes(len);
    if (len)
        memcpy(bytes, salt, len);
    t->salts[i] = (struct salt){bytes, len, x};
    t->nodes[x].number = i;
    t->nodes[x].tokens[0] = salt_hash(salt, len);
    bucket_insert(t, x);
    return x;
}

static void root_remove(struct prefix_tree *t, uint32_t x) {
    struct salt *s = &t->salts[t->nodes[x].number];
    bucket_remove(t, x);
    pool_discharge(t->cache->pool, salt_bytes(s->len));
    t->stats.bytes -= salt_bytes(s->len);
    mem_free(s->bytes);
    *s = (struct salt){0};
    node_free(t, x);
}

/* ---- removing, splitting --------------------------------------------------------------------- */

static void root_drop_if_bare(struct prefix_tree *t, uint32_t x) {
    if (is_root(t, x) && t->nodes[x].first_child == NO_NODE && !t->nodes[x].locks)
        root_remove(t, x);
}

void page_lend_elsewhere(struct prefix_tree *t, uint32_t x, uint32_t group) {
    if (!in_parents_page(t, x) || node_page(t, x, group)->addr == NO_ADDR)
        return;
    uint32_t z = t->nodes[t->nodes[x].parent].first_child;
    while (z != NO_NODE && (z == x || node_page(t, z, group)->addr == NO_ADDR))
        z = t->nodes[z].next;
    if (z != NO_NODE)
        page_exchange(t, t->nodes[x].parent, group, node_page(t, x, group)->addr,
                      *node_page(t, z, group));
}

void node_remove(struct prefix_tree *t, uint32_t x) {
    const uint32_t parent = t->nodes[x].parent;
    ASSERT(t->nodes[x].first_child == NO_NODE && !t->nodes[x].locks && !is_root(t, x));
    heap_remove(t, x);
    for (uint32_t g = 0; g < t->cache->n_groups; g++)
        page_lend_elsewhere(t, x, g);
    unlink_child(t, x);
    release_contents(t, x);
    t->stats.tokens -= (uint64_t)(t->nodes[x].to - t->nodes[x].from);
    node_free(t, x);
    if (is_root(t, parent))
        root_drop_if_bare(t, parent);
    else
        node_settle(t, parent);
}

void node_lock(struct prefix_tree *t, uint32_t x) {
    if (t->nodes[x].locks++ == 0 && !is_root(t, x))
        heap_remove(t, x);
}

void node_unlock(struct prefix_tree *t, uint32_t x) {
    if (--t->nodes[x].locks > 0)
        return;
    if (is_root(t, x))
        root_drop_if_bare(t, x);
    else
        node_settle(t, x);
}

/* Splits a node after its first m tokens; returns the new upper part, or NO_NODE: no room. The node
 * is locked meanwhile, or making room might take it; its parent may merge with it then, so the
 * place to cut is a position. */
static uint32_t node_split(struct prefix_tree *t, uint32_t x, uint32_t m) {
    const uint8_t cut = (uint8_t)(t->nodes[x].from + m);
    ASSERT(cut > t->nodes[x].from && cut < t->nodes[x].to);
    node_lock(t, x);
    const uint32_t u = node_make(t);
    t->nodes[x].locks--;
    if (u == NO_NODE) {
        node_settle(t, x);
        return NO_NODE;
    }
    struct node *upper = &t->nodes[u], *lower = &t->nodes[x];
    const uint32_t parent = lower->parent;
    unlink_child(t, x);
    upper->number = lower->number;
    upper->from = lower->from;
    upper->to = lower->from = cut;
    upper->used = lower->used;
    upper->ended = lower->ended;
    upper->uses = lower->uses;
    memcpy(upper->tokens, lower->tokens, upper->to * sizeof *upper->tokens);
    for (uint32_t g = 0; g < t->cache->n_groups; g++)
        if (node_page(t, x, g)->addr != NO_ADDR)
            hold_page(t, u, g, *node_page(t, x, g));
    link_child(t, parent, u);
    link_child(t, u, x);
    heap_update(t, u);
    heap_update(t, x);
    return u;
}

/* Whether a node and its only child are one again: nothing ended at the node, nothing stands at it,
 * and both hold the same pages. */
static bool node_is_split_in_vain(const struct prefix_tree *t, uint32_t x) {
    const struct node *n = &t->nodes[x];
    const uint32_t child = n->first_child;
    if (n->locks || n->point || n->state != NO_ADDR || child == NO_NODE ||
        t->nodes[child].next != NO_NODE || !in_parents_page(t, child))
        return false;
    for (uint32_t g = 0; g < t->cache->n_groups; g++)
        if (node_page(t, x, g)->addr != node_page(t, child, g)->addr)
            return false;
    return true;
}

/* The way back of node_split: the lower part keeps its number, its cursors and its children. */
static void node_merge(struct prefix_tree *t, uint32_t u) {
    struct node *upper = &t->nodes[u];
    const uint32_t x = upper->first_child, parent = upper->parent;
    struct node *lower = &t->nodes[x];
    ASSERT(lower->from == upper->to && lower->number == upper->number);
    heap_remove(t, u);
    unlink_child(t, x);
    unlink_child(t, u);
    memcpy(lower->tokens + upper->from, upper->tokens + upper->from,
           (size_t)(upper->to - upper->from) * sizeof *upper->tokens);
    lower->from = upper->from;
    lower->used = upper->used > lower->used ? upper->used : lower->used;
    lower->ended = upper->ended > lower->ended ? upper->ended : lower->ended;
    lower->uses = upper->uses > lower->uses ? upper->uses : lower->uses;
    lower->left_behind = upper->left_behind;
    link_child(t, parent, x);
    release_contents(t, u);
    node_free(t, u);
    heap_update(t, x);
}

void node_settle(struct prefix_tree *t, uint32_t x) {
    ASSERT(!is_root(t, x));
    if (node_is_split_in_vain(t, x))
        node_merge(t, x);
    else
        heap_update(t, x);
}

/* ---- walking --------------------------------------------------------------------------------- */

static uint32_t common_run(const struct node *n, const int32_t *tokens, uint32_t most) {
    uint32_t run = n->to - n->from, m = 0;
    run = run < most ? run : most;
    while (m < run && n->tokens[n->from + m] == tokens[m])
        m++;
    return m;
}

/* How far a prompt's tokens go along the tree, and the longest length that serves. */
struct walk {
    uint32_t node, matched; /* where it ended: so many tokens of that node agree */
    uint32_t common;        /* tokens that agree in all */
    uint32_t best, length;  /* the node that `length` lies in, or NO_NODE */
};

/* Newest page of a group that is not there, while walking; -1: none. */
struct gaps {
    int64_t before[CACHE_GROUPS_MAX], now[CACHE_GROUPS_MAX]; /* of pages before this one; with it */
    uint32_t number;
};

static void gaps_pass(const struct prefix_tree *t, struct gaps *gaps, uint32_t x) {
    if (t->nodes[x].number != gaps->number) {
        memcpy(gaps->before, gaps->now, sizeof gaps->before);
        gaps->number = t->nodes[x].number;
    }
    for (uint32_t g = 0; g < t->cache->n_groups; g++)
        gaps->now[g] =
            node_page(t, x, g)->addr == NO_ADDR ? (int64_t)gaps->number : gaps->before[g];
}

/* Whether a sequence may begin with `length` tokens, the last of them in node x: all is there that
 * its next query sees, and a page that it will write on with is of its own format. */
static bool serves(const struct prefix_tree *t, const struct gaps *gaps, uint32_t x,
                   uint32_t length) {
    const struct kv_cache *c = t->cache;
    if (c->record_bytes && (length < node_end(t, x) || t->nodes[x].state == NO_ADDR))
        return false;
    for (uint32_t g = 0; g < c->n_groups; g++) {
        if (gaps->now[g] >= (int64_t)first_held(&c->groups[g], length))
            return false;
        if (length % TILE_TOKENS &&
            node_page(t, x, g)->layout != layout_of(&c->rule, g, t->nodes[x].number))
            return false;
    }
    return true;
}

/* Tokens up to `usable` may be used, all n count as common. */
static struct walk walk(const struct prefix_tree *t, uint32_t root, const int32_t *tokens,
                        uint32_t n, uint32_t usable) {
    struct walk w = {.node = root, .best = NO_NODE};
    struct gaps gaps = {.number = UINT32_MAX};
    memset(gaps.now, -1, sizeof gaps.now);
    while (w.common < n) {
        const uint32_t x = find_child(t, w.node, tokens[w.common]);
        if (x == NO_NODE)
            break;
        const struct node *node = &t->nodes[x];
        const uint32_t m = common_run(node, tokens + w.common, n - w.common);
        uint32_t use = w.common < usable ? usable - w.common : 0;
        use = use < m ? use : m;
        gaps_pass(t, &gaps, x);
        if (use && serves(t, &gaps, x, w.common + use)) {
            w.best = x;
            w.length = w.common + use;
        }
        w.node = x;
        w.matched = m;
        w.common += m;
        if (m < (uint32_t)(node->to - node->from))
            break;
    }
    return w;
}

static kvasir_hit hit_kind(const struct prefix_tree *t, const struct walk *w, uint32_t n) {
    if (w->length == 0)
        return KVASIR_HIT_MISS;
    const struct node *x = &t->nodes[w->node];
    const bool ended = w->matched == (uint32_t)(x->to - x->from) && x->point;
    if (w->common == n)
        return ended ? KVASIR_HIT_EXACT : KVASIR_HIT_SUPERSEQUENCE;
    return ended ? KVASIR_HIT_PREFIX : KVASIR_HIT_COMMON_PREFIX;
}

struct tree_hit tree_look(const struct prefix_tree *t, const void *salt, size_t salt_len,
                          const int32_t *tokens, uint32_t n) {
    const uint32_t root = find_root(t, salt, salt_len);
    if (root == NO_NODE || n == 0)
        return (struct tree_hit){.kind = KVASIR_HIT_MISS};
    const struct walk w = walk(t, root, tokens, n, n - 1);
    return (struct tree_hit){w.length, w.common, hit_kind(t, &w, n)};
}

/* ---- cursors --------------------------------------------------------------------------------- */

static void cursor_move(struct prefix_tree *t, struct tree_cursor *at, uint32_t x) {
    if (at->node == x)
        return;
    node_lock(t, x);
    if (at->node != TREE_NOWHERE)
        node_unlock(t, at->node);
    at->node = x;
}

struct tree_cursor tree_cursor_copy(struct prefix_tree *t, struct tree_cursor at) {
    if (at.node != TREE_NOWHERE)
        node_lock(t, at.node);
    return at;
}

void tree_close(struct prefix_tree *t, struct tree_cursor *at) {
    if (at->node != TREE_NOWHERE)
        node_unlock(t, at->node);
    at->node = TREE_NOWHERE;
    keep_limits(t); /* it may be an end now, and the sequence's pages are the tree's alone */
}

/* ---- hits ------------------------------------------------------------------------------------ */

/* Recency of a hit: of the path for leaves to come; of what its next query sees and its state. */
static void touch(struct prefix_tree *t, uint32_t x, uint32_t length) {
    uint32_t seen_from = UINT32_MAX;
    for (uint32_t g = 0; g < t->cache->n_groups; g++) {
        const uint32_t first = first_held(&t->cache->groups[g], length);
        if (t->cache->groups[g].span != UINT32_MAX && first < seen_from)
            seen_from = first;
    }
    for (uint32_t y = x; !is_root(t, y); y = t->nodes[y].parent)
        note_use(t, y, y == x || t->nodes[y].number >= seen_from);
}

/* Fills the new sequence's tables along the path that ends in node x. */
static void put_path(struct prefix_tree *t, uint32_t x, uint32_t length, struct kv_seq *s) {
    const struct kv_cache *c = t->cache;
    uint32_t below = UINT32_MAX; /* page of the node before: a page's deepest node serves */
    for (uint32_t y = x; !is_root(t, y); y = t->nodes[y].parent) {
        const uint32_t number = t->nodes[y].number;
        t->nodes[y].left_behind = false; /* somebody goes on from it */
        for (uint32_t g = 0; g < c->n_groups && number != below; g++) {
            const struct kv_group *group = &c->groups[g];
            if (number >= group->kept_pages && number < first_held(group, length))
                continue;
            page_ref(c->pool, node_page(t, y, g)->addr);
            seq_put_page(s, g, number, *node_page(t, y, g));
        }
        below = number;
    }
    if (c->record_bytes) {
        page_ref(c->pool, t->nodes[x].state);
        seq_put_state(s, t->nodes[x].state);
    }
}

kvasir_status tree_resume(struct prefix_tree *t, const void *salt, size_t salt_len,
                          const int32_t *tokens, uint32_t n, struct kv_seq *s,
                          struct tree_cursor *at, struct tree_hit *hit, kvasir_error *err) {
    /* for node_split, before looking: later it might take what is found */
    (void)tree_make_room(t, t->node_bytes);
    uint32_t root = find_root(t, salt, salt_len);
    *at = (struct tree_cursor){TREE_NOWHERE};
    *hit = (struct tree_hit){.kind = KVASIR_HIT_MISS};
    if (root == NO_NODE)
        root = root_make(t, salt, salt_len);
    if (root == NO_NODE || n == 0)
        return KVASIR_OK; /* it will not be stored */
    cursor_move(t, at, root);
    const struct walk w = walk(t, root, tokens, n, n - 1);
    *hit = (struct tree_hit){w.length, w.common, hit_kind(t, &w, n)};
    if (!w.length)
        return KVASIR_OK;
    uint32_t x = w.best;
    if (node_end(t, x) > w.length) {
        const uint32_t m = w.length - (t->nodes[x].number * TILE_TOKENS + t->nodes[x].from);
        x = node_split(t, x, m);
    }
    /* not even room for a node: a miss */
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
    /* on from the cursor: what was found behind it may have gone since */
    uint32_t common = node_end(t, x), matched = (uint32_t)(t->nodes[x].to - t->nodes[x].from);
    for (uint32_t child; common < n && matched == (uint32_t)(t->nodes[x].to - t->nodes[x].from) &&
                         (child = find_child(t, x, tokens[common])) != NO_NODE;) {
        x = child;
        matched = common_run(&t->nodes[x], tokens + common, n - common);
        common += matched;
    }
    if (common > 0 && common < n)
        leave_behind(t, x, matched);
    touch(t, at->node, node_end(t, at->node));
}

/* ---- storing --------------------------------------------------------------------------------- */

/* A child of x in its page that holds this page of the group, or any where addr is NO_ADDR. */
static uint32_t child_with(const struct prefix_tree *t, uint32_t x, uint32_t group, uint32_t addr) {
    uint32_t y = t->nodes[x].to < TILE_TOKENS ? t->nodes[x].first_child : NO_NODE;
    while (y != NO_NODE && (node_page(t, y, group)->addr == NO_ADDR ||
                            (addr != NO_ADDR && node_page(t, y, group)->addr != addr)))
        y = t->nodes[y].next;
    return y;
}

/* T2: what is above a node in its page takes the node's, where no other child lends it one. */
static void lend(struct prefix_tree *t, uint32_t x, uint32_t group) {
    const uint32_t parent = t->nodes[x].parent;
    if (!in_parents_page(t, x))
        return;
    const uint32_t above = node_page(t, parent, group)->addr;
    if (above != NO_ADDR && child_with(t, parent, group, above) == NO_NODE)
        page_exchange(t, parent, group, above, *node_page(t, x, group));
}

/* Gives a node the page that it lacks: a child's, if one has it, else the sequence's. */
static void node_restore(struct prefix_tree *t, uint32_t x, uint32_t group, struct kv_page mine) {
    const uint32_t child = child_with(t, x, group, NO_ADDR);
    hold_page(t, x, group, child == NO_NODE ? mine : *node_page(t, child, group));
    lend(t, x, group);
}

/* An existing node that a sequence has computed, too: what it lacks is given, and a full page of
 * the sequence's own is exchanged for it. */
static void node_meet(struct prefix_tree *t, uint32_t x, struct kv_seq *s) {
    const uint32_t number = t->nodes[x].number;
    for (uint32_t g = 0; g < t->cache->n_groups; g++) {
        struct kv_page mine, *held = node_page(t, x, g);
        if (!seq_get_page(s, g, number, &mine) || held->addr == mine.addr)
            continue;
        if (held->addr == NO_ADDR) {
            node_restore(t, x, g, mine);
        } else if (t->nodes[x].to == TILE_TOKENS && held->layout == mine.layout) {
            page_ref(t->cache->pool, held->addr);
            page_unref(t->cache->pool, mine.addr);
            seq_put_page(s, g, number, *held);
        }
    }
}

/* A new child for tokens [pos, end) of the sequence, inside one page. */
static uint32_t node_add(struct prefix_tree *t, uint32_t parent, struct kv_seq *s, uint32_t pos,
                         uint32_t end) {
    const uint32_t x = node_make(t); /* the parent is locked: the cursor stands there */
    if (x == NO_NODE)
        return NO_NODE;
    struct node *n = &t->nodes[x];
    n->number = pos / TILE_TOKENS;
    n->from = (uint8_t)(pos % TILE_TOKENS);
    n->to = (uint8_t)(end - n->number * TILE_TOKENS);
    memcpy(n->tokens + n->from, seq_tokens(s) + pos, (end - pos) * sizeof *n->tokens);
    t->stats.tokens += end - pos;
    link_child(t, parent, x);
    for (uint32_t g = 0; g < t->cache->n_groups; g++) {
        struct kv_page page;
        if (seq_get_page(s, g, n->number, &page)) {
            hold_page(t, x, g, page);
            lend(t, x, g);
        }
    }
    return x;
}

/* The child of `at` that continues with the sequence's tokens at pos, parted where it goes
 * elsewhere or beyond `end`; a new one where there is none. NO_NODE: no room. */
static uint32_t step_down(struct prefix_tree *t, uint32_t at, struct kv_seq *s, uint32_t pos,
                          uint32_t end) {
    const int32_t *tokens = seq_tokens(s);
    const uint32_t x = find_child(t, at, tokens[pos]);
    if (x == NO_NODE) {
        const uint32_t page_end = (pos / TILE_TOKENS + 1) * TILE_TOKENS;
        return node_add(t, at, s, pos, end < page_end ? end : page_end);
    }
    const struct node *n = &t->nodes[x];
    const uint32_t m = common_run(n, tokens + pos, end - pos);
    const uint32_t met = m < (uint32_t)(n->to - n->from) ? node_split(t, x, m) : x;
    if (met != NO_NODE)
        node_meet(t, met, s);
    return met;
}

/* Stores what the sequence has computed of its first `end` tokens. False: no room. */
static bool store_path(struct prefix_tree *t, struct tree_cursor *at, struct kv_seq *s,
                       uint32_t end) {
    uint32_t pos = node_end(t, at->node);
    while (pos < end) {
        const uint32_t x = step_down(t, at->node, s, pos, end);
        if (x == NO_NODE)
            return false;
        t->nodes[x].used = t->nodes[x].ended = t->clock;
        t->nodes[x].left_behind = false;
        cursor_move(t, at, x);
        pos = node_end(t, x);
    }
    return true;
}

/* Says that a stored sequence ends at node x, with its state. */
static void store_point(struct prefix_tree *t, uint32_t x, struct kv_seq *s) {
    struct node *n = &t->nodes[x];
    uint32_t state;
    n->point = true;
    if (n->state == NO_ADDR && t->cache->record_bytes && seq_get_state(s, &state)) {
        page_store(t->cache->pool, state);
        n->state = state;
        n->ended = t->clock;
    }
}

void tree_store(struct prefix_tree *t, struct tree_cursor *at, struct kv_seq *s, bool point) {
    const uint32_t length = seq_length(s),
                   end = point ? length : length / TILE_TOKENS * TILE_TOKENS;
    const bool can = at->node != TREE_NOWHERE && seq_is_plain(s);
    if (can && !store_path(t, at, s, end))
        t->stats.rejections++;
    else if (can && point && node_end(t, at->node) == length && !is_root(t, at->node))
        store_point(t, at->node, s);
    keep_limits(t);
}

/* ---- checking -------------------------------------------------------------------------------- */

struct counted {
    uint64_t nodes, tokens, ends;
};

static void check_node(const struct prefix_tree *t, uint32_t x, struct counted *seen) {
    const struct node *n = &t->nodes[x];
    seen->nodes++;
    seen->tokens += (uint64_t)(n->to - n->from);
    seen->ends += n->first_child == NO_NODE && !n->locks;
    if (!is_root(t, x)) {
        const uint32_t before = node_end(t, n->parent);
        ASSERT(n->to > n->from && n->to <= TILE_TOKENS);
        ASSERT(n->number * TILE_TOKENS + n->from == before);
        ASSERT(find_child(t, n->parent, n->tokens[n->from]) == x);
        for (uint32_t g = 0; g < t->cache->n_groups; g++) {
            const struct kv_page *page = node_page(t, x, g);
            if (page->addr == NO_ADDR)
                continue;
            /* T2 */
            ASSERT(child_with(t, x, g, NO_ADDR) == NO_NODE ||
                   child_with(t, x, g, page->addr) != NO_NODE);
        }
    }
    for (uint32_t y = n->first_child; y != NO_NODE; y = t->nodes[y].next)
        ASSERT(t->nodes[y].parent == x);
}

void tree_check(const struct prefix_tree *t) {
    struct counted seen = {0};
    for (uint32_t i = 0; i < t->cap_salts; i++)
        if (t->salts[i].bytes) {
            ASSERT(is_root(t, t->salts[i].root));
            for (uint32_t x = t->salts[i].root; x != NO_NODE; x = node_next(t, x, t->salts[i].root))
                check_node(t, x, &seen);
        }
    ASSERT(seen.nodes == t->stats.nodes && seen.tokens == t->stats.tokens);
    ASSERT(seen.ends == t->heaps[ENDS].n && seen.ends <= t->max_ends);
    heap_check(t);
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
            fn(user, t->nodes[x].state, c->record_bytes);
    }
}
