/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_tensors.c: the tensors of one GGUF file (see the drawing in gguf.c).
 *
 *   GGUF-3  After gguf_read_tensors tensors are aligned, inside the file and disjoint (CHECKPOINT-1
 *           of tensor_table.c).
 */
#include <inttypes.h>

#include "model/model_internal.h"

enum {
    GGUF_NAME_MAX = 64,     /* the format's own limit */
    GGUF_ALIGNMENT = 32,    /* if general.alignment is missing */
    GGUF_ALIGNMENT_MIN = 8, /* the format asks for a multiple of 8 */
    GGUF_ALIGNMENT_MAX = 1 << 20,
};

/* Names of unsupported types, for errors. */
static const char *tensor_type_name(uint32_t type) {
    static const char *const names[] = {
        [0] = "F32",     [1] = "F16",      [2] = "Q4_0",   [3] = "Q4_1",    [6] = "Q5_0",
        [7] = "Q5_1",    [8] = "Q8_0",     [9] = "Q8_1",   [10] = "Q2_K",   [11] = "Q3_K",
        [12] = "Q4_K",   [13] = "Q5_K",    [14] = "Q6_K",  [15] = "Q8_K",   [16] = "IQ2_XXS",
        [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S", [20] = "IQ4_NL", [21] = "IQ3_S",
        [22] = "IQ2_S",  [23] = "IQ4_XS",  [24] = "I8",    [25] = "I16",    [26] = "I32",
        [27] = "I64",    [28] = "F64",     [29] = "IQ1_M", [30] = "BF16",   [34] = "TQ1_0",
        [35] = "TQ2_0",  [39] = "MXFP4",   [40] = "NVFP4",
    };
    const char *name = type < sizeof names / sizeof *names ? names[type] : NULL;
    return name ? name : "unknown";
}

static kvasir_status take_dims(struct gguf_reader *r, struct text_span name,
                               struct checkpoint_tensor *t) {
    int64_t at = (int64_t)r->pos;
    TRY(gguf_take_u32(r, "a tensor's shape", &t->n_dims));
    if (t->n_dims < 1 || t->n_dims > TENSOR_DIMS_MAX)
        return fail_at(r->err, KVASIR_ERR_FORMAT, at,
                       "tensor %.*s has %u dimensions, must be 1 to %d", (int)name.len, name.data,
                       t->n_dims, TENSOR_DIMS_MAX);
    for (uint32_t i = t->n_dims; i-- > 0;) { /* the file has the fastest first */
        TRY(gguf_take_u64(r, "a tensor's shape", &t->dims[i]));
        if (t->dims[i] == 0)
            return fail_at(r->err, KVASIR_ERR_FORMAT, at, "tensor %.*s has an empty dimension",
                           (int)name.len, name.data);
    }
    return KVASIR_OK;
}

/* The stated position of a tensor's data, which is read before the start of the data section is
 * known. */
struct data_place {
    uint64_t offset; /* from the data section's start */
    int64_t at;      /* position of that statement in the file */
};

static kvasir_status take_tensor(struct gguf_reader *r, struct text_span *name,
                                 struct checkpoint_tensor *t, struct data_place *place) {
    int64_t at = (int64_t)r->pos;
    *t = (struct checkpoint_tensor){0};
    TRY(gguf_take_string(r, "a tensor's name", name));
    if (name->len > GGUF_NAME_MAX || !st_name_is_clean(name->data, name->len))
        return fail_at(r->err, KVASIR_ERR_FORMAT, at,
                       "a tensor's name must have 1 to %d bytes and no control characters",
                       GGUF_NAME_MAX);
    TRY(take_dims(r, *name, t));
    at = (int64_t)r->pos;
    uint32_t type;
    TRY(gguf_take_u32(r, "a tensor's type", &type));
    const struct weight_traits *traits = type < WEIGHT_GGUF_END ? weight_traits_of(type) : NULL;
    if (!traits)
        return fail_at(r->err, KVASIR_ERR_UNSUPPORTED, at,
                       "tensor %.*s has type %s (%u), which is not supported", (int)name->len,
                       name->data, tensor_type_name(type), type);
    t->type = traits->type;
    if (!tensor_bytes(t->type, t->dims, t->n_dims, &t->bytes))
        return fail_at(r->err, KVASIR_ERR_FORMAT, at,
                       "tensor %.*s: its shape overflows or its rows are not a multiple of %u (%s)",
                       (int)name->len, name->data, traits->block_values, traits->name);
    place->at = (int64_t)r->pos;
    return gguf_take_u64(r, "a tensor's offset", &place->offset);
}

static kvasir_status place_tensor(const struct gguf *g, size_t start, uint32_t alignment,
                                  struct data_place place, struct checkpoint_tensor *t,
                                  kvasir_error *err) {
    size_t room = g->map.size - start;
    if (place.offset % alignment != 0)
        return fail_at(err, KVASIR_ERR_FORMAT, place.at,
                       "tensor %s: offset %" PRIu64 " is not a multiple of the alignment %u",
                       t->name, place.offset, alignment);
    if (place.offset > room || t->bytes > room - place.offset)
        return fail_at(err, KVASIR_ERR_FORMAT, place.at,
                       "tensor %s: %zu bytes at data offset %" PRIu64
                       " pass the file's end (%zu bytes of data): is the download complete?",
                       t->name, t->bytes, place.offset, room);
    ASSERT(start <= g->map.size && place.offset + t->bytes <= room);
    t->data = g->map.data + start + place.offset;
    return KVASIR_OK;
}

/* Tensors [first, n_tensors) are this file's. */
static kvasir_status check_disjoint(const struct checkpoint *c, size_t first, const struct gguf *g,
                                    kvasir_error *err) {
    size_t n = c->n_tensors - first;
    struct extent *order = mem_calloc(n, sizeof *order);
    if (!order)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        const struct checkpoint_tensor *t = &c->tensors[first + i];
        order[i] = (struct extent){t->name, t->data, t->bytes};
    }
    extents_sort(order, n);
    kvasir_status status = KVASIR_OK;
    for (size_t i = 1; i < n && status == KVASIR_OK; i++)
        if (order[i].data < order[i - 1].data + order[i - 1].bytes)
            status = fail_at(err, KVASIR_ERR_FORMAT, order[i].data - g->map.data,
                             "tensors %s and %s overlap", order[i - 1].name, order[i].name);
    mem_free(order);
    return status;
}

static kvasir_status read_alignment(const struct gguf *g, uint32_t *alignment, kvasir_error *err) {
    *alignment = GGUF_ALIGNMENT;
    TRY(gguf_get_u32(g, "general.alignment", false, GGUF_ALIGNMENT_MIN, GGUF_ALIGNMENT_MAX,
                     alignment, err));
    if (*alignment & (*alignment - 1))
        return fail_at(err, KVASIR_ERR_FORMAT, gguf_find(g, "general.alignment")->offset,
                       "metadata general.alignment is %u, must be a power of two", *alignment);
    return KVASIR_OK;
}

/* Appends the next tensor to the checkpoint. */
static kvasir_status add_tensor(struct gguf_reader *r, struct checkpoint *c,
                                struct data_place *place) {
    struct text_span name;
    struct checkpoint_tensor t;
    TRY(take_tensor(r, &name, &t, place));
    return checkpoint_add_take(c, gguf_tensor_name(&c->config, name.data, name.len), &t, r->err);
}

static kvasir_status take_tensors(struct gguf_reader *r, const struct gguf *g,
                                  struct checkpoint *c) {
    struct data_place *places = NULL; /* [n_tensors - first], grows as entries are read */
    size_t cap = 0, first = c->n_tensors;
    uint32_t alignment;
    kvasir_status status;
    TRY_GOTO(read_alignment(g, &alignment, r->err));
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        if (!ARRAY_GROW(places, cap, i + 1))
            TRY_GOTO(fail(r->err, KVASIR_ERR_MEMORY, "out of memory for %" PRIu64 " tensors",
                          g->n_tensors));
        TRY_GOTO(add_tensor(r, c, &places[i]));
    }
    size_t start = round_up(r->pos, alignment); /* pos is at most a file's size: no overflow */
    if (start > r->size && g->n_tensors)
        TRY_GOTO(fail_at(r->err, KVASIR_ERR_FORMAT, (int64_t)r->pos,
                         "the file ends before its tensor data"));
    for (size_t i = 0; i < g->n_tensors; i++)
        TRY_GOTO(place_tensor(g, start, alignment, places[i], &c->tensors[first + i], r->err));
    status = check_disjoint(c, first, g, r->err);
done:
    mem_free(places);
    return status;
}

kvasir_status gguf_read_tensors(const struct gguf *g, struct checkpoint *c, kvasir_error *err) {
    struct gguf_reader r = {g->map.data, g->map.size, g->infos, err};
    return take_tensors(&r, g, c);
}
