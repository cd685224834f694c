/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of /api/chat and /api/generate: as the prompt that they become, every refusal with its
 * field's path, requests that only load; answers whole and as lines; what is said of the model. */
#include "api/ollama.h"
#include "protocol_checks.h"

#include <string.h>

static const char TEMPLATE[] =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% if m.reasoning_content %}R{{ m.reasoning_content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}({{ c.id }} {{ c.function.name }} "
    "{{ c.function.arguments | tojson }}){% endfor %}"
    "{% if m.tool_call_id %}={{ m.tool_call_id }}{% endif %}{% endfor %}"
    "{% for t in tools or [] %}T{{ t.function.name }}{% endfor %}{{ reasoning_effort }}"
    "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"
    "{% if add_generation_prompt %}[a]{% endif %}";

static void prompt_of(const char *text, const char *wanted) {
    api_request_free(&r);
    if (!read_text_body(text))
        fail_msg("%s: %s", text, err.text);
    prompt_is(&r, wanted);
}

#define CHAT(messages)   "{\"model\":\"ours\",\"messages\":[" messages "]}"
#define HI               "{\"role\":\"user\",\"content\":\"hi\"}"
#define WITH(fields)     "{\"model\":\"ours\",\"messages\":[" HI "]," fields "}"
#define OPTIONS(options) WITH("\"options\":{" options "}")
#define PROMPT(fields)   "{\"model\":\"ours\",\"prompt\":\"hi\"" fields "}"

/* ---- requests -------------------------------------------------------------------------------- */

static void test_messages(void **state) {
    (void)state;
    protocol = &PROTOCOL_OLLAMA_CHAT;
    prompt_of(CHAT("{\"role\":\"system\",\"content\":\"brief\"}," HI), "[system]brief[user]hi[a]");
    assert_true(r.stream && r.engine.shorten);
    assert_int_equal(r.engine.max_tokens, 77);
    assert_string_equal(r.model, "ours");
    /* calls without ids get some, and results find theirs by the name, or else in order */
    prompt_of(CHAT(HI
                   ",{\"role\":\"assistant\",\"content\":\"\",\"thinking\":\"hm\",\"tool_calls\":"
                   "[{\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1}}},{\"function\":"
                   "{\"name\":\"g\",\"arguments\":{}}},{\"id\":\"own\",\"function\":{\"name\":"
                   "\"f\",\"arguments\":{}}}]},{\"role\":\"tool\",\"tool_name\":\"g\","
                   "\"content\":\"b\"},{\"role\":\"tool\",\"content\":\"a\"},{\"role\":\"tool\","
                   "\"content\":\"c\",\"tool_call_id\":\"own\"}"),
              "[user]hi[assistant]Rhm(call00001 f {\"x\": 1})(call00002 g {})(own f {})"
              "[tool]b=call00002[tool]a=call00001[tool]c=own[a]");
    /* an assistant's message at the end is continued */
    prompt_of(CHAT(HI ",{\"role\":\"assistant\",\"content\":\"I\"}"), "[user]hi[assistant]I");
    prompt_of(WITH("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
                   "\"keep_alive\":\"5m\",\"unknown\":1"),
              "[user]hiTf[a]");
    bad(WITH("\"tools\":[{}]"), "tools[0].function", "missing");
    bad("{\"model\":\"ours\",\"messages\":\"hi\"}", "messages", "is a string, not an array");
    bad(CHAT("7"), "messages[0]", "is a number, not an object");
    bad(CHAT("{\"content\":\"x\"}"), "messages[0].role", "missing");
    bad(CHAT(HI ",{\"role\":\"user\",\"content\":3}"), "messages[1].content", "is a number");
    bad(CHAT("{\"role\":\"user\",\"content\":\"x\",\"images\":[\"AA==\"]}"), "messages[0].images",
        "only text is");
    bad(CHAT("{\"role\":\"assistant\",\"content\":\"x\",\"thinking\":1}"), "messages[0].thinking",
        "is a number");
    bad(CHAT("{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":"
             "3}}]}," HI),
        "messages[0].tool_calls[0].function.arguments", "is a number");
    bad(CHAT("{\"role\":\"assistant\",\"tool_calls\":3}," HI), "messages[0].tool_calls",
        "is a number");
}

static void test_fields(void **state) {
    (void)state;
    protocol = &PROTOCOL_OLLAMA_CHAT;
    prompt_of(WITH("\"think\":false"), "[user]hiFalse[a]");
    prompt_of(WITH("\"think\":true"), "[user]hiTrue[a]");
    prompt_of(WITH("\"think\":\"max\""), "[user]hihigh[a]");
    bad(WITH("\"think\":\"lots\""), "think", "\"lots\" is not true");
    bad(WITH("\"think\":7"), "think", "is a number");
    prompt_of(WITH("\"format\":\"json\",\"stream\":false"), "[user]hi[a]");
    assert_true(r.constraint.kind == CONSTRAINT_SCHEMA && !r.stream);
    prompt_of(WITH("\"format\":{\"type\":\"integer\"}"), "[user]hi[a]");
    same_json(json_incref(r.constraint.value), "{\"type\":\"integer\"}");
    prompt_of(WITH("\"format\":\"\""), "[user]hi[a]");
    assert_true(r.constraint.kind == CONSTRAINT_NONE);
    bad(WITH("\"format\":\"xml\""), "format", "\"xml\" is not \"json\"");
    bad(WITH("\"format\":[1]"), "format", "is an array");
    bad(WITH("\"stream\":3"), "stream", "is a number");
    prompt_of(WITH("\"logprobs\":true,\"top_logprobs\":2"), "[user]hi[a]");
    assert_int_equal(r.engine.top_logprobs, 2);
    bad(WITH("\"logprobs\":1"), "logprobs", "is a number");
    bad(WITH("\"logprobs\":true,\"top_logprobs\":21"), "top_logprobs", "is not between 0 and 20");
    bad(WITH("\"top_logprobs\":2"), "top_logprobs", "needs \"logprobs\": true");
}

static void test_options(void **state) {
    (void)state;
    protocol = &PROTOCOL_OLLAMA_CHAT;
    setup.ctx = 1000;
    prompt_of(OPTIONS("\"num_predict\":5,\"temperature\":0.5,\"top_k\":3,\"top_p\":0.25,\"min_p\":"
                      "0.125,\"seed\":9,\"stop\":[\"x\",\"y\"],\"repeat_penalty\":1.5,"
                      "\"presence_penalty\":1,\"frequency_penalty\":2,\"num_ctx\":1000,"
                      "\"num_thread\":2,\"mirostat\":0,\"typical_p\":1.0,\"num_gpu\":null"),
              "[user]hi[a]");
    const kvasir_sampling *s = &r.engine.sampling;
    assert_int_equal(r.engine.max_tokens, 5);
    assert_true(s->temp == 0.5f && s->top_k == 3 && s->top_p == 0.25f && s->min_p == 0.125f);
    assert_true(s->seed == 9 && s->repetition_penalty == 1.5f && s->presence_penalty == 1);
    assert_true(s->frequency_penalty == 2 && r.engine.n_stops == 2 && !r.echo);
    assert_int_equal(s->repetition_context, 64);
    assert_int_equal(s->presence_context, 64);
    prompt_of(OPTIONS("\"num_predict\":-1,\"repeat_last_n\":-1"), "[user]hi[a]");
    assert_int_equal(r.engine.max_tokens, 0);
    assert_int_equal(s->frequency_context, INT32_MAX);
    prompt_of(OPTIONS("\"num_predict\":-2,\"repeat_last_n\":0,\"repeat_penalty\":2"),
              "[user]hi[a]");
    assert_true(r.engine.max_tokens == 0 && s->repetition_penalty == 1);
    prompt_of(OPTIONS("\"num_ctx\":1001,\"warp\":1"), "[user]hi[a]");
    same_json(json_incref(json_object_get(r.echo, "warnings")),
              "[\"options.warp: is unknown here and changes nothing\",\"options.num_ctx: the "
              "server's context is 1000 tokens and stays so\"]");
    prompt_of(OPTIONS("\"num_predict\":0"), "[user]hi[a]");
    assert_true(r.engine.no_answer);
    prompt_of(WITH("\"priority\":2"), "[user]hi[a]");
    assert_int_equal(r.engine.priority, 2);
    setup.ctx = 0;
    bad(WITH("\"options\":[]"), "options", "is an array, not an object");
    bad(OPTIONS("\"temperature\":\"hot\""), "options.temperature", "is a string");
    bad(OPTIONS("\"top_p\":2"), "options.top_p", "");
    bad(OPTIONS("\"stop\":[3]"), "options.stop[0]", "is a number");
    bad(OPTIONS("\"mirostat\":2"), "options.mirostat", "only 0, which turns it off, is");
    bad(OPTIONS("\"repeat_last_n\":-2"), "options.repeat_last_n", "is not between -1 and");
    bad(OPTIONS("\"num_ctx\":\"x\""), "options.num_ctx", "is a string");
}

static void test_generate(void **state) {
    (void)state;
    protocol = &PROTOCOL_OLLAMA_GENERATE;
    prompt_of(PROMPT(""), "[user]hi[a]");
    prompt_of(PROMPT(",\"system\":\"brief\",\"think\":false,\"images\":[],\"context\":[],"
                     "\"template\":\"\",\"suffix\":\"\""),
              "[system]brief[user]hiFalse[a]");
    prompt_of(PROMPT(",\"raw\":true,\"options\":{\"num_predict\":4}"), "<s>hi");
    assert_int_equal(r.engine.max_tokens, 4);
    bad(PROMPT(",\"raw\":true,\"system\":\"x\""), "system", "cannot be combined");
    bad(PROMPT(",\"raw\":1"), "raw", "is a number");
    bad(PROMPT(",\"template\":\"x\""), "template", "is not supported");
    bad(PROMPT(",\"context\":[1,2]"), "context", "send the conversation to /api/chat");
    bad(PROMPT(",\"images\":[\"AA==\"]"), "images", "only text is");
    bad(PROMPT(",\"suffix\":\"there\""), "suffix", "cannot fill in the middle");
    bad("{\"model\":\"ours\",\"prompt\":4}", "prompt", "is a number, not a string");
}

/* A request that only loads has no prompt and is complete at once. */
static void test_loads(void **state) {
    (void)state;
    static const char *const LOADS[] = {"{\"model\":\"ours\"}",
                                        "{\"model\":\"ours:latest\",\"messages\":[],\"prompt\":"
                                        "\"\",\"keep_alive\":0}"};
    static const struct protocol *const BOTH[] = {&PROTOCOL_OLLAMA_CHAT, &PROTOCOL_OLLAMA_GENERATE};
    static const char *const WANTED[] = {
        "{\"model\":\"ours\",\"created_at\":\"1970-01-01T00:00:05Z\",\"message\":{\"role\":"
        "\"assistant\",\"content\":\"\"},\"done\":true,\"done_reason\":\"load\"}",
        "{\"model\":\"ours\",\"created_at\":\"1970-01-01T00:00:05Z\",\"response\":\"\",\"done\":"
        "true,\"done_reason\":\"load\"}"};
    for (size_t i = 0; i < 4; i++) {
        protocol = BOTH[i / 2];
        api_request_free(&r);
        assert_true(read_text_body(LOADS[i % 2]));
        assert_true(r.idle && !r.stream && r.engine.n_tokens == 0);
        const struct protocol_context c = {.setup = &setup, .request = &r, .created = 5};
        struct api_answer none = {.request = &r};
        same_json(protocol->body(&none, &c, &err), WANTED[i / 2]);
    }
}

static void test_names(void **state) {
    (void)state;
    protocol = &PROTOCOL_OLLAMA_CHAT;
    static const char *const UNKNOWN[] = {"our", "ours:7b", "ours:latest2", "theirs"};
    for (size_t i = 0; i < sizeof UNKNOWN / sizeof *UNKNOWN; i++) {
        char text[128], wanted[128];
        snprintf(text, sizeof text, "{\"model\":\"%s\",\"messages\":[" HI "]}", UNKNOWN[i]);
        snprintf(wanted, sizeof wanted, "model '%s' not found", UNKNOWN[i]);
        assert_false(read_text_body(text));
        assert_int_equal(err.status, HTTP_NOT_FOUND);
        assert_non_null(strstr(err.text, wanted));
    }
    bad("{\"messages\":[" HI "]}", "model", "missing");
    bad("{\"model\":3}", "model", "is a number");
    same_json(protocol->error(&err), "{\"error\":\"model: is a number, not a string\"}");
}

/* ---- answers --------------------------------------------------------------------------------- */

static const struct answer_syntax HERMES = {ANSWER_HERMES, "<tool_call>", "</tool_call>", "<think>",
                                            "</think>"};
static const struct api_times TIMES = {1000, 1002, 1005, 1009, 1009};
static const char ANSWER[] = "<think>hm</think>I do<tool_call>{\"name\": \"f\", \"arguments\": "
                             "{\"x\": 1}}</tool_call>";
#define END                                                                                        \
    "\"done\":true,\"done_reason\":\"%s\",\"total_duration\":9000,\"load_duration\":2000,"         \
    "\"requantized_pages\":2,\"prompt_eval_count\":9,\"prompt_eval_duration\":3000,\"eval_"        \
    "count\":2,\"eval_duration\":"                                                                 \
    "4000}"
#define HEAD "{\"model\":\"ours\",\"created_at\":\"1970-01-01T00:00:05Z\","

static struct protocol_context chat_with_tools(void) {
    setup.syntax = &HERMES;
    protocol = &PROTOCOL_OLLAMA_CHAT;
    prompt_of(WITH("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"),
              "[user]hiTf[a]");
    return (struct protocol_context){
        .setup = &setup, .request = &r, .id = "id", .created = 5, .times = &TIMES};
}

static void push(void *stream, kvasir_event_kind kind, const char *text, struct text_buf *out) {
    const kvasir_event e = {.kind = kind,
                            .text = text,
                            .len = strlen(text),
                            .prompt_tokens = 9,
                            .requantized_pages = kind == KVASIR_EVENT_DONE ? 2 : 0,
                            .finish = KVASIR_FINISH_LENGTH,
                            .last = kind == KVASIR_EVENT_DONE};
    assert_true(protocol->event(stream, &e, out));
}

/* Each line is JSON; empties it. */
static void lines_are(struct text_buf *out, const char *const *wanted, size_t n) {
    char *at = out->data;
    assert_true(text_append(out, "", 1));
    at = out->data;
    for (size_t i = 0; i < n; i++) {
        char *end = strchr(at, '\n');
        assert_non_null(end);
        *end = 0;
        same_json(json_of(at), wanted[i]);
        at = end + 1;
    }
    assert_string_equal(at, "");
    out->len = 0;
}

static void test_streams(void **state) {
    (void)state;
    static const char *const LINES[] = {
        HEAD "\"message\":{\"role\":\"assistant\",\"content\":\"\",\"thinking\":\"hm\"},\"done\":"
             "false}",
        HEAD "\"message\":{\"role\":\"assistant\",\"content\":\"I do\"},\"done\":false}"};
    const struct protocol_context c = chat_with_tools();
    struct text_buf out = {0};
    void *stream = protocol->open(&c);
    push(stream, KVASIR_EVENT_START, "", &out);
    assert_int_equal(out.len, 0);
    push(stream, KVASIR_EVENT_TOKEN, "<think>hm</think>I do<tool", &out);
    lines_are(&out, LINES, 2);
    push(stream, KVASIR_EVENT_TOKEN, ANSWER + strlen("<think>hm</think>I do<tool"), &out);
    assert_true(text_append(&out, "", 1));
    json_t *line = json_of(strtok(out.data, "\n"));
    json_t *message = json_object_get(line, "message");
    json_t *call = json_array_get(json_object_get(message, "tool_calls"), 0);
    same_json(json_incref(json_object_get(call, "function")),
              "{\"name\":\"f\",\"arguments\":{\"x\":1}}");
    json_decref(line);
    out.len = 0;
    push(stream, KVASIR_EVENT_DONE, "", &out);
    char last[512];
    snprintf(last, sizeof last, HEAD "\"message\":{\"role\":\"assistant\",\"content\":\"\"}," END,
             "length");
    lines_are(&out, (const char *const[]){last}, 1);
    assert_true(protocol->silence(1, 2, &out));
    assert_int_equal(out.len, 0);
    api_refuse(&err, NULL, "lost");
    assert_true(protocol->failed(&err, &out));
    lines_are(&out, (const char *const[]){"{\"error\":\"lost\"}"}, 1);
    protocol->close(stream);
    text_free(&out);
    setup.syntax = NULL;
}

#define LOGPROBS                                                                                   \
    "\"logprobs\":[{\"token\":\"h\",\"logprob\":-0.5,\"bytes\":[104],\"top_logprobs\":[]}]"

/* Every token has a line, with the text that came with it, or none. */
static void test_logprobs(void **state) {
    (void)state;
    static const char *const LINES[] = {HEAD "\"response\":\"h\",\"done\":false," LOGPROBS "}",
                                        HEAD "\"response\":\"\",\"done\":false," LOGPROBS "}"};
    protocol = &PROTOCOL_OLLAMA_GENERATE;
    prompt_of(PROMPT(",\"raw\":true,\"logprobs\":true"), "<s>hi");
    assert_int_equal(r.engine.top_logprobs, 0);
    const struct protocol_context c = {.setup = &setup, .request = &r, .id = "id", .created = 5};
    struct text_buf out = {0};
    void *stream = protocol->open(&c);
    kvasir_event e = {
        .kind = KVASIR_EVENT_TOKEN, .token = 'h', .logprob = -0.5f, .text = "h", .len = 1};
    assert_true(protocol->event(stream, &e, &out));
    e.len = 0;
    assert_true(protocol->event(stream, &e, &out));
    lines_are(&out, LINES, 2);
    protocol->close(stream);
    text_free(&out);
    struct api_answer a;
    assert_true(api_answer_init(&a, &r));
    api_answer_event(&a, &e);
    json_t *body = protocol->body(&a, &c, &err), *wanted = json_of("{" LOGPROBS "}");
    assert_true(json_equal(json_object_get(body, "logprobs"), json_object_get(wanted, "logprobs")));
    json_decref(wanted);
    json_decref(body);
    api_answer_free(&a);
}

/* One answer, as events bring it. */
static json_t *whole(const struct protocol_context *c, const char *text) {
    struct api_answer a;
    assert_true(api_answer_init(&a, &r));
    for (int i = 0; i < 3; i++)
        api_answer_event(&a, &(kvasir_event){.kind = i < 2 ? KVASIR_EVENT_TOKEN : KVASIR_EVENT_DONE,
                                             .text = i ? "" : text,
                                             .len = i ? 0 : strlen(text),
                                             .prompt_tokens = 9,
                                             .requantized_pages = i < 2 ? 0 : 2,
                                             .last = i == 2});
    json_t *body = protocol->body(&a, c, &err);
    api_answer_free(&a);
    return body;
}

static void test_whole_answers(void **state) {
    (void)state;
    char wanted[512];
    struct protocol_context c = chat_with_tools();
    json_t *body = whole(&c, ANSWER), *message = json_object_get(body, "message");
    json_t *call = json_array_get(json_object_get(message, "tool_calls"), 0);
    assert_int_equal(json_object_del(call, "id"), 0);
    snprintf(wanted, sizeof wanted,
             HEAD "\"message\":{\"role\":\"assistant\",\"content\":\"I do\",\"thinking\":\"hm\","
                  "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1}}}]}," END,
             "stop");
    same_json(body, wanted);
    protocol = &PROTOCOL_OLLAMA_GENERATE;
    prompt_of(PROMPT(""), "[user]hi[a]");
    snprintf(wanted, sizeof wanted, HEAD "\"response\":\"I do\",\"thinking\":\"hm\"," END, "stop");
    same_json(whole(&c, "<think>hm</think>I do"), wanted);
    setup.syntax = NULL;
    prompt_of(PROMPT(",\"raw\":true"), "<s>hi");
    c.times = NULL; /* clients divide by durations */
    body = whole(&c, "so");
    same_json(json_incref(json_object_get(body, "response")), "\"so\"");
    same_json(json_incref(json_object_get(body, "eval_duration")), "1");
    json_decref(body);
}

/* ---- about the model ------------------------------------------------------------------------- */

static void test_model(void **state) {
    (void)state;
    setup.syntax = &HERMES;
    setup.ctx = 1000;
    const struct api_model m = {.name = "ours",
                                .setup = &setup,
                                .since_s = 5,
                                .info = {.arch = "llama",
                                         .name = "Ours",
                                         .format = "GGUF v3",
                                         .weight_types = "Q4_1 210, F32 61",
                                         .layers = 2,
                                         .parameters = 134515008,
                                         .weight_bytes = 99,
                                         .fingerprint = "0123456789abcdef"}};
#define ABOUT                                                                                      \
    "\"name\":\"ours:latest\",\"model\":\"ours:latest\",\"size\":99,\"digest\":"                   \
    "\"0123456789abcdef\",\"details\":" DETAILS
#define DETAILS                                                                                    \
    "{\"parent_model\":\"\",\"format\":\"gguf\",\"family\":\"llama\",\"families\":[\"llama\"],"    \
    "\"parameter_size\":\"134.52M\",\"quantization_level\":\"Q4_1\"}"
    same_json(ollama_tags(&m, 1),
              "{\"models\":[{" ABOUT ",\"modified_at\":\"1970-01-01T00:00:05Z\"}]}");
    same_json(ollama_ps(&m, 1), "{\"models\":[{" ABOUT ",\"expires_at\":\"2318-01-01T00:00:00Z\","
                                "\"size_vram\":0,\"context_length\":1000}]}");
    struct api_body body = body_of("{\"name\":\"ours\"}", ollama_wants);
    struct text_buf out = {0};
    assert_true(ollama_show(&m, &body, &out, &err) && text_append(&out, "", 1));
    json_t *show = json_of(out.data), *info = json_object_get(show, "model_info");
    assert_string_equal(json_string_value(json_object_get(show, "template")), TEMPLATE);
    same_json(json_incref(json_object_get(show, "capabilities")),
              "[\"completion\",\"tools\",\"thinking\"]");
    same_json(json_incref(json_object_get(show, "details")), DETAILS);
    same_json(json_incref(json_object_get(info, "llama.context_length")), "1000");
    same_json(json_incref(json_object_get(info, "general.parameter_count")), "134515008");
    json_decref(show);
    text_free(&out);
    api_body_free(&body);
    body = body_of("{\"model\":\"other\"}", ollama_wants);
    assert_false(ollama_show(&m, &body, &out, &err));
    assert_int_equal(err.status, HTTP_NOT_FOUND);
    api_body_free(&body);
    setup.syntax = NULL;
    setup.ctx = 0;
}

static int set_up(void **state) {
    (void)state;
    return api_set_up(TEMPLATE);
}

static int tear_down(void **state) {
    api_request_free(&r);
    return api_tear_down(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages), cmocka_unit_test(test_fields),
        cmocka_unit_test(test_options),  cmocka_unit_test(test_generate),
        cmocka_unit_test(test_loads),    cmocka_unit_test(test_names),
        cmocka_unit_test(test_streams),  cmocka_unit_test(test_whole_answers),
        cmocka_unit_test(test_logprobs), cmocka_unit_test(test_model),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
