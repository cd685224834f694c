/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend (cpu.c): how it is created. All else goes through its table. */
#ifndef KVASIR_BACKEND_CPU_H
#define KVASIR_BACKEND_CPU_H

#include "backend/backend.h"

struct backend_cpu_options {
    int threads;        /* 0: topology_threads() */
    enum cpu_tier tier; /* at most this one; CPU_TIER_COUNT: the best this machine has */
    /* 8 or 16: planes that activations are rounded to before a product with quantized weights */
    int act_bits;
    const struct topology *machine; /* NULL: this one; others in tests */
};
kvasir_status backend_cpu_create(struct backend **out, const struct backend_cpu_options *options,
                                 kvasir_error *err) MUST_CHECK;
/* The first byte of an arena of this backend, for tests: everybody else has offsets. */
uint8_t *backend_cpu_arena_bytes(const struct backend_arena *a);

#endif
