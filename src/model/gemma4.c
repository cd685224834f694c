/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 4. Layers see a window or everything. Those that see everything may have larger heads,
 * fewer KV heads, a rope that rotates only the first pairs, and no projection for V. The last
 * layers may read the K and V of an earlier one of their kind and have none of their own.
 *
 *     inputs = (embed'(tokens) sqrt(d) + norm(W' x / sqrt(dim))) / sqrt(2)      [layer][d]
 *     for each layer
 *         q = rope(norm(Wq h)),  k = rope(norm(Wk h)),  v = norm(Wv h or Wk h)  h = norm(x)
 *         x += norm(Wo attention(q, pages))                   scores are not scaled
 *         t = Wdown (gelu(Wgate h) * Wup h)                   h = norm(x)
 *         t = norm(t) + norm(experts(norm(x)))                in models with experts
 *         x += norm(t)
 *         x += norm(Wproj (gelu(Win x) * inputs[layer]))
 *         x *= scale of the layer
 *
 * Gains are stored unchanged; the embedding's factor is as in gemma.c. The router reads x, normed
 * with a gain of its own.
 */
#include <stdio.h>

#include "model/family.h"

/* ---- forward --------------------------------------------------------------------------------- */

static void make_layer_inputs(struct model_run *r, const struct batch *batch) {
    const struct model *m = r->model;
    const struct model_config *c = &m->config;
    const uint32_t d = c->layer_input_dim, rows = batch->rows;
    const size_t n = (size_t)rows * c->n_layers * d;
    op_embed(r->backend, matrix_on_device(r, m->layer_embed), batch->tokens, rows, r->layer_inputs);
    op_scale(r->backend, r->layer_inputs, (float)m_sqrt(d), n);
    block_matmul(r, r->x, rows, m->layer_projection, 0, r->layer_projected);
    op_scale(r->backend, r->layer_projected, (float)(1 / m_sqrt(c->dim)), n);
    block_norm(r, r->layer_projected, m->layer_projection_norm, rows * c->n_layers, d,
               r->layer_projected);
    op_add(r->backend, r->layer_inputs, r->layer_projected, 1, n);
    op_scale(r->backend, r->layer_inputs, (float)m_sqrt(0.5), n);
}

static void attention_block(struct model_run *r, const struct batch *batch, uint32_t i,
                            const float *h, float *out) {
    const struct model_config *c = &r->model->config;
    const struct layer_config *shape = &c->layers[i];
    const struct layer_weights *l = &r->model->layers[i];
    const uint32_t rows = batch->rows, dim = shape->head_dim, kv_rows = rows * shape->kv_heads;
    block_matmul(r, h, rows, l->q, 0, r->q);
    block_norm(r, r->q, l->q_norm, rows * c->heads, dim, r->q);
    block_rope(r, batch, i, r->q, c->heads);
    if (shape->kv_from == i) {
        block_matmul(r, h, rows, l->k, 0, r->k);
        block_matmul(r, h, rows, shape->k_is_v ? l->k : l->v, 0, r->v);
        block_norm(r, r->k, l->k_norm, kv_rows, dim, r->k);
        block_norm(r, r->v, 0, kv_rows, dim, r->v);
        block_rope(r, batch, i, r->k, shape->kv_heads);
    }
    block_attend(r, batch, i);
    block_matmul(r, r->attended, rows, l->o, 0, out);
}

/* t = norm(mlp(h)) + norm(experts(norm(x))) */
static void experts_beside(struct model_run *r, const struct layer_weights *l, uint32_t rows) {
    const uint32_t dim = r->model->config.dim;
    block_norm(r, r->t, l->mlp_post_norm, rows, dim, r->t);
    block_norm(r, r->x, l->router_scale, rows, dim, r->h);
    block_norm(r, r->x, l->experts_norm, rows, dim, r->routed);
    block_experts(r, l, r->routed, r->h, rows, r->h);
    block_norm(r, r->h, l->experts_post_norm, rows, dim, r->h);
    op_add(r->backend, r->t, r->h, 1, (size_t)rows * dim);
}

static void input_block(struct model_run *r, const struct layer_weights *l, uint32_t i,
                        uint32_t rows) {
    const struct model_config *c = &r->model->config;
    const uint32_t d = c->layer_input_dim;
    const struct block_strides all = {c->n_layers * d, 0}, one = {d, 0};
    block_matmul(r, r->x, rows, l->input_gate, 0, r->gate);
    op_rearrange(r->backend, rows, 1, d, r->layer_inputs + (size_t)i * d, all, r->up, one);
    op_gate_mul(r->backend, c->gate, r->gate, r->up, (size_t)rows * d, r->gate);
    block_matmul(r, r->gate, rows, l->input_projection, 0, r->t);
    block_norm(r, r->t, l->input_post_norm, rows, c->dim, r->t);
    op_add(r->backend, r->x, r->t, 1, (size_t)rows * c->dim);
}

static void gemma4_forward(struct model_run *r, const struct batch *batch) {
    const struct model_config *c = &r->model->config;
    const uint32_t rows = batch->rows;
    const size_t n = (size_t)rows * c->dim;
    if (c->layer_input_dim)
        make_layer_inputs(r, batch);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_weights *l = &r->model->layers[i];
        block_norm(r, r->x, l->attn_norm, rows, c->dim, r->h);
        attention_block(r, batch, i, r->h, r->t);
        block_norm(r, r->t, l->attn_post_norm, rows, c->dim, r->t);
        op_add(r->backend, r->x, r->t, 1, n);
        block_norm(r, r->x, l->ffn_norm, rows, c->dim, r->h);
        block_mlp(r, &l->mlp, r->h, rows, r->t);
        if (c->layers[i].experts)
            experts_beside(r, l, rows);
        block_norm(r, r->t, l->ffn_post_norm, rows, c->dim, r->t);
        op_add(r->backend, r->x, r->t, 1, n);
        if (c->layer_input_dim)
            input_block(r, l, i, rows);
        block_scale(r, r->x, l->scale, n);
    }
}

/* ---- config.json ----------------------------------------------------------------------------- */

/* per_layer_config { "1": { head_dim, ... } }: the settings of a layer. */
static kvasir_status read_layer_heads(const struct json_scope *s, const json_t *layers,
                                      struct model_config *c) {
    const char *key, *field;
    json_t *layer, *value;
    json_object_foreach((json_t *)layers, key, layer) {
        char number[16], prefix[64];
        uint32_t i = 0;
        while (i < c->n_layers &&
               (snprintf(number, sizeof number, "%u", i), strcmp(number, key) != 0))
            i++;
        if (i == c->n_layers || !json_is_object(layer))
            return fail(s->err, KVASIR_ERR_FORMAT,
                        "field %sper_layer_config.%.40s must be an object for one of %u layers",
                        s->prefix, key, c->n_layers);
        snprintf(prefix, sizeof prefix, "%sper_layer_config.%u.", s->prefix, i);
        struct json_scope one = {layer, prefix, s->err};
        TRY(json_get_u32(&one, "head_dim", false, 1, HEAD_DIM_MAX, &c->layers[i].head_dim));
        TRY(json_get_u32(&one, "num_key_value_heads", false, 1, HEADS_MAX, &c->layers[i].kv_heads));
        json_object_foreach(layer, field, value) {
            if (strcmp(field, "head_dim") != 0 && strcmp(field, "num_key_value_heads") != 0)
                return fail(s->err, KVASIR_ERR_UNSUPPORTED, "field %s%.40s is not supported",
                            prefix, field);
        }
    }
    return KVASIR_OK;
}

/* Heads of the layers without a window: per layer, or global_head_dim and
 * num_global_key_value_heads for all of them. */
static kvasir_status read_heads(const struct json_scope *s, struct model_config *c) {
    const json_t *layers = json_object_get(s->object, "per_layer_config");
    uint32_t head_dim = 512, kv_heads = c->kv_heads;
    TRY(json_get_u32(s, "global_head_dim", false, 1, HEAD_DIM_MAX, &head_dim));
    TRY(json_get_u32(s, "num_global_key_value_heads", false, 1, HEADS_MAX, &kv_heads));
    if (layers && !json_is_null(layers) && !json_is_object(layers))
        return fail(s->err, KVASIR_ERR_FORMAT,
                    "field %sper_layer_config must be an object, found "
                    "%s",
                    s->prefix, json_kind(layers));
    if (json_is_object(layers))
        return read_layer_heads(s, layers, c);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        struct layer_config *l = &c->layers[i];
        l->head_dim = l->window ? c->head_dim : head_dim;
        l->kv_heads = l->window || !l->k_is_v ? c->kv_heads : kv_heads;
    }
    return KVASIR_OK;
}

/* All heads of a rope must have the same size. */
static kvasir_status check_rope_dims(const struct json_scope *s, const struct model_config *c) {
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_config *l = &c->layers[i];
        const uint32_t dims = l->window ? c->head_dim : c->ropes[0].dims;
        if (l->head_dim != dims)
            return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                        "field %sper_layer_config.%u.head_dim: %u, others of its kind have %u",
                        s->prefix, i, l->head_dim, dims);
    }
    return KVASIR_OK;
}

/* The last layers read K and V of the last layer of their kind before them. field: name for
 * errors. */
static kvasir_status share_layers(struct model_config *c, uint32_t shared, const char *prefix,
                                  const char *field, kvasir_error *err) {
    const uint32_t first = c->n_layers - shared;
    for (uint32_t i = first; i < c->n_layers; i++) {
        struct layer_config *l = &c->layers[i];
        uint32_t from = first;
        while (from > 0 && (c->layers[from - 1].window != 0) != (l->window != 0))
            from--;
        if (from == 0)
            return fail(err, KVASIR_ERR_FORMAT, "%s%s: no layer before %u has K and V for layer %u",
                        prefix, field, first, i);
        l->kv_from = from - 1;
        if (c->layers[from - 1].head_dim != l->head_dim ||
            c->layers[from - 1].kv_heads != l->kv_heads)
            return fail(err, KVASIR_ERR_FORMAT, "%s%s: layer %u reads layer %u, whose heads differ",
                        prefix, field, i, from - 1);
    }
    return KVASIR_OK;
}

static kvasir_status read_sharing(const struct json_scope *s, struct model_config *c) {
    uint32_t shared = 0;
    bool wide = false;
    TRY(json_get_u32(s, "num_kv_shared_layers", false, 0, c->n_layers, &shared));
    TRY(json_get_bool(s, "use_double_wide_mlp", &wide));
    if (wide && 2 * c->ffn_dim > FFN_MAX)
        return fail(s->err, KVASIR_ERR_FORMAT, "field %suse_double_wide_mlp: twice %u is above %d",
                    s->prefix, c->ffn_dim, FFN_MAX);
    for (uint32_t i = c->n_layers - shared; i < c->n_layers; i++)
        c->layers[i].ffn_dim *= wide ? 2 : 1;
    char prefix[64];
    snprintf(prefix, sizeof prefix, "field %s", s->prefix);
    return share_layers(c, shared, prefix, "num_kv_shared_layers", s->err);
}

static kvasir_status read_experts(const struct json_scope *s, struct model_config *c) {
    bool on = false;
    TRY(json_get_bool(s, "enable_moe_block", &on));
    if (!on)
        return KVASIR_OK;
    TRY(json_get_u32(s, "num_experts", true, 1, EXPERTS_MAX, &c->moe.n));
    TRY(json_get_u32(s, "top_k_experts", true, 1, c->moe.n, &c->moe.top_k));
    uint32_t dim;
    TRY(json_get_u32(s, "moe_intermediate_size", true, 1, FFN_MAX, &dim));
    TRY(config_experts_fit(s, c, dim));
    c->moe.normalize = true;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].experts = true;
    return KVASIR_OK;
}

static void set_constants(struct model_config *c) {
    c->gate = GATE_GELU_TANH;
    c->embed_scale = bf16_to_f32(f32_to_bf16((float)m_sqrt(c->dim)));
    c->attention_scale = 1;
    c->layer_input_vocab = c->vocab;
}

static kvasir_status gemma4_read(const struct json_scope *s, struct model_config *c) {
    bool k_is_v = false;
    const char *both_ways = "vision"; /* of pictures only */
    set_constants(c);
    TRY(config_gate(s, c));
    TRY(config_refuse(s, "attention_bias"));
    if (!json_is_false(json_object_get(s->object, "use_bidirectional_attention")))
        TRY(json_get_string(s, "use_bidirectional_attention", false, &both_ways));
    if (strcmp(both_ways, "vision") != 0)
        return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                    "field %suse_bidirectional_attention: %.60s is not supported", s->prefix,
                    both_ways);
    TRY(config_float(s, "final_logit_softcapping", &c->logit_softcap));
    c->layer_input_dim = 256; /* the class's default */
    TRY(json_get_u32(s, "hidden_size_per_layer_input", false, 0, FFN_MAX, &c->layer_input_dim));
    TRY(json_get_u32(s, "vocab_size_per_layer_input", false, 1, VOCAB_MAX, &c->layer_input_vocab));
    TRY(json_get_bool(s, "attention_k_eq_v", &k_is_v));
    TRY(config_windows(s, c, 6));
    c->layers[c->n_layers - 1].window = 0; /* as the class does, whatever the file says */
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].k_is_v = k_is_v && !c->layers[i].window;
    TRY(read_heads(s, c));
    TRY(read_sharing(s, c));
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (!c->layers[i].window)
            c->ropes[0].dims = c->layers[i].head_dim;
    TRY(check_rope_dims(s, c));
    const json_t *rope = json_object_get(s->object, "rope_parameters");
    if (json_is_object(json_object_get(s->object, "rope_scaling")) ||
        (json_is_object(rope) && !json_object_get(rope, "full_attention")))
        return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                    "field %srope_parameters: one rope for all layers is not supported", s->prefix);
    c->ropes[0].kind = ROPE_PROPORTIONAL; /* the class's default */
    c->ropes[0].theta = 1e6;
    c->ropes[0].rotated = c->ropes[0].dims / 8;
    TRY(config_ropes_by_window(s, c, 10000));
    return read_experts(s, c);
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

static const struct gguf_name gemma4_gguf_names[] = {
    {"per_layer_token_embd", "model.embed_tokens_per_layer"},
    {"per_layer_model_proj", "model.per_layer_model_projection"},
    {"per_layer_proj_norm", "model.per_layer_projection_norm"},
    {"inp_gate", "per_layer_input_gate"},
    {"proj", "per_layer_projection"},
    {"post_norm", "post_per_layer_input_norm"},
    {"layer_output_scale.weight", "layer_scalar"},
    {"ffn_gate_inp", "router.proj"},
    {"ffn_gate_inp.scale", "router.scale"},
    {"ffn_gate_up_exps.weight", "experts.gate_up_proj"},
    {"ffn_gate_exps", "experts.gate_proj"},
    {"ffn_up_exps", "experts.up_proj"},
    {"ffn_down_exps", "experts.down_proj"},
    {"ffn_down_exps.scale", "router.per_expert_scale"},
    {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
    {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
    {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
    {NULL, NULL},
};

/* key_length and rope.dimension_count are those of the layers without a window. rope_freqs.weight
 * determines how much of their heads is rotated, and which of them have V follows from its tensor.
 * A missing soft cap is 30; 0 is none. */
static kvasir_status gemma4_gguf_read(struct gguf_keys *k, struct model_config *c) {
    static const char *const pattern = "attention.sliding_window_pattern";
    uint32_t shared = 0, window_dim = c->head_dim, ffn[LAYERS_MAX];
    set_constants(c);
    if (!gguf_key_there(k, pattern))
        return fail(k->err, KVASIR_ERR_FORMAT, "metadata %s is missing", k->key);
    TRY(gguf_windows(k, c, 0, 0));
    TRY(gguf_key_u32(k, "attention.key_length_swa", false, 1, DIM_MAX, &window_dim));
    TRY(gguf_value_length(k, "attention.value_length_swa", window_dim));
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->layers[i].window)
            c->layers[i].head_dim = window_dim;
    c->head_dim = window_dim;
    TRY(gguf_ropes_by_window(k, c, 10000));
    TRY(gguf_key_u32(k, "attention.shared_kv_layers", false, 0, c->n_layers, &shared));
    TRY(share_layers(c, shared, "metadata ", k->key, k->err));
    TRY(gguf_key_u32(k, "embedding_length_per_layer_input", true, 0, FFN_MAX, &c->layer_input_dim));
    c->logit_softcap = gguf_key_there(k, "final_logit_softcapping") ? 0 : 30;
    TRY(gguf_key_float(k, "final_logit_softcapping", &c->logit_softcap));
    TRY(gguf_key_layers(k, "feed_forward_length", true, 1, FFN_MAX, ffn)); /* also with experts */
    uint32_t experts = 0;
    TRY(gguf_key_u32(k, "expert_count", false, 0, EXPERTS_MAX, &experts));
    return experts ? gguf_experts(k, c) : KVASIR_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static kvasir_status bind_attention(struct binder *b, uint32_t i, struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    const struct layer_config *shape = &c->layers[i];
    const uint32_t q_dim = c->heads * shape->head_dim, kv_dim = shape->kv_heads * shape->head_dim;
    TRY(layer_matrix(b, i, "self_attn.q_proj", q_dim, c->dim, &l->q));
    TRY(layer_norm(b, i, "self_attn.q_norm", shape->head_dim, &l->q_norm));
    TRY(layer_matrix(b, i, "self_attn.o_proj", c->dim, q_dim, &l->o));
    if (shape->kv_from != i)
        return KVASIR_OK;
    TRY(layer_matrix(b, i, "self_attn.k_proj", kv_dim, c->dim, &l->k));
    TRY(layer_norm(b, i, "self_attn.k_norm", shape->head_dim, &l->k_norm));
    bool *k_is_v = &b->model->config.layers[i].k_is_v;
    if (c->from_gguf)
        *k_is_v = !shape->window && !layer_has(b, i, "self_attn.v_proj.weight");
    return *k_is_v ? KVASIR_OK : layer_matrix(b, i, "self_attn.v_proj", kv_dim, c->dim, &l->v);
}

static kvasir_status bind_experts(struct binder *b, uint32_t i, struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    float *scale;
    TRY(layer_norm(b, i, "post_feedforward_layernorm_1", c->dim, &l->mlp_post_norm));
    TRY(layer_norm(b, i, "pre_feedforward_layernorm_2", c->dim, &l->experts_norm));
    TRY(layer_norm(b, i, "post_feedforward_layernorm_2", c->dim, &l->experts_post_norm));
    TRY(layer_matrix(b, i, "router.proj", c->moe.n, c->dim, &l->router));
    TRY(layer_vector(b, i, "router.per_expert_scale", c->moe.n, &l->expert_scale));
    TRY(bind_values(b, layer_name(i, "router.scale", "").text, (uint64_t[]){c->dim}, 1,
                    &l->router_scale, &scale));
    for (uint32_t d = 0; d < c->dim; d++) /* the router's input is divided by sqrt(dim) */
        scale[d] *= (float)(1 / m_sqrt(c->dim));
    return layer_experts(b, i, "", l);
}

static kvasir_status bind_input(struct binder *b, uint32_t i, struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    TRY(layer_matrix(b, i, "per_layer_input_gate", c->layer_input_dim, c->dim, &l->input_gate));
    TRY(layer_matrix(b, i, "per_layer_projection", c->dim, c->layer_input_dim,
                     &l->input_projection));
    return layer_norm(b, i, "post_per_layer_input_norm", c->dim, &l->input_post_norm);
}

static kvasir_status gemma4_bind(struct binder *b, uint32_t i, struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    vector_id scale;
    TRY(layer_norm(b, i, "input_layernorm", c->dim, &l->attn_norm));
    TRY(bind_attention(b, i, l));
    TRY(layer_norm(b, i, "post_attention_layernorm", c->dim, &l->attn_post_norm));
    TRY(layer_norm(b, i, "pre_feedforward_layernorm", c->dim, &l->ffn_norm));
    TRY(layer_norm(b, i, "post_feedforward_layernorm", c->dim, &l->ffn_post_norm));
    TRY(layer_mlp(b, i, "mlp", c->layers[i].ffn_dim, &l->mlp));
    if (c->layers[i].experts)
        TRY(bind_experts(b, i, l));
    if (c->layer_input_dim)
        TRY(bind_input(b, i, l));
    l->scale = 1;
    if (c->from_gguf && !layer_has(b, i, "layer_scalar"))
        return KVASIR_OK;
    TRY(layer_vector(b, i, "layer_scalar", 1, &scale));
    l->scale = b->model->vectors[scale].data[0];
    return KVASIR_OK;
}

static kvasir_status gemma4_bind_model(struct binder *b) {
    struct model *m = b->model;
    const struct model_config *c = &m->config;
    const uint32_t all = c->n_layers * c->layer_input_dim;
    if (c->from_gguf && !bind_has(b, "rope_freqs.weight"))
        return fail(b->err, KVASIR_ERR_FORMAT, "tensor rope_freqs.weight is missing");
    if (!all)
        return KVASIR_OK;
    TRY(bind_matrix(b, "model.embed_tokens_per_layer.weight", c->layer_input_vocab, all,
                    &m->layer_embed));
    TRY(bind_matrix(b, "model.per_layer_model_projection.weight", all, c->dim,
                    &m->layer_projection));
    return bind_norm(b, "model.per_layer_projection_norm.weight", c->layer_input_dim,
                     &m->layer_projection_norm);
}

const struct family gemma4_family[] = {
    {.arch = "gemma4",
     .classes = {"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"},
     .head_dim = 256,
     .theta = 1e6,
     .tied = true,
     .wrapped = {30, 2304, 9216, 8, 4, 262144, 131072, 512, 1e-6},
     .read = gemma4_read,
     .bind = gemma4_bind,
     .bind_model = gemma4_bind_model,
     .forward = gemma4_forward,
     .gguf = "gemma4",
     .gguf_read = gemma4_gguf_read,
     .gguf_names = {gemma4_gguf_names, gemma_gguf_names}},
    {.arch = NULL},
};
