/* SPDX-License-Identifier: Apache-2.0 */
/* tiers_write.c: pages of the tree become records.
 *
 *     tiers_offer --> waiting (pinned nodes) --> slots --> the writer: copies, seals, writes
 *                     the engine's thread only   ^ a few, under the mutex
 *
 * A node waits pinned, so its pages are neither evicted nor changed. It is unpinned once its last
 * record has been copied, however long writing takes. Pages are offered parents first, so that what
 * is written can be found: a record is of no use without those before it.
 *
 * Each tier has its own queue, so that a slow one does not hold up another, and each node a bit for
 * each tier that was given it (offered). The bit is taken back if the node is given up or a record
 * of it was not written, so tiers_rest and later offers give each tier what it lacks. What a tier
 * did not take (refused) is offered to it again after a pause, which doubles while that fails. And
 * tiers_check.c takes the bit back when a tier has lost what it took.
 */
#include <string.h>
#include <time.h>

#include "cache/tiers_internal.h"

/* ---- the writer's thread --------------------------------------------------------------------- */

/* With the mutex held. */
static void wait_at_most(struct tiers *s, pthread_cond_t *changed, uint32_t ms) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(changed, &s->mutex, &until);
}

struct write_slot *store_first_ready(struct store *w) {
    for (uint32_t i = 0; i < w->n_slots; i++) {
        struct write_slot *slot = &w->slots[(w->first_slot + i) % WRITE_SLOTS];
        if (slot->state == SLOT_READY)
            return slot;
    }
    return NULL;
}

/* With the mutex held, after a node's record was written or not. The node is reported once, with
 * its last record. True: it was. */
static bool report(struct store *w, const struct write_slot *slot, bool written, bool again) {
    const struct tier_key chain = slot->head.chain;
    if (!written)
        w->failing = chain;
    if (!slot->last || !tier_key_equal(w->failing, chain))
        return false;
    ASSERT(w->n_unwritten < sizeof w->unwritten / sizeof *w->unwritten);
    w->unwritten[w->n_unwritten++] = (struct unwritten){slot->node, chain, again};
    w->failing = (struct tier_key){{0}};
    return true;
}

/* With the mutex held, which is released meanwhile. */
static void write_one(struct store *w, struct write_slot *slot) {
    const struct tiers_options *o = &w->all->options;
    struct write_slot mine = *slot; /* the slot has another use once its page was copied */
    const bool barred = store_has_to_forget(w, &mine.head.root);
    slot->state = SLOT_COPYING;
    pthread_mutex_unlock(&w->all->mutex);
    const bool copied = mover_get(&w->mover, mine.addr, mine.head.bytes);
    pthread_mutex_lock(&w->all->mutex);
    slot->state = SLOT_COPIED;
    w->writing = true;
    pthread_cond_broadcast(&w->all->progress);
    pthread_mutex_unlock(&w->all->mutex);
    wake_owner(w->all);
    mine.head.written = (uint64_t)time(NULL);
    record_seal(&mine.head, w->mover.memory);
    const struct tier_place place = {mine.head.context, mine.head.root};
    const bool may = !o->may_write || o->may_write(o->user), writes = may && !barred && copied;
    if (writes && mine.replaces)
        w->tier->ops->drop(w->tier, &place, mine.head.key);
    const bool written = writes && w->tier->ops->write(w->tier, &mine.head, w->mover.memory);
    pthread_mutex_lock(&w->all->mutex);
    w->writing = false;
    const bool reported = report(w, &mine, written, may);
    pthread_cond_broadcast(&w->all->progress);
    if (reported) {
        pthread_mutex_unlock(&w->all->mutex);
        wake_owner(w->all);
        pthread_mutex_lock(&w->all->mutex);
    }
}

static void *writer_thread(void *user) {
    struct store *w = user;
    pthread_mutex_lock(&w->all->mutex);
    for (;;) {
        const bool stop = w->all->stop;
        if (store_forget_next(w) && !stop)
            continue;
        if (stop) /* what waits is given up: tiers_flush came before */
            break;
        if (store_answer(w))
            continue;
        struct write_slot *slot = store_first_ready(w);
        if (slot) {
            write_one(w, slot);
        } else {
            pthread_mutex_unlock(&w->all->mutex);
            w->tier->ops->rest(w->tier);
            pthread_mutex_lock(&w->all->mutex);
            if (!store_first_ready(w) && !store_forget_is_due(w) && !w->all->stop &&
                w->check.state != CHECK_ASKED)
                wait_at_most(w->all, &w->write_more, 1000); /* a tier has work of its own: rest */
        }
    }
    pthread_mutex_unlock(&w->all->mutex);
    return NULL;
}

kvasir_status store_start_writer(struct store *w, kvasir_error *err) {
    const struct tiers *s = w->all;
    uint64_t most;
    (void)tiers_block_bytes(s->cache, &most);
    const uint64_t charge = pages_are_far(s) ? 0 : most; /* far: not memory of the budget */
    if (!mover_open(s, most, &w->mover) || pool_charge(s->cache->pool, charge, NULL) != KVASIR_OK)
        return fail(err, KVASIR_ERR_MEMORY, "no memory for a page that is written to the %s tier",
                    w->tier->ops->name);
    w->all->charged += charge;
    w->has_writer = pthread_create(&w->writer, NULL, writer_thread, w) == 0;
    return w->has_writer ? KVASIR_OK : fail(err, KVASIR_ERR_MEMORY, "cannot start a thread");
}

void store_stop_writer(struct store *w) {
    if (w->has_writer)
        pthread_join(w->writer, NULL);
    w->has_writer = false;
    mover_close(&w->mover);
    store_drop_forgets(w);
}

bool store_is_writing(struct store *w) {
    pthread_mutex_lock(&w->all->mutex);
    const bool some = w->n_slots || w->writing || store_forget_is_due(w);
    pthread_mutex_unlock(&w->all->mutex);
    return some || w->n_waiting;
}

/* ---- the engine's thread --------------------------------------------------------------------- */

void store_leave_over(struct store *w) {
    w->left_over = true;
    w->rest_at = 0;
}

/* A node is in no slot and not in the list of the store any more. */
static void release(struct store *w, uint32_t x, bool given_up) {
    struct tiers *s = w->all;
    struct node *n = &s->tree->nodes[x];
    ASSERT(n->queued > 0);
    n->queued--;
    if (given_up) {
        n->offered &= (uint8_t)~store_bit(w);
        s->stats.unwritten_pages++;
        store_leave_over(w);
    }
    n->outlives &= n->queued > 0 || n->offered != (1u << s->options.n) - 1;
    node_unpin(s->tree, x);
}

/* A tier that fails is tried again soon, then ever more rarely while that fails, too. */
static void back_off(struct store *w) {
    const double now = clock_seconds();
    w->refused = true;
    w->retries = false;
    if (now < w->retry_at) /* one that was on its way when another failed */
        return;
    const bool soon = now < w->retry_at + w->pause;
    w->pause = longer_pause(soon ? w->pause : 0);
    w->retry_at = now + w->pause;
}

static void take_unwritten(struct store *w, const struct unwritten *u) {
    struct node *n = &w->all->tree->nodes[u->node];
    w->all->stats.unwritten_pages++;
    if (!u->again)
        return;
    back_off(w);
    if (n->to == TILE_TOKENS && tier_key_equal(n->chain, u->chain)) {
        n->offered &= (uint8_t)~store_bit(w);
        n->refused |= store_bit(w);
    }
}

void store_retry(struct store *w, double now) {
    if (!w->refused || now < w->retry_at)
        return;
    w->refused = false;
    w->retries = true;
    store_leave_over(w);
}

static void forget_first_waiting(struct store *w, bool given_up) {
    const struct waiting first = w->waiting[w->first_waiting];
    w->first_waiting = (w->first_waiting + 1) % WAITING_MAX;
    w->n_waiting--;
    w->next_part = 0;
    w->waiting_bytes -= first.bytes;
    if (given_up)
        release(w, first.node, true);
}

/* K(0) of node x. Mostly the node before it on its path was in a slot last, or x itself was. */
static struct tier_key root_of(struct store *w, uint32_t x, uint32_t before) {
    const struct prefix_tree *t = w->all->tree;
    const struct tier_key chain = t->nodes[x].chain;
    if (!tier_key_equal(w->last, t->nodes[before].chain) && !tier_key_equal(w->last, chain))
        w->last_root = t->nodes[node_root(t, x)].chain;
    w->last = chain;
    return w->last_root;
}

/* The next record of the first node that waits goes into a slot. */
static void fill_slot(struct store *w, struct write_slot *slot) {
    struct tiers *s = w->all;
    struct prefix_tree *t = s->tree;
    const uint32_t x = w->waiting[w->first_waiting].node, before = node_before_page(t, x),
                   part = w->next_part++;
    const struct kv_page at = node_part(s, x, part, root_of(w, x, before), &slot->head);
    slot->state = SLOT_READY;
    slot->node = x;
    slot->addr = at.addr;
    slot->head.expires = t->nodes[x].expires == TREE_FOREVER ? 0 : t->nodes[x].expires;
    slot->replaces = t->nodes[x].outlives;
}

/* Whether the first node that waits has a part that is not in a slot yet: next_part is there. */
static bool find_next_part(struct store *w) {
    const uint32_t x = w->waiting[w->first_waiting].node;
    while (w->next_part < w->all->parts && part_at(w->all, x, w->next_part).addr == NO_ADDR)
        w->next_part++;
    return w->next_part < w->all->parts;
}

/* Hands over as much as fits. A node leaves the list with its last part. */
static void hand_over(struct store *w) {
    struct tiers *s = w->all;
    if (w->n_waiting)
        movers_follow(s);
    for (;;) {
        pthread_mutex_lock(&s->mutex);
        const bool full = w->n_slots == WRITE_SLOTS;
        pthread_mutex_unlock(&s->mutex);
        if (!w->n_waiting || full)
            return;
        const uint32_t x = w->waiting[w->first_waiting].node;
        if (!find_next_part(w)) { /* nothing is left of it */
            forget_first_waiting(w, false);
            release(w, x, false);
            continue;
        }
        struct write_slot slot;
        fill_slot(w, &slot);
        slot.last = !find_next_part(w);
        if (slot.last)
            forget_first_waiting(w, false);
        pthread_mutex_lock(&s->mutex);
        w->slots[(w->first_slot + w->n_slots++) % WRITE_SLOTS] = slot;
        pthread_cond_signal(&w->write_more);
        pthread_mutex_unlock(&s->mutex);
    }
}

/* Slots that were copied, from the first on; with `all` also those that no writer has taken. Waits
 * for a page that is being copied. Also takes reports of what was not written. */
static void take_back(struct store *w, bool all) {
    struct tiers *s = w->all;
    uint32_t nodes[WRITE_SLOTS], n = 0;
    bool given_up[WRITE_SLOTS];
    struct unwritten unwritten[WRITE_SLOTS + 1];
    pthread_mutex_lock(&s->mutex);
    while (w->n_slots) {
        struct write_slot *slot = &w->slots[w->first_slot];
        if (all && slot->state == SLOT_COPYING) {
            pthread_cond_wait(&s->progress, &s->mutex);
            continue;
        }
        if (slot->state == SLOT_COPYING || (slot->state == SLOT_READY && !all))
            break;
        given_up[n] = slot->state == SLOT_READY;
        if (slot->last)
            nodes[n++] = slot->node;
        w->first_slot = (w->first_slot + 1) % WRITE_SLOTS;
        w->n_slots--;
    }
    const uint32_t n_unwritten = w->n_unwritten;
    memcpy(unwritten, w->unwritten, n_unwritten * sizeof *unwritten);
    w->n_unwritten = 0;
    pthread_mutex_unlock(&s->mutex);
    for (uint32_t i = 0; i < n_unwritten; i++)
        take_unwritten(w, &unwritten[i]);
    for (uint32_t i = 0; i < n; i++)
        release(w, nodes[i], given_up[i]);
}

void store_collect(struct store *w) {
    take_back(w, false);
    hand_over(w);
}

void tiers_relent(struct tiers *s) {
    for (uint32_t i = 0; i < s->options.n; i++) {
        struct store *w = &s->stores[i];
        take_back(w, true);
        while (w->n_waiting)
            forget_first_waiting(w, true);
    }
}

/* ---- offering -------------------------------------------------------------------------------- */

/* Whether the node is one that the tier can have and has not been given. */
static bool is_due(const struct store *w, uint32_t x) {
    const struct node *n = &w->all->tree->nodes[x];
    const uint8_t not_now = w->retries ? n->offered : n->offered | n->refused;
    return n->to == TILE_TOKENS && !n->descended && !(not_now & store_bit(w)) &&
           !has_expired(w->all->tree, x) && node_held_bytes(w->all->tree, x) > 0;
}

/* Puts a node into the queue, which then has at most so many. False: it does not fit. An empty
 * queue has room for any node, however large. */
static bool offer(struct store *w, uint32_t x, uint32_t most) {
    struct tiers *s = w->all;
    struct node *n = &s->tree->nodes[x];
    const uint64_t bytes = node_held_bytes(s->tree, x);
    if (w->n_waiting >= most || (w->n_waiting && w->waiting_bytes + bytes > s->options.queue_bytes))
        return false;
    node_pin(s->tree, x);
    n->queued++;
    if (!n->offered)
        n->offered_until = n->expires;
    n->offered |= store_bit(w);
    n->refused &= (uint8_t)~store_bit(w);
    w->waiting[(w->first_waiting + w->n_waiting++) % WAITING_MAX] = (struct waiting){x, bytes};
    w->waiting_bytes += bytes;
    s->stats.offered_pages++;
    return true;
}

/* Offers the nodes of a path that are due, parents first: the whole path, or as far as no ancestor
 * was offered. False: they did not all fit. Nodes are listed from the end, so a long path is cut at
 * its end, not at its beginning. */
static bool offer_path(struct store *w, uint32_t x, bool whole, uint32_t most) {
    enum { MOST = 512 };
    const struct prefix_tree *t = w->all->tree;
    uint32_t due[MOST], n = 0;
    for (; !is_root(t, x); x = t->nodes[x].parent) {
        if (!whole && (t->nodes[x].offered & store_bit(w)))
            break;
        if (t->nodes[x].descended && !(t->nodes[x].offered & store_bit(w)))
            n = 0; /* the tier will not have it, so what comes after it is of no use there */
        if (is_due(w, x))
            due[n++ % MOST] = x;
    }
    for (uint32_t i = 0; i < n; i++)
        if (i == MOST || !offer(w, due[(n - 1 - i) % MOST], most))
            return false;
    return true;
}

void tiers_offer(struct tiers *s, const struct tree_cursor *at) {
    if (at->node == TREE_NOWHERE)
        return;
    for (uint32_t i = 0; i < s->options.n; i++) {
        struct store *w = &s->stores[i];
        /* above what was offered something may be left only if anything is */
        if (!offer_path(w, at->node, w->left_over, WAITING_MAX))
            store_leave_over(w);
        hand_over(w);
    }
}

/* As tiers_rest, for one store. */
static bool rest(struct store *w, uint32_t nodes) {
    const struct prefix_tree *t = w->all->tree;
    if (!w->left_over)
        return false;
    for (uint32_t i = 0; i < nodes && w->rest_at < t->n_made; i++, w->rest_at++) {
        if (!is_due(w, w->rest_at))
            continue;
        const bool fits = offer_path(w, w->rest_at, false, w->retries ? TRIAL_NODES : WAITING_MAX);
        hand_over(w);
        if (!fits)
            return false;
    }
    if (w->rest_at < t->n_made)
        return true;
    w->rest_at = 0;
    w->left_over = w->retries = false;
    return false;
}

bool tiers_rest(struct tiers *s, uint32_t nodes) {
    bool more = false;
    for (uint32_t i = 0; i < s->options.n; i++)
        more |= rest(&s->stores[i], nodes);
    return more;
}

/* Whether a store has something to do for tiers_flush. */
static bool flush_one(struct store *w) {
    store_collect(w);
    store_check(w, clock_seconds());
    (void)rest(w, UINT32_MAX);
    return w->left_over || w->round.on || store_is_writing(w);
}

/* With the mutex held: whether an answer waits to be taken. */
static bool is_answered(const struct tiers *s) {
    bool some = false;
    for (uint32_t i = 0; i < s->options.n; i++)
        some |= s->stores[i].check.state == CHECK_ANSWERED;
    return some;
}

void tiers_flush(struct tiers *s, double seconds) {
    const double until = clock_seconds() + seconds;
    for (uint32_t i = 0; i < s->options.n; i++) {
        s->stores[i].retries = true; /* once more, also what a tier did not take */
        store_leave_over(&s->stores[i]);
        store_check_all(&s->stores[i]); /* and what a tier has no more */
    }
    while (clock_seconds() < until) {
        bool some = false;
        for (uint32_t i = 0; i < s->options.n; i++)
            some |= flush_one(&s->stores[i]);
        if (!some)
            return;
        pthread_mutex_lock(&s->mutex);
        if (!is_answered(s))
            wait_at_most(s, &s->progress, 20);
        pthread_mutex_unlock(&s->mutex);
    }
    tiers_relent(s);
}
