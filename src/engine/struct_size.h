/* SPDX-License-Identifier: Apache-2.0 */
/* struct_size.h: option structs of callers that were built with other versions of the headers.
 *
 *     caller's struct, of its struct_size  ->  the library's, whose further fields keep defaults
 */
#ifndef ENGINE_STRUCT_SIZE_H
#define ENGINE_STRUCT_SIZE_H

#include "util/util.h"

/* An option struct: size_t struct_size first, then fields; at most one of them is another option
 * struct by value. */
struct sized_struct {
    const char *name;  /* "kvasir_engine_options" */
    const char *maker; /* "kvasir_engine_defaults()" */
    const char *field; /* "engine.struct_size" */
    size_t size;
    const struct sized_struct *nested; /* NULL: none */
    size_t nested_at;                  /* its offset, the same in all versions */
};

extern const struct sized_struct SIZED_CONTEXT, SIZED_SAMPLING; /* which others hold */

/* Copies `given` over *out, which holds the library's defaults. Fields that the caller's version
 * does not have keep those. Fails if struct_size is 0, no size of such a struct, or larger than the
 * library's. */
kvasir_status struct_read(const struct sized_struct *s, const void *given, void *out,
                          kvasir_error *err) MUST_CHECK;
/* The other way: writes `defaults`, the library's, to a caller's struct of `size` bytes, whose
 * nested one has nested_size. Fields that the library does not know become 0. */
void struct_write(const struct sized_struct *s, const void *defaults, void *out, size_t size,
                  size_t nested_size);

#endif
