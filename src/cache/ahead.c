/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* pthread_setname_np */
#include "cache/ahead.h"

#include <pthread.h>

struct range {
    void *table; /* NULL: a page of the arena */
    uint32_t addr;
    size_t bytes;
};

struct ahead {
    struct backend *backend;
    struct backend_arena *arena;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards what follows; a leaf: nothing else happens under it */
    pthread_cond_t more, done;
    struct range ranges[AHEAD_RANGES];
    uint32_t first, n; /* the first stays listed while it is worked on */
    bool stop;
};

static void *ahead_thread(void *user) {
    struct ahead *a = user;
    pthread_mutex_lock(&a->mutex);
    for (;;) {
        while (!a->n && !a->stop)
            pthread_cond_wait(&a->more, &a->mutex);
        if (a->stop)
            break;
        const struct range r = a->ranges[a->first];
        pthread_mutex_unlock(&a->mutex);
        if (r.table)
            mem_populate(r.table, r.bytes);
        else
            backend_arena_populate(a->backend, a->arena, r.addr, r.bytes);
        pthread_mutex_lock(&a->mutex);
        a->first = (a->first + 1) % AHEAD_RANGES;
        if (--a->n == 0)
            pthread_cond_broadcast(&a->done);
    }
    pthread_mutex_unlock(&a->mutex);
    return NULL;
}

struct ahead *ahead_create(struct backend *b, struct backend_arena *arena) {
    struct ahead *a = b->ops->arena_populate ? mem_calloc(1, sizeof *a) : NULL;
    if (!a)
        return NULL;
    a->backend = b;
    a->arena = arena;
    pthread_mutex_init(&a->mutex, NULL);
    pthread_cond_init(&a->more, NULL);
    pthread_cond_init(&a->done, NULL);
    if (pthread_create(&a->thread, NULL, ahead_thread, a) == 0) {
        pthread_setname_np(a->thread, "ahead");
        return a;
    }
    pthread_cond_destroy(&a->done);
    pthread_cond_destroy(&a->more);
    pthread_mutex_destroy(&a->mutex);
    mem_free(a);
    return NULL;
}

void ahead_destroy(struct ahead *a) {
    if (!a)
        return;
    pthread_mutex_lock(&a->mutex);
    a->stop = true;
    pthread_cond_signal(&a->more);
    pthread_mutex_unlock(&a->mutex);
    pthread_join(a->thread, NULL);
    pthread_cond_destroy(&a->done);
    pthread_cond_destroy(&a->more);
    pthread_mutex_destroy(&a->mutex);
    mem_free(a);
}

static bool add(struct ahead *a, struct range r) {
    pthread_mutex_lock(&a->mutex);
    ASSERT(a->n <= AHEAD_RANGES);
    const bool fits = a->n < AHEAD_RANGES;
    if (fits) {
        a->ranges[(a->first + a->n++) % AHEAD_RANGES] = r;
        pthread_cond_signal(&a->more);
    }
    pthread_mutex_unlock(&a->mutex);
    return fits;
}

bool ahead_page(struct ahead *a, uint32_t addr, size_t bytes) {
    return add(a, (struct range){.addr = addr, .bytes = bytes});
}

void ahead_table(struct ahead *a, void *at, size_t bytes) {
    (void)add(a, (struct range){.table = at, .bytes = bytes});
}

void ahead_wait(struct ahead *a) {
    pthread_mutex_lock(&a->mutex);
    while (a->n)
        pthread_cond_wait(&a->done, &a->mutex);
    pthread_mutex_unlock(&a->mutex);
}
