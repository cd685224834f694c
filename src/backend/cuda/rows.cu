// SPDX-License-Identifier: Apache-2.0
// rows.cu: the small operations over rows: norm, rope, gates, sums, caps and moves of rows.
//
//     rms_norm      a row: one warp up to 512 values, a block above; a thread takes every 32nd
//                   (512th) value
//     rope_table    a thread for each (row, pair), in double
//     rope          a warp for each (row, head); a lane holds its pairs in registers, since
//                   adjacent pairs are written where others are read:
//                       |x0 y0 x1 y1 x2 y2 ...|  ->  |x0 x1 x2 ... | y0 y1 y2 ...|
//     elementwise   1,024 values a block, four a thread
//     moves         a block for each (row, 1,024 values of it)
//
// Invariants:
//   * a value's operations are the same wherever it stands and however many there are; the order of
//     rms_norm's sum follows from `dim` alone
//   * sums of squares and gates are float32; rope's angles are double, as in the definition
//
// Host arrays: frequencies are parameters of the launch; positions and indices come by cuda_bring,
// so rope_table and gather_rows cannot be captured. The others can.
#include <string.h>

#include "backend/cuda/gate.cuh"
#include "backend/cuda/internal.cuh"

namespace {

enum { WARP = 32, BLOCK = 256, EACH = 4, BLOCK_VALUES = BLOCK * EACH };

// ---- elementwise -----------------------------------------------------------------------------

// F: value(i) computes from its operands what stands at out[i] afterwards; out may be an operand.
template <class F> __global__ void __launch_bounds__(BLOCK) each_kernel(F f, size_t n) {
    const size_t first = (size_t)blockIdx.x * BLOCK_VALUES + threadIdx.x;
    float v[EACH];
    kernel_begins();
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++)
        if (first + j * BLOCK < n)
            v[j] = f.value(first + j * BLOCK);
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++)
        if (first + j * BLOCK < n)
            f.out[first + j * BLOCK] = v[j];
}

template <class F> void launch_each(cuda_backend *b, const F &f, size_t n) {
    if (n && cuda_works(b))
        cuda_ok(b,
                launch_early(b, each_kernel<F>, dim3(blocks_of(n, BLOCK_VALUES)), BLOCK, 0, f, n));
}

struct gate_each {
    gate_kind kind;
    const float *gate, *up;
    uint32_t step;
    float *out;
    __device__ float value(size_t i) const {
        return gate_value(kind, gate[i * step], up[i * step]);
    }
};

struct add_each {
    float *out;
    const float *y;
    float scale;
    __device__ float value(size_t i) const { return fmaf(scale, y[i], out[i]); }
};

struct scale_each {
    float *out;
    float scale;
    __device__ float value(size_t i) const { return out[i] * scale; }
};

struct softcap_each {
    float *out;
    float cap;
    __device__ float value(size_t i) const { return cap * tanhf(out[i] / cap); }
};

// ---- rms_norm --------------------------------------------------------------------------------

enum { NORM_WARP_DIMS = 512, NORM_THREADS = 512 };

struct norm_args {
    const float *x, *gain;
    uint32_t rows, dim;
    float eps;
    float *y;
};

template <uint32_t THREADS>
__device__ __forceinline__ float squares(const float *x, uint32_t dim, uint32_t thread) {
    float sum = 0;
    for (uint32_t i = thread; i < dim; i += THREADS)
        sum = fmaf(x[i], x[i], sum);
    return warp_sum(sum);
}

template <uint32_t THREADS>
__device__ __forceinline__ void norm_row(const norm_args &a, const float *x, float *y, float sum,
                                         uint32_t thread) {
    const float inverse = 1.0f / sqrtf(sum / (float)a.dim + a.eps);
    for (uint32_t i = thread; i < a.dim; i += THREADS)
        y[i] = x[i] * inverse * (a.gain ? a.gain[i] : 1.0f);
}

__global__ void __launch_bounds__(BLOCK) norm_warp_kernel(norm_args a) {
    const uint32_t row = blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP;
    const uint32_t lane = threadIdx.x % WARP;
    kernel_begins();
    if (row >= a.rows) // the whole warp
        return;
    const float *x = a.x + (size_t)row * a.dim;
    norm_row<WARP>(a, x, a.y + (size_t)row * a.dim, squares<WARP>(x, a.dim, lane), lane);
}

__global__ void __launch_bounds__(NORM_THREADS) norm_block_kernel(norm_args a) {
    __shared__ float part[NORM_THREADS / WARP];
    const float *x = a.x + (size_t)blockIdx.x * a.dim;
    kernel_begins();
    float sum = squares<NORM_THREADS>(x, a.dim, threadIdx.x);
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < NORM_THREADS / WARP; i++)
        sum += part[i];
    norm_row<NORM_THREADS>(a, x, a.y + (size_t)blockIdx.x * a.dim, sum, threadIdx.x);
}

// ---- rope ------------------------------------------------------------------------------------

struct table_args {
    const uint32_t *pos;
    uint32_t rows, n;
    float scale;
    float *cos_out, *sin_out;
    double inv_freq[HEAD_DIM_MAX / 2];
};

__global__ void __launch_bounds__(BLOCK) rope_table_kernel(const __grid_constant__ table_args a) {
    const size_t at = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    kernel_begins();
    if (at >= (size_t)a.rows * a.n)
        return;
    const double angle = (double)a.pos[at / a.n] * a.inv_freq[at % a.n];
    double s = 0, c = 1;               // of NaN, or of absurd values of a file
    if (fabs(angle) < 1099511627776.0) // 2^40
        sincos(angle, &s, &c);
    a.cos_out[at] = (float)c * a.scale;
    a.sin_out[at] = (float)s * a.scale;
}

enum { LANE_PAIRS = HEAD_DIM_MAX / 2 / WARP };

struct rope_args {
    float *x;
    uint32_t items, heads, head_dim; // items: rows * heads
    const float *cos_in, *sin_in;
    uint32_t n;
    bool adjacent;
};

__global__ void __launch_bounds__(BLOCK) rope_kernel(rope_args r) {
    const uint32_t item = blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP;
    const uint32_t lane = threadIdx.x % WARP;
    kernel_begins();
    if (item >= r.items) // the whole warp
        return;
    float *head = r.x + (size_t)item * r.head_dim;
    const size_t table = (size_t)(item / r.heads) * r.n;
    float a[LANE_PAIRS], b[LANE_PAIRS];
#pragma unroll
    for (uint32_t j = 0; j < LANE_PAIRS; j++) {
        const uint32_t i = lane + j * WARP;
        if (i < r.n) {
            a[j] = head[r.adjacent ? 2 * i : i];
            b[j] = head[r.adjacent ? 2 * i + 1 : i + r.n];
        }
    }
    __syncwarp(); // every value is read before the first one is written
#pragma unroll
    for (uint32_t j = 0; j < LANE_PAIRS; j++) {
        const uint32_t i = lane + j * WARP;
        if (i < r.n) {
            const float c = r.cos_in[table + i], s = r.sin_in[table + i];
            head[i] = fmaf(a[j], c, -(b[j] * s));
            head[i + r.n] = fmaf(a[j], s, b[j] * c);
        }
    }
}

// ---- moves -----------------------------------------------------------------------------------

// A move's grid: rows, blocks of BLOCK_VALUES values.
dim3 move_grid(uint32_t rows, uint32_t values) {
    ASSERT(values <= 65535u * BLOCK_VALUES);
    return dim3(rows, blocks_of(values, BLOCK_VALUES));
}

// Calls f(i) for this block's values i of a row of n.
template <class F> __device__ __forceinline__ void each_of_row(uint32_t n, F f) {
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++) {
        const uint32_t i = blockIdx.y * BLOCK_VALUES + j * BLOCK + threadIdx.x;
        if (i < n)
            f(i);
    }
}

__global__ void __launch_bounds__(BLOCK)
    gate_rows_kernel(float *x, const float *gate, uint32_t dim) {
    kernel_begins();
    const float by = sigmoid_of(gate[blockIdx.x]);
    float *row = x + (size_t)blockIdx.x * dim;
    each_of_row(dim, [=](uint32_t i) { row[i] *= by; });
}

struct rearrange_args {
    uint32_t blocks, n;
    const float *from;
    block_strides from_strides;
    float *to;
    block_strides to_strides;
};

__global__ void __launch_bounds__(BLOCK) rearrange_kernel(rearrange_args a) {
    kernel_begins();
    const float *from = a.from + (size_t)blockIdx.x * a.from_strides.row;
    float *to = a.to + (size_t)blockIdx.x * a.to_strides.row;
    each_of_row(a.blocks * a.n, [=](uint32_t i) {
        const size_t block = i / a.n, in_block = i % a.n;
        to[block * a.to_strides.block + in_block] = from[block * a.from_strides.block + in_block];
    });
}

__global__ void __launch_bounds__(BLOCK)
    gather_kernel(const float *x, const uint32_t *index, uint32_t dim, float *y) {
    kernel_begins();
    const float *from = x + (size_t)index[blockIdx.x] * dim;
    float *to = y + (size_t)blockIdx.x * dim;
    each_of_row(dim, [=](uint32_t i) { to[i] = from[i]; });
}

} // namespace

// ---- the operations --------------------------------------------------------------------------

void gate_values(cuda_backend *b, enum gate_kind kind, const float *gate, const float *up,
                 uint32_t step, size_t n, float *y) {
    ASSERT(kind < GATE_KINDS);
    launch_each(b, gate_each{kind, gate, up, step, y}, n);
}

void cuda_gate_mul(struct backend *b, enum gate_kind kind, const float *gate, const float *up,
                   size_t n, float *y) {
    gate_values(cuda_of(b), kind, gate, up, 1, n, y);
}

void cuda_add(struct backend *b, float *x, const float *y, float scale, size_t n) {
    launch_each(cuda_of(b), add_each{x, y, scale}, n);
}

void cuda_scale(struct backend *b, float *x, float scale, size_t n) {
    launch_each(cuda_of(b), scale_each{x, scale}, n);
}

void cuda_softcap(struct backend *b, float *x, float cap, size_t n) {
    launch_each(cuda_of(b), softcap_each{x, cap}, n);
}

void cuda_rms_norm(struct backend *base, const float *x, const float *gain, uint32_t rows,
                   uint32_t dim, float eps, float *y) {
    cuda_backend *b = cuda_of(base);
    ASSERT(dim > 0);
    const norm_args a = {x, gain, rows, dim, eps, y};
    if (!rows || !cuda_works(b))
        return;
    if (dim <= NORM_WARP_DIMS)
        cuda_ok(
            b, launch_early(b, norm_warp_kernel, dim3(blocks_of(rows, BLOCK / WARP)), BLOCK, 0, a));
    else
        cuda_ok(b, launch_early(b, norm_block_kernel, dim3(rows), NORM_THREADS, 0, a));
}

void cuda_rope_table(struct backend *base, const uint32_t *pos, uint32_t rows,
                     const double *inv_freq, uint32_t n, float scale, float *cos_out,
                     float *sin_out) {
    cuda_backend *b = cuda_of(base);
    ASSERT(rows <= b->limits.rows && 2 * n <= HEAD_DIM_MAX);
    if (!rows || !n)
        return;
    table_args a = {nullptr, rows, n, scale, cos_out, sin_out, {}};
    memcpy(a.inv_freq, inv_freq, n * sizeof *inv_freq);
    a.pos = (const uint32_t *)cuda_bring(b, pos, rows * sizeof *pos);
    if (a.pos)
        cuda_ok(b, launch_early(b, rope_table_kernel, dim3(blocks_of((size_t)rows * n, BLOCK)),
                                BLOCK, 0, a));
}

void cuda_rope(struct backend *base, float *x, uint32_t rows, uint32_t heads, uint32_t head_dim,
               const float *cos_in, const float *sin_in, uint32_t n, bool adjacent) {
    cuda_backend *b = cuda_of(base);
    ASSERT(rows <= b->limits.rows && 2 * n <= head_dim && 2 * n <= HEAD_DIM_MAX);
    ASSERT((uint64_t)rows * heads <= UINT32_MAX);
    const rope_args r = {x, rows * heads, heads, head_dim, cos_in, sin_in, n, adjacent};
    if (r.items && n && cuda_works(b))
        cuda_ok(b,
                launch_early(b, rope_kernel, dim3(blocks_of(r.items, BLOCK / WARP)), BLOCK, 0, r));
}

void cuda_gate_rows(struct backend *base, float *x, const float *gate, uint32_t rows,
                    uint32_t dim) {
    cuda_backend *b = cuda_of(base);
    if (rows && dim && cuda_works(b))
        cuda_ok(b, launch_early(b, gate_rows_kernel, move_grid(rows, dim), BLOCK, 0, x, gate, dim));
}

void cuda_rearrange(struct backend *base, uint32_t rows, uint32_t blocks, uint32_t n,
                    const float *from, struct block_strides from_strides, float *to,
                    struct block_strides to_strides) {
    cuda_backend *b = cuda_of(base);
    ASSERT(from_strides.row >= n && to_strides.row >= n && (uint64_t)blocks * n <= UINT32_MAX);
    const rearrange_args a = {blocks, n, from, from_strides, to, to_strides};
    if (rows > 0 && blocks * n > 0 && cuda_works(b))
        cuda_ok(b, launch_early(b, rearrange_kernel, move_grid(rows, blocks * n), BLOCK, 0, a));
}

void cuda_gather_rows(struct backend *base, const float *x, const uint32_t *index, uint32_t n,
                      uint32_t dim, float *y) {
    cuda_backend *b = cuda_of(base);
    ASSERT(n <= b->limits.rows);
    for (uint32_t i = 0; i < n; i++)
        ASSERT(index[i] < b->limits.rows);
    if (!n || !dim)
        return;
    auto from = (const uint32_t *)cuda_bring(b, index, n * sizeof *index);
    if (from)
        cuda_ok(b, launch_early(b, gather_kernel, move_grid(n, dim), BLOCK, 0, x, from, dim, y));
}
