/* SPDX-License-Identifier: Apache-2.0 */
/* weight.c: the table of weight types, and the types that are plain arrays or blocks of 32 values,
 * as GGUF numbers and lays them out. All little-endian, at any address.
 *
 *     F32, F16, BF16   plain arrays; "blocks" of one value
 *     Q4_0     | d f16 | 16 bytes |                      value = d * (code - 8)
 *     Q4_1     | d f16 | m f16 | 16 bytes |              value = d * code + m
 *     Q5_0     | d f16 | 4 bytes | 16 bytes |            value = d * (code - 16)
 *     Q5_1     | d f16 | m f16 | 4 bytes | 16 bytes |    value = d * code + m
 *     Q8_0     | d f16 | 32 s8 |                         value = d * code
 *     IQ4_NL   | d f16 | 16 bytes |                      value = d * IQ4_VALUES[code]
 *     MXFP4    | e u8 | 16 bytes |                       value = 2^(e - 127) * E2M1[code]
 *
 * The 16 bytes hold value j in the low nibble of byte j and value j + 16 in its high nibble; bit j
 * of the 4 bytes, as one 32-bit number, is the fifth bit of value j.
 *
 * A new type is one row of the table and, for blocks with their scales inside, one function.
 */
#include "quant/weight.h"

enum { BLOCK = 32 };

/* Where row `row` begins in data. */
static const uint8_t *weight_row(const struct weight *w, uint32_t row) {
    return (const uint8_t *)w->data + row * weight_row_bytes(weight_traits_of(w->type), w->k);
}

/* ---- plain arrays ---------------------------------------------------------------------------- */

static void decode_f32(const struct weight *w, uint32_t row, float *out) {
    memcpy(out, weight_row(w, row), w->k * sizeof *out);
}

/* Eight at a time: one by one takes eight times as long, under the thread sanitizer twice. */
static inline __attribute__((always_inline)) void
decode_16_bits(const struct weight *w, uint32_t row, enum scalar_type t, float *out) {
    enum { TOGETHER = 8 };
    const uint8_t *p = weight_row(w, row);
    uint16_t h[TOGETHER];
    size_t i = 0;
    for (; i + TOGETHER <= w->k; i += TOGETHER) {
        memcpy(h, p + i * sizeof *h, sizeof h);
        for (size_t j = 0; j < TOGETHER; j++)
            out[i + j] = scalar_load(t, h, j);
    }
    for (; i < w->k; i++)
        out[i] = scalar_load(t, p, i);
}

static void decode_f16(const struct weight *w, uint32_t row, float *out) {
    decode_16_bits(w, row, SCALAR_F16, out);
}

static void decode_bf16(const struct weight *w, uint32_t row, float *out) {
    decode_16_bits(w, row, SCALAR_BF16, out);
}

/* ---- blocks of 32 ---------------------------------------------------------------------------- */

static void nibbles(const uint8_t *p, int8_t codes[BLOCK]) {
    memset(codes, 0, BLOCK);
    add_fields(p, BLOCK / 2, 4, 0, codes);
}

static void add_fifth_bits(const uint8_t p[4], int8_t codes[BLOCK]) {
    for (int i = 0; i < BLOCK; i++)
        codes[i] |= (int8_t)((p[i / 8] >> i % 8 & 1) << 4);
}

static void unpack_q4_0(const uint8_t *block, int8_t *codes, float *d, float *m) {
    (void)m;
    *d = scalar_load(SCALAR_F16, block, 0);
    nibbles(block + 2, codes);
    shift_codes(codes, BLOCK, -8);
}

static void unpack_q4_1(const uint8_t *block, int8_t *codes, float *d, float *m) {
    *d = scalar_load(SCALAR_F16, block, 0);
    *m = scalar_load(SCALAR_F16, block, 1);
    nibbles(block + 4, codes);
}

static void unpack_q5_0(const uint8_t *block, int8_t *codes, float *d, float *m) {
    (void)m;
    *d = scalar_load(SCALAR_F16, block, 0);
    nibbles(block + 6, codes);
    add_fifth_bits(block + 2, codes);
    shift_codes(codes, BLOCK, -16);
}

static void unpack_q5_1(const uint8_t *block, int8_t *codes, float *d, float *m) {
    *d = scalar_load(SCALAR_F16, block, 0);
    *m = scalar_load(SCALAR_F16, block, 1);
    nibbles(block + 8, codes);
    add_fifth_bits(block + 4, codes);
}

static void unpack_q8_0(const uint8_t *block, int8_t *codes, float *d, float *m) {
    (void)m;
    *d = scalar_load(SCALAR_F16, block, 0);
    memcpy(codes, block + 2, BLOCK);
}

static void unpack_iq4_nl(const uint8_t *block, int8_t *codes, float *d, float *m) {
    (void)m;
    *d = scalar_load(SCALAR_F16, block, 0);
    nibbles(block + 2, codes);
    map_codes(codes, BLOCK, IQ4_VALUES);
}

static void unpack_mxfp4(const uint8_t *block, int8_t *codes, float *d, float *m) {
    (void)m;
    *d = e8m0_half(block[0]);
    nibbles(block + 1, codes);
    map_codes(codes, BLOCK, E2M1_DOUBLED);
}

/* ---- rows of blocks -------------------------------------------------------------------------- */

static void decode_blocks(const struct weight *w, uint32_t row, float *out) {
    const struct weight_traits *t = weight_traits_of(w->type);
    const uint8_t *block = weight_row(w, row);
    for (size_t i = 0; i < w->k; i += t->block_values, block += t->block_bytes) {
        DEBUG_ASSERT(t->block_values <= WEIGHT_BLOCK_MAX);
        int8_t codes[WEIGHT_BLOCK_MAX];
        float d[WEIGHT_BLOCK_RUNS_MAX], m[WEIGHT_BLOCK_RUNS_MAX];
        t->unpack(block, codes, d, m);
        for (size_t j = 0; j < t->block_values; j++) {
            float product = d[j / t->run_values] * (float)codes[j];
            out[i + j] = t->has_min ? product + m[j / t->run_values] : product;
        }
    }
}

static void parts_blocks(const struct weight *w, uint32_t row, int8_t *codes, float *d, float *m) {
    const struct weight_traits *t = weight_traits_of(w->type);
    const uint8_t *block = weight_row(w, row);
    memset(m, 0, w->k / t->run_values * sizeof *m);
    for (size_t i = 0; i < w->k; i += t->block_values, block += t->block_bytes)
        t->unpack(block, codes + i, d + i / t->run_values, m + i / t->run_values);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define PLAIN(type, bytes, decode)                                                                 \
    { WEIGHT_##type, #type, 1, bytes, 0, false, decode, NULL, NULL }
#define BLOCKS(type, values, run, has_min, unpack)                                                 \
    {                                                                                              \
        WEIGHT_##type, #type, values, WEIGHT_BYTES_##type, run, has_min, decode_blocks,            \
            parts_blocks, unpack                                                                   \
    }
#define AFFINE(bits)                                                                               \
    {                                                                                              \
        WEIGHT_AFFINE##bits, "AFFINE" #bits, BLOCK, BLOCK *bits / 8, 32, true, decode_affine,      \
            parts_affine, NULL                                                                     \
    }

static const struct weight_traits TRAITS[] = {
    PLAIN(F32, 4, decode_f32),
    PLAIN(F16, 2, decode_f16),
    PLAIN(BF16, 2, decode_bf16),
    PLAIN(F8_E4M3, 1, decode_f8_e4m3),
    BLOCKS(Q4_0, BLOCK, 32, false, unpack_q4_0),
    BLOCKS(Q4_1, BLOCK, 32, true, unpack_q4_1),
    BLOCKS(Q5_0, BLOCK, 32, false, unpack_q5_0),
    BLOCKS(Q5_1, BLOCK, 32, true, unpack_q5_1),
    BLOCKS(Q8_0, BLOCK, 32, false, unpack_q8_0),
    BLOCKS(IQ4_NL, BLOCK, 32, false, unpack_iq4_nl),
    BLOCKS(MXFP4, BLOCK, 32, false, unpack_mxfp4),
    BLOCKS(Q2_K, 256, 16, true, unpack_q2_k),
    BLOCKS(Q3_K, 256, 16, false, unpack_q3_k),
    BLOCKS(Q4_K, 256, 32, true, unpack_q4_k),
    BLOCKS(Q5_K, 256, 32, true, unpack_q5_k),
    BLOCKS(Q6_K, 256, 16, false, unpack_q6_k),
    BLOCKS(Q8_K, 256, 32, false, unpack_q8_k),
    BLOCKS(IQ4_XS, 256, 32, false, unpack_iq4_xs),
    AFFINE(2),
    AFFINE(3),
    AFFINE(4),
    AFFINE(5),
    AFFINE(6),
    AFFINE(8),
    {WEIGHT_MXFP4_MLX, "MXFP4_MLX", BLOCK, 16, 32, false, decode_mxfp4_mlx, parts_mxfp4_mlx, NULL},
};
enum { TYPES = sizeof TRAITS / sizeof *TRAITS };
_Static_assert(WEIGHT_BLOCK_MAX / 16 == WEIGHT_BLOCK_RUNS_MAX, "runs of 16 are the shortest");
_Static_assert((int)TYPES <= (int)WEIGHT_TYPES_MAX, "kernel tables have a place for each type");

uint32_t weight_index(enum weight_type t) {
    uint32_t i = 0;
    while (i < TYPES && TRAITS[i].type != t)
        i++;
    ASSERT(i < TYPES); /* readers let no other type in */
    return i;
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
    DEBUG_ASSERT(n % t->block_values == 0);
    return n / t->block_values * t->block_bytes;
}
