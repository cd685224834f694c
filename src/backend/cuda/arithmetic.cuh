// SPDX-License-Identifier: Apache-2.0
// arithmetic.cuh: what attention computes, to the bit, whichever kernel does it. decode.cu has four
// query heads in the columns of an instruction, or sixteen in its rows, prefill.cu 16 or 32 query
// rows; where each float operation below is done differs, what is added to what and in which order
// does not. So a row's bits do not depend on the kernel, the batch or the chunk (I1).
//
//   query    x = q * scale in float32, m = max |x|, then
//              affine pages   code = rint(x * (16256 / m)), two s8 planes: code = 128 high + low
//              exact pages    x / 2^e rounded to the page's type, 2^e <= m < 2^(e+1)
//   score    unit * raw, in units of log2 (so that the exponential is one instruction):
//              affine   raw = sum over groups g, in order, of  s_g * dot_g, then b_g * sum_g (fma),
//                       dot and sum exact s32; unit = m / 16256 * log2 e
//              exact    raw = dot, a chain of k16 instructions over dims; unit = 2^e * log2 e
//   part     64 tokens, of exact V tiles 32 (what 32 rows of a warp have registers for). Where
//            their largest score is more than 8 above M, M becomes it, and
//            everything so far *= 2^(old - M). p = 2^(fma(raw, unit, 6 - M)), so p <= 2^14, and f16
//            keeps 11 bits of what is 2^-20 of the weight at M; 2^6 cancels in the end
//              sum      in 8 chains: chain o takes tokens 8o .. 8o + 7 of a tile, in order; of a
//                       half tile 4 tokens (half_quad)
//              affine   w = p * s, unit = max |w| / 16256 over the tile, code = rint(w / unit), two
//                       planes; out = fma(unit, dot, out); p * b in chains as sum
//              exact    p rounded to the page's type, a chain of k16 instructions over tokens
//   run      256 tokens at an absolute multiple: its parts in order, from M = -inf and zeros; then
//            the 8 chains in one tree: neighbours, pairs, fours
//   super    2,048 tokens: its runs folded in order;   row: its supers folded in order
//   fold     M' = max(M, m): all = fma(2^(m - M'), run, 2^(M - M') * all); a run that is not seen
//            is not folded
//   out      / sum
//
// Exact pages cost one rounding of query and weight to 16 bits, of the size that storing K and V in
// that type has cost already. The CPU tiers keep these in float32; DESIGN allows one arithmetic per
// backend, and half the speed was the price of two planes (docs/speed.md).
#pragma once

#include "backend/cuda/internal.cuh"
#include "backend/cuda/mma.cuh"

enum { ACT_MAX = 16256, RUN = 256, RUN_TILES = RUN / TILE_TOKENS, SUPER_RUNS = 8 };
enum { SUPER = RUN * SUPER_RUNS };
constexpr float LOG2E = 1.44269504f, WEIGHT_SHIFT = 6.f, MAX_SLACK = 8.f, TINY = 1e-30f;
#define MINUS_INF __int_as_float(0xff800000)

// ---- formats ---------------------------------------------------------------------------------

HD constexpr int bits_of(int f) {
    return f <= BF16 ? 16 : f <= Q8G32 ? 8 : f <= Q4G32 ? 4 : 2;
}
HD constexpr bool exact_of(int f) {
    return f <= BF16;
}
HD constexpr int dims_of_group(int f) {
    return f & 1 ? 32 : 64; // of an affine format
}
HD constexpr uint32_t bit(int f) {
    return 1u << f;
}
constexpr uint32_t EXACT_FORMATS = bit(F16) | bit(BF16),
                   GROUPS_OF_32 = bit(Q8G32) | bit(Q4G32) | bit(Q2G32);
constexpr uint32_t K_FORMATS = EXACT_FORMATS | bit(Q8G64) | bit(Q8G32) | bit(Q4G64) | bit(Q4G32),
                   V_FORMATS = K_FORMATS | bit(Q2G64) | bit(Q2G32);

// Whether a tile is exact, of those a kernel was compiled for.
template <uint32_t MASK> __device__ __forceinline__ bool exact_of(int f) {
    return !(MASK & ~EXACT_FORMATS) || ((MASK & EXACT_FORMATS) && f <= BF16);
}

template <int F> struct Format { static constexpr int value = F; };
// Calls fn(Format<F>()) for the format of a tile, of those a kernel was compiled for (MASK).
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
    float x[N];
    int code[N];
    int sum32;   // codes of the 32 dims that this lane's belong to
    float unit;  // of codes
    float power; // exact pages: x / power is rounded
    float exact_unit;
};
template <int D>
__device__ __forceinline__ void pack_row(const float *q, float scale, PackedRow<D> &p) {
    constexpr int N = PackedRow<D>::N;
    const int lane = threadIdx.x % 32;
    uint32_t m_bits = 0; // as integers NaN > Inf > finite
#pragma unroll
    for (int i = 0; i < N; i++) {
        p.x[i] = q[lane * N + i] * scale;
        m_bits = max(m_bits, __float_as_uint(p.x[i]) & 0x7fffffffu);
    }
#pragma unroll
    for (int i = 1; i < 32; i *= 2)
        m_bits = max(m_bits, __shfl_xor_sync(~0u, m_bits, i));
    const float m = __uint_as_float(m_bits);
    float per_unit = 0;
    uint32_t exponent = min(m_bits & 0x7f800000u, 0x7e800000u);
    p.power = __uint_as_float(0x7f000000u - exponent); // 2^-e
    if (!(m < __int_as_float(0x7f800000))) {
        p.unit = p.exact_unit = __int_as_float(0x7fffffff);
        p.power = 0;
    } else if (m < TINY) {
        p.unit = p.exact_unit = 1; // of zeros; 0 would make NaN of what is masked
        p.power = 0;
    } else {
        p.unit = m / (float)ACT_MAX * LOG2E;
        per_unit = (float)ACT_MAX / m;
        p.exact_unit = __uint_as_float(exponent) * LOG2E;
    }
    p.sum32 = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        p.code[i] = per_unit == 0 ? 0 : __float2int_rn(p.x[i] * per_unit);
        p.sum32 += p.code[i];
        p.x[i] = p.power == 0 ? 0.f : p.x[i] * p.power;
    }
#pragma unroll
    for (int i = 1; i < 1024 / D; i *= 2)
        p.sum32 += __shfl_xor_sync(~0u, p.sum32, i);
}
// The planes of a code: both s8, code = 128 high + low, 0 <= low < 128.
__device__ __forceinline__ int8_t high_of(int code) {
    return (int8_t)(code >> 7);
}
__device__ __forceinline__ int8_t low_of(int code) {
    return (int8_t)(code & 127);
}
// The same of four codes that are the low 16 bits of c, as two words.
__device__ __forceinline__ void planes_of(const uint32_t (&c)[4], uint32_t &high, uint32_t &low) {
    uint32_t a = __byte_perm(c[0], c[1], 0x5410), b = __byte_perm(c[2], c[3], 0x5410);
    low = __byte_perm(a, b, 0x6420) & 0x7f7f7f7fu;
    high = __byte_perm(a >> 7, b >> 7, 0x6420);
}

// ---- weights ---------------------------------------------------------------------------------

// Weights of magnitude at most m become codes: code = rint(w * per_unit), w ~ unit * code.
struct WeightUnit {
    float unit, per_unit;
};
__device__ __forceinline__ WeightUnit weight_unit(float m) {
    bool some = m > TINY;
    return {some ? m * (1.f / ACT_MAX) : 0.f, some ? __fdividef((float)ACT_MAX, m) : 0.f};
}
// rint(w * per_unit) in the low 16 bits (below them 2^23 * 1.5 adds nothing to these).
__device__ __forceinline__ uint32_t weight_code(float w, float per_unit) {
    return __float_as_uint(fmaf(w, per_unit, 12582912.f));
}
__device__ __forceinline__ float dot_of(int high, int low) {
    return (float)(high * 128 + low);
}

// Which four tokens of a half tile chain o takes: quad 2o, or 2 (o - 4) + 1. So that a lane of
// rows.cuh, which has tokens 8q .. 8q + 7, has two whole chains, q and 4 + q.
HD constexpr int half_quad(int o) {
    return (o & 3) * 2 + o / 4;
}

// ---- the maximum -----------------------------------------------------------------------------

// A row's maximum meets a tile's; returns what everything so far is multiplied with.
__device__ __forceinline__ float move_max(float &max, float of_tile) {
    if (!(of_tile > max + MAX_SLACK))
        return 1;
    const float alpha = max == MINUS_INF ? 1.f : exp2_fast(max - of_tile); // nothing so far
    max = of_tile;
    return alpha;
}

// ---- the fold --------------------------------------------------------------------------------

// What stands in for a maximum that may be -inf: no NaN comes of -inf - (-inf).
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

// Position p sees what is below keep and [start, p].
__device__ __forceinline__ uint32_t window_start(uint32_t span, uint32_t p) {
    return span == UINT32_MAX || p < span ? 0 : p + 1 - span;
}
// Bit j: p sees token first + j of the tile that begins at first <= p.
__device__ __forceinline__ uint64_t seen_of_tile(const dev_view &v, uint32_t p, uint32_t first) {
    const uint32_t start = window_start(v.span, p);
    uint64_t seen = p - first >= 63 ? ~0ull : (2ull << (p - first)) - 1;
    if (start > first) { // what is before the window is seen where it is kept
        const uint64_t window = start - first > 63 ? 0 : ~0ull << (start - first);
        const uint64_t kept = v.keep <= first        ? 0
                              : v.keep - first >= 64 ? ~0ull
                                                     : (1ull << (v.keep - first)) - 1;
        seen &= window | kept;
    }
    return seen;
}
