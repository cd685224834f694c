/* SPDX-License-Identifier: Apache-2.0 */
/* Walks through the grammars of requests and reads what came out as the server would: every answer
 * of a forced call is calls of the tools with arguments of their schemas, and nothing else; a text
 * that is asked for comes out as it was written, whatever markers it contains; where calls are only
 * checked, those that were begun are good. In the form of each family. */
#include "grammar/grammar.h"
#include "openai_checks.h"

static uint32_t random_state;

static uint32_t draw(uint32_t n) {
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) % n;
}

/* ---- requests -------------------------------------------------------------------------------- */

static struct answer_syntax syntax;

static const struct family {
    struct answer_syntax syntax;
    const char *template; /* NULL: the usual one */
} FAMILIES[] = {
    {{ANSWER_HERMES, "<tool_call>", "</tool_call>", NULL, NULL}, NULL},
    {{ANSWER_HERMES, "<s>", "</tool_call>", "<think>", "</think>"}, NULL}, /* a control token */
    {{ANSWER_HERMES, "<tool_call>", "</tool_call>", "<think>", "</think>"},
     "{{ messages[0].content }}<think>"},
    {{ANSWER_QWEN_CODER, "<tool_call>", "</tool_call>", "<think>", "</think>"}, NULL},
    {{ANSWER_LLAMA3, "<|python_tag|>", NULL, NULL, NULL}, NULL},
    {{ANSWER_MISTRAL, "[TOOL_CALLS]", NULL, "[THINK]", "[/THINK]"}, NULL},
    {{ANSWER_MISTRAL, "[TOOL_CALLS]", NULL, NULL, NULL}, "{{ messages[0].content }}{# [ARGS] #}"},
    {{ANSWER_GEMMA4, "<|tool_call>", "<tool_call|>", "<|channel>thought", "<channel|>"}, NULL},
    {{ANSWER_FUNCTION_GEMMA, "<start_function_call>", "<end_function_call>", NULL, NULL}, NULL},
    {{ANSWER_TOOL_CODE, "```tool_code", "```", NULL, NULL}, NULL},
    {{ANSWER_PYTHONIC, "<|tool_call_start|>", "<|tool_call_end|>", "<think>", "</think>"}, NULL},
    {{ANSWER_HARMONY, NULL, NULL, NULL, NULL}, "{{ messages[0].content }}<|start|>assistant"},
};
enum { N_FAMILIES = sizeof FAMILIES / sizeof *FAMILIES };

static void use_family(const struct family *f) {
    syntax = f->syntax;
    setup.syntax = &syntax;
    if (f->template)
        set_template(f->template, strlen(f->template));
    else
        set_template(TEMPLATE, sizeof TEMPLATE - 1);
}

#define PLAIN                                                                                      \
    "{\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\"},\"n\":{\"type\":"         \
    "\"integer\",\"minimum\":-3,\"maximum\":40},\"on\":{\"type\":\"boolean\"},\"unit\":{\"type\":" \
    "\"string\",\"enum\":[\"C\",\"F\"]}},\"required\":[\"text\",\"on\"],"                          \
    "\"additionalProperties\":false}"
#define NESTED                                                                                     \
    "{\"type\":\"object\",\"properties\":{\"list\":{\"type\":\"array\",\"items\":{\"type\":"       \
    "\"string\",\"maxLength\":20},\"maxItems\":3},\"one\":{\"anyOf\":[{\"type\":\"null\"},"        \
    "{\"type\":\"object\",\"properties\":{\"code\":{\"type\":\"string\",\"pattern\":\"^[A-Z<]{2}$" \
    "\"}},\"required\":[\"code\"],\"additionalProperties\":false}]}},\"required\":[\"list\"],"     \
    "\"additionalProperties\":false}"
#define SIMPLE_LISTS                                                                               \
    "{\"type\":\"object\",\"properties\":{\"tags\":{\"type\":\"array\",\"items\":{\"type\":"       \
    "\"string\",\"maxLength\":9},\"maxItems\":2},\"x\":{\"type\":\"number\",\"minimum\":0,"        \
    "\"maximum\":1}},\"additionalProperties\":false}"
#define EMPTY "{\"type\":\"object\",\"properties\":{}}"
#define NAMED(name, schema, strict)                                                                \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name                                        \
    "\",\"description\":\"d\",\"parameters\":" schema ",\"strict\":" strict "}}"
#define ALL_TOOLS                                                                                  \
    "\"tools\":[" NAMED("plain", PLAIN, "true") "," NAMED("nested.one", NESTED, "true") "," NAMED( \
        "lists-2", SIMPLE_LISTS, "true") "," NAMED("none", EMPTY, "null") "]"

static const struct {
    const char *name, *schema;
} SCHEMAS[] = {{"plain", PLAIN},
               {"nested.one", NESTED},
               {"lists-2", SIMPLE_LISTS},
               {"none", "{\"type\":\"object\"}"}};

static bool is_of(const char *schema, const char *text, size_t len) {
    struct grammar *g;
    struct grammar_place *p;
    size_t taken;
    kvasir_error why;
    if (grammar_compile(GRAMMAR_JSON_SCHEMA, (struct text_span){schema, strlen(schema)}, NULL, &g,
                        &why))
        fail_msg("%s: %s", schema, why.text);
    assert_int_equal(grammar_begin(g, &p, &why), 0);
    assert_int_equal(grammar_push(p, (struct text_span){text, len}, &taken, &why), 0);
    const bool good = taken == len && grammar_place_end(p) != GRAMMAR_OPEN;
    grammar_place_destroy(p);
    grammar_release(g);
    return good;
}

/* ---- walks ----------------------------------------------------------------------------------- */

/* What a text may go on with, besides single bytes: markers whole and in part, JSON's signs. */
static const char *const BITS[] = {"<think>",
                                   "</think>",
                                   "[THINK]",
                                   "[/THINK]",
                                   "<tool_call>",
                                   "</tool_call>",
                                   "<function=",
                                   "</function>",
                                   "<parameter=",
                                   "</parameter>",
                                   "[TOOL_CALLS]",
                                   "[ARGS]",
                                   "<|python_tag|>",
                                   "<|tool_call>",
                                   "<tool_call|>",
                                   "<|\"|>",
                                   "<|channel>thought",
                                   "<channel|>",
                                   "<start_function_call>",
                                   "<end_function_call>",
                                   "<escape>",
                                   "<|tool_call_start|>",
                                   "<|tool_call_end|>",
                                   "```tool_code",
                                   "```",
                                   "<|channel|>",
                                   "<|message|>",
                                   "<|start|>assistant",
                                   "<|end|>",
                                   "<|call|>",
                                   "analysis",
                                   "{\"name\": \"plain\", \"arguments\": ",
                                   "\"list\": [\"",
                                   "\\ud83d\\ude00",
                                   "\\\"",
                                   "\xc3\xbc",
                                   "'",
                                   "\n",
                                   "\"",
                                   "\"",
                                   "}",
                                   "]",
                                   ")",
                                   ",",
                                   ":"};
enum { N_BITS = sizeof BITS / sizeof *BITS, STEPS_MAX = 60000, SHORT = 300 };

static bool try_bytes(struct grammar_place **p, struct text_buf *out, const char *bytes,
                      size_t len) {
    struct grammar_place *next;
    size_t taken;
    kvasir_error why;
    assert_int_equal(grammar_place_copy(*p, &next, &why), 0);
    assert_int_equal(grammar_push(next, (struct text_span){bytes, len}, &taken, &why), 0);
    if (taken < len) {
        grammar_place_destroy(next);
        return false;
    }
    grammar_place_destroy(*p);
    *p = next;
    return text_append(out, bytes, len);
}

static void step(struct grammar_place **p, struct text_buf *out) {
    static const char CONTROL[] = "\xff\x00\x01\x00"; /* <s> */
    if (draw(8) == 0) {
        (void)try_bytes(p, out, CONTROL, 4);
    } else if (draw(out->len > SHORT ? 8 : 2)) {
        const char *bit = BITS[draw(N_BITS)];
        (void)try_bytes(p, out, bit, strlen(bit));
    } else {
        const char byte = (char)(draw(4) ? 0x20 + draw(0x5f) : draw(0x80));
        (void)try_bytes(p, out, &byte, 1);
    }
}

/* A text of the last request's grammar, with control tokens by name. False: it became too long. */
static bool walk(struct grammar *g, struct text_buf *out) {
    struct grammar_place *p;
    struct text_buf raw = {0}, forced = {0};
    kvasir_error why;
    bool ended = false;
    assert_int_equal(grammar_begin(g, &p, &why), 0);
    for (int i = 0; i < STEPS_MAX && !ended; i++) {
        forced.len = 0;
        assert_int_equal(grammar_forced(p, 64, &forced, &why), 0);
        if (forced.len)
            assert_true(try_bytes(&p, &raw, forced.data, forced.len));
        const enum grammar_end end = grammar_place_end(p);
        ended = end == GRAMMAR_ENDED || (end == GRAMMAR_MAY_END && draw(6) == 0);
        if (!ended)
            step(&p, &raw);
    }
    out->len = 0;
    for (size_t i = 0; i < raw.len; i++)
        if ((unsigned char)raw.data[i] == 0xff) {
            assert_true(text_puts(out, "<s>"));
            i += 3;
        } else {
            assert_true(text_append(out, raw.data + i, 1));
        }
    assert_true(text_append(out, "", 1));
    out->len--;
    text_free(&raw);
    text_free(&forced);
    grammar_place_destroy(p);
    return ended;
}

static struct grammar *grammar_of_request(void) {
    const struct text_buf *text = &r.constraint.grammar;
    struct grammar *g = NULL;
    kvasir_error why = {0};
    assert_non_null(text->data);
    if (grammar_compile((enum grammar_kind)r.constraint.grammar_kind,
                        (struct text_span){text->data, text->len}, NULL, &g, &why))
        fail_msg("%s\n%s", text->data, why.text);
    return g;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* The message that an answer's text becomes, and its finish_reason. */
static json_t *message_of(const char *text, size_t len) {
    struct api_answer a;
    assert_true(api_answer_init(&a, &r));
    api_answer_event(&a, &(kvasir_event){.kind = KVASIR_EVENT_DONE,
                                         .text = text,
                                         .len = len,
                                         .finish = KVASIR_FINISH_STOP,
                                         .last = true});
    json_t *body = openai_answer_body(&a, &setup, "chatcmpl-1", 0, &err);
    json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
    json_t *message = json_incref(json_object_get(choice, "message"));
    json_object_set(message, "finish_reason", json_object_get(choice, "finish_reason"));
    json_decref(body);
    api_answer_free(&a);
    return message;
}

/* All calls are of tools that are there, with arguments of their schemas. */
static size_t check_calls(json_t *message, const char *text) {
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;
    json_array_foreach(calls, i, call) {
        json_t *f = json_object_get(call, "function");
        const char *name = json_string_value(json_object_get(f, "name"));
        json_t *arguments = json_object_get(f, "arguments");
        bool found = false;
        for (size_t k = 0; k < sizeof SCHEMAS / sizeof *SCHEMAS; k++)
            if (strcmp(SCHEMAS[k].name, name) == 0)
                found = is_of(SCHEMAS[k].schema, json_string_value(arguments),
                              json_string_length(arguments));
        if (!found)
            fail_msg("%s\n%s is called with %s", text, name, json_string_value(arguments));
    }
    return json_array_size(calls);
}

static void forced_answer(const char *text, size_t len) {
    json_t *message = message_of(text, len);
    const size_t n = check_calls(message, text);
    if (n == 0 || (r.answer.single && n > 1) ||
        json_string_length(json_object_get(message, "content")))
        fail_msg("%s\nhas %zu calls and the content %s", text, n,
                 json_string_value(json_object_get(message, "content")));
    assert_string_equal(json_string_value(json_object_get(message, "finish_reason")), "tool_calls");
    json_decref(message);
}

enum { ROUNDS = 40, MOST_UNFINISHED = 4 };

static void check_walks(void (*check)(const char *, size_t)) {
    struct grammar *g = grammar_of_request();
    struct text_buf text = {0};
    int unfinished = 0;
    for (int i = 0; i < ROUNDS; i++) {
        if (walk(g, &text))
            check(text.data, text.len);
        else
            unfinished++;
    }
    if (unfinished > MOST_UNFINISHED)
        fail_msg("%d of %d did not end: %.2000s\n%s", unfinished, ROUNDS, text.data,
                 r.constraint.grammar.data);
    text_free(&text);
    grammar_release(g);
}

static void test_forced(void **state) {
    (void)state;
    static const char *const CHOICES[] = {
        ",\"tool_choice\":\"required\"",
        ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false",
        ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"nested.one\"}}",
        (",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"plain\"}},"
         "\"parallel_tool_calls\":false")};
    for (size_t i = 0; i < N_FAMILIES; i++)
        for (size_t k = 0; k < 4; k++) {
            char fields[4000];
            random_state = (uint32_t)(100 * i + k);
            use_family(&FAMILIES[i]);
            snprintf(fields, sizeof fields, "%s%s", ALL_TOOLS, CHOICES[k]);
            good(API_CHAT, with(API_CHAT, fields));
            check_walks(forced_answer);
        }
    defaults();
}

/* Calls that were begun, or any text. */
static void checked_answer(const char *text, size_t len) {
    json_t *message = message_of(text, len);
    (void)check_calls(message, text);
    json_decref(message);
}

static void test_checked(void **state) {
    (void)state;
    for (size_t i = 0; i < N_FAMILIES; i++) {
        random_state = (uint32_t)i;
        use_family(&FAMILIES[i]);
        good(API_CHAT, with(API_CHAT, ALL_TOOLS));
        check_walks(checked_answer);
    }
    defaults();
}

/* A schema's instance, or calls. */
static void body_answer(const char *text, size_t len) {
    json_t *message = message_of(text, len);
    json_t *content = json_object_get(message, "content");
    const size_t n = check_calls(message, text);
    if (n ? json_string_length(content) > 0
          : !is_of(NESTED, json_string_value(content), json_string_length(content)))
        fail_msg("%s\nhas %zu calls and the content %s", text, n, json_string_value(content));
    json_decref(message);
}

static void test_bodies(void **state) {
    (void)state;
    for (size_t i = 0; i < N_FAMILIES; i++)
        for (size_t k = 0; k < 2; k++) {
            char fields[4000];
            random_state = (uint32_t)(10 * i + k);
            use_family(&FAMILIES[i]);
            snprintf(fields, sizeof fields, "\"json_schema\":%s%s%s", NESTED, k ? "," : "",
                     k ? ALL_TOOLS : "");
            good(API_CHAT, with(API_CHAT, fields));
            check_walks(body_answer);
        }
    defaults();
}

/* Other texts, beside reasoning. */
static void choice_answer(const char *text, size_t len) {
    json_t *message = message_of(text, len);
    const char *content = json_string_value(json_object_get(message, "content"));
    if (strcmp(content, "</think>") != 0 && strcmp(content, "<|end|>\"\\") != 0)
        fail_msg("%s\nhas the content %s", text, content);
    json_decref(message);
}

static void test_other_texts(void **state) {
    (void)state;
    static const char *const FIELDS[] = {
        "\"guided_choice\":[\"</think>\",\"<|end|>\\\"\\\\\"]",
        "\"guided_regex\":\"</think>|<[|]end[|]>\\\"\\\\\\\\\"",
        ("\"grammar\":\"root ::= call | calls\\ncall ::= \\\"</think>\\\"\\ncalls ::= "
         "\\\"<|end|>\\\" [\\\\x22] \\\"\\\\\\\\\\\"\"")};
    for (size_t i = 0; i < N_FAMILIES; i++)
        for (size_t k = 0; k < 3; k++) {
            random_state = (uint32_t)(10 * i + k);
            use_family(&FAMILIES[i]);
            good(API_CHAT, with(API_CHAT, FIELDS[k]));
            check_walks(choice_answer);
        }
    defaults();
}

/* The chat templates of real models, which show the tools and may open reasoning. */
static void test_templates(void **state) {
    (void)state;
    static const char *const NAMES[] = {"Qwen-Qwen2.5-7B-Instruct",
                                        "Qwen-Qwen3-0.6B",
                                        "Qwen3-Coder",
                                        "Qwen3.5-4B",
                                        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
                                        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
                                        "ibm-granite-granite-4.0",
                                        "meta-llama-Llama-3.1-8B-Instruct",
                                        "meta-llama-Llama-3.2-3B-Instruct",
                                        "Mistral-Small-3.2-24B-Instruct-2506",
                                        "mistralai-Ministral-3-14B-Reasoning-2512",
                                        "unsloth-mistral-Devstral-Small-2507",
                                        "google-gemma-4-31B-it",
                                        "openai-gpt-oss-120b"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        random_state = (uint32_t)i;
        if (!set_real_template(NAMES[i]))
            skip();
        syntax = answer_syntax_of(tokenizer);
        setup.syntax = &syntax;
        print_message("%s\n", NAMES[i]);
        good(API_CHAT, with(API_CHAT, ALL_TOOLS ",\"tool_choice\":\"required\""));
        check_walks(forced_answer);
        good(API_CHAT, with(API_CHAT, ALL_TOOLS ",\"json_schema\":" NESTED));
        check_walks(body_answer);
        good(API_CHAT, with(API_CHAT, ALL_TOOLS));
        check_walks(checked_answer);
    }
    set_template(TEMPLATE, sizeof TEMPLATE - 1);
    defaults();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forced),    cmocka_unit_test(test_checked),
        cmocka_unit_test(test_bodies),    cmocka_unit_test(test_other_texts),
        cmocka_unit_test(test_templates),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
