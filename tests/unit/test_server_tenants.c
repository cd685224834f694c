/* SPDX-License-Identifier: Apache-2.0 */
/* What clients cannot take from each other: the admin port, figures, connections of one address,
 * also behind proxies. */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "http_client.h"
#include "tiny_server.h"

static struct tiny_server tiny;

enum { CONNECTIONS = 3 };
#define LONG_BODY "{\"prompt\":\"x\",\"max_tokens\":30000,\"ignore_eos\":true,\"stream\":true}"

static int end(void **state) {
    (void)state;
    tiny_server_close(&tiny);
    return 0;
}

static int make_admin(void **state) {
    static const struct server_key KEYS[] = {{.key = "key-a"}};
    (void)state;
    tiny_server_init(&tiny);
    tiny.engine_options.context.ctx = 32768;
    tiny.engine_options.cache_memory_bytes = 256 << 20;
    tiny.options.api_keys = KEYS;
    tiny.options.n_api_keys = 1;
    tiny.options.max_connections = CONNECTIONS;
    tiny.options.admin_port = 0;
    tiny_server_open(&tiny);
    return 0;
}

/* The status; *body, unless NULL, is to be freed. key: NULL: none */
static int ask(uint16_t port, const char *path, const char *key, char **body) {
    struct client c;
    char headers[64] = "";
    if (key)
        snprintf(headers, sizeof headers, "X-Api-Key: %s\r\n", key);
    assert_true(client_open(&c, port, -1));
    assert_true(client_request(&c, "GET", path, headers, ""));
    struct client_answer a = client_read(&c);
    client_close(&c);
    if (body)
        *body = a.body;
    else
        free(a.body);
    return a.status;
}

/* ---- the admin port -------------------------------------------------------------------------- */

static void test_admin_port(void **state) {
    struct client busy[CONNECTIONS], waits;
    char body[1];
    const uint16_t port = server_admin_port(tiny.server);
    (void)state;
    for (int i = 0; i < CONNECTIONS; i++) { /* streams on all connections of the other port */
        assert_true(client_open(&busy[i], tiny.port, 4096));
        assert_true(
            client_request(&busy[i], "POST", "/v1/completions", "X-Api-Key: key-a\r\n", LONG_BODY));
        assert_true(client_wait_bytes(&busy[i], 300));
    }
    assert_true(client_open(&waits, tiny.port, -1));
    assert_true(client_request(&waits, "GET", "/health", "", ""));
    const double begin = now();
    for (int i = 0; i < 20; i++)
        assert_int_equal(ask(port, "/health", NULL, NULL), 200);
    assert_int_equal(ask(port, "/ready", NULL, NULL), 200);
    assert_int_equal(ask(port, "/metrics", NULL, NULL), 401);
    assert_int_equal(ask(port, "/metrics", "key-a", NULL), 200);
    assert_int_equal(ask(port, "/v1/status", "key-a", NULL), 200);
    assert_int_equal(ask(port, "/v1/models", "key-a", NULL), 404);
    assert_int_equal(ask(port, "/", "key-a", NULL), 404);
    assert_true(now() - begin < 5);
    assert_int_equal(recv(waits.fd, body, sizeof body, MSG_DONTWAIT),
                     -1); /* the other port had no room all the while */
    server_drain(tiny.server);
    assert_int_equal(ask(port, "/health", NULL, NULL), 200);
    assert_int_equal(ask(port, "/ready", NULL, NULL), 503);
    for (int i = 0; i < CONNECTIONS; i++)
        client_close(&busy[i]);
    client_close(&waits);
}

/* ---- figures --------------------------------------------------------------------------------- */

static void make_figures(const char *admin, size_t n) {
    static const struct server_key KEYS[] = {{.key = "key-a", .name = "alice"},
                                             {.key = "key-b", .name = "bob"}};
    tiny_server_init(&tiny);
    tiny.options.api_keys = KEYS;
    tiny.options.n_api_keys = n;
    tiny.options.admin_key = admin;
    tiny.options.admin_port = 0;
    tiny_server_open(&tiny);
}

static int make_two(void **state) {
    (void)state;
    make_figures(NULL, 2);
    return 0;
}

static int make_two_and_admin(void **state) {
    (void)state;
    make_figures("key-admin", 2);
    return 0;
}

static int make_one(void **state) {
    (void)state;
    make_figures(NULL, 1);
    return 0;
}

static void complete(const char *key) {
    struct client c;
    char headers[64];
    snprintf(headers, sizeof headers, "X-Api-Key: %s\r\n", key);
    assert_true(client_open(&c, tiny.port, -1));
    assert_true(client_request(&c, "POST", "/v1/completions", headers,
                               "{\"prompt\":\"four\",\"max_tokens\":3,\"ignore_eos\":true}"));
    struct client_answer a = client_read(&c);
    assert_int_equal(a.status, 200);
    free(a.body);
    client_close(&c);
}

/* What stands in one of the three pages of figures. */
static bool shows(uint16_t port, const char *path, const char *key, const char *text) {
    char *body;
    assert_int_equal(ask(port, path, key, &body), 200);
    const bool found = strstr(body, text) != NULL;
    free(body);
    return found;
}

static void sees_all(uint16_t port, const char *key, bool all) {
    static const char *const WHOLE[] = {"kvasir_tenant_generation_tokens_total{tenant=\"bob\"} 6",
                                        "kvasir_cache_used_bytes ", "kvasir_http_requests_total{",
                                        "vllm:num_requests_running{"};
    for (size_t i = 0; i < sizeof WHOLE / sizeof *WHOLE; i++)
        assert_true(shows(port, "/metrics", key, WHOLE[i]) == all);
    assert_true(shows(port, "/v1/status", key, "\"tenant\":\"bob\"") == all);
    assert_true(shows(port, "/v1/status", key, "\"used_bytes\"") == all);
    assert_true(shows(port, "/v1/status", key, "\"steps_executed\"") == all);
    assert_true(shows(port, "/v1/status", key,
                      all ? "\"total_completion_tokens\":9," : "\"total_completion_tokens\":3,"));
    assert_true(shows(port, "/v1/status", key, "\"tenant\":\"alice\""));
    assert_true(shows(port, "/metrics", key,
                      "kvasir_tenant_generation_tokens_total{tenant=\"alice\"} 3\n"));
    if (port != tiny.port)
        return;
    assert_true(shows(port, "/v1/cache/stats", key, "\"current_memory_mb\"") == all);
    assert_true(shows(port, "/v1/cache/stats", key, "\"misses\":1") != all);
}

static void complete_all(void) {
    kvasir_engine_stats stats;
    complete("key-a");
    complete("key-b");
    complete("key-b");
    assert_true(tiny_server_idle(&tiny, 300000, &stats));
}

static void test_figures_of_two(void **state) {
    (void)state;
    complete_all();
    sees_all(tiny.port, "key-a", false);
    sees_all(server_admin_port(tiny.server), "key-a", true);
}

static void test_figures_for_admin(void **state) {
    (void)state;
    complete_all();
    sees_all(tiny.port, "key-a", false);
    sees_all(tiny.port, "key-admin", true);
    static const struct server_key ONE[] = {{.key = "key-a", .name = "alice"}};
    assert_true(server_set_keys(tiny.server, ONE, 1)); /* the admin still is another one */
    sees_all(tiny.port, "key-a", false);
}

static void test_figures_of_one(void **state) {
    (void)state;
    complete("key-a");
    assert_true(shows(tiny.port, "/metrics", "key-a", "vllm:num_requests_running{"));
    assert_true(shows(tiny.port, "/v1/cache/stats", "key-a", "\"current_memory_mb\""));
    assert_int_equal(ask(tiny.port, "/metrics", NULL, NULL), 401);
}

/* ---- quotas ---------------------------------------------------------------------------------- */

static int make_quotas(void **state) {
    static const struct server_key KEYS[] = {
        {.key = "key-a", .name = "alice", .requests_per_minute = 1},
        {.key = "key-b", .name = "bob", .concurrent = 1}};
    (void)state;
    tiny_server_init(&tiny);
    tiny.options.api_keys = KEYS;
    tiny.options.n_api_keys = 2;
    tiny_server_open(&tiny);
    return 0;
}

static const struct {
    const char *path, *body;
} TEXTS[] = {{"/tokenize", "{\"prompt\":\"four\"}"},
             {"/detokenize", "{\"tokens\":[97]}"},
             {"/apply-template", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"},
             {"/v1/messages/count_tokens",
              "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"},
             {"/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":1}"}};
enum { N_TEXTS = sizeof TEXTS / sizeof *TEXTS };

/* Over an open connection. */
static int post(struct client *c, size_t i, const char *headers, const char *says) {
    assert_true(client_request(c, "POST", TEXTS[i].path, headers, TEXTS[i].body));
    struct client_answer a = client_read(c);
    if (!strstr(a.body, says))
        fail_msg("%s: %s", TEXTS[i].path, a.body);
    free(a.body);
    return a.status;
}

/* An answer that is longer than sockets hold, and not read: the request stays open. */
static void begin_long_answer(struct client *c, const char *headers) {
    enum { LONG = 8 << 20 };
    static const char HEAD[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"", TAIL[] = "\"}]}";
    char *body = malloc(LONG + sizeof HEAD + sizeof TAIL);
    assert_non_null(body);
    memcpy(body, HEAD, sizeof HEAD - 1);
    memset(body + sizeof HEAD - 1, 'a', LONG);
    memcpy(body + sizeof HEAD - 1 + LONG, TAIL, sizeof TAIL);
    assert_true(client_open(c, tiny.port, 4096));
    assert_true(client_request(c, "POST", "/apply-template", headers, body));
    assert_true(client_wait_bytes(c, 300));
    free(body);
}

/* Requests that are answered without the engine count, too. */
static void test_text_quotas(void **state) {
    static const char ALICE[] = "X-Api-Key: key-a\r\n", BOB[] = "X-Api-Key: key-b\r\n";
    struct client c, busy;
    (void)state;
    assert_true(client_open(&c, tiny.port, -1));
    assert_int_equal(post(&c, 0, ALICE, "tokens"), 200);
    for (size_t i = 0; i < N_TEXTS; i++) {
        assert_int_equal(post(&c, i, ALICE, "the quota \\\"requests_per_minute\\\" of 1"), 429);
        assert_int_equal(post(&c, i, BOB, ""), 200); /* one after the other */
    }
    begin_long_answer(&busy, BOB);
    for (size_t i = 0; i < N_TEXTS; i++)
        assert_int_equal(post(&c, i, BOB, "the quota \\\"concurrent\\\" of 1"), 429);
    client_close(&busy);
    client_close(&c);
}

/* ---- proxies --------------------------------------------------------------------------------- */

static char logged[1 << 16];

static void log_line(void *user, const char *line) {
    (void)user;
    const size_t n = strlen(logged);
    snprintf(logged + n, sizeof logged - n, "%s\n", line);
}

static int make_behind(const char *proxies) {
    static const char *lists[1];
    lists[0] = proxies;
    *logged = 0;
    tiny_server_init(&tiny);
    tiny.engine_options.context.ctx = 32768;
    tiny.engine_options.cache_memory_bytes = 256 << 20;
    tiny.options.max_address_connections = 2;
    tiny.options.trusted_proxies = lists;
    tiny.options.n_trusted_proxies = 1;
    tiny.options.on_log = log_line;
    tiny_server_open(&tiny);
    return 0;
}

static int make_proxy(void **state) {
    (void)state;
    return make_behind("10.0.0.0/8,127.0.0.1");
}

static int make_other_proxy(void **state) {
    (void)state;
    return make_behind("10.0.0.0/8");
}

/* A request that the proxy passes on over this connection. */
static int pass_on(struct client *c, const char *forwarded) {
    char headers[128];
    snprintf(headers, sizeof headers, "X-Forwarded-For: %s\r\n", forwarded);
    assert_true(client_request(c, "GET", "/v1/models", headers, ""));
    struct client_answer a = client_read(c);
    free(a.body);
    return a.status;
}

static void begin_stream(struct client *c, const char *forwarded) {
    char headers[128];
    snprintf(headers, sizeof headers, "X-Forwarded-For: %s\r\n", forwarded);
    assert_true(client_open(c, tiny.port, 4096));
    assert_true(client_request(c, "POST", "/v1/completions", headers, LONG_BODY));
    assert_true(client_wait_bytes(c, 300));
}

/* A proxy's connections are not limited, its clients' requests are. */
static void test_behind_proxy(void **state) {
    enum { IDLE = 8 };
    struct client idle[IDLE], busy[2], c;
    kvasir_engine_stats stats;
    (void)state;
    for (int i = 0; i < IDLE; i++)
        assert_true(client_open(&idle[i], tiny.port, -1));
    for (int round = 0; round < 2; round++) {
        char client[32], listed[96];
        snprintf(client, sizeof client, "203.0.113.%d", 70 + round);
        snprintf(listed, sizeof listed, "1.2.3.4, ::ffff:%s, 10.0.0.2", client);
        begin_stream(&busy[0], client);
        begin_stream(&busy[1], listed);
        for (int i = 0; i < 2; i++) {
            snprintf(listed, sizeof listed, "203.0.113.8, %s:99", client);
            assert_true(client_open(&c, tiny.port, -1));
            assert_int_equal(pass_on(&c, i ? listed : client), 429);
            client_close(&c);
        }
        snprintf(listed, sizeof listed, "%s, 203.0.113.8", client);
        assert_int_equal(pass_on(&idle[0], listed), 200);
        assert_int_equal(pass_on(&idle[0], "unknown"), 200);
        assert_int_equal(pass_on(&idle[0], "203.0.113.9"), 200); /* the next of a connection */
        client_close(&busy[0]);
        client_close(&busy[1]);
        assert_true(tiny_server_idle(&tiny, 300000, &stats)); /* the connections end after that */
        int status = 429;
        for (int ms = 0; ms < 300000 && status == 429; ms += 20, pause_ms(20)) {
            assert_true(client_open(&c, tiny.port, -1));
            status = pass_on(&c, client);
            client_close(&c);
        }
        assert_int_equal(status, 200);
        for (int i = 0; i < 5; i++) /* each counts while it is answered */
            assert_int_equal(pass_on(&idle[1], "203.0.113.10"), 200);
    }
    begin_stream(&busy[0], "2001:db8:0:1::7"); /* a client has a /64 of IPv6 */
    begin_stream(&busy[1], "[2001:db8:0:1:ffff::8]:99");
    assert_int_equal(pass_on(&idle[2], "2001:db8:0:2::7"), 200);
    assert_true(client_open(&c, tiny.port, -1));
    assert_int_equal(pass_on(&c, "2001:db8:0:1:8::9"), 429);
    client_close(&c);
    client_close(&busy[0]);
    client_close(&busy[1]);
    assert_true(tiny_server_idle(&tiny, 300000, &stats));
    /* at the limit of the proxy's own address */
    begin_stream(&busy[0], "unknown");
    begin_stream(&busy[1], "10.0.0.7");
    assert_int_equal(pass_on(&idle[2], ""), 429);
    client_close(&busy[0]);
    client_close(&busy[1]);
    for (int i = 0; i < IDLE; i++)
        client_close(&idle[i]);
    server_destroy(tiny.server); /* writes the log's last lines */
    tiny.server = NULL;
    assert_non_null(strstr(logged, " client=203.0.113.70 prompt="));
    assert_non_null(strstr(logged, "status=429 client=203.0.113.71 method="));
    assert_non_null(strstr(logged, " client=127.0.0.1 prompt="));
    assert_null(strstr(logged, "client=10."));
    assert_null(strstr(logged, "client=1.2.3.4"));
}

/* Anybody else may write what they want into the header. */
static void test_no_proxy(void **state) {
    struct client busy[2], c;
    struct client_answer a;
    (void)state;
    begin_stream(&busy[0], "203.0.113.7");
    begin_stream(&busy[1], "203.0.113.8");
    assert_true(client_open(&c, tiny.port, -1));
    client_request(&c, "GET", "/v1/models", "X-Forwarded-For: 203.0.113.9\r\n", "");
    a = client_read(&c);
    assert_int_equal(a.status, 0); /* closed without an answer */
    free(a.body);
    client_close(&c);
    for (int i = 0; i < 2; i++)
        client_close(&busy[i]);
    server_destroy(tiny.server);
    tiny.server = NULL;
    assert_null(strstr(logged, "client=203"));
    assert_non_null(strstr(logged, "client=127.0.0.1 prompt="));
}

static void test_bad_lists(void **state) {
    static const char *const BAD[] = {"", "10.0.0.1,", ",10.0.0.1", "10.0.0.1, 10.0.0.2", "nginx"};
    (void)state;
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        kvasir_error err;
        const struct server_options o = {.trusted_proxies = &BAD[i], .n_trusted_proxies = 1};
        assert_false(server_check_proxies(&o, &err));
        assert_int_equal(err.code, KVASIR_ERR_ARGUMENT);
        assert_string_equal(err.field, "server.trusted_proxies");
    }
}

int main(void) {
#define TEST(f, make) cmocka_unit_test_setup_teardown(f, make, end)
    const struct CMUnitTest tests[] = {
        TEST(test_admin_port, make_admin),
        TEST(test_figures_of_two, make_two),
        TEST(test_figures_for_admin, make_two_and_admin),
        TEST(test_figures_of_one, make_one),
        TEST(test_text_quotas, make_quotas),
        TEST(test_behind_proxy, make_proxy),
        TEST(test_no_proxy, make_other_proxy),
        cmocka_unit_test(test_bad_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
