/* SPDX-License-Identifier: Apache-2.0 */
/* ref.h: what the files of ref/ share: their kernels, and how a value becomes a code.
 *
 * ref/ is the arithmetic of kernels.h written down: integer dots exact, float sums in double, one
 * rounding at the end. It does not depend on the storage order (tiles are read through quant/) and
 * is not meant to be fast.
 */
#ifndef KVASIR_CPU_REF_H
#define KVASIR_CPU_REF_H

#include <math.h>

#include "backend/cpu/kernels.h"

query_pack_fn query_pack_ref;
score_tile_fn score_affine_ref, score_exact_ref, score_channels_ref;
basis_rows_fn basis_rows_ref;
hadamard_rows_fn hadamard_rows_ref;
centre_tile_fn centre_tile_ref;
value_tile_fn value_affine_ref, value_exact_ref;
softmax_run_fn softmax_run_ref;
encode_row_fn encode_row_ref;
encode_tile_fn encode_tile_ref;
act_pack_fn act_pack_ref;
product_fn product_float_ref, product_quant_ref;
rms_norm_fn rms_norm_ref;
rope_fn rope_ref;
gate_mul_fn gate_none_ref, gate_silu_ref, gate_gelu_tanh_ref, gate_sigmoid_ref,
    gate_swiglu_clamped_ref;
add_fn add_ref;
scale_fn scale_ref;
softcap_fn softcap_ref;
short_conv_fn short_conv_ref;
delta_step_fn delta_step_ref;

/* max|x|; NaN if x holds one. */
static inline float magnitude(const float *x, uint32_t n) {
    float m = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (isnan(x[i]))
            return x[i];
        m = fmaxf(m, fabsf(x[i]));
    }
    return m;
}

static inline int to_code(float x, struct rounding r) {
    return r.per_unit == 0 ? 0 : (int)rintf(x * r.per_unit);
}

#endif
