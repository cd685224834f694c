/* SPDX-License-Identifier: Apache-2.0 */
/* act_pack.c: rounds activations for the integer products, a block of 32 of a row at a time.
 *
 * Order of codes inside a block:
 *     8 bits    natural: dword g has inputs 4g .. 4g+3
 *     16 bits   | 0 2 4 6 ... 30 | 1 3 5 7 ... 31 |: dword g has inputs 4g and 4g+2, dword 8+g has
 *               4g+1 and 4g+3: what (v & 0x00ff) and (v >> 8) leave of a vector of bytes
 */
#include "backend/cpu/avx2/product.h"

enum { HALF = BLOCK / 2 };

/* Bits of max|x| over 32 values: as integers, so that Inf and NaN come out on top. */
ALWAYS_INLINE uint32_t max_abs_bits(const __m256 x[4]) {
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i v[4];
    UNROLL_FOR(i, 4) {
        v[i] = _mm256_and_si256(_mm256_castps_si256(x[i]), mask);
    }
    v[0] = _mm256_max_epi32(_mm256_max_epi32(v[0], v[1]), _mm256_max_epi32(v[2], v[3]));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v[0]), _mm256_extracti128_si256(v[0], 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

ALWAYS_INLINE int32_t sum_codes(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

ALWAYS_INLINE void store_codes8(int8_t *to, const __m256i c[4]) {
    __m256i v = _mm256_packs_epi16(_mm256_packs_epi32(c[0], c[1]), _mm256_packs_epi32(c[2], c[3]));
    v = _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)to, v);
}

/* Every second dword of a and b, from `odd` on. */
ALWAYS_INLINE __m256i every_second(__m256i a, __m256i b, bool odd) {
    __m256 fa = _mm256_castsi256_ps(a), fb = _mm256_castsi256_ps(b);
    __m256 v = odd ? _mm256_shuffle_ps(fa, fb, 0xdd) : _mm256_shuffle_ps(fa, fb, 0x88);
    return _mm256_permute4x64_epi64(_mm256_castps_si256(v), 0xd8);
}

ALWAYS_INLINE void store_codes16(int16_t *to, const __m256i c[4]) {
    UNROLL_FOR(odd, 2) {
        __m256i v =
            _mm256_packs_epi32(every_second(c[0], c[1], odd), every_second(c[2], c[3], odd));
        _mm256_storeu_si256((__m256i *)to + odd, _mm256_permute4x64_epi64(v, 0xd8));
    }
}

/* x - scale * code, in one rounding. */
ALWAYS_INLINE void store_rest(float *to, const __m256 x[4], const __m256i c[4], float scale) {
    for (int i = 0; i < 4; i++)
        _mm256_storeu_ps(to + 8 * i,
                         _mm256_fnmadd_ps(_mm256_set1_ps(scale), _mm256_cvtepi32_ps(c[i]), x[i]));
}

/* A block that holds an Inf or a NaN gets codes 0 and scale NaN: its outputs become NaN instead of
 * something plausible. */
void avx2_act_pack(struct act_rows *a, uint32_t row) {
    for (uint32_t b = 0; b < a->k / BLOCK; b++) {
        size_t at = (size_t)row * a->k + (size_t)b * BLOCK;
        __m256 x[4];
        UNROLL_FOR(i, 4) {
            x[i] = _mm256_loadu_ps(a->x + at + 8 * i);
        }
        uint32_t bits = max_abs_bits(x);
        float max = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int)bits)));
        struct rounding rounding = rounding_of(max, a->bits == 8 ? ACT8_MAX : ACT16_MAX);
        float scale = rounding.scale;
        __m256 per_unit = _mm256_set1_ps(rounding.per_unit);
        __m256i c[4];
        UNROLL_FOR(i, 4) {
            c[i] = rounding.per_unit > 0 ? _mm256_cvtps_epi32(_mm256_mul_ps(x[i], per_unit))
                                         : _mm256_setzero_si256();
        }
        if (a->rest)
            store_rest(a->rest + at, x, c, scale);
        if (a->bits == 8)
            store_codes8((int8_t *)a->codes + at, c);
        else
            store_codes16((int16_t *)a->codes + at, c);
        int32_t low = sum_codes(_mm256_add_epi32(c[0], c[1]));
        int32_t high = sum_codes(_mm256_add_epi32(c[2], c[3]));
        a->scale[at / BLOCK] = scale;
        a->sum[at / BLOCK] = scale * (float)(low + high);
        a->sum16[at / HALF] = scale * (float)low;
        a->sum16[at / HALF + 1] = scale * (float)high;
    }
}
