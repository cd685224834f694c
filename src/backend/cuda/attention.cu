// SPDX-License-Identifier: Apache-2.0
// attention.cu: which kernels attend to a step's rows. There are two arithmetics. That of
// arithmetic.cuh is computed by decode.cu and prefill.cu, for heads of 64, 128 and 256 dims and the
// common page formats; that of plain_attention.cu takes everything else. step.cu (STEP-6) says
// which of them a row has.
#include "backend/cuda/internal.cuh"

void cuda_attention(struct backend *base, const struct batch *batch, const struct kv_view *views,
                    uint32_t layer, const float *q, const struct attention_args *args, float *out) {
    cuda_backend *b = cuda_of(base);
    uint32_t group;
    if (!operation_begins(b, batch, views, layer, &group))
        return;
    // blocks and scratch were made for the limits' heads
    ASSERT(args->heads == b->limits.group[group].heads);
    if ((args->softcap != 0 || args->sinks) && !b->limits.group[group].softcap_or_sinks) {
        kvasir_error err;
        fail(&err, KVASIR_ERR_ARGUMENT,
             "CUDA: attention with %s in layer group %u, which was reserved without",
             args->sinks ? "sinks" : "a soft cap", group);
        cuda_stick(b, &err);
    }
    if (cuda_works(b) && b->plan[group].blocks[COUNT_DECODE])
        attention_decode(b, group, layer, q, args->heads, args->scale, out);
    if (cuda_works(b) && b->plan[group].blocks[COUNT_PREFILL])
        attention_prefill(b, group, layer, q, args->heads, args->scale, out);
    if (cuda_works(b) && b->plan[group].blocks[COUNT_PLAIN])
        attention_plain(b, group, layer, centre_find(b, views[0].centre), q, *args, out);
}
