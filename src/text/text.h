/* SPDX-License-Identifier: Apache-2.0 */
/* text/: characters to tokens and back, and chat messages to a prompt. It knows nothing of tensors
 * or files: vocabularies arrive as plain data (struct tokenizer_spec), templates as strings, their
 * arguments as JSON values. Everything here is immutable once created and may be used by several
 * threads, except struct detok. */
#ifndef KVASIR_TEXT_H
#define KVASIR_TEXT_H

#include <jansson.h>
#include <string.h>

#include "kvasir_text.h"
#include "util/utf8.h"
#include "util/util.h"

/* ---- tokenizer (tokenizer.c; tokenizer_internal.h lists its parts) --------------------------- */

struct text_span {
    const char *data;
    size_t len;
};
/* By bytes, which for UTF-8 is by code points: negative, 0 or positive. */
static inline int span_compare(struct text_span a, struct text_span b) {
    size_t both = min_size(a.len, b.len);
    int order = both ? memcmp(a.data, b.data, both) : 0;
    return order ? order : (a.len > b.len) - (a.len < b.len);
}

/* The numbers are those of GGUF. */
enum token_kind {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6,
};

/* A vocabulary as in a checkpoint. tokenizer_create borrows all memory for the call. */
struct tokenizer_spec {
    /* A folder's tokenizer.json and tokenizer_config.json, as text. With json.data set, only `ends`
     * of the fields below counts. NULL: the fields of a GGUF file, below. */
    struct text_span json, config;
    const char *model; /* "gpt2": byte-level BPE; "llama": SentencePiece's BPE with byte fallback */
    /* the pre-tokenizer of "gpt2" ("qwen2", "llama-bpe" ...; the table in pretokenize.c); NULL is
     * "default", which is that of GPT-2. An unknown name is an error. */
    const char *pre;
    const struct text_span *pieces; /* [n_tokens], byte-level alphabet as stored */
    const uint8_t *kinds;           /* [n_tokens] enum token_kind; NULL: all normal */
    size_t n_tokens;
    const struct text_span *merges; /* [n_merges], "left right", best first */
    size_t n_merges;
    const float *scores;   /* [n_tokens] of "llama": the best pair merges first; NULL: none */
    bool add_space_prefix; /* of "llama" */
    const int32_t *ends;   /* [n_ends] more tokens that end an answer (generation_config.json) */
    size_t n_ends;
    int32_t bos, eos, eot, unk, pad; /* -1: there is none */
    bool add_bos, add_eos;
};

struct tokenizer;
kvasir_status tokenizer_create(const struct tokenizer_spec *spec, struct tokenizer **out,
                               kvasir_error *err) MUST_CHECK;
void tokenizer_destroy(struct tokenizer *t);
/* "gpt2 (qwen2)", "llama (SentencePiece BPE)", "tokenizer.json BPE": for people. */
const char *tokenizer_name(const struct tokenizer *t);

enum {
    TOKENIZE_ADD_SPECIAL = 1,   /* add BOS / EOS as the vocabulary says */
    TOKENIZE_PARSE_SPECIAL = 2, /* control tokens written in the text become those tokens */
};
/* *ids is fresh (mem_free). Invalid UTF-8 is KVASIR_ERR_TEXT with the byte offset. Takes O(n log n)
 * for any text. User-defined tokens ("<think>", runs of spaces) are found with any flags. */
kvasir_status tokenizer_encode(const struct tokenizer *t, const char *text, size_t len,
                               unsigned flags, int32_t **ids, size_t *n,
                               kvasir_error *err) MUST_CHECK;
/* The same, but only authors who may write a control token do (by NULL: all may), and within
 * limits (NULL: none). Other text is cut as ever. */
kvasir_status tokenizer_encode_by(const struct tokenizer *t, const char *text, size_t len,
                                  unsigned flags, const kvasir_authors *by,
                                  const kvasir_text_limits *limits, int32_t **ids, size_t *n,
                                  kvasir_error *err) MUST_CHECK;

enum {
    DETOKENIZE_SKIP_SPECIAL = 1, /* control tokens give nothing, else their name */
};
/* Appends the text of these tokens as Hugging Face's decode does: valid UTF-8 (invalid bytes become
 * U+FFFD), and without the space that a SentencePiece vocabulary with add_space_prefix puts in
 * front. Ids without a token give nothing. KVASIR_ERR_TEXT if the decoder of a tokenizer.json makes
 * the text more than 16 times as long. For text that arrives token by token use tokenizer_bytes and
 * struct detok. */
kvasir_status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                               unsigned flags, struct text_buf *out, kvasir_error *err) MUST_CHECK;

/* The same until limits->stop ends it (limits NULL: nothing does). */
kvasir_status tokenizer_decode_by(const struct tokenizer *t, const int32_t *ids, size_t n,
                                  unsigned flags, const kvasir_text_limits *limits,
                                  struct text_buf *out, kvasir_error *err) MUST_CHECK;

size_t tokenizer_size(const struct tokenizer *t); /* ids are below this; some may be free */
int32_t tokenizer_bos(const struct tokenizer *t); /* -1: none; likewise eos */
int32_t tokenizer_eos(const struct tokenizer *t);
/* The token ends an answer: EOS, or an end-of-turn token of the vocabulary. */
bool tokenizer_is_end(const struct tokenizer *t, int32_t id);
bool tokenizer_is_control(const struct tokenizer *t, int32_t id);
/* The bytes of a token inside a text (byte-level alphabet undone, U+2581 as a space, "<0x0A>" as
 * one byte). Control tokens give their name. Empty for an id without a token. */
struct text_span tokenizer_bytes(const struct tokenizer *t, int32_t id);
/* The token as the vocabulary writes it. Empty for an id without a token. */
struct text_span tokenizer_piece(const struct tokenizer *t, int32_t id);

/* Appends a GGUF's vocabulary as a tokenizer.json (tokenizer_to_json.c). */
kvasir_status tokenizer_write_json(const struct tokenizer_spec *spec, struct text_buf *out,
                                   kvasir_error *err) MUST_CHECK;

/* ---- detokenizer (detok.c): whole characters only -------------------------------------------- */

/* Joins the bytes of tokens and releases whole UTF-8 characters. Invalid bytes come out as U+FFFD.
 */
struct detok {
    uint8_t held[4];
    uint8_t n_held;
};
/* Appends the characters that are complete after these bytes. */
bool detok_push(struct detok *d, struct text_span bytes, struct text_buf *out) MUST_CHECK;
/* The end of the text: held bytes come out as U+FFFD. */
bool detok_finish(struct detok *d, struct text_buf *out) MUST_CHECK;
/* The value of a hexadecimal digit; -1 for other characters (unicode.c). */
int hex_digit(char c);

/* A set of tokens: token i is bit i % 64 of word i / 64. */
static inline size_t token_set_words(uint32_t n_ids) {
    return ((size_t)n_ids + 63) / 64;
}

/* ---- chat templates (template_*.c): a Jinja subset ------------------------------------------- */

/* Errors of parsing and rendering name line and column of the template. */
struct template;
kvasir_status template_parse(const char *source, size_t len, struct template **out,
                             kvasir_error *err) MUST_CHECK;
void template_destroy(struct template *t);
/* The source, with \n for line ends. */
struct text_span template_source(const struct template *t);

/* Limits of one rendering: a template is a program that came with a file. */
struct template_limits {
    uint64_t steps; /* evaluated nodes */
    uint32_t depth; /* nested calls and blocks */
    size_t output_bytes;
    bool (*stop)(void *user); /* as in kvasir_text_limits; NULL: never */
    void *user;
};
struct template_limits template_limits_default(void);
/* args: an object with the template's variables (messages, add_generation_prompt, bos_token, tools
 * ...). strftime_now formats `now` (seconds since 1970, UTC). raise_exception fails with
 * KVASIR_ERR_TEMPLATE and its text. */
kvasir_status template_render(const struct template *t, json_t *args, int64_t now,
                              const struct template_limits *limits, struct text_buf *out,
                              kvasir_error *err) MUST_CHECK;
/* The same, and who wrote it: appends the enum kvasir_author of each byte to authors (NULL: not
 * wanted). own: the model's own variables (object, NULL: none), for names that args lacks; their
 * text counts as the template's. */
kvasir_status template_render_by(const struct template *t, json_t *args, json_t *own, int64_t now,
                                 const struct template_limits *limits, struct text_buf *out,
                                 struct text_buf *authors, kvasir_error *err) MUST_CHECK;

/* Adds the vocabulary's special tokens that templates may use, such as "bos_token": "<s>". t was
 * made from spec. */
kvasir_status template_tokens(const struct tokenizer_spec *spec, const struct tokenizer *t,
                              json_t *variables, kvasir_error *err) MUST_CHECK;

#endif
