/* SPDX-License-Identifier: Apache-2.0 */
/* text_api.c: kvasir_tokenizer, the text side of a checkpoint.
 *
 *     checkpoint (GGUF, folder, tokenizer.json)
 *         vocabulary  -> struct tokenizer  ids <-> text
 *         template    -> struct template   a request's variables -> prompt
 *         bos_token . -> variables         if the request has none of that name
 *
 * The checkpoint is needed only while these are made. A model may lack either part, or have one
 * that this build cannot read: it still runs on token ids. The reason is kept and given when the
 * part is asked for. A tokenizer that is opened alone must have a vocabulary.
 *
 * A request is what transformers' apply_chat_template(messages, tools, documents, **kwargs) takes,
 * as one JSON object. The order of its members, which tojson shows, is kept.
 *
 * Not supported: several named templates in one checkpoint; a last message that the answer
 * continues (continue_final_message); masks of the assistant's tokens.
 */
#include <string.h>
#include <time.h>

#include "engine/engine.h"
#include "util/json.h"

/* ---- what may be missing --------------------------------------------------------------------- */

static kvasir_status give_error(const kvasir_error *reason, kvasir_error *err) {
    if (err)
        *err = *reason;
    return reason->code;
}

static kvasir_status need_tokenizer(const struct kvasir_tokenizer *t, kvasir_error *err) {
    return t->tokenizer ? KVASIR_OK : give_error(&t->tokenizer_error, err);
}

/* ---- parts ----------------------------------------------------------------------------------- */

static kvasir_status make_tokenizer(struct kvasir_tokenizer *t, const struct tokenizer_spec *spec,
                                    kvasir_error *err) {
    if (!spec)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "has no tokenizer that this version can read");
    struct tokenizer *made;
    TRY(tokenizer_create(spec, &made, err));
    kvasir_status status = template_tokens(spec, made, t->variables, err);
    if (status == KVASIR_OK)
        t->tokenizer = made;
    else
        tokenizer_destroy(made);
    return status;
}

static void load_tokenizer(struct kvasir_tokenizer *t, const struct checkpoint *c) {
    if (make_tokenizer(t, checkpoint_tokenizer(c), &t->tokenizer_error) != KVASIR_OK)
        fail_prefix(&t->tokenizer_error, t->path);
}

static void load_template(struct kvasir_tokenizer *t, const struct checkpoint *c) {
    const char *source = checkpoint_chat_template(c);
    t->has_template = source != NULL;
    if (!source)
        fail(&t->template_error, KVASIR_ERR_UNSUPPORTED, "the model has no chat template");
    else
        (void)!template_parse(source, strlen(source), &t->template, &t->template_error);
}

kvasir_status kvasir_tokenizer_set_chat_template(kvasir_tokenizer *t, const char *name,
                                                 const char *source, size_t len,
                                                 kvasir_error *err) {
    struct template *parsed;
    kvasir_status status = template_parse(source, len, &parsed, err);
    if (status != KVASIR_OK) {
        fail_prefix(err, name);
        return status;
    }
    template_destroy(t->template);
    t->template = parsed;
    t->has_template = true;
    return KVASIR_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

kvasir_status text_create(const struct checkpoint *c, const char *path,
                          struct kvasir_tokenizer **out, kvasir_error *err) {
    struct kvasir_tokenizer *t = mem_calloc(1, sizeof *t);
    if (t) {
        t->path = mem_strdup(path);
        t->variables = json_object();
    }
    if (!t || !t->path || !t->variables) {
        kvasir_tokenizer_close(t);
        return fail(err, KVASIR_ERR_MEMORY, "%s: out of memory", path);
    }
    load_tokenizer(t, c);
    load_template(t, c);
    *out = t;
    return KVASIR_OK;
}

kvasir_status kvasir_tokenizer_open(const char *path, kvasir_tokenizer **out, kvasir_error *err) {
    struct checkpoint *c;
    TRY(checkpoint_open_text(path, &c, err));
    struct kvasir_tokenizer *t = NULL;
    kvasir_status status = text_create(c, path, &t, err);
    checkpoint_close(c);
    if (status == KVASIR_OK)
        status = need_tokenizer(t, err);
    if (status == KVASIR_OK)
        *out = t;
    else
        kvasir_tokenizer_close(t);
    return status;
}

void kvasir_tokenizer_close(kvasir_tokenizer *t) {
    if (!t)
        return;
    json_decref(t->variables);
    template_destroy(t->template);
    tokenizer_destroy(t->tokenizer);
    mem_free(t->path);
    mem_free(t);
}

void kvasir_tokenizer_get_info(const kvasir_tokenizer *t, kvasir_tokenizer_info *info) {
    *info = (kvasir_tokenizer_info){.has_chat_template = t->has_template};
    if (!t->tokenizer)
        return;
    info->name = tokenizer_name(t->tokenizer);
    info->size = (uint32_t)tokenizer_size(t->tokenizer);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

kvasir_status kvasir_tokenize(const kvasir_tokenizer *t, const char *text, size_t len,
                              unsigned flags, int32_t **ids, size_t *n, kvasir_error *err) {
    return kvasir_tokenize_by(t, text, len, flags, NULL, NULL, ids, n, err);
}

kvasir_status kvasir_tokenize_by(const kvasir_tokenizer *t, const char *text, size_t len,
                                 unsigned flags, const kvasir_authors *authors,
                                 const kvasir_text_limits *limits, int32_t **ids, size_t *n,
                                 kvasir_error *err) {
    TRY(need_tokenizer(t, err));
    unsigned inner = 0;
    if (flags & KVASIR_TOKENIZE_ADD_SPECIAL)
        inner |= TOKENIZE_ADD_SPECIAL;
    if (flags & KVASIR_TOKENIZE_PARSE_SPECIAL)
        inner |= TOKENIZE_PARSE_SPECIAL;
    return tokenizer_encode_by(t->tokenizer, text, len, inner, authors, limits, ids, n, err);
}

bool kvasir_token_is_end(const kvasir_tokenizer *t, int32_t id) {
    return t->tokenizer && tokenizer_is_end(t->tokenizer, id);
}

kvasir_status kvasir_xtc_special(const kvasir_tokenizer *t, int32_t **ids, size_t *n,
                                 kvasir_error *err) {
    int32_t *line_end, *all;
    size_t n_line_end, n_all, size = 1;
    TRY(kvasir_tokenize(t, "\n", 1, KVASIR_TOKENIZE_ADD_SPECIAL, &line_end, &n_line_end, err));
    n_all = n_line_end;
    int32_t last = (int32_t)tokenizer_size(t->tokenizer);
    for (int32_t id = 0; id < last; id++)
        n_all += tokenizer_is_end(t->tokenizer, id);
    if (n_all > size)
        size = n_all;
    all = mem_realloc(line_end, size, sizeof *all);
    if (!all) {
        mem_free(line_end);
        return fail(err, KVASIR_ERR_MEMORY, "tokens exempt from xtc: out of memory");
    }
    size_t at = n_line_end;
    for (int32_t id = 0; id < last; id++)
        if (tokenizer_is_end(t->tokenizer, id))
            all[at++] = id;
    ASSERT(at == n_all);
    *ids = all;
    *n = n_all;
    return KVASIR_OK;
}

const char *kvasir_token_piece(const kvasir_tokenizer *t, int32_t id, size_t *len) {
    struct text_span piece = {0};
    if (t->tokenizer)
        piece = tokenizer_piece(t->tokenizer, id);
    *len = piece.len;
    return piece.len ? piece.data : NULL;
}

size_t kvasir_utf8_check(const char *text, size_t len) {
    return utf8_check(text, len);
}

/* Gives the buffer's text to the caller, who frees it: "" if nothing was appended. */
static kvasir_status give_text(struct text_buf *b, char **out, size_t *len, kvasir_error *err) {
    if (!text_append(b, "", 0)) {
        text_free(b);
        return fail(err, KVASIR_ERR_MEMORY, "text: out of memory");
    }
    *out = b->data;
    *len = b->len;
    return KVASIR_OK;
}

kvasir_status kvasir_detokenize_by(const kvasir_tokenizer *t, const int32_t *ids, size_t n,
                                   unsigned flags, const kvasir_text_limits *limits, char **text,
                                   size_t *len, kvasir_error *err) {
    TRY(need_tokenizer(t, err));
    unsigned inner = flags & KVASIR_DETOKENIZE_SKIP_SPECIAL ? DETOKENIZE_SKIP_SPECIAL : 0;
    struct text_buf b = {0};
    kvasir_status status = tokenizer_decode_by(t->tokenizer, ids, n, inner, limits, &b, err);
    if (status == KVASIR_OK)
        return give_text(&b, text, len, err);
    text_free(&b);
    return status;
}

kvasir_status kvasir_detokenize(const kvasir_tokenizer *t, const int32_t *ids, size_t n,
                                unsigned flags, char **text, size_t *len, kvasir_error *err) {
    return kvasir_detokenize_by(t, ids, n, flags, NULL, text, len, err);
}

/* ---- detokenizer ----------------------------------------------------------------------------- */

struct kvasir_detok {
    const struct tokenizer *tokenizer;
    struct detok state;
    struct text_buf text;
    int32_t *shown; /* control tokens that are shown by name */
    size_t n_shown;
};

kvasir_status kvasir_detok_create(const kvasir_tokenizer *t, kvasir_detok **out,
                                  kvasir_error *err) {
    TRY(need_tokenizer(t, err));
    struct kvasir_detok *d = mem_calloc(1, sizeof *d);
    if (!d)
        return fail(err, KVASIR_ERR_MEMORY, "detokenizer: out of memory");
    d->tokenizer = t->tokenizer;
    *out = d;
    return KVASIR_OK;
}

void kvasir_detok_destroy(kvasir_detok *d) {
    if (!d)
        return;
    text_free(&d->text);
    mem_free(d->shown);
    mem_free(d);
}

kvasir_status kvasir_detok_show(kvasir_detok *d, const int32_t *ids, size_t n, kvasir_error *err) {
    int32_t *shown = mem_calloc(n + 1, sizeof *shown);
    if (!shown)
        return fail(err, KVASIR_ERR_MEMORY, "detokenizer: out of memory");
    if (n)
        memcpy(shown, ids, n * sizeof *shown);
    mem_free(d->shown);
    d->shown = shown;
    d->n_shown = n;
    return KVASIR_OK;
}

static bool is_shown(const struct kvasir_detok *d, int32_t id) {
    for (size_t i = 0; i < d->n_shown; i++)
        if (d->shown[i] == id)
            return true;
    return false;
}

static kvasir_status detok_give(struct kvasir_detok *d, bool good, const char **text, size_t *len,
                                kvasir_error *err) {
    if (!good)
        return fail(err, KVASIR_ERR_MEMORY, "detokenizer: out of memory");
    *text = d->text.data ? d->text.data : "";
    *len = d->text.len;
    return KVASIR_OK;
}

kvasir_status kvasir_detok_push(kvasir_detok *d, int32_t id, const char **text, size_t *len,
                                kvasir_error *err) {
    d->text.len = 0;
    bool good = true;
    if (!tokenizer_is_control(d->tokenizer, id) || is_shown(d, id))
        good = detok_push(&d->state, tokenizer_bytes(d->tokenizer, id), &d->text);
    return detok_give(d, good, text, len, err);
}

kvasir_status kvasir_detok_finish(kvasir_detok *d, const char **text, size_t *len,
                                  kvasir_error *err) {
    d->text.len = 0;
    return detok_give(d, detok_finish(&d->state, &d->text), text, len, err);
}

/* ---- chat ------------------------------------------------------------------------------------ */

/* Adds what a request may leave out. */
static bool add_defaults(json_t *variables) {
    static const char *const absent[] = {"tools", "documents"};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        if (!json_object_get(variables, absent[i]) &&
            json_object_set_new(variables, absent[i], json_null()) != 0)
            return false;
    return json_object_get(variables, "add_generation_prompt") ||
           json_object_set_new(variables, "add_generation_prompt", json_true()) == 0;
}

/* The template's variables: those of the request and the defaults. */
static kvasir_status read_variables(json_t *request, json_t **variables, kvasir_error *err) {
    if (!json_is_object(request))
        return fail(err, KVASIR_ERR_TEXT, "chat request: is not a JSON object");
    if (!json_is_array(json_object_get(request, "messages")))
        return fail(err, KVASIR_ERR_TEXT, "chat request: messages is not an array");
    json_t *made = json_copy(request); /* its members are the request's */
    if (made && add_defaults(made)) {
        *variables = made;
        return KVASIR_OK;
    }
    json_decref(made);
    return fail(err, KVASIR_ERR_MEMORY, "chat request: out of memory");
}

const char *kvasir_chat_template(const kvasir_tokenizer *t, size_t *len) {
    struct text_span source = {0};
    if (t->template)
        source = template_source(t->template);
    *len = source.len;
    return t->template ? source.data : NULL;
}

kvasir_status kvasir_chat_render(const kvasir_tokenizer *t, const char *request, size_t request_len,
                                 char **out, size_t *len, kvasir_error *err) {
    return kvasir_chat_render_by(t, request, request_len, NULL, out, NULL, len, err);
}

kvasir_status kvasir_chat_render_by(const kvasir_tokenizer *t, const char *request,
                                    size_t request_len, const kvasir_text_limits *within,
                                    char **out, char **authors, size_t *len, kvasir_error *err) {
    if (!t->template)
        return give_error(&t->template_error, err);
    json_t *root;
    kvasir_status status = json_load_request(request, request_len, JSON_ALLOW_NUL, &root, err);
    if (status == KVASIR_OK)
        status = kvasir_chat_render_value(t, root, within, out, authors, len, err);
    else
        fail_prefix(err, "chat request");
    json_decref(root);
    return status;
}

kvasir_status kvasir_chat_render_value(const kvasir_tokenizer *t, json_t *request,
                                       const kvasir_text_limits *within, char **out, char **authors,
                                       size_t *len, kvasir_error *err) {
    if (!t->template)
        return give_error(&t->template_error, err);
    json_t *variables = NULL;
    TRY(read_variables(request, &variables, err));
    struct text_buf text = {0}, who = {0};
    struct template_limits limits = template_limits_default();
    if (within) {
        limits.stop = within->stop;
        limits.user = within->user;
    }
    kvasir_status status =
        template_render_by(t->template, variables, t->variables, (int64_t)time(NULL), &limits,
                           &text, authors ? &who : NULL, err);
    json_decref(variables);
    if (status != KVASIR_OK) {
        text_free(&text);
        text_free(&who);
        return status;
    }
    ASSERT(!authors || who.len == text.len);
    *out = text.data; /* a rendered text is never NULL, nor are its authors */
    *len = text.len;
    if (authors)
        *authors = who.data;
    return KVASIR_OK;
}
