/* SPDX-License-Identifier: Apache-2.0 */
/* product.h: what the two files of products share: tiles of three rows of activations, and loops
 * that must be unrolled, because the vectors they index have to be registers. */
#ifndef KVASIR_CPU_AVX2_PRODUCT_H
#define KVASIR_CPU_AVX2_PRODUCT_H

#include "backend/cpu/avx2/vector.h"

/* for (int i = 0; i < n; i++), unrolled at every level of optimisation; always with braces. */
#if defined(__clang__)
#define UNROLL_FOR(i, n) _Pragma("clang loop unroll(full)") for (int i = 0; i < (n); i++)
#else
#define UNROLL_FOR(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#endif

/* Rows of activations of a tile. All rows pass by each panel before the next panel is unpacked: a
 * panel lies in L1, the activations are read in order from L2 or L3 (at most 14 GB/s); going in
 * steps of rows that fit L2 gained nothing. */
enum { TILE_ROWS = 3 };

#endif
