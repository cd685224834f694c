/* SPDX-License-Identifier: Apache-2.0 */
/* Fields of JSON files from outside: config.json, the safetensors header and index. They are parsed
 * within bounds (json_load_bounded). The getters check type and range and name the field in errors:
 * no number of a file is used unchecked. */
#include <math.h>

#include "model/model_internal.h"

kvasir_status json_parse(const char *text, size_t len, int64_t at, json_t **out,
                         kvasir_error *err) {
    return json_load_bounded(text, len, at, 0, out, err);
}

kvasir_status json_parse_strings(const char *text, size_t len, int64_t at, json_t **out,
                                 kvasir_error *err) {
    return json_load_bounded(text, len, at, JSON_DECODE_INT_AS_REAL, out, err);
}

/* *value stays NULL if an optional field is missing. */
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
