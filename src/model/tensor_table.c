/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_table.c: the tensors of a checkpoint. Readers of files add them; the code that runs or
 * converts a model finds them by name.
 *
 *     maps     [ file 0 mapped ............ ]  [ file 1 ... ]
 *                   ^              ^                ^
 *     tensors  { name, type, dims, data } ...           sorted by name, so that find can bisect
 *
 * Invariants
 *   CHECKPOINT-1  Every tensor's data (scales and biases too) lies whole inside one map, holds
 *                 exactly its shape times its type, and shares no byte with another tensor's.
 *                 Readers see to it. It lies at any address: mlx's writer pads nothing, so whoever
 *                 loads numbers asks for no alignment.
 *   CHECKPOINT-2  Names are Hugging Face's, unique, and free of control bytes.
 *   CHECKPOINT-3  Memory besides the maps stays within a small multiple of the files' size: tables
 *                 grow as entries are read, never by a count that a file claims.
 *   CHECKPOINT-4  After checkpoint_open nothing changes; any thread may read. If a file is changed
 *                 from outside, checkpoint_check and checkpoint_verify say so.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/model_internal.h"

kvasir_status checkpoint_map(struct checkpoint *c, const char *path, struct file_map *map,
                             kvasir_error *err) {
    struct file_map *maps = mem_realloc(c->maps, c->n_maps + 1, sizeof *maps);
    if (!maps)
        return fail(err, KVASIR_ERR_MEMORY, "%s: out of memory", path);
    c->maps = maps;
    TRY(c->copy ? file_map_read(map, path, err) : file_map_open(map, path, err));
    c->maps[c->n_maps++] = *map;
    if (!c->copy)
        file_map_reread(map);
    return c->lock ? file_map_lock(map, path, err) : KVASIR_OK;
}

kvasir_status checkpoint_check(const struct checkpoint *c, kvasir_error *err) {
    if (!file_map_any_fault())
        return KVASIR_OK;
    for (size_t i = 0; i < c->n_maps; i++)
        TRY(file_map_check(&c->maps[i], err));
    return KVASIR_OK;
}

kvasir_status checkpoint_verify(const struct checkpoint *c, kvasir_error *err) {
    ASSERT(c->n_weight_maps <= c->n_maps);
    for (size_t i = 0; i < c->n_weight_maps; i++)
        TRY(file_map_verify(&c->maps[i], err));
    return KVASIR_OK;
}

const struct file_map *checkpoint_file(const struct checkpoint *c, size_t i) {
    return i < c->n_weight_maps ? &c->maps[i] : NULL;
}

kvasir_status checkpoint_add_take(struct checkpoint *c, char *name,
                                  const struct checkpoint_tensor *tensor, kvasir_error *err) {
    if (!name)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for tensor names");
    if (!ARRAY_GROW(c->tensors, c->cap_tensors, c->n_tensors + 1)) {
        mem_free(name);
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for %zu tensors", c->n_tensors + 1);
    }
    ASSERT(tensor->n_dims <= TENSOR_DIMS_MAX);
    struct checkpoint_tensor *t = &c->tensors[c->n_tensors++];
    *t = *tensor;
    t->name = name;
    return KVASIR_OK;
}

static int compare_names(const void *a, const void *b) {
    const struct checkpoint_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

kvasir_status checkpoint_seal(struct checkpoint *c, kvasir_error *err) {
    if (c->n_tensors == 0)
        return fail(err, KVASIR_ERR_FORMAT, "holds no tensors");
    qsort(c->tensors, c->n_tensors, sizeof *c->tensors, compare_names);
    for (size_t i = 1; i < c->n_tensors; i++)
        if (strcmp(c->tensors[i - 1].name, c->tensors[i].name) == 0)
            return fail(err, KVASIR_ERR_FORMAT, "duplicate tensor %s", c->tensors[i].name);
    return KVASIR_OK;
}

static int compare_extents(const void *a, const void *b) {
    const struct extent *x = a, *y = b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

void extents_sort(struct extent *list, size_t n) {
    qsort(list, n, sizeof *list, compare_extents);
}

bool tensor_bytes(enum weight_type type, const uint64_t *dims, uint32_t n_dims, size_t *bytes) {
    const struct weight_traits *traits = weight_traits_of(type);
    uint64_t fastest = n_dims ? dims[n_dims - 1] : 1;
    size_t total;
    if (fastest % traits->block_values != 0 ||
        !mul_size(fastest / traits->block_values, traits->block_bytes, &total))
        return false;
    for (uint32_t i = 0; i + 1 < n_dims; i++)
        if (!mul_size(total, dims[i], &total))
            return false;
    *bytes = total;
    return true;
}

const char *shape_text(const uint64_t *dims, uint32_t n_dims, char buf[SHAPE_TEXT_MAX]) {
    size_t len = 0;
    buf[len++] = '[';
    for (uint32_t i = 0; i < n_dims; i++) /* at most 8 of 20 digits */
        len +=
            (size_t)snprintf(buf + len, SHAPE_TEXT_MAX - len, "%s%" PRIu64, i ? ", " : "", dims[i]);
    buf[len++] = ']';
    buf[len] = 0;
    return buf;
}

struct weight checkpoint_weight(const struct checkpoint_tensor *t) {
    uint64_t n = 1;
    for (uint32_t i = 0; i + 1 < t->n_dims; i++)
        n *= t->dims[i];
    return (struct weight){.data = t->data,
                           .scales = t->scales,
                           .biases = t->biases,
                           .type = t->type,
                           .n = (uint32_t)n,
                           .k = t->n_dims ? (uint32_t)t->dims[t->n_dims - 1] : 1,
                           .group = t->group,
                           .group_rows = t->group_rows,
                           .scalar = t->scalar};
}

bool ends_with(const char *name, const char *tail) {
    size_t len = strlen(name), n = strlen(tail);
    return len > n && strcmp(name + len - n, tail) == 0;
}

/* Some files have projections even for layers that read another's K and V. */
static bool is_unread_key(const struct model_config *c, const char *name) {
    unsigned layer;
    int end = 0;
    if (sscanf(name, "model.layers.%u.self_attn.%n", &layer, &end) != 1 || end == 0 ||
        layer >= c->n_layers || c->layers[layer].kv_from == layer)
        return false;
    return strncmp(name + end, "k_", 2) == 0 || strncmp(name + end, "v_", 2) == 0;
}

bool tensor_is_of_another_part(const char *name) {
    static const char *const parts[] = {
        "vision",        "visual.",      "audio_tower.", "multi_modal_projector.",
        "embed_vision.", "embed_audio.", "mtp."};
    if (strncmp(name, "model.", 6) == 0)
        name += 6;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strncmp(name, parts[i], strlen(parts[i])) == 0)
            return true;
    return false;
}

bool tensor_is_spare(const struct model_config *c, const char *name) {
    return ends_with(name, ".rotary_emb.inv_freq") ||
           (c->tied_embedding && strcmp(name, "lm_head.weight") == 0) || is_unread_key(c, name) ||
           tensor_is_of_another_part(name);
}

kvasir_status checkpoint_add_end(struct checkpoint *c, int32_t id, kvasir_error *err) {
    struct tokenizer_spec *t = &c->tokenizer;
    for (size_t i = 0; i < t->n_ends; i++)
        if (t->ends[i] == id)
            return KVASIR_OK;
    int32_t *ends = mem_realloc((int32_t *)t->ends, t->n_ends + 1, sizeof *ends);
    if (!ends)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for the end tokens");
    ends[t->n_ends++] = id;
    t->ends = ends;
    return KVASIR_OK;
}

/* ---- finding --------------------------------------------------------------------------------- */

const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *c, const char *name) {
    struct checkpoint_tensor key = {.name = name};
    return bsearch(&key, c->tensors, c->n_tensors, sizeof *c->tensors, compare_names);
}

size_t checkpoint_tensor_count(const struct checkpoint *c) {
    return c->n_tensors;
}

const struct checkpoint_tensor *checkpoint_tensor_at(const struct checkpoint *c, size_t i) {
    return i < c->n_tensors ? &c->tensors[i] : NULL;
}
