/* SPDX-License-Identifier: Apache-2.0 */
/* product.h: panels of quantized weights, which every type is unpacked to before it is multiplied.
 *
 * A panel is 16 weight rows, the outputs, side by side in the lanes of a vector; a block of it is
 * 32 inputs of each:
 *
 *     w[g], g = 0..7    | row 0: codes 4g .. 4g+3 | row 1: 4g .. 4g+3 | ... | row 15 |    u8
 *     run[u]            d and m of each row for its one run of 32 or its two runs of 16
 *
 * Codes are stored plus the type's offset.
 *
 * A type is one function that reads one of its blocks to blocks of a panel; everything else is made
 * from it (unpack.h) or the same for all (product_codes.c). Those functions are in unpack_32.c
 * (GGUF's blocks of 32), unpack_k.c (its blocks of 256) and unpack_rows.c (safetensors).
 */
#ifndef KVASIR_CPU_AVX512_PRODUCT_H
#define KVASIR_CPU_AVX512_PRODUCT_H

#include "backend/cpu/simd/simd.h"

enum { BLOCK = ACT_BLOCK, HALF = 16, GROUPS = BLOCK / 4, OUTPUTS = PRODUCT_PANEL };
_Static_assert((int)OUTPUTS == (int)LANES, "the outputs of a panel are the lanes of a vector");

struct panel_run {
    __m512 d, m; /* m is not read if the type has no minimum */
};

struct panel_block {
    __m512i w[GROUPS];
    struct panel_run
        run[BLOCK / HALF]; /* types with runs of 32 have the first only, also in memory */
};

ALWAYS_INLINE size_t panel_block_bytes(int runs) {
    return GROUPS * sizeof(__m512i) + (size_t)runs * sizeof(struct panel_run);
}

/* Block b of a panel of a type with 1 or 2 runs in a block. */
ALWAYS_INLINE struct panel_block *panel_block(void *panel, size_t b, int runs) {
    return (struct panel_block *)((uint8_t *)panel + b * panel_block_bytes(runs));
}

/* The 16 rows of a panel. */
struct panel_rows {
    const struct weight *w;
    uint32_t first;      /* row of w */
    const uint8_t *base; /* its data */
    size_t stride;       /* bytes from one row to the next */
    const uint8_t *next; /* the panel that is read after this one */
};

/* One row of activations.
 *
 *     codes   per block | code, 32 bytes |, or, if the row has halves (vector.h), 8 runs of four
 *     start   per run, where its sum starts: takes back what the offset of the weights adds
 *     sums    of runs */
struct act_row {
    const uint8_t *codes;
    const int32_t *start; /* not read if the offset is 0 */
    const float *scale, *sums;
    bool halves;
};

/* A few rows of activations, of 8 bits. All are [row][block], start and sums [row][run]. */
enum { FEW_ROWS = 8 };

struct act_few {
    uint32_t rows; /* 2 to FEW_ROWS */
    const int8_t *codes;
    const int32_t *start; /* not read if the offset is 0 */
    const float *scale, *sums;
};

/* Fills blocks [b0, b0 + blocks) of a panel. Both are multiples of 8 for types with blocks of 256
 * values. */
typedef void unpack_fn(const struct panel_rows *r, uint32_t b0, uint32_t blocks, void *panel);
/* The 16 outputs of one row of activations. */
typedef __m512 row_fn(const struct panel_rows *r, const struct act_row *a, uint32_t blocks);

/* The 16 outputs of a few rows, of which those of `lanes` go to y. */
typedef void few_fn(const struct panel_rows *r, const struct act_few *a, uint32_t blocks,
                    __mmask16 lanes, float *y, size_t y_stride);

struct panel_type {
    enum weight_type type;
    int offset; /* unpacked bytes are codes plus this */
    bool wide;  /* bytes may be above 127 */
    unpack_fn *unpack;
    row_fn *row;
    few_fn *few;
};

/* All types: function names, enum weight_type, offset, wide. */
#define PANEL_TYPES(USE)                                                                           \
    USE(q4_0, Q4_0, 8, false)                                                                      \
    USE(q4_1, Q4_1, 0, false)                                                                      \
    USE(q5_0, Q5_0, 16, false)                                                                     \
    USE(q5_1, Q5_1, 0, false)                                                                      \
    USE(q8_0, Q8_0, 128, true)                                                                     \
    USE(iq4_nl, IQ4_NL, 128, true)                                                                 \
    USE(mxfp4, MXFP4, 12, false)                                                                   \
    USE(q2_k, Q2_K, 0, false)                                                                      \
    USE(q3_k, Q3_K, 4, false)                                                                      \
    USE(q4_k, Q4_K, 0, false)                                                                      \
    USE(q5_k, Q5_K, 0, false)                                                                      \
    USE(q6_k, Q6_K, 32, false)                                                                     \
    USE(q8_k, Q8_K, 128, true)                                                                     \
    USE(iq4_xs, IQ4_XS, 128, true)                                                                 \
    USE(affine2, AFFINE2, 0, false)                                                                \
    USE(affine3, AFFINE3, 0, false)                                                                \
    USE(affine4, AFFINE4, 0, false)                                                                \
    USE(affine5, AFFINE5, 0, false)                                                                \
    USE(affine6, AFFINE6, 0, false)                                                                \
    USE(affine8, AFFINE8, 128, true)                                                               \
    USE(mxfp4_mlx, MXFP4_MLX, 12, false)

#define DECLARE_TYPE(name, NAME, offset, wide)                                                     \
    unpack_fn TIER(unpack_##name);                                                                 \
    row_fn TIER(row_##name);                                                                       \
    few_fn TIER(few_##name);
PANEL_TYPES(DECLARE_TYPE)

/* ---- passes: many rows ----------------------------------------------------------------------- */

enum { PANELS = 2 }; /* that are multiplied with each row of activations */

/* The weights of the next two panels: some lines of them are prefetched with each block that a tile
 * multiplies, into L2, up to the end. While a panel is unpacked memory is busy with that one, while
 * it is multiplied with nothing (docs/speed.md, "Prefetching while multiplying"). */
struct ahead {
    const char *at, *end;
    uint32_t lines; /* a block and tile */
};

/* A pass of all rows of activations over a chunk of two panels. */
struct pass {
    const struct act_rows *a;
    uint8_t *panel[PANELS]; /* both the same if there is only one; a pass may change them */
    uint32_t b0, blocks;    /* of the chunk */
    int32_t offset;         /* of the weights' bytes */
    bool has_min;
    __mmask16 lanes[PANELS]; /* outputs that are stored */
    float *y[PANELS];        /* of row 0 and a panel's first lane */
    size_t y_stride;
    struct ahead ahead;
};
typedef void pass_fn(const struct pass *t);

/* A product_fn. pass: what multiplies many rows; NULL: this tier's own. One of another tier may
 * expect 8 bits and runs of 32, and gets rows as act_pack leaves them. */
void TIER(product_by)(pass_fn *pass, const struct weight *w, uint32_t n0, uint32_t n1,
                      const struct act_rows *a, float *y, size_t y_stride, void *scratch);

ALWAYS_INLINE void prefetch_ahead(struct ahead *a) {
    for (uint32_t l = 0; l < a->lines && a->at < a->end; l++, a->at += 64)
        _mm_prefetch(a->at, _MM_HINT_T1);
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Whether pairs of products with codes of wide types would overflow in dot4_u8s8. */
#ifdef KVASIR_AVX512VNNI
enum { PAIRS_OVERFLOW = false };
#else
enum { PAIRS_OVERFLOW = true };
#endif

/* A vector of weight codes as what is multiplied: with VNNI the vector itself. */
struct factors {
    __m512i part[2];
    int count;
};

ALWAYS_INLINE struct factors factors_of(__m512i w, bool wide) {
    if (!wide || !PAIRS_OVERFLOW)
        return (struct factors){{w}, 1};
    /* floor(w / 2) and what it leaves: both in 0..128 */
    __m512i half = _mm512_and_si512(_mm512_srli_epi16(w, 1), _mm512_set1_epi8(127));
    return (struct factors){{half, _mm512_sub_epi8(w, half)}, 2};
}

ALWAYS_INLINE __m512i broadcast_group(const void *codes) {
    int32_t four;
    memcpy(&four, codes, sizeof four);
    return _mm512_set1_epi32(four);
}

#endif
