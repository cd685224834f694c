/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler_internal.h: what scheduler.c and scheduler_rows.c share. */
#ifndef KVASIR_ENGINE_SCHEDULER_INTERNAL_H
#define KVASIR_ENGINE_SCHEDULER_INTERNAL_H

#include "engine/scheduler.h"

struct sched {
    struct kv_cache *cache;
    struct kv_pool *pool;
    struct prefix_tree *tree;
    struct tiers *tiers;
    uint64_t room; /* of the budget, for tasks, loads and the tree */
    struct sched_options options;
    struct sched_host host;
    struct shares shares;                     /* and waiting tasks */
    struct task **running;                    /* [max_running] */
    struct task **by_age;                     /* the same tasks, the first admitted first */
    struct ranked *prompts, *prompts_scratch; /* [max_running] of the current step */
    struct step_part *parts;                  /* [max_running] of the current step */
    struct task **part_tasks;                 /* [max_running] */
    uint32_t n_running, turn;
    struct pace pace;
    uint64_t next_order, admissions;
    uint64_t changes;     /* times that a task left the waiting or the running ones */
    uint64_t no_place_at; /* all places were taken then */
    bool by_snapshot;     /* hits end at snapshots (kv_cache_snapshot_bytes) */
    bool whole;           /* pages are encoded when they are full (kv_cache_is_whole) */
    struct sched_stats stats;
};

/* Whether the tree keeps what the task computes. */
static inline bool is_stored(const struct sched *s, const struct task *t) {
    return s->tree && !t->detached && !t->no_store;
}
/* How many of the task's tokens may be looked up among those stored (SCHED-10); the last of them is
 * always run. */
static inline uint32_t findable(const struct task *t) {
    return t->every_row && t->given < t->n_prompt ? t->given + 1 : t->n_tokens;
}
/* Whether the host still has rows of the task's sequence that no step computes. */
static inline bool is_loading(const struct task *t) {
    return seq_length(t->seq) < t->from_host;
}

/* ---- scheduler_rows.c ------------------------------------------------------------------------ */

/* SCHED-2: sets `rows` of all running tasks. */
void rows_distribute(struct sched *s);
/* Recurrent layers, an exact tail: whether the tree is to store the task's state at this length. */
bool rows_end_at_point(const struct sched *s, const struct task *t, uint32_t length);

#endif
