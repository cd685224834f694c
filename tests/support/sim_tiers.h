/* SPDX-License-Identifier: Apache-2.0 */
/* Tiers for tests of random programs: one or two faulty tiers (faulty_tier.h) whose records all
 * programs of a world share, as if each were a restart; perhaps with host memory above them. */
#ifndef SIM_TIERS_H
#define SIM_TIERS_H

#include "cache/cache.h"

#include "faulty_tier.h"

struct sim_tier_plan {
    uint32_t n;  /* 0: none */
    bool memory; /* and before them a memory tier, whose records end with the program */
    bool instant[2], flush;
    uint32_t every, slow_ms;
    uint64_t queue_bytes, context;
    double late_seconds;
};
extern bool sim_tiers_unchecked; /* the control: what tiers return is believed */

/* The plan of a program, at random: random_below draws. */
struct sim_tier_plan sim_tiers_draw(uint32_t (*random_below)(uint32_t), uint64_t context);
/* NULL: out of memory, or none are planned. */
struct tiers *sim_tiers_create(const struct sim_tier_plan *p, struct faulty_store *stores[2],
                               struct prefix_tree *t);
/* Waits a moment if a load is under way. */
bool sim_tiers_wait(const struct tiers *s);
void sim_tiers_destroy(struct tiers *s, const struct sim_tier_plan *p); /* or NULL */
/* Prints what came from tiers, and the faults. False: a kind of fault never occurred. */
bool sim_tiers_report(void);

#endif
