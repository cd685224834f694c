// SPDX-License-Identifier: Apache-2.0
// attention.cu: which kernels attend to a step's rows. There are two arithmetics. That of
// arithmetic.cuh is computed by decode.cuh and prefill.cuh, for heads of 64, 128 and 256 dims and
// the common page formats; that of plain_attention.cu takes everything else. step.cu (STEP-6) says
// which of them a row has. Pages in other bases than the plain one have passes of their own
// (basis.cu).
#include "backend/cuda/internal.cuh"

PassArgs pass_args(const cuda_backend *b, const attention_op &op, const attention_pass &pass) {
    const uint32_t kv_heads = b->limits.group[op.group].kv_heads;
    return {pass.basis == BASIS_BALANCED ? pass.turned : pass.q,
            pass.out,
            pass.ms,
            pass.basis,
            pass.basis == BASIS_HADAMARD ? pass.factor : 0,
            pass.factor,
            op.scale,
            op.layer,
            op.heads,
            op.heads / kv_heads,
            kv_heads,
            op.q,
            op.centre};
}

static void run_pass(cuda_backend *b, const attention_op &op, const attention_pass &pass) {
    const group_plan &plan = b->plan[op.group];
    const bool fast = plan.k_formats[pass.basis] != 0;
    if (fast && plan.blocks[COUNT_DECODE])
        attention_decode(b, op, pass);
    if (fast && cuda_works(b) && plan.blocks[COUNT_PREFILL])
        attention_prefill(b, op, pass);
    if (cuda_works(b) && plan.blocks[COUNT_PLAIN])
        attention_plain(b, op, pass);
}

void run_attention(cuda_backend *b, const attention_op &op, bool turned) {
    const group_plan &plan = b->plan[op.group];
    const bool several = (plan.bases & (plan.bases - 1)) != 0;
    attention_pass passes[BASIS_COUNT];
    uint32_t n = 0;
    for (uint32_t basis = 0; basis < BASIS_COUNT && cuda_works(b); basis++) {
        if (!(plan.bases >> basis & 1))
            continue;
        attention_pass &pass = passes[n++];
        pass = pass_of(b, op, basis, several);
        // the fast kernels rotate queries themselves
        if (basis == BASIS_BALANCED ? !turned
                                    : basis != BASIS_PLAIN && plan.blocks[COUNT_PLAIN] != 0)
            turn_queries(b, op, pass);
        if (several) { // zeros: rows that no kernel of the pass has see nothing
            pass.ms = b->row_ms[basis];
            cuda_ok(b,
                    cudaMemsetAsync(pass.ms, 0, (size_t)b->step.rows * op.heads * sizeof *pass.ms,
                                    b->stream));
        }
        if (cuda_works(b))
            run_pass(b, op, pass);
    }
    if (cuda_works(b) && several)
        join_passes(b, op, passes, n);
}
