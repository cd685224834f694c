/* SPDX-License-Identifier: Apache-2.0 */
/* struct_size.c: a struct that holds another one is copied in three parts, since the caller's inner
 * struct may be shorter than the library's:
 *
 *     struct_size, fields | inner struct, of its own struct_size | fields
 */
#include "engine/struct_size.h"

#include <inttypes.h>
#include <string.h>

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t stated_size(const void *given) {
    size_t size;
    memcpy(&size, given, sizeof size);
    return size;
}

static kvasir_status check_size(const struct sized_struct *s, size_t size, kvasir_error *err) {
    if (size == 0)
        return fail_field(err, KVASIR_ERR_ARGUMENT, s->field,
                          "%s has a struct_size of 0: initialise it with %s", s->name, s->maker);
    if (size < sizeof size || size % sizeof size)
        return fail_field(err, KVASIR_ERR_ARGUMENT, s->field,
                          "%zu is not a size of %s: initialise it with %s", size, s->name,
                          s->maker);
    return KVASIR_OK;
}

static kvasir_status check_newer(const struct sized_struct *s, size_t size, size_t known,
                                 kvasir_error *err) {
    if (size <= known)
        return KVASIR_OK;
    return fail_field(err, KVASIR_ERR_ARGUMENT, s->field,
                      "%s has %zu bytes, this library knows %zu of them: the program was built "
                      "with newer headers than this libkvasir",
                      s->name, size, known);
}

static void set_size(void *out, size_t size) {
    memcpy(out, &size, sizeof size);
}

kvasir_status struct_read(const struct sized_struct *s, const void *given, void *out,
                          kvasir_error *err) {
    const size_t size = stated_size(given), at = s->nested_at;
    TRY(check_size(s, size, err));
    if (!s->nested || size <= at) {
        TRY(check_newer(s, size, s->nested ? at : s->size, err));
        memcpy(out, given, size);
        set_size(out, s->size);
        return KVASIR_OK;
    }
    const char *inner = (const char *)given + at;
    const size_t inner_size = stated_size(inner), known = s->nested->size;
    TRY(struct_read(s->nested, inner, (char *)out + at, err));
    if (size < at + inner_size)
        return fail_field(err, KVASIR_ERR_ARGUMENT, s->field,
                          "%zu is not a size of %s: initialise it with %s", size, s->name,
                          s->maker);
    const size_t rest = size - at - inner_size, known_rest = s->size - at - known;
    TRY(check_newer(s, size, at + inner_size + known_rest, err));
    ASSERT(at + known + rest <= s->size);
    memcpy(out, given, at);
    memcpy((char *)out + at + known, inner + inner_size, rest);
    set_size(out, s->size);
    return KVASIR_OK;
}

void struct_write(const struct sized_struct *s, const void *defaults, void *out, size_t size,
                  size_t nested_size) {
    memset(out, 0, size);
    if (!s->nested) {
        memcpy(out, defaults, least(size, s->size));
    } else {
        const size_t at = s->nested_at, known = s->nested->size;
        ASSERT(at + nested_size <= size && at + known <= s->size);
        memcpy(out, defaults, at);
        struct_write(s->nested, (const char *)defaults + at, (char *)out + at, nested_size, 0);
        memcpy((char *)out + at + nested_size, (const char *)defaults + at + known,
               least(size - at - nested_size, s->size - at - known));
    }
    set_size(out, size);
}
