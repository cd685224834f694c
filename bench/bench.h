/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the speed programs: error exits, medians, and long sequences without a prefill. */
#ifndef KVASIR_BENCH_H
#define KVASIR_BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/engine.h"
#include "lab/lab.h"

enum { SEED_TOKENS = 512, VALUES_MAX = 64 };

static kvasir_error err;

static inline void need(kvasir_status status) {
    if (status == KVASIR_OK)
        return;
    fprintf(stderr, "bench: %s\n", err.text);
    exit(1);
}

/* CLOCK_PROCESS_CPUTIME_ID where the machine may be busy with other things. */
static inline double seconds_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double median(const double *values, int n) {
    return lab_median(values, (size_t)n);
}

static inline int32_t random_token(uint32_t vocab) {
    return (int32_t)((uint32_t)rand() % vocab);
}

/* Grows a sequence to `depth` by copying the pages of the SEED_TOKENS tokens of `from`, which may
 * be the sequence itself. */
static inline void replicate(kvasir_seq *s, const kvasir_seq *from, uint32_t depth) {
    need(lab_extend(s, from, depth, &err));
}

#endif
