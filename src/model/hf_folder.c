/* SPDX-License-Identifier: Apache-2.0 */
/* A Hugging Face folder: config.json and the tensors of model.safetensors, or of the shards that
 * model.safetensors.index.json lists. files/safetensors.c reads each file; here, an index may name
 * only files of its own folder, and what it says about a tensor must be true.
 *
 * Tensors here are those of the files; modules.c joins those that belong together. folder.c reads
 * the folder's text files.
 */
#include <stdio.h>
#include <stdlib.h>

#include "model/model_internal.h"

enum {
    CONFIG_MAX = 1 << 20, /* real ones have a few KB */
    INDEX_MAX = 64 << 20, /* 100 bytes a tensor */
};

struct reader {
    struct checkpoint *c;
    struct st_table raw;
    struct quantization quantization;
    const char *folder;
    kvasir_error *err;
};

static kvasir_status read_file(struct reader *r, const char *path) {
    struct file_map map;
    size_t first = r->raw.n;
    TRY(checkpoint_map(r->c, path, &map, r->err));
    kvasir_status status = st_read(&r->raw, &map, NULL, r->err);
    if (status == KVASIR_OK)
        status = st_check_data(&r->raw, first, &map, r->err);
    return in_file(path, status, r->err);
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* A shard must be in the folder of the index: any other name is refused. */
static bool shard_name_is_plain(const char *name) {
    size_t len = strlen(name);
    return st_name_is_clean(name, len) && !strchr(name, '/') && name[0] != '.' && len > 12 &&
           strcmp(name + len - 12, ".safetensors") == 0;
}

/* The files named by the map, once each, as {file: 0}. */
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
        const struct st_tensor *t = st_find(&r->raw, name);
        const size_t number = (size_t)json_integer_value(json_object_get(shards, file));
        ASSERT(number < r->c->n_maps); /* open_shards wrote it */
        const struct file_map *map = &r->c->maps[number];
        const uint8_t *data = t ? t->data : NULL;
        if (!data || data < map->data || data > map->data + map->size)
            return fail(r->err, KVASIR_ERR_FORMAT,
                        "field weight_map.%s: %s has no tensor of this name", name, file);
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
    TRY_GOTO(in_file(path, st_sort(&r->raw, r->err), r->err));
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
    bool exists;
    TRY(file_exists(path, &exists, r->err));
    if (!exists)
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

/* Reads one file, or the index of several; path becomes the one whose tensors they are. */
static kvasir_status read_files(struct reader *r, char path[PATH_MAX_BYTES]) {
    TRY(folder_path(path, r->folder, "model.safetensors", r->err));
    bool exists;
    TRY(file_exists(path, &exists, r->err));
    if (exists) {
        TRY(read_file(r, path));
        return in_file(path, st_sort(&r->raw, r->err), r->err);
    }
    TRY(folder_path(path, r->folder, "model.safetensors.index.json", r->err));
    TRY(file_exists(path, &exists, r->err));
    if (exists)
        return read_index(r, path);
    return fail(
        r->err, KVASIR_ERR_IO,
        "%s: the folder holds neither model.safetensors nor model.safetensors.index.json: is "
        "the download complete?",
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
    st_table_free(&r.raw);
    quantization_deinit(&r.quantization);
    return status;
}
