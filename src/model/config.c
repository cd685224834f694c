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
 * text_config leaves out what is its class's default (Gemma 3's says neither heads nor vocabulary):
 * there, and only there, sizes have defaults.
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

/* What arithmetic can take: neither it nor its inverse or square leaves float32. */
static kvasir_status get_number(const struct json_scope *s, const char *key, bool required,
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
    TRY(get_number(s, key, false, &value));
    *out = (float)value;
    return KVASIR_OK;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Defaults of classes in transformers, where they are not those of all: sizes are a wrapped model's
 * (text_config). 0: none. */
static const struct class_defaults {
    const char *arch;
    double theta;
    bool tied;
    uint32_t layers, dim, ffn_dim, heads, kv_heads, vocab, ctx, window;
    double eps;
} class_defaults[] = {
    {"smollm3", 2e6, true, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    {"olmo3", 5e5, false, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    {"gpt_oss", 15e4, false, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    {"lfm2", 1e6, true, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    {"gemma2", 1e4, true, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    {"gemma3", 1e6, true, 26, 2304, 9216, 8, 4, 262208, 131072, 4096, 1e-6},
    {"gemma4", 1e6, true, 30, 2304, 9216, 8, 4, 262144, 131072, 512, 1e-6},
    {"qwen3_5", 1e4, false, 32, 4096, 12288, 16, 4, 248320, 32768, 0, 1e-6},
    {"qwen3_5_moe", 1e4, false, 40, 2048, 0, 16, 2, 248320, 32768, 0, 1e-6},
    {NULL, 1e4, false, 0, 0, 0, 0, 0, 0, 0, 0, 0},
};

static const struct class_defaults *defaults_of(const char *arch) {
    const struct class_defaults *d = class_defaults;
    while (d->arch && strcmp(d->arch, arch) != 0)
        d++;
    return d;
}

static bool is_wrapped(const struct json_scope *s) {
    return s->prefix[0] != 0;
}

/* What kernels, tiles and tables take for granted; load.c checks it of all files, here fields are
 * named. */
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
    /* The others' default is a number for one size of theirs. */
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
    const struct class_defaults *d = defaults_of(f->arch);
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
        if (block && !json_is_null(block)) /* the old spelling goes first */
            ffn = "block_ff_dim";
    }
    /* Of qwen3_5_moe nothing is so wide. */
    const bool dense = strcmp(f->arch, "qwen3_5_moe") != 0;
    TRY(json_get_u32(s, ffn, dense && c->ffn_dim == 0, 1, FFN_MAX, &c->ffn_dim));
    TRY(get_number(s, eps_key, eps <= 0, &eps));
    if (eps > 1)
        return fail(s->err, KVASIR_ERR_FORMAT, "field %s%s is %g, must be at most 1", s->prefix,
                    eps_key, eps);
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
            return fail(s->err, KVASIR_ERR_FORMAT,
                        "field %slayer_types: layer %u slides, but there is no sliding_window",
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

/* num_experts, num_local_experts (transformers 5) or none */
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
            return fail(s->err, KVASIR_ERR_FORMAT, "field %smlp_only_layers[%zu] is no layer",
                        s->prefix, at);
        c->layers[layer].experts = false;
    }
    return KVASIR_OK;
}

/* ---- rope ------------------------------------------------------------------------------------ */

static kvasir_status read_llama3(const struct json_scope *s, struct rope_config *r) {
    TRY(get_number(s, "factor", true, &r->factor));
    TRY(get_number(s, "low_freq_factor", true, &r->low_freq_factor));
    TRY(get_number(s, "high_freq_factor", true, &r->high_freq_factor));
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
    TRY(get_number(s, "factor", true, &r->factor));
    TRY(get_number(s, "beta_fast", false, &r->beta_fast));
    TRY(get_number(s, "beta_slow", false, &r->beta_slow));
    TRY(get_number(s, "attention_factor", false, &r->attention_factor));
    TRY(get_number(s, "mscale", false, &r->mscale));
    TRY(get_number(s, "mscale_all_dim", false, &r->mscale_all_dim));
    if (r->theta <= 1)
        return fail(s->err, KVASIR_ERR_FORMAT, "field %srope_theta is %g, must be above 1 (yarn)",
                    s->prefix, r->theta);
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
    TRY(get_number(s, "factor", false, &r->factor));
    TRY(get_number(s, "attention_factor", false, &r->attention_factor));
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
    if (r->kind == ROPE_YARN && strcmp(c->arch, "phi3") == 0)
        r->kind = ROPE_LONG; /* its old name there */
    TRY(get_number(s, "rope_theta", false, &r->theta));
    TRY(read_rotated_part(s, r, r->dims));
    const bool by_original = r->kind == ROPE_LLAMA3 || r->kind == ROPE_YARN || r->kind == ROPE_LONG;
    if (c->ctx_train == 0 && (r->kind == ROPE_DYNAMIC || r->kind == ROPE_LONG))
        return fail(s->err, KVASIR_ERR_FORMAT,
                    "field max_position_embeddings is missing: %srope_type asks for it", s->prefix);
    r->original_ctx = c->ctx_train;
    TRY(json_get_u32(s, "original_max_position_embeddings", c->ctx_train == 0 && by_original, 2,
                     CTX_MAX, &r->original_ctx));
    if (by_original && r->original_ctx < 2)
        return fail(s->err, KVASIR_ERR_FORMAT,
                    "field max_position_embeddings is %u, must be above "
                    "1",
                    r->original_ctx);
    switch (r->kind) {
    case ROPE_LLAMA3:
        return read_llama3(s, r);
    case ROPE_YARN:
        return read_yarn(s, r);
    case ROPE_LONG:
        return read_longrope(s, r);
    case ROPE_LINEAR:
    case ROPE_DYNAMIC:
        return get_number(s, "factor", true, &r->factor);
    case ROPE_PROPORTIONAL:
        return get_number(s, "factor", false, &r->factor);
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
    TRY(json_get_u32(s, "original_max_position_embeddings", false, 2, CTX_MAX, &original));
    if (original)
        r->original_ctx = original;
    return KVASIR_OK;
}

/* One rope for all layers. */
static kvasir_status read_rope(const struct json_scope *s, struct model_config *c) {
    struct rope_config *r = &c->ropes[0];
    struct json_scope inner;
    *r = (struct rope_config){
        .kind = ROPE_PLAIN, .dims = c->head_dim, .theta = defaults_of(c->arch)->theta, .factor = 0};
    c->n_ropes = 1;
    TRY(get_number(s, "rope_theta", false, &r->theta));
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
    TRY(get_number(s, "rope_local_base_freq", false, &plain.theta));
    c->ropes[1] = plain;
    c->n_ropes = 2;
    TRY(find_rope(s, &inner));
    static const struct {
        const char *key, *prefix;
    } kinds[] = {{"full_attention", "rope_parameters.full_attention."},
                 {"sliding_attention", "rope_parameters.sliding_attention."}};
    for (size_t i = 0; inner.object && i < 2; i++) {
        const json_t *object = json_object_get(inner.object, kinds[i].key);
        if (!object || json_is_null(object))
            continue;
        struct json_scope one = {object, kinds[i].prefix, s->err};
        if (!json_is_object(object))
            return fail(s->err, KVASIR_ERR_FORMAT, "field %.*s must be an object, found %s",
                        (int)strlen(one.prefix) - 1, one.prefix, json_kind(object));
        TRY(config_rope(&one, c, &c->ropes[i]));
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)inner.object, key, value) {
        if (json_is_object(value) && strcmp(key, "full_attention") != 0 &&
            strcmp(key, "sliding_attention") != 0)
            return fail(s->err, KVASIR_ERR_FORMAT, "field %s%.60s: an object is of no use there",
                        inner.prefix, key);
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
    c->tied_embedding = defaults_of(c->arch)->tied;
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
    TRY(read_rope(&text, c));
    TRY(family->read(&text, c));
    struct json_scope rope;
    const char *which;
    TRY(find_rope(&text, &rope));
    if (c->n_ropes == 1 && rope.object && rope_differs(&rope, &which))
        return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                    "field %s%.60s: rope that differs by layer is not supported in a %s model",
                    rope.prefix, which, c->arch);
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
