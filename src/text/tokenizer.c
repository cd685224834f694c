/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer: a checked copy of a vocabulary, the tokens that stand for themselves in text, and
 * encoding as a whole.
 *
 *     struct tokenizer
 *       blob      "<|im_start|>" "!" "\"" ... " the" ...  bytes of every token, alphabet undone
 *       start     0              12  13   ...              [n + 1] where token i begins
 *       specials  control and user-defined tokens, sorted by their bytes
 *       first[c]  where the specials that begin with byte c are
 *       bpe, pre  see tokenizer_internal.h
 *
 * Invariants:
 *   1. Nothing of the spec is borrowed after tokenizer_create, and nothing here changes after it:
 *      any number of threads may encode and decode at once.
 *   2. Every id that comes out of an encoding is in [0, n).
 *   3. Without TOKENIZE_PARSE_SPECIAL text can spell the name of a control token without becoming
 *      it: names are only looked for with the flag. With it, of several that match the leftmost and
 *      then the longest is taken.
 *
 * A spec comes out of a file, so all of it is checked here; the message names the entry, the caller
 * the file. Accepted, because real files have them: empty pieces, bytes without a piece, pieces
 * outside the alphabet (they stand for their own bytes), merges listed twice, kind 0.
 *
 * Left out: normalisation, SentencePiece vocabularies, tokens that swallow spaces beside them.
 */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

enum {
    /* Absurdity limits, some 16 times the largest vocabulary known (262,144 tokens, 514,906
     * merges). */
    TOKENS_MAX = 1 << 22,
    MERGES_MAX = 1 << 23,
    PIECE_BYTES_MAX = 1 << 16, /* the longest piece of the vocabularies we test has 256 */
    VOCAB_BYTES_MAX = 1 << 28, /* all pieces together */
    BYTE_PIECE_LEN = 6,        /* "<0x0A>" */
};
/* Symbols of a word are counted in 31 bits. */
#define TEXT_BYTES_MAX ((size_t)INT32_MAX)

struct special {
    const char *data; /* in blob */
    size_t len;
    int32_t id;
};

struct tokenizer {
    char *blob;
    uint32_t *start; /* [n + 1] */
    uint8_t *kinds;  /* [n] enum token_kind */
    bool *ends;      /* [n] ends an answer */
    size_t n;
    struct special *specials; /* [n_specials] */
    size_t n_specials;
    size_t first[257]; /* specials that begin with byte c: [first[c], first[c + 1]) */
    struct bpe bpe;
    struct pretokenizer pre;
    int32_t bos, eos;
    bool add_bos, add_eos;
};

/* Names under which chat models end an answer. A vocabulary names one (EOS), their generation
 * settings often more: Qwen3 two, Llama 3.1 three. Names that mean other things elsewhere are
 * not here ("<|end|>" ends an answer of Phi-3 and a thought of gpt-oss; Gemma's "</s>" is HTML):
 * those come as eos or eot. */
static const char *const end_names[] = {
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>",
};

struct quoted quote_bytes(const char *data, size_t len) {
    struct quoted q = {""};
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (n + 8 > sizeof q.text) { /* room for one escape, three points and the NUL */
            memcpy(q.text + n, "...", 4);
            return q;
        }
        uint8_t c = (uint8_t)data[i];
        if (c >= 0x20 && c < 0x7f) {
            q.text[n++] = (char)c;
            continue;
        }
        static const char hex[] = "0123456789abcdef";
        const char escape[] = {'\\', 'x', hex[c >> 4], hex[c & 15]};
        memcpy(q.text + n, escape, sizeof escape);
        n += sizeof escape;
    }
    q.text[n] = 0;
    return q;
}

/* ---- pieces by their bytes ------------------------------------------------------------------- */

/* The slot of the piece with these bytes, or the free slot where it belongs. */
static int32_t *piece_slot(const struct piece_map *map, const char *data, size_t len) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ (uint8_t)data[i]) * 0x100000001b3u;
    size_t i = (size_t)(hash ^ hash >> 32) & map->mask;
    for (; map->slots[i] >= 0; i = (i + 1) & map->mask) {
        struct text_span piece = map->pieces[map->slots[i]];
        if (piece.len == len && memcmp(piece.data, data, len) == 0)
            break;
    }
    return &map->slots[i];
}

int32_t piece_map_find(const struct piece_map *map, const char *data, size_t len) {
    return len ? *piece_slot(map, data, len) : -1;
}

static kvasir_status piece_map_init(struct piece_map *map, const struct tokenizer_spec *spec,
                                    kvasir_error *err) {
    size_t slots = 2;
    while (slots < 2 * spec->n_tokens)
        slots *= 2;
    *map = (struct piece_map){spec->pieces, mem_alloc(slots * sizeof *map->slots), slots - 1};
    if (!map->slots)
        return fail(err, KVASIR_ERR_MEMORY, "no memory for a vocabulary of %zu tokens",
                    spec->n_tokens);
    for (size_t i = 0; i < slots; i++)
        map->slots[i] = -1;
    for (size_t i = 0; i < spec->n_tokens; i++) {
        struct text_span piece = spec->pieces[i];
        if (piece.len == 0)
            continue;
        int32_t *slot = piece_slot(map, piece.data, piece.len);
        if (*slot >= 0)
            return fail(err, KVASIR_ERR_FORMAT, "tokens %d and %zu are both \"%s\"", *slot, i,
                        quote_bytes(piece.data, piece.len).text);
        *slot = (int32_t)i;
    }
    return KVASIR_OK;
}

/* ---- creation -------------------------------------------------------------------------------- */

static kvasir_status check_spec(const struct tokenizer_spec *spec, kvasir_error *err) {
    if (!spec->model || strcmp(spec->model, "gpt2") != 0) {
        const char *name = spec->model ? spec->model : "";
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "tokenizer model \"%s\" is not supported (known: gpt2)",
                    quote_bytes(name, strlen(name)).text);
    }
    if (spec->n_tokens == 0 || spec->n_tokens > TOKENS_MAX)
        return fail(err, KVASIR_ERR_FORMAT, "a vocabulary of %zu tokens (from 1 to %d are allowed)",
                    spec->n_tokens, TOKENS_MAX);
    if (spec->n_merges > MERGES_MAX)
        return fail(err, KVASIR_ERR_FORMAT, "a vocabulary of %zu merges (up to %d are allowed)",
                    spec->n_merges, MERGES_MAX);
    size_t total = 0;
    for (size_t i = 0; i < spec->n_tokens; i++) {
        if (spec->pieces[i].len > PIECE_BYTES_MAX)
            return fail(err, KVASIR_ERR_FORMAT, "token %zu has %zu bytes (up to %d are allowed)", i,
                        spec->pieces[i].len, PIECE_BYTES_MAX);
        if (spec->kinds && spec->kinds[i] > TOKEN_BYTE)
            return fail(err, KVASIR_ERR_FORMAT, "token %zu is of the unknown kind %d", i,
                        spec->kinds[i]);
        total += spec->pieces[i].len;
    }
    if (total > VOCAB_BYTES_MAX)
        return fail(err, KVASIR_ERR_FORMAT, "the tokens have %zu bytes (up to %d are allowed)",
                    total, VOCAB_BYTES_MAX);
    const struct {
        const char *name;
        int32_t id;
    } ids[] = {{"bos", spec->bos},
               {"eos", spec->eos},
               {"eot", spec->eot},
               {"unk", spec->unk},
               {"pad", spec->pad}};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        if (ids[i].id < -1 || (ids[i].id >= 0 && (size_t)ids[i].id >= spec->n_tokens))
            return fail(err, KVASIR_ERR_FORMAT, "the %s token %d is not one of the %zu tokens",
                        ids[i].name, ids[i].id, spec->n_tokens);
    return KVASIR_OK;
}

/* Only ordinary pieces are written in the alphabet; the others are in plain text, as llama.cpp
 * reads them. */
static size_t piece_bytes(struct text_span piece, enum token_kind kind, uint8_t *out) {
    if (kind == TOKEN_BYTE && piece.len == BYTE_PIECE_LEN && memcmp(piece.data, "<0x", 3) == 0) {
        char digits[3] = {piece.data[3], piece.data[4], 0}, *end;
        out[0] = (uint8_t)strtoul(digits, &end, 16);
        if (end == digits + 2 && digits[0] != '-' && digits[0] != '+' && piece.data[5] == '>')
            return 1;
    }
    if (kind == TOKEN_NORMAL || kind == 0) {
        ptrdiff_t n = alphabet_decode(piece, out);
        if (n >= 0)
            return (size_t)n;
    }
    if (piece.len)
        memcpy(out, piece.data, piece.len);
    return piece.len;
}

static kvasir_status copy_tokens(struct tokenizer *t, const struct tokenizer_spec *spec,
                                 kvasir_error *err) {
    size_t total = 0;
    for (size_t i = 0; i < spec->n_tokens; i++)
        total += spec->pieces[i].len;
    t->n = spec->n_tokens;
    t->blob = mem_alloc(total);
    t->start = mem_calloc(t->n + 1, sizeof *t->start);
    t->kinds = mem_calloc(t->n, sizeof *t->kinds);
    t->ends = mem_calloc(t->n, sizeof *t->ends);
    if (!t->blob || !t->start || !t->kinds || !t->ends)
        return fail(err, KVASIR_ERR_MEMORY, "no memory for a vocabulary of %zu tokens", t->n);
    for (size_t i = 0; i < t->n; i++) {
        t->kinds[i] = spec->kinds ? spec->kinds[i] : (uint8_t)TOKEN_NORMAL;
        size_t n = piece_bytes(spec->pieces[i], (enum token_kind)t->kinds[i],
                               (uint8_t *)t->blob + t->start[i]);
        t->start[i + 1] = t->start[i] + (uint32_t)n;
    }
    return KVASIR_OK;
}

static bool is_special(const struct tokenizer *t, int32_t id) {
    return t->kinds[id] == TOKEN_CONTROL || t->kinds[id] == TOKEN_USER_DEFINED;
}

static int compare_specials(const void *a, const void *b) {
    const struct special *x = a, *y = b;
    int order = memcmp(x->data, y->data, x->len < y->len ? x->len : y->len);
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

/* A name that is not UTF-8 can only stand inside broken text or cut a character in two: it is never
 * looked for, so that what lies between specials stays valid. */
static bool is_written(const struct tokenizer *t, int32_t id) {
    struct text_span name = tokenizer_bytes(t, id);
    return is_special(t, id) && name.len && utf8_check(name.data, name.len) == name.len;
}

static kvasir_status index_specials(struct tokenizer *t, kvasir_error *err) {
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++)
        n += is_written(t, (int32_t)i);
    t->specials = mem_calloc(n, sizeof *t->specials);
    if (!t->specials)
        return fail(err, KVASIR_ERR_MEMORY, "no memory for %zu special tokens", n);
    for (int32_t id = 0; (size_t)id < t->n; id++) {
        struct text_span name = tokenizer_bytes(t, id);
        if (is_written(t, id))
            t->specials[t->n_specials++] = (struct special){name.data, name.len, id};
    }
    qsort(t->specials, t->n_specials, sizeof *t->specials, compare_specials);
    for (size_t i = 0; i < t->n_specials; i++)
        t->first[(uint8_t)t->specials[i].data[0] + 1]++;
    for (int c = 0; c < 256; c++)
        t->first[c + 1] += t->first[c];
    return KVASIR_OK;
}

static void mark_ends(struct tokenizer *t, const struct tokenizer_spec *spec,
                      const struct piece_map *map) {
    if (spec->eos >= 0)
        t->ends[spec->eos] = true;
    if (spec->eot >= 0)
        t->ends[spec->eot] = true;
    for (size_t i = 0; i < sizeof end_names / sizeof end_names[0]; i++) {
        int32_t id = piece_map_find(map, end_names[i], strlen(end_names[i]));
        if (id >= 0 && is_special(t, id))
            t->ends[id] = true;
    }
}

kvasir_status tokenizer_create(const struct tokenizer_spec *spec, struct tokenizer **out,
                               kvasir_error *err) {
    *out = NULL;
    TRY(check_spec(spec, err));
    struct piece_map map = {0};
    kvasir_status status = KVASIR_OK;
    struct tokenizer *t = mem_calloc(1, sizeof *t);
    if (!t)
        return fail(err, KVASIR_ERR_MEMORY, "no memory for the tokenizer");
    t->bos = spec->bos;
    t->eos = spec->eos;
    t->add_bos = spec->add_bos;
    t->add_eos = spec->add_eos;
    TRY_GOTO(pretokenizer_init(&t->pre, spec->pre ? spec->pre : "default", err));
    TRY_GOTO(piece_map_init(&map, spec, err));
    TRY_GOTO(bpe_init(&t->bpe, spec, &map, err));
    TRY_GOTO(copy_tokens(t, spec, err));
    TRY_GOTO(index_specials(t, err));
    mark_ends(t, spec, &map);
    *out = t;
    t = NULL;
done:
    mem_free(map.slots);
    tokenizer_destroy(t);
    return status;
}

void tokenizer_destroy(struct tokenizer *t) {
    if (!t)
        return;
    pretokenizer_deinit(&t->pre);
    bpe_deinit(&t->bpe);
    mem_free(t->blob);
    mem_free(t->start);
    mem_free(t->kinds);
    mem_free(t->ends);
    mem_free(t->specials);
    mem_free(t);
}

/* ---- encoding -------------------------------------------------------------------------------- */

/* The candidates of [low, high) that continue with a byte below `byte` end where this points. */
static size_t lower_bound(const struct tokenizer *t, size_t low, size_t high, size_t depth,
                          int byte) {
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uint8_t)t->specials[middle].data[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest special token that `text` begins with, NULL if there is none. The candidates are a
 * range of the sorted list that agrees with the text so far and narrows byte by byte; one that ends
 * here stands first in it. A single candidate is compared at once. */
static const struct special *special_at(const struct tokenizer *t, const char *text, size_t len) {
    const struct special *found = NULL;
    size_t low = t->first[(uint8_t)text[0]], high = t->first[(uint8_t)text[0] + 1];
    for (size_t depth = 1; low < high; depth++) {
        if (high - low == 1) {
            const struct special *last = &t->specials[low];
            return last->len <= len && memcmp(last->data, text, last->len) == 0 ? last : found;
        }
        if (t->specials[low].len == depth)
            found = &t->specials[low++];
        if (depth == len)
            break;
        int byte = (uint8_t)text[depth];
        low = lower_bound(t, low, high, depth, byte);
        high = lower_bound(t, low, high, depth, byte + 1);
    }
    return found;
}

struct encoding {
    const struct tokenizer *t;
    struct bpe_scratch scratch;
    int32_t *ids; /* [text bytes + 2]: no token is shorter than a byte, but for BOS and EOS */
    size_t n;
};

static bool encode_word(void *ctx, const uint8_t *word, size_t len) {
    struct encoding *e = ctx;
    return bpe_encode(&e->t->bpe, &e->scratch, word, len, e->ids, &e->n);
}

static kvasir_status encode_text(struct encoding *e, pcre2_match_data *match, const char *text,
                                 size_t len, bool parse_special, kvasir_error *err) {
    const struct pretokenizer *pre = &e->t->pre;
    size_t plain = 0; /* text[plain, at) holds no special token */
    for (size_t at = 0; parse_special && at < len;) {
        const struct special *special = special_at(e->t, text + at, len - at);
        if (!special) {
            at++;
            continue;
        }
        TRY(pretokenizer_split(pre, match, text + plain, at - plain, encode_word, e, err));
        e->ids[e->n++] = special->id;
        at += special->len;
        plain = at;
    }
    return pretokenizer_split(pre, match, text + plain, len - plain, encode_word, e, err);
}

kvasir_status tokenizer_encode(const struct tokenizer *t, const char *text, size_t len,
                               unsigned flags, int32_t **ids, size_t *n, kvasir_error *err) {
    *ids = NULL;
    *n = 0;
    if (len > TEXT_BYTES_MAX)
        return fail(err, KVASIR_ERR_TEXT, "a text of %zu bytes (up to %zu can be encoded at once)",
                    len, TEXT_BYTES_MAX);
    size_t valid = utf8_check(text, len);
    if (valid < len)
        return fail_at(err, KVASIR_ERR_TEXT, (int64_t)valid, "the text is not UTF-8: 0x%02x",
                       (unsigned)(uint8_t)text[valid]);
    kvasir_status status = KVASIR_OK;
    struct encoding e = {.t = t};
    pcre2_match_data *match = pcre2_match_data_create(1, NULL); /* the whole match; no groups */
    e.ids = mem_alloc((len + 2) * sizeof *e.ids);
    if (!match || !e.ids) {
        status = fail(err, KVASIR_ERR_MEMORY, "no memory to encode a text of %zu bytes", len);
        goto done;
    }
    bool add_special = flags & TOKENIZE_ADD_SPECIAL;
    if (add_special && t->add_bos && t->bos >= 0)
        e.ids[e.n++] = t->bos;
    TRY_GOTO(encode_text(&e, match, text, len, flags & TOKENIZE_PARSE_SPECIAL, err));
    if (add_special && t->add_eos && t->eos >= 0)
        e.ids[e.n++] = t->eos;
    int32_t *fitted = mem_realloc(e.ids, e.n, sizeof *e.ids);
    *ids = fitted ? fitted : e.ids;
    *n = e.n;
    e.ids = NULL;
done:
    mem_free(e.ids);
    bpe_scratch_deinit(&e.scratch);
    pcre2_match_data_free(match);
    return status;
}

/* ---- questions about tokens ------------------------------------------------------------------ */

static bool in_range(const struct tokenizer *t, int32_t id) {
    return id >= 0 && (size_t)id < t->n;
}

size_t tokenizer_size(const struct tokenizer *t) {
    return t->n;
}

int32_t tokenizer_bos(const struct tokenizer *t) {
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t) {
    return t->eos;
}

bool tokenizer_is_end(const struct tokenizer *t, int32_t id) {
    return in_range(t, id) && t->ends[id];
}

struct text_span tokenizer_bytes(const struct tokenizer *t, int32_t id) {
    if (!in_range(t, id))
        return (struct text_span){"", 0};
    return (struct text_span){t->blob + t->start[id], t->start[id + 1] - t->start[id]};
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t id) {
    return in_range(t, id) && t->kinds[id] == TOKEN_CONTROL;
}

struct text_span tokenizer_piece(const struct tokenizer *t, int32_t id) {
    return tokenizer_bytes(t, id);
}

const char *tokenizer_name(const struct tokenizer *t) {
    (void)t;
    return "gpt2";
}

kvasir_status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                               unsigned flags, struct text_buf *out, kvasir_error *err) {
    struct detok d = {0};
    bool good = true;
    for (size_t i = 0; i < n && good; i++)
        if (!(flags & DETOKENIZE_SKIP_SPECIAL) || !tokenizer_is_control(t, ids[i]))
            good = detok_push(&d, tokenizer_bytes(t, ids[i]), out);
    if (!good || !detok_finish(&d, out))
        return fail(err, KVASIR_ERR_MEMORY, "no memory to decode %zu tokens", n);
    return KVASIR_OK;
}
