/* SPDX-License-Identifier: Apache-2.0 */
/* otlp.c: a ring of requests that are over, and the thread that sends their spans.
 *
 * A second after the first one, or once half of the ring is full, they go in one POST, up to BATCH.
 * What the collector does not take is counted and not sent again: spans are worth less than memory.
 * The log says when it begins to fail and when it works again.
 */
#include "server/otlp.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/metrics.h"

enum { RING = 1024, BATCH = 256, PAUSE_MS = 1000, LAST_SECONDS = 2 };

struct otlp {
    char *url;
    struct log *log;
    struct curl_slist *headers;
    CURL *curl;      /* the thread's */
    int64_t unix_us; /* Unix time when metrics_now_us was 0 */
    bool failing;    /* the thread's: the last batch failed */
    struct otlp_request batch[BATCH];
    _Atomic double give_up; /* clock_seconds at which a transfer is cut; 0: no limit yet */
    pthread_t thread;
    /* under the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t added;
    struct otlp_request ring[RING];
    size_t first, n; /* of the ring */
    struct otlp_figures figures;
    bool stop;
};

/* ---- sending --------------------------------------------------------------------------------- */

static size_t ignore_body(char *data, size_t size, size_t n, void *user) {
    (void)data, (void)user;
    return size * n;
}

static int on_progress(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    const double end = atomic_load(&((struct otlp *)user)->give_up);
    (void)a, (void)b, (void)c, (void)d;
    return end > 0 && clock_seconds() > end;
}

/* Also those of the lines of `more`, which may be NULL. */
static bool set_headers(struct otlp *o, const char *more) {
    o->headers = curl_slist_append(NULL, "Content-Type: application/json");
    bool good = o->headers != NULL;
    for (const char *at = more ? more : ""; good && *at;) {
        const size_t n = strcspn(at, "\n");
        char *line = mem_strndup(at, n);
        good = line && curl_slist_append(o->headers, line);
        mem_free(line);
        at += n + (at[n] != 0);
    }
    return good;
}

static bool open_curl(struct otlp *o) {
    CURL *h = o->curl = curl_easy_init();
    if (!h)
        return false;
    curl_easy_setopt(h, CURLOPT_URL, o->url);
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(h, CURLOPT_HTTPHEADER, o->headers);
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT, 5L);
    curl_easy_setopt(h, CURLOPT_TIMEOUT, 10L);
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, ignore_body);
    curl_easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(h, CURLOPT_XFERINFODATA, o);
    return true;
}

/* Says why it failed, once until it works again. */
static bool note(struct otlp *o, const char *why) {
    if (why && !o->failing)
        log_note(o->log, SERVER_LOG_WARN, "traces: %.200s: %.200s; their spans are lost", o->url,
                 why);
    else if (!why && o->failing)
        log_note(o->log, SERVER_LOG_INFO, "traces: %.200s takes spans again", o->url);
    o->failing = why != NULL;
    return !why;
}

static bool post(struct otlp *o, char *body) {
    char why[CURL_ERROR_SIZE] = "";
    long status = 0;
    if (!body)
        return note(o, "out of memory");
    curl_easy_setopt(o->curl, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(o->curl, CURLOPT_POSTFIELDS, body);
    const CURLcode result = curl_easy_perform(o->curl);
    curl_easy_getinfo(o->curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_setopt(o->curl, CURLOPT_ERRORBUFFER, NULL);
    if (result != CURLE_OK)
        return note(o, *why ? why : curl_easy_strerror(result));
    if (status / 100 == 2)
        return note(o, NULL);
    snprintf(why, sizeof why, "it answers with HTTP status %ld", status);
    return note(o, why);
}

/* ---- the ring -------------------------------------------------------------------------------- */

/* Copies the oldest to o->batch; 0: the end. */
static size_t take(struct otlp *o) {
    pthread_mutex_lock(&o->mutex);
    while (o->n == 0 && !o->stop)
        pthread_cond_wait(&o->added, &o->mutex);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PAUSE_MS / 1000;
    for (int expired = 0; o->n < RING / 2 && !o->stop && !expired;)
        expired = pthread_cond_timedwait(&o->added, &o->mutex, &until);
    const size_t n = o->n < BATCH ? o->n : BATCH;
    for (size_t i = 0; i < n; i++)
        o->batch[i] = o->ring[(o->first + i) % RING];
    o->first = (o->first + n) % RING;
    o->n -= n;
    pthread_mutex_unlock(&o->mutex);
    return n;
}

static void *otlp_thread(void *user) {
    struct otlp *o = user;
    for (size_t n; (n = take(o)) > 0;) {
        char *body = otlp_json(o->batch, n, o->unix_us);
        const bool good = post(o, body);
        mem_free(body);
        pthread_mutex_lock(&o->mutex);
        *(good ? &o->figures.sent : &o->figures.failed) += n;
        pthread_mutex_unlock(&o->mutex);
    }
    return NULL;
}

void otlp_add(struct otlp *o, const struct otlp_request *r) {
    if (!o)
        return;
    pthread_mutex_lock(&o->mutex);
    const bool fits = o->n < RING;
    o->figures.dropped += !fits;
    if (fits) {
        ASSERT(o->first < RING);
        o->ring[(o->first + o->n++) % RING] = *r;
        pthread_cond_signal(&o->added);
    }
    pthread_mutex_unlock(&o->mutex);
}

struct otlp_figures otlp_figures(struct otlp *o) {
    struct otlp_figures f = {0};
    if (!o)
        return f;
    pthread_mutex_lock(&o->mutex);
    f = o->figures;
    f.on = true;
    pthread_mutex_unlock(&o->mutex);
    return f;
}

/* ---- life ------------------------------------------------------------------------------------ */

static char *traces_url(const char *endpoint) {
    static const char PATH[] = "/v1/traces";
    struct text_buf url = {0};
    size_t n = strlen(endpoint);
    while (n && endpoint[n - 1] == '/')
        n--;
    const size_t end = sizeof PATH - 1;
    const bool whole = n > end && memcmp(endpoint + n - end, PATH, end) == 0;
    if (text_append(&url, endpoint, n) && (whole || text_puts(&url, PATH)))
        return url.data;
    text_free(&url);
    return NULL;
}

static void free_all(struct otlp *o) {
    curl_easy_cleanup(o->curl);
    curl_slist_free_all(o->headers);
    mem_free(o->url);
    pthread_cond_destroy(&o->added);
    pthread_mutex_destroy(&o->mutex);
    free(o);
}

struct otlp *otlp_create(const char *endpoint, const char *headers, struct log *log) {
    struct timespec now;
    struct otlp *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    pthread_mutex_init(&o->mutex, NULL);
    pthread_cond_init(&o->added, NULL);
    clock_gettime(CLOCK_REALTIME, &now);
    o->unix_us = now.tv_sec * 1000000 + now.tv_nsec / 1000 - metrics_now_us();
    o->log = log;
    o->url = traces_url(endpoint);
    if (o->url && set_headers(o, headers) && open_curl(o) &&
        pthread_create(&o->thread, NULL, otlp_thread, o) == 0)
        return o;
    free_all(o);
    return NULL;
}

void otlp_destroy(struct otlp *o) {
    if (!o)
        return;
    atomic_store(&o->give_up, clock_seconds() + LAST_SECONDS);
    pthread_mutex_lock(&o->mutex);
    o->stop = true;
    pthread_cond_signal(&o->added);
    pthread_mutex_unlock(&o->mutex);
    pthread_join(o->thread, NULL);
    ASSERT(o->n == 0);
    free_all(o);
}
