/* SPDX-License-Identifier: Apache-2.0 */
/* encode.h: what the encode kernels of all tiers share: which rows they leave to the definition
 * (tile_encode_row), where exact elements go, and the one copy of their code for each scalar type.
 */
#ifndef KVASIR_CPU_ENCODE_H
#define KVASIR_CPU_ENCODE_H

#include <string.h>

#include "backend/cpu/kernels.h"

/* The smallest magnitude, as bits of float32, that is not finite once it is rounded to a type. */
static const uint32_t ENCODE_LIMIT[] = {
    [SCALAR_F16] = 0x477ff000,  /* 65520: halfway to 2^16 */
    [SCALAR_BF16] = 0x7f7f8000, /* halfway from the largest bfloat16 to 2^128 */
    [SCALAR_F32] = 0x7f800000,
};

/* Four consecutive dims of one token: K keeps them together, V has them four elements apart. */
static inline __attribute__((always_inline)) void encode_put_four(const struct tile_layout *l,
                                                                  uint8_t *tile, uint32_t token,
                                                                  uint32_t dim, const void *four,
                                                                  size_t size) {
    const uint8_t *from = four;
    if (l->kind == TILE_K) {
        memcpy(tile + ((size_t)dim * TILE_TOKENS + 4 * (size_t)token) * size, from, 4 * size);
        return;
    }
    size_t at = (size_t)(token / 4) * 4 * l->lanes + 4 * (size_t)dim + token % 4;
    for (size_t i = 0; i < 4; i++)
        memcpy(tile + (at + 4 * i) * size, from + i * size, size);
}

static inline void encode_f32(const struct tile_layout *l, uint8_t *tile, uint32_t token,
                              const float *x) {
    for (uint32_t d = 0; d < l->head_dim; d += 4)
        encode_put_four(l, tile, token, d, x + d, sizeof *x);
}

/* A tier's encode_row of its row_is_finite, encode_half and encode_affine, the last two inlined for
 * each scalar type. */
#define DEFINE_ENCODE_ROW(name)                                                                    \
    void name(const struct tile_layout *l, void *tile, uint32_t token, const float *x) {           \
        enum scalar_type t = (enum scalar_type)l->format.scalar;                                   \
        bool exact = kv_format_exact(l->format);                                                   \
        if (!row_is_finite(t, x, l->head_dim))                                                     \
            tile_encode_row(l, tile, token, x);                                                    \
        else if (exact && t == SCALAR_F16)                                                         \
            encode_half(l, tile, token, x, SCALAR_F16);                                            \
        else if (exact && t == SCALAR_BF16)                                                        \
            encode_half(l, tile, token, x, SCALAR_BF16);                                           \
        else if (exact)                                                                            \
            encode_f32(l, tile, token, x);                                                         \
        else if (t == SCALAR_F16)                                                                  \
            encode_affine(l, tile, token, x, SCALAR_F16);                                          \
        else if (t == SCALAR_BF16)                                                                 \
            encode_affine(l, tile, token, x, SCALAR_BF16);                                         \
        else                                                                                       \
            encode_affine(l, tile, token, x, SCALAR_F32);                                          \
    }

#endif
