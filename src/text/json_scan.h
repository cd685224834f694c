/* SPDX-License-Identifier: Apache-2.0 */
/* json_scan.h: a strict pull reader for JSON (RFC 8259). The caller says what must come next, and
 * no tree is built. It is for the parts of files that are too large for a tree; jansson reads the
 * rest.
 *
 *     kvasir_status status = scan_open(s, '{');
 *     while (scan_each_key(s, &key, &status))
 *         status = ... read or skip the value
 *
 * Errors have the byte offset and begin with s->name, the name of the file. Strings are checked to
 * be UTF-8 without unpaired surrogates. Recursion is at most JSON_DEPTH_MAX deep.
 */
#ifndef KVASIR_JSON_SCAN_H
#define KVASIR_JSON_SCAN_H

#include "text/text.h"
#include "util/json.h"

struct json_scan {
    const char *name;
    struct text_span text;
    size_t at;
    bool first; /* in an object or array that was just opened */
    kvasir_error *err;
    struct text_buf plain; /* the last string, if it had escapes */
};
void scan_init(struct json_scan *s, const char *name, struct text_span text, kvasir_error *err);
void scan_deinit(struct json_scan *s);

/* Fails at the current place. */
kvasir_status scan_fail(const struct json_scan *s, kvasir_status code, const char *what);

/* The first byte of the next thing; 0 at the end of the text. */
char scan_peek(struct json_scan *s);
kvasir_status scan_open(struct json_scan *s, char bracket) MUST_CHECK;
/* Moves to the next item, or past the closing bracket: then *more is false. */
kvasir_status scan_next_item(struct json_scan *s, bool *more) MUST_CHECK;
/* For loops over an object or array. False: it has ended, or *status was or became a failure. A key
 * is valid until the next string is read. */
bool scan_each_key(struct json_scan *s, struct text_span *key, kvasir_status *status) MUST_CHECK;
bool scan_each_item(struct json_scan *s, kvasir_status *status) MUST_CHECK;
/* *out is valid until the next string is read. */
kvasir_status scan_string(struct json_scan *s, struct text_span *out) MUST_CHECK;
kvasir_status scan_id(struct json_scan *s, int32_t *out) MUST_CHECK; /* 0 to INT32_MAX */
kvasir_status scan_bool(struct json_scan *s, bool *out) MUST_CHECK;
/* Any value, checked; *raw is its text. */
kvasir_status scan_skip(struct json_scan *s, struct text_span *raw) MUST_CHECK;
/* Only white space may follow. */
kvasir_status scan_finish(struct json_scan *s) MUST_CHECK;

#endif
