/* SPDX-License-Identifier: Apache-2.0 */
/* http.h: an HTTP/1.1 server, as exchanges whose handler may wait (http.c, http_conn.c,
 * http_reply.c, http_watch.c). Which bytes are a request: http_head.h.
 *
 *     HTTP threads                       any thread          the watcher
 *       whole body received: handle
 *         HTTP_WAIT: suspended       <--- http_wake
 *       handle again ... http_reply_*                         client gone: gone()
 *       or http_reply_stream: fill, fill ...                  too slow, too long: cut
 *       done
 *
 * The address that limits and logs use is the peer's. If that is a trusted proxy, it is that of the
 * client that the proxy names, for as long as a request of this client takes (http_peer.h).
 *
 * Invariants
 *   HTTP-1  handle, fill and done of one exchange never run at the same time as each other. gone
 *           may, on the watcher's thread, between http_attach and done.
 *   HTTP-2  http_wake wakes an exchange that waits, even if it came just before the wait. A handler
 *           checks what it waits for in every handle and fill.
 *   HTTP-3  done is the last callback of an exchange; http_wake is not allowed once it has
 *           returned.
 *   HTTP-4  A client that closes its side is noticed, whether the connection is suspended or not.
 */
#ifndef HTTP_HTTP_H
#define HTTP_HTTP_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "util/account.h"
#include "util/util.h"

enum { HTTP_ADDRESS_MAX = INET6_ADDRSTRLEN, HTTP_ID_MAX = 64, HTTP_WHY_MAX = 200 };
struct http;
struct http_exchange {
    char client[HTTP_ADDRESS_MAX]; /* the client's address */
    const char *method, *path;
    const char *query; /* what follows '?', as it was sent; "": nothing */
    const char *body;  /* [body_len] and a NUL; until the reply, or http_drop_body */
    size_t body_len;
    void *user;             /* http_attach; NULL at first */
    char id[HTTP_ID_MAX];   /* the handler's, which names the request in its reply; "" at first */
    char why[HTTP_WHY_MAX]; /* likewise, why it was refused */
    /* what it owns, its body first; ends with the exchange unless others hold it, too. NULL: its
       headers are not complete */
    struct charge *charge;
};

enum http_step { HTTP_REPLIED, HTTP_WAIT };

struct http_handler {
    void *user;
    /* There is no memory to receive requests. Whether one with these headers, which has no body, is
     * answered all the same. */
    bool (*probe)(void *user, const struct http_exchange *exchange);
    /* After the headers: a new charge for what the exchange will own. NULL: out of memory. */
    struct charge *(*charge)(void *user, const struct http_exchange *exchange);
    /* Then: the longest body that is accepted. If the headers announce a longer one,
     * handle is called without a body, to refuse. The connection then closes. */
    uint64_t (*body_limit)(void *user, const struct http_exchange *exchange);
    /* After the whole body, and after each http_wake until it has replied. */
    enum http_step (*handle)(void *user, struct http_exchange *exchange);
    /* Instead of handle: HTTP itself refuses the request. Replies, and closes the connection. */
    void (*refuse)(void *user, struct http_exchange *exchange, unsigned status, const char *why);
    /* The client is gone; nobody reads what is sent from now on. One that has only closed its own
     * side still gets its answer. */
    void (*gone)(void *user, struct http_exchange *exchange);
    /* The exchange is over: sent, aborted, or never handled (user is NULL then). status: of the
     * reply; 0: there was none. */
    void (*done)(void *user, struct http_exchange *exchange, unsigned status);
    /* A few times per second, on the watcher's thread. */
    void (*tick)(void *user);
};

/* max_connections of a listener beside another one, whose open files have room for it. */
enum { HTTP_SMALL_LISTENER = 32 };

/* An address, or a block of them. */
struct http_net {
    struct in6_addr first; /* IPv4 mapped */
    unsigned bits;         /* that the addresses have in common */
};
/* The n bytes are "ADDRESS" or "ADDRESS/BITS". False: they are not, or other bits are set, too. */
bool http_net_read(const char *text, size_t n, struct http_net *out);

struct http_options {
    const char *host; /* or "unix:/path" of a socket, without a port */
    uint16_t port;
    uint32_t threads, max_connections;
    /* of one client address, each request through a trusted proxy counted as one; 0: a quarter of
       max_connections, and any number from loopback */
    uint32_t max_address_connections;
    const struct http_net *trusted; /* [n_trusted] proxies; borrowed */
    size_t n_trusted;
    uint64_t max_body_bytes;
    uint32_t idle_timeout_s;  /* between requests, and until a request is complete */
    uint32_t head_timeout_s;  /* until the headers of a request are complete */
    uint32_t write_timeout_s; /* until a client reads something, or the rest */
    struct charge *buffers;   /* what connections receive is charged to it; NULL: to nobody */
    struct http_handler handler;
};
struct http_error {
    bool bad_host; /* the host name cannot be resolved, or the path not be used */
    bool too_many; /* max_connections need more open files than the process may have */
    char text[256];
};
/* False with *err. */
bool http_start(const struct http_options *options, struct http **out, struct http_error *err);
uint16_t http_port(const struct http *h);
uint32_t http_connections(struct http *h);
void http_quiesce(struct http *h); /* no new connections */
/* Ends the threads. No exchange may be waiting any more. */
void http_stop(struct http *h);

/* The next "name=value" of a query, decoded as forms are: "%41" is "A", "+" a blank. *at: where to
 * begin, first exchange->query; it is moved. name, value: strings. */
enum { HTTP_PARAM_MAX = 1024 };
enum http_param {
    HTTP_PARAM_END,
    HTTP_PARAM_NEXT,
    HTTP_PARAM_BAD /* an invalid percent code, a NUL, or HTTP_PARAM_MAX bytes and more */
};
enum http_param http_query_next(const char **at, char name[HTTP_PARAM_MAX],
                                char value[HTTP_PARAM_MAX]);
/* Frees the body. In handle, or by the thread that is going to wake the suspended exchange. */
void http_drop_body(struct http_exchange *exchange);
const char *http_header(const struct http_exchange *exchange, const char *name); /* NULL: none */
/* In handle: sets the exchange's user; from now on `gone` is called if the client goes away. False:
 * it is gone already. */
bool http_attach(struct http_exchange *exchange, void *user);

/* ---- responses ------------------------------------------------------------------------------- */

enum { HTTP_HEADERS_MAX = 12 };
struct http_reply {
    unsigned status;
    struct {
        const char *name, *value;
    } headers[HTTP_HEADERS_MAX]; /* up to the first NULL name */
};
static inline void http_reply_header(struct http_reply *r, const char *name, const char *value) {
    size_t i = 0;
    while (r->headers[i].name)
        i++;
    ASSERT(i + 1 < HTTP_HEADERS_MAX);
    r->headers[i].name = name;
    r->headers[i].value = value;
}
/* In handle, once: the whole response. Takes body (malloc), also if it fails. */
enum http_step http_reply_take(struct http_exchange *exchange, const struct http_reply *reply,
                               char *body, size_t len);
/* The same with a body that outlives the server. */
enum http_step http_reply_static(struct http_exchange *exchange, const struct http_reply *reply,
                                 const char *body, size_t len);
/* Writes at most max > 0 bytes to out. Returns their number, or one of these. */
enum { HTTP_FILL_WAIT = 0, HTTP_FILL_END = -1, HTTP_FILL_ABORT = -2 };
typedef ssize_t http_fill_fn(struct http_exchange *exchange, char *out, size_t max);
/* In handle, once: headers now, the body as fill writes it. */
enum http_step http_reply_stream(struct http_exchange *exchange, const struct http_reply *reply,
                                 http_fill_fn *fill);
/* From any thread: what the exchange waits for may be there. */
void http_wake(struct http_exchange *exchange);
/* From any thread: the connection is cut within seconds, whatever the client does. */
void http_break_off(struct http_exchange *exchange);
/* The response is complete; the client has write_timeout_s to read the rest. */
void http_last_bytes(struct http_exchange *exchange);

#endif
