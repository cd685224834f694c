/* SPDX-License-Identifier: Apache-2.0 */
/* check_elementwise.c: rms_norm, rope, silu_mul and add. gamma as in check_attention.c; the last
 * rounding of each is that of ref's own result.
 *
 *   rms_norm  squares are positive: their sum over dim has the relative error gamma(dim + 1), its
 *             root half of that; mean, eps, root, quotient, two products: 6; 1
 *                                                              gamma(dim / 2 + 8) |y|
 *   rope      product, sum; 1                                  gamma(3) (|a cos| + |b sin|)
 *   silu_mul  exp within 2 units in the last place: 4; 1 + e, quotient, product; 1
 *                                                              gamma(8) |y|
 *             and, where the sigmoid is below 2^-120, what the end of exp's range leaves
 *   add       one addition: the bits
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
        bool in_place = random_bits() & 1;
        float eps = random_bits() & 1 ? 1e-5f : 1e-6f;
        case_begin("dim %u%s", dim, in_place ? ", in place" : "");
        float *x = guarded(dim * sizeof *x), *gain = guarded(dim * sizeof *gain);
        float *y = in_place ? x : guarded(dim * sizeof *y), *was = plain(dim * sizeof *was);
        float *want = plain(dim * sizeof *want);
        fill_any(x, dim);
        fill_any(gain, dim);
        freeze(gain);
        memcpy(was, x, dim * sizeof *was);
        if (!in_place)
            freeze(x);
        ref.rms_norm(was, gain, dim, eps, want);
        call_rms_norm(t->k.rms_norm, x, gain, dim, eps, y);
        double squares = 0;
        for (uint32_t j = 0; j < dim; j++)
            squares += (double)was[j] * was[j];
        for (uint32_t j = 0; j < dim; j++) {
            double exact = was[j] / sqrt(squares / dim + (double)eps) * gain[j];
            double bound = gamma_of(dim / 2.0 + 8) * fabs(exact) + 0x1p-126;
            check_near("y", 0, j, y[j], want[j], bound);
            check_meaning("meaning of y", 0, j, y[j], exact, bound);
        }
        case_end();
    }
    family_end();
}

static void check_rope(const struct tier *t) {
    static const uint32_t NS[] = {2, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 126, 128};
    if (!family_begin(t, "rope", ""))
        return;
    for (int i = 0; i < 16 * TIMES; i++) {
        uint32_t n = NS[i % 16];
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

static void check_silu_mul(const struct tier *t) {
    if (!family_begin(t, "silu_mul", ""))
        return;
    for (int i = 0; i < SIZE_COUNT * TIMES; i++) {
        uint32_t n = SIZES[i % SIZE_COUNT];
        bool in_place = random_bits() & 1, wide = random_bits() & 1;
        case_begin("%u values%s", n, in_place ? ", in place" : "");
        float *gate = guarded(n * sizeof *gate), *up = guarded(n * sizeof *up);
        float *y = in_place ? gate : guarded(n * sizeof *y), *was = plain(n * sizeof *was);
        fill_any(gate, n);
        for (uint32_t j = 0; wide && j < n; j++)
            gate[j] = ((float)random_below(4001) - 2000) * 0.1f; /* both ends of exp */
        fill_any(up, n);
        freeze(up);
        memcpy(was, gate, n * sizeof *was);
        if (!in_place)
            freeze(gate);
        call_silu_mul(t->k.silu_mul, gate, up, n, y);
        for (uint32_t j = 0; j < n; j++) {
            double g = was[j], exact = g / (1 + exp(-g)) * up[j];
            check_near("y", 0, j, y[j], exact,
                       gamma_of(8) * fabs(exact) + 0x1p-120 * fabs(g * up[j]) + 0x1p-126);
        }
        case_end();
    }
    family_end();
}

static void check_add(const struct tier *t) {
    if (!family_begin(t, "add", ""))
        return;
    for (int i = 0; i < SIZE_COUNT * TIMES; i++) {
        uint32_t n = SIZES[i % SIZE_COUNT];
        case_begin("%u values", n);
        float *x = guarded(n * sizeof *x), *y = guarded(n * sizeof *y),
              *want = plain(n * sizeof *x);
        fill_any(x, n);
        fill_any(y, n);
        freeze(y);
        for (uint32_t j = 0; j < n; j++)
            want[j] = x[j] + y[j];
        call_add(t->k.add, x, y, n);
        check_that(memcmp(x, want, n * sizeof *x) == 0, "other bits than x + y");
        case_end();
    }
    family_end();
}

void check_elementwise(const struct tier *t) {
    check_rms_norm(t);
    check_rope(t);
    check_silu_mul(t);
    check_add(t);
}
