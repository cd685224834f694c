/* SPDX-License-Identifier: Apache-2.0 */
/* near.c: the distance of Damerau and Levenshtein (its restricted form), row by row. */
#include "util/near.h"

#include <stdbool.h>
#include <string.h>

#include "util/assert.h"

static unsigned least(unsigned a, unsigned b) {
    return a < b ? a : b;
}

unsigned near_typos(const char *a, size_t a_len, const char *b, size_t b_len) {
    /* rows[i % 3][j]: typos between the first i bytes of a and the first j of b */
    unsigned rows[3][NEAR_MAX + 1];
    a_len = a_len < NEAR_MAX ? a_len : NEAR_MAX;
    b_len = b_len < NEAR_MAX ? b_len : NEAR_MAX;
    for (unsigned j = 0; j <= b_len; j++)
        rows[0][j] = j;
    for (unsigned i = 1; i <= a_len; i++) {
        unsigned *row = rows[i % 3];
        const unsigned *last = rows[(i - 1) % 3], *older = rows[(i + 1) % 3];
        row[0] = i;
        for (unsigned j = 1; j <= b_len; j++) {
            row[j] = least(least(last[j], row[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], older[j - 2] + 1);
        }
    }
    ASSERT(rows[a_len % 3][b_len] <= NEAR_MAX);
    return rows[a_len % 3][b_len];
}

void near_try(struct near *n, const char *word, size_t len, const char *known) {
    enum { BEGINNING = 3 };
    const size_t whole = strlen(known);
    const bool begins = len >= BEGINNING && len < whole && strncmp(word, known, len) == 0;
    const unsigned typos = begins ? 1 : near_typos(word, len, known, whole);
    if (typos > len / 3 + 1 || typos >= whole || (n->best && n->typos <= typos))
        return;
    ASSERT(typos < NEAR_MAX);
    *n = (struct near){.best = known, .typos = typos};
}
