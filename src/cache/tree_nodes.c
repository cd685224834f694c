/* SPDX-License-Identifier: Apache-2.0 */
/* tree_nodes.c: the nodes of the prefix tree: children, pages, roots, removing, splitting, merging.
 * tree.h has the drawing and the invariants. Nothing here makes room.
 *
 * Children are found by (parent, first token), so each step of a walk looks into one bucket. When a
 * node is split, the lower part keeps its number, so that cursors and children need no change; the
 * upper part is a new node. Both merge again when no stored sequence ends at the upper part and it
 * has no other child.
 *
 *     before   parent -- x [from ............. to)
 *     after    parent -- u [from .. m) -- x [m .. to)        u references x's pages, too
 */
#include <string.h>

#include <xxhash.h>

#include "cache/tree_internal.h"

/* ---- children -------------------------------------------------------------------------------- */

/* Buckets hold node numbers + 1, so memory of zeros is an empty table. */
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

uint32_t node_find_child(const struct prefix_tree *t, uint32_t parent, int32_t token) {
    for (uint32_t x = *bucket_of(t, parent, token); x; x = t->nodes[x - 1].hash_next) {
        const struct node *n = &t->nodes[x - 1];
        if (n->parent == parent && n->tokens[n->from] == token)
            return x - 1;
    }
    return NO_NODE;
}

uint32_t node_find_page(const struct prefix_tree *t, uint32_t at,
                        const int32_t tokens[TILE_TOKENS]) {
    for (uint32_t i = 0; i < TILE_TOKENS;) {
        at = node_find_child(t, at, tokens[i]);
        if (at == NO_NODE || has_expired(t, at))
            return NO_NODE;
        const struct node *n = &t->nodes[at];
        ASSERT(n->from == i);
        if (memcmp(n->tokens + i, tokens + i, (n->to - i) * sizeof *tokens) != 0)
            return NO_NODE;
        i = n->to;
    }
    return at;
}

void node_link(struct prefix_tree *t, uint32_t parent, uint32_t x) {
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

/* Memory for the next NODES_AHEAD nodes after these, and at the first one for all buckets. */
static void nodes_ahead(struct prefix_tree *t) {
    enum { NODES_AHEAD = 128 };
    struct ahead *a = pool_ahead(t->cache->pool);
    const size_t first = t->n_made ? t->n_made + NODES_AHEAD : 0,
                 last = t->n_made + 2 * NODES_AHEAD;
    if (!a || t->n_made % NODES_AHEAD || last > t->max_nodes)
        return;
    ahead_table(a, &t->nodes[first], (last - first) * sizeof *t->nodes);
    ahead_table(a, node_page(t, (uint32_t)first, 0),
                (last - first) * t->cache->n_groups * sizeof *t->pages);
    for (int i = 0; i < CANDIDATES; i++)
        ahead_table(a, &t->heaps[i].nodes[first], (last - first) * sizeof *t->heaps[i].nodes);
    if (first == 0)
        ahead_table(a, t->buckets, t->n_buckets * sizeof *t->buckets);
}

uint32_t node_make(struct prefix_tree *t) {
    uint32_t x = t->free_node;
    if (x != NO_NODE)
        t->free_node = t->nodes[x].next;
    else if (t->n_made < t->max_nodes) {
        nodes_ahead(t);
        x = t->n_made++;
    } else
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
                                .resumed = t->clock};
    for (uint32_t g = 0; g < t->cache->n_groups; g++)
        *node_page(t, x, g) = (struct kv_page){.addr = NO_ADDR};
    return x;
}

static void node_free(struct prefix_tree *t, uint32_t x) {
    node_set_favour(t, x, 0);
    t->nodes[x].next = t->free_node;
    t->free_node = x;
    t->stats.nodes--;
    t->stats.bytes -= t->node_bytes;
    t->nodes[x].from = t->nodes[x].to = 0;
    pool_discharge(t->cache->pool, t->node_bytes);
}

void node_hold_page(struct prefix_tree *t, uint32_t x, uint32_t group, struct kv_page page) {
    struct kv_page *mine = node_page(t, x, group);
    page_store(t->cache->pool, page.addr);
    if (mine->addr != NO_ADDR)
        page_unstore(t->cache->pool, mine->addr);
    *mine = page;
}

/* Whether what lives until `longer` has twice the time left of what lives until `expires`. */
static bool lives_twice(const struct prefix_tree *t, uint64_t expires, uint64_t longer) {
    const uint64_t left = expires > t->now ? expires - t->now : 0;
    return longer > expires && longer - t->now >= 2 * left;
}

void node_keep(struct prefix_tree *t, uint32_t x, uint64_t expires) {
    uint32_t again = NO_NODE; /* the first that is written again, and all after it */
    t->next_expiry = expires < t->next_expiry ? expires : t->next_expiry;
    t->expiry_seen = expires < t->expiry_seen ? expires : t->expiry_seen;
    for (uint32_t y = x; !is_root(t, y) && t->nodes[y].expires < expires; y = t->nodes[y].parent)
        if (t->nodes[y].offered && lives_twice(t, t->nodes[y].offered_until, expires))
            again = y;
    for (; !is_root(t, x) && t->nodes[x].expires < expires; x = t->nodes[x].parent) {
        struct node *n = &t->nodes[x];
        if (again != NO_NODE) {
            n->outlives |= n->offered != 0;
            n->offered = n->refused = 0;
        }
        again = again == x ? NO_NODE : again;
        n->expires = (uint32_t)expires;
    }
}

uint64_t node_held_bytes(const struct prefix_tree *t, uint32_t x) {
    const struct kv_cache *c = t->cache;
    uint64_t bytes = t->nodes[x].state == NO_ADDR ? 0 : c->snapshot_bytes;
    for (uint32_t g = 0; g < c->n_groups; g++) {
        const struct kv_page *page = node_page(t, x, g);
        bytes += page->addr == NO_ADDR ? 0 : c->layouts[g][page->layout].page_bytes;
    }
    return bytes;
}

void node_set_favour(struct prefix_tree *t, uint32_t x, uint64_t bytes) {
    struct node *n = &t->nodes[x];
    ASSERT(t->stats.pinned_bytes >= node_favour(t, x));
    t->stats.pinned_bytes -= node_favour(t, x);
    n->favour = (uint32_t)((bytes + FAVOUR_UNIT - 1) / FAVOUR_UNIT);
    n->favoured_by = bytes ? n->favoured_by : 0;
    t->stats.pinned_bytes += node_favour(t, x);
}

void node_replace_page(struct prefix_tree *t, uint32_t x, uint32_t group, uint32_t from,
                       struct kv_page to) {
    for (uint32_t y = x, up; !is_root(t, y); y = up) {
        up = t->nodes[y].parent;
        if (node_page(t, y, group)->addr == from)
            node_hold_page(t, y, group, to);
        if (is_root(t, up) || t->nodes[up].number != t->nodes[y].number)
            break;
    }
}

void node_descend(struct prefix_tree *t, uint32_t x, uint32_t group, struct kv_page to) {
    const uint32_t number = t->nodes[x].number;
    node_replace_page(t, x, group, node_page(t, x, group)->addr, to);
    for (; !is_root(t, x) && t->nodes[x].number == number; x = t->nodes[x].parent)
        t->nodes[x].descended = true;
}

static void release_contents(struct prefix_tree *t, uint32_t x) {
    for (uint32_t g = 0; g < t->cache->n_groups; g++)
        if (node_page(t, x, g)->addr != NO_ADDR)
            page_unstore(t->cache->pool, node_page(t, x, g)->addr);
    if (t->nodes[x].state != NO_ADDR)
        page_unstore(t->cache->pool, t->nodes[x].state);
}

/* ---- roots ----------------------------------------------------------------------------------- */

static int32_t salt_hash(const void *salt, size_t len) {
    return (int32_t)XXH3_64bits(salt, len);
}

uint32_t tree_find_root(const struct prefix_tree *t, const void *salt, size_t len) {
    const int32_t hash = salt_hash(salt, len);
    for (uint32_t x = *bucket_of(t, NO_NODE, hash); x; x = t->nodes[x - 1].hash_next) {
        const struct node *n = &t->nodes[x - 1];
        if (n->parent != NO_NODE || n->salt_hash != hash)
            continue;
        if (n->salt->len == len && (len == 0 || memcmp(n->salt->bytes, salt, len) == 0))
            return x - 1;
    }
    return NO_NODE;
}

uint64_t tree_salt_bytes(size_t len) {
    return sizeof(struct salt) + len;
}

uint32_t node_make_root(struct prefix_tree *t, const void *salt, size_t len) {
    struct salt *copy = mem_alloc(sizeof *copy + len);
    const uint32_t x = copy ? node_make(t) : NO_NODE;
    if (x == NO_NODE || pool_charge(t->cache->pool, tree_salt_bytes(len), NULL) != KVASIR_OK) {
        mem_free(copy);
        if (x != NO_NODE)
            node_free(t, x);
        return NO_NODE;
    }
    t->stats.bytes += tree_salt_bytes(len);
    copy->len = len;
    if (len)
        memcpy(copy->bytes, salt, len);
    struct node *n = &t->nodes[x];
    n->salt = copy;
    n->salt_hash = salt_hash(salt, len);
    n->next = t->first_root;
    if (n->next != NO_NODE)
        t->nodes[n->next].prev = x;
    t->first_root = x;
    bucket_insert(t, x);
    node_set_chain(t, x);
    return x;
}

static void remove_root(struct prefix_tree *t, uint32_t x) {
    struct node *n = &t->nodes[x];
    const uint64_t bytes = tree_salt_bytes(n->salt->len);
    bucket_remove(t, x);
    if (n->prev != NO_NODE)
        t->nodes[n->prev].next = n->next;
    else
        t->first_root = n->next;
    if (n->next != NO_NODE)
        t->nodes[n->next].prev = n->prev;
    pool_discharge(t->cache->pool, bytes);
    t->stats.bytes -= bytes;
    mem_free(n->salt);
    node_free(t, x);
}

/* ---- removing, splitting --------------------------------------------------------------------- */

static void drop_bare_root(struct prefix_tree *t, uint32_t x) {
    if (is_root(t, x) && t->nodes[x].first_child == NO_NODE && !t->nodes[x].pins)
        remove_root(t, x);
}

void node_unshare_page_upwards(struct prefix_tree *t, uint32_t x, uint32_t group) {
    if (!in_parents_page(t, x) || node_page(t, x, group)->addr == NO_ADDR)
        return;
    uint32_t z = t->nodes[t->nodes[x].parent].first_child;
    while (z != NO_NODE && (z == x || node_page(t, z, group)->addr == NO_ADDR))
        z = t->nodes[z].next;
    if (z != NO_NODE)
        node_replace_page(t, t->nodes[x].parent, group, node_page(t, x, group)->addr,
                          *node_page(t, z, group));
}

void node_remove(struct prefix_tree *t, uint32_t x) {
    const uint32_t parent = t->nodes[x].parent;
    ASSERT(t->nodes[x].first_child == NO_NODE && !t->nodes[x].pins && !is_root(t, x));
    tree_heap_remove(t, x);
    for (uint32_t g = 0; g < t->cache->n_groups; g++)
        node_unshare_page_upwards(t, x, g);
    unlink_child(t, x);
    release_contents(t, x);
    t->stats.tokens -= (uint64_t)(t->nodes[x].to - t->nodes[x].from);
    node_free(t, x);
    if (is_root(t, parent))
        drop_bare_root(t, parent);
    else
        node_settle(t, parent);
}

void node_pin(struct prefix_tree *t, uint32_t x) {
    if (t->nodes[x].pins++ == 0 && !is_root(t, x))
        tree_heap_remove(t, x);
}

void node_unpin(struct prefix_tree *t, uint32_t x) {
    if (--t->nodes[x].pins > 0)
        return;
    if (is_root(t, x))
        drop_bare_root(t, x);
    else
        node_settle(t, x);
}

void node_split(struct prefix_tree *t, uint32_t x, uint32_t u, uint8_t cut) {
    ASSERT(cut > t->nodes[x].from && cut < t->nodes[x].to);
    ASSERT(t->nodes[u].from == t->nodes[u].to);
    struct node *upper = &t->nodes[u], *lower = &t->nodes[x];
    const uint32_t parent = lower->parent;
    unlink_child(t, x);
    upper->number = lower->number;
    upper->from = lower->from;
    upper->to = lower->from = cut;
    upper->used = lower->used;
    upper->resumed = lower->resumed;
    upper->uses = lower->uses;
    upper->expires = lower->expires;
    upper->descended = lower->descended;
    memcpy(upper->tokens, lower->tokens, upper->to * sizeof *upper->tokens);
    for (uint32_t g = 0; g < t->cache->n_groups; g++)
        if (node_page(t, x, g)->addr != NO_ADDR)
            node_hold_page(t, u, g, *node_page(t, x, g));
    node_link(t, parent, u);
    node_link(t, u, x);
    tree_heap_update(t, u);
    tree_heap_update(t, x);
}

/* Whether a node can merge with its only child: no stored sequence ends at it, no cursor pins
 * it, and both reference the same pages. */
static bool node_can_merge(const struct prefix_tree *t, uint32_t x) {
    const struct node *n = &t->nodes[x];
    const uint32_t child = n->first_child;
    if (n->pins || n->hit_point || n->state != NO_ADDR || child == NO_NODE ||
        t->nodes[child].next != NO_NODE || !in_parents_page(t, child) ||
        t->nodes[child].expires != n->expires)
        return false;
    for (uint32_t g = 0; g < t->cache->n_groups; g++)
        if (node_page(t, x, g)->addr != node_page(t, child, g)->addr)
            return false;
    return true;
}

/* The reverse of node_split. The lower part keeps its number, its cursors and its children. */
static void node_merge(struct prefix_tree *t, uint32_t u) {
    struct node *upper = &t->nodes[u];
    const uint32_t x = upper->first_child, parent = upper->parent;
    struct node *lower = &t->nodes[x];
    ASSERT(lower->from == upper->to && lower->number == upper->number);
    tree_heap_remove(t, u);
    unlink_child(t, x);
    unlink_child(t, u);
    memcpy(lower->tokens + upper->from, upper->tokens + upper->from,
           (size_t)(upper->to - upper->from) * sizeof *upper->tokens);
    lower->from = upper->from;
    lower->used = upper->used > lower->used ? upper->used : lower->used;
    lower->resumed = upper->resumed > lower->resumed ? upper->resumed : lower->resumed;
    lower->uses = upper->uses > lower->uses ? upper->uses : lower->uses;
    lower->abandoned = upper->abandoned;
    lower->favoured_by |= upper->favoured_by;
    lower->descended |= upper->descended;
    node_set_favour(t, x, node_favour(t, x) + node_favour(t, u));
    node_set_favour(t, u, 0);
    node_link(t, parent, x);
    release_contents(t, u);
    node_free(t, u);
    tree_heap_update(t, x);
}

void node_settle(struct prefix_tree *t, uint32_t x) {
    ASSERT(!is_root(t, x));
    if (node_can_merge(t, x))
        node_merge(t, x);
    else
        tree_heap_update(t, x);
}
