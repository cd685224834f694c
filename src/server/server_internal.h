/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of server.h share: the server, and jobs, which are requests that the engine runs.
 *
 * A job belongs to two: its call (http.h) until that is over, and the engine until its last event.
 * The second of them frees it. */
#ifndef SERVER_SERVER_INTERNAL_H
#define SERVER_SERVER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "api/api.h"
#include "http/http.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/server.h"
#include "util/util.h"

enum { JOB_ID_MAX = 64 };

struct server {
    struct server_options options;
    const kvasir_model *model;
    kvasir_engine *engine;
    struct answer_syntax syntax; /* of the model's answers */
    struct openai_setup setup;
    struct server_metrics *metrics;
    struct http *http;
    int64_t started_s, started_us; /* Unix time, and server_now_us then */
    uint64_t id_base;              /* random */
    atomic_uint_least64_t last_id;
    atomic_bool draining, stopping;
    struct log *log; /* NULL: none is kept */
    /* under the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* n_jobs or n_incomplete came to 0 */
    struct job *jobs;
    uint32_t n_jobs;
    uint32_t n_incomplete; /* of them: without their last event */
};

/* Whose request it is: requests of one tenant share prefixes and may cancel each other. */
struct tenant {
    const char *key; /* "" where nobody is asked for one */
    bool admin;
};

/* A line of the log: "key=value key=value". Waits for nobody (log.h). */
void server_log(const struct server *s, const char *format, ...) PRINTF_LIKE(2, 3);
/* "prefix" and 24 hex digits that no other has. Returns a seed that no other request gets. */
uint64_t server_new_id(struct server *s, const char *prefix, char out[JOB_ID_MAX]);
int64_t server_now_us(void); /* monotonic */

/* What all replies have; there is room for five headers more. */
struct http_reply server_reply_head(const struct server *s, unsigned status, const char *type);
/* Takes value; NULL: out of memory. */
enum http_step server_reply_json(struct server *s, struct http_call *call, unsigned status,
                                 json_t *value);
/* In the form of the call's API. */
enum http_step server_reply_error(struct server *s, struct http_call *call,
                                  const struct openai_error *err);
/* And with one header more. */
enum http_step server_reply_error_with(struct server *s, struct http_call *call,
                                       const struct openai_error *err, const char *name,
                                       const char *value);
/* The call's body; false: it is none, *err says why. */
bool server_read_body(const struct http_call *call, json_t **body, struct openai_error *err);

/* ---- routes (routes.c) ----------------------------------------------------------------------- */

/* Only who may post something may bring much. */
uint64_t routes_body_limit(void *user, const struct http_call *call);
enum http_step routes_handle(void *user, struct http_call *call);
/* The route's name for log and metrics; "other" where there is none. */
const char *route_name(const struct http_call *call);
/* Of the API that the path belongs to; OpenAI's where it belongs to none. */
const struct form *route_form(const struct http_call *call);

/* Why the page that asks, or the name that it asks by, is refused (origin.c); NULL: it is not. */
const char *origin_refused(const struct server *s, const struct http_call *call);

/* ---- jobs (job.c) ---------------------------------------------------------------------------- */

/* Reads the body, hands it to the engine. */
enum http_step job_begin(struct server *s, struct http_call *call, const struct form *form,
                         const struct tenant *tenant);
/* The call was woken. */
enum http_step job_continue(struct http_call *call);
void job_gone(struct http_call *call);
void job_done(struct http_call *call, unsigned status);
/* By the id of its answer or its X-Request-Id; how many there were. */
uint32_t jobs_cancel(struct server *s, const struct tenant *tenant, const char *id);
/* Cancels all, and waits until the engine is done with them. */
void jobs_stop(struct server *s);
/* Streams that have been silent for long have something to say. */
void jobs_tick(struct server *s);

#endif
