/* SPDX-License-Identifier: Apache-2.0 */
/* tiers_check.c: finds out what tiers have lost of what they were given: a disk drops its oldest
 * files, a Redis evicts, lets values expire, or starts again with nothing. A page that the tree
 * answers from is not read from them, so to a tier the most used prefix looks like the least used.
 *
 *     a round       the nodes that were used since the last one; at the end (tiers_flush) all nodes
 *       question    up to CHECK_NODES of one root: the writer asks the tier, between two records
 *       answer      what is missing is not `offered` any more, so it is offered again
 *
 * The writer asks because it is the one who writes: whatever left its queue before the question was
 * written before the answer. A tier that loses what it is given, as one that is smaller than the
 * tree, would be given the same pages for ever: rounds that find something are ever rarer. And a
 * tier without room for twice the tree's pages gets only those back that requests share: others
 * would push out what is newer.
 *
 * A page that was written before it was stored with fewer bits is there as it was then: that is
 * enough.
 */
#include "cache/tiers_internal.h"

enum {
    NODES_LOOKED_AT = 4096, /* between two steps, at most */
    LONGEST_PAUSE = 64      /* in the shortest one's length */
};

/* ---- rounds ---------------------------------------------------------------------------------- */

static void begin_round(struct store *w, bool all) {
    w->round.on = true;
    w->round.all = all;
    w->round.lost = w->round.failed = false;
    w->round.shared_only =
        w->limit_bytes && w->limit_bytes / 2 < kv_pool_stats(w->all->cache->pool).used_bytes;
    w->round.at = 0;
    w->round.begun = w->all->tree->clock;
}

static void end_round(struct store *w, double now) {
    const double least = w->all->options.check_seconds, most = LONGEST_PAUSE * least;
    w->round.on = false;
    if (!w->round.failed)
        w->round.since = w->round.begun;
    w->round.pause = w->round.lost ? 2 * w->round.pause : least;
    w->round.pause = w->round.pause < most ? w->round.pause : most;
    w->round.due = now + w->round.pause;
}

void store_check_all(struct store *w) {
    begin_round(w, true);
}

double store_check_due(const struct store *w) {
    return w->round.waits ? 0 : w->round.due;
}

/* ---- questions ------------------------------------------------------------------------------- */

/* Whether the tier should have the node, and the round is about it. */
static bool is_asked_for(const struct store *w, uint32_t x) {
    const struct prefix_tree *t = w->all->tree;
    const struct node *n = &t->nodes[x];
    return n->to == TILE_TOKENS && (n->offered & store_bit(w)) && !n->queued &&
           (w->round.all || n->used > w->round.since) && (!w->round.shared_only || n->uses > 1) &&
           !has_expired(t, x) && node_held_bytes(t, x) > 0;
}

static void add_node(struct store *w, uint32_t x) {
    const struct tiers *s = w->all;
    struct tier_check *c = &w->check;
    c->nodes[c->n].node = x;
    c->nodes[c->n].chain = s->tree->nodes[x].chain;
    c->nodes[c->n++].first_key = c->n_keys;
    for (uint32_t part = 0; part < s->parts; part++) {
        struct record_head head;
        if (part_at(s, x, part).addr == NO_ADDR)
            continue;
        (void)node_part(s, x, part, c->place.root, &head);
        for (uint32_t v = 0; v < s->variants; v++) {
            if (!part_is_state(s, part))
                part_formats(s, part, layout_of_variant(s, part, head.number, v), &head);
            head.key = record_key(&head);
            c->keys[c->n_keys++] = head.key;
        }
    }
}

/* The next nodes of the round. Their root is known from the one before where that is the parent;
 * else the way up to it counts as nodes that are looked at. */
static void fill(struct store *w) {
    const struct prefix_tree *t = w->all->tree;
    struct tier_check *c = &w->check;
    uint32_t last = NO_NODE, root = NO_NODE, looked = 0;
    c->n = c->n_keys = 0;
    for (; w->round.at < t->n_made && c->n < CHECK_NODES && looked < NODES_LOOKED_AT;
         w->round.at++, looked++) {
        const uint32_t x = w->round.at;
        if (!is_asked_for(w, x))
            continue;
        const bool known = last != NO_NODE && t->nodes[x].parent == last;
        const uint32_t mine = known ? root : node_root(t, x);
        looked += known ? 0 : t->nodes[x].number;
        if (c->n && mine != root)
            break;
        c->place = (struct tier_place){w->all->options.context, t->nodes[mine].chain};
        add_node(w, x);
        last = x;
        root = mine;
    }
}

static void ask(struct store *w) {
    struct tiers *s = w->all;
    w->round.waits = true;
    pthread_mutex_lock(&s->mutex);
    w->check.state = CHECK_ASKED;
    pthread_cond_signal(&w->write_more);
    pthread_mutex_unlock(&s->mutex);
}

bool store_answer(struct store *w) {
    struct tiers *s = w->all;
    struct tier_check *c = &w->check;
    struct tier_stats stats;
    if (c->state != CHECK_ASKED)
        return false;
    pthread_mutex_unlock(&s->mutex);
    w->tier->ops->find(w->tier, &c->place, c->keys, c->n_keys, c->have,
                       clock_seconds() + s->options.late_seconds);
    w->tier->ops->stats(w->tier, &stats);
    pthread_mutex_lock(&s->mutex);
    c->down = stats.down;
    c->state = CHECK_ANSWERED;
    pthread_cond_broadcast(&s->progress);
    pthread_mutex_unlock(&s->mutex);
    wake_owner(s);
    pthread_mutex_lock(&s->mutex);
    return true;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Node i of the question is one that the tier lacks: it is to be offered again. */
static void note_lost(struct store *w, uint32_t i) {
    const struct tier_check *c = &w->check;
    const uint32_t x = c->nodes[i].node;
    struct node *n = &w->all->tree->nodes[x];
    if (n->to != TILE_TOKENS || !tier_key_equal(n->chain, c->nodes[i].chain) || n->queued)
        return;
    n->offered &= (uint8_t)~store_bit(w);
    w->round.lost = true;
    w->rest_at = w->left_over && w->rest_at < x ? w->rest_at : x;
    w->left_over = true;
}

static void take_answer(struct store *w) {
    const struct tier_check *c = &w->check;
    const uint32_t variants = w->all->variants;
    w->round.failed |= c->down;
    for (uint32_t i = 0; i < c->n && !c->down; i++) {
        const uint32_t end = i + 1 < c->n ? c->nodes[i + 1].first_key : c->n_keys;
        bool have = true;
        for (uint32_t key = c->nodes[i].first_key; key < end; key += variants)
            have = have && (c->have[key] || c->have[key + variants - 1]);
        if (!have)
            note_lost(w, i);
    }
}

/* False: it has not come. */
static bool collect(struct store *w) {
    if (!w->round.waits)
        return true;
    pthread_mutex_lock(&w->all->mutex);
    const bool come = w->check.state == CHECK_ANSWERED;
    w->check.state = come ? CHECK_NONE : w->check.state;
    pthread_mutex_unlock(&w->all->mutex);
    w->round.waits = !come;
    if (come)
        take_answer(w);
    return come;
}

void store_check(struct store *w, double now) {
    if (w->all->options.now || !collect(w)) /* simulations: no thread answers */
        return;
    if (w->round.due == 0 && !w->round.on)
        end_round(w, now); /* the first one begins after a pause, too */
    if (!w->round.on && now >= w->round.due)
        begin_round(w, false);
    while (w->round.on && !w->round.waits) {
        fill(w);
        if (w->check.n)
            ask(w);
        else if (w->round.at >= w->all->tree->n_made)
            end_round(w, now);
        else if (!w->round.all)
            return;
    }
}
