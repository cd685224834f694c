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

/* The text side of a checkpoint: tokenizer, chat template, special tokens. Immutable but for
 * kvasir_tokenizer_set_chat_template, may be shared. */
typedef struct kvasir_tokenizer kvasir_tokenizer;

/* path: a GGUF file of any architecture, a folder (tokenizer.json and, where they are there,
 * tokenizer_config.json, chat_template.jinja), or a tokenizer.json alone. */
KVASIR_API kvasir_status kvasir_tokenizer_open(const char *path, kvasir_tokenizer **out,
                                               kvasir_error *err);
KVASIR_API void kvasir_tokenizer_close(kvasir_tokenizer *tokenizer);
/* Strings belong to the tokenizer. */
typedef struct kvasir_tokenizer_info {
    const char *name; /* "gpt2 (smollm)"; NULL: none that this build reads */
    uint32_t size;    /* ids lie below it */
    bool has_chat_template;
} kvasir_tokenizer_info;
KVASIR_API void kvasir_tokenizer_get_info(const kvasir_tokenizer *tokenizer,
                                          kvasir_tokenizer_info *info);

enum {
    KVASIR_TOKENIZE_ADD_SPECIAL = 1,   /* add BOS / EOS as the vocabulary says */
    KVASIR_TOKENIZE_PARSE_SPECIAL = 2, /* control tokens written in the text become tokens */
};
/* *ids: kvasir_free. KVASIR_ERR_TEXT with a byte offset where text is not UTF-8. */
KVASIR_API kvasir_status kvasir_tokenize(const kvasir_tokenizer *tokenizer, const char *text,
                                         size_t len, unsigned flags, int32_t **ids, size_t *n,
                                         kvasir_error *err);
/* True for tokens that end an answer. False for all when there is no tokenizer. */
KVASIR_API bool kvasir_token_is_end(const kvasir_tokenizer *tokenizer, int32_t id);
/* Tokens that xtc should not leave out (kvasir_sampling), those of mlx-lm: a line end's and the end
 * tokens. *ids: kvasir_free. */
KVASIR_API kvasir_status kvasir_xtc_special(const kvasir_tokenizer *tokenizer, int32_t **ids,
                                            size_t *n, kvasir_error *err);
/* A token as the vocabulary writes it ("\u0120world", "\u2581world"): *len bytes, not always UTF-8,
 * that belong to the tokenizer. NULL: there is no such token. */
KVASIR_API const char *kvasir_token_piece(const kvasir_tokenizer *tokenizer, int32_t id,
                                          size_t *len);

enum {
    KVASIR_DETOKENIZE_SKIP_SPECIAL = 1, /* control tokens give nothing, else their name */
};
/* What the tokens say as a whole text, in valid UTF-8: bytes that are no character become U+FFFD.
 * Ids that no token has give nothing. *text: kvasir_free. */
KVASIR_API kvasir_status kvasir_detokenize(const kvasir_tokenizer *tokenizer, const int32_t *ids,
                                           size_t n, unsigned flags, char **text, size_t *len,
                                           kvasir_error *err);

/* The tokens of an answer, one by one, to text that follows another text; whole characters only:
 * bytes are held until their character is complete. */
typedef struct kvasir_detok kvasir_detok;
KVASIR_API kvasir_status kvasir_detok_create(const kvasir_tokenizer *tokenizer, kvasir_detok **out,
                                             kvasir_error *err);
KVASIR_API void kvasir_detok_destroy(kvasir_detok *detok);
/* These control tokens give their names from here on; ids that are none change nothing. Copied;
 * replaces those of an earlier call. */
KVASIR_API kvasir_status kvasir_detok_show(kvasir_detok *detok, const int32_t *ids, size_t n,
                                           kvasir_error *err);
/* *text, *len: what became complete, valid until the next call; may be empty. Control tokens give
 * nothing, but for those that are shown. */
KVASIR_API kvasir_status kvasir_detok_push(kvasir_detok *detok, int32_t id, const char **text,
                                           size_t *len, kvasir_error *err);
/* The rest at the end of an answer; an unfinished character is U+FFFD. */
KVASIR_API kvasir_status kvasir_detok_finish(kvasir_detok *detok, const char **text, size_t *len,
                                             kvasir_error *err);

/* Ends a text before the first place where one of some stop texts begins, whatever pieces it comes
 * in. Text that may still turn out to begin one is held back, also behind a stop text that is
 * complete but began later; of stop texts that begin at the same place it takes only one. Text in
 * whole characters stays so. */
typedef struct kvasir_stop kvasir_stop;
/* n texts, which are copied; none is empty. n 0: nothing stops. */
KVASIR_API kvasir_status kvasir_stop_create(const char *const *stops, size_t n, kvasir_stop **out,
                                            kvasir_error *err);
KVASIR_API void kvasir_stop_destroy(kvasir_stop *stop);
/* Most bytes that are held back: one less than the longest stop text has. */
KVASIR_API size_t kvasir_stop_hold(const kvasir_stop *stop);
/* Writes what became certain with these bytes to out, which has room for kvasir_stop_hold + len and
 * does not overlap text, *n bytes. False: the text ends there; later pushes give nothing. Never
 * allocates. */
KVASIR_API bool kvasir_stop_push(kvasir_stop *stop, const char *text, size_t len, char *out,
                                 size_t *n);
/* No more comes: what was held back, at most kvasir_stop_hold bytes. False: a stop text had been
 * complete, and what is written ends before it. Afterwards a new text may begin. */
KVASIR_API bool kvasir_stop_finish(kvasir_stop *stop, char *out, size_t *n);
/* The stop text before which the text ended, until a new one begins; it belongs to `stop`. NULL:
 * none. */
KVASIR_API const char *kvasir_stop_found(const kvasir_stop *stop);

/* Replaces the chat template by a Jinja text; `name` begins its parse errors. Not while another
 * thread uses the tokenizer. */
KVASIR_API kvasir_status kvasir_tokenizer_set_chat_template(kvasir_tokenizer *tokenizer,
                                                            const char *name, const char *source,
                                                            size_t len, kvasir_error *err);
/* The chat template's Jinja text with line ends as \n, *len bytes, which belong to the tokenizer.
 * NULL: there is none that this build reads. */
KVASIR_API const char *kvasir_chat_template(const kvasir_tokenizer *tokenizer, size_t *len);
/* Renders a chat with the template. request: the text of a JSON object whose members are the
 * template's variables: "messages", "tools", "documents" (null where missing),
 * "add_generation_prompt" (true where missing) and any other. bos_token, eos_token and the like
 * come from the vocabulary where the request has none. *out: kvasir_free. */
KVASIR_API kvasir_status kvasir_chat_render(const kvasir_tokenizer *tokenizer, const char *request,
                                            size_t request_len, char **out, size_t *len,
                                            kvasir_error *err);
/* Where the first byte that is not UTF-8 lies; len: nowhere. */
KVASIR_API size_t kvasir_utf8_check(const char *text, size_t len);

#ifdef __cplusplus
}
#endif
#endif
