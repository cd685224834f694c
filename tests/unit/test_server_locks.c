/* SPDX-License-Identifier: Apache-2.0 */
/* Requests must not hold each other up: a log that nobody reads stops no stream, and a server's
 * answers cost the engine's thread no allocation. Waiting for the end needs no polling. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static _Thread_local bool is_engine; /* this thread is the engine's */
static atomic_long engine_allocations;
#define COUNT_ALLOCATIONS_ON (is_engine ? &engine_allocations : NULL)

#include "http_client.h"
#include "tiny_server.h"

#include "count_allocations.h"

static struct tiny_server tiny;

/* ---- a log that blocks ----------------------------------------------------------------------- */

struct stalled_log {
    pthread_mutex_t mutex; /* held: the log blocks */
    atomic_uint entered, written, said_dropped;
};

static void write_line(void *user, const char *line) {
    struct stalled_log *l = user;
    atomic_fetch_add(&l->entered, 1);
    pthread_mutex_lock(&l->mutex);
    atomic_fetch_add(&l->written, 1);
    if (strstr(line, "lines dropped"))
        atomic_fetch_add(&l->said_dropped, 1);
    pthread_mutex_unlock(&l->mutex);
}

static void open_with_log(struct stalled_log *l) {
    tiny_server_init(&tiny);
    tiny.engine_options.context.ctx = 32768;
    tiny.engine_options.cache_memory_bytes = 256 << 20;
    tiny.options.on_log = write_line;
    tiny.options.log_user = l;
    tiny.options.log_prompts = true;
    tiny_server_open(&tiny);
}

static void begin_stream(struct client *c, unsigned max_tokens) {
    char body[128];
    snprintf(body, sizeof body,
             "{\"prompt\":\"x\",\"max_tokens\":%u,\"ignore_eos\":true,\"stream\":true}",
             max_tokens);
    assert_true(client_open(c, tiny.port, -1));
    assert_true(client_request(c, "POST", "/v1/completions", "Connection: close\r\n", body));
}

static void read_whole_stream(unsigned max_tokens) {
    struct client c;
    begin_stream(&c, max_tokens);
    struct client_answer a = client_read(&c);
    assert_int_equal(a.status, 200);
    assert_false(a.cut);
    assert_non_null(strstr(a.body, "[DONE]"));
    free(a.body);
    client_close(&c);
}

/* Clients that leave midway: their last events are still to come when their log lines are written.
 * There are more of them than the server has threads. */
static void test_stalled_log(void **state) {
    enum { LEAVERS = 12, LINES = 2 }; /* log lines: one and a body each */
    struct stalled_log l = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    (void)state;
    open_with_log(&l);
    pthread_mutex_lock(&l.mutex);
    for (int i = 0; i < LEAVERS; i++) {
        struct client c;
        begin_stream(&c, 20000);
        assert_true(client_wait_bytes(&c, 500));
        client_reset(&c);
    }
    while (atomic_load(&l.entered) == 0)
        pause_ms(1);
    for (int i = 0; i < 4; i++)
        read_whole_stream(300);
    assert_int_equal(server_wait_idle(tiny.server, 60), 0);
    assert_int_equal(atomic_load(&l.written), 0);
    pthread_mutex_unlock(&l.mutex);
    tiny_server_close(&tiny); /* writes all that is left */
    assert_int_equal(atomic_load(&l.written), LINES * (LEAVERS + 4));
}

/* Log lines beyond the bound are dropped and counted, and one line says so. */
static void test_dropped_lines(void **state) {
    enum { BODY = 6 << 20, REQUESTS = 6 };
    struct stalled_log l = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    char *body = malloc(BODY + 64);
    (void)state;
    open_with_log(&l);
    pthread_mutex_lock(&l.mutex);
    const int n = sprintf(body, "{\"prompt\":\"x\",\"max_tokens\":1,\"user\":\"");
    memset(body + n, 'u', BODY);
    strcpy(body + n + BODY, "\"}");
    for (int i = 0; i < REQUESTS; i++) {
        struct client c;
        assert_true(client_open(&c, tiny.port, -1));
        assert_true(client_request(&c, "POST", "/v1/completions", "Connection: close\r\n", body));
        struct client_answer a = client_read(&c);
        assert_int_equal(a.status, 200);
        free(a.body);
        client_close(&c);
    }
    assert_int_equal(server_wait_idle(tiny.server, 60), 0);
    pthread_mutex_unlock(&l.mutex);
    tiny_server_close(&tiny);
    assert_int_equal(atomic_load(&l.said_dropped), 1);
    assert_in_range(atomic_load(&l.written), REQUESTS + 2, 2 * REQUESTS);
    free(body);
}

/* ---- the engine's thread --------------------------------------------------------------------- */

struct direct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool done;
};

static void on_event(void *user, const kvasir_event *e) {
    struct direct *d = user;
    is_engine = true; /* for good: the thread lives as long as the engine */
    if (!e->last)
        return;
    pthread_mutex_lock(&d->mutex);
    d->done = true;
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->mutex);
}

enum { TOKENS = 400 };

/* Allocations of the engine's thread for a request that nobody listens to. */
static long allocations_direct(void) {
    struct direct d = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    const int32_t prompt[] = {'x'};
    kvasir_request r = kvasir_request_defaults();
    kvasir_error err;
    const long before = atomic_load(&engine_allocations);
    r.tokens = prompt;
    r.n_tokens = 1;
    r.max_tokens = TOKENS;
    r.ignore_end = true;
    r.on_event = on_event;
    r.user = &d;
    assert_int_equal(kvasir_engine_submit(tiny.engine, &r, NULL, &err), KVASIR_OK);
    pthread_mutex_lock(&d.mutex);
    while (!d.done)
        pthread_cond_wait(&d.changed, &d.mutex);
    pthread_mutex_unlock(&d.mutex);
    return atomic_load(&engine_allocations) - before;
}

static long allocations_served(bool stream) {
    struct client c;
    char body[128];
    const long before = atomic_load(&engine_allocations);
    snprintf(body, sizeof body,
             "{\"prompt\":\"x\",\"max_tokens\":%d,\"ignore_eos\":true,\"stream\":%s}", TOKENS,
             stream ? "true" : "false");
    assert_true(client_open(&c, tiny.port, -1));
    assert_true(client_request(&c, "POST", "/v1/completions", "Connection: close\r\n", body));
    struct client_answer a = client_read(&c);
    assert_int_equal(a.status, 200);
    free(a.body);
    client_close(&c);
    assert_int_equal(server_wait_idle(tiny.server, 60), 0);
    return atomic_load(&engine_allocations) - before;
}

static void test_no_allocation_for_events(void **state) {
    (void)state;
    if (!COUNTS_ALLOCATIONS)
        skip();
    tiny_server_init(&tiny);
    tiny.engine_options.no_prefix_cache = true;
    tiny_server_open(&tiny);
    allocations_direct(); /* allocations made once; also marks the engine's thread */
    const long alone = allocations_direct();
    assert_int_equal(allocations_direct(), alone);
    assert_int_equal(allocations_served(true), alone);
    assert_int_equal(allocations_served(false), alone);
    tiny_server_close(&tiny);
}

/* ---- waiting --------------------------------------------------------------------------------- */

static void test_wait_idle(void **state) {
    struct client c;
    (void)state;
    tiny_server_init(&tiny);
    tiny.engine_options.context.ctx = 32768;
    tiny.engine_options.cache_memory_bytes = 256 << 20;
    tiny_server_open(&tiny);
    assert_int_equal(server_wait_idle(tiny.server, 0), 0);
    begin_stream(&c, 20000);
    assert_true(client_wait_bytes(&c, 500));
    const double start = now();
    assert_int_equal(server_wait_idle(tiny.server, 0.05), 1);
    assert_true(now() - start >= 0.05);
    client_reset(&c);
    assert_int_equal(server_wait_idle(tiny.server, 60), 0);
    tiny_server_close(&tiny);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stalled_log),
        cmocka_unit_test(test_dropped_lines),
        cmocka_unit_test(test_no_allocation_for_events),
        cmocka_unit_test(test_wait_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
