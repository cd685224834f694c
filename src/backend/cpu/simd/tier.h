/* SPDX-License-Identifier: Apache-2.0 */
/* tier.h: what a file of a CPU tier sees first: which tier it is compiled for and the kernels that
 * every tier defines.
 *
 * A tier is one object library (CMakeLists.txt): all files of simd/ and of one folder of
 * instructions, compiled with the tier's flags and one definition:
 *
 *     avx2         simd/, avx2/     KVASIR_AVX2
 *     avx512       simd/, avx512/   KVASIR_AVX512
 *     avx512vnni   simd/, avx512/   KVASIR_AVX512VNNI
 *     amx          amx/             KVASIR_AVX512VNNI: that tier's kernels but for its own
 *     neon         simd/, neon/     KVASIR_NEON
 *     neondot      simd/, neon/     KVASIR_NEONDOT
 *
 * Nothing of a tier runs before cpu_tier_detect has found its instructions on this machine.
 *
 * What holds in every file:
 *   - No contraction: the float arithmetic of a row is what is written, in that order, from gcc and
 *     clang, and does not depend on other rows of the call.
 *   - A kernel reads and writes only what its shape says (kcheck puts guard pages around buffers).
 */
#ifndef KVASIR_CPU_SIMD_TIER_H
#define KVASIR_CPU_SIMD_TIER_H

#include <string.h>

#include "backend/cpu/kernels.h"

#if defined(KVASIR_AVX2)
#define TIER(name) avx2_##name
#elif defined(KVASIR_AVX512)
#define TIER(name) avx512_##name
#elif defined(KVASIR_AVX512VNNI)
#define TIER(name) avx512vnni_##name
#elif defined(KVASIR_NEONDOT)
#define TIER(name) neondot_##name
#else
#define TIER(name) neon_##name
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* for (int i = 0; i < n; i++), unrolled at every level of optimisation, because the vectors that it
 * indexes have to be registers; always with braces. */
#if defined(__clang__)
#define UNROLL_FOR(i, n) _Pragma("clang loop unroll(full)") for (int i = 0; i < (n); i++)
#else
#define UNROLL_FOR(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#endif

/* Inputs of a product whose activations share a scale. */
enum { ACT_BLOCK = 32 };

/* simd/ */
query_pack_fn TIER(query_pack);
score_tile_fn TIER(score_exact);
value_tile_fn TIER(value_exact);
centre_tile_fn TIER(centre_tile);
softmax_run_fn TIER(softmax_run);
encode_row_fn TIER(encode_row);
encode_tile_fn TIER(encode_tile);
basis_rows_fn TIER(basis_rows);
hadamard_rows_fn TIER(hadamard_rows);
act_pack_fn TIER(act_pack);
product_fn TIER(product_float);
rms_norm_fn TIER(rms_norm);
rope_fn TIER(rope);
gate_mul_fn TIER(gate_silu), TIER(gate_gelu_tanh), TIER(gate_sigmoid), TIER(gate_swiglu_clamped);
add_fn TIER(add);
scale_fn TIER(scale);
softcap_fn TIER(softcap);
short_conv_fn TIER(short_conv);
delta_step_fn TIER(delta_step);

/* Query rows times the scales of a tile's channels, as codes in the tier's order. */
enum { CHANNEL_ROWS = 64 };
struct channel_queries {
    int16_t codes[CHANNEL_ROWS * HEAD_DIM_MAX]; /* [row][dim] */
    float scale[CHANNEL_ROWS], bias_sum[CHANNEL_ROWS];
};
/* q: [rows][dim]; rows <= CHANNEL_ROWS */
void TIER(channel_pack)(const struct tile_layout *l, const void *tile, const float *q,
                        uint32_t rows, struct channel_queries *out);

/* the tier's folder */
score_tile_fn TIER(score_affine), TIER(score_channels);
value_tile_fn TIER(value_affine);
/* Puts the products of quantized weights that the tier has into the table. */
void TIER(set_products)(struct kernels *k);

#endif
