/* SPDX-License-Identifier: Apache-2.0 */
/* From events to OpenAI's bodies, for both APIs, and how a chat's answer is parsed. */
#include "openai_checks.h"

#include "api/protocol.h"

static struct api_answer answer;

static void token_event(uint32_t choice, int32_t token, const char *text,
                        const kvasir_token_logprob *top, size_t n_top) {
    kvasir_event e = {.kind = KVASIR_EVENT_TOKEN,
                      .choice = choice,
                      .prompt_tokens = 12,
                      .cached_tokens = 8,
                      .token = token,
                      .text = text,
                      .len = strlen(text),
                      .logprob = -0.5f,
                      .top = top,
                      .n_top = n_top};
    api_answer_event(&answer, &e);
}

static const char *stop_of_done; /* for the next done_event */

static void done_event(uint32_t choice, kvasir_finish finish, const char *rest, bool last) {
    static const kvasir_error why = {
        .code = KVASIR_ERR_BUDGET, .offset = -1, .text = "needs 5 bytes, 4 are there"};
    kvasir_event e = {.kind = KVASIR_EVENT_DONE,
                      .choice = choice,
                      .prompt_tokens = 12,
                      .cached_tokens = 8,
                      .text = rest,
                      .len = strlen(rest),
                      .finish = finish,
                      .stop = stop_of_done,
                      .error = finish == KVASIR_FINISH_ERROR ? &why : NULL,
                      .last = last};
    api_answer_event(&answer, &e);
}

static void begin(enum api_kind api, const char *fields) {
    api_answer_free(&answer);
    good(api, with(api, fields));
    assert_true(api_answer_init(&answer, &r));
    api_answer_event(&answer, &(kvasir_event){.kind = KVASIR_EVENT_START, .prompt_tokens = 12});
}

/* The body is this JSON. */
static void body_is(const char *wanted) {
    json_error_t why;
    json_t *body = openai_answer_body(&answer, &setup, "id-1", 1700000000, &err);
    json_t *expected = json_loads(wanted, 0, &why);
    if (!expected)
        fail_msg("%s at %d", why.text, why.position);
    if (!body)
        fail_msg("%s", err.text);
    char *text = json_dumps(body, JSON_COMPACT);
    if (!json_equal(body, expected))
        fail_msg("%s\nis not\n%s", text, wanted);
    free(text);
    json_decref(expected);
    json_decref(body);
}

#define USAGE(completion, total)                                                                   \
    "\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":" completion ",\"total_tokens\":" total \
    ",\"prompt_tokens_details\":{\"cached_tokens\":8}}"
#define HEAD(object, model)                                                                        \
    "{\"id\":\"id-1\",\"object\":\"" object "\",\"created\":1700000000,\"model\":\"" model "\","

static void test_chat_answer(void **state) {
    (void)state;
    begin(API_CHAT, "\"n\":2,\"model\":\"m\"");
    token_event(0, 'h', "h", NULL, 0);
    token_event(1, 'x', "", NULL, 0);
    token_event(0, 'i', "i", NULL, 0);
    done_event(0, KVASIR_FINISH_STOP, "", false);
    assert_false(answer.complete);
    done_event(1, KVASIR_FINISH_LENGTH, "x", true); /* the rest of the text */
    assert_true(answer.complete && !answer.failed && !answer.cancelled);
    body_is(HEAD("chat.completion", "m") //
            "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"hi\","
            "\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\"},"
            "{\"index\":1,\"message\":{\"role\":\"assistant\",\"content\":\"x\",\"refusal\":null},"
            "\"logprobs\":null,\"finish_reason\":\"length\"}]," USAGE("3", "15") "}");
}

static void test_chat_logprobs(void **state) {
    (void)state;
    static const kvasir_token_logprob top[] = {{' ', -0.5f}, {BYTE_EOS, -INFINITY}};
    begin(API_CHAT, "\"logprobs\":true,\"top_logprobs\":2");
    token_event(0, ' ', " ", top, 2);
    token_event(0, 0xc3, "", NULL, 0); /* bytes of part of a character are not reported */
    done_event(0, KVASIR_FINISH_STOP, "\xef\xbf\xbd", true);
    body_is(HEAD("chat.completion", "ours") //
            "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
            "\" \\ufffd\",\"refusal\":null},\"logprobs\":{\"refusal\":null,\"content\":["
            "{\"token\":\" \",\"logprob\":-0.5,\"bytes\":[32],\"top_logprobs\":["
            "{\"token\":\" \",\"logprob\":-0.5,\"bytes\":[32]},"
            "{\"token\":\"</s>\",\"logprob\":-9999.0,\"bytes\":[60,47,115,62]}]},"
            "{\"token\":\"\\ufffd\",\"logprob\":-0.5,\"bytes\":null,\"top_logprobs\":[]}]},"
            "\"finish_reason\":\"stop\"}]," USAGE("2", "14") "}");
    begin(API_CHAT, "\"logprobs\":true,\"top_logprobs\":1");
    token_event(0, BYTE_VOCAB, "", &(kvasir_token_logprob){BYTE_VOCAB + 7, -0.25f}, 1);
    done_event(0, KVASIR_FINISH_LENGTH, "", true); /* the tokenizer knows neither */
    body_is(HEAD("chat.completion", "ours")        //
            "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
            "\"\",\"refusal\":null},\"logprobs\":{\"refusal\":null,\"content\":["
            "{\"token\":\"token_id:258\",\"logprob\":-0.5,\"bytes\":null,\"top_logprobs\":["
            "{\"token\":\"token_id:265\",\"logprob\":-0.25,\"bytes\":null}]}]},"
            "\"finish_reason\":\"length\"}]," USAGE("1", "13") "}");
    begin(API_CHAT, "\"logprobs\":true"); /* an answer without tokens */
    done_event(0, KVASIR_FINISH_STOP, "", true);
    body_is(HEAD("chat.completion", "ours") //
            "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"\","
            "\"refusal\":null},\"logprobs\":{\"refusal\":null,\"content\":[]},"
            "\"finish_reason\":\"stop\"}]," USAGE("0", "12") "}");
}

static void test_completion_answer(void **state) {
    (void)state;
    static const kvasir_token_logprob top[] = {{'a', -0.25f}, {0x80, -1}, {0x81, -2}};
    begin(API_COMPLETIONS, "");
    token_event(0, 'h', "h", NULL, 0);
    done_event(0, KVASIR_FINISH_LENGTH, "", true);
    body_is(HEAD("text_completion", "ours") //
            "\"choices\":[{\"index\":0,\"text\":\"h\",\"logprobs\":null,\"finish_reason\":"
            "\"length\"}]," USAGE("1", "13") "}");
    begin(API_COMPLETIONS, "\"logprobs\":3");
    token_event(0, 'h', "h", top, 3);
    token_event(0, 0xc3, "", top, 1);
    token_event(0, 0xbc, "\xc3\xbc", NULL, 0);
    token_event(0, BYTE_VOCAB, "", NULL, 0); /* no text: takes no room in text_offset */
    token_event(0, 'x', "x", NULL, 0);
    done_event(0, KVASIR_FINISH_STOP, "", true);
    /* the chosen token next to the likeliest ones; of tokens with the same text, the likelier */
    body_is(HEAD("text_completion", "ours") //
            "\"choices\":[{\"index\":0,\"text\":\"h\\u00fcx\",\"logprobs\":{"
            "\"tokens\":[\"h\",\"\\ufffd\",\"\\ufffd\",\"token_id:258\",\"x\"],"
            "\"token_logprobs\":[-0.5,-0.5,-0.5,-0.5,-0.5],"
            "\"top_logprobs\":[{\"a\":-0.25,\"\\ufffd\":-1.0,\"h\":-0.5},"
            "{\"a\":-0.25,\"\\ufffd\":-0.5},{\"\\ufffd\":-0.5},{\"token_id:258\":-0.5},"
            "{\"x\":-0.5}],\"text_offset\":[0,1,2,3,3]},"
            "\"finish_reason\":\"stop\"}]," USAGE("5", "17") "}");
}

/* One choice's answer in three pieces. */
static void answer_text(const char *fields, const char *text, kvasir_finish finish) {
    char part[512];
    size_t len = strlen(text);
    begin(API_CHAT, fields);
    for (size_t i = 0; i < 3; i++) {
        size_t from = len * i / 3, to = len * (i + 1) / 3;
        snprintf(part, sizeof part, "%.*s", (int)(to - from), text + from);
        if (i < 2)
            token_event(0, 'x', part, NULL, 0);
        else
            done_event(0, finish, part, true);
    }
}

static void message_is(const char *message, const char *finish) {
    char body[1024];
    snprintf(body, sizeof body,
             HEAD("chat.completion", "ours") "\"choices\":[{\"index\":0,\"message\":%s,"
                                             "\"logprobs\":null,\"finish_reason\":\"%s\"}]," //
             USAGE("2", "14") "}",
             message, finish);
    body_is(body);
}

static void test_calls_in_answers(void **state) {
    (void)state;
    static const struct answer_syntax syntax = {ANSWER_HERMES, "<tool_call>", "</tool_call>",
                                                "<think>", "</think>"};
#define F      "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>"
#define F_TOOL "\"tools\":[" TOOL("f") "]"
#define F_CALL(id)                                                                                 \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"         \
    "\"{\\\"a\\\": 1}\"}}"
    setup.syntax = &syntax;
    answer_text(F_TOOL, "<think>\nhm\n</think>\n\n" F, KVASIR_FINISH_STOP);
    json_t *body = openai_answer_body(&answer, &setup, "id-1", 0, &err);
    const char *id = NULL;
    assert_int_equal(
        json_unpack(body, "{s:[{s:{s:[{s:s}]}}]}", "choices", "message", "tool_calls", "id", &id),
        0);
    char message[512], call[256], again[64];
    snprintf(again, sizeof again, "%s", id);
    assert_int_equal(strlen(again), 29);
    json_decref(body);
    snprintf(call, sizeof call, F_CALL("%s"), again);
    snprintf(message, sizeof message,
             "{\"role\":\"assistant\",\"content\":null,\"refusal\":null,"
             "\"reasoning_content\":\"hm\",\"tool_calls\":[%s]}",
             call);
    message_is(message, "tool_calls"); /* the same id for the same answer */
    answer_text(F_TOOL ",\"parallel_tool_calls\":false", "a" F F, KVASIR_FINISH_LENGTH);
    snprintf(message, sizeof message,
             "{\"role\":\"assistant\",\"content\":\"a\",\"refusal\":null,\"tool_calls\":[%s]}",
             call);
    message_is(message, "length");
    /* a prompt without tools; an answer that is only reasoning */
    answer_text("", "<think>hm</think><tool_call>x", KVASIR_FINISH_STOP);
    message_is("{\"role\":\"assistant\",\"content\":\"<tool_call>x\",\"refusal\":null,"
               "\"reasoning_content\":\"hm\"}",
               "stop");
    answer_text(F_TOOL, "<think>hm", KVASIR_FINISH_LENGTH);
    message_is("{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null,"
               "\"reasoning_content\":\"hm\"}",
               "length");
    defaults();
    answer_text(F_TOOL, "<think>\n", KVASIR_FINISH_STOP); /* without a syntax it is all content */
    message_is("{\"role\":\"assistant\",\"content\":\"<think>\\n\",\"refusal\":null}", "stop");
    api_answer_free(&answer);
}

/* What the prompt and the vocabulary determine about the answer. */
static void test_answer_options(void **state) {
    (void)state;
    static const char ENDS[] = "{{ messages[0].content }}<think>{{ extra }}\n";
    struct answer_syntax syntax = {ANSWER_HERMES, "<s>", "</tool_call>", "<think>", "</s>"};
    kvasir_tokenizer *other;
    kvasir_error why;
    assert_int_equal(kvasir_tokenizer_open(folder.path, &other, &why), KVASIR_OK);
    assert_int_equal(kvasir_tokenizer_set_chat_template(other, "t", ENDS, sizeof ENDS - 1, &why),
                     0);
    setup.tokenizer = other;
    good(API_CHAT, with(API_CHAT, F_TOOL));
    assert_int_equal(r.answer.start, ANSWER_AT_CONTENT);
    assert_int_equal(r.engine.n_shown_tokens, 0);
    setup.syntax = &syntax;
    good(API_CHAT, with(API_CHAT, ""));
    assert_int_equal(r.answer.start, ANSWER_AT_REASONING);
    assert_int_equal(r.engine.n_shown_tokens, 1);
    assert_int_equal(r.engine.shown_tokens[0], BYTE_EOS);
    /* a JSON object comes after the reasoning that the prompt opened */
    good(API_CHAT, with(API_CHAT, F_TOOL ",\"response_format\":{\"type\":\"json_object\"}"));
    assert_int_equal(r.answer.start, ANSWER_AT_REASONING);
    assert_true(r.answer.body);
    good(API_CHAT, with(API_CHAT, F_TOOL ",\"chat_template_kwargs\":{\"extra\":\"</s>\"}"));
    assert_int_equal(r.answer.start, ANSWER_AT_CONTENT);
    assert_int_equal(r.engine.n_shown_tokens, 2);
    good(API_COMPLETIONS, with(API_COMPLETIONS, ""));
    assert_int_equal(r.engine.n_shown_tokens, 0);
    kvasir_tokenizer_close(other);
    defaults();
}

static void test_stop_of_answer(void **state) {
    (void)state;
    char engines[] = "two";
    begin(API_CHAT, "\"n\":2,\"stop\":[\"one\",\"two\"]");
    stop_of_done = engines;
    done_event(0, KVASIR_FINISH_STOP, "", false);
    stop_of_done = NULL;
    done_event(1, KVASIR_FINISH_STOP, "", true);
    memset(engines, 'x', 3); /* the engine's text is gone: the answer has a copy */
    assert_string_equal(answer.choices[0].stop, "two");
    assert_null(answer.choices[1].stop);
}

static void test_failed_answers(void **state) {
    (void)state;
    begin(API_CHAT, "");
    token_event(0, 'h', "h", NULL, 0);
    done_event(0, KVASIR_FINISH_ERROR, "", true);
    assert_true(answer.complete && answer.failed);
    assert_null(openai_answer_body(&answer, &setup, "id", 0, &err));
    assert_int_equal(err.status, HTTP_BAD_REQUEST);
    assert_string_equal(err.text, "needs 5 bytes, 4 are there");
    begin(API_CHAT, "\"n\":2");
    done_event(0, KVASIR_FINISH_STOP, "", false);
    done_event(1, KVASIR_FINISH_CANCELLED, "", true);
    assert_true(answer.complete && answer.cancelled && !answer.failed);
    assert_null(openai_answer_body(&answer, &setup, "id", 0, &err));
    assert_int_equal(err.status, HTTP_CLIENT_CLOSED);
    api_answer_free(&answer);
}

/* The log-probabilities of a token are in one chunk of a stream. */
static void test_streamed_logprobs(void **state) {
    (void)state;
    const kvasir_event e = {.kind = KVASIR_EVENT_TOKEN, .token = 'h', .text = "h", .len = 1};
    struct text_buf out = {0};
    good(API_COMPLETIONS, with(API_COMPLETIONS, "\"logprobs\":1"));
    void *stream = PROTOCOL_COMPLETIONS.open(
        &(struct protocol_context){.setup = &setup, .request = &r, .id = "id-1"});
    assert_non_null(stream);
    assert_true(PROTOCOL_COMPLETIONS.event(stream, &e, &out));
    assert_true(text_append(&out, "", 1));
    const char *chunk = strstr(out.data, "data: ");
    assert_non_null(chunk);
    assert_non_null(strstr(chunk, "\"token_logprobs\":["));
    assert_null(strstr(chunk + 1, "data: "));
    PROTOCOL_COMPLETIONS.close(stream);
    text_free(&out);
}

static size_t count(const char *text, const char *part) {
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at++)
        n++;
    return n;
}

/* The role comes once for each choice, before its first text. */
static void test_streamed_role(void **state) {
    (void)state;
    kvasir_event e = {.kind = KVASIR_EVENT_TOKEN, .token = 'h', .text = "h", .len = 1};
    struct text_buf out = {0};
    good(API_CHAT, with(API_CHAT, "\"n\":2"));
    void *stream = PROTOCOL_CHAT.open(
        &(struct protocol_context){.setup = &setup, .request = &r, .id = "id-1"});
    assert_non_null(stream);
    for (int i = 0; i < 6; i++) {
        e.choice = (uint32_t)i % 2;
        assert_true(PROTOCOL_CHAT.event(stream, &e, &out));
    }
    assert_true(text_append(&out, "", 1));
    assert_int_equal(count(out.data, "\"role\":\"assistant\""), 2);
    PROTOCOL_CHAT.close(stream);
    text_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_answer),       cmocka_unit_test(test_chat_logprobs),
        cmocka_unit_test(test_completion_answer), cmocka_unit_test(test_calls_in_answers),
        cmocka_unit_test(test_answer_options),    cmocka_unit_test(test_failed_answers),
        cmocka_unit_test(test_stop_of_answer),    cmocka_unit_test(test_streamed_logprobs),
        cmocka_unit_test(test_streamed_role),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
