/* SPDX-License-Identifier: Apache-2.0 */
/* config_fields.c: fields of config.json that some families have, for their read(), and the checked
 * numbers for config.c and config_rope.c. */
#include "model/family.h"

kvasir_status config_refuse(const struct json_scope *s, const char *key) {
    bool value = false;
    TRY(json_get_bool(s, key, &value));
    return value ? fail(s->err, KVASIR_ERR_UNSUPPORTED, "field %s%s: true is not supported",
                        s->prefix, key)
                 : KVASIR_OK;
}

kvasir_status config_attention_bias(const struct json_scope *s, struct model_config *c) {
    bool value = false;
    TRY(json_get_bool(s, "attention_bias", &value));
    c->attention_bias = value ? BIAS_ALL : BIAS_NONE;
    return KVASIR_OK;
}

kvasir_status config_gate(const struct json_scope *s, struct model_config *c) {
    static const struct {
        const char *name;
        enum gate_kind gate;
    } known[] = {{"silu", GATE_SILU}, {"gelu_pytorch_tanh", GATE_GELU_TANH}};
    const char *act = NULL, *key = "hidden_activation";
    TRY(json_get_string(s, key, false, &act));
    if (!act) {
        key = "hidden_act";
        TRY(json_get_string(s, key, false, &act));
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!act || (strcmp(act, known[i].name) == 0 && known[i].gate == c->gate))
            return KVASIR_OK;
    return fail(s->err, KVASIR_ERR_UNSUPPORTED, "field %s%s: %.60s is not supported, only %s",
                s->prefix, key, act, known[c->gate == GATE_GELU_TANH].name);
}

/* A number safe for arithmetic: neither it nor its inverse or square overflows float32. */
kvasir_status config_number(const struct json_scope *s, const char *key, bool required,
                            double *out) {
    double value = 0;
    TRY(json_get_double(s, key, required, &value));
    if (value > 0 && !(value >= 1e-15 && value <= 1e15))
        return fail(s->err, KVASIR_ERR_FORMAT, "field %s%s is %g, must be from 1e-15 to 1e15",
                    s->prefix, key, value);
    if (value > 0)
        *out = value;
    return KVASIR_OK;
}

kvasir_status config_float(const struct json_scope *s, const char *key, float *out) {
    double value = (double)*out;
    TRY(config_number(s, key, false, &value));
    *out = (float)value;
    return KVASIR_OK;
}

/* ---- layers ---------------------------------------------------------------------------------- */

void config_layers_init(struct model_config *c) {
    ASSERT(c->n_layers <= LAYERS_MAX);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i] = (struct layer_config){.kind = LAYER_ATTENTION,
                                             .experts = c->moe.n != 0,
                                             .kv_heads = c->kv_heads,
                                             .head_dim = c->head_dim,
                                             .kv_from = i,
                                             .ffn_dim = c->ffn_dim};
}

kvasir_status config_layer_type(const struct json_scope *s, const struct model_config *c,
                                uint32_t layer, const char **type) {
    const json_t *types = json_object_get(s->object, "layer_types");
    *type = NULL;
    if (!types || json_is_null(types))
        return KVASIR_OK;
    if (!json_is_array(types) || json_array_size(types) != c->n_layers)
        return fail(s->err, KVASIR_ERR_FORMAT,
                    "field %slayer_types must be an array of %u strings, one for each layer",
                    s->prefix, c->n_layers);
    *type = json_string_value(json_array_get(types, layer));
    return *type ? KVASIR_OK
                 : fail(s->err, KVASIR_ERR_FORMAT, "field %slayer_types[%u] must be a string",
                        s->prefix, layer);
}

kvasir_status config_windows(const struct json_scope *s, struct model_config *c, uint32_t pattern) {
    uint32_t window = c->window;
    c->window = 0;
    TRY(json_get_u32(s, "sliding_window", false, 1, CTX_MAX, &window));
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const char *type;
        TRY(config_layer_type(s, c, i, &type));
        bool slides =
            type ? strcmp(type, "sliding_attention") == 0 : pattern != 0 && (i + 1) % pattern != 0;
        if (type && !slides && strcmp(type, "full_attention") != 0)
            return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                        "field %slayer_types[%u]: %.60s is not supported", s->prefix, i, type);
        if (slides && !window)
            return fail(
                s->err, KVASIR_ERR_FORMAT,
                "field %slayer_types: layer %u has a sliding window, but sliding_window is missing",
                s->prefix, i);
        c->layers[i].window = slides ? window : 0;
        if (slides)
            c->window = window;
    }
    return KVASIR_OK;
}

kvasir_status config_experts_fit(const struct json_scope *s, struct model_config *c, uint32_t dim) {
    const uint32_t widest = 2 * dim > c->dim ? 2 * dim : c->dim;
    c->moe.dim = dim;
    return (uint64_t)c->moe.n * widest <= UINT32_MAX
               ? KVASIR_OK
               : fail(s->err, KVASIR_ERR_UNSUPPORTED,
                      "field %smoe_intermediate_size: %u experts of %u are too many", s->prefix,
                      c->moe.n, dim);
}

/* num_experts, or num_local_experts (transformers 5), or neither. */
kvasir_status config_experts(const struct json_scope *s, struct model_config *c) {
    TRY(json_get_u32(s, "num_local_experts", false, 1, EXPERTS_MAX, &c->moe.n));
    TRY(json_get_u32(s, "num_experts", c->moe.n == 0, 1, EXPERTS_MAX, &c->moe.n));
    uint32_t every = 1, dim = c->moe.dim;
    const bool chosen = c->moe.top_k >= 1 && c->moe.top_k <= c->moe.n; /* by default */
    TRY(json_get_u32(s, "num_experts_per_tok", !chosen, 1, c->moe.n, &c->moe.top_k));
    TRY(json_get_u32(s, "moe_intermediate_size", dim == 0, 1, FFN_MAX, &dim));
    TRY(config_experts_fit(s, c, dim));
    TRY(json_get_bool(s, "norm_topk_prob", &c->moe.normalize));
    TRY(json_get_u32(s, "decoder_sparse_step", false, 1, LAYERS_MAX, &every));
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].experts = (i + 1) % every == 0;
    const json_t *dense = json_object_get(s->object, "mlp_only_layers"), *number;
    size_t at;
    if (dense && !json_is_null(dense) && !json_is_array(dense))
        return fail(s->err, KVASIR_ERR_FORMAT, "field %smlp_only_layers must be an array, found %s",
                    s->prefix, json_kind(dense));
    json_array_foreach((json_t *)dense, at, number) {
        json_int_t layer = json_is_integer(number) ? json_integer_value(number) : -1;
        if (layer < 0 || layer >= (json_int_t)c->n_layers)
            return fail(s->err, KVASIR_ERR_FORMAT,
                        "field %smlp_only_layers[%zu] is not the number of a layer", s->prefix, at);
        c->layers[layer].experts = false;
    }
    return KVASIR_OK;
}
