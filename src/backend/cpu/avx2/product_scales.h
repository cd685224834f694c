/* SPDX-License-Identifier: Apache-2.0 */
/* product_scales.h: d and m of the runs of eight weight rows side by side, lane o = row o. They are
 * read in two steps: what eight units have in common (load_heads), then the d and m of one block of
 * them (block_scales). The numbers are those of quant/weight*.c to the bit.
 *
 * Scales that are arrays of their own (safetensors) are transposed 16 bytes of a row at a time as
 * their rows are read: [group][8 rows] float32.
 */
#ifndef KVASIR_CPU_AVX2_PRODUCT_SCALES_H
#define KVASIR_CPU_AVX2_PRODUCT_SCALES_H

#include "backend/cpu/avx2/product_codes.h"

struct heads {
    __m256 d, m;
    __m256i sub[4]; /* bytes: byte i % 4 of sub[i / 4] is the i-th sub-scale */
    __m256i min[4]; /* and sub-minimum */
};

/* ---- eight rows at one place ----------------------------------------------------------------- */

/* v[i]: 16 bytes of row i | of row i + 4. Turned: dword o of v[j] is dword j of row o. */
ALWAYS_INLINE void transpose(__m256i v[4]) {
    __m256i t[4];
    t[0] = _mm256_unpacklo_epi32(v[0], v[1]);
    t[1] = _mm256_unpacklo_epi32(v[2], v[3]);
    t[2] = _mm256_unpackhi_epi32(v[0], v[1]);
    t[3] = _mm256_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm256_unpacklo_epi64(t[0], t[1]);
    v[1] = _mm256_unpackhi_epi64(t[0], t[1]);
    v[2] = _mm256_unpacklo_epi64(t[2], t[3]);
    v[3] = _mm256_unpackhi_epi64(t[2], t[3]);
}

/* 16 bytes of each of eight rows, transposed. */
ALWAYS_INLINE void load_transposed(struct places p, size_t at, __m256i q[4]) {
    UNROLL_FOR(i, 4) {
        q[i] = join(load_16(lower(p, i) + at), load_16(upper(p, i) + at));
    }
    transpose(q);
}

/* The dwords at `at` of eight rows: broadcasts cost a load only, and blends use other ports than
 * shuffles. */
ALWAYS_INLINE __m256i load_dwords(struct places p, size_t at) {
    __m256i v[4];
    UNROLL_FOR(o, 4) {
        v[o] = _mm256_blend_epi32(broadcast_dword(lower(p, o) + at),
                                  broadcast_dword(upper(p, o) + at), 0xf0);
    }
    return _mm256_blend_epi32(_mm256_blend_epi32(v[0], v[1], 0x22),
                              _mm256_blend_epi32(v[2], v[3], 0x88), 0xcc);
}

ALWAYS_INLINE uint64_t load_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

ALWAYS_INLINE __m256 load_f16(struct places p, size_t at) {
    uint64_t low = 0, high = 0;
    UNROLL_FOR(o, 4) {
        low |= load_u16(lower(p, o) + at) << 16 * o;
        high |= load_u16(upper(p, o) + at) << 16 * o;
    }
    return _mm256_cvtph_ps(_mm_set_epi64x((long long)high, (long long)low));
}

/* Eight pairs of f16, one a dword. */
ALWAYS_INLINE void split_f16(__m256i pairs, __m256 *low, __m256 *high) {
    const __m256i halves = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0,
                                            1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    pairs = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(pairs, halves), 0xd8);
    *low = _mm256_cvtph_ps(_mm256_castsi256_si128(pairs));
    *high = _mm256_cvtph_ps(_mm256_extracti128_si256(pairs, 1));
}

/* 2^(e - 128), subnormal for e = 0 and 1. */
ALWAYS_INLINE __m256 e8m0_halves(__m256i e) {
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(
        _mm256_blendv_epi8(normal, subnormal, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

ALWAYS_INLINE __m256 load_e8m0(struct places p) {
    uint64_t e = 0;
    UNROLL_FOR(o, 4) {
        e |= (uint64_t)*lower(p, o) << 8 * o | (uint64_t)*upper(p, o) << (8 * o + 32);
    }
    return e8m0_halves(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)e)));
}

ALWAYS_INLINE __m256 negated(__m256 v) {
    return _mm256_xor_ps(v, _mm256_set1_ps(-0.0f));
}

/* ---- sub-scales of GGUF's blocks of 256 ------------------------------------------------------ */

ALWAYS_INLINE void heads_q2_k(struct places p, struct heads *h) {
    split_f16(load_dwords(p, 80), &h->d, &h->m);
    __m256i q[4];
    load_transposed(p, 0, q);
    UNROLL_FOR(j, 4) {
        h->sub[j] = field(q[j], 0, 4, 0);
        h->min[j] = field(q[j], 4, 4, 0);
    }
}

/* The last 16 bytes of a block: | 2 of low | sub 12 | d f16 |. */
ALWAYS_INLINE void heads_q3_k(struct places p, struct heads *h) {
    __m256i q[4], s[3];
    __m256 unused;
    load_transposed(p, 94, q);
    split_f16(q[3], &unused, &h->d);
    UNROLL_FOR(j, 3) {
        s[j] = _mm256_or_si256(_mm256_srli_epi32(q[j], 16), _mm256_slli_epi32(q[j + 1], 16));
    }
    UNROLL_FOR(j, 4) {
        __m256i low = field(s[j % 2], j / 2 * 4, 4, 0), high = field(s[2], 2 * j, 2, 4);
        h->sub[j] = _mm256_sub_epi8(_mm256_or_si256(low, high), _mm256_set1_epi8(32));
    }
}

ALWAYS_INLINE void heads_q4_k(struct places p, struct heads *h) {
    __m256i q[4];
    load_transposed(p, 0, q);
    split_f16(q[0], &h->d, &h->m);
    h->sub[0] = field(q[1], 0, 6, 0);
    h->min[0] = field(q[2], 0, 6, 0);
    h->sub[1] = _mm256_or_si256(field(q[3], 0, 4, 0), field(q[1], 6, 2, 4));
    h->min[1] = _mm256_or_si256(field(q[3], 4, 4, 0), field(q[2], 6, 2, 4));
}

/* Byte i of 16, as signed integers. */
ALWAYS_INLINE __m256 sub_scale(const __m256i sub[4], int i) {
    __m256i v = _mm256_slli_epi32(sub[i / 4], 24 - 8 * (i % 4));
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(v, 24));
}

/* IQ4_XS's two dwords | d f16, 8 x 2 upper bits | 8 x 4 lower bits |. */
ALWAYS_INLINE __m256 iq4_xs_sub(const __m256i sub[4], int i) {
    __m256i high = _mm256_and_si256(_mm256_srli_epi32(sub[0], 12 + 2 * i), _mm256_set1_epi32(48));
    __m256i low = _mm256_and_si256(_mm256_srli_epi32(sub[1], 4 * i), _mm256_set1_epi32(15));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_or_si256(high, low), _mm256_set1_epi32(32)));
}

/* ---- scales that are arrays of their own ----------------------------------------------------- */

/* How they are stored: scalars, or bytes e of 2^(e - 127). */
enum scale_kind { SCALE_F32, SCALE_F16, SCALE_BF16, SCALE_E8M0 };

ALWAYS_INLINE size_t scale_bytes(enum scale_kind kind) {
    return kind == SCALE_F32 ? 4 : kind == SCALE_E8M0 ? 1 : 2;
}

/* 16 bytes of eight rows, words: to [8 groups][SIDE]. */
ALWAYS_INLINE void turn_words(enum scalar_type t, struct places p, size_t at, float *to) {
    __m256i v[4], u[4];
    UNROLL_FOR(i, 4) {
        v[i] = join(load_16(lower(p, i) + at), load_16(upper(p, i) + at));
    }
    u[0] = _mm256_unpacklo_epi16(v[0], v[1]);
    u[1] = _mm256_unpacklo_epi16(v[2], v[3]);
    u[2] = _mm256_unpackhi_epi16(v[0], v[1]);
    u[3] = _mm256_unpackhi_epi16(v[2], v[3]);
    v[0] = _mm256_unpacklo_epi32(u[0], u[1]);
    v[1] = _mm256_unpackhi_epi32(u[0], u[1]);
    v[2] = _mm256_unpacklo_epi32(u[2], u[3]);
    v[3] = _mm256_unpackhi_epi32(u[2], u[3]);
    UNROLL_FOR(i, 4) { /* rows 0 to 3 of two groups | 4 to 7 */
        v[i] = _mm256_permute4x64_epi64(v[i], 0xd8);
        _mm256_store_ps(to + SIDE * 2 * i, widen(t, (vh)_mm256_castsi256_si128(v[i])));
        _mm256_store_ps(to + SIDE * (2 * i + 1), widen(t, (vh)_mm256_extracti128_si256(v[i], 1)));
    }
}

/* Four E8M0 a dword: to [4 groups][SIDE]. mlx's 255 is an infinite scale. */
ALWAYS_INLINE void widen_e8m0(__m256i v, float *to) {
    UNROLL_FOR(i, 4) {
        __m256i e = _mm256_and_si256(_mm256_srli_epi32(v, 8 * i), _mm256_set1_epi32(255));
        __m256i endless = _mm256_and_si256(_mm256_cmpeq_epi32(e, _mm256_set1_epi32(255)),
                                           _mm256_set1_epi32(1 << 23));
        _mm256_store_ps(to + SIDE * i, _mm256_or_ps(e8m0_halves(e), _mm256_castsi256_ps(endless)));
    }
}

/* The same of dwords: float32, or E8M0. */
ALWAYS_INLINE void turn_dwords(bool e8m0, struct places p, size_t at, float *to) {
    __m256i q[4];
    load_transposed(p, at, q);
    UNROLL_FOR(j, 4) {
        if (e8m0)
            widen_e8m0(q[j], to + SIDE * 4 * j);
        else
            _mm256_store_ps(to + SIDE * j, _mm256_castsi256_ps(q[j]));
    }
}

/* 16 bytes of each of eight rows, from byte `at`. to: all the groups. */
ALWAYS_INLINE void turn_16(enum scale_kind kind, struct places p, size_t at, float *to) {
    to += SIDE * (at / scale_bytes(kind));
    if (scale_bytes(kind) == 2)
        turn_words(kind == SCALE_F16 ? SCALAR_F16 : SCALAR_BF16, p, at, to);
    else
        turn_dwords(kind == SCALE_E8M0, p, at, to);
}

/* Rows shorter than 16 bytes. */
ALWAYS_INLINE void turn_short(enum scale_kind kind, struct places p, size_t bytes, float *to) {
    uint8_t rows[SIDE][16] = {{0}};
    UNROLL_FOR(o, 4) {
        memcpy(rows[o], lower(p, o), bytes);
        memcpy(rows[o + 4], upper(p, o), bytes);
    }
    turn_16(kind, (struct places){rows[0], rows[4], 16}, 0, to);
}

/* Eight weight rows. */
struct eight_rows {
    struct places data;
    /* If scales are arrays of their own: rows of `bytes` bytes, and what is transposed of them, a
     * step before it is used (transpose_scales): [groups rounded up to 16][SIDE]. */
    enum scale_kind kind;
    int group_shift; /* log2 of the blocks of a group */
    size_t bytes;
    struct places scales, biases;
    float *d, *m;
};

ALWAYS_INLINE size_t transpose_scales_of(enum scale_kind kind, const struct eight_rows *w,
                                         bool has_min, size_t transposed) {
    size_t at = transposed * scale_bytes(kind);
    if (w->bytes < 16) {
        turn_short(kind, w->scales, w->bytes, w->d);
        if (has_min)
            turn_short(kind, w->biases, w->bytes, w->m);
    } else {
        at = at + 16 <= w->bytes ? at : w->bytes - 16; /* some twice */
        turn_16(kind, w->scales, at, w->d);
        if (has_min)
            turn_16(kind, w->biases, at, w->m);
    }
    return (at + 16) / scale_bytes(kind);
}

/* The next groups after the first `transposed`; returns how many are transposed now. */
static __attribute__((noinline)) size_t transpose_scales(const struct eight_rows *w, bool has_min,
                                                         size_t transposed) {
    switch (w->kind) {
    case SCALE_F32:
        return transpose_scales_of(SCALE_F32, w, has_min, transposed);
    case SCALE_F16:
        return transpose_scales_of(SCALE_F16, w, has_min, transposed);
    case SCALE_BF16:
        return transpose_scales_of(SCALE_BF16, w, has_min, transposed);
    case SCALE_E8M0:
        break;
    }
    return transpose_scales_of(SCALE_E8M0, w, has_min, transposed);
}

/* ---- the types ------------------------------------------------------------------------------- */

/* What the blocks of a unit have in common, p: the unit of eight rows. Where a unit is one block,
 * that is nothing. */
ALWAYS_INLINE void load_heads(enum weight_type t, struct places p, struct heads *h) {
    switch (t) {
    case WEIGHT_Q2_K:
        heads_q2_k(p, h);
        break;
    case WEIGHT_Q3_K:
        heads_q3_k(p, h);
        break;
    case WEIGHT_Q4_K:
    case WEIGHT_Q5_K:
        heads_q4_k(p, h);
        break;
    case WEIGHT_Q6_K:
        load_transposed(p, 192, h->sub);
        h->d = load_f16(p, 208);
        break;
    case WEIGHT_Q8_K:
        h->d = _mm256_castsi256_ps(load_dwords(p, 0));
        break;
    case WEIGHT_IQ4_XS:
        h->sub[0] = load_dwords(p, 0);
        h->sub[1] = load_dwords(p, 4);
        split_f16(h->sub[0], &h->d, &h->m);
        break;
    default:
        break;
    }
}

/* d and m of the one or two runs of block i of a unit; p, h: the unit, the `unit`th of its rows. */
ALWAYS_INLINE void block_scales(enum weight_type t, struct places p, const struct heads *h,
                                const struct eight_rows *w, size_t unit, int i, __m256 d[2],
                                __m256 m[2]) {
    size_t group = (unit >> w->group_shift) * SIDE;
    m[0] = m[1] = _mm256_setzero_ps();
    switch (t) {
    case WEIGHT_Q4_0:
    case WEIGHT_Q5_0:
    case WEIGHT_Q8_0:
    case WEIGHT_IQ4_NL:
        d[0] = load_f16(p, 0);
        break;
    case WEIGHT_Q4_1:
    case WEIGHT_Q5_1:
        split_f16(load_dwords(p, 0), d, m);
        break;
    case WEIGHT_MXFP4:
        d[0] = load_e8m0(p);
        break;
    case WEIGHT_Q8_K:
        d[0] = h->d;
        break;
    case WEIGHT_IQ4_XS:
        d[0] = _mm256_mul_ps(h->d, iq4_xs_sub(h->sub, i));
        break;
    case WEIGHT_Q4_K:
    case WEIGHT_Q5_K:
        d[0] = _mm256_mul_ps(h->d, sub_scale(h->sub, i));
        m[0] = negated(_mm256_mul_ps(h->m, sub_scale(h->min, i)));
        break;
    case WEIGHT_Q2_K:
        UNROLL_FOR(u, 2) {
            d[u] = _mm256_mul_ps(h->d, sub_scale(h->sub, 2 * i + u));
            m[u] = negated(_mm256_mul_ps(h->m, sub_scale(h->min, 2 * i + u)));
        }
        break;
    case WEIGHT_Q3_K:
    case WEIGHT_Q6_K:
        UNROLL_FOR(u, 2) {
            d[u] = _mm256_mul_ps(h->d, sub_scale(h->sub, 2 * i + u));
        }
        break;
    case WEIGHT_MXFP4_MLX:
        d[0] = _mm256_load_ps(w->d + group);
        break;
    case WEIGHT_AFFINE8: /* codes are s8 */
        d[0] = _mm256_load_ps(w->d + group);
        m[0] =
            _mm256_add_ps(_mm256_load_ps(w->m + group), _mm256_mul_ps(d[0], _mm256_set1_ps(128)));
        break;
    default:
        d[0] = _mm256_load_ps(w->d + group);
        m[0] = _mm256_load_ps(w->m + group);
    }
}

#endif
