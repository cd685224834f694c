/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_to_json.c: a GGUF vocabulary as a tokenizer.json for the Hugging Face library.
 *
 *     "gpt2"    byte-level BPE. The stages of the pre-tokenizer are Split patterns, which cut like
 *               ours: a match is a part, and so is the text between two matches
 *     "llama"   SentencePiece's BPE: U+2581 for spaces, byte fallback. The merges are those that
 *               merges_from_scores finds, best first
 *
 * The vocabulary is first made into a tokenizer, so that only what was checked is written. Control
 * and user-defined tokens become added tokens, which are found in text before anything else.
 */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

struct json_writer {
    struct text_buf *out;
    bool good;
};

static void put_json(struct json_writer *w, const char *text) {
    w->good = w->good && text_puts(w->out, text);
}

static void put_json_string(struct json_writer *w, struct text_span s) {
    json_t *value = json_stringn(s.data, s.len);
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    w->good = w->good && text && text_puts(w->out, text);
    free(text);
    json_decref(value);
}

/* ---- added tokens, vocabulary ---------------------------------------------------------------- */

static void put_added(struct json_writer *w, const struct tokenizer_spec *spec) {
    bool first = true;
    put_json(w, "\"added_tokens\":[");
    for (size_t i = 0; i < spec->n_tokens; i++) {
        uint8_t kind = spec->kinds ? spec->kinds[i] : TOKEN_NORMAL;
        if (kind != TOKEN_CONTROL && kind != TOKEN_USER_DEFINED && kind != TOKEN_UNKNOWN)
            continue;
        w->good =
            w->good && text_printf(w->out, "%s{\"id\":%zu,\"content\":", first ? "" : ",\n", i);
        put_json_string(w, spec->pieces[i]);
        put_json(w, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                    "\"special\":");
        put_json(w, kind == TOKEN_USER_DEFINED ? "false}" : "true}");
        first = false;
    }
    put_json(w, "],\n");
}

static void put_vocab(struct json_writer *w, const struct tokenizer_spec *spec) {
    put_json(w, "\"vocab\":{");
    for (size_t i = 0; i < spec->n_tokens; i++) {
        put_json(w, i ? ",\n" : "");
        put_json_string(w, spec->pieces[i]);
        w->good = w->good && text_printf(w->out, ":%zu", i);
    }
    put_json(w, "},\n");
}

/* BOS before and EOS after the text, as the file says. */
static void put_template(struct json_writer *w, const struct tokenizer_spec *spec) {
    int32_t bos = spec->add_bos ? spec->bos : -1, eos = spec->add_eos ? spec->eos : -1;
    const int32_t ids[] = {bos, eos};
    put_json(w, "{\"type\":\"TemplateProcessing\",\"single\":[");
    for (int i = 0; i < 2; i++) {
        if (ids[i] >= 0) {
            put_json(w, i ? ",{\"SpecialToken\":{\"id\":" : "{\"SpecialToken\":{\"id\":");
            put_json_string(w, spec->pieces[ids[i]]);
            put_json(w, ",\"type_id\":0}}");
        }
        if (i == 0)
            put_json(w, bos >= 0 ? ",{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
                                 : "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}");
    }
    put_json(w, "],\"pair\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},"
                "{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],\"special_tokens\":{");
    for (int i = 0; i < 2; i++) {
        if (ids[i] < 0 || (i == 1 && bos == eos))
            continue;
        put_json(w, i && bos >= 0 ? "," : "");
        put_json_string(w, spec->pieces[ids[i]]);
        put_json(w, ":{\"id\":");
        put_json_string(w, spec->pieces[ids[i]]);
        w->good = w->good && text_printf(w->out, ",\"ids\":[%d],\"tokens\":[", ids[i]);
        put_json_string(w, spec->pieces[ids[i]]);
        put_json(w, "]}");
    }
    put_json(w, "}}");
}

static void put_post_processor(struct json_writer *w, const struct tokenizer_spec *spec) {
    put_json(w, "\"post_processor\":");
    if ((spec->add_bos && spec->bos >= 0) || (spec->add_eos && spec->eos >= 0))
        put_template(w, spec);
    else
        put_json(w, "null");
    put_json(w, ",\n");
}

/* ---- merges ---------------------------------------------------------------------------------- */

/* Best first; equal ranks (in SentencePiece equal scores) in the order of ids. */
static int compare_merges(const void *a, const void *b) {
    const struct merge *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->pair < y->pair ? -1 : x->pair > y->pair;
}

static kvasir_status put_merges(struct json_writer *w, const struct tokenizer *t,
                                kvasir_error *err) {
    const struct merge_map *m = &t->bpe.merges;
    struct merge *list = mem_calloc(m->n, sizeof *list);
    size_t n = 0;
    if (!list)
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for the merges");
    for (size_t i = 0; m->n && i < (size_t)1 << (64 - m->shift); i++)
        if (m->slot[i].pair != UINT64_MAX && m->slot[i].rank != MERGE_NONE)
            list[n++] = m->slot[i];
    ASSERT(n <= m->n);
    qsort(list, n, sizeof *list, compare_merges);
    put_json(w, "\"merges\":[");
    for (size_t i = 0; i < n; i++) {
        put_json(w, i ? ",\n[" : "[");
        put_json_string(w, pieces_at(&t->pieces, (int32_t)(list[i].pair >> 32)));
        put_json(w, ",");
        put_json_string(w, pieces_at(&t->pieces, (int32_t)(uint32_t)list[i].pair));
        put_json(w, "]");
    }
    put_json(w, "]}");
    mem_free(list);
    return KVASIR_OK;
}

/* ---- the two models -------------------------------------------------------------------------- */

static kvasir_status put_byte_level(struct json_writer *w, const struct tokenizer_spec *spec,
                                    kvasir_error *err) {
    const struct known_pre *known;
    TRY(known_pre_find(spec->pre ? spec->pre : "default", &known, err));
    put_json(w, "\"normalizer\":");
    put_json(w, known->nfc ? "{\"type\":\"NFC\"}" : "null");
    put_json(w, ",\n\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (const char *const *pattern = known->patterns; *pattern; pattern++) {
        put_json(w, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
        put_json_string(w, (struct text_span){*pattern, strlen(*pattern)});
        put_json(w, "},\"behavior\":\"Isolated\",\"invert\":false},\n");
    }
    put_json(w, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
                "\"use_regex\":false}]},\n");
    put_json(w,
             "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
             "\"use_regex\":true},\n"
             "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
             "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
             "\"byte_fallback\":false,\"ignore_merges\":");
    put_json(w, known->ignore_merges ? "true,\n" : "false,\n");
    return KVASIR_OK;
}

static void put_sentencepiece(struct json_writer *w, const struct tokenizer_spec *spec) {
    put_json(w, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    if (spec->add_space_prefix)
        put_json(w, "{\"type\":\"Prepend\",\"prepend\":\"" SPACE_MARK "\"},\n");
    put_json(w, "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" SPACE_MARK
                "\"}]},\n\"pre_tokenizer\":null,\n");
    put_json(w,
             "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
             "{\"String\":\"" SPACE_MARK "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},"
             "{\"type\":\"Fuse\"}");
    if (spec->add_space_prefix)
        put_json(w, ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}");
    put_json(w, "]},\n\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    if (spec->unk >= 0)
        put_json_string(w, spec->pieces[spec->unk]);
    else
        put_json(w, "null");
    put_json(w, ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":true,"
                "\"byte_fallback\":true,\"ignore_merges\":false,\n");
}

/* ---- all of it ------------------------------------------------------------------------------- */

static kvasir_status put_all(struct json_writer *w, const struct tokenizer_spec *spec,
                             const struct tokenizer *t, kvasir_error *err) {
    put_json(w, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n");
    put_added(w, spec);
    put_post_processor(w, spec);
    if (t->bpe.bytes)
        TRY(put_byte_level(w, spec, err));
    else
        put_sentencepiece(w, spec);
    put_vocab(w, spec);
    TRY(put_merges(w, t, err));
    put_json(w, "}\n");
    return w->good ? KVASIR_OK
                   : fail(err, KVASIR_ERR_FORMAT,
                          "a token is not valid UTF-8, or there is not enough memory for "
                          "tokenizer.json");
}

kvasir_status tokenizer_write_json(const struct tokenizer_spec *spec, struct text_buf *out,
                                   kvasir_error *err) {
    struct json_writer w = {out, true};
    struct tokenizer *t;
    TRY(tokenizer_create(spec, &t, err));
    kvasir_status status = put_all(&w, spec, t, err);
    tokenizer_destroy(t);
    return status;
}
