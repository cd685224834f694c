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
 * Beyond them: data must be aligned for its type (official writers pad the header to 8 bytes, so
 * theirs is), an index may name only files beside it, and what it says about a tensor must be true.
 *
 * Left out: types other than F32, F16 and BF16. The folder's text files are folder.c's.
 */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "model/model_internal.h"

enum {
    HEADER_MAX = 100000000, /* the official reader's limit */
    CONFIG_MAX = 1 << 20,   /* real ones have a few KB */
    INDEX_MAX = 64 << 20,   /* 100 bytes a tensor */
};

/* ---- one tensor ------------------------------------------------------------------------------ */

static kvasir_status read_type(const char *name, const json_t *info, enum weight_type *type,
                               kvasir_error *err) {
    const char *text = json_string_value(json_object_get(info, "dtype"));
    if (!text)
        return fail(err, KVASIR_ERR_FORMAT, "tensor %s: field dtype must be a string, found %s",
                    name, json_kind(json_object_get(info, "dtype")));
    if (strcmp(text, "F32") == 0)
        *type = WEIGHT_F32;
    else if (strcmp(text, "F16") == 0)
        *type = WEIGHT_F16;
    else if (strcmp(text, "BF16") == 0)
        *type = WEIGHT_BF16;
    else
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "tensor %s has dtype %.32s, supported are F32 F16 BF16", name, text);
    return KVASIR_OK;
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

/* data, size: the data section. base: its offset in the file. */
static kvasir_status read_tensor(const char *name, const json_t *info, const uint8_t *data,
                                 size_t size, size_t base, struct checkpoint_tensor *t,
                                 kvasir_error *err) {
    uint64_t offsets[2];
    size_t n_dims, n_offsets;
    *t = (struct checkpoint_tensor){0};
    if (!name_is_clean(name, strlen(name)))
        return fail(err, KVASIR_ERR_FORMAT,
                    "a tensor's name is empty or holds control characters: %.60s", name);
    if (!json_is_object(info))
        return fail(err, KVASIR_ERR_FORMAT, "tensor %s must be an object, found %s", name,
                    json_kind(info));
    TRY(read_type(name, info, &t->type, err));
    TRY(read_counts(name, info, "shape", TENSOR_DIMS_MAX, t->dims, &n_dims, err));
    TRY(read_counts(name, info, "data_offsets", 2, offsets, &n_offsets, err));
    t->n_dims = (uint32_t)n_dims;
    if (n_offsets != 2 || offsets[0] > offsets[1])
        return fail(err, KVASIR_ERR_FORMAT,
                    "tensor %s: field data_offsets must be two integers in rising order", name);
    if (offsets[1] > size)
        return fail(err, KVASIR_ERR_FORMAT,
                    "tensor %s: data_offsets end at %" PRIu64 ", the file has %zu bytes of data",
                    name, offsets[1], size);
    if (!tensor_bytes(t->type, t->dims, t->n_dims, &t->bytes))
        return fail(err, KVASIR_ERR_FORMAT, "tensor %s: the product of its shape overflows", name);
    if (t->bytes != offsets[1] - offsets[0])
        return fail_at(err, KVASIR_ERR_FORMAT, (int64_t)(base + offsets[0]),
                       "tensor %s: its shape needs %zu bytes, data_offsets give %" PRIu64, name,
                       t->bytes, offsets[1] - offsets[0]);
    if ((base + offsets[0]) % weight_type_alignment(t->type) != 0)
        return fail_at(err, KVASIR_ERR_FORMAT, (int64_t)(base + offsets[0]),
                       "tensor %s: its data is not aligned to %zu bytes", name,
                       weight_type_alignment(t->type));
    t->data = data + offsets[0];
    return KVASIR_OK;
}

/* ---- one file -------------------------------------------------------------------------------- */

/* Tensors [first, n_tensors) are this file's. */
static kvasir_status check_gapless(const struct checkpoint *c, size_t first,
                                   const struct file_map *map, size_t base, kvasir_error *err) {
    const struct checkpoint_tensor **order = checkpoint_by_address(c, first);
    if (!order)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for %zu tensors", c->n_tensors);
    kvasir_status status = KVASIR_OK;
    const uint8_t *end = map->data + base;
    for (size_t i = 0; i < c->n_tensors - first && status == KVASIR_OK; i++) {
        const uint8_t *begin = order[i]->data;
        if (begin != end)
            status = fail_at(err, KVASIR_ERR_FORMAT, begin - map->data,
                             "tensor %s: data_offsets %s", order[i]->name,
                             begin < end ? "overlap another tensor's" : "leave a hole before it");
        end = begin + order[i]->bytes;
    }
    mem_free(order);
    if (status == KVASIR_OK && end != map->data + map->size)
        status = fail_at(err, KVASIR_ERR_FORMAT, end - map->data,
                         "%td bytes behind the last tensor's data", map->data + map->size - end);
    return status;
}

static kvasir_status check_metadata(const json_t *metadata, kvasir_error *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return fail(err, KVASIR_ERR_FORMAT, "field __metadata__ must be an object, found %s",
                    json_kind(metadata));
    json_object_foreach((json_t *)metadata, key, value) {
        if (!json_is_string(value))
            return fail(err, KVASIR_ERR_FORMAT, "field __metadata__.%s must be a string, found %s",
                        key, json_kind(value));
    }
    return KVASIR_OK;
}

static kvasir_status read_tensors(struct checkpoint *c, const struct file_map *map, size_t base,
                                  json_t *header, kvasir_error *err) {
    const char *name;
    json_t *info;
    json_object_foreach(header, name, info) {
        if (strcmp(name, "__metadata__") == 0) {
            TRY(check_metadata(info, err));
            continue;
        }
        struct checkpoint_tensor t;
        TRY(read_tensor(name, info, map->data + base, map->size - base, base, &t, err));
        TRY(checkpoint_add_take(c, mem_strdup(name), &t, err));
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

static kvasir_status read_file(struct checkpoint *c, const char *path, kvasir_error *err) {
    struct file_map map;
    TRY(checkpoint_map(c, path, &map, err));
    json_t *header = NULL;
    size_t base = 0, first = c->n_tensors;
    kvasir_status status;
    TRY_GOTO(read_header(&map, &header, &base, err));
    TRY_GOTO(read_tensors(c, &map, base, header, err));
    TRY_GOTO(check_gapless(c, first, &map, base, err));
done:
    json_decref(header);
    return in_file(path, status, err);
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
static kvasir_status open_shards(struct checkpoint *c, const char *folder, json_t *shards,
                                 kvasir_error *err) {
    const char *file;
    json_t *number;
    json_object_foreach(shards, file, number) {
        char path[PATH_MAX_BYTES];
        TRY(folder_path(path, folder, file, err));
        json_integer_set(number, (json_int_t)c->n_maps);
        TRY(read_file(c, path, err));
    }
    return KVASIR_OK;
}

static kvasir_status check_weight_map(const struct checkpoint *c, json_t *weight_map,
                                      const json_t *shards, kvasir_error *err) {
    const char *name;
    json_t *value;
    json_object_foreach(weight_map, name, value) {
        const char *file = json_string_value(value);
        const struct checkpoint_tensor *t = checkpoint_find(c, name);
        const struct file_map *map = &c->maps[json_integer_value(json_object_get(shards, file))];
        const uint8_t *data = t ? t->data : NULL;
        if (!data || data < map->data || data > map->data + map->size)
            return fail(err, KVASIR_ERR_FORMAT, "field weight_map.%s: no such tensor in %s", name,
                        file);
    }
    return KVASIR_OK;
}

static kvasir_status read_index(struct checkpoint *c, const char *folder, const char *path,
                                kvasir_error *err) {
    char *text = NULL;
    size_t len;
    json_t *document = NULL, *shards = json_object();
    kvasir_status status;
    TRY_GOTO(file_read_all(path, INDEX_MAX, &text, &len, err));
    TRY_GOTO(in_file(path, json_parse(text, len, 0, &document, err), err));
    json_t *weight_map = json_object_get(document, "weight_map");
    TRY_GOTO(in_file(path, collect_shards(weight_map, shards, err), err));
    TRY_GOTO(open_shards(c, folder, shards, err));
    TRY_GOTO(in_file(path, checkpoint_seal(c, err), err));
    TRY_GOTO(in_file(path, check_weight_map(c, weight_map, shards, err), err));
done:
    json_decref(shards);
    json_decref(document);
    mem_free(text);
    return status;
}

static kvasir_status read_config(struct checkpoint *c, const char *path, kvasir_error *err) {
    char *text;
    size_t len;
    TRY(file_read_all(path, CONFIG_MAX, &text, &len, err));
    kvasir_status status = in_file(path, config_parse(text, len, &c->config, err), err);
    mem_free(text);
    return status;
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

kvasir_status safetensors_open(struct checkpoint *c, const char *folder, kvasir_error *err) {
    char path[PATH_MAX_BYTES];
    c->format = "safetensors";
    TRY(folder_path(path, folder, "config.json", err));
    if (access(path, F_OK) != 0)
        return folder_fail_missing(folder, "config.json", err);
    TRY(read_config(c, path, err));
    name_after_folder(&c->config, folder);

    TRY(folder_path(path, folder, "model.safetensors", err));
    if (access(path, F_OK) == 0) {
        TRY(read_file(c, path, err));
        return in_file(path, checkpoint_seal(c, err), err);
    }
    TRY(folder_path(path, folder, "model.safetensors.index.json", err));
    if (access(path, F_OK) == 0)
        return read_index(c, folder, path, err);
    return fail(err, KVASIR_ERR_IO,
                "%s: the folder holds neither model.safetensors nor model.safetensors.index.json",
                folder);
}
