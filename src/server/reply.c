/* SPDX-License-Identifier: Apache-2.0 */
/* reply.c: JSON bodies in and out, the headers of all replies, the log line of a refusal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/server_internal.h"

/* ---- ids and the log ------------------------------------------------------------------------- */

void server_client_id(const struct http_exchange *exchange, char out[JOB_ID_MAX]) {
    const char *id = http_header(exchange, "X-Request-Id");
    *out = 0;
    if (!id || strlen(id) >= JOB_ID_MAX)
        return;
    for (const char *p = id; *p; p++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:", *p))
            return;
    snprintf(out, JOB_ID_MAX, "%s", id);
}

bool server_new_id(const char *prefix, char out[JOB_ID_MAX], uint64_t *seed) {
    struct {
        uint64_t seed, high;
        uint32_t low;
    } random;
    if (getentropy(&random, sizeof random) != 0)
        return false;
    snprintf(out, JOB_ID_MAX, "%s%016llx%08x", prefix, (unsigned long long)random.high, random.low);
    *seed = random.seed;
    return true;
}

/* The client's id, or a new one. */
static void set_id(struct http_exchange *exchange) {
    char id[JOB_ID_MAX];
    uint64_t seed;
    server_client_id(exchange, id);
    if (*id || server_new_id("req_", id, &seed))
        snprintf(exchange->id, sizeof exchange->id, "%s", id);
}

/* A text as a part of one line, without all from its first quote to its last: that may be of the
 * request, with quotes of its own. */
static void set_why(struct http_exchange *exchange, const char *text) {
    const char *first = strchr(text, '"'), *last = strrchr(text, '"');
    const int before = first ? (int)(first - text) : (int)strlen(text);
    snprintf(exchange->why, sizeof exchange->why, "%.*s%s%s", before, text, first ? "..." : "",
             first && last > first ? last + 1 : "");
    for (char *p = exchange->why; *p; p++)
        *p = *p >= 0x20 && *p < 0x7f ? *p : '?';
}

/* Refusals for load or by the client's fault are warnings. */
static enum server_log_level level_of(unsigned status) {
    return status < HTTP_BAD_REQUEST                                   ? SERVER_LOG_DEBUG
           : status >= HTTP_SERVER_ERROR && status != HTTP_UNAVAILABLE ? SERVER_LOG_ERROR
                                                                       : SERVER_LOG_WARN;
}

void reply_log(const struct server *s, const struct http_exchange *exchange, const char *route,
               unsigned status) {
    const enum server_log_level level = level_of(status);
    char path[200], method[32];
    struct trace_ids trace;
    if (!log_wants(s->log, level))
        return;
    json_t *line = json_pack("{s:s, s:s, s:i, s:s, s:s, s:s}", "request_id", exchange->id, "route",
                             route, "status", (int)status, "client", exchange->client, "method",
                             log_visible(exchange->method, method, sizeof method), "path",
                             log_visible(exchange->path, path, sizeof path));
    if (traceparent_read(http_header(exchange, "traceparent"), &trace))
        json_object_set_new(line, "trace_id", json_string(trace.trace));
    if (*exchange->why)
        json_object_set_new(line, "why", json_string(exchange->why));
    log_add(s->log, level, line);
}

/* ---- replies --------------------------------------------------------------------------------- */

struct http_reply reply_head(const struct server *s, struct http_exchange *exchange,
                             unsigned status, const char *type) {
    struct http_reply r = {.status = status};
    const char *origin = origin_allowed(s, exchange);
    if (type)
        http_reply_header(&r, "Content-Type", type);
    http_reply_header(&r, "Cache-Control", "no-store");
    http_reply_header(&r, "X-Content-Type-Options", "nosniff");
    if (origin)
        http_reply_header(&r, "Access-Control-Allow-Origin", origin);
    if (!*exchange->id)
        set_id(exchange);
    if (*exchange->id)
        http_reply_header(&r, "X-Request-Id", exchange->id);
    return r;
}

/* jansson's own json_dumps has the text twice for a while. */
char *reply_dump(json_t *value) {
    const size_t n = value ? json_dumpb(value, NULL, 0, JSON_COMPACT) : 0;
    char *text = n ? mem_alloc(n + 1) : NULL;
    if (text) {
        const size_t written = json_dumpb(value, text, n, JSON_COMPACT);
        ASSERT(written == n);
        text[n] = 0;
    }
    json_decref(value);
    return text;
}

static enum http_step reply_value(const struct http_reply *reply, struct http_exchange *exchange,
                                  json_t *value) {
    static const char NO_MEMORY[] = "{\"error\":{\"message\":\"out of memory\"}}";
    char *text = reply_dump(value);
    if (text)
        return http_reply_take(exchange, reply, text, strlen(text));
    const struct http_reply failed = {.status = HTTP_SERVER_ERROR,
                                      .headers = {{"Content-Type", "application/json"}}};
    return http_reply_static(exchange, &failed, NO_MEMORY, sizeof NO_MEMORY - 1);
}

enum http_step reply_json(struct server *s, struct http_exchange *exchange, unsigned status,
                          json_t *value) {
    const struct http_reply r = reply_head(s, exchange, status, "application/json");
    return reply_value(&r, exchange, value);
}

enum http_step reply_text(struct server *s, struct http_exchange *exchange, unsigned status,
                          char *text) {
    const struct http_reply r = reply_head(s, exchange, status, "application/json");
    return http_reply_take(exchange, &r, text, strlen(text));
}

enum http_step reply_error(struct server *s, struct http_exchange *exchange,
                           const struct protocol *protocol, const struct api_error *err) {
    return reply_error_with(s, exchange, protocol, err, NULL, NULL);
}

enum http_step reply_error_with(struct server *s, struct http_exchange *exchange,
                                const struct protocol *protocol, const struct api_error *err,
                                const char *name, const char *value) {
    struct http_reply r = reply_head(s, exchange, (unsigned)err->status, "application/json");
    set_why(exchange, err->text);
    char seconds[16];
    snprintf(seconds, sizeof seconds, "%u", err->retry_after_s ? err->retry_after_s : 2);
    if (name)
        http_reply_header(&r, name, value);
    if (err->status == HTTP_UNAUTHORIZED)
        http_reply_header(&r, "WWW-Authenticate", "Bearer");
    if (err->status == HTTP_TOO_MANY_REQUESTS || err->status == HTTP_UNAVAILABLE)
        http_reply_header(&r, "Retry-After", seconds);
    if (err->status == HTTP_UNAVAILABLE)
        http_reply_header(&r, "Connection", "close");
    return reply_value(&r, exchange, protocol->error(err));
}

bool reply_memory_error(const struct http_exchange *exchange, struct api_error *err) {
    char why[256];
    const enum charge_refusal refusal = charge_refusal(exchange->charge, why, sizeof why);
    if (refusal == CHARGE_FITS)
        return false;
    api_refuse(err, NULL, "%s", why);
    const bool alone = refusal == CHARGE_REQUEST_FULL;
    err->status = alone ? HTTP_CONTENT_TOO_LARGE : HTTP_TOO_MANY_REQUESTS;
    err->code = alone ? "request_too_large" : NULL;
    return true;
}

bool reply_read_body(const struct http_exchange *exchange, const struct api_setup *setup,
                     api_want_fn *wants, struct api_body *body, struct api_error *err) {
    if (exchange->body_len == 0)
        return api_refuse(err, NULL, "the request body is empty");
    return api_body_read(exchange->body, exchange->body_len, setup->vocab, wants, body, err);
}
