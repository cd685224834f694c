/* SPDX-License-Identifier: Apache-2.0 */
/* From OpenAI's bodies to requests: every field that is read, every one that is refused, and the
 * paths in errors. */
#include "openai_checks.h"

/* ---- prompts --------------------------------------------------------------------------------- */

static void test_prompts(void **state) {
    (void)state;
    const enum api_kind api = API_COMPLETIONS;
    good(api, "{\"prompt\":\"Gr\\u00fc\\u00df\"}");
    prompt_is(&r, "<s>Gr\xc3\xbc\xc3\x9f");
    good(api, "{\"prompt\":[\"one\"]}");
    prompt_is(&r, "<s>one");
    good(api, "{\"prompt\":\"a</s>b\"}"); /* control tokens are recognised */
    prompt_is(&r, "<s>a</s>b");
    good(api, "{\"prompt\":[104,105,257]}");
    prompt_is(&r, "hi</s>");
    good(api, "{\"prompt\":[[104,105]]}");
    prompt_is(&r, "hi");
    good(api, "{\"prompt\":\"\"}");
    prompt_is(&r, "<s>");
    good(api, "{\"prompt\":\"a\\u0000b\"}");
    assert_int_equal(r.engine.n_tokens, 4);

    bad(api, "{}", "prompt", "missing");
    bad(api, "{\"prompt\":null}", "prompt", "missing");
    bad(api, "{\"prompt\":3}", "prompt", "is a number, not a string");
    bad(api, "{\"prompt\":{}}", "prompt", "is an object");
    bad(api, "{\"prompt\":[]}", "prompt", "contains no tokens");
    bad(api, "{\"prompt\":[[]]}", "prompt[0]", "contains no tokens");
    bad(api, "{\"prompt\":[\"a\",\"b\",\"c\"]}", "prompt", "3 prompts, a request takes one");
    bad(api, "{\"prompt\":[[1],[2]]}", "prompt", "2 prompts");
    setup.max_prompts = 3;
    good(api, "{\"prompt\":[\"a\",\"bc\",\"\"],\"n\":2}");
    prompt_is(&r, "<s>a");
    assert_int_equal(r.n_prompts, 3);
    assert_int_equal(api_choices(&r), 6);
    assert_true(r.prompts[1].n_tokens == 3 && r.prompts[2].n_tokens == 1);
    assert_string_equal(r.prompts[2].path, "prompt[2]");
    good(api, "{\"prompt\":[[104,105],[257]]}");
    prompt_is(&r, "hi");
    assert_true(r.n_prompts == 2 && r.prompts[1].tokens[0] == 257 && r.prompts[1].n_tokens == 1);
    bad(api, "{\"prompt\":[\"a\",\"b\",\"c\",\"d\"]}", "prompt", "4 prompts, at most 3 are");
    bad(api, "{\"prompt\":[\"a\",5]}", "prompt[1]", "is a number, not a string");
    bad(api, "{\"prompt\":[\"a\",[5]]}", "prompt[1]", "is an array, not a string");
    bad(api, "{\"prompt\":[[1],[],[2]]}", "prompt[1]", "contains no tokens");
    setup.max_prompts = API_PROMPTS_MAX;
    bad(api,
        "{\"n\":8,\"prompt\":[[1],[2],[3],[4],[5],[6],[7],[8],[9],[1],[2],[3],[4],[5],[6],[7],[8]]"
        "}",
        "n", "8 answers to each of 17 prompts, at most 128");
    defaults();
    bad(api, "{\"prompt\":[1,2.5]}", "prompt[1]", "2.5 is not a whole number");
    bad(api, "{\"prompt\":[1,\"a\"]}", "prompt[1]", "is a string, not a whole number");
    bad(api, "{\"prompt\":[[1,true]]}", "prompt[0][1]", "is a boolean");
    bad(api, "{\"prompt\":[1,258]}", "prompt[1]", "258 is not a token id (0 to 257)");
    bad(api, "{\"prompt\":[-1]}", "prompt[0]", "-1 is not a token id");
    bad(api, "{\"prompt\":[4294967296]}", "prompt[0]", "is not a token id");
    bad(api, "[]", "", "not a JSON object");
    bad(api, "\"x\"", "", "'[' or '{' expected");
}

#define CHAT(messages) "{\"messages\":[" messages "]}"
#define USER           "{\"role\":\"user\",\"content\":\"hi\"}"

static void test_messages(void **state) {
    (void)state;
    const enum api_kind api = API_CHAT;
    good(api, CHAT("{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"developer\",\"content\":"
                   "\"d\"}," USER ",{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"tool\","
                   "\"content\":\"t\",\"tool_call_id\":\"1\"},{\"role\":\"function\",\"name\":"
                   "\"f\",\"content\":\"f\"}"));
    prompt_is(&r, "<s>[system]s[developer]d[user]hi[assistant]a[tool]t[function]f[a]");
    good(api, CHAT("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                   "{\"type\":\"text\",\"text\":\"\"},{\"type\":\"text\",\"text\":\" b\"}]}"));
    prompt_is(&r, "<s>[user]a b[a]");
    good(api, CHAT("{\"role\":\"user\",\"content\":[]}"));
    prompt_is(&r, "<s>[user][a]");
    good(api, CHAT("{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":"
                   "\"no\"}]}"));
    prompt_is(&r, "<s>[assistant]no[a]");
    good(api, CHAT("{\"role\":\"assistant\"}"));
    prompt_is(&r, "<s>[assistant][a]");
    /* arguments are JSON in a string, but templates get the values; a missing text is null */
    good(api, CHAT("{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\""
                   ":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":7}\"}},"
                   "{\"function\":{\"name\":\"g\",\"arguments\":{\"x\":8}}},"
                   "{\"function\":{\"name\":\"h\",\"arguments\":\"\"}}]}"));
    prompt_is(&r, "<s>[assistant]None(f 7)(g 8)(h )[a]");

    bad(api, "{}", "messages", "missing");
    bad(api, "{\"messages\":\"hi\"}", "messages", "is a string, not an array");
    bad(api, "{\"messages\":[]}", "messages", "is empty");
    bad(api, CHAT("3"), "messages[0]", "is a number, not an object");
    bad(api, CHAT(USER ",null"), "messages[1]", "is null, not an object");
    bad(api, CHAT(USER ",{\"content\":\"x\"}"), "messages[1].role", "missing");
    bad(api, CHAT("{\"role\":1,\"content\":\"x\"}"), "messages[0].role", "is a number");
    bad(api, CHAT("{\"role\":\"usr\\n\",\"content\":\"x\"}"), "messages[0].role",
        "\"usr?\" is not system");
    bad(api, CHAT("{\"role\":\"user\\u0000x\",\"content\":\"x\"}"), "messages[0].role",
        "contains a NUL character");
    bad(api, CHAT("{\"role\":\"user\",\"content\":[{\"type\":\"text\\u0000\",\"text\":\"\"}]}"),
        "messages[0].content[0].type", "contains a NUL character");
    bad(api, CHAT(USER "," USER ",{\"role\":\"user\"}"), "messages[2].content", "missing");
    bad(api, CHAT("{\"role\":\"tool\",\"content\":null}"), "messages[0].content", "missing");
    bad(api, CHAT("{\"role\":\"user\",\"content\":{}}"), "messages[0].content",
        "is an object, not a string or an array of parts");
    bad(api, CHAT("{\"role\":\"user\",\"content\":[\"x\"]}"), "messages[0].content[0]",
        "is a string, not an object");
    bad(api, CHAT("{\"role\":\"user\",\"content\":[{}]}"), "messages[0].content[0].type",
        "missing");
    bad(api,
        CHAT("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\"},{\"type\":"
             "\"image_url\",\"image_url\":{}}]}"),
        "messages[0].content[1].type", "\"image_url\" is not supported");
    bad(api, CHAT("{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}"),
        "messages[0].content[0].text", "missing");
    bad(api, CHAT("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":5}]}"),
        "messages[0].content[0].text", "is a number, not a string");
}

#define CALLS(calls) CHAT("{\"role\":\"assistant\",\"tool_calls\":" calls "}")

static void test_tools(void **state) {
    (void)state;
    const enum api_kind api = API_CHAT;
    good(api, with(api, "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"));
    prompt_is(&r, "<s>[user]hiT1[a]");
    assert_true(r.answer.tools && !r.answer.single);
    assert_int_equal(json_array_size(r.answer.schema), 1); /* kept after the body is freed */
    good(api, with(api, "\"tools\":[" TOOL("f") "," TOOL("g-1_.x") "],\"tool_choice\":\"auto\","
                                                                   "\"parallel_tool_calls\":true"));
    prompt_is(&r, "<s>[user]hiT2[a]");
    good(api, with(api, "\"tools\":[" TOOL("f") "],\"parallel_tool_calls\":false"));
    assert_true(r.answer.tools && r.answer.single);
    good(api, with(api, "\"tools\":[" TOOL("f") "],\"tool_choice\":\"none\""));
    prompt_is(&r, "<s>[user]hi[a]");
    assert_false(r.answer.tools);
    good(api, with(api, "\"parallel_tool_calls\":false"));
    good(api, with(api, "\"tools\":[]"));
    prompt_is(&r, "<s>[user]hi[a]");
    bad(api, with(api, "\"tools\":{}"), "tools", "is an object, not an array");
    bad(api, with(api, "\"tools\":[" TOOL("f") ",1]"), "tools[1]", "is a number");
    bad(api, with(api, "\"tools\":[{}]"), "tools[0].function", "missing");
    bad(api, with(api, "\"tools\":[{\"type\":\"web_search\"}]"), "tools[0].type",
        "\"web_search\" is not supported");
    bad(api, with(api, "\"tools\":[{\"type\":1}]"), "tools[0].type", "is a number");
    bad(api, with(api, "\"tools\":[{\"function\":[]}]"), "tools[0].function", "is an array");
    bad(api, with(api, "\"tools\":[{\"function\":{}}]"), "tools[0].function.name", "missing");
    bad(api, with(api, "\"tools\":[" TOOL("") "]"), "tools[0].function.name", "has 0 characters");
    bad(api, with(api, "\"tools\":[" TOOL("a b") "]"), "tools[0].function.name",
        "may only contain");
    bad(api, with(api, "\"tools\":[{\"type\":\"function\\u0000\",\"function\":{\"name\":\"f\"}}]"),
        "tools[0].type", "contains a NUL character");
    bad(api, with(api, "\"tool_choice\":\"none\\u0000\""), "tool_choice", "contains a NUL");
    bad(api, with(api, "\"control_tokens\":\"all\\u0000\""), "control_tokens", "contains a NUL");
    bad(api, with(api, "\"tools\":[" TOOL("a\\u0000") "]"), "tools[0].function.name",
        "may only contain");
    bad(api,
        with(api, "\"tools\":[" TOOL(
                      "a2345678901234567890123456789012345678901234567890123456789012345") "]"),
        "tools[0].function.name", "has 65 characters");
    bad(api, with(api, "\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":\"x\"}}]"),
        "tools[0].function.parameters", "is a string, not an object");
    bad(api, with(api, "\"tools\":[{\"function\":{\"name\":\"f\",\"description\":1}}]"),
        "tools[0].function.description", "is a number");
    bad(api, with(api, "\"parallel_tool_calls\":1"), "parallel_tool_calls", "is a number");
    char many[4096] = "\"tools\":[1";
    for (int i = 0; i < 128; i++)
        strcat(many, ",1");
    strcat(many, "]");
    bad(api, with(api, many), "tools", "129 tools, at most 128");
    bad(api, with(api, "\"tools\":[{\"function\":{\"name\":\"f\",\"strict\":1}}]"),
        "tools[0].function.strict", "is a number");

    bad(api, CALLS("3"), "messages[0].tool_calls", "is a number, not an array");
    bad(api, CALLS("[3]"), "messages[0].tool_calls[0]", "not an object");
    bad(api, CALLS("[{}]"), "messages[0].tool_calls[0].function", "missing");
    bad(api, CALLS("[{\"function\":{}}]"), "messages[0].tool_calls[0].function.name", "missing");
    bad(api, CALLS("[{\"function\":{\"name\":\"f\",\"arguments\":[]}}]"),
        "messages[0].tool_calls[0].function.arguments", "is an array, not a string");
    bad(api, CALLS("[{\"function\":{\"name\":\"f\",\"arguments\":\"{x\"}}]"),
        "messages[0].tool_calls[0].function.arguments", "invalid JSON at byte");
    bad(api, CALLS("[{\"function\":{\"name\":\"f\",\"arguments\":\"[1]\"}}]"),
        "messages[0].tool_calls[0].function.arguments", "is not the text of a JSON object");
}

/* The reasoning in messages and the ids of tool calls reach the template. */
static void test_reasoning_messages(void **state) {
    (void)state;
    const enum api_kind api = API_CHAT;
    static const char SHOWS[] =
        "{% for m in messages %}({{ m.reasoning_content }}|{{ m.thinking }}|{{ m.content }}|"
        "{{ m.tool_call_id }}){% endfor %}";
    struct answer_syntax syntax = {.tools = ANSWER_HERMES};
    kvasir_tokenizer *other;
    kvasir_error why;
    assert_int_equal(kvasir_tokenizer_open(folder.path, &other, &why), KVASIR_OK);
    assert_int_equal(kvasir_tokenizer_set_chat_template(other, "t", SHOWS, sizeof SHOWS - 1, &why),
                     0);
    setup.tokenizer = other;
    setup.syntax = &syntax;
#define ASSISTANT(fields) CHAT("{\"role\":\"assistant\",\"content\":\"c\"," fields "}")
    good(api, ASSISTANT("\"reasoning_content\":\"r\",\"reasoning\":\"s\""));
    prompt_is(&r, "(r||c|)");
    good(api, ASSISTANT("\"reasoning_content\":null,\"reasoning\":\"s\""));
    prompt_is(&r, "(s||c|)");
    good(api, CHAT("{\"role\":\"tool\",\"content\":\"5\",\"tool_call_id\":\"call_1\"}"));
    prompt_is(&r, "(||5|call_1)");
    syntax.tools = ANSWER_HARMONY;
    good(api, ASSISTANT("\"reasoning_content\":\"r\""));
    prompt_is(&r, "(r|r|c|)");
    good(api, ASSISTANT("\"reasoning\":\"r\",\"thinking\":\"t\""));
    prompt_is(&r, "(r|t|c|)");
    /* with calls, harmony's template accepts only one of content and thinking */
    good(api, ASSISTANT("\"reasoning\":\"r\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]"));
    prompt_is(&r, "(r||c|)");
    bad(api, ASSISTANT("\"reasoning_content\":3"), "messages[0].reasoning_content",
        "is a number, not a string");
    bad(api, ASSISTANT("\"reasoning\":[]"), "messages[0].reasoning", "is an array");
    bad(api, CHAT("{\"role\":\"tool\",\"content\":\"5\",\"tool_call_id\":1}"),
        "messages[0].tool_call_id", "is a number");
    kvasir_tokenizer_close(other);
    defaults();
}

/* A call's content is null, and empty for templates that cannot join null to a text. */
static void test_null_contents(void **state) {
    (void)state;
    static const struct {
        const char *template, *prompt;
    } CASES[] = {
        {"{% for m in messages %}({{ 'call' if m.content is none else m.content }}){% endfor %}",
         "(call)(5)"},
        {"{% for m in messages %}{{ '(' + m.content + ')' }}{% endfor %}", "()(5)"},
        {"{% for m in messages %}{{ '(' + m.content + m.absent.member + ')' }}{% endfor %}", NULL},
    };
    static const char CALLED[] =
        CHAT("{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":"
             "\"f\"}}]},{\"role\":\"tool\",\"content\":\"5\"}");
    kvasir_tokenizer *other;
    kvasir_error why;
    assert_int_equal(kvasir_tokenizer_open(folder.path, &other, &why), KVASIR_OK);
    setup.tokenizer = other;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const char *t = CASES[i].template;
        assert_int_equal(kvasir_tokenizer_set_chat_template(other, "t", t, strlen(t), &why), 0);
        if (CASES[i].prompt) {
            good(API_CHAT, CALLED);
            prompt_is(&r, CASES[i].prompt);
        } else {
            bad(API_CHAT, CALLED, "messages", "chat template line 1");
        }
    }
    kvasir_tokenizer_close(other);
    defaults();
}

/* Only the template writes control tokens, unless the server or the request says otherwise. */
static void test_control_tokens(void **state) {
    (void)state;
    const enum api_kind api = API_CHAT;
    static const char EVIL[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"<s>\"}]";
    char plain[200], all[200];
    snprintf(plain, sizeof plain, "%s}", EVIL);
    snprintf(all, sizeof all, "%s,\"control_tokens\":\"all\"}", EVIL);
    good(api, plain);
    size_t n = r.engine.n_tokens;
    prompt_is(&r, "<s>[user]<s>[a]"); /* the same text */
    good(api, all);
    assert_true(r.engine.n_tokens < n);
    setup.all_control = true;
    good(api, plain);
    assert_true(r.engine.n_tokens < n);
    snprintf(all, sizeof all, "%s,\"control_tokens\":\"template\"}", EVIL);
    good(api, all);
    assert_int_equal(r.engine.n_tokens, n);
    setup.all_control = false;
    bad(api, with(api, "\"control_tokens\":\"none\""), "control_tokens", "must be \"template\"");
    bad(api, with(api, "\"control_tokens\":true"), "control_tokens", "must be \"template\"");
    bad(API_COMPLETIONS, with(API_COMPLETIONS, "\"control_tokens\":\"all\""), "control_tokens",
        "only supported for chats");
}

static void test_template_variables(void **state) {
    (void)state;
    const enum api_kind api = API_CHAT;
    good(api, with(api, "\"reasoning_effort\":\"low\""));
    prompt_is(&r, "<s>[user]hilow[a]");
    good(api, with(api, "\"documents\":[{},{}]"));
    prompt_is(&r, "<s>[user]hi2[a]");
    good(api, with(api, "\"chat_template_kwargs\":{\"extra\":\"more\"}"));
    prompt_is(&r, "<s>[user]himore[a]");
    json_t *variables = json_pack("{s:s}", "extra", "flag");
    setup.variables = variables;
    good(api, with(api, ""));
    prompt_is(&r, "<s>[user]hiflag[a]");
    good(api, with(api, "\"chat_template_kwargs\":{\"extra\":\"more\"}")); /* the request's wins */
    prompt_is(&r, "<s>[user]himore[a]");
    json_decref(variables);
    defaults();
    bad(api, with(api, "\"reasoning_effort\":1"), "reasoning_effort", "is a number");
    bad(api, with(api, "\"documents\":{}"), "documents", "is an object");
    bad(api, with(api, "\"chat_template_kwargs\":[]"), "chat_template_kwargs", "is an array");
    bad(api, with(api, "\"chat_template_kwargs\":{\"messages\":[]}"),
        "chat_template_kwargs.messages", "belongs in the body");
    /* an error raised by the template itself */
    kvasir_tokenizer *other;
    kvasir_error why;
    assert_int_equal(kvasir_tokenizer_open(folder.path, &other, &why), KVASIR_OK);
    static const char RAISES[] = "{{ raise_exception('roles\\n must alternate') }}";
    assert_int_equal(
        kvasir_tokenizer_set_chat_template(other, "t", RAISES, sizeof RAISES - 1, &why), 0);
    setup.tokenizer = other;
    bad(api, with(api, ""), "messages", "must alternate");
    kvasir_tokenizer_close(other);
    defaults();
}

/* ---- a prompt that continues a file ---------------------------------------------------------- */

static void test_prompt_cache(void **state) {
    (void)state;
    bad_field("\"prompt_cache\":\"f\"", "prompt_cache", "is not supported by this server");
    setup.prompt_cache = true;
    good(API_COMPLETIONS, with(API_COMPLETIONS, "\"prompt_cache\":\"dir/f\""));
    assert_string_equal(r.prompt_cache, "dir/f");
    prompt_is(&r, "hi"); /* no BOS */
    good(API_CHAT, "{\"prompt_cache\":\"f\",\"messages\":[{\"role\":\"user\",\"content\":"
                   "\" on\"},{\"role\":\"assistant\",\"content\":\"a\"}," USER "]}");
    prompt_is(&r, " on[assistant]a[user]hi[a]");
    bad(API_CHAT,
        "{\"prompt_cache\":\"f\",\"messages\":[{\"role\":\"system\",\"content\":\"x\"}," USER "]}",
        "messages[0].role", "must be \"user\"");
    bad(API_CHAT,
        "{\"prompt_cache\":\"f\",\"messages\":[{\"role\":\"user\",\"content\":\"x "
        "kvasir:the-text-of-the-user\"}]}",
        "prompt_cache", "exactly once");
    bad_field("\"prompt_cache\":3", "prompt_cache", "is a number");
    bad_field("\"prompt_cache\":\"a\\u0000b\"", "prompt_cache", "contains a NUL character");
    defaults();
}

/* ---- fields ---------------------------------------------------------------------------------- */

static void test_defaults(void **state) {
    (void)state;
    const kvasir_sampling wanted = kvasir_sampling_defaults();
    /* null counts as missing, and fields that do not change the answer are ignored */
    both("\"model\":null,\"max_tokens\":null,\"temperature\":null,\"stop\":null,\"seed\":null,"
         "\"logprobs\":null,\"logit_bias\":null,\"n\":null,\"stream\":null,\"tool_choice\":null,"
         "\"user\":\"u\",\"metadata\":{\"a\":1},\"store\":true,\"service_tier\":\"auto\","
         "\"parallel_tool_calls\":false,\"unheard_of\":[1]");
    assert_string_equal(r.model, "ours");
    assert_true(r.engine.max_tokens == 77 && r.engine.shorten);
    assert_int_equal(r.engine.n, 1);
    assert_int_equal(r.engine.top_logprobs, -1);
    assert_null(r.engine.salt);
    assert_null(r.prompt_cache);
    assert_false(r.stream || r.include_usage || r.engine.ignore_end);
    assert_int_equal(r.engine.n_stops + r.engine.n_stop_tokens, 0);
    assert_memory_equal(&r.engine.sampling, &wanted, sizeof wanted);
}

static void test_limits(void **state) {
    (void)state;
    both("\"max_tokens\":5");
    assert_true(r.engine.max_tokens == 5 && !r.engine.shorten);
    both("\"max_completion_tokens\":9");
    assert_false(r.engine.shorten);
    both("\"max_completion_tokens\":9,\"max_tokens\":5"); /* the newer name wins */
    assert_int_equal(r.engine.max_tokens, 9);
    both("\"max_tokens\":4294967295,\"n\":8,\"ignore_eos\":true");
    assert_int_equal(r.engine.max_tokens, UINT32_MAX);
    assert_int_equal(r.engine.n, 8);
    assert_true(r.engine.ignore_end);
    both("\"model\":\"gpt-x\",\"cache_salt\":\"tenant\"");
    assert_string_equal(r.model, "gpt-x");
    assert_string_equal(r.engine.salt, "tenant");
    assert_int_equal(r.engine.priority, 0);
    both("\"priority\":-2147483648");
    assert_int_equal(r.engine.priority, INT32_MIN);
    both("\"priority\":null");
    bad_field("\"priority\":2147483648", "priority", "2147483648 is not between -2147483648 and");
    bad_field("\"priority\":\"low\"", "priority", "is a string, not a whole number");
    bad_field("\"max_tokens\":0", "max_tokens", "0 is not between 1 and 4294967295");
    good(API_COMPLETIONS, with(API_COMPLETIONS, "\"max_tokens\":0,\"echo\":true,\"logprobs\":3"));
    assert_true(r.echoes && r.engine.no_answer && r.engine.prompt_logprobs == 3);
    assert_int_equal(r.n_prompts, 1);
    assert_string_equal(r.prompts[0].text, "hi");
    good(API_COMPLETIONS, with(API_COMPLETIONS, "\"echo\":true"));
    assert_true(r.echoes && !r.engine.no_answer && r.engine.prompt_logprobs == -1);
    bad(API_CHAT, with(API_CHAT, "\"echo\":true"), "echo", "only supported for /v1/completions");
    bad_field("\"echo\":1", "echo", "is a number, not true or false");
    bad_field("\"max_tokens\":-2", "max_tokens", "-2 is not between");
    bad_field("\"max_tokens\":4294967296", "max_tokens", "is not between");
    bad_field("\"max_tokens\":1.5", "max_tokens", "1.5 is not a whole number");
    bad_field("\"max_tokens\":\"5\"", "max_tokens", "is a string, not a whole number");
    bad_field("\"max_completion_tokens\":true", "max_completion_tokens", "is a boolean");
    bad_field("\"n\":0", "n", "0 is not between 1 and 8");
    bad_field("\"n\":9", "n", "9 is not between");
    bad_field("\"ignore_eos\":1", "ignore_eos", "is a number, not true or false");
    bad_field("\"model\":7", "model", "is a number, not a string");
    bad_field("\"cache_salt\":[]", "cache_salt", "is an array");
    bad_field("\"cache_salt\":\"a\\u0000\"", "cache_salt", "NUL");
}

static void test_response_format(void **state) {
    (void)state;
    both("\"response_format\":{\"type\":\"text\"}");
    assert_int_equal(r.constraint.kind, CONSTRAINT_NONE);
    both("\"response_format\":null");
    assert_int_equal(r.constraint.kind, CONSTRAINT_NONE);
    both("\"response_format\":{\"type\":\"json_object\",\"x\":1},\"ignore_eos\":false,\"n\":2,"
         "\"stop\":\"}\",\"stop_token_ids\":[7],\"logit_bias\":{\"125\":-100}");
    assert_string_equal(r.constraint.grammar.data, "{\"type\": \"object\", \"x-canonical\": true}");
    static const char *const fields[][3] = {
        {"{\"type\":\"grammar\"}", "response_format.type",
         "\"grammar\" is not supported, use \"text\", \"json_object\" or \"json_schema\""},
        {"{\"type\":\"JSON_object\"}", "response_format.type", "is not supported"},
        {"{\"type\":\"json_object\\u0000\"}", "response_format.type", "contains a NUL character"},
        {"{\"type\":\"a\\nb\"}", "response_format.type", "is not supported"},
        {"{\"type\":\"\"}", "response_format.type", "is not supported"},
        {"{\"type\":1}", "response_format.type", "is a number, not a string"},
        {"{\"type\":[\"text\"]}", "response_format.type", "is an array, not a string"},
        {"{\"type\":null}", "response_format.type", "missing"},
        {"{}", "response_format.type", "missing"},
        {"\"json_object\"", "response_format", "is a string, not an object"},
        {"[]", "response_format", "is an array, not an object"},
        {"true", "response_format", "is a boolean, not an object"},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char field[160];
        snprintf(field, sizeof field, "\"response_format\":%s", fields[i][0]);
        bad_field(field, fields[i][1], fields[i][2]);
    }
    bad_field("\"ignore_eos\":true,\"response_format\":{\"type\":\"json_object\"}", "ignore_eos",
              "cannot be combined with \"response_format\"");
    both("\"ignore_eos\":true,\"response_format\":{\"type\":\"text\"}");
}

static void test_stream(void **state) {
    (void)state;
    both("\"stream\":false,\"stream_options\":{\"include_usage\":true}");
    assert_true(!r.stream && r.include_usage);
    bad_field("\"stream\":true", "stream", "is not supported here");
    bad_field("\"stream\":\"yes\"", "stream", "is a string");
    bad_field("\"stream_options\":[]", "stream_options", "is an array");
    bad_field("\"stream_options\":{\"include_usage\":1}", "stream_options.include_usage",
              "is a number");
    setup.stream = true;
    both("\"stream\":true");
    assert_true(r.stream);
    defaults();
}

static void test_stops(void **state) {
    (void)state;
    both("\"stop\":\"END\"");
    assert_int_equal(r.engine.n_stops, 1);
    assert_string_equal(r.engine.stops[0], "END");
    both("\"stop\":[\"a\",\"\\u00fc\\n\"],\"stop_token_ids\":[10,257]");
    assert_int_equal(r.engine.n_stops, 2);
    assert_string_equal(r.engine.stops[1], "\xc3\xbc\n");
    assert_int_equal(r.engine.n_stop_tokens, 2);
    assert_int_equal(r.engine.stop_tokens[1], 257);
    both("\"stop\":[]");
    assert_int_equal(r.engine.n_stops, 0);
    bad_field("\"stop\":3", "stop", "is a number, not a string or an array of them");
    bad_field("\"stop\":\"\"", "stop", "must not be empty");
    bad_field("\"stop\":[\"a\",\"\"]", "stop[1]", "must not be empty");
    bad_field("\"stop\":[\"a\",null]", "stop[1]", "is null, not a string");
    bad_field("\"stop\":\"a\\u0000b\"", "stop", "NUL");
    bad_field("\"stop_token_ids\":[258]", "stop_token_ids[0]", "is not a token id");
    bad_field("\"stop_token_ids\":7", "stop_token_ids", "is a number");
    char many[512] = "\"stop\":[\"a\"";
    for (int i = 0; i < 32; i++)
        strcat(many, ",\"a\"");
    strcat(many, "]");
    bad_field(many, "stop", "33 stop texts, at most 32");
}

static void test_logprobs(void **state) {
    (void)state;
    const enum api_kind chat = API_CHAT, text = API_COMPLETIONS;
    good(text, with(text, "\"logprobs\":0"));
    assert_int_equal(r.engine.top_logprobs, 0);
    good(text, with(text, "\"logprobs\":20"));
    assert_int_equal(r.engine.top_logprobs, 20);
    bad(text, with(text, "\"logprobs\":true"), "logprobs", "not a whole number");
    bad(text, with(text, "\"logprobs\":21"), "logprobs", "21 is not between");
    good(chat, with(chat, "\"logprobs\":true"));
    assert_int_equal(r.engine.top_logprobs, 0);
    good(chat, with(chat, "\"logprobs\":true,\"top_logprobs\":3"));
    assert_int_equal(r.engine.top_logprobs, 3);
    good(chat, with(chat, "\"logprobs\":false,\"top_logprobs\":0"));
    assert_int_equal(r.engine.top_logprobs, -1);
    bad(chat, with(chat, "\"logprobs\":1"), "logprobs", "not true or false");
    bad(chat, with(chat, "\"top_logprobs\":2"), "top_logprobs", "needs \"logprobs\": true");
    bad(chat, with(chat, "\"logprobs\":true,\"top_logprobs\":21"), "top_logprobs",
        "is not between");
}

/* ---- sampling -------------------------------------------------------------------------------- */

static void test_sampling(void **state) {
    (void)state;
    const kvasir_sampling *s = &r.engine.sampling;
    both("\"temperature\":0.5,\"top_p\":0.25,\"top_k\":40,\"min_p\":0.125,"
         "\"repetition_penalty\":1.5,\"repetition_context_size\":64,\"seed\":123,"
         "\"presence_penalty\":-2,\"frequency_penalty\":2,\"presence_context_size\":5,"
         "\"frequency_context_size\":6");
    assert_true(s->temp == 0.5f && s->top_p == 0.25f && s->top_k == 40 && s->min_p == 0.125f);
    assert_true(s->repetition_penalty == 1.5f && s->repetition_context == 64 && s->seed == 123);
    assert_true(s->presence_penalty == -2 && s->frequency_penalty == 2);
    assert_true(s->presence_context == 5 && s->frequency_context == 6);
    both("\"temperature\":1,\"top_p\":1,\"top_k\":-1,\"seed\":-1");
    assert_true(s->temp == 1 && s->top_p == 1 && s->top_k == 0 && s->seed == UINT64_MAX);
    both("\"top_k\":0,\"seed\":9223372036854775807");
    assert_true(s->top_k == 0 && s->seed == INT64_MAX);
    setup.sampling.temp = 0.75f;
    setup.sampling.seed = 9;
    both("\"top_k\":258"); /* what a request omits comes from the setup */
    assert_true(s->temp == 0.75f && s->seed == 9 && s->top_k == 258);
    defaults();

    static const char *const out_of_range[][2] = {
        {"temperature", "-0.1"},
        {"top_p", "1.01"},
        {"top_p", "-1"},
        {"min_p", "-0.5"},
        {"min_p", "2"},
        {"repetition_penalty", "-1"},
        {"presence_penalty", "2.5"},
        {"frequency_penalty", "-3"},
        {"xtc_probability", "1.5"},
        {"xtc_threshold", "0.6"},
        {"top_k", "-2"},
        {"top_k", "259"},
        {"repetition_context_size", "0"},
        {"frequency_context_size", "0"},
    };
    for (size_t i = 0; i < sizeof out_of_range / sizeof *out_of_range; i++) {
        char field[80];
        snprintf(field, sizeof field, "\"%s\":%s", out_of_range[i][0], out_of_range[i][1]);
        bad_field(field, out_of_range[i][0], "is not ");
        snprintf(field, sizeof field, "\"%s\":\"1\"", out_of_range[i][0]);
        bad_field(field, out_of_range[i][0], "is a string, not a ");
    }
    bad_field("\"top_p\":0", "top_p", "must be above 0; 1 turns it off");
    bad_field("\"seed\":1.5", "seed", "1.5 is not a whole number");
}

static void test_bias_and_xtc(void **state) {
    (void)state;
    const kvasir_sampling *s = &r.engine.sampling;
    both("\"logit_bias\":{\"104\":-100,\"257\":2.5}");
    assert_int_equal(s->n_logit_bias, 2);
    assert_true(s->logit_bias[0].token == 104 && s->logit_bias[0].bias == -100);
    assert_true(s->logit_bias[1].token == 257 && s->logit_bias[1].bias == 2.5f);
    both("\"logit_bias\":{}");
    assert_int_equal(s->n_logit_bias, 0);
    bad_field("\"logit_bias\":[]", "logit_bias", "is an array, not an object");
    bad_field("\"logit_bias\":{\"258\":1}", "logit_bias[\"258\"]", "is not a token id");
    bad_field("\"logit_bias\":{\"-1\":1}", "logit_bias[\"-1\"]", "is not a token id");
    bad_field("\"logit_bias\":{\"\":1}", "logit_bias[\"\"]", "is not a token id");
    bad_field("\"logit_bias\":{\"12x\":1}", "logit_bias[\"12x\"]", "is not a token id");
    bad_field("\"logit_bias\":{\"99999999999999999999\":1}", "logit_bias[\"99999999999999999999\"]",
              "is not a token id");
    bad_field("\"logit_bias\":{\"1\":null}", "logit_bias[\"1\"]", "is null, not a number");
    bad_field("\"logit_bias\":{\"1\":100.5}", "logit_bias[\"1\"]", "100.5 is not between");

    both("\"xtc_probability\":0.5,\"xtc_threshold\":0.25");
    assert_true(s->xtc_probability == 0.5f && s->xtc_threshold == 0.25f);
    bool line_end = false, end = false; /* tokens that end a line, an answer */
    for (size_t i = 0; i < s->n_xtc_special; i++) {
        line_end |= s->xtc_special[i] == '\n';
        end |= s->xtc_special[i] == BYTE_EOS;
    }
    assert_true(line_end && end);
    both("\"xtc_probability\":0");
    assert_int_equal(s->n_xtc_special, 0);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void test_refused(void **state) {
    (void)state;
    static const char *const fields[][3] = {
        /* name, a value that is refused, one that requests nothing */
        {"best_of", "2", "1"},
        {"modalities", "[\"text\",\"audio\"]", "[\"text\"]"},
        {"audio", "{\"voice\":\"alloy\"}", "null"},
        {"functions", "[{\"name\":\"f\"}]", "[]"},
        {"function_call", "\"auto\"", "\"none\""},
        {"web_search_options", "{}", "null"},
        {"adapters", "\"path\"", "null"},
        {"role_mapping", "{}", "null"},
        {"chat_template", "\"x\"", "null"},
        {"add_special_tokens", "false", "null"},
        {"skip_special_tokens", "false", "true"},
        {"include_stop_str_in_output", "true", "false"},
        {"truncate_prompt_tokens", "5", "null"},
        {"prompt_embeds", "\"x\"", "null"},
        {"min_tokens", "4", "0"},
        {"use_beam_search", "true", "false"},
        {"bad_words", "[\"x\"]", "[]"},
        {"allowed_token_ids", "[1]", "null"},
        {"logits_processors", "[]", "null"},
        {"structural_tag", "{}", "null"},
        {"guided_whitespace_pattern", "\" \"", "null"},
        {"guided_decoding_disable_any_whitespace", "true", "false"},
        {"grammar_lazy", "true", "false"},
        {"grammar_triggers", "[{}]", "[]"},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char field[128];
        snprintf(field, sizeof field, "\"%s\":%s", fields[i][0], fields[i][1]);
        bad_field(field, fields[i][0], "is not supported");
        snprintf(field, sizeof field, "\"%s\":%s", fields[i][0], fields[i][2]);
        both(field);
    }
}

static void test_errors(void **state) {
    (void)state;
    static const struct {
        kvasir_status code;
        int status;
    } codes[] = {
        {KVASIR_ERR_ARGUMENT, 400},    {KVASIR_ERR_MEMORY, 500},   {KVASIR_ERR_IO, 500},
        {KVASIR_ERR_FORMAT, 400},      {KVASIR_ERR_BUDGET, 400},   {KVASIR_ERR_CONTEXT, 400},
        {KVASIR_ERR_UNSUPPORTED, 400}, {KVASIR_ERR_BUSY, 429},     {KVASIR_ERR_TEXT, 400},
        {KVASIR_ERR_TEMPLATE, 400},    {KVASIR_ERR_CANCELLED, 499}};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        kvasir_error why = {
            .code = codes[i].code, .offset = -1, .text = "two\nlines and half a character \xc3"};
        api_error_of(&err, &why);
        assert_int_equal(err.status, codes[i].status);
        assert_string_equal(err.text, "two?lines and half a character ");
        json_t *object = openai_error_object(&err);
        assert_string_equal(json_string_value(json_object_get(object, "type")),
                            codes[i].status == 500   ? "server_error"
                            : codes[i].status == 429 ? "rate_limit_error"
                                                     : "invalid_request_error");
        assert_true(json_is_null(json_object_get(object, "param")));
        json_decref(object);
    }
    /* an option's name becomes the member that sets it; a server's option is not named */
    static const struct {
        const char *field, *param, *text;
    } fields[] = {{"request.n", "n", "n: bad"},
                  {"request.stops", "stop", "stop: bad"},
                  {"sampling.top_p", "top_p", "top_p: bad"},
                  {"sampling.temp", "temperature", "temperature: bad"},
                  {"context.ctx", "", "bad"},
                  {"engine.max_running", "", "bad"}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const kvasir_error why = {
            .code = KVASIR_ERR_ARGUMENT, .offset = -1, .field = fields[i].field, .text = "bad"};
        api_error_of(&err, &why);
        assert_string_equal(err.param, fields[i].param);
        assert_string_equal(err.text, fields[i].text);
    }
    /* long and odd names in a path: still valid UTF-8, cut somewhere */
    char field[600] = "\"logit_bias\":{\"";
    for (int i = 0; i < 120; i++)
        strcat(field, "\xf0\x9f\x98\x80");
    strcat(field, "\":1}");
    assert_false(read_text_body(API_CHAT, with(API_CHAT, field)));
    assert_int_equal(kvasir_utf8_check(err.text, strlen(err.text)), strlen(err.text));
    assert_int_equal(kvasir_utf8_check(err.param, strlen(err.param)), strlen(err.param));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_reasoning_messages),
        cmocka_unit_test(test_null_contents),
        cmocka_unit_test(test_control_tokens),
        cmocka_unit_test(test_template_variables),
        cmocka_unit_test(test_prompt_cache),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_response_format),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_sampling),
        cmocka_unit_test(test_bias_and_xtc),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
