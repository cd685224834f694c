/* SPDX-License-Identifier: Apache-2.0 */
/* act_pack.c: rounding activations for products with quantized weights, AVX-512.
 *
 * product_codes.c multiplies unsigned bytes of activations by signed bytes of weights, so a block
 * of 32 codes is stored as
 *
 *     8 bits    | code + 128, 32 bytes |
 *     16 bits   | high bytes of code + 16384, 32 of them | low bytes, 32 of them |
 *
 * in natural order. The offsets are taken back there, with the sums of the weights' codes.
 *
 * A block that holds an Inf or a NaN gets codes 0 and scale NaN: its outputs become NaN instead of
 * something plausible.
 */
#include <math.h>

#include "backend/cpu/avx512/product.h"

enum { ACT8_MAX = 127 };

/* Sums of the lower and the upper 16 of 32 bytes. */
struct halves_sums {
    int32_t low, high;
};

ALWAYS_INLINE struct halves_sums sum_bytes(__m256i bytes) {
    __m256i s = _mm256_sad_epu8(bytes, _mm256_setzero_si256());
    s = _mm256_add_epi64(s, _mm256_shuffle_epi32(s, 0x4e));
    return (struct halves_sums){_mm_cvtsi128_si32(_mm256_castsi256_si128(s)),
                                _mm_cvtsi128_si32(_mm256_extracti128_si256(s, 1))};
}

/* The lowest byte of 32 dwords. */
ALWAYS_INLINE __m256i low_bytes(__m512i c0, __m512i c1) {
    return _mm256_set_m128i(_mm512_cvtepi32_epi8(c1), _mm512_cvtepi32_epi8(c0));
}

ALWAYS_INLINE struct halves_sums store_codes8(uint8_t *to, __m512i c0, __m512i c1) {
    const __m512i offset = _mm512_set1_epi32(128);
    __m256i bytes = low_bytes(_mm512_add_epi32(c0, offset), _mm512_add_epi32(c1, offset));
    _mm256_storeu_si256((__m256i *)to, bytes);
    struct halves_sums s = sum_bytes(bytes);
    return (struct halves_sums){s.low - HALF * 128, s.high - HALF * 128};
}

ALWAYS_INLINE struct halves_sums store_codes16(uint8_t *to, __m512i c0, __m512i c1) {
    const __m512i offset = _mm512_set1_epi32(16384);
    c0 = _mm512_add_epi32(c0, offset);
    c1 = _mm512_add_epi32(c1, offset);
    __m256i high = low_bytes(_mm512_srli_epi32(c0, 8), _mm512_srli_epi32(c1, 8));
    __m256i low = low_bytes(c0, c1);
    _mm256_storeu_si256((__m256i *)to, high);
    _mm256_storeu_si256((__m256i *)to + 1, low);
    struct halves_sums h = sum_bytes(high), l = sum_bytes(low);
    return (struct halves_sums){256 * h.low + l.low - HALF * 16384,
                                256 * h.high + l.high - HALF * 16384};
}

void avx512_act_pack(struct act_rows *a, uint32_t row) {
    float code_max = a->bits == 8 ? (float)ACT8_MAX : (float)ACT16_MAX;
    for (uint32_t b = 0; b < a->k / BLOCK; b++) {
        size_t at = (size_t)row * a->k + (size_t)b * BLOCK;
        __m512 x0 = _mm512_loadu_ps(a->x + at), x1 = _mm512_loadu_ps(a->x + at + 16);
        float max = max_magnitude(_mm512_max_epi32(magnitude_bits(x0), magnitude_bits(x1)));
        bool used = max >= ACT_TINY && max < INFINITY, tiny = max < ACT_TINY;
        float scale = used ? max / code_max : tiny ? 0.0f : NAN;
        __mmask16 lanes = used ? 0xffff : 0;
        __m512 per_unit = _mm512_set1_ps(code_max / max);
        __m512i c0 = _mm512_maskz_cvtps_epi32(lanes, _mm512_mul_ps(x0, per_unit));
        __m512i c1 = _mm512_maskz_cvtps_epi32(lanes, _mm512_mul_ps(x1, per_unit));
        if (a->rest) {
            __m512 s = _mm512_set1_ps(scale);
            _mm512_storeu_ps(a->rest + at, _mm512_fnmadd_ps(s, _mm512_cvtepi32_ps(c0), x0));
            _mm512_storeu_ps(a->rest + at + 16, _mm512_fnmadd_ps(s, _mm512_cvtepi32_ps(c1), x1));
        }
        struct halves_sums sum = a->bits == 8 ? store_codes8((uint8_t *)a->codes + at, c0, c1)
                                              : store_codes16((uint8_t *)a->codes + 2 * at, c0, c1);
        a->scale[at / BLOCK] = scale;
        a->sum[at / BLOCK] = scale * (float)(sum.low + sum.high);
        a->sum16[at / HALF] = scale * (float)sum.low;
        a->sum16[at / HALF + 1] = scale * (float)sum.high;
    }
}
