/* SPDX-License-Identifier: Apache-2.0 */
/* text_endpoints.c: which special tokens a text gets:
 *
 *     prompt    BOS unless "add_special_tokens" is false (vLLM)
 *     content   no BOS unless "add_special" is true (llama.cpp)
 *     messages  what the template writes; "add_special_tokens": true puts a BOS before it (vLLM)
 *
 * Control tokens in a text are recognised, as they are in prompts; llama.cpp's "parse_special":
 * false turns that off for "content". So names of control tokens that a message contains count as
 * tokens here, as in vLLM, although a chat leaves them text.
 */
#include "api/text_endpoints.h"

#include <stdlib.h>
#include <string.h>

#include "api/openai_internal.h"
#include "util/utf8.h"

/* ---- texts ----------------------------------------------------------------------------------- */

/* The text of a chat; *text: kvasir_free. */
static bool chat_text(const struct api_setup *setup, json_t *body, char **text, size_t *len,
                      struct api_error *err) {
    struct openai_chat_shape shape;
    if (api_get(body, "chat_template"))
        return api_refuse(err, "chat_template", "is not supported");
    struct api_request r = {.kept = json_array()}; /* how an answer would be parsed */
    const bool good = openai_read_shape(body, &shape, err) &&
                      openai_chat_text(setup, body, &shape, &r, text, NULL, len, err);
    api_request_free(&r);
    return good;
}

json_t *text_endpoint_apply_template(const struct api_setup *setup, json_t *body,
                                     struct api_error *err) {
    char *text;
    size_t len;
    if (!api_is_object(body, err) || !chat_text(setup, body, &text, &len, err))
        return NULL;
    json_t *answer = json_pack("{s:o}", "prompt", json_stringn(text, len));
    kvasir_free(text);
    if (!answer)
        api_no_memory(err);
    return answer;
}

/* ---- to tokens ------------------------------------------------------------------------------- */

/* A text to tokenize: of a chat, or given in the body. */
struct source {
    const char *path;
    const char *text; /* [len] */
    size_t len;
    char *rendered; /* the same text, if it must be freed; or NULL */
    bool bos, special;
};

static bool read_source(const struct api_setup *setup, json_t *body, struct source *s,
                        struct api_error *err) {
    bool chat = api_get(body, "messages") != NULL,
         content = !chat && !api_get(body, "prompt") && api_get(body, "content");
    *s = (struct source){.path = chat      ? "messages"
                                 : content ? "content"
                                           : "prompt",
                         .bos = !chat && !content,
                         .special = true};
    if (!api_flag(body, content ? "add_special" : "add_special_tokens", &s->bos, err) ||
        (content && !api_flag(body, "parse_special", &s->special, err)))
        return false;
    if (chat) {
        if (!chat_text(setup, body, &s->rendered, &s->len, err))
            return false;
        s->text = s->rendered;
        return true;
    }
    json_t *text = api_get(body, s->path);
    if (!json_is_string(text))
        return api_wrong_type(err, s->path, text, "a string");
    s->text = json_string_value(text);
    s->len = json_string_length(text);
    return true;
}

/* A token as the vocabulary writes it, or its text if that is not UTF-8. */
static json_t *token_string(const kvasir_tokenizer *tokenizer, int32_t id) {
    size_t len;
    char *text = NULL;
    const char *piece = kvasir_token_piece(tokenizer, id, &len);
    if (piece && utf8_check(piece, len) == len)
        return json_stringn(piece, len);
    if (kvasir_detokenize(tokenizer, &id, 1, 0, &text, &len, NULL) != KVASIR_OK)
        return NULL;
    json_t *string = json_stringn(text, len);
    kvasir_free(text);
    return string;
}

static json_t *tokens_body(const kvasir_tokenizer *tokenizer, const int32_t *ids, size_t n,
                           bool strings, uint32_t max_model_len, struct api_error *err) {
    json_t *tokens = json_array(), *texts = strings ? json_array() : json_null();
    bool good = tokens && texts;
    for (size_t i = 0; good && i < n; i++)
        good = json_array_append_new(tokens, json_integer(ids[i])) == 0 &&
               (!strings || json_array_append_new(texts, token_string(tokenizer, ids[i])) == 0);
    json_t *answer = json_pack("{s:I, s:I, s:o, s:o}", "count", (json_int_t)n, "max_model_len",
                               (json_int_t)max_model_len, "tokens", tokens, "token_strs", texts);
    if (good && answer)
        return answer;
    json_decref(answer);
    api_no_memory(err);
    return NULL;
}

json_t *text_endpoint_tokenize(const struct api_setup *setup, uint32_t max_model_len, json_t *body,
                               struct api_error *err) {
    struct source s = {0};
    bool strings = false;
    kvasir_error why;
    int32_t *ids;
    size_t n;
    json_t *answer = NULL;
    if (!api_is_object(body, err) || !api_flag(body, "return_token_strs", &strings, err) ||
        !read_source(setup, body, &s, err))
        return NULL;
    unsigned flags =
        (s.bos ? KVASIR_TOKENIZE_ADD_SPECIAL : 0) | (s.special ? KVASIR_TOKENIZE_PARSE_SPECIAL : 0);
    if (kvasir_tokenize_by(setup->tokenizer, s.text, s.len, flags, NULL, setup->limits, &ids, &n,
                           &why)) {
        api_library_failed(err, s.path, &why);
    } else {
        answer = tokens_body(setup->tokenizer, ids, n, strings, max_model_len, err);
        kvasir_free(ids);
    }
    kvasir_free(s.rendered);
    return answer;
}

/* ---- back to text ---------------------------------------------------------------------------- */

json_t *text_endpoint_detokenize(const struct api_setup *setup, json_t *body,
                                 struct api_error *err) {
    kvasir_error why;
    int32_t *ids;
    char *text;
    size_t n, len;
    if (!api_is_object(body, err) ||
        !api_ids("tokens", api_get(body, "tokens"), setup->vocab, &ids, &n, err))
        return NULL;
    kvasir_status status = kvasir_detokenize(setup->tokenizer, ids, n, 0, &text, &len, &why);
    free(ids);
    if (status) {
        api_library_failed(err, "tokens", &why);
        return NULL;
    }
    json_t *string = json_stringn(text, len),
           *answer = json_pack("{s:O, s:o}", "prompt", string, "content", string);
    kvasir_free(text);
    if (!answer)
        api_no_memory(err);
    return answer;
}
