/* SPDX-License-Identifier: Apache-2.0 */
/* simulate_tier.h: a store below the memory as a simulation sees it: which records it has
 * (simulate_tier.c). */
#ifndef LAB_SIMULATE_TIER_H
#define LAB_SIMULATE_TIER_H

#include "cache/cache.h"

enum sim_tier_kind { SIM_HOST, SIM_DISK, SIM_REMOTE };

/* A store that holds so many bytes. For one thread; *now is the time of deadlines. */
kvasir_status sim_tier_create(enum sim_tier_kind kind, uint64_t limit_bytes, const double *now,
                              struct tier **out, kvasir_error *err) MUST_CHECK;
/* What a record takes in it. */
uint64_t sim_tier_record_bytes(const struct tier *t, uint64_t payload);
/* Tokens of the pages that were read in time, each page counted in its first layer group. */
uint64_t sim_tier_tokens(const struct tier *t);

#endif
