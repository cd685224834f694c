/* SPDX-License-Identifier: Apache-2.0 */
/* tiers_forget.c: what tiers are to forget: a list for each tier, which its writer works off before
 * it writes anything else.
 *
 * An order stays listed until the tier has forgotten. Until then nothing of its root is looked for
 * in the tier or written to it. A tier that fails is told again after a pause, as long as the
 * process lives. If the list is full or memory is short, the tier forgets all of the context:
 * better too much than too little.
 */
#include "cache/tiers_internal.h"

enum { FORGETS_MAX = 64 };

void store_forget(struct store *w, const struct tier_key *root) {
    struct forget_job *job = mem_alloc(sizeof *job);
    pthread_mutex_lock(&w->all->mutex);
    const bool keep = job && root && w->n_forgets < FORGETS_MAX;
    if (keep) {
        *job = (struct forget_job){.root = *root};
        *w->forgets_end = job;
        w->forgets_end = &job->next;
        w->n_forgets++;
    } else {
        w->forget_alls++;
    }
    pthread_cond_signal(&w->write_more);
    pthread_mutex_unlock(&w->all->mutex);
    if (!keep)
        mem_free(job);
}

bool store_has_to_forget(const struct store *w, const struct tier_key *root) {
    bool some = w->forget_alls > 0;
    for (const struct forget_job *job = w->forgets; job && !some; job = job->next)
        some = !root || tier_key_equal(job->root, *root);
    return some;
}

bool store_is_forgetting(struct store *w, struct tier_key root) {
    pthread_mutex_lock(&w->all->mutex);
    const bool some = store_has_to_forget(w, &root);
    pthread_mutex_unlock(&w->all->mutex);
    return some;
}

/* Takes the first n orders off the list. */
static struct forget_job *take_jobs(struct store *w, uint32_t n) {
    struct forget_job *first = w->forgets, **end = &w->forgets;
    ASSERT(n <= w->n_forgets);
    if (n == 0)
        return NULL;
    w->n_forgets -= n;
    while (n-- > 0)
        end = &(*end)->next;
    w->forgets = *end;
    *end = NULL;
    if (!w->forgets)
        w->forgets_end = &w->forgets;
    return first;
}

static void free_jobs(struct forget_job *job) {
    for (struct forget_job *next; job; job = next) {
        next = job->next;
        mem_free(job);
    }
}

bool store_forget_is_due(const struct store *w) {
    return store_has_to_forget(w, NULL) && clock_seconds() >= w->forget_at;
}

bool store_forget_next(struct store *w) {
    if (!store_forget_is_due(w))
        return false;
    /* those that come meanwhile are for the next time */
    const uint32_t alls = w->forget_alls, jobs = alls ? w->n_forgets : 1;
    struct forget_job *over = NULL;
    const struct tier_key root = alls ? (struct tier_key){{0}} : w->forgets->root;
    w->writing = true;
    pthread_mutex_unlock(&w->all->mutex);
    const bool good = w->tier->ops->forget(w->tier, w->all->options.context, alls ? NULL : &root);
    pthread_mutex_lock(&w->all->mutex);
    w->writing = false;
    if (good) {
        over = take_jobs(w, jobs);
        w->forget_alls -= alls;
    }
    w->forget_pause = good ? 0 : longer_pause(w->forget_pause);
    w->forget_at = clock_seconds() + w->forget_pause;
    pthread_cond_broadcast(&w->all->progress);
    pthread_mutex_unlock(&w->all->mutex);
    free_jobs(over);
    wake_owner(w->all);
    pthread_mutex_lock(&w->all->mutex);
    return true;
}

void store_drop_forgets(struct store *w) {
    free_jobs(take_jobs(w, w->n_forgets));
}
