/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "backend/host.h"

/* None of these needs its backend. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

kvasir_status host_flush(struct backend *b, kvasir_error *err) {
    return KVASIR_OK;
}

void *host_alloc(struct backend *b, size_t bytes) {
    return mem_alloc_aligned(bytes);
}

void host_free(struct backend *b, void *p) {
    mem_free(p);
}

const void *host_upload(struct backend *b, const void *host, size_t bytes) {
    return host;
}

void host_upload_free(struct backend *b, const void *device) {}

kvasir_status host_read(struct backend *b, void *host, const void *device, size_t bytes,
                        kvasir_error *err) {
    memcpy(host, device, bytes);
    return KVASIR_OK;
}

kvasir_status host_fetch(struct backend *b, const void *device, size_t bytes, const void **out,
                         kvasir_error *err) {
    *out = device;
    return KVASIR_OK;
}

void host_write(struct backend *b, void *device, const void *host, size_t bytes) {
    memcpy(device, host, bytes);
}

kvasir_status host_weight_put(struct backend *b, const struct weight *w,
                              const struct backend_weight **out, kvasir_error *err) {
    *out = (const struct backend_weight *)w;
    return KVASIR_OK;
}

void host_weight_drop(struct backend *b, const struct backend_weight *w) {}
