/* SPDX-License-Identifier: Apache-2.0 */
/* Constants that backends and their kernels share. Apart from backend.h so that an edit of the
 * contract does not recompile every kernel. */
#ifndef KVASIR_BACKEND_SHAPES_H
#define KVASIR_BACKEND_SHAPES_H

#include "quant/quant.h"
#include "util/util.h"

enum {
    /* Tokens of a split on CPUs: maxima, sums and weights of attention are computed per split, and
     * splits are merged in order. */
    SPLIT_TOKENS = 512,
    HEAD_DIM_MAX = 512,
    GQA_MAX = 16, /* query heads a KV head may serve */
};

/* What a gate does to its input x before it is multiplied. */
enum gate_kind {
    GATE_NONE,      /* x */
    GATE_SILU,      /* x sigmoid(x) */
    GATE_GELU_TANH, /* x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */
    GATE_SIGMOID,
    /* gpt_oss: x = min(x, 7), x sigmoid(1.702 x), times clamp(up, -7, 7) + 1 */
    GATE_SWIGLU_CLAMPED,
    GATE_KINDS
};
enum { SWIGLU_LIMIT = 7 }; /* of GATE_SWIGLU_CLAMPED */

/* ---- bases of rows (struct key_basis of backend.h; page_layout.c) ---------------------------- */

/* y = x . matrix for one row of one head. The definition, in double. */
void key_basis_apply(const float *matrix, uint32_t head_dim, const float *x, float *y);
/* x = H x for one row of one head: H is orthonormal and its own inverse. Where head_dim is no power
 * of two, its largest power of two as a factor is the size of the blocks that are rotated. One
 * order of additions, and one rounding each: the same bits on every machine. */
void hadamard_rotate(float *x, uint32_t head_dim);

#endif
