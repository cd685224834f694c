/* SPDX-License-Identifier: Apache-2.0 */
/* ref/encode.c: storing a token or a tile, by the definition itself, and the table of this tier. */
#include "backend/cpu/ref/ref.h"

void encode_row_ref(const struct tile_layout *l, void *tile, uint32_t token, const float *x) {
    tile_encode_row(l, tile, token, x);
}

void encode_tile_ref(const struct tile_layout *l, void *tile, const struct tile_layout *from,
                     const void *shadow) {
    float rows[TILE_TOKENS * HEAD_DIM_MAX];
    ASSERT(from->format.bits == 16 && from->kind == l->kind && from->head_dim == l->head_dim);
    for (uint32_t t = 0; t < TILE_TOKENS; t++)
        tile_decode_row(from, shadow, t, rows + (size_t)t * l->head_dim);
    tile_encode(l, tile, rows);
}

void kernels_init_ref(struct kernels *k) {
    *k = (struct kernels){
        .tier = CPU_TIER_REF,
        .query_pack = query_pack_ref,
        .score_affine = score_affine_ref,
        .score_exact = score_exact_ref,
        .score_channels = score_channels_ref,
        .centre_tile = centre_tile_ref,
        .value_affine = value_affine_ref,
        .value_exact = value_exact_ref,
        .softmax_run = softmax_run_ref,
        .encode_row = encode_row_ref,
        .encode_tile = encode_tile_ref,
        .basis_rows = basis_rows_ref,
        .hadamard_rows = hadamard_rows_ref,
        .act_pack = act_pack_ref,
        .rms_norm = rms_norm_ref,
        .rope = rope_ref,
        .gate_mul = {[GATE_NONE] = gate_none_ref,
                     [GATE_SILU] = gate_silu_ref,
                     [GATE_GELU_TANH] = gate_gelu_tanh_ref,
                     [GATE_SIGMOID] = gate_sigmoid_ref,
                     [GATE_SWIGLU_CLAMPED] = gate_swiglu_clamped_ref},
        .add = add_ref,
        .scale = scale_ref,
        .softcap = softcap_ref,
        .short_conv = short_conv_ref,
        .delta_step = delta_step_ref,
    };
    const struct weight_traits *t;
    for (uint32_t i = 0; (t = weight_traits_at(i)); i++)
        k->product[i] = t->run_values ? product_quant_ref : product_float_ref;
}
