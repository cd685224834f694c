/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "lying_redis.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cache/tier.h"

enum { CONNECTIONS = 256, ARGS = 16, TRAILER = 16, NONCE = 24 };

struct lying_redis_private {
    int listener;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards what follows */
    struct lying_value values[LYING_VALUES];
    uint32_t n_values;
    struct {
        int fd;
        pthread_t thread;
        bool used;
    } connections[CONNECTIONS];
    _Atomic bool stop;
};

struct client {
    struct lying_redis *s;
    int fd;
    uint32_t index;
    uint8_t in[65536];
    size_t at, end;
};

const char *lie_name(enum lie lie) {
    static const char *const names[LIES] = {
        "none",     "flip",  "other",  "forge",   "claim",    "miss", "short",   "long",
        "length",   "cut",   "close",  "stall",   "hang",     "drip", "huge",    "large",
        "negative", "array", "nested", "integer", "status",   "type", "loading", "error",
        "line",     "noise", "moved",  "ask",     "moved_bad"};
    return names[lie];
}

static uint64_t dice(struct lying_redis *s) {
    return mix_bits(atomic_fetch_add(&s->seed, 0x9e3779b97f4a7c15ULL));
}

/* ---- bytes in and out ------------------------------------------------------------------------ */

static bool fill(struct client *c) {
    const ssize_t n = recv(c->fd, c->in, sizeof c->in, 0);
    c->at = 0;
    c->end = n > 0 ? (size_t)n : 0;
    return n > 0;
}

static bool get_line(struct client *c, char *line, size_t room) {
    for (size_t n = 0;;) {
        if (c->at == c->end && !fill(c))
            return false;
        const char ch = (char)c->in[c->at++];
        if (ch == '\n') {
            line[n - (n > 0)] = 0;
            return true;
        }
        if (n + 1 < room)
            line[n++] = ch;
    }
}

static bool get_bytes(struct client *c, uint8_t *to, size_t n) {
    while (n) {
        if (c->at == c->end && !fill(c))
            return false;
        const size_t part = min_size(n, c->end - c->at);
        memcpy(to, c->in + c->at, part);
        c->at += part;
        to += part;
        n -= part;
    }
    return true;
}

static bool say(const struct client *c, const void *bytes, size_t n) {
    for (size_t done = 0; done < n;) {
        const ssize_t sent = send(c->fd, (const uint8_t *)bytes + done, n - done, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        done += (size_t)sent;
    }
    return true;
}

static bool say_text(const struct client *c, const char *text) {
    return say(c, text, strlen(text));
}

static bool say_value(const struct client *c, const uint8_t *bytes, uint64_t len) {
    char head[32];
    return say(c, head,
               (size_t)snprintf(head, sizeof head, "$%llu\r\n", (unsigned long long)len)) &&
           say(c, bytes, len) && say_text(c, "\r\n");
}

/* Until the test is over or the other side hangs up. */
static bool hang(const struct client *c) {
    uint8_t byte;
    while (!atomic_load(&c->s->p->stop) && recv(c->fd, &byte, 1, 0) > 0)
        ;
    return false;
}

/* ---- values ---------------------------------------------------------------------------------- */

static struct lying_value *lookup(struct lying_redis *s, const char *name) {
    for (uint32_t i = 0; i < s->p->n_values; i++)
        if (s->p->values[i].bytes && strcmp(s->p->values[i].name, name) == 0)
            return &s->p->values[i];
    return NULL;
}

/* A copy of the value of a name, or of another one with the same length. */
static uint8_t *copy_value(struct lying_redis *s, const char *name, bool other, uint64_t *len) {
    uint8_t *copy = NULL;
    pthread_mutex_lock(&s->p->mutex);
    const struct lying_value *v = lookup(s, name);
    if (v && other)
        for (uint32_t i = 0, from = (uint32_t)(dice(s) % s->p->n_values); i < s->p->n_values; i++) {
            const struct lying_value *w = &s->p->values[(from + i) % s->p->n_values];
            if (w != v && w->bytes && w->len == v->len) {
                v = w;
                break;
            }
        }
    if (v && (copy = malloc(v->len + 4096))) {
        memcpy(copy, v->bytes, v->len);
        *len = v->len;
    }
    pthread_mutex_unlock(&s->p->mutex);
    return copy;
}

static void store(struct lying_redis *s, const char *name, uint8_t *bytes, uint64_t len) {
    struct lying_redis_private *p = s->p;
    pthread_mutex_lock(&p->mutex);
    struct lying_value *v = lookup(s, name);
    if (!v && p->n_values < LYING_VALUES)
        v = &p->values[p->n_values++];
    if (v) {
        free(v->bytes);
        snprintf(v->name, sizeof v->name, "%s", name);
        v->bytes = bytes;
        v->len = len;
    } else {
        free(bytes);
    }
    pthread_mutex_unlock(&p->mutex);
}

/* Another payload, and sums that say it is right. */
static void forge(struct lying_redis *s, uint8_t *value, uint64_t len) {
    struct record_head head;
    const size_t at = (len - sizeof head) % 4096 ? NONCE : 0; /* with a secret */
    memcpy(&head, value + at, sizeof head);
    if (len < at + sizeof head + head.bytes || head.bytes == 0)
        return;
    value[at + sizeof head + dice(s) % head.bytes] ^= (uint8_t)(1 + dice(s) % 255);
    record_seal(&head, value + at + sizeof head);
    memcpy(value + at, &head, sizeof head);
}

/* The payload of `other`, a value of the same length, for tokens that nobody asked for; the name is
 * still that of the value. */
static void claim(uint8_t *value, const uint8_t *other, uint64_t len) {
    struct record_head head;
    const size_t at = (len - sizeof head) % 4096 ? NONCE : 0, payload = at + sizeof head;
    memcpy(&head, value + at, sizeof head);
    if (len < payload + head.bytes)
        return;
    memcpy(value + payload, other + payload, head.bytes);
    head.tokens[head.bytes % TILE_TOKENS] ^= 1;
    record_seal(&head, value + payload);
    memcpy(value + at, &head, sizeof head);
}

/* ---- lies ------------------------------------------------------------------------------------ */

static bool say_redirection(const struct client *c, const char *verb) {
    char line[96];
    snprintf(line, sizeof line, "-%s %u 127.0.0.1:%u\r\n", verb, (unsigned)(dice(c->s) % 16384),
             c->s->port);
    return say_text(c, line);
}

static bool say_nested(const struct client *c) {
    bool good = true;
    for (int i = 0; good && i < 1000; i++)
        good = say_text(c, "*1\r\n");
    return good && hang(c);
}

static bool say_noise(const struct client *c) {
    uint8_t bytes[512];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)dice(c->s);
    return say(c, bytes, sizeof bytes) && false;
}

static bool drip(const struct client *c, const uint8_t *value, uint64_t len) {
    char head[32];
    say(c, head, (size_t)snprintf(head, sizeof head, "$%llu\r\n", (unsigned long long)len));
    for (uint64_t i = 0; i < len && !atomic_load(&c->s->p->stop); i++) {
        if (!say(c, value + i, 1))
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    return false;
}

static bool say_line(const struct client *c) {
    char text[4096];
    memset(text, 'x', sizeof text);
    text[0] = '-';
    for (int i = 0; i < 1024; i++)
        if (!say(c, text, sizeof text))
            return false;
    return hang(c);
}

static bool say_large(const struct client *c) {
    uint8_t bytes[65536] = {0};
    if (!say_text(c, "$400000000\r\n"))
        return false;
    for (int i = 0; i < 6200; i++)
        if (!say(c, bytes, sizeof bytes))
            return false;
    return false;
}

/* False: the connection ends. */
static bool lie_about(struct client *c, enum lie lie, uint8_t *value, uint64_t len) {
    char head[32];
    const int n = snprintf(head, sizeof head, "$%llu\r\n", (unsigned long long)len);
    switch (lie) {
    case LIE_FLIP: {
        const uint64_t bit = dice(c->s) % (8 * len);
        value[bit / 8] ^= (uint8_t)(1 << bit % 8);
        return say_value(c, value, len);
    }
    case LIE_FORGE:
        forge(c->s, value, len);
        return say_value(c, value, len);
    case LIE_MISS:
        return say_text(c, "$-1\r\n");
    case LIE_SHORT:
        return say_value(c, value, dice(c->s) % len);
    case LIE_LONG:
        memset(value + len, 0, 4096);
        return say_value(c, value, len + 1 + dice(c->s) % 4096);
    case LIE_LENGTH:
        memset(value + len, 'x', 16);
        return say(c, head, (size_t)n) && say(c, value, len + 16) && say_text(c, "\r\n");
    case LIE_CUT:
        return say(c, head, (size_t)n) && say(c, value, dice(c->s) % len) && false;
    case LIE_STALL:
        return say(c, head, (size_t)n) && say(c, value, dice(c->s) % len) && hang(c);
    case LIE_HANG:
        return hang(c);
    case LIE_DRIP:
        return drip(c, value, len);
    case LIE_HUGE:
        return say_text(c, "$9000000000000000000\r\n") && say(c, value, len) && hang(c);
    case LIE_LARGE:
        return say_large(c);
    case LIE_NEGATIVE:
        return say_text(c, "$-7\r\n");
    case LIE_ARRAY:
        return say_text(c, "*2000000000\r\n") && hang(c);
    case LIE_NESTED:
        return say_nested(c);
    case LIE_INTEGER:
        return say_text(c, ":123456\r\n");
    case LIE_STATUS:
        return say_text(c, "+OK\r\n");
    case LIE_TYPE:
        return say_text(c, "-WRONGTYPE Operation against a key holding the wrong kind\r\n");
    case LIE_LOADING:
        return say_text(c, "-LOADING Redis is loading the dataset in memory\r\n");
    case LIE_ERROR:
        return say_text(c, "-ODD \x1b[31mred\x07 %n%s hunter2-password\r\n");
    case LIE_LINE:
        return say_line(c);
    case LIE_NOISE:
        return say_noise(c);
    case LIE_MOVED:
        return say_redirection(c, "MOVED");
    case LIE_ASK:
        return say_redirection(c, "ASK");
    case LIE_MOVED_BAD:
        return say_text(c, "-MOVED 99999 nowhere:70000\r\n");
    case LIE_NONE:
    case LIE_OTHER:
    case LIE_CLAIM:
    case LIE_CLOSE:
    case LIES:
        break;
    }
    return lie != LIE_CLOSE && say_value(c, value, len);
}

static bool is_sound(struct lying_redis *s) {
    unsigned n = atomic_load(&s->sound);
    while (n > 0 && !atomic_compare_exchange_weak(&s->sound, &n, n - 1))
        ;
    return n > 0;
}

static bool answer_get(struct client *c, const char *name) {
    const enum lie lie = is_sound(c->s) ? LIE_NONE : (enum lie)atomic_load(&c->s->lie);
    uint64_t len = 0;
    uint8_t *value = copy_value(c->s, name, lie == LIE_OTHER, &len);
    if (!value)
        return say_text(c, "$-1\r\n");
    if (lie != LIE_NONE)
        atomic_fetch_add(&c->s->told, 1);
    if (lie == LIE_CLAIM) {
        uint8_t *other = copy_value(c->s, name, true, &len);
        if (other)
            claim(value, other, len);
        free(other);
    }
    const bool go_on = lie_about(c, lie, value, len);
    free(value);
    return go_on;
}

/* ---- commands -------------------------------------------------------------------------------- */

static bool answer_set(struct client *c, char *args[ARGS], const uint64_t len[ARGS]) {
    struct lying_redis *s = c->s;
    pthread_mutex_lock(&s->p->mutex);
    const bool have = lookup(s, args[1]) != NULL;
    pthread_mutex_unlock(&s->p->mutex);
    if (have)
        return say_text(c, "$-1\r\n");
    if (atomic_load(&s->full) && !is_sound(s)) {
        atomic_fetch_add(&s->told, 1);
        return say_text(c, "-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    }
    store(s, args[1], (uint8_t *)args[2], len[2]);
    args[2] = NULL;
    return say_text(c, "+OK\r\n");
}

/* The lie in answers without a value. */
static enum lie other_lie(struct lying_redis *s) {
    return atomic_load(&s->only_values) ? LIE_NONE : (enum lie)atomic_load(&s->lie);
}

static bool answer(struct client *c, uint32_t n, char *args[ARGS], uint64_t len[ARGS]) {
    struct lying_redis *s = c->s;
    atomic_fetch_add(&s->commands, 1);
    if (strcmp(args[0], "GET") == 0 && n == 2)
        return answer_get(c, args[1]);
    if (strcmp(args[0], "EXISTS") == 0 && n == 2) {
        pthread_mutex_lock(&s->p->mutex);
        const bool have = lookup(s, args[1]) != NULL;
        pthread_mutex_unlock(&s->p->mutex);
        const enum lie lie = other_lie(s);
        uint8_t some[4096 + 64] = {0};
        return lie >= LIE_CLOSE ? lie_about(c, lie, some, 64)
                                : say_text(c, have ? ":1\r\n" : ":0\r\n");
    }
    if (strcmp(args[0], "SET") == 0 && n >= 3)
        return answer_set(c, args, len);
    if (strcmp(args[0], "UNLINK") == 0 && n == 2) {
        pthread_mutex_lock(&s->p->mutex);
        struct lying_value *v = lookup(s, args[1]);
        if (v) {
            free(v->bytes);
            v->bytes = NULL;
        }
        pthread_mutex_unlock(&s->p->mutex);
        return say_text(c, v ? ":1\r\n" : ":0\r\n");
    }
    if (strcmp(args[0], "ASKING") == 0 || strcmp(args[0], "AUTH") == 0)
        return say_text(c, "+OK\r\n");
    if ((strcmp(args[0], "SCAN") == 0 || strcmp(args[0], "CLUSTER") == 0)) {
        const enum lie lie = other_lie(s);
        uint8_t some[4096 + 64] = {0};
        if (lie != LIE_NONE)
            return lie_about(c, lie, some, 64);
    }
    return say_text(c, "-ERR This instance has cluster support disabled\r\n");
}

static bool serve_one(struct client *c) {
    char line[64], *args[ARGS] = {0};
    uint64_t len[ARGS] = {0};
    bool good = get_line(c, line, sizeof line) && line[0] == '*';
    const uint32_t n = good ? (uint32_t)atoi(line + 1) : 0;
    good = good && n > 0 && n <= ARGS;
    for (uint32_t i = 0; good && i < n; i++) {
        char end[2];
        good = get_line(c, line, sizeof line) && line[0] == '$';
        len[i] = good ? strtoull(line + 1, NULL, 10) : 0;
        args[i] = good && len[i] < (1u << 30) ? malloc(len[i] + 1) : NULL;
        good =
            args[i] && get_bytes(c, (uint8_t *)args[i], len[i]) && get_bytes(c, (uint8_t *)end, 2);
        if (good)
            args[i][len[i]] = 0;
    }
    good = good && answer(c, n, args, len);
    for (uint32_t i = 0; i < ARGS; i++)
        free(args[i]);
    return good;
}

static void *serve(void *user) {
    struct client *c = user;
    while (serve_one(c))
        ;
    pthread_mutex_lock(&c->s->p->mutex);
    shutdown(c->fd, SHUT_RDWR);
    close(c->fd);
    c->s->p->connections[c->index].fd = -1;
    pthread_mutex_unlock(&c->s->p->mutex);
    free(c);
    return NULL;
}

static void *accept_all(void *user) {
    struct lying_redis *s = user;
    for (uint32_t i = 0;; i = (i + 1) % CONNECTIONS) {
        const int fd = accept(s->p->listener, NULL, NULL);
        if (fd < 0 || atomic_load(&s->p->stop)) {
            if (fd >= 0)
                close(fd);
            return NULL;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        if (s->p->connections[i].used) /* it has ended long ago */
            pthread_join(s->p->connections[i].thread, NULL);
        struct client *c = calloc(1, sizeof *c);
        if (!c)
            abort();
        *c = (struct client){.s = s, .fd = fd, .index = i};
        pthread_mutex_lock(&s->p->mutex);
        s->p->connections[i].fd = fd;
        s->p->connections[i].used = true;
        pthread_mutex_unlock(&s->p->mutex);
        if (pthread_create(&s->p->connections[i].thread, NULL, serve, c) != 0)
            abort();
    }
}

bool lying_redis_start(struct lying_redis *s) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof at;
    memset(s, 0, sizeof *s);
    s->p = calloc(1, sizeof *s->p);
    if (!s->p)
        return false;
    pthread_mutex_init(&s->p->mutex, NULL);
    for (int i = 0; i < CONNECTIONS; i++)
        s->p->connections[i].fd = -1;
    s->p->listener = socket(AF_INET, SOCK_STREAM, 0);
    if (s->p->listener < 0 || bind(s->p->listener, (struct sockaddr *)&at, len) != 0 ||
        listen(s->p->listener, 64) != 0 ||
        getsockname(s->p->listener, (struct sockaddr *)&at, &len) != 0)
        return false;
    s->port = ntohs(at.sin_port);
    snprintf(s->url, sizeof s->url, "redis://127.0.0.1:%u", s->port);
    return pthread_create(&s->p->thread, NULL, accept_all, s) == 0;
}

void lying_redis_empty(struct lying_redis *s) {
    struct lying_redis_private *p = s->p;
    pthread_mutex_lock(&p->mutex);
    for (uint32_t i = 0; i < p->n_values; i++) {
        free(p->values[i].bytes);
        p->values[i].bytes = NULL;
    }
    p->n_values = 0;
    pthread_mutex_unlock(&p->mutex);
    atomic_store(&s->lie, LIE_NONE);
    atomic_store(&s->sound, 0);
    atomic_store(&s->full, false);
}

void lying_redis_stop(struct lying_redis *s) {
    struct lying_redis_private *p = s->p;
    atomic_store(&p->stop, true);
    shutdown(p->listener, SHUT_RDWR);
    pthread_join(p->thread, NULL);
    close(p->listener);
    pthread_mutex_lock(&p->mutex);
    for (int i = 0; i < CONNECTIONS; i++)
        if (p->connections[i].fd >= 0)
            shutdown(p->connections[i].fd, SHUT_RDWR);
    pthread_mutex_unlock(&p->mutex);
    for (int i = 0; i < CONNECTIONS; i++)
        if (p->connections[i].used)
            pthread_join(p->connections[i].thread, NULL);
    for (uint32_t i = 0; i < p->n_values; i++)
        free(p->values[i].bytes);
    pthread_mutex_destroy(&p->mutex);
    free(p);
    s->p = NULL;
}
