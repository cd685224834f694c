// SPDX-License-Identifier: Apache-2.0
// basis.cuh: rows of one head in another basis, in shared memory (enum page_basis of backend.h).
//
//   H x           hadamard_rotate, to the bit
//   x . matrix    key_basis_apply in float32: an output is four chains of fma over a quarter of the
//                 inputs each, in order, which are added as (0 + 1) + (2 + 3)
//
// A row's bits do not depend on the rows beside it.
#pragma once

#include "backend/cuda/internal.cuh"

enum { TURN_PARTS = 4, TURN_THREADS = 256 };

// Rows that a block turns at a time, and the shared memory that it takes: [row][dim], then for
// products [part][row][dim].
static inline BACKEND_DEVICE uint32_t turn_rows_of(uint32_t dim) {
    return dim <= 256 ? 8 : 4;
}
static inline BACKEND_DEVICE size_t turn_bytes(uint32_t dim) {
    return (size_t)(1 + TURN_PARTS) * turn_rows_of(dim) * dim * sizeof(float);
}

// x = H x, by a warp.
__device__ __forceinline__ void hadamard_row(float *x, uint32_t dim, float scale) {
    const uint32_t block = dim & -dim, lane = threadIdx.x % 32;
    for (uint32_t half = 1; half < block; half *= 2) {
        __syncwarp();
        for (uint32_t i = lane; i < dim / 2; i += 32) {
            const uint32_t j = i / half * 2 * half + i % half;
            const float a = x[j], b = x[j + half];
            x[j] = a + b;
            x[j + half] = a - b;
        }
    }
    __syncwarp();
    for (uint32_t i = lane; i < dim; i += 32)
        x[i] *= scale;
    __syncwarp();
}

// x = x . matrix for ROWS rows, by a block; dim is a multiple of 32.
template <int ROWS>
__device__ __forceinline__ void multiply_rows(float *x, const float *matrix, uint32_t dim) {
    const uint32_t quarter = dim / TURN_PARTS;
    float *parts = x + ROWS * dim;
    for (uint32_t i = threadIdx.x; i < TURN_PARTS * dim; i += blockDim.x) {
        const uint32_t part = i / dim, out = i % dim;
        const float *m = matrix + (size_t)part * quarter * dim + out, *from = x + part * quarter;
        float acc[ROWS] = {};
#pragma unroll 2
        for (uint32_t in = 0; in < quarter; in += 4, m += 4 * dim) {
            const float w[4] = {m[0], m[dim], m[2 * dim], m[3 * dim]};
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float4 four = *(const float4 *)(from + r * dim + in);
                acc[r] = fmaf(four.x, w[0], acc[r]);
                acc[r] = fmaf(four.y, w[1], acc[r]);
                acc[r] = fmaf(four.z, w[2], acc[r]);
                acc[r] = fmaf(four.w, w[3], acc[r]);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            parts[(part * ROWS + r) * dim + out] = acc[r];
    }
    __syncthreads();
    const uint32_t n = ROWS * dim;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        x[i] = (parts[i] + parts[n + i]) + (parts[2 * n + i] + parts[3 * n + i]);
}

// Rows [turn_rows_of(dim)][dim] in shared memory, of which n are wanted: times the matrix, or H if
// it is NULL. By a block, which has written all of them; n may be read after the call.
__device__ __forceinline__ void turn_rows(float *x, uint32_t n, const float *matrix, uint32_t dim,
                                          float scale) {
    __syncthreads();
    if (!matrix)
        for (uint32_t r = threadIdx.x / 32; r < n; r += blockDim.x / 32)
            hadamard_row(x + r * dim, dim, scale);
    else if (n == 1)
        multiply_rows<1>(x, matrix, dim);
    else if (n <= 4)
        multiply_rows<4>(x, matrix, dim);
    else
        multiply_rows<8>(x, matrix, dim);
    __syncthreads();
}

// The matrix of (layer, head) among one of dev_basis.
__device__ __forceinline__ const float *basis_matrix(const float *matrices, uint32_t layer,
                                                     uint32_t kv_heads, uint32_t head,
                                                     uint32_t dim) {
    return matrices + ((size_t)layer * kv_heads + head) * dim * dim;
}
