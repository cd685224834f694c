/* SPDX-License-Identifier: Apache-2.0 */
/* fim.c: which tokens mark a gap, and the prompt made of them. Texts are tokenized piece by piece
 * and names of control tokens in them stay text, as in llama-server, so that no text can move the
 * gap. */
#include "api/fim.h"

#include <string.h>

/* ---- the vocabulary -------------------------------------------------------------------------- */

/* Names in the vocabulary. A family's later names may be missing, the first three may not. */
static const char *const FAMILIES[][FIM_TOKENS] = {
    /* Qwen2.5-Coder, CodeGemma */
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>",
     "<|file_sep|>"},
    /* StarCoder 2, Granite Code; StarCoder */
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<repo_name>", "<file_sep>"},
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>", "<fim-pad>", NULL, NULL},
    /* CodeLlama */
    {"\xe2\x96\x81<PRE>", "\xe2\x96\x81<SUF>", "\xe2\x96\x81<MID>", "\xe2\x96\x81<EOT>", NULL,
     NULL},
    /* DeepSeek-Coder */
    {"<\xef\xbd\x9c"
     "fim\xe2\x96\x81"
     "begin\xef\xbd\x9c>",
     "<\xef\xbd\x9c"
     "fim\xe2\x96\x81"
     "hole\xef\xbd\x9c>",
     "<\xef\xbd\x9c"
     "fim\xe2\x96\x81"
     "end\xef\xbd\x9c>",
     NULL, NULL, NULL},
    /* GLM-4 */
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", NULL, NULL, NULL},
};
enum { N_FAMILIES = sizeof FAMILIES / sizeof *FAMILIES };

static void note(struct fim found[N_FAMILIES], const char *piece, size_t len, int32_t id) {
    for (size_t f = 0; f < N_FAMILIES; f++)
        for (size_t t = 0; t < FIM_TOKENS; t++) {
            const char *name = FAMILIES[f][t];
            if (name && strlen(name) == len && memcmp(name, piece, len) == 0)
                found[f].ids[t] = id;
        }
}

bool fim_find(const kvasir_tokenizer *tokenizer, struct fim *out) {
    struct fim found[N_FAMILIES];
    kvasir_tokenizer_info info;
    kvasir_tokenizer_get_info(tokenizer, &info);
    memset(found, 0xff, sizeof found); /* -1 */
    for (uint32_t id = 0; id < info.size; id++) {
        size_t len;
        const char *piece = kvasir_token_piece(tokenizer, (int32_t)id, &len);
        if (piece && len > 4 && (*piece == '<' || *piece == '\xe2'))
            note(found, piece, len, (int32_t)id);
    }
    for (size_t f = 0; f < N_FAMILIES; f++)
        if (found[f].ids[FIM_PREFIX] >= 0 && found[f].ids[FIM_SUFFIX] >= 0 &&
            found[f].ids[FIM_MIDDLE] >= 0) {
            *out = found[f];
            return true;
        }
    return false;
}

/* ---- the prompt ------------------------------------------------------------------------------ */

struct fim_writer {
    const struct api_setup *setup;
    struct api_ids *ids;
    const char *at; /* the member that is written */
    struct api_error *err;
};

static bool add_ids(struct fim_writer *w, const int32_t *ids, size_t n) {
    struct api_ids *to = w->ids;
    if (!ARRAY_GROW(to->ids, to->cap, to->n + n))
        return api_no_memory(w->err);
    if (n)
        memcpy(to->ids + to->n, ids, n * sizeof *ids);
    to->n += n;
    return true;
}

static bool add_id(struct fim_writer *w, int32_t id) {
    return id < 0 || add_ids(w, &id, 1);
}

static bool add_text(struct fim_writer *w, const char *text, size_t len, unsigned flags) {
    kvasir_error why;
    int32_t *ids;
    size_t n;
    if (kvasir_tokenize_by(w->setup->tokenizer, text, len, flags, NULL, w->setup->limits, &ids, &n,
                           &why))
        return api_library_failed(w->err, w->at, &why);
    const bool good = add_ids(w, ids, n);
    kvasir_free(ids);
    return good;
}

/* What the vocabulary begins a text with. */
static bool add_bos(struct fim_writer *w) {
    kvasir_error why;
    int32_t *ids;
    size_t n;
    if (kvasir_tokenize_by(w->setup->tokenizer, "", 0, KVASIR_TOKENIZE_ADD_SPECIAL, NULL, NULL,
                           &ids, &n, &why))
        return api_library_failed(w->err, w->at, &why);
    const bool good = !n || kvasir_token_is_end(w->setup->tokenizer, ids[0]) || add_ids(w, ids, 1);
    kvasir_free(ids);
    return good;
}

static bool add_file(struct fim_writer *w, const struct fim *fim, json_t *file, const char *at) {
    static const char BETWEEN[] = "\n\n--- snippet ---\n\n"; /* llama-server's */
    if (!json_is_object(file))
        return api_wrong_type(w->err, at, file, "an object");
    json_t *text = api_string_of(file, at, "text", w->err), *name = api_get(file, "filename");
    if (!text)
        return false;
    if (name && !json_is_string(name))
        return api_wrong_type(w->err, api_member(at, "filename").text, name, "a string");
    w->at = at;
    if (fim->ids[FIM_FILE] < 0)
        return add_text(w, BETWEEN, sizeof BETWEEN - 1, 0) &&
               add_text(w, json_string_value(text), json_string_length(text), 0);
    return add_id(w, fim->ids[FIM_FILE]) &&
           (name ? add_text(w, json_string_value(name), json_string_length(name), 0)
                 : add_text(w, "tmp", 3, 0)) &&
           add_text(w, "\n", 1, 0) &&
           add_text(w, json_string_value(text), json_string_length(text), 0);
}

static bool add_files(struct fim_writer *w, const struct fim *fim, const struct fim_texts *texts) {
    static const char REPO[] = "myproject\n", FILE_NAME[] = "filename\n"; /* llama-server's */
    const char *at = w->at;
    const size_t n = json_array_size(texts->extra);
    bool good = true;
    if (texts->extra && !json_is_array(texts->extra))
        return api_wrong_type(w->err, texts->at_extra, texts->extra, "an array");
    if (n && fim->ids[FIM_REPO] >= 0)
        good = add_id(w, fim->ids[FIM_REPO]) && add_text(w, REPO, sizeof REPO - 1, 0);
    for (size_t i = 0; good && i < n; i++)
        good = add_file(w, fim, json_array_get(texts->extra, i), api_item(texts->at_extra, i).text);
    w->at = at;
    if (good && n && fim->ids[FIM_FILE] >= 0)
        good = add_id(w, fim->ids[FIM_FILE]) && add_text(w, FILE_NAME, sizeof FILE_NAME - 1, 0);
    return good;
}

static bool add_before(struct fim_writer *w, const struct fim_texts *texts) {
    struct text_buf before = {0};
    bool good = true;
    for (size_t i = 0; good && i < 2; i++)
        good = !texts->before[i] || text_append(&before, json_string_value(texts->before[i]),
                                                json_string_length(texts->before[i]));
    good = good ? add_text(w, before.len ? before.data : "", before.len, 0) : api_no_memory(w->err);
    text_free(&before);
    return good;
}

/* The body's list of that name, or this new one. */
static struct api_ids *list_of(struct api_body *body, struct api_ids list) {
    for (size_t i = 0; i < body->n_lists; i++)
        if (strcmp(body->lists[i].name, list.name) == 0)
            return &body->lists[i];
    ASSERT(body->n_lists < API_ID_LISTS); /* there are the two that are asked for here */
    body->lists[body->n_lists] = list;
    return &body->lists[body->n_lists++];
}

bool fim_set_prompt(const struct api_setup *setup, const struct fim_texts *texts,
                    struct api_body *body, struct api_error *err) {
    const struct api_ids stops = {.name = "stop_token_ids", .path = "stop_token_ids"},
                         prompt = {.name = "prompt", .path = "prompt"};
    struct fim fim;
    if (!fim_find(setup->tokenizer, &fim))
        return api_refuse(err, texts->at,
                          "this model cannot fill in the middle: its vocabulary has no tokens for "
                          "it; use a model such as Qwen2.5-Coder");
    struct fim_writer w = {
        .setup = setup, .ids = list_of(body, stops), .at = texts->at, .err = err};
    for (size_t i = 0; i < FIM_TOKENS; i++)
        if (!add_id(&w, fim.ids[i]))
            return false;
    w.ids = list_of(body, prompt);
    ASSERT(w.ids->n == 0); /* otherwise the body has a prompt of ids, and no texts */
    return (texts->follows || add_bos(&w)) && add_files(&w, &fim, texts) &&
           add_id(&w, fim.ids[FIM_PREFIX]) && add_before(&w, texts) &&
           add_id(&w, fim.ids[FIM_SUFFIX]) &&
           (!texts->after ||
            add_text(&w, json_string_value(texts->after), json_string_length(texts->after), 0)) &&
           add_id(&w, fim.ids[FIM_MIDDLE]);
}
