/* SPDX-License-Identifier: Apache-2.0 */
/* affine.c: scores and values over tiles of codes, AVX-512. The codes are
 * multiplied in place; nothing is dequantized.
 *
 * K and V tiles are the same matrix of lanes and a reduction axis (quant.h), so one integer kernel
 * serves both:
 *
 *     K   lanes = tokens, reduction = dims of a group,   15-bit codes = the query
 *     V   lanes = dims of a group, reduction = tokens,   15-bit codes = the weights p_t * scale_t
 *
 * The work is cut into blocks of 64 or 32 lanes x one reduction range ("rows": four elements of
 * each lane, so that a vector is one row of 16 lanes). A block of K is 64 tokens, whole lines of
 * memory; of V 64 dims, or 32 if the group is 32.
 *
 *     unpack   planes -> bytes, a code each. 8- and 4-bit codes are multiplied as they are loaded;
 *              the others go through 8 KiB of stack, once per block for all query rows.
 *     dot      bytes times the two halves of the 15-bit codes (vector.h), exact in s32: two sums of
 *              each lane, up to three query rows x 64 lanes in 24 registers
 *     finish   s32 -> float, times scales, plus biases
 *
 * Invariants: the float arithmetic of a row is the same instructions in the same order whatever
 * other rows the call has. Groups of K are 32, 64 or 128 dims, or of KV_TILE all of a head, of
 * which a block has up to 128: a multiple of 8 rows, so that byte rows of every plane begin with
 * it.
 */
#include <math.h>

#include "backend/cpu/avx512/tile_codes.h"

enum {
    VECTORS_MAX = 4, /* of a block: 64 lanes */
    BLOCK_ROWS_MAX = 32,
    ROWS_AT_ONCE = 3,
    PASS_ROWS = 64, /* query rows that share an unpacked block */
};
_Static_assert((int)PASS_ROWS <= (int)CHANNEL_ROWS, "a pass is packed at once");
_Static_assert(4 * BLOCK_ROWS_MAX == 128, "a block has the rows of the widest group");
_Static_assert(TILE_TOKENS <= 4 * BLOCK_ROWS_MAX, "and those of a V tile");

/* A block's codes as bytes: [row][vector]. */
struct bytes {
    __m512i v[BLOCK_ROWS_MAX * VECTORS_MAX];
};

/* ---- dot ------------------------------------------------------------------------------------- */

/* dots[i][lane] = block . codes of row i, for as many rows and vectors as the function's name says.
 * at: the block's bytes, or its nibbles in a 4-bit plane; line: bytes from one row of these to the
 * next; rows: of the block; codes of one query row are `stride` from those of the next. */
typedef void dot_fn(const uint8_t *at, size_t line, uint32_t rows, const int16_t *codes,
                    size_t stride, int32_t dots[][16 * VECTORS_MAX]);

enum source { SOURCE_8, SOURCE_4, SOURCES };

ALWAYS_INLINE __m512i broadcast_half(const int16_t *codes) {
    int32_t half;
    memcpy(&half, codes, sizeof half);
    return _mm512_set1_epi32(half);
}

ALWAYS_INLINE void dot_rows(enum source source, int vectors, int n, const uint8_t *at, size_t line,
                            uint32_t rows, const int16_t *codes, size_t stride,
                            int32_t dots[][16 * VECTORS_MAX]) {
    struct halves sum[ROWS_AT_ONCE][VECTORS_MAX];
    const int step = source == SOURCE_4 ? 2 : 1; /* block rows in one row of bytes */
    UNROLL_FOR(i, n) {
        UNROLL_FOR(v, vectors) {
            sum[i][v].h[0] = sum[i][v].h[1] = _mm512_setzero_si512();
        }
    }
    for (uint32_t r = 0; r < rows; r += (uint32_t)step) {
        UNROLL_FOR(j, step) {
            __m512i q[ROWS_AT_ONCE][2];
            UNROLL_FOR(i, n) {
                q[i][0] = keep(broadcast_half(codes + (size_t)i * stride));
                q[i][1] = keep(broadcast_half(codes + (size_t)i * stride + 2));
            }
            UNROLL_FOR(v, vectors) {
                __m512i bytes = _mm512_loadu_si512(at + 64 * v);
                if (source == SOURCE_4)
                    bytes = field(bytes, 4 * j, 4, 0);
                struct halves b = split_bytes(keep(bytes));
                UNROLL_FOR(h, 2) {
                    UNROLL_FOR(i, n) {
                        sum[i][v].h[h] = keep(dot_half(sum[i][v].h[h], b.h[h], q[i][h]));
                    }
                }
            }
            codes += 4;
        }
        at += line;
    }
    UNROLL_FOR(i, n) {
        UNROLL_FOR(v, vectors) {
            _mm512_storeu_si512(dots[i] + 16 * v, join_halves(sum[i][v].h[0], sum[i][v].h[1]));
        }
    }
}

#define DEFINE_DOT(name, source, vectors, n)                                                       \
    static __attribute__((noinline)) void name(const uint8_t *at, size_t line, uint32_t rows,      \
                                               const int16_t *codes, size_t stride,                \
                                               int32_t dots[][16 * VECTORS_MAX]) {                 \
        dot_rows(source, vectors, n, at, line, rows, codes, stride, dots);                         \
    }
#define DEFINE_DOTS(name, source, vectors)                                                         \
    DEFINE_DOT(name##_1, source, vectors, 1)                                                       \
    DEFINE_DOT(name##_2, source, vectors, 2)                                                       \
    DEFINE_DOT(name##_3, source, vectors, 3)
DEFINE_DOTS(dot_8_narrow, SOURCE_8, 2)
DEFINE_DOTS(dot_4_narrow, SOURCE_4, 2)
DEFINE_DOTS(dot_8_wide, SOURCE_8, 4)
DEFINE_DOTS(dot_4_wide, SOURCE_4, 4)

static dot_fn *const DOT[SOURCES][2][ROWS_AT_ONCE + 1] = {
    [SOURCE_8] = {{NULL, dot_8_narrow_1, dot_8_narrow_2, dot_8_narrow_3},
                  {NULL, dot_8_wide_1, dot_8_wide_2, dot_8_wide_3}},
    [SOURCE_4] = {{NULL, dot_4_narrow_1, dot_4_narrow_2, dot_4_narrow_3},
                  {NULL, dot_4_wide_1, dot_4_wide_2, dot_4_wide_3}},
};

/* How many of `left` rows go next: three, but four are two and two: one row alone has the fewest
 * chains. */
ALWAYS_INLINE uint32_t next_rows(uint32_t left) {
    return left == 4 ? 2 : left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* How the blocks of one tile are read. */
struct reader {
    const struct tile_layout *l;
    const uint8_t *tile;
    uint32_t vectors; /* of a block */
    bool direct;      /* 8 and 4 bits: codes are read in place */
    dot_fn *const *dot;
    const uint8_t *at; /* of the block at hand */
    size_t line;
    struct bytes bytes;
};

static void reader_init(struct reader *r, const struct tile_layout *l, const uint8_t *tile) {
    uint32_t bits = l->format.bits;
    r->l = l;
    r->tile = tile;
    r->vectors = l->kind == TILE_V && l->group % 64 ? 2 : 4;
    r->direct = bits == 8 || bits == 4;
    r->dot = DOT[bits == 4 ? SOURCE_4 : SOURCE_8][r->vectors / 4];
    r->line = r->direct ? 4 * (size_t)l->lanes : 64 * (size_t)r->vectors;
}

/* Moves to the block at `lane` and rows [row, row + rows). */
static void reader_block(struct reader *r, uint32_t lane, uint32_t row, uint32_t rows) {
    DEBUG_ASSERT(rows <= BLOCK_ROWS_MAX && 4 * (row + rows) <= r->l->reduction &&
                 lane < r->l->lanes);
    if (r->direct) {
        r->at = r->tile + (size_t)row * r->l->format.bits / 8 * r->line + 4 * (size_t)lane;
    } else {
        unpack_codes(r->l, r->tile, lane, row, rows, r->vectors, r->bytes.v);
        r->at = (const uint8_t *)r->bytes.v;
    }
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* One query row of a finished block: 64 tokens; first: of group 0. */
ALWAYS_INLINE void score_finish(const int32_t *dots, float scale, float scaled_sum, bool first,
                                const __m512 s[4], const __m512 b[4], float *out) {
    UNROLL_FOR(v, 4) {
        __m512 before = first ? _mm512_setzero_ps() : _mm512_loadu_ps(out + 16 * v);
        __m512 dot = _mm512_cvtepi32_ps(_mm512_loadu_si512(dots + 16 * v));
        __m512 sum = _mm512_fmadd_ps(s[v], _mm512_mul_ps(_mm512_set1_ps(scale), dot), before);
        _mm512_storeu_ps(out + 16 * v, _mm512_fmadd_ps(b[v], _mm512_set1_ps(scaled_sum), sum));
    }
}

/* The sum of a row's codes over one group. */
ALWAYS_INLINE float scaled_sum_of(const struct query_rows *q, uint32_t row, uint32_t group,
                                  uint32_t runs) {
    const int32_t *sum32 = q->sum32 + (size_t)row * (q->dim / 32) + group * runs;
    int32_t sum = 0;
    for (uint32_t j = 0; j < runs; j++)
        sum += sum32[j];
    return q->scale[row] * (float)sum;
}

/* All rows of q over one group of dims. */
static void score_group(struct reader *r, uint32_t group, const struct query_rows *q, float *scores,
                        size_t stride) {
    const struct tile_layout *l = r->l;
    const enum scalar_type t = (enum scalar_type)l->format.scalar;
    uint32_t size = l->group;
    int32_t dots[ROWS_AT_ONCE][16 * VECTORS_MAX];
    __m512 s[4], b[4];
    UNROLL_FOR(v, 4) {
        size_t at = group * TILE_TOKENS + 16 * (size_t)v;
        s[v] = load_as(t, r->tile + l->scale_offset, at);
        b[v] = load_as(t, r->tile + l->bias_offset, at);
    }
    reader_block(r, 0, group * size / 4, size / 4);
    for (uint32_t i = 0, n; i < q->rows; i += n) {
        n = next_rows(q->rows - i);
        r->dot[n](r->at, r->line, size / 4, q->codes + (size_t)i * q->dim + group * size, q->dim,
                  dots);
        for (uint32_t j = i; j < i + n; j++)
            score_finish(dots[j - i], q->scale[j], scaled_sum_of(q, j, group, size / 32),
                         group == 0, s, b, scores + j * stride);
    }
}

void TIER(score_affine)(const struct tile_layout *l, const void *tile, const struct query_rows *q,
                        float *scores, size_t stride) {
    struct reader r;
    ASSERT(l->kind == TILE_K && l->groups * l->group == l->head_dim);
    reader_init(&r, l, tile);
    for (uint32_t g = 0; g < l->groups; g++)
        score_group(&r, g, q, scores, stride);
}

/* One query row of a finished block of channels: 64 tokens. */
ALWAYS_INLINE void channels_finish(const int32_t *dots, float scale, float bias_sum, float *out) {
    UNROLL_FOR(v, 4) {
        __m512 dot = _mm512_cvtepi32_ps(_mm512_loadu_si512(dots + 16 * v));
        _mm512_storeu_ps(out + 16 * v,
                         _mm512_fmadd_ps(dot, _mm512_set1_ps(scale), _mm512_set1_ps(bias_sum)));
    }
}

/* n <= PASS_ROWS packed rows. Heads of more than 128 dims are several blocks, whose dots are added
 * as integers. */
static void score_tokens(struct reader *r, const struct channel_queries *q, uint32_t n,
                         float *scores, size_t stride) {
    const uint32_t dim = r->l->head_dim;
    int32_t dots[ROWS_AT_ONCE][16 * VECTORS_MAX], sums[PASS_ROWS][16 * VECTORS_MAX];
    for (uint32_t d = 0; d < dim; d += 4 * BLOCK_ROWS_MAX) {
        const bool last = dim - d <= 4 * BLOCK_ROWS_MAX;
        const uint32_t rows = min_u32(dim - d, 4 * BLOCK_ROWS_MAX) / 4;
        reader_block(r, 0, d / 4, rows);
        for (uint32_t i = 0, now; i < n; i += now) {
            now = next_rows(n - i);
            r->dot[now](r->at, r->line, rows, q->codes + (size_t)i * dim + d, dim, dots);
            for (uint32_t j = i; j < i + now; j++) {
                int32_t *sum = dots[j - i];
                for (int v = 0; d && v < 16 * VECTORS_MAX; v++)
                    sum[v] += sums[j][v];
                if (last)
                    channels_finish(sum, q->scale[j], q->bias_sum[j], scores + j * stride);
                else
                    memcpy(sums[j], sum, sizeof sums[j]);
            }
        }
    }
}

void TIER(score_channels)(const struct tile_layout *l, const void *tile, const struct query_rows *q,
                          float *scores, size_t stride) {
    struct reader r;
    struct channel_queries packed;
    ASSERT(l->kind == TILE_K && l->format.kind == KV_TILE);
    reader_init(&r, l, tile);
    for (uint32_t row = 0; row < q->rows; row += PASS_ROWS) {
        uint32_t n = q->rows - row < PASS_ROWS ? q->rows - row : PASS_ROWS;
        TIER(channel_pack)(l, tile, q->f32 + (size_t)row * q->dim, n, &packed);
        score_tokens(&r, &packed, n, scores + row * stride, stride);
    }
}

/* ---- values ---------------------------------------------------------------------------------- */

/* The weights of up to PASS_ROWS rows for one group of dims. */
struct weights {
    int16_t codes[PASS_ROWS][TILE_TOKENS];
    float scale[PASS_ROWS], bias_sum[PASS_ROWS];
};

/* Weights of one row and group: w_t = p_t * s_t as codes with one scale, and sum_t p_t * b_t. A
 * masked token adds nothing, even from a slot that holds NaN. */
ALWAYS_INLINE void pack_weights(const float *p, const __m512 s[4], const __m512 b[4],
                                struct weights *out, uint32_t row) {
    __m512 w[4], bias = _mm512_setzero_ps();
    vi max_bits = {0};
    UNROLL_FOR(i, 4) {
        __m512 pv = _mm512_loadu_ps(p + 16 * i);
        __mmask16 seen = _mm512_cmp_ps_mask(pv, _mm512_setzero_ps(), _CMP_NEQ_UQ);
        w[i] = _mm512_maskz_mul_ps(seen, pv, s[i]);
        bias = _mm512_mask3_fmadd_ps(pv, b[i], bias, seen);
        max_bits = max_int(max_bits, magnitude_bits(w[i]));
    }
    struct rounding r = rounding_of(max_magnitude(max_bits), ACT16_MAX);
    __m512 per_unit = _mm512_set1_ps(r.per_unit);
    out->scale[row] = r.scale;
    out->bias_sum[row] = sum_lanes(bias);
    UNROLL_FOR(i, 2) {
        __m512i c = round_s16(w[2 * i], w[2 * i + 1], per_unit);
        _mm512_storeu_si512(out->codes[row] + 32 * i, halves_of_runs(c));
    }
}

ALWAYS_INLINE void value_finish(const int32_t *dots, float scale, float bias_sum, uint32_t vectors,
                                float *out) {
    for (uint32_t v = 0; v < vectors; v++) {
        __m512 dot = _mm512_cvtepi32_ps(_mm512_loadu_si512(dots + 16 * v));
        __m512 sum = _mm512_fmadd_ps(dot, _mm512_set1_ps(scale), _mm512_set1_ps(bias_sum));
        _mm512_storeu_ps(out + 16 * v, _mm512_add_ps(_mm512_loadu_ps(out + 16 * v), sum));
    }
}

/* n <= PASS_ROWS rows over one group of dims. */
static void value_group(struct reader *r, uint32_t group, const float *p, size_t p_stride,
                        uint32_t rows, float *out, size_t out_stride) {
    const struct tile_layout *l = r->l;
    const enum scalar_type t = (enum scalar_type)l->format.scalar;
    struct weights w;
    int32_t dots[ROWS_AT_ONCE][16 * VECTORS_MAX];
    __m512 s[4], b[4];
    UNROLL_FOR(v, 4) {
        size_t at = group * TILE_TOKENS + 16 * (size_t)v;
        s[v] = load_as(t, r->tile + l->scale_offset, at);
        b[v] = load_as(t, r->tile + l->bias_offset, at);
    }
    for (uint32_t i = 0; i < rows; i++)
        pack_weights(p + i * p_stride, s, b, &w, i);
    for (uint32_t d = 0; d < l->group; d += 16 * r->vectors) {
        uint32_t lane = group * l->group + d;
        reader_block(r, lane, 0, TILE_TOKENS / 4);
        for (uint32_t i = 0, n; i < rows; i += n) {
            n = next_rows(rows - i);
            r->dot[n](r->at, r->line, TILE_TOKENS / 4, w.codes[i], TILE_TOKENS, dots);
            for (uint32_t j = i; j < i + n; j++)
                value_finish(dots[j - i], w.scale[j], w.bias_sum[j], r->vectors,
                             out + j * out_stride + lane);
        }
    }
}

void TIER(value_affine)(const struct tile_layout *l, const void *tile, const float *p,
                        size_t p_stride, uint32_t rows, float *out, size_t out_stride) {
    struct reader r;
    ASSERT(l->kind == TILE_V && l->groups * l->group == l->head_dim);
    reader_init(&r, l, tile);
    for (uint32_t row = 0; row < rows; row += PASS_ROWS) {
        uint32_t n = rows - row < PASS_ROWS ? rows - row : PASS_ROWS;
        for (uint32_t g = 0; g < l->groups; g++)
            value_group(&r, g, p + row * p_stride, p_stride, n, out + row * out_stride, out_stride);
    }
}
