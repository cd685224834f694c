/* SPDX-License-Identifier: Apache-2.0 */
/* template_tokens.c: the special tokens that a chat template may use, as text: bos_token, eos_token
 * and others.
 *
 *     tokenizer_config.json       every member "..._token" that is a string, or an object with
 *                                 "content"; those of "extra_special_tokens" too
 *     a GGUF file, or no config   bos, eos, unk and pad, if it has them
 *
 * A token that the vocabulary does not have is undefined in the template, as with transformers. The
 * config is scanned, not parsed to a tree, because it lists all added tokens, too.
 */
#include <string.h>

#include "text/json_scan.h"
#include "text/tokenizer_internal.h"

enum { NAME_MAX_BYTES = 64 }; /* of a member's name; longer names are ignored */

static kvasir_status add_variable(json_t *variables, const char *name, struct text_span text,
                                  kvasir_error *err) {
    /* A token of a GGUF file may not be UTF-8. A template could not write it. */
    if (utf8_check(text.data, text.len) < text.len)
        return KVASIR_OK;
    if (json_object_set_new(variables, name, json_stringn(text.len ? text.data : "", text.len)) !=
        0)
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for special tokens");
    return KVASIR_OK;
}

/* "<s>", or {"content": "<s>", ...}. Anything else is ignored. */
static kvasir_status read_token_variable(struct json_scan *s, const char *name, json_t *variables) {
    struct text_span text, raw;
    if (scan_peek(s) == '"') {
        TRY(scan_string(s, &text));
        return add_variable(variables, name, text, s->err);
    }
    if (scan_peek(s) != '{')
        return scan_skip(s, &raw);
    struct text_span key;
    kvasir_status status = scan_open(s, '{');
    while (scan_each_key(s, &key, &status)) {
        if (span_equal(key, span_of("content")) && scan_peek(s) == '"') {
            TRY(scan_string(s, &text));
            status = add_variable(variables, name, text, s->err);
        } else {
            status = scan_skip(s, &raw);
        }
    }
    return status;
}

/* Copies the name, because a key's text is gone once its value is read. */
static bool copy_token_name(struct text_span key, char name[NAME_MAX_BYTES]) {
    static const char suffix[] = "_token";
    const size_t n = sizeof suffix - 1;
    if (key.len >= NAME_MAX_BYTES || key.len <= n || memchr(key.data, 0, key.len) ||
        memcmp(key.data + key.len - n, suffix, n) != 0)
        return false;
    ASSERT(key.len < NAME_MAX_BYTES);
    memcpy(name, key.data, key.len);
    name[key.len] = 0;
    return true;
}

static kvasir_status read_variables(struct json_scan *s, bool outermost, json_t *variables) {
    struct text_span key, raw;
    kvasir_status status = scan_open(s, '{');
    while (scan_each_key(s, &key, &status)) {
        char name[NAME_MAX_BYTES];
        if (copy_token_name(key, name))
            status = read_token_variable(s, name, variables);
        else if (outermost && span_equal(key, span_of("extra_special_tokens")) &&
                 scan_peek(s) == '{')
            status = read_variables(s, false, variables);
        else
            status = scan_skip(s, &raw);
    }
    return status;
}

kvasir_status template_tokens(const struct tokenizer_spec *spec, const struct tokenizer *t,
                              json_t *variables, kvasir_error *err) {
    if (spec->config.data) {
        struct json_scan s;
        scan_init(&s, "tokenizer_config.json", spec->config, err);
        kvasir_status status = read_variables(&s, true, variables);
        scan_deinit(&s);
        return status;
    }
    const struct {
        const char *name;
        int32_t id;
    } tokens[] = {{"bos_token", tokenizer_bos(t)},
                  {"eos_token", tokenizer_eos(t)},
                  {"unk_token", spec->unk},
                  {"pad_token", spec->pad}};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        if (tokens[i].id >= 0)
            TRY(add_variable(variables, tokens[i].name, tokenizer_bytes(t, tokens[i].id), err));
    return KVASIR_OK;
}
