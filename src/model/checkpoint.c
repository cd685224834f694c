/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a checkpoint: files mapped read-only and one table of their tensors (tensor_table.c),
 * filled by gguf_parts.c or hf_folder.c. Readers need not know which.
 *
 *     checkpoint_open(path)
 *        folder -> safetensors_open   config.json, *.safetensors
 *                  folder_read_text   tokenizer.json and its like
 *        file   -> gguf_open          "GGUF" in front; split files
 *     checkpoint_open_text(path)      the same readers' text parts
 *
 * A file that is truncated while it is read gives zeros (file_map_catch_faults), which may look
 * like a damaged file or, worse, a good one. So checkpoint_check has the last word after reading.
 */

#include "model/model_internal.h"

static kvasir_status open_folder(struct checkpoint *c, const char *path, kvasir_error *err) {
    TRY(safetensors_open(c, path, err));
    c->n_weight_maps = c->n_maps;
    return folder_read_text(c, path, err);
}

static kvasir_status open_file(struct checkpoint *c, const char *path, kvasir_error *err) {
    TRY(gguf_open(c, path, err));
    c->n_weight_maps = c->n_maps;
    return KVASIR_OK;
}

static kvasir_status open_folder_text(struct checkpoint *c, const char *path, kvasir_error *err) {
    TRY(folder_read_text(c, path, err));
    return c->has_tokenizer ? KVASIR_OK : folder_fail_missing(path, "tokenizer.json", err);
}

/* False also if it cannot be read: opening it will report why. */
static bool is_gguf(const char *path) {
    struct file_map map;
    if (file_map_open(&map, path, NULL) != KVASIR_OK)
        return false;
    bool is = map.size >= 4 && memcmp(map.data, "GGUF", 4) == 0;
    file_map_close(&map);
    return is;
}

/* Returns the checkpoint, or closes what was opened before a failure. */
static kvasir_status finish_open(struct checkpoint *c, kvasir_status status,
                                 struct checkpoint **out, kvasir_error *err) {
    const kvasir_status read = checkpoint_check(c, err);
    if (read != KVASIR_OK)
        status = read;
    if (status == KVASIR_OK)
        *out = c;
    else
        checkpoint_close(c);
    return status;
}

kvasir_status checkpoint_open_as(const char *path, const kvasir_model_options *o,
                                 struct checkpoint **out, kvasir_error *err) {
    *out = NULL;
    struct checkpoint *c = mem_calloc(1, sizeof *c);
    if (!c)
        return fail(err, KVASIR_ERR_MEMORY, "%s: out of memory", path);
    c->copy = o->no_mmap;
    c->lock = o->mlock;
    kvasir_status status = file_is_dir(path) ? open_folder(c, path, err) : open_file(c, path, err);
    return finish_open(c, status, out, err);
}

kvasir_status checkpoint_open(const char *path, struct checkpoint **out, kvasir_error *err) {
    const kvasir_model_options mapped = {.struct_size = sizeof mapped};
    return checkpoint_open_as(path, &mapped, out, err);
}

kvasir_status checkpoint_open_text(const char *path, struct checkpoint **out, kvasir_error *err) {
    *out = NULL;
    struct checkpoint *c = mem_calloc(1, sizeof *c);
    if (!c)
        return fail(err, KVASIR_ERR_MEMORY, "%s: out of memory", path);
    c->format = "tokenizer.json";
    kvasir_status status = file_is_dir(path) ? open_folder_text(c, path, err)
                           : is_gguf(path)   ? gguf_open_text(c, path, err)
                                             : folder_read_tokenizer_file(c, path, err);
    return finish_open(c, status, out, err);
}

void checkpoint_close(struct checkpoint *c) {
    if (!c)
        return;
    for (size_t i = 0; i < c->n_tensors; i++)
        mem_free((char *)c->tensors[i].name);
    mem_free(c->tensors);
    mem_free((char *)c->tokenizer.model);
    mem_free((char *)c->tokenizer.pre);
    mem_free((struct text_span *)c->tokenizer.pieces);
    mem_free((uint8_t *)c->tokenizer.kinds);
    mem_free((struct text_span *)c->tokenizer.merges);
    mem_free((float *)c->tokenizer.scores);
    mem_free((int32_t *)c->tokenizer.ends);
    mem_free(c->chat_template);
    for (size_t i = 0; i < c->n_maps; i++)
        file_map_close(&c->maps[i]);
    mem_free(c->maps);
    mem_free(c);
}

const struct model_config *checkpoint_config(const struct checkpoint *c) {
    return &c->config;
}

const struct tokenizer_spec *checkpoint_tokenizer(const struct checkpoint *c) {
    return c->has_tokenizer ? &c->tokenizer : NULL;
}

const char *checkpoint_chat_template(const struct checkpoint *c) {
    return c->chat_template;
}

enum checkpoint_pooling checkpoint_pooling(const struct checkpoint *c) {
    return c->pooling;
}

const struct sampling_hints *checkpoint_sampling(const struct checkpoint *c) {
    return &c->sampling;
}

const char *checkpoint_format(const struct checkpoint *c) {
    return c->format;
}
