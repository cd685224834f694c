/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler.h: which rows of which sequences the next step has.
 *
 * A task is one answer: its prompt, what has been generated so far, and while it runs a sequence
 * and a cursor in the prefix tree. The scheduler knows tokens, pages and budgets. Its host computes
 * logits and picks tokens (engine_request.c with a model, lab/replay.c with a cost model).
 *
 *     waiting, by tenant --admit--> running: prompt --> answer --> done
 *            ^                          |
 *            `-------- preempted -------'     pages stay in the tree while they fit
 *
 *     sched_step     admit; distribute rows; prepare pages (evict, then preempt, until they fit)
 *       host.run     the model; commits the rows
 *                    store; host.next for every task whose tokens have all been run
 *
 * Invariants (tests/sim/ try to break them)
 *   SCHED-1  A task's tokens do not depend on what runs beside it, on preemption or on hits: each
 *            comes from the logits of its own tokens and from its own sampler.
 *   SCHED-2  A step has at most step_rows rows: one for each task that generates; the rest is
 *            shared among tenants with prompts by their weights, and among the prompts of a tenant
 *            as policy.h says. What a tenant cannot use others get.
 *   SCHED-3  If pages are short, the task that was first admitted last is preempted. So the oldest
 *            one always makes progress: alone it fits (sched_need is checked before a task is
 *            accepted).
 *   SCHED-4  Admission is by virtual time among tenants (shares.h), and among the tasks of a tenant
 *            by rank and age; how often one that does not fit is passed has a bound (policy.h). A
 *            task waits while a running one computes a prefix that both share, so that a prefix is
 *            computed once (of recurrent layers in an answer: if SCHED-7 has room for the state).
 *            Tasks whose turn comes later need not wait for that.
 *   SCHED-5  What a task holds beside pages is charged to the pool while it runs.
 *   SCHED-6  A step allocates only if it admits or forks.
 *   SCHED-7  A state of recurrent layers is kept in an answer only if all running tasks would still
 *            have room to grow by a page: keeping one never preempts a task.
 *   SCHED-8  A task whose turn it is waits while what the tiers have of its prompt is loaded;
 *            others pass it. Loads keep pages only as long as every running task could still have
 *            all that it may need, alone; if the oldest lacks room, finished loads give up theirs.
 *   SCHED-9  Rows that the host has (from_host) get pages as all rows do, and no part in a step:
 *            who computes never waits for them.
 *   SCHED-10 A task with every_row has each row of its prompt given to the host once, in order. So
 *            stored prefixes serve it only as far as rows were given before a preemption.
 */
#ifndef KVASIR_ENGINE_SCHEDULER_H
#define KVASIR_ENGINE_SCHEDULER_H

#include "engine/engine.h"
#include "engine/policy.h"
#include "engine/shares.h"

enum task_state { TASK_WAITING, TASK_RUNNING, TASK_FOLLOWING, TASK_DONE };

struct task {
    /* ---- the host's, before sched_submit ---- */
    void *owner;
    const void *salt;
    size_t salt_len;
    int32_t *tokens;         /* [cap]: the prompt, then what was generated */
    uint32_t n_prompt, cap;  /* cap: prompt and the longest answer */
    bool detached;           /* the tree neither finds nor stores it */
    uint32_t from_host;      /* of a detached task: its first tokens' rows come from the host */
    bool every_row;          /* the host wants all rows of the prompt, not the last alone */
    bool hidden;             /* of rows it wants states, not logits */
    bool no_store;           /* it may find stored prefixes; nothing of it is stored */
    bool pin;                /* what it stores is evicted after all else (tree_favour) */
    uint32_t ttl_seconds;    /* of what it stores, from when that is stored; 0: no limit */
    struct task **followers; /* [n_followers]: share this one's prompt and fork after it */
    uint32_t n_followers;
    uint64_t tenant;  /* whose task it is; followers have the same */
    uint32_t weight;  /* of the tenant; 0: 1 */
    int32_t priority; /* lower goes first (policy.h) */
    /* ---- the scheduler's ---- */
    uint32_t n_tokens; /* the host's next() appends */
    enum task_state state;
    uint64_t order;   /* of arrival */
    uint64_t rank;    /* while it waits (policy.h) */
    uint64_t full_at; /* it did not fit then */
    uint32_t passed;  /* by so many, since it first did not fit */
    struct kv_seq *seq;
    struct tree_cursor at;
    struct tree_hit hit; /* of its first admission */
    struct tree_miss miss;
    bool admitted;      /* ever */
    uint64_t admission; /* the first one's number */
    struct share *share;
    uint64_t prepaid;   /* tokens that the share has paid for and that have not been run */
    uint32_t run_to;    /* rows before it have been paid for, or came from the tree */
    uint32_t given;     /* with every_row: rows before it were given to the host */
    uint32_t seen;      /* rows before it were run before a preemption */
    uint32_t hit_point; /* a length at which a waiting task wants the state */
    uint64_t charged;
    uint64_t held_bytes;      /* of its pages and states when it last released them */
    uint32_t descended_pages; /* of those, pages that the ladder had given fewer bits */
    uint64_t waits_for;       /* 1 + order of the task whose prefix it waits for; 0: none */
    uint32_t waits_until;     /* that task's length by then */
    struct tier_load *load;   /* what the tiers have of its tokens, until it is admitted */
    bool looked;              /* the tiers have been asked since it began to wait */
    double looked_at;         /* clock_seconds when stored prefixes were first looked up */
    struct task *prev, *next; /* the share's waiting list */
    uint32_t rows;            /* in the current step */
};

enum task_end { END_COMPLETE, END_CANCELLED, END_FAILED };

struct sched_host {
    void *user;
    /* admitted, logits and progress may be NULL; the first four, if no task has from_host. */
    /* The sequence of such a task, without its rows. */
    kvasir_status (*begin)(void *user, struct task *t, struct kv_seq **out, kvasir_error *err);
    /* How many of the next rows `fill` has: whole pages, or all that are left. Never waits. */
    uint32_t (*ready)(void *user, struct task *t);
    /* Writes so many rows to pages that are prepared, and commits them. */
    kvasir_status (*fill)(void *user, struct task *t, uint32_t rows, kvasir_error *err);
    /* The sequence is going; begin may come again. */
    void (*dropped)(void *user, struct task *t);
    /* The task is about to run, for the first time or after a preemption. */
    kvasir_status (*admitted)(void *user, struct task *t, kvasir_error *err);
    /* The parts are about to be run; NULL: the host does not look. Wanted rows are counted over all
     * parts, in order. */
    void (*begins)(void *user, struct task *const *tasks, const struct step_part *parts,
                   uint32_t n);
    /* Runs the model over the parts' rows and commits them. */
    kvasir_status (*run)(void *user, const struct step_part *parts, uint32_t n, kvasir_error *err);
    /* Called before next for each wanted row of the step, in rising order: makes its logits, or
     * its state, available. */
    kvasir_status (*logits)(void *user, struct task *t, uint32_t row, kvasir_error *err);
    /* Then, with every_row, that row of the prompt is given; NULL: no task has it. */
    void (*give)(void *user, struct task *t, uint32_t position);
    void (*progress)(void *user, struct task *t); /* rows of its prompt have been run */
    /* All of the task's tokens have been run; its logits are those of the step's wanted row `row`.
     * Picks a token and appends it to tokens, n_tokens, and more if they must follow: those are run
     * like a prompt's. False: the answer is complete. */
    bool (*next)(void *user, struct task *t, uint32_t row);
    /* The last call about a task. error: of END_FAILED. */
    void (*ended)(void *user, struct task *t, enum task_end end, const kvasir_error *error);
};

struct tiers;

struct sched_options {
    struct tiers *tiers;  /* below the tree; outlives the scheduler. NULL: none */
    uint32_t max_running; /* <= step_rows */
    uint32_t step_rows;
    /* recurrent layers' states are kept every so many tokens; 0: where prompts and answers end */
    uint32_t snapshot_tokens;
    bool points_near_ends; /* and closer to each other towards the end of a prompt */
    enum policy policy;
    double step_seconds; /* a step in which tasks generate should take; 0: step_rows alone count */
};

struct sched;
/* tree: NULL: nothing is shared. Both outlive it. */
kvasir_status sched_create(struct kv_cache *cache, struct prefix_tree *tree,
                           const struct sched_options *options, const struct sched_host *host,
                           struct sched **out, kvasir_error *err) MUST_CHECK;
void sched_destroy(struct sched *s); /* without tasks */

/* The most bytes of budget that a task of so many tokens in all needs alone. */
uint64_t sched_need(const struct sched *s, uint32_t tokens);
/* The task, with its followers, is the scheduler's until `ended`. */
void sched_submit(struct sched *s, struct task *t);
/* Not from a host's function. */
void sched_cancel(struct sched *s, struct task *t);
/* Between steps, if there are tiers: takes what their threads have done. */
void sched_collect(struct sched *s, double now);
/* One step. *rows: how many it had; 0: nobody runs or waits, but for rows that a tier or the host
 * is to have. An error is the device's: all running tasks have ended with it. */
kvasir_status sched_step(struct sched *s, uint32_t *rows, kvasir_error *err);

/* Between steps, with a ladder (kv_bits "auto"): a page goes down, if the budget is nearly full
 * (kv_cache_descend), after some of the steps; idle: whenever this is called. False: none did. */
bool sched_descend(struct sched *s, bool idle);

/* With step_seconds: how long a step took. */
void sched_note_step(struct sched *s, uint32_t rows, double seconds);

struct sched_stats {
    uint32_t running, waiting;
    uint64_t steps, preemptions;
    uint64_t prompt_tokens, cached_tokens, rerun_tokens, generated_tokens;
    uint64_t hits[KVASIR_HIT_KINDS], misses[KVASIR_MISS_KINDS];
};
struct sched_stats sched_stats(const struct sched *s);
/* The same with the pool's and the tree's; numbers that only a host knows are 0. */
kvasir_engine_stats sched_engine_stats(const struct sched *s);

#endif
