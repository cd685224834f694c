/* SPDX-License-Identifier: Apache-2.0 */
/* bytes.h: bytes that grow. */
#ifndef API_BYTES_H
#define API_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Zero-initialised is empty. */
struct bytes {
    char *data; /* [len] */
    size_t len, cap;
};

/* Room for n more; false: out of memory, nothing has changed. */
static inline bool bytes_room(struct bytes *b, size_t n) {
    if (b->cap - b->len >= n)
        return true;
    const size_t cap = 2 * b->cap + n + 256;
    char *data = realloc(b->data, cap);
    if (!data)
        return false;
    b->data = data;
    b->cap = cap;
    return true;
}

static inline bool bytes_add(struct bytes *b, const void *data, size_t n) {
    if (!bytes_room(b, n))
        return false;
    if (n)
        memcpy(b->data + b->len, data, n);
    b->len += n;
    return true;
}

static inline bool bytes_add_text(struct bytes *b, const char *text) {
    return bytes_add(b, text, strlen(text));
}

static inline void bytes_free(struct bytes *b) {
    free(b->data);
    *b = (struct bytes){0};
}

#endif
