/* SPDX-License-Identifier: Apache-2.0 */
/* accounts.c: API keys and their quotas. Any thread. `keys` orders changes of the keys against
 * lookups; `mutex`, held for a few sums, guards the buckets, and the engine's thread takes it for
 * each token of a key that has a quota of tokens. A bucket is kept as the time at which it will be
 * full. */
#include "server/accounts.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct account {
    struct accounts *all;
    char *key;
    uint64_t number;
    struct mem_share share;
    /* changed under both locks */
    bool known;
    char name[SERVER_KEY_NAME_MAX + 1]; /* "": none */
    struct server_key quotas;           /* without its texts */
    /* under the mutex */
    uint32_t open;
    double requests_full_s, tokens_full_s;
};

struct accounts {
    pthread_rwlock_t keys;
    pthread_mutex_t mutex;
    struct account **items;
    size_t n, cap;
};

enum { MINUTE_S = 60 };

/* ---- keys ------------------------------------------------------------------------------------ */

struct accounts *accounts_create(void) {
    struct accounts *all = calloc(1, sizeof *all);
    if (!all)
        return NULL;
    pthread_rwlock_init(&all->keys, NULL);
    pthread_mutex_init(&all->mutex, NULL);
    return all;
}

void accounts_destroy(struct accounts *all) {
    if (!all)
        return;
    for (size_t i = 0; i < all->n; i++) {
        ASSERT(all->items[i]->open == 0);
        free(all->items[i]->key);
        free(all->items[i]);
    }
    pthread_mutex_destroy(&all->mutex);
    pthread_rwlock_destroy(&all->keys);
    mem_free(all->items);
    free(all);
}

bool account_same_key(const char *given, const char *key) {
    const size_t n = strlen(given), len = strlen(key);
    volatile unsigned char differ = n != len;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned char)(given[i] ^ key[len ? i % len : 0]);
    return !differ;
}

static struct account *find(const struct accounts *all, const char *given) {
    struct account *found = NULL;
    for (size_t i = 0; i < all->n; i++)
        if (account_same_key(given, all->items[i]->key))
            found = all->items[i];
    return found;
}

bool accounts_find(struct accounts *all, const char *given, struct account_view *out) {
    pthread_rwlock_rdlock(&all->keys);
    struct account *a = find(all, given);
    const bool known = a && a->known;
    if (known)
        *out = (struct account_view){.account = a,
                                     .key = a->key,
                                     .number = a->number,
                                     .weight = a->quotas.weight,
                                     .expires_s = a->quotas.expires_s,
                                     .share = &a->share};
    pthread_rwlock_unlock(&all->keys);
    return known;
}

/* An account that is not known yet. */
static bool add(struct accounts *all, const char *key) {
    struct account *a = calloc(1, sizeof *a);
    if (!a || !(a->key = strdup(key)) || !ARRAY_GROW(all->items, all->cap, all->n + 1)) {
        free(a ? a->key : NULL);
        free(a);
        return false;
    }
    a->all = all;
    a->number = all->n + 1;
    all->items[all->n++] = a;
    return true;
}

bool accounts_set(struct accounts *all, const struct server_key *keys, size_t n) {
    bool good = true;
    pthread_rwlock_wrlock(&all->keys);
    for (size_t i = 0; i < n && good; i++)
        good = find(all, keys[i].key) || add(all, keys[i].key);
    pthread_mutex_lock(&all->mutex);
    for (size_t i = 0; i < all->n && good; i++)
        all->items[i]->known = false;
    for (size_t i = 0; i < n && good; i++) {
        struct account *a = find(all, keys[i].key);
        ASSERT(a);
        a->known = true;
        a->quotas = keys[i];
        a->quotas.key = a->quotas.name = NULL;
        snprintf(a->name, sizeof a->name, "%s", keys[i].name ? keys[i].name : "");
    }
    pthread_mutex_unlock(&all->mutex);
    pthread_rwlock_unlock(&all->keys);
    return good;
}

/* ---- quotas ---------------------------------------------------------------------------------- */

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
               quota, number, *name ? " \"" : "", name, *name ? "\"" : "", whole);
    err->status = HTTP_TOO_MANY_REQUESTS;
    err->code = "rate_limit_exceeded";
    err->retry_after_s = whole < UINT32_MAX ? (uint32_t)whole : UINT32_MAX;
    return false;
}

bool account_begin(struct account *a, double now_s, struct api_error *err) {
    pthread_mutex_lock(&a->all->mutex);
    const struct server_key quotas = a->quotas, *k = &quotas;
    char name[sizeof a->name];
    memcpy(name, a->name, sizeof name);
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
        return refuse(err, name, "requests_per_minute", k->requests_per_minute, requests);
    if (tokens > 0)
        return refuse(err, name, "tokens_per_minute", k->tokens_per_minute, tokens);
    return refuse(err, name, "concurrent", k->concurrent,
                  1); /* until one ends, which nobody knows */
}

void account_end(struct account *a) {
    pthread_mutex_lock(&a->all->mutex);
    ASSERT(a->open > 0);
    a->open--;
    pthread_mutex_unlock(&a->all->mutex);
}

void account_tokens(struct account *a, double now_s, uint32_t n) {
    if (!n)
        return;
    pthread_mutex_lock(&a->all->mutex);
    if (a->quotas.tokens_per_minute)
        take(&a->tokens_full_s, now_s, n, a->quotas.tokens_per_minute);
    pthread_mutex_unlock(&a->all->mutex);
}
