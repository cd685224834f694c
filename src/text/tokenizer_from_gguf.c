/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_from_gguf.c: a tokenizer from GGUF's fields: model "gpt2" (byte-level, a list of
 * merges) or "llama" (SentencePiece's BPE: scores). What tokenizer.json spells out follows here
 * from a name:
 *
 *     "gpt2"    a pattern by tokenizer.ggml.pre; NFC and whole words if that name has them
 *     "llama"   a space in front (add_space_prefix), U+2581 for spaces, "<0x0A>" for the bytes of
 *               characters without a piece
 *
 * Control, unknown and user-defined tokens are found in text by their name, before anything else
 * happens to it; the first two only with TOKENIZE_PARSE_SPECIAL.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

static kvasir_status check_fields(const struct tokenizer_spec *spec, kvasir_error *err) {
    if (spec->n_tokens == 0 || spec->n_tokens > TOKENS_MAX)
        return fail(err, KVASIR_ERR_FORMAT, "the vocabulary has %zu tokens (1 to %d are allowed)",
                    spec->n_tokens, TOKENS_MAX);
    if (spec->n_merges > MERGES_MAX)
        return fail(err, KVASIR_ERR_FORMAT,
                    "the vocabulary has %zu merges (at most %d are allowed)", spec->n_merges,
                    MERGES_MAX);
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

static kvasir_status read_pieces(struct tokenizer *t, const struct tokenizer_spec *spec,
                                 kvasir_error *err) {
    for (size_t i = 0; i < spec->n_tokens; i++) {
        uint8_t kind = spec->kinds ? spec->kinds[i] : (uint8_t)TOKEN_NORMAL;
        if (kind > TOKEN_BYTE)
            return fail(err, KVASIR_ERR_FORMAT, "token %zu has the unknown kind %d", i, kind);
        kind = kind ? kind : (uint8_t)TOKEN_NORMAL; /* 0 is "undefined" */
        struct text_span piece = spec->pieces[i];
        TRY(pieces_add(&t->pieces, (int32_t)i, piece, (enum token_kind)kind, err));
        if (is_control_kind(kind) || kind == TOKEN_USER_DEFINED)
            TRY(added_put(&t->added,
                          (struct added_token){
                              .text = piece, .id = (int32_t)i, .special = is_control_kind(kind)},
                          err));
    }
    return piece_map_init(&t->map, &t->pieces, err);
}

/* ---- the two models -------------------------------------------------------------------------- */

static kvasir_status make_byte_level(struct tokenizer *t, const struct tokenizer_spec *spec,
                                     kvasir_error *err) {
    const struct known_pre *pre;
    TRY(known_pre_find(spec->pre ? spec->pre : "default", &pre, err));
    snprintf(t->name, sizeof t->name, "gpt2 (%s)", pre->name);
    if (pre->nfc)
        t->normalizer.step[t->normalizer.n++].kind = NORMALIZE_NFC;
    TRY(pretokenizer_add_patterns(&t->pre, pre->patterns, err));
    t->bpe.bytes = true;
    t->bpe.whole_words = pre->ignore_merges;
    t->decoder.step[t->decoder.n++].kind = DECODE_BYTE_LEVEL;
    for (size_t rank = 0; rank < spec->n_merges; rank++)
        TRY(merge_add_line(&t->bpe.merges, &t->map, spec->merges[rank], rank, true, err));
    return KVASIR_OK;
}

static kvasir_status make_sentencepiece(struct tokenizer *t, const struct tokenizer_spec *spec,
                                        kvasir_error *err) {
    if (!spec->scores)
        return fail(err, KVASIR_ERR_FORMAT, "a vocabulary of model \"llama\" needs scores");
    snprintf(t->name, sizeof t->name, "llama (SentencePiece BPE)");
    struct normalizer_step *step = t->normalizer.step;
    if (spec->add_space_prefix)
        step[t->normalizer.n++] = (struct normalizer_step){
            .kind = NORMALIZE_PREPEND, .to = SPACE_MARK, .to_len = SPACE_MARK_LEN};
    step[t->normalizer.n++] = (struct normalizer_step){.kind = NORMALIZE_REPLACE,
                                                       .from = " ",
                                                       .from_len = 1,
                                                       .to = SPACE_MARK,
                                                       .to_len = SPACE_MARK_LEN};
    t->bpe.byte_fallback = true;
    t->bpe.unk = spec->unk;
    t->bpe.fuse_unk = true;
    struct decoder_step *back = t->decoder.step;
    back[t->decoder.n++] = (struct decoder_step){.kind = DECODE_REPLACE,
                                                 .from = SPACE_MARK,
                                                 .from_len = SPACE_MARK_LEN,
                                                 .to = " ",
                                                 .to_len = 1};
    back[t->decoder.n++] = (struct decoder_step){.kind = DECODE_BYTE_FALLBACK};
    back[t->decoder.n++] = (struct decoder_step){.kind = DECODE_FUSE};
    if (spec->add_space_prefix)
        back[t->decoder.n++] =
            (struct decoder_step){.kind = DECODE_STRIP, .from = " ", .from_len = 1, .start = 1};
    return merges_from_scores(&t->bpe.merges, &t->map, spec->scores, err);
}

kvasir_status tokenizer_from_fields(struct tokenizer *t, const struct tokenizer_spec *spec,
                                    kvasir_error *err) {
    const char *model = spec->model ? spec->model : "";
    bool gpt2 = strcmp(model, "gpt2") == 0;
    if (!gpt2 && strcmp(model, "llama") != 0)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "tokenizer model \"%s\" is not supported (known: gpt2, llama)",
                    quote_bytes(model, strlen(model)).text);
    TRY(check_fields(spec, err));
    TRY(read_pieces(t, spec, err));
    TRY(gpt2 ? make_byte_level(t, spec, err) : make_sentencepiece(t, spec, err));
    t->bos = spec->bos;
    t->eos = spec->eos;
    ASSERT(t->pieces.n == spec->n_tokens);
    if (spec->add_bos && spec->bos >= 0)
        t->before = (struct id_list){{spec->bos}, 1};
    if (spec->add_eos && spec->eos >= 0)
        t->after = (struct id_list){{spec->eos}, 1};
    return KVASIR_OK;
}
