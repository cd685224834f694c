// SPDX-License-Identifier: Apache-2.0
// few_rows.cuh: products of 1 to 16 rows with 4-bit matrices (halves.cuh). The time is that of
// reading the matrix, so reading never stops. For one or two rows nothing is launched for the sake
// of the input: every block makes and rounds the rows for itself. More are rounded before.
//
//     a block      tiles b, b + blocks, b + 2 blocks, ...   of 16 outputs, one after the other
//     its warps    runs w, w + W, ... of each tile
//     a warp       a ring of FEW_SLOTS runs of weights in shared memory, filled by asynchronous
//                  copies. A lane copies the codes that it multiplies itself, so that only scales
//                  need the warp to meet
//
//     inputs       halves [pair][row][q] 32 bytes: lane q's inputs of each instruction; units [run]
//                  [row]. Made of x, or of what rms_norm makes of it, by the warp that multiplies
//                  them; or in scratch, of 8 or 16 rows
//     part [2][warp][row][output] -> total -> y       sums of runs, added in order; of two
//                                                     matrices also gated(y0) * y1
//
// The ring is filled before the wait for the kernel that makes x, so weights travel while earlier
// operations run.
#pragma once

#include <type_traits>

#include "backend/cuda/halves.cuh"

// FIXED: of shared memory that is not the ring or the inputs, at most.
enum { FEW_SLOTS = 2, FEW_INPUT_BYTES = 32 << 10, FEW_FIXED_BYTES = 24 << 10 };
enum { FEW_ROWS = 8, OWN_ROWS = 2 }; // of a column tile; that a block rounds for itself

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
    if (p.tile < tiles) {
        const tile_place place = place_of_tile(a, p.tile);
        const weight_view &v = place.part.w;
        const uint32_t pairs = min((uint32_t)RUN_PAIRS, v.pairs - p.run * RUN_PAIRS);
        const uint4 *codes =
            (const uint4 *)v.codes + halves_codes(v, place.tile, p.run * RUN_PAIRS) + lane;
        const uint32_t to = smem_at(&slot.codes[0][lane]);
        const auto copy = [&](uint32_t i) {
            copy_16(to + i * 512, codes + i * (COLUMN_TILES * 32));
        };
        if (pairs == RUN_PAIRS) {
#pragma unroll
            for (uint32_t i = 0; i < RUN_PAIRS; i++)
                copy(i);
        } else {
            for (uint32_t i = 0; i < pairs; i++)
                copy(i);
        }
        const uint32_t quad = lane / 8;
        if (quad < F::QUADS && p.run * F::QUADS + quad < v.quads) {
            const size_t at = halves_scalars(v, place.tile, p.run * F::QUADS + quad) + lane % 8;
            copy_16(smem_at(&slot.scales[0][lane]), (const uint4 *)v.scales + at);
            if (F::BIASED)
                copy_16(smem_at(&slot.biases[0][lane]), (const uint4 *)v.biases + at);
        }
    }
    copies_end();
}

// ---- inputs ----------------------------------------------------------------------------------

// The rounded rows: of ROWS, of which the last may not exist.
struct few_inputs {
    uint4 *halves;
    float *units;
    uint32_t rows; // ROWS
};
HD inline few_inputs few_inputs_at(void *at, uint32_t pairs, uint32_t rows) {
    uint4 *halves = (uint4 *)at;
    return {halves, (float *)(halves + (size_t)pairs * rows * 8), rows};
}
// Of four `four` of a run: where its words are, in pieces of 8 bytes.
HD inline size_t few_words(uint32_t pair, uint32_t rows, uint32_t row, uint32_t four) {
    return (((size_t)pair * rows + row) * 4 + four % 4) * 4 + four / 4 % 4;
}
constexpr uint32_t few_input_bytes(uint32_t pairs, uint32_t rows) {
    return rows * (pairs * PAIR * 2 + (pairs + RUN_PAIRS - 1) / RUN_PAIRS * 4);
}

// The runs that this warp multiplies, of all rows. four_of(row, of_row(row), i): four inputs.
// keep(row, i, of those): where they are to be written.
template <class Row, class From, class Keep>
__device__ __forceinline__ void round_runs(const few_inputs &in, const weight_view &v, Row of_row,
                                           From four_of, Keep keep) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (uint32_t run = warp; run * RUN_PAIRS < v.pairs; run += warps)
        for (uint32_t row = 0; row < in.rows; row++) {
            const float known = of_row(row);
            const half_run x = round_half_run(
                fours_of_run(v.k, run),
                [&](uint32_t four) { return four_of(row, known, run * RUN + four * 4); },
                [&](uint32_t four, float4 y) { keep(row, run * RUN + four * 4, y); });
            if (lane == 0)
                in.units[run * in.rows + row] = x.unit;
#pragma unroll
            for (uint32_t j = 0; j < RUN / 4 / 32; j++) {
                const uint32_t four = j * 32 + lane, pair = run * RUN_PAIRS + four / 16;
                if (pair < v.pairs)
                    ((uint2 *)in.halves)[few_words(pair, in.rows, row, four)] = x.words[j];
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

// Inputs from scratch, from memory, or from rms_norm's operands, whose result the first block
// writes as well.
struct few_rounded {
    few_inputs in;
};
struct few_rows_of {
    packed_rows rows;
    __device__ __forceinline__ void round(const few_inputs &in, const weight_view &v) const {
        round_runs(
            in, v, [](uint32_t) { return 0.0f; },
            [&](uint32_t row, float, uint32_t i) { return rows.four_at(row, i); },
            [](uint32_t, uint32_t, float4) {});
    }
};
struct few_norms {
    rms_norm_op norm;
    __device__ __forceinline__ void round(const few_inputs &in, const weight_view &v) const {
        __shared__ float part[OWN_ROWS][NORM_THREADS / WARP];
        square_rows(norm, in.rows, part);
        const bool one = norm.dim <= NORM_WARP_DIMS;
        round_runs(
            in, v,
            [&](uint32_t row) {
                float sum = one ? part[row][0] : 0;
#pragma unroll
                for (uint32_t c = 0; c < NORM_THREADS / WARP; c++)
                    sum = one ? sum : sum + part[row][c];
                return norm_inverse(norm, sum);
            },
            [&](uint32_t row, float inverse, uint32_t i) {
                return norm_four(norm, norm.x + (size_t)row * v.k, inverse, i);
            },
            [&](uint32_t row, uint32_t i, float4 y) {
                if (blockIdx.x == 0)
                    *(float4 *)(norm.y + (size_t)row * v.k + i) = y;
            });
    }
};

// ---- the product -----------------------------------------------------------------------------

// Of column tiles of 8 rows: columns 2q and 2q + 1, output r, then output r + 8; with fewer rows
// than columns, column c has row c % ROWS.
template <int ROWS> using few_sums = float[(ROWS + FEW_ROWS - 1) / FEW_ROWS][4];

// The first `pairs` pairs of a run out of its slot. x: of this lane's first column.
template <class F, int ROWS, bool ALL>
__device__ __forceinline__ void add_slot(const uint4 *x, uint32_t pairs, const run_slot<F> &slot,
                                         few_sums<ROWS> &sums) {
    const uint32_t lane = threadIdx.x % 32, r = lane / 4;
    const auto scalar = [&](const uint4(*of)[8], uint32_t g) {
        return ((const uint32_t *)&of[g / 4][r])[g % 4];
    };
#pragma unroll
    for (uint32_t p = 0; p < RUN_PAIRS; p++) {
        if (!ALL && p >= pairs)
            break;
        uint32_t w[4][4];
        const auto group = [&](uint32_t h) { return (p * 2 + h) * BLOCK / F::GROUP_SIZE; };
        weights_of_pair<F>(
            slot.codes[p][lane], [&](uint32_t h) { return scalar(slot.scales, group(h)); },
            [&](uint32_t h) { return F::BIASED ? scalar(slot.biases, group(h)) : 0; }, w);
#pragma unroll
        for (uint32_t c = 0; c < sizeof sums / sizeof *sums; c++) {
            const uint4 *at = x + (p * ROWS + c * FEW_ROWS) * 8;
            const uint4 x0 = at[0], x1 = at[1];
            mma_half<false>(sums[c], w[0], x0.x, x0.y);
            mma_half<false>(sums[c], w[1], x0.z, x0.w);
            mma_half<false>(sums[c], w[2], x1.x, x1.y);
            mma_half<false>(sums[c], w[3], x1.z, x1.w);
        }
    }
}
template <class F, int ROWS>
__device__ __forceinline__ void add_run(const weight_view &v, const few_inputs &in, uint32_t run,
                                        const run_slot<F> &slot, few_sums<ROWS> &sums) {
    const uint32_t column = threadIdx.x % 32 / 4 % ROWS, q = threadIdx.x % 4;
    const uint32_t pairs = min((uint32_t)RUN_PAIRS, v.pairs - run * RUN_PAIRS);
    const uint4 *x = in.halves + ((size_t)run * RUN_PAIRS * ROWS + column) * 8 + q * 2;
    if (pairs == RUN_PAIRS)
        add_slot<F, ROWS, true>(x, pairs, slot, sums);
    else
        add_slot<F, ROWS, false>(x, pairs, slot, sums);
}

// Adds the sums of `count` runs; they begin and end those of an output. Each thread has its own
// outputs, here and in `total`, where those of a gate stay until the other factor is there.
template <int ROWS>
__device__ __forceinline__ void add_runs(const product_args &a, const tile_place &place,
                                         uint32_t count, bool begins, bool ends,
                                         const float (&part)[WARPS_MAX][ROWS * PART_STRIDE],
                                         float (&total)[2][ROWS * TILE_OUTPUTS]) {
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
            put_output(p, at, j, sum_of_runs(sum));
        if (ends && side)
            a.gated[at] = gate_value(a.gate, output_of(a.part[0], j, sum_of_runs(total[0][i])),
                                     output_of(p, j, sum_of_runs(sum)));
    }
}

// a.rows is ROWS, or at most that where they come from scratch. grid: blocks that take the launch's
// tiles in turn.
template <class F, class From, int ROWS>
__global__ void __launch_bounds__(WARPS_MAX * 32, 2)
    few_kernel(const __grid_constant__ product_args a, const From from, uint32_t tiles) {
    constexpr bool ROUNDED = std::is_same<From, few_rounded>::value;
    extern __shared__ __align__(16) uint8_t memory[]; // [warp][FEW_SLOTS] | halves | units
    __shared__ float part[2][WARPS_MAX][ROWS * PART_STRIDE];
    __shared__ float total[2][ROWS * TILE_OUTPUTS];
    kernel_comes();
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const weight_view &shape = a.part[0].w; // k and the form are those of all parts
    const uint32_t runs = blocks_of(shape.pairs, RUN_PAIRS);
    run_slot<F> *ring = (run_slot<F> *)memory + warp * FEW_SLOTS;
    run_place coming = {first_tile(a), warp}, here = coming;
    const auto fill = [&](run_slot<F> &to) {
        fill_slot(a, coming, tiles, to);
        coming = next_run(a, coming, runs, warps);
    };
#pragma unroll
    for (int i = 0; i < FEW_SLOTS; i++)
        fill(ring[i]);
    kernel_waits();
    few_inputs in;
    if constexpr (ROUNDED) {
        in = from.in;
    } else {
        in = few_inputs_at((run_slot<F> *)memory + warps * FEW_SLOTS, shape.pairs, ROWS);
        from.round(in, shape);
    }
    uint32_t slot = 0, side = 0;
    for (uint32_t tile = first_tile(a); tile < tiles; tile = next_tile(a, tile)) {
        const tile_place place = place_of_tile(a, tile);
        for (uint32_t first = 0; first < runs; first += warps, side ^= 1) {
            const uint32_t end = min(first + warps, runs);
            if (first + warp < end) {
                copies_wait<FEW_SLOTS - 1>();
                __syncwarp(); // scales were copied by other lanes
                few_sums<ROWS> sums = {};
                add_run<F, ROWS>(shape, in, here.run, ring[slot], sums);
#pragma unroll
                for (uint32_t i = 0; i < 2 * (sizeof sums / sizeof *sums); i++) {
                    const uint32_t row = i / 2 * FEW_ROWS + lane % 4 * 2 + i % 2;
                    if (row >= ROWS)
                        continue;
                    const float unit = in.units[here.run * ROWS + row];
                    float *to = &part[side][warp][row * PART_STRIDE + lane / 4];
                    to[0] = sum_of_run(sums[i / 2][i % 2], unit);
                    to[8] = sum_of_run(sums[i / 2][2 + i % 2], unit);
                }
                __syncwarp();
                fill(ring[slot]);
                slot = (slot + 1) % FEW_SLOTS;
                here = next_run(a, here, runs, warps);
            }
            // The other side of `part` is written next: by warps that have come past the meeting
            // after this one, when this side was read.
            __syncthreads();
            add_runs<ROWS>(a, place, end - first, first == 0, end == runs, part[side], total);
        }
    }
    copies_wait<0>();
}
