/* SPDX-License-Identifier: Apache-2.0 */
/* A prompt-cache file cut into tensors and metadata. Every length is checked here:
 *
 *   H1  the header's length lies inside the file, its JSON is bounded (json_load_bounded) and its
 *       keys are unique
 *   H2  dims are below 2^31, at most PROMPT_DIMS_MAX of them; shape times type is exactly what
 *       data_offsets span
 *   H3  data lie inside the file; in order of their offsets they leave no hole, do not overlap and
 *       end with the file (prompt_header_check_data, last: a tensor that is missing is named then)
 *   H4  metadata are strings
 *
 * Tables have as many rows as the JSON has keys, so their size follows from the file's.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "files/prompt_file_internal.h"
#include "util/json.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are read where they lie");

enum { HEADER_MAX = 100000000 }; /* mlx's limit, and the official reader's */

/* ---- one tensor ------------------------------------------------------------------------------ */

static kvasir_status read_dtype(const char *name, const json_t *info, enum prompt_dtype *dtype,
                                kvasir_error *err) {
    const char *text = json_string_value(json_object_get(info, "dtype"));
    if (!text)
        return fail(err, KVASIR_ERR_FORMAT, "tensor %.100s: field dtype must be a string", name);
    for (int i = PROMPT_F32; i <= PROMPT_I32; i++)
        if (strcmp(text, prompt_dtype_name((enum prompt_dtype)i)) == 0) {
            *dtype = (enum prompt_dtype)i;
            return KVASIR_OK;
        }
    return fail(err, KVASIR_ERR_UNSUPPORTED,
                "tensor %.100s has dtype %.32s, prompt caches hold F32 F16 BF16 U32 I32", name,
                text);
}

/* An array of at most `cap` integers from 0 to `max`. */
static kvasir_status read_counts(const char *name, const json_t *info, const char *field,
                                 size_t cap, uint64_t max, uint64_t *out, size_t *n,
                                 kvasir_error *err) {
    const json_t *list = json_object_get(info, field);
    if (!json_is_array(list) || json_array_size(list) > cap)
        return fail(err, KVASIR_ERR_FORMAT,
                    "tensor %.100s: field %s must be an array of at most %zu integers", name, field,
                    cap);
    *n = json_array_size(list);
    for (size_t i = 0; i < *n; i++) {
        const json_t *value = json_array_get(list, i);
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            (uint64_t)json_integer_value(value) > max)
            return fail(err, KVASIR_ERR_FORMAT,
                        "tensor %.100s: field %s[%zu] must be an integer from 0 to %" PRIu64, name,
                        field, i, max);
        out[i] = (uint64_t)json_integer_value(value);
    }
    return KVASIR_OK;
}

static bool shape_bytes(const struct prompt_tensor *t, size_t *bytes) {
    *bytes = prompt_dtype_bytes(t->dtype);
    for (uint32_t i = 0; i < t->n_dims; i++)
        if (!mul_size(*bytes, t->dims[i], bytes))
            return false;
    return true;
}

static kvasir_status read_shape(const char *name, const json_t *info, struct prompt_tensor *t,
                                kvasir_error *err) {
    uint64_t dims[PROMPT_DIMS_MAX];
    size_t n;
    TRY(read_counts(name, info, "shape", PROMPT_DIMS_MAX, PROMPT_COUNT_MAX, dims, &n, err));
    t->n_dims = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        t->dims[i] = (uint32_t)dims[i];
    if (!shape_bytes(t, &t->bytes))
        return fail(err, KVASIR_ERR_FORMAT, "tensor %.100s: the product of its shape overflows",
                    name);
    return KVASIR_OK;
}

/* base: where the data section begins. */
static kvasir_status read_tensor(const struct file_map *map, size_t base, const char *name,
                                 const json_t *info, struct prompt_tensor *t, kvasir_error *err) {
    uint64_t at[2];
    size_t n, size = map->size - base;
    *t = (struct prompt_tensor){.present = true};
    if (!json_is_object(info))
        return fail(err, KVASIR_ERR_FORMAT, "tensor %.100s must be an object", name);
    TRY(read_dtype(name, info, &t->dtype, err));
    TRY(read_shape(name, info, t, err));
    TRY(read_counts(name, info, "data_offsets", 2, INT64_MAX, at, &n, err));
    if (n != 2 || at[0] > at[1])
        return fail(err, KVASIR_ERR_FORMAT,
                    "tensor %.100s: field data_offsets must be two integers in rising order", name);
    if (at[1] > size)
        return fail(err, KVASIR_ERR_FORMAT,
                    "tensor %.100s: data_offsets end at %" PRIu64 ", the file has %zu bytes of "
                    "data",
                    name, at[1], size);
    if (t->bytes != at[1] - at[0])
        return fail_at(err, KVASIR_ERR_FORMAT, (int64_t)(base + at[0]),
                       "tensor %.100s: its shape needs %zu bytes, data_offsets give %" PRIu64, name,
                       t->bytes, at[1] - at[0]);
    t->data = map->data + base + at[0];
    return KVASIR_OK;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b) {
    return strcmp(((const struct prompt_raw *)a)->name, ((const struct prompt_raw *)b)->name);
}
static int compare_keys(const void *a, const void *b) {
    return strcmp(((const struct prompt_meta *)a)->key, ((const struct prompt_meta *)b)->key);
}
static int compare_data(const void *a, const void *b) {
    const struct prompt_tensor *x = &(*(struct prompt_raw *const *)a)->tensor;
    const struct prompt_tensor *y = &(*(struct prompt_raw *const *)b)->tensor;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones first */
}

struct prompt_raw *prompt_header_tensor(const struct prompt_header *h, const char *name) {
    struct prompt_raw key = {.name = name};
    return h->n_tensors ? bsearch(&key, h->tensors, h->n_tensors, sizeof key, compare_names) : NULL;
}

struct prompt_meta *prompt_header_meta(const struct prompt_header *h, const char *key) {
    struct prompt_meta meta = {.key = key};
    return h->n_metas ? bsearch(&meta, h->metas, h->n_metas, sizeof meta, compare_keys) : NULL;
}

static kvasir_status read_metas(struct prompt_header *h, json_t *metadata, kvasir_error *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata) || json_object_size(metadata) == 0)
        return fail(err, KVASIR_ERR_FORMAT,
                    "field __metadata__ must be an object with the classes of a prompt cache");
    h->metas = mem_calloc(json_object_size(metadata), sizeof *h->metas);
    if (!h->metas)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for the metadata");
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return fail(err, KVASIR_ERR_FORMAT, "field __metadata__.%.100s must be a string", key);
        h->metas[h->n_metas++] =
            (struct prompt_meta){.key = key, .value = json_string_value(value)};
    }
    qsort(h->metas, h->n_metas, sizeof *h->metas, compare_keys);
    return KVASIR_OK;
}

static kvasir_status read_tensors(struct prompt_header *h, const struct file_map *map,
                                  kvasir_error *err) {
    const char *name;
    json_t *info;
    h->tensors = mem_calloc(json_object_size(h->json) + 1, sizeof *h->tensors);
    if (!h->tensors)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for the tensors");
    json_object_foreach(h->json, name, info) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        struct prompt_raw *raw = &h->tensors[h->n_tensors];
        TRY(read_tensor(map, h->base, name, info, &raw->tensor, err));
        raw->name = name;
        h->n_tensors++;
    }
    qsort(h->tensors, h->n_tensors, sizeof *h->tensors, compare_names);
    return KVASIR_OK;
}

/* The first tensor, in order of data, that begins before the end of the one before it (or, with
 * holes, behind it); *end is that end. */
static const struct prompt_raw *find_misplaced(struct prompt_raw *const *order, size_t n,
                                               bool holes, const uint8_t **end) {
    for (size_t i = 0; i < n; i++) {
        const struct prompt_tensor *t = &order[i]->tensor;
        if (holes ? t->data > *end : t->data < *end)
            return order[i];
        *end = t->data + t->bytes;
    }
    return NULL;
}

kvasir_status prompt_header_check_data(const struct prompt_header *h, const struct file_map *map,
                                       kvasir_error *err) {
    struct prompt_raw **order = mem_calloc(h->n_tensors + 1, sizeof *order);
    if (!order)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for the tensors");
    for (size_t i = 0; i < h->n_tensors; i++)
        order[i] = &h->tensors[i];
    qsort(order, h->n_tensors, sizeof *order, compare_data);
    const uint8_t *end = NULL, *last = map->data + map->size;
    const struct prompt_raw *bad = find_misplaced(order, h->n_tensors, false, &end);
    bool hole = !bad;
    if (hole) {
        end = map->data + h->base;
        bad = find_misplaced(order, h->n_tensors, true, &end);
    }
    mem_free(order);
    if (bad)
        return fail_at(err, KVASIR_ERR_FORMAT, bad->tensor.data - map->data,
                       "tensor %.100s: data_offsets %s", bad->name,
                       hole ? "leave a hole before it" : "overlap another tensor's");
    if (end != last)
        return fail_at(err, KVASIR_ERR_FORMAT, end - map->data,
                       "%td bytes behind the last tensor's data", last - end);
    return KVASIR_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static kvasir_status read_json(const struct file_map *map, json_t **json, size_t *base,
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
    return json_load_bounded(text, (size_t)len, sizeof len, 0, json, err);
}

kvasir_status prompt_header_read(const struct file_map *map, struct prompt_header *h,
                                 kvasir_error *err) {
    *h = (struct prompt_header){0};
    TRY(read_json(map, &h->json, &h->base, err));
    TRY(read_tensors(h, map, err));
    return read_metas(h, json_object_get(h->json, "__metadata__"), err);
}

void prompt_header_deinit(struct prompt_header *h) {
    mem_free(h->tensors);
    mem_free(h->metas);
    *h = (struct prompt_header){0};
}
