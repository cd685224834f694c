/* SPDX-License-Identifier: Apache-2.0 */
/* prompt_cache_save.c: kvasir_seq_save writes a sequence as a prompt-cache file that mlx-lm loads
 * (prompt_cache.c has the drawing). Rows are read from pages while the file is written: there is no
 * second copy of the cache.
 *
 *     all tokens        KVCache, QuantizedKVCache              rows in order of position
 *     keep + newest     RotatingKVCache, Quantized...          kept rows, then the newest in order:
 *                                                              a ring as it is after a chunk
 *
 * Metadata beside mlx-lm's own (model, tokenizer_config), which mlx-lm ignores:
 *
 *     kvasir_model, kvasir_rope         fingerprints; a file of others is refused (prompt_cache.c)
 *     kvasir_tokens                     "1,2,3"; absent if some are unknown
 *     kvasir_checksum                   of everything else
 *     kvasir_act_bits, kvasir_tier,     how all rows were computed; absent if rows came from a file
 *     kvasir_arithmetic                 that says otherwise, or nothing. Keys are never centred.
 *
 * Pages that are encoded when they are full are in no format of mlx's: their rows are written as
 * float16 (KVCache), decoded, in the plain basis and with their centre. So such a file is one of
 * float16 throughout, whatever the ladder and an exact start gave its pages.
 *
 * No class of mlx-lm holds the exact start of other formats: that takes classes of our own, which
 * mlx-lm refuses by their names.
 *
 * mlx's ring holds one token more than the next query sees. If that token's page has been dropped,
 * the row is zeros. Nothing reads it: the next token overwrites it.
 */
#include <inttypes.h>
#include <string.h>

#include "engine/engine.h"

/* One part of K or V of one layer: codes (or exact values), scales or biases; or its start. */
struct source {
    struct saver *s;
    struct kv_place place;
    enum tile_kind side;
    int part;                /* 0 codes or values, 1 scales, 2 biases */
    struct kv_format format; /* in the file */
    uint32_t dim, keep;
    uint32_t first; /* of the layer's `rows`, the one that the part begins with */
    uint32_t rows;
};

/* Parts of a side, and the rows of its exact start. */
enum { SOURCES = PROMPT_PARTS + 1 };

static const struct kv_format F16 = {16, SCALAR_F16, 0, KV_ROWS};

struct saver {
    const struct kvasir_seq *seq;
    struct prompt_file file;
    struct prompt_entry *entries;
    struct source *sources;       /* [entries][2][SOURCES] */
    struct prompt_tensor *states; /* [entries][2] */
    float *state;                 /* the state, then the same in mlx's order */
    /* the tile that was read last */
    uint8_t *tile;
    const struct tile_layout *layout;
    const struct page_layout *page;
    bool there;
    struct kv_place place;
    enum tile_kind side;
    uint32_t head, number;
    /* one of its rows */
    uint8_t codes[HEAD_DIM_MAX];
    float scales[HEAD_DIM_MAX / 32], biases[HEAD_DIM_MAX / 32], row[HEAD_DIM_MAX];
};

/* ---- rows ------------------------------------------------------------------------------------ */

/* Of a row of the layer. */
static uint32_t position_of(const struct source *from, uint32_t row) {
    uint32_t length = seq_length(from->s->seq->seq);
    ASSERT(row < from->rows && from->rows <= length);
    return row < from->keep ? row : length - (from->rows - row);
}

static kvasir_status find_tile(const struct source *from, uint32_t head, uint32_t number,
                               kvasir_error *err) {
    struct saver *s = from->s;
    if (s->layout && s->place.group == from->place.group && s->place.layer == from->place.layer &&
        s->side == from->side && s->head == head && s->number == number)
        return KVASIR_OK;
    s->place = from->place;
    s->side = from->side;
    s->head = head;
    s->number = number;
    s->page = seq_page_layout(s->seq->seq, from->place.group, number);
    return seq_read_tile(s->seq->seq, from->place.group, from->side, from->place.layer, head,
                         number, &s->there, &s->layout, s->tile, err);
}

/* Of a row in the file, in this format. */
static size_t part_bytes(const struct source *from) {
    const size_t scalar = from->format.scalar == SCALAR_F32 ? 4 : 2, dim = from->dim;
    if (kv_format_exact(from->format))
        return dim * scalar;
    return from->part == 0 ? dim * from->format.bits / 8 : dim / from->format.group * scalar;
}

/* The decoded row, plain and with its centre. */
static void make_plain(const struct source *from, uint32_t head, uint32_t position) {
    struct saver *s = from->s;
    const struct kv_shape *shape = &s->seq->ctx->options.shapes[from->place.group];
    const struct row_place at = {from->side, from->place.layer, head, position};
    tile_decode_row(s->layout, s->tile, position % TILE_TOKENS, s->row);
    page_row_to_plain(s->page, shape->basis, &at, s->row);
    if (from->side == TILE_K && s->page->centred)
        key_centre_add(shape->centre, at.layer, head, position, 1, s->row);
}

static void write_row(const struct source *from, uint32_t head, uint32_t position, uint8_t *out) {
    struct saver *s = from->s;
    const uint32_t groups = from->part ? from->dim / from->format.group : 0;
    if (!s->there) {
        memset(out, 0, part_bytes(from));
    } else if (kv_format_exact(from->format)) {
        make_plain(from, head, position);
        for (uint32_t i = 0; i < from->dim; i++)
            scalar_store(from->format.scalar, out, i, s->row[i]);
    } else {
        tile_get_row(s->layout, s->tile, position % TILE_TOKENS, s->codes, s->scales, s->biases);
        if (from->part == 0)
            affine_pack_row(s->codes, from->dim, from->format.bits, (uint32_t *)out);
        const float *values = from->part == 1 ? s->scales : s->biases;
        for (uint32_t g = 0; g < groups; g++)
            scalar_store(from->format.scalar, out, g, values[g]);
    }
}

static kvasir_status make_rows(void *ctx, uint32_t head, uint32_t row, uint32_t n, void *out,
                               kvasir_error *err) {
    const struct source *from = ctx;
    uint8_t *to = out;
    for (uint32_t r = row; r < row + n; r++) {
        uint32_t position = position_of(from, from->first + r);
        TRY(find_tile(from, head, position / TILE_TOKENS, err));
        write_row(from, head, position, to);
        to += part_bytes(from);
    }
    return KVASIR_OK;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static enum st_dtype dtype_of(enum scalar_type t) {
    return t == SCALAR_F16 ? ST_F16 : t == SCALAR_BF16 ? ST_BF16 : ST_F32;
}

/* What rows of such a tile are in a file. */
static struct kv_format written_format(const struct tile_layout *l) {
    return kv_format_whole(l->format) ? F16 : l->format;
}

/* A tensor whose rows a source makes. */
static struct prompt_tensor made_by(struct source *from, enum st_dtype dtype, uint32_t heads,
                                    uint32_t rows, uint32_t width) {
    struct prompt_tensor t = prompt_tensor_of(dtype, 4, (uint32_t[]){1, heads, rows, width});
    t.rows = make_rows;
    t.ctx = from;
    return t;
}

static void describe_side(struct saver *s, uint32_t at, struct kv_place place, enum tile_kind kind,
                          const struct tile_layout *l, struct prompt_kv *kv) {
    struct prompt_side *side = &kv->sides[kind == TILE_V];
    struct source *from = &s->sources[((size_t)at * 2 + (kind == TILE_V)) * SOURCES];
    const struct kv_format format = written_format(l);
    const bool exact = kv_format_exact(format);
    *side = (struct prompt_side){.format = format, .dim = l->head_dim};
    for (int part = 0; part < (exact ? 1 : PROMPT_PARTS); part++) {
        const bool codes = part == 0 && !exact;
        const uint32_t width = codes  ? l->head_dim * (uint32_t)format.bits / 32
                               : part ? l->groups
                                      : l->head_dim;
        from[part] = (struct source){.s = s,
                                     .place = place,
                                     .side = kind,
                                     .part = part,
                                     .format = format,
                                     .dim = l->head_dim,
                                     .keep = kv->keep,
                                     .first = kv->exact,
                                     .rows = kv->rows};
        side->parts[part] = made_by(&from[part], codes ? ST_U32 : dtype_of(format.scalar),
                                    kv->heads, kv->rows - kv->exact, width);
    }
    if (!kv->start)
        return;
    from[PROMPT_PARTS] = (struct source){.s = s,
                                         .place = place,
                                         .side = kind,
                                         .format = F16,
                                         .dim = l->head_dim,
                                         .keep = kv->keep,
                                         .rows = kv->rows};
    side->start = made_by(&from[PROMPT_PARTS], ST_F16, kv->heads, kv->exact, l->head_dim);
}

/* A file says one format, and that of the exact start is known. */
static kvasir_status check_pages(const struct kv_view *view, uint32_t length,
                                 const struct page_layout *own, uint32_t start_pages,
                                 kvasir_error *err) {
    const struct kv_format k = written_format(&own->k), v = written_format(&own->v);
    const bool affine = !kv_format_exact(k);
    for (uint32_t number = 0; number <= (length - 1) / TILE_TOKENS; number++) {
        const uint32_t i = kv_view_index(view, number);
        if (i == UINT32_MAX)
            continue;
        const struct page_layout *l = &view->layouts[view->pages[i].layout];
        const bool exact = affine && number < start_pages;
        if (!kv_format_equal(written_format(&l->k), exact ? F16 : k) ||
            !kv_format_equal(written_format(&l->v), exact ? F16 : v))
            return fail(err, KVASIR_ERR_UNSUPPORTED,
                        "the sequence's pages have several formats, but a file has one after an "
                        "exact start: requantize the sequence with kvasir_seq_requantize");
    }
    return KVASIR_OK;
}

/* The file's class of a layer, and the numbers that go with it. */
static void describe_kv(const struct kv_view *view, bool affine, uint32_t heads, uint32_t length,
                        uint32_t start, struct prompt_entry *e) {
    const bool ring = view->span != UINT32_MAX;
    e->class = !affine ? (ring ? PROMPT_ROTATING : PROMPT_KV)
               : start ? (ring ? PROMPT_STARTED_ROTATING : PROMPT_STARTED)
                       : (ring ? PROMPT_QUANTIZED_ROTATING : PROMPT_QUANTIZED);
    e->kv = (struct prompt_kv){.heads = heads, .rows = length, .offset = length};
    if (ring) {
        e->kv.keep = view->keep;
        e->kv.max_size = view->keep + view->span;
        e->kv.rows = length < e->kv.max_size ? length : e->kv.max_size;
        e->kv.idx = e->kv.rows;
    }
    if (prompt_class_is_started(e->class)) {
        e->kv.start = start;
        e->kv.exact = prompt_start_rows(&e->kv);
    }
}

static kvasir_status describe_rows(struct saver *s, uint32_t layer, uint32_t at,
                                   kvasir_error *err) {
    const struct kvasir_context *c = s->seq->ctx;
    const struct kv_place place = model_kv_place(c->model->model, layer);
    const uint32_t length = seq_length(s->seq->seq);
    struct kv_view view;
    uint32_t start_pages;
    seq_view(s->seq->seq, place.group, &view);
    ASSERT(view.n_pages > 0); /* the sequence is not empty */
    const struct page_layout *l = seq_layout(s->seq->seq, place.group, &start_pages);
    if (l->centred && !page_is_whole(l))
        return fail_field(err, KVASIR_ERR_ARGUMENT, "context.key_centre",
                          "must be off: files hold keys that are not centred");
    const bool affine = !kv_format_exact(written_format(&l->k));
    if (affine != !kv_format_exact(written_format(&l->v)))
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "only one of K and V is quantized, which no cache class of mlx-lm supports: "
                    "requantize the sequence with kvasir_seq_requantize");
    TRY(check_pages(&view, length, l, start_pages, err));
    struct prompt_entry *e = &s->entries[at];
    describe_kv(&view, affine, l->kv_heads, length,
                min_u32(start_pages, INT32_MAX / TILE_TOKENS) * TILE_TOKENS, e);
    describe_side(s, at, place, TILE_K, &l->k, &e->kv);
    describe_side(s, at, place, TILE_V, &l->v, &e->kv);
    return KVASIR_OK;
}

/* s->state: [state_bytes] as it is, then as much in mlx's order. */
static void describe_state(struct saver *s, uint32_t layer, uint32_t at) {
    const struct model *m = s->seq->ctx->model->model;
    const struct model_config *c = model_config(m);
    const struct state_layout l = model_state_layout(m, layer);
    const bool delta = c->layers[layer].kind == LAYER_DELTA;
    const uint32_t heads = c->delta.value_heads, key = c->delta.key_dim, value = c->delta.value_dim;
    uint8_t *native = (uint8_t *)s->state, *mlx = native + model_state_bytes(m);
    struct prompt_tensor *states = &s->states[(size_t)at * 2];
    states[0] = prompt_tensor_of(ST_F32, 3, (uint32_t[]){1, l.width - 1, l.channels});
    states[0].data = mlx + l.window;
    memcpy(mlx + l.window, native + l.window, l.matrix - l.window);
    if (delta) {
        for (uint32_t h = 0; h < heads; h++) {
            const size_t there = prompt_cache_value_head(c, h), size = (size_t)key * value,
                         values = l.channels - (size_t)heads * value; /* where they begin */
            const float *from = (const float *)(native + l.matrix) + h * size;
            float *to = (float *)(mlx + l.matrix) + there * size;
            for (size_t i = 0; i < key; i++)
                for (size_t j = 0; j < value; j++)
                    to[j * key + i] = from[i * value + j];
            for (uint32_t row = 0; row < l.width - 1; row++)
                memcpy((float *)(mlx + l.window) + row * l.channels + values + there * value,
                       (const float *)(native + l.window) + row * l.channels + values + h * value,
                       value * sizeof(float));
        }
        states[1] = prompt_tensor_of(ST_F32, 4, (uint32_t[]){1, heads, value, key});
        states[1].data = mlx + l.matrix;
    }
    s->entries[at] = (struct prompt_entry){.class = PROMPT_ARRAYS,
                                           .arrays = {.n = delta ? 2 : 1, .states = states}};
}

static kvasir_status describe(struct saver *s, kvasir_error *err) {
    const struct model *m = s->seq->ctx->model->model;
    const struct model_config *c = model_config(m);
    const uint64_t bytes = model_state_bytes(m);
    s->entries = mem_calloc(c->n_layers, sizeof *s->entries);
    s->sources = mem_calloc(c->n_layers, 2 * SOURCES * sizeof *s->sources);
    s->states = mem_calloc(c->n_layers, 2 * sizeof *s->states);
    s->state = mem_alloc_aligned(bytes ? 2 * bytes : 64);
    s->tile = mem_alloc(
        tile_bytes(TILE_K, (struct kv_format){.bits = 32, .scalar = SCALAR_F32}, HEAD_DIM_MAX));
    if (!s->entries || !s->sources || !s->states || !s->state || !s->tile)
        return fail(err, KVASIR_ERR_MEMORY, "prompt cache: out of memory");
    if (bytes)
        TRY(seq_read_state(s->seq->seq, s->state, err));
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (c->layers[i].kind != LAYER_ATTENTION)
            describe_state(s, i, s->file.n_entries++);
        else if (c->layers[i].kv_from == i)
            TRY(describe_rows(s, i, s->file.n_entries++, err));
    }
    ASSERT(s->file.n_entries <= c->n_layers);
    s->file.entries = s->entries;
    return KVASIR_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

static bool put_tokens(const struct kvasir_seq *seq, struct text_buf *out) {
    const int32_t *tokens = seq_tokens(seq->seq);
    bool good = true;
    for (uint32_t i = 0; good && i < seq_length(seq->seq); i++)
        good = text_printf(out, "%s%" PRId32, i ? "," : "", tokens[i]);
    return good;
}

static bool all_known(const struct kvasir_seq *seq) {
    for (uint32_t i = 0; i < seq_length(seq->seq); i++)
        if (seq_tokens(seq->seq)[i] < 0)
            return false;
    return true;
}

enum { METADATA_MAX = 9 };

/* Adds a pair if it is known. */
static void put_pair(struct prompt_pair pairs[METADATA_MAX], uint32_t *n, bool known,
                     const char *key, const char *value) {
    ASSERT(*n < METADATA_MAX && (*n == 0 || strcmp(pairs[*n - 1].key, key) < 0));
    if (known)
        pairs[(*n)++] = (struct prompt_pair){key, value};
}

kvasir_status kvasir_seq_save(const kvasir_seq *seq, const char *path, bool legacy,
                              kvasir_error *err) {
    struct saver *s = mem_calloc(1, sizeof *s);
    struct text_buf tokens = {0};
    const struct kvasir_model *m = seq->ctx->model;
    char model[17], rope_text[17];
    uint64_t rope;
    kvasir_status status;
    if (!s)
        return fail(err, KVASIR_ERR_MEMORY, "prompt cache: out of memory");
    s->seq = seq;
    if (seq_length(seq->seq) == 0) {
        status = fail(err, KVASIR_ERR_ARGUMENT, "%s: the sequence is empty", path);
        goto done;
    }
    TRY_GOTO(describe(s, err)); /* s->file */
    fingerprint_text(m->id, model);
    TRY_GOTO(rope_fingerprint(seq->ctx, &rope, err));
    fingerprint_text(rope, rope_text);
    if (!put_tokens(seq, &tokens)) {
        status = fail(err, KVASIR_ERR_MEMORY, "prompt cache: out of memory");
        goto done;
    }
    struct arithmetic how;
    arithmetic_of(seq->ctx, &how);
    char sum_text[17] = "";
    uint64_t sum;
    struct prompt_pair metadata[METADATA_MAX];
    uint32_t n = 0;
    /* in rising order of keys */
    put_pair(metadata, &n, !seq->foreign, "kvasir_act_bits", how.act_bits);
    put_pair(metadata, &n, !seq->foreign, "kvasir_arithmetic", how.version);
    put_pair(metadata, &n, true, "kvasir_checksum", sum_text);
    put_pair(metadata, &n, true, "kvasir_model", model);
    put_pair(metadata, &n, true, "kvasir_rope", rope_text);
    put_pair(metadata, &n, !seq->foreign, "kvasir_tier", how.tier);
    put_pair(metadata, &n, all_known(seq), "kvasir_tokens", tokens.data);
    put_pair(metadata, &n, true, "model", m->path);
    put_pair(metadata, &n, true, "tokenizer_config", "{}");
    s->file.form = legacy ? PROMPT_FORM_LEGACY : PROMPT_FORM_032;
    s->file.form = prompt_file_form(&s->file);
    s->file.metadata = metadata;
    s->file.n_metadata = n;
    TRY_GOTO(prompt_cache_checksum(&s->file, &sum, err));
    fingerprint_text(sum, sum_text);
    status = prompt_file_write(path, &s->file, err);
done:
    text_free(&tokens);
    mem_free(s->entries);
    mem_free(s->sources);
    mem_free(s->states);
    mem_free(s->state);
    mem_free(s->tile);
    mem_free(s);
    return status;
}
