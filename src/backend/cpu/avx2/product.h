/* SPDX-License-Identifier: Apache-2.0 */
/* product.h: what the files of products share: blocks and tiles of three rows of activations.
 *
 *     product_codes.h    integer codes of a weight type
 *     product_scales.h   its scales and minima
 *     product_quant.c    their products
 */
#ifndef KVASIR_CPU_AVX2_PRODUCT_H
#define KVASIR_CPU_AVX2_PRODUCT_H

#include "backend/cpu/simd/simd.h"

enum {
    BLOCK = ACT_BLOCK,
    /* Rows of activations of a tile. All rows pass by each panel before the next panel is unpacked:
     * a panel stays in L1, the activations are read in order from L2 or L3 (at most 14 GB/s).
     * Steps of rows that fit L2 gained nothing. */
    TILE_ROWS = 3,
};

ALWAYS_INLINE __m256i broadcast_dword(const void *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

#endif
