/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong, late, oversized or interrupted HTTP: a 4xx or a closed connection, and soon after that no
 * request is open. Who may request what: keys, tenants. How a server ends. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "http_client.h"
#include "tiny_server.h"

static struct tiny_server tiny;

/* ---- servers --------------------------------------------------------------------------------- */

static int end(void **state) {
    (void)state;
    tiny_server_close(&tiny);
    return 0;
}

static int make(void **state) {
    (void)state;
    tiny_server_init(&tiny);
    tiny.options.idle_timeout_s = 1;
    tiny.options.write_timeout_s = 2;
    tiny.options.max_body_bytes = 1 << 20;
    tiny_server_open(&tiny);
    return 0;
}

/* For prompts and answers of so many tokens that they take a while. */
enum { LONG_CTX = 32768 };
static int make_long_for(uint64_t buffer_bytes) {
    tiny_server_init(&tiny);
    tiny.engine_options.context.ctx = LONG_CTX;
    tiny.engine_options.context.prefill_chunk = 32;
    tiny.engine_options.cache_memory_bytes = 256 << 20;
    tiny.options.buffer_bytes = buffer_bytes;
    tiny_server_open(&tiny);
    return 0;
}

static int make_long(void **state) {
    (void)state;
    return make_long_for(64 << 20);
}

static int make_slow(void **state) {
    (void)state;
    return make_long_for(16 << 10);
}

static int make_keys(void **state) {
    static const struct server_key KEYS[] = {{.key = "key-a"}, {.key = "key-b"}};
    (void)state;
    tiny_server_init(&tiny);
    tiny.engine_options.context.ctx = 8192;
    tiny.options.api_keys = KEYS;
    tiny.options.n_api_keys = 2;
    tiny.options.admin_key = "key-admin";
    tiny_server_open(&tiny);
    return 0;
}

static void is_idle(void) {
    kvasir_engine_stats stats;
    if (!tiny_server_idle(&tiny, 1000, &stats))
        fail_msg("after a second %u are open, %u run, %u wait", server_open_requests(tiny.server),
                 stats.running, stats.waiting);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static void open_client(struct client *c) {
    assert_true(client_open(c, tiny.port, -1));
}

/* The status of the response to these bytes; 0: none, the server closed. */
static int status_of(const char *bytes, size_t n) {
    struct client c;
    open_client(&c);
    client_send(&c, bytes, n);
    struct client_answer a = client_read(&c);
    free(a.body);
    client_close(&c);
    return a.status;
}

static int status_of_text(const char *text) {
    return status_of(text, strlen(text));
}

static int ask(const char *method, const char *path, const char *headers, const char *body) {
    struct client c;
    open_client(&c);
    assert_true(client_request(&c, method, path, headers, body));
    struct client_answer a = client_read(&c);
    free(a.body);
    client_close(&c);
    return a.status;
}

static bool is_refusal(int status) {
    return status == 0 || (status >= 400 && status < 500) || status == 501;
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: localhost\r\n"
#define POST      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
#define BODY      "{\"prompt\":\"x\",\"max_tokens\":1}" /* 29 bytes */

/* ---- HTTP ------------------------------------------------------------------------------------ */

static void test_lengths(void **state) {
    static const char *const WRONG[] = {
        POST "Content-Length: -1\r\n\r\n" BODY,
        POST "Content-Length: 99999999999999999999999\r\n\r\n" BODY,
        POST "Content-Length: 18446744073709551616\r\n\r\n" BODY,
        POST "Content-Length: 18446744073709551615\r\n\r\n" BODY,
        POST "Content-Length: 1048577\r\n\r\n" BODY,
        POST "Content-Length: 29, 29\r\n\r\n" BODY,
        POST "Content-Length: 29\r\nContent-Length: 29\r\n\r\n" BODY,
        POST "Content-Length: 29\r\nContent-Length: 3\r\n\r\n" BODY,
        POST "Content-Length: 0x1d\r\n\r\n" BODY,
        POST "Content-Length: +29\r\n\r\n" BODY,
        POST "Content-Length: abc\r\n\r\n" BODY,
        POST "Content-Length:\r\n\r\n" BODY,
        POST "Content-Length: 29\r\nTransfer-Encoding: chunked\r\n\r\n1d\r\n" BODY "\r\n0\r\n\r\n",
        POST "Transfer-Encoding: chunked\r\nContent-Length: 29\r\n\r\n1d\r\n" BODY "\r\n0\r\n\r\n",
        POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST "Transfer-Encoding: gzip\r\n\r\n" BODY,
        POST "Transfer-Encoding: chunked, gzip\r\n\r\n" BODY,
        POST "Transfer-Encoding: chunked\r\n\r\nzz\r\n" BODY "\r\n0\r\n\r\n",
        POST "Transfer-Encoding: chunked\r\n\r\n-1\r\n" BODY "\r\n0\r\n\r\n",
        POST "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" BODY "\r\n0\r\n\r\n",
        POST "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" BODY "\r\n0\r\n\r\n",
        POST "Transfer-Encoding: chunked\r\n\r\n5\r\n" BODY "\r\n0\r\n\r\n",
        POST "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", /* empty */
        POST "\r\n",
        POST "Content-Length : 29\r\n\r\n" BODY,
        POST "Content-Length\t: 29\r\n\r\n" BODY,
        POST "Content-Length: 29\r\nTransfer-Encoding : chunked\r\n\r\n" BODY,
        POST "X: y\r\n Content-Length: 29\r\n\r\n" BODY, /* continues the line before */
    };
    (void)state;
    assert_int_equal(strlen(BODY), 29);
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        const int status = status_of_text(WRONG[i]);
        if (!is_refusal(status))
            fail_msg("status %d: %s", status, WRONG[i]);
    }
    assert_int_equal(status_of_text(POST "Content-Length: 29\r\n\r\n" BODY), 200);
    assert_int_equal(status_of_text(POST
                                    "Transfer-Encoding: chunked\r\n\r\n5;x=y\r\n{\"pro\r\n18\r\n"
                                    "mpt\":\"x\",\"max_tokens\":1}\r\n0\r\n\r\n"),
                     200);
    is_idle();
}

static void test_lines(void **state) {
    static const char *const WRONG[] = {
        "\r\n\r\n\r\n\r\nGET\r\n\r\n",
        "GET\r\n\r\n",
        "GET /\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "GET / FTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n", /* no Host */
        GET("/health") "Bad Name: x\r\n\r\n",
        GET("/health") "no colon\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", /* TLS */
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        const int status = status_of_text(WRONG[i]);
        if (!is_refusal(status) && status != 505)
            fail_msg("%zu: status %d: %s", i, status, WRONG[i]);
    }
    static const char BODY_NUL[] = POST "Content-Length: 20\r\n\r\n{\"prompt\":\"a\0b\"}    ";
    assert_int_equal(status_of(BODY_NUL, sizeof BODY_NUL - 1), 400);
    is_idle();
}

/* A header without end, very many headers, and a long URL. */
static void test_headers(void **state) {
    enum { PIECE = 64 << 10 };
    static char piece[PIECE];
    (void)state;
    memset(piece, 'x', sizeof piece);
    struct client c;
    open_client(&c);
    client_send(&c, GET("/health") "X: ", strlen(GET("/health") "X: "));
    for (int i = 0; i < (64 << 20) / PIECE && client_send(&c, piece, sizeof piece); i++)
        ;
    struct client_answer a = client_read(&c);
    assert_true(is_refusal(a.status));
    free(a.body);
    client_close(&c);
    open_client(&c);
    client_send(&c, GET("/health"), strlen(GET("/health")));
    for (int i = 0; i < 100000 && client_send(&c, "A: b\r\n", 6); i++)
        ;
    client_send(&c, "\r\n", 2);
    a = client_read(&c);
    assert_true(is_refusal(a.status));
    free(a.body);
    client_close(&c);
    static char url[40000] = "GET /";
    memset(url + 5, 'a', 30000);
    strcpy(url + 30005, " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_true(is_refusal(status_of_text(url)));
    assert_int_equal(ask("GET", "/health", "", ""), 200);
    is_idle();
}

/* A request that comes byte by byte is cut off, in whatever part it is. */
static void test_slow_requests(void **state) {
    static const char *const STARTS[] = {"", "GET ",
                                         GET("/health") "X: ", POST "Content-Length: 900\r\n\r\n{",
                                         POST "Transfer-Encoding: chunked\r\n\r\n"};
    (void)state;
    for (size_t i = 0; i < sizeof STARTS / sizeof *STARTS; i++) {
        struct client c;
        const double start = now();
        open_client(&c);
        client_send(&c, STARTS[i], strlen(STARTS[i]));
        while (now() - start < 8 && client_send(&c, i == 4 ? "1\r\n \r\n" : "x", i == 4 ? 6 : 1))
            pause_ms(100);
        if (now() - start >= 8)
            fail_msg("after 8 s it still listens: %s", STARTS[i]);
        client_close(&c);
    }
    is_idle();
}

static void test_pipelining(void **state) {
    static const char THREE[] = GET("/health") "\r\n" POST "Content-Length: 29\r\n\r\n" BODY GET(
        "/nothing") "\r\n" POST "Content-Length: 2\r\n\r\n{}";
    static const int STATUS[] = {200, 200, 404, 400};
    struct client c;
    (void)state;
    open_client(&c);
    client_send(&c, THREE, sizeof THREE - 1);
    for (int i = 0; i < 4; i++) {
        struct client_answer a = client_read(&c);
        assert_int_equal(a.status, STATUS[i]);
        free(a.body);
    }
    client_close(&c);
    is_idle();
}

static void test_methods(void **state) {
    static const struct {
        const char *method, *path;
        int status;
    } CASES[] = {
        {"HEAD", "/health", 200},
        {"HEAD", "/v1/models", 200},
        {"HEAD", "/nothing", 404},
        {"HEAD", "/v1/completions", 405},
        {"OPTIONS", "/v1/models", 204},
        {"OPTIONS", "/nothing", 204},
        {"POST", "/v1/models", 405},
        {"GET", "/v1/completions", 405},
        {"PUT", "/v1/completions", 405},
        {"DELETE", "/v1/completions", 405},
        {"PATCH", "/health", 405},
        {"FOO", "/health", 405},
        {"TRACE", "/health", 405},
        {"POST", "/", 405},
        {"GET", "/v1/models/tiny", 200},
        {"GET", "/v1/models/other", 404},
        {"GET", "/v1/models/", 404},
        {"GET", "/v1/models/a%2fb%00c", 404},
        {"DELETE", "/v1/requests/x", 404},
        {"POST", "/v1/requests/x", 404},
        {"POST", "/v1/requests//cancel", 404},
        {"POST", "/v1/requests/cancel", 404},
        {"GET", "/v1/requests/x", 405},
        {"GET", "/v1/../health", 404},
        {"GET", "/%", 404},
        {"GET", "/%zz", 404},
        {"GET", "/\xff\xfe", 404},
        {"DELETE", "/v1/cache", 200},
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct client c;
        char text[256];
        const int n = snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: localhost\r\n\r\n",
                               CASES[i].method, CASES[i].path);
        open_client(&c);
        client_send(&c, text, (size_t)n);
        assert_true(client_wait_bytes(&c, 12));
        const int status = atoi(c.in + 9);
        if (status != CASES[i].status && !(status == 400 && CASES[i].status == 404))
            fail_msg("%s %s: %d, not %d", CASES[i].method, CASES[i].path, status, CASES[i].status);
        if (strcmp(CASES[i].method, "HEAD") == 0) { /* no body: what follows is the next response */
            client_send(&c, GET("/ready") "\r\n", strlen(GET("/ready") "\r\n"));
            shutdown(c.fd, SHUT_WR);
            while (client_wait_bytes(&c, c.len + 1))
                ;
            const char *end_of_head = strstr(c.in, "\r\n\r\n");
            assert_non_null(end_of_head);
            assert_true(strncmp(end_of_head + 4, "HTTP/1.1", 8) == 0 || !end_of_head[4]);
        }
        client_close(&c);
    }
    is_idle();
}

/* Refusals by HTTP itself have the form that the path's API gives errors. */
static void test_form_of_refusals(void **state) {
    static const struct {
        const char *request, *needs[4];
    } CASES[] = {
        {"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048577\r\n\r\n",
         {"HTTP/1.1 413", "Connection: close", "\"type\":\"request_too_large\"", "bytes allowed"}},
        {POST "Content-Length: 1048577\r\n\r\n",
         {"HTTP/1.1 413", "Connection: close", "\"code\":\"request_too_large\"", "bytes allowed"}},
        {"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length : 3\r\n\r\n{}",
         {"HTTP/1.1 400", "Connection: close", "\"type\":\"error\"", "a header name"}},
        {"PUT /v1/messages HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
         {"HTTP/1.1 405", "Allow: OPTIONS, POST\r\n", "\"type\":\"error\"", "not allowed"}},
        {"PUT /v1/requests/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
         {"HTTP/1.1 405", "Allow: OPTIONS, DELETE, POST\r\n", "\"param\":null", "not allowed"}},
        {"PUT /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
         {"HTTP/1.1 405", "Allow: OPTIONS, GET, HEAD\r\n", "\"code\":null", "not allowed"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct client c;
        open_client(&c);
        client_send(&c, CASES[i].request, strlen(CASES[i].request));
        while (client_wait_bytes(&c, c.len + 1))
            ;
        for (int n = 0; n < 4; n++)
            if (!strstr(c.in, CASES[i].needs[n]))
                fail_msg("case %zu: no '%s' in: %s", i, CASES[i].needs[n], c.in);
        client_close(&c);
    }
    is_idle();
}

/* ---- clients that go away -------------------------------------------------------------------- */

static void test_gone_while_asking(void **state) {
    static const char *const ALL[] = {
        POST "X-Request-Id: abc\r\nContent-Length: 29\r\n\r\n" BODY,
        POST "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"pro\r\n18\r\nmpt\":\"x\",\"max_tokens\":1}"
             "\r\n0\r\n\r\n"};
    (void)state;
    for (size_t i = 0; i < 2; i++)
        for (size_t n = 0; n <= strlen(ALL[i]); n++) {
            struct client c;
            open_client(&c);
            client_send(&c, ALL[i], n);
            if (n % 3 == 0)
                client_reset(&c);
            else
                client_close(&c);
        }
    is_idle();
    assert_int_equal(ask("GET", "/health", "", ""), 200);
}

static void test_gone_while_answered(void **state) {
    static const char STREAM[] = "{\"prompt\":\"x\",\"max_tokens\":400,\"ignore_eos\":true,"
                                 "\"stream\":true}";
    (void)state;
    for (size_t n = 0; n < 2500; n += n < 400 ? 9 : 97) {
        struct client c;
        open_client(&c);
        assert_true(client_request(&c, "POST", "/v1/completions", "", STREAM));
        if (n)
            client_wait_bytes(&c, n);
        if (n % 2)
            client_reset(&c);
        else
            client_close(&c);
        is_idle();
    }
}

/* A body with a prompt of n tokens, as numbers; the caller frees it */
static char *long_body(size_t n, const char *rest) {
    char *text = malloc(4 * n + strlen(rest) + 64), *at = text + sprintf(text, "{\"prompt\":[1");
    for (size_t i = 1; i < n; i++, at += 4)
        sprintf(at, ",%03zu", 100 + i * 7 % 100);
    sprintf(at, "],\"ignore_eos\":true%s}", rest);
    return text;
}

static kvasir_engine_stats stats_now(void) {
    kvasir_engine_stats stats;
    kvasir_engine_get_stats(tiny.engine, &stats);
    return stats;
}

/* Waits until the prompt runs or, if `answers`, until tokens have been generated since `before`: a
 * slow reader's request may end before it is seen running. */
static void wait_until_it_runs(bool answers, const kvasir_engine_stats *before) {
    for (int i = 0; i < 2000; i++) {
        const kvasir_engine_stats s = stats_now();
        if (answers ? s.generated_tokens > before->generated_tokens : s.running)
            return;
        pause_ms(2);
    }
    fail_msg("it does not run");
}

/* Clients that leave, by closing or by a reset, without a stream too, and during prefill, when they
 * have not received anything. */
static void test_gone_in_a_long_one(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        const bool prefill = i & 1, stream = i & 2, reset = i & 4;
        struct client c;
        char rest[96];
        const kvasir_engine_stats before = stats_now();
        snprintf(rest, sizeof rest, ",\"max_tokens\":%d,\"stream\":%s,\"cache_salt\":\"%d\"",
                 prefill ? 1 : 30000, stream ? "true" : "false", i);
        char *body = long_body(prefill ? 30000 : 2, rest);
        open_client(&c);
        assert_true(client_request(&c, "POST", "/v1/completions", "", body));
        free(body);
        wait_until_it_runs(!prefill, &before);
        if (reset)
            client_reset(&c);
        else
            client_close(&c);
        is_idle();
        const kvasir_engine_stats after = stats_now();
        assert_int_equal(after.cancelled, before.cancelled + 1);
        assert_true(after.generated_tokens < before.generated_tokens + (prefill ? 1 : 29999));
    }
}

/* Clients that close only their own side, as `nc -N` does, get their answers. */
static void test_half_closed(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        const bool old = i >= 4, stream = i & 1, prefill = i & 2;
        struct client c;
        char rest[96], head[200];
        const kvasir_engine_stats before = stats_now();
        snprintf(rest, sizeof rest, ",\"max_tokens\":%d,\"stream\":%s", prefill ? 1 : 200,
                 stream ? "true" : "false");
        char *body = long_body(prefill ? 2000 : 2, rest);
        snprintf(head, sizeof head,
                 "POST /v1/completions HTTP/1.%d\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
                 !old, strlen(body));
        open_client(&c);
        assert_true(client_send(&c, head, strlen(head)));
        assert_true(client_send(&c, body, strlen(body)));
        shutdown(c.fd, SHUT_WR);
        free(body);
        assert_false(client_wait_bytes(&c, SIZE_MAX)); /* until it ends */
        assert_non_null(strstr(c.in, " 200 OK\r\n"));
        assert_non_null(strstr(c.in, stream ? "data: [DONE]" : "\"finish_reason\":\"length\""));
        client_close(&c);
        is_idle();
        assert_int_equal(stats_now().cancelled, before.cancelled);
    }
}

/* A client that reads nothing, or a byte now and then: the server does not wait for it but cancels
 * its request. */
static void test_slow_readers(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct client c;
        const kvasir_engine_stats before = stats_now();
        const double start = now();
        assert_true(client_open(&c, tiny.port, 2048));
        assert_true(client_request(&c, "POST", "/v1/completions", "",
                                   "{\"prompt\":\"x\",\"max_tokens\":32000,\"ignore_eos\":true,"
                                   "\"stream\":true,\"logprobs\":20}"));
        wait_until_it_runs(true, &before);
        while (server_open_requests(tiny.server) && now() - start < 90) { /* TSan takes 30 */
            char byte;
            if (i)
                (void)!recv(c.fd, &byte, 1, MSG_DONTWAIT);
            pause_ms(50);
        }
        assert_int_equal(server_open_requests(tiny.server), 0);
        assert_int_equal(stats_now().cancelled, before.cancelled + 1);
        client_close(&c);
        is_idle();
    }
}

/* ---- ids and seeds --------------------------------------------------------------------------- */

/* The text of an answer to `body`; its id, when it begins with cmpl-, as a number. */
static void ask_sampled(const char *seed, uint64_t *high, uint64_t *low, char text[SAID_TEXT]) {
    char body[200];
    struct client c;
    struct said said;
    snprintf(body, sizeof body,
             "{\"prompt\":\"x\",\"max_tokens\":24,\"ignore_eos\":true,"
             "\"temperature\":1%s}",
             seed);
    open_client(&c);
    assert_true(client_request(&c, "POST", "/v1/completions", "", body));
    struct client_answer a = client_read(&c);
    assert_int_equal(a.status, 200);
    const char *id = strstr(a.body, "\"id\":\"cmpl-");
    unsigned long long h;
    unsigned l;
    assert_non_null(id);
    assert_int_equal(sscanf(id + 11, "%16llx%8x", &h, &l), 2);
    *high = h;
    *low = l;
    said_read(&a, &said);
    strcpy(text, said.text[0]);
    free(a.body);
    client_close(&c);
}

/* An id tells neither the seed of its request nor how many there were. */
static void test_ids(void **state) {
    char text[SAID_TEXT], again[SAID_TEXT], seed[40];
    uint64_t high[3], low[3], h, l;
    (void)state;
    for (int i = 0; i < 3; i++) {
        ask_sampled("", &high[i], &low[i], text);
        const uint64_t guesses[] = {high[i], low[i], high[i] + 0x9e3779b97f4a7c15u * low[i]};
        for (int g = 0; g < 3; g++) {
            snprintf(seed, sizeof seed, ",\"seed\":%lld", (long long)(guesses[g] & INT64_MAX));
            ask_sampled(seed, &h, &l, again);
            assert_string_not_equal(again, text);
        }
        for (int k = 0; k < i; k++)
            assert_true(high[k] != high[i] &&
                        (low[k] > low[i] ? low[k] - low[i] : low[i] - low[k]) > 16);
    }
    ask_sampled(",\"seed\":7", &h, &l, text);
    ask_sampled(",\"seed\":7", &h, &l, again);
    assert_string_equal(again, text);
}

/* ---- access ---------------------------------------------------------------------------------- */

static void test_keys(void **state) {
    static const char *const PATHS[] = {
        "/v1/models",    "/v1/models/tiny", "/v1/status",  "/metrics",
        "/version",      "/V1/models",      "//v1/models", "/v1//models",
        "/v1/models/",   "/%76%31/models",  "/health/",    "/health/../v1/models",
        "/health%2f",    "/v1/models%00",   "/nothing",    "/ready/v1/models",
        "/?/v1/models/", "/v1/cache/stats"};
    static const char *const WRONG[] = {"",
                                        "Authorization: Bearer key-\r\n",
                                        "Authorization: Bearer key-ax\r\n",
                                        "Authorization: Bearer KEY-A\r\n",
                                        "Authorization: Bearer\r\n",
                                        "Authorization: Basic key-a\r\n",
                                        "Authorization: key-a\r\n",
                                        "X-Api-Key: key-c\r\n",
                                        "X-Api-Key:\r\n",
                                        "Authorization: Bearer x\r\nX-Api-Key: key-a\r\n"};
    (void)state;
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; i++)
        for (size_t k = 0; k < sizeof WRONG / sizeof *WRONG; k++) {
            const int status = ask("GET", PATHS[i], WRONG[k], "");
            const bool page = PATHS[i][1] == '?';
            if (status != (page ? 200 : 401) && status != 400)
                fail_msg("GET %s %s: %d", PATHS[i], WRONG[k], status);
        }
    assert_int_equal(ask("GET", "/v1/models", "authorization: bearer key-a\r\n", ""), 200);
    assert_int_equal(ask("GET", "/v1/models", "x-api-key: key-b\r\n", ""), 200);
    assert_int_equal(ask("DELETE", "/v1/cache", "X-Api-Key: key-a\r\n", ""), 403);
    assert_int_equal(ask("DELETE", "/v1/cache", "X-Api-Key: key-admin\r\n", ""), 200);
    assert_int_equal(ask("GET", "/health", "", ""), 200);
    /* a large body is read neither without a key nor for an unknown path */
    assert_int_equal(status_of_text(POST "Content-Length: 20000000\r\n\r\n{"), 401);
    assert_int_equal(
        status_of_text("POST /nothing HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: key-a\r\n"
                       "Content-Length: 20000000\r\n\r\n{"),
        404);
}

static struct client_answer ask_as(const char *key, const char *body) {
    struct client c;
    char headers[64];
    snprintf(headers, sizeof headers, "X-Api-Key: %s\r\n", key);
    open_client(&c);
    assert_true(client_request(&c, "POST", "/v1/completions", headers, body));
    struct client_answer a = client_read(&c);
    client_close(&c);
    assert_int_equal(a.status, 200);
    return a;
}

static int64_t cached(const char *key, const char *salt) {
    char rest[96];
    static struct said said;
    snprintf(rest, sizeof rest, ",\"max_tokens\":1,\"cache_salt\":\"%s\"", salt);
    char *body = long_body(300, rest);
    struct client_answer a = ask_as(key, body);
    said_read(&a, &said);
    free(a.body);
    free(body);
    return said.cached_tokens;
}

static void test_tenants_share_nothing(void **state) {
    (void)state;
    assert_int_equal(cached("key-a", ""), 0);
    assert_true(cached("key-a", "") > 200);
    assert_int_equal(cached("key-b", ""), 0);
    assert_int_equal(cached("key-admin", ""), 0);
    assert_int_equal(cached("key-a", "s"), 0);
    assert_int_equal(cached("key-b", "s"), 0);
    assert_true(cached("key-a", "s") > 200);
    /* a salt that looks like a key is not taken for one */
    assert_int_equal(cached("key-b", "key-a"), 0);
    assert_int_equal(cached("key-b", "\\nkey-a\\n"), 0);
    assert_int_equal(cached("key-b", "key-a\\ns"), 0);
    assert_int_equal(cached("key-b", "\\n"), 0);
}

static int cancel_as(const char *key, const char *id) {
    char path[128], headers[64];
    snprintf(path, sizeof path, "/v1/requests/%s", id);
    snprintf(headers, sizeof headers, "X-Api-Key: %s\r\n", key);
    return ask("DELETE", path, headers, "");
}

static void test_tenants_cancel_their_own(void **state) {
    static const char BODY_LONG[] = "{\"prompt\":\"x\",\"max_tokens\":8000,\"ignore_eos\":true}";
    struct client c[3];
    (void)state;
    for (int i = 0; i < 3; i++) { /* one tenant's two with the same id, and another tenant's */
        open_client(&c[i]);
        assert_true(client_request(&c[i], "POST", "/v1/completions",
                                   i < 2 ? "X-Api-Key: key-a\r\nX-Request-Id: same\r\n"
                                         : "X-Api-Key: key-b\r\nX-Request-Id: same\r\n",
                                   BODY_LONG));
    }
    while (server_open_requests(tiny.server) < 3)
        pause_ms(1);
    assert_int_equal(cancel_as("key-b", "other"), 404);
    assert_int_equal(cancel_as("key-b", ""), 404);
    assert_int_equal(cancel_as("key-a", "same"), 200);
    for (int i = 0; i < 2; i++) {
        struct client_answer a = client_read(&c[i]);
        assert_int_equal(a.status, 499);
        free(a.body);
    }
    pause_ms(100);
    assert_int_equal(server_open_requests(tiny.server), 1); /* key-b's still runs */
    assert_int_equal(cancel_as("key-a", "same"), 404);
    assert_int_equal(cancel_as("key-admin", "same"), 200);
    struct client_answer a = client_read(&c[2]);
    assert_int_equal(a.status, 499);
    free(a.body);
    assert_int_equal(cancel_as("key-b", "same"), 404);
    for (int i = 0; i < 3; i++)
        client_close(&c[i]);
    is_idle();
}

/* An id that is not a plain name is not used: it would go into headers and the log. */
static void test_request_ids(void **state) {
    static const char *const IDS[] = {"a b", "a\tb", "a\xff",      "a\"b",
                                      "a;b", "a,b",  "%0d%0aX: y", "<x>"};
    (void)state;
    for (size_t i = 0; i < sizeof IDS / sizeof *IDS; i++) {
        struct client c;
        char headers[128];
        snprintf(headers, sizeof headers, "X-Api-Key: key-a\r\nX-Request-Id: %s\r\n", IDS[i]);
        open_client(&c);
        assert_true(client_request(&c, "POST", "/v1/completions", headers,
                                   "{\"prompt\":\"x\",\"max_tokens\":1,\"stream\":true}"));
        assert_true(client_wait_bytes(&c, 100));
        assert_int_equal(strncmp(c.in, "HTTP/1.1 200", 12), 0);
        assert_null(strstr(c.in, IDS[i]));
        client_close(&c);
    }
    is_idle();
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Draining: open requests go on, new ones are refused, and in the end none is open. */
static void test_drain(void **state) {
    static const struct {
        const char *method, *path, *body;
        int status;
        const char *says;
    } CASES[] = {
        {"GET", "/ready", "", 503,
         "{\"error\":{\"message\":\"the server is shutting down\",\"type\":\"server_error\""},
        {"GET", "/v1/models", "", 503, "\"the server is shutting down\",\"type\":\"server_error\""},
        {"POST", "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":1}", 503,
         "\"the server is shutting down\",\"type\":\"server_error\""},
        {"POST", "/v1/messages",
         "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", 503,
         "\"the server is shutting down\""},
        {"GET", "/health", "", 200, "\"status\":\"healthy\""},
    };
    enum { N = sizeof CASES / sizeof *CASES };
    static struct said said;
    struct client stream, others[N], late;
    struct client_answer a;
    (void)state;
    make_long(state);
    for (int i = 0; i < N; i++) { /* connections that are open when draining begins */
        open_client(&others[i]);
        assert_true(client_request(&others[i], "GET", "/ready", "", ""));
        a = client_read(&others[i]);
        assert_int_equal(a.status, 200);
        free(a.body);
    }
    open_client(&stream);
    assert_true(client_request(&stream, "POST", "/v1/completions", "",
                               "{\"prompt\":\"x\",\"max_tokens\":3000,\"ignore_eos\":true,"
                               "\"stream\":true}"));
    assert_true(client_wait_bytes(&stream, 500));
    server_drain(tiny.server);
    for (int i = 0; i < N; i++) {
        assert_true(client_request(&others[i], CASES[i].method, CASES[i].path, "", CASES[i].body));
        a = client_read(&others[i]);
        if (a.status != CASES[i].status || a.cut || !strstr(a.body, CASES[i].says))
            fail_msg("%s while draining: %d %s", CASES[i].path, a.status, a.body ? a.body : "");
        free(a.body);
        client_close(&others[i]);
    }
    assert_int_equal(server_open_requests(tiny.server), 1); /* the stream still runs */
    assert_false(client_open(&late, tiny.port, -1));        /* nobody listens */
    a = client_read(&stream);
    assert_int_equal(a.status, 200);
    said_read(&a, &said);
    assert_false(a.cut || said.failed || !said.done);
    assert_string_equal(said.finish[0], "length");
    free(a.body);
    client_close(&stream);
    is_idle();
    end(state);
}

/* The server is closed at any moment, with requests in every state. */
static void test_stop_at_any_time(void **state) {
    enum { CLIENTS = 12 };
    (void)state;
    for (unsigned round = 0; round < 12; round++) {
        struct client c[CLIENTS];
        make_long(state);
        for (int i = 0; i < CLIENTS; i++) {
            char rest[96];
            snprintf(rest, sizeof rest, ",\"max_tokens\":%d,\"stream\":%s", i % 4 ? 2000 : 1,
                     i % 2 ? "true" : "false");
            char *body = long_body(i % 3 ? 20 : 5000, rest);
            open_client(&c[i]);
            if (i == 5)
                client_send(&c[i], POST "Content-Length: 29\r\n\r\n{", 60);
            else
                assert_true(client_request(&c[i], "POST", "/v1/completions", "", body));
            free(body);
        }
        pause_ms(round * 3);
        for (int i = 0; i < 4; i++)
            client_close(&c[i]);
        end(state);
        for (int i = 4; i < CLIENTS; i++)
            client_close(&c[i]);
    }
}

int main(void) {
#define TEST(f, make) cmocka_unit_test_setup_teardown(f, make, end)
    const struct CMUnitTest tests[] = {
        TEST(test_lengths, make),
        TEST(test_lines, make),
        TEST(test_headers, make),
        TEST(test_slow_requests, make),
        TEST(test_pipelining, make),
        TEST(test_methods, make),
        TEST(test_form_of_refusals, make),
        TEST(test_gone_while_asking, make),
        TEST(test_gone_while_answered, make),
        TEST(test_gone_in_a_long_one, make_long),
        TEST(test_half_closed, make_long),
        TEST(test_ids, make),
        TEST(test_slow_readers, make_slow),
        TEST(test_keys, make_keys),
        TEST(test_tenants_share_nothing, make_keys),
        TEST(test_tenants_cancel_their_own, make_keys),
        TEST(test_request_ids, make_keys),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_stop_at_any_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
