/* SPDX-License-Identifier: Apache-2.0 */
/* tile.h: AMX. Eight registers hold tiles of up to 16 rows of 64 bytes; one instruction multiplies
 * two of them:
 *
 *     sums  [m][n] s32  +=  rows [m][4 k] bytes  x  columns [k][n][4] bytes
 *
 * Columns are a panel's groups (avx512/product.h) or a page's tiles of codes as they are stored:
 * four bytes of one sum side by side. Sums are exact.
 *
 * AMX-1 Shapes of tiles are a thread's state. A kernel sets them (TILES_SET) and gives them up
 * (TILES_END) before it returns: no other code sees tiles, and the system saves none of them when
 * it changes threads outside.
 *
 * amx/ is a tier on top of AVX512VNNI, with whose definition it is compiled: floats are that tier's
 * vectors, and in the same order, so that all bits are the same. It has the kernels of many rows.
 * With few rows most of a tile would be empty.
 *
 *     product.c    products with quantized weights
 *     affine.c     scores and values over tiles of codes
 *     init.c       its entries of the kernel table
 */
#ifndef KVASIR_CPU_AMX_TILE_H
#define KVASIR_CPU_AMX_TILE_H

#include "backend/cpu/simd/simd.h"

void amx_set_products(struct kernels *k);
void amx_set_attention(struct kernels *k);

/* What ldtilecfg reads. */
struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
};
_Static_assert(sizeof(struct tile_shapes) == 64, "as the processor has it");

/* Names of tiles are text in the instructions, hence macros; t: 0 to 7. */
#define TILE_NAME(t)      "%%tmm" #t
#define TILES_SET(shapes) __asm__ volatile("ldtilecfg %0" ::"m"(*(shapes)))
#define TILES_END()       __asm__ volatile("tilerelease" ::: "memory")
#define TILE_ZERO(t)      __asm__ volatile("tilezero " TILE_NAME(t)::)
/* from, to: row 0; stride: bytes from one row to the next. */
#define TILE_LOAD(t, from, stride)                                                                 \
    __asm__ volatile("tileloadd (%0,%1,1), " TILE_NAME(t)::"r"(from), "r"((size_t)(stride))        \
                     : "memory")
#define TILE_STORE(t, to, stride)                                                                  \
    __asm__ volatile("tilestored " TILE_NAME(t) ", (%0,%1,1)" ::"r"(to), "r"((size_t)(stride))     \
                     : "memory")
/* sums += rows x columns: both signed; rows signed, columns unsigned. */
#define TILE_DOT_S8S8(sums, rows, columns)                                                         \
    __asm__ volatile("tdpbssd " TILE_NAME(columns) ", " TILE_NAME(rows) ", " TILE_NAME(sums)::)
#define TILE_DOT_S8U8(sums, rows, columns)                                                         \
    __asm__ volatile("tdpbsud " TILE_NAME(columns) ", " TILE_NAME(rows) ", " TILE_NAME(sums)::)

#endif
