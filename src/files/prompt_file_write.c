/* SPDX-License-Identifier: Apache-2.0 */
/* From a description to a file. First everything is laid out as a list of blocks, so that header
 * and list agree by construction. Then the data are written in the list's order.
 *
 *     entry  --put_entry-->  blocks [tensor, rows of it]   --> data
 *                            header {name: dtype, shape, offsets}, metadata  --> JSON, keys sorted
 *
 * The header is compact JSON as nlohmann's library, and so mlx, writes it, padded with blanks to a
 * multiple of 8 bytes.
 */
#include <stdio.h>
#include <string.h>

#include "files/prompt_file_internal.h"
#include "util/json.h"

/* Bytes that the caller is asked for at a time; a longer row is asked for alone. */
enum { CHUNK_BYTES = 1 << 16 };

/* Data of a tensor: `kept` rows of each of its blocks. */
struct block {
    const struct prompt_tensor *t; /* the description's; NULL: own */
    uint64_t count, rows, kept;
    size_t row_bytes;
    int32_t *own; /* data of a Python value */
};

struct writer {
    const char *path;
    enum prompt_form form;
    struct st_header header;
    json_t *metadata;
    struct block *blocks;
    size_t n, cap;
    uint32_t n_values; /* named in 2.N */
    kvasir_error *err;
};

static kvasir_status no_memory(struct writer *w) {
    return fail(w->err, KVASIR_ERR_MEMORY, "%s: out of memory", w->path);
}

/* ---- metadata -------------------------------------------------------------------------------- */

static kvasir_status put_meta(struct writer *w, const char *key, const char *value) {
    json_t *text = json_string(value); /* NULL if it is not UTF-8 */
    if (!text || json_object_set_new(w->metadata, key, text) != 0)
        return fail(w->err, KVASIR_ERR_ARGUMENT,
                    "%s: metadata key %.100s: not UTF-8, or out of memory", w->path, key);
    return KVASIR_OK;
}

static kvasir_status put_metas(struct writer *w, const char *key, const uint32_t *values,
                               unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        char name[PROMPT_NAME_MAX], text[16];
        snprintf(text, sizeof text, "%u", values[i]);
        TRY(put_meta(w, prompt_name(name, key, "%u", i), text));
    }
    return KVASIR_OK;
}

static kvasir_status put_user_metadata(struct writer *w, const struct prompt_file *f) {
    for (uint32_t i = 0; i < f->n_metadata; i++) {
        const struct prompt_pair *pair = &f->metadata[i];
        struct text_buf key = {0};
        bool good = text_printf(&key, "%d.%s", w->form == PROMPT_FORM_LEGACY, pair->key);
        kvasir_status status = KVASIR_OK;
        if (!good)
            status = no_memory(w);
        else if (!pair->key[0] || json_object_get(w->metadata, key.data))
            status = fail(w->err, KVASIR_ERR_ARGUMENT,
                          "%s: metadata key %.100s is empty or a duplicate", w->path, key.data);
        else
            status = put_meta(w, key.data, pair->value);
        text_free(&key);
        TRY(status);
    }
    return KVASIR_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static void put_header(struct writer *w, const char *name, enum st_dtype dtype,
                       const uint32_t *dims, uint32_t n_dims) {
    uint64_t wide[ST_DIMS_MAX];
    ASSERT(n_dims <= ST_DIMS_MAX); /* prompt_file_check */
    for (uint32_t i = 0; i < n_dims; i++)
        wide[i] = dims[i];
    st_add(&w->header, name, dtype, wide, n_dims);
}

/* Takes own, also on failure. */
static kvasir_status push_block_take(struct writer *w, struct block b) {
    if (!ARRAY_GROW(w->blocks, w->cap, w->n + 1)) {
        mem_free(b.own);
        return no_memory(w);
    }
    w->blocks[w->n++] = b;
    return KVASIR_OK;
}

/* [1, heads, rows, width], cut to `kept` rows. */
static kvasir_status put_part(struct writer *w, const char *name, const struct prompt_tensor *t,
                              uint32_t kept) {
    const uint32_t dims[] = {1, t->dims[1], kept, t->dims[3]};
    put_header(w, name, t->dtype, dims, 4);
    return push_block_take(w, (struct block){.t = t,
                                             .count = t->dims[1],
                                             .rows = t->dims[2],
                                             .kept = kept,
                                             .row_bytes = t->dims[3] * st_dtype_bytes(t->dtype)});
}

static kvasir_status put_state(struct writer *w, const char *name, const struct prompt_tensor *t) {
    put_header(w, name, t->dtype, t->dims, t->n_dims);
    struct block b = {.t = t, .count = 1};
    b.row_bytes = t->dims[t->n_dims - 1] * st_dtype_bytes(t->dtype);
    b.rows = b.kept = b.row_bytes ? t->bytes / b.row_bytes : 0;
    if (t->rows && b.rows > UINT32_MAX)
        return fail(w->err, KVASIR_ERR_ARGUMENT, "%s: tensor %s has too many rows", w->path, name);
    return push_block_take(w, b);
}

/* A tensor that represents a Python value: n numbers of shape dims. */
static kvasir_status put_value(struct writer *w, const char *name, const char *kind,
                               enum st_dtype dtype, const int32_t *values, uint32_t n,
                               uint32_t n_dims) {
    char key[PROMPT_NAME_MAX];
    put_header(w, name, dtype, &n, n_dims);
    w->n_values++;
    TRY(put_meta(w, prompt_name(key, "2", "%u.0", w->n_values), name));
    TRY(put_meta(w, prompt_name(key, "2", "%u.1", w->n_values), kind));
    int32_t *own = mem_calloc(n + 1, sizeof *own);
    if (!own)
        return no_memory(w);
    if (n)
        memcpy(own, values, n * sizeof *own);
    return push_block_take(
        w, (struct block){.own = own, .count = 1, .rows = 1, .kept = 1, .row_bytes = n * 4});
}

static kvasir_status put_scalar(struct writer *w, const struct prompt_scope *s, unsigned number,
                                uint32_t value) {
    char name[PROMPT_NAME_MAX];
    int32_t x = (int32_t)value;
    return put_value(w, prompt_name(name, s->tensor, "%u", number), "scalar", ST_I32, &x, 1, 0);
}

static kvasir_status put_none(struct writer *w, const char *name) {
    return put_value(w, name, "none", ST_F32, NULL, 0, 1);
}

static kvasir_status put_string(struct writer *w, const char *name, const char *text) {
    int32_t codes[PROMPT_NAME_MAX];
    uint32_t n = 0;
    for (; text[n]; n++)
        codes[n] = text[n];
    return put_value(w, name, "string", ST_I32, codes, n, 1);
}

/* ---- K and V --------------------------------------------------------------------------------- */

static kvasir_status put_sides(struct writer *w, const struct prompt_scope *s,
                               enum prompt_class class, const struct prompt_kv *kv) {
    bool cut = w->form == PROMPT_FORM_LEGACY && kv->offset < kv->rows;
    int parts = prompt_class_is_affine(class) ? PROMPT_PARTS : 1;
    char name[PROMPT_NAME_MAX];
    for (int i = 0; i < 2; i++) {
        if (!kv->sides[i].parts[0].present) {
            if (w->form == PROMPT_FORM_032)
                TRY(put_none(w, prompt_name(name, s->tensor, "%d", i)));
            continue;
        }
        for (int j = 0; j < parts; j++)
            TRY(put_part(w, prompt_part_name(name, s, class, i, j), &kv->sides[i].parts[j],
                         cut ? kv->offset : kv->rows - kv->exact));
        if (prompt_class_is_started(class))
            TRY(put_part(w, prompt_start_name(name, s, i), &kv->sides[i].start, kv->exact));
    }
    return KVASIR_OK;
}

static kvasir_status new_numbers(struct writer *w, const struct prompt_scope *s,
                                 enum prompt_class class, const struct prompt_kv *kv) {
    TRY(put_scalar(w, s, 2, kv->offset));
    if (class == PROMPT_QUANTIZED) {
        TRY(put_scalar(w, s, 3, kv->sides[0].format.group));
        return put_scalar(w, s, 4, kv->sides[0].format.bits);
    }
    if (class == PROMPT_KV)
        return KVASIR_OK;
    TRY(put_scalar(w, s, 3, kv->keep));
    TRY(put_scalar(w, s, 4, kv->max_size));
    return put_scalar(w, s, 5, kv->idx);
}

static kvasir_status old_numbers(struct writer *w, const struct prompt_scope *s,
                                 enum prompt_class class, const struct prompt_kv *kv) {
    struct kv_format k = kv->sides[0].format, v = kv->sides[1].format;
    const uint32_t ring[] = {kv->keep, kv->max_size, kv->offset, kv->idx,  k.group,
                             k.bits,   v.group,      v.bits,     kv->start};
    const uint32_t plain[] = {kv->offset, k.group, k.bits, v.group, v.bits, kv->start};
    const unsigned started = prompt_class_is_started(class);
    if (class == PROMPT_KV)
        return put_meta(w, s->meta, "");
    if (prompt_class_is_ring(class))
        return put_metas(w, s->meta, ring, class == PROMPT_ROTATING ? 4 : 8 + started);
    if (started)
        return put_metas(w, s->meta, plain, 6);
    bool same = k.bits == v.bits && k.group == v.group; /* what stock mlx-lm can load */
    return put_metas(w, s->meta, plain, same ? 3 : 5);
}

/* ---- entries --------------------------------------------------------------------------------- */

static kvasir_status put_maybe(struct writer *w, const char *name, const struct prompt_tensor *t) {
    static const struct prompt_tensor empty = {.present = true, .n_dims = 1};
    if (t->present)
        return put_state(w, name, t);
    return w->form == PROMPT_FORM_032 ? put_none(w, name) : put_state(w, name, &empty);
}

/* Older files have only the states, unless padding must be kept. */
static kvasir_status put_arrays(struct writer *w, const struct prompt_scope *s,
                                const struct prompt_arrays *a) {
    char name[PROMPT_NAME_MAX];
    bool flat = w->form == PROMPT_FORM_LEGACY && !a->left_padding.present && !a->lengths.present;
    for (uint32_t i = 0; i < a->n; i++)
        TRY(put_maybe(w, prompt_name(name, s->tensor, flat ? "%u" : "0.%u", i), &a->states[i]));
    if (!flat) {
        TRY(put_maybe(w, prompt_name(name, s->tensor, "1"), &a->left_padding));
        TRY(put_maybe(w, prompt_name(name, s->tensor, "2"), &a->lengths));
    }
    return w->form == PROMPT_FORM_LEGACY ? put_meta(w, s->meta, "") : KVASIR_OK;
}

static kvasir_status put_entry(struct writer *w, const struct prompt_scope *s,
                               const struct prompt_entry *e);

static kvasir_status put_list(struct writer *w, const struct prompt_scope *s,
                              const struct prompt_list *list) {
    for (uint32_t i = 0; i < list->n; i++) {
        char name[PROMPT_NAME_MAX];
        struct prompt_scope child = prompt_scope_child(s, i);
        const char *class = prompt_class_name(list->children[i].class);
        TRY(put_entry(w, &child, &list->children[i]));
        if (w->form == PROMPT_FORM_032)
            TRY(put_string(w, prompt_name(name, s->tensor, "%u.1", i), class));
        else
            TRY(put_meta(w, prompt_name(name, s->meta, "0.%u", i), class));
    }
    return KVASIR_OK;
}

static kvasir_status put_entry(struct writer *w, const struct prompt_scope *s,
                               const struct prompt_entry *e) {
    if (e->class == PROMPT_ARRAYS)
        return put_arrays(w, s, &e->arrays);
    if (e->class == PROMPT_LIST)
        return put_list(w, s, &e->list);
    TRY(put_sides(w, s, e->class, &e->kv));
    return w->form == PROMPT_FORM_032 ? new_numbers(w, s, e->class, &e->kv)
                                      : old_numbers(w, s, e->class, &e->kv);
}

static kvasir_status lay_out(struct writer *w, const struct prompt_file *f) {
    bool legacy = w->form == PROMPT_FORM_LEGACY;
    char key[PROMPT_NAME_MAX];
    w->metadata = json_object();
    st_add_metadata(&w->header, w->metadata);
    TRY(put_user_metadata(w, f));
    if (!legacy)
        TRY(put_meta(w, "2.0", ""));
    for (uint32_t i = 0; i < f->n_entries; i++) {
        struct prompt_scope s = prompt_scope_layer(w->form, i);
        TRY(put_entry(w, &s, &f->entries[i]));
        TRY(put_meta(w, prompt_name(key, legacy ? "2" : "1", "%u", i),
                     prompt_class_name(f->entries[i].class)));
    }
    return KVASIR_OK;
}

/* ---- to the disk ----------------------------------------------------------------------------- */

static kvasir_status write_header(struct writer *w, struct file_writer *out) {
    struct text_buf text = {0};
    kvasir_status status = st_finish(&w->header, JSON_SORT_KEYS, &text)
                               ? file_write(out, text.data, text.len, w->err)
                               : no_memory(w);
    text_free(&text);
    return status;
}

static kvasir_status make_rows(struct writer *w, const struct block *b, uint64_t block,
                               uint64_t row, uint64_t n, void *out) {
    kvasir_status status =
        b->t->rows(b->t->ctx, (uint32_t)block, (uint32_t)row, (uint32_t)n, out, w->err);
    if (status != KVASIR_OK)
        fail_prefix(w->err, w->path);
    return status;
}

/* Writes what the caller produces, a chunk at a time. */
static kvasir_status write_made(struct writer *w, struct file_writer *out, const struct block *b) {
    ASSERT(b->row_bytes > 0 && b->kept <= b->rows);
    uint64_t step = b->row_bytes < CHUNK_BYTES ? CHUNK_BYTES / b->row_bytes : 1;
    void *chunk = mem_alloc(step * b->row_bytes);
    if (!chunk)
        return no_memory(w);
    kvasir_status status = KVASIR_OK;
    for (uint64_t i = 0; i < b->count; i++)
        for (uint64_t row = 0, n; row < b->kept; row += n) {
            n = step < b->kept - row ? step : b->kept - row;
            TRY_GOTO(make_rows(w, b, i, row, n, chunk));
            TRY_GOTO(file_write(out, chunk, n * b->row_bytes, w->err));
        }
done:
    mem_free(chunk);
    return status;
}

static kvasir_status write_block(struct writer *w, struct file_writer *out, const struct block *b) {
    if (b->row_bytes == 0 || b->kept == 0)
        return KVASIR_OK;
    if (b->own)
        return file_write(out, b->own, b->row_bytes, w->err);
    if (!b->t->data)
        return write_made(w, out, b);
    if (b->kept == b->rows)
        return file_write(out, b->t->data, b->t->bytes, w->err);
    for (uint64_t i = 0; i < b->count; i++)
        TRY(file_write(out, b->t->data + i * b->rows * b->row_bytes, b->kept * b->row_bytes,
                       w->err));
    return KVASIR_OK;
}

static void writer_deinit(struct writer *w) {
    for (size_t i = 0; i < w->n; i++)
        mem_free(w->blocks[i].own);
    mem_free(w->blocks);
    json_decref(w->metadata);
    st_header_free(&w->header);
}

/* The rules of a file, but here the caller is at fault. */
static kvasir_status check(const struct prompt_file *f, const char *path, enum prompt_form form,
                           kvasir_error *err) {
    kvasir_error why;
    if (prompt_file_check(f, form, &why) == KVASIR_OK)
        return KVASIR_OK;
    return fail(err, KVASIR_ERR_ARGUMENT, "%s: cannot be written: %s", path, why.text);
}

kvasir_status prompt_file_write(const char *path, const struct prompt_file *f, kvasir_error *err) {
    struct writer w = {.path = path, .form = prompt_file_form(f), .err = err};
    struct file_replacer out = {.out.fd = -1};
    kvasir_status status;
    TRY_GOTO(check(f, path, w.form, err));
    TRY_GOTO(lay_out(&w, f));
    TRY_GOTO(file_replace_begin(&out, path, true, err));
    TRY_GOTO(write_header(&w, &out.out));
    for (size_t i = 0; i < w.n; i++)
        TRY_GOTO(write_block(&w, &out.out, &w.blocks[i]));
    TRY_GOTO(file_replace_commit(&out, err));
done:
    file_replace_abandon(&out);
    writer_deinit(&w);
    return status;
}
