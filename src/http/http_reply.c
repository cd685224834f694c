/* SPDX-License-Identifier: Apache-2.0 */
/* http_reply.c: responses of exchanges, and their suspension. A stream's pieces go from fill's
 * buffer to the socket; a whole body is sent from where it lies.
 */
#include "http/http_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#include "util/http_status.h"

enum { FILL_BYTES = 8 << 10, CHUNK_HEAD = 6 }; /* "2000\r\n" */

static struct exchange *exchange_of(struct http_exchange *c) {
    return (struct exchange *)c;
}

const char *http_header(const struct http_exchange *c, const char *name) {
    return head_field(&((const struct exchange *)c)->head, name);
}

/* ---- waiting --------------------------------------------------------------------------------- */

bool exchange_suspend(struct exchange *x) {
    pthread_mutex_lock(&x->mutex);
    const bool woken = x->woken;
    x->woken = false;
    x->waiting = !woken;
    pthread_mutex_unlock(&x->mutex);
    return !woken;
}

void http_wake(struct http_exchange *exchange) {
    struct exchange *x = exchange_of(exchange);
    pthread_mutex_lock(&x->mutex);
    const bool waiting = x->waiting;
    x->woken = !waiting;
    x->waiting = false;
    if (waiting) { /* it goes on once there is room for what it has to say */
        watch_stall(x->conn);
        (void)!conn_arm(x->conn, EPOLLOUT);
    }
    pthread_mutex_unlock(&x->mutex);
}

void http_last_bytes(struct http_exchange *exchange) {
    const struct exchange *x = exchange_of(exchange);
    watch_deadline(x->http, x->conn, x->http->options.write_timeout_s);
}

void http_break_off(struct http_exchange *exchange) {
    atomic_store(&exchange_of(exchange)->broken, true);
}

/* ---- heads ----------------------------------------------------------------------------------- */

static const char *reason(unsigned status) {
    static const struct {
        unsigned status;
        const char *text;
    } REASONS[] = {
        {HTTP_OK, "OK"},
        {HTTP_NO_CONTENT, "No Content"},
        {HTTP_BAD_REQUEST, "Bad Request"},
        {HTTP_UNAUTHORIZED, "Unauthorized"},
        {HTTP_FORBIDDEN, "Forbidden"},
        {HTTP_NOT_FOUND, "Not Found"},
        {HTTP_METHOD_NOT_ALLOWED, "Method Not Allowed"},
        {HTTP_CONFLICT, "Conflict"},
        {HTTP_CONTENT_TOO_LARGE, "Content Too Large"},
        {HTTP_URI_TOO_LONG, "URI Too Long"},
        {HTTP_TOO_MANY_REQUESTS, "Too Many Requests"},
        {HTTP_HEADERS_TOO_LARGE, "Request Header Fields Too Large"},
        {HTTP_CLIENT_CLOSED, "Client Closed Request"},
        {HTTP_SERVER_ERROR, "Internal Server Error"},
        {HTTP_NOT_IMPLEMENTED, "Not Implemented"},
        {HTTP_UNAVAILABLE, "Service Unavailable"},
        {HTTP_VERSION_UNKNOWN, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < sizeof REASONS / sizeof *REASONS; i++)
        if (REASONS[i].status == status)
            return REASONS[i].text;
    return "Unknown";
}

static bool put_date(struct text_buf *out) {
    static const char DAYS[][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char MONTHS[][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    const time_t now = time(NULL);
    struct tm t;
    return !gmtime_r(&now, &t) || text_printf(out, "Date: %s, %02d %s %d %02d:%02d:%02d GMT\r\n",
                                              DAYS[t.tm_wday], t.tm_mday, MONTHS[t.tm_mon],
                                              t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
}

/* The lines before those that frame the body. */
static bool put_head(struct exchange *x, const struct http_reply *r) {
    struct text_buf *out = &x->out;
    ASSERT(r->status >= 100 && r->status <= 599 && out->len == 0);
    bool good =
        text_printf(out, "HTTP/1.1 %u %s\r\n", r->status, reason(r->status)) && put_date(out);
    for (size_t i = 0; i < HTTP_HEADERS_MAX && r->headers[i].name && good; i++) {
        const char *name = r->headers[i].name, *value = r->headers[i].value;
        if (strcasecmp(name, "Connection") == 0)
            x->close |= strcasecmp(value, "close") == 0;
        else if (!strpbrk(value, "\r\n"))
            good = text_printf(out, "%s: %s\r\n", name, value);
    }
    return good && (!x->close || text_puts(out, "Connection: close\r\n"));
}

/* good: the head is complete. Otherwise the connection is cut. */
static enum http_step queue(struct exchange *x, const struct http_reply *r, bool good) {
    x->status = good ? r->status : 0;
    return HTTP_REPLIED;
}

static bool has_body(const struct exchange *x, unsigned status) {
    return status != HTTP_NO_CONTENT && strcmp(x->c.method, "HEAD") != 0;
}

static enum http_step reply_bytes(struct exchange *x, const struct http_reply *r, const char *body,
                                  size_t len) {
    http_last_bytes(&x->c);
    bool good = put_head(x, r);
    if (good && r->status != HTTP_NO_CONTENT)
        good = text_printf(&x->out, "Content-Length: %zu\r\n", len);
    if (has_body(x, r->status)) {
        x->data = body;
        x->data_len = len;
    }
    return queue(x, r, good && text_puts(&x->out, "\r\n"));
}

enum http_step http_reply_take(struct http_exchange *exchange, const struct http_reply *r,
                               char *body, size_t len) {
    struct exchange *x = exchange_of(exchange);
    ASSERT(!x->owned);
    x->owned = body;
    return reply_bytes(x, r, body, len);
}

enum http_step http_reply_static(struct http_exchange *exchange, const struct http_reply *r,
                                 const char *body, size_t len) {
    return reply_bytes(exchange_of(exchange), r, body, len);
}

enum http_step http_reply_stream(struct http_exchange *exchange, const struct http_reply *r,
                                 http_fill_fn *fn) {
    struct exchange *x = exchange_of(exchange);
    x->close |= !x->head.is_1_1; /* its end is the connection's */
    x->fill = has_body(x, r->status) ? fn : NULL;
    const bool good =
        put_head(x, r) && (!x->head.is_1_1 || text_puts(&x->out, "Transfer-Encoding: chunked\r\n"));
    return queue(x, r, good && text_puts(&x->out, "\r\n"));
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Puts the next piece into out, as a chunk. */
static enum send_step next_piece(struct exchange *x) {
    const bool chunked = x->head.is_1_1;
    ASSERT(x->out_at == x->out.len);
    x->out.len = x->out_at = 0;
    if (!text_reserve(&x->out, CHUNK_HEAD + FILL_BYTES + 2))
        return SEND_FAILED;
    char *piece = x->out.data + CHUNK_HEAD;
    const ssize_t n = x->fill(&x->c, piece, FILL_BYTES);
    if (n == HTTP_FILL_ABORT)
        return SEND_FAILED;
    if (n == HTTP_FILL_WAIT)
        return exchange_suspend(x) ? SEND_SUSPENDED : SEND_AGAIN;
    x->filled = n == HTTP_FILL_END;
    if (x->filled)
        return !chunked || text_puts(&x->out, "0\r\n\r\n") ? SEND_AGAIN : SEND_FAILED;
    ASSERT(n > 0 && n <= FILL_BYTES);
    char size[CHUNK_HEAD + 1];
    const int digits = chunked ? snprintf(size, sizeof size, "%zx\r\n", (size_t)n) : 0;
    ASSERT(digits >= 0 && digits <= CHUNK_HEAD);
    memcpy(piece - digits, size, (size_t)digits);
    x->out_at = (size_t)(CHUNK_HEAD - digits);
    x->out.len = CHUNK_HEAD + (size_t)n;
    return !chunked || text_append(&x->out, "\r\n", 2) ? SEND_AGAIN : SEND_FAILED;
}

enum send_step exchange_send(struct exchange *x) {
    const size_t out = x->out.len - x->out_at, data = x->data_len - x->data_at;
    if (out + data == 0)
        return x->fill && !x->filled ? next_piece(x) : SEND_DONE;
    struct iovec parts[2] = {{out ? x->out.data + x->out_at : NULL, out},
                             {data ? (char *)x->data + x->data_at : NULL, data}};
    const struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    const ssize_t n = sendmsg(x->conn->fd, &message, MSG_NOSIGNAL);
    if (n < 0)
        return errno == EINTR                            ? SEND_AGAIN
               : errno == EAGAIN || errno == EWOULDBLOCK ? SEND_WAIT
                                                         : SEND_FAILED;
    ASSERT((size_t)n <= out + data);
    const size_t of_out = min_size((size_t)n, out);
    x->out_at += of_out;
    x->data_at += (size_t)n - of_out;
    return SEND_AGAIN;
}
