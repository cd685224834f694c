/* SPDX-License-Identifier: Apache-2.0 */
/* The AVX2 tier's entries of the kernel table. Owns nothing, decides nothing: whether the machine
 * has the tier is kernels_select's question. Entries that this tier does not name keep what ref/
 * put there.
 */
#include "backend/cpu/avx2/avx2.h"

void kernels_init_avx2(struct kernels *k) {
    k->tier = CPU_TIER_AVX2;
    k->query_pack = avx2_query_pack;
    k->score_affine = avx2_score_affine;
    k->score_exact = avx2_score_exact;
    k->centre_tile = avx2_centre_tile;
    k->value_affine = avx2_value_affine;
    k->value_exact = avx2_value_exact;
    k->softmax_run = avx2_softmax_run;
    k->encode_row = avx2_encode_row;
    k->act_pack = avx2_act_pack;
    k->product[weight_index(WEIGHT_F32)] = avx2_product_f32;
    k->product[weight_index(WEIGHT_F16)] = avx2_product_f16;
    k->product[weight_index(WEIGHT_BF16)] = avx2_product_bf16;
    k->product[weight_index(WEIGHT_F8_E4M3)] = avx2_product_f8_e4m3;
    k->product[weight_index(WEIGHT_Q4_0)] = avx2_product_q4_0;
    k->product[weight_index(WEIGHT_Q4_1)] = avx2_product_q4_1;
    k->product[weight_index(WEIGHT_Q5_0)] = avx2_product_q5_0;
    k->product[weight_index(WEIGHT_Q5_1)] = avx2_product_q5_1;
    k->product[weight_index(WEIGHT_Q8_0)] = avx2_product_q8_0;
    k->product[weight_index(WEIGHT_IQ4_NL)] = avx2_product_iq4_nl;
    k->product[weight_index(WEIGHT_MXFP4)] = avx2_product_mxfp4;
    k->product[weight_index(WEIGHT_Q2_K)] = avx2_product_q2_k;
    k->product[weight_index(WEIGHT_Q3_K)] = avx2_product_q3_k;
    k->product[weight_index(WEIGHT_Q4_K)] = avx2_product_q4_k;
    k->product[weight_index(WEIGHT_Q5_K)] = avx2_product_q5_k;
    k->product[weight_index(WEIGHT_Q6_K)] = avx2_product_q6_k;
    k->product[weight_index(WEIGHT_Q8_K)] = avx2_product_q8_k;
    k->product[weight_index(WEIGHT_IQ4_XS)] = avx2_product_iq4_xs;
    k->product[weight_index(WEIGHT_AFFINE2)] = avx2_product_affine2;
    k->product[weight_index(WEIGHT_AFFINE3)] = avx2_product_affine3;
    k->product[weight_index(WEIGHT_AFFINE4)] = avx2_product_affine4;
    k->product[weight_index(WEIGHT_AFFINE5)] = avx2_product_affine5;
    k->product[weight_index(WEIGHT_AFFINE6)] = avx2_product_affine6;
    k->product[weight_index(WEIGHT_AFFINE8)] = avx2_product_affine8;
    k->product[weight_index(WEIGHT_MXFP4_MLX)] = avx2_product_mxfp4_mlx;
    k->rms_norm = avx2_rms_norm;
    k->rope = avx2_rope;
    k->gate_mul[GATE_SILU] = avx2_gate_silu;
    k->gate_mul[GATE_GELU_TANH] = avx2_gate_gelu_tanh;
    k->gate_mul[GATE_SIGMOID] = avx2_gate_sigmoid;
    k->gate_mul[GATE_SWIGLU_CLAMPED] = avx2_gate_swiglu_clamped;
    k->add = avx2_add;
    k->scale = avx2_scale;
    k->softcap = avx2_softcap;
    k->short_conv = avx2_short_conv;
    k->delta_step = avx2_delta_step;
}
