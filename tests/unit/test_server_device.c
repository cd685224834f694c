/* SPDX-License-Identifier: Apache-2.0 */
/* A server whose device is lost: running and later requests end with its error, whole and streamed
 * ones; /health and /ready say so; nothing hangs. The device is the CPU's backend, which fails from
 * some wait on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answers.h"
#include "http_client.h"
#include "lost_device.h"
#include "tiny_server.h"
#include "util/util.h"

static struct tiny_server tiny;

static const char WHOLE[] = "{\"prompt\":\"a\",\"max_tokens\":400,\"ignore_eos\":true}",
                  STREAM[] = "{\"prompt\":\"b\",\"max_tokens\":400,\"ignore_eos\":true,"
                             "\"stream\":true}";

static void open_server(bool mlx_health) {
    tiny_server_init(&tiny);
    tiny.engine_options.cache_memory_bytes = 64 << 20;
    tiny.options.mlx_health = mlx_health;
    tiny.backend = lost_device_create();
    tiny_server_open(&tiny);
}

static struct client_answer ask(const char *method, const char *path, const char *body) {
    struct client c;
    assert_true(client_open(&c, tiny.port, -1));
    assert_true(client_request(&c, method, path, "", body));
    struct client_answer a = client_read(&c);
    client_close(&c);
    return a;
}

/* The answer has this code and this text in it. */
static void check(struct client_answer a, int status, const char *text) {
    if (a.status != status || !a.body || !strstr(a.body, text))
        fail_msg("%d, %s: not %d with '%s'", a.status, a.body ? a.body : "", status, text);
    free(a.body);
}

/* Until the engine's thread has noticed. */
static void wait_until_lost(void) {
    kvasir_error err;
    for (int ms = 0; kvasir_engine_get_error(tiny.engine, &err) == KVASIR_OK; ms += 5) {
        assert_true(ms < 60000);
        pause_ms(5);
    }
}

static void test_requests_end_with_its_error(void **state) {
    enum { BESIDE = 4, STEPS = 20 };
    struct client c[BESIDE];
    kvasir_engine_stats stats;
    (void)state;
    open_server(false);
    check(ask("GET", "/health", ""), 200, "\"healthy\"");
    check(ask("GET", "/ready", ""), 200, "ready");
    check(ask("POST", "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":2}"), 200, "\"text\"");
    lost_device_after(STEPS);
    for (int i = 0; i < BESIDE; i++) {
        assert_true(client_open(&c[i], tiny.port, -1));
        assert_true(client_request(&c[i], "POST", "/v1/completions", "", i % 2 ? STREAM : WHOLE));
    }
    for (int i = 0; i < BESIDE; i++) {
        struct client_answer a = client_read(&c[i]);
        /* a stream that has begun has its code: it ends with the error */
        check(a, i % 2 && a.status == 200 ? 200 : 500, LOST_DEVICE_TEXT);
        client_close(&c[i]);
    }
    wait_until_lost();
    check(ask("POST", "/v1/completions", WHOLE), 500, LOST_DEVICE_TEXT);
    check(ask("GET", "/health", ""), 503, "\"unhealthy\",\"error\":\"" LOST_DEVICE_TEXT);
    check(ask("GET", "/ready", ""), 503, LOST_DEVICE_TEXT);
    check(ask("GET", "/metrics", ""), 200, "kvasir_");
    assert_true(tiny_server_idle(&tiny, 60000, &stats));
    assert_int_equal(engine_settled(tiny.engine).failed, BESIDE + 1);
    tiny_server_close(&tiny);
}

static void test_health_as_mlx(void **state) {
    (void)state;
    open_server(true);
    check(ask("GET", "/health", ""), 200, "\"ok\"");
    lost_device_after(0);
    check(ask("POST", "/v1/completions", WHOLE), 500, LOST_DEVICE_TEXT);
    wait_until_lost();
    check(ask("GET", "/health", ""), 503, "\"unavailable\"");
    tiny_server_close(&tiny);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_end_with_its_error),
        cmocka_unit_test(test_health_as_mlx),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
