/* SPDX-License-Identifier: Apache-2.0 */
/* What clients cannot take from each other: the admin port. */
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

int main(void) {
#define TEST(f, make) cmocka_unit_test_setup_teardown(f, make, end)
    const struct CMUnitTest tests[] = {
        TEST(test_admin_port, make_admin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
