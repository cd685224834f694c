/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 2 and 3: norms before and after each block, gains stored less 1, the embedding times
 * sqrt(dim), tanh-approximated gelu. sqrt(dim) is rounded to bfloat16, as in mlx-lm always and in
 * transformers in the type that the models were released in.
 *
 *     for each layer
 *         x += norm(Wo attention(...rms_norm(x)...))
 *         x += norm(Wdown (gelu(Wgate h) * Wup h)),  h = rms_norm(x)
 *
 *     gemma2   every other layer sees a window; soft caps on scores and logits
 *     gemma3   five layers of six see a window and have a rope of their own; norms on the heads of
 *              q and k
 */
#include "model/family.h"

static void gemma_forward(struct model_run *r, const struct batch *batch) {
    const struct model_config *c = &r->model->config;
    const size_t n = (size_t)batch->rows * c->dim;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_weights *l = &r->model->layers[i];
        block_norm(r, r->x, l->attn_norm, batch->rows, c->dim, r->h);
        block_attention(r, batch, i, r->h, r->t);
        block_norm(r, r->t, l->attn_post_norm, batch->rows, c->dim, r->t);
        op_add(r->backend, r->x, r->t, 1, n);
        block_norm(r, r->x, l->ffn_norm, batch->rows, c->dim, r->h);
        block_mlp(r, &l->mlp, r->h, batch->rows, r->t);
        block_norm(r, r->t, l->ffn_post_norm, batch->rows, c->dim, r->t);
        op_add(r->backend, r->x, r->t, 1, n);
    }
}

static float embed_scale(const struct model_config *c) {
    return bf16_to_f32(f32_to_bf16((float)m_sqrt(c->dim)));
}

static bool is_third(const struct model_config *c) {
    return strcmp(c->arch, "gemma3") == 0;
}

static kvasir_status gemma_read(const struct json_scope *s, struct model_config *c) {
    const bool third = is_third(c);
    uint32_t pattern = third ? 6 : 2;
    float scalar = 256;
    c->gate = GATE_GELU_TANH;
    c->unit_offset = true;
    c->embed_scale = embed_scale(c);
    TRY(config_gate(s, c));
    TRY(config_attention_bias(s, c));
    TRY(config_refuse(s, "use_bidirectional_attention"));
    TRY(config_float(s, "query_pre_attn_scalar", &scalar));
    c->attention_scale = (float)(1 / m_sqrt((double)scalar));
    if (!third) { /* null: none; missing: the class's default */
        c->attention_softcap = json_object_get(s->object, "attn_logit_softcapping") ? 0 : 50;
        c->logit_softcap = json_object_get(s->object, "final_logit_softcapping") ? 0 : 30;
    }
    TRY(config_float(s, "attn_logit_softcapping", &c->attention_softcap));
    TRY(config_float(s, "final_logit_softcapping", &c->logit_softcap));
    if (third) {
        TRY(json_get_u32(s, "sliding_window_pattern", false, 1, LAYERS_MAX, &pattern));
    }
    TRY(config_windows(s, c, pattern));
    return third ? config_ropes_by_window(s, c, 10000) : KVASIR_OK;
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

const struct gguf_name gemma_gguf_names[] = {
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
    {NULL, NULL},
};

/* GGUF's gains already include the 1. No key has the scale of scores: it follows from the head
 * size, except in the largest model of each version, which is recognised by its layers. A cap of 0
 * is none. */
static kvasir_status gemma_gguf_read(struct gguf_keys *k, struct model_config *c) {
    const bool third = is_third(c);
    c->gate = GATE_GELU_TANH;
    c->embed_scale = embed_scale(c);
    const bool largest = c->n_layers == (third ? 62 : 46);
    c->attention_scale = (float)(1 / m_sqrt(largest ? c->dim / c->heads : c->head_dim));
    if (!third && !gguf_key_there(k, "attn_logit_softcapping"))
        c->attention_softcap = 50;
    if (!third && !gguf_key_there(k, "final_logit_softcapping"))
        c->logit_softcap = 30;
    if (!third)
        TRY(gguf_key_float(k, "attn_logit_softcapping", &c->attention_softcap));
    TRY(gguf_key_float(k, "final_logit_softcapping", &c->logit_softcap));
    TRY(gguf_windows(k, c, third ? 0 : 4096, third ? 6 : 2));
    return third ? gguf_ropes_by_window(k, c, 10000) : KVASIR_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static kvasir_status gemma_bind(struct binder *b, uint32_t i, struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    TRY(layer_norm(b, i, "input_layernorm", c->dim, &l->attn_norm));
    TRY(layer_attention(b, i, 1, l));
    if (is_third(c)) {
        TRY(layer_norm(b, i, "self_attn.q_norm", c->head_dim, &l->q_norm));
        TRY(layer_norm(b, i, "self_attn.k_norm", c->head_dim, &l->k_norm));
    }
    TRY(layer_norm(b, i, "post_attention_layernorm", c->dim, &l->attn_post_norm));
    TRY(layer_norm(b, i, "pre_feedforward_layernorm", c->dim, &l->ffn_norm));
    TRY(layer_norm(b, i, "post_feedforward_layernorm", c->dim, &l->ffn_post_norm));
    return layer_mlp(b, i, "mlp", c->layers[i].ffn_dim, &l->mlp);
}

const struct family gemma_family[] = {
    {.arch = "gemma2",
     .classes = {"Gemma2ForCausalLM"},
     .head_dim = 256,
     .tied = true,
     .read = gemma_read,
     .bind = gemma_bind,
     .forward = gemma_forward,
     .gguf = "gemma2",
     .gguf_read = gemma_gguf_read,
     .gguf_names = {gemma_gguf_names}},
    {.arch = "gemma3",
     .classes = {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"},
     .head_dim = 256,
     .theta = 1e6,
     .tied = true,
     .wrapped = {26, 2304, 9216, 8, 4, 262208, 131072, 4096, 1e-6},
     .read = gemma_read,
     .bind = gemma_bind,
     .forward = gemma_forward,
     .gguf = "gemma3",
     .gguf_read = gemma_gguf_read,
     .gguf_names = {gemma_gguf_names}},
    {.arch = NULL},
};
