// SPDX-License-Identifier: Apache-2.0
// widen.cuh: codes become f16, f16(s * code + b), two at a time.
//
// A word holds the codes of one or more quads (dims of K, tokens of V). A mask leaves those of
// bytes 0 and 2, or 1 and 3, in the low bits of two halves; with the bits of 1024 above them these
// are the f16 numbers 1024 + code, and subtracting 1024 leaves the code, exact. So a quad
// is widened to the pairs (0, 2) and (1, 3).
#pragma once

#include "backend/cuda/arithmetic.cuh"

__device__ __forceinline__ uint32_t half2_add(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

// w & mask | more in one instruction: the compiler makes two of it if both are constants.
__device__ __forceinline__ uint32_t and_or(uint32_t w, uint32_t mask, uint32_t more) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(w), "r"(mask), "r"(more));
    return d;
}
// Quad N of a word's, as f16: bytes 0 and 2, 1 and 3.
template <int BITS, int N>
__device__ __forceinline__ void codes_as_half(uint32_t w, uint32_t &even, uint32_t &odd) {
    constexpr uint32_t BIG = 0x64006400u, MINUS_BIG = 0xe400e400u; // 1024
    if constexpr (BITS == 8) {
        even = half2_add(__byte_perm(w, BIG, 0x5250), MINUS_BIG);
        odd = half2_add(__byte_perm(w, BIG, 0x5351), MINUS_BIG);
    } else {
        // the code is N * BITS bits up: 1024 + 2^(N * BITS) * code
        constexpr uint32_t SHIFT = N * BITS, MASK = ((1u << BITS) - 1) * 0x10001u << SHIFT;
        even = and_or(w, MASK, BIG);
        odd = and_or(w >> 8, MASK, BIG);
        if constexpr (N == 0) {
            even = half2_add(even, MINUS_BIG);
            odd = half2_add(odd, MINUS_BIG);
        } else {
            constexpr uint32_t DOWN = (15 - SHIFT) * 0x04000400u,     // 2^-SHIFT
                LESS = (15 + 10 - SHIFT) * 0x04000400u | 0x80008000u; // -1024 of it
            even = half2_fma(even, DOWN, LESS);
            odd = half2_fma(odd, DOWN, LESS);
        }
    }
}
// Where the bits of a plane of one bit must be for codes of 3 or 5 bits: quad `first` of the word
// is the first that is taken with it (quad 0 of the low plane's word).
template <int BITS> __device__ __forceinline__ uint32_t high_bits(uint32_t w, int first) {
    return __funnelshift_l(w, w, (BITS - 1 - first) & 31);
}
// The same of codes in two planes; high: of high_bits.
template <int BITS, int N>
__device__ __forceinline__ void planes_as_half(uint32_t low, uint32_t high, uint32_t &even,
                                               uint32_t &odd) {
    constexpr uint32_t LOW = BITS - 1, SHIFT = N * LOW,
                       MASK = ((1u << LOW) - 1) * 0x10001u << SHIFT, BIG = 0x64006400u,
                       TOP = 0x10001u << (LOW + SHIFT), UP = SHIFT - N;
    even = and_or(high << UP, TOP, and_or(low, MASK, BIG));
    odd = and_or(high >> (8 - UP), TOP, and_or(low >> 8, MASK, BIG));
    if constexpr (N == 0) {
        even = half2_add(even, 0xe400e400u);
        odd = half2_add(odd, 0xe400e400u);
    } else {
        constexpr uint32_t DOWN = (15 - SHIFT) * 0x04000400u,
                           LESS = (15 + 10 - SHIFT) * 0x04000400u | 0x80008000u;
        even = half2_fma(even, DOWN, LESS);
        odd = half2_fma(odd, DOWN, LESS);
    }
}
// The same, widened; s, b: of the pairs' elements.
template <int BITS, int N>
__device__ __forceinline__ void widen(uint32_t w, uint32_t s_even, uint32_t b_even, uint32_t s_odd,
                                      uint32_t b_odd, uint32_t &even, uint32_t &odd) {
    codes_as_half<BITS, N>(w, even, odd);
    even = half2_fma(even, s_even, b_even);
    odd = half2_fma(odd, s_odd, b_odd);
}

// The same of a word of each plane; high is not read where there is one plane.
template <int BITS, int N>
__device__ __forceinline__ void widen_planes(uint32_t low, uint32_t high, uint32_t s_even,
                                             uint32_t b_even, uint32_t s_odd, uint32_t b_odd,
                                             uint32_t &even, uint32_t &odd) {
    if constexpr (BITS & 1)
        planes_as_half<BITS, N>(low, high, even, odd);
    else
        codes_as_half<BITS, N>(low, even, odd);
    even = half2_fma(even, s_even, b_even);
    odd = half2_fma(odd, s_odd, b_odd);
}

// Two scalars of a tile (scales or biases) as f16.
__device__ __forceinline__ uint32_t scalars_as_half(uint32_t w, bool bf) {
    return bf ? pack_half2<false>(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u)) : w;
}
__device__ __forceinline__ uint2 scalars_as_half(uint2 v, bool bf) {
    return make_uint2(scalars_as_half(v.x, bf), scalars_as_half(v.y, bf));
}
// The same of N times eight scales and biases: a branch, not 32 N instructions that do nothing.
template <int N>
__device__ __forceinline__ void scalars_to_half(uint4 (&s)[N], uint4 (&b)[N], bool bf) {
    if (bf) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            s[i] = make_uint4(scalars_as_half(s[i].x, true), scalars_as_half(s[i].y, true),
                              scalars_as_half(s[i].z, true), scalars_as_half(s[i].w, true));
            b[i] = make_uint4(scalars_as_half(b[i].x, true), scalars_as_half(b[i].y, true),
                              scalars_as_half(b[i].z, true), scalars_as_half(b[i].w, true));
        }
    }
}
// Of elements (0, 1) and (2, 3) the pairs (0, 2) and (1, 3), and back.
__device__ __forceinline__ uint32_t even_of(uint32_t a, uint32_t b) {
    return __byte_perm(a, b, 0x5410);
}
__device__ __forceinline__ uint32_t odd_of(uint32_t a, uint32_t b) {
    return __byte_perm(a, b, 0x7632);
}
// Of a quad, of two quads.
__device__ __forceinline__ uint2 pairs_of(uint2 v) {
    return make_uint2(even_of(v.x, v.y), odd_of(v.x, v.y));
}
__device__ __forceinline__ uint4 pairs_of(const uint4 &v) {
    return make_uint4(even_of(v.x, v.y), odd_of(v.x, v.y), even_of(v.z, v.w), odd_of(v.z, v.w));
}
// A mask of the low and of the high half.
__device__ __forceinline__ uint32_t half_mask(bool low, bool high) {
    return (low ? 0xffffu : 0) | (high ? 0xffff0000u : 0);
}
// A mask of a quad's pairs: bit j says whether element j stays.
__device__ __forceinline__ uint2 pair_masks(uint32_t four) {
    return make_uint2(half_mask(four & 1, four & 4), half_mask(four & 2, four & 8));
}
__device__ __forceinline__ uint2 and_of(uint2 v, uint2 mask) {
    return make_uint2(v.x & mask.x, v.y & mask.y);
}
__device__ __forceinline__ uint4 and_of(const uint4 &v, uint2 low, uint2 high) {
    return make_uint4(v.x & low.x, v.y & low.y, v.z & high.x, v.w & high.y);
}
