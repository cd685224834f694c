// SPDX-License-Identifier: Apache-2.0
// product.cuh: matrices on the device, and the products of one run of their inputs.
//
// A matrix of n outputs and k inputs is stored in tiles of 16 outputs, as the m side of an
// instruction reads it; x is on the n side, 8 columns at a time. A lane is (r, q) = (lane / 4,
// lane % 4). A block is 32 inputs, a pair two blocks, a run 512 inputs at an absolute multiple.
// What is after the last output, input or group is zeros.
//
//     HALVES   4-bit codes, scales d and biases m of f16 (Q4_0, Q4_1, AFFINE4): a weight is
//              unit * (d * code + 8 * m), of Q4_0 unit * d * (code - 8). units are powers of two,
//              one for each output, which bring its largest d or m to [2^14, 2^15)
//              codes   [8 tiles][pair][tile][lane] 16 bytes: a word for both blocks, outputs r and
//                      r + 8; its bytes hold the codes of inputs k = 4q, 4q + 2, 4q + 1, 4q + 3
//                      (low nibbles) and of k + 16 (high): a shift and a mask put 4q and 4q + 1, or
//                      the next two, into the halves of a register
//              scales  [8 tiles][4 groups][tile][r] 16 bytes: of each group for outputs r and
//                      r + 8; biases after them likewise. A quad is four groups
//              A column of 8 tiles lies together, for copies of whole kilobytes (many_rows.cuh)
//     NIBBLES  codes   [tile][pair][lane], each like those of HALVES, but byte i has k = 4q + i
//              scales  of 32 bits, as BYTES have them
//     BYTES    codes   [tile][block][lane] 16 bytes: outputs r and r + 8 of k = 4q + i, then of
//                      k = 16 + 4q + i. Unsigned if there are biases, else signed
//              scales  [tile][block][32 / parts][r] two float32: outputs r and r + 8; biases after
//                      them. A block of 32 or each half of it has a scale
//     FLOATS   f16 or bf16
//              codes   [tile][step of 16 inputs][lane] 16 bytes: two inputs of output r, of output
//                      r + 8 (k = 2q, 2q + 1), then of both for k = 8 + 2q, 9 + 2q
//     SINGLES  float32, [n][k]
//
// The sum of a run, in order, from 0:
//     HALVES and activations of 8 bits
//               x = 2^e * f16 and w = unit * 2^24 * f16: one chain of instructions of 16 inputs
//               (halves.cuh). 8-bit activations are f16 ones here, which are the more exact; as
//               integers each block would need float operations of its own, which take longer than
//               the products. Chosen matrices (experts) take integers
//     integers  for each block, or each half that has a scale:
//                   acc = fmaf(d * scale_b, dot, acc), and with biases acc = fmaf(m, sum, acc)
//               where dot is exact as an integer
//     f16, bf16 x = 2^e * (high + low), both of the matrix's type: two chains of instructions of
//               16 inputs, whose sum times 2^e is the run's. bf16 has e = 0
#pragma once

#include "backend/cuda/internal.cuh"
#include "backend/cuda/mma.cuh"

enum matrix_form : uint8_t { HALVES, NIBBLES, BYTES, FLOATS, SINGLES };

enum { BLOCK = 32, PAIR = 64, RUN = 512, RUN_PAIRS = RUN / PAIR, TILE_OUTPUTS = 16 };
enum { COLUMN_TILES = 8 };     // of HALVES, side by side
constexpr float BIAS_UNIT = 8; // of m, HALVES

// What kernels need of a matrix; pointers of the device.
struct weight_view {
    const uint8_t *codes, *scales, *biases;
    uint32_t n, k, pairs, quads;
    uint32_t group;     // inputs that share a scale
    const float *units; // of outputs, HALVES; else NULL
    enum matrix_form form;
    bool biased, bf16, minus_8; // bf16: of FLOATS; minus_8: Q4_0
};

// ---- where things are ------------------------------------------------------------------------

// Codes of a tile and a pair, HALVES: the first of 32 pieces of 16 bytes; its scales, or biases, of
// four groups: the first of 8.
HD inline size_t halves_codes(const weight_view &w, uint32_t tile, uint32_t pair) {
    const size_t column = (size_t)(tile / COLUMN_TILES) * w.pairs + pair;
    return (column * COLUMN_TILES + tile % COLUMN_TILES) * 32;
}
HD inline size_t halves_scalars(const weight_view &w, uint32_t tile, uint32_t quad) {
    const size_t column = (size_t)(tile / COLUMN_TILES) * w.quads + quad;
    return (column * COLUMN_TILES + tile % COLUMN_TILES) * 8;
}
// The word of codes (HALVES, NIBBLES) that holds input k of an output, and the bit of it where its
// code begins: in the high nibble of a byte for the second half of a block.
HD inline size_t nibble_word(const weight_view &w, uint32_t output, uint32_t k) {
    const uint32_t r = output % TILE_OUTPUTS, tile = output / TILE_OUTPUTS, block = k / BLOCK;
    const size_t pair = w.form == HALVES ? halves_codes(w, tile, block / 2)
                                         : ((size_t)tile * w.pairs + block / 2) * 32;
    return (pair + r % 8 * 4 + k % 16 / 4) * 4 + block % 2 * 2 + r / 8;
}
HD inline uint32_t nibble_bit(const weight_view &w, uint32_t k) {
    const uint32_t byte = w.form == HALVES ? k % 2 * 2 + k % 4 / 2 : k % 4;
    return byte * 8 + k % BLOCK / 16 * 4;
}
HD inline size_t code_byte(const weight_view &w, uint32_t output, uint32_t k) { // BYTES
    const uint32_t r = output % TILE_OUTPUTS, in_block = k % BLOCK;
    const size_t block = (size_t)(output / TILE_OUTPUTS) * w.pairs * 2 + k / BLOCK;
    return ((block * 32 + r % 8 * 4 + k % 16 / 4) * 4 + in_block / 16 * 2 + r / 8) * 4 + k % 4;
}
HD inline size_t half_scalar(const weight_view &w, uint32_t output, uint32_t k) { // HALVES
    const uint32_t r = output % TILE_OUTPUTS, group = k / w.group;
    const size_t quad = halves_scalars(w, output / TILE_OUTPUTS, group / 4);
    return ((quad + r % 8) * 4 + group % 4) * 2 + r / 8;
}
// NIBBLES, BYTES: scales of 32 inputs or, where the group is 16, of 16.
HD inline uint32_t scalars_of_block(const weight_view &w) {
    return w.group < BLOCK ? 2 : 1;
}
HD inline size_t float_scalar(const weight_view &w, uint32_t output, uint32_t k) {
    const uint32_t r = output % TILE_OUTPUTS, parts = scalars_of_block(w);
    const size_t part = ((size_t)(output / TILE_OUTPUTS) * w.pairs * 2 + k / BLOCK) * parts +
                        k % BLOCK * parts / BLOCK;
    return (part * 8 + r % 8) * 2 + r / 8;
}
HD inline size_t half_value(const weight_view &w, uint32_t output, uint32_t k) { // FLOATS
    const uint32_t r = output % TILE_OUTPUTS, i = k % 16;
    const size_t step = (size_t)(output / TILE_OUTPUTS) * w.pairs * 4 + k / 16;
    return ((step * 32 + r % 8 * 4 + i % 8 / 2) * 4 + i / 8 * 2 + r / 8) * 2 + i % 2;
}

// Input k of an output in float32, as weight_traits.decode gives it.
__device__ inline float weight_value(const weight_view &w, uint32_t output, uint32_t k) {
    if (w.form == SINGLES)
        return ((const float *)w.codes)[(size_t)output * w.k + k];
    if (w.form == FLOATS)
        return to_float(((const uint16_t *)w.codes)[half_value(w, output, k)], w.bf16);
    int code;
    if (w.form == BYTES) {
        const uint8_t byte = w.codes[code_byte(w, output, k)];
        code = w.biased ? byte : (int8_t)byte;
    } else {
        const uint32_t word = ((const uint32_t *)w.codes)[nibble_word(w, output, k)];
        code = (int)(word >> nibble_bit(w, k) & 15u) - (w.minus_8 ? 8 : 0);
    }
    float scale, bias = 0;
    if (w.form == HALVES) {
        const size_t at = half_scalar(w, output, k);
        scale = to_float(((const uint16_t *)w.scales)[at], false) * w.units[output];
        if (w.biased)
            bias = to_float(((const uint16_t *)w.biases)[at], false) * BIAS_UNIT * w.units[output];
    } else {
        const size_t at = float_scalar(w, output, k);
        scale = ((const float *)w.scales)[at];
        if (w.biased)
            bias = ((const float *)w.biases)[at];
    }
    const float product = scale * (float)code;
    return w.biased ? product + bias : product;
}

// ---- activations -----------------------------------------------------------------------------

// Rows of x that share an instruction's 8 columns.
template <int BITS> constexpr uint32_t tile_rows = BITS == 8 ? 8 : 4;

// x in scratch, rows up to a column tile and inputs up to a pair, with zeros.
//
// Integers of 8 bits, or of 15 in two planes: code = 128 * high + low, column 2 * row is the high
// plane.
//     codes  [row tile][pair][lane] 16 bytes: for both blocks the inputs 4q.. and 16 + 4q.. of
//            column r
//     sides  what a block adds. `a`: its sum, scale * (sum of codes), or for Q4_0 the integer
//            -8 * (sum of codes)
//            8:   [row tile][pair][block][q]  scale, scale, a, a of rows 2q and 2q + 1
//            15:  [row tile][pair][q]         scale, a of row q in the first block, in the second
// f16 or bf16 in two planes, column 2 * row the high one.
//     codes  [row tile][pair][2 steps][lane] 16 bytes: inputs 2q, 2q + 1 and 8 + 2q, 9 + 2q of
//            column r, for two steps of 16 inputs
//     sides  [row tile][run][row] float32: 2^e
struct act_view {
    const uint4 *codes, *sides;
};

template <int BITS>
__host__ __device__ inline act_view act_at(void *scratch, uint32_t rows, uint32_t pairs) {
    uint32_t tiles = (rows + tile_rows<BITS> - 1) / tile_rows<BITS>;
    const uint4 *codes = (const uint4 *)scratch;
    return {codes, codes + (size_t)tiles * pairs * 32};
}
HD inline act_view act_floats_at(void *scratch, uint32_t rows, uint32_t pairs) {
    const uint4 *codes = (const uint4 *)scratch;
    return {codes, codes + (size_t)((rows + 3) / 4) * pairs * 64};
}

// ---- loads -----------------------------------------------------------------------------------

// Weights are read once: past L1.
__device__ __forceinline__ uint4 load_once(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
__device__ __forceinline__ float2 load_two(const void *p) {
    float2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.f32 {%0,%1}, [%2];"
                 : "=f"(v.x), "=f"(v.y)
                 : "l"(p));
    return v;
}

// The two scalars of a word: of outputs r and r + 8.
__device__ __forceinline__ float2 two_scalars(uint32_t v) {
    return make_float2(to_float((uint16_t)v, false), to_float((uint16_t)(v >> 16), false));
}

// ---- what a product is asked for -------------------------------------------------------------

// One matrix of a launch: outputs from tile `first` of the launch's tiles on.
struct product_part {
    weight_view w;
    const float *bias;
    float *y;
    uint32_t first;
    float *sum; // sum += sum_scale * y; NULL: y alone
    float sum_scale;
};
struct product_args {
    product_part part[MATMULS_MAX]; // by rising `first`; all of one kernel
    uint32_t parts;
    act_view act;
    uint32_t rows;
    // of two matrices of one shape: only gated(y0) * y1 is written, here; NULL: y of each part is
    float *gated;
    gate_kind gate;
    // of chosen matrices (experts), else NULL: item i takes row i / per_row of x
    const weight_view *table;
    const uint32_t *choice;
    uint32_t per_row;
};

// The part of a tile of the launch.
__device__ __forceinline__ uint32_t part_of_tile(const product_args &a, uint32_t tile) {
    uint32_t i = 0;
#pragma unroll
    for (uint32_t j = 1; j < MATMULS_MAX; j++)
        i += j < a.parts && tile >= a.part[j].first;
    return i;
}

// Matrices among which items choose (product_chosen): all of one form and shape.
struct chosen_products {
    weight_view shape;        // the first one
    const weight_view *table; // device: of each matrix
    const float *bias;        // device: [matrices][n], or NULL
};
// y[i] = x[i / per_row] . table[choice[i]]^T (+ bias[choice[i]]) for `items` items; choice is of
// the device. y: [items][n]. An item's bits depend on its row and its matrix alone.
void product_chosen(cuda_backend *b, const chosen_products *p, const float *x, uint32_t x_rows,
                    uint32_t per_row, const uint32_t *choice, uint32_t items, float *y);

// HALVES and activations of 8 bits (halves.cu): y = x . w^T of all parts, and what `with` asks for,
// which becomes NULL.
void product_halves(cuda_backend *b, const float *x, product_args a, matmul_neighbours *with);
// Whether its blocks make both outputs of a gate, of two matrices like this.
bool halves_gate(const cuda_backend *b, const weight_view &w, uint32_t rows);
size_t halves_scratch_bytes(uint32_t max_rows, uint32_t max_inputs);
inline bool is_halves(const cuda_backend *b, const weight_view &w) {
    return w.form == HALVES && b->act_bits == 8;
}

// Which columns of a column tile a block of threads reads: those of its rows.
struct columns {
    uint32_t row0;       // of x: the first of a column tile
    uint32_t first, end; // columns [first, end) from there on are loaded
    uint32_t row_tiles;  // column tiles
};

// acc of a lane: act 8 {row 2q, row 2q + 1 of output r, then of output r + 8}; otherwise {row q of
// output r, of output r + 8}.
template <int BITS> constexpr int lane_outputs = BITS == 8 ? 4 : 2;

// Each of the following has one function, add_run: a run's sums, acc[t] for each column tile.

// ---- HALVES ----------------------------------------------------------------------------------

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

// What a lane multiplies of a pair and a column tile: codes of its column, sides of both blocks.
struct act_pair {
    uint4 codes, side[2];
};

// From scratch; `at` counts pairs. `loads`: this lane's column is wanted.
template <int BITS>
__device__ __forceinline__ act_pair load_pair(const act_view &act, size_t at, uint32_t lane,
                                              bool loads) {
    act_pair p;
    p.codes = make_uint4(0, 0, 0, 0);
    if (loads)
        p.codes = act.codes[at * 32 + lane];
    if constexpr (BITS == 8) {
        p.side[0] = act.sides[at * 8 + lane % 4];
        p.side[1] = act.sides[at * 8 + 4 + lane % 4];
    } else {
        p.side[0] = act.sides[at * 4 + lane % 4];
        p.side[1] = make_uint4(p.side[0].z, p.side[0].w, 0, 0);
    }
    return p;
}

// One column tile, both blocks of a pair.
template <int BITS, bool AFFINE>
__device__ __forceinline__ void add_pair(const act_pair &b, const uint32_t (&w)[2][4],
                                         const float2 (&d)[2], const float2 (&m)[2],
                                         float (&acc)[lane_outputs<BITS>]) {
    if constexpr (BITS == 8) {
        add_block_8<AFFINE>(w[0], b.codes.x, b.codes.y, b.side[0], d[0], m[0], acc);
        add_block_8<AFFINE>(w[1], b.codes.z, b.codes.w, b.side[1], d[1], m[1], acc);
    } else {
        add_block_16<AFFINE>(w[0], b.codes.x, b.codes.y, b.side[0].x, b.side[0].y, d[0], m[0], acc);
        add_block_16<AFFINE>(w[1], b.codes.z, b.codes.w, b.side[1].x, b.side[1].y, d[1], m[1], acc);
    }
}

__device__ __forceinline__ void spread_nibbles(uint32_t x, uint32_t y, uint32_t (&codes)[4]) {
    codes[0] = x & 0x0f0f0f0fu;
    codes[1] = y & 0x0f0f0f0fu;
    codes[2] = x >> 4 & 0x0f0f0f0fu;
    codes[3] = y >> 4 & 0x0f0f0f0fu;
}

// Bytes 1 and 2 change places: from a word of HALVES to one of NIBBLES, and back.
__device__ __forceinline__ uint32_t swap_middle(uint32_t word) {
    return __byte_perm(word, 0, 0x3120);
}

// A group is GROUP inputs. A warp loads all weights of a run at once, before it waits for x.
template <int GROUP, bool AFFINE, int ACT> struct Halves {
    static constexpr int BITS = ACT, GROUP_SIZE = GROUP;
    static constexpr bool BIASED = AFFINE;
    static constexpr int QUADS = RUN / GROUP / 4;
    struct weights {
        uint4 codes[RUN_PAIRS], scales[QUADS], biases[AFFINE ? QUADS : 1];
    };
    static __device__ __forceinline__ void load(const weight_view &v, uint32_t tile, uint32_t run,
                                                uint32_t lane, weights &w) {
#pragma unroll
        for (uint32_t p = 0; p < RUN_PAIRS; p++)
            if (run * RUN_PAIRS + p < v.pairs)
                w.codes[p] = load_once((const uint4 *)v.codes +
                                       halves_codes(v, tile, run * RUN_PAIRS + p) + lane);
#pragma unroll
        for (uint32_t i = 0; i < QUADS; i++)
            if (run * QUADS + i < v.quads) {
                const size_t at = halves_scalars(v, tile, run * QUADS + i) + lane / 4;
                w.scales[i] = load_once((const uint4 *)v.scales + at);
                if (AFFINE)
                    w.biases[i] = load_once((const uint4 *)v.biases + at);
            }
    }
    template <int TILES>
    static __device__ __forceinline__ void
    add_run(const weight_view &v, const act_view &act, uint32_t tile, uint32_t run,
            const columns &c, uint32_t lane, float (&acc)[TILES][lane_outputs<BITS>]) {
        weights w;
        load(v, tile, run, lane, w);
        kernel_waits();
#pragma unroll
        for (uint32_t p = 0; p < RUN_PAIRS; p++) {
            if (run * RUN_PAIRS + p >= v.pairs)
                break;
            add_codes_of<TILES>(
                c, w.codes[p],
                [&](uint32_t h) {
                    const uint32_t g = (p * 2 + h) * BLOCK / GROUP;
                    return word_of(w.scales[g / 4], g % 4);
                },
                [&](uint32_t h) {
                    const uint32_t g = (p * 2 + h) * BLOCK / GROUP;
                    return word_of(w.biases[AFFINE ? g / 4 : 0], g % 4);
                },
                [&](uint32_t t) {
                    const uint32_t column = t * 8 + lane / 4;
                    return load_pair<BITS>(
                        act, (size_t)(c.row0 / tile_rows<BITS> + t) * v.pairs + run * RUN_PAIRS + p,
                        lane, column >= c.first && column < c.end);
                },
                acc);
        }
    }
    // A pair of inputs: its codes; scale(h) and bias(h) are words of two, for block h; act(t) is an
    // act_pair of column tile t.
    template <int TILES, class Scale, class Bias, class Act>
    static __device__ __forceinline__ void add_codes_of(const columns &c, uint4 words, Scale scale,
                                                        Bias bias, Act act,
                                                        float (&acc)[TILES][lane_outputs<BITS>]) {
        uint32_t codes[2][4];
        float2 d[2], m[2];
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            spread_nibbles(swap_middle(h ? words.z : words.x), swap_middle(h ? words.w : words.y),
                           codes[h]);
            d[h] = two_scalars(scale(h));
            m[h] = AFFINE ? two_scalars(bias(h)) : make_float2(0, 0);
            m[h].x *= BIAS_UNIT;
            m[h].y *= BIAS_UNIT;
        }
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++)
            if (t < c.row_tiles)
                add_pair<BITS, AFFINE>(act(t), codes, d, m, acc[t]);
    }
};

// ---- NIBBLES, BYTES --------------------------------------------------------------------------

// PART inputs share a scale. Sums of codes are products with ones.
template <int PART, bool BIASED>
__device__ __forceinline__ void dots_of(const uint32_t (&w)[4], uint32_t b0, uint32_t b1, int part,
                                        int (&dot)[4], int (&sum)[4]) {
    constexpr uint32_t ONES = 0x01010101u;
    const uint32_t ones[4] = {ONES, ONES, ONES, ONES};
    if (PART == BLOCK) {
        BIASED ? mma_u8s8(dot, w, b0, b1) : mma_s8s8(dot, w, b0, b1);
        if (BIASED)
            mma_u8s8(sum, ones, b0, b1);
        return;
    }
    const uint32_t b = part ? b1 : b0;
    BIASED ? mma_u8s8_half(dot, w[2 * part], w[2 * part + 1], b)
           : mma_s8s8_half(dot, w[2 * part], w[2 * part + 1], b);
    if (BIASED)
        mma_u8s8_half(sum, ONES, ONES, b);
}

// A block of inputs. s: scales of the activations of rows 2q and 2q + 1 (act 8), of row q (else).
template <int PART, bool BIASED, int BITS>
__device__ __forceinline__ void add_codes(const uint32_t (&w)[4], uint32_t b0, uint32_t b1,
                                          float s0, float s1, const float2 (&d)[2],
                                          const float2 (&m)[2], float (&acc)[lane_outputs<BITS>]) {
#pragma unroll
    for (int part = 0; part < BLOCK / PART; part++) {
        int dot[4] = {0, 0, 0, 0}, sum[4] = {0, 0, 0, 0};
        dots_of<PART, BIASED>(w, b0, b1, part, dot, sum);
        const float2 dp = d[part], mp = m[part];
        if constexpr (BITS == 8) {
            acc[0] = fmaf(dp.x * s0, (float)dot[0], acc[0]);
            acc[1] = fmaf(dp.x * s1, (float)dot[1], acc[1]);
            acc[2] = fmaf(dp.y * s0, (float)dot[2], acc[2]);
            acc[3] = fmaf(dp.y * s1, (float)dot[3], acc[3]);
            if (BIASED) {
                acc[0] = fmaf(mp.x, s0 * (float)sum[0], acc[0]);
                acc[1] = fmaf(mp.x, s1 * (float)sum[1], acc[1]);
                acc[2] = fmaf(mp.y, s0 * (float)sum[0], acc[2]);
                acc[3] = fmaf(mp.y, s1 * (float)sum[1], acc[3]);
            }
        } else {
            acc[0] = fmaf(dp.x * s0, (float)(128 * dot[0] + dot[1]), acc[0]);
            acc[1] = fmaf(dp.y * s0, (float)(128 * dot[2] + dot[3]), acc[1]);
            if (BIASED) {
                const float a = s0 * (float)(128 * sum[0] + sum[1]);
                acc[0] = fmaf(mp.x, a, acc[0]);
                acc[1] = fmaf(mp.y, a, acc[1]);
            }
        }
    }
}

template <bool FOUR, int PART, bool BIASED, int ACT> struct Codes {
    static constexpr int BITS = ACT, PARTS = BLOCK / PART;
    // The codes, scales and biases of block h of a pair.
    static __device__ __forceinline__ void load(const weight_view &v, size_t pair, uint32_t h,
                                                uint32_t lane, uint32_t (&codes)[4], float2 (&d)[2],
                                                float2 (&m)[2]) {
        if (FOUR) {
            const uint2 *p = (const uint2 *)v.codes + (pair * 32 + lane) * 2 + h;
            const uint2 words = __ldg(p);
            spread_nibbles(words.x, words.y, codes);
        } else {
            const uint4 words = load_once((const uint4 *)v.codes + (pair * 2 + h) * 32 + lane);
            codes[0] = words.x, codes[1] = words.y, codes[2] = words.z, codes[3] = words.w;
        }
#pragma unroll
        for (uint32_t i = 0; i < PARTS; i++) {
            const size_t at = ((pair * 2 + h) * PARTS + i) * 8 + lane / 4;
            d[i] = load_two((const float2 *)v.scales + at);
            m[i] = BIASED ? load_two((const float2 *)v.biases + at) : make_float2(0, 0);
        }
    }
    template <int TILES>
    static __device__ __forceinline__ void
    add_run(const weight_view &v, const act_view &act, uint32_t tile, uint32_t run,
            const columns &c, uint32_t lane, float (&acc)[TILES][lane_outputs<BITS>]) {
        const uint32_t q = lane % 4;
        kernel_waits();
#pragma unroll 4
        for (uint32_t p = 0; p < RUN_PAIRS; p++) {
            const uint32_t in_row = run * RUN_PAIRS + p;
            if (in_row >= v.pairs)
                break;
            uint32_t codes[2][4];
            float2 d[2][2], m[2][2];
#pragma unroll
            for (uint32_t h = 0; h < 2; h++)
                load(v, (size_t)tile * v.pairs + in_row, h, lane, codes[h], d[h], m[h]);
#pragma unroll
            for (uint32_t t = 0; t < TILES; t++) {
                if (t >= c.row_tiles)
                    break;
                const uint32_t column = t * 8 + lane / 4;
                const size_t at = (size_t)(c.row0 / tile_rows<BITS> + t) * v.pairs + in_row;
                uint4 b = make_uint4(0, 0, 0, 0);
                if (column >= c.first && column < c.end)
                    b = act.codes[at * 32 + lane];
                uint4 side0, side1;
                if constexpr (BITS == 8) {
                    side0 = act.sides[at * 8 + q];
                    side1 = act.sides[at * 8 + 4 + q];
                } else {
                    side0 = act.sides[at * 4 + q];
                    side1 = make_uint4(side0.z, 0, 0, 0);
                }
                add_codes<PART, BIASED, BITS>(codes[0], b.x, b.y, __uint_as_float(side0.x),
                                              __uint_as_float(side0.y), d[0], m[0], acc[t]);
                add_codes<PART, BIASED, BITS>(codes[1], b.z, b.w, __uint_as_float(side1.x),
                                              __uint_as_float(side1.y), d[1], m[1], acc[t]);
            }
        }
    }
};

// ---- FLOATS ----------------------------------------------------------------------------------

template <bool BF> struct Floats {
    static constexpr int BITS = 16; // the shape: 4 rows of two planes
    template <int TILES>
    static __device__ __forceinline__ void add_run(const weight_view &v, const act_view &act,
                                                   uint32_t tile, uint32_t run, const columns &c,
                                                   uint32_t lane, float (&acc)[TILES][2]) {
        float sums[TILES][4];
        kernel_waits();
#pragma unroll
        for (int t = 0; t < TILES; t++)
            sums[t][0] = sums[t][1] = sums[t][2] = sums[t][3] = 0;
        const uint32_t pairs = min(v.pairs - run * RUN_PAIRS, (uint32_t)RUN_PAIRS);
        for (uint32_t p = 0; p < pairs; p++) {
            const uint32_t in_row = run * RUN_PAIRS + p;
            uint4 w[4];
#pragma unroll
            for (uint32_t s = 0; s < 4; s++)
                w[s] = load_once((const uint4 *)v.codes +
                                 (((size_t)tile * v.pairs + in_row) * 4 + s) * 32 + lane);
#pragma unroll
            for (uint32_t t = 0; t < TILES; t++) {
                if (t >= c.row_tiles)
                    break;
                const uint32_t column = t * 8 + lane / 4;
                const bool loads = column >= c.first && column < c.end;
                const size_t at = (size_t)(c.row0 / 4 + t) * v.pairs + in_row;
#pragma unroll
                for (uint32_t two = 0; two < 2; two++) {
                    uint4 b = make_uint4(0, 0, 0, 0);
                    if (loads)
                        b = act.codes[(at * 2 + two) * 32 + lane];
                    const uint4 w0 = w[2 * two], w1 = w[2 * two + 1];
                    const uint32_t a0[4] = {w0.x, w0.y, w0.z, w0.w};
                    const uint32_t a1[4] = {w1.x, w1.y, w1.z, w1.w};
                    mma_half<BF>(sums[t], a0, b.x, b.y);
                    mma_half<BF>(sums[t], a1, b.z, b.w);
                }
            }
        }
        const uint32_t runs = blocks_of(v.pairs, RUN_PAIRS);
        const float *units = (const float *)act.sides;
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++)
            if (t < c.row_tiles) {
                const float unit = units[((size_t)(c.row0 / 4 + t) * runs + run) * 4 + lane % 4];
                acc[t][0] = (sums[t][0] + sums[t][1]) * unit;
                acc[t][1] = (sums[t][2] + sums[t][3]) * unit;
            }
    }
};

// ---- outputs ---------------------------------------------------------------------------------

enum { WARPS_MAX = 8 };

// Of a block, for whole rounds of runs: 28 runs are 4 rounds of 7 warps, not 3 of 8 and a half.
// Not of few_rows.cuh, which has whole sets.
inline uint32_t product_warps(const weight_view &w) {
    const uint32_t runs = blocks_of(w.pairs, RUN_PAIRS);
    return blocks_of(runs, blocks_of(runs, WARPS_MAX));
}

// Sums of runs that wait to be added: [row][PART_STRIDE] each. The stride keeps the four rows that
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

// What makes output j of the sum of its runs.
struct output_ends {
    float unit, bias;
    bool biased;
    __device__ __forceinline__ float of(float sum) const {
        return biased ? sum * unit + bias : sum * unit;
    }
};
__device__ __forceinline__ output_ends ends_of_output(const product_part &p, uint32_t j) {
    return {p.w.units ? p.w.units[j] : 1.0f, p.bias ? p.bias[j] : 0, p.bias != nullptr};
}
// That of a row, at `at` of y. An operation that adds y to something is done here, too.
__device__ __forceinline__ void put_output(const product_part &p, size_t at, uint32_t j,
                                           float sum) {
    const float y = ends_of_output(p, j).of(sum);
    p.y[at] = y;
    if (p.sum)
        p.sum[at] = fmaf(p.sum_scale, y, p.sum[at]);
}
