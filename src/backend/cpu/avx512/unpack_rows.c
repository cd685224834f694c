/* SPDX-License-Identifier: Apache-2.0 */
/* unpack_rows.c: the weight types of safetensors to panels, AVX-512: codes of a row in one stream
 * of bits, scales in arrays of their own. quant/weight_rows.c draws them.
 *
 * 16 codes of b bits are 2b bytes, four codes 4b bits that begin at a multiple of 4: a shuffle puts
 * the bytes of each four into a dword, rows are transposed, and shifts spread a dword over four
 * bytes.
 */
#include <math.h>

#include "backend/cpu/avx512/unpack.h"

/* ---- scales ---------------------------------------------------------------------------------- */

/* The d and m of groups [first, end) of the 16 rows, from 16 bytes of each row of an array. */
struct scales {
    uint32_t first, end;
    __m512 d[16], m[16];
};

/* The 16 bytes at `at` of each row of an array; rows of fewer bytes are copied and padded with
 * 0. */
static void load_scales(const struct panel_rows *r, const void *array, size_t row_bytes, size_t at,
                        __m512i q[4]) {
    uint8_t copy[OUTPUTS][16] = {0};
    const uint8_t *rows = (const uint8_t *)array + r->first * row_bytes;
    struct panel_rows s = {.base = rows,
                           .stride = row_bytes,
                           .next = rows + (size_t)(r->next - r->base) / r->stride * row_bytes};
    if (row_bytes < 16) {
        for (size_t o = 0; o < OUTPUTS; o++)
            memcpy(copy[o], rows + o * row_bytes, row_bytes);
        s.base = copy[0];
        s.stride = 16;
    }
    prefetch_next(&s, at, 16);
    load_transposed(&s, at, NOTHING, q);
}

/* The elements of scalar type t in 16 bytes of each row. */
static void convert_scales(enum scalar_type t, const __m512i q[4], __m512 *out) {
    for (int i = 0; i < 4; i++) {
        if (t == SCALAR_F32) {
            out[i] = _mm512_castsi512_ps(q[i]);
        } else if (t == SCALAR_F16) {
            out[2 * i] = low_f16(q[i]);
            out[2 * i + 1] = high_f16(q[i]);
        } else {
            const __m512i high = _mm512_set1_epi32((int)0xffff0000);
            out[2 * i] = _mm512_castsi512_ps(_mm512_slli_epi32(q[i], 16));
            out[2 * i + 1] = _mm512_castsi512_ps(_mm512_and_si512(q[i], high));
        }
    }
}

/* Moves to the 16 bytes that begin with group g, or to the last 16 of the row. */
static uint32_t scales_turn(struct scales *s, uint32_t g, uint32_t per_row, uint32_t size) {
    uint32_t count = 16 / size;
    s->first = g + count <= per_row ? g : per_row > count ? per_row - count : 0;
    s->end = s->first + count;
    return s->first * size;
}

static __attribute__((noinline)) void affine_scales(const struct panel_rows *r, uint32_t g,
                                                    bool moved, struct scales *s) {
    const enum scalar_type t = r->w->scalar;
    const uint32_t per_row = r->w->k / r->w->group, size = t == SCALAR_F32 ? 4 : 2;
    uint32_t at = scales_turn(s, g, per_row, size);
    __m512i q[4];
    load_scales(r, r->w->scales, per_row * (size_t)size, at, q);
    convert_scales(t, q, s->d);
    load_scales(r, r->w->biases, per_row * (size_t)size, at, q);
    convert_scales(t, q, s->m);
    for (uint32_t i = 0; moved && i < 16 / size; i++) /* codes - 128 */
        s->m[i] = _mm512_add_ps(s->m[i], _mm512_mul_ps(_mm512_set1_ps(128), s->d[i]));
}

/* 2^(e - 128); infinity for e = 255. */
static __attribute__((noinline)) void mlx_scales(const struct panel_rows *r, uint32_t g,
                                                 struct scales *s) {
    const uint32_t per_row = r->w->k / BLOCK;
    __m512i q[4];
    load_scales(r, r->w->scales, per_row, scales_turn(s, g, per_row, 1), q);
    for (int i = 0; i < 16; i++) {
        __m512i e = _mm512_srl_epi32(q[i / 4], _mm_cvtsi32_si128(i % 4 * 8));
        e = _mm512_and_si512(e, _mm512_set1_epi32(255));
        __mmask16 top = _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255));
        s->d[i] = _mm512_mask_mov_ps(e8m0_halves(e), top, _mm512_set1_ps(INFINITY));
        s->m[i] = _mm512_setzero_ps();
    }
}

/* ---- codes ----------------------------------------------------------------------------------- */

/* 16 nibbles of a stream, 8 bytes, side by side with those of three other rows. */
ALWAYS_INLINE void put_nibbles(const struct panel_rows *r, size_t at, struct few_products *m,
                               __m512i w[GROUPS]) {
    __m512i v[4], first[4], second[4];
    load_rows(r, at, (struct meanwhile){m, 0, GROUPS}, v);
    UNROLL_FOR(j, 4) {
        __m512i even = bits_of(v[j], 0, 4), odd = bits_of(v[j], 4, 4);
        first[j] = _mm512_unpacklo_epi8(even, odd);
        second[j] = _mm512_unpackhi_epi8(even, odd);
    }
    transpose(first, w);
    transpose(second, w + 4);
}

/* Four codes of `bits` bits, from bit `from` of every dword on, to its four bytes. */
ALWAYS_INLINE __m512i spread(__m512i v, int bits, int from) {
    const int field = (1 << bits) - 1;
    __m512i out = _mm512_setzero_si512();
    UNROLL_FOR(i, 4) {
        int up = 8 * i - (from + bits * i);
        __m512i moved = up > 0   ? _mm512_slli_epi32(v, (unsigned)(up > 0 ? up : 0))
                        : up < 0 ? _mm512_srli_epi32(v, (unsigned)(up < 0 ? -up : 0))
                                 : v;
        out = _mm512_or_si512(
            out, _mm512_and_si512(moved, _mm512_set1_epi32((int)((unsigned)field << 8 * i))));
    }
    return out;
}

/* 16 codes: 2 * bits bytes of each row. */
ALWAYS_INLINE void put_half(const struct panel_rows *r, size_t at, int bits, struct meanwhile m,
                            __m512i w[4]) {
    const __mmask16 bytes = (__mmask16)((1u << 2 * bits) - 1);
    /* where the first byte of each four codes is */
    const char a = 0, b = (char)(bits / 2), c = (char)bits, d = (char)(bits + bits / 2);
    const __m512i order = _mm512_broadcast_i32x4(
        _mm_setr_epi8(a, a + 1, a + 2, -1, b, (char)(b + 1), (char)(b + 2), -1, c, (char)(c + 1),
                      (char)(c + 2), -1, d, (char)(d + 1), (char)(d + 2), -1));
    __m512i v[4], q[4];
    const uint8_t *p[4];
    UNROLL_FOR(i, 4) {
        p[i] = four_rows(r, i, at);
    }
    UNROLL_FOR(j, 4) {
        __m128i x[4];
        UNROLL_FOR(i, 4) {
            x[i] = _mm_maskz_loadu_epi8(bytes, p[i] + (size_t)j * r->stride);
        }
        __m512i all = _mm512_inserti32x4(_mm512_castsi128_si512(x[0]), x[1], 1);
        all = _mm512_inserti32x4(_mm512_inserti32x4(all, x[2], 2), x[3], 3);
        v[j] = _mm512_shuffle_epi8(all, order);
        multiply_meanwhile(m, j, 4);
    }
    transpose(v, q);
    UNROLL_FOR(j, 4) {
        w[j] = spread(q[j], bits, bits * j % 2 * 4);
    }
}

/* ---- the types ------------------------------------------------------------------------------- */

ALWAYS_INLINE void put_codes(const struct panel_rows *r, size_t at, int bits,
                             struct few_products *m, __m512i w[GROUPS]) {
    if (bits == 8) {
        load_transposed_32(r, at, (struct meanwhile){m, 0, GROUPS}, w);
    } else if (bits == 4) {
        put_nibbles(r, at, m, w);
    } else {
        put_half(r, at, bits, (struct meanwhile){m, 0, 4}, w);
        put_half(r, at + 2 * (size_t)bits, bits, (struct meanwhile){m, 4, 4}, w + 4);
    }
}

/* Block b of the rows. */
ALWAYS_INLINE void affine(const struct panel_rows *r, uint32_t b, int bits, struct scales *s,
                          struct few_products *m, struct panel_block *w) {
    uint32_t g = b >> __builtin_ctz(r->w->group / BLOCK); /* a power of two */
    if (g < s->first || g >= s->end)
        affine_scales(r, g, bits == 8, s);
    put_scales(w, 0, s->d[g - s->first], s->m[g - s->first]);
    put_codes(r, b * 4 * (size_t)bits, bits, m, w->w);
}

ALWAYS_INLINE void mxfp4_mlx(const struct panel_rows *r, uint32_t b, int bits, struct scales *s,
                             struct few_products *m, struct panel_block *w) {
    if (b < s->first || b >= s->end)
        mlx_scales(r, b, s);
    put_scales(w, 0, s->d[b - s->first], s->m[b - s->first]);
    put_codes(r, b * 4 * (size_t)bits, bits, m, w->w);
    UNROLL_FOR(g, GROUPS) {
        w->w[g] = lookup(E2M1_DOUBLED_12, w->w[g]);
    }
}

/* As DEFINE_TYPE of unpack.h, for types whose scales are read for many blocks at once. */
#define DEFINE_ROWS_TYPE(name, from, bits, has_min, offset)                                        \
    void TIER(unpack_##name)(const struct panel_rows *r, uint32_t b0, uint32_t blocks,             \
                             void *panel) {                                                        \
        struct scales s;                                                                           \
        s.first = s.end = 0;                                                                       \
        for (uint32_t i = 0; i < blocks; i++) {                                                    \
            struct panel_block w;                                                                  \
            from(r, b0 + i, bits, &s, NULL, &w);                                                   \
            put_block(&w, 1, panel_block(panel, i, 1));                                            \
        }                                                                                          \
    }                                                                                              \
    ALWAYS_INLINE __m512 row_##name(const struct panel_rows *r, const struct act_row *a,           \
                                    bool halves, uint32_t blocks) {                                \
        struct scales s;                                                                           \
        s.first = s.end = 0;                                                                       \
        __m512 acc = _mm512_setzero_ps();                                                          \
        for (uint32_t b = 0; b < blocks; b++) {                                                    \
            struct panel_block w;                                                                  \
            prefetch_next(r, b * 4 * (size_t)(bits), 4 * (size_t)(bits));                          \
            from(r, b, bits, &s, NULL, &w);                                                        \
            acc = add_block(&w, 1, has_min, offset, a, halves, b, acc);                            \
        }                                                                                          \
        return acc;                                                                                \
    }                                                                                              \
    ALWAYS_INLINE void few_##name(int rows, const struct panel_rows *r, const struct act_few *a,   \
                                  uint32_t blocks, __mmask16 lanes, float *y, size_t y_stride) {   \
        __m512i dot[FEW_ROWS];                                                                     \
        __m512 acc[FEW_ROWS];                                                                      \
        struct few_products m = {a, rows, 1, offset, has_min, blocks, 0, 0, NULL, dot, acc};       \
        start_products(rows, acc);                                                                 \
        struct panel_block now, then;                                                              \
        struct scales s;                                                                           \
        s.first = s.end = 0;                                                                       \
        from(r, 0, bits, &s, NULL, &now);                                                          \
        for (uint32_t b = 0; b < blocks; b++) {                                                    \
            m.block = &now;                                                                        \
            m.b = b;                                                                               \
            prefetch_next(r, b * 4 * (size_t)(bits), 4 * (size_t)(bits));                          \
            from(r, b + 1 < blocks ? b + 1 : b, bits, &s, &m, &then);                              \
            put_block(&then, 1, &now);                                                             \
        }                                                                                          \
        store_products(&m, lanes, y, y_stride);                                                    \
    }                                                                                              \
    DEFINE_CHOICES(name)

/* bits, has a minimum, offset */
DEFINE_ROWS_TYPE(affine2, affine, 2, true, 0)
DEFINE_ROWS_TYPE(affine3, affine, 3, true, 0)
DEFINE_ROWS_TYPE(affine4, affine, 4, true, 0)
DEFINE_ROWS_TYPE(affine5, affine, 5, true, 0)
DEFINE_ROWS_TYPE(affine6, affine, 6, true, 0)
DEFINE_ROWS_TYPE(affine8, affine, 8, true, 128)
DEFINE_ROWS_TYPE(mxfp4_mlx, mxfp4_mlx, 4, false, 12)
