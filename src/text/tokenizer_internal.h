/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_internal.h: the interfaces between the parts of the tokenizer, for src/text and its
 * unit tests.
 *
 *     making one     tokenizer_from_gguf.c                    \
 *                    tokenizer_from_json.c, _pipeline.c       /  fill in a struct tokenizer
 *
 *     encoding       text
 *      added.c         --added tokens by name-------------->  segments
 *      normalize.c     --NFC, U+2581 for spaces ...-------->  normalized segments
 *      added.c         --added tokens, normalized---------->  smaller ones
 *      pretokenize.c   --patterns-------------------------->  words
 *      bpe.c           --merges---------------------------->  token ids
 *
 *     decoding       tokenizer_decode.c: ids to a whole text; detok.c: bytes to whole characters
 *
 * A word is what the pre-tokenizer cuts: no merge crosses its ends. Everything that an encoding
 * writes to (the output, scratch memory, PCRE2's match data) belongs to that one call, so a
 * tokenizer is shared without locks.
 */
#ifndef KVASIR_TOKENIZER_INTERNAL_H
#define KVASIR_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "text/text.h"
#include "text/unicode.h"

enum {
    /* Sanity limits: 16 times the largest known vocabulary (262,144 tokens, 514,906 merges). */
    TOKENS_MAX = 1 << 22,
    MERGES_MAX = 1 << 23,
    PIECE_BYTES_MAX = 1 << 16, /* the longest in the tested vocabularies has 256 */
    VOCAB_BYTES_MAX = 1 << 28, /* all pieces together */
};
/* U+2581, which SentencePiece writes for a space. */
#define SPACE_MARK     "\xe2\x96\x81"
#define SPACE_MARK_LEN 3

/* Bytes of a file for use in an error: printable ASCII as it is, \xHH for the rest, cut if long. */
struct quoted {
    char text[56];
};
struct quoted quote_bytes(const char *data, size_t len);

static inline bool span_equal(struct text_span a, struct text_span b) {
    return a.len == b.len && span_compare(a, b) == 0;
}
static inline struct text_span span_of(const char *text) {
    return (struct text_span){text, strlen(text)};
}

/* ---- pieces (pieces.c): what a vocabulary writes, by id and by its bytes --------------------- */

/* Ids may be free (without a token), two tokens may have equal pieces, and in a damaged
 * tokenizer.json two pieces may have one id. */
struct piece_entry {
    uint32_t at, len; /* in text */
    int32_t id;
};
struct pieces {
    struct text_buf text;
    struct piece_entry *entry; /* [n_entries] in the order of the file */
    size_t n_entries, entries_cap;
    int32_t *by_id; /* [n] its entry, -1: free */
    uint8_t *kind;  /* [n] enum token_kind, 0: free */
    size_t n, by_id_cap, kind_cap;
    size_t longest; /* bytes */
};
/* Adds a token. If the id is in use, the newer piece replaces the older. */
kvasir_status pieces_add(struct pieces *p, int32_t id, struct text_span piece, enum token_kind kind,
                         kvasir_error *err) MUST_CHECK;
bool pieces_has(const struct pieces *p, int32_t id);
struct text_span pieces_at(const struct pieces *p, int32_t id); /* empty if there is none */
void pieces_deinit(struct pieces *p);
/* Text becomes such a token only by its name and with TOKENIZE_PARSE_SPECIAL. */
static inline bool is_control_kind(uint8_t kind) {
    return kind == TOKEN_CONTROL || kind == TOKEN_UNKNOWN;
}

struct piece_slot {
    uint32_t tag;     /* of the hash: with the length, it settles nearly all misses */
    uint32_t at, len; /* in the pieces' text */
    int32_t id;       /* -1: free */
};
struct piece_map {
    const struct pieces *pieces;
    struct piece_slot *slot; /* [mask + 1], open addressing */
    size_t mask;
};
/* Maps all pieces; of equal ones the last. Empty pieces are not found. */
kvasir_status piece_map_init(struct piece_map *map, const struct pieces *pieces,
                             kvasir_error *err) MUST_CHECK;
void piece_map_deinit(struct piece_map *map);
/* The id of the piece with these bytes, -1 if there is none. */
int32_t piece_map_find(const struct piece_map *map, const char *data, size_t len);

/* ---- the byte-level alphabet (alphabet.c) ---------------------------------------------------- */

/* GPT-2 writes every byte as one printable character: as itself if Latin-1 can print it, else as
 * U+0100 and up in order. */
uint32_t alphabet_char(uint8_t byte);
/* Writes the bytes that `piece` stands for to out (room for piece.len). Returns their number, or -1
 * if the piece is not UTF-8 in that alphabet. */
ptrdiff_t alphabet_decode(struct text_span piece, uint8_t *out);
/* Writes bytes in the alphabet (room for 2 * len) and returns the number of bytes written. */
size_t alphabet_encode(const uint8_t *bytes, size_t len, char *out);

/* ---- added tokens (added.c): tokens that are found in text before anything is cut ------------ */

struct added_token {
    struct text_span text; /* the text to find; owned */
    int32_t id;
    bool special; /* becomes the token only with TOKENIZE_PARSE_SPECIAL */
    bool single_word, lstrip, rstrip;
};
struct added_set {
    struct added_token *token; /* [n], sorted by text */
    size_t n, cap;
    uint32_t first[257]; /* token[first[c] .. first[c + 1]) begin with byte c */
};
/* Copies text. Empty texts are ignored; of equal ones, that with the lowest id counts. */
kvasir_status added_put(struct added_set *a, struct added_token token,
                        kvasir_error *err) MUST_CHECK;
void added_sort(struct added_set *a); /* once, after the last added_put */
void added_deinit(struct added_set *a);

/* Splits text: what is between tokens goes to plain (never empty, in order), tokens go to found. */
struct added_sink {
    kvasir_status (*plain)(void *ctx, struct text_span text, size_t offset, kvasir_error *err);
    kvasir_status (*found)(void *ctx, int32_t id, kvasir_error *err);
    void *ctx;
};
/* by: who wrote text; only their special tokens are found. NULL: all are. */
kvasir_status added_split(const struct added_set *a, struct text_span text, bool parse_special,
                          const kvasir_authors *by, const struct added_sink *sink,
                          kvasir_error *err) MUST_CHECK;

/* ---- normalizers (normalize.c) --------------------------------------------------------------- */

enum { NORMALIZER_STEPS_MAX = 8, NORMALIZER_TEXT_MAX = 32 };
enum normalizer_kind {
    NORMALIZE_NFC,
    NORMALIZE_NFD,
    NORMALIZE_NFKC,
    NORMALIZE_NFKD,
    NORMALIZE_LOWERCASE,
    NORMALIZE_STRIP,   /* white space at the ends */
    NORMALIZE_PREPEND, /* `to` in front, unless the text is empty */
    NORMALIZE_REPLACE, /* `from` by `to`, from left to right */
};
struct normalizer_step {
    enum normalizer_kind kind;
    bool left, right; /* STRIP */
    uint8_t from_len, to_len;
    char from[NORMALIZER_TEXT_MAX], to[NORMALIZER_TEXT_MAX];
};
struct normalizer {
    struct normalizer_step step[NORMALIZER_STEPS_MAX];
    int n;
};
/* Working memory of one thread. Zero-initialised is empty. */
struct normalizer_scratch {
    struct text_buf text[2];
    int32_t *chars;
    size_t chars_cap;
};
/* *out is text itself if nothing changes; else it is in scratch until the next call. */
kvasir_status normalizer_run(const struct normalizer *n, struct normalizer_scratch *scratch,
                             struct text_span text, struct text_span *out,
                             kvasir_error *err) MUST_CHECK;
void normalizer_scratch_deinit(struct normalizer_scratch *scratch);

/* How long the steps of a normalizer or decoder, which come from a file, may make `len` bytes. */
static inline size_t growth_limit(size_t len) {
    return 16 * len + 1024;
}
/* The end of the white space that begins at text[at]; the start of the white space that ends there.
 */
size_t spaces_after(struct text_span text, size_t at);
size_t spaces_before(struct text_span text, size_t least, size_t at);
/* The first place of `what` (len > 0) at or after `from`; text.len if there is none. */
size_t find_text(struct text_span text, size_t from, const char *what, size_t len);
/* Appends text with every `from` replaced and sets *changed, or does nothing if there is none.
 * Stops soon after out has grown past limit. False: out of memory. */
bool replace_text(struct text_span text, const char *from, size_t from_len, const char *to,
                  size_t to_len, size_t limit, struct text_buf *out, bool *changed) MUST_CHECK;

/* ---- pre-tokenizers (pretokenize.c, regex.c) ------------------------------------------------- */

/* What happens to the matches of a pattern and to the text between them. */
enum split_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
};
enum pre_stage_kind {
    STAGE_REGEX,
    STAGE_LITERAL,
    STAGE_PREFIX, /* puts `text` before a part that does not begin with it */
    STAGE_MARKS,  /* spaces become U+2581 */
};
struct pre_stage {
    enum pre_stage_kind kind;
    enum split_behavior behavior;
    bool invert;     /* the text between matches counts as the match */
    bool first_only; /* PREFIX: only at the start of the text */
    uint8_t text_len;
    char text[NORMALIZER_TEXT_MAX]; /* LITERAL, PREFIX */
    pcre2_code *re;
};
enum { PRETOKENIZER_STAGES_MAX = 16 };
struct pretokenizer {
    struct pre_stage stage[PRETOKENIZER_STAGES_MAX];
    int n;
};
struct pre_scratch {
    pcre2_match_data *match;
    pcre2_match_context *limits;
    struct text_buf text[PRETOKENIZER_STAGES_MAX]; /* what PREFIX and MARKS write */
};
/* Adds a stage; takes over *stage. */
kvasir_status pretokenizer_add(struct pretokenizer *p, const struct pre_stage *stage,
                               kvasir_error *err) MUST_CHECK;
/* Adds stages for our own patterns (NULL-terminated). */
kvasir_status pretokenizer_add_patterns(struct pretokenizer *p, const char *const *patterns,
                                        kvasir_error *err) MUST_CHECK;
void pretokenizer_deinit(struct pretokenizer *p);
/* Whether words may have fewer symbols than the text that is cut into them. */
bool pretokenizer_shortens(const struct pretokenizer *p);

/* A pre-tokenizer that GGUF names. */
struct known_pre {
    const char *name;
    const char *patterns[PRETOKENIZER_STAGES_MAX + 1]; /* NULL-terminated */
    bool nfc, ignore_merges;
};
kvasir_status known_pre_find(const char *name, const struct known_pre **out,
                             kvasir_error *err) MUST_CHECK;
extern const char gpt2_pattern[];

/* Compiles a pattern in Oniguruma's dialect, as in tokenizer.json files. An error's offset is the
 * character in the pattern. */
kvasir_status regex_compile_onig(struct text_span pattern, pcre2_code **out,
                                 kvasir_error *err) MUST_CHECK;

kvasir_status pre_scratch_init(struct pre_scratch *scratch, size_t text_len,
                               kvasir_error *err) MUST_CHECK;
void pre_scratch_deinit(struct pre_scratch *scratch);
typedef bool word_fn(void *ctx, const char *word, size_t len); /* false: out of memory */
/* Calls fn for every word of valid UTF-8 text, in order. Words are not empty. at_start: text is at
 * the start of the input. */
kvasir_status pretokenizer_split(const struct pretokenizer *p, struct pre_scratch *scratch,
                                 struct text_span text, bool at_start, word_fn *fn, void *ctx,
                                 kvasir_error *err) MUST_CHECK;

/* ---- early ends (tokenizer.c) ---------------------------------------------------------------- */

/* What may end an encoding early, and what did. Zeros: nothing does. */
struct text_guard {
    bool (*stop)(void *user);
    void *user;
    size_t work; /* since stop was asked */
    bool stopped;
};
enum { WORK_A_LOOK = 64 << 10 };
/* Counts work (bytes, symbols). True: it is to stop. */
static inline bool guard_stops(struct text_guard *g, size_t work) {
    g->work += work;
    if (g->work < WORK_A_LOOK || !g->stop)
        return g->stopped;
    g->work = 0;
    return g->stopped |= g->stop(g->user);
}

/* ---- byte-pair merges (bpe.c, merges.c) ------------------------------------------------------ */

struct merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: free slot */
    uint32_t rank; /* lower merges first; MERGE_NONE: no merge */
    int32_t result;
};
#define MERGE_NONE UINT32_MAX
struct merge_map {
    struct merge *slot; /* [1 << (64 - shift)], open addressing */
    unsigned shift;
    size_t n;
};
void merge_map_deinit(struct merge_map *m);
/* NULL: the two do not merge. */
const struct merge *merge_map_find(const struct merge_map *m, int32_t left, int32_t right);

/* Adds the merge of two pieces. Both and their concatenation must be in the vocabulary. */
kvasir_status merge_add_named(struct merge_map *m, const struct piece_map *map,
                              struct text_span left, struct text_span right, size_t rank,
                              bool keep_first, kvasir_error *err) MUST_CHECK;
/* The same, from "left right". */
kvasir_status merge_add_line(struct merge_map *m, const struct piece_map *map,
                             struct text_span line, size_t rank, bool keep_first,
                             kvasir_error *err) MUST_CHECK;
/* SentencePiece: two pieces merge if their concatenation is a piece, the best score first. */
kvasir_status merges_from_scores(struct merge_map *m, const struct piece_map *map,
                                 const float *scores, kvasir_error *err) MUST_CHECK;

struct bpe {
    struct merge_map merges;
    /* Symbols are bytes in GPT-2's alphabet, or else characters. */
    bool bytes;
    /* bytes: the piece of each byte; characters: the piece "<0x0A>" of each byte. -1: the
     * vocabulary has no such piece. */
    int32_t byte_id[256];
    bool byte_fallback;   /* of characters: byte_id is used */
    int32_t unk;          /* for symbols without a piece; -1: they are dropped */
    bool fuse_unk;        /* adjacent unknown symbols are one token */
    bool whole_words;     /* a word that is a piece becomes that token, regardless of merges */
    bool cut_at_marks;    /* see bpe_cut */
    bool joins_mark[256]; /* a piece contains U+2581 after this byte */
    const struct piece_map *map;
};
/* Fills in byte_id, cut_at_marks and joins_mark from the map and from what a reader has set. */
void bpe_finish(struct bpe *b, const struct piece_map *map);
void bpe_deinit(struct bpe *b);

/* Working memory of one thread, grown to the longest word seen. Zero-initialised is empty. */
struct bpe_scratch {
    uint64_t *heap; /* rank << 32 | symbol */
    struct bpe_symbol *symbol;
    size_t heap_cap, symbol_cap;
    struct text_buf spelled; /* a word in the alphabet */
    bool control;            /* a whole word may become a control token */
    struct text_guard guard;
};
void bpe_scratch_deinit(struct bpe_scratch *s);
/* Where the word that begins at `from` may end without changing any token. */
size_t bpe_cut(const struct bpe *b, const char *text, size_t len, size_t from);
/* Whether a text surely has more tokens than `most`, however its words merge: its symbols are too
 * many for the longest pieces. Looks at no more of it than it needs to. */
bool bpe_exceeds(const struct bpe *b, const char *text, size_t len, size_t most);
/* Appends the tokens of one word at ids + *n, which has room for len more. False: out of memory,
 * the word has 2^31 bytes, or s->guard.stopped. */
bool bpe_encode(const struct bpe *b, struct bpe_scratch *s, const char *word, size_t len,
                int32_t *ids, size_t *n) MUST_CHECK;

/* ---- decoders (tokenizer_decode.c) ----------------------------------------------------------- */

enum { DECODER_STEPS_MAX = 8 };
enum decoder_kind {
    DECODE_BYTE_LEVEL,    /* the alphabet undone; only as the first step */
    DECODE_REPLACE,       /* `from` by `to` in every token */
    DECODE_MARKS,         /* U+2581 to a space; in the first token to nothing if `strip` */
    DECODE_BYTE_FALLBACK, /* runs of "<0x0A>" to the characters they are */
    DECODE_FUSE,          /* all tokens to one */
    DECODE_STRIP,         /* up to start (stop) characters `from` off both ends of every token */
};
struct decoder_step {
    enum decoder_kind kind;
    bool strip;
    uint32_t start, stop;
    uint8_t from_len, to_len;
    char from[NORMALIZER_TEXT_MAX], to[NORMALIZER_TEXT_MAX];
};
struct decoder {
    struct decoder_step step[DECODER_STEPS_MAX];
    int n;
    bool spaces; /* a tokenizer.json without a decoder: a space between tokens */
};

/* ---- the tokenizer --------------------------------------------------------------------------- */

enum { IDS_ADDED_MAX = 64 }; /* files add one or two */
struct id_list {
    int32_t id[IDS_ADDED_MAX];
    size_t n;
};
struct tokenizer {
    char name[64];
    struct pieces pieces;
    struct piece_map map; /* of the model's own vocabulary, without tokens added outside it */
    uint32_t *start;      /* [pieces.n + 1] where the bytes of a token begin */
    char *bytes;
    bool *ends; /* [pieces.n] */
    struct added_set added, added_normalized;
    struct normalizer normalizer;
    struct pretokenizer pre;
    struct bpe bpe;
    struct decoder decoder;
    struct id_list before, after; /* what TOKENIZE_ADD_SPECIAL adds */
    int32_t bos, eos;
};
/* The two readers. They fill in everything except start, bytes and ends. */
kvasir_status tokenizer_from_fields(struct tokenizer *t, const struct tokenizer_spec *spec,
                                    kvasir_error *err) MUST_CHECK;
kvasir_status tokenizer_from_json(struct tokenizer *t, struct text_span json,
                                  struct text_span config, kvasir_error *err) MUST_CHECK;
/* The small parts of a tokenizer.json (tokenizer_pipeline.c), from JSON values; NULL and null:
 * there is none. Errors name the path in the file. */
kvasir_status pipeline_normalizer(json_t *value, struct normalizer *n,
                                  kvasir_error *err) MUST_CHECK;
/* *byte_level: words are spelled in bytes. */
kvasir_status pipeline_pre_tokenizer(json_t *value, struct pretokenizer *pre, bool *byte_level,
                                     kvasir_error *err) MUST_CHECK;
/* Fills in t->before and t->after. t's pieces must be complete. */
kvasir_status pipeline_post_processor(json_t *value, struct tokenizer *t,
                                      kvasir_error *err) MUST_CHECK;
kvasir_status pipeline_decoder(json_t *value, struct decoder *d, kvasir_error *err) MUST_CHECK;

/* Appends the bytes of a token inside a text. */
kvasir_status decoder_token_bytes(const struct tokenizer *t, int32_t id, struct text_buf *out,
                                  kvasir_error *err) MUST_CHECK;

#endif
