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
 *              bits w bits of that byte: four dims at a time are read, masked, or-ed and written;
 *              the codes are in 32-bit lanes already.
 *
 * Vectors take care of every finite row in every format. A row that holds NaN or Inf, or a value
 * that its scalar type rounds to Inf, goes to tile_encode_row as a whole: it is rare and its rules
 * are long (quant/affine.c).
 */
#include "backend/cpu/encode.h"
#include "backend/cpu/neon/vector.h"

enum { GROUP_MAX = 128 };

/* ---- scalar types ---------------------------------------------------------------------------- */

/* Four finite values as 16-bit floats, nearest even. */
ALWAYS_INLINE uint16x4_t to_half(enum scalar_type t, float32x4_t x) {
    if (t == SCALAR_F16)
        return vreinterpret_u16_f16(vcvt_f16_f32(x));
    uint32x4_t u = vreinterpretq_u32_f32(x);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    return vshrn_n_u32(vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
}

ALWAYS_INLINE float32x4_t round_to(enum scalar_type t, float32x4_t x) {
    if (t == SCALAR_F32)
        return x;
    uint16x4_t h = to_half(t, x);
    return t == SCALAR_F16 ? f16_to_f32x4(h) : bf16_to_f32x4(h);
}

/* Whether every value of the row, rounded to t, is finite: the smallest magnitude that is not,
 * as bits, per type. */
static bool row_is_finite(enum scalar_type t, const float *x, uint32_t n) {
    uint32x4_t max = vdupq_n_u32(0);
    for (uint32_t i = 0; i < n; i += 4)
        max = vmaxq_u32(max, magnitude_bits(vld1q_f32(x + i)));
    return vmaxvq_u32(max) < ENCODE_LIMIT[t];
}

/* ---- affine ---------------------------------------------------------------------------------- */

/* affine_quantize of one finite group: codes in 32-bit lanes [group/4], step and edge unrounded. */
ALWAYS_INLINE void quantize_group(const float *x, uint32_t group, unsigned bits, enum scalar_type t,
                                  int32x4_t *codes, float *scale, float *bias) {
    float32x4_t w[GROUP_MAX / 4], lo = vdupq_n_f32(INFINITY), hi = vdupq_n_f32(-INFINITY);
    for (uint32_t i = 0; i < group / 4; i++) {
        w[i] = round_to(affine_input(t), vld1q_f32(x + 4 * i));
        lo = vminq_f32(lo, w[i]);
        hi = vmaxq_f32(hi, w[i]);
    }
    float min = vminvq_f32(lo), max = vmaxvq_f32(hi), top = (float)((1u << bits) - 1);
    float step = (max - min) / top;
    bool negative_edge = -min > fabsf(max);
    float s = step > 1e-7f ? step : 1e-7f, b = 0;
    s = negative_edge ? s : -s;
    float edge = negative_edge ? min : max, rounded = vrndns_f32(edge / s);
    if (rounded != 0) {
        s = edge / rounded;
        b = edge;
    }
    for (uint32_t i = 0; i < group / 4; i++) {
        float32x4_t q = vdivq_f32(vsubq_f32(w[i], vdupq_n_f32(b)), vdupq_n_f32(s));
        /* a NaN (0 / 0 in an overflowed group) is 0 */
        int32x4_t code = vmaxq_s32(vcvtnq_s32_f32(q), vdupq_n_s32(0));
        codes[i] = vminq_s32(code, vdupq_n_s32((1 << bits) - 1));
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
                  const int32x4_t *codes) {
    const uint32x4_t mask = vdupq_n_u32((1u << bits) - 1);
    const int32x4_t down = vdupq_n_s32(-(int)shift), up = vdupq_n_s32((int)bit);
    const uint32x4_t hole = vshlq_u32(mask, up);
    for (uint32_t i = 0; i < n / 4; i++) {
        uint8_t *word = at + 16 * (size_t)i;
        uint32x4_t part = vandq_u32(vshlq_u32(vreinterpretq_u32_s32(codes[i]), down), mask);
        uint32x4_t rest = vbicq_u32(vreinterpretq_u32_u8(vld1q_u8(word)), hole);
        vst1q_u8(word, vreinterpretq_u8_u32(vorrq_u32(rest, vshlq_u32(part, up))));
    }
}

/* Codes in 32-bit lanes as bytes. */
static void narrow(const int32x4_t *codes, uint32_t n, uint8_t *bytes) {
    for (uint32_t i = 0; i < n / 8; i++) {
        int16x8_t c = vcombine_s16(vmovn_s32(codes[2 * i]), vmovn_s32(codes[2 * i + 1]));
        vst1_u8(bytes + 8 * i, vmovn_u16(vreinterpretq_u16_s16(c)));
    }
}

static void put_codes(const struct tile_layout *l, uint8_t *tile, uint32_t token, uint32_t dim,
                      uint32_t n, const int32x4_t *codes) {
    uint8_t bytes[GROUP_MAX];
    if (l->kind == TILE_K)
        narrow(codes, n, bytes);
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
        int32x4_t codes[GROUP_MAX / 4];
        float scale, bias;
        quantize_group(x + g * group, group, l->format.bits, t, codes, &scale, &bias);
        put_codes(l, tile, token, g * group, group, codes);
        size_t at = (size_t)g * TILE_TOKENS + token;
        scalar_store(t, tile + l->scale_offset, at, scale);
        scalar_store(t, tile + l->bias_offset, at, bias);
    }
}

/* ---- exact ----------------------------------------------------------------------------------- */

ALWAYS_INLINE void encode_half(const struct tile_layout *l, uint8_t *tile, uint32_t token,
                               const float *x, enum scalar_type t) {
    for (uint32_t d = 0; d < l->head_dim; d += 4) {
        uint16_t half[4];
        vst1_u16(half, to_half(t, vld1q_f32(x + d)));
        encode_put_four(l, tile, token, d, half, sizeof half[0]);
    }
}

DEFINE_ENCODE_ROW(neon_encode_row)
