/* SPDX-License-Identifier: Apache-2.0 */
/* Splits a prompt-cache file into tensors and metadata. safetensors.c checks every length; prompt
 * caches allow fewer types and smaller shapes, and their metadata must not be empty. Gaps in the
 * data are checked last (prompt_header_check_data), so that an error names a missing tensor
 * first. */
#include <stdlib.h>
#include <string.h>

#include "files/prompt_file_internal.h"

static kvasir_status take_tensor(const struct st_tensor *from, struct prompt_tensor *t,
                                 kvasir_error *err) {
    if (!prompt_dtype_known(from->dtype))
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "tensor %.100s has dtype %s, prompt caches hold F32 F16 BF16 U32 I32",
                    from->name, st_dtype_name(from->dtype));
    *t = (struct prompt_tensor){.present = true,
                                .dtype = from->dtype,
                                .n_dims = from->n_dims,
                                .bytes = from->bytes,
                                .data = from->data};
    for (uint32_t i = 0; i < from->n_dims; i++) {
        if (from->dims[i] > PROMPT_COUNT_MAX)
            return fail(err, KVASIR_ERR_FORMAT,
                        "tensor %.100s: field shape[%u] must be an integer from 0 to %d",
                        from->name, i, PROMPT_COUNT_MAX);
        t->dims[i] = (uint32_t)from->dims[i];
    }
    return KVASIR_OK;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b) {
    return strcmp(((const struct prompt_raw *)a)->name, ((const struct prompt_raw *)b)->name);
}
static int compare_keys(const void *a, const void *b) {
    return strcmp(((const struct prompt_meta *)a)->key, ((const struct prompt_meta *)b)->key);
}
struct prompt_raw *prompt_header_tensor(const struct prompt_header *h, const char *name) {
    struct prompt_raw key = {.name = name};
    return h->n_tensors ? bsearch(&key, h->tensors, h->n_tensors, sizeof key, compare_names) : NULL;
}

struct prompt_meta *prompt_header_meta(const struct prompt_header *h, const char *key) {
    struct prompt_meta meta = {.key = key};
    return h->n_metas ? bsearch(&meta, h->metas, h->n_metas, sizeof meta, compare_keys) : NULL;
}

static kvasir_status read_metas(struct prompt_header *h, kvasir_error *err) {
    const char *key;
    json_t *value;
    if (json_object_size(h->json) == 0)
        return fail(err, KVASIR_ERR_FORMAT,
                    "field __metadata__ must be an object with the classes of a prompt cache");
    h->metas = mem_calloc(json_object_size(h->json), sizeof *h->metas);
    if (!h->metas)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for the metadata");
    json_object_foreach(h->json, key, value) {
        ASSERT(h->n_metas < json_object_size(h->json) && json_is_string(value));
        h->metas[h->n_metas++] =
            (struct prompt_meta){.key = key, .value = json_string_value(value)};
    }
    qsort(h->metas, h->n_metas, sizeof *h->metas, compare_keys);
    return KVASIR_OK;
}

static kvasir_status take_tensors(struct prompt_header *h, kvasir_error *err) {
    h->tensors = mem_calloc(h->table.n, sizeof *h->tensors);
    if (!h->tensors)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for the tensors");
    for (size_t i = 0; i < h->table.n; i++) {
        h->tensors[i].name = h->table.list[i].name;
        TRY(take_tensor(&h->table.list[i], &h->tensors[i].tensor, err));
    }
    h->n_tensors = h->table.n;
    return KVASIR_OK;
}

kvasir_status prompt_header_check_data(const struct prompt_header *h, const struct file_map *map,
                                       kvasir_error *err) {
    return st_check_data(&h->table, 0, map, err);
}

kvasir_status prompt_header_read(const struct file_map *map, struct prompt_header *h,
                                 kvasir_error *err) {
    *h = (struct prompt_header){0};
    TRY(st_read(&h->table, map, &h->json, err));
    TRY(st_sort(&h->table, err));
    TRY(take_tensors(h, err));
    return read_metas(h, err);
}

void prompt_header_deinit(struct prompt_header *h) {
    mem_free(h->tensors);
    mem_free(h->metas);
    st_table_free(&h->table);
    *h = (struct prompt_header){0};
}
