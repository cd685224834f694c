/* SPDX-License-Identifier: Apache-2.0 */
/* What the parser makes of an answer's text: each family's form of reasoning and tool calls, fed
 * whole, byte by byte and cut at every place, which must not change the result; mlx-lm's cases for
 * its TextStateMachine; malformed calls; and which syntax the chat templates of real models use.
 *
 * Bugs that were planted and found: the beginning of a marker passed on at the end of a push, an
 * end marker recognized inside a JSON text, the line end dropped before text that turns out not to
 * be a call.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "answer_parts.h"
#include "byte_tokenizer.h"
#include "model_files.h"

#include <cmocka.h>

static struct answer_options o;

static void use(enum answer_tools tools, const char *open, const char *close, bool think) {
    o = (struct answer_options){.syntax = {.tools = tools, .call_open = open, .call_close = close},
                                .tools = true,
                                .seed = 7};
    if (think) {
        o.syntax.think_open = "<think>";
        o.syntax.think_close = "</think>";
    }
}

static void check(const char *text, const size_t *cuts, size_t n_cuts, const char *wanted) {
    struct answer_parts a = {0};
    assert_true(parts_of(&o, text, strlen(text), cuts, n_cuts, &a));
    if (strcmp(a.text, wanted) != 0)
        fail_msg("\n%s\n%s\nis not\n%s", text, a.text, wanted);
    assert_false(a.wrong);
    parts_free(&a);
}

/* Feeds the text whole, byte by byte, and in two and three pieces, cut at every place. */
static void is(const char *text, const char *wanted) {
    size_t len = strlen(text), cuts[2048];
    assert_true(len < 2048);
    check(text, NULL, 0, wanted);
    for (size_t i = 0; i < len; i++)
        cuts[i] = 1;
    check(text, cuts, len, wanted);
    for (size_t i = 0; i <= len; i++)
        check(text, (size_t[]){i, 1}, 2, wanted);
}

/* ---- mlx-lm's -------------------------------------------------------------------------------- */

static void test_mlx(void **state) {
    (void)state;
    use(ANSWER_HERMES, "<tool_call>", "</tool_call>", true);
#define BODY "{\"name\": \"f\"}"
    is("hi <tool_call>" BODY "</tool_call> bye", "C(hi )F0 f({})C( bye)");
    is("<tool_call>" BODY "</tool_call><tool_call>" BODY "</tool_call>", "F0 f({})F1 f({})");
    is("body</", "C(body</)");
    is("body</tool_call", "C(body</tool_call)");
    is("hello <tool_cal", "C(hello <tool_cal)");
    is("<think>hmm<tool_call>" BODY "</tool_call>bye", "R(hmm)F0 f({})C(bye)");
    is("<think>hmm<tool_call>" BODY "</tool_call></think>bye", "R(hmm)F0 f({})C(bye)");
    use(ANSWER_MISTRAL, "[TOOL_CALLS]", NULL, false); /* an empty end marker */
    is("[TOOL_CALLS]f[ARGS]{\"a\": 1}", "F0 f({\"a\": 1})");
}

/* Text that was held back is passed on as soon as it cannot begin a marker. */
static void test_held_back(void **state) {
    (void)state;
    struct answer_parts a = {.last = -1};
    use(ANSWER_HERMES, "<tool_call>", "</tool_call>", true);
    struct answer_parser *p = answer_parser_create(&o, parts_take, &a);
    assert_true(answer_parser_push(p, "a <tool_", 8));
    assert_string_equal(a.text, "C(a ");
    assert_true(answer_parser_push(p, "x", 1));
    assert_string_equal(a.text, "C(a <tool_x");
    assert_true(answer_parser_push(p, "\n\n", 2));
    assert_string_equal(a.text, "C(a <tool_x");
    assert_true(answer_parser_push(p, "b", 1));
    assert_string_equal(a.text, "C(a <tool_x\n\nb");
    assert_true(answer_parser_push(p, "<tool_call>{\"name\":\"f\"}</tool_call>", 35));
    assert_string_equal(a.text, "C(a <tool_x\n\nb)F0 f({}"); /* passed on before the answer ends */
    assert_int_equal(answer_parser_calls(p), 1);
    answer_parser_destroy(p);
    parts_free(&a);
}

/* ---- reasoning ------------------------------------------------------------------------------- */

static void test_reasoning(void **state) {
    (void)state;
    use(ANSWER_HERMES, "<tool_call>", "</tool_call>", true);
    is("<think>\nI think\n\nso\n</think>\n\n  Yes\n", "R(I think\n\nso)C(  Yes\n)");
    is("<think>\n\n</think>\n\nYes", "C(Yes)");
    is("<think></think>", "");
    is("\n <think>a</think> \n", "R(a)");
    is("<think>a</think>b<think>c</think>d", "R(a)C(b)R(\nc)C(d)");
    is("<think>cut off <", "R(cut off <)");
    is("<think>a < b && </thin k> c", "R(a < b && </thin k> c)");
    is("no reasoning </think> here", "C(no reasoning </think> here)");
    is(" \n ", "C( \n )");
    is("", "");
    is("\n\n text\n\n", "C(\n\n text\n\n)");
    o.tools = false; /* reasoning is still recognized, calls are not */
    is("<think>a</think><tool_call>" BODY "</tool_call>", "R(a)C(<tool_call>" BODY "</tool_call>)");
    o.start = ANSWER_AT_REASONING;
    is("\nso\n</think>\n\nYes", "R(so)C(Yes)");
    is("<think>\nso</think>Yes", "R(so)C(Yes)"); /* opened by the prompt and again by the answer */
    is("never ends", "R(never ends)");
    is("\n", "");
    o.start = ANSWER_AT_CONTENT;
    o.syntax = (struct answer_syntax){0};
    is("<think>a</think>\n", "C(<think>a</think>\n)");
}

/* ---- Hermes, Qwen ---------------------------------------------------------------------------- */

static void test_hermes(void **state) {
    (void)state;
    use(ANSWER_HERMES, "<tool_call>", "</tool_call>", true);
    is("Let me look.\n\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": "
       "\"Z\xc3\xbcrich\"}}"
       "\n</tool_call>\n<tool_call>\n{\"name\": \"b\", \"arguments\": {}}\n</tool_call>\n",
       "C(Let me look.)F0 get({\"city\": \"Z\xc3\xbcrich\"})F1 b({})");
    is("<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":\"</tool_call>\\\"<think>\",\"n\":0.1}}"
       "</tool_call>",
       "F0 f({\"x\": \"</tool_call>\\\"<think>\", \"n\": 0.1})");
    is("<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[1,null]}\"}</tool_call>",
       "F0 f({\"a\": [1, null]})");
    is("<tool_call>[{\"name\":\"f\"},{\"name\":\"g\",\"parameters\":{\"a\":true}}]</tool_call>",
       "F0 f({})F1 g({\"a\": true})");
    is("<tool_call>{\"name\":\"f\"}\n{\"name\":\"g\"}</tool_call>", "F0 f({})F1 g({})");
    is("<tool_call>{\"type\":\"function\",\"function\":{\"name\":\"f\"}}</tool_call>", "F0 f({})");
    is("<tool_call>{\"name\": \"f\"}", "F0 f({})"); /* the end marker was an end token */
    is("between<tool_call>" BODY "</tool_call> \n <tool_call>" BODY "</tool_call>\ntext\n",
       "C(between)F0 f({})F1 f({})C(text\n)");
}

/* Small models leave the marker out. */
static void test_hermes_bare(void **state) {
    (void)state;
    use(ANSWER_HERMES, "<tool_call>", "</tool_call>", true);
    is("{\"name\": \"f\", \"arguments\": {\"a\": \"<tool_call>\"}}",
       "F0 f({\"a\": \"<tool_call>\"})");
    is("<think>a</think>\n\n{\"name\": \"f\", \"arguments\": {}}\n", "R(a)F0 f({})");
    is("{\"name\": \"f\", \"arguments\": {}}\n<tool_call>" BODY "</tool_call>", "F0 f({})F1 f({})");
    is("{\"name\": \"Bob\"}", "C({\"name\": \"Bob\"})");
    is("{\"name\": \"Bob\"}<tool_call>" BODY "</tool_call>", "C({\"name\": \"Bob\"})F0 f({})");
    is("See: {\"name\": \"f\", \"arguments\": {}}", "C(See: {\"name\": \"f\", \"arguments\": {}})");
    o.tools = false;
    is("{\"name\": \"f\", \"arguments\": {}}", "C({\"name\": \"f\", \"arguments\": {}})");
}

static void test_not_calls(void **state) {
    (void)state;
    static const char *const BAD[] = {
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": </tool_call>",
        "x\n\n<tool_call>nothing</tool_call>\n",
        "<tool_call></tool_call>",
        "<tool_call>{}</tool_call>",
        "<tool_call>{\"name\": 3}</tool_call>",
        "<tool_call>{\"name\": \"\"}</tool_call>",
        "<tool_call>{\"name\": \"a\\u0000b\"}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>",
        "<tool_call>{\"name\": \"f\"} and more</tool_call>",
        "<tool_call>[]</tool_call>",
        "<tool_call>[{\"name\": \"f\"}, 3]</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1",
        "<tool_call><function=f>\n<parameter=a>cut</tool_call>",
    };
    use(ANSWER_HERMES, "<tool_call>", "</tool_call>", true);
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        char wanted[256];
        snprintf(wanted, sizeof wanted, "C(%s)", BAD[i]);
        is(BAD[i], wanted);
    }
    /* malformed calls stay text, in their place; a good call after one is still recognized */
    is("<think>a <tool_call>b</tool_call> c</think>d", "R(a <tool_call>b</tool_call> c)C(d)");
    is("<tool_call>bad</tool_call>\n<tool_call>" BODY "</tool_call>",
       "C(<tool_call>bad</tool_call>)F0 f({})");
    /* an unclosed quote does not swallow the lines after its own */
    is("<tool_call>{\"name\": \"f}\n</tool_call>\n<tool_call>" BODY "</tool_call>",
       "C(<tool_call>{\"name\": \"f}\n</tool_call>)F0 f({})");
}

static void test_qwen_coder(void **state) {
    (void)state;
    json_t *tools = json_loads(
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
        "\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},"
        "\"o\":{\"type\":\"object\"},\"u\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"number\"}]},"
        "\"v\":{\"type\":[\"null\",\"string\"]}}}}}]",
        0, NULL);
    use(ANSWER_QWEN_CODER, "<tool_call>", "</tool_call>", true);
    o.schema = tools;
#define XML(parameters) "<tool_call>\n<function=f>\n" parameters "</function>\n</tool_call>"
    is(XML(""), "F0 f({})");
    is("I will.\n" XML("<parameter=s>\n5\n</parameter>\n<parameter=n>\n5\n</parameter>\n") "\n",
       "C(I will.)F0 f({\"s\": \"5\", \"n\": 5})");
    is(XML("<parameter=b>True</parameter><parameter=o>{\"a\": [1]}</parameter>"
           "<parameter=u>1.5</parameter><parameter=v>null</parameter><parameter=x>1</parameter>"),
       "F0 f({\"b\": true, \"o\": {\"a\": [1]}, \"u\": 1.5, \"v\": \"null\", \"x\": \"1\"})");
    is(XML("<parameter=n>\nfive\n</parameter>\n"), "F0 f({\"n\": \"five\"})");
    is(XML("<parameter=s>\n\n  it's <b>&\n\n</parameter>\n"),
       "F0 f({\"s\": \"\\n  it's <b>&\\n\"})");
    is(XML("<parameter=s>\na\n<parameter=v>\nb\n"), "F0 f({\"s\": \"a\", \"v\": \"b\"})");
    is("<tool_call><function=f><parameter=s>a</parameter></tool_call>", "F0 f({\"s\": \"a\"})");
    is("<function=f><parameter=s>a</parameter></function>\n</tool_call>\nso",
       "F0 f({\"s\": \"a\"})C(so)");
    is("<tool_call><function=f></function><function=g></function></tool_call>", "F0 f({})F1 g({})");
    is("<tool_call>{\"name\": \"f\"}</tool_call>", "F0 f({})");
    is("<function=f><parameter=s>cut", "C(<function=f><parameter=s>cut)");
    is("<tool_call><function=f>text</function></tool_call>",
       "C(<tool_call><function=f>text</function></tool_call>)");
    is("<tool_call><function=f", "C(<tool_call><function=f)");
    json_decref(tools);
}

/* ---- Llama, Mistral -------------------------------------------------------------------------- */

static void test_llama(void **state) {
    (void)state;
    use(ANSWER_LLAMA3, "<|python_tag|>", NULL, false);
    is("{\"name\": \"f\", \"parameters\": {\"a\": \"b\"}}", "F0 f({\"a\": \"b\"})");
    is("\n\n{\"type\":\"function\",\"name\":\"f\",\"parameters\":{}}\n", "F0 f({})");
    is("<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"arguments\": {}};",
       "F0 f({})F1 g({})");
    is("{\"name\":\"f\",\"parameters\":{}}<|python_tag|>{\"name\":\"g\",\"parameters\":{}}",
       "F0 f({})F1 g({})");
    is("{\"name\":\"f\",\"parameters\":{}} and so on", "F0 f({})C( and so on)");
    is("so <|python_tag|>search.call(query=\"a b\", n=2)",
       "C(so )F0 search({\"query\": \"a b\", \"n\": 2})");
    is("<|python_tag|>print(1)", "C(<|python_tag|>print(1))");
    is("{\"name\": \"Bob\", \"age\": 5}", "C({\"name\": \"Bob\", \"age\": 5})");
    is("{\"answer\": 42}", "C({\"answer\": 42})");
    is("{ \"names", "C({ \"names)");
    is("{", "C({)");
    is("{}", "C({})");
    is("Use {\"name\": \"f\", \"parameters\": {}}", "C(Use {\"name\": \"f\", \"parameters\": {}})");
    o.tools = false;
    is("{\"name\": \"f\", \"parameters\": {}}", "C({\"name\": \"f\", \"parameters\": {}})");
    /* an object that cannot be a call is not held back */
    struct answer_parts a = {.last = -1};
    o.tools = true;
    struct answer_parser *p = answer_parser_create(&o, parts_take, &a);
    assert_true(answer_parser_push(p, "{\"ans", 5));
    assert_string_equal(a.text, "C({\"ans");
    answer_parser_destroy(p);
    parts_free(&a);
}

static void test_mistral(void **state) {
    (void)state;
    use(ANSWER_MISTRAL, "[TOOL_CALLS]", NULL, false);
    is("[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", "
       "\"arguments\": "
       "{}}]",
       "F0 f({\"a\": 1})F1 g({})");
    is("Sure.[TOOL_CALLS]f[ARGS]{\"a\": \"[TOOL_CALLS]\"}[TOOL_CALLS]g[ARGS]{}",
       "C(Sure.)F0 f({\"a\": \"[TOOL_CALLS]\"})F1 g({})");
    is("[TOOL_CALLS]f{\"a\": 1}", "F0 f({\"a\": 1})");
    is("[TOOL_CALLS]f[ARGS]{} then", "F0 f({})C( then)");
    is("[TOOL_CALLS]f[ARGS]{\"a\": ", "C([TOOL_CALLS]f[ARGS]{\"a\": )");
    is("[TOOL_CALLS]", "C([TOOL_CALLS])");
    is("[TOOL_CALLS]oh[TOOL_CALLS]g[ARGS]{}", "C([TOOL_CALLS]oh)F0 g({})");
    struct answer_parts a = {0};
    static const char TEXT[] = "[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{}[TOOL_CALLS]g[ARGS]{}";
    assert_true(parts_of(&o, TEXT, strlen(TEXT), NULL, 0, &a));
    assert_string_equal(a.text, "F0 f({})F1 g({})");
    assert_string_equal(a.ids[0], "a1B2c3D4e");
    assert_int_equal(strlen(a.ids[1]), 9); /* Mistral's templates require 9 letters or digits */
    assert_int_equal(strspn(a.ids[1], "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                      "0123456789"),
                     9);
    parts_free(&a);
}

/* ---- Gemma, Python --------------------------------------------------------------------------- */

static void test_gemma(void **state) {
    (void)state;
    use(ANSWER_GEMMA4, "<|tool_call>", "<tool_call|>", false);
    o.syntax.think_open = "<|channel>thought";
    o.syntax.think_close = "<channel|>";
#define Q "<|\"|>"
    is("<|channel>thought\nhmm\n<channel|>ok", "R(hmm)C(ok)");
    is("<|channel>thought\n<channel|>ok", "C(ok)");
    is("<|tool_call>call:f{city:" Q "a \"{b}\", c" Q ",n:-1.5,l:[1,{k:" Q Q "}],t:true,z:null}"
       "<tool_call|><|tool_call>call:g{}<tool_call|>",
       "F0 f({\"city\": \"a \\\"{b}\\\", c\", \"n\": -1.5, \"l\": [1, {\"k\": \"\"}], \"t\": true, "
       "\"z\": null})F1 g({})");
    is("<|tool_call>call:f{" Q "a key" Q ":" Q "v" Q ",bare:two words,q:\"x\\n\"}<tool_call|>",
       "F0 f({\"a key\": \"v\", \"bare\": \"two words\", \"q\": \"x\\n\"})");
    is("<|tool_call>call:f{a:1}call:g{}<tool_call|>", "F0 f({\"a\": 1})F1 g({})");
    is("<|tool_call>call:f{a:" Q "cut<tool_call|>", "C(<|tool_call>call:f{a:" Q "cut<tool_call|>)");
    is("<|tool_call>f{}<tool_call|>", "C(<|tool_call>f{}<tool_call|>)");
    /* JSON, where a marker in a text is none */
    is("<|tool_call>call:f{ \"\": \"<tool_call|>\\ud83d\\ude00\", \"l\": [{}]}<tool_call|>ok",
       "F0 f({\"\": \"<tool_call|>\xf0\x9f\x98\x80\", \"l\": [{}]})C(ok)");
    is("<|tool_call>call:f{\"a\":1}call:g{b:2}<tool_call|>", "F0 f({\"a\": 1})F1 g({\"b\": 2})");
    use(ANSWER_FUNCTION_GEMMA, "<start_function_call>", "<end_function_call>", false);
    is("<start_function_call>call:f{a:<escape>b, c<escape>,n:2}<end_function_call>",
       "F0 f({\"a\": \"b, c\", \"n\": 2})");
}

static void test_python(void **state) {
    (void)state;
    use(ANSWER_PYTHONIC, "<|tool_call_start|>", "<|tool_call_end|>", true);
    is("<|tool_call_start|>[get(city=\"Z\xc3\xbcrich\", n=1), a.b()]<|tool_call_end|>Wait.",
       "F0 get({\"city\": \"Z\xc3\xbcrich\", \"n\": 1})F1 a.b({})C(Wait.)");
    is("<|tool_call_start|>[f(a='it\\'s \\u00e9\\x41\\n\\q', b=[1, 2.5,], c={'k': None, \"j\": "
       "True},"
       " d=(1, 'x'))]<|tool_call_end|>",
       "F0 f({\"a\": \"it's \xc3\xa9"
       "A\\n\\\\q\", \"b\": [1, 2.5], \"c\": {\"k\": null, \"j\": true}, \"d\": [1, \"x\"]})");
    is("<|tool_call_start|>{\"name\": \"f\"}<|tool_call_end|>", "F0 f({})");
    is("<|tool_call_start|>[f(a='\"<|tool_call_end|>', b=\"'\\ud83d\\ude00\")]<|tool_call_end|>",
       "F0 f({\"a\": \"\\\"<|tool_call_end|>\", \"b\": \"'\xf0\x9f\x98\x80\"})");
    static const char *const BAD[] = {
        "[f(1)]", "[f(a=b)]",      "[f(a='x]", "[f(a=1]",        "[f(a=1) g()]", "f",
        "[]",     "[f(a=1,,b=2)]", "[f(a=)]",  "[f('\\ud800')]", "[f(a=1)]x"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        char text[128], wanted[136];
        snprintf(text, sizeof text, "<|tool_call_start|>%s<|tool_call_end|>", BAD[i]);
        snprintf(wanted, sizeof wanted, "C(%s)", text);
        is(text, wanted);
    }
    use(ANSWER_TOOL_CODE, "```tool_code", "```", false);
    is("Sure:\n```tool_code\nf(a=1)\ng()\n```\n", "C(Sure:)F0 f({\"a\": 1})F1 g({})");
    is("```tool_code\nimport os\n```", "C(```tool_code\nimport os\n```)");
    is("```c\nint x;\n```", "C(```c\nint x;\n```)");
}

/* ---- harmony --------------------------------------------------------------------------------- */

static void test_harmony(void **state) {
    (void)state;
    use(ANSWER_HARMONY, NULL, NULL, false);
    o.start = ANSWER_AT_HEADER;
#define ANALYSIS "<|channel|>analysis<|message|>"
#define CALL_TO(name)                                                                              \
    "<|start|>assistant<|channel|>commentary to=" name " <|constrain|>json<|message|>"
    is(ANALYSIS "I think.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
       "R(I think.)C(Yes.)");
    is(ANALYSIS "a<|end|>" CALL_TO("functions.f") "{\"a\": 1}<|call|>", "R(a)F0 f({\"a\": 1})");
    is(" to=functions.f<|channel|>commentary json<|message|>{\"a\":1}", "F0 f({\"a\": 1})");
    is("<|channel|>commentary<|message|>I look.<|end|>" CALL_TO("functions.f") "{}<|end|>" CALL_TO(
           "g") "",
       "C(I look.)F0 f({})F1 g({})");
    is(ANALYSIS "a<|end|><|start|>assistant" ANALYSIS "b<|end|><|start|>assistant<|channel|>"
                "final<|message|>c<|return|>",
       "R(a\nb)C(c)");
    is(ANALYSIS "a<|channel|>final<|message|>b", "R(a)C(b)"); /* <|end|> left out */
    is("<|channel|>final<|message|>a<|message|>b<|constrain|>", "C(a\nb)");
    is(CALL_TO("functions.f") "{\"a\": ", "C(" CALL_TO("functions.f") "{\"a\": )");
    is(CALL_TO("python") "print(1)<|call|>", "C(" CALL_TO("python") "print(1)<|call|>)");
    is("<|channel|>final<|message|>\n a", "C( a)"); /* the header is a marker */
    is("<|channel|>anal", "");
    is("<|channel|>", "");
    is("Just text.", "C(Just text.)");
    char text[900], wanted[900];
    memset(text, 'x', 700);
    snprintf(text + 700, sizeof text - 700, "<|channel|>final<|message|>y");
    snprintf(wanted, sizeof wanted, "C(%.700s\ny)", text);
    is(text, wanted);
    memcpy(text, "<|channel|>", 11); /* too long for a header */
    snprintf(wanted, sizeof wanted, "C(%.689s\ny)", text + 11);
    is(text, wanted);
    o.tools = false;
    is(ANALYSIS "a<|end|>" CALL_TO("functions.f") "{}", "R(a)C({})");
    o.start = ANSWER_AT_CONTENT; /* continues the prompt's last message */
    is("Yes.<|end|>", "C(Yes.)");
    o.start = ANSWER_AT_REASONING;
    is("so<|end|><|start|>assistant<|channel|>final<|message|>Yes", "R(so)C(Yes)");
}

/* ---- ids, limits, garbage -------------------------------------------------------------------- */

static void test_ids(void **state) {
    (void)state;
    static const char TEXT[] = "<tool_call>" BODY "</tool_call><tool_call>" BODY "</tool_call>";
    struct answer_parts a = {0}, b = {0}, c = {0};
    use(ANSWER_HERMES, "<tool_call>", "</tool_call>", true);
    o.seed = answer_seed("chatcmpl-1", 0);
    assert_true(parts_of(&o, TEXT, strlen(TEXT), NULL, 0, &a));
    assert_true(parts_of(&o, TEXT, strlen(TEXT), (size_t[]){20}, 1, &b));
    o.seed = answer_seed("chatcmpl-1", 1);
    o.single = true;
    assert_true(parts_of(&o, TEXT, strlen(TEXT), NULL, 0, &c));
    assert_string_equal(a.text, "F0 f({})F1 f({})");
    assert_string_equal(c.text, "F0 f({})");
    for (int i = 0; i < 2; i++) {
        assert_string_equal(a.ids[i], b.ids[i]);
        assert_int_equal(strlen(a.ids[i]), 29);
        assert_memory_equal(a.ids[i], "call_", 5);
    }
    assert_string_not_equal(a.ids[0], a.ids[1]);
    assert_string_not_equal(a.ids[0], c.ids[0]);
    parts_free(&a);
    parts_free(&b);
    parts_free(&c);
}

/* Qwen2.5-Coder writes a call as a block of code. It is one if its name is a tool's. */
static void test_fences(void **state) {
    (void)state;
    json_t *tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", 0, NULL);
    assert_non_null(tools);
    use(ANSWER_HERMES, "<tool_call>", "</tool_call>", true);
    o.fences = true;
    o.schema = tools;
#define F "{\"name\": \"f\", \"arguments\": {\"a\": \"```\"}}"
    is("```json\n" F "\n```", "F0 f({\"a\": \"```\"})");
    is("I look.\n```json\n" F "\n```\n", "C(I look.)F0 f({\"a\": \"```\"})");
    is("```tool_call " F " ``` and ```json\n[1]\n```",
       "F0 f({\"a\": \"```\"})C( and ```json\n[1]\n```)");
    is("a ```json\n{\"name\": \"g\"}\n```\nb", "C(a ```json\n{\"name\": \"g\"}\n```\nb)");
    is("```json\n{\"name\": \"f\", \"arguments\": 1}\n```",
       "C(```json\n{\"name\": \"f\", \"arguments\": 1}\n```)");
    is("```json\n" F, "C(```json\n" F ")"); /* no end */
    is("```json", "C(```json)");
    is("```js\n" F "\n```", "C(```js\n" F "\n```)");
    is("<think>```json\n" F "\n```</think>x", "R(```json\n" F "\n```)C(x)");
    o.tools = false;
    is("```json\n" F "\n```", "C(```json\n" F "\n```)");
    use(ANSWER_LLAMA3, "<|python_tag|>", NULL, false);
    o.fences = true;
    o.schema = tools;
    is("```json\n" F "\n```", "F0 f({\"a\": \"```\"})");
    json_decref(tools);
#undef F
}

/* If the callback gives up, at whichever part, the parser stops. */
static void test_gives_up(void **state) {
    (void)state;
    static const char TEXT[] = "<think>a</think>b<tool_call>" BODY "</tool_call>c";
    use(ANSWER_HERMES, "<tool_call>", "</tool_call>", true);
    for (uint32_t i = 1; i <= 5; i++) {
        struct answer_parts a = {.refuse = i};
        assert_false(parts_of(&o, TEXT, strlen(TEXT), NULL, 0, &a));
        parts_free(&a);
    }
}

/* Fragments of all syntaxes in random order, cut anywhere: whole or cut, the result is the same. */
static void test_garbage(void **state) {
    (void)state;
    static const char *const BITS[] = {"<think>",
                                       "</think>",
                                       "[THINK]",
                                       "[/THINK]",
                                       "<tool_call>",
                                       "</tool_call>",
                                       "<function=f>",
                                       "<parameter=a>",
                                       "</parameter>",
                                       "</function>",
                                       "[TOOL_CALLS]",
                                       "[ARGS]",
                                       "<|python_tag|>",
                                       "<|tool_call>",
                                       "<tool_call|>",
                                       "call:f{",
                                       "}",
                                       Q,
                                       "<|channel>thought",
                                       "<channel|>",
                                       "<|tool_call_start|>",
                                       "<|tool_call_end|>",
                                       "[f(a=1)]",
                                       "```",
                                       "```tool_code\n",
                                       "<|channel|>",
                                       "<|message|>",
                                       "<|start|>assistant",
                                       "<|end|>",
                                       "<|call|>",
                                       "final",
                                       "analysis",
                                       " to=functions.f",
                                       "{\"name\":\"f\",\"parameters\":{}}",
                                       "{}",
                                       "\n",
                                       " ",
                                       "\"",
                                       "\\",
                                       "text",
                                       "<",
                                       "[",
                                       "|>",
                                       ";",
                                       "{\"name\"",
                                       "\xc3\xbc"};
    uint32_t random = 1;
    for (int round = 0; round < 20000; round++) {
        char text[1024];
        size_t n = 0, cuts[64];
        for (int i = 0; i < 2 + round % 12; i++) {
            random = random * 1664525 + 1013904223;
            const char *bit = BITS[(random >> 8) % (sizeof BITS / sizeof *BITS)];
            n += (size_t)snprintf(text + n, sizeof text - n, "%s", bit);
        }
        for (int i = 0; i < 64; i++) {
            random = random * 1664525 + 1013904223;
            cuts[i] = (random >> 10) % (round % 3 ? 9 : 3);
        }
        o = (struct answer_options){.syntax = ALL[round % N_ALL],
                                    .start = (enum answer_start)(round / 9 % 3),
                                    .tools = round % 7 != 0};
        struct answer_parts whole = {0}, cut = {0};
        assert_true(parts_of(&o, text, n, NULL, 0, &whole));
        assert_true(parts_of(&o, text, n, cuts, 64, &cut));
        if (strcmp(whole.text, cut.text) != 0)
            fail_msg("%d:\n%s\n%s\n%s", o.syntax.tools, text, whole.text, cut.text);
        assert_false(whole.wrong || cut.wrong);
        parts_free(&whole);
        parts_free(&cut);
    }
}

/* Long answers that keep the parser from deciding, byte by byte and whole: 200,000 bytes take
 * milliseconds if parsing is linear, and minutes if it is not. */
static void test_linear(void **state) {
    (void)state;
    static const struct {
        int syntax;
        const char *text;
    } STARTS[] = {{0, "<tool_call>"},
                  {0, "<tool_call>{\"name\": \""},
                  {0, "<think>"},
                  {1, "<function=f>"},
                  {2, "<|python_tag|>{"},
                  {2, "{ "},
                  {2, ""},
                  {3, "[TOOL_CALLS]f[ARGS]{\"a\":\""},
                  {3, "[TOOL_CALLS]"},
                  {4, "<|tool_call>call:f{a:"},
                  {7, "<|tool_call_start|>[f(a="},
                  {8, "<|channel|>final<|message|>"},
                  {8, CALL_TO("f")}};
    static const char *const REPEATED[] = {"<",
                                           " ",
                                           "\n",
                                           "\"",
                                           "{",
                                           "[",
                                           "<parameter=a>",
                                           ";{}",
                                           "[TOOL_CALLS]",
                                           "<tool_call>",
                                           "{\"a\":",
                                           "<|start|>"};
    enum { LEN = 200000 };
    char *text = malloc(LEN + 64);
    size_t *cuts = malloc(LEN * sizeof *cuts);
    for (int i = 0; i < LEN; i++)
        cuts[i] = 1;
    for (size_t s = 0; s < sizeof STARTS / sizeof *STARTS; s++)
        for (size_t k = 0; k < sizeof REPEATED / sizeof *REPEATED; k++) {
            struct answer_parts a = {0};
            size_t n = (size_t)sprintf(text, "%s", STARTS[s].text), size = strlen(REPEATED[k]);
            for (; n + size < LEN; n += size)
                memcpy(text + n, REPEATED[k], size);
            o = (struct answer_options){.syntax = ALL[STARTS[s].syntax],
                                        .start = STARTS[s].syntax == 8 ? ANSWER_AT_HEADER
                                                                       : ANSWER_AT_CONTENT,
                                        .tools = true};
            clock_t begin = clock();
            assert_true(parts_of(&o, text, n, cuts, LEN, &a));
            parts_free(&a);
            assert_true(parts_of(&o, text, n, NULL, 0, &a));
            double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
            if (seconds > 2)
                fail_msg("%s %s: %.1f s", STARTS[s].text, REPEATED[k], seconds);
            parts_free(&a);
        }
    free(cuts);
    free(text);
}

/* ---- which syntax ---------------------------------------------------------------------------- */

static struct temp_folder folder;
static kvasir_tokenizer *tokenizer;

static void set_template(const char *source, size_t len) {
    kvasir_error err;
    if (kvasir_tokenizer_set_chat_template(tokenizer, "t", source, len, &err))
        fail_msg("%s", err.text);
}

static void test_templates(void **state) {
    (void)state;
    static const struct {
        const char *name;
        enum answer_tools tools;
        const char *think;
    } FILES[] = {
        {"Qwen-Qwen2.5-7B-Instruct", ANSWER_HERMES, NULL},
        {"Qwen-Qwen3-0.6B", ANSWER_HERMES, "<think>"},
        {"Qwen3-Coder", ANSWER_QWEN_CODER, NULL},
        {"Qwen3.5-4B", ANSWER_QWEN_CODER, "<think>"},
        {"NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", ANSWER_QWEN_CODER, "<think>"},
        {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", ANSWER_HERMES, NULL},
        {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", ANSWER_HERMES, NULL},
        {"ibm-granite-granite-4.0", ANSWER_HERMES, NULL},
        {"meta-llama-Llama-3.1-8B-Instruct", ANSWER_LLAMA3, NULL},
        {"meta-llama-Llama-3.2-3B-Instruct", ANSWER_LLAMA3, NULL},
        {"Mistral-Small-3.2-24B-Instruct-2506", ANSWER_MISTRAL, NULL},
        {"mistralai-Ministral-3-14B-Reasoning-2512", ANSWER_MISTRAL, "[THINK]"},
        {"unsloth-mistral-Devstral-Small-2507", ANSWER_MISTRAL, NULL},
        {"google-gemma-4-31B-it", ANSWER_GEMMA4, "<|channel>thought"},
        {"google-gemma-4-31B-it-interleaved", ANSWER_GEMMA4, "<|channel>thought"},
        {"google-gemma-2-2b-it", ANSWER_TOOLS_NONE, NULL},
        {"openai-gpt-oss-120b", ANSWER_HARMONY, NULL},
        {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", ANSWER_TOOLS_NONE, "<think>"},
        {"HuggingFaceTB-SmolLM3-3B", ANSWER_TOOLS_NONE, "<think>"},
        {"microsoft-Phi-3.5-mini-instruct", ANSWER_TOOLS_NONE, NULL},
        {"fireworks-ai-llama-3-firefunction-v2", ANSWER_TOOLS_NONE, NULL},
    };
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        char path[512], source[32768];
        snprintf(path, sizeof path, "%s/chat-templates/%s.jinja", SHARED_DIR, FILES[i].name);
        FILE *f = fopen(path, "rb");
        if (!f)
            fail_msg("%s", path);
        size_t len = fread(source, 1, sizeof source, f);
        fclose(f);
        assert_true(len < sizeof source);
        set_template(source, len);
        struct answer_syntax s = answer_syntax_of(tokenizer);
        if (s.tools != FILES[i].tools || !s.think_open != !FILES[i].think ||
            (s.think_open && strcmp(s.think_open, FILES[i].think) != 0))
            fail_msg("%s: %d, %s", FILES[i].name, s.tools, s.think_open ? s.think_open : "none");
    }
}

static void test_starts(void **state) {
    (void)state;
    static const struct {
        int syntax;
        const char *prompt;
        enum answer_start start;
    } CASES[] = {
        {0, "<|im_start|>assistant\n<think>\n", ANSWER_AT_REASONING},
        {0, "<|im_start|>assistant\n<think>\n\n</think>\n\n", ANSWER_AT_CONTENT},
        {0, "<|im_start|>assistant\n", ANSWER_AT_CONTENT},
        {0, "", ANSWER_AT_CONTENT},
        {0, "\n", ANSWER_AT_CONTENT},
        {0, "ink>", ANSWER_AT_CONTENT},
        {4, "<|turn>model\n<|channel>thought\n<channel|>", ANSWER_AT_CONTENT},
        {4, "<|turn>model\n<|channel>thought\n", ANSWER_AT_REASONING},
        {8, "<|end|><|start|>assistant", ANSWER_AT_HEADER},
        {8, "<|start|>assistant<|channel|>analysis<|message|>", ANSWER_AT_REASONING},
        {8, "<|start|>assistant<|channel|>final<|message|>Yes", ANSWER_AT_CONTENT},
        {5, "<think>", ANSWER_AT_CONTENT},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        assert_int_equal(
            answer_start_of(&ALL[CASES[i].syntax], CASES[i].prompt, strlen(CASES[i].prompt)),
            CASES[i].start);
}

/* The only control token in these markers is <s>. */
static void test_shown(void **state) {
    (void)state;
    struct answer_syntax s = {ANSWER_HERMES, "<s>", "</tool_call>", "a<s>", "</think>"};
    int32_t *ids;
    size_t n;
    assert_true(answer_shown_tokens(&s, true, tokenizer, &ids, &n));
    assert_int_equal(n, 2);
    assert_int_equal(ids[0], BYTE_BOS);
    free(ids);
    assert_true(answer_shown_tokens(&s, false, tokenizer, &ids, &n));
    assert_int_equal(n, 1);
    free(ids);
    s = (struct answer_syntax){0};
    assert_true(answer_shown_tokens(&s, true, tokenizer, &ids, &n));
    assert_int_equal(n, 0);
    free(ids);
}

static int set_up(void **state) {
    (void)state;
    char config[192];
    kvasir_error err;
    temp_folder_make(&folder);
    snprintf(config, sizeof config, "%s", temp_file(&folder, "tokenizer_config.json"));
    byte_tokenizer_write(temp_file(&folder, "tokenizer.json"), config, "x");
    if (kvasir_tokenizer_open(folder.path, &tokenizer, &err))
        fail_msg("%s", err.text);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    kvasir_tokenizer_close(tokenizer);
    temp_folder_remove(&folder);
    return 0;
}

/* Names of vLLM's parsers; each that is known gives markers, or is harmony. */
static void test_parsers(void **state) {
    (void)state;
    struct answer_syntax s = {0};
    assert_true(answer_syntax_tools(&s, "hermes") && s.tools == ANSWER_HERMES);
    assert_string_equal(s.call_open, "<tool_call>");
    assert_true(answer_syntax_tools(&s, "mistral") && s.tools == ANSWER_MISTRAL);
    assert_true(answer_syntax_tools(&s, "lfm2") && s.tools == ANSWER_PYTHONIC);
    assert_true(answer_syntax_reasoning(&s, "qwen3"));
    assert_string_equal(s.think_open, "<think>");
    assert_string_equal(s.think_close, "</think>");
    assert_true(answer_syntax_reasoning(&s, "openai_gptoss"));
    assert_false(answer_syntax_tools(&s, "qwen3"));
    assert_false(answer_syntax_reasoning(&s, ""));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mlx),         cmocka_unit_test(test_held_back),
        cmocka_unit_test(test_reasoning),   cmocka_unit_test(test_hermes),
        cmocka_unit_test(test_hermes_bare), cmocka_unit_test(test_not_calls),
        cmocka_unit_test(test_qwen_coder),  cmocka_unit_test(test_llama),
        cmocka_unit_test(test_mistral),     cmocka_unit_test(test_gemma),
        cmocka_unit_test(test_python),      cmocka_unit_test(test_harmony),
        cmocka_unit_test(test_ids),         cmocka_unit_test(test_fences),
        cmocka_unit_test(test_gives_up),    cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_linear),      cmocka_unit_test(test_templates),
        cmocka_unit_test(test_starts),      cmocka_unit_test(test_shown),
        cmocka_unit_test(test_parsers),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
