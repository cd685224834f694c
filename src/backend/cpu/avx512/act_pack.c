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

/* s16 codes of a block, natural order. */
ALWAYS_INLINE void store_codes8(uint8_t *to, __m512i codes) {
    codes = _mm512_add_epi16(codes, _mm512_set1_epi16(128));
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi16_epi8(codes));
}

ALWAYS_INLINE void store_codes16(uint8_t *to, __m512i codes) {
    codes = _mm512_add_epi16(codes, _mm512_set1_epi16(16384));
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi16_epi8(_mm512_srli_epi16(codes, 8)));
    _mm256_storeu_si256((__m256i *)to + 1, _mm512_cvtepi16_epi8(codes));
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
        uint8_t *codes = (uint8_t *)a->codes + at * (size_t)planes;
        if (planes == 1)
            store_codes8(codes, c);
        else
            store_codes16(codes, c);
        struct halves_sums sum = sum_block(codes, planes);
        a->scale[at / BLOCK] = r.scale;
        a->sum[at / BLOCK] = r.scale * (float)(sum.low + sum.high);
        a->sum16[at / HALF] = r.scale * (float)sum.low;
        a->sum16[at / HALF + 1] = r.scale * (float)sum.high;
    }
}
