/* SPDX-License-Identifier: Apache-2.0 */
/* random_weights.h: matrices of every weight type, for kcheck and opcheck. */
#ifndef RANDOM_WEIGHTS_H
#define RANDOM_WEIGHTS_H

#include "quant/quant.h"

enum { WEIGHT_K_MAX = 1792 }; /* more than a chunk of avx512/product_codes.c */

/* How many ways a type's scales may be cut: their scalar types and groups. */
uint32_t weight_ways(enum weight_type t);
/* Sets type, n, k and what belongs to the way; F8_E4M3's tiles are random. The group divides k. */
void weight_shape(struct weight *w, enum weight_type type, uint32_t way, uint32_t n, uint32_t k);
/* Bytes of the arrays of a matrix that has its shape. */
struct weight_sizes {
    size_t data, scales, biases;
};
struct weight_sizes weight_sizes(const struct weight *w);
/* Fills the arrays of a matrix that has its shape, in memory from take. */
void make_weight(struct weight *w, bool with_extremes, void *(*take)(size_t));

#endif
