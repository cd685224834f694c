// SPDX-License-Identifier: Apache-2.0
// arithmetic.cuh: what attention computes, to the bit, whichever fast kernel does it (the rows of
// plain_attention.cu have its arithmetic, and no others: STEP-6 in step.cu). decode.cu has up to
// 16 query heads in the columns of an instruction, prefill.cuh 64 query rows in its rows; where
// each float operation below is done differs, what is added to what and in which order does not. So
// a row's bits do not depend on the kernel, the batch or the chunk (I1 of docs/design.md).
//
//   tile     exact pages are what they are, f16 or bf16; of others every element becomes
//            f16(s * code + b), one rounding (widen.cuh). s and b, of a token or in K of KV_TILE of
//            a dim, are f16: those in bf16 are rounded
//   query    x = q * scale in float32, of pages that are rotated (H q) * scale; m = max |x|,
//            x / 2^e rounded to the tile's type, 2^e <= m < 2^(e+1)
//   score    unit * dot, unit = 2^e * log2 e (so that the exponential is one instruction);
//            dot: a chain of instructions of 16 dims, the sum exact but for what float32 cuts off.
//            Instruction 2k + n has quads 8k + 2q + n (q = 0 .. 3) of dims. Of centred keys then
//            three instructions for every eight pairs of the head's centre (centre.cuh), in order
//   tile     if the largest score of its 64 is more than 8 above M, M becomes it, and everything so
//            far *= 2^(old - M). p = 2^(fma(dot, unit, 6 - M)), so p <= 2^14, and f16 keeps 11
//            bits of what is 2^-20 of the weight at M; 2^6 cancels in the end
//              sum      in 8 chains: chain o takes tokens 8o .. 8o + 7, in order
//              output   p rounded to the tile's type; a chain of instructions of 16 tokens.
//                       Instruction 2h + c has quads 8h + 2q + c of tokens
//   run      a split of 256 tokens at an absolute multiple: its tiles in order, from M = -inf and
//            zeros; then the 8 chains in one tree: neighbours, pairs, fours
//   super    2,048 tokens: its runs merged in order;   row: its supers merged in order
//   fold     the merge. M' = max(M, m): all = fma(2^(m - M'), run, 2^(M - M') * all); a run that is
//            not seen is left out
//   out      / sum, then of pages in another basis H out
//
// That is one rounding to 11 bits of the query, of the weight and of the value of an affine tile:
// about the error that storing K and V in f16 has already. The CPU tiers keep queries and weights
// in 15 bits or float32 and never round K and V again; each backend may have its own arithmetic
// (docs/speed.md says what integer products cost). Affine values beyond f16's 65,504 become
// infinite.
//
// The order of the 16 elements of an instruction does not matter: an H200 adds them exactly, then
// adds them to the sum (compared over 32 million sums, wgmma and mma.sync, elements exchanged). A
// device that adds 8 at a time, as sm_80 is said to do, gives decode and prefill different bits;
// opcheck compares the two. All of this assumes finite K and V: weight 0 times a value that is not
// finite is NaN, and which tokens of a tile a row meets with weight 0 depends on its block.
#pragma once

#include "backend/cuda/internal.cuh"
#include "backend/cuda/mma.cuh"

enum { RUN = 256, RUN_TILES = RUN / TILE_TOKENS, SUPER_RUNS = 8 };
enum { SUPER = RUN * SUPER_RUNS };
constexpr float LOG2E = 1.44269504f, WEIGHT_SHIFT = 6.f, MAX_SLACK = 8.f, TINY = 1e-30f;
#define MINUS_INF __int_as_float(0xff800000)

// ---- formats ---------------------------------------------------------------------------------

HD constexpr int bits_of(int f) {
    return f <= BF16 ? 16 : f <= Q8G32 ? 8 : f <= Q4G32 ? 4 : f <= Q2G32 ? 2 : T3 + 3 - f;
}
HD constexpr bool exact_of(int f) {
    return f <= BF16;
}
HD constexpr bool tile_of_ranges(int f) { // KV_TILE
    return f >= T5;
}
// Dims of a token that share a scale, of D; not of K in KV_TILE.
HD constexpr int dims_of_group(int f, int d) {
    return tile_of_ranges(f) ? d : f & 1 ? 32 : 64;
}
// Bits of the codes' low plane; one bit more is in the high one.
HD constexpr int low_bits_of(int f) {
    return bits_of(f) & 1 ? bits_of(f) - 1 : bits_of(f);
}
HD constexpr uint32_t bit(int f) {
    return 1u << f;
}
constexpr uint32_t EXACT_FORMATS = bit(F16) | bit(BF16),
                   GROUPS_OF_32 = bit(Q8G32) | bit(Q4G32) | bit(Q2G32);
constexpr uint32_t K_FORMATS = EXACT_FORMATS | bit(Q8G64) | bit(Q8G32) | bit(Q4G64) | bit(Q4G32),
                   V_FORMATS = K_FORMATS | bit(Q2G64) | bit(Q2G32);
// In a step's k_formats of a basis: some of its pages have centred keys.
constexpr uint32_t CENTRED_KEYS = 1u << 31;
// Of pages that are encoded when they are full, and of their shadows.
constexpr uint32_t WHOLE_K_FORMATS =
                       bit(F16) | bit(Q8G64) | bit(Q4G64) | bit(T5) | bit(T4) | bit(T3),
                   WHOLE_V_FORMATS = WHOLE_K_FORMATS & ~bit(T5);

template <int F> struct Format { static constexpr int value = F; };
// Calls fn(Format<F>()) for the format of a tile, one of those the kernel was compiled for (MASK).
template <uint32_t MASK, int F = 0, class Fn>
__device__ __forceinline__ void with_format(int f, Fn fn) {
    if constexpr (MASK >> F == 1) // the last one
        fn(Format<F>());
    else if constexpr (MASK >> F & 1) {
        if (f == F)
            fn(Format<F>());
        else
            with_format<MASK, F + 1>(f, fn);
    } else
        with_format<MASK, F + 1>(f, fn);
}

// ---- queries ---------------------------------------------------------------------------------

// One row, by one warp: lane l has dims [l * D / 32, (l + 1) * D / 32).
template <int D> struct PackedRow {
    static constexpr int N = D / 32;
    float x[N]; // to be rounded
    float unit;
};
// A lane's dims of it; zeros if there is no such row.
template <int D>
__device__ __forceinline__ void load_row(const float *q, bool some, float (&x)[D / 32]) {
#pragma unroll
    for (int i = 0; i < D / 32; i++)
        x[i] = some ? q[threadIdx.x % 32 * (D / 32) + i] : 0.f;
}
// x = H x: the operations of hadamard_rotate, by LANES threads of a warp with N dims each. The
// whole warp calls this. factor: of H.
template <int N, int LANES> __device__ __forceinline__ void rotate(float (&x)[N], float factor) {
#pragma unroll
    for (int half = 1; half < N; half *= 2)
#pragma unroll
        for (int i = 0; i < N; i++)
            if (!(i & half)) {
                const float a = x[i], b = x[i | half];
                x[i] = a + b;
                x[i | half] = a - b;
            }
#pragma unroll
    for (int step = 1; step < LANES; step *= 2)
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float other = __shfl_xor_sync(~0u, x[i], step);
            x[i] = threadIdx.x & step ? other - x[i] : x[i] + other;
        }
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] *= factor;
}
template <int D> __device__ __forceinline__ void rotate_row(float (&x)[D / 32], float factor) {
    rotate<D / 32, 32>(x, factor);
}
// The same times scale; turn: the factor of H, 0: it is not rotated.
template <int D>
__device__ __forceinline__ void scale_row(float (&x)[D / 32], float scale, float turn) {
    if (turn != 0)
        rotate_row<D>(x, turn);
#pragma unroll
    for (int i = 0; i < D / 32; i++)
        x[i] *= scale;
}
template <int D>
__device__ __forceinline__ void pack_row(const float (&x)[D / 32], PackedRow<D> &p) {
    constexpr int N = PackedRow<D>::N;
    uint32_t m_bits = 0; // as integers NaN > Inf > finite
#pragma unroll
    for (int i = 0; i < N; i++)
        m_bits = max(m_bits, __float_as_uint(x[i]) & 0x7fffffffu);
    m_bits = warp_max(m_bits);
    const float m = __uint_as_float(m_bits);
    const uint32_t exponent = min(m_bits & 0x7f800000u, 0x7e800000u);
    float power = 0; // 2^-e
    if (!(m < __int_as_float(0x7f800000))) {
        p.unit = __int_as_float(0x7fffffff);
    } else if (m < TINY) {
        p.unit = 1; // of zeros; 0 would make NaN of what is masked
    } else {
        p.unit = __uint_as_float(exponent) * LOG2E;
        power = __uint_as_float(0x7f000000u - exponent);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        p.x[i] = power == 0 ? 0.f : x[i] * power;
}
// Where the dims of a quad are in registers: 0 and 2 in one, 1 and 3 in the next, as the mask of
// a nibble finds them.
HD constexpr int place_in_quad(int i) {
    return (i & 1) * 2 + i / 2;
}

// ---- the maximum -----------------------------------------------------------------------------

// Updates a row's maximum with a tile's; returns the factor for everything so far.
__device__ __forceinline__ float move_max(float &max, float of_tile) {
    if (!(of_tile > max + MAX_SLACK))
        return 1;
    const float alpha = max == MINUS_INF ? 1.f : exp2_fast(max - of_tile); // nothing so far
    max = of_tile;
    return alpha;
}

// ---- merging ---------------------------------------------------------------------------------

// A maximum that may be -inf becomes 0, since -inf - (-inf) is NaN.
__device__ __forceinline__ float finite_max(float m) {
    return m == MINUS_INF ? 0.f : m;
}
// Factors that join a part with maximum m to what has maximum all; then all = the larger one.
struct FoldFactors {
    float of_all, of_part;
    bool seen;
};
__device__ __forceinline__ FoldFactors fold_factors(float &all, float m) {
    float top = fmaxf(all, m), base = finite_max(top);
    FoldFactors f = {exp2_fast(all - base), exp2_fast(m - base), m != MINUS_INF};
    all = top;
    return f;
}
__device__ __forceinline__ float fold_seen(const FoldFactors &f, float all, float part) {
    return fmaf(f.of_part, part, f.of_all * all);
}
__device__ __forceinline__ float fold(const FoldFactors &f, float all, float part) {
    return f.seen ? fmaf(f.of_part, part, f.of_all * all) : all;
}

// ---- visibility ------------------------------------------------------------------------------

// Bit j: p sees token first + j of the tile that begins at first <= p: what is below keep, and
// [start, p].
__device__ __forceinline__ uint64_t seen_of_tile(const dev_view &v, uint32_t p, uint32_t first) {
    const uint32_t start = kv_window_start(v.span, p);
    uint64_t seen = p - first >= 63 ? ~0ull : (2ull << (p - first)) - 1;
    if (start > first) { // before the window only kept positions are seen
        const uint64_t window = start - first > 63 ? 0 : ~0ull << (start - first);
        const uint64_t kept = v.keep <= first        ? 0
                              : v.keep - first >= 64 ? ~0ull
                                                     : (1ull << (v.keep - first)) - 1;
        seen &= window | kept;
    }
    return seen;
}
