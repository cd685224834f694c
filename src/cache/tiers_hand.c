/* SPDX-License-Identifier: Apache-2.0 */
/* tiers_hand.c: what readers and writers of tiers do, without threads, in a simulation's time.
 *
 * Each tier reads one batch at a time and writes one record at a time, both at its speed and
 * beside each other. What is read is believed, and nothing has bytes. A batch has its results when
 * it ends, a record is there when its writing begins.
 */
#include "cache/tiers_internal.h"

static double seconds_of(const struct store *w, uint64_t bytes) {
    return (double)bytes / w->all->options.speeds[w->index];
}

/* Loads are served in the order in which they came. A read begins when the one before has ended, or
 * with its load. */
static bool begin_read(struct store *w) {
    struct batch_read *b = &w->hand.read;
    struct tier_load *l = w->all->loads;
    uint64_t bytes = 0;
    while (l && !(l->phase == LOAD_READING && store_take(w, l, b)))
        l = l->next;
    if (!l)
        return false;
    for (uint32_t i = 0; i < b->n; i++)
        bytes += l->objects[b->objects[i]].bytes;
    const double from = w->hand.read_until > l->started ? w->hand.read_until : l->started;
    w->hand.read_until = from + seconds_of(w, bytes);
    w->hand.reading = true;
    return true;
}

static void work_until(struct store *w, double now) {
    struct write_slot *slot;
    if (!w->n_slots && w->hand.write_until < now)
        w->hand.write_until = now;
    while (w->hand.write_until <= now && (slot = store_first_ready(w)) != NULL) {
        slot->state = SLOT_COPIED;
        w->hand.write_until += seconds_of(w, slot->head.bytes);
        (void)w->tier->ops->write(w->tier, &slot->head, NULL);
        store_collect(w);
    }
    while ((w->hand.reading || begin_read(w)) && w->hand.read_until <= now) {
        store_read(&(struct reader){.store = w}, &w->hand.read);
        w->hand.reading = false;
    }
}

static double earlier(double a, double b) {
    return a == 0 || (b != 0 && b < a) ? b : a;
}

double tiers_work(struct tiers *s) {
    const double now = tiers_now(s);
    double next = 0;
    for (uint32_t i = 0; i < s->options.n; i++) {
        struct store *w = &s->stores[i];
        work_until(w, now);
        if (w->hand.reading)
            next = earlier(next, w->hand.read_until);
        if (store_first_ready(w))
            next = earlier(next, w->hand.write_until);
    }
    return next;
}
