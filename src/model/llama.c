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
 *     phi3              Wgate and Wup in one matrix, as are Wq, Wk, Wv: cut when bound
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

/* Qwen uses its window if use_sliding_window is set, from layer max_window_layers on (qwen3_moe: in
 * all layers); smollm3 in layers without rope. */
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
                        "field %slayer_types[%u]: %.60s needs a sliding_window, and none is in use",
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

/* smollm3: 1 in no_rope_layers means a layer with rope. */
static kvasir_status read_no_rope(const struct json_scope *s, struct model_config *c) {
    const json_t *list = json_object_get(s->object, "no_rope_layers");
    uint32_t every = 4;
    TRY(json_get_u32(s, "no_rope_layer_interval", false, 1, LAYERS_MAX, &every));
    if (list && !json_is_null(list) && json_array_size(list) != c->n_layers)
        return fail(s->err, KVASIR_ERR_FORMAT,
                    "field %sno_rope_layers must be an array of %u numbers", s->prefix,
                    c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        bool has_rope = (i + 1) % every != 0;
        const json_t *number = json_array_get(list, i);
        if (number && (!json_is_integer(number) || json_integer_value(number) < 0 ||
                       json_integer_value(number) > 1))
            return fail(s->err, KVASIR_ERR_FORMAT, "field %sno_rope_layers[%u] must be 0 or 1",
                        s->prefix, i);
        if (number)
            has_rope = json_integer_value(number) != 0;
        c->layers[i].rope = has_rope ? 0 : NO_ROPE;
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

static kvasir_status llama_read(const struct json_scope *s, struct model_config *c) {
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

/* ---- GGUF ------------------------------------------------------------------------------------ */

static const struct gguf_name phi3_gguf_names[] = {{"ffn_up", "mlp.gate_up_proj"}, {NULL, NULL}};

/* The scale of scores is 1 / sqrt(head_dim) also if the file has 0. */
static kvasir_status read_gguf_granite(struct gguf_keys *k, struct model_config *c) {
    float divisor = 0;
    TRY(gguf_key_float(k, "embedding_scale", &c->embed_scale));
    TRY(gguf_key_float(k, "residual_scale", &c->residual_scale));
    TRY(gguf_key_float(k, "attention.scale", &c->attention_scale));
    TRY(gguf_key_float(k, "logit_scale", &divisor));
    if (!(divisor > 0))
        return fail(k->err, KVASIR_ERR_FORMAT, "metadata %s is missing or 0", k->key);
    c->logit_scale = 1 / divisor;
    return KVASIR_OK;
}

/* Files of Qwen models state a window that the models do not use. Every fourth layer of SmolLM3 has
 * no rope, which no key states. */
static kvasir_status llama_gguf_read(struct gguf_keys *k, struct model_config *c) {
    c->ropes[0].adjacent = is(c, "llama") || is(c, "granite") || is(c, "smollm3");
    if (is(c, "qwen2"))
        c->attention_bias = BIAS_QKV;
    if (strncmp(c->arch, "qwen", 4) == 0)
        gguf_key_name(k, "attention.sliding_window");
    if (is(c, "llama") || is(c, "phi3")) /* Mistral and Phi: in all layers */
        TRY(gguf_windows(k, c, 0, 0));
    for (uint32_t i = 3; is(c, "smollm3") && i < c->n_layers; i += 4)
        c->layers[i].rope = NO_ROPE;
    if (is(c, "granite"))
        TRY(read_gguf_granite(k, c));
    return is(c, "qwen3_moe") ? gguf_experts(k, c) : KVASIR_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static kvasir_status bind_fused_mlp(struct binder *b, uint32_t i, uint32_t ffn_dim,
                                    struct mlp_weights *w) {
    const uint32_t dim = b->model->config.dim;
    struct weight both;
    TRY(bind_joint(b, layer_name(i, "mlp.gate_up_proj", ".weight").text, 2 * ffn_dim, dim, &both));
    TRY(bind_rows(b, &both, 0, ffn_dim, &w->gate));
    TRY(bind_rows(b, &both, ffn_dim, ffn_dim, &w->up));
    return layer_matrix(b, i, "mlp.down_proj", dim, ffn_dim, &w->down);
}

static kvasir_status llama_bind(struct binder *b, uint32_t i, struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    TRY(layer_norm(b, i, "input_layernorm", c->dim, &l->attn_norm));
    TRY(layer_attention(b, i, 1, l));
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
        return bind_fused_mlp(b, i, c->layers[i].ffn_dim, &l->mlp);
    return layer_mlp(b, i, "mlp", c->layers[i].ffn_dim, &l->mlp);
}

/* Mistral has no GGUF name: its files are of architecture llama. */
const struct family llama_family[] = {
    {.arch = "llama",
     .classes = {"LlamaForCausalLM"},
     .heads_are_kv = true,
     .read = llama_read,
     .bind = llama_bind,
     .forward = llama_forward,
     .gguf = "llama",
     .gguf_read = llama_gguf_read},
    {.arch = "mistral",
     .classes = {"MistralForCausalLM"},
     .read = llama_read,
     .bind = llama_bind,
     .forward = llama_forward},
    {.arch = "qwen2",
     .classes = {"Qwen2ForCausalLM"},
     .read = llama_read,
     .bind = llama_bind,
     .forward = llama_forward,
     .gguf = "qwen2",
     .gguf_read = llama_gguf_read},
    {.arch = "qwen3",
     .classes = {"Qwen3ForCausalLM"},
     .head_dim = 128,
     .read = llama_read,
     .bind = llama_bind,
     .forward = llama_forward,
     .gguf = "qwen3",
     .gguf_read = llama_gguf_read},
    {.arch = "qwen3_moe",
     .classes = {"Qwen3MoeForCausalLM"},
     .read = llama_read,
     .bind = llama_bind,
     .forward = llama_forward,
     .gguf = "qwen3moe",
     .gguf_read = llama_gguf_read,
     .gguf_names = {gguf_expert_names}},
    {.arch = "smollm3",
     .classes = {"SmolLM3ForCausalLM"},
     .theta = 2e6,
     .tied = true,
     .read = llama_read,
     .bind = llama_bind,
     .forward = llama_forward,
     .gguf = "smollm3",
     .gguf_read = llama_gguf_read},
    {.arch = "granite",
     .classes = {"GraniteForCausalLM"},
     .read = llama_read,
     .bind = llama_bind,
     .forward = llama_forward,
     .gguf = "granite",
     .gguf_read = llama_gguf_read},
    {.arch = "phi3",
     .classes = {"Phi3ForCausalLM"},
     .heads_are_kv = true,
     .read = llama_read,
     .bind = llama_bind,
     .forward = llama_forward,
     .gguf = "phi3",
     .gguf_read = llama_gguf_read,
     .gguf_names = {phi3_gguf_names}},
    {.arch = NULL},
};
