/* SPDX-License-Identifier: Apache-2.0 */
/* Square matrices of doubles [n][n], for tests of bases. Include it after model_files.h. */
#ifndef KVASIR_TEST_MATRICES_H
#define KVASIR_TEST_MATRICES_H

#include <math.h>

static inline double *new_matrix(uint32_t n) {
    double *a = calloc((size_t)n * n, sizeof *a);
    assert_non_null(a);
    return a;
}

/* to = a^T b, or a b. */
static inline void multiply(uint32_t n, const double *a, bool transposed, const double *b,
                            double *to) {
    memset(to, 0, (size_t)n * n * sizeof *to);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n; k++) {
            const double x = transposed ? a[(size_t)k * n + i] : a[(size_t)i * n + k];
            for (uint32_t j = 0; j < n; j++)
                to[(size_t)i * n + j] += x * b[(size_t)k * n + j];
        }
}

/* c = m^T c m: moments of vectors that a matrix, stored [in][out], is applied to. */
static inline void apply(uint32_t n, const double *m, double *c) {
    double *half = new_matrix(n);
    multiply(n, c, false, m, half);
    multiply(n, m, true, half, c);
    free(half);
}

static inline void add_diagonal(uint32_t n, double x, double *a) {
    for (uint32_t i = 0; i < n; i++)
        a[(size_t)i * n + i] += x;
}

static inline double trace(uint32_t n, const double *a) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += a[(size_t)i * n + i];
    return sum;
}

static inline double largest(uint32_t n, const double *a) {
    double most = 0;
    for (size_t i = 0; i < (size_t)n * n; i++)
        most = fmax(most, fabs(a[i]));
    return most;
}

static inline double largest_difference(uint32_t n, const double *a, const double *b) {
    double worst = 0;
    for (size_t i = 0; i < (size_t)n * n; i++)
        worst = fmax(worst, fabs(a[i] - b[i]));
    return worst;
}

/* How far diagonals are from their mean, in blocks of so many: relative. */
static inline double diagonal_spread(uint32_t n, const double *c, uint32_t block) {
    double worst = 0;
    for (uint32_t first = 0; first < n; first += block) {
        double mean = 0;
        for (uint32_t i = first; i < first + block; i++)
            mean += c[(size_t)i * n + i] / block;
        for (uint32_t i = first; i < first + block; i++)
            worst = fmax(worst, fabs(c[(size_t)i * n + i] / mean - 1));
    }
    return worst;
}

/* What a basis adds to the diagonal of moments: a part of their mean. */
static inline void regularise_moments(uint32_t n, double *c) {
    add_diagonal(n, (n < 256 ? 1e-3 : 1e-2) * trace(n, c) / n, c);
}

#endif
