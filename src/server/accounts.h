/* SPDX-License-Identifier: Apache-2.0 */
/* accounts.h: the API keys, what each may ask for (accounts.c), and how a line of a key file says
 * so (key_line.c).
 *
 * Rates are buckets that hold what a minute allows and fill evenly. A request is accepted if there
 * is a request in the one bucket and a token in the other. Tokens are counted as they are computed,
 * so the bucket of tokens may go below 0; later requests wait until it is filled again.
 *
 * Keys may change while requests run. An account, once made, lives as long as the server: a key
 * that is gone is refused, its requests end as they would, and if it comes back it finds its
 * buckets. */
#ifndef SERVER_ACCOUNTS_H
#define SERVER_ACCOUNTS_H

#include "api/api.h"
#include "server/server.h"
#include "util/account.h"

struct accounts;
struct account;
struct accounts *accounts_create(void); /* without a key; NULL: out of memory */
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
/* Takes as long wherever they differ. */
bool account_same_key(const char *given, const char *key);

/* now_s: of any clock that does not go back. A request begins; false: a quota refuses it, *err
 * says which. */
bool account_begin(struct account *a, double now_s, struct api_error *err);
void account_end(struct account *a);
void account_tokens(struct account *a, double now_s, uint32_t n); /* have been computed */

#endif
