/* SPDX-License-Identifier: Apache-2.0 */
/* work.c: two queues, first come, first served, and the threads that work on them.
 *
 *     bytes <= SMALL   queue[0]  <-- thread 0, and the others when queue[1] is empty
 *     more             queue[1]  <-- threads 1 ...
 *
 * So large texts, however many, never hold small ones up. Threads are few, and those of large texts
 * have a low priority, since the model's steps need the cores more.
 */
#include "server/work.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "util/topology.h"

enum { THREADS_MAX = 5, LARGE_NICE = 12, SMALL = 64 << 10 };

struct work_queue {
    struct work *first, **end;
    uint32_t n;
};

struct work_pool {
    pthread_t threads[THREADS_MAX];
    uint32_t n_threads;
    /* under the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t added;
    struct work_queue queue[2];
    uint32_t n_started;
    bool stop;
};

static struct work *take_first(struct work_queue *q) {
    struct work *w = q->first;
    ASSERT(w && q->n > 0);
    q->first = w->next;
    if (!q->first)
        q->end = &q->first;
    q->n--;
    return w;
}

/* Under the mutex. NULL: there is nothing for this thread. */
static struct work *next_work(struct work_pool *p, bool small_only) {
    if (!small_only && p->queue[1].first)
        return take_first(&p->queue[1]);
    return p->queue[0].first ? take_first(&p->queue[0]) : NULL;
}

static void *work_thread(void *user) {
    struct work_pool *p = user;
    pthread_mutex_lock(&p->mutex);
    const bool small_only = p->n_started++ == 0;
    if (!small_only) /* Linux: of this thread alone */
        (void)setpriority(PRIO_PROCESS, (id_t)gettid(), LARGE_NICE);
    for (;;) {
        struct work *w = next_work(p, small_only);
        if (w) {
            pthread_mutex_unlock(&p->mutex);
            w->run(w);
            pthread_mutex_lock(&p->mutex);
        } else if (p->stop) {
            break;
        } else {
            pthread_cond_wait(&p->added, &p->mutex);
        }
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

struct work_pool *work_pool_create(void) {
    struct work_pool *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    struct topology machine;
    topology_read(&machine);
    const uint32_t large = min_u32(max_u32((uint32_t)machine.cpus / 4, 1), THREADS_MAX - 1);
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->added, NULL);
    for (int i = 0; i < 2; i++)
        p->queue[i].end = &p->queue[i].first;
    while (p->n_threads < 1 + large &&
           pthread_create(&p->threads[p->n_threads], NULL, work_thread, p) == 0)
        p->n_threads++;
    ASSERT(p->n_threads <= THREADS_MAX);
    if (p->n_threads == 1 + large)
        return p;
    work_pool_end(p);
    work_pool_destroy(p);
    return NULL;
}

void work_pool_add(struct work_pool *p, struct work *w) {
    struct work_queue *q = &p->queue[w->bytes > SMALL];
    w->next = NULL;
    pthread_mutex_lock(&p->mutex);
    const bool stopped = p->stop;
    if (!stopped) {
        *q->end = w;
        q->end = &w->next;
        q->n++;
        pthread_cond_broadcast(&p->added); /* some threads take small work only */
    }
    pthread_mutex_unlock(&p->mutex);
    if (stopped)
        w->run(w);
}

uint32_t work_pool_waiting(struct work_pool *p) {
    pthread_mutex_lock(&p->mutex);
    const uint32_t n = p->queue[0].n + p->queue[1].n;
    pthread_mutex_unlock(&p->mutex);
    return n;
}

void work_pool_end(struct work_pool *p) {
    pthread_mutex_lock(&p->mutex);
    p->stop = true;
    pthread_cond_broadcast(&p->added);
    pthread_mutex_unlock(&p->mutex);
    for (uint32_t i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    p->n_threads = 0;
}

void work_pool_destroy(struct work_pool *p) {
    if (!p)
        return;
    ASSERT(p->n_threads == 0 && !p->queue[0].first && !p->queue[1].first);
    pthread_cond_destroy(&p->added);
    pthread_mutex_destroy(&p->mutex);
    free(p);
}
