/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the speed programs: error exits, medians, and long sequences without a prefill. */
#ifndef KVASIR_BENCH_H
#define KVASIR_BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/engine.h"

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
    double sorted[VALUES_MAX];
    memcpy(sorted, values, (size_t)n * sizeof *values);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return sorted[n / 2];
}

static inline int32_t random_token(uint32_t vocab) {
    return (int32_t)((uint32_t)rand() % vocab);
}

static inline uint32_t page_addr(const struct kv_view *v, uint32_t number) {
    return v->pages[kv_view_index(v, number)].addr;
}

/* Grows a sequence to `depth` by copying the pages of the SEED_TOKENS tokens of `from`, which may
 * be the sequence itself. */
static inline void replicate(kvasir_seq *s, const kvasir_seq *from, uint32_t depth) {
    int32_t copy[SEED_TOKENS];
    memcpy(copy, seq_tokens(from->seq), sizeof copy);
    need(seq_reserve(s->seq, depth + 4096, &err));
    while (seq_length(s->seq) < depth) {
        uint32_t at = seq_length(s->seq), left = depth - at;
        uint32_t n = left < SEED_TOKENS ? left : SEED_TOKENS;
        need(seq_prepare(s->seq, n, &err));
        for (uint32_t g = 0; g < s->ctx->n_groups; g++) {
            struct kv_view v, source;
            seq_view(s->seq, g, &v);
            seq_view(from->seq, g, &source);
            for (uint32_t p = 0; p * TILE_TOKENS < n; p++)
                backend_arena_copy(s->ctx->backend, v.arena, page_addr(&v, at / TILE_TOKENS + p),
                                   page_addr(&source, p), v.layouts[v.pages[0].layout].page_bytes);
        }
        seq_commit(s->seq, copy, n);
    }
}

#endif
