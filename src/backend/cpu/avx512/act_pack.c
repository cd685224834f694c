/* SPDX-License-Identifier: Apache-2.0 */
/* act_pack.c: rounding activations for products with quantized weights, AVX-512.
 *
 * product_codes.c multiplies signed bytes of activations by unsigned bytes of weights, so a block
 * of 32 codes is stored, in natural order, as
 *
 *     8 bits    | code, 32 bytes |
 *     16 bits   | high, 32 of them | low, 32 of them |      code = 256 high + low, both s8
 *
 * The weights' offset is taken back there, with the sums of codes.
 *
 * A block that holds an Inf or a NaN gets codes 0 and scale NaN: its outputs become NaN instead of
 * something plausible.
 */
#include <math.h>

#include "backend/cpu/avx512/product.h"

/* s16 codes of a block as 8 bits or 16. */
ALWAYS_INLINE void store_codes(int8_t *to, __m512i codes, int planes) {
    if (planes == 2) { /* a low byte above 127 counts as 256 less, so its high byte is one more */
        __m512i high = _mm512_add_epi16(codes, _mm512_set1_epi16(128));
        high = _mm512_srli_epi16(high, 8);
        _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi16_epi8(high));
        to += BLOCK;
    }
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi16_epi8(codes));
}

/* Sums of the two halves of a block. */
struct halves_sums {
    int32_t low, high;
};

ALWAYS_INLINE struct halves_sums sum_codes(__m512i codes) {
    __m512i s = _mm512_madd_epi16(codes, _mm512_set1_epi16(1));
    s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, _MM_PERM_BADC));
    s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, _MM_PERM_CDAB));
    s = _mm512_add_epi32(s, _mm512_shuffle_i32x4(s, s, 0xb1)); /* lanes of 128: 1 0 3 2 */
    return (struct halves_sums){_mm_cvtsi128_si32(_mm512_castsi512_si128(s)),
                                _mm_cvtsi128_si32(_mm512_extracti32x4_epi32(s, 2))};
}

ALWAYS_INLINE void store_rest(float *to, __m512 x, __m256i codes, float scale) {
    __m512 c = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(codes));
    _mm512_storeu_ps(to, _mm512_fnmadd_ps(_mm512_set1_ps(scale), c, x)); /* one rounding */
}

void avx512_act_pack(struct act_rows *a, uint32_t row) {
    const int planes = a->bits / 8;
    for (uint32_t b = 0; b < a->k / BLOCK; b++) {
        size_t at = (size_t)row * a->k + (size_t)b * BLOCK;
        __m512 x0 = _mm512_loadu_ps(a->x + at), x1 = _mm512_loadu_ps(a->x + at + 16);
        float max = max_magnitude(_mm512_max_epi32(magnitude_bits(x0), magnitude_bits(x1)));
        struct rounding r = rounding_of(max, planes == 1 ? ACT8_MAX : ACT16_MAX);
        __m512i c =
            r.per_unit > 0 ? round_s16(x0, x1, _mm512_set1_ps(r.per_unit)) : _mm512_setzero_si512();
        if (a->rest) {
            store_rest(a->rest + at, x0, _mm512_castsi512_si256(c), r.scale);
            store_rest(a->rest + at + 16, x1, _mm512_extracti64x4_epi64(c, 1), r.scale);
        }
        store_codes((int8_t *)a->codes + at * (size_t)planes, c, planes);
        struct halves_sums sum = sum_codes(c);
        a->codes_sum16[at / HALF] = sum.low;
        a->codes_sum16[at / HALF + 1] = sum.high;
        a->scale[at / BLOCK] = r.scale;
        a->sum[at / BLOCK] = r.scale * (float)(sum.low + sum.high);
        a->sum16[at / HALF] = r.scale * (float)sum.low;
        a->sum16[at / HALF + 1] = r.scale * (float)sum.high;
    }
}
