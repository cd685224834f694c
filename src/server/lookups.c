/* SPDX-License-Identifier: Apache-2.0 */
/* lookups.c: what the last requests found in the prefix cache, in a ring that the engine's thread
 * fills. It has ids of tokens, two of each request, and no text.
 */
#include <pthread.h>
#include <string.h>

#include "server/server_internal.h"

enum { LOOKUPS = 512 };

struct lookups {
    pthread_mutex_t mutex;
    struct lookup ring[LOOKUPS];
    uint64_t n; /* added so far */
};

struct lookups *lookups_create(void) {
    struct lookups *all = mem_calloc(1, sizeof *all);
    if (all)
        pthread_mutex_init(&all->mutex, NULL);
    return all;
}

void lookups_destroy(struct lookups *all) {
    if (!all)
        return;
    pthread_mutex_destroy(&all->mutex);
    mem_free(all);
}

void lookups_add(struct lookups *all, const struct lookup *l) {
    pthread_mutex_lock(&all->mutex);
    all->ring[all->n++ % LOOKUPS] = *l;
    pthread_mutex_unlock(&all->mutex);
}

bool lookups_find(struct lookups *all, const char *id, struct lookup *out) {
    bool found = false;
    pthread_mutex_lock(&all->mutex);
    for (uint64_t i = 0; i < LOOKUPS && i < all->n && !found; i++)
        if (strcmp(all->ring[i].id, id) == 0) {
            *out = all->ring[i];
            found = true;
        }
    pthread_mutex_unlock(&all->mutex);
    return found;
}
