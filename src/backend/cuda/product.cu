// SPDX-License-Identifier: Apache-2.0
// product.cu: matmul, y = x . w^T, for every form of a matrix (product.cuh); weights.cu makes them.
//
// A block of threads makes 16 outputs of up to 64 rows. A warp goes over a run of 512 inputs; runs
// are at absolute multiples, and their sums meet in shared memory and are added in order:
//
//     k:     | run 0 | run 1 | ... | run W | ...          W warps
//     warp     0       1             0                     -> part[run][row][output] -> y
//
// 4-bit matrices and activations of 8 bits have kernels of their own: halves.cu.
//
// A first kernel rounds x into scratch. From compute capability 9.0 on, the product starts
// before it ends.
// Scratch (cuda_backend.act): product_scratch_bytes_cuda(max_rows, max_inputs).
//
// float32 matrices (SINGLES) are multiplied as they are: a warp makes an output of up to 8 rows,
// lane l inputs l, l + 32, ..., each one fmaf; then the lanes' sums in one tree.
//
// Experts: item i multiplies row i / per_row of x with matrix table[choice[i]].
//
// Invariants:
//   * the float operations of an output, in order: those of its runs (product.cuh), the runs' sums
//     in order from 0, then + bias of the product. None of it depends on the number of rows, on n
//     or on other outputs
//   * dots are exact as integers. As float32, too, with codes of 4 bits (32 * 15 * 16256 < 2^24) or
//     activations of 8; else they are rounded once
//   * Q4_0's codes are code - 8: the sums start at -8 times the sum of the activations' codes
//   * activations become codes as in act_pack_ref (cpu/ref/product.c)
#include <algorithm>
#include <cmath>

#include "backend/cuda/pack.cuh"

namespace {

enum { CHUNK_ROWS = 64 };

// ---- activations -----------------------------------------------------------------------------

// Rounded inputs on their way to scratch: rows up to the column tile, inputs up to the pair.
struct pack_target {
    act_view act;
    uint32_t rows, k, pairs;
    bool affine;
};

// Inputs 4 four, ... of a row, by a lane. Whole warps call this, also for rows and inputs that are
// not there, which are zeros; nothing is kept of rows after a tile.
template <int BITS>
__device__ __forceinline__ void pack_four(const pack_target &t, uint32_t row, uint32_t four,
                                          float4 v) {
    constexpr uint32_t ROWS = tile_rows<BITS>;
    const uint32_t tile = row / ROWS, in_tile = row % ROWS;
    const rounded_four rounded = round_four<BITS>(v, t.affine);
    if (tile * ROWS >= t.rows || four >= t.pairs * (PAIR / 4))
        return;
    const uint32_t pair = four / 16, second = four / 8 % 2, j = four % 8;
    const size_t at = (size_t)tile * t.pairs + pair;
    const uint32_t column = BITS == 8 ? in_tile : 2 * in_tile;
    uint32_t *words = (uint32_t *)t.act.codes + (at * 32 + column * 4 + j % 4) * 4 + 2 * second;
    words[j / 4] = rounded.high;
    if (BITS == 16)
        words[16 + j / 4] = rounded.low; // the next column is four lanes on
    if (j != 0)
        return;
    uint32_t *sides = (uint32_t *)t.act.sides;
    if (BITS == 8) {
        sides += ((at * 2 + second) * 4 + in_tile / 2) * 4 + in_tile % 2;
        sides[0] = __float_as_uint(rounded.scale);
        sides[2] = rounded.a;
    } else {
        sides += (at * 4 + in_tile) * 4 + 2 * second;
        sides[0] = __float_as_uint(rounded.scale);
        sides[1] = rounded.a;
    }
}

// y: what is rounded is kept there, too; NULL: it is not.
template <int BITS, class From>
__global__ void __launch_bounds__(256) pack_kernel(const From from, float *y, const pack_target t) {
    kernel_begins();
    const size_t i = (size_t)blockIdx.x * 256 + threadIdx.x; // whole warps: 16 i's are a pair
    const uint32_t fours = t.pairs * (PAIR / 4), row = (uint32_t)(i / fours);
    const uint32_t four = (uint32_t)(i % fours);
    float4 v = make_float4(0, 0, 0, 0);
    if (row < t.rows && four * 4 < t.k) {
        v = from.four_at(row, four * 4);
        if (y)
            *(float4 *)(y + (size_t)row * t.k + four * 4) = v;
    }
    pack_four<BITS>(t, row, four, v);
}

// rms_norm and rounding. grid: [row, up to the column tile]
template <int BITS>
__global__ void __launch_bounds__(NORM_THREADS)
    norm_pack_kernel(const rms_norm_op norm, const pack_target t) {
    kernel_begins();
    const uint32_t row = blockIdx.x, fours = t.pairs * (PAIR / 4);
    const bool exists = row < t.rows; // the same for the whole block
    const float *x = norm.x + (size_t)row * t.k;
    const float inverse = exists ? norm_inverse_block(norm, x) : 0;
    for (uint32_t first = 0; first < fours; first += NORM_THREADS) {
        const uint32_t four = first + threadIdx.x, i = four * 4;
        float4 v = make_float4(0, 0, 0, 0);
        if (exists && i < t.k) {
            v = norm_four(norm, x, inverse, i);
            *(float4 *)(norm.y + (size_t)row * t.k + i) = v;
        }
        pack_four<BITS>(t, row, four, v);
    }
}

// A warp splits 512 inputs of a row into two planes of f16 or bf16: x = 2^e * (high + low). f16 has
// 2^e <= max |x| < 2^(e + 1), as far as float32 can; bf16 has float32's exponents and needs none.
// Lane l has step l % 4 (16 inputs) of pair l / 4.
template <bool BF>
__global__ void __launch_bounds__(256)
    split_kernel(const float *x, uint32_t rows, uint32_t k, uint32_t pairs, act_view out) {
    kernel_begins();
    const uint32_t runs = blocks_of(pairs, RUN_PAIRS), lane = threadIdx.x % 32;
    const size_t warp = ((size_t)blockIdx.x * 256 + threadIdx.x) / 32;
    const uint32_t row = (uint32_t)(warp / runs), run = (uint32_t)(warp % runs);
    if (row >= (rows + 3) / 4 * 4)
        return;
    const uint32_t pair = run * RUN_PAIRS + lane / 4, first = pair * PAIR + lane % 4 * 16;
    float v[16];
    uint32_t m = 0;
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) {
        v[i] = row < rows && first + i < k ? x[(size_t)row * k + first + i] : 0.f;
        m = max(m, __float_as_uint(v[i]) & 0x7fffffffu);
    }
    m = warp_max(m);
    const run_unit u = BF ? run_unit{1, 1} : unit_of_run(m);
    const uint32_t runs_at = (row / 4 * runs + run) * 4 + row % 4;
    if (lane == 0)
        ((float *)out.sides)[runs_at] = u.unit;
    if (pair >= pairs)
        return;
    uint2 *words = (uint2 *)out.codes +
                   (((size_t)(row / 4) * pairs + pair) * 2 + lane % 4 / 2) * 64 + lane % 2;
#pragma unroll
    for (uint32_t q = 0; q < 4; q++) {
        float high[4], low[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const float scaled = u.power == 0 ? 0.f : v[i / 2 * 8 + 2 * q + i % 2] * u.power;
            high[i] = BF ? __bfloat162float(__float2bfloat16_rn(scaled))
                         : __half2float(__float2half_rn(scaled));
            low[i] = scaled - high[i];
        }
        const uint32_t column = 2 * (row % 4);
        words[(column * 4 + q) * 2] =
            make_uint2(pack_half2<BF>(high[0], high[1]), pack_half2<BF>(high[2], high[3]));
        words[((column + 1) * 4 + q) * 2] =
            make_uint2(pack_half2<BF>(low[0], low[1]), pack_half2<BF>(low[2], low[3]));
    }
}

// ---- the product -----------------------------------------------------------------------------

// What a block of threads makes: rows [row0 + first, row0 + end) of x, into rows from y_row on.
struct block_rows {
    uint32_t row0, first, end, y_row;
};

// 16 outputs of these rows; `part` and `total` are shared.
template <class F, int TILES, int SLOTS>
__device__ __forceinline__ void
make_outputs(const act_view &act, const product_part &p, uint32_t tile, const block_rows &b,
             float (&part)[SLOTS][tile_rows<F::BITS> * TILES * PART_STRIDE],
             float (&total)[tile_rows<F::BITS> * TILES * TILE_OUTPUTS]) {
    constexpr int BITS = F::BITS;
    constexpr uint32_t ROWS = tile_rows<BITS> * TILES, PLANES = BITS == 8 ? 1 : 2;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const weight_view &v = p.w;
    const uint32_t runs = blocks_of(v.pairs, RUN_PAIRS);
    const columns c = {b.row0, b.first * PLANES, b.end * PLANES,
                       (b.end + tile_rows<BITS> - 1) / tile_rows<BITS>};
    for (uint32_t first = 0; first < runs; first += SLOTS) {
        const uint32_t end = min(first + SLOTS, runs);
        for (uint32_t run = first + warp; run < end; run += warps) {
            float acc[TILES][lane_outputs<BITS>];
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int i = 0; i < lane_outputs<BITS>; i++)
                    acc[t][i] = 0;
            F::template add_run<TILES>(v, act, tile, run, c, lane, acc);
            keep_run<BITS, TILES>(part[run - first], lane, acc);
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < ROWS * TILE_OUTPUTS; i += blockDim.x) {
            const uint32_t row = i / TILE_OUTPUTS, output = i % TILE_OUTPUTS;
            const uint32_t j = tile * TILE_OUTPUTS + output;
            if (row < b.first || row >= b.end || j >= v.n)
                continue;
            float sum = first == 0 ? 0 : total[i]; // this thread's own
            for (uint32_t run = first; run < end; run++)
                sum += part[run - first][row * PART_STRIDE + output];
            total[i] = sum;
            if (end == runs)
                put_output(p, (size_t)(b.y_row + row - b.first) * v.n + j, j, sum);
        }
        __syncthreads(); // before the slots are written again
    }
}

// grid: [16 outputs, of one matrix after the other][64 rows]. Few rows: two blocks a multiprocessor
// at least, so that enough weights are on their way.
template <class F, int TILES>
__global__ void __launch_bounds__(WARPS_MAX * 32, TILES == 1 ? 2 : 1)
    product_kernel(const __grid_constant__ product_args a) {
    constexpr uint32_t ROWS = tile_rows<F::BITS> * TILES;
    // runs between two meetings of the warps: what fits into 40 KB
    constexpr uint32_t SLOTS = ROWS <= 8 ? 32 : ROWS <= 32 ? 16 : 8;
    static_assert(ROWS <= CHUNK_ROWS && SLOTS >= WARPS_MAX, "a slot for each warp");
    __shared__ float part[SLOTS][ROWS * PART_STRIDE];
    __shared__ float total[ROWS * TILE_OUTPUTS];
    kernel_comes();
    const uint32_t row0 = blockIdx.y * CHUNK_ROWS;
    uint32_t i = 0;
    while (i + 1 < a.parts && blockIdx.x >= a.part[i + 1].first)
        i++;
    const product_part &p = a.part[i];
    make_outputs<F, TILES>(a.act, p, blockIdx.x - p.first,
                           {row0, 0, min(a.rows - row0, ROWS), row0}, part, total);
}

// grid: [item][16 outputs], in x. part[0]: the shape that all matrices of the table have.
template <class F>
__global__ void __launch_bounds__(WARPS_MAX * 32, 2)
    chosen_kernel(const __grid_constant__ product_args a) {
    constexpr uint32_t ROWS = tile_rows<F::BITS>, SLOTS = 32;
    __shared__ float part[SLOTS][ROWS * PART_STRIDE];
    __shared__ float total[ROWS * TILE_OUTPUTS];
    kernel_begins();
    product_part p = a.part[0];
    const uint32_t tiles = blocks_of(p.w.n, TILE_OUTPUTS);
    const uint32_t item = blockIdx.x / tiles, tile = blockIdx.x % tiles, row = item / a.per_row;
    const uint32_t chosen = a.choice[item], in_tile = row % ROWS;
    p.w = a.table[chosen];
    p.bias = p.bias ? p.bias + (size_t)chosen * p.w.n : nullptr;
    make_outputs<F, 1>(a.act, p, tile, {row - in_tile, in_tile, in_tile + 1, item}, part, total);
}

// ---- float32 matrices ------------------------------------------------------------------------

enum { SINGLE_ROWS = 8, SINGLE_WARPS = 8 };

// One output of rows [row0, row0 + rows), by a warp; rows are at most SINGLE_ROWS.
__device__ __forceinline__ void single_output(const float *w, const float *x, uint32_t rows,
                                              uint32_t k, float (&sum)[SINGLE_ROWS]) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < SINGLE_ROWS; r++)
        sum[r] = 0;
    for (uint32_t i = lane; i < k; i += 32) {
        const float v = w[i];
#pragma unroll
        for (uint32_t r = 0; r < SINGLE_ROWS; r++)
            if (r < rows)
                sum[r] = fmaf(v, x[(size_t)r * k + i], sum[r]);
    }
#pragma unroll
    for (int r = 0; r < SINGLE_ROWS; r++)
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
            sum[r] += __shfl_xor_sync(~0u, sum[r], step);
}

// grid: [8 rows, or an item][8 outputs], in x.
__global__ void __launch_bounds__(SINGLE_WARPS * 32)
    single_kernel(const __grid_constant__ product_args a, const float *x) {
    kernel_begins();
    const product_part &p = a.part[0];
    const uint32_t blocks = blocks_of(p.w.n, SINGLE_WARPS), at = blockIdx.x / blocks;
    const uint32_t j = blockIdx.x % blocks * SINGLE_WARPS + threadIdx.x / 32;
    if (j >= p.w.n)
        return;
    const uint32_t row0 = a.table ? at : at * SINGLE_ROWS; // of y
    const uint32_t rows = a.table ? 1 : min(a.rows - row0, (uint32_t)SINGLE_ROWS);
    const uint32_t chosen = a.table ? a.choice[at] : 0;
    const float *w = (const float *)(a.table ? a.table[chosen].codes : p.w.codes);
    float sum[SINGLE_ROWS];
    single_output(w + (size_t)j * p.w.k, x + (size_t)(a.table ? at / a.per_row : row0) * p.w.k,
                  rows, p.w.k, sum);
    const float bias = p.bias ? p.bias[(size_t)chosen * p.w.n + j] : 0;
    if (threadIdx.x % 32 == 0)
#pragma unroll
        for (uint32_t r = 0; r < SINGLE_ROWS; r++)
            if (r < rows)
                p.y[(size_t)(row0 + r) * p.w.n + j] = p.bias ? sum[r] + bias : sum[r];
}

// ---- launches --------------------------------------------------------------------------------

using product_fn = void (*)(const product_args);

// The kernel with the fewest column tiles that hold the rows of a chunk; chosen: the experts'.
template <class F> product_fn kernel_for(uint32_t rows, bool chosen) {
    constexpr int ALL = CHUNK_ROWS / tile_rows<F::BITS>;
#ifdef KVASIR_FEW_KERNELS // for CI and cuda-mutants.sh: those for all shapes
    constexpr int SOME = ALL;
#else
    constexpr int SOME = 4;
#endif
    const uint32_t tiles = blocks_of(rows, tile_rows<F::BITS>);
    return chosen          ? chosen_kernel<F>
           : tiles <= 1    ? product_kernel<F, 1>
           : tiles <= SOME ? product_kernel<F, SOME>
                           : product_kernel<F, ALL>;
}

// Of activations of 8 bits, HALVES have these kernels for chosen matrices only.
template <class F> product_fn halves_kernel_for(uint32_t rows, bool chosen) {
    if constexpr (F::BITS == 8)
        return chosen_kernel<F>;
    else
        return kernel_for<F>(rows, chosen);
}

template <int BITS> product_fn kernel_for(const weight_view &w, uint32_t rows, bool chosen) {
    if (w.form == HALVES)
        return !w.biased       ? halves_kernel_for<Halves<32, false, BITS>>(rows, chosen)
               : w.group == 32 ? halves_kernel_for<Halves<32, true, BITS>>(rows, chosen)
               : w.group == 64 ? halves_kernel_for<Halves<64, true, BITS>>(rows, chosen)
                               : halves_kernel_for<Halves<128, true, BITS>>(rows, chosen);
    if (w.form == NIBBLES)
        return kernel_for<Codes<true, 32, true, BITS>>(rows, chosen);
    if (w.form == FLOATS)
        return w.bf16 ? kernel_for<Floats<true>>(rows, chosen)
                      : kernel_for<Floats<false>>(rows, chosen);
    if (w.group < BLOCK)
        return w.biased ? kernel_for<Codes<false, 16, true, BITS>>(rows, chosen)
                        : kernel_for<Codes<false, 16, false, BITS>>(rows, chosen);
    return w.biased ? kernel_for<Codes<false, 32, true, BITS>>(rows, chosen)
                    : kernel_for<Codes<false, 32, false, BITS>>(rows, chosen);
}

template <int BITS>
act_view pack(cuda_backend *b, const float *x, uint32_t rows, const weight_view &w,
              const matmul_neighbours &with) {
    const uint32_t padded = blocks_of(rows, tile_rows<BITS>) * tile_rows<BITS>;
    const dim3 blocks(blocks_of((size_t)padded * w.pairs * (PAIR / 4), 256));
    const pack_target t = {act_at<BITS>(b->act, rows, w.pairs), rows, w.k, w.pairs, w.biased};
    if (with.norm)
        cuda_ok(b, launch_early(b, norm_pack_kernel<BITS>, dim3(padded), NORM_THREADS, 0,
                                *with.norm, t));
    else if (with.gate)
        cuda_ok(b, launch_early(b, pack_kernel<BITS, packed_gates>, blocks, 256, 0,
                                gates_of(*with.gate, w.k), with.gate->y, t));
    else
        cuda_ok(b, launch_early(b, pack_kernel<BITS, packed_rows>, blocks, 256, 0,
                                packed_rows{x, w.k}, (float *)nullptr, t));
    return t.act;
}

// Rounds x into scratch as the matrix wants it. What it has to compute first it takes from `with`.
act_view round_rows(cuda_backend *b, const float *x, uint32_t rows, const weight_view &w,
                    matmul_neighbours *with) {
    if (w.form != FLOATS) {
        const act_view act =
            b->act_bits == 8 ? pack<8>(b, x, rows, w, *with) : pack<16>(b, x, rows, w, *with);
        with->norm = nullptr;
        with->gate = nullptr;
        return act;
    }
    const act_view act = act_floats_at(b->act, rows, w.pairs);
    const size_t warps = (size_t)blocks_of(rows, 4) * 4 * blocks_of(w.pairs, RUN_PAIRS);
    cuda_ok(b, launch_early(b, w.bf16 ? split_kernel<true> : split_kernel<false>,
                            dim3(blocks_of(warps, 8)), 256, 0, x, rows, w.k, w.pairs, act));
    return act;
}

void single_product(cuda_backend *b, const float *x, const product_args &a, uint32_t groups) {
    const uint32_t blocks = blocks_of(a.part[0].w.n, SINGLE_WARPS) * groups;
    cuda_ok(b, launch_early(b, single_kernel, dim3(blocks), SINGLE_WARPS * 32, 0, a, x));
}

// y[i] = x . w[i]^T for matrices with one kernel and one rounding of x.
void product(cuda_backend *b, const float *x, product_args a, matmul_neighbours *with) {
    const weight_view &w = a.part[0].w;
    if (w.form == SINGLES)
        return single_product(b, x, a, blocks_of(a.rows, SINGLE_ROWS));
    if (with->sum) { // of a single product
        a.part[0].sum = with->sum->x;
        a.part[0].sum_scale = with->sum->scale;
        with->sum = nullptr;
    }
    const product_part &last = a.part[a.parts - 1];
    const uint32_t tiles = last.first + blocks_of(last.w.n, TILE_OUTPUTS);
    if (is_halves(b, w))
        return product_halves(b, x, a, with);
    a.act = round_rows(b, x, a.rows, w, with);
    const product_fn kernel =
        b->act_bits == 8 ? kernel_for<8>(w, a.rows, false) : kernel_for<16>(w, a.rows, false);
    cuda_ok(b, launch_early(b, kernel, dim3(tiles, blocks_of(a.rows, CHUNK_ROWS)),
                            32 * product_warps(w), 0, a));
}

// Whether one launch can make the products of both.
bool same_kernel(const weight_view &a, const weight_view &b) {
    return a.form == b.form && a.form != SINGLES && a.group == b.group && a.biased == b.biased &&
           (a.form != FLOATS || a.bf16 == b.bf16);
}

} // namespace

size_t product_scratch_bytes_cuda(uint32_t max_rows, uint32_t max_inputs) {
    const size_t rows = ((size_t)max_rows + 7) / 8 * 8, pairs = blocks_of(max_inputs, PAIR);
    const size_t codes = rows * pairs * (PAIR * 2 + PAIR / BLOCK * 8);
    const size_t floats = rows * (pairs * PAIR * 4 + blocks_of(pairs, RUN_PAIRS) * 4);
    return std::max({codes, floats, halves_scratch_bytes(max_rows, max_inputs)});
}

// What cannot be done by the product's own kernels is done by its own.
static void run_apart(cuda_backend *b, const matmul_neighbours &with, bool before) {
    if (before && with.norm)
        run_rms_norm(b, *with.norm);
    if (before && with.gate)
        run_gate_mul(b, *with.gate);
    if (!before && with.sum)
        run_add(b, *with.sum);
    if (!before && with.gated)
        run_gate_mul(b, *with.gated);
}

bool product_gates(const cuda_backend *b, const matmul_op &op) {
    const weight_view *gate = weight_view_of(op.w[0]), *up = weight_view_of(op.w[1]);
    return op.count == 2 && gate->n == up->n && same_kernel(*gate, *up) &&
           halves_gate(b, *gate, op.rows);
}

// Matrices of one kernel are one launch, after one that rounds x; the next ones round it anew into
// the same scratch: that kernel waits for the last product.
void run_matmul(cuda_backend *b, const matmul_op &op, matmul_neighbours with) {
    const matrix_form first = weight_view_of(op.w[0])->form;
    product_args a = {};
    a.rows = op.rows;
    if (first == FLOATS || first == SINGLES) {
        run_apart(b, with, true);
        with.norm = nullptr;
        with.gate = nullptr;
    }
    for (uint32_t i = 0; i < op.count && cuda_works(b); i++) {
        const weight_view *v = weight_view_of(op.w[i]);
        product_part *last = a.parts ? &a.part[a.parts - 1] : nullptr;
        if (last && !same_kernel(last->w, *v)) {
            product(b, op.x, a, &with);
            a.parts = 0;
            last = nullptr;
        }
        const uint32_t tile = last ? last->first + blocks_of(last->w.n, TILE_OUTPUTS) : 0;
        a.part[a.parts++] = {*v, op.bias[i], op.y[i], tile, nullptr, 0};
    }
    if (cuda_works(b))
        product(b, op.x, a, &with);
    run_apart(b, with, false);
}

void product_chosen(cuda_backend *b, const chosen_products *p, const float *x, uint32_t x_rows,
                    uint32_t per_row, const uint32_t *choice, uint32_t items, float *y) {
    product_args a = {};
    const weight_view &w = p->shape;
    a.part[0] = {w, p->bias, y, 0, nullptr, 0};
    a.parts = 1;
    a.rows = x_rows;
    a.table = p->table;
    a.choice = choice;
    a.per_row = per_row;
    if (items == 0 || !cuda_works(b))
        return;
    ASSERT(x_rows <= (size_t)b->limits.rows * std::max(b->limits.top_k, 1u));
    if (w.form == SINGLES)
        return single_product(b, x, a, items);
    matmul_neighbours none = {};
    a.act = round_rows(b, x, x_rows, w, &none);
    const product_fn kernel =
        b->act_bits == 8 ? kernel_for<8>(w, 1, true) : kernel_for<16>(w, 1, true);
    cuda_ok(b, launch_early(b, kernel, dim3(blocks_of(w.n, TILE_OUTPUTS) * items),
                            32 * product_warps(w), 0, a));
}
