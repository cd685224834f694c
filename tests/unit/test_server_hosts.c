/* SPDX-License-Identifier: Apache-2.0 */
/* Which sites' pages may use a server: Host and Origin. */
#include <stdio.h>
#include <string.h>

#include "http_client.h"
#include "tiny_server.h"

static struct tiny_server tiny;

static int end(void **state) {
    (void)state;
    tiny_server_close(&tiny);
    return 0;
}

static int make(void **state) {
    (void)state;
    tiny_server_init(&tiny);
    tiny_server_open(&tiny);
    return 0;
}

static int status_of_text(const char *text) {
    struct client c;
    assert_true(client_open(&c, tiny.port, -1));
    client_send(&c, text, strlen(text));
    struct client_answer a = client_read(&c);
    free(a.body);
    client_close(&c);
    return a.status;
}

/* A web page of a site whose DNS points at this machine (DNS rebinding). */
static void test_hosts(void **state) {
    static const struct {
        const char *host, *origin;
        int status;
    } CASES[] = {
        {"localhost", NULL, 200},
        {"LocalHost:8080", NULL, 200},
        {"127.0.0.1:1", NULL, 200},
        {"127.8.9.10", NULL, 200},
        {"[::1]:8080", NULL, 200},
        {"page.localhost:8080", NULL, 200},
        {"evil.example", NULL, 403},
        {"evil.example:8080", "http://evil.example:8080", 403},
        {"127.0.0.1.evil.example", NULL, 403},
        {"127.evil.example", NULL, 403},
        {"localhost.evil.example", NULL, 403},
        {"evillocalhost", NULL, 403},
        {"0.0.0.0", NULL, 403},
        {"10.0.0.1", NULL, 403},
        {"[::2]", NULL, 403},
        {"[", NULL, 403},
        {"localhost:8080", "http://localhost:8080", 200},
        {"localhost:8080", "http://localhost:8081", 200}, /* a page that this machine serves */
        {"localhost:8080", "https://127.0.0.1", 200},
        {"localhost:8080", "http://[::1]:3000", 200},
        {"localhost:8080", "http://localhost.evil.example", 403},
        {"localhost:8080", "http://localhost:80.evil.example", 403},
        {"localhost:8080", "app://localhost", 403},
        {"evil.example", "http://localhost:3000", 403},
        {"localhost:8080", "https://evil.example", 403},
        {"localhost:8080", "null", 403},
        {"localhost:8080", "file://", 403},
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char text[256], origin[96] = "";
        if (CASES[i].origin)
            snprintf(origin, sizeof origin, "Origin: %s\r\n", CASES[i].origin);
        snprintf(text, sizeof text, "GET /v1/models HTTP/1.1\r\nHost: %s\r\n%s\r\n", CASES[i].host,
                 origin);
        const int status = status_of_text(text);
        if (status != CASES[i].status && !(status == 400 && CASES[i].status == 403))
            fail_msg("Host %s, %s%d, not %d", CASES[i].host, origin, status, CASES[i].status);
    }
}

/* On all addresses, with keys and allowed hosts: a key does not replace the check. */
static int make_hosts(void **state) {
    static const struct server_key KEYS[] = {{.key = "key-a"}};
    static const char *const HOSTS[] = {"llm.example.org", "fd00::1"};
    (void)state;
    tiny_server_init(&tiny);
    tiny.options.host = "0.0.0.0";
    tiny.options.api_keys = KEYS;
    tiny.options.n_api_keys = 1;
    tiny.options.allowed_hosts = HOSTS;
    tiny.options.n_allowed_hosts = 2;
    tiny_server_open(&tiny);
    return 0;
}

static int make_any_host(void **state) {
    static const char *const HOSTS[] = {"*"};
    (void)state;
    tiny_server_init(&tiny);
    tiny.options.allowed_hosts = HOSTS;
    tiny.options.n_allowed_hosts = 1;
    tiny_server_open(&tiny);
    return 0;
}

static int status_of_host(const char *host) {
    char text[256];
    snprintf(text, sizeof text, "GET /v1/models HTTP/1.1\r\nX-Api-Key: key-a\r\nHost: %s\r\n\r\n",
             host);
    return status_of_text(text);
}

static void test_allowed_hosts(void **state) {
    static const char *const GOOD[] = {"localhost",         "127.0.0.1:80", "10.1.2.3:8080",
                                       "[fe80::1]:8080",    "0.0.0.0",      "llm.example.org",
                                       "LLM.example.org:1", "[fd00:0::1]"};
    static const char *const BAD[] = {"evil.example", "x.llm.example.org", "llm.example.org.",
                                      "10.1.2", "10.1.2.3.evil.example"};
    (void)state;
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++)
        if (status_of_host(GOOD[i]) != 200)
            fail_msg("Host %s is refused", GOOD[i]);
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        if (status_of_host(BAD[i]) != 403)
            fail_msg("Host %s is not refused", BAD[i]);
    assert_int_equal(status_of_text("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n"), 403);
    assert_int_equal(status_of_text("GET /health HTTP/1.0\r\n\r\n"), 200);
}

static void test_any_host(void **state) {
    (void)state;
    assert_int_equal(status_of_host("evil.example"), 200);
}

int main(void) {
#define TEST(f, make) cmocka_unit_test_setup_teardown(f, make, end)
    const struct CMUnitTest tests[] = {
        TEST(test_hosts, make),
        TEST(test_allowed_hosts, make_hosts),
        TEST(test_any_host, make_any_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
