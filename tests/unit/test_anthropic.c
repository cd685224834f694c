/* SPDX-License-Identifier: Apache-2.0 */
/* Anthropic's request bodies: every field that is read, every refusal with its field's path, the
 * prompt that a chat becomes; answers as bodies and as events, parsed again as a client would. */
#include "api/anthropic.h"
#include "api_checks.h"

#include <string.h>

static const char TEMPLATE[] =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% if m.reasoning_content %}R{{ m.reasoning_content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}({{ c.id }} {{ c.function.name }} {{ c.function.arguments.x "
    "}}){% endfor %}{% if m.tool_call_id %}={{ m.tool_call_id }}{% endif %}{% endfor %}"
    "{% for t in tools or [] %}T{{ t.function.name }}:{{ t.function.description }}:"
    "{{ t.function.parameters | length }}{% endfor %}{{ reasoning_effort }}"
    "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}{{ extra }}"
    "{% if add_generation_prompt %}[a]{% endif %}";

static struct api_request r;

static bool read_text_body(const char *text) {
    struct api_body body = {0};
    memset(&err, 'x', sizeof err);
    bool good = api_body_read(text, strlen(text), setup.vocab, anthropic_wants, &body, &err) &&
                anthropic_read(&setup, &body, &r, &err);
    api_body_free(&body);
    return good;
}

static void good(const char *text) {
    api_request_free(&r);
    if (!read_text_body(text))
        fail_msg("%s: %s", text, err.text);
}

static void bad(const char *text, const char *param, const char *why) {
    struct api_request before = r;
    if (read_text_body(text))
        fail_msg("taken: %s", text);
    assert_memory_equal(&before, &r, sizeof r);
    check_refused(text, param, why);
}

#define USER           "{\"role\":\"user\",\"content\":\"hi\"}"
#define BODY(messages) "{\"max_tokens\":9,\"messages\":[" messages "]}"
#define ONE(role, blocks)                                                                          \
    BODY("{\"role\":\"" role "\",\"content\":[" blocks "]}"), "messages[0].content[0]"
#define WITH(fields) "{\"max_tokens\":9,\"messages\":[" USER "]," fields "}"
#define TEXT(text)   "{\"type\":\"text\",\"text\":\"" text "\"}"

static void chat_is(const char *body, const char *wanted) {
    good(body);
    prompt_is(&r, wanted);
}

/* ---- messages -------------------------------------------------------------------------------- */

static void test_messages(void **state) {
    (void)state;
    chat_is(BODY(USER), "<s>[user]hi[a]");
    chat_is(BODY("{\"role\":\"user\",\"content\":[" TEXT("a") "," TEXT("") "," TEXT("b") "]}"),
            "<s>[user]a\nb[a]");
    /* consecutive messages of one role become one */
    chat_is(BODY(USER "," USER ",{\"role\":\"assistant\",\"content\":\"a\"},"
                      "{\"role\":\"assistant\",\"content\":[" TEXT("b") "]}," USER),
            "<s>[user]hi\nhi[assistant]a\nb[user]hi[a]");
    chat_is(BODY("{\"role\":\"user\",\"content\":\"\"}"), "<s>[user][a]");
    chat_is(BODY("{\"role\":\"user\",\"content\":[]}"), "<s>[user][a]");
    chat_is(BODY(USER ",{\"role\":\"system\",\"content\":\"s\"}," USER),
            "<s>[user]hi[system]s[user]hi[a]");
    /* a last message of the assistant is continued */
    chat_is(BODY(USER ",{\"role\":\"assistant\",\"content\":\"so \"}"),
            "<s>[user]hi[assistant]so ");
    assert_true(r.continues);
    chat_is(BODY(USER ",{\"role\":\"assistant\",\"content\":[" TEXT("a") "," TEXT("b") "]}"),
            "<s>[user]hi[assistant]a\nb");
    chat_is(BODY(USER ",{\"role\":\"assistant\",\"content\":[]}"), "<s>[user]hi[assistant]");

    bad("[]", "", "not a JSON object");
    bad("{\"max_tokens\":1}", "messages", "missing");
    bad("{\"max_tokens\":1,\"messages\":{}}", "messages", "is an object, not an array");
    bad(BODY(""), "messages", "is empty");
    bad(BODY("3"), "messages[0]", "is a number, not an object");
    bad(BODY(USER ",{\"content\":\"x\"}"), "messages[1].role", "missing");
    bad(BODY("{\"role\":\"tool\",\"content\":\"x\"}"), "messages[0].role",
        "\"tool\" is not user, assistant or system");
    bad(BODY(USER ",{\"role\":\"user\"}"), "messages[1].content", "missing");
    bad(BODY("{\"role\":\"user\",\"content\":{}}"), "messages[0].content",
        "is an object, not a string or an array of blocks");
    bad(ONE("user", "7"), "is a number, not an object");
    bad(BODY("{\"role\":\"user\",\"content\":[{}]}"), "messages[0].content[0].type", "missing");
    bad(BODY("{\"role\":\"user\",\"content\":[" TEXT("a") ",{\"type\":\"image\",\"source\":{}}]}"),
        "messages[0].content[1].type", "\"image\" is not supported");
    bad(BODY("{\"role\":\"user\",\"content\":[{\"type\":\"document\"}]}"),
        "messages[0].content[0].type", "\"document\" is not supported");
    bad(BODY("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":4}]}"),
        "messages[0].content[0].text", "is a number, not a string");
    bad(BODY("{\"role\":\"user\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"x\"}]}"),
        "messages[0].content[0].type",
        "\"thinking\" blocks are not allowed in a message of the role \"user\"");
    bad(BODY("{\"role\":\"system\",\"content\":[{\"type\":\"image\"}]}"),
        "messages[0].content[0].type", "\"image\" is not supported, only text is");
}

static void test_system(void **state) {
    (void)state;
    chat_is(WITH("\"system\":\"be brief\""), "<s>[system]be brief[user]hi[a]");
    chat_is(WITH("\"system\":[{\"type\":\"text\",\"text\":\"a\",\"cache_control\":{\"type\":"
                 "\"ephemeral\"}}," TEXT("b") "]"),
            "<s>[system]a\nb[user]hi[a]");
    chat_is(WITH("\"system\":\"\""), "<s>[user]hi[a]");
    chat_is(WITH("\"system\":[]"), "<s>[user]hi[a]");
    /* Claude Code's billing line is removed, in all its forms, and nothing else is */
#define BILLING "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;"
    chat_is(WITH("\"system\":[" TEXT(BILLING) "," TEXT("You are") "]"),
            "<s>[system]You are[user]hi[a]");
    chat_is(WITH("\"system\":\"" BILLING "\\nYou are\\n" BILLING "\""),
            "<s>[system]You are\n[user]hi[a]");
    chat_is(WITH("\"system\":\"" BILLING "\""), "<s>[user]hi[a]");
    chat_is(WITH("\"system\":\"say " BILLING "\\ncch=1;\\nx-anthropic-billing-heade\""),
            "<s>[system]say " BILLING "\ncch=1;\nx-anthropic-billing-heade[user]hi[a]");
    chat_is(BODY("{\"role\":\"user\",\"content\":\"" BILLING "\"}"), "<s>[user]" BILLING "[a]");
    bad(WITH("\"system\":3"), "system", "is a number, not a string or an array of blocks");
    bad(WITH("\"system\":[\"a\"]"), "system[0]", "is a string, not an object");
    bad(WITH("\"system\":[{\"type\":\"image\"}]"), "system[0].type", "\"image\" is not supported");
    bad(WITH("\"system\":[" TEXT("a") ",{\"type\":\"text\"}]"), "system[1].text", "missing");
}

#define USE(id, x)                                                                                 \
    "{\"type\":\"tool_use\",\"id\":\"" id "\",\"name\":\"f\",\"input\":{\"x\":" x "}}"
#define RESULT(id, more)  "{\"type\":\"tool_result\",\"tool_use_id\":\"" id "\"" more "}"
#define SAY(role, blocks) "{\"role\":\"" role "\",\"content\":[" blocks "]}"

static void test_tools_in_messages(void **state) {
    (void)state;
    chat_is(
        BODY(USER "," SAY("assistant", TEXT("I look") "," USE("1", "7") "," USE("2", "8")) "," SAY(
            "user", RESULT("1", ",\"content\":\"r\"") "," RESULT(
                        "2", ",\"content\":[" TEXT("s") "," TEXT("t") "]") "," TEXT("and?"))),
        "<s>[user]hi[assistant]I look(1 f 7)(2 f 8)[tool]r=1[tool]s\nt=2[user]and?[a]");
    chat_is(BODY(USER "," SAY("assistant", USE("1", "7")) "," SAY("user", RESULT("1", ""))),
            "<s>[user]hi[assistant]None(1 f 7)[tool]=1[a]");
    chat_is(BODY(USER "," SAY("assistant", USE("1", "7")) "," SAY(
                "user", RESULT("1", ",\"content\":\"no\",\"is_error\":true"))),
            "<s>[user]hi[assistant]None(1 f 7)[tool]Error: no=1[a]");
    chat_is(BODY(SAY("user", TEXT("before") "," RESULT("1", ",\"is_error\":false"))),
            "<s>[user]before[tool]=1[a]");
    /* reasoning is passed to the template; encrypted reasoning is not */
    chat_is(BODY(USER "," SAY(
                "assistant",
                "{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":"
                "\"s\"},{\"type\":\"redacted_thinking\",\"data\":\"x\"}," TEXT("so")) "," USER),
            "<s>[user]hi[assistant]soRhm[user]hi[a]");

    bad(BODY(USER "," SAY("assistant", USE("1", "7"))), "messages[1].content",
        "add its tool_result");
    bad(BODY(SAY("user", USE("1", "7"))), "messages[0].content[0].type", "blocks are not allowed");
    bad(BODY(USER "," SAY("assistant", RESULT("1", ""))), "messages[1].content[0].type",
        "blocks are not allowed");
    bad(BODY(SAY("assistant", "{\"type\":\"tool_use\",\"name\":\"f\",\"input\":{}}")),
        "messages[0].content[0].id", "missing");
    bad(BODY(SAY("assistant", "{\"type\":\"tool_use\",\"id\":\"1\",\"input\":{}}")),
        "messages[0].content[0].name", "missing");
    bad(BODY(SAY("assistant",
                 "{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":\"{}\"}")),
        "messages[0].content[0].input", "is a string, not an object");
    bad(BODY(SAY("assistant", "{\"type\":\"thinking\"}")), "messages[0].content[0].thinking",
        "missing");
    bad(BODY(SAY("user", "{\"type\":\"tool_result\"}")), "messages[0].content[0].tool_use_id",
        "missing");
    bad(BODY(SAY("user", RESULT("1", ",\"is_error\":1"))), "messages[0].content[0].is_error",
        "is a number, not true or false");
    bad(BODY(SAY("user", RESULT("1", ",\"content\":{}"))), "messages[0].content[0].content",
        "is an object");
    bad(BODY(SAY("user", RESULT("1", ",\"content\":[{\"type\":\"image\"}]"))),
        "messages[0].content[0].content[0].type", "\"image\" is not supported, only text is");
}

/* ---- fields ---------------------------------------------------------------------------------- */

static void test_tools(void **state) {
    (void)state;
    chat_is(WITH("\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":"
                 "\"object\"},\"cache_control\":{}},{\"type\":\"custom\",\"name\":\"g\","
                 "\"input_schema\":{}}],\"tool_choice\":{\"type\":\"auto\","
                 "\"disable_parallel_tool_use\":true}"),
            "<s>[user]hiTf:d:1Tg::0[a]");
    chat_is(WITH("\"tools\":[{\"name\":\"f\",\"input_schema\":{}}],\"tool_choice\":{\"type\":"
                 "\"none\"}"),
            "<s>[user]hi[a]");
    bad(WITH("\"tools\":{}"), "tools", "is an object, not an array");
    bad(WITH("\"tools\":[1]"), "tools[0]", "is a number");
    bad(WITH("\"tools\":[{\"input_schema\":{}}]"), "tools[0].name", "missing");
    bad(WITH("\"tools\":[{\"name\":\"f\"}]"), "tools[0].input_schema", "missing");
    bad(WITH("\"tools\":[{\"name\":\"f\",\"input_schema\":[]}]"), "tools[0].input_schema",
        "is an array");
    bad(WITH("\"tools\":[{\"name\":\"f\",\"description\":1,\"input_schema\":{}}]"),
        "tools[0].description", "is a number");
    bad(WITH("\"tools\":[{\"name\":\"f\",\"input_schema\":{}},{\"type\":\"bash_20250124\","
             "\"name\":\"bash\"}]"),
        "tools[1].type", "\"bash_20250124\" is not supported, only custom is");
    bad(WITH("\"tool_choice\":\"auto\""), "tool_choice", "is a string, not an object");
    bad(WITH("\"tool_choice\":{}"), "tool_choice.type", "missing");
    bad(WITH("\"tool_choice\":{\"type\":\"some\"}"), "tool_choice.type",
        "\"some\" is not \"auto\", \"any\", \"tool\" or \"none\"");
    bad(WITH("\"tools\":[{\"name\":\"f\",\"input_schema\":{},\"strict\":1}]"), "tools[0].strict",
        "is a number");
}

/* tool_choice, output formats and strict tools, as OpenAI's; errors have Anthropic's names. */
static void test_constraints(void **state) {
    (void)state;
    static const struct answer_syntax SYNTAX = {ANSWER_HERMES, "<tool_call>", "</tool_call>", NULL,
                                                NULL};
#define TOOL_FIELDS(strict, fields)                                                                \
    WITH("\"tools\":[{\"name\":\"f\",\"input_schema\":{\"a\":1}" strict "},{\"name\":\"g\","       \
         "\"input_schema\":{}}]" fields)
#define FORMAT "{\"type\":\"json_schema\",\"schema\":{\"a\":1}}"
    setup.syntax = &SYNTAX;
    good(TOOL_FIELDS("", ",\"tool_choice\":{\"type\":\"any\"}"));
    assert_int_equal(r.constraint.calls, CALLS_FORCED);
    assert_non_null(strstr(r.constraint.grammar.data, "calls ::= one (\"\\n\" one)*\n"));
    assert_non_null(strstr(r.constraint.grammar.data,
                           "%json {\"a\": 1, \"type\": \"object\", \"x-canonical\": true}"));
    good(TOOL_FIELDS("", ",\"tool_choice\":{\"type\":\"tool\",\"name\":\"g\","
                         "\"disable_parallel_tool_use\":true}"));
    assert_string_equal(r.constraint.only, "g");
    assert_non_null(strstr(r.constraint.grammar.data, "calls ::= one\n"));
    good(TOOL_FIELDS("", ",\"tool_choice\":{\"type\":\"auto\"}"));
    assert_int_equal(r.constraint.calls, CALLS_FREE);
    good(TOOL_FIELDS(",\"strict\":true", ""));
    assert_int_equal(r.constraint.calls, CALLS_CHECKED);
    good(TOOL_FIELDS(",\"strict\":false", ""));
    assert_int_equal(r.constraint.calls, CALLS_FREE);
    good(WITH("\"output_config\":{\"effort\":\"low\",\"format\":" FORMAT "}"));
    assert_string_equal(r.constraint.grammar.data, "{\"a\": 1, \"x-canonical\": true}");
    assert_int_equal(r.constraint.grammar_kind, KVASIR_GRAMMAR_JSON_SCHEMA);
    good(WITH("\"output_format\":" FORMAT));
    assert_string_equal(r.constraint.grammar.data, "{\"a\": 1, \"x-canonical\": true}");

    bad(WITH("\"output_format\":" FORMAT ",\"output_config\":{\"format\":" FORMAT "}"),
        "output_format", "cannot be combined with \"output_config.format\"");
    bad(WITH("\"output_format\":1"), "output_format", "is a number");
    bad(WITH("\"output_config\":{\"format\":{}}"), "output_config.format.type", "missing");
    bad(WITH("\"output_config\":{\"format\":{\"type\":\"text\"}}"), "output_config.format.type",
        "\"text\" is not supported, only json_schema is");
    bad(WITH("\"output_format\":{\"type\":\"json_schema\"}"), "output_format.schema", "missing");
    bad(WITH("\"tool_choice\":{\"type\":\"any\"}"), "tool_choice", "there are no \"tools\"");
    bad(TOOL_FIELDS("", ",\"tool_choice\":{\"type\":\"tool\"}"), "tool_choice.name", "missing");
    bad(TOOL_FIELDS("", ",\"tool_choice\":{\"type\":\"tool\",\"name\":\"h\"}"), "tool_choice.name",
        "\"h\" is none of the tools");
    bad(WITH("\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"array\"}}],"
             "\"tool_choice\":{\"type\":\"any\"}"),
        "tools[0].input_schema.type", "must be \"object\"");
    bad(WITH("\"tools\":[{\"name\":\"a b\",\"input_schema\":{}}]"), "tools[0].name",
        "may only contain");
    setup.syntax = NULL;
}

static void test_fields(void **state) {
    (void)state;
    good("{\"model\":\"claude\",\"max_tokens\":5,\"messages\":[" USER "],\"temperature\":0.5,"
         "\"top_p\":0.25,\"top_k\":3,\"stop_sequences\":[\"a\",\"b\"],\"stream\":true,"
         "\"metadata\":{\"user_id\":\"u\"},\"service_tier\":\"auto\",\"cache_salt\":\"t\","
         "\"priority\":-3,\"unheard_of\":1,\"mcp_servers\":[],\"container\":null,\"context_"
         "management\":{\"edits\":"
         "[{\"type\":\"clear_thinking_20251015\",\"keep\":\"all\"}]}}");
    assert_string_equal(r.model, "claude");
    assert_int_equal(r.engine.max_tokens, 5);
    assert_true(r.engine.shorten);
    assert_true(r.engine.sampling.temp == 0.5f && r.engine.sampling.top_p == 0.25f);
    assert_int_equal(r.engine.sampling.top_k, 3);
    assert_int_equal(r.engine.n_stops, 2);
    assert_string_equal(r.engine.stops[1], "b");
    assert_string_equal(r.engine.salt, "t");
    assert_int_equal(r.engine.priority, -3);
    assert_true(r.stream && !r.continues);
    good(BODY(USER));
    assert_string_equal(r.model, "ours");
    assert_false(r.stream);

    bad("{\"messages\":[" USER "]}", "max_tokens", "missing");
    bad("{\"messages\":[" USER "],\"max_tokens\":0}", "max_tokens", "0 is not between");
    bad("{\"messages\":[" USER "],\"max_tokens\":\"9\"}", "max_tokens", "is a string");
    bad(WITH("\"model\":3"), "model", "is a number");
    bad(WITH("\"model\":\"a\\u0000\""), "model", "contains a NUL character");
    bad(BODY("{\"role\":\"user\\u0000\",\"content\":\"hi\"}"), "messages[0].role", "a NUL");
    bad(BODY("{\"role\":\"user\",\"content\":[{\"type\":\"text\\u0000\",\"text\":\"\"}]}"),
        "messages[0].content[0].type", "a NUL");
    bad(WITH("\"output_config\":{\"effort\":\"low\\u0000\"}"), "output_config.effort", "a NUL");
    bad(WITH("\"tools\":[{\"type\":\"custom\\u0000\"}]"), "tools[0].type", "a NUL");
    bad(WITH("\"temperature\":1.5"), "temperature", "1.5 is not between 0 and 1");
    bad(WITH("\"temperature\":-0.1"), "temperature", "is not between");
    bad(WITH("\"temperature\":\"x\""), "temperature", "is a string");
    bad(WITH("\"top_p\":2"), "top_p", "2 is not between");
    bad(WITH("\"top_k\":1e9"), "top_k", "is not a whole number");
    bad(WITH("\"stop_sequences\":\"x\""), "stop_sequences", "is a string, not an array");
    bad(WITH("\"stop_sequences\":[\"x\",\"\"]"), "stop_sequences[1]", "must not be empty");
    bad(WITH("\"stop_sequences\":[3]"), "stop_sequences[0]", "is a number, not a string");
    char many[512] = WITH("\"stop_sequences\":[\"a\"");
    many[strlen(many) - 1] = 0;
    for (int i = 0; i < 40; i++)
        strcat(many, ",\"a\"");
    strcat(many, "]}");
    bad(many, "stop_sequences", "41 stop texts, at most 32");
    bad(WITH("\"stream\":1"), "stream", "is a number");
    bad(WITH("\"mcp_servers\":[{}]"), "mcp_servers", "is not supported");
    bad(WITH("\"container\":\"c\""), "container", "is not supported");
    bad(WITH("\"context_management\":[]"), "context_management", "is an array");
    bad(WITH("\"context_management\":{\"edits\":{}}"), "context_management.edits", "is an object");
    bad(WITH("\"context_management\":{\"edits\":[{\"type\":\"clear_tool_uses_20250919\"}]}"),
        "context_management.edits[0].type", "is not supported");
}

static void test_thinking(void **state) {
    (void)state;
    chat_is(WITH("\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024}"),
            "<s>[user]hiTrue[a]");
    chat_is(WITH("\"thinking\":{\"type\":\"adaptive\"}"), "<s>[user]hiTrue[a]");
    chat_is(WITH("\"thinking\":{\"type\":\"disabled\"},\"chat_template_kwargs\":{\"extra\":\"e\"}"),
            "<s>[user]hiFalsee[a]");
    chat_is(WITH("\"thinking\":null"), "<s>[user]hi[a]"); /* the template's default */
    chat_is(WITH("\"output_config\":{\"effort\":\"max\"}"), "<s>[user]hihigh[a]");
    chat_is(WITH("\"output_config\":{\"effort\":\"low\"}"), "<s>[user]hilow[a]");
    bad(WITH("\"thinking\":true"), "thinking", "is a boolean, not an object");
    bad(WITH("\"thinking\":{}"), "thinking.type", "missing");
    bad(WITH("\"thinking\":{\"type\":\"on\"}"), "thinking.type", "\"on\" is not enabled");
    bad(WITH("\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":\"x\"}"),
        "thinking.budget_tokens", "is a string");
    bad(WITH("\"chat_template_kwargs\":1"), "chat_template_kwargs", "is a number");
    bad(WITH("\"chat_template_kwargs\":{\"messages\":[]}"), "chat_template_kwargs.messages",
        "belongs in the body");
    bad(WITH("\"output_config\":1"), "output_config", "is a number");
    bad(WITH("\"output_config\":{\"effort\":1}"), "output_config.effort", "is a number");
    bad(WITH("\"output_config\":{\"effort\":\"no\"}"), "output_config.effort", "is not low");
}

static void test_errors_of_templates(void **state) {
    (void)state;
    static const char UPPER[] = "{% for m in messages %}{{ m.content | upper }}{% endfor %}";
    static const char RAISES[] = "{{ raise_exception('must alternate') }}";
    set_template(UPPER, strlen(UPPER));
    /* the index counts Anthropic's messages, not those of the OpenAI chat */
    bad("{\"max_tokens\":9,\"system\":\"s\",\"messages\":[" USER
        ",{\"role\":\"assistant\",\"content\":\"a\"}]}",
        "messages[1].content", "does not write the last message's text exactly once");
    bad("{\"max_tokens\":9,\"messages\":[" USER "," USER
        ",{\"role\":\"assistant\",\"content\":\"a\"}]}",
        "messages[2].content", "does not write the last message's text exactly once");
    set_template(RAISES, strlen(RAISES));
    bad(BODY(USER), "messages", "must alternate");
    set_template(TEMPLATE, strlen(TEMPLATE));
}

static void test_count(void **state) {
    (void)state;
    struct api_body body = body_of("{\"messages\":[" USER "],\"system\":\"s\"}", anthropic_wants);
    struct text_buf counted = {0};
    assert_true(anthropic_count(&setup, &body, &counted, &err));
    assert_string_equal(counted.data, "{\"input_tokens\":21}"); /* <s>[system]s... */
    text_free(&counted);
    api_body_free(&body);
    body = body_of("{\"messages\":[]}", anthropic_wants);
    assert_false(anthropic_count(&setup, &body, &counted, &err));
    check_refused("", "messages", "is empty");
    api_body_free(&body);
}

/* A chat like Claude Code's, with real templates: the same tokens as from OpenAI's form of it. */
static void test_real_templates(void **state) {
    (void)state;
    static const char THEIRS[] =
        BODY(USER "," SAY("assistant", TEXT("I look") "," USE("1", "7")) "," SAY(
            "user", RESULT("1", ",\"content\":\"r\"")) ",{\"role\":\"assistant\","
                                                       "\"content\":\"It\"}");
    static const char OPENAI[] =
        "{\"continue_final_message\":true,\"messages\":[" USER ",{\"role\":\"assistant\","
        "\"content\":\"I look\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":"
        "{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":7}\"}}]},{\"role\":\"tool\",\"tool_call_id\":"
        "\"1\",\"content\":\"r\"},{\"role\":\"assistant\",\"content\":\"It\"}]}";
    static const char *const NAMES[] = {"Qwen-Qwen3-0.6B", "Qwen3.5-4B", "openai-gpt-oss-120b",
                                        "meta-llama-Llama-3.1-8B-Instruct",
                                        "google-gemma-4-31B-it"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        struct api_request same;
        if (!set_real_template(NAMES[i]))
            skip();
        good(THEIRS);
        struct api_body body = body_of(OPENAI, openai_wants_chat);
        if (!openai_read(&setup, API_CHAT, &body, &same, &err))
            fail_msg("%s: %s", NAMES[i], err.text);
        assert_int_equal(r.engine.n_tokens, same.engine.n_tokens);
        assert_memory_equal(r.engine.tokens, same.engine.tokens,
                            same.engine.n_tokens * sizeof(int32_t));
        assert_true(r.engine.n_tokens > 40);
        api_request_free(&same);
        api_body_free(&body);
    }
    set_template(TEMPLATE, strlen(TEMPLATE));
}

/* ---- answers --------------------------------------------------------------------------------- */

static void test_errors(void **state) {
    (void)state;
    static const struct {
        int status;
        const char *type;
    } types[] = {{400, "invalid_request_error"}, {401, "authentication_error"},
                 {403, "permission_error"},      {404, "not_found_error"},
                 {405, "invalid_request_error"}, {413, "request_too_large"},
                 {429, "rate_limit_error"},      {500, "api_error"},
                 {503, "overloaded_error"}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char wanted[128];
        snprintf(wanted, sizeof wanted,
                 "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":\"a \\\"b\\\"\"}}",
                 types[i].type);
        same_json(anthropic_error_body(types[i].status, "a \"b\""), wanted);
    }
}

#define OPENAI_ANSWER(message, finish)                                                             \
    "{\"id\":\"chatcmpl-1\",\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":{" message       \
    "},\"finish_reason\":\"" finish "\"}],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":"  \
    "3,\"prompt_tokens_details\":{\"cached_tokens\":8},\"requantized_pages\":2}}"
#define USAGE(output)                                                                              \
    "\"usage\":{\"input_tokens\":4,\"cache_creation_input_tokens\":0,"                             \
    "\"cache_read_input_tokens\":8,\"output_tokens\":" output "}"

static void answer_is(const char *openai, const char *stop, const char *content,
                      const char *stopped) {
    char wanted[1024];
    snprintf(wanted, sizeof wanted,
             "{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\","
             "\"content\":[%s],%s," USAGE("3,\"requantized_pages\":2") "}",
             content, stopped);
    json_t *answer = json_of(openai);
    same_json(anthropic_answer_body(answer, "msg_1", stop), wanted);
    json_decref(answer);
}

#define STOPPED(reason, sequence) "\"stop_reason\":\"" reason "\",\"stop_sequence\":" sequence

static void test_answers(void **state) {
    (void)state;
    answer_is(OPENAI_ANSWER("\"content\":\"hi\"", "stop"), NULL, TEXT("hi"),
              STOPPED("end_turn", "null"));
    answer_is(OPENAI_ANSWER("\"content\":\"hi\"", "length"), NULL, TEXT("hi"),
              STOPPED("max_tokens", "null"));
    answer_is(OPENAI_ANSWER("\"content\":\"hi\"", "stop"), "END", TEXT("hi"),
              STOPPED("stop_sequence", "\"END\""));
    answer_is(OPENAI_ANSWER("\"content\":\"\"", "stop"), NULL, TEXT(""),
              STOPPED("end_turn", "null"));
    answer_is(OPENAI_ANSWER("\"content\":null", "stop"), NULL, TEXT(""),
              STOPPED("end_turn", "null"));
    answer_is(OPENAI_ANSWER("\"content\":null,\"reasoning_content\":\"hm\"", "length"), NULL,
              "{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"\"}",
              STOPPED("max_tokens", "null"));
    answer_is(OPENAI_ANSWER("\"content\":\"hi\",\"reasoning_content\":\"hm\",\"tool_calls\":["
                            "{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
                            "\"arguments\":\"{\\\"x\\\":[1,\\\"\\\\u0000\\\"]}\"}},"
                            "{\"id\":\"c2\",\"type\":\"function\",\"function\":{\"name\":\"g\","
                            "\"arguments\":\"[]\"}}]",
                            "tool_calls"),
              NULL,
              "{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"\"}," TEXT(
                  "hi") ",{\"type\":\"tool_use\",\"id\":\"c1\",\"name\":\"f\",\"input\":{\"x\":"
                        "[1,\"\\u0000\"]}},{\"type\":\"tool_use\",\"id\":\"c2\",\"name\":\"g\","
                        "\"input\":{}}",
              STOPPED("tool_use", "null"));
}

/* ---- events ---------------------------------------------------------------------------------- */

/* Reads the stream's events, each "event: NAME\ndata: {JSON}\n\n": an array of the data. Each type
 * must be the event's name. Empties the stream's output. */
static json_t *events_of(struct anthropic_stream *s) {
    json_t *events = json_array();
    assert_true(text_append(s->out, "", 1));
    for (char *at = s->out->data, *end; *at; at = end + 2) {
        char name[64];
        int n = 0;
        end = strstr(at, "\n\n");
        assert_non_null(end);
        *end = 0;
        assert_int_equal(sscanf(at, "event: %63[a-z_]\ndata: %n", name, &n), 1);
        assert_true(n > 0);
        assert_null(strchr(at + n, '\n'));
        json_t *data = json_of(at + n);
        assert_string_equal(name, json_string_value(json_object_get(data, "type")));
        json_array_append_new(events, data);
    }
    s->out->len = 0;
    return events;
}

static bool part(struct anthropic_stream *s, enum answer_part_kind kind, const char *id,
                 const char *text, size_t len) {
    return anthropic_stream_part(
        s, &(struct answer_part){.kind = kind, .id = id, .text = text, .len = len});
}

/* The stream's events are exactly these, in order. */
static void events_are(struct anthropic_stream *s, const char *const *wanted) {
    json_t *events = events_of(s);
    size_t n = 0;
    for (; wanted[n]; n++)
        same_json(json_incref(json_array_get(events, n)), wanted[n]);
    assert_int_equal(json_array_size(events), n);
    json_decref(events);
}

#define EVENTS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define PING        "{\"type\":\"ping\"}"
#define DELTA(index, delta)                                                                        \
    "{\"type\":\"content_block_delta\",\"index\":" index ",\"delta\":{\"type\":" delta "}}"
#define STOP(index) "{\"type\":\"content_block_stop\",\"index\":" index "}"
#define START(index, block)                                                                        \
    "{\"type\":\"content_block_start\",\"index\":" index ",\"content_block\":{\"type\":" block "}" \
    "}"
#define START_TEXT(index) START(index, "\"text\",\"text\":\"\"")
#define SAID(reason, sequence)                                                                     \
    "{\"type\":\"message_delta\",\"delta\":{" STOPPED(reason, sequence) "}," USAGE(                \
        "3,\"requantized_pages\":2") "}"
#define OVER "{\"type\":\"message_stop\"}"

static const struct anthropic_usage BEGINS = {12, 8, 0, 0}, ENDS = {12, 8, 3, 2};

static void test_stream(void **state) {
    (void)state;
    struct text_buf out = {0};
    struct anthropic_stream s = {.out = &out};
    assert_true(anthropic_stream_start(&s, "msg_1", "m", &BEGINS));
    events_are(&s, EVENTS("{\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"type\":"
                          "\"message\",\"role\":\"assistant\",\"model\":\"m\",\"content\":[],"
                          "\"stop_reason\":null,\"stop_sequence\":null," USAGE("0") "}}",
                          PING));
    assert_true(part(&s, ANSWER_REASONING, NULL, "h", 1));
    assert_true(part(&s, ANSWER_REASONING, NULL, "m\n", 2));
    assert_true(part(&s, ANSWER_CONTENT, NULL, "", 0)); /* no event; ends nothing */
    assert_true(part(&s, ANSWER_REASONING, NULL, "\"", 1));
    assert_true(part(&s, ANSWER_CONTENT, NULL, "I\0\xc3\xbc", 4));
    events_are(&s,
               EVENTS(START("0", "\"thinking\",\"thinking\":\"\",\"signature\":\"\""),
                      DELTA("0", "\"thinking_delta\",\"thinking\":\"h\""),
                      DELTA("0", "\"thinking_delta\",\"thinking\":\"m\\n\""),
                      DELTA("0", "\"thinking_delta\",\"thinking\":\"\\\"\""),
                      DELTA("0", "\"signature_delta\",\"signature\":\"\""), STOP("0"),
                      START_TEXT("1"), DELTA("1", "\"text_delta\",\"text\":\"I\\u0000\\u00fc\"")));
    assert_true(part(&s, ANSWER_CALL, "c1", "f", 1));
    assert_true(part(&s, ANSWER_ARGUMENTS, NULL, "{\"x\":", 5));
    assert_true(part(&s, ANSWER_ARGUMENTS, NULL, "1}", 2));
    assert_true(part(&s, ANSWER_CALL, "c2", "g", 1));
    assert_true(part(&s, ANSWER_ARGUMENTS, NULL, "{}", 2));
    assert_true(part(&s, ANSWER_CONTENT, NULL, "z", 1));
    assert_true(anthropic_stream_finish(&s, KVASIR_FINISH_STOP, "END", &ENDS));
    events_are(&s, EVENTS(STOP("1"),
                          START("2", "\"tool_use\",\"id\":\"c1\",\"name\":\"f\",\"input\":{}"),
                          DELTA("2", "\"input_json_delta\",\"partial_json\":\"{\\\"x\\\":\""),
                          DELTA("2", "\"input_json_delta\",\"partial_json\":\"1}\""), STOP("2"),
                          START("3", "\"tool_use\",\"id\":\"c2\",\"name\":\"g\",\"input\":{}"),
                          DELTA("3", "\"input_json_delta\",\"partial_json\":\"{}\""), STOP("3"),
                          START_TEXT("4"), DELTA("4", "\"text_delta\",\"text\":\"z\""), STOP("4"),
                          SAID("tool_use", "null"), OVER));
    text_free(&out);
}

/* An answer without any text. */
static void finish_is(kvasir_finish finish, const char *stop, const char *said) {
    struct text_buf out = {0};
    struct anthropic_stream s = {.out = &out};
    assert_true(anthropic_stream_finish(&s, finish, stop, &ENDS));
    events_are(&s, EVENTS(START_TEXT("0"), STOP("0"), said, OVER));
    text_free(&out);
}

static void test_ends_of_streams(void **state) {
    (void)state;
    finish_is(KVASIR_FINISH_STOP, NULL, SAID("end_turn", "null"));
    finish_is(KVASIR_FINISH_STOP, "E\"", SAID("stop_sequence", "\"E\\\"\""));
    finish_is(KVASIR_FINISH_LENGTH, NULL, SAID("max_tokens", "null"));
    struct text_buf out = {0};
    struct anthropic_stream s = {.out = &out};
    assert_true(anthropic_stream_ping(&s));
    assert_true(anthropic_stream_error(&s, 503, "busy"));
    events_are(&s, EVENTS(PING, "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","
                                "\"message\":\"busy\"}}"));
    assert_false(part(&s, ANSWER_CONTENT, NULL, "\xff", 1)); /* not UTF-8; no engine sends it */
    text_free(&out);
}

/* ---- all of it ------------------------------------------------------------------------------- */

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
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_system),
        cmocka_unit_test(test_tools_in_messages),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_constraints),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_thinking),
        cmocka_unit_test(test_errors_of_templates),
        cmocka_unit_test(test_count),
        cmocka_unit_test(test_real_templates),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_ends_of_streams),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
