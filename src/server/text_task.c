/* SPDX-License-Identifier: Apache-2.0 */
/* text_task.c: a request that is answered from its body alone, on a worker:
 *
 *     HTTP thread                      worker                       watcher
 *       text_task_begin: attach, add -->  run: read, answer           gone: cancelled
 *       (suspended)                       http_wake
 *       go_on: reply                <--
 *
 * While it is suspended the exchange cannot end, so the task is the worker's until it wakes it.
 */
#include "server/text_task.h"

#include <stdlib.h>
#include <string.h>

/* ---- ends ------------------------------------------------------------------------------------ */

bool text_ended(const struct text_end *e) {
    return atomic_load(&e->cancelled) || atomic_load(&e->server->stopping) ||
           metrics_now_us() > e->until_us;
}

static bool ended(void *user) {
    return text_ended(user);
}

void text_end_begin(struct text_end *e, const struct server *s, size_t max_tokens) {
    e->server = s;
    e->until_us = metrics_now_us() + (int64_t)s->options.text_timeout_s * 1000000;
    e->limits = (kvasir_text_limits){.max_tokens = max_tokens, .stop = ended, .user = e};
}

bool text_end_explain(const struct text_end *e, struct api_error *err) {
    if (err->status != HTTP_CLIENT_CLOSED)
        return false;
    if (atomic_load(&e->server->stopping)) {
        api_refuse(err, NULL, "the server is shutting down");
    } else if (atomic_load(&e->cancelled)) {
        api_refuse(err, NULL, "cancelled");
        err->status = HTTP_CLIENT_CLOSED;
        return false;
    } else {
        api_refuse(err, NULL,
                   "the request was not read within %u seconds: make it shorter, or try again when "
                   "the server has less to do",
                   e->server->options.text_timeout_s);
    }
    err->status = HTTP_UNAVAILABLE;
    return !atomic_load(&e->server->stopping);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

struct text_task {
    struct task task; /* first */
    struct work work;
    struct server *server;
    struct account *account; /* whose request it is */
    struct http_exchange *exchange;
    const char *route;
    const struct protocol *protocol;
    const struct text_kind *kind;
    struct text_end end;
    atomic_bool finished;
    /* of the worker, then of the HTTP thread */
    bool good;
    struct text_buf answer;
    struct api_error err;
};

static struct text_task *text_task_of(const struct http_exchange *exchange) {
    return exchange->user;
}

void server_count_open(struct server *s, int n) {
    pthread_mutex_lock(&s->mutex);
    ASSERT(n > 0 || s->n_jobs > 0);
    const uint32_t before = s->n_jobs;
    s->n_jobs += (uint32_t)n;
    if (!before || !s->n_jobs)
        pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

static void refused(const struct text_task *t, enum metrics_refusal reason) {
    metrics_refused(t->server->metrics, reason);
    account_refused(t->account);
}

static void run(struct work *work) {
    struct text_task *t =
        (struct text_task *)(void *)((char *)work - offsetof(struct text_task, work));
    struct api_setup setup = t->server->setup;
    struct api_body body = {0};
    setup.limits = &t->end.limits;
    setup.grammars = NULL; /* nothing is generated */
    struct charge *before = charge_enter(t->exchange->charge);
    t->err = (struct api_error){.status = HTTP_CLIENT_CLOSED};
    const bool read = !text_ended(&t->end) &&
                      reply_read_body(t->exchange, &setup, t->kind->wants, &body, &t->err);
    http_drop_body(t->exchange);
    t->good = read && t->kind->answer(t->server, &setup, &body, &t->answer, &t->err) &&
              (text_append(&t->answer, "", 1) || api_no_memory(&t->err)); /* a string */
    api_body_free(&body);
    charge_leave(before);
    if (!t->good && text_end_explain(&t->end, &t->err))
        refused(t, REFUSED_TIME);
    else if (!t->good && reply_memory_error(t->exchange, &t->err))
        refused(t, REFUSED_MEMORY);
    atomic_store(&t->finished, true);
    http_wake(t->exchange); /* the task may be freed by now */
}

static enum http_step go_on(struct http_exchange *exchange) {
    struct text_task *t = text_task_of(exchange);
    if (!atomic_load(&t->finished))
        return HTTP_WAIT;
    char *answer = t->answer.data;
    if (t->good)
        t->answer = (struct text_buf){0};
    return t->good ? reply_text(t->server, exchange, HTTP_OK, answer)
                   : reply_error(t->server, exchange, t->protocol, &t->err);
}

static void gone(struct http_exchange *exchange) {
    atomic_store(&text_task_of(exchange)->end.cancelled, true);
}

static void done(struct http_exchange *exchange, unsigned status) {
    struct text_task *t = text_task_of(exchange);
    ASSERT(atomic_load(&t->finished));
    if (status >= HTTP_BAD_REQUEST)
        reply_log(t->server, exchange, t->route, status);
    account_end(t->account);
    server_count_open(t->server, -1);
    text_free(&t->answer);
    free(t);
}

enum http_step text_task_begin(struct server *s, struct http_exchange *exchange, const char *route,
                               const struct protocol *protocol, const struct text_kind *kind,
                               struct account *account) {
    struct api_error err;
    if (!account_begin(account, clock_seconds(), &err)) {
        metrics_refused(s->metrics, REFUSED_QUOTA);
        return reply_error(s, exchange, protocol, &err);
    }
    struct text_task *t = calloc(1, sizeof *t);
    if (!t) {
        account_end(account);
        api_no_memory(&err);
        return reply_error(s, exchange, protocol, &err);
    }
    t->task = (struct task){go_on, gone, done};
    t->work = (struct work){.run = run, .bytes = exchange->body_len};
    t->server = s;
    t->account = account;
    t->exchange = exchange;
    t->route = route;
    t->protocol = protocol;
    t->kind = kind;
    text_end_begin(&t->end, s, 0);
    server_count_open(s, 1);
    if (!http_attach(exchange, t))
        gone(exchange);
    work_pool_add(s->work, &t->work);
    return HTTP_WAIT;
}
