/* SPDX-License-Identifier: Apache-2.0 */
/* Completions of several prompts over HTTP: each prompt gets, choice by choice, what it gets in a
 * request of its own; usage is the sum; a stream's indices are right; errors name the prompt. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "http_client.h"
#include "tiny_server.h"

static struct tiny_server tiny;
static const char COMPLETIONS[] = "/v1/completions";
/* Two share a beginning that is longer than a page. */
#define LONG "0123456789012345678901234567890123456789012345678901234567890123456789"
static const char *const PROMPTS[] = {"\"Once\"", "\"" LONG "a\"", "\"\"", "\"" LONG "b\""};
enum { N_PROMPTS = sizeof PROMPTS / sizeof *PROMPTS };

static int make(void **state) {
    (void)state;
    tiny_server_init(&tiny);
    tiny.engine_options.max_running = 4; /* fewer than there are choices */
    tiny.engine_options.max_waiting = 64;
    tiny.options.max_choices = 4;
    tiny_server_open(&tiny);
    return 0;
}

static int end(void **state) {
    (void)state;
    tiny_server_close(&tiny);
    return 0;
}

static struct client_answer ask_at(const char *path, const char *body) {
    struct client c;
    assert_true(client_open(&c, tiny.port, -1));
    assert_true(client_request(&c, "POST", path, "Connection: close\r\n", body));
    struct client_answer a = client_read(&c);
    client_close(&c);
    return a;
}

static struct client_answer ask(const char *body) {
    return ask_at(COMPLETIONS, body);
}

static json_t *answer(const char *prompt, const char *fields) {
    char body[2048];
    snprintf(body, sizeof body, "{\"prompt\":%s,\"max_tokens\":12,\"ignore_eos\":true%s}", prompt,
             fields);
    struct client_answer a = ask(body);
    if (a.status != 200)
        fail_msg("%s: %d %.300s", body, a.status, a.body ? a.body : "");
    json_t *made = json_loads(a.body, 0, NULL);
    assert_non_null(made);
    free(a.body);
    return made;
}

static int64_t usage_of(const json_t *body, const char *name) {
    return json_integer_value(json_object_get(json_object_get(body, "usage"), name));
}

static void check_list(const char *fields, uint32_t n) {
    char list[1024] = "[";
    int64_t prompt = 0, completion = 0;
    for (int i = 0; i < N_PROMPTS; i++)
        sprintf(list + strlen(list), "%s%s", i ? "," : "", PROMPTS[i]);
    json_t *all = answer(strcat(list, "]"), fields);
    const json_t *choices = json_object_get(all, "choices");
    assert_int_equal(json_array_size(choices), N_PROMPTS * n);
    for (uint32_t p = 0; p < N_PROMPTS; p++) {
        json_t *alone = answer(PROMPTS[p], fields);
        prompt += usage_of(alone, "prompt_tokens");
        completion += usage_of(alone, "completion_tokens");
        for (uint32_t i = 0; i < n; i++) {
            json_t *of = json_array_get(choices, p * n + i),
                   *wanted = json_array_get(json_object_get(alone, "choices"), i);
            assert_int_equal(json_integer_value(json_object_get(of, "index")), p * n + i);
            json_object_set_new(wanted, "index", json_integer((json_int_t)(p * n + i)));
            assert_true(json_equal(of, wanted));
        }
        json_decref(alone);
    }
    assert_int_equal(usage_of(all, "prompt_tokens"), prompt);
    assert_int_equal(usage_of(all, "completion_tokens"), completion);
    assert_int_equal(usage_of(all, "total_tokens"), prompt + completion);
    json_decref(all);
}

static void test_as_alone(void **state) {
    (void)state;
    check_list("", 1);
    check_list(",\"logprobs\":3", 1);
    check_list(",\"temperature\":1,\"seed\":5,\"n\":3", 3);
}

/* ---- streams --------------------------------------------------------------------------------- */

static void test_stream(void **state) {
    static const char BODY[] = "{\"prompt\":[\"Once\",\"Twice\"],\"max_tokens\":9,\"n\":2,"
                               "\"temperature\":1,\"seed\":3,\"ignore_eos\":true%s}";
    char body[512];
    struct said whole, streamed;
    (void)state;
    snprintf(body, sizeof body, BODY, "");
    struct client_answer a = ask(body);
    said_read(&a, &whole);
    free(a.body);
    snprintf(body, sizeof body, BODY,
             ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    a = ask(body);
    said_read(&a, &streamed);
    free(a.body);
    assert_true(streamed.done && !streamed.failed);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(streamed.text[i], whole.text[i]);
        assert_string_equal(streamed.finish[i], "length");
    }
    assert_string_not_equal(whole.text[0], whole.text[2]);
    assert_int_equal(streamed.prompt_tokens, whole.prompt_tokens);
    assert_int_equal(streamed.completion_tokens, 4 * 9);
}

/* A client that leaves takes all of its prompts along. */
static void test_client_leaves(void **state) {
    struct client c;
    kvasir_engine_stats stats;
    (void)state;
    assert_true(client_open(&c, tiny.port, -1));
    assert_true(client_request(&c, "POST", COMPLETIONS, "",
                               "{\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\"],\"n\":4,"
                               "\"stream\":true,\"max_tokens\":400,\"ignore_eos\":true}"));
    assert_true(client_wait_bytes(&c, 100));
    client_reset(&c);
    assert_true(tiny_server_idle(&tiny, 60000, &stats));
}

/* ---- echo ------------------------------------------------------------------------------------ */

static json_t *first_choice(const json_t *body) {
    return json_array_get(json_object_get(body, "choices"), 0);
}

static json_t *member(const json_t *choice, const char *name) {
    return json_object_get(json_object_get(choice, "logprobs"), name);
}

/* A prompt of n tokens, BOS included, with `text` in front of the answer of `answered` tokens. */
static void check_echo(const char *prompt, const char *text, size_t n, size_t answered,
                       bool has_bos) {
    char fields[128];
    snprintf(fields, sizeof fields,
             "{\"prompt\":%s,\"echo\":true,\"logprobs\":2,"
             "\"ignore_eos\":true,\"max_tokens\":%zu}",
             prompt, answered);
    struct client_answer a = ask(fields);
    assert_int_equal(a.status, 200);
    json_t *body = json_loads(a.body, 0, NULL);
    const json_t *choice = first_choice(body), *values = member(choice, "token_logprobs"),
                 *tops = member(choice, "top_logprobs"), *at = member(choice, "text_offset");
    const char *said = json_string_value(json_object_get(choice, "text"));
    assert_int_equal(strncmp(said, text, strlen(text)), 0);
    assert_true(answered || strcmp(said, text) == 0);
    assert_string_equal(json_string_value(json_object_get(choice, "finish_reason")), "length");
    assert_int_equal(usage_of(body, "prompt_tokens"), n);
    assert_int_equal(usage_of(body, "completion_tokens"), answered);
    assert_int_equal(json_array_size(member(choice, "tokens")), n + answered);
    assert_int_equal(json_array_size(values), n + answered);
    assert_int_equal(json_array_size(at), n + answered);
    for (size_t i = 0; i < n + answered; i++) {
        assert_true(json_is_null(json_array_get(values, i)) == (i == 0));
        assert_true(json_is_null(json_array_get(tops, i)) == (i == 0));
        assert_true(i == 0 || json_object_size(json_array_get(tops, i)) >= 1);
        if (i <= n) /* tokens are bytes */
            assert_int_equal(json_integer_value(json_array_get(at, i)), i - (has_bos && i > 0));
    }
    json_decref(body);
    free(a.body);
}

static void test_echo(void **state) {
    (void)state;
    check_echo("\"Once upon\"", "Once upon", 10, 3, true);
    check_echo("\"Once upon\"", "Once upon", 10, 0, true);
    check_echo("[79,110,99,101]", "Once", 4, 1, false);
    check_echo("[[79,110,99,101]]", "Once", 4, 0, false);
}

/* Of several prompts, and streamed. */
static void test_echo_of_several(void **state) {
    static const char BODY[] = "{\"prompt\":[\"Once\",\"Twice\"],\"n\":2,\"echo\":true,"
                               "\"max_tokens\":5,\"logprobs\":1,\"ignore_eos\":true%s}";
    char body[512];
    struct said whole, streamed;
    (void)state;
    snprintf(body, sizeof body, BODY, "");
    struct client_answer a = ask(body);
    said_read(&a, &whole);
    free(a.body);
    snprintf(body, sizeof body, BODY, ",\"stream\":true");
    a = ask(body);
    said_read(&a, &streamed);
    free(a.body);
    assert_true(streamed.done && !streamed.failed);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(streamed.text[i], whole.text[i]);
        assert_int_equal(strncmp(whole.text[i], i < 2 ? "Once" : "Twice", i < 2 ? 4 : 5), 0);
    }
}

/* The tokens of a prompt are no part of what the client has not read yet: a step gives more of them
 * at once than the buffer holds. */
static void test_echo_beyond_the_buffer(void **state) {
    char body[1024] = "{\"prompt\":\"";
    struct said said;
    end(state);
    tiny_server_init(&tiny);
    tiny.options.buffer_bytes = 8 << 10;
    tiny_server_open(&tiny);
    for (int i = 0; i < 400; i++)
        strcat(body, "x");
    strcat(body,
           "\",\"echo\":true,\"logprobs\":5,\"max_tokens\":2,\"ignore_eos\":true,\"stream\":true}");
    struct client_answer a = ask(body);
    assert_int_equal(a.status, 200);
    said_read(&a, &said);
    assert_true(said.done && !said.failed && !a.cut);
    assert_int_equal(strspn(said.text[0], "x"), 400);
    free(a.body);
}

/* ---- prompt_logprobs ------------------------------------------------------------------------- */

/* One token's object: the same number as with echo, k others, ranks in order. */
static void check_scores(const json_t *scores, int32_t token, double logprob, size_t k) {
    char key[16];
    snprintf(key, sizeof key, "%d", token);
    const json_t *own = json_object_get(scores, key);
    json_t *value;
    const char *name;
    const json_int_t rank = json_integer_value(json_object_get(own, "rank"));
    assert_true(json_number_value(json_object_get(own, "logprob")) == logprob);
    const char text[] = {(char)token, 0};
    assert_string_equal(json_string_value(json_object_get(own, "decoded_token")), text);
    assert_in_range(rank, 1, 512);
    assert_int_equal(json_object_size(scores), rank <= (json_int_t)k ? k : k + 1);
    json_object_foreach((json_t *)(uintptr_t)scores, name, value) {
        const json_int_t other = json_integer_value(json_object_get(value, "rank"));
        const double p = json_number_value(json_object_get(value, "logprob"));
        assert_true(value == own || other <= (json_int_t)k);
        assert_true(other < rank ? p >= logprob : p <= logprob);
    }
}

static void test_prompt_logprobs(void **state) {
    (void)state;
    for (size_t k = 0; k < 4; k += 3) {
        char fields[256];
        snprintf(fields, sizeof fields,
                 "{\"prompt\":[[79,110,99,101],[84,119]],\"max_tokens\":2,\"ignore_eos\":true,"
                 "\"echo\":true,\"logprobs\":%zu,\"prompt_logprobs\":%zu}",
                 k, k);
        struct client_answer a = ask(fields);
        assert_int_equal(a.status, 200);
        json_t *body = json_loads(a.body, JSON_ALLOW_NUL, NULL);
        for (size_t p = 0; p < 2; p++) {
            const json_t *choice = json_array_get(json_object_get(body, "choices"), p),
                         *list = json_object_get(choice, "prompt_logprobs");
            assert_int_equal(json_array_size(list), p ? 2 : 4);
            assert_true(json_is_null(json_array_get(list, 0)));
            for (size_t i = 1; i < json_array_size(list); i++)
                check_scores(json_array_get(list, i), (p ? "Tw" : "Once")[i],
                             json_number_value(json_array_get(member(choice, "token_logprobs"), i)),
                             k);
        }
        json_decref(body);
        free(a.body);
    }
}

static void test_prompt_logprobs_of_chats(void **state) {
    (void)state;
    struct client_answer a =
        ask_at("/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"Once\"}],"
                                       "\"max_tokens\":2,\"n\":2,\"prompt_logprobs\":1}");
    assert_int_equal(a.status, 200);
    json_t *body = json_loads(a.body, JSON_ALLOW_NUL, NULL), *list;
    list = json_object_get(body, "prompt_logprobs");
    assert_int_equal(json_array_size(list), usage_of(body, "prompt_tokens"));
    assert_true(json_is_null(json_array_get(list, 0)));
    for (size_t i = 1; i < json_array_size(list); i++)
        assert_in_range(json_object_size(json_array_get(list, i)), 1, 2);
    assert_null(json_object_get(first_choice(body), "prompt_logprobs"));
    json_decref(body);
    free(a.body);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refused(const char *body, int status, const char *param, const char *why) {
    struct client_answer a = ask(body);
    json_t *said = a.body ? json_loads(a.body, 0, NULL) : NULL;
    const json_t *error = json_object_get(said, "error");
    const char *text = json_string_value(json_object_get(error, "message")),
               *named = json_string_value(json_object_get(error, "param"));
    if (a.status != status || !text || !strstr(text, why) || !named != !param ||
        (named && strcmp(named, param) != 0))
        fail_msg("%.200s: %d %.300s", body, a.status, a.body ? a.body : "");
    json_decref(said);
    free(a.body);
}

static void test_refusals(void **state) {
    char body[4096] = "{\"max_tokens\":4,\"prompt\":[\"x\",\"y\",\"";
    kvasir_engine_stats before, after;
    (void)state;
    assert_true(tiny_server_idle(&tiny, 60000, &before));
    for (int i = 0; i < 510; i++)
        strcat(body, "z");
    strcat(body, "\"]}");
    refused(body, 400, "prompt[2]", "do not fit the context");
    body[strlen(body) - 3] = 0;
    strcat(body, "zzzz\"]}");
    refused(body, 400, "prompt[2]", "more than 512 tokens");
    strcpy(body, "{\"prompt\":[\"\"");
    for (int i = 0; i < 128; i++)
        strcat(body, ",\"\"");
    strcat(body, "]}");
    refused(body, 400, "prompt", "129 prompts, at most 128");
    refused("{\"prompt\":[\"x\",\"y\"],\"logit_bias\":{\"9999\":1}}", 400, "logit_bias[\"9999\"]",
            "");
    refused("{\"prompt\":\"x\",\"prompt_logprobs\":1,\"stream\":true}", 400, "prompt_logprobs",
            "in a stream");
    refused("{\"prompt\":\"x\",\"prompt_logprobs\":21}", 400, "prompt_logprobs",
            "between 0 and 20");
    refused("{\"prompt\":\"x\",\"prompt_logprobs\":true}", 400, "prompt_logprobs", "is a boolean");
    refused("{\"prompt\":\"x\",\"prompt_logprobs\":1,\"echo\":true,\"logprobs\":2}", 400,
            "prompt_logprobs", "must be the same as");
    /* nothing of them was taken */
    assert_true(tiny_server_idle(&tiny, 60000, &after));
    assert_int_equal(after.finished, before.finished);
}

/* Together they take one place in the queue. */
static void test_more_than_may_wait(void **state) {
    char body[1024] = "[\"\"";
    (void)state;
    for (int i = 0; i < 80; i++)
        strcat(body, ",\"\"");
    json_t *all = answer(strcat(body, "]"), "");
    assert_int_equal(json_array_size(json_object_get(all, "choices")), 81);
    json_decref(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_alone),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_client_leaves),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_echo),
        cmocka_unit_test(test_echo_of_several),
        cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_prompt_logprobs_of_chats),
        cmocka_unit_test(test_more_than_may_wait),
        cmocka_unit_test(test_echo_beyond_the_buffer),
    };
    return cmocka_run_group_tests(tests, make, end);
}
