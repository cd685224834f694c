/* SPDX-License-Identifier: Apache-2.0 */
/* exact.c: scores and values over 16- and 32-bit tiles, NEON: float32 FMA, one chain per partial
 * sum.
 *
 * K and V tiles are one matrix of lanes and a reduction axis (quant.h), four elements of which lie
 * together:
 *
 *     | lane 0: r0 r1 r2 r3 | lane 1: r0 r1 r2 r3 |   two vectors of floats, each times
 *     |         f0 f1 f2 f3 |         f0 f1 f2 f3 |   four dims of a query or four tokens' weights
 *
 * A lane has four partial sums, each a chain of FMAs along the reduction axis; they are joined at
 * the end as (0 + 1) + (2 + 3). A block is 8 lanes and up to three rows: 24 accumulators, 3 factors
 * and the elements at hand fit the 32 registers.
 *
 * With many rows a block is converted to float32 scratch first (conversion is exact, so the bits
 * are the same), also where tokens must be masked and where head_dim leaves a block of 4 lanes.
 * head_dim is at most HEAD_DIM_MAX: the scratch is on the stack.
 */
#include "backend/cpu/neon/vector.h"

enum {
    BLOCK_LANES = 8,
    ROWS_AT_ONCE = 3,
    DIRECT_ROWS = 2 * ROWS_AT_ONCE, /* two passes: the second conversion costs what scratch does */
    STEPS_MAX = HEAD_DIM_MAX / 4,   /* of four reduction elements: K; V has 16 */
};

/* ---- dot ------------------------------------------------------------------------------------- */

/* sums[i][lane] = block . factors of row i, for as many rows as the function's name says. at:
 * the block's first element; line: bytes from one step to the next; factors of one row are
 * `stride` from those of the next. */
typedef void dot_fn(const uint8_t *at, size_t line, uint32_t steps, const float *factors,
                    size_t stride, float sums[][BLOCK_LANES]);

/* SOURCE_MASKED: float32, and elements whose factor is 0 are taken as 0 whatever they hold. */
enum source { SOURCE_F16, SOURCE_BF16, SOURCE_F32, SOURCE_MASKED, SOURCES };

/* x where f is not 0. */
ALWAYS_INLINE float32x4_t where_used(float32x4_t x, float32x4_t f) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), vceqzq_f32(f)));
}

ALWAYS_INLINE void dot_rows(enum source source, int n, const uint8_t *at, size_t line,
                            uint32_t steps, const float *factors, size_t stride,
                            float sums[][BLOCK_LANES]) {
    const enum scalar_type type = source == SOURCE_F16    ? SCALAR_F16
                                  : source == SOURCE_BF16 ? SCALAR_BF16
                                                          : SCALAR_F32;
    float32x4_t acc[ROWS_AT_ONCE][BLOCK_LANES];
    UNROLL_FOR(i, n) {
        UNROLL_FOR(v, BLOCK_LANES) {
            acc[i][v] = vdupq_n_f32(0);
        }
    }
    for (uint32_t s = 0; s < steps; s++) {
        float32x4_t f[ROWS_AT_ONCE];
        UNROLL_FOR(i, n) {
            f[i] = vld1q_f32(factors + (size_t)i * stride);
        }
        UNROLL_FOR(v, BLOCK_LANES) {
            if (v % 2 == 0)
                load_anew();
            float32x4_t x = load4(type, at, 4 * (size_t)v);
            UNROLL_FOR(i, n) {
                float32x4_t seen = source == SOURCE_MASKED ? where_used(x, f[i]) : x;
                acc[i][v] = vfmaq_f32(acc[i][v], seen, f[i]);
            }
        }
        at += line;
        factors += 4;
    }
    UNROLL_FOR(i, n) {
        vst1q_f32(sums[i], sum_each(acc[i]));
        vst1q_f32(sums[i] + 4, sum_each(acc[i] + 4));
    }
}

#define DEFINE_DOT(name, source, n)                                                                \
    static __attribute__((noinline)) void name(const uint8_t *at, size_t line, uint32_t steps,     \
                                               const float *factors, size_t stride,                \
                                               float sums[][BLOCK_LANES]) {                        \
        dot_rows(source, n, at, line, steps, factors, stride, sums);                               \
    }
#define DEFINE_DOTS(name, source)                                                                  \
    DEFINE_DOT(name##_1, source, 1)                                                                \
    DEFINE_DOT(name##_2, source, 2)                                                                \
    DEFINE_DOT(name##_3, source, 3)
DEFINE_DOTS(dot_f16, SOURCE_F16)
DEFINE_DOTS(dot_bf16, SOURCE_BF16)
DEFINE_DOTS(dot_f32, SOURCE_F32)
DEFINE_DOTS(dot_masked, SOURCE_MASKED)

static dot_fn *const DOT[SOURCES][ROWS_AT_ONCE + 1] = {
    [SOURCE_F16] = {NULL, dot_f16_1, dot_f16_2, dot_f16_3},
    [SOURCE_BF16] = {NULL, dot_bf16_1, dot_bf16_2, dot_bf16_3},
    [SOURCE_F32] = {NULL, dot_f32_1, dot_f32_2, dot_f32_3},
    [SOURCE_MASKED] = {NULL, dot_masked_1, dot_masked_2, dot_masked_3},
};

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Copies a block as float32, [step][8 lanes][4]; lanes that it lacks become 0. */
static void convert(enum scalar_type t, const uint8_t *at, size_t line, uint32_t steps,
                    uint32_t lanes, float *out) {
    for (uint32_t s = 0; s < steps; s++) {
        for (uint32_t v = 0; v < BLOCK_LANES; v++) {
            float32x4_t x = v < lanes ? load4(t, at, 4 * (size_t)v) : vdupq_n_f32(0);
            vst1q_f32(out + 4 * v, x);
        }
        at += line;
        out += 4 * BLOCK_LANES;
    }
}

/* out = sums, or out += sums, for the first `lanes` (8 or 4) lanes. */
ALWAYS_INLINE void finish(const float *sums, uint32_t lanes, bool add, float *out) {
    for (uint32_t i = 0; i < lanes; i += 4) {
        float32x4_t x = vld1q_f32(sums + i);
        vst1q_f32(out + i, add ? vaddq_f32(vld1q_f32(out + i), x) : x);
    }
}

/* factors: [row][reduction]. */
static void run_tile(const struct tile_layout *l, const void *tile, const float *factors,
                     size_t stride, uint32_t rows, bool masked, bool add, float *out,
                     size_t out_stride) {
    const enum scalar_type t = (enum scalar_type)l->format.scalar;
    const uint32_t steps = l->reduction / 4;
    float scratch[STEPS_MAX * 4 * BLOCK_LANES], sums[ROWS_AT_ONCE][BLOCK_LANES];
    for (uint32_t lane = 0; lane < l->lanes; lane += BLOCK_LANES) {
        uint32_t lanes = l->lanes - lane < BLOCK_LANES ? l->lanes - lane : BLOCK_LANES;
        const uint8_t *at = (const uint8_t *)tile + 4 * (size_t)lane * scalar_bytes(t);
        size_t line = 4 * (size_t)l->lanes * scalar_bytes(t);
        enum source source = t == SCALAR_F32   ? SOURCE_F32
                             : t == SCALAR_F16 ? SOURCE_F16
                                               : SOURCE_BF16;
        if ((rows > DIRECT_ROWS && t != SCALAR_F32) || masked || lanes < BLOCK_LANES) {
            convert(t, at, line, steps, lanes, scratch);
            at = (const uint8_t *)scratch;
            line = 4 * BLOCK_LANES * sizeof scratch[0];
            source = masked ? SOURCE_MASKED : SOURCE_F32;
        }
        for (uint32_t row = 0, n; row < rows; row += n) {
            n = rows - row < ROWS_AT_ONCE ? rows - row : ROWS_AT_ONCE;
            DOT[source][n](at, line, steps, factors + row * stride, stride, sums);
            for (uint32_t i = 0; i < n; i++)
                finish(sums[i], lanes, add, out + (row + i) * out_stride + lane);
        }
    }
}

void neon_score_exact(const struct tile_layout *l, const void *tile, const struct query_rows *q,
                      float *scores, size_t stride) {
    run_tile(l, tile, q->f32, q->dim, q->rows, false, false, scores, stride);
}

static bool any_zero(const float *p, size_t stride, uint32_t rows) {
    uint32x4_t found = vdupq_n_u32(0);
    for (uint32_t row = 0; row < rows; row++)
        for (size_t t = 0; t < TILE_TOKENS; t += 4)
            found = vorrq_u32(found, vceqzq_f32(vld1q_f32(p + row * stride + t)));
    return vmaxvq_u32(found) != 0;
}

/* Whether the rows beside a row make it go through the masked kernel does not change its bits: a
 * finite element times 0 adds a zero to a chain either way, and a chain that is itself a zero
 * ends as a zero that out + 0 does not notice. */
void neon_value_exact(const struct tile_layout *l, const void *tile, const float *p,
                      size_t p_stride, uint32_t rows, float *out, size_t out_stride) {
    run_tile(l, tile, p, p_stride, rows, any_zero(p, p_stride, rows), true, out, out_stride);
}
