/* SPDX-License-Identifier: Apache-2.0 */
/* Bases of rows: the Hadamard rotation against its definition, balanced keys there and back, and
 * that neither changes a score. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "random_data.h"

#include <cmocka.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

static const uint32_t DIMS[] = {4, 32, 64, 80, 96, 128, 160, 192, 256, HEAD_DIM_MAX};

/* Element (i, j) of the block-diagonal matrix: the blocks are Sylvester's, of the largest power of
 * two that divides dim. */
static double hadamard_at(uint32_t dim, uint32_t i, uint32_t j) {
    uint32_t block = 1;
    while (dim % (2 * block) == 0)
        block *= 2;
    if (i / block != j / block)
        return 0;
    return (__builtin_popcount(i % block & j % block) % 2 ? -1 : 1) / sqrt(block);
}

static double dot(const float *a, const float *b, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

static void test_hadamard(void **state) {
    (void)state;
    random_start(1, "hadamard");
    for (size_t d = 0; d < COUNT(DIMS); d++) {
        const uint32_t dim = DIMS[d];
        float x[HEAD_DIM_MAX], y[HEAD_DIM_MAX], back[HEAD_DIM_MAX];
        fill(x, dim, FILL_NORMAL);
        memcpy(y, x, sizeof y);
        hadamard_rotate(y, dim);
        /* log2 of the block additions and two roundings for the scale */
        const double length = sqrt(dot(x, x, dim)), bound = gamma_of(12) * sqrt(dim) * length;
        for (uint32_t i = 0; i < dim; i++) {
            double want = 0;
            for (uint32_t j = 0; j < dim; j++)
                want += hadamard_at(dim, i, j) * x[j];
            assert_true(fabs(y[i] - want) <= bound);
        }
        assert_true(fabs(sqrt(dot(y, y, dim)) - length) <= bound);
        memcpy(back, y, sizeof back);
        hadamard_rotate(back, dim);
        for (uint32_t i = 0; i < dim; i++)
            assert_true(fabs((double)back[i] - x[i]) <= 2 * bound);
    }
}

/* M = (1 + a row of noise) with its inverse by Sherman and Morrison: (1 + u v^T)^-1 = 1 - u v^T /
 * (1 + v.u). Both are stored input by input. */
static void make_basis(uint32_t dim, float *forward, float *inverse) {
    float u[HEAD_DIM_MAX], v[HEAD_DIM_MAX];
    fill(u, dim, FILL_UNIFORM);
    fill(v, dim, FILL_UNIFORM);
    const double denominator = 1 + dot(u, v, dim);
    for (uint32_t in = 0; in < dim; in++)
        for (uint32_t out = 0; out < dim; out++) {
            /* M[i][j] = (i == j) + u_i v_j; q' = M^T q: input i, output j is M[i][j] */
            forward[in * dim + out] = (float)((in == out) + (double)u[in] * v[out]);
            inverse[in * dim + out] = (float)((in == out) - (double)v[in] * u[out] / denominator);
        }
}

static void test_rows(void **state) {
    (void)state;
    enum { DIM = 64 };
    static float forward[DIM * DIM], inverse[DIM * DIM];
    const struct kv_format f16 = {16, SCALAR_F16, 0, KV_ROWS};
    struct page_layout l;
    struct key_basis basis = {1, 1, DIM, inverse, forward};
    random_start(1, "rows");
    make_basis(DIM, forward, inverse);
    page_layout_init(&l, 1, 1, DIM, f16, f16);
    for (int b = BASIS_PLAIN; b < BASIS_COUNT; b++)
        for (int part = TILE_K; part <= TILE_V; part++) {
            const struct row_place at = {(enum tile_kind)part, 0, 0, 0};
            float x[DIM], y[DIM], q[DIM], turned[DIM];
            fill(x, DIM, FILL_NORMAL);
            fill(q, DIM, FILL_NORMAL);
            l.basis = (uint8_t)b;
            memcpy(y, x, sizeof y);
            page_row_from_plain(&l, &basis, &at, y);
            assert_int_equal(memcmp(x, y, sizeof y) == 0, b == BASIS_PLAIN);
            memcpy(turned, q, sizeof turned);
            if (b == BASIS_BALANCED && part == TILE_K)
                key_basis_apply(forward, DIM, q, turned);
            else if (b != BASIS_PLAIN)
                hadamard_rotate(turned, DIM);
            assert_true(fabs(dot(turned, y, DIM) - dot(q, x, DIM)) < 1e-3);
            page_row_to_plain(&l, &basis, &at, y);
            for (int i = 0; i < DIM; i++)
                assert_true(fabsf(y[i] - x[i]) < 1e-4f);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hadamard),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests_name("basis", tests, NULL, NULL);
}
