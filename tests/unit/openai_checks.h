/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of openai.h share: bodies that are taken or refused, by a tokenizer whose ids are
 * bytes, so that a prompt can be read. */
#ifndef KVASIR_OPENAI_CHECKS_H
#define KVASIR_OPENAI_CHECKS_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "byte_tokenizer.h"
#include "model_files.h"
#include "server/server.h"

#include <cmocka.h>

#define TOOL(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"

static const char TEMPLATE[] =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments.x }})"
    "{% endfor %}{% endfor %}{% if tools %}T{{ tools | length }}{% endif %}"
    "{{ reasoning_effort }}{{ documents | length if documents else null_text }}{{ extra }}[a]";

static struct temp_folder folder;
static kvasir_tokenizer *tokenizer;
static struct openai_setup setup;
static struct openai_request r;
static struct openai_error err;

static inline void defaults(void) {
    setup = (struct openai_setup){.tokenizer = tokenizer,
                                  .model = "ours",
                                  .vocab = BYTE_VOCAB,
                                  .max_choices = 8,
                                  .max_tokens = 77,
                                  .sampling = kvasir_sampling_defaults()};
}

static inline bool read_text_body(enum openai_api api, const char *text) {
    json_error_t why;
    json_t *body = json_loads(text, JSON_ALLOW_NUL | JSON_DECODE_ANY, &why);
    if (!body)
        fail_msg("%s: %s", text, why.text);
    memset(&err, 'x', sizeof err);
    bool good = openai_read(&setup, api, body, &r, &err);
    json_decref(body); /* what the request keeps of it lives on */
    return good;
}

/* A body with `fields` behind a prompt. */
static inline const char *with(enum openai_api api, const char *fields) {
    static char text[4096];
    snprintf(text, sizeof text, "{%s%s%s}",
             api == OPENAI_CHAT ? "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
                                : "\"prompt\":\"hi\"",
             *fields ? "," : "", fields);
    return text;
}

static inline void good(enum openai_api api, const char *text) {
    openai_request_free(&r);
    if (!read_text_body(api, text))
        fail_msg("%s: %s", text, err.text);
}

static inline void both(const char *fields) {
    good(OPENAI_COMPLETIONS, with(OPENAI_COMPLETIONS, fields));
    good(OPENAI_CHAT, with(OPENAI_CHAT, fields));
}

/* Refused for the field `param`, with a text that holds `why`. */
static inline void bad(enum openai_api api, const char *text, const char *param, const char *why) {
    struct openai_request before = r;
    if (read_text_body(api, text))
        fail_msg("taken: %s", text);
    assert_memory_equal(&before, &r, sizeof r);
    assert_int_equal(err.status, OPENAI_BAD_REQUEST);
    assert_string_equal(err.param, param);
    size_t n = strlen(param);
    if (n && (strncmp(err.text, param, n) != 0 || strncmp(err.text + n, ": ", 2) != 0))
        fail_msg("\"%s\" does not begin with %s", err.text, param);
    if (!strstr(err.text, why))
        fail_msg("\"%s\" does not say \"%s\"", err.text, why);
    assert_null(strchr(err.text, '\n'));
    json_t *object = openai_error_object(&err);
    assert_non_null(object);
    assert_string_equal(json_string_value(json_object_get(object, "message")), err.text);
    assert_string_equal(json_string_value(json_object_get(object, "type")),
                        "invalid_request_error");
    json_decref(object);
}

static inline void bad_field(const char *fields, const char *param, const char *why) {
    bad(OPENAI_COMPLETIONS, with(OPENAI_COMPLETIONS, fields), param, why);
    bad(OPENAI_CHAT, with(OPENAI_CHAT, fields), param, why);
}

/* The prompt's ids as a text, <s> and </s> by their names. */
static inline void prompt_is(const char *wanted) {
    char text[1024];
    size_t n = 0;
    for (size_t i = 0; i < r.engine.n_tokens; i++) {
        int32_t id = r.engine.tokens[i];
        n += (size_t)(id < 256 ? snprintf(text + n, sizeof text - n, "%c", id)
                               : snprintf(text + n, sizeof text - n, "%s",
                                          id == BYTE_BOS ? "<s>" : "</s>"));
    }
    assert_string_equal(text, wanted);
}

static inline int set_up(void **state) {
    (void)state;
    kvasir_error why;
    char config[192];
    temp_folder_make(&folder);
    snprintf(config, sizeof config, "%s", temp_file(&folder, "tokenizer_config.json"));
    byte_tokenizer_write(temp_file(&folder, "tokenizer.json"), config, TEMPLATE);
    if (kvasir_tokenizer_open(folder.path, &tokenizer, &why))
        fail_msg("%s", why.text);
    defaults();
    return 0;
}

static inline int tear_down(void **state) {
    (void)state;
    openai_request_free(&r);
    kvasir_tokenizer_close(tokenizer);
    temp_folder_remove(&folder);
    return 0;
}

#endif
