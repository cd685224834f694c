/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of threads, created once.
 *
 *   run:   the caller writes the job (fn, ctx, parts), opens it in `state`, raises `epoch` and
 *          works itself. Workers that see the epoch join while the job is open. When no item is
 *          left the caller closes the job and waits for those that joined. A worker that the system
 *          did not schedule in time is not waited for.
 *   items: a worker takes the items of its own part, which are neighbours, one by one by
 *          incrementing `next`, then what is left of the others' parts. Neighbours matter: what one
 *          item fetches ahead is the next one's, and both must run on one core (docs/speed.md).
 *   nodes: on several memory nodes it turns to the parts of its own node first.
 *   idle:  a worker spins for a while (a decode step issues hundreds of runs, microseconds apart),
 *          then parks on a futex over `epoch`. `sleepers` tells whether a wake-up call is needed.
 *
 * Invariants
 *   THREADS-1  The job is written only while it is closed and nobody has joined, and read only by
 *              workers that have joined.
 *   THREADS-2  Opening releases, joining acquires, leaving releases, the caller's last look
 *              acquires: all writes of a run are seen by the next.
 *   THREADS-3  A part's `next` may run past its `end` by at most the number of workers: it never
 *              wraps.
 */
#define _GNU_SOURCE /* pthread_setaffinity_np */
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "util/topology.h"

/* Some 20 to 80 microseconds of `pause`: longer than the serial gaps between two runs of a step,
 * short compared with the time slice that another process on the same core would lose. */
enum { SPIN_ROUNDS = 2000 };

enum { JOB_OPEN = 1 << 16, JOINED_MASK = JOB_OPEN - 1 };

struct worker {
    struct thread_pool *pool;
    pthread_t thread;
    int index;
};

/* Items [next, end) of a run. */
struct part {
    _Alignas(64) atomic_size_t next;
    size_t end;
};

struct thread_pool {
    int threads;
    struct thread_nodes nodes;
    struct worker *workers; /* [threads - 1] */
    thread_fn *fn;
    void *ctx;
    struct part *parts;             /* [threads]: a worker's own */
    _Alignas(64) atomic_uint epoch; /* futex word */
    _Alignas(64) atomic_uint state; /* JOB_OPEN | workers that joined */
    atomic_int sleepers;
    atomic_bool stop;
};

static void cpu_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("" ::: "memory");
#endif
}

static void futex_wait(atomic_uint *word, unsigned value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake_all(atomic_uint *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
}

static void work(struct thread_pool *p, int worker) {
    for (int i = 0; i < p->threads; i++) {
        struct part *part = &p->parts[thread_nodes_turn(&p->nodes, worker, i)];
        while (atomic_load_explicit(&part->next, memory_order_relaxed) < part->end) {
            size_t item = atomic_fetch_add_explicit(&part->next, 1, memory_order_relaxed);
            if (item < part->end)
                p->fn(p->ctx, item, worker);
        }
    }
}

/* Items [first, items) become the parts of threads [thread, threads). */
static void cut_parts(struct thread_pool *p, int thread, int threads, size_t first, size_t items) {
    const size_t n = (size_t)(threads - thread), share = n ? (items - first + n - 1) / n : 0;
    for (int i = thread; i < threads; i++) {
        const size_t end = items - first < share ? items : first + share;
        atomic_store_explicit(&p->parts[i].next, first, memory_order_relaxed);
        p->parts[i].end = end;
        first = end;
    }
    ASSERT(first == items);
}

/* Waits until the epoch differs from `seen`; returns the new one. */
static unsigned wait_epoch(struct thread_pool *p, unsigned seen) {
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        unsigned now = atomic_load_explicit(&p->epoch, memory_order_acquire);
        if (now != seen)
            return now;
        cpu_pause();
    }
    atomic_fetch_add(&p->sleepers, 1);
    unsigned now;
    while ((now = atomic_load(&p->epoch)) == seen)
        futex_wait(&p->epoch, seen);
    atomic_fetch_sub(&p->sleepers, 1);
    return now;
}

static bool join(struct thread_pool *p) {
    unsigned s = atomic_load_explicit(&p->state, memory_order_relaxed);
    while (s & JOB_OPEN)
        if (atomic_compare_exchange_weak_explicit(&p->state, &s, s + 1, memory_order_acquire,
                                                  memory_order_relaxed))
            return true;
    return false;
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct thread_pool *p = w->pool;
    unsigned seen = 0;
    for (;;) {
        seen = wait_epoch(p, seen);
        if (atomic_load_explicit(&p->stop, memory_order_relaxed))
            return NULL;
        if (!join(p))
            continue;
        work(p, w->index);
        atomic_fetch_sub_explicit(&p->state, 1, memory_order_release);
    }
}

static void raise_epoch(struct thread_pool *p) {
    atomic_fetch_add(&p->epoch, 1); /* sequentially consistent against `sleepers` */
    if (atomic_load(&p->sleepers) > 0)
        futex_wake_all(&p->epoch);
}

/* Where the system refuses, the thread runs anywhere. */
static void bind(pthread_t thread, const struct cpu_mask *cpus) {
    (void)pthread_setaffinity_np(thread, sizeof cpus->bits, (const cpu_set_t *)cpus->bits);
}

kvasir_status thread_pool_create(struct thread_pool **out, int threads, kvasir_error *err) {
    static const struct topology one_node = {.cpus = 1, .cores = 1, .nodes = 1};
    return thread_pool_create_on(out, threads, &one_node, err);
}

kvasir_status thread_pool_create_on(struct thread_pool **out, int threads, const struct topology *t,
                                    kvasir_error *err) {
    ASSERT(threads > 0 && threads < JOB_OPEN);
    struct cpu_mask cpus;
    struct thread_pool *p = mem_alloc_aligned(sizeof *p);
    if (!p)
        return fail(err, KVASIR_ERR_MEMORY, "thread pool: out of memory");
    p->threads = 1;
    topology_deal(t, threads, &p->nodes);
    p->workers = mem_calloc((size_t)threads, sizeof *p->workers);
    p->parts = mem_alloc_aligned((size_t)threads * sizeof *p->parts);
    if (!p->workers || !p->parts) {
        thread_pool_destroy(p);
        return fail(err, KVASIR_ERR_MEMORY, "thread pool: out of memory");
    }
    for (int i = 1; i < threads; i++) {
        struct worker *w = &p->workers[i - 1];
        *w = (struct worker){.pool = p, .index = i};
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) {
            thread_pool_destroy(p);
            return fail(err, KVASIR_ERR_MEMORY, "cannot start thread %d of %d", i + 1, threads);
        }
        p->threads++;
        if (p->nodes.n > 1) {
            topology_node_cpus(t, thread_nodes_of(&p->nodes, i), &cpus);
            bind(w->thread, &cpus);
        }
    }
    *out = p;
    return KVASIR_OK;
}

void thread_pool_destroy(struct thread_pool *p) {
    if (!p)
        return;
    atomic_store(&p->stop, true);
    raise_epoch(p);
    for (int i = 1; i < p->threads; i++)
        pthread_join(p->workers[i - 1].thread, NULL);
    mem_free(p->workers);
    mem_free(p->parts);
    mem_free(p);
}

/* Whether that was all. */
static bool run_alone(const struct thread_pool *p, size_t items, thread_fn *fn, void *ctx) {
    if (items > 1 && p->threads > 1) {
        ASSERT(atomic_load_explicit(&p->state, memory_order_relaxed) == 0); /* THREADS-1 */
        return false;
    }
    for (size_t i = 0; i < items; i++)
        fn(ctx, i, 0);
    return true;
}

/* Runs the parts, which are cut. */
static void run(struct thread_pool *p, thread_fn *fn, void *ctx) {
    p->fn = fn;
    p->ctx = ctx;
    atomic_store_explicit(&p->state, JOB_OPEN, memory_order_release);
    raise_epoch(p);
    work(p, 0);
    atomic_fetch_and_explicit(&p->state, JOINED_MASK, memory_order_relaxed);
    /* The others finish within one item's time, so spinning is right; but if the core is shared, it
     * must be yielded. */
    for (int i = 0; atomic_load_explicit(&p->state, memory_order_acquire) != 0; i++) {
        if (i > SPIN_ROUNDS) {
            sched_yield();
            i = 0;
        }
        cpu_pause();
    }
}

void thread_pool_run(struct thread_pool *p, size_t items, thread_fn *fn, void *ctx) {
    if (run_alone(p, items, fn, ctx))
        return;
    cut_parts(p, 0, p->threads, 0, items);
    run(p, fn, ctx);
}

void thread_pool_run_on(struct thread_pool *p, const size_t *ends, thread_fn *fn, void *ctx) {
    const struct thread_nodes *n = &p->nodes;
    size_t first = 0;
    if (run_alone(p, ends[n->n - 1], fn, ctx))
        return;
    for (int i = 0; i < n->n; i++) {
        ASSERT(ends[i] >= first);
        cut_parts(p, n->first[i], n->first[i + 1], first, ends[i]);
        first = ends[i];
    }
    run(p, fn, ctx);
}
