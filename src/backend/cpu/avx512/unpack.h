/* SPDX-License-Identifier: Apache-2.0 */
/* unpack.h: what the files that fill panels share: reading 16 rows side by side, cutting bytes into
 * codes. In all of it lane o of a vector of dwords is row o.
 */
#ifndef KVASIR_CPU_AVX512_UNPACK_H
#define KVASIR_CPU_AVX512_UNPACK_H

#include "backend/cpu/avx512/product.h"

/* ---- reading rows ---------------------------------------------------------------------------- */

/* Address of byte `at` of row 4i; the three rows behind it follow by strides. Of unknown origin, or
 * compilers keep 16 pointers in more registers than there are. */
ALWAYS_INLINE const uint8_t *four_rows(const struct panel_rows *r, int i, size_t at) {
    const uint8_t *p = r->base + at + 4 * (size_t)i * r->stride;
    __asm__("" : "+r"(p));
    return p;
}

ALWAYS_INLINE __m128i load_16(const uint8_t *p) {
    return _mm_loadu_si128((const __m128i *)p);
}

/* 16 bytes of each row, lane i of v[j] is row 4i + j. */
ALWAYS_INLINE void load_rows(const struct panel_rows *r, size_t at, __m512i v[4]) {
    const uint8_t *p[4];
    UNROLL_FOR(i, 4) {
        p[i] = four_rows(r, i, at);
    }
    UNROLL_FOR(j, 4) {
        const size_t row = (size_t)j * r->stride;
        __m256i low = _mm256_castsi128_si256(load_16(p[0] + row));
        __m256i high = _mm256_castsi128_si256(load_16(p[2] + row));
        low = _mm256_inserti128_si256(low, load_16(p[1] + row), 1);
        high = _mm256_inserti128_si256(high, load_16(p[3] + row), 1);
        v[j] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
}

/* Turns rows of four dwords: dword o of q[j] is dword j of row o. */
ALWAYS_INLINE void turn(const __m512i v[4], __m512i q[4]) {
    __m512i t0 = _mm512_unpacklo_epi32(v[0], v[1]), t1 = _mm512_unpacklo_epi32(v[2], v[3]);
    __m512i t2 = _mm512_unpackhi_epi32(v[0], v[1]), t3 = _mm512_unpackhi_epi32(v[2], v[3]);
    q[0] = _mm512_unpacklo_epi64(t0, t1);
    q[1] = _mm512_unpackhi_epi64(t0, t1);
    q[2] = _mm512_unpacklo_epi64(t2, t3);
    q[3] = _mm512_unpackhi_epi64(t2, t3);
}

ALWAYS_INLINE void load_turned(const struct panel_rows *r, size_t at, __m512i q[4]) {
    __m512i v[4];
    load_rows(r, at, v);
    turn(v, q);
}

/* n x 32 bytes: dword o of q[j] is dword j of row o, from `at` on. A load of 32 bytes costs what
 * one of 16 does. */
ALWAYS_INLINE void load_turned_32(const struct panel_rows *r, size_t at, int n, __m512i *q) {
    for (int k = 0; k < n; k++, at += 32, q += 8) {
        __m512i t[2][4]; /* lanes: dwords 0..3 and 4..7 of four rows, then of the next four */
        UNROLL_FOR(half, 2) {
            const uint8_t *p[2] = {four_rows(r, 2 * half, at), four_rows(r, 2 * half + 1, at)};
            __m512i v[4];
            UNROLL_FOR(j, 4) {
                const size_t row = (size_t)j * r->stride;
                __m256i low = _mm256_loadu_si256((const __m256i *)(p[0] + row));
                __m256i high = _mm256_loadu_si256((const __m256i *)(p[1] + row));
                v[j] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
            }
            turn(v, t[half]);
        }
        UNROLL_FOR(j, 4) {
            q[j] = _mm512_shuffle_i32x4(t[0][j], t[1][j], 0x88);
            q[j + 4] = _mm512_shuffle_i32x4(t[0][j], t[1][j], 0xdd);
        }
    }
}

/* The 16 rows behind these are read next, and they are one stretch of memory: with the block at
 * `at` of a row, `bytes` long, its share of them is asked for, into L2 (docs/speed.md, "Ahead, into
 * L2"). For codes with several rows of activations product_codes.c does so, while it multiplies. */
ALWAYS_INLINE void prefetch_next(const struct panel_rows *r, size_t at, size_t bytes) {
    const char *next = (const char *)r->next + OUTPUTS * at;
    for (size_t line = 0; line < OUTPUTS * bytes; line += 64)
        _mm_prefetch(next + line, _MM_HINT_T1);
}

/* ---- scales ---------------------------------------------------------------------------------- */

ALWAYS_INLINE __m512 low_f16(__m512i dwords) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(dwords));
}
ALWAYS_INLINE __m512 high_f16(__m512i dwords) {
    return low_f16(_mm512_srli_epi32(dwords, 16));
}

/* 2^(e - 128), subnormal for 0 and 1: half of an E8M0 scale. */
ALWAYS_INLINE __m512 e8m0_halves(__m512i e) {
    __m512 exponent = _mm512_cvtepi32_ps(_mm512_sub_epi32(e, _mm512_set1_epi32(128)));
    return _mm512_scalef_ps(_mm512_set1_ps(1), exponent);
}

ALWAYS_INLINE void put_scales(struct panel_block *b, int run, __m512 d, __m512 m) {
    b->run[run].d = d;
    b->run[run].m = m;
}

/* ---- codes ----------------------------------------------------------------------------------- */

/* In every byte: the `bits` bits at `from`. */
ALWAYS_INLINE __m512i bits_of(__m512i v, int from, int bits) {
    if (from > 0)
        v = _mm512_srli_epi16(v, (unsigned)from);
    return _mm512_and_si512(v, _mm512_set1_epi8((char)((1 << bits) - 1)));
}

/* Signed bytes plus 128. */
ALWAYS_INLINE void flip_signs(__m512i w[GROUPS]) {
    UNROLL_FOR(g, GROUPS) {
        w[g] = _mm512_xor_si512(w[g], _mm512_set1_epi8((char)128));
    }
}

/* What 4-bit codes stand for, as in quant/weight.h: IQ4_NL and IQ4_XS plus 128, E2M1 doubled plus
 * 12. */
static const uint8_t IQ4_VALUES_128[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                           129, 141, 153, 166, 181, 197, 217, 241};
static const uint8_t E2M1_DOUBLED_12[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                            12, 11, 10, 9,  8,  6,  4,  0};

ALWAYS_INLINE __m512i lookup(const uint8_t values[16], __m512i codes) {
    __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)values));
    return _mm512_shuffle_epi8(table, codes);
}

/* ---- a type ---------------------------------------------------------------------------------- */

ALWAYS_INLINE void put_block(const struct panel_block *from, int runs, struct panel_block *to) {
    UNROLL_FOR(g, GROUPS) {
        to->w[g] = from->w[g];
    }
    UNROLL_FOR(u, runs) {
        to->run[u] = from->run[u];
    }
}

/* The dots of n groups of unpacked bytes. x: those of the row. A sum has two chains, as one would
 * be what the next block waits for. */
ALWAYS_INLINE __m512i dot_groups(const __m512i *w, int n, bool halves, const uint8_t *x) {
    __m512i sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    UNROLL_FOR(i, n) {
        if (halves) {
            struct halves part = split_bytes(w[i]);
            sum[0] = dot_half(sum[0], part.h[0], broadcast_group(x + 8 * i));
            sum[1] = dot_half(sum[1], part.h[1], broadcast_group(x + 8 * i + 4));
        } else {
            sum[i % 2] = dot4_u8s8(sum[i % 2], w[i], broadcast_group(x + 4 * i));
        }
    }
    return halves ? join_halves(sum[0], sum[1]) : _mm512_add_epi32(sum[0], sum[1]);
}

/* acc plus one block of unpacked bytes times a row of activations: P1 of product_codes.c. */
ALWAYS_INLINE __m512 add_block(const struct panel_block *w, int runs, bool has_min, int offset,
                               const struct act_row *a, bool halves, size_t b, __m512 acc) {
    const int n = GROUPS / runs, step = halves ? 8 : 4; /* bytes of four activations */
    const uint8_t *x = a->codes + b * GROUPS * (size_t)step;
    UNROLL_FOR(u, runs) {
        const size_t run = b * (size_t)runs + (size_t)u;
        __m512i dot = dot_groups(w->w + u * n, n, halves, x + u * n * step);
        if (offset != 0)
            dot = _mm512_add_epi32(dot, _mm512_set1_epi32(a->start[run]));
        __m512 d = _mm512_mul_ps(w->run[u].d, _mm512_set1_ps(a->scale[b]));
        acc = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(dot), acc);
        if (has_min)
            acc = _mm512_fmadd_ps(w->run[u].m, _mm512_set1_ps(a->sums[run]), acc);
    }
    return acc;
}

/* The functions of a type whose blocks are `units` panel blocks of 32 values, `bytes` long, with
 * `runs` runs in each 32, from the function `name`, which unpacks one of them to bytes, codes plus
 * `offset`. From there a block goes to its sums or its panel through registers, or at most a few
 * KiB of stack. */
#define DEFINE_TYPE(name, units, bytes, runs, has_min, offset)                                     \
    void TIER(unpack_##name)(const struct panel_rows *r, uint32_t b0, uint32_t blocks,             \
                             void *panel) {                                                        \
        size_t at = b0 / (units) * (size_t)(bytes);                                                \
        for (uint32_t b = 0; b < blocks; b += (units), at += (bytes)) {                            \
            struct panel_block w[units];                                                           \
            name(r, at, w);                                                                        \
            UNROLL_FOR(i, units) {                                                                 \
                put_block(w + i, runs, panel_block(panel, b + (uint32_t)i, runs));                 \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    ALWAYS_INLINE __m512 row_##name(const struct panel_rows *r, const struct act_row *a,           \
                                    bool halves, uint32_t blocks) {                                \
        __m512 acc = _mm512_setzero_ps();                                                          \
        size_t at = 0;                                                                             \
        for (uint32_t b = 0; b < blocks; b += (units), at += (bytes)) {                            \
            struct panel_block w[units];                                                           \
            prefetch_next(r, at, bytes);                                                           \
            name(r, at, w);                                                                        \
            UNROLL_FOR(i, units) {                                                                 \
                acc = add_block(w + i, runs, has_min, offset, a, halves, b + (size_t)i, acc);      \
            }                                                                                      \
        }                                                                                          \
        return acc;                                                                                \
    }                                                                                              \
    __m512 TIER(row_##name)(const struct panel_rows *r, const struct act_row *a,                   \
                            uint32_t blocks) {                                                     \
        return a->halves ? row_##name(r, a, true, blocks) : row_##name(r, a, false, blocks);       \
    }

#endif
