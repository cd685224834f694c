/* SPDX-License-Identifier: Apache-2.0 */
/* model.c: what a loaded model says about itself. */
#include "model/family.h"

enum { STATE_ALIGNMENT = 64 }; /* what operations ask for */

struct state_layout model_state_layout(const struct model *m, uint32_t layer) {
    const struct model_config *c = &m->config;
    ASSERT(layer < c->n_layers);
    const bool delta = c->layers[layer].kind == LAYER_DELTA;
    struct state_layout l = {.window = m->state_at[layer], .width = c->conv_width};
    l.channels = delta ? 2 * c->delta.key_heads * c->delta.key_dim +
                             c->delta.value_heads * c->delta.value_dim
                       : c->dim;
    l.matrix =
        l.window + round_up((uint64_t)(l.width - 1) * l.channels * sizeof(float), STATE_ALIGNMENT);
    l.end = l.matrix;
    if (delta)
        l.end += round_up((uint64_t)c->delta.value_heads * c->delta.key_dim * c->delta.value_dim *
                              sizeof(float),
                          STATE_ALIGNMENT);
    return l;
}

const struct checkpoint *model_checkpoint(const struct model *m) {
    return m->checkpoint;
}

const struct model_config *model_config(const struct model *m) {
    return &m->config;
}

uint64_t model_weight_bytes(const struct model *m) {
    return m->weight_bytes;
}

uint64_t model_cached_bytes(const struct model *m) {
    return m->checkpoint->copy || m->checkpoint->lock ? 0 : m->weight_bytes;
}

/* ---- work ------------------------------------------------------------------------------------ */

static double matrix_bytes(const struct weight *w) {
    const double data = (double)w->n * (double)weight_row_bytes(weight_traits_of(w->type), w->k);
    if (!w->scales)
        return data;
    const uint32_t rows = w->group_rows ? w->group_rows : 1, group = w->group ? w->group : 32;
    const double scales = (double)((w->n + rows - 1) / rows) * ((w->k + group - 1) / group);
    const bool bytes = w->type == WEIGHT_MXFP4_MLX; /* E8M0 */
    return data + scales * (bytes ? 1 : (double)scalar_bytes(w->scalar)) * (w->biases ? 2 : 1);
}

static double matrix_multiplies(const struct weight *w) {
    return (double)w->n * w->k;
}

static void add_experts(const struct model *m, struct model_work *work) {
    for (uint32_t i = 0; i < m->config.n_layers; i++) {
        const matrix_id *ids = m->layers[i].expert_matrices;
        for (uint32_t e = 0; ids && e < m->config.moe.n * PLACES; e++) {
            if (!ids[e])
                continue;
            work->expert_bytes += matrix_bytes(model_matrix(m, ids[e]));
            work->expert_multiplies += matrix_multiplies(model_matrix(m, ids[e]));
        }
    }
}

static void add_attention(const struct model *m, struct model_work *work) {
    const struct model_config *c = &m->config;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_config *l = &c->layers[i];
        if (l->kind == LAYER_ATTENTION) /* queries with keys, weights with values */
            work->attention[m->places[i].group] += 2.0 * c->heads * l->head_dim;
    }
}

struct model_work model_work(const struct model *m) {
    const struct weight *head = model_matrix(m, m->head);
    struct model_work work = {.bytes = (double)m->weight_bytes,
                              .head_bytes = matrix_bytes(head),
                              .head_multiplies = matrix_multiplies(head)};
    double all = 0, floats = 0;
    for (matrix_id id = 1; id < m->n_matrices; id++) {
        const struct weight *w = model_matrix(m, id);
        if ((id == m->embed && id != m->head) || id == m->layer_embed) {
            work.bytes -= matrix_bytes(w);
            continue;
        }
        all += matrix_multiplies(w);
        floats += weight_traits_of(w->type)->run_values ? 0 : matrix_multiplies(w);
    }
    add_experts(m, &work);
    add_attention(m, &work);
    work.bytes -= work.head_bytes + work.expert_bytes;
    work.multiplies = all - work.head_multiplies - work.expert_multiplies;
    work.floats = 2 * floats > all;
    ASSERT(work.bytes > 0 && work.multiplies > 0);
    return work;
}

uint32_t model_kv_groups(const struct model *m, struct kv_shape groups[CACHE_GROUPS_MAX]) {
    ASSERT(m->n_groups <= CACHE_GROUPS_MAX);
    memcpy(groups, m->groups, m->n_groups * sizeof *groups);
    return m->n_groups;
}

struct kv_place model_kv_place(const struct model *m, uint32_t layer) {
    ASSERT(layer < m->config.n_layers);
    return m->places[layer];
}

uint64_t model_state_bytes(const struct model *m) {
    return m->state_bytes;
}

float model_inv_freq(const struct model *m, uint32_t rope, uint32_t ctx, double *inv_freq) {
    const struct model_config *c = &m->config;
    ASSERT(rope < c->n_ropes);
    return rope_frequencies(&c->ropes[rope], ctx ? ctx : c->ctx_train, c->ctx_train,
                            rope == 0 ? m->rope_factors : NULL, inv_freq);
}

bool model_keys_alike(const struct model *m) {
    const struct model_config *c = &m->config;
    bool alike = m->n_groups == 1 && m->groups[0].layers == c->n_layers && c->n_ropes == 1 &&
                 c->ropes[0].kind != ROPE_DYNAMIC && c->ropes[0].kind != ROPE_LONG &&
                 c->ropes[0].kind != ROPE_YARN;
    for (uint32_t i = 0; i < c->n_layers; i++)
        alike = alike && c->layers[i].rope == 0;
    return alike;
}
