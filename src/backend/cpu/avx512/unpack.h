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
        __m512i x = _mm512_castsi128_si512(load_16(p[0] + row));
        x = _mm512_inserti32x4(x, load_16(p[1] + row), 1);
        x = _mm512_inserti32x4(x, load_16(p[2] + row), 2);
        v[j] = _mm512_inserti32x4(x, load_16(p[3] + row), 3);
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

/* The 16 rows behind these are read next, and they are one stretch of memory: while block b of the
 * panel is unpacked, its share of them is asked for. bytes: of the block in one row. */
ALWAYS_INLINE void prefetch_next(const struct panel_rows *r, size_t at, size_t bytes) {
    const char *next = (const char *)r->next + OUTPUTS * at;
    for (size_t line = 0; line < OUTPUTS * bytes; line += 64)
        _mm_prefetch(next + line, _MM_HINT_T0);
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

/* What 4-bit codes stand for, as in quant/weight.h: IQ4_NL and IQ4_XS, and E2M1 doubled. */
static const int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t E2M1_DOUBLED[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

ALWAYS_INLINE __m512i lookup(const int8_t values[16], __m512i codes) {
    __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)values));
    return _mm512_shuffle_epi8(table, codes);
}

/* ---- a type ---------------------------------------------------------------------------------- */

/* acc plus one block of a row of activations: P1 and P2 of product_codes.c. */
ALWAYS_INLINE __m512 add_block(const struct panel_block *w, int runs, bool has_min, bool wide,
                               const struct act_row *a, int planes, size_t b, __m512 acc) {
    const int n = GROUPS / runs;
    const uint8_t *x = a->codes + b * BLOCK * (size_t)planes;
    UNROLL_FOR(u, runs) {
        __m512i dot = start_of(w->w + u * n, n, planes);
        UNROLL_FOR(p, planes) {
            __m512i sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
            UNROLL_FOR(i, n) {
                struct factors f = factors_of(w->w[u * n + i], wide);
                __m512i c = broadcast_group(x + p * BLOCK + 4 * (u * n + i));
                UNROLL_FOR(part, f.count) {
                    sum[i % 2] = dot4_u8s8(sum[i % 2], c, f.part[part]);
                }
            }
            dot = p == 1 ? _mm512_slli_epi32(dot, 8) : dot;
            dot = _mm512_add_epi32(dot, _mm512_add_epi32(sum[0], sum[1]));
        }
        __m512 d = _mm512_mul_ps(w->run[u].d, _mm512_set1_ps(a->scale[b]));
        acc = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(dot), acc);
        if (has_min)
            acc = _mm512_fmadd_ps(w->run[u].m,
                                  _mm512_set1_ps(a->sums[b * (size_t)runs + (size_t)u]), acc);
    }
    return acc;
}

/* The functions of a type whose blocks are `units` panel blocks of 32 values, `bytes` long, with
 * `runs` runs in each 32, from the function `name` for one of them. For one row of activations a
 * block goes from `name` to the sums through registers, or at most a few KiB of stack. */
#define DEFINE_TYPE(name, units, bytes, runs, has_min, wide)                                       \
    void TIER(unpack_##name)(const struct panel_rows *r, uint32_t b0, uint32_t blocks,             \
                             void *panel) {                                                        \
        size_t at = b0 / (units) * (size_t)(bytes);                                                \
        for (uint32_t i = 0; i < blocks; i += (units), at += (bytes)) {                            \
            prefetch_next(r, at, bytes);                                                           \
            name(r, at, panel_block(panel, i, runs));                                              \
        }                                                                                          \
    }                                                                                              \
    ALWAYS_INLINE __m512 row_##name(const struct panel_rows *r, const struct act_row *a,           \
                                    int planes, uint32_t blocks) {                                 \
        __m512 acc = _mm512_setzero_ps();                                                          \
        size_t at = 0;                                                                             \
        for (uint32_t b = 0; b < blocks; b += (units), at += (bytes)) {                            \
            struct panel_block w[units];                                                           \
            prefetch_next(r, at, bytes);                                                           \
            name(r, at, w);                                                                        \
            UNROLL_FOR(i, units) {                                                                 \
                acc = add_block(panel_block(w, (size_t)i, runs), runs, has_min, wide, a, planes,   \
                                b + (size_t)i, acc);                                               \
            }                                                                                      \
        }                                                                                          \
        return acc;                                                                                \
    }                                                                                              \
    __m512 TIER(row_##name)(const struct panel_rows *r, const struct act_row *a,                   \
                            uint32_t blocks) {                                                     \
        return a->planes == 1 ? row_##name(r, a, 1, blocks) : row_##name(r, a, 2, blocks);         \
    }

#endif
