/* SPDX-License-Identifier: Apache-2.0 */
/* util/json.h: jansson within bounds, for JSON from outside.
 *
 * jansson recurses for nested values, builds a tree that can take many times the size of its text
 * ("{}" takes 300 bytes), and by default lets the last of two equal keys win. So nesting and memory
 * are bounded before a tree is built, by one scan of the text. Duplicate keys in files are refused,
 * because two readers could take different ones.
 *
 * Separate from util.h because builds without jansson (kcheck, opcheck) leave json.c out.
 */
#ifndef KVASIR_UTIL_JSON_H
#define KVASIR_UTIL_JSON_H

#include <jansson.h>

#include "util/util.h"

enum {
    /* The deepest file we read is config.json (rope_parameters: 3 levels). 32 leaves room for
     * vendors' additions. */
    JSON_DEPTH_MAX = 32,
    /* Requests may contain schemas and arguments of tools. This is jansson's own limit. */
    JSON_REQUEST_DEPTH_MAX = 2048,
    /* Bytes of a request's tree: 2 million numbers, that is, a prompt of that many token ids. */
    JSON_REQUEST_TREE_MAX = 128 << 20,
};

/* Text from a file. `at` is its offset in the file, for errors. flags are jansson's. */
kvasir_status json_load_bounded(const char *text, size_t len, int64_t at, size_t flags,
                                json_t **out, kvasir_error *err) MUST_CHECK;

/* The body of a request, or text inside one. Errors never quote it, since it may be private:
 * KVASIR_ERR_TEXT, "invalid JSON at byte N: why", with N as the offset. */
kvasir_status json_load_request(const char *text, size_t len, size_t flags, json_t **out,
                                kvasir_error *err) MUST_CHECK;
/* The same of the array or object that the text begins with; *used: its bytes. */
kvasir_status json_load_first(const char *text, size_t len, size_t flags, size_t *used,
                              json_t **out, kvasir_error *err) MUST_CHECK;

/* "a string", "null" ..., for errors; of NULL "nothing". */
const char *json_kind(const json_t *value);

#endif
