/* SPDX-License-Identifier: Apache-2.0 */
/* What http.c and http_watch.c share. */
#ifndef HTTP_HTTP_INTERNAL_H
#define HTTP_HTTP_INTERNAL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "http/http.h"

/* One connection, for the watcher; its list and fields are under watch.mutex. */
struct conn {
    struct conn *prev, *next;
    int fd;
    uint64_t id;               /* never used again */
    struct exchange *exchange; /* being answered; NULL: none */
    int64_t deadline_s;        /* when it is cut; 0: never */
    bool cut;
};

struct watch {
    pthread_mutex_t mutex;
    pthread_t thread;
    bool runs;
    int epoll, wake; /* wake: an eventfd that ends the thread */
    uint64_t last_id;
    struct conn *conns;
    uint32_t count;
};

struct http {
    struct http_options options;
    struct MHD_Daemon *daemon;
    int listener; /* closed by the daemon, by us after http_quiesce */
    bool quiesced;
    uint16_t port;
    struct watch watch;
};

struct exchange {
    struct http_exchange c; /* first: one is cast to the other */
    struct http *http;
    struct MHD_Connection *connection;
    struct conn *conn;
    struct text_buf body;
    uint64_t body_limit;
    bool too_large, handled;
    atomic_bool broken; /* to be cut */
    bool gone;          /* under watch.mutex, as is c.user */
    unsigned status;
    http_fill_fn *fill;
    /* under the mutex */
    pthread_mutex_t mutex;
    bool waiting, woken; /* suspended; woken before it was */
};

bool watch_start(struct http *h);
void watch_stop(struct http *h);
/* A connection begins and ends; on libmicrohttpd's threads. */
struct conn *watch_open(struct http *h, int fd);
void watch_close(struct http *h, struct conn *conn);
/* The connection must reach another state within so many seconds. */
void watch_deadline(struct http *h, struct conn *conn, uint32_t seconds);
/* From now until watch_end, the handler is told if the client goes away. */
void watch_begin(struct http *h, struct conn *conn, struct exchange *exchange);
void watch_end(struct http *h, struct conn *conn);

#endif
