/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of openai.h share: checks that a body is accepted or refused. The tokenizer's ids
 * are bytes, so that a prompt's ids read as text. */
#ifndef KVASIR_OPENAI_CHECKS_H
#define KVASIR_OPENAI_CHECKS_H

#include <math.h>

#include "api_checks.h"

#define TOOL(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"

static const char TEMPLATE[] =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments.x }})"
    "{% endfor %}{% endfor %}{% if tools %}T{{ tools | length }}{% endif %}"
    "{{ reasoning_effort }}{{ documents | length if documents else null_text }}{{ extra }}[a]";

static struct api_request r;

static inline void defaults(void) {
    api_defaults();
    setup.stream = false;
}

static inline bool read_text_body(enum api_kind api, const char *text) {
    struct api_body body = {0};
    memset(&err, 'x', sizeof err);
    bool good =
        api_body_read(text, strlen(text), setup.vocab,
                      api == API_CHAT ? openai_wants_chat : openai_wants_completion, &body, &err) &&
        openai_read(&setup, api, &body, &r, &err);
    api_body_free(&body); /* the request holds its own references */
    return good;
}

/* A body: a prompt, then `fields`. */
static inline const char *with(enum api_kind api, const char *fields) {
    static char text[4096];
    snprintf(text, sizeof text, "{%s%s%s}",
             api == API_CHAT ? "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
                             : "\"prompt\":\"hi\"",
             *fields ? "," : "", fields);
    return text;
}

static inline void good(enum api_kind api, const char *text) {
    api_request_free(&r);
    if (!read_text_body(api, text))
        fail_msg("%s: %s", text, err.text);
}

static inline void both(const char *fields) {
    good(API_COMPLETIONS, with(API_COMPLETIONS, fields));
    good(API_CHAT, with(API_CHAT, fields));
}

/* Refused because of the field `param`, with a text that contains `why`. */
static inline void bad(enum api_kind api, const char *text, const char *param, const char *why) {
    struct api_request before = r;
    if (read_text_body(api, text))
        fail_msg("taken: %s", text);
    assert_memory_equal(&before, &r, sizeof r);
    check_refused(text, param, why);
    json_t *object = openai_error_object(&err);
    assert_non_null(object);
    assert_string_equal(json_string_value(json_object_get(object, "message")), err.text);
    assert_string_equal(json_string_value(json_object_get(object, "type")),
                        "invalid_request_error");
    json_decref(object);
}

static inline void bad_field(const char *fields, const char *param, const char *why) {
    bad(API_COMPLETIONS, with(API_COMPLETIONS, fields), param, why);
    bad(API_CHAT, with(API_CHAT, fields), param, why);
}

static inline int set_up(void **state) {
    (void)state;
    api_set_up(TEMPLATE);
    defaults();
    return 0;
}

static inline int tear_down(void **state) {
    api_request_free(&r);
    return api_tear_down(state);
}

#endif
