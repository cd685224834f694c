/* SPDX-License-Identifier: Apache-2.0 */
/* ranked.h: numbered items in rising order of a rank, without allocating. */
#ifndef KVASIR_UTIL_RANKED_H
#define KVASIR_UTIL_RANKED_H

#include "util/util.h"

struct ranked {
    uint64_t rank;
    uint32_t item;
};
/* items, scratch [n]. Items of equal rank keep their order. O(n log n), and O(n) if they are in
 * order already. */
void ranked_sort(struct ranked *items, struct ranked *scratch, uint32_t n);

#endif
