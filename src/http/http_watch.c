/* SPDX-License-Identifier: Apache-2.0 */
/* http_watch.c: a thread that watches what libmicrohttpd does not. A suspended connection is in
 * none of its poll sets, and its timeout starts again with each byte.
 *
 *     between requests --request complete--> answering --all given--> last bytes --> between ...
 *      deadline: idle_timeout                 no deadline, gone()      deadline: write_timeout
 *
 * libmicrohttpd reports the end of a connection before it closes the socket, and the mutex orders
 * that report with this thread's accesses. Events name connections by a number that is never
 * reused, so that a late event cannot hit the next owner of the same socket.
 */
#include "http/http_internal.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "util/util.h"

enum { ROUND_MS = 200, EVENTS = 64 };

static int64_t now_s(void) {
    return (int64_t)clock_seconds();
}

static struct conn *find_conn(struct watch *w, uint64_t id) {
    for (struct conn *c = w->conns; c; c = c->next)
        if (c->id == id)
            return c;
    return NULL;
}

static void tell_gone(struct http *h, uint64_t id) {
    pthread_mutex_lock(&h->watch.mutex);
    struct conn *c = find_conn(&h->watch, id);
    if (c && c->exchange) {
        c->exchange->gone = true;
        if (c->exchange->c.user)
            h->options.handler.gone(h->options.handler.user, &c->exchange->c);
    }
    pthread_mutex_unlock(&h->watch.mutex);
}

static bool is_due(const struct conn *c, int64_t now) {
    return (c->deadline_s && now > c->deadline_s) ||
           (c->exchange && atomic_load(&c->exchange->broken));
}

/* Shuts both directions down: libmicrohttpd finds the connection closed. */
static void cut_late(struct watch *w) {
    const int64_t now = now_s();
    pthread_mutex_lock(&w->mutex);
    for (struct conn *c = w->conns; c; c = c->next)
        if (!c->cut && is_due(c, now)) {
            c->cut = true;
            shutdown(c->fd, SHUT_RDWR);
        }
    pthread_mutex_unlock(&w->mutex);
}

static void *watch_thread(void *user) {
    struct http *h = user;
    struct watch *w = &h->watch;
    int64_t rounds = now_s();
    for (;;) {
        struct epoll_event events[EVENTS];
        const int n = epoll_wait(w->epoll, events, EVENTS, ROUND_MS);
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == 0)
                return NULL;
            tell_gone(h, events[i].data.u64);
        }
        h->options.handler.tick(h->options.handler.user);
        if (now_s() != rounds) {
            rounds = now_s();
            cut_late(w);
        }
    }
}

bool watch_start(struct http *h) {
    struct watch *w = &h->watch;
    struct epoll_event stop = {.events = EPOLLIN, .data.u64 = 0};
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->wake = eventfd(0, EFD_CLOEXEC);
    w->runs = w->epoll >= 0 && w->wake >= 0 &&
              epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->wake, &stop) == 0 &&
              pthread_create(&w->thread, NULL, watch_thread, h) == 0;
    return w->runs;
}

void watch_stop(struct http *h) {
    struct watch *w = &h->watch;
    const uint64_t one = 1;
    if (w->runs && write(w->wake, &one, sizeof one) == (ssize_t)sizeof one)
        pthread_join(w->thread, NULL);
    w->runs = false;
    if (w->epoll >= 0)
        close(w->epoll);
    if (w->wake >= 0)
        close(w->wake);
}

struct conn *watch_open(struct http *h, int fd) {
    struct conn *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->fd = fd;
    c->deadline_s = now_s() + h->options.idle_timeout_s;
    pthread_mutex_lock(&h->watch.mutex);
    c->id = ++h->watch.last_id;
    c->next = h->watch.conns;
    if (c->next)
        c->next->prev = c;
    h->watch.conns = c;
    h->watch.count++;
    pthread_mutex_unlock(&h->watch.mutex);
    return c;
}

void watch_close(struct http *h, struct conn *c) {
    if (!c)
        return;
    pthread_mutex_lock(&h->watch.mutex);
    *(c->prev ? &c->prev->next : &h->watch.conns) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    ASSERT(h->watch.count > 0);
    h->watch.count--;
    pthread_mutex_unlock(&h->watch.mutex);
    free(c);
}

void watch_deadline(struct http *h, struct conn *c, uint32_t seconds) {
    if (!c)
        return;
    pthread_mutex_lock(&h->watch.mutex);
    c->deadline_s = seconds ? now_s() + seconds : 0;
    pthread_mutex_unlock(&h->watch.mutex);
}

void watch_begin(struct http *h, struct conn *c, struct exchange *exchange) {
    if (!c)
        return;
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.u64 = c->id};
    pthread_mutex_lock(&h->watch.mutex);
    ASSERT(!c->exchange); /* one at a time */
    c->exchange = exchange;
    c->deadline_s = 0;
    /* reports at once if the client has closed its side already */
    (void)!epoll_ctl(h->watch.epoll, EPOLL_CTL_ADD, c->fd, &event);
    pthread_mutex_unlock(&h->watch.mutex);
}

void watch_end(struct http *h, struct conn *c) {
    if (!c)
        return;
    struct epoll_event none = {0};
    pthread_mutex_lock(&h->watch.mutex);
    if (c->exchange)
        (void)!epoll_ctl(h->watch.epoll, EPOLL_CTL_DEL, c->fd, &none);
    c->exchange = NULL;
    c->deadline_s = now_s() + h->options.idle_timeout_s;
    pthread_mutex_unlock(&h->watch.mutex);
}

bool http_attach(struct http_exchange *exchange, void *user) {
    struct exchange *c = (struct exchange *)exchange;
    pthread_mutex_lock(&c->http->watch.mutex);
    c->c.user = user;
    const bool here = !c->gone;
    pthread_mutex_unlock(&c->http->watch.mutex);
    return here;
}

uint32_t http_connections(struct http *h) {
    pthread_mutex_lock(&h->watch.mutex);
    const uint32_t n = h->watch.count;
    pthread_mutex_unlock(&h->watch.mutex);
    return n;
}
