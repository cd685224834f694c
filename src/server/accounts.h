/* SPDX-License-Identifier: Apache-2.0 */
/* accounts.h: the API keys, what each may ask for (accounts.c), and how a line of a key file says
 * so (key_line.c).
 *
 * Rates are buckets that hold what a minute allows and fill evenly. A request is accepted if there
 * is a request in the one bucket and a token in the other. Tokens are counted as they are computed,
 * so the bucket of tokens may go below 0; later requests wait until it is filled again.
 *
 * Half of the places for waiting requests are the keys' own, by weight. The others are for all: so
 * one key cannot take every place, and places are not kept for nobody.
 *
 * Keys may change while requests run. An account, once made, lives as long as the server: a key
 * that is gone is refused, its requests end as they would, and if it comes back it finds its
 * buckets. */
#ifndef SERVER_ACCOUNTS_H
#define SERVER_ACCOUNTS_H

#include "api/api.h"
#include "server/metrics.h"
#include "server/server.h"
#include "util/account.h"

struct accounts;
struct account;
/* Without a key. max_waiting: places of requests that wait. NULL: out of memory */
struct accounts *accounts_create(uint32_t max_waiting);
void accounts_destroy(struct accounts *all);
/* The keys from now on; they are copied. False: out of memory, all is as it was. */
bool accounts_set(struct accounts *all, const struct server_key *keys, size_t n) MUST_CHECK;

/* What a key is at this moment. */
struct account_view {
    struct account *account;
    const char *key; /* the account's */
    uint64_t number; /* from 1; of this account alone */
    uint32_t weight;
    int64_t expires_s;
    struct mem_share *share;
};
/* False: there is no such key. Takes as long for every key. */
bool accounts_find(struct accounts *all, const char *given, struct account_view *out);
/* Of requests with the admin key, or without a key. */
void accounts_other(struct accounts *all, struct account_view *out);
/* How many keys there are. */
size_t accounts_count(struct accounts *all);
/* [*n] keys with this name, or (name NULL) all that ever were, those of requests without a key and
 * of the admin not among them. The array: mem_free; NULL: out of memory. */
const char **accounts_keys(struct accounts *all, const char *name, size_t *n);
/* Takes as long wherever they differ. */
bool account_same_key(const char *given, const char *key);

/* now_s: of any clock that does not go back. A request begins; false: a quota refuses it, *err
 * says which. */
bool account_begin(struct account *a, double now_s, struct api_error *err);
void account_end(struct account *a);
void account_refused(struct account *a); /* for another reason */

/* ---- figures --------------------------------------------------------------------------------- */

/* It is going to be submitted to the engine, and waits from now on. False: there is no place, *err
 * says why. */
bool account_wait(struct account *a, struct api_error *err);
/* The engine did not take it. */
void account_unwait(struct account *a);
/* Each of its events, on the engine's thread. started: this or an earlier one was
 * KVASIR_EVENT_START. */
void account_event(struct account *a, double now_s, const kvasir_event *event, bool started);
/* Another prompt of a request that has begun begins. */
void account_more(struct account *a, double now_s, uint32_t prompt_tokens, uint32_t cached_tokens);
/* [*n] of the account, or of all that ever were: those with one name together, by name. mem_free;
 * NULL: out of memory. memory: of the shares. */
struct tenant_figures *accounts_figures(struct accounts *all, struct account *only,
                                        struct mem_account *memory, size_t *n);

#endif
