/* SPDX-License-Identifier: Apache-2.0 */
/* exact.c: scores and values over 16- and 32-bit tiles, AVX-512: float32 FMA, one chain per partial
 * sum.
 *
 * As in affine.c K and V tiles are one matrix of lanes and a reduction axis, four elements of which
 * lie together:
 *
 *     | lane 0: r0 r1 r2 r3 | lane 1: r0 .. r3 | lane 2 | lane 3 |   one vector of floats, times
 *     |         f0 f1 f2 f3 |         f0 .. f3 |   ...  |   ...  |   four dims of a query or four
 *                                                                    tokens' weights
 *
 * A lane has four partial sums, each a chain of FMAs along the reduction axis; they are joined at
 * the end as (0 + 2) + (1 + 3). A block is 16 lanes (four vectors) and up to four rows: 16 sums.
 * What head_dim leaves at the end goes by single vectors, four lanes each.
 *
 * With many rows a block is converted to float32 scratch first (conversion is exact, so the bits
 * are the same). Values: an element whose weight is 0 is left out by a mask, whatever it holds.
 */
#include "backend/cpu/avx512/vector.h"

enum {
    VECTORS_MAX = 4, /* of a block */
    ROWS_AT_ONCE = 4,
    DIRECT_ROWS = 8,              /* two passes: converting once more costs what the scratch does */
    STEPS_MAX = HEAD_DIM_MAX / 4, /* of four reduction elements: K; V has 16 */
};

/* ---- dot ------------------------------------------------------------------------------------- */

/* sums[i][lane] = block . factors of row i, for as many rows and vectors as the function's name
 * says. at: the block's first element; line: bytes from one step to the next; factors of one row
 * are `stride` from those of the next. */
typedef void dot_fn(const uint8_t *at, size_t line, uint32_t steps, const float *factors,
                    size_t stride, float sums[][4 * VECTORS_MAX]);

/* The sums of four lanes' partial sums: (0 + 2) + (1 + 3). */
ALWAYS_INLINE __m128 join(__m512 acc) {
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    __m512 pairs = _mm512_add_ps(acc, _mm512_shuffle_ps(acc, acc, 0xee));
    __m512 all = _mm512_add_ps(pairs, _mm512_movehdup_ps(pairs));
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(first, all));
}

/* The same of a block. */
ALWAYS_INLINE __m512 join_block(const __m512 acc[VECTORS_MAX]) {
    const __m512i lanes = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512 u[2];
    UNROLL_FOR(i, 2) {
        u[i] = _mm512_add_ps(_mm512_unpacklo_ps(acc[2 * i], acc[2 * i + 1]),
                             _mm512_unpackhi_ps(acc[2 * i], acc[2 * i + 1]));
    }
    __m512 all =
        _mm512_add_ps(_mm512_shuffle_ps(u[0], u[1], 0x44), _mm512_shuffle_ps(u[0], u[1], 0xee));
    return _mm512_permutexvar_ps(lanes, all); /* from [lane in its vector][vector] */
}

ALWAYS_INLINE void dot_rows(enum scalar_type type, bool masked, int vectors, int n,
                            const uint8_t *at, size_t line, uint32_t steps, const float *factors,
                            size_t stride, float sums[][4 * VECTORS_MAX]) {
    __m512 acc[ROWS_AT_ONCE][VECTORS_MAX];
    UNROLL_FOR(i, n) {
        UNROLL_FOR(v, vectors) {
            acc[i][v] = _mm512_setzero_ps();
        }
    }
    for (uint32_t s = 0; s < steps; s++) {
        __m512 f[ROWS_AT_ONCE];
        __mmask16 seen[ROWS_AT_ONCE];
        UNROLL_FOR(i, n) {
            f[i] = _mm512_broadcast_f32x4(_mm_loadu_ps(factors + (size_t)i * stride));
            seen[i] = masked ? _mm512_cmp_ps_mask(f[i], _mm512_setzero_ps(), _CMP_NEQ_UQ)
                             : (__mmask16)0xffff;
        }
        UNROLL_FOR(v, vectors) {
            __m512 x = load16(type, at, 16 * (size_t)v);
            __asm__("" : "+v"(x)); /* a register: a folded load would be repeated per row */
            UNROLL_FOR(i, n) {
                acc[i][v] = masked ? _mm512_mask3_fmadd_ps(x, f[i], acc[i][v], seen[i])
                                   : _mm512_fmadd_ps(x, f[i], acc[i][v]);
            }
        }
        at += line;
        factors += 4;
    }
    UNROLL_FOR(i, n) {
        if (vectors == VECTORS_MAX)
            _mm512_storeu_ps(sums[i], join_block(acc[i]));
        else
            _mm_storeu_ps(sums[i], join(acc[i][0]));
    }
}

#define DEFINE_DOT(name, type, masked, vectors, n)                                                 \
    static __attribute__((noinline)) void name(const uint8_t *at, size_t line, uint32_t steps,     \
                                               const float *factors, size_t stride,                \
                                               float sums[][4 * VECTORS_MAX]) {                    \
        dot_rows(type, masked, vectors, n, at, line, steps, factors, stride, sums);                \
    }
#define DEFINE_ROWS(name, type, masked, vectors)                                                   \
    DEFINE_DOT(name##_1, type, masked, vectors, 1)                                                 \
    DEFINE_DOT(name##_2, type, masked, vectors, 2)                                                 \
    DEFINE_DOT(name##_3, type, masked, vectors, 3)                                                 \
    DEFINE_DOT(name##_4, type, masked, vectors, 4)
#define DEFINE_DOTS(name, type)                                                                    \
    DEFINE_ROWS(name##_block, type, false, 4)                                                      \
    DEFINE_ROWS(name##_masked_block, type, true, 4)                                                \
    DEFINE_ROWS(name##_masked_vector, type, true, 1)
#define ROWS_OF(name)                                                                              \
    { name##_1, name##_2, name##_3, name##_4 }
#define DOTS_OF(name)                                                                              \
    { ROWS_OF(name##_block), ROWS_OF(name##_masked_block), ROWS_OF(name##_masked_vector) }
DEFINE_DOTS(f16, SCALAR_F16)
DEFINE_DOTS(bf16, SCALAR_BF16)
DEFINE_DOTS(f32, SCALAR_F32)

/* K is 64 lanes, whole blocks. */
enum { BLOCK, MASKED_BLOCK, MASKED_VECTOR, SHAPES };

static dot_fn *const DOT[][SHAPES][ROWS_AT_ONCE] = {
    [SCALAR_F16] = DOTS_OF(f16),
    [SCALAR_BF16] = DOTS_OF(bf16),
    [SCALAR_F32] = DOTS_OF(f32),
};

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Copies a block as float32, [step][vector]. */
static void convert(enum scalar_type t, const uint8_t *at, size_t line, uint32_t steps,
                    uint32_t vectors, float *out) {
    for (uint32_t s = 0; s < steps; s++) {
        for (uint32_t v = 0; v < vectors; v++)
            _mm512_storeu_ps(out + 16 * v, load16(t, at, 16 * (size_t)v));
        at += line;
        out += 16 * vectors;
    }
}

/* out = sums, or out += sums. */
ALWAYS_INLINE void finish(const float *sums, uint32_t lanes, bool add, float *out) {
    __mmask16 mask = first_lanes(lanes);
    __m512 x = _mm512_maskz_loadu_ps(mask, sums);
    if (add)
        x = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), x);
    _mm512_mask_storeu_ps(out, mask, x);
}

/* factors: [row][reduction]. */
static void run_tile(const struct tile_layout *l, const void *tile, const float *factors,
                     size_t stride, uint32_t rows, bool masked, float *out, size_t out_stride) {
    const bool keys = l->kind == TILE_K;
    const uint32_t steps = l->reduction / 4;
    float scratch[STEPS_MAX * 16 * VECTORS_MAX], sums[ROWS_AT_ONCE][4 * VECTORS_MAX];
    for (uint32_t lane = 0, lanes; lane < l->lanes; lane += lanes) {
        enum scalar_type t = (enum scalar_type)l->format.scalar;
        const uint8_t *at = (const uint8_t *)tile + 4 * (size_t)lane * scalar_bytes(t);
        size_t line = 4 * (size_t)l->lanes * scalar_bytes(t);
        lanes = l->lanes - lane < 4 * VECTORS_MAX ? 4 : 4 * VECTORS_MAX;
        if (rows > DIRECT_ROWS && t != SCALAR_F32) {
            convert(t, at, line, steps, lanes / 4, scratch);
            at = (const uint8_t *)scratch;
            line = 4 * lanes * sizeof scratch[0];
            t = SCALAR_F32;
        }
        dot_fn *const *dot = DOT[t][lanes == 4 ? MASKED_VECTOR : masked ? MASKED_BLOCK : BLOCK];
        for (uint32_t row = 0, n; row < rows; row += n) {
            n = rows - row < ROWS_AT_ONCE ? rows - row : ROWS_AT_ONCE;
            dot[n - 1](at, line, steps, factors + row * stride, stride, sums);
            for (uint32_t i = 0; i < n; i++)
                finish(sums[i], lanes, !keys, out + (row + i) * out_stride + lane);
        }
    }
}

void avx512_score_exact(const struct tile_layout *l, const void *tile, const struct query_rows *q,
                        float *scores, size_t stride) {
    run_tile(l, tile, q->f32, q->dim, q->rows, false, scores, stride);
}

static bool any_zero(const float *p, size_t stride, uint32_t rows) {
    __mmask16 found = 0;
    for (uint32_t row = 0; row < rows; row++)
        for (size_t t = 0; t < TILE_TOKENS; t += 16)
            found |= _mm512_cmp_ps_mask(_mm512_loadu_ps(p + row * stride + t), _mm512_setzero_ps(),
                                        _CMP_EQ_OQ);
    return found != 0;
}

/* Whether the rows beside a row make it go through the masked kernel does not change its bits: a
 * finite element times 0 adds a zero to a chain either way, and a chain that is itself a zero ends
 * as a zero that out + 0 does not notice. */
void avx512_value_exact(const struct tile_layout *l, const void *tile, const float *p,
                        size_t p_stride, uint32_t rows, float *out, size_t out_stride) {
    run_tile(l, tile, p, p_stride, rows, any_zero(p, p_stride, rows), out, out_stride);
}
