/* SPDX-License-Identifier: Apache-2.0 */
/* text_task.c: a request that is answered from its body alone, on a worker:
 *
 *     HTTP thread                      worker                       watcher
 *       text_task_begin: attach, add -->  run: read, answer           gone: cancelled
 *       (suspended)                       http_wake   (served_pick)
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

/* The client is gone, or the server ends. */
static bool pick_over(struct model_pick *p) {
    const struct text_end *e =
        (const struct text_end *)(const void *)((const char *)p - offsetof(struct text_end, pick));
    return atomic_load(&e->cancelled) || atomic_load(&e->server->stopping);
}

static void set_time(struct text_end *e) {
    e->until_us = metrics_now_us() + (int64_t)e->server->options.text_timeout_s * 1000000;
}

void text_end_begin(struct text_end *e, struct server *s, struct work *work) {
    e->server = s;
    e->limits = (kvasir_text_limits){.stop = ended, .user = e};
    e->pick = (struct model_pick){.server = s, .work = work, .over = pick_over};
    set_time(e);
}

enum pick text_pick(struct text_end *e, struct http_exchange *exchange, const char *key,
                    const char *name, struct served **out, struct api_error *err) {
    const bool again = e->pick.asked;
    *err = (struct api_error){.status = HTTP_CLIENT_CLOSED};
    if (!again && text_ended(e)) {
        http_drop_body(exchange);
        return PICK_REFUSED;
    }
    struct charge *charge = charge_ref(exchange->charge), *before = charge_enter(charge);
    const enum pick got = served_pick(&e->pick, exchange, key, name, out, err);
    if (got == PICK_REFUSED) { /* PICK_WAITS: the exchange may be over by now */
        http_drop_body(exchange);
        if (atomic_load(&e->cancelled))
            *err = (struct api_error){.status = HTTP_CLIENT_CLOSED};
    }
    charge_leave(before);
    charge_unref(charge);
    if (got == PICKED)
        e->limits.max_tokens = (*out)->most_prompt_tokens;
    if (got == PICKED && again)
        set_time(e);
    return got;
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
    const char *key;         /* likewise */
    struct served *served;   /* NULL: not picked yet */
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

static struct text_task *task_of_work(struct work *work) {
    return (struct text_task *)(void *)((char *)work - offsetof(struct text_task, work));
}

static bool answer(struct text_task *t) {
    struct api_setup setup = t->served->setup;
    struct api_body body = {0};
    struct charge *before = charge_enter(t->exchange->charge);
    t->end.limits.max_tokens = 0; /* nothing is computed */
    setup.limits = &t->end.limits;
    setup.grammars = NULL; /* nothing is generated */
    t->err = (struct api_error){.status = HTTP_CLIENT_CLOSED};
    const bool read = !text_ended(&t->end) &&
                      reply_read_body(t->exchange, &setup, t->kind->wants, &body, &t->err);
    http_drop_body(t->exchange);
    const bool good = read && t->kind->answer(t->served, &setup, &body, &t->answer, &t->err) &&
                      (text_append(&t->answer, "", 1) || api_no_memory(&t->err)); /* a string */
    api_body_free(&body);
    charge_leave(before);
    return good;
}

static void run(struct work *work) {
    struct text_task *t = task_of_work(work);
    const enum pick got = text_pick(&t->end, t->exchange, t->key, NULL, &t->served, &t->err);
    if (got == PICK_WAITS)
        return; /* the task may be freed by now */
    t->good = got == PICKED && answer(t);
    if (!t->good && text_end_explain(&t->end, &t->err))
        refused(t, REFUSED_TIME);
    else if (!t->good && reply_memory_error(t->exchange, &t->err))
        refused(t, REFUSED_MEMORY);
    else if (got == PICK_REFUSED && t->err.status >= HTTP_SERVER_ERROR)
        refused(t, REFUSED_MODEL);
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
    if (status)
        reply_log(t->server, exchange, t->route, status);
    account_end(t->account);
    served_give(t->served);
    server_count_open(t->server, -1);
    text_free(&t->answer);
    free(t);
}

enum http_step text_task_begin(struct server *s, struct http_exchange *exchange, const char *route,
                               const struct protocol *protocol, const struct text_kind *kind,
                               const struct tenant *tenant) {
    struct account *account = tenant->account;
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
    t->key = tenant->key;
    t->exchange = exchange;
    t->route = route;
    t->protocol = protocol;
    t->kind = kind;
    text_end_begin(&t->end, s, &t->work);
    server_count_open(s, 1);
    if (!http_attach(exchange, t))
        gone(exchange);
    work_pool_add(s->work, &t->work);
    return HTTP_WAIT;
}
