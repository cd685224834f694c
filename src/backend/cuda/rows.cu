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
#include "backend/cuda/gate.cuh"
#include "backend/cuda/internal.cuh"
#include "backend/cuda/norm.cuh"
#include "backend/cuda/rope.cuh"

namespace {

enum { BLOCK = 256, EACH = 4, BLOCK_VALUES = BLOCK * EACH };

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

template <uint32_t THREADS>
__device__ __forceinline__ void norm_row(const rms_norm_op &a, const float *x, float *y,
                                         float inverse, uint32_t thread) {
    for (uint32_t i = thread; i < a.dim; i += THREADS)
        y[i] = norm_value(a, x[i], inverse, i);
}

__global__ void __launch_bounds__(BLOCK) norm_warp_kernel(const rms_norm_op a) {
    const uint32_t row = blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP;
    const uint32_t lane = threadIdx.x % WARP;
    kernel_begins();
    if (row >= a.rows) // the whole warp
        return;
    const float *x = a.x + (size_t)row * a.dim;
    const float inverse = norm_inverse(a, norm_squares<WARP>(x, a.dim, lane));
    norm_row<WARP>(a, x, a.y + (size_t)row * a.dim, inverse, lane);
}

__global__ void __launch_bounds__(NORM_THREADS) norm_block_kernel(const rms_norm_op a) {
    const float *x = a.x + (size_t)blockIdx.x * a.dim;
    kernel_begins();
    const float inverse = norm_inverse_block(a, x);
    norm_row<NORM_THREADS>(a, x, a.y + (size_t)blockIdx.x * a.dim, inverse, threadIdx.x);
}

// ---- rope ------------------------------------------------------------------------------------

__global__ void __launch_bounds__(BLOCK) rope_table_kernel(const rope_table_op a) {
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

// The heads of op, row by row, then those of another x with the same angles.
struct rope_args {
    rope_op op;
    float *second;
    uint32_t second_heads; // 0: there is none
};

__global__ void __launch_bounds__(BLOCK) rope_kernel(const rope_args args) {
    const rope_op &r = args.op;
    const uint32_t item = blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP;
    const uint32_t lane = threadIdx.x % WARP, items = r.rows * r.heads;
    kernel_begins();
    if (item >= items + r.rows * args.second_heads) // the whole warp
        return;
    const bool second = item >= items;
    const uint32_t at = second ? item - items : item;
    float *head = (second ? args.second : r.x) + (size_t)at * r.head_dim;
    const size_t table = (size_t)(at / (second ? args.second_heads : r.heads)) * r.n;
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
            const turned_pair turned = turn_pair(a[j], b[j], c, s);
            head[i] = turned.a;
            head[i + r.n] = turned.b;
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

__global__ void __launch_bounds__(BLOCK) gate_rows_kernel(const gate_rows_op a) {
    kernel_begins();
    const float by = sigmoid_of(a.gate[blockIdx.x]);
    float *row = a.x + (size_t)blockIdx.x * a.dim;
    each_of_row(a.dim, [=](uint32_t i) { row[i] *= by; });
}

__global__ void __launch_bounds__(BLOCK) rearrange_kernel(const rearrange_op a) {
    kernel_begins();
    const float *from = a.from + (size_t)blockIdx.x * a.from_strides.row;
    float *to = a.to + (size_t)blockIdx.x * a.to_strides.row;
    each_of_row(a.blocks * a.n, [=](uint32_t i) {
        const size_t block = i / a.n, in_block = i % a.n;
        to[block * a.to_strides.block + in_block] = from[block * a.from_strides.block + in_block];
    });
}

__global__ void __launch_bounds__(BLOCK) gather_kernel(const gather_rows_op a) {
    kernel_begins();
    const float *from = a.x + (size_t)a.index[blockIdx.x] * a.dim;
    float *to = a.y + (size_t)blockIdx.x * a.dim;
    each_of_row(a.dim, [=](uint32_t i) { to[i] = from[i]; });
}

} // namespace

// ---- the operations --------------------------------------------------------------------------

void gate_values(cuda_backend *b, enum gate_kind kind, const float *gate, const float *up,
                 uint32_t step, size_t n, float *y) {
    launch_each(b, gate_each{kind, gate, up, step, y}, n);
}

void run_gate_mul(cuda_backend *b, const gate_mul_op &op) {
    gate_values(b, (enum gate_kind)op.kind, op.gate, op.up, 1, op.n, op.y);
}

void run_add(cuda_backend *b, const add_op &op) {
    launch_each(b, add_each{op.x, op.y, op.scale}, op.n);
}

void run_scale(cuda_backend *b, const scale_op &op) {
    launch_each(b, scale_each{op.x, op.scale}, op.n);
}

void run_softcap(cuda_backend *b, const softcap_op &op) {
    launch_each(b, softcap_each{op.x, op.cap}, op.n);
}

void run_rms_norm(cuda_backend *b, const rms_norm_op &op) {
    if (op.dim <= NORM_WARP_DIMS)
        cuda_ok(b, launch_early(b, norm_warp_kernel, dim3(blocks_of(op.rows, BLOCK / WARP)), BLOCK,
                                0, op));
    else
        cuda_ok(b, launch_early(b, norm_block_kernel, dim3(op.rows), NORM_THREADS, 0, op));
}

void run_rope_table(cuda_backend *b, const rope_table_op &op) {
    const dim3 blocks(blocks_of((size_t)op.rows * op.n, BLOCK));
    cuda_ok(b, launch_early(b, rope_table_kernel, blocks, BLOCK, 0, op));
}

void run_rope(cuda_backend *b, const rope_op &op, const rope_op *second) {
    const rope_args a = {op, second ? second->x : nullptr, second ? second->heads : 0};
    const size_t items = (size_t)op.rows * (op.heads + a.second_heads);
    cuda_ok(b, launch_early(b, rope_kernel, dim3(blocks_of(items, BLOCK / WARP)), BLOCK, 0, a));
}

void run_gate_rows(cuda_backend *b, const gate_rows_op &op) {
    cuda_ok(b, launch_early(b, gate_rows_kernel, move_grid(op.rows, op.dim), BLOCK, 0, op));
}

void run_rearrange(cuda_backend *b, const rearrange_op &op) {
    cuda_ok(b,
            launch_early(b, rearrange_kernel, move_grid(op.rows, op.blocks * op.n), BLOCK, 0, op));
}

void run_gather_rows(cuda_backend *b, const gather_rows_op &op) {
    cuda_ok(b, launch_early(b, gather_kernel, move_grid(op.n, op.dim), BLOCK, 0, op));
}
