/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.h: what a server counts, and what it says of itself (metrics.c, metrics_text.c; as JSON:
 * status.h). docs/metrics.md lists every name.
 *
 *     any thread: submitted, refused, http        engine's thread: event
 *                          `------ struct server_metrics ------'
 *                                        |             engine's figures
 *                            struct server_figures <------'
 *                             |                 |
 *                       metrics_text      status.h: JSON
 *
 * Invariants
 *   METRICS-1  All functions may be called from any thread; one metrics_request by one at a time.
 *   METRICS-2  Counting takes one lock for a moment, and neither memory nor system calls but that
 *              lock's: the engine's thread does it for every token.
 *   METRICS-3  Counters never fall; a histogram's buckets, count and sum are of the same
 *              observations.
 *   METRICS-4  No label holds what a client sent: routes, reasons and codes come from fixed lists.
 */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include <kvasir.h>

int64_t metrics_now_us(void); /* monotonic: the clock of all times below */

struct server_metrics;
/* max_tokens: of a prompt and its answer; 0: any number. NULL: out of memory. */
struct server_metrics *metrics_create(uint32_t max_tokens, int64_t now_us);
void metrics_destroy(struct server_metrics *m);

/* ---- a request's life ------------------------------------------------------------------------ */

/* Zero-initialised; metrics_submitted begins it. */
struct metrics_request {
    int64_t submitted_us, started_us, first_us, last_us; /* 0: not yet */
    int64_t choice_us;                                   /* the last token of the first choice */
    uint32_t prompt_done;
};

/* Before kvasir_engine_submit: its events may come at once. Where that refuses it,
 * metrics_refused(metrics_refusal_of(...)) is all that is left to be said. */
void metrics_submitted(struct metrics_request *r, int64_t now_us);
/* Every event of the request. */
void metrics_event(struct server_metrics *m, struct metrics_request *r, const kvasir_event *event,
                   int64_t now_us);

/* Requests that the engine never had. */
enum metrics_refusal {
    REFUSED_QUEUE,    /* too many wait */
    REFUSED_CONTEXT,  /* prompt and answer are longer than the context */
    REFUSED_BUDGET,   /* they would not fit the cache's budget alone */
    REFUSED_BODY,     /* no JSON, or a field that is wrong */
    REFUSED_SIZE,     /* the body is too large */
    REFUSED_KEY,      /* no API key, or an unknown one */
    REFUSED_DRAINING, /* the server is stopping */
    REFUSAL_KINDS
};
enum metrics_refusal metrics_refusal_of(kvasir_status status); /* of kvasir_engine_submit */
void metrics_refused(struct server_metrics *m, enum metrics_refusal reason);
/* An answer of HTTP. route: a text that outlives m; of at most METRICS_HTTP_MAX pairs of route and
 * code, others count as route "other", code 0. */
enum { METRICS_HTTP_MAX = 256 };
void metrics_http(struct server_metrics *m, const char *route, unsigned code);

/* ---- figures --------------------------------------------------------------------------------- */

enum { FIGURES_FORMATS_MAX = 32 };
/* What a server says of itself at one moment. */
struct server_figures {
    /* the caller's */
    const char *model;    /* as clients call it; UTF-8 */
    int64_t created_s;    /* Unix time at which the server started */
    uint32_t connections; /* that are open */
    /* metrics_figures' */
    char kv_format[64];
    const char *cpu_tier;
    uint32_t max_model_len;            /* tokens of a prompt and its answer; 0: any number */
    double uptime_s;                   /* since metrics_create */
    double generation_tps, prompt_tps; /* over the last METRICS_WINDOW_S seconds */
    uint64_t resident_bytes;           /* of the process; 0: unknown */
    kvasir_engine_stats engine;
    kvasir_format_bytes formats[FIGURES_FORMATS_MAX];
    size_t n_formats;
};
enum { METRICS_WINDOW_S = 10 };
void metrics_figures(struct server_metrics *m, kvasir_engine *engine, int64_t now_us,
                     struct server_figures *out);

/* The body of GET /metrics [*len] and a NUL, to be freed; NULL: out of memory. */
#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"
char *metrics_text(struct server_metrics *m, const struct server_figures *figures, size_t *len);

#endif
