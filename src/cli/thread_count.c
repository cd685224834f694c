/* SPDX-License-Identifier: Apache-2.0 */
/* thread_count.c: says how many threads compute and why. The number is util/topology.c's. */
#include "cli.h"

#include <math.h>

#include "util/topology.h"

void write_threads(FILE *to, const uint64_t n[4]) {
    const unsigned long long threads = n[0], cores = n[1], cpus = n[2];
    if (threads < cores)
        fprintf(to, "%llu (a quota of %g CPUs; %llu physical cores)", threads, (double)n[3] / 100,
                cores);
    else
        fprintf(to, "%llu (one per physical core; %llu CPU%s)", threads, cpus,
                cpus == 1 ? "" : "s");
}

void write_machine_threads(FILE *to) {
    struct topology t;
    topology_read(&t);
    const uint64_t n[4] = {(uint64_t)topology_threads(&t), (uint64_t)t.cores, (uint64_t)t.cpus,
                           (uint64_t)(t.quota * 100)};
    write_threads(to, n);
}

void put_machine_threads(json_t *object) {
    struct topology t;
    topology_read(&t);
    put_whole(object, "threads", (uint64_t)topology_threads(&t));
    put_whole(object, "cores", (uint64_t)t.cores);
    put_whole(object, "cpus", (uint64_t)t.cpus);
    put_real(object, "cpu_quota", t.quota > 0 ? t.quota : NAN);
}

void warn_threads(int threads) {
    struct topology t;
    topology_read(&t);
    if (threads > t.cpus)
        fprintf(stderr,
                "note:   warning: %d threads on %d CPU%s: more than one per physical core is "
                "slower\n",
                threads, t.cpus, t.cpus == 1 ? "" : "s");
    else if (t.quota > 0 && threads > 1 && threads > t.quota)
        fprintf(stderr, "note:   warning: %d threads, but a control group grants %g CPUs\n",
                threads, t.quota);
}
