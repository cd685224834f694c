/* SPDX-License-Identifier: Apache-2.0 */
/* product_quant.c: activations times weights in blocks of 32 codes (Q4_0, Q4_1, Q8_0), and the
 * rounding of those activations.
 *
 * Q1 An output is one float32 accumulator over the blocks in order,
 *        acc = fma(d_b * scale_b, dot_b, acc)    and for Q4_1    acc = fma(m_b, sum_b, acc)
 *    with dot_b exact in s32. Both ways below do exactly this and differ only in how they come by
 *    the integers, so an output has the same bits from one row of activations and from 512, and
 *    from any cut of the outputs.
 *
 *    one row    (decode; bound by weight bytes) eight weight rows side by side, read from where
 *               they are mapped
 *    more       (prefill; bound by multiplies) 16 weight rows are unpacked into scratch once, then
 *               used for every row of activations, three at a time. At two rows this is about as
 *               fast as reading the weights twice, from three on faster.
 *
 * Q2 Lanes are outputs. A block's codes are turned so that a vector holds four inputs of each of
 *    eight outputs,
 *
 *        group g, 0..7:   | w0: 4g 4g+1 4g+2 4g+3 | w1: 4g .. 4g+3 | ... | w7 |     32 bytes
 *
 *    and meet four activation codes that are broadcast. Nothing is summed across lanes, except for
 *    Q8_0 with one row, where turning 32 bytes costs more than summing across.
 *
 * Q3 Order of activation codes inside a block of 32:
 *        8 bits    natural; group g is dword g
 *        16 bits   | 0 2 4 6 ... 30 | 1 3 5 7 ... 31 |: dword g has inputs 4g and 4g+2, dword 8+g
 *                  has 4g+1 and 4g+3: what (v & 0x00ff) and (v >> 8) leave in a lane of a group
 *
 * Q4 s16 sums stay in range: 4-bit codes with 8-bit activations add up to 16 * 15 * 127 = 30480 per
 *    half lane and block. Q4_0 starts from -8 times the sums of the activations: what wraps on the
 *    way comes back. 8-bit weights: |w| <= 128 times +-127, two at a time, is 32512, and goes to
 *    s32 at once.
 *
 * Weights lie in GGUF's own layout and are not aligned. Leaves out: float weights
 * (product_float.c).
 */
#include "backend/cpu/avx2/product.h"

enum {
    BLOCK = 32,
    HALF = 16,
    GROUPS = BLOCK / 4,
    ACT8_MAX = 127,
    PANEL = 16, /* outputs of a panel: with three rows the sums of a block just fit 16 registers */
};
_Static_assert(PANEL == (int)PRODUCT_PANEL, "a work item is whole panels");

/* ---- activations ----------------------------------------------------------------------------- */

/* Bits of max|x| over 32 values: as integers, so that Inf and NaN come out on top. */
ALWAYS_INLINE uint32_t max_abs_bits(const __m256 x[4]) {
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i v[4];
    UNROLL_FOR(i, 4) {
        v[i] = _mm256_and_si256(_mm256_castps_si256(x[i]), mask);
    }
    v[0] = _mm256_max_epi32(_mm256_max_epi32(v[0], v[1]), _mm256_max_epi32(v[2], v[3]));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v[0]), _mm256_extracti128_si256(v[0], 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

ALWAYS_INLINE int32_t sum_codes(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

ALWAYS_INLINE void store_codes8(int8_t *to, const __m256i c[4]) {
    __m256i v = _mm256_packs_epi16(_mm256_packs_epi32(c[0], c[1]), _mm256_packs_epi32(c[2], c[3]));
    v = _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)to, v);
}

/* Every second dword of a and b, from `odd` on. */
ALWAYS_INLINE __m256i every_second(__m256i a, __m256i b, bool odd) {
    __m256 fa = _mm256_castsi256_ps(a), fb = _mm256_castsi256_ps(b);
    __m256 v = odd ? _mm256_shuffle_ps(fa, fb, 0xdd) : _mm256_shuffle_ps(fa, fb, 0x88);
    return _mm256_permute4x64_epi64(_mm256_castps_si256(v), 0xd8);
}

ALWAYS_INLINE void store_codes16(int16_t *to, const __m256i c[4]) {
    UNROLL_FOR(odd, 2) {
        __m256i v =
            _mm256_packs_epi32(every_second(c[0], c[1], odd), every_second(c[2], c[3], odd));
        _mm256_storeu_si256((__m256i *)to + odd, _mm256_permute4x64_epi64(v, 0xd8));
    }
}

/* x - scale * code, in one rounding. */
ALWAYS_INLINE void store_rest(float *to, const __m256 x[4], const __m256i c[4], float scale) {
    for (int i = 0; i < 4; i++)
        _mm256_storeu_ps(to + 8 * i,
                         _mm256_fnmadd_ps(_mm256_set1_ps(scale), _mm256_cvtepi32_ps(c[i]), x[i]));
}

/* A block that holds an Inf or a NaN gets codes 0 and scale NaN: its outputs become NaN instead of
 * something plausible. */
void avx2_act_pack(struct act_rows *a, uint32_t row) {
    float code_max = a->bits == 8 ? (float)ACT8_MAX : (float)ACT16_MAX;
    for (uint32_t b = 0; b < a->k / BLOCK; b++) {
        size_t at = (size_t)row * a->k + (size_t)b * BLOCK;
        __m256 x[4];
        UNROLL_FOR(i, 4) {
            x[i] = _mm256_loadu_ps(a->x + at + 8 * i);
        }
        uint32_t bits = max_abs_bits(x);
        float max = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int)bits)));
        bool finite = bits < 0x7f800000, used = finite && max >= ACT_TINY;
        float scale = used ? max / code_max : finite ? 0.0f : __builtin_nanf("");
        __m256 per_unit = _mm256_set1_ps(used ? code_max / max : 0.0f);
        __m256i c[4];
        UNROLL_FOR(i, 4) {
            c[i] =
                used ? _mm256_cvtps_epi32(_mm256_mul_ps(x[i], per_unit)) : _mm256_setzero_si256();
        }
        if (a->rest)
            store_rest(a->rest + at, x, c, scale);
        if (a->bits == 8)
            store_codes8((int8_t *)a->codes + at, c);
        else
            store_codes16((int16_t *)a->codes + at, c);
        int32_t low = sum_codes(_mm256_add_epi32(c[0], c[1]));
        int32_t high = sum_codes(_mm256_add_epi32(c[2], c[3]));
        a->scale[at / BLOCK] = scale;
        a->sum[at / BLOCK] = scale * (float)(low + high);
        a->sum16[at / HALF] = scale * (float)low;
        a->sum16[at / HALF + 1] = scale * (float)high;
    }
}

/* ---- reading weights ------------------------------------------------------------------------- */

ALWAYS_INLINE size_t block_bytes(enum weight_type t) {
    return t == WEIGHT_Q8_0 ? 34 : t == WEIGHT_Q4_1 ? 20 : 18;
}
ALWAYS_INLINE size_t header_bytes(enum weight_type t) {
    return t == WEIGHT_Q4_1 ? 4 : 2;
}

/* 16 bytes of each of eight rows, turned: dword o of q[j] is dword j of row o. */
ALWAYS_INLINE void load_turned(const uint8_t *const row[8], size_t at, __m256i q[4]) {
    __m256i a[4], t[4];
    UNROLL_FOR(i, 4) {
        a[i] = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(row[i] + at))),
            _mm_loadu_si128((const __m128i *)(row[i + 4] + at)), 1);
    }
    t[0] = _mm256_unpacklo_epi32(a[0], a[1]);
    t[1] = _mm256_unpacklo_epi32(a[2], a[3]);
    t[2] = _mm256_unpackhi_epi32(a[0], a[1]);
    t[3] = _mm256_unpackhi_epi32(a[2], a[3]);
    q[0] = _mm256_unpacklo_epi64(t[0], t[1]);
    q[1] = _mm256_unpackhi_epi64(t[0], t[1]);
    q[2] = _mm256_unpacklo_epi64(t[2], t[3]);
    q[3] = _mm256_unpackhi_epi64(t[2], t[3]);
}

ALWAYS_INLINE uint64_t load_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

/* Four f16 side by side. */
ALWAYS_INLINE uint64_t load_4_f16(const uint8_t *const row[4], size_t at) {
    return load_u16(row[0] + at) | load_u16(row[1] + at) << 16 | load_u16(row[2] + at) << 32 |
           load_u16(row[3] + at) << 48;
}

ALWAYS_INLINE __m128i load_dword(const uint8_t *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm_cvtsi32_si128(v);
}

/* The dwords at `at` of four rows. */
ALWAYS_INLINE __m128i load_4_dwords(const uint8_t *const row[4], size_t at) {
    return _mm_unpacklo_epi64(_mm_unpacklo_epi32(load_dword(row[0] + at), load_dword(row[1] + at)),
                              _mm_unpacklo_epi32(load_dword(row[2] + at), load_dword(row[3] + at)));
}

/* Eight (d, m) pairs of f16, one a dword. */
ALWAYS_INLINE void split_scales(__m256i dm, __m256 *d, __m256 *m) {
    const __m256i halves = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0,
                                            1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    dm = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(dm, halves), 0xd8);
    *d = _mm256_cvtph_ps(_mm256_castsi256_si128(dm));
    *m = _mm256_cvtph_ps(_mm256_extracti128_si256(dm, 1));
}

/* d, and for Q4_1 m, of the blocks at `at` of eight rows. */
ALWAYS_INLINE void load_scales(enum weight_type t, const uint8_t *const row[8], size_t at,
                               __m256 *d, __m256 *m) {
    if (t == WEIGHT_Q4_1) {
        split_scales(_mm256_inserti128_si256(_mm256_castsi128_si256(load_4_dwords(row, at)),
                                             load_4_dwords(row + 4, at), 1),
                     d, m);
        return;
    }
    *d = _mm256_cvtph_ps(
        _mm_set_epi64x((long long)load_4_f16(row + 4, at), (long long)load_4_f16(row, at)));
    *m = _mm256_setzero_ps();
}

/* ---- sums ------------------------------------------------------------------------------------ */

ALWAYS_INLINE __m256i broadcast_dword(const void *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

/* -8 times the activations of a block, as pairs of s16 that stand where maddubs puts its own: every
 * dword has inputs 0 1 mod 4 in its low half, 2 3 mod 4 in its high one. */
ALWAYS_INLINE __m256i minus_8_sums(const int8_t *x) {
    __m256i s = _mm256_maddubs_epi16(_mm256_set1_epi8(8), _mm256_loadu_si256((const __m256i *)x));
    s = _mm256_add_epi16(s, _mm256_permute2x128_si256(s, s, 1));
    s = _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0x4e));
    s = _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0xb1));
    return _mm256_sub_epi16(_mm256_setzero_si256(), s);
}

/* -8 times the sum of a block of s16 codes, in every lane. */
ALWAYS_INLINE __m256i minus_8_sum_16(const int16_t *x) {
    const __m256i *v = (const __m256i *)x;
    const __m256i minus_8 = _mm256_set1_epi16(-8);
    __m256i s = _mm256_add_epi32(_mm256_madd_epi16(minus_8, _mm256_loadu_si256(v)),
                                 _mm256_madd_epi16(minus_8, _mm256_loadu_si256(v + 1)));
    s = _mm256_add_epi32(s, _mm256_permute2x128_si256(s, s, 1));
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4e));
    return _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xb1));
}

/* Integer sums may be regrouped, and compilers do: into trees whose leaves do not fit the
 * registers, at half the speed. An empty statement that pretends to change the sums holds them to
 * the order written. */
ALWAYS_INLINE void keep_order(__m256i *sum) {
    __asm__("" : "+x"(*sum));
}

ALWAYS_INLINE __m256i widen_pairs(__m256i s16) {
    return _mm256_madd_epi16(s16, _mm256_set1_epi16(1));
}

/* Lane o = the sum of p[o]'s eight. */
ALWAYS_INLINE __m256i sum_across(const __m256i p[8]) {
    __m256i u[4], v[2];
    UNROLL_FOR(i, 4) {
        u[i] = _mm256_add_epi32(_mm256_unpacklo_epi32(p[2 * i], p[2 * i + 1]),
                                _mm256_unpackhi_epi32(p[2 * i], p[2 * i + 1]));
    }
    UNROLL_FOR(i, 2) {
        v[i] = _mm256_add_epi32(_mm256_unpacklo_epi64(u[2 * i], u[2 * i + 1]),
                                _mm256_unpackhi_epi64(u[2 * i], u[2 * i + 1]));
    }
    return _mm256_add_epi32(_mm256_permute2x128_si256(v[0], v[1], 0x20),
                            _mm256_permute2x128_si256(v[0], v[1], 0x31));
}

/* Q1, for eight outputs of one row. `at` is the block's index in scale and sum. */
ALWAYS_INLINE __m256 add_block(enum weight_type t, __m256 acc, __m256i dot, __m256 d, __m256 m,
                               const struct act_rows *a, size_t at) {
    __m256 scale = _mm256_broadcast_ss(a->scale + at);
    acc = _mm256_fmadd_ps(_mm256_mul_ps(d, scale), _mm256_cvtepi32_ps(dot), acc);
    if (t == WEIGHT_Q4_1)
        acc = _mm256_fmadd_ps(m, _mm256_broadcast_ss(a->sum + at), acc);
    return acc;
}

/* ---- one row --------------------------------------------------------------------------------- */

/* s32 dots of eight 4-bit weight rows, turned but still packed (low nibbles are groups 0..3, high
 * ones 4..7), with a block of codes. */
ALWAYS_INLINE __m256i dot_nibbles_8(enum weight_type t, const __m256i q[4], const int8_t *x) {
    const __m256i low = _mm256_set1_epi8(15);
    __m256i sum = t == WEIGHT_Q4_0 ? minus_8_sums(x) : _mm256_setzero_si256();
    UNROLL_FOR(j, 4) {
        __m256i w = _mm256_and_si256(q[j], low);
        __m256i v = _mm256_and_si256(_mm256_srli_epi16(q[j], 4), low);
        w = _mm256_maddubs_epi16(w, broadcast_dword(x + 4 * j));
        v = _mm256_maddubs_epi16(v, broadcast_dword(x + 4 * j + 16));
        sum = _mm256_add_epi16(sum, _mm256_add_epi16(w, v));
        keep_order(&sum);
    }
    return widen_pairs(sum);
}

/* The nibbles of a 16-bit word, from its low end, are an even input of group j, one of group 4+j,
 * an odd one of j and of 4+j. The two in the middle stay where they stand: their sums come out 16
 * and 256 times too large (at most 15 * 256 * 16256 * 8 < 2^29) and are shifted once. */
ALWAYS_INLINE __m256i dot_nibbles_16(enum weight_type t, const __m256i q[4], const int16_t *x) {
    __m256i sum[4];
    UNROLL_FOR(n, 4) {
        sum[n] = _mm256_setzero_si256();
    }
    UNROLL_FOR(j, 4) {
        UNROLL_FOR(n, 4) {
            __m256i w = n == 3 ? _mm256_srli_epi16(q[j], 12)
                               : _mm256_and_si256(q[j], _mm256_set1_epi16((short)(15 << 4 * n)));
            w = _mm256_madd_epi16(w, broadcast_dword(x + 2 * (4 * n + j)));
            sum[n] = _mm256_add_epi32(sum[n], w);
            keep_order(&sum[n]);
        }
    }
    sum[0] = _mm256_add_epi32(sum[0], _mm256_srai_epi32(sum[1], 4));
    sum[3] = _mm256_add_epi32(sum[3], _mm256_srai_epi32(sum[2], 8));
    __m256i dot = _mm256_add_epi32(sum[0], sum[3]);
    return t == WEIGHT_Q4_0 ? _mm256_add_epi32(dot, minus_8_sum_16(x)) : dot;
}

ALWAYS_INLINE __m256i dot_bytes_8(const uint8_t *const row[8], size_t at, const int8_t *codes) {
    __m256i x = _mm256_loadu_si256((const __m256i *)codes), p[8];
    UNROLL_FOR(o, 8) {
        __m256i w = _mm256_loadu_si256((const __m256i *)(row[o] + at));
        p[o] = widen_pairs(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)));
    }
    return sum_across(p);
}

ALWAYS_INLINE __m256i even_bytes(__m256i v) {
    return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
}
ALWAYS_INLINE __m256i odd_bytes(__m256i v) {
    return _mm256_srai_epi16(v, 8);
}

ALWAYS_INLINE __m256i dot_bytes_16(const uint8_t *const row[8], size_t at, const int16_t *codes) {
    __m256i even = _mm256_loadu_si256((const __m256i *)codes);
    __m256i odd = _mm256_loadu_si256((const __m256i *)codes + 1), p[8];
    UNROLL_FOR(o, 8) {
        __m256i w = _mm256_loadu_si256((const __m256i *)(row[o] + at));
        p[o] = _mm256_add_epi32(_mm256_madd_epi16(even_bytes(w), even),
                                _mm256_madd_epi16(odd_bytes(w), odd));
    }
    return sum_across(p);
}

/* Adds block b to eight outputs. q: the block's packed nibbles, turned; bytes are read from the
 * rows. */
ALWAYS_INLINE __m256 one_row_block(enum weight_type t, int bits, const uint8_t *const row[8],
                                   const __m256i *q, __m256 d, __m256 m, const struct act_rows *a,
                                   size_t b, __m256 acc) {
    size_t at = b * block_bytes(t) + header_bytes(t);
    const int8_t *x8 = (const int8_t *)a->codes + b * BLOCK;
    const int16_t *x16 = (const int16_t *)a->codes + b * BLOCK;
    __m256i dot;
    if (t == WEIGHT_Q8_0)
        dot = bits == 8 ? dot_bytes_8(row, at, x8) : dot_bytes_16(row, at, x16);
    else
        dot = bits == 8 ? dot_nibbles_8(t, q, x8) : dot_nibbles_16(t, q, x16);
    return add_block(t, acc, dot, d, m, a, b);
}

/* The eight rows behind these are read next; eight streams that hop from one to the next are more
 * than the machine's own prefetchers follow (13 GB/s without this, 22 with it on a Zen 5 core that
 * reads 28). */
ALWAYS_INLINE void prefetch(const uint8_t *next, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64)
        _mm_prefetch((const char *)next + line, _MM_HINT_T0);
}

/* Eight outputs of the one row of activations. */
ALWAYS_INLINE __m256 one_row(enum weight_type t, int bits, const uint8_t *const row[8],
                             const struct act_rows *a) {
    size_t blocks = a->k / BLOCK, size = block_bytes(t), b = 0;
    const uint8_t *next = row[7] + blocks * size;
    __m256 d, m, acc = _mm256_setzero_ps();
    /* Four blocks of Q4_1 are 80 bytes, five dwords each: turned together, headers and all, none is
     * loaded by itself. */
    for (; t == WEIGHT_Q4_1 && b + 4 <= blocks; b += 4) {
        __m256i v[20];
        prefetch(next + 8 * b * size, 4 * 8 * size);
        UNROLL_FOR(i, 5) {
            load_turned(row, b * size + 16 * (size_t)i, v + 4 * i);
        }
        UNROLL_FOR(i, 4) {
            split_scales(v[5 * i], &d, &m);
            acc = one_row_block(t, bits, row, v + 5 * i + 1, d, m, a, b + (size_t)i, acc);
        }
    }
    for (; b < blocks; b++) {
        __m256i q[4];
        prefetch(next + 8 * b * size, 8 * size);
        load_scales(t, row, b * size, &d, &m);
        if (t != WEIGHT_Q8_0)
            load_turned(row, b * size + header_bytes(t), q);
        acc = one_row_block(t, bits, row, q, d, m, a, b, acc);
    }
    return acc;
}

/* ---- more rows ------------------------------------------------------------------------------- */

/* One block of a panel: 16 weight rows, two vectors of outputs 0..7 and 8..15 per step. Steps of
 * 8-bit activations are the eight groups; of 16-bit ones the even inputs of the eight groups, then
 * the odd ones, as s16. */
struct panel_8 {
    float d[PANEL], m[PANEL];
    __m256i w[GROUPS][2];
};
struct panel_16 {
    float d[PANEL], m[PANEL];
    __m256i w[2 * GROUPS][2];
};

/* Codes of group g of eight rows as bytes in w[g]: for 8-bit activations unsigned nibbles, else
 * signed values. */
ALWAYS_INLINE void unpack_groups(enum weight_type t, int bits, const uint8_t *const row[8],
                                 size_t at, __m256i w[GROUPS]) {
    const __m256i low = _mm256_set1_epi8(15), eight = _mm256_set1_epi8(8);
    load_turned(row, at + header_bytes(t), w);
    if (t == WEIGHT_Q8_0) {
        load_turned(row, at + header_bytes(t) + 16, w + 4);
        return;
    }
    UNROLL_FOR(g, 4) {
        w[g + 4] = _mm256_and_si256(_mm256_srli_epi16(w[g], 4), low);
        w[g] = _mm256_and_si256(w[g], low);
    }
    if (t == WEIGHT_Q4_0 && bits == 16)
        UNROLL_FOR(g, GROUPS) {
            w[g] = _mm256_sub_epi8(w[g], eight);
        }
}

ALWAYS_INLINE void unpack_panel(enum weight_type t, int bits, const uint8_t *const row[PANEL],
                                size_t blocks, void *panel) {
    size_t size = block_bytes(t);
    const uint8_t *next = row[PANEL - 1] + blocks * size;
    for (size_t b = 0; b < blocks; b++) {
        prefetch(next + PANEL * b * size, PANEL * size);
        UNROLL_FOR(h, 2) {
            __m256 d, m;
            __m256i w[GROUPS];
            load_scales(t, row + 8 * h, b * size, &d, &m);
            unpack_groups(t, bits, row + 8 * h, b * size, w);
            struct panel_8 *p8 = (struct panel_8 *)panel + b;
            struct panel_16 *p16 = (struct panel_16 *)panel + b;
            _mm256_store_ps(bits == 8 ? p8->d + 8 * h : p16->d + 8 * h, d);
            _mm256_store_ps(bits == 8 ? p8->m + 8 * h : p16->m + 8 * h, m);
            UNROLL_FOR(g, GROUPS) {
                if (bits == 8) {
                    p8->w[g][h] = w[g];
                } else {
                    p16->w[g][h] = even_bytes(w[g]);
                    p16->w[g + GROUPS][h] = odd_bytes(w[g]);
                }
            }
        }
    }
}

/* dot[row][half] of one block with the codes of `rows` rows, x[r] each. */
ALWAYS_INLINE void panel_dots_8(enum weight_type t, const struct panel_8 *p,
                                const int8_t *const x[], int rows, __m256i dot[][2]) {
    UNROLL_FOR(r, rows) {
        dot[r][0] = dot[r][1] = t == WEIGHT_Q4_0 ? minus_8_sums(x[r]) : _mm256_setzero_si256();
    }
    UNROLL_FOR(g, GROUPS) {
        __m256i w0 = p->w[g][0], w1 = p->w[g][1];
        UNROLL_FOR(r, rows) {
            __m256i c = broadcast_dword(x[r] + 4 * g);
            dot[r][0] = _mm256_add_epi16(dot[r][0], _mm256_maddubs_epi16(w0, c));
            dot[r][1] = _mm256_add_epi16(dot[r][1], _mm256_maddubs_epi16(w1, c));
            keep_order(&dot[r][0]);
            keep_order(&dot[r][1]);
        }
    }
    UNROLL_FOR(r, rows) {
        dot[r][0] = widen_pairs(dot[r][0]);
        dot[r][1] = widen_pairs(dot[r][1]);
    }
}

/* The same for weights of 8 bits: their magnitudes are the unsigned operand, the codes take over
 * the sign. */
ALWAYS_INLINE void panel_dots_8s(const struct panel_8 *p, const int8_t *const x[], int rows,
                                 __m256i dot[][2]) {
    UNROLL_FOR(r, rows) {
        dot[r][0] = dot[r][1] = _mm256_setzero_si256();
    }
    UNROLL_FOR(g, GROUPS) {
        UNROLL_FOR(h, 2) {
            __m256i w = p->w[g][h], magnitude = _mm256_abs_epi8(w);
            UNROLL_FOR(r, rows) {
                __m256i c = _mm256_sign_epi8(broadcast_dword(x[r] + 4 * g), w);
                dot[r][h] =
                    _mm256_add_epi32(dot[r][h], widen_pairs(_mm256_maddubs_epi16(magnitude, c)));
                keep_order(&dot[r][h]);
            }
        }
    }
}

ALWAYS_INLINE void panel_dots_16(const struct panel_16 *p, const int16_t *const x[], int rows,
                                 __m256i dot[][2]) {
    UNROLL_FOR(r, rows) {
        dot[r][0] = dot[r][1] = _mm256_setzero_si256();
    }
    UNROLL_FOR(s, 2 * GROUPS) {
        __m256i w0 = p->w[s][0], w1 = p->w[s][1];
        UNROLL_FOR(r, rows) {
            __m256i c = broadcast_dword(x[r] + 2 * s);
            dot[r][0] = _mm256_add_epi32(dot[r][0], _mm256_madd_epi16(w0, c));
            dot[r][1] = _mm256_add_epi32(dot[r][1], _mm256_madd_epi16(w1, c));
            keep_order(&dot[r][0]);
            keep_order(&dot[r][1]);
        }
    }
}

/* 16 outputs of `rows` rows of activations, from row r0 on. out [rows][2]. */
ALWAYS_INLINE void tile(enum weight_type t, int bits, const void *panel, const struct act_rows *a,
                        uint32_t r0, int rows, __m256 (*out)[2]) {
    size_t blocks = a->k / BLOCK;
    __m256 acc[TILE_ROWS][2];
    UNROLL_FOR(r, rows) {
        acc[r][0] = acc[r][1] = _mm256_setzero_ps();
    }
    for (size_t b = 0; b < blocks; b++) {
        const struct panel_8 *p8 = (const struct panel_8 *)panel + b;
        const struct panel_16 *p16 = (const struct panel_16 *)panel + b;
        const int8_t *x8[TILE_ROWS];
        const int16_t *x16[TILE_ROWS];
        __m256i dot[TILE_ROWS][2];
        UNROLL_FOR(r, rows) {
            size_t at = ((r0 + (size_t)r) * blocks + b) * BLOCK;
            x8[r] = (const int8_t *)a->codes + at;
            x16[r] = (const int16_t *)a->codes + at;
        }
        if (bits == 16)
            panel_dots_16(p16, x16, rows, dot);
        else if (t == WEIGHT_Q8_0)
            panel_dots_8s(p8, x8, rows, dot);
        else
            panel_dots_8(t, p8, x8, rows, dot);
        UNROLL_FOR(h, 2) {
            __m256 d = _mm256_load_ps(bits == 8 ? p8->d + 8 * h : p16->d + 8 * h);
            __m256 m = _mm256_load_ps(bits == 8 ? p8->m + 8 * h : p16->m + 8 * h);
            UNROLL_FOR(r, rows) {
                acc[r][h] =
                    add_block(t, acc[r][h], dot[r][h], d, m, a, (r0 + (size_t)r) * blocks + b);
            }
        }
    }
    UNROLL_FOR(r, rows) {
        out[r][0] = acc[r][0];
        out[r][1] = acc[r][1];
    }
}

/* ---- the products ---------------------------------------------------------------------------- */

/* Weight rows j, j+1, ...; behind n1 the last one stands in and its results are not stored. */
ALWAYS_INLINE void row_pointers(const struct weight *w, uint32_t j, uint32_t n1, uint32_t count,
                                const uint8_t **row) {
    size_t row_bytes = w->k / BLOCK * block_bytes(w->type);
    for (uint32_t i = 0; i < count; i++)
        row[i] = (const uint8_t *)w->data + (j + i < n1 ? j + i : n1 - 1) * row_bytes;
}

ALWAYS_INLINE void product_row(enum weight_type t, int bits, const struct weight *w, uint32_t n0,
                               uint32_t n1, const struct act_rows *a, float *y) {
    for (uint32_t j = n0; j < n1; j += 8) {
        const uint8_t *row[8];
        row_pointers(w, j, n1, 8, row);
        __m256 out = one_row(t, bits, row, a);
        memcpy(y + (j - n0), &out, (n1 - j < 8 ? n1 - j : 8) * sizeof *y);
    }
}

/* All rows of activations times the panel, n of whose 16 weight rows are outputs. */
ALWAYS_INLINE void product_panel(enum weight_type t, int bits, const void *panel, uint32_t n,
                                 const struct act_rows *a, float *y, size_t y_stride) {
    for (uint32_t r = 0; r < a->rows; r += TILE_ROWS) {
        __m256 out[TILE_ROWS][2];
        uint32_t rows = a->rows - r < TILE_ROWS ? a->rows - r : TILE_ROWS;
        if (rows == 3)
            tile(t, bits, panel, a, r, 3, out);
        else if (rows == 2)
            tile(t, bits, panel, a, r, 2, out);
        else
            tile(t, bits, panel, a, r, 1, out);
        for (uint32_t i = 0; i < rows; i++)
            memcpy(y + (r + i) * y_stride, out[i], n * sizeof *y);
    }
}

ALWAYS_INLINE void product_panels(enum weight_type t, int bits, const struct weight *w, uint32_t n0,
                                  uint32_t n1, const struct act_rows *a, float *y, size_t y_stride,
                                  void *scratch) {
    for (uint32_t j = n0; j < n1; j += PANEL) {
        const uint8_t *row[PANEL];
        row_pointers(w, j, n1, PANEL, row);
        unpack_panel(t, bits, row, a->k / BLOCK, scratch);
        product_panel(t, bits, scratch, n1 - j < PANEL ? n1 - j : PANEL, a, y + (j - n0), y_stride);
    }
}

ALWAYS_INLINE void product(enum weight_type t, int bits, const struct weight *w, uint32_t n0,
                           uint32_t n1, const struct act_rows *a, float *y, size_t y_stride,
                           void *scratch) {
    if (a->rows == 1)
        product_row(t, bits, w, n0, n1, a, y);
    else
        product_panels(t, bits, w, n0, n1, a, y, y_stride, scratch);
}

/* One copy of everything above per type and width. */
#define DEFINE_PRODUCT(name, type)                                                                 \
    void avx2_product_##name(const struct weight *w, uint32_t n0, uint32_t n1,                     \
                             const struct act_rows *a, float *y, size_t y_stride, void *scratch) { \
        if (a->bits == 8)                                                                          \
            product(type, 8, w, n0, n1, a, y, y_stride, scratch);                                  \
        else                                                                                       \
            product(type, 16, w, n0, n1, a, y, y_stride, scratch);                                 \
    }
DEFINE_PRODUCT(q4_0, WEIGHT_Q4_0)
DEFINE_PRODUCT(q4_1, WEIGHT_Q4_1)
DEFINE_PRODUCT(q8_0, WEIGHT_Q8_0)
