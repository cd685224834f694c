/* SPDX-License-Identifier: Apache-2.0 */
/* The only file that calls malloc. Also growing arrays and text, and address space that takes
 * memory only when it is touched. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "util/meter.h"
#include "util/util.h"

/* ---- meters ---------------------------------------------------------------------------------- */

static _Thread_local struct mem_meter *meter;
/* So many bytes were refused, and nothing was freed since: more are not asked for. Callers may try
 * again and again, and each refusal takes the account's mutex. */
static _Thread_local size_t refused = SIZE_MAX;

struct mem_meter *mem_meter_set(struct mem_meter *m) {
    struct mem_meter *before = meter;
    meter = m;
    refused = SIZE_MAX;
    return before;
}

static bool take(size_t bytes) {
    if (bytes < refused && meter->take(meter, bytes))
        return true;
    refused = min_size(refused, bytes);
    return false;
}

static size_t cost_of(void *p) {
    return p ? malloc_usable_size(p) + sizeof(size_t) : 0;
}

/* At least what an allocation of so many bytes will cost: units of 16 bytes, or pages (glibc). */
static size_t cost_before(size_t bytes) {
    enum { HEAD = 32, PAGE = 4096, LARGE = 64 << 10 };
    return bytes > SIZE_MAX / 2 ? bytes : round_up(bytes + HEAD, bytes < LARGE ? 16 : PAGE);
}

/* Before the system is asked for so many bytes. */
static bool may_have(size_t bytes) {
    return !meter || take(cost_before(bytes));
}

/* After it. */
static void *settled(void *p, size_t bytes) {
    const size_t before = cost_before(bytes), after = cost_of(p);
    if (meter && after > before)
        meter->add(meter, after - before);
    else if (meter)
        meter->give(meter, before - after);
    return p;
}

void mem_return_large(void) {
#ifdef __GLIBC__
    enum { LARGE = 128 << 10 }; /* glibc's first value, which by itself would rise to 32 MiB */
    mallopt(M_MMAP_THRESHOLD, LARGE);
#endif
}

void mem_trim(void) {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

/* ---- allocation ------------------------------------------------------------------------------ */

void *mem_alloc(size_t bytes) {
    return may_have(bytes) ? settled(malloc(bytes ? bytes : 1), bytes) : NULL;
}

void *mem_calloc(size_t count, size_t size) {
    size_t bytes;
    if (!mul_size(count, size, &bytes) || !may_have(bytes))
        return NULL;
    return settled(calloc(1, bytes ? bytes : 1), bytes);
}

/* Takes what is more before realloc, which cannot be undone. */
static void *metered_realloc(void *p, size_t bytes) {
    const size_t before = cost_of(p), more = bytes - min_size(bytes, before);
    if (!take(more))
        return NULL;
    void *grown = realloc(p, bytes);
    const size_t expected = before + more, after = grown ? cost_of(grown) : before;
    if (after > expected)
        meter->add(meter, after - expected);
    else
        meter->give(meter, expected - after);
    return grown;
}

void *mem_realloc(void *p, size_t count, size_t size) {
    size_t bytes;
    if (!mul_size(count, size, &bytes))
        return NULL;
    bytes = max_size(bytes, 1);
    return meter ? metered_realloc(p, bytes) : realloc(p, bytes);
}

void *mem_alloc_aligned(size_t bytes) {
    size_t padded;
    if (!add_size(bytes, 128, &padded))
        return NULL;
    padded = padded / 64 * 64;
    const size_t asked = padded + 64; /* for the alignment */
    void *p = may_have(asked) ? settled(aligned_alloc(64, padded), asked) : NULL;
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
    if (meter && p) {
        meter->give(meter, cost_of(p));
        refused = SIZE_MAX;
    }
    free(p);
}

/* At least 64 bytes or 8 items, then doubled. */
void *array_grow(void *list, size_t *cap, size_t need, size_t cap_max, size_t size) {
    ASSERT(need > *cap && need <= cap_max && size > 0);
    size_t least = max_size(64 / size, 8);
    size_t new_cap = *cap > cap_max / 2 ? cap_max : max_size(2 * *cap, least);
    new_cap = max_size(new_cap < cap_max ? new_cap : cap_max, need);
    void *grown = mem_realloc(list, new_cap, size);
    if (grown)
        *cap = new_cap;
    return grown;
}

/* ---- text ------------------------------------------------------------------------------------ */

bool text_reserve(struct text_buf *b, size_t n) {
    size_t need;
    ASSERT(b->len <= b->cap && (b->cap == 0) == (b->data == NULL));
    return add_size(b->len, n, &need) && add_size(need, 1, &need) &&
           ARRAY_GROW(b->data, b->cap, need);
}

bool text_append(struct text_buf *b, const void *data, size_t n) {
    if (!text_reserve(b, n))
        return false;
    if (n)
        memcpy(b->data + b->len, data, n);
    b->len += n;
    b->data[b->len] = 0;
    return true;
}

bool text_puts(struct text_buf *b, const char *text) {
    return text_append(b, text, strlen(text));
}

bool text_vprintf(struct text_buf *b, const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (n < 0 || !text_reserve(b, (size_t)n))
        return false;
    vsnprintf(b->data + b->len, (size_t)n + 1, format, args);
    b->len += (size_t)n;
    return true;
}

bool text_printf(struct text_buf *b, const char *format, ...) {
    va_list args;
    va_start(args, format);
    bool good = text_vprintf(b, format, args);
    va_end(args);
    return good;
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
    /* A huge page would make bytes resident that none of our pages uses. */
    madvise(p, bytes, MADV_NOHUGEPAGE);
    return p;
}

/* By writing, which is no system call. */
void mem_touch(void *at, size_t bytes) {
    volatile char *p = at;
    for (size_t i = 0; i < bytes; i += 4096)
        p[i] = 0;
}

/* Kernels before 5.14 refuse; then memory comes when it is touched, as ever. */
void mem_populate(void *at, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
    const uintptr_t from = (uintptr_t)at & ~(uintptr_t)4095;
    madvise((void *)from, round_up((uintptr_t)at + bytes - from, 4096), MADV_POPULATE_WRITE);
#else
    (void)at;
    (void)bytes;
#endif
}

void mem_release(void *at, size_t bytes) {
    ASSERT(((uintptr_t)at | bytes) % 4096 == 0);
    madvise(at, bytes, MADV_DONTNEED);
}

void mem_unreserve(void *base, size_t bytes) {
    if (base)
        munmap(base, bytes);
}
