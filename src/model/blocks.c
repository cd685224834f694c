/* SPDX-License-Identifier: Apache-2.0 */
/* The steps that forward passes are made of. Each is a few operations on the run's buffers; its
 * declaration says which (family.h). */
#include "model/family.h"

void block_norm(struct model_run *r, const float *x, vector_id gain, uint32_t rows, uint32_t dim,
                float *y) {
    op_rms_norm(r->backend, x, on_device(r, gain), rows, dim, r->model->config.norm_eps, y);
}

void block_scale(struct model_run *r, float *x, float scale, size_t n) {
    if (scale < 1 || scale > 1)
        op_scale(r->backend, x, scale, n);
}

void block_matmul(struct model_run *r, const float *x, uint32_t rows, matrix_id w, vector_id bias,
                  float *y) {
    op_matmul(r->backend, x, rows, (const struct backend_weight *[]){matrix_on_device(r, w)},
              (const float *[]){on_device(r, bias)}, (float *[]){y}, 1);
}

void block_rope(struct model_run *r, const struct batch *batch, uint32_t layer, float *x,
                uint32_t heads) {
    const struct model_config *c = &r->model->config;
    const struct layer_config *l = &c->layers[layer];
    if (l->rope == NO_ROPE)
        return;
    ASSERT(l->rope < c->n_ropes);
    const struct rope_config *rope = &c->ropes[l->rope];
    op_rope(r->backend, x, batch->rows, heads, l->head_dim, r->rope_cos[l->rope],
            r->rope_sin[l->rope], rope->dims / 2, rope->adjacent);
}

void block_attend(struct model_run *r, const struct batch *batch, uint32_t layer) {
    const struct model_config *c = &r->model->config;
    const struct kv_place place = r->model->places[layer];
    ASSERT(layer < c->n_layers && place.group < r->model->n_groups);
    const struct kv_view *views = batch->views + (size_t)place.group * batch->n_seqs;
    const struct attention_args args = {
        .heads = c->heads,
        .scale = c->attention_scale > 0 ? c->attention_scale
                                        : (float)(1.0 / m_sqrt(c->layers[layer].head_dim)),
        .softcap = c->attention_softcap,
        .sinks = on_device(r, r->model->layers[layer].sinks)};
    if (c->layers[layer].kv_from == layer)
        op_kv_store(r->backend, batch, views, place.layer, r->k, r->v);
    op_attention(r->backend, batch, views, place.layer, r->q, &args, r->attended);
}

/* A norm of each head, or one over all heads, depending on the length of its gain. */
static void head_norm(struct model_run *r, vector_id gain, uint32_t rows, uint32_t width,
                      float *x) {
    if (!gain)
        return;
    const uint32_t dim = r->model->vectors[gain].n;
    ASSERT(dim > 0 && width % dim == 0);
    block_norm(r, x, gain, rows * (width / dim), dim, x);
}

void block_attention(struct model_run *r, const struct batch *batch, uint32_t layer, const float *h,
                     float *out) {
    const struct model_config *c = &r->model->config;
    const struct layer_weights *l = &r->model->layers[layer];
    const struct layer_config *shape = &c->layers[layer];
    const uint32_t rows = batch->rows;
    op_matmul(r->backend, h, rows,
              (const struct backend_weight *[]){
                  matrix_on_device(r, l->q), matrix_on_device(r, l->k), matrix_on_device(r, l->v)},
              (const float *[]){on_device(r, l->q_bias), on_device(r, l->k_bias),
                                on_device(r, l->v_bias)},
              (float *[]){r->q, r->k, r->v}, 3);
    head_norm(r, l->q_norm, rows, c->heads * shape->head_dim, r->q);
    head_norm(r, l->k_norm, rows, shape->kv_heads * shape->head_dim, r->k);
    block_rope(r, batch, layer, r->q, c->heads);
    block_rope(r, batch, layer, r->k, shape->kv_heads);
    block_attend(r, batch, layer);
    block_matmul(r, r->attended, rows, l->o, l->o_bias, out);
}

void block_mlp(struct model_run *r, const struct mlp_weights *w, const float *h, uint32_t rows,
               float *out) {
    op_matmul(
        r->backend, h, rows,
        (const struct backend_weight *[]){matrix_on_device(r, w->gate), matrix_on_device(r, w->up)},
        (const float *[]){NULL, NULL}, (float *[]){r->gate, r->up}, 2);
    op_gate_mul(r->backend, r->model->config.gate, r->gate, r->up,
                (size_t)rows * model_matrix(r->model, w->gate)->n, r->gate);
    block_matmul(r, r->gate, rows, w->down, 0, out);
}

void block_experts(struct model_run *r, const struct layer_weights *l, const float *h,
                   const float *router_input, uint32_t rows, float *out) {
    const struct model_config *c = &r->model->config;
    const struct expert_layer e = {.n = c->moe.n,
                                   .top_k = c->moe.top_k,
                                   .experts =
                                       r->experts + (size_t)(l - r->model->layers) * c->moe.n,
                                   .gate_bias = on_device(r, l->gate_bias),
                                   .up_bias = on_device(r, l->up_bias),
                                   .down_bias = on_device(r, l->down_bias),
                                   .scale = on_device(r, l->expert_scale),
                                   .gate = c->gate,
                                   .normalize = c->moe.normalize};
    ASSERT(l >= r->model->layers && l < r->model->layers + c->n_layers);
    ASSERT(c->moe.top_k > 0 && c->moe.top_k <= c->moe.n);
    block_matmul(r, router_input, rows, l->router, l->router_bias, r->router);
    if (!c->moe.shared_dim) {
        op_experts(r->backend, h, rows, r->router, &e, out);
        return;
    }
    op_experts(r->backend, h, rows, r->router, &e, r->routed);
    block_matmul(r, h, rows, l->shared_gate, 0, r->router);
    block_mlp(r, &l->shared, h, rows, out);
    op_gate_rows(r->backend, out, r->router, rows, c->dim);
    op_add(r->backend, out, r->routed, 1, (size_t)rows * c->dim);
}
