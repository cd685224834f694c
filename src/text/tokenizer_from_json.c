/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_from_json.c: a tokenizer from a folder's tokenizer.json, and the names of BOS and EOS
 * from tokenizer_config.json.
 *
 *     {"version": "1.0", "truncation": .., "padding": ..,
 *      "added_tokens": [{"id": 2, "content": "<bos>", ...}, ...],                 streamed
 *      "normalizer": .., "pre_tokenizer": .., "post_processor": .., "decoder": .., small: jansson
 *      "model": {"type": "BPE", ..,                                               small
 *                "vocab": {"<pad>": 0, ...}, "merges": [["a", "b"], ...]}}         streamed
 *
 * The file may have tens of megabytes, nearly all in vocab and merges. These go directly from the
 * text into the tables of the tokenizer. Keys come in any order, so one walk over the file finds
 * its parts. It also reads vocab, and merges if they come after vocab. The other parts are read in
 * the order in which they need each other:
 *
 *     vocab -> merges -> added_tokens (with the normalizer) -> post_processor -> config
 *
 * truncation and padding are ignored: callers set them for every call, also in transformers.
 * Any other unknown key is an error, as is a value that this tokenizer does not support.
 */
#include <stdio.h>
#include <string.h>

#include "text/json_scan.h"
#include "text/tokenizer_internal.h"
#include "util/json.h"

/* Tables are as long as the largest id. An id is refused if it is above IDS_FREE plus a quarter of
 * the file's bytes, so that a small file cannot make large tables. (A token takes at least 20
 * bytes.) */
enum { IDS_FREE = 1 << 16, SMALL_PART_MAX = 1 << 20 };

enum {
    FILE_VERSION,
    FILE_TRUNCATION,
    FILE_PADDING,
    FILE_ADDED,
    FILE_NORMALIZER,
    FILE_PRE,
    FILE_POST,
    FILE_DECODER,
    FILE_MODEL,
    FILE_KEYS
};
static const char *const file_keys[FILE_KEYS] = {"version",        "truncation", "padding",
                                                 "added_tokens",   "normalizer", "pre_tokenizer",
                                                 "post_processor", "decoder",    "model"};

enum {
    MODEL_TYPE,
    MODEL_DROPOUT,
    MODEL_UNK,
    MODEL_PREFIX,
    MODEL_SUFFIX,
    MODEL_FUSE_UNK,
    MODEL_BYTE_FALLBACK,
    MODEL_IGNORE_MERGES,
    MODEL_VOCAB,
    MODEL_MERGES,
    MODEL_KEYS
};
static const char *const model_keys[MODEL_KEYS] = {
    "type",
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
    "vocab",
    "merges",
};

struct json_reading {
    struct tokenizer *t;
    struct text_span json;
    struct text_span file[FILE_KEYS], model[MODEL_KEYS]; /* raw values; data NULL: absent */
    struct text_buf kept; /* a string that must outlive the next string */
    bool has_merges;
    kvasir_error *err;
};

/* ---- helpers --------------------------------------------------------------------------------- */

/* Reads or skips the value of the key number `key` and sets *value to its text. */
typedef kvasir_status take_fn(struct json_reading *r, struct json_scan *s, int key,
                              struct text_span *value);

/* Walks an object with known keys. */
static kvasir_status walk_object(struct json_reading *r, struct json_scan *s,
                                 const char *const *names, int n, struct text_span *values,
                                 take_fn *take) {
    struct text_span key;
    kvasir_status status = scan_open(s, '{');
    while (scan_each_key(s, &key, &status)) {
        int k = 0;
        while (k < n && !span_equal(key, span_of(names[k])))
            k++;
        if (k == n || values[k].data)
            return fail_at(s->err, KVASIR_ERR_UNSUPPORTED, (int64_t)s->at, "%s: the key \"%s\" %s",
                           s->name, quote_bytes(key.data, key.len).text,
                           k == n ? "is not supported" : "occurs twice");
        status = take(r, s, k, &values[k]);
    }
    return status;
}

/* A scan of one value of the file, with the file's offsets. */
static void scan_part(struct json_reading *r, struct json_scan *s, struct text_span value) {
    size_t start = (size_t)(value.data - r->json.data);
    ASSERT(value.data >= r->json.data && start + value.len <= r->json.len);
    scan_init(s, "tokenizer.json", (struct text_span){r->json.data, start + value.len}, r->err);
    s->at = start;
}

/* Adds the path to an error that another file found. */
static kvasir_status blame_path(const char *path, kvasir_status status, kvasir_error *err) {
    if (status != KVASIR_OK) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "tokenizer.json: %s", path);
        fail_prefix(err, prefix);
    }
    return status;
}

static kvasir_status blame_scan(const struct json_scan *s, const char *path, kvasir_status status) {
    if (status != KVASIR_OK && s->err)
        s->err->offset = (int64_t)s->at;
    return blame_path(path, status, s->err);
}

static kvasir_status keep_string(struct json_reading *r, struct text_span *text) {
    r->kept.len = 0;
    if (!text_append(&r->kept, text->data, text->len))
        return fail(r->err, KVASIR_ERR_MEMORY, "not enough memory for tokenizer.json");
    *text = (struct text_span){r->kept.data, r->kept.len};
    return KVASIR_OK;
}

static kvasir_status check_id(const struct json_reading *r, const struct json_scan *s, int32_t id) {
    if ((size_t)id < IDS_FREE + r->json.len / 4)
        return KVASIR_OK;
    return fail_at(r->err, KVASIR_ERR_FORMAT, (int64_t)s->at,
                   "tokenizer.json: the id %d is too large for a file of %zu bytes", id,
                   r->json.len);
}

/* A small value as a tree; NULL if it is absent. */
static kvasir_status small_value(struct json_reading *r, const char *path, struct text_span raw,
                                 json_t **out) {
    *out = NULL;
    if (!raw.data)
        return KVASIR_OK;
    int64_t offset = raw.data - r->json.data;
    if (raw.len > SMALL_PART_MAX)
        return fail_at(r->err, KVASIR_ERR_UNSUPPORTED, offset,
                       "tokenizer.json: %s has %zu bytes (at most %d are supported)", path, raw.len,
                       SMALL_PART_MAX);
    const size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL;
    return blame_path(path, json_load_bounded(raw.data, raw.len, offset, flags, out, r->err),
                      r->err);
}

/* ---- vocab and merges ------------------------------------------------------------------------ */

static kvasir_status read_vocab(struct json_reading *r, struct json_scan *s) {
    struct pieces *p = &r->t->pieces;
    struct text_span piece;
    kvasir_status status = scan_open(s, '{');
    while (scan_each_key(s, &piece, &status)) {
        int32_t id;
        /* The key outlives the id, which is not a string. */
        TRY(scan_id(s, &id));
        TRY(check_id(r, s, id));
        status = blame_scan(s, "model.vocab", pieces_add(p, id, piece, TOKEN_NORMAL, r->err));
    }
    TRY(status);
    if (p->n == 0)
        return scan_fail(s, KVASIR_ERR_FORMAT, "model.vocab is empty");
    return piece_map_init(&r->t->map, p, r->err);
}

/* "a b" or ["a", "b"]. */
static kvasir_status read_merge(struct json_reading *r, struct json_scan *s, size_t rank) {
    struct merge_map *m = &r->t->bpe.merges;
    struct text_span left, right;
    if (scan_peek(s) == '"') {
        TRY(scan_string(s, &left));
        return blame_scan(s, "model.merges",
                          merge_add_line(m, &r->t->map, left, rank, false, r->err));
    }
    bool more;
    TRY(scan_open(s, '['));
    TRY(scan_next_item(s, &more));
    TRY(scan_string(s, &left));
    TRY(keep_string(r, &left));
    TRY(scan_next_item(s, &more));
    TRY(scan_string(s, &right));
    TRY(scan_next_item(s, &more));
    if (more)
        return scan_fail(s, KVASIR_ERR_FORMAT, "a merge of more than two pieces");
    return blame_scan(s, "model.merges",
                      merge_add_named(m, &r->t->map, left, right, rank, false, r->err));
}

static kvasir_status read_merges(struct json_reading *r, struct json_scan *s) {
    kvasir_status status = scan_open(s, '[');
    for (size_t rank = 0; scan_each_item(s, &status); rank++)
        status = read_merge(r, s, rank);
    return status;
}

/* ---- the model's settings -------------------------------------------------------------------- */

static kvasir_status model_setting(struct json_reading *r, int key, json_t **out) {
    char path[48];
    snprintf(path, sizeof path, "model.%s", model_keys[key]);
    return small_value(r, path, r->model[key], out);
}

static kvasir_status refuse_setting(struct json_reading *r, int key, const char *what) {
    return fail_at(r->err, KVASIR_ERR_UNSUPPORTED, r->model[key].data - r->json.data,
                   "tokenizer.json: model.%s %s", model_keys[key], what);
}

static kvasir_status read_model_flag(struct json_reading *r, int key, bool *out) {
    json_t *value;
    TRY(model_setting(r, key, &value));
    bool good = !value || json_is_boolean(value) || json_is_null(value);
    *out = json_is_true(value);
    json_decref(value);
    return good ? KVASIR_OK : refuse_setting(r, key, "is not true or false");
}

/* A setting of which only the empty value is supported: null, "" or 0. */
static kvasir_status read_empty(struct json_reading *r, int key) {
    json_t *value;
    TRY(model_setting(r, key, &value));
    bool good = !value || json_is_null(value) ||
                (json_is_string(value) && json_string_length(value) == 0) ||
                (json_is_number(value) && json_number_value(value) == 0);
    json_decref(value);
    return good ? KVASIR_OK : refuse_setting(r, key, "is not supported");
}

static kvasir_status read_type(struct json_reading *r) {
    json_t *value;
    TRY(model_setting(r, MODEL_TYPE, &value));
    const char *type = value ? json_string_value(value) : "BPE"; /* older files have none */
    kvasir_status status = KVASIR_OK;
    if (!type || strcmp(type, "BPE") != 0)
        status = fail(r->err, KVASIR_ERR_UNSUPPORTED,
                      "tokenizer.json: model.type \"%s\" is not supported (known: BPE)",
                      type ? quote_bytes(type, strlen(type)).text : "");
    json_decref(value);
    return status;
}

static kvasir_status read_unk(struct json_reading *r) {
    json_t *value;
    TRY(model_setting(r, MODEL_UNK, &value));
    kvasir_status status = KVASIR_OK;
    struct bpe *b = &r->t->bpe;
    if (json_is_string(value)) {
        b->unk = piece_map_find(&r->t->map, json_string_value(value), json_string_length(value));
        if (b->unk < 0)
            status = refuse_setting(r, MODEL_UNK, "is not in the vocabulary");
    } else if (value && !json_is_null(value)) {
        status = refuse_setting(r, MODEL_UNK, "is not a string");
    }
    json_decref(value);
    return status;
}

/* Reads vocab, and merges if vocab came first; skips the others. */
static kvasir_status take_model(struct json_reading *r, struct json_scan *s, int key,
                                struct text_span *value) {
    bool read = key == MODEL_VOCAB || (key == MODEL_MERGES && r->t->map.slot);
    if (!read)
        return scan_skip(s, value);
    value->data = s->text.data + s->at;
    TRY(key == MODEL_VOCAB ? read_vocab(r, s) : read_merges(r, s));
    value->len = (size_t)(s->text.data + s->at - value->data);
    r->has_merges |= key == MODEL_MERGES;
    return KVASIR_OK;
}

static kvasir_status late_merges(struct json_reading *r) {
    struct json_scan s;
    scan_part(r, &s, r->model[MODEL_MERGES]);
    kvasir_status status = read_merges(r, &s);
    scan_deinit(&s);
    return status;
}

/* The rest of the model, after the walk. */
static kvasir_status read_settings(struct json_reading *r) {
    TRY(read_type(r));
    if (!r->model[MODEL_VOCAB].data || !r->model[MODEL_MERGES].data)
        return fail(r->err, KVASIR_ERR_FORMAT, "tokenizer.json: model has no %s",
                    r->model[MODEL_VOCAB].data ? "merges" : "vocab");
    TRY(read_empty(r, MODEL_DROPOUT));
    TRY(read_empty(r, MODEL_PREFIX));
    TRY(read_empty(r, MODEL_SUFFIX));
    TRY(read_model_flag(r, MODEL_FUSE_UNK, &r->t->bpe.fuse_unk));
    TRY(read_model_flag(r, MODEL_BYTE_FALLBACK, &r->t->bpe.byte_fallback));
    TRY(read_model_flag(r, MODEL_IGNORE_MERGES, &r->t->bpe.whole_words));
    TRY(read_unk(r));
    return r->has_merges ? KVASIR_OK : late_merges(r);
}

/* ---- added tokens ---------------------------------------------------------------------------- */

struct added_reading {
    struct added_token token; /* its text is in json_reading.kept */
    bool has_content, normalized, has_normalized;
};

static kvasir_status read_added_field(struct json_reading *r, struct json_scan *s,
                                      struct text_span key, struct added_reading *a) {
    const struct {
        const char *name;
        bool *value;
    } flags[] = {
        {"special", &a->token.special}, {"single_word", &a->token.single_word},
        {"lstrip", &a->token.lstrip},   {"rstrip", &a->token.rstrip},
        {"normalized", &a->normalized},
    };
    for (size_t k = 0; k < sizeof flags / sizeof flags[0]; k++)
        if (span_equal(key, span_of(flags[k].name))) {
            a->has_normalized |= flags[k].value == &a->normalized;
            return scan_bool(s, flags[k].value);
        }
    if (span_equal(key, span_of("id")))
        return scan_id(s, &a->token.id);
    if (!span_equal(key, span_of("content")))
        return fail_at(r->err, KVASIR_ERR_UNSUPPORTED, (int64_t)s->at,
                       "tokenizer.json: added_tokens: the key \"%s\" is not supported",
                       quote_bytes(key.data, key.len).text);
    a->has_content = true;
    TRY(scan_string(s, &a->token.text));
    return keep_string(r, &a->token.text);
}

/* Adds the token to the pieces. A content that is a piece must have that piece's id. */
static kvasir_status place_added(struct json_reading *r, const struct json_scan *s,
                                 const struct added_token *token) {
    struct pieces *p = &r->t->pieces;
    int32_t id = piece_map_find(&r->t->map, token->text.data, token->text.len);
    bool free_id = !pieces_has(p, token->id);
    if (id >= 0 ? id != token->id : !free_id && !span_equal(pieces_at(p, token->id), token->text))
        return fail_at(r->err, KVASIR_ERR_FORMAT, (int64_t)s->at,
                       "tokenizer.json: the added token \"%s\" has the id %d, which is \"%s\"",
                       quote_bytes(token->text.data, token->text.len).text, token->id,
                       quote_bytes(pieces_at(p, token->id).data, pieces_at(p, token->id).len).text);
    enum token_kind kind = token->special ? TOKEN_CONTROL : TOKEN_USER_DEFINED;
    if (!free_id) {
        p->kind[token->id] = (uint8_t)kind;
        return KVASIR_OK;
    }
    TRY(check_id(r, s, token->id));
    return blame_scan(s, "added_tokens", pieces_add(p, token->id, token->text, kind, r->err));
}

static kvasir_status read_added_token(struct json_reading *r, struct json_scan *s,
                                      struct normalizer_scratch *scratch) {
    struct added_reading a = {.token.id = -1};
    struct text_span key;
    kvasir_status status = scan_open(s, '{');
    while (scan_each_key(s, &key, &status))
        status = read_added_field(r, s, key, &a);
    TRY(status);
    if (a.token.id < 0 || !a.has_content)
        return scan_fail(s, KVASIR_ERR_FORMAT, "an added token without id or content");
    if (a.token.text.len == 0) /* as Hugging Face does */
        return KVASIR_OK;
    TRY(place_added(r, s, &a.token));
    if (a.has_normalized ? !a.normalized : a.token.special)
        return added_put(&r->t->added, a.token, r->err);
    TRY(normalizer_run(&r->t->normalizer, scratch, a.token.text, &a.token.text, r->err));
    return added_put(&r->t->added_normalized, a.token, r->err);
}

static kvasir_status read_added(struct json_reading *r) {
    struct json_scan s;
    struct normalizer_scratch scratch = {0};
    if (!r->file[FILE_ADDED].data)
        return KVASIR_OK;
    scan_part(r, &s, r->file[FILE_ADDED]);
    kvasir_status status = scan_open(&s, '[');
    while (scan_each_item(&s, &status))
        status = read_added_token(r, &s, &scratch);
    normalizer_scratch_deinit(&scratch);
    scan_deinit(&s);
    return status;
}

/* ---- small parts ----------------------------------------------------------------------------- */

static kvasir_status read_small(struct json_reading *r, int key) {
    json_t *value;
    struct tokenizer *t = r->t;
    TRY(small_value(r, file_keys[key], r->file[key], &value));
    kvasir_status status = KVASIR_OK;
    switch (key) {
    case FILE_NORMALIZER:
        status = pipeline_normalizer(value, &t->normalizer, r->err);
        break;
    case FILE_PRE:
        status = pipeline_pre_tokenizer(value, &t->pre, &t->bpe.bytes, r->err);
        break;
    case FILE_POST:
        status = pipeline_post_processor(value, t, r->err);
        break;
    case FILE_DECODER:
        status = pipeline_decoder(value, &t->decoder, r->err);
        break;
    case FILE_VERSION:
        if (value && (!json_is_string(value) || strcmp(json_string_value(value), "1.0") != 0))
            status = fail(r->err, KVASIR_ERR_UNSUPPORTED, "tokenizer.json: version is not \"1.0\"");
        break;
    default:
        break;
    }
    json_decref(value);
    return status;
}

/* Bytes of GPT-2's alphabet that the vocabulary lacks would become the bytes of other pieces. */
static kvasir_status check_fallback(struct json_reading *r) {
    const struct bpe *b = &r->t->bpe;
    if (!b->bytes || !b->byte_fallback)
        return KVASIR_OK;
    for (int byte = 0; byte < 256; byte++) {
        char c[4];
        size_t len = utf8_put(c, alphabet_char((uint8_t)byte));
        if (piece_map_find(&r->t->map, c, len) < 0)
            return refuse_setting(r, MODEL_BYTE_FALLBACK,
                                  "is not supported in a byte-level vocabulary without all bytes");
    }
    return KVASIR_OK;
}

/* ---- tokenizer_config.json ------------------------------------------------------------------- */

/* The id of a token that the config names: "text", {"content": "text", ...} or null. -1 if there is
 * none of that name. */
static kvasir_status named_token(const struct tokenizer *t, struct json_scan *s, int32_t *id) {
    struct text_span name = {NULL, 0}, key, ignored;
    *id = -1;
    if (scan_peek(s) != '"' && scan_peek(s) != '{')
        return scan_skip(s, &ignored);
    if (scan_peek(s) == '"') {
        TRY(scan_string(s, &name));
    } else {
        kvasir_status status = scan_open(s, '{');
        while (!name.data && scan_each_key(s, &key, &status)) {
            bool content = span_equal(key, span_of("content")) && scan_peek(s) == '"';
            status = content ? scan_string(s, &name) : scan_skip(s, &ignored);
        }
        TRY(status);
        if (!name.data)
            return KVASIR_OK;
    }
    for (int32_t k = 0; (size_t)k < t->pieces.n && *id < 0; k++)
        if (pieces_has(&t->pieces, k) && span_equal(pieces_at(&t->pieces, k), name))
            *id = k;
    return KVASIR_OK;
}

static kvasir_status read_tokenizer_config(struct tokenizer *t, struct text_span config,
                                           kvasir_error *err) {
    static const char *const names[] = {"bos_token", "eos_token"};
    int32_t *const ids[] = {&t->bos, &t->eos};
    struct json_scan s;
    struct text_span key, raw;
    scan_init(&s, "tokenizer_config.json", config, err);
    kvasir_status status = scan_open(&s, '{');
    while (scan_each_key(&s, &key, &status)) {
        size_t k = span_equal(key, span_of(names[0])) ? 0 : 1;
        bool named = span_equal(key, span_of(names[k]));
        size_t start = s.at;
        TRY_GOTO(scan_skip(&s, &raw));
        size_t end = s.at;
        if (named) {
            s.at = start;
            TRY_GOTO(named_token(t, &s, ids[k]));
            s.at = end;
        }
    }
    TRY_GOTO(status);
    status = scan_finish(&s);
done:
    scan_deinit(&s);
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static kvasir_status take_file(struct json_reading *r, struct json_scan *s, int key,
                               struct text_span *value) {
    if (key != FILE_MODEL)
        return scan_skip(s, value);
    value->data = s->text.data + s->at;
    return walk_object(r, s, model_keys, MODEL_KEYS, r->model, take_model);
}

static kvasir_status read_tokenizer_file(struct json_reading *r) {
    struct json_scan s;
    kvasir_status status = KVASIR_OK;
    scan_init(&s, "tokenizer.json", r->json, r->err);
    TRY_GOTO(walk_object(r, &s, file_keys, FILE_KEYS, r->file, take_file));
    TRY_GOTO(scan_finish(&s));
    if (!r->file[FILE_MODEL].data) {
        status = scan_fail(&s, KVASIR_ERR_FORMAT, "no model");
        goto done;
    }
    TRY_GOTO(read_small(r, FILE_VERSION));
    TRY_GOTO(read_settings(r));
    TRY_GOTO(read_small(r, FILE_NORMALIZER));
    TRY_GOTO(read_small(r, FILE_PRE));
    TRY_GOTO(read_small(r, FILE_DECODER));
    TRY_GOTO(check_fallback(r));
    TRY_GOTO(read_added(r));
    TRY_GOTO(read_small(r, FILE_POST));
done:
    scan_deinit(&s);
    return status;
}

kvasir_status tokenizer_from_json(struct tokenizer *t, struct text_span json,
                                  struct text_span config, kvasir_error *err) {
    struct json_reading r = {.t = t, .json = json, .err = err};
    snprintf(t->name, sizeof t->name, "tokenizer.json BPE");
    kvasir_status status = read_tokenizer_file(&r);
    text_free(&r.kept);
    if (status != KVASIR_OK)
        return status;
    /* Without a config, the template says what begins and ends a text. */
    t->bos = t->before.n ? t->before.id[0] : -1;
    t->eos = t->after.n ? t->after.id[t->after.n - 1] : -1;
    return config.data ? read_tokenizer_config(t, config, err) : KVASIR_OK;
}
