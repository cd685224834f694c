/* SPDX-License-Identifier: Apache-2.0 */
/* util/near.h: which known word a mistyped one may stand for ("did you mean"). */
#ifndef UTIL_NEAR_H
#define UTIL_NEAR_H

#include <stddef.h>

/* Typos between two words: bytes added, left out or replaced, and neighbours swapped. Only the
 * first NEAR_MAX bytes of each count. */
enum { NEAR_MAX = 48 };
unsigned near_typos(const char *a, size_t a_len, const char *b, size_t b_len);

/* The best word so far; starts as zeros. */
struct near {
    const char *best; /* borrowed; NULL: none is near */
    unsigned typos;
};
/* Takes `known` if it is nearer to the word [len] than all before, and near enough: a typo for each
 * three bytes, and one more; or the word is its beginning. */
void near_try(struct near *n, const char *word, size_t len, const char *known);

#endif
