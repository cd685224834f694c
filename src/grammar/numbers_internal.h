/* SPDX-License-Identifier: Apache-2.0 */
/* numbers_internal.h: what numbers.c (sets) and numbers_read.c (texts of numbers) share. */
#ifndef KVASIR_GRAMMAR_NUMBERS_INTERNAL_H
#define KVASIR_GRAMMAR_NUMBERS_INTERNAL_H

#include <stdatomic.h>

#include "grammar/numbers.h"

/* sign x 0.DIGITS x 10^point; no zeros at the ends of the digits, which are 0 to 9, not '0' to '9'.
 * No digits: zero. */
enum { DIGITS_MAX = 160 };
struct decimal {
    bool negative;
    int32_t n, point;
    uint8_t digits[DIGITS_MAX];
};

void decimal_normalize(struct decimal *d);
/* Reads a whole JSON number; false: it is none, or has too many digits. */
bool decimal_read(struct text_span text, struct decimal *d);
/* |x| against |y| */
int decimal_compare_sizes(const struct decimal *x, const struct decimal *y);

enum { MULTIPLES_MAX = 8, EXCEPT_MAX = 256 };

/* A modulus: m x 10^exponent. */
struct modulus {
    uint64_t m;
    int32_t exponent;
    bool excluded; /* its multiples are not in the set */
};
struct bound {
    bool present, open;
    struct decimal at;
};
struct numbers {
    atomic_uint refs;
    struct bound low, high;
    struct modulus moduli[MULTIPLES_MAX];
    uint32_t n_moduli, n_except, except_cap;
    struct decimal *except;
    bool canonical;
    bool plain; /* read without a fraction and an exponent */
};

/* Digits of a number's text. Those of canonical whole numbers fit 64 bits. */
enum { WHOLE_MAX = 64, CANONICAL_MAX = 18, FRACTION_MAX = 64, EXPONENT_MAX = 2, EXPONENT = 99 };

/* Sizes from low to high; without a high end: `unbounded`. If `stepped`, only multiples of
 * 10^step. */
struct span {
    struct decimal low, high;
    bool low_open, closed, unbounded, stepped;
    int32_t step;
};

bool numbers_has(const struct numbers *n, const struct decimal *d);
/* Whether the set has a number d with low <= |d| < high (closed: <= high) of this sign. */
bool numbers_has_between(const struct numbers *n, bool negative, struct span s);
bool numbers_are_whole(const struct numbers *n);
/* The coarsest modulus of which all are multiples; NULL: there is none. */
const struct modulus *numbers_grid(const struct numbers *n);

#endif
