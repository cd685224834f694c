/* SPDX-License-Identifier: Apache-2.0 */
/* What metrics.c counts and metrics_text.c writes. */
#ifndef SERVER_METRICS_INTERNAL_H
#define SERVER_METRICS_INTERNAL_H

#include <pthread.h>

#include "server/metrics.h"

enum { BUCKETS_MAX = 32 };

/* counts[i]: values up to bounds[i] and above the bound before; counts[n]: above all bounds. */
struct histogram {
    const double *bounds; /* [n], rising; n < BUCKETS_MAX */
    size_t n;
    uint64_t counts[BUCKETS_MAX];
    double sum;
};

enum metrics_histogram {
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN_LATENCY,
    OUTPUT_TOKEN_TIME,
    E2E_LATENCY,
    QUEUE_TIME,
    INFERENCE_TIME,
    PREFILL_TIME,
    DECODE_TIME,
    PROMPT_TOKENS,
    COMPUTED_TOKENS,
    GENERATION_TOKENS,
    MOST_GENERATION_TOKENS,
    HISTOGRAMS
};

enum { FINISH_KINDS = KVASIR_FINISH_ERROR + 1 };

struct http_count {
    const char *route;
    unsigned code;
    uint64_t n;
};

/* Everything that is counted; /metrics writes a copy. */
struct counts {
    struct histogram histograms[HISTOGRAMS];
    uint64_t finished[FINISH_KINDS]; /* choices */
    uint64_t refused[REFUSAL_KINDS];
    struct http_count http[METRICS_HTTP_MAX + 1]; /* [n_http]; the last one: "other", 0 */
    size_t n_http;
};

/* Events of the current second and the METRICS_WINDOW_S before it. */
struct rate {
    int64_t second; /* the newest */
    uint64_t counts[METRICS_WINDOW_S + 1];
};

struct server_metrics {
    int64_t created_us;
    int statm; /* /proc/self/statm, open: later the server may not open files */
    double token_bounds[BUCKETS_MAX]; /* of histograms of tokens */
    /* under the mutex */
    pthread_mutex_t mutex;
    struct counts counts;
    struct rate generated, prompted;
};

void metrics_copy(struct server_metrics *m, struct counts *out);

#endif
