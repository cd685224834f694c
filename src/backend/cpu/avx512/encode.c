/* SPDX-License-Identifier: Apache-2.0 */
/* encode.c: tile_encode_row with vectors, byte for byte the same (quant/tile.c and quant/affine.c
 * are the definition).
 *
 *     row -> scalar type -> per group: min, max -> step, edge -> codes in 32-bit lanes -> tile
 *
 * Where the codes of one token go:
 *     K tile   the token is a lane: its 4-byte column. In a plane of w bits the 8/w rows that share
 *              a 32-bit word are all dims of this token: words are folded in registers, 64 dims at
 *              a time, and stored whole.
 *     V tile   the token is one byte of every lane's 32-bit word (byte token % 4), in a plane of w
 *              bits w bits of that byte: 16 dims at a time are read, replaced and written.
 *
 * Vectors take care of every finite row in every format. A row that holds NaN or Inf, or a value
 * that its scalar type rounds to Inf, goes to tile_encode_row as a whole: it is rare and its rules
 * are long (quant/affine.c).
 */
#include <math.h>

#include "backend/cpu/avx512/vector.h"
#include "backend/cpu/encode.h"

enum { GROUP_MAX = 128 };

/* ---- scalar types ---------------------------------------------------------------------------- */

/* bfloat16 bits of finite x, nearest even, in 32-bit lanes. */
ALWAYS_INLINE __m512i bf16_bits(__m512 x) {
    __m512i u = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    u = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_srli_epi32(u, 16);
}

/* 16 values as 16-bit floats. */
ALWAYS_INLINE __m256i to_half(enum scalar_type t, __m512 x) {
    if (t == SCALAR_F16)
        return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    return _mm512_cvtepi32_epi16(bf16_bits(x));
}

ALWAYS_INLINE __m512 round_to(enum scalar_type t, __m512 x) {
    if (t == SCALAR_F16)
        return _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    if (t == SCALAR_BF16)
        return _mm512_castsi512_ps(_mm512_slli_epi32(bf16_bits(x), 16));
    return x;
}

ALWAYS_INLINE void store_scalar(enum scalar_type t, uint8_t *array, size_t i, float x) {
    if (t == SCALAR_F16) {
        __m128i h = _mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT);
        memcpy(array + 2 * i, &h, 2);
    } else {
        scalar_store(t, array, i, x);
    }
}

/* Whether every value of the row, rounded to t, is finite: the smallest magnitude that is not, as
 * bits, per type. */
static bool row_is_finite(enum scalar_type t, const float *x, uint32_t n) {
    __m512i max = _mm512_setzero_si512();
    for (uint32_t i = 0; i < n; i += 16)
        max =
            _mm512_max_epi32(max, magnitude_bits(_mm512_maskz_loadu_ps(first_lanes(n - i), x + i)));
    return _mm512_cmpge_epi32_mask(max, _mm512_set1_epi32((int)ENCODE_LIMIT[t])) == 0;
}

/* ---- affine ---------------------------------------------------------------------------------- */

/* affine_quantize of one finite group: codes in 32-bit lanes [group/16], step and edge unrounded.
 * */
ALWAYS_INLINE void quantize_group(const float *x, uint32_t group, unsigned bits, enum scalar_type t,
                                  __m512i *codes, float *scale, float *bias) {
    __m512 w[GROUP_MAX / 16];
    __m512 lo = _mm512_set1_ps(INFINITY), hi = _mm512_set1_ps(-INFINITY);
    for (uint32_t i = 0; i < group / 16; i++) {
        w[i] = round_to(affine_input(t), _mm512_loadu_ps(x + 16 * i));
        lo = _mm512_min_ps(w[i], lo);
        hi = _mm512_max_ps(w[i], hi);
    }
    float min = _mm512_reduce_min_ps(lo), max = _mm512_reduce_max_ps(hi);
    float top = (float)((1u << bits) - 1), step = (max - min) / top;
    bool negative_edge = -min > fabsf(max);
    float s = step > 1e-7f ? step : 1e-7f, b = 0;
    s = negative_edge ? s : -s;
    float edge = negative_edge ? min : max;
    __m128 q0 = _mm_set_ss(edge / s);
    float rounded =
        _mm_cvtss_f32(_mm_round_ss(q0, q0, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    if (rounded != 0) {
        s = edge / rounded;
        b = edge;
    }
    __m512 vs = _mm512_set1_ps(s), vb = _mm512_set1_ps(b), vtop = _mm512_set1_ps(top);
    for (uint32_t i = 0; i < group / 16; i++) {
        __m512 q = _mm512_div_ps(_mm512_sub_ps(w[i], vb), vs);
        q = _mm512_max_ps(q, _mm512_setzero_ps()); /* a NaN (0 / 0 in an overflowed group) is 0 */
        codes[i] = _mm512_cvtps_epi32(_mm512_min_ps(q, vtop));
    }
    *scale = s;
    *bias = b;
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

/* K: n codes, a byte each, of one token. column: the plane's first byte of this token. */
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

static void put_k_planes(const struct tile_layout *l, uint8_t *tile, uint32_t token,
                         const uint8_t *codes) {
    for (unsigned i = 0; i < l->plane_count; i++) {
        uint8_t *column = tile + l->plane_offset[i] + 4 * (size_t)token;
        switch (l->plane_bits[i]) {
        case 8:
            put_k(column, 8, 0, l->head_dim, codes);
            break;
        case 4:
            put_k(column, 4, l->plane_shift[i], l->head_dim, codes);
            break;
        case 2:
            put_k(column, 2, l->plane_shift[i], l->head_dim, codes);
            break;
        default:
            put_k(column, 1, l->plane_shift[i], l->head_dim, codes);
            break;
        }
    }
}

/* V: codes of n dims of one token from dim on. */
static void put_v_planes(const struct tile_layout *l, uint8_t *tile, uint32_t token, uint32_t dim,
                         uint32_t n, const __m512i *codes) {
    for (unsigned p = 0; p < l->plane_count; p++) {
        unsigned bits = l->plane_bits[p];
        uint32_t row = token / 4, rows = 8 / bits;
        uint8_t *at = tile + l->plane_offset[p] + (size_t)(row / rows) * 4 * l->lanes + 4 * dim;
        const __m128i down = _mm_cvtsi32_si128(l->plane_shift[p]);
        const __m128i up = _mm_cvtsi32_si128((int)(8 * (token % 4) + bits * (row % rows)));
        const __m512i hole = _mm512_sll_epi32(_mm512_set1_epi32((1 << bits) - 1), up);
        for (uint32_t i = 0; i < n / 16; i++) {
            __m512i part = _mm512_sll_epi32(_mm512_srl_epi32(codes[i], down), up);
            __m512i old = _mm512_loadu_si512(at + 64 * (size_t)i);
            /* hole ? part : old */
            _mm512_storeu_si512(at + 64 * (size_t)i,
                                _mm512_ternarylogic_epi32(hole, part, old, 0xca));
        }
    }
}

ALWAYS_INLINE void encode_affine(const struct tile_layout *l, uint8_t *tile, uint32_t token,
                                 const float *x, enum scalar_type t) {
    uint32_t group = l->format.group;
    uint8_t bytes[HEAD_DIM_MAX];
    for (uint32_t g = 0; g < l->groups; g++) {
        __m512i codes[GROUP_MAX / 16];
        float scale, bias;
        quantize_group(x + g * group, group, l->format.bits, t, codes, &scale, &bias);
        for (uint32_t i = 0; l->kind == TILE_K && i < group / 16; i++)
            _mm_storeu_si128((__m128i *)(bytes + g * group + 16 * i),
                             _mm512_cvtepi32_epi8(codes[i]));
        if (l->kind == TILE_V)
            put_v_planes(l, tile, token, g * group, group, codes);
        size_t at = (size_t)g * TILE_TOKENS + token;
        store_scalar(t, tile + l->scale_offset, at, scale);
        store_scalar(t, tile + l->bias_offset, at, bias);
    }
    if (l->kind == TILE_K)
        put_k_planes(l, tile, token, bytes);
}

/* ---- exact ----------------------------------------------------------------------------------- */

/* K: four dims stand together. V: the four tokens of a dim do, of which one is written. */
ALWAYS_INLINE void encode_half(const struct tile_layout *l, uint8_t *tile, uint32_t token,
                               const float *x, enum scalar_type t) {
    uint16_t half[HEAD_DIM_MAX];
    for (uint32_t d = 0; d < l->head_dim; d += 16)
        _mm256_storeu_si256((__m256i *)(half + d),
                            to_half(t, _mm512_maskz_loadu_ps(first_lanes(l->head_dim - d), x + d)));
    if (l->kind == TILE_K) {
        for (size_t d = 0; d < l->head_dim; d += 4)
            memcpy(tile + (d * TILE_TOKENS + 4 * (size_t)token) * sizeof *half, half + d,
                   4 * sizeof *half);
        return;
    }
    uint16_t *row = (uint16_t *)tile + (size_t)(token / 4) * 4 * l->lanes;
    for (uint32_t d = 0; d < l->head_dim; d += 8) {
        __mmask32 lanes = (l->head_dim - d < 8 ? 0x1111u : 0x11111111u) << token % 4;
        __m512i four = _mm512_cvtepu16_epi64(_mm_loadu_si128((const __m128i *)(half + d)));
        four = _mm512_sll_epi64(four, _mm_cvtsi32_si128((int)(16 * (token % 4))));
        _mm512_mask_storeu_epi16(row + 4 * (size_t)d, lanes, four);
    }
}

DEFINE_ENCODE_ROW(avx512_encode_row)
