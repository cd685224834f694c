/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "util/json.h"

enum {
    /* Limit of a tree relative to its text. A safetensors header takes 10 times its size, one of
     * short names and shapes 18 times. "{},{},..." would take 78 times and is refused if it is
     * long. */
    MEMORY_TIMES = 32,
    MEMORY_FREE = 64 << 10,
    REQUEST_FREE = 4 << 20, /* deep tool schemas take more than that */
};

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

/* One pass over the text, or with JSON_DISABLE_EOF_CHECK over its first array or object, skipping
 * strings: nesting depth and the size of its tree. */
static kvasir_status check_bounds(const char *text, size_t len, int64_t at, size_t flags,
                                  unsigned depth_max, uint64_t *tree_bytes, kvasir_error *err) {
    unsigned depth = 0;
    bool in_string = false;
    uint64_t bytes = 0;
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
            bytes += JSON_VALUE_BYTES;
            bytes += ch == '{' ? JSON_OBJECT_BYTES : JSON_ARRAY_BYTES;
            if (++depth > depth_max)
                return fail_at(err, KVASIR_ERR_FORMAT, at + (int64_t)i,
                               "JSON is nested deeper than %u levels", depth_max);
            break;
        case '}':
        case ']':
            depth -= depth > 0;
            if (depth == 0 && (flags & JSON_DISABLE_EOF_CHECK))
                len = i + 1;
            break;
        case ',':
            bytes += JSON_VALUE_BYTES;
            break;
        case ':':
            bytes += JSON_KEY_BYTES;
            break;
        default:
            break;
        }
    }
    *tree_bytes = bytes;
    return KVASIR_OK;
}

static kvasir_status fail_size(size_t len, int64_t at, kvasir_error *err) {
    return fail_at(err, KVASIR_ERR_FORMAT, at,
                   "JSON of %zu bytes would take more than %d times its size in memory", len,
                   MEMORY_TIMES);
}

static bool is_too_large(uint64_t tree_bytes, size_t len, uint64_t free_bytes) {
    return tree_bytes > (uint64_t)MEMORY_TIMES * len + free_bytes;
}

kvasir_status json_load_bounded(const char *text, size_t len, int64_t at, size_t flags,
                                json_t **out, kvasir_error *err) {
    uint64_t tree_bytes;
    *out = NULL;
    TRY(check_bounds(text, len, at, flags, JSON_DEPTH_MAX, &tree_bytes, err));
    if (is_too_large(tree_bytes, len, MEMORY_FREE))
        return fail_size(len, at, err);
    json_error_t problem;
    *out = json_loadb(text, len, flags | JSON_REJECT_DUPLICATES, &problem);
    if (!*out)
        return fail_at(err, KVASIR_ERR_FORMAT, at + problem.position,
                       "JSON does not parse: line %d, column %d: %s", problem.line, problem.column,
                       problem.text);
    return KVASIR_OK;
}

/* Whether a tree of a request's text may be built. */
static kvasir_status check_tree(uint64_t tree_bytes, size_t len, kvasir_error *err) {
    if (is_too_large(tree_bytes, len, REQUEST_FREE))
        return fail_size(len, 0, err);
    if (tree_bytes > JSON_REQUEST_TREE_MAX)
        return fail_at(err, KVASIR_ERR_FORMAT, 0,
                       "JSON of %zu bytes would take %" PRIu64 " MiB in memory, at most %d are "
                       "allowed",
                       len, tree_bytes >> 20, JSON_REQUEST_TREE_MAX >> 20);
    return KVASIR_OK;
}

static kvasir_status load_request(const char *text, size_t len, size_t flags, size_t *used,
                                  json_t **out, kvasir_error *err) {
    uint64_t tree_bytes;
    *out = NULL;
    TRY(check_bounds(text, len, 0, flags, JSON_REQUEST_DEPTH_MAX, &tree_bytes, err));
    TRY(check_tree(tree_bytes, len, err));
    json_error_t problem;
    *out = json_loadb(text, len, flags, &problem);
    *used = (size_t)problem.position;
    if (*out)
        return KVASIR_OK;
    char *quote = strstr(problem.text, " near "); /* what follows is the request's text */
    if (quote)
        *quote = 0;
    return fail_at(err, KVASIR_ERR_TEXT, problem.position, "invalid JSON at byte %d: %s",
                   problem.position, problem.text);
}

kvasir_status json_load_request(const char *text, size_t len, size_t flags, json_t **out,
                                kvasir_error *err) {
    size_t used;
    return load_request(text, len, flags, &used, out, err);
}

kvasir_status json_load_first(const char *text, size_t len, size_t flags, size_t *used,
                              json_t **out, kvasir_error *err) {
    return load_request(text, len, flags | JSON_DISABLE_EOF_CHECK, used, out, err);
}

kvasir_status json_load_part(const struct json_part *part, size_t text_len, uint64_t *tree_bytes,
                             json_t **out, kvasir_error *err) {
    *out = NULL;
    *tree_bytes += part->tree_bytes;
    TRY(check_tree(*tree_bytes, text_len, err));
    *out = json_loadb(part->value, part->value_len, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    return *out ? KVASIR_OK : fail(err, KVASIR_ERR_MEMORY, "not enough memory for a JSON value");
}
