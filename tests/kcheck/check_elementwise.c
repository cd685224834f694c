/* SPDX-License-Identifier: Apache-2.0 */
/* check_elementwise.c: rms_norm, rope, gates, add, scale and softcap. gamma as in
 * check_attention.c; the last rounding of each is that of ref's own result.
 *
 *   rms_norm  squares are positive: their sum over dim has the relative error gamma(dim + 1), its
 *             root half of that; mean, eps, root, quotient, two products: 6; 1
 *                                                              gamma(dim / 2 + 8) |y|
 *   rope      product, sum; 1                                  gamma(3) (|a cos| + |b sin|)
 *   gates     x sigmoid(v) with an argument v that is itself made by A roundings, so that e^-|v| is
 *             off by A u |v| at worst, and exp by 2 units in its last place: 4; 1 + e, quotient,
 *             the product with up: 3; 1
 *                                                              gamma(8 + A |v|) |y|
 *             silu v = x, sigmoid v = x: A = 0. gelu v = x (linear + cubic x^2), both constants
 *             rounded, x^2, one FMA, product: A = 4 (all terms have one sign). swiglu v = 1.702 x:
 *             A = 2; and up + 1: 1 more.
 *             Plus, where the sigmoid is below 2^-120, the error at the end of exp's range.
 *   add       scale 1: the bits of x + y; else product, sum, 1  gamma(3) (|x| + |scale y|)
 *   scale     one product: the bits
 *   softcap   t = x / cap: 1, and tanh loses none of it (|t tanh'(t)| <= |tanh t|).
 *             d = e^-2|t| - 1 = 2^n rest + (2^n - 1). n = 0: the polynomial's last rounding and
 *             what it is off by, below 2 u |d|. n < 0: rest is off by at most 1.6 u, times 2^n
 *             0.8 u, and the sum rounds: below 4 u |d|, as |d| >= 0.29. d / (2 + d) makes that 1.2
 *             times as large; it is less for larger |d|: 5. 2 + d, quotient, product: 3; 1
 *                                                              gamma(10) |y|
 *             and what is lost where x / cap is subnormal: cap 2^-148
 */
#include <math.h>
#include <string.h>

#include "kcheck.h"

static const uint32_t SIZES[] = {1,  2,  3,  4,  5,  7,  8,  9,  12,  15,  16,  17,  20,   31,
                                 32, 33, 48, 63, 64, 65, 80, 96, 100, 127, 128, 576, 1000, 1536};
enum { SIZE_COUNT = sizeof SIZES / sizeof *SIZES, TIMES = 20 };

static void check_rms_norm(const struct tier *t) {
    if (!family_begin(t, "rms_norm", ""))
        return;
    for (int i = 0; i < SIZE_COUNT * TIMES; i++) {
        uint32_t dim = SIZES[i % SIZE_COUNT];
        bool in_place = random_bits() & 1, ones = random_below(3) == 0;
        float eps = random_bits() & 1 ? 1e-5f : 1e-6f;
        case_begin("dim %u%s%s", dim, ones ? ", no gain" : "", in_place ? ", in place" : "");
        float *x = guarded(dim * sizeof *x), *gain = ones ? NULL : guarded(dim * sizeof *gain);
        float *y = in_place ? x : guarded(dim * sizeof *y), *was = plain(dim * sizeof *was);
        float *want = plain(dim * sizeof *want);
        fill_any(x, dim);
        if (gain) {
            fill_any(gain, dim);
            freeze(gain);
        }
        memcpy(was, x, dim * sizeof *was);
        if (!in_place)
            freeze(x);
        ref.rms_norm(was, gain, dim, eps, want);
        call_rms_norm(t->k.rms_norm, x, gain, dim, eps, y);
        double squares = 0;
        for (uint32_t j = 0; j < dim; j++)
            squares += (double)was[j] * was[j];
        for (uint32_t j = 0; j < dim; j++) {
            double exact = was[j] / sqrt(squares / dim + (double)eps) * (gain ? gain[j] : 1);
            double bound = gamma_of(dim / 2.0 + 8) * fabs(exact) + 0x1p-126;
            check_near("y", 0, j, y[j], want[j], bound);
            check_meaning("meaning of y", 0, j, y[j], exact, bound);
        }
        case_end();
    }
    family_end();
}

static void check_rope(const struct tier *t) {
    static const uint32_t NS[] = {2,  4,  6,  8,  10, 12,  16,  20,  24,
                                  32, 40, 48, 64, 96, 126, 128, 192, 256};
    if (!family_begin(t, "rope", ""))
        return;
    for (int i = 0; i < 18 * TIMES; i++) {
        uint32_t n = NS[i % 18];
        bool adjacent = random_bits() & 1;
        case_begin("%u pairs%s", n, adjacent ? ", adjacent" : "");
        float *x = guarded(2 * n * sizeof *x), *was = plain(2 * n * sizeof *was);
        float *c = guarded(n * sizeof *c), *s = guarded(n * sizeof *s);
        fill_any(x, 2 * n);
        memcpy(was, x, 2 * n * sizeof *was);
        for (uint32_t j = 0; j < n; j++) {
            float angle = random_normal() * 100;
            c[j] = cosf(angle);
            s[j] = sinf(angle);
        }
        freeze(c);
        freeze(s);
        call_rope(t->k.rope, x, n, c, s, adjacent);
        for (uint32_t j = 0; j < n; j++) {
            double a = adjacent ? was[2 * j] : was[j], b = adjacent ? was[2 * j + 1] : was[j + n];
            check_near("first", 0, j, x[j], a * c[j] - b * s[j],
                       gamma_of(3) * (fabs(a * c[j]) + fabs(b * s[j])) + 0x1p-148);
            check_near("second", 0, j, x[j + n], b * c[j] + a * s[j],
                       gamma_of(3) * (fabs(b * c[j]) + fabs(a * s[j])) + 0x1p-148);
        }
        case_end();
    }
    family_end();
}

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

/* The value and its bound, libm's double. */
static double gate_value(enum gate_kind kind, double x, double up, double *bound) {
    double v = x, roundings = 8, y;
    if (kind == GATE_NONE) {
        *bound = gamma_of(1) * fabs(x * up) + 0x1p-148;
        return x * up;
    }
    if (kind == GATE_GELU_TANH) {
        v = 2 * sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
        roundings += 4 * fabs(v);
    }
    if (kind == GATE_SWIGLU_CLAMPED) {
        x = x > 7 ? 7 : x;
        up = (up > 7 ? 7 : up < -7 ? -7 : up) + 1;
        v = 1.702 * x;
        roundings += 1 + 2 * fabs(v);
    }
    double factor = kind == GATE_SIGMOID ? 1 : x;
    y = factor * sigmoid(v) * up;
    /* where e^-|v| has left float32's range, so has y; gamma needs its argument below 2^24 */
    *bound = gamma_of(fmin(roundings, 0x1p20)) * fabs(y) + 0x1p-120 * fabs(factor * up) + 0x1p-126;
    return y;
}

/* A range cut in two gives the same bits: a value's place depends on the other rows of a step. */
static void check_cut(const float *whole, const float *first, uint32_t cut, const float *second,
                      uint32_t n) {
    check_that(memcmp(whole, first, cut * sizeof *whole) == 0 &&
                   memcmp(whole + cut, second, (n - cut) * sizeof *whole) == 0,
               "other bits when the range is cut at %u", cut);
}

static void cut_gate(const struct tier *t, enum gate_kind kind, const float *gate, const float *up,
                     uint32_t n, const float *y) {
    uint32_t cut = random_below(n + 1);
    float *first = plain((cut + 1) * sizeof *first),
          *second = plain((n - cut + 1) * sizeof *second);
    call_gate_mul(t->k.gate_mul[kind], gate, up, cut, first);
    call_gate_mul(t->k.gate_mul[kind], gate + cut, up + cut, n - cut, second);
    check_cut(y, first, cut, second, n);
}

static void check_gate(const struct tier *t, const char *name, enum gate_kind kind) {
    if (!family_begin(t, "gate_mul", name))
        return;
    for (int i = 0; i < SIZE_COUNT * TIMES; i++) {
        uint32_t n = SIZES[i % SIZE_COUNT], place = random_below(3);
        bool wide = random_bits() & 1;
        case_begin("%u values%s", n, place ? ", in place" : "");
        float *gate = guarded(n * sizeof *gate), *up = guarded(n * sizeof *up);
        float *y = place == 1 ? gate : place == 2 ? up : guarded(n * sizeof *y);
        float *g = plain(n * sizeof *g), *u = plain(n * sizeof *u), *want = plain(n * sizeof *want);
        fill_any(gate, n);
        for (uint32_t j = 0; wide && j < n; j++)
            gate[j] = ((float)random_below(4001) - 2000) * 0.1f; /* both ends of exp */
        fill_any(up, n);
        if (random_below(4) == 0) /* not finite: must not become a number */
            (random_bits() & 1 ? gate : up)[n / 2] = EDGE_VALUE[random_below(3)];
        memcpy(g, gate, n * sizeof *g);
        memcpy(u, up, n * sizeof *u);
        if (place != 1)
            freeze(gate);
        if (place != 2)
            freeze(up);
        ref.gate_mul[kind](g, u, n, want);
        call_gate_mul(t->k.gate_mul[kind], gate, up, n, y);
        for (uint32_t j = 0; j < n; j++) {
            double bound, exact = gate_value(kind, g[j], u[j], &bound);
            check_near("y", 0, j, y[j], want[j], bound);
            check_meaning("meaning of y", 0, j, y[j], exact, bound);
        }
        cut_gate(t, kind, g, u, n, y);
        case_end();
    }
    family_end();
}

static void cut_add(const struct tier *t, const float *x, const float *y, float scale, uint32_t n,
                    const float *sum) {
    uint32_t cut = random_below(n + 1);
    float *first = plain((cut + 1) * sizeof *first),
          *second = plain((n - cut + 1) * sizeof *second);
    memcpy(first, x, cut * sizeof *x);
    memcpy(second, x + cut, (n - cut) * sizeof *x);
    call_add(t->k.add, first, y, scale, cut);
    call_add(t->k.add, second, y + cut, scale, n - cut);
    check_cut(sum, first, cut, second, n);
}

static void check_add(const struct tier *t) {
    static const float SCALES[] = {1, 0, -1, 0.22f, 1e-3f, -12};
    if (!family_begin(t, "add", ""))
        return;
    for (int i = 0; i < SIZE_COUNT * TIMES; i++) {
        uint32_t n = SIZES[i % SIZE_COUNT];
        float scale = random_bits() & 1 ? 1 : SCALES[random_below(6)];
        case_begin("%u values, scale %g", n, (double)scale);
        float *x = guarded(n * sizeof *x), *y = guarded(n * sizeof *y), *was = plain(n * sizeof *x);
        fill_any(x, n);
        fill_any(y, n);
        freeze(y);
        memcpy(was, x, n * sizeof *x);
        call_add(t->k.add, x, y, scale, n);
        for (uint32_t j = 0; j < n; j++) {
            float sum = was[j] + y[j];
            double exact = was[j] + (double)scale * y[j];
            if (scale == 1)
                check_that(memcmp(&x[j], &sum, sizeof sum) == 0, "other bits than x + y");
            check_near("x", 0, j, x[j], exact,
                       gamma_of(3) * (fabs(was[j]) + fabs((double)scale * y[j])) + 0x1p-148);
        }
        cut_add(t, was, y, scale, n, x);
        case_end();
    }
    family_end();
}

static void check_scale(const struct tier *t) {
    if (!family_begin(t, "scale", ""))
        return;
    for (int i = 0; i < SIZE_COUNT * TIMES; i++) {
        uint32_t n = SIZES[i % SIZE_COUNT];
        float scale = random_normal();
        case_begin("%u values", n);
        float *x = guarded(n * sizeof *x), *want = plain(n * sizeof *x);
        fill_any(x, n);
        for (uint32_t j = 0; j < n; j++)
            want[j] = x[j] * scale;
        call_scale(t->k.scale, x, scale, n);
        check_that(memcmp(x, want, n * sizeof *x) == 0, "other bits than x * scale");
        case_end();
    }
    family_end();
}

static void cut_softcap(const struct tier *t, const float *x, uint32_t n, float cap,
                        const float *want) {
    uint32_t cut = random_below(n + 1);
    float *first = plain((cut + 1) * sizeof *first),
          *second = plain((n - cut + 1) * sizeof *second);
    memcpy(first, x, cut * sizeof *x);
    memcpy(second, x + cut, (n - cut) * sizeof *x);
    call_softcap(t->k.softcap, first, cut, cap);
    call_softcap(t->k.softcap, second, n - cut, cap);
    check_cut(want, first, cut, second, n);
}

static void check_softcap(const struct tier *t) {
    static const float CAPS[] = {50, 30, 1, 0.1f, 1e4f};
    if (!family_begin(t, "softcap", ""))
        return;
    for (int i = 0; i < SIZE_COUNT * TIMES; i++) {
        uint32_t n = SIZES[i % SIZE_COUNT];
        float cap = CAPS[random_below(5)];
        uint32_t how = random_below(4);
        case_begin("%u values, cap %g", n, (double)cap);
        float *x = guarded(n * sizeof *x), *was = plain(n * sizeof *was);
        float *want = plain(n * sizeof *want);
        fill_any(x, n);
        for (uint32_t j = 0; how < 2 && j < n; j++) /* all of tanh, then its end and small values */
            x[j] = how == 0 ? random_normal() * cap : ldexpf(cap, (int)random_below(40) - 30);
        if (how == 2)
            x[n / 2] = random_bits() & 1 ? INFINITY : NAN;
        memcpy(was, x, n * sizeof *was);
        memcpy(want, x, n * sizeof *want);
        ref.softcap(want, n, cap);
        call_softcap(t->k.softcap, x, n, cap);
        for (uint32_t j = 0; j < n; j++) {
            double exact = cap * tanh((double)was[j] / cap);
            double bound = gamma_of(10) * fabs(exact) + (cap + 1) * 0x1p-148;
            check_near("x", 0, j, x[j], want[j], bound);
            check_meaning("meaning of x", 0, j, x[j], exact, bound);
        }
        cut_softcap(t, was, n, cap, x);
        case_end();
    }
    family_end();
}

void check_elementwise(const struct tier *t) {
    check_rms_norm(t);
    check_rope(t);
    check_gate(t, "none", GATE_NONE);
    check_gate(t, "silu", GATE_SILU);
    check_gate(t, "gelu_tanh", GATE_GELU_TANH);
    check_gate(t, "sigmoid", GATE_SIGMOID);
    check_gate(t, "swiglu_clamped", GATE_SWIGLU_CLAMPED);
    check_add(t);
    check_scale(t);
    check_softcap(t);
}
