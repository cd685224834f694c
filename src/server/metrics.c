/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.c: counting. A request's events contain all that the histograms need:
 *
 *     submitted -- queue --> START -- prefill --> first TOKEN -- decode --> last TOKEN   DONE
 *         |---------- time to first token ------------|  inter-token ... |               |
 *         |------------------------------ end to end ------------------------------------|
 *
 * Only what happened is observed: a request that is cancelled during its prompt has a queue time,
 * but no prefill time.
 */
#include "server/metrics_internal.h"
#include "util/util.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- histograms ------------------------------------------------------------------------------ */

/* vLLM's, so that its dashboards work. */
static const double FIRST_TOKEN_BOUNDS[] = {0.001, 0.005, 0.01, 0.02, 0.04,  0.06,  0.08, 0.1,
                                            0.25,  0.5,   0.75, 1.0,  2.5,   5.0,   7.5,  10.0,
                                            20.0,  40.0,  80.0, 160., 640.0, 2560.0};
static const double INTER_TOKEN_BOUNDS[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,
                                            0.3,  0.4,   0.5,  0.75,  1.0, 2.5,  5.0,
                                            7.5,  10.0,  20.0, 40.0,  80.0};
static const double LATENCY_BOUNDS[] = {0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,
                                        5.0,  10.0, 15.0, 20.0, 30.0,  40.0,  50.0,
                                        60.0, 120., 240., 480., 960.0, 1920., 7680.};

static void histogram_init(struct histogram *h, const double *bounds, size_t n) {
    *h = (struct histogram){.bounds = bounds, .n = n};
}

/* 1, 2, 5, 10 ... up to max; returns how many. */
static size_t token_bounds(double *bounds, uint32_t max) {
    static const double STEPS[] = {1, 2, 5};
    size_t n = 0;
    for (double power = 1; n < BUCKETS_MAX - 1; power *= 10)
        for (int i = 0; i < 3; i++) {
            if (STEPS[i] * power > max || n == BUCKETS_MAX - 1)
                return n;
            bounds[n++] = STEPS[i] * power;
        }
    return n;
}

static void observe(struct server_metrics *m, enum metrics_histogram which, double value) {
    struct histogram *h = &m->counts.histograms[which];
    size_t i = 0;
    while (i < h->n && value > h->bounds[i])
        i++;
    ASSERT(i <= h->n && i < BUCKETS_MAX);
    h->counts[i]++;
    h->sum += value;
}

/* Readings on different threads may be out of order: that counts as 0. */
static void observe_span(struct server_metrics *m, enum metrics_histogram which, int64_t from_us,
                         int64_t to_us) {
    observe(m, which, to_us > from_us ? (double)(to_us - from_us) * 1e-6 : 0);
}

/* ---- rates ----------------------------------------------------------------------------------- */

enum { SECONDS = METRICS_WINDOW_S + 1 };

/* Drops seconds that left the window. */
static void rate_move(struct rate *r, int64_t now_us) {
    const int64_t second = now_us / 1000000;
    for (int i = 0; r->second < second && i < SECONDS; i++)
        r->counts[++r->second % SECONDS] = 0;
    if (r->second < second)
        r->second = second;
}

static void rate_add(struct rate *r, int64_t now_us, uint64_t n) {
    rate_move(r, now_us);
    r->counts[r->second % SECONDS] += n;
}

static double rate_of(struct rate *r, int64_t created_us, int64_t now_us) {
    uint64_t n = 0;
    rate_move(r, now_us);
    for (int i = 0; i < SECONDS; i++)
        n += r->counts[i];
    const int64_t begin_us = (r->second - METRICS_WINDOW_S) * 1000000,
                  span_us = now_us - (begin_us > created_us ? begin_us : created_us);
    return span_us > 0 ? (double)n * 1e6 / (double)span_us : 0;
}

int64_t metrics_now_us(void) {
    return (int64_t)(clock_seconds() * 1e6);
}

/* ---- life ------------------------------------------------------------------------------------ */

#define COUNT(array) (sizeof(array) / sizeof *(array))

struct server_metrics *metrics_create(uint32_t max_tokens, int64_t now_us) {
    struct server_metrics *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    struct histogram *h = m->counts.histograms;
    const size_t n_tokens = token_bounds(m->token_bounds, max_tokens ? max_tokens : 1u << 20);
    m->created_us = now_us;
    m->statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    m->generated.second = m->prompted.second = now_us / 1000000;
    pthread_mutex_init(&m->mutex, NULL);
    histogram_init(&h[TIME_TO_FIRST_TOKEN], FIRST_TOKEN_BOUNDS, COUNT(FIRST_TOKEN_BOUNDS));
    for (int i = INTER_TOKEN_LATENCY; i <= OUTPUT_TOKEN_TIME; i++)
        histogram_init(&h[i], INTER_TOKEN_BOUNDS, COUNT(INTER_TOKEN_BOUNDS));
    for (int i = E2E_LATENCY; i <= DECODE_TIME; i++)
        histogram_init(&h[i], LATENCY_BOUNDS, COUNT(LATENCY_BOUNDS));
    for (int i = PROMPT_TOKENS; i <= MOST_GENERATION_TOKENS; i++)
        histogram_init(&h[i], m->token_bounds, n_tokens);
    return m;
}

void metrics_destroy(struct server_metrics *m) {
    if (!m)
        return;
    if (m->statm >= 0)
        close(m->statm);
    pthread_mutex_destroy(&m->mutex);
    free(m);
}

void metrics_copy(struct server_metrics *m, struct counts *out) {
    pthread_mutex_lock(&m->mutex);
    *out = m->counts;
    pthread_mutex_unlock(&m->mutex);
}

/* ---- a request's life ------------------------------------------------------------------------ */

void metrics_submitted(struct metrics_request *r, int64_t now_us) {
    *r = (struct metrics_request){.submitted_us = now_us};
}

/* Prompt tokens computed since the event before. */
static void note_prompt(struct server_metrics *m, struct metrics_request *r, const kvasir_event *e,
                        int64_t now_us) {
    const uint32_t computed = e->prompt_done - e->cached_tokens;
    if (computed > r->computed)
        rate_add(&m->prompted, now_us, computed - r->computed);
    r->computed = computed;
    if (r->started_us && e->prompt_tokens > r->prompt_tokens) /* another prompt has begun */
        observe(m, PROMPT_TOKENS, e->prompt_tokens - r->prompt_tokens);
    r->prompt_tokens = e->prompt_tokens;
}

static void note_start(struct server_metrics *m, struct metrics_request *r, const kvasir_event *e,
                       int64_t now_us) {
    r->started_us = now_us;
    r->looked_us = now_us - (int64_t)(e->lookup_seconds * 1e6);
    r->computed = e->prompt_done - e->cached_tokens;
    r->prompt_tokens = e->prompt_tokens;
    observe_span(m, QUEUE_TIME, r->submitted_us, now_us);
    observe(m, PROMPT_TOKENS, e->prompt_tokens);
}

static void note_token(struct server_metrics *m, struct metrics_request *r, const kvasir_event *e,
                       int64_t now_us) {
    rate_add(&m->generated, now_us, 1);
    if (!r->first_us) {
        r->first_us = now_us;
        observe_span(m, TIME_TO_FIRST_TOKEN, r->submitted_us, now_us);
        observe_span(m, PREFILL_TIME, r->started_us, now_us);
    }
    r->last_us = now_us;
    if (e->choice != 0) /* choices take their steps together */
        return;
    if (r->choice_us)
        observe_span(m, INTER_TOKEN_LATENCY, r->choice_us, now_us);
    r->choice_us = now_us;
}

static void note_done(struct server_metrics *m, struct metrics_request *r, const kvasir_event *e,
                      int64_t now_us) {
    ASSERT((int)e->finish < FINISH_KINDS);
    m->counts.finished[e->finish]++;
    if (!r->started_us)
        return;
    observe(m, GENERATION_TOKENS, e->completion_tokens);
    if (e->completion_tokens > r->most_tokens)
        r->most_tokens = e->completion_tokens;
    if (!e->last)
        return;
    observe_span(m, E2E_LATENCY, r->submitted_us, now_us);
    observe_span(m, INFERENCE_TIME, r->started_us, now_us);
    observe(m, MOST_GENERATION_TOKENS, r->most_tokens);
    if (!r->first_us)
        return;
    observe(m, COMPUTED_TOKENS, r->computed);
    observe_span(m, DECODE_TIME, r->first_us, r->last_us);
    if (r->most_tokens > 1)
        observe(m, OUTPUT_TOKEN_TIME,
                r->last_us > r->first_us
                    ? (double)(r->last_us - r->first_us) * 1e-6 / (r->most_tokens - 1)
                    : 0);
}

void metrics_event(struct server_metrics *m, struct metrics_request *r, const kvasir_event *e,
                   int64_t now_us) {
    pthread_mutex_lock(&m->mutex);
    if (e->kind == KVASIR_EVENT_START)
        note_start(m, r, e, now_us);
    else
        note_prompt(m, r, e, now_us);
    if (e->kind == KVASIR_EVENT_TOKEN)
        note_token(m, r, e, now_us);
    else if (e->kind == KVASIR_EVENT_DONE)
        note_done(m, r, e, now_us);
    pthread_mutex_unlock(&m->mutex);
}

enum metrics_refusal metrics_refusal_of(kvasir_status status) {
    switch (status) {
    case KVASIR_ERR_BUSY:
        return REFUSED_QUEUE;
    case KVASIR_ERR_CONTEXT:
        return REFUSED_CONTEXT;
    case KVASIR_ERR_BUDGET:
        return REFUSED_BUDGET;
    default:
        return REFUSED_BODY;
    }
}

void metrics_refused(struct server_metrics *m, enum metrics_refusal reason) {
    ASSERT(reason < REFUSAL_KINDS);
    pthread_mutex_lock(&m->mutex);
    m->counts.refused[reason]++;
    pthread_mutex_unlock(&m->mutex);
}

void metrics_http(struct server_metrics *m, const char *route, unsigned code) {
    pthread_mutex_lock(&m->mutex);
    struct counts *c = &m->counts;
    size_t i = 0;
    while (i < c->n_http && !(c->http[i].code == code && strcmp(c->http[i].route, route) == 0))
        i++;
    if (i >= METRICS_HTTP_MAX) {
        i = METRICS_HTTP_MAX;
        route = "other";
        code = 0;
    }
    if (i == c->n_http)
        c->http[c->n_http++] = (struct http_count){.route = route, .code = code};
    ASSERT(i < c->n_http && c->n_http <= METRICS_HTTP_MAX + 1);
    c->http[i].n++;
    pthread_mutex_unlock(&m->mutex);
}

/* ---- figures --------------------------------------------------------------------------------- */

static uint64_t resident_bytes(const struct server_metrics *m) {
    unsigned long long pages = 0;
    char text[256] = "";
    if (pread(m->statm, text, sizeof text - 1, 0) <= 0 || sscanf(text, "%*u %llu", &pages) != 1)
        return 0;
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void engine_figures(kvasir_engine *engine, struct server_figures *out) {
    kvasir_context_info info;
    kvasir_engine_get_context(engine, &info);
    memcpy(out->kv_format, info.kv_format, sizeof out->kv_format);
    out->cpu_tier = info.cpu_tier;
    out->max_model_len = info.ctx;
    out->n_formats =
        kvasir_engine_get_formats(engine, out->formats, FIGURES_FORMATS_MAX, &out->engine);
    if (out->n_formats > FIGURES_FORMATS_MAX)
        out->n_formats = FIGURES_FORMATS_MAX;
    out->n_tiers = kvasir_engine_get_tiers(engine, out->tiers, FIGURES_TIERS_MAX);
    if (out->n_tiers > FIGURES_TIERS_MAX)
        out->n_tiers = FIGURES_TIERS_MAX;
}

void metrics_figures(struct server_metrics *m, kvasir_engine *engine, int64_t now_us,
                     struct server_figures *out) {
    if (engine)
        engine_figures(engine, out);
    out->resident_bytes = resident_bytes(m);
    out->uptime_s = (double)(now_us - m->created_us) * 1e-6;
    pthread_mutex_lock(&m->mutex);
    out->generation_tps = rate_of(&m->generated, m->created_us, now_us);
    out->prompt_tps = rate_of(&m->prompted, m->created_us, now_us);
    pthread_mutex_unlock(&m->mutex);
}
