/* SPDX-License-Identifier: Apache-2.0 */
/* random_data.h: the numbers that kcheck and opcheck feed to kernels. One state: one thread. */
#ifndef RANDOM_DATA_H
#define RANDOM_DATA_H

#include <stddef.h>
#include <stdint.h>

/* The numbers that follow depend only on the run's seed and on text (a family's line). */
void random_start(uint64_t seed, const char *text);
uint32_t random_bits(void);
uint32_t random_below(uint32_t n);
float random_normal(void);
float random_of(const float *values, uint32_t n); /* one of them */
enum fill_kind {
    FILL_NORMAL,
    FILL_UNIFORM,
    FILL_ZERO,
    FILL_CONSTANT,
    FILL_OUTLIERS, /* normal, a few 1e4 times as large */
    FILL_TINY,     /* subnormals of f16 and below, down to float32's */
    FILL_SCALES,   /* normal times 2^-20 .. 2^10 */
    FILL_ONE,      /* one that is not zero */
    FILL_SIGNS,    /* +-v */
    FILL_NARROW,   /* a large constant plus a small spread */
    FILL_KINDS
};
void fill(float *x, size_t n, enum fill_kind kind);
void fill_any(float *x, size_t n); /* half of the time normal numbers, else any kind */
/* Values at the edges of rounding to f16, bf16 and float32: ties, overflow, subnormals, not finite.
 * The first three are infinity, -infinity, NaN. */
enum { EDGE_VALUES = 24 };
extern const float EDGE_VALUE[EDGE_VALUES];

/* n roundings of float32 in a row: the relative error is at most n u / (1 - n u), u = 2^-24. */
static inline double gamma_of(double n) {
    double u = 0x1p-24;
    return n * u / (1 - n * u);
}

#endif
