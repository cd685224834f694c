/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen3-Next and Qwen3.5: three layers of four are gated delta nets, whose state is a matrix per
 * head instead of pages; the fourth is attention with a gated output.
 *
 *     delta net    q | k | v = silu(conv(Wqkv h)),  z, beta, a = Wz h, Wb h, Wa h
 *                  x += Wout (silu(z) * norm(delta_rule(q, k, v, beta, a)))
 *     attention    q, g = Wq h,  k, v = Wk h, Wv h;  q, k = rope(norm(q)), rope(norm(k))
 *                  x += Wo (sigmoid(g) * attention(q, pages))
 *     both         x += mlp(h), or experts and one that all rows take
 *
 * h = rms_norm(x); rope rotates the first quarter of a head. Gains are stored less 1, except the
 * one after the delta rule, and unchanged in mlx's folders. qwen3_next joins what a key head and
 * its value heads need in one matrix, key head by key head (in_proj_qkvz, in_proj_ba); qwen3_5 has
 * separate matrices. GGUF joins only beta and a of qwen3_next. Its value heads of qwen3_5 have
 * another order, in which value head h has key head h % key_heads (delta.keys_cycle). They stay in
 * that order: Wout's columns have it too, and a quantized matrix could not be reordered.
 */
#include "model/family.h"

struct delta_dims {
    uint32_t keys, values, group, channels; /* group: values of a key head's value heads */
};
static struct delta_dims delta_dims(const struct model_config *c) {
    const uint32_t keys = c->delta.key_heads * c->delta.key_dim,
                   values = c->delta.value_heads * c->delta.value_dim;
    return (struct delta_dims){keys, values, values / c->delta.key_heads, 2 * keys + values};
}

/* Wqkv h, Wz h of a joint matrix. */
static void project_joint(struct model_run *r, const struct layer_weights *l, const float *h,
                          uint32_t rows) {
    const struct model_config *c = &r->model->config;
    const struct delta_dims d = delta_dims(c);
    const uint32_t heads = c->delta.key_heads, key = c->delta.key_dim;
    const struct block_strides joint = {2 * d.keys + 2 * d.values, 2 * key + 2 * d.group},
                               keys = {d.channels, key}, values = {d.channels, d.group},
                               z = {d.values, d.group};
    struct backend *b = r->backend;
    block_matmul(r, h, rows, l->mixed_in, 0, r->wide); /* [head][q | k | v | z] */
    op_rearrange(b, rows, heads, key, r->wide, joint, r->mixed, keys);
    op_rearrange(b, rows, heads, key, r->wide + key, joint, r->mixed + d.keys, keys);
    op_rearrange(b, rows, heads, d.group, r->wide + 2 * key, joint, r->mixed + 2 * d.keys, values);
    op_rearrange(b, rows, heads, d.group, r->wide + 2 * key + d.group, joint, r->z, z);
}

/* Wb h, Wa h of a joint matrix. */
static void project_joint_gates(struct model_run *r, const struct layer_weights *l, const float *h,
                                uint32_t rows) {
    const struct model_config *c = &r->model->config;
    const uint32_t heads = c->delta.key_heads, ratio = c->delta.value_heads / heads;
    const struct block_strides pair = {2 * c->delta.value_heads, 2 * ratio},
                               one = {c->delta.value_heads, ratio};
    block_matmul(r, h, rows, l->beta, 0, r->wide); /* [head][beta | a] */
    op_rearrange(r->backend, rows, heads, ratio, r->wide, pair, r->beta, one);
    op_rearrange(r->backend, rows, heads, ratio, r->wide + ratio, pair, r->alpha, one);
}

/* All four, from the matrices that exist. */
static void project(struct model_run *r, const struct layer_weights *l, const float *h,
                    uint32_t rows) {
    const uint32_t apart = l->z_in ? l->alpha ? 4 : 2 : 0;
    if (apart)
        op_matmul(r->backend, h, rows,
                  (const struct backend_weight *[]){
                      matrix_on_device(r, l->mixed_in), matrix_on_device(r, l->z_in),
                      matrix_on_device(r, l->beta), matrix_on_device(r, l->alpha)},
                  (const float *[]){NULL, NULL, NULL, NULL},
                  (float *[]){r->mixed, r->z, r->beta, r->alpha}, apart);
    else
        project_joint(r, l, h, rows);
    if (apart < 4)
        project_joint_gates(r, l, h, rows);
}

static void delta_block(struct model_run *r, const struct batch *batch, uint32_t i, const float *h,
                        float *out) {
    const struct model_config *c = &r->model->config;
    const struct layer_weights *l = &r->model->layers[i];
    const struct delta_dims d = delta_dims(c);
    const uint32_t rows = batch->rows;
    const struct state_layout state = model_state_layout(r->model, i);
    const struct delta_layer net = {.key_heads = c->delta.key_heads,
                                    .value_heads = c->delta.value_heads,
                                    .key_dim = c->delta.key_dim,
                                    .value_dim = c->delta.value_dim,
                                    .keys_cycle = c->delta.keys_cycle,
                                    .rate = on_device(r, l->rate),
                                    .bias = on_device(r, l->bias)};
    project(r, l, h, rows);
    op_short_conv(r->backend, batch, state.window, r->mixed, on_device(r, l->conv), c->conv_width,
                  d.channels, true, r->mixed);
    op_delta_rule(r->backend, batch, state.matrix, r->mixed, r->beta, r->alpha, &net, r->attended);
    block_norm(r, r->attended, l->value_norm, rows * c->delta.value_heads, c->delta.value_dim,
               r->attended);
    op_gate_mul(r->backend, GATE_SILU, r->z, r->attended, (size_t)rows * d.values, r->attended);
    block_matmul(r, r->attended, rows, l->out, 0, out);
}

static void attention_block(struct model_run *r, const struct batch *batch, uint32_t i,
                            const float *h, float *out) {
    const struct model_config *c = &r->model->config;
    const struct layer_weights *l = &r->model->layers[i];
    const uint32_t rows = batch->rows, dim = c->head_dim, q_dim = c->heads * dim;
    const struct block_strides joint = {2 * q_dim, 2 * dim}, own = {q_dim, dim};
    op_matmul(r->backend, h, rows,
              (const struct backend_weight *[]){
                  matrix_on_device(r, l->q), matrix_on_device(r, l->k), matrix_on_device(r, l->v)},
              (const float *[]){NULL, NULL, NULL}, (float *[]){r->wide, r->k, r->v}, 3);
    op_rearrange(r->backend, rows, c->heads, dim, r->wide, joint, r->q, own); /* [head][q | g] */
    op_rearrange(r->backend, rows, c->heads, dim, r->wide + dim, joint, r->z, own);
    block_norm(r, r->q, l->q_norm, rows * c->heads, dim, r->q);
    block_norm(r, r->k, l->k_norm, rows * c->kv_heads, dim, r->k);
    block_rope(r, batch, i, r->q, c->heads);
    block_rope(r, batch, i, r->k, c->kv_heads);
    block_attend(r, batch, i);
    op_gate_mul(r->backend, GATE_SIGMOID, r->z, r->attended, (size_t)rows * q_dim, r->attended);
    block_matmul(r, r->attended, rows, l->o, 0, out);
}

static void qwen_hybrid_forward(struct model_run *r, const struct batch *batch) {
    const struct model_config *c = &r->model->config;
    const size_t n = (size_t)batch->rows * c->dim;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_weights *l = &r->model->layers[i];
        block_norm(r, r->x, l->attn_norm, batch->rows, c->dim, r->h);
        if (c->layers[i].kind == LAYER_DELTA)
            delta_block(r, batch, i, r->h, r->t);
        else
            attention_block(r, batch, i, r->h, r->t);
        op_add(r->backend, r->x, r->t, 1, n);
        block_norm(r, r->x, l->ffn_norm, batch->rows, c->dim, r->h);
        if (c->layers[i].experts)
            block_experts(r, l, r->h, r->h, batch->rows, r->t);
        else
            block_mlp(r, &l->mlp, r->h, batch->rows, r->t);
        op_add(r->backend, r->x, r->t, 1, n);
    }
}

/* ---- config.json ----------------------------------------------------------------------------- */

static kvasir_status read_layer_types(const struct json_scope *s, struct model_config *c) {
    uint32_t every = 4;
    TRY(json_get_u32(s, "full_attention_interval", false, 1, LAYERS_MAX, &every));
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const char *type;
        TRY(config_layer_type(s, c, i, &type));
        const bool delta = type ? strcmp(type, "linear_attention") == 0 : (i + 1) % every != 0;
        if (type && !delta && strcmp(type, "full_attention") != 0)
            return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                        "field %slayer_types[%u]: %.60s is not supported", s->prefix, i, type);
        c->layers[i].kind = delta ? LAYER_DELTA : LAYER_ATTENTION;
    }
    return KVASIR_OK;
}

/* In qwen3_5_moe every layer has experts, whose weights are always normalized. */
static kvasir_status read_experts(const struct json_scope *s, struct model_config *c) {
    const bool all = strcmp(c->arch, "qwen3_5_moe") == 0;
    c->moe.shared_dim = 512; /* the classes' default */
    c->moe.normalize = true;
    if (s->prefix[0]) { /* text_config omits defaults */
        c->moe.n = 256;
        c->moe.top_k = 8;
        c->moe.dim = 512;
    }
    TRY(json_get_u32(s, "shared_expert_intermediate_size", false, 0, FFN_MAX, &c->moe.shared_dim));
    TRY(config_experts(s, c));
    c->moe.normalize = c->moe.normalize || all;
    c->ffn_dim = c->ffn_dim ? c->ffn_dim : c->moe.dim;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].ffn_dim = c->ffn_dim;
        c->layers[i].experts = c->layers[i].experts || all;
    }
    return KVASIR_OK;
}

static kvasir_status qwen_hybrid_read(const struct json_scope *s, struct model_config *c) {
    c->unit_offset = true;
    TRY(config_gate(s, c));
    TRY(config_refuse(s, "attention_bias"));
    const bool needed = s->prefix[0] == 0; /* text_config omits defaults */
    if (!needed) {
        c->delta.key_heads = 16;
        c->delta.value_heads = 32;
        c->delta.key_dim = c->delta.value_dim = 128;
        c->conv_width = 4;
    }
    TRY(json_get_u32(s, "linear_num_key_heads", needed, 1, HEADS_MAX, &c->delta.key_heads));
    TRY(json_get_u32(s, "linear_num_value_heads", needed, 1, HEADS_MAX, &c->delta.value_heads));
    TRY(json_get_u32(s, "linear_key_head_dim", needed, 1, HEAD_DIM_MAX, &c->delta.key_dim));
    TRY(json_get_u32(s, "linear_value_head_dim", needed, 1, HEAD_DIM_MAX, &c->delta.value_dim));
    TRY(json_get_u32(s, "linear_conv_kernel_dim", needed, 2, 64, &c->conv_width));
    if (c->delta.value_heads % c->delta.key_heads != 0)
        return fail(s->err, KVASIR_ERR_FORMAT,
                    "field %slinear_num_value_heads: %u is not a multiple of %u key heads",
                    s->prefix, c->delta.value_heads, c->delta.key_heads);
    TRY(read_layer_types(s, c));
    if (c->ropes[0].dims == c->head_dim && !json_object_get(s->object, "partial_rotary_factor") &&
        !json_object_get(json_object_get(s->object, "rope_parameters"), "partial_rotary_factor") &&
        !json_object_get(json_object_get(s->object, "rope_scaling"), "partial_rotary_factor"))
        c->ropes[0].dims = c->head_dim / 4; /* the classes' default */
    if (c->ropes[0].dims % 2 != 0)
        return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                    "field %shead_dim: a quarter of %u dims is not a whole number of pairs",
                    s->prefix, c->head_dim);
    return strcmp(c->arch, "qwen3_5") == 0 ? KVASIR_OK : read_experts(s, c);
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

static const struct gguf_name qwen_hybrid_gguf_names[] = {
    {"post_attention_norm", "post_attention_layernorm"},
    {"attn_qkv", "linear_attn.in_proj_qkv"},
    {"attn_gate", "linear_attn.in_proj_z"},
    {"ssm_in", "linear_attn.in_proj_qkvz"}, /* of the first files of qwen3next */
    {"ssm_ba", "linear_attn.in_proj_ba"},
    {"ssm_beta", "linear_attn.in_proj_b"},
    {"ssm_alpha", "linear_attn.in_proj_a"},
    {"ssm_conv1d", "linear_attn.conv1d"},
    {"ssm_a", "linear_attn.A"}, /* -exp(A_log): not in folders */
    {"ssm_dt.bias", "linear_attn.dt_bias"},
    {"ssm_norm", "linear_attn.norm"},
    {"ssm_out", "linear_attn.out_proj"},
    {NULL, NULL},
};

static kvasir_status read_gguf_delta(struct gguf_keys *k, struct model_config *c) {
    uint32_t inner = 0;
    TRY(gguf_key_u32(k, "ssm.conv_kernel", true, 2, 64, &c->conv_width));
    TRY(gguf_key_u32(k, "ssm.state_size", true, 1, HEAD_DIM_MAX, &c->delta.key_dim));
    TRY(gguf_key_u32(k, "ssm.group_count", true, 1, HEADS_MAX, &c->delta.key_heads));
    TRY(gguf_key_u32(k, "ssm.time_step_rank", true, 1, HEADS_MAX, &c->delta.value_heads));
    if (c->delta.value_heads % c->delta.key_heads != 0)
        return fail(k->err, KVASIR_ERR_FORMAT, "metadata %s: %u is not a multiple of %u key heads",
                    k->key, c->delta.value_heads, c->delta.key_heads);
    TRY(gguf_key_u32(k, "ssm.inner_size", true, 1, DIM_MAX, &inner));
    c->delta.value_dim = c->delta.key_dim;
    if (inner != c->delta.value_heads * c->delta.value_dim)
        return fail(k->err, KVASIR_ERR_UNSUPPORTED, "metadata %s is %u, must be %u x %u", k->key,
                    inner, c->delta.value_heads, c->delta.value_dim);
    return KVASIR_OK;
}

static kvasir_status qwen_hybrid_gguf_read(struct gguf_keys *k, struct model_config *c) {
    uint32_t every = 4, delta[LAYERS_MAX];
    TRY(read_gguf_delta(k, c));
    c->delta.keys_cycle = strcmp(c->arch, "qwen3_next") != 0;
    TRY(gguf_key_u32(k, "full_attention_interval", false, 1, LAYERS_MAX, &every));
    for (uint32_t i = 0; i < k->blocks; i++)
        delta[i] = (i + 1) % every != 0;
    TRY(gguf_key_layers(k, "attention.recurrent_layers", false, 0, 1, delta));
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].kind = delta[i] ? LAYER_DELTA : LAYER_ATTENTION;
    if (strcmp(c->arch, "qwen3_5") == 0)
        return KVASIR_OK;
    c->moe.shared_dim = c->ffn_dim;
    TRY(gguf_key_u32(k, "expert_shared_feed_forward_length", c->ffn_dim == 0, 1, FFN_MAX,
                     &c->moe.shared_dim));
    return gguf_experts(k, c);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static kvasir_status bind_delta(struct binder *b, uint32_t i, struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    const struct delta_dims d = delta_dims(c);
    const uint32_t heads = c->delta.value_heads;
    float *rate;
    if (layer_has(b, i, "linear_attn.in_proj_qkvz.weight")) {
        TRY(layer_matrix(b, i, "linear_attn.in_proj_qkvz", d.channels + d.values, c->dim,
                         &l->mixed_in));
    } else {
        TRY(layer_matrix(b, i, "linear_attn.in_proj_qkv", d.channels, c->dim, &l->mixed_in));
        TRY(layer_matrix(b, i, "linear_attn.in_proj_z", d.values, c->dim, &l->z_in));
    }
    if (layer_has(b, i, "linear_attn.in_proj_ba.weight")) {
        TRY(layer_matrix(b, i, "linear_attn.in_proj_ba", 2 * heads, c->dim, &l->beta));
    } else {
        TRY(layer_matrix(b, i, "linear_attn.in_proj_b", heads, c->dim, &l->beta));
        TRY(layer_matrix(b, i, "linear_attn.in_proj_a", heads, c->dim, &l->alpha));
    }
    TRY(layer_conv(b, i, "linear_attn.conv1d", d.channels, c->conv_width, &l->conv));
    const bool rates = layer_has(b, i, "linear_attn.A");
    TRY(bind_values(b, layer_name(i, rates ? "linear_attn.A" : "linear_attn.A_log", "").text,
                    (uint64_t[]){heads}, 1, &l->rate, &rate));
    for (uint32_t h = 0; h < heads; h++)
        rate[h] = rates ? -rate[h] : (float)m_exp((double)rate[h]);
    TRY(layer_vector(b, i, "linear_attn.dt_bias", heads, &l->bias));
    TRY(layer_vector(b, i, "linear_attn.norm.weight", c->delta.value_dim, &l->value_norm));
    return layer_matrix(b, i, "linear_attn.out_proj", c->dim, d.values, &l->out);
}

static kvasir_status bind_experts(struct binder *b, uint32_t i, struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    TRY(layer_matrix(b, i, "mlp.gate", c->moe.n, c->dim, &l->router));
    TRY(layer_experts(b, i, "mlp", l));
    if (!c->moe.shared_dim)
        return KVASIR_OK;
    TRY(layer_mlp(b, i, "mlp.shared_expert", c->moe.shared_dim, &l->shared));
    return layer_matrix(b, i, "mlp.shared_expert_gate", 1, c->dim, &l->shared_gate);
}

/* When mlx-lm writes a folder it transposes convolutions and adds the 1 to gains: one tells of the
 * other, as in mlx-lm. */
static bool gains_are_whole(const struct binder *b) {
    const struct model_config *c = &b->model->config;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct checkpoint_tensor *t =
            checkpoint_find(b->checkpoint, layer_name(i, "linear_attn.conv1d", ".weight").text);
        if (t)
            return t->n_dims == 3 && t->dims[2] == 1;
    }
    return false;
}

static kvasir_status qwen_hybrid_bind(struct binder *b, uint32_t i, struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    if (i == 0 && gains_are_whole(b))
        b->model->config.unit_offset = false;
    TRY(layer_norm(b, i, "input_layernorm", c->dim, &l->attn_norm));
    if (c->layers[i].kind == LAYER_DELTA) {
        TRY(bind_delta(b, i, l));
    } else {
        TRY(layer_attention(b, i, 2, l));
        TRY(layer_norm(b, i, "self_attn.q_norm", c->head_dim, &l->q_norm));
        TRY(layer_norm(b, i, "self_attn.k_norm", c->head_dim, &l->k_norm));
    }
    TRY(layer_norm(b, i, "post_attention_layernorm", c->dim, &l->ffn_norm));
    return c->layers[i].experts ? bind_experts(b, i, l)
                                : layer_mlp(b, i, "mlp", c->layers[i].ffn_dim, &l->mlp);
}

const struct family qwen_hybrid_family[] = {
    {.arch = "qwen3_next",
     .classes = {"Qwen3NextForCausalLM"},
     .head_dim = 256,
     .read = qwen_hybrid_read,
     .bind = qwen_hybrid_bind,
     .forward = qwen_hybrid_forward,
     .gguf = "qwen3next",
     .gguf_read = qwen_hybrid_gguf_read,
     .gguf_names = {qwen_hybrid_gguf_names, gguf_expert_names}},
    {.arch = "qwen3_5",
     .classes = {"Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"},
     .head_dim = 256,
     .wrapped = {32, 4096, 12288, 16, 4, 248320, 32768, 0, 1e-6},
     .read = qwen_hybrid_read,
     .bind = qwen_hybrid_bind,
     .forward = qwen_hybrid_forward,
     .gguf = "qwen35",
     .gguf_read = qwen_hybrid_gguf_read,
     .gguf_names = {qwen_hybrid_gguf_names}},
    {.arch = "qwen3_5_moe",
     .classes = {"Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"},
     .head_dim = 256,
     .wrapped = {40, 2048, 0, 16, 2, 248320, 32768, 0, 1e-6},
     .read = qwen_hybrid_read,
     .bind = qwen_hybrid_bind,
     .forward = qwen_hybrid_forward,
     .gguf = "qwen35moe",
     .gguf_read = qwen_hybrid_gguf_read,
     .gguf_names = {qwen_hybrid_gguf_names, gguf_expert_names}},
    {.arch = NULL},
};
