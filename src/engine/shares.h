/* SPDX-License-Identifier: Apache-2.0 */
/* shares.h: fair queueing of tenants. Of the scheduler, whose thread runs it.
 *
 * Each tenant has a virtual time: the tokens that were run for it, prompts and answers, divided by
 * its weight. The scheduler admits the task of the tenant whose virtual time is smallest, so that
 * tenants with waiting tasks get tokens in proportion to their weights, however many tasks each
 * has.
 *
 *     arrives  a tenant with nothing waiting starts at `now` or later: idle time is not saved
 *     starts   now = the tenant's virtual time; the task's expected tokens are paid in advance, or
 *              one tenant would get all places that become free at once
 *     runs     tokens beyond the expected ones are paid as they are run
 *     ends     expected tokens that were not run are given back. If it was the only task, `now`
 *              becomes the greatest virtual time: nobody is ahead of others any more
 *
 * Invariants
 *   SHARE-1  `now` never falls.
 *   SHARE-2  A token is paid once. Those that are run again after a preemption are not: the tenant
 *            did not cause it. Nor are tokens that came from the prefix tree.
 *   SHARE-3  A share lives while it has tasks or is ahead of `now`.
 */
#ifndef ENGINE_SHARES_H
#define ENGINE_SHARES_H

#include "engine/engine.h"

struct task;

struct share {
    uint64_t tenant;
    uint32_t weight;           /* of the task that arrived last */
    uint32_t tasks;            /* waiting, running or following */
    uint64_t spent;            /* virtual time */
    struct task *first, *last; /* waiting, by rank (policy.h), then arrival */
    struct share *next;
    /* the scheduler's */
    struct task *candidate; /* the next one to try to admit in this step */
    struct task *aged;      /* in this step tried before the others; NULL: it is not its turn */
    struct task *full;      /* in this step the first one that did not fit */
    struct task *look;      /* waiting: whose rank is looked at again next; NULL: the first one's */
    uint32_t since;         /* admissions since the oldest one's last turn */
    /* of a step: running tasks whose prompts are not complete, the oldest one, rows for them */
    uint32_t prompts;
    struct task *oldest;
    uint32_t rows, split; /* split: in that step, as by the scheduler's turn */
};

struct shares {
    struct share common; /* tenant 0; the head of the list */
    uint64_t now;
    uint64_t tasks;  /* of all */
    uint64_t answer; /* the mean of recent answers, in 1/16 tokens */
};

void shares_init(struct shares *all);
void shares_deinit(struct shares *all); /* without tasks */

/* A task arrives: sets t->share and its weight. If memory is short it gets tenant 0's. */
void share_join(struct shares *all, struct task *t);
/* It has ended. */
void share_leave(struct shares *all, struct task *t);
/* It starts, for the first time or again, with `held` tokens in its sequence. */
void share_start(struct shares *all, struct task *t, uint32_t held);
/* Its sequence has `held` tokens now. */
void share_run(struct task *t, uint32_t held);
/* It stops running. */
void share_stop(struct task *t);

/* The waiting list, by t->rank. */
void share_insert(struct share *h, struct task *t);
void share_remove(struct share *h, struct task *t);
/* Of those that wait the one that arrived first; NULL: nobody waits. */
struct task *share_oldest(const struct share *h);

/* The share with a candidate that is served next; NULL: none has one. */
struct share *shares_least(struct shares *all);

#endif
