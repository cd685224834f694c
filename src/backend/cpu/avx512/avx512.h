/* SPDX-License-Identifier: Apache-2.0 */
/* avx512/: the kernels of two tiers, AVX-512 (F, BW, DQ, VL, CD) and AVX-512 with VNNI. Nothing of
 * this folder runs before cpu_tier_detect said that it may.
 *
 *   compiled once, for both tiers
 *     softmax.c      softmax_run
 *     exact.c        score and value over f16, bf16 and f32 tiles
 *     centre.c       what centred keys add to scores
 *     encode.c       encode_row
 *     act_pack.c     act_pack
 *     product_float.c
 *                    products with float weights
 *     elementwise.c  rms_norm, rope, gate_mul, add, scale, softcap
 *     recurrent.c    short_conv, delta_step; gates.h is what the two share
 *     init.c         puts all of them into the table
 *
 *   compiled twice, the second time with -mavx512vnni and KVASIR_AVX512VNNI defined: TIER(name) is
 *   the name of a kernel that has two versions, and the few primitives that differ are at the end
 *   of vector.h
 *     query.c        query_pack
 *     affine.c       score and value over tiles of codes, any bits
 *     product_codes.c, unpack_*.c
 *                    products with quantized weights; product.h draws what types are unpacked to
 *
 * What holds in every file is what holds in avx2/: intrinsics and no contraction, the float
 * arithmetic of a row in the order written, whatever rows stand beside it; reads and writes of what
 * the shapes say and nothing else. Masked loads do not touch what they leave out.
 */
#ifndef KVASIR_CPU_AVX512_H
#define KVASIR_CPU_AVX512_H

#include "backend/cpu/kernels.h"

#ifdef KVASIR_AVX512VNNI
#define TIER(name) avx512vnni_##name
#else
#define TIER(name) avx512_##name
#endif

softmax_run_fn avx512_softmax_run;
score_tile_fn avx512_score_exact;
value_tile_fn avx512_value_exact;
centre_tile_fn avx512_centre_tile;
encode_row_fn avx512_encode_row;
act_pack_fn avx512_act_pack;
product_fn avx512_product_float;
rms_norm_fn avx512_rms_norm;
rope_fn avx512_rope;
gate_mul_fn avx512_gate_silu, avx512_gate_gelu_tanh, avx512_gate_sigmoid,
    avx512_gate_swiglu_clamped;
add_fn avx512_add;
scale_fn avx512_scale;
softcap_fn avx512_softcap;
short_conv_fn avx512_short_conv;
delta_step_fn avx512_delta_step;

query_pack_fn avx512_query_pack, avx512vnni_query_pack;
score_tile_fn avx512_score_affine, avx512vnni_score_affine;
value_tile_fn avx512_value_affine, avx512vnni_value_affine;
product_fn avx512_product_codes, avx512vnni_product_codes;

#endif
