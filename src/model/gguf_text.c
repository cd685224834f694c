/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary of a GGUF file, its special tokens and its chat template: keys tokenizer.*. */
#include <math.h>
#include <stdio.h>

#include "model/model_internal.h"

enum { KEY_MAX = 96 };

/* ---- vocabulary ------------------------------------------------------------------------------ */

static kvasir_status copy_string(const struct gguf *g, const char *key, const char **out,
                                 kvasir_error *err) {
    struct text_span text = {NULL, 0};
    TRY(gguf_get_string(g, key, false, &text, err));
    *out = NULL;
    if (text.data && !(*out = mem_strndup(text.data, text.len)))
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for %s", key);
    return KVASIR_OK;
}

/* Special tokens: a missing key or ~0 (what some converters write) means that there is none. */
static kvasir_status read_special(const struct gguf *g, const char *name, size_t n_tokens,
                                  int32_t *out, kvasir_error *err) {
    char key[KEY_MAX];
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", name);
    uint32_t id = UINT32_MAX;
    TRY(gguf_get_u32(g, key, false, 0, UINT32_MAX, &id, err));
    *out = -1;
    if (id == UINT32_MAX)
        return KVASIR_OK;
    if (id >= n_tokens)
        return fail_at(err, KVASIR_ERR_FORMAT, gguf_find(g, key)->offset,
                       "metadata %s is %u, but there are %zu tokens", key, id, n_tokens);
    *out = (int32_t)id;
    return KVASIR_OK;
}

static kvasir_status read_kinds(const struct gguf *g, struct tokenizer_spec *t, kvasir_error *err) {
    static const char key[] = "tokenizer.ggml.token_type";
    const struct gguf_value *v = gguf_find(g, key);
    if (!v)
        return KVASIR_OK;
    if (v->type != GGUF_ARRAY || (v->elem != GGUF_I32 && v->elem != GGUF_U32))
        return fail_at(err, KVASIR_ERR_FORMAT, v->offset,
                       "metadata %s must be an array of 32-bit integers", key);
    if (v->count != t->n_tokens)
        return fail_at(err, KVASIR_ERR_FORMAT, v->offset,
                       "metadata %s holds %llu kinds for %zu tokens", key,
                       (unsigned long long)v->count, t->n_tokens);
    uint8_t *kinds = mem_alloc(t->n_tokens);
    if (!kinds)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for %s", key);
    t->kinds = kinds;
    for (size_t i = 0; i < t->n_tokens; i++) {
        uint32_t kind;
        memcpy(&kind, v->data + i * sizeof kind, sizeof kind);
        if (kind > TOKEN_BYTE)
            return fail_at(err, KVASIR_ERR_FORMAT, v->offset + (int64_t)(i * sizeof kind),
                           "metadata %s: token %zu has kind %u", key, i, kind);
        kinds[i] = kind ? (uint8_t)kind : TOKEN_NORMAL; /* 0 is "undefined" */
    }
    return KVASIR_OK;
}

/* Vocabularies of type "llama" have scores that order merges; the others have merges. */
static kvasir_status read_scores(const struct gguf *g, struct tokenizer_spec *t,
                                 kvasir_error *err) {
    static const char key[] = "tokenizer.ggml.scores";
    const struct gguf_value *v = gguf_find(g, key);
    if (!v || strcmp(t->model, "llama") != 0)
        return KVASIR_OK;
    if (v->type != GGUF_ARRAY || v->elem != GGUF_F32 || v->count != t->n_tokens)
        return fail_at(err, KVASIR_ERR_FORMAT, v->offset,
                       "metadata %s must be an array of f32, one for each of %zu tokens", key,
                       t->n_tokens);
    float *scores = mem_alloc(t->n_tokens * sizeof *scores);
    if (!scores)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for %s", key);
    memcpy(scores, v->data, t->n_tokens * sizeof *scores);
    t->scores = scores;
    for (size_t i = 0; i < t->n_tokens; i++)
        if (!isfinite(scores[i]))
            return fail_at(err, KVASIR_ERR_FORMAT, v->offset + (int64_t)(i * sizeof *scores),
                           "metadata %s: token %zu has score %g", key, i, (double)scores[i]);
    return KVASIR_OK;
}

/* Whether a text begins with BOS if the file does not say: it does with SentencePiece vocabularies
 * and Llama 3's. */
static bool add_bos_by_default(const struct tokenizer_spec *t) {
    static const char *const with_bos[] = {"llama-bpe", "llama3", "llama-v3"};
    if (strcmp(t->model, "llama") == 0)
        return true;
    for (size_t i = 0; t->pre && i < sizeof with_bos / sizeof *with_bos; i++)
        if (strcmp(t->pre, with_bos[i]) == 0)
            return true;
    return false;
}

kvasir_status gguf_read_tokenizer(const struct gguf *g, struct checkpoint *c, kvasir_error *err) {
    struct tokenizer_spec *t = &c->tokenizer;
    struct text_span *list;
    TRY(copy_string(g, "tokenizer.chat_template", (const char **)&c->chat_template, err));
    TRY(copy_string(g, "tokenizer.ggml.model", &t->model, err));
    if (!t->model)
        return KVASIR_OK;
    TRY(copy_string(g, "tokenizer.ggml.pre", &t->pre, err));
    TRY(gguf_get_strings(g, "tokenizer.ggml.tokens", &list, &t->n_tokens, err));
    t->pieces = list;
    if (!t->n_tokens)
        return fail(err, KVASIR_ERR_FORMAT, "metadata tokenizer.ggml.tokens is missing or empty");
    TRY(gguf_get_strings(g, "tokenizer.ggml.merges", &list, &t->n_merges, err));
    t->merges = list;
    TRY(read_kinds(g, t, err));
    TRY(read_scores(g, t, err));
    TRY(read_special(g, "bos", t->n_tokens, &t->bos, err));
    TRY(read_special(g, "eos", t->n_tokens, &t->eos, err));
    TRY(read_special(g, "eot", t->n_tokens, &t->eot, err));
    int32_t eom; /* ends a message that calls a tool */
    TRY(read_special(g, "eom", t->n_tokens, &eom, err));
    if (eom >= 0)
        TRY(checkpoint_add_end(c, eom, err));
    TRY(read_special(g, "unknown", t->n_tokens, &t->unk, err));
    TRY(read_special(g, "padding", t->n_tokens, &t->pad, err));
    t->add_bos = add_bos_by_default(t);
    TRY(gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &t->add_bos, err));
    TRY(gguf_get_bool(g, "tokenizer.ggml.add_eos_token", &t->add_eos, err));
    t->add_space_prefix = strcmp(t->model, "llama") == 0;
    TRY(gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", &t->add_space_prefix, err));
    c->has_tokenizer = true;
    return KVASIR_OK;
}
