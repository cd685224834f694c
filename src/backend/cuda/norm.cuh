// SPDX-License-Identifier: Apache-2.0
// norm.cuh: the arithmetic of rms_norm, for the kernels of rows.cu and for those that also round
// the result for a product: all make the same bits.
//
//     y = x * (1 / sqrt(mean(x^2) + eps)) * gain
//
// The sum of squares is one of 32 (up to 512 values a row) or 512 chains: chain c has every 32nd
// (512th) value from c on. Then the chains of a warp in a tree, then the warps in order.
#pragma once

#include "backend/cuda/internal.cuh"

enum { WARP = 32, NORM_WARP_DIMS = 512, NORM_THREADS = 512 };

// Sums of N chains, each of THREADS: of x[i], from value thread[i] on. Eight values of each are
// read before the first is used: one after the other they would wait for memory eight times. What
// is after the row's end counts as 0, which changes no sum.
template <uint32_t THREADS, int N>
__device__ __forceinline__ void norm_squares(const float *const (&x)[N], uint32_t dim,
                                             const uint32_t (&thread)[N], float (&sum)[N]) {
    constexpr uint32_t TOGETHER = 8;
    float v[N][TOGETHER];
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i] = 0;
    for (uint32_t first = 0; first < dim; first += TOGETHER * THREADS) {
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (uint32_t j = 0; j < TOGETHER; j++) {
                const uint32_t at = first + thread[i] + j * THREADS;
                v[i][j] = x[i][min(at, dim - 1)];
                v[i][j] = at < dim ? v[i][j] : 0;
            }
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (uint32_t j = 0; j < TOGETHER; j++)
                sum[i] = fmaf(v[i][j], v[i][j], sum[i]);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i] = warp_sum(sum[i]);
}
template <uint32_t THREADS>
__device__ __forceinline__ float norm_squares(const float *x, uint32_t dim, uint32_t thread) {
    const float *const row[1] = {x};
    const uint32_t first[1] = {thread};
    float sum[1];
    norm_squares<THREADS, 1>(row, dim, first, sum);
    return sum[0];
}

__device__ __forceinline__ float norm_inverse(const rms_norm_op &a, float squares) {
    return 1.0f / sqrtf(squares / (float)a.dim + a.eps);
}

// By a block of NORM_THREADS, for rows of any length. No thread returns before the row was read.
__device__ __forceinline__ float norm_inverse_block(const rms_norm_op &a, const float *x) {
    __shared__ float part[NORM_THREADS / WARP];
    const bool one_warp = a.dim <= NORM_WARP_DIMS; // each warp has the whole row's sum
    float sum = one_warp ? norm_squares<WARP>(x, a.dim, threadIdx.x % WARP)
                         : norm_squares<NORM_THREADS>(x, a.dim, threadIdx.x);
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (one_warp)
        return norm_inverse(a, sum);
    sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < NORM_THREADS / WARP; i++)
        sum += part[i];
    return norm_inverse(a, sum);
}

__device__ __forceinline__ float norm_value(const rms_norm_op &a, float x, float inverse,
                                            uint32_t i) {
    return x * inverse * (a.gain ? a.gain[i] : 1.0f);
}
