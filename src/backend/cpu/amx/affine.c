/* SPDX-License-Identifier: Apache-2.0 */
/* affine.c: scores and values over tiles of codes, many rows, AMX. avx512/affine.c has the same
 * arithmetic for few rows and draws what K and V have in common: lanes and a reduction.
 *
 * A page's tile of 8-bit codes is a matrix of columns as it lies there; one of fewer bits is made
 * one, once for all rows. A unit is 16 rows and one group of dims:
 *
 *     pack       queries, or weights p_t * scale_t, as two planes of bytes    planes [2][16][128]
 *     multiply   planes x columns                                             sums [v][2][16][16]
 *     finish     256 high + low -> float, times scales, plus biases
 *
 * While vectors finish a unit, tiles multiply the next one, whose planes were packed before that.
 * The last unit ends with the last row: rows that it shares with the one before are not finished
 * twice.
 */
#include <math.h>

#include "backend/cpu/amx/tile.h"
#include "backend/cpu/avx512/tile_codes.h"

enum {
    ROWS = 16,
    GROUP_MAX = 128,
    VECTORS_MAX = GROUP_MAX / LANES, /* of V lanes; of K's there are 4 */
    SCORE_VECTORS = TILE_TOKENS / LANES,
};

struct planes {
    _Alignas(64) int8_t low[ROWS][GROUP_MAX], high[ROWS][GROUP_MAX];
    _Alignas(64) float scale[ROWS], bias_sum[ROWS]; /* of weights */
};

struct sums {
    _Alignas(64) int32_t low[VECTORS_MAX][ROWS][LANES], high[VECTORS_MAX][ROWS][LANES];
};

/* What both kernels walk over. */
struct walk {
    const struct tile_layout *l;
    const uint8_t *tile;
    const uint8_t *columns;  /* [reduction / 4][lanes][4] */
    size_t line;             /* bytes of 4 elements of the reduction */
    uint32_t rows, cuts;     /* of rows */
    struct planes planes[3]; /* of the units in work */
    struct sums sums[2];
    _Alignas(64) uint8_t bytes[TILE_TOKENS * HEAD_DIM_MAX];
};

/* elements: of the reduction that a product covers. */
static void walk_init(struct walk *w, const struct tile_layout *l, const void *tile, uint32_t rows,
                      uint32_t elements) {
    const uint32_t k = elements < 64 ? elements : 64;
    struct tile_shapes s = {.palette = 1};
    w->l = l;
    w->tile = tile;
    w->columns = tile;
    w->line = 4 * (size_t)l->lanes;
    w->rows = rows;
    w->cuts = (rows + ROWS - 1) / ROWS;
    if (l->format.bits != 8) {
        unpack_codes(l, tile, 0, 0, l->reduction / 4, l->lanes / LANES, (__m512i *)w->bytes);
        w->columns = w->bytes;
    }
    for (int t = 0; t < 4; t++)
        s.rows[t] = ROWS, s.bytes[t] = LANES * sizeof(int32_t);
    for (int t = 4; t < 6; t++)
        s.rows[t] = ROWS, s.bytes[t] = (uint16_t)k;
    for (int t = 6; t < 8; t++)
        s.rows[t] = (uint8_t)(k / 4), s.bytes[t] = LANES * sizeof(int32_t);
    TILES_SET(&s);
}

/* First row of cut c, and how many of its rows belong to the one before. */
ALWAYS_INLINE uint32_t first_row(const struct walk *w, uint32_t c) {
    const uint32_t row = c * ROWS;
    return row + ROWS <= w->rows ? row : w->rows - ROWS;
}
ALWAYS_INLINE uint32_t done_rows(const struct walk *w, uint32_t c) {
    return c * ROWS - first_row(w, c);
}

/* ---- multiply -------------------------------------------------------------------------------- */

/* Columns from (element, lane) on for so many vectors of lanes, an even number; elements: of the
 * reduction, at most 64 or twice that. Tiles: 0 to 3 sums, 4 low and 5 high rows, 6 and 7 columns.
 */
static void multiply(const struct walk *w, uint32_t element, uint32_t elements, uint32_t lane,
                     uint32_t vectors, const struct planes *p, struct sums *out) {
    const uint8_t *columns = w->columns + element / 4 * w->line + 4 * (size_t)lane;
    const uint32_t step = elements < 64 ? elements : 64;
    for (uint32_t v = 0; v < vectors; v += 2, columns += 2 * 4 * LANES) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        for (uint32_t e = 0; e < elements; e += step) {
            if (v == 0 || elements > 64) {
                TILE_LOAD(4, p->low[0] + e, GROUP_MAX);
                TILE_LOAD(5, p->high[0] + e, GROUP_MAX);
            }
            TILE_LOAD(6, columns + e / 4 * w->line, w->line);
            TILE_LOAD(7, columns + e / 4 * w->line + 4 * LANES, w->line);
            TILE_DOT_S8U8(0, 4, 6);
            TILE_DOT_S8U8(1, 5, 6);
            TILE_DOT_S8U8(2, 4, 7);
            TILE_DOT_S8U8(3, 5, 7);
        }
        TILE_STORE(0, out->low[v], LANES * sizeof(int32_t));
        TILE_STORE(1, out->high[v], LANES * sizeof(int32_t));
        TILE_STORE(2, out->low[v + 1], LANES * sizeof(int32_t));
        TILE_STORE(3, out->high[v + 1], LANES * sizeof(int32_t));
    }
}

ALWAYS_INLINE __m512 dot_of(const struct sums *s, uint32_t v, uint32_t row) {
    return _mm512_cvtepi32_ps(
        join_halves(_mm512_load_si512(s->low[v][row]), _mm512_load_si512(s->high[v][row])));
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* Codes of 16 rows: halves_of_runs of vector.h has four low bytes, then four high ones. */
static void pack_queries(const struct query_rows *q, uint32_t row, uint32_t dim, uint32_t n,
                         struct planes *out) {
    for (uint32_t r = 0; r < ROWS; r++) {
        const int16_t *codes = q->codes + (row + (size_t)r) * q->dim + dim;
        if (n == 32) {
            const __m512i order =
                _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
            __m512i c = _mm512_permutexvar_epi32(order, _mm512_loadu_si512(codes));
            _mm256_store_si256((__m256i *)out->low[r], _mm512_castsi512_si256(c));
            _mm256_store_si256((__m256i *)out->high[r], _mm512_extracti64x4_epi64(c, 1));
            continue;
        }
        for (uint32_t d = 0; d < n; d += 64) {
            vf low, high;
            load_pairs((const float *)(const void *)(codes + d), &low, &high);
            _mm512_store_ps(out->low[r] + d, low);
            _mm512_store_ps(out->high[r] + d, high);
        }
    }
}

ALWAYS_INLINE float scaled_sum_of(const struct query_rows *q, size_t row, uint32_t group,
                                  uint32_t runs) {
    const int32_t *sum32 = q->sum32 + row * (q->dim / 32) + group * runs;
    int32_t sum = 0;
    for (uint32_t j = 0; j < runs; j++)
        sum += sum32[j];
    return q->scale[row] * (float)sum;
}

static void finish_scores(const struct walk *w, uint32_t group, uint32_t cut,
                          const struct query_rows *q, const struct sums *sums, float *scores,
                          size_t stride) {
    const struct tile_layout *l = w->l;
    const enum scalar_type t = (enum scalar_type)l->format.scalar;
    __m512 s[SCORE_VECTORS], b[SCORE_VECTORS];
    UNROLL_FOR(v, SCORE_VECTORS) {
        const size_t at = group * TILE_TOKENS + LANES * (size_t)v;
        s[v] = load_as(t, w->tile + l->scale_offset, at);
        b[v] = load_as(t, w->tile + l->bias_offset, at);
    }
    for (uint32_t r = done_rows(w, cut); r < ROWS; r++) {
        const size_t row = first_row(w, cut) + (size_t)r;
        const __m512 scale = _mm512_set1_ps(q->scale[row]);
        const __m512 sum = _mm512_set1_ps(scaled_sum_of(q, row, group, l->group / 32));
        float *out = scores + row * stride;
        UNROLL_FOR(v, SCORE_VECTORS) {
            __m512 before = group == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(out + LANES * v);
            __m512 dot = _mm512_mul_ps(scale, dot_of(sums, (uint32_t)v, r));
            _mm512_storeu_ps(out + LANES * v,
                             _mm512_fmadd_ps(b[v], sum, _mm512_fmadd_ps(s[v], dot, before)));
        }
    }
}

static void score_affine(const struct tile_layout *l, const void *tile, const struct query_rows *q,
                         float *scores, size_t stride) {
    const uint32_t n = l->group;
    struct walk w;
    ASSERT(l->kind == TILE_K && l->groups * n == l->head_dim);
    if (q->rows < ROWS) {
        TIER(score_affine)(l, tile, q, scores, stride);
        return;
    }
    walk_init(&w, l, tile, q->rows, n);
    const uint32_t units = l->groups * w.cuts;
    for (uint32_t u = 0; u < units + 2; u++) {
        if (u > 0 && u <= units)
            multiply(&w, (u - 1) / w.cuts * n, n, 0, SCORE_VECTORS, &w.planes[(u - 1) % 2],
                     &w.sums[(u - 1) % 2]);
        if (u < units)
            pack_queries(q, first_row(&w, u % w.cuts), u / w.cuts * n, n, &w.planes[u % 2]);
        if (u > 1)
            finish_scores(&w, (u - 2) / w.cuts, (u - 2) % w.cuts, q, &w.sums[u % 2], scores,
                          stride);
    }
    TILES_END();
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Lane r of the result is `op` over the lanes of v[r], in the order of sum_lanes (vector.h): lane i
 * and i + 8, then + 4, + 2, + 1. */
#define REDUCE_ROWS(op, v, out)                                                                    \
    do {                                                                                           \
        __m512 quads[4], pairs[2];                                                                 \
        UNROLL_FOR(i, 4) { /* rows i, i + 4, i + 8, i + 12: four lanes left of each */             \
            __m512 front = op(_mm512_shuffle_f32x4(v[i], v[i + 4], 0x44),                          \
                              _mm512_shuffle_f32x4(v[i], v[i + 4], 0xee));                         \
            __m512 back = op(_mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0x44),                      \
                             _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0xee));                     \
            quads[i] = op(_mm512_shuffle_f32x4(front, back, 0x88),                                 \
                          _mm512_shuffle_f32x4(front, back, 0xdd));                                \
        }                                                                                          \
        UNROLL_FOR(i, 2) {                                                                         \
            pairs[i] = op(_mm512_shuffle_ps(quads[2 * i], quads[2 * i + 1], 0x44),                 \
                          _mm512_shuffle_ps(quads[2 * i], quads[2 * i + 1], 0xee));                \
        }                                                                                          \
        out = op(_mm512_shuffle_ps(pairs[0], pairs[1], 0x88),                                      \
                 _mm512_shuffle_ps(pairs[0], pairs[1], 0xdd));                                     \
    } while (0)

ALWAYS_INLINE __m512 larger_bits(__m512 a, __m512 b) {
    return (__m512)max_int((vi)a, (vi)b);
}

/* rounding_of of 16 magnitudes. */
ALWAYS_INLINE void roundings_of(__m512 m, float *scale, float *per_unit) {
    const __m512 code_max = _mm512_set1_ps(ACT16_MAX);
    const __mmask16 bad = _mm512_cmp_ps_mask(m, _mm512_set1_ps(INFINITY), _CMP_NLT_UQ);
    const __mmask16 some = _mm512_cmp_ps_mask(m, _mm512_set1_ps(ACT_TINY), _CMP_NLT_UQ);
    const __mmask16 good = (__mmask16)(some & ~bad);
    __m512 unit = _mm512_maskz_div_ps(good, m, code_max);
    _mm512_store_ps(scale, _mm512_mask_mov_ps(unit, bad, _mm512_set1_ps(NAN)));
    _mm512_store_ps(per_unit, _mm512_maskz_div_ps(good, code_max, m));
}

/* At once: two stores of a row would have to be written before a tile loads it. */
ALWAYS_INLINE void store_halves(int8_t *to, const __m256i half[2]) {
    _mm512_store_si512(to, _mm512_inserti64x4(_mm512_castsi256_si512(half[0]), half[1], 1));
}

/* Weights of 16 rows for one group of dims, as pack_weights of avx512/affine.c has them. A weight
 * below 2^-126 is slow to compute, and its code is 0: with scales of 16-bit floats all are computed
 * 2^64 times as large, and those are left out. */
static void pack_weights(const struct walk *w, uint32_t group, const float *p, size_t p_stride,
                         struct planes *out) {
    const struct tile_layout *l = w->l;
    const enum scalar_type t = (enum scalar_type)l->format.scalar;
    const float lift = t == SCALAR_F16 ? 0x1p64f : 1;
    const vi least = (vi)splat(t == SCALAR_F16 ? 0x1p-62f : 0);
    __m512 s[4], b[4], weight[ROWS][4], bias[ROWS], max[ROWS], all;
    _Alignas(64) float per_unit[ROWS];
    UNROLL_FOR(i, 4) {
        const size_t at = group * TILE_TOKENS + LANES * (size_t)i;
        s[i] = load_as(t, w->tile + l->scale_offset, at);
        b[i] = load_as(t, w->tile + l->bias_offset, at);
    }
    for (uint32_t r = 0; r < ROWS; r++) {
        __m512i bits = _mm512_setzero_si512();
        bias[r] = _mm512_setzero_ps();
        UNROLL_FOR(i, 4) {
            __m512 pv = _mm512_loadu_ps(p + r * p_stride + LANES * i);
            __mmask16 seen = _mm512_cmp_ps_mask(pv, _mm512_setzero_ps(), _CMP_NEQ_UQ);
            __m512 product = _mm512_maskz_mul_ps(seen, pv * splat(lift), s[i]);
            __m512i magnitude = (__m512i)magnitude_bits(product);
            __mmask16 some = _mm512_cmpge_epi32_mask(magnitude, (__m512i)least);
            weight[r][i] = _mm512_maskz_mov_ps(some, product);
            bias[r] = _mm512_mask3_fmadd_ps(pv, b[i], bias[r], seen);
            bits = _mm512_mask_max_epi32(bits, some, bits, magnitude);
        }
        max[r] = (__m512)bits;
    }
    REDUCE_ROWS(_mm512_add_ps, bias, all);
    _mm512_store_ps(out->bias_sum, all);
    REDUCE_ROWS(larger_bits, max, all);
    roundings_of(all * splat(1 / lift), out->scale, per_unit);
    for (uint32_t r = 0; r < ROWS; r++) {
        const __m512 factor = _mm512_set1_ps(per_unit[r] / lift);
        __m256i low[2], high[2];
        UNROLL_FOR(i, 2) {
            __m512i c = round_s16(weight[r][2 * i], weight[r][2 * i + 1], factor);
            /* a low byte above 127 counts as 256 less, so its high byte is one more */
            __m512i rest = _mm512_srli_epi16(_mm512_add_epi16(c, _mm512_set1_epi16(128)), 8);
            low[i] = _mm512_cvtepi16_epi8(c);
            high[i] = _mm512_cvtepi16_epi8(rest);
        }
        store_halves(out->low[r], low);
        store_halves(out->high[r], high);
    }
}

ALWAYS_INLINE void finish_values(const struct walk *w, uint32_t cut, int vectors,
                                 const struct planes *p, const struct sums *sums, float *out,
                                 size_t stride) {
    for (uint32_t r = done_rows(w, cut); r < ROWS; r++) {
        const __m512 scale = _mm512_set1_ps(p->scale[r]), bias = _mm512_set1_ps(p->bias_sum[r]);
        float *y = out + (first_row(w, cut) + (size_t)r) * stride;
        UNROLL_FOR(v, vectors) {
            __m512 sum = _mm512_fmadd_ps(dot_of(sums, (uint32_t)v, r), scale, bias);
            _mm512_storeu_ps(y + LANES * v, _mm512_add_ps(_mm512_loadu_ps(y + LANES * v), sum));
        }
    }
}

static void finish_group(const struct walk *w, uint32_t cut, const struct planes *p,
                         const struct sums *sums, float *out, size_t stride) {
    switch (w->l->group / LANES) {
    case 2:
        finish_values(w, cut, 2, p, sums, out, stride);
        break;
    case 4:
        finish_values(w, cut, 4, p, sums, out, stride);
        break;
    default:
        finish_values(w, cut, VECTORS_MAX, p, sums, out, stride);
        break;
    }
}

static void value_affine(const struct tile_layout *l, const void *tile, const float *p,
                         size_t p_stride, uint32_t rows, float *out, size_t out_stride) {
    const uint32_t n = l->group;
    struct walk w;
    ASSERT(l->kind == TILE_V && l->groups * n == l->head_dim);
    if (rows < ROWS || (n != 32 && n != 64 && n != GROUP_MAX)) {
        TIER(value_affine)(l, tile, p, p_stride, rows, out, out_stride);
        return;
    }
    walk_init(&w, l, tile, rows, TILE_TOKENS);
    const uint32_t units = l->groups * w.cuts;
    for (uint32_t u = 0; u < units + 2; u++) {
        if (u > 0 && u <= units)
            multiply(&w, 0, TILE_TOKENS, (u - 1) % l->groups * n, n / LANES, &w.planes[(u - 1) % 3],
                     &w.sums[(u - 1) % 2]);
        if (u < units)
            pack_weights(&w, u % l->groups, p + first_row(&w, u / l->groups) * p_stride, p_stride,
                         &w.planes[u % 3]);
        if (u > 1)
            finish_group(&w, (u - 2) / l->groups, &w.planes[(u - 2) % 3], &w.sums[u % 2],
                         out + (u - 2) % l->groups * n, out_stride);
    }
    TILES_END();
}

void amx_set_attention(struct kernels *k) {
    k->score_affine = score_affine;
    k->value_affine = value_affine;
}
