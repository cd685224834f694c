/* SPDX-License-Identifier: Apache-2.0 */
/* thread_count.h: the flag --threads, and how many threads "auto" is, in words. */
#ifndef CLI_THREAD_COUNT_H
#define CLI_THREAD_COUNT_H

#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#define THREADS_OPTION(type, field)                                                                \
    {                                                                                              \
        .name = "--threads", .value = "N", .kind = OPTION_INT, .max = 1024,                        \
        .offset = offsetof(type, field), .shown = "auto", .auto_too = true,                        \
        .help = "number of threads that compute; auto: one per physical core that may be used, "   \
                "fewer if a control group grants fewer CPUs"                                       \
    }

/* Writes "8 (one per physical core; 16 CPUs)". n: the numbers of KVASIR_FACT_THREADS. */
void write_threads(FILE *to, const uint64_t n[4]);
/* The same of this machine. */
void write_machine_threads(FILE *to);
/* Puts "threads", what auto is on this machine, "cores", "cpus" and "cpu_quota" (or null). */
void put_machine_threads(json_t *object);
/* A warning if there are more threads than CPUs, or than a control group grants. */
void warn_threads(int threads);

#endif
