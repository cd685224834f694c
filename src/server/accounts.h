/* SPDX-License-Identifier: Apache-2.0 */
/* accounts.h: what API keys may ask for (accounts.c), and how a line of a key file says so
 * (key_line.c).
 *
 * Rates are buckets that hold what a minute allows and fill evenly. A request is accepted if there
 * is a request in the one bucket and a token in the other. Tokens are counted as they are computed,
 * so the bucket of tokens may go below 0; later requests wait until it is filled again. */
#ifndef SERVER_ACCOUNTS_H
#define SERVER_ACCOUNTS_H

#include "api/api.h"
#include "server/server.h"

struct accounts;
struct account;
/* For options->api_keys, which it borrows. NULL: out of memory. */
struct accounts *accounts_create(const struct server_key *keys, size_t n);
void accounts_destroy(struct accounts *all);
struct account *accounts_of(struct accounts *all, size_t key);

/* now_s: of any clock that does not go back. A request begins; false: a quota refuses it, *err
 * says which. */
bool account_begin(struct account *a, double now_s, struct api_error *err);
void account_end(struct account *a);
void account_tokens(struct account *a, double now_s, uint32_t n); /* have been computed */

#endif
