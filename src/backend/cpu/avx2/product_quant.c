/* SPDX-License-Identifier: Apache-2.0 */
/* product_quant.c: rounded activations times weights of integer codes: all block types.
 *
 * AVX2-3 An output is one float32 accumulator over the runs in order,
 *        acc = fma(d_u * scale_b, dot_u, acc)    and with minima    acc = fma(m_u, sum_u, acc)
 *    with dot_u exact in s32. Both ways below do exactly this and differ only in how they come by
 *    the integers, so an output has the same bits from one row of activations and from 512, and
 *    from any cut of the outputs.
 *
 *    one row    (decode; bound by weight bytes) eight weight rows side by side, read from where
 *               they are mapped
 *    more       (prefill; bound by multiplies) 16 weight rows are unpacked into scratch once, then
 *               used for every row of activations, three at a time. At two rows this is about as
 *               fast as reading the weights twice, from three on faster.
 *
 * AVX2-4 Float lanes are outputs. With one row the 32 products of a block are in a vector as the
 * codes do, eight rows are eight vectors, and they are summed across together (sum_across). A panel
 * is transposed, so that nothing needs to be summed across: a vector holds four inputs of each of
 * eight outputs and meets four activation codes that are broadcast,
 *
 *        group g, 0..7:   | w0: 4g 4g+1 4g+2 4g+3 | w1: 4g .. 4g+3 | ... | w7 |     32 bytes
 *
 *        panel, a block:  | d, and m with minima: [run][16] f32 | codes [group][16 outputs][4] |
 *
 *    For 16-bit activations the codes are s16, first the even inputs of the eight groups, then the
 *    odd ones (act_pack.c).
 *
 * AVX2-5 Codes are exact in s16 as long as AVX2-2 of product_codes.h says, then in s32.
 *
 * Types are defined in product_codes.h and product_scales.h. Float weights are in
 * simd/product_float.c.
 */
#include "backend/cpu/avx2/product_scales.h"

enum {
    GROUPS = BLOCK / 4,
    PANEL = 16, /* outputs of a panel: with three rows the sums of a block just fit 16 registers */
};
_Static_assert(PANEL == (int)PRODUCT_PANEL, "a work item is whole panels");

/* ---- sums ------------------------------------------------------------------------------------ */

/* Integer sums may be regrouped, and compilers do: into trees whose leaves do not fit the
 * registers, at half the speed. An empty statement that pretends to change the sums holds them to
 * the order written. */
ALWAYS_INLINE void keep_order(__m256i *sum) {
    __asm__("" : "+x"(*sum));
}

ALWAYS_INLINE __m256i widen_pairs(__m256i s16) {
    return _mm256_madd_epi16(s16, _mm256_set1_epi16(1));
}

/* Pairs of s16 or s32. */
ALWAYS_INLINE __m256i add_sums(bool s16, __m256i a, __m256i b) {
    return s16 ? _mm256_add_epi16(a, b) : _mm256_add_epi32(a, b);
}

/* v[i]: four sums of row i | of row i + 4, pairs of s16 or (left 0) s32. Lane o = the sum of row
 * o's plus start, in s32. s16 are widened before more than `left` of them would be added. */
ALWAYS_INLINE __m256i sum_across(__m256i v[4], int left, __m256i start) {
    __m256i u[2], sum;
    UNROLL_FOR(i, 4) {
        v[i] = left == 1 ? widen_pairs(v[i]) : v[i];
    }
    UNROLL_FOR(i, 2) {
        u[i] = add_sums(left > 1, _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
                        _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
        u[i] = left == 2 ? widen_pairs(u[i]) : u[i];
    }
    sum = add_sums(left > 2, _mm256_unpacklo_epi64(u[0], u[1]), _mm256_unpackhi_epi64(u[0], u[1]));
    sum = add_sums(left > 2, sum, start);
    return left > 2 ? widen_pairs(sum) : sum;
}

/* Minus the sums of the runs of v, dwords of s16 pairs or s32, in every dword. */
ALWAYS_INLINE void negative_sums(bool s16, __m256i v, int runs, __m256i *start) {
    v = add_sums(s16, v, _mm256_shuffle_epi32(v, 0x4e));
    v = add_sums(s16, v, _mm256_shuffle_epi32(v, 0xb1));
    if (runs == 1)
        v = add_sums(s16, v, _mm256_permute2x128_si256(v, v, 1));
    v = s16 ? _mm256_sub_epi16(_mm256_setzero_si256(), v)
            : _mm256_sub_epi32(_mm256_setzero_si256(), v);
    start[0] = runs == 1 ? v : _mm256_permute2x128_si256(v, v, 0x00);
    if (runs == 2)
        start[1] = _mm256_permute2x128_si256(v, v, 0x11);
}

/* -offset times the activations of each run of a block, as pairs of s16 in the places where maddubs
 * puts its own: every dword has inputs 0 1 mod 4 in its low half, 2 3 mod 4 in its high one. */
ALWAYS_INLINE void starts_8(int offset, int runs, const int8_t *x, __m256i *start) {
    __m256i v = _mm256_loadu_si256((const __m256i *)x);
    v = _mm256_maddubs_epi16(_mm256_set1_epi8((char)offset), v);
    negative_sums(true, v, runs, start);
}

/* The same of 16-bit activations, in s32. */
ALWAYS_INLINE void starts_16(int offset, int runs, const int16_t *x, __m256i *start) {
    const __m256i *v = (const __m256i *)x;
    const __m256i factor = _mm256_set1_epi16((short)offset);
    negative_sums(false,
                  _mm256_add_epi32(_mm256_madd_epi16(factor, _mm256_loadu_si256(v)),
                                   _mm256_madd_epi16(factor, _mm256_loadu_si256(v + 1))),
                  runs, start);
}

ALWAYS_INLINE __m256i even_bytes(bool is_signed, __m256i v) {
    return is_signed ? _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8)
                     : _mm256_and_si256(v, _mm256_set1_epi16(255));
}
ALWAYS_INLINE __m256i odd_bytes(bool is_signed, __m256i v) {
    return is_signed ? _mm256_srai_epi16(v, 8) : _mm256_srli_epi16(v, 8);
}

/* AVX2-3, for eight outputs of one row. */
ALWAYS_INLINE __m256 add_run(bool has_min, __m256 acc, __m256i dot, __m256 d, __m256 m,
                             const float *scale, const float *sum) {
    acc =
        _mm256_fmadd_ps(_mm256_mul_ps(d, _mm256_broadcast_ss(scale)), _mm256_cvtepi32_ps(dot), acc);
    return has_min ? _mm256_fmadd_ps(m, _mm256_broadcast_ss(sum), acc) : acc;
}

/* ---- one row --------------------------------------------------------------------------------- */

/* 16 bytes in both halves of a vector. */
ALWAYS_INLINE __m256i broadcast_16(const void *p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(p));
}

ALWAYS_INLINE struct two_rows two_of(struct places p, int o) {
    return (struct two_rows){lower(p, o), upper(p, o)};
}

/* dot[u], u < runs: dots of block i of the unit at p of eight rows with its activations. */
ALWAYS_INLINE void dots_8(enum weight_type t, struct places p, int i, const int8_t *x,
                          __m256i *dot) {
    const struct shape s = shape_of(t);
    __m256i v[2][4], start[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    UNROLL_FOR(o, 4) {
        __m256i c[2];
        load_codes(t, two_of(p, o), i, c);
        UNROLL_FOR(h, 2) {
            __m256i codes = broadcast_16(x + 16 * h);
            v[h][o] = s.is_signed ? _mm256_maddubs_epi16(_mm256_abs_epi8(c[h]),
                                                         _mm256_sign_epi8(codes, c[h]))
                                  : _mm256_maddubs_epi16(c[h], codes);
            if (s.runs == 1 && s.pairs == 1)
                v[h][o] = widen_pairs(v[h][o]);
        }
        if (s.runs == 1)
            v[0][o] = add_sums(s.pairs > 1, v[0][o], v[1][o]);
    }
    if (s.offset)
        starts_8(s.offset, s.runs, x, start);
    UNROLL_FOR(u, s.runs) {
        dot[u] = sum_across(v[u], s.runs == 1 ? s.pairs / 2 : s.pairs, start[u]);
    }
}

ALWAYS_INLINE void dots_16(enum weight_type t, struct places p, int i, const int16_t *x,
                           __m256i *dot) {
    const struct shape s = shape_of(t);
    __m256i v[2][4], start[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    UNROLL_FOR(o, 4) {
        __m256i c[2];
        load_codes(t, two_of(p, o), i, c);
        UNROLL_FOR(h, 2) {
            __m256i even =
                _mm256_madd_epi16(even_bytes(s.is_signed, c[h]), broadcast_16(x + 8 * h));
            __m256i odd =
                _mm256_madd_epi16(odd_bytes(s.is_signed, c[h]), broadcast_16(x + 16 + 8 * h));
            v[h][o] = _mm256_add_epi32(even, odd);
        }
        if (s.runs == 1)
            v[0][o] = _mm256_add_epi32(v[0][o], v[1][o]);
        keep_order(&v[0][o]);
    }
    if (s.offset)
        starts_16(s.offset, s.runs, x, start);
    UNROLL_FOR(u, s.runs) {
        dot[u] = sum_across(v[u], 0, start[u]);
    }
}

/* Eight rows that are read next, as these will be: all at once, a line of each. (Eight streams that
 * hop from one to the next are more than the machine's own prefetchers follow.) from, to: bytes of
 * a row. */
ALWAYS_INLINE size_t prefetch(struct places next, size_t from, size_t to) {
    for (; from < to; from += 64) {
        UNROLL_FOR(o, 4) {
            _mm_prefetch((const char *)lower(next, o) + from, _MM_HINT_T0);
            _mm_prefetch((const char *)upper(next, o) + from, _MM_HINT_T0);
        }
    }
    return from;
}

/* Eight outputs of the one row of activations. */
ALWAYS_INLINE __m256 one_row(enum weight_type t, int bits, const struct eight_rows *w,
                             const struct act_rows *a) {
    const struct shape s = shape_of(t);
    size_t units = a->k / (BLOCK * s.unit_blocks), ahead = 0, transposed = 0;
    const float *sum = s.runs == 1 ? a->sum : a->sum16;
    struct places p = w->data, next = places_behind(p, SIDE * p.stride);
    __m256 acc = _mm256_setzero_ps();
    for (size_t unit = 0; unit < units; unit++, p = places_behind(p, s.unit_bytes)) {
        struct heads h;
        ahead = prefetch(next, ahead, (unit + 1) * s.unit_bytes);
        if (s.scales_apart && unit * 64 < SIDE * w->bytes) { /* those of the next eight rows, too */
            _mm_prefetch((const char *)w->scales.row0 + SIDE * w->bytes + unit * 64, _MM_HINT_T0);
            if (s.has_min)
                _mm_prefetch((const char *)w->biases.row0 + SIDE * w->bytes + unit * 64,
                             _MM_HINT_T0);
        }
        if (s.scales_apart && unit >> w->group_shift >= transposed)
            transposed = transpose_scales(w, s.has_min, transposed);
        load_heads(t, p, &h);
        UNROLL_FOR(i, s.unit_blocks) {
            size_t b = unit * s.unit_blocks + (size_t)i;
            __m256i dot[2];
            __m256 d[2], m[2];
            if (bits == 8)
                dots_8(t, p, i, (const int8_t *)a->codes + b * BLOCK, dot);
            else
                dots_16(t, p, i, (const int16_t *)a->codes + b * BLOCK, dot);
            block_scales(t, p, &h, w, unit, i, d, m);
            UNROLL_FOR(u, s.runs) {
                acc = add_run(s.has_min, acc, dot[u], d[u], m[u], a->scale + b,
                              sum + s.runs * b + (size_t)u);
            }
        }
    }
    return acc;
}

/* ---- more rows: panels ----------------------------------------------------------------------- */

/* The properties of a type that the products of panels depend on. */
struct kind {
    int bits; /* of activations */
    int runs, pairs;
    bool is_signed, has_offset, has_min;
};

/* Bytes of a block before its codes, and all of it. */
ALWAYS_INLINE size_t panel_head(struct kind kind) {
    return (size_t)kind.runs * (kind.has_min ? 2 : 1) * PANEL * sizeof(float);
}
ALWAYS_INLINE size_t panel_block(struct kind kind) {
    return panel_head(kind) + (size_t)PANEL * BLOCK * (kind.bits == 8 ? 1 : 2);
}

/* Puts block i of a unit of eight rows, which are one half of the panel's, into its block. */
ALWAYS_INLINE void unpack_block(enum weight_type t, struct kind kind, struct places p,
                                const struct heads *h, const struct eight_rows *w, size_t unit,
                                int i, int half, char *block) {
    const bool is_signed = shape_of(t).is_signed || shape_of(t).offset;
    float *heads = (float *)block + SIDE * half;
    __m256i *to = (__m256i *)(block + panel_head(kind)) + half, c[GROUPS];
    __m256 d[2], m[2];
    block_scales(t, p, h, w, unit, i, d, m);
    UNROLL_FOR(u, kind.runs) {
        _mm256_store_ps(heads + u * PANEL, d[u]);
        if (kind.has_min)
            _mm256_store_ps(heads + (kind.runs + u) * PANEL, m[u]);
    }
    UNROLL_FOR(o, 4) {
        __m256i two[2];
        load_codes(t, two_of(p, o), i, two);
        c[o] = two[0];
        c[o + 4] = two[1];
    }
    transpose(c);
    transpose(c + 4);
    UNROLL_FOR(g, GROUPS) {
        if (kind.bits == 8) {
            to[2 * g] = c[g];
        } else {
            if (shape_of(t).offset)
                c[g] = _mm256_sub_epi8(c[g], _mm256_set1_epi8((char)shape_of(t).offset));
            to[2 * g] = even_bytes(is_signed, c[g]);
            to[2 * (g + GROUPS)] = odd_bytes(is_signed, c[g]);
        }
    }
}

/* 16 weight rows, eight and eight. */
ALWAYS_INLINE void unpack_panel(enum weight_type t, struct kind kind,
                                const struct eight_rows rows[2], uint32_t k, char *panel) {
    const struct shape s = shape_of(t);
    size_t units = k / (BLOCK * s.unit_blocks), ahead[2] = {0, 0}, transposed[2] = {0, 0};
    struct places p[2] = {rows[0].data, rows[1].data};
    for (size_t unit = 0; unit < units; unit++) {
        UNROLL_FOR(half, 2) {
            struct heads h;
            ahead[half] = prefetch(places_behind(rows[half].data, PANEL * p[half].stride),
                                   ahead[half], (unit + 1) * s.unit_bytes);
            if (s.scales_apart && unit >> rows[half].group_shift >= transposed[half])
                transposed[half] = transpose_scales(&rows[half], s.has_min, transposed[half]);
            load_heads(t, p[half], &h);
            UNROLL_FOR(i, s.unit_blocks) {
                unpack_block(t, kind, p[half], &h, &rows[half], unit, i, half,
                             panel + (size_t)i * panel_block(kind));
            }
            p[half] = places_behind(p[half], s.unit_bytes);
        }
        panel += s.unit_blocks * panel_block(kind);
    }
}

/* dot[row][half] of run u of a block: w its codes, x[r] the block's codes of row r. */
ALWAYS_INLINE void panel_dots_8(struct kind kind, int offset, const __m256i *w,
                                const int8_t *const x[], int rows, int u, __m256i dot[][2]) {
    int groups = GROUPS / kind.runs;
    UNROLL_FOR(part, groups / kind.pairs) {
        __m256i sum[TILE_ROWS][2];
        UNROLL_FOR(r, rows) {
            sum[r][0] = _mm256_setzero_si256();
            if (kind.has_offset) {
                __m256i start[2];
                starts_8(offset, kind.runs, x[r], start);
                sum[r][0] = start[u];
            }
            sum[r][1] = sum[r][0];
        }
        UNROLL_FOR(i, kind.pairs) {
            int g = u * groups + part * kind.pairs + i;
            __m256i w0 = w[2 * g], w1 = w[2 * g + 1];
            UNROLL_FOR(r, rows) {
                __m256i c = broadcast_dword(x[r] + 4 * g);
                sum[r][0] = _mm256_add_epi16(sum[r][0], _mm256_maddubs_epi16(w0, c));
                sum[r][1] = _mm256_add_epi16(sum[r][1], _mm256_maddubs_epi16(w1, c));
                keep_order(&sum[r][0]);
                keep_order(&sum[r][1]);
            }
        }
        UNROLL_FOR(r, rows) {
            UNROLL_FOR(h, 2) {
                sum[r][h] = widen_pairs(sum[r][h]);
                dot[r][h] = part == 0 ? sum[r][h] : _mm256_add_epi32(dot[r][h], sum[r][h]);
            }
        }
    }
}

/* The same for signed codes: their magnitudes are the unsigned operand, the activations take over
 * the sign. */
ALWAYS_INLINE void panel_dots_8s(struct kind kind, const __m256i *w, const int8_t *const x[],
                                 int rows, int u, __m256i dot[][2]) {
    int groups = GROUPS / kind.runs;
    UNROLL_FOR(r, rows) {
        dot[r][0] = dot[r][1] = _mm256_setzero_si256();
    }
    UNROLL_FOR(i, groups) {
        UNROLL_FOR(h, 2) {
            int g = u * groups + i;
            __m256i v = w[2 * g + h], magnitude = _mm256_abs_epi8(v);
            UNROLL_FOR(r, rows) {
                __m256i c = _mm256_sign_epi8(broadcast_dword(x[r] + 4 * g), v);
                dot[r][h] =
                    _mm256_add_epi32(dot[r][h], widen_pairs(_mm256_maddubs_epi16(magnitude, c)));
                keep_order(&dot[r][h]);
            }
        }
    }
}

ALWAYS_INLINE void panel_dots_16(struct kind kind, const __m256i *w, const int16_t *const x[],
                                 int rows, int u, __m256i dot[][2]) {
    int groups = GROUPS / kind.runs;
    UNROLL_FOR(r, rows) {
        dot[r][0] = dot[r][1] = _mm256_setzero_si256();
    }
    UNROLL_FOR(odd, 2) {
        UNROLL_FOR(i, groups) {
            int g = odd * GROUPS + u * groups + i;
            __m256i w0 = w[2 * g], w1 = w[2 * g + 1];
            UNROLL_FOR(r, rows) {
                __m256i c = broadcast_dword(x[r] + 2 * g);
                dot[r][0] = _mm256_add_epi32(dot[r][0], _mm256_madd_epi16(w0, c));
                dot[r][1] = _mm256_add_epi32(dot[r][1], _mm256_madd_epi16(w1, c));
                keep_order(&dot[r][0]);
                keep_order(&dot[r][1]);
            }
        }
    }
}

/* 16 outputs of `rows` rows of activations, from row r0 on. out [rows][2]. */
ALWAYS_INLINE void tile(struct kind kind, int offset, const char *panel, const struct act_rows *a,
                        uint32_t r0, int rows, __m256 (*out)[2]) {
    size_t blocks = a->k / BLOCK;
    const float *sums = kind.runs == 1 ? a->sum : a->sum16;
    __m256 acc[TILE_ROWS][2];
    UNROLL_FOR(r, rows) {
        acc[r][0] = acc[r][1] = _mm256_setzero_ps();
    }
    for (size_t b = 0; b < blocks; b++, panel += panel_block(kind)) {
        const float *heads = (const float *)panel;
        const __m256i *w = (const __m256i *)(panel + panel_head(kind));
        const int8_t *x8[TILE_ROWS];
        const int16_t *x16[TILE_ROWS];
        UNROLL_FOR(r, rows) {
            size_t at = ((r0 + (size_t)r) * blocks + b) * BLOCK;
            x8[r] = (const int8_t *)a->codes + at;
            x16[r] = (const int16_t *)a->codes + at;
        }
        UNROLL_FOR(u, kind.runs) {
            __m256i dot[TILE_ROWS][2];
            if (kind.bits == 16)
                panel_dots_16(kind, w, x16, rows, u, dot);
            else if (kind.is_signed)
                panel_dots_8s(kind, w, x8, rows, u, dot);
            else
                panel_dots_8(kind, offset, w, x8, rows, u, dot);
            UNROLL_FOR(h, 2) {
                __m256 d = _mm256_load_ps(heads + u * PANEL + SIDE * h), m = d;
                if (kind.has_min)
                    m = _mm256_load_ps(heads + (kind.runs + u) * PANEL + SIDE * h);
                UNROLL_FOR(r, rows) {
                    size_t at = (r0 + (size_t)r) * blocks + b;
                    acc[r][h] = add_run(kind.has_min, acc[r][h], dot[r][h], d, m, a->scale + at,
                                        sums + (size_t)kind.runs * at + (size_t)u);
                }
            }
        }
    }
    UNROLL_FOR(r, rows) {
        out[r][0] = acc[r][0];
        out[r][1] = acc[r][1];
    }
}

/* All rows of activations times the panel, n of whose 16 weight rows are outputs. */
typedef void panel_fn(int offset, const char *panel, uint32_t n, const struct act_rows *a, float *y,
                      size_t y_stride);

ALWAYS_INLINE void product_panel(struct kind kind, int offset, const char *panel, uint32_t n,
                                 const struct act_rows *a, float *y, size_t y_stride) {
    for (uint32_t r = 0; r < a->rows; r += TILE_ROWS) {
        __m256 out[TILE_ROWS][2];
        uint32_t rows = a->rows - r < TILE_ROWS ? a->rows - r : TILE_ROWS;
        if (rows == 3)
            tile(kind, offset, panel, a, r, 3, out);
        else if (rows == 2)
            tile(kind, offset, panel, a, r, 2, out);
        else
            tile(kind, offset, panel, a, r, 1, out);
        for (uint32_t i = 0; i < rows; i++)
            memcpy(y + (r + i) * y_stride, out[i], n * sizeof *y);
    }
}

/* One copy per kind, which the types share: { bits, runs, pairs, is_signed, has_offset, has_min }.
 */
#define KINDS(X)                                                                                   \
    X(bytes_signed, 8, 1, 1, true, false, false)                                                   \
    X(bytes_signed_min, 8, 1, 1, true, false, true)                                                \
    X(bytes_offset, 8, 1, 8, false, true, false)                                                   \
    X(bytes_offset_halves, 8, 2, 4, false, true, false)                                            \
    X(bytes_min, 8, 1, 8, false, false, true)                                                      \
    X(bytes_min_4, 8, 1, 4, false, false, true)                                                    \
    X(bytes_min_2, 8, 1, 2, false, false, true)                                                    \
    X(bytes_min_halves, 8, 2, 4, false, false, true)                                               \
    X(words, 16, 1, 0, true, false, false)                                                         \
    X(words_halves, 16, 2, 0, true, false, false)                                                  \
    X(words_min, 16, 1, 0, true, false, true)                                                      \
    X(words_min_halves, 16, 2, 0, true, false, true)

#define DEFINE_PANEL(name, ...)                                                                    \
    static __attribute__((noinline)) void panel_##name(int offset, const char *panel, uint32_t n,  \
                                                       const struct act_rows *a, float *y,         \
                                                       size_t y_stride) {                          \
        product_panel((struct kind){__VA_ARGS__}, offset, panel, n, a, y, y_stride);               \
    }
KINDS(DEFINE_PANEL)

ALWAYS_INLINE bool same_kind(struct kind a, struct kind b) {
    return a.bits == b.bits && a.runs == b.runs && a.pairs == b.pairs &&
           a.is_signed == b.is_signed && a.has_offset == b.has_offset && a.has_min == b.has_min;
}

ALWAYS_INLINE panel_fn *panel_fn_of(struct kind kind) {
#define RETURN_IF(name, ...)                                                                       \
    if (same_kind(kind, (struct kind){__VA_ARGS__}))                                               \
        return panel_##name;
    KINDS(RETURN_IF)
#undef RETURN_IF
    return NULL;
}

/* ---- the products ---------------------------------------------------------------------------- */

static void *take(char **scratch, size_t bytes) {
    char *p = *scratch;
    *scratch += (bytes + 63) / 64 * 64;
    return p;
}

/* Rows j .. j + 7 of an array of rows of `bytes` bytes. After `last` that row is repeated, and all
 * eight are copied. */
static struct places rows_from(const void *rows, size_t bytes, uint32_t j, uint32_t last,
                               char **scratch) {
    /* the second half of a panel may be entirely after the last row */
    DEBUG_ASSERT(j <= last + SIDE);
    const uint8_t *row0 = (const uint8_t *)rows + j * bytes;
    if (last - j < SIDE - 1 || j > last) {
        uint8_t *copies = take(scratch, SIDE * bytes);
        for (uint32_t o = 0; o < SIDE; o++)
            memcpy(copies + o * bytes,
                   (const uint8_t *)rows + (j + o < last ? j + o : last) * bytes, bytes);
        row0 = copies;
    }
    return (struct places){row0, row0 + 4 * bytes, bytes};
}

static enum scale_kind scale_kind_of(const struct weight *w) {
    return w->type == WEIGHT_MXFP4_MLX ? SCALE_E8M0
           : w->scalar == SCALAR_F32   ? SCALE_F32
           : w->scalar == SCALAR_BF16  ? SCALE_BF16
                                       : SCALE_F16;
}

/* Outputs j .. j + 7; after n1 the last one is repeated and its results are not stored. */
ALWAYS_INLINE struct eight_rows eight_rows(enum weight_type t, const struct weight *w, uint32_t j,
                                           uint32_t n1, char **scratch) {
    const struct shape s = shape_of(t);
    size_t row_bytes = (size_t)w->k / (BLOCK * s.unit_blocks) * s.unit_bytes;
    struct eight_rows rows = {.data = rows_from(w->data, row_bytes, j, n1 - 1, scratch)};
    if (s.scales_apart) {
        uint32_t group = t == WEIGHT_MXFP4_MLX ? BLOCK : w->group;
        size_t groups = w->k / group, floats = (groups + 15) / 16 * 16 * SIDE;
        rows.kind = scale_kind_of(w);
        rows.group_shift = __builtin_ctz(group / BLOCK);
        rows.bytes = groups * scale_bytes(rows.kind);
        rows.scales = rows_from(w->scales, rows.bytes, j, n1 - 1, scratch);
        rows.d = take(scratch, floats * sizeof *rows.d);
        if (s.has_min) {
            rows.biases = rows_from(w->biases, rows.bytes, j, n1 - 1, scratch);
            rows.m = take(scratch, floats * sizeof *rows.m);
        }
    }
    return rows;
}

ALWAYS_INLINE void product_row(enum weight_type t, int bits, const struct weight *w, uint32_t n0,
                               uint32_t n1, const struct act_rows *a, float *y, void *scratch) {
    for (uint32_t j = n0; j < n1; j += SIDE) {
        char *free = scratch;
        struct eight_rows rows = eight_rows(t, w, j, n1, &free);
        __m256 out = one_row(t, bits, &rows, a);
        memcpy(y + (j - n0), &out, (n1 - j < SIDE ? n1 - j : SIDE) * sizeof *y);
    }
}

ALWAYS_INLINE void product_panels(enum weight_type t, int bits, const struct weight *w, uint32_t n0,
                                  uint32_t n1, const struct act_rows *a, float *y, size_t y_stride,
                                  void *scratch) {
    const struct shape s = shape_of(t);
    const struct kind kind = {bits,
                              s.runs,
                              bits == 8 ? s.pairs : 0,
                              bits == 16 || s.is_signed,
                              bits == 8 && s.offset > 0,
                              s.has_min};
    for (uint32_t j = n0; j < n1; j += PANEL) {
        char *free = (char *)scratch + w->k / BLOCK * panel_block(kind);
        struct eight_rows rows[2];
        rows[0] = eight_rows(t, w, j, n1, &free);
        rows[1] = eight_rows(t, w, j + SIDE, n1, &free);
        unpack_panel(t, kind, rows, w->k, scratch);
        panel_fn_of(kind)(s.offset, scratch, n1 - j < PANEL ? n1 - j : PANEL, a, y + (j - n0),
                          y_stride);
    }
}

ALWAYS_INLINE void product(enum weight_type t, int bits, const struct weight *w, uint32_t n0,
                           uint32_t n1, const struct act_rows *a, float *y, size_t y_stride,
                           void *scratch) {
    ASSERT(n0 <= n1 && n1 <= w->n && a->k == w->k && a->rows > 0);
    if (a->rows == 1)
        product_row(t, bits, w, n0, n1, a, y, scratch);
    else
        product_panels(t, bits, w, n0, n1, a, y, y_stride, scratch);
}

/* One copy of everything above per type and width. */
#define TYPES(USE)                                                                                 \
    USE(q4_0, WEIGHT_Q4_0)                                                                         \
    USE(q4_1, WEIGHT_Q4_1)                                                                         \
    USE(q5_0, WEIGHT_Q5_0)                                                                         \
    USE(q5_1, WEIGHT_Q5_1)                                                                         \
    USE(q8_0, WEIGHT_Q8_0)                                                                         \
    USE(iq4_nl, WEIGHT_IQ4_NL)                                                                     \
    USE(mxfp4, WEIGHT_MXFP4)                                                                       \
    USE(q2_k, WEIGHT_Q2_K)                                                                         \
    USE(q3_k, WEIGHT_Q3_K)                                                                         \
    USE(q4_k, WEIGHT_Q4_K)                                                                         \
    USE(q5_k, WEIGHT_Q5_K)                                                                         \
    USE(q6_k, WEIGHT_Q6_K)                                                                         \
    USE(q8_k, WEIGHT_Q8_K)                                                                         \
    USE(iq4_xs, WEIGHT_IQ4_XS)                                                                     \
    USE(affine2, WEIGHT_AFFINE2)                                                                   \
    USE(affine3, WEIGHT_AFFINE3)                                                                   \
    USE(affine4, WEIGHT_AFFINE4)                                                                   \
    USE(affine5, WEIGHT_AFFINE5)                                                                   \
    USE(affine6, WEIGHT_AFFINE6)                                                                   \
    USE(affine8, WEIGHT_AFFINE8)                                                                   \
    USE(mxfp4_mlx, WEIGHT_MXFP4_MLX)

#define DEFINE_PRODUCT(name, type)                                                                 \
    static void product_##name(const struct weight *w, uint32_t n0, uint32_t n1,                   \
                               const struct act_rows *a, float *y, size_t y_stride,                \
                               void *scratch) {                                                    \
        if (a->bits == 8)                                                                          \
            product(type, 8, w, n0, n1, a, y, y_stride, scratch);                                  \
        else                                                                                       \
            product(type, 16, w, n0, n1, a, y, y_stride, scratch);                                 \
    }
TYPES(DEFINE_PRODUCT)

void TIER(set_products)(struct kernels *k) {
#define SET_PRODUCT(name, type) k->product[weight_index(type)] = product_##name;
    TYPES(SET_PRODUCT)
}
