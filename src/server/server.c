/* SPDX-License-Identifier: Apache-2.0 */
/* server.c: the server's life.
 *
 * The end: server_drain refuses new requests while open ones continue. server_destroy cancels
 * those, waits for their last events, upon which their exchanges reply, and ends HTTP's, in
 * which no exchange may be suspended then.
 */
#include "server/server_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct server_options server_defaults(void) {
    return (struct server_options){.host = "127.0.0.1",
                                   .port = 8080,
                                   .admin_port = -1,
                                   .sampling = kvasir_sampling_defaults(),
                                   .max_choices = 32,
                                   .max_waiting = kvasir_engine_defaults().max_waiting,
                                   .max_connections = 1024,
                                   .max_body_bytes = 32 << 20,
                                   .buffer_bytes = 1 << 20,
                                   .idle_timeout_s = 75,
                                   .head_timeout_s = 10,
                                   .write_timeout_s = 30,
                                   .text_timeout_s = 30,
                                   .response_bytes = 64 << 20,
                                   .response_ttl_s = 86400,
                                   .session_ttl_s = 86400,
                                   .keepalive_s = 5,
                                   .log_level = SERVER_LOG_INFO};
}

/* ---- life ------------------------------------------------------------------------------------ */

static void handle_gone(void *user, struct http_exchange *exchange) {
    (void)user;
    ((const struct task *)exchange->user)->gone(exchange);
}

static void handle_done(void *user, struct http_exchange *exchange, unsigned status) {
    const struct server *s = user;
    if (status)
        metrics_http(s->metrics, routes_name(exchange), status);
    if (status == HTTP_CONTENT_TOO_LARGE)
        metrics_refused(s->metrics, REFUSED_SIZE);
    if (exchange->user)
        ((const struct task *)exchange->user)->done(exchange, status);
    else if (status)
        reply_log(s, exchange, routes_name(exchange), status);
}

/* What requests owned goes back to the system when some of it has come together, at most once a
 * second, or when none is left. */
static void trim(struct server *s) {
    enum { ENOUGH = 16 << 20, PAUSE_US = 1000000 };
    const struct mem_account_figures f = mem_account_figures(&s->requests);
    const int64_t now = metrics_now_us();
    const uint64_t returned = f.returned - s->trimmed;
    if (returned == 0 || (returned < ENOUGH && f.held) || now - s->trimmed_us < PAUSE_US)
        return;
    mem_trim();
    s->trimmed = f.returned;
    s->trimmed_us = now;
}

static void tick(void *user) {
    const struct server *s = user;
    jobs_tick(user);
    forgets_tick(user);
    sessions_tick(s->sessions);
    if (s->many)
        model_set_tick(s->many->set);
    trim(user);
}

static void no_tick(void *user) {
    (void)user;
}

bool server_check_parsers(const struct server_options *o, kvasir_error *err) {
    struct answer_syntax syntax = {0};
    const char *unknown = served_set_parsers(o, &syntax);
    if (unknown)
        (void)fail_field(err, KVASIR_ERR_ARGUMENT,
                         unknown == o->tool_call_parser ? "server.tool_call_parser"
                                                        : "server.reasoning_parser",
                         "\"%.40s\" is not a parser that is known here; without one the form is "
                         "found in the chat template",
                         unknown);
    return !unknown;
}

/* Beside the cache, whose default leaves a quarter of what is free. */
uint64_t server_request_memory(const struct server_options *options) {
    const uint64_t least = 256ull << 20, most = 4ull << 30, part = memory_available_bytes() / 8;
    return options->request_memory_bytes ? options->request_memory_bytes
           : part < least                ? least
           : part < most                 ? part
                                         : most;
}

/* jansson is one for the whole process. */
static bool set_up_memory(struct server *s) {
    const struct server_options *o = &s->options;
    mem_return_large();
    json_set_alloc_funcs(mem_alloc, mem_free);
    mem_account_init(&s->requests, server_request_memory(o), o->n_api_keys > 1);
    s->buffers = charge_create(&s->requests, NULL);
    return s->buffers != NULL;
}

static void init_locks(struct server *s) {
    pthread_condattr_t monotonic;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static struct http_options http_options_of(struct server *s) {
    enum { THREADS = 4 };
    const struct server_options *o = &s->options;
    return (struct http_options){.host = o->host,
                                 .port = o->port,
                                 .threads = THREADS,
                                 .max_connections = o->max_connections,
                                 .max_address_connections = o->max_address_connections,
                                 .trusted = s->proxies,
                                 .n_trusted = s->n_proxies,
                                 .max_body_bytes = o->max_body_bytes,
                                 .idle_timeout_s = o->idle_timeout_s,
                                 .head_timeout_s = o->head_timeout_s,
                                 .write_timeout_s = o->write_timeout_s,
                                 .buffers = s->buffers,
                                 .handler = {.user = s,
                                             .probe = routes_probe,
                                             .charge = routes_charge,
                                             .body_limit = routes_body_limit,
                                             .handle = routes_handle,
                                             .refuse = routes_refuse,
                                             .gone = handle_gone,
                                             .done = handle_done,
                                             .tick = tick}};
}

/* Nothing that clients do on the other port takes its thread or its connections. */
static struct http_options admin_options_of(struct server *s) {
    enum { BODY_MAX = 4 << 10 };
    struct http_options o = http_options_of(s);
    if (strncmp(o.host, "unix:", 5) == 0)
        o.host = "127.0.0.1";
    o.port = (uint16_t)s->options.admin_port;
    o.threads = 1;
    o.max_connections = HTTP_SMALL_LISTENER;
    o.max_address_connections = 0;
    o.max_body_bytes = BODY_MAX;
    o.buffers = NULL;
    o.handler.handle = routes_handle_admin;
    o.handler.tick = no_tick;
    return o;
}

static bool listen_on(struct server *s, kvasir_error *err) {
    const struct http_options main = http_options_of(s), admin = admin_options_of(s);
    struct http_error why;
    const bool good = http_start(&main, &s->http, &why);
    if (good && (s->options.admin_port < 0 || http_start(&admin, &s->admin_http, &why)))
        return true;
    *err = (kvasir_error){.code = KVASIR_ERR_IO,
                          .offset = -1,
                          .field = why.bad_host   ? "server.host"
                                   : why.too_many ? "server.max_connections"
                                                  : NULL};
    snprintf(err->text, sizeof err->text, "%s", why.text);
    return false;
}

bool server_set_keys(struct server *s, const struct server_key *keys, size_t n) {
    ASSERT(n > 0 || !s->needs_key);
    return accounts_set(s->accounts, keys, n);
}

/* Sessions are of the only model. False: out of memory. */
static bool set_up_sessions(struct server *s) {
    const struct server_options *o = &s->options;
    if (!s->one || !o->session_ttl_s || !o->response_bytes)
        return true;
    s->sessions = sessions_create(&(struct sessions_options){.engine = s->one->engine,
                                                             .account = &s->requests,
                                                             .max_bytes = o->response_bytes,
                                                             .max_ttl_s = o->session_ttl_s,
                                                             .model = o->model_name});
    return s->sessions != NULL;
}

/* All but the models and the listeners. NULL: out of memory. */
static struct server *make(const struct server_options *o) {
    struct server *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->options = *o;
    init_locks(s);
    const bool good = set_up_memory(s);
    s->started_s = (int64_t)time(NULL);
    s->started_us = metrics_now_us();
    s->work = work_pool_create();
    s->lookups = lookups_create();
    const bool keeps = good && o->response_ttl_s && o->response_bytes;
    s->kept = keeps ? kept_create(&s->requests, o->response_bytes, o->response_ttl_s) : NULL;
    const struct log_options log = {o->on_log, o->log_user, o->log_json, o->log_level};
    s->log = o->on_log ? log_create(&log) : NULL;
    s->otlp = o->otlp_endpoint ? otlp_create(o->otlp_endpoint, o->otlp_headers, s->log) : NULL;
    s->accounts = accounts_create(o->max_waiting);
    s->needs_key = o->n_api_keys > 0;
    s->options.api_keys = NULL; /* borrowed until server_create returns */
    if (good && s->accounts && server_set_keys(s, o->api_keys, o->n_api_keys) && s->work &&
        s->lookups && (!keeps || s->kept) && (!o->on_log || s->log) &&
        (!o->otlp_endpoint || s->otlp))
        return s;
    server_destroy(s);
    return NULL;
}

/* model, engine: of the only one; else `models`. */
static kvasir_status create(const struct server_options *o, const kvasir_model *model,
                            kvasir_engine *engine, const struct server_models *models,
                            struct server **out, kvasir_error *err) {
    struct server *s = make(o);
    *err = (kvasir_error){
        .code = KVASIR_ERR_MEMORY, .offset = -1, .text = "out of memory for the server"};
    if (!s)
        return err->code;
    if (models ? served_open_many(s, models, err) : served_open_one(s, model, engine, err)) {
        server_destroy(s);
        return err->code;
    }
    s->metrics = metrics_create(s->one ? s->one->setup.ctx : 0, s->started_us);
    if (s->one)
        s->one->metrics = s->metrics;
    if (!s->metrics || !set_up_sessions(s) || !proxies_read(o, &s->proxies, &s->n_proxies, err) ||
        warm_create(s, &s->warm, err) || !listen_on(s, err) ||
        (s->warm && warm_start(s->warm, err))) {
        server_destroy(s);
        return err->code;
    }
    *out = s;
    return KVASIR_OK;
}

kvasir_status server_create(const struct server_options *o, const kvasir_model *model,
                            kvasir_engine *engine, struct server **out, kvasir_error *err) {
    return create(o, model, engine, NULL, out, err);
}

kvasir_status server_create_many(const struct server_options *o, const struct server_models *models,
                                 struct server **out, kvasir_error *err) {
    ASSERT(!o->warm_prompts && models->n > 0 && models->first < models->n);
    return create(o, NULL, NULL, models, out, err);
}

void server_each_loaded(struct server *s,
                        const char *(*fn)(void *user, size_t i, const struct server_loaded *l),
                        void *user) {
    for (size_t i = 0; i < served_count(s); i++) {
        struct served *m = served_peek(s, i);
        const char *why = m ? fn(user, i, &m->loaded) : NULL;
        if (why && s->many)
            model_set_lose(s->many->set, i, why);
        served_give(m);
    }
}

uint16_t server_port(const struct server *s) {
    return http_port(s->http);
}

uint16_t server_admin_port(const struct server *s) {
    return s->admin_http ? http_port(s->admin_http) : 0;
}

void server_drain(struct server *s) {
    if (atomic_exchange(&s->draining, true))
        return;
    warm_stop(s->warm);
    http_quiesce(s->http);
}

void server_model_lost(struct server *s) {
    atomic_store(&s->model_lost, true);
}

uint32_t server_open_requests(struct server *s) {
    pthread_mutex_lock(&s->mutex);
    const uint32_t n = s->n_jobs;
    pthread_mutex_unlock(&s->mutex);
    return n;
}

uint32_t server_wait_idle(struct server *s, double seconds) {
    const int64_t until_us = metrics_now_us() + (int64_t)(seconds * 1e6);
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
    enum { LAST_BYTES_S = 1 }; /* for clients to read how their requests ended */
    if (!s)
        return;
    if (s->http) {
        server_drain(s);
        atomic_store(&s->stopping, true);
        if (s->many)
            model_set_stop(s->many->set); /* who waits for a model is refused */
        jobs_stop(s);
        server_wait_idle(s, LAST_BYTES_S);
    }
    if (s->work)
        work_pool_end(s->work); /* wakes the last suspended exchanges, and: */
    forgets_tick(s);
    http_stop(s->http);
    http_stop(s->admin_http);
    sessions_destroy(s->sessions);
    warm_destroy(s->warm); /* now nobody asks for its figures; server_drain has stopped it */
    served_close(s);
    work_pool_destroy(s->work);
    otlp_destroy(s->otlp); /* which may log */
    log_destroy(s->log);
    lookups_destroy(s->lookups);
    kept_destroy(s->kept);
    metrics_destroy(s->metrics);
    accounts_destroy(s->accounts);
    mem_free(s->proxies);
    charge_unref(s->buffers);
    mem_account_deinit(&s->requests);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}
