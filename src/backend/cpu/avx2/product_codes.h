/* SPDX-License-Identifier: Apache-2.0 */
/* product_codes.h: a weight type as the loops of product_quant.c see it: its shape, and 32 codes of
 * a row as bytes in natural order (load_codes). A new type is a row of shape_of, a case of
 * load_codes and a case of product_scales.h.
 *
 * AVX2-1 A row is units one after the other. A unit is what shares a header: one block of 32
 * values, or 8 of them in GGUF's blocks of 256. Block i of a unit has one run of 32 or two of 16.
 *
 * AVX2-2 Products are taken by maddubs, which adds two of them in s16: the codes must be unsigned,
 * or their magnitudes are and the activations take over the signs (is_signed). `pairs` of these
 * sums may be added in s16 before they are widened:
 *
 *        codes up to   of a run of    pairs * 2 * code * 127
 *        15            32             8 * 2 * 15 * 127 = 30480
 *        31            32             4 * 2 * 31 * 127 = 31496
 *        63            32             2 * 2 * 63 * 127 = 32004
 *        3             16             4 * 2 *  3 * 127 =  3048
 *        128 (signed)  any            1 * 2 * 128 * 127 = 32512
 *
 *    Where the weight is code - offset, sums start from -offset times those of the activations.
 *    What wraps on the way comes back, so it is the weights' magnitudes that count:
 *
 *        8, 12, 16     32             8 * 2 * 16 * 127 = 32512
 *        4, 32         16             4 * 2 * 32 * 127 = 32512
 *
 *    and no pair may saturate by itself: 2 * 63 * 127 = 16002.
 *
 * Weights are read where they are mapped, at any address, and no other byte is read.
 */
#ifndef KVASIR_CPU_AVX2_PRODUCT_CODES_H
#define KVASIR_CPU_AVX2_PRODUCT_CODES_H

#include "backend/cpu/avx2/product.h"

/* Offsets of fields below and in product_scales.h are those of the blocks in quant/weight.c and
 * weight_k.c; the last field of each ends with the block. */
_Static_assert(8 + ACT_BLOCK / 2 == WEIGHT_BYTES_Q5_1 && 2 + ACT_BLOCK == WEIGHT_BYTES_Q8_0,
               "nibbles and bytes at the end");
_Static_assert(80 + 4 == WEIGHT_BYTES_Q2_K && 94 + 16 == WEIGHT_BYTES_Q3_K, "d at the end");
_Static_assert(48 + 128 == WEIGHT_BYTES_Q5_K && 16 + 128 == WEIGHT_BYTES_Q4_K, "codes at the end");
_Static_assert(208 + 2 == WEIGHT_BYTES_Q6_K && 8 + 128 == WEIGHT_BYTES_IQ4_XS, "d, codes");

struct shape {
    uint16_t unit_bytes; /* of data */
    uint8_t unit_blocks; /* 1 or 8 */
    uint8_t runs;        /* of a block: 1 or 2 */
    uint8_t pairs;       /* see AVX2-2 */
    bool is_signed, has_min;
    uint8_t offset;    /* weight = code - offset */
    bool scales_apart; /* d and m are not in data */
};

ALWAYS_INLINE struct shape shape_of(enum weight_type t) {
    /*                       bytes blocks runs pairs signed min    offset apart */
    switch (t) {
    case WEIGHT_Q4_0:
        return (struct shape){WEIGHT_BYTES_Q4_0, 1, 1, 8, false, false, 8, false};
    case WEIGHT_Q4_1:
        return (struct shape){WEIGHT_BYTES_Q4_1, 1, 1, 8, false, true, 0, false};
    case WEIGHT_Q5_0:
        return (struct shape){WEIGHT_BYTES_Q5_0, 1, 1, 8, false, false, 16, false};
    case WEIGHT_Q5_1:
        return (struct shape){WEIGHT_BYTES_Q5_1, 1, 1, 4, false, true, 0, false};
    case WEIGHT_Q8_0:
        return (struct shape){WEIGHT_BYTES_Q8_0, 1, 1, 1, true, false, 0, false};
    case WEIGHT_IQ4_NL:
        return (struct shape){WEIGHT_BYTES_IQ4_NL, 1, 1, 1, true, false, 0, false};
    case WEIGHT_MXFP4:
        return (struct shape){WEIGHT_BYTES_MXFP4, 1, 1, 8, false, false, 12, false};
    case WEIGHT_Q2_K:
        return (struct shape){WEIGHT_BYTES_Q2_K, 8, 2, 4, false, true, 0, false};
    case WEIGHT_Q3_K:
        return (struct shape){WEIGHT_BYTES_Q3_K, 8, 2, 4, false, false, 4, false};
    case WEIGHT_Q4_K:
        return (struct shape){WEIGHT_BYTES_Q4_K, 8, 1, 8, false, true, 0, false};
    case WEIGHT_Q5_K:
        return (struct shape){WEIGHT_BYTES_Q5_K, 8, 1, 4, false, true, 0, false};
    case WEIGHT_Q6_K:
        return (struct shape){WEIGHT_BYTES_Q6_K, 8, 2, 4, false, false, 32, false};
    case WEIGHT_Q8_K:
        return (struct shape){WEIGHT_BYTES_Q8_K, 8, 1, 1, true, false, 0, false};
    case WEIGHT_IQ4_XS:
        return (struct shape){WEIGHT_BYTES_IQ4_XS, 8, 1, 1, true, false, 0, false};
    case WEIGHT_AFFINE2:
        return (struct shape){8, 1, 1, 8, false, true, 0, true};
    case WEIGHT_AFFINE3:
        return (struct shape){12, 1, 1, 8, false, true, 0, true};
    case WEIGHT_AFFINE4:
        return (struct shape){16, 1, 1, 8, false, true, 0, true};
    case WEIGHT_AFFINE5:
        return (struct shape){20, 1, 1, 4, false, true, 0, true};
    case WEIGHT_AFFINE6:
        return (struct shape){24, 1, 1, 2, false, true, 0, true};
    case WEIGHT_AFFINE8:
        return (struct shape){32, 1, 1, 1, true, true, 0, true};
    case WEIGHT_MXFP4_MLX:
        return (struct shape){16, 1, 1, 8, false, false, 12, true};
    default: /* float types: product_float.c */
        return (struct shape){0};
    }
}

/* ---- rows side by side ----------------------------------------------------------------------- */

enum { SIDE = 8 }; /* weight rows side by side: the lanes of a vector */

/* A place in each of eight rows, which are equally far apart; rows 0 and 4 are named because two
 * pointers and a stride are what eight addresses need. */
struct places {
    const uint8_t *row0, *row4;
    size_t stride;
};

ALWAYS_INLINE struct places places_behind(struct places p, size_t bytes) {
    return (struct places){p.row0 + bytes, p.row4 + bytes, p.stride};
}
/* Of row o, and of row o + 4, o < 4. */
ALWAYS_INLINE const uint8_t *lower(struct places p, int o) {
    return p.row0 + (size_t)o * p.stride;
}
ALWAYS_INLINE const uint8_t *upper(struct places p, int o) {
    return p.row4 + (size_t)o * p.stride;
}

/* ---- codes of two rows ----------------------------------------------------------------------- */

/* Row a's bytes in the low half of a vector, row b's in the high one. */
ALWAYS_INLINE __m256i join(__m128i a, __m128i b) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
}
ALWAYS_INLINE __m128i load_16(const uint8_t *p) {
    return _mm_loadu_si128((const __m128i *)p);
}
ALWAYS_INLINE __m128i load_8(const uint8_t *p) {
    return _mm_loadl_epi64((const __m128i *)p);
}

struct two_rows {
    const uint8_t *a, *b;
};
ALWAYS_INLINE __m256i two_16(struct two_rows p, int at) {
    return join(load_16(p.a + at), load_16(p.b + at));
}

/* `bits` bits of each byte, from bit `at` on, put at bit `to`. Bits that come over from the
 * neighbour of a 16-bit lane are masked away. */
ALWAYS_INLINE __m256i field(__m256i v, int at, int bits, int to) {
    __m256i moved = at > to ? _mm256_srli_epi16(v, at - to) : _mm256_slli_epi16(v, to - at);
    return _mm256_and_si256(moved, _mm256_set1_epi8((char)(((1 << bits) - 1) << to)));
}

/* 32 bytes, one a code, `bits` bits of each. */
ALWAYS_INLINE void fields(struct two_rows p, int at, int bit, int bits, __m256i c[2]) {
    UNROLL_FOR(h, 2) {
        c[h] = field(two_16(p, at + 16 * h), bit, bits, 0);
    }
}

/* The same, as further bits of the codes from bit `to` on. */
ALWAYS_INLINE void add_fields(struct two_rows p, int at, int bit, int bits, int to, __m256i c[2]) {
    UNROLL_FOR(h, 2) {
        c[h] = _mm256_or_si256(c[h], field(two_16(p, at + 16 * h), bit, bits, to));
    }
}

/* 16 bytes: codes 0..15 are the low nibbles, 16..31 the high ones. */
ALWAYS_INLINE void nibbles(struct two_rows p, int at, __m256i c[2]) {
    __m256i v = two_16(p, at);
    c[0] = field(v, 0, 4, 0);
    c[1] = field(v, 4, 4, 0);
}

/* Bit j of four bytes is the fifth bit of code j. */
ALWAYS_INLINE void add_fifth_bits(struct two_rows p, int at, __m256i c[2]) {
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i v = _mm256_blend_epi32(broadcast_dword(p.a + at), broadcast_dword(p.b + at), 0xf0);
    UNROLL_FOR(h, 2) {
        const __m256i copies =
            _mm256_setr_epi64x(0x0101010101010101 * (2 * h), 0x0101010101010101 * (2 * h + 1),
                               0x0101010101010101 * (2 * h), 0x0101010101010101 * (2 * h + 1));
        __m256i set = _mm256_and_si256(_mm256_shuffle_epi8(v, copies), bit);
        set = _mm256_and_si256(_mm256_cmpeq_epi8(set, bit), _mm256_set1_epi8(16));
        c[h] = _mm256_or_si256(c[h], set);
    }
}

ALWAYS_INLINE void look_up(__m128i table, __m256i c[2]) {
    UNROLL_FOR(h, 2) {
        c[h] = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), c[h]);
    }
}
ALWAYS_INLINE void iq4_values(__m256i c[2]) {
    look_up(_mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
            c);
}
/* Twice the values of E2M1, plus 12. */
ALWAYS_INLINE void e2m1_codes(__m256i c[2]) {
    look_up(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0), c);
}

/* ---- bit streams ----------------------------------------------------------------------------- */

/* 16 bytes: a low nibble, its high one, and so on. */
ALWAYS_INLINE void stream_4(struct two_rows p, __m256i c[2]) {
    __m256i n[2];
    nibbles(p, 0, n);
    c[0] = _mm256_unpacklo_epi8(n[0], n[1]);
    c[1] = _mm256_unpackhi_epi8(n[0], n[1]);
}

/* 8 bytes of four codes each. */
ALWAYS_INLINE void stream_2(struct two_rows p, __m256i c[2]) {
    __m256i bytes = join(load_8(p.a), load_8(p.b));
    bytes = _mm256_unpacklo_epi8(bytes, _mm256_setzero_si256());
    UNROLL_FOR(h, 2) {
        __m256i v = h == 0 ? _mm256_unpacklo_epi16(bytes, _mm256_setzero_si256())
                           : _mm256_unpackhi_epi16(bytes, _mm256_setzero_si256());
        v = _mm256_or_si256(v, _mm256_slli_epi32(v, 6));
        v = _mm256_or_si256(v, _mm256_slli_epi32(v, 12));
        c[h] = _mm256_and_si256(v, _mm256_set1_epi8(3));
    }
}

/* Codes of 3, 5 or 6 bits. Two neighbours, 2 * bits wide, are within two bytes; these are brought
 * into a 16-bit lane, moved to its upper end and taken apart there:
 *
 *     pair n of 8 of half a block   from bit s = 2 * bits * n % 8 of byte 2 * bits * n / 8 on
 *     lane      ...bbbbbaaaaa...    times 2^(16 - 2 * bits - s)
 *               bbbbbaaaaa......    b to the upper byte, a to the lower one
 *
 * The second half, 2 * bits bytes in, is loaded so that its last load ends with it. */
ALWAYS_INLINE void stream_pairs(struct two_rows p, int bits, __m256i c[2]) {
#define PAIR_BYTES(n) (char)(2 * bits * (n) / 8), (char)(2 * bits * (n) / 8 + 1)
#define PAIR_SHIFT(n) (short)(1 << (16 - 2 * bits - 2 * bits * (n) % 8))
    const __m128i bytes = _mm_setr_epi8(PAIR_BYTES(0), PAIR_BYTES(1), PAIR_BYTES(2), PAIR_BYTES(3),
                                        PAIR_BYTES(4), PAIR_BYTES(5), PAIR_BYTES(6), PAIR_BYTES(7));
    const __m128i shifts =
        _mm_setr_epi16(PAIR_SHIFT(0), PAIR_SHIFT(1), PAIR_SHIFT(2), PAIR_SHIFT(3), PAIR_SHIFT(4),
                       PAIR_SHIFT(5), PAIR_SHIFT(6), PAIR_SHIFT(7));
#undef PAIR_BYTES
#undef PAIR_SHIFT
    const __m256i low = _mm256_set1_epi16((short)((1 << bits) - 1));
    const __m256i high = _mm256_slli_epi16(low, 8);
    int loaded = bits == 3 ? 8 : 16;
    UNROLL_FOR(h, 2) {
        int at = h == 0 ? 0 : 4 * bits - loaded, skip = h == 0 ? 0 : loaded - 2 * bits;
        __m256i v = bits == 3 ? join(load_8(p.a + at), load_8(p.b + at)) : two_16(p, at);
        v = _mm256_shuffle_epi8(
            v, _mm256_broadcastsi128_si256(_mm_add_epi8(bytes, _mm_set1_epi8((char)skip))));
        v = _mm256_mullo_epi16(v, _mm256_broadcastsi128_si256(shifts));
        c[h] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v, 8 - bits), high),
                               _mm256_and_si256(_mm256_srli_epi16(v, 16 - 2 * bits), low));
    }
}

/* ---- the types ------------------------------------------------------------------------------- */

ALWAYS_INLINE void bytes(struct two_rows p, int at, __m256i c[2]) {
    UNROLL_FOR(h, 2) {
        c[h] = two_16(p, at + 16 * h);
    }
}

/* GGUF's blocks of 32. */
ALWAYS_INLINE void load_codes_32(enum weight_type t, struct two_rows p, __m256i c[2]) {
    switch (t) {
    case WEIGHT_Q4_0:
        nibbles(p, 2, c);
        break;
    case WEIGHT_Q4_1:
        nibbles(p, 4, c);
        break;
    case WEIGHT_Q5_0:
        nibbles(p, 6, c);
        add_fifth_bits(p, 2, c);
        break;
    case WEIGHT_Q5_1:
        nibbles(p, 8, c);
        add_fifth_bits(p, 4, c);
        break;
    case WEIGHT_Q8_0:
        bytes(p, 2, c);
        break;
    case WEIGHT_IQ4_NL:
        nibbles(p, 2, c);
        iq4_values(c);
        break;
    case WEIGHT_MXFP4:
        nibbles(p, 1, c);
        e2m1_codes(c);
        break;
    default:
        break;
    }
}

/* Block i of GGUF's blocks of 256. */
ALWAYS_INLINE void load_codes_256(enum weight_type t, struct two_rows p, int i, __m256i c[2]) {
    int half = i / 4, quarter = i % 4; /* of a block of 256, and of that half */
    switch (t) {
    case WEIGHT_Q2_K:
        fields(p, 16 + 32 * half, 2 * quarter, 2, c);
        break;
    case WEIGHT_Q3_K:
        fields(p, 32 + 32 * half, 2 * quarter, 2, c);
        add_fields(p, 0, i, 1, 2, c);
        break;
    case WEIGHT_Q4_K:
        fields(p, 16 + 32 * (i / 2), 4 * (i % 2), 4, c);
        break;
    case WEIGHT_Q5_K:
        fields(p, 48 + 32 * (i / 2), 4 * (i % 2), 4, c);
        add_fields(p, 16, i, 1, 4, c);
        break;
    case WEIGHT_Q6_K:
        fields(p, 64 * half + 32 * (quarter % 2), 4 * (quarter / 2), 4, c);
        add_fields(p, 128 + 32 * half, 2 * quarter, 2, 4, c);
        break;
    case WEIGHT_Q8_K:
        bytes(p, 4 + 32 * i, c);
        break;
    case WEIGHT_IQ4_XS:
        nibbles(p, 8 + 16 * i, c);
        iq4_values(c);
        break;
    default:
        break;
    }
}

/* mlx's streams. */
ALWAYS_INLINE void load_codes_mlx(enum weight_type t, struct two_rows p, __m256i c[2]) {
    switch (t) {
    case WEIGHT_AFFINE2:
        stream_2(p, c);
        break;
    case WEIGHT_AFFINE3:
        stream_pairs(p, 3, c);
        break;
    case WEIGHT_AFFINE4:
        stream_4(p, c);
        break;
    case WEIGHT_AFFINE5:
        stream_pairs(p, 5, c);
        break;
    case WEIGHT_AFFINE6:
        stream_pairs(p, 6, c);
        break;
    case WEIGHT_AFFINE8:
        bytes(p, 0, c);
        UNROLL_FOR(h, 2) { /* code - 128 */
            c[h] = _mm256_xor_si256(c[h], _mm256_set1_epi8((char)0x80));
        }
        break;
    case WEIGHT_MXFP4_MLX:
        stream_4(p, c);
        e2m1_codes(c);
        break;
    default:
        break;
    }
}

/* Codes 0..15 and 16..31 of block i of a unit of two rows, natural order, row a's in the low half
 * of each vector; signed if the shape says so. Each of the three knows some types and leaves the
 * codes of others as they are; t is a constant, so one of them is left. */
ALWAYS_INLINE void load_codes(enum weight_type t, struct two_rows p, int i, __m256i c[2]) {
    c[0] = c[1] = _mm256_setzero_si256();
    load_codes_32(t, p, c);
    load_codes_256(t, p, i, c);
    load_codes_mlx(t, p, c);
}

#endif
