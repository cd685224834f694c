/* SPDX-License-Identifier: Apache-2.0 */
/* Bases of balanced keys: eigenvalues of matrices with known ones, and what M must do to the
 * moments that it was made of. */
#include "model_files.h"

#include "engine/balance.h"

#include "matrices.h"
#include "random_programs.h"

static double random_double(void) { /* from -1 to 1 */
    return (double)random_below(1u << 20) / (1 << 19) - 1;
}

/* ---- eigenvalues ----------------------------------------------------------------------------- */

/* Rows of `a` are unit vectors at right angles, and before = a^T values a. */
static void check_eigen(uint32_t n, const double *before) {
    double *a = new_matrix(n), *product = new_matrix(n), *scaled = new_matrix(n);
    double *scratch = malloc((size_t)(n + 3) * n * sizeof *scratch), values[512];
    memcpy(a, before, (size_t)n * n * sizeof *a);
    assert_true(symmetric_eigen(n, a, values, scratch));
    multiply(n, a, true, a, product);
    add_diagonal(n, -1, product);
    assert_true(largest(n, product) < 1e-13 * n);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < n; j++)
            scaled[(size_t)i * n + j] = values[i] * a[(size_t)i * n + j];
    multiply(n, a, true, scaled, product);
    assert_true(largest_difference(n, product, before) <= 1e-14 * n * largest(n, before));
    free(a);
    free(product);
    free(scaled);
    free(scratch);
}

static void test_eigen(void **state) {
    static const uint32_t SIZES[] = {1, 2, 3, 5, 16, 64, 97};
    (void)state;
    for (size_t s = 0; s < sizeof SIZES / sizeof *SIZES; s++) {
        const uint32_t n = SIZES[s];
        double *a = new_matrix(n);
        check_eigen(n, a); /* zeros */
        for (uint32_t i = 0; i < n; i++)
            a[(size_t)i * n + i] = i % 3; /* diagonal, with equal values */
        check_eigen(n, a);
        for (size_t i = 0; i < (size_t)n * n; i++)
            a[i] = 1; /* of rank one */
        check_eigen(n, a);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = 0; j <= i; j++)
                a[(size_t)i * n + j] = a[(size_t)j * n + i] = random_double();
        check_eigen(n, a);
        for (uint32_t i = 0; i < n; i++) /* of very different sizes */
            for (uint32_t j = 0; j < n; j++)
                a[(size_t)i * n + j] *= pow(10, -10.0 * (i + j) / n);
        check_eigen(n, a);
        double values[128], *scratch = malloc((size_t)(n + 3) * n * sizeof *scratch);
        a[(size_t)n * n - 1] = NAN;
        assert_false(symmetric_eigen(n, a, values, scratch));
        free(scratch);
        free(a);
    }
}

/* ---- bases ----------------------------------------------------------------------------------- */

/* Moments of `rows` random vectors whose dims differ in size by up to `spread` and depend on each
 * other. */
static void random_moments(uint32_t n, uint32_t rows, double spread, double *c) {
    double *mix = new_matrix(n), *x = calloc(n, sizeof *x);
    for (size_t i = 0; i < (size_t)n * n; i++)
        mix[i] = random_double() * pow(spread, random_double());
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t i = 0; i < n; i++)
            x[i] = 0;
        for (uint32_t k = 0; k < n; k++) {
            const double size = random_double() * pow(spread, -(double)k / n);
            for (uint32_t i = 0; i < n; i++)
                x[i] += size * mix[(size_t)k * n + i];
        }
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = 0; j < n; j++)
                c[(size_t)i * n + j] += x[i] * x[j] / rows;
    }
    free(mix);
    free(x);
}

struct head {
    double *ck, *cq, *inverse, *forward; /* the moments, with what is added to them */
    double gain;
};

static struct head make_head(uint32_t n, const double *ck, const double *cq) {
    const size_t bytes = (size_t)n * n * sizeof *ck;
    struct head h = {new_matrix(n), new_matrix(n), new_matrix(n), new_matrix(n), 0};
    double *scratch = malloc(balance_scratch(n) * sizeof *scratch);
    memcpy(h.ck, ck, bytes);
    memcpy(h.cq, cq, bytes);
    memcpy(h.inverse, ck, bytes);
    memcpy(h.forward, cq, bytes);
    for (uint32_t i = 0; i < n; i++) /* upper triangles are not read */
        for (uint32_t j = i + 1; j < n; j++)
            h.inverse[(size_t)i * n + j] = h.forward[(size_t)i * n + j] = NAN;
    assert_true(balance_head(n, h.inverse, h.forward, scratch, &h.gain));
    regularise_moments(n, h.ck);
    regularise_moments(n, h.cq);
    free(scratch);
    return h;
}

static void free_head(struct head *h) {
    free(h->ck);
    free(h->cq);
    free(h->inverse);
    free(h->forward);
}

/* What one matrix of the same energy in every channel must be. block: of its Hadamard matrix. */
static void check_head(uint32_t n, uint32_t block, uint32_t rows, double spread) {
    double *ck = new_matrix(n), *cq = new_matrix(n), *product = new_matrix(n);
    random_moments(n, rows, spread, ck);
    random_moments(n, 3 * rows, spread, cq);
    struct head h = make_head(n, ck, cq);
    multiply(n, h.inverse, true, h.forward, product); /* M^-1 M */
    add_diagonal(n, -1, product);
    assert_true(largest(n, product) < 1e-9);
    const double traces = trace(n, h.ck) * trace(n, h.cq);
    apply(n, h.inverse, h.ck);
    apply(n, h.forward, h.cq);
    const double sum = trace(n, h.ck);
    assert_true(largest_difference(n, h.ck, h.cq) < 1e-9 * largest(n, h.ck));
    assert_true(diagonal_spread(n, h.ck, block) < 1e-9);
    assert_true(fabs(h.gain * sum * sum / traces - 1) < 1e-9);
    assert_true(h.gain >= 1 - 1e-12);
    /* blocks get the eigenvalues in turn: none has much more than another */
    if (block < n)
        assert_true(diagonal_spread(n, h.ck, n) < 0.2);
    printf("%u dims, %u rows, sizes %g: gain %.2f\n", n, rows, spread, h.gain);
    free_head(&h);
    free(ck);
    free(cq);
    free(product);
}

static void test_balance(void **state) {
    (void)state;
    check_head(1, 1, 10, 1);
    check_head(2, 2, 10, 10);
    check_head(16, 16, 100, 1);
    check_head(64, 64, 448, 10);
    check_head(64, 64, 10, 3); /* fewer rows than dims */
    check_head(80, 16, 448, 3);
    check_head(96, 32, 448, 3);
    check_head(256, 256, 448, 10);
}

/* No basis has a smaller error at equal bits: not that of the keys' own axes, nor one nearby. */
static void test_least_error(void **state) {
    enum { N = 16 };
    (void)state;
    double *ck = new_matrix(N), *cq = new_matrix(N), *m = new_matrix(N), *other = new_matrix(N);
    random_moments(N, 200, 4, ck);
    random_moments(N, 200, 4, cq);
    struct head h = make_head(N, ck, cq);
    for (int t = 0; t <= 20; t++) {
        double *a = new_matrix(N), *b = new_matrix(N), error = 0;
        memcpy(a, h.ck, N * N * sizeof *a);
        memcpy(b, h.cq, N * N * sizeof *b);
        memcpy(m, h.inverse, N * N * sizeof *m);
        memcpy(other, h.forward, N * N * sizeof *other);
        for (uint32_t i = 0; t > 0 && i < N; i++) { /* M (1 + x e_k e_l^T) for some k and l */
            const uint32_t k = (uint32_t)t % N, l = (k + 1 + (uint32_t)t / N) % N;
            other[i * N + l] += 0.1 * other[i * N + k];
            m[i * N + k] -= 0.1 * m[i * N + l];
        }
        apply(N, m, a);
        apply(N, other, b);
        for (uint32_t i = 0; i < N; i++)
            error += a[i * N + i] * b[i * N + i];
        const double least = trace(N, h.ck) * trace(N, h.cq) / h.gain / N;
        assert_true(t ? error > least : fabs(error / least - 1) < 1e-9);
        free(a);
        free(b);
    }
    free_head(&h);
    free(ck);
    free(cq);
    free(m);
    free(other);
}

static void test_without_moments(void **state) {
    enum { N = 8 };
    (void)state;
    double keys[N * N] = {0}, queries[N * N] = {0}, scratch[(N + 4) * N], gain;
    assert_int_equal(balance_scratch(N), (N + 4) * N);
    queries[0] = 3;
    assert_true(balance_head(N, keys, queries, scratch, &gain));
    assert_memory_equal(keys, queries, sizeof keys);
    for (int i = 0; i < N * N; i++)
        assert_true(fabs(fabs(keys[i]) - 1 / sqrt(N)) < 1e-15);
    static const double BAD[] = {NAN, INFINITY, 1e200};
    for (int b = 0; b < 3; b++) {
        memset(keys, 0, sizeof keys);
        memset(queries, 0, sizeof queries);
        keys[0] = queries[0] = BAD[b];
        assert_false(balance_head(N, keys, queries, scratch, &gain));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eigen),
        cmocka_unit_test(test_balance),
        cmocka_unit_test(test_least_error),
        cmocka_unit_test(test_without_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
