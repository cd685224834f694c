/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata of a GGUF file -> struct model_config.
 *
 * Keys begin with the architecture's name (llama.block_count). What all architectures have in
 * common is read here, in helpers what some have; a family's gguf_read() says the rest, most of
 * which no key carries: it is fixed by the architecture. docs/gguf-families.md has it all.
 *
 * Files hold what converters made of a folder: norms with their 1 added, heads in another order. No
 * tensor is turned back. The configuration says how the file has it (unit_offset, rope.adjacent,
 * delta.keys_cycle), or the tensor goes by another name (linear_attn.A).
 *
 * A key that would change the arithmetic is refused by name unless the family asked for it: a wrong
 * answer is worse than none. What a missing key means is what llama.cpp takes it for.
 */
#include <stdio.h>

#include "model/family.h"

/* ---- keys ------------------------------------------------------------------------------------ */

/* Keys whose presence, with another value than these two, changes what the forward must compute. */
static const struct {
    const char *name;
    double neutral, also;
} arithmetic[] = {
    {"attention.scale", 0, 0},
    {"attention.clamp_kqv", 0, 0},
    {"attention.max_alibi_bias", 0, 0},
    {"attention.output_scale", 0, 1},
    {"attention.temperature_length", 0, 0},
    {"attention.temperature_scale", 0, 0},
    {"attention.causal", 1, 1},
    {"attention.sliding_window", 0, 0},
    {"attention.sliding_window_pattern", 0, 0},
    {"attention.shared_kv_layers", 0, 0},
    {"attention.key_length_swa", 0, 0},
    {"attention.value_length_swa", 0, 0},
    {"attention.key_length_mla", 0, 0},
    {"attention.q_lora_rank", 0, 0},
    {"attention.kv_lora_rank", 0, 0},
    {"attn_logit_softcapping", 0, 0},
    {"final_logit_softcapping", 0, 0},
    {"router_logit_softcapping", 0, 0},
    {"logit_scale", 0, 1},
    {"embedding_scale", 0, 1},
    {"residual_scale", 0, 1},
    {"embedding_length_per_layer_input", 0, 0},
    {"use_parallel_residual", 0, 0},
    {"expert_count", 0, 0},
    {"expert_shared_count", 0, 0},
    {"expert_group_count", 0, 1},
    {"expert_group_used_count", 0, 1},
    {"expert_weights_norm", 1, 1},
    {"expert_weights_scale", 0, 1},
    /* softmax, over all or over the chosen ones: divided by their sum these are the same */
    {"expert_gating_func", 1, 3},
    {"leading_dense_block_count", 0, 0},
    {"interleave_moe_layer_step", 0, 1},
    {"moe_every_n_layers", 0, 1},
    {"rope.freq_base_swa", 0, 0},
    {"rope.dimension_count_swa", 0, 0},
    {"rope.scaling.yarn_ext_factor", 1, 1},
    {"rope.scaling.yarn_log_multiplier", 0, 0},
    {"rope.scaling.alpha", 0, 1},
};
enum { ARITHMETIC = sizeof arithmetic / sizeof *arithmetic };
_Static_assert(ARITHMETIC <= 64, "a bit each in struct gguf_keys");

const char *gguf_key_name(struct gguf_keys *k, const char *name) {
    for (size_t i = 0; i < ARITHMETIC; i++)
        if (strcmp(name, arithmetic[i].name) == 0)
            k->asked |= (uint64_t)1 << i;
    snprintf(k->key, sizeof k->key, "%s.%s", k->arch, name);
    return k->key;
}

bool gguf_key_there(struct gguf_keys *k, const char *name) {
    return gguf_find(k->g, gguf_key_name(k, name)) != NULL;
}

kvasir_status gguf_key_u32(struct gguf_keys *k, const char *name, bool required, uint32_t min,
                           uint32_t max, uint32_t *out) {
    return gguf_get_u32(k->g, gguf_key_name(k, name), required, min, max, out, k->err);
}

kvasir_status gguf_key_layers(struct gguf_keys *k, const char *name, bool required, uint32_t min,
                              uint32_t max, uint32_t out[LAYERS_MAX]) {
    return gguf_get_u32s(k->g, gguf_key_name(k, name), k->blocks, required, min, max, out, k->err);
}

kvasir_status gguf_key_double(struct gguf_keys *k, const char *name, double *out) {
    const struct gguf_value *v = gguf_find(k->g, gguf_key_name(k, name));
    double x;
    if (v && (v->type == GGUF_F32 || v->type == GGUF_F64) && gguf_number(v, &x) && x >= 0 && x <= 0)
        return KVASIR_OK;
    return gguf_get_double(k->g, k->key, false, out, k->err);
}

kvasir_status gguf_key_float(struct gguf_keys *k, const char *name, float *out) {
    double x = (double)*out;
    TRY(gguf_key_double(k, name, &x));
    *out = (float)x;
    return KVASIR_OK;
}

static kvasir_status refuse_arithmetic(struct gguf_keys *k, const struct model_config *c) {
    for (size_t i = 0; i < ARITHMETIC; i++) {
        double x;
        if (k->asked >> i & 1)
            continue;
        const struct gguf_value *v = gguf_find(k->g, gguf_key_name(k, arithmetic[i].name));
        if (!v)
            continue;
        if (!gguf_number(v, &x))
            return fail_at(k->err, KVASIR_ERR_UNSUPPORTED, v->offset,
                           "metadata %s: only a number is supported in a %s model", k->key,
                           c->arch);
        bool neutral = !(x < arithmetic[i].neutral || x > arithmetic[i].neutral) ||
                       !(x < arithmetic[i].also || x > arithmetic[i].also);
        if (!neutral)
            return fail_at(k->err, KVASIR_ERR_UNSUPPORTED, v->offset,
                           "metadata %s is %g, which is not supported in a %s model", k->key, x,
                           c->arch);
    }
    return KVASIR_OK;
}

/* ---- what families call ---------------------------------------------------------------------- */

kvasir_status gguf_windows(struct gguf_keys *k, struct model_config *c, uint32_t window,
                           uint32_t period) {
    const char *const pattern = "attention.sliding_window_pattern";
    uint32_t slides[LAYERS_MAX];
    TRY(gguf_key_u32(k, "attention.sliding_window", false, 0, CTX_MAX, &window));
    const struct gguf_value *v = gguf_find(k->g, gguf_key_name(k, pattern));
    const bool each = v && v->type == GGUF_ARRAY;
    if (each)
        TRY(gguf_key_layers(k, pattern, true, 0, 1, slides));
    else
        TRY(gguf_key_u32(k, pattern, false, 0, LAYERS_MAX, &period));
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const bool one = each ? slides[i] != 0 : period == 0 || (i + 1) % period != 0;
        c->layers[i].window = one ? window : 0;
        if (one)
            c->window = window;
    }
    return KVASIR_OK;
}

kvasir_status gguf_ropes_by_window(struct gguf_keys *k, struct model_config *c,
                                   double local_theta) {
    struct rope_config *local = &c->ropes[1];
    *local =
        (struct rope_config){.kind = ROPE_PLAIN, .dims = c->ropes[0].dims, .theta = local_theta};
    TRY(gguf_key_double(k, "rope.freq_base_swa", &local->theta));
    TRY(gguf_key_u32(k, "rope.dimension_count_swa", false, 2, DIM_MAX, &local->dims));
    if (!c->window)
        return KVASIR_OK;
    c->n_ropes = 2;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].rope = c->layers[i].window != 0;
    return KVASIR_OK;
}

kvasir_status gguf_experts(struct gguf_keys *k, struct model_config *c) {
    TRY(gguf_key_u32(k, "expert_count", true, 1, EXPERTS_MAX, &c->moe.n));
    TRY(gguf_key_u32(k, "expert_used_count", true, 1, c->moe.n, &c->moe.top_k));
    c->moe.dim = c->ffn_dim / c->moe.top_k;
    TRY(gguf_key_u32(k, "expert_feed_forward_length", c->moe.dim == 0, 1, FFN_MAX, &c->moe.dim));
    c->moe.normalize = true;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].experts = true;
    return KVASIR_OK;
}

/* ---- common keys ----------------------------------------------------------------------------- */

static kvasir_status read_architecture(const struct gguf *g, const struct family **family,
                                       kvasir_error *err) {
    struct text_span arch, type = {"model", 5};
    char known[512];
    TRY(gguf_get_string(g, "general.type", false, &type, err));
    if (type.len != 5 || memcmp(type.data, "model", 5) != 0)
        return fail_at(err, KVASIR_ERR_UNSUPPORTED, gguf_find(g, "general.type")->offset,
                       "metadata general.type is %.*s, not a model",
                       (int)(type.len < 60 ? type.len : 60), type.data);
    TRY(gguf_get_string(g, "general.architecture", true, &arch, err));
    *family = family_of_gguf(arch.data, arch.len);
    return *family
               ? KVASIR_OK
               : fail_at(err, KVASIR_ERR_UNSUPPORTED, gguf_find(g, "general.architecture")->offset,
                         "general.architecture %.*s is not supported, only %s",
                         (int)(arch.len < 60 ? arch.len : 60), arch.data,
                         family_gguf_list(known, sizeof known));
}

/* Layers that guess tokens ahead of the next stand behind the others and are not run. */
static kvasir_status read_layers(struct gguf_keys *k, struct model_config *c) {
    TRY(gguf_key_u32(k, "block_count", true, 1, LAYERS_MAX, &k->blocks));
    TRY(gguf_key_u32(k, "nextn_predict_layers", false, 0, k->blocks - 1, &c->mtp_layers));
    c->n_layers = k->blocks - c->mtp_layers;
    return KVASIR_OK;
}

static kvasir_status read_heads(struct gguf_keys *k, struct model_config *c,
                                uint32_t kv_heads[LAYERS_MAX]) {
    uint32_t heads[LAYERS_MAX];
    TRY(gguf_key_layers(k, "attention.head_count", true, 1, HEADS_MAX, heads));
    for (uint32_t i = 0; i < k->blocks; i++) {
        kv_heads[i] = heads[0];
        if (heads[i] != heads[0])
            return fail(k->err, KVASIR_ERR_UNSUPPORTED,
                        "metadata %s: %u heads in layer 0 and %u in layer %u are not supported",
                        k->key, heads[0], heads[i], i);
    }
    c->heads = heads[0];
    TRY(gguf_key_layers(k, "attention.head_count_kv", false, 0, HEADS_MAX, kv_heads));
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->kv_heads = kv_heads[i] > c->kv_heads ? kv_heads[i] : c->kv_heads;
    TRY(gguf_key_u32(k, "attention.key_length", false, 1, DIM_MAX, &c->head_dim));
    if (!c->head_dim) {
        if (c->dim % c->heads != 0)
            return fail(k->err, KVASIR_ERR_FORMAT, "metadata: %u heads do not divide %u dims",
                        c->heads, c->dim);
        c->head_dim = c->dim / c->heads;
    }
    return gguf_value_length(k, "attention.value_length", c->head_dim);
}

kvasir_status gguf_value_length(struct gguf_keys *k, const char *name, uint32_t key_length) {
    uint32_t length = key_length;
    TRY(gguf_key_u32(k, name, false, 1, DIM_MAX, &length));
    return length == key_length
               ? KVASIR_OK
               : fail(k->err, KVASIR_ERR_UNSUPPORTED,
                      "metadata %s is %u, must be the key's length %u", k->key, length, key_length);
}

static kvasir_status read_vocab_size(struct gguf_keys *k, struct model_config *c) {
    const struct gguf_value *tokens = gguf_find(k->g, "tokenizer.ggml.tokens");
    bool have_tokens = tokens && tokens->type == GGUF_ARRAY;
    if (have_tokens) {
        if (tokens->count > VOCAB_MAX)
            return fail_at(k->err, KVASIR_ERR_FORMAT, tokens->offset,
                           "a vocabulary of more than %d tokens", VOCAB_MAX);
        c->vocab = (uint32_t)tokens->count;
    }
    TRY(gguf_key_u32(k, "vocab_size", !have_tokens, 1, VOCAB_MAX, &c->vocab));
    if (have_tokens && tokens->count != c->vocab)
        return fail_at(k->err, KVASIR_ERR_FORMAT, gguf_find(k->g, k->key)->offset,
                       "metadata %s is %u, but tokenizer.ggml.tokens holds %u", k->key, c->vocab,
                       (uint32_t)tokens->count);
    return KVASIR_OK;
}

static kvasir_status read_sizes(struct gguf_keys *k, struct model_config *c) {
    uint32_t kv_heads[LAYERS_MAX], ffn[LAYERS_MAX] = {0};
    TRY(gguf_key_u32(k, "embedding_length", true, 1, DIM_MAX, &c->dim));
    TRY(gguf_key_u32(k, "context_length", false, 1, CTX_MAX, &c->ctx_train));
    TRY(gguf_key_layers(k, "feed_forward_length", false, 0, FFN_MAX, ffn));
    TRY(read_heads(k, c, kv_heads));
    TRY(read_vocab_size(k, c));
    double eps;
    TRY(gguf_get_double(k->g, gguf_key_name(k, "attention.layer_norm_rms_epsilon"), true, &eps,
                        k->err));
    c->norm_eps = (float)eps;
    config_layers_init(c);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].kv_heads = kv_heads[i];
        c->layers[i].ffn_dim = ffn[i];
        c->ffn_dim = ffn[i] > c->ffn_dim ? ffn[i] : c->ffn_dim;
    }
    return KVASIR_OK;
}

/* ---- rope ------------------------------------------------------------------------------------ */

/* A factor without a type is linear. Lists of factors (longrope, llama3) are tensors: load.c. */
static kvasir_status read_scaling_type(struct gguf_keys *k, struct rope_config *r) {
    static const struct {
        const char *name;
        enum rope_kind kind;
    } known[] = {{"none", ROPE_PLAIN},
                 {"linear", ROPE_LINEAR},
                 {"yarn", ROPE_YARN},
                 {"longrope", ROPE_LONG}};
    struct text_span type = {"linear", 6};
    TRY(gguf_get_string(k->g, gguf_key_name(k, "rope.scaling.type"), false, &type, k->err));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (type.len == strlen(known[i].name) && memcmp(type.data, known[i].name, type.len) == 0) {
            r->kind = known[i].kind;
            return KVASIR_OK;
        }
    return fail(k->err, KVASIR_ERR_UNSUPPORTED,
                "metadata %s: rope type %.*s is not supported, only none, linear, yarn and "
                "longrope",
                k->key, (int)(type.len < 60 ? type.len : 60), type.data);
}

/* llama.cpp reads neither the two betas nor yarn_attn_factor; they are what a folder's would be. */
static kvasir_status read_yarn(struct gguf_keys *k, struct rope_config *r) {
    double more = r->attention_factor;
    r->beta_fast = 32;
    r->beta_slow = 1;
    r->truncate = true;
    r->attention_factor = 0; /* by formula */
    if (!r->original_ctx)
        return fail(k->err, KVASIR_ERR_FORMAT,
                    "metadata: yarn without rope.scaling.original_context_length");
    TRY(gguf_key_double(k, "rope.scaling.yarn_beta_fast", &r->beta_fast));
    TRY(gguf_key_double(k, "rope.scaling.yarn_beta_slow", &r->beta_slow));
    if (more > 0)
        r->attention_factor = more * (r->factor <= 1 ? 1 : 1 + 0.1 * m_log(r->factor));
    return gguf_key_double(k, "rope.scaling.yarn_attn_factor", &r->attention_factor);
}

static kvasir_status read_rope(struct gguf_keys *k, struct model_config *c) {
    struct rope_config *r = &c->ropes[0];
    *r = (struct rope_config){
        .dims = c->head_dim, .theta = 10000, .factor = 1, .original_ctx = c->ctx_train};
    c->n_ropes = 1;
    TRY(gguf_key_u32(k, "rope.dimension_count", false, 2, DIM_MAX, &r->dims));
    TRY(gguf_get_double(k->g, gguf_key_name(k, "rope.freq_base"), false, &r->theta, k->err));
    TRY(gguf_key_double(k, "rope.scale_linear", &r->factor)); /* the old name */
    TRY(gguf_key_double(k, "rope.scaling.factor", &r->factor));
    TRY(gguf_key_u32(k, "rope.scaling.original_context_length", false, 1, CTX_MAX,
                     &r->original_ctx));
    TRY(gguf_key_double(k, "rope.scaling.attn_factor", &r->attention_factor));
    TRY(read_scaling_type(k, r));
    if (r->kind == ROPE_LINEAR && !(r->factor < 1) && !(r->factor > 1))
        r->kind = ROPE_PLAIN;
    return r->kind == ROPE_YARN ? read_yarn(k, r) : KVASIR_OK;
}

/* ---- the document ---------------------------------------------------------------------------- */

static kvasir_status check_layers(struct gguf_keys *k, const struct model_config *c) {
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_config *l = &c->layers[i];
        if (l->kind == LAYER_ATTENTION && !l->kv_heads)
            return fail(k->err, KVASIR_ERR_FORMAT,
                        "metadata %s.attention.head_count_kv: layer %u "
                        "has no KV heads",
                        k->arch, i);
        if (!l->experts && !l->ffn_dim)
            return fail(k->err, KVASIR_ERR_FORMAT,
                        "metadata %s.feed_forward_length is missing or 0 for layer %u", k->arch, i);
    }
    return KVASIR_OK;
}

kvasir_status gguf_read_config(const struct gguf *g, struct model_config *c, kvasir_error *err) {
    const struct family *family = NULL;
    struct text_span name = {"", 0};
    *c = (struct model_config){.gate = GATE_SILU, .from_gguf = true};
    TRY(read_architecture(g, &family, err));
    snprintf(c->arch, sizeof c->arch, "%s", family->arch);
    TRY(gguf_get_string(g, "general.name", false, &name, err));
    snprintf(c->name, sizeof c->name, "%.*s", (int)(name.len < 95 ? name.len : 95), name.data);
    c->embed_scale = c->residual_scale = c->logit_scale = 1;
    struct gguf_keys k = {.g = g, .arch = family->gguf, .err = err};
    TRY(read_layers(&k, c));
    TRY(read_sizes(&k, c));
    TRY(read_rope(&k, c));
    TRY(family->gguf_read(&k, c));
    TRY(check_layers(&k, c));
    return refuse_arithmetic(&k, c);
}
