/* SPDX-License-Identifier: Apache-2.0 */
/* key_bases.c: the matrices of balanced keys of a whole model, for every layer that stores keys:
 * two of head_dim x head_dim for each KV head.
 *
 *     values  group 0: inverse [layer][kv head][in][out] | forward, the same | group 1: ...
 *
 * They are made by calibration.c or read by centre_file.c and do not change afterwards.
 */
#include "engine/centre.h"

size_t key_basis_values(const struct key_basis *g) {
    return (size_t)g->layers * g->kv_heads * g->head_dim * g->head_dim;
}

kvasir_status key_bases_init(struct key_bases *b, const struct model *m, kvasir_error *err) {
    struct kv_shape shapes[CACHE_GROUPS_MAX];
    *b = (struct key_bases){.n_groups = model_kv_groups(m, shapes)};
    for (uint32_t g = 0; g < b->n_groups; g++) {
        b->group[g] = (struct key_basis){.layers = shapes[g].layers,
                                         .kv_heads = shapes[g].kv_heads,
                                         .head_dim = shapes[g].head_dim};
        b->n += 2 * key_basis_values(&b->group[g]);
    }
    b->values = mem_calloc(b->n, sizeof *b->values);
    if (b->n && !b->values) {
        *b = (struct key_bases){0};
        return fail(err, KVASIR_ERR_MEMORY, "bases of keys: out of memory");
    }
    float *at = b->values;
    for (uint32_t g = 0; g < b->n_groups; g++) {
        b->group[g].inverse = at;
        b->group[g].forward = at + key_basis_values(&b->group[g]);
        at += 2 * key_basis_values(&b->group[g]);
    }
    ASSERT(at == b->values + b->n);
    return KVASIR_OK;
}

void key_bases_deinit(struct key_bases *b) {
    mem_free(b->values);
    *b = (struct key_bases){0};
}

void key_bases_destroy(struct key_bases *b) {
    if (b)
        key_bases_deinit(b);
    mem_free(b);
}

struct layer_basis key_bases_of(const struct key_bases *b, struct kv_place place) {
    ASSERT(place.group < b->n_groups && place.layer < b->group[place.group].layers);
    const struct key_basis *g = &b->group[place.group];
    const size_t n = key_basis_values(g) / g->layers;
    float *inverse = b->values + (g->inverse - b->values) + place.layer * n;
    return (struct layer_basis){inverse, inverse + key_basis_values(g), n};
}

uint64_t key_bases_bytes(const struct key_bases *b) {
    return b ? b->n * sizeof *b->values : 0;
}
