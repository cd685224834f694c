/* SPDX-License-Identifier: Apache-2.0 */
/* http_head.h: the bytes of an HTTP/1.1 request, strictly (http_head.c). No input or output.
 *
 * Invariants
 *   HEAD-1  Where a request ends is decided here alone, and only one way: any head or chunk that
 *           another parser could end elsewhere is refused. After a refusal the connection closes.
 *   HEAD-2  The result does not depend on how the bytes were cut into pieces.
 */
#ifndef HTTP_HTTP_HEAD_H
#define HTTP_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HTTP_LINE_MAX = 8 << 10,  /* bytes of a request line: 414 beyond it */
    HTTP_HEAD_MAX = 16 << 10, /* of a head, or of the trailers of a chunked body: 431 */
    HTTP_FIELDS_MAX = 100,    /* 431 */
    HTTP_QUERY_ARGS_MAX = 256,
    HTTP_CHUNK_LINE_MAX = 256, /* size and extensions of a chunk */
};

struct http_problem {
    unsigned status;
    const char *why;
};

/* ---- where a head ends ----------------------------------------------------------------------- */

/* Bytes are looked at once, however slowly they come. Zeros at first. */
struct head_scan {
    size_t at, line; /* the next byte, the begin of its line */
    bool has_line;
};
enum head_step { HEAD_MORE, HEAD_WHOLE, HEAD_BAD };
/* data: from the head's first byte on, the known n bytes. HEAD_WHOLE: it is scan->at bytes long,
 * with the empty line. */
enum head_step head_scan(struct head_scan *scan, const char *data, size_t n,
                         struct http_problem *problem);

/* ---- what it says ---------------------------------------------------------------------------- */

struct http_head {
    const char *method, *path, *query; /* path: decoded, without the query, which is not decoded */
    bool is_1_1, close, chunked, has_length, expects_continue;
    uint64_t length;
    size_t n_fields;
    struct {
        const char *name, *value;
    } fields[HTTP_FIELDS_MAX];
};
/* text: the n bytes of a whole head, and a NUL. Becomes the strings that *head refers to. False
 * with *problem; method, path and query are those found until then, or "GET", "/" and "". */
bool head_parse(struct http_head *head, char *text, size_t n, struct http_problem *problem);
/* The first with this name. NULL: none. */
const char *head_field(const struct http_head *head, const char *name);

/* ---- its body -------------------------------------------------------------------------------- */

struct body_frame {
    enum { BODY_IN_DATA, BODY_IN_SIZE, BODY_AFTER_DATA, BODY_IN_TRAILERS, BODY_ENDED } phase;
    bool chunked;
    uint64_t left; /* of the body or the chunk */
    struct head_scan trailers;
};
void body_begin(struct body_frame *frame, const struct http_head *head);
enum body_step { BODY_MORE, BODY_PART, BODY_DONE, BODY_BAD };
/* Takes *used of the n bytes. BODY_PART: the first *piece <= *used of them belong to the body.
 * BODY_MORE: more bytes are needed. */
enum body_step body_next(struct body_frame *frame, const char *data, size_t n, size_t *used,
                         size_t *piece, struct http_problem *problem);

#endif
