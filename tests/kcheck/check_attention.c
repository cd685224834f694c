/* SPDX-License-Identifier: Apache-2.0 */
/* check_attention.c: query_pack, score, centre, softmax and value kernels.
 *
 * Bounds. u = 2^-24; gamma(n) = n u / (1 - n u) is the worst relative error of n roundings in a
 * row. Integer dots are exact and scales and codes are defined to the bit, so only these operations
 * round (G groups, dim dims; the last rounding of each is that of ref's own result):
 *
 *   score, affine   per group dot to float, x scale, x s: 3, the same for the sum and b; 2 G - 1
 *                   additions of these 2 G terms; 1              gamma(2 G + 3) sum|terms|
 *   score, exact    dim products and additions in any order; 1   gamma(dim + 1) sum|terms|
 *   centre          P pairs: 2 P products and additions in order, adding to the score, 1
 *                                                   gamma(2 P + 3) (sum|terms| + |score|)
 *   value, affine   dot to float, x scale: 2; p b over 64 tokens: 64; joining them, adding to out,
 *                   1                  gamma(5) |scale dot| + gamma(67) sum|p b| + gamma(2) |out|
 *   value, exact    64 products and additions, adding to out, 1  gamma(66) (sum|p v| + |out|)
 *
 * Meaning (K2). A query or weight is x = scale * (code + d) with |d| <= 1/2, plus 3 roundings of up
 * to ACT16_MAX codes (the factor, the product, the scale): ROUNDED. A score differs from q . K by
 * at most ROUNDED scale sum|K_i|, likewise a value.
 *
 * Underflow. A product of normal numbers may be subnormal and lose 2^-150, times a dot of up to
 * 2^30: TILE_UNDERFLOW per term. Vectors below ACT_TINY may count as zero.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kcheck.h"

/* Values of slots that may hold anything: those of tokens never written, or masked. */
static float stale_scalar(void) {
    static const float STALE[] = {NAN, INFINITY, -INFINITY, 6e4f};
    return STALE[random_below(4)];
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* A token by its parts: any code with any scale, or all codes at the top (what saturates a 16-bit
 * sum of two 8-bit products). */
static void put_parts(const struct tile_layout *l, void *tile, uint32_t token, bool top,
                      bool stale) {
    uint8_t codes[HEAD_DIM_MAX], mask = (uint8_t)((1u << l->format.bits) - 1);
    float s[HEAD_DIM_MAX / 32], b[HEAD_DIM_MAX / 32];
    for (uint32_t i = 0; i < l->head_dim; i++)
        codes[i] = top ? mask : (uint8_t)(random_bits() & mask);
    for (uint32_t g = 0; g < l->groups; g++) {
        s[g] = stale ? stale_scalar() : random_normal() * 0.01f;
        b[g] = stale ? stale_scalar() : random_normal();
    }
    tile_put_row(l, tile, token, codes, s, b);
}

/* A tile in read-only guarded memory. Where live[t] is 0 the token holds garbage. */
static const void *make_tile(const struct tile_layout *l, const uint8_t *live) {
    uint8_t *tile = guarded(l->bytes);
    bool exact = kv_format_exact(l->format), by_parts = !exact && random_below(3) == 0;
    bool top = random_below(3) == 0;
    enum fill_kind kind = (enum fill_kind)random_below(FILL_KINDS);
    static float rows[TILE_TOKENS * HEAD_DIM_MAX];
    for (uint32_t t = 0; t < TILE_TOKENS; t++) {
        float *x = rows + (size_t)t * l->head_dim;
        fill(x, l->head_dim, random_below(4) == 0 ? kind : FILL_NORMAL);
        for (uint32_t i = 0; !live[t] && i < l->head_dim; i++)
            x[i] = stale_scalar();
    }
    tile_encode(l, tile, rows);
    for (uint32_t t = 0; !exact && t < TILE_TOKENS; t++)
        if (by_parts || !live[t])
            put_parts(l, tile, t, top, !live[t]);
    freeze(tile);
    return tile;
}

/* Value (t, d) in double, for affine formats by its parts and in float32 for exact ones. */
static void decode_token(const struct tile_layout *l, const void *tile, uint32_t t, double *v) {
    float x[HEAD_DIM_MAX], s[HEAD_DIM_MAX / 32], b[HEAD_DIM_MAX / 32];
    uint8_t codes[HEAD_DIM_MAX];
    if (kv_format_exact(l->format)) {
        tile_decode_row(l, tile, t, x);
        for (uint32_t i = 0; i < l->head_dim; i++)
            v[i] = x[i];
        return;
    }
    tile_get_row(l, tile, t, codes, s, b);
    for (uint32_t i = 0; i < l->head_dim; i++)
        v[i] = (double)s[i / l->group] * codes[i] + (double)b[i / l->group];
}

/* ---- query_pack ------------------------------------------------------------------------------ */

static struct query_rows query_buffers(uint32_t rows, uint32_t dim) {
    struct query_rows q = {rows, dim, NULL, NULL, NULL, NULL};
    size_t n = (size_t)rows * dim;
    q.f32 = guarded(n * sizeof *q.f32);
    q.codes = guarded(n * sizeof *q.codes);
    q.sum32 = guarded((size_t)rows * (dim / 32) * sizeof *q.sum32);
    q.scale = guarded(rows * sizeof *q.scale);
    return q;
}

static struct query_rows query_plain(uint32_t rows, uint32_t dim) {
    struct query_rows q = {rows, dim, NULL, NULL, NULL, NULL};
    size_t n = (size_t)rows * dim;
    q.f32 = plain(n * sizeof *q.f32);
    q.codes = plain(n * sizeof *q.codes);
    q.sum32 = plain((size_t)rows * (dim / 32) * sizeof *q.sum32);
    q.scale = plain(rows * sizeof *q.scale);
    return q;
}

static int compare_codes(const void *a, const void *b) {
    return *(const int16_t *)a - *(const int16_t *)b;
}

static bool same_four(const int16_t *a, const int16_t *b) {
    int16_t x[4], y[4];
    memcpy(x, a, sizeof x);
    memcpy(y, b, sizeof y);
    qsort(x, 4, sizeof *x, compare_codes);
    qsort(y, 4, sizeof *y, compare_codes);
    return memcmp(x, y, sizeof x) == 0;
}

/* The codes of `want` in each run of four dims of `got`: s16 in any order, or two planes of s8,
 * four low bytes, then four high ones. */
static bool same_runs(const int16_t *got, const int16_t *want, uint32_t dim) {
    for (uint32_t i = 0; i < dim; i += 4) {
        int8_t planes[8];
        int16_t joined[4];
        memcpy(planes, got + i, sizeof planes);
        for (int j = 0; j < 4; j++)
            joined[j] = (int16_t)(256 * planes[4 + j] + planes[j]);
        if (!same_four(got + i, want + i) && !same_four(joined, want + i))
            return false;
    }
    return true;
}

/* Everything is defined to the bit, but for the order of codes and for rows below ACT_TINY. */
static void compare_queries(const struct query_rows *got, const struct query_rows *want) {
    uint32_t dim = got->dim, sums = dim / 32;
    for (uint32_t row = 0; row < got->rows; row++) {
        size_t at = (size_t)row * dim;
        check_that(memcmp(got->f32 + at, want->f32 + at, dim * sizeof(float)) == 0, "f32 of row %u",
                   row);
        bool tiny = true;
        for (uint32_t i = 0; i < dim; i++)
            tiny = tiny && fabsf(want->f32[at + i]) < ACT_TINY;
        if (tiny) {
            check_that(got->scale[row] >= 0 && got->scale[row] < ACT_TINY, "scale of tiny row %u",
                       row);
            continue;
        }
        check_that(got->scale[row] == want->scale[row], "scale of row %u is %.9g, not %.9g", row,
                   (double)got->scale[row], (double)want->scale[row]);
        check_that(same_runs(got->codes + at, want->codes + at, dim), "codes of row %u", row);
        check_that(memcmp(got->sum32 + (size_t)row * sums, want->sum32 + (size_t)row * sums,
                          sums * sizeof(int32_t)) == 0,
                   "sum32 of row %u", row);
        for (uint32_t i = 0; i < dim; i++) /* ref itself: natural order */
            check_meaning("query", row, i, (double)want->scale[row] * want->codes[at + i],
                          want->f32[at + i], ROUNDED * want->scale[row]);
    }
}

static void check_query_pack(const struct tier *t) {
    static const uint32_t DIMS[] = {4,  8,  12,  20,  28,  32,  36,  64,
                                    80, 96, 100, 128, 192, 252, 256, 512};
    if (!family_begin(t, "query_pack", ""))
        return;
    for (size_t d = 0; d < sizeof DIMS / sizeof *DIMS; d++)
        for (uint32_t i = 0; i < ROW_COUNTS; i++) {
            uint32_t rows = row_count(i), dim = DIMS[d];
            size_t stride = dim + (random_bits() & 1) * 4 * random_below(9);
            float scale = random_bits() & 1 ? 1 / sqrtf((float)dim) : random_normal();
            case_begin("%u rows of %u", rows, dim);
            size_t n = (rows - 1) * stride + dim;
            float *q = guarded(n * sizeof *q);
            for (uint32_t row = 0; row < rows; row++)
                fill_any(q + row * stride, dim);
            freeze(q);
            struct query_rows got = query_buffers(rows, dim), want = query_plain(rows, dim);
            call_query_pack(t->k.query_pack, q, stride, scale, &got);
            ref.query_pack(q, stride, scale, &want);
            compare_queries(&got, &want);
            case_end();
        }
    family_end();
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* One row and token: the terms' magnitudes and the meaning. q in ref's (natural) order. */
struct score_sum {
    double terms, floor, meaning, rounding;
};

static struct score_sum score_sum(const struct tile_layout *l, const void *tile,
                                  const struct query_rows *q, uint32_t row, uint32_t token,
                                  const double *k) {
    struct score_sum r = {0, 0, 0, 0};
    const float *x = q->f32 + (size_t)row * q->dim;
    double key_sum = 0, max = 0;
    for (uint32_t i = 0; i < q->dim; i++) {
        r.meaning += x[i] * k[i];
        r.terms += fabs(x[i] * k[i]);
        key_sum += fabs(k[i]);
        max = fmax(max, fabsf(x[i]));
    }
    r.floor = max < (double)ACT_TINY ? (double)ACT_TINY * key_sum : 0;
    r.floor += TILE_UNDERFLOW * (q->dim / 32 + 1);
    if (kv_format_exact(l->format))
        return r;
    uint8_t codes[HEAD_DIM_MAX];
    float s[HEAD_DIM_MAX / 32], b[HEAD_DIM_MAX / 32];
    tile_get_row(l, tile, token, codes, s, b);
    r.terms = 0;
    for (uint32_t g = 0; g < l->groups; g++) {
        double dot = 0, sum = 0;
        for (uint32_t i = g * l->group; i < (g + 1) * l->group; i++) {
            dot += q->codes[(size_t)row * q->dim + i] * codes[i];
            sum += q->codes[(size_t)row * q->dim + i];
        }
        r.terms +=
            fabs((double)s[g] * q->scale[row] * dot) + fabs((double)b[g] * q->scale[row] * sum);
    }
    r.rounding = ROUNDED * q->scale[row] * key_sum;
    return r;
}

struct score_case {
    const struct tier *t;
    const struct tile_layout *l;
    score_tile_fn *fn;
    const void *tile;
    uint8_t live[TILE_TOKENS];
    const float *q;
    size_t q_stride;
    uint32_t rows;
    float scale;
};

static void compare_scores(const struct score_case *c, const float *got, size_t stride) {
    const struct tile_layout *l = c->l;
    struct query_rows q = query_plain(c->rows, l->head_dim);
    float *want = plain((size_t)c->rows * TILE_TOKENS * sizeof *want);
    ref.query_pack(c->q, c->q_stride, c->scale, &q);
    (kv_format_exact(l->format) ? ref.score_exact : ref.score_affine)(l, c->tile, &q, want,
                                                                      TILE_TOKENS);
    double roundings = kv_format_exact(l->format) ? l->head_dim + 1 : 2 * l->groups + 3;
    for (uint32_t t = 0; t < TILE_TOKENS; t++) {
        double k[HEAD_DIM_MAX];
        if (!c->live[t])
            continue;
        decode_token(l, c->tile, t, k);
        for (uint32_t row = 0; row < c->rows; row++) {
            struct score_sum s = score_sum(l, c->tile, &q, row, t, k);
            double bound = gamma_of(roundings) * s.terms + s.floor, g = got[row * stride + t];
            check_near("score", row, t, g, want[row * TILE_TOKENS + t], bound);
            check_meaning("meaning of score", row, t, g, s.meaning, bound + s.rounding);
        }
    }
}

/* Rows have the same bits alone and in another order. */
static void score_invariance(const struct score_case *c, const float *got, size_t stride) {
    const struct tile_layout *l = c->l;
    uint32_t order[64], dim = l->head_dim;
    random_order(order, c->rows);
    float *turned = plain((size_t)c->rows * dim * sizeof *turned);
    for (uint32_t i = 0; i < c->rows; i++)
        memcpy(turned + (size_t)i * dim, c->q + order[i] * c->q_stride, dim * sizeof *turned);
    for (uint32_t start = 0, n; start < c->rows; start += n) {
        /* parts of any size: the first is a row alone */
        n = start == 0 ? 1 : 1 + random_below(c->rows - start);
        struct query_rows q = query_plain(n, dim);
        float *part = plain((size_t)n * TILE_TOKENS * sizeof *part);
        call_query_pack(c->t->k.query_pack, turned + (size_t)start * dim, dim, c->scale, &q);
        call_score(c->fn, l, c->tile, &q, part, TILE_TOKENS);
        for (uint32_t i = 0; i < n; i++) {
            const float *a = got + order[start + i] * stride, *b = part + (size_t)i * TILE_TOKENS;
            for (uint32_t t = 0; t < TILE_TOKENS; t++)
                if (c->live[t])
                    check_that(memcmp(a + t, b + t, sizeof *a) == 0,
                               "row %u, token %u: other bits among %u rows than among %u",
                               order[start + i], t, n, c->rows);
        }
    }
}

/* Those of tokens that are live. */
static void score_same_bits(const struct score_case *c, const struct query_rows *q,
                            const float *got, size_t stride) {
    if (!c->t->same)
        return;
    float *scores = plain((size_t)c->rows * TILE_TOKENS * sizeof *scores);
    call_score(kv_format_exact(c->l->format) ? c->t->same->score_exact : c->t->same->score_affine,
               c->l, c->tile, q, scores, TILE_TOKENS);
    for (uint32_t row = 0; row < c->rows; row++)
        for (uint32_t t = 0; t < TILE_TOKENS; t++)
            if (c->live[t])
                check_that(memcmp(got + row * stride + t, scores + (size_t)row * TILE_TOKENS + t,
                                  sizeof *got) == 0,
                           "row %u, token %u: other bits than %s", row, t,
                           cpu_tier_of_bits(c->t->name));
}

static void check_score_case(const struct tier *t, const struct tile_layout *l, uint32_t rows) {
    struct score_case c = {.t = t, .l = l, .rows = rows};
    uint32_t dim = l->head_dim, live_n = random_bits() & 1 ? TILE_TOKENS : random_below(65);
    case_begin("head_dim %u, group %u, %u rows, %u live tokens", dim, l->group, rows, live_n);
    c.fn = kv_format_exact(l->format) ? t->k.score_exact : t->k.score_affine;
    memset(c.live, 1, live_n);
    c.tile = make_tile(l, c.live);
    c.q_stride = dim + (random_bits() & 1) * 4;
    c.scale = random_bits() & 1 ? 1 / sqrtf((float)dim) : 1;
    float *q = guarded(((rows - 1) * c.q_stride + dim) * sizeof *q);
    for (uint32_t row = 0; row < rows; row++)
        fill_any(q + row * c.q_stride, dim);
    freeze(q);
    c.q = q;
    size_t stride = TILE_TOKENS + (random_bits() & 1) * random_below(500);
    struct query_rows packed = query_buffers(rows, dim);
    float *scores = guarded(((rows - 1) * stride + TILE_TOKENS) * sizeof *scores);
    call_query_pack(t->k.query_pack, q, c.q_stride, c.scale, &packed);
    freeze(packed.f32);
    freeze(packed.codes);
    freeze(packed.sum32);
    freeze(packed.scale);
    call_score(c.fn, l, c.tile, &packed, scores, stride);
    check_that(gaps_untouched(scores, rows, TILE_TOKENS, stride), "wrote between rows");
    compare_scores(&c, scores, stride);
    score_same_bits(&c, &packed, scores, stride);
    score_invariance(&c, scores, stride);
    case_end();
}

static void check_score_format(const struct tier *t, const struct tile_layout *l) {
    for (uint32_t i = 0; i < ROW_COUNTS; i++)
        check_score_case(t, l, row_count(i));
}

/* ---- centres --------------------------------------------------------------------------------- */

struct centre_case {
    const struct tier *t;
    const float *waves;  /* [table][2][64] */
    uint32_t *index;     /* [pairs] */
    const float *ab;     /* [rows][pairs][2] */
    const float *before; /* [rows][64] the scores that are added to */
    uint32_t rows, pairs;
};

static void compare_centres(const struct centre_case *c, const float *got, size_t stride) {
    float *want = plain((size_t)c->rows * TILE_TOKENS * sizeof *want);
    memcpy(want, c->before, (size_t)c->rows * TILE_TOKENS * sizeof *want);
    ref.centre_tile(c->waves, c->index, c->pairs, c->ab, c->rows, want, TILE_TOKENS);
    for (uint32_t row = 0; row < c->rows; row++)
        for (uint32_t t = 0; t < TILE_TOKENS; t++) {
            double meaning = c->before[row * TILE_TOKENS + t], terms = fabs(meaning);
            for (uint32_t j = 0; j < c->pairs; j++) {
                const float *wave = c->waves + (size_t)c->index[j] * 2 * TILE_TOKENS + t;
                const float *ab = c->ab + ((size_t)row * c->pairs + j) * 2;
                double a = (double)ab[0] * wave[0], b = (double)ab[1] * wave[TILE_TOKENS];
                meaning += a + b;
                terms += fabs(a) + fabs(b);
            }
            double bound = gamma_of(2 * c->pairs + 3) * terms + TILE_UNDERFLOW;
            check_near("centre", row, t, got[row * stride + t], want[row * TILE_TOKENS + t], bound);
            check_meaning("meaning of centre", row, t, got[row * stride + t], meaning, bound);
        }
}

static void centre_invariance(const struct centre_case *c, const float *got, size_t stride) {
    uint32_t order[64];
    size_t width = 2 * (size_t)c->pairs;
    random_order(order, c->rows);
    float *ab = plain((size_t)c->rows * width * sizeof *ab + 1);
    float *part = plain((size_t)c->rows * TILE_TOKENS * sizeof *part);
    for (uint32_t i = 0; i < c->rows; i++) {
        memcpy(ab + i * width, c->ab + order[i] * width, width * sizeof *ab);
        memcpy(part + (size_t)i * TILE_TOKENS, c->before + (size_t)order[i] * TILE_TOKENS,
               TILE_TOKENS * sizeof *part);
    }
    for (uint32_t start = 0, n; start < c->rows; start += n) {
        n = start == 0 ? 1 : 1 + random_below(c->rows - start);
        call_centre(c->t->k.centre_tile, c->waves, c->index, c->pairs, ab + start * width, n,
                    part + (size_t)start * TILE_TOKENS, TILE_TOKENS);
    }
    for (uint32_t i = 0; i < c->rows; i++)
        check_that(memcmp(part + (size_t)i * TILE_TOKENS, got + order[i] * stride,
                          TILE_TOKENS * sizeof *part) == 0,
                   "row %u: other bits alone or in other company", order[i]);
}

static void check_centre_case(const struct tier *t, uint32_t rows, uint32_t pairs) {
    struct centre_case c = {.t = t, .rows = rows, .pairs = pairs};
    uint32_t table = pairs + random_below(4) + 1;
    case_begin("%u pairs, %u rows", pairs, rows);
    float *waves = guarded((size_t)table * 2 * TILE_TOKENS * sizeof *waves);
    c.index = guarded(pairs * sizeof *c.index);
    float *ab = guarded((size_t)rows * pairs * 2 * sizeof *ab);
    size_t stride = TILE_TOKENS + (random_bits() & 1) * random_below(500);
    float *scores = guarded(((rows - 1) * stride + TILE_TOKENS) * sizeof *scores);
    float *before = plain((size_t)rows * TILE_TOKENS * sizeof *before);
    fill(waves, (size_t)table * 2 * TILE_TOKENS, FILL_UNIFORM);
    for (uint32_t i = 0; i < 2 * table; i++) /* even cosines, odd sines */
        for (uint32_t t0 = 0; t0 < TILE_TOKENS / 2; t0++) {
            float *wave = waves + (size_t)i * TILE_TOKENS;
            wave[t0] = i % 2 ? -wave[TILE_TOKENS - 1 - t0] : wave[TILE_TOKENS - 1 - t0];
        }
    for (uint32_t j = 0; j < pairs; j++)
        c.index[j] = table - pairs + j;
    for (uint32_t row = 0; row < rows; row++) {
        fill_any(ab + (size_t)row * pairs * 2, (size_t)pairs * 2);
        fill(before + (size_t)row * TILE_TOKENS, TILE_TOKENS, FILL_NORMAL);
        memcpy(scores + row * stride, before + (size_t)row * TILE_TOKENS,
               TILE_TOKENS * sizeof *before);
    }
    freeze(waves);
    freeze(c.index);
    freeze(ab);
    c.waves = waves;
    c.ab = ab;
    c.before = before;
    call_centre(t->k.centre_tile, waves, c.index, pairs, ab, rows, scores, stride);
    check_that(gaps_untouched(scores, rows, TILE_TOKENS, stride), "wrote between rows");
    compare_centres(&c, scores, stride);
    centre_invariance(&c, scores, stride);
    case_end();
}

static void check_centre(const struct tier *t) {
    static const uint32_t PAIRS[] = {1, 2, 3, 7, 8, 16, 32, HEAD_DIM_MAX / 2};
    if (!family_begin(t, "centre", ""))
        return;
    for (size_t p = 0; p < sizeof PAIRS / sizeof *PAIRS; p++)
        for (uint32_t i = 0; i < ROW_COUNTS; i++)
            check_centre_case(t, row_count(i), PAIRS[p]);
    family_end();
}

/* ---- softmax --------------------------------------------------------------------------------- */

static void fill_scores(float *p, uint32_t n) {
    uint32_t kind = random_below(8);
    fill_any(p, n);
    for (uint32_t i = 0; i < n; i++) {
        if (kind == 0)
            p[i] *= 1e30f;
        if (kind == 1)
            p[i] = -200 * (float)i / (float)n; /* every exponent down to nothing */
        if ((kind == 2 && random_bits() & 1) || (kind == 3 && i != n / 2) || kind == 4)
            p[i] = -INFINITY;
    }
    uint32_t tail = kind == 5 ? random_below(n + 1) : 0;
    for (uint32_t i = n - tail; i < n; i++)
        p[i] = -INFINITY;
}

/* exp is held to 2 units in the last place (util.h promises that of m_expf), below 2^-126 to
 * 2^-126: tiers may flush what is subnormal. The argument is one float32 subtraction, the same for
 * all. The sum is that of the weights returned: n - 1 additions in any order. */
static void compare_softmax(const float *x, const float *p, uint32_t n, float max, float sum) {
    float want_max = -INFINITY;
    double own_sum = 0;
    for (uint32_t i = 0; i < n; i++)
        want_max = x[i] > want_max ? x[i] : want_max;
    check_that(max == want_max, "maximum is %.9g, not %.9g", (double)max, (double)want_max);
    for (uint32_t i = 0; i < n; i++) {
        if (x[i] == -INFINITY) {
            check_that(p[i] == 0, "masked p[%u] is %.9g", i, (double)p[i]);
            continue;
        }
        float shifted = x[i] - want_max;
        double e = exp((double)shifted);
        check_near("p", 0, i, p[i], e, 2 * 0x1p-23 * e + 0x1p-126);
        own_sum += p[i];
    }
    check_near("sum", 0, 0, sum, own_sum, gamma_of(n) * own_sum);
}

static void check_softmax(const struct tier *t) {
    if (!family_begin(t, "softmax_run", ""))
        return;
    for (int i = 0; i < 400; i++) {
        uint32_t n = 64 * (1 + (uint32_t)i % (SPLIT_TOKENS / 64)), tail = 64 * random_below(8);
        case_begin("%u scores", n);
        float *p = guarded(n * sizeof *p), *x = plain(n * sizeof *x), max = NAN, sum = NAN;
        float *q = guarded((n + tail) * sizeof *q), q_max = NAN, q_sum = NAN;
        fill_scores(x, n);
        memcpy(p, x, n * sizeof *p);
        memcpy(q, x, n * sizeof *q);
        call_softmax(t->k.softmax_run, p, n, &max, &sum);
        compare_softmax(x, p, n, max, sum);
        /* masked tokens at the end change no bit: how far a run is filled depends on the step */
        for (uint32_t j = n; j < n + tail; j++)
            q[j] = -INFINITY;
        call_softmax(t->k.softmax_run, q, n + tail, &q_max, &q_sum);
        check_that(memcmp(p, q, n * sizeof *p) == 0 && memcmp(&sum, &q_sum, sizeof sum) == 0 &&
                       memcmp(&max, &q_max, sizeof max) == 0,
                   "%u masked tokens behind %u change bits", tail, n);
        case_end();
    }
    family_end();
}

/* ---- values ---------------------------------------------------------------------------------- */

static void fill_weights(float *p, const uint8_t *live) {
    uint32_t kind = random_below(9), sink = random_below(TILE_TOKENS);
    float own_mask = random_bits() & 1 ? 0 : 0.5f;
    for (uint32_t t = 0; t < TILE_TOKENS; t++) {
        float u = (float)(random_below(1u << 20) + 1) * 0x1p-20f;
        p[t] = kind == 0   ? 1
               : kind == 1 ? (t == sink ? 1 : u * 1e-6f) /* an attention sink */
               : kind == 2 ? (t == sink ? u : 0)
               : kind == 3 ? 0
               : kind == 4 ? u * ldexpf(1, -(int)random_below(149))
               : kind == 5 ? u * 0x1p-120f
                           : expf(-20 * u);
        if (!live[t] || u < own_mask)
            p[t] = 0;
    }
}

struct value_case {
    const struct tier *t;
    const struct tile_layout *l;
    value_tile_fn *fn;
    const void *tile;
    uint8_t live[TILE_TOKENS];
    const float *p, *before; /* [rows][p_stride], out before the call [rows][head_dim] */
    size_t p_stride;
    uint32_t rows;
};

/* One row and group of an affine tile: the weights as kernels.h defines them, in float32. */
struct weights {
    float scale, max;
    int32_t codes[TILE_TOKENS];
    double bias, bias_terms;
};

static struct weights weights_of(const float *p, const float (*s)[TILE_TOKENS],
                                 const float (*b)[TILE_TOKENS], uint32_t group) {
    struct weights w = {0};
    float x[TILE_TOKENS] = {0};
    for (uint32_t t = 0; t < TILE_TOKENS; t++) {
        if (p[t] == 0)
            continue;
        x[t] = p[t] * s[group][t];
        w.max = fmaxf(w.max, fabsf(x[t]));
        w.bias += (double)p[t] * b[group][t];
        w.bias_terms += fabs((double)p[t] * b[group][t]);
    }
    if (w.max < ACT_TINY)
        return w;
    float factor = ACT16_MAX / w.max;
    for (uint32_t t = 0; t < TILE_TOKENS; t++)
        w.codes[t] = (int32_t)rintf(x[t] * factor);
    w.scale = w.max / ACT16_MAX;
    return w;
}

static void compare_affine_row(const struct value_case *c, uint32_t row, const float *got,
                               const float *want, const uint8_t (*codes)[HEAD_DIM_MAX],
                               const float (*s)[TILE_TOKENS], const float (*b)[TILE_TOKENS]) {
    const float *p = c->p + row * c->p_stride, *before = c->before + (size_t)row * c->l->head_dim;
    for (uint32_t g = 0; g < c->l->groups; g++) {
        struct weights w = weights_of(p, s, b, g);
        for (uint32_t i = g * c->l->group; i < (g + 1) * c->l->group; i++) {
            double dot = 0, meaning = before[i] + w.bias, visible = 0, weighted = 0;
            for (uint32_t t = 0; t < TILE_TOKENS; t++) {
                if (p[t] == 0)
                    continue;
                dot += w.codes[t] * codes[t][i];
                meaning += (double)p[t] * s[g][t] * codes[t][i];
                weighted += fabs((double)p[t] * s[g][t] * codes[t][i]);
                visible += codes[t][i];
            }
            double floor = TILE_UNDERFLOW + (w.max < ACT_TINY ? (double)ACT_TINY * visible : 0);
            double bound = gamma_of(5) * fabs(w.scale * dot) + gamma_of(67) * w.bias_terms +
                           gamma_of(2) * fabsf(before[i]) + floor;
            check_near("value", row, i, got[i], want[i], bound);
            check_meaning("meaning of value", row, i, got[i], meaning,
                          bound + ROUNDED * w.scale * visible + gamma_of(1) * weighted);
        }
    }
}

static void compare_exact_row(const struct value_case *c, uint32_t row, const float *got,
                              const float *want, const double (*v)[HEAD_DIM_MAX]) {
    const float *p = c->p + row * c->p_stride, *before = c->before + (size_t)row * c->l->head_dim;
    for (uint32_t i = 0; i < c->l->head_dim; i++) {
        double meaning = before[i], terms = fabsf(before[i]);
        for (uint32_t t = 0; t < TILE_TOKENS; t++) {
            if (p[t] == 0)
                continue;
            meaning += p[t] * v[t][i];
            terms += fabs(p[t] * v[t][i]);
        }
        double bound = gamma_of(66) * terms + TILE_UNDERFLOW;
        check_near("value", row, i, got[i], want[i], bound);
        check_meaning("meaning of value", row, i, got[i], meaning, bound);
    }
}

static void compare_values(const struct value_case *c, const float *got, size_t stride) {
    const struct tile_layout *l = c->l;
    size_t n = (size_t)c->rows * l->head_dim;
    float *want = plain(n * sizeof *want);
    memcpy(want, c->before, n * sizeof *want);
    bool exact = kv_format_exact(l->format);
    (exact ? ref.value_exact : ref.value_affine)(l, c->tile, c->p, c->p_stride, c->rows, want,
                                                 l->head_dim);
    static uint8_t codes[TILE_TOKENS][HEAD_DIM_MAX];
    static float s[HEAD_DIM_MAX / 32][TILE_TOKENS], b[HEAD_DIM_MAX / 32][TILE_TOKENS];
    static double v[TILE_TOKENS][HEAD_DIM_MAX];
    for (uint32_t t = 0; t < TILE_TOKENS; t++) {
        float st[HEAD_DIM_MAX / 32], bt[HEAD_DIM_MAX / 32];
        if (exact) {
            decode_token(l, c->tile, t, v[t]);
            continue;
        }
        tile_get_row(l, c->tile, t, codes[t], st, bt);
        for (uint32_t g = 0; g < l->groups; g++) {
            s[g][t] = st[g];
            b[g][t] = bt[g];
        }
    }
    for (uint32_t row = 0; row < c->rows; row++) {
        const float *have = got + row * stride, *should = want + (size_t)row * l->head_dim;
        if (exact)
            compare_exact_row(c, row, have, should, (const double(*)[HEAD_DIM_MAX])v);
        else
            compare_affine_row(c, row, have, should, (const uint8_t(*)[HEAD_DIM_MAX])codes,
                               (const float(*)[TILE_TOKENS])s, (const float(*)[TILE_TOKENS])b);
    }
}

static void value_invariance(const struct value_case *c, const float *got, size_t stride) {
    uint32_t order[64], dim = c->l->head_dim;
    random_order(order, c->rows);
    float *p = plain((size_t)c->rows * TILE_TOKENS * sizeof *p);
    float *out = plain((size_t)c->rows * dim * sizeof *out);
    for (uint32_t i = 0; i < c->rows; i++) {
        memcpy(p + (size_t)i * TILE_TOKENS, c->p + order[i] * c->p_stride, TILE_TOKENS * sizeof *p);
        memcpy(out + (size_t)i * dim, c->before + (size_t)order[i] * dim, dim * sizeof *out);
    }
    for (uint32_t start = 0, n; start < c->rows; start += n) {
        n = start == 0 ? 1 : 1 + random_below(c->rows - start);
        call_value(c->fn, c->l, c->tile, p + (size_t)start * TILE_TOKENS, TILE_TOKENS, n,
                   out + (size_t)start * dim, dim);
        for (uint32_t i = start; i < start + n; i++)
            check_that(memcmp(out + (size_t)i * dim, got + order[i] * stride, dim * sizeof *out) ==
                           0,
                       "row %u: other bits among %u rows than among %u", order[i], n, c->rows);
    }
}

static void value_same_bits(const struct value_case *c, const float *got, size_t stride) {
    const size_t dim = c->l->head_dim;
    if (!c->t->same)
        return;
    float *out = plain(c->rows * dim * sizeof *out);
    memcpy(out, c->before, c->rows * dim * sizeof *out);
    call_value(kv_format_exact(c->l->format) ? c->t->same->value_exact : c->t->same->value_affine,
               c->l, c->tile, c->p, c->p_stride, c->rows, out, dim);
    for (size_t row = 0; row < c->rows; row++)
        check_that(memcmp(got + row * stride, out + row * dim, dim * sizeof *out) == 0,
                   "row %zu: other bits than %s", row, cpu_tier_of_bits(c->t->name));
}

static void check_value_case(const struct tier *t, const struct tile_layout *l, uint32_t rows) {
    struct value_case c = {.t = t, .l = l, .rows = rows};
    uint32_t dim = l->head_dim;
    case_begin("head_dim %u, group %u, %u rows", dim, l->group, rows);
    c.fn = kv_format_exact(l->format) ? t->k.value_exact : t->k.value_affine;
    bool all = random_bits() & 1;
    for (uint32_t i = 0; i < TILE_TOKENS; i++)
        c.live[i] = all || random_bits() & 1;
    c.tile = make_tile(l, c.live);
    c.p_stride = TILE_TOKENS + (random_bits() & 1) * random_below(500);
    size_t stride = dim + (random_bits() & 1) * random_below(200);
    float *p = guarded(((rows - 1) * c.p_stride + TILE_TOKENS) * sizeof *p);
    float *out = guarded(((rows - 1) * stride + dim) * sizeof *out);
    float *before = plain((size_t)rows * dim * sizeof *before);
    for (uint32_t row = 0; row < rows; row++) {
        fill_weights(p + row * c.p_stride, c.live);
        fill(before + (size_t)row * dim, dim, random_bits() & 1 ? FILL_ZERO : FILL_NORMAL);
        memcpy(out + row * stride, before + (size_t)row * dim, dim * sizeof *out);
    }
    freeze(p);
    c.p = p;
    c.before = before;
    call_value(c.fn, l, c.tile, p, c.p_stride, rows, out, stride);
    check_that(gaps_untouched(out, rows, dim, stride), "wrote between rows");
    compare_values(&c, out, stride);
    value_same_bits(&c, out, stride);
    value_invariance(&c, out, stride);
    case_end();
}

static void check_value_format(const struct tier *t, const struct tile_layout *l) {
    for (uint32_t i = 0; i < ROW_COUNTS; i++)
        check_value_case(t, l, row_count(i));
}

/* Some numbers of rows for each head size, so that all are met. */
static void check_value_some(const struct tier *t, const struct tile_layout *l) {
    for (uint32_t i = 0; i < 6; i++)
        check_value_case(t, l, row_count(random_below(ROW_COUNTS)));
}

/* ---- what is not finite ---------------------------------------------------------------------- */

/* A NaN or Inf that a row really sees must reach its result: a plausible number would hide a broken
 * model. Other rows and groups stay clean. */
static void check_not_finite(const struct tier *t, const struct tile_layout *l) {
    uint32_t dim = l->head_dim, bad = random_below(dim);
    bool exact = kv_format_exact(l->format);
    uint8_t live[TILE_TOKENS];
    float value = random_bits() & 1 ? NAN : INFINITY;
    memset(live, 1, sizeof live);
    case_begin("head_dim %u, group %u, %g at %u", dim, l->group, (double)value, bad);
    if (l->kind == TILE_K) {
        const void *tile = make_tile(l, live);
        struct query_rows packed = query_buffers(2, dim);
        float *q = plain(2 * dim * sizeof *q), scores[2 * TILE_TOKENS];
        fill(q, 2 * dim, FILL_NORMAL);
        q[bad] = value;
        call_query_pack(t->k.query_pack, q, dim, 1, &packed);
        call_score(exact ? t->k.score_exact : t->k.score_affine, l, tile, &packed, scores,
                   TILE_TOKENS);
        for (uint32_t i = 0; i < TILE_TOKENS; i++) {
            check_that(!isfinite(scores[i]), "score %u is %g", i, (double)scores[i]);
            check_that(isfinite(scores[TILE_TOKENS + i]), "the other row, score %u", i);
        }
    } else {
        uint8_t *tile = plain(l->bytes);
        float x[HEAD_DIM_MAX], p[2 * TILE_TOKENS] = {0}, out[2 * HEAD_DIM_MAX] = {0};
        uint32_t seen = random_below(TILE_TOKENS);
        memcpy(tile, make_tile(l, live), l->bytes);
        fill(x, dim, FILL_NORMAL);
        x[bad] = value;
        tile_encode_row(l, tile, seen, x);
        for (uint32_t i = 0; i < 2 * TILE_TOKENS; i++)
            p[i] = i == TILE_TOKENS + seen ? 0 : 0.25f;
        call_value(exact ? t->k.value_exact : t->k.value_affine, l, tile, p, TILE_TOKENS, 2, out,
                   dim);
        /* the affine encoder drops a single NaN; an Inf spoils its whole group */
        check_that(!isfinite(out[bad]) || (!exact && value != value), "value %u is %g", bad,
                   (double)out[bad]);
        for (uint32_t i = 0; i < dim; i++)
            check_that(isfinite(out[dim + i]), "the row that does not see it, value %u", i);
    }
    case_end();
}

void check_attention(const struct tier *t) {
    check_query_pack(t);
    check_centre(t);
    check_softmax(t);
    for_formats(t, "score", TILE_K, false, check_score_format);
    for_formats(t, "score", TILE_K, true, check_score_format);
    for_formats(t, "value", TILE_V, false, check_value_format);
    for_formats(t, "value", TILE_V, true, check_value_format);
    for_tile_formats(t, "value", TILE_V, SCALAR_F16, check_value_some);
    for_formats(t, "score, NaN", TILE_K, false, check_not_finite);
    for_formats(t, "score, NaN", TILE_K, true, check_not_finite);
    for_formats(t, "value, NaN", TILE_V, false, check_not_finite);
    for_formats(t, "value, NaN", TILE_V, true, check_not_finite);
}
