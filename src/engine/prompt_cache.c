/* SPDX-License-Identifier: Apache-2.0 */
/* prompt_cache.c: opens mlx-lm's prompt-cache files and makes sequences of them.
 *
 *     file      one cache object for each layer that has one (files/prompt_file.h)
 *                  KVCache, QuantizedKVCache       all tokens       full layers
 *                  Rotating..., QuantizedRotating  keep + newest    full layers with --max-kv-size,
 *                                                                   layers with a window
 *                  ExactStart... (ours)            as Quantized...  the first pages are f16
 *                  ArraysCache                     state            recurrent layers
 *     sequence  pages: a row of the file is a token's row of a tile, with the same codes, scales
 *               and biases
 *
 * Opening a file checks all of it against the model: layers, classes, heads, what is held, which
 * model made it. Loading makes a new sequence in a context whose cache has the file's formats
 * (kvasir_context_options.like) and whose exact start has the same of the file's pages, so nothing
 * is rounded again; with `convert`, in any context. A file that kvasir_seq_save wrote knows its
 * tokens, model and RoPE. mlx-lm's own files know none of these, so their tokens are unknown (-1)
 * and cannot be run again. Only a trim of a recurrent model's sequence ever needs that:
 * kvasir_seq_load keeps a snapshot at the file's end, and kvasir_seq_trim refuses lengths below it.
 *
 * Invariants
 *   PROMPT-1  A file is refused before anything is made of it, or the sequence holds exactly its
 *             rows.
 *   PROMPT-2  The file had everything that a query at the sequence's end sees. Rows that the file
 *             lacks and no query sees any more are zeros. A trim that would make them visible is
 *             refused.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

struct kvasir_prompt_cache {
    const struct kvasir_model *model;
    struct prompt_file file;
    uint32_t offset;                      /* tokens */
    int32_t *tokens;                      /* [offset]; -1: unknown */
    const struct prompt_entry **of_layer; /* [n_layers]; NULL: the layer has no cache of its own */
    struct kv_shape shapes[CACHE_GROUPS_MAX]; /* the model's, with the file's formats */
    uint32_t n_groups;
    uint32_t max_size, keep; /* rotation of the full layers; 0: they hold all tokens */
    uint32_t start;          /* tokens of the exact start: of layers that are quantized; 0: none */
    bool quantized;          /* some layer is */
    bool mixed;              /* layers of one group have several formats: load only with convert */
};

/* ---- what a layer's entry must be ------------------------------------------------------------ */

static bool owns_cache(const struct model_config *c, uint32_t layer) {
    return c->layers[layer].kind != LAYER_ATTENTION || c->layers[layer].kv_from == layer;
}

static const struct prompt_entry *unwrapped(const struct prompt_entry *e) {
    while (e->class == PROMPT_LIST && e->list.n == 1)
        e = &e->list.children[0];
    return e;
}

static kvasir_status fail_class(uint32_t layer, const struct prompt_entry *e, const char *wanted,
                                kvasir_error *err) {
    return fail(err, KVASIR_ERR_ARGUMENT, "layer %u is %s in the file, the model's is %s", layer,
                prompt_class_name(e->class), wanted);
}

/* Whether the shape is [1, a, b] or, if c is not 0, [1, a, b, c]. */
static bool has_shape(const struct prompt_tensor *t, uint32_t a, uint32_t b, uint32_t c) {
    return t->present && t->n_dims == (c ? 4u : 3u) && t->dims[0] == 1 && t->dims[1] == a &&
           t->dims[2] == b && (!c || t->dims[3] == c) && t->dtype != ST_U32 && t->dtype != ST_I32;
}

static kvasir_status check_state(const struct model_config *c, uint32_t layer,
                                 const struct prompt_entry *e, kvasir_error *err) {
    const bool delta = c->layers[layer].kind == LAYER_DELTA;
    const uint32_t channels = delta ? 2 * c->delta.key_heads * c->delta.key_dim +
                                          c->delta.value_heads * c->delta.value_dim
                                    : c->dim;
    if (e->class != PROMPT_ARRAYS)
        return fail_class(layer, e, "recurrent (ArraysCache)", err);
    if (e->arrays.left_padding.present || e->arrays.lengths.present)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "layer %u: the state is of padded sequences, which is not supported", layer);
    if (e->arrays.n != (delta ? 2u : 1u) ||
        !has_shape(&e->arrays.states[0], c->conv_width - 1, channels, 0) ||
        (delta && !has_shape(&e->arrays.states[1], c->delta.value_heads, c->delta.value_dim,
                             c->delta.key_dim)))
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "layer %u: its states do not have the model's shapes: [1, %u, %u]%s", layer,
                    c->conv_width - 1, channels, delta ? " and a matrix for each value head" : "");
    return KVASIR_OK;
}

static kvasir_status check_rows(struct kvasir_prompt_cache *p, uint32_t layer,
                                struct prompt_entry *e, kvasir_error *err) {
    const struct layer_config *l = &model_config(p->model->model)->layers[layer];
    if (!prompt_class_is_kv(e->class))
        return fail_class(layer, e, "attention", err);
    if (e->kv.heads != l->kv_heads)
        return fail(err, KVASIR_ERR_ARGUMENT, "layer %u has %u KV heads in the file, the model %u",
                    layer, e->kv.heads, l->kv_heads);
    kvasir_status status = prompt_entry_settle(&e->kv, l->head_dim, l->head_dim, err);
    if (status != KVASIR_OK) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "layer %u", layer);
        fail_prefix(err, prefix);
        return status;
    }
    if (e->kv.offset == 0)
        return fail(err, KVASIR_ERR_ARGUMENT, "the file holds no tokens");
    p->offset = e->kv.offset;
    return KVASIR_OK;
}

/* All quantized layers have the exact start of the first of them. */
static kvasir_status take_start(struct kvasir_prompt_cache *p, uint32_t layer,
                                const struct prompt_entry *e, kvasir_error *err) {
    if (!prompt_class_is_affine(e->class))
        return KVASIR_OK;
    if (!p->quantized)
        p->start = e->kv.start;
    p->quantized = true;
    return e->kv.start == p->start
               ? KVASIR_OK
               : fail(err, KVASIR_ERR_FORMAT,
                      "layer %u has an exact start of %u tokens, another layer of %u", layer,
                      e->kv.start, p->start);
}

/* A group gets the formats of its first layer. Full layers rotate as the first of them does. */
static kvasir_status take_shape(struct kvasir_prompt_cache *p, uint32_t layer,
                                const struct prompt_entry *e, kvasir_error *err) {
    const struct kv_place place = model_kv_place(p->model->model, layer);
    ASSERT(place.group < p->n_groups);
    struct kv_shape *shape = &p->shapes[place.group];
    const struct kv_format k = e->kv.sides[0].format, v = e->kv.sides[1].format;
    if (place.layer == 0) {
        shape->k = k;
        shape->v = v;
        if (!shape->window && prompt_class_is_ring(e->class)) {
            p->max_size = e->kv.max_size;
            p->keep = e->kv.keep;
        }
    }
    if (!kv_format_equal(shape->k, k) || !kv_format_equal(shape->v, v))
        p->mixed = true;
    const bool ring = prompt_class_is_ring(e->class);
    if (!shape->window && (ring ? e->kv.max_size : 0) != p->max_size)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "layer %u keeps %u tokens, another full layer %u (0: all): layers that rotate "
                    "differently are not supported",
                    layer, ring ? e->kv.max_size : 0, p->max_size);
    return KVASIR_OK;
}

static kvasir_status match_layers(struct kvasir_prompt_cache *p, kvasir_error *err) {
    const struct model_config *c = model_config(p->model->model);
    uint32_t owners = 0, at = 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        owners += owns_cache(c, i);
    if (p->file.n_entries != owners)
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "the file has caches of %u layers, the model has %u: it is another model's",
                    p->file.n_entries, owners);
    p->of_layer = mem_calloc(c->n_layers, sizeof *p->of_layer);
    if (!p->of_layer)
        return fail(err, KVASIR_ERR_MEMORY, "prompt cache: out of memory");
    p->n_groups = model_kv_groups(p->model->model, p->shapes);
    ASSERT(p->n_groups <= CACHE_GROUPS_MAX);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (!owns_cache(c, i))
            continue;
        const struct prompt_entry *e = unwrapped(&p->file.entries[at++]);
        p->of_layer[i] = e;
        if (c->layers[i].kind != LAYER_ATTENTION) {
            TRY(check_state(c, i, e, err));
            continue;
        }
        /* We own the file, so prompt_entry_settle may write to it. */
        TRY(check_rows(p, i, (struct prompt_entry *)e, err));
        TRY(take_shape(p, i, e, err));
        TRY(take_start(p, i, e, err));
    }
    ASSERT(at == owners);
    /* A cache with an exact start has it in all groups, as f16. */
    for (uint32_t g = 0; p->start && g < p->n_groups; g++)
        if (kv_format_exact(p->shapes[g].k) &&
            (p->shapes[g].k.scalar != SCALAR_F16 || p->shapes[g].v.scalar != SCALAR_F16))
            p->mixed = true;
    return p->offset ? KVASIR_OK
                     : fail(err, KVASIR_ERR_UNSUPPORTED,
                            "a file without attention layers does not say how many tokens it has");
}

/* ---- whose file it is ------------------------------------------------------------------------ */

static const char *metadata(const struct prompt_file *f, const char *key) {
    for (uint32_t i = 0; i < f->n_metadata; i++)
        if (strcmp(f->metadata[i].key, key) == 0)
            return f->metadata[i].value;
    return NULL;
}

/* "1,2,3" of exactly offset tokens. */
static kvasir_status read_tokens(struct kvasir_prompt_cache *p, const char *text,
                                 kvasir_error *err) {
    const uint32_t vocab = model_config(p->model->model)->vocab;
    uint32_t n = 0;
    while (*text && n < p->offset) {
        char *end;
        unsigned long id = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : ULONG_MAX;
        if (id >= vocab || (*end != ',' && *end != 0))
            break;
        p->tokens[n++] = (int32_t)id;
        text = end + (*end == ',');
    }
    return n == p->offset && !*text
               ? KVASIR_OK
               : fail(err, KVASIR_ERR_FORMAT,
                      "metadata kvasir_tokens is not a list of %u tokens below %u", p->offset,
                      vocab);
}

/* A file of Kvasir must have a checksum. */
static kvasir_status check_sum(const struct kvasir_prompt_cache *p, bool ours, kvasir_error *err) {
    const char *text = metadata(&p->file, "kvasir_checksum");
    uint64_t sum;
    char found[17];
    if (!text)
        return ours ? fail(err, KVASIR_ERR_FORMAT,
                           "the file is damaged: metadata kvasir_model without kvasir_checksum")
                    : KVASIR_OK;
    TRY(prompt_cache_checksum(&p->file, &sum, err));
    fingerprint_text(sum, found);
    return strcmp(found, text) == 0
               ? KVASIR_OK
               : fail(err, KVASIR_ERR_FORMAT,
                      "the file is damaged: its checksum is %s, metadata kvasir_checksum says "
                      "%.32s",
                      found, text);
}

static kvasir_status check_origin(struct kvasir_prompt_cache *p, kvasir_error *err) {
    const char *model = metadata(&p->file, "kvasir_model"),
               *tokens = metadata(&p->file, "kvasir_tokens");
    char ours[17];
    fingerprint_text(p->model->id, ours);
    if (model && strcmp(model, ours) != 0)
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "the file was made with the model %.32s (fingerprint), this one is %s", model,
                    ours);
    TRY(check_sum(p, model != NULL, err));
    p->tokens = mem_calloc(p->offset, sizeof *p->tokens);
    if (!p->tokens)
        return fail(err, KVASIR_ERR_MEMORY, "prompt cache: out of memory");
    for (uint32_t i = 0; i < p->offset; i++)
        p->tokens[i] = -1;
    return tokens ? read_tokens(p, tokens, err) : KVASIR_OK;
}

/* K is stored after RoPE, so another variant of RoPE would read it wrongly, without any error.
 * Files of others do not name theirs. */
static kvasir_status check_rope(const struct kvasir_prompt_cache *p, const struct kvasir_context *c,
                                kvasir_error *err) {
    const char *file = metadata(&p->file, "kvasir_rope");
    char ours[17];
    uint64_t rope;
    if (!file)
        return KVASIR_OK;
    TRY(rope_fingerprint(c, &rope, err));
    fingerprint_text(rope, ours);
    return strcmp(file, ours) == 0
               ? KVASIR_OK
               : fail_field(
                     err, KVASIR_ERR_ARGUMENT, "context.ctx",
                     "the file's keys were rotated by another RoPE (fingerprint %.32s) than a "
                     "context of %u tokens uses (%s): use the context length that the file was "
                     "saved with",
                     file, c->options.ctx, ours);
}

static bool says(const struct kvasir_prompt_cache *p, const char *key, const char *value) {
    const char *text = metadata(&p->file, key);
    return text && strcmp(text, value) == 0;
}

bool prompt_cache_is_native(const struct kvasir_prompt_cache *p, const struct kvasir_context *c) {
    struct arithmetic how;
    arithmetic_of(c, &how);
    return says(p, "kvasir_act_bits", how.act_bits) && says(p, "kvasir_arithmetic", how.version) &&
           says(p, "kvasir_tier", how.tier);
}

/* ---- opening --------------------------------------------------------------------------------- */

kvasir_status kvasir_prompt_cache_open(const kvasir_model *model, const char *path,
                                       kvasir_prompt_cache **out, kvasir_error *err) {
    struct kvasir_prompt_cache *p = mem_calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return fail(err, KVASIR_ERR_MEMORY, "%s: out of memory", path);
    p->model = model;
    kvasir_status status = prompt_file_open(path, &p->file, err);
    if (status == KVASIR_OK) {
        status = match_layers(p, err);
        if (status == KVASIR_OK)
            status = check_origin(p, err);
        if (status != KVASIR_OK)
            fail_prefix(err, path);
    }
    if (status == KVASIR_OK)
        *out = p;
    else
        kvasir_prompt_cache_close(p);
    return status;
}

void kvasir_prompt_cache_close(kvasir_prompt_cache *p) {
    if (!p)
        return;
    prompt_file_close(&p->file);
    mem_free(p->of_layer);
    mem_free(p->tokens);
    mem_free(p);
}

void kvasir_prompt_cache_get_info(const kvasir_prompt_cache *p, kvasir_prompt_cache_info *info) {
    const char *act = metadata(&p->file, "kvasir_act_bits"),
               *version = metadata(&p->file, "kvasir_arithmetic");
    char ours[32];
    arithmetic_version(ours);
    *info = (kvasir_prompt_cache_info){
        .tokens = p->offset,
        .act_bits = act && strcmp(act, "8") == 0    ? 8
                    : act && strcmp(act, "16") == 0 ? 16
                                                    : 0,
        .tier = metadata(&p->file, "kvasir_tier"),
        .other_arithmetic = version && strcmp(version, ours) != 0,
    };
}

const int32_t *prompt_cache_ids(const struct kvasir_prompt_cache *p) {
    return p->tokens;
}

uint32_t kvasir_prompt_cache_tokens(const kvasir_prompt_cache *p) {
    return p->offset;
}

void prompt_cache_shape(const struct kvasir_prompt_cache *p,
                        struct kv_shape shapes[CACHE_GROUPS_MAX], struct kv_cache_options *cache) {
    memcpy(shapes, p->shapes, p->n_groups * sizeof *shapes);
    for (uint32_t g = 0; g < p->n_groups; g++)
        if (g == 0 || !kv_format_exact(shapes[g].k)) { /* they say whether anything is quantized */
            cache->k = shapes[g].k;
            cache->v = shapes[g].v;
        }
    cache->max_size = p->max_size;
    cache->keep = p->keep;
    cache->quantized_start = p->start;
}

/* ---- loading --------------------------------------------------------------------------------- */

struct prompt_load {
    const struct kvasir_prompt_cache *p;
    const struct kvasir_context *ctx;
    bool convert;
    /* of the pages that are made: of the exact start, full ones, and a last one that is not */
    const struct page_layout *start[CACHE_GROUPS_MAX], *full[CACHE_GROUPS_MAX],
        *partial[CACHE_GROUPS_MAX];
    uint32_t start_pages;
    uint8_t *state; /* of recurrent layers at the file's end, once made */
    uint8_t codes[HEAD_DIM_MAX];
    float scales[HEAD_DIM_MAX / 32], biases[HEAD_DIM_MAX / 32];
    float rows[TILE_TOKENS * HEAD_DIM_MAX]; /* of a tile that is encoded whole */
};

/* The first position from which on the file has all rows. It also has those below keep
 * (PROMPT-2). */
static uint32_t first_held(const struct prompt_kv *kv) {
    uint32_t p = kv->offset;
    while (p > 0 && prompt_entry_row(kv, p - 1) >= 0)
        p--;
    return p;
}

static kvasir_status check_seen(const struct prompt_load *l, const struct kv_seq *seq,
                                uint32_t layer, kvasir_error *err) {
    const struct kv_place place = model_kv_place(l->p->model->model, layer);
    const struct prompt_kv *kv = &l->p->of_layer[layer]->kv;
    struct kv_view view;
    seq_view(seq, place.group, &view);
    const uint32_t start = view.span == UINT32_MAX || kv->offset < view.span
                               ? 0
                               : kv->offset + 1 - view.span,
                   held = first_held(kv);
    bool good = held <= start || held == 0;
    for (uint32_t p = 0; p < view.keep && p < kv->offset && good; p++)
        good = prompt_entry_row(kv, p) >= 0;
    return good ? KVASIR_OK
                : fail_field(
                      err, KVASIR_ERR_ARGUMENT, l->p->max_size ? "context.max_kv_size" : NULL,
                      "layer %u: the file holds positions from %u on, but the next token sees them "
                      "from %u on%s",
                      layer, held, start,
                      l->p->max_size ? ": tokens seen and kept must be those of the file" : "");
}

static kvasir_status check_formats(const struct prompt_load *l, const struct kv_seq *seq,
                                   kvasir_error *err) {
    char ours[24], theirs[24];
    for (uint32_t g = 0; g < l->p->n_groups; g++) {
        struct kv_view view;
        seq_view(seq, g, &view);
        const struct tile_layout *tiles[] = {&view.layouts[0].k, &view.layouts[0].v};
        const struct kv_format formats[] = {l->p->shapes[g].k, l->p->shapes[g].v};
        for (int side = 0; side < 2 && !l->convert; side++)
            if (l->p->mixed || !kv_format_equal(tiles[side]->format, formats[side]))
                return fail_field(err, KVASIR_ERR_ARGUMENT, "load.convert",
                                  "the file's %s is %s%s, the cache's %s: it must be converted",
                                  side ? "V" : "K", kv_format_name(formats[side], theirs),
                                  l->p->mixed ? " and others" : "",
                                  kv_format_name(tiles[side]->format, ours));
        if (view.layouts[0].centred && !l->convert)
            return fail_field(err, KVASIR_ERR_ARGUMENT, "context.key_centre",
                              "must be off unless the file is converted: its keys are not centred");
    }
    return KVASIR_OK;
}

/* The exact starts of file and cache may differ where the file has no pages. */
static kvasir_status check_start(const struct prompt_load *l, kvasir_error *err) {
    const uint32_t pages = (l->p->offset - 1) / TILE_TOKENS + 1,
                   ours = min_u32(kv_cache_start_pages(l->ctx->cache), pages),
                   theirs = min_u32(l->p->start / TILE_TOKENS, pages);
    return l->convert || ours == theirs
               ? KVASIR_OK
               : fail_field(err, KVASIR_ERR_ARGUMENT, "context.quantized_kv_start",
                            "must be %u, as in the file, unless the file is converted",
                            l->p->start);
}

static bool has_rows(const struct prompt_load *l, uint32_t layer) {
    const struct model_config *c = model_config(l->p->model->model);
    return l->p->of_layer[layer] && c->layers[layer].kind == LAYER_ATTENTION;
}

/* The layout of a page that begins at token `first`, for one layer. */
static const struct page_layout *layout_at(const struct prompt_load *l, uint32_t layer,
                                           uint32_t first) {
    const uint32_t group = model_kv_place(l->p->model->model, layer).group;
    return first / TILE_TOKENS < l->start_pages ? l->start[group]
           : l->p->offset - first < TILE_TOKENS ? l->partial[group]
                                                : l->full[group];
}

size_t prompt_load_page_bytes(const struct prompt_load *l) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < model_config(l->p->model->model)->n_layers; i++)
        if (has_rows(l, i)) {
            const uint32_t group = model_kv_place(l->p->model->model, i).group;
            size_t most = max_size(l->full[group]->head_bytes, l->partial[group]->head_bytes);
            if (l->start_pages)
                most = max_size(most, l->start[group]->head_bytes);
            bytes += l->p->of_layer[i]->kv.heads * most;
        }
    return bytes;
}

/* Writes row `row` of a head of the file to its slot of the tile, or into l->rows. */
static void put_row(struct prompt_load *l, const struct prompt_kv *kv, const struct kv_shape *shape,
                    const struct row_place *at, uint32_t row, const struct page_layout *page,
                    uint8_t *tile) {
    const struct prompt_side *side = &kv->sides[at->part == TILE_V];
    const struct tile_layout *layout = at->part == TILE_V ? &page->v : &page->k;
    const uint32_t slot = at->position % TILE_TOKENS;
    const bool centred = at->part == TILE_K && page->centred;
    float *x = l->rows + (size_t)slot * layout->head_dim;
    if (row < kv->exact) {
        prompt_start_get_values(side, at->head, row, x);
    } else if (kv_format_exact(side->format)) {
        prompt_side_get_values(side, at->head, row, x);
    } else {
        prompt_side_get_row(side, at->head, row - kv->exact, l->codes, l->scales, l->biases);
        if (kv_format_equal(side->format, layout->format) && !centred) {
            tile_put_row(layout, tile, slot, l->codes, l->scales, l->biases);
            return;
        }
        affine_dequantize(l->codes, l->scales, l->biases, side->dim, side->format.group,
                          side->format.scalar, x);
    }
    if (centred)
        key_centre_add(shape->centre, at->layer, at->head, at->position, -1, x);
    page_row_from_plain(page, shape->basis, at, x);
    if (!kv_format_whole(layout->format))
        tile_encode_row(layout, tile, slot, x);
    else
        for (uint32_t i = 0; i < layout->head_dim; i++)
            x[i] = scalar_round(SCALAR_F16, x[i]); /* as a shadow has it */
}

/* A tile: tokens [first, first + n) of a head. */
static void make_tile(struct prompt_load *l, uint32_t layer, int side, uint32_t head,
                      uint32_t first, uint32_t n, uint8_t *tile) {
    const struct prompt_kv *kv = &l->p->of_layer[layer]->kv;
    const struct kv_place place = model_kv_place(l->p->model->model, layer);
    const struct page_layout *page = layout_at(l, layer, first);
    const struct tile_layout *layout = side ? &page->v : &page->k;
    const bool whole = kv_format_whole(layout->format);
    memset(tile, 0, layout->bytes);
    if (whole)
        memset(l->rows, 0, TILE_TOKENS * layout->head_dim * sizeof *l->rows);
    for (uint32_t i = 0; i < n; i++) {
        const int64_t row = prompt_entry_row(kv, first + i);
        const struct row_place at = {side ? TILE_V : TILE_K, place.layer, head, first + i};
        if (row >= 0)
            put_row(l, kv, &l->ctx->options.shapes[place.group], &at, (uint32_t)row, page, tile);
    }
    if (whole)
        tile_encode(layout, tile, l->rows);
}

/* Copies values [a][b] of a state's tensor to to[i * stride_a + j * stride_b]. */
static void load_values(const struct prompt_tensor *t, size_t first, size_t a, size_t b, float *to,
                        size_t stride_a, size_t stride_b) {
    const enum scalar_type scalar = t->dtype == ST_F16    ? SCALAR_F16
                                    : t->dtype == ST_BF16 ? SCALAR_BF16
                                                          : SCALAR_F32;
    for (size_t i = 0; i < a; i++)
        for (size_t j = 0; j < b; j++)
            to[i * stride_a + j * stride_b] = scalar_load(scalar, t->data, first + i * b + j);
}

/* Where a file of mlx-lm has value head `head` of a delta net. It orders them key head by key
 * head; some models do not (delta.keys_cycle). */
uint32_t prompt_cache_value_head(const struct model_config *c, uint32_t head) {
    const uint32_t keys = c->delta.key_heads, ratio = c->delta.value_heads / keys;
    return c->delta.keys_cycle ? head % keys * ratio + head / keys : head;
}

/* mlx keeps a delta net's matrices as [value head][value dim][key dim]. */
static kvasir_status make_state(struct prompt_load *l, kvasir_error *err) {
    const struct model *m = l->p->model->model;
    const struct model_config *c = model_config(m);
    const size_t key = c->delta.key_dim, value = c->delta.value_dim;
    uint8_t *state = mem_calloc(1, model_state_bytes(m));
    if (!state)
        return fail(err, KVASIR_ERR_MEMORY, "prompt cache: out of memory");
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (c->layers[i].kind == LAYER_ATTENTION)
            continue;
        const struct state_layout at = model_state_layout(m, i);
        const struct prompt_tensor *states = l->p->of_layer[i]->arrays.states;
        float *window = (float *)(state + at.window), *matrix = (float *)(state + at.matrix);
        load_values(&states[0], 0, at.width - 1, at.channels, window, at.channels, 1);
        if (c->layers[i].kind != LAYER_DELTA)
            continue;
        ASSERT(at.channels >= c->delta.value_heads * value && at.matrix > at.window);
        /* Where the channels of value heads begin. */
        const size_t values = at.channels - c->delta.value_heads * value;
        for (uint32_t h = 0; h < c->delta.value_heads; h++) {
            const size_t from = prompt_cache_value_head(c, h);
            load_values(&states[1], from * key * value, value, key, matrix + h * key * value, 1,
                        value);
            for (uint32_t row = 0; row < at.width - 1; row++)
                load_values(&states[0], row * at.channels + values + from * value, 1, value,
                            window + row * at.channels + values + h * value, 0, 1);
        }
    }
    mem_free(l->state);
    l->state = state;
    return KVASIR_OK;
}

kvasir_status prompt_load_make(struct prompt_load *l, uint32_t first, uint8_t *tiles,
                               kvasir_error *err) {
    const uint32_t left = l->p->offset - first, n = left < TILE_TOKENS ? left : TILE_TOKENS;
    ASSERT(first % TILE_TOKENS == 0 && first < l->p->offset);
    for (uint32_t i = 0; i < model_config(l->p->model->model)->n_layers; i++)
        for (uint32_t head = 0; has_rows(l, i) && head < l->p->of_layer[i]->kv.heads; head++)
            for (int side = 0; side < 2; side++) {
                make_tile(l, i, side, head, first, n, tiles);
                tiles += side ? layout_at(l, i, first)->v.bytes : layout_at(l, i, first)->k.bytes;
            }
    return n == left && l->ctx->options.cache.state_bytes ? make_state(l, err) : KVASIR_OK;
}

/* The sequence has all of the file. */
static kvasir_status end_load(const struct prompt_load *l, struct kv_seq *seq, kvasir_error *err) {
    for (uint32_t i = 0; i < model_config(l->p->model->model)->n_layers; i++) {
        const uint32_t held = has_rows(l, i) ? first_held(&l->p->of_layer[i]->kv) : 0;
        if (held)
            seq_mark_missing(seq, model_kv_place(l->p->model->model, i).group, held);
    }
    TRY(backend_flush(l->ctx->backend, err));
    return file_map_check(&l->p->file.map, err);
}

void prompt_load_put(const struct prompt_load *l, struct kv_seq *seq, uint32_t number,
                     const uint8_t *tiles) {
    for (uint32_t i = 0; i < model_config(l->p->model->model)->n_layers; i++) {
        const struct kv_place place = model_kv_place(l->p->model->model, i);
        if (!has_rows(l, i))
            continue;
        const struct page_layout *page = layout_at(l, i, number * TILE_TOKENS);
        ASSERT(page == seq_page_layout(seq, place.group, number));
        for (uint32_t head = 0; head < l->p->of_layer[i]->kv.heads; head++)
            for (int side = 0; side < 2; side++) {
                seq_write_tile(seq, place.group, side ? TILE_V : TILE_K, place.layer, head, number,
                               tiles);
                tiles += side ? page->v.bytes : page->k.bytes;
            }
    }
}

kvasir_status prompt_load_commit(const struct prompt_load *l, struct kv_seq *seq, uint32_t rows,
                                 kvasir_error *err) {
    const uint32_t at = seq_length(seq);
    const bool last = at + rows == l->p->offset;
    ASSERT(at + rows <= l->p->offset);
    if (last && l->state)
        seq_write_state(seq, l->state);
    seq_fill_tail(seq);
    seq_commit(seq, l->p->tokens + at, rows);
    return last ? end_load(l, seq, err) : KVASIR_OK;
}

/* Whether the file may become a sequence of the context. */
static kvasir_status check_load(const struct prompt_load *l, const struct kv_seq *seq,
                                kvasir_error *err) {
    TRY(check_formats(l, seq, err));
    TRY(check_start(l, err));
    for (uint32_t i = 0; i < model_config(l->p->model->model)->n_layers; i++)
        if (has_rows(l, i))
            TRY(check_seen(l, seq, i, err));
    return KVASIR_OK;
}

kvasir_status prompt_load_begin(const struct kvasir_context *ctx,
                                const struct kvasir_prompt_cache *p, bool convert,
                                struct prompt_load **out, struct kv_seq **seq, kvasir_error *err) {
    *out = NULL;
    *seq = NULL;
    if (p->model != ctx->model)
        return fail(err, KVASIR_ERR_ARGUMENT, "the file was opened for another model");
    if (p->offset > ctx->options.ctx && !ctx->options.cache.max_size)
        return fail(err, KVASIR_ERR_CONTEXT, "the file's %u tokens do not fit the context of %u",
                    p->offset, ctx->options.ctx);
    TRY(check_rope(p, ctx, err));
    struct prompt_load *l = mem_calloc(1, sizeof *l);
    if (!l)
        return fail(err, KVASIR_ERR_MEMORY, "prompt cache: out of memory");
    *l = (struct prompt_load){
        .p = p, .ctx = ctx, .convert = convert, .start_pages = kv_cache_start_pages(ctx->cache)};
    kvasir_status status = seq_create(ctx->cache, seq, err);
    if (status == KVASIR_OK)
        status = check_load(l, *seq, err);
    for (uint32_t g = 0; status == KVASIR_OK && g < p->n_groups; g++) {
        l->start[g] = kv_cache_start_layout(ctx->cache, g);
        l->full[g] = kv_cache_layout(ctx->cache, g, true);
        l->partial[g] = kv_cache_layout(ctx->cache, g, false);
    }
    if (status == KVASIR_OK) {
        *out = l;
        return KVASIR_OK;
    }
    prompt_load_destroy(l);
    seq_destroy(*seq);
    *seq = NULL;
    return status;
}

void prompt_load_destroy(struct prompt_load *l) {
    if (!l)
        return;
    mem_free(l->state);
    mem_free(l);
}

static kvasir_status load_page(struct prompt_load *l, struct kv_seq *seq, uint8_t **tiles,
                               size_t *room, kvasir_error *err) {
    const uint32_t first = seq_length(seq), left = l->p->offset - first,
                   n = left < TILE_TOKENS ? left : TILE_TOKENS;
    TRY(seq_prepare(seq, n, err));
    const size_t bytes = prompt_load_page_bytes(l);
    if (bytes > *room) {
        mem_free(*tiles);
        *tiles = mem_alloc(bytes);
        *room = *tiles ? bytes : 0;
    }
    if (!*tiles)
        return fail(err, KVASIR_ERR_MEMORY, "prompt cache: out of memory");
    TRY(prompt_load_make(l, first, *tiles, err));
    prompt_load_put(l, seq, first / TILE_TOKENS, *tiles);
    return prompt_load_commit(l, seq, n, err);
}

kvasir_status prompt_cache_load(struct kvasir_context *ctx, const struct kvasir_prompt_cache *p,
                                bool convert, struct kv_seq **out, kvasir_error *err) {
    struct prompt_load *l;
    struct kv_seq *seq;
    uint8_t *tiles = NULL;
    size_t room = 0;
    *out = NULL;
    TRY(prompt_load_begin(ctx, p, convert, &l, &seq, err));
    kvasir_status status = seq_reserve(seq, p->offset, err);
    while (status == KVASIR_OK && seq_length(seq) < p->offset)
        status = load_page(l, seq, &tiles, &room, err);
    mem_free(tiles);
    prompt_load_destroy(l);
    if (status == KVASIR_OK)
        *out = seq;
    else
        seq_destroy(seq);
    return status;
}
