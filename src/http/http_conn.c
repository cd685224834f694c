/* SPDX-License-Identifier: Apache-2.0 */
/* http_conn.c: a connection, from one request to the next.
 *
 *     HEAD --whole--> BODY --whole--> HANDLE (may be suspended) --> SEND --+--> HEAD ...
 *       `--malformed: refuse--'----------------------------------------^   `--> LINGER, closed
 *
 * The connection closes after a response that was decided before the whole request was read: what
 * follows could be read as another request (HEAD-1). It then reads and drops a little of what still
 * comes (LINGER), because closing a socket with unread bytes could destroy the response on its way.
 *
 * A connection without a request takes no buffer. Nor does a probe, if there is none.
 */
#include "http/http_internal.h"
#include "http/http_peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "util/http_status.h"

enum { IN_BYTES = HTTP_HEAD_MAX, LINGER_S = 2, LINGER_BYTES = 1 << 20, GULP = 256 << 10 };

/* What the thread does after a step. Parked, armed or closed: touch the connection no more. */
enum turn { TURN_GO_ON, TURN_READ, TURN_WRITE, TURN_PARKED, TURN_CLOSE };

/* ---- received bytes -------------------------------------------------------------------------- */

static size_t in_size(const struct conn *c) {
    return c->in_len - c->in_at;
}

static void consume(struct conn *c, size_t n) {
    ASSERT(n <= in_size(c));
    c->in_at += n;
}

static void drop_in(struct conn *c) {
    if (c->in && c->http->options.buffers)
        charge_give(c->http->options.buffers, IN_BYTES);
    free(c->in);
    c->in = NULL;
    c->in_at = c->in_len = 0;
}

/* Before anything is received. False: there is no memory for it. */
static bool take_in(struct conn *c) {
    struct charge *buffers = c->http->options.buffers;
    if (c->in)
        return true;
    if (buffers && !charge_take(buffers, IN_BYTES))
        return false;
    c->in = malloc(IN_BYTES);
    if (!c->in && buffers)
        charge_give(buffers, IN_BYTES);
    return c->in != NULL;
}

/* What follows from recv's result. */
static enum turn after_recv(ssize_t n) {
    if (n > 0 || (n < 0 && errno == EINTR))
        return TURN_GO_ON;
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? TURN_READ : TURN_CLOSE;
}

static enum turn read_more(struct conn *c) {
    ASSERT(c->in);
    if (c->in_at) {
        memmove(c->in, c->in + c->in_at, in_size(c));
        c->in_len -= c->in_at;
        c->in_at = 0;
    }
    ASSERT(c->in_len < IN_BYTES); /* what needs more was refused */
    const ssize_t n = recv(c->fd, c->in + c->in_len, IN_BYTES - c->in_len, 0);
    c->in_len += n > 0 ? (size_t)n : 0;
    return after_recv(n);
}

/* ---- exchanges ------------------------------------------------------------------------------- */

static struct exchange *exchange_create(struct conn *c) {
    struct exchange *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->c.method = x->head.method = "GET";
    x->c.path = x->head.path = "/";
    x->c.query = x->head.query = "";
    x->c.body = "";
    peer_text(&c->peer, x->c.client);
    x->http = c->http;
    x->conn = c;
    x->body_limit = c->http->options.max_body_bytes;
    pthread_mutex_init(&x->mutex, NULL);
    return x;
}

void http_drop_body(struct http_exchange *exchange) {
    struct exchange *x = (struct exchange *)exchange;
    if (x->body.len)
        charge_give(x->c.charge, x->body.len);
    struct charge *before = charge_enter(NULL); /* by length, not by what is allocated */
    text_free(&x->body);
    charge_leave(before);
    x->c.body = "";
    x->c.body_len = 0;
}

static void exchange_end(struct conn *c) {
    struct exchange *x = c->current;
    const struct http_handler *handler = &c->http->options.handler;
    watch_end(c->http, c); /* `gone` is not called after this */
    handler->done(handler->user, &x->c, x->status);
    pthread_mutex_lock(&x->mutex); /* a last http_wake may still hold it */
    pthread_mutex_unlock(&x->mutex);
    pthread_mutex_destroy(&x->mutex);
    http_drop_body(&x->c);
    text_free(&x->out);
    free(x->owned);
    charge_unref(x->c.charge);
    free(x->head_text);
    free(x);
    c->current = NULL;
}

void conn_close(struct conn *c) {
    struct http *h = c->http;
    const int fd = c->fd;
    if (c->current)
        exchange_end(c);
    drop_in(c);
    watch_close(h, c); /* before another may get the same number */
    close(fd);
    pthread_mutex_destroy(&c->armed);
    free(c);
    watch_listen(h);
}

static enum turn replied(struct conn *c) {
    c->state = CONN_SEND;
    return c->current->status ? TURN_GO_ON : TURN_CLOSE;
}

static enum turn refuse(struct conn *c, unsigned status, const char *why) {
    const struct http_handler *handler = &c->http->options.handler;
    c->current->close = true;
    handler->refuse(handler->user, &c->current->c, status, why);
    return replied(c);
}

static enum turn refuse_size(struct conn *c) {
    char why[96];
    snprintf(why, sizeof why, "the request body is larger than the %llu bytes allowed",
             (unsigned long long)c->current->body_limit);
    return refuse(c, HTTP_CONTENT_TOO_LARGE, why);
}

/* Its memory was refused (account.h). */
static enum turn refuse_memory(struct conn *c) {
    char why[256];
    const enum charge_refusal refusal = charge_refusal(c->current->c.charge, why, sizeof why);
    ASSERT(refusal != CHARGE_FITS);
    return refuse(
        c, refusal == CHARGE_REQUEST_FULL ? HTTP_CONTENT_TOO_LARGE : HTTP_TOO_MANY_REQUESTS, why);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static enum turn run_handler(struct conn *c) {
    struct exchange *x = c->current;
    const struct http_handler *handler = &c->http->options.handler;
    c->state = CONN_HANDLE;
    if (!x->handled)
        watch_begin(c->http, c, x);
    x->handled = true;
    while (handler->handle(handler->user, &x->c) == HTTP_WAIT)
        if (exchange_suspend(x))
            return TURN_PARKED;
    http_drop_body(&x->c);
    return replied(c);
}

/* "100 Continue" fits the socket's buffer: the client waits for it, all else was read. */
static bool invite_body(const struct conn *c) {
    static const char GO_ON[] = "HTTP/1.1 100 Continue\r\n\r\n";
    const ssize_t n = (ssize_t)(sizeof GO_ON - 1);
    return !c->current->head.expects_continue || in_size(c) > 0 ||
           send(c->fd, GO_ON, (size_t)n, MSG_NOSIGNAL) == n;
}

/* Finds the client of a request that a trusted proxy sent. False: the client has too many. */
static bool find_client(struct conn *c) {
    struct exchange *x = c->current;
    const struct in6_addr client = peer_client(&c->http->options, &x->head, &c->peer);
    peer_text(&client, x->c.client);
    return watch_client(c->http, c, &client);
}

/* After the headers, before the body. */
static enum turn begin_request(struct conn *c) {
    struct exchange *x = c->current;
    const struct http_options *o = &c->http->options;
    if (c->proxy && !find_client(c))
        return refuse(c, HTTP_TOO_MANY_REQUESTS,
                      "too many requests of this address are open: wait until one has ended");
    x->c.charge = o->handler.charge(o->handler.user, &x->c);
    if (!x->c.charge)
        return TURN_CLOSE;
    if (x->head.length > o->max_body_bytes)
        return refuse_size(c);
    x->body_limit = o->handler.body_limit(o->handler.user, &x->c);
    if (x->head.length > x->body_limit) {
        x->close = true;
        return run_handler(c);
    }
    if (!charge_fits(x->c.charge, x->head.length))
        return refuse_memory(c);
    body_begin(&x->frame, &x->head);
    if (!x->head.chunked && x->head.length == 0)
        return run_handler(c);
    watch_deadline(c->http, c, o->idle_timeout_s);
    c->state = CONN_BODY;
    return invite_body(c) ? TURN_GO_ON : TURN_CLOSE;
}

static const struct http_problem NO_BUFFER = {
    HTTP_TOO_MANY_REQUESTS, "too many requests are being received: wait until some are read"};

/* head: its n bytes, if it is whole. False: out of memory. */
static bool make_exchange(struct conn *c, const char *head, size_t n) {
    struct exchange *x = c->current = exchange_create(c);
    if (!x || !(x->head_text = malloc(n + 1)))
        return false;
    memcpy(x->head_text, head, n);
    x->head_text[n] = 0;
    return true;
}

/* Of a whole head. */
static bool read_head(struct exchange *x, size_t n, struct http_problem *problem) {
    const bool good = head_parse(&x->head, x->head_text, n, problem);
    x->c.method = x->head.method;
    x->c.path = x->head.path;
    x->c.query = x->head.query;
    x->close = x->head.close;
    return good;
}

static enum turn end_of_head(struct conn *c, enum head_step step, struct http_problem *problem) {
    const size_t n = step == HEAD_WHOLE ? c->scan.at : 0;
    if (!make_exchange(c, c->in + c->in_at, n))
        return TURN_CLOSE;
    consume(c, n);
    return n && read_head(c->current, n, problem) ? begin_request(c)
                                                  : refuse(c, problem->status, problem->why);
}

/* There is no memory to receive a request, if one comes at all. What has come is only looked at, on
 * this thread's stack. A probe is taken if its head is here as a whole, so that no client that
 * sends slowly keeps anything from others; all else is refused unread. */
static enum turn run_without_buffer(struct conn *c) {
    char head[IN_BYTES];
    struct head_scan scan = {0};
    struct http_problem problem;
    const struct http_handler *handler = &c->http->options.handler;
    ASSERT(!c->in && c->scan.at == 0);
    const ssize_t come = recv(c->fd, head, sizeof head, MSG_PEEK);
    if (come <= 0)
        return after_recv(come);
    const bool whole = head_scan(&scan, head, (size_t)come, &problem) == HEAD_WHOLE;
    const size_t n = whole ? scan.at : 0;
    if (!make_exchange(c, head, n))
        return TURN_CLOSE;
    const struct exchange *x = c->current;
    if (n && read_head(c->current, n, &problem) && !x->head.chunked && x->head.length == 0 &&
        handler->probe(handler->user, &x->c) && recv(c->fd, head, n, 0) == (ssize_t)n)
        return begin_request(c);
    return refuse(c, NO_BUFFER.status, NO_BUFFER.why);
}

static enum turn run_head(struct conn *c) {
    const struct http_options *o = &c->http->options;
    struct http_problem problem;
    if (in_size(c) > 0 && !c->head_begun) {
        c->head_begun = true;
        watch_deadline(c->http, c, min_u32(o->idle_timeout_s, o->head_timeout_s));
    }
    const enum head_step step =
        in_size(c) ? head_scan(&c->scan, c->in + c->in_at, in_size(c), &problem) : HEAD_MORE;
    if (step == HEAD_MORE)
        return take_in(c) ? read_more(c) : run_without_buffer(c);
    if (step == HEAD_WHOLE && c->scan.at == 2 && !c->skipped_line) {
        /* RFC 9112 2.2: old clients send an empty line after a body */
        consume(c, 2);
        c->scan = (struct head_scan){0};
        c->skipped_line = true;
        return TURN_GO_ON;
    }
    return end_of_head(c, step, &problem);
}

static bool append_body(struct exchange *x, const char *data, size_t n) {
    if (!text_append(&x->body, data, n))
        return false;
    x->c.body = x->body.data;
    x->c.body_len = x->body.len;
    return true;
}

static enum turn run_body(struct conn *c) {
    struct exchange *x = c->current;
    struct http_problem problem;
    const char *data = c->in ? c->in + c->in_at : "";
    size_t used, piece;
    switch (body_next(&x->frame, data, in_size(c), &used, &piece, &problem)) {
    case BODY_MORE:
        return take_in(c) ? read_more(c) : refuse(c, NO_BUFFER.status, NO_BUFFER.why);
    case BODY_BAD:
        return refuse(c, problem.status, problem.why);
    case BODY_PART:
        ASSERT(x->body.len <= x->body_limit);
        if (piece > x->body_limit - x->body.len)
            return refuse_size(c);
        if (!charge_take(x->c.charge, piece))
            return refuse_memory(c);
        if (piece && !append_body(x, data, piece)) {
            charge_give(x->c.charge, piece);
            return TURN_CLOSE;
        }
        consume(c, used);
        if (in_size(c) > 0 || x->body.len / GULP == (x->body.len - piece) / GULP)
            return TURN_GO_ON;
        return TURN_WRITE; /* others first: a fast client must not keep this thread */
    case BODY_DONE:
        consume(c, used);
        break;
    }
    return run_handler(c);
}

static enum turn end_of_response(struct conn *c) {
    const bool close = c->current->close;
    exchange_end(c);
    c->scan = (struct head_scan){0};
    c->head_begun = c->skipped_line = false;
    c->state = close ? CONN_LINGER : CONN_HEAD;
    if (close) {
        shutdown(c->fd, SHUT_WR);
        watch_deadline(c->http, c, LINGER_S);
        c->linger_left = LINGER_BYTES;
        return TURN_GO_ON;
    }
    return in_size(c) ? TURN_WRITE : TURN_GO_ON; /* others first, before the next of a pipeline */
}

static enum turn run_send(struct conn *c) {
    switch (exchange_send(c->current)) {
    case SEND_AGAIN:
        return TURN_GO_ON;
    case SEND_WAIT:
        watch_stall(c);
        return TURN_WRITE;
    case SEND_SUSPENDED:
        return TURN_PARKED;
    case SEND_FAILED:
        return TURN_CLOSE;
    case SEND_DONE:
        break;
    }
    return end_of_response(c);
}

static enum turn run_linger(struct conn *c) {
    char dropped[4096];
    drop_in(c);
    const ssize_t n = recv(c->fd, dropped, sizeof dropped, 0);
    c->linger_left -= min_size(c->linger_left, n > 0 ? (size_t)n : 0);
    return c->linger_left ? after_recv(n) : TURN_CLOSE;
}

void conn_run(struct conn *c) {
    static enum turn (*const STEPS[])(struct conn *) = {[CONN_HEAD] = run_head,
                                                        [CONN_BODY] = run_body,
                                                        [CONN_HANDLE] = run_handler,
                                                        [CONN_SEND] = run_send,
                                                        [CONN_LINGER] = run_linger};
    enum turn turn;
    pthread_mutex_lock(&c->armed);
    pthread_mutex_unlock(&c->armed);
    atomic_store(&c->stalled_s, 0);
    do
        turn = STEPS[c->state](c);
    while (turn == TURN_GO_ON);
    if (turn == TURN_PARKED)
        return;
    if (turn == TURN_READ && in_size(c) == 0)
        drop_in(c);
    if (turn == TURN_CLOSE || !conn_arm(c, turn == TURN_READ ? EPOLLIN : EPOLLOUT))
        conn_close(c);
}
