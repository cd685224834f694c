/* SPDX-License-Identifier: Apache-2.0 */
/* tile.c: the one storage order of 64 tokens x head_dim (drawn in quant.h), element by element.
 *
 * A token is a lane of a K tile and a position along the reduction axis of a V tile:
 *
 *     K tile, 64 lanes                                    V tile, head_dim lanes
 *            token 0      token 1         token 63               dim 0        dim 1
 *     R=0  | d0 d1 d2 d3 | d0 d1 d2 d3 | ... |            R=0  | t0 t1 t2 t3 | t0 t1 t2 t3 | ...
 *     R=1  | d4 d5 d6 d7 | d4 d5 d6 d7 | ... |            R=1  | t4 t5 t6 t7 | t4 t5 t6 t7 | ...
 *
 * A 4-bit plane lays two such rows into one row of bytes, R even in the low nibble, R odd in the
 * high one:
 *
 *     byte row 0   | R=1 e0 : R=0 e0 | R=1 e1 : R=0 e1 | R=1 e2 : R=0 e2 | ... | lane 1 ...
 *
 * a 2-bit plane lays four, a 1-bit plane eight. A 6-bit code is a 4-bit plane (bits 0..3) and a
 * 2-bit plane (bits 4, 5).
 *
 * Only locate() and aligned_codes() know where a code is; everything else goes through put_codes
 * and get_codes. Kernels repeat the order and are checked against these functions.
 *
 * Invariants: a token's bytes are shared with other tokens (nibbles of V), so stores read, mask and
 * write. Offsets are multiples of 32 bytes for head_dim a multiple of 32, or of 4 in exact formats.
 */
#include <string.h>

#include "quant/quant.h"

_Static_assert(TILE_TOKENS % 32 == 0, "eight rows of a 1-bit plane make a byte row");

/* The widest group of affine formats. */
enum { GROUP_MAX = 128 };

void tile_layout_init(struct tile_layout *l, enum tile_kind kind, struct kv_format f,
                      uint32_t head_dim) {
    /* code bits -> planes, low bits first */
    static const uint8_t PLANES[9][TILE_PLANES_MAX] = {
        [2] = {2, 0}, [3] = {2, 1}, [4] = {4, 0}, [5] = {4, 1}, [6] = {4, 2}, [8] = {8, 0}};
    memset(l, 0, sizeof *l);
    l->format = f;
    l->kind = (uint8_t)kind;
    l->head_dim = head_dim;
    l->lanes = kind == TILE_K ? TILE_TOKENS : head_dim;
    l->reduction = kind == TILE_K ? head_dim : TILE_TOKENS;
    if (kv_format_exact(f)) {
        l->plane_count = 1;
        l->plane_bits[0] = f.bits;
        l->bytes = TILE_TOKENS * head_dim * (f.bits / 8u);
        l->scale_offset = l->bias_offset = l->bytes;
        return;
    }
    ASSERT(f.bits < sizeof PLANES / sizeof *PLANES);
    uint32_t offset = 0;
    uint8_t shift = 0;
    for (unsigned i = 0; i < TILE_PLANES_MAX && PLANES[f.bits][i] != 0; i++) {
        uint8_t bits = PLANES[f.bits][i];
        l->plane_bits[i] = bits;
        l->plane_shift[i] = shift;
        l->plane_offset[i] = offset;
        l->plane_count++;
        shift = (uint8_t)(shift + bits);
        offset += TILE_TOKENS * head_dim * bits / 8;
    }
    ASSERT(shift == f.bits); /* the planes hold the whole code */
    uint32_t scalars = (uint32_t)scalar_bytes(f.scalar);
    if (f.kind == KV_TILE) {
        l->group = kind == TILE_K ? 0 : head_dim; /* V has one group, K none */
        l->groups = kind == TILE_K ? 0 : 1;
        scalars *= l->reduction;
    } else {
        ASSERT(f.group > 0 && f.group <= GROUP_MAX && head_dim % f.group == 0);
        l->group = f.group;
        l->groups = head_dim / f.group;
        scalars *= l->groups * TILE_TOKENS;
    }
    l->scale_offset = offset;
    l->bias_offset = offset + scalars;
    l->bytes = offset + 2 * scalars;
}

uint32_t tile_bytes(enum tile_kind kind, struct kv_format f, uint32_t head_dim) {
    struct tile_layout l;
    tile_layout_init(&l, kind, f, head_dim);
    return l.bytes;
}

/* Where value (token, dim) is in a plane of `bits` bits: byte index and the bit it starts at. */
static size_t locate(const struct tile_layout *l, unsigned bits, uint32_t token, uint32_t dim,
                     unsigned *bit) {
    DEBUG_ASSERT(token < TILE_TOKENS && dim < l->head_dim);
    uint32_t r = l->kind == TILE_K ? dim : token;
    uint32_t lane = l->kind == TILE_K ? token : dim;
    uint32_t before = r / 4 * bits; /* of the same lane and r % 4 */
    *bit = before % 8;
    return (size_t)(before / 8) * 4 * l->lanes + lane * 4 + r % 4;
}

/* Index of element (token, dim) of an exact tile. */
static size_t exact_index(const struct tile_layout *l, uint32_t token, uint32_t dim) {
    unsigned bit;
    return locate(l, 8, token, dim, &bit);
}

/* How many codes of a token from `dim` on, at most n, begin at the same bit of their bytes; *step:
 * from one's byte to the next's. */
static uint32_t aligned_codes(const struct tile_layout *l, uint32_t dim, uint32_t n, size_t *step) {
    *step = l->kind == TILE_K ? 1 : 4;
    return l->kind == TILE_K ? min_u32(n, 4 - dim % 4) : n;
}

static void put_codes(const struct tile_layout *l, void *tile, uint32_t token, uint32_t dim,
                      uint32_t n, const uint8_t *codes) {
    DEBUG_ASSERT(dim + n <= l->head_dim);
    for (unsigned i = 0; i < l->plane_count; i++) {
        const unsigned bits = l->plane_bits[i], mask = (1u << bits) - 1, shift = l->plane_shift[i];
        uint8_t *plane = (uint8_t *)tile + l->plane_offset[i];
        for (uint32_t j = 0, end; j < n; j = end) {
            unsigned bit;
            size_t step, at = locate(l, bits, token, dim + j, &bit);
            end = j + aligned_codes(l, dim + j, n - j, &step);
            for (uint32_t e = j; e < end; e++, at += step)
                plane[at] =
                    (uint8_t)((plane[at] & ~(mask << bit)) | (codes[e] >> shift & mask) << bit);
        }
    }
}

static void get_codes(const struct tile_layout *l, const void *tile, uint32_t token, uint32_t dim,
                      uint32_t n, uint8_t *codes) {
    DEBUG_ASSERT(dim + n <= l->head_dim);
    memset(codes, 0, n);
    for (unsigned i = 0; i < l->plane_count; i++) {
        const unsigned bits = l->plane_bits[i], mask = (1u << bits) - 1, shift = l->plane_shift[i];
        const uint8_t *plane = (const uint8_t *)tile + l->plane_offset[i];
        for (uint32_t j = 0, end; j < n; j = end) {
            unsigned bit;
            size_t step, at = locate(l, bits, token, dim + j, &bit);
            end = j + aligned_codes(l, dim + j, n - j, &step);
            for (uint32_t e = j; e < end; e++, at += step)
                codes[e] = (uint8_t)(codes[e] | (plane[at] >> bit & mask) << shift);
        }
    }
}

static void put_scale(const struct tile_layout *l, void *tile, size_t at, float scale, float bias) {
    uint8_t *base = tile;
    scalar_store(l->format.scalar, base + l->scale_offset, at, scale);
    scalar_store(l->format.scalar, base + l->bias_offset, at, bias);
}

static void get_scale(const struct tile_layout *l, const void *tile, size_t at, float *scale,
                      float *bias) {
    const uint8_t *base = tile;
    *scale = scalar_load(l->format.scalar, base + l->scale_offset, at);
    *bias = scalar_load(l->format.scalar, base + l->bias_offset, at);
}

/* Index of the scale of (token, dim). */
static size_t scale_index(const struct tile_layout *l, uint32_t token, uint32_t dim) {
    return l->group ? (size_t)(dim / l->group) * TILE_TOKENS + token : dim;
}

void tile_encode_row(const struct tile_layout *l, void *tile, uint32_t token, const float *x) {
    enum scalar_type t = l->format.scalar;
    ASSERT(l->format.kind != KV_TILE);
    if (kv_format_exact(l->format)) {
        for (uint32_t i = 0; i < l->head_dim; i++)
            scalar_store(t, tile, exact_index(l, token, i), x[i]);
        return;
    }
    for (uint32_t dim = 0; dim < l->head_dim; dim += l->group) {
        float rounded[GROUP_MAX], scale, bias;
        uint8_t codes[GROUP_MAX];
        for (uint32_t j = 0; j < l->group; j++)
            rounded[j] = scalar_round(affine_input(t), x[dim + j]);
        affine_quantize(rounded, l->group, l->format.bits, l->group, t, codes, &scale, &bias);
        put_codes(l, tile, token, dim, l->group, codes);
        put_scale(l, tile, scale_index(l, token, dim), scale, bias);
    }
}

/* A range for each index of the reduction axis, over all lanes: K per dim over the tokens, V per
 * token over the dims. */
static void encode_ranges(const struct tile_layout *l, void *tile, const float *rows) {
    const bool k = l->kind == TILE_K;
    const size_t dim = l->head_dim, stride = k ? dim : 1;
    for (uint32_t r = 0; r < l->reduction; r++) {
        const float *x = rows + (k ? r : r * dim);
        float scale, bias;
        range_find(x, l->lanes, stride, l->format.bits, l->format.scalar, &scale, &bias);
        for (uint32_t lane = 0; lane < l->lanes; lane++) {
            const uint8_t code = range_code(x[lane * stride], l->format.bits, scale, bias);
            put_codes(l, tile, k ? lane : r, k ? r : lane, 1, &code);
        }
        put_scale(l, tile, r, scale, bias);
    }
}

void tile_encode(const struct tile_layout *l, void *tile, const float *rows) {
    if (l->format.kind == KV_TILE)
        encode_ranges(l, tile, rows);
    else
        for (uint32_t t = 0; t < TILE_TOKENS; t++)
            tile_encode_row(l, tile, t, rows + (size_t)t * l->head_dim);
}

bool tile_drops_bit(const struct tile_layout *from, const struct tile_layout *to) {
    return from->format.kind == KV_TILE && to->format.kind == KV_TILE && from->kind == to->kind &&
           from->head_dim == to->head_dim && from->format.scalar == to->format.scalar &&
           from->format.bits == to->format.bits + 1;
}

void tile_drop_bit(const struct tile_layout *from, const void *in, const struct tile_layout *to,
                   void *out) {
    ASSERT(tile_drops_bit(from, to));
    for (uint32_t token = 0; token < TILE_TOKENS; token++)
        for (uint32_t dim = 0; dim < from->head_dim; dim++) {
            uint8_t code;
            get_codes(from, in, token, dim, 1, &code);
            code >>= 1;
            put_codes(to, out, token, dim, 1, &code);
        }
    for (uint32_t r = 0; r < from->reduction; r++) {
        float scale, bias;
        get_scale(from, in, r, &scale, &bias);
        const float half = scale / 2;
        put_scale(to, out, r, 2 * scale, bias + half);
    }
}

/* A row of scalars. t is the layout's type, given so that the compiler knows it. */
static inline __attribute__((always_inline)) void decode_exact_row(const struct tile_layout *l,
                                                                   enum scalar_type t,
                                                                   const void *tile, uint32_t token,
                                                                   float *x) {
    for (uint32_t i = 0, end; i < l->head_dim; i = end) {
        size_t step, at = exact_index(l, token, i);
        end = i + aligned_codes(l, i, l->head_dim - i, &step);
        for (uint32_t e = i; e < end; e++, at += step)
            x[e] = scalar_load(t, tile, at);
    }
}

void tile_decode_row(const struct tile_layout *l, const void *tile, uint32_t token, float *x) {
    if (kv_format_exact(l->format)) {
        if (l->format.scalar == SCALAR_F16)
            decode_exact_row(l, SCALAR_F16, tile, token, x);
        else if (l->format.scalar == SCALAR_BF16)
            decode_exact_row(l, SCALAR_BF16, tile, token, x);
        else
            decode_exact_row(l, SCALAR_F32, tile, token, x);
        return;
    }
    for (uint32_t dim = 0, n; dim < l->head_dim; dim += n) {
        uint8_t codes[GROUP_MAX];
        float scale, bias;
        n = l->group ? min_u32(min_u32(l->group, GROUP_MAX), l->head_dim - dim) : 1; /* one scale */
        get_codes(l, tile, token, dim, n, codes);
        get_scale(l, tile, scale_index(l, token, dim), &scale, &bias);
        for (uint32_t i = 0; i < n; i++) {
            const float product = scale * (float)codes[i];
            x[dim + i] = product + bias;
        }
    }
}

void tile_put_row(const struct tile_layout *l, void *tile, uint32_t token, const uint8_t *codes,
                  const float *scales, const float *biases) {
    put_codes(l, tile, token, 0, l->head_dim, codes);
    for (uint32_t g = 0; g < l->groups; g++)
        put_scale(l, tile, scale_index(l, token, g * l->group), scales[g], biases[g]);
}

void tile_get_row(const struct tile_layout *l, const void *tile, uint32_t token, uint8_t *codes,
                  float *scales, float *biases) {
    get_codes(l, tile, token, 0, l->head_dim, codes);
    for (uint32_t g = 0; g < l->groups; g++)
        get_scale(l, tile, scale_index(l, token, g * l->group), &scales[g], &biases[g]);
}

void tile_get_channels(const struct tile_layout *l, const void *tile, float *scales,
                       float *biases) {
    ASSERT(l->kind == TILE_K && l->format.kind == KV_TILE);
    for (uint32_t i = 0; i < l->head_dim; i++)
        get_scale(l, tile, i, &scales[i], &biases[i]);
}
