/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of the log as text and JSON, the header traceparent, and a request's spans. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "server/otlp.h"
#include "util/util.h"

#include <cmocka.h>

#define TRACE "0af7651916cd43dd8448eb211c80319c"
#define SPAN  "b7ad6b7169203331"

static void test_traceparent(void **state) {
    static const char *const IGNORED[] = {
        "",
        "00-" TRACE "-" SPAN,                              /* no flags */
        "00-" TRACE "-" SPAN "-1",                         /* one digit */
        "00-" TRACE "-" SPAN "-01-x",                      /* version 0 has no more */
        "00-" TRACE "-" SPAN "-0g",                        /* not hex */
        "ff-" TRACE "-" SPAN "-01",                        /* no version */
        "0A-" TRACE "-" SPAN "-01",                        /* a capital */
        "00_" TRACE "-" SPAN "-01",                        /* no dash */
        "00-00000000000000000000000000000000-" SPAN "-01", /* no trace */
        "00-" TRACE "-0000000000000000-01",                /* no span */
        "00-0AF7651916CD43DD8448EB211C80319C-" SPAN "-01", /* capitals */
        "01-" TRACE "-" SPAN "-01.more",                   /* a later one, without a dash */
    };
    struct trace_ids t;
    (void)state;
    for (size_t i = 0; i < sizeof IGNORED / sizeof *IGNORED; i++) {
        assert_false(traceparent_read(IGNORED[i], &t));
        assert_true(!*t.trace && !*t.parent && t.sampled);
    }
    assert_false(traceparent_read(NULL, &t));
    assert_true(traceparent_read("00-" TRACE "-" SPAN "-01", &t));
    assert_string_equal(t.trace, TRACE);
    assert_string_equal(t.parent, SPAN);
    assert_true(t.sampled);
    assert_true(traceparent_read("00-" TRACE "-" SPAN "-02", &t));
    assert_false(t.sampled);
    assert_true(traceparent_read("cc-" TRACE "-" SPAN "-03-of a later version", &t));
    assert_true(t.sampled);
}

static void test_random_ids(void **state) {
    char a[TRACE_ID_DIGITS + 1], b[TRACE_ID_DIGITS + 1];
    (void)state;
    assert_true(trace_random_id(a, TRACE_ID_DIGITS) && trace_random_id(b, TRACE_ID_DIGITS));
    assert_int_equal(strlen(a), TRACE_ID_DIGITS);
    assert_int_equal(strspn(a, "0123456789abcdef"), TRACE_ID_DIGITS);
    assert_string_not_equal(a, b);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void check_line(bool json, json_t *fields, const char *want) {
    char *line = server_log_line(json, SERVER_LOG_WARN, fields);
    assert_non_null(line);
    const char *after = strstr(line, json ? "\"level\":\"warn\"," : " level=warn ");
    assert_non_null(after);
    assert_string_equal(after + strlen(json ? "\"level\":\"warn\"," : " level=warn "), want);
    assert_memory_equal(line, json ? "{\"time\":\"20" : "time=20", json ? 11 : 7);
    free(line);
}

static void test_lines(void **state) {
    (void)state;
    for (int as_json = 0; as_json < 2; as_json++)
        check_line(as_json,
                   json_pack("{s:s, s:i, s:s, s:s, s:n}", "route", "chat", "status", 400, "why",
                             "max_tokens: not \"5\"\n", "empty", "", "none"),
                   as_json ? "\"route\":\"chat\",\"status\":400,\"why\":\"max_tokens: not "
                             "\\\"5\\\"\\n\",\"empty\":\"\",\"none\":null}"
                           : "route=chat status=400 why=\"max_tokens: not \\\"5\\\"\\n\" "
                             "empty=\"\" none=-");
    check_line(false, log_message("model \"a b\": loaded"), "server: model \"a b\": loaded");
    check_line(true, log_message("bad \xff text"), "\"message\":\"bad???text\"}");
    assert_null(server_log_line(true, SERVER_LOG_INFO, NULL));
    enum server_log_level level;
    assert_true(server_log_level_read("debug", &level) && level == SERVER_LOG_DEBUG);
    assert_true(server_log_level_read("WARNING", &level) && level == SERVER_LOG_WARN);
    assert_false(server_log_level_read("loud", &level));
}

/* ---- spans ----------------------------------------------------------------------------------- */

static const json_t *span_named(const json_t *spans, const char *name) {
    const json_t *span;
    size_t i;
    json_array_foreach(spans, i, span) {
        if (strcmp(json_string_value(json_object_get(span, "name")), name) == 0)
            return span;
    }
    return NULL;
}

static int64_t time_of(const json_t *span, const char *key) {
    return strtoll(json_string_value(json_object_get(span, key)), NULL, 10);
}

static json_t *spans_of(const struct otlp_request *r, json_t **all) {
    char *text = otlp_json(r, 1, 1000000);
    assert_non_null(text);
    *all = json_loads(text, 0, NULL);
    free(text);
    json_t *spans = NULL;
    assert_int_equal(
        json_unpack(*all, "{s:[{s:[{s:o}]}]}", "resourceSpans", "scopeSpans", "spans", &spans), 0);
    return spans;
}

static void test_spans(void **state) {
    static const struct {
        const char *name;
        int64_t from, to;
    } WANT[] = {{"chat tiny", 1001000000, 1009000000},
                {"queue", 1002000000, 1003000000},
                {"prefix", 1003000000, 1004000000},
                {"prefill", 1004000000, 1005000000},
                {"decode", 1005000000, 1008000000}};
    struct otlp_request r = {.trace = {TRACE, SPAN, true},
                             .id = "chatcmpl-1",
                             .model = "tiny",
                             .path = "/v1/chat/completions",
                             .route = "chat",
                             .finish = "stop",
                             .status = 200,
                             .prompt_tokens = 10,
                             .cached_tokens = 4,
                             .begin_us = 1000,
                             .submitted_us = 2000,
                             .looked_us = 3000,
                             .started_us = 4000,
                             .first_us = 5000,
                             .last_us = 8000,
                             .end_us = 9000};
    json_t *all, *spans = spans_of(&r, &all);
    (void)state;
    assert_int_equal(json_array_size(spans), 5);
    const char *root = NULL;
    for (size_t i = 0; i < 5; i++) {
        const json_t *span = span_named(spans, WANT[i].name);
        assert_int_equal(time_of(span, "startTimeUnixNano"), WANT[i].from);
        assert_int_equal(time_of(span, "endTimeUnixNano"), WANT[i].to);
        assert_string_equal(json_string_value(json_object_get(span, "traceId")), TRACE);
        assert_string_equal(json_string_value(json_object_get(span, "parentSpanId")),
                            root ? root : SPAN);
        root = root ? root : json_string_value(json_object_get(span, "spanId"));
        assert_null(json_object_get(span, "status"));
    }
    json_decref(all);

    /* one that waited and never ran, of a trace that begins here */
    r.trace.parent[0] = 0;
    r.looked_us = r.started_us = r.first_us = r.last_us = 0;
    r.status = 503;
    spans = spans_of(&r, &all);
    assert_int_equal(json_array_size(spans), 2);
    assert_null(json_object_get(span_named(spans, "chat tiny"), "parentSpanId"));
    assert_int_equal(time_of(span_named(spans, "queue"), "endTimeUnixNano"), 1009000000);
    assert_int_equal(json_integer_value(json_object_get(
                         json_object_get(span_named(spans, "chat tiny"), "status"), "code")),
                     2);
    json_decref(all);
}

/* ---- a collector that is not there ----------------------------------------------------------- */

/* Port 1 refuses at once. What does not fit the ring is dropped; nothing waits. */
static void test_no_collector(void **state) {
    enum { MANY = 5000 };
    const struct otlp_request r = {
        .trace = {TRACE, "", true}, .route = "chat", .finish = "stop", .begin_us = 1, .end_us = 2};
    struct otlp *o = otlp_create("http://127.0.0.1:1/v1/traces", NULL, NULL);
    (void)state;
    assert_non_null(o);
    const double start = clock_seconds();
    for (int i = 0; i < MANY; i++)
        otlp_add(o, &r);
    assert_true(clock_seconds() - start < 1);
    struct otlp_figures f;
    do
        f = otlp_figures(o);
    while (f.sent + f.failed + f.dropped < MANY && clock_seconds() - start < 60);
    assert_true(f.on && f.sent == 0);
    assert_true(f.failed >= 1024 && f.dropped > 0 && f.failed + f.dropped == MANY);
    otlp_add(o, &r);
    otlp_destroy(o);
    otlp_destroy(NULL);
    otlp_add(NULL, &r);
    assert_false(otlp_figures(NULL).on);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_traceparent),  cmocka_unit_test(test_random_ids),
        cmocka_unit_test(test_lines),        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_no_collector),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
