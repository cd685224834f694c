/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "files/safetensors.h"
#include "util/json.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "data are little-endian, as in memory");

enum { HEADER_MAX = 100000000 }; /* the official reader's limit, and mlx's */

static const struct {
    const char *name;
    uint8_t bytes;
} dtypes[] = {
    [ST_F32] = {"F32", 4},         [ST_F16] = {"F16", 2}, [ST_BF16] = {"BF16", 2},
    [ST_F8_E4M3] = {"F8_E4M3", 1}, [ST_U32] = {"U32", 4}, [ST_U8] = {"U8", 1},
    [ST_I64] = {"I64", 8},         [ST_I32] = {"I32", 4}, [ST_BOOL] = {"BOOL", 1},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };
_Static_assert(DTYPES == ST_BOOL + 1, "every type has a name and a size");

size_t st_dtype_bytes(enum st_dtype dtype) {
    ASSERT((size_t)dtype < DTYPES);
    return dtypes[dtype].bytes;
}

const char *st_dtype_name(enum st_dtype dtype) {
    ASSERT((size_t)dtype < DTYPES);
    return dtypes[dtype].name;
}

bool st_name_is_clean(const char *name, size_t len) {
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return false;
    return len > 0;
}

/* ---- one tensor ------------------------------------------------------------------------------ */

static kvasir_status read_dtype(const char *name, const json_t *info, enum st_dtype *dtype,
                                kvasir_error *err) {
    const char *text = json_string_value(json_object_get(info, "dtype"));
    if (!text)
        return fail(err, KVASIR_ERR_FORMAT, "tensor %.100s: field dtype must be a string, found %s",
                    name, json_kind(json_object_get(info, "dtype")));
    for (int i = 0; i < DTYPES; i++)
        if (strcmp(text, dtypes[i].name) == 0) {
            *dtype = (enum st_dtype)i;
            return KVASIR_OK;
        }
    return fail(err, KVASIR_ERR_UNSUPPORTED,
                "tensor %.100s has dtype %.32s, supported are F32 F16 BF16 F8_E4M3, and integers "
                "in quantized modules and prompt caches",
                name, text);
}

/* An array of at most `max` non-negative integers. */
static kvasir_status read_counts(const char *name, const json_t *info, const char *field,
                                 size_t max, uint64_t *out, size_t *n, kvasir_error *err) {
    const json_t *list = json_object_get(info, field);
    if (!json_is_array(list) || json_array_size(list) > max)
        return fail(err, KVASIR_ERR_FORMAT,
                    "tensor %.100s: field %s must be an array of at most %zu integers", name, field,
                    max);
    *n = json_array_size(list);
    for (size_t i = 0; i < *n; i++) {
        const json_t *value = json_array_get(list, i);
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return fail(err, KVASIR_ERR_FORMAT,
                        "tensor %.100s: field %s[%zu] must be an integer of at least 0", name,
                        field, i);
        out[i] = (uint64_t)json_integer_value(value);
    }
    return KVASIR_OK;
}

static bool shape_bytes(const struct st_tensor *t, size_t *bytes) {
    *bytes = dtypes[t->dtype].bytes;
    for (uint32_t i = 0; i < t->n_dims; i++)
        if (!mul_size(*bytes, t->dims[i], bytes))
            return false;
    return true;
}

/* base: offset of the data in the file. */
static kvasir_status read_tensor(const char *name, const json_t *info, const struct file_map *map,
                                 size_t base, struct st_tensor *t, kvasir_error *err) {
    uint64_t offsets[2];
    size_t n_dims, n_offsets, size = map->size - base;
    *t = (struct st_tensor){0};
    if (!st_name_is_clean(name, strlen(name)))
        return fail(err, KVASIR_ERR_FORMAT,
                    "a tensor's name is empty or holds control characters: %.60s", name);
    if (!json_is_object(info))
        return fail(err, KVASIR_ERR_FORMAT, "tensor %.100s must be an object, found %s", name,
                    json_kind(info));
    TRY(read_dtype(name, info, &t->dtype, err));
    TRY(read_counts(name, info, "shape", ST_DIMS_MAX, t->dims, &n_dims, err));
    TRY(read_counts(name, info, "data_offsets", 2, offsets, &n_offsets, err));
    t->n_dims = (uint32_t)n_dims;
    if (n_offsets != 2 || offsets[0] > offsets[1])
        return fail(err, KVASIR_ERR_FORMAT,
                    "tensor %.100s: field data_offsets must be two integers in rising order", name);
    if (offsets[1] > size)
        return fail(err, KVASIR_ERR_FORMAT,
                    "tensor %.100s: data_offsets end at %" PRIu64
                    ", the file has %zu bytes of data",
                    name, offsets[1], size);
    if (!shape_bytes(t, &t->bytes))
        return fail(err, KVASIR_ERR_FORMAT, "tensor %.100s: the product of its shape overflows",
                    name);
    if (t->bytes != offsets[1] - offsets[0])
        return fail_at(err, KVASIR_ERR_FORMAT, (int64_t)(base + offsets[0]),
                       "tensor %.100s: its shape needs %zu bytes, data_offsets give %" PRIu64, name,
                       t->bytes, offsets[1] - offsets[0]);
    t->data = map->data + base + offsets[0];
    ASSERT(t->data >= map->data && t->bytes <= (size_t)(map->data + map->size - t->data));
    return KVASIR_OK;
}

/* ---- the table of tensors -------------------------------------------------------------------- */

static kvasir_status add_tensor(struct st_table *table, const char *name, const struct st_tensor *t,
                                kvasir_error *err) {
    char *copy = mem_strdup(name);
    if (!copy || !ARRAY_GROW(table->list, table->cap, table->n + 1)) {
        mem_free(copy);
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for %zu tensors", table->n + 1);
    }
    ASSERT(table->n < table->cap);
    table->list[table->n] = *t;
    table->list[table->n++].name = copy;
    return KVASIR_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

static int compare_data(const void *a, const void *b) {
    const struct st_tensor *x = *(const struct st_tensor *const *)a,
                           *y = *(const struct st_tensor *const *)b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones first */
}

kvasir_status st_sort(struct st_table *t, kvasir_error *err) {
    if (t->n)
        qsort(t->list, t->n, sizeof *t->list, compare_names);
    for (size_t i = 1; i < t->n; i++)
        if (strcmp(t->list[i - 1].name, t->list[i].name) == 0)
            return fail(err, KVASIR_ERR_FORMAT, "duplicate tensor %.100s", t->list[i].name);
    return KVASIR_OK;
}

struct st_tensor *st_find(const struct st_table *t, const char *name) {
    struct st_tensor key = {.name = (char *)name};
    return t->n ? bsearch(&key, t->list, t->n, sizeof key, compare_names) : NULL;
}

void st_table_free(struct st_table *t) {
    for (size_t i = 0; i < t->n; i++)
        mem_free(t->list[i].name);
    mem_free(t->list);
    *t = (struct st_table){0};
}

/* ---- one file -------------------------------------------------------------------------------- */

kvasir_status st_check_data(const struct st_table *t, size_t first, const struct file_map *map,
                            kvasir_error *err) {
    ASSERT(first <= t->n && t->base <= map->size);
    size_t n = t->n - first;
    const struct st_tensor **order = mem_calloc(n, sizeof *order);
    if (!order)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++)
        order[i] = &t->list[first + i];
    qsort(order, n, sizeof *order, compare_data);
    const uint8_t *end = map->data + t->base, *last = map->data + map->size;
    const struct st_tensor *bad = NULL;
    bool overlap = false;
    for (size_t i = 0; i < n && !overlap; i++) {
        overlap = order[i]->data < end;
        if (overlap || (!bad && order[i]->data > end))
            bad = order[i];
        end = order[i]->data + order[i]->bytes;
    }
    mem_free(order);
    if (bad)
        return fail_at(err, KVASIR_ERR_FORMAT, bad->data - map->data,
                       "tensor %.100s: data_offsets %s", bad->name,
                       overlap ? "overlap another tensor's" : "leave a hole before it");
    if (end != last)
        return fail_at(err, KVASIR_ERR_FORMAT, end - map->data,
                       "%td bytes after the last tensor's data", last - end);
    return KVASIR_OK;
}

/* null is what mx.save_safetensors writes for none. */
static kvasir_status check_metadata(json_t *metadata, kvasir_error *err) {
    const char *key;
    json_t *value;
    if (metadata && !json_is_object(metadata) && !json_is_null(metadata))
        return fail(err, KVASIR_ERR_FORMAT, "field __metadata__ must be an object, found %s",
                    json_kind(metadata));
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return fail(err, KVASIR_ERR_FORMAT,
                        "field __metadata__.%.100s must be a string, found %s", key,
                        json_kind(value));
    }
    return KVASIR_OK;
}

static kvasir_status read_header(const struct file_map *map, json_t **header, size_t *base,
                                 kvasir_error *err) {
    uint64_t len;
    if (map->size < sizeof len)
        return fail_at(err, KVASIR_ERR_FORMAT, 0, "the file ends inside the header's length");
    memcpy(&len, map->data, sizeof len);
    if (len > HEADER_MAX || len > map->size - sizeof len)
        return fail_at(err, KVASIR_ERR_FORMAT, 0,
                       "the header's length %" PRIu64 " is past the file's end (%zu bytes) or "
                       "above %d",
                       len, map->size, HEADER_MAX);
    const char *text = (const char *)map->data + sizeof len;
    if (len == 0 || text[0] != '{')
        return fail_at(err, KVASIR_ERR_FORMAT, sizeof len, "the header does not begin with '{'");
    *base = sizeof len + (size_t)len;
    return json_load_bounded(text, (size_t)len, sizeof len, 0, header, err);
}

static kvasir_status read_tensors(struct st_table *t, const struct file_map *map, json_t *header,
                                  kvasir_error *err) {
    const char *name;
    json_t *info;
    json_object_foreach(header, name, info) {
        struct st_tensor tensor;
        if (strcmp(name, "__metadata__") == 0)
            continue;
        TRY(read_tensor(name, info, map, t->base, &tensor, err));
        TRY(add_tensor(t, name, &tensor, err));
    }
    return KVASIR_OK;
}

kvasir_status st_read(struct st_table *t, const struct file_map *map, json_t **metadata,
                      kvasir_error *err) {
    json_t *header = NULL;
    kvasir_status status;
    if (metadata)
        *metadata = NULL;
    TRY_GOTO(read_header(map, &header, &t->base, err));
    TRY_GOTO(check_metadata(json_object_get(header, "__metadata__"), err));
    TRY_GOTO(read_tensors(t, map, header, err));
    if (metadata)
        *metadata = json_incref(json_object_get(header, "__metadata__"));
done:
    json_decref(header);
    return status;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void set_member(struct st_header *h, const char *name, json_t *value_take) {
    if (!h->object)
        h->object = json_object();
    if (json_object_set_new(h->object, name, value_take) != 0) /* also for NULL */
        h->failed = true;
}

void st_add_metadata(struct st_header *h, json_t *metadata) {
    set_member(h, "__metadata__", json_incref(metadata));
}

void st_add(struct st_header *h, const char *name, enum st_dtype dtype, const uint64_t *dims,
            uint32_t n_dims) {
    ASSERT(n_dims <= ST_DIMS_MAX);
    size_t begin = h->end, bytes = st_dtype_bytes(dtype);
    json_t *shape = json_array();
    for (uint32_t i = 0; i < n_dims; i++) {
        h->failed |= json_array_append_new(shape, json_integer((json_int_t)dims[i])) != 0;
        h->failed |= !mul_size(bytes, dims[i], &bytes);
    }
    h->failed |= !add_size(h->end, bytes, &h->end);
    set_member(h, name,
               json_pack("{s:s, s:o, s:[I,I]}", "dtype", st_dtype_name(dtype), "shape", shape,
                         "data_offsets", (json_int_t)begin, (json_int_t)h->end));
}

bool st_finish(struct st_header *h, size_t flags, struct text_buf *out) {
    char *text = h->failed ? NULL : json_dumps(h->object, JSON_COMPACT | flags);
    st_header_free(h);
    if (!text)
        return false;
    uint64_t len = strlen(text), padded = round_up(len, 8);
    ASSERT(padded - len < 8);
    bool good = text_append(out, &padded, sizeof padded) && text_append(out, text, len) &&
                text_append(out, "       ", padded - len);
    mem_free(text); /* jansson takes it from malloc, too */
    return good;
}

void st_header_free(struct st_header *h) {
    json_decref(h->object);
    *h = (struct st_header){0};
}
