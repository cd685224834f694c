/* SPDX-License-Identifier: Apache-2.0 */
/* forget_task.c: DELETE /v1/cache is answered once the stores below the memory have forgotten, too,
 * or after a few seconds, with "pending": true.
 *
 *     HTTP thread                       engine, writers of stores   watcher
 *       forget_task_begin: order   -->    forget
 *       (suspended)                                                 tick: done, or late: http_wake
 *       go_on: reply
 *
 * Without such stores it is answered at once: what is requested later finds nothing. No thread
 * waits. Tasks are in the server's list, under its mutex, until their exchange is over.
 */
#include "server/server_internal.h"

#include <stdlib.h>

struct forget_task {
    struct task task; /* first */
    struct server *server;
    struct http_exchange *exchange;
    struct forget_task *next;
    int64_t until_us;
};

static bool is_over(const struct forget_task *t, bool pending) {
    return !pending || atomic_load(&t->server->stopping) || metrics_now_us() >= t->until_us;
}

static enum http_step answer(struct server *s, struct http_exchange *exchange, bool pending) {
    return reply_json(s, exchange, HTTP_OK,
                      json_pack("{s:s, s:b, s:b}", "status", "cleared", "rewarm_scheduled", 0,
                                "pending", pending));
}

static enum http_step go_on(struct http_exchange *exchange) {
    const struct forget_task *t = exchange->user;
    const bool pending = kvasir_engine_is_forgetting(t->server->engine);
    return is_over(t, pending) ? answer(t->server, exchange, pending) : HTTP_WAIT;
}

/* The answer is made all the same, for nobody. */
static void gone(struct http_exchange *exchange) {
    (void)exchange;
}

static void done(struct http_exchange *exchange, unsigned status) {
    struct forget_task *t = exchange->user, **at = &t->server->forgets;
    (void)status;
    pthread_mutex_lock(&t->server->mutex);
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    pthread_mutex_unlock(&t->server->mutex);
    free(t);
}

void forget_tasks_tick(struct server *s) {
    pthread_mutex_lock(&s->mutex);
    const bool pending = s->forgets && kvasir_engine_is_forgetting(s->engine);
    for (struct forget_task *t = s->forgets; t; t = t->next)
        if (is_over(t, pending))
            http_wake(t->exchange);
    pthread_mutex_unlock(&s->mutex);
}

enum http_step forget_task_begin(struct server *s, struct http_exchange *exchange) {
    enum { PATIENCE_US = 5000000 };
    kvasir_engine_forget(s->engine, NULL);
    if (kvasir_engine_get_tiers(s->engine, NULL, 0) == 0)
        return answer(s, exchange, false);
    struct forget_task *t = calloc(1, sizeof *t);
    if (!t)
        return answer(s, exchange, true);
    *t = (struct forget_task){.task = {go_on, gone, done},
                              .server = s,
                              .exchange = exchange,
                              .until_us = metrics_now_us() + PATIENCE_US};
    pthread_mutex_lock(&s->mutex);
    t->next = s->forgets;
    s->forgets = t;
    pthread_mutex_unlock(&s->mutex);
    (void)http_attach(exchange, t);
    return go_on(exchange); /* the server may have stopped before the task was in the list */
}
