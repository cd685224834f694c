/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix tree, tried at random without a model: sequences over a small alphabet of tokens. In
 * place of K and V their pages hold a hash of all tokens up to a position, so that every byte that
 * a later query would see can be checked, wherever it came from.
 *
 * A program picks layer groups (full, windows, rotation with kept pages, a recurrent state), a
 * budget of some pages and perhaps limits of what is stored, and runs random requests against the
 * tree: resume, grow with stores at random places, fork, finish or drop. After each edit every live
 * sequence is checked position by position, tree_check checks the tree, and support/budget.c counts
 * pages and references a second time. At the end nothing is left.
 *
 * Every look is compared with two oracles. A plain list of the stored sequences says how many
 * tokens are in common and which hit points must be found; after an edit that had room, it holds
 * all that was ever stored, otherwise it learns what was evicted. A walk along the lists of
 * children, without hashes, says which is the longest hit that the pages and states allow.
 *
 * One program in eight stores prefixes at fewer bits: live pages have 16, stored ones 4. There the
 * nibbles of the hash are values of K and V that 4 bits hold exactly, so that the same check shows
 * whether a requantized page is still that of its prefix.
 *
 *     sim_tree [--programs=N] [--seed=N]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/tree_internal.h"
#include "engine/engine.h"

#include "last_words.h"
#include "random_programs.h"

enum { LIVE_MAX = 6, LENGTH_MAX = 700, EDITS = 150, GROUPS_MAX = 3, HEAD_DIM = 32, NIBBLES = 8 };

struct live {
    struct kv_seq *seq;
    struct tree_cursor at;
    int32_t tokens[LENGTH_MAX]; /* all that it will hold */
    uint32_t length;
    const char *salt;
    uint32_t stored; /* of them, those up to its cursor */
};

struct world {
    uint64_t seed;
    struct backend *backend;
    struct kv_cache *cache;
    struct prefix_tree *tree;
    struct kv_shape shapes[GROUPS_MAX];
    uint32_t n_groups;
    struct kv_cache_options options;
    struct live live[LIVE_MAX];
    uint32_t n_live;
    uint32_t max_entries; /* 0: no limit */
    uint64_t max_bytes;
    bool requantizes; /* stored pages have fewer bits than live ones */
    uint32_t min_tokens;
    uint32_t n_records;
    uint64_t hits, hit_tokens, requantized, served; /* the last two: pages */
};

#define CHECK(w, what, x)                                                                          \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            printf("FAILED: %s: %s\n  run again with --programs=1 --seed=%llu\n", what, #x,        \
                   (unsigned long long)(w)->seed);                                                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* ---- what must be found ---------------------------------------------------------------------- */

enum { RECORDS_MAX = EDITS + 60, ENDED = 1, USABLE = 2, ENOUGH_ROOM = 1 << 16 };

/* A sequence that was stored, as long as it is still in the tree. The union of all records is what
 * the tree holds. */
static struct record {
    const char *salt;
    uint32_t n, before; /* tokens; how many there were before the last edit that removed some */
    int32_t tokens[LENGTH_MAX];
    uint8_t ends[LENGTH_MAX + 1]; /* ENDED: a hit point; USABLE: a hit may end there */
} records[RECORDS_MAX];

static uint32_t common_of(const int32_t *a, uint32_t n_a, const int32_t *b, uint32_t n_b) {
    uint32_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n])
        n++;
    return n;
}

static bool same_salt(const char *a, const char *b) {
    return strcmp(a, b) == 0;
}

static void record_add(struct world *w, const struct live *l, uint32_t n, uint8_t end) {
    struct record *r = records;
    if (n == 0)
        return;
    for (; r < records + w->n_records; r++) {
        const uint32_t same =
            same_salt(r->salt, l->salt) ? common_of(r->tokens, r->n, l->tokens, n) : 0;
        if (same == n || (same && same == r->n))
            break;
    }
    if (r == records + w->n_records) {
        CHECK(w, "few records", w->n_records++ < RECORDS_MAX);
        *r = (struct record){.salt = l->salt};
    }
    if (r->n < n) {
        memset(r->ends + r->n + 1, 0, n - r->n);
        memcpy(r->tokens, l->tokens, n * sizeof *l->tokens);
        r->n = n;
    }
    r->ends[n] |= end;
}

/* The nodes along some tokens, from the root on, found without the hash table. */
struct path {
    uint32_t nodes[LENGTH_MAX], n, common;
};

static void find_path(struct world *w, const char *salt, const int32_t *tokens, uint32_t n,
                      struct path *p) {
    const struct prefix_tree *t = w->tree;
    uint32_t x = NO_NODE;
    p->n = p->common = 0;
    for (uint32_t root = t->first_root; root != NO_NODE; root = t->nodes[root].next)
        if (t->nodes[root].salt->len == strlen(salt) &&
            memcmp(t->nodes[root].salt->bytes, salt, strlen(salt)) == 0)
            x = root;
    while (x != NO_NODE && p->common < n && node_end(t, x) == p->common) {
        uint32_t found = NO_NODE, most = 0;
        for (uint32_t y = t->nodes[x].first_child; y != NO_NODE; y = t->nodes[y].next) {
            const struct node *c = &t->nodes[y];
            const uint32_t same = common_of(c->tokens + c->from, (uint32_t)(c->to - c->from),
                                            tokens + p->common, n - p->common);
            CHECK(w, "one child for each first token", !same || found == NO_NODE);
            if (same) {
                found = y;
                most = same;
            }
        }
        if (found != NO_NODE)
            p->nodes[p->n++] = found;
        p->common += most;
        x = found;
    }
}

/* Whether a sequence may start with the first `length` tokens of the path: the tree has the state
 * after them, and the pages that its next query sees or that it writes to. */
static bool may_start(const struct world *w, const struct path *p, uint32_t length) {
    const struct prefix_tree *t = w->tree;
    uint32_t last = 0;
    while (node_end(t, p->nodes[last]) < length)
        last++;
    const uint32_t x = p->nodes[last];
    if (w->options.state_bytes && (node_end(t, x) != length || t->nodes[x].state == NO_ADDR))
        return false;
    for (uint32_t g = 0; g < w->n_groups; g++) {
        const uint64_t keep = w->cache->groups[g].keep, span = w->cache->groups[g].span;
        for (uint32_t i = 0; i <= last; i++) {
            const uint32_t y = p->nodes[i], number = t->nodes[y].number, from = 64 * number;
            const uint32_t to = from + 64 < length ? from + 64 : length;
            if (i < last && t->nodes[p->nodes[i + 1]].number == number)
                continue; /* the deepest node of a page has all that there is of it */
            const bool seen = from < keep || to - 1 + span > length || number == length / 64;
            if (seen && node_page(t, y, g)->addr == NO_ADDR)
                return false;
        }
        if (length % 64 &&
            node_page(t, x, g)->layout != layout_of(&w->cache->rule, g, t->nodes[x].number))
            return false;
    }
    return true;
}

/* Looks for tokens and compares what comes with both oracles. */
static struct tree_hit look(struct world *w, const char *salt, const int32_t *tokens, uint32_t n) {
    static struct path path;
    const struct tree_hit hit = tree_look(w->tree, salt, strlen(salt), tokens, n);
    uint32_t common = 0, least = 0;
    bool ended = false;
    for (const struct record *r = records; r < records + w->n_records; r++) {
        const uint32_t same = same_salt(r->salt, salt) ? common_of(r->tokens, r->n, tokens, n) : 0;
        ended = same > common ? r->ends[same] & ENDED
                              : ended || (same && same == common && r->ends[same] & ENDED);
        common = same > common ? same : common;
        for (uint32_t e = same < n ? same : n - 1; e > least; e--)
            if (r->ends[e] & USABLE)
                least = e;
    }
    CHECK(w, "all that is stored is found, and no more", hit.common == common);
    CHECK(w, "a hit point is found", hit.length >= least);
    find_path(w, salt, tokens, n, &path);
    CHECK(w, "the path", path.common == common);
    uint32_t most = common < n ? common : n - 1;
    while (most && !may_start(w, &path, most))
        most--;
    CHECK(w, "the longest hit that may be used", hit.length == most);
    const kvasir_hit kinds[2][2] = {{KVASIR_HIT_COMMON_PREFIX, KVASIR_HIT_PREFIX},
                                    {KVASIR_HIT_SUPERSEQUENCE, KVASIR_HIT_EXACT}};
    CHECK(w, "kind", hit.kind == (most ? kinds[common == n][ended] : KVASIR_HIT_MISS));
    return hit;
}

static bool has_room(const struct world *w, uint64_t bytes) {
    return pool_check_room(kv_cache_pool(w->cache), bytes, NULL) == KVASIR_OK;
}

/* After an edit that may have evicted: the records learn what is left. */
static void learn(struct world *w) {
    static struct path path;
    for (uint32_t i = 0; i < w->n_records; i++) {
        struct record *r = &records[i];
        find_path(w, r->salt, r->tokens, r->n, &path);
        r->n = path.common;
        for (uint32_t e = 1; e <= r->n; e++)
            if (r->ends[e] & USABLE && !may_start(w, &path, e))
                r->ends[e] = ENDED;
        if (r->n == 0)
            records[i--] = records[--w->n_records];
    }
}

/* After an edit that may have evicted because there would be so many entries. Storing makes none,
 * closing a cursor at most one. */
static bool learn_limits(struct world *w, uint64_t entries) {
    const bool reached = w->max_bytes || (w->max_entries && entries > w->max_entries);
    if (reached)
        learn(w);
    return reached;
}

/* Everything of a salt (NULL: of all) was removed except what cursors pin. It is not found. */
static void only_pinned(struct world *w, const char *salt) {
    for (struct record *r = records; r < records + w->n_records; r++) {
        r->before = r->n;
        if (salt && !same_salt(r->salt, salt))
            continue;
        r->n = 0;
        for (const struct live *l = w->live; l < w->live + w->n_live; l++) {
            const bool holds_some = l->at.node != TREE_NOWHERE && same_salt(l->salt, r->salt);
            const uint32_t same =
                holds_some ? common_of(r->tokens, r->before, l->tokens, l->stored) : 0;
            r->n = same > r->n ? same : r->n;
        }
        for (uint32_t e = 0; e <= r->before; e++) /* pages may be gone, too */
            r->ends[e] &= e <= r->n ? (salt || !w->n_live ? ENDED | USABLE : ENDED) : 0;
    }
    for (const struct record *r = records; r < records + w->n_records; r++)
        (void)look(w, r->salt, r->tokens, r->before);
    learn(w);
}

/* The records have as many tokens as the tree: with look(), they are the same ones. */
static void check_tokens(struct world *w) {
    uint64_t tokens = 0;
    for (const struct record *r = records; r < records + w->n_records; r++) {
        uint32_t same = 0;
        for (const struct record *q = records; q < r; q++) {
            const uint32_t n =
                same_salt(q->salt, r->salt) ? common_of(q->tokens, q->n, r->tokens, r->n) : 0;
            same = n > same ? n : same;
        }
        tokens += r->n - same;
    }
    CHECK(w, "tokens of the tree", tokens == tree_stats(w->tree).tokens);
}

static void make_room(struct world *w, uint64_t bytes) {
    const bool had = has_room(w, bytes);
    CHECK(w, "room", tree_make_room(w->tree, bytes) || !had);
    if (!had)
        learn(w);
}

/* Returns whether all was stored. */
static bool store(struct world *w, struct live *l, bool point) {
    const uint32_t length = seq_length(l->seq), end = point ? length : length / 64 * 64;
    const bool had = has_room(w, tree_path_bytes(w->tree, length));
    const uint64_t rejections = tree_stats(w->tree).rejections,
                   entries = tree_stats(w->tree).entries;
    tree_store(w->tree, &l->at, l->seq, point);
    const bool whole = tree_stats(w->tree).rejections == rejections;
    if (point && length % 16 == 3) /* changes only what is evicted first */
        tree_favour(w->tree, &l->at);
    if (l->at.node == TREE_NOWHERE) { /* nothing is stored, but the limits are kept */
        (void)learn_limits(w, entries);
        return false;
    }
    CHECK(w, "there was room", whole || !had);
    if (!whole)
        l->stored = node_end(w->tree, l->at.node);
    else if (end > l->stored)
        l->stored = end;
    CHECK(w, "the cursor is where the stored tokens end",
          node_end(w->tree, l->at.node) == l->stored);
    const bool usable = !w->requantizes || length % 64 == 0;
    record_add(w, l, l->stored, !point || !whole ? 0 : usable ? ENDED | USABLE : ENDED);
    if (!had)
        learn(w);
    (void)learn_limits(w, entries);
    return whole;
}

/* ---- in place of K and V --------------------------------------------------------------------- */

static uint32_t hash_step(uint32_t h, int32_t token, const char *salt) {
    h = (h ^ (uint32_t)token ^ (uint32_t)salt[0] << 8) * 0x9e3779b1u;
    return (h ^ h >> 15) | 1;
}

static uint32_t hash_at(const struct live *l, uint32_t p) {
    uint32_t h = 7;
    for (uint32_t i = 0; i <= p; i++)
        h = hash_step(h, l->tokens[i], l->salt);
    return h;
}

/* Where position p is stored: its page's tiles; page NULL: the page was dropped. */
struct place {
    const struct page_layout *layout;
    uint8_t *page;
    uint32_t row;
};

static struct place place_of(const struct kv_view *v, uint32_t p) {
    const uint32_t i = kv_view_index(v, p / 64);
    if (i == UINT32_MAX)
        return (struct place){0};
    return (struct place){
        &v->layouts[v->pages[i].layout],
        backend_cpu_arena_bytes(v->arena) + (size_t)v->pages[i].addr * PAGE_ADDR_UNIT, p % 64};
}

/* Writes a row that 4 bits and 16 hold exactly: the nibbles of h, with 0 and 15 among them. */
static void put(const struct world *w, const struct place *at, uint32_t h) {
    if (!w->requantizes) {
        memcpy(at->page + 4 * at->row, &h, sizeof h);
        return;
    }
    float k[HEAD_DIM] = {[NIBBLES] = 15}, v[HEAD_DIM] = {[NIBBLES] = 15};
    for (uint32_t i = 0; i < NIBBLES; i++) {
        k[i] = (float)(h >> 4 * i & 15);
        v[i] = 15 - k[i];
    }
    tile_encode_row(&at->layout->k, at->page, at->row, k);
    tile_encode_row(&at->layout->v, at->page + at->layout->k.bytes, at->row, v);
}

static bool holds(const struct world *w, const struct place *at, uint32_t h) {
    if (!w->requantizes)
        return memcmp(at->page + 4 * at->row, &h, sizeof h) == 0;
    float k[HEAD_DIM], v[HEAD_DIM];
    bool good = true;
    tile_decode_row(&at->layout->k, at->page, at->row, k);
    tile_decode_row(&at->layout->v, at->page + at->layout->k.bytes, at->row, v);
    for (uint32_t i = 0; i < NIBBLES; i++) {
        const float nibble = (float)(h >> 4 * i & 15);
        good = good && k[i] == nibble && v[i] == 15 - nibble;
    }
    return good;
}

static uint32_t *state_slot(const struct live *l) {
    struct state_view v;
    seq_state(l->seq, &v);
    return (uint32_t *)(backend_cpu_arena_bytes(v.arena) + (size_t)v.addr * PAGE_ADDR_UNIT);
}

/* A step of n tokens, as a model would: reads the state before, writes pages and state. */
static bool grow(struct world *w, struct live *l, uint32_t n) {
    const uint32_t at = seq_length(l->seq);
    kvasir_error err;
    uint64_t need = seq_need_bytes(l->seq, at + n, n, 0);
    make_room(w, need);
    if (seq_prepare(l->seq, n, &err) != KVASIR_OK)
        return false;
    uint32_t h = at ? hash_at(l, at - 1) : 7;
    if (w->options.state_bytes)
        CHECK(w, "state before a step", *state_slot(l) == (at ? h : 0));
    for (uint32_t p = at; p < at + n; p++) {
        h = hash_step(h, l->tokens[p], l->salt);
        for (uint32_t g = 0; g < w->n_groups; g++) {
            struct kv_view v;
            seq_view(l->seq, g, &v);
            const struct place at_p = place_of(&v, p);
            put(w, &at_p, h);
        }
    }
    if (w->options.state_bytes)
        *state_slot(l) = h;
    seq_commit(l->seq, l->tokens + at, n);
    return true;
}

/* Every position that a query at the sequence's end or later sees. */
static void check_live(struct world *w, const struct live *l) {
    const uint32_t length = seq_length(l->seq);
    for (uint32_t g = 0; g < w->n_groups; g++) {
        struct kv_view v;
        uint32_t h = 7;
        seq_view(l->seq, g, &v);
        for (uint32_t p = 0; p < length; p++) {
            h = hash_step(h, l->tokens[p], l->salt);
            const bool seen = p < v.keep || v.span == UINT32_MAX || p + v.span > length;
            if (!seen)
                continue;
            const struct place at = place_of(&v, p);
            CHECK(w, "a page that is seen is there", at.page != NULL);
            CHECK(w, "a position holds what its tokens give", holds(w, &at, h));
        }
    }
    if (length)
        CHECK(w, "tokens", memcmp(seq_tokens(l->seq), l->tokens, length * sizeof(int32_t)) == 0);
    if (w->options.state_bytes && length)
        CHECK(w, "state", *state_slot(l) == hash_at(l, length - 1));
}

/* Checks the budget, every live sequence and the tree. */
static void check_world(struct world *w) {
    const struct kv_pool_stats pool = kv_pool_stats(kv_cache_pool(w->cache));
    CHECK(w, "budget", pool.peak_bytes <= pool.budget_bytes);
    /* decoding every row would take most of the test's time */
    const uint32_t one = w->requantizes && w->n_live ? random_below(w->n_live) : UINT32_MAX;
    for (uint32_t i = 0; i < w->n_live; i++)
        if (!w->requantizes || i == one)
            check_live(w, &w->live[i]);
    tree_check(w->tree);
}

/* TREE-7, counted without the heaps: leaves without a cursor, and whether anything could still be
 * evicted. */
static void check_limits(struct world *w) {
    const struct prefix_tree *t = w->tree;
    const struct kv_pool *pool = kv_cache_pool(w->cache);
    uint32_t ends = 0;
    bool could_go = false;
    for (uint32_t x = 0; x < t->n_made; x++) {
        const struct node *n = &t->nodes[x];
        if (n->from == n->to || n->pins) /* a root, free, or pinned */
            continue;
        ends += n->first_child == NO_NODE;
        could_go |= n->state != NO_ADDR && !page_is_live(pool, n->state);
        for (uint32_t g = 0; g < w->n_groups; g++)
            could_go |= may_drop(t, x, g) && node_page(t, x, g)->addr != NO_ADDR &&
                        !page_is_live(pool, node_page(t, x, g)->addr);
    }
    CHECK(w, "stored prompts", ends == tree_stats(t).entries);
    CHECK(w, "stored prompts", !w->max_entries || ends <= w->max_entries);
    CHECK(w, "stored bytes",
          !w->max_bytes || tree_stored_bytes(t) <= w->max_bytes || (ends == 0 && !could_go));
}

/* ---- edits ----------------------------------------------------------------------------------- */

static void make_tokens(struct world *w, struct live *l) {
    const char *const salts[] = {"", "a", "bc"};
    l->salt = salts[random_below(8) ? 0 : random_below(3)];
    l->length = 1 + random_below(random_below(3) ? 200 : LENGTH_MAX);
    uint32_t same = 0;
    if (w->n_live && random_below(5)) { /* shares a prefix with another one */
        const struct live *other = &w->live[random_below(w->n_live)];
        same = random_below(other->length + 1);
        same = same < l->length ? same : l->length;
        memcpy(l->tokens, other->tokens, same * sizeof *l->tokens);
    }
    /* few different tokens at few places, so that prefixes are also shared by chance; if pages are
     * requantized, prefixes of whole pages */
    const uint32_t every = !w->requantizes ? 40 : random_below(2) ? 400 : 2000;
    for (uint32_t p = same; p < l->length; p++) {
        const bool part = (!w->requantizes && p % 50 == 7) || random_below(every) == 0;
        l->tokens[p] = part ? (int32_t)random_below(3) : 1;
    }
}

/* Requantized pages that the sequence has after a hit. */
static uint32_t served(const struct world *w, const struct live *l) {
    uint32_t n = 0;
    for (uint32_t g = 0; g < w->n_groups; g++) {
        struct kv_view v;
        seq_view(l->seq, g, &v);
        for (uint32_t i = 0; i < v.n_pages; i++)
            n += !kv_format_exact(v.layouts[v.pages[i].layout].k.format);
    }
    return n;
}

static void edit_new(struct world *w) {
    struct live *l = &w->live[w->n_live];
    struct tree_hit hit;
    kvasir_error err;
    /* sometimes not a byte is free: if prefixes diverge, something has to be evicted */
    const struct kv_pool_stats pool = kv_pool_stats(kv_cache_pool(w->cache));
    const uint64_t filled =
        random_below(4) ? 0 : pool.budget_bytes - pool.used_bytes - pool.charged_bytes;
    CHECK(w, "charge", pool_charge(kv_cache_pool(w->cache), filled, &err) == KVASIR_OK);
    make_tokens(w, l);
    const struct tree_hit found = look(w, l->salt, l->tokens, l->length);
    const bool had = has_room(w, ENOUGH_ROOM);
    CHECK(w, "new", seq_create(w->cache, &l->seq, &err) == KVASIR_OK);
    CHECK(w, "resume",
          tree_resume(w->tree, l->salt, strlen(l->salt), l->tokens, l->length, l->seq, &l->at, &hit,
                      &err) == KVASIR_OK);
    pool_discharge(kv_cache_pool(w->cache), filled);
    l->stored = hit.length;
    if (had)
        CHECK(w, "the hit that was looked up",
              hit.length == found.length && hit.common == found.common && hit.kind == found.kind);
    else
        learn(w);
    if (random_below(8)) { /* room may have been made for others first */
        if (!random_below(4))
            make_room(w, 1 + random_below(1 << 16));
        tree_count(w->tree, &l->at, l->tokens, l->length);
    }
    CHECK(w, "resume", hit.length == seq_length(l->seq) && hit.length < l->length);
    CHECK(w, "not more than was looked up", hit.common <= found.common);
    CHECK(w, "kind", (hit.length == 0) == (hit.kind == KVASIR_HIT_MISS));
    w->hits += hit.length > 0;
    w->hit_tokens += hit.length;
    w->served += w->requantizes ? served(w, l) : 0;
    w->n_live++;
    /* If nothing is ever dropped, everything in common with a stored prefix is a hit; in a page of
     * other formats than the sequence would go on with, only the whole page has to be. */
    if (hit.length == 0 || w->options.state_bytes)
        return;
    bool bounded = w->options.max_size != 0;
    for (uint32_t g = 0; g < w->n_groups; g++)
        bounded |= w->shapes[g].window != 0;
    const uint32_t most = hit.common < l->length ? hit.common : l->length - 1;
    const uint32_t least = w->requantizes ? most / 64 * 64 : most;
    if (!bounded)
        CHECK(w, "a hit to the token", hit.length >= least && hit.length <= most);
}

static void edit_drop(struct world *w, uint32_t i, bool point) {
    struct live *l = &w->live[i];
    const uint32_t length = seq_length(l->seq);
    const bool whole = point && store(w, l, true) && length;
    int32_t more[LENGTH_MAX + 1];
    if (point) {
        check_limits(w);
        check_live(w, l);
    }
    memcpy(more, l->tokens, length * sizeof *more);
    more[length] = 7; /* no sequence has it */
    struct tree_hit hit = look(w, l->salt, more, length + 1);
    if (whole) {
        /* A stored page of fewer bits cannot be continued inside: the hit may end earlier. */
        const bool all = hit.length == length || (w->requantizes && length % 64);
        CHECK(w, "what was stored", hit.common == length && all);
        CHECK(w, "a hit point", hit.kind == KVASIR_HIT_PREFIX || !hit.length);
    }
    const uint64_t entries = tree_stats(w->tree).entries;
    seq_destroy(l->seq);
    tree_close(w->tree, &l->at);
    const bool limited = learn_limits(w, entries + 1);
    check_limits(w);
    /* without the sequence it is still there, unless the limits are reached */
    const struct tree_hit after = look(w, l->salt, more, length + 1);
    if (!limited)
        CHECK(w, "what was dropped", after.length == hit.length && after.common == hit.common);
    *l = w->live[--w->n_live];
}

static void edit_grow(struct world *w, uint32_t i) {
    struct live *l = &w->live[i];
    const uint32_t at = seq_length(l->seq), left = l->length - at;
    if (!left) {
        edit_drop(w, i, random_below(4));
        return;
    }
    uint32_t n = 1 + random_below(left);
    if (random_below(2) && n > 70)
        n = 1 + random_below(70);
    if (!grow(w, l, n)) {
        edit_drop(w, i, random_below(2)); /* preempted, or cancelled */
        return;
    }
    if (random_below(3)) {
        (void)store(w, l, random_below(5) == 0);
        check_limits(w);
    }
}

static void edit_fork(struct world *w, uint32_t i) {
    struct live *l = &w->live[w->n_live];
    kvasir_error err;
    *l = w->live[i];
    CHECK(w, "fork", seq_fork(w->live[i].seq, &l->seq, &err) == KVASIR_OK);
    l->at = tree_cursor_copy(w->tree, l->at);
    w->n_live++;
    const uint32_t length = seq_length(l->seq);
    for (uint32_t p = length + random_below(3); p < l->length; p++)
        l->tokens[p] = (int32_t)random_below(3);
}

/* Everything that can be evicted is evicted: only pinned nodes are left. */
static void edit_evict_all(struct world *w) {
    CHECK(w, "so much room", !tree_make_room(w->tree, UINT64_MAX / 2));
    CHECK(w, "no leaf", w->tree->heaps[LEAVES].n == 0);
    only_pinned(w, NULL);
}

static void edit_forget(struct world *w, const char *salt) {
    tree_forget(w->tree, salt, 1);
    only_pinned(w, salt);
}

/* Requantizes pages that only the tree holds, of some nodes or of all. */
static void edit_requantize(struct world *w) {
    struct prefix_tree *t = w->tree;
    const uint64_t before = tree_stored_bytes(t), so_far = tree_stats(t).requantized_pages;
    const bool all = random_below(2), had = has_room(w, ENOUGH_ROOM);
    const uint32_t done =
        tree_requantize(t, all ? UINT32_MAX : random_below(4), all ? UINT32_MAX : random_below(30));
    CHECK(w, "requantized", tree_stats(t).requantized_pages == so_far + done);
    CHECK(w, "fewer bits", tree_stored_bytes(t) <= before);
    w->requantized += done;
    if (!had)
        learn(w);
    for (uint32_t i = 0; i < w->n_live; i++)
        check_live(w, &w->live[i]);
    const struct kv_pool_stats pool = kv_pool_stats(kv_cache_pool(w->cache));
    if (!all || w->min_tokens || pool.budget_bytes - pool.used_bytes - pool.charged_bytes < 8192)
        return; /* there may not have been room for more */
    for (uint32_t x = 0; x < t->n_made; x++)
        for (uint32_t g = 0; g < w->n_groups; g++) {
            const struct kv_page *page = node_page(t, x, g);
            if (t->nodes[x].from == 0 && t->nodes[x].to == TILE_TOKENS && page->addr != NO_ADDR &&
                !page_is_live(kv_cache_pool(w->cache), page->addr))
                CHECK(w, "all of them",
                      page->layout == layout_of(&t->stored_rule, g, t->nodes[x].number));
        }
}

/* ---- programs -------------------------------------------------------------------------------- */

static void make_world(struct world *w) {
    static const uint32_t windows[] = {1, 33, 64, 65, 100, 200};
    kvasir_error err;
    uint64_t page = 0;
    w->n_groups = 1 + random_below(GROUPS_MAX);
    for (uint32_t g = 0; g < w->n_groups; g++) {
        w->shapes[g] = (struct kv_shape){.layers = 1, .kv_heads = 1, .head_dim = HEAD_DIM};
        if (random_below(2))
            w->shapes[g].window = windows[random_below(6)];
    }
    w->requantizes = random_below(8) == 0;
    w->options = (struct kv_cache_options){.k = {.bits = w->requantizes ? 16 : 8},
                                           .v = {.bits = w->requantizes ? 16 : 4}};
    if (random_below(3) == 0) {
        w->options.max_size = 2 + random_below(300);
        w->options.keep = random_below(2) ? random_below(w->options.max_size) : 0;
    }
    if (random_below(3) == 0)
        w->options.quantized_start = random_below(200);
    if (random_below(3) == 0)
        w->options.state_bytes = 4096;
    for (uint32_t g = 0; g < w->n_groups; g++)
        page += 8192;
    w->options.budget_bytes =
        16 * page + random_below(random_below(3) && !w->requantizes ? 60 : 400) * page;
    CHECK(w, "backend",
          backend_cpu_create(
              &w->backend,
              &(struct backend_cpu_options){.threads = 1, .tier = CPU_TIER_REF, .act_bits = 8},
              &err) == KVASIR_OK);
    CHECK(w, "cache",
          kv_cache_create(w->backend, w->shapes, w->n_groups, &w->options, &w->cache, &err) ==
              KVASIR_OK);
    CHECK(w, "tree", tree_create(w->cache, 1000, &w->tree, &err) == KVASIR_OK);
    if (w->requantizes) {
        const struct kv_format four = {.bits = 4};
        w->min_tokens = random_below(2) ? 0 : random_below(300);
        CHECK(w, "fewer bits",
              tree_requantize_begin(w->tree, four, four, 0, 0, w->min_tokens, &err) == KVASIR_OK);
    }
    if (random_below(3) == 0)
        w->max_entries = 1 + random_below(6);
    if (random_below(3) == 0)
        w->max_bytes = 1 + random_below((uint32_t)(w->options.budget_bytes));
    tree_limit(w->tree, w->max_entries, w->max_bytes);
}

static void run_program(struct world *w) {
    random_state = w->seed * 0x9e3779b97f4a7c15u + 1;
    make_world(w);
    for (int e = 0; e < EDITS; e++) {
        const uint32_t what = random_below(16);
        if (w->n_live == 0 || (what < 4 && w->n_live < LIVE_MAX))
            edit_new(w);
        else if (what == 4 && w->n_live < LIVE_MAX)
            edit_fork(w, random_below(w->n_live));
        else if (what == 5)
            edit_drop(w, random_below(w->n_live), random_below(2));
        else if (what == 6 && random_below(8) == 0)
            edit_forget(w, random_below(2) ? NULL : "a");
        else if (what >= 14 && w->requantizes)
            edit_requantize(w);
        else if (what == 7)
            make_room(w, random_below(1 << 18));
        else if (what == 6 && random_below(8) == 0)
            edit_evict_all(w);
        else if (what == 6 && random_below(8) == 0) { /* other limits, between requests */
            w->max_entries = random_below(4);
            tree_limit(w->tree, w->max_entries, w->max_bytes);
            (void)learn_limits(w, UINT64_MAX);
            check_limits(w);
        } else
            edit_grow(w, random_below(w->n_live));
        check_world(w);
        if (e % 4 == 0)
            check_tokens(w);
    }
    while (w->n_live)
        edit_drop(w, 0, random_below(2));
    tree_check(w->tree);
    tree_destroy(w->tree);
    const struct kv_pool_stats pool = kv_pool_stats(kv_cache_pool(w->cache));
    CHECK(w, "nothing is left", pool.used_bytes == 0 && pool.charged_bytes == 0);
    CHECK(w, "nothing is left", pool.stored_bytes == 0 && pool.pages_used == 0);
    kv_cache_destroy(w->cache);
    backend_destroy(w->backend);
}

int main(int argc, char **argv) {
    uint64_t seed = 20261122, hits = 0, tokens = 0, requantized = 0, served = 0;
    unsigned long programs = 60;
    random_arguments(argc, argv, &programs, &seed);
    last_words(NULL, NULL);
    printf("%lu programs from seed %llu\n", programs, (unsigned long long)seed);
    for (unsigned long i = 0; i < programs; i++) {
        struct world w = {.seed = seed + i};
        char words[120];
        snprintf(words, sizeof words,
                 "FAILED: ended by a signal, or a sanitizer\n  run again with --programs=1 "
                 "--seed=%llu\n",
                 (unsigned long long)w.seed);
        last_words(words, NULL);
        run_program(&w);
        last_words(NULL, NULL);
        requantized += w.requantized;
        served += w.served;
        hits += w.hits;
        tokens += w.hit_tokens;
    }
    printf("%llu hits of %.1f tokens, with %llu of %llu pages at fewer bits: every position that "
           "is seen is right\n",
           (unsigned long long)hits, hits ? (double)tokens / (double)hits : 0.0,
           (unsigned long long)served, (unsigned long long)requantized);
    return programs > 10 && (!hits || (programs >= 200 && !served));
}
