/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of the two AVX-512 tiers in the kernel table. Owns nothing, decides nothing: whether
 * the machine has a tier is kernels_select's question. The tier with VNNI comes on top of the other
 * and names only what it does with other instructions.
 */
#include "backend/cpu/avx512/avx512.h"

static void set_products(struct kernels *k, product_fn *codes) {
    const struct weight_traits *t;
    for (uint32_t i = 0; (t = weight_traits_at(i)); i++)
        k->product[i] = t->run_values > 0 ? codes : avx512_product_float;
}

void kernels_init_avx512(struct kernels *k) {
    k->tier = CPU_TIER_AVX512;
    k->query_pack = avx512_query_pack;
    k->score_affine = avx512_score_affine;
    k->score_exact = avx512_score_exact;
    k->centre_tile = avx512_centre_tile;
    k->value_affine = avx512_value_affine;
    k->value_exact = avx512_value_exact;
    k->softmax_run = avx512_softmax_run;
    k->encode_row = avx512_encode_row;
    k->act_pack = avx512_act_pack;
    set_products(k, avx512_product_codes);
    k->rms_norm = avx512_rms_norm;
    k->rope = avx512_rope;
    k->gate_mul[GATE_SILU] = avx512_gate_silu;
    k->gate_mul[GATE_GELU_TANH] = avx512_gate_gelu_tanh;
    k->gate_mul[GATE_SIGMOID] = avx512_gate_sigmoid;
    k->gate_mul[GATE_SWIGLU_CLAMPED] = avx512_gate_swiglu_clamped;
    k->add = avx512_add;
    k->scale = avx512_scale;
    k->softcap = avx512_softcap;
    k->short_conv = avx512_short_conv;
    k->delta_step = avx512_delta_step;
}

void kernels_init_avx512vnni(struct kernels *k) {
    k->tier = CPU_TIER_AVX512VNNI;
    k->query_pack = avx512vnni_query_pack;
    k->score_affine = avx512vnni_score_affine;
    k->value_affine = avx512vnni_value_affine;
    set_products(k, avx512vnni_product_codes);
}
