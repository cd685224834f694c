/* SPDX-License-Identifier: Apache-2.0 */
/* util/: our exp, log, tanh, sin and cos against libm (good to an ulp here), errors as text, items
 * in order of rank. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "util/ranked.h"

#include <cmocka.h>

static double unit(void) {
    return (double)rand() / RAND_MAX * 2 - 1;
}

/* m_exp_each gives the bits of m_exp for every element, wherever it is in the array. */
static void test_exp_each(void **state) {
    (void)state;
    static const double ends[] = {
        0,        -0.0,   1,    -1e-300, 709.782712893384, 709.7827128933841, -745,
        -745.133, -745.2, -746, -708.4,  INFINITY,         -INFINITY};
    double x[1003], each[1003];
    for (int round = 0; round < 100; round++) {
        const size_t n = 1 + (size_t)rand() % 1003;
        for (size_t i = 0; i < n; i++)
            x[i] = rand() % 8 ? unit() * (i % 2 ? 760 : 40)
                              : ends[(size_t)rand() % (sizeof ends / sizeof *ends)];
        x[rand() % (int)n] = NAN;
        memcpy(each, x, n * sizeof *x);
        m_exp_each(each, n);
        for (size_t i = 0; i < n; i++) {
            const double alone = m_exp(x[i]);
            assert_memory_equal(&each[i], &alone, sizeof alone);
        }
    }
}

/* m_exp_sum is the sum of exponentials to 1e-6, of one to a few roundings of floats, and that of
 * blocks of 1,024 one after the other. */
static void test_exp_sum(void **state) {
    (void)state;
    static float x[5000];
    for (int round = 0; round < 200; round++) {
        const size_t n = 1 + (size_t)rand() % 5000;
        const float max = (float)(unit() * 30);
        double exact = 0;
        for (size_t i = 0; i < n; i++)
            x[i] = max - (float)(fabs(unit()) * (round % 2 ? 20 : 90));
        x[rand() % (int)n] = max;
        for (size_t i = 0; i < n; i++)
            exact += exp((double)x[i] - (double)max);
        assert_true(fabs(m_exp_sum(x, n, max, 1) - exact) <= 1e-6 * exact);
        double lanes = 0;
        for (size_t at = 0; at < n; at += 1024)
            lanes += m_exp_sum(x + at, n - at < 1024 ? n - at : 1024, max, 1);
        assert_true(fabs(m_exp_sum(x, n, max, 1) - lanes) <= 1e-15 * lanes);
    }
    const float pair[] = {-2, -6};
    assert_true(fabs(m_exp_sum(pair, 2, -2, 0.5f) - (1 + exp(-2))) <= 1e-7);
    for (float t = 0; t > -87; t -= 0.01f)
        assert_true(fabs(m_exp_sum(&t, 1, 0, 1) - exp((double)t)) <= 3e-7 * exp((double)t));
    const float ends[] = {-INFINITY, NAN, -1e30f, -100};
    assert_true(m_exp_sum(ends, 4, 0, 1) < 1e-37 && m_exp_sum(ends, 4, 0, 1) >= 0);
}

static void test_exp_log(void **state) {
    (void)state;
    for (int i = 0; i < 200000; i++) {
        double x = unit() * (i % 2 ? 700 : 1), e = exp(x);
        assert_true(fabs(m_exp(x) - e) <= 4.5e-16 * e);
        double y = ldexp(unit() + 1.001, rand() % 400 - 200), l = log(y);
        assert_true(fabs(m_log(y) - l) <= 4.5e-16 * fmax(fabs(l), 1));
    }
    assert_true(m_exp(-800) == 0 && m_exp(0) == 1 && isinf(m_exp(800)) && isnan(m_exp(NAN)));
    assert_true(fabs(m_exp(-740) - exp(-740)) <= 5e-324);
    assert_true(m_expf(-INFINITY) == 0 && m_expf(0) == 1);
    assert_true(isinf(m_log(0)) && isnan(m_log(-1)) && m_log(1) == 0);
    assert_true(fabs(m_log(5e-324) - log(5e-324)) < 1e-12);
}

static void test_tanh(void **state) {
    (void)state;
    for (int i = 0; i < 200000; i++) {
        double x = ldexp(unit(), rand() % 20 - (i % 2 ? 12 : 60)), e = exp(-x);
        assert_true(fabs(m_tanh(x) - tanh(x)) <= 9e-16 * fabs(tanh(x)));
        assert_true(fabs(m_sigmoid(x) - 1 / (1 + e)) <= 9e-16 / (1 + e));
        double soft = log1p(exp(-fabs(x))) + fmax(x, 0);
        assert_true(fabs(m_softplus(x) - soft) <= 9e-16 * soft);
    }
    assert_true(m_tanh(1e300) == 1 && m_tanh(-INFINITY) == -1 && m_tanh(0) == 0);
    assert_true(m_sigmoid(-INFINITY) == 0 && m_sigmoid(1e300) == 1 && m_sigmoid(-1e300) == 0);
    assert_true(m_softplus(1e300) == 1e300 && m_softplus(-INFINITY) == 0);
    assert_true(isnan(m_tanh(NAN)) && isnan(m_sigmoid(NAN)) && isnan(m_softplus(NAN)));
}

static void test_sincos(void **state) {
    (void)state;
    for (int i = 0; i < 200000; i++) {
        double x = ldexp(unit(), rand() % 40), s, c;
        m_sincos(x, &s, &c);
        assert_true(fabs(s - sin(x)) <= 4.5e-16 && fabs(c - cos(x)) <= 4.5e-16);
    }
    double s, c;
    m_sincos(1e300, &s, &c); /* outside the domain: defined, not undefined */
    assert_true(s == 0 && c == 1);
    m_sincos(NAN, &s, &c);
    assert_true(s == 0 && c == 1);
}

static void test_errors(void **state) {
    (void)state;
    kvasir_error err;
    assert_int_equal((fail)(&err, KVASIR_ERR_IO, "a\nb%d", 7), KVASIR_ERR_IO);
    assert_string_equal(err.text, "a?b7"); /* one line, even if a name contains a line end */
    assert_int_equal(err.offset, -1);
    fail_prefix(&err, "file");
    assert_string_equal(err.text, "file: a?b7");
    char longer[2000];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = 0;
    fail_prefix(&err, longer);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_int_equal(fail_at(NULL, KVASIR_ERR_FORMAT, 3, "x"), KVASIR_ERR_FORMAT);
    fail_prefix(NULL, "x");
    assert_null(err.field);
    assert_int_equal(fail_field(&err, KVASIR_ERR_ARGUMENT, "context.ctx", "%d", 1),
                     KVASIR_ERR_ARGUMENT);
    assert_string_equal(err.field, "context.ctx");
    assert_int_equal(fail_of_field(KVASIR_OK, &err, "context.threads"), KVASIR_OK);
    assert_string_equal(err.field, "context.ctx");
    assert_int_equal(fail_of_field(KVASIR_ERR_IO, &err, "context.threads"), KVASIR_ERR_IO);
    assert_string_equal(err.field, "context.threads");
    assert_int_equal(fail_of_field(KVASIR_ERR_IO, NULL, "context.threads"), KVASIR_ERR_IO);
    assert_int_equal((fail)(&err, KVASIR_ERR_IO, "x"), KVASIR_ERR_IO);
    assert_null(err.field);
}

/* Rising ranks, and items of equal rank in the order in which they were. */
static void test_ranked_sort(void **state) {
    (void)state;
    struct ranked items[300], scratch[300];
    for (int round = 0; round < 2000; round++) {
        const uint32_t n = (uint32_t)rand() % 300;
        const uint64_t ranks = 1 + (uint64_t)rand() % (round % 2 ? 10 : 1000000);
        uint64_t sum = 0;
        for (uint32_t i = 0; i < n; i++)
            items[i] = (struct ranked){UINT64_MAX - (uint64_t)rand() % ranks, i};
        ranked_sort(items, scratch, n);
        for (uint32_t i = 0; i < n; i++) {
            sum += items[i].item;
            assert_true(items[i].item < n);
            assert_false(i > 0 && (items[i].rank < items[i - 1].rank ||
                                   (items[i].rank == items[i - 1].rank &&
                                    items[i].item < items[i - 1].item)));
        }
        assert_int_equal(sum, n ? (uint64_t)n * (n - 1) / 2 : 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp_each),   cmocka_unit_test(test_exp_sum),
        cmocka_unit_test(test_exp_log),    cmocka_unit_test(test_tanh),
        cmocka_unit_test(test_sincos),     cmocka_unit_test(test_errors),
        cmocka_unit_test(test_ranked_sort)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
