/* SPDX-License-Identifier: Apache-2.0 */
/* template_limits.c: the memory, output, steps and depth of one parse or rendering (struct tpl),
 * each with a limit, and the failure that ends it.
 *
 * Memory is an arena: a chain of chunks, newest first, each filled from the front.
 *
 *     newest ─▶ [used......free] ─▶ [used......] ─▶ [one large block] ─▶ NULL
 *
 * A failure writes the error and jumps to the setjmp in template.c, which releases the arena.
 */
#include <stdio.h>

#include "text/template_internal.h"

#define CHUNK_FIRST ((size_t)16 << 10)
#define CHUNK_MOST  ((size_t)1 << 20)

struct tpl_chunk {
    struct tpl_chunk *older;
    size_t size, used;
    max_align_t data[];
};

/* ---- failure --------------------------------------------------------------------------------- */

/* Line and column of t->at, both from 1; columns count code points. */
static void locate_error(const struct tpl *t, size_t *line, size_t *column) {
    *line = *column = 1;
    for (size_t i = 0; i < t->at && i < t->source_len; i++) {
        unsigned char c = (unsigned char)t->source[i];
        if (c == '\n') {
            ++*line;
            *column = 1;
        } else if ((c & 0xc0) != 0x80) {
            ++*column;
        }
    }
}

static _Noreturn void leave_run(struct tpl *t, kvasir_status status) {
    t->status = status;
    longjmp(t->failed, 1);
}

_Noreturn void tpl_fail(struct tpl *t, const char *format, ...) {
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t line, column;
    locate_error(t, &line, &column);
    (void)fail(t->err, KVASIR_ERR_TEMPLATE, "chat template line %zu column %zu: %s", line, column,
               text);
    leave_run(t, KVASIR_ERR_TEMPLATE);
}

static _Noreturn void fail_memory(struct tpl *t) {
    (void)fail(t->err, KVASIR_ERR_MEMORY, "not enough memory for a chat template");
    leave_run(t, KVASIR_ERR_MEMORY);
}

void tpl_enter_deep(struct tpl *t) {
    tpl_fail(t, "nested more than %u levels deep", t->depth_limit);
}

/* One question in so many steps, which take some tenths of a millisecond. */
enum { STEPS_A_LOOK = 4096 };

static void look_for_stop(struct tpl *t) {
    t->next_look = t->steps + STEPS_A_LOOK;
    if (!t->stop || !t->stop(t->stop_user))
        return;
    (void)fail(t->err, KVASIR_ERR_CANCELLED, "cancelled while the chat template was running");
    leave_run(t, KVASIR_ERR_CANCELLED);
}

void tpl_charge(struct tpl *t, uint64_t steps) {
    DEBUG_ASSERT(t->steps <= t->steps_limit);
    if (t->steps_limit - t->steps < steps)
        tpl_fail(t, "takes more than %llu steps", (unsigned long long)t->steps_limit);
    t->steps += steps;
    if (t->steps >= t->next_look)
        look_for_stop(t);
}

/* ---- memory ---------------------------------------------------------------------------------- */

void *tpl_arena_take(struct tpl *t, struct tpl_arena *arena, size_t bytes) {
    const size_t align = _Alignof(max_align_t);
    if (bytes > SIZE_MAX / 2 || bytes > arena->limit)
        tpl_fail(t, "needs more than %zu bytes of memory", arena->limit);
    bytes = round_up(bytes ? bytes : 1, align);
    struct tpl_chunk *c = arena->newest;
    if (!c || c->size - c->used < bytes) {
        size_t size = max_size(min_size(c ? c->size * 2 : CHUNK_FIRST, CHUNK_MOST), bytes);
        if (arena->taken + size > arena->limit)
            tpl_fail(t, "needs more than %zu bytes of memory", arena->limit);
        struct tpl_chunk *fresh = mem_alloc(sizeof *fresh + size);
        if (!fresh)
            fail_memory(t);
        *fresh = (struct tpl_chunk){.older = c, .size = size};
        arena->newest = c = fresh;
        arena->taken += size;
    }
    ASSERT(bytes <= c->size - c->used && arena->taken <= arena->limit);
    void *p = (char *)c->data + c->used;
    c->used += bytes;
    return p;
}

void tpl_arena_release(struct tpl_arena *arena) {
    while (arena->newest) {
        struct tpl_chunk *older = arena->newest->older;
        mem_free(arena->newest);
        arena->newest = older;
    }
    arena->taken = 0;
}

void *tpl_alloc(struct tpl *t, size_t count, size_t size) {
    size_t bytes;
    if (!mul_size(count, size, &bytes))
        tpl_fail(t, "needs more than %zu bytes of memory", t->arena->limit);
    void *p = tpl_arena_take(t, t->arena, bytes);
    memset(p, 0, bytes);
    return p;
}

void *tpl_grow_array(struct tpl *t, struct tpl_arena *arena, const void *items, size_t n,
                     size_t *cap, size_t first, size_t size) {
    size_t bytes;
    ASSERT(n == *cap);
    *cap = n ? 2 * n : first;
    if (!mul_size(*cap, size, &bytes))
        tpl_fail(t, "needs more than %zu bytes of memory", arena->limit);
    void *grown = tpl_arena_take(t, arena, bytes);
    if (n)
        memcpy(grown, items, n * size);
    memset((char *)grown + n * size, 0, bytes - n * size);
    return grown;
}

/* ---- output ---------------------------------------------------------------------------------- */

static bool all_same(const char *each, size_t len) {
    return memcmp(each, each + 1, len - 1) == 0;
}

void tpl_note_authors(struct tpl *t, struct tpl_authors *into, size_t used, size_t cap,
                      struct tpl_authors by, size_t len) {
    ASSERT(used <= cap && len <= cap - used);
    if (!len)
        return;
    if (by.each && all_same(by.each, len))
        by = (struct tpl_authors){.all = (uint8_t)by.each[0]};
    if (!used && !by.each)
        *into = by;
    if (!into->each && !by.each && into->all == by.all)
        return;
    if (!into->each) {
        into->each = tpl_arena_take(t, t->arena, cap);
        memset(into->each, into->all, used);
    }
    if (by.each)
        memcpy(into->each + used, by.each, len);
    else
        memset(into->each + used, by.all, len);
}

static bool append_authors(struct text_buf *to, struct tpl_authors by, size_t len) {
    if (by.each)
        return text_append(to, by.each, len);
    if (!text_reserve(to, len))
        return false;
    memset(to->data + to->len, by.all, len);
    to->len += len;
    return true;
}

void tpl_out_by(struct tpl *t, struct tpl_out *out, const char *data, size_t len,
                struct tpl_authors by) {
    if (!len)
        return;
    if (len > t->output_limit || out->len > t->output_limit - len)
        tpl_fail(t, "writes more than %zu bytes", t->output_limit);
    if (out->direct) {
        if (!text_append(out->direct, data, len) ||
            (out->direct_authors && !append_authors(out->direct_authors, by, len)))
            fail_memory(t);
        out->len += len;
        return;
    }
    ASSERT(out->len <= out->cap);
    if (len > out->cap - out->len) {
        size_t cap = out->cap ? out->cap * 2 : 256;
        cap = cap - out->len < len ? out->len + len : cap;
        char *grown = tpl_arena_take(t, t->arena, cap);
        if (out->len)
            memcpy(grown, out->data, out->len);
        out->data = grown;
        out->cap = cap;
        if (out->by.each) {
            grown = tpl_arena_take(t, t->arena, cap);
            memcpy(grown, out->by.each, out->len);
            out->by.each = grown;
        }
    }
    tpl_note_authors(t, &out->by, out->len, out->cap, by, len);
    memcpy(out->data + out->len, data, len);
    out->len += len;
}

void tpl_out_printf(struct tpl *t, struct tpl_out *out, const char *format, ...) {
    char text[512]; /* only for our own numbers and names */
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n > 0)
        tpl_out_put(t, out, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}
