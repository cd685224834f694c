/* SPDX-License-Identifier: Apache-2.0 */
/* gpt-oss: every other layer has a window, every head's softmax has a sink, every feed-forward
 * consists of experts, and everything has biases.
 *
 *     for each layer
 *         x += Wo attention(...rms_norm(x)...) + b           as llama's, with sinks
 *         h = rms_norm(x)
 *         x += experts(h)                                     gated: GATE_SWIGLU_CLAMPED
 *
 * Layouts of experts in files:
 *
 *     Hugging Face   gate_up_proj [experts][dim][2 n], down_proj [experts][n][dim]: inputs first,
 *                    so they are transposed here, once; or gate_up_proj_blocks and _scales in MXFP4
 *                    (modules.c joins them to [experts][2 n][dim]), read in place. Gates and ups
 *                    are alternate rows
 *     mlx, GGUF      gate_proj, up_proj, down_proj [experts][rows][k], as in other families
 */
#include "model/family.h"

static void gpt_oss_forward(struct model_run *r, const struct batch *batch) {
    const struct model_config *c = &r->model->config;
    const size_t n = (size_t)batch->rows * c->dim;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_weights *l = &r->model->layers[i];
        block_norm(r, r->x, l->attn_norm, batch->rows, c->dim, r->h);
        block_attention(r, batch, i, r->h, r->t);
        op_add(r->backend, r->x, r->t, 1, n);
        block_norm(r, r->x, l->ffn_norm, batch->rows, c->dim, r->h);
        block_experts(r, l, r->h, r->h, batch->rows, r->t);
        op_add(r->backend, r->x, r->t, 1, n);
    }
}

static kvasir_status gpt_oss_read(const struct json_scope *s, struct model_config *c) {
    double limit = SWIGLU_LIMIT;
    TRY(config_gate(s, c)); /* the file calls it silu */
    TRY(json_get_double(s, "swiglu_limit", false, &limit));
    if (limit < SWIGLU_LIMIT || limit > SWIGLU_LIMIT)
        return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                    "field %sswiglu_limit: %g is not supported, only %d", s->prefix, limit,
                    SWIGLU_LIMIT);
    c->gate = GATE_SWIGLU_CLAMPED;
    TRY(json_get_u32(s, "num_local_experts", true, 1, EXPERTS_MAX, &c->moe.n));
    TRY(json_get_u32(s, "num_experts_per_tok", true, 1, c->moe.n, &c->moe.top_k));
    TRY(config_experts_fit(s, c, c->ffn_dim));
    c->moe.normalize = true;
    c->attention_bias = BIAS_ALL;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].experts = true;
    if (!json_is_object(json_object_get(s->object, "rope_parameters")) &&
        !json_is_object(json_object_get(s->object, "rope_scaling")))
        return fail(s->err, KVASIR_ERR_FORMAT, "field %srope_parameters is missing", s->prefix);
    return config_windows(s, c, 2);
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

static const struct gguf_name gpt_oss_gguf_names[] = {
    {"post_attention_norm", "post_attention_layernorm"},
    {"attn_sinks.weight", "self_attn.sinks"},
    {"ffn_gate_inp", "mlp.router"},
    {"ffn_gate_exps", "mlp.experts.gate_proj"},
    {"ffn_up_exps", "mlp.experts.up_proj"},
    {"ffn_down_exps", "mlp.experts.down_proj"},
    {NULL, NULL},
};

/* config.json states that yarn's ramp is not rounded to whole pairs, but no key does; llama.cpp
 * rounds, and its logits are far off. */
static kvasir_status gpt_oss_gguf_read(struct gguf_keys *k, struct model_config *c) {
    uint32_t window = 0;
    c->gate = GATE_SWIGLU_CLAMPED;
    c->attention_bias = BIAS_ALL;
    c->ropes[0].truncate = false;
    TRY(gguf_key_u32(k, "attention.sliding_window", true, 1, CTX_MAX, &window));
    TRY(gguf_windows(k, c, window, 2));
    return gguf_experts(k, c);
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Transposes a stack [experts][k][n] to [experts][n][k], in the file's own type; one in MXFP4 has
 * that order already. */
static kvasir_status bind_transposed(struct binder *b, const char *name, uint32_t n, uint32_t k,
                                     struct weight *w) {
    const uint32_t experts = b->model->config.moe.n;
    void *copy;
    struct weight file;
    const struct checkpoint_tensor *t = checkpoint_find(b->checkpoint, name);
    if (t && t->type == WEIGHT_MXFP4_MLX)
        return bind_stack(b, name, experts, n, k, w);
    TRY(bind_stack(b, name, experts, k, n, &file));
    const size_t bytes = weight_traits_of(file.type)->block_bytes;
    if (file.type != WEIGHT_BF16 && file.type != WEIGHT_F16 && file.type != WEIGHT_F32)
        return fail(b->err, KVASIR_ERR_UNSUPPORTED,
                    "tensor %s: only BF16, F16, F32 and MXFP4 are supported", name);
    const uint8_t *from = file.data; /* may be at odd addresses: memcpy */
    TRY(bind_copy(b, (size_t)experts * n * k * bytes, &copy));
    uint8_t *to = copy;
    for (uint32_t e = 0; e < experts; e++)
        for (uint32_t i = 0; i < k; i++)
            for (uint32_t j = 0; j < n; j++)
                memcpy(to + (((size_t)e * n + j) * k + i) * bytes,
                       from + (((size_t)e * k + i) * n + j) * bytes, bytes);
    *w = (struct weight){.data = copy, .type = file.type, .n = experts * n, .k = k};
    return KVASIR_OK;
}

static kvasir_status bind_joint_experts(struct binder *b, uint32_t i, struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    const uint32_t n = c->moe.n, dim = c->moe.dim;
    const struct layer_name both_name = layer_name(i, "mlp.experts.gate_up_proj", ""),
                            down_name = layer_name(i, "mlp.experts.down_proj", "");
    struct weight both, down;
    float *bias;
    TRY(bind_transposed(b, both_name.text, 2 * dim, c->dim, &both));
    TRY(bind_transposed(b, down_name.text, c->dim, dim, &down));
    TRY(experts_alloc(b, l));
    TRY(experts_spread(b, l, PLACE_GATE, &both, 2 * dim, 0, 2 * dim));
    TRY(experts_spread(b, l, PLACE_DOWN, &down, c->dim, 0, c->dim));
    TRY(bind_values(b, layer_name(i, "mlp.experts.gate_up_proj_bias", "").text,
                    (uint64_t[]){n, 2 * dim}, 2, &l->gate_bias, &bias));
    return bind_values(b, layer_name(i, "mlp.experts.down_proj_bias", "").text,
                       (uint64_t[]){n, c->dim}, 2, &l->down_bias, &bias);
}

static kvasir_status bind_single_experts(struct binder *b, uint32_t i, struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    const uint32_t n = c->moe.n, dim = c->moe.dim;
    float *bias;
    TRY(layer_experts(b, i, "mlp", l));
    TRY(bind_values(b, layer_name(i, "mlp.experts.gate_proj.bias", "").text, (uint64_t[]){n, dim},
                    2, &l->gate_bias, &bias));
    TRY(bind_values(b, layer_name(i, "mlp.experts.up_proj.bias", "").text, (uint64_t[]){n, dim}, 2,
                    &l->up_bias, &bias));
    return bind_values(b, layer_name(i, "mlp.experts.down_proj.bias", "").text,
                       (uint64_t[]){n, c->dim}, 2, &l->down_bias, &bias);
}

static kvasir_status gpt_oss_bind(struct binder *b, uint32_t i, struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    TRY(layer_norm(b, i, "input_layernorm", c->dim, &l->attn_norm));
    TRY(layer_attention(b, i, 1, l));
    TRY(layer_vector(b, i, "self_attn.sinks", c->heads, &l->sinks));
    TRY(layer_norm(b, i, "post_attention_layernorm", c->dim, &l->ffn_norm));
    TRY(layer_matrix(b, i, "mlp.router", c->moe.n, c->dim, &l->router));
    TRY(layer_vector(b, i, "mlp.router.bias", c->moe.n, &l->router_bias));
    return layer_has(b, i, "mlp.experts.gate_up_proj") ? bind_joint_experts(b, i, l)
                                                       : bind_single_experts(b, i, l);
}

const struct family gpt_oss_family[] = {
    {.arch = "gpt_oss",
     .classes = {"GptOssForCausalLM"},
     .head_dim = 64,
     .theta = 15e4,
     .read = gpt_oss_read,
     .bind = gpt_oss_bind,
     .forward = gpt_oss_forward,
     .gguf = "gpt-oss",
     .gguf_read = gpt_oss_gguf_read,
     .gguf_names = {gpt_oss_gguf_names}},
    {.arch = NULL},
};
