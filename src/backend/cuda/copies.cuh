// SPDX-License-Identifier: Apache-2.0
// copies.cuh: copies into shared memory that a barrier there waits for. From sm_90 on they are bulk
// copies, started by one lane; before, each lane copies 16 bytes at a time.
#pragma once

#include "backend/cuda/mma.cuh"

// ---- barriers --------------------------------------------------------------------------------

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define BULK_COPIES 0
enum { COPY_ARRIVALS = 32 }; // each lane arrives when its copies are done
#else
#define BULK_COPIES 1
enum { COPY_ARRIVALS = 1 };
#endif

__device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to copies; a block or warp barrier has to follow.
__device__ __forceinline__ void barriers_ready() {
#if BULK_COPIES
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t phase) {
#if BULK_COPIES
    asm volatile("{\n.reg .pred p;\nWAIT_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], "
                 "%1;\n@p bra DONE_%=;\nbra WAIT_%=;\nDONE_%=:\n}" ::"r"(bar),
                 "r"(phase)
                 : "memory");
#else
    asm volatile("{\n.reg .pred p;\nWAIT_%=: mbarrier.test_wait.parity.shared::cta.b64 p, [%0], "
                 "%1;\n@p bra DONE_%=;\nbra WAIT_%=;\nDONE_%=:\n}" ::"r"(bar),
                 "r"(phase)
                 : "memory");
#endif
}
__device__ __forceinline__ void barrier_arrive(uint32_t bar) {
    asm volatile("{\n.reg .b64 s;\nmbarrier.arrive.shared::cta.b64 s, [%0];\n}" ::"r"(bar)
                 : "memory");
}
// A warp is done with what the barrier guards: one lane says so. compute-sanitizer's racecheck
// follows each thread by itself, so for it all of them do.
#ifdef KVASIR_RACECHECK
enum { WARP_ARRIVALS = 32 };
#else
enum { WARP_ARRIVALS = 1 };
#endif
__device__ __forceinline__ void warp_arrive(uint32_t bar) {
    __syncwarp();
    if (threadIdx.x % 32 < WARP_ARRIVALS)
        barrier_arrive(bar);
}

// ---- copies, by one warp ---------------------------------------------------------------------

// Whether this lane starts bulk copies: one does, always the same.
__device__ __forceinline__ bool copies_bulk() {
    uint32_t one;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(one));
    return one;
}
__device__ __forceinline__ void copy_bulk(uint32_t to, const uint8_t *from, uint32_t bytes,
                                          uint32_t bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}
// 16 bytes a lane at a time.
__device__ __forceinline__ void copy_lanes(uint32_t to, const uint8_t *from, uint32_t bytes) {
    for (uint32_t i = threadIdx.x % 32 * 16; i < bytes; i += 512)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i), "l"(from + i)
                     : "memory");
}
// Each lane arrives when its copies are done.
__device__ __forceinline__ void lanes_arrive(uint32_t bar) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}
