/* SPDX-License-Identifier: Apache-2.0 */
#include "http_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

bool client_open(struct client *c, uint16_t port, int receive_bytes) {
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval limit = {.tv_sec = 300};
    const int on = 1;
    *c = (struct client){.fd = socket(AF_INET, SOCK_STREAM, 0)};
    if (receive_bytes >= 0)
        setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (c->fd >= 0 && connect(c->fd, (const struct sockaddr *)&to, sizeof to) == 0)
        return true;
    client_close(c);
    return false;
}

void client_close(struct client *c) {
    if (c->fd >= 0)
        close(c->fd);
    free(c->in);
    *c = (struct client){.fd = -1};
}

void client_reset(struct client *c) {
    const struct linger now = {1, 0};
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    client_close(c);
}

bool client_send(struct client *c, const void *data, size_t n) {
    for (const char *at = data; n > 0;) {
        const ssize_t sent = send(c->fd, at, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        at += sent;
        n -= (size_t)sent;
    }
    return true;
}

bool client_request(struct client *c, const char *method, const char *path, const char *headers,
                    const char *body) {
    const size_t size = strlen(headers) + strlen(body) + 256;
    char *text = malloc(size);
    const int n =
        snprintf(text, size, "%s %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n%s",
                 method, path, headers, strlen(body), body);
    const bool good = client_send(c, text, (size_t)n);
    free(text);
    return good;
}

/* Receives some more bytes. */
static bool receive(struct client *c) {
    if (c->cap - c->len < 4096) {
        c->cap = 2 * c->cap + 8192;
        c->in = realloc(c->in, c->cap);
    }
    ssize_t n;
    do
        n = recv(c->fd, c->in + c->len, c->cap - c->len - 1, 0);
    while (n < 0 && errno == EINTR);
    c->closed = n <= 0;
    c->len += n > 0 ? (size_t)n : 0;
    c->in[c->len] = 0;
    return n > 0;
}

bool client_wait_bytes(struct client *c, size_t n) {
    while (c->len < n)
        if (!receive(c))
            return false;
    return true;
}

static void take(struct client *c, size_t n) {
    memmove(c->in, c->in + n, c->len - n + 1);
    c->len -= n;
}

/* The value of a header in [in, end); NULL: none. */
static const char *header(const char *in, const char *end, const char *name) {
    const size_t n = strlen(name);
    for (const char *line = in; line && line < end; line = strstr(line, "\r\n")) {
        line += line == in ? 0 : 2;
        if (strncasecmp(line, name, n) == 0 && line[n] == ':')
            return line + n + 1 + strspn(line + n + 1, " ");
    }
    return NULL;
}

/* Reads the rest of a body of n bytes into *a. */
static void read_length(struct client *c, struct client_answer *a, size_t n) {
    a->cut = !client_wait_bytes(c, n);
    a->len = c->len < n ? c->len : n;
    a->body = malloc(a->len + 1);
    memcpy(a->body, c->in, a->len);
    a->body[a->len] = 0;
    take(c, a->len);
}

static void read_chunks(struct client *c, struct client_answer *a) {
    a->body = calloc(1, 1);
    for (;;) {
        char *line;
        while (!(line = strstr(c->in, "\r\n")))
            if (!receive(c)) {
                a->cut = true;
                return;
            }
        const size_t n = strtoul(c->in, NULL, 16), head = (size_t)(line + 2 - c->in);
        if (!client_wait_bytes(c, head + n + 2)) {
            a->cut = true;
            return;
        }
        a->body = realloc(a->body, a->len + n + 1);
        memcpy(a->body + a->len, c->in + head, n);
        a->len += n;
        a->body[a->len] = 0;
        take(c, head + n + 2);
        if (n == 0)
            return;
    }
}

struct client_answer client_read(struct client *c) {
    struct client_answer a = {0};
    const char *end;
    do {
        if (c->len == 0 && !receive(c))
            return a;
        while (!(end = strstr(c->in, "\r\n\r\n")))
            if (!receive(c))
                return a;
        a.status = atoi(c->in + strlen("HTTP/1.1 "));
        if (a.status == 100)
            take(c, (size_t)(end + 4 - c->in));
    } while (a.status == 100);
    const char *length = header(c->in, end, "Content-Length");
    const char *chunked = header(c->in, end, "Transfer-Encoding");
    const char *connection = header(c->in, end, "Connection");
    const size_t n = length ? strtoul(length, NULL, 10) : 0;
    a.keeps = !connection || strncasecmp(connection, "close", 5) != 0;
    take(c, (size_t)(end + 4 - c->in));
    if (chunked)
        read_chunks(c, &a);
    else
        read_length(c, &a, n);
    return a;
}

/* ---- what it says ---------------------------------------------------------------------------- */

static void append(char *to, size_t size, const json_t *text) {
    const size_t at = strlen(to);
    if (json_is_string(text))
        snprintf(to + at, size - at, "%s", json_string_value(text));
}

static void take_choice(const json_t *choice, struct said *out) {
    const size_t i = (size_t)json_integer_value(json_object_get(choice, "index")) % SAID_CHOICES;
    const json_t *delta = json_object_get(choice, "delta");
    if (!delta)
        delta = json_object_get(choice, "message");
    append(out->text[i], SAID_TEXT, json_object_get(choice, "text"));
    append(out->text[i], SAID_TEXT, json_object_get(delta, "content"));
    append(out->finish[i], sizeof *out->finish, json_object_get(choice, "finish_reason"));
}

/* Anthropic's: a message, or an event of its stream. */
static void take_message(const json_t *object, struct said *out) {
    const char *type = json_string_value(json_object_get(object, "type"));
    const json_t *delta = json_object_get(object, "delta"), *content;
    if (!type)
        return;
    out->done |= strcmp(type, "message_stop") == 0;
    content = strcmp(type, "message") == 0 ? json_object_get(object, "content") : NULL;
    for (size_t i = 0; i < json_array_size(content); i++)
        append(out->text[0], SAID_TEXT, json_object_get(json_array_get(content, i), "text"));
    append(out->text[0], SAID_TEXT, json_object_get(delta, "text"));
    append(out->finish[0], sizeof *out->finish, json_object_get(delta, "stop_reason"));
    append(out->finish[0], sizeof *out->finish, json_object_get(object, "stop_reason"));
}

static int64_t count(const json_t *usage, const char *name) {
    return json_integer_value(json_object_get(usage, name));
}

static void take_usage(const json_t *usage, struct said *out) {
    const json_t *details = json_object_get(usage, "prompt_tokens_details");
    const int64_t read = count(usage, "cache_read_input_tokens"); /* Anthropic's */
    out->prompt_tokens = count(usage, "prompt_tokens") + count(usage, "input_tokens") + read;
    out->completion_tokens = count(usage, "completion_tokens") + count(usage, "output_tokens");
    out->cached_tokens = count(details, "cached_tokens") + read;
}

static void take_object(const char *text, size_t len, struct said *out) {
    json_t *object = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
    const json_t *error = json_object_get(object, "error");
    const json_t *choices = json_object_get(object, "choices");
    const json_t *usage = json_object_get(object, "usage");
    if (!object || error) {
        out->failed = true;
        append(out->error, sizeof out->error, json_object_get(error, "message"));
    }
    for (size_t i = 0; i < json_array_size(choices); i++)
        take_choice(json_array_get(choices, i), out);
    take_message(object, out);
    if (json_is_object(usage))
        take_usage(usage, out);
    json_decref(object);
}

void said_read(const struct client_answer *a, struct said *out) {
    memset(out, 0, sizeof *out);
    out->prompt_tokens = out->completion_tokens = out->cached_tokens = -1;
    if (a->len && a->body[0] == '{') {
        take_object(a->body, a->len, out);
        out->done = !a->cut;
        return;
    }
    for (const char *at = a->body; at && *at;) {
        const char *end = strstr(at, "\n\n");
        if (!end)
            return;
        if (strncmp(at, "event: ", 7) == 0)
            at += strcspn(at, "\n") + 1;
        if (*at == ':')
            out->comments++;
        else if (strncmp(at, "data: [DONE]", 12) == 0)
            out->done = true;
        else if (strncmp(at, "data: ", 6) == 0)
            take_object(at + 6, (size_t)(end - at - 6), out);
        at = end + 2;
    }
}
