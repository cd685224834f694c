/* SPDX-License-Identifier: Apache-2.0 */
/* affine.c: scores and values over tiles of codes, AVX2. The codes are
 * multiplied in place; nothing is dequantized.
 *
 * K and V tiles are the same matrix of lanes and a reduction axis (quant.h), so one integer kernel
 * serves both:
 *
 *     K   lanes = tokens, reduction = dims of a group,   16-bit codes = the query
 *     V   lanes = dims of a group, reduction = tokens,   16-bit codes = the weights p_t * scale_t
 *
 * The work is cut into blocks of 16 lanes x one reduction range ("rows": four elements of each
 * lane):
 *
 *     widen    32 bytes of a plane (8 lanes x 4 codes)  ->  words e0 e2 | e0 e2 | ...   even
 *                                                           words e1 e3 | e1 e3 | ...   odd
 *              once per block, into 1 to 4 KiB of stack, for all query rows; with few query rows
 *              8- and 4-bit codes stay in registers instead
 *     dot      vpmaddwd(even, q0 q2 in every lane) + vpmaddwd(odd, q1 q3): 15-bit queries times
 *              codes, exact in s32, up to four query rows x 16 lanes in registers; the query words
 *              come as 32-bit broadcast loads
 *     finish   s32 -> float, times scales, plus biases
 *
 * s16 x s16 rather than two s8 planes: vpmaddubsw would need the planes apart, saturates with 8-bit
 * codes, and has the same number of multiplies and adds per code.
 *
 * A block reads 64 bytes of every line of a plane, which the hardware's prefetchers follow badly: a
 * caller that walks pages prefetches the whole next tile, line by line, before it works on this one
 * (Zen 5, from DRAM, 3 rows, head_dim 64, K 8 and V 4 bits: 17.7 -> 8.0 ns per token and head).
 *
 * Invariants: the float arithmetic of a row is the same instructions in the same order whatever
 * other rows the call has. Groups of K are 32, 64 or 128 dims, or of KV_TILE all of a head, of
 * which a block has up to 128: a multiple of 8 rows, so that byte rows of every plane begin with
 * it.
 */
#include "backend/cpu/simd/simd.h"

enum {
    BLOCK_LANES = 16,    /* two vectors */
    BLOCK_ROWS_MAX = 32, /* group 128 */
    /* Query rows in registers: 4 x 2 accumulators, 4 code vectors and broadcasts are 16. */
    ROWS_AT_ONCE = 4,
    /* Query rows that share a widened block: their codes (8 KiB) and the block stay in L1. */
    PASS_ROWS = 64,
    /* Up to so many query rows 8- and 4-bit codes are unpacked on the way: in one pass over a block
     * no other pass would share widened words. */
    DIRECT_ROWS = ROWS_AT_ONCE,
};
_Static_assert((int)PASS_ROWS <= (int)CHANNEL_ROWS, "a pass is packed at once");
_Static_assert(4 * BLOCK_ROWS_MAX == 128, "a block has the rows of the widest group");
_Static_assert(TILE_TOKENS <= 4 * BLOCK_ROWS_MAX, "and those of a V tile");

/* A block's codes as words: [row][lanes 0-7 even, 0-7 odd, 8-15 even, 8-15 odd]. */
struct words {
    __m256i v[BLOCK_ROWS_MAX * 4];
};

/* ---- widen ----------------------------------------------------------------------------------- */

/* In every 16-bit word: the `bits` bits at `from`, moved to `to`. */
ALWAYS_INLINE __m256i field(__m256i v, int from, int bits, int to) {
    if (from > to)
        v = _mm256_srli_epi16(v, from - to);
    else if (from < to)
        v = _mm256_slli_epi16(v, to - from);
    if (to == 0 && from + bits == 16)
        return v;
    return _mm256_and_si256(v, _mm256_set1_epi16((short)(((1 << bits) - 1) << to)));
}

/* lo, hi: the planes' bytes of the block's first byte row and lane; hi_bits is 0 if there is
 * one plane. line: bytes of a byte row. */
ALWAYS_INLINE void widen_planes(const uint8_t *lo, int lo_bits, const uint8_t *hi, int hi_bits,
                                size_t line, uint32_t rows, __m256i *out) {
    int lo_rows = 8 / lo_bits, hi_rows = hi_bits ? 8 / hi_bits : 1;
    int unit = lo_rows > hi_rows ? lo_rows : hi_rows;
    for (uint32_t r = 0; r < rows; r += (uint32_t)unit) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
#pragma GCC unroll 8
            for (int j = 0; j < unit; j++) {
                const uint8_t *at = lo + (size_t)(j / lo_rows) * line + 32 * half;
                __m256i v = _mm256_loadu_si256((const __m256i *)at);
                int bit = lo_bits * (j % lo_rows);
                __m256i even = field(v, bit, lo_bits, 0), odd = field(v, bit + 8, lo_bits, 0);
                if (hi_bits) {
                    at = hi + (size_t)(j / hi_rows) * line + 32 * half;
                    v = _mm256_loadu_si256((const __m256i *)at);
                    bit = hi_bits * (j % hi_rows);
                    even = _mm256_or_si256(even, field(v, bit, hi_bits, lo_bits));
                    odd = _mm256_or_si256(odd, field(v, bit + 8, hi_bits, lo_bits));
                }
                out[j * 4 + 2 * half] = even;
                out[j * 4 + 2 * half + 1] = odd;
            }
        }
        lo += (size_t)(unit / lo_rows) * line;
        hi += (size_t)(unit / hi_rows) * line;
        out += unit * 4;
    }
}

/* Words of the block at (lane, rows [row, row + rows)). */
static void widen_words(const struct tile_layout *l, const uint8_t *tile, uint32_t lane,
                        uint32_t row, uint32_t rows, struct words *w) {
    size_t line = 4 * (size_t)l->lanes;
    const uint8_t *at[TILE_PLANES_MAX];
    for (int i = 0; i < TILE_PLANES_MAX; i++)
        at[i] = tile + l->plane_offset[i] + row * l->plane_bits[i] / 8 * line + 4 * lane;
    switch (l->format.bits) {
    case 8:
        widen_planes(at[0], 8, at[0], 0, line, rows, w->v);
        break;
    case 6:
        widen_planes(at[0], 4, at[1], 2, line, rows, w->v);
        break;
    case 5:
        widen_planes(at[0], 4, at[1], 1, line, rows, w->v);
        break;
    case 4:
        widen_planes(at[0], 4, at[0], 0, line, rows, w->v);
        break;
    case 3:
        widen_planes(at[0], 2, at[1], 1, line, rows, w->v);
        break;
    default:
        widen_planes(at[0], 2, at[0], 0, line, rows, w->v);
        break;
    }
}

/* ---- dot ------------------------------------------------------------------------------------- */

/* dots[i][lane] = block . codes of row i, for as many rows as the function's name says. at: the
 * block's words, or its bytes in an 8- or 4-bit plane; line: bytes from one row of words or of
 * the plane to the next; rows: of the block; codes of one query row are `stride` from those of
 * the next. Functions of their own, not inlined: their accumulators and codes take all 16
 * registers. */
typedef void dot_fn(const uint8_t *at, size_t line, uint32_t rows, const int16_t *codes,
                    size_t stride, int32_t dots[][BLOCK_LANES]);

enum source { SOURCE_WORDS, SOURCE_8, SOURCE_4, SOURCES };

ALWAYS_INLINE __m256i load_vector(const void *at) {
    return _mm256_loadu_si256((const __m256i *)at);
}

/* v, in a register, of unknown origin. Without it gcc folds a load into each of its uses (two
 * loads a cycle are the second bottleneck) and sums the products of several steps before it adds
 * them, for which it lacks registers. */
ALWAYS_INLINE __m256i keep(__m256i v) {
    asm("" : "+x"(v));
    return v;
}

ALWAYS_INLINE __m256i broadcast_pair(const int16_t *codes) {
    int32_t pair;
    memcpy(&pair, codes, sizeof pair);
    return _mm256_set1_epi32(pair);
}

/* One row of the block: v holds lanes 0-7 even, 0-7 odd, 8-15 even, 8-15 odd. */
ALWAYS_INLINE void dot_step(const __m256i v[4], const int16_t *codes, size_t stride, int n,
                            __m256i acc[ROWS_AT_ONCE][2]) {
#pragma GCC unroll 4
    for (int i = 0; i < ROWS_AT_ONCE; i++) {
        if (i >= n)
            break;
        __m256i q02 = broadcast_pair(codes + (size_t)i * stride);
        __m256i q13 = broadcast_pair(codes + (size_t)i * stride + 2);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(v[2 * half], q02),
                                           _mm256_madd_epi16(v[2 * half + 1], q13));
            acc[i][half] = keep(_mm256_add_epi32(acc[i][half], sum));
        }
    }
}

ALWAYS_INLINE void dot_rows(enum source source, int n, const uint8_t *at, size_t line,
                            uint32_t rows, const int16_t *codes, size_t stride,
                            int32_t dots[][BLOCK_LANES]) {
    __m256i acc[ROWS_AT_ONCE][2];
#pragma GCC unroll 4
    for (int i = 0; i < ROWS_AT_ONCE; i++)
        acc[i][0] = acc[i][1] = _mm256_setzero_si256();
    const int step = source == SOURCE_4 ? 2 : 1; /* block rows in one row of bytes */
    for (uint32_t r = 0; r < rows; r += (uint32_t)step) {
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            if (j >= step)
                break;
            __m256i v[4];
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                if (source == SOURCE_WORDS) {
                    v[2 * half] = load_vector(at + 64 * half);
                    v[2 * half + 1] = load_vector(at + 64 * half + 32);
                } else {
                    int bits = source == SOURCE_8 ? 8 : 4;
                    __m256i bytes = load_vector(at + 32 * half);
                    v[2 * half] = field(bytes, bits * j, bits, 0);
                    v[2 * half + 1] = field(bytes, bits * j + 8, bits, 0);
                }
            }
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++)
                v[k] = keep(v[k]);
            dot_step(v, codes, stride, n, acc);
            codes += 4;
        }
        at += line;
    }
#pragma GCC unroll 4
    for (int i = 0; i < ROWS_AT_ONCE; i++) {
        if (i >= n)
            break;
        _mm256_storeu_si256((__m256i *)dots[i], acc[i][0]);
        _mm256_storeu_si256((__m256i *)(dots[i] + 8), acc[i][1]);
    }
}

#define DEFINE_DOT(name, source, n)                                                                \
    static __attribute__((noinline)) void name(const uint8_t *at, size_t line, uint32_t rows,      \
                                               const int16_t *codes, size_t stride,                \
                                               int32_t dots[][BLOCK_LANES]) {                      \
        dot_rows(source, n, at, line, rows, codes, stride, dots);                                  \
    }
#define DEFINE_DOTS(name, source)                                                                  \
    DEFINE_DOT(name##_1, source, 1)                                                                \
    DEFINE_DOT(name##_2, source, 2)                                                                \
    DEFINE_DOT(name##_3, source, 3)                                                                \
    DEFINE_DOT(name##_4, source, 4)
DEFINE_DOTS(dot_words, SOURCE_WORDS)
DEFINE_DOTS(dot_8, SOURCE_8)
DEFINE_DOTS(dot_4, SOURCE_4)

static dot_fn *const DOT[SOURCES][ROWS_AT_ONCE + 1] = {
    [SOURCE_WORDS] = {NULL, dot_words_1, dot_words_2, dot_words_3, dot_words_4},
    [SOURCE_8] = {NULL, dot_8_1, dot_8_2, dot_8_3, dot_8_4},
    [SOURCE_4] = {NULL, dot_4_1, dot_4_2, dot_4_3, dot_4_4},
};

/* ---- blocks ---------------------------------------------------------------------------------- */

/* How the blocks of one tile are read for a given number of query rows. */
struct reader {
    const struct tile_layout *l;
    const uint8_t *tile;
    enum source source;
    const uint8_t *at; /* of the block at hand */
    size_t line;
    struct words words;
};

static void reader_init(struct reader *r, const struct tile_layout *l, const uint8_t *tile,
                        uint32_t query_rows) {
    bool direct = query_rows <= DIRECT_ROWS && (l->format.bits == 8 || l->format.bits == 4);
    r->l = l;
    r->tile = tile;
    r->source = !direct ? SOURCE_WORDS : l->format.bits == 8 ? SOURCE_8 : SOURCE_4;
    r->line = direct ? 4 * (size_t)l->lanes : sizeof r->words.v[0] * 4;
}

/* Moves to the block of lanes [lane, lane + 16) and rows [row, row + rows). */
static void reader_block(struct reader *r, uint32_t lane, uint32_t row, uint32_t rows) {
    DEBUG_ASSERT(rows <= BLOCK_ROWS_MAX && 4 * (row + rows) <= r->l->reduction &&
                 lane < r->l->lanes);
    if (r->source == SOURCE_WORDS) {
        widen_words(r->l, r->tile, lane, row, rows, &r->words);
        r->at = (const uint8_t *)r->words.v;
    } else {
        r->at = r->tile + (size_t)row * r->l->format.bits / 8 * r->line + 4 * (size_t)lane;
    }
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* One query row of a finished block: 16 tokens; first: of group 0. */
ALWAYS_INLINE void score_finish(const int32_t *dots, float scale, float scaled_sum, bool first,
                                const __m256 s[2], const __m256 b[2], float *out) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) {
        __m256 before = first ? _mm256_setzero_ps() : _mm256_loadu_ps(out + 8 * v);
        __m256 dot =
            _mm256_mul_ps(_mm256_set1_ps(scale), _mm256_cvtepi32_ps(load_vector(dots + 8 * v)));
        __m256 sum = _mm256_fmadd_ps(s[v], dot, before);
        _mm256_storeu_ps(out + 8 * v, _mm256_fmadd_ps(b[v], _mm256_set1_ps(scaled_sum), sum));
    }
}

/* Rows [row, row + n) of q, n <= PASS_ROWS, over one group of dims. */
static void score_group(struct reader *r, uint32_t group, const struct query_rows *q, uint32_t row,
                        uint32_t n, float *scores, size_t stride) {
    const struct tile_layout *l = r->l;
    uint32_t size = l->group;
    const int16_t *codes = q->codes + (size_t)row * q->dim + group * size;
    float scaled_sum[PASS_ROWS];
    int32_t dots[ROWS_AT_ONCE][BLOCK_LANES];
    for (uint32_t i = 0; i < n; i++) {
        const int32_t *sum32 = q->sum32 + (size_t)(row + i) * (q->dim / 32) + group * (size / 32);
        int32_t sum = 0;
        for (uint32_t j = 0; j < size / 32; j++)
            sum += sum32[j];
        scaled_sum[i] = q->scale[row + i] * (float)sum;
    }
    for (uint32_t lane = 0; lane < TILE_TOKENS; lane += BLOCK_LANES) {
        __m256 s[2], b[2];
        for (size_t v = 0; v < 2; v++) {
            size_t at = group * TILE_TOKENS + lane + 8 * v;
            s[v] = load_as((enum scalar_type)l->format.scalar, r->tile + l->scale_offset, at);
            b[v] = load_as((enum scalar_type)l->format.scalar, r->tile + l->bias_offset, at);
        }
        reader_block(r, lane, group * size / 4, size / 4);
        for (uint32_t i = 0; i < n; i += ROWS_AT_ONCE) {
            uint32_t now = n - i < ROWS_AT_ONCE ? n - i : ROWS_AT_ONCE;
            DOT[r->source][now](r->at, r->line, size / 4, codes + (size_t)i * q->dim, q->dim, dots);
            for (uint32_t j = i; j < i + now; j++)
                score_finish(dots[j - i], q->scale[row + j], scaled_sum[j], group == 0, s, b,
                             scores + (row + j) * stride + lane);
        }
    }
}

void TIER(score_affine)(const struct tile_layout *l, const void *tile, const struct query_rows *q,
                        float *scores, size_t stride) {
    struct reader r;
    ASSERT(l->kind == TILE_K && l->groups * l->group == l->head_dim);
    reader_init(&r, l, tile, q->rows);
    for (uint32_t row = 0; row < q->rows; row += PASS_ROWS) {
        uint32_t n = q->rows - row < PASS_ROWS ? q->rows - row : PASS_ROWS;
        for (uint32_t g = 0; g < l->groups; g++)
            score_group(&r, g, q, row, n, scores, stride);
    }
}

/* One query row of a block of channels: 16 tokens. */
ALWAYS_INLINE void channels_finish(const int32_t *dots, float scale, float bias_sum, float *out) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) {
        __m256 dot = _mm256_cvtepi32_ps(load_vector(dots + 8 * v));
        _mm256_storeu_ps(out + 8 * v,
                         _mm256_fmadd_ps(dot, _mm256_set1_ps(scale), _mm256_set1_ps(bias_sum)));
    }
}

/* n <= PASS_ROWS packed rows and 16 tokens. Heads of more than 128 dims are several blocks, whose
 * dots are added as integers. */
static void score_tokens(struct reader *r, uint32_t lane, const struct channel_queries *q,
                         uint32_t n, float *scores, size_t stride) {
    const uint32_t dim = r->l->head_dim;
    int32_t dots[ROWS_AT_ONCE][BLOCK_LANES], sums[PASS_ROWS][BLOCK_LANES];
    for (uint32_t d = 0; d < dim; d += 4 * BLOCK_ROWS_MAX) {
        const bool last = dim - d <= 4 * BLOCK_ROWS_MAX;
        const uint32_t rows = min_u32(dim - d, 4 * BLOCK_ROWS_MAX) / 4;
        reader_block(r, lane, d / 4, rows);
        for (uint32_t i = 0; i < n; i += ROWS_AT_ONCE) {
            uint32_t now = n - i < ROWS_AT_ONCE ? n - i : ROWS_AT_ONCE;
            DOT[r->source][now](r->at, r->line, rows, q->codes + (size_t)i * dim + d, dim, dots);
            for (uint32_t j = i; j < i + now; j++) {
                int32_t *sum = dots[j - i];
                for (int v = 0; d && v < BLOCK_LANES; v++)
                    sum[v] += sums[j][v];
                if (last)
                    channels_finish(sum, q->scale[j], q->bias_sum[j], scores + j * stride + lane);
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
    reader_init(&r, l, tile, q->rows);
    for (uint32_t row = 0; row < q->rows; row += PASS_ROWS) {
        uint32_t n = q->rows - row < PASS_ROWS ? q->rows - row : PASS_ROWS;
        TIER(channel_pack)(l, tile, q->f32 + (size_t)row * q->dim, n, &packed);
        for (uint32_t lane = 0; lane < TILE_TOKENS; lane += BLOCK_LANES)
            score_tokens(&r, lane, &packed, n, scores + row * stride, stride);
    }
}

/* ---- values ---------------------------------------------------------------------------------- */

/* The weights of up to PASS_ROWS rows for one group of dims. */
struct weights {
    int16_t codes[PASS_ROWS][TILE_TOKENS];
    float scale[PASS_ROWS], bias_sum[PASS_ROWS];
};

/* Weights of one row and group: w_t = p_t * s_t as codes with one scale, and sum_t p_t * b_t. s,
 * b: [64]. */
static void pack_weights(const float *p, const float *s, const float *b, struct weights *out,
                         uint32_t row) {
    __m256 w[TILE_TOKENS / 8], bias = _mm256_setzero_ps();
    vi max_bits = {0};
#pragma GCC unroll 8
    for (int i = 0; i < TILE_TOKENS / 8; i++) {
        __m256 pv = _mm256_loadu_ps(p + 8 * i);
        /* a masked token adds nothing, even from a slot that holds NaN */
        __m256 seen = _mm256_cmp_ps(pv, _mm256_setzero_ps(), _CMP_NEQ_UQ);
        w[i] = _mm256_mul_ps(pv, _mm256_and_ps(seen, _mm256_loadu_ps(s + 8 * i)));
        bias = _mm256_fmadd_ps(pv, _mm256_and_ps(seen, _mm256_loadu_ps(b + 8 * i)), bias);
        max_bits = max_int(max_bits, magnitude_bits(w[i]));
    }
    out->bias_sum[row] = sum_lanes(bias);
    struct rounding r = rounding_of(max_magnitude(max_bits), ACT16_MAX);
    out->scale[row] = r.scale;
    __m256 inverse = _mm256_set1_ps(r.per_unit);
#pragma GCC unroll 4
    for (int i = 0; i < TILE_TOKENS / 16; i++)
        _mm256_storeu_si256((__m256i *)(out->codes[row] + 16 * i),
                            round_codes(w[2 * i], w[2 * i + 1], inverse));
}

ALWAYS_INLINE void value_finish(const int32_t *dots, float scale, float bias_sum, float *out) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) {
        __m256 dot = _mm256_cvtepi32_ps(load_vector(dots + 8 * v));
        __m256 sum = _mm256_fmadd_ps(dot, _mm256_set1_ps(scale), _mm256_set1_ps(bias_sum));
        _mm256_storeu_ps(out + 8 * v, _mm256_add_ps(_mm256_loadu_ps(out + 8 * v), sum));
    }
}

/* n <= PASS_ROWS rows over one group of dims. */
static void value_group(struct reader *r, uint32_t group, const float *p, size_t p_stride,
                        uint32_t n, float *out, size_t out_stride) {
    const struct tile_layout *l = r->l;
    float s[TILE_TOKENS], b[TILE_TOKENS];
    struct weights w;
    int32_t dots[ROWS_AT_ONCE][BLOCK_LANES];
    for (size_t i = 0; i < TILE_TOKENS; i += 8) {
        enum scalar_type t = (enum scalar_type)l->format.scalar;
        _mm256_storeu_ps(s + i, load_as(t, r->tile + l->scale_offset, group * TILE_TOKENS + i));
        _mm256_storeu_ps(b + i, load_as(t, r->tile + l->bias_offset, group * TILE_TOKENS + i));
    }
    for (uint32_t i = 0; i < n; i++)
        pack_weights(p + i * p_stride, s, b, &w, i);
    for (uint32_t d = 0; d < l->group; d += BLOCK_LANES) {
        uint32_t lane = group * l->group + d;
        reader_block(r, lane, 0, TILE_TOKENS / 4);
        for (uint32_t i = 0; i < n; i += ROWS_AT_ONCE) {
            uint32_t now = n - i < ROWS_AT_ONCE ? n - i : ROWS_AT_ONCE;
            DOT[r->source][now](r->at, r->line, TILE_TOKENS / 4, w.codes[i], TILE_TOKENS, dots);
            for (uint32_t j = i; j < i + now; j++)
                value_finish(dots[j - i], w.scale[j], w.bias_sum[j], out + j * out_stride + lane);
        }
    }
}

void TIER(value_affine)(const struct tile_layout *l, const void *tile, const float *p,
                        size_t p_stride, uint32_t rows, float *out, size_t out_stride) {
    struct reader r;
    ASSERT(l->kind == TILE_V && l->groups * l->group == l->head_dim);
    reader_init(&r, l, tile, rows);
    for (uint32_t row = 0; row < rows; row += PASS_ROWS) {
        uint32_t n = rows - row < PASS_ROWS ? rows - row : PASS_ROWS;
        for (uint32_t g = 0; g < l->groups; g++)
            value_group(&r, g, p + row * p_stride, p_stride, n, out + row * out_stride, out_stride);
    }
}
