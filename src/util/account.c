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
    atomic_uint_least64_t state; /* held_of and used_of; held changes under the account's mutex */
    atomic_int refusal;
    atomic_uint_least64_t others; /* bytes that others held then */
};

/* ---- a charge's state ------------------------------------------------------------------------ */

/* What a charge holds, in granules, and uses, in bytes, in one word: both change at once, so that
 * nobody uses what another thread is giving back. */
enum { USED_BITS = 40 };
#define USED_MASK ((UINT64_C(1) << USED_BITS) - 1)
#define HELD_MAX  (UINT64_C(0xffffff) * CHARGE_GRANULE)

static uint64_t state_of(uint64_t held, uint64_t used) {
    ASSERT(held <= HELD_MAX && used <= held && held % CHARGE_GRANULE == 0);
    return held / CHARGE_GRANULE << USED_BITS | used;
}

static uint64_t held_of(uint64_t state) {
    return (state >> USED_BITS) * CHARGE_GRANULE;
}

static uint64_t used_of(uint64_t state) {
    return state & USED_MASK;
}

/* ---- the account ----------------------------------------------------------------------------- */

void mem_account_init(struct mem_account *a, uint64_t limit_bytes, bool shared) {
    ASSERT(limit_bytes >= 4 * CHARGE_GRANULE);
    *a = (struct mem_account){.limit = limit_bytes};
    a->request_limit = limit_bytes / 2 < HELD_MAX ? limit_bytes / 2 : HELD_MAX;
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

uint64_t mem_share_held(struct mem_account *a, const struct mem_share *share) {
    pthread_mutex_lock(&a->mutex);
    const uint64_t held = share->held;
    pthread_mutex_unlock(&a->mutex);
    return held;
}

/* ---- granules (under the account's mutex) ---------------------------------------------------- */

static enum charge_refusal refusal_of(const struct charge *c, uint64_t held, uint64_t more) {
    const struct mem_account *a = c->account;
    return held + more > a->request_limit                       ? CHARGE_REQUEST_FULL
           : c->share && c->share->held + more > a->share_limit ? CHARGE_SHARE_FULL
           : a->held + more > a->limit                          ? CHARGE_ACCOUNT_FULL
                                                                : CHARGE_FITS;
}

static void note_refusal(struct charge *c, uint64_t held, enum charge_refusal refusal) {
    atomic_store(&c->others, c->account->held - held);
    atomic_store(&c->refusal, refusal);
}

static void hold(struct charge *c, uint64_t more) {
    struct mem_account *a = c->account;
    a->held += more;
    a->peak = a->held > a->peak ? a->held : a->peak;
    if (c->share)
        c->share->held += more;
}

static void release(struct charge *c, uint64_t bytes) {
    ASSERT(bytes <= c->account->held && (!c->share || bytes <= c->share->held));
    c->account->held -= bytes;
    c->account->returned += bytes;
    if (c->share)
        c->share->held -= bytes;
}

/* ---- charges --------------------------------------------------------------------------------- */

/* Uses what the charge holds already, without the mutex. */
static bool take_held(struct charge *c, size_t bytes) {
    uint64_t s = atomic_load(&c->state);
    do
        if (used_of(s) + bytes > held_of(s))
            return false;
    while (!atomic_compare_exchange_weak(&c->state, &s, s + bytes));
    return true;
}

/* must: it is there already, so that it counts whatever the limit is. */
static bool take(struct charge *c, size_t bytes, bool must) {
    enum charge_refusal refusal = CHARGE_FITS;
    if (bytes > c->account->limit && !must) { /* used must not overflow */
        atomic_store(&c->refusal, CHARGE_REQUEST_FULL);
        return false;
    }
    if (take_held(c, bytes))
        return true;
    pthread_mutex_lock(&c->account->mutex);
    uint64_t s = atomic_load(&c->state), held, used, more;
    do {
        held = held_of(s);
        used = used_of(s) + bytes;
        more = used > held ? round_up(used - held, CHARGE_GRANULE) : 0;
        refusal = must || !more ? CHARGE_FITS : refusal_of(c, held, more);
    } while (refusal == CHARGE_FITS &&
             !atomic_compare_exchange_weak(&c->state, &s, state_of(held + more, used)));
    if (refusal == CHARGE_FITS)
        hold(c, more);
    else
        note_refusal(c, held, refusal);
    pthread_mutex_unlock(&c->account->mutex);
    return refusal == CHARGE_FITS;
}

size_t charge_used(const struct charge *c) {
    return used_of(atomic_load(&c->state));
}

bool charge_take(struct charge *c, size_t bytes) {
    return take(c, bytes, false);
}

bool charge_fits(struct charge *c, size_t bytes) {
    struct mem_account *a = c->account;
    pthread_mutex_lock(&a->mutex);
    const uint64_t s = atomic_load(&c->state), rest = held_of(s) - used_of(s),
                   more = bytes > rest ? round_up(bytes - rest, CHARGE_GRANULE) : 0;
    const enum charge_refusal refusal =
        bytes > a->limit ? CHARGE_REQUEST_FULL
        : more           ? refusal_of(c, held_of(s), more)
                         : CHARGE_FITS; /* as in take: a limit may be exceeded already */
    if (refusal != CHARGE_FITS)
        note_refusal(c, held_of(s), refusal);
    pthread_mutex_unlock(&a->mutex);
    return refusal == CHARGE_FITS;
}

/* What was allocated outside of charge_enter may be freed inside: more than is used is ignored. */
void charge_give(struct charge *c, size_t bytes) {
    enum { SPARE = 8 * CHARGE_GRANULE }; /* so that frees seldom take the mutex */
    uint64_t s = atomic_load(&c->state), given;
    do
        given = used_of(s) < bytes ? used_of(s) : bytes;
    while (!atomic_compare_exchange_weak(&c->state, &s, s - given));
    if (held_of(s) < used_of(s) - given + SPARE)
        return;
    pthread_mutex_lock(&c->account->mutex);
    uint64_t need;
    s = atomic_load(&c->state);
    do {
        need = round_up(used_of(s) + 1, CHARGE_GRANULE);
        need = need < held_of(s) ? need : held_of(s);
    } while (!atomic_compare_exchange_weak(&c->state, &s, state_of(need, used_of(s))));
    release(c, held_of(s) - need);
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
    release(c, held_of(atomic_load(&c->state)));
    pthread_mutex_unlock(&c->account->mutex);
    struct charge *before = charge_enter(NULL);
    ASSERT(before != c);
    mem_free(c);
    charge_leave(before);
}
