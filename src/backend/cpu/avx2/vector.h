/* SPDX-License-Identifier: Apache-2.0 */
/* vector.h: the few vector idioms that several kernels of this folder share: arrays of a scalar
 * type as floats, and sums and maxima across the lanes of one register. Static inline, no state.
 */
#ifndef KVASIR_CPU_AVX2_VECTOR_H
#define KVASIR_CPU_AVX2_VECTOR_H

#include <immintrin.h>
#include <string.h>

#include "backend/cpu/avx2/avx2.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Eight f16 or bf16. */
ALWAYS_INLINE __m256 widen8(enum scalar_type t, __m128i h) {
    if (t == SCALAR_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* Elements [i, i + 8) of an array of scalar type t. */
ALWAYS_INLINE __m256 load8(enum scalar_type t, const void *p, size_t i) {
    if (t == SCALAR_F32)
        return _mm256_loadu_ps((const float *)p + i);
    return widen8(t, _mm_loadu_si128((const __m128i *)((const uint16_t *)p + i)));
}

/* Sum of the lanes, always as ((0+4)+(2+6)) + ((1+5)+(3+7)). */
ALWAYS_INLINE float sum_lanes(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* The largest of eight magnitudes given as bits. Compared as integers floats >= 0 keep their
 * order and NaN is the largest, so that a NaN is never lost. */
ALWAYS_INLINE float max_magnitude(__m256i bits) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(m));
}

ALWAYS_INLINE __m256i magnitude_bits(__m256 v) {
    return _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
}

/* 16 codes from x * factor, rounded to nearest even, in the order 0 2 1 3 inside each run of
 * four. */
ALWAYS_INLINE __m256i round_codes(__m256 x0, __m256 x1, __m256 factor) {
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0,
                                           1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    __m256i c0 = _mm256_cvtps_epi32(_mm256_mul_ps(x0, factor));
    __m256i c1 = _mm256_cvtps_epi32(_mm256_mul_ps(x1, factor));
    __m256i c = _mm256_permute4x64_epi64(_mm256_packs_epi32(c0, c1), 0xd8);
    return _mm256_shuffle_epi8(c, order);
}

#endif
