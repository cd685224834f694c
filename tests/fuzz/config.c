/* SPDX-License-Identifier: Apache-2.0 */
/* Arbitrary bytes as config.json. An accepted configuration must be within the bounds of
 * model_internal.h and consistent, because all code after the readers trusts it. */
#include <math.h>

#include "fuzz.h"
#include "model/family.h"

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what))                                                                               \
            fuzz_fail("a %s configuration was accepted without %s", c->arch, #what);               \
    } while (0)

static bool within(uint32_t x, uint32_t max) {
    return x >= 1 && x <= max;
}

static bool usable(float x) { /* a factor of the arithmetic; 0: none */
    return isfinite(x) && x >= 0;
}

static void check_sizes(const struct model_config *c) {
    CHECK(family_of_arch(c->arch));
    CHECK(within(c->n_layers, LAYERS_MAX));
    CHECK(within(c->dim, DIM_MAX));
    CHECK(within(c->ffn_dim, FFN_MAX));
    CHECK(within(c->heads, HEADS_MAX));
    CHECK(within(c->kv_heads, HEADS_MAX));
    CHECK(within(c->head_dim, DIM_MAX));
    CHECK(within(c->vocab, VOCAB_MAX));
    CHECK(c->ctx_train <= CTX_MAX && c->window <= CTX_MAX);
    CHECK(c->norm_eps > 0 && c->norm_eps <= 1);
    CHECK(c->embed_scale > 0 && isfinite(c->embed_scale));
    CHECK(c->residual_scale > 0 && isfinite(c->residual_scale));
    CHECK(c->logit_scale > 0 && isfinite(c->logit_scale));
    CHECK(usable(c->attention_scale) && usable(c->attention_softcap) && usable(c->logit_softcap));
    CHECK((uint64_t)c->n_layers * c->layer_input_dim <= UINT32_MAX);
    CHECK(!c->layer_input_dim || within(c->layer_input_vocab, VOCAB_MAX));
}

static void check_parts(const struct model_config *c, bool experts, bool delta, bool conv) {
    if (experts) {
        CHECK(within(c->moe.n, EXPERTS_MAX) && within(c->moe.top_k, c->moe.n));
        CHECK(within(c->moe.dim, FFN_MAX) && c->moe.shared_dim <= FFN_MAX);
        CHECK((uint64_t)c->moe.n * 2 * c->moe.dim <= UINT32_MAX);
        CHECK((uint64_t)c->moe.n * c->dim <= UINT32_MAX);
    }
    if (delta) {
        CHECK(within(c->delta.key_heads, HEADS_MAX) && within(c->delta.value_heads, HEADS_MAX));
        CHECK(c->delta.value_heads % c->delta.key_heads == 0);
        CHECK(within(c->delta.key_dim, HEAD_DIM_MAX) && within(c->delta.value_dim, HEAD_DIM_MAX));
    }
    if (delta || conv)
        CHECK(c->conv_width >= 2 && c->conv_width <= 64);
}

static void check_layers(const struct model_config *c) {
    bool experts = false, delta = false, conv = false;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_config *l = &c->layers[i];
        experts = experts || l->experts;
        delta = delta || l->kind == LAYER_DELTA;
        conv = conv || l->kind == LAYER_CONV;
        CHECK(within(l->ffn_dim, FFN_MAX));
        if (l->kind != LAYER_ATTENTION)
            continue;
        const struct layer_config *from = &c->layers[l->kv_from];
        CHECK(within(l->head_dim, HEAD_DIM_MAX) && l->head_dim % HEAD_DIM_UNIT == 0);
        CHECK(within(l->kv_heads, c->heads) && c->heads % l->kv_heads == 0);
        CHECK(c->heads / l->kv_heads <= GQA_MAX);
        CHECK(l->window <= CTX_MAX);
        CHECK(l->kv_from <= i && from->kv_from == l->kv_from);
        CHECK(from->kind == LAYER_ATTENTION && from->head_dim == l->head_dim);
        CHECK(from->kv_heads == l->kv_heads && from->window == l->window);
        CHECK(l->rope == NO_ROPE || l->rope < c->n_ropes);
        CHECK(l->rope == NO_ROPE || within(c->ropes[l->rope].dims, l->head_dim));
    }
    check_parts(c, experts, delta, conv);
}

/* The tables are finite whatever --ctx is. */
static void check_ropes(const struct model_config *c) {
    static const uint32_t contexts[] = {1, 4096, CTX_MAX};
    CHECK(within(c->n_ropes, ROPES_MAX));
    for (uint32_t i = 0; i < c->n_ropes; i++) {
        const struct rope_config *r = &c->ropes[i];
        double inv_freq[ROPE_PAIRS_MAX];
        bool used = false;
        for (uint32_t l = 0; l < c->n_layers; l++)
            used = used || (c->layers[l].kind == LAYER_ATTENTION && c->layers[l].rope == i);
        if (!used)
            continue;
        CHECK(r->dims % 2 == 0 && within(r->dims, HEAD_DIM_MAX));
        for (size_t j = 0; j < sizeof contexts / sizeof *contexts; j++) {
            float scale = rope_frequencies(r, contexts[j], c->ctx_train, NULL, inv_freq);
            CHECK(isfinite(scale) && scale > 0);
            for (uint32_t p = 0; p < r->dims / 2; p++)
                CHECK(isfinite(inv_freq[p]) && inv_freq[p] >= 0);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct model_config config;
    struct quantization quantization = {0};
    kvasir_error err;
    budget_begin(fuzz_budget(size));
    kvasir_status status = config_parse((const char *)data, size, &config, &quantization, &err);
    check_error(status, &err);
    if (status == KVASIR_OK) {
        check_sizes(&config);
        check_layers(&config);
        check_ropes(&config);
    }
    quantization_deinit(&quantization);
    budget_end();
    return 0;
}
