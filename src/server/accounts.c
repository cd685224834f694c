/* SPDX-License-Identifier: Apache-2.0 */
/* accounts.c: quotas of API keys. Any thread; one lock, held for a few sums, which the engine's
 * thread takes for each token of a key that has a quota of tokens. A bucket is kept as the time at
 * which it will be full. */
#include "server/accounts.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

struct account {
    struct accounts *all;
    const struct server_key *key;
    uint32_t open;
    double requests_full_s, tokens_full_s;
};

struct accounts {
    pthread_mutex_t mutex;
    size_t n;
    struct account items[];
};

enum { MINUTE_S = 60 };

struct accounts *accounts_create(const struct server_key *keys, size_t n) {
    struct accounts *all = calloc(1, sizeof *all + n * sizeof *all->items);
    if (!all)
        return NULL;
    all->n = n;
    pthread_mutex_init(&all->mutex, NULL);
    for (size_t i = 0; i < n; i++)
        all->items[i] = (struct account){.all = all, .key = &keys[i]};
    return all;
}

void accounts_destroy(struct accounts *all) {
    if (!all)
        return;
    for (size_t i = 0; i < all->n; i++)
        ASSERT(all->items[i].open == 0);
    pthread_mutex_destroy(&all->mutex);
    free(all);
}

struct account *accounts_of(struct accounts *all, size_t key) {
    ASSERT(key < all->n);
    return &all->items[key];
}

static void take(double *full_s, double now_s, double n, uint64_t per_minute) {
    const double from = *full_s > now_s ? *full_s : now_s;
    *full_s = from + n * MINUTE_S / (double)per_minute;
}

/* Seconds until the bucket has 1; 0: it has. */
static double until_one(double full_s, double now_s, uint64_t per_minute) {
    if (!per_minute)
        return 0;
    const double wait = full_s - now_s - (MINUTE_S - MINUTE_S / (double)per_minute);
    return wait > 1e-6 ? wait : 0;
}

static bool refuse(struct api_error *err, const char *name, const char *quota, uint64_t number,
                   double wait_s) {
    const double whole = ceil(wait_s);
    api_refuse(err, NULL,
               "the quota \"%s\" of %" PRIu64
               " of the API key%s%s%s is used up: try again in %.0f s",
               quota, number, name ? " \"" : "", name ? name : "", name ? "\"" : "", whole);
    err->status = HTTP_TOO_MANY_REQUESTS;
    err->code = "rate_limit_exceeded";
    err->retry_after_s = whole < UINT32_MAX ? (uint32_t)whole : UINT32_MAX;
    return false;
}

bool account_begin(struct account *a, double now_s, struct api_error *err) {
    const struct server_key *k = a->key;
    pthread_mutex_lock(&a->all->mutex);
    const bool full = k->concurrent && a->open >= k->concurrent;
    const double requests = until_one(a->requests_full_s, now_s, k->requests_per_minute),
                 tokens = until_one(a->tokens_full_s, now_s, k->tokens_per_minute);
    const bool good = !full && requests <= 0 && tokens <= 0;
    if (good) {
        a->open++;
        if (k->requests_per_minute)
            take(&a->requests_full_s, now_s, 1, k->requests_per_minute);
    }
    pthread_mutex_unlock(&a->all->mutex);
    if (good)
        return true;
    if (requests > 0 && requests >= tokens)
        return refuse(err, k->name, "requests_per_minute", k->requests_per_minute, requests);
    if (tokens > 0)
        return refuse(err, k->name, "tokens_per_minute", k->tokens_per_minute, tokens);
    return refuse(err, k->name, "concurrent", k->concurrent,
                  1); /* until one ends, which nobody knows */
}

void account_end(struct account *a) {
    pthread_mutex_lock(&a->all->mutex);
    ASSERT(a->open > 0);
    a->open--;
    pthread_mutex_unlock(&a->all->mutex);
}

void account_tokens(struct account *a, double now_s, uint32_t n) {
    if (!a->key->tokens_per_minute || !n)
        return;
    pthread_mutex_lock(&a->all->mutex);
    take(&a->tokens_full_s, now_s, n, a->key->tokens_per_minute);
    pthread_mutex_unlock(&a->all->mutex);
}
