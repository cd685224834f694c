/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "util/json.h"
#include "util/meter.h"

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

/* ---- jansson beside a meter ------------------------------------------------------------------ */

/* The longest string or number in a text. */
static size_t longest_token(const char *text, size_t len) {
    size_t longest = 0, from = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        const char ch = text[i];
        if (in_string && ch == '\\') {
            i++;
        } else if (ch == '"' || (!in_string && ch && strchr("{}[]:, \t\r\n", ch))) {
            longest = max_size(longest, i - from);
            from = i;
            in_string ^= ch == '"';
        }
    }
    return max_size(longest, len - from);
}

/* Counts what jansson takes of a loan. */
struct loan {
    struct mem_meter meter; /* first */
    size_t used;
};

static bool loan_take(struct mem_meter *m, size_t bytes) {
    ((struct loan *)(void *)m)->used += bytes;
    return true;
}

static void loan_add(struct mem_meter *m, size_t bytes) {
    (void)loan_take(m, bytes);
}

static void loan_give(struct mem_meter *m, size_t bytes) {
    struct loan *loan = (struct loan *)(void *)m;
    ASSERT(bytes <= loan->used);
    loan->used -= bytes;
}

json_t *json_load_metered(const char *text, size_t len, size_t flags, uint64_t tree_bytes,
                          json_error_t *problem) {
    /* the buffer of a token doubles, beside its old self or the string that it becomes */
    enum { TOKEN_TIMES = 3, OTHER = 8 << 10 };
    struct mem_meter *outer = mem_meter_set(NULL);
    mem_meter_set(outer);
    if (!outer)
        return json_loadb(text, len, flags, problem);
    const size_t most = (size_t)tree_bytes + TOKEN_TIMES * longest_token(text, len) + OTHER;
    if (!outer->take(outer, most)) {
        *problem = (json_error_t){.position = JSON_NO_ROOM};
        return NULL;
    }
    struct loan loan = {{loan_take, loan_add, loan_give}, 0};
    mem_meter_set(&loan.meter);
    json_t *json = json_loadb(text, len, flags, problem);
    mem_meter_set(outer);
    if (loan.used > most)
        outer->add(outer, loan.used - most);
    else
        outer->give(outer, most - loan.used);
    return json;
}

/* ---- within bounds --------------------------------------------------------------------------- */

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
    *out = json_load_metered(text, len, flags, tree_bytes, &problem);
    if (problem.position == JSON_NO_ROOM)
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for JSON of %zu bytes", len);
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
    json_error_t problem;
    *out = json_load_metered(part->value, part->value_len, JSON_ALLOW_NUL | JSON_DECODE_ANY,
                             part->tree_bytes, &problem);
    return *out ? KVASIR_OK : fail(err, KVASIR_ERR_MEMORY, "not enough memory for a JSON value");
}
