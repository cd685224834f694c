/* SPDX-License-Identifier: Apache-2.0 */
/* grammar_cache.c: a list, the grammar used last at its head. It is short, so that looking through
 * the hashes costs nothing beside compiling. */
#include "api/grammar_cache.h"

#include <pthread.h>
#include <string.h>

#include "util/account.h"

struct kept_grammar {
    struct grammar_cache *cache;
    struct kept_grammar *prev, *next; /* in the list, if it is listed */
    bool listed;
    uint32_t refs; /* the list's included */
    uint64_t hash;
    kvasir_grammar_kind kind;
    char *text;
    size_t len;
    kvasir_grammar *grammar;
};

struct grammar_cache {
    size_t max_entries, max_bytes;
    pthread_mutex_t mutex;
    /* under the mutex */
    struct kept_grammar *first, *last;
    struct grammar_figures figures; /* bytes: 0, added up when asked */
};

/* ---- entries --------------------------------------------------------------------------------- */

/* Not given back to a request, which another one may be that paid for it. */
static void destroy(struct kept_grammar *k) {
    struct charge *before = charge_enter(NULL);
    kvasir_grammar_destroy(k->grammar);
    mem_free(k->text);
    mem_free(k);
    charge_leave(before);
}

static struct kept_grammar *create(struct grammar_cache *c, kvasir_grammar_kind kind, uint64_t hash,
                                   const char *text, size_t len) {
    struct kept_grammar *k = mem_calloc(1, sizeof *k);
    char *copy = mem_strndup(text, len);
    if (!k || !copy) {
        mem_free(k);
        mem_free(copy);
        return NULL;
    }
    *k = (struct kept_grammar){
        .cache = c, .refs = 1, .hash = hash, .kind = kind, .text = copy, .len = len};
    return k;
}

/* Under the mutex, as all that follow. */
static void unlist(struct grammar_cache *c, struct kept_grammar *k) {
    *(k->prev ? &k->prev->next : &c->first) = k->next;
    *(k->next ? &k->next->prev : &c->last) = k->prev;
    k->prev = k->next = NULL;
    k->listed = false;
    c->figures.entries--;
}

static void list_first(struct grammar_cache *c, struct kept_grammar *k) {
    k->next = c->first;
    *(k->next ? &k->next->prev : &c->last) = k;
    c->first = k;
    k->listed = true;
    c->figures.entries++;
}

static struct kept_grammar *find(struct grammar_cache *c, kvasir_grammar_kind kind, uint64_t hash,
                                 const char *text, size_t len) {
    for (struct kept_grammar *k = c->first; k; k = k->next)
        if (k->hash == hash && k->kind == kind && k->len == len && memcmp(k->text, text, len) == 0)
            return k;
    return NULL;
}

static struct kept_grammar *use(struct grammar_cache *c, struct kept_grammar *k) {
    unlist(c, k);
    list_first(c, k);
    k->refs++;
    return k;
}

static uint64_t bytes_of(struct grammar_cache *c) {
    uint64_t bytes = 0;
    for (struct kept_grammar *k = c->first; k; k = k->next)
        bytes += sizeof *k + k->len + kvasir_grammar_bytes(k->grammar);
    return bytes;
}

/* Machines grow while they are used, so the sum is made anew. Returns the entries that went and
 * that nobody uses, linked by next. */
static struct kept_grammar *make_room(struct grammar_cache *c) {
    struct kept_grammar *gone = NULL;
    while (c->last != c->first &&
           (c->figures.entries > c->max_entries || bytes_of(c) > c->max_bytes)) {
        struct kept_grammar *k = c->last;
        unlist(c, k);
        if (--k->refs > 0)
            continue;
        k->next = gone;
        gone = k;
    }
    return gone;
}

/* ---- use ------------------------------------------------------------------------------------- */

/* Lists a grammar that was compiled, or takes the one that another thread compiled meanwhile. */
static struct kept_grammar *add(struct grammar_cache *c, struct kept_grammar *k) {
    pthread_mutex_lock(&c->mutex);
    struct kept_grammar *same = find(c, k->kind, k->hash, k->text, k->len), *gone = NULL;
    if (same) {
        use(c, same);
        gone = k;
    } else {
        k->refs = 2;
        list_first(c, k);
        gone = make_room(c);
    }
    pthread_mutex_unlock(&c->mutex);
    for (struct kept_grammar *next; gone; gone = next) {
        next = gone->next;
        destroy(gone);
    }
    return same ? same : k;
}

static void count(struct grammar_cache *c, bool good, double seconds) {
    pthread_mutex_lock(&c->mutex);
    c->figures.compiled += good;
    c->figures.refused += !good;
    c->figures.seconds += seconds;
    pthread_mutex_unlock(&c->mutex);
}

kvasir_status grammar_cache_get(struct grammar_cache *c, kvasir_grammar_kind kind, const char *text,
                                size_t len, struct kept_grammar **out, kvasir_error *err) {
    const uint64_t hash = hash_fnv1a(text, len);
    pthread_mutex_lock(&c->mutex);
    struct kept_grammar *k = find(c, kind, hash, text, len);
    *out = k ? use(c, k) : NULL;
    c->figures.hits += k != NULL;
    pthread_mutex_unlock(&c->mutex);
    if (k)
        return KVASIR_OK;
    if (!(k = create(c, kind, hash, text, len)))
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for a grammar");
    const double begin = clock_seconds();
    const kvasir_status status = kvasir_grammar_create(kind, text, len, &k->grammar, err);
    count(c, status == KVASIR_OK, clock_seconds() - begin);
    if (status)
        destroy(k);
    else
        *out = add(c, k);
    return status;
}

const kvasir_grammar *kept_grammar_of(const struct kept_grammar *k) {
    return k->grammar;
}

void kept_grammar_release(struct kept_grammar *k) {
    if (!k)
        return;
    struct grammar_cache *c = k->cache;
    pthread_mutex_lock(&c->mutex);
    const bool last = --k->refs == 0;
    ASSERT(!last || !k->listed);
    pthread_mutex_unlock(&c->mutex);
    if (last)
        destroy(k);
}

struct grammar_figures grammar_cache_figures(struct grammar_cache *c) {
    pthread_mutex_lock(&c->mutex);
    struct grammar_figures f = c->figures;
    f.bytes = bytes_of(c);
    pthread_mutex_unlock(&c->mutex);
    return f;
}

/* ---- life ------------------------------------------------------------------------------------ */

struct grammar_cache *grammar_cache_create(size_t max_entries, size_t max_bytes) {
    enum { ENTRIES = 64, BYTES = 256 << 20 };
    struct grammar_cache *c = mem_calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->max_entries = max_entries ? max_entries : ENTRIES;
    c->max_bytes = max_bytes ? max_bytes : BYTES;
    pthread_mutex_init(&c->mutex, NULL);
    return c;
}

void grammar_cache_destroy(struct grammar_cache *c) {
    if (!c)
        return;
    for (struct kept_grammar *k = c->first, *next; k; k = next) {
        next = k->next;
        ASSERT(k->refs == 1);
        destroy(k);
    }
    pthread_mutex_destroy(&c->mutex);
    mem_free(c);
}
