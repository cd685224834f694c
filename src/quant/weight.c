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
 * row of the table and two functions: decode, and parts for the integer products.
 */
#include <string.h>

#include "quant/quant.h"

enum { BLOCK = 32 };

static float load_f16(const uint8_t *p) {
    return scalar_load(SCALAR_F16, p, 0);
}

/* Where row `row` begins in data. */
static const uint8_t *row_at(const struct weight *w, uint32_t row) {
    return (const uint8_t *)w->data + row * weight_row_bytes(weight_traits_of(w->type), w->k);
}

static void decode_f32(const struct weight *w, uint32_t row, float *out) {
    memcpy(out, row_at(w, row), w->k * sizeof *out);
}

static void decode_f16(const struct weight *w, uint32_t row, float *out) {
    for (size_t i = 0; i < w->k; i++)
        out[i] = scalar_load(SCALAR_F16, row_at(w, row), i);
}

static void decode_bf16(const struct weight *w, uint32_t row, float *out) {
    for (size_t i = 0; i < w->k; i++)
        out[i] = scalar_load(SCALAR_BF16, row_at(w, row), i);
}

static void decode_q4_0(const struct weight *w, uint32_t row, float *out) {
    const uint8_t *p = row_at(w, row);
    for (size_t i = 0; i < w->k; i += BLOCK, p += 2 + BLOCK / 2) {
        float d = load_f16(p);
        for (int j = 0; j < BLOCK / 2; j++) {
            out[i + (size_t)j] = d * (float)((p[2 + j] & 15) - 8);
            out[i + (size_t)j + BLOCK / 2] = d * (float)((p[2 + j] >> 4) - 8);
        }
    }
}

static void decode_q4_1(const struct weight *w, uint32_t row, float *out) {
    const uint8_t *p = row_at(w, row);
    for (size_t i = 0; i < w->k; i += BLOCK, p += 4 + BLOCK / 2) {
        float d = load_f16(p), m = load_f16(p + 2);
        for (int j = 0; j < BLOCK / 2; j++) {
            float low = d * (float)(p[4 + j] & 15), high = d * (float)(p[4 + j] >> 4);
            out[i + (size_t)j] = low + m;
            out[i + (size_t)j + BLOCK / 2] = high + m;
        }
    }
}

static void decode_q8_0(const struct weight *w, uint32_t row, float *out) {
    const uint8_t *p = row_at(w, row);
    for (size_t i = 0; i < w->k; i += BLOCK, p += 2 + BLOCK) {
        float d = load_f16(p);
        for (int j = 0; j < BLOCK; j++)
            out[i + (size_t)j] = d * (float)(int8_t)p[2 + j];
    }
}

static void parts_q4_0(const struct weight *w, uint32_t row, int8_t *codes, float *d, float *m) {
    const uint8_t *p = row_at(w, row);
    for (size_t i = 0; i < w->k; i += BLOCK, p += 2 + BLOCK / 2, codes += BLOCK) {
        d[i / BLOCK] = load_f16(p);
        m[i / BLOCK] = 0;
        for (int j = 0; j < BLOCK / 2; j++) {
            codes[j] = (int8_t)((p[2 + j] & 15) - 8);
            codes[j + BLOCK / 2] = (int8_t)((p[2 + j] >> 4) - 8);
        }
    }
}

static void parts_q4_1(const struct weight *w, uint32_t row, int8_t *codes, float *d, float *m) {
    const uint8_t *p = row_at(w, row);
    for (size_t i = 0; i < w->k; i += BLOCK, p += 4 + BLOCK / 2, codes += BLOCK) {
        d[i / BLOCK] = load_f16(p);
        m[i / BLOCK] = load_f16(p + 2);
        for (int j = 0; j < BLOCK / 2; j++) {
            codes[j] = (int8_t)(p[4 + j] & 15);
            codes[j + BLOCK / 2] = (int8_t)(p[4 + j] >> 4);
        }
    }
}

static void parts_q8_0(const struct weight *w, uint32_t row, int8_t *codes, float *d, float *m) {
    const uint8_t *p = row_at(w, row);
    for (size_t i = 0; i < w->k; i += BLOCK, p += 2 + BLOCK) {
        d[i / BLOCK] = load_f16(p);
        m[i / BLOCK] = 0;
        memcpy(codes + i, p + 2, BLOCK);
    }
}

static const struct weight_traits TRAITS[] = {
    {WEIGHT_F32, "F32", 1, 4, 0, false, decode_f32, NULL},
    {WEIGHT_F16, "F16", 1, 2, 0, false, decode_f16, NULL},
    {WEIGHT_BF16, "BF16", 1, 2, 0, false, decode_bf16, NULL},
    {WEIGHT_Q4_0, "Q4_0", BLOCK, 2 + BLOCK / 2, 32, false, decode_q4_0, parts_q4_0},
    {WEIGHT_Q4_1, "Q4_1", BLOCK, 4 + BLOCK / 2, 32, true, decode_q4_1, parts_q4_1},
    {WEIGHT_Q8_0, "Q8_0", BLOCK, 2 + BLOCK, 32, false, decode_q8_0, parts_q8_0},
};
enum { TYPES = sizeof TRAITS / sizeof *TRAITS };
_Static_assert((int)TYPES <= (int)WEIGHT_TYPES_MAX, "kernel tables have a place for each type");

uint32_t weight_index(enum weight_type t) {
    for (uint32_t i = 0; i < TYPES; i++)
        if (TRAITS[i].type == t)
            return i;
    return 0; /* unreachable: readers let no other type in */
}

const struct weight_traits *weight_traits_at(uint32_t i) {
    return i < TYPES ? &TRAITS[i] : NULL;
}

const struct weight_traits *weight_traits_of(uint32_t type) {
    for (uint32_t i = 0; i < TYPES; i++)
        if ((uint32_t)TRAITS[i].type == type)
            return &TRAITS[i];
    return NULL;
}

size_t weight_row_bytes(const struct weight_traits *t, size_t n) {
    return n / t->block_values * t->block_bytes;
}
