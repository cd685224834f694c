/* SPDX-License-Identifier: Apache-2.0 */
/* What is charged to --request-memory-mb beside bodies and what is read from them: the buffers of
 * connections, and room for the tokens of answers. api/request_memory.sh has the rest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http_client.h"
#include "tiny_server.h"
#include "util/util.h"

static struct tiny_server tiny;
enum { ACCOUNT = 1 << 20, ONE_REQUEST = ACCOUNT / 2, BUFFER = 16 << 10 };

static int make(void **state) {
    (void)state;
    tiny_server_init(&tiny);
    tiny.engine_options.context.ctx = 32768;
    tiny.engine_options.cache_memory_bytes = 256 << 20;
    tiny.options.request_memory_bytes = ACCOUNT;
    tiny_server_open(&tiny);
    return 0;
}

static int end(void **state) {
    (void)state;
    tiny_server_close(&tiny);
    return 0;
}

static struct client_answer ask(const char *method, const char *path, const char *body) {
    struct client c;
    assert_true(client_open(&c, tiny.port, -1));
    assert_true(client_request(&c, method, path, "", body));
    struct client_answer a = client_read(&c);
    client_close(&c);
    return a;
}

static int status_with(const char *method, const char *path, const char *body) {
    struct client_answer a = ask(method, path, body);
    free(a.body);
    return a.status;
}

static int status_of(const char *body) {
    return status_with("POST", "/v1/completions", body);
}

/* No buffer is left. */
static void check_probes(void) {
    static const char *const PATHS[] = {"/health", "/ready", "/metrics"};
    struct client c;
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; i++) {
        assert_int_equal(status_with("GET", PATHS[i], ""), 200);
        assert_int_equal(status_with("GET", PATHS[i], "{}"), 429);
        assert_int_equal(status_with("POST", PATHS[i], ""), 429);
    }
    assert_int_equal(status_with("GET", "/healthy", ""), 429);
    assert_int_equal(status_with("POST", "/v1/completions", "{\"prompt\":\"a\"}"), 429);
    assert_true(client_open(&c, tiny.port, -1)); /* one connection, several probes */
    for (int i = 0; i < 3; i++) {
        assert_true(client_request(&c, "GET", "/health", "", ""));
        struct client_answer a = client_read(&c);
        assert_true(a.status == 200 && a.keeps && strstr(a.body, "{") == a.body);
        free(a.body);
    }
    assert_true(client_send(&c, "GET /health HTTP/1.1\r\nHo", 24)); /* only whole heads */
    struct client_answer a = client_read(&c);
    assert_int_equal(a.status, 429);
    free(a.body);
    client_close(&c);
}

/* Half of the account has room for so many requests that are being received. Probes need none. */
static void test_buffers(void **state) {
    enum { ROOM = ONE_REQUEST / BUFFER };
    static const char PART[] = "POST /v1/completions HT";
    struct client c[ROOM], one_more;
    (void)state;
    for (size_t i = 0; i < ROOM; i++) {
        assert_true(client_open(&c[i], tiny.port, -1));
        assert_true(client_send(&c[i], PART, strlen(PART)));
    }
    int status = 200;
    for (int tries = 0; status == 200 && tries < 200; tries++) { /* until all are received */
        pause_ms(10);
        status = status_with("GET", "/v1/models", "");
    }
    assert_int_equal(status, 429);
    check_probes();
    assert_true(client_open(&one_more, tiny.port, -1)); /* waits without a buffer */
    for (size_t i = 0; i < ROOM; i++)
        client_close(&c[i]);
    for (int tries = 0; status == 429 && tries < 200; tries++) {
        pause_ms(10);
        status = status_of("{\"prompt\":\"a\",\"max_tokens\":1}");
    }
    assert_int_equal(status, 200);
    assert_true(client_request(&one_more, "GET", "/health", "", ""));
    struct client_answer a = client_read(&one_more);
    assert_int_equal(a.status, 200);
    free(a.body);
    client_close(&one_more);
}

/* 8 answers of up to 32,000 tokens may take 1 MB, before the first token comes. */
static void test_tokens(void **state) {
    (void)state;
    assert_int_equal(status_of("{\"prompt\":\"a\",\"n\":8,\"max_tokens\":1}"), 200);
    struct client_answer a = ask("POST", "/v1/completions",
                                 "{\"prompt\":\"a\",\"n\":8,\"max_tokens\":32000,\"stream\":true}");
    assert_int_equal(a.status, 413);
    assert_non_null(strstr(a.body, "needs more than 512 KiB of memory"));
    free(a.body);
    assert_int_equal(status_of("{\"prompt\":\"a\",\"n\":8,\"max_tokens\":1}"), 200);
}

static double metric(const char *name) {
    char line[96];
    struct client_answer a = ask("GET", "/metrics", "");
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr(a.body, line);
    assert_non_null(at);
    const double value = strtod(at + strlen(line), NULL);
    free(a.body);
    return value;
}

static int make_large(void **state) {
    (void)state;
    tiny_server_init(&tiny);
    tiny.engine_options.context.ctx = 32768;
    tiny.engine_options.cache_memory_bytes = 256 << 20;
    tiny.options.request_memory_bytes = 512 << 20;
    tiny_server_open(&tiny);
    return 0;
}

static int make_stream(void **state) {
    (void)state;
    tiny_server_init(&tiny);
    tiny.engine_options.context.ctx = 4096;
    tiny.options.request_memory_bytes = 512 << 20;
    tiny.options.buffer_bytes = 4 << 20;
    tiny.options.write_timeout_s = tiny.options.idle_timeout_s = 600;
    tiny_server_open(&tiny);
    return 0;
}

/* A long answer that is not read: its text is charged, and what it was made from is given back. It
 * is longer than what sockets hold. */
static void test_text_of_answer(void **state) {
    struct client c;
    (void)state;
    assert_true(client_open(&c, tiny.port, 4096));
    assert_true(client_request(&c, "POST", "/v1/completions", "",
                               "{\"prompt\":\"a\",\"n\":16,\"max_tokens\":750,\"ignore_eos\":true,"
                               "\"logprobs\":20}"));
    assert_true(client_wait_bytes(&c, 300));
    const char *length = strstr(c.in, "Content-Length: ");
    assert_non_null(length);
    const double bytes = strtod(length + strlen("Content-Length: "), NULL),
                 used = metric("kvasir_request_memory_used_bytes");
    assert_true(bytes > 5e6);
    if (used < bytes || used > 1.1 * bytes)
        fail_msg("%.0f bytes are charged for a text of %.0f", used, bytes);
    struct client_answer a = client_read(&c);
    assert_int_equal(a.status, 200);
    assert_true((double)a.len == bytes && a.body[a.len - 1] == '}');
    free(a.body);
    client_close(&c);
}

/* A stream whose reader pauses until all tokens are made, and then reads on. Each event has a
 * long text: the likeliest tokens, and the model's name as the request gives it, in escapes. Its
 * events wait as they are; their text is OUT_BYTES (job.c) and one event at most, in a buffer that
 * doubles. */
static void test_text_of_stream(void **state) {
    enum { MODEL = 256, TOKENS = 3000, OUT_BYTES = 64 << 10, EVENT = 8 << 10, STEP = 128 << 10 };
    static const char USED[] = "kvasir_request_memory_used_bytes";
    struct text_buf body = {0};
    struct client c;
    (void)state;
    assert_true(text_printf(&body,
                            "{\"prompt\":\"a\",\"max_tokens\":%d,\"ignore_eos\":true,"
                            "\"logprobs\":20,\"stream\":true,\"model\":\"",
                            TOKENS));
    for (int i = 0; i < MODEL; i++)
        assert_true(text_puts(&body, "\\u0001"));
    assert_true(text_puts(&body, "\"}"));
    assert_true(client_open(&c, tiny.port, 4096));
    assert_true(client_request(&c, "POST", "/v1/completions", "Connection: close\r\n", body.data));
    text_free(&body);
    for (double made = 0; made < TOKENS; pause_ms(20)) {
        assert_true(client_wait_bytes(&c, 300)); /* or it was refused */
        made = metric("vllm:generation_tokens_total{model_name=\"tiny\"}");
    }
    const double paused = metric(USED);
    size_t n = c.len;
    for (; client_wait_bytes(&c, n); n = c.len + STEP)
        if (metric(USED) > paused + 2 * (OUT_BYTES + EVENT))
            fail_msg("%.0f bytes are held, %.0f before reading", metric(USED), paused);
    assert_true(c.len > 5 << 20); /* more than sockets hold: some events waited */
    assert_non_null(strstr(c.in + c.len - 100, "[DONE]"));
    client_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_buffers, make, end),
        cmocka_unit_test_setup_teardown(test_tokens, make, end),
        cmocka_unit_test_setup_teardown(test_text_of_answer, make_large, end),
        cmocka_unit_test_setup_teardown(test_text_of_stream, make_stream, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
