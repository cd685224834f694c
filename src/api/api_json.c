/* SPDX-License-Identifier: Apache-2.0 */
/* api_json.c: members of a body by type, with errors that name their path. */
#include "api/api_json.h"

#include "util/json.h"

#include <string.h>
#include <time.h>

static const char *type_name(json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

bool api_wrong_type(struct api_error *err, const char *path, json_t *value, const char *wanted) {
    if (!value)
        return api_refuse(err, path, "missing");
    if (json_is_real(value) && strcmp(wanted, "a whole number") == 0)
        return api_refuse(err, path, "%.10g is not a whole number", json_real_value(value));
    return api_refuse(err, path, "is %s, not %s", type_name(value), wanted);
}

struct api_path api_member(const char *at, const char *name) {
    struct api_path p;
    snprintf(p.text, sizeof p.text, "%.80s.%.40s", at, name);
    return p;
}

struct api_path api_item(const char *at, size_t i) {
    struct api_path p;
    snprintf(p.text, sizeof p.text, "%.80s[%zu]", at, i);
    return p;
}

json_t *api_get(json_t *object, const char *name) {
    json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

bool api_flag(json_t *object, const char *name, bool *out, struct api_error *err) {
    json_t *value = api_get(object, name);
    if (!value)
        return true;
    if (!json_is_boolean(value))
        return api_wrong_type(err, name, value, "true or false");
    *out = json_is_true(value);
    return true;
}

bool api_whole(json_t *object, const char *name, json_int_t min, json_int_t max, json_int_t *out,
               struct api_error *err) {
    json_t *value = api_get(object, name);
    if (!value)
        return true;
    if (!json_is_integer(value))
        return api_wrong_type(err, name, value, "a whole number");
    json_int_t n = json_integer_value(value);
    if (n < min || n > max)
        return api_refuse(err, name, "%lld is not between %lld and %lld", (long long)n,
                          (long long)min, (long long)max);
    *out = n;
    return true;
}

bool api_real(json_t *value, const char *path, double min, double max, float *out,
              struct api_error *err) {
    if (!value)
        return true;
    if (!json_is_number(value))
        return api_wrong_type(err, path, value, "a number");
    double x = json_number_value(value);
    if (!(x >= min && x <= max))
        return api_refuse(err, path, "%.10g is not between %.10g and %.10g", x, min, max);
    *out = (float)x;
    return true;
}

bool api_word(json_t *value, const char *path, const char **out, struct api_error *err) {
    if (!json_is_string(value))
        return api_wrong_type(err, path, value, "a string");
    if (strlen(json_string_value(value)) != json_string_length(value))
        return api_refuse(err, path, "contains a NUL character");
    *out = json_string_value(value);
    return true;
}

bool api_text(json_t *kept, const char *path, json_t *value, const char **out,
              struct api_error *err) {
    return api_word(value, path, out, err) &&
           (json_array_append(kept, value) == 0 || api_no_memory(err));
}

json_t *api_string_of(json_t *object, const char *at, const char *name, struct api_error *err) {
    json_t *value = api_get(object, name);
    if (json_is_string(value))
        return value;
    api_wrong_type(err, api_member(at, name).text, value, "a string");
    return NULL;
}

const char *api_type_of(json_t *object, const char *at, struct api_error *err) {
    if (!json_is_object(object)) {
        api_wrong_type(err, at, object, "an object");
        return NULL;
    }
    const char *type;
    return api_word(api_get(object, "type"), api_member(at, "type").text, &type, err) ? type : NULL;
}

json_t *api_object_of(json_t *arguments) {
    json_t *object = NULL;
    if (json_load_request(json_string_value(arguments), json_string_length(arguments),
                          JSON_ALLOW_NUL, &object, NULL) == KVASIR_OK &&
        json_is_object(object))
        return object;
    json_decref(object);
    return json_object();
}

/* json_dump_callback_t */
static int add_piece(const char *text, size_t len, void *out) {
    return text_append(out, text, len) ? 0 : -1;
}

bool api_add_json(json_t *value, struct text_buf *out) {
    const bool good =
        value && json_dump_callback(value, add_piece, out, JSON_COMPACT | JSON_ENCODE_ANY) == 0;
    json_decref(value);
    return good;
}

json_t *api_time(int64_t at_s) {
    const time_t at = (time_t)at_s;
    char text[40] = "";
    struct tm when;
    if (gmtime_r(&at, &when))
        (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &when);
    return json_string(text);
}
