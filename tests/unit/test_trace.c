/* SPDX-License-Identifier: Apache-2.0 */
/* Recorded requests: what is read, what is refused and what the error names, and tokens that are
 * equal exactly where the trace says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lab/trace.h"

#include <cmocka.h>

#define TRACE SHARED_DIR "/traces/mooncake-fast25/conversation_trace.jsonl"
#define LINE(time, in, out, ids)                                                                   \
    "{\"timestamp\": " time ", \"input_length\": " in ", \"output_length\": " out                  \
    ", \"hash_ids\": " ids "}\n"

static kvasir_error err;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static void refused(const char *text, const char *why) {
    struct trace t;
    memset(&err, 0, sizeof err);
    kvasir_status status = trace_parse(text, strlen(text), &t, &err);
    if (status != KVASIR_ERR_FORMAT && status != KVASIR_ERR_UNSUPPORTED)
        fail_msg("%s was not refused", text);
    if (!strstr(err.text, why))
        fail_msg("refused as %s, not as %s", err.text, why);
    assert_null(t.requests);
    assert_null(t.blocks);
}

static void test_fields(void **state) {
    (void)state;
    struct trace t;
    const char *text = LINE("0", "512", "3",
                            "[7]") "{\"hash_ids\":[7,4],\"input_length\":513,"
                                   "\"output_length\":1,\"timestamp\":20,"
                                   "\"turn\":{\"of\":[1]}}\r\n" LINE("4294967295", "1", "9", "[0]");
    need(trace_parse(text, strlen(text), &t, &err));
    assert_int_equal(t.n, 3);
    assert_int_equal(t.n_blocks, 4);
    assert_int_equal(t.prompt_tokens, 512 + 513 + 1);
    assert_int_equal(t.output_tokens, 13);
    static const uint32_t blocks[] = {7, 7, 4, 0};
    assert_memory_equal(t.blocks, blocks, sizeof blocks);
    assert_int_equal(t.requests[1].at_ms, 20);
    assert_int_equal(t.requests[1].first_block, 1);
    assert_int_equal(t.requests[2].at_ms, UINT32_MAX);
    assert_int_equal(t.requests[2].first_block, 3);
    assert_int_equal(trace_blocks(&t.requests[0]), 1);
    assert_int_equal(trace_blocks(&t.requests[1]), 2);
    trace_deinit(&t);
    size_t without_newline = strlen(text) - 1;
    need(trace_parse(text, without_newline, &t, &err));
    assert_int_equal(t.n, 3);
    trace_deinit(&t);
}

static void test_refusals(void **state) {
    (void)state;
    const char *good = LINE("5", "1", "1", "[0]");
    const struct {
        const char *line, *why;
    } bad[] = {
        {LINE("4", "1", "1", "[0]"), "field timestamp is 4, before that of the request before it"},
        {LINE("-1", "1", "1", "[0]"), "field timestamp is -1, must be from 0 to 4294967295"},
        {LINE("4294967296", "1", "1", "[0]"), "field timestamp is 4294967296"},
        {LINE("5.5", "1", "1", "[0]"), "field timestamp must be an integer"},
        {LINE("5", "0", "1", "[]"), "field input_length is 0, must be from 1"},
        {LINE("5", "\"1\"", "1", "[0]"), "field input_length must be an integer"},
        {LINE("5", "1073741824", "1", "[0]"), "field input_length is 1073741824"},
        {LINE("5", "1", "0", "[0]"), "field output_length is 0"},
        {LINE("5", "1", "null", "[0]"), "field output_length must be an integer"},
        {LINE("5", "1", "1", "[]"), "field hash_ids has 0 ids, but input_length 1 has 1 blocks"},
        {LINE("5", "513", "1", "[0]"), "field hash_ids has 1 ids, but input_length 513 has 2"},
        {LINE("5", "512", "1", "[0, 1]"), "field hash_ids has 2 ids, but input_length 512 has 1"},
        {LINE("5", "513", "1", "[0, 4194304]"), "hash_ids[1] is 4194304, must be from 0 to"},
        {LINE("5", "513", "1", "[-1, 2]"), "field hash_ids[0] is -1"},
        {LINE("5", "513", "1", "[1, true]"), "field hash_ids[1] must be an integer"},
        {LINE("5", "1", "1", "0"), "field hash_ids must be an array"},
        {"{\"input_length\":1,\"output_length\":1,\"hash_ids\":[0]}", "timestamp is missing"},
        {"{\"timestamp\":5,\"output_length\":1,\"hash_ids\":[0]}", "input_length is missing"},
        {"{\"timestamp\":5,\"input_length\":1,\"hash_ids\":[0]}", "output_length is missing"},
        {"{\"timestamp\":5,\"input_length\":1,\"output_length\":1}", "hash_ids is missing"},
        {"[5, 1, 1, [0]]", "must be an object"},
        {"{\"timestamp\":5,", "JSON does not parse"},
        {"{} {}", "JSON does not parse"},
        {"{\"timestamp\":5,\"timestamp\":6}", "JSON does not parse"},
        {"\n", "JSON does not parse"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[512];
        snprintf(text, sizeof text, "%s%s%s", good, good, bad[i].line);
        refused(text, bad[i].why);
        if (strncmp(err.text, "line 3: ", 8) != 0)
            fail_msg("%s", err.text);
        assert_in_range(err.offset, 2 * strlen(good), strlen(text));
    }
    refused("", "there are no requests");

    char path[] = "/tmp/kvasir-trace-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "[]\n", 3), 3);
    struct trace t;
    assert_int_equal(trace_read(path, &t, &err), KVASIR_ERR_FORMAT);
    char want[128];
    snprintf(want, sizeof want, "%s: line 1: a request must be an object", path);
    assert_string_equal(err.text, want);
    close(fd);
    unlink(path);
    assert_int_equal(trace_read(path, &t, &err), KVASIR_ERR_IO);
}

/* The largest block id and output token that fit in 31 bits, and one more of each. */
static void test_largest_tokens(void **state) {
    (void)state;
    struct trace t;
    const char *text = LINE("0", "512", "512", "[4194302]");
    need(trace_parse(text, strlen(text), &t, &err));
    assert_int_equal(trace_token(&t, t.requests, 511), INT32_MAX - 512);
    assert_int_equal(trace_token(&t, t.requests, 512), INT32_MAX - 511);
    assert_int_equal(trace_token(&t, t.requests, 1023), INT32_MAX);
    trace_deinit(&t);
    refused(LINE("0", "512", "513", "[4194302]"), "output tokens do not fit in 31 bits");
    refused(LINE("0", "1", "1", "[4194303]"), "output tokens do not fit in 31 bits");
    refused(LINE("0", "1", "1073741823", "[0]") LINE("0", "1", "1073741823", "[0]"),
            "output tokens do not fit in 31 bits");
}

static int by_value(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void test_tokens_are_equal_where_ids_are(void **state) {
    (void)state;
    struct trace t;
    const char *text = LINE("0", "1100", "300", "[3, 0, 9]") LINE("0", "1536", "700", "[3, 0, 8]")
        LINE("1", "1024", "1", "[0, 3]");
    need(trace_parse(text, strlen(text), &t, &err));
    const struct trace_request *a = &t.requests[0], *b = &t.requests[1], *c = &t.requests[2];
    for (uint32_t p = 0; p < 1024; p++) {
        assert_int_equal(trace_token(&t, a, p), trace_token(&t, b, p));
        assert_int_equal(trace_token(&t, a, p), trace_token(&t, c, (p + 512) % 1024));
    }
    /* Each block once, and all outputs: no token appears twice. */
    static int32_t all[1536 + 700 + 76 + 300 + 1];
    size_t n = 0;
    for (uint32_t p = 0; p < b->prompt + b->output; p++)
        all[n++] = trace_token(&t, b, p);
    for (uint32_t p = 1024; p < a->prompt + a->output; p++)
        all[n++] = trace_token(&t, a, p);
    all[n++] = trace_token(&t, c, 1024);
    assert_int_equal(n, sizeof all / sizeof *all);
    qsort(all, n, sizeof *all, by_value);
    assert_true(all[0] >= 0);
    for (size_t i = 1; i < n; i++)
        assert_true(all[i - 1] < all[i]);
    trace_deinit(&t);
}

static void test_conversation_trace(void **state) {
    (void)state;
    struct trace t;
    double start = clock_seconds();
    need(trace_read(TRACE, &t, &err));
    print_message("read in %.3f s\n", clock_seconds() - start);
    assert_int_equal(t.n, 12031);
    assert_int_equal(t.prompt_tokens, 144793823);
    assert_int_equal(t.output_tokens, 4122048);
    assert_int_equal(t.requests[t.n - 1].at_ms, 3536999);
    assert_int_equal(t.blocks[0], 0);
    trace_deinit(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_largest_tokens),
        cmocka_unit_test(test_tokens_are_equal_where_ids_are),
        cmocka_unit_test(test_conversation_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
