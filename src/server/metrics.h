/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.h: what a server counts, and the figures it reports (metrics.c, metrics_text.c; as JSON:
 * status_json.h). docs/metrics.md lists every name.
 *
 *     any thread: submitted, refused, http        engine's thread: event
 *                          `------ struct server_metrics ------'
 *                                        |             engine's figures
 *                            struct server_figures <------'
 *                             |                 |
 *                       metrics_text      status_json.h
 *
 * Invariants
 *   METRICS-1  Any thread may call any function; a metrics_request is used by one at a time.
 *   METRICS-2  Counting takes one lock for a moment and allocates nothing, because the engine's
 *              thread does it for every token.
 *   METRICS-3  Counters never fall. A histogram's buckets, count and sum are of the same
 *              observations.
 *   METRICS-4  No label contains what a client sent: routes, reasons and codes are from fixed
 *              lists, tenants' names from the operator's key file.
 *   METRICS-5  What is written for a tenant depends on its own requests and the options alone.
 */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include <kvasir.h>

#include "api/api.h"
#include "server/model_set.h"
#include "server/otlp.h"
#include "util/account.h"

int64_t metrics_now_us(void); /* monotonic: the clock of all times below */

struct server_metrics;
/* max_tokens: of a prompt and its answer; 0: any number. NULL: out of memory. */
struct server_metrics *metrics_create(uint32_t max_tokens, int64_t now_us);
void metrics_destroy(struct server_metrics *m);

/* ---- a request's life ------------------------------------------------------------------------ */

/* Zero-initialised; metrics_submitted begins it. */
struct metrics_request {
    int64_t submitted_us, looked_us, started_us, first_us, last_us; /* 0: not yet */
    int64_t choice_us;                /* the last token of the first choice */
    uint32_t prompt_tokens, computed; /* of prompts that have begun */
    uint32_t most_tokens;             /* of its choices that have ended */
};

/* Before kvasir_engine_submit, since events may come at once. If that refuses the request, call
 * metrics_refused(metrics_refusal_of(...)) and nothing else. */
void metrics_submitted(struct metrics_request *r, int64_t now_us);
/* Every event of the request. */
void metrics_event(struct server_metrics *m, struct metrics_request *r, const kvasir_event *event,
                   int64_t now_us);

/* Why a request never reached the engine. */
enum metrics_refusal {
    REFUSED_QUEUE,    /* too many are waiting */
    REFUSED_CONTEXT,  /* prompt and answer do not fit the context */
    REFUSED_BUDGET,   /* they do not fit the cache's budget */
    REFUSED_BODY,     /* invalid JSON, or an invalid field */
    REFUSED_SIZE,     /* the body is too large */
    REFUSED_MEMORY,   /* requests own too much memory */
    REFUSED_KEY,      /* no API key, or an unknown or expired one */
    REFUSED_QUOTA,    /* the key's quota is used up */
    REFUSED_TIME,     /* reading it took too long */
    REFUSED_DRAINING, /* the server is shutting down */
    REFUSED_MODEL,    /* of several models: it could not be loaded, or not in time */
    REFUSAL_KINDS
};
enum metrics_refusal metrics_refusal_of(kvasir_status status); /* of kvasir_engine_submit */
void metrics_refused(struct server_metrics *m, enum metrics_refusal reason);
/* An HTTP response. route: a text that outlives m. Pairs of route and code beyond METRICS_HTTP_MAX
 * count as route "other", code 0. */
enum { METRICS_HTTP_MAX = 256 };
void metrics_http(struct server_metrics *m, const char *route, unsigned code);

/* ---- figures --------------------------------------------------------------------------------- */

/* What one API key asks for, or all keys with one name. Only requests for answers count. */
enum { TENANT_NAME_MAX = 64 };
struct tenant_figures {
    char name[TENANT_NAME_MAX + 1]; /* from the key file, UTF-8; "-": it has none */
    uint64_t requests, refused;     /* requests: also the refused ones */
    uint64_t prompt_tokens, cached_tokens, generated_tokens;
    uint64_t hits[KVASIR_HIT_KINDS]; /* requests that began to run */
    uint64_t memory_bytes;           /* that its requests own now */
    uint32_t running, waiting;       /* requests, from the engine's view */
};

/* Prompts that the server puts into its cache by itself (warm.c). */
enum warm_state {
    WARM_RUNNING,
    WARM_DONE,
    WARM_FULL /* stopped: the rest would have made the cache evict prefixes */
};
struct warm_figures {
    enum warm_state state;
    uint64_t prompts, done, failed;          /* of the file; in the cache; that had an error */
    uint64_t computed_tokens, cached_tokens; /* of those done; cached: found in memory or tiers */
};

/* One of several models. */
struct model_figures {
    const char *name;
    bool first; /* of requests that name none */
    bool pinned;
    uint32_t max_model_len; /* of a loaded one; 0: any number, or unknown */
    struct model_view view;
};

/* Which families /metrics has; with several models each loaded one and the server have a page. */
enum metrics_part { METRICS_ALL, METRICS_OF_MODEL, METRICS_OF_SERVER };

enum { FIGURES_FORMATS_MAX = 32, FIGURES_TIERS_MAX = 4 };
/* The server's figures at one moment. */
struct server_figures {
    /* set by the caller */
    const char *model;                   /* as clients see it; UTF-8 */
    int64_t created_s;                   /* Unix time at which the server started */
    uint32_t connections;                /* open ones */
    uint32_t unread;                     /* requests that wait for a worker to read them */
    struct mem_account_figures requests; /* what they own */
    struct grammar_figures grammars;
    struct otlp_figures traces;
    struct warm_figures warm;            /* prompts 0: there are none */
    uint64_t kept_responses, kept_bytes; /* of /v1/responses */
    uint64_t sessions, session_bytes;
    const struct tenant_figures
        *tenants; /* [n_tenants], names differ; none: the server has no keys */
    size_t n_tenants;
    bool own; /* for a tenant, which may see its figures only: tenants[0] */
    enum metrics_part part;
    const struct model_figures *models; /* [n_models]; none: there is one model */
    size_t n_models;
    /* set by metrics_figures */
    char kv_format[64];
    const char *cpu_tier;
    uint32_t max_model_len;            /* tokens of a prompt and its answer; 0: any number */
    double uptime_s;                   /* since metrics_create */
    double generation_tps, prompt_tps; /* over the last METRICS_WINDOW_S seconds */
    uint64_t resident_bytes;           /* of the process; 0: unknown */
    kvasir_engine_stats engine;
    kvasir_format_bytes formats[FIGURES_FORMATS_MAX];
    size_t n_formats;
    kvasir_tier_stats tiers[FIGURES_TIERS_MAX]; /* stores below the memory, if there are any */
    size_t n_tiers;
};
enum { METRICS_WINDOW_S = 10 };
/* engine: NULL: none is loaded. */
void metrics_figures(struct server_metrics *m, kvasir_engine *engine, int64_t now_us,
                     struct server_figures *out);

/* The body of GET /metrics, [*len] and a NUL; mem_free. NULL: out of memory. */
#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"
char *metrics_text(struct server_metrics *m, const struct server_figures *figures, size_t *len);
/* name="value", mem_free; NULL: out of memory. */
char *metrics_label(const char *name, const char *value);
/* Pages of several models as one, in which each family stands once: model pages[i] has the label
 * model_name="names[i]"; of pages[n - 1], the server's, names[n - 1] is NULL (metrics_join.c). */
char *metrics_join(char *const *pages, const char *const *names, size_t n, size_t *len);

#endif
