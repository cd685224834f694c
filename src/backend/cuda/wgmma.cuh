// SPDX-License-Identifier: Apache-2.0
// wgmma.cuh: products of a warp group, four warps: 64 rows, both sides' 16-bit elements in shared
// memory, or those of the weights in registers.
//
// A matrix is in shared memory as [k / 8][row][8]: 8 rows are 128 bytes, what both wgmma (no
// swizzle) and ldmatrix take. B's rows are the columns of the product: tokens, dims.
//
// On sm_90a these are wgmma instructions. Elsewhere each warp does its 16 rows by mma.sync, with
// the same elements in each instruction of k = 16 and the same registers: the same bits.
#pragma once

#include "backend/cuda/mma.cuh"

// Of a warp's lane: [block of 8 columns][row r: columns 2q, 2q + 1; row r + 8]
template <int COLUMNS> using Sums = float[COLUMNS / 8][4];

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WGMMA 1
#else
#define WGMMA 0
#endif

// Registers go from the groups that fill shared memory to those that multiply. Together they may
// have as many as the block began with, or the second waits forever.
#if WGMMA
#define REGISTERS_DOWN(n) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n))
#define REGISTERS_UP(n)   asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n))
#else
#define REGISTERS_DOWN(n) (void)0
#define REGISTERS_UP(n)   (void)0
#endif

// Makes what a thread wrote to shared memory visible to wgmma of others, after a barrier.
__device__ __forceinline__ void written_for_wgmma() {
#if WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#if WGMMA

__device__ __forceinline__ void wgmma_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most N groups are under way. The sums of the others are there.
template <int N> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// A matrix of `rows` rows: the low half of its descriptor for address `at`, to which units of 16
// bytes may be added, and the descriptor. All lanes have the same address. The shuffle tells the
// compiler so: it computes descriptors once a warp, in the uniform registers that wgmma reads.
__device__ __forceinline__ uint32_t matrix_low(uint32_t at, uint32_t rows) {
    return (__shfl_sync(~0u, at, 0) & 0x3ffff) >> 4 | rows << 16;
}
__device__ __forceinline__ uint64_t matrix_of(uint32_t low) {
    uint64_t both;
    asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "n"(128 >> 4));
    return both;
}

#define WGMMA_4(d, i)  "+f"((d)[i][0]), "+f"((d)[i][1]), "+f"((d)[i][2]), "+f"((d)[i][3])
#define WGMMA_16(d, i) WGMMA_4(d, i), WGMMA_4(d, i + 1), WGMMA_4(d, i + 2), WGMMA_4(d, i + 3)
#define WGMMA_D32                                                                                  \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"      \
    "%24,%25,%26,%27,%28,%29,%30,%31}"
#define WGMMA_D64                                                                                  \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"      \
    "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"     \
    "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

// 64 columns, both sides in shared memory; fresh: the sums begin.
#define WGMMA_SCORES(TYPE)                                                                         \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16."   \
                 "f32." TYPE "." TYPE " " WGMMA_D32 ", %32, %33, p, 1, 1, 0, 0;}"                  \
                 : WGMMA_16(d, 0), WGMMA_16(d, 4)                                                  \
                 : "l"(a), "l"(b), "n"(FRESH ? 0 : 1))
template <bool BF, bool FRESH>
__device__ __forceinline__ void wgmma_scores(float (&d)[8][4], uint64_t a, uint64_t b) {
    if constexpr (BF)
        WGMMA_SCORES("bf16");
    else
        WGMMA_SCORES("f16");
}

// Weights in registers; 16, 64 or 128 columns from block FIRST of d on.
#define WGMMA_VALUES_16(TYPE)                                                                      \
    asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n16k16."     \
                 "f32." TYPE "." TYPE " {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, p, "      \
                 "1, 1, 0;}"                                                                       \
                 : WGMMA_4(d, FIRST), WGMMA_4(d, FIRST + 1)                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define WGMMA_VALUES_64(TYPE)                                                                      \
    asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n64k16."     \
                 "f32." TYPE "." TYPE " " WGMMA_D32 ", {%32,%33,%34,%35}, %36, p, 1, 1, 0;}"       \
                 : WGMMA_16(d, FIRST), WGMMA_16(d, FIRST + 4)                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define WGMMA_VALUES_128(TYPE)                                                                     \
    asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16."    \
                 "f32." TYPE "." TYPE " " WGMMA_D64 ", {%64,%65,%66,%67}, %68, p, 1, 1, 0;}"       \
                 : WGMMA_16(d, FIRST), WGMMA_16(d, FIRST + 4), WGMMA_16(d, FIRST + 8),             \
                   WGMMA_16(d, FIRST + 12)                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
template <bool BF, int FIRST, int N>
__device__ __forceinline__ void wgmma_values(float (&d)[N][4], const uint32_t (&a)[4], uint64_t b) {
    if constexpr (N == 2 && BF)
        WGMMA_VALUES_16("bf16");
    else if constexpr (N == 2)
        WGMMA_VALUES_16("f16");
    else if constexpr (N == 8 && BF)
        WGMMA_VALUES_64("bf16");
    else if constexpr (N == 8)
        WGMMA_VALUES_64("f16");
    else if constexpr (BF)
        WGMMA_VALUES_128("bf16");
    else
        WGMMA_VALUES_128("f16");
}

#else

// Four 8 x 8 matrices; lane l has the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void ldmatrix(uint32_t (&m)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at));
}
// The instruction of elements 16 step .. + 15 of k, all columns of d.
template <bool BF, int N>
__device__ __forceinline__ void mma_step(float (&d)[N][4], const uint32_t (&a)[4], uint32_t b,
                                         int step) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < N; j += 2) {
        uint32_t m[4];
        ldmatrix(m, b + ((2 * step + lane / 8 % 2) * 8 * N + 8 * (j + lane / 16) + lane % 8) * 16);
        mma_half<BF>(d[j], a, m[0], m[1]);
        mma_half<BF>(d[j + 1], a, m[2], m[3]);
    }
}

#endif

// d = Q K^T of 64 rows and tokens. Starts it; the result is there after products_end.
template <bool BF, int D>
__device__ __forceinline__ void scores_begin(Sums<64> &d, uint32_t query, uint32_t keys) {
#if WGMMA
    const uint32_t q = matrix_low(query, 64), k = matrix_low(keys, 64);
    wgmma_begin();
    wgmma_scores<BF, true>(d, matrix_of(q), matrix_of(k));
#pragma unroll
    for (int i = 1; i < D / 16; i++)
        wgmma_scores<BF, false>(d, matrix_of(q + i * 128), matrix_of(k + i * 128));
    wgmma_commit();
#else
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < 8; j++)
        d[j][0] = d[j][1] = d[j][2] = d[j][3] = 0;
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        uint32_t a[4];
        ldmatrix(a, query + ((2 * i + lane / 16) * 64 + row) * 16);
        mma_step<BF>(d, a, keys, i);
    }
#endif
}
// d += P V. p: A registers of each of STEPS instructions of 16 tokens.
template <bool BF, int D, int STEPS>
__device__ __forceinline__ void values_begin(Sums<D> &d, const uint32_t (&p)[STEPS][4],
                                             uint32_t values) {
#if WGMMA
    const uint32_t v = matrix_low(values, D);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        wgmma_values<BF, 0>(d, p[i], matrix_of(v + i * 2 * D));
        if constexpr (D == 256)
            wgmma_values<BF, 16>(d, p[i], matrix_of(v + i * 2 * D + 128));
    }
    wgmma_commit();
#else
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        mma_step<BF>(d, p[i], values, i);
#endif
}
// All but the last LATER products that were begun are there, those of d among them.
template <int LATER, int N> __device__ __forceinline__ void products_end(float (&d)[N][4]) {
#if WGMMA
    wgmma_wait<LATER>();
#pragma unroll
    for (int i = 0; i < N; i++) // nothing that reads d comes before the wait
        asm volatile("" : WGMMA_4(d, i)::"memory");
#endif
}
// All but the last LATER products have taken their weights, these among them: they may be written
// again.
template <int LATER, int STEPS>
__device__ __forceinline__ void weights_taken(uint32_t (&p)[STEPS][4]) {
#if WGMMA
    wgmma_wait<LATER>();
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        asm volatile("" : "+r"(p[i][0]), "+r"(p[i][1]), "+r"(p[i][2]), "+r"(p[i][3])::"memory");
#endif
}
// All products are there, and weights may be written again.
template <int N, int STEPS>
__device__ __forceinline__ void products_end(float (&d)[N][4], uint32_t (&p)[STEPS][4]) {
    products_end<0>(d);
    weights_taken<0>(p);
}
