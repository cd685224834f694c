/* SPDX-License-Identifier: Apache-2.0 */
/* tiers_read.c: the threads that read records into the pages of loads, and that ask tiers which do
 * not answer from memory. They see a load's list of objects, its keys and nothing else of it.
 *
 * A reader takes neighbouring objects of one load, as many as make a good exchange with a disk or a
 * network. Loads are served in the order in which they came. What was read is compared with what
 * was wanted here, so that no other place can forget it, and published record by record, or once
 * all of a batch has come if a device copies it from where the tier has it: a load that is late has
 * what was published. The first page that did not come well is the load's cut, and
 * nothing after it is read any more.
 */
#define _GNU_SOURCE             /* gettid */
#define XXH_STATIC_LINKING_ONLY /* XXH3_state_t on the stack */
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "cache/tiers_internal.h"

/* A busy core gives a thread of nice 14 about 4 % of its time, an idle one all: a load that finds
 * no idle core takes longer, and the steps of others slow down by a third instead of doubling
 * (docs/speed.md). */
enum { READER_NICE = 14 };

/* ---- taking work, with the mutex held -------------------------------------------------------- */

static void close_object(struct tier_load *l, struct load_object *o, enum tier_result result) {
    o->result = result;
    if (result != TIER_OK && o->page < l->cut)
        l->cut = o->page;
    ASSERT(l->open > 0);
    l->open--;
}

/* What is lent is waited for once for each batch, so batches are large. But each reader has a part
 * of the load, and three quarters of the tier are free to make room for others. */
static uint64_t batch_bytes(const struct store *w, const struct tier_load *l) {
    if (!w->tier->ops->lend || !pages_are_far(w->all))
        return READ_BYTES;
    const uint64_t part = min_size(l->read_bytes, w->limit_bytes / 4) / w->n_readers;
    return max_size(READ_BYTES, min_size(LENT_BYTES, part));
}

bool store_take(struct store *w, struct tier_load *l, struct batch_read *out) {
    const uint64_t most = batch_bytes(w, l);
    uint64_t bytes = 0;
    uint32_t *i = &l->taken_to[w->index];
    out->n = 0;
    for (; *i < l->n_objects && out->n < READ_RECORDS; ++*i) {
        struct load_object *o = &l->objects[*i];
        if (o->store != w->index)
            continue;
        if (o->page >= l->cut) {
            close_object(l, o, TIER_MISSING);
            continue;
        }
        if (out->n && bytes + o->bytes > most)
            break;
        out->objects[out->n++] = *i;
        bytes += o->bytes;
    }
    out->load = l;
    out->deadline = l->deadline;
    return out->n > 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* A batch whose results are published one after the other. Once all objects of a load have theirs,
 * it may be freed at any moment: what comes later looks at `reads` alone. */
struct reading {
    const struct reader *reader;
    const struct batch_read *batch;
    struct tier_read reads[READ_RECORDS];
    uint64_t now;
};

/* Compares what was read with what was wanted. True: it is an intact record, but another one. */
static bool compare(const struct tiers *s, struct tier_read *r, const struct record_head *wanted,
                    uint64_t now) {
    if (r->result != TIER_OK || s->options.unchecked || record_is(&r->head, wanted, now))
        return false;
    r->result = TIER_DAMAGED;
    return !record_is(&r->head, wanted, 0); /* not merely expired */
}

/* By the tier, or after it. A page that the host does not reach gets its bytes here, unless
 * read_lent gave them to it. */
static void publish(struct tier_read *r) {
    const struct reading *x = r->user;
    struct store *w = x->reader->store;
    struct tiers *s = w->all;
    struct tier_load *l = x->batch->load;
    struct load_object *o = &l->objects[x->batch->objects[r - x->reads]];
    r->ended = NULL;
    const bool rejected = compare(s, r, &o->wanted, x->now);
    if (r->result == TIER_OK && x->reader->mover.memory) {
        mover_put(&x->reader->mover, o->at.addr, 0, r->payload, r->bytes);
        if (!mover_wait(&x->reader->mover))
            r->result = TIER_FAILED;
    }
    pthread_mutex_lock(&s->mutex);
    w->rejected += rejected;
    o->expires = r->head.expires && r->head.expires < TREE_FOREVER ? r->head.expires : TREE_FOREVER;
    close_object(l, o, r->result);
    const bool last = l->open == 0;
    if (last)
        pthread_cond_broadcast(&s->progress);
    pthread_mutex_unlock(&s->mutex);
    if (last)
        wake_owner(s);
}

/* Others shall not find again what was damaged. Whoever waits for the load does not wait for
 * this. */
static void drop_damaged(struct reading *x) {
    struct tier *t = x->reader->store->tier;
    for (uint32_t i = 0; i < x->batch->n; i++) {
        const struct tier_place place = {x->reads[i].context, x->reads[i].root};
        if (x->reads[i].result == TIER_DAMAGED)
            t->ops->drop(t, &place, x->reads[i].key);
    }
}

/* The device copies the records of a batch from where the tier has them, while this thread sums
 * them there, and is waited for once: to wake up takes longer than to copy a page (docs/speed.md).
 * What turns out to be damaged is in a page that nobody will see. */
static void read_lent(const struct reader *reader, struct tier_read *reads,
                      const uint32_t *addresses, uint32_t n) {
    struct tier *t = reader->store->tier;
    const double start = clock_seconds();
    struct tier_loan loans[READ_RECORDS];
    bool lent[READ_RECORDS];
    const uint8_t *from;
    size_t bytes;
    for (uint32_t i = 0; i < n; i++) {
        lent[i] = t->ops->lend(t, reads[i].key, &loans[i]);
        if (!lent[i] || loans[i].left != reads[i].bytes) /* record_begin finds that it is damaged */
            continue;
        struct tier_loan copied = loans[i];
        for (uint64_t at = 0; (from = t->ops->lent(t, &copied, &bytes)) != NULL; at += bytes)
            mover_put(&reader->mover, addresses[i], at, from, bytes);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!lent[i])
            continue;
        struct tier_loan summed = loans[i];
        reads[i].sum = reader->sum;
        if (record_begin(&reads[i], summed.head)) {
            ASSERT(summed.left == reads[i].bytes); /* unchecked is for tests of other tiers */
            while ((from = t->ops->lent(t, &summed, &bytes)) != NULL)
                record_piece(&reads[i], from, bytes);
            record_end(&reads[i]);
        }
        reads[i].sum = NULL;
    }
    const bool good = mover_wait(&reader->mover);
    const double each = (clock_seconds() - start) / n;
    for (uint32_t i = 0; i < n; i++) {
        if (!lent[i])
            continue;
        if (!good && reads[i].result == TIER_OK)
            reads[i].result = TIER_FAILED;
        t->ops->give_back(t, &loans[i], reads[i].result, each);
    }
}

void store_read(const struct reader *reader, const struct batch_read *b) {
    struct store *w = reader->store;
    struct tiers *s = w->all;
    struct reading x = {.reader = reader, .batch = b, .now = (uint64_t)time(NULL)};
    uint8_t *memory = reader->mover.memory;
    uint32_t addresses[READ_RECORDS];
    for (uint32_t i = 0; i < b->n; i++) {
        const struct load_object *o = &b->load->objects[b->objects[i]];
        addresses[i] = o->at.addr;
        x.reads[i] = (struct tier_read){.key = o->wanted.key,
                                        .context = o->wanted.context,
                                        .root = o->wanted.root,
                                        .bytes = o->bytes,
                                        .unchecked = s->options.unchecked,
                                        .ended = publish,
                                        .user = &x,
                                        .result = TIER_MISSING,
                                        .sum = reader->sum};
        if (!pages_are_far(s))
            x.reads[i].payload = part_host(s, o->at.addr, o->bytes);
        else if (memory) {
            x.reads[i].payload = memory;
            memory += o->bytes;
        }
    }
    if (pages_are_far(s) && !memory)
        read_lent(reader, x.reads, addresses, b->n);
    else
        w->tier->ops->read(w->tier, x.reads, b->n, b->deadline);
    for (uint32_t i = 0; i < b->n; i++)
        record_ended(&x.reads[i]);
    drop_damaged(&x);
}

void store_find(struct store *w, struct tier_load *l, double deadline) {
    w->tier->ops->find(w->tier, &l->place, l->keys, l->n_keys, l->have, deadline);
    for (uint32_t i = 0; i < l->n_keys; i++)
        if (l->have[i])
            l->found[l->key_places[i]] |= store_bit(w);
}

/* Without the mutex, with which it returns. */
static void time_find(struct store *w, struct tier_load *l) {
    const double begin = clock_seconds();
    store_find(w, l, begin + w->all->options.late_seconds);
    const double took = clock_seconds() - begin;
    pthread_mutex_lock(&w->all->mutex);
    w->find_seconds += (took - w->find_seconds) / (w->find_seconds > 0 ? 4 : 1);
}

/* What a load has for this store, if anything. With the mutex held, which is released meanwhile. */
static bool work_on(const struct reader *r, struct tier_load *l) {
    struct store *w = r->store;
    struct tiers *s = w->all;
    struct batch_read b;
    const uint32_t open = l->open;
    /* `asked` changes only while nobody may take the load */
    if (l->phase == LOAD_LOOKING && !l->taken && l->asked == w->index) {
        l->taken = true;
        pthread_mutex_unlock(&s->mutex);
        time_find(w, l);
        l->open = 0;
    } else if (l->phase == LOAD_READING && store_take(w, l, &b)) {
        pthread_mutex_unlock(&s->mutex);
        store_read(r, &b);
        pthread_mutex_lock(&s->mutex);
        return true; /* the load may be gone */
    }
    if (l->open == open)
        return false;
    if (l->open == 0) {
        pthread_cond_broadcast(&s->progress);
        pthread_mutex_unlock(&s->mutex);
        wake_owner(s);
        pthread_mutex_lock(&s->mutex);
    }
    return true;
}

static void *reader_thread(void *user) {
    struct reader *r = user;
    struct tiers *s = r->store->all;
    XXH3_state_t sum;
    XXH3_INITSTATE(&sum);
    r->sum = &sum;
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), READER_NICE); /* Linux: of this thread alone */
    pthread_mutex_lock(&s->mutex);
    while (!s->stop) {
        struct tier_load *l = s->loads;
        while (l && !work_on(r, l))
            l = l->next;
        if (!l && !s->stop)
            pthread_cond_wait(&s->read_more, &s->mutex);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

/* Of a device a reader has memory for what it takes at a time, unless the tier lends its own. */
static bool start_reader(struct store *w, struct reader *r) {
    const struct tiers *s = w->all;
    uint64_t most, bytes = 0;
    (void)tiers_block_bytes(s->cache, &most);
    if (!w->tier->ops->lend)
        bytes = most > READ_BYTES ? most : READ_BYTES;
    r->store = w;
    if ((!pages_are_far(s) || mover_open(s, bytes, &r->mover)) &&
        pthread_create(&r->thread, NULL, reader_thread, r) == 0)
        return true;
    mover_close(&r->mover);
    return false;
}

kvasir_status store_start_readers(struct store *w, kvasir_error *err) {
    const uint32_t n = w->tier->ops->readers ? w->tier->ops->readers : READERS;
    ASSERT(n <= READERS_MAX);
    while (w->n_readers < n && start_reader(w, &w->readers[w->n_readers]))
        w->n_readers++;
    return w->n_readers ? KVASIR_OK : fail(err, KVASIR_ERR_MEMORY, "cannot start a thread");
}

void store_stop_readers(struct store *w) {
    for (uint32_t i = 0; i < w->n_readers; i++) {
        pthread_join(w->readers[i].thread, NULL);
        mover_close(&w->readers[i].mover);
    }
    w->n_readers = 0;
}
