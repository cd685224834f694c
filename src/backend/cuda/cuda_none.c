/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_none.c: what is linked where CUDA is not built.
 *
 * cuda_create is the only way to a struct cuda_backend, and here it gives none: no other function
 * of cuda.h can be called, so none is defined. (What engine/ will see calls them through a table;
 * until then only opcheck calls them.)
 */
#include "backend/cuda/cuda.h"

kvasir_status cuda_create(struct cuda_backend **out, kvasir_error *err) {
    *out = NULL;
    return fail(err, KVASIR_ERR_UNSUPPORTED,
                "this build has no CUDA: it is made with `make cuda`, where nvcc is installed");
}
