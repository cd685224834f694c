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

#include <string.h>

#include "api/openai_internal.h"
#include "util/utf8.h"

/* ---- JSON ------------------------------------------------------------------------------------ */

/* As jansson writes strings. No tree: an answer may have a million of them. */
static bool put_string(struct text_buf *out, const char *text, size_t len) {
    static const char FROM[] = "\"\\\b\f\n\r\t", TO[] = "\"\\bfnrt";
    bool good = text_puts(out, "\"");
    for (size_t i = 0, plain = 0; good && i <= len; i++) {
        const char c = i < len ? text[i] : 0;
        const char *known = c ? strchr(FROM, c) : NULL;
        if (i < len && !known && (unsigned char)c >= 0x20)
            continue;
        good = text_append(out, text + plain, i - plain);
        plain = i + 1;
        if (good && known)
            good = text_printf(out, "\\%c", TO[known - FROM]);
        else if (good && i < len)
            good = text_printf(out, "\\u%04X", (unsigned)c);
    }
    return good && text_puts(out, "\"");
}

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

bool text_endpoint_apply_template(const struct api_setup *setup, struct api_body *body,
                                  struct text_buf *out, struct api_error *err) {
    char *text;
    size_t len;
    if (!chat_text(setup, body->members, &text, &len, err))
        return false;
    const bool good =
        text_puts(out, "{\"prompt\":") && put_string(out, text, len) && text_puts(out, "}");
    kvasir_free(text);
    return good || api_no_memory(err);
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

static bool read_source(const struct api_setup *setup, struct api_body *from, struct source *s,
                        struct api_error *err) {
    json_t *body = from->members;
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
static bool put_token(struct text_buf *out, const kvasir_tokenizer *tokenizer, int32_t id) {
    size_t len;
    char *text = NULL;
    const char *piece = kvasir_token_piece(tokenizer, id, &len);
    if (piece && utf8_check(piece, len) == len)
        return put_string(out, piece, len);
    if (kvasir_detokenize(tokenizer, &id, 1, 0, &text, &len, NULL) != KVASIR_OK)
        return false;
    const bool good = put_string(out, text, len);
    kvasir_free(text);
    return good;
}

/* Asked once in some thousand tokens. */
static bool stops(const struct api_setup *setup, size_t token) {
    enum { LOOK = 4096 };
    const kvasir_text_limits *limits = setup->limits;
    return token % LOOK == LOOK - 1 && limits && limits->stop && limits->stop(limits->user);
}

static bool cancelled(struct api_error *err) {
    (void)api_refuse(err, NULL, "cancelled while the tokens were written");
    err->status = HTTP_CLIENT_CLOSED;
    return false;
}

static bool put_tokens(const struct api_setup *setup, const int32_t *ids, size_t n, bool strings,
                       uint32_t max_model_len, struct text_buf *out, struct api_error *err) {
    bool good =
        text_printf(out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", n, max_model_len);
    for (size_t i = 0; good && i < n; i++)
        good = text_printf(out, &",%d"[i == 0], ids[i]);
    good = good && text_puts(out, strings ? "],\"token_strs\":[" : "],\"token_strs\":null}");
    for (size_t i = 0; good && strings && i < n; i++) {
        if (stops(setup, i))
            return cancelled(err);
        good = (i == 0 || text_puts(out, ",")) && put_token(out, setup->tokenizer, ids[i]);
    }
    return (good && (!strings || text_puts(out, "]}"))) || api_no_memory(err);
}

bool text_endpoint_tokenize(const struct api_setup *setup, uint32_t max_model_len,
                            struct api_body *body, struct text_buf *out, struct api_error *err) {
    struct source s = {0};
    bool strings = false, good = false;
    kvasir_error why;
    int32_t *ids;
    size_t n;
    if (!api_flag(body->members, "return_token_strs", &strings, err) ||
        !read_source(setup, body, &s, err))
        return false;
    unsigned flags =
        (s.bos ? KVASIR_TOKENIZE_ADD_SPECIAL : 0) | (s.special ? KVASIR_TOKENIZE_PARSE_SPECIAL : 0);
    if (kvasir_tokenize_by(setup->tokenizer, s.text, s.len, flags, NULL, setup->limits, &ids, &n,
                           &why)) {
        api_library_failed(err, s.path, &why);
    } else {
        good = put_tokens(setup, ids, n, strings, max_model_len, out, err);
        kvasir_free(ids);
    }
    kvasir_free(s.rendered);
    return good;
}

/* ---- back to text ---------------------------------------------------------------------------- */

bool text_endpoint_detokenize(const struct api_setup *setup, struct api_body *body,
                              struct text_buf *out, struct api_error *err) {
    static const char NAME[] = "tokens";
    kvasir_error why;
    int32_t *ids;
    char *text;
    size_t n, len;
    if (!api_has_ids(body, NAME))
        return api_wrong_type(err, NAME, api_get(body->members, NAME), "an array of token ids");
    if (!api_take_ids(body, NAME, &ids, &n, err))
        return false;
    kvasir_status status =
        kvasir_detokenize_by(setup->tokenizer, ids, n, 0, setup->limits, &text, &len, &why);
    mem_free(ids);
    if (status)
        return api_library_failed(err, NAME, &why);
    const bool good = text_puts(out, "{\"prompt\":") && put_string(out, text, len) &&
                      text_puts(out, ",\"content\":") && put_string(out, text, len) &&
                      text_puts(out, "}");
    kvasir_free(text);
    return good || api_no_memory(err);
}

/* ---- names ----------------------------------------------------------------------------------- */

enum api_want text_endpoint_wants(const char *name, size_t len, const char **known) {
    static const char *const TREES[] = {"prompt",        "content",           "add_special",
                                        "parse_special", "return_token_strs", NULL};
    static const char *const IDS[] = {"tokens", NULL};
    static const struct api_names LISTS[] = {{API_TREE, TREES}, {API_IDS, IDS}};
    const enum api_want want = api_want_of(LISTS, 2, name, len, known);
    return want ? want : openai_wants_chat(name, len, known);
}
