/* SPDX-License-Identifier: Apache-2.0 */
/* server.c: the server's life, and how it replies.
 *
 * End of a server: server_drain refuses what is new, while what is open goes on; server_destroy
 * cancels that, waits for its last events (whose calls reply then) and ends libmicrohttpd, in which
 * no call may rest any more.
 */
#include "server/server_internal.h"
#include "util/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

struct server_options server_defaults(void) {
    return (struct server_options){.host = "127.0.0.1",
                                   .port = 8080,
                                   .sampling = kvasir_sampling_defaults(),
                                   .max_choices = 32,
                                   .max_connections = 1024,
                                   .max_body_bytes = 32 << 20,
                                   .buffer_bytes = 1 << 20,
                                   .idle_timeout_s = 75,
                                   .write_timeout_s = 30,
                                   .keepalive_s = 5};
}

int64_t server_now_us(void) {
    return (int64_t)(clock_seconds() * 1e6);
}

void server_log(const struct server *s, const char *format, ...) {
    va_list args;
    if (!s->log)
        return;
    va_start(args, format);
    log_add(s->log, format, args);
    va_end(args);
}

uint64_t server_new_id(struct server *s, const char *prefix, char out[JOB_ID_MAX]) {
    const uint64_t n = atomic_fetch_add(&s->last_id, 1) + 1;
    snprintf(out, JOB_ID_MAX, "%s%016llx%08llx", prefix, (unsigned long long)s->id_base,
             (unsigned long long)(n & 0xffffffff));
    return s->id_base + 0x9e3779b97f4a7c15u * n;
}

/* ---- replies --------------------------------------------------------------------------------- */

struct http_reply server_reply_head(const struct server *s, unsigned status, const char *type) {
    struct http_reply r = {.status = status};
    if (type)
        http_reply_header(&r, "Content-Type", type);
    http_reply_header(&r, "Cache-Control", "no-store");
    http_reply_header(&r, "X-Content-Type-Options", "nosniff");
    if (s->options.cors_origin)
        http_reply_header(&r, "Access-Control-Allow-Origin", s->options.cors_origin);
    return r;
}

static enum http_step reply_value(const struct http_reply *reply, struct http_call *call,
                                  json_t *value) {
    static const char NO_MEMORY[] = "{\"error\":{\"message\":\"out of memory\"}}";
    char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    json_decref(value);
    if (text)
        return http_reply_take(call, reply, text, strlen(text));
    const struct http_reply failed = {.status = 500,
                                      .headers = {{"Content-Type", "application/json"}}};
    return http_reply_static(call, &failed, NO_MEMORY, sizeof NO_MEMORY - 1);
}

enum http_step server_reply_json(struct server *s, struct http_call *call, unsigned status,
                                 json_t *value) {
    const struct http_reply r = server_reply_head(s, status, "application/json");
    return reply_value(&r, call, value);
}

enum http_step server_reply_error(struct server *s, struct http_call *call,
                                  const struct openai_error *err) {
    return server_reply_error_with(s, call, err, NULL, NULL);
}

enum http_step server_reply_error_with(struct server *s, struct http_call *call,
                                       const struct openai_error *err, const char *name,
                                       const char *value) {
    struct http_reply r = server_reply_head(s, (unsigned)err->status, "application/json");
    if (name)
        http_reply_header(&r, name, value);
    if (err->status == OPENAI_UNAUTHORIZED)
        http_reply_header(&r, "WWW-Authenticate", "Bearer");
    if (err->status == OPENAI_BUSY || err->status == OPENAI_UNAVAILABLE)
        http_reply_header(&r, "Retry-After", "2");
    if (err->status == OPENAI_UNAVAILABLE)
        http_reply_header(&r, "Connection", "close");
    return reply_value(&r, call, route_form(call)->error(err));
}

bool server_read_body(const struct http_call *call, json_t **body, struct openai_error *err) {
    kvasir_error why;
    if (call->body_len == 0)
        return openai_refuse(err, NULL, "the body is empty");
    return json_load_request(call->body, call->body_len, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES,
                             body, &why) == KVASIR_OK ||
           openai_refuse(err, NULL, "%s", why.text);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void handle_refuse(void *user, struct http_call *call, unsigned status, const char *why) {
    struct openai_error err;
    openai_refuse(&err, NULL, "%s", why);
    err.status = (int)status;
    err.code = status == 413 ? "request_too_large" : NULL;
    server_reply_error_with(user, call, &err, "Connection", "close");
}

static void handle_gone(void *user, struct http_call *call) {
    (void)user;
    job_gone(call);
}

static void handle_done(void *user, struct http_call *call, unsigned status) {
    const struct server *s = user;
    if (status)
        metrics_http(s->metrics, route_name(call), status);
    if (status == 413)
        metrics_refused(s->metrics, REFUSED_SIZE);
    if (call->user)
        job_done(call, status);
    else if (status >= 300)
        server_log(s, "route=%s status=%u", route_name(call), status);
}

static void tick(void *user) {
    jobs_tick(user);
}

static void set_up(struct server *s) {
    kvasir_model_info info;
    kvasir_model_get_info(s->model, &info);
    s->syntax = answer_syntax_of(kvasir_model_tokenizer(s->model));
    s->setup = (struct openai_setup){.tokenizer = kvasir_model_tokenizer(s->model),
                                     .syntax = &s->syntax,
                                     .variables = s->options.variables,
                                     .model = s->options.model_name,
                                     .vocab = info.vocab,
                                     .max_choices = s->options.max_choices,
                                     .max_tokens = s->options.max_tokens,
                                     .sampling = s->options.sampling,
                                     .stream = true};
    s->started_s = (int64_t)time(NULL);
    s->started_us = server_now_us();
    if (getrandom(&s->id_base, sizeof s->id_base, 0) != (ssize_t)sizeof s->id_base)
        s->id_base = (uint64_t)s->started_us;
}

static void init_locks(struct server *s) {
    pthread_condattr_t monotonic;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

kvasir_status server_create(const struct server_options *o, const kvasir_model *model,
                            kvasir_engine *engine, struct server **out, kvasir_error *err) {
    enum { THREADS = 4 }; /* one may be busy with a long prompt's tokens */
    kvasir_context_info info;
    struct server *s = calloc(1, sizeof *s);
    *err = (kvasir_error){
        .code = KVASIR_ERR_MEMORY, .offset = -1, .text = "out of memory for the server"};
    if (!s)
        return err->code;
    s->options = *o;
    s->model = model;
    s->engine = engine;
    init_locks(s);
    set_up(s);
    kvasir_engine_get_context(engine, &info);
    s->metrics = metrics_create(info.ctx, s->started_us);
    s->log = o->on_log ? log_create(o->on_log, o->log_user) : NULL;
    if (!s->metrics || (o->on_log && !s->log)) {
        server_destroy(s);
        return err->code;
    }
    const struct http_options http = {.host = o->host,
                                      .port = o->port,
                                      .threads = THREADS,
                                      .max_connections = o->max_connections,
                                      .max_body_bytes = o->max_body_bytes,
                                      .idle_timeout_s = o->idle_timeout_s,
                                      .write_timeout_s = o->write_timeout_s,
                                      .handler = {.user = s,
                                                  .body_limit = routes_body_limit,
                                                  .handle = routes_handle,
                                                  .refuse = handle_refuse,
                                                  .gone = handle_gone,
                                                  .done = handle_done,
                                                  .tick = tick}};
    struct http_error why;
    if (!http_start(&http, &s->http, &why)) {
        *err = (kvasir_error){
            .code = KVASIR_ERR_IO, .offset = -1, .field = why.bad_host ? "server.host" : NULL};
        snprintf(err->text, sizeof err->text, "%s", why.text);
        server_destroy(s);
        return err->code;
    }
    *out = s;
    return KVASIR_OK;
}

uint16_t server_port(const struct server *s) {
    return http_port(s->http);
}

void server_drain(struct server *s) {
    if (!atomic_exchange(&s->draining, true))
        http_quiesce(s->http);
}

uint32_t server_open_requests(struct server *s) {
    pthread_mutex_lock(&s->mutex);
    const uint32_t n = s->n_jobs;
    pthread_mutex_unlock(&s->mutex);
    return n;
}

uint32_t server_wait_idle(struct server *s, double seconds) {
    const int64_t until_us = server_now_us() + (int64_t)(seconds * 1e6);
    const struct timespec until = {until_us / 1000000, until_us % 1000000 * 1000};
    int expired = 0;
    pthread_mutex_lock(&s->mutex);
    while (s->n_jobs && !expired)
        expired = pthread_cond_timedwait(&s->changed, &s->mutex, &until);
    const uint32_t n = s->n_jobs;
    pthread_mutex_unlock(&s->mutex);
    return n;
}

void server_destroy(struct server *s) {
    if (!s)
        return;
    if (s->http) {
        server_drain(s);
        atomic_store(&s->stopping, true);
        jobs_stop(s);
        http_stop(s->http);
    }
    log_destroy(s->log);
    metrics_destroy(s->metrics);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}
