/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of /v1/responses: items as the prompt that they become, every refusal with its field's
 * path, truncation; answers as items and as events; what is kept for requests that continue. */
#include "api/responses.h"
#include "protocol_checks.h"
#include "server/responses_kept.h"

#include <string.h>

static const char TEMPLATE[] =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% if m.reasoning_content %}R{{ m.reasoning_content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}({{ c.id }} {{ c.function.name }} "
    "{{ c.function.arguments | tojson }}){% endfor %}"
    "{% if m.tool_call_id %}={{ m.tool_call_id }}{% endif %}{% endfor %}"
    "{% for t in tools or [] %}T{{ t.function.name }}{{ t.function.parameters | length }}"
    "{% endfor %}{{ reasoning_effort }}"
    "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"
    "{% if add_generation_prompt %}[a]{% endif %}";

static void chat_is(const char *text, const char *wanted) {
    api_request_free(&r);
    if (!read_text_body(text))
        fail_msg("%s: %s", text, err.text);
    prompt_is(&r, wanted);
}

static json_t *echo(const char *name) {
    return json_object_get(r.echo, name);
}

#define ITEMS(items) "{\"input\":[" items "]}"
#define HI           "{\"role\":\"user\",\"content\":\"hi\"}"
#define WITH(fields) "{\"input\":\"hi\"," fields "}"
#define CALL(id, arg)                                                                              \
    "{\"type\":\"function_call\",\"call_id\":\"" id "\",\"name\":\"f\",\"arguments\":" arg "}"
#define RESULT(id) "{\"type\":\"function_call_output\",\"call_id\":\"" id "\",\"output\":\"o\"}"

/* ---- items ----------------------------------------------------------------------------------- */

static void test_items(void **state) {
    (void)state;
    chat_is("{\"input\":\"hi\"}", "[user]hi[a]");
    chat_is("{\"input\":\"hi\",\"instructions\":\"be brief\"}", "[system]be brief[user]hi[a]");
    chat_is(
        ITEMS("{\"type\":\"message\",\"role\":\"developer\",\"content\":[{\"type\":\"input_text\","
              "\"text\":\"a\"},{\"type\":\"input_text\",\"text\":\"b\"}]}," HI "," HI),
        "[developer]a\nb[user]hi[user]hi[a]");
    chat_is(ITEMS(HI
                  ",{\"type\":\"reasoning\",\"id\":\"rs_1\",\"summary\":[],\"content\":[{\"type\":"
                  "\"reasoning_text\",\"text\":\"hm\"}]},{\"type\":\"message\",\"role\":"
                  "\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"I look\","
                  "\"annotations\":[]}]}," CALL("c1", "\"{\\\"x\\\":1}\"") "," CALL(
                      "c2", "\"\"") "," RESULT("c1") "," RESULT("c2")),
            "[user]hi[assistant]I lookRhm(c1 f {\"x\": 1})(c2 f {})[tool]o=c1[tool]o=c2[a]");
    /* a text after calls begins a message; reasoning without its text is passed over */
    chat_is(
        ITEMS(CALL(
            "c",
            "\"{}\"") ",{\"role\":\"assistant\",\"content\":\"b\"},"
                      "{\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":\"x\"}," HI),
        "[assistant]None(c f {})[assistant]b[user]hi[a]");
    chat_is(
        ITEMS("{\"type\":\"custom_tool_call\",\"call_id\":\"c\",\"name\":\"p\",\"input\":\"x\"},"
              "{\"type\":\"custom_tool_call_output\",\"call_id\":\"c\",\"output\":[{\"type\":"
              "\"input_text\",\"text\":\"done\"}]},{\"type\":\"web_search_call\",\"id\":\"w\"}"),
        "[assistant]None(c p {\"input\": \"x\"})[tool]done=c[a]");
}

static void test_wrong_items(void **state) {
    (void)state;
    bad("{}", "input", "missing");
    bad("{\"input\":3}", "input", "is a number, not a string or an array of items");
    bad(ITEMS(""), "input", "is empty");
    bad(ITEMS(HI ",7"), "input[1]", "is a number, not an object");
    bad(ITEMS("{\"type\":\"item_reference\",\"id\":\"x\"}"), "input[0].type",
        "\"item_reference\" is not supported");
    bad(ITEMS("{\"role\":\"tool\",\"content\":\"x\"}"), "input[0].role", "\"tool\" is not user");
    bad(ITEMS("{\"role\":\"user\"}"), "input[0].content", "missing");
    bad(ITEMS("{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}"),
        "input[0].content[0].type", "\"input_image\" is not supported, only text is");
    bad(ITEMS("{\"role\":\"user\",\"content\":[{\"type\":\"input_text\"}]}"),
        "input[0].content[0].text", "missing");
    bad(ITEMS(CALL("c", "3")), "input[0].arguments", "is a number, not a string");
    bad(ITEMS(CALL("c", "\"{\"")), "input[0].arguments", "invalid JSON at byte 1");
    bad(ITEMS(CALL("c", "\"[]\"")), "input[0].arguments", "is not the text of a JSON object");
    bad(ITEMS("{\"type\":\"function_call_output\",\"call_id\":\"c\"}"), "input[0].output",
        "missing");
}

/* ---- fields ---------------------------------------------------------------------------------- */

static void test_fields(void **state) {
    (void)state;
    chat_is(
        WITH("\"model\":\"m\",\"max_output_tokens\":7,\"temperature\":0.5,\"top_p\":0.25,"
             "\"stream\":true,\"seed\":3,\"reasoning\":{\"effort\":\"xhigh\",\"summary\":\"auto\"},"
             "\"text\":{\"format\":{\"type\":\"json_object\"},\"verbosity\":\"low\"},"
             "\"metadata\":{\"a\":\"b\"},\"truncation\":\"disabled\",\"include\":"
             "[\"reasoning.encrypted_content\"],\"unknown\":1,\"priority\":4"),
        "[user]hihigh[a]");
    assert_int_equal(r.engine.priority, 4);
    assert_int_equal(r.engine.max_tokens, 7);
    assert_true(r.engine.sampling.temp == 0.5f && r.engine.sampling.top_p == 0.25f);
    assert_true(r.stream && r.constraint.kind == CONSTRAINT_SCHEMA);
    same_json(json_incref(echo("max_output_tokens")), "7");
    same_json(json_incref(echo("metadata")), "{\"a\":\"b\"}");
    same_json(json_incref(echo("store")), "false"); /* there is no store */
    same_json(json_incref(r.input),
              "[{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":"
              "\"input_text\",\"text\":\"hi\"}]}]");
    chat_is(WITH("\"reasoning\":{\"effort\":\"none\"}"), "[user]hiFalse[a]");
    same_json(json_incref(echo("tool_choice")), "\"auto\"");
    same_json(json_incref(echo("instructions")), "null");

    bad(WITH("\"max_output_tokens\":0"), "max_output_tokens", "is not between 1 and");
    bad(WITH("\"temperature\":-1"), "temperature", "");
    bad(WITH("\"priority\":\"high\""), "priority", "is a string, not a whole number");
    bad(WITH("\"reasoning\":{\"effort\":\"lots\"}"), "reasoning.effort", "\"lots\" is not none");
    bad(WITH("\"text\":{\"format\":{\"type\":\"xml\"}}"), "text.format.type", "\"xml\" is not");
    bad(WITH("\"background\":true"), "background", "is not supported");
    bad(WITH("\"conversation\":\"c\""), "conversation", "is not supported");
    bad(WITH("\"top_logprobs\":2"), "top_logprobs", "is not supported");
    bad(WITH("\"include\":[\"message.output_text.logprobs\"]"), "include[0]", "logprobs");
    bad(WITH("\"truncation\":\"some\""), "truncation", "\"some\" is not auto or disabled");
    bad(WITH("\"instructions\":4"), "instructions", "is a number, not a string");
    bad(WITH("\"previous_response_id\":\"resp_1\""), "previous_response_id", "are not kept here");
    bad(WITH("\"store\":3"), "store", "is a number");
}

static void test_tools(void **state) {
    (void)state;
    chat_is(WITH("\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":"
                 "\"object\"},\"strict\":null},{\"type\":\"custom\",\"name\":\"p\"},"
                 "{\"type\":\"web_search\"}],\"tool_choice\":\"auto\""),
            "[user]hiTf1Tp4[a]");
    same_json(
        json_incref(r.warnings),
        "[\"tools[2]: tools of the type \\\"web_search\\\" are not available here; it was left "
        "out\"]");
    bad(WITH("\"tools\":{}"), "tools", "is an object, not an array");
    bad(WITH("\"tools\":[{}]"), "tools[0].type", "missing");
    bad(WITH("\"tools\":[{\"type\":\"function\"}]"), "tools[0].name", "missing");
    bad(WITH("\"tool_choice\":{\"type\":\"mcp\"}"), "tool_choice.type", "\"mcp\" is not supported");
}

/* A token is a byte here. */
static void test_truncation(void **state) {
    (void)state;
    static const char LONG[] =
        "{\"truncation\":\"%s\",\"max_output_tokens\":1,\"input\":[{\"role\":\"user\",\"content\":"
        "\"first\"},{\"role\":\"assistant\",\"content\":\"x\"},{\"role\":\"user\",\"content\":"
        "\"second\"},{\"role\":\"assistant\",\"content\":\"y\"},{\"role\":\"user\",\"content\":"
        "\"third\"}]}";
    char text[512];
    snprintf(text, sizeof text, LONG, "auto");
    setup.ctx = 1000;
    chat_is(text, "[user]first[assistant]x[user]second[assistant]y[user]third[a]");
    setup.ctx = 55;
    chat_is(text, "[user]second[assistant]y[user]third[a]");
    setup.ctx = 20;
    chat_is(text, "[user]third[a]");
    setup.ctx = 5; /* the engine refuses it */
    chat_is(text, "[user]third[a]");
    snprintf(text, sizeof text, LONG, "disabled");
    chat_is(text, "[user]first[assistant]x[user]second[assistant]y[user]third[a]");
    setup.ctx = 0;
}

/* ---- answers --------------------------------------------------------------------------------- */

static bool part(struct responses_output *o, enum answer_part_kind kind, const char *id,
                 const char *text) {
    return responses_output_part(
        o, &(struct answer_part){.kind = kind, .text = text, .len = strlen(text), .id = id});
}

/* The types of the events in a stream, each with its number; empties it. */
static void types_are(struct text_buf *out, const char *wanted) {
    struct text_buf types = {0};
    assert_true(text_append(out, "", 1));
    int n = 0;
    for (char *at = out->data; *at; n++) {
        char *end = strstr(at, "\n\n"), *data = strstr(at, "\ndata: ");
        assert_true(strncmp(at, "event: ", 7) == 0 && data && end && data < end);
        *data = *end = 0;
        json_t *event = json_of(data + 7);
        assert_string_equal(json_string_value(json_object_get(event, "type")), at + 7);
        assert_true(text_printf(&types, "%s ", strncmp(at + 7, "response.", 9) ? at + 7 : at + 16));
        json_decref(event);
        at = end + 2;
    }
    assert_true(text_append(&types, "", 1));
    assert_string_equal(types.data, wanted);
    text_free(&types);
    out->len = 0;
}

static void test_answers(void **state) {
    (void)state;
    chat_is(WITH("\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{\"type\":\"custom\",\"name\":"
                 "\"p\"}]"),
            "[user]hiTf0Tp4[a]");
    const struct protocol_context c = {
        .setup = &setup, .request = &r, .id = "resp_1", .created = 5};
    const struct responses_usage usage = {9, 4, 6, 2};
    struct responses_output o;
    struct text_buf out = {0};
    assert_true(responses_output_init(&o, &c));
    o.out = &out;
    assert_true(responses_output_start(&o));
    types_are(&out, "created in_progress ");
    assert_true(part(&o, ANSWER_REASONING, NULL, "hm") && part(&o, ANSWER_CONTENT, NULL, ""));
    types_are(&out, "output_item.added content_part.added reasoning_text.delta ");
    assert_true(part(&o, ANSWER_CONTENT, NULL, "I ") && part(&o, ANSWER_CONTENT, NULL, "do"));
    types_are(&out, "reasoning_text.done content_part.done output_item.done output_item.added "
                    "content_part.added output_text.delta output_text.delta ");
    assert_true(part(&o, ANSWER_CALL, "call_1", "f") &&
                part(&o, ANSWER_ARGUMENTS, NULL, "{\"x\":1}"));
    types_are(&out, "output_text.done content_part.done output_item.done output_item.added "
                    "function_call_arguments.delta function_call_arguments.done output_item.done ");
    assert_true(part(&o, ANSWER_CALL, "call_2", "p") &&
                part(&o, ANSWER_ARGUMENTS, NULL, "{\"input\":\"patch\"}"));
    types_are(&out, "output_item.added custom_tool_call_input.delta custom_tool_call_input.done "
                    "output_item.done ");
    json_t *response = responses_output_finish(&o, KVASIR_FINISH_STOP, &usage);
    types_are(&out, "completed ");
    same_json(json_incref(json_object_get(response, "output")),
              "[{\"id\":\"rs_100\",\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":"
              "\"reasoning_text\",\"text\":\"hm\"}],\"status\":\"completed\"},"
              "{\"id\":\"msg_101\",\"type\":\"message\",\"status\":\"completed\",\"role\":"
              "\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"I do\","
              "\"annotations\":[],\"logprobs\":[]}]},"
              "{\"id\":\"fc_102\",\"type\":\"function_call\",\"status\":\"completed\",\"call_id\":"
              "\"call_1\",\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"},"
              "{\"id\":\"ctc_103\",\"type\":\"custom_tool_call\",\"status\":\"completed\","
              "\"call_id\":\"call_2\",\"name\":\"p\",\"input\":\"patch\"}]");
    same_json(
        json_incref(json_object_get(response, "usage")),
        "{\"input_tokens\":9,\"input_tokens_details\":{\"cached_tokens\":4},\"output_tokens\":"
        "6,\"output_tokens_details\":{\"reasoning_tokens\":2},\"total_tokens\":15,"
        "\"requantized_pages\":2}");
    same_json(json_incref(json_object_get(response, "status")), "\"completed\"");
    json_decref(response);
    responses_output_free(&o);
    text_free(&out);
}

static void test_answers_cut_off_or_empty(void **state) {
    (void)state;
    chat_is("{\"input\":\"hi\"}", "[user]hi[a]");
    const struct protocol_context c = {
        .setup = &setup, .request = &r, .id = "resp_1", .created = 5};
    const struct responses_usage usage = {1, 0, 1, 0};
    struct responses_output o;
    assert_true(responses_output_init(&o, &c) && part(&o, ANSWER_CONTENT, NULL, "so"));
    json_t *response = responses_output_finish(&o, KVASIR_FINISH_LENGTH, &usage);
    same_json(json_incref(json_object_get(response, "incomplete_details")),
              "{\"reason\":\"max_output_tokens\"}");
    json_t *item = json_array_get(json_object_get(response, "output"), 0);
    same_json(json_incref(json_object_get(item, "status")), "\"incomplete\"");
    json_decref(response);
    responses_output_free(&o);
    assert_true(responses_output_init(&o, &c));
    response = responses_output_finish(&o, KVASIR_FINISH_STOP, &usage);
    assert_int_equal(json_array_size(json_object_get(response, "output")), 1);
    json_decref(response);
    responses_output_free(&o);
}

/* ---- what is kept ---------------------------------------------------------------------------- */

static struct mem_account account;

static void add(struct kept_responses *all, const char *key, const char *id, const char *previous) {
    json_t *input = json_pack("[{s:s, s:s}]", "role", "user", "content", id);
    json_t *response = json_pack("{s:s, s:[{s:s, s:s+}]}", "id", id, "output", "role", "assistant",
                                 "content", "to ", id);
    kept_add(all, key, previous, input, response);
    json_decref(input);
    json_decref(response);
}

/* The contents of all items; NULL: refused. */
static const char *recalled(struct kept_responses *all, const char *key, const char *id) {
    static char text[512];
    json_t *items = json_array(), *item;
    size_t i;
    *text = 0;
    const bool good = kept_recall(all, key, id, items, &err);
    json_array_foreach(items, i, item) {
        strcat(text, json_string_value(json_object_get(item, "content")));
        strcat(text, ";");
    }
    json_decref(items);
    return good ? text : NULL;
}

static void test_what_is_kept(void **state) {
    (void)state;
    mem_account_init(&account, 64 << 20, false);
    struct kept_responses *all = kept_create(&account, 1 << 20, 60);
    add(all, "k", "resp_a", NULL);
    add(all, "k", "resp_b", "resp_a");
    add(all, "k", "resp_c", "resp_b");
    assert_string_equal(recalled(all, "k", "resp_c"),
                        "resp_a;to resp_a;resp_b;to resp_b;resp_c;to resp_c;");
    assert_string_equal(recalled(all, "k", "resp_a"), "resp_a;to resp_a;");
    assert_null(recalled(all, "other", "resp_a"));
    assert_int_equal(err.status, HTTP_NOT_FOUND);
    assert_int_equal(kept_figures(all).responses, 3);
    bool found;
    char *text = kept_text(all, "k", "resp_b", true, &found);
    assert_true(found && strstr(text, "resp_b"));
    mem_free(text);
    assert_null(kept_text(all, "other", "resp_b", false, &found));
    assert_false(found || kept_forget(all, "other", "resp_a"));
    assert_true(kept_forget(all, "k", "resp_a"));
    assert_null(recalled(all, "k", "resp_c")); /* what it continues is gone */
    assert_non_null(strstr(err.text, "\"resp_a\" is not kept"));
    kept_destroy(all);
    assert_int_equal(mem_account_figures(&account).held, 0);
    mem_account_deinit(&account);
}

static void test_bounds_of_what_is_kept(void **state) {
    (void)state;
    enum { SMALL = 4096 };
    char id[32];
    mem_account_init(&account, 64 << 20, false);
    struct kept_responses *all = kept_create(&account, SMALL, 60);
    add(all, "k", "resp_first", NULL);
    for (int i = 0; i < 100; i++) {
        snprintf(id, sizeof id, "resp_%d", i);
        add(all, "k", id, "resp_first");
        assert_non_null(recalled(all, "k", id)); /* which keeps the first one young */
        assert_true(kept_figures(all).bytes <= SMALL);
    }
    assert_non_null(recalled(all, "k", "resp_first"));
    assert_null(recalled(all, "k", "resp_1"));
    kept_destroy(all);
    all = kept_create(&account, 100, 60); /* none fits */
    add(all, "k", "resp_a", NULL);
    assert_int_equal(kept_figures(all).responses, 0);
    kept_destroy(all);
    all = kept_create(&account, SMALL, 0); /* none lives */
    add(all, "k", "resp_a", NULL);
    usleep(1000);
    assert_null(recalled(all, "k", "resp_a"));
    kept_destroy(all);
    mem_account_deinit(&account);
}

static int set_up(void **state) {
    (void)state;
    api_set_up(TEMPLATE);
    protocol = &PROTOCOL_RESPONSES;
    return 0;
}

static int tear_down(void **state) {
    api_request_free(&r);
    return api_tear_down(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_items),
        cmocka_unit_test(test_wrong_items),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_answers_cut_off_or_empty),
        cmocka_unit_test(test_what_is_kept),
        cmocka_unit_test(test_bounds_of_what_is_kept),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
