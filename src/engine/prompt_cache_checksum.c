/* SPDX-License-Identifier: Apache-2.0 */
/* prompt_cache_checksum.c: the checksum that kvasir_seq_save adds to a prompt-cache file
 * (metadata kvasir_checksum) and kvasir_prompt_cache_open compares: XXH3 of the classes and
 * numbers of all layers, of all tensors' bytes, and of the other metadata. mlx-lm's own files
 * have none, so a flipped bit in them goes unnoticed. */
#include <string.h>
#include <xxhash.h>

#include "engine/engine.h"

enum { ROWS_AT_ONCE = 64 };

struct sum {
    XXH3_state_t *state;
    uint8_t *rows; /* room for ROWS_AT_ONCE rows of any tensor */
    kvasir_error *err;
};

static bool is_made(const struct prompt_tensor *t) {
    return t->present && !t->data;
}

/* A tensor [1, blocks, rows, width] of a KV cache whose rows a callback makes. */
static kvasir_status add_rows(struct sum *s, const struct prompt_tensor *t) {
    const size_t row = (size_t)t->dims[3] * st_dtype_bytes(t->dtype);
    ASSERT(t->n_dims == 4 && row <= HEAD_DIM_MAX * sizeof(float));
    for (uint32_t block = 0; block < t->dims[1]; block++)
        for (uint32_t r = 0; r < t->dims[2]; r += ROWS_AT_ONCE) {
            uint32_t n = t->dims[2] - r < ROWS_AT_ONCE ? t->dims[2] - r : ROWS_AT_ONCE;
            TRY(t->rows(t->ctx, block, r, n, s->rows, s->err));
            (void)XXH3_64bits_update(s->state, s->rows, n * row);
        }
    return KVASIR_OK;
}

static kvasir_status add_tensor(struct sum *s, const struct prompt_tensor *t) {
    uint32_t head[ST_DIMS_MAX + 3] = {t->present, t->dtype, t->n_dims};
    memcpy(head + 3, t->dims, t->n_dims * sizeof *t->dims);
    (void)XXH3_64bits_update(s->state, head, sizeof head);
    if (is_made(t))
        return add_rows(s, t);
    if (t->present && t->bytes)
        (void)XXH3_64bits_update(s->state, t->data, t->bytes);
    return KVASIR_OK;
}

static kvasir_status add_entry(struct sum *s, const struct prompt_entry *e) {
    if (e->class == PROMPT_LIST) {
        for (uint32_t i = 0; i < e->list.n; i++)
            TRY(add_entry(s, &e->list.children[i]));
        return KVASIR_OK;
    }
    if (e->class == PROMPT_ARRAYS) {
        for (uint32_t i = 0; i < e->arrays.n; i++)
            TRY(add_tensor(s, &e->arrays.states[i]));
        return KVASIR_OK;
    }
    const struct prompt_kv *kv = &e->kv;
    const uint32_t numbers[] = {e->class, kv->offset, kv->keep, kv->max_size, kv->idx};
    (void)XXH3_64bits_update(s->state, numbers, sizeof numbers);
    if (prompt_class_is_started(e->class))
        (void)XXH3_64bits_update(s->state, &kv->start, sizeof kv->start);
    for (int side = 0; side < 2; side++) {
        for (int part = 0; part < PROMPT_PARTS; part++)
            TRY(add_tensor(s, &kv->sides[side].parts[part]));
        if (prompt_class_is_started(e->class))
            TRY(add_tensor(s, &kv->sides[side].start));
    }
    return KVASIR_OK;
}

kvasir_status prompt_cache_checksum(const struct prompt_file *f, uint64_t *out, kvasir_error *err) {
    struct sum s = {.state = XXH3_createState(),
                    .rows = mem_alloc((size_t)ROWS_AT_ONCE * HEAD_DIM_MAX * sizeof(float)),
                    .err = err};
    kvasir_status status = KVASIR_OK;
    if (!s.state || !s.rows) {
        status = fail(err, KVASIR_ERR_MEMORY, "prompt cache: out of memory");
        goto done;
    }
    (void)XXH3_64bits_reset(s.state);
    for (uint32_t i = 0; i < f->n_metadata; i++)
        if (strcmp(f->metadata[i].key, "kvasir_checksum") != 0) {
            (void)XXH3_64bits_update(s.state, f->metadata[i].key, strlen(f->metadata[i].key) + 1);
            (void)XXH3_64bits_update(s.state, f->metadata[i].value,
                                     strlen(f->metadata[i].value) + 1);
        }
    for (uint32_t i = 0; i < f->n_entries; i++)
        TRY_GOTO(add_entry(&s, &f->entries[i]));
    *out = XXH3_64bits_digest(s.state);
done:
    XXH3_freeState(s.state);
    mem_free(s.rows);
    return status;
}
