/* SPDX-License-Identifier: Apache-2.0 */
/* encode.c: tile_encode_row with vectors, byte for byte the same (quant/tile.c and quant/affine.c
 * are the definition).
 *
 *     row -> scalar type -> per group: min, max -> step, edge -> codes in 32-bit lanes -> tile
 *
 * Where the codes of one token go:
 *     K tile   the token is a lane: its 4-byte column. In a plane of w bits the 8/w rows that share
 *              a 32-bit word are all dims of this token, so whole words are written, nothing read.
 *     V tile   the token is one byte of every lane's 32-bit word (byte token % 4), in a plane of w
 *              bits w bits of that byte: eight dims at a time are read, masked, or-ed and written;
 *              the codes are in 32-bit lanes already.
 *
 * Vectors take care of every finite row in every format. A row that holds NaN or Inf, or a value
 * that its scalar type rounds to Inf, goes to tile_encode_row as a whole: it is rare and its rules
 * are long (quant/affine.c).
 */
#include <math.h>

#include "backend/cpu/avx2/vector.h"
#include "backend/cpu/encode.h"

enum { GROUP_MAX = 128 };

/* ---- scalar types ---------------------------------------------------------------------------- */

/* bfloat16 bits of finite x, nearest even, in 32-bit lanes. */
ALWAYS_INLINE __m256i bf16_bits(__m256 x) {
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    u = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    return _mm256_srli_epi32(u, 16);
}

/* Eight values as 16-bit floats. */
ALWAYS_INLINE __m128i to_half(enum scalar_type t, __m256 x) {
    if (t == SCALAR_F16)
        return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    __m256i u = bf16_bits(x);
    u = _mm256_permute4x64_epi64(_mm256_packus_epi32(u, u), 0xd8);
    return _mm256_castsi256_si128(u);
}

ALWAYS_INLINE __m256 round_to(enum scalar_type t, __m256 x) {
    if (t == SCALAR_F16)
        return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    if (t == SCALAR_BF16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(bf16_bits(x), 16));
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

/* Whether every value of the row, rounded to t, is finite: the smallest magnitude that is not,
 * as bits, per type. */
static bool row_is_finite(enum scalar_type t, const float *x, uint32_t n) {
    __m256i max = _mm256_setzero_si256();
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        max = _mm256_max_epi32(max, magnitude_bits(_mm256_loadu_ps(x + i)));
    if (i < n)
        max = _mm256_max_epi32(max, magnitude_bits(_mm256_zextps128_ps256(_mm_loadu_ps(x + i))));
    __m256i over = _mm256_cmpgt_epi32(max, _mm256_set1_epi32((int)ENCODE_LIMIT[t] - 1));
    return _mm256_testz_si256(over, over);
}

/* ---- affine ---------------------------------------------------------------------------------- */

ALWAYS_INLINE float lanes_min(__m256 v) {
    __m128 m = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_min_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_min_ss(m, _mm_movehdup_ps(m)));
}

ALWAYS_INLINE float lanes_max(__m256 v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

/* affine_quantize of one finite group: codes in 32-bit lanes [group/8], step and edge unrounded. */
ALWAYS_INLINE void quantize_group(const float *x, uint32_t group, unsigned bits, enum scalar_type t,
                                  __m256i *codes, float *scale, float *bias) {
    __m256 w[GROUP_MAX / 8];
    __m256 lo = _mm256_set1_ps(INFINITY), hi = _mm256_set1_ps(-INFINITY);
    for (uint32_t i = 0; i < group / 8; i++) {
        w[i] = round_to(affine_input(t), _mm256_loadu_ps(x + 8 * i));
        lo = _mm256_min_ps(w[i], lo);
        hi = _mm256_max_ps(w[i], hi);
    }
    float min = lanes_min(lo), max = lanes_max(hi), top = (float)((1u << bits) - 1);
    float step = (max - min) / top;
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
    __m256 vs = _mm256_set1_ps(s), vb = _mm256_set1_ps(b), vtop = _mm256_set1_ps(top);
    for (uint32_t i = 0; i < group / 8; i++) {
        __m256 q = _mm256_div_ps(_mm256_sub_ps(w[i], vb), vs);
        q = _mm256_max_ps(q, _mm256_setzero_ps()); /* a NaN (0 / 0 in an overflowed group) is 0 */
        codes[i] = _mm256_cvtps_epi32(_mm256_min_ps(q, vtop));
    }
    *scale = s;
    *bias = b;
}

/* K: n codes of one token from dim on. column: the plane's first byte of this token. */
static void put_k(uint8_t *column, unsigned bits, unsigned shift, uint32_t dim, uint32_t n,
                  const uint8_t *codes) {
    const uint32_t mask = ((1u << bits) - 1) * 0x01010101u;
    const uint32_t rows = 8 / bits; /* of four dims, in one word */
    uint8_t *at = column + (size_t)dim / 4 / rows * 4 * TILE_TOKENS;
    for (uint32_t i = 0; i < n; i += 4 * rows) {
        uint32_t word = 0;
        for (uint32_t j = 0; j < rows; j++) {
            uint32_t four;
            memcpy(&four, codes + i + 4 * j, sizeof four);
            word |= (four >> shift & mask) << (bits * j);
        }
        memcpy(at, &word, sizeof word);
        at += 4 * TILE_TOKENS;
    }
}

/* V: codes of n dims of one token. at: the 32-bit word of the first dim in the token's byte row;
 * bit: where the code's part stands in such a word. */
static void put_v(uint8_t *at, unsigned bits, unsigned shift, unsigned bit, uint32_t n,
                  const __m256i *codes) {
    const __m256i mask = _mm256_set1_epi32((int)((1u << bits) - 1));
    const __m128i down = _mm_cvtsi32_si128((int)shift), up = _mm_cvtsi32_si128((int)bit);
    const __m256i hole = _mm256_sll_epi32(mask, up);
    for (uint32_t i = 0; i < n / 8; i++) {
        __m256i *word = (__m256i *)(at + 32 * (size_t)i);
        __m256i part = _mm256_and_si256(_mm256_srl_epi32(codes[i], down), mask);
        __m256i rest = _mm256_andnot_si256(hole, _mm256_loadu_si256(word));
        _mm256_storeu_si256(word, _mm256_or_si256(rest, _mm256_sll_epi32(part, up)));
    }
}

static void put_codes(const struct tile_layout *l, uint8_t *tile, uint32_t token, uint32_t dim,
                      uint32_t n, const __m256i *codes) {
    uint8_t bytes[GROUP_MAX];
    if (l->kind == TILE_K) {
        for (uint32_t i = 0; i < n / 8; i++) {
            __m128i c = _mm_packus_epi32(_mm256_castsi256_si128(codes[i]),
                                         _mm256_extracti128_si256(codes[i], 1));
            _mm_storel_epi64((__m128i *)(bytes + 8 * i), _mm_packus_epi16(c, c));
        }
    }
    for (unsigned i = 0; i < l->plane_count; i++) {
        uint8_t *plane = tile + l->plane_offset[i];
        unsigned bits = l->plane_bits[i];
        if (l->kind == TILE_K) {
            put_k(plane + 4 * (size_t)token, bits, l->plane_shift[i], dim, n, bytes);
        } else {
            uint32_t row = token / 4, rows = 8 / bits;
            uint8_t *at = plane + (size_t)(row / rows) * 4 * l->lanes + 4 * (size_t)dim;
            put_v(at, bits, l->plane_shift[i], 8 * (token % 4) + bits * (row % rows), n, codes);
        }
    }
}

ALWAYS_INLINE void encode_affine(const struct tile_layout *l, uint8_t *tile, uint32_t token,
                                 const float *x, enum scalar_type t) {
    uint32_t group = l->format.group;
    for (uint32_t g = 0; g < l->groups; g++) {
        __m256i codes[GROUP_MAX / 8];
        float scale, bias;
        quantize_group(x + g * group, group, l->format.bits, t, codes, &scale, &bias);
        put_codes(l, tile, token, g * group, group, codes);
        size_t at = (size_t)g * TILE_TOKENS + token;
        store_scalar(t, tile + l->scale_offset, at, scale);
        store_scalar(t, tile + l->bias_offset, at, bias);
    }
}

/* ---- exact ----------------------------------------------------------------------------------- */

ALWAYS_INLINE void encode_half(const struct tile_layout *l, uint8_t *tile, uint32_t token,
                               const float *x, enum scalar_type t) {
    for (uint32_t d = 0; d < l->head_dim; d += 4) {
        uint16_t half[8];
        __m128i h = to_half(t, _mm256_zextps128_ps256(_mm_loadu_ps(x + d)));
        _mm_storeu_si128((__m128i *)half, h);
        encode_put_four(l, tile, token, d, half, sizeof half[0]);
    }
}

DEFINE_ENCODE_ROW(avx2_encode_row)
