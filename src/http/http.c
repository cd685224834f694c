/* SPDX-License-Identifier: Apache-2.0 */
/* http.c: libmicrohttpd's callbacks as exchanges of a handler.
 *
 * Refused here: bodies that are too large (413). libmicrohttpd refuses headers that are too large
 * (431) and malformed HTTP. Requests that do not become complete are cut (http_watch.c).
 *
 * A connection takes POOL_BYTES, which bounds its headers, and its body.
 */
#include "http/http_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "util/http_status.h"

enum { POOL_BYTES = 16 << 10, FILL_BYTES = 8 << 10, BACKLOG = 512 };

static struct exchange *exchange_of(struct http_exchange *c) {
    return (struct exchange *)c;
}

const char *http_header(const struct http_exchange *c, const char *name) {
    return MHD_lookup_connection_value(((const struct exchange *)c)->connection, MHD_HEADER_KIND,
                                       name);
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* True: the connection is suspended until http_wake. False: that came before. */
static bool suspend(struct exchange *c) {
    pthread_mutex_lock(&c->mutex);
    const bool woken = c->woken;
    c->woken = false;
    c->waiting = !woken;
    if (!woken)
        MHD_suspend_connection(c->connection);
    pthread_mutex_unlock(&c->mutex);
    return !woken;
}

void http_wake(struct http_exchange *exchange) {
    struct exchange *c = exchange_of(exchange);
    pthread_mutex_lock(&c->mutex);
    if (c->waiting)
        MHD_resume_connection(c->connection);
    c->woken = !c->waiting;
    c->waiting = false;
    pthread_mutex_unlock(&c->mutex);
}

/* ---- responses ------------------------------------------------------------------------------- */

static void set_timeout(struct exchange *c, uint32_t seconds) {
    (void)!MHD_set_connection_option(c->connection, MHD_CONNECTION_OPTION_TIMEOUT,
                                     (unsigned)seconds);
}

static enum http_step queue(struct exchange *c, const struct http_reply *r,
                            struct MHD_Response *response) {
    ASSERT(r->status >= 100 && r->status <= 599);
    c->status = r->status;
    for (size_t i = 0; i < HTTP_HEADERS_MAX && r->headers[i].name; i++)
        (void)!MHD_add_response_header(response, r->headers[i].name, r->headers[i].value);
    set_timeout(c, c->http->options.write_timeout_s);
    if (MHD_queue_response(c->connection, r->status, response) != MHD_YES)
        c->status = 0; /* the connection is cut */
    MHD_destroy_response(response);
    return HTTP_REPLIED;
}

static enum http_step reply_bytes(struct http_exchange *exchange, const struct http_reply *r,
                                  char *body, size_t len, enum MHD_ResponseMemoryMode mode) {
    struct exchange *c = exchange_of(exchange);
    struct MHD_Response *response = MHD_create_response_from_buffer(len, body, mode);
    if (!response) {
        if (mode == MHD_RESPMEM_MUST_FREE)
            free(body);
        return HTTP_REPLIED; /* nothing queued: the connection is cut */
    }
    http_last_bytes(exchange);
    return queue(c, r, response);
}

enum http_step http_reply_take(struct http_exchange *exchange, const struct http_reply *r,
                               char *body, size_t len) {
    return reply_bytes(exchange, r, body, len, MHD_RESPMEM_MUST_FREE);
}

enum http_step http_reply_static(struct http_exchange *exchange, const struct http_reply *r,
                                 const char *body, size_t len) {
    return reply_bytes(exchange, r, (char *)body, len, MHD_RESPMEM_PERSISTENT);
}

static ssize_t fill(void *user, uint64_t position, char *out, size_t max) {
    struct exchange *c = user;
    (void)position;
    for (;;) {
        const ssize_t n = c->fill(&c->c, out, max);
        if (n == HTTP_FILL_END)
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (n == HTTP_FILL_ABORT)
            return MHD_CONTENT_READER_END_WITH_ERROR;
        ASSERT(n >= 0 && (size_t)n <= max);
        if (n > 0 || suspend(c))
            return n;
    }
}

enum http_step http_reply_stream(struct http_exchange *exchange, const struct http_reply *r,
                                 http_fill_fn *fn) {
    struct exchange *c = exchange_of(exchange);
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, FILL_BYTES, fill, c, NULL);
    c->fill = fn;
    return response ? queue(c, r, response) : HTTP_REPLIED;
}

void http_last_bytes(struct http_exchange *exchange) {
    const struct exchange *c = exchange_of(exchange);
    watch_deadline(c->http, c->conn, c->http->options.write_timeout_s);
}

void http_break_off(struct http_exchange *exchange) {
    atomic_store(&exchange_of(exchange)->broken, true);
}

/* ---- requests -------------------------------------------------------------------------------- */

static struct exchange *exchange_create(struct http *h, struct MHD_Connection *connection,
                                        const char *url, const char *method) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct exchange *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->c.method = method;
    c->c.path = url;
    c->c.body = "";
    c->http = h;
    c->body_limit = h->options.max_body_bytes;
    c->connection = connection;
    c->conn = info ? info->socket_context : NULL;
    pthread_mutex_init(&c->mutex, NULL);
    watch_deadline(h, c->conn, h->options.idle_timeout_s); /* for the body */
    return c;
}

static bool append_body(struct exchange *c, const char *data, size_t n) {
    ASSERT(c->body.len <= c->body_limit);
    if (n > c->body_limit - c->body.len) {
        c->too_large = true;
        return true;
    }
    if (!text_append(&c->body, data, n))
        return false;
    c->c.body = c->body.data;
    c->c.body_len = c->body.len;
    return true;
}

static enum MHD_Result refuse(struct exchange *c, unsigned status, const char *why) {
    const struct http_handler *handler = &c->http->options.handler;
    handler->refuse(handler->user, &c->c, status, why);
    return c->status ? MHD_YES : MHD_NO;
}

static enum MHD_Result refuse_size(struct exchange *c) {
    char why[96];
    snprintf(why, sizeof why, "the request body is larger than the %llu bytes allowed",
             (unsigned long long)c->body_limit);
    return refuse(c, HTTP_CONTENT_TOO_LARGE, why);
}

struct framing {
    int lengths; /* headers that say where the body ends */
    bool bad_name;
};

static enum MHD_Result note_header(void *user, enum MHD_ValueKind kind, const char *name,
                                   const char *value) {
    struct framing *f = user;
    (void)kind;
    (void)value;
    for (const char *p = name; *p; p++)
        f->bad_name |= *p <= 0x20 || *p >= 0x7f;
    f->lengths +=
        strcasecmp(name, "Content-Length") == 0 || strcasecmp(name, "Transfer-Encoding") == 0;
    return MHD_YES;
}

/* Rejects requests that a proxy might frame differently (request smuggling): two headers about
 * where the body ends, or "Content-Length ", another header to libmicrohttpd. NULL: none. */
static const char *ambiguous(const struct exchange *c) {
    struct framing f = {0};
    MHD_get_connection_values(c->connection, MHD_HEADER_KIND, note_header, &f);
    return f.lengths > 1 ? "more than one Content-Length or Transfer-Encoding header"
           : f.bad_name  ? "a header name contains an invalid byte"
                         : NULL;
}

/* By Content-Length, before the body is read. */
static bool declares_more_than(const struct exchange *c, uint64_t limit) {
    const char *length = http_header(&c->c, "Content-Length");
    return length && strtoull(length, NULL, 10) > limit;
}

static void drop_body(struct exchange *c) {
    text_free(&c->body);
    c->c.body = "";
    c->c.body_len = 0;
}

static enum MHD_Result run_handler(struct exchange *c) {
    const struct http_handler *handler = &c->http->options.handler;
    if (!c->handled)
        watch_begin(c->http, c->conn, c);
    c->handled = true;
    while (handler->handle(handler->user, &c->c) == HTTP_WAIT) {
        drop_body(c);
        if (suspend(c))
            return MHD_YES;
    }
    drop_body(c);
    return c->status ? MHD_YES : MHD_NO;
}

/* Checks the headers, before the body. */
static enum MHD_Result begin_request(struct exchange *c) {
    const struct http_options *o = &c->http->options;
    const char *wrong = ambiguous(c);
    if (wrong)
        return refuse(c, HTTP_BAD_REQUEST, wrong);
    if (declares_more_than(c, o->max_body_bytes))
        return refuse_size(c);
    c->body_limit = o->handler.body_limit(o->handler.user, &c->c);
    return declares_more_than(c, c->body_limit) ? run_handler(c) : MHD_YES;
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n, void **state) {
    struct exchange *c = *state;
    (void)version;
    if (!c) {
        *state = c = exchange_create(user, connection, url, method);
        return c ? begin_request(c) : MHD_NO;
    }
    if (*n == 0)
        return c->too_large ? refuse_size(c) : run_handler(c);
    /* a chunked body that is too large: read no more of it */
    if (c->too_large || !append_body(c, data, *n))
        return MHD_NO;
    *n = 0;
    return MHD_YES;
}

static void on_completed(void *user, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode why) {
    struct http *h = user;
    struct exchange *c = *state;
    (void)connection;
    (void)why;
    if (!c)
        return;
    watch_end(h, c->conn); /* `gone` is not called after this */
    h->options.handler.done(h->options.handler.user, &c->c, c->status);
    set_timeout(c, h->options.idle_timeout_s);
    pthread_mutex_destroy(&c->mutex);
    drop_body(c);
    free(c);
    *state = NULL;
}

/* Notice peers that vanish without closing the connection. */
static void set_socket(int fd, uint32_t write_timeout_s) {
    const int on = 1;
    const unsigned timeout_ms = write_timeout_s * 1000;
    (void)!setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)!setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)!setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
}

static void on_connection(void *user, struct MHD_Connection *connection, void **state,
                          enum MHD_ConnectionNotificationCode code) {
    struct http *h = user;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        set_socket(info->connect_fd, h->options.write_timeout_s);
        *state = watch_open(h, info->connect_fd);
    } else {
        watch_close(h, *state);
        *state = NULL;
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

static bool start_failed(struct http_error *err, const struct http_options *o, const char *why) {
    snprintf(err->text, sizeof err->text, "cannot listen on %s:%u: %s", o->host, o->port, why);
    return false;
}

static bool open_listener(struct http *h, struct http_error *err) {
    const struct http_options *o = &h->options;
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;
    const int on = 1;
    char port[8];
    snprintf(port, sizeof port, "%u", o->port);
    const int code = getaddrinfo(o->host, port, &hints, &list);
    err->bad_host = code != 0;
    if (code != 0)
        return start_failed(err, o, gai_strerror(code));
    h->listener = socket(list->ai_family, list->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool good = h->listener >= 0 &&
                      setsockopt(h->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                      bind(h->listener, list->ai_addr, list->ai_addrlen) == 0 &&
                      listen(h->listener, BACKLOG) == 0 &&
                      getsockname(h->listener, (struct sockaddr *)&bound, &len) == 0;
    const int why = errno;
    freeaddrinfo(list);
    if (!good)
        return start_failed(err, o, strerror(why));
    h->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                : ((struct sockaddr_in *)&bound)->sin_port);
    return true;
}

static bool start_daemon(struct http *h) {
    const struct http_options *o = &h->options;
    h->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, h->port, NULL, NULL, on_request,
        h, MHD_OPTION_LISTEN_SOCKET, h->listener, MHD_OPTION_THREAD_POOL_SIZE, (unsigned)o->threads,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)o->max_connections,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)POOL_BYTES, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)o->idle_timeout_s, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_END);
    return h->daemon != NULL;
}

bool http_start(const struct http_options *o, struct http **out, struct http_error *err) {
    *err = (struct http_error){0};
    struct http *h = calloc(1, sizeof *h);
    if (!h)
        return start_failed(err, o, "out of memory");
    h->options = *o;
    h->listener = h->watch.epoll = h->watch.wake = -1;
    pthread_mutex_init(&h->watch.mutex, NULL);
    bool good = open_listener(h, err);
    *out = h; /* handlers use it */
    if (good) {
        good = watch_start(h) && start_daemon(h); /* requests may come at once */
        if (!good)
            start_failed(err, o, "cannot start a thread");
    }
    if (!good) {
        http_stop(h);
        *out = NULL;
    }
    return good;
}

uint16_t http_port(const struct http *h) {
    return h->port;
}

void http_quiesce(struct http *h) {
    /* libmicrohttpd may use the socket until its threads end, so http_stop closes it */
    if (MHD_quiesce_daemon(h->daemon) != MHD_INVALID_SOCKET) {
        h->quiesced = true;
        shutdown(h->listener, SHUT_RD);
    }
}

void http_stop(struct http *h) {
    if (!h)
        return;
    if (h->daemon)
        MHD_stop_daemon(h->daemon); /* closes the listener, unless it was quiesced */
    if (h->listener >= 0 && (!h->daemon || h->quiesced))
        close(h->listener);
    watch_stop(h);
    pthread_mutex_destroy(&h->watch.mutex);
    free(h);
}
