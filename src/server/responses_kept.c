/* SPDX-License-Identifier: Apache-2.0 */
/* responses_kept.c: a table of responses by id, and a list of them by age. */
#include "server/responses_kept.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "server/metrics.h"
#include "util/json.h"

enum { ID_MAX = 64, SLOTS = 4096, CHAIN_MAX = 10000 };

struct kept {
    struct kept *next;            /* of its slot */
    struct kept *older, *younger; /* of the list */
    uint32_t refs;                /* under the mutex: the table's, and readers' */
    int64_t used_us;
    size_t bytes;
    char id[ID_MAX], previous[ID_MAX]; /* "": none */
    char *key, *input, *response;      /* texts; JSON: an array, and an object */
};

struct kept_responses {
    uint64_t max_bytes;
    int64_t ttl_us;
    struct charge *charge;
    pthread_mutex_t mutex;
    /* under the mutex */
    struct kept *slots[SLOTS];
    struct kept *oldest, *youngest;
    struct kept_figures figures;
};

/* ---- one ------------------------------------------------------------------------------------- */

static void kept_free(struct kept *k) {
    if (!k)
        return;
    mem_free(k->key);
    mem_free(k->input);
    mem_free(k->response);
    mem_free(k);
}

static char *text_of(json_t *value) {
    struct text_buf out = {0};
    char *text = json_dumps(value, JSON_COMPACT);
    const bool good = text && text_puts(&out, text);
    mem_free(text);
    if (good)
        return out.data;
    text_free(&out);
    return NULL;
}

static struct kept *kept_make(const char *key, const char *previous, json_t *input,
                              json_t *response) {
    const char *id = json_string_value(json_object_get(response, "id"));
    struct kept *k = mem_calloc(1, sizeof *k);
    if (!k || !id)
        goto failed;
    snprintf(k->id, sizeof k->id, "%s", id);
    snprintf(k->previous, sizeof k->previous, "%s", previous ? previous : "");
    k->key = mem_strndup(key, strlen(key));
    k->input = text_of(input);
    k->response = text_of(response);
    if (!k->key || !k->input || !k->response)
        goto failed;
    k->refs = 1;
    k->bytes = sizeof *k + strlen(k->key) + strlen(k->input) + strlen(k->response);
    return k;
failed:
    kept_free(k);
    return NULL;
}

/* ---- table and list (under the mutex) -------------------------------------------------------- */

static struct kept **slot_of(struct kept_responses *all, const char *id) {
    uint32_t h = 2166136261u; /* FNV-1a; ids are random */
    for (; *id; id++)
        h = (h ^ (uint8_t)*id) * 16777619u;
    return &all->slots[h % SLOTS];
}

static struct kept *find(struct kept_responses *all, const char *key, const char *id) {
    struct kept *k = *slot_of(all, id);
    while (k && (strcmp(k->id, id) != 0 || strcmp(k->key, key) != 0))
        k = k->next;
    return k;
}

static void unlist(struct kept_responses *all, struct kept *k) {
    *(k->older ? &k->older->younger : &all->oldest) = k->younger;
    *(k->younger ? &k->younger->older : &all->youngest) = k->older;
}

static void list(struct kept_responses *all, struct kept *k) {
    k->older = all->youngest;
    k->younger = NULL;
    *(all->youngest ? &all->youngest->younger : &all->oldest) = k;
    all->youngest = k;
    k->used_us = metrics_now_us();
}

/* Returns what the caller frees without the mutex; NULL: a reader still has it. */
static struct kept *unref(struct kept *k) {
    ASSERT(k->refs > 0);
    return --k->refs == 0 ? k : NULL;
}

/* Takes it out of table and list. */
static struct kept *take_out(struct kept_responses *all, struct kept *k) {
    struct kept **at = slot_of(all, k->id);
    while (*at != k)
        at = &(*at)->next;
    *at = k->next;
    unlist(all, k);
    charge_give(all->charge, k->bytes);
    all->figures.responses--;
    all->figures.bytes -= k->bytes;
    return unref(k);
}

/* Those that are too old, and the oldest until `bytes` more fit. A list of what to free. */
static struct kept *make_room(struct kept_responses *all, size_t bytes) {
    const int64_t now = metrics_now_us();
    struct kept *gone = NULL;
    while (all->oldest && (now - all->oldest->used_us > all->ttl_us ||
                           all->figures.bytes + bytes > all->max_bytes)) {
        struct kept *k = take_out(all, all->oldest);
        if (k) {
            k->next = gone;
            gone = k;
        }
    }
    return gone;
}

static void free_list(struct kept *k) {
    while (k) {
        struct kept *next = k->next;
        kept_free(k);
        k = next;
    }
}

/* ---- all ------------------------------------------------------------------------------------- */

struct kept_responses *kept_create(struct mem_account *account, uint64_t max_bytes,
                                   uint32_t ttl_seconds) {
    struct kept_responses *all = mem_calloc(1, sizeof *all);
    if (!all || !(all->charge = charge_create(account, NULL))) {
        mem_free(all);
        return NULL;
    }
    all->max_bytes = max_bytes;
    all->ttl_us = (int64_t)ttl_seconds * 1000000;
    pthread_mutex_init(&all->mutex, NULL);
    return all;
}

void kept_destroy(struct kept_responses *all) {
    if (!all)
        return;
    while (all->oldest)
        kept_free(take_out(all, all->oldest));
    charge_unref(all->charge);
    pthread_mutex_destroy(&all->mutex);
    mem_free(all);
}

void kept_add(struct kept_responses *all, const char *key, const char *previous, json_t *input,
              json_t *response) {
    struct charge *before = charge_enter(NULL); /* it outlives the request */
    struct kept *k = kept_make(key, previous, input, response), *gone = NULL;
    if (k && k->bytes <= all->max_bytes) {
        pthread_mutex_lock(&all->mutex);
        gone = make_room(all, k->bytes);
        if (charge_take(all->charge, k->bytes)) {
            struct kept **slot = slot_of(all, k->id);
            k->next = *slot;
            *slot = k;
            list(all, k);
            all->figures.responses++;
            all->figures.bytes += k->bytes;
            k = NULL;
        }
        pthread_mutex_unlock(&all->mutex);
    }
    free_list(gone);
    kept_free(k);
    charge_leave(before);
}

static bool not_kept(struct api_error *err, const char *id) {
    api_refuse(
        err, "previous_response_id",
        "response \"%.64s\" is not kept here: it was not stored, was deleted, is too old, or "
        "belongs to another key; send the whole conversation as input",
        id);
    err->status = HTTP_NOT_FOUND;
    err->code = "previous_response_not_found";
    return false;
}

/* References to a response and those before it, the youngest first. Returns how many; 0: one of
 * them is not there, and *missing is its id. */
static size_t take_chain(struct kept_responses *all, const char *key, const char *id,
                         struct kept **chain, char missing[ID_MAX]) {
    size_t n = 0;
    pthread_mutex_lock(&all->mutex);
    free_list(make_room(all, 0));
    snprintf(missing, ID_MAX, "%s", id);
    while (*missing && n < CHAIN_MAX) {
        struct kept *k = find(all, key, missing);
        if (!k)
            break;
        k->refs++;
        chain[n++] = k;
        snprintf(missing, ID_MAX, "%s", k->previous);
    }
    if (!*missing)
        for (size_t i = n; i-- > 0;) { /* the youngest is used last: it leaves last */
            unlist(all, chain[i]);
            list(all, chain[i]);
        }
    pthread_mutex_unlock(&all->mutex);
    return n;
}

static void give_chain(struct kept_responses *all, struct kept **chain, size_t n) {
    struct kept *gone = NULL;
    pthread_mutex_lock(&all->mutex);
    for (size_t i = 0; i < n; i++) {
        struct kept *k = unref(chain[i]);
        if (k) {
            k->next = gone;
            gone = k;
        }
    }
    pthread_mutex_unlock(&all->mutex);
    free_list(gone);
}

static bool add_items(json_t *items, const char *text, const char *member, struct api_error *err) {
    json_t *value;
    if (json_load_request(text, strlen(text), JSON_ALLOW_NUL, &value, NULL))
        return api_no_memory(err);
    json_t *array = member ? json_object_get(value, member) : value;
    const bool good = json_array_extend(items, array) == 0;
    json_decref(value);
    return good || api_no_memory(err);
}

bool kept_recall(struct kept_responses *all, const char *key, const char *id, json_t *items,
                 struct api_error *err) {
    char missing[ID_MAX];
    if (strlen(id) >= ID_MAX)
        return not_kept(err, id);
    struct kept **chain = mem_calloc(CHAIN_MAX, sizeof *chain);
    if (!chain)
        return api_no_memory(err);
    const size_t n = take_chain(all, key, id, chain, missing);
    bool good = !*missing || not_kept(err, missing);
    for (size_t i = n; good && i-- > 0;)
        good = add_items(items, chain[i]->input, NULL, err) &&
               add_items(items, chain[i]->response, "output", err);
    give_chain(all, chain, n);
    mem_free(chain);
    return good;
}

char *kept_text(struct kept_responses *all, const char *key, const char *id, bool input,
                bool *found) {
    pthread_mutex_lock(&all->mutex);
    free_list(make_room(all, 0));
    struct kept *k = find(all, key, id);
    const char *text = k ? input ? k->input : k->response : NULL;
    char *copy = text ? mem_strndup(text, strlen(text)) : NULL;
    pthread_mutex_unlock(&all->mutex);
    *found = text != NULL;
    return copy;
}

bool kept_forget(struct kept_responses *all, const char *key, const char *id) {
    pthread_mutex_lock(&all->mutex);
    struct kept *k = find(all, key, id), *gone = k ? take_out(all, k) : NULL;
    pthread_mutex_unlock(&all->mutex);
    kept_free(gone);
    return k != NULL;
}

struct kept_figures kept_figures(struct kept_responses *all) {
    if (!all)
        return (struct kept_figures){0};
    pthread_mutex_lock(&all->mutex);
    const struct kept_figures f = all->figures;
    pthread_mutex_unlock(&all->mutex);
    return f;
}
