/* SPDX-License-Identifier: Apache-2.0 */
/* avx512/: two tiers, AVX-512 (F, BW, DQ, VL, CD) and AVX-512 with VNNI. simd/ has the kernels that
 * differ from other tiers' in width alone. All files are compiled for both tiers; the few
 * primitives that they do with other instructions are at the end of vector.h.
 *
 *     vector.h          the vectors of simd/ (simd.h says what each name means)
 *     affine.c          score and value over tiles of codes, any bits
 *     product_codes.c, unpack_*.c
 *                       products with quantized weights; product.h draws what types are unpacked to
 */
#ifndef KVASIR_CPU_AVX512_VECTOR_H
#define KVASIR_CPU_AVX512_VECTOR_H

#include <immintrin.h>

#include "backend/cpu/simd/tier.h"

enum { LANES = 16 };
typedef float vf __attribute__((vector_size(64)));
typedef float vf4 __attribute__((vector_size(16))); /* four floats */
typedef int32_t vi __attribute__((vector_size(64)));
typedef int64_t vq __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(32)));

/* 32 registers */
enum {
    EXACT_VECTORS = 4, /* of four tile lanes each */
    EXACT_ROWS = 4,    /* 16 sums */
    CENTRE_VECTORS = 2,
    CENTRE_ROWS = 3, /* 12 sums */
    FLOAT_VECTORS = 1,
    FLOAT_ROWS = 6, /* 24 sums, six activations and one weight */
    FLOAT_PREFETCH = 1,
    ACT_CODE_SUMS = 1,
};
#define EXACT_FOUR_ROWS

/* v, in a register, of unknown origin. Without it compilers fold a load into each of its uses, and
 * regroup integer sums into trees that do not fit the registers. */
ALWAYS_INLINE __m512i keep(__m512i v) {
    __asm__("" : "+v"(v));
    return v;
}
ALWAYS_INLINE vf keep_float(vf v) {
    __asm__("" : "+v"(v));
    return v;
}
ALWAYS_INLINE void load_anew(void) {}

/* ---- memory ---------------------------------------------------------------------------------- */

ALWAYS_INLINE vf splat(float x) {
    return _mm512_set1_ps(x);
}
ALWAYS_INLINE vf load(const float *p) {
    return _mm512_loadu_ps(p);
}
ALWAYS_INLINE void store(float *p, vf v) {
    _mm512_storeu_ps(p, v);
}
ALWAYS_INLINE __mmask16 first_lanes(size_t n) {
    return n < 16 ? (__mmask16)((1u << n) - 1) : (__mmask16)0xffff;
}
/* Masked loads do not touch what they leave out. */
ALWAYS_INLINE vf load_first(const float *p, size_t n) {
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
ALWAYS_INLINE void store_first(float *p, size_t n, vf v) {
    _mm512_mask_storeu_ps(p, first_lanes(n), v);
}
/* The same four floats for every four lanes. */
ALWAYS_INLINE vf load_four(const float *p) {
    return _mm512_broadcast_f32x4(_mm_loadu_ps(p));
}
/* Pairs (2i, 2i+1) to two vectors. */
ALWAYS_INLINE void load_pairs(const float *p, vf *even, vf *odd) {
    const __m512i first =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    vf a = load(p), b = load(p + 16);
    *even = _mm512_permutex2var_ps(a, first, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(first, _mm512_set1_epi32(1)), b);
}
ALWAYS_INLINE void prefetch_line(const char *p) {
    _mm_prefetch(p, _MM_HINT_T0);
}

/* ---- floats ---------------------------------------------------------------------------------- */

ALWAYS_INLINE vf fmadd(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
ALWAYS_INLINE vf fmsub(vf a, vf b, vf c) {
    return _mm512_fmsub_ps(a, b, c);
}
ALWAYS_INLINE vf fnmadd(vf a, vf b, vf c) {
    return _mm512_fnmadd_ps(a, b, c);
}
/* x f + acc where f is not 0, whatever x holds; elsewhere acc, or acc + 0. */
ALWAYS_INLINE vf fmadd_seen(vf x, vf f, vf acc) {
    return _mm512_mask3_fmadd_ps(x, f, acc, _mm512_cmp_ps_mask(f, splat(0), _CMP_NEQ_UQ));
}
ALWAYS_INLINE vf vmin(vf a, vf b) {
    return _mm512_min_ps(a, b);
}
ALWAYS_INLINE vf vmax(vf a, vf b) {
    return _mm512_max_ps(a, b);
}
ALWAYS_INLINE vf vmax_number(vf a, vf b) {
    return _mm512_max_ps(a, b);
}
ALWAYS_INLINE vf round_even(vf x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
ALWAYS_INLINE vf if_negative(vf s, vf yes, vf no) {
    return _mm512_mask_mov_ps(no, _mm512_movepi32_mask((__m512i)s), yes);
}
ALWAYS_INLINE vf f16_floats(vh h) {
    return _mm512_cvtph_ps((__m256i)h);
}
ALWAYS_INLINE vh f16_bits(vf x) {
    return (vh)_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}
/* 2^n for whole n in [-126, 127]. */
ALWAYS_INLINE vf power_of_2(vf n) {
    return _mm512_scalef_ps(splat(1.0f), n);
}
/* x 2^n for whole n in [-152, 0]. */
ALWAYS_INLINE vf times_power_of_2(vf x, vf n) {
    return _mm512_scalef_ps(x, n);
}

/* ---- integers -------------------------------------------------------------------------------- */

ALWAYS_INLINE vi to_int(vf x) {
    return (vi)_mm512_cvtps_epi32(x);
}
ALWAYS_INLINE vf to_float(vi x) {
    return _mm512_cvtepi32_ps((__m512i)x);
}
/* Unsigned 16-bit values as s32. The intrinsic, because gcc 12 takes __builtin_convertvector of a
 * loaded vector apart. */
ALWAYS_INLINE vi widen_int(vh h) {
    return (vi)_mm512_cvtepu16_epi32((__m256i)h);
}
ALWAYS_INLINE vi max_int(vi a, vi b) {
    return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
}

/* ---- across lanes ---------------------------------------------------------------------------- */

ALWAYS_INLINE __m256 upper_half(vf v) {
    return _mm512_extractf32x8_ps(v, 1);
}

/* As a tree of halves: lane i + lane i + 4, then + 2, + 1. */
ALWAYS_INLINE float sum_eight(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
/* The same, after lane i + lane i + 8. */
ALWAYS_INLINE float sum_lanes(vf v) {
    return sum_eight(_mm256_add_ps(_mm512_castps512_ps256(v), upper_half(v)));
}

/* The sum of channels has eight lanes and AVX2's order, so that scores of KV_TILE have AVX2's bits.
 * Pages that were stored when these tiers used AVX2's kernel stay valid. */
#define HAVE_CHANNEL_SUM
typedef __m256 channel_sum;
ALWAYS_INLINE channel_sum channel_add(channel_sum sum, vf q, vf b) {
    sum = _mm256_fmadd_ps(_mm512_castps512_ps256(q), _mm512_castps512_ps256(b), sum);
    return _mm256_fmadd_ps(upper_half(q), upper_half(b), sum);
}
ALWAYS_INLINE float channel_total(channel_sum sum) {
    return sum_eight(sum);
}

/* In every four lanes of result o, the sums of the four lanes there of v[0] to v[3], each as
 * (0 + 2) + (1 + 3). */
ALWAYS_INLINE vf sum_by_fours(vf v0, vf v1, vf v2, vf v3) {
    vf u0 = _mm512_unpacklo_ps(v0, v1) + _mm512_unpackhi_ps(v0, v1);
    vf u1 = _mm512_unpacklo_ps(v2, v3) + _mm512_unpackhi_ps(v2, v3);
    return _mm512_shuffle_ps(u0, u1, 0x44) + _mm512_shuffle_ps(u0, u1, 0xee);
}

/* Lane j = the sum of the lanes of v[j]: of the four sums by fours (0 + 2) + (1 + 3). */
ALWAYS_INLINE vf4 sum_each(const vf v[4][FLOAT_VECTORS]) {
    vf s = sum_by_fours(v[0][0], v[1][0], v[2][0], v[3][0]);
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(s), upper_half(s));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

/* Sums of fours of lanes in order, each as (0 + 2) + (1 + 3). */
ALWAYS_INLINE void sum_fours(const vf v[EXACT_VECTORS], float *sums) {
    const __m512i lanes = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    vf all = sum_by_fours(v[0], v[1], v[2], v[3]); /* [lane in its vector][vector] */
    store(sums, _mm512_permutexvar_ps(lanes, all));
}

ALWAYS_INLINE float min_lane(vf v) {
    return _mm512_reduce_min_ps(v);
}
ALWAYS_INLINE float max_lane(vf v) {
    return _mm512_reduce_max_ps(v);
}
ALWAYS_INLINE int32_t sum_int(vi v) {
    return _mm512_reduce_add_epi32((__m512i)v);
}
/* sums[0] of a, sums[1] of b. */
ALWAYS_INLINE void sum_two(vi a, vi b, int32_t sums[2]) {
    __m512i s = _mm512_add_epi32(_mm512_unpacklo_epi32((__m512i)a, (__m512i)b),
                                 _mm512_unpackhi_epi32((__m512i)a, (__m512i)b));
    __m256i h = _mm256_add_epi32(_mm512_castsi512_si256(s), _mm512_extracti64x4_epi64(s, 1));
    __m128i q = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    _mm_storel_epi64((__m128i *)sums, _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e)));
}
ALWAYS_INLINE int32_t max_int_lane(vi v) {
    return _mm512_reduce_max_epi32((__m512i)v);
}
/* Whether any lane of a comparison holds. */
ALWAYS_INLINE bool any_lane(vi v) {
    return _mm512_movepi32_mask((__m512i)v) != 0;
}
ALWAYS_INLINE vf reversed(vf x) {
    x = _mm512_permute_ps(x, 0x1b);
    return _mm512_shuffle_f32x4(x, x, 0x1b);
}

/* Lane i of it is lane i ^ distance of x: 1, 2, 4 or 8. */
ALWAYS_INLINE vf swap_lanes(vf x, int distance) {
    return distance == 1   ? _mm512_permute_ps(x, 0xb1)
           : distance == 2 ? _mm512_permute_ps(x, 0x4e)
           : distance == 4 ? _mm512_shuffle_f32x4(x, x, 0xb1)
                           : _mm512_shuffle_f32x4(x, x, 0x4e);
}

/* ---- codes ----------------------------------------------------------------------------------- */

/* Codes, a byte each. */
ALWAYS_INLINE void store_bytes(uint8_t *to, vi codes) {
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)codes));
}

/* LANES / 2 16-bit values as 64-bit words. */
ALWAYS_INLINE vq words_of(const uint16_t *p) {
    return (vq)_mm512_cvtepu16_epi64(_mm_loadu_si128((const __m128i *)p));
}

/* 32 s16 codes from x * factor, rounded to nearest even. */
ALWAYS_INLINE __m512i round_s16(vf x0, vf x1, vf factor) {
    const __m512i lanes = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    __m512i c = _mm512_packs_epi32((__m512i)to_int(x0 * factor), (__m512i)to_int(x1 * factor));
    return _mm512_permutexvar_epi64(lanes, c);
}

/* A block's codes of activations, signed bytes that meet unsigned bytes of weights, in natural
 * order:
 *     8 bits    | code, 32 bytes |
 *     16 bits   | high, 32 of them | low, 32 of them |      code = 256 high + low, both s8 */
ALWAYS_INLINE void store_act_codes(void *codes, size_t at, int bits, const vi c[ACT_BLOCK / 16]) {
    int8_t *to = (int8_t *)codes + at * (size_t)bits / 8;
    if (bits == 16) { /* a low byte above 127 counts as 256 less, so its high byte is one more */
        UNROLL_FOR(i, 2) {
            vi high = (c[i] + 128) >> 8;
            _mm_storeu_si128((__m128i *)to + i, _mm512_cvtepi32_epi8((__m512i)high));
        }
        to += ACT_BLOCK;
    }
    UNROLL_FOR(i, 2) {
        _mm_storeu_si128((__m128i *)to + i, _mm512_cvtepi32_epi8((__m512i)c[i]));
    }
}

/* Sixteen E4M3 floats s eeee mmm: as the f16 s 0eeee mmm0000000 they are 2^-8 of themselves, their
 * subnormals too; all ones is NaN. */
#define HAVE_E4M3
ALWAYS_INLINE vf e4m3_floats(const uint8_t *p, size_t n) {
    __m256i v = _mm256_cvtepu8_epi16(_mm_maskz_loadu_epi8(first_lanes(n), p));
    __m256i low = _mm256_set1_epi16(0x7f), magnitude = _mm256_and_si256(v, low);
    __m256i sign = _mm256_slli_epi16(_mm256_andnot_si256(low, v), 8);
    vf x = _mm512_cvtph_ps(_mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign)) * splat(256);
    return _mm512_mask_mov_ps(x, _mm256_cmpeq_epi16_mask(magnitude, low),
                              splat(__builtin_nanf("")));
}

/* Four dims of a token side by side, 16 times, as words of a plane: word i of the result, times its
 * distance from the next, is made of the 8 / bits dwords from there on. */
ALWAYS_INLINE __m512i fold_words(__m512i fours, unsigned bits) {
    if (bits < 8)
        fours = _mm512_or_si512(fours, _mm512_srli_epi64(fours, 32 - bits));
    if (bits < 4)
        fours =
            _mm512_or_si512(fours, _mm512_slli_epi32(_mm512_shuffle_epi32(fours, 0x4e), 2 * bits));
    if (bits < 2)
        fours = _mm512_or_si512(
            fours, _mm512_slli_epi32(_mm512_shuffle_i32x4(fours, fours, 0xb1), 4 * bits));
    return fours;
}

/* encode.c's, 64 dims at a time. */
#define HAVE_PUT_K
ALWAYS_INLINE void put_k(uint8_t *column, unsigned bits, unsigned shift, uint32_t n,
                         const uint8_t *codes) {
    const uint32_t rows = 8 / bits; /* of four dims, in one word */
    const __m512i mask = _mm512_set1_epi8((char)((1u << bits) - 1));
    for (uint32_t d = 0; d < n; d += 64) {
        uint32_t words[16], count = n - d < 64 ? (n - d) / 4 : 16;
        __m512i fours = _mm512_maskz_loadu_epi32(first_lanes(count), codes + d);
        fours = _mm512_and_si512(_mm512_srli_epi16(fours, shift), mask);
        _mm512_storeu_si512(words, fold_words(fours, bits));
        for (uint32_t i = 0; i < count; i += rows) {
            memcpy(column, &words[i], sizeof words[i]);
            column += 4 * TILE_TOKENS;
        }
    }
}

/* ---- codes: what the two tiers do with other instructions ------------------------------------ */

/* acc + the four products of each 32-bit lane, unsigned bytes times signed ones, exact in s32. The
 * version without VNNI sums pairs in 16 bits first: it is exact if u s + u' s' fits. */
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

/* Codes of n <= 32 dims of a query, a multiple of 4; returns their sum. */
ALWAYS_INLINE int32_t query_codes(const float *x, uint32_t n, float per_unit, int16_t *codes) {
    size_t high = n > 16 ? n - 16 : 0;
    __m512i c = round_s16(load_first(x, n), load_first(high ? x + 16 : x, high), splat(per_unit));
    __mmask32 lanes = (__mmask32)first_lanes(high) << 16 | first_lanes(n);
    _mm512_mask_storeu_epi16(codes, lanes, halves_of_runs(c));
    return _mm512_reduce_add_epi32(_mm512_madd_epi16(c, _mm512_set1_epi16(1)));
}

/* The floats of v where x >= min or x is NaN, else 0. */
#define HAVE_ZERO_BELOW
ALWAYS_INLINE vf zero_below(float min, vf x, vf v) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, splat(min), _CMP_NLT_UQ), v);
}

#endif
