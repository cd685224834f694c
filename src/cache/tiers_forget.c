/* SPDX-License-Identifier: Apache-2.0 */
/* tiers_forget.c: what tiers are to forget: a list of roots for each tier, all of which its writer
 * tells the tier at once before it writes anything else.
 *
 * A root stays listed until the tier has forgotten it. Until then nothing of it is looked for in
 * the tier or written to it. A root is listed once, except that one which the tier is just being
 * told is listed again: others may have written below it meanwhile. A tier that fails is told again
 * after a pause, as long as the process lives; what is left when it ends is said in a line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/tiers_internal.h"

/* More, or without memory for another: the tier forgets all of the context. Better too much than
 * too little. So many are searched and sorted under the mutex in less than a millisecond. */
enum { FORGETS_MAX = 1 << 12 };

static bool lists(const struct store *w, uint32_t from, struct tier_key root) {
    uint32_t i = from;
    while (i < w->n_forgets && !tier_key_equal(w->forgets[i], root))
        i++;
    return i < w->n_forgets;
}

void store_forget(struct store *w, const struct tier_key *root) {
    pthread_mutex_lock(&w->all->mutex);
    if (!root)
        w->forget_alls++;
    else if (lists(w, w->n_telling, *root))
        ;
    else if (w->n_forgets < FORGETS_MAX && ARRAY_GROW(w->forgets, w->forgets_cap, w->n_forgets + 1))
        w->forgets[w->n_forgets++] = *root;
    else
        w->forget_alls++;
    pthread_cond_signal(&w->write_more);
    pthread_mutex_unlock(&w->all->mutex);
}

bool store_has_to_forget(const struct store *w, const struct tier_key *root) {
    return w->forget_alls > 0 || (root ? lists(w, 0, *root) : w->n_forgets > 0);
}

bool store_is_forgetting(struct store *w, struct tier_key root) {
    pthread_mutex_lock(&w->all->mutex);
    const bool some = store_has_to_forget(w, &root);
    pthread_mutex_unlock(&w->all->mutex);
    return some;
}

bool store_forget_is_due(const struct store *w) {
    return store_has_to_forget(w, NULL) && clock_seconds() >= w->forget_at;
}

static int order(const void *a, const void *b) {
    return memcmp(a, b, sizeof(struct tier_key));
}

/* The tier has forgotten the first n roots, or has still to forget them: then those that were
 * listed again meanwhile are listed once from now on. */
static void settle(struct store *w, uint32_t n, bool good) {
    uint32_t kept = 0;
    if (good && n) {
        w->n_forgets -= n;
        memmove(w->forgets, w->forgets + n, w->n_forgets * sizeof *w->forgets);
    } else if (!good && w->n_forgets > n) {
        qsort(w->forgets, w->n_forgets, sizeof *w->forgets, order);
        for (uint32_t i = 0; i < w->n_forgets; i++)
            if (kept == 0 || !tier_key_equal(w->forgets[kept - 1], w->forgets[i]))
                w->forgets[kept++] = w->forgets[i];
        w->n_forgets = kept;
    }
}

bool store_forget_next(struct store *w) {
    struct tiers *s = w->all;
    if (!store_forget_is_due(w))
        return false;
    /* those that come meanwhile are for the next time */
    const uint32_t alls = w->forget_alls, n = w->n_forgets, told = alls ? 0 : n;
    struct tier_key *roots = told ? mem_alloc(told * sizeof *roots) : NULL;
    if (roots)
        memcpy(roots, w->forgets, told * sizeof *roots);
    w->n_telling = n;
    w->writing = true;
    pthread_mutex_unlock(&s->mutex);
    const bool good = (roots || !told) &&
                      w->tier->ops->forget(w->tier, s->options.context, roots, told, &s->stop);
    mem_free(roots);
    pthread_mutex_lock(&s->mutex);
    w->writing = false;
    w->n_telling = 0;
    settle(w, n, good);
    if (good)
        w->forget_alls -= alls;
    w->forget_pause = good ? 0 : longer_pause(w->forget_pause);
    w->forget_at = clock_seconds() + w->forget_pause;
    pthread_cond_broadcast(&s->progress);
    pthread_mutex_unlock(&s->mutex);
    wake_owner(s);
    pthread_mutex_lock(&s->mutex);
    return true;
}

void store_drop_forgets(struct store *w) {
    const struct tiers_options *o = &w->all->options;
    char line[200];
    if (o->complain && store_has_to_forget(w, NULL)) {
        snprintf(line, sizeof line,
                 "the %s cache has not forgotten all that it was told to, and this process ends: "
                 "what was to be forgotten may be found again; repeat the DELETE",
                 w->tier->ops->name);
        o->complain(o->user, line);
    }
    mem_free(w->forgets);
    w->forgets = NULL;
    w->n_forgets = w->forget_alls = 0;
}
