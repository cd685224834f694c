/* SPDX-License-Identifier: Apache-2.0 */
/* weight_k.c: GGUF's blocks of 256 values. Sub-blocks of 16 or 32 (the runs of the integer
 * products) have small integer scales of their own, times one f16 d of the block; `sub` below is
 * such a scale, `min` such a minimum.
 *
 *     Q2_K     | sub + min 16 bytes | low 64 | d f16 | dmin f16 |
 *     Q3_K     | high 32 | low 64 | sub 12 | d f16 |
 *     Q4_K     | d f16 | dmin f16 | sub + min 12 | low 128 |
 *     Q5_K     | d f16 | dmin f16 | sub + min 12 | high 32 | low 128 |
 *     Q6_K     | low 128 | high 64 | sub 16 s8 | d f16 |
 *     Q8_K     | d f32 | 256 s8 | 16 sums s16 |
 *     IQ4_XS   | d f16 | sub 2 + 4 | low 128 |
 *
 *              run   value                                    sub       min
 *     Q2_K     16    d * sub * code - dmin * min              4 bits    4 bits
 *     Q3_K     16    d * (sub - 32) * (code - 4)              6 bits
 *     Q4_K     32    d * sub * code - dmin * min              6 bits    6 bits
 *     Q5_K     32    as Q4_K, codes of 5 bits
 *     Q6_K     16    d * sub * (code - 32)                    s8
 *     Q8_K     32    d * code; the sums are not needed
 *     IQ4_XS   32    d * (sub - 32) * IQ4_VALUES[code]        6 bits
 *
 * Where a code's bits are (fields as add_fields of weight.h cuts them):
 *
 *     Q2_K, Q3_K low    2 bits of 32 bytes for each half of the block
 *     Q4_K, Q5_K low    4 bits of 32 bytes for each quarter
 *     Q6_K low, high    4 bits of 64 bytes, 2 bits of 32 bytes for each half
 *     Q3_K, Q5_K high   1 bit of 32 bytes for the block
 *     IQ4_XS low        4 bits of 16 bytes for each run
 *
 * The d of a run is d * sub, its m is -(dmin * min), both exact (weight.h). Values and m are gguf's
 * to the bit: x - y and x + (-y) are the same float.
 */
#include "quant/weight.h"

enum { BLOCK = 256 };
_Static_assert((int)BLOCK == (int)WEIGHT_BLOCK_MAX, "no block is longer");
/* each function below reads its last field at the end of the block */
_Static_assert(82 + 2 == WEIGHT_BYTES_Q2_K && 108 + 2 == WEIGHT_BYTES_Q3_K, "d at the end");
_Static_assert(16 + 128 == WEIGHT_BYTES_Q4_K && 48 + 128 == WEIGHT_BYTES_Q5_K, "codes at the end");
_Static_assert(208 + 2 == WEIGHT_BYTES_Q6_K && 8 + 128 == WEIGHT_BYTES_IQ4_XS, "d, codes");

static float load_f16(const uint8_t *p) {
    return scalar_load(SCALAR_F16, p, 0);
}

void unpack_q2_k(const uint8_t *block, int8_t *codes, float *d, float *m) {
    float scale = load_f16(block + 80), min_scale = load_f16(block + 82);
    for (int u = 0; u < 16; u++) {
        d[u] = scale * (float)(block[u] & 15);
        m[u] = -(min_scale * (float)(block[u] >> 4));
    }
    memset(codes, 0, BLOCK);
    add_fields(block + 16, 32, 2, 0, codes);
    add_fields(block + 48, 32, 2, 0, codes + 128);
}

/* Six bits of a sub-scale: four of them are nibble u / 8 of byte u % 8, the upper two are field
 * u / 4 of byte 8 + u % 4. */
static int q3_k_sub(const uint8_t p[12], int u) {
    int low = p[u % 8] >> u / 8 * 4 & 15, high = p[8 + u % 4] >> u / 4 * 2 & 3;
    return high << 4 | low;
}

void unpack_q3_k(const uint8_t *block, int8_t *codes, float *d, float *m) {
    (void)m;
    float scale = load_f16(block + 108);
    for (int u = 0; u < 16; u++)
        d[u] = scale * (float)(q3_k_sub(block + 96, u) - 32);
    memset(codes, 0, BLOCK);
    add_fields(block + 32, 32, 2, 0, codes);
    add_fields(block + 64, 32, 2, 0, codes + 128);
    add_fields(block, 32, 1, 2, codes);
    shift_codes(codes, BLOCK, -4);
}

/* The 12 bytes of Q4_K and Q5_K: six bits each for the sub-scales and minima of runs u (s, m) and
 * u + 4 (S, M), u = 0..3:
 *
 *     byte u       S S s s s s s s      all six bits of s, the upper two of S
 *     byte 4 + u   M M m m m m m m
 *     byte 8 + u   M M M M S S S S      the lower four bits
 */
static void q4_k_scales(const uint8_t *block, float *d, float *m) {
    float scale = load_f16(block), min_scale = load_f16(block + 2);
    const uint8_t *a = block + 4, *b = a + 4, *c = a + 8;
    for (int u = 0; u < 4; u++) {
        d[u] = scale * (float)(a[u] & 63);
        m[u] = -(min_scale * (float)(b[u] & 63));
        d[u + 4] = scale * (float)(a[u] >> 6 << 4 | (c[u] & 15));
        m[u + 4] = -(min_scale * (float)(b[u] >> 6 << 4 | c[u] >> 4));
    }
}

void unpack_q4_k(const uint8_t *block, int8_t *codes, float *d, float *m) {
    q4_k_scales(block, d, m);
    memset(codes, 0, BLOCK);
    for (int quarter = 0; quarter < 4; quarter++)
        add_fields(block + 16 + 32 * quarter, 32, 4, 0, codes + 64 * quarter);
}

void unpack_q5_k(const uint8_t *block, int8_t *codes, float *d, float *m) {
    q4_k_scales(block, d, m);
    memset(codes, 0, BLOCK);
    for (int quarter = 0; quarter < 4; quarter++)
        add_fields(block + 48 + 32 * quarter, 32, 4, 0, codes + 64 * quarter);
    add_fields(block + 16, 32, 1, 4, codes);
}

void unpack_q6_k(const uint8_t *block, int8_t *codes, float *d, float *m) {
    (void)m;
    float scale = load_f16(block + 208);
    for (int u = 0; u < 16; u++)
        d[u] = scale * (float)(int8_t)block[192 + u];
    memset(codes, 0, BLOCK);
    for (int half = 0; half < 2; half++) {
        add_fields(block + 64 * half, 64, 4, 0, codes + 128 * half);
        add_fields(block + 128 + 32 * half, 32, 2, 4, codes + 128 * half);
    }
    shift_codes(codes, BLOCK, -32);
}

void unpack_q8_k(const uint8_t *block, int8_t *codes, float *d, float *m) {
    (void)m;
    for (int u = 0; u < 8; u++)
        d[u] = scalar_load(SCALAR_F32, block, 0);
    memcpy(codes, block + 4, BLOCK);
}

void unpack_iq4_xs(const uint8_t *block, int8_t *codes, float *d, float *m) {
    (void)m;
    float scale = load_f16(block);
    memset(codes, 0, BLOCK);
    for (int u = 0; u < 8; u++) {
        int low = block[4 + u / 2] >> u % 2 * 4 & 15, high = block[2 + u / 4] >> u % 4 * 2 & 3;
        d[u] = scale * (float)((high << 4 | low) - 32);
        add_fields(block + 8 + 16 * u, 16, 4, 0, codes + 32 * u);
    }
    map_codes(codes, BLOCK, IQ4_VALUES);
}
