// SPDX-License-Identifier: Apache-2.0
// halves.cu: products with 4-bit matrices and activations of 8 bits (halves.cuh): which kernel, and
// the rounding of inputs into scratch.
//
//     1, 2 rows     few_rows.cuh, one launch: each block rounds the inputs
//     3 to 8        a kernel that rounds, then few_rows.cuh
//     9 to 16       the same for matrices of few outputs
//     more          a kernel that rounds, then many_rows.cuh, and if its blocks share the runs of
//                   an output a kernel that adds them
//
// One or two rows too long for a multiprocessor's shared memory are rounded before, too. The bits
// are the same.
#include <algorithm>
#include <type_traits>

#include "backend/cuda/few_rows.cuh"
#include "backend/cuda/many_rows.cuh"

namespace {

enum { MANY_FIXED_BYTES = 1 << 10 }; // of shared memory that is neither stages nor totals

// ---- inputs in scratch -----------------------------------------------------------------------

struct half_target {
    uint4 *halves;
    float *units;
    uint32_t rows, k, pairs;
    uint32_t together; // rows that are side by side
    bool few;          // as few_rows.cuh has them, else many_rows.cuh
};

// A run of a row into scratch, by a warp.
__device__ __forceinline__ void put_run(const half_target &t, uint32_t row, uint32_t run,
                                        const half_run &x) {
    const uint32_t lane = threadIdx.x % 32, block = row / t.together, in_block = row % t.together,
                   runs = blocks_of(t.pairs, RUN_PAIRS);
    if (lane == 0)
        t.units[((size_t)block * runs + run) * t.together + in_block] = x.unit;
#pragma unroll
    for (uint32_t j = 0; j < RUN_FOURS; j++) {
        const uint32_t four = j * 32 + lane, pair = run * RUN_PAIRS + four / 16;
        if (pair >= t.pairs)
            break;
        if (t.few) {
            ((uint2 *)t.halves)[few_words(pair, t.together, row, four)] = x.words[j];
            continue;
        }
        const size_t at = ((size_t)block * t.pairs + pair) * 8 + four / 4 % 4 * 2;
        uint32_t *words = (uint32_t *)(t.halves + at * t.together + in_block) + four % 4;
        words[0] = x.words[j].x;
        words[t.together * 4] = x.words[j].y;
    }
}

// Whole lines of scratch for many rows: a run of LINE_ROWS rows, of which each warp has one.
enum { LINE_ROWS = 8, RUN_EIGHTHS = RUN_PAIRS * 8 }; // eighths: eight inputs of each of the rows
using run_lines = uint4[RUN_EIGHTHS][LINE_ROWS + 1];
__device__ __forceinline__ void put_lines(const half_target &t, uint32_t row0, uint32_t run,
                                          const half_run &x, run_lines &lines) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = row0 + warp,
                   block = row0 / t.together, in_block = row0 % t.together,
                   runs = blocks_of(t.pairs, RUN_PAIRS),
                   eighths = min((uint32_t)RUN_PAIRS, t.pairs - run * RUN_PAIRS) * 8;
    if (lane == 0 && row < t.rows)
        t.units[((size_t)block * runs + run) * t.together + in_block + warp] = x.unit;
#pragma unroll
    for (uint32_t j = 0; j < RUN_FOURS; j++) {
        const uint32_t four = j * 32 + lane, eighth = four / 16 * 8 + four / 4 % 4 * 2;
        ((uint32_t *)&lines[eighth][warp])[four % 4] = x.words[j].x;
        ((uint32_t *)&lines[eighth + 1][warp])[four % 4] = x.words[j].y;
    }
    __syncthreads();
    uint4 *const to =
        t.halves + ((size_t)block * t.pairs + run * RUN_PAIRS) * 8 * t.together + in_block;
    for (uint32_t i = threadIdx.x; i < eighths * LINE_ROWS; i += LINE_ROWS * 32)
        if (row0 + i % LINE_ROWS < t.rows)
            to[(size_t)(i / LINE_ROWS) * t.together + i % LINE_ROWS] =
                lines[i / LINE_ROWS][i % LINE_ROWS];
}

// y: what is rounded is kept there, too; NULL: it is not. A block has a run of LINE_ROWS rows.
template <class From>
__global__ void __launch_bounds__(LINE_ROWS * 32)
    round_kernel(const From from, float *y, const half_target t) {
    __shared__ run_lines lines;
    kernel_begins();
    const uint32_t runs = blocks_of(t.pairs, RUN_PAIRS), run = blockIdx.x % runs,
                   row0 = blockIdx.x / runs * LINE_ROWS, row = row0 + threadIdx.x / 32;
    half_run x = {};
    if (row < t.rows)
        x = round_half_run(
            fours_of_run(t.k, run),
            [&](uint32_t, uint32_t four) { return from.four_at(row, run * RUN + four * 4); },
            [&](uint32_t four, float4 v) {
                if (y)
                    *(float4 *)(y + (size_t)row * t.k + run * RUN + four * 4) = v;
            });
    if (!t.few)
        put_lines(t, row0, run, x, lines);
    else if (row < t.rows)
        put_run(t, row, run, x);
}

// rms_norm and rounding. grid: [row]
__global__ void __launch_bounds__(NORM_THREADS)
    norm_round_kernel(const rms_norm_op norm, const half_target t) {
    kernel_begins();
    const uint32_t row = blockIdx.x, warp = threadIdx.x / 32;
    const float *x = norm.x + (size_t)row * t.k;
    float4 *y = (float4 *)(norm.y + (size_t)row * t.k);
    const float inverse = norm_inverse_block(norm, x);
    for (uint32_t run = warp; run * RUN_PAIRS < t.pairs; run += NORM_THREADS / 32)
        put_run(t, row, run,
                round_half_run(
                    fours_of_run(t.k, run),
                    [&](uint32_t, uint32_t four) {
                        return norm_four(norm, x, inverse, run * RUN + four * 4);
                    },
                    [&](uint32_t four, float4 v) { y[run * (RUN / 4) + four] = v; }));
}

void round_rows(cuda_backend *b, const float *x, const half_target &t,
                const matmul_neighbours &with) {
    const dim3 blocks(blocks_of(t.rows, LINE_ROWS) * blocks_of(t.pairs, RUN_PAIRS));
    if (with.norm)
        cuda_ok(b,
                launch_early(b, norm_round_kernel, dim3(t.rows), NORM_THREADS, 0, *with.norm, t));
    else if (with.gate)
        cuda_ok(b, launch_early(b, round_kernel<packed_gates>, blocks, LINE_ROWS * 32, 0,
                                gates_of(*with.gate, t.k), with.gate->y, t));
    else
        cuda_ok(b, launch_early(b, round_kernel<packed_rows>, blocks, LINE_ROWS * 32, 0,
                                packed_rows{x, t.k}, (float *)nullptr, t));
}

// ---- few rows --------------------------------------------------------------------------------

bool rounds_itself(const cuda_backend *b, const weight_view &w, uint32_t rows) {
    const size_t ring = FEW_SLOTS * sizeof(run_slot<Halves<32, true, 8>>); // the largest
    const size_t input = few_input_bytes(w.pairs, rows);
    return rows <= OWN_ROWS && input <= FEW_INPUT_BYTES &&
           WARPS_MAX * ring + input + FEW_FIXED_BYTES <= b->shared_per_block;
}

// As many blocks as the device holds at a time; they take the tiles in turn. bytes: of inputs.
template <class F, class From, int ROWS, bool OWN>
void few_launch(cuda_backend *b, const product_args &a, const From &from, size_t bytes) {
    const product_part &last = a.part[a.parts - 1];
    const uint32_t tiles = last.first + blocks_of(last.w.n, TILE_OUTPUTS);
    const uint32_t warps = few_warps(last.w), ring = FEW_SLOTS * sizeof(run_slot<F>);
    const uint32_t blocks =
        std::min(a.gated ? tiles / 2 : tiles, 2 * b->sm_count * (WARPS_MAX / warps));
    void (*kernel)(product_args, From, uint32_t) = few_kernel<F, From, ROWS, OWN>;
    const uint32_t most = std::min<uint32_t>(WARPS_MAX * ring + FEW_INPUT_BYTES,
                                             b->shared_per_block - FEW_FIXED_BYTES);
    if (cuda_ok(b, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        (int)most)))
        cuda_ok(b, launch_early(b, kernel, dim3(blocks), warps * 32, warps * ring + bytes, a, from,
                                tiles));
}
template <class F, class From>
void few_launch(cuda_backend *b, const product_args &a, const From &from) {
    const weight_view &w = a.part[0].w;
    const size_t bytes = few_input_bytes(w.pairs, a.rows);
#ifdef KVASIR_FEW_KERNELS // for CI and cuda-mutants.sh: those for all shapes, but of Q4_0
    constexpr bool OWN = std::is_same<F, Halves<32, false, 8>>::value;
#else
    constexpr bool OWN = true;
#endif
    const bool own = blocks_of(w.pairs, RUN_PAIRS) <= few_warps(w);
    if (a.rows == 1)
        own ? few_launch<F, From, 1, OWN>(b, a, from, bytes)
            : few_launch<F, From, 1, false>(b, a, from, bytes);
    else
        own ? few_launch<F, From, 2, OWN>(b, a, from, bytes)
            : few_launch<F, From, 2, false>(b, a, from, bytes);
}

bool writes(const product_args &a, const float *p) {
    for (uint32_t i = 0; i < a.parts; i++)
        if (a.part[i].y == p || a.part[i].sum == p)
            return true;
    return a.gated == p;
}

// The product gates its two outputs, too.
void take_gate(product_args &a, matmul_neighbours *with) {
    a.gated = with->gated->y;
    a.gate = (enum gate_kind)with->gated->kind;
    with->gated = nullptr;
}

// Blocks read a norm's operand while others write what they have made: where that is the same
// memory the norm is computed before. Every block would compute all gates: they are, too.
template <class F>
void few_product(cuda_backend *b, const float *x, product_args a, matmul_neighbours *with) {
    const weight_view &w = a.part[0].w;
    if (with->gated && a.parts == 2)
        take_gate(a, with);
    if (!rounds_itself(b, w, a.rows)) {
        const uint32_t rows = a.rows <= FEW_ROWS ? FEW_ROWS : 2 * FEW_ROWS;
        const few_inputs in = few_inputs_at(b->act, w.pairs, rows);
        round_rows(b, x, {in.halves, in.units, a.rows, w.k, w.pairs, rows, true}, *with);
        if (cuda_works(b))
            a.rows <= FEW_ROWS ? few_launch<F, few_rounded, FEW_ROWS, false>(b, a, {in}, 0)
                               : few_launch<F, few_rounded, 2 * FEW_ROWS, false>(b, a, {in}, 0);
        return;
    }
    if (with->norm && (with->norm->y == with->norm->x || writes(a, with->norm->x))) {
        run_rms_norm(b, *with->norm);
        with->norm = nullptr;
    }
    if (with->gate)
        run_gate_mul(b, *with->gate);
    if (!cuda_works(b))
        return;
    if (with->norm)
        few_launch<F>(b, a, few_norms{*with->norm});
    else
        few_launch<F>(b, a, few_rows_of{{x, w.k}});
}

// ---- many rows -------------------------------------------------------------------------------

// A kernel for blocks of `outputs` outputs and `rows` rows.
struct many_choice {
    void (*kernel)(product_args, half_act, uint32_t, many_splits, float *);
    void (*add)(product_args, const float *, uint32_t, uint32_t, uint32_t, uint32_t);
    uint32_t outputs, rows, threads, together;
    size_t stage_bytes, totals_bytes; // of shared memory; totals: of a block that is alone
};
template <class F, int N, int WM> many_choice many_of() {
    return {many_kernel<F, N, WM>,        sums_kernel<N>,
            WM * GROUP_OUTPUTS,           N,
            many_threads<N, WM>(),        blocks_together<N, WM>(),
            sizeof(many_stage<F, N, WM>), totals_pitch<WM>() * N * sizeof(float)};
}

// Stages that a block has room for beside `taken` bytes, if `together` of a multiprocessor share
// its memory.
uint32_t stages_for(const cuda_backend *b, const many_choice &c, size_t taken, uint32_t together) {
    const size_t room = std::min<size_t>(b->shared_per_block, b->shared_per_sm / together - 1024);
    taken += MANY_FIXED_BYTES;
    return room < taken ? 0
                        : (uint32_t)std::min<size_t>(STAGES_MAX, (room - taken) / c.stage_bytes);
}

// Those that it gets: fewer blocks of a multiprocessor rather than too few stages.
uint32_t stages_of(const cuda_backend *b, const many_choice &c, size_t taken) {
    const uint32_t stages = stages_for(b, c, taken, c.together);
    return stages < STAGES_MIN ? stages_for(b, c, taken, 1) : stages;
}

// How many blocks share the runs of an output, so that all `blocks` times as many are on the device
// together: they take whole sets if that makes enough of them.
many_splits splits_for(const cuda_backend *b, const many_choice &c, uint32_t blocks,
                       uint32_t runs) {
    const uint32_t room = (uint32_t)b->sm_count * c.together / blocks,
                   sets = blocks_of(runs, SET_RUNS);
    const bool whole = std::min(room, sets) * blocks >= (uint32_t)b->sm_count * 3 / 4;
    const uint32_t turns = whole ? sets : runs,
                   most = std::min<uint32_t>({room, turns, SPLITS_MAX});
    if (most < 2 || (size_t)blocks * turns * c.outputs * c.rows * sizeof(float) > b->run_sums_bytes)
        return {1, 1};
    return {blocks_of(turns, blocks_of(turns, most)), whole ? (uint32_t)SET_RUNS : 1u};
}

// The largest blocks of which there are enough for the device, those of 256 outputs also if they
// share whole sets. outputs: of all parts; runs: of an output.
template <class F>
many_choice many_for(const cuda_backend *b, uint32_t outputs, uint32_t rows, uint32_t runs) {
    const auto enough = [&](uint32_t n, uint32_t m) {
        return (size_t)blocks_of(outputs, n) * blocks_of(rows, m) >= (size_t)b->sm_count * 3 / 4;
    };
#ifdef KVASIR_FEW_KERNELS
    const many_choice large = many_of<F, 64, 4>(),
                      choices[] = {large, large, large, many_of<F, 16, 2>()};
#else
    const many_choice choices[] = {many_of<F, 128, 2>(), many_of<F, 64, 4>(), many_of<F, 64, 2>(),
                                   many_of<F, 16, 2>()};
#endif
    const uint32_t wide = blocks_of(outputs, 256) * blocks_of(rows, 64);
    const bool sets = splits_for(b, choices[1], wide, runs).turn == SET_RUNS;
    uint32_t i = rows > 64 && enough(128, 128)            ? 0
                 : rows > 16 && (enough(256, 64) || sets) ? 1
                 : rows > 16                              ? 2
                                                          : 3;
    while (i < 3 && stages_of(b, choices[i], choices[i].totals_bytes) < STAGES_MIN)
        i++;
    return choices[i];
}

// Blocks that have as many outputs of each of two matrices of this shape.
uint32_t gated_blocks(const many_choice &c, const weight_view &w) {
    return 2 * w.n / c.outputs;
}
// Whether they can gate: they are enough for the device without splits.
bool many_gates(const cuda_backend *b, const many_choice &c, const weight_view &w, uint32_t rows) {
    return w.n % (COLUMN_TILES * TILE_OUTPUTS) == 0 && c.rows > 16 &&
           splits_for(b, c, blocks_of(rows, c.rows) * gated_blocks(c, w),
                      blocks_of(w.pairs, RUN_PAIRS))
                   .splits == 1;
}

template <class F>
void many_product(cuda_backend *b, const float *x, product_args a, uint32_t outputs,
                  matmul_neighbours *with) {
    const weight_view &w = a.part[0].w;
    const uint32_t runs = blocks_of(w.pairs, RUN_PAIRS);
    uint32_t blocks = 0;
    const many_choice c = many_for<F>(b, outputs, a.rows, runs);
    for (uint32_t i = 0; i < a.parts; i++) {
        a.part[i].first = blocks;
        blocks += blocks_of(a.part[i].w.n, c.outputs);
    }
    if (with->gated && a.parts == 2 && many_gates(b, c, w, a.rows)) {
        take_gate(a, with);
        blocks = gated_blocks(c, w);
    }
    const uint32_t chunks = blocks_of(a.rows, c.rows);
    const many_splits splits = splits_for(b, c, chunks * blocks, runs);
    const size_t taken = splits.splits == 1 ? c.totals_bytes : 0;
    const uint32_t stages = stages_of(b, c, taken);
    const half_act act = half_act_at(b->act, a.rows, w.pairs, c.rows);
    const size_t shared = stages * c.stage_bytes + taken;
    round_rows(b, x, {(uint4 *)act.halves, (float *)act.units, a.rows, w.k, w.pairs, c.rows, false},
               *with);
    if (cuda_works(b) &&
        cuda_ok(b, cudaFuncSetAttribute(c.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        (int)(b->shared_per_block - MANY_FIXED_BYTES))))
        cuda_ok(b, launch_early(b, c.kernel, dim3(chunks * splits.splits, blocks), c.threads,
                                shared, a, act, stages, splits, b->run_sums));
    if (cuda_works(b) && splits.splits > 1)
        cuda_ok(b, launch_early(b, c.add, dim3(chunks, blocks * c.outputs * c.rows / SUMS_VALUES),
                                SUMS_VALUES / 4, 0, a, (const float *)b->run_sums,
                                blocks_of(runs, splits.turn),
                                splits.turn == 1 ? (uint32_t)SET_RUNS : 1u, c.outputs,
                                blocks * c.outputs));
}

// outputs: of all parts.
bool few_suffice(const cuda_backend *b, uint32_t outputs, uint32_t rows) {
    return rows <= FEW_ROWS || (rows <= 2 * FEW_ROWS && outputs / 256 < (uint32_t)b->sm_count / 2);
}

template <class F>
void product_of(cuda_backend *b, const float *x, const product_args &a, matmul_neighbours *with) {
    uint32_t outputs = 0;
    for (uint32_t i = 0; i < a.parts; i++)
        outputs += a.part[i].w.n;
    if (few_suffice(b, outputs, a.rows))
        few_product<F>(b, x, a, with);
    else
        many_product<F>(b, x, a, outputs, with);
    with->norm = nullptr;
    with->gate = nullptr;
}

} // namespace

bool halves_gate(const cuda_backend *b, const weight_view &w, uint32_t rows) {
    return is_halves(b, w) &&
           (rows <= FEW_ROWS ||
            (!few_suffice(b, 2 * w.n, rows) &&
             many_gates(
                 b, many_for<Halves<32, true, 8>>(b, 2 * w.n, rows, blocks_of(w.pairs, RUN_PAIRS)),
                 w, rows)));
}

void product_halves(cuda_backend *b, const float *x, product_args a, matmul_neighbours *with) {
    const weight_view &w = a.part[0].w;
    if (!w.biased)
        product_of<Halves<32, false, 8>>(b, x, a, with);
    else if (w.group == 32)
        product_of<Halves<32, true, 8>>(b, x, a, with);
    else if (w.group == 64)
        product_of<Halves<64, true, 8>>(b, x, a, with);
    else
        product_of<Halves<128, true, 8>>(b, x, a, with);
}

size_t halves_sums_bytes(const cuda_backend *b) {
    return std::min<size_t>(b->memory_bytes / 256, 64 << 20);
}

size_t halves_scratch_bytes(uint32_t max_rows, uint32_t max_inputs) {
    const size_t rows = blocks_of(max_rows, 128) * (size_t)128, pairs = blocks_of(max_inputs, PAIR);
    return rows * (pairs * PAIR * 2 + blocks_of(pairs, RUN_PAIRS) * sizeof(float));
}
