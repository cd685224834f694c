/* SPDX-License-Identifier: Apache-2.0 */
/* unpack_k.c: GGUF's blocks of 256 values to panels, AVX-512. quant/weight_k.c draws the blocks.
 *
 * A block is eight blocks of a panel. Its bytes are transposed a part at a time into vectors of
 * dwords, 4 bytes of each row; the codes of group g of panel block c are fields of the g-th such
 * vector of its 32 bytes, at a place that c says. Sub-scales are bytes of transposed dwords
 * likewise, cut for 16 rows at once. The products d * sub are exact (quant/weight.h).
 */
#include "backend/cpu/avx512/unpack.h"

enum { UNITS = 8 };
_Static_assert(UNITS *BLOCK == WEIGHT_BLOCK_MAX, "a block is eight blocks of a panel");
/* Offsets of fields below are those of the blocks; the last field ends with the block. */
_Static_assert(68 + 16 == WEIGHT_BYTES_Q2_K && 94 + 16 == WEIGHT_BYTES_Q3_K, "d at the end");
_Static_assert(16 + 128 == WEIGHT_BYTES_Q4_K && 48 + 128 == WEIGHT_BYTES_Q5_K, "codes at the end");
_Static_assert(194 + 16 == WEIGHT_BYTES_Q6_K && 8 + 128 == WEIGHT_BYTES_IQ4_XS, "d, codes");

/* Bits [from, from + bits) of every dword. */
ALWAYS_INLINE __m512i field(__m512i v, int from, int bits) {
    v = _mm512_srli_epi32(v, (unsigned)from);
    return _mm512_and_si512(v, _mm512_set1_epi32((1 << bits) - 1));
}

ALWAYS_INLINE __m512 scaled(__m512 d, __m512i sub) {
    return _mm512_mul_ps(d, _mm512_cvtepi32_ps(sub));
}

/* -(dmin * min) */
ALWAYS_INLINE __m512 minus_scaled(__m512 dmin, __m512i min) {
    return _mm512_sub_ps(_mm512_setzero_ps(), scaled(dmin, min));
}

/* v with 4-bit codes, or-ed with `bits` in the bytes where bit `at` of h is set. */
ALWAYS_INLINE __m512i or_bit(__m512i v, __m512i h, int at, char bits) {
    __mmask64 has = _mm512_test_epi8_mask(h, _mm512_set1_epi8((char)(1 << at)));
    return _mm512_or_si512(v, _mm512_maskz_mov_epi8(has, _mm512_set1_epi8(bits)));
}

/* ---- Q4_K, Q5_K ------------------------------------------------------------------------------ */

/* head: | d dmin | six bits of sub 0..3, two more of sub 4..7 | the same of min | four lower bits
 * of sub and of min 4..7 |, a dword each. */
ALWAYS_INLINE void put_q4_k_scales(const __m512i head[4], struct panel_block *first) {
    __m512 d = low_f16(head[0]), dmin = high_f16(head[0]);
    UNROLL_FOR(u, 4) {
        __m512i upper = _mm512_slli_epi32(field(head[1], 8 * u + 6, 2), 4);
        __m512i sub = _mm512_or_si512(upper, field(head[3], 8 * u, 4));
        upper = _mm512_slli_epi32(field(head[2], 8 * u + 6, 2), 4);
        __m512i min = _mm512_or_si512(upper, field(head[3], 8 * u + 4, 4));
        put_scales(first + u, 0, scaled(d, field(head[1], 8 * u, 6)),
                   minus_scaled(dmin, field(head[2], 8 * u, 6)));
        put_scales(first + u + 4, 0, scaled(d, sub), minus_scaled(dmin, min));
    }
}

/* high: the fifth bits, NULL for Q4_K. */
ALWAYS_INLINE void put_q4_k_codes(const struct panel_rows *r, size_t at, const __m512i *high,
                                  struct few_products *m, struct panel_block *first) {
    for (int quarter = 0; quarter < 4; quarter++) {
        __m512i low[GROUPS];
        load_transposed_32(r, at + 32 * (size_t)quarter, NOTHING, low);
        UNROLL_FOR(half, 2) {
            const int c = 2 * quarter + half;
            UNROLL_FOR(g, GROUPS) {
                __m512i w = bits_of(low[g], 4 * half, 4);
                put_group(m, first, c, g, high ? or_bit(w, high[g], c, 16) : w);
            }
        }
    }
}

ALWAYS_INLINE void q4_k(const struct panel_rows *r, size_t at, struct few_products *m,
                        struct panel_block *first) {
    __m512i head[4];
    put_q4_k_codes(r, at + 16, NULL, m, first);
    load_transposed(r, at, NOTHING, head);
    put_q4_k_scales(head, first);
}

ALWAYS_INLINE void q5_k(const struct panel_rows *r, size_t at, struct few_products *m,
                        struct panel_block *first) {
    __m512i head[4], high[GROUPS];
    load_transposed_32(r, at + 16, NOTHING, high);
    put_q4_k_codes(r, at + 48, high, m, first);
    load_transposed(r, at, NOTHING, head);
    put_q4_k_scales(head, first);
}

/* ---- Q2_K, Q3_K ------------------------------------------------------------------------------ */

/* Panel blocks c0 to c0 + 3, of 2-bit codes from 32 bytes. high: third bits, NULL for Q2_K. */
ALWAYS_INLINE void put_twos(const struct panel_rows *r, size_t at, int c0, const __m512i *high,
                            struct few_products *m, struct panel_block *first) {
    __m512i low[GROUPS];
    load_transposed_32(r, at, NOTHING, low);
    if (m)
        IN_MEMORY(low);
    UNROLL_FOR(c, 4) {
        UNROLL_FOR(g, GROUPS) {
            __m512i w = bits_of(low[g], 2 * c, 2);
            put_group(m, first, c0 + c, g, high ? or_bit(w, high[g], c0 + c, 4) : w);
        }
    }
}

ALWAYS_INLINE void q2_k(const struct panel_rows *r, size_t at, struct few_products *m,
                        struct panel_block *first) {
    __m512i subs[4], tail[4];
    put_twos(r, at + 16, 0, NULL, m, first);
    put_twos(r, at + 48, 4, NULL, m, first);
    load_transposed(r, at, NOTHING, subs);
    load_transposed(r, at + 68, NOTHING, tail);
    __m512 d = low_f16(tail[3]), dmin = high_f16(tail[3]);
    for (int u = 0; u < 2 * UNITS; u++)
        put_scales(first + u / 2, u % 2, scaled(d, field(subs[u / 4], u % 4 * 8, 4)),
                   minus_scaled(dmin, field(subs[u / 4], u % 4 * 8 + 4, 4)));
}

/* tail: 16 bytes from two before the sub-scales to the block's end, d. A sub-scale's lower four
 * bits are nibble u / 8 of byte u % 8, the upper two field u / 4 of byte 8 + u % 4. */
ALWAYS_INLINE void put_q3_k_scales(const __m512i tail[4], struct panel_block *first) {
    __m512 d = high_f16(tail[3]);
    __m512i dword[3];
    UNROLL_FOR(i, 3) {
        dword[i] =
            _mm512_or_si512(_mm512_srli_epi32(tail[i], 16), _mm512_slli_epi32(tail[i + 1], 16));
    }
    for (int u = 0; u < 2 * UNITS; u++) {
        __m512i low = field(dword[u % 8 / 4], u % 4 * 8 + u / 8 * 4, 4);
        __m512i high = field(dword[2], u % 4 * 8 + u / 4 * 2, 2);
        __m512i sub = _mm512_sub_epi32(_mm512_or_si512(_mm512_slli_epi32(high, 4), low),
                                       _mm512_set1_epi32(32));
        put_scales(first + u / 2, u % 2, scaled(d, sub), _mm512_setzero_ps());
    }
}

/* A code plus 4 is two low bits and a high one. */
ALWAYS_INLINE void q3_k(const struct panel_rows *r, size_t at, struct few_products *m,
                        struct panel_block *first) {
    __m512i high[GROUPS], tail[4];
    load_transposed_32(r, at, NOTHING, high);
    if (m)
        IN_MEMORY(high);
    for (int half = 0; half < 2; half++)
        put_twos(r, at + 32 + 32 * (size_t)half, 4 * half, high, m, first);
    load_transposed(r, at + 94, NOTHING, tail);
    put_q3_k_scales(tail, first);
}

/* ---- Q6_K ------------------------------------------------------------------------------------ */

/* Panel blocks c0 to c0 + 3: their low nibbles in 64 bytes, two high bits in 32. */
ALWAYS_INLINE void put_sixes(const struct panel_rows *r, size_t low_at, size_t high_at, int c0,
                             struct few_products *m, struct panel_block *first) {
    __m512i low[2][GROUPS], high[GROUPS];
    load_transposed_32(r, low_at, NOTHING, low[0]);
    load_transposed_32(r, low_at + 32, NOTHING, low[1]);
    load_transposed_32(r, high_at, NOTHING, high);
    if (m) {
        IN_MEMORY(low);
        IN_MEMORY(high);
    }
    UNROLL_FOR(c, 4) {
        UNROLL_FOR(g, GROUPS) {
            __m512i upper = _mm512_slli_epi16(bits_of(high[g], 2 * c, 2), 4);
            __m512i w = _mm512_or_si512(bits_of(low[c % 2][g], c / 2 * 4, 4), upper);
            put_group(m, first, c0 + c, g, w);
        }
    }
}

ALWAYS_INLINE void q6_k(const struct panel_rows *r, size_t at, struct few_products *m,
                        struct panel_block *first) {
    __m512i subs[4], tail[4];
    for (int half = 0; half < 2; half++)
        put_sixes(r, at + 64 * (size_t)half, at + 128 + 32 * (size_t)half, 4 * half, m, first);
    load_transposed(r, at + 192, NOTHING, subs);
    load_transposed(r, at + 194, NOTHING, tail);
    __m512 d = high_f16(tail[3]);
    for (int u = 0; u < 2 * UNITS; u++) {
        __m512i top = _mm512_sll_epi32(subs[u / 4], _mm_cvtsi32_si128(24 - u % 4 * 8));
        put_scales(first + u / 2, u % 2, scaled(d, _mm512_srai_epi32(top, 24)),
                   _mm512_setzero_ps());
    }
}

/* ---- Q8_K, IQ4_XS ---------------------------------------------------------------------------- */

ALWAYS_INLINE void q8_k(const struct panel_rows *r, size_t at, struct few_products *m,
                        struct panel_block *first) {
    __m512i head[4];
    load_transposed(r, at, NOTHING, head);
    for (int c = 0; c < UNITS; c++) {
        __m512i w[GROUPS];
        load_transposed_32(r, at + 4 + 32 * (size_t)c, NOTHING, w);
        flip_signs(w);
        UNROLL_FOR(g, GROUPS) {
            put_group(m, first, c, g, w[g]);
        }
        put_scales(first + c, 0, _mm512_castsi512_ps(head[0]), _mm512_setzero_ps());
    }
}

ALWAYS_INLINE void iq4_xs(const struct panel_rows *r, size_t at, struct few_products *m,
                          struct panel_block *first) {
    __m512i head[4];
    load_transposed(r, at, NOTHING, head);
    __m512 d = low_f16(head[0]);
    for (int c = 0; c < UNITS; c++) {
        __m512i high = _mm512_slli_epi32(field(head[0], 16 + 2 * c, 2), 4);
        __m512i sub = _mm512_or_si512(high, field(head[1], 4 * c, 4)), q[4];
        load_transposed(r, at + 8 + 16 * (size_t)c, NOTHING, q);
        UNROLL_FOR(g, GROUPS) {
            put_group(m, first, c, g, lookup(IQ4_VALUES_128, bits_of(q[g % 4], g / 4 * 4, 4)));
        }
        put_scales(first + c, 0, scaled(d, _mm512_sub_epi32(sub, _mm512_set1_epi32(32))),
                   _mm512_setzero_ps());
    }
}

/* blocks of a panel, bytes, runs, has a minimum, offset */
DEFINE_TYPE(q2_k, UNITS, WEIGHT_BYTES_Q2_K, 2, true, 0)
DEFINE_TYPE(q3_k, UNITS, WEIGHT_BYTES_Q3_K, 2, false, 4)
DEFINE_TYPE(q4_k, UNITS, WEIGHT_BYTES_Q4_K, 1, true, 0)
DEFINE_TYPE(q5_k, UNITS, WEIGHT_BYTES_Q5_K, 1, true, 0)
DEFINE_TYPE(q6_k, UNITS, WEIGHT_BYTES_Q6_K, 2, false, 32)
DEFINE_TYPE(q8_k, UNITS, WEIGHT_BYTES_Q8_K, 1, false, 128)
DEFINE_TYPE(iq4_xs, UNITS, WEIGHT_BYTES_IQ4_XS, 1, false, 128)
