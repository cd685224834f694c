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

/* json_loadb, where a meter may refuse memory (util/meter.h): jansson reads beyond a string whose
 * buffer could not grow. So the most that it may need is taken before, tree_bytes for the tree.
 * NULL with problem->position JSON_NO_ROOM: there is not so much. */
enum { JSON_NO_ROOM = -2 };
json_t *json_load_metered(const char *text, size_t len, size_t flags, uint64_t tree_bytes,
                          json_error_t *problem) MUST_CHECK;

/* ---- without a tree (json_walk.c) ------------------------------------------------------------ */

/* A member of an object, or an item of an array (name NULL). Both are as the text has them, the
 * name between its quotes. */
struct json_part {
    const char *name, *value;
    size_t name_len, value_len;
    uint64_t tree_bytes; /* what its tree would take, about */
};
/* Not KVASIR_OK ends the walk with that status. */
typedef kvasir_status json_part_fn(void *user, const struct json_part *part, kvasir_error *err);
/* Reads a text as json_load_request does with JSON_ALLOW_NUL and JSON_REJECT_DUPLICATES, with the
 * same errors, but builds no tree: hands the members of the object, or the items of the array, to
 * fn, as soon as each is read. Needs memory for the names in open objects, 8 bytes each. */
kvasir_status json_walk(const char *text, size_t len, json_part_fn *fn, void *user,
                        kvasir_error *err) MUST_CHECK;
/* Whether a name in a text, with its escapes, is `name`. */
bool json_name_is(const char *text, size_t len, const char *name);
/* The tree of a part of a text of text_len bytes, whose limits hold for all its parts together:
 * *tree_bytes is their sum. */
kvasir_status json_load_part(const struct json_part *part, size_t text_len, uint64_t *tree_bytes,
                             json_t **out, kvasir_error *err) MUST_CHECK;

/* What jansson 2.14 takes on 64 bits, rounded up with malloc's own: a value and its slot in an
 * array, and the overhead of an array, an object and a key. */
enum {
    JSON_VALUE_BYTES = 64,
    JSON_ARRAY_BYTES = 144,
    JSON_OBJECT_BYTES = 256,
    JSON_KEY_BYTES = 96,
};

/* "a string", "null" ..., for errors; of NULL "nothing". */
const char *json_kind(const json_t *value);

#endif
