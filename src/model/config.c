/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of a Hugging Face folder -> struct model_config.
 *
 *     architectures    a class of family.c's table; of a model with pictures or sound the fields
 *                      of its text stand in text_config
 *     rope             old spelling: rope_theta beside rope_scaling, null or { type, ... }
 *                      new spelling: rope_parameters { rope_theta, rope_type, ... }, or one of
 *                      these for each kind of layer
 *     head_dim         where it is missing: hidden_size / num_attention_heads, or the class's own
 *     layer_types      "full_attention", "sliding_attention" ... of each layer
 *
 * Read here is what all have in common, and in helpers what some have; a family's read() calls
 * those. Defaults are those of the architecture's class in transformers. Every field read is
 * checked for type and range and named in the error. A field that asks for arithmetic the forward
 * does not do (another activation, biases where the family has none, a rope type) is refused: it
 * would run and answer wrongly. How modules are quantized is quantization.c's.
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

kvasir_status config_float(const struct json_scope *s, const char *key, float *out) {
    double value = 0;
    TRY(json_get_double(s, key, false, &value));
    if (value > 0)
        *out = (float)value;
    return KVASIR_OK;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static kvasir_status read_heads(const struct json_scope *s, const struct family *f,
                                struct model_config *c) {
    TRY(json_get_u32(s, "num_attention_heads", true, 1, HEADS_MAX, &c->heads));
    /* The others' default is a number for one size of theirs. */
    c->kv_heads = c->heads;
    TRY(json_get_u32(s, "num_key_value_heads", !f->heads_are_kv, 1, HEADS_MAX, &c->kv_heads));
    c->head_dim = f->head_dim;
    TRY(json_get_u32(s, "head_dim", false, 1, DIM_MAX, &c->head_dim));
    if (!c->head_dim) {
        if (c->dim % c->heads != 0)
            return fail(s->err, KVASIR_ERR_FORMAT,
                        "field num_attention_heads: %u heads do not divide hidden_size %u",
                        c->heads, c->dim);
        c->head_dim = c->dim / c->heads;
    }
    return KVASIR_OK;
}

static kvasir_status read_sizes(const struct json_scope *s, const struct family *f,
                                struct model_config *c) {
    TRY(json_get_u32(s, "num_hidden_layers", true, 1, LAYERS_MAX, &c->n_layers));
    TRY(json_get_u32(s, "hidden_size", true, 1, DIM_MAX, &c->dim));
    TRY(json_get_u32(s, "intermediate_size", true, 1, FFN_MAX, &c->ffn_dim));
    TRY(json_get_u32(s, "vocab_size", true, 1, VOCAB_MAX, &c->vocab));
    TRY(json_get_u32(s, "max_position_embeddings", false, 1, CTX_MAX, &c->ctx_train));
    TRY(json_get_bool(s, "tie_word_embeddings", &c->tied_embedding));
    double eps = 0;
    TRY(json_get_double(s, "norm_eps", false, &eps)); /* lfm2 */
    TRY(json_get_double(s, "rms_norm_eps", eps <= 0, &eps));
    c->norm_eps = (float)eps;
    return read_heads(s, f, c);
}

void config_layers_init(struct model_config *c) {
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i] = (struct layer_config){.kind = LAYER_ATTENTION,
                                             .experts = c->moe.n != 0,
                                             .kv_heads = c->kv_heads,
                                             .head_dim = c->head_dim,
                                             .kv_from = i,
                                             .ffn_dim = c->ffn_dim};
}

/* ---- layers ---------------------------------------------------------------------------------- */

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
    uint32_t window = 0;
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
            return fail(s->err, KVASIR_ERR_FORMAT,
                        "field %slayer_types: layer %u slides, but there is no sliding_window",
                        s->prefix, i);
        c->layers[i].window = slides ? window : 0;
        if (slides)
            c->window = window;
    }
    return KVASIR_OK;
}

/* num_experts, num_local_experts (transformers 5) or none */
kvasir_status config_experts(const struct json_scope *s, struct model_config *c) {
    TRY(json_get_u32(s, "num_local_experts", false, 1, EXPERTS_MAX, &c->moe.n));
    TRY(json_get_u32(s, "num_experts", c->moe.n == 0, 1, EXPERTS_MAX, &c->moe.n));
    TRY(json_get_u32(s, "num_experts_per_tok", true, 1, c->moe.n, &c->moe.top_k));
    TRY(json_get_u32(s, "moe_intermediate_size", true, 1, FFN_MAX, &c->moe.dim));
    TRY(json_get_u32(s, "shared_expert_intermediate_size", false, 1, FFN_MAX, &c->moe.shared_dim));
    TRY(json_get_bool(s, "norm_topk_prob", &c->moe.normalize));
    uint32_t every = 1;
    TRY(json_get_u32(s, "decoder_sparse_step", false, 1, LAYERS_MAX, &every));
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].experts = (i + 1) % every == 0;
    const json_t *dense = json_object_get(s->object, "mlp_only_layers"), *number;
    size_t at;
    json_array_foreach((json_t *)dense, at, number) {
        json_int_t layer = json_is_integer(number) ? json_integer_value(number) : -1;
        if (layer < 0 || layer >= (json_int_t)c->n_layers)
            return fail(s->err, KVASIR_ERR_FORMAT, "field %smlp_only_layers[%zu] is no layer",
                        s->prefix, at);
        c->layers[layer].experts = false;
    }
    return KVASIR_OK;
}

/* ---- rope ------------------------------------------------------------------------------------ */

static kvasir_status read_llama3(const struct json_scope *s, struct rope_config *r) {
    TRY(json_get_double(s, "factor", true, &r->factor));
    TRY(json_get_double(s, "low_freq_factor", true, &r->low_freq_factor));
    TRY(json_get_double(s, "high_freq_factor", true, &r->high_freq_factor));
    if (r->high_freq_factor <= r->low_freq_factor)
        return fail(s->err, KVASIR_ERR_FORMAT,
                    "field %shigh_freq_factor is %g, must be above low_freq_factor %g", s->prefix,
                    r->high_freq_factor, r->low_freq_factor);
    return KVASIR_OK;
}

static kvasir_status read_yarn(const struct json_scope *s, struct rope_config *r) {
    r->beta_fast = 32;
    r->beta_slow = 1;
    r->truncate = true;
    TRY(json_get_double(s, "factor", true, &r->factor));
    TRY(json_get_double(s, "beta_fast", false, &r->beta_fast));
    TRY(json_get_double(s, "beta_slow", false, &r->beta_slow));
    TRY(json_get_double(s, "attention_factor", false, &r->attention_factor));
    TRY(json_get_double(s, "mscale", false, &r->mscale));
    TRY(json_get_double(s, "mscale_all_dim", false, &r->mscale_all_dim));
    return json_get_bool(s, "truncate", &r->truncate);
}

static kvasir_status read_factors(const struct json_scope *s, const char *key, uint32_t n,
                                  float *out) {
    const json_t *list = json_object_get(s->object, key);
    if (!json_is_array(list) || json_array_size(list) != n)
        return fail(s->err, KVASIR_ERR_FORMAT, "field %s%s must be an array of %u numbers",
                    s->prefix, key, n);
    for (uint32_t i = 0; i < n; i++) {
        double x = json_number_value(json_array_get(list, i));
        if (!(x >= 1e-6 && x <= 1e6))
            return fail(s->err, KVASIR_ERR_FORMAT, "field %s%s[%u] must be a number above 0",
                        s->prefix, key, i);
        out[i] = (float)x;
    }
    return KVASIR_OK;
}

static kvasir_status read_longrope(const struct json_scope *s, struct rope_config *r) {
    TRY(json_get_double(s, "factor", false, &r->factor));
    TRY(json_get_double(s, "attention_factor", false, &r->attention_factor));
    TRY(read_factors(s, "short_factor", r->dims / 2, r->short_factors));
    return read_factors(s, "long_factor", r->dims / 2, r->long_factors);
}

/* The part of a head that turns: its first dims; in the proportional kind its first pairs, and
 * those are pairs of the whole head. */
static kvasir_status read_rotated_part(const struct json_scope *s, struct rope_config *r,
                                       uint32_t head_dim) {
    double part = 1;
    TRY(json_get_double(s, "partial_rotary_factor", false, &part));
    if (part > 1)
        return fail(s->err, KVASIR_ERR_FORMAT, "field %spartial_rotary_factor: %g is above 1",
                    s->prefix, part);
    const uint32_t dims = (uint32_t)(part * head_dim) / 2 * 2;
    if (dims < 2)
        return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                    "field %spartial_rotary_factor: %g of %u dims leaves none", s->prefix, part,
                    head_dim);
    if (r->kind == ROPE_PROPORTIONAL)
        r->turned = dims / 2;
    else if (part < 1)
        r->dims = dims;
    return KVASIR_OK;
}

static kvasir_status read_kind(const struct json_scope *s, struct rope_config *r) {
    static const struct {
        const char *name;
        enum rope_kind kind;
    } known[] = {{"default", ROPE_PLAIN},   {"linear", ROPE_LINEAR},
                 {"dynamic", ROPE_DYNAMIC}, {"llama3", ROPE_LLAMA3},
                 {"yarn", ROPE_YARN},       {"longrope", ROPE_LONG},
                 {"su", ROPE_LONG},         {"proportional", ROPE_PROPORTIONAL},
                 {"mrope", ROPE_PLAIN} /* of text all three positions are one */};
    const char *type = "default";
    TRY(json_get_string(s, "type", false, &type)); /* the oldest spelling */
    TRY(json_get_string(s, "rope_type", false, &type));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(type, known[i].name) == 0) {
            r->kind = known[i].kind;
            return KVASIR_OK;
        }
    return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                "field %srope_type: %.60s is not supported, only default, linear, dynamic, llama3, "
                "yarn, longrope, proportional and mrope",
                s->prefix, type);
}

kvasir_status config_rope(const struct json_scope *s, const struct model_config *c,
                          struct rope_config *r) {
    TRY(read_kind(s, r));
    TRY(json_get_double(s, "rope_theta", false, &r->theta));
    TRY(read_rotated_part(s, r, r->dims));
    r->original_ctx = c->ctx_train;
    TRY(json_get_u32(s, "original_max_position_embeddings",
                     c->ctx_train == 0 && r->kind != ROPE_PLAIN, 1, CTX_MAX, &r->original_ctx));
    switch (r->kind) {
    case ROPE_LLAMA3:
        return read_llama3(s, r);
    case ROPE_YARN:
        return read_yarn(s, r);
    case ROPE_LONG:
        return read_longrope(s, r);
    case ROPE_LINEAR:
    case ROPE_DYNAMIC:
        return json_get_double(s, "factor", true, &r->factor);
    case ROPE_PROPORTIONAL:
        return json_get_double(s, "factor", false, &r->factor);
    case ROPE_PLAIN:
        break;
    }
    return KVASIR_OK;
}

/* The object of either spelling; NULL: there is none. */
static kvasir_status find_rope(const struct json_scope *s, struct json_scope *inner) {
    static const struct {
        const char *key, *prefix;
    } spellings[] = {{"rope_parameters", "rope_parameters."}, {"rope_scaling", "rope_scaling."}};
    inner->object = NULL;
    for (size_t i = 0; i < 2 && !inner->object; i++) {
        const json_t *object = json_object_get(s->object, spellings[i].key);
        if (!object || json_is_null(object))
            continue;
        if (!json_is_object(object))
            return fail(s->err, KVASIR_ERR_FORMAT, "field %s%s must be an object, found %s",
                        s->prefix, spellings[i].key, json_kind(object));
        *inner = (struct json_scope){object, spellings[i].prefix, s->err};
    }
    return KVASIR_OK;
}

/* Whether there is one object for each kind of layer; *which is one's key. */
static bool rope_differs(const struct json_scope *rope, const char **which) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)rope->object, key, value) {
        if (json_is_object(value)) {
            if (which)
                *which = key;
            return true;
        }
    }
    return false;
}

/* Phi writes it beside rope_scaling. */
static kvasir_status read_original(const struct json_scope *s, struct rope_config *r) {
    uint32_t original = 0;
    TRY(json_get_u32(s, "original_max_position_embeddings", false, 1, CTX_MAX, &original));
    if (original)
        r->original_ctx = original;
    return KVASIR_OK;
}

/* One rope for all layers. */
static kvasir_status read_rope(const struct json_scope *s, struct model_config *c) {
    struct rope_config *r = &c->ropes[0];
    struct json_scope inner;
    *r = (struct rope_config){.kind = ROPE_PLAIN, .dims = c->head_dim, .theta = 10000, .factor = 0};
    c->n_ropes = 1;
    TRY(json_get_double(s, "rope_theta", false, &r->theta));
    TRY(find_rope(s, &inner));
    if (!inner.object || !json_object_get(inner.object, "partial_rotary_factor"))
        TRY(read_rotated_part(s, r, c->head_dim));
    if (!inner.object)
        return KVASIR_OK;
    if (rope_differs(&inner, NULL)) /* config_ropes_by_window */
        return KVASIR_OK;
    TRY(config_rope(&inner, c, r));
    return read_original(s, r);
}

kvasir_status config_ropes_by_window(const struct json_scope *s, struct model_config *c,
                                     double local_theta) {
    struct json_scope inner;
    struct rope_config plain = {.kind = ROPE_PLAIN, .dims = c->head_dim, .theta = local_theta};
    TRY(json_get_double(s, "rope_local_base_freq", false, &plain.theta));
    c->ropes[1] = plain;
    c->n_ropes = 2;
    TRY(find_rope(s, &inner));
    static const struct {
        const char *key, *prefix;
    } kinds[] = {{"full_attention", "rope_parameters.full_attention."},
                 {"sliding_attention", "rope_parameters.sliding_attention."}};
    for (size_t i = 0; inner.object && i < 2; i++) {
        const json_t *object = json_object_get(inner.object, kinds[i].key);
        if (!json_is_object(object))
            continue;
        struct json_scope one = {object, kinds[i].prefix, s->err};
        TRY(config_rope(&one, c, &c->ropes[i]));
    }
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].rope = c->layers[i].window != 0;
    return KVASIR_OK;
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
    if (json_is_object(wrapped)) {
        text = (struct json_scope){wrapped, "text_config.", s->err};
        TRY(json_get_bool(s, "tie_word_embeddings", &c->tied_embedding));
    }
    c->gate = GATE_SILU;
    c->embed_scale = c->residual_scale = c->logit_scale = 1;
    TRY(read_sizes(&text, family, c));
    config_layers_init(c);
    TRY(read_rope(&text, c));
    TRY(family->read(&text, c));
    struct json_scope rope;
    const char *which;
    TRY(find_rope(&text, &rope));
    if (c->n_ropes == 1 && rope.object && rope_differs(&rope, &which))
        return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                    "field %s%.60s: rope that differs by layer is not supported in a %s model",
                    rope.prefix, which, c->arch);
    return KVASIR_OK;
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
