// SPDX-License-Identifier: Apache-2.0
// many_rows.cuh: products of any number of rows with 4-bit matrices (halves.cuh), by warp groups:
// weights become f16 in registers, and the inputs come from shared memory (wgmma.cuh).
//
//     a warp group  64 outputs x N rows, the tile of 16 outputs of each of its warps
//     a block       WM warp groups of the same rows, and WM warps that copy: a copy takes a warp
//                   some 100 ns, whatever its size (two more wait for nothing where N is 64 and
//                   WM is 2: many_threads)
//     a stage       128 inputs of the block's outputs and rows in shared memory: a ring of them,
//                   each with a barrier for its bytes and one for the warps that have used it
//     gated         a block has as many outputs of each of two matrices, which it multiplies
//     splits        blocks of the same outputs and rows, where the outputs are too few for the
//                   device: they take the sets in turn or, if there are too few of these, the runs
//
//     scratch       halves [N rows][pair][8][row][8]   f16: the elements 8 i .. 8 i + 7 of a pair's
//                                                      four instructions
//                   units  [N rows][run][row]
//     alone:        a warp group adds the sums of its runs itself: of a set in registers, of
//                   sets in shared memory
//     in splits:    it leaves what it has of each of its turns in device memory, [N rows][turn]
//                   [output][row]; then sums_kernel adds them, in order
#pragma once

#include "backend/cuda/copies.cuh"
#include "backend/cuda/halves.cuh"
#include "backend/cuda/wgmma.cuh"

enum {
    GROUP_OUTPUTS = 64,                   // of a warp group
    GROUP_THREADS = 128,                  // likewise
    STAGE_PAIRS = 2,                      // of inputs
    RUN_STAGES = RUN_PAIRS / STAGE_PAIRS, // of a run
    STAGES_MIN = 2,                       // in shared memory
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
    static_assert(WM == 2 || WM == 4, "one or two columns");
    static_assert(STAGE_PAIRS * PAIR / F::GROUP_SIZE <= 4, "the groups of a stage are of one quad");
    uint4 rows[STAGE_PAIRS][8][N];
    uint4 codes[COLUMNS][STAGE_PAIRS][COLUMN_TILES][32];
    uint4 scales[F::BIASED ? 2 : 1][COLUMNS][COLUMN_TILES][8]; // and biases
    float units[N];
};

// What a block copies and multiplies.
struct many_place {
    struct side {
        const uint8_t *codes, *scales, *biases;
    } first, second; // its first column; or gated those of both matrices
    bool gated;
    const uint4 *halves;         // of its rows
    const float *units;          // likewise
    uint32_t columns;            // that exist
    uint32_t pairs, quads, runs; // of the matrix
};
// How blocks share the runs of an output: split i has turns i, i + splits, ..., of so many runs.
struct many_splits {
    uint32_t splits, turn;
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

// What warp i of WM copies: the first one the rows, the others weights.
template <int WM> struct copier {
    static constexpr uint32_t WEIGHTS = WM - 1; // warps
    uint32_t i;
    __device__ __forceinline__ bool has_rows() const { return i == 0; }
    __device__ __forceinline__ bool has_codes(uint32_t column) const {
        return i == 1 + column % WEIGHTS;
    }
    __device__ __forceinline__ bool has_scales() const { return i == WEIGHTS; }
};

// Its weights of stage s, inputs 128 s and on. A gated block has outputs of the first matrix and
// then as many of the second.
template <class F, int N, int WM>
__device__ __forceinline__ void copy_weights(const copier<WM> &my, const many_place &m, uint32_t s,
                                             uint32_t bar, many_stage<F, N, WM> &stage) {
    constexpr uint32_t CODES = COLUMN_TILES * 512,
                       SCALARS = COLUMN_TILES * 128; // bytes of a column
    const uint32_t pair0 = s * STAGE_PAIRS, pairs = min(m.pairs - pair0, (uint32_t)STAGE_PAIRS);
    const uint32_t quad = s * STAGE_PAIRS * PAIR / F::GROUP_SIZE / 4;
    for (uint32_t i = 0; i < (m.gated ? 2 : m.columns); i++) {
        // of two matrices, a column of each or half of one
        const many_place::side from = m.gated && i ? m.second : m.first;
        const uint32_t column = WM == 2 ? 0 : i, tile = WM == 2 && m.gated ? i * 4 : 0,
                       tiles = WM == 2 && m.gated ? 4 : COLUMN_TILES, after = m.gated ? 0 : i;
        const size_t codes = ((size_t)after * m.pairs + pair0) * CODES,
                     scalars = ((size_t)after * m.quads + quad) * SCALARS;
        if (my.has_codes(column) && tiles == COLUMN_TILES)
            copy_into(stage.codes[column], from.codes + codes, pairs * CODES, bar);
        else if (my.has_codes(column))
            for (uint32_t p = 0; p < pairs; p++)
                copy_into(stage.codes[column][p][tile], from.codes + codes + p * CODES, tiles * 512,
                          bar);
        if (!my.has_scales())
            continue;
        copy_into(stage.scales[0][column][tile], from.scales + scalars, tiles * 128, bar);
        if (F::BIASED)
            copy_into(stage.scales[F::BIASED][column][tile], from.biases + scalars, tiles * 128,
                      bar);
    }
}

// The rows' inputs, and their units with the last stage of a run.
template <class F, int N, int WM>
__device__ __forceinline__ void copy_rows(const many_place &m, uint32_t s, uint32_t bar,
                                          many_stage<F, N, WM> &stage) {
    const uint32_t pair0 = s * STAGE_PAIRS, pairs = min(m.pairs - pair0, (uint32_t)STAGE_PAIRS);
    copy_into(stage.rows, m.halves + (size_t)pair0 * 8 * N, pairs * (8 * N * 16), bar);
    if (s % RUN_STAGES == RUN_STAGES - 1 || pair0 + STAGE_PAIRS >= m.pairs)
        copy_into(stage.units, m.units + s / RUN_STAGES * N, N * sizeof(float), bar);
}

// ---- the warps that multiply -----------------------------------------------------------------

// The weights of block h of pair p of stage s, of a warp's tile: of two instructions.
template <class F, int N, int WM>
__device__ __forceinline__ void stage_weights(const many_stage<F, N, WM> &stage, uint32_t s,
                                              uint32_t p, uint32_t h, uint32_t tile,
                                              uint32_t (*w)[4]) {
    const uint32_t lane = threadIdx.x % 32, r = lane / 4;
    const uint32_t column = tile / COLUMN_TILES, in_column = tile % COLUMN_TILES;
    const uint32_t *scales = (const uint32_t *)&stage.scales[0][column][in_column][r];
    const uint32_t *biases = (const uint32_t *)&stage.scales[F::BIASED][column][in_column][r];
    const uint32_t group =
        s * STAGE_PAIRS * PAIR / F::GROUP_SIZE % 4 + (p * 2 + h) * BLOCK / F::GROUP_SIZE;
    const uint2 codes = ((const uint2 *)&stage.codes[column][p][in_column][lane])[h];
    weights_of_block(codes.x, codes.y,
                     scalars_of_group<F::BIASED>(scales[group], F::BIASED ? biases[group] : 0),
                     w[0], w[1]);
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

// The stages of the runs split, split + splits, ... in turn, which both sides go through: the warps
// that copy and those that multiply.
template <class F, int N, int WM> struct many_ring {
    using Stage = many_stage<F, N, WM>;
    static constexpr uint32_t WARPS = 4 * WM; // that multiply
    Stage *stages;
    uint32_t full, used; // addresses of barriers, 8 bytes each
    uint32_t count;      // of stages
    uint32_t split;
    many_splits all;
    uint32_t at, phase; // the next one, and how often the ring went round
    uint32_t before;    // the one before it

    __device__ __forceinline__ void init() const {
        for (uint32_t i = 0; i < count; i++) {
            barrier_init(full + 8 * i, WM * COPY_ARRIVALS);
            barrier_init(used + 8 * i, WARPS * WARP_ARRIVALS);
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
        const uint32_t turn = all.turn * RUN_STAGES;
        return s % turn == turn - 1 ? s + 1 + (all.splits - 1) * turn : s + 1;
    }
    __device__ __forceinline__ static uint32_t stages_of(const many_place &m) {
        return (m.pairs + STAGE_PAIRS - 1) / STAGE_PAIRS;
    }
    // Copies a warp's part of all stages of this block. Weights do not wait for the kernel before.
    __device__ __forceinline__ void fill(const copier<WM> &my, const many_place &m) {
        if (my.has_rows())
            kernel_waits();
        uint32_t begun = 0;
        for (uint32_t s = split * all.turn * RUN_STAGES; s < stages_of(m);
             s = after(s), next(), begun++) {
            const uint32_t bar = full + 8 * at;
            if (begun >= count)
                barrier_wait(used + 8 * at, phase ^ 1);
            if (my.has_rows())
                copy_rows(m, s, bar, stages[at]);
            else
                copy_weights(my, m, s, bar, stages[at]);
            copies_into_end(bar);
        }
    }
    // The inputs of block h of pair p of the stage that is read.
    __device__ __forceinline__ uint32_t rows_at(uint32_t p, uint32_t h) const {
        return smem_at(stages[at].rows[p][4 * h]);
    }
    __device__ __forceinline__ void wait() const { barrier_wait(full + 8 * at, phase); }
    // A warp has read stage i.
    __device__ __forceinline__ void release(uint32_t i) const { warp_arrive(used + 8 * i); }
    // A run of RUN_PAIRS from stage s on. Weights of a block are made while the products of the one
    // before are under way.
    __device__ __forceinline__ void overlapped_run(uint32_t s, uint32_t tile, Sums<N> &sums) {
        constexpr uint32_t STAGE_BLOCKS = 2 * STAGE_PAIRS, BLOCKS = 2 * RUN_PAIRS;
        uint32_t w[2][2][4] = {};
        wait();
        stage_weights(stages[at], s, 0, 0, tile, w[0]);
#pragma unroll
        for (uint32_t i = 0; i < BLOCKS; i++) {
            const uint32_t in_stage = i % STAGE_BLOCKS, next_i = (i + 1) % STAGE_BLOCKS;
            values_begin<false, N>(sums, w[i % 2], rows_at(in_stage / 2, in_stage % 2));
            weights_taken<1>(w[1 - i % 2]);
            if (in_stage == 0 && i > 0)
                release(before);
            if (next_i == 0) {
                before = at;
                next();
            }
            if (i + 1 < BLOCKS) {
                if (next_i == 0)
                    wait();
                stage_weights(stages[at], s + (i + 1) / STAGE_BLOCKS, next_i / 2, next_i % 2, tile,
                              w[1 - i % 2]);
            }
        }
        products_end(sums, w[(BLOCKS - 1) % 2]);
    }
    // Any run: one pair after the other.
    __device__ __forceinline__ void plain_run(const many_place &m, uint32_t s, uint32_t tile,
                                              Sums<N> &sums) {
        const uint32_t end = min(s + RUN_STAGES, stages_of(m));
#pragma unroll 1
        for (; s < end; s++) {
            wait();
#pragma unroll
            for (uint32_t p = 0; p < STAGE_PAIRS; p++) {
                if (s * STAGE_PAIRS + p >= m.pairs)
                    break;
                uint32_t w[4][4];
                stage_weights(stages[at], s, p, 0, tile, w);
                stage_weights(stages[at], s, p, 1, tile, w + 2);
                values_begin<false, N>(sums, w, rows_at(p, 0));
                products_end(sums, w);
            }
            before = at;
            next();
            if (s + 1 < end)
                release(before);
        }
    }
    // Run `run`, which is the block's next one, into sums, times its units.
    __device__ __forceinline__ void add_run(const many_place &m, uint32_t run, uint32_t tile,
                                            Sums<N> &sums) {
        // With fewer rows a multiprocessor has more warp groups, and it is no faster.
        if (N == 128 && (run + 1) * RUN_PAIRS <= m.pairs)
            overlapped_run(run * RUN_STAGES, tile, sums);
        else
            plain_run(m, run * RUN_STAGES, tile, sums);
        each_sum<N>(0, [&](uint32_t row, uint32_t, uint32_t j, uint32_t i) {
            sums[j][i] = sum_of_run(sums[j][i], stages[before].units[row]);
        });
        release(before);
    }
};

// ---- the kernel ------------------------------------------------------------------------------

// From one row of a block's totals to the next: the rows that a warp writes together are in
// different banks.
template <int WM> constexpr uint32_t totals_pitch() {
    return WM * GROUP_OUTPUTS + 4;
}

// `count` of four values of a row; fours: together, as all rows are at multiples of 16 bytes.
__device__ __forceinline__ float4 read_four(const float *at, bool fours, uint32_t count) {
    if (fours)
        return *(const float4 *)at;
    return {at[0], count > 1 ? at[1] : 0, count > 2 ? at[2] : 0, count > 3 ? at[3] : 0};
}
__device__ __forceinline__ void write_four(float *at, float4 v, bool fours, uint32_t count) {
    if (fours) {
        *(float4 *)at = v;
        return;
    }
    at[0] = v.x;
    if (count > 1)
        at[1] = v.y;
    if (count > 2)
        at[2] = v.z;
    if (count > 3)
        at[3] = v.w;
}

// The outputs of part p that a block makes.
template <class F, int N, int WM> struct many_block {
    static constexpr uint32_t OUTPUTS = WM * GROUP_OUTPUTS, PITCH = totals_pitch<WM>();
    const product_part &p;
    many_place m;
    many_ring<F, N, WM> ring;
    uint32_t output0, row0, rows;
    float *totals;        // alone: of sets, in shared memory, [row][PITCH]
    float *sums;          // in splits: of its outputs and rows and turn 0, [output][N]
    size_t sums_of_turns; // from one turn's to the next

    // A warp's tile becomes outputs: four of a row by a lane at a time. What they are added to is
    // read together, before anything is written, or the lane would wait for each.
    __device__ __forceinline__ void put(uint32_t tile) const {
        constexpr uint32_t ROWS = 8, TOGETHER = N / ROWS < 8 ? N / ROWS : 8; // ROWS: of the warp
        const uint32_t lane = threadIdx.x % 32, n = p.w.n,
                       in_block = tile * TILE_OUTPUTS + lane % 4 * 4;
        const uint32_t first = output0 + in_block, count = first < n ? min(n - first, 4u) : 0;
        output_ends ends[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            ends[i] = ends_of_output(p, min(first + i, n - 1));
        const float scale = p.sum_scale;
        __syncwarp();
#pragma unroll
        for (uint32_t c0 = 0; c0 < N / ROWS; c0 += TOGETHER) {
            const uint32_t row = c0 * ROWS + lane / 4;
            const size_t at = (size_t)(row0 + row) * n + first;
            float *const y = p.y + at, *const sum = p.sum ? p.sum + at : nullptr;
            const bool fours = n % 4 == 0 && (size_t)p.y % 16 == 0 && (size_t)p.sum % 16 == 0;
            const auto each = [&](auto fn) { // fn(c, at): of rows that exist
#pragma unroll
                for (uint32_t c = 0; c < TOGETHER; c++)
                    if (row0 + row + c * ROWS < rows && count > 0)
                        fn(c, (size_t)(c * ROWS) * n);
            };
            float4 before[TOGETHER];
            if (sum)
                each([&](uint32_t c, size_t i) { before[c] = read_four(sum + i, fours, count); });
            each([&](uint32_t c, size_t i) {
                const float4 v = *(const float4 *)&totals[(row + c * ROWS) * PITCH + in_block],
                             out = {ends[0].of(sum_of_runs(v.x)), ends[1].of(sum_of_runs(v.y)),
                                    ends[2].of(sum_of_runs(v.z)), ends[3].of(sum_of_runs(v.w))};
                write_four(y + i, out, fours, count);
                if (sum)
                    write_four(sum + i,
                               {fmaf(scale, out.x, before[c].x), fmaf(scale, out.y, before[c].y),
                                fmaf(scale, out.z, before[c].z), fmaf(scale, out.w, before[c].w)},
                               fours, count);
            });
        }
    }
    // The outputs of both matrices meet: the first half of a block's and the second.
    __device__ __forceinline__ void put_gated(const product_args &a, uint32_t warp) const {
        constexpr uint32_t TILES = 2 * WM, ROWS = N / 2; // of a matrix; of a warp
        const uint32_t lane = threadIdx.x % 32, n = p.w.n;
        const uint32_t in_half = warp % TILES * TILE_OUTPUTS + lane % 4 * 4,
                       first = output0 + in_half;
        output_ends ends[2][4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            ends[0][i] = ends_of_output(a.part[0], first + i);
            ends[1][i] = ends_of_output(a.part[1], first + i);
        }
        asm volatile("bar.sync 1, %0;" ::"n"(WM * GROUP_THREADS) : "memory");
#pragma unroll 4
        for (uint32_t c = 0; c < ROWS; c += 8) {
            const uint32_t row = warp / TILES * ROWS + c + lane / 4;
            if (row0 + row >= rows)
                break;
            const float *const at = &totals[row * PITCH + in_half];
            const float4 g = *(const float4 *)at, u = *(const float4 *)(at + OUTPUTS / 2);
            const auto value = [&](uint32_t i, float g_sum, float u_sum) {
                return gate_value(a.gate, ends[0][i].of(sum_of_runs(g_sum)),
                                  ends[1][i].of(sum_of_runs(u_sum)));
            };
            *(float4 *)(a.gated + (size_t)(row0 + row) * n + first) = make_float4(
                value(0, g.x, u.x), value(1, g.y, u.y), value(2, g.z, u.z), value(3, g.w, u.w));
        }
    }

    // The sum of runs first ... end - 1.
    __device__ __forceinline__ void add_runs(uint32_t first, uint32_t end, uint32_t tile,
                                             Sums<N> &total) {
        for (uint32_t run = first; run < end; run++) {
            Sums<N> now = {};
            ring.add_run(m, run, tile, now);
            each_sum<N>(
                0, [&](uint32_t, uint32_t, uint32_t j, uint32_t i) { total[j][i] += now[j][i]; });
        }
    }
    __device__ __forceinline__ void multiply_alone(uint32_t tile) {
        for (uint32_t first = 0; first < m.runs; first += SET_RUNS) {
            Sums<N> set = {};
            add_runs(first, min(first + SET_RUNS, m.runs), tile, set);
            each_sum<N>(tile, [&](uint32_t row, uint32_t output, uint32_t j, uint32_t i) {
                float *const to = &totals[row * PITCH + output];
                *to = first == 0 ? set[j][i] : *to + set[j][i];
            });
        }
    }
    __device__ __forceinline__ void multiply_split(uint32_t tile) {
        const uint32_t turn = ring.all.turn, turns = blocks_of(m.runs, turn);
        for (uint32_t t = ring.split; t < turns; t += ring.all.splits) {
            Sums<N> total = {};
            add_runs(t * turn, min((t + 1) * turn, m.runs), tile, total);
            float *const to = sums + t * sums_of_turns;
            each_sum<N>(tile, [&](uint32_t row, uint32_t output, uint32_t j, uint32_t i) {
                if (i % 2 == 0)
                    *(float2 *)(to + output * N + row) = make_float2(total[j][i], total[j][i + 1]);
            });
        }
    }
};

// With 64 rows a whole warp group is there for copies, so that it can give registers away.
template <int N, int WM> constexpr uint32_t many_threads() {
    return WM * GROUP_THREADS + (N == 64 ? (uint32_t)GROUP_THREADS : WM * 32);
}
// Of a multiprocessor.
template <int N, int WM> constexpr uint32_t blocks_together() {
    return N < 128 && WM == 2 ? 2 : 1;
}

// grid: [splits, of N rows after the other][64 WM outputs, of one matrix after the other or, gated,
// half of them of each]: blocks that share weights are neighbours. a.part[].first counts in 64 WM
// outputs. sums: of splits.
template <class F, int N, int WM>
__global__ void __launch_bounds__(many_threads<N, WM>(), blocks_together<N, WM>())
    many_kernel(const __grid_constant__ product_args a, const half_act act, uint32_t stages,
                many_splits splits, float *sums) {
    extern __shared__ __align__(128) uint4 many_memory[]; // stages, totals
    __shared__ __align__(8) uint64_t barriers[2 * STAGES_MAX];
    using Stage = many_stage<F, N, WM>;
    kernel_comes();
    const uint32_t warp = threadIdx.x / 32, rows_at = blockIdx.x / splits.splits;
    const product_part &p = a.part[a.gated ? 0 : part_of_tile(a, blockIdx.y)];
    const weight_view &w = p.w;
    const bool gated = a.gated != nullptr;
    const uint32_t tile0 = gated ? blockIdx.y * (2 * WM) : (blockIdx.y - p.first) * (4 * WM),
                   runs = blocks_of(w.pairs, RUN_PAIRS);
    Stage *const ring = (Stage *)many_memory;
    const auto side = [&](const weight_view &v) {
        const size_t codes = halves_codes(v, tile0, 0) * 16,
                     scalars = halves_scalars(v, tile0, 0) * 16;
        return many_place::side{v.codes + codes, v.scales + scalars,
                                F::BIASED ? v.biases + scalars : nullptr};
    };
    many_block<F, N, WM> b = {
        p,
        {side(w), side((gated ? a.part[1] : p).w), gated,
         act.halves + (size_t)rows_at * w.pairs * 8 * N, act.units + (size_t)rows_at * runs * N,
         min(blocks_of(w.n, COLUMN_TILES * TILE_OUTPUTS) - tile0 / COLUMN_TILES,
             (uint32_t)Stage::COLUMNS),
         w.pairs, w.quads, runs},
        {ring, smem_at(barriers), smem_at(barriers + STAGES_MAX), stages,
         blockIdx.x % splits.splits, splits, 0, 0, 0},
        tile0 * TILE_OUTPUTS,
        rows_at * N,
        a.rows,
        (float *)(ring + stages),
        sums + ((size_t)rows_at * blocks_of(runs, splits.turn) * gridDim.y + blockIdx.y) *
                   (WM * GROUP_OUTPUTS * N),
        (size_t)gridDim.y * (WM * GROUP_OUTPUTS * N)};
    if (threadIdx.x == 0)
        b.ring.init();
    __syncthreads();
    if (warp >= 4 * WM) {
        if constexpr (N == 64)
            REGISTERS_DOWN(32);
        if (warp < 5 * WM && starts_copies())
            b.ring.fill({warp - 4 * WM}, b.m);
        return;
    }
    if constexpr (N == 64) // of 96 times 640 threads or, in each of two blocks, 80 times 384
        REGISTERS_UP(WM == 4 ? 112 : 104);
    kernel_waits();
    if (splits.splits > 1)
        return b.multiply_split(warp);
    b.multiply_alone(warp);
    if (gated)
        b.put_gated(a, warp);
    else
        b.put(warp);
}

// Adds the sums of splits' turns, of which `in_set` are a set. grid: [N rows][SUMS_VALUES / N
// outputs]. tile: a.part[].first counts in so many outputs; outputs: of all blocks of many_kernel.
template <int N>
__global__ void __launch_bounds__(SUMS_VALUES / 4)
    sums_kernel(const __grid_constant__ product_args a, const float *sums, uint32_t turns,
                uint32_t in_set, uint32_t tile, uint32_t outputs) {
    constexpr uint32_t OUTPUTS = SUMS_VALUES / N, THREADS = SUMS_VALUES / 4;
    __shared__ float turned[N][OUTPUTS + 1];
    kernel_comes();
    const uint32_t first = blockIdx.y * OUTPUTS;
    const product_part &p = a.part[part_of_tile(a, first / tile)];
    float *const y = p.y, *const sum = p.sum;
    const uint32_t n = p.w.n, output = first - p.first * tile + threadIdx.x % OUTPUTS;
    const float scale = p.sum_scale;
    const output_ends ends = ends_of_output(p, min(output, n - 1));
    kernel_waits();
    // A thread has one output of four rows. What they are added to is read first.
    size_t at[4];
    float before[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t row = blockIdx.x * N + (i * THREADS + threadIdx.x) / OUTPUTS;
        at[i] = output < n && row < a.rows ? (size_t)row * n + output : SIZE_MAX;
        before[i] = sum && at[i] != SIZE_MAX ? sum[at[i]] : 0;
    }
    const float4 *from =
        (const float4 *)(sums + ((size_t)blockIdx.x * turns * outputs + first) * N);
    float4 total = {}, of_set = {};
#pragma unroll 8
    for (uint32_t turn = 0; turn < turns; turn++) {
        const float4 v = from[(size_t)turn * outputs * (N / 4) + threadIdx.x];
        of_set.x += v.x, of_set.y += v.y, of_set.z += v.z, of_set.w += v.w;
        if (turn + 1 == turns || (turn + 1) % in_set == 0) {
            total.x += of_set.x, total.y += of_set.y;
            total.z += of_set.z, total.w += of_set.w;
            of_set = {};
        }
    }
    float *column = &turned[threadIdx.x * 4 % N][threadIdx.x * 4 / N];
    column[0] = total.x;
    column[OUTPUTS + 1] = total.y;
    column[2 * (OUTPUTS + 1)] = total.z;
    column[3 * (OUTPUTS + 1)] = total.w;
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        if (at[i] == SIZE_MAX)
            continue;
        const float v = ends.of(
            sum_of_runs(turned[(i * THREADS + threadIdx.x) / OUTPUTS][threadIdx.x % OUTPUTS]));
        y[at[i]] = v;
        if (sum)
            sum[at[i]] = fmaf(scale, v, before[i]);
    }
}
