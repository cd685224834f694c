/* SPDX-License-Identifier: Apache-2.0 */
/* vector.h: the vector idioms that several kernels of this folder share: arrays of a scalar type as
 * floats, sums and maxima across the lanes of a register, e^x, rounding to 15 bits, and the
 * products of codes that the two tiers do with different instructions. Static inline, no state.
 */
#ifndef KVASIR_CPU_AVX512_VECTOR_H
#define KVASIR_CPU_AVX512_VECTOR_H

#include <immintrin.h>
#include <string.h>

#include "backend/cpu/avx512/avx512.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* for (int i = 0; i < n; i++), unrolled at every level of optimisation, because the vectors that it
 * indexes have to be registers; always with braces. */
#if defined(__clang__)
#define UNROLL_FOR(i, n) _Pragma("clang loop unroll(full)") for (int i = 0; i < (n); i++)
#else
#define UNROLL_FOR(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#endif

/* v, in a register, of unknown origin. Without it compilers fold a load into each of its uses, and
 * regroup integer sums into trees that do not fit the registers. */
ALWAYS_INLINE __m512i keep(__m512i v) {
    __asm__("" : "+v"(v));
    return v;
}

/* ---- floats ---------------------------------------------------------------------------------- */

/* Lanes [0, n) of sixteen. */
ALWAYS_INLINE __mmask16 first_lanes(size_t n) {
    return n < 16 ? (__mmask16)((1u << n) - 1) : (__mmask16)0xffff;
}

/* Elements [i, i + 16) of an array of scalar type t. */
ALWAYS_INLINE __m512 load16(enum scalar_type t, const void *p, size_t i) {
    if (t == SCALAR_F32)
        return _mm512_loadu_ps((const float *)p + i);
    __m256i h = _mm256_loadu_si256((const __m256i *)((const uint16_t *)p + i));
    if (t == SCALAR_F16)
        return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

ALWAYS_INLINE __m256 upper_half(__m512 v) {
    return _mm512_extractf32x8_ps(v, 1);
}

/* Sum of the lanes, always as a tree of halves: lane i + lane i + 8, then + 4, + 2, + 1. */
ALWAYS_INLINE float sum_lanes(__m512 v) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), upper_half(v));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

ALWAYS_INLINE __m512i magnitude_bits(__m512 v) {
    return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
}

/* The largest of sixteen magnitudes given as bits. Compared as integers floats >= 0 keep their
 * order and NaN is the largest, so that a NaN is never lost. */
ALWAYS_INLINE float max_magnitude(__m512i bits) {
    __m256i h = _mm256_max_epi32(_mm512_castsi512_si256(bits), _mm512_extracti64x4_epi64(bits, 1));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(m));
}

/* e^x = 2^n (1 + rest) for x in [-104, 0]. x = n ln 2 + r with |r| <= ln 2 / 2; e^r - 1 by a
 * polynomial whose coefficients minimise the relative error (3e-9) of e^r. */
struct exp_parts {
    __m512 rest, n;
};
ALWAYS_INLINE struct exp_parts exp_split(__m512 x) {
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e43p-1f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-0x1.05c61p-29f), r);
    __m512 p = _mm512_set1_ps(0x1.6a215ap-10f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.123b9ap-7f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.5558fcp-5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.55549p-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.fffffcp-2f));
    return (struct exp_parts){_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), n};
}

/* e^x for x <= 0, 1.01 ulp; 0 below -104, subnormals kept, NaN stays NaN. */
ALWAYS_INLINE __m512 exp_lanes(__m512 x) {
    struct exp_parts e = exp_split(_mm512_max_ps(_mm512_set1_ps(-104.0f), x));
    return _mm512_scalef_ps(_mm512_add_ps(e.rest, _mm512_set1_ps(1.0f)), e.n);
}

/* 32 s16 codes from x * factor, rounded to nearest even. */
ALWAYS_INLINE __m512i round_s16(__m512 x0, __m512 x1, __m512 factor) {
    const __m512i lanes = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    __m512i c0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, factor));
    __m512i c1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, factor));
    return _mm512_permutexvar_epi64(lanes, _mm512_packs_epi32(c0, c1));
}

/* ---- what the two tiers do differently ------------------------------------------------------- */

/* acc + the four products of each 32-bit lane, unsigned bytes times signed ones, exact in s32. The
 * version without VNNI sums pairs in 16 bits first: it is exact where u s + u' s' fits. */
ALWAYS_INLINE __m512i dot4_u8s8(__m512i acc, __m512i u, __m512i s) {
#ifdef KVASIR_AVX512VNNI
    return _mm512_dpbusd_epi32(acc, u, s);
#else
    __m512i pairs = _mm512_maddubs_epi16(u, s);
    return _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#endif
}

/* Codes of 15 bits (queries, the weights of values) meet codes of at most 8 bits in two halves. A
 * run of four codes is eight bytes, two dwords that are broadcast each by itself:
 *
 *     with VNNI      | lo0 lo1 lo2 lo3 | hi0 hi1 hi2 hi3 |    two planes of s8, 256 hi + lo
 *     without        |   c0       c2   |   c1       c3   |    s16
 *
 * and a lane's four unsigned bytes b meet half h of it:
 *
 *     with VNNI      all four bytes with either plane; the sum is lo + 256 hi
 *     without        b0 b2 as words, then b1 b3 as words; the sum is both
 *
 * 8-bit codes times s8 would saturate in vpmaddubsw, hence words. */
struct halves {
    __m512i h[2];
};

/* Lanes of four bytes as they meet either half. */
ALWAYS_INLINE struct halves split_bytes(__m512i bytes) {
#ifdef KVASIR_AVX512VNNI
    return (struct halves){{bytes, bytes}};
#else
    return (struct halves){
        {_mm512_and_si512(bytes, _mm512_set1_epi16(0xff)), _mm512_srli_epi16(bytes, 8)}};
#endif
}

ALWAYS_INLINE __m512i dot_half(__m512i acc, __m512i part, __m512i codes) {
#ifdef KVASIR_AVX512VNNI
    return _mm512_dpbusd_epi32(acc, part, codes);
#else
    return _mm512_add_epi32(acc, _mm512_madd_epi16(part, codes));
#endif
}

ALWAYS_INLINE __m512i join_halves(__m512i a, __m512i b) {
#ifdef KVASIR_AVX512VNNI
    b = _mm512_slli_epi32(b, 8);
#endif
    return _mm512_add_epi32(a, b);
}

/* Each run of four s16 codes as its two halves. */
ALWAYS_INLINE __m512i halves_of_runs(__m512i s16) {
#ifdef KVASIR_AVX512VNNI
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    /* a low byte above 127 counts as 256 less, so its high byte is one more */
    __m512i high = _mm512_add_epi16(s16, _mm512_set1_epi16(128));
    s16 = _mm512_mask_mov_epi8(s16, 0xaaaaaaaaaaaaaaaa, high);
#else
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
#endif
    return _mm512_shuffle_epi8(s16, order);
}

#endif
