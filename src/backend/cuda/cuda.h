/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend: how it is created. All else goes through its table (backend/backend.h). Only
 * builds with KVASIR_CUDA contain it (`make cuda`).
 */
#ifndef KVASIR_BACKEND_CUDA_H
#define KVASIR_BACKEND_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "backend/backend.h"

struct backend_cuda_options {
    int device; /* CUDA's number of it */
    /* 8 or 16: bits that activations are rounded to before a product with quantized weights */
    int act_bits;
};
/* KVASIR_ERR_UNSUPPORTED: there is no such device, or its compute capability is below 8.0. */
kvasir_status backend_cuda_create(struct backend **out, const struct backend_cuda_options *options,
                                  kvasir_error *err) MUST_CHECK;

/* How many devices the driver lists; 0: none, or there is no driver. */
int backend_cuda_devices(void);

#ifdef __cplusplus
}
#endif

#endif
