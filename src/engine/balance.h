/* SPDX-License-Identifier: Apache-2.0 */
/* balance.h: the basis in which a head's keys and queries have the same energy in every channel
 * (struct key_basis of backend.h), from the second moments of both.
 *
 *     Ck = E[k k^T],  Cq = E[q q^T]        each plus eps tr(C) / dim on its diagonal
 *     Ck = L L^T,     L^T Cq L = U Lambda^2 U^T
 *     M  = L U Lambda^(-1/2) H             H: orthonormal Hadamard matrix
 *
 *     M^-1 Ck M^-T  =  M^T Cq M  =  H^T Lambda H
 *
 * With equal bits per channel, the expected square of a score's error is proportional to the sum
 * over channels of (energy in keys) * (energy in queries): (tr Lambda)^2 / dim, which no other M
 * undercuts. A Hadamard matrix alone gives tr(Ck) tr(Cq) / dim.
 *
 * H is of the largest power of two that divides dim, repeated along the diagonal. If it repeats,
 * eigenvalues are dealt to the blocks so that their sums are about equal.
 *
 * Pure functions in double, without libm but for the square root: the same bits on every machine.
 */
#ifndef KVASIR_ENGINE_BALANCE_H
#define KVASIR_ENGINE_BALANCE_H

#include "util/util.h"

/* Doubles of scratch memory for heads of this size. */
size_t balance_scratch(uint32_t dim);
/* keys, queries: Ck, Cq [dim][dim], lower triangles, without what is added to their diagonals; they
 * are overwritten: keys by M^-1, queries by M^T, stored [in][out]. *gain: tr(Ck) tr(Cq) / (tr
 * Lambda)^2. A head without keys or without queries (a trace of 0) gets H. False: a moment is not
 * finite, or too large. */
bool balance_head(uint32_t dim, double *keys, double *queries, double *scratch,
                  double *gain) MUST_CHECK;

/* Eigenvalues and eigenvectors of a symmetric matrix a [n][n], whose rows become the eigenvectors
 * of values [n]. scratch [n][n]. False: a value is not finite. */
bool symmetric_eigen(uint32_t n, double *a, double *values, double *scratch) MUST_CHECK;

#endif
