/* SPDX-License-Identifier: Apache-2.0 */
/* init.c: the tier's entries of the kernel table. Entries that it does not name keep what the tier
 * below put there.
 */
#include "backend/cpu/simd/simd.h"

void TIER(kernels_init)(struct kernels *k) {
    k->query_pack = TIER(query_pack);
    k->score_affine = TIER(score_affine);
    k->score_exact = TIER(score_exact);
    k->score_channels = TIER(score_channels);
    k->centre_tile = TIER(centre_tile);
    k->value_affine = TIER(value_affine);
    k->value_exact = TIER(value_exact);
    k->softmax_run = TIER(softmax_run);
    k->encode_row = TIER(encode_row);
    k->encode_tile = TIER(encode_tile);
    k->basis_rows = TIER(basis_rows);
    k->hadamard_rows = TIER(hadamard_rows);
    k->act_pack = TIER(act_pack);
    k->product[weight_index(WEIGHT_F32)] = TIER(product_float);
    k->product[weight_index(WEIGHT_F16)] = TIER(product_float);
    k->product[weight_index(WEIGHT_BF16)] = TIER(product_float);
#if defined(HAVE_E4M3)
    k->product[weight_index(WEIGHT_F8_E4M3)] = TIER(product_float);
#endif
    TIER(set_products)(k);
    k->rms_norm = TIER(rms_norm);
    k->rope = TIER(rope);
    k->gate_mul[GATE_SILU] = TIER(gate_silu);
    k->gate_mul[GATE_GELU_TANH] = TIER(gate_gelu_tanh);
    k->gate_mul[GATE_SIGMOID] = TIER(gate_sigmoid);
    k->gate_mul[GATE_SWIGLU_CLAMPED] = TIER(gate_swiglu_clamped);
    k->add = TIER(add);
    k->scale = TIER(scale);
    k->softcap = TIER(softcap);
    k->short_conv = TIER(short_conv);
    k->delta_step = TIER(delta_step);
}
