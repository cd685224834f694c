/* SPDX-License-Identifier: Apache-2.0 */
/* template.c: the front of the chat-template interpreter (the public functions of text.h), its
 * memory and its errors.
 *
 * A parse or a rendering is one struct tpl on the caller's stack. Its memory is an arena: a chain
 * of chunks, newest first, each filled from the front. A failure anywhere below writes the error
 * and jumps back to the one setjmp here (guard), after which the arena is released or, for a parse
 * that went well, kept inside struct template.
 *
 *     newest ─▶ [used......free] ─▶ [used......] ─▶ [one large block] ─▶ NULL
 *
 * Limits: output_bytes bounds the text, and the arena with it (ARENA_BASE + ARENA_FACTOR x
 * output_bytes), so that doubling a string or a list in a loop ends early; steps bounds time; depth
 * bounds the C stack: one level costs at most some 600 bytes of stack in an optimized build, 2 KiB
 * with sanitizers.
 */
#include <stdio.h>

#include "text/template_internal.h"

#define SOURCE_LIMIT ((size_t)512 << 10) /* templates seen in the wild are below 64 KiB */
#define PARSE_DEPTH  200 /* nested brackets and blocks: 12 C frames each, templates seen need 12 */
#define PARSE_ARENA  ((size_t)256 << 20) /* at most some 400 bytes for a byte of source */
#define ARENA_BASE   ((size_t)64 << 20)
#define ARENA_FACTOR 4 /* a captured block as large as that, in a buffer that grew by doubling */
#define CHUNK_FIRST  ((size_t)16 << 10)
#define CHUNK_MOST   ((size_t)1 << 20)

struct tpl_chunk {
    struct tpl_chunk *older;
    size_t size, used;
    max_align_t data[];
};

/* ---- memory ---------------------------------------------------------------------------------- */

static _Noreturn void leave(struct tpl *t, kvasir_status status) {
    t->status = status;
    longjmp(t->failed, 1);
}

static _Noreturn void fail_memory(struct tpl *t) {
    (void)fail(t->err, KVASIR_ERR_MEMORY, "out of memory for a chat template");
    leave(t, KVASIR_ERR_MEMORY);
}

void *tpl_arena_take(struct tpl *t, struct tpl_arena *arena, size_t bytes) {
    const size_t align = _Alignof(max_align_t);
    if (bytes > SIZE_MAX / 2 || bytes > arena->limit)
        tpl_fail(t, "needs more than %zu bytes of memory", arena->limit);
    bytes = round_up(bytes ? bytes : 1, align);
    struct tpl_chunk *c = arena->newest;
    if (!c || c->size - c->used < bytes) {
        size_t size = c ? c->size * 2 : CHUNK_FIRST;
        size = size > CHUNK_MOST ? CHUNK_MOST : size;
        size = size < bytes ? bytes : size;
        if (arena->taken + size > arena->limit)
            tpl_fail(t, "needs more than %zu bytes of memory", arena->limit);
        struct tpl_chunk *fresh = mem_alloc(sizeof *fresh + size);
        if (!fresh)
            fail_memory(t);
        *fresh = (struct tpl_chunk){.older = c, .size = size};
        arena->newest = c = fresh;
        arena->taken += size;
    }
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

void tpl_out_put(struct tpl *t, struct tpl_out *out, const char *data, size_t len) {
    if (!len)
        return;
    if (len > t->output_limit || out->len > t->output_limit - len)
        tpl_fail(t, "writes more than %zu bytes", t->output_limit);
    if (out->direct) {
        if (!text_append(out->direct, data, len))
            fail_memory(t);
        out->len += len;
        return;
    }
    if (len > out->cap - out->len) {
        size_t cap = out->cap ? out->cap * 2 : 256;
        cap = cap - out->len < len ? out->len + len : cap;
        char *grown = tpl_arena_take(t, t->arena, cap);
        if (out->len)
            memcpy(grown, out->data, out->len);
        out->data = grown;
        out->cap = cap;
    }
    memcpy(out->data + out->len, data, len);
    out->len += len;
}

void tpl_out_printf(struct tpl *t, struct tpl_out *out, const char *format, ...) {
    char text[512]; /* numbers and names of ours only */
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n > 0)
        tpl_out_put(t, out, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

/* ---- errors and limits ----------------------------------------------------------------------- */

/* Line and column (both from 1, columns in code points) of t->at. */
static void locate(const struct tpl *t, size_t *line, size_t *column) {
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

_Noreturn void tpl_fail(struct tpl *t, const char *format, ...) {
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t line, column;
    locate(t, &line, &column);
    (void)fail(t->err, KVASIR_ERR_TEMPLATE, "chat template line %zu column %zu: %s", line, column,
               text);
    leave(t, KVASIR_ERR_TEMPLATE);
}

void tpl_enter_deep(struct tpl *t) {
    tpl_fail(t, "nested more than %u levels deep", t->depth_limit);
}

void tpl_charge(struct tpl *t, uint64_t steps) {
    if (t->steps_limit - t->steps < steps)
        tpl_fail(t, "takes more than %llu steps", (unsigned long long)t->steps_limit);
    t->steps += steps;
}

/* Runs fn under the one setjmp. A function of its own so that no local of the callers can be
 * clobbered. */
static kvasir_status guard(struct tpl *t, void (*fn)(struct tpl *, void *), void *ctx) {
    if (setjmp(t->failed) == 0) {
        fn(t, ctx);
        t->status = KVASIR_OK;
    }
    return t->status;
}

/* ---- parse ----------------------------------------------------------------------------------- */

struct parse_job {
    const char *source;
    size_t len;
    struct template *tmpl;
    struct tpl_arena scratch;
};

/* \r\n and \r become \n; one line end at the very end is dropped (Jinja2 without
 * keep_trailing_newline). */
static void take_source(struct tpl *t, struct parse_job *job) {
    char *to = tpl_alloc(t, job->len + 1, 1);
    size_t n = 0;
    for (size_t i = 0; i < job->len; i++) {
        char c = job->source[i];
        if (c == '\r') {
            c = '\n';
            if (i + 1 < job->len && job->source[i + 1] == '\n')
                i++;
        }
        to[n++] = c;
    }
    if (n && to[n - 1] == '\n')
        n--;
    to[n] = 0;
    job->tmpl->source = t->source = to;
    job->tmpl->source_len = t->source_len = n;
}

static void parse_all(struct tpl *t, void *ctx) {
    struct parse_job *job = ctx;
    if (job->len > SOURCE_LIMIT)
        tpl_fail(t, "the source has more than %zu bytes", SOURCE_LIMIT);
    take_source(t, job);
    t->at = utf8_check(t->source, t->source_len);
    if (t->at < t->source_len)
        tpl_fail(t, "the source is not valid UTF-8");
    struct tpl_parser p = {.t = t, .tmpl = job->tmpl, .scratch = &job->scratch};
    p.tok = tpl_lex(t, &job->scratch);
    tpl_parse(&p);
}

kvasir_status template_parse(const char *source, size_t len, struct template **out,
                             kvasir_error *err) {
    struct template *tmpl = mem_calloc(1, sizeof *tmpl);
    if (!tmpl)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for a chat template");
    tmpl->arena.limit = PARSE_ARENA;
    struct parse_job job = {source, len, tmpl, {.limit = PARSE_ARENA}};
    struct tpl t = {.arena = &tmpl->arena, .err = err, .depth_limit = PARSE_DEPTH};
    t.steps_limit = UINT64_MAX; /* parsing is linear in a source of bounded size */
    t.output_limit = SIZE_MAX;
    kvasir_status status = guard(&t, parse_all, &job);
    tpl_arena_release(&job.scratch);
    if (status == KVASIR_OK)
        *out = tmpl;
    else
        template_destroy(tmpl);
    return status;
}

void template_destroy(struct template *t) {
    if (!t)
        return;
    tpl_arena_release(&t->arena);
    mem_free(t);
}

struct text_span template_source(const struct template *t) {
    return (struct text_span){t->source, t->source_len};
}

/* ---- render ---------------------------------------------------------------------------------- */

struct template_limits template_limits_default(void) {
    /* A 1,000-message conversation with tools takes about 10^5 steps; 10^7 run in well under a
     * second. Depth: the deepest template seen needs 40 levels, a macro that calls itself 12 more
     * per level of a JSON schema. */
    return (struct template_limits){
        .steps = 10000000, .depth = 1000, .output_bytes = (size_t)64 << 20};
}

struct render_job {
    const struct template *tmpl;
    json_t *args;
    struct tpl_out out;
};

static void render_all(struct tpl *t, void *ctx) {
    struct render_job *job = ctx;
    if (!json_is_object(job->args))
        tpl_fail(t, "its arguments are not a JSON object");
    t->args = tpl_from_json(t, job->args).dict;
    t->out = &job->out;
    struct tpl_scope *root = tpl_scope_new(t, NULL);
    (void)tpl_exec(t, root, job->tmpl->body);
}

kvasir_status template_render(const struct template *t, json_t *args, int64_t now,
                              const struct template_limits *limits, struct text_buf *out,
                              kvasir_error *err) {
    struct template_limits l = limits ? *limits : template_limits_default();
    struct tpl_arena arena = {0};
    size_t room;
    if (!mul_size(l.output_bytes, ARENA_FACTOR, &room) || !add_size(room, ARENA_BASE, &room))
        room = SIZE_MAX / 2;
    arena.limit = room;
    const size_t before = out->len;
    if (!text_append(out, "", 0)) /* a prompt without a character is still a string */
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for a chat template");
    struct render_job job = {.tmpl = t, .args = args, .out.direct = out};
    struct tpl run = {.arena = &arena,
                      .source = t->source,
                      .source_len = t->source_len,
                      .err = err,
                      .depth_limit = l.depth,
                      .tmpl = t,
                      .steps_limit = l.steps,
                      .output_limit = l.output_bytes,
                      .now = now};
    kvasir_status status = guard(&run, render_all, &job);
    if (status != KVASIR_OK) {
        out->len = before;
        out->data[before] = 0;
    }
    tpl_arena_release(&arena);
    return status;
}
