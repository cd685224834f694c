/* SPDX-License-Identifier: Apache-2.0 */
/* balance.c: Cholesky factors, eigenvalues and Hadamard matrices for balance.h.
 *
 * Eigenvalues are found as in EISPACK: reflections make the matrix tridiagonal, then rotations with
 * implicit shifts (QL) make it diagonal; 10 n^3 operations, an eighth of what Jacobi's sweeps take
 * at n = 256. Matrices are small (head_dim), row-major, and walked by rows.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "engine/balance.h"

/* eps: what is added to a diagonal, of its mean. */
static const double EPS = 1e-3, EPS_LARGE = 1e-2;
enum { DIM_LARGE = 256, QL_STEPS_MAX = 60 };
/* Eigenvalues below so much of the largest count as that much. */
static const double SMALLEST = 1e-12;

/* y += a x */
static void add_scaled(double *y, double a, const double *x, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

static double dot(const double *x, const double *y, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* ---- eigenvalues ----------------------------------------------------------------------------- */

/* Reflects row k of the rest of the matrix onto its first dim: a = P a P with P = 1 - beta v v^T,
 * where v [n - k - 1] replaces the row behind the diagonal. Returns beta. p: scratch [n]. */
static double reflect(double *a, uint32_t n, uint32_t k, double *off, double *p) {
    const uint32_t m = n - k - 1;
    double *v = a + (size_t)k * n + k + 1, *rest = v + n;
    const double norm = m_sqrt(dot(v, v, m));
    *off = v[0] > 0 ? -norm : norm;
    if (!(norm > 0))
        return 0;
    const double beta = 1 / (norm * (norm + fabs(v[0])));
    v[0] -= *off;
    memset(p, 0, m * sizeof *p);
    for (uint32_t i = 0; i < m; i++)
        add_scaled(p, beta * v[i], rest + (size_t)i * n, m);
    add_scaled(p, -beta / 2 * dot(p, v, m), v, m);
    for (uint32_t i = 0; i < m; i++) {
        add_scaled(rest + (size_t)i * n, -v[i], p, m);
        add_scaled(rest + (size_t)i * n, -p[i], v, m);
    }
    return beta;
}

/* a = Q T Q^T, T with this diagonal and the dims beside it in off [n]. a becomes Q; q: scratch
 * [n + 2][n]. */
static void tridiagonalise(uint32_t n, double *a, double *diagonal, double *off, double *q) {
    double *p = q + (size_t)n * n, *beta = p + n;
    for (uint32_t k = 0; k < n; k++) {
        off[k] = k + 1 < n ? a[(size_t)k * n + k + 1] : 0;
        beta[k] = k + 2 < n ? reflect(a, n, k, &off[k], p) : 0;
        diagonal[k] = a[(size_t)k * n + k];
    }
    memset(q, 0, (size_t)n * n * sizeof *q);
    for (uint32_t i = 0; i < n; i++)
        q[(size_t)i * n + i] = 1;
    for (uint32_t k = n; k-- > 0;) { /* Q = P0 (P1 (P2 ...)) */
        const uint32_t m = n - k - 1;
        const double *v = a + (size_t)k * n + k + 1;
        double *rest = q + (size_t)(k + 1) * n + k + 1;
        memset(p, 0, m * sizeof *p);
        for (uint32_t i = 0; i < m && beta[k] > 0; i++)
            add_scaled(p, beta[k] * v[i], rest + (size_t)i * n, m);
        for (uint32_t i = 0; i < m && beta[k] > 0; i++)
            add_scaled(rest + (size_t)i * n, -v[i], p, m);
    }
    memcpy(a, q, (size_t)n * n * sizeof *q);
}

static void transpose(uint32_t n, double *a) {
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < i; j++) {
            const double x = a[(size_t)i * n + j];
            a[(size_t)i * n + j] = a[(size_t)j * n + i];
            a[(size_t)j * n + i] = x;
        }
}

/* What counts as 0 beside the diagonal: reflections have left errors of this size everywhere. */
static double negligible(uint32_t n, const double *diagonal, const double *off) {
    double size = 0;
    for (uint32_t i = 0; i < n; i++)
        size = fmax(size, fabs(diagonal[i]) + fabs(off[i]));
    return 0x1p-53 * size;
}

/* The first dim from `from` on behind which T falls apart. */
static uint32_t end_of_block(uint32_t n, const double *off, double zero, uint32_t from) {
    while (from + 1 < n && fabs(off[from]) > zero)
        from++;
    return from;
}

/* One QL step with an implicit shift on the block [first, last] of T, with the same rotations of
 * the rows of z [n][n]. */
static void ql_step(uint32_t n, double *diagonal, double *off, uint32_t first, uint32_t last,
                    double *z) {
    const double half = (diagonal[first + 1] - diagonal[first]) / (2 * off[first]);
    const double root = m_sqrt(half * half + 1);
    double g = diagonal[last] - diagonal[first] + off[first] / (half + (half < 0 ? -root : root));
    double sin = 1, cos = 1, shift = 0;
    for (uint32_t i = last; i-- > first;) {
        const double f = sin * off[i], b = cos * off[i], r = m_sqrt(f * f + g * g);
        off[i + 1] = r;
        if (!(r > 0)) { /* the block falls apart here: the next step takes its parts */
            diagonal[i + 1] -= shift;
            off[last] = 0;
            return;
        }
        sin = f / r;
        cos = g / r;
        g = diagonal[i + 1] - shift;
        const double t = (diagonal[i] - g) * sin + 2 * cos * b;
        shift = sin * t;
        diagonal[i + 1] = g + shift;
        g = cos * t - b;
        double *low = z + (size_t)i * n, *high = low + n;
        for (uint32_t k = 0; k < n; k++) {
            const double x = high[k];
            high[k] = sin * low[k] + cos * x;
            low[k] = cos * low[k] - sin * x;
        }
    }
    diagonal[first] -= shift;
    off[first] = g;
    off[last] = 0;
}

bool symmetric_eigen(uint32_t n, double *a, double *values, double *scratch) {
    double *off = scratch + (size_t)(n + 2) * n;
    for (size_t i = 0; i < (size_t)n * n; i++)
        if (!isfinite(a[i]))
            return false;
    tridiagonalise(n, a, values, off, scratch);
    transpose(n, a);
    const double zero = negligible(n, values, off);
    for (uint32_t first = 0; first < n; first++)
        for (int steps = 0;; steps++) {
            const uint32_t last = end_of_block(n, off, zero, first);
            if (last == first)
                break;
            if (steps == QL_STEPS_MAX)
                return false;
            ql_step(n, values, off, first, last, a);
        }
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(values[i]))
            return false;
    return true;
}

/* ---- factors --------------------------------------------------------------------------------- */

/* Fills the upper triangle, and adds eps of its mean to the diagonal. Returns the new trace. */
static double regularise(uint32_t n, double *c) {
    const double eps = n < DIM_LARGE ? EPS : EPS_LARGE;
    double trace = 0;
    for (uint32_t i = 0; i < n; i++) {
        trace += c[(size_t)i * n + i];
        for (uint32_t j = 0; j < i; j++)
            c[(size_t)j * n + i] = c[(size_t)i * n + j];
    }
    for (uint32_t i = 0; i < n; i++)
        c[(size_t)i * n + i] += eps * trace / n;
    return trace * (1 + eps);
}

/* c = L L^T; L replaces c, with zeros above its diagonal. False: c is not positive definite. */
static bool cholesky(uint32_t n, double *c) {
    for (uint32_t i = 0; i < n; i++) {
        double *row = c + (size_t)i * n;
        for (uint32_t j = 0; j <= i; j++) {
            const double *other = c + (size_t)j * n;
            const double rest = row[j] - dot(row, other, j);
            if (j < i)
                row[j] = rest / other[j];
            else if (rest > 0)
                row[i] = m_sqrt(rest);
            else
                return false;
        }
        memset(row + i + 1, 0, (n - i - 1) * sizeof *row);
    }
    return true;
}

/* c = L^T c L. scratch [n][n] */
static void congruence(uint32_t n, const double *lower, double *c, double *scratch) {
    memset(scratch, 0, (size_t)n * n * sizeof *scratch);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n; k++)
            add_scaled(scratch + (size_t)i * n, c[(size_t)i * n + k], lower + (size_t)k * n, k + 1);
    memset(c, 0, (size_t)n * n * sizeof *c);
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t i = 0; i <= k; i++)
            add_scaled(c + (size_t)i * n, lower[(size_t)k * n + i], scratch + (size_t)k * n, n);
    for (uint32_t i = 0; i < n; i++) /* equal but for rounding */
        for (uint32_t j = 0; j < i; j++)
            c[(size_t)j * n + i] = c[(size_t)i * n + j];
}

/* x = L x */
static void multiply_lower(uint32_t n, const double *lower, double *x) {
    for (uint32_t i = n; i-- > 0;)
        x[i] = dot(lower + (size_t)i * n, x, i + 1);
}

/* x = L^-T x */
static void solve_upper(uint32_t n, const double *lower, double *x) {
    for (uint32_t i = n; i-- > 0;) {
        x[i] /= lower[(size_t)i * n + i];
        add_scaled(x, -x[i], lower + (size_t)i * n, i);
    }
}

/* ---- Hadamard -------------------------------------------------------------------------------- */

static uint32_t hadamard_block(uint32_t n) {
    return n & (0 - n);
}

/* x = H x, and H is symmetric. */
static void hadamard(uint32_t n, double *x) {
    const uint32_t block = hadamard_block(n);
    const double size = 1 / m_sqrt(block);
    for (uint32_t half = 1; half < block; half *= 2)
        for (uint32_t i = 0; i < n; i++)
            if (!(i & half)) {
                const double a = x[i], b = x[i + half];
                x[i] = a + b;
                x[i + half] = a - b;
            }
    for (uint32_t i = 0; i < n; i++)
        x[i] *= size;
}

/* order[channel]: number of the eigenvalue that it gets. From the largest down, block after block
 * gets one, there and back. */
static void deal(uint32_t n, const double *values, uint32_t *order) {
    const uint32_t block = hadamard_block(n), blocks = n / block;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t rank = 0; /* of values[i], the larger first */
        for (uint32_t j = 0; j < n; j++)
            rank += values[j] > values[i] || (!(values[j] < values[i]) && j < i);
        const uint32_t round = rank / blocks, turn = rank % blocks;
        order[(round % 2 ? blocks - 1 - turn : turn) * block + round] = i;
    }
}

/* ---- a head ---------------------------------------------------------------------------------- */

size_t balance_scratch(uint32_t dim) {
    return (size_t)(dim + 4) * dim;
}

/* Without moments: H alone, which is its own inverse. */
static void make_plain(uint32_t n, double *keys, double *queries) {
    memset(keys, 0, (size_t)n * n * sizeof *keys);
    for (uint32_t i = 0; i < n; i++) {
        keys[(size_t)i * n + i] = 1;
        hadamard(n, keys + (size_t)i * n);
    }
    memcpy(queries, keys, (size_t)n * n * sizeof *keys);
}

/* keys: L; queries: rows of U^T; values: Lambda^2. They become the matrices. Returns tr Lambda. */
static double make_matrices(uint32_t n, double *keys, double *queries, const double *values,
                            double *scratch) {
    uint32_t order[HEAD_DIM_MAX];
    double largest = 0, sum = 0;
    deal(n, values, order);
    for (uint32_t i = 0; i < n; i++)
        largest = values[i] > largest ? values[i] : largest;
    for (uint32_t channel = 0; channel < n; channel++) {
        const uint32_t i = order[channel];
        double *u = queries + (size_t)i * n, *forward = scratch + (size_t)channel * n;
        const double square = values[i] > SMALLEST * largest ? values[i] : SMALLEST * largest;
        const double lambda = m_sqrt(square), root = m_sqrt(lambda);
        sum += lambda;
        memcpy(forward, u, n * sizeof *u);
        multiply_lower(n, keys, forward);
        solve_upper(n, keys, u);
        for (uint32_t k = 0; k < n; k++) {
            forward[k] /= root;
            u[k] *= root;
        }
    }
    for (uint32_t in = 0; in < n; in++)
        for (uint32_t channel = 0; channel < n; channel++)
            keys[(size_t)in * n + channel] = queries[(size_t)order[channel] * n + in];
    for (uint32_t in = 0; in < n; in++)
        for (uint32_t channel = 0; channel < n; channel++)
            queries[(size_t)in * n + channel] = scratch[(size_t)channel * n + in];
    for (uint32_t in = 0; in < n; in++) {
        hadamard(n, keys + (size_t)in * n);
        hadamard(n, queries + (size_t)in * n);
    }
    return sum;
}

bool balance_head(uint32_t dim, double *keys, double *queries, double *scratch, double *gain) {
    ASSERT(dim > 0 && dim <= HEAD_DIM_MAX);
    double *values = scratch + (size_t)(dim + 3) * dim;
    const double traces = regularise(dim, keys) * regularise(dim, queries);
    *gain = 1;
    if (!isfinite(traces))
        return false;
    if (!(traces > 0)) {
        make_plain(dim, keys, queries);
        return true;
    }
    if (!cholesky(dim, keys))
        return false;
    congruence(dim, keys, queries, scratch);
    if (!symmetric_eigen(dim, queries, values, scratch))
        return false;
    const double sum = make_matrices(dim, keys, queries, values, scratch);
    *gain = traces / (sum * sum);
    return isfinite(*gain);
}
