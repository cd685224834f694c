/* SPDX-License-Identifier: Apache-2.0 */
/* A Hugging Face folder: config.json and the tensors of model.safetensors, or of the shards that
 * model.safetensors.index.json lists.
 *
 *     | u64 n | header: n bytes of JSON                                                    | data |
 *             | {"__metadata__": {..}, NAME: {"dtype", "shape", "data_offsets": [b, e]}, ..} |
 *
 * data_offsets count from the data section. Rules kept (those of the official reader): the header
 * has at most 100 MB and begins with '{'; keys are unique; the shape times the type is exactly
 * e - b; tensors, in order of their data, begin at 0 and each where the one before ended, and the
 * last ends with the file: no holes, no overlap, nothing behind.
 *
 * Beyond them: an index may name only files beside it, and what it says about a tensor must be
 * true. Data may lie at odd addresses: mlx pads no header.
 *
 * Here tensors are what the files hold; modules.c joins those that belong together. The folder's
 * text files are folder.c's.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "model/model_internal.h"

enum {
    HEADER_MAX = 100000000, /* the official reader's limit */
    CONFIG_MAX = 1 << 20,   /* real ones have a few KB */
    INDEX_MAX = 64 << 20,   /* 100 bytes a tensor */
};

struct reader {
    struct checkpoint *c;
    struct raw_tensors raw;
    struct quantization quantization;
    const char *folder;
    kvasir_error *err;
};

/* ---- one tensor ------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    uint8_t bytes;
} dtypes[] = {
    [RAW_F32] = {"F32", 4},         [RAW_F16] = {"F16", 2}, [RAW_BF16] = {"BF16", 2},
    [RAW_F8_E4M3] = {"F8_E4M3", 1}, [RAW_U32] = {"U32", 4}, [RAW_U8] = {"U8", 1},
    [RAW_I64] = {"I64", 8},         [RAW_I32] = {"I32", 4}, [RAW_BOOL] = {"BOOL", 1},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

const char *raw_dtype_name(enum raw_dtype dtype) {
    return dtypes[dtype].name;
}

static kvasir_status read_dtype(const char *name, const json_t *info, enum raw_dtype *dtype,
                                kvasir_error *err) {
    const char *text = json_string_value(json_object_get(info, "dtype"));
    if (!text)
        return fail(err, KVASIR_ERR_FORMAT, "tensor %s: field dtype must be a string, found %s",
                    name, json_kind(json_object_get(info, "dtype")));
    for (int i = 0; i < DTYPES; i++)
        if (strcmp(text, dtypes[i].name) == 0) {
            *dtype = (enum raw_dtype)i;
            return KVASIR_OK;
        }
    return fail(err, KVASIR_ERR_UNSUPPORTED,
                "tensor %s has dtype %.32s, supported are F32 F16 BF16 F8_E4M3, and U32 and U8 in "
                "mlx's quantized modules",
                name, text);
}

/* An array of at most `max` non-negative integers. */
static kvasir_status read_counts(const char *name, const json_t *info, const char *field,
                                 size_t max, uint64_t *out, size_t *n, kvasir_error *err) {
    const json_t *list = json_object_get(info, field);
    if (!json_is_array(list) || json_array_size(list) > max)
        return fail(err, KVASIR_ERR_FORMAT,
                    "tensor %s: field %s must be an array of at most %zu integers", name, field,
                    max);
    *n = json_array_size(list);
    for (size_t i = 0; i < *n; i++) {
        const json_t *value = json_array_get(list, i);
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return fail(err, KVASIR_ERR_FORMAT,
                        "tensor %s: field %s[%zu] must be an integer of at least 0", name, field,
                        i);
        out[i] = (uint64_t)json_integer_value(value);
    }
    return KVASIR_OK;
}

static bool raw_bytes(const struct raw_tensor *t, size_t *bytes) {
    *bytes = dtypes[t->dtype].bytes;
    for (uint32_t i = 0; i < t->n_dims; i++)
        if (!mul_size(*bytes, t->dims[i], bytes))
            return false;
    return true;
}

/* data, size: the data section. base: its offset in the file. */
static kvasir_status read_tensor(const char *name, const json_t *info, const uint8_t *data,
                                 size_t size, size_t base, struct raw_tensor *t,
                                 kvasir_error *err) {
    uint64_t offsets[2];
    size_t n_dims, n_offsets;
    *t = (struct raw_tensor){0};
    if (!name_is_clean(name, strlen(name)))
        return fail(err, KVASIR_ERR_FORMAT,
                    "a tensor's name is empty or holds control characters: %.60s", name);
    if (!json_is_object(info))
        return fail(err, KVASIR_ERR_FORMAT, "tensor %s must be an object, found %s", name,
                    json_kind(info));
    TRY(read_dtype(name, info, &t->dtype, err));
    TRY(read_counts(name, info, "shape", RAW_DIMS_MAX, t->dims, &n_dims, err));
    TRY(read_counts(name, info, "data_offsets", 2, offsets, &n_offsets, err));
    t->n_dims = (uint32_t)n_dims;
    if (n_offsets != 2 || offsets[0] > offsets[1])
        return fail(err, KVASIR_ERR_FORMAT,
                    "tensor %s: field data_offsets must be two integers in rising order", name);
    if (offsets[1] > size)
        return fail(err, KVASIR_ERR_FORMAT,
                    "tensor %s: data_offsets end at %" PRIu64 ", the file has %zu bytes of data",
                    name, offsets[1], size);
    if (!raw_bytes(t, &t->bytes))
        return fail(err, KVASIR_ERR_FORMAT, "tensor %s: the product of its shape overflows", name);
    if (t->bytes != offsets[1] - offsets[0])
        return fail_at(err, KVASIR_ERR_FORMAT, (int64_t)(base + offsets[0]),
                       "tensor %s: its shape needs %zu bytes, data_offsets give %" PRIu64, name,
                       t->bytes, offsets[1] - offsets[0]);
    t->data = data + offsets[0];
    return KVASIR_OK;
}

/* ---- the table of tensors -------------------------------------------------------------------- */

static kvasir_status add_raw(struct raw_tensors *raw, const char *name, const struct raw_tensor *t,
                             kvasir_error *err) {
    if (!ARRAY_GROW(raw->list, raw->cap, raw->n + 1))
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for %zu tensors", raw->n + 1);
    raw->list[raw->n] = *t;
    raw->list[raw->n].name = mem_strdup(name);
    if (!raw->list[raw->n].name)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for tensor names");
    raw->n++;
    return KVASIR_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const struct raw_tensor *)a)->name, ((const struct raw_tensor *)b)->name);
}

static kvasir_status sort_raw(struct raw_tensors *raw, kvasir_error *err) {
    if (raw->n)
        qsort(raw->list, raw->n, sizeof *raw->list, compare_names);
    for (size_t i = 1; i < raw->n; i++)
        if (strcmp(raw->list[i - 1].name, raw->list[i].name) == 0)
            return fail(err, KVASIR_ERR_FORMAT, "tensor %s stands there twice", raw->list[i].name);
    return KVASIR_OK;
}

struct raw_tensor *raw_find(const struct raw_tensors *raw, const char *name) {
    struct raw_tensor key = {.name = (char *)name};
    return raw->n ? bsearch(&key, raw->list, raw->n, sizeof key, compare_names) : NULL;
}

/* ---- one file -------------------------------------------------------------------------------- */

/* Tensors [first, n) are this file's. */
static kvasir_status check_gapless(const struct raw_tensors *raw, size_t first,
                                   const struct file_map *map, size_t base, kvasir_error *err) {
    size_t n = raw->n - first;
    struct extent *order = mem_calloc(n, sizeof *order);
    if (!order)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        const struct raw_tensor *t = &raw->list[first + i];
        order[i] = (struct extent){t->name, t->data, t->bytes};
    }
    extents_sort(order, n);
    kvasir_status status = KVASIR_OK;
    const uint8_t *end = map->data + base;
    for (size_t i = 0; i < n && status == KVASIR_OK; i++) {
        if (order[i].data != end)
            status = fail_at(err, KVASIR_ERR_FORMAT, order[i].data - map->data,
                             "tensor %s: data_offsets %s", order[i].name,
                             order[i].data < end ? "overlap another tensor's"
                                                 : "leave a hole before it");
        end = order[i].data + order[i].bytes;
    }
    mem_free(order);
    if (status == KVASIR_OK && end != map->data + map->size)
        status = fail_at(err, KVASIR_ERR_FORMAT, end - map->data,
                         "%td bytes behind the last tensor's data", map->data + map->size - end);
    return status;
}

/* null is what mx.save_safetensors writes for none. */
static kvasir_status check_metadata(const json_t *metadata, kvasir_error *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata) && !json_is_null(metadata))
        return fail(err, KVASIR_ERR_FORMAT, "field __metadata__ must be an object, found %s",
                    json_kind(metadata));
    json_object_foreach((json_t *)metadata, key, value) {
        if (!json_is_string(value))
            return fail(err, KVASIR_ERR_FORMAT, "field __metadata__.%s must be a string, found %s",
                        key, json_kind(value));
    }
    return KVASIR_OK;
}

static kvasir_status read_tensors(struct reader *r, const struct file_map *map, size_t base,
                                  json_t *header) {
    const char *name;
    json_t *info;
    json_object_foreach(header, name, info) {
        if (strcmp(name, "__metadata__") == 0) {
            TRY(check_metadata(info, r->err));
            continue;
        }
        struct raw_tensor t;
        TRY(read_tensor(name, info, map->data + base, map->size - base, base, &t, r->err));
        TRY(add_raw(&r->raw, name, &t, r->err));
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
    return json_parse(text, (size_t)len, sizeof len, header, err);
}

static kvasir_status read_file(struct reader *r, const char *path) {
    struct file_map map;
    TRY(checkpoint_map(r->c, path, &map, r->err));
    json_t *header = NULL;
    size_t base = 0, first = r->raw.n;
    kvasir_status status;
    TRY_GOTO(read_header(&map, &header, &base, r->err));
    TRY_GOTO(read_tensors(r, &map, base, header));
    TRY_GOTO(check_gapless(&r->raw, first, &map, base, r->err));
done:
    json_decref(header);
    return in_file(path, status, r->err);
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* A shard is a file beside the index: a name that leads elsewhere is refused. */
static bool shard_name_is_plain(const char *name) {
    size_t len = strlen(name);
    return name_is_clean(name, len) && !strchr(name, '/') && name[0] != '.' && len > 12 &&
           strcmp(name + len - 12, ".safetensors") == 0;
}

/* The files that the map names, once each, as {file: 0}. */
static kvasir_status collect_shards(json_t *weight_map, json_t *shards, kvasir_error *err) {
    const char *name;
    json_t *value;
    if (!json_is_object(weight_map))
        return fail(err, KVASIR_ERR_FORMAT, "field weight_map must be an object, found %s",
                    json_kind(weight_map));
    json_object_foreach(weight_map, name, value) {
        const char *file = json_string_value(value);
        if (!file || !shard_name_is_plain(file))
            return fail(err, KVASIR_ERR_FORMAT,
                        "field weight_map.%s must name a .safetensors file of the same folder",
                        name);
        if (json_object_set_new(shards, file, json_integer(0)) != 0)
            return fail(err, KVASIR_ERR_MEMORY, "out of memory for the shards");
    }
    return KVASIR_OK;
}

/* Opens them; shards becomes {file: number of its map}. */
static kvasir_status open_shards(struct reader *r, json_t *shards) {
    const char *file;
    json_t *number;
    json_object_foreach(shards, file, number) {
        char path[PATH_MAX_BYTES];
        TRY(folder_path(path, r->folder, file, r->err));
        json_integer_set(number, (json_int_t)r->c->n_maps);
        TRY(read_file(r, path));
    }
    return KVASIR_OK;
}

static kvasir_status check_weight_map(const struct reader *r, json_t *weight_map,
                                      const json_t *shards) {
    const char *name;
    json_t *value;
    json_object_foreach(weight_map, name, value) {
        const char *file = json_string_value(value);
        const struct raw_tensor *t = raw_find(&r->raw, name);
        const struct file_map *map = &r->c->maps[json_integer_value(json_object_get(shards, file))];
        const uint8_t *data = t ? t->data : NULL;
        if (!data || data < map->data || data > map->data + map->size)
            return fail(r->err, KVASIR_ERR_FORMAT, "field weight_map.%s: no such tensor in %s",
                        name, file);
    }
    return KVASIR_OK;
}

static kvasir_status read_index(struct reader *r, const char *path) {
    char *text = NULL;
    size_t len;
    json_t *document = NULL, *shards = json_object();
    kvasir_status status;
    TRY_GOTO(file_read_all(path, INDEX_MAX, &text, &len, r->err));
    TRY_GOTO(in_file(path, json_parse(text, len, 0, &document, r->err), r->err));
    json_t *weight_map = json_object_get(document, "weight_map");
    TRY_GOTO(in_file(path, collect_shards(weight_map, shards, r->err), r->err));
    TRY_GOTO(open_shards(r, shards));
    TRY_GOTO(in_file(path, sort_raw(&r->raw, r->err), r->err));
    TRY_GOTO(in_file(path, check_weight_map(r, weight_map, shards), r->err));
done:
    json_decref(shards);
    json_decref(document);
    mem_free(text);
    return status;
}

static kvasir_status read_config(struct reader *r) {
    char path[PATH_MAX_BYTES], *text;
    size_t len;
    TRY(folder_path(path, r->folder, "config.json", r->err));
    if (access(path, F_OK) != 0)
        return folder_fail_missing(r->folder, "config.json", r->err);
    TRY(file_read_all(path, CONFIG_MAX, &text, &len, r->err));
    kvasir_status status = config_parse(text, len, &r->c->config, &r->quantization, r->err);
    mem_free(text);
    return in_file(path, status, r->err);
}

static void name_after_folder(struct model_config *config, const char *folder) {
    size_t end = strlen(folder);
    while (end > 1 && folder[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && folder[begin - 1] != '/')
        begin--;
    snprintf(config->name, sizeof config->name, "%.*s", (int)(end - begin), folder + begin);
}

/* One file, or the index of several: what path names the tensors are of. */
static kvasir_status read_files(struct reader *r, char path[PATH_MAX_BYTES]) {
    TRY(folder_path(path, r->folder, "model.safetensors", r->err));
    if (access(path, F_OK) == 0) {
        TRY(read_file(r, path));
        return in_file(path, sort_raw(&r->raw, r->err), r->err);
    }
    TRY(folder_path(path, r->folder, "model.safetensors.index.json", r->err));
    if (access(path, F_OK) == 0)
        return read_index(r, path);
    return fail(r->err, KVASIR_ERR_IO,
                "%s: the folder holds neither model.safetensors nor model.safetensors.index.json",
                r->folder);
}

static kvasir_status join(struct reader *r) {
    TRY(modules_join(&r->raw, &r->quantization, r->c, r->err));
    return checkpoint_seal(r->c, r->err);
}

kvasir_status safetensors_open(struct checkpoint *c, const char *folder, kvasir_error *err) {
    struct reader r = {.c = c, .folder = folder, .err = err};
    char path[PATH_MAX_BYTES];
    kvasir_status status;
    c->format = "safetensors";
    TRY_GOTO(read_config(&r));
    name_after_folder(&c->config, folder);
    TRY_GOTO(read_files(&r, path));
    TRY_GOTO(in_file(path, join(&r), err));
    if (r.quantization.method == QUANTIZED_MLX)
        c->format = "MLX safetensors";
done:
    for (size_t i = 0; i < r.raw.n; i++)
        mem_free(r.raw.list[i].name);
    mem_free(r.raw.list);
    quantization_deinit(&r.quantization);
    return status;
}
