/* SPDX-License-Identifier: Apache-2.0 */
/* neon/: the kernels of two tiers, `neon` (Armv8-A) and `neondot` (Armv8.2-A's dot products).
 *
 *   query.c        query_pack, softmax_run
 *   affine.c       score and value over tiles of codes, any bits                      both tiers
 *   exact.c        score and value over f16, bf16 and f32 tiles
 *   centre.c       centre_tile
 *   encode.c       encode_row
 *   act.c          act_pack
 *   product_quant.c                                                                   both tiers
 *   product_float.c
 *                  the matrix products
 *   elementwise.c  rms_norm, rope, gate_mul, add, scale, softcap
 *   recurrent.c    short_conv, delta_step; gates.h is what the two share
 *   dot.h          exact integer dots of both tiers: all that they do differently
 *   init.c         puts all of them into the table
 *
 * Files marked "both tiers" are compiled twice: as they are, and with KVASIR_NEONDOT and the flags
 * of Armv8.2-A, which gives their functions another prefix. neondot is neon with these overridden.
 * The float arithmetic of the two is the same, so are their bits.
 *
 * What holds in every file:
 *   - Intrinsics, and no contraction: the float arithmetic of a row is what is written, in that
 *     order, from gcc and clang, and does not depend on the rows beside it.
 *   - A kernel reads and writes only what its shape says (kcheck has guard pages behind buffers).
 *   - Codes of queries, probabilities and activations lie in natural order.
 */
#ifndef KVASIR_CPU_NEON_H
#define KVASIR_CPU_NEON_H

#include "backend/cpu/kernels.h"

query_pack_fn neon_query_pack;
softmax_run_fn neon_softmax_run;
centre_tile_fn neon_centre_tile;
score_tile_fn neon_score_affine, neondot_score_affine, neon_score_exact;
value_tile_fn neon_value_affine, neondot_value_affine, neon_value_exact;
encode_row_fn neon_encode_row;

act_pack_fn neon_act_pack;
product_fn neon_product_f32, neon_product_f16, neon_product_bf16;
product_fn neon_product_q4_0, neon_product_q4_1, neon_product_q8_0;
product_fn neon_product_affine4, neon_product_affine8;
product_fn neondot_product_q4_0, neondot_product_q4_1, neondot_product_q8_0;
product_fn neondot_product_affine4, neondot_product_affine8;
rms_norm_fn neon_rms_norm;
rope_fn neon_rope;
gate_mul_fn neon_gate_silu, neon_gate_gelu_tanh, neon_gate_sigmoid, neon_gate_swiglu_clamped;
add_fn neon_add;
scale_fn neon_scale;
softcap_fn neon_softcap;
short_conv_fn neon_short_conv;
delta_step_fn neon_delta_step;

/* The name of a function that each tier has for itself. */
#ifdef KVASIR_NEONDOT
#define TIER(name) neondot_##name
#else
#define TIER(name) neon_##name
#endif

#endif
