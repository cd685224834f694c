// SPDX-License-Identifier: Apache-2.0
// few_rows.cuh: products of 1 to 16 rows with 4-bit matrices (halves.cuh). The least time is that
// of reading the matrix, so copies are always on their way. For one or two rows nothing is launched
// for the sake of the input: every block makes and rounds the rows for itself. More are rounded
// before.
//
//     a block      tiles b, b + blocks, b + 2 blocks, ...   of 16 outputs, one after the other; two
//                  in a turn, after which the warps meet, if its warps have all runs of a tile
//     its warps    runs w, w + W, ... of each tile
//     a warp       a ring of FEW_SLOTS runs of weights in shared memory, filled by asynchronous
//                  copies. A lane copies the codes that it multiplies itself, so that only scales
//                  need the warp to meet
//
//     inputs       halves [pair][row][q] 32 bytes: lane q's inputs of each instruction; units [run]
//                  [row]. Made of x, or of what rms_norm makes of it, by the warp that multiplies
//                  them; or in scratch, of 8 or 16 rows
//     part [2][tile][warp][row][output] -> total -> y   sums of runs, added by sets; of two
//                                                       matrices gated(y0) * y1
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
    uint32_t part, tile, side; // tile: of the part; side: 1 for a gated launch's second matrix
};
// The parts, in shared memory: an argument that is read with an index which only the running kernel
// knows comes from device memory.
using few_parts = product_part[MATMULS_MAX];
__device__ __forceinline__ void parts_copy(const product_args &a, few_parts &parts) {
    for (uint32_t i = threadIdx.x; i < sizeof parts / sizeof(uint32_t); i += blockDim.x)
        ((uint32_t *)&parts)[i] = ((const uint32_t *)&a.part)[i];
    __syncthreads();
}
__device__ __forceinline__ tile_place place_of_tile(const product_args &a, const few_parts &parts,
                                                    uint32_t tile) {
    if (a.gated)
        return {tile % 2, tile / 2, tile % 2};
    const uint32_t part = part_of_tile(a, tile);
    return {part, tile - parts[part].first, 0};
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

// What a lane copies into a slot: of the run's pairs, and of its quads one of `scales` and `biases`
// or, if these are NULL, none. to: its 16 bytes of the slot's first codes.
struct slot_fill {
    const uint4 *codes, *scales, *biases;
    uint32_t pairs; // 0: the launch has no more runs
    __device__ __forceinline__ void copy_pair(uint32_t to, uint32_t pair) const {
        if (pair < pairs)
            copy_16(to + pair * sizeof(uint4[32]), codes + pair * COLUMN_TILES * 32);
    }
    // One group of copies with those before it.
    template <class F> __device__ __forceinline__ void copy_scales(uint32_t to) const {
        if (scales)
            copy_16(to + offsetof(run_slot<F>, scales), scales);
        if (F::BIASED && biases)
            copy_16(to + offsetof(run_slot<F>, biases), biases);
        copies_end();
    }
};
template <class F>
__device__ __forceinline__ slot_fill fill_at(const product_args &a, const few_parts &parts,
                                             run_place p, uint32_t tiles) {
    const uint32_t lane = threadIdx.x % 32, quad = p.run * F::QUADS + lane / 8;
    slot_fill fill = {};
    if (p.tile < tiles) {
        const tile_place place = place_of_tile(a, parts, p.tile);
        const weight_view &v = parts[place.part].w;
        fill.pairs = min((uint32_t)RUN_PAIRS, v.pairs - p.run * RUN_PAIRS);
        fill.codes = (const uint4 *)v.codes + halves_codes(v, place.tile, p.run * RUN_PAIRS) + lane;
        if (lane / 8 < F::QUADS && quad < v.quads) {
            const size_t at = halves_scalars(v, place.tile, quad) + lane % 8;
            fill.scales = (const uint4 *)v.scales + at;
            fill.biases = (const uint4 *)v.biases + at;
        }
    }
    return fill;
}

// A warp's ring. It is filled in the order of the warp's runs, from any slot on.
template <class F> struct few_ring {
    const product_args &a;
    const few_parts &parts;
    const uint32_t tiles, runs, warps;
    const run_slot<F> *const slots;
    const uint32_t first; // where the lane copies to in the first slot
    run_place coming;     // the run that is copied next
    __device__ __forceinline__ uint32_t slot_at(uint32_t slot) const {
        return first + slot * sizeof *slots;
    }
    __device__ __forceinline__ slot_fill next() {
        const slot_fill fill = fill_at<F>(a, parts, coming, tiles);
        coming = next_run(a, coming, runs, warps);
        return fill;
    }
    __device__ __forceinline__ void fill(uint32_t begin, uint32_t end) {
#pragma unroll 1
        for (uint32_t i = begin; i < end; i++) {
            const slot_fill fill = next();
#pragma unroll
            for (uint32_t pair = 0; pair < RUN_PAIRS; pair++)
                fill.copy_pair(slot_at(i), pair);
            fill.copy_scales<F>(slot_at(i));
        }
    }
};

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

// A lane's fours of a run.
struct run_values {
    float4 at[RUN_FOURS];
};
template <class Four>
__device__ __forceinline__ run_values values_of_run(const weight_view &v, uint32_t run,
                                                    Four four_at) {
    const uint32_t lane = threadIdx.x % 32;
    run_values x = {};
    if (run * RUN_PAIRS < v.pairs)
#pragma unroll
        for (uint32_t j = 0; j < RUN_FOURS; j++)
            x.at[j] = four_at(run * RUN + min(j * 32 + lane, fours_of_run(v.k, run) - 1) * 4);
    return x;
}

// Rounds a run of a row, for the warp that multiplies it. keep(i, of those): where inputs from `i`
// on are to be written.
template <class Keep>
__device__ __forceinline__ void round_run(const few_inputs &in, const weight_view &v, uint32_t row,
                                          uint32_t run, const run_values &x, Keep keep) {
    const uint32_t lane = threadIdx.x % 32;
    const half_run h = round_half_run(
        fours_of_run(v.k, run), [&](uint32_t j, uint32_t) { return x.at[j]; },
        [&](uint32_t four, float4 y) { keep(run * RUN + four * 4, y); });
    if (lane == 0)
        in.units[run * in.rows + row] = h.unit;
#pragma unroll
    for (uint32_t j = 0; j < RUN_FOURS; j++) {
        const uint32_t four = j * 32 + lane, pair = run * RUN_PAIRS + four / 16;
        if (pair < v.pairs)
            ((uint2 *)in.halves)[few_words(pair, in.rows, row, four)] = h.words[j];
    }
}

// Sums of squares as norm_inverse_block has them, of all rows: chains of 32 in `part`. A warp makes
// two at a time. then(): is called when x has come.
template <class Then>
__device__ __forceinline__ void square_rows(const rms_norm_op &norm, uint32_t rows,
                                            float (*part)[NORM_THREADS / WARP], Then then) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const uint32_t chains = norm.dim <= NORM_WARP_DIMS ? 1 : NORM_THREADS / WARP;
    for (uint32_t i = warp; i < rows * chains; i += 2 * warps) {
        const uint32_t last = min(i + warps, rows * chains - 1), // or the last one again
            row[2] = {i / chains, last / chains}, chain[2] = {i % chains, last % chains};
        const float *const x[2] = {norm.x + (size_t)row[0] * norm.dim,
                                   norm.x + (size_t)row[1] * norm.dim};
        const uint32_t first[2] = {chain[0] * WARP + lane, chain[1] * WARP + lane};
        float sum[2];
        if (chains == 1)
            norm_squares<WARP, 2>(x, norm.dim, first, sum);
        else
            norm_squares<NORM_THREADS, 2>(x, norm.dim, first, sum);
        if (lane == 0) {
            part[row[0]][chain[0]] = sum[0];
            part[row[1]][chain[1]] = sum[1];
        }
    }
    then();
    __syncthreads();
}

// Inputs from scratch, from memory, or from rms_norm's operands, whose result the first block
// writes as well. before(v): what is read before the wait for the kernel that makes x. A warp
// rounds the runs that it multiplies. SLOTS_BEFORE: of the ring, that are filled before the wait;
// round() calls fill() for the others.
struct few_rounded {
    static constexpr uint32_t SLOTS_BEFORE = FEW_SLOTS;
    few_inputs in;
};
struct few_rows_of {
    static constexpr uint32_t SLOTS_BEFORE = FEW_SLOTS;
    packed_rows rows;
    struct nothing {};
    __device__ __forceinline__ nothing before(const weight_view &) const { return {}; }
    // The next run is read before one is rounded.
    template <class Fill>
    __device__ __forceinline__ void round(const few_inputs &in, const weight_view &v,
                                          const nothing &, Fill) const {
        const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
        for (uint32_t row = 0; row < in.rows; row++) {
            const auto values = [&](uint32_t run) {
                return values_of_run(v, run, [&](uint32_t at) { return rows.four_at(row, at); });
            };
            run_values next = values(warp);
#pragma unroll 1
            for (uint32_t run = warp; run * RUN_PAIRS < v.pairs; run += warps) {
                const run_values x = next;
                next = values(run + warps);
                round_run(in, v, row, run, x, [](uint32_t, float4) {});
            }
        }
        __syncwarp();
    }
};
// Beside two slots of weights x would take twice as long to come, which all else waits for.
struct few_norms {
    static constexpr uint32_t SLOTS_BEFORE = 1;
    rms_norm_op norm;
    // The gains of the warp's first run, which for short rows is its only one.
    __device__ __forceinline__ run_values before(const weight_view &v) const {
        return values_of_run(v, threadIdx.x / 32, [&](uint32_t i) { return gain_four(norm, i); });
    }
    __device__ __forceinline__ run_values row_values(const weight_view &v, uint32_t row,
                                                     uint32_t run) const {
        return values_of_run(
            v, run, [&](uint32_t i) { return *(const float4 *)(norm.x + (size_t)row * v.k + i); });
    }
    // x is read for the sums and for the rounding at the same time.
    template <class Fill>
    __device__ __forceinline__ void round(const few_inputs &in, const weight_view &v,
                                          const run_values &first_gains, Fill fill) const {
        __shared__ float part[OWN_ROWS][NORM_THREADS / WARP];
        const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
        run_values first_x[OWN_ROWS];
#pragma unroll
        for (uint32_t row = 0; row < in.rows; row++)
            first_x[row] = row_values(v, row, warp);
        square_rows(norm, in.rows, part, fill);
        const bool one = norm.dim <= NORM_WARP_DIMS;
#pragma unroll
        for (uint32_t row = 0; row < in.rows; row++) {
            float sum = one ? part[row][0] : 0;
#pragma unroll
            for (uint32_t c = 0; c < NORM_THREADS / WARP; c++)
                sum = one ? sum : sum + part[row][c];
            const float inverse = norm_inverse(norm, sum);
            run_values x = first_x[row], gains = first_gains;
            for (uint32_t run = warp; run * RUN_PAIRS < v.pairs; run += warps) {
                if (run != warp) {
                    x = row_values(v, row, run);
                    gains = values_of_run(v, run, [&](uint32_t i) { return gain_four(norm, i); });
                }
#pragma unroll
                for (uint32_t j = 0; j < RUN_FOURS; j++)
                    x.at[j] = norm_four(x.at[j], inverse, gains.at[j]);
                round_run(in, v, row, run, x, [&](uint32_t i, float4 y) {
                    if (blockIdx.x == 0)
                        *(float4 *)(norm.y + (size_t)row * v.k + i) = y;
                });
            }
        }
        __syncwarp();
    }
};

// ---- the product -----------------------------------------------------------------------------

// Of column tiles of 8 rows: columns 2q and 2q + 1, output r, then output r + 8; with fewer rows
// than columns, column c has row c % ROWS.
template <int ROWS> using few_sums = float[(ROWS + FEW_ROWS - 1) / FEW_ROWS][4];

// A lane's inputs of a pair, of column tile c.
struct pair_inputs {
    uint4 x[2];
};
template <int ROWS>
__device__ __forceinline__ pair_inputs inputs_of_pair(const few_inputs &in, uint32_t pair,
                                                      uint32_t c) {
    const uint32_t lane = threadIdx.x % 32, column = lane / 4 % ROWS, q = lane % 4;
    const uint4 *at = in.halves + ((size_t)pair * ROWS + c * FEW_ROWS + column) * 8 + q * 2;
    return {at[0], at[1]};
}
// Where a run's inputs are read: in shared memory or, if a warp multiplies one run alone, of every
// tile, in registers, which saves a third of the accesses to shared memory.
template <int ROWS> struct shared_run {
    const few_inputs &in;
    __device__ __forceinline__ shared_run(const few_inputs &inputs, uint32_t) : in(inputs) {}
    __device__ __forceinline__ pair_inputs of(uint32_t run, uint32_t pair, uint32_t c) const {
        return inputs_of_pair<ROWS>(in, run * RUN_PAIRS + pair, c);
    }
};
template <int ROWS> struct own_run {
    const few_inputs &in;
    pair_inputs pairs[RUN_PAIRS]; // of a whole run
    __device__ __forceinline__ own_run(const few_inputs &inputs, uint32_t in_row) : in(inputs) {
        const uint32_t first = threadIdx.x / 32 * RUN_PAIRS;
#pragma unroll
        for (uint32_t p = 0; p < RUN_PAIRS; p++)
            pairs[p] = inputs_of_pair<ROWS>(in, min(first + p, in_row - 1), 0);
    }
    __device__ __forceinline__ pair_inputs of(uint32_t, uint32_t pair, uint32_t) const {
        return pairs[pair];
    }
};

// A pair of codes, of those of a run.
template <class F, int ROWS, class Inputs>
__device__ __forceinline__ void add_pair(const Inputs &inputs, uint32_t run, uint32_t pair,
                                         uint4 codes, const run_slot<F> &slot,
                                         few_sums<ROWS> &sums) {
    const uint32_t r = threadIdx.x % 32 / 4;
    const auto scalar = [&](const uint4(&of)[F::QUADS][8], uint32_t h) {
        const uint32_t g = (pair * 2 + h) * BLOCK / F::GROUP_SIZE;
        return ((const uint32_t *)&of[0][r])[(g & ~3u) * 8 + (g & 3u)];
    };
    uint32_t w[4][4];
    weights_of_pair<F>(
        codes, [&](uint32_t h) { return scalar(slot.scales, h); },
        [&](uint32_t h) {
            if constexpr (F::BIASED)
                return scalar(slot.biases, h);
            else
                return 0u;
        },
        w);
#pragma unroll
    for (uint32_t c = 0; c < sizeof sums / sizeof *sums; c++) {
        const pair_inputs at = inputs.of(run, pair, c);
        mma_half<false>(sums[c], w[0], at.x[0].x, at.x[0].y);
        mma_half<false>(sums[c], w[1], at.x[0].z, at.x[0].w);
        mma_half<false>(sums[c], w[2], at.x[1].x, at.x[1].y);
        mma_half<false>(sums[c], w[3], at.x[1].z, at.x[1].w);
    }
}
// A run out of its slot, in which the pairs of `next` take their places. A pair is read before the
// copy into the place of the one before it is started: the compiler keeps that order. The last run
// of a row may be short; the code for it is small, not fast: what a step's kernels execute has to
// fit into the cache of instructions together, or each begins by waiting for its own.
template <class F, int ROWS, class Inputs>
__device__ __forceinline__ void add_run(const weight_view &v, const Inputs &inputs, uint32_t run,
                                        const run_slot<F> &slot, uint32_t slot_at,
                                        const slot_fill &next, few_sums<ROWS> &sums) {
    const uint32_t lane = threadIdx.x % 32,
                   pairs = min((uint32_t)RUN_PAIRS, v.pairs - run * RUN_PAIRS);
    if (pairs == RUN_PAIRS) {
        uint4 codes = slot.codes[0][lane];
#pragma unroll
        for (uint32_t p = 0; p < RUN_PAIRS; p++) {
            add_pair<F, ROWS>(inputs, run, p, codes, slot, sums);
            if (p + 1 < RUN_PAIRS)
                codes = slot.codes[p + 1][lane];
            next.copy_pair(slot_at, p);
        }
    } else {
        const shared_run<ROWS> all(inputs.in, v.pairs);
#pragma unroll 1
        for (uint32_t p = 0; p < pairs; p++)
            add_pair<F, ROWS>(all, run, p, slot.codes[p][lane], slot, sums);
#pragma unroll 1
        for (uint32_t p = 0; p < RUN_PAIRS; p++)
            next.copy_pair(slot_at, p);
    }
}

// A run's sums, to where they are added to those of others.
template <int ROWS>
__device__ __forceinline__ void keep_sums(const few_sums<ROWS> &sums, const few_inputs &in,
                                          uint32_t run, float (&part)[ROWS * PART_STRIDE]) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < 2 * (sizeof sums / sizeof *sums); i++) {
        const uint32_t row = i / 2 * FEW_ROWS + lane % 4 * 2 + i % 2;
        if (row >= ROWS)
            continue;
        const float unit = in.units[run * ROWS + row];
        float *to = &part[row * PART_STRIDE + lane / 4];
        to[0] = sum_of_run(sums[i / 2][i % 2], unit);
        to[8] = sum_of_run(sums[i / 2][2 + i % 2], unit);
    }
}

// Tiles of a turn. OWN: a tile has no more runs than the block has warps.
template <bool OWN> constexpr uint32_t turn_tiles = OWN ? 2 : 1;
// The outputs of a turn are those of its first tile, then of its second, for each row. A thread has
// output threadIdx.x % turn_outputs of one or more rows.
template <bool OWN> constexpr uint32_t turn_outputs = TILE_OUTPUTS *turn_tiles<OWN>;

// What a thread needs for its outputs. Read before they are multiplied, or the block would wait for
// memory after it.
struct turn_ends {
    output_ends output;
    float before; // what is added to y of the first of its rows
};
template <bool OWN>
__device__ __forceinline__ turn_ends ends_of_turn(const product_args &a, const few_parts &parts,
                                                  const tile_place &place) {
    const product_part &p = parts[place.part];
    const uint32_t j = place.tile * TILE_OUTPUTS + threadIdx.x % TILE_OUTPUTS,
                   row = threadIdx.x / turn_outputs<OWN>;
    turn_ends e = {};
    if (row < a.rows && j < p.w.n) {
        e.output = ends_of_output(p, j);
        e.before = p.sum ? p.sum[(size_t)row * p.w.n + j] : 0;
    }
    return e;
}

template <int ROWS, bool OWN>
using turn_parts = float[turn_tiles<OWN>][WARPS_MAX][ROWS * PART_STRIDE];

// Adds `count` runs, which begin a set; they begin and end those of an output, which has the
// arithmetic of put_output (product.cuh). Each thread has its own outputs, here and in `total`,
// where a gate's output stays until the other factor is there: in a later turn or, of two tiles in
// a turn, in another thread of the warp. place: of the thread's tile, which exists if `some`.
template <int ROWS, bool OWN>
__device__ __forceinline__ void
add_runs(const product_args &a, const few_parts &parts, const tile_place &place, bool some,
         const turn_ends &e, uint32_t count, bool begins, bool ends,
         const turn_parts<ROWS, OWN> &part, float (&total)[2][ROWS * TILE_OUTPUTS]) {
    const product_part &p = parts[place.part];
    const uint32_t in_tile = threadIdx.x % TILE_OUTPUTS, j = place.tile * TILE_OUTPUTS + in_tile,
                   tile = threadIdx.x / TILE_OUTPUTS % turn_tiles<OWN>;
    for (uint32_t row = threadIdx.x / turn_outputs<OWN>; row < a.rows;
         row += blockDim.x / turn_outputs<OWN>) {
        const uint32_t i = row * TILE_OUTPUTS + in_tile;
        const bool exists = some && j < p.w.n;
        float y = begins ? 0 : total[place.side][i], set = 0;
#pragma unroll
        for (uint32_t run = 0; run < WARPS_MAX; run++) {
            if (run < count)
                set += part[tile][run][row * PART_STRIDE + in_tile];
            if (run % SET_RUNS == SET_RUNS - 1) {
                y += set;
                set = 0;
            }
        }
        if (ends)
            y = e.output.of(sum_of_runs(y));
        if (!OWN || a.gated)
            total[place.side][i] = y;
        if (OWN)
            __syncwarp();
        if (ends && exists) {
            const size_t at = (size_t)row * p.w.n + j;
            if (!a.gated)
                p.y[at] = y;
            if (p.sum)
                p.sum[at] = fmaf(p.sum_scale, y,
                                 row < blockDim.x / turn_outputs<OWN> ? e.before : p.sum[at]);
            if (place.side)
                a.gated[at] = gate_value(a.gate, total[0][i], y);
        }
    }
}

// Of a block: a multiple of SET_RUNS, or as many as there are runs.
inline uint32_t few_warps(const weight_view &w) {
    static_assert(WARPS_MAX % SET_RUNS == 0, "whole sets");
    return min((uint32_t)WARPS_MAX, blocks_of(w.pairs, RUN_PAIRS));
}

// a.rows is ROWS, or at most that where they come from scratch. OWN: a tile has no more runs than
// the block has warps. grid: blocks that take the launch's tiles in turn.
template <class F, class From, int ROWS, bool OWN>
__global__ void __launch_bounds__(WARPS_MAX * 32, 2)
    few_kernel(const __grid_constant__ product_args a, const From from, uint32_t tiles) {
    constexpr bool ROUNDED = std::is_same<From, few_rounded>::value;
    extern __shared__ __align__(16) uint8_t memory[]; // [warp][FEW_SLOTS] | halves | units
    __shared__ turn_parts<ROWS, OWN> part[2];
    __shared__ float total[2][ROWS * TILE_OUTPUTS];
    __shared__ few_parts parts;
    static_assert(sizeof part + sizeof total + sizeof parts <= FEW_FIXED_BYTES, "they fit");
    kernel_comes();
    const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const weight_view &shape = a.part[0].w; // k and the form are those of all parts
    const uint32_t runs = blocks_of(shape.pairs, RUN_PAIRS);
    parts_copy(a, parts);
    const run_slot<F> *const slots = (const run_slot<F> *)memory + warp * FEW_SLOTS;
    run_place here = {first_tile(a), warp};
    few_ring<F> ring = {
        a, parts, tiles, runs, warps, slots, smem_at(slots) + threadIdx.x % 32 * 16, here};
    ring.fill(0, From::SLOTS_BEFORE);
    few_inputs in;
    if constexpr (ROUNDED) {
        kernel_waits();
        in = from.in;
    } else {
        const auto before = from.before(shape);
        kernel_waits();
        in = few_inputs_at((run_slot<F> *)memory + warps * FEW_SLOTS, shape.pairs, ROWS);
        from.round(in, shape, before, [&] { ring.fill(From::SLOTS_BEFORE, FEW_SLOTS); });
    }
    using inputs_at = typename std::conditional<OWN, own_run<ROWS>, shared_run<ROWS>>::type;
    const inputs_at inputs(in, shape.pairs);
    uint32_t slot = 0, side = 0;
    for (uint32_t tile = first_tile(a), after; tile < tiles; tile = next_tile(a, after)) {
        const uint32_t second = OWN ? next_tile(a, tile) : tile,
                       mine = threadIdx.x / TILE_OUTPUTS % 2 ? second : tile;
        const bool some = mine < tiles; // the thread's tile
        after = second;
        const tile_place place = place_of_tile(a, parts, some ? mine : tile);
        const turn_ends ends = ends_of_turn<OWN>(a, parts, place);
        for (uint32_t first = 0; first < runs; first += warps, side ^= 1) {
            const uint32_t end = min(first + warps, runs);
            if (first + warp < end)
#pragma unroll 1
                for (uint32_t t = 0; t < (second < tiles ? turn_tiles<OWN> : 1); t++) {
                    const slot_fill next = ring.next();
                    copies_wait<FEW_SLOTS - 1>();
                    __syncwarp(); // scales were copied by other lanes
                    few_sums<ROWS> sums = {};
                    add_run<F, ROWS>(shape, inputs, here.run, slots[slot], ring.slot_at(slot), next,
                                     sums);
                    keep_sums<ROWS>(sums, in, here.run, part[side][t][warp]);
                    __syncwarp();
                    next.copy_scales<F>(ring.slot_at(slot));
                    slot = (slot + 1) % FEW_SLOTS;
                    here = next_run(a, here, runs, warps);
                }
            // The other side of `part` is written next: by warps that have come past the meeting
            // after this one, when this side was read.
            __syncthreads();
            add_runs<ROWS, OWN>(a, parts, place, some, ends, end - first, first == 0, end == runs,
                                part[side], total);
        }
    }
    copies_wait<0>();
}
