/* SPDX-License-Identifier: Apache-2.0 */
/* util/account.h: the memory that requests own, in one account with a limit.
 *
 *     charge_take(body) ---.                          limit: all requests
 *     charge_enter: what   +--> struct charge ------> struct mem_account
 *       mem_* allocates ---'    one request: at most  `-- struct mem_share
 *                               half of the limit         one key's requests: at most half, if
 *                                                         the keys share the account
 *
 * A charge is made when a request's body begins and ends with the last who holds it, who thereby
 * gives back everything. Between charge_enter and charge_leave a thread charges what it allocates
 * through util.h, and gives back what it frees. What does not fit is refused before it is touched:
 * allocations return NULL, and charge_refusal says why.
 *
 * Invariants
 *   ACCOUNT-1  The account holds at least what its charges use, and never more than its limit,
 *              beyond which only charge_add goes, for what is there already.
 *   ACCOUNT-2  A charge holds whole granules. So most allocations cost one atomic addition.
 *   ACCOUNT-3  All functions may run on any thread, charge_take and charge_give also on the
 *              engine's: they never allocate and hold the account's mutex for a few additions.
 */
#ifndef KVASIR_UTIL_ACCOUNT_H
#define KVASIR_UTIL_ACCOUNT_H

#include <pthread.h>

#include "util/meter.h"
#include "util/util.h"

enum { CHARGE_GRANULE = 16 << 10 };

/* One key's part; starts as zeros. */
struct mem_share {
    uint64_t held;
};

struct mem_account {
    uint64_t limit, request_limit, share_limit;
    pthread_mutex_t mutex;
    /* under the mutex, as are the shares' */
    uint64_t held, peak, returned;
};
/* shared: several keys use it. */
void mem_account_init(struct mem_account *a, uint64_t limit_bytes, bool shared);
void mem_account_deinit(struct mem_account *a); /* no charge is left */
struct mem_account_figures {
    uint64_t limit, held, peak; /* bytes */
    uint64_t returned;          /* in all */
};
struct mem_account_figures mem_account_figures(struct mem_account *a);

/* Bytes that this key's requests hold now. */
uint64_t mem_share_held(struct mem_account *a, const struct mem_share *share);

struct charge;
/* share: borrowed until the charge ends; NULL: of no key. NULL: out of memory. */
struct charge *charge_create(struct mem_account *a, struct mem_share *share);
struct charge *charge_ref(struct charge *c);
void charge_unref(struct charge *c); /* NULL is allowed */
/* False: it does not fit, and nothing has changed. */
bool charge_take(struct charge *c, size_t bytes) MUST_CHECK;
/* Whether it would fit now. */
bool charge_fits(struct charge *c, size_t bytes);
void charge_give(struct charge *c, size_t bytes);
size_t charge_used(const struct charge *c); /* bytes, at this moment */

/* What this thread allocates from now on is charged to c; NULL: to nobody. Returns what was charged
 * before, for charge_leave. */
struct charge *charge_enter(struct charge *c);
void charge_leave(struct charge *before);

enum charge_refusal {
    CHARGE_FITS,
    CHARGE_REQUEST_FULL, /* this request alone needs more than a request may take */
    CHARGE_SHARE_FULL,   /* together with the key's other requests */
    CHARGE_ACCOUNT_FULL, /* together with all others */
};
/* The last refusal since the charge was made, in one line of text; CHARGE_FITS: none. */
enum charge_refusal charge_refusal(const struct charge *c, char *why, size_t size);

#endif
