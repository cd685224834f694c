/* SPDX-License-Identifier: Apache-2.0 */
/* LFM2: most layers are short convolutions, some attention.
 *
 *     convolution layer          b, c, u = Win h                     h = rms_norm(x)
 *                                x += Wout (c * conv(b * u))         conv: over the last l inputs
 *     attention layer            as llama's, with norms on the heads of q and k
 *     both                       x += W2 (silu(W1 h) * W3 h)         h = rms_norm(x)
 */
#include "model/family.h"

static void conv_block(struct model_run *r, const struct batch *batch, uint32_t i, const float *h,
                       float *out) {
    const struct model_config *c = &r->model->config;
    const struct layer_weights *l = &r->model->layers[i];
    const uint32_t rows = batch->rows, dim = c->dim;
    const struct block_strides joint = {3 * dim, 0}, own = {dim, 0};
    block_matmul(r, h, rows, l->mixed_in, 0, r->wide); /* b | c | u */
    op_rearrange(r->backend, rows, 1, dim, r->wide, joint, r->mixed, own);
    op_rearrange(r->backend, rows, 1, dim, r->wide + 2 * (size_t)dim, joint, out, own);
    op_gate_mul(r->backend, GATE_NONE, out, r->mixed, (size_t)rows * dim, r->mixed);
    op_short_conv(r->backend, batch, model_state_layout(r->model, i).window, r->mixed,
                  on_device(r, l->conv), c->conv_width, dim, false, r->mixed);
    op_rearrange(r->backend, rows, 1, dim, r->wide + dim, joint, out, own);
    op_gate_mul(r->backend, GATE_NONE, out, r->mixed, (size_t)rows * dim, r->mixed);
    block_matmul(r, r->mixed, rows, l->out, 0, out);
}

static void lfm2_forward(struct model_run *r, const struct batch *batch) {
    const struct model_config *c = &r->model->config;
    const size_t n = (size_t)batch->rows * c->dim;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_weights *l = &r->model->layers[i];
        block_norm(r, r->x, l->attn_norm, batch->rows, c->dim, r->h);
        if (c->layers[i].kind == LAYER_CONV)
            conv_block(r, batch, i, r->h, r->t);
        else
            block_attention(r, batch, i, r->h, r->t);
        op_add(r->backend, r->x, r->t, 1, n);
        block_norm(r, r->x, l->ffn_norm, batch->rows, c->dim, r->h);
        block_mlp(r, &l->mlp, r->h, batch->rows, r->t);
        op_add(r->backend, r->x, r->t, 1, n);
    }
}

/* intermediate_size is the width of a plain feed-forward. */
static kvasir_status read_ffn_dim(const struct json_scope *s, struct model_config *c) {
    bool adjust = true;
    double factor = 1;
    uint32_t multiple = 256;
    TRY(json_get_bool(s, "block_auto_adjust_ff_dim", &adjust));
    TRY(json_get_double(s, "block_ffn_dim_multiplier", false, &factor));
    TRY(json_get_u32(s, "block_multiple_of", false, 1, FFN_MAX, &multiple));
    if (!adjust)
        return KVASIR_OK;
    const double dim = factor * (2 * c->ffn_dim / 3);
    if (!(dim >= 1 && dim <= FFN_MAX - multiple))
        return fail(s->err, KVASIR_ERR_FORMAT, "field %sblock_ffn_dim_multiplier: %g gives %g",
                    s->prefix, factor, dim);
    c->ffn_dim = ((uint32_t)dim + multiple - 1) / multiple * multiple;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].ffn_dim = c->ffn_dim;
    return KVASIR_OK;
}

/* The old spelling: full_attn_idxs [2, 5, ...]. */
static kvasir_status read_attention_layers(const struct json_scope *s, struct model_config *c) {
    const json_t *list = json_object_get(s->object, "full_attn_idxs"), *number;
    size_t at;
    if (!json_is_array(list))
        return fail(s->err, KVASIR_ERR_FORMAT,
                    "field %slayer_types is missing, and full_attn_idxs is not an array",
                    s->prefix);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].kind = LAYER_CONV;
    json_array_foreach((json_t *)list, at, number) {
        json_int_t layer = json_is_integer(number) ? json_integer_value(number) : -1;
        if (layer < 0 || layer >= (json_int_t)c->n_layers)
            return fail(s->err, KVASIR_ERR_FORMAT,
                        "field %sfull_attn_idxs[%zu] is not the number of a layer", s->prefix, at);
        c->layers[layer].kind = LAYER_ATTENTION;
    }
    return KVASIR_OK;
}

static kvasir_status lfm2_read(const struct json_scope *s, struct model_config *c) {
    const char *type;
    TRY(config_refuse(s, "conv_bias"));
    TRY(json_get_u32(s, "conv_L_cache", true, 2, 64, &c->conv_width));
    TRY(json_get_bool(s, "tie_embedding", &c->tied_embedding)); /* before the usual one */
    TRY(read_ffn_dim(s, c));
    for (uint32_t i = 0; i < c->n_layers; i++) {
        TRY(config_layer_type(s, c, i, &type));
        if (!type)
            return read_attention_layers(s, c);
        if (strcmp(type, "conv") == 0)
            c->layers[i].kind = LAYER_CONV;
        else if (strcmp(type, "full_attention") != 0)
            return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                        "field %slayer_types[%u]: %.60s is not supported", s->prefix, i, type);
    }
    return KVASIR_OK;
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

static const struct gguf_name lfm2_gguf_names[] = {
    {"token_embd_norm", "model.embedding_norm"}, /* the last norm, in spite of both names */
    {"attn_norm", "operator_norm"},
    {"attn_output", "self_attn.out_proj"},
    {"attn_q_norm", "self_attn.q_layernorm"},
    {"attn_k_norm", "self_attn.k_layernorm"},
    {"ffn_norm", "ffn_norm"},
    {"ffn_gate", "feed_forward.w1"},
    {"ffn_up", "feed_forward.w3"},
    {"ffn_down", "feed_forward.w2"},
    {"shortconv.in_proj", "conv.in_proj"},
    {"shortconv.conv", "conv.conv"},
    {"shortconv.out_proj", "conv.out_proj"},
    {NULL, NULL},
};

/* A layer without KV heads is a convolution. */
static kvasir_status lfm2_gguf_read(struct gguf_keys *k, struct model_config *c) {
    TRY(gguf_key_u32(k, "shortconv.l_cache", true, 2, 64, &c->conv_width));
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (!c->layers[i].kv_heads)
            c->layers[i].kind = LAYER_CONV;
    return KVASIR_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static kvasir_status bind_attention(struct binder *b, uint32_t i, struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    const uint32_t q_dim = c->heads * c->head_dim, kv_dim = c->layers[i].kv_heads * c->head_dim;
    TRY(layer_matrix(b, i, "self_attn.q_proj", q_dim, c->dim, &l->q));
    TRY(layer_matrix(b, i, "self_attn.k_proj", kv_dim, c->dim, &l->k));
    TRY(layer_matrix(b, i, "self_attn.v_proj", kv_dim, c->dim, &l->v));
    TRY(layer_matrix(b, i, "self_attn.out_proj", c->dim, q_dim, &l->o));
    TRY(layer_norm(b, i, "self_attn.q_layernorm", c->head_dim, &l->q_norm));
    return layer_norm(b, i, "self_attn.k_layernorm", c->head_dim, &l->k_norm);
}

static kvasir_status lfm2_bind(struct binder *b, uint32_t i, struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    TRY(layer_norm(b, i, "operator_norm", c->dim, &l->attn_norm));
    if (c->layers[i].kind == LAYER_CONV) {
        TRY(layer_matrix(b, i, "conv.in_proj", 3 * c->dim, c->dim, &l->mixed_in));
        TRY(layer_conv(b, i, "conv.conv", c->dim, c->conv_width, &l->conv));
        TRY(layer_matrix(b, i, "conv.out_proj", c->dim, c->dim, &l->out));
    } else {
        TRY(bind_attention(b, i, l));
    }
    TRY(layer_norm(b, i, "ffn_norm", c->dim, &l->ffn_norm));
    const uint32_t ffn_dim = c->layers[i].ffn_dim;
    TRY(layer_matrix(b, i, "feed_forward.w1", ffn_dim, c->dim, &l->mlp.gate));
    TRY(layer_matrix(b, i, "feed_forward.w3", ffn_dim, c->dim, &l->mlp.up));
    return layer_matrix(b, i, "feed_forward.w2", c->dim, ffn_dim, &l->mlp.down);
}

const struct family lfm2_family[] = {
    {.arch = "lfm2",
     .classes = {"Lfm2ForCausalLM"},
     .theta = 1e6,
     .tied = true,
     .read = lfm2_read,
     .bind = lfm2_bind,
     .forward = lfm2_forward,
     .final_norm = "model.embedding_norm",
     .gguf = "lfm2",
     .gguf_read = lfm2_gguf_read,
     .gguf_names = {lfm2_gguf_names}},
    {.arch = NULL},
};
