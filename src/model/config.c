/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of a Hugging Face folder -> struct model_config.
 *
 *     architectures    LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM
 *     rope             old spelling: rope_theta beside rope_scaling, null or { type, ... }
 *                      new spelling: rope_parameters { rope_theta, rope_type, ... }
 *     head_dim         where it is missing: hidden_size / num_attention_heads (qwen3: 128)
 *     window           mistral: sliding_window; qwen: only with use_sliding_window
 *
 * Defaults are those of the architecture's class in transformers. Every field read is checked for
 * type and range and named in the error. A field that asks for arithmetic the forward does not do
 * (another activation, biases where the family has none, a rope type, layers that differ) is
 * refused: it would run and answer wrongly. How modules are quantized is quantization.c's.
 */
#include <stdio.h>

#include "model/model_internal.h"

/* ---- architecture ---------------------------------------------------------------------------- */

static kvasir_status read_architecture(const struct json_scope *s, struct model_config *c) {
    static const struct {
        const char *class_name, *arch;
    } known[] = {
        {"LlamaForCausalLM", "llama"},
        {"MistralForCausalLM", "mistral"},
        {"Qwen2ForCausalLM", "qwen2"},
        {"Qwen3ForCausalLM", "qwen3"},
    };
    const json_t *list = json_object_get(s->object, "architectures");
    const json_t *first = json_array_get(list, 0);
    if (json_array_size(list) != 1 || !json_is_string(first))
        return fail(s->err, KVASIR_ERR_FORMAT,
                    "field architectures must be an array of one string, found %s",
                    json_kind(list));
    const char *name = json_string_value(first);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i].class_name) == 0) {
            snprintf(c->arch, sizeof c->arch, "%s", known[i].arch);
            return KVASIR_OK;
        }
    return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                "field architectures: %.60s is not supported, only LlamaForCausalLM, "
                "MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM",
                name);
}

static bool is_qwen(const struct model_config *c) {
    return strncmp(c->arch, "qwen", 4) == 0;
}

static kvasir_status refuse_true(const struct json_scope *s, const char *key) {
    bool value = false;
    TRY(json_get_bool(s, key, &value));
    return value ? fail(s->err, KVASIR_ERR_UNSUPPORTED, "field %s: true is not supported", key)
                 : KVASIR_OK;
}

static kvasir_status refuse_variants(const struct json_scope *s, const struct model_config *c) {
    const char *act = "silu";
    TRY(json_get_string(s, "hidden_act", false, &act));
    if (strcmp(act, "silu") != 0)
        return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                    "field hidden_act: %.60s is not supported, only silu", act);
    if (strcmp(c->arch, "qwen2") != 0) /* whose q, k and v always have one */
        TRY(refuse_true(s, "attention_bias"));
    TRY(refuse_true(s, "mlp_bias"));
    return KVASIR_OK;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static kvasir_status read_sizes(const struct json_scope *s, struct model_config *c) {
    TRY(json_get_u32(s, "num_hidden_layers", true, 1, LAYERS_MAX, &c->layers));
    TRY(json_get_u32(s, "hidden_size", true, 1, DIM_MAX, &c->dim));
    TRY(json_get_u32(s, "intermediate_size", true, 1, FFN_MAX, &c->ffn_dim));
    TRY(json_get_u32(s, "vocab_size", true, 1, VOCAB_MAX, &c->vocab));
    TRY(json_get_u32(s, "max_position_embeddings", false, 1, CTX_MAX, &c->ctx_train));
    TRY(json_get_bool(s, "tie_word_embeddings", &c->tied_embedding));
    double eps;
    TRY(json_get_double(s, "rms_norm_eps", true, &eps));
    c->norm_eps = (float)eps;

    TRY(json_get_u32(s, "num_attention_heads", true, 1, HEADS_MAX, &c->heads));
    /* Only Llama's class takes as many KV heads as heads; the others' default is a number for one
     * size of theirs. */
    c->kv_heads = c->heads;
    bool kv_heads_required = strcmp(c->arch, "llama") != 0;
    TRY(json_get_u32(s, "num_key_value_heads", kv_heads_required, 1, HEADS_MAX, &c->kv_heads));
    if (strcmp(c->arch, "qwen3") == 0)
        c->head_dim = 128;
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

/* ---- window ---------------------------------------------------------------------------------- */

/* *sliding: how many of the first `layers` layers slide, by layer_types or, without it, by
 * max_window_layers. */
static kvasir_status count_sliding(const struct json_scope *s, const struct model_config *c,
                                   bool window_in_use, uint32_t *sliding) {
    const json_t *types = json_object_get(s->object, "layer_types");
    if (!types || json_is_null(types)) {
        uint32_t first = 0; /* qwen: layers below max_window_layers see everything */
        if (is_qwen(c))
            TRY(json_get_u32(s, "max_window_layers", window_in_use, 0, UINT32_MAX, &first));
        *sliding = window_in_use && first < c->layers ? c->layers - first : 0;
        return KVASIR_OK;
    }
    if (!json_is_array(types) || json_array_size(types) != c->layers)
        return fail(s->err, KVASIR_ERR_FORMAT,
                    "field layer_types must be an array of %u strings, one for each layer",
                    c->layers);
    *sliding = 0;
    for (size_t i = 0; i < c->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type && strcmp(type, "sliding_attention") == 0)
            ++*sliding;
        else if (!type || strcmp(type, "full_attention") != 0)
            return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                        "field layer_types[%zu]: %.60s is not supported", i,
                        type ? type : "something else than a string");
    }
    return KVASIR_OK;
}

static kvasir_status read_window(const struct json_scope *s, struct model_config *c) {
    uint32_t window = 0, sliding = 0;
    bool in_use = strcmp(c->arch, "mistral") == 0;
    TRY(json_get_u32(s, "sliding_window", false, 1, CTX_MAX, &window));
    if (is_qwen(c))
        TRY(json_get_bool(s, "use_sliding_window", &in_use));
    if (!window)
        in_use = false;
    TRY(count_sliding(s, c, in_use, &sliding));
    if (sliding != 0 && !in_use)
        return fail(s->err, KVASIR_ERR_FORMAT,
                    "field layer_types: %u layers slide, but there is no sliding_window in use",
                    sliding);
    if (sliding != 0 && sliding != c->layers)
        return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                    "field sliding_window holds for %u of %u layers: layers that differ are not "
                    "supported",
                    sliding, c->layers);
    c->window = sliding ? window : 0;
    return KVASIR_OK;
}

/* ---- rope ------------------------------------------------------------------------------------ */

static kvasir_status read_llama3(const struct json_scope *s, uint32_t ctx_train,
                                 struct rope_config *r) {
    r->kind = ROPE_LLAMA3;
    r->original_ctx = ctx_train;
    TRY(json_get_double(s, "factor", true, &r->factor));
    TRY(json_get_double(s, "low_freq_factor", true, &r->low_freq_factor));
    TRY(json_get_double(s, "high_freq_factor", true, &r->high_freq_factor));
    TRY(json_get_u32(s, "original_max_position_embeddings", ctx_train == 0, 1, CTX_MAX,
                     &r->original_ctx));
    if (r->high_freq_factor <= r->low_freq_factor)
        return fail(s->err, KVASIR_ERR_FORMAT,
                    "field %shigh_freq_factor is %g, must be above low_freq_factor %g", s->prefix,
                    r->high_freq_factor, r->low_freq_factor);
    return KVASIR_OK;
}

/* rope_parameters or rope_scaling. */
static kvasir_status read_rope_object(const struct json_scope *s, uint32_t ctx_train,
                                      struct rope_config *r) {
    const char *type = "default";
    double rotated_part = 1;
    TRY(json_get_string(s, "type", false, &type)); /* the oldest spelling */
    TRY(json_get_string(s, "rope_type", false, &type));
    TRY(json_get_double(s, "rope_theta", false, &r->theta));
    TRY(json_get_double(s, "partial_rotary_factor", false, &rotated_part));
    if (rotated_part < 1 || rotated_part > 1)
        return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                    "field %spartial_rotary_factor: %g is not supported", s->prefix, rotated_part);
    if (strcmp(type, "llama3") == 0)
        return read_llama3(s, ctx_train, r);
    if (strcmp(type, "default") != 0)
        return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                    "field %srope_type: %.60s is not supported, only default and llama3", s->prefix,
                    type);
    /* One object per kind of layer, as models with several have it. */
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)s->object, key, value) {
        if (json_is_object(value))
            return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                        "field %s%.60s: rope that differs by layer is not supported", s->prefix,
                        key);
    }
    return KVASIR_OK;
}

static kvasir_status read_rope(const struct json_scope *s, struct model_config *c) {
    struct rope_config *r = &c->rope;
    *r = (struct rope_config){.kind = ROPE_PLAIN, .dims = c->head_dim, .theta = 10000};
    TRY(json_get_double(s, "rope_theta", false, &r->theta));
    static const char *const spellings[] = {"rope_parameters", "rope_scaling"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *object = json_object_get(s->object, spellings[i]);
        if (!object || json_is_null(object))
            continue;
        if (!json_is_object(object))
            return fail(s->err, KVASIR_ERR_FORMAT, "field %s must be an object, found %s",
                        spellings[i], json_kind(object));
        struct json_scope inner = {object, i == 0 ? "rope_parameters." : "rope_scaling.", s->err};
        return read_rope_object(&inner, c->ctx_train, r);
    }
    return KVASIR_OK;
}

/* ---- the document ---------------------------------------------------------------------------- */

static kvasir_status read_document(const struct json_scope *s, struct model_config *c) {
    if (!json_is_object(s->object))
        return fail(s->err, KVASIR_ERR_FORMAT, "the document must be an object, found %s",
                    json_kind(s->object));
    TRY(read_architecture(s, c));
    TRY(refuse_variants(s, c));
    TRY(read_sizes(s, c));
    TRY(read_window(s, c));
    return read_rope(s, c);
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
