/* SPDX-License-Identifier: Apache-2.0 */
/* api_json.h: members of a body, read by type. A missing member and null are the same everywhere.
 */
#ifndef API_API_JSON_H
#define API_API_JSON_H

#include <jansson.h>

#include "api/api_error.h"

/* "messages[2].content" */
struct api_path {
    char text[API_PATH_MAX];
};

/* "messages[2].content[0]" and "input": "messages[2].content[0].input"; and the same with [i]. */
struct api_path api_member(const char *at, const char *name);
struct api_path api_item(const char *at, size_t i);

/* The value is missing or not of the type `wanted`, as in "a string". Returns false. */
bool api_wrong_type(struct api_error *err, const char *path, json_t *value, const char *wanted);

/* A member; NULL if it is missing or null. */
json_t *api_get(json_t *object, const char *name);
/* A member that is a string; NULL with *err. */
json_t *api_string_of(json_t *object, const char *at, const char *name, struct api_error *err);
/* The member "type" of an object, a word; NULL with *err. */
const char *api_type_of(json_t *object, const char *at, struct api_error *err);
/* These leave *out unchanged if the member is missing. */
bool api_flag(json_t *object, const char *name, bool *out, struct api_error *err);
bool api_whole(json_t *object, const char *name, json_int_t min, json_int_t max, json_int_t *out,
               struct api_error *err);
/* A string without NUL bytes, such as a role: bytes after one would be lost. *out: of the value. */
bool api_word(json_t *value, const char *path, const char **out, struct api_error *err);
/* The same. `kept`, an array, counts a reference to it. */
bool api_text(json_t *kept, const char *path, json_t *value, const char **out,
              struct api_error *err);
bool api_real(json_t *value, const char *path, double min, double max, float *out,
              struct api_error *err);

/* The arguments of a call, JSON text, as an object, new. The parser only lets objects through;
 * others become {}. */
json_t *api_object_of(json_t *arguments);
/* Appends the value's text. Takes value; false: it is NULL, or out of memory. */
bool api_add_json(json_t *value, struct text_buf *out);
/* "2026-11-25T20:00:00Z", new */
json_t *api_time(int64_t at_s);

#endif
