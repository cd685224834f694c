/* SPDX-License-Identifier: Apache-2.0 */
/* check_product.c: product on CUDA against the same arithmetic in double.
 *
 * Activations are rounded here as act_pack_ref does it (cpu/ref/product.c), weights are taken from
 * the parts of weight_traits: codes, d and m of each block of 32. With scale_b and sum_b of a block
 * of activations an output is
 *
 *     sum over blocks  d * scale_b * dot  (+ m * sum_b)  (+ bias)
 *
 * Bound. The kernel (product.cu) has one float32 accumulator in each run of 512 inputs, into which
 * a block adds one term, or two where the type has_min; the runs' sums are added in order, then the
 * bias. A dot is exact. So a term is rounded once as it is made (d * scale; sum), at most T times
 * as terms of its run are added (T: terms of a run), at most R times as runs are (R: runs), and
 * once with the bias:
 *
 *     gamma(T + R + 2) sum|terms|,    and 2^-122 a block, where d * scale is subnormal
 *
 * 4-bit matrices and activations of 8 bits: the products of halves.cuh, rounded as there.
 *
 * Independence (O2): a row has the same bits alone, with other rows, at another place, and with a
 * matrix cut to its first outputs.
 *
 * Blocks with NaN and infinities: their rows are not finite, the others' bits stay.
 */
#include <math.h>
#include <string.h>

#include "backend/cpu/kernels.h"
#include "opcheck.h"
#include "random_weights.h"

enum {
    BLOCK = 32,
    RUN = 512,
    ROWS_MAX = 100,
    N_MAX = 100,
    K_MAX = WEIGHT_K_MAX,
    BLOCKS_MAX = K_MAX / BLOCK,
    PARTS_MAX = K_MAX / 16
};

/* d x scale may be subnormal (2^-150 lost) times a dot of up to 2^27 */
#define UNDERFLOW 0x1p-122

struct product_case {
    const struct weight_traits *traits;
    struct weight w;
    const float *x;    /* [rows][k] */
    const float *bias; /* [n] or NULL */
    uint32_t rows;
    int bits;
};

static bool is_float(const struct product_case *c) {
    return c->traits->run_values == 0;
}

/* ---- the reference --------------------------------------------------------------------------- */

struct act_row {
    int codes[K_MAX];
    float scale[BLOCKS_MAX];
};
struct weight_parts {
    int8_t codes[K_MAX];
    float d[PARTS_MAX], m[PARTS_MAX];
    float values[K_MAX]; /* of float types */
};

static float magnitude(const float *x) {
    float m = 0;
    for (int i = 0; i < BLOCK; i++) {
        if (isnan(x[i]))
            return x[i];
        m = fmaxf(m, fabsf(x[i]));
    }
    return m;
}

static void round_row(const float *x, uint32_t k, int bits, struct act_row *a) {
    for (uint32_t b = 0; b < k / BLOCK; b++, x += BLOCK) {
        struct rounding r = rounding_of(magnitude(x), bits == 8 ? ACT8_MAX : ACT16_MAX);
        for (uint32_t i = 0; i < BLOCK; i++)
            a->codes[b * BLOCK + i] = r.per_unit == 0 ? 0 : (int)rintf(x[i] * r.per_unit);
        a->scale[b] = r.scale;
    }
}

static void compare_output(const struct product_case *c, const struct act_row *a,
                           const struct weight_parts *w, uint32_t row, uint32_t j, float got) {
    const uint32_t part = c->traits->run_values, parts = c->w.k / part;
    const uint32_t per_run = parts < RUN / part ? parts : RUN / part;
    double want = 0, terms = 0, bias = c->bias ? c->bias[j] : 0;
    for (uint32_t b = 0; b < parts; b++) {
        int dot = 0, sum = 0;
        for (uint32_t i = b * part; i < (b + 1) * part; i++) {
            dot += a->codes[i] * w->codes[i];
            sum += a->codes[i];
        }
        const double scale = a->scale[b * part / BLOCK], term = w->d[b] * scale * dot;
        const double low = c->traits->has_min ? w->m[b] * scale * sum : 0;
        /* AFFINE8's codes are unsigned there: 128 d more in the term, less in the other */
        const double moved = c->w.type == WEIGHT_AFFINE8 ? 128 * w->d[b] * scale * sum : 0;
        want += term + low;
        terms += fabs(term) + fabs(low) + 2 * fabs(moved);
    }
    double roundings = per_run * (c->traits->has_min ? 2 : 1) + (parts - 1) / (RUN / part) + 4;
    double bound = gamma_of(roundings) * (terms + fabs(bias)) + parts * UNDERFLOW;
    check_near("output", row, j, got, want + bias, bound);
}

/* ---- 4-bit matrices by f16 (halves.cuh) ---- */

static double power_below(double most) { /* 2^e <= most < 2^(e + 1); 1 for 0 */
    int e = 1;
    (void)frexp(most, &e);
    return most == 0 ? 1 : ldexp(1, e - 1);
}
static double round_f16(double v) { /* of less than 2^16 */
    const double unit = fmax(power_below(fabs(v)), 0x1p-14) * 0x1p-10;
    return nearbyint(v / unit) * unit;
}
/* Weights of an output, times 2^-24 and 1 / its unit. Returns the unit. */
static double halves_of(const struct product_case *c, const struct weight_parts *w, double *out) {
    const uint32_t part = c->traits->run_values;
    const bool biased = c->traits->has_min;
    double most = 0;
    for (uint32_t i = 0; i < c->w.k / part; i++)
        most = fmax(most, fmax(fabs(w->d[i]), biased ? fabs(w->m[i]) / 8 : 0));
    const double unit = most == 0 ? 1 : power_below(most) * 0x1p-14;
    for (uint32_t i = 0; i < c->w.k; i++) {
        const double d = round_f16(w->d[i / part] / unit);
        const double m = biased ? round_f16(w->m[i / part] / unit / 8) * 0x1p-21 : d * -0x1p-21;
        const double high = i % BLOCK < BLOCK / 2 ? d : 16 * round_f16(d / 16);
        const int code = biased ? w->codes[i] : w->codes[i] + 8;
        out[i] = round_f16(high * 0x1p-24 * code + round_f16(m));
    }
    return unit;
}
/* Instructions of 16 products, which are exact. A tensor core aligns them, and what it adds them
 * to, by their exponents and cuts off what is below 2^-23 of the largest; the exponent of a
 * subnormal factor is the least one of normal numbers, 2^-14. Then float32 sums of the runs. */
static void compare_halves(const struct product_case *c, const double *w, double unit, uint32_t row,
                           uint32_t j, float got) {
    const float *x = c->x + (size_t)row * c->w.k;
    double want = 0, terms = 0, cut = 0, bias = c->bias ? c->bias[j] : 0;
    for (uint32_t run = 0; run < c->w.k; run += RUN) {
        const uint32_t end = run + RUN < c->w.k ? run + RUN : c->w.k;
        double most = 0, sum = 0;
        for (uint32_t i = run; i < end; i++)
            most = isfinite(x[i]) && !isnan(most) ? fmax(most, fabs(x[i])) : NAN;
        const double power = isnan(most) ? NAN : fmin(fmax(power_below(most), 0x1p-126), 0x1p126);
        const double units = power * unit * 0x1p24;
        for (uint32_t first = run; first < end; first += 16) {
            double largest = fabs(sum);
            for (uint32_t i = first; i < first + 16; i++) {
                const double x16 = round_f16(x[i] / power);
                sum += x16 * w[i];
                terms += fabs(x16 * w[i] * units);
                largest = fmax(largest, fmax(fabs(x16), 0x1p-14) * fmax(fabs(w[i]), 0x1p-14));
            }
            cut += 17 * 0x1p-23 * largest * units;
        }
        want += sum * units;
    }
    check_near("output", row, j, got, want + bias,
               cut + (terms + fabs(bias)) * 0x1p-20 + UNDERFLOW);
}

/* A matrix of floats. float32: a chain of k / 32 terms in each lane, and a tree. Else x in two
 * planes: of bf16 16 bits, of f16 22 bits of the run's largest; chains of instructions, each of
 * which may cut off what is below 2^-22 of its sum. */
static void compare_floats(const struct product_case *c, const struct weight_parts *w, uint32_t row,
                           uint32_t j, float got) {
    const float *x = c->x + (size_t)row * c->w.k;
    double want = c->bias ? c->bias[j] : 0, terms = fabs(want), cut = 0;
    for (uint32_t run = 0; run < c->w.k; run += RUN) {
        const uint32_t end = run + RUN < c->w.k ? run + RUN : c->w.k;
        double most = 0, weights = 0;
        for (uint32_t i = run; i < end; i++) {
            want += (double)x[i] * w->values[i];
            terms += fabs((double)x[i] * w->values[i]);
            most = fmax(most, fabs(x[i]));
            weights += fabs(w->values[i]);
        }
        cut += most * weights * 0x1p-22;
    }
    double bound = gamma_of(c->w.k / 32 + 8) * terms + 1e-37;
    if (c->w.type == WEIGHT_F16)
        bound = cut + terms * 0x1p-16;
    else if (c->w.type == WEIGHT_BF16)
        bound = terms * (0x1p-16 + 0x1p-16);
    check_near("output", row, j, got, want, bound);
}

static void compare_outputs(const struct product_case *c, const float *y) {
    struct act_row *acts = plain(c->rows * sizeof *acts);
    struct weight_parts *parts = plain(sizeof *parts);
    double *halves = plain(K_MAX * sizeof *halves);
    for (uint32_t row = 0; row < c->rows && !is_float(c); row++)
        round_row(c->x + (size_t)row * c->w.k, c->w.k, c->bits, &acts[row]);
    for (uint32_t j = 0; j < c->w.n; j++) {
        if (is_float(c))
            c->traits->decode(&c->w, j, parts->values);
        else
            c->traits->parts(&c->w, j, parts->codes, parts->d, parts->m);
        const double unit = by_f16(&c->w, c->bits) ? halves_of(c, parts, halves) : 0;
        for (uint32_t row = 0; row < c->rows; row++) {
            const float got = y[(size_t)row * c->w.n + j];
            if (by_f16(&c->w, c->bits))
                compare_halves(c, halves, unit, row, j, got);
            else if (is_float(c))
                compare_floats(c, parts, row, j, got);
            else
                compare_output(c, &acts[row], parts, row, j, got);
        }
    }
}

/* ---- a case ---------------------------------------------------------------------------------- */

/* y of `rows` rows of x (host), outputs [0, n) of the matrix. */
static const float *run_product(const struct product_case *c, const struct backend_weight *w,
                                const float *x, uint32_t rows, uint32_t n) {
    size_t bytes = (size_t)rows * n * sizeof(float);
    float *y = device_buffer(bytes);
    const float *bias = c->bias ? device_copy(c->bias, n * sizeof *bias) : NULL;
    op_matmul(device, device_copy(x, (size_t)rows * c->w.k * sizeof *x), rows, &w, &bias, &y, 1);
    return from_device(y, bytes);
}

/* Rows [first, first + rows), rotated by a random number of rows, have the bits of y. */
static void check_company(const struct product_case *c, const struct backend_weight *w,
                          uint32_t first, uint32_t rows, uint32_t n, const float *y) {
    uint32_t k = c->w.k, turn = rows > 1 ? random_below(rows) : 0;
    float *x = plain((size_t)rows * k * sizeof *x);
    for (uint32_t i = 0; i < rows; i++)
        memcpy(x + (size_t)i * k, c->x + (size_t)(first + (i + turn) % rows) * k, k * sizeof *x);
    const float *got = run_product(c, w, x, rows, n);
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t row = first + (i + turn) % rows;
        check_that(memcmp(got + (size_t)i * n, y + (size_t)row * c->w.n, n * sizeof *got) == 0,
                   "row %u: other bits as row %u of %u with %u outputs than among %u with %u", row,
                   i, rows, n, c->rows, c->w.n);
    }
}

static void check_invariance(const struct product_case *c, const struct backend_weight *w,
                             const float *y) {
    check_company(c, w, random_below(c->rows), 1, c->w.n, y);
    if (c->rows > 1) {
        uint32_t rows = 1 + random_below(c->rows);
        check_company(c, w, random_below(c->rows - rows + 1), rows, c->w.n, y);
    }
    if (c->w.n == 1)
        return;
    /* the same matrix without its last rows */
    struct weight less = c->w;
    const struct backend_weight *cut;
    kvasir_error err = {0};
    less.n = 1 + random_below(c->w.n - 1);
    if (backend_weight_put(device, &less, &cut, &err) != KVASIR_OK) {
        check_that(false, "weight_put of %u outputs: %s", less.n, err.text);
        return;
    }
    check_company(c, cut, 0, c->rows, less.n, y);
    backend_weight_drop(device, cut);
}

static float *make_x(uint32_t rows, uint32_t k, bool extremes) {
    float *x = plain((size_t)rows * k * sizeof *x);
    for (uint32_t row = 0; row < rows; row++) {
        float *at = x + (size_t)row * k;
        bool odd = extremes && random_bits() & 1;
        fill(at, k, odd ? (enum fill_kind)random_below(FILL_KINDS) : FILL_NORMAL);
        if (extremes && random_below(16) == 0) /* this row's outputs alone are not finite */
            at[random_below(k)] = random_bits() & 1 ? NAN : -INFINITY;
    }
    return x;
}

static void check_case(struct product_case *c, uint32_t n, uint32_t k, bool extremes) {
    c->w.n = n;
    c->w.k = k;
    case_begin("%u rows, n %u, k %u%s%s", c->rows, n, k, c->bias ? ", bias" : "",
               extremes ? ", extremes" : "");
    make_weight(&c->w, extremes, plain);
    c->x = make_x(c->rows, k, extremes);
    float *bias = plain(n * sizeof *bias);
    fill(bias, n, FILL_NORMAL);
    c->bias = random_bits() & 1 ? bias : NULL;
    const struct backend_weight *w;
    kvasir_error err = {0};
    if (backend_weight_put(device, &c->w, &w, &err) != KVASIR_OK) {
        check_that(false, "weight_put: %s", err.text);
        return;
    }
    const float *y = run_product(c, w, c->x, c->rows, n);
    compare_outputs(c, y);
    check_invariance(c, w, y);
    backend_weight_drop(device, w);
}

/* Every number of rows with some shape, every shape with some number of rows. */
static void check_type(enum weight_type type, uint32_t way, int bits) {
    static const uint32_t ROWS[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                    13, 14, 15, 16, 17, 31, 32, 33, 64, 65, 100};
    static const uint32_t NS[] = {1, 15, 16, 17, 100};
    static const uint32_t KS[] = {32, 64, 96, 512, 544, 1024, 1536};
    enum { ROW_COUNTS = sizeof ROWS / sizeof *ROWS, SHAPES = 5 * 7 };
    const struct weight_traits *t = weight_traits_of(type);
    struct product_case c = {.traits = t, .bits = bits};
    for (uint32_t i = 0; i < (quick ? 6 : SHAPES); i++) {
        /* 35 shapes and 23 row counts have no divisor in common: the pairs differ every time */
        const uint32_t at = quick ? random_below(SHAPES) : i, n = NS[at / 7 % 5];
        weight_shape(&c.w, type, way, n, KS[at % 7]);
        const uint32_t unit = is_float(&c) ? 1 : c.w.group ? c.w.group : t->block_values;
        const uint32_t k = (KS[at % 7] + unit - 1) / unit * unit;
        c.rows = ROWS[quick ? random_below(ROW_COUNTS) : i % ROW_COUNTS];
        c.bias = NULL;
        check_case(&c, n, k, i % 2 != 0 && !is_float(&c));
    }
}

/* Matrices with enough outputs for the kernels that make more of them at a time: rows have the bits
 * that they have alone, which check_type compares with the reference. */
static void check_wide(enum weight_type type) {
    static const struct {
        uint32_t rows, n, k;
    } CASES[] = {{20, 9000, 1056}, {50, 9000, 1056}, {100, 9000, 544}, {100, 17000, 1056}};
    struct product_case c = {.traits = weight_traits_of(type), .bits = 8};
    for (size_t i = 0; i < (quick ? 1 : sizeof CASES / sizeof *CASES); i++) {
        const struct backend_weight *w;
        kvasir_error err = {0};
        weight_shape(&c.w, type, 0, CASES[i].n, CASES[i].k);
        c.w.n = CASES[i].n;
        c.w.k = CASES[i].k / 64 * 64 + (c.w.group > 32 ? 64 : 32);
        c.rows = CASES[i].rows;
        case_begin("%u rows, n %u, k %u", c.rows, c.w.n, c.w.k);
        make_weight(&c.w, false, plain);
        c.x = make_x(c.rows, c.w.k, false);
        must(backend_weight_put(device, &c.w, &w, &err), &err, "weight_put");
        const float *y = run_product(&c, w, c.x, c.rows, c.w.n);
        for (int row = 0; row < 3; row++)
            check_company(&c, w, random_below(c.rows), 1, c.w.n, y);
        backend_weight_drop(device, w);
    }
}

static void check_refusals(void) {
    if (!family_begin("weight_put", "refusals"))
        return;
    case_begin("what has no product");
    static const uint8_t bytes[1 << 12];
    struct weight w = {.data = bytes, .scales = bytes, .biases = bytes, .n = 4, .k = 130};
    const struct backend_weight *out;
    w.type = WEIGHT_Q8_0;
    check_that(backend_weight_put(device, &w, &out, NULL) == KVASIR_ERR_ARGUMENT, "130 inputs");
    w.k = 128;
    w.type = (enum weight_type)999;
    check_that(backend_weight_put(device, &w, &out, NULL) == KVASIR_ERR_UNSUPPORTED, "no type");
    family_end();
}

static const struct backend_limits LIMITS = {.rows = ROWS_MAX,
                                             .seqs = 1,
                                             .dim = K_MAX,
                                             .head_dim = 64,
                                             .pages = 4,
                                             .groups = 1,
                                             .group = {{1, 1, 64, false}}};

void check_cuda_product(void) {
    for (int bits = 8; bits <= 16; bits += 8) {
        device_begin(&LIMITS, bits);
        for (uint32_t i = 0; weight_traits_at(i); i++) {
            const struct weight_traits *t = weight_traits_at(i);
            for (uint32_t way = 0; way < weight_ways(t->type); way++)
                if ((bits == 8 || t->run_values > 0) &&
                    family_begin("matmul", "%s way %u act %d", t->name, way, bits)) {
                    check_type(t->type, way, bits);
                    family_end();
                }
        }
    }
    device_begin(&LIMITS, 8);
    static const enum weight_type WIDE[] = {WEIGHT_Q4_0, WEIGHT_Q4_1, WEIGHT_AFFINE4};
    for (size_t i = 0; i < sizeof WIDE / sizeof *WIDE; i++)
        if (family_begin("matmul", "%s, many outputs", weight_traits_of(WIDE[i])->name)) {
            check_wide(WIDE[i]);
            family_end();
        }
    check_refusals();
}
