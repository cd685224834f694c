/* SPDX-License-Identifier: Apache-2.0 */
/* The Llama family, of which most others are variations:
 *
 *     for each layer
 *         h = rms_norm(x)
 *         q, k, v = Wq h, Wk h, Wv h   (+ biases)         k and v go into the cache's pages,
 *         q, k = rope(norm(q)), rope(norm(k))             attention reads them back from there
 *         x += Wo attention(q, pages)
 *         h = rms_norm(x)
 *         x += Wdown (silu(Wgate h) * Wup h)
 *
 *     llama, mistral    the plain one; mistral may have a window
 *     qwen2             biases on q, k, v           qwen3        norms on the heads of q, k
 *     qwen3_moe         experts in place of the last line
 *     smollm3           some layers without rope
 *     granite           what a block adds is scaled, as are embedding, scores and logits
 *     phi3              Wq, Wk, Wv in one matrix, Wgate and Wup in another: cut when bound
 */
#include "model/family.h"

void llama_forward(struct model_run *r, const struct batch *batch) {
    const struct model_config *c = &r->model->config;
    const size_t n = (size_t)batch->rows * c->dim;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_weights *l = &r->model->layers[i];
        block_norm(r, r->x, l->attn_norm, batch->rows, c->dim, r->h);
        block_attention(r, batch, i, r->h, r->t);
        op_add(r->backend, r->x, r->t, c->residual_scale, n);
        block_norm(r, r->x, l->ffn_norm, batch->rows, c->dim, r->h);
        if (c->layers[i].experts)
            block_experts(r, l, r->h, r->h, batch->rows, r->t);
        else
            block_mlp(r, &l->mlp, r->h, batch->rows, r->t);
        op_add(r->backend, r->x, r->t, c->residual_scale, n);
    }
}

/* ---- config.json ----------------------------------------------------------------------------- */

static bool is(const struct model_config *c, const char *arch) {
    return strcmp(c->arch, arch) == 0;
}

/* Qwen's window is in use where use_sliding_window says so, from layer max_window_layers on (of
 * qwen3_moe in all); smollm3's in layers without rope. */
static kvasir_status read_qwen_windows(const struct json_scope *s, struct model_config *c) {
    const char *type;
    bool in_use = false;
    uint32_t first = 0, window = 0;
    TRY(json_get_bool(s, "use_sliding_window", &in_use));
    TRY(config_layer_type(s, c, 0, &type));
    if (type && in_use)
        return config_windows(s, c, 0);
    for (uint32_t i = 0; type && i < c->n_layers; i++) {
        TRY(config_layer_type(s, c, i, &type));
        if (strcmp(type, "full_attention") != 0)
            return fail(s->err, KVASIR_ERR_FORMAT,
                        "field %slayer_types[%u]: %.60s, but there is no sliding_window in use",
                        s->prefix, i, type);
    }
    TRY(json_get_u32(s, "sliding_window", false, 1, CTX_MAX, &window));
    if (!in_use || !window)
        return KVASIR_OK;
    if (!is(c, "qwen3_moe") && !is(c, "smollm3"))
        TRY(json_get_u32(s, "max_window_layers", true, 0, UINT32_MAX, &first));
    for (uint32_t i = first; i < c->n_layers; i++)
        if (!is(c, "smollm3") || c->layers[i].rope == NO_ROPE)
            c->layers[i].window = c->window = window;
    return KVASIR_OK;
}

static kvasir_status read_windows(const struct json_scope *s, struct model_config *c) {
    if (strncmp(c->arch, "qwen", 4) == 0 || is(c, "smollm3"))
        return read_qwen_windows(s, c);
    if (!is(c, "mistral") && !is(c, "phi3"))
        return config_windows(s, c, 0);
    const char *type;
    uint32_t window = 0;
    TRY(config_layer_type(s, c, 0, &type));
    if (type)
        return config_windows(s, c, 0);
    TRY(json_get_u32(s, "sliding_window", false, 1, CTX_MAX, &window));
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].window = window;
    c->window = window;
    return KVASIR_OK;
}

/* smollm3: 1 in no_rope_layers is a layer with rope. */
static kvasir_status read_no_rope(const struct json_scope *s, struct model_config *c) {
    const json_t *list = json_object_get(s->object, "no_rope_layers");
    uint32_t every = 4;
    TRY(json_get_u32(s, "no_rope_layer_interval", false, 1, LAYERS_MAX, &every));
    if (list && !json_is_null(list) && json_array_size(list) != c->n_layers)
        return fail(s->err, KVASIR_ERR_FORMAT,
                    "field %sno_rope_layers must be an array of %u numbers", s->prefix,
                    c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        bool turns = (i + 1) % every != 0;
        const json_t *number = json_array_get(list, i);
        if (number && (!json_is_integer(number) || json_integer_value(number) < 0 ||
                       json_integer_value(number) > 1))
            return fail(s->err, KVASIR_ERR_FORMAT, "field %sno_rope_layers[%u] must be 0 or 1",
                        s->prefix, i);
        if (number)
            turns = json_integer_value(number) != 0;
        c->layers[i].rope = turns ? 0 : NO_ROPE;
    }
    return KVASIR_OK;
}

static kvasir_status read_granite(const struct json_scope *s, struct model_config *c) {
    float divisor = 1;
    c->attention_scale = 1; /* the class's default */
    TRY(config_float(s, "embedding_multiplier", &c->embed_scale));
    TRY(config_float(s, "residual_multiplier", &c->residual_scale));
    TRY(config_float(s, "attention_multiplier", &c->attention_scale));
    TRY(config_float(s, "logits_scaling", &divisor));
    c->logit_scale = 1 / divisor;
    return KVASIR_OK;
}

kvasir_status llama_read(const struct json_scope *s, struct model_config *c) {
    TRY(config_gate(s, c));
    TRY(config_attention_bias(s, c));
    if (is(c, "qwen2"))
        c->attention_bias = BIAS_QKV;
    TRY(config_refuse(s, "mlp_bias"));
    if (is(c, "smollm3"))
        TRY(read_no_rope(s, c));
    TRY(read_windows(s, c));
    if (is(c, "granite"))
        TRY(read_granite(s, c));
    return is(c, "qwen3_moe") ? config_experts(s, c) : KVASIR_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static kvasir_status bind_fused_attention(struct binder *b, uint32_t i, struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    const uint32_t q_dim = c->heads * c->head_dim, kv_dim = c->kv_heads * c->head_dim;
    struct weight all;
    TRY(layer_matrix(b, i, "self_attn.qkv_proj", q_dim + 2 * kv_dim, c->dim, &all));
    TRY(bind_rows(b, &all, 0, q_dim, &l->q));
    TRY(bind_rows(b, &all, q_dim, kv_dim, &l->k));
    TRY(bind_rows(b, &all, q_dim + kv_dim, kv_dim, &l->v));
    return layer_matrix(b, i, "self_attn.o_proj", c->dim, q_dim, &l->o);
}

static kvasir_status bind_fused_mlp(struct binder *b, uint32_t i, struct mlp_weights *w) {
    const struct model_config *c = &b->model->config;
    struct weight both;
    TRY(layer_matrix(b, i, "mlp.gate_up_proj", 2 * c->ffn_dim, c->dim, &both));
    TRY(bind_rows(b, &both, 0, c->ffn_dim, &w->gate));
    TRY(bind_rows(b, &both, c->ffn_dim, c->ffn_dim, &w->up));
    return layer_matrix(b, i, "mlp.down_proj", c->dim, c->ffn_dim, &w->down);
}

kvasir_status llama_bind(struct binder *b, uint32_t i, struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    bool fused = layer_has(b, i, "self_attn.qkv_proj.weight");
    TRY(layer_norm(b, i, "input_layernorm", c->dim, &l->attn_norm));
    TRY(fused ? bind_fused_attention(b, i, l) : layer_attention(b, i, 1, l));
    if (strncmp(c->arch, "qwen3", 5) == 0) {
        TRY(layer_norm(b, i, "self_attn.q_norm", c->head_dim, &l->q_norm));
        TRY(layer_norm(b, i, "self_attn.k_norm", c->head_dim, &l->k_norm));
    }
    TRY(layer_norm(b, i, "post_attention_layernorm", c->dim, &l->ffn_norm));
    if (c->layers[i].experts) {
        TRY(layer_matrix(b, i, "mlp.gate", c->moe.n, c->dim, &l->router));
        return layer_experts(b, i, "mlp", l);
    }
    if (layer_has(b, i, "mlp.gate_up_proj.weight"))
        return bind_fused_mlp(b, i, &l->mlp);
    return layer_mlp(b, i, "mlp", c->ffn_dim, &l->mlp);
}
