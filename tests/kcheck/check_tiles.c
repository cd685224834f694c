/* SPDX-License-Identifier: Apache-2.0 */
/* check_tiles.c: formats that are encoded when a page is full: encode_tile, score_channels, what a
 * V tile of them does with NaN, basis_rows and hadamard_rows. (Values: check_attention.c,
 * for_tile_formats.)
 *
 * encode_tile is tile_encode of what an f16 tile holds, byte for byte. The target holds random
 * bytes before.
 *
 * Bounds of the others (u and gamma: check_attention.c; dim dims):
 *
 *   score_channels  x = q s, its codes and their scale are defined to the bit, dots are exact.
 *                   dot to float, x scale, adding the biases' sum, 1 for ref's result: 4; q b: dim
 *                   products and additions in any order, adding, 1
 *                                    gamma(4) |scale dot| + gamma(dim + 2) sum|q b|
 *                   Meaning: sum q (s code + b). Half a code and three roundings of the largest
 *                   one (ROUNDED) for each code, and x itself is rounded: ROUNDED scale sum|code|
 *                   + u sum|q s code|
 *   basis_rows      dim products and additions in order, 1 for ref's  gamma(dim + 1) sum|x m|
 */
#include <math.h>
#include <string.h>

#include "kcheck.h"

/* ---- encode_tile ----------------------------------------------------------------------------- */

/* n values that share a range, `stride` apart. */
static void fill_range(float *x, size_t n, size_t stride, bool finite) {
    const uint32_t kind = random_below(12);
    const float v = random_normal() * 100;
    float any[HEAD_DIM_MAX];
    fill_any(any, n);
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = random_bits();
        float *to = &x[i * stride];
        *to = kind == 0   ? v                                           /* no range */
              : kind == 1 ? ldexpf((float)(bits % 2048) - 1024, -24)    /* subnormal */
              : kind == 2 ? (bits & 1 ? 65504.0f : -65504.0f)           /* the widest range */
              : kind == 3 ? ((float)(bits % 511) - 255) * 0.5f          /* ties */
              : kind == 4 ? (bits & 1 ? -0.0f : (float)(bits >> 1 & 1)) /* -0, 0, 1 */
              : kind == 5 ? v + (bits & 1 ? v * 0x1p-10f : 0)           /* two neighbours */
              : kind == 6 ? f16_to_f32((uint16_t)bits)                  /* any half */
              : kind == 7 && bits % 8 == 0 ? EDGE_VALUE[bits >> 3 & 1 ? 2 : bits >> 4 & 1]
              : kind == 8 && bits % 8 == 0 ? NAN
                                           : any[i];
        if (finite && !(fabsf(*to) <= 65504))
            *to = *to < 0 ? -65504 : 65504;
    }
    for (size_t i = 0; !finite && kind == 9 && i < n; i++)
        x[i * stride] = NAN;
}

/* An f16 tile; half of them hold what is not finite. */
static const void *make_shadow(const struct tile_layout *from) {
    static float rows[TILE_TOKENS * HEAD_DIM_MAX];
    const bool keys = from->kind == TILE_K, finite = random_bits() & 1;
    const size_t dim = from->head_dim;
    uint8_t *tile = guarded(from->bytes);
    for (size_t i = 0; i < from->reduction; i++)
        fill_range(rows + (keys ? i : i * dim), from->lanes, keys ? dim : 1, finite);
    for (uint32_t t = 0; t < TILE_TOKENS; t++)
        tile_encode_row(from, tile, t, rows + t * dim);
    freeze(tile);
    return tile;
}

static void check_encode_tile(const struct tier *t, const struct tile_layout *l) {
    static float rows[TILE_TOKENS * HEAD_DIM_MAX];
    struct tile_layout from;
    tile_layout_init(&from, (enum tile_kind)l->kind, (struct kv_format){16, SCALAR_F16, 0, KV_ROWS},
                     l->head_dim);
    /* kernels leave other scalars to the definition */
    for (int i = 0; i < (l->format.scalar == SCALAR_F16 ? 4 : 1); i++) {
        case_begin("head_dim %u, group %u", l->head_dim, l->group);
        uint8_t *tile = guarded(l->bytes), *want = plain(l->bytes);
        const void *shadow = make_shadow(&from);
        for (uint32_t at = 0; at < l->bytes; at++)
            tile[at] = want[at] = (uint8_t)random_bits();
        call_encode_tile(t->k.encode_tile, l, tile, &from, shadow);
        for (uint32_t token = 0; token < TILE_TOKENS; token++)
            tile_decode_row(&from, shadow, token, rows + (size_t)token * l->head_dim);
        tile_encode(l, want, rows);
        uint32_t at = 0;
        while (at < l->bytes && tile[at] == want[at])
            at++;
        check_that(at == l->bytes, "byte %u of the tile (scales at %u) is %02x, not %02x", at,
                   l->scale_offset, at < l->bytes ? tile[at] : 0, at < l->bytes ? want[at] : 0);
        case_end();
    }
}

/* ---- score_channels -------------------------------------------------------------------------- */

struct channels_case {
    const struct tier *t;
    const struct tile_layout *l;
    const void *tile;
    const float *q; /* [rows][head_dim] */
    uint32_t rows;
};

/* A K tile that was encoded, or any codes with any scales. */
static const void *make_channels(const struct tile_layout *l) {
    static float rows[TILE_TOKENS * HEAD_DIM_MAX];
    const size_t dim = l->head_dim;
    uint8_t *tile = guarded(l->bytes);
    if (random_bits() & 1) {
        for (size_t i = 0; i < dim; i++)
            fill_range(rows + i, TILE_TOKENS, dim, true);
        tile_encode(l, tile, rows);
    } else {
        const bool top = random_below(3) == 0; /* what saturates sums of 16 bits */
        for (uint32_t i = 0; i < l->scale_offset; i++)
            tile[i] = top ? 0xff : (uint8_t)random_bits();
        for (size_t i = 0; i < 2 * dim; i++)
            scalar_store((enum scalar_type)l->format.scalar, tile + l->scale_offset, i,
                         random_normal() * (i < dim ? 0.01f : 1));
    }
    freeze(tile);
    return tile;
}

/* The tiers read a query's floats only. */
static struct query_rows floats_of(const float *q, uint32_t rows, uint32_t dim) {
    return (struct query_rows){.rows = rows, .dim = dim, .f32 = (float *)q};
}

/* How a row is rounded for a tile: x = q s, its codes and their scale, in float32. */
struct channel_codes {
    float scale, max;
    int32_t codes[HEAD_DIM_MAX];
    double bias_terms;
};

static void find_codes(const float *q, const float *s, const float *b, uint32_t dim,
                       struct channel_codes *out) {
    float x[HEAD_DIM_MAX];
    *out = (struct channel_codes){0};
    for (uint32_t i = 0; i < dim; i++) {
        x[i] = q[i] * s[i];
        out->max = fmaxf(out->max, fabsf(x[i]));
        out->bias_terms += fabs((double)q[i] * b[i]);
    }
    if (out->max < ACT_TINY)
        return;
    for (uint32_t i = 0; i < dim; i++)
        out->codes[i] = (int32_t)rintf(x[i] * (ACT16_MAX / out->max));
    out->scale = out->max / ACT16_MAX;
}

static void compare_channels(const struct channels_case *c, const float *got, size_t stride) {
    const uint32_t dim = c->l->head_dim;
    const struct query_rows q = floats_of(c->q, c->rows, dim);
    float *want = plain((size_t)c->rows * TILE_TOKENS * sizeof *want), s[HEAD_DIM_MAX],
          b[HEAD_DIM_MAX];
    static uint8_t codes[TILE_TOKENS][HEAD_DIM_MAX];
    static struct channel_codes row_codes;
    ref.score_channels(c->l, c->tile, &q, want, TILE_TOKENS);
    tile_get_channels(c->l, c->tile, s, b);
    for (uint32_t t = 0; t < TILE_TOKENS; t++)
        tile_get_row(c->l, c->tile, t, codes[t], NULL, NULL);
    for (uint32_t row = 0; row < c->rows; row++) {
        const float *x = c->q + (size_t)row * dim;
        find_codes(x, s, b, dim, &row_codes);
        for (uint32_t t = 0; t < TILE_TOKENS; t++) {
            double dot = 0, meaning = 0, terms = 0, sum = 0;
            for (uint32_t i = 0; i < dim; i++) {
                const double scaled = (double)x[i] * s[i] * codes[t][i];
                dot += row_codes.codes[i] * codes[t][i];
                meaning += scaled + (double)x[i] * b[i];
                terms += fabs(scaled);
                sum += codes[t][i];
            }
            const double bound = gamma_of(4) * fabs(row_codes.scale * dot) +
                                 gamma_of(dim + 2) * row_codes.bias_terms + TILE_UNDERFLOW;
            const double tiny = row_codes.max < ACT_TINY ? (double)ACT_TINY * sum : 0;
            const float have = got[row * stride + t];
            check_near("score", row, t, have, want[(size_t)row * TILE_TOKENS + t], bound);
            check_meaning("meaning of score", row, t, have, meaning,
                          bound + ROUNDED * row_codes.scale * sum + gamma_of(1) * terms + tiny);
        }
    }
}

/* Rows have the same bits alone and in another order, and on a tier that promises them. */
static void channels_invariance(const struct channels_case *c, const float *got, size_t stride) {
    uint32_t order[CASE_ROWS_MAX];
    const size_t dim = c->l->head_dim;
    float *turned = plain(c->rows * dim * sizeof *turned);
    random_order(order, c->rows);
    for (uint32_t i = 0; i < c->rows; i++)
        memcpy(turned + i * dim, c->q + order[i] * dim, dim * sizeof *turned);
    for (uint32_t start = 0, n; start < c->rows; start += n) {
        n = start == 0 ? 1 : 1 + random_below(c->rows - start);
        const struct kernels *k = c->t->same_channels && start ? c->t->same_channels : &c->t->k;
        const struct query_rows q = floats_of(turned + start * dim, n, c->l->head_dim);
        float *part = plain((size_t)n * TILE_TOKENS * sizeof *part);
        call_score(k->score_channels, c->l, c->tile, &q, part, TILE_TOKENS);
        for (uint32_t i = 0; i < n; i++)
            check_that(memcmp(got + order[start + i] * stride, part + (size_t)i * TILE_TOKENS,
                              TILE_TOKENS * sizeof *part) == 0,
                       "row %u: other bits among %u rows than among %u", order[start + i], n,
                       c->rows);
    }
}

static void check_channels_case(const struct tier *t, const struct tile_layout *l, uint32_t rows) {
    struct channels_case c = {.t = t, .l = l, .rows = rows};
    const uint32_t dim = l->head_dim;
    case_begin("head_dim %u, %u rows", dim, rows);
    c.tile = make_channels(l);
    float *q = guarded((size_t)rows * dim * sizeof *q);
    for (uint32_t row = 0; row < rows; row++)
        fill_any(q + (size_t)row * dim, dim);
    freeze(q);
    c.q = q;
    const size_t stride = TILE_TOKENS + (random_bits() & 1) * random_below(500);
    float *scores = guarded(((rows - 1) * stride + TILE_TOKENS) * sizeof *scores);
    const struct query_rows packed = floats_of(q, rows, dim);
    call_score(t->k.score_channels, l, c.tile, &packed, scores, stride);
    check_that(gaps_untouched(scores, rows, TILE_TOKENS, stride), "wrote between rows");
    compare_channels(&c, scores, stride);
    channels_invariance(&c, scores, stride);
    case_end();
}

/* A query that is not finite spoils its own row alone; a channel that is not, all rows. */
static void check_channels_nan(const struct tier *t, const struct tile_layout *l) {
    enum { ROWS = 3, BAD = 1 };
    const uint32_t dim = l->head_dim, at = random_below(dim);
    static uint8_t tile[TILE_TOKENS * HEAD_DIM_MAX + 4 * HEAD_DIM_MAX * sizeof(float)];
    float *q = plain(ROWS * dim * sizeof *q), scores[ROWS * TILE_TOKENS];
    const float bad = EDGE_VALUE[random_below(3)];
    case_begin("head_dim %u, %g at %u", dim, (double)bad, at);
    q = plain(ROWS * dim * sizeof *q);
    memcpy(tile, make_channels(l), l->bytes);
    fill(q, ROWS * dim, FILL_NORMAL);
    q[BAD * dim + at] = bad;
    struct query_rows packed = floats_of(q, ROWS, dim);
    call_score(t->k.score_channels, l, tile, &packed, scores, TILE_TOKENS);
    for (uint32_t i = 0; i < ROWS * TILE_TOKENS; i++)
        check_that(isfinite(scores[i]) == (i / TILE_TOKENS != BAD), "row %u, score %u is %g",
                   i / TILE_TOKENS, i % TILE_TOKENS, (double)scores[i]);
    const bool bias = random_bits() & 1;
    scalar_store((enum scalar_type)l->format.scalar,
                 tile + (bias ? l->bias_offset : l->scale_offset), at, bad);
    fill(q, ROWS * dim, FILL_NORMAL);
    call_score(t->k.score_channels, l, tile, &packed, scores, TILE_TOKENS);
    for (uint32_t i = 0; i < ROWS * TILE_TOKENS; i++)
        check_that(!isfinite(scores[i]), "a %s of %g: score %u is %g", bias ? "bias" : "scale",
                   (double)bad, i, (double)scores[i]);
    case_end();
}

/* Some numbers of rows for each head size, so that all are met; one over what a kernel packs. */
static void check_channels(const struct tier *t, const struct tile_layout *l) {
    for (int i = 0; i < 5; i++)
        check_channels_case(t, l, row_count(random_below(ROW_COUNTS)));
    check_channels_case(t, l, 1);
    if (l->head_dim == 64)
        for (uint32_t i = 0; i < ROW_COUNTS; i++)
            check_channels_case(t, l, row_count(i));
    if (l->head_dim == 64)
        check_channels_case(t, l, CASE_ROWS_MAX);
    check_channels_nan(t, l);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* A token with an Inf has no scale: it spoils all dims of the rows that see it, no others. */
static void check_values_nan(const struct tier *t, const struct tile_layout *l) {
    static float rows[TILE_TOKENS * HEAD_DIM_MAX];
    const uint32_t dim = l->head_dim, seen = random_below(TILE_TOKENS);
    float p[2 * TILE_TOKENS], out[2 * HEAD_DIM_MAX] = {0};
    case_begin("head_dim %u, token %u", dim, seen);
    uint8_t *tile = plain(l->bytes);
    fill(rows, (size_t)TILE_TOKENS * dim, FILL_NORMAL);
    rows[seen * dim + random_below(dim)] = EDGE_VALUE[random_below(2)];
    tile_encode(l, tile, rows);
    for (uint32_t i = 0; i < 2 * TILE_TOKENS; i++)
        p[i] = i == TILE_TOKENS + seen ? 0 : 0.25f;
    call_value(t->k.value_affine, l, tile, p, TILE_TOKENS, 2, out, dim);
    for (uint32_t i = 0; i < 2 * dim; i++)
        check_that(isfinite(out[i]) == (i >= dim), "row %u, value %u is %g", i / dim, i % dim,
                   (double)out[i]);
    case_end();
}

/* ---- basis_rows ------------------------------------------------------------------------------ */

static void check_basis_case(const struct tier *t, uint32_t dim, uint32_t rows) {
    case_begin("%u dims, %u rows", dim, rows);
    const size_t stride = dim + (random_bits() & 1) * 4 * random_below(40), n = (size_t)rows * dim;
    float *matrix = guarded((size_t)dim * dim * sizeof *matrix);
    float *x = guarded(((rows - 1) * stride + dim) * sizeof *x), *y = guarded(n * sizeof *y);
    float *want = plain(n * sizeof *want), part[HEAD_DIM_MAX];
    fill_any(matrix, (size_t)dim * dim);
    for (uint32_t row = 0; row < rows; row++)
        fill_any(x + row * stride, dim);
    freeze(matrix);
    freeze(x);
    call_basis(t->k.basis_rows, matrix, dim, x, stride, rows, y);
    ref.basis_rows(matrix, dim, x, stride, rows, want);
    for (uint32_t row = 0; row < rows; row++) {
        const float *from = x + row * stride;
        double terms[HEAD_DIM_MAX] = {0};
        for (size_t in = 0; in < dim; in++)
            for (size_t out = 0; out < dim; out++)
                terms[out] += fabs((double)from[in] * matrix[in * dim + out]);
        for (size_t out = 0; out < dim; out++)
            check_near("y", row, out, y[row * dim + out], want[row * dim + out],
                       gamma_of(dim + 1) * terms[out] + TILE_UNDERFLOW);
        call_basis(t->k.basis_rows, matrix, dim, from, stride, 1, part);
        check_that(memcmp(part, y + (size_t)row * dim, dim * sizeof *part) == 0,
                   "row %u: other bits alone than among %u", row, rows);
    }
    case_end();
}

static void check_basis(const struct tier *t) {
    static const uint32_t DIMS[] = {32, 64, 96, 128, 160, 192, 256, 512};
    if (!family_begin(t, "basis_rows", ""))
        return;
    for (size_t d = 0; d < sizeof DIMS / sizeof *DIMS; d++) {
        for (uint32_t i = 0; DIMS[d] <= 64 && i < ROW_COUNTS; i++)
            check_basis_case(t, DIMS[d], row_count(i));
        for (uint32_t i = 0; i < 2; i++)
            check_basis_case(t, DIMS[d], 1 + random_below(9));
    }
    family_end();
}

/* hadamard_rotate byte for byte, also of NaN and Inf but for the bits of a NaN. */
static void check_hadamard(const struct tier *t) {
    if (!family_begin(t, "hadamard_rows", ""))
        return;
    for (size_t d = 0; d < HEAD_DIM_MAX / 32; d++)
        for (int i = 0; i < 4; i++) {
            const uint32_t dim = 32 * (uint32_t)(d + 1), rows = 1 + random_below(5);
            const size_t n = (size_t)rows * dim;
            case_begin("%u dims, %u rows", dim, rows);
            float *x = guarded(n * sizeof *x), *want = plain(n * sizeof *want);
            fill_any(x, n);
            if (i == 3)
                x[random_below((uint32_t)n)] = EDGE_VALUE[random_below(EDGE_VALUES)];
            memcpy(want, x, n * sizeof *want);
            call_hadamard(t->k.hadamard_rows, x, dim, rows);
            for (uint32_t row = 0; row < rows; row++)
                hadamard_rotate(want + (size_t)row * dim, dim);
            for (size_t at = 0; at < n; at++)
                check_that(memcmp(&x[at], &want[at], sizeof *x) == 0 ||
                               (isnan(x[at]) && isnan(want[at])),
                           "value %zu is %.9g, not %.9g", at, (double)x[at], (double)want[at]);
            case_end();
        }
    family_end();
}

void check_tiles(const struct tier *t) {
    static const enum tile_kind KINDS[] = {TILE_K, TILE_V};
    static const char *const NAMES[] = {"tile K", "tile V"};
    for (size_t i = 0; i < 2; i++) {
        for_tile_formats(t, NAMES[i], KINDS[i], SCALAR_F32, check_encode_tile);
        for_rotated_formats(t, NAMES[i], KINDS[i], check_encode_tile);
    }
    for_tile_formats(t, "channels", TILE_K, SCALAR_F16, check_channels);
    for_tile_formats(t, "value, Inf", TILE_V, SCALAR_F16, check_values_nan);
    check_basis(t);
    check_hadamard(t);
}
