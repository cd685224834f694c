/* SPDX-License-Identifier: Apache-2.0 */
/* affine.c: scores and values over tiles of codes, NEON, both tiers. The codes are
 * multiplied in place; nothing is dequantized.
 *
 * K and V tiles are the same matrix of lanes and a reduction axis (quant.h), so one integer kernel
 * serves both:
 *
 *     K   lanes = tokens, reduction = dims of a group,   factors = the query's codes
 *     V   lanes = dims of a group, reduction = tokens,   factors = the weights p_t * scale_t
 *
 * The work is cut into blocks of 16 lanes x one reduction range ("rows": four elements of each
 * lane, 64 bytes):
 *
 *     unpack   shifts and masks of whole vectors make bytes of the planes; 8-bit codes become code
 *              - 128, so that all are s8, and 128 * sum of the factors is added to their dots.
 *              With few query rows bytes stay in registers; else a block is unpacked once, into at
 *              most 2 KiB of stack, for all of them
 *     dot      exact in s32 (dot.h), two query rows x 16 lanes in 16 registers
 *     finish   s32 -> float, times scales, plus biases
 *
 * Invariants: the float arithmetic of a row is the same instructions in the same order whatever
 * other rows the call has. Groups of K are 32, 64 or 128 dims, or of KV_TILE all of a head, of
 * which a block has up to 128: a multiple of 8 rows, so byte rows of every plane begin with it.
 */
#include "backend/cpu/neon/dot.h"

enum {
    BLOCK_LANES = 16,
    VECTORS = BLOCK_LANES / 4,
    BLOCK_ROWS_MAX = 32, /* group 128 */
    ROWS_AT_ONCE = 2,    /* x 4 vectors x 2 sums of a dot: half of the registers */
    PASS_ROWS = 32,      /* share an unpacked block: their factors (8 KiB) and it stay in L1 */
    DIRECT_ROWS = ROWS_AT_ONCE, /* a single pass shares it with no other */
};
_Static_assert((int)PASS_ROWS <= (int)CHANNEL_ROWS, "a pass is packed at once");
_Static_assert(4 * BLOCK_ROWS_MAX == 128, "a block has the rows of the widest group");
_Static_assert(TILE_TOKENS <= 4 * BLOCK_ROWS_MAX, "and those of a V tile");

/* The factors of up to PASS_ROWS query rows for one group. */
struct pass {
    int32_t factors[PASS_ROWS][2 * BLOCK_ROWS_MAX]; /* order_for_lanes */
    int32_t sum[PASS_ROWS];                         /* of a row's factors */
    float scale[PASS_ROWS];                         /* of a row's factors */
    float constant[PASS_ROWS];                      /* what meets the bias: see the finish */
};

/* ---- unpack ---------------------------------------------------------------------------------- */

/* In every byte: the `bits` bits at `from`, moved to `to`. */
ALWAYS_INLINE uint8x16_t field(uint8x16_t v, int from, int bits, int to) {
    if (from > to)
        v = v >> vdupq_n_u8((uint8_t)(from - to));
    else if (from < to)
        v = v << vdupq_n_u8((uint8_t)(to - from));
    if (to == 0 && from + bits == 8)
        return v;
    return vandq_u8(v, vdupq_n_u8((uint8_t)(((1 << bits) - 1) << to)));
}

/* How codes of some width are split into planes. */
struct split {
    int lo, hi; /* bits of the planes; hi is 0 if there is one */
    int unit;   /* rows after which both planes begin a new byte row */
};

ALWAYS_INLINE struct split split_of(int bits) {
    return bits == 8   ? (struct split){8, 0, 1}
           : bits == 6 ? (struct split){4, 2, 4}
           : bits == 5 ? (struct split){4, 1, 8}
           : bits == 4 ? (struct split){4, 0, 2}
           : bits == 3 ? (struct split){2, 1, 8}
                       : (struct split){2, 0, 4};
}

/* Four lanes of row j of a unit. lo, hi: the planes' bytes of the unit's row 0 and these lanes;
 * line: bytes of a byte row. */
ALWAYS_INLINE int8x16_t unit_row(int bits, const uint8_t *lo, const uint8_t *hi, size_t line,
                                 int j) {
    const struct split s = split_of(bits);
    const int lo_rows = 8 / s.lo, hi_rows = s.hi ? 8 / s.hi : 1;
    uint8x16_t v = vld1q_u8(lo + (size_t)(j / lo_rows) * line);
    v = field(v, s.lo * (j % lo_rows), s.lo, 0);
    if (s.hi) {
        uint8x16_t high = vld1q_u8(hi + (size_t)(j / hi_rows) * line);
        v = vorrq_u8(v, field(high, s.hi * (j % hi_rows), s.hi, s.lo));
    }
    if (bits == 8)
        v = veorq_u8(v, vdupq_n_u8(0x80)); /* code - 128 */
    return vreinterpretq_s8_u8(v);
}

/* Where a block's codes are. Bytes: [row][64], unpacked already; else planes. */
struct block {
    const uint8_t *lo, *hi;
    size_t line;
};

ALWAYS_INLINE void next_unit(int bits, struct block *b) {
    const struct split s = split_of(bits);
    b->lo += (size_t)(s.unit * s.lo / 8) * b->line;
    b->hi += (size_t)(s.unit * s.hi / 8) * b->line;
}

ALWAYS_INLINE void unpack_planes(int bits, struct block b, uint32_t rows, int8_t *out) {
    const int unit = split_of(bits).unit;
    for (uint32_t r = 0; r < rows; r += (uint32_t)unit) {
        UNROLL_FOR(j, unit) {
            UNROLL_FOR(v, VECTORS) {
                vst1q_s8(out, unit_row(bits, b.lo + 16 * v, b.hi + 16 * v, b.line, j));
                out += 16;
            }
        }
        next_unit(bits, &b);
    }
}

/* ---- dot ------------------------------------------------------------------------------------- */

/* dots[i][lane] = block . factors of row i, for as many rows as the function's name says. */
typedef void dot_fn(struct block b, uint32_t rows, const int32_t (*factors)[2 * BLOCK_ROWS_MAX],
                    int32_t dots[][BLOCK_LANES]);

enum { UNPACKED = 0 }; /* bytes of a block, in the place of bits */

ALWAYS_INLINE void dot_rows(int bits, int n, struct block b, uint32_t rows,
                            const int32_t (*factors)[2 * BLOCK_ROWS_MAX],
                            int32_t dots[][BLOCK_LANES]) {
    const int unit = bits == UNPACKED ? 1 : split_of(bits).unit;
    struct dot d[ROWS_AT_ONCE][VECTORS];
    UNROLL_FOR(i, n) {
        UNROLL_FOR(v, VECTORS) {
            d[i][v] = dot_zero();
        }
    }
    for (uint32_t r = 0; r < rows; r += (uint32_t)unit) {
        UNROLL_FOR(j, unit) {
            load_anew(); /* rows of a unit share bytes */
            UNROLL_FOR(v, VECTORS) {
                int8x16_t codes = bits == UNPACKED
                                      ? vld1q_s8((const int8_t *)b.lo + 16 * v)
                                      : unit_row(bits, b.lo + 16 * v, b.hi + 16 * v, b.line, j);
                UNROLL_FOR(i, n) {
                    d[i][v] = dot_lanes_16(d[i][v], codes, factors[i] + 2 * (r + (uint32_t)j));
                }
            }
        }
        if (bits == UNPACKED)
            b.lo += 16 * VECTORS;
        else
            next_unit(bits, &b);
    }
    UNROLL_FOR(i, n) {
        UNROLL_FOR(v, VECTORS) {
            vst1q_s32(dots[i] + 4 * v, dot_lanes_end(d[i][v]));
        }
    }
}

#define DEFINE_DOT(name, bits, n)                                                                  \
    static __attribute__((noinline)) void name(struct block b, uint32_t rows,                      \
                                               const int32_t(*factors)[2 * BLOCK_ROWS_MAX],        \
                                               int32_t dots[][BLOCK_LANES]) {                      \
        dot_rows(bits, n, b, rows, factors, dots);                                                 \
    }
#define DEFINE_BITS(bits)                                                                          \
    DEFINE_DOT(dot_##bits##_1, bits, 1)                                                            \
    DEFINE_DOT(dot_##bits##_2, bits, 2)                                                            \
    static void unpack_##bits(struct block b, uint32_t rows, int8_t *out) {                        \
        unpack_planes(bits, b, rows, out);                                                         \
    }
DEFINE_BITS(8)
DEFINE_BITS(6)
DEFINE_BITS(5)
DEFINE_BITS(4)
DEFINE_BITS(3)
DEFINE_BITS(2)
DEFINE_DOT(dot_bytes_1, UNPACKED, 1)
DEFINE_DOT(dot_bytes_2, UNPACKED, 2)

typedef void unpack_fn(struct block b, uint32_t rows, int8_t *out);

/* By bits; index 0: unpacked. */
static const struct {
    unpack_fn *unpack;
    dot_fn *dot[ROWS_AT_ONCE + 1];
} KERNELS[9] = {
    [UNPACKED] = {NULL, {NULL, dot_bytes_1, dot_bytes_2}},
    [8] = {unpack_8, {NULL, dot_8_1, dot_8_2}},
    [6] = {unpack_6, {NULL, dot_6_1, dot_6_2}},
    [5] = {unpack_5, {NULL, dot_5_1, dot_5_2}},
    [4] = {unpack_4, {NULL, dot_4_1, dot_4_2}},
    [3] = {unpack_3, {NULL, dot_3_1, dot_3_2}},
    [2] = {unpack_2, {NULL, dot_2_1, dot_2_2}},
};

/* ---- blocks ---------------------------------------------------------------------------------- */

/* How the blocks of one tile are read for a given number of query rows. */
struct reader {
    const struct tile_layout *l;
    const uint8_t *tile;
    bool direct;
    struct block at; /* the block at hand */
    int8_t bytes[BLOCK_ROWS_MAX * 4 * BLOCK_LANES];
};

static void reader_init(struct reader *r, const struct tile_layout *l, const void *tile,
                        uint32_t query_rows) {
    r->l = l;
    r->tile = tile;
    r->direct = query_rows <= DIRECT_ROWS;
}

/* Moves to the block of lanes [lane, lane + 16) and rows [row, row + rows). */
static void reader_block(struct reader *r, uint32_t lane, uint32_t row, uint32_t rows) {
    DEBUG_ASSERT(rows <= BLOCK_ROWS_MAX && 4 * (row + rows) <= r->l->reduction &&
                 lane < r->l->lanes);
    const struct tile_layout *l = r->l;
    size_t line = 4 * (size_t)l->lanes;
    const uint8_t *at[TILE_PLANES_MAX];
    for (int i = 0; i < TILE_PLANES_MAX; i++)
        at[i] = r->tile + l->plane_offset[i] + row * l->plane_bits[i] / 8 * line + 4 * (size_t)lane;
    r->at = (struct block){at[0], at[1], line};
    if (r->direct)
        return;
    KERNELS[l->format.bits].unpack(r->at, rows, r->bytes);
    r->at = (struct block){.lo = (const uint8_t *)r->bytes};
}

/* Dots of pass rows [i, i + n) with the block at hand; 128 * sum put back for 8-bit codes. */
static void reader_dots(const struct reader *r, uint32_t rows, const struct pass *p, uint32_t i,
                        uint32_t n, int32_t dots[][BLOCK_LANES]) {
    unsigned bits = r->l->format.bits;
    KERNELS[r->direct ? bits : UNPACKED].dot[n](r->at, rows, p->factors + i, dots);
    for (uint32_t j = 0; bits == 8 && j < n; j++) {
        int32x4_t rest = vdupq_n_s32(128 * p->sum[i + j]);
        UNROLL_FOR(v, VECTORS) {
            int32_t *at = dots[j] + 4 * v;
            vst1q_s32(at, vaddq_s32(vld1q_s32(at), rest));
        }
    }
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* One query row of a finished block: 16 tokens; constant: the query's scaled sum; first: of group
 * 0. */
ALWAYS_INLINE void score_finish(const int32_t *dots, float scale, float constant, bool first,
                                const float32x4_t s[VECTORS], const float32x4_t b[VECTORS],
                                float *out) {
    UNROLL_FOR(v, VECTORS) {
        float32x4_t before = first ? vdupq_n_f32(0) : vld1q_f32(out + 4 * v);
        float32x4_t dot = vmulq_n_f32(vcvtq_f32_s32(vld1q_s32(dots + 4 * v)), scale);
        float32x4_t sum = vfmaq_f32(before, s[v], dot);
        vst1q_f32(out + 4 * v, vfmaq_n_f32(sum, b[v], constant));
    }
}

/* Rows [row, row + n) of q, one group of dims. */
static void pack_queries(const struct query_rows *q, uint32_t row, uint32_t n, uint32_t group,
                         uint32_t size, struct pass *out) {
    for (uint32_t i = 0; i < n; i++) {
        const int16_t *codes = q->codes + (size_t)(row + i) * q->dim + group * size;
        const int32_t *sum32 = q->sum32 + (size_t)(row + i) * (q->dim / 32) + group * (size / 32);
        order_for_lanes(codes, size, out->factors[i]);
        out->sum[i] = 0;
        for (uint32_t j = 0; j < size / 32; j++)
            out->sum[i] += sum32[j];
        out->scale[i] = q->scale[row + i];
        out->constant[i] = q->scale[row + i] * (float)out->sum[i];
    }
}

/* n <= PASS_ROWS rows of q from `row` on, over one group of dims. */
static void score_group(struct reader *r, uint32_t group, const struct query_rows *q, uint32_t row,
                        uint32_t n, float *scores, size_t stride) {
    const struct tile_layout *l = r->l;
    uint32_t size = l->group;
    enum scalar_type t = (enum scalar_type)l->format.scalar;
    struct pass p;
    int32_t dots[ROWS_AT_ONCE][BLOCK_LANES];
    pack_queries(q, row, n, group, size, &p);
    for (uint32_t lane = 0; lane < TILE_TOKENS; lane += BLOCK_LANES) {
        float32x4_t s[VECTORS], b[VECTORS];
        for (size_t v = 0; v < VECTORS; v++) {
            size_t at = (size_t)group * TILE_TOKENS + lane + 4 * v;
            s[v] = load_as(t, r->tile + l->scale_offset, at);
            b[v] = load_as(t, r->tile + l->bias_offset, at);
        }
        reader_block(r, lane, group * size / 4, size / 4);
        for (uint32_t i = 0, now; i < n; i += now) {
            now = n - i < ROWS_AT_ONCE ? n - i : ROWS_AT_ONCE;
            reader_dots(r, size / 4, &p, i, now, dots);
            for (uint32_t j = i; j < i + now; j++)
                score_finish(dots[j - i], p.scale[j], p.constant[j], group == 0, s, b,
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
    UNROLL_FOR(v, VECTORS) {
        const float32x4_t dot = vcvtq_f32_s32(vld1q_s32(dots + 4 * v));
        vst1q_f32(out + 4 * v, vfmaq_n_f32(vdupq_n_f32(bias_sum), dot, scale));
    }
}

/* n <= PASS_ROWS packed rows and dims [d, d + 128), or those left. sums: dots of dims before. */
static void score_dims(struct reader *r, uint32_t d, const struct channel_queries *q, uint32_t n,
                       int32_t (*sums)[TILE_TOKENS], float *scores, size_t stride) {
    const uint32_t dim = r->l->head_dim, size = min_u32(dim - d, 4 * BLOCK_ROWS_MAX);
    struct pass p;
    int32_t dots[ROWS_AT_ONCE][BLOCK_LANES];
    for (uint32_t i = 0; i < n; i++) {
        const int16_t *codes = q->codes + (size_t)i * dim + d;
        order_for_lanes(codes, size, p.factors[i]);
        p.sum[i] = 0;
        for (uint32_t j = 0; j < size; j++)
            p.sum[i] += codes[j];
    }
    for (uint32_t lane = 0; lane < TILE_TOKENS; lane += BLOCK_LANES) {
        reader_block(r, lane, d / 4, size / 4);
        for (uint32_t i = 0, now; i < n; i += now) {
            now = n - i < ROWS_AT_ONCE ? n - i : ROWS_AT_ONCE;
            reader_dots(r, size / 4, &p, i, now, dots);
            for (uint32_t j = i; j < i + now; j++) {
                int32_t *sum = sums[j] + lane;
                for (int t = 0; t < BLOCK_LANES; t++)
                    sum[t] = dots[j - i][t] + (d ? sum[t] : 0);
                if (d + size == dim)
                    channels_finish(sum, q->scale[j], q->bias_sum[j], scores + j * stride + lane);
            }
        }
    }
}

void TIER(score_channels)(const struct tile_layout *l, const void *tile, const struct query_rows *q,
                          float *scores, size_t stride) {
    struct reader r;
    struct channel_queries packed;
    int32_t sums[PASS_ROWS][TILE_TOKENS];
    ASSERT(l->kind == TILE_K && l->format.kind == KV_TILE);
    reader_init(&r, l, tile, q->rows);
    for (uint32_t row = 0; row < q->rows; row += PASS_ROWS) {
        const uint32_t n = q->rows - row < PASS_ROWS ? q->rows - row : PASS_ROWS;
        TIER(channel_pack)(l, tile, q->f32 + (size_t)row * q->dim, n, &packed);
        for (uint32_t d = 0; d < l->head_dim; d += 4 * BLOCK_ROWS_MAX)
            score_dims(&r, d, &packed, n, sums, scores + row * stride, stride);
    }
}

/* ---- values ---------------------------------------------------------------------------------- */

/* x where p is not 0: a masked token adds nothing, even from a slot that holds NaN. */
ALWAYS_INLINE float32x4_t where_seen(float32x4_t x, float32x4_t p) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), vceqzq_f32(p)));
}

/* Weights of one row and group: w_t = p_t * s_t as codes with one scale; the constant is
 * sum_t p_t * b_t. s, b: [64]. */
static void pack_weights(const float *p, const float *s, const float *b, struct pass *out,
                         uint32_t row) {
    float32x4_t w[TILE_TOKENS / 4], bias = vdupq_n_f32(0);
    vi max = {0}, sum = {0};
    int16_t codes[TILE_TOKENS];
    UNROLL_FOR(i, TILE_TOKENS / 4) {
        float32x4_t pv = vld1q_f32(p + 4 * i);
        w[i] = vmulq_f32(pv, where_seen(vld1q_f32(s + 4 * i), pv));
        bias = vfmaq_f32(bias, pv, where_seen(vld1q_f32(b + 4 * i), pv));
        max = max_int(max, magnitude_bits(w[i]));
    }
    struct rounding r = rounding_of(max_magnitude(max), ACT16_MAX);
    UNROLL_FOR(i, TILE_TOKENS / 4) {
        vi c = to_int(w[i] * splat(r.per_unit));
        vst1_s16(codes + 4 * i, vmovn_s32((int32x4_t)c));
        sum += c;
    }
    order_for_lanes(codes, TILE_TOKENS, out->factors[row]);
    out->sum[row] = sum_int(sum);
    out->scale[row] = r.scale;
    out->constant[row] = sum_lanes(bias);
}

ALWAYS_INLINE void value_finish(const int32_t *dots, float scale, float constant, float *out) {
    UNROLL_FOR(v, VECTORS) {
        float32x4_t dot = vcvtq_f32_s32(vld1q_s32(dots + 4 * v));
        float32x4_t sum = vfmaq_n_f32(vdupq_n_f32(constant), dot, scale);
        vst1q_f32(out + 4 * v, vaddq_f32(vld1q_f32(out + 4 * v), sum));
    }
}

/* n <= PASS_ROWS rows over one group of dims. */
static void value_group(struct reader *r, uint32_t group, const float *p, size_t p_stride,
                        uint32_t n, float *out, size_t out_stride) {
    const struct tile_layout *l = r->l;
    enum scalar_type t = (enum scalar_type)l->format.scalar;
    float s[TILE_TOKENS], b[TILE_TOKENS];
    struct pass w;
    int32_t dots[ROWS_AT_ONCE][BLOCK_LANES];
    for (size_t i = 0; i < TILE_TOKENS; i += 4) {
        vst1q_f32(s + i, load_as(t, r->tile + l->scale_offset, (size_t)group * TILE_TOKENS + i));
        vst1q_f32(b + i, load_as(t, r->tile + l->bias_offset, (size_t)group * TILE_TOKENS + i));
    }
    for (uint32_t i = 0; i < n; i++)
        pack_weights(p + i * p_stride, s, b, &w, i);
    for (uint32_t d = 0; d < l->group; d += BLOCK_LANES) {
        uint32_t lane = group * l->group + d;
        reader_block(r, lane, 0, TILE_TOKENS / 4);
        for (uint32_t i = 0, now; i < n; i += now) {
            now = n - i < ROWS_AT_ONCE ? n - i : ROWS_AT_ONCE;
            reader_dots(r, TILE_TOKENS / 4, &w, i, now, dots);
            for (uint32_t j = i; j < i + now; j++)
                value_finish(dots[j - i], w.scale[j], w.constant[j], out + j * out_stride + lane);
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
