/* SPDX-License-Identifier: Apache-2.0 */
/* unpack_32.c: GGUF's blocks of 32 values to panels, AVX-512. quant/weight.c draws the blocks.
 *
 * The 16 bytes of a block's nibbles, transposed, are four dwords of each row: the low nibbles of
 * dword j are the codes of group j, the high ones those of group 4 + j.
 */
#include "backend/cpu/avx512/unpack.h"

/* Offsets of fields below are those of the blocks; the last field ends with the block. */
_Static_assert(2 + 16 == WEIGHT_BYTES_Q4_0 && 4 + 16 == WEIGHT_BYTES_Q4_1, "nibbles at the end");
_Static_assert(6 + 16 == WEIGHT_BYTES_Q5_0 && 8 + 16 == WEIGHT_BYTES_Q5_1, "nibbles at the end");
_Static_assert(2 + 32 == WEIGHT_BYTES_Q8_0 && 1 + 16 == WEIGHT_BYTES_MXFP4, "codes at the end");

/* ---- codes of a block ------------------------------------------------------------------------ */

/* Nibbles from 16 bytes at `at`, and groups 4 to 7 of the products; the first four belong to the
 * scales. */
ALWAYS_INLINE void put_nibbles(const struct panel_rows *r, size_t at, struct few_products *m,
                               struct panel_block *b) {
    __m512i q[4];
    load_transposed(r, at, (struct meanwhile){m, 4, 4}, q);
    UNROLL_FOR(j, 4) {
        b->w[j] = bits_of(q[j], 0, 4);
        b->w[j + 4] = bits_of(q[j], 4, 4);
    }
}

/* Nibbles that are indices of a table. */
ALWAYS_INLINE void put_values(const struct panel_rows *r, size_t at, const uint8_t values[16],
                              struct few_products *m, struct panel_block *b) {
    put_nibbles(r, at, m, b);
    UNROLL_FOR(g, GROUPS) {
        b->w[g] = lookup(values, b->w[g]);
    }
}

/* Nibbles with a fifth bit, bit i of `fifth` for code i. */
ALWAYS_INLINE void put_fives(const struct panel_rows *r, size_t at, __m512i fifth,
                             struct few_products *m, struct panel_block *b) {
    const __m512i first =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
    put_nibbles(r, at, m, b);
    UNROLL_FOR(g, GROUPS) {
        /* byte g / 2 of every dword four times, of which byte i looks at bit 4 (g % 2) + i */
        const __m512i order = _mm512_add_epi8(first, _mm512_set1_epi8((char)(g / 2)));
        const __m512i bit = _mm512_set1_epi32(g % 2 ? (int)0x80402010 : 0x08040201);
        __mmask64 has = _mm512_test_epi8_mask(_mm512_shuffle_epi8(fifth, order), bit);
        b->w[g] = _mm512_mask_add_epi8(b->w[g], has, b->w[g], _mm512_set1_epi8(16));
    }
}

/* ---- the types ------------------------------------------------------------------------------- */

/* The dword at `at` of each row; 16 bytes are read. */
ALWAYS_INLINE __m512i column(const struct panel_rows *r, size_t at, struct few_products *m) {
    __m512i q[4];
    load_transposed(r, at, (struct meanwhile){m, 0, 4}, q);
    return q[0];
}

/* A type is one block of it, at `at` of its row, to one block of a panel. */
ALWAYS_INLINE void q4_0(const struct panel_rows *r, size_t at, struct few_products *m,
                        struct panel_block *b) {
    put_scales(b, 0, low_f16(column(r, at, m)), _mm512_setzero_ps());
    put_nibbles(r, at + 2, m, b);
}

ALWAYS_INLINE void q4_1(const struct panel_rows *r, size_t at, struct few_products *m,
                        struct panel_block *b) {
    __m512i head = column(r, at, m);
    put_scales(b, 0, low_f16(head), high_f16(head));
    put_nibbles(r, at + 4, m, b);
}

ALWAYS_INLINE void q5_0(const struct panel_rows *r, size_t at, struct few_products *m,
                        struct panel_block *b) {
    __m512i head[4];
    load_transposed(r, at, (struct meanwhile){m, 0, 4}, head);
    put_scales(b, 0, low_f16(head[0]), _mm512_setzero_ps());
    __m512i fifth = _mm512_or_si512(_mm512_srli_epi32(head[0], 16), _mm512_slli_epi32(head[1], 16));
    put_fives(r, at + 6, fifth, m, b);
}

ALWAYS_INLINE void q5_1(const struct panel_rows *r, size_t at, struct few_products *m,
                        struct panel_block *b) {
    __m512i head[4];
    load_transposed(r, at, (struct meanwhile){m, 0, 4}, head);
    put_scales(b, 0, low_f16(head[0]), high_f16(head[0]));
    put_fives(r, at + 8, head[1], m, b);
}

ALWAYS_INLINE void q8_0(const struct panel_rows *r, size_t at, struct few_products *m,
                        struct panel_block *b) {
    put_scales(b, 0, low_f16(column(r, at, m)), _mm512_setzero_ps());
    load_transposed_32(r, at + 2, (struct meanwhile){m, 4, 4}, b->w);
    flip_signs(b->w);
}

ALWAYS_INLINE void iq4_nl(const struct panel_rows *r, size_t at, struct few_products *m,
                          struct panel_block *b) {
    put_scales(b, 0, low_f16(column(r, at, m)), _mm512_setzero_ps());
    put_values(r, at + 2, IQ4_VALUES_128, m, b);
}

ALWAYS_INLINE void mxfp4(const struct panel_rows *r, size_t at, struct few_products *m,
                         struct panel_block *b) {
    __m512i e = _mm512_and_si512(column(r, at, m), _mm512_set1_epi32(255));
    put_scales(b, 0, e8m0_halves(e), _mm512_setzero_ps());
    put_values(r, at + 1, E2M1_DOUBLED_12, m, b);
}

/* blocks of a panel, bytes, runs, has a minimum, offset */
DEFINE_TYPE(q4_0, 1, WEIGHT_BYTES_Q4_0, 1, false, 8)
DEFINE_TYPE(q4_1, 1, WEIGHT_BYTES_Q4_1, 1, true, 0)
DEFINE_TYPE(q5_0, 1, WEIGHT_BYTES_Q5_0, 1, false, 16)
DEFINE_TYPE(q5_1, 1, WEIGHT_BYTES_Q5_1, 1, true, 0)
DEFINE_TYPE(q8_0, 1, WEIGHT_BYTES_Q8_0, 1, false, 128)
DEFINE_TYPE(iq4_nl, 1, WEIGHT_BYTES_IQ4_NL, 1, false, 128)
DEFINE_TYPE(mxfp4, 1, WEIGHT_BYTES_MXFP4, 1, false, 12)
