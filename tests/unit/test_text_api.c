/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of /tokenize, /detokenize and /apply-template: vLLM's fields and llama.cpp's, every one
 * that is refused, and texts through real tokenizers and back. */
#include "api/text_endpoints.h"
#include "api_checks.h"

static const char TEMPLATE[] = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
                               "{% if tools %}T{{ tools | length }}{% endif %}{{ extra }}"
                               "{% if add_generation_prompt %}[a]{% endif %}";

typedef bool function(struct api_body *body, struct text_buf *out);
static bool tokenize(struct api_body *body, struct text_buf *out) {
    return text_endpoint_tokenize(&setup, 4096, body, out, &err);
}
static bool detokenize(struct api_body *body, struct text_buf *out) {
    return text_endpoint_detokenize(&setup, body, out, &err);
}
static bool apply(struct api_body *body, struct text_buf *out) {
    return text_endpoint_apply_template(&setup, body, out, &err);
}

/* The answer as jansson reads it; NULL with err. */
static json_t *answer_of(function *f, const char *text) {
    struct api_body body;
    struct text_buf out = {0};
    json_t *made = NULL;
    if (!api_body_read(text, strlen(text), setup.vocab, text_endpoint_wants, &body, &err))
        return NULL;
    if (f(&body, &out)) {
        assert_true(text_append(&out, "", 1));
        made = json_of(out.data);
        /* it is written as jansson writes it */
        char *same = json_dumps(made, JSON_COMPACT);
        assert_string_equal(out.data, same);
        free(same);
    }
    text_free(&out);
    api_body_free(&body);
    return made;
}

static void is(function *f, const char *body, const char *wanted) {
    same_json(answer_of(f, body), wanted);
}

static void bad(function *f, const char *body, const char *param, const char *why) {
    if (answer_of(f, body))
        fail_msg("taken: %s", body);
    check_refused(body, param, why);
}

#define USER                "{\"role\":\"user\",\"content\":\"h\"}"
#define TOKENS(ids, number) "{\"tokens\":[" ids "],\"count\":" number ",\"max_model_len\":4096,"
#define NO_STRINGS          "\"token_strs\":null}"

static void test_tokenize(void **state) {
    (void)state;
    is(tokenize, "{\"prompt\":\"hi\"}", TOKENS("256,104,105", "3") NO_STRINGS);
    is(tokenize, "{\"prompt\":\"hi</s>\",\"add_special_tokens\":false,\"model\":\"m\"}",
       TOKENS("104,105,257", "3") NO_STRINGS);
    is(tokenize, "{\"prompt\":\"\",\"add_special_tokens\":false}", TOKENS("", "0") NO_STRINGS);
    is(tokenize, "{\"prompt\":\"a\\u0000\",\"add_special_tokens\":false}",
       TOKENS("97,0", "2") NO_STRINGS);
    /* token strings as the vocabulary writes them */
    is(tokenize, "{\"prompt\":\"a \\u00fc\",\"return_token_strs\":true}",
       TOKENS("256,97,32,195,188", "5") "\"token_strs\":[\"<s>\",\"a\",\"\\u0120\",\"\\u00c3\","
                                        "\"\\u00bc\"]}");
    /* llama.cpp's fields */
    is(tokenize, "{\"content\":\"hi\"}", TOKENS("104,105", "2") NO_STRINGS);
    is(tokenize, "{\"content\":\"</s>\",\"add_special\":true,\"parse_special\":false}",
       TOKENS("256,60,47,115,62", "5") NO_STRINGS);
    /* chats, whose templates write their own BOS */
    is(tokenize, "{\"messages\":[" USER "],\"add_generation_prompt\":false}",
       TOKENS("91,117,115,101,114,93,104", "7") NO_STRINGS);
    is(tokenize, "{\"messages\":[" USER "],\"add_special_tokens\":true,\"prompt\":3}",
       TOKENS("256,91,117,115,101,114,93,104,91,97,93", "11") NO_STRINGS);

    bad(tokenize, "[]", "", "not a JSON object");
    bad(tokenize, "{}", "prompt", "missing");
    bad(tokenize, "{\"prompt\":[\"a\"]}", "prompt", "is an array, not a string");
    bad(tokenize, "{\"content\":3}", "content", "is a number, not a string");
    bad(tokenize, "{\"prompt\":\"a\",\"add_special_tokens\":1}", "add_special_tokens", "a number");
    bad(tokenize, "{\"prompt\":\"a\",\"return_token_strs\":1}", "return_token_strs", "a number");
    bad(tokenize, "{\"content\":\"a\",\"parse_special\":1}", "parse_special", "a number");
    bad(tokenize, "{\"messages\":[]}", "messages", "is empty");
    bad(tokenize, "{\"messages\":[3]}", "messages[0]", "is a number");
    bad(tokenize, "{\"messages\":[" USER "],\"chat_template\":\"x\"}", "chat_template",
        "is not supported");
}

static void test_detokenize(void **state) {
    (void)state;
    is(detokenize, "{\"tokens\":[256,104,105]}", "{\"prompt\":\"<s>hi\",\"content\":\"<s>hi\"}");
    is(detokenize, "{\"tokens\":[],\"model\":\"m\"}", "{\"prompt\":\"\",\"content\":\"\"}");
    is(detokenize, "{\"tokens\":[0,195]}",
       "{\"prompt\":\"\\u0000\\ufffd\",\"content\":\"\\u0000\\ufffd\"}");
    bad(detokenize, "[3]", "", "not a JSON object");
    bad(detokenize, "{}", "tokens", "missing");
    bad(detokenize, "{\"tokens\":\"a\"}", "tokens", "is a string");
    bad(detokenize, "{\"tokens\":[1,258]}", "tokens[1]", "258 is not a token id");
    bad(detokenize, "{\"tokens\":[-1]}", "tokens[0]", "-1 is not a token id");
    bad(detokenize, "{\"tokens\":[1.0]}", "tokens[0]", "is not a whole number");
}

static void test_apply_template(void **state) {
    (void)state;
    is(apply, "{\"messages\":[" USER "]}", "{\"prompt\":\"[user]h[a]\"}");
    is(apply,
       "{\"messages\":[" USER "],\"tools\":[{\"function\":{\"name\":\"f\"}}],\"chat_template_"
       "kwargs\":{\"extra\":\"\\u00fc\"},"
       "\"temperature\":\"not looked at\",\"add_generation_prompt\":false}",
       "{\"prompt\":\"[user]hT1\\u00fc\"}");
    is(apply,
       "{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":\"so\"}],"
       "\"continue_final_message\":true}",
       "{\"prompt\":\"[user]h[assistant]so\"}");
    bad(apply, "null", "", "'[' or '{' expected");
    bad(apply, "{}", "messages", "missing");
    bad(apply, "{\"messages\":[{\"role\":\"x\"}]}", "messages[0].role", "is not system");
    bad(apply, "{\"messages\":[" USER "],\"continue_final_message\":true}", "messages[0].role",
        "must be \"assistant\" to be continued");
    bad(apply, "{\"messages\":[" USER "],\"continue_final_message\":2}", "continue_final_message",
        "is a number");
    bad(apply, "{\"messages\":[" USER "],\"chat_template\":\"\"}", "chat_template",
        "is not supported");
}

/* The goldens of a tokenizer through both functions. */
static void check_goldens(const char *name) {
    char path[512];
    kvasir_tokenizer_info info;
    kvasir_error why;
    size_t lines = 0;
    snprintf(path, sizeof path, "%s/tokenizers/%s", SHARED_DIR, name);
    kvasir_tokenizer *real;
    if (kvasir_tokenizer_open(path, &real, &why))
        fail_msg("%s", why.text);
    kvasir_tokenizer_get_info(real, &info);
    setup.tokenizer = real;
    setup.vocab = info.size;
    strcat(path, "/golden_encode.jsonl");
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    for (json_t *golden; (golden = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL)); lines++) {
        json_t *body = json_pack("{s:O, s:b, s:b}", "prompt", json_object_get(golden, "text"),
                                 "add_special_tokens", 0, "return_token_strs", 1),
               *made;
        char *request = json_dumps(body, 0);
        made = answer_of(tokenize, request);
        free(request);
        assert_non_null(made);
        const json_t *ids = json_object_get(made, "tokens");
        assert_int_equal(json_array_size(json_object_get(made, "token_strs")),
                         json_array_size(ids));
        request = json_dumps(made, 0);
        json_t *text = answer_of(detokenize, request);
        free(request);
        if (!text)
            fail_msg("%s: %s", name, err.text);
        json_decref(text);
        if (!json_equal(ids, json_object_get(golden, "ids")))
            fail_msg("%s: line %zu", name, lines + 1);
        json_decref(made);
        json_decref(body);
        json_decref(golden);
    }
    fclose(f);
    assert_true(lines > 10);
    kvasir_tokenizer_close(real);
    setup.tokenizer = tokenizer;
    setup.vocab = BYTE_VOCAB;
}

static void test_real_tokenizers(void **state) {
    (void)state;
    if (access(SHARED_DIR "/tokenizers/qwen3/golden_encode.jsonl", R_OK) != 0)
        skip();
    check_goldens("qwen3");
    check_goldens("llama3_1");
    check_goldens("gemma3");
}

static int set_up(void **state) {
    (void)state;
    return api_set_up(TEMPLATE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenize),
        cmocka_unit_test(test_detokenize),
        cmocka_unit_test(test_apply_template),
        cmocka_unit_test(test_real_tokenizers),
    };
    return cmocka_run_group_tests(tests, set_up, api_tear_down);
}
