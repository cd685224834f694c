// SPDX-License-Identifier: Apache-2.0
// attention.cu: which kernels attend to a step's rows. The arithmetic is in arithmetic.cuh.
#include "backend/cuda/internal.cuh"

void cuda_attention(struct backend *base, const struct batch *batch, const struct kv_view *views,
                    uint32_t layer, const float *q, const struct attention_args *args, float *out) {
    cuda_backend *b = cuda_of(base);
    uint32_t group;
    if (!operation_begins(b, batch, views, layer, &group))
        return;
    // blocks and scratch were made for the limits' heads
    ASSERT(args->heads == b->limits.group[group].heads);
    if (args->softcap != 0 || args->sinks) {
        kvasir_error err;
        fail(&err, KVASIR_ERR_UNSUPPORTED, "CUDA: attention with %s is not supported",
             args->sinks ? "sinks" : "a soft cap");
        cuda_stick(b, &err);
    }
    if (cuda_works(b) && b->plan[group].blocks[COUNT_DECODE])
        attention_decode(b, group, layer, q, args->heads, args->scale, out);
    if (cuda_works(b) && b->plan[group].blocks[COUNT_PREFILL])
        attention_prefill(b, group, layer, q, args->heads, args->scale, out);
}
