/* SPDX-License-Identifier: Apache-2.0 */
/* embeddings.c: embeddings of texts, and the order of documents by them. An embedding has length 1,
 * so a product of two is their cosine. */
#include "api/embeddings.h"

#include <stdlib.h>
#include <string.h>

#include "api/api_fields.h"
#include "api/api_prompts.h"
#include "api/ollama.h"
#include "api/openai_internal.h"
#include "api/rerank.h"

enum { INPUTS_MAX = 2048 }; /* as at OpenAI */

/* ---- reading --------------------------------------------------------------------------------- */

static bool read_names(const struct api_setup *setup, const struct api_body *from,
                       struct api_request *r, struct api_error *err) {
    r->engine.no_store = true;
    return api_fields_check(from->members, NULL, err) && api_fields_warn(setup, from, r, err) &&
           openai_read_names(setup, from->members, r, err);
}

static bool read_common(const struct api_setup *setup, const struct api_body *from,
                        struct api_request *r, struct api_error *err) {
    if (setup->pooling == KVASIR_POOLING_NONE)
        return api_refuse(err, "model", "its embeddings are pooled in a way that is not supported");
    r->engine.embed = setup->pooling;
    r->embed.width = r->embed.dimensions = setup->width;
    return read_names(setup, from, r, err);
}

/* "float" or "base64" */
static bool read_encoding(json_t *body, struct api_request *r, struct api_error *err) {
    json_t *value = api_get(body, "encoding_format");
    const char *word = json_string_value(value);
    if (value && (!word || (strcmp(word, "float") != 0 && strcmp(word, "base64") != 0)))
        return api_refuse(err, "encoding_format", "must be \"float\" or \"base64\"");
    r->embed.base64 = word && strcmp(word, "base64") == 0;
    return true;
}

static bool read_embeddings(const struct api_setup *setup, struct api_body *body,
                            struct api_request *r, struct api_error *err) {
    json_int_t dimensions = setup->width;
    if (!read_common(setup, body, r, err) ||
        !api_whole(body->members, "dimensions", 1, setup->width, &dimensions, err) ||
        !read_encoding(body->members, r, err))
        return false;
    r->embed.dimensions = (uint32_t)dimensions;
    return api_prompts_read(setup, body, "input", INPUTS_MAX, r, err);
}

/* ollama's: its options say how it runs a model, which the server's do here. */
static bool read_ollama_embed(const struct api_setup *setup, struct api_body *body,
                              struct api_request *r, struct api_error *err) {
    json_int_t dimensions = setup->width;
    if (!read_common(setup, body, r, err) ||
        !api_whole(body->members, "dimensions", 1, setup->width, &dimensions, err))
        return false;
    r->embed.dimensions = (uint32_t)dimensions;
    return api_prompts_read(setup, body, "input", INPUTS_MAX, r, err);
}

static bool read_ollama_embeddings(const struct api_setup *setup, struct api_body *body,
                                   struct api_request *r, struct api_error *err) {
    return read_common(setup, body, r, err) && api_prompts_read(setup, body, "prompt", 1, r, err);
}

/* A text, or {"text": ...}: the text, in *out. */
static bool read_document(const struct api_path *path, json_t *value, struct api_request *r,
                          json_t **out, struct api_error *err) {
    *out = json_is_object(value) ? json_object_get(value, "text") : value;
    if (!json_is_string(*out))
        return api_wrong_type(err, path->text, *out == value ? value : *out,
                              "a string or an object with \"text\"");
    return json_array_append(r->kept, *out) == 0 || api_no_memory(err);
}

static bool add_document(const struct api_setup *setup, const struct api_path *path, json_t *value,
                         struct api_request *r, struct api_error *err) {
    json_t *text;
    return read_document(path, value, r, &text, err) &&
           api_prompts_add_text(setup, path->text, json_string_value(text),
                                json_string_length(text), true, r, err);
}

/* The query is a prompt, and so is each document. */
static bool read_vectors(const struct api_setup *setup, json_t *body, struct api_request *r,
                         struct api_error *err) {
    json_t *documents = api_get(body, "documents");
    const struct api_path query_path = {.text = "query"};
    if (api_get(body, "instruction"))
        return api_refuse(err, "instruction", "is for models that answer yes or no");
    if (!api_prompts_begin(r, 1 + json_array_size(documents), err) ||
        !add_document(setup, &query_path, api_get(body, "query"), r, err))
        return false;
    for (size_t i = 0; i < json_array_size(documents); i++) {
        const struct api_path path = api_item("documents", i);
        if (!add_document(setup, &path, json_array_get(documents, i), r, err))
            return false;
    }
    return true;
}

/* Each document is a prompt, with the query. */
static bool read_questions(const struct api_setup *setup, json_t *body, struct api_request *r,
                           struct api_error *err) {
    json_t *documents = api_get(body, "documents"), *instruction = api_get(body, "instruction"),
           *query = api_get(body, "query"), *text;
    const size_t n = json_array_size(documents);
    r->embed.asks = true;
    if (instruction && !json_is_string(instruction))
        return api_wrong_type(err, "instruction", instruction, "a string");
    if (!json_is_string(query))
        return api_wrong_type(err, "query", query, "a string");
    struct rerank_prefix *p = rerank_begin(setup, instruction, query, r, err);
    bool good = p && api_prompts_begin(r, n, err);
    for (size_t i = 0; good && i < n; i++) {
        const struct api_path path = api_item("documents", i);
        good = read_document(&path, json_array_get(documents, i), r, &text, err) &&
               rerank_add(p, path.text, text, r, err);
    }
    rerank_end(p);
    return good;
}

static bool read_rerank(const struct api_setup *setup, struct api_body *body, struct api_request *r,
                        struct api_error *err) {
    const bool asks = setup->rerank == RERANK_YES_NO;
    json_t *documents = api_get(body->members, "documents");
    const size_t n = json_array_size(documents);
    json_int_t top_n = INPUTS_MAX;
    if (!(asks ? read_names : read_common)(setup, body, r, err) ||
        !api_whole(body->members, "top_n", 1, INT32_MAX, &top_n, err) ||
        !api_flag(body->members, "return_documents", &r->embed.returns_documents, err))
        return false;
    if (!json_is_array(documents))
        return api_wrong_type(err, "documents", documents, "an array of texts");
    if (n < 1 || n >= INPUTS_MAX)
        return api_refuse(err, "documents", "%zu documents, from 1 to %d are allowed", n,
                          INPUTS_MAX - 1);
    r->embed.top_n = (uint32_t)top_n;
    return (asks ? read_questions : read_vectors)(setup, body->members, r, err);
}

static bool read_by(bool (*read)(const struct api_setup *, struct api_body *, struct api_request *,
                                 struct api_error *),
                    const struct api_setup *setup, struct api_body *body, struct api_request *out,
                    struct api_error *err) {
    struct api_request r = {
        .api = API_EMBEDDINGS, .engine = kvasir_request_defaults(), .kept = json_array()};
    const bool good = (r.kept || api_no_memory(err)) && read(setup, body, &r, err);
    if (good)
        *out = r;
    else
        api_request_free(&r);
    return good;
}

static bool embeddings_read(const struct api_setup *setup, struct api_body *body,
                            struct api_request *out, struct api_error *err) {
    return read_by(read_embeddings, setup, body, out, err);
}

static bool ollama_embed_read(const struct api_setup *setup, struct api_body *body,
                              struct api_request *out, struct api_error *err) {
    return read_by(read_ollama_embed, setup, body, out, err);
}

static bool ollama_embeddings_read(const struct api_setup *setup, struct api_body *body,
                                   struct api_request *out, struct api_error *err) {
    return read_by(read_ollama_embeddings, setup, body, out, err);
}

static bool rerank_read(const struct api_setup *setup, struct api_body *body,
                        struct api_request *out, struct api_error *err) {
    return read_by(read_rerank, setup, body, out, err);
}

static enum api_want embeddings_wants(const char *name, size_t len, const char **known) {
    static const char *const TREES[] = {"model",           "cache_salt", "priority",
                                        "encoding_format", "dimensions", NULL};
    static const char *const INPUT[] = {"input", NULL};
    static const struct api_names LISTS[] = {{API_TREE, TREES}, {API_PROMPT, INPUT}};
    return api_want_of(LISTS, 2, name, len, known);
}

/* Of /api/embed. */
static enum api_want embed_wants(const char *name, size_t len, const char **known) {
    static const char *const TREES[] = {"model",   "cache_salt", "priority", "dimensions",
                                        "options", "truncate",   NULL};
    static const char *const INPUT[] = {"input", NULL};
    static const struct api_names LISTS[] = {{API_TREE, TREES}, {API_PROMPT, INPUT}};
    return api_want_of(LISTS, 2, name, len, known);
}

/* Of /api/embeddings. */
static enum api_want prompt_wants(const char *name, size_t len, const char **known) {
    static const char *const TREES[] = {"model",   "cache_salt", "priority",
                                        "options", "truncate",   NULL};
    static const char *const PROMPT[] = {"prompt", NULL};
    static const struct api_names LISTS[] = {{API_TREE, TREES}, {API_PROMPT, PROMPT}};
    return api_want_of(LISTS, 2, name, len, known);
}

static enum api_want rerank_wants(const char *name, size_t len, const char **known) {
    static const char *const TREES[] = {
        "model", "cache_salt",       "priority",    "query", "documents",
        "top_n", "return_documents", "instruction", NULL};
    static const struct api_names LISTS[] = {{API_TREE, TREES}};
    return api_want_of(LISTS, 1, name, len, known);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* The first n values, scaled to length 1 again. */
static void cut(float *values, uint32_t width, uint32_t n) {
    double squares = 0;
    for (uint32_t i = 0; i < n; i++)
        squares += (double)values[i] * (double)values[i];
    const double scale = squares > 0 ? 1 / m_sqrt(squares) : 0;
    for (uint32_t i = 0; n < width && i < n; i++)
        values[i] = (float)((double)values[i] * scale);
}

/* Of float32, little-endian. */
static json_t *base64_json(const float *values, uint32_t n) {
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t bytes = n * sizeof *values, groups = (bytes + 2) / 3;
    char *text = mem_alloc(4 * groups);
    for (size_t g = 0; text && g < groups; g++) {
        uint32_t three = 0;
        for (size_t k = 0; k < 3; k++) {
            const size_t at = 3 * g + k;
            uint32_t bits = 0;
            if (at < bytes)
                memcpy(&bits, values + at / 4, sizeof bits);
            three = three << 8 | (bits >> 8 * (at % 4) & 0xff);
        }
        for (size_t k = 0; k < 4; k++)
            text[4 * g + k] = 3 * g + k > bytes ? '=' : DIGITS[three >> (18 - 6 * k) & 63];
    }
    json_t *made = text ? json_stringn(text, 4 * groups) : NULL;
    mem_free(text);
    return made;
}

static json_t *floats_json(const float *values, uint32_t n) {
    json_t *made = json_array();
    for (uint32_t i = 0; made && i < n; i++)
        if (json_array_append_new(made, json_real((double)values[i])) != 0) {
            json_decref(made);
            return NULL;
        }
    return made;
}

static json_t *usage_json(const struct api_answer *a) {
    return json_pack("{s:I, s:I}", "prompt_tokens", (json_int_t)a->prompt_tokens, "total_tokens",
                     (json_int_t)a->prompt_tokens);
}

/* Takes body. */
static json_t *body_of(json_t *body, const struct api_request *r, bool good,
                       struct api_error *err) {
    if (good && body && api_answer_warn(body, r))
        return body;
    json_decref(body);
    (void)api_no_memory(err);
    return NULL;
}

static json_t *embeddings_body(const struct api_answer *a, const struct protocol_context *c,
                               struct api_error *err) {
    const struct api_embed *e = &c->request->embed;
    if (!api_answer_good(a, err))
        return NULL;
    json_t *list = json_array();
    bool good = list != NULL;
    for (uint32_t i = 0; good && i < c->request->n_prompts; i++) {
        float *values = a->choices[i].embedding;
        cut(values, e->width, e->dimensions);
        json_t *value =
            e->base64 ? base64_json(values, e->dimensions) : floats_json(values, e->dimensions);
        good =
            json_array_append_new(list, json_pack("{s:s, s:I, s:o}", "object", "embedding", "index",
                                                  (json_int_t)i, "embedding", value)) == 0;
    }
    return body_of(json_pack("{s:s, s:o, s:s, s:o}", "object", "list", "data", list, "model",
                             c->request->model, "usage", usage_json(a)),
                   c->request, good, err);
}

/* [[...], ...], of ollama's /api/embed. */
static json_t *ollama_embed_body(const struct api_answer *a, const struct protocol_context *c,
                                 struct api_error *err) {
    const struct api_embed *e = &c->request->embed;
    if (!api_answer_good(a, err))
        return NULL;
    json_t *list = json_array();
    bool good = list != NULL;
    for (uint32_t i = 0; good && i < c->request->n_prompts; i++) {
        cut(a->choices[i].embedding, e->width, e->dimensions);
        good =
            json_array_append_new(list, floats_json(a->choices[i].embedding, e->dimensions)) == 0;
    }
    return body_of(json_pack("{s:s, s:o, s:I}", "model", c->request->model, "embeddings", list,
                             "prompt_eval_count", (json_int_t)a->prompt_tokens),
                   c->request, good, err);
}

/* Of /api/embeddings, for one text. */
static json_t *ollama_embeddings_body(const struct api_answer *a, const struct protocol_context *c,
                                      struct api_error *err) {
    if (!api_answer_good(a, err))
        return NULL;
    json_t *values = floats_json(a->choices[0].embedding, c->request->embed.width);
    return body_of(json_pack("{s:o}", "embedding", values), c->request, true, err);
}

struct ranked {
    uint32_t index;
    double score;
};

static int by_score(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score)
                                : (x->index > y->index) - (x->index < y->index);
}

static double cosine(const float *a, const float *b, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static json_t *result_json(const struct api_request *r, const struct ranked *ranked) {
    const struct api_prompt *p = &r->prompts[!r->embed.asks + ranked->index];
    json_t *made = json_pack("{s:I, s:f}", "index", (json_int_t)ranked->index, "relevance_score",
                             ranked->score);
    if (made && r->embed.returns_documents &&
        json_object_set_new(made, "document", json_pack("{s:s%}", "text", p->text, p->len)) != 0) {
        json_decref(made);
        return NULL;
    }
    return made;
}

static json_t *rerank_body(const struct api_answer *a, const struct protocol_context *c,
                           struct api_error *err) {
    const struct api_request *r = c->request;
    const uint32_t n = r->n_prompts - !r->embed.asks;
    if (!api_answer_good(a, err))
        return NULL;
    json_t *list = json_array();
    struct ranked *ranked = mem_calloc(n, sizeof *ranked);
    bool good = list && ranked;
    for (uint32_t i = 0; good && i < n; i++)
        ranked[i] =
            (struct ranked){i, r->embed.asks ? rerank_score(a->choices[i].asked)
                                             : cosine(a->choices[0].embedding,
                                                      a->choices[1 + i].embedding, r->embed.width)};
    if (good)
        qsort(ranked, n, sizeof *ranked, by_score);
    for (uint32_t i = 0; good && i < n && i < r->embed.top_n; i++)
        good = json_array_append_new(list, result_json(r, &ranked[i])) == 0;
    mem_free(ranked);
    return body_of(json_pack("{s:s, s:s, s:o, s:o}", "id", c->id, "model", r->model, "results",
                             list, "usage", usage_json(a)),
                   c->request, good, err);
}

void protocol_close_none(void *stream) {
    ASSERT(!stream);
}

const struct protocol PROTOCOL_EMBEDDINGS = {.name = "embeddings",
                                             .id_prefix = "embd-",
                                             .prompt_field = "input",
                                             .wants = embeddings_wants,
                                             .read = embeddings_read,
                                             .body = embeddings_body,
                                             .error = openai_error_json,
                                             .close = protocol_close_none};
const struct protocol PROTOCOL_RERANK = {.name = "rerank",
                                         .id_prefix = "rerank-",
                                         .prompt_field = "query",
                                         .wants = rerank_wants,
                                         .read = rerank_read,
                                         .body = rerank_body,
                                         .error = openai_error_json,
                                         .close = protocol_close_none};
const struct protocol PROTOCOL_OLLAMA_EMBED = {.name = "ollama_embed",
                                               .id_prefix = "embd-",
                                               .prompt_field = "input",
                                               .wants = embed_wants,
                                               .read = ollama_embed_read,
                                               .body = ollama_embed_body,
                                               .error = ollama_error_json,
                                               .close = protocol_close_none};
const struct protocol PROTOCOL_OLLAMA_EMBEDDINGS = {.name = "ollama_embeddings",
                                                    .id_prefix = "embd-",
                                                    .prompt_field = "prompt",
                                                    .wants = prompt_wants,
                                                    .read = ollama_embeddings_read,
                                                    .body = ollama_embeddings_body,
                                                    .error = ollama_error_json,
                                                    .close = protocol_close_none};
