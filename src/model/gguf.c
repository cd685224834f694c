/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF versions 2 and 3: one file's metadata values. gguf_tensors.c reads the tensors after them,
 * gguf_config.c and gguf_text.c know what the values mean, and gguf_parts.c opens the several files
 * of a split model.
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
 * Everything is little-endian and read in place: values and names are spans of the mapping.
 *
 * Invariants
 *   GGUF-1  `pos` never passes `size`; every read asks `take` first, and a count is checked against
 *           the bytes that are left before a loop believes it. Time and memory are thus linear in
 *           the file's size.
 *   GGUF-2  Errors carry the byte offset of the thing that is wrong.
 *
 * Not supported: version 1 (32-bit counts and lengths; not written since August 2023), big-endian
 * files (part of version 3), types that quant/ lacks.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "model/model_internal.h"

enum {
    GGUF_VERSION_MIN = 2, /* little-endian, 2 and 3 are the same */
    GGUF_VERSION_MAX = 3,
    GGUF_KEY_MAX = 65535, /* the format's own limit */
    GGUF_NESTING_MAX = 4, /* arrays in arrays; no known file nests them */
};

/* ---- bytes ----------------------------------------------------------------------------------- */

static kvasir_status take(struct gguf_reader *r, uint64_t n, const char *what, const uint8_t **at) {
    if (n > r->size - r->pos)
        return fail_at(r->err, KVASIR_ERR_FORMAT, (int64_t)r->pos,
                       "the file ends inside %s: needs %" PRIu64 " bytes, %zu are left: is the "
                       "download complete?",
                       what, n, r->size - r->pos);
    *at = r->data + r->pos;
    r->pos += (size_t)n;
    return KVASIR_OK;
}

kvasir_status gguf_take_u32(struct gguf_reader *r, const char *what, uint32_t *out) {
    const uint8_t *at = NULL;
    TRY(take(r, sizeof *out, what, &at));
    memcpy(out, at, sizeof *out);
    return KVASIR_OK;
}

kvasir_status gguf_take_u64(struct gguf_reader *r, const char *what, uint64_t *out) {
    const uint8_t *at = NULL;
    TRY(take(r, sizeof *out, what, &at));
    memcpy(out, at, sizeof *out);
    return KVASIR_OK;
}

kvasir_status gguf_take_string(struct gguf_reader *r, const char *what, struct text_span *out) {
    uint64_t len;
    const uint8_t *at = NULL;
    TRY(gguf_take_u64(r, what, &len));
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

static kvasir_status take_type(struct gguf_reader *r, uint32_t *type) {
    int64_t at = (int64_t)r->pos;
    TRY(gguf_take_u32(r, "a value's type", type));
    if (*type >= GGUF_TYPES)
        return fail_at(r->err, KVASIR_ERR_FORMAT, at, "unknown metadata type %u", *type);
    return KVASIR_OK;
}

static kvasir_status take_elements(struct gguf_reader *r, uint32_t elem, uint64_t count, int depth);

/* The head of an array: element type and count. At least the smallest encodings of that many must
 * fit in the file. */
static kvasir_status take_array_head(struct gguf_reader *r, uint32_t *elem, uint64_t *count) {
    TRY(take_type(r, elem));
    int64_t at = (int64_t)r->pos;
    TRY(gguf_take_u64(r, "an array's length", count));
    if (*count > (r->size - r->pos) / value_types[*elem].bytes_min)
        return fail_at(r->err, KVASIR_ERR_FORMAT, at,
                       "an array of %" PRIu64 " x %s does not fit in the %zu bytes left", *count,
                       value_types[*elem].name, r->size - r->pos);
    return KVASIR_OK;
}

static kvasir_status take_element(struct gguf_reader *r, uint32_t type, int depth) {
    if (type == GGUF_STRING) {
        struct text_span text;
        return gguf_take_string(r, "a string", &text);
    }
    if (depth >= GGUF_NESTING_MAX)
        return fail_at(r->err, KVASIR_ERR_FORMAT, (int64_t)r->pos,
                       "arrays are nested deeper than %d levels", GGUF_NESTING_MAX);
    uint32_t elem;
    uint64_t count;
    TRY(take_array_head(r, &elem, &count));
    return take_elements(r, elem, count, depth + 1);
}

static kvasir_status take_elements(struct gguf_reader *r, uint32_t elem, uint64_t count,
                                   int depth) {
    const uint8_t *at = NULL;
    if (value_types[elem].bytes) /* the count was checked: no overflow */
        return take(r, count * value_types[elem].bytes, "an array", &at);
    for (uint64_t i = 0; i < count; i++)
        TRY(take_element(r, elem, depth));
    return KVASIR_OK;
}

static kvasir_status take_value(struct gguf_reader *r, struct gguf_value *v) {
    int64_t at = (int64_t)r->pos;
    TRY(gguf_take_string(r, "a metadata key", &v->key));
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
        TRY(gguf_take_u64(r, "a string", &v->count));
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

static kvasir_status take_values(struct gguf_reader *r, struct gguf *g, uint64_t n) {
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

/* Converters write the same key as u32, i32 or u64, so any integer type with a valid value is
 * accepted. */
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
    /* A string takes at least 8 bytes, so the spans take at most twice the file's size. */
    struct text_span *list = mem_calloc((size_t)v->count, sizeof *list);
    if (!list)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for %s", key);
    struct gguf_reader r = {g->map.data, g->map.size, (size_t)v->offset, err};
    for (size_t i = 0; i < v->count; i++) {
        kvasir_status status = gguf_take_string(&r, key, &list[i]);
        if (status != KVASIR_OK) {
            mem_free(list);
            return status;
        }
    }
    *spans = list;
    *n = (size_t)v->count;
    return KVASIR_OK;
}

/* ---- the head -------------------------------------------------------------------------------- */

/* The rest of "not a GGUF file (it ...": what else it may be, and what to do. */
static const char *begins_how(const uint8_t *data, size_t size) {
    static const struct {
        const char *text;
        size_t at;
        const char *how;
    } KNOWN[] = {
        {"version https://git-lfs", 0,
         "is a pointer of Git LFS): get the file itself, with git lfs pull or kvasir pull"},
        {"<!DOCTYPE", 0, "is a web page): download the file itself, not the page about it"},
        {"<html", 0, "is a web page): download the file itself, not the page about it"},
        {"PK\003\004", 0, "is a zip archive, perhaps of PyTorch): give GGUF or safetensors"},
        {"{\"", 8, "is a safetensors file): give the folder that holds it and config.json"},
    };
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
        const size_t n = strlen(KNOWN[i].text);
        if (size >= KNOWN[i].at + n && memcmp(data + KNOWN[i].at, KNOWN[i].text, n) == 0)
            return KNOWN[i].how;
    }
    return "does not begin with \"GGUF\"); for safetensors give the folder that holds config.json";
}

static kvasir_status take_head(struct gguf_reader *r, struct gguf *g, uint64_t *n_values) {
    const uint8_t *magic;
    if (r->size < 4 || memcmp(r->data, "GGUF", 4) != 0)
        return fail_at(r->err, KVASIR_ERR_FORMAT, 0, "not a GGUF file (it %s",
                       begins_how(r->data, r->size));
    TRY(take(r, 4, "the header", &magic));
    TRY(gguf_take_u32(r, "the header", &g->version));
    uint32_t swapped = __builtin_bswap32(g->version);
    if (swapped >= GGUF_VERSION_MIN && swapped <= GGUF_VERSION_MAX)
        return fail_at(r->err, KVASIR_ERR_UNSUPPORTED, 4, "big-endian GGUF is not supported");
    if (g->version < GGUF_VERSION_MIN || g->version > GGUF_VERSION_MAX)
        return fail_at(r->err, KVASIR_ERR_UNSUPPORTED, 4,
                       "GGUF version %u is not supported, only versions %d and %d", g->version,
                       GGUF_VERSION_MIN, GGUF_VERSION_MAX);
    TRY(gguf_take_u64(r, "the header", &g->n_tensors));
    return gguf_take_u64(r, "the header", n_values);
}

kvasir_status gguf_read_values(struct gguf *g, kvasir_error *err) {
    struct gguf_reader r = {g->map.data, g->map.size, 0, err};
    uint64_t n_values;
    TRY(take_head(&r, g, &n_values));
    TRY(take_values(&r, g, n_values));
    ASSERT(r.pos <= r.size); /* GGUF-1 */
    g->infos = r.pos;
    return KVASIR_OK;
}
