/* SPDX-License-Identifier: Apache-2.0 */
/* What a client asks an answer to be, as the text of a grammar: each field, reasoning before the
 * answer, calls in each family's form, what is refused; and how such answers are parsed. No model
 * and no grammar is needed: test_forced_calls.c walks through the grammars. */
#include "openai_checks.h"

static struct answer_syntax syntax;

static void use(enum answer_tools tools, const char *open, const char *close, bool think) {
    syntax = (struct answer_syntax){.tools = tools, .call_open = open, .call_close = close};
    if (think) {
        syntax.think_open = "<think>";
        syntax.think_close = "</think>";
    }
    setup.syntax = &syntax;
}

static void is_grammar(kvasir_grammar_kind kind, const char *wanted) {
    const struct text_buf *text = &r.constraint.grammar;
    assert_non_null(text->data);
    if (strcmp(text->data, wanted) != 0)
        fail_msg("\n%s\nis not\n%s", text->data, wanted);
    assert_int_equal(r.constraint.grammar_kind, kind);
    assert_int_equal(text->len, strlen(wanted));
}

/* The grammar has this line. */
static void has_rule(const char *rule) {
    char line[2048];
    snprintf(line, sizeof line, "\n%s\n", rule);
    const char *text = r.constraint.grammar.data;
    if (!text || (!strstr(text, line) && strncmp(text, line + 1, strlen(line) - 1) != 0))
        fail_msg("\n%s\nhas no rule\n%s", text ? text : "nothing", rule);
}

/* ---- texts ----------------------------------------------------------------------------------- */

static void test_plain(void **state) {
    (void)state;
    both("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"strict\":"
         "true,\"schema\":{\"type\":\"object\",\"properties\":{\"b\":{\"multipleOf\":0.1},\"a\":"
         "{}}}}}");
    is_grammar(KVASIR_GRAMMAR_JSON_SCHEMA,
               "{\"type\": \"object\", \"properties\": {\"b\": "
               "{\"multipleOf\": 0.1}, \"a\": {}}, "
               "\"additionalProperties\": false, \"x-canonical\": true}");
    assert_null(r.engine.grammar); /* the setup has no cache */
    both("\"response_format\":{\"type\":\"json_object\",\"schema\":{\"type\":\"object\"}}");
    is_grammar(KVASIR_GRAMMAR_JSON_SCHEMA, "{\"type\": \"object\", \"x-canonical\": true}");
    both("\"guided_json\":{\"properties\":{\"properties\":{\"const\":{\"properties\":{}}}}}");
    is_grammar(KVASIR_GRAMMAR_JSON_SCHEMA,
               "{\"properties\": {\"properties\": {\"const\": {\"properties\": {}}}}, "
               "\"additionalProperties\": false, \"x-canonical\": true}");
    both("\"guided_json\":{\"properties\":{\"a\":{}},\"allOf\":[{\"properties\":{\"b\":{}}}]}");
    is_grammar(KVASIR_GRAMMAR_JSON_SCHEMA, "{\"properties\": {\"a\": {}}, \"allOf\": [{"
                                           "\"properties\": {\"b\": {}}}], \"x-canonical\": true}");
    both("\"guided_json\":{\"x-canonical\":false}");
    is_grammar(KVASIR_GRAMMAR_JSON_SCHEMA, "{\"x-canonical\": false}");
    both("\"guided_json\":{\"a\":1}");
    is_grammar(KVASIR_GRAMMAR_JSON_SCHEMA, "{\"a\": 1, \"x-canonical\": true}");
    both("\"guided_json\":\"{\\\"a\\\":1}\"");
    is_grammar(KVASIR_GRAMMAR_JSON_SCHEMA, "{\"a\": 1, \"x-canonical\": true}");
    both("\"json_schema\":true");
    is_grammar(KVASIR_GRAMMAR_JSON_SCHEMA, "true");
    both("\"structured_outputs\":{\"json\":{\"a\":1},\"regex\":null,\"disable_fallback\":true,"
         "\"disable_any_whitespace\":false}");
    is_grammar(KVASIR_GRAMMAR_JSON_SCHEMA, "{\"a\": 1, \"x-canonical\": true}");
    both("\"guided_regex\":\"a+\\\"\"");
    is_grammar(KVASIR_GRAMMAR_REGEX, "a+\"");
    both("\"structured_outputs\":{\"regex\":\"[ab]\"}");
    is_grammar(KVASIR_GRAMMAR_REGEX, "[ab]");
    both("\"guided_choice\":[\"yes\",\"no \\\"\\\\\\n\\u0001\\u0000\",\"\u00fc\"]");
    is_grammar(KVASIR_GRAMMAR_GBNF,
               "root ::= body\nbody ::= \"yes\" | \"no \\\"\\\\\\n\\x01\\x00\" | \"\u00fc\"\n");
    both("\"structured_outputs\":{\"choice\":[\"a\"]}");
    is_grammar(KVASIR_GRAMMAR_GBNF, "root ::= body\nbody ::= \"a\"\n");
    both("\"grammar\":\"root ::= [a-z]+\"");
    is_grammar(KVASIR_GRAMMAR_GBNF, "root ::= [a-z]+");
    both("\"guided_grammar\":\"root ::= [a-z]\"");
    is_grammar(KVASIR_GRAMMAR_GBNF, "root ::= [a-z]");
    both("\"structured_outputs\":{\"grammar\":\"root ::= [b]\"}");
    is_grammar(KVASIR_GRAMMAR_GBNF, "root ::= [b]");
    both("\"structured_outputs\":{\"json_object\":true}");
    is_grammar(KVASIR_GRAMMAR_JSON_SCHEMA, "{\"type\": \"object\", \"x-canonical\": true}");
    both("\"structured_outputs\":{},\"guided_json_object\":false,\"guided_json\":null");
    assert_null(r.constraint.grammar.data);
}

static void test_refused(void **state) {
    (void)state;
    static const char *const FIELDS[][3] = {
        {"\"response_format\":{\"type\":\"json_schema\"}", "response_format.json_schema",
         "missing"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\"}}",
         "response_format.json_schema.schema", "missing"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":\"{}\"}}",
         "response_format.json_schema.schema", "is a string, not a JSON schema"},
        {"\"guided_json\":[]", "guided_json", "is an array, not a JSON schema"},
        {"\"guided_json\":\"{\"", "guided_json", "invalid JSON at byte"},
        {"\"guided_regex\":1", "guided_regex", "is a number, not a string"},
        {"\"guided_regex\":\"\"", "guided_regex", "must not be empty"},
        {"\"guided_choice\":\"a\"", "guided_choice", "is a string, not an array of strings"},
        {"\"guided_choice\":[]", "guided_choice", "must not be empty"},
        {"\"guided_choice\":[\"a\",1]", "guided_choice[1]", "is a number, not a string"},
        {"\"structured_outputs\":[]", "structured_outputs", "is an array, not an object"},
        {"\"structured_outputs\":{\"structural_tag\":\"{}\"}", "structured_outputs.structural_tag",
         "is not supported"},
        {"\"structured_outputs\":{\"whitespace_pattern\":\" \"}",
         "structured_outputs.whitespace_pattern", "is not supported"},
        {"\"structured_outputs\":{\"json_object\":1}", "structured_outputs.json_object",
         "is a number, not true or false"},
        {"\"grammar\":\"\"", "grammar", "must not be empty"},
        /* two at once: both are named */
        {"\"guided_json\":{},\"guided_regex\":\"a\"", "guided_regex",
         "cannot be combined with \"guided_json\""},
        {"\"grammar\":\"a\",\"response_format\":{\"type\":\"json_object\"}", "grammar",
         "cannot be combined with \"response_format\""},
        {"\"structured_outputs\":{\"json\":{},\"choice\":[\"a\"]}", "structured_outputs.choice",
         "cannot be combined with \"structured_outputs.json\""},
        {"\"grammar\":\"a\",\"json_schema\":{}", "grammar",
         "cannot be combined with \"json_schema\""},
        {"\"grammar\":\"a\",\"ignore_eos\":true", "ignore_eos",
         "cannot be combined with \"grammar\""},
    };
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        bad_field(FIELDS[i][0], FIELDS[i][1], FIELDS[i][2]);
}

/* A model that reasons does so before a text that is asked for, and calls may come instead. */
static void test_reasoning_first(void **state) {
    (void)state;
    use(ANSWER_HERMES, "<tool_call>", "</tool_call>", true);
    good(API_CHAT, with(API_CHAT, "\"json_schema\":{\"a\":1}"));
    has_rule("root ::= (\"<think>\" think-0 \"</think>\" gap)? answer");
    has_rule("gap ::= (\"\\n\" \"\\n\"?)?");
    has_rule("answer ::= body");
    has_rule("body ::= %json {\"a\": 1, \"x-canonical\": true}");
    /* no </think>: a state for each of its beginnings */
    has_rule("think-0 ::= \"\" | [^\\x3C] think-0 | [\\x3C] think-1");
    has_rule("think-1 ::= \"\" | [^\\x2F\\x3C] think-0 | [\\x3C] think-1 | [\\x2F] think-2");
    has_rule("think-7 ::= \"\" | [^\\x3C\\x3E] think-0 | [\\x3C] think-1");
    assert_true(r.answer.body);
    assert_ptr_equal(r.answer.syntax.think_open, syntax.think_open);
    good(API_COMPLETIONS, with(API_COMPLETIONS, "\"json_schema\":{\"a\":1}"));
    is_grammar(KVASIR_GRAMMAR_JSON_SCHEMA, "{\"a\": 1, \"x-canonical\": true}");
    good(API_CHAT, with(API_CHAT, "\"guided_regex\":\"\\\"\\\\d\""));
    has_rule("body ::= %regex \"\\\"\\d\"");
    good(API_CHAT, with(API_CHAT, "\"grammar\":\"root ::= \\\"root\\\" a [root]{2,3} # root\\na "
                                  "::= %json {\\\"root\\\":[\\\"]\\\"]} root %regex \\\"a\\\" "
                                  "<[12]>\""));
    has_rule("body ::= user-root");
    has_rule("user-root ::= \"root\" user-a [root]{2,3} # root");
    has_rule("user-a ::= %json {\"root\":[\"]\"]} user-root %regex \"a\" <[12]>");
    /* the prompt opened it, or closed it */
    static const char OPENED[] = "{{ messages[0].content }}<think>\n";
    set_template(OPENED, sizeof OPENED - 1);
    good(API_CHAT, with(API_CHAT, "\"guided_choice\":[\"a\"]"));
    has_rule("root ::=  think-0 \"</think>\" gap answer");
    static const char CLOSED[] = "{{ messages[0].content }}<think>\n\n</think>\n\n";
    set_template(CLOSED, sizeof CLOSED - 1);
    good(API_CHAT, with(API_CHAT, "\"guided_choice\":[\"a\"]"));
    is_grammar(KVASIR_GRAMMAR_GBNF, "root ::= body\nbody ::= \"a\"\n");
    assert_false(r.answer.body);
    assert_int_equal(r.answer.syntax.tools, ANSWER_TOOLS_NONE); /* all is content */
    set_template(TEMPLATE, sizeof TEMPLATE - 1);
    use(ANSWER_HARMONY, NULL, NULL, false);
    good(API_CHAT, with(API_CHAT, "\"guided_choice\":[\"a\"]"));
    has_rule("answer ::= \"<|channel|>final<|message|>\" body");
    defaults();
}

/* ---- calls ----------------------------------------------------------------------------------- */

#define F(parameters, more)                                                                        \
    "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":" parameters more "}}"
#define AB                                                                                         \
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":"            \
    "\"integer\",\"minimum\":1}},\"required\":[\"a\"]}"
#define AB_TEXT                                                                                    \
    "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\"}, \"b\": {\"type\": "    \
    "\"integer\", \"minimum\": 1}}, \"required\": [\"a\"], \"additionalProperties\": "             \
    "false, \"x-canonical\": true}"
#define TOOLS    "\"tools\":[" F(AB, "") "," TOOL("g") "]"
#define REQUIRED TOOLS ",\"tool_choice\":\"required\""

static void forced(const char *fields) {
    good(API_CHAT, with(API_CHAT, fields));
    assert_true(r.answer.forced && r.answer.tools && !r.answer.body);
    assert_int_equal(r.constraint.grammar_kind, KVASIR_GRAMMAR_GBNF);
}

static void test_forced(void **state) {
    (void)state;
    use(ANSWER_HERMES, "<tool_call>", "</tool_call>", false);
    forced(REQUIRED);
    is_grammar(KVASIR_GRAMMAR_GBNF,
               "root ::= answer\n"
               "answer ::= calls\n"
               "calls ::= one (\"\\n\" one)*\n"
               "one ::= \"<tool_call>\" \"\\n\" call \"\\n\" \"</tool_call>\"\n"
               "call ::= call-0 | call-1\n"
               "call-0 ::= \"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": \" args-0 \"}\"\n"
               "args-0 ::= %json " AB_TEXT "\n"
               "call-1 ::= \"{\\\"name\\\": \\\"g\\\", \\\"arguments\\\": \" args-1 \"}\"\n"
               "args-1 ::= %json {\"additionalProperties\": false, \"type\": \"object\", "
               "\"x-canonical\": true}\n");
    forced(TOOLS ",\"parallel_tool_calls\":false,\"tool_choice\":{\"type\":\"function\","
                 "\"function\":{\"name\":\"g\"}}");
    has_rule("calls ::= one");
    has_rule("call ::= call-0");
    has_rule("args-0 ::= %json {\"additionalProperties\": false, \"type\": \"object\", "
             "\"x-canonical\": true}");
    assert_true(r.answer.single);
    forced("\"tools\":[" F(AB, ",\"strict\":false") "],\"tool_choice\":\"required\"");
    has_rule("args-0 ::= %json " AB_TEXT);
    forced("\"tools\":[" F("{\"$ref\":\"#/$defs/x\"}", ",\"strict\":false") "],\"tool_choice\":"
                                                                            "\"required\"");
    has_rule("args-0 ::= %json {\"type\":\"object\"}");
    forced("\"tools\":[" F("{\"$ref\":\"#/$defs/x\"}", ",\"strict\":true") "],\"tool_choice\":"
                                                                           "\"required\"");
    has_rule(
        "args-0 ::= %json {\"$ref\": \"#/$defs/x\", \"type\": \"object\", \"x-canonical\": true}");
    forced(TOOLS
           ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":"
           "\"required\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]}}");
    has_rule("call-0 ::= \"{\\\"name\\\": \\\"g\\\", \\\"arguments\\\": \" args-0 \"}\"");
    /* a forced call goes before a format, which is about texts */
    forced(REQUIRED ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":"
                    "{}}}");
    has_rule("answer ::= calls");
    forced(REQUIRED ",\"response_format\":{\"type\":\"json_object\"}");
    use(ANSWER_HERMES, "<s>", "</s>", true);
    forced(REQUIRED);
    has_rule("root ::= (\"<think>\" think-0 \"</think>\" gap)? answer");
    has_rule("one ::= <[256]> \"\\n\" call \"\\n\" <[257]>");
    defaults();
}

static void test_unforced(void **state) {
    (void)state;
    use(ANSWER_HERMES, "<tool_call>", "</tool_call>", false);
    good(API_CHAT, with(API_CHAT, TOOLS));
    assert_null(r.constraint.grammar.data);
    good(API_CHAT, with(API_CHAT, "\"tools\":[" F(AB, ",\"strict\":false") "]"));
    assert_null(r.constraint.grammar.data);
    good(API_CHAT,
         with(API_CHAT, "\"tools\":[" F(AB, ",\"strict\":true") "],\"tool_choice\":\"none\""));
    assert_null(r.constraint.grammar.data);
    good(API_CHAT, with(API_CHAT, "\"tools\":[" F(AB, ",\"strict\":true") "," TOOL("g") "]"));
    has_rule("answer ::= say-lead calls? | bare");
    has_rule("bare ::= call ((\"; \" | \"\\n\") call)*");
    has_rule("args-0 ::= %json " AB_TEXT);
    has_rule("args-1 ::= %json {\"type\":\"object\"}"); /* g is not strict */
    has_rule("say-lead ::= [ \\t\\r\\n] say-lead | \"\" | "
             "[^\\x09\\x0A\\x0B\\x0C\\x0D\\x20\\x3C\\x7B] say-0 | [\\x3C] say-1");
    assert_true(r.answer.tools && !r.answer.body && !r.answer.forced);
    good(API_CHAT,
         with(API_CHAT, TOOLS
              ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":"
              "\"auto\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]}}"));
    has_rule("call ::= call-0");
    has_rule("call-0 ::= \"{\\\"name\\\": \\\"g\\\", \\\"arguments\\\": \" args-0 \"}\"");
    /* a text that is asked for, or calls */
    good(API_CHAT, with(API_CHAT, TOOLS ",\"json_schema\":{\"a\":1}"));
    has_rule("answer ::= body | calls");
    has_rule("args-0 ::= %json {\"type\":\"object\"}");
    assert_true(r.answer.body);
    good(API_CHAT, with(API_CHAT, TOOLS ",\"json_schema\":{\"a\":1},\"tool_choice\":\"none\""));
    is_grammar(KVASIR_GRAMMAR_JSON_SCHEMA, "{\"a\": 1, \"x-canonical\": true}");
    /* calls that nobody would read are not written */
    syntax = (struct answer_syntax){0};
    good(API_CHAT, with(API_CHAT, "\"tools\":[" F(AB, ",\"strict\":true") "]"));
    assert_null(r.constraint.grammar.data);
    defaults();
}

static void test_refused_calls(void **state) {
    (void)state;
    const enum api_kind api = API_CHAT;
    static const char *const FIELDS[][3] = {
        {"\"tool_choice\":\"required\"", "tool_choice", "there are no \"tools\""},
        {TOOLS ",\"tool_choice\":\"some\"", "tool_choice",
         "\"some\" is not \"none\", \"auto\" or \"required\""},
        {TOOLS ",\"tool_choice\":1", "tool_choice", "is a number, not a string or an object"},
        {TOOLS ",\"tool_choice\":{}", "tool_choice.type", "missing"},
        {TOOLS ",\"tool_choice\":{\"type\":\"custom\"}", "tool_choice.type",
         "\"custom\" is not supported, only \"function\" is"},
        {TOOLS ",\"tool_choice\":{\"type\":\"function\"}", "tool_choice.function", "missing"},
        {TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"h\"}}",
         "tool_choice.function.name", "\"h\" is none of the tools"},
        {TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\"}", "tool_choice.allowed_tools",
         "missing"},
        {TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"x\"}}",
         "tool_choice.allowed_tools.mode", "\"x\" is not \"auto\" or \"required\""},
        {TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\"}"
               "}",
         "tool_choice.allowed_tools.tools", "missing"},
        {REQUIRED ",\"guided_json\":{}", "tool_choice", "cannot be combined with \"guided_json\""},
        {REQUIRED ",\"ignore_eos\":true", "ignore_eos", "cannot be combined with \"tool_choice\""},
        {"\"tools\":[" F("{\"type\":\"array\"}", "") "],\"tool_choice\":\"required\"",
         "tools[0].function.parameters.type", "must be \"object\""},
    };
    use(ANSWER_HERMES, "<tool_call>", "</tool_call>", false);
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        bad(api, with(api, FIELDS[i][0]), FIELDS[i][1], FIELDS[i][2]);
    syntax = (struct answer_syntax){0};
    bad(api, with(api, REQUIRED), "tool_choice", "the model's chat template has no tool calls");
    setup.syntax = NULL;
    bad(api, with(api, REQUIRED), "tool_choice", "the model's chat template has no tool calls");
    defaults();
}

/* ---- families -------------------------------------------------------------------------------- */

static void test_families(void **state) {
    (void)state;
    use(ANSWER_LLAMA3, "<|python_tag|>", NULL, false);
    forced(REQUIRED);
    has_rule("calls ::= call (\"; \" call)*");
    has_rule("call-0 ::= \"{\\\"name\\\": \\\"f\\\", \\\"parameters\\\": \" args-0 \"}\"");
    good(API_CHAT, with(API_CHAT, TOOLS ",\"json_schema\":{}"));
    has_rule("calls ::= \"<|python_tag|>\" call (\"; \" call)*"); /* or it might be the text */

    use(ANSWER_MISTRAL, "[TOOL_CALLS]", NULL, false);
    forced(REQUIRED);
    has_rule("calls ::= \"[TOOL_CALLS]\" \" \"? \"[\" call (\", \" call)* \"]\"");
    has_rule("call-0 ::= \"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": \" args-0 \"}\"");
    static const char ARGS[] = "{{ messages[0].content }}{# [ARGS] #}";
    set_template(ARGS, sizeof ARGS - 1);
    forced(REQUIRED);
    has_rule("calls ::= one+");
    has_rule("one ::= \"[TOOL_CALLS]\" call");
    has_rule("call-0 ::= \"f\" \"[ARGS]\" args-0");
    set_template(TEMPLATE, sizeof TEMPLATE - 1);

    use(ANSWER_QWEN_CODER, "<tool_call>", "</tool_call>", false);
    forced(REQUIRED);
    has_rule("call-0 ::= \"<function=f>\\n\" first-0-0 \"</function>\"");
    has_rule("args-0-0 ::= \"<parameter=a\" \">\\n\"  text-0  \"\\n</parameter>\\n\"");
    has_rule("args-0-1 ::= \"<parameter=b\" \">\\n\" %json {\"type\": \"integer\", \"minimum\": 1, "
             "\"x-canonical\": true} "
             "\"\\n</parameter>\\n\"");
    has_rule("first-0-0 ::= args-0-0 more-0-1");
    has_rule("more-0-1 ::= args-0-1 more-0-2 | more-0-2");
    has_rule("more-0-2 ::= \"\"");
    has_rule("call-1 ::= \"<function=g>\\n\" first-1-0 \"</function>\"");
    /* what cannot be written as parameters is JSON in the same markers */
    forced("\"tools\":[" F("{\"properties\":{\"a\":{\"type\":\"array\"}}}",
                           "") "],"
                               "\"tool_choice\":\"required\"");
    has_rule("call-0 ::= \"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": \" args-0 \"}\"");

    use(ANSWER_GEMMA4, "<|tool_call>", "<tool_call|>", false);
    forced(REQUIRED);
    has_rule("one ::= \"<|tool_call>\" \"call:\" call  \"<tool_call|>\"");
    has_rule("call-0 ::= \"f\" \"{\" first-0-0 \"}\"");
    has_rule("args-0-0 ::= \"a\" \":\" \"<|\\\"|>\" text-0 \"<|\\\"|>\" ");
    has_rule("more-0-1 ::= \",\" args-0-1 more-0-2 | more-0-2");
    forced("\"tools\":[" F("{\"properties\":{\"a\":{\"pattern\":\"x\"}}}",
                           "") "],"
                               "\"tool_choice\":\"required\"");
    has_rule("call-0 ::= \"f\" args-0");

    use(ANSWER_PYTHONIC, "<|tool_call_start|>", "<|tool_call_end|>", false);
    forced(REQUIRED);
    has_rule("call-0 ::= \"[f(\" first-0-0 \")]\"");
    has_rule("args-0-0 ::= \"a\" \"=\" %json {\"type\": \"string\", \"x-canonical\": true} ");
    use(ANSWER_TOOL_CODE, "```tool_code", "```", false);
    forced(REQUIRED);
    has_rule("one ::= \"```tool_code\" \"\\n\" call \"\\n\" \"```\"");
    has_rule("call-0 ::= \"f(\" first-0-0 \")\"");

    use(ANSWER_HARMONY, NULL, NULL, false);
    forced(REQUIRED);
    has_rule("calls ::= call");
    has_rule("call-0 ::= (\"<|channel|>\" \"commentary to=functions.f \" | \" to=functions.f\" "
             "\"<|channel|>commentary \") json args-0");
    defaults();
}

/* ---- answers --------------------------------------------------------------------------------- */

/* The answer to the last request, as its parser takes it apart. */
static void parsed(const char *text, kvasir_finish finish, const char *wanted) {
    struct api_answer a;
    assert_true(api_answer_init(&a, &r));
    api_answer_event(&a, &(kvasir_event){.kind = KVASIR_EVENT_DONE,
                                         .text = text,
                                         .len = strlen(text),
                                         .finish = finish,
                                         .last = true});
    json_t *body = openai_answer_body(&a, &setup, "chatcmpl-1", 0, &err);
    json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
    json_t *message = json_object_get(choice, "message"), *call;
    size_t i;
    json_array_foreach(json_object_get(message, "tool_calls"), i, call) json_object_del(call, "id");
    json_object_set(message, "finish_reason", json_object_get(choice, "finish_reason"));
    json_object_del(message, "role");
    json_object_del(message, "refusal");
    same_json(json_incref(message), wanted);
    json_decref(body);
    api_answer_free(&a);
}

/* A text that is asked for is content to its end, whatever markers it holds. */
static void test_body_is_content(void **state) {
    (void)state;
    use(ANSWER_HERMES, "<tool_call>", "</tool_call>", true);
    good(API_CHAT, with(API_CHAT, TOOLS ",\"json_schema\":{\"a\":1}"));
    parsed("<think>Well.</think>\n\n{\"a\": \"<think><tool_call>{}</tool_call>\"}",
           KVASIR_FINISH_STOP,
           "{\"content\":\"{\\\"a\\\": \\\"<think><tool_call>{}</tool_call>\\\"}\","
           "\"reasoning_content\":\"Well.\",\"finish_reason\":\"stop\"}");
    parsed("{\"name\": \"f\", \"arguments\": {}}", KVASIR_FINISH_STOP,
           "{\"content\":\"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {}}\","
           "\"finish_reason\":\"stop\"}");
    parsed("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
           KVASIR_FINISH_STOP,
           "{\"content\":null,\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
           "\"arguments\":\"{\\\"a\\\": 1}\"}}],\"finish_reason\":\"tool_calls\"}");
    use(ANSWER_HARMONY, NULL, NULL, false);
    static const char HEADER[] = "{{ messages[0].content }}<|start|>assistant";
    set_template(HEADER, sizeof HEADER - 1);
    good(API_CHAT, with(API_CHAT, "\"json_schema\":{\"a\":1}"));
    parsed("<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>"
           "{\"a\": \"<|end|>\"}",
           KVASIR_FINISH_STOP,
           "{\"content\":\"{\\\"a\\\": \\\"<|end|>\\\"}\",\"reasoning_content\":\"So.\","
           "\"finish_reason\":\"stop\"}");
    set_template(TEMPLATE, sizeof TEMPLATE - 1);
    defaults();
}

/* A call that is cut off is none, and its beginning is no content. */
static void test_cut_call(void **state) {
    (void)state;
    static const char CALL[] = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x";
    use(ANSWER_HERMES, "<tool_call>", "</tool_call>", false);
    forced(REQUIRED);
    parsed(CALL, KVASIR_FINISH_LENGTH, "{\"content\":\"\",\"finish_reason\":\"length\"}");
    good(API_CHAT, with(API_CHAT, TOOLS));
    parsed(CALL, KVASIR_FINISH_LENGTH, "{\"content\":\"\",\"finish_reason\":\"length\"}");
    parsed("<tool_call>{", KVASIR_FINISH_STOP, /* as the model wrote it */
           "{\"content\":\"<tool_call>{\",\"finish_reason\":\"stop\"}");
    parsed("{\"name\": \"Ann\", \"a", KVASIR_FINISH_LENGTH, /* perhaps no call */
           "{\"content\":\"{\\\"name\\\": \\\"Ann\\\", \\\"a\",\"finish_reason\":\"length\"}");
    use(ANSWER_LLAMA3, "<|python_tag|>", NULL, false);
    forced(REQUIRED);
    parsed("{\"name\": \"g\", \"parameters\": {}}; {\"name\": \"f\", \"par", KVASIR_FINISH_LENGTH,
           "{\"content\":null,\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"g\","
           "\"arguments\":\"{}\"}}],\"finish_reason\":\"length\"}");
    parsed("{\"name\": \"f\", \"par", KVASIR_FINISH_LENGTH,
           "{\"content\":\"\",\"finish_reason\":\"length\"}");
    defaults();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),           cmocka_unit_test(test_refused),
        cmocka_unit_test(test_reasoning_first), cmocka_unit_test(test_forced),
        cmocka_unit_test(test_unforced),        cmocka_unit_test(test_refused_calls),
        cmocka_unit_test(test_families),        cmocka_unit_test(test_body_is_content),
        cmocka_unit_test(test_cut_call),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
