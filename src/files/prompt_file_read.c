/* SPDX-License-Identifier: Apache-2.0 */
/* From tensors and metadata to a description. Each name that is looked up is marked as taken. What
 * is left at the end has no meaning in the form and is refused, so that nothing is ignored
 * silently.
 *
 * Lists grow as their members are found, never to a size that the file claims.
 */
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "files/prompt_file_internal.h"

struct reader {
    struct prompt_header h;
    enum prompt_form form;
    kvasir_error *err;
};

/* ---- taking ---------------------------------------------------------------------------------- */

static kvasir_status missing(struct reader *r, const char *name) {
    return fail(r->err, KVASIR_ERR_FORMAT, "tensor %s is missing", name);
}

/* Into *t, which may be None (only the newer form can say so). */
static kvasir_status take_tensor(struct reader *r, const char *name, struct prompt_tensor *t) {
    struct prompt_raw *raw = prompt_header_tensor(&r->h, name);
    if (!raw)
        return missing(r, name);
    if (raw->kind != PROMPT_PLAIN && raw->kind != PROMPT_NONE)
        return fail(r->err, KVASIR_ERR_FORMAT, "tensor %s must not stand for a number or text",
                    name);
    raw->taken = true;
    *t = raw->kind == PROMPT_NONE ? (struct prompt_tensor){0} : raw->tensor;
    return KVASIR_OK;
}

static kvasir_status take_scalar(struct reader *r, const struct prompt_scope *s, unsigned number,
                                 const char *what, uint32_t *out) {
    char name[PROMPT_NAME_MAX];
    struct prompt_raw *raw =
        prompt_header_tensor(&r->h, prompt_name(name, s->tensor, "%u", number));
    int32_t value;
    if (!raw)
        return missing(r, name);
    if (raw->kind != PROMPT_SCALAR)
        return fail(r->err, KVASIR_ERR_FORMAT, "tensor %s (%s) must be a scalar in the metadata",
                    name, what);
    memcpy(&value, raw->tensor.data, sizeof value);
    if (value < 0)
        return fail(r->err, KVASIR_ERR_FORMAT, "tensor %s (%s) is %d, must be at least 0", name,
                    what, value);
    raw->taken = true;
    *out = (uint32_t)value;
    return KVASIR_OK;
}

/* ---- meta_state of legacy files -------------------------------------------------------------- */

enum {
    METAS_MAX = 9,
    RING_NUMBERS = 4, /* keep, max_size, offset, idx */
};

struct metas {
    const char *key; /* without the number */
    const char *values[METAS_MAX];
    unsigned n; /* 0: the plain "" */
};

static kvasir_status take_metas(struct reader *r, const char *key, struct metas *m) {
    struct prompt_meta *meta = prompt_header_meta(&r->h, key);
    char name[PROMPT_NAME_MAX];
    *m = (struct metas){.key = key};
    if (meta && meta->value[0])
        return fail(r->err, KVASIR_ERR_FORMAT, "metadata key %s must be empty", key);
    if (meta) {
        meta->taken = true;
        return KVASIR_OK;
    }
    while (m->n < METAS_MAX &&
           (meta = prompt_header_meta(&r->h, prompt_name(name, key, "%u", m->n)))) {
        meta->taken = true;
        m->values[m->n++] = meta->value;
    }
    if (m->n == 0)
        return fail(r->err, KVASIR_ERR_FORMAT, "metadata key %s is missing", key);
    return KVASIR_OK;
}

static kvasir_status metas_miscounted(struct reader *r, const struct metas *m, const char *class) {
    return fail(r->err, KVASIR_ERR_FORMAT, "metadata key %s: %u numbers are not a %s", m->key, m->n,
                class);
}

/* Decimals without a sign, at most PROMPT_COUNT_MAX. */
static bool decimal(const char *text, uint32_t *out) {
    uint64_t n = 0;
    size_t len = strspn(text, "0123456789");
    if (len == 0 || len > 10 || text[len])
        return false;
    for (size_t i = 0; i < len; i++)
        n = 10 * n + (uint64_t)(text[i] - '0');
    *out = (uint32_t)n;
    return n <= PROMPT_COUNT_MAX;
}

static kvasir_status meta_number(struct reader *r, const struct metas *m, unsigned i,
                                 uint32_t *out) {
    if (decimal(m->values[i], out))
        return KVASIR_OK;
    return fail(r->err, KVASIR_ERR_FORMAT,
                "metadata key %s.%u is %.40s, must be a number from 0 to %d", m->key, i,
                m->values[i], PROMPT_COUNT_MAX);
}

/* ---- formats --------------------------------------------------------------------------------- */

/* where: the tensor or key that states it, for errors. */
static kvasir_status set_format(struct reader *r, const char *where, struct kv_format *f,
                                uint32_t group, uint32_t bits) {
    if (!prompt_group_known(group) || !prompt_bits_known(bits))
        return fail(
            r->err, KVASIR_ERR_FORMAT,
            "%s %s: group size %u and %u bits, must be 32, 64 or 128 and 2, 3, 4, 5, 6 or 8",
            r->form == PROMPT_FORM_032 ? "tensor" : "metadata key", where, group, bits);
    f->group = (uint8_t)group;
    f->bits = (uint8_t)bits;
    return KVASIR_OK;
}

/* Numbers i ... i+3: key_group, key_bits, value_group, value_bits. */
static kvasir_status meta_formats(struct reader *r, const struct metas *m, unsigned i,
                                  struct prompt_kv *kv) {
    for (unsigned side = 0; side < 2; side++) {
        uint32_t group, bits;
        TRY(meta_number(r, m, i + 2 * side, &group));
        TRY(meta_number(r, m, i + 2 * side + 1, &bits));
        TRY(set_format(r, m->key, &kv->sides[side].format, group, bits));
    }
    return KVASIR_OK;
}

/* Forms a, b and c of prompt_file.h. c has a number of bits, which cannot be a group size, where b
 * has the values' group. */
static kvasir_status quantized_metas(struct reader *r, const struct metas *m,
                                     struct prompt_kv *kv) {
    uint32_t group, bits, value_bits;
    if (m->n != 3 && m->n != 5)
        return metas_miscounted(r, m, "QuantizedKVCache");
    bool tagged = m->n == 5 && strcmp(m->values[0], "2") == 0 && decimal(m->values[3], &bits) &&
                  prompt_bits_known(bits);
    TRY(meta_number(r, m, tagged, &kv->offset));
    if (m->n == 5 && !tagged)
        return meta_formats(r, m, 1, kv);
    TRY(meta_number(r, m, 1 + tagged, &group));
    TRY(meta_number(r, m, 2 + tagged, &bits));
    TRY(meta_number(r, m, m->n - 1, &value_bits));
    TRY(set_format(r, m->key, &kv->sides[0].format, group, bits));
    return set_format(r, m->key, &kv->sides[1].format, group, value_bits);
}

static kvasir_status ring_numbers(struct reader *r, const struct metas *m, struct prompt_kv *kv) {
    uint32_t *const fields[] = {&kv->keep, &kv->max_size, &kv->offset, &kv->idx};
    for (unsigned i = 0; i < RING_NUMBERS; i++)
        TRY(meta_number(r, m, i, fields[i]));
    return KVASIR_OK;
}

/* And d, e. */
static kvasir_status ring_metas(struct reader *r, const struct metas *m, enum prompt_class class,
                                struct prompt_kv *kv) {
    const bool formats = m->n == RING_NUMBERS + 4 && prompt_class_is_affine(class);
    if (m->n != RING_NUMBERS && !formats)
        return metas_miscounted(r, m, prompt_class_name(class));
    TRY(ring_numbers(r, m, kv));
    return formats ? meta_formats(r, m, RING_NUMBERS, kv) : KVASIR_OK;
}

/* And f, g. */
static kvasir_status started_metas(struct reader *r, const struct metas *m, enum prompt_class class,
                                   struct prompt_kv *kv) {
    const bool ring = prompt_class_is_ring(class);
    const unsigned n = ring ? RING_NUMBERS : 1; /* before the formats */
    if (m->n != n + 5)
        return metas_miscounted(r, m, prompt_class_name(class));
    TRY(ring ? ring_numbers(r, m, kv) : meta_number(r, m, 0, &kv->offset));
    TRY(meta_formats(r, m, n, kv));
    return meta_number(r, m, n + 4, &kv->start);
}

/* ---- K and V --------------------------------------------------------------------------------- */

/* For None the newer form has one tensor of kind "none", a quantized ring of the older form has no
 * tensor. */
static bool side_is_none(const struct reader *r, const struct prompt_scope *s,
                         enum prompt_class class, int side) {
    char name[PROMPT_NAME_MAX];
    const struct prompt_raw *raw;
    if (r->form == PROMPT_FORM_032) {
        raw = prompt_header_tensor(&r->h, prompt_name(name, s->tensor, "%d", side));
        return raw && raw->kind == PROMPT_NONE;
    }
    for (int i = 0; i < 2 * PROMPT_PARTS; i++)
        if (prompt_header_tensor(&r->h, prompt_part_name(name, s, class, i / 3, i % 3)))
            return false;
    return class == PROMPT_QUANTIZED_ROTATING;
}

static kvasir_status take_side(struct reader *r, const struct prompt_scope *s,
                               enum prompt_class class, int i, struct prompt_side *side) {
    char name[PROMPT_NAME_MAX];
    if (side_is_none(r, s, class, i)) {
        struct prompt_raw *none =
            prompt_header_tensor(&r->h, prompt_name(name, s->tensor, "%d", i));
        if (none)
            none->taken = true;
        return KVASIR_OK;
    }
    int parts = prompt_class_is_affine(class) ? PROMPT_PARTS : 1;
    for (int j = 0; j < parts; j++) {
        TRY(take_tensor(r, prompt_part_name(name, s, class, i, j), &side->parts[j]));
        if (!side->parts[j].present)
            return missing(r, name);
    }
    return prompt_class_is_started(class)
               ? take_tensor(r, prompt_start_name(name, s, i), &side->start)
               : KVASIR_OK;
}

static kvasir_status new_numbers(struct reader *r, const struct prompt_scope *s,
                                 enum prompt_class class, struct prompt_kv *kv) {
    uint32_t group, bits;
    TRY(take_scalar(r, s, 2, "offset", &kv->offset));
    if (class == PROMPT_ROTATING) {
        TRY(take_scalar(r, s, 3, "keep", &kv->keep));
        TRY(take_scalar(r, s, 4, "max_size", &kv->max_size));
        return take_scalar(r, s, 5, "idx", &kv->idx);
    }
    if (class == PROMPT_KV)
        return KVASIR_OK;
    char name[PROMPT_NAME_MAX];
    TRY(take_scalar(r, s, 3, "group size", &group));
    TRY(take_scalar(r, s, 4, "bits", &bits));
    prompt_name(name, s->tensor, "3");
    TRY(set_format(r, name, &kv->sides[0].format, group, bits));
    return set_format(r, name, &kv->sides[1].format, group, bits);
}

static kvasir_status old_numbers(struct reader *r, const struct prompt_scope *s,
                                 enum prompt_class class, struct prompt_kv *kv) {
    struct metas m;
    TRY(take_metas(r, s->meta, &m));
    if (prompt_class_is_started(class))
        return started_metas(r, &m, class, kv);
    if (prompt_class_is_ring(class))
        return ring_metas(r, &m, class, kv);
    if (class == PROMPT_QUANTIZED)
        return quantized_metas(r, &m, kv);
    kv->offset = kv->sides[0].parts[0].dims[2];
    return m.n == 0 ? KVASIR_OK : metas_miscounted(r, &m, prompt_class_name(class));
}

/* Older files contain no unused rows. */
static kvasir_status check_old_rows(struct reader *r, const struct prompt_scope *s,
                                    enum prompt_class class, const struct prompt_kv *kv) {
    if (kv->rows == kv->offset || (prompt_class_is_ring(class) && kv->rows < kv->offset))
        return KVASIR_OK;
    return fail(r->err, KVASIR_ERR_FORMAT,
                "layer %s: metadata key %s says offset %u, its tensors have %u rows", s->tensor,
                s->meta, kv->offset, kv->rows);
}

static kvasir_status read_kv(struct reader *r, const struct prompt_scope *s,
                             enum prompt_class class, struct prompt_kv *kv) {
    for (int i = 0; i < 2; i++)
        TRY(take_side(r, s, class, i, &kv->sides[i]));
    TRY(r->form == PROMPT_FORM_032 ? new_numbers(r, s, class, kv) : old_numbers(r, s, class, kv));
    prompt_kv_derive(kv, class);
    return r->form == PROMPT_FORM_032 ? KVASIR_OK : check_old_rows(r, s, class, kv);
}

/* ---- arrays ---------------------------------------------------------------------------------- */

/* In the older form None is F32 [0], which nothing marks as such. */
static kvasir_status take_padding(struct reader *r, const char *name, struct prompt_tensor *t) {
    TRY(take_tensor(r, name, t));
    if (r->form == PROMPT_FORM_LEGACY && t->dtype == ST_F32 && t->n_dims == 1 && t->bytes == 0)
        *t = (struct prompt_tensor){0};
    return KVASIR_OK;
}

static kvasir_status read_arrays(struct reader *r, const struct prompt_scope *s,
                                 struct prompt_arrays *a) {
    char name[PROMPT_NAME_MAX];
    struct metas m;
    bool nested = r->form == PROMPT_FORM_032 ||
                  prompt_header_tensor(&r->h, prompt_name(name, s->tensor, "0.0"));
    const char *format = nested ? "0.%u" : "%u";
    uint32_t n = 0;
    while (prompt_header_tensor(&r->h, prompt_name(name, s->tensor, format, n)))
        n++;
    if (n == 0)
        return missing(r, name);
    a->states = mem_calloc(n, sizeof *a->states);
    if (!a->states)
        return fail(r->err, KVASIR_ERR_MEMORY, "out of memory for %u states", n);
    for (; a->n < n; a->n++)
        TRY(take_tensor(r, prompt_name(name, s->tensor, format, a->n), &a->states[a->n]));
    if (nested) {
        TRY(take_padding(r, prompt_name(name, s->tensor, "1"), &a->left_padding));
        TRY(take_padding(r, prompt_name(name, s->tensor, "2"), &a->lengths));
    }
    if (r->form == PROMPT_FORM_032)
        return KVASIR_OK;
    TRY(take_metas(r, s->meta, &m));
    return m.n == 0 ? KVASIR_OK : metas_miscounted(r, &m, "ArraysCache");
}

/* ---- classes and lists ----------------------------------------------------------------------- */

static kvasir_status class_of(struct reader *r, const char *where, const char *text,
                              enum prompt_class *class) {
    for (int i = PROMPT_KV; i <= PROMPT_LIST; i++)
        if (strcmp(text, prompt_class_name((enum prompt_class)i)) == 0) {
            *class = (enum prompt_class)i;
            if (r->form == PROMPT_FORM_LEGACY || !prompt_class_is_legacy(*class))
                return KVASIR_OK;
        }
    return fail(r->err, KVASIR_ERR_UNSUPPORTED,
                "%s: class %.60s is not supported; those of this form are KVCache, "
                "QuantizedKVCache, RotatingKVCache, %sArraysCache, CacheList",
                where, text,
                r->form == PROMPT_FORM_LEGACY
                    ? "QuantizedRotatingKVCache, ExactStartQuantizedKVCache, "
                      "ExactStartQuantizedRotatingKVCache, "
                    : "");
}

static kvasir_status push_entry(struct reader *r, struct prompt_entry **list, uint32_t *n,
                                uint32_t *cap, enum prompt_class class) {
    if (!ARRAY_GROW(*list, *cap, *n + 1))
        return fail(r->err, KVASIR_ERR_MEMORY, "out of memory for the layers");
    (*list)[*n] = (struct prompt_entry){.class = class};
    (*n)++;
    return KVASIR_OK;
}

/* The class of a list's child, as text in buf; *more is false after the last. */
static kvasir_status child_class(struct reader *r, const struct prompt_scope *s, uint32_t child,
                                 char name[PROMPT_NAME_MAX], char buf[PROMPT_NAME_MAX],
                                 bool *more) {
    *more = true;
    if (r->form == PROMPT_FORM_LEGACY) {
        struct prompt_meta *meta =
            prompt_header_meta(&r->h, prompt_name(name, s->meta, "0.%u", child));
        *more = meta != NULL;
        if (meta)
            meta->taken = true;
        snprintf(buf, PROMPT_NAME_MAX, "%s", meta ? meta->value : "");
        return KVASIR_OK;
    }
    struct prompt_raw *raw =
        prompt_header_tensor(&r->h, prompt_name(name, s->tensor, "%u.1", child));
    *more = raw != NULL;
    if (!raw)
        return KVASIR_OK;
    if (raw->kind != PROMPT_STRING || raw->tensor.dims[0] >= PROMPT_NAME_MAX)
        return fail(r->err, KVASIR_ERR_FORMAT,
                    "tensor %s must be a class, a string in the metadata", name);
    raw->taken = true;
    for (uint32_t i = 0; i < raw->tensor.dims[0]; i++) {
        int32_t code;
        memcpy(&code, raw->tensor.data + i * sizeof code, sizeof code);
        buf[i] = (char)(code > 0x20 && code < 0x7f ? code : '?');
    }
    buf[raw->tensor.dims[0]] = 0; /* below PROMPT_NAME_MAX: checked above */
    return KVASIR_OK;
}

static kvasir_status read_entry(struct reader *r, const struct prompt_scope *s,
                                struct prompt_entry *e);

static kvasir_status read_list(struct reader *r, const struct prompt_scope *s,
                               struct prompt_list *list) {
    char name[PROMPT_NAME_MAX], text[PROMPT_NAME_MAX];
    uint32_t cap = 0;
    if (s->depth == PROMPT_DEPTH_MAX)
        return fail(r->err, KVASIR_ERR_FORMAT, "layer %s: CacheLists are more than %d deep",
                    s->tensor, PROMPT_DEPTH_MAX);
    for (;;) {
        enum prompt_class class;
        bool more;
        TRY(child_class(r, s, list->n, name, text, &more));
        if (!more)
            return KVASIR_OK;
        TRY(class_of(r, name, text, &class));
        TRY(push_entry(r, &list->children, &list->n, &cap, class));
        struct prompt_scope child = prompt_scope_child(s, list->n - 1);
        TRY(read_entry(r, &child, &list->children[list->n - 1]));
    }
}

static kvasir_status read_entry(struct reader *r, const struct prompt_scope *s,
                                struct prompt_entry *e) {
    if (prompt_class_is_kv(e->class))
        return read_kv(r, s, e->class, &e->kv);
    return e->class == PROMPT_ARRAYS ? read_arrays(r, s, &e->arrays) : read_list(r, s, &e->list);
}

/* ---- metadata -------------------------------------------------------------------------------- */

static kvasir_status settle_form(struct reader *r) {
    struct prompt_meta *meta = prompt_header_meta(&r->h, "2.0");
    if (!meta)
        return fail(r->err, KVASIR_ERR_FORMAT,
                    "metadata key 2.0 is missing: not a prompt cache of mlx-lm");
    r->form = meta->value[0] ? PROMPT_FORM_LEGACY : PROMPT_FORM_032;
    if (r->form == PROMPT_FORM_032)
        meta->taken = true;
    return KVASIR_OK;
}

static bool kind_fits(const struct prompt_tensor *t, const char *text, enum prompt_kind *kind) {
    if (strcmp(text, "scalar") == 0) {
        *kind = PROMPT_SCALAR;
        return t->dtype == ST_I32 && t->n_dims == 0;
    }
    if (strcmp(text, "string") == 0) {
        *kind = PROMPT_STRING;
        return t->dtype == ST_I32 && t->n_dims == 1;
    }
    *kind = PROMPT_NONE;
    return strcmp(text, "none") == 0 && t->dtype == ST_F32 && t->n_dims == 1 && t->bytes == 0;
}

/* 2.N.0 and 2.N.1 of the newer form. */
static kvasir_status take_kinds(struct reader *r) {
    char key[PROMPT_NAME_MAX];
    struct prompt_meta *meta;
    for (unsigned n = 1; (meta = prompt_header_meta(&r->h, prompt_name(key, "2", "%u.0", n)));
         n++) {
        struct prompt_raw *raw = prompt_header_tensor(&r->h, meta->value);
        struct prompt_meta *kind = prompt_header_meta(&r->h, prompt_name(key, "2", "%u.1", n));
        if (!raw || raw->kind != PROMPT_PLAIN)
            return fail(r->err, KVASIR_ERR_FORMAT,
                        "metadata key 2.%u.0: tensor %.100s is missing or named twice", n,
                        meta->value);
        if (!kind || !kind_fits(&raw->tensor, kind->value, &raw->kind))
            return fail(r->err, KVASIR_ERR_FORMAT,
                        "metadata key 2.%u.1 is %.40s, which tensor %.100s cannot be", n,
                        kind ? kind->value : "missing", meta->value);
        meta->taken = kind->taken = true;
    }
    return KVASIR_OK;
}

/* Keys after "0." or "1.", sorted like the table. */
static kvasir_status take_user_metadata(struct reader *r, struct prompt_file *f) {
    const char *prefix = r->form == PROMPT_FORM_032 ? "0." : "1.";
    f->metadata = mem_calloc(r->h.n_metas, sizeof *f->metadata);
    if (!f->metadata)
        return fail(r->err, KVASIR_ERR_MEMORY, "out of memory for the metadata");
    for (size_t i = 0; i < r->h.n_metas; i++) {
        struct prompt_meta *meta = &r->h.metas[i];
        if (strncmp(meta->key, prefix, 2) != 0 || !meta->key[2])
            continue;
        meta->taken = true;
        f->metadata[f->n_metadata++] = (struct prompt_pair){meta->key + 2, meta->value};
    }
    return KVASIR_OK;
}

static kvasir_status check_all_taken(struct reader *r) {
    for (size_t i = 0; i < r->h.n_tensors; i++)
        if (!r->h.tensors[i].taken)
            return fail(r->err, KVASIR_ERR_FORMAT,
                        "tensor %.100s does not belong to a layer of the metadata",
                        r->h.tensors[i].name);
    for (size_t i = 0; i < r->h.n_metas; i++)
        if (!r->h.metas[i].taken)
            return fail(r->err, KVASIR_ERR_FORMAT, "metadata key %.100s is not expected here",
                        r->h.metas[i].key);
    return KVASIR_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static kvasir_status read_layers(struct reader *r, struct prompt_file *f) {
    char key[PROMPT_NAME_MAX];
    uint32_t cap = 0;
    struct prompt_meta *meta;
    const char *prefix = r->form == PROMPT_FORM_032 ? "1" : "2";
    while ((meta = prompt_header_meta(&r->h, prompt_name(key, prefix, "%u", f->n_entries)))) {
        enum prompt_class class;
        char where[PROMPT_NAME_MAX + 16];
        snprintf(where, sizeof where, "metadata key %s", key);
        meta->taken = true;
        TRY(class_of(r, where, meta->value, &class));
        TRY(push_entry(r, &f->entries, &f->n_entries, &cap, class));
        struct prompt_scope s = prompt_scope_layer(r->form, f->n_entries - 1);
        TRY(read_entry(r, &s, &f->entries[f->n_entries - 1]));
    }
    return f->n_entries ? KVASIR_OK
                        : fail(r->err, KVASIR_ERR_FORMAT, "metadata key %s is missing", key);
}

static kvasir_status read_all(struct reader *r, struct prompt_file *f) {
    TRY(prompt_header_read(&f->map, &r->h, r->err));
    TRY(settle_form(r));
    f->form = r->form;
    if (r->form == PROMPT_FORM_032)
        TRY(take_kinds(r));
    TRY(take_user_metadata(r, f));
    TRY(read_layers(r, f));
    TRY(check_all_taken(r));
    TRY(prompt_header_check_data(&r->h, &f->map, r->err));
    return prompt_file_check(f, f->form, r->err);
}

kvasir_status prompt_file_open(const char *path, struct prompt_file *f, kvasir_error *err) {
    struct reader r = {.err = err};
    *f = (struct prompt_file){0};
    TRY(file_map_open(&f->map, path, err));
    kvasir_status status = read_all(&r, f);
    f->header = r.h.json;
    prompt_header_deinit(&r.h);
    if (status != KVASIR_OK)
        fail_prefix(err, path);
    if (file_map_check(&f->map, NULL) != KVASIR_OK)
        status = file_map_check(&f->map, err);
    if (status == KVASIR_OK)
        return KVASIR_OK;
    prompt_file_close(f);
    return status;
}

static void entries_free(struct prompt_entry *list, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (list[i].class == PROMPT_ARRAYS)
            mem_free(list[i].arrays.states);
        else if (list[i].class == PROMPT_LIST)
            entries_free(list[i].list.children, list[i].list.n);
    mem_free(list);
}

void prompt_file_close(struct prompt_file *f) {
    entries_free(f->entries, f->n_entries);
    mem_free(f->metadata);
    json_decref(f->header);
    file_map_close(&f->map);
    *f = (struct prompt_file){0};
}
