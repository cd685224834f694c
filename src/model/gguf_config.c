/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata of a GGUF file -> struct model_config.
 *
 * Keys begin with the architecture's name (llama.block_count). This file reads what all
 * architectures have in common; a family's gguf_read() does the rest with the helpers of
 * gguf_keys.c. Most of that is in no key: the architecture fixes it. docs/gguf-families.md lists
 * all of it.
 *
 * Files contain what converters made of a folder: norms with 1 added, heads in another order. No
 * tensor is converted back. The configuration records the file's form (unit_offset, rope.adjacent,
 * delta.keys_cycle), or the tensor has another name (linear_attn.A).
 *
 * A key that would change the arithmetic is refused by name unless the family reads it: a wrong
 * answer is worse than none. A missing key has the meaning that llama.cpp gives it.
 */
#include <stdio.h>

#include "model/family.h"

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

/* Layers that predict further tokens (MTP) come after the others and are not run. */
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
    double eps = 0;
    gguf_key_name(k, "attention.layer_norm_rms_epsilon");
    TRY(gguf_key_factor(k, true, &eps));
    if (eps > 1)
        return fail(k->err, KVASIR_ERR_FORMAT, "metadata %s is %g, must be at most 1", k->key, eps);
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

/* llama.cpp reads neither the two betas nor yarn_attn_factor; here they are as in a folder. */
static kvasir_status read_yarn(struct gguf_keys *k, struct rope_config *r) {
    double more = r->attention_factor;
    r->beta_fast = 32;
    r->beta_slow = 1;
    r->truncate = true;
    r->attention_factor = 0; /* by formula */
    if (r->original_ctx < 2 || r->theta <= 1)
        return fail(k->err, KVASIR_ERR_FORMAT,
                    "metadata: yarn of base %g over a context of %u, both must be above 1",
                    r->theta, r->original_ctx);
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
    gguf_key_name(k, "rope.freq_base");
    TRY(gguf_key_factor(k, false, &r->theta));
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
    return gguf_refuse_arithmetic(&k, c);
}

kvasir_status gguf_read_pooling(const struct gguf *g, struct checkpoint *c, kvasir_error *err) {
    enum { NONE, MEAN, LAST = 3 }; /* llama.cpp's; 2: the first row, 4: a classifier */
    char key[64];
    struct text_span arch;
    uint32_t kind = NONE;
    TRY(gguf_get_string(g, "general.architecture", true, &arch, err));
    snprintf(key, sizeof key, "%.*s.pooling_type", (int)(arch.len < 40 ? arch.len : 40), arch.data);
    TRY(gguf_get_u32(g, key, false, 0, UINT32_MAX, &kind, err));
    c->pooling = kind == NONE   ? POOLING_UNSAID
                 : kind == MEAN ? POOLING_MEAN
                 : kind == LAST ? POOLING_LAST
                                : POOLING_OTHER;
    return KVASIR_OK;
}
