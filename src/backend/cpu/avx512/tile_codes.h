/* SPDX-License-Identifier: Apache-2.0 */
/* tile_codes.h: codes of a page's tile, whose planes quant.h draws, as bytes.
 */
#ifndef KVASIR_CPU_AVX512_TILE_CODES_H
#define KVASIR_CPU_AVX512_TILE_CODES_H

#include "backend/cpu/simd/simd.h"

/* In every byte: the `bits` bits at `from`, moved to `to`. */
ALWAYS_INLINE __m512i field(__m512i v, int from, int bits, int to) {
    if (from > to)
        v = _mm512_srli_epi16(v, (unsigned)(from - to));
    else if (from < to)
        v = _mm512_slli_epi16(v, (unsigned)(to - from));
    return _mm512_and_si512(v, _mm512_set1_epi8((char)(((1 << bits) - 1) << to)));
}

/* lo, hi: the planes' bytes of the block's first byte row and lane; hi_bits is 0 if there is one
 * plane. line: bytes of a byte row. */
ALWAYS_INLINE void unpack_planes(const uint8_t *lo, int lo_bits, const uint8_t *hi, int hi_bits,
                                 size_t line, uint32_t rows, uint32_t vectors, __m512i *out) {
    const int lo_rows = 8 / lo_bits, hi_rows = hi_bits ? 8 / hi_bits : 1;
    const int unit = lo_rows > hi_rows ? lo_rows : hi_rows;
    for (uint32_t r = 0; r < rows; r += (uint32_t)unit) {
        for (uint32_t v = 0; v < vectors; v++) {
            UNROLL_FOR(j, unit) {
                const uint8_t *at = lo + (size_t)(j / lo_rows) * line + 64 * v;
                __m512i code = field(_mm512_loadu_si512(at), lo_bits * (j % lo_rows), lo_bits, 0);
                if (hi_bits) {
                    at = hi + (size_t)(j / hi_rows) * line + 64 * v;
                    __m512i high =
                        field(_mm512_loadu_si512(at), hi_bits * (j % hi_rows), hi_bits, lo_bits);
                    code = _mm512_or_si512(code, high);
                }
                out[(uint32_t)j * vectors + v] = code;
            }
        }
        lo += (size_t)(unit / lo_rows) * line;
        hi += (size_t)(unit / hi_rows) * line;
        out += (uint32_t)unit * vectors;
    }
}

/* Bytes [row][vector] of the block of `vectors` vectors at (lane, rows [row, row + rows)), of codes
 * of at most 6 bits. A whole tile becomes what one of 8 bits is. */
static inline void unpack_codes(const struct tile_layout *l, const uint8_t *tile, uint32_t lane,
                                uint32_t row, uint32_t rows, uint32_t vectors, __m512i *out) {
    size_t line = 4 * (size_t)l->lanes;
    const uint8_t *at[TILE_PLANES_MAX];
    for (int i = 0; i < TILE_PLANES_MAX; i++)
        at[i] = tile + l->plane_offset[i] + row * l->plane_bits[i] / 8 * line + 4 * lane;
    switch (l->format.bits) {
    case 6:
        unpack_planes(at[0], 4, at[1], 2, line, rows, vectors, out);
        break;
    case 5:
        unpack_planes(at[0], 4, at[1], 1, line, rows, vectors, out);
        break;
    case 3:
        unpack_planes(at[0], 2, at[1], 1, line, rows, vectors, out);
        break;
    case 4:
        unpack_planes(at[0], 4, at[0], 0, line, rows, vectors, out);
        break;
    default:
        unpack_planes(at[0], 2, at[0], 0, line, rows, vectors, out);
        break;
    }
}

#endif
