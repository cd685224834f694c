// SPDX-License-Identifier: Apache-2.0
// error.cu: the first error sticks. Everything else in this folder uses it.
#include "backend/cuda/internal.cuh"

void cuda_stick(cuda_backend *b, const kvasir_error *e) {
    ASSERT(e->code != KVASIR_OK);
    if (b->error.code == KVASIR_OK)
        b->error = *e;
}

bool cuda_ok(cuda_backend *b, cudaError_t e) {
    if (e != cudaSuccess) {
        (void)cudaGetLastError(); // the runtime keeps it too, and would give it to the next launch
        kvasir_error err;
        fail(&err, e == cudaErrorMemoryAllocation ? KVASIR_ERR_MEMORY : KVASIR_ERR_IO,
             "CUDA: %s (%s)", cudaGetErrorString(e), cudaGetErrorName(e));
        cuda_stick(b, &err);
    }
    return cuda_works(b);
}

kvasir_status cuda_status(const cuda_backend *b, kvasir_error *err) {
    if (err && !cuda_works(b))
        *err = b->error;
    return b->error.code;
}
