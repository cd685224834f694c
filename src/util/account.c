/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>

#include "util/account.h"

struct charge {
    struct mem_meter meter; /* first: one is cast to the other */
    struct mem_account *account;
    struct mem_share *share;
    atomic_uint refs;
    atomic_size_t used;
    atomic_size_t held; /* written under the account's mutex */
    atomic_int refusal;
    atomic_uint_least64_t others; /* bytes that others held then */
};

/* ---- the account ----------------------------------------------------------------------------- */

void mem_account_init(struct mem_account *a, uint64_t limit_bytes, bool shared) {
    ASSERT(limit_bytes >= 4 * CHARGE_GRANULE);
    *a = (struct mem_account){.limit = limit_bytes, .request_limit = limit_bytes / 2};
    a->share_limit = shared ? limit_bytes / 2 : limit_bytes;
    pthread_mutex_init(&a->mutex, NULL);
}

void mem_account_deinit(struct mem_account *a) {
    ASSERT(a->held == 0);
    pthread_mutex_destroy(&a->mutex);
}

struct mem_account_figures mem_account_figures(struct mem_account *a) {
    pthread_mutex_lock(&a->mutex);
    const struct mem_account_figures f = {
        .limit = a->limit, .held = a->held, .peak = a->peak, .returned = a->returned};
    pthread_mutex_unlock(&a->mutex);
    return f;
}

/* ---- granules (under the account's mutex) ---------------------------------------------------- */

static enum charge_refusal refusal_of(const struct charge *c, size_t more) {
    const struct mem_account *a = c->account;
    return atomic_load(&c->held) + more > a->request_limit      ? CHARGE_REQUEST_FULL
           : c->share && c->share->held + more > a->share_limit ? CHARGE_SHARE_FULL
           : a->held + more > a->limit                          ? CHARGE_ACCOUNT_FULL
                                                                : CHARGE_FITS;
}

static void note_refusal(struct charge *c, enum charge_refusal refusal) {
    atomic_store(&c->others, c->account->held - atomic_load(&c->held));
    atomic_store(&c->refusal, refusal);
}

static void hold(struct charge *c, size_t more) {
    struct mem_account *a = c->account;
    atomic_fetch_add(&c->held, more);
    a->held += more;
    a->peak = a->held > a->peak ? a->held : a->peak;
    if (c->share)
        c->share->held += more;
}

static void release(struct charge *c, size_t bytes) {
    ASSERT(bytes <= atomic_load(&c->held) && bytes <= c->account->held);
    atomic_fetch_sub(&c->held, bytes);
    c->account->held -= bytes;
    c->account->returned += bytes;
    if (c->share) {
        ASSERT(bytes <= c->share->held);
        c->share->held -= bytes;
    }
}

/* ---- charges --------------------------------------------------------------------------------- */

/* must: it is there already, so that it counts whatever the limit is. */
static bool take(struct charge *c, size_t bytes, bool must) {
    struct mem_account *a = c->account;
    enum charge_refusal refusal = CHARGE_FITS;
    if (bytes > a->limit && !must) { /* used must not overflow */
        atomic_store(&c->refusal, CHARGE_REQUEST_FULL);
        return false;
    }
    const size_t used = atomic_fetch_add(&c->used, bytes) + bytes;
    if (used <= atomic_load(&c->held))
        return true;
    pthread_mutex_lock(&a->mutex);
    const size_t held = atomic_load(&c->held);
    if (used > held) {
        const size_t more = round_up(used - held, CHARGE_GRANULE);
        refusal = must ? CHARGE_FITS : refusal_of(c, more);
        if (refusal == CHARGE_FITS)
            hold(c, more);
        else
            note_refusal(c, refusal);
    }
    pthread_mutex_unlock(&a->mutex);
    if (refusal == CHARGE_FITS)
        return true;
    atomic_fetch_sub(&c->used, bytes);
    return false;
}

size_t charge_used(const struct charge *c) {
    return atomic_load(&c->used);
}

bool charge_take(struct charge *c, size_t bytes) {
    return take(c, bytes, false);
}

bool charge_fits(struct charge *c, size_t bytes) {
    struct mem_account *a = c->account;
    pthread_mutex_lock(&a->mutex);
    const size_t rest = atomic_load(&c->held) - min_size(charge_used(c), atomic_load(&c->held)),
                 more = round_up(bytes - min_size(bytes, rest), CHARGE_GRANULE);
    const enum charge_refusal refusal =
        bytes > a->limit ? CHARGE_REQUEST_FULL : refusal_of(c, more);
    if (refusal != CHARGE_FITS)
        note_refusal(c, refusal);
    pthread_mutex_unlock(&a->mutex);
    return refusal == CHARGE_FITS;
}

/* What was allocated outside of charge_enter may be freed inside: more than is used is ignored. */
void charge_give(struct charge *c, size_t bytes) {
    enum { SPARE = 8 * CHARGE_GRANULE }; /* so that frees seldom take the mutex */
    size_t used = atomic_load(&c->used), rest;
    do
        rest = used - min_size(bytes, used);
    while (!atomic_compare_exchange_weak(&c->used, &used, rest));
    if (atomic_load(&c->held) < rest + SPARE)
        return;
    pthread_mutex_lock(&c->account->mutex);
    const size_t need = round_up(atomic_load(&c->used) + 1, CHARGE_GRANULE),
                 held = atomic_load(&c->held);
    if (held > need)
        release(c, held - need);
    /* a charge_take that came in between may have seen what was held before */
    const size_t now = atomic_load(&c->used), left = atomic_load(&c->held);
    if (now > left)
        hold(c, round_up(now - left, CHARGE_GRANULE));
    pthread_mutex_unlock(&c->account->mutex);
}

enum charge_refusal charge_refusal(const struct charge *c, char *why, size_t size) {
    const struct mem_account *a = c->account;
    const enum charge_refusal r = (enum charge_refusal)atomic_load(&c->refusal);
    const uint64_t others = atomic_load(&c->others);
    if (size)
        *why = 0;
    if (r == CHARGE_REQUEST_FULL)
        snprintf(why, size,
                 "the request needs more than %" PRIu64 " KiB of memory, the most that one "
                 "request may take",
                 a->request_limit >> 10);
    else if (r == CHARGE_SHARE_FULL)
        snprintf(why, size,
                 "requests with this API key take all of the %" PRIu64 " KiB of memory that one "
                 "key may take: wait until some are answered",
                 a->share_limit >> 10);
    else if (r == CHARGE_ACCOUNT_FULL)
        snprintf(why, size,
                 "other requests take %" PRIu64 " of the %" PRIu64 " KiB of memory for requests, "
                 "and this one does not fit: wait until some are answered",
                 others >> 10, a->limit >> 10);
    return r;
}

/* ---- what a thread allocates ----------------------------------------------------------------- */

static struct charge *charge_of(struct mem_meter *m) {
    return (struct charge *)m;
}

static bool meter_take(struct mem_meter *m, size_t bytes) {
    return take(charge_of(m), bytes, false);
}

static void meter_add(struct mem_meter *m, size_t bytes) {
    (void)take(charge_of(m), bytes, true);
}

static void meter_give(struct mem_meter *m, size_t bytes) {
    charge_give(charge_of(m), bytes);
}

struct charge *charge_enter(struct charge *c) {
    return charge_of(mem_meter_set(c ? &c->meter : NULL));
}

void charge_leave(struct charge *before) {
    (void)mem_meter_set(before ? &before->meter : NULL);
}

/* ---- life ------------------------------------------------------------------------------------ */

struct charge *charge_create(struct mem_account *a, struct mem_share *share) {
    struct charge *before = charge_enter(NULL); /* it outlives what it measures */
    struct charge *c = mem_calloc(1, sizeof *c);
    charge_leave(before);
    if (!c)
        return NULL;
    c->meter = (struct mem_meter){.take = meter_take, .add = meter_add, .give = meter_give};
    c->account = a;
    c->share = share;
    atomic_store(&c->refs, 1);
    return c;
}

struct charge *charge_ref(struct charge *c) {
    ASSERT(atomic_load(&c->refs) > 0);
    atomic_fetch_add(&c->refs, 1);
    return c;
}

void charge_unref(struct charge *c) {
    if (!c || atomic_fetch_sub(&c->refs, 1) > 1)
        return;
    pthread_mutex_lock(&c->account->mutex);
    release(c, atomic_load(&c->held));
    pthread_mutex_unlock(&c->account->mutex);
    struct charge *before = charge_enter(NULL);
    ASSERT(before != c);
    mem_free(c);
    charge_leave(before);
}
