/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.c: which kernels run. Tiers stack: ref/ fills the table, each higher tier the machine has
 * overrides what it does better. The choice is made once, when a backend is made; tests make tables
 * of their own.
 */
#include "backend/cpu/kernels.h"

int weight_slot(enum weight_type t) {
    switch (t) {
    case WEIGHT_F32:
        return 0;
    case WEIGHT_F16:
        return 1;
    case WEIGHT_BF16:
        return 2;
    case WEIGHT_Q4_0:
        return 3;
    case WEIGHT_Q4_1:
        return 4;
    case WEIGHT_Q8_0:
        return 5;
    }
    return 0; /* unreachable: readers let no other type in */
}

void kernels_select(struct kernels *k, enum cpu_tier tier) {
    enum cpu_tier best = cpu_tier_detect();
    if (tier > best)
        tier = best;
    kernels_init_ref(k);
#if defined(__x86_64__)
    if (tier >= CPU_TIER_AVX2)
        kernels_init_avx2(k);
#endif
    k->tier = tier;
}
