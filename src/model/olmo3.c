/* SPDX-License-Identifier: Apache-2.0 */
/* OLMo 3: norms after the blocks instead of before them, and norms of q and k over all heads.
 *
 *     for each layer
 *         q, k, v = Wq x, Wk x, Wv x
 *         q, k = rope(norm(q)), rope(norm(k))
 *         x += norm(Wo attention(q, pages))          three layers of four see a window
 *         x += norm(Wdown (silu(Wgate x) * Wup x))
 *
 * Rope scaling applies to the layers without a window. OLMo 2 is the same without windows; its GGUF
 * files have the same architecture.
 */
#include "model/family.h"

static void olmo3_forward(struct model_run *r, const struct batch *batch) {
    const struct model_config *c = &r->model->config;
    const size_t n = (size_t)batch->rows * c->dim;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_weights *l = &r->model->layers[i];
        block_attention(r, batch, i, r->x, r->t);
        block_norm(r, r->t, l->attn_post_norm, batch->rows, c->dim, r->t);
        op_add(r->backend, r->x, r->t, 1, n);
        block_mlp(r, &l->mlp, r->x, batch->rows, r->t);
        block_norm(r, r->t, l->ffn_post_norm, batch->rows, c->dim, r->t);
        op_add(r->backend, r->x, r->t, 1, n);
    }
}

static kvasir_status olmo3_read(const struct json_scope *s, struct model_config *c) {
    TRY(config_gate(s, c));
    TRY(config_attention_bias(s, c));
    TRY(config_windows(s, c, 4));
    return config_ropes_by_window(s, c, c->ropes[0].theta);
}

static const struct gguf_name olmo3_gguf_names[] = {
    {"post_attention_norm", "post_attention_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
    {NULL, NULL},
};

static kvasir_status olmo3_gguf_read(struct gguf_keys *k, struct model_config *c) {
    TRY(gguf_windows(k, c, 0, 4));
    return gguf_ropes_by_window(k, c, c->ropes[0].theta);
}

static kvasir_status olmo3_bind(struct binder *b, uint32_t i, struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    TRY(layer_attention(b, i, 1, l));
    TRY(layer_norm(b, i, "self_attn.q_norm", c->heads * c->head_dim, &l->q_norm));
    TRY(layer_norm(b, i, "self_attn.k_norm", c->kv_heads * c->head_dim, &l->k_norm));
    TRY(layer_norm(b, i, "post_attention_layernorm", c->dim, &l->attn_post_norm));
    TRY(layer_norm(b, i, "post_feedforward_layernorm", c->dim, &l->ffn_post_norm));
    return layer_mlp(b, i, "mlp", c->layers[i].ffn_dim, &l->mlp);
}

const struct family olmo3_family[] = {
    {.arch = "olmo3",
     .classes = {"Olmo3ForCausalLM"},
     .heads_are_kv = true,
     .theta = 5e5,
     .read = olmo3_read,
     .bind = olmo3_bind,
     .forward = olmo3_forward,
     .gguf = "olmo2",
     .gguf_read = olmo3_gguf_read,
     .gguf_names = {olmo3_gguf_names}},
    {.arch = NULL},
};
