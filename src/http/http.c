/* SPDX-License-Identifier: Apache-2.0 */
/* http.c: the listener and the threads (http_internal.h).
 *
 * The listener, too, reports to one thread at a time. While max_connections are being answered it
 * is not armed: further clients wait in the system's queue.
 */
#include "http/http_internal.h"
#include "http/http_peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 512, ACCEPTS = 32 };

/* ---- connections ----------------------------------------------------------------------------- */

/* Notice peers that vanish without a word: within two minutes if nothing is sent. */
static void set_socket(int fd, uint32_t write_timeout_s) {
    const int on = 1, idle_s = 60, interval_s = 15, probes = 4;
    const unsigned timeout_ms = write_timeout_s * 1000;
    (void)!setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)!setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)!setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    (void)!setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    (void)!setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)!setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
}

static struct in6_addr address_of(const struct sockaddr_storage *from) {
    struct in6_addr out = {.s6_addr = {[10] = 0xff, [11] = 0xff}};
    if (from->ss_family == AF_UNIX)
        return in6addr_loopback;
    if (from->ss_family == AF_INET6)
        return ((const struct sockaddr_in6 *)from)->sin6_addr;
    memcpy(out.s6_addr + 12, &((const struct sockaddr_in *)from)->sin_addr, 4);
    return out;
}

/* Takes fd. */
static void open_conn(struct http *h, int fd, const struct sockaddr_storage *from) {
    struct conn *c = calloc(1, sizeof *c);
    if (!c) {
        close(fd);
        return;
    }
    c->http = h;
    c->fd = fd;
    c->peer = c->address = address_of(from);
    c->proxy = peer_is_trusted(&h->options, &c->peer);
    set_socket(fd, h->options.write_timeout_s);
    pthread_mutex_init(&c->armed, NULL);
    if (!watch_open(h, c)) {
        close(fd);
        pthread_mutex_destroy(&c->armed);
        free(c);
        return;
    }
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.ptr = c};
    if (epoll_ctl(h->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        conn_close(c);
}

static void accept_some(struct http *h) {
    for (int i = 0; i < ACCEPTS; i++) {
        struct sockaddr_storage from = {0};
        socklen_t len = sizeof from;
        if (!watch_has_room(h))
            return;
        const int fd =
            accept4(h->listener, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            open_conn(h, fd, &from);
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            break;
        else if (errno != EINTR && errno != ECONNABORTED) {
            watch_full(h); /* out of files or memory: the watcher tries again */
            return;
        }
    }
    listener_arm(h, EPOLL_CTL_MOD);
}

static void *http_thread(void *user) {
    struct http *h = user;
    for (;;) {
        struct epoll_event event; /* one: other threads take the others */
        if (epoll_wait(h->epoll, &event, 1, -1) < 1)
            continue;
        if (!event.data.ptr)
            return NULL;
        if (event.data.ptr == h)
            accept_some(h);
        else
            conn_run(event.data.ptr);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

/* What to do about an errno. */
static const char *hint(int error) {
    return error == EADDRINUSE      ? ": another program has this port: choose another one"
           : error == EACCES        ? ": ports below 1024 need privileges: choose another one"
           : error == EADDRNOTAVAIL ? ": it is not an address of this machine"
                                    : "";
}

static bool start_failed(struct http_error *err, const struct http_options *o, const char *why,
                         int error) {
    snprintf(err->text, sizeof err->text, "cannot listen on %s:%u: %s%s", o->host, o->port, why,
             hint(error));
    return false;
}

/* The path of a Unix socket; NULL: an address. */
static const char *socket_path(const struct http_options *o) {
    static const char MARK[] = "unix:";
    const size_t n = sizeof MARK - 1;
    return strncmp(o->host, MARK, n) == 0 ? o->host + n : NULL;
}

/* Removes a socket that nobody listens on any more. False: something else has the path. */
static bool clear_path(const struct sockaddr_un *at) {
    struct stat found;
    if (lstat(at->sun_path, &found) != 0)
        return errno == ENOENT;
    errno = EADDRINUSE;
    if (!S_ISSOCK(found.st_mode))
        return false;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool stale = fd >= 0 && connect(fd, (const struct sockaddr *)at, sizeof *at) != 0 &&
                       errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    errno = EADDRINUSE;
    return stale && unlink(at->sun_path) == 0;
}

static bool open_socket(struct http *h, const char *path, struct http_error *err) {
    const struct http_options *o = &h->options;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    err->bad_host = true;
    if (!*path || strlen(path) >= sizeof at.sun_path) {
        snprintf(err->text, sizeof err->text, "a socket's path has 1 to %zu bytes",
                 sizeof at.sun_path - 1);
        return false;
    }
    memcpy(at.sun_path, path, strlen(path));
    h->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool good = h->listener >= 0 && clear_path(&at);
    if (good) {
        h->bound_path = bind(h->listener, (struct sockaddr *)&at, sizeof at) == 0;
        /* nobody connects before listen */
        good = h->bound_path && chmod(path, 0660) == 0 && listen(h->listener, BACKLOG) == 0;
    }
    if (good) {
        err->bad_host = false;
        return true;
    }
    snprintf(err->text, sizeof err->text, "cannot listen on %s: %s", o->host, strerror(errno));
    return false;
}

static bool open_listener(struct http *h, struct http_error *err) {
    const struct http_options *o = &h->options;
    if (socket_path(o))
        return open_socket(h, socket_path(o), err);
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
        return start_failed(err, o, gai_strerror(code), 0);
    h->listener = socket(list->ai_family, list->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool good = h->listener >= 0 &&
                      setsockopt(h->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                      bind(h->listener, list->ai_addr, list->ai_addrlen) == 0 &&
                      listen(h->listener, BACKLOG) == 0 &&
                      getsockname(h->listener, (struct sockaddr *)&bound, &len) == 0;
    const int why = errno;
    freeaddrinfo(list);
    if (!good)
        return start_failed(err, o, strerror(why), why);
    h->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                : ((struct sockaddr_in *)&bound)->sin_port);
    return true;
}

/* Raises the limit of open files to what max_connections may need. */
static bool raise_files(const struct http_options *o, struct http_error *err) {
    /* the log, the model, epolls ...; and a small listener, which asks for no more */
    enum { OTHERS = 64 + SPARE_CONNECTIONS + HTTP_SMALL_LISTENER + SPARE_CONNECTIONS };
    const rlim_t need = (rlim_t)o->max_connections + OTHERS;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= need)
        return true;
    const rlim_t most = files.rlim_max;
    files.rlim_cur = need;
    if (need <= most && setrlimit(RLIMIT_NOFILE, &files) == 0)
        return true;
    err->too_many = true;
    snprintf(err->text, sizeof err->text,
             "%u connections need %llu open files, but the limit is %llu: raise it (ulimit -n, "
             "LimitNOFILE=) or allow fewer connections",
             o->max_connections, (unsigned long long)need, (unsigned long long)most);
    return false;
}

static bool start_threads(struct http *h) {
    struct epoll_event stop = {.events = EPOLLIN, .data.ptr = NULL};
    h->epoll = epoll_create1(EPOLL_CLOEXEC);
    h->stop = eventfd(0, EFD_CLOEXEC);
    h->threads = calloc(h->options.threads, sizeof *h->threads);
    if (h->epoll < 0 || h->stop < 0 || !h->threads ||
        epoll_ctl(h->epoll, EPOLL_CTL_ADD, h->stop, &stop) != 0)
        return false;
    for (; h->n_threads < h->options.threads; h->n_threads++)
        if (pthread_create(&h->threads[h->n_threads], NULL, http_thread, h) != 0)
            return false;
    listener_arm(h, EPOLL_CTL_ADD);
    return true;
}

bool http_start(const struct http_options *o, struct http **out, struct http_error *err) {
    *err = (struct http_error){0};
    struct http *h = calloc(1, sizeof *h);
    if (!h)
        return start_failed(err, o, "out of memory", 0);
    h->options = *o;
    ASSERT(o->threads > 0 && o->max_connections > 0);
    h->listener = h->epoll = h->stop = h->watch.epoll = h->watch.wake = -1;
    pthread_mutex_init(&h->watch.mutex, NULL);
    bool good = raise_files(o, err) && open_listener(h, err);
    *out = h; /* handlers use it */
    if (good) {
        good = watch_start(h) && start_threads(h); /* requests may come at once */
        if (!good)
            start_failed(err, o, "cannot start a thread", 0);
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
    /* a thread may be using the socket, so http_stop closes it */
    atomic_store(&h->quiesced, true);
    shutdown(h->listener, SHUT_RD);
}

static void close_fd(int fd) {
    if (fd >= 0)
        close(fd);
}

void http_stop(struct http *h) {
    const uint64_t one = 1;
    if (!h)
        return;
    atomic_store(&h->quiesced, true);
    if (h->n_threads && write(h->stop, &one, sizeof one) == (ssize_t)sizeof one)
        for (uint32_t i = 0; i < h->n_threads; i++)
            pthread_join(h->threads[i], NULL);
    watch_stop(h);
    while (h->watch.conns)
        conn_close(h->watch.conns);
    close_fd(h->listener);
    if (h->bound_path)
        unlink(socket_path(&h->options));
    close_fd(h->epoll);
    close_fd(h->stop);
    pthread_mutex_destroy(&h->watch.mutex);
    free(h->threads);
    free(h);
}
