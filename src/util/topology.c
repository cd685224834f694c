/* SPDX-License-Identifier: Apache-2.0 */
/* topology.c: reads the machine's topology from the system's files, once for each set of CPUs that
 * callers may use: one file a core takes milliseconds on large machines. Any thread.
 *
 *     sched_getaffinity                                       the CPUs that may be used
 *     /sys/devices/system/cpu/cpuN/topology/core_cpus_list    those that share CPU N's core
 *     /sys/devices/system/node/online, nodeN/cpulist          memory nodes and their CPUs
 *     /proc/self/cgroup, /sys/fs/cgroup/.../cpu.max           the quota of CPU time
 *
 * Left out: cores of different speed, which count alike; caches; distances between nodes.
 */
#define _GNU_SOURCE
#include "util/topology.h"

#include <ctype.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/cgroup.h"

enum { PATH_BYTES = 2 * 4096 + 64, LIST_BYTES = 4096 };

/* ---- lists ----------------------------------------------------------------------------------- */

static bool read_cpu(const char **p, int *cpu) {
    char *end;
    if (!isdigit((unsigned char)**p))
        return false;
    const unsigned long n = strtoul(*p, &end, 10);
    *p = end;
    *cpu = (int)n;
    return n < TOPOLOGY_CPUS_MAX;
}

bool cpu_mask_parse(const char *text, struct cpu_mask *out) {
    memset(out, 0, sizeof *out);
    for (const char *p = text; *p && *p != '\n'; p += *p == ',') {
        int first, last;
        if (!read_cpu(&p, &first))
            return false;
        last = first;
        if (*p == '-' && (p++, !read_cpu(&p, &last)))
            return false;
        if (last < first || (*p && *p != ',' && *p != '\n'))
            return false;
        for (int cpu = first; cpu <= last; cpu++)
            out->bits[cpu / 64] |= 1ULL << (cpu % 64);
    }
    return true;
}

static void remove_all(struct cpu_mask *from, const struct cpu_mask *those) {
    for (size_t i = 0; i < sizeof from->bits / sizeof *from->bits; i++)
        from->bits[i] &= ~those->bits[i];
}

/* The first line of a file, shorter than LIST_BYTES. */
static bool read_line(const char *path, char line[LIST_BYTES]) {
    FILE *f = fopen(path, "re");
    const bool good = f && fgets(line, LIST_BYTES, f) && strlen(line) < LIST_BYTES - 1;
    if (f)
        fclose(f);
    return good;
}

static bool read_list(const char *path, struct cpu_mask *out) {
    char line[LIST_BYTES];
    return read_line(path, line) && cpu_mask_parse(line, out);
}

/* ---- cores and nodes ------------------------------------------------------------------------- */

/* The CPUs of a core. Kernels before 5.3 have the second name only. */
static bool read_siblings(const char *root, int cpu, struct cpu_mask *out) {
    static const char *const NAMES[] = {"core_cpus_list", "thread_siblings_list"};
    char path[PATH_BYTES];
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/%s", root, cpu,
                 NAMES[i]);
        if (read_list(path, out))
            return true;
    }
    return false;
}

static void find_cores(struct topology *t, const char *root, const struct cpu_mask *allowed) {
    struct cpu_mask left = *allowed, siblings;
    for (int cpu = 0; cpu < TOPOLOGY_CPUS_MAX; cpu++) {
        t->cpus += cpu_mask_has(allowed, cpu);
        if (!cpu_mask_has(&left, cpu) || t->cores == TOPOLOGY_CORES_MAX)
            continue;
        t->core[t->cores++] = (struct topology_core){.cpu = (uint16_t)cpu};
        if (read_siblings(root, cpu, &siblings))
            remove_all(&left, &siblings);
    }
}

static int by_node(const void *a, const void *b) {
    const struct topology_core *x = a, *y = b;
    return x->node != y->node ? x->node - y->node : x->cpu - y->cpu;
}

static void set_cpus(struct topology *t, const struct cpu_mask *cpus, int index) {
    for (int cpu = 0; cpu < TOPOLOGY_CPUS_MAX; cpu++)
        if (cpu_mask_has(cpus, cpu))
            t->cpu_node[cpu] = (uint8_t)index;
}

/* Gives the cores of a node its index. False: there are none. */
static bool claim(struct topology *t, const struct cpu_mask *cpus, uint16_t index) {
    bool any = false;
    for (int i = 0; i < t->cores; i++)
        if (t->core[i].node == UINT16_MAX && cpu_mask_has(cpus, t->core[i].cpu)) {
            t->core[i].node = index;
            any = true;
        }
    return any;
}

static void make_one_node(struct topology *t, const struct cpu_mask *allowed) {
    set_cpus(t, allowed, 0);
    t->nodes = 1;
    t->node_number[0] = 0;
    for (int i = 0; i < t->cores; i++)
        t->core[i].node = 0;
}

static void keep_only(struct cpu_mask *from, const struct cpu_mask *those) {
    for (size_t i = 0; i < sizeof from->bits / sizeof *from->bits; i++)
        from->bits[i] &= those->bits[i];
}

static void find_nodes(struct topology *t, const char *root, const struct cpu_mask *allowed) {
    char path[PATH_BYTES];
    struct cpu_mask online, cpus; /* a list of nodes has the same syntax */
    snprintf(path, sizeof path, "%s/sys/devices/system/node/online", root);
    if (!read_list(path, &online))
        memset(&online, 0, sizeof online);
    for (int i = 0; i < t->cores; i++)
        t->core[i].node = UINT16_MAX;
    for (int n = 0; n < TOPOLOGY_CPUS_MAX; n++) {
        if (!cpu_mask_has(&online, n))
            continue;
        snprintf(path, sizeof path, "%s/sys/devices/system/node/node%d/cpulist", root, n);
        if (!read_list(path, &cpus) || !claim(t, &cpus, (uint16_t)t->nodes))
            continue;
        if (t->nodes == TOPOLOGY_NODES_MAX) {
            make_one_node(t, allowed);
            return;
        }
        keep_only(&cpus, allowed);
        set_cpus(t, &cpus, t->nodes);
        t->node_number[t->nodes++] = (uint16_t)n;
    }
    for (int i = 0; i < t->cores; i++)
        if (t->core[i].node == UINT16_MAX) { /* a core without a node: trust none of them */
            make_one_node(t, allowed);
            return;
        }
    qsort(t->core, (size_t)t->cores, sizeof *t->core, by_node);
}

/* ---- quota ----------------------------------------------------------------------------------- */

static void lower_quota(double *quota, double granted, double period) {
    if (granted > 0 && period > 0 && (*quota == 0 || granted / period < *quota))
        *quota = granted / period;
}

/* "250000 100000": microseconds of CPU time in each period; or "max 100000". */
static void read_cpu_max(void *ctx, const char *folder) {
    char path[PATH_BYTES], line[LIST_BYTES], *end;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (!read_line(path, line))
        return;
    const double granted = strtod(line, &end);
    lower_quota(ctx, granted, strtod(end, NULL));
}

static double find_quota(const char *root) {
    char path[PATH_BYTES], granted[LIST_BYTES], period[LIST_BYTES];
    double quota = 0;
    cgroup_each(root, read_cpu_max, &quota);
    snprintf(path, sizeof path, "%s/sys/fs/cgroup/cpu/cpu.cfs_quota_us", root); /* version 1 */
    if (!read_line(path, granted)) /* without a limit it is -1 */
        return quota;
    snprintf(path, sizeof path, "%s/sys/fs/cgroup/cpu/cpu.cfs_period_us", root);
    if (read_line(path, period))
        lower_quota(&quota, strtod(granted, NULL), strtod(period, NULL));
    return quota;
}

/* ---- all ------------------------------------------------------------------------------------- */

void topology_read_from(struct topology *t, const char *root, const struct cpu_mask *allowed) {
    memset(t, 0, sizeof *t);
    memset(t->cpu_node, NODE_NONE, sizeof t->cpu_node);
    find_cores(t, root, allowed);
    if (t->cores == 0) /* the mask could not be read */
        t->cpus = t->cores = 1;
    find_nodes(t, root, allowed);
    t->quota = find_quota(root);
    ASSERT(t->cpus >= t->cores && t->cores >= t->nodes && t->nodes >= 1);
}

/* What was read last, and for which CPUs; cpus 0: nothing yet. */
static struct topology kept;
static struct cpu_mask kept_allowed;
static pthread_mutex_t kept_mutex = PTHREAD_MUTEX_INITIALIZER;

void topology_read(struct topology *t) {
    struct cpu_mask allowed = {0};
    _Static_assert(sizeof allowed.bits % sizeof(cpu_set_t) == 0, "a mask is an array of sets");
    if (sched_getaffinity(0, sizeof allowed.bits, (cpu_set_t *)allowed.bits) != 0)
        memset(&allowed, 0, sizeof allowed);
    pthread_mutex_lock(&kept_mutex);
    if (kept.cpus == 0 || memcmp(&allowed, &kept_allowed, sizeof allowed) != 0) {
        topology_read_from(&kept, "", &allowed);
        kept_allowed = allowed;
    }
    *t = kept;
    pthread_mutex_unlock(&kept_mutex);
}

int topology_threads(const struct topology *t) {
    const int granted = t->quota > 0 && t->quota < t->cores ? (int)t->quota : t->cores;
    return granted > 1 ? granted : 1;
}

/* ---- threads --------------------------------------------------------------------------------- */

/* Thread i is of the node of core i * cores / threads: cores are in the order of nodes. */
void topology_deal(const struct topology *t, int threads, struct thread_nodes *out) {
    int thread = 0;
    ASSERT(threads > 0 && t->nodes >= 1);
    out->n = threads > 1 ? t->nodes : 1;
    for (int node = 0; node + 1 < out->n; node++) {
        out->first[node] = thread;
        while (thread < threads &&
               t->core[(int64_t)thread * t->cores / threads].node == (uint16_t)node)
            thread++;
    }
    out->first[out->n - 1] = thread;
    out->first[out->n] = threads;
}

void topology_node_cpus(const struct topology *t, int node, struct cpu_mask *out) {
    memset(out, 0, sizeof *out);
    ASSERT(node >= 0 && node < t->nodes);
    for (int cpu = 0; cpu < TOPOLOGY_CPUS_MAX; cpu++)
        if (t->cpu_node[cpu] == node)
            out->bits[cpu / 64] |= 1ULL << (cpu % 64);
}
