/* SPDX-License-Identifier: Apache-2.0 */
/* Writes any readable checkpoint as a folder in mlx-lm's layout: model.safetensors here, the other
 * files in convert_files.c.
 *
 *     tensor of the checkpoint        in the folder
 *     matrix, --bits b                NAME.weight U32 [n][k*b/32], NAME.scales and NAME.biases
 *       (k a multiple of the group)   [n][k/group] in dtype, by mx.quantize of the rounded values
 *     anything else                   NAME in dtype
 *
 * Rows go from the mapping through one row of floats to the file, so memory use is a buffer and,
 * while a matrix is quantized, its scales and biases. An affine matrix that already has the
 * requested bits and group is not quantized again: its codes are copied.
 *
 *     file   | header | codes, scales, biases of each quantized matrix ... | the others ... |
 *
 * This order keeps the codes aligned, because scales and biases together have a multiple of their
 * alignment.
 *
 * GGUF's llama order of the rows of q and k (rotary pairs adjacent) is undone.
 */
#include <stdio.h>

#include "model/convert.h"

enum { BUFFER_BYTES = 1 << 20, PARTS_MAX = 3, NAME_BYTES = 256 };

/* ---- what the file will hold ----------------------------------------------------------------- */

/* One tensor of the checkpoint as one to three tensors of the file. */
struct item {
    const struct checkpoint_tensor *from;
    bool quantized;
    uint32_t head_dim; /* rows of heads of this size are in adjacent order; 0: as they are */
};

struct plan {
    const struct checkpoint *checkpoint;
    const kvasir_convert_options *options;
    enum scalar_type dtype;
    struct item *items; /* [n_items] */
    size_t n_items, matrices;
    uint64_t rows; /* of all items, for progress */
};

/* Tensors that the folder does not need; config.json states what rope_freqs contains. */
static bool left_out(const struct model_config *c, const char *name) {
    return tensor_is_spare(c, name) || strcmp(name, "rope_freqs.weight") == 0;
}

static bool adjacent(const struct model_config *c, const char *name) {
    return c->ropes[0].adjacent && (strstr(name, ".self_attn.q_proj.") || strstr(name, ".k_proj."));
}

static kvasir_status make_plan(struct plan *p, const struct model *m, kvasir_error *err) {
    const struct model_config *c = model_config(m);
    size_t n = checkpoint_tensor_count(p->checkpoint);
    p->items = mem_calloc(n, sizeof *p->items);
    if (!p->items)
        return fail(err, KVASIR_ERR_MEMORY, "convert: out of memory");
    for (size_t i = 0; i < n; i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor_at(p->checkpoint, i);
        if (left_out(c, t->name))
            continue;
        struct weight w = checkpoint_weight(t);
        bool matrix = t->n_dims == 2;
        p->items[p->n_items++] = (struct item){
            .from = t,
            .quantized = p->options->bits && matrix && w.k % p->options->group_size == 0,
            .head_dim = adjacent(c, t->name) ? c->head_dim : 0,
        };
        p->rows += w.n;
        p->matrices += matrix && p->items[p->n_items - 1].quantized;
    }
    if (p->options->bits && !p->matrices)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "convert.group_size",
                          "no matrix of the model has rows of a multiple of %u",
                          p->options->group_size);
    return KVASIR_OK;
}

/* ---- the header ------------------------------------------------------------------------------ */

static enum st_dtype file_dtype(enum scalar_type t) {
    return t == SCALAR_F32 ? ST_F32 : t == SCALAR_F16 ? ST_F16 : ST_BF16;
}

/* "model.norm.weight" -> "model.norm.scales" */
static void part_name(const char *weight, const char *part, char name[NAME_BYTES]) {
    snprintf(name, NAME_BYTES, "%.*s%s", (int)(strlen(weight) - strlen("weight")), weight, part);
}

static void add_entry(struct st_header *h, const char *name, enum st_dtype dtype, uint64_t rows,
                      uint64_t columns, bool matrix) {
    st_add(h, name, dtype, matrix ? (uint64_t[]){rows, columns} : (uint64_t[]){rows * columns},
           matrix ? 2 : 1);
}

static void add_item(struct st_header *h, const struct plan *p, const struct item *item) {
    struct weight w = checkpoint_weight(item->from);
    const char *name = item->from->name;
    enum st_dtype dtype = file_dtype(p->dtype);
    if (!item->quantized) {
        add_entry(h, name, dtype, w.n, w.k, item->from->n_dims == 2);
        return;
    }
    char part[NAME_BYTES];
    add_entry(h, name, ST_U32, w.n, (uint64_t)w.k * p->options->bits / 32, true);
    for (int i = 0; i < 2; i++) {
        part_name(name, i ? "biases" : "scales", part);
        add_entry(h, part, dtype, w.n, w.k / p->options->group_size, true);
    }
}

static kvasir_status write_header(const struct plan *p, struct file_writer *out,
                                  kvasir_error *err) {
    struct st_header h = {0};
    struct text_buf text = {0};
    json_t *metadata = json_pack("{s:s}", "format", "mlx");
    st_add_metadata(&h, metadata);
    json_decref(metadata);
    for (size_t i = 0; i < p->n_items; i++)
        add_item(&h, p, &p->items[i]);
    kvasir_status status = st_finish(&h, 0, &text) ? file_write(out, text.data, text.len, err)
                                                   : fail(err, KVASIR_ERR_MEMORY,
                                                          "convert: out of memory for the header");
    text_free(&text);
    return status;
}

/* ---- the data -------------------------------------------------------------------------------- */

struct writer {
    const struct plan *plan;
    struct file_writer *out;
    uint8_t *buffer; /* [BUFFER_BYTES] */
    size_t used;
    uint64_t rows_done;
    /* of the current row; k is that of the widest */
    float *row, *rounded;   /* [k] */
    uint8_t *codes;         /* [k] */
    uint32_t *words;        /* [k * bits / 32] */
    float *scales, *biases; /* [k / group] */
    kvasir_error *err;
};

static kvasir_status flush(struct writer *w) {
    size_t used = w->used;
    w->used = 0;
    return file_write(w->out, w->buffer, used, w->err);
}

static kvasir_status put_bytes(struct writer *w, const void *data, size_t bytes) {
    if (bytes > BUFFER_BYTES - w->used)
        TRY(flush(w));
    if (bytes > BUFFER_BYTES)
        return file_write(w->out, data, bytes, w->err);
    ASSERT(w->used <= BUFFER_BYTES && bytes <= BUFFER_BYTES - w->used);
    memcpy(w->buffer + w->used, data, bytes);
    w->used += bytes;
    return KVASIR_OK;
}

/* The checkpoint's row (of a vector: element) that becomes row `row` of the folder: there, the
 * pairs of a head are adjacent; here they are (i, i + head_dim / 2). */
static uint32_t source_row(const struct item *item, uint32_t row) {
    if (!item->head_dim)
        return row;
    uint32_t half = item->head_dim / 2, i = row % item->head_dim, head = row - i;
    return head + (i < half ? 2 * i : 2 * (i - half) + 1);
}

/* One row in dtype's precision; returns it. */
static const float *read_row(struct writer *w, const struct item *item, uint32_t row) {
    struct weight from = checkpoint_weight(item->from);
    bool vector = item->from->n_dims == 1;
    weight_traits_of(from.type)->decode(&from, vector ? 0 : source_row(item, row), w->row);
    for (uint32_t i = 0; i < from.k; i++)
        w->rounded[i] = scalar_round(w->plan->dtype, w->row[vector ? source_row(item, i) : i]);
    return w->rounded;
}

static bool has_codes(const struct plan *p, const struct weight *w) {
    return strncmp(weight_traits_of(w->type)->name, "AFFINE", 6) == 0 &&
           weight_row_bytes(weight_traits_of(w->type), w->k) * 8 ==
               (size_t)w->k * p->options->bits &&
           w->group == p->options->group_size;
}

/* Codes, scales and biases of a row. */
static void quantize_row(struct writer *w, const struct item *item, uint32_t row) {
    const kvasir_convert_options *o = w->plan->options;
    struct weight from = checkpoint_weight(item->from);
    if (!has_codes(w->plan, &from)) {
        affine_quantize(read_row(w, item, row), from.k, o->bits, o->group_size, w->plan->dtype,
                        w->codes, w->scales, w->biases);
        return;
    }
    size_t at = source_row(item, row), groups = from.k / o->group_size;
    size_t bytes = (size_t)from.k * o->bits / 8;
    memcpy(w->words, (const uint8_t *)from.data + at * bytes, bytes); /* at any address */
    affine_unpack_row(w->words, from.k, o->bits, w->codes);
    for (size_t g = 0; g < groups; g++) {
        w->scales[g] = scalar_load(from.scalar, from.scales, at * groups + g);
        w->biases[g] = scalar_load(from.scalar, from.biases, at * groups + g);
    }
}

static kvasir_status step(struct writer *w) {
    const kvasir_convert_options *o = w->plan->options;
    w->rows_done++;
    if (o->on_progress && !o->on_progress(o->user, w->rows_done, w->plan->rows))
        return fail(w->err, KVASIR_ERR_CANCELLED, "cancelled");
    return KVASIR_OK;
}

/* scales, biases: room for those of the whole matrix, as in the file. */
static kvasir_status write_codes(struct writer *w, const struct item *item, uint8_t *scales,
                                 uint8_t *biases) {
    const kvasir_convert_options *o = w->plan->options;
    struct weight from = checkpoint_weight(item->from);
    size_t groups = from.k / o->group_size, bytes = from.n * groups * scalar_bytes(w->plan->dtype);
    for (uint32_t row = 0; row < from.n; row++) {
        quantize_row(w, item, row);
        affine_pack_row(w->codes, from.k, o->bits, w->words);
        TRY(put_bytes(w, w->words, (size_t)from.k * o->bits / 8));
        for (size_t g = 0; g < groups; g++) {
            scalar_store(w->plan->dtype, scales, row * groups + g, w->scales[g]);
            scalar_store(w->plan->dtype, biases, row * groups + g, w->biases[g]);
        }
        TRY(step(w));
    }
    TRY(put_bytes(w, scales, bytes));
    return put_bytes(w, biases, bytes);
}

static kvasir_status write_quantized(struct writer *w, const struct item *item) {
    struct weight from = checkpoint_weight(item->from);
    size_t bytes =
        (size_t)from.n * (from.k / w->plan->options->group_size) * scalar_bytes(w->plan->dtype);
    uint8_t *scales = mem_alloc(bytes), *biases = mem_alloc(bytes);
    kvasir_status status = scales && biases
                               ? write_codes(w, item, scales, biases)
                               : fail(w->err, KVASIR_ERR_MEMORY, "convert: out of memory");
    mem_free(scales);
    mem_free(biases);
    return status;
}

static kvasir_status write_plain(struct writer *w, const struct item *item) {
    struct weight from = checkpoint_weight(item->from);
    for (uint32_t row = 0; row < from.n; row++) {
        const float *values = read_row(w, item, row);
        for (uint32_t i = 0; i < from.k; i++) {
            uint8_t value[4];
            scalar_store(w->plan->dtype, value, 0, values[i]);
            TRY(put_bytes(w, value, scalar_bytes(w->plan->dtype)));
        }
        TRY(step(w));
    }
    return KVASIR_OK;
}

static kvasir_status write_items(struct writer *w) {
    for (size_t i = 0; i < w->plan->n_items; i++) {
        const struct item *item = &w->plan->items[i];
        TRY(item->quantized ? write_quantized(w, item) : write_plain(w, item));
    }
    return flush(w);
}

static kvasir_status write_data(const struct plan *p, struct file_writer *out, kvasir_error *err) {
    size_t widest = 1;
    for (size_t i = 0; i < p->n_items; i++) {
        size_t k = checkpoint_weight(p->items[i].from).k;
        widest = k > widest ? k : widest;
    }
    struct writer w = {.plan = p,
                       .out = out,
                       .buffer = mem_alloc(BUFFER_BYTES),
                       .row = mem_calloc(widest, sizeof(float)),
                       .rounded = mem_calloc(widest, sizeof(float)),
                       .codes = mem_alloc(widest),
                       .words = mem_calloc(widest, sizeof(uint32_t)),
                       .scales = mem_calloc(widest, sizeof(float)),
                       .biases = mem_calloc(widest, sizeof(float)),
                       .err = err};
    void *all[] = {w.buffer, w.row, w.rounded, w.codes, w.words, w.scales, w.biases};
    bool good = true;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        good = good && all[i];
    kvasir_status status =
        good ? write_items(&w) : fail(err, KVASIR_ERR_MEMORY, "convert: out of memory");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static kvasir_status write_tensors(const struct plan *p, const char *folder, kvasir_error *err) {
    char path[WRITE_PATH_MAX];
    struct file_writer out;
    if ((size_t)snprintf(path, sizeof path, "%s/model.safetensors", folder) >= sizeof path)
        return fail(err, KVASIR_ERR_ARGUMENT, "%.200s: the path is too long", folder);
    TRY(file_begin(&out, path, err));
    kvasir_status status;
    TRY_GOTO(write_header(p, &out, err));
    TRY_GOTO(write_data(p, &out, err));
    TRY_GOTO(file_end(&out, err));
done:
    file_abandon(&out);
    return status;
}

static kvasir_status settle_options(const kvasir_convert_options *o, enum scalar_type *dtype,
                                    kvasir_error *err) {
    static const struct {
        const char *name;
        enum scalar_type type;
    } dtypes[] = {{"bf16", SCALAR_BF16}, {"f16", SCALAR_F16}, {"f32", SCALAR_F32}};
    if (o->bits && (o->bits > 8 || o->bits == 7 || o->bits < 2))
        return fail_field(err, KVASIR_ERR_ARGUMENT, "convert.bits", "%u is not 2, 3, 4, 5, 6 or 8",
                          o->bits);
    if (o->bits && o->group_size != 32 && o->group_size != 64 && o->group_size != 128)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "convert.group_size", "%u is not 32, 64 or 128",
                          o->group_size);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(o->dtype, dtypes[i].name) == 0) {
            *dtype = dtypes[i].type;
            return KVASIR_OK;
        }
    return fail_field(err, KVASIR_ERR_ARGUMENT, "convert.dtype",
                      "\"%.20s\" is not bf16, f16 or f32", o->dtype);
}

/* Quantized matrices first. */
static void order_items(struct plan *p, struct item *sorted) {
    size_t n = 0;
    for (int plain = 0; plain < 2; plain++)
        for (size_t i = 0; i < p->n_items; i++)
            if (p->items[i].quantized == !plain)
                sorted[n++] = p->items[i];
    ASSERT(n == p->n_items);
    memcpy(p->items, sorted, n * sizeof *sorted);
}

static kvasir_status convert_into(const char *in, const char *folder, const struct model *m,
                                  struct plan *p, kvasir_error *err) {
    TRY(make_plan(p, m, err));
    struct item *sorted = mem_calloc(p->n_items + 1, sizeof *sorted);
    if (!sorted)
        return fail(err, KVASIR_ERR_MEMORY, "convert: out of memory");
    order_items(p, sorted);
    mem_free(sorted);
    TRY(convert_files(in, folder, m, p->options, st_dtype_name(file_dtype(p->dtype)), err));
    return write_tensors(p, folder, err);
}

kvasir_status model_convert(const char *in, const char *out, const kvasir_convert_options *o,
                            const kvasir_model_options *how, kvasir_error *err) {
    struct model *m = NULL;
    struct folder_writer folder = {{0}, {0}};
    struct plan p = {.options = o};
    TRY(settle_options(o, &p.dtype, err));
    kvasir_status status;
    TRY_GOTO(model_open_as(in, how, &m, err));
    p.checkpoint = model_checkpoint(m);
    TRY_GOTO(folder_begin(&folder, out, err));
    TRY_GOTO(convert_into(in, folder.tmp, m, &p, err));
    TRY_GOTO(checkpoint_verify(p.checkpoint, err));
    TRY_GOTO(folder_commit(&folder, err));
done:
    folder_abandon(&folder);
    mem_free(p.items);
    model_close(m);
    return status;
}
