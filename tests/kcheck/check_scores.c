/* SPDX-License-Identifier: Apache-2.0 */
/* check_scores.c: what changes scores in place, centre and softmax. Bounds as in check_attention.c:
 *
 *   centre          P pairs: 2 P products and additions in order, adding to the score, 1
 *                                                   gamma(2 P + 3) (sum|terms| + |score|)
 */
#include <math.h>
#include <string.h>

#include "kcheck.h"

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

void check_scores(const struct tier *t) {
    check_centre(t);
    check_softmax(t);
}
