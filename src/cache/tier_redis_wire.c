/* SPDX-License-Identifier: Apache-2.0 */
/* tier_redis_wire.c: one connection to a Redis or Valkey (tier_redis.h).
 *
 * hiredis connects, and its reader parses replies that have structure. Sending and receiving is
 * done here, for three reasons:
 *
 *   time      hiredis waits anew for each piece, so that a server which sends a byte a second holds
 *             a thread for ever; here all waiting ends at the deadline
 *   copies    hiredis collects a value in a buffer that grows, then copies it; here a payload is
 *             received where it belongs, and sent from where it is
 *   lengths   hiredis makes room for as much as the server says; here the caller knows what a value
 *             may have, and other replies get REPLY_BYTES_MOST: what the reader builds is counted
 *             before it is built (budgeted, below)
 *
 * A connection belongs to one thread at a time. The first failure is its last: the state says what
 * it was, all calls then return false, and nodes_give closes it. Lines and values are read from
 * `in`; wire_reply may only be used while nothing but its reply is awaited, so that no byte of
 * another reply gets into hiredis's reader.
 */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "cache/tier_redis.h"

enum { SEND_PARTS_MOST = 8, RECEIVE_AT_ONCE = 256 << 10 }; /* it is summed while in the caches */

bool wire_fail(struct redis_wire *w, enum wire_state state, const char *why) {
    ASSERT(state != WIRE_GOOD);
    if (w->state == WIRE_GOOD) {
        w->state = state;
        snprintf(w->why, sizeof w->why, "%.127s", why);
    }
    return false;
}

static bool fail_errno(struct redis_wire *w) {
    char text[96];
    return wire_fail(w, WIRE_LOST, strerror_r(errno, text, sizeof text) ? "connection lost" : text);
}

/* Waits until the socket is ready for `events`. */
static bool ready(struct redis_wire *w, short events) {
    struct pollfd p = {.fd = w->context->fd, .events = events};
    for (;;) {
        const double left = w->deadline - clock_seconds();
        if (left <= 0)
            return wire_fail(w, WIRE_LATE, "no answer in time");
        const int n = poll(&p, 1, (int)ceil(fmin(left, 1000) * 1000));
        if (n > 0)
            return true; /* errors show in what follows */
        if (n < 0 && errno != EINTR)
            return fail_errno(w);
    }
}

/* ---- replies that hiredis builds ------------------------------------------------------------- */

static struct redis_wire *of_task(const redisReadTask *task) {
    return task->privdata;
}

/* Takes from what the reply may still have; a part of it costs its structure, too. */
static bool allowed(const redisReadTask *task, size_t parts, size_t bytes) {
    struct redis_wire *w = of_task(task);
    if (parts > REPLY_BYTES_MOST / sizeof(redisReply) || bytes > REPLY_BYTES_MOST)
        return false;
    const size_t cost = parts * (sizeof(redisReply) + sizeof(redisReply *)) + bytes;
    if (cost > w->reply_left)
        return false;
    w->reply_left -= cost;
    return true;
}

static void *create_string(const redisReadTask *task, char *text, size_t len) {
    return allowed(task, 1, len) ? of_task(task)->plain->createString(task, text, len) : NULL;
}
static void *create_array(const redisReadTask *task, int n) {
    return n >= 0 && allowed(task, (size_t)n + 1, 0) ? of_task(task)->plain->createArray(task, n)
                                                     : NULL;
}
static void *create_integer(const redisReadTask *task, long long value) {
    return allowed(task, 1, 0) ? of_task(task)->plain->createInteger(task, value) : NULL;
}
static void *create_nil(const redisReadTask *task) {
    return allowed(task, 1, 0) ? of_task(task)->plain->createNil(task) : NULL;
}

static redisReplyObjectFunctions budgeted = {.createString = create_string,
                                             .createArray = create_array,
                                             .createInteger = create_integer,
                                             .createNil = create_nil,
                                             .freeObject = freeReplyObject};

/* ---- connecting ------------------------------------------------------------------------------ */

static bool said_ok(struct redis_wire *w) {
    char line[WIRE_LINE_BYTES];
    if (!wire_line(w, line))
        return false;
    return line[0] == '+' || wire_fail(w, WIRE_NONSENSE, line[0] == '-' ? line + 1 : "no +OK");
}

/* AUTH and SELECT. */
static bool introduce(struct redis_wire *w, const struct redis_url *url) {
    char db[16];
    const struct redis_arg auth[] = {
        {"AUTH", 4}, {url->user, strlen(url->user)}, {url->password, strlen(url->password)}};
    const struct redis_arg auth_default[] = {auth[0], auth[2]};
    const struct redis_arg select[] = {{"SELECT", 6},
                                       {db, (size_t)snprintf(db, sizeof db, "%u", url->db)}};
    if (url->password[0] && url->user[0])
        wire_command(w, auth, 3);
    else if (url->password[0])
        wire_command(w, auth_default, 2);
    if (url->db)
        wire_command(w, select, 2);
    return wire_flush(w) && (!url->password[0] || said_ok(w)) && (!url->db || said_ok(w));
}

struct redis_wire *wire_open(const struct redis_address *address, const struct redis_url *url,
                             double deadline, double connect_seconds, char why[128]) {
    const double seconds = fmin(deadline - clock_seconds(), connect_seconds);
    struct redis_wire *w = seconds > 0 ? mem_alloc(sizeof *w) : NULL;
    if (!w) {
        snprintf(why, 128, seconds > 0 ? "out of memory" : "no time left");
        return NULL;
    }
    memset(w, 0, offsetof(struct redis_wire, in));
    w->deadline = clock_seconds() + seconds;
    const struct timeval limit = {.tv_sec = (time_t)seconds,
                                  .tv_usec = (suseconds_t)(fmod(seconds, 1) * 1e6) + 1};
    w->context = redisConnectWithTimeout(address->host, address->port, limit);
    if (!w->context || w->context->err) {
        snprintf(why, 128, "%s", w->context ? w->context->errstr : "out of memory");
        wire_close(w);
        return NULL;
    }
    w->plain = w->context->reader->fn;
    w->context->reader->fn = &budgeted;
    w->context->reader->privdata = w;
    if (!introduce(w, url)) {
        snprintf(why, 128, "%s", w->why);
        wire_close(w);
        return NULL;
    }
    return w;
}

void wire_close(struct redis_wire *w) {
    if (w->context)
        redisFree(w->context);
    mem_free(w);
}

bool wire_is_quiet(const struct redis_wire *w) {
    uint8_t byte;
    return w->state == WIRE_GOOD && w->in_at == w->in_end && w->out_len == 0 &&
           recv(w->context->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
           (errno == EAGAIN || errno == EWOULDBLOCK);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Sends all parts, which it changes. */
static bool send_all(struct redis_wire *w, struct iovec *parts, size_t n) {
    while (w->state == WIRE_GOOD) {
        while (n && parts->iov_len == 0) {
            parts++;
            n--;
        }
        if (n == 0)
            return true;
        const struct msghdr message = {.msg_iov = parts, .msg_iovlen = n};
        const ssize_t sent = sendmsg(w->context->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (!ready(w, POLLOUT))
                return false;
        } else if (sent < 0 && errno != EINTR) {
            return fail_errno(w);
        }
        for (size_t left = sent > 0 ? (size_t)sent : 0; left;) {
            const size_t part = min_size(left, parts->iov_len);
            parts->iov_base = (uint8_t *)parts->iov_base + part;
            parts->iov_len -= part;
            left -= part;
            if (parts->iov_len == 0) {
                parts++;
                n--;
            }
        }
    }
    return false;
}

bool wire_flush(struct redis_wire *w) {
    struct iovec all = {w->out, w->out_len};
    w->out_len = 0;
    return send_all(w, &all, 1);
}

bool wire_send(struct redis_wire *w, struct iovec *parts, uint32_t n) {
    struct iovec all[SEND_PARTS_MOST];
    ASSERT(n < SEND_PARTS_MOST);
    all[0] = (struct iovec){w->out, w->out_len};
    memcpy(all + 1, parts, n * sizeof *parts);
    w->out_len = 0;
    return send_all(w, all, n + 1);
}

static bool put(struct redis_wire *w, const void *at, size_t n) {
    ASSERT(n <= sizeof w->out);
    if (n > sizeof w->out - w->out_len && !wire_flush(w))
        return false;
    memcpy(w->out + w->out_len, at, n);
    w->out_len += n;
    return w->state == WIRE_GOOD;
}

static bool put_length(struct redis_wire *w, char type, size_t n) {
    char text[32];
    return put(w, text, (size_t)snprintf(text, sizeof text, "%c%zu\r\n", type, n));
}

bool wire_command_open(struct redis_wire *w, const struct redis_arg *args, uint32_t n,
                       uint32_t total) {
    bool good = put_length(w, '*', total);
    for (uint32_t i = 0; good && i < n; i++)
        good =
            put_length(w, '$', args[i].len) && put(w, args[i].at, args[i].len) && put(w, "\r\n", 2);
    return good;
}

bool wire_command(struct redis_wire *w, const struct redis_arg *args, uint32_t n) {
    return wire_command_open(w, args, n, n);
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* What there is, at least one byte. */
static size_t receive(struct redis_wire *w, void *to, size_t most) {
    while (w->state == WIRE_GOOD) {
        const ssize_t n = recv(w->context->fd, to, most, MSG_DONTWAIT);
        if (n > 0) {
            w->heard = true;
            return (size_t)n;
        }
        if (n == 0)
            wire_fail(w, WIRE_LOST, "the server closed the connection");
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            ready(w, POLLIN);
        else if (errno != EINTR)
            fail_errno(w);
    }
    return 0;
}

static bool fill(struct redis_wire *w) {
    if (w->in_at == w->in_end)
        w->in_at = w->in_end = 0;
    if (w->in_at > 0) {
        memmove(w->in, w->in + w->in_at, w->in_end - w->in_at);
        w->in_end -= w->in_at;
        w->in_at = 0;
    }
    if (w->in_end == sizeof w->in)
        return wire_fail(w, WIRE_NONSENSE, "a line without an end");
    const size_t n = receive(w, w->in + w->in_end, sizeof w->in - w->in_end);
    w->in_end += n;
    return n > 0;
}

bool wire_line(struct redis_wire *w, char line[WIRE_LINE_BYTES]) {
    size_t searched = 0;
    while (w->state == WIRE_GOOD) {
        const uint8_t *at = w->in + w->in_at;
        const size_t n = w->in_end - w->in_at;
        const uint8_t *end = n > searched ? memchr(at + searched, '\n', n - searched) : NULL;
        if (end) {
            size_t len = (size_t)(end - at);
            w->in_at += len + 1;
            len -= len > 0 && at[len - 1] == '\r';
            len = min_size(len, WIRE_LINE_BYTES - 1);
            memcpy(line, at, len);
            line[len] = 0;
            return true;
        }
        searched = n;
        fill(w);
    }
    return false;
}

size_t wire_some(struct redis_wire *w, void *to, size_t most) {
    const size_t kept = min_size(w->in_end - w->in_at, most);
    if (kept) {
        memcpy(to, w->in + w->in_at, kept);
        w->in_at += kept;
        return kept;
    }
    return receive(w, to, min_size(most, RECEIVE_AT_ONCE));
}

bool wire_bytes(struct redis_wire *w, void *to, size_t n) {
    for (size_t done = 0; done < n;) {
        if (w->in_at == w->in_end && n - done < sizeof w->in && !fill(w))
            return false;
        const size_t got = wire_some(w, (uint8_t *)to + done, n - done);
        if (got == 0)
            return false;
        done += got;
    }
    return true;
}

bool wire_skip(struct redis_wire *w, uint64_t n) {
    while (n) {
        if (w->in_at == w->in_end && !fill(w))
            return false;
        const uint64_t part = n < w->in_end - w->in_at ? n : w->in_end - w->in_at;
        w->in_at += (size_t)part;
        n -= part;
    }
    return true;
}

bool wire_line_end(struct redis_wire *w) {
    char end[2];
    return wire_bytes(w, end, 2) &&
           ((end[0] == '\r' && end[1] == '\n') ||
            wire_fail(w, WIRE_NONSENSE, "a value is longer or shorter than the server says"));
}

redisReply *wire_reply(struct redis_wire *w) {
    redisReader *reader = w->context->reader;
    size_t received = 0;
    w->reply_left = REPLY_BYTES_MOST;
    for (;;) {
        void *reply = NULL;
        if (redisReaderGetReply(reader, &reply) != REDIS_OK) {
            wire_fail(w, WIRE_NONSENSE, "a reply that makes no sense or is too long");
            return NULL;
        }
        if (reply && (reader->pos != reader->len || w->in_at != w->in_end)) {
            freeReplyObject(reply);
            wire_fail(w, WIRE_NONSENSE, "more than was asked for");
            return NULL;
        }
        if (reply)
            return reply;
        if (w->in_at == w->in_end && !fill(w))
            return NULL;
        received += w->in_end - w->in_at;
        if (received > REPLY_RECEIVED_MOST ||
            redisReaderFeed(reader, (char *)w->in + w->in_at, w->in_end - w->in_at) != REDIS_OK) {
            wire_fail(w, WIRE_NONSENSE, "a reply that is too long");
            return NULL;
        }
        w->in_at = w->in_end = 0;
    }
}
