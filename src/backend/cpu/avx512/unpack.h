/* SPDX-License-Identifier: Apache-2.0 */
/* unpack.h: what the files that fill panels share: reading 16 rows side by side, cutting bytes into
 * codes, and the functions of a type. In all of it lane o of a vector of dwords is row o.
 */
#ifndef KVASIR_CPU_AVX512_UNPACK_H
#define KVASIR_CPU_AVX512_UNPACK_H

#include "backend/cpu/avx512/product.h"

/* ---- multiplying a block while the next one is unpacked -------------------------------------- */

/* Unpacking loads and shuffles, products multiply: other units of a core, so that both together
 * need not take longer than the longer one. Hardware does not look far enough ahead to find that by
 * itself (docs/speed.md, "Unpacked while multiplying"), so with a few rows of activations the
 * groups of one block are multiplied between the loads of the next, or each before what overwrites
 * it.
 *
 * Sums of an output are those of AVX512-1 of product_codes.c. */
struct few_products {
    const struct act_few *a;
    int rows, runs, offset; /* rows: even, the last one twice if there are fewer */
    bool has_min;
    size_t blocks;                   /* of a row */
    size_t b0, b;                    /* the first block of those in work; the one to multiply */
    const struct panel_block *block; /* block b */
    /* [FEW_ROWS]. Pointers, because with arrays in the struct compilers no longer see that the
     * other fields are constants. */
    __m512i *dot;
    __m512 *acc;
};

/* Index of block b in row i of the activations. */
ALWAYS_INLINE size_t block_at(const struct few_products *m, int i) {
    const size_t row = i == m->rows - 1 ? m->a->rows - 1 : (size_t)i;
    return row * m->blocks + m->b;
}

/* Group g of the block; 0 to 7 in order. */
ALWAYS_INLINE void multiply_group(struct few_products *m, int g) {
    const int n = GROUPS / m->runs, u = g / n;
    const struct panel_run *run = &m->block->run[u];
    const __m512i w = keep(m->block->w[g]);
    UNROLL_FOR(i, m->rows) {
        const size_t at = block_at(m, i);
        if (g % n == 0)
            m->dot[i] = m->offset != 0
                            ? _mm512_set1_epi32(m->a->start[at * (size_t)m->runs + (size_t)u])
                            : _mm512_setzero_si512();
        __m512i c = broadcast_group(m->a->codes + at * BLOCK + 4 * g);
        m->dot[i] = keep(dot4_u8s8(m->dot[i], w, c));
    }
    if (g % n != n - 1)
        return;
    UNROLL_FOR(i, m->rows) {
        const size_t at = block_at(m, i);
        __m512 d = _mm512_mul_ps(run->d, _mm512_set1_ps(m->a->scale[at]));
        m->acc[i] = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(m->dot[i]), m->acc[i]);
        if (m->has_min) {
            __m512 sum = _mm512_set1_ps(m->a->sums[at * (size_t)m->runs + (size_t)u]);
            m->acc[i] = _mm512_fmadd_ps(run->m, sum, m->acc[i]);
        }
    }
}

/* Groups [first, first + count) are multiplied meanwhile; none if `of` is NULL. */
struct meanwhile {
    struct few_products *of;
    int first, count;
};
#define NOTHING ((struct meanwhile){NULL, 0, 0})

/* After load i of n: its share of them. */
ALWAYS_INLINE void multiply_meanwhile(struct meanwhile m, int i, int n) {
    if (!m.of)
        return;
    UNROLL_FOR(g, GROUPS) {
        if (g >= i * m.count / n && g < (i + 1) * m.count / n)
            multiply_group(m.of, m.first + g);
    }
}

/* ---- reading rows ---------------------------------------------------------------------------- */

/* Address of byte `at` of row 4i; the next three rows follow by strides. Of unknown origin, or
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
ALWAYS_INLINE void load_rows(const struct panel_rows *r, size_t at, struct meanwhile m,
                             __m512i v[4]) {
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
        multiply_meanwhile(m, j, 4);
    }
}

/* Turns rows of four dwords: dword o of q[j] is dword j of row o. */
ALWAYS_INLINE void transpose(const __m512i v[4], __m512i q[4]) {
    __m512i t0 = _mm512_unpacklo_epi32(v[0], v[1]), t1 = _mm512_unpacklo_epi32(v[2], v[3]);
    __m512i t2 = _mm512_unpackhi_epi32(v[0], v[1]), t3 = _mm512_unpackhi_epi32(v[2], v[3]);
    q[0] = _mm512_unpacklo_epi64(t0, t1);
    q[1] = _mm512_unpackhi_epi64(t0, t1);
    q[2] = _mm512_unpacklo_epi64(t2, t3);
    q[3] = _mm512_unpackhi_epi64(t2, t3);
}

ALWAYS_INLINE void load_transposed(const struct panel_rows *r, size_t at, struct meanwhile m,
                                   __m512i q[4]) {
    __m512i v[4];
    load_rows(r, at, m, v);
    transpose(v, q);
}

/* 32 bytes: dword o of q[j] is dword j of row o. A load of 32 bytes costs what one of 16 does. */
ALWAYS_INLINE void load_transposed_32(const struct panel_rows *r, size_t at, struct meanwhile m,
                                      __m512i q[8]) {
    __m512i t[2][4]; /* lanes: dwords 0..3 and 4..7 of four rows, then of the next four */
    UNROLL_FOR(half, 2) {
        const uint8_t *p[2] = {four_rows(r, 2 * half, at), four_rows(r, 2 * half + 1, at)};
        __m512i v[4];
        UNROLL_FOR(j, 4) {
            const size_t row = (size_t)j * r->stride;
            __m256i low = _mm256_loadu_si256((const __m256i *)(p[0] + row));
            __m256i high = _mm256_loadu_si256((const __m256i *)(p[1] + row));
            v[j] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
            multiply_meanwhile(m, 4 * half + j, 8);
        }
        transpose(v, t[half]);
    }
    UNROLL_FOR(j, 4) {
        q[j] = _mm512_shuffle_i32x4(t[0][j], t[1][j], 0x88);
        q[j + 4] = _mm512_shuffle_i32x4(t[0][j], t[1][j], 0xdd);
    }
}

/* The next 16 rows are read next, and they are one stretch of memory: with the block at
 * `at` of a row, `bytes` long, its share of them is prefetched into L2 (docs/speed.md, "Ahead, into
 * L2"). Where rows go over panels product_codes.c does so, while it multiplies. */
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

/* The values of 4-bit codes, as in quant/weight.h: IQ4_NL and IQ4_XS plus 128, E2M1 doubled plus
 * 12. */
static const uint8_t IQ4_VALUES_128[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                           129, 141, 153, 166, 181, 197, 217, 241};
static const uint8_t E2M1_DOUBLED_12[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                            12, 11, 10, 9,  8,  6,  4,  0};

ALWAYS_INLINE __m512i lookup(const uint8_t values[16], __m512i codes) {
    __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)values));
    return _mm512_shuffle_epi8(table, codes);
}

/* Keeps the array in memory from here on: while rows are multiplied, they need the registers. */
#define IN_MEMORY(array) __asm__("" : "+m"(array))

/* Group g of panel block c of a type with several. Its previous contents are multiplied first. */
ALWAYS_INLINE void put_group(struct few_products *m, struct panel_block *first, int c, int g,
                             __m512i w) {
    if (m) {
        m->block = first + c;
        m->b = m->b0 + (size_t)c;
        multiply_group(m, g);
    }
    first[c].w[g] = w;
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

/* acc plus one block of unpacked bytes times a row of activations: AVX512-1 of product_codes.c. */
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

ALWAYS_INLINE void start_products(int rows, __m512 *acc) {
    UNROLL_FOR(i, rows) {
        acc[i] = _mm512_setzero_ps();
    }
}

ALWAYS_INLINE void store_products(const struct few_products *m, __mmask16 lanes, float *y,
                                  size_t y_stride) {
    UNROLL_FOR(i, m->rows) {
        if ((uint32_t)i < m->a->rows)
            _mm512_mask_storeu_ps(y + (size_t)i * y_stride, lanes, m->acc[i]);
    }
}

/* What a type's functions row_NAME and few_NAME for constants leave: the choice of these. */
#define DEFINE_CHOICES(name)                                                                       \
    __m512 TIER(row_##name)(const struct panel_rows *r, const struct act_row *a,                   \
                            uint32_t blocks) {                                                     \
        return a->halves ? row_##name(r, a, true, blocks) : row_##name(r, a, false, blocks);       \
    }                                                                                              \
    void TIER(few_##name)(const struct panel_rows *r, const struct act_few *a, uint32_t blocks,    \
                          __mmask16 lanes, float *y, size_t y_stride) {                            \
        switch ((a->rows + 1) / 2) {                                                               \
        case 1:                                                                                    \
            few_##name(2, r, a, blocks, lanes, y, y_stride);                                       \
            break;                                                                                 \
        case 2:                                                                                    \
            few_##name(4, r, a, blocks, lanes, y, y_stride);                                       \
            break;                                                                                 \
        case 3:                                                                                    \
            few_##name(6, r, a, blocks, lanes, y, y_stride);                                       \
            break;                                                                                 \
        default:                                                                                   \
            few_##name(8, r, a, blocks, lanes, y, y_stride);                                       \
            break;                                                                                 \
        }                                                                                          \
    }

/* The functions of a type whose blocks are `units` panel blocks of 32 values, `bytes` long, with
 * `runs` runs in each 32, from the function `name`, which unpacks one of them to bytes, codes plus
 * `offset`, and if m is not NULL multiplies the previous block meanwhile. With one unit that is
 * m->block. With several the next one overwrites it in place: put_group multiplies each group just
 * before, and scales are put only after the last group of what they belong to. From there a block
 * goes to its sums or its panel through registers, or at most a few KiB of stack. */
#define DEFINE_TYPE(name, units, bytes, runs, has_min, offset)                                     \
    void TIER(unpack_##name)(const struct panel_rows *r, uint32_t b0, uint32_t blocks,             \
                             void *panel) {                                                        \
        size_t at = b0 / (units) * (size_t)(bytes);                                                \
        for (uint32_t b = 0; b < blocks; b += (units), at += (bytes)) {                            \
            struct panel_block w[units];                                                           \
            name(r, at, NULL, w);                                                                  \
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
            name(r, at, NULL, w);                                                                  \
            UNROLL_FOR(i, units) {                                                                 \
                acc = add_block(w + i, runs, has_min, offset, a, halves, b + (size_t)i, acc);      \
            }                                                                                      \
        }                                                                                          \
        return acc;                                                                                \
    }                                                                                              \
    ALWAYS_INLINE void few_##name(int rows, const struct panel_rows *r, const struct act_few *a,   \
                                  uint32_t blocks, __mmask16 lanes, float *y, size_t y_stride) {   \
        __m512i dot[FEW_ROWS];                                                                     \
        __m512 acc[FEW_ROWS];                                                                      \
        struct few_products m = {a, rows, runs, offset, has_min, blocks, 0, 0, NULL, dot, acc};    \
        start_products(rows, acc);                                                                 \
        struct panel_block now[units], then[units];                                                \
        name(r, 0, NULL, now);                                                                     \
        for (uint32_t b = 0; b < blocks; b += (units)) {                                           \
            const size_t at = b / (units) * (size_t)(bytes);                                       \
            m.block = now;                                                                         \
            m.b = m.b0 = b;                                                                        \
            prefetch_next(r, at, bytes);                                                           \
            /* there is none after the last: that one again */                                     \
            name(r, b + (units) < blocks ? at + (bytes) : at, &m, (units) == 1 ? then : now);      \
            if ((units) == 1)                                                                      \
                put_block(then, runs, now);                                                        \
        }                                                                                          \
        store_products(&m, lanes, y, y_stride);                                                    \
    }                                                                                              \
    DEFINE_CHOICES(name)

#endif
