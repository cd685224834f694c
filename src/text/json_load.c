/* SPDX-License-Identifier: Apache-2.0 */
/* jansson behind bounds, for JSON out of files that nobody vouches for: small files of a model and
 * the small parts of a tokenizer.json.
 *
 * jansson recurses for nested values, builds a tree that may be many times the text ("{}," becomes
 * 300 bytes) and, unless told, lets the last of two equal keys win; so nesting and memory are
 * counted here first (a header of 100 MB of '[' costs one scan, not a stack), and duplicates are
 * refused, since two readers could take different ones.
 */
#include "text/text.h"

enum {
    /* Bytes of jansson 2.14 on 64 bits, rounded up with malloc's own: a value with its place in an
     * array, and what an array, an object and a key take on top. */
    VALUE_BYTES = 64,
    ARRAY_BYTES = 144,
    OBJECT_BYTES = 256,
    KEY_BYTES = 96,
    /* What a text may take. A safetensors header takes 10 times its size, one of short names and
     * shapes 18 times; "{},{},..." would take 78 times, and is refused where it is long. */
    MEMORY_TIMES = 32,
    MEMORY_FREE = 64 << 10,
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

kvasir_status json_load_bounded(const char *text, size_t len, int64_t at, size_t flags,
                                json_t **out, kvasir_error *err) {
    *out = NULL;
    TRY(check_bounds(text, len, at, err));
    json_error_t problem;
    *out = json_loadb(text, len, flags | JSON_REJECT_DUPLICATES, &problem);
    if (!*out)
        return fail_at(err, KVASIR_ERR_FORMAT, at + problem.position,
                       "JSON does not parse: line %d, column %d: %s", problem.line, problem.column,
                       problem.text);
    return KVASIR_OK;
}
