/* SPDX-License-Identifier: Apache-2.0 */
/* template.c: the public functions for chat templates (text.h): parse, render, free.
 *
 * A parse or a rendering is one struct tpl on the caller's stack. It runs under the one setjmp here
 * (run_guarded). If it fails, its arena is released. If a parse succeeds, its arena is kept in
 * struct template.
 *
 * Limits of a rendering: `output_bytes` bounds the text and, through it, the arena (ARENA_BASE +
 * ARENA_FACTOR x output_bytes), so a template that doubles a string in a loop ends early. `steps`
 * bounds time. `depth` bounds the C stack: one level needs at most about 600 bytes of stack in an
 * optimized build, 2 KiB with sanitizers.
 */
#include "text/template_internal.h"

#define SOURCE_LIMIT ((size_t)512 << 10) /* known templates are below 64 KiB */
#define PARSE_DEPTH  200 /* nested brackets and blocks: 12 C frames each; known templates need 12 */
#define PARSE_ARENA  ((size_t)256 << 20) /* at most about 400 bytes per byte of source */
#define ARENA_BASE   ((size_t)64 << 20)
/* One captured block of that size and its authors, in buffers that grew by doubling. */
#define ARENA_FACTOR 8

/* ---- failures -------------------------------------------------------------------------------- */

/* Runs fn under the one setjmp. This is a function of its own so that longjmp cannot clobber locals
 * of the callers. */
static kvasir_status run_guarded(struct tpl *t, void (*fn)(struct tpl *, void *), void *ctx) {
    if (setjmp(t->failed) == 0) {
        fn(t, ctx);
        ASSERT(t->depth == 0);
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

/* Turns \r\n and \r into \n and drops one line end at the very end (Jinja2 without
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
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for a chat template");
    tmpl->arena.limit = PARSE_ARENA;
    struct parse_job job = {source, len, tmpl, {.limit = PARSE_ARENA}};
    struct tpl t = {.arena = &tmpl->arena, .err = err, .depth_limit = PARSE_DEPTH};
    t.steps_limit = UINT64_MAX; /* parsing is linear in a source of bounded size */
    t.output_limit = SIZE_MAX;
    kvasir_status status = run_guarded(&t, parse_all, &job);
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
    /* 1,000 messages with tools take about 10^5 steps; 10^7 steps run in well under a second. The
     * deepest known template needs 40 levels; a macro that calls itself needs 12 more per level of
     * a JSON schema. */
    return (struct template_limits){
        .steps = 10000000, .depth = 1000, .output_bytes = (size_t)64 << 20};
}

/* Borrows the strings of the JSON value, which outlives the rendering. */
static tval from_json(struct tpl *t, json_t *json, enum kvasir_author author) {
    tval v = tpl_none();
    tpl_enter(t);
    switch (json_typeof(json)) {
    case JSON_OBJECT: {
        struct tpl_dict *d = tpl_dict_new(t);
        for (void *it = json_object_iter(json); it; it = json_object_iter_next(json, it)) {
            const char *key = json_object_iter_key(it);
            tval name = tpl_str_by(t, key, json_object_iter_key_len(it), author);
            tpl_dict_set(t, d, name, from_json(t, json_object_iter_value(it), author));
        }
        v = (tval){.type = TPL_DICT, .dict = d};
        break;
    }
    case JSON_ARRAY: {
        struct tpl_items items = {0};
        for (size_t i = 0; i < json_array_size(json); i++)
            tpl_items_push(t, &items, from_json(t, json_array_get(json, i), author));
        v = tpl_items_finish(t, &items, TPL_LIST);
        break;
    }
    case JSON_STRING:
        v = tpl_str_by(t, json_string_value(json), json_string_length(json), author);
        break;
    case JSON_INTEGER:
        v = tpl_int(json_integer_value(json));
        break;
    case JSON_REAL:
        v = tpl_float(json_real_value(json));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        v = tpl_bool(json_is_true(json));
        break;
    case JSON_NULL:
        break;
    }
    tpl_leave(t);
    return v;
}

/* A role that every chat has is a choice between words of the template's language, so it counts as
 * the template's: some templates write "<|" + role + "|>". */
static bool is_known_role(json_t *role) {
    static const char *const known[] = {"system", "developer", "user", "assistant", "tool"};
    for (size_t i = 0; i < COUNT(known); i++)
        if (json_is_string(role) && strcmp(json_string_value(role), known[i]) == 0 &&
            json_string_length(role) == strlen(known[i]))
            return true;
    return false;
}

static tval message_from_json(struct tpl *t, json_t *message) {
    json_t *role = json_object_get(message, "role");
    bool assistant = json_is_string(role) && strcmp(json_string_value(role), "assistant") == 0;
    tval v = from_json(t, message, assistant ? KVASIR_BY_ASSISTANT : KVASIR_BY_REQUEST);
    if (is_known_role(role))
        tpl_dict_set(t, v.dict, tpl_lit(t, "role"), from_json(t, role, KVASIR_BY_TEMPLATE));
    return v;
}

static tval messages_from_json(struct tpl *t, json_t *messages) {
    struct tpl_items items = {0};
    if (!json_is_array(messages))
        return from_json(t, messages, KVASIR_BY_REQUEST);
    tpl_enter(t);
    for (size_t i = 0; i < json_array_size(messages); i++)
        tpl_items_push(t, &items, message_from_json(t, json_array_get(messages, i)));
    tpl_leave(t);
    return tpl_items_finish(t, &items, TPL_LIST);
}

/* The variables of the request and, where it has none of that name, the model's own. */
static struct tpl_dict *variables_from_json(struct tpl *t, json_t *args, json_t *own) {
    struct tpl_dict *d = tpl_dict_new(t);
    const char *key;
    size_t len;
    json_t *value;
    tpl_enter(t);
    json_object_keylen_foreach(args, key, len, value)
        tpl_dict_set(t, d, tpl_str_borrow(t, key, len),
                     strcmp(key, "messages") == 0 ? messages_from_json(t, value)
                                                  : from_json(t, value, KVASIR_BY_REQUEST));
    json_object_keylen_foreach(own, key, len, value) if (!json_object_getn(args, key, len))
        tpl_dict_set(t, d, tpl_str_borrow(t, key, len), from_json(t, value, KVASIR_BY_TEMPLATE));
    tpl_leave(t);
    return d;
}

struct render_job {
    const struct template *tmpl;
    json_t *args, *own;
    struct tpl_out out;
};

static void render_all(struct tpl *t, void *ctx) {
    struct render_job *job = ctx;
    if (!json_is_object(job->args))
        tpl_fail(t, "the arguments are not a JSON object");
    t->args = variables_from_json(t, job->args, job->own);
    t->out = &job->out;
    struct tpl_scope *root = tpl_scope_new(t, NULL);
    (void)tpl_exec(t, root, job->tmpl->body);
}

kvasir_status template_render(const struct template *t, json_t *args, int64_t now,
                              const struct template_limits *limits, struct text_buf *out,
                              kvasir_error *err) {
    return template_render_by(t, args, NULL, now, limits, out, NULL, err);
}

kvasir_status template_render_by(const struct template *t, json_t *args, json_t *own, int64_t now,
                                 const struct template_limits *limits, struct text_buf *out,
                                 struct text_buf *authors, kvasir_error *err) {
    struct template_limits l = limits ? *limits : template_limits_default();
    struct tpl_arena arena = {0};
    size_t room;
    if (!mul_size(l.output_bytes, ARENA_FACTOR, &room) || !add_size(room, ARENA_BASE, &room))
        room = SIZE_MAX / 2;
    arena.limit = room;
    const size_t before = out->len, authors_before = authors ? authors->len : 0;
    /* an empty prompt is a string, too */
    if (!text_append(out, "", 0) || (authors && !text_append(authors, "", 0)))
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for a chat template");
    struct render_job job = {
        .tmpl = t, .args = args, .own = own, .out = {.direct = out, .direct_authors = authors}};
    struct tpl run = {.arena = &arena,
                      .source = t->source,
                      .source_len = t->source_len,
                      .err = err,
                      .depth_limit = l.depth,
                      .tmpl = t,
                      .steps_limit = l.steps,
                      .stop = l.stop,
                      .stop_user = l.user,
                      .output_limit = l.output_bytes,
                      .now = now,
                      .get_attr = tpl_get_attr,
                      .get_item = tpl_get_item};
    kvasir_status status = run_guarded(&run, render_all, &job);
    if (status != KVASIR_OK) {
        out->len = before;
        out->data[before] = 0;
    }
    if (status != KVASIR_OK && authors)
        authors->len = authors_before;
    ASSERT(status != KVASIR_OK || !authors || authors->len - authors_before == out->len - before);
    tpl_arena_release(&arena);
    return status;
}
