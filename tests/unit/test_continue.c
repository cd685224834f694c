/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that continue the last message (continue_final_message): small templates that trim,
 * change, repeat or lose texts, and every template of ../shared/chat-templates, where the prompt
 * must be the beginning of what the template writes for the whole chat. */
#include "api_checks.h"

static const char TEMPLATE[] =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[a]{% endif %}";

static struct api_request r;

static bool read_text_body(enum api_kind api, const char *text) {
    struct api_body body = {0};
    bool good =
        api_body_read(text, strlen(text), setup.vocab,
                      api == API_CHAT ? openai_wants_chat : openai_wants_completion, &body, &err) &&
        openai_read(&setup, api, &body, &r, &err);
    api_body_free(&body);
    return good;
}

static void good(const char *text, const char *wanted) {
    if (!read_text_body(API_CHAT, text))
        fail_msg("%s: %s", text, err.text);
    prompt_is(&r, wanted);
    api_request_free(&r);
}

static void bad(enum api_kind api, const char *text, const char *param, const char *why) {
    if (read_text_body(api, text))
        fail_msg("taken: %s", text);
    check_refused(text, param, why);
}

#define USER "{\"role\":\"user\",\"content\":\"hi\"}"
#define GO_ON(fields, text)                                                                        \
    "{\"continue_final_message\":true," fields "\"messages\":[" USER                               \
    ",{\"role\":\"assistant\"," text "}]}"
#define CHAT(fields) "{\"messages\":[" USER "]," fields "}"

static void test_continue(void **state) {
    (void)state;
    const enum api_kind api = API_CHAT;
    /* only on request: by default a new message begins, as with mlx_lm.server and vLLM */
    good("{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":\"a\"}]}",
         "<s>[user]hi[assistant]a[a]");
    good(GO_ON("", "\"content\":\" so \""), "<s>[user]hi[assistant] so ");
    good(GO_ON("\"add_generation_prompt\":false,", "\"content\":\"\""), "<s>[user]hi[assistant]");
    good(GO_ON("", "\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
                   "\"text\":\"b\"}]"),
         "<s>[user]hi[assistant]ab");
    good(GO_ON("", "\"tool_calls\":[]"), "<s>[user]hi[assistant]");
    good(CHAT("\"continue_final_message\":false,\"add_generation_prompt\":true"), "<s>[user]hi[a]");
    assert_true(read_text_body(api, GO_ON("", "\"content\":\"a\\u0000b\"")));
    assert_true(r.continues);
    assert_int_equal(r.engine.tokens[r.engine.n_tokens - 2], 0);
    api_request_free(&r);
    assert_true(read_text_body(api, CHAT("\"n\":1")));
    assert_false(r.continues);
    api_request_free(&r);
    setup.prompt_cache = true; /* continues a file's chat, and then its last message */
    good(GO_ON("\"prompt_cache\":\"f\",", "\"content\":\"so\""), "hi[assistant]so");
    setup.prompt_cache = false;

    bad(api, "{\"continue_final_message\":true,\"messages\":[" USER "]}", "messages[0].role",
        "must be \"assistant\" to be continued");
    bad(api, GO_ON("", "\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]"),
        "messages[1].tool_calls", "ends with tool calls cannot be continued");
    bad(api, GO_ON("\"add_generation_prompt\":true,", "\"content\":\"a\""), "add_generation_prompt",
        "cannot be true together with \"continue_final_message\"");
    bad(api, CHAT("\"continue_final_message\":1"), "continue_final_message", "is a number");
    bad(api, CHAT("\"add_generation_prompt\":\"\""), "add_generation_prompt", "is a string");
    bad(api, CHAT("\"add_generation_prompt\":false"), "add_generation_prompt", "false needs");
    bad(API_COMPLETIONS, "{\"prompt\":\"x\",\"continue_final_message\":true}",
        "continue_final_message", "only supported for chats");
    bad(API_COMPLETIONS, "{\"prompt\":\"x\",\"add_generation_prompt\":false}",
        "add_generation_prompt", "false needs");
}

/* The last message is `text`. wanted NULL: the template does not write it unchanged. */
static void goes_on(const char *template, const char *text, const char *wanted) {
    char body[512];
    set_template(template, strlen(template));
    snprintf(body, sizeof body, GO_ON("", "\"content\":\"%s\""), text);
    if (wanted)
        good(body, wanted);
    else
        bad(API_CHAT, body, "messages[1].content", "does not write the last message's text");
    set_template(TEMPLATE, strlen(TEMPLATE));
}

static void test_templates_that_change_texts(void **state) {
    (void)state;
    /* templates that trim: the text's own blanks may be missing, but nothing is added */
    goes_on("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}", "  so \\n", "[hi][so");
    goes_on("{% for m in messages %}[ {{ m.content | trim }}]{% endfor %}", " ", "[ hi][ ");
    goes_on("{% for m in messages %}[{{ m.content.lstrip() }}]{% endfor %}", "\\nso ", "[hi][so ");
    goes_on("{{ messages[1].content | trim }}", "so", "so");
    /* templates that change the text, write it twice, or not at all */
    goes_on("{% for m in messages %}[{{ m.content | upper }}]{% endfor %}", "so", NULL);
    goes_on("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "so", NULL);
    goes_on("{% for m in messages %}{{ m.role }}{% endfor %}", "so", NULL);
    goes_on("{% for m in messages %}{{ m.content.split('x')[-1] }}{% endfor %}", "axb", NULL);
    goes_on("{{ messages[1].content }}", "kvasir:the-end-of-the-text", NULL);
}

static const char *const REAL[] = {
    "GigaChat3.1-10B-A1.8B",
    "HuggingFaceTB-SmolLM3-3B",
    "Kimi-K2-Instruct",
    "LFM2.5-Instruct",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "Qwen3-Coder",
    "Qwen3.5-4B",
    "StepFun3.5-Flash",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "google-gemma-2-2b-it",
    "google-gemma-4-31B-it-interleaved",
    "google-gemma-4-31B-it",
    "ibm-granite-granite-4.0",
    "llama-cpp-rwkv-world",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "microsoft-Phi-3.5-mini-instruct",
    "mistralai-Ministral-3-14B-Reasoning-2512",
    "openai-gpt-oss-120b",
    "unsloth-Apriel-1.5",
    "unsloth-mistral-Devstral-Small-2507",
    "upstage-Solar-Open-100B",
};

/* What the template writes for the whole chat, uncut: the oracle. */
static char *whole_chat(const char *messages) {
    char request[1024], *text;
    size_t len;
    kvasir_error why;
    snprintf(request, sizeof request, "{\"messages\":%s,\"add_generation_prompt\":false}",
             messages);
    if (kvasir_chat_render(tokenizer, request, strlen(request), &text, &len, &why))
        fail_msg("%s", why.text);
    return text;
}

static void check_real(const char *name, const char *last) {
    static const char MESSAGES[] =
        "[" USER ",{\"role\":\"assistant\",\"content\":\"yes\"},{\"role\":\"user\",\"content\":"
        "\"more\"},{\"role\":\"assistant\",\"content\":\"%s\"}]";
    char messages[512], body[1024];
    snprintf(messages, sizeof messages, MESSAGES, last);
    snprintf(body, sizeof body, "{\"continue_final_message\":true,\"messages\":%s}", messages);
    if (!read_text_body(API_CHAT, body))
        fail_msg("%s: %s", name, err.text);
    char *whole = whole_chat(messages), *text;
    size_t len, n = strlen(last);
    kvasir_error why;
    if (kvasir_detokenize(tokenizer, r.engine.tokens, r.engine.n_tokens, 0, &text, &len, &why))
        fail_msg("%s", why.text);
    if (len > strlen(whole) || memcmp(whole, text, len) != 0)
        fail_msg("%s: \"%s\" does not begin\n\"%s\"", name, text, whole);
    if (len < n || strcmp(text + len - n, last) != 0)
        fail_msg("%s: \"%s\" does not end with \"%s\"", name, text, last);
    kvasir_free(text);
    kvasir_free(whole);
    api_request_free(&r);
}

static void test_real_templates(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof REAL / sizeof *REAL; i++) {
        if (!set_real_template(REAL[i]))
            skip();
        check_real(REAL[i], "Sure, the");
        check_real(REAL[i], "x");
    }
    set_template(TEMPLATE, strlen(TEMPLATE));
}

static int set_up(void **state) {
    (void)state;
    return api_set_up(TEMPLATE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_continue),
        cmocka_unit_test(test_templates_that_change_texts),
        cmocka_unit_test(test_real_templates),
    };
    return cmocka_run_group_tests(tests, set_up, api_tear_down);
}
