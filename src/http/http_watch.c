/* SPDX-License-Identifier: Apache-2.0 */
/* http_watch.c: a thread that knows all connections: it notices clients that leave while their
 * exchange is suspended, and cuts connections whose deadline has passed.
 *
 *     idle --> headers --> body --request complete--> answering --all given--> last bytes --> idle
 *      idle_   head_       idle_                       none, gone(); a client    write_
 *      timeout timeout     timeout                     that reads nothing:       timeout
 *                                                      write_timeout
 *
 * A connection ends here before its socket is closed, and the mutex orders that with this thread's
 * accesses. Events name connections by a number that is never reused, so that a late event cannot
 * hit the next owner of the same socket.
 */
#include "http/http_internal.h"
#include "http/http_peer.h"

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

/* ---- arming ---------------------------------------------------------------------------------- */

bool conn_arm(struct conn *c, uint32_t events) {
    struct epoll_event event = {.events = events | EPOLLONESHOT, .data.ptr = c};
    pthread_mutex_lock(&c->armed);
    const bool good = epoll_ctl(c->http->epoll, EPOLL_CTL_MOD, c->fd, &event) == 0;
    pthread_mutex_unlock(&c->armed);
    return good;
}

void listener_arm(struct http *h, int how) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.ptr = h};
    if (!atomic_load(&h->quiesced))
        (void)!epoll_ctl(h->epoll, how, h->listener, &event);
}

void watch_listen(struct http *h) {
    pthread_mutex_lock(&h->watch.mutex);
    const bool full = h->watch.full;
    h->watch.full = false;
    pthread_mutex_unlock(&h->watch.mutex);
    if (full)
        listener_arm(h, EPOLL_CTL_MOD);
}

/* ---- clients that leave, deadlines ----------------------------------------------------------- */

static struct conn *find_conn(struct watch *w, uint64_t id) {
    for (struct conn *c = w->conns; c; c = c->next)
        if (c->id == id)
            return c;
    return NULL;
}

/* The client has closed its side: it waits for its answer, or it is gone. Only sending tells: a
 * client that is gone then resets the connection. Every client of HTTP/1.1 has to understand an
 * interim response (RFC 9110 15.2); a stream that has begun will send something anyway. */
static void probe(struct exchange *x) {
    static const char INTERIM[] = "HTTP/1.1 100 Continue\r\n\r\n";
    pthread_mutex_lock(&x->mutex);
    if (x->waiting) { /* nobody else uses the socket */
        if (x->status == 0 && x->head.is_1_1)
            (void)!send(x->conn->fd, INTERIM, sizeof INTERIM - 1, MSG_NOSIGNAL);
        x->half = false;
    }
    pthread_mutex_unlock(&x->mutex);
}

static void probe_half(struct watch *w) {
    pthread_mutex_lock(&w->mutex);
    for (struct conn *c = w->conns; c; c = c->next)
        if (c->exchange && c->exchange->half)
            probe(c->exchange);
    pthread_mutex_unlock(&w->mutex);
}

static void client_left(struct http *h, uint64_t id, bool half) {
    pthread_mutex_lock(&h->watch.mutex);
    struct conn *c = find_conn(&h->watch, id);
    if (c && c->exchange && half) {
        c->exchange->half = true;
        probe(c->exchange);
    } else if (c && c->exchange) {
        c->exchange->gone = true;
        if (c->exchange->c.user)
            h->options.handler.gone(h->options.handler.user, &c->exchange->c);
    }
    pthread_mutex_unlock(&h->watch.mutex);
}

static bool is_due(const struct conn *c, int64_t now) {
    const int64_t stalled_s = atomic_load(&c->stalled_s);
    return (c->deadline_s && now > c->deadline_s) || (stalled_s && now > stalled_s) ||
           (c->exchange && atomic_load(&c->exchange->broken));
}

/* Shuts both directions down: whoever uses the connection finds it closed. */
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
            client_left(h, events[i].data.u64, !(events[i].events & (EPOLLHUP | EPOLLERR)));
        }
        probe_half(w);
        h->options.handler.tick(h->options.handler.user);
        if (now_s() != rounds) {
            rounds = now_s();
            cut_late(w);
            watch_listen(h);
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

/* Under the mutex: of those whose request has not come whole, that which has waited longest. NULL:
 * there is none. Idle and slow clients, however many, so keep no other out. */
static struct conn *longest_waiting(const struct watch *w) {
    struct conn *found = NULL;
    for (struct conn *c = w->conns; c; c = c->next)
        if (!c->exchange && !c->cut && (!found || c->since < found->since))
            found = c;
    return found;
}

bool watch_has_room(struct http *h) {
    pthread_mutex_lock(&h->watch.mutex);
    const uint32_t n = h->watch.count, most = h->options.max_connections;
    const bool room =
        n < most || (n < most + SPARE_CONNECTIONS && longest_waiting(&h->watch) != NULL);
    h->watch.full |= !room;
    pthread_mutex_unlock(&h->watch.mutex);
    return room;
}

void watch_full(struct http *h) {
    pthread_mutex_lock(&h->watch.mutex);
    h->watch.full = true;
    pthread_mutex_unlock(&h->watch.mutex);
}

static bool is_loopback(const struct in6_addr *a) {
    return IN6_IS_ADDR_LOOPBACK(a) || (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127);
}

/* One client must not take all connections. */
static bool address_has_room(const struct http *h, const struct in6_addr *a, bool connected) {
    uint32_t most = h->options.max_address_connections, n = 0;
    if (!most && connected && is_loopback(a)) /* what a proxy says does not lift the limit */
        return true;
    if (!most)
        most = max_u32(h->options.max_connections / 4, 1);
    for (const struct conn *c = h->watch.conns; c; c = c->next)
        n += c->counts && peer_same_client(&c->address, a) ? 1 : 0;
    return n < most;
}

bool watch_client(struct http *h, struct conn *c, const struct in6_addr *client) {
    pthread_mutex_lock(&h->watch.mutex);
    ASSERT(c->proxy && !c->counts);
    c->counts = address_has_room(h, client, IN6_ARE_ADDR_EQUAL(client, &c->peer));
    c->address = *client;
    const bool good = c->counts;
    pthread_mutex_unlock(&h->watch.mutex);
    return good;
}

bool watch_open(struct http *h, struct conn *c) {
    const struct http_options *o = &h->options;
    c->deadline_s = now_s() + min_u32(o->idle_timeout_s, o->head_timeout_s);
    pthread_mutex_lock(&h->watch.mutex);
    const bool good = c->proxy || address_has_room(h, &c->peer, true);
    c->counts = !c->proxy;
    struct conn *other =
        good && h->watch.count >= o->max_connections ? longest_waiting(&h->watch) : NULL;
    if (other) {
        other->cut = true;
        shutdown(other->fd, SHUT_RDWR);
    }
    if (good) {
        c->id = ++h->watch.last_id;
        c->next = h->watch.conns;
        if (c->next)
            c->next->prev = c;
        h->watch.conns = c;
        c->since = ++h->watch.last_since;
        h->watch.count++;
    }
    pthread_mutex_unlock(&h->watch.mutex);
    return good;
}

void watch_close(struct http *h, struct conn *c) {
    pthread_mutex_lock(&h->watch.mutex);
    *(c->prev ? &c->prev->next : &h->watch.conns) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    ASSERT(h->watch.count > 0);
    h->watch.count--;
    pthread_mutex_unlock(&h->watch.mutex);
}

void watch_deadline(struct http *h, struct conn *c, uint32_t seconds) {
    pthread_mutex_lock(&h->watch.mutex);
    c->deadline_s = seconds ? now_s() + seconds : 0;
    pthread_mutex_unlock(&h->watch.mutex);
}

void watch_stall(struct conn *c) {
    atomic_store(&c->stalled_s, now_s() + c->http->options.write_timeout_s);
}

void watch_begin(struct http *h, struct conn *c, struct exchange *exchange) {
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
    struct epoll_event none = {0};
    pthread_mutex_lock(&h->watch.mutex);
    if (c->exchange)
        (void)!epoll_ctl(h->watch.epoll, EPOLL_CTL_DEL, c->fd, &none);
    c->exchange = NULL;
    c->counts = !c->proxy;
    c->since = ++h->watch.last_since;
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
