/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of http/ share.
 *
 * All HTTP threads wait on one epoll. Each socket in it reports once (EPOLLONESHOT) and is armed
 * again by the thread that took the report, so one thread at a time runs a connection. A suspended
 * exchange's socket is not armed; http_wake arms it. Whoever arms a socket no longer touches the
 * connection, but for the mutex that it arms it under.
 */
#ifndef HTTP_HTTP_INTERNAL_H
#define HTTP_HTTP_INTERNAL_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>

#include "http/http.h"
#include "http/http_head.h"

enum conn_state { CONN_HEAD, CONN_BODY, CONN_HANDLE, CONN_SEND, CONN_LINGER };

struct conn {
    /* for the watcher, under watch.mutex */
    struct conn *prev, *next;
    int fd;
    uint64_t id;               /* never used again */
    uint64_t since;            /* order in which connections began to wait for a request */
    struct in6_addr peer;      /* who has connected; IPv4 mapped */
    struct in6_addr address;   /* of the client: for which it counts, if it does */
    bool counts;               /* false: a trusted proxy's, between requests */
    struct exchange *exchange; /* being answered; NULL: none */
    int64_t deadline_s;        /* when it is cut; 0: never */
    bool cut;
    /* when it is cut if the client has read nothing until then; 0: never */
    atomic_int_least64_t stalled_s;
    /* Held while the socket is armed and taken by the thread that gets the report, before it uses
     * the fields below: the kernel orders the two, but C knows nothing of that. */
    pthread_mutex_t armed;
    /* of the thread that runs it */
    struct http *http;
    bool proxy; /* the peer is a trusted one; never changed */
    enum conn_state state;
    struct exchange *current; /* from the end of the headers on */
    char *in;                 /* received, from in_at to in_len; NULL: nothing */
    size_t in_at, in_len;
    struct head_scan scan;
    bool head_begun, skipped_line;
    size_t linger_left;
};

struct watch {
    pthread_mutex_t mutex;
    pthread_t thread;
    bool runs;
    int epoll, wake; /* wake: an eventfd that ends the thread */
    uint64_t last_id, last_since;
    struct conn *conns;
    uint32_t count;
    bool full; /* the listener is not armed until a connection ends */
};

struct http {
    struct http_options options;
    int listener, epoll, stop; /* stop: an eventfd that ends the threads */
    atomic_bool quiesced;
    uint16_t port;
    bool bound_path; /* the listener has a path, which is removed at the end */
    pthread_t *threads;
    uint32_t n_threads;
    struct watch watch;
};

struct exchange {
    struct http_exchange c; /* first: one is cast to the other */
    struct http *http;
    struct conn *conn;
    struct http_head head;
    char *head_text;
    struct body_frame frame;
    struct text_buf body;
    uint64_t body_limit;
    bool handled;
    bool close;         /* the connection, after this */
    atomic_bool broken; /* to be cut */
    /* under watch.mutex, as is c.user */
    bool gone, half; /* half: the client has closed its side and was not probed since */
    unsigned status;
    /* the response: out, then data */
    struct text_buf out;
    size_t out_at;
    const char *data;
    size_t data_len, data_at;
    char *owned; /* freed with it */
    http_fill_fn *fill;
    bool filled; /* fill has ended */
    /* under the mutex */
    pthread_mutex_t mutex;
    bool waiting, woken; /* suspended; woken before it was */
};

/* Connections beyond max_connections, each while another one is being cut for it. */
enum { SPARE_CONNECTIONS = 64 };

/* http_conn.c: runs the connection until it must wait or ends. */
void conn_run(struct conn *c);
void conn_close(struct conn *c);

/* http_reply.c. True: the exchange is suspended until http_wake; touch it no more. */
bool exchange_suspend(struct exchange *x);
enum send_step { SEND_AGAIN, SEND_WAIT, SEND_SUSPENDED, SEND_DONE, SEND_FAILED };
enum send_step exchange_send(struct exchange *x);

/* http_watch.c */
/* The next report on a connection's or the listener's socket; how: EPOLL_CTL_ADD or _MOD. */
bool conn_arm(struct conn *c, uint32_t events);
void listener_arm(struct http *h, int how);
bool watch_start(struct http *h);
void watch_stop(struct http *h);
/* A connection begins and ends. False: there are too many from this address. */
bool watch_open(struct http *h, struct conn *conn);
void watch_close(struct http *h, struct conn *conn);
/* Through a trusted proxy: a request of this client begins; it ends at watch_end. False: the client
 * has too many. */
bool watch_client(struct http *h, struct conn *conn, const struct in6_addr *client);
/* Whether there may be one more. False: the listener is armed when there may. */
bool watch_has_room(struct http *h);
void watch_full(struct http *h);
/* Arms the listener again if it was full. */
void watch_listen(struct http *h);
/* The connection must reach another state within so many seconds. */
void watch_deadline(struct http *h, struct conn *conn, uint32_t seconds);
/* From now on the client must read something within write_timeout_s. Takes no lock. */
void watch_stall(struct conn *conn);
/* From now until watch_end, the handler is told if the client goes away. */
void watch_begin(struct http *h, struct conn *conn, struct exchange *exchange);
void watch_end(struct http *h, struct conn *conn);

#endif
