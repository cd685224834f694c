/* SPDX-License-Identifier: Apache-2.0 */
/* exact.c: scores and values over 16- and 32-bit tiles: float32 FMA, one chain per partial sum.
 *
 * K and V tiles are one matrix of lanes and a reduction axis (quant.h), four elements of which are
 * side by side:
 *
 *     | lane 0: r0 r1 r2 r3 | lane 1: r0 .. r3 | ...   vectors of floats, times
 *     |         f0 f1 f2 f3 |         f0 .. f3 | ...   four dims of a query or four tokens' weights
 *
 * A lane has four partial sums, each a chain of FMAs along the reduction axis, joined at the end by
 * sum_fours. A block is EXACT_VECTORS vectors and up to EXACT_ROWS rows. What head_dim leaves at
 * the end are blocks of four lanes.
 *
 * With many rows a block is converted to float32 scratch first (conversion is exact, so the bits
 * are the same). Values: an element whose weight is 0 is left out, whatever it holds. head_dim is
 * at most HEAD_DIM_MAX: the scratch is on the stack.
 */
#include "backend/cpu/simd/simd.h"

enum {
    BLOCK_LANES = EXACT_VECTORS * LANES / 4,
    VECTORS_OF_FOUR = 16 / LANES, /* of a block of four lanes */
    DIRECT_ROWS = 8,              /* more rows pass over a block often enough to convert it */
    STEPS_MAX = HEAD_DIM_MAX / 4, /* of four reduction elements: K; V has 16 */
};
_Static_assert(TILE_TOKENS % BLOCK_LANES == 0, "the lanes of K are whole blocks");
_Static_assert(STEPS_MAX >= TILE_TOKENS / 4, "the scratch holds a block of V, too");

/* ---- dot ------------------------------------------------------------------------------------- */

/* sums[i][lane] = block . factors of row i, for as many rows as the function's name says. at: the
 * block's first element; line: bytes from one step to the next; factors of one row are `stride`
 * from those of the next. */
typedef void dot_fn(const uint8_t *at, size_t line, uint32_t steps, const float *factors,
                    size_t stride, float sums[][BLOCK_LANES]);

ALWAYS_INLINE void dot_rows(enum scalar_type type, bool masked, int vectors, int n,
                            const uint8_t *at, size_t line, uint32_t steps, const float *factors,
                            size_t stride, float sums[][BLOCK_LANES]) {
    vf acc[EXACT_ROWS][EXACT_VECTORS];
    UNROLL_FOR(i, n) {
        UNROLL_FOR(v, EXACT_VECTORS) {
            acc[i][v] = splat(0);
        }
    }
    for (uint32_t s = 0; s < steps; s++) {
        vf f[EXACT_ROWS];
        UNROLL_FOR(i, n) {
            f[i] = load_four(factors + (size_t)i * stride);
        }
        UNROLL_FOR(v, vectors) {
            if (v % 2 == 0)
                load_anew();
            vf x = keep_float(load_as(type, at, LANES * (size_t)v));
            UNROLL_FOR(i, n) {
                acc[i][v] = masked ? fmadd_seen(x, f[i], acc[i][v]) : fmadd(x, f[i], acc[i][v]);
            }
        }
        at += line;
        factors += 4;
    }
    UNROLL_FOR(i, n) {
        sum_fours(acc[i], sums[i]);
    }
}

#define DEFINE_DOT(name, type, masked, vectors, n)                                                 \
    static __attribute__((noinline)) void name(const uint8_t *at, size_t line, uint32_t steps,     \
                                               const float *factors, size_t stride,                \
                                               float sums[][BLOCK_LANES]) {                        \
        dot_rows(type, masked, vectors, n, at, line, steps, factors, stride, sums);                \
    }
#if defined(EXACT_FOUR_ROWS)
#define FOURTH(...) __VA_ARGS__
#else
#define FOURTH(...)
#endif
#define DEFINE_ROWS(name, type, masked, vectors)                                                   \
    DEFINE_DOT(name##_1, type, masked, vectors, 1)                                                 \
    DEFINE_DOT(name##_2, type, masked, vectors, 2)                                                 \
    DEFINE_DOT(name##_3, type, masked, vectors, 3)                                                 \
    FOURTH(DEFINE_DOT(name##_4, type, masked, vectors, 4))
#define DEFINE_DOTS(name, type)                                                                    \
    DEFINE_ROWS(name##_block, type, false, EXACT_VECTORS)                                          \
    DEFINE_ROWS(name##_masked, type, true, EXACT_VECTORS)                                          \
    DEFINE_ROWS(name##_four, type, true, VECTORS_OF_FOUR)
#define ROWS_OF(name)                                                                              \
    { name##_1, name##_2, name##_3, FOURTH(name##_4) }
#define DOTS_OF(name)                                                                              \
    { ROWS_OF(name##_block), ROWS_OF(name##_masked), ROWS_OF(name##_four) }
DEFINE_DOTS(f16, SCALAR_F16)
DEFINE_DOTS(bf16, SCALAR_BF16)
DEFINE_DOTS(f32, SCALAR_F32)

enum { BLOCK, MASKED_BLOCK, MASKED_FOUR, SHAPES };

static dot_fn *const DOT[][SHAPES][EXACT_ROWS] = {
    [SCALAR_F16] = DOTS_OF(f16),
    [SCALAR_BF16] = DOTS_OF(bf16),
    [SCALAR_F32] = DOTS_OF(f32),
};

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Copies a block as float32, [step][vector]. */
static void convert(enum scalar_type t, const uint8_t *at, size_t line, uint32_t steps,
                    uint32_t vectors, float *out) {
    DEBUG_ASSERT(steps <= STEPS_MAX && vectors <= EXACT_VECTORS);
    for (uint32_t s = 0; s < steps; s++) {
        for (uint32_t v = 0; v < vectors; v++)
            store(out + LANES * v, load_as(t, at, LANES * (size_t)v));
        at += line;
        out += LANES * vectors;
    }
}

/* out = sums, or out += sums. */
ALWAYS_INLINE void finish(const float *sums, uint32_t lanes, bool add, float *out) {
    for (uint32_t i = 0; i < lanes; i += LANES) {
        vf x = load_first(sums + i, lanes - i);
        store_first(out + i, lanes - i, add ? load_first(out + i, lanes - i) + x : x);
    }
}

/* How many of `left` rows go next. Not one alone after others: it has too few chains to keep the
 * multipliers busy. */
static uint32_t next_rows(uint32_t left) {
    return left == EXACT_ROWS + 1 ? (EXACT_ROWS + 1) / 2 : left < EXACT_ROWS ? left : EXACT_ROWS;
}

/* factors: [row][reduction]. */
static void run_tile(const struct tile_layout *l, const void *tile, const float *factors,
                     size_t stride, uint32_t rows, bool masked, float *out, size_t out_stride) {
    const uint32_t steps = l->reduction / 4;
    float scratch[STEPS_MAX * LANES * EXACT_VECTORS], sums[EXACT_ROWS][BLOCK_LANES];
    ASSERT(steps <= STEPS_MAX && l->lanes % 4 == 0);
    for (uint32_t lane = 0, lanes; lane < l->lanes; lane += lanes) {
        enum scalar_type t = (enum scalar_type)l->format.scalar;
        const uint8_t *at = (const uint8_t *)tile + 4 * (size_t)lane * scalar_bytes(t);
        size_t line = 4 * (size_t)l->lanes * scalar_bytes(t);
        lanes = l->lanes - lane < BLOCK_LANES ? 4 : BLOCK_LANES;
        if (rows > DIRECT_ROWS && t != SCALAR_F32) {
            convert(t, at, line, steps, 4 * lanes / LANES, scratch);
            at = (const uint8_t *)scratch;
            line = 4 * lanes * sizeof scratch[0];
            t = SCALAR_F32;
        }
        dot_fn *const *dot = DOT[t][lanes < BLOCK_LANES ? MASKED_FOUR
                                    : masked            ? MASKED_BLOCK
                                                        : BLOCK];
        for (uint32_t row = 0, n; row < rows; row += n) {
            n = next_rows(rows - row);
            dot[n - 1](at, line, steps, factors + row * stride, stride, sums);
            for (uint32_t i = 0; i < n; i++)
                finish(sums[i], lanes, l->kind == TILE_V, out + (row + i) * out_stride + lane);
        }
    }
}

void TIER(score_exact)(const struct tile_layout *l, const void *tile, const struct query_rows *q,
                       float *scores, size_t stride) {
    ASSERT(l->kind == TILE_K && q->dim == l->head_dim);
    run_tile(l, tile, q->f32, q->dim, q->rows, false, scores, stride);
}

static bool any_zero(const float *p, size_t stride, uint32_t rows) {
    vi found = {0};
    for (uint32_t row = 0; row < rows; row++)
        for (size_t t = 0; t < TILE_TOKENS; t += LANES)
            found |= load(p + row * stride + t) == splat(0);
    return any_lane(found);
}

/* Other rows of the call may cause a row to go through the masked kernel. That does not change its
 * bits: a finite element times 0 adds a zero to a chain either way, and out + 0 is the same for
 * either sign of zero. */
void TIER(value_exact)(const struct tile_layout *l, const void *tile, const float *p,
                       size_t p_stride, uint32_t rows, float *out, size_t out_stride) {
    ASSERT(l->kind == TILE_V && l->reduction == TILE_TOKENS);
    run_tile(l, tile, p, p_stride, rows, any_zero(p, p_stride, rows), out, out_stride);
}
