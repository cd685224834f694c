/* SPDX-License-Identifier: Apache-2.0 */
/* The seams between the parts of the tokenizer; nothing outside src/text (and its unit tests) reads
 * this.
 *
 *     text --specials--> segments --pretokenizer_split--> words --bpe_encode--> token ids
 *           tokenizer.c             pretokenize.c                 bpe.c
 *
 * A word is what the pre-tokenizer cuts: no merge ever crosses its ends. Everything an encoding
 * writes to (the output, struct bpe_scratch, PCRE2's match data) belongs to that one call, so that
 * a tokenizer is shared without locks.
 */
#ifndef KVASIR_TOKENIZER_INTERNAL_H
#define KVASIR_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/text.h"

/* ---- pieces by their bytes (tokenizer.c), needed only while a tokenizer is made -------------- */

struct piece_map {
    const struct text_span *pieces; /* borrowed from the spec */
    int32_t *slots;                 /* [mask + 1] ids, open addressing; -1: free */
    size_t mask;
};
/* The id of the piece with these bytes, -1 if there is none. */
int32_t piece_map_find(const struct piece_map *map, const char *data, size_t len);

/* Bytes of a file fit to be quoted in an error: printable ASCII as it is, \xHH for the rest, cut
 * short. */
struct quoted {
    char text[56];
};
struct quoted quote_bytes(const char *data, size_t len);

/* ---- the byte-level alphabet (bpe.c) --------------------------------------------------------- */

/* GPT-2 writes every byte as one printable character: itself where Latin-1 prints it, else
 * U+0100 and up in order. */
uint32_t alphabet_char(uint8_t byte);
/* Undoes it: writes the bytes that `piece` stands for to out (room for piece.len) and returns
 * their number, or -1 when the piece holds anything but UTF-8 of that alphabet. */
ptrdiff_t alphabet_decode(struct text_span piece, uint8_t *out);

/* ---- byte-pair merges (bpe.c) ---------------------------------------------------------------- */

struct bpe_pair_slot {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: free */
    uint32_t rank;
};
struct bpe_merge {
    int32_t left, right, result;
};
struct bpe {
    int32_t byte_id[256];        /* -1: the vocabulary has no such byte */
    struct bpe_merge *merges;    /* [rank] */
    struct bpe_pair_slot *slots; /* [1 << (64 - shift)], open addressing */
    unsigned shift;
};
/* Working memory of one thread, grown to the longest word seen. Zero-initialised is empty. */
struct bpe_scratch {
    uint64_t *heap;            /* [2 * cap] rank << 32 | symbol */
    struct bpe_symbol *symbol; /* [cap] */
    size_t cap;
};
kvasir_status bpe_init(struct bpe *b, const struct tokenizer_spec *spec,
                       const struct piece_map *map, kvasir_error *err) MUST_CHECK;
void bpe_deinit(struct bpe *b);
void bpe_scratch_deinit(struct bpe_scratch *s);
/* Appends the tokens of one word at ids + *n, where there is room for len of them. len < 2^31.
 * False: out of memory. */
bool bpe_encode(const struct bpe *b, struct bpe_scratch *s, const uint8_t *word, size_t len,
                int32_t *ids, size_t *n) MUST_CHECK;

/* ---- pre-tokenizers (pretokenize.c) ---------------------------------------------------------- */

enum { PRETOKENIZER_STAGES_MAX = 4 };
struct pretokenizer {
    pcre2_code *stage[PRETOKENIZER_STAGES_MAX];
    int n_stages;
    pcre2_match_context *limits;
};
kvasir_status pretokenizer_init(struct pretokenizer *p, const char *name,
                                kvasir_error *err) MUST_CHECK;
/* The same from patterns, a NULL-terminated list of at most PRETOKENIZER_STAGES_MAX. */
kvasir_status pretokenizer_init_patterns(struct pretokenizer *p, const char *const *patterns,
                                         kvasir_error *err) MUST_CHECK;
void pretokenizer_deinit(struct pretokenizer *p);

typedef bool word_fn(void *ctx, const uint8_t *word, size_t len); /* false: out of memory */
/* Calls fn for every word of valid UTF-8 text, in order; words are not empty and
 * join to the text. */
kvasir_status pretokenizer_split(const struct pretokenizer *p, pcre2_match_data *match,
                                 const char *text, size_t len, word_fn *fn, void *ctx,
                                 kvasir_error *err) MUST_CHECK;

#endif
