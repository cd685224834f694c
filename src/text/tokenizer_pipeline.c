/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_pipeline.c: the four small parts of a tokenizer.json, from JSON values: normalizer,
 * pre_tokenizer, post_processor and decoder. Each is null, one object with a "type", or a Sequence
 * of them:
 *
 *     "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, ...]}
 *
 * They are copied into plain structs; normalize.c, pretokenize.c, tokenizer.c and
 * tokenizer_decode.c say what they do. An unknown type or field is an error with its path
 * ("normalizer.normalizers[1].type"); nothing is ignored. Fields that only affect the offsets of
 * tokens (such as trim_offsets) are known and change nothing.
 */
#include <stdio.h>
#include <string.h>

#include "text/tokenizer_internal.h"

/* ---- paths and fields ------------------------------------------------------------------------ */

/* The path of a value in the file. */
struct part_path {
    char text[180];
};

static struct part_path path_key(const struct part_path *up, const char *key) {
    struct part_path p;
    snprintf(p.text, sizeof p.text, "%.120s.%s", up->text, quote_bytes(key, strlen(key)).text);
    return p;
}

static struct part_path path_item(const struct part_path *up, size_t index) {
    struct part_path p;
    snprintf(p.text, sizeof p.text, "%.120s[%zu]", up->text, index);
    return p;
}

struct pipeline_part {
    json_t *value;
    struct part_path path;
    int depth;
    kvasir_error *err;
};

static kvasir_status fail_part(const struct pipeline_part *p, kvasir_status code, const char *key,
                               const char *what) {
    struct part_path path = key ? path_key(&p->path, key) : p->path;
    return fail(p->err, code, "tokenizer.json: %s %s", path.text, what);
}

static kvasir_status wrong_part(const struct pipeline_part *p, const char *key, const char *what) {
    return fail_part(p, KVASIR_ERR_FORMAT, key, what);
}

static kvasir_status unsupported_part(const struct pipeline_part *p, const char *key,
                                      const char *what) {
    return fail_part(p, KVASIR_ERR_UNSUPPORTED, key, what);
}

/* Checks that every key is "type" or in a NULL-terminated list. */
static kvasir_status only_keys(const struct pipeline_part *p, const char *const *known) {
    const char *key;
    json_t *value;
    json_object_foreach(p->value, key, value) {
        bool found = strcmp(key, "type") == 0;
        for (size_t k = 0; known[k] && !found; k++)
            found = strcmp(key, known[k]) == 0;
        if (!found)
            return unsupported_part(p, key, "is not supported");
    }
    return KVASIR_OK;
}

#define ONLY_KEYS(p, ...) TRY(only_keys(p, (const char *const[]){__VA_ARGS__, NULL}))

static kvasir_status get_bool(const struct pipeline_part *p, const char *key, bool otherwise,
                              bool *out) {
    json_t *value = json_object_get(p->value, key);
    *out = value ? json_is_true(value) : otherwise;
    return !value || json_is_boolean(value) ? KVASIR_OK
                                            : wrong_part(p, key, "is not true or false");
}

_Static_assert(NORMALIZER_TEXT_MAX <= UINT8_MAX, "lengths have 8 bits");
/* A short text that is copied. */
static kvasir_status get_text(const struct pipeline_part *p, const char *key,
                              char out[NORMALIZER_TEXT_MAX], uint8_t *len) {
    json_t *value = json_object_get(p->value, key);
    if (!json_is_string(value))
        return wrong_part(p, key, "is not a string");
    if (json_string_length(value) > NORMALIZER_TEXT_MAX)
        return unsupported_part(p, key, "is too long");
    *len = (uint8_t)json_string_length(value);
    memcpy(out, json_string_value(value), *len);
    return KVASIR_OK;
}

static kvasir_status get_count(const struct pipeline_part *p, const char *key, uint32_t *out) {
    json_t *value = json_object_get(p->value, key);
    json_int_t n = json_is_integer(value) ? json_integer_value(value) : -1;
    if (n < 0 || n > 65535)
        return wrong_part(p, key, "is not a number from 0 to 65535");
    *out = (uint32_t)n;
    return KVASIR_OK;
}

/* {"String": ...} or {"Regex": ...}; one of the two is set. */
static kvasir_status get_pattern(const struct pipeline_part *p, json_t **literal, json_t **regex) {
    json_t *pattern = json_object_get(p->value, "pattern");
    *literal = json_object_get(pattern, "String");
    *regex = json_object_get(pattern, "Regex");
    if (json_object_size(pattern) != 1 || !(json_is_string(*literal) || json_is_string(*regex)))
        return wrong_part(p, "pattern", "is not {\"String\": text} or {\"Regex\": text}");
    return KVASIR_OK;
}

static kvasir_status get_literal(const struct pipeline_part *p, char out[NORMALIZER_TEXT_MAX],
                                 uint8_t *len) {
    json_t *literal, *regex;
    TRY(get_pattern(p, &literal, &regex));
    if (!literal)
        return unsupported_part(p, "pattern.Regex", "is not supported here");
    size_t n = json_string_length(literal);
    if (n == 0 || n > NORMALIZER_TEXT_MAX)
        return unsupported_part(p, "pattern.String", n ? "is too long" : "is empty");
    *len = (uint8_t)n;
    memcpy(out, json_string_value(literal), n);
    return KVASIR_OK;
}

/* The type of a part that is an object; "" for null. */
static kvasir_status get_type(const struct pipeline_part *p, const char **type) {
    *type = "";
    if (!p->value || json_is_null(p->value))
        return KVASIR_OK;
    if (p->depth > 8)
        return unsupported_part(p, NULL, "is nested too deeply");
    *type = json_string_value(json_object_get(p->value, "type"));
    return *type ? KVASIR_OK : wrong_part(p, "type", "is not a string");
}

static kvasir_status unknown_type(const struct pipeline_part *p, const char *type) {
    char what[96];
    snprintf(what, sizeof what, "\"%s\" is not supported", quote_bytes(type, strlen(type)).text);
    return unsupported_part(p, "type", what);
}

/* Reads every part of a Sequence. */
typedef kvasir_status read_fn(const struct pipeline_part *p, void *out);

static kvasir_status each_part(const struct pipeline_part *p, const char *key, read_fn *fn,
                               void *out) {
    ONLY_KEYS(p, key);
    json_t *list = json_object_get(p->value, key);
    if (!json_is_array(list))
        return wrong_part(p, key, "is not an array");
    struct part_path up = path_key(&p->path, key);
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct pipeline_part item = {json_array_get(list, i), path_item(&up, i), p->depth + 1,
                                     p->err};
        if (!json_is_object(item.value))
            return wrong_part(&item, NULL, "is not an object");
        TRY(fn(&item, out));
    }
    return KVASIR_OK;
}

static bool is_type(const char *type, const char *name) {
    return strcmp(type, name) == 0;
}

/* ---- normalizer ------------------------------------------------------------------------------ */

static kvasir_status normalizer_fields(const struct pipeline_part *p, const char *type,
                                       struct normalizer_step *step) {
    static const struct {
        const char *type;
        enum normalizer_kind kind;
    } plain[] = {
        {"NFC", NORMALIZE_NFC},
        {"NFD", NORMALIZE_NFD},
        {"NFKC", NORMALIZE_NFKC},
        {"NFKD", NORMALIZE_NFKD},
        {"Lowercase", NORMALIZE_LOWERCASE},
    };
    for (size_t k = 0; k < sizeof plain / sizeof plain[0]; k++)
        if (is_type(type, plain[k].type)) {
            step->kind = plain[k].kind;
            return only_keys(p, (const char *const[]){NULL});
        }
    if (is_type(type, "Strip")) {
        step->kind = NORMALIZE_STRIP;
        ONLY_KEYS(p, "strip_left", "strip_right");
        TRY(get_bool(p, "strip_left", true, &step->left));
        return get_bool(p, "strip_right", true, &step->right);
    }
    if (is_type(type, "Prepend")) {
        step->kind = NORMALIZE_PREPEND;
        ONLY_KEYS(p, "prepend");
        return get_text(p, "prepend", step->to, &step->to_len);
    }
    if (is_type(type, "Replace")) {
        step->kind = NORMALIZE_REPLACE;
        ONLY_KEYS(p, "pattern", "content");
        TRY(get_literal(p, step->from, &step->from_len));
        return get_text(p, "content", step->to, &step->to_len);
    }
    return unknown_type(p, type);
}

static kvasir_status read_normalizer(const struct pipeline_part *p, void *out) {
    struct normalizer *n = out;
    const char *type;
    TRY(get_type(p, &type));
    if (!*type)
        return KVASIR_OK;
    if (is_type(type, "Sequence"))
        return each_part(p, "normalizers", read_normalizer, n);
    if (n->n == NORMALIZER_STEPS_MAX)
        return unsupported_part(p, NULL, "is one step too many");
    return normalizer_fields(p, type, &n->step[n->n++]);
}

kvasir_status pipeline_normalizer(json_t *value, struct normalizer *n, kvasir_error *err) {
    struct pipeline_part p = {value, {"normalizer"}, 0, err};
    return read_normalizer(&p, n);
}

/* ---- pre_tokenizer --------------------------------------------------------------------------- */

struct pre_reading {
    struct pretokenizer *p;
    bool byte_level;
};

/* Adds the path of the part to an error that another file found. */
static kvasir_status blame_part(const struct pipeline_part *p, kvasir_status status) {
    if (status != KVASIR_OK) {
        char prefix[sizeof p->path.text + 20];
        snprintf(prefix, sizeof prefix, "tokenizer.json: %s", p->path.text);
        fail_prefix(p->err, prefix);
    }
    return status;
}

static kvasir_status add_stage(const struct pipeline_part *p, struct pretokenizer *pre,
                               const struct pre_stage *stage) {
    return blame_part(p, pretokenizer_add(pre, stage, p->err));
}

static kvasir_status add_regex(const struct pipeline_part *p, struct pretokenizer *pre,
                               struct text_span pattern, enum split_behavior behavior,
                               bool invert) {
    struct pre_stage stage = {.kind = STAGE_REGEX, .behavior = behavior, .invert = invert};
    kvasir_status status = blame_part(p, regex_compile_onig(pattern, &stage.re, p->err));
    if (status != KVASIR_OK && p->err)
        p->err->offset = -1; /* it is in the pattern, not in the file */
    return status == KVASIR_OK ? add_stage(p, pre, &stage) : status;
}

static kvasir_status get_behavior(const struct pipeline_part *p, enum split_behavior *out) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name = json_string_value(json_object_get(p->value, "behavior"));
    for (int k = 0; name && k < 5; k++)
        if (is_type(name, names[k])) {
            *out = (enum split_behavior)k;
            return KVASIR_OK;
        }
    return wrong_part(p, "behavior", "is not a known behavior");
}

static kvasir_status read_split(const struct pipeline_part *p, struct pretokenizer *pre) {
    json_t *literal, *regex;
    struct pre_stage stage = {.kind = STAGE_LITERAL};
    ONLY_KEYS(p, "pattern", "behavior", "invert");
    TRY(get_pattern(p, &literal, &regex));
    TRY(get_behavior(p, &stage.behavior));
    TRY(get_bool(p, "invert", false, &stage.invert));
    if (regex) {
        struct text_span pattern = {json_string_value(regex), json_string_length(regex)};
        return add_regex(p, pre, pattern, stage.behavior, stage.invert);
    }
    TRY(get_literal(p, stage.text, &stage.text_len));
    return add_stage(p, pre, &stage);
}

static kvasir_status read_byte_level(const struct pipeline_part *p, struct pre_reading *r) {
    bool space, regex, ignored;
    ONLY_KEYS(p, "add_prefix_space", "use_regex", "trim_offsets");
    TRY(get_bool(p, "add_prefix_space", true, &space));
    TRY(get_bool(p, "use_regex", true, &regex));
    TRY(get_bool(p, "trim_offsets", true, &ignored));
    r->byte_level = true;
    struct pre_stage prefix = {.kind = STAGE_PREFIX, .text = " ", .text_len = 1};
    if (space)
        TRY(add_stage(p, r->p, &prefix));
    return regex ? add_regex(p, r->p, span_of(gpt2_pattern), SPLIT_ISOLATED, false) : KVASIR_OK;
}

static kvasir_status check_mark(const struct pipeline_part *p) {
    json_t *mark = json_object_get(p->value, "replacement");
    if (!json_is_string(mark) || strcmp(json_string_value(mark), SPACE_MARK) != 0)
        return unsupported_part(p, "replacement", "is not U+2581");
    return KVASIR_OK;
}

/* "always", "first" or "never"; older files say add_prefix_space instead. */
static kvasir_status get_scheme(const struct pipeline_part *p, const char **scheme) {
    bool add;
    TRY(get_bool(p, "add_prefix_space", true, &add));
    json_t *value = json_object_get(p->value, "prepend_scheme");
    *scheme = value ? json_string_value(value) : add ? "always" : "never";
    if (!*scheme ||
        !(is_type(*scheme, "always") || is_type(*scheme, "first") || is_type(*scheme, "never")))
        return wrong_part(p, "prepend_scheme", "is not always, first or never");
    if (!add && !is_type(*scheme, "never"))
        return wrong_part(p, "add_prefix_space", "contradicts prepend_scheme");
    return KVASIR_OK;
}

static kvasir_status read_metaspace(const struct pipeline_part *p, struct pretokenizer *pre) {
    const char *scheme;
    bool split;
    ONLY_KEYS(p, "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep");
    TRY(check_mark(p));
    TRY(get_scheme(p, &scheme));
    TRY(get_bool(p, "split", true, &split));
    struct pre_stage stage = {.kind = STAGE_MARKS, .text = SPACE_MARK, .text_len = SPACE_MARK_LEN};
    TRY(add_stage(p, pre, &stage));
    stage.kind = STAGE_PREFIX;
    stage.first_only = is_type(scheme, "first");
    if (!is_type(scheme, "never"))
        TRY(add_stage(p, pre, &stage));
    stage.kind = STAGE_LITERAL;
    stage.behavior = SPLIT_MERGED_WITH_NEXT;
    return split ? add_stage(p, pre, &stage) : KVASIR_OK;
}

static kvasir_status read_pre_tokenizer(const struct pipeline_part *p, void *out) {
    struct pre_reading *r = out;
    const char *type;
    TRY(get_type(p, &type));
    if (!*type)
        return KVASIR_OK;
    if (is_type(type, "Sequence"))
        return each_part(p, "pretokenizers", read_pre_tokenizer, r);
    if (r->byte_level)
        return unsupported_part(p, NULL, "follows ByteLevel, which is not supported");
    if (is_type(type, "Split"))
        return read_split(p, r->p);
    if (is_type(type, "ByteLevel"))
        return read_byte_level(p, r);
    if (is_type(type, "Metaspace"))
        return read_metaspace(p, r->p);
    if (is_type(type, "Digits")) {
        bool single;
        ONLY_KEYS(p, "individual_digits");
        TRY(get_bool(p, "individual_digits", false, &single));
        return add_regex(p, r->p, span_of("\\p{N}"), single ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS,
                         false);
    }
    return unknown_type(p, type);
}

kvasir_status pipeline_pre_tokenizer(json_t *value, struct pretokenizer *pre, bool *byte_level,
                                     kvasir_error *err) {
    struct pipeline_part p = {value, {"pre_tokenizer"}, 0, err};
    struct pre_reading r = {.p = pre};
    TRY(read_pre_tokenizer(&p, &r));
    *byte_level = r.byte_level;
    return KVASIR_OK;
}

/* ---- post_processor -------------------------------------------------------------------------- */

static kvasir_status too_many(const struct pipeline_part *p, bool before) {
    char what[64];
    snprintf(what, sizeof what, "adds more than %d tokens %s the text", IDS_ADDED_MAX,
             before ? "before" : "after");
    return unsupported_part(p, "single", what);
}

/* The ids of the special token that a template names. */
static kvasir_status push_special(const struct pipeline_part *p, const struct tokenizer *t,
                                  const char *name, struct id_list *list) {
    json_t *tokens = json_object_get(p->value, "special_tokens");
    json_t *ids = json_object_get(json_object_get(tokens, name), "ids");
    if (!json_is_array(ids))
        return wrong_part(p, "special_tokens", "lacks a token that the template names");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        json_t *id = json_array_get(ids, i);
        json_int_t n = json_is_integer(id) ? json_integer_value(id) : -1;
        if (n < 0 || n > INT32_MAX || !pieces_has(&t->pieces, (int32_t)n))
            return wrong_part(p, "special_tokens", "has an id without a token");
        if (list->n == IDS_ADDED_MAX)
            return too_many(p, list == &t->before);
        ASSERT(list->n < IDS_ADDED_MAX);
        list->id[list->n++] = (int32_t)n;
    }
    return KVASIR_OK;
}

/* The template for one text: tokens, the text, tokens. */
static kvasir_status read_template_processing(const struct pipeline_part *p, struct tokenizer *t) {
    if (t->before.n || t->after.n)
        return unsupported_part(p, NULL, "is a second template, which is not supported");
    json_t *single = json_object_get(p->value, "single");
    size_t texts = 0;
    ONLY_KEYS(p, "single", "pair", "special_tokens");
    for (size_t i = 0; i < json_array_size(single); i++) {
        json_t *item = json_array_get(single, i);
        json_t *special = json_object_get(item, "SpecialToken");
        const char *text =
            json_string_value(json_object_get(json_object_get(item, "Sequence"), "id"));
        const char *name = json_string_value(json_object_get(special, "id"));
        if (json_object_size(item) != 1 || !(name || (text && is_type(text, "A"))))
            return wrong_part(p, "single",
                              "holds something other than SpecialToken and Sequence A");
        if (name)
            TRY(push_special(p, t, name, texts ? &t->after : &t->before));
        texts += text != NULL;
    }
    return texts == 1 ? KVASIR_OK : wrong_part(p, "single", "must hold Sequence A exactly once");
}

static kvasir_status read_post_processor(const struct pipeline_part *p, void *out) {
    struct tokenizer *t = out;
    const char *type;
    TRY(get_type(p, &type));
    if (!*type)
        return KVASIR_OK;
    if (is_type(type, "Sequence"))
        return each_part(p, "processors", read_post_processor, t);
    if (is_type(type, "ByteLevel")) {
        ONLY_KEYS(p, "add_prefix_space", "use_regex", "trim_offsets");
        return KVASIR_OK;
    }
    return is_type(type, "TemplateProcessing") ? read_template_processing(p, t)
                                               : unknown_type(p, type);
}

kvasir_status pipeline_post_processor(json_t *value, struct tokenizer *t, kvasir_error *err) {
    struct pipeline_part p = {value, {"post_processor"}, 0, err};
    return read_post_processor(&p, t);
}

/* ---- decoder --------------------------------------------------------------------------------- */

static kvasir_status decoder_fields(const struct pipeline_part *p, const char *type,
                                    struct decoder_step *step) {
    if (is_type(type, "ByteLevel")) {
        step->kind = DECODE_BYTE_LEVEL;
        ONLY_KEYS(p, "add_prefix_space", "use_regex", "trim_offsets");
        return KVASIR_OK;
    }
    if (is_type(type, "ByteFallback") || is_type(type, "Fuse")) {
        step->kind = is_type(type, "Fuse") ? DECODE_FUSE : DECODE_BYTE_FALLBACK;
        return only_keys(p, (const char *const[]){NULL});
    }
    if (is_type(type, "Replace")) {
        step->kind = DECODE_REPLACE;
        ONLY_KEYS(p, "pattern", "content");
        TRY(get_literal(p, step->from, &step->from_len));
        return get_text(p, "content", step->to, &step->to_len);
    }
    if (is_type(type, "Strip")) {
        step->kind = DECODE_STRIP;
        ONLY_KEYS(p, "content", "start", "stop");
        TRY(get_text(p, "content", step->from, &step->from_len));
        size_t at = 0;
        if (step->from_len == 0 || (utf8_next(step->from, &at), at != step->from_len))
            return wrong_part(p, "content", "is not one character");
        TRY(get_count(p, "start", &step->start));
        return get_count(p, "stop", &step->stop);
    }
    if (is_type(type, "Metaspace")) {
        const char *scheme;
        step->kind = DECODE_MARKS;
        ONLY_KEYS(p, "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep");
        TRY(check_mark(p));
        TRY(get_scheme(p, &scheme));
        step->strip = !is_type(scheme, "never");
        return KVASIR_OK;
    }
    return unknown_type(p, type);
}

static kvasir_status read_decoder(const struct pipeline_part *p, void *out) {
    struct decoder *d = out;
    const char *type;
    TRY(get_type(p, &type));
    if (!*type) {
        d->spaces = true;
        return KVASIR_OK;
    }
    if (is_type(type, "Sequence"))
        return each_part(p, "decoders", read_decoder, d);
    if (d->n == DECODER_STEPS_MAX)
        return unsupported_part(p, NULL, "is one step too many");
    if (d->n && (is_type(type, "ByteLevel") || d->step[0].kind == DECODE_BYTE_LEVEL))
        return unsupported_part(p, NULL, "is combined with ByteLevel, which is not supported");
    return decoder_fields(p, type, &d->step[d->n++]);
}

kvasir_status pipeline_decoder(json_t *value, struct decoder *d, kvasir_error *err) {
    struct pipeline_part p = {value, {"decoder"}, 0, err};
    return read_decoder(&p, d);
}
