/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.c: makes a tokenizer, and encodes. tokenizer_from_gguf.c and tokenizer_from_json.c fill
 * in most of it.
 *
 *     struct tokenizer
 *       pieces    "<|im_start|>" "!" "\"" ... "Ġthe" ...   tokens as the vocabulary writes them
 *       bytes     "<|im_start|>" "!" "\"" ... " the" ...   tokens inside a text
 *       start     0              12  13   ...              [n + 1] where token i begins in bytes
 *       added, normalizer, added_normalized, pre, bpe      the steps of an encoding, in this order
 *       before, after                                      what TOKENIZE_ADD_SPECIAL adds
 *       decoder                                            the steps of a decoding
 *
 * Invariants:
 *   1. Nothing of the spec is borrowed after tokenizer_create, and a tokenizer never changes: any
 *      number of threads may encode and decode at once.
 *   2. Every id that an encoding returns is a token: pieces_has.
 *   3. Without TOKENIZE_PARSE_SPECIAL, text that spells the name of a control token does not become
 *      it, unless the merges of the file make it from ordinary text.
 *
 * A spec comes from a file, so all of it is checked. An error names the entry; the caller adds the
 * file. Accepted, because real files have them: ids without a token, two equal tokens, empty
 * pieces, bytes without a piece, pieces outside the alphabet (they stand for their own bytes),
 * merges listed twice.
 */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

/* Symbols of a word are counted in 31 bits. */
#define TEXT_BYTES_MAX ((size_t)INT32_MAX)

/* ---- creation -------------------------------------------------------------------------------- */

/* Tokens that end an answer: EOS, those that the spec names, and the usual end-of-turn tokens. */
static void mark_ends(struct tokenizer *t, const struct tokenizer_spec *spec) {
    static const char *const names[] = {
        "<|im_end|>",      "<|endoftext|>", "<|eot_id|>", "<|eom_id|>",
        "<|end_of_text|>", "<end_of_turn>", "<|call|>",
    };
    for (size_t id = 0; id < t->pieces.n; id++)
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
            if ((t->pieces.kind[id] == TOKEN_CONTROL || t->pieces.kind[id] == TOKEN_USER_DEFINED) &&
                span_equal(pieces_at(&t->pieces, (int32_t)id), span_of(names[k])))
                t->ends[id] = true;
    ASSERT(t->eos < 0 || pieces_has(&t->pieces, t->eos));
    if (t->eos >= 0)
        t->ends[t->eos] = true;
    if (!spec->json.data && spec->eot >= 0)
        t->ends[spec->eot] = true;
    for (size_t i = 0; i < spec->n_ends; i++)
        if (pieces_has(&t->pieces, spec->ends[i]))
            t->ends[spec->ends[i]] = true;
}

static kvasir_status derive_bytes(struct tokenizer *t, kvasir_error *err) {
    size_t n = t->pieces.n;
    struct text_buf all = {0};
    size_t limit = growth_limit(t->pieces.text.len), most = 2 * (size_t)VOCAB_BYTES_MAX;
    limit = min_size(limit, most); /* t->start has 32 bits */
    t->start = mem_calloc(n + 1, sizeof *t->start);
    t->ends = mem_calloc(n, sizeof *t->ends);
    kvasir_status status = KVASIR_OK;
    if (!t->start || !t->ends || !text_append(&all, "", 0))
        status =
            fail(err, KVASIR_ERR_MEMORY, "not enough memory for a vocabulary of %zu tokens", n);
    for (size_t id = 0; id < n && status == KVASIR_OK; id++) {
        status = decoder_token_bytes(t, (int32_t)id, &all, err);
        if (status == KVASIR_OK && all.len > limit)
            status = fail(err, KVASIR_ERR_FORMAT,
                          "the decoder makes all tokens up to %zu too long: more than %zu bytes",
                          id, limit);
        ASSERT(status != KVASIR_OK || all.len <= UINT32_MAX);
        t->start[id + 1] = (uint32_t)all.len;
    }
    t->bytes = all.data;
    return status;
}

kvasir_status tokenizer_create(const struct tokenizer_spec *spec, struct tokenizer **out,
                               kvasir_error *err) {
    *out = NULL;
    kvasir_status status = KVASIR_OK;
    struct tokenizer *t = mem_calloc(1, sizeof *t);
    if (!t)
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for the tokenizer");
    t->bos = t->eos = t->bpe.unk = -1;
    if (spec->json.data)
        TRY_GOTO(tokenizer_from_json(t, spec->json, spec->config, err));
    else
        TRY_GOTO(tokenizer_from_fields(t, spec, err));
    bpe_finish(&t->bpe, &t->map);
    added_sort(&t->added);
    added_sort(&t->added_normalized);
    TRY_GOTO(derive_bytes(t, err));
    mark_ends(t, spec);
    *out = t;
    t = NULL;
done:
    tokenizer_destroy(t);
    return status;
}

void tokenizer_destroy(struct tokenizer *t) {
    if (!t)
        return;
    pieces_deinit(&t->pieces);
    piece_map_deinit(&t->map);
    added_deinit(&t->added);
    added_deinit(&t->added_normalized);
    pretokenizer_deinit(&t->pre);
    bpe_deinit(&t->bpe);
    mem_free(t->start);
    mem_free(t->bytes);
    mem_free(t->ends);
    mem_free(t);
}

/* ---- encoding -------------------------------------------------------------------------------- */

struct encoding {
    const struct tokenizer *t;
    const kvasir_authors *by; /* of the whole text; or NULL */
    size_t max_tokens;        /* SIZE_MAX: any number */
    bool parse_special, at_start, too_long;
    struct normalizer_scratch normal;
    struct pre_scratch pre;
    struct bpe_scratch bpe;
    int32_t *ids; /* [cap], n of them used */
    size_t n, cap;
};

/* Whether this text would make the tokens too many. */
static bool too_long(struct encoding *e, const char *text, size_t len) {
    ASSERT(e->n <= e->max_tokens || e->too_long);
    e->too_long |= bpe_exceeds(&e->t->bpe, text, len, e->max_tokens - e->n);
    return e->too_long;
}

/* False: out of memory, or an early end. */
static bool encode_word(void *ctx, const char *word, size_t len) {
    struct encoding *e = ctx;
    for (size_t at = 0; at < len;) {
        size_t end = bpe_cut(&e->t->bpe, word, len, at);
        ASSERT(end > at && end <= len);
        if (guard_stops(&e->bpe.guard, end - at) || too_long(e, word + at, end - at))
            return false;
        if (!ARRAY_GROW(e->ids, e->cap, e->n + end - at) ||
            !bpe_encode(&e->t->bpe, &e->bpe, word + at, end - at, e->ids, &e->n))
            return false;
        e->too_long = e->n > e->max_tokens;
        if (e->too_long)
            return false;
        at = end;
    }
    return true;
}

static kvasir_status fail_early(const struct encoding *e, kvasir_error *err) {
    if (e->bpe.guard.stopped)
        return fail(err, KVASIR_ERR_CANCELLED, "cancelled while the text was tokenized");
    return fail(err, KVASIR_ERR_CONTEXT, "the text has more than %zu tokens, the most allowed",
                e->max_tokens);
}

static kvasir_status take_id(void *ctx, int32_t id, kvasir_error *err) {
    struct encoding *e = ctx;
    if (!ARRAY_GROW(e->ids, e->cap, e->n + 1))
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for %zu tokens", e->n + 1);
    DEBUG_ASSERT(pieces_has(&e->t->pieces, id));
    e->ids[e->n++] = id;
    e->too_long = e->n > e->max_tokens;
    if (e->too_long || guard_stops(&e->bpe.guard, 1))
        return fail_early(e, err);
    return KVASIR_OK;
}

static kvasir_status encode_normalized(void *ctx, struct text_span text, size_t offset,
                                       kvasir_error *err) {
    struct encoding *e = ctx;
    if (!pretokenizer_shortens(&e->t->pre) && too_long(e, text.data, text.len))
        return fail_early(e, err);
    const kvasir_status status = pretokenizer_split(
        &e->t->pre, &e->pre, text, e->at_start && offset == 0, encode_word, e, err);
    return e->too_long || e->bpe.guard.stopped ? fail_early(e, err) : status;
}

static kvasir_status encode_plain(void *ctx, struct text_span text, size_t offset,
                                  kvasir_error *err) {
    struct encoding *e = ctx;
    e->at_start = offset == 0;
    const struct text_span plain = text;
    bool special = e->parse_special;
    TRY(normalizer_run(&e->t->normalizer, &e->normal, text, &text, err));
    if (text.len > TEXT_BYTES_MAX)
        return fail(err, KVASIR_ERR_TEXT, "the normalized text has %zu bytes (at most %zu)",
                    text.len, TEXT_BYTES_MAX);
    struct added_sink sink = {encode_normalized, take_id, e};
    kvasir_authors by = {0};
    if (e->by) {
        by = *e->by;
        by.each += offset;
        if (text.data == plain.data && text.len == plain.len)
            return added_split(&e->t->added_normalized, text, special, &by, &sink, err);
        /* It is not known who wrote what of a changed text, except if the template wrote all. */
        for (size_t i = 0; i < plain.len && special; i++)
            special = by.each[i] == KVASIR_BY_TEMPLATE;
    }
    return added_split(&e->t->added_normalized, text, special, NULL, &sink, err);
}

static kvasir_status add_ids(struct encoding *e, const struct id_list *list, kvasir_error *err) {
    for (size_t i = 0; i < list->n; i++)
        TRY(take_id(e, list->id[i], err));
    return KVASIR_OK;
}

static kvasir_status encode_all(struct encoding *e, struct text_span text, unsigned flags,
                                kvasir_error *err) {
    TRY(pre_scratch_init(&e->pre, text.len, err));
    if (!ARRAY_GROW(e->ids, e->cap, e->n + min_size(text.len / 4, e->max_tokens) + 16))
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory to encode a text of %zu bytes",
                    text.len);
    if (flags & TOKENIZE_ADD_SPECIAL)
        TRY(add_ids(e, &e->t->before, err));
    struct added_sink sink = {encode_plain, take_id, e};
    TRY(added_split(&e->t->added, text, e->parse_special, e->by, &sink, err));
    if (flags & TOKENIZE_ADD_SPECIAL)
        TRY(add_ids(e, &e->t->after, err));
    return KVASIR_OK;
}

kvasir_status tokenizer_encode(const struct tokenizer *t, const char *text, size_t len,
                               unsigned flags, int32_t **ids, size_t *n, kvasir_error *err) {
    return tokenizer_encode_by(t, text, len, flags, NULL, NULL, ids, n, err);
}

kvasir_status tokenizer_encode_by(const struct tokenizer *t, const char *text, size_t len,
                                  unsigned flags, const kvasir_authors *by,
                                  const kvasir_text_limits *limits, int32_t **ids, size_t *n,
                                  kvasir_error *err) {
    static const kvasir_text_limits NONE = {0};
    const kvasir_text_limits *l = limits ? limits : &NONE;
    *ids = NULL;
    *n = 0;
    if (len > TEXT_BYTES_MAX)
        return fail(err, KVASIR_ERR_TEXT,
                    "the text has %zu bytes (at most %zu can be encoded at once)", len,
                    TEXT_BYTES_MAX);
    size_t valid = utf8_check(text, len);
    if (valid < len)
        return fail_at(err, KVASIR_ERR_TEXT, (int64_t)valid, "the text is not UTF-8: 0x%02x",
                       (unsigned)(uint8_t)text[valid]);
    struct encoding e = {.t = t,
                         .by = by,
                         .max_tokens = l->max_tokens ? l->max_tokens : SIZE_MAX,
                         .parse_special = flags & TOKENIZE_PARSE_SPECIAL,
                         .bpe.guard = {.stop = l->stop, .user = l->user}};
    e.bpe.control = e.parse_special && !by; /* the names that authors wrote are found before */
    kvasir_status status = encode_all(&e, (struct text_span){text, len}, flags, err);
    if (status == KVASIR_OK) {
        int32_t *fitted = mem_realloc(e.ids, e.n, sizeof *e.ids);
        *ids = fitted ? fitted : e.ids;
        *n = e.n;
        e.ids = NULL;
    }
    mem_free(e.ids);
    normalizer_scratch_deinit(&e.normal);
    pre_scratch_deinit(&e.pre);
    bpe_scratch_deinit(&e.bpe);
    return status;
}
