/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors files: the only reader and the only writer of their headers.
 *
 *     | u64 n | header: n bytes of JSON                                                    | data |
 *             | {"__metadata__": {..}, NAME: {"dtype", "shape", "data_offsets": [b, e]}, ..} |
 *
 * data_offsets count from the start of the data. Files come from outside, so these rules of the
 * official reader are checked:
 *
 *   ST-1  The header has at most 100 MB, begins with '{', is bounded JSON (json_load_bounded) with
 *         unique keys. Metadata are strings. Names are not empty and hold no control characters.
 *   ST-2  At most ST_DIMS_MAX dims; the shape times the type is exactly e - b and lies in the file.
 *   ST-3  Tensors, in order of their data, begin at 0 and each where the one before ended, and the
 *         last ends with the file: no holes, no overlap (st_check_data).
 *
 * Data may begin at any address: mlx pads no header.
 */
#ifndef KVASIR_SAFETENSORS_H
#define KVASIR_SAFETENSORS_H

#include <jansson.h>

#include "util/util.h"

enum st_dtype { ST_F32, ST_F16, ST_BF16, ST_F8_E4M3, ST_U32, ST_U8, ST_I64, ST_I32, ST_BOOL };
size_t st_dtype_bytes(enum st_dtype dtype);
const char *st_dtype_name(enum st_dtype dtype); /* "BF16" */

/* ---- reading --------------------------------------------------------------------------------- */

enum { ST_DIMS_MAX = 8 }; /* 3-D convolutions of video models have 5 */
struct st_tensor {
    char *name; /* owned by the table */
    enum st_dtype dtype;
    uint32_t n_dims;
    uint64_t dims[ST_DIMS_MAX]; /* slowest first */
    const uint8_t *data;        /* in the file's mapping */
    size_t bytes;
    bool taken; /* for the caller */
};
/* Of one file or of several. Zero-initialised is empty. */
struct st_table {
    struct st_tensor *list; /* [n]; rising by name once st_sort was called */
    size_t n, cap;
    size_t base; /* offset of the data in the file that was read last */
};
/* Appends a file's tensors (ST-1, ST-2). *metadata, if not NULL, becomes its __metadata__ or NULL
 * (json_decref). Errors do not name the file; offsets count from its start. */
kvasir_status st_read(struct st_table *t, const struct file_map *map, json_t **metadata,
                      kvasir_error *err) MUST_CHECK;
/* ST-3 for the tensors [first, n), which are all of this file's, the one read last. */
kvasir_status st_check_data(const struct st_table *t, size_t first, const struct file_map *map,
                            kvasir_error *err) MUST_CHECK;
/* An error if two have the same name. */
kvasir_status st_sort(struct st_table *t, kvasir_error *err) MUST_CHECK;
struct st_tensor *st_find(const struct st_table *t, const char *name); /* NULL: none */
void st_table_free(struct st_table *t);

/* Not empty and without control characters. */
bool st_name_is_clean(const char *name, size_t len);

/* ---- writing --------------------------------------------------------------------------------- */

/* A header under construction. Zero-initialised is empty; data follow in the order of st_add. */
struct st_header {
    json_t *object;
    size_t end;  /* of the data so far */
    bool failed; /* out of memory, or sizes that overflow; st_finish says so */
};
void st_add_metadata(struct st_header *h, json_t *metadata); /* borrowed */
void st_add(struct st_header *h, const char *name, enum st_dtype dtype, const uint64_t *dims,
            uint32_t n_dims);
/* Appends length, header and padding to a multiple of 8 bytes to out. flags are jansson's. Frees
 * the header; false if it failed. */
bool st_finish(struct st_header *h, size_t flags, struct text_buf *out) MUST_CHECK;
void st_header_free(struct st_header *h);

#endif
