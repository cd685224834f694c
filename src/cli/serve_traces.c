/* SPDX-License-Identifier: Apache-2.0 */
/* serve_traces.c: where serve sends traces, and the headers of requests to there.
 *
 *     --otlp-headers-file   a line each, "Authorization: Bearer secret"; # starts a comment
 *     else OTEL_EXPORTER_OTLP_TRACES_HEADERS, else OTEL_EXPORTER_OTLP_HEADERS, as all programs with
 *     OpenTelemetry read them: "name=value,name=value", with %XX in values
 *
 * No flag takes a header itself, because others could read it in the list of processes. Errors do
 * not quote values: they are secrets.
 */
#include "serve.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>

/* A text between two places, without the spaces around it. */
struct span {
    const char *at;
    size_t n;
};

static struct span trimmed(const char *at, const char *end) {
    while (at < end && strchr(" \t\r", *at))
        at++;
    while (at < end && strchr(" \t\r", end[-1]))
        end--;
    return (struct span){at, (size_t)(end - at)};
}

static bool is_visible(const struct span *s, bool spaces) {
    for (size_t i = 0; i < s->n; i++) {
        const bool space = s->at[i] == ' ' || s->at[i] == '\t';
        if (space ? !spaces : (uint8_t)s->at[i] <= ' ' || s->at[i] == 0x7f)
            return false;
    }
    return s->n > 0;
}

/* Appends a line of the header; what is wrong with it, or NULL. */
static const char *add_header(struct span name, struct span value, struct text_buf *out) {
    static const char *const OURS[] = {"Content-Type", "Content-Length", "Transfer-Encoding",
                                       "Host"};
    if (!is_visible(&name, false) || memchr(name.at, ':', name.n))
        return "its name is empty or has characters that names of headers have not";
    if (!is_visible(&value, true))
        return "its value is empty or has control characters";
    for (size_t i = 0; i < sizeof OURS / sizeof *OURS; i++)
        if (strlen(OURS[i]) == name.n && strncasecmp(OURS[i], name.at, name.n) == 0)
            return "this header is set by kvasir itself";
    const bool good = text_append(out, name.at, name.n) && text_puts(out, ": ") &&
                      text_append(out, value.at, value.n) && text_puts(out, "\n");
    return good ? NULL : "out of memory";
}

static const char *add_line(const char *at, const char *end, struct text_buf *out) {
    const struct span line = trimmed(at, end);
    const char *colon = memchr(line.at, ':', line.n);
    if (!line.n || *line.at == '#')
        return NULL;
    if (!colon)
        return "is not \"Name: value\"";
    return add_header(trimmed(line.at, colon), trimmed(colon + 1, line.at + line.n), out);
}

static const char *add_pair(const char *at, const char *end, struct text_buf *out) {
    const struct span pair = trimmed(at, end);
    const char *equals = memchr(pair.at, '=', pair.n);
    int n = 0;
    if (!pair.n)
        return NULL;
    if (!equals)
        return "is not name=value";
    const struct span coded = trimmed(equals + 1, pair.at + pair.n);
    char *value = coded.n ? curl_easy_unescape(NULL, coded.at, (int)coded.n, &n) : NULL;
    if (coded.n && !value)
        return "out of memory";
    const char *why = add_header(trimmed(pair.at, equals), (struct span){value, (size_t)n}, out);
    curl_free(value);
    return why;
}

static int read_file(const struct command *c, const char *path, struct text_buf *out) {
    char *text = NULL;
    size_t len, number = 1;
    const char *why = NULL;
    int code = read_text(c, "--otlp-headers-file", path, &text, &len);
    for (const char *at = text; !code && at && at < text + len; number++) {
        const char *line_end = memchr(at, '\n', (size_t)(text + len - at));
        const char *end = line_end ? line_end : text + len;
        why = add_line(at, end, out);
        if (why)
            code = usage_error(c, "--otlp-headers-file: %.200s: line %zu: %s", path, number, why);
        at = end + 1;
    }
    free(text);
    return code;
}

static int read_variable(const struct command *c, struct text_buf *out) {
    static const char *const NAMES[] = {"OTEL_EXPORTER_OTLP_TRACES_HEADERS",
                                        "OTEL_EXPORTER_OTLP_HEADERS"};
    const char *name = NAMES[0], *at = getenv(name);
    if (!at || !*at)
        at = getenv(name = NAMES[1]);
    for (size_t number = 1; at && *at; number++) {
        const char *end = at + strcspn(at, ",");
        const char *why = add_pair(at, end, out);
        if (why)
            return usage_error(c, "%s: header %zu: %s", name, number, why);
        at = end + (*end != 0);
    }
    return EXIT_GOOD;
}

int serve_traces_read(const struct command *c, struct serve_args *a, char **headers) {
    const char *to = a->server.otlp_endpoint;
    struct text_buf out = {0};
    if (!to && a->otlp_headers_file)
        return usage_error(c, "--otlp-headers-file: only allowed with --otlp-endpoint");
    if (!to)
        return EXIT_GOOD;
    if (strncmp(to, "http://", 7) != 0 && strncmp(to, "https://", 8) != 0)
        return usage_error(c,
                           "--otlp-endpoint: \"%.100s\" is not a URL of http or https: give the "
                           "collector's, such as http://127.0.0.1:4318",
                           to);
    const int code =
        a->otlp_headers_file ? read_file(c, a->otlp_headers_file, &out) : read_variable(c, &out);
    a->server.otlp_headers = *headers = out.data;
    return code;
}
