// SPDX-License-Identifier: Apache-2.0
// halves.cuh: 4-bit matrices (HALVES) by activations of 8 bits, as products of f16 with float32
// sums: what few_rows.cuh and many_rows.cuh share, so that their bits are the same.
//
//     weights      w = unit * 2^24 * f16(d * 2^-24 * code + c)    c: m * 2^-21, Q4_0 -d * 2^-21
//     inputs       x = 2^e * f16(x / 2^e)                       2^e <= max |x| < 2^(e + 1) of a run
//     a run        one chain of instructions of 16 inputs, in order, from 0; its sum is times 2^e
//     a set        4 runs, the last may have fewer: their sums, in order, from 0
//     an output    unit * 2^24 * (the sets' sums, in order, from 0)
//
// A code in the low bits of an f16 is the number code * 2^-24, and in the next four bits 16 times
// that, so that masks and one multiply-add with one rounding make a weight.
//
// An instruction of 16 inputs takes those of one half of a block, in the order in which a lane has
// them: lane q has inputs 4q .. 4q + 3, which are its elements 2q, 2q + 1, 8 + 2q, 9 + 2q.
#pragma once

#include "backend/cuda/pack.cuh"

constexpr float CODE_UNITS = 0x1p24f; // 1 / the number that code 1 is
enum : uint32_t { SET_RUNS = 4 };

// ---- weights ---------------------------------------------------------------------------------

// What a lane's codes of a group become weights with, f16: of outputs r (low half) and r + 8, for
// the low and for the high nibbles.
struct group_scalars {
    uint32_t d, high_d, c;
};

__device__ __forceinline__ uint32_t times_halves(uint32_t a, uint32_t b) {
    const __half2 v = __hmul2(*(const __half2 *)&a, *(const __half2 *)&b);
    return *(const uint32_t *)&v;
}

// scale, bias: words of outputs r and r + 8.
template <bool AFFINE>
__device__ __forceinline__ group_scalars scalars_of_group(uint32_t scale, uint32_t bias) {
    constexpr uint32_t SIXTEENTH = 0x2c002c00, UNIT = 0x00080008, MINUS_UNIT = 0x80088008; // 2^-21
    return {scale, times_halves(scale, SIXTEENTH),
            AFFINE ? times_halves(bias, UNIT) : times_halves(scale, MINUS_UNIT)};
}

// The weights of a block: words of outputs r and r + 8 (product.cuh), for its two instructions.
__device__ __forceinline__ void weights_of_block(uint32_t x, uint32_t y, const group_scalars &g,
                                                 uint32_t (&low)[4], uint32_t (&high)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) { // output r or r + 8; inputs 4q and 4q + 1, or the next two
        const uint32_t codes = (i % 2 ? y : x) >> (i / 2 * 8);
        const uint32_t c = twice(g.c, i % 2);
        low[i] = half2_fma(codes & 0x000f000fu, twice(g.d, i % 2), c);
        high[i] = half2_fma(codes & 0x00f000f0u, twice(g.high_d, i % 2), c);
    }
}

// Those of a pair. scale(h), bias(h): words of the group of block h.
template <class F, class Scale, class Bias>
__device__ __forceinline__ void weights_of_pair(uint4 codes, Scale scale, Bias bias,
                                                uint32_t (&w)[4][4]) {
    group_scalars g;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        if (h == 0 || F::GROUP_SIZE == BLOCK)
            g = scalars_of_group<F::BIASED>(scale(h), bias(h));
        weights_of_block(h ? codes.z : codes.x, h ? codes.w : codes.y, g, w[2 * h], w[2 * h + 1]);
    }
}

// ---- inputs ----------------------------------------------------------------------------------

// 512 inputs of a row, by a warp: of four j * 32 + lane, at [j], the two words of lane q = four % 4
// for instruction four / 4 % 4 of pair four / 16.
enum { RUN_FOURS = RUN / 4 / 32 }; // of a lane
struct half_run {
    uint2 words[RUN_FOURS];
    float unit; // 2^e
};
__device__ __forceinline__ uint32_t fours_of_run(uint32_t k, uint32_t run) {
    return min((uint32_t)RUN, k - run * RUN) / 4;
}
// fours: how many the run has; after them it is zeros. four_at(j, i): inputs 4 i, ... of the run,
// the lane's [j], also twice; keep(i, of those): where they are to be written, once. All are read
// before the first is written, or each would wait for memory alone.
template <class Four, class Keep>
__device__ __forceinline__ half_run round_half_run(uint32_t fours, Four four_at, Keep keep) {
    const uint32_t lane = threadIdx.x % 32;
    float4 v[RUN_FOURS];
    uint32_t most = 0;
#pragma unroll
    for (uint32_t j = 0; j < RUN_FOURS; j++)
        v[j] = four_at(j, min(j * 32 + lane, fours - 1));
#pragma unroll
    for (uint32_t j = 0; j < RUN_FOURS; j++) {
        if (j * 32 + lane < fours)
            keep(j * 32 + lane, v[j]);
        else
            v[j] = make_float4(0, 0, 0, 0);
        most = max(most, most_of_four(v[j]));
    }
    const run_unit u = unit_of_run(__reduce_max_sync(~0u, most));
    half_run out;
    out.unit = u.unit;
#pragma unroll
    for (uint32_t j = 0; j < RUN_FOURS; j++)
        out.words[j] = u.power == 0
                           ? make_uint2(0, 0)
                           : make_uint2(pack_half2<false>(v[j].x * u.power, v[j].y * u.power),
                                        pack_half2<false>(v[j].z * u.power, v[j].w * u.power));
    return out;
}

// ---- sums ------------------------------------------------------------------------------------

// What a run adds to its set.
__device__ __forceinline__ float sum_of_run(float sum, float unit) {
    return sum * unit;
}
// From the sum of runs to put_output's.
__device__ __forceinline__ float sum_of_runs(float sum) {
    return sum * CODE_UNITS;
}
