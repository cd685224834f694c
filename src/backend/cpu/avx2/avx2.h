/* SPDX-License-Identifier: Apache-2.0 */
/* avx2/: the kernels of the AVX2 + FMA + F16C tier (no VNNI, no AVX-512). Files of this folder are
 * the only ones compiled with -mavx2 -mfma -mf16c, and nothing of them runs before cpu_tier_detect
 * said that it may.
 *
 *   query.c        query_pack, softmax_run
 *   affine.c       score and value over tiles of codes, any bits
 *   exact.c        score and value over f16, bf16 and f32 tiles
 *   centre.c       what centred keys add to scores
 *   encode.c       encode_row
 *   act_pack.c     act_pack
 *   product_quant.c, product_float.c
 *                  the matrix products; product*.h are theirs
 *   elementwise.c  rms_norm, rope, gate_mul, add, scale, softcap
 *   recurrent.c    short_conv, delta_step; gates.h is what the two share
 *   init.c         puts all of them into the table
 *
 * What holds in every file:
 *   - Intrinsics, and no contraction: the float arithmetic of a row is what is written, in that
 *     order, from gcc and clang, and does not depend on the rows beside it.
 *   - A kernel reads and writes only what its shape says (kcheck has guard pages behind buffers).
 *   - The 16-bit codes of queries and probabilities lie in the order 0 2 1 3 inside each run of
 *     four: the words of a vector of bytes are v & 0x00ff, elements 0 and 2 of each 32-bit lane,
 *     and v >> 8, elements 1 and 3.
 */
#ifndef KVASIR_CPU_AVX2_H
#define KVASIR_CPU_AVX2_H

#include "backend/cpu/kernels.h"

query_pack_fn avx2_query_pack;
softmax_run_fn avx2_softmax_run;
score_tile_fn avx2_score_affine, avx2_score_exact;
centre_tile_fn avx2_centre_tile;
value_tile_fn avx2_value_affine, avx2_value_exact;
encode_row_fn avx2_encode_row;

act_pack_fn avx2_act_pack;
product_fn avx2_product_f32, avx2_product_f16, avx2_product_bf16, avx2_product_f8_e4m3;
product_fn avx2_product_q4_0, avx2_product_q4_1, avx2_product_q5_0, avx2_product_q5_1,
    avx2_product_q8_0, avx2_product_iq4_nl, avx2_product_mxfp4;
product_fn avx2_product_q2_k, avx2_product_q3_k, avx2_product_q4_k, avx2_product_q5_k,
    avx2_product_q6_k, avx2_product_q8_k, avx2_product_iq4_xs;
product_fn avx2_product_affine2, avx2_product_affine3, avx2_product_affine4, avx2_product_affine5,
    avx2_product_affine6, avx2_product_affine8, avx2_product_mxfp4_mlx;
rms_norm_fn avx2_rms_norm;
rope_fn avx2_rope;
gate_mul_fn avx2_gate_silu, avx2_gate_gelu_tanh, avx2_gate_sigmoid, avx2_gate_swiglu_clamped;
add_fn avx2_add;
scale_fn avx2_scale;
softcap_fn avx2_softcap;
short_conv_fn avx2_short_conv;
delta_step_fn avx2_delta_step;

#endif
