/* SPDX-License-Identifier: Apache-2.0 */
/* check_product.c: act_pack and the matrix products of the six weight types.
 *
 * Bounds (gamma as in check_attention.c). B = k / 32 blocks, dots exact, the last rounding is that
 * of ref's own result:
 *
 *   quantized  per block d x scale, dot to float, the product: 3; m x sum, where sum is a rounded
 *              product: 2; 2 B - 1 additions of 2 B terms; 1      gamma(2 B + 3) sum|terms|
 *   float      k products and additions in any order; 1           gamma(k + 1) sum|x w|
 *
 * Meaning: activations are x = scale * (code + d), |d| <= 1/2 plus 3 roundings of up to code_max
 * codes, so that an output differs from x . w by at most (1/2 + 3 code_max u) times the sum over
 * blocks of scale_b sum|w|.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kcheck.h"

enum { BLOCK = 32, ACT8_MAX = 127, K_MAX = 1536 };

/* d x scale may be subnormal (2^-150 lost) times a dot of up to 2^27 */
#define UNDERFLOW 0x1p-122

static bool quantized(enum weight_type t) {
    return t == WEIGHT_Q4_0 || t == WEIGHT_Q4_1 || t == WEIGHT_Q8_0;
}

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
    return a;
}

static int compare_ints(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

/* Codes and scales are defined to the bit (order inside a block is not); sum and rest follow from
 * them in one rounding. */
static void compare_acts(const struct act_rows *got, const struct act_rows *want) {
    for (size_t b = 0; b < (size_t)got->rows * (got->k / BLOCK); b++) {
        int x[BLOCK], y[BLOCK];
        float max = 0;
        for (size_t i = 0; i < BLOCK; i++) {
            x[i] = act_code(got, b * BLOCK + i);
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
        qsort(x, BLOCK, sizeof *x, compare_ints);
        qsort(y, BLOCK, sizeof *y, compare_ints);
        check_that(memcmp(x, y, sizeof x) == 0, "codes of block %zu", b);
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

/* ---- weights --------------------------------------------------------------------------------- */

enum code_kind { CODES_ANY, CODES_TOP, CODES_BOTTOM, CODES_KINDS };

static float random_scale(void) {
    switch (random_below(12)) {
    case 0:
        return 0;
    case 1:
        return random_normal() * 0x1p-20f; /* subnormal in f16 */
    case 2:
        return random_normal() * 1000;
    default:
        return random_normal() * 0.05f;
    }
}

/* One block of 32; codes at either end are what saturates 16-bit sums. */
static void make_block(enum weight_type type, uint8_t *p, enum code_kind kind) {
    scalar_store(SCALAR_F16, p, 0, random_scale());
    if (type == WEIGHT_Q4_1)
        scalar_store(SCALAR_F16, p, 1, random_scale());
    uint8_t *codes = p + (type == WEIGHT_Q4_1 ? 4 : 2);
    for (int i = 0; i < (type == WEIGHT_Q8_0 ? 32 : 16); i++) {
        uint8_t top = type == WEIGHT_Q8_0 ? 127 : 0xff, bottom = type == WEIGHT_Q8_0 ? 128 : 0;
        codes[i] = kind == CODES_TOP ? top : kind == CODES_BOTTOM ? bottom : (uint8_t)random_bits();
    }
}

static void make_row(enum weight_type type, uint8_t *p, uint32_t k) {
    static const enum scalar_type SCALAR[] = {SCALAR_F32, SCALAR_F16};
    const struct weight_traits *traits = weight_traits_of((uint32_t)type);
    enum code_kind kind = random_bits() & 1 ? CODES_ANY : (enum code_kind)random_below(CODES_KINDS);
    enum fill_kind floats =
        random_bits() & 1 ? FILL_NORMAL : (enum fill_kind)random_below(FILL_KINDS);
    for (uint32_t i = 0; quantized(type) && i < k; i += BLOCK)
        make_block(type, p + i / BLOCK * traits->block_bytes, kind);
    if (quantized(type))
        return;
    float x[K_MAX];
    fill(x, k, floats);
    for (uint32_t i = 0; i < k; i++)
        scalar_store(type == WEIGHT_BF16 ? SCALAR_BF16 : SCALAR[type], p, i, x[i]);
}

/* The parts of a weight block, read once more by the layout drawn in weight.c. */
static void read_block(enum weight_type type, const uint8_t *p, double *d, double *m, int *codes) {
    *d = scalar_load(SCALAR_F16, p, 0);
    *m = type == WEIGHT_Q4_1 ? scalar_load(SCALAR_F16, p, 1) : 0;
    const uint8_t *q = p + (type == WEIGHT_Q4_1 ? 4 : 2);
    for (int i = 0; i < BLOCK; i++) {
        int nibble = i < 16 ? q[i] & 15 : q[i - 16] >> 4;
        codes[i] = type == WEIGHT_Q8_0 ? (int8_t)q[i] : type == WEIGHT_Q4_0 ? nibble - 8 : nibble;
    }
}

/* ---- products -------------------------------------------------------------------------------- */

struct product_case {
    const struct tier *t;
    product_fn *fn;
    struct weight w;
    const float *x; /* [rows][k] */
    uint32_t rows, n0, n1;
    int bits;
};

static void compare_output(const struct product_case *c, const struct act_rows *a, uint32_t j,
                           uint32_t row, double got, double want, const float *values) {
    uint32_t k = c->w.k, blocks = k / BLOCK;
    const struct weight_traits *traits = weight_traits_of((uint32_t)c->w.type);
    const uint8_t *p = (const uint8_t *)c->w.data + j * weight_row_bytes(traits, k);
    double terms = 0, meaning = 0, rounding = 0, floor = k * UNDERFLOW;
    for (uint32_t i = 0; i < k; i++) {
        meaning += (double)c->x[(size_t)row * k + i] * values[i];
        terms += fabs((double)c->x[(size_t)row * k + i] * values[i]);
    }
    if (!quantized(c->w.type)) {
        check_near("output", row, j, got, want, gamma_of(k + 1) * terms + floor);
        check_meaning("meaning of output", row, j, got, meaning, gamma_of(k + 1) * terms + floor);
        return;
    }
    terms = 0;
    for (uint32_t b = 0; b < blocks; b++) {
        int codes[BLOCK];
        double d, m, dot = 0, magnitudes = 0, parts = 0, scale = a->scale[(size_t)row * blocks + b];
        read_block(c->w.type, p + b * traits->block_bytes, &d, &m, codes);
        for (uint32_t i = 0; i < BLOCK; i++) {
            dot += act_code(a, (size_t)row * k + b * BLOCK + i) * codes[i];
            magnitudes += fabsf(values[b * BLOCK + i]);
            parts += fabs(d * codes[i]) + fabs(m);
        }
        terms += fabs(d * scale * dot) + fabs(m * a->sum[(size_t)row * blocks + b]);
        rounding += (0.5 + 3 * code_max(a) * 0x1p-24) * scale * magnitudes;
        floor += scale == 0 ? (double)ACT_TINY * magnitudes : 0;
        /* decode's own product and sum, and the product in m's sum */
        rounding += gamma_of(2) * parts * code_max(a) * scale;
    }
    double bound = gamma_of(2 * blocks + 3) * terms + floor;
    check_near("output", row, j, got, want, bound);
    check_meaning("meaning of output", row, j, got, meaning, bound + rounding);
}

static void compare_outputs(const struct product_case *c, const float *got, size_t stride) {
    uint32_t n = c->n1 - c->n0, k = c->w.k;
    struct act_rows a = {.x = c->x, .rows = c->rows, .k = k, .bits = c->bits};
    float *want = plain((size_t)c->rows * n * sizeof *want), *values = plain(k * sizeof *values);
    const struct weight_traits *traits = weight_traits_of((uint32_t)c->w.type);
    if (quantized(c->w.type)) {
        a = act_buffers(c->x, c->rows, k, c->bits, plain);
        for (uint32_t row = 0; row < c->rows; row++)
            ref.act_pack(&a, row);
    }
    ref.product[weight_index(c->w.type)](&c->w, c->n0, c->n1, &a, want, n,
                                         plain(product_scratch_bytes(k)));
    for (uint32_t j = c->n0; j < c->n1; j++) {
        traits->decode(&c->w, j, values);
        for (uint32_t row = 0; row < c->rows; row++)
            compare_output(c, &a, j, row, got[row * stride + (j - c->n0)],
                           want[(size_t)row * n + (j - c->n0)], values);
    }
}

/* Packs rows of x and runs outputs [n0, n1) into fresh guarded memory, all inputs read-only. */
static float *run_product(const struct product_case *c, const float *x, uint32_t rows, uint32_t n0,
                          uint32_t n1, size_t stride) {
    uint32_t k = c->w.k;
    struct act_rows a = {.x = x, .rows = rows, .k = k, .bits = c->bits};
    if (quantized(c->w.type)) { /* the others only look at x */
        a = act_buffers(x, rows, k, c->bits, guarded);
        for (uint32_t row = 0; row < rows; row++)
            call_act_pack(c->t->k.act_pack, &a, row);
        freeze(a.codes);
        freeze(a.scale);
        freeze(a.sum);
        freeze(a.sum16);
    }
    float *y = guarded(((rows - 1) * stride + (n1 - n0)) * sizeof *y);
    call_product(c->fn, &c->w, n0, n1, &a, y, stride, guarded(product_scratch_bytes(k)));
    check_that(gaps_untouched(y, rows, n1 - n0, stride), "wrote between rows");
    return y;
}

/* Other companies of rows, other ranges of outputs: the same bits. */
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
        const float *y = run_product(c, turned + (size_t)start * k, n, m0, m1, m1 - m0);
        for (uint32_t i = 0; i < n; i++)
            check_that(
                memcmp(y + (size_t)i * (m1 - m0), got + order[start + i] * stride + (m0 - c->n0),
                       (m1 - m0) * sizeof *y) == 0,
                "row %u: other bits among %u rows and outputs %u..%u than among %u and %u..%u",
                order[start + i], n, m0, m1, c->rows, c->n0, c->n1);
    }
}

static void check_product_case(const struct tier *t, enum weight_type type, int bits, uint32_t k,
                               uint32_t rows) {
    struct product_case c = {.t = t, .rows = rows, .bits = bits};
    const struct weight_traits *traits = weight_traits_of((uint32_t)type);
    c.n0 = random_bits() & 1 ? 0 : random_below(12);
    c.n1 = c.n0 + 1 + random_below(k > 600 ? 20 : 36);
    uint32_t n = c.n1 + (random_bits() & 1 ? 0 : random_below(9));
    case_begin("k %u, outputs %u..%u of %u, %u rows", k, c.n0, c.n1, n, rows);
    size_t row_bytes = weight_row_bytes(traits, k);
    uint8_t *data = guarded(n * row_bytes);
    for (uint32_t j = 0; j < n; j++)
        make_row(type, data + j * row_bytes, k);
    freeze(data);
    c.w = (struct weight){.data = data, .type = type, .n = n, .k = k};
    c.fn = t->k.product[weight_index(type)];
    float *x = guarded((size_t)rows * k * sizeof *x);
    for (uint32_t row = 0; row < rows; row++)
        fill_any(x + (size_t)row * k, k);
    freeze(x);
    c.x = x;
    size_t stride = c.n1 - c.n0 + (random_bits() & 1) * random_below(40);
    const float *y = run_product(&c, x, rows, c.n0, c.n1, stride);
    compare_outputs(&c, y, stride);
    product_invariance(&c, y, stride);
    case_end();
}

static void check_product_type(const struct tier *t, enum weight_type type, int bits) {
    /* blocks make multiples of 32; float types take any k */
    static const uint32_t KS[] = {32, 64, 96, 160, 576, 992, K_MAX, 1, 7, 20, 100, 1003};
    size_t count = quantized(type) ? 7 : sizeof KS / sizeof *KS;
    char name[24];
    const char *type_name = weight_traits_of((uint32_t)type)->name;
    snprintf(name, sizeof name, quantized(type) ? "%s act %d" : "%s", type_name, bits);
    if (!family_begin(t, "product", name))
        return;
    for (size_t k = 0; k < count; k++)
        for (uint32_t i = 0; i < ROW_COUNTS; i++)
            for (int again = 0; again < (KS[k] <= 160 ? 3 : 1); again++)
                check_product_case(t, type, bits, KS[k], row_count(i));
    family_end();
}

void check_product(const struct tier *t) {
    static const enum weight_type TYPES[] = {WEIGHT_Q4_0, WEIGHT_Q4_1, WEIGHT_Q8_0,
                                             WEIGHT_F32,  WEIGHT_F16,  WEIGHT_BF16};
    check_act_pack(t, 8);
    check_act_pack(t, 16);
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        for (int bits = 8; bits <= (quantized(TYPES[i]) ? 16 : 8); bits += 8)
            check_product_type(t, TYPES[i], bits);
}
