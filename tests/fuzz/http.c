/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of a connection for the HTTP parser. Read as one piece and byte by byte, they must give the
 * same requests, ends and refusals (HEAD-2); what is accepted must be unambiguous (HEAD-1). */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "fuzz.h"
#include "http/http.h"
#include "http/http_head.h"

/* What was understood, as text: "status", or method, path and fields, then the body. */
struct seen {
    struct text_buf text;
    size_t used;
    bool refused, more;
};

static void note(struct seen *s, const char *data, size_t n) {
    if (!text_append(&s->text, data, n) || !text_append(&s->text, "|", 1))
        fuzz_fail("out of memory");
}

static bool refuse(struct seen *s, const struct http_problem *p) {
    if (p->status < 400 || p->status > 599 || !p->why || !*p->why || strchr(p->why, '\n'))
        fuzz_fail("refused with %u: %s", p->status, p->why ? p->why : "nothing");
    note(s, p->why, strlen(p->why));
    s->refused = true;
    return false;
}

static void check_text(const char *text) {
    for (; *text; text++)
        if ((uint8_t)*text < 0x20 && *text != '\t')
            fuzz_fail("a control character is accepted");
}

static void check_head(const struct http_head *h) {
    size_t hosts = 0, frames = 0;
    check_text(h->method);
    check_text(h->path);
    for (size_t i = 0; i < h->n_fields; i++) {
        const char *name = h->fields[i].name;
        check_text(name);
        check_text(h->fields[i].value);
        if (!*name || strpbrk(name, " \t:"))
            fuzz_fail("a wrong name is accepted: \"%s\"", name);
        hosts += strcasecmp(name, "Host") == 0;
        frames += strcasecmp(name, "Content-Length") == 0;
        frames += strcasecmp(name, "Transfer-Encoding") == 0;
    }
    if (frames > 1 || hosts > 1 || (h->is_1_1 && hosts == 0) || (h->chunked && !h->is_1_1) ||
        frames != (size_t)(h->chunked + h->has_length))
        fuzz_fail("an ambiguous head is accepted");
}

static void note_query(struct seen *s, const char *query) {
    static char name[HTTP_PARAM_MAX], value[HTTP_PARAM_MAX];
    const char *at = query, *end = query + strlen(query);
    for (enum http_param got; (got = http_query_next(&at, name, value)) != HTTP_PARAM_END;) {
        if (at > end || (*at && *at != '&'))
            fuzz_fail("the query is read past an argument's end");
        if (got == HTTP_PARAM_BAD)
            continue;
        if (strlen(name) >= HTTP_PARAM_MAX || strlen(value) >= HTTP_PARAM_MAX)
            fuzz_fail("a longer argument than there is room for");
        note(s, name, strlen(name));
        note(s, value, strlen(value));
    }
    if (at != end)
        fuzz_fail("a part of the query is not read");
}

/* The bytes known so far grow by `step`. */
static bool read_head(struct seen *s, struct http_head *h, char **text, const char *data,
                      size_t size, size_t step) {
    struct head_scan scan = {0};
    struct http_problem p;
    for (size_t n = min_size(step, size);; n = min_size(n + step, size)) {
        const enum head_step got = head_scan(&scan, data, n, &p);
        if (got == HEAD_BAD)
            return refuse(s, &p);
        if (got == HEAD_WHOLE)
            break;
        if (n == size) {
            s->more = true;
            return false;
        }
    }
    if (scan.at > HTTP_HEAD_MAX || scan.at > size)
        fuzz_fail("a head of %zu bytes", scan.at);
    *text = malloc(scan.at + 1);
    if (!*text)
        fuzz_fail("out of memory");
    memcpy(*text, data, scan.at);
    (*text)[scan.at] = 0;
    s->used += scan.at;
    if (!head_parse(h, *text, scan.at, &p))
        return refuse(s, &p);
    check_head(h);
    note(s, h->method, strlen(h->method));
    note(s, h->path, strlen(h->path));
    note_query(s, h->query);
    for (size_t i = 0; i < h->n_fields; i++) {
        note(s, h->fields[i].name, strlen(h->fields[i].name));
        note(s, h->fields[i].value, strlen(h->fields[i].value));
    }
    return true;
}

static bool read_body(struct seen *s, const struct http_head *h, const char *data, size_t size,
                      size_t step) {
    struct body_frame frame;
    struct http_problem p;
    size_t at = 0, n = min_size(step, size), used, piece;
    body_begin(&frame, h);
    for (;;) {
        const enum body_step got = body_next(&frame, data + at, n - at, &used, &piece, &p);
        if (used > n - at || piece > used)
            fuzz_fail("%zu of %zu bytes used, %zu for the body", used, n - at, piece);
        if (piece && !text_append(&s->text, data + at, piece))
            fuzz_fail("out of memory");
        at += used;
        if (got == BODY_BAD)
            return refuse(s, &p);
        s->more = got == BODY_MORE && n == size;
        if (got == BODY_DONE || s->more) {
            s->used += at;
            return !s->more;
        }
        if (got == BODY_MORE)
            n = min_size(n + step, size);
    }
}

static struct seen read_all(const char *data, size_t size, size_t step) {
    struct seen s = {0};
    bool good = true;
    while (good && s.used < size) {
        struct http_head h;
        char *text = NULL;
        good = read_head(&s, &h, &text, data + s.used, size - s.used, step) &&
               read_body(&s, &h, data + s.used, size - s.used, step);
        free(text);
    }
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct seen whole = read_all((const char *)data, size, size ? size : 1);
    struct seen bytes = read_all((const char *)data, size, 1);
    if (whole.refused != bytes.refused || whole.more != bytes.more ||
        whole.text.len != bytes.text.len ||
        (whole.text.len && memcmp(whole.text.data, bytes.text.data, whole.text.len) != 0))
        fuzz_fail("by byte %s, at once %s", bytes.text.len ? bytes.text.data : "nothing",
                  whole.text.len ? whole.text.data : "nothing");
    text_free(&whole.text);
    text_free(&bytes.text);
    return 0;
}
