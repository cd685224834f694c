/* SPDX-License-Identifier: Apache-2.0 */
/* topology.h: the CPUs that this process may use: which of them share a physical core, to which
 * memory node each belongs, and how many the control groups grant. And how the threads of a pool
 * are dealt to the nodes. */
#ifndef KVASIR_UTIL_TOPOLOGY_H
#define KVASIR_UTIL_TOPOLOGY_H

#include "util/util.h"

/* The most that Linux numbers on x86-64; as many cores as a pool may have threads; more nodes count
 * as one. */
enum { TOPOLOGY_CPUS_MAX = 8192, TOPOLOGY_CORES_MAX = 1024, TOPOLOGY_NODES_MAX = 16 };
enum { NODE_NONE = 255 };

struct cpu_mask {
    uint64_t bits[TOPOLOGY_CPUS_MAX / 64];
};

/* A physical core of which the process may use at least one CPU. */
struct topology_core {
    uint16_t cpu;  /* the lowest of those */
    uint16_t node; /* an index, not the system's number */
};

struct topology {
    int cpus;     /* that the process may use; at least 1 */
    int cores;    /* at least 1 */
    int nodes;    /* with at least one of the cores; at least 1 */
    double quota; /* time of so many CPUs is granted; 0: no limit */
    /* [cores], by node, then by CPU */
    struct topology_core core[TOPOLOGY_CORES_MAX];
    uint16_t node_number[TOPOLOGY_NODES_MAX]; /* [nodes]: the system's, rising */
    /* index of the node of each CPU; NODE_NONE: may not be used, or has none of them */
    uint8_t cpu_node[TOPOLOGY_CPUS_MAX];
};

/* What the system says of the CPUs that the calling thread may use. What cannot be read counts as
 * absent: CPUs then have a core each, all memory is one node, and nothing is limited. The files are
 * read once; again only if the thread may use other CPUs than the caller before. */
void topology_read(struct topology *t);
/* The same from the files below `root`, for CPUs that the process may use. */
void topology_read_from(struct topology *t, const char *root, const struct cpu_mask *allowed);

/* How many threads compute unless told otherwise: one per physical core, since two of a core share
 * its multipliers; at most the quota, rounded down, since a thread that is held back holds up the
 * others. */
int topology_threads(const struct topology *t);

/* The threads of a pool: [first[i], first[i + 1]) are of node i. */
struct thread_nodes {
    int n;                             /* at least 1; a node may have no thread */
    int first[TOPOLOGY_NODES_MAX + 1]; /* [n + 1]; first[0] is 0, first[n] the number of threads */
};

/* As many threads to a node as it has cores, in proportion. One thread, which is the caller's, is
 * of no node: then there is one. */
void topology_deal(const struct topology *t, int threads, struct thread_nodes *out);
/* CPUs of a node, by its index, that may be used. */
void topology_node_cpus(const struct topology *t, int node, struct cpu_mask *out);

/* The node of a thread. */
static inline int thread_nodes_of(const struct thread_nodes *t, int thread) {
    int node = 0;
    while (thread >= t->first[node + 1])
        node++;
    return node;
}

/* Whose part of the work a thread turns to as its i-th, i < all threads: its own, those of its
 * node, then those of the nodes after it. */
static inline int thread_nodes_turn(const struct thread_nodes *t, int thread, int i) {
    const int node = thread_nodes_of(t, thread), first = t->first[node], end = t->first[node + 1];
    if (i < end - first)
        return first + (thread - first + i) % (end - first);
    return (first + i) % t->first[t->n];
}

/* thread_pool_create for threads that are dealt to the nodes, and may run only there if there are
 * several; but for the caller's, which is not the pool's. */
kvasir_status thread_pool_create_on(struct thread_pool **out, int threads, const struct topology *t,
                                    kvasir_error *err) MUST_CHECK;
/* thread_pool_run of items of which [ends[i - 1], ends[i]), from 0 for the first, begin with the
 * threads of node i, which must have some; others take what is left. ends: one for each node. */
void thread_pool_run_on(struct thread_pool *pool, const size_t *ends, thread_fn *fn, void *ctx);

/* "0-3,8": the syntax of the system's lists. False if it is not such a list. */
bool cpu_mask_parse(const char *text, struct cpu_mask *out);

static inline bool cpu_mask_has(const struct cpu_mask *m, int cpu) {
    return m->bits[cpu / 64] >> (cpu % 64) & 1;
}

#endif
