// SPDX-License-Identifier: Apache-2.0
// few_rows.cuh: products of one or two rows with 4-bit matrices (HALVES) and activations of 8
// bits. The time is that of reading the matrix, so reading never stops, and nothing is launched for
// the sake of the input: every block makes and rounds the rows for itself.
//
//     a block      tiles b, b + blocks, b + 2 blocks, ...   of 16 outputs, one after the other
//     its warps    runs w, w + W, ... of each tile
//     a warp       a ring of FEW_SLOTS runs of weights in shared memory, filled by asynchronous
//                  copies. A lane copies the codes that it multiplies itself, so that only scales
//                  need the warp to meet
//
//     inputs       x, or rms_norm's result: a warp rounds the runs that it multiplies
//                  -> codes [pair][row][q] 16 bytes, sides [pair][block][row] scale and a
//     part [2][warp][row][output] -> total -> y       sums of runs, added in order; of two
//                                                     matrices also gated(y0) * y1
//
// The ring is filled before the wait for the kernel that makes x, so weights travel while earlier
// operations run.
#pragma once

#include "backend/cuda/pack.cuh"

// FIXED: of shared memory that is not the ring or the inputs, at most.
enum { FEW_SLOTS = 2, FEW_ROWS = 2, FEW_INPUT_BYTES = 64 << 10, FEW_FIXED_BYTES = 4 << 10 };

__device__ __forceinline__ void copy_16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_end() { // of a group
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// All groups but the last N have come: what this lane copied can be read by it.
template <int N> __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// A run of weights in shared memory: codes [pair][lane], scales [quad][r], biases likewise.
template <class F> struct run_slot {
    uint4 codes[RUN_PAIRS][32];
    uint4 scales[F::QUADS][8], biases[F::BIASED ? F::QUADS : 1][8];
};

// Which run of which tile a warp is at.
struct run_place {
    uint32_t tile, run; // tile: of the launch
};

// Where a tile of the launch is. Gated: tiles of both matrices in turn, which a block makes one
// after the other.
struct tile_place {
    const product_part &part;
    uint32_t tile; // of the part
};
__device__ __forceinline__ const product_part &part_of_tile(const product_args &a, uint32_t tile) {
    uint32_t i = 0;
    while (i + 1 < a.parts && tile >= a.part[i + 1].first)
        i++;
    return a.part[i];
}
__device__ __forceinline__ tile_place place_of_tile(const product_args &a, uint32_t tile) {
    if (a.gated)
        return {a.part[tile % 2], tile / 2};
    const product_part &p = part_of_tile(a, tile);
    return {p, tile - p.first};
}
__device__ __forceinline__ uint32_t first_tile(const product_args &a) {
    return a.gated ? 2 * blockIdx.x : blockIdx.x;
}
__device__ __forceinline__ uint32_t next_tile(const product_args &a, uint32_t tile) {
    return !a.gated ? tile + gridDim.x : tile % 2 == 0 ? tile + 1 : tile + 2 * gridDim.x - 1;
}
__device__ __forceinline__ run_place next_run(const product_args &a, run_place p, uint32_t runs,
                                              uint32_t warps) {
    p.run += warps;
    if (p.run >= runs) {
        p.run = threadIdx.x / 32;
        p.tile = next_tile(a, p.tile);
    }
    return p;
}

// One group of copies; an empty one after the last run.
template <class F>
__device__ __forceinline__ void fill_slot(const product_args &a, run_place p, uint32_t tiles,
                                          run_slot<F> &slot) {
    const uint32_t lane = threadIdx.x % 32;
    if (p.tile < tiles && p.run * RUN_PAIRS < a.part[0].w.pairs) {
        const tile_place place = place_of_tile(a, p.tile);
        const weight_view &v = place.part.w;
        const size_t tile = place.tile;
        const uint32_t pairs = min((uint32_t)RUN_PAIRS, v.pairs - p.run * RUN_PAIRS);
        const uint4 *codes =
            (const uint4 *)v.codes + (tile * v.pairs + p.run * RUN_PAIRS) * 32 + lane;
        const uint32_t to = smem_at(&slot.codes[0][lane]);
#pragma unroll
        for (uint32_t i = 0; i < RUN_PAIRS; i++)
            if (i < pairs)
                copy_16(to + i * 512, codes + i * 32);
        const uint32_t quad = lane / 8;
        const size_t at = (tile * v.quads + p.run * F::QUADS) * 8 + lane;
        if (quad < F::QUADS && p.run * F::QUADS + quad < v.quads) {
            copy_16(smem_at(&slot.scales[0][lane]), (const uint4 *)v.scales + at);
            if (F::BIASED)
                copy_16(smem_at(&slot.biases[0][lane]), (const uint4 *)v.biases + at);
        }
    }
    copies_end();
}

// ---- inputs ----------------------------------------------------------------------------------

// The rounded rows in shared memory.
struct few_inputs {
    uint4 *codes;
    float2 *sides;
    uint32_t rows;
};
constexpr uint32_t FEW_PAIR_BYTES = 4 * sizeof(uint4) + 2 * sizeof(float2); // of a row

__device__ __forceinline__ void put_four(const few_inputs &in, uint32_t row, uint32_t four,
                                         const rounded_four &v) {
    const uint32_t pair = four / 16, block = four / 8 % 2, j = four % 8;
    ((uint32_t *)&in.codes[(pair * in.rows + row) * 4 + j % 4])[2 * block + j / 4] = v.high;
    if (j == 0)
        in.sides[(pair * 2 + block) * in.rows + row] = make_float2(v.scale, __uint_as_float(v.a));
}

// The runs that this warp multiplies, of all rows. four_of(row, of_row(row), i): four inputs.
template <class Row, class From>
__device__ __forceinline__ void round_runs(const few_inputs &in, const weight_view &v, bool affine,
                                           Row of_row, From four_of) {
    enum { FOURS = RUN / 4 / 32 }; // of a lane
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (uint32_t run = warp; run * RUN_PAIRS < v.pairs; run += warps)
        for (uint32_t row = 0; row < in.rows; row++) {
            const float known = of_row(row);
            float4 x[FOURS];
#pragma unroll
            for (uint32_t j = 0; j < FOURS; j++) {
                const uint32_t i = run * RUN + (j * 32 + lane) * 4;
                x[j] = i < v.k ? four_of(row, known, i) : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (uint32_t j = 0; j < FOURS; j++) {
                const uint32_t four = run * RUN / 4 + j * 32 + lane;
                const rounded_four rounded = round_four<8>(x[j], affine);
                if (four < v.pairs * (PAIR / 4))
                    put_four(in, row, four, rounded);
            }
        }
    __syncwarp();
}

// Sums of squares as norm_inverse_block has them, of all rows: chains of 32 in `part`.
__device__ __forceinline__ void square_rows(const rms_norm_op &norm, uint32_t rows,
                                            float (*part)[NORM_THREADS / WARP]) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const uint32_t chains = norm.dim <= NORM_WARP_DIMS ? 1 : NORM_THREADS / WARP;
    for (uint32_t i = warp; i < rows * chains; i += warps) {
        const uint32_t row = i / chains, chain = i % chains;
        const float *x = norm.x + (size_t)row * norm.dim;
        const float sum = chains == 1
                              ? norm_squares<WARP>(x, norm.dim, lane)
                              : norm_squares<NORM_THREADS>(x, norm.dim, chain * WARP + lane);
        if (lane == 0)
            part[row][chain] = sum;
    }
    __syncthreads();
}

// Inputs from memory, or from rms_norm's operands, whose result the first block writes as well.
struct few_rows_of {
    packed_rows rows;
    __device__ __forceinline__ void round(const few_inputs &in, const weight_view &v,
                                          bool affine) const {
        round_runs(
            in, v, affine, [](uint32_t) { return 0.0f; },
            [&](uint32_t row, float, uint32_t i) { return rows.four_at(row, i); });
    }
};
struct few_norms {
    rms_norm_op norm;
    __device__ __forceinline__ void round(const few_inputs &in, const weight_view &v,
                                          bool affine) const {
        __shared__ float part[FEW_ROWS][NORM_THREADS / WARP];
        square_rows(norm, in.rows, part);
        const bool one = norm.dim <= NORM_WARP_DIMS;
        round_runs(
            in, v, affine,
            [&](uint32_t row) {
                float sum = one ? part[row][0] : 0;
#pragma unroll
                for (uint32_t c = 0; c < NORM_THREADS / WARP; c++)
                    sum = one ? sum : sum + part[row][c];
                return norm_inverse(norm, sum);
            },
            [&](uint32_t row, float inverse, uint32_t i) {
                const float4 y = norm_four(norm, norm.x + (size_t)row * v.k, inverse, i);
                if (blockIdx.x == 0)
                    *(float4 *)(norm.y + (size_t)row * v.k + i) = y;
                return y;
            });
    }
};

// ---- the product -----------------------------------------------------------------------------

// What a lane has of four pairs of a row, `first` and on: the codes of block lane / 4; scales and
// sums of blocks 2q and 2q + 1. Zeros of pairs that are not there.
struct block_columns {
    uint2 x;
    float2 side[2];
};
__device__ __forceinline__ block_columns columns_of(const few_inputs &in, uint32_t row,
                                                    uint32_t first, uint32_t pairs) {
    const uint32_t lane = threadIdx.x % 32, r = lane / 4, q = lane % 4;
    const uint32_t own = first + r / 2, sided = first + q;
    block_columns c = {};
    if (own < pairs)
        c.x = ((const uint2 *)&in.codes[(own * in.rows + row) * 4 + q])[r % 2];
#pragma unroll
    for (uint32_t h = 0; h < 2; h++)
        if (sided < pairs)
            c.side[h] = in.sides[(sided * 2 + h) * in.rows + row];
    return c;
}

// acc[i], of outputs r and r + 8, in all four lanes of an output: the blocks of pairs [first, first
// + 4) are added, by the lane that has them.
template <class F>
__device__ __forceinline__ void add_blocks(const block_columns &c, const int (&dot)[4],
                                           const float2 (&d)[2], const float2 (&m)[2],
                                           uint32_t lane_of_pair, float (&acc)[2]) {
    float sum0 = acc[0], sum1 = acc[1];
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const float s = c.side[h].x, a = c.side[h].y;
        sum0 = fmaf(d[h].x * s, (float)dot[h], sum0);
        sum1 = fmaf(d[h].y * s, (float)dot[2 + h], sum1);
        if (F::BIASED) {
            sum0 = fmaf(m[h].x, a, sum0);
            sum1 = fmaf(m[h].y, a, sum1);
        }
    }
    acc[0] = __shfl_sync(~0u, sum0, lane_of_pair, 4);
    acc[1] = __shfl_sync(~0u, sum1, lane_of_pair, 4);
}

// A run's sums out of the slot. The columns of the instructions are not rows, of which there are
// too few, but blocks of inputs: column c has block c of the row, and zeros in the instructions of
// other blocks. After eight of them a lane has the dots of blocks 2q and 2q + 1, and the four lanes
// of an output add theirs one after the other, in the order of the blocks.
//
//     instruction i:   w of block i  x  | 0 .. x of block i .. 0 |        dot [output][block]
template <class F, int ROWS>
__device__ __forceinline__ void add_slot(const weight_view &v, const few_inputs &in, uint32_t run,
                                         const run_slot<F> &slot, float (&acc)[ROWS][2]) {
    const uint32_t lane = threadIdx.x % 32, r = lane / 4, q = lane % 4;
    const uint32_t pairs = min((uint32_t)RUN_PAIRS, v.pairs - run * RUN_PAIRS);
    const few_inputs here = {in.codes + run * RUN_PAIRS * ROWS * 4,
                             in.sides + run * RUN_PAIRS * ROWS * 2, ROWS};
#pragma unroll
    for (uint32_t first = 0; first < RUN_PAIRS; first += 4) {
        if (first >= pairs)
            break;
        block_columns c[ROWS];
        int dot[ROWS][4];
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            c[row] = columns_of(here, row, first, pairs);
#pragma unroll
            for (int i = 0; i < 4; i++)
                dot[row][i] = F::BIASED ? 0 : __float_as_int(c[row].side[i % 2].y);
        }
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            if (first + i / 2 >= pairs)
                break;
            const uint2 words = ((const uint2 *)&slot.codes[first + i / 2][lane])[i % 2];
            uint32_t w[4];
            spread_nibbles(words.x, words.y, w);
#pragma unroll
            for (int row = 0; row < ROWS; row++)
                mma_u8s8(dot[row], w, r == i ? c[row].x.x : 0, r == i ? c[row].x.y : 0);
        }
        float2 d[2], m[2] = {};
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            const uint32_t g = ((first + q) * 2 + h) * BLOCK / F::GROUP_SIZE;
            d[h] =
                two_scalars(((const uint32_t *)&slot.scales[g / 4][r])[g % 4], F::BIASED && v.bf16);
            if (F::BIASED)
                m[h] = two_scalars(((const uint32_t *)&slot.biases[g / 4][r])[g % 4], v.bf16);
        }
#pragma unroll
        for (uint32_t t = 0; t < 4; t++) {
            if (first + t >= pairs)
                break;
#pragma unroll
            for (int row = 0; row < ROWS; row++)
                add_blocks<F>(c[row], dot[row], d, m, t, acc[row]);
        }
    }
}

// Adds the sums of `count` runs; they begin and end those of an output. Each thread has its own
// outputs, here and in `total`, where those of a gate stay until the other factor is there.
__device__ __forceinline__ void add_runs(const product_args &a, const tile_place &place,
                                         uint32_t count, bool begins, bool ends,
                                         const float (&part)[WARPS_MAX][FEW_ROWS * PART_STRIDE],
                                         float (&total)[2][FEW_ROWS * TILE_OUTPUTS]) {
    const product_part &p = place.part;
    const uint32_t side = a.gated && &p == &a.part[1];
    for (uint32_t i = threadIdx.x; i < a.rows * TILE_OUTPUTS; i += blockDim.x) {
        const uint32_t row = i / TILE_OUTPUTS, output = i % TILE_OUTPUTS;
        const uint32_t j = place.tile * TILE_OUTPUTS + output;
        if (j >= p.w.n)
            continue;
        float sum = begins ? 0 : total[side][i];
        for (uint32_t run = 0; run < count; run++)
            sum += part[run][row * PART_STRIDE + output];
        total[side][i] = sum;
        const size_t at = (size_t)row * p.w.n + j;
        if (ends && (!a.gated || p.y != a.gated))
            put_output(p, at, j, sum);
        if (ends && side) {
            const float *gate_bias = a.part[0].bias;
            const float gate = gate_bias ? total[0][i] + gate_bias[j] : total[0][i];
            a.gated[at] = gate_value(a.gate, gate, p.bias ? sum + p.bias[j] : sum);
        }
    }
}

// a.rows is ROWS. grid: blocks that take the launch's tiles in turn.
template <class F, class From, int ROWS>
__global__ void __launch_bounds__(WARPS_MAX * 32, 2)
    few_kernel(const __grid_constant__ product_args a, const From from, uint32_t tiles) {
    extern __shared__ __align__(16) uint8_t memory[]; // [warp][FEW_SLOTS] | codes | sides
    __shared__ float part[2][WARPS_MAX][FEW_ROWS * PART_STRIDE];
    __shared__ float total[2][FEW_ROWS * TILE_OUTPUTS];
    kernel_comes();
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const weight_view &shape = a.part[0].w; // k and the form are those of all parts
    const uint32_t runs = blocks_of(shape.pairs, RUN_PAIRS);
    run_slot<F> *ring = (run_slot<F> *)memory + warp * FEW_SLOTS;
    uint4 *codes = (uint4 *)((run_slot<F> *)memory + warps * FEW_SLOTS);
    const few_inputs in = {codes, (float2 *)(codes + shape.pairs * a.rows * 4), a.rows};
    run_place coming = {first_tile(a), warp}, here = coming;
#pragma unroll
    for (int i = 0; i < FEW_SLOTS; i++) {
        fill_slot(a, coming, tiles, ring[i]);
        coming = next_run(a, coming, runs, warps);
    }
    kernel_waits();
    from.round(in, shape, F::BIASED);
    uint32_t slot = 0, side = 0;
    for (uint32_t tile = first_tile(a); tile < tiles; tile = next_tile(a, tile)) {
        const tile_place place = place_of_tile(a, tile);
        for (uint32_t first = 0; first < runs; first += warps, side ^= 1) {
            const uint32_t end = min(first + warps, runs);
            if (first + warp < end) {
                copies_wait<FEW_SLOTS - 1>();
                __syncwarp(); // scales were copied by other lanes
                float acc[ROWS][2] = {};
                add_slot<F, ROWS>(place.part.w, in, here.run, ring[slot], acc);
#pragma unroll
                for (int row = 0; row < ROWS; row++)
                    if (lane % 4 == 0) {
                        part[side][warp][row * PART_STRIDE + lane / 4] = acc[row][0];
                        part[side][warp][row * PART_STRIDE + 8 + lane / 4] = acc[row][1];
                    }
                __syncwarp();
                fill_slot(a, coming, tiles, ring[slot]);
                slot = (slot + 1) % FEW_SLOTS;
                here = next_run(a, here, runs, warps);
                coming = next_run(a, coming, runs, warps);
            }
            // The other side of `part` is written next: by warps that have come past the meeting
            // after this one, when this side was read.
            __syncthreads();
            add_runs(a, place, end - first, first == 0, end == runs, part[side], total);
        }
    }
    copies_wait<0>();
}
