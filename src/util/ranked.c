/* SPDX-License-Identifier: Apache-2.0 */
/* ranked.c: merges runs of 1, 2, 4 ... items. (qsort is not stable, and may allocate.) */
#include "util/ranked.h"

#include <string.h>

/* Of a [n] the first `middle` and the rest are in order each. */
static void merge(struct ranked *a, struct ranked *scratch, uint32_t middle, uint32_t n) {
    uint32_t left = 0, right = middle, to = 0;
    if (a[middle - 1].rank <= a[middle].rank)
        return;
    memcpy(scratch, a, middle * sizeof *a);
    while (left < middle && right < n)
        a[to++] = a[right].rank < scratch[left].rank ? a[right++] : scratch[left++];
    memcpy(a + to, scratch + left, (middle - left) * sizeof *a);
}

void ranked_sort(struct ranked *items, struct ranked *scratch, uint32_t n) {
    ASSERT(n <= UINT32_MAX / 2);
    for (uint32_t run = 1; run < n; run *= 2)
        for (uint32_t at = 0, both; n - at > run; at += both) {
            both = n - at < 2 * run ? n - at : 2 * run;
            merge(items + at, scratch, run, both);
        }
}
