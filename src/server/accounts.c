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
    struct server_key quotas; /* without its texts */
    uint32_t places;          /* of its own, for waiting requests */
    /* under the mutex */
    uint32_t open;
    double requests_full_s, tokens_full_s;
    struct tenant_figures figures; /* but memory_bytes; its name is changed under both locks */
};

struct accounts {
    pthread_rwlock_t keys;
    pthread_mutex_t mutex;
    struct account **items;
    size_t n, cap, n_known;
    uint32_t max_waiting;         /* never changed */
    uint32_t common, common_used; /* places of all, under the mutex */
    struct account other;         /* the admin's, or without a key */
};

static const char NO_NAME[] = "-";

enum { MINUTE_S = 60 };

/* ---- keys ------------------------------------------------------------------------------------ */

struct accounts *accounts_create(uint32_t max_waiting) {
    struct accounts *all = calloc(1, sizeof *all);
    if (!all)
        return NULL;
    pthread_rwlock_init(&all->keys, NULL);
    pthread_mutex_init(&all->mutex, NULL);
    all->other.all = all;
    all->max_waiting = all->common = max_waiting;
    memcpy(all->other.figures.name, NO_NAME, sizeof NO_NAME);
    return all;
}

void accounts_destroy(struct accounts *all) {
    if (!all)
        return;
    for (size_t i = 0; i < all->n; i++) {
        const struct tenant_figures *f = &all->items[i]->figures;
        ASSERT(all->items[i]->open == 0 && f->waiting == 0 && f->running == 0);
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

void accounts_other(struct accounts *all, struct account_view *out) {
    *out = (struct account_view){.account = &all->other, .key = "", .share = &all->other.share};
}

size_t accounts_count(struct accounts *all) {
    pthread_rwlock_rdlock(&all->keys);
    const size_t n = all->n_known;
    pthread_rwlock_unlock(&all->keys);
    return n;
}

const char **accounts_keys(struct accounts *all, const char *name, size_t *n) {
    *n = 0;
    pthread_rwlock_rdlock(&all->keys);
    const char **keys = mem_calloc(all->n + 1, sizeof *keys);
    for (size_t i = 0; keys && i < all->n; i++)
        if (!name || strcmp(all->items[i]->figures.name, name) == 0)
            keys[(*n)++] = all->items[i]->key;
    pthread_rwlock_unlock(&all->keys);
    return keys;
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

static uint32_t weight_of(const struct account *a) {
    return a->known ? max_u32(a->quotas.weight, 1) : 0;
}

/* Under both locks: shares the places among the keys. */
static void share_places(struct accounts *all) {
    uint64_t weights = 0;
    all->common = all->max_waiting;
    all->common_used = all->other.figures.waiting;
    for (size_t i = 0; i < all->n; i++)
        weights += weight_of(all->items[i]);
    for (size_t i = 0; i < all->n; i++) {
        struct account *a = all->items[i];
        const uint32_t waiting = a->figures.waiting;
        a->places =
            weights ? (uint32_t)((uint64_t)(all->max_waiting / 2) * weight_of(a) / weights) : 0;
        all->common -= a->places;
        all->common_used += waiting > a->places ? waiting - a->places : 0;
    }
    ASSERT(all->common >= all->max_waiting / 2);
}

bool accounts_set(struct accounts *all, const struct server_key *keys, size_t n) {
    bool good = true;
    size_t n_known = 0;
    pthread_rwlock_wrlock(&all->keys);
    for (size_t i = 0; i < n && good; i++)
        good = find(all, keys[i].key) || add(all, keys[i].key);
    pthread_mutex_lock(&all->mutex);
    for (size_t i = 0; i < all->n && good; i++)
        all->items[i]->known = false;
    for (size_t i = 0; i < n && good; i++) {
        struct account *a = find(all, keys[i].key);
        ASSERT(a);
        n_known += !a->known;
        a->known = true;
        a->quotas = keys[i];
        a->quotas.key = a->quotas.name = NULL;
        snprintf(a->figures.name, sizeof a->figures.name, "%s",
                 keys[i].name ? keys[i].name : NO_NAME);
    }
    if (good)
        all->n_known = n_known;
    share_places(all);
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

/* For a message: nothing, or a blank and the name in quotes. */
struct named {
    char text[SERVER_KEY_NAME_MAX + 4];
};
static struct named named_of(const char *name) {
    struct named n = {""};
    if (strcmp(name, NO_NAME) != 0)
        snprintf(n.text, sizeof n.text, " \"%s\"", name);
    return n;
}

static bool refuse(struct api_error *err, const char *name, const char *quota, uint64_t number,
                   double wait_s) {
    const double whole = ceil(wait_s);
    const struct named named = named_of(name);
    api_refuse(err, NULL,
               "the quota \"%s\" of %" PRIu64 " of the API key%s is used up: try again in %.0f s",
               quota, number, named.text, whole);
    err->status = HTTP_TOO_MANY_REQUESTS;
    err->code = "rate_limit_exceeded";
    err->retry_after_s = whole < UINT32_MAX ? (uint32_t)whole : UINT32_MAX;
    return false;
}

bool account_begin(struct account *a, double now_s, struct api_error *err) {
    pthread_mutex_lock(&a->all->mutex);
    const struct server_key quotas = a->quotas, *k = &quotas;
    char name[sizeof a->figures.name];
    memcpy(name, a->figures.name, sizeof name);
    const bool full = k->concurrent && a->open >= k->concurrent;
    const double requests = until_one(a->requests_full_s, now_s, k->requests_per_minute),
                 tokens = until_one(a->tokens_full_s, now_s, k->tokens_per_minute);
    const bool good = !full && requests <= 0 && tokens <= 0;
    a->figures.requests++;
    a->figures.refused += !good;
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

void account_refused(struct account *a) {
    pthread_mutex_lock(&a->all->mutex);
    a->figures.refused++;
    pthread_mutex_unlock(&a->all->mutex);
}

/* ---- figures --------------------------------------------------------------------------------- */

bool account_wait(struct account *a, struct api_error *err) {
    struct accounts *all = a->all;
    pthread_mutex_lock(&all->mutex);
    const bool own = a->figures.waiting < a->places, good = own || all->common_used < all->common;
    const uint32_t waiting = a->figures.waiting, places = a->places, common = all->common;
    const struct named named = named_of(a->figures.name);
    a->figures.waiting += good;
    all->common_used += good && !own;
    pthread_mutex_unlock(&all->mutex);
    if (good)
        return true;
    api_refuse(err, NULL,
               "%u requests of the API key%s are waiting: of %u places %u are its own, and the %u "
               "of all keys are taken: try again later",
               waiting, named.text, all->max_waiting, places, common);
    err->status = HTTP_TOO_MANY_REQUESTS;
    return false;
}

/* Under the mutex. */
static void no_longer_waits(struct account *a) {
    struct accounts *all = a->all;
    ASSERT(a->figures.waiting > 0);
    a->figures.waiting--;
    if (a->figures.waiting >= a->places) {
        ASSERT(all->common_used > 0);
        all->common_used--;
    }
}

void account_unwait(struct account *a) {
    pthread_mutex_lock(&a->all->mutex);
    no_longer_waits(a);
    pthread_mutex_unlock(&a->all->mutex);
}

/* Under the mutex: computed tokens. */
static void note_tokens(struct account *a, double now_s, uint32_t n) {
    if (n && a->quotas.tokens_per_minute)
        take(&a->tokens_full_s, now_s, n, a->quotas.tokens_per_minute);
}

/* Under the mutex. */
static void note_prompt(struct account *a, double now_s, uint32_t tokens, uint32_t cached) {
    ASSERT(cached <= tokens);
    a->figures.prompt_tokens += tokens;
    a->figures.cached_tokens += cached;
    note_tokens(a, now_s, tokens - cached);
}

static void note_start(struct account *a, double now_s, const kvasir_event *e) {
    struct tenant_figures *f = &a->figures;
    no_longer_waits(a);
    f->running++;
    f->hits[e->hit]++;
    note_prompt(a, now_s, e->prompt_tokens, e->cached_tokens);
}

void account_more(struct account *a, double now_s, uint32_t prompt_tokens, uint32_t cached_tokens) {
    pthread_mutex_lock(&a->all->mutex);
    note_prompt(a, now_s, prompt_tokens, cached_tokens);
    pthread_mutex_unlock(&a->all->mutex);
}

void account_event(struct account *a, double now_s, const kvasir_event *e, bool started) {
    pthread_mutex_lock(&a->all->mutex);
    if (e->kind == KVASIR_EVENT_START) {
        note_start(a, now_s, e);
    } else if (e->kind == KVASIR_EVENT_TOKEN) {
        a->figures.generated_tokens++;
        note_tokens(a, now_s, 1);
    }
    if (e->last && !started) {
        no_longer_waits(a);
    } else if (e->last) {
        ASSERT(a->figures.running > 0);
        a->figures.running--;
    }
    pthread_mutex_unlock(&a->all->mutex);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct tenant_figures *)a)->name,
                  ((const struct tenant_figures *)b)->name);
}

static void add_figures(struct tenant_figures *to, const struct tenant_figures *f) {
    to->requests += f->requests;
    to->refused += f->refused;
    to->prompt_tokens += f->prompt_tokens;
    to->cached_tokens += f->cached_tokens;
    to->generated_tokens += f->generated_tokens;
    for (int i = 0; i < KVASIR_HIT_KINDS; i++)
        to->hits[i] += f->hits[i];
    to->memory_bytes += f->memory_bytes;
    to->running += f->running;
    to->waiting += f->waiting;
}

/* Sorts, and joins those with one name; returns how many are left. */
static size_t join(struct tenant_figures *items, size_t n) {
    size_t kept = 0;
    qsort(items, n, sizeof *items, by_name);
    for (size_t i = 0; i < n; i++)
        if (kept && by_name(&items[kept - 1], &items[i]) == 0)
            add_figures(&items[kept - 1], &items[i]);
        else
            items[kept++] = items[i];
    return kept;
}

static const struct account *nth(const struct accounts *all, const struct account *only, size_t i) {
    return only ? only : i ? all->items[i - 1] : &all->other;
}

struct tenant_figures *accounts_figures(struct accounts *all, struct account *only,
                                        struct mem_account *memory, size_t *n) {
    pthread_rwlock_rdlock(&all->keys);
    *n = only ? 1 : all->n + 1;
    struct tenant_figures *items = mem_calloc(*n, sizeof *items);
    if (items) {
        pthread_mutex_lock(&all->mutex);
        for (size_t i = 0; i < *n; i++)
            items[i] = nth(all, only, i)->figures;
        pthread_mutex_unlock(&all->mutex);
        for (size_t i = 0; i < *n; i++)
            items[i].memory_bytes = mem_share_held(memory, &nth(all, only, i)->share);
        *n = join(items, *n);
    }
    pthread_rwlock_unlock(&all->keys);
    return items;
}
