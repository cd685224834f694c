/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_keys.c: reads keys of GGUF's metadata, for gguf_config.c and the families' gguf_read(). */
#include <stdio.h>

#include "model/family.h"

/* ---- keys ------------------------------------------------------------------------------------ */

/* Keys that change the arithmetic of the forward pass unless their value is one of these two. */
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
    /* softmax over all experts or over the chosen ones: the same after division by their sum */
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
    ASSERT(k->blocks <= LAYERS_MAX);
    return gguf_get_u32s(k->g, gguf_key_name(k, name), k->blocks, required, min, max, out, k->err);
}

/* k->key: neither it nor its inverse or square leaves float32. */
kvasir_status gguf_key_factor(struct gguf_keys *k, bool required, double *out) {
    double x = 1;
    TRY(gguf_get_double(k->g, k->key, required, &x, k->err));
    const struct gguf_value *v = gguf_find(k->g, k->key);
    if (!v)
        return KVASIR_OK;
    if (!(x >= 1e-15 && x <= 1e15))
        return fail_at(k->err, KVASIR_ERR_FORMAT, v->offset,
                       "metadata %s is %g, must be from 1e-15 to 1e15", k->key, x);
    *out = x;
    return KVASIR_OK;
}

kvasir_status gguf_key_double(struct gguf_keys *k, const char *name, double *out) {
    const struct gguf_value *v = gguf_find(k->g, gguf_key_name(k, name));
    double x;
    if (v && (v->type == GGUF_F32 || v->type == GGUF_F64) && gguf_number(v, &x) && x >= 0 && x <= 0)
        return KVASIR_OK;
    return gguf_key_factor(k, false, out);
}

kvasir_status gguf_key_float(struct gguf_keys *k, const char *name, float *out) {
    double x = (double)*out;
    TRY(gguf_key_double(k, name, &x));
    *out = (float)x;
    return KVASIR_OK;
}

kvasir_status gguf_refuse_arithmetic(struct gguf_keys *k, const struct model_config *c) {
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
    const uint32_t widest = 2 * c->moe.dim > c->dim ? 2 * c->moe.dim : c->dim;
    if ((uint64_t)c->moe.n * widest > UINT32_MAX) /* rows of all of them are counted in 32 bits */
        return fail(k->err, KVASIR_ERR_UNSUPPORTED, "metadata %s: %u experts of %u are too many",
                    k->key, c->moe.n, c->moe.dim);
    c->moe.normalize = true;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].experts = true;
    return KVASIR_OK;
}

kvasir_status gguf_value_length(struct gguf_keys *k, const char *name, uint32_t key_length) {
    uint32_t length = key_length;
    TRY(gguf_key_u32(k, name, false, 1, DIM_MAX, &length));
    return length == key_length
               ? KVASIR_OK
               : fail(k->err, KVASIR_ERR_UNSUPPORTED,
                      "metadata %s is %u, must be the key's length %u", k->key, length, key_length);
}

/* Stacks [experts][n][k], also if Hugging Face has a tensor per expert. */
const struct gguf_name gguf_expert_names[] = {
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.gate_proj"},
    {"ffn_up_exps", "mlp.experts.up_proj"},
    {"ffn_down_exps", "mlp.experts.down_proj"},
    {"ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {NULL, NULL},
};
