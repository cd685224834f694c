// SPDX-License-Identifier: Apache-2.0
// attention.cu: which kernels attend to a step's rows. There are two arithmetics. That of
// arithmetic.cuh is computed by decode.cu and prefill.cu, for heads of 64, 128 and 256 dims and the
// common page formats; that of plain_attention.cu takes everything else. step.cu (STEP-6) says
// which of them a row has.
#include "backend/cuda/internal.cuh"

void run_attention(cuda_backend *b, const attention_op &op) {
    const group_plan &plan = b->plan[op.group];
    if (plan.blocks[COUNT_DECODE])
        attention_decode(b, op.group, op.layer, op.q, op.heads, op.scale, op.out);
    if (cuda_works(b) && plan.blocks[COUNT_PREFILL])
        attention_prefill(b, op.group, op.layer, op.q, op.heads, op.scale, op.out);
    if (cuda_works(b) && plan.blocks[COUNT_PLAIN])
        attention_plain(b, op);
}
