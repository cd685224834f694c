/* SPDX-License-Identifier: Apache-2.0 */
/* tiers_load.c: loads. One begins with a question (which of the prompt's records are there?), goes
 * on with a plan (how long a hit can be made of the tree's pages and of records, and whether that
 * pays) and ends with pages that the tree has.
 *
 *     looking     keys of what the tree lacks; instant tiers answer at once, others by a reader
 *        plan     the longest length that is a whole number of pages, at which every group has all
 *                 that the next query sees and recurrent layers have their state
 *     reading     a sequence of that length holds the tree's pages and new ones, which readers fill
 *      finish     trimmed to the first page that did not come well, stored in the tree
 *
 * A load that is late ends with what has come by then: a fork of its sequence is trimmed and
 * stored, and the sequence itself lives until readers have let go of its pages.
 */
#include <string.h>

#include "cache/tiers_internal.h"

/* ---- names ----------------------------------------------------------------------------------- */

static size_t key_at(const struct tiers *s, uint32_t page, uint32_t part, uint32_t variant) {
    return ((size_t)page * s->parts + part) * s->variants + variant;
}

static void wanted_head(const struct tiers *s, const struct tier_load *l, uint32_t page,
                        uint32_t part, uint32_t layout, struct record_head *out) {
    part_head(s, part, layout, page, l->chains[0], l->chains[page], l->chains[page + 1],
              l->tokens + (size_t)page * TILE_TOKENS, out);
}

/* The node of each page of the prompt while the tree has them: from the one before. */
static uint32_t next_page_node(const struct tiers *s, const struct tier_load *l, uint32_t at,
                               uint32_t page) {
    return at == NO_NODE ? NO_NODE
                         : node_find_page(s->tree, at, l->tokens + (size_t)page * TILE_TOKENS);
}

/* Chain keys of all pages; keys of the parts that the tree lacks. */
static void name_all(struct tiers *s, struct tier_load *l) {
    uint32_t x = tree_find_root(s->tree, l->salt, l->salt_len);
    l->chains[0] = chain_root(s->options.context, l->salt, l->salt_len);
    l->place = (struct tier_place){s->options.context, l->chains[0]};
    for (uint32_t i = 0; i < l->n_pages; i++) {
        x = next_page_node(s, l, x, i);
        l->chains[i + 1] = x == NO_NODE
                               ? chain_next(l->chains[i], l->tokens + (size_t)i * TILE_TOKENS)
                               : s->tree->nodes[x].chain;
        for (uint32_t p = 0; p < s->parts; p++)
            for (uint32_t v = 0; v < s->variants && part_at(s, x, p).addr == NO_ADDR; v++) {
                struct record_head head;
                wanted_head(s, l, i, p, part_is_state(s, p) ? 0 : layout_of_variant(s, p, i, v),
                            &head);
                l->key_places[l->n_keys] = (uint32_t)key_at(s, i, p, v);
                l->keys[l->n_keys++] = head.key;
            }
    }
}

/* ---- looking --------------------------------------------------------------------------------- */

/* Seconds to compute the tokens from `from` to `to`; 0: not known. */
static double compute_seconds(const struct tiers *s, uint32_t from, uint32_t to) {
    const double middle = ((double)from + to) / 2 / s->tree->rebuild_tokens;
    return s->seconds_per_token * (1 + middle) * (double)(to - from);
}

/* Leaves a question to a reader, unless computing the prompt takes less time than the answer. How
 * long an answer takes is doubted bit by bit, as in `doubt`. */
static bool ask_slow(struct tiers *s, struct tier_load *l, struct store *w) {
    const double computing = compute_seconds(s, l->had, l->n_pages * TILE_TOKENS);
    double patience = 2 * s->options.late_seconds;
    if (computing > 0 && computing < patience)
        patience =
            computing > s->options.late_seconds / 10 ? computing : s->options.late_seconds / 10;
    pthread_mutex_lock(&s->mutex);
    const bool pays = computing <= 0 || w->find_seconds <= computing;
    if (pays) {
        l->open = 1;
        l->taken = false;
        l->deadline = clock_seconds() + patience;
        pthread_cond_broadcast(&s->read_more);
    } else {
        w->find_seconds *= 0.95;
        w->loads_slow++;
        s->stats.loads_slow++;
    }
    pthread_mutex_unlock(&s->mutex);
    return pays;
}

/* Asks the next tiers, up to the first that has to be waited for. False: all have been asked. */
static bool ask_next(struct tiers *s, struct tier_load *l) {
    for (; l->asked < s->options.n && l->n_keys; l->asked++) {
        struct store *w = &s->stores[l->asked];
        if (store_is_forgetting(w, l->place.root))
            continue;
        if (w->tier->ops->instant)
            store_find(w, l, 0);
        else if (ask_slow(s, l, w))
            return true;
    }
    return false;
}

/* ---- planning -------------------------------------------------------------------------------- */

/* Where a part would come from: no page and an empty set in found[] mean that it is nowhere.
 * *variant: of the record. */
static bool part_is_there(const struct tiers *s, const struct tier_load *l, uint32_t x,
                          uint32_t page, uint32_t part, uint32_t *variant) {
    *variant = 0;
    if (part_at(s, x, part).addr != NO_ADDR)
        return true;
    while (*variant < s->variants && !l->found[key_at(s, page, part, *variant)])
        ++*variant;
    return *variant < s->variants;
}

/* serves[i]: whether a hit may end after page i. */
static void find_ends(const struct tiers *s, const struct tier_load *l, bool *serves) {
    const struct kv_cache *c = s->cache;
    int64_t missing[CACHE_GROUPS_MAX]; /* the last missing page; -1 */
    bool kept_missing = false;
    memset(missing, -1, sizeof missing);
    uint32_t x = tree_find_root(s->tree, l->salt, l->salt_len), variant;
    for (uint32_t i = 0; i < l->n_pages; i++) {
        const uint32_t length = (i + 1) * TILE_TOKENS;
        x = next_page_node(s, l, x, i);
        serves[i] = true;
        for (uint32_t g = 0; g < c->n_groups; g++) {
            if (!part_is_there(s, l, x, i, g, &variant)) {
                missing[g] = i;
                kept_missing = kept_missing || i < c->groups[g].kept_pages;
            }
            serves[i] = serves[i] && missing[g] < (int64_t)first_held(&c->groups[g], length);
        }
        serves[i] = serves[i] && !kept_missing &&
                    (!c->snapshot_bytes || part_is_there(s, l, x, i, c->n_groups, &variant));
    }
}

/* Whether a sequence of so many pages holds this part of page i. */
static bool is_needed(const struct tiers *s, uint32_t pages, uint32_t i, uint32_t part) {
    if (part_is_state(s, part))
        return i == pages - 1;
    const struct kv_group *g = &s->cache->groups[part];
    return i < g->kept_pages || i >= first_held(g, pages * TILE_TOKENS);
}

/* Lists what a hit of so many pages consists of. False: memory ran out. */
static bool list_objects(struct tiers *s, struct tier_load *l, uint32_t pages) {
    uint32_t x = tree_find_root(s->tree, l->salt, l->salt_len), variant;
    l->objects = mem_calloc((size_t)pages * s->parts, sizeof *l->objects);
    l->n_objects = 0;
    l->read_bytes = l->held_bytes = 0;
    for (uint32_t i = 0; l->objects && i < pages; i++) {
        x = next_page_node(s, l, x, i);
        for (uint32_t p = 0; p < s->parts; p++) {
            if (!is_needed(s, pages, i, p))
                continue;
            struct load_object *o = &l->objects[l->n_objects++];
            *o = (struct load_object){
                .page = i, .part = p, .store = NO_STORE, .expires = TREE_FOREVER};
            o->at = part_at(s, x, p);
            const bool there = part_is_there(s, l, x, i, p, &variant);
            ASSERT(there);
            if (o->at.addr == NO_ADDR && !part_is_state(s, p))
                o->at.layout = (uint16_t)layout_of_variant(s, p, i, variant);
            o->bytes = part_bytes(s, p, o->at.layout);
            l->held_bytes += o->bytes;
            if (o->at.addr == NO_ADDR) {
                o->stores = l->found[key_at(s, i, p, variant)];
                o->store = (uint32_t)__builtin_ctz(o->stores); /* the first that was asked */
                o->result = TIER_RESULTS;
                wanted_head(s, l, i, p, o->at.layout, &o->wanted);
                l->read_bytes += o->bytes;
            }
        }
    }
    return l->objects != NULL;
}

/* Bytes that are to be read. */
static void bytes_by_store(const struct tier_load *l, uint64_t bytes[TIERS_MAX]) {
    memset(bytes, 0, TIERS_MAX * sizeof *bytes);
    for (uint32_t i = 0; i < l->n_objects; i++)
        if (l->objects[i].store != NO_STORE)
            bytes[l->objects[i].store] += l->objects[i].bytes;
}

/* Seconds to read the objects; 0: not known. */
static double load_seconds(const struct tiers *s, const struct tier_load *l) {
    double seconds = 0;
    uint64_t bytes[TIERS_MAX];
    bytes_by_store(l, bytes);
    for (uint32_t i = 0; i < s->options.n; i++)
        if (s->stores[i].bytes_per_second > 0)
            seconds += (double)bytes[i] / s->stores[i].bytes_per_second;
    return seconds;
}

/* A guess that a tier is slow is forgotten bit by bit, or it would never be asked again. */
static void doubt(struct tiers *s, const struct tier_load *l) {
    uint64_t bytes[TIERS_MAX];
    bytes_by_store(l, bytes);
    pthread_mutex_lock(&s->mutex);
    for (uint32_t i = 0; i < s->options.n; i++) {
        s->stores[i].bytes_per_second *= 1.05;
        s->stores[i].loads_slow += bytes[i] > 0;
    }
    pthread_mutex_unlock(&s->mutex);
    s->stats.loads_slow++;
}

/* How many pages the hit has that is worth loading; 0: none is. Lists its objects. */
static uint32_t plan(struct tiers *s, struct tier_load *l) {
    const uint32_t have = tree_look(s->tree, l->salt, l->salt_len, l->tokens, l->n_tokens).length;
    l->had = have;
    bool *serves = mem_calloc(l->n_pages, sizeof *serves);
    uint32_t pages = serves ? l->n_pages : 0;
    if (serves)
        find_ends(s, l, serves);
    for (; pages * TILE_TOKENS > have; pages--) {
        if (!serves[pages - 1])
            continue;
        if (!list_objects(s, l, pages))
            break;
        if (l->read_bytes <= l->most_bytes)
            break;
        mem_free(l->objects);
        l->objects = NULL;
    }
    mem_free(serves);
    /* A window of one token sees nothing at a page's end, so a hit may need no record at all. */
    if (pages * TILE_TOKENS <= have || !l->objects || !l->read_bytes)
        return 0;
    const double computing = compute_seconds(s, have, pages * TILE_TOKENS);
    if (computing > 0 && load_seconds(s, l) > computing) {
        doubt(s, l);
        return 0;
    }
    const double late = computing > s->options.late_seconds ? computing : s->options.late_seconds;
    l->started = tiers_now(s);
    l->deadline = l->started + (computing > 0 ? late : 40 * s->options.late_seconds);
    return pages;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Gives back the pages that were taken or referenced. */
static void drop_pages(struct tiers *s, struct tier_load *l) {
    for (uint32_t i = 0; i < l->n_objects; i++)
        if (l->objects[i].at.addr != NO_ADDR)
            page_unref(s->cache->pool, l->objects[i].at.addr);
    l->n_objects = 0;
}

/* Takes pages for what is to be read, and charges what else the load needs. */
static bool take_pages(struct tiers *s, struct tier_load *l, uint64_t charge) {
    struct kv_pool *pool = s->cache->pool;
    if (!tree_make_room(s->tree, l->read_bytes + charge) ||
        pool_charge(pool, charge, NULL) != KVASIR_OK)
        return false;
    l->charged = charge;
    for (uint32_t i = 0; i < l->n_objects; i++) {
        struct load_object *o = &l->objects[i];
        const uint32_t class = part_is_state(s, o->part)
                                   ? s->cache->snapshot_class
                                   : s->cache->groups[o->part].page_class[o->at.layout];
        if (o->store == NO_STORE)
            continue;
        if (page_take_unset(pool, class, &o->at.addr, NULL) != KVASIR_OK) {
            o->at.addr = NO_ADDR;
            return false;
        }
    }
    return true;
}

static void put_pages(const struct tiers *s, const struct tier_load *l) {
    for (uint32_t i = 0; i < l->n_objects; i++)
        if (part_is_state(s, l->objects[i].part))
            seq_put_state(l->seq, l->objects[i].at.addr);
        else
            seq_put_page(l->seq, l->objects[i].part, l->objects[i].page, l->objects[i].at);
}

/* A cursor where the tree's part of the prompt ends. */
static bool find_place(struct tiers *s, struct tier_load *l) {
    struct kv_seq *found;
    struct tree_hit hit;
    if (seq_create(s->cache, &found, NULL) != KVASIR_OK)
        return false;
    const bool good = tree_resume(s->tree, l->salt, l->salt_len, l->tokens, l->n_tokens, found,
                                  &l->at, &hit, NULL) == KVASIR_OK &&
                      l->at.node != TREE_NOWHERE;
    seq_destroy(found);
    return good;
}

/* From a plan of so many pages to reads. False: there is no memory for it. The tree's pages are
 * referenced first: making room could evict them. */
static bool begin_reading(struct tiers *s, struct tier_load *l, uint32_t pages) {
    const uint64_t charge = seq_overhead_bytes(s->cache, pages * TILE_TOKENS) + sizeof *l +
                            l->n_objects * sizeof *l->objects + l->n_tokens * sizeof *l->tokens;
    uint64_t bytes[TIERS_MAX];
    for (uint32_t i = 0; i < l->n_objects; i++)
        if (l->objects[i].store == NO_STORE)
            page_ref(s->cache->pool, l->objects[i].at.addr);
    if (!find_place(s, l) || !take_pages(s, l, charge) ||
        seq_create(s->cache, &l->seq, NULL) != KVASIR_OK ||
        seq_begin_at(l->seq, l->tokens, pages * TILE_TOKENS, NULL) != KVASIR_OK) {
        drop_pages(s, l);
        return false;
    }
    seq_unlist(l->seq); /* readers write to its pages */
    put_pages(s, l);
    movers_follow(s);
    bytes_by_store(l, bytes);
    pthread_mutex_lock(&s->mutex);
    for (uint32_t i = 0; i < s->options.n; i++)
        s->stores[i].loads += bytes[i] > 0;
    l->phase = LOAD_READING;
    l->cut = pages;
    l->open = 0;
    for (uint32_t i = 0; i < l->n_objects; i++)
        l->open += l->objects[i].store != NO_STORE;
    ASSERT(l->open > 0);
    pthread_cond_broadcast(&s->read_more);
    pthread_mutex_unlock(&s->mutex);
    s->stats.loads++;
    return true;
}

/* ---- ending ---------------------------------------------------------------------------------- */

static void load_delete(struct tier_load *l) {
    mem_free(l->salt);
    mem_free(l->tokens);
    mem_free(l->keys);
    mem_free(l->key_places);
    mem_free(l->found);
    mem_free(l->have);
    mem_free(l->chains);
    mem_free(l->objects);
    mem_free(l);
}

/* Frees what the load has and nobody needs any more. */
static void load_free(struct tiers *s, struct tier_load *l) {
    struct tier_load **at = &s->loads;
    pthread_mutex_lock(&s->mutex);
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    pthread_mutex_unlock(&s->mutex);
    if (l->result != l->seq)
        seq_destroy(l->result);
    seq_destroy(l->seq);
    tree_close(s->tree, &l->at);
    pool_discharge(s->cache->pool, l->charged);
    load_delete(l);
}

/* The stores that have all of a page, none if the tree had a part of it. *i: one beyond the page's
 * last object; then beyond that of the page before. */
static uint8_t stores_of_page(const struct tier_load *l, uint32_t page, uint32_t *i) {
    uint8_t stores = 0;
    for (bool first = true; *i > 0 && l->objects[*i - 1].page >= page; --*i) {
        const struct load_object *o = &l->objects[*i - 1];
        if (o->page == page) {
            stores = first ? o->stores : stores & o->stores;
            first = false;
        }
    }
    return stores;
}

/* The nodes of a load need not be offered to the stores that have their pages, but to the others.
 * Those that were in the tree before were offered then. */
static void note_offered(struct tiers *s, const struct tier_load *l) {
    uint32_t i = l->n_objects;
    uint8_t everywhere = UINT8_MAX;
    for (uint32_t x = l->at.node; !is_root(s->tree, x); x = s->tree->nodes[x].parent) {
        struct node *n = &s->tree->nodes[x];
        if (n->to != TILE_TOKENS)
            continue;
        const uint8_t have = stores_of_page(l, n->number, &i);
        if (have && !n->offered)
            n->offered_until = n->expires;
        n->offered |= have;
        everywhere &= n->offered;
    }
    for (uint32_t w = 0; w < s->options.n; w++)
        if (!(everywhere & store_bit(&s->stores[w])))
            store_leave_over(&s->stores[w]);
}

/* Loaded pages live as long as their records, but no longer than the pages before them: `life` is
 * that of the last one in the tree. Returns that of the last one. */
static uint64_t settle_lives(struct tier_load *l, uint32_t pages, uint64_t life) {
    for (uint32_t i = 0; i < l->n_objects && l->objects[i].page < pages; i++) {
        struct load_object *o = &l->objects[i];
        o->expires = life = o->expires < life ? o->expires : life;
    }
    return life;
}

/* All were stored with the life of the last one: those before it may live longer. */
static void lengthen_lives(struct tiers *s, const struct tier_load *l, uint32_t pages) {
    uint32_t n = 0;
    while (n < l->n_objects && l->objects[n].page < pages)
        n++;
    for (uint32_t x = l->at.node; !is_root(s->tree, x) && n; x = s->tree->nodes[x].parent) {
        while (n && l->objects[n - 1].page > s->tree->nodes[x].number)
            n--;
        if (n)
            node_keep(s->tree, x, l->objects[n - 1].expires);
    }
}

/* Whole pages of a hit that came from tiers. One of several parts counts for the last one's. */
static void count_hit(struct tiers *s, const struct tier_load *l, uint32_t pages) {
    pthread_mutex_lock(&s->mutex);
    for (uint32_t i = 0; i < l->n_objects && l->objects[i].page < pages; i++) {
        const struct load_object *o = &l->objects[i];
        const bool last = i + 1 == l->n_objects || l->objects[i + 1].page != o->page;
        if (last && o->store != NO_STORE)
            s->stores[o->store].hit_pages++;
    }
    pthread_mutex_unlock(&s->mutex);
}

/* Stores the load's first `pages` pages in the tree, if a sequence can end there. */
static void store_result(struct tiers *s, struct tier_load *l, uint32_t pages) {
    uint32_t reached = pages * TILE_TOKENS;
    l->result = l->seq;
    if (l->late && seq_fork(l->seq, &l->result, NULL) != KVASIR_OK)
        l->result = NULL;
    if (!l->result || l->forgotten || pages == 0)
        return;
    if (seq_length(l->result) != reached &&
        (seq_trim(l->result, reached, &reached, NULL) != KVASIR_OK || reached == 0))
        return;
    const uint32_t x = l->at.node;
    const uint64_t life =
        settle_lives(l, pages, is_root(s->tree, x) ? TREE_FOREVER : s->tree->nodes[x].expires);
    tree_store_until(s->tree, &l->at, l->result, s->cache->snapshot_bytes != 0, life);
    if (life != TREE_FOREVER)
        lengthen_lives(s, l, pages);
    note_offered(s, l);
    count_hit(s, l, reached / TILE_TOKENS);
    s->stats.loaded_tokens += reached > l->had ? reached - l->had : 0;
}

/* Nothing after the first page that has not come is wanted any more, and nothing that no reader has
 * taken. With the mutex. Returns how many pages have come. */
static uint32_t cut_late(const struct tiers *s, struct tier_load *l) {
    for (uint32_t i = 0; i < l->n_objects; i++) {
        struct load_object *o = &l->objects[i];
        if (o->store == NO_STORE || o->result != TIER_RESULTS)
            continue;
        l->cut = o->page < l->cut ? o->page : l->cut;
        if (i >= l->taken_to[o->store]) {
            o->result = TIER_MISSING;
            l->open--;
        }
    }
    for (uint32_t i = 0; i < s->options.n; i++)
        l->taken_to[i] = l->n_objects;
    return l->cut;
}

/* Of a store so many bytes have come in these seconds. */
static void note_speed(struct store *w, uint64_t bytes, double seconds) {
    const double speed = (double)bytes / (seconds + 1e-6), known = w->bytes_per_second;
    w->bytes_per_second = known > 0 ? known + (speed - known) / 4 : speed;
}

/* Counts what has come and learns how fast. A late load tells of the stores that it waits for: if
 * nothing has come of one and nothing is known of it, it is taken to be less than a record. */
static void note_loaded(struct tiers *s, const struct tier_load *l, double now) {
    uint64_t bytes[TIERS_MAX] = {0}, awaited[TIERS_MAX] = {0}, all = 0;
    for (uint32_t i = 0; i < l->n_objects; i++) {
        const struct load_object *o = &l->objects[i];
        if (o->store != NO_STORE && o->result == TIER_RESULTS)
            awaited[o->store] = o->bytes;
        if (o->store == NO_STORE || o->result != TIER_OK)
            continue;
        bytes[o->store] += o->bytes;
        all += o->bytes;
        s->stats.loaded_pages++;
        s->stats.loaded_bytes += o->bytes;
    }
    for (uint32_t i = 0; i < s->options.n; i++) {
        struct store *w = &s->stores[i];
        const bool first = !bytes[i] && w->bytes_per_second <= 0;
        w->loads_late += l->late && awaited[i];
        if (l->late && awaited[i])
            note_speed(w, first ? awaited[i] : bytes[i], now - l->started);
        else if (!l->late && bytes[i])
            note_speed(w, all, now - l->started);
    }
}

/* The load is over for whoever waits. pages: that came well, unless it is late. */
static void finish(struct tiers *s, struct tier_load *l, uint32_t pages, double now) {
    pthread_mutex_lock(&s->mutex); /* a late load's readers are not through */
    note_loaded(s, l, now);
    if (l->late)
        pages = cut_late(s, l);
    pthread_mutex_unlock(&s->mutex);
    s->stats.loads_late += l->late;
    s->stats.loads_cut += !l->late && pages * TILE_TOKENS < seq_length(l->seq);
    store_result(s, l, pages);
    pthread_mutex_lock(&s->mutex);
    l->phase = LOAD_DONE;
    pthread_mutex_unlock(&s->mutex);
}

/* A load that found nothing, or has no memory: it is done with nothing. */
static void finish_empty(struct tiers *s, struct tier_load *l) {
    pthread_mutex_lock(&s->mutex);
    l->phase = LOAD_DONE;
    l->open = 0;
    pthread_mutex_unlock(&s->mutex);
}

/* What readers have said about a load. pages: the first that did not come, or all. */
static uint32_t look_at(struct tiers *s, struct tier_load *l, uint32_t *pages) {
    pthread_mutex_lock(&s->mutex);
    const uint32_t open = l->open;
    *pages = l->cut;
    pthread_mutex_unlock(&s->mutex);
    return open;
}

/* The store that is asked has no reader for it in time, so it has nothing; or the reader does not
 * come back: then the load is done with nothing, and lives until it does. */
static void stop_asking(struct tiers *s, struct tier_load *l) {
    pthread_mutex_lock(&s->mutex);
    s->stats.loads_late += l->open > 0; /* it may have come at this moment */
    s->stores[l->asked].loads_late += l->open > 0;
    if (!l->taken)
        l->open = 0;
    else if (l->open > 0)
        l->phase = LOAD_DONE;
    l->taken = true;
    pthread_mutex_unlock(&s->mutex);
}

/* One load between steps. True: it is done now. */
static bool collect_one(struct tiers *s, struct tier_load *l, double now) {
    uint32_t pages, open = look_at(s, l, &pages);
    if (l->phase == LOAD_LOOKING && open > 0 && now >= l->deadline) {
        stop_asking(s, l);
        if (l->phase == LOAD_DONE)
            return true;
        open = 0;
    }
    if (l->phase == LOAD_LOOKING && open == 0) {
        l->asked++;
        if (l->closed || l->forgotten) {
            finish_empty(s, l);
        } else if (!ask_next(s, l)) {
            pages = plan(s, l);
            if (!pages || !begin_reading(s, l, pages))
                finish_empty(s, l);
        }
        return l->phase == LOAD_DONE;
    }
    if (l->phase == LOAD_READING && open == 0) {
        finish(s, l, pages, now);
        return true;
    }
    if (l->phase == LOAD_READING && now >= l->deadline) {
        l->late = true;
        finish(s, l, pages, now);
        return true;
    }
    return false;
}

/* The readers of a late load are through: it keeps what came in time only. */
static void settle_late(struct tier_load *l) {
    l->late = false;
    if (l->result != l->seq)
        seq_destroy(l->seq);
    l->seq = l->result;
    l->held_bytes = l->result ? seq_bytes(l->result) : 0;
}

bool loads_collect(struct tiers *s, double now) {
    bool some = false;
    for (struct tier_load *l = s->loads, *next; l; l = next) {
        uint32_t pages;
        next = l->next;
        some |= collect_one(s, l, now);
        if (l->late && look_at(s, l, &pages) == 0) {
            settle_late(l);
            some = true; /* whoever waits for room may have it now */
        }
        if (l->phase == LOAD_DONE && l->closed && look_at(s, l, &pages) == 0)
            load_free(s, l);
    }
    return some;
}

void loads_forget(struct tiers *s, const void *salt, size_t salt_len) {
    for (struct tier_load *l = s->loads; l; l = l->next)
        if (!salt || (l->salt_len == salt_len && memcmp(l->salt, salt, salt_len) == 0)) {
            l->forgotten = true;
            tree_close(s->tree, &l->at);
        }
}

void loads_free_all(struct tiers *s) {
    while (s->loads) {
        ASSERT(s->loads->closed);
        load_free(s, s->loads);
    }
}

/* ---- for the scheduler ----------------------------------------------------------------------- */

static bool load_init(const struct tiers *s, struct tier_load *l, const void *salt, size_t salt_len,
                      const int32_t *tokens, uint32_t n) {
    const size_t keys = key_at(s, l->n_pages, 0, 0);
    l->salt = mem_alloc(salt_len + 1);
    l->tokens = mem_alloc(n * sizeof *tokens);
    l->keys = mem_calloc(keys, sizeof *l->keys);
    l->key_places = mem_calloc(keys, sizeof *l->key_places);
    l->found = mem_calloc(keys, sizeof *l->found);
    l->have = mem_calloc(keys, sizeof *l->have);
    l->chains = mem_calloc((size_t)l->n_pages + 1, sizeof *l->chains);
    if (!l->salt || !l->tokens || !l->keys || !l->key_places || !l->found || !l->have || !l->chains)
        return false;
    if (salt_len)
        memcpy(l->salt, salt, salt_len);
    memcpy(l->tokens, tokens, n * sizeof *tokens);
    return true;
}

/* Of a prompt with at least one whole page before its last token. NULL: out of memory. */
static struct tier_load *load_make(const struct tiers *s, const void *salt, size_t salt_len,
                                   const int32_t *tokens, uint32_t n) {
    struct tier_load *l = mem_calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->n_pages = (n - 1) / TILE_TOKENS; /* the last token is always run */
    l->n_tokens = n;
    l->salt_len = salt_len;
    l->at = (struct tree_cursor){TREE_NOWHERE};
    l->taken = true; /* not for readers before ask_next says so */
    if (load_init(s, l, salt, salt_len, tokens, n))
        return l;
    load_delete(l);
    return NULL;
}

struct tier_load *tiers_load(struct tiers *s, const void *salt, size_t salt_len,
                             const int32_t *tokens, uint32_t n, uint64_t most_bytes) {
    const uint32_t pages = n ? (n - 1) / TILE_TOKENS : 0;
    const uint32_t had = tree_look(s->tree, salt, salt_len, tokens, n).length;
    if (pages * TILE_TOKENS <= had)
        return NULL;
    struct tier_load *l = load_make(s, salt, salt_len, tokens, n);
    if (!l)
        return NULL;
    l->most_bytes = most_bytes;
    l->had = had;
    pthread_mutex_lock(&s->mutex);
    struct tier_load **end = &s->loads;
    while (*end)
        end = &(*end)->next;
    *end = l;
    pthread_mutex_unlock(&s->mutex);
    name_all(s, l);
    if (ask_next(s, l))
        return l;
    const uint32_t found = plan(s, l);
    if (found && begin_reading(s, l, found))
        return l;
    load_free(s, l);
    return NULL;
}

uint32_t tiers_look(struct tiers *s, const void *salt, size_t salt_len, const int32_t *tokens,
                    uint32_t n) {
    struct tier_load *l = n > TILE_TOKENS ? load_make(s, salt, salt_len, tokens, n) : NULL;
    bool *serves = l ? mem_calloc(l->n_pages, sizeof *serves) : NULL;
    uint32_t pages = serves ? l->n_pages : 0;
    if (serves) {
        name_all(s, l);
        for (uint32_t i = 0; i < s->options.n; i++)
            if (s->stores[i].tier->ops->instant &&
                !store_is_forgetting(&s->stores[i], l->place.root))
                store_find(&s->stores[i], l, 0);
        find_ends(s, l, serves);
    }
    while (pages && !serves[pages - 1])
        pages--;
    mem_free(serves);
    if (l)
        load_delete(l);
    return pages * TILE_TOKENS;
}

bool tier_load_is_done(const struct tier_load *l) {
    return l->phase == LOAD_DONE;
}

void tier_load_close(struct tiers *s, struct tier_load *l) {
    uint32_t pages;
    if (!l)
        return;
    l->closed = true;
    if (l->phase == LOAD_DONE && look_at(s, l, &pages) == 0)
        load_free(s, l);
}

bool tiers_are_loading(const struct tiers *s) {
    const struct tier_load *l = s->loads;
    while (l && (l->closed || l->phase == LOAD_DONE))
        l = l->next;
    return l != NULL;
}

uint64_t tiers_load_bytes(const struct tiers *s, const struct tier_load *but) {
    uint64_t bytes = 0;
    for (const struct tier_load *l = s->loads; l; l = l->next)
        if ((l != but || l->late) && l->seq)
            bytes += l->held_bytes + l->charged;
    return bytes;
}

double loads_next_deadline(const struct tiers *s) {
    double first = 0;
    for (const struct tier_load *l = s->loads; l; l = l->next)
        if (l->phase != LOAD_DONE && (first == 0 || l->deadline < first))
            first = l->deadline;
    return first;
}
