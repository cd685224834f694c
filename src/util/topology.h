/* SPDX-License-Identifier: Apache-2.0 */
/* topology.h: the CPUs that this process may use: which of them share a physical core, to which
 * memory node each belongs, and how many the control groups grant. */
#ifndef KVASIR_UTIL_TOPOLOGY_H
#define KVASIR_UTIL_TOPOLOGY_H

#include "util/util.h"

/* The most that Linux numbers on x86-64; as many cores as a pool may have threads; more nodes count
 * as one. */
enum { TOPOLOGY_CPUS_MAX = 8192, TOPOLOGY_CORES_MAX = 1024, TOPOLOGY_NODES_MAX = 64 };

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

/* "0-3,8": the syntax of the system's lists. False if it is not such a list. */
bool cpu_mask_parse(const char *text, struct cpu_mask *out);

static inline bool cpu_mask_has(const struct cpu_mask *m, int cpu) {
    return m->bits[cpu / 64] >> (cpu % 64) & 1;
}

#endif
