/* SPDX-License-Identifier: Apache-2.0 */
/* tiers.c: life and figures of what moves between the tree and its tiers. tiers.h has the drawing
 * and the invariants, tiers_internal.h lists the files.
 */
#include <string.h>

#include "cache/tiers_internal.h"

/* ---- life ------------------------------------------------------------------------------------ */

static kvasir_status start_stores(struct tiers *s, kvasir_error *err) {
    for (uint32_t i = 0; i < s->options.n; i++) {
        struct store *w = &s->stores[i];
        TRY(store_start_writer(w, err));
        TRY(store_start_readers(w, err));
    }
    return KVASIR_OK;
}

kvasir_status tiers_create(struct prefix_tree *t, const struct tiers_options *o, struct tiers **out,
                           kvasir_error *err) {
    const struct kv_cache *c = t->cache;
    struct tiers *s = mem_calloc(1, sizeof *s);
    kvasir_status status = KVASIR_OK;
    ASSERT(o->n > 0 && o->n <= TIERS_MAX);
    if (!s) {
        for (uint32_t i = 0; i < o->n; i++)
            o->tiers[i]->ops->destroy(o->tiers[i]);
        return fail(err, KVASIR_ERR_MEMORY, "tiers: out of memory");
    }
    s->tree = t;
    s->cache = t->cache;
    s->options = *o;
    if (!s->options.queue_bytes)
        s->options.queue_bytes = kv_pool_stats(c->pool).budget_bytes / 16;
    if (s->options.check_seconds <= 0)
        s->options.check_seconds = 60;
    if (s->options.late_seconds <= 0)
        s->options.late_seconds = 0.25;
    s->parts = c->n_groups + (c->snapshot_bytes != 0);
    s->variants = t->requantizes ? 2 : 1;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->read_more, NULL);
    pthread_cond_init(&s->progress, NULL);
    for (uint32_t i = 0; i < o->n; i++) {
        struct store *w = &s->stores[i];
        w->all = s;
        w->tier = o->tiers[i];
        w->index = i;
        pthread_cond_init(&w->write_more, NULL);
        struct tier_stats stats;
        w->tier->ops->stats(w->tier, &stats);
        w->limit_bytes = stats.limit_bytes;
    }
    if (pages_are_far(s) && !c->backend->ops->lane_create)
        status = fail(err, KVASIR_ERR_UNSUPPORTED,
                      "tiers are not supported on this device, whose pages the host cannot reach");
    tree_chain_begin(t, o->context);
    if (status == KVASIR_OK && !o->now)
        status = start_stores(s, err);
    if (status != KVASIR_OK)
        tiers_destroy(s);
    else
        *out = s;
    return status;
}

void tiers_destroy(struct tiers *s) {
    if (!s)
        return;
    tiers_relent(s);
    pthread_mutex_lock(&s->mutex);
    s->stop = true;
    pthread_cond_broadcast(&s->read_more);
    for (uint32_t i = 0; i < s->options.n; i++)
        pthread_cond_signal(&s->stores[i].write_more);
    pthread_mutex_unlock(&s->mutex);
    for (uint32_t i = 0; i < s->options.n; i++) {
        struct store *w = &s->stores[i];
        store_stop_readers(w);
        store_stop_writer(w);
        w->tier->ops->destroy(w->tier);
        pthread_cond_destroy(&w->write_more);
    }
    loads_free_all(s);
    pool_discharge(s->cache->pool, s->charged);
    pthread_cond_destroy(&s->read_more);
    pthread_cond_destroy(&s->progress);
    pthread_mutex_destroy(&s->mutex);
    mem_free(s);
}

/* ---- between steps --------------------------------------------------------------------------- */

bool tiers_collect(struct tiers *s, double now) {
    for (uint32_t i = 0; i < s->options.n; i++) {
        store_collect(&s->stores[i]);
        store_retry(&s->stores[i], now);
        store_check(&s->stores[i], now);
    }
    return s->loads && loads_collect(s, now);
}

double tiers_next_deadline(const struct tiers *s) {
    double first = loads_next_deadline(s);
    for (uint32_t i = 0; i < s->options.n; i++) {
        const struct store *w = &s->stores[i];
        const double check = store_check_due(w);
        if (w->refused && (first == 0 || w->retry_at < first))
            first = w->retry_at;
        if (check != 0 && (first == 0 || check < first))
            first = check;
    }
    return first;
}

void tiers_note_step(struct tiers *s, uint32_t rows, double seconds) {
    enum { ROWS_LEAST = 32 }; /* fewer say little about prompts */
    if (rows < ROWS_LEAST)
        return;
    const double each = seconds / rows;
    s->seconds_per_token += (each - s->seconds_per_token) / (s->seconds_per_token > 0 ? 8 : 1);
}

void tiers_forget(struct tiers *s, const void *salt, size_t salt_len) {
    tiers_relent(s); /* the tree does not forget what is pinned */
    loads_forget(s, salt, salt_len);
    const struct tier_key root = chain_root(s->options.context, salt, salt ? salt_len : 0);
    for (uint32_t i = 0; i < s->options.n; i++)
        store_forget(&s->stores[i], salt ? &root : NULL);
}

bool tiers_are_forgetting(struct tiers *s) {
    bool some = false;
    pthread_mutex_lock(&s->mutex);
    for (uint32_t i = 0; i < s->options.n; i++)
        some |= store_has_to_forget(&s->stores[i], NULL);
    pthread_mutex_unlock(&s->mutex);
    return some;
}

/* ---- figures --------------------------------------------------------------------------------- */

uint64_t tiers_fixed_bytes(const struct tiers *s) {
    return s->charged;
}

void tiers_get_stats(struct tiers *s, struct tiers_stats *out) {
    *out = s->stats;
    for (uint32_t i = 0; i < s->options.n; i++)
        out->waiting_pages += s->stores[i].n_waiting;
}

const char *tiers_get_tier(struct tiers *s, uint32_t i, struct tier_stats *out) {
    if (i >= s->options.n)
        return NULL;
    struct tier *tier = s->stores[i].tier;
    tier->ops->stats(tier, out);
    pthread_mutex_lock(&s->mutex);
    out->damaged += s->stores[i].rejected; /* damage that the tier itself does not see */
    out->hit_pages = s->stores[i].hit_pages;
    out->loads = s->stores[i].loads;
    out->loads_late = s->stores[i].loads_late;
    out->loads_slow = s->stores[i].loads_slow;
    pthread_mutex_unlock(&s->mutex);
    return tier->ops->name;
}
