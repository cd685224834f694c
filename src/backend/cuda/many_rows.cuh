// SPDX-License-Identifier: Apache-2.0
// many_rows.cuh: products of any number of rows with 4-bit matrices (halves.cuh), by warp groups:
// weights become f16 in registers, and the inputs come from shared memory (wgmma.cuh).
//
//     a warp group  64 outputs x N rows, the tile of 16 outputs of each of its warps
//     a block       WM warp groups of the same rows, and a warp that copies
//     a stage       128 inputs of the block's outputs and rows in shared memory: a ring of them,
//                   each with a barrier for its bytes and one for the warps that have used it
//     splits        blocks of the same outputs and rows that take the runs in turn, where the
//                   outputs are too few for the device
//
//     scratch       halves [N rows][pair][8][row][8]   f16: the elements 8 i .. 8 i + 7 of a pair's
//                                                      four instructions
//                   units  [N rows][run][row]
//     alone:        a warp group adds the sums of its runs itself, in registers
//     in splits:    it leaves each run's sums in device memory, [N rows][run][output][row]; then
//                   sums_kernel adds them, in order
#pragma once

#include "backend/cuda/copies.cuh"
#include "backend/cuda/halves.cuh"
#include "backend/cuda/wgmma.cuh"

enum {
    GROUP_OUTPUTS = 64,                   // of a warp group
    GROUP_THREADS = 128,                  // likewise
    STAGE_PAIRS = 2,                      // of inputs
    RUN_STAGES = RUN_PAIRS / STAGE_PAIRS, // of a run
    STAGES_MIN = 3,                       // in shared memory
    STAGES_MAX = 4,
    SPLITS_MAX = 8,
    SUMS_VALUES = 1024 // of a block of sums_kernel: four a thread
};

struct half_act {
    const uint4 *halves;
    const float *units;
};
// `together`: N of the kernel.
HD inline half_act half_act_at(void *scratch, uint32_t rows, uint32_t pairs, uint32_t together) {
    const size_t blocks = (rows + together - 1) / together;
    const uint4 *halves = (const uint4 *)scratch;
    return {halves, (const float *)(halves + blocks * pairs * 8 * together)};
}

template <class F, int N, int WM> struct many_stage {
    static constexpr int COLUMNS = 4 * WM / COLUMN_TILES; // of 8 tiles
    static_assert(WM % 2 == 0, "whole columns");
    static_assert(STAGE_PAIRS * PAIR / F::GROUP_SIZE <= 4, "the groups of a stage are of one quad");
    uint4 rows[STAGE_PAIRS][8][N];
    uint4 codes[COLUMNS][STAGE_PAIRS][COLUMN_TILES][32];
    uint4 scales[F::BIASED ? 2 : 1][COLUMNS][COLUMN_TILES][8]; // and biases
    float units[N];
};

// What a block copies and multiplies.
struct many_place {
    const uint8_t *codes, *scales, *biases; // of its first column
    const uint4 *halves;                    // of its rows
    const float *units;                     // likewise
    uint32_t columns;                       // that exist
    uint32_t pairs, quads, runs;            // of the matrix
};

// ---- copies ---------------------------------------------------------------------------------

// Whether a lane takes part in copies.
__device__ __forceinline__ bool starts_copies() {
#if BULK_COPIES
    return copies_bulk();
#else
    return true;
#endif
}
// Into a stage. Bulk copies are started by one lane, others by all of a warp.
__device__ __forceinline__ void copy_into(void *to, const void *from, uint32_t bytes,
                                          uint32_t bar) {
#if BULK_COPIES
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
    copy_bulk(smem_at(to), (const uint8_t *)from, bytes, bar);
#else
    copy_lanes(smem_at(to), (const uint8_t *)from, bytes);
#endif
}
__device__ __forceinline__ void copies_into_end(uint32_t bar) {
#if BULK_COPIES
    barrier_arrive(bar);
#else
    lanes_arrive(bar);
#endif
}

// The weights of stage s, inputs 128 s and on.
template <class F, int N, int WM>
__device__ __forceinline__ void copy_weights(const many_place &m, uint32_t s, uint32_t bar,
                                             many_stage<F, N, WM> &stage) {
    constexpr uint32_t CODES = COLUMN_TILES * 512,
                       SCALARS = COLUMN_TILES * 128; // bytes of a column
    const uint32_t pair0 = s * STAGE_PAIRS, pairs = min(m.pairs - pair0, (uint32_t)STAGE_PAIRS);
    const uint32_t quad = s * STAGE_PAIRS * PAIR / F::GROUP_SIZE / 4;
    for (uint32_t i = 0; i < m.columns; i++) {
        const size_t at = ((size_t)i * m.quads + quad) * SCALARS;
        copy_into(stage.codes[i], m.codes + ((size_t)i * m.pairs + pair0) * CODES, pairs * CODES,
                  bar);
        copy_into(stage.scales[0][i], m.scales + at, SCALARS, bar);
        if (F::BIASED)
            copy_into(stage.scales[F::BIASED][i], m.biases + at, SCALARS, bar);
    }
}

// Its inputs and their units.
template <class F, int N, int WM>
__device__ __forceinline__ void copy_rows(const many_place &m, uint32_t s, uint32_t bar,
                                          many_stage<F, N, WM> &stage) {
    const uint32_t pair0 = s * STAGE_PAIRS, pairs = min(m.pairs - pair0, (uint32_t)STAGE_PAIRS);
    copy_into(stage.rows, m.halves + (size_t)pair0 * 8 * N, pairs * (8 * N * 16), bar);
    copy_into(stage.units, m.units + s / RUN_STAGES * N, N * sizeof(float), bar);
}

// ---- the warps that multiply -----------------------------------------------------------------

// The weights of pair p of stage s, of a warp's tile.
template <class F, int N, int WM>
__device__ __forceinline__ void stage_weights(const many_stage<F, N, WM> &stage, uint32_t s,
                                              uint32_t p, uint32_t tile, uint32_t (&w)[4][4]) {
    const uint32_t lane = threadIdx.x % 32, r = lane / 4;
    const uint32_t column = tile / COLUMN_TILES, in_column = tile % COLUMN_TILES;
    const uint32_t *scales = (const uint32_t *)&stage.scales[0][column][in_column][r];
    const uint32_t *biases = (const uint32_t *)&stage.scales[F::BIASED][column][in_column][r];
    const uint32_t group0 = s * STAGE_PAIRS * PAIR / F::GROUP_SIZE % 4;
    const auto group = [&](uint32_t h) { return group0 + (p * 2 + h) * BLOCK / F::GROUP_SIZE; };
    weights_of_pair<F>(
        stage.codes[column][p][in_column][lane], [&](uint32_t h) { return scales[group(h)]; },
        [&](uint32_t h) { return F::BIASED ? biases[group(h)] : 0; }, w);
}

// fn(row, output, j, i) for each of a lane's sums [j][i]; output in the block's.
template <int N, class Fn> __device__ __forceinline__ void each_sum(uint32_t tile, Fn fn) {
    const uint32_t r = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (uint32_t j = 0; j < N / 8; j++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            fn(j * 8 + 2 * q + i % 2, tile * TILE_OUTPUTS + r + i / 2 * 8, j, i);
}

// ---- the ring --------------------------------------------------------------------------------

// The stages of the runs split, split + splits, ... in turn, which both sides go through: the warp
// that copies and those that multiply.
template <class F, int N, int WM> struct many_ring {
    using Stage = many_stage<F, N, WM>;
    static constexpr uint32_t WARPS = 4 * WM; // that multiply
    Stage *stages;
    uint32_t full, used; // addresses of barriers, 8 bytes each
    uint32_t count;      // of stages
    uint32_t split, splits;
    uint32_t at, phase; // the next one, and how often the ring went round

    __device__ __forceinline__ void init() const {
        for (uint32_t i = 0; i < count; i++) {
            barrier_init(full + 8 * i, COPY_ARRIVALS);
            barrier_init(used + 8 * i, WARPS);
        }
        barriers_ready();
    }
    __device__ __forceinline__ void next() {
        if (++at == count) {
            at = 0;
            phase ^= 1;
        }
    }
    __device__ __forceinline__ uint32_t after(uint32_t s) const {
        return s % RUN_STAGES == RUN_STAGES - 1 ? s + 1 + (splits - 1) * RUN_STAGES : s + 1;
    }
    __device__ __forceinline__ static uint32_t stages_of(const many_place &m) {
        return (m.pairs + STAGE_PAIRS - 1) / STAGE_PAIRS;
    }
    // Copies all stages of this block. Weights of the first ones are there before this kernel's
    // inputs.
    __device__ __forceinline__ void fill(const many_place &m) {
        uint32_t s = split * RUN_STAGES;
        for (uint32_t i = 0; i < count && s < stages_of(m); i++, s = after(s))
            copy_weights(m, s, full + 8 * i, stages[i]);
        kernel_waits();
        uint32_t begun = 0;
        for (s = split * RUN_STAGES; s < stages_of(m); s = after(s), next(), begun++) {
            const uint32_t bar = full + 8 * at;
            if (begun >= count) {
                barrier_wait(used + 8 * at, phase ^ 1);
                copy_weights(m, s, bar, stages[at]);
            }
            copy_rows(m, s, bar, stages[at]);
            copies_into_end(bar);
        }
    }
    // Run `run`, which is the block's next one, into sums, times its units.
    __device__ __forceinline__ void add_run(const many_place &m, uint32_t run, uint32_t tile,
                                            Sums<N> &sums) {
        const uint32_t end = min((run + 1) * RUN_STAGES, stages_of(m));
#pragma unroll 1
        for (uint32_t s = run * RUN_STAGES; s < end; s++, next()) {
            const Stage &stage = stages[at];
            barrier_wait(full + 8 * at, phase);
#pragma unroll
            for (uint32_t p = 0; p < STAGE_PAIRS; p++) {
                if (s * STAGE_PAIRS + p >= m.pairs)
                    break;
                uint32_t w[4][4];
                stage_weights(stage, s, p, tile, w);
                values_begin<false, N>(sums, w, smem_at(stage.rows[p]));
                products_end(sums, w);
            }
            if (s + 1 == end)
                each_sum<N>(0, [&](uint32_t row, uint32_t, uint32_t j, uint32_t i) {
                    sums[j][i] = sum_of_run(sums[j][i], stage.units[row]);
                });
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                barrier_arrive(used + 8 * at);
        }
    }
};

// ---- the kernel ------------------------------------------------------------------------------

// The outputs of part p that a block makes.
template <class F, int N, int WM> struct many_block {
    static constexpr uint32_t OUTPUTS = WM * GROUP_OUTPUTS;
    const product_part &p;
    many_place m;
    many_ring<F, N, WM> ring;
    uint32_t output0, row0, rows;
    float *sums;         // in splits: of its outputs and rows and run 0, [output][N]
    size_t sums_of_runs; // from one run's to the next

    __device__ __forceinline__ void put(uint32_t row, uint32_t output, float sum) const {
        if (output0 + output < p.w.n && row0 + row < rows)
            put_output(p, (size_t)(row0 + row) * p.w.n + output0 + output, output0 + output,
                       sum_of_runs(sum));
    }

    __device__ __forceinline__ void multiply_alone(uint32_t tile) {
        Sums<N> total = {};
        for (uint32_t run = 0; run < m.runs; run++) {
            Sums<N> now = {};
            ring.add_run(m, run, tile, now);
            each_sum<N>(
                0, [&](uint32_t, uint32_t, uint32_t j, uint32_t i) { total[j][i] += now[j][i]; });
        }
        each_sum<N>(tile, [&](uint32_t row, uint32_t output, uint32_t j, uint32_t i) {
            put(row, output, total[j][i]);
        });
    }
    __device__ __forceinline__ void multiply_split(uint32_t tile) {
        for (uint32_t run = ring.split; run < m.runs; run += ring.splits) {
            Sums<N> now = {};
            ring.add_run(m, run, tile, now);
            each_sum<N>(tile, [&](uint32_t row, uint32_t output, uint32_t j, uint32_t i) {
                if (i % 2 == 0)
                    *(float2 *)(sums + run * sums_of_runs + output * N + row) =
                        make_float2(now[j][i], now[j][i + 1]);
            });
        }
    }
};

// Of a multiprocessor.
template <int N, int WM> constexpr uint32_t blocks_together() {
    return N < 128 && WM == 2 ? 2 : 1;
}

// grid: [splits, of N rows after the other][64 WM outputs, of one matrix after the other]: blocks
// that share weights are neighbours. a.part[].first counts in 64 WM outputs. sums: of splits.
template <class F, int N, int WM>
__global__ void __launch_bounds__(WM *GROUP_THREADS + 32, blocks_together<N, WM>())
    many_kernel(const __grid_constant__ product_args a, const half_act act, uint32_t stages,
                uint32_t splits, float *sums) {
    extern __shared__ __align__(128) uint4 many_memory[]; // stages
    __shared__ __align__(8) uint64_t barriers[2 * STAGES_MAX];
    using Stage = many_stage<F, N, WM>;
    kernel_comes();
    const uint32_t warp = threadIdx.x / 32, rows_at = blockIdx.x / splits;
    const product_part &p = a.part[part_of_tile(a, blockIdx.y)];
    const weight_view &w = p.w;
    const uint32_t column0 = (blockIdx.y - p.first) * Stage::COLUMNS,
                   runs = blocks_of(w.pairs, RUN_PAIRS);
    Stage *const ring = (Stage *)many_memory;
    const size_t codes = halves_codes(w, column0 * COLUMN_TILES, 0) * 16,
                 scalars = halves_scalars(w, column0 * COLUMN_TILES, 0) * 16;
    many_block<F, N, WM> b = {
        p,
        {w.codes + codes, w.scales + scalars, F::BIASED ? w.biases + scalars : nullptr,
         act.halves + (size_t)rows_at * w.pairs * 8 * N, act.units + (size_t)rows_at * runs * N,
         min(blocks_of(w.n, COLUMN_TILES * TILE_OUTPUTS) - column0, (uint32_t)Stage::COLUMNS),
         w.pairs, w.quads, runs},
        {ring, smem_at(barriers), smem_at(barriers + STAGES_MAX), stages, blockIdx.x % splits,
         splits, 0, 0},
        column0 * COLUMN_TILES * TILE_OUTPUTS,
        rows_at * N,
        a.rows,
        sums + ((size_t)rows_at * runs * gridDim.y + blockIdx.y) * (WM * GROUP_OUTPUTS * N),
        (size_t)gridDim.y * (WM * GROUP_OUTPUTS * N)};
    if (threadIdx.x == 0)
        b.ring.init();
    __syncthreads();
    if (warp == 4 * WM) {
        if (starts_copies())
            b.ring.fill(b.m);
        return;
    }
    kernel_waits();
    if (splits > 1)
        b.multiply_split(warp);
    else
        b.multiply_alone(warp);
}

// Adds the runs' sums of splits. grid: [N rows][SUMS_VALUES / N outputs]. tile: a.part[].first
// counts in so many outputs; outputs: of all blocks of many_kernel.
template <int N>
__global__ void __launch_bounds__(SUMS_VALUES / 4)
    sums_kernel(const __grid_constant__ product_args a, const float *sums, uint32_t tile,
                uint32_t outputs) {
    constexpr uint32_t OUTPUTS = SUMS_VALUES / N;
    __shared__ float turned[N][OUTPUTS + 1];
    kernel_begins();
    const uint32_t first = blockIdx.y * OUTPUTS, row = threadIdx.x * 4 % N;
    const product_part &p = a.part[part_of_tile(a, first / tile)];
    const uint32_t runs = blocks_of(p.w.pairs, RUN_PAIRS), output0 = first - p.first * tile;
    const float4 *from = (const float4 *)(sums + ((size_t)blockIdx.x * runs * outputs + first) * N);
    float4 total = {};
#pragma unroll 8
    for (uint32_t run = 0; run < runs; run++) {
        const float4 v = from[(size_t)run * outputs * (N / 4) + threadIdx.x];
        total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
    }
    float *column = &turned[row][threadIdx.x * 4 / N];
    column[0] = total.x;
    column[OUTPUTS + 1] = total.y;
    column[2 * (OUTPUTS + 1)] = total.z;
    column[3 * (OUTPUTS + 1)] = total.w;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < SUMS_VALUES; i += SUMS_VALUES / 4) {
        const uint32_t at = blockIdx.x * N + i / OUTPUTS, output = output0 + i % OUTPUTS;
        if (output < p.w.n && at < a.rows)
            put_output(p, (size_t)at * p.w.n + output, output,
                       sum_of_runs(turned[i / OUTPUTS][i % OUTPUTS]));
    }
}
