/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of request bodies share: a tokenizer whose ids are bytes, so that a prompt's ids
 * read as text, chat templates for it, and JSON. */
#ifndef KVASIR_API_CHECKS_H
#define KVASIR_API_CHECKS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "byte_tokenizer.h"
#include "model_files.h"
#include "server/server.h"

#include <cmocka.h>

#define TEMPLATES SHARED_DIR "/chat-templates"

static struct temp_folder folder;
static kvasir_tokenizer *tokenizer;
static struct api_setup setup;
static struct api_error err;

static inline void set_template(const char *source, size_t len) {
    kvasir_error why;
    if (kvasir_tokenizer_set_chat_template(tokenizer, "test", source, len, &why))
        fail_msg("%s", why.text);
}

/* One of ../shared/chat-templates. False: the file does not exist. */
static inline bool set_real_template(const char *name) {
    char path[512], *source;
    snprintf(path, sizeof path, "%s/%s.jinja", TEMPLATES, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        return false;
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    size_t len = (size_t)ftell(f);
    rewind(f);
    source = malloc(len + 1);
    assert_int_equal(fread(source, 1, len, f), len);
    fclose(f);
    set_template(source, len);
    free(source);
    return true;
}

/* A body that is read without errors. */
static inline struct api_body body_of(const char *text, api_want_fn *wants) {
    struct api_body body;
    struct api_error why;
    if (!api_body_read(text, strlen(text), setup.vocab, wants, &body, &why))
        fail_msg("%s: %s", text, why.text);
    return body;
}

static inline json_t *json_of(const char *text) {
    json_error_t why;
    json_t *value = json_loads(text, JSON_ALLOW_NUL | JSON_DECODE_ANY, &why);
    if (!value)
        fail_msg("%s: %s at %d", text, why.text, why.position);
    return value;
}

/* Compares as JSON; releases `got`. */
static inline void same_json(json_t *got, const char *wanted) {
    json_t *expected = json_of(wanted);
    char *text = json_dumps(got, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!got || !json_equal(got, expected))
        fail_msg("%s\nis not\n%s", text ? text : err.text, wanted);
    free(text);
    json_decref(expected);
    json_decref(got);
}

/* *err names `param` and its text contains `why`. */
static inline void check_refused(const char *body, const char *param, const char *why) {
    size_t n = strlen(param);
    assert_int_equal(err.status, HTTP_BAD_REQUEST);
    if (strcmp(err.param, param) != 0 || !strstr(err.text, why))
        fail_msg("%s\n\"%s\" (%s) is not about %s: \"%s\"", body, err.text, err.param, param, why);
    if (n && (strncmp(err.text, param, n) != 0 || strncmp(err.text + n, ": ", 2) != 0))
        fail_msg("\"%s\" does not begin with %s", err.text, param);
    assert_null(strchr(err.text, '\n'));
    assert_null(strstr(err.text, "--")); /* clients do not know the program's flags */
}

/* A prompt's ids as a text, <s> and </s> by their names. */
static inline void prompt_is(const struct api_request *r, const char *wanted) {
    char *text = malloc(5 * r->engine.n_tokens + 1);
    size_t n = 0;
    for (size_t i = 0; i < r->engine.n_tokens; i++) {
        int32_t id = r->engine.tokens[i];
        n += (size_t)(id < 256 ? sprintf(text + n, "%c", id)
                               : sprintf(text + n, "%s", id == BYTE_BOS ? "<s>" : "</s>"));
    }
    if (strcmp(text, wanted) != 0)
        fail_msg("\"%s\"\nis not\n\"%s\"", text, wanted);
    free(text);
}

static inline void api_defaults(void) {
    setup = (struct api_setup){.tokenizer = tokenizer,
                               .model = "ours",
                               .vocab = BYTE_VOCAB,
                               .max_choices = 8,
                               .max_tokens = 77,
                               .sampling = kvasir_sampling_defaults(),
                               .stream = true};
}

static inline int api_set_up(const char *template) {
    kvasir_error why;
    char config[192];
    temp_folder_make(&folder);
    snprintf(config, sizeof config, "%s", temp_file(&folder, "tokenizer_config.json"));
    byte_tokenizer_write(temp_file(&folder, "tokenizer.json"), config, template);
    if (kvasir_tokenizer_open(folder.path, &tokenizer, &why))
        fail_msg("%s", why.text);
    api_defaults();
    return 0;
}

static inline int api_tear_down(void **state) {
    (void)state;
    kvasir_tokenizer_close(tokenizer);
    temp_folder_remove(&folder);
    return 0;
}

#endif
