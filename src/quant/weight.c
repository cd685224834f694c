/* SPDX-License-Identifier: Apache-2.0 */
/* weight.c: the weight types of checkpoints, as GGUF numbers and lays them out. All little-endian.
 *
 *     F32, F16, BF16   plain arrays; "blocks" of one value
 *     Q4_0   | d f16 | 16 bytes |            value = d * (code - 8)
 *     Q4_1   | d f16 | m f16 | 16 bytes |    value = d * code + m
 *     Q8_0   | d f16 | 32 s8 |               value = d * code
 *
 * The 16 bytes of a 4-bit block hold value j in the low nibble of byte j and value j + 16 in its
 * high nibble. Arithmetic is float32, product then sum, as in gguf's dequantize. A new type is one
 * row of the table and one function.
 */
#include <string.h>

#include "quant/quant.h"

enum { BLOCK = 32 };

static float load_f16(const uint8_t *p) {
    return scalar_load(SCALAR_F16, p, 0);
}

static void decode_f32(const void *blocks, size_t n, float *out) {
    memcpy(out, blocks, n * sizeof *out);
}

static void decode_f16(const void *blocks, size_t n, float *out) {
    for (size_t i = 0; i < n; i++)
        out[i] = scalar_load(SCALAR_F16, blocks, i);
}

static void decode_bf16(const void *blocks, size_t n, float *out) {
    for (size_t i = 0; i < n; i++)
        out[i] = scalar_load(SCALAR_BF16, blocks, i);
}

static void decode_q4_0(const void *blocks, size_t n, float *out) {
    const uint8_t *p = blocks;
    for (size_t i = 0; i < n; i += BLOCK, p += 2 + BLOCK / 2) {
        float d = load_f16(p);
        for (int j = 0; j < BLOCK / 2; j++) {
            out[i + (size_t)j] = d * (float)((p[2 + j] & 15) - 8);
            out[i + (size_t)j + BLOCK / 2] = d * (float)((p[2 + j] >> 4) - 8);
        }
    }
}

static void decode_q4_1(const void *blocks, size_t n, float *out) {
    const uint8_t *p = blocks;
    for (size_t i = 0; i < n; i += BLOCK, p += 4 + BLOCK / 2) {
        float d = load_f16(p), m = load_f16(p + 2);
        for (int j = 0; j < BLOCK / 2; j++) {
            float low = d * (float)(p[4 + j] & 15), high = d * (float)(p[4 + j] >> 4);
            out[i + (size_t)j] = low + m;
            out[i + (size_t)j + BLOCK / 2] = high + m;
        }
    }
}

static void decode_q8_0(const void *blocks, size_t n, float *out) {
    const uint8_t *p = blocks;
    for (size_t i = 0; i < n; i += BLOCK, p += 2 + BLOCK) {
        float d = load_f16(p);
        for (int j = 0; j < BLOCK; j++)
            out[i + (size_t)j] = d * (float)(int8_t)p[2 + j];
    }
}

static const struct weight_traits TRAITS[] = {
    {WEIGHT_F32, "F32", 1, 4, decode_f32},
    {WEIGHT_F16, "F16", 1, 2, decode_f16},
    {WEIGHT_BF16, "BF16", 1, 2, decode_bf16},
    {WEIGHT_Q4_0, "Q4_0", BLOCK, 2 + BLOCK / 2, decode_q4_0},
    {WEIGHT_Q4_1, "Q4_1", BLOCK, 4 + BLOCK / 2, decode_q4_1},
    {WEIGHT_Q8_0, "Q8_0", BLOCK, 2 + BLOCK, decode_q8_0},
};

const struct weight_traits *weight_traits_of(uint32_t type) {
    for (size_t i = 0; i < sizeof TRAITS / sizeof *TRAITS; i++)
        if ((uint32_t)TRAITS[i].type == type)
            return &TRAITS[i];
    return NULL;
}

size_t weight_row_bytes(const struct weight_traits *t, size_t n) {
    return n / t->block_values * t->block_bytes;
}
