/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.c: which kernels run. Tiers stack: ref/ fills the table, each higher tier the machine has
 * overrides what it does better. The choice is made once, when a backend is made; tests make tables
 * of their own.
 */
#include "backend/cpu/kernels.h"

void kernels_select(struct kernels *k, enum cpu_tier tier) {
    static void (*const init[CPU_TIER_COUNT])(struct kernels *) = {
        [CPU_TIER_REF] = kernels_init_ref,
#if defined(KVASIR_REF_ONLY)    /* tools/opcheck.sh: the reference for another backend */
#elif defined(KVASIR_ONLY_TIER) /* option KVASIR_NATIVE of CMakeLists.txt */
        [KVASIR_ONLY_TIER] = KVASIR_ONLY_INIT,
#if defined(KVASIR_AMX_TOO)
        [CPU_TIER_AMX] = amx_kernels_init,
#endif
#elif defined(__x86_64__)
        [CPU_TIER_AVX2] = avx2_kernels_init,
        [CPU_TIER_AVX512] = avx512_kernels_init,
        [CPU_TIER_AVX512VNNI] = avx512vnni_kernels_init,
        [CPU_TIER_AMX] = amx_kernels_init,
#elif defined(__aarch64__)
        [CPU_TIER_NEON] = neon_kernels_init,
        [CPU_TIER_NEONDOT] = neondot_kernels_init,
#endif
    };
    enum cpu_tier best = cpu_tier_detect();
    if (tier > best)
        tier = best;
    for (int t = 0; t <= (int)tier; t++)
        if (init[t] && cpu_tier_have((enum cpu_tier)t))
            init[t](k);
    k->tier = tier;
    const struct weight_traits *t;
    for (uint32_t i = 0; (t = weight_traits_at(i)); i++)
        ASSERT(k->product[weight_index(t->type)]);
    for (int i = 0; i < GATE_KINDS; i++)
        ASSERT(k->gate_mul[i] != NULL);
}
