/* SPDX-License-Identifier: Apache-2.0 */
/* What readers and writers of prompt-cache files agree on: names, where a ring's rows are, rows as
 * numbers, and the check that a description keeps the rules of prompt_file.h (FILE-1).
 *
 * A ring (mlx-lm's RotatingKVCache) has three states, told apart by offset and rows:
 *
 *   offset <= rows   nothing was dropped: row = position, idx = offset
 *   rows = max_size  wrapped: [0, keep) first tokens, [keep, idx) newest, [idx, rows) older
 *   rows > max_size  a chunk longer than one token came last: in order, idx = rows
 *
 * idx = keep or idx = rows is the second state with its rows in order. Fewer rows than max_size
 * with a larger offset cannot occur. The rows of an exact start are in order.
 */
#include <stdio.h>
#include <string.h>

#include "files/prompt_file_internal.h"

/* ---- names ----------------------------------------------------------------------------------- */

const char *prompt_class_name(enum prompt_class class) {
    static const char *const names[] = {
        [PROMPT_KV] = "KVCache",
        [PROMPT_QUANTIZED] = "QuantizedKVCache",
        [PROMPT_ROTATING] = "RotatingKVCache",
        [PROMPT_QUANTIZED_ROTATING] = "QuantizedRotatingKVCache",
        [PROMPT_STARTED] = "ExactStartQuantizedKVCache",
        [PROMPT_STARTED_ROTATING] = "ExactStartQuantizedRotatingKVCache",
        [PROMPT_ARRAYS] = "ArraysCache",
        [PROMPT_LIST] = "CacheList",
    };
    return names[class];
}

bool prompt_dtype_known(enum st_dtype dtype) {
    return dtype <= ST_BF16 || dtype == ST_U32 || dtype == ST_I32;
}

struct prompt_tensor prompt_tensor_of(enum st_dtype dtype, uint32_t n_dims, const uint32_t *dims) {
    struct prompt_tensor t = {.present = true, .dtype = dtype, .n_dims = n_dims};
    ASSERT(n_dims <= ST_DIMS_MAX && prompt_dtype_known(dtype));
    t.bytes = st_dtype_bytes(dtype);
    for (uint32_t i = 0; i < n_dims; i++) {
        t.dims[i] = dims[i];
        t.bytes *= dims[i];
    }
    return t;
}

const char *prompt_name(char name[PROMPT_NAME_MAX], const char *prefix, const char *suffix, ...) {
    va_list args;
    size_t len = (size_t)snprintf(name, PROMPT_NAME_MAX, "%s.", prefix);
    va_start(args, suffix);
    vsnprintf(name + len, PROMPT_NAME_MAX - len, suffix, args);
    va_end(args);
    return name;
}

struct prompt_scope prompt_scope_layer(enum prompt_form form, uint32_t layer) {
    struct prompt_scope s = {.form = form};
    snprintf(s.tensor, sizeof s.tensor, "%u", layer);
    snprintf(s.meta, sizeof s.meta, "0.%u", layer);
    return s;
}

struct prompt_scope prompt_scope_child(const struct prompt_scope *list, uint32_t child) {
    struct prompt_scope s = {.form = list->form, .depth = list->depth + 1};
    prompt_name(s.tensor, list->tensor, s.form == PROMPT_FORM_032 ? "%u.0" : "%u", child);
    prompt_name(s.meta, list->meta, "1.%u", child);
    return s;
}

const char *prompt_part_name(char name[PROMPT_NAME_MAX], const struct prompt_scope *s,
                             enum prompt_class class, int side, int part) {
    return prompt_class_is_affine(class) ? prompt_name(name, s->tensor, "%d.%d", side, part)
                                         : prompt_name(name, s->tensor, "%d", side);
}

const char *prompt_start_name(char name[PROMPT_NAME_MAX], const struct prompt_scope *s, int side) {
    return prompt_name(name, s->tensor, "%d", 2 + side);
}

/* ---- rings ----------------------------------------------------------------------------------- */

int64_t prompt_entry_row(const struct prompt_kv *kv, uint32_t position) {
    if (position >= kv->offset)
        return -1;
    if (kv->offset <= kv->rows || position < kv->keep)
        return position;
    uint32_t newest = kv->idx - kv->keep, back = kv->offset - position;
    if (back <= newest)
        return kv->idx - back;
    return back <= kv->rows - kv->keep ? (int64_t)kv->rows - (back - newest) : -1;
}

uint32_t prompt_start_rows(const struct prompt_kv *kv) {
    if (kv->offset <= kv->rows || kv->start <= kv->keep)
        return min_u32(kv->start, kv->rows);
    const uint32_t newest = kv->rows - kv->keep, first = kv->offset - newest;
    return kv->keep + (kv->start > first ? min_u32(kv->start - first, newest) : 0);
}

/* ---- rows as numbers ------------------------------------------------------------------------- */

static const uint8_t *row_at(const struct prompt_tensor *t, uint32_t head, uint32_t row) {
    size_t bytes = t->dims[3] * st_dtype_bytes(t->dtype);
    ASSERT(t->n_dims == 4 && head < t->dims[1] && row < t->dims[2]);
    return t->data + ((size_t)head * t->dims[2] + row) * bytes;
}

void prompt_side_get_row(const struct prompt_side *side, uint32_t head, uint32_t row,
                         uint8_t *codes, float *scales, float *biases) {
    enum { RUN = 32 }; /* codes that fill whole words */
    struct kv_format f = side->format;
    uint32_t words[8];
    ASSERT(f.bits <= 8 && side->dim % RUN == 0 && prompt_group_known(f.group)); /* FILE-1 */
    const uint8_t *packed = row_at(&side->parts[0], head, row);
    for (uint32_t i = 0; i < side->dim; i += RUN) {
        memcpy(words, packed, f.bits * sizeof *words); /* mapped anywhere */
        affine_unpack_row(words, RUN, f.bits, codes + i);
        packed += f.bits * sizeof *words;
    }
    const uint8_t *s = row_at(&side->parts[1], head, row), *b = row_at(&side->parts[2], head, row);
    for (uint32_t i = 0; i < side->dim / f.group; i++) {
        scales[i] = scalar_load(f.scalar, s, i);
        biases[i] = scalar_load(f.scalar, b, i);
    }
}

void prompt_side_get_values(const struct prompt_side *side, uint32_t head, uint32_t row, float *x) {
    const uint8_t *values = row_at(&side->parts[0], head, row);
    for (uint32_t i = 0; i < side->dim; i++)
        x[i] = scalar_load(side->format.scalar, values, i);
}

void prompt_start_get_values(const struct prompt_side *side, uint32_t head, uint32_t row,
                             float *x) {
    const uint8_t *values = row_at(&side->start, head, row);
    for (uint32_t i = 0; i < side->dim; i++)
        x[i] = scalar_load(SCALAR_F16, values, i);
}

/* ---- formats from tensors -------------------------------------------------------------------- */

bool prompt_bits_known(uint32_t bits) {
    return bits == 2 || bits == 3 || bits == 4 || bits == 5 || bits == 6 || bits == 8;
}
/* The most likely first: mlx-lm's default. */
static const uint8_t group_sizes[] = {64, 32, 128};
enum { GROUP_SIZES = sizeof group_sizes };

bool prompt_group_known(uint32_t group) {
    return group == 32 || group == 64 || group == 128;
}

static bool dtype_scalar(enum st_dtype dtype, uint8_t *scalar) {
    *scalar = dtype == ST_F32 ? SCALAR_F32 : dtype == ST_F16 ? SCALAR_F16 : SCALAR_BF16;
    return dtype <= ST_BF16;
}

/* The bits per code that the packed words mean with this head size, or 0. */
static uint8_t bits_of(const struct prompt_side *side, uint64_t dim) {
    uint64_t stream = (uint64_t)side->parts[0].dims[3] * 32;
    bool whole = dim != 0 && stream % dim == 0 && stream / dim <= 8;
    return (uint8_t)(whole && prompt_bits_known((uint32_t)(stream / dim)) ? stream / dim : 0);
}

static bool set_group(struct prompt_side *side, uint8_t group) {
    uint64_t dim = (uint64_t)side->parts[1].dims[3] * group;
    uint8_t bits = bits_of(side, dim);
    if (!bits || dim > PROMPT_COUNT_MAX)
        return false;
    side->format.bits = bits;
    side->format.group = group;
    side->dim = (uint32_t)dim;
    return true;
}

/* The number of words and groups in a row determines only bits times group: 8 bits of group 32 look
 * like 4 bits of group 64. Heads of K and V mostly have the same size, and groups are mostly 64. */
static void guess_formats(struct prompt_kv *kv) {
    struct prompt_side *k = &kv->sides[0], *v = &kv->sides[1];
    kv->guessed = true;
    for (int i = 0; i < GROUP_SIZES; i++)
        for (int j = 0; j < GROUP_SIZES; j++)
            if (set_group(k, group_sizes[i]) && set_group(v, group_sizes[j]) && k->dim == v->dim)
                return;
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < GROUP_SIZES && !set_group(&kv->sides[side], group_sizes[i]); i++)
            ;
}

void prompt_kv_derive(struct prompt_kv *kv, enum prompt_class class) {
    const struct prompt_tensor *first = &kv->sides[0].parts[0];
    bool affine = prompt_class_is_affine(class);
    if (!first->present || first->n_dims != 4)
        return;
    kv->heads = first->dims[1];
    kv->exact = kv->sides[0].start.n_dims == 4 ? kv->sides[0].start.dims[2] : 0;
    kv->rows = kv->exact + first->dims[2];
    if (affine && !kv->sides[0].format.bits)
        guess_formats(kv);
    for (int i = 0; i < 2; i++) {
        struct prompt_side *side = &kv->sides[i];
        dtype_scalar(side->parts[affine].dtype, &side->format.scalar);
        if (affine) {
            side->dim = side->parts[1].dims[3] * side->format.group;
        } else {
            side->format.bits = side->format.scalar == SCALAR_F32 ? 32 : 16;
            side->dim = side->parts[0].dims[3];
        }
    }
}

kvasir_status prompt_entry_settle(struct prompt_kv *kv, uint32_t key_dim, uint32_t value_dim,
                                  kvasir_error *err) {
    const uint32_t dims[] = {key_dim, value_dim};
    for (int i = 0; i < 2; i++) {
        struct prompt_side *side = &kv->sides[i];
        if (!side->parts[0].present)
            continue;
        for (int j = 0; j < GROUP_SIZES && kv->guessed && side->dim != dims[i]; j++)
            set_group(side, group_sizes[j]);
        if (side->dim != dims[i])
            return fail(err, KVASIR_ERR_FORMAT, "%s of %u values a head, the model has %u",
                        i ? "V" : "K", side->dim, dims[i]);
    }
    kv->guessed = false;
    return KVASIR_OK;
}

/* ---- the check of K and V -------------------------------------------------------------------- */

static const char *shape_text(const struct prompt_tensor *t, char text[PROMPT_NAME_MAX]) {
    size_t len = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < t->n_dims && i < ST_DIMS_MAX; i++) /* of 10 digits */
        len +=
            (size_t)snprintf(text + len, PROMPT_NAME_MAX - len, "%s%u", i ? ", " : "", t->dims[i]);
    return text;
}

/* Checks a caller's tensor: dims and bytes agree, and there is data to write. */
static kvasir_status check_tensor(const char *name, const struct prompt_tensor *t,
                                  kvasir_error *err) {
    size_t bytes = t->n_dims <= ST_DIMS_MAX && prompt_dtype_known(t->dtype)
                       ? st_dtype_bytes(t->dtype)
                       : SIZE_MAX;
    for (uint32_t i = 0; i < t->n_dims && bytes != SIZE_MAX; i++)
        if (t->dims[i] > PROMPT_COUNT_MAX || !mul_size(bytes, t->dims[i], &bytes))
            bytes = SIZE_MAX;
    if (bytes == SIZE_MAX || bytes != t->bytes || (bytes && !t->data && !t->rows))
        return fail(err, KVASIR_ERR_FORMAT, "tensor %s: its shape, its size or its data are wrong",
                    name);
    return KVASIR_OK;
}

/* dims: heads, rows, width */
static kvasir_status check_part(const char *name, const struct prompt_tensor *t,
                                enum st_dtype dtype, const uint64_t dims[3], kvasir_error *err) {
    char text[PROMPT_NAME_MAX];
    if (!t->present)
        return fail(err, KVASIR_ERR_FORMAT, "tensor %s is missing", name);
    if (t->dtype != dtype)
        return fail(err, KVASIR_ERR_FORMAT, "tensor %s has dtype %s, must be %s", name,
                    st_dtype_name(t->dtype), st_dtype_name(dtype));
    if (t->n_dims != 4 || t->dims[0] != 1 || t->dims[1] != dims[0] || t->dims[2] != dims[1] ||
        t->dims[3] != dims[2])
        return fail(err, KVASIR_ERR_FORMAT,
                    "tensor %s has shape [%s], the layer's other tensors and numbers ask for [1, "
                    "%llu, %llu, %llu]",
                    name, shape_text(t, text), (unsigned long long)dims[0],
                    (unsigned long long)dims[1], (unsigned long long)dims[2]);
    return check_tensor(name, t, err);
}

static enum st_dtype scalar_dtype(uint8_t scalar) {
    return scalar == SCALAR_F32 ? ST_F32 : scalar == SCALAR_F16 ? ST_F16 : ST_BF16;
}

static kvasir_status check_affine(const struct prompt_kv *kv, const struct prompt_scope *s,
                                  enum prompt_class class, int i, kvasir_error *err) {
    const struct prompt_side *side = &kv->sides[i];
    struct kv_format f = side->format;
    char name[PROMPT_NAME_MAX];
    if (!prompt_bits_known(f.bits) || !prompt_group_known(f.group))
        return fail(err, KVASIR_ERR_FORMAT,
                    "tensor %s: mx.quantize has no format of %u bits in groups of %u",
                    prompt_part_name(name, s, class, i, 0), f.bits, f.group);
    if (!side->parts[0].present)
        return KVASIR_OK;
    if (side->dim == 0 || side->dim % f.group != 0)
        return fail(err, KVASIR_ERR_FORMAT,
                    "tensor %s: rows of %u values are not a multiple of the group size %u",
                    prompt_part_name(name, s, class, i, 1), side->dim, f.group);
    const uint64_t rows = kv->rows - kv->exact, scales[] = {kv->heads, rows, side->dim / f.group},
                   words[] = {kv->heads, rows, (uint64_t)side->dim * f.bits / 32},
                   start[] = {kv->heads, kv->exact, side->dim};
    enum st_dtype scalar = scalar_dtype(f.scalar);
    TRY(check_part(prompt_part_name(name, s, class, i, 1), &side->parts[1], scalar, scales, err));
    TRY(check_part(prompt_part_name(name, s, class, i, 2), &side->parts[2], scalar, scales, err));
    TRY(check_part(prompt_part_name(name, s, class, i, 0), &side->parts[0], ST_U32, words, err));
    return prompt_class_is_started(class)
               ? check_part(prompt_start_name(name, s, i), &side->start, ST_F16, start, err)
               : KVASIR_OK;
}

static kvasir_status check_side(const struct prompt_kv *kv, const struct prompt_scope *s,
                                enum prompt_class class, int i, kvasir_error *err) {
    const struct prompt_side *side = &kv->sides[i];
    char name[PROMPT_NAME_MAX];
    if (prompt_class_is_affine(class))
        return check_affine(kv, s, class, i, err);
    prompt_part_name(name, s, class, i, 0);
    if (side->format.group || side->parts[1].present || side->parts[2].present)
        return fail(err, KVASIR_ERR_FORMAT, "tensor %s: a %s holds no quantized values", name,
                    prompt_class_name(class));
    if (!side->parts[0].present)
        return KVASIR_OK;
    return check_part(name, &side->parts[0], scalar_dtype(side->format.scalar),
                      (const uint64_t[]){kv->heads, kv->rows, side->dim}, err);
}

static kvasir_status check_ring(const struct prompt_kv *kv, const char *at, kvasir_error *err) {
    if (kv->keep >= kv->max_size)
        return fail(err, KVASIR_ERR_FORMAT, "layer %s: keep %u must be below max_size %u", at,
                    kv->keep, kv->max_size);
    if (kv->offset <= kv->rows && kv->idx != kv->offset)
        return fail(err, KVASIR_ERR_FORMAT,
                    "layer %s: idx %u must be the offset %u where all tokens have a row", at,
                    kv->idx, kv->offset);
    if (kv->offset <= kv->rows)
        return KVASIR_OK;
    if (kv->rows < kv->max_size)
        return fail(err, KVASIR_ERR_FORMAT,
                    "layer %s: offset %u in %u rows, but the ring has room for %u", at, kv->offset,
                    kv->rows, kv->max_size);
    uint32_t least = kv->rows > kv->max_size ? kv->rows : kv->keep;
    if (kv->idx < least || kv->idx > kv->rows)
        return fail(err, KVASIR_ERR_FORMAT, "layer %s: idx %u must be from %u to %u", at, kv->idx,
                    least, kv->rows);
    return KVASIR_OK;
}

/* Which rows are in tensors of their own. The others' positions are known by now. */
static kvasir_status check_start(const struct prompt_kv *kv, const char *at, bool started,
                                 kvasir_error *err) {
    if (!started)
        return !kv->start && !kv->exact
                   ? KVASIR_OK
                   : fail(err, KVASIR_ERR_FORMAT, "layer %s: its class has no exact start", at);
    if (kv->start == 0 || kv->start % TILE_TOKENS != 0)
        return fail(err, KVASIR_ERR_FORMAT,
                    "layer %s: an exact start of %u tokens, must be a multiple of %d", at,
                    kv->start, TILE_TOKENS);
    if (kv->rows > kv->offset || (kv->offset > kv->rows && kv->idx != kv->rows))
        return fail(err, KVASIR_ERR_FORMAT,
                    "layer %s: rows of an exact start must be in order, and none unused", at);
    if (kv->exact != prompt_start_rows(kv))
        return fail(err, KVASIR_ERR_FORMAT,
                    "layer %s: %u rows are those of an exact start, but %u have positions below %u",
                    at, kv->exact, prompt_start_rows(kv), kv->start);
    return KVASIR_OK;
}

/* Offset and rows, by the rules of the class and the form. */
static kvasir_status check_counts(const struct prompt_kv *kv, const struct prompt_scope *s,
                                  enum prompt_class class, kvasir_error *err) {
    if (kv->offset > PROMPT_COUNT_MAX || kv->max_size > PROMPT_COUNT_MAX)
        return fail(err, KVASIR_ERR_FORMAT, "layer %s: offset %u or max_size %u is past %d",
                    s->tensor, kv->offset, kv->max_size, PROMPT_COUNT_MAX);
    if (prompt_class_is_ring(class))
        return check_ring(kv, s->tensor, err);
    if (kv->offset > kv->rows)
        return fail(err, KVASIR_ERR_FORMAT,
                    "layer %s: offset %u is past the %u rows of its tensors", s->tensor, kv->offset,
                    kv->rows);
    if (kv->keep || kv->max_size || kv->idx)
        return fail(err, KVASIR_ERR_FORMAT, "layer %s: a %s has no keep, max_size or idx",
                    s->tensor, prompt_class_name(class));
    return KVASIR_OK;
}

static kvasir_status check_kv(const struct prompt_kv *kv, const struct prompt_scope *s,
                              enum prompt_class class, kvasir_error *err) {
    char name[PROMPT_NAME_MAX];
    bool k = kv->sides[0].parts[0].present, v = kv->sides[1].parts[0].present;
    if (k != v)
        return fail(err, KVASIR_ERR_FORMAT, "tensor %s is missing",
                    prompt_part_name(name, s, class, k, 0));
    if (!k && s->form == PROMPT_FORM_LEGACY && class != PROMPT_QUANTIZED_ROTATING)
        return fail(err, KVASIR_ERR_FORMAT, "tensor %s is missing (the older form has no empty %s)",
                    prompt_part_name(name, s, class, 0, 0), prompt_class_name(class));
    if (k && kv->heads == 0)
        return fail(err, KVASIR_ERR_FORMAT, "tensor %s must have four dims and at least one head",
                    prompt_part_name(name, s, class, 0, 0));
    for (int i = 0; i < 2; i++)
        TRY(check_side(kv, s, class, i, err));
    if (!k && (kv->rows || kv->offset))
        return fail(err, KVASIR_ERR_FORMAT, "layer %s: offset %u without tensors", s->tensor,
                    kv->offset);
    TRY(check_counts(kv, s, class, err));
    return check_start(kv, s->tensor, prompt_class_is_started(class), err);
}

/* ---- the check of the rest ------------------------------------------------------------------- */

/* left_padding or lengths: one number, or None. */
static kvasir_status check_batch_of_one(const struct prompt_tensor *t, const char *name,
                                        kvasir_error *err) {
    if (!t->present)
        return KVASIR_OK;
    if (t->dtype != ST_I32 || t->n_dims != 1 || t->dims[0] != 1)
        return fail(err, KVASIR_ERR_FORMAT, "tensor %s must be I32 of shape [1]", name);
    return check_tensor(name, t, err);
}

static kvasir_status check_arrays(const struct prompt_arrays *a, const struct prompt_scope *s,
                                  kvasir_error *err) {
    char name[PROMPT_NAME_MAX], text[PROMPT_NAME_MAX];
    if (a->n == 0)
        return fail(err, KVASIR_ERR_FORMAT, "layer %s: an ArraysCache without tensors", s->tensor);
    for (uint32_t i = 0; i < a->n; i++) {
        const struct prompt_tensor *t = &a->states[i];
        prompt_name(name, s->tensor, s->form == PROMPT_FORM_032 ? "0.%u" : "%u", i);
        if (!t->present && s->form == PROMPT_FORM_032)
            continue;
        if (!t->present)
            return fail(err, KVASIR_ERR_FORMAT,
                        "tensor %s is missing (the older form cannot hold a state that is "
                        "None)",
                        name);
        if (t->n_dims == 0 || t->dims[0] != 1)
            return fail(err, KVASIR_ERR_FORMAT, "tensor %s has shape [%s], must begin with 1", name,
                        shape_text(t, text));
        TRY(check_tensor(name, t, err));
    }
    TRY(check_batch_of_one(&a->left_padding, prompt_name(name, s->tensor, "1"), err));
    return check_batch_of_one(&a->lengths, prompt_name(name, s->tensor, "2"), err);
}

struct check {
    kvasir_error *err;
    bool seen; /* an offset was seen, which all others must equal */
    uint32_t offset;
};

static kvasir_status check_offset(struct check *c, const struct prompt_scope *s, uint32_t offset) {
    if (c->seen && c->offset != offset)
        return fail(c->err, KVASIR_ERR_FORMAT, "layer %s: offset %u, the layers before it have %u",
                    s->tensor, offset, c->offset);
    c->seen = true;
    c->offset = offset;
    return KVASIR_OK;
}

static kvasir_status check_entry(struct check *c, const struct prompt_scope *s,
                                 const struct prompt_entry *e) {
    if (prompt_class_is_kv(e->class)) {
        TRY(check_kv(&e->kv, s, e->class, c->err));
        return check_offset(c, s, e->kv.offset);
    }
    if (e->class == PROMPT_ARRAYS)
        return check_arrays(&e->arrays, s, c->err);
    if (e->list.n == 0 || s->depth == PROMPT_DEPTH_MAX)
        return fail(c->err, KVASIR_ERR_FORMAT,
                    "layer %s: a CacheList without children, or more than %d deep", s->tensor,
                    PROMPT_DEPTH_MAX);
    for (uint32_t i = 0; i < e->list.n; i++) {
        struct prompt_scope child = prompt_scope_child(s, i);
        TRY(check_entry(c, &child, &e->list.children[i]));
    }
    return KVASIR_OK;
}

kvasir_status prompt_file_check(const struct prompt_file *f, enum prompt_form form,
                                kvasir_error *err) {
    struct check c = {.err = err};
    if (f->n_entries == 0)
        return fail(err, KVASIR_ERR_FORMAT, "no layers");
    for (uint32_t i = 0; i < f->n_entries; i++) {
        struct prompt_scope s = prompt_scope_layer(form, i);
        TRY(check_entry(&c, &s, &f->entries[i]));
    }
    return KVASIR_OK;
}

/* ---- the form -------------------------------------------------------------------------------- */

static bool legacy_only(const struct prompt_entry *e) {
    if (e->class == PROMPT_LIST) {
        for (uint32_t i = 0; i < e->list.n; i++)
            if (legacy_only(&e->list.children[i]))
                return true;
        return false;
    }
    if (e->class != PROMPT_QUANTIZED)
        return prompt_class_is_legacy(e->class);
    struct kv_format k = e->kv.sides[0].format, v = e->kv.sides[1].format;
    return k.bits != v.bits || k.group != v.group;
}

enum prompt_form prompt_file_form(const struct prompt_file *f) {
    for (uint32_t i = 0; i < f->n_entries; i++)
        if (legacy_only(&f->entries[i]))
            return PROMPT_FORM_LEGACY;
    return f->form;
}
