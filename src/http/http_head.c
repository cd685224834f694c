/* SPDX-License-Identifier: Apache-2.0 */
/* http_head.c: a strict parser of request heads and chunked bodies (RFC 9112).
 *
 * Stricter than the RFC allows a server to be, wherever parsers are known to differ: lines end with
 * CR LF only; no folded lines; no NUL; one Host, one Content-Length or one "Transfer-Encoding:
 * chunked"; no blanks around chunk sizes; paths only as targets (no absolute URLs). Trailers are
 * checked and dropped.
 */
#include "http/http_head.h"

#include <string.h>
#include <strings.h>

#include "http/http.h"
#include "util/http_status.h"
#include "util/util.h"

static bool problem(struct http_problem *p, unsigned status, const char *why) {
    ASSERT(status >= 400 && status <= 599);
    *p = (struct http_problem){status, why};
    return false;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_alnum(char c) {
    return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
}

static bool is_token(char c) {
    return is_alnum(c) || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is_value(char c) {
    const uint8_t u = (uint8_t)c;
    return u == '\t' || (u >= 0x20 && u != 0x7f);
}

static int hex(char c) {
    return is_digit(c)                              ? c - '0'
           : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                    : -1;
}

/* ---- where a head ends ----------------------------------------------------------------------- */

enum head_step head_scan(struct head_scan *s, const char *data, size_t n, struct http_problem *p) {
    if (n > HTTP_HEAD_MAX)
        n = HTTP_HEAD_MAX;
    for (; s->at < n && (s->has_line || s->at <= HTTP_LINE_MAX + 1); s->at++) {
        const char c = data[s->at];
        const bool after_cr = s->at > s->line && data[s->at - 1] == '\r';
        if (c == 0) {
            problem(p, HTTP_BAD_REQUEST, "a header contains a NUL byte");
            return HEAD_BAD;
        }
        if (after_cr != (c == '\n')) {
            problem(p, HTTP_BAD_REQUEST, "header lines must end with CR LF");
            return HEAD_BAD;
        }
        if (c != '\n')
            continue;
        const size_t length = s->at - 1 - s->line;
        s->has_line = true;
        s->line = s->at + 1;
        if (length == 0) {
            s->at++;
            return HEAD_WHOLE;
        }
    }
    if (!s->has_line && s->at > HTTP_LINE_MAX + 1)
        problem(p, HTTP_URI_TOO_LONG, "the request's path and query are too long");
    else if (s->at >= HTTP_HEAD_MAX)
        problem(p, HTTP_HEADERS_TOO_LARGE, "the request's headers are too large");
    else
        return HEAD_MORE;
    return HEAD_BAD;
}

/* ---- the request line ------------------------------------------------------------------------ */

/* Decodes in place, up to the query. */
static bool decode_path(char *path, struct http_problem *p) {
    char *to = path;
    for (const char *at = path; *at && *at != '?'; at++) {
        char c = *at;
        if (c == '%') {
            const int high = hex(at[1]), low = high < 0 ? -1 : hex(at[2]);
            if (low < 0)
                return problem(p, HTTP_BAD_REQUEST, "the path contains an invalid percent code");
            c = (char)(high * 16 + low);
            at += 2;
            if ((uint8_t)c < 0x20 || c == 0x7f)
                return problem(p, HTTP_BAD_REQUEST, "the path contains a control character");
        }
        *to++ = c;
    }
    *to = 0;
    return true;
}

static bool parse_target(struct http_head *h, char *target, struct http_problem *p) {
    size_t args = 1;
    for (const char *at = target; *at; at++)
        if ((uint8_t)*at <= 0x20 || (uint8_t)*at >= 0x7f || *at == '#')
            return problem(p, HTTP_BAD_REQUEST, "the path contains an invalid byte");
    const char *query = strchr(target, '?');
    for (const char *at = query; at && *at; at++)
        args += *at == '&';
    if (args > HTTP_QUERY_ARGS_MAX)
        return problem(p, HTTP_URI_TOO_LONG, "the query has too many arguments");
    if (*target != '/' && !(strcmp(target, "*") == 0 && strcmp(h->method, "OPTIONS") == 0))
        return problem(p, HTTP_BAD_REQUEST, "the request's target must be a path");
    if (!decode_path(target, p))
        return false;
    h->path = target;
    h->query = query ? query + 1 : "";
    return true;
}

/* One part of a parameter, up to `end`. False: it is none. */
static bool decode_param(const char *from, const char *end, char out[HTTP_PARAM_MAX]) {
    size_t n = 0;
    for (; from < end; from++) {
        char c = *from == '+' ? ' ' : *from;
        if (c == '%') {
            const int high = end - from > 2 ? hex(from[1]) : -1, low = high < 0 ? -1 : hex(from[2]);
            if (low < 0)
                return false;
            c = (char)(high * 16 + low);
            from += 2;
        }
        if (c == 0 || n + 1 == HTTP_PARAM_MAX)
            return false;
        out[n++] = c;
    }
    out[n] = 0;
    return true;
}

enum http_param http_query_next(const char **at, char name[HTTP_PARAM_MAX],
                                char value[HTTP_PARAM_MAX]) {
    const char *begin = *at + strspn(*at, "&"), *end = begin + strcspn(begin, "&");
    const char *equals = memchr(begin, '=', (size_t)(end - begin));
    *at = end;
    if (begin == end)
        return HTTP_PARAM_END;
    return decode_param(begin, equals ? equals : end, name) &&
                   decode_param(equals ? equals + 1 : end, end, value)
               ? HTTP_PARAM_NEXT
               : HTTP_PARAM_BAD;
}

/* line: a string. */
static bool parse_request_line(struct http_head *h, char *line, struct http_problem *p) {
    static const char WRONG[] = "the request line must be \"METHOD /path HTTP/1.1\"";
    char *at = line;
    while (is_token(*at))
        at++;
    char *target = at + 1, *version = *at == ' ' ? strchr(target, ' ') : NULL;
    if (at == line || !version)
        return problem(p, HTTP_BAD_REQUEST, WRONG);
    *at = *version++ = 0;
    h->method = line;
    if (strncmp(version, "HTTP/", 5) != 0 || !is_digit(version[5]) || version[6] != '.' ||
        !is_digit(version[7]) || version[8])
        return problem(p, HTTP_BAD_REQUEST, WRONG);
    if (version[5] != '1' || version[7] > '1')
        return problem(p, HTTP_VERSION_UNKNOWN, "only HTTP/1.0 and HTTP/1.1 are supported");
    h->is_1_1 = version[7] == '1';
    return parse_target(h, target, p);
}

/* ---- fields ---------------------------------------------------------------------------------- */

/* line: a string, which becomes the name. */
static bool parse_field(char *line, char **value, struct http_problem *p) {
    char *at = line;
    if (*line == ' ' || *line == '\t')
        return problem(p, HTTP_BAD_REQUEST, "folded header lines are not supported");
    while (is_token(*at))
        at++;
    if (at == line)
        return problem(p, HTTP_BAD_REQUEST, "a header has no name");
    if (*at != ':')
        return problem(p, HTTP_BAD_REQUEST, "a header name contains an invalid byte");
    *at++ = 0;
    at += strspn(at, " \t");
    *value = at;
    while (is_value(*at))
        at++;
    if (*at)
        return problem(p, HTTP_BAD_REQUEST, "a header value contains a control character");
    while (at > *value && (at[-1] == ' ' || at[-1] == '\t'))
        *--at = 0;
    return true;
}

const char *head_field(const struct http_head *h, const char *name) {
    for (size_t i = 0; i < h->n_fields; i++)
        if (strcasecmp(h->fields[i].name, name) == 0)
            return h->fields[i].value;
    return NULL;
}

static size_t count_fields(const struct http_head *h, const char *name) {
    size_t n = 0;
    for (size_t i = 0; i < h->n_fields; i++)
        n += strcasecmp(h->fields[i].name, name) == 0;
    return n;
}

/* Whether one of the fields with this name lists the token. */
static bool lists(const struct http_head *h, const char *name, const char *token) {
    static const char SEPARATORS[] = ", \t";
    for (size_t i = 0; i < h->n_fields; i++) {
        if (strcasecmp(h->fields[i].name, name) != 0)
            continue;
        for (const char *at = h->fields[i].value; *at;) {
            at += strspn(at, SEPARATORS);
            const size_t n = strcspn(at, SEPARATORS);
            if (n == strlen(token) && strncasecmp(at, token, n) == 0)
                return true;
            at += n;
        }
    }
    return false;
}

static bool check_host(const struct http_head *h, struct http_problem *p) {
    const size_t n = count_fields(h, "Host");
    if (n > 1)
        return problem(p, HTTP_BAD_REQUEST, "more than one Host header");
    if (n == 0)
        return !h->is_1_1 || problem(p, HTTP_BAD_REQUEST, "the Host header is missing");
    for (const char *at = head_field(h, "Host"); *at; at++)
        if (!is_alnum(*at) && !strchr("-._~%!$&'()*+;=[]:", *at))
            return problem(p, HTTP_BAD_REQUEST, "the Host header is invalid");
    return true;
}

static bool parse_length(const char *text, uint64_t *out) {
    *out = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        if (!is_digit(*text))
            return false;
        *out = *out > UINT64_MAX / 100 ? UINT64_MAX / 10 : *out * 10 + (uint64_t)(*text - '0');
    }
    return true; /* saturated: larger than any limit */
}

static bool check_framing(struct http_head *h, struct http_problem *p) {
    const char *coding = head_field(h, "Transfer-Encoding");
    const char *length = head_field(h, "Content-Length");
    if (count_fields(h, "Transfer-Encoding") + count_fields(h, "Content-Length") > 1)
        return problem(p, HTTP_BAD_REQUEST,
                       "more than one Content-Length or Transfer-Encoding header");
    if (length && !parse_length(length, &h->length))
        return problem(p, HTTP_BAD_REQUEST, "Content-Length is not a number");
    if (coding && !h->is_1_1)
        return problem(p, HTTP_BAD_REQUEST, "HTTP/1.0 has no Transfer-Encoding");
    if (coding && strcasecmp(coding, "chunked") != 0)
        return problem(p, HTTP_NOT_IMPLEMENTED, "the only supported Transfer-Encoding is chunked");
    h->has_length = length != NULL;
    h->chunked = coding != NULL;
    return true;
}

/* Ends the line at *at with a NUL, and moves on. NULL: it is the empty line. */
static char *next_line(char **at) {
    char *line = *at, *end = strchr(line, '\r');
    ASSERT(end && end[1] == '\n'); /* head_scan */
    *end = 0;
    *at = end + 2;
    return end > line ? line : NULL;
}

bool head_parse(struct http_head *h, char *text, size_t n, struct http_problem *p) {
    ASSERT(n >= 2 && text[n - 1] == '\n');
    *h = (struct http_head){.method = "GET", .path = "/", .query = ""};
    char *at = text, *line = next_line(&at), *value;
    if (!line)
        return problem(p, HTTP_BAD_REQUEST, "the request is empty");
    if (!parse_request_line(h, line, p))
        return false;
    while ((line = next_line(&at))) {
        if (h->n_fields == HTTP_FIELDS_MAX)
            return problem(p, HTTP_HEADERS_TOO_LARGE, "the request has too many headers");
        if (!parse_field(line, &value, p))
            return false;
        h->fields[h->n_fields].name = line;
        h->fields[h->n_fields++].value = value;
    }
    ASSERT(at == text + n);
    h->close = !h->is_1_1 || lists(h, "Connection", "close");
    h->expects_continue = h->is_1_1 && lists(h, "Expect", "100-continue");
    return check_host(h, p) && check_framing(h, p);
}

/* ---- bodies ---------------------------------------------------------------------------------- */

void body_begin(struct body_frame *f, const struct http_head *h) {
    ASSERT(!h->chunked || !h->has_length);
    *f = (struct body_frame){.phase = h->chunked ? BODY_IN_SIZE : BODY_IN_DATA,
                             .chunked = h->chunked,
                             .left = h->length};
}

static enum body_step bad(struct http_problem *p, const char *why) {
    problem(p, HTTP_BAD_REQUEST, why);
    return BODY_BAD;
}

/* SIZE [;EXTENSIONS] CR LF */
static enum body_step take_size(struct body_frame *f, const char *data, size_t n, size_t *used,
                                struct http_problem *p) {
    enum { DIGITS_MAX = 15 }; /* below 2^60 */
    size_t at = 0;
    f->left = 0;
    for (; at < n && at <= DIGITS_MAX && hex(data[at]) >= 0; at++)
        f->left = f->left * 16 + (uint64_t)hex(data[at]);
    if (at > DIGITS_MAX || (at < n && (at == 0 || (data[at] != ';' && data[at] != '\r'))))
        return bad(p, "a chunk's size is invalid");
    while (at < n && at < HTTP_CHUNK_LINE_MAX && is_value(data[at]))
        at++;
    if (at >= HTTP_CHUNK_LINE_MAX)
        return bad(p, "a chunk's extensions are too long");
    if ((at < n && data[at] != '\r') || (at + 1 < n && data[at + 1] != '\n'))
        return bad(p, "a chunk's line must end with CR LF");
    if (at + 1 >= n)
        return BODY_MORE;
    f->phase = f->left ? BODY_IN_DATA : BODY_IN_TRAILERS;
    *used = at + 2;
    return BODY_PART;
}

/* Trailers mean nothing here, but must be lines of headers. */
static enum body_step take_trailers(struct body_frame *f, const char *data, size_t n, size_t *used,
                                    struct http_problem *p) {
    f->trailers.has_line = true;
    const enum head_step step = head_scan(&f->trailers, data, n, p);
    if (step != HEAD_WHOLE)
        return step == HEAD_MORE ? BODY_MORE : BODY_BAD;
    char text[HTTP_HEAD_MAX + 1], *at = text, *line, *value;
    ASSERT(f->trailers.at <= HTTP_HEAD_MAX);
    memcpy(text, data, f->trailers.at);
    text[f->trailers.at] = 0;
    while ((line = next_line(&at)))
        if (!parse_field(line, &value, p))
            return BODY_BAD;
    *used = f->trailers.at;
    f->phase = BODY_ENDED;
    return BODY_DONE;
}

enum body_step body_next(struct body_frame *f, const char *data, size_t n, size_t *used,
                         size_t *piece, struct http_problem *p) {
    *used = *piece = 0;
    switch (f->phase) {
    case BODY_IN_SIZE:
        return take_size(f, data, n, used, p);
    case BODY_IN_DATA:
        *used = *piece = f->left < n ? (size_t)f->left : n;
        f->left -= *used;
        if (f->left == 0)
            f->phase = f->chunked ? BODY_AFTER_DATA : BODY_ENDED;
        return f->left == 0 || n ? BODY_PART : BODY_MORE;
    case BODY_AFTER_DATA:
        if ((n > 0 && data[0] != '\r') || (n > 1 && data[1] != '\n'))
            return bad(p, "a chunk is longer than its size");
        if (n < 2)
            return BODY_MORE;
        *used = 2;
        f->phase = BODY_IN_SIZE;
        return BODY_PART;
    case BODY_IN_TRAILERS:
        return take_trailers(f, data, n, used, p);
    case BODY_ENDED:
        break;
    }
    return BODY_DONE;
}
