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
#include "backend/cuda/mma.cuh"

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

// Brings a matrix near, by a block: what it reads then are hits. Matrices are constants, so that
// this may come before kernel_waits.
__device__ __forceinline__ void fetch_matrix(const float *matrix, uint32_t dim) {
    for (uint32_t i = threadIdx.x * 32; i < dim * dim; i += blockDim.x * 32) // lines
        fetch_line(matrix + i);
}

// The matrix of (layer, head) among one of dev_basis.
__device__ __forceinline__ const float *basis_matrix(const float *matrices, uint32_t layer,
                                                     uint32_t kv_heads, uint32_t head,
                                                     uint32_t dim) {
    return matrices + ((size_t)layer * kv_heads + head) * dim * dim;
}

// ---- queries ---------------------------------------------------------------------------------

// What turns a step's queries into a pass's basis.
struct TurnArgs {
    const float *q; // [row][head][dim]
    float *out;
    const float *forward; // NULL: Hadamard
    float scale;          // of H
    uint32_t rows, layer, heads, kv_heads, dim;
};
// basis.cu: for balanced keys. False: the step has none.
bool balanced_turn(const cuda_backend *b, const struct attention_op &op, TurnArgs *args);
// How many blocks that takes, of each KV head: one has some (row, query head).
static inline BACKEND_DEVICE uint32_t turn_blocks(const TurnArgs &a) {
    return blocks_of((size_t)a.rows * (a.heads / a.kv_heads), turn_rows_of(a.dim));
}

// One of them: blockIdx.x, of KV head blockIdx.y. Waits for the kernel before, but for the matrix.
__device__ __forceinline__ void turn_block(const TurnArgs &a) {
    extern __shared__ __align__(16) float turn_memory[];
    const uint32_t gqa = a.heads / a.kv_heads, kv = blockIdx.y, most = turn_rows_of(a.dim),
                   first = blockIdx.x * most, n = min(most, a.rows * gqa - first);
    const float *matrix =
        a.forward ? basis_matrix(a.forward, a.layer, a.kv_heads, kv, a.dim) : nullptr;
    if (matrix)
        fetch_matrix(matrix, a.dim);
    kernel_waits();
    auto place = [&](uint32_t i) { // of value i of the block
        const uint32_t column = first + i / a.dim;
        return ((size_t)(column / gqa) * a.heads + kv * gqa + column % gqa) * a.dim + i % a.dim;
    };
    for (uint32_t i = threadIdx.x; i < most * a.dim; i += TURN_THREADS)
        turn_memory[i] = i < n * a.dim ? a.q[place(i)] : 0.f;
    turn_rows(turn_memory, n, matrix, a.dim, a.scale);
    for (uint32_t i = threadIdx.x; i < n * a.dim; i += TURN_THREADS)
        a.out[place(i)] = turn_memory[i];
}
