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
 * Only locate() computes where a code is; everything else goes through tile_put_row and
 * tile_get_row. Kernels repeat the order and are checked against these functions.
 *
 * Invariants: a token's bytes are shared with other tokens (nibbles of V), so stores read, mask and
 * write. Offsets are multiples of 32 bytes for head_dim a multiple of 32, or of 4 in exact formats.
 */
#include <string.h>

#include "quant/quant.h"

_Static_assert(TILE_TOKENS % 32 == 0, "eight rows of a 1-bit plane make a byte row");

/* The widest group; rows are put and fetched one group at a time. */
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
    ASSERT(f.bits < sizeof PLANES / sizeof *PLANES && f.group > 0 && f.group <= GROUP_MAX);
    ASSERT(head_dim % f.group == 0);
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
    l->groups = head_dim / f.group;
    uint32_t scalars = l->groups * TILE_TOKENS * (uint32_t)scalar_bytes(f.scalar);
    l->scale_offset = offset;
    l->bias_offset = offset + scalars;
    l->bytes = offset + 2 * scalars;
}

/* Where value (token, dim) is in a plane of `bits` bits: byte index and the bit it starts at. */
static size_t locate(const struct tile_layout *l, unsigned bits, uint32_t token, uint32_t dim,
                     unsigned *bit) {
    DEBUG_ASSERT(token < TILE_TOKENS && dim < l->head_dim);
    uint32_t r = l->kind == TILE_K ? dim : token;
    uint32_t lane = l->kind == TILE_K ? token : dim;
    uint32_t rows_per_byte = 8 / bits, row = r / 4;
    *bit = bits * (row % rows_per_byte);
    return (size_t)(row / rows_per_byte) * 4 * l->lanes + lane * 4 + r % 4;
}

/* Index of element (token, dim) of an exact tile. */
static size_t exact_index(const struct tile_layout *l, uint32_t token, uint32_t dim) {
    unsigned bit;
    return locate(l, 8, token, dim, &bit);
}

static void put_group(const struct tile_layout *l, void *tile, uint32_t token, uint32_t group,
                      const uint8_t *codes, float scale, float bias) {
    uint8_t *base = tile;
    for (unsigned i = 0; i < l->plane_count; i++) {
        unsigned bits = l->plane_bits[i], mask = (1u << bits) - 1;
        uint8_t *plane = base + l->plane_offset[i];
        for (uint32_t j = 0; j < l->format.group; j++) {
            unsigned part = codes[j] >> l->plane_shift[i] & mask, bit;
            size_t at = locate(l, bits, token, group * l->format.group + j, &bit);
            plane[at] = (uint8_t)((plane[at] & ~(mask << bit)) | part << bit);
        }
    }
    size_t at = (size_t)group * TILE_TOKENS + token;
    scalar_store(l->format.scalar, base + l->scale_offset, at, scale);
    scalar_store(l->format.scalar, base + l->bias_offset, at, bias);
}

static void get_group(const struct tile_layout *l, const void *tile, uint32_t token, uint32_t group,
                      uint8_t *codes, float *scale, float *bias) {
    const uint8_t *base = tile;
    memset(codes, 0, l->format.group);
    for (unsigned i = 0; i < l->plane_count; i++) {
        unsigned bits = l->plane_bits[i], mask = (1u << bits) - 1;
        const uint8_t *plane = base + l->plane_offset[i];
        for (uint32_t j = 0; j < l->format.group; j++) {
            unsigned bit;
            size_t at = locate(l, bits, token, group * l->format.group + j, &bit);
            codes[j] = (uint8_t)(codes[j] | (plane[at] >> bit & mask) << l->plane_shift[i]);
        }
    }
    size_t at = (size_t)group * TILE_TOKENS + token;
    *scale = scalar_load(l->format.scalar, base + l->scale_offset, at);
    *bias = scalar_load(l->format.scalar, base + l->bias_offset, at);
}

void tile_encode_row(const struct tile_layout *l, void *tile, uint32_t token, const float *x) {
    enum scalar_type t = l->format.scalar;
    if (kv_format_exact(l->format)) {
        for (uint32_t i = 0; i < l->head_dim; i++)
            scalar_store(t, tile, exact_index(l, token, i), x[i]);
        return;
    }
    uint32_t group = l->format.group;
    for (uint32_t g = 0; g < l->groups; g++) {
        float rounded[GROUP_MAX], scale, bias;
        uint8_t codes[GROUP_MAX];
        for (uint32_t j = 0; j < group; j++)
            rounded[j] = scalar_round(affine_input(t), x[g * group + j]);
        affine_quantize(rounded, group, l->format.bits, group, t, codes, &scale, &bias);
        put_group(l, tile, token, g, codes, scale, bias);
    }
}

void tile_decode_row(const struct tile_layout *l, const void *tile, uint32_t token, float *x) {
    if (kv_format_exact(l->format)) {
        for (uint32_t i = 0; i < l->head_dim; i++)
            x[i] = scalar_load(l->format.scalar, tile, exact_index(l, token, i));
        return;
    }
    uint32_t group = l->format.group;
    for (uint32_t g = 0; g < l->groups; g++) {
        uint8_t codes[GROUP_MAX];
        float scale, bias;
        get_group(l, tile, token, g, codes, &scale, &bias);
        for (uint32_t j = 0; j < group; j++) {
            float product = scale * (float)codes[j];
            x[g * group + j] = product + bias;
        }
    }
}

void tile_put_row(const struct tile_layout *l, void *tile, uint32_t token, const uint8_t *codes,
                  const float *scales, const float *biases) {
    for (uint32_t g = 0; g < l->groups; g++)
        put_group(l, tile, token, g, codes + g * l->format.group, scales[g], biases[g]);
}

void tile_get_row(const struct tile_layout *l, const void *tile, uint32_t token, uint8_t *codes,
                  float *scales, float *biases) {
    for (uint32_t g = 0; g < l->groups; g++)
        get_group(l, tile, token, g, codes + g * l->format.group, &scales[g], &biases[g]);
}
