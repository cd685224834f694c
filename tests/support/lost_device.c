/* SPDX-License-Identifier: Apache-2.0 */
#include "lost_device.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"

static struct {
    const struct backend_ops *cpu;
    struct backend_ops ops;
    atomic_int waits_left; /* that still succeed; at 0 all fail */
} device;

static kvasir_status wait_for(kvasir_error *err) {
    if (atomic_load(&device.waits_left) == 0)
        return fail(err, KVASIR_ERR_IO, LOST_DEVICE_TEXT);
    atomic_fetch_sub(&device.waits_left, 1);
    return KVASIR_OK;
}

static kvasir_status lost_flush(struct backend *b, kvasir_error *err) {
    TRY(wait_for(err));
    return device.cpu->flush(b, err);
}

static kvasir_status lost_read(struct backend *b, void *host, const void *from, size_t bytes,
                               kvasir_error *err) {
    memset(host, 0, bytes);
    TRY(wait_for(err));
    return device.cpu->read(b, host, from, bytes, err);
}

static kvasir_status lost_fetch(struct backend *b, const void *from, size_t bytes, const void **out,
                                kvasir_error *err) {
    *out = NULL;
    TRY(wait_for(err));
    return device.cpu->fetch(b, from, bytes, out, err);
}

static kvasir_status lost_arena_read(struct backend *b, const struct backend_arena *a, size_t at,
                                     void *host, size_t bytes, kvasir_error *err) {
    memset(host, 0, bytes);
    TRY(wait_for(err));
    return device.cpu->arena_read(b, a, at, host, bytes, err);
}

struct backend *lost_device_create(void) {
    const struct backend_cpu_options o = {.threads = 2, .tier = CPU_TIER_COUNT, .act_bits = 8};
    struct backend *b;
    kvasir_error err;
    if (backend_cpu_create(&b, &o, &err)) {
        printf("%s\n", err.text);
        exit(1);
    }
    device.cpu = b->ops;
    device.ops = *b->ops;
    device.ops.flush = lost_flush;
    device.ops.read = lost_read;
    device.ops.fetch = lost_fetch;
    device.ops.arena_read = lost_arena_read;
    b->ops = &device.ops;
    lost_device_after(INT32_MAX);
    return b;
}

void lost_device_after(int waits) {
    atomic_store(&device.waits_left, waits);
}
