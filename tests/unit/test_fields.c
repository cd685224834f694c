/* SPDX-License-Identifier: Apache-2.0 */
/* Fields that other servers read: other names, what is refused, what is ignored, what is unknown;
 * and the distance of words. */
#include "api/anthropic.h"
#include "api/responses.h"
#include "openai_checks.h"
#include "util/near.h"

static const char *warning(size_t i) {
    const char *text = json_string_value(json_array_get(r.warnings, i));
    return text ? text : "";
}

static void test_aliases(void **state) {
    (void)state;
    defaults();
    both("\"n_predict\":7");
    assert_true(r.engine.max_tokens == 7 && !r.engine.shorten && !r.warnings);
    both("\"num_predict\":7,\"max_tokens\":7");
    both("\"n_predict\":-1");
    assert_int_equal(r.engine.max_tokens, 0);
    both("\"max_tokens\":-1");
    both("\"repeat_penalty\":1.5,\"repeat_last_n\":9");
    assert_true(r.engine.sampling.repetition_penalty == 1.5F &&
                r.engine.sampling.repetition_context == 9);
    both("\"repeat_penalty\":null,\"repetition_penalty\":2");
    assert_true(r.engine.sampling.repetition_penalty == 2);
    bad_field("\"n_predict\":2,\"max_tokens\":12", "n_predict", "\"max_tokens\" means the same");
    bad_field("\"n_predict\":\"a\"", "n_predict", "");
    bad_field("\"repeat_penalty\":-1", "repeat_penalty", "");
    bad(API_CHAT, with(API_CHAT, "\"enable_thinking\":\"no\""), "enable_thinking", "true or false");
    bad(API_CHAT,
        with(API_CHAT,
             "\"enable_thinking\":true,\"chat_template_kwargs\":{\"enable_thinking\":false}"),
        "enable_thinking", "\"chat_template_kwargs.enable_thinking\" means the same");
    good(API_COMPLETIONS, with(API_COMPLETIONS, "\"enable_thinking\":false"));
    assert_string_equal(warning(0), "enable_thinking: unknown field, ignored");
}

static void test_thinking(void **state) {
    static const char SHOWS[] = "{{ enable_thinking }}{{ x }}[a]";
    (void)state;
    defaults();
    set_template(SHOWS, strlen(SHOWS));
    good(API_CHAT, with(API_CHAT, "\"enable_thinking\":false"));
    prompt_is(&r, "False[a]");
    good(API_CHAT, with(API_CHAT, "\"chat_template_args\":{\"x\":1},\"enable_thinking\":true"));
    prompt_is(&r, "True1[a]");
    set_template(TEMPLATE, strlen(TEMPLATE));
}

static void test_refused(void **state) {
    (void)state;
    defaults();
    both("\"typical_p\":1.0,\"mirostat\":0,\"mirostat_tau\":5,\"dry_multiplier\":0.0,"
         "\"dry_base\":1.75,\"top_n_sigma\":-1,\"samplers\":[],\"lora\":[],\"length_penalty\":1,"
         "\"functions\":[],\"modalities\":[\"text\"],\"verbosity\":\"low\",\"user\":\"u\","
         "\"metadata\":{\"a\":1},\"stop_regex\":null");
    assert_null(r.warnings);
    bad_field("\"typical_p\":0.5", "typical_p", "is not supported, only 1 is");
    bad_field("\"mirostat\":2", "mirostat", "only 0 is");
    bad_field("\"dry_multiplier\":5", "dry_multiplier", "only 0 is");
    bad_field("\"samplers\":[\"top_k\"]", "samplers", "only [] is");
    bad_field("\"stop_regex\":\"a+\"", "stop_regex", "is not supported");
    bad_field("\"lora\":[{\"id\":0,\"scale\":1}]", "lora", "is not supported");
    bad_field("\"thinking_token_budget\":100", "thinking_token_budget", "is not supported");
}

static void test_unknown(void **state) {
    (void)state;
    defaults();
    both("\"temprature\":2,\"frob\":{\"a\":[1,2]}");
    assert_int_equal(json_array_size(r.warnings), 2);
    assert_string_equal(warning(0),
                        "temprature: unknown field, ignored; did you mean \"temperature\"?");
    assert_string_equal(warning(1), "frob: unknown field, ignored");
    /* names are cut at characters; only some are kept */
    both(
        "\"\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4"
        "\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4"
        "\xc3\xa4\xc3\xa4\":1,\"q1\":1,\"q2\":1,\"q3\":1,\"q4\":1,\"q5\":1,\"q6\":1,\"q7\":1,"
        "\"q8\":1,\"q9\":1");
    assert_int_equal(json_array_size(r.warnings), API_UNKNOWN_MAX + 1);
    assert_int_equal(strcspn(warning(0), ":"), 46);
    assert_string_equal(warning(API_UNKNOWN_MAX), "2 more unknown fields, ignored");
    setup.strict_fields = true;
    bad_field("\"temprature\":2", "temprature", "unknown field; did you mean \"temperature\"?");
    bad_field("\"frob\":2", "frob", "unknown field");
    both("\"user\":\"u\",\"dry_base\":2");
}

static void test_protocols(void **state) {
    static const char MESSAGE[] = "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]";
    char text[512];
    (void)state;
    defaults();
    api_request_free(&r);
    snprintf(text, sizeof text, "{%s,\"max_tokens\":90000,\"frob\":1,\"seed\":3}", MESSAGE);
    struct api_body body = body_of(text, anthropic_wants);
    assert_true(anthropic_read(&setup, &body, &r, &err));
    assert_true(r.engine.shorten); /* Claude Code asks for more than fits */
    assert_string_equal(warning(0), "frob: unknown field, ignored");
    assert_string_equal(r.answer.id_prefix, "toolu_");
    api_body_free(&body);
    api_request_free(&r);
    snprintf(text, sizeof text, "{%s,\"max_tokens\":9,\"mirostat\":1}", MESSAGE);
    body = body_of(text, anthropic_wants);
    assert_false(anthropic_read(&setup, &body, &r, &err));
    check_refused(text, "mirostat", "is not supported");
    api_body_free(&body);
    body = body_of("{\"input\":\"hi\",\"n_predict\":1,\"max_output_token\":4}", responses_wants);
    assert_true(responses_read(&setup, &body, &r, &err));
    assert_string_equal(warning(0), "n_predict: unknown field, ignored");
    assert_string_equal(
        warning(1),
        "max_output_token: unknown field, ignored; did you mean \"max_output_tokens\"?");
    api_body_free(&body);
    api_request_free(&r);
}

/* Members that are looked at before the rest is read. */
static void test_peek(void **state) {
    (void)state;
    static const char *const NAMES[] = {"model", "id", NULL};
    static const char *const WRONG[] = {
        "", "[]", "3", "{\"model\":", "{\"model\":\"a\"} x", "{\"model\":\"a\",\"model\":\"b\"}"};
    char *got[2];
    const char *text = "{\"x\":{\"model\":\"no\"},\"mod\\u0065l\":\"a\\\"b\",\"id\":3}";
    assert_true(api_body_peek(text, strlen(text), NAMES, got, &err));
    assert_string_equal(got[0], "a\"b");
    assert_null(got[1]);
    mem_free(got[0]);
    assert_true(api_body_peek("{}", 2, NAMES, got, &err));
    assert_true(!got[0] && !got[1]);
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        assert_false(api_body_peek(WRONG[i], strlen(WRONG[i]), NAMES, got, &err));
        assert_true(!got[0] && !got[1] && err.status == HTTP_BAD_REQUEST);
    }
}

static void test_near(void **state) {
    static const char *const KNOWN[] = {"generate", "serve", "chat", "cache"};
    static const char *const PAIRS[][2] = {
        {"servee", "serve"}, {"gen", "generate"}, {"chta", "chat"}, {"cahce", "cache"},
        {"sreve", "serve"},  {"list", NULL},      {"x", NULL},      {"", NULL}};
    (void)state;
    assert_int_equal(near_typos("", 0, "abc", 3), 3);
    assert_int_equal(near_typos("abc", 3, "abc", 3), 0);
    assert_int_equal(near_typos("kitten", 6, "sitting", 7), 3);
    assert_int_equal(near_typos("ab", 2, "ba", 2), 1);
    for (size_t i = 0; i < sizeof PAIRS / sizeof *PAIRS; i++) {
        struct near n = {0};
        for (size_t k = 0; k < sizeof KNOWN / sizeof *KNOWN; k++)
            near_try(&n, PAIRS[i][0], strlen(PAIRS[i][0]), KNOWN[k]);
        if ((n.best != NULL) != (PAIRS[i][1] != NULL) ||
            (n.best && strcmp(n.best, PAIRS[i][1]) != 0))
            fail_msg("%s: %s", PAIRS[i][0], n.best ? n.best : "none");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_aliases),   cmocka_unit_test(test_thinking),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_protocols), cmocka_unit_test(test_near),
        cmocka_unit_test(test_peek),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
