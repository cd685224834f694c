/* SPDX-License-Identifier: Apache-2.0 */
/* check_product.c: act_pack and the matrix products of every weight type.
 *
 * Bounds (gamma as in check_attention.c). A row has R = k / run_values runs and T terms: R, and R
 * more where the type has_min. Dots are exact; the last rounding is that of ref's own result:
 *
 *   quantized  d x scale, dot to float, the product: 3; or m x sum, where sum is a rounded product:
 *              2; T - 1 additions; 1                            gamma(T + 3) sum|terms|
 *   float      k products and additions in any order; 1         gamma(k + 1) sum|x w|
 *
 * A product that a tier leaves to ref/ is run after the tier's own act_pack: a tier that packs in
 * an order of its own must have a product of every type.
 *
 * Both sides take d, m and codes as defined in quant.h: how those were computed adds no rounding
 * here. F8_E4M3 is float: its scale is in w.
 *
 * Meaning: activations are x = scale * (code + e), |e| <= 1/2 plus 3 roundings of up to code_max
 * codes, so that an output differs from x . w by at most (1/2 + 3 code_max u) times the sum over
 * blocks of scale_b sum|w|. w is decode's, with a rounding of its product and one of its sum, and
 * one more of AFFINE8's m = bias + 128 d, where decode's terms may be 128 d larger than the parts:
 * gamma(3) (|d| (|code| + 256) + |m|) for each weight, times |x|; without 256 for the others. The
 * terms of a run of 16 have no rounding that those of a run of 32 lack.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kcheck.h"

enum { BLOCK = 32, K_MAX = WEIGHT_K_MAX };

/* d x scale may be subnormal (2^-150 lost) times a dot of up to 2^27 */
#define UNDERFLOW 0x1p-122

static int code_max(const struct act_rows *a) {
    return a->bits == 8 ? ACT8_MAX : ACT16_MAX;
}

static int act_code(const struct act_rows *a, size_t i) {
    return a->bits == 8 ? ((const int8_t *)a->codes)[i] : ((const int16_t *)a->codes)[i];
}

/* ---- act_pack -------------------------------------------------------------------------------- */

static struct act_rows act_buffers(const float *x, uint32_t rows, uint32_t k, int bits,
                                   void *(*take)(size_t)) {
    struct act_rows a = {.x = x, .rows = rows, .k = k, .bits = bits};
    a.codes = take((size_t)rows * k * (bits == 8 ? 1 : 2));
    a.scale = take((size_t)rows * (k / BLOCK) * sizeof *a.scale);
    a.sum = take((size_t)rows * (k / BLOCK) * sizeof *a.sum);
    a.sum16 = take((size_t)rows * (k / BLOCK) * 2 * sizeof *a.sum16);
    a.codes_sum16 = take((size_t)rows * (k / BLOCK) * 2 * sizeof *a.codes_sum16);
    return a;
}

static int compare_ints(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

/* Whether block b of got holds the codes of want, sorted, in one of the forms that a tier may store
 * (kernels.h): as they are, or 16-bit ones as a plane of high and one of low bytes. The order
 * inside a block is free. */
static bool same_codes(const struct act_rows *got, size_t b, const int want[BLOCK]) {
    int plain_form[BLOCK], planes_form[BLOCK];
    for (size_t i = 0; i < BLOCK; i++) {
        const int8_t *bytes = (const int8_t *)got->codes + b * BLOCK * (size_t)got->bits / 8;
        plain_form[i] = act_code(got, b * BLOCK + i);
        planes_form[i] = got->bits == 8 ? bytes[i] : 256 * bytes[i] + bytes[BLOCK + i];
    }
    qsort(plain_form, BLOCK, sizeof *plain_form, compare_ints);
    qsort(planes_form, BLOCK, sizeof *planes_form, compare_ints);
    return memcmp(plain_form, want, sizeof plain_form) == 0 ||
           memcmp(planes_form, want, sizeof planes_form) == 0;
}

/* Codes and scales are defined to the bit; sum and rest follow from them in one rounding. */
static void compare_acts(const struct act_rows *got, const struct act_rows *want) {
    for (size_t b = 0; b < (size_t)got->rows * (got->k / BLOCK); b++) {
        int y[BLOCK];
        float max = 0;
        for (size_t i = 0; i < BLOCK; i++) {
            y[i] = act_code(want, b * BLOCK + i);
            max = fmaxf(max, fabsf(got->x[b * BLOCK + i]));
            check_meaning("activation", b, i, (double)want->scale[b] * y[i], want->x[b * BLOCK + i],
                          (0.5 + 3 * code_max(want) * 0x1p-24) * want->scale[b] +
                              (max < ACT_TINY ? (double)ACT_TINY : 0));
        }
        for (size_t i = b * BLOCK; got->rest && i < (b + 1) * BLOCK; i++)
            check_that(got->rest[i] == want->rest[i] || max < ACT_TINY,
                       "rest %zu is %.9g, not %.9g", i, (double)got->rest[i],
                       (double)want->rest[i]);
        if (max < ACT_TINY) {
            check_that(got->scale[b] >= 0 && got->scale[b] < ACT_TINY, "scale of tiny block %zu",
                       b);
            continue;
        }
        qsort(y, BLOCK, sizeof *y, compare_ints);
        check_that(same_codes(got, b, y), "codes of block %zu", b);
        check_that(got->scale[b] == want->scale[b], "scale of block %zu is %.9g, not %.9g", b,
                   (double)got->scale[b], (double)want->scale[b]);
        check_that(got->sum[b] == want->sum[b], "sum of block %zu is %.9g, not %.9g", b,
                   (double)got->sum[b], (double)want->sum[b]);
        for (size_t h = 2 * b; h < 2 * b + 2; h++)
            check_that(got->sum16[h] == want->sum16[h], "sum of half block %zu is %.9g, not %.9g",
                       h, (double)got->sum16[h], (double)want->sum16[h]);
    }
}

static void check_act_pack(const struct tier *t, int bits) {
    static const uint32_t KS[] = {32, 64, 96, 576, K_MAX};
    if (!family_begin(t, "act_pack", bits == 8 ? "8" : "16"))
        return;
    for (uint32_t i = 0; i < 5 * 40; i++) {
        uint32_t k = KS[i % 5], rows = 1 + random_below(4);
        case_begin("%u rows of %u", rows, k);
        float *x = guarded((size_t)rows * k * sizeof *x);
        for (uint32_t b = 0; b < rows * k / BLOCK; b++)
            fill_any(x + b * BLOCK, BLOCK);
        freeze(x);
        struct act_rows got = act_buffers(x, rows, k, bits, guarded);
        struct act_rows want = act_buffers(x, rows, k, bits, plain);
        if (random_bits() & 1) {
            got.rest = guarded((size_t)rows * k * sizeof *got.rest);
            want.rest = plain((size_t)rows * k * sizeof *want.rest);
        }
        for (uint32_t row = 0; row < rows; row++) {
            call_act_pack(t->k.act_pack, &got, row);
            ref.act_pack(&want, row);
        }
        compare_acts(&got, &want);
        case_end();
    }
    /* what is not finite must not become plausible, and spoils its own block only */
    case_begin("not finite");
    float x[64] = {0};
    x[7] = NAN;
    x[40] = 1;
    struct act_rows a = act_buffers(x, 1, 64, bits, guarded);
    call_act_pack(t->k.act_pack, &a, 0);
    check_that(!isfinite(a.scale[0]) && isfinite(a.scale[1]), "NaN: scales %g and %g",
               (double)a.scale[0], (double)a.scale[1]);
    x[7] = -INFINITY;
    call_act_pack(t->k.act_pack, &a, 0);
    check_that(!isfinite(a.scale[0]) && isfinite(a.scale[1]), "Inf: scales %g and %g",
               (double)a.scale[0], (double)a.scale[1]);
    case_end();
    family_end();
}

/* ---- products -------------------------------------------------------------------------------- */

struct product_case {
    const struct tier *t;
    const struct weight_traits *traits;
    struct weight w;
    const float *x; /* [rows][k] */
    uint32_t rows, n0, n1;
    int bits;
};

/* One weight row: its values, its parts and their share of the bounds. */
struct weight_row {
    float values[K_MAX];
    int8_t codes[K_MAX];
    float d[K_MAX / 16], m[K_MAX / 16];
    double magnitude[K_MAX / 16]; /* of a run: sum|value| */
    double rounding[K_MAX / 16];  /* of a run: by how much decode and the parts may differ */
};

static void weigh_row(const struct product_case *c, uint32_t j, struct weight_row *r) {
    uint32_t run = c->traits->run_values;
    int moved = c->w.type == WEIGHT_AFFINE8 ? 256 : 0;
    c->traits->decode(&c->w, j, r->values);
    if (run == 0)
        return;
    c->traits->parts(&c->w, j, r->codes, r->d, r->m);
    for (uint32_t u = 0; u < c->w.k / run; u++) {
        r->magnitude[u] = r->rounding[u] = 0;
        for (uint32_t i = u * run; i < (u + 1) * run; i++) {
            r->magnitude[u] += fabsf(r->values[i]);
            r->rounding[u] += fabs((double)r->d[u] * (abs(r->codes[i]) + moved)) + fabsf(r->m[u]);
        }
        r->rounding[u] *= gamma_of(3);
    }
}

/* sum (x w), n of them. Four sums side by side: one would wait for each addition. */
static double meaning_of(const float *x, const float *w, uint32_t n) {
    double sums[4] = {0};
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (uint32_t j = 0; j < 4; j++)
            sums[j] += (double)x[i + j] * w[i + j];
    for (; i < n; i++)
        sums[0] += (double)x[i] * w[i];
    return sums[0] + sums[1] + (sums[2] + sums[3]);
}

/* The dot of n codes from `at` on, exact: below 2^28. */
static int32_t dot_of(const struct act_rows *a, size_t at, const int8_t *codes, uint32_t n) {
    int32_t dot = 0;
    if (a->bits == 8) {
        const int8_t *x = (const int8_t *)a->codes + at;
        for (uint32_t i = 0; i < n; i++)
            dot += x[i] * codes[i];
    } else {
        const int16_t *x = (const int16_t *)a->codes + at;
        for (uint32_t i = 0; i < n; i++)
            dot += x[i] * codes[i];
    }
    return dot;
}

static void compare_float_output(const struct product_case *c, const struct weight_row *r,
                                 uint32_t j, uint32_t row, double got, double want) {
    const float *x = c->x + (size_t)row * c->w.k;
    double terms = 0, meaning = meaning_of(x, r->values, c->w.k);
    for (uint32_t i = 0; i < c->w.k; i++)
        terms += fabs((double)x[i] * r->values[i]);
    double bound = gamma_of(c->w.k + 1) * terms + c->w.k * UNDERFLOW;
    check_near("output", row, j, got, want, bound);
    check_meaning("meaning of output", row, j, got, meaning, bound);
}

static void compare_output(const struct product_case *c, const struct act_rows *a,
                           const struct weight_row *r, uint32_t j, uint32_t row, double got,
                           double want) {
    uint32_t k = c->w.k, run = c->traits->run_values, runs = k / run;
    size_t at = (size_t)row * k;
    double terms = 0, meaning = meaning_of(c->x + at, r->values, k), rounding = 0;
    double floor = k * UNDERFLOW;
    for (uint32_t u = 0; u < runs; u++) {
        double dot = dot_of(a, at + u * run, r->codes + u * run, run);
        double scale = a->scale[(at + u * run) / BLOCK];
        const float *sum = run == BLOCK ? a->sum : a->sum16;
        terms += fabs(r->d[u] * scale * dot) + fabs((double)r->m[u] * sum[(at + u * run) / run]);
        rounding += (0.5 + 3 * code_max(a) * 0x1p-24) * scale * r->magnitude[u] +
                    code_max(a) * scale * r->rounding[u];
        floor += scale == 0 ? (double)ACT_TINY * r->magnitude[u] : 0;
    }
    double bound = gamma_of(runs * (c->traits->has_min ? 2 : 1) + 3) * terms + floor;
    check_near("output", row, j, got, want, bound);
    check_meaning("meaning of output", row, j, got, meaning, bound + rounding);
}

static void compare_outputs(const struct product_case *c, const float *got, size_t stride) {
    uint32_t n = c->n1 - c->n0, k = c->w.k;
    struct act_rows a = {.x = c->x, .rows = c->rows, .k = k, .bits = c->bits};
    float *want = plain((size_t)c->rows * n * sizeof *want);
    struct weight_row *r = plain(sizeof *r);
    if (c->traits->run_values > 0) {
        a = act_buffers(c->x, c->rows, k, c->bits, plain);
        for (uint32_t row = 0; row < c->rows; row++)
            ref.act_pack(&a, row);
    }
    ref.product[weight_index(c->w.type)](&c->w, c->n0, c->n1, &a, want, n,
                                         plain(product_scratch_bytes(k)));
    for (uint32_t j = 0; j < n; j++) {
        weigh_row(c, c->n0 + j, r);
        for (uint32_t row = 0; row < c->rows; row++) {
            double y = got[row * stride + j], y_ref = want[(size_t)row * n + j];
            if (c->traits->run_values > 0)
                compare_output(c, &a, r, c->n0 + j, row, y, y_ref);
            else
                compare_float_output(c, r, c->n0 + j, row, y, y_ref);
        }
    }
}

/* Packs rows of x and runs outputs [n0, n1) into fresh guarded memory, all inputs read-only. */
static float *run_product(const struct product_case *c, const struct kernels *kernels,
                          const float *x, uint32_t rows, uint32_t n0, uint32_t n1, size_t stride) {
    uint32_t k = c->w.k;
    struct act_rows a = {.x = x, .rows = rows, .k = k, .bits = c->bits};
    if (c->traits->run_values > 0) { /* float types read only x */
        a = act_buffers(x, rows, k, c->bits, guarded);
        for (uint32_t row = 0; row < rows; row++)
            call_act_pack(kernels->act_pack, &a, row);
        freeze(a.codes);
        freeze(a.scale);
        freeze(a.sum);
        freeze(a.sum16);
        freeze(a.codes_sum16);
    }
    float *y = guarded(((rows - 1) * stride + (n1 - n0)) * sizeof *y);
    call_product(kernels->product[weight_index(c->w.type)], &c->w, n0, n1, &a, y, stride,
                 guarded(product_scratch_bytes(k)));
    check_that(gaps_untouched(y, rows, n1 - n0, stride), "wrote between rows");
    return y;
}

/* With other rows in the call, and other ranges of outputs: the same bits. */
static void product_invariance(const struct product_case *c, const float *got, size_t stride) {
    uint32_t order[64], k = c->w.k;
    random_order(order, c->rows);
    float *turned = plain((size_t)c->rows * k * sizeof *turned);
    for (uint32_t i = 0; i < c->rows; i++)
        memcpy(turned + (size_t)i * k, c->x + (size_t)order[i] * k, k * sizeof *turned);
    for (uint32_t part = 0, start = 0, n; start < c->rows && part < 5; part++, start += n) {
        n = start == 0 ? 1 : 1 + random_below(c->rows - start);
        uint32_t m0 = c->n0 + random_below(c->n1 - c->n0);
        uint32_t m1 = part == 1 ? m0 + 1 : m0 + 1 + random_below(c->n1 - m0);
        const float *y = run_product(c, &c->t->k, turned + (size_t)start * k, n, m0, m1, m1 - m0);
        for (uint32_t i = 0; i < n; i++)
            check_that(
                memcmp(y + (size_t)i * (m1 - m0), got + order[start + i] * stride + (m0 - c->n0),
                       (m1 - m0) * sizeof *y) == 0,
                "row %u: other bits among %u rows and outputs %u..%u than among %u and %u..%u",
                order[start + i], n, m0, m1, c->rows, c->n0, c->n1);
    }
}

static void product_same_bits(const struct product_case *c, const float *got, size_t stride) {
    const size_t n = c->n1 - c->n0;
    if (!c->t->same)
        return;
    const float *y = run_product(c, c->t->same, c->x, c->rows, c->n0, c->n1, n);
    for (size_t row = 0; row < c->rows; row++)
        check_that(memcmp(got + row * stride, y + row * n, n * sizeof *y) == 0,
                   "row %zu: other bits than %s", row, cpu_tier_of_bits(c->t->name));
}

static void check_product_case(struct product_case *c, uint32_t way, uint32_t k) {
    c->n0 = random_bits() & 1 ? 0 : random_below(12);
    c->n1 = c->n0 + 1 + random_below(k > 600 ? 20 : 36);
    uint32_t n = c->n1 + (random_bits() & 1 ? 0 : random_below(9));
    weight_shape(&c->w, c->traits->type, way, n, k);
    case_begin("k %u, group %u x %u, scalar %d, outputs %u..%u of %u, %u rows", k, c->w.group_rows,
               c->w.group, (int)c->w.scalar, c->n0, c->n1, n, c->rows);
    make_weight(&c->w, true, guarded);
    freeze((void *)c->w.data);
    freeze((void *)c->w.scales);
    freeze((void *)c->w.biases);
    float *x = guarded((size_t)c->rows * k * sizeof *x);
    for (uint32_t row = 0; row < c->rows; row++)
        fill_any(x + (size_t)row * k, k);
    freeze(x);
    c->x = x;
    size_t stride = c->n1 - c->n0 + (random_bits() & 1) * random_below(40);
    const float *y = run_product(c, &c->t->k, x, c->rows, c->n0, c->n1, stride);
    compare_outputs(c, y, stride);
    product_same_bits(c, y, stride);
    product_invariance(c, y, stride);
    case_end();
}

/* The i-th k that is tried: small ones count blocks (or groups of any of the ways), large ones are
 * cut to whole blocks. Float types take any k. 0 after the last. */
static uint32_t nth_k(const struct weight_traits *t, uint32_t i, uint32_t group) {
    static const uint32_t BLOCKS[] = {1, 2, 3, 5}, VALUES[] = {576, 992, K_MAX};
    static const uint32_t FLOATS[] = {32, 64, 96, 160, 576, 992, K_MAX, 1, 7, 20, 100, 1003};
    if (t->run_values == 0)
        return i < sizeof FLOATS / sizeof *FLOATS ? FLOATS[i] : 0;
    uint32_t unit = group > t->block_values ? group : t->block_values;
    return i < 4 ? BLOCKS[i] * unit : i < 7 ? VALUES[i - 4] / unit * unit : 0;
}

static void check_product_type(const struct tier *t, const struct weight_traits *traits, int bits) {
    struct product_case c = {.t = t, .traits = traits, .bits = bits};
    char name[24];
    snprintf(name, sizeof name, traits->run_values > 0 ? "%s act %d" : "%s", traits->name, bits);
    if (!family_begin(t, "product", name))
        return;
    uint32_t ways = weight_ways(traits->type), way = 0;
    for (uint32_t i = 0; nth_k(traits, i, 0) > 0; i++)
        for (uint32_t r = 0; r < ROW_COUNTS; r++)
            for (int again = 0; again < (i < 4 || nth_k(traits, i, 0) <= 160 ? 3 : 1); again++) {
                c.rows = row_count(r);
                weight_shape(&c.w, traits->type, way, 1, K_MAX);
                check_product_case(&c, way, nth_k(traits, i, c.w.group));
                way = (way + 1) % ways;
            }
    family_end();
}

void check_product(const struct tier *t) {
    check_act_pack(t, 8);
    check_act_pack(t, 16);
    const struct weight_traits *traits;
    for (uint32_t i = 0; (traits = weight_traits_at(i)); i++)
        for (int bits = 8; bits <= (traits->run_values > 0 ? 16 : 8); bits += 8)
            check_product_type(t, traits, bits);
}
