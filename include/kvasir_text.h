/* SPDX-License-Identifier: Apache-2.0 */
/* kvasir_text.h: the text side of kvasir.h, which includes it: tokenizers, chat templates, and
 * tokens back to text. The rules of kvasir.h hold. */
#ifndef KVASIR_PUBLIC_TEXT_H
#define KVASIR_PUBLIC_TEXT_H

#include "kvasir_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- text --------------------------------------------------------------------------------- */

/* Tokenizer, chat template and special tokens of a checkpoint. Immutable except by
 * kvasir_tokenizer_set_chat_template; may be shared. */
typedef struct kvasir_tokenizer kvasir_tokenizer;

/* path: a GGUF file of any architecture, a folder (tokenizer.json, and if present
 * tokenizer_config.json and chat_template.jinja), or a tokenizer.json alone. */
KVASIR_API kvasir_status kvasir_tokenizer_open(const char *path, kvasir_tokenizer **out,
                                               kvasir_error *err);
KVASIR_API void kvasir_tokenizer_close(kvasir_tokenizer *tokenizer);
/* Strings belong to the tokenizer. */
typedef struct kvasir_tokenizer_info {
    const char *name; /* "gpt2 (smollm)"; NULL: none that this build reads */
    uint32_t size;    /* ids are below it */
    bool has_chat_template;
} kvasir_tokenizer_info;
KVASIR_API void kvasir_tokenizer_get_info(const kvasir_tokenizer *tokenizer,
                                          kvasir_tokenizer_info *info);

enum {
    KVASIR_TOKENIZE_ADD_SPECIAL = 1,   /* add BOS / EOS as the vocabulary specifies */
    KVASIR_TOKENIZE_PARSE_SPECIAL = 2, /* names of control tokens in the text become tokens */
};
/* *ids: kvasir_free. If text is not UTF-8: KVASIR_ERR_TEXT with the byte offset. */
KVASIR_API kvasir_status kvasir_tokenize(const kvasir_tokenizer *tokenizer, const char *text,
                                         size_t len, unsigned flags, int32_t **ids, size_t *n,
                                         kvasir_error *err);

/* What ends work on a text early. */
typedef struct kvasir_text_limits {
    /* Of an encoding; 0: any number. Beyond it the result is KVASIR_ERR_CONTEXT, found as soon as
     * it is certain: the rest of the text is not encoded. */
    size_t max_tokens;
    /* Asked once in 64 KiB of text, or some thousand tokens or steps of a template; true:
     * the result is KVASIR_ERR_CANCELLED. NULL: never. */
    bool (*stop)(void *user);
    void *user;
} kvasir_text_limits;
/* Who wrote a byte of a chat's prompt (kvasir_chat_render_by). Of a token with several authors, the
 * first of this list counts. */
enum kvasir_author {
    KVASIR_BY_REQUEST,   /* users, the system, tools, names, numbers, and whatever is not known */
    KVASIR_BY_ASSISTANT, /* the messages with role "assistant" */
    KVASIR_BY_TEMPLATE,  /* the template, and the model's own variables such as bos_token */
};
typedef struct kvasir_authors {
    const char *each; /* enum kvasir_author of each byte of the text */
    /* Control tokens that an assistant may write, too: the markers of reasoning and tool calls. */
    const int32_t *markers; /* [n_markers] */
    size_t n_markers;
} kvasir_authors;
/* kvasir_tokenize for a text whose authors are known: of the control tokens named in it only those
 * become tokens that the template wrote from the first byte to the last (or the assistant, if it is
 * a marker). Names of others are text; everything else becomes the same tokens. authors NULL: as
 * kvasir_tokenize; limits NULL: none. */
KVASIR_API kvasir_status kvasir_tokenize_by(const kvasir_tokenizer *tokenizer, const char *text,
                                            size_t len, unsigned flags,
                                            const kvasir_authors *authors,
                                            const kvasir_text_limits *limits, int32_t **ids,
                                            size_t *n, kvasir_error *err);
/* True for tokens that end an answer; without a tokenizer, for none. */
KVASIR_API bool kvasir_token_is_end(const kvasir_tokenizer *tokenizer, int32_t id);
/* Tokens that xtc should not drop (kvasir_sampling), as in mlx-lm: those of a line end, and the end
 * tokens. *ids: kvasir_free. */
KVASIR_API kvasir_status kvasir_xtc_special(const kvasir_tokenizer *tokenizer, int32_t **ids,
                                            size_t *n, kvasir_error *err);
/* A token as the vocabulary writes it ("\u0120world", "\u2581world"): *len bytes, not always UTF-8,
 * which belong to the tokenizer. NULL: no such token. */
KVASIR_API const char *kvasir_token_piece(const kvasir_tokenizer *tokenizer, int32_t id,
                                          size_t *len);

enum {
    KVASIR_DETOKENIZE_SKIP_SPECIAL = 1, /* control tokens add nothing, otherwise their name */
};
/* Tokens to a complete text in valid UTF-8: invalid bytes become U+FFFD. Unknown ids add nothing.
 * *text: kvasir_free. */
KVASIR_API kvasir_status kvasir_detokenize(const kvasir_tokenizer *tokenizer, const int32_t *ids,
                                           size_t n, unsigned flags, char **text, size_t *len,
                                           kvasir_error *err);
/* The same until limits->stop ends it. limits NULL: nothing does. */
KVASIR_API kvasir_status kvasir_detokenize_by(const kvasir_tokenizer *tokenizer, const int32_t *ids,
                                              size_t n, unsigned flags,
                                              const kvasir_text_limits *limits, char **text,
                                              size_t *len, kvasir_error *err);

/* The tokens of an answer, one by one, to text that follows other text. Bytes are held back until
 * their character is complete. */
typedef struct kvasir_detok kvasir_detok;
KVASIR_API kvasir_status kvasir_detok_create(const kvasir_tokenizer *tokenizer, kvasir_detok **out,
                                             kvasir_error *err);
KVASIR_API void kvasir_detok_destroy(kvasir_detok *detok);
/* From now on these control tokens add their names; other ids change nothing. Copied; replaces the
 * ids of an earlier call. */
KVASIR_API kvasir_status kvasir_detok_show(kvasir_detok *detok, const int32_t *ids, size_t n,
                                           kvasir_error *err);
/* *text, *len: what became complete, valid until the next call; may be empty. Control tokens add
 * nothing, except those that are shown. */
KVASIR_API kvasir_status kvasir_detok_push(kvasir_detok *detok, int32_t id, const char **text,
                                           size_t *len, kvasir_error *err);
/* The rest at the end of an answer; an unfinished character is U+FFFD. */
KVASIR_API kvasir_status kvasir_detok_finish(kvasir_detok *detok, const char **text, size_t *len,
                                             kvasir_error *err);

/* Ends a text before the first occurrence of one of some stop texts, however the text is cut into
 * pieces. Text that may begin a stop text is held back, even if another stop text that began later
 * is complete already. If pieces are whole characters, so is the output. */
typedef struct kvasir_stop kvasir_stop;
/* n texts, copied, none of them empty. n 0: nothing stops. */
KVASIR_API kvasir_status kvasir_stop_create(const char *const *stops, size_t n, kvasir_stop **out,
                                            kvasir_error *err);
KVASIR_API void kvasir_stop_destroy(kvasir_stop *stop);
/* Most bytes that are held back: one less than the longest stop text. */
KVASIR_API size_t kvasir_stop_hold(const kvasir_stop *stop);
/* Writes *n bytes that became certain to out, which has room for kvasir_stop_hold + len and does
 * not overlap text. False: the text ends there; later pushes write nothing. Never allocates. */
KVASIR_API bool kvasir_stop_push(kvasir_stop *stop, const char *text, size_t len, char *out,
                                 size_t *n);
/* The end of the text: writes what was held back, at most kvasir_stop_hold bytes. False: a stop
 * text was complete, and the output ends before it. After this a new text may begin. */
KVASIR_API bool kvasir_stop_finish(kvasir_stop *stop, char *out, size_t *n);
/* The stop text before which the text ended, until a new text begins; belongs to `stop`. NULL:
 * none. */
KVASIR_API const char *kvasir_stop_found(const kvasir_stop *stop);

/* What a text must be: JSON of a schema (draft 2020-12 and what older ones write differently), a
 * regular expression (ECMA-262, the whole text), or a grammar in llama.cpp's GBNF. Compiled once;
 * any number of requests and threads may use it. */
typedef struct kvasir_grammar kvasir_grammar;
typedef enum kvasir_grammar_kind {
    KVASIR_GRAMMAR_JSON_SCHEMA,
    KVASIR_GRAMMAR_REGEX,
    KVASIR_GRAMMAR_GBNF,
} kvasir_grammar_kind;
/* KVASIR_ERR_ARGUMENT: the text is wrong; KVASIR_ERR_UNSUPPORTED: it asks for what cannot be held
 * while an answer is written, or costs too much. Both say where: a JSON pointer and the keyword, or
 * line and column. */
KVASIR_API kvasir_status kvasir_grammar_create(kvasir_grammar_kind kind, const char *text,
                                               size_t len, kvasir_grammar **out, kvasir_error *err);
KVASIR_API void kvasir_grammar_destroy(kvasir_grammar *grammar); /* requests that use it keep it */
/* Bytes on the heap; grows while the grammar is used, up to 32 MiB more than at first. */
KVASIR_API size_t kvasir_grammar_bytes(const kvasir_grammar *grammar);
/* *matches: this is a whole text of the grammar. *at: the bytes of it that an answer could begin
 * with. */
KVASIR_API kvasir_status kvasir_grammar_match(const kvasir_grammar *grammar, const char *text,
                                              size_t len, bool *matches, size_t *at,
                                              kvasir_error *err);

/* Keeps an answer to a grammar that is picked token by token, as a kvasir_engine does for requests
 * with one:
 *     while (!complete && !kvasir_guide_pick(guide, sampler, logits, &id, &err) && id is no end)
 *         kvasir_sampler_accept(sampler, id), kvasir_guide_add(guide, id, &complete, &err) ...
 * vocab: the number of logits. The tokenizer is borrowed until the guide is destroyed. */
typedef struct kvasir_guide kvasir_guide;
struct kvasir_sampler;
KVASIR_API kvasir_status kvasir_guide_create(const kvasir_tokenizer *tokenizer, uint32_t vocab,
                                             const kvasir_grammar *grammar, kvasir_guide **out,
                                             kvasir_error *err);
KVASIR_API void kvasir_guide_destroy(kvasir_guide *guide);
/* Picks among the tokens that may come next; end tokens where the text may end. What has no
 * alternative comes in the tokenizer's tokens and draws no random number. */
KVASIR_API kvasir_status kvasir_guide_pick(kvasir_guide *guide, struct kvasir_sampler *sampler,
                                           const float *logits, int32_t *token, kvasir_error *err);
/* A picked token, other than an end token, is part of the answer. *complete: nothing more may
 * come. */
KVASIR_API kvasir_status kvasir_guide_add(kvasir_guide *guide, int32_t token, bool *complete,
                                          kvasir_error *err);

/* Replaces the chat template; `source` is Jinja, `name` begins its parse errors. Not while another
 * thread uses the tokenizer. */
KVASIR_API kvasir_status kvasir_tokenizer_set_chat_template(kvasir_tokenizer *tokenizer,
                                                            const char *name, const char *source,
                                                            size_t len, kvasir_error *err);
/* The chat template's Jinja text with \n as line ends: *len bytes, which belong to the tokenizer.
 * NULL: none that this build reads. */
KVASIR_API const char *kvasir_chat_template(const kvasir_tokenizer *tokenizer, size_t *len);
/* Renders a chat with the template. request: the text of a JSON object whose members are the
 * template's variables: "messages", "tools", "documents" (default null),
 * "add_generation_prompt" (default true) and any other. bos_token, eos_token and the like come from
 * the vocabulary unless the request has them. *out: kvasir_free. */
KVASIR_API kvasir_status kvasir_chat_render(const kvasir_tokenizer *tokenizer, const char *request,
                                            size_t request_len, char **out, size_t *len,
                                            kvasir_error *err);
/* The same, and who wrote it: *authors, [len] as in kvasir_authors, kvasir_free (authors NULL: not
 * wanted). limits NULL: none. */
KVASIR_API kvasir_status kvasir_chat_render_by(const kvasir_tokenizer *tokenizer,
                                               const char *request, size_t request_len,
                                               const kvasir_text_limits *limits, char **out,
                                               char **authors, size_t *len, kvasir_error *err);
/* The same of a parsed object: a json_t of jansson, which is only read. */
struct json_t;
KVASIR_API kvasir_status kvasir_chat_render_value(const kvasir_tokenizer *tokenizer,
                                                  struct json_t *request,
                                                  const kvasir_text_limits *limits, char **out,
                                                  char **authors, size_t *len, kvasir_error *err);
/* Offset of the first byte that is not UTF-8; len: all is. */
KVASIR_API size_t kvasir_utf8_check(const char *text, size_t len);
/* Writes the sampling that the model's makers recommend (generation_config.json, or a GGUF file's
 * general.sampling.*) over *sampling: temp, top_p, top_k, min_p, repetition_penalty. What they do
 * not mention stays. Returns whether they recommend anything. */
struct kvasir_model;
struct kvasir_sampling;
KVASIR_API bool kvasir_model_sampling(const struct kvasir_model *model,
                                      struct kvasir_sampling *sampling);

#ifdef __cplusplus
}
#endif
#endif
