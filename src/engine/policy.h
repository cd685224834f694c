/* SPDX-License-Identifier: Apache-2.0 */
/* policy.h: who is served next. Pure functions; scheduler.c and scheduler_rows.c apply them.
 *
 *   1 Tenants first: shares.h says whose turn it is, and prompts' rows are split by weights. All
 *     that follows is among the tasks of one tenant, so a priority takes nothing from others.
 *   2 A preempted task comes back before new ones are admitted, and nobody passes it.
 *   3 Of the others the lowest `priority` goes first, then the one that has the fewest tokens to
 *     compute (stored prefixes are not computed: what is in the cache goes first), then the oldest.
 *     Running prompts get a step's rows in the same order; answers that go on come before them.
 *   4 Ageing: every AGED_EACH-th admission of a tenant is that of its oldest task, whatever its
 *     priority and length, and its oldest prompt gets one of AGED_EACH of its rows.
 *   5 A task that does not fit is passed by at most PASSES others, then all wait for it.
 *
 * What bounds starvation: a task before which k of its tenant's wait is admitted at that tenant's
 * 4 (k + 1)th admission from then on at the latest, if there is room. If not, each of those k + 1
 * is passed 8 times more at most, by tasks of all tenants; then running tasks end until it fits.
 * Once a prompt is the first admitted of its tenant's that run it takes at most 4 times as long as
 * without the others. Nothing that arrives later delays a task by more than that.
 */
#ifndef KVASIR_ENGINE_POLICY_H
#define KVASIR_ENGINE_POLICY_H

#include "util/util.h"

enum { AGED_EACH = 4, PASSES = 8 };

/* Others than the first are only for comparison (`kvasir simulate --policy`). */
enum policy {
    POLICY_SHORTEST, /* the above */
    POLICY_EQUAL,    /* admission by arrival, which the first that does not fit ends; prompts get
                        equal parts of a step */
    POLICY_FCFS,     /* the same, but a step's rows go to the prompt that came first */
    POLICY_KINDS
};
/* "shortest", "equal", "fcfs" */
const char *policy_name(enum policy p);

/* The order of rule 3: the smallest goes first, of equal ones the oldest. tokens: to compute. */
enum { RANK_FIRST = 0 }; /* before all of policy_rank */
uint64_t policy_rank(enum policy p, int32_t priority, uint32_t tokens);
/* Rule 4: whether it is the oldest one's turn. since: admissions of younger tasks since the last
 * turn. */
bool policy_is_aged_turn(enum policy p, uint32_t since);
/* Rule 4: the oldest prompt's part of its tenant's rows. */
uint32_t policy_aged_rows(enum policy p, uint32_t rows);
/* Rule 5: whether others have to wait for a task that does not fit. */
bool policy_holds(enum policy p, uint32_t passed, bool preempted);

/* ---- the rows of a step ---------------------------------------------------------------------- */

/* Steps are to take about so many seconds while answers are written: prompts get as many rows as
 * fit, by how long the last steps took, and at least one PACE_LEAST-th of a step: if answers alone
 * take longer than that, waiting would gain nothing. */
enum { PACE_LEAST = 8 };
struct pace {
    double seconds; /* 0: no target */
    uint32_t most;  /* rows of a step */
    uint32_t rows;  /* of the next step */
};
/* A step of so many rows took so long. */
void pace_note(struct pace *p, uint32_t rows, double seconds);
/* How many rows prompts may have in a step in which so many tasks generate and `left` rows are
 * left. */
uint32_t pace_prompt_rows(const struct pace *p, uint32_t generating, uint32_t left);

#endif
