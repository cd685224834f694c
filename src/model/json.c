/* SPDX-License-Identifier: Apache-2.0 */
/* JSON out of files that nobody vouches for: config.json, the safetensors header and index.
 *
 * jansson parses. It recurses for nested values, builds a tree that may be many times the text
 * ("{}," becomes 300 bytes) and, unless told, lets the last of two equal keys win; so nesting and
 * memory are counted here first (a header of 100 MB of '[' costs one scan, not a stack), and
 * duplicates are refused, since two readers could take different ones. The getters check type and
 * range and name the field: no number of a file goes on unchecked.
 */
#include <math.h>

#include "model/model_internal.h"

enum {
    /* The deepest text we read is config.json (rope_parameters inside the document: 3); 32 leaves
     * room for vendors' own. */
    JSON_DEPTH_MAX = 32,
    /* Bytes of jansson 2.14 on 64 bits, rounded up with malloc's own: a value with its place in an
     * array, and what an array, an object and a key take on top. */
    VALUE_BYTES = 64,
    ARRAY_BYTES = 144,
    OBJECT_BYTES = 256,
    KEY_BYTES = 96,
    /* What a text may take. A safetensors header takes 10 times its size, one of short names and
     * shapes 18 times; "{},{},..." would take 78 times, and is refused where it is long. */
    MEMORY_TIMES = 32,
    MEMORY_FREE = 1 << 20,
};

/* One pass over the text outside strings: how deep it nests and what its tree will take. */
static kvasir_status check_bounds(const char *text, size_t len, int64_t at, kvasir_error *err) {
    unsigned depth = 0;
    bool in_string = false;
    uint64_t bytes = 0, limit = (uint64_t)MEMORY_TIMES * len + MEMORY_FREE;
    for (size_t i = 0; i < len; i++) {
        char ch = text[i];
        if (in_string) {
            if (ch == '\\')
                i++;
            else if (ch == '"')
                in_string = false;
            continue;
        }
        switch (ch) {
        case '"':
            in_string = true;
            break;
        case '{':
        case '[':
            bytes += VALUE_BYTES;
            bytes += ch == '{' ? OBJECT_BYTES : ARRAY_BYTES;
            if (++depth > JSON_DEPTH_MAX)
                return fail_at(err, KVASIR_ERR_FORMAT, at + (int64_t)i,
                               "JSON is nested deeper than %d levels", JSON_DEPTH_MAX);
            break;
        case '}':
        case ']':
            depth -= depth > 0;
            break;
        case ',':
            bytes += VALUE_BYTES;
            break;
        case ':':
            bytes += KEY_BYTES;
            break;
        default:
            break;
        }
    }
    if (bytes > limit)
        return fail_at(err, KVASIR_ERR_FORMAT, at,
                       "JSON of %zu bytes would take more than %d times its size in memory", len,
                       MEMORY_TIMES);
    return KVASIR_OK;
}

static kvasir_status parse(const char *text, size_t len, int64_t at, size_t flags, json_t **out,
                           kvasir_error *err) {
    TRY(check_bounds(text, len, at, err));
    json_error_t problem;
    *out = json_loadb(text, len, flags | JSON_REJECT_DUPLICATES, &problem);
    if (!*out)
        return fail_at(err, KVASIR_ERR_FORMAT, at + problem.position,
                       "JSON does not parse: line %d, column %d: %s", problem.line, problem.column,
                       problem.text);
    return KVASIR_OK;
}

kvasir_status json_parse(const char *text, size_t len, int64_t at, json_t **out,
                         kvasir_error *err) {
    return parse(text, len, at, 0, out, err);
}

kvasir_status json_parse_strings(const char *text, size_t len, int64_t at, json_t **out,
                                 kvasir_error *err) {
    return parse(text, len, at, JSON_DECODE_INT_AS_REAL, out, err);
}

const char *json_kind(const json_t *value) {
    if (!value)
        return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        return "null";
    }
    return "nothing";
}

/* *value stays NULL where the field is missing and need not be there. */
static kvasir_status field(const struct json_scope *s, const char *key, bool required,
                           const json_t **value) {
    *value = json_object_get(s->object, key);
    if (json_is_null(*value))
        *value = NULL;
    if (!*value && required)
        return fail(s->err, KVASIR_ERR_FORMAT, "field %s%s is missing", s->prefix, key);
    return KVASIR_OK;
}

kvasir_status json_get_u32(const struct json_scope *s, const char *key, bool required, uint32_t min,
                           uint32_t max, uint32_t *out) {
    const json_t *value;
    TRY(field(s, key, required, &value));
    if (!value)
        return KVASIR_OK;
    if (!json_is_integer(value))
        return fail(s->err, KVASIR_ERR_FORMAT, "field %s%s must be an integer, found %s", s->prefix,
                    key, json_kind(value));
    json_int_t n = json_integer_value(value);
    if (n < (json_int_t)min || n > (json_int_t)max)
        return fail(s->err, KVASIR_ERR_FORMAT,
                    "field %s%s is %" JSON_INTEGER_FORMAT ", must be from %u to %u", s->prefix, key,
                    n, min, max);
    *out = (uint32_t)n;
    return KVASIR_OK;
}

kvasir_status json_get_double(const struct json_scope *s, const char *key, bool required,
                              double *out) {
    const json_t *value;
    TRY(field(s, key, required, &value));
    if (!value)
        return KVASIR_OK;
    if (!json_is_number(value))
        return fail(s->err, KVASIR_ERR_FORMAT, "field %s%s must be a number, found %s", s->prefix,
                    key, json_kind(value));
    double x = json_number_value(value);
    if (!isfinite(x) || x <= 0)
        return fail(s->err, KVASIR_ERR_FORMAT, "field %s%s is %g, must be above 0", s->prefix, key,
                    x);
    *out = x;
    return KVASIR_OK;
}

kvasir_status json_get_bool(const struct json_scope *s, const char *key, bool *out) {
    const json_t *value;
    TRY(field(s, key, false, &value));
    if (!value)
        return KVASIR_OK;
    if (!json_is_boolean(value))
        return fail(s->err, KVASIR_ERR_FORMAT, "field %s%s must be true or false, found %s",
                    s->prefix, key, json_kind(value));
    *out = json_is_true(value);
    return KVASIR_OK;
}

kvasir_status json_get_string(const struct json_scope *s, const char *key, bool required,
                              const char **out) {
    const json_t *value;
    TRY(field(s, key, required, &value));
    if (!value)
        return KVASIR_OK;
    if (!json_is_string(value))
        return fail(s->err, KVASIR_ERR_FORMAT, "field %s%s must be a string, found %s", s->prefix,
                    key, json_kind(value));
    *out = json_string_value(value);
    return KVASIR_OK;
}
