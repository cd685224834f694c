/* SPDX-License-Identifier: Apache-2.0 */
/* act_pack.c: rounds activations for the integer products, a block of 32 of a row at a time. The
 * order of codes inside a block is the tier's (store_act_codes in vector.h).
 */
#include "backend/cpu/simd/simd.h"

enum { VECTORS = ACT_BLOCK / LANES, HALF = ACT_BLOCK / 2 };
_Static_assert(VECTORS % 2 == 0, "the halves of a block are whole vectors");

ALWAYS_INLINE struct rounding block_rounding(const vf x[VECTORS], int bits) {
    vi a = magnitude_bits(x[0]), b = magnitude_bits(x[1]);
    UNROLL_FOR(i, VECTORS / 2 - 1) {
        a = max_int(a, magnitude_bits(x[2 * i + 2]));
        b = max_int(b, magnitude_bits(x[2 * i + 3]));
    }
    vi max = max_int(a, b);
    return rounding_of(max_magnitude(max), bits == 8 ? ACT8_MAX : ACT16_MAX);
}

/* Exact sums of the two halves of a block. */
ALWAYS_INLINE void sum_halves(const vi c[VECTORS], int32_t sums[2]) {
    vi low = c[0], high = c[VECTORS / 2];
    UNROLL_FOR(i, VECTORS / 2 - 1) {
        low += c[i + 1];
        high += c[VECTORS / 2 + i + 1];
    }
    sum_two(low, high, sums);
}

/* A block that holds an Inf or a NaN gets codes 0 and scale NaN: its outputs become NaN instead of
 * something plausible. */
void TIER(act_pack)(struct act_rows *a, uint32_t row) {
    ASSERT(row < a->rows && a->k % ACT_BLOCK == 0);
    for (uint32_t b = 0; b < a->k / ACT_BLOCK; b++) {
        size_t at = (size_t)row * a->k + (size_t)b * ACT_BLOCK;
        vf x[VECTORS];
        vi c[VECTORS];
        UNROLL_FOR(i, VECTORS) {
            x[i] = load(a->x + at + LANES * i);
        }
        struct rounding r = block_rounding(x, a->bits);
        UNROLL_FOR(i, VECTORS) {
            c[i] = r.per_unit > 0 ? to_int(x[i] * splat(r.per_unit)) : (vi){0};
        }
        if (a->rest)
            UNROLL_FOR(i, VECTORS) { /* x - scale * code, in one rounding */
                store(a->rest + at + LANES * i, fnmadd(splat(r.scale), to_float(c[i]), x[i]));
            }
        store_act_codes(a->codes, at, a->bits, c);
        int32_t sums[2];
        sum_halves(c, sums);
        if (ACT_CODE_SUMS)
            memcpy(a->codes_sum16 + at / HALF, sums, sizeof sums);
        a->scale[at / ACT_BLOCK] = r.scale;
        a->sum[at / ACT_BLOCK] = r.scale * (float)(sums[0] + sums[1]);
        a->sum16[at / HALF] = r.scale * (float)sums[0];
        a->sum16[at / HALF + 1] = r.scale * (float)sums[1];
    }
}
