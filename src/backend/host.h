/* SPDX-License-Identifier: Apache-2.0 */
/* Members of a table for backends whose device is the host: buffers and weights are used in place,
 * and every call has finished when it returns. */
#ifndef KVASIR_BACKEND_HOST_H
#define KVASIR_BACKEND_HOST_H

#include "backend/backend.h"

kvasir_status host_flush(struct backend *b, kvasir_error *err);
void *host_alloc(struct backend *b, size_t bytes);
void host_free(struct backend *b, void *p);
const void *host_upload(struct backend *b, const void *host, size_t bytes);
void host_upload_free(struct backend *b, const void *device);
kvasir_status host_read(struct backend *b, void *host, const void *device, size_t bytes,
                        kvasir_error *err);
kvasir_status host_fetch(struct backend *b, const void *device, size_t bytes, const void **out,
                         kvasir_error *err);
void host_write(struct backend *b, void *device, const void *host, size_t bytes);
kvasir_status host_weight_put(struct backend *b, const struct weight *w,
                              const struct backend_weight **out, kvasir_error *err);
void host_weight_drop(struct backend *b, const struct backend_weight *w);

/* All but read and write: the null backend, which has no bytes, has its own; and but weight_put:
 * the CPU's places weights. */
#define HOST_MEMBERS                                                                               \
    .flush = host_flush, .alloc = host_alloc, .free = host_free, .upload = host_upload,            \
    .upload_free = host_upload_free, .fetch = host_fetch, .weight_drop = host_weight_drop

#endif
