// SPDX-License-Identifier: Apache-2.0
// norm.cuh: the arithmetic of rms_norm, for the kernels of rows.cu and for the one that also rounds
// the result for a product (product.cu): both make the same bits.
//
//     y = x * (1 / sqrt(mean(x^2) + eps)) * gain
//
// The sum of squares is one of 32 (up to 512 values a row) or 512 chains: chain c has every 32nd
// (512th) value from c on. Then the chains of a warp in a tree, then the warps in order.
#pragma once

#include "backend/cuda/internal.cuh"

enum { WARP = 32, NORM_WARP_DIMS = 512, NORM_THREADS = 512 };

// Eight values are read before the first is used: one after the other they would wait for memory
// eight times. What is after the row's end counts as 0, which changes no sum.
template <uint32_t THREADS>
__device__ __forceinline__ float norm_squares(const float *x, uint32_t dim, uint32_t thread) {
    constexpr uint32_t TOGETHER = 8;
    float sum = 0, v[TOGETHER];
    for (uint32_t first = thread; first < dim; first += TOGETHER * THREADS) {
#pragma unroll
        for (uint32_t j = 0; j < TOGETHER; j++) {
            const uint32_t i = first + j * THREADS;
            v[j] = x[min(i, dim - 1)];
            v[j] = i < dim ? v[j] : 0;
        }
#pragma unroll
        for (uint32_t j = 0; j < TOGETHER; j++)
            sum = fmaf(v[j], v[j], sum);
    }
    return warp_sum(sum);
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
