/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF versions 2 and 3: one file cut into metadata values and tensors. What the values mean is
 * gguf_config.c's and gguf_text.c's business, several files of one model are gguf_parts.c's.
 *
 *     | "GGUF" | u32 version | u64 tensors | u64 values |
 *     | value:  string key, u32 type, payload          | x values
 *     | tensor: string name, u32 n, u64 dim[n] (fastest first), u32 type, u64 offset | x tensors
 *     | padding to general.alignment |
 *     | data: tensor offsets count from here           |
 *
 *     string = u64 length, bytes (no terminator)
 *     array  = u32 element type, u64 count, elements (arrays may nest)
 *
 * Everything is little-endian and read where it is mapped: values and names stay spans of the
 * mapping.
 *
 * Invariants
 *   G1  `pos` never passes `size`; every read asks `take` first, and a count is checked against the
 *       bytes that are left before a loop believes it. Time and memory are thus linear in the
 *       file's size.
 *   G2  Errors carry the byte offset of the thing that is wrong.
 *   G3  After gguf_read_tensors tensors are aligned, inside the file and disjoint (K1 of
 *       checkpoint.c).
 *
 * Left out: version 1 (counts and lengths of 32 bits; nobody has written it since August 2023),
 * big-endian files (which are of version 3), types other than quant/'s.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "model/model_internal.h"

enum {
    GGUF_VERSION_MIN = 2, /* little-endian, 2 and 3 are the same */
    GGUF_VERSION_MAX = 3,
    GGUF_KEY_MAX = 65535,   /* the format's own limit */
    GGUF_NAME_MAX = 64,     /* likewise */
    GGUF_NESTING_MAX = 4,   /* arrays in arrays; no known file nests at all */
    GGUF_ALIGNMENT = 32,    /* where general.alignment is missing */
    GGUF_ALIGNMENT_MIN = 8, /* the format asks for a multiple of 8 */
    GGUF_ALIGNMENT_MAX = 1 << 20,
};

struct reader {
    const uint8_t *data;
    size_t size, pos;
    kvasir_error *err;
};

/* ---- bytes ----------------------------------------------------------------------------------- */

static kvasir_status take(struct reader *r, uint64_t n, const char *what, const uint8_t **at) {
    if (n > r->size - r->pos)
        return fail_at(r->err, KVASIR_ERR_FORMAT, (int64_t)r->pos,
                       "the file ends inside %s: needs %" PRIu64 " bytes, %zu are left", what, n,
                       r->size - r->pos);
    *at = r->data + r->pos;
    r->pos += (size_t)n;
    return KVASIR_OK;
}

static kvasir_status take_u32(struct reader *r, const char *what, uint32_t *out) {
    const uint8_t *at = NULL;
    TRY(take(r, sizeof *out, what, &at));
    memcpy(out, at, sizeof *out);
    return KVASIR_OK;
}

static kvasir_status take_u64(struct reader *r, const char *what, uint64_t *out) {
    const uint8_t *at = NULL;
    TRY(take(r, sizeof *out, what, &at));
    memcpy(out, at, sizeof *out);
    return KVASIR_OK;
}

static kvasir_status take_string(struct reader *r, const char *what, struct text_span *out) {
    uint64_t len;
    const uint8_t *at = NULL;
    TRY(take_u64(r, what, &len));
    TRY(take(r, len, what, &at));
    *out = (struct text_span){(const char *)at, (size_t)len};
    return KVASIR_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    uint8_t bytes;     /* 0: not of fixed size */
    uint8_t bytes_min; /* smallest encoding */
} value_types[GGUF_TYPES] = {
    [GGUF_U8] = {"u8", 1, 1},        [GGUF_I8] = {"i8", 1, 1},     [GGUF_U16] = {"u16", 2, 2},
    [GGUF_I16] = {"i16", 2, 2},      [GGUF_U32] = {"u32", 4, 4},   [GGUF_I32] = {"i32", 4, 4},
    [GGUF_F32] = {"f32", 4, 4},      [GGUF_BOOL] = {"bool", 1, 1}, [GGUF_STRING] = {"string", 0, 8},
    [GGUF_ARRAY] = {"array", 0, 12}, [GGUF_U64] = {"u64", 8, 8},   [GGUF_I64] = {"i64", 8, 8},
    [GGUF_F64] = {"f64", 8, 8},
};

static kvasir_status take_type(struct reader *r, uint32_t *type) {
    int64_t at = (int64_t)r->pos;
    TRY(take_u32(r, "a value's type", type));
    if (*type >= GGUF_TYPES)
        return fail_at(r->err, KVASIR_ERR_FORMAT, at, "unknown metadata type %u", *type);
    return KVASIR_OK;
}

static kvasir_status take_elements(struct reader *r, uint32_t elem, uint64_t count, int depth);

/* The head of an array: element type and count, of which at least the smallest encodings fit in the
 * file. */
static kvasir_status take_array_head(struct reader *r, uint32_t *elem, uint64_t *count) {
    TRY(take_type(r, elem));
    int64_t at = (int64_t)r->pos;
    TRY(take_u64(r, "an array's length", count));
    if (*count > (r->size - r->pos) / value_types[*elem].bytes_min)
        return fail_at(r->err, KVASIR_ERR_FORMAT, at,
                       "an array of %" PRIu64 " x %s does not fit in the %zu bytes left", *count,
                       value_types[*elem].name, r->size - r->pos);
    return KVASIR_OK;
}

static kvasir_status take_element(struct reader *r, uint32_t type, int depth) {
    if (type == GGUF_STRING) {
        struct text_span text;
        return take_string(r, "a string", &text);
    }
    if (depth >= GGUF_NESTING_MAX)
        return fail_at(r->err, KVASIR_ERR_FORMAT, (int64_t)r->pos,
                       "arrays are nested deeper than %d levels", GGUF_NESTING_MAX);
    uint32_t elem;
    uint64_t count;
    TRY(take_array_head(r, &elem, &count));
    return take_elements(r, elem, count, depth + 1);
}

static kvasir_status take_elements(struct reader *r, uint32_t elem, uint64_t count, int depth) {
    const uint8_t *at = NULL;
    if (value_types[elem].bytes) /* the count was checked: no overflow */
        return take(r, count * value_types[elem].bytes, "an array", &at);
    for (uint64_t i = 0; i < count; i++)
        TRY(take_element(r, elem, depth));
    return KVASIR_OK;
}

static kvasir_status take_value(struct reader *r, struct gguf_value *v) {
    int64_t at = (int64_t)r->pos;
    TRY(take_string(r, "a metadata key", &v->key));
    if (v->key.len == 0 || v->key.len > GGUF_KEY_MAX || !st_name_is_clean(v->key.data, v->key.len))
        return fail_at(r->err, KVASIR_ERR_FORMAT, at,
                       "a metadata key must have 1 to %d bytes and no control characters",
                       GGUF_KEY_MAX);
    TRY(take_type(r, &v->type));
    v->elem = v->type;
    v->count = 1;
    if (v->type == GGUF_ARRAY) {
        TRY(take_array_head(r, &v->elem, &v->count));
    } else if (v->type == GGUF_STRING) {
        TRY(take_u64(r, "a string", &v->count));
    }
    v->offset = (int64_t)r->pos;
    v->data = r->data + r->pos;
    if (v->type == GGUF_ARRAY)
        return take_elements(r, v->elem, v->count, 1);
    const uint8_t *payload = NULL;
    TRY(take(r, v->type == GGUF_STRING ? v->count : value_types[v->type].bytes, "a metadata value",
             &payload));
    if (v->type == GGUF_BOOL && *payload > 1)
        return fail_at(r->err, KVASIR_ERR_FORMAT, v->offset, "%.*s is a bool of value %u",
                       (int)v->key.len, v->key.data, *payload);
    return KVASIR_OK;
}

static int compare_spans(struct text_span a, struct text_span b) {
    size_t n = a.len < b.len ? a.len : b.len;
    int order = memcmp(a.data, b.data, n);
    return order ? order : (a.len > b.len) - (a.len < b.len);
}

static int compare_values(const void *a, const void *b) {
    return compare_spans(((const struct gguf_value *)a)->key, ((const struct gguf_value *)b)->key);
}

static kvasir_status take_values(struct reader *r, struct gguf *g, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        if (!ARRAY_GROW(g->values, g->cap_values, g->n_values + 1))
            return fail(r->err, KVASIR_ERR_MEMORY, "out of memory for %" PRIu64 " values", n);
        TRY(take_value(r, &g->values[g->n_values]));
        g->n_values++;
    }
    if (g->n_values)
        qsort(g->values, g->n_values, sizeof *g->values, compare_values);
    for (size_t i = 1; i < g->n_values; i++)
        if (compare_values(&g->values[i - 1], &g->values[i]) == 0)
            return fail_at(r->err, KVASIR_ERR_FORMAT, g->values[i].offset,
                           "duplicate metadata key %.*s", (int)g->values[i].key.len,
                           g->values[i].key.data);
    return KVASIR_OK;
}

/* ---- looking values up ----------------------------------------------------------------------- */

const struct gguf_value *gguf_find(const struct gguf *g, const char *key) {
    struct gguf_value wanted = {.key = {key, strlen(key)}};
    if (!g->n_values)
        return NULL;
    return bsearch(&wanted, g->values, g->n_values, sizeof wanted, compare_values);
}

static kvasir_status find(const struct gguf *g, const char *key, bool required,
                          const struct gguf_value **v, kvasir_error *err) {
    *v = gguf_find(g, key);
    if (!*v && required)
        return fail(err, KVASIR_ERR_FORMAT, "metadata %s is missing", key);
    return KVASIR_OK;
}

static kvasir_status wrong_type(const struct gguf_value *v, const char *key, const char *wanted,
                                kvasir_error *err) {
    return fail_at(err, KVASIR_ERR_FORMAT, v->offset, "metadata %s must be %s, found %s", key,
                   wanted, value_types[v->type].name);
}

/* Converters write the same key as u32, i32 or u64, so any integer type is good whose value is. */
static bool integer_of(const struct gguf_value *v, int64_t *out) {
    uint64_t bits = 0;
    memcpy(&bits, v->data, value_types[v->type].bytes);
    switch (v->type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
        *out = (int64_t)bits;
        return true;
    case GGUF_U64:
        *out = bits > INT64_MAX ? INT64_MAX : (int64_t)bits;
        return true;
    case GGUF_I8:
        *out = (int8_t)bits;
        return true;
    case GGUF_I16:
        *out = (int16_t)bits;
        return true;
    case GGUF_I32:
        *out = (int32_t)bits;
        return true;
    case GGUF_I64:
        *out = (int64_t)bits;
        return true;
    default:
        return false;
    }
}

kvasir_status gguf_get_u32(const struct gguf *g, const char *key, bool required, uint32_t min,
                           uint32_t max, uint32_t *out, kvasir_error *err) {
    const struct gguf_value *v;
    TRY(find(g, key, required, &v, err));
    if (!v)
        return KVASIR_OK;
    int64_t n;
    if (!integer_of(v, &n))
        return wrong_type(v, key, "an integer", err);
    if (n < (int64_t)min || n > (int64_t)max)
        return fail_at(err, KVASIR_ERR_FORMAT, v->offset,
                       "metadata %s is %" PRId64 ", must be from %u to %u", key, n, min, max);
    *out = (uint32_t)n;
    return KVASIR_OK;
}

kvasir_status gguf_get_u32s(const struct gguf *g, const char *key, uint32_t n, bool required,
                            uint32_t min, uint32_t max, uint32_t *out, kvasir_error *err) {
    const struct gguf_value *v;
    TRY(find(g, key, required, &v, err));
    if (!v)
        return KVASIR_OK;
    if (v->type != GGUF_ARRAY) {
        TRY(gguf_get_u32(g, key, required, min, max, out, err));
        for (uint32_t i = 1; i < n; i++)
            out[i] = out[0];
        return KVASIR_OK;
    }
    if (v->count != n)
        return fail_at(err, KVASIR_ERR_FORMAT, v->offset,
                       "metadata %s holds %" PRIu64 " values for %u layers", key, v->count, n);
    for (uint32_t i = 0; i < n; i++) {
        struct gguf_value one = {.type = v->elem == GGUF_BOOL ? GGUF_U8 : v->elem};
        int64_t x;
        one.data = v->data + (size_t)i * value_types[one.type].bytes;
        if (!integer_of(&one, &x))
            return fail_at(err, KVASIR_ERR_FORMAT, v->offset,
                           "metadata %s must be an array of integers, found %s", key,
                           value_types[v->elem].name);
        if (x < (int64_t)min || x > (int64_t)max)
            return fail_at(err, KVASIR_ERR_FORMAT, one.data - g->map.data,
                           "metadata %s[%u] is %" PRId64 ", must be from %u to %u", key, i, x, min,
                           max);
        out[i] = (uint32_t)x;
    }
    return KVASIR_OK;
}

bool gguf_number(const struct gguf_value *v, double *out) {
    float narrow;
    int64_t whole;
    if (v->type == GGUF_F32) {
        memcpy(&narrow, v->data, sizeof narrow);
        *out = (double)narrow;
    } else if (v->type == GGUF_F64) {
        memcpy(out, v->data, sizeof *out);
    } else if (v->type == GGUF_BOOL) {
        *out = *v->data;
    } else if (integer_of(v, &whole)) {
        *out = (double)whole;
    } else {
        return false;
    }
    return true;
}

kvasir_status gguf_get_double(const struct gguf *g, const char *key, bool required, double *out,
                              kvasir_error *err) {
    const struct gguf_value *v;
    TRY(find(g, key, required, &v, err));
    if (!v)
        return KVASIR_OK;
    double x;
    if ((v->type != GGUF_F32 && v->type != GGUF_F64) || !gguf_number(v, &x))
        return wrong_type(v, key, "a float", err);
    if (!(x > 0) || x > 1e30)
        return fail_at(err, KVASIR_ERR_FORMAT, v->offset,
                       "metadata %s is %g, must be finite and above 0", key, x);
    *out = x;
    return KVASIR_OK;
}

kvasir_status gguf_get_bool(const struct gguf *g, const char *key, bool *out, kvasir_error *err) {
    const struct gguf_value *v = gguf_find(g, key);
    if (!v)
        return KVASIR_OK;
    if (v->type != GGUF_BOOL)
        return wrong_type(v, key, "a bool", err);
    *out = *v->data != 0;
    return KVASIR_OK;
}

kvasir_status gguf_get_string(const struct gguf *g, const char *key, bool required,
                              struct text_span *out, kvasir_error *err) {
    const struct gguf_value *v;
    TRY(find(g, key, required, &v, err));
    if (!v)
        return KVASIR_OK;
    if (v->type != GGUF_STRING)
        return wrong_type(v, key, "a string", err);
    if (memchr(v->data, 0, (size_t)v->count))
        return fail_at(err, KVASIR_ERR_FORMAT, v->offset, "metadata %s holds a zero byte", key);
    *out = (struct text_span){(const char *)v->data, (size_t)v->count};
    return KVASIR_OK;
}

kvasir_status gguf_get_strings(const struct gguf *g, const char *key, struct text_span **spans,
                               size_t *n, kvasir_error *err) {
    *spans = NULL;
    *n = 0;
    const struct gguf_value *v = gguf_find(g, key);
    if (!v)
        return KVASIR_OK;
    if (v->type != GGUF_ARRAY || v->elem != GGUF_STRING)
        return wrong_type(v, key, "an array of strings", err);
    /* A string takes 8 bytes and more, so the spans are at most twice the file. */
    struct text_span *list = mem_calloc((size_t)v->count, sizeof *list);
    if (!list)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for %s", key);
    struct reader r = {g->map.data, g->map.size, (size_t)v->offset, err};
    for (size_t i = 0; i < v->count; i++) {
        kvasir_status status = take_string(&r, key, &list[i]);
        if (status != KVASIR_OK) {
            mem_free(list);
            return status;
        }
    }
    *spans = list;
    *n = (size_t)v->count;
    return KVASIR_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Names of the types that we refuse, so that the refusal can say what the file holds. */
static const char *tensor_type_name(uint32_t type) {
    static const char *const names[] = {
        [0] = "F32",     [1] = "F16",      [2] = "Q4_0",   [3] = "Q4_1",    [6] = "Q5_0",
        [7] = "Q5_1",    [8] = "Q8_0",     [9] = "Q8_1",   [10] = "Q2_K",   [11] = "Q3_K",
        [12] = "Q4_K",   [13] = "Q5_K",    [14] = "Q6_K",  [15] = "Q8_K",   [16] = "IQ2_XXS",
        [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S", [20] = "IQ4_NL", [21] = "IQ3_S",
        [22] = "IQ2_S",  [23] = "IQ4_XS",  [24] = "I8",    [25] = "I16",    [26] = "I32",
        [27] = "I64",    [28] = "F64",     [29] = "IQ1_M", [30] = "BF16",   [34] = "TQ1_0",
        [35] = "TQ2_0",  [39] = "MXFP4",   [40] = "NVFP4",
    };
    const char *name = type < sizeof names / sizeof *names ? names[type] : NULL;
    return name ? name : "unknown";
}

static kvasir_status take_dims(struct reader *r, struct text_span name,
                               struct checkpoint_tensor *t) {
    int64_t at = (int64_t)r->pos;
    TRY(take_u32(r, "a tensor's shape", &t->n_dims));
    if (t->n_dims < 1 || t->n_dims > TENSOR_DIMS_MAX)
        return fail_at(r->err, KVASIR_ERR_FORMAT, at,
                       "tensor %.*s has %u dimensions, must be 1 to %d", (int)name.len, name.data,
                       t->n_dims, TENSOR_DIMS_MAX);
    for (uint32_t i = t->n_dims; i-- > 0;) { /* the file has the fastest first */
        TRY(take_u64(r, "a tensor's shape", &t->dims[i]));
        if (t->dims[i] == 0)
            return fail_at(r->err, KVASIR_ERR_FORMAT, at, "tensor %.*s has an empty dimension",
                           (int)name.len, name.data);
    }
    return KVASIR_OK;
}

/* Where a tensor's data is said to be: known before the data section's start is. */
struct data_place {
    uint64_t offset; /* from the data section's start */
    int64_t at;      /* where the file says so */
};

static kvasir_status take_tensor(struct reader *r, struct text_span *name,
                                 struct checkpoint_tensor *t, struct data_place *place) {
    int64_t at = (int64_t)r->pos;
    *t = (struct checkpoint_tensor){0};
    TRY(take_string(r, "a tensor's name", name));
    if (name->len > GGUF_NAME_MAX || !st_name_is_clean(name->data, name->len))
        return fail_at(r->err, KVASIR_ERR_FORMAT, at,
                       "a tensor's name must have 1 to %d bytes and no control characters",
                       GGUF_NAME_MAX);
    TRY(take_dims(r, *name, t));
    at = (int64_t)r->pos;
    uint32_t type;
    TRY(take_u32(r, "a tensor's type", &type));
    const struct weight_traits *traits = type < WEIGHT_GGUF_END ? weight_traits_of(type) : NULL;
    if (!traits)
        return fail_at(r->err, KVASIR_ERR_UNSUPPORTED, at,
                       "tensor %.*s has type %s (%u), which is not supported", (int)name->len,
                       name->data, tensor_type_name(type), type);
    t->type = traits->type;
    if (!tensor_bytes(t->type, t->dims, t->n_dims, &t->bytes))
        return fail_at(r->err, KVASIR_ERR_FORMAT, at,
                       "tensor %.*s: its shape overflows or its rows are no multiple of %u (%s)",
                       (int)name->len, name->data, traits->block_values, traits->name);
    place->at = (int64_t)r->pos;
    return take_u64(r, "a tensor's offset", &place->offset);
}

static kvasir_status place_tensor(const struct gguf *g, size_t start, uint32_t alignment,
                                  struct data_place place, struct checkpoint_tensor *t,
                                  kvasir_error *err) {
    size_t room = g->map.size - start;
    if (place.offset % alignment != 0)
        return fail_at(err, KVASIR_ERR_FORMAT, place.at,
                       "tensor %s: offset %" PRIu64 " is no multiple of the alignment %u", t->name,
                       place.offset, alignment);
    if (place.offset > room || t->bytes > room - place.offset)
        return fail_at(err, KVASIR_ERR_FORMAT, place.at,
                       "tensor %s: %zu bytes at data offset %" PRIu64
                       " pass the file's end (%zu bytes of data)",
                       t->name, t->bytes, place.offset, room);
    t->data = g->map.data + start + place.offset;
    return KVASIR_OK;
}

/* Tensors [first, n_tensors) are this file's. */
static kvasir_status check_disjoint(const struct checkpoint *c, size_t first, const struct gguf *g,
                                    kvasir_error *err) {
    size_t n = c->n_tensors - first;
    struct extent *order = mem_calloc(n, sizeof *order);
    if (!order)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        const struct checkpoint_tensor *t = &c->tensors[first + i];
        order[i] = (struct extent){t->name, t->data, t->bytes};
    }
    extents_sort(order, n);
    kvasir_status status = KVASIR_OK;
    for (size_t i = 1; i < n && status == KVASIR_OK; i++)
        if (order[i].data < order[i - 1].data + order[i - 1].bytes)
            status = fail_at(err, KVASIR_ERR_FORMAT, order[i].data - g->map.data,
                             "tensors %s and %s overlap", order[i - 1].name, order[i].name);
    mem_free(order);
    return status;
}

static kvasir_status read_alignment(const struct gguf *g, uint32_t *alignment, kvasir_error *err) {
    *alignment = GGUF_ALIGNMENT;
    TRY(gguf_get_u32(g, "general.alignment", false, GGUF_ALIGNMENT_MIN, GGUF_ALIGNMENT_MAX,
                     alignment, err));
    if (*alignment & (*alignment - 1))
        return fail_at(err, KVASIR_ERR_FORMAT, gguf_find(g, "general.alignment")->offset,
                       "metadata general.alignment is %u, must be a power of two", *alignment);
    return KVASIR_OK;
}

/* Appends the next tensor to the checkpoint. */
static kvasir_status add_tensor(struct reader *r, struct checkpoint *c, struct data_place *place) {
    struct text_span name;
    struct checkpoint_tensor t;
    TRY(take_tensor(r, &name, &t, place));
    return checkpoint_add_take(c, gguf_tensor_name(&c->config, name.data, name.len), &t, r->err);
}

static kvasir_status take_tensors(struct reader *r, const struct gguf *g, struct checkpoint *c) {
    struct data_place *places = NULL; /* [n_tensors - first], grows as entries are read */
    size_t cap = 0, first = c->n_tensors;
    uint32_t alignment;
    kvasir_status status;
    TRY_GOTO(read_alignment(g, &alignment, r->err));
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        if (!ARRAY_GROW(places, cap, i + 1))
            TRY_GOTO(fail(r->err, KVASIR_ERR_MEMORY, "out of memory for %" PRIu64 " tensors",
                          g->n_tensors));
        TRY_GOTO(add_tensor(r, c, &places[i]));
    }
    size_t start = round_up(r->pos, alignment); /* pos is at most a file's size: no overflow */
    if (start > r->size && g->n_tensors)
        TRY_GOTO(fail_at(r->err, KVASIR_ERR_FORMAT, (int64_t)r->pos,
                         "the file ends before its tensor data"));
    for (size_t i = 0; i < g->n_tensors; i++)
        TRY_GOTO(place_tensor(g, start, alignment, places[i], &c->tensors[first + i], r->err));
    status = check_disjoint(c, first, g, r->err);
done:
    mem_free(places);
    return status;
}

kvasir_status gguf_read_tensors(const struct gguf *g, struct checkpoint *c, kvasir_error *err) {
    struct reader r = {g->map.data, g->map.size, g->infos, err};
    return take_tensors(&r, g, c);
}

/* ---- the head -------------------------------------------------------------------------------- */

static kvasir_status take_head(struct reader *r, struct gguf *g, uint64_t *n_values) {
    const uint8_t *magic;
    if (r->size < 4 || memcmp(r->data, "GGUF", 4) != 0)
        return fail_at(r->err, KVASIR_ERR_FORMAT, 0,
                       "no GGUF file (it does not begin with \"GGUF\"); for safetensors give the "
                       "folder that holds config.json");
    TRY(take(r, 4, "the header", &magic));
    TRY(take_u32(r, "the header", &g->version));
    uint32_t swapped = __builtin_bswap32(g->version);
    if (swapped >= GGUF_VERSION_MIN && swapped <= GGUF_VERSION_MAX)
        return fail_at(r->err, KVASIR_ERR_UNSUPPORTED, 4, "big-endian GGUF is not supported");
    if (g->version < GGUF_VERSION_MIN || g->version > GGUF_VERSION_MAX)
        return fail_at(r->err, KVASIR_ERR_UNSUPPORTED, 4,
                       "GGUF version %u is not supported, only versions %d and %d", g->version,
                       GGUF_VERSION_MIN, GGUF_VERSION_MAX);
    TRY(take_u64(r, "the header", &g->n_tensors));
    return take_u64(r, "the header", n_values);
}

kvasir_status gguf_read_values(struct gguf *g, kvasir_error *err) {
    struct reader r = {g->map.data, g->map.size, 0, err};
    uint64_t n_values;
    TRY(take_head(&r, g, &n_values));
    TRY(take_values(&r, g, n_values));
    g->infos = r.pos;
    return KVASIR_OK;
}
