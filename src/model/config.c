/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of a Hugging Face folder -> struct model_config.
 *
 *     architectures    a class of family.c's list; in models with pictures or sound the fields
 *                      of the text part are in text_config
 *     rope             old spelling: rope_theta next to rope_scaling, null or { type, ... }
 *                      new spelling: rope_parameters { rope_theta, rope_type, ... }, or one of
 *                      these for each kind of layer
 *     head_dim         if it is missing: hidden_size / num_attention_heads, or the class's own
 *     layer_types      "full_attention", "sliding_attention" ... of each layer
 *
 * text_config omits what is its class's default (Gemma 3's has neither heads nor vocabulary). Only
 * there sizes have defaults.
 *
 * This file reads what all families have in common; a family's read() does the rest, with the
 * helpers of config_fields.c and config_rope.c. Defaults are those of the architecture's class in
 * transformers. Every field read is checked for type and range and named in the error. A field that
 * asks for arithmetic that the forward pass does not do (another activation, biases in a family
 * that has none, a rope type) is refused: the model would run and answer wrongly. quantization.c
 * reads how modules are quantized.
 */
#include <stdio.h>

#include "model/family.h"

/* ---- architecture ---------------------------------------------------------------------------- */

static kvasir_status read_architecture(const struct json_scope *s, const struct family **family) {
    const json_t *list = json_object_get(s->object, "architectures");
    const json_t *first = json_array_get(list, 0);
    if (json_array_size(list) != 1 || !json_is_string(first))
        return fail(s->err, KVASIR_ERR_FORMAT,
                    "field architectures must be an array of one string, found %s",
                    json_kind(list));
    char known[1024];
    *family = family_of_class(json_string_value(first));
    return *family ? KVASIR_OK
                   : fail(s->err, KVASIR_ERR_UNSUPPORTED,
                          "field architectures: %.60s is not supported, only %s",
                          json_string_value(first), family_class_list(known, sizeof known));
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static bool is_wrapped(const struct json_scope *s) {
    return s->prefix[0] != 0;
}

/* Limits of kernels, tiles and tables. load.c checks them for all files; here errors name
 * fields. */
static kvasir_status check_head_dim(const struct json_scope *s, uint32_t head_dim) {
    return head_dim <= HEAD_DIM_MAX && head_dim % HEAD_DIM_UNIT == 0
               ? KVASIR_OK
               : fail(s->err, KVASIR_ERR_UNSUPPORTED,
                      "field %shead_dim: heads of %u dims are not supported, only multiples of %d "
                      "up to %d",
                      s->prefix, head_dim, HEAD_DIM_UNIT, HEAD_DIM_MAX);
}

static kvasir_status check_layers(const struct json_scope *s, const struct model_config *c) {
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_config *l = &c->layers[i];
        if (l->kind != LAYER_ATTENTION)
            continue;
        TRY(check_head_dim(s, l->head_dim));
        if (c->heads % l->kv_heads != 0 || c->heads / l->kv_heads > GQA_MAX)
            return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                        "field %snum_key_value_heads: %u heads for %u KV heads are not supported: "
                        "must be a multiple, at most %d",
                        s->prefix, c->heads, l->kv_heads, GQA_MAX);
    }
    return KVASIR_OK;
}

static kvasir_status read_heads(const struct json_scope *s, const struct family *f,
                                struct model_config *c) {
    TRY(json_get_u32(s, "num_attention_heads", c->heads == 0, 1, HEADS_MAX, &c->heads));
    /* Other classes' default is the number of one of their sizes. */
    c->kv_heads = c->kv_heads ? c->kv_heads : f->heads_are_kv ? c->heads : 0;
    TRY(json_get_u32(s, "num_key_value_heads", c->kv_heads == 0, 1, HEADS_MAX, &c->kv_heads));
    c->head_dim = f->head_dim;
    TRY(json_get_u32(s, "head_dim", false, 1, DIM_MAX, &c->head_dim));
    if (!c->head_dim) {
        if (c->dim % c->heads != 0)
            return fail(s->err, KVASIR_ERR_FORMAT,
                        "field num_attention_heads: %u heads do not divide hidden_size %u",
                        c->heads, c->dim);
        c->head_dim = c->dim / c->heads;
    }
    return check_head_dim(s, c->head_dim);
}

static kvasir_status read_sizes(const struct json_scope *s, const struct family *f,
                                struct model_config *c) {
    const struct class_sizes *d = &f->wrapped;
    double eps = 0;
    if (is_wrapped(s)) {
        c->n_layers = d->layers;
        c->dim = d->dim;
        c->ffn_dim = d->ffn_dim;
        c->heads = d->heads;
        c->kv_heads = d->kv_heads;
        c->vocab = d->vocab;
        c->ctx_train = d->ctx;
        c->window = d->window;
        eps = d->eps;
    }
    TRY(json_get_u32(s, "num_hidden_layers", c->n_layers == 0, 1, LAYERS_MAX, &c->n_layers));
    TRY(json_get_u32(s, "hidden_size", c->dim == 0, 1, DIM_MAX, &c->dim));
    TRY(json_get_u32(s, "vocab_size", c->vocab == 0, 1, VOCAB_MAX, &c->vocab));
    TRY(json_get_u32(s, "max_position_embeddings", false, 1, CTX_MAX, &c->ctx_train));
    TRY(json_get_bool(s, "tie_word_embeddings", &c->tied_embedding));
    const char *ffn = "intermediate_size", *eps_key = "rms_norm_eps";
    if (strcmp(f->arch, "lfm2") == 0) {
        eps_key = "norm_eps";
        const json_t *block = json_object_get(s->object, "block_ff_dim");
        if (block && !json_is_null(block)) /* the old spelling has priority */
            ffn = "block_ff_dim";
    }
    /* qwen3_5_moe has no dense feed-forward. */
    const bool dense = strcmp(f->arch, "qwen3_5_moe") != 0;
    TRY(json_get_u32(s, ffn, dense && c->ffn_dim == 0, 1, FFN_MAX, &c->ffn_dim));
    TRY(config_number(s, eps_key, eps <= 0, &eps));
    if (eps > 1)
        return fail(s->err, KVASIR_ERR_FORMAT, "field %s%s is %g, must be at most 1", s->prefix,
                    eps_key, eps);
    c->norm_eps = (float)eps;
    return read_heads(s, f, c);
}

/* ---- the document ---------------------------------------------------------------------------- */

static kvasir_status read_document(const struct json_scope *s, struct model_config *c) {
    const struct family *family;
    if (!json_is_object(s->object))
        return fail(s->err, KVASIR_ERR_FORMAT, "the document must be an object, found %s",
                    json_kind(s->object));
    TRY(read_architecture(s, &family));
    snprintf(c->arch, sizeof c->arch, "%s", family->arch);
    struct json_scope text = *s;
    const json_t *wrapped = json_object_get(s->object, "text_config");
    c->tied_embedding = family->tied;
    if (wrapped && !json_is_null(wrapped) && !json_is_object(wrapped))
        return fail(s->err, KVASIR_ERR_FORMAT, "field text_config must be an object, found %s",
                    json_kind(wrapped));
    if (json_is_object(wrapped)) {
        text = (struct json_scope){wrapped, "text_config.", s->err};
        TRY(json_get_bool(s, "tie_word_embeddings", &c->tied_embedding));
    }
    c->gate = GATE_SILU;
    c->embed_scale = c->residual_scale = c->logit_scale = 1;
    TRY(read_sizes(&text, family, c));
    config_layers_init(c);
    TRY(config_one_rope(&text, c, family->theta > 0 ? family->theta : 1e4));
    TRY(family->read(&text, c));
    TRY(config_check_ropes(&text, c));
    return check_layers(&text, c);
}

kvasir_status config_parse(const char *text, size_t len, struct model_config *out,
                           struct quantization *q, kvasir_error *err) {
    json_t *document;
    *q = (struct quantization){0};
    TRY(json_parse(text, len, 0, &document, err));
    struct model_config config = {0};
    struct json_scope s = {document, "", err};
    kvasir_status status = read_document(&s, &config);
    if (status == KVASIR_OK)
        status = quantization_read(&s, q);
    json_decref(document);
    if (status == KVASIR_OK)
        *out = config;
    return status;
}
