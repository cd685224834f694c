/* SPDX-License-Identifier: Apache-2.0 */
/* Losses, divergences and the bench of cache formats, against values computed another way. */
#include "lab/lab.h"
#include "util/util.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static bool near(double a, double b, double tolerance) {
    return fabs(a - b) <= tolerance;
}

/* ---- distributions --------------------------------------------------------------------------- */

static void test_nll(void **state) {
    (void)state;
    static const float FLAT[4] = {7, 7, 7, 7};
    assert_true(near(lab_nll(FLAT, 4, 2), log(4), 1e-12));
    /* logits are log probabilities up to a constant */
    static const double P[4] = {.5, .25, .125, .125};
    float logits[4];
    for (int i = 0; i < 4; i++)
        logits[i] = (float)log(P[i]) + 1000;
    for (int i = 0; i < 4; i++)
        assert_true(near(lab_nll(logits, 4, i), -log(P[i]), 2e-4)); /* float rounding near 1000 */
    static const float FAR[3] = {0, 100, -1000};
    assert_true(near(lab_nll(FAR, 3, 0), 100, 1e-9));
    assert_true(near(lab_nll(FAR, 3, 1), 0, 1e-12));
    assert_true(near(lab_nll(FAR, 3, 2), 1100, 1e-9));
    assert_true(isnan(lab_nll(FAR, 3, 3)));
    assert_true(isnan(lab_nll(FAR, 3, -1)));
}

static void test_divergence(void **state) {
    (void)state;
    /* sum p ln(p/q) by hand, with libm, from probabilities */
    enum { N = 1000 };
    static float p[N], q[N];
    static double lp[N], lq[N];
    double sp = 0, sq = 0, kl = 0;
    uint32_t x = 1;
    for (int i = 0; i < N; i++) {
        x = x * 1664525u + 1013904223u;
        p[i] = (float)(x >> 8) / 2e6f;
        q[i] = p[i] + (float)(x & 255) / 300.0f;
        sp += exp((double)p[i]);
        sq += exp((double)q[i]);
    }
    for (int i = 0; i < N; i++) {
        lp[i] = (double)p[i] - log(sp);
        lq[i] = (double)q[i] - log(sq);
        kl += exp(lp[i]) * (lp[i] - lq[i]);
    }
    lab_divergence d = lab_compare_logits(p, q, N, 17);
    assert_true(near(d.kl, kl, 1e-11));
    assert_true(near(d.nll_p, -lp[17], 1e-11));
    assert_true(near(d.nll_q, -lq[17], 1e-11));
    assert_true(near(d.nll_p, lab_nll(p, N, 17), 1e-12));
    /* against itself, and against itself plus a constant: no divergence */
    assert_true(lab_compare_logits(p, p, N, 0).kl == 0);
    for (int i = 0; i < N; i++)
        q[i] = p[i] + 3;
    assert_true(near(lab_compare_logits(p, q, N, 0).kl, 0, 1e-6)); /* sums rounded to float */
}

static void test_divergence_edges(void **state) {
    (void)state;
    static const float P[3] = {0, 0, -INFINITY}, Q[3] = {0, -INFINITY, 5};
    assert_true(near(lab_compare_logits(P, P, 3, 0).kl, 0, 1e-15));
    assert_true(isinf(lab_compare_logits(P, Q, 3, 0).kl));
    assert_false(lab_compare_logits(P, Q, 3, 0).same_top);
    assert_true(lab_compare_logits(P, P, 3, 0).same_top);
    assert_true(isnan(lab_compare_logits(P, Q, 3, 7).nll_p));
}

/* ---- many values ----------------------------------------------------------------------------- */

static void test_summary(void **state) {
    (void)state;
    /* of 0 .. 1000 in another order: ranks are the values */
    enum { N = 1001 };
    static double x[N];
    for (int i = 0; i < N; i++)
        x[i] = (double)(i * 10 % N);
    lab_summary s = lab_summarize(x, N);
    assert_true(s.mean == 500 && s.median == 500 && s.max == 1000);
    assert_true(near(s.p99, 990, 1e-9) && near(s.p999, 999, 1e-9));
    /* the variance of n numbers in a row is n (n + 1) / 12 */
    assert_true(near(s.error, sqrt(1002.0 / 12), 1e-9));
    assert_true(x[0] == 0 && x[1] == 1 && x[N - 1] == 1000);
    /* between ranks: 0.99 of the way from the first of two to the second */
    double two[2] = {5, 1};
    s = lab_summarize(two, 2);
    assert_true(s.mean == 3 && s.median == 3 && s.max == 5 && near(s.p99, 4.96, 1e-12));
    assert_true(near(s.error, 2, 1e-12));
    double one[1] = {-2};
    s = lab_summarize(one, 1);
    assert_true(s.mean == -2 && s.median == -2 && s.p99 == -2 && s.p999 == -2 && s.max == -2);
    assert_true(s.error == 0);
}

/* ---- bench-kv-cache -------------------------------------------------------------------------- */

struct rows {
    lab_kv_bench_row row[16];
    size_t n;
};

static void take(void *user, const lab_kv_bench_row *row) {
    struct rows *r = user;
    r->row[r->n++] = *row;
}

static struct rows bench(lab_kv_bench_options o) {
    struct rows r = {.n = 0};
    kvasir_error err;
    assert_int_equal(lab_kv_bench(&o, take, &r, &err), KVASIR_OK);
    assert_int_equal(r.n, o.n_formats);
    return r;
}

static void test_bench_bytes(void **state) {
    (void)state;
    static const char *const FORMATS[] = {"f32", "f16", "bf16", "8", "6",
                                          "5",   "4",   "3",    "2", "8,4"};
    static const double BITS[] = {32, 16, 16, 8.5, 6.5, 5.5, 4.5, 3.5, 2.5, 6.5};
    struct rows r = bench((lab_kv_bench_options){.layers = 2,
                                                 .seq_len = 100,
                                                 .heads = 3,
                                                 .head_dim = 128,
                                                 .formats = FORMATS,
                                                 .n_formats = 10,
                                                 .kv_group_size = "64"});
    double values = 2.0 * 2 * 100 * 3 * 128;
    for (size_t i = 0; i < r.n; i++) {
        assert_string_equal(r.row[i].format, FORMATS[i]);
        assert_true((double)r.row[i].bytes == values * BITS[i] / 8);
        assert_true((double)r.row[i].bytes16 == values * 2);
    }
}

/* Affine codes: a step is a group's range over 2^bits - 1. The error is at most half a step, apart
 * from the f16 scales; with uniform rounding it is a quarter of a step on average. */
static void test_bench_errors(void **state) {
    (void)state;
    static const char *const FORMATS[] = {"f32", "f16", "8", "6", "4", "2"};
    struct rows r = bench((lab_kv_bench_options){.layers = 2,
                                                 .seq_len = 192,
                                                 .heads = 2,
                                                 .head_dim = 128,
                                                 .formats = FORMATS,
                                                 .n_formats = 6,
                                                 .kv_group_size = "64"});
    assert_true(r.row[0].mean_error == 0 && r.row[0].max_error == 0);
    assert_true(r.row[1].mean_error > 0 && r.row[1].max_error < 2e-3);
    static const int BITS[] = {8, 6, 4, 2};
    for (size_t i = 0; i < 4; i++) {
        /* 64 normally distributed numbers span 4.7 on average */
        double step = 4.7 / (double)((1 << BITS[i]) - 1);
        const lab_kv_bench_row *row = &r.row[i + 2];
        assert_true(row->mean_error > 0.15 * step && row->mean_error < 0.4 * step);
        assert_true(row->max_error > row->mean_error && row->max_error < 3 * step);
        assert_true(row->encode_seconds > 0 && row->encode_gb_s > 0);
        assert_true(row->decode_seconds > 0 && row->decode_gb_s > 0);
    }
}

/* The data depend only on seed and shape, not on which formats are measured. */
static void test_bench_repeats(void **state) {
    (void)state;
    static const char *const ALL[] = {"8", "4"}, *const ONE[] = {"4"};
    lab_kv_bench_options o = {.layers = 1,
                              .seq_len = 65,
                              .heads = 1,
                              .head_dim = 64,
                              .formats = ALL,
                              .n_formats = 2,
                              .seed = 5};
    struct rows a = bench(o);
    o.formats = ONE;
    o.n_formats = 1;
    struct rows b = bench(o);
    assert_true(a.row[1].mean_error == b.row[0].mean_error);
    assert_true(a.row[1].max_error == b.row[0].max_error);
    o.seed = 6;
    struct rows c = bench(o);
    assert_true(b.row[0].mean_error != c.row[0].mean_error);
}

static void test_bench_wide(void **state) {
    (void)state;
    static const char *const FORMATS[] = {"4", "3"};
    struct rows r = bench((lab_kv_bench_options){.layers = 1,
                                                 .seq_len = 3,
                                                 .heads = 1,
                                                 .head_dim = 4096,
                                                 .formats = FORMATS,
                                                 .n_formats = 2,
                                                 .kv_group_size = "32"});
    assert_true(r.row[0].mean_error < r.row[1].mean_error);
}

static void test_bench_refuses(void **state) {
    (void)state;
    static const char *const GOOD[] = {"8"}, *const BAD[] = {"7"}, *const TILES[] = {"8,4", "t4"};
    const lab_kv_bench_options fine = {
        .layers = 1, .seq_len = 1, .heads = 1, .head_dim = 64, .formats = GOOD, .n_formats = 1};
    struct {
        lab_kv_bench_options o;
        const char *field;
    } cases[8];
    for (size_t i = 0; i < 8; i++)
        cases[i].o = fine;
    cases[0].o.layers = 0, cases[0].field = "kv_bench.layers";
    cases[1].o.seq_len = 0, cases[1].field = "kv_bench.seq_len";
    cases[2].o.heads = 5000, cases[2].field = "kv_bench.heads";
    cases[3].o.head_dim = 8192, cases[3].field = "kv_bench.head_dim";
    cases[4].o.formats = BAD, cases[4].field = "kv_bench.formats";
    cases[5].o.kv_group_size = "128", cases[5].field = "kv_bench.kv_group_size";
    cases[6].o.n_formats = 0, cases[6].field = "kv_bench.formats";
    cases[7].o.formats = TILES, cases[7].o.n_formats = 2, cases[7].field = "kv_bench.formats";
    for (size_t i = 0; i < 8; i++) {
        struct rows r = {.n = 0};
        kvasir_error err;
        assert_int_not_equal(lab_kv_bench(&cases[i].o, take, &r, &err), KVASIR_OK);
        assert_int_equal(r.n, 0);
        assert_string_equal(err.field, cases[i].field);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nll),
        cmocka_unit_test(test_divergence),
        cmocka_unit_test(test_divergence_edges),
        cmocka_unit_test(test_summary),
        cmocka_unit_test(test_bench_bytes),
        cmocka_unit_test(test_bench_errors),
        cmocka_unit_test(test_bench_repeats),
        cmocka_unit_test(test_bench_wide),
        cmocka_unit_test(test_bench_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
