/* SPDX-License-Identifier: Apache-2.0 */
/* exact.c: scores and values over 16- and 32-bit tiles, AVX2: float32 FMA, one chain per partial
 * sum.
 *
 * As in affine.c K and V tiles are one matrix of lanes and a reduction axis, four elements of which
 * lie together:
 *
 *     | lane 0: r0 r1 r2 r3 | lane 1: r0 r1 r2 r3 |   one vector of floats, times
 *     |         f0 f1 f2 f3 |         f0 f1 f2 f3 |   four dims of a query or four tokens' weights
 *
 * A lane has four partial sums, each a chain of FMAs along the reduction axis; they are joined at
 * the end as (0 + 1) + (2 + 3). A block is 8 lanes (four vectors) and up to three rows: 12
 * accumulators, 3 factors and 1 vector of elements are the 16 registers.
 *
 * With many rows a block is converted to float32 scratch first (conversion is exact, so the bits
 * are the same), also where tokens must be masked and where head_dim leaves a block of 4 lanes.
 * head_dim is at most HEAD_DIM_MAX: the scratch is on the stack.
 */
#include "backend/cpu/avx2/vector.h"

enum {
    BLOCK_LANES = 8,
    BLOCK_VECTORS = 4,
    ROWS_AT_ONCE = 3,
    DIRECT_ROWS = 8, /* three passes: converting twice more costs what the scratch does */
    STEPS_MAX = HEAD_DIM_MAX / 4, /* of four reduction elements: K; V has 16 */
};

/* ---- dot ------------------------------------------------------------------------------------- */

/* sums[i][lane] = block . factors of row i, for as many rows as the function's name says. at:
 * the block's first element; line: bytes from one step to the next; factors of one row are
 * `stride` from those of the next. */
typedef void dot_fn(const uint8_t *at, size_t line, uint32_t steps, const float *factors,
                    size_t stride, float sums[][BLOCK_LANES]);

/* SOURCE_MASKED: float32, and elements whose factor is 0 are taken as 0 whatever they hold. */
enum source { SOURCE_F16, SOURCE_BF16, SOURCE_F32, SOURCE_MASKED, SOURCES };

ALWAYS_INLINE void join(const __m256 acc[BLOCK_VECTORS], float *sums) {
    /* the halves of the joined vector hold lanes 0 2 4 6 and 1 3 5 7 */
    __m256 h = _mm256_hadd_ps(_mm256_hadd_ps(acc[0], acc[1]), _mm256_hadd_ps(acc[2], acc[3]));
    h = _mm256_permutevar8x32_ps(h, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_ps(sums, h);
}

ALWAYS_INLINE void dot_rows(enum source source, int n, const uint8_t *at, size_t line,
                            uint32_t steps, const float *factors, size_t stride,
                            float sums[][BLOCK_LANES]) {
    const enum scalar_type type = source == SOURCE_F16    ? SCALAR_F16
                                  : source == SOURCE_BF16 ? SCALAR_BF16
                                                          : SCALAR_F32;
    __m256 acc[ROWS_AT_ONCE][BLOCK_VECTORS];
#pragma GCC unroll 3
    for (int i = 0; i < ROWS_AT_ONCE; i++) {
#pragma GCC unroll 4
        for (int v = 0; v < BLOCK_VECTORS; v++)
            acc[i][v] = _mm256_setzero_ps();
    }
    for (uint32_t s = 0; s < steps; s++) {
        __m256 f[ROWS_AT_ONCE];
#pragma GCC unroll 3
        for (int i = 0; i < ROWS_AT_ONCE; i++)
            f[i] =
                _mm256_broadcast_ps((const __m128 *)(factors + (size_t)(i < n ? i : 0) * stride));
#pragma GCC unroll 4
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            __m256 x = load8(type, at, 8 * (size_t)v);
            asm("" : "+x"(x)); /* a register: a folded load would be repeated per row */
#pragma GCC unroll 3
            for (int i = 0; i < ROWS_AT_ONCE; i++) {
                if (i >= n)
                    break;
                __m256 seen = x;
                if (source == SOURCE_MASKED)
                    seen = _mm256_and_ps(_mm256_cmp_ps(f[i], _mm256_setzero_ps(), _CMP_NEQ_UQ), x);
                acc[i][v] = _mm256_fmadd_ps(seen, f[i], acc[i][v]);
            }
        }
        at += line;
        factors += 4;
    }
#pragma GCC unroll 3
    for (int i = 0; i < ROWS_AT_ONCE; i++) {
        if (i >= n)
            break;
        join(acc[i], sums[i]);
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

/* Copies a block as float32, [step][8 lanes x 4]; lanes that it lacks become 0. */
static void convert(enum scalar_type t, const uint8_t *at, size_t line, uint32_t steps,
                    uint32_t lanes, float *out) {
    for (uint32_t s = 0; s < steps; s++) {
        for (uint32_t v = 0; v < BLOCK_VECTORS; v++) {
            __m256 x = v < lanes / 2 ? load8(t, at, 8 * (size_t)v) : _mm256_setzero_ps();
            _mm256_storeu_ps(out + 8 * v, x);
        }
        at += line;
        out += 8 * BLOCK_VECTORS;
    }
}

/* out = sums, or out += sums, for the first `lanes` (8 or 4) lanes. */
ALWAYS_INLINE void finish(const float *sums, uint32_t lanes, bool add, float *out) {
    for (uint32_t i = 0; i < lanes; i += 4) {
        __m128 x = _mm_loadu_ps(sums + i);
        _mm_storeu_ps(out + i, add ? _mm_add_ps(_mm_loadu_ps(out + i), x) : x);
    }
}

/* How many of `left` rows go next: three, but four are two and two, because one row alone has
 * too few chains to keep the multipliers busy. */
static uint32_t next_rows(uint32_t left) {
    return left == 4 ? 2 : left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE;
}

/* factors: [row][reduction]. */
static void run_tile(const struct tile_layout *l, const void *tile, const float *factors,
                     size_t stride, uint32_t rows, bool masked, bool add, float *out,
                     size_t out_stride) {
    const enum scalar_type t = (enum scalar_type)l->format.scalar;
    const uint32_t steps = l->reduction / 4;
    float scratch[STEPS_MAX * 8 * BLOCK_VECTORS], sums[ROWS_AT_ONCE][BLOCK_LANES];
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
            line = 8 * BLOCK_VECTORS * sizeof scratch[0];
            source = masked ? SOURCE_MASKED : SOURCE_F32;
        }
        for (uint32_t row = 0, n; row < rows; row += n) {
            n = next_rows(rows - row);
            DOT[source][n](at, line, steps, factors + row * stride, stride, sums);
            for (uint32_t i = 0; i < n; i++)
                finish(sums[i], lanes, add, out + (row + i) * out_stride + lane);
        }
    }
}

void avx2_score_exact(const struct tile_layout *l, const void *tile, const struct query_rows *q,
                      float *scores, size_t stride) {
    run_tile(l, tile, q->f32, q->dim, q->rows, false, false, scores, stride);
}

static bool any_zero(const float *p, size_t stride, uint32_t rows) {
    __m256 zero = _mm256_setzero_ps(), found = zero;
    for (uint32_t row = 0; row < rows; row++) {
        for (size_t t = 0; t < TILE_TOKENS; t += 8) {
            __m256 v = _mm256_loadu_ps(p + row * stride + t);
            found = _mm256_or_ps(found, _mm256_cmp_ps(v, zero, _CMP_EQ_OQ));
        }
    }
    return _mm256_movemask_ps(found) != 0;
}

/* Whether the rows beside a row make it go through the masked kernel does not change its bits: a
 * finite element times 0 adds a zero to a chain either way, and a chain that is itself a zero
 * ends as a zero that out + 0 does not notice. */
void avx2_value_exact(const struct tile_layout *l, const void *tile, const float *p,
                      size_t p_stride, uint32_t rows, float *out, size_t out_stride) {
    run_tile(l, tile, p, p_stride, rows, any_zero(p, p_stride, rows), true, out, out_stride);
}
