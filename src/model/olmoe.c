/* SPDX-License-Identifier: Apache-2.0 */
/* OLMoE: Llama's forward pass with experts in every layer (llama.c), with three differences.
 *
 *     q, k = rope(norm(Wq h)), rope(norm(Wk h))           norms over all heads, not each
 *     x += sum of w_e * expert_e(h)                       w = softmax over all experts' logits;
 *                                                         the chosen ones' are not divided by their
 *                                                         sum, unless the model says so
 *     intermediate_size (feed_forward_length) is an expert's width
 *
 * Clipped q, k and v (clip_qkv, attention.clamp_kqv) are refused.
 */
#include "model/family.h"

static kvasir_status olmoe_read(const struct json_scope *s, struct model_config *c) {
    const json_t *clip = json_object_get(s->object, "clip_qkv");
    if (clip && !json_is_null(clip))
        return fail(s->err, KVASIR_ERR_UNSUPPORTED, "field %sclip_qkv: only null is supported",
                    s->prefix);
    TRY(config_gate(s, c));
    TRY(config_attention_bias(s, c));
    c->moe.dim = c->ffn_dim;
    return config_experts(s, c);
}

/* No key states that an expert is feed_forward_length wide and that weights are not divided by
 * their sum. If a file has keys for that, they are obeyed; softmax over the chosen (3) would divide
 * too. */
static kvasir_status olmoe_gguf_read(struct gguf_keys *k, struct model_config *c) {
    uint32_t gating;
    TRY(gguf_experts(k, c));
    TRY(gguf_key_u32(k, "feed_forward_length", true, 1, FFN_MAX, &c->moe.dim));
    TRY(gguf_key_u32(k, "expert_gating_func", false, 1, 1, &gating));
    c->moe.normalize = false;
    return gguf_get_bool(k->g, gguf_key_name(k, "expert_weights_norm"), &c->moe.normalize, k->err);
}

static kvasir_status olmoe_bind(struct binder *b, uint32_t i, struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    TRY(layer_norm(b, i, "input_layernorm", c->dim, &l->attn_norm));
    TRY(layer_attention(b, i, 1, l));
    TRY(layer_norm(b, i, "self_attn.q_norm", c->heads * c->head_dim, &l->q_norm));
    TRY(layer_norm(b, i, "self_attn.k_norm", c->kv_heads * c->head_dim, &l->k_norm));
    TRY(layer_norm(b, i, "post_attention_layernorm", c->dim, &l->ffn_norm));
    TRY(layer_matrix(b, i, "mlp.gate", c->moe.n, c->dim, &l->router));
    return layer_experts(b, i, "mlp", l);
}

const struct family olmoe_family[] = {
    {.arch = "olmoe",
     .classes = {"OlmoeForCausalLM"},
     .heads_are_kv = true,
     .read = olmoe_read,
     .bind = olmoe_bind,
     .forward = llama_forward,
     .gguf = "olmoe",
     .gguf_read = olmoe_gguf_read,
     .gguf_names = {gguf_expert_names}},
    {.arch = NULL},
};
