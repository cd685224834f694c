/* SPDX-License-Identifier: Apache-2.0 */
/* encode.c: tile_encode_row and tile_encode with vectors, byte for byte the same (quant/tile.c,
 * quant/affine.c and quant/range.c are the definition).
 *
 *     row -> scalar type -> per group: min, max -> step, edge -> codes in 32-bit lanes -> tile
 *
 * Where the codes of one token go:
 *     K tile   the token is a lane: its 4-byte column. In a plane of w bits the 8/w rows that share
 *              a 32-bit word are all dims of this token, so whole words are written, nothing read.
 *     V tile   the token is one byte of every lane's 32-bit word (byte token % 4), in a plane of w
 *              bits w bits of that byte: LANES dims at a time are read, masked, or-ed and written;
 *              the codes are in 32-bit lanes already.
 *
 * Vectors take care of every finite row in every format. A row that holds NaN or Inf, or a value
 * that its scalar type rounds to Inf, goes to tile_encode_row as a whole: it is rare and its rules
 * are long (quant/affine.c).
 */
#include "backend/cpu/simd/simd.h"

enum { GROUP_MAX = 128 };
_Static_assert(GROUP_MAX % LANES == 0 && 32 % LANES == 0, "groups are whole vectors");
_Static_assert(HEAD_DIM_MAX % LANES == 0, "a row of halves is written in whole vectors");

/* The smallest magnitude, as bits of float32, that is not finite once it is rounded to a type. */
static const int32_t LIMIT[] = {
    [SCALAR_F16] = 0x477ff000,  /* 65520: halfway to 2^16 */
    [SCALAR_BF16] = 0x7f7f8000, /* halfway from the largest bfloat16 to 2^128 */
    [SCALAR_F32] = 0x7f800000,
};

/* Whether every value of the row, rounded to t, is finite. */
static bool row_is_finite(enum scalar_type t, const float *x, uint32_t n) {
    vi max = {0};
    FOR_VECTORS(i, left, n, { max = max_int(max, magnitude_bits(load_first(x + i, left))); });
    return max_int_lane(max) < LIMIT[t];
}

/* ---- affine ---------------------------------------------------------------------------------- */

/* affine_quantize of one finite group: codes in 32-bit lanes, step and edge unrounded. */
ALWAYS_INLINE void quantize_group(const float *x, uint32_t group, unsigned bits, enum scalar_type t,
                                  vi *codes, float *scale, float *bias) {
    vf w[GROUP_MAX / LANES], lo = splat(INFINITY), hi = splat(-INFINITY);
    for (uint32_t i = 0; i < group / LANES; i++) {
        w[i] = round_to(affine_input(t), load(x + LANES * i));
        lo = vmin(w[i], lo);
        hi = vmax(w[i], hi);
    }
    float min = min_lane(lo), max = max_lane(hi), top = (float)((1u << bits) - 1);
    float step = (max - min) / top;
    bool negative_edge = -min > fabsf(max);
    float s = step > 1e-7f ? step : 1e-7f, b = 0;
    s = negative_edge ? s : -s;
    float edge = negative_edge ? min : max, rounded = rintf(edge / s);
    if (rounded != 0) {
        s = edge / rounded;
        b = edge;
    }
    for (uint32_t i = 0; i < group / LANES; i++) /* a NaN (0 / 0 in an overflowed group) is 0 */
        codes[i] = to_int(vmin(vmax((w[i] - splat(b)) / splat(s), splat(0)), splat(top)));
    *scale = s;
    *bias = b;
}

/* K: n codes of one token. column: the plane's first byte of this token. */
#if !defined(HAVE_PUT_K)
ALWAYS_INLINE void put_k(uint8_t *column, unsigned bits, unsigned shift, uint32_t n,
                         const uint8_t *codes) {
    const uint32_t mask = ((1u << bits) - 1) * 0x01010101u;
    const uint32_t rows = 8 / bits; /* of four dims, in one word */
    for (uint32_t i = 0; i < n; i += 4 * rows) {
        uint32_t word = 0;
        for (uint32_t j = 0; j < rows; j++) {
            uint32_t four;
            memcpy(&four, codes + i + 4 * j, sizeof four);
            word |= (four >> shift & mask) << (bits * j);
        }
        memcpy(column, &word, sizeof word);
        column += 4 * TILE_TOKENS;
    }
}
#endif

/* The codes of a row, a byte each. */
static void put_k_planes(const struct tile_layout *l, uint8_t *tile, uint32_t token,
                         const uint8_t *codes) {
    for (unsigned i = 0; i < l->plane_count; i++) {
        uint8_t *column = tile + l->plane_offset[i] + 4 * (size_t)token;
        const unsigned shift = l->plane_shift[i];
        switch (l->plane_bits[i]) {
        case 8:
            put_k(column, 8, 0, l->head_dim, codes);
            break;
        case 4:
            put_k(column, 4, shift, l->head_dim, codes);
            break;
        case 2:
            put_k(column, 2, shift, l->head_dim, codes);
            break;
        default:
            put_k(column, 1, shift, l->head_dim, codes);
            break;
        }
    }
}

/* V: codes of n dims of one token from dim on. */
static void put_v_planes(const struct tile_layout *l, uint8_t *tile, uint32_t token, uint32_t dim,
                         uint32_t n, const vi *codes) {
    for (unsigned p = 0; p < l->plane_count; p++) {
        const int bits = l->plane_bits[p], shift = l->plane_shift[p];
        uint32_t row = token / 4, rows = 8 / (uint32_t)bits;
        uint8_t *at = tile + l->plane_offset[p] + (size_t)(row / rows) * 4 * l->lanes + 4 * dim;
        const int bit = 8 * (int)(token % 4) + bits * (int)(row % rows);
        const vi hole = ((vi){0} + ((1 << bits) - 1)) << bit;
        for (uint32_t i = 0; i < n / LANES; i++) {
            vi old, part = codes[i] >> shift << bit;
            memcpy(&old, at + sizeof old * i, sizeof old);
            old = (old & ~hole) | (part & hole);
            memcpy(at + sizeof old * i, &old, sizeof old);
        }
    }
}

ALWAYS_INLINE void encode_affine(const struct tile_layout *l, uint8_t *tile, uint32_t token,
                                 const float *x, enum scalar_type t) {
    uint32_t group = l->group;
    uint8_t bytes[HEAD_DIM_MAX];
    for (uint32_t g = 0; g < l->groups; g++) {
        vi codes[GROUP_MAX / LANES];
        float scale, bias;
        quantize_group(x + g * group, group, l->format.bits, t, codes, &scale, &bias);
        for (uint32_t i = 0; l->kind == TILE_K && i < group / LANES; i++)
            store_bytes(bytes + g * group + LANES * i, codes[i]);
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

/* K: four dims are side by side. V: the four tokens of a dim are, of which one is written. */
ALWAYS_INLINE void put_exact(const struct tile_layout *l, uint8_t *tile, uint32_t token,
                             const void *row, size_t size) {
    const uint8_t *from = row;
    if (l->kind == TILE_K) {
        for (size_t d = 0; d < l->head_dim; d += 4)
            memcpy(tile + (d * TILE_TOKENS + 4 * (size_t)token) * size, from + d * size, 4 * size);
        return;
    }
    uint8_t *at = tile + ((size_t)(token / 4) * 4 * l->lanes + token % 4) * size;
    for (size_t d = 0; d < l->head_dim; d++)
        memcpy(at + 4 * d * size, from + d * size, size);
}

/* V of 16 bits: the four tokens of a dim are one word. */
ALWAYS_INLINE void put_v_halves(const struct tile_layout *l, uint8_t *tile, uint32_t token,
                                const uint16_t *row) {
    const int bit = 16 * (int)(token % 4);
    const vq hole = ((vq){0} + 0xffff) << bit;
    uint8_t *at = tile + (size_t)(token / 4) * 8 * l->lanes;
    size_t d = 0;
    for (; d + LANES / 2 <= l->head_dim; d += LANES / 2) {
        vq old;
        memcpy(&old, at + 8 * d, sizeof old);
        old = (old & ~hole) | (words_of(row + d) << bit);
        memcpy(at + 8 * d, &old, sizeof old);
    }
    for (; d < l->head_dim; d++)
        memcpy(at + 8 * d + (size_t)bit / 8, row + d, sizeof *row);
}

ALWAYS_INLINE void encode_half(const struct tile_layout *l, uint8_t *tile, uint32_t token,
                               const float *x, enum scalar_type t) {
    uint16_t half[HEAD_DIM_MAX];
    FOR_VECTORS(d, left, l->head_dim, {
        vh h = to_half(t, load_first(x + d, left));
        memcpy(half + d, &h, sizeof h);
    });
    if (l->kind == TILE_K)
        put_exact(l, tile, token, half, sizeof *half);
    else
        put_v_halves(l, tile, token, half);
}

/* ---- rows ------------------------------------------------------------------------------------ */

void TIER(encode_row)(const struct tile_layout *l, void *tile, uint32_t token, const float *x) {
    enum scalar_type t = (enum scalar_type)l->format.scalar;
    bool exact = kv_format_exact(l->format);
    ASSERT(token < TILE_TOKENS && l->head_dim <= HEAD_DIM_MAX && l->group <= GROUP_MAX);
    if (!row_is_finite(t, x, l->head_dim))
        tile_encode_row(l, tile, token, x);
    else if (exact && t == SCALAR_F32)
        put_exact(l, tile, token, x, sizeof *x);
    else if (exact && t == SCALAR_F16)
        encode_half(l, tile, token, x, SCALAR_F16);
    else if (exact)
        encode_half(l, tile, token, x, SCALAR_BF16);
    else if (t == SCALAR_F16)
        encode_affine(l, tile, token, x, SCALAR_F16);
    else if (t == SCALAR_BF16)
        encode_affine(l, tile, token, x, SCALAR_BF16);
    else
        encode_affine(l, tile, token, x, SCALAR_F32);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* The four ranges of a row of four elements a lane, as every vector of the row needs them. */
struct ranges {
    vf scale, bias;
};

/* Lane i % 4 of each four of v. */
ALWAYS_INLINE vf every_fourth(const float v[4]) {
    float lanes[LANES];
    for (int i = 0; i < LANES; i++)
        lanes[i] = v[i % 4];
    return load(lanes);
}

/* range_find for elements [4 * lanes] of a row; stores the scales and biases of index r on. */
ALWAYS_INLINE struct ranges find_ranges(const struct tile_layout *l, const uint16_t *row,
                                        uint8_t *tile, uint32_t r) {
    const float top = (float)((1u << l->format.bits) - 1);
    float low[LANES], high[LANES], scale[4], bias[4];
    vf lo = splat(INFINITY), hi = splat(-INFINITY);
    for (size_t i = 0; i < 4 * (size_t)l->lanes; i += LANES) {
        const vf x = load_as(SCALAR_F16, row, i);
        lo = vmin(x, lo);
        hi = vmax(x, hi);
    }
    store(low, lo);
    store(high, hi);
    for (size_t i = 0; i < 4; i++) {
        for (size_t j = i; j < LANES; j += 4) {
            low[i] = low[j] < low[i] ? low[j] : low[i];
            high[i] = high[j] > high[i] ? high[j] : high[i];
        }
        const float step = (high[i] - low[i]) / top;
        scale[i] = scalar_round(SCALAR_F16, step < 1e-7f ? 1e-7f : step);
        bias[i] = low[i] + 0.0f; /* as range_find */
        store_scalar(SCALAR_F16, tile + l->scale_offset, r + i, scale[i]);
        store_scalar(SCALAR_F16, tile + l->bias_offset, r + i, bias[i]);
    }
    return (struct ranges){every_fourth(scale), every_fourth(bias)};
}

/* Puts the codes [4 * lanes] of row r / 4 into the planes. A byte row's first one writes it. */
static void put_row_planes(const struct tile_layout *l, uint8_t *tile, uint32_t r,
                           const uint8_t *codes) {
    const size_t n = 4 * (size_t)l->lanes;
    for (unsigned p = 0; p < l->plane_count; p++) {
        const unsigned bits = l->plane_bits[p], shift = l->plane_shift[p], mask = (1u << bits) - 1;
        const uint32_t row = r / 4, rows = 8 / bits, bit = bits * (row % rows);
        uint8_t *restrict out = tile + l->plane_offset[p] + row / rows * n;
        for (size_t i = 0; i < n; i++) {
            const unsigned part = (codes[i] >> shift & mask) << bit;
            out[i] = (uint8_t)(bit == 0 ? part : out[i] | part);
        }
    }
}

/* K and V alike: four indices of the reduction axis are a row, whose elements lie side by side. */
static void encode_ranges(const struct tile_layout *l, uint8_t *tile, const uint16_t *rows) {
    const vf top = splat((float)((1u << l->format.bits) - 1));
    uint8_t codes[4 * HEAD_DIM_MAX];
    for (uint32_t r = 0; r < l->reduction; r += 4, rows += 4 * (size_t)l->lanes) {
        const struct ranges ranges = find_ranges(l, rows, tile, r);
        for (size_t i = 0; i < 4 * (size_t)l->lanes; i += LANES) {
            const vf q = (load_as(SCALAR_F16, rows, i) - ranges.bias) / ranges.scale;
            store_bytes(codes + i, to_int(vmin(vmax(q, splat(0)), top)));
        }
        put_row_planes(l, tile, r, codes);
    }
}

/* Row `token` of an f16 tile. */
static void get_halves(const struct tile_layout *from, const uint16_t *tile, uint32_t token,
                       float *x) {
    const size_t dim = from->head_dim, lanes = 4 * (size_t)from->lanes;
    uint16_t half[HEAD_DIM_MAX];
    if (from->kind == TILE_K)
        for (size_t d = 0; d < dim; d += 4)
            memcpy(half + d, tile + d / 4 * lanes + 4 * (size_t)token, 4 * sizeof *half);
    else
        for (size_t d = 0; d < dim; d++)
            half[d] = tile[token / 4 * lanes + 4 * d + token % 4];
    FOR_VECTORS(d, left, dim,
                { store_first(x + d, left, load_first_as(SCALAR_F16, half, d, left)); });
}

/* Whether all n halves are finite. */
static bool halves_are_finite(const uint16_t *half, size_t n) {
    uint16_t max = 0;
    for (size_t i = 0; i < n; i++) {
        const uint16_t magnitude = half[i] & 0x7fff;
        max = magnitude > max ? magnitude : max;
    }
    return max < 0x7c00;
}

void TIER(encode_tile)(const struct tile_layout *l, void *tile, const struct tile_layout *from,
                       const void *shadow) {
    const uint16_t *rows = shadow;
    float x[TILE_TOKENS * HEAD_DIM_MAX];
    ASSERT(from->format.bits == 16 && from->format.scalar == SCALAR_F16);
    ASSERT(from->kind == l->kind && from->head_dim == l->head_dim && l->head_dim <= HEAD_DIM_MAX);
    if (l->format.kind == KV_TILE && l->format.scalar == SCALAR_F16 &&
        halves_are_finite(rows, (size_t)TILE_TOKENS * l->head_dim)) {
        encode_ranges(l, tile, rows);
        return;
    }
    for (uint32_t t = 0; t < TILE_TOKENS; t++) {
        get_halves(from, rows, t, x + (size_t)t * l->head_dim);
        if (l->format.kind != KV_TILE)
            TIER(encode_row)(l, tile, t, x + (size_t)t * l->head_dim);
    }
    if (l->format.kind == KV_TILE)
        tile_encode(l, tile, x);
}
