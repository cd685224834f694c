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
 * Each tier has its own queue, so that a slow one does not hold up another. A node that does not
 * fit into all of them is not offered, and tiers_rest tries again later.
 */
#include <string.h>
#include <time.h>

#include "cache/tiers_internal.h"

/* ---- the writer's thread --------------------------------------------------------------------- */

/* Waits for more to do, but not longer than a second: a tier has work of its own (rest). */
static void wait_for_more(struct store *w) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    pthread_cond_timedwait(&w->write_more, &w->all->mutex, &until);
}

struct write_slot *store_first_ready(struct store *w) {
    for (uint32_t i = 0; i < w->n_slots; i++) {
        struct write_slot *slot = &w->slots[(w->first_slot + i) % WRITE_SLOTS];
        if (slot->state == SLOT_READY)
            return slot;
    }
    return NULL;
}

static void wake(const struct tiers *s) {
    if (s->options.wake)
        s->options.wake(s->options.user);
}

/* With the mutex held, which is released meanwhile. */
static void write_one(struct store *w, struct write_slot *slot) {
    struct record_head head = slot->head;
    const bool replaces = slot->replaces;
    slot->state = SLOT_COPYING;
    pthread_mutex_unlock(&w->all->mutex);
    memcpy(w->copy, slot->from, head.bytes);
    pthread_mutex_lock(&w->all->mutex);
    slot->state = SLOT_COPIED;
    w->writing = true;
    pthread_cond_broadcast(&w->all->progress);
    pthread_mutex_unlock(&w->all->mutex);
    wake(w->all);
    head.written = (uint64_t)time(NULL);
    record_seal(&head, w->copy);
    const struct tiers_options *o = &w->all->options;
    const struct tier_place place = {head.context, head.root};
    const bool may = !o->may_write || o->may_write(o->user);
    if (may && replaces)
        w->tier->ops->drop(w->tier, &place, head.key);
    const bool written = may && w->tier->ops->write(w->tier, &head, w->copy);
    pthread_mutex_lock(&w->all->mutex);
    w->writing = false;
    w->failed += !written;
    pthread_cond_broadcast(&w->all->progress);
}

/* The job stays listed until the tier has forgotten: see store_is_forgetting. */
static void forget_one(struct store *w) {
    struct forget_job *job = w->forgets;
    const bool all = !job || !job->has_root;
    w->writing = true;
    pthread_mutex_unlock(&w->all->mutex);
    w->tier->ops->forget(w->tier, w->all->options.context, all ? NULL : &job->root);
    pthread_mutex_lock(&w->all->mutex);
    if (!job)
        w->forget_all = false;
    else if (!(w->forgets = job->next))
        w->forgets_end = &w->forgets;
    mem_free(job);
    w->writing = false;
    pthread_cond_broadcast(&w->all->progress);
}

static void *writer_thread(void *user) {
    struct store *w = user;
    pthread_mutex_lock(&w->all->mutex);
    for (;;) {
        struct write_slot *slot = store_first_ready(w);
        if (w->forgets || w->forget_all) {
            forget_one(w);
        } else if (w->all->stop) { /* what waits is given up: tiers_flush came before */
            break;
        } else if (slot) {
            write_one(w, slot);
        } else {
            pthread_mutex_unlock(&w->all->mutex);
            w->tier->ops->rest(w->tier);
            pthread_mutex_lock(&w->all->mutex);
            if (!store_first_ready(w) && !w->forgets && !w->forget_all && !w->all->stop)
                wait_for_more(w);
        }
    }
    pthread_mutex_unlock(&w->all->mutex);
    return NULL;
}

kvasir_status store_start_writer(struct store *w, kvasir_error *err) {
    uint64_t most = w->all->cache->state_page_bytes;
    for (uint32_t p = 0; p < w->all->cache->n_groups; p++)
        for (uint32_t l = 0; l < w->all->cache->groups[p].n_layouts; l++) {
            const uint64_t bytes = w->all->cache->layouts[p][l].page_bytes;
            most = bytes > most ? bytes : most;
        }
    w->copy = mem_alloc_aligned(most);
    if (!w->copy || pool_charge(w->all->cache->pool, most, NULL) != KVASIR_OK)
        return fail(err, KVASIR_ERR_MEMORY, "no memory for a page that is written to the %s tier",
                    w->tier->ops->name);
    w->all->charged += most;
    w->has_writer = pthread_create(&w->writer, NULL, writer_thread, w) == 0;
    return w->has_writer ? KVASIR_OK : fail(err, KVASIR_ERR_MEMORY, "cannot start a thread");
}

void store_stop_writer(struct store *w) {
    if (w->has_writer)
        pthread_join(w->writer, NULL);
    w->has_writer = false;
    mem_free(w->copy);
}

bool store_is_forgetting(struct store *w, struct tier_key root) {
    pthread_mutex_lock(&w->all->mutex);
    bool some = w->forget_all;
    for (const struct forget_job *job = w->forgets; job && !some; job = job->next)
        some = !job->has_root || tier_key_equal(job->root, root);
    pthread_mutex_unlock(&w->all->mutex);
    return some;
}

bool store_is_writing(struct store *w) {
    pthread_mutex_lock(&w->all->mutex);
    const bool some = w->n_slots || w->writing || w->forgets || w->forget_all;
    pthread_mutex_unlock(&w->all->mutex);
    return some || w->n_waiting;
}

/* ---- the engine's thread --------------------------------------------------------------------- */

/* A node is in no slot and no list of one store any more. */
static void release(struct tiers *s, uint32_t x, bool given_up) {
    struct node *n = &s->tree->nodes[x];
    ASSERT(n->queued > 0);
    n->queued--;
    if (given_up) {
        n->offered = false;
        s->left_over = true;
        s->stats.unwritten_pages++;
    }
    n->outlives &= n->queued > 0 || !n->offered;
    node_unpin(s->tree, x);
}

static void forget_first_waiting(struct store *w, bool given_up) {
    struct tiers *s = w->all;
    const struct waiting first = w->waiting[w->first_waiting];
    w->first_waiting = (w->first_waiting + 1) % WAITING_MAX;
    w->n_waiting--;
    w->next_part = 0;
    w->waiting_bytes -= first.bytes;
    if (given_up)
        release(s, first.node, true);
}

/* The next record of the first node that waits goes into a slot. */
static void fill_slot(struct store *w, struct write_slot *slot) {
    struct tiers *s = w->all;
    struct prefix_tree *t = s->tree;
    const uint32_t x = w->waiting[w->first_waiting].node, before = node_before_page(t, x),
                   part = w->next_part++;
    const struct kv_page at = part_at(s, x, part);
    int32_t tokens[TILE_TOKENS];
    node_page_tokens(t, x, tokens);
    slot->state = SLOT_READY;
    slot->node = x;
    part_head(s, part, at.layout, t->nodes[x].number, t->nodes[node_root(t, x)].chain,
              t->nodes[before].chain, t->nodes[x].chain, tokens, &slot->head);
    slot->from = part_host(s, at.addr, slot->head.bytes);
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
    for (;;) {
        pthread_mutex_lock(&s->mutex);
        const bool full = w->n_slots == WRITE_SLOTS;
        pthread_mutex_unlock(&s->mutex);
        if (!w->n_waiting || full)
            return;
        const uint32_t x = w->waiting[w->first_waiting].node;
        if (!find_next_part(w)) { /* nothing is left of it */
            forget_first_waiting(w, false);
            release(s, x, false);
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
 * for a page that is being copied. */
static void take_back(struct store *w, bool all) {
    struct tiers *s = w->all;
    uint32_t nodes[WRITE_SLOTS], n = 0;
    bool given_up[WRITE_SLOTS];
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
    pthread_mutex_unlock(&s->mutex);
    for (uint32_t i = 0; i < n; i++)
        release(s, nodes[i], given_up[i]);
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

/* Whether the node is one that tiers can have and have not been given. */
static bool is_due(const struct tiers *s, uint32_t x) {
    const struct node *n = &s->tree->nodes[x];
    return !is_root(s->tree, x) && n->to == TILE_TOKENS && !n->offered &&
           !has_expired(s->tree, x) && node_held_bytes(s->tree, x) > 0;
}

/* Puts a node into all queues. False: it does not fit. */
static bool offer(struct tiers *s, uint32_t x) {
    const uint64_t bytes = node_held_bytes(s->tree, x);
    for (uint32_t i = 0; i < s->options.n; i++) {
        const struct store *w = &s->stores[i];
        if (w->n_waiting == WAITING_MAX || w->waiting_bytes + bytes > s->options.queue_bytes)
            return false;
    }
    for (uint32_t i = 0; i < s->options.n; i++) {
        struct store *w = &s->stores[i];
        node_pin(s->tree, x);
        s->tree->nodes[x].queued++;
        w->waiting[(w->first_waiting + w->n_waiting++) % WAITING_MAX] = (struct waiting){x, bytes};
        w->waiting_bytes += bytes;
    }
    s->tree->nodes[x].offered = true;
    s->tree->nodes[x].offered_until = s->tree->nodes[x].expires;
    s->stats.offered_pages++;
    return true;
}

/* The pages of a path that are due, parents first: the deepest ancestor that was offered ends the
 * search. Nodes are listed from the end, so a long path is cut at its end, not at its beginning. */
void tiers_offer(struct tiers *s, const struct tree_cursor *at) {
    enum { MOST = 512 };
    uint32_t due[MOST], n = 0;
    if (at->node == TREE_NOWHERE)
        return;
    for (uint32_t x = at->node; !is_root(s->tree, x); x = s->tree->nodes[x].parent) {
        if (s->tree->nodes[x].offered)
            break;
        if (is_due(s, x))
            due[n++ % MOST] = x;
    }
    for (uint32_t i = 0; i < n; i++)
        if (i == MOST || !offer(s, due[(n - 1 - i) % MOST])) {
            s->left_over = true;
            break;
        }
    for (uint32_t i = 0; i < s->options.n; i++)
        hand_over(&s->stores[i]);
}

bool tiers_rest(struct tiers *s, uint32_t nodes) {
    struct prefix_tree *t = s->tree;
    if (!s->left_over)
        return false;
    for (uint32_t i = 0; i < nodes && s->rest_at < t->n_made; i++) {
        const uint32_t x = s->rest_at++;
        /* free nodes and roots have from == to */
        if (t->nodes[x].from != t->nodes[x].to && is_due(s, x)) {
            const struct tree_cursor at = {x};
            tiers_offer(s, &at);
            if (!t->nodes[x].offered) { /* the queues are full */
                s->rest_at--;
                return false;
            }
        }
    }
    if (s->rest_at < t->n_made)
        return true;
    s->rest_at = 0;
    s->left_over = false;
    return false;
}

void tiers_flush(struct tiers *s, double seconds) {
    const double until = clock_seconds() + seconds;
    s->rest_at = 0;
    s->left_over = true;
    while (clock_seconds() < until) {
        bool writing = false;
        for (uint32_t i = 0; i < s->options.n; i++) {
            store_collect(&s->stores[i]);
            writing |= store_is_writing(&s->stores[i]);
        }
        (void)tiers_rest(s, UINT32_MAX);
        if (!s->left_over && !writing)
            return;
        struct timespec tick;
        clock_gettime(CLOCK_REALTIME, &tick);
        tick.tv_nsec += 20 * 1000 * 1000;
        tick.tv_sec += tick.tv_nsec / 1000000000;
        tick.tv_nsec %= 1000000000;
        pthread_mutex_lock(&s->mutex);
        pthread_cond_timedwait(&s->progress, &s->mutex, &tick);
        pthread_mutex_unlock(&s->mutex);
    }
    tiers_relent(s);
}

void store_forget(struct store *w, const struct tier_key *root) {
    struct forget_job *job = mem_alloc(sizeof *job);
    if (job)
        *job = (struct forget_job){.has_root = root != NULL};
    if (job && root)
        job->root = *root;
    pthread_mutex_lock(&w->all->mutex);
    if (job) {
        *w->forgets_end = job;
        w->forgets_end = &job->next;
    } else { /* better to forget too much than too little */
        w->forget_all = true;
    }
    pthread_cond_signal(&w->write_more);
    pthread_mutex_unlock(&w->all->mutex);
}
