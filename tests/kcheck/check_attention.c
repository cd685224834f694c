/* SPDX-License-Identifier: Apache-2.0 */
/* check_attention.c: query_pack, score and value kernels.
 *
 * Bounds. u = 2^-24; gamma(n) = n u / (1 - n u) is the worst relative error of n roundings in a
 * row. Integer dots are exact and scales and codes are defined to the bit, so only these operations
 * round (G groups, dim dims; the last rounding of each is that of ref's own result):
 *
 *   score, affine   per group dot to float, x scale, x s: 3, the same for the sum and b; 2 G - 1
 *                   additions of these 2 G terms; 1              gamma(2 G + 3) sum|terms|
 *   score, exact    dim products and additions in any order; 1   gamma(dim + 1) sum|terms|
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

/* One token: its values, and its parts if its format is affine. */
struct key {
    double values[HEAD_DIM_MAX], magnitude;
    uint8_t codes[HEAD_DIM_MAX];
    float s[HEAD_DIM_MAX / 32], b[HEAD_DIM_MAX / 32];
};

static void read_key(const struct tile_layout *l, const void *tile, uint32_t token, struct key *k) {
    decode_token(l, tile, token, k->values);
    if (!kv_format_exact(l->format))
        tile_get_row(l, tile, token, k->codes, k->s, k->b);
    k->magnitude = 0;
    for (uint32_t i = 0; i < l->head_dim; i++)
        k->magnitude += fabs(k->values[i]);
}

/* One row of queries: its largest magnitude, and the sums of its codes in each group. */
struct query_sums {
    double max, codes[HEAD_DIM_MAX / 32];
};

static struct query_sums query_sums(const struct tile_layout *l, const struct query_rows *q,
                                    uint32_t row) {
    struct query_sums r = {0};
    const size_t at = (size_t)row * q->dim;
    for (uint32_t i = 0; i < q->dim; i++) {
        float x = fabsf(q->f32[at + i]);
        r.max = (double)x > r.max ? (double)x : r.max;
        if (!kv_format_exact(l->format))
            r.codes[i / l->group] += q->codes[at + i];
    }
    return r;
}

/* One row and token: the terms' magnitudes and the meaning. q in ref's (natural) order. */
struct score_sum {
    double terms, floor, meaning, rounding;
};

/* Four sums side by side: one would wait for each addition. */
static double meaning_of(const float *x, const double *k, uint32_t dim) {
    double sums[4] = {0};
    for (uint32_t i = 0; i < dim; i += 4)
        for (uint32_t j = 0; j < 4; j++)
            sums[j] += x[i + j] * k[i + j];
    return sums[0] + sums[1] + (sums[2] + sums[3]);
}

static struct score_sum score_sum(const struct tile_layout *l, const struct query_rows *q,
                                  const struct query_sums *sums, uint32_t row,
                                  const struct key *k) {
    const size_t at = (size_t)row * q->dim;
    const float *x = q->f32 + at;
    struct score_sum r = {0, 0, meaning_of(x, k->values, q->dim), 0};
    r.floor = sums->max < (double)ACT_TINY ? (double)ACT_TINY * k->magnitude : 0;
    r.floor += TILE_UNDERFLOW * (q->dim / 32 + 1);
    if (kv_format_exact(l->format)) {
        for (uint32_t i = 0; i < q->dim; i++)
            r.terms += fabs(x[i] * k->values[i]);
        return r;
    }
    for (uint32_t g = 0; g < l->groups; g++) {
        const uint32_t first = g * l->group;
        const int16_t *codes = q->codes + at + first;
        int32_t dot = 0; /* below 2^31: 128 times 2^15 times 2^8 */
        for (uint32_t i = 0; i < l->group; i++)
            dot += codes[i] * k->codes[first + i];
        r.terms += fabs((double)k->s[g] * q->scale[row] * dot) +
                   fabs((double)k->b[g] * q->scale[row] * sums->codes[g]);
    }
    r.rounding = ROUNDED * q->scale[row] * k->magnitude;
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
    static struct query_sums sums[CASE_ROWS_MAX];
    for (uint32_t row = 0; row < c->rows; row++)
        sums[row] = query_sums(l, &q, row);
    for (uint32_t t = 0; t < TILE_TOKENS; t++) {
        struct key k;
        if (!c->live[t])
            continue;
        read_key(l, c->tile, t, &k);
        for (uint32_t row = 0; row < c->rows; row++) {
            struct score_sum s = score_sum(l, &q, &sums[row], row, &k);
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

/* The sums of one row and group, a lane for each dim. */
struct value_sums {
    int32_t dot[HEAD_DIM_MAX], visible[HEAD_DIM_MAX];
    double meaning[HEAD_DIM_MAX], weighted[HEAD_DIM_MAX];
};

/* first: the group's first dim. s: of each token. */
static void sum_values(const struct tile_layout *l, const float *p, const int32_t *weights,
                       const float *s, const uint8_t (*codes)[HEAD_DIM_MAX], uint32_t first,
                       struct value_sums *sums) {
    memset(sums, 0, sizeof *sums);
    for (uint32_t t = 0; t < TILE_TOKENS; t++) {
        if (p[t] == 0)
            continue;
        const double factor = (double)p[t] * s[t], size = fabs(factor);
        for (uint32_t i = 0; i < l->group; i++) {
            const int32_t code = codes[t][first + i];
            sums->dot[i] += weights[t] * code; /* below 2^31: 64 times 2^15 times 2^8 */
            sums->visible[i] += code;
            sums->meaning[i] += factor * code;
            sums->weighted[i] += size * code;
        }
    }
}

static void compare_affine_row(const struct value_case *c, uint32_t row, const float *got,
                               const float *want, const uint8_t (*codes)[HEAD_DIM_MAX],
                               const float (*s)[TILE_TOKENS], const float (*b)[TILE_TOKENS]) {
    const float *p = c->p + row * c->p_stride, *before = c->before + (size_t)row * c->l->head_dim;
    for (uint32_t g = 0; g < c->l->groups; g++) {
        struct weights w = weights_of(p, s, b, g);
        static struct value_sums sums;
        const uint32_t first = g * c->l->group;
        sum_values(c->l, p, w.codes, s[g], codes, first, &sums);
        for (uint32_t j = 0; j < c->l->group; j++) {
            const uint32_t i = first + j;
            double visible = sums.visible[j], meaning = before[i] + w.bias + sums.meaning[j];
            double floor = TILE_UNDERFLOW + (w.max < ACT_TINY ? (double)ACT_TINY * visible : 0);
            double bound = gamma_of(5) * fabs((double)w.scale * sums.dot[j]) +
                           gamma_of(67) * w.bias_terms + gamma_of(2) * fabsf(before[i]) + floor;
            check_near("value", row, i, got[i], want[i], bound);
            check_meaning("meaning of value", row, i, got[i], meaning,
                          bound + ROUNDED * w.scale * visible + gamma_of(1) * sums.weighted[j]);
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
