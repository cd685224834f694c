/* SPDX-License-Identifier: Apache-2.0 */
/* The only file that calls malloc. Also growing text, and address space whose memory comes when it
 * is touched. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "util/util.h"

void *mem_alloc(size_t bytes) {
    return malloc(bytes ? bytes : 1);
}

void *mem_calloc(size_t count, size_t size) {
    return calloc(count ? count : 1, size ? size : 1);
}

void *mem_realloc(void *p, size_t count, size_t size) {
    size_t bytes;
    if (!mul_size(count, size, &bytes))
        return NULL;
    return realloc(p, bytes ? bytes : 1);
}

void *mem_alloc_aligned(size_t bytes) {
    size_t padded;
    if (!add_size(bytes, 128, &padded))
        return NULL;
    padded = padded / 64 * 64;
    void *p = aligned_alloc(64, padded);
    if (p)
        memset(p, 0, padded);
    return p;
}

char *mem_strndup(const char *text, size_t n) {
    char *copy = mem_alloc(n + 1);
    if (!copy)
        return NULL;
    memcpy(copy, text, n);
    copy[n] = 0;
    return copy;
}

char *mem_strdup(const char *text) {
    return mem_strndup(text, strlen(text));
}

void mem_free(void *p) {
    free(p);
}

/* ---- text ------------------------------------------------------------------------------------ */

static bool text_room(struct text_buf *b, size_t more) {
    size_t need;
    if (!add_size(b->len, more, &need) || !add_size(need, 1, &need))
        return false;
    if (need <= b->cap)
        return true;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need)
        if (!mul_size(cap, 2, &cap))
            return false;
    char *data = mem_realloc(b->data, cap, 1);
    if (!data)
        return false;
    b->data = data;
    b->cap = cap;
    return true;
}

bool text_append(struct text_buf *b, const char *data, size_t n) {
    if (!text_room(b, n))
        return false;
    if (n)
        memcpy(b->data + b->len, data, n);
    b->len += n;
    b->data[b->len] = 0;
    return true;
}

bool text_printf(struct text_buf *b, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !text_room(b, (size_t)n))
        return false;
    va_start(args, format);
    vsnprintf(b->data + b->len, (size_t)n + 1, format, args);
    va_end(args);
    b->len += (size_t)n;
    return true;
}

void text_free(struct text_buf *b) {
    mem_free(b->data);
    *b = (struct text_buf){0};
}

/* ---- address space --------------------------------------------------------------------------- */

void *mem_reserve(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    /* A huge page would make bytes resident that no page of ours uses. */
    madvise(p, bytes, MADV_NOHUGEPAGE);
    return p;
}

void mem_release(void *at, size_t bytes) {
    madvise(at, bytes, MADV_DONTNEED);
}

void mem_unreserve(void *base, size_t bytes) {
    if (base)
        munmap(base, bytes);
}
