/* SPDX-License-Identifier: Apache-2.0 */
/* Requests whose text takes long: others are answered meanwhile, and the work ends when the client
 * leaves, when its time is over, and when the prompt is longer than the context. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "api/api.h"
#include "http_client.h"
#include "tiny_server.h"
#include "util/http_status.h"

static struct tiny_server tiny;

static void begin(uint32_t text_timeout_s) {
    /* some 10^7 steps, half a second or more */
    static const char SLOW[] = "{% for a in range(99000) %}{% for b in range(40) %}{% endfor %}"
                               "{% endfor %}{{ messages[0].content }}";
    kvasir_error err;
    tiny_server_init(&tiny);
    tiny.options.text_timeout_s = text_timeout_s;
    tiny_server_open(&tiny);
    assert_int_equal(
        kvasir_tokenizer_set_chat_template((kvasir_tokenizer *)kvasir_model_tokenizer(tiny.model),
                                           "slow", SLOW, sizeof SLOW - 1, &err),
        KVASIR_OK);
}

static int end(void **state) {
    (void)state;
    tiny_server_close(&tiny);
    return 0;
}

static void send_slow(struct client *c) {
    assert_true(client_open(c, tiny.port, -1));
    assert_true(client_request(c, "POST", "/v1/chat/completions", "Connection: close\r\n",
                               "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":"
                               "\"x\"}]}"));
}

static double health_seconds(void) {
    struct client c;
    const double from = now();
    assert_true(client_open(&c, tiny.port, -1));
    assert_true(client_request(&c, "GET", "/health", "Connection: close\r\n", ""));
    struct client_answer a = client_read(&c);
    assert_int_equal(a.status, 200);
    free(a.body);
    client_close(&c);
    return now() - from;
}

static void test_health_meanwhile(void **state) {
    enum { SLOW = 6, POLLS = 100 };
    struct client slow[SLOW];
    int late = 0;
    (void)state;
    begin(600); /* a thread checker needs ten seconds for each of them */
    for (int i = 0; i < SLOW; i++)
        send_slow(&slow[i]);
    for (int i = 0; i < POLLS; i++, pause_ms(2))
        late += health_seconds() > 0.05;
    assert_true(server_open_requests(tiny.server) > 0);
    assert_in_range(late, 0, POLLS / 10);
    for (int i = 0; i < SLOW; i++) {
        struct client_answer a = client_read(&slow[i]);
        assert_true(a.status == 200 || strstr(a.body, "steps") != NULL);
        free(a.body);
        client_close(&slow[i]);
    }
}

static void test_leavers_cost_nothing(void **state) {
    enum { SLOW = 40 };
    kvasir_engine_stats stats;
    (void)state;
    begin(60);
    for (int i = 0; i < SLOW; i++) {
        struct client c;
        send_slow(&c);
        client_close(&c);
    }
    assert_true(tiny_server_idle(&tiny, 2000, &stats)); /* all of them would take ten times that */
}

static void test_time_is_over(void **state) {
    enum { SLOW = 40 };
    struct client slow[SLOW];
    int refused = 0;
    (void)state;
    begin(1);
    for (int i = 0; i < SLOW; i++)
        send_slow(&slow[i]);
    const double from = now();
    for (int i = 0; i < SLOW; i++) {
        struct client_answer a = client_read(&slow[i]);
        refused += a.status == 503 && strstr(a.body, "not read within 1 seconds") != NULL;
        free(a.body);
        client_close(&slow[i]);
    }
    assert_true(refused > SLOW / 2);
    assert_true(now() - from < 5);
}

static void test_long_prompt(void **state) {
    enum { LONG = 8 << 20 };
    (void)state;
    begin(60);
    char *body = malloc(LONG + 64);
    assert_non_null(body);
    const int n = sprintf(body, "{\"max_tokens\":1,\"prompt\":\"");
    memset(body + n, 'a', LONG);
    strcpy(body + n + LONG, "\"}");
    struct client c;
    assert_true(client_open(&c, tiny.port, -1));
    assert_true(client_request(&c, "POST", "/v1/completions", "Connection: close\r\n", body));
    struct client_answer a = client_read(&c);
    assert_int_equal(a.status, 400);
    assert_non_null(strstr(a.body, "more than 512 tokens"));
    assert_non_null(strstr(a.body, "context_length_exceeded"));
    free(a.body);
    free(body);
    client_close(&c);
}

static bool second(void *user) {
    return ++*(int *)user == 2;
}

/* Tokens to text, and the texts of tokens, end too. */
static void test_tokens_end(void **state) {
    enum { IDS = 100000 };
    int asked = 0;
    const kvasir_text_limits limits = {.stop = second, .user = &asked};
    struct text_buf text = {0}, out = {0};
    struct api_body body;
    struct api_error err;
    (void)state;
    begin(60);
    const struct api_setup setup = {
        .tokenizer = kvasir_model_tokenizer(tiny.model), .vocab = 1000, .limits = &limits};
    assert_true(text_puts(&text, "{\"tokens\":[97"));
    for (int i = 1; i < IDS; i++)
        assert_true(text_puts(&text, ",97"));
    assert_true(text_puts(&text, "]}"));
    assert_true(api_body_read(text.data, text.len, setup.vocab, text_endpoint_wants, &body, &err));
    assert_false(text_endpoint_detokenize(&setup, &body, &out, &err));
    assert_int_equal(err.status, HTTP_CLIENT_CLOSED);
    assert_true(out.len == 0 && asked == 2);
    api_body_free(&body);
    text.len = 0;
    assert_true(text_puts(&text, "{\"return_token_strs\":true,\"prompt\":\""));
    for (int i = 0; i < 20000; i++) /* tokenizing does not ask for so little */
        assert_true(text_puts(&text, "a"));
    assert_true(text_puts(&text, "\"}"));
    asked = 0;
    assert_true(api_body_read(text.data, text.len, setup.vocab, text_endpoint_wants, &body, &err));
    assert_false(text_endpoint_tokenize(&setup, 0, &body, &out, &err));
    assert_int_equal(err.status, HTTP_CLIENT_CLOSED);
    assert_int_equal(asked, 2);
    api_body_free(&body);
    text_free(&text);
    text_free(&out);
}

/* Idle connections, and some that sent half a request, from one address without a limit of its own:
 * everybody else is answered at once. */
static void test_idle_crowd(void **state) {
    enum { CROWD = 400, POLLS = 100 };
    struct client crowd[CROWD];
    int late = 0;
    (void)state;
    tiny_server_init(&tiny);
    tiny.options.max_connections = 64;
    tiny_server_open(&tiny);
    for (int i = 0; i < CROWD; i++) {
        static const char *const SENT[] = {"", "GET /health HTTP/1.1\r\nHost: x\r\nX",
                                           ("POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                                            "Content-Length: 100\r\n\r\n{")};
        assert_true(client_open(&crowd[i], tiny.port, -1));
        (void)!client_send(&crowd[i], SENT[i % 3], strlen(SENT[i % 3]));
    }
    for (int i = 0; i < POLLS; i++)
        late += health_seconds() > 0.05;
    assert_in_range(late, 0, POLLS / 10);
    for (int i = 0; i < CROWD; i++)
        client_close(&crowd[i]);
}

/* A client that comes while the process has no file left is served when it has, without another. */
static void test_out_of_files(void **state) {
    enum { FEW = 64 };
    (void)state;
    struct client c;
    struct rlimit before;
    int fds[FEW], n = 0;
    begin(0);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const struct sockaddr_in at = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)tiny.port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval most = {.tv_sec = 30};
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const struct rlimit few = {.rlim_cur = (rlim_t)fd + 1, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    while (n < FEW && (fds[n] = dup(fd)) >= 0)
        n++;
    assert_in_range(n, 0, FEW - 1);
    assert_int_equal(connect(fd, (const struct sockaddr *)&at, sizeof at), 0);
    pause_ms(200); /* the server finds that it cannot accept it */
    while (n)
        close(fds[--n]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    c = (struct client){.fd = fd};
    assert_true(client_request(&c, "GET", "/health", "Connection: close\r\n", ""));
    struct client_answer a = client_read(&c);
    assert_int_equal(a.status, 200);
    free(a.body);
    client_close(&c);
}

/* A socket with a path: mode 0660, a stale one is replaced, another server's is not. */
static void test_unix_socket(void **state) {
    static char host[64];
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct stat found;
    struct server *second;
    kvasir_error err;
    (void)state;
    snprintf(host, sizeof host, "unix:/tmp/kvasir-test-%d.sock", (int)getpid());
    snprintf(at.sun_path, sizeof at.sun_path, "%s", host + 5);
    const int stale = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(stale, (struct sockaddr *)&at, sizeof at), 0);
    close(stale);
    tiny_server_init(&tiny);
    tiny.options.host = host;
    tiny_server_open(&tiny);
    assert_int_equal(stat(at.sun_path, &found), 0);
    assert_int_equal(found.st_mode & 0777, 0660);
    assert_int_equal(server_create(&tiny.options, tiny.model, tiny.engine, &second, &err),
                     KVASIR_ERR_IO);
    assert_non_null(strstr(err.text, "cannot listen on unix:"));
    assert_non_null(strstr(err.text, strerror(EADDRINUSE)));
    struct client c = {.fd = socket(AF_UNIX, SOCK_STREAM, 0)};
    assert_int_equal(connect(c.fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_true(client_request(&c, "GET", "/health", "Connection: close\r\n", ""));
    struct client_answer a = client_read(&c);
    assert_int_equal(a.status, 200);
    free(a.body);
    client_close(&c);
    tiny_server_close(&tiny);
    assert_int_not_equal(stat(at.sun_path, &found), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_health_meanwhile, end),
        cmocka_unit_test_teardown(test_leavers_cost_nothing, end),
        cmocka_unit_test_teardown(test_time_is_over, end),
        cmocka_unit_test_teardown(test_long_prompt, end),
        cmocka_unit_test_teardown(test_tokens_end, end),
        cmocka_unit_test_teardown(test_idle_crowd, end),
        cmocka_unit_test_teardown(test_out_of_files, end),
        cmocka_unit_test(test_unix_socket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
