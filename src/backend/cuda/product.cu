// SPDX-License-Identifier: Apache-2.0
// product.cu: matmul, y = x . w^T for weights of 4 bits (Q4_0, AFFINE4), exact integers inside
// blocks of 32 inputs, float32 between them.
//
// Weights are on the m side of mma.m16n8k32, tokens on the n side: 8 columns are 8 rows of x
// (act_bits 8) or 4 rows x 2 planes (act_bits 16: code = 128 * high + low, column 2 * row is the
// high plane). A lane is (r, q) = (lane / 4, lane % 4).
//
//     weights     [16 outputs][pair of blocks][lane] 16 bytes: a word for both blocks, rows r and
//                 r + 8; byte i holds code k = 4q + i (low nibble) and k = 16 + 4q + i (high)
//     scales      [16 outputs][4 groups][r] 16 bytes: of each group for rows r and r + 8; biases
//                 after them likewise. Padded with zeros to 16 outputs, pairs, four groups.
//     activations [8 columns][pair][lane] 16 bytes: for both blocks the inputs 4q.. and 16 + 4q..
//                 of column r; beside them scales and sums, in a lane's order (struct act_view)
//
// A block of threads makes 16 outputs of up to 64 rows. A warp goes over a run of 512 inputs, whose
// weights it loads all at once; runs are at absolute multiples, and their sums meet in shared
// memory and are added in order:
//
//     k:     | run 0 | run 1 | ... | run W | ...          W warps
//     warp     0       1             0                     -> part[run][row][output] -> y
//
// A first kernel rounds x into scratch. From compute capability 9.0 on, the product starts
// before it ends, and has started to load weights when it waits for it.
// Scratch (cuda_backend.act): product_scratch_bytes_cuda(max_rows, max_inputs), which for the most
// rows and inputs, rounded up to 8 and 64, is 2 bytes a code and 8 a block of 32.
//
// Invariants:
//   * the float operations of an output, in order: for each block of its run
//         acc = fmaf(d * scale_b, dot, acc), and if affine  acc = fmaf(bias, sum_b, acc)
//     then the runs' sums in order from 0, then + bias of the product. None of it depends on the
//     number of rows, on n or on other outputs
//   * dot is exact: at most 32 * 15 * 16256 < 2^24, so it is exact as a float32, too
//   * Q4_0's codes are code - 8: the sums start at -8 times the sum of the activations' codes
//   * activations become codes as in act_pack_ref (cpu/ref/product.c)
#include <cmath>
#include <cstring>
#include <cuda_fp16.h>

#include "backend/cuda/internal.cuh"
#include "backend/cuda/mma.cuh"

struct backend_weight {
    uint32_t n, k;
    uint32_t group; // inputs that share a scale
    bool affine, bf16;
    uint8_t *data;                    // device: codes, then scales, then biases
    size_t scale_offset, bias_offset; // bytes
    uint32_t tiles, pairs, quads;     // 16 outputs; 64 inputs; four groups (of a tile)
};

namespace {

enum { BLOCK = 32, PAIR = 64, RUN = 512, RUN_PAIRS = RUN / PAIR, TILE_OUTPUTS = 16 };
enum { CHUNK_ROWS = 64, WARPS_MAX = 8, LANE_BYTES = 16 };
enum { CODE_MAX_8 = 127, CODE_MAX_16 = 16256 }; // ACT8_MAX, ACT16_MAX of cpu/kernels.h
constexpr float TINY = 1e-30f;                  // ACT_TINY

inline uint32_t ceil_div(uint32_t a, uint32_t b) {
    return a / b + (a % b != 0);
}

// ---- activations -----------------------------------------------------------------------------

// Rows of x that share an mma's 8 columns.
template <int BITS> constexpr uint32_t tile_rows = BITS == 8 ? 8 : 4;

// What a block of 32 inputs adds beside its codes. `a` depends on the type of the weight: the
// block's sum, scale * (sum of codes), or for Q4_0 the integer -8 * (sum of codes).
//     8:   [row tile][pair][block][q]  scale, scale, a, a of rows 2q and 2q + 1
//     16:  [row tile][pair][q]         scale, a of row q in the first block, then in the second
struct act_view {
    const uint4 *codes, *sides;
};

template <int BITS>
__host__ __device__ inline act_view act_at(void *scratch, uint32_t rows, uint32_t pairs) {
    uint32_t tiles = (rows + tile_rows<BITS> - 1) / tile_rows<BITS>;
    const uint4 *codes = (const uint4 *)scratch;
    return {codes, codes + (size_t)tiles * pairs * 32};
}

// A thread rounds four inputs; eight lanes share a block. Rows after the last, up to the column
// tile, and the block after the last, up to the pair, become zeros.
template <int BITS>
__global__ void __launch_bounds__(256) pack_kernel(const float *x, uint32_t rows, uint32_t k,
                                                   uint32_t pairs, bool affine, act_view out) {
    constexpr int CODE_MAX = BITS == 8 ? CODE_MAX_8 : CODE_MAX_16;
    constexpr uint32_t ROWS = tile_rows<BITS>;
    kernel_comes();
    const size_t i = (size_t)blockIdx.x * 256 + threadIdx.x; // whole warps: 16 i's are a pair
    const uint32_t fours = pairs * (PAIR / 4), row = (uint32_t)(i / fours);
    const uint32_t four = (uint32_t)(i % fours), tile = row / ROWS, in_tile = row % ROWS;
    const bool inside = row < rows && four * 4 < k;
    float4 v = make_float4(0, 0, 0, 0);
    if (inside)
        v = __ldg((const float4 *)(x + (size_t)row * k) + four);
    // As integers, magnitudes order like floats, with NaN above infinity.
    uint32_t m = max(max(__float_as_uint(v.x) & 0x7fffffffu, __float_as_uint(v.y) & 0x7fffffffu),
                     max(__float_as_uint(v.z) & 0x7fffffffu, __float_as_uint(v.w) & 0x7fffffffu));
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
        m = max(m, __shfl_xor_sync(~0u, m, step));
    float most = __uint_as_float(m), scale = 0, per_unit = 0;
    if (m >= 0x7f800000u) {
        scale = __uint_as_float(0x7fc00000u);
    } else if (most >= TINY) {
        scale = __fdiv_rn(most, (float)CODE_MAX);
        per_unit = __fdiv_rn((float)CODE_MAX, most);
    }
    int code[4] = {0, 0, 0, 0};
    if (per_unit != 0) {
        code[0] = (int)rintf(v.x * per_unit);
        code[1] = (int)rintf(v.y * per_unit);
        code[2] = (int)rintf(v.z * per_unit);
        code[3] = (int)rintf(v.w * per_unit);
    }
    int sum = code[0] + code[1] + code[2] + code[3];
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
        sum += __shfl_xor_sync(~0u, sum, step);
    if (tile * ROWS >= rows) // after the last tile
        return;
    uint32_t high = 0, low = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        high |= (uint32_t)((BITS == 8 ? code[j] : code[j] >> 7) & 255) << (8 * j);
        low |= (uint32_t)(code[j] & 127) << (8 * j);
    }
    const uint32_t pair = four / 16, second = four / 8 % 2, j = four % 8;
    const size_t at = (size_t)tile * pairs + pair;
    const uint32_t column = BITS == 8 ? in_tile : 2 * in_tile;
    uint32_t *words = (uint32_t *)out.codes + (at * 32 + column * 4 + j % 4) * 4 + 2 * second;
    words[j / 4] = high;
    if (BITS == 16)
        words[16 + j / 4] = low; // the next column is four lanes on
    if (j != 0)
        return;
    uint32_t a = affine ? __float_as_uint(scale * (float)sum) : (uint32_t)(-8 * sum);
    uint32_t *sides = (uint32_t *)out.sides;
    if (BITS == 8) {
        sides += ((at * 2 + second) * 4 + in_tile / 2) * 4 + in_tile % 2;
        sides[0] = __float_as_uint(scale);
        sides[2] = a;
    } else {
        sides += (at * 4 + in_tile) * 4 + 2 * second;
        sides[0] = __float_as_uint(scale);
        sides[1] = a;
    }
}

// ---- the product -----------------------------------------------------------------------------

struct product_args {
    const uint8_t *weights;
    size_t scale_offset, bias_offset;
    uint32_t n, pairs, quads;
    bool bf16;
    act_view act;
    uint32_t rows;
    const float *bias;
    float *y;
};

// Weights are read once: past L1.
__device__ __forceinline__ uint4 load_once(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

// The two scalars of a word: of rows r and r + 8.
__device__ __forceinline__ float2 two_scalars(uint32_t v, bool bf16) {
    if (bf16)
        return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
    return make_float2(__half2float(__ushort_as_half((unsigned short)(v & 0xffffu))),
                       __half2float(__ushort_as_half((unsigned short)(v >> 16))));
}

// The weights of a run, in registers. Affine: AFFINE; a group is GROUP inputs.
template <int GROUP, bool AFFINE> struct run_weights {
    static constexpr int QUADS = RUN / GROUP / 4;
    uint4 codes[RUN_PAIRS], scales[QUADS], biases[AFFINE ? QUADS : 1];
};

template <int GROUP, bool AFFINE>
__device__ __forceinline__ void load_run(const product_args &a, uint32_t tile, uint32_t run,
                                         uint32_t lane, run_weights<GROUP, AFFINE> &w) {
    constexpr uint32_t QUADS = run_weights<GROUP, AFFINE>::QUADS;
    const uint4 *codes = (const uint4 *)a.weights + ((size_t)tile * a.pairs) * 32 + lane;
#pragma unroll
    for (uint32_t p = 0; p < RUN_PAIRS; p++)
        if (run * RUN_PAIRS + p < a.pairs)
            w.codes[p] = load_once(codes + (size_t)(run * RUN_PAIRS + p) * 32);
    const size_t at = ((size_t)tile * a.quads) * 8 + lane / 4;
    const uint4 *scales = (const uint4 *)(a.weights + a.scale_offset) + at;
    const uint4 *biases = (const uint4 *)(a.weights + a.bias_offset) + at;
#pragma unroll
    for (uint32_t i = 0; i < QUADS; i++)
        if (run * QUADS + i < a.quads) {
            w.scales[i] = load_once(scales + (size_t)(run * QUADS + i) * 8);
            if (AFFINE)
                w.biases[i] = load_once(biases + (size_t)(run * QUADS + i) * 8);
        }
}

// acc of a lane: act 8 {row 2q, row 2q + 1 of output r, then of output r + 8}; act 16 {row q of
// output r, of output r + 8}.
template <int BITS> constexpr int lane_outputs = BITS == 8 ? 4 : 2;

template <bool AFFINE>
__device__ __forceinline__ void add_block_8(const uint32_t (&w)[4], uint32_t b0, uint32_t b1,
                                            uint4 side, float2 d, float2 m, float (&acc)[4]) {
    int dot[4] = {0, 0, 0, 0};
    if (!AFFINE) {
        dot[0] = dot[2] = (int)side.z;
        dot[1] = dot[3] = (int)side.w;
    }
    mma_u8s8(dot, w, b0, b1);
    float s0 = __uint_as_float(side.x), s1 = __uint_as_float(side.y);
    acc[0] = fmaf(d.x * s0, (float)dot[0], acc[0]);
    acc[1] = fmaf(d.x * s1, (float)dot[1], acc[1]);
    acc[2] = fmaf(d.y * s0, (float)dot[2], acc[2]);
    acc[3] = fmaf(d.y * s1, (float)dot[3], acc[3]);
    if (AFFINE) {
        float a0 = __uint_as_float(side.z), a1 = __uint_as_float(side.w);
        acc[0] = fmaf(m.x, a0, acc[0]);
        acc[1] = fmaf(m.x, a1, acc[1]);
        acc[2] = fmaf(m.y, a0, acc[2]);
        acc[3] = fmaf(m.y, a1, acc[3]);
    }
}

template <bool AFFINE>
__device__ __forceinline__ void add_block_16(const uint32_t (&w)[4], uint32_t b0, uint32_t b1,
                                             uint32_t scale, uint32_t a, float2 d, float2 m,
                                             float (&acc)[2]) {
    int dot[4] = {0, 0, 0, 0};
    if (!AFFINE)
        dot[1] = dot[3] = (int)a; // the low planes' sums: they count once
    mma_u8s8(dot, w, b0, b1);
    float s = __uint_as_float(scale);
    acc[0] = fmaf(d.x * s, (float)(128 * dot[0] + dot[1]), acc[0]);
    acc[1] = fmaf(d.y * s, (float)(128 * dot[2] + dot[3]), acc[1]);
    if (AFFINE) {
        acc[0] = fmaf(m.x, __uint_as_float(a), acc[0]);
        acc[1] = fmaf(m.y, __uint_as_float(a), acc[1]);
    }
}

// One column tile, both blocks of a pair. `loads`: this lane's column is a row of x.
template <int BITS, bool AFFINE>
__device__ __forceinline__ void add_pair(const act_view &act, size_t at, uint32_t lane, bool loads,
                                         const uint32_t (&w)[2][4], const float2 (&d)[2],
                                         const float2 (&m)[2], float (&acc)[lane_outputs<BITS>]) {
    uint4 b = make_uint4(0, 0, 0, 0);
    if (loads)
        b = act.codes[at * 32 + lane];
    if constexpr (BITS == 8) {
        uint4 side0 = act.sides[at * 8 + lane % 4];
        uint4 side1 = act.sides[at * 8 + 4 + lane % 4];
        add_block_8<AFFINE>(w[0], b.x, b.y, side0, d[0], m[0], acc);
        add_block_8<AFFINE>(w[1], b.z, b.w, side1, d[1], m[1], acc);
    } else {
        uint4 side = act.sides[at * 4 + lane % 4];
        add_block_16<AFFINE>(w[0], b.x, b.y, side.x, side.y, d[0], m[0], acc);
        add_block_16<AFFINE>(w[1], b.z, b.w, side.z, side.w, d[1], m[1], acc);
    }
}

// A run of inputs: acc[t] of every column tile, from 0.
template <int GROUP, bool AFFINE, int BITS, int TILES>
__device__ __forceinline__ void add_run(const product_args &a, uint32_t tile, uint32_t run,
                                        uint32_t row0, uint32_t lane,
                                        float (&acc)[TILES][lane_outputs<BITS>]) {
    constexpr uint32_t ROWS = tile_rows<BITS>;
    const uint32_t rows = min(a.rows - row0, ROWS * TILES), row_tiles = (rows + ROWS - 1) / ROWS;
    // columns of x: rows, or two planes of them
    const uint32_t columns = BITS == 8 ? rows : 2 * rows, r = lane / 4;
    run_weights<GROUP, AFFINE> w;
    load_run(a, tile, run, lane, w);
    kernel_waits();
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int i = 0; i < lane_outputs<BITS>; i++)
            acc[t][i] = 0;
#pragma unroll
    for (uint32_t p = 0; p < RUN_PAIRS; p++) {
        if (run * RUN_PAIRS + p >= a.pairs)
            break;
        uint32_t codes[2][4];
        float2 d[2], m[2];
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            const uint32_t g = (p * 2 + h) * BLOCK / GROUP;
            uint32_t x = h ? w.codes[p].z : w.codes[p].x, y = h ? w.codes[p].w : w.codes[p].y;
            codes[h][0] = x & 0x0f0f0f0fu;
            codes[h][1] = y & 0x0f0f0f0fu;
            codes[h][2] = x >> 4 & 0x0f0f0f0fu;
            codes[h][3] = y >> 4 & 0x0f0f0f0fu;
            d[h] = two_scalars(word_of(w.scales[g / 4], g % 4), AFFINE && a.bf16);
            m[h] =
                AFFINE ? two_scalars(word_of(w.biases[g / 4], g % 4), a.bf16) : make_float2(0, 0);
        }
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++)
            if (t < row_tiles) {
                size_t at = (size_t)(row0 / ROWS + t) * a.pairs + run * RUN_PAIRS + p;
                add_pair<BITS, AFFINE>(a.act, at, lane, t * 8 + r < columns, codes, d, m, acc[t]);
            }
    }
}

// Sums of runs that wait to be added: [run][row][PART_STRIDE]. The stride keeps the four rows that
// a warp writes at a time in different banks.
enum { PART_STRIDE = 20 };

template <int BITS, int TILES>
__device__ __forceinline__ void keep_run(float *part, uint32_t lane,
                                         const float (&acc)[TILES][lane_outputs<BITS>]) {
    const uint32_t r = lane / 4, q = lane % 4;
#pragma unroll
    for (uint32_t t = 0; t < TILES; t++) {
        if constexpr (BITS == 8) {
            float *at = part + (t * 8 + 2 * q) * PART_STRIDE + r;
            at[0] = acc[t][0];
            at[PART_STRIDE] = acc[t][1];
            at[8] = acc[t][2];
            at[PART_STRIDE + 8] = acc[t][3];
        } else {
            float *at = part + (t * 4 + q) * PART_STRIDE + r;
            at[0] = acc[t][0];
            at[8] = acc[t][1];
        }
    }
}

// grid: [16 outputs][64 rows]. Few rows: two blocks a multiprocessor at least, so that enough
// weights are on their way.
template <int GROUP, bool AFFINE, int BITS, int TILES>
__global__ void __launch_bounds__(WARPS_MAX * 32, TILES == 1 ? 2 : 1)
    product_kernel(const product_args a) {
    constexpr uint32_t ROWS = tile_rows<BITS> * TILES;
    // runs between two meetings of the warps: what fits into 40 KB
    constexpr uint32_t SLOTS = ROWS <= 8 ? 32 : ROWS <= 32 ? 16 : 8;
    static_assert(ROWS <= CHUNK_ROWS && SLOTS >= WARPS_MAX, "a slot for each warp");
    __shared__ float part[SLOTS][ROWS * PART_STRIDE];
    __shared__ float total[ROWS * TILE_OUTPUTS];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const uint32_t tile = blockIdx.x, row0 = blockIdx.y * CHUNK_ROWS;
    const uint32_t runs = (a.pairs + RUN_PAIRS - 1) / RUN_PAIRS;
    for (uint32_t first = 0; first < runs; first += SLOTS) {
        const uint32_t end = min(first + SLOTS, runs);
        for (uint32_t run = first + warp; run < end; run += warps) {
            float acc[TILES][lane_outputs<BITS>];
            add_run<GROUP, AFFINE, BITS, TILES>(a, tile, run, row0, lane, acc);
            keep_run<BITS, TILES>(part[run - first], lane, acc);
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < ROWS * TILE_OUTPUTS; i += blockDim.x) {
            const uint32_t row = i / TILE_OUTPUTS, output = i % TILE_OUTPUTS;
            const uint32_t j = tile * TILE_OUTPUTS + output;
            if (row0 + row >= a.rows || j >= a.n)
                continue;
            float sum = first == 0 ? 0 : total[i]; // this thread's own
            for (uint32_t run = first; run < end; run++)
                sum += part[run - first][row * PART_STRIDE + output];
            total[i] = sum;
            if (end == runs)
                a.y[(size_t)(row0 + row) * a.n + j] = a.bias ? sum + a.bias[j] : sum;
        }
        __syncthreads(); // before the slots are written again
    }
}

// ---- launches --------------------------------------------------------------------------------

using product_fn = void (*)(const product_args);

// The kernel with the fewest column tiles that hold the rows of a chunk.
template <int GROUP, bool AFFINE, int BITS> product_fn kernel_for(uint32_t rows) {
    const uint32_t tiles = ceil_div(rows, tile_rows<BITS>);
    return tiles <= 1   ? product_kernel<GROUP, AFFINE, BITS, 1>
           : tiles <= 4 ? product_kernel<GROUP, AFFINE, BITS, 4>
                        : product_kernel<GROUP, AFFINE, BITS, CHUNK_ROWS / tile_rows<BITS>>;
}

template <int BITS> product_fn kernel_for(const backend_weight *w, uint32_t rows) {
    return !w->affine       ? kernel_for<32, false, BITS>(rows)
           : w->group == 32 ? kernel_for<32, true, BITS>(rows)
           : w->group == 64 ? kernel_for<64, true, BITS>(rows)
                            : kernel_for<128, true, BITS>(rows);
}

template <int BITS>
void product(cuda_backend *b, const float *x, uint32_t rows, const backend_weight *w,
             const float *bias, float *y) {
    product_args a = {};
    a.weights = w->data;
    a.scale_offset = w->scale_offset;
    a.bias_offset = w->bias_offset;
    a.n = w->n;
    a.pairs = w->pairs;
    a.quads = w->quads;
    a.bf16 = w->bf16;
    a.act = act_at<BITS>(b->act, rows, w->pairs);
    a.rows = rows;
    a.bias = bias;
    a.y = y;
    const uint32_t padded = ceil_div(rows, tile_rows<BITS>) * tile_rows<BITS>;
    const size_t fours = (size_t)padded * w->pairs * (PAIR / 4);
    pack_kernel<BITS><<<(uint32_t)((fours + 255) / 256), 256, 0, b->stream>>>(
        x, rows, w->k, w->pairs, w->affine, a.act);
    // Whole rounds of runs: 28 runs are 4 rounds of 7 warps, not 3 of 8 and a half.
    const uint32_t runs = ceil_div(w->pairs, RUN_PAIRS);
    const uint32_t warps = ceil_div(runs, ceil_div(runs, WARPS_MAX));
    cuda_ok(b, launch_early(b, kernel_for<BITS>(w, rows),
                            dim3(w->tiles, ceil_div(rows, CHUNK_ROWS)), 32 * warps, 0, a));
    cuda_ok(b, cudaGetLastError());
}

// ---- weights into the order of the kernel ----------------------------------------------------

const uint8_t *block_at(const weight *w, uint32_t row, uint32_t block) {
    const size_t bytes = w->type == WEIGHT_Q4_0 ? 18 : 16;
    return (const uint8_t *)w->data + ((size_t)row * (w->k / BLOCK) + block) * bytes;
}

// The word of lane q: byte i is code 4q + i and, in the high nibble, code 16 + 4q + i.
uint32_t code_word(const weight *w, uint32_t row, uint32_t block, uint32_t q) {
    const uint8_t *p = block_at(w, row, block);
    uint32_t word = 0;
    if (w->type == WEIGHT_Q4_0) { // stored in this order, after d
        memcpy(&word, p + 2 + 4 * q, sizeof word);
        return word;
    }
    for (uint32_t i = 0; i < 4; i++) { // the codes in order, the first in the low nibble
        uint32_t j = 4 * q + i;
        uint32_t low = p[j / 2] >> (4 * (j % 2)) & 15u, high = p[8 + j / 2] >> (4 * (j % 2)) & 15u;
        word |= (low | high << 4) << (8 * i);
    }
    return word;
}

// The scale (bias) of a group; GGUF's blocks hold theirs.
uint16_t scalar_of(const weight *w, const void *scalars, uint32_t row, uint32_t group) {
    uint16_t v;
    if (w->type == WEIGHT_Q4_0)
        memcpy(&v, block_at(w, row, group), sizeof v);
    else
        memcpy(&v, (const uint8_t *)scalars + 2 * ((size_t)row * (w->k / w->group) + group),
               sizeof v);
    return v;
}

void repack_codes(const weight *w, const backend_weight *to, uint8_t *out) {
    uint32_t *words = (uint32_t *)out;
    for (uint32_t row = 0; row < w->n; row++)
        for (uint32_t block = 0; block < w->k / BLOCK; block++) {
            size_t at = (size_t)(row / TILE_OUTPUTS) * to->pairs + block / 2;
            uint32_t r = row % TILE_OUTPUTS;
            for (uint32_t q = 0; q < 4; q++)
                words[(at * 32 + r % 8 * 4 + q) * 4 + block % 2 * 2 + r / 8] =
                    code_word(w, row, block, q);
        }
}

void repack_scalars(const weight *w, const backend_weight *to, const void *scalars, uint8_t *out) {
    uint16_t *halves = (uint16_t *)out;
    for (uint32_t row = 0; row < w->n; row++)
        for (uint32_t group = 0; group < w->k / to->group; group++) {
            size_t at = (size_t)(row / TILE_OUTPUTS) * to->quads + group / 4;
            uint32_t r = row % TILE_OUTPUTS;
            halves[((at * 8 + r % 8) * 4 + group % 4) * 2 + r / 8] =
                scalar_of(w, scalars, row, group);
        }
}

kvasir_status check_weight(const weight *w, kvasir_error *err) {
    const weight_traits *t = weight_traits_of(w->type);
    const char *name = t ? t->name : "?";
    if (w->type != WEIGHT_Q4_0 && w->type != WEIGHT_AFFINE4)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "weight type %s cannot be multiplied on CUDA",
                    name);
    if (w->type == WEIGHT_AFFINE4 && w->scalar != SCALAR_F16 && w->scalar != SCALAR_BF16)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "%s with float32 scales cannot be multiplied on CUDA", name);
    if (w->type == WEIGHT_AFFINE4 && w->group != 32 && w->group != 64 && w->group != 128)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "%s with groups of %u cannot be multiplied on CUDA", name, w->group);
    if (w->n == 0 || w->k == 0 || w->k % (w->type == WEIGHT_Q4_0 ? 32 : w->group) != 0)
        return fail(err, KVASIR_ERR_ARGUMENT, "%s matrix of %u x %u", name, w->n, w->k);
    return KVASIR_OK;
}

} // namespace

size_t product_scratch_bytes_cuda(uint32_t max_rows, uint32_t max_inputs) {
    const size_t rows = ((size_t)max_rows + 7) / 8 * 8, pairs = ceil_div(max_inputs, PAIR);
    return rows * pairs * (PAIR * 2 + PAIR / BLOCK * 8);
}

kvasir_status cuda_weight_put(struct backend *base, const struct weight *w,
                              const struct backend_weight **out, kvasir_error *err) {
    cuda_backend *b = cuda_of(base);
    *out = nullptr;
    TRY(check_weight(w, err));
    backend_weight c = {};
    c.n = w->n;
    c.k = w->k;
    c.affine = w->type == WEIGHT_AFFINE4;
    c.bf16 = c.affine && w->scalar == SCALAR_BF16;
    c.group = c.affine ? w->group : BLOCK;
    c.tiles = ceil_div(c.n, TILE_OUTPUTS);
    c.pairs = ceil_div(c.k, PAIR);
    c.quads = ceil_div(c.k / c.group, 4);
    const size_t scalars = (size_t)c.tiles * c.quads * 8 * LANE_BYTES;
    c.scale_offset = (size_t)c.tiles * c.pairs * 32 * LANE_BYTES;
    c.bias_offset = c.scale_offset + scalars;
    const size_t bytes = c.bias_offset + (c.affine ? scalars : 0);

    kvasir_status status = KVASIR_OK;
    uint8_t *host = (uint8_t *)mem_calloc(bytes, 1);
    backend_weight *made = (backend_weight *)mem_alloc(sizeof *made);
    if (!host || !made) {
        status = fail(err, KVASIR_ERR_MEMORY, "no memory to repack %zu bytes of weights", bytes);
        goto done;
    }
    repack_codes(w, &c, host);
    repack_scalars(w, &c, w->scales, host + c.scale_offset);
    if (c.affine)
        repack_scalars(w, &c, w->biases, host + c.bias_offset);
    c.data = (uint8_t *)cuda_alloc(base, bytes);
    if (!c.data) {
        status = cuda_status(b, err);
        if (status == KVASIR_OK)
            status =
                fail(err, KVASIR_ERR_MEMORY, "no device memory for %zu bytes of weights", bytes);
        goto done;
    }
    cuda_write(base, c.data, host, bytes);
    *made = c;
    *out = made;
    made = nullptr;
done:
    mem_free(made);
    mem_free(host);
    return status;
}

void cuda_weight_drop(struct backend *b, const struct backend_weight *w) {
    if (!w)
        return;
    cuda_free(b, w->data);
    mem_free(const_cast<backend_weight *>(w));
}

// Each product rounds x anew into the same scratch: its first kernel waits for the last product.
void cuda_matmul(struct backend *base, const float *x, uint32_t rows,
                 const struct backend_weight *const *w, const float *const *bias, float *const *y,
                 uint32_t count) {
    cuda_backend *b = cuda_of(base);
    ASSERT(count >= 1 && count <= MATMULS_MAX);
    ASSERT(b->reserved || !cuda_works(b));
    for (uint32_t i = 0; i < count && rows > 0 && cuda_works(b); i++) {
        ASSERT(rows <= b->limits.rows && w[i]->k <= b->limits.dim && w[i]->k == w[0]->k);
        if (b->act_bits == 8)
            product<8>(b, x, rows, w[i], bias[i], y[i]);
        else
            product<16>(b, x, rows, w[i], bias[i], y[i]);
    }
}
