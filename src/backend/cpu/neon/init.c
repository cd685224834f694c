/* SPDX-License-Identifier: Apache-2.0 */
/* The NEON tiers' entries of the kernel table. Owns nothing, decides nothing: whether the machine
 * has a tier is kernels_select's question. Entries that a tier does not name keep what the one
 * below put there: neon stands on ref/, neondot on neon.
 */
#include "backend/cpu/neon/neon.h"

void kernels_init_neon(struct kernels *k) {
    k->tier = CPU_TIER_NEON;
    k->query_pack = neon_query_pack;
    k->score_affine = neon_score_affine;
    k->score_exact = neon_score_exact;
    k->centre_tile = neon_centre_tile;
    k->value_affine = neon_value_affine;
    k->value_exact = neon_value_exact;
    k->softmax_run = neon_softmax_run;
    k->encode_row = neon_encode_row;
    k->act_pack = neon_act_pack;
    k->product[weight_index(WEIGHT_F32)] = neon_product_f32;
    k->product[weight_index(WEIGHT_F16)] = neon_product_f16;
    k->product[weight_index(WEIGHT_BF16)] = neon_product_bf16;
    k->product[weight_index(WEIGHT_Q4_0)] = neon_product_q4_0;
    k->product[weight_index(WEIGHT_Q4_1)] = neon_product_q4_1;
    k->product[weight_index(WEIGHT_Q8_0)] = neon_product_q8_0;
    k->product[weight_index(WEIGHT_AFFINE4)] = neon_product_affine4;
    k->product[weight_index(WEIGHT_AFFINE8)] = neon_product_affine8;
    k->rms_norm = neon_rms_norm;
    k->rope = neon_rope;
    k->gate_mul[GATE_SILU] = neon_gate_silu;
    k->gate_mul[GATE_GELU_TANH] = neon_gate_gelu_tanh;
    k->gate_mul[GATE_SIGMOID] = neon_gate_sigmoid;
    k->gate_mul[GATE_SWIGLU_CLAMPED] = neon_gate_swiglu_clamped;
    k->add = neon_add;
    k->scale = neon_scale;
    k->softcap = neon_softcap;
    k->short_conv = neon_short_conv;
    k->delta_step = neon_delta_step;
}

void kernels_init_neondot(struct kernels *k) {
    k->tier = CPU_TIER_NEONDOT;
    k->score_affine = neondot_score_affine;
    k->value_affine = neondot_value_affine;
    k->product[weight_index(WEIGHT_Q4_0)] = neondot_product_q4_0;
    k->product[weight_index(WEIGHT_Q4_1)] = neondot_product_q4_1;
    k->product[weight_index(WEIGHT_Q8_0)] = neondot_product_q8_0;
    k->product[weight_index(WEIGHT_AFFINE4)] = neondot_product_affine4;
    k->product[weight_index(WEIGHT_AFFINE8)] = neondot_product_affine8;
}
