/* SPDX-License-Identifier: Apache-2.0 */
/* avx2/: the tier AVX2 + FMA + F16C (no VNNI, no AVX-512). simd/ has the kernels that differ from
 * other tiers' in width alone.
 *
 *     vector.h          the vectors of simd/ (simd.h says what each name means)
 *     affine.c          score and value over tiles of codes, any bits
 *     product_quant.c   products with quantized weights; product*.h are its own
 *
 * The 16-bit codes of queries and probabilities are in the order 0 2 1 3 inside each run of four:
 * the words of a vector of bytes are v & 0x00ff, elements 0 and 2 of each 32-bit lane, and v >> 8,
 * elements 1 and 3.
 */
#ifndef KVASIR_CPU_AVX2_VECTOR_H
#define KVASIR_CPU_AVX2_VECTOR_H

#include <immintrin.h>

#include "backend/cpu/simd/tier.h"

enum { LANES = 8 };
typedef float vf __attribute__((vector_size(32)));
typedef float vf4 __attribute__((vector_size(16))); /* four floats */
typedef int32_t vi __attribute__((vector_size(32)));
typedef int64_t vq __attribute__((vector_size(32)));
typedef uint16_t vh __attribute__((vector_size(16)));

/* 16 registers */
enum {
    EXACT_VECTORS = 4, /* of two tile lanes each */
    EXACT_ROWS = 3,    /* 12 sums, 3 factors and 1 vector of elements */
    CENTRE_VECTORS = 2,
    CENTRE_ROWS = 3, /* 12 sums, 3 factors and 1 vector of waves */
    FLOAT_VECTORS = 1,
    FLOAT_ROWS = 3, /* 12 sums, 3 activations and 1 weight */
    FLOAT_PREFETCH = 1,
    ACT_CODE_SUMS = 0,
};

/* ---- memory ---------------------------------------------------------------------------------- */

ALWAYS_INLINE vf splat(float x) {
    return _mm256_set1_ps(x);
}
ALWAYS_INLINE vf load(const float *p) {
    return _mm256_loadu_ps(p);
}
ALWAYS_INLINE void store(float *p, vf v) {
    _mm256_storeu_ps(p, v);
}
ALWAYS_INLINE __m256i first_lanes(size_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < 8 ? (int)n : 8),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
ALWAYS_INLINE vf load_first(const float *p, size_t n) {
    return n >= LANES ? load(p) : (vf)_mm256_maskload_ps(p, first_lanes(n));
}
ALWAYS_INLINE void store_first(float *p, size_t n, vf v) {
    if (n >= LANES)
        store(p, v);
    else
        _mm256_maskstore_ps(p, first_lanes(n), v);
}
/* The same four floats for every four lanes. */
ALWAYS_INLINE vf load_four(const float *p) {
    return _mm256_broadcast_ps((const __m128 *)p);
}
/* Pairs (2i, 2i+1) to two vectors. */
ALWAYS_INLINE void load_pairs(const float *p, vf *even, vf *odd) {
    vf a = load(p), b = load(p + 8);
    __m256d e = (__m256d)_mm256_shuffle_ps(a, b, 0x88), o = (__m256d)_mm256_shuffle_ps(a, b, 0xdd);
    *even = (vf)_mm256_permute4x64_pd(e, 0xd8);
    *odd = (vf)_mm256_permute4x64_pd(o, 0xd8);
}
ALWAYS_INLINE void prefetch_line(const char *p) {
    _mm_prefetch(p, _MM_HINT_T0);
}

/* ---- floats ---------------------------------------------------------------------------------- */

ALWAYS_INLINE vf fmadd(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
ALWAYS_INLINE vf fmsub(vf a, vf b, vf c) {
    return _mm256_fmsub_ps(a, b, c);
}
ALWAYS_INLINE vf fnmadd(vf a, vf b, vf c) {
    return _mm256_fnmadd_ps(a, b, c);
}
ALWAYS_INLINE vf vmin(vf a, vf b) {
    return _mm256_min_ps(a, b);
}
ALWAYS_INLINE vf vmax(vf a, vf b) {
    return _mm256_max_ps(a, b);
}
ALWAYS_INLINE vf vmax_number(vf a, vf b) {
    return _mm256_max_ps(a, b);
}
ALWAYS_INLINE vf round_even(vf x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
ALWAYS_INLINE vf if_negative(vf s, vf yes, vf no) {
    return _mm256_blendv_ps(no, yes, s);
}
ALWAYS_INLINE vf f16_floats(vh h) {
    return _mm256_cvtph_ps((__m128i)h);
}
ALWAYS_INLINE vh f16_bits(vf x) {
    return (vh)_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}

/* ---- integers -------------------------------------------------------------------------------- */

ALWAYS_INLINE vi to_int(vf x) {
    return (vi)_mm256_cvtps_epi32(x);
}
ALWAYS_INLINE vf to_float(vi x) {
    return _mm256_cvtepi32_ps((__m256i)x);
}
/* Unsigned 16-bit values as s32. The intrinsic, because gcc 12 takes __builtin_convertvector of a
 * loaded vector apart. */
ALWAYS_INLINE vi widen_int(vh h) {
    return (vi)_mm256_cvtepu16_epi32((__m128i)h);
}
ALWAYS_INLINE vi max_int(vi a, vi b) {
    return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b);
}

/* ---- across lanes ---------------------------------------------------------------------------- */

/* Always as ((0+4)+(2+6)) + ((1+5)+(3+7)). */
ALWAYS_INLINE float sum_lanes(vf v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* Lane j = the sum of the lanes of v[j], each as ((0+2)+(1+3)) + ((4+6)+(5+7)). */
ALWAYS_INLINE vf4 sum_each(const vf v[4][FLOAT_VECTORS]) {
    vf u[2];
    UNROLL_FOR(i, 2) {
        u[i] = _mm256_unpacklo_ps(v[2 * i][0], v[2 * i + 1][0]) +
               _mm256_unpackhi_ps(v[2 * i][0], v[2 * i + 1][0]);
    }
    vf s = _mm256_shuffle_ps(u[0], u[1], 0x44) + _mm256_shuffle_ps(u[0], u[1], 0xee);
    return _mm256_castps256_ps128(s) + _mm256_extractf128_ps(s, 1);
}

/* Sums of fours of lanes in order, each as (0 + 1) + (2 + 3). */
ALWAYS_INLINE void sum_fours(const vf v[EXACT_VECTORS], float *sums) {
    /* the halves of the joined vector hold sums 0 2 4 6 and 1 3 5 7 */
    vf h = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    store(sums, _mm256_permutevar8x32_ps(h, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}

ALWAYS_INLINE float min_lane(vf v) {
    __m128 m = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_min_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_min_ss(m, _mm_movehdup_ps(m)));
}
ALWAYS_INLINE float max_lane(vf v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
ALWAYS_INLINE int32_t sum_int(vi v) {
    __m128i s =
        _mm_add_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
/* sums[0] of a, sums[1] of b. */
ALWAYS_INLINE void sum_two(vi a, vi b, int32_t sums[2]) {
    __m256i s = _mm256_add_epi32(_mm256_unpacklo_epi32((__m256i)a, (__m256i)b),
                                 _mm256_unpackhi_epi32((__m256i)a, (__m256i)b));
    __m128i q = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    _mm_storel_epi64((__m128i *)sums, _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e)));
}
ALWAYS_INLINE int32_t max_int_lane(vi v) {
    __m128i m =
        _mm_max_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}
/* Whether any lane of a comparison holds. */
ALWAYS_INLINE bool any_lane(vi v) {
    return _mm256_movemask_ps((vf)v) != 0;
}
/* Without a register for the order: centre.c has none to spare. */
ALWAYS_INLINE vf reversed(vf x) {
    x = _mm256_permute_ps(x, 0x1b);
    return _mm256_permute2f128_ps(x, x, 1);
}

/* Lane i of it is lane i ^ distance of x: 1, 2 or 4. */
ALWAYS_INLINE vf swap_lanes(vf x, int distance) {
    return distance == 1   ? _mm256_permute_ps(x, 0xb1)
           : distance == 2 ? _mm256_permute_ps(x, 0x4e)
                           : _mm256_permute2f128_ps(x, x, 1);
}

/* ---- what differs ---------------------------------------------------------------------------- */

/* v, in a register: without it compilers fold a load into each of its uses. */
ALWAYS_INLINE vf keep_float(vf v) {
    __asm__("" : "+x"(v));
    return v;
}
ALWAYS_INLINE void load_anew(void) {}

/* x f + acc where f is not 0, whatever x holds; elsewhere acc, or acc + 0. */
ALWAYS_INLINE vf fmadd_seen(vf x, vf f, vf acc) {
    vf seen = _mm256_cmp_ps(f, _mm256_setzero_ps(), _CMP_NEQ_UQ);
    return fmadd(_mm256_and_ps(seen, x), f, acc);
}

/* 2^n for whole n in [-126, 127]. */
ALWAYS_INLINE vf power_of_2(vf n) {
    return (vf)((to_int(n) + 127) << 23);
}
/* x 2^n for whole n in [-152, 0]: in two factors, as n may be below -126. */
ALWAYS_INLINE vf times_power_of_2(vf x, vf n) {
    vi all = to_int(n), half = all >> 1;
    x = x * (vf)((half + 127) << 23);
    return x * (vf)((all - half + 127) << 23);
}

/* e^x for x <= 0, of scores; 0 where the result would be subnormal. NaN stays NaN. x = n ln 2 + r
 * with |r| <= ln 2 / 2, e^r by a polynomial of degree 7 (Cephes' coefficients; below 1 ulp with
 * FMA), 2^n by adding n to the exponent. */
#define HAVE_EXP_SCORE
ALWAYS_INLINE vf exp_score(vf x) {
    const vf smallest = splat(-87.336f); /* e^-87.336 is just above 2^-126 */
    vf normal = _mm256_cmp_ps(x, smallest, _CMP_NLT_UQ);
    vf n = round_even(x * splat(1.44269504f));
    /* ln 2 in two parts, the first short enough that n times it is exact */
    vf r = fnmadd(n, splat(0.693359375f), x);
    r = fnmadd(n, splat(-2.12194440e-4f), r);
    vf y = splat(1.9875691500e-4f);
    y = fmadd(y, r, splat(1.3981999507e-3f));
    y = fmadd(y, r, splat(8.3334519073e-3f));
    y = fmadd(y, r, splat(4.1665795894e-2f));
    y = fmadd(y, r, splat(1.6666665459e-1f));
    y = fmadd(y, r, splat(5.0000001201e-1f));
    y = fmadd(y, r * r, r) + splat(1.0f);
    /* Where x is not normal the sum may overflow, which intrinsics define. */
    __m256i exponent = _mm256_slli_epi32((__m256i)to_int(n), 23);
    return _mm256_and_ps(normal, (vf)_mm256_add_epi32((__m256i)y, exponent));
}

/* ---- codes ----------------------------------------------------------------------------------- */

/* Codes, a byte each. */
ALWAYS_INLINE void store_bytes(uint8_t *to, vi codes) {
    __m128i c = _mm_packus_epi32(_mm256_castsi256_si128((__m256i)codes),
                                 _mm256_extracti128_si256((__m256i)codes, 1));
    _mm_storel_epi64((__m128i *)to, _mm_packus_epi16(c, c));
}

/* LANES / 2 16-bit values as 64-bit words. */
ALWAYS_INLINE vq words_of(const uint16_t *p) {
    return (vq)_mm256_cvtepu16_epi64(_mm_loadl_epi64((const __m128i *)p));
}

/* 16 codes from x * factor, rounded to nearest even, in the order 0 2 1 3 inside each run of
 * four. */
ALWAYS_INLINE __m256i round_codes(vf x0, vf x1, vf factor) {
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0,
                                           1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    __m256i c = _mm256_packs_epi32((__m256i)to_int(x0 * factor), (__m256i)to_int(x1 * factor));
    return _mm256_shuffle_epi8(_mm256_permute4x64_epi64(c, 0xd8), order);
}

/* Codes of n <= 32 dims of a query, a multiple of 4; returns their sum. */
ALWAYS_INLINE int32_t query_codes(const float *x, uint32_t n, float per_unit, int16_t *codes) {
    float padded[32] = {0};
    int16_t packed[32];
    memcpy(padded, x, n * sizeof *x);
    __m256i sum = _mm256_setzero_si256();
    UNROLL_FOR(i, 2) {
        const float *at = padded + 16 * i;
        __m256i c = round_codes(load(at), load(at + 8), splat(per_unit));
        _mm256_storeu_si256((__m256i *)(packed + 16 * i), c);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(c, _mm256_set1_epi16(1)));
    }
    memcpy(codes, packed, n * sizeof *codes);
    return sum_int((vi)sum);
}

/* Every second dword of a and b, from `odd` on. */
ALWAYS_INLINE __m256i every_second(vi a, vi b, bool odd) {
    vf v = odd ? _mm256_shuffle_ps((vf)a, (vf)b, 0xdd) : _mm256_shuffle_ps((vf)a, (vf)b, 0x88);
    return _mm256_permute4x64_epi64((__m256i)v, 0xd8);
}

/* A block's codes of activations:
 *     8 bits    natural: dword g has inputs 4g .. 4g+3
 *     16 bits   | 0 2 4 6 ... 30 | 1 3 5 7 ... 31 |: dword g has inputs 4g and 4g+2, dword 8+g has
 *               4g+1 and 4g+3: what (v & 0x00ff) and (v >> 8) leave of a vector of bytes */
ALWAYS_INLINE void store_act_codes(void *codes, size_t at, int bits, const vi c[ACT_BLOCK / 8]) {
    if (bits == 8) {
        __m256i v = _mm256_packs_epi16(_mm256_packs_epi32((__m256i)c[0], (__m256i)c[1]),
                                       _mm256_packs_epi32((__m256i)c[2], (__m256i)c[3]));
        v = _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256((__m256i *)((int8_t *)codes + at), v);
        return;
    }
    UNROLL_FOR(odd, 2) {
        __m256i v =
            _mm256_packs_epi32(every_second(c[0], c[1], odd), every_second(c[2], c[3], odd));
        _mm256_storeu_si256((__m256i *)((int16_t *)codes + at) + odd,
                            _mm256_permute4x64_epi64(v, 0xd8));
    }
}

/* Eight E4M3: s eeee mmm put where f16 has its sign, the lower four bits of its exponent and the
 * upper three of its mantissa is the number times 2^-8, subnormals as well. 127 is NaN. */
#define HAVE_E4M3
ALWAYS_INLINE vf e4m3_floats(const uint8_t *p, size_t n) {
    const __m128i magnitude = _mm_set1_epi16(127 << 7), top = _mm_set1_epi16((short)0x8000);
    uint64_t bytes = 0;
    memcpy(&bytes, p, n < LANES ? n : LANES);
    __m128i v = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_cvtsi64_si128((long long)bytes)), 7);
    __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(v, magnitude), magnitude);
    v = _mm_or_si128(_mm_and_si128(v, _mm_or_si128(magnitude, top)), _mm_andnot_si128(top, nan));
    return _mm256_cvtph_ps(v) * splat(256);
}

#endif
