/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler.h: which rows of which sequences the next step has.
 *
 * A task is one answer under way: its prompt, what was generated so far, and while it runs a
 * sequence and its place in the prefix tree. The scheduler knows tokens, pages and budgets; how
 * logits come about and how a token is picked from them is its host's business (engine_request.c
 * with a model, simulate.c with a cost model).
 *
 *     waiting, by arrival --admit--> running: prompt --> answer --> done
 *            ^                          |
 *            `-------- preempted -------'     pages stay in the tree while they fit
 *
 *     sched_step     admit; share out rows; prepare pages (evict, then preempt, until they fit)
 *       host.run     the model; commits the rows
 *                    store; host.next for every task whose tokens have all been run
 *
 * Invariants (tests/sim/ try to break them)
 *   E1  A task's tokens do not depend on what runs beside it, on preemption or on hits: each comes
 *       from the logits of its own tokens and from its own sampler.
 *   E2  A step has at most step_rows rows: one for each task that generates; what is left is shared
 *       equally among prompts, and who is served first goes round.
 *   E3  Where pages are short the task that arrived last gives way. So the oldest one always gets
 *       on: alone it fits (sched_need is asked before a task is accepted).
 *   E4  Admission is by arrival. A task waits while another one that runs is computing a prefix
 *       that it could share: a prefix is computed once (of recurrent layers in an answer: where
 *       E7 has room for the state). That keeps nobody behind it waiting.
 *   E5  What a task holds beside pages is charged to the pool while it runs.
 *   E6  A step allocates only where it admits or forks.
 *   E7  A state of recurrent layers is kept in an answer only where room is left for what all that
 *       run take until they are a page on: nobody gives way for it.
 */
#ifndef KVASIR_ENGINE_SCHEDULER_H
#define KVASIR_ENGINE_SCHEDULER_H

#include "engine/engine.h"

enum task_state { TASK_WAITING, TASK_RUNNING, TASK_FOLLOWING, TASK_DONE };

struct task {
    /* ---- the host's, before sched_submit ---- */
    void *owner;
    const void *salt;
    size_t salt_len;
    int32_t *tokens;         /* [cap]: the prompt, then what was generated */
    uint32_t n_prompt, cap;  /* cap: prompt and the longest answer */
    bool apart;              /* has a sequence of the host's making; not of the tree */
    struct task **followers; /* [n_followers]: fork from this one's prompt, which is theirs */
    uint32_t n_followers;
    /* ---- the scheduler's ---- */
    uint32_t n_tokens; /* the host's next() appends */
    enum task_state state;
    uint64_t order; /* of arrival */
    struct kv_seq *seq;
    struct tree_cursor at;
    struct tree_hit hit; /* of its first admission */
    bool admitted;       /* ever */
    uint32_t seen;       /* rows below it were run before a preemption */
    uint32_t point;      /* a length at which a waiting task wants the state */
    uint64_t charged;
    uint64_t held_bytes;      /* of its pages and states when it last gave them back */
    uint64_t behind;          /* 1 + order of the task whose prefix it waits for; 0: none */
    uint32_t behind_until;    /* that task's length by then */
    struct task *prev, *next; /* waiting list */
    uint32_t rows;            /* of the step under way */
};

enum task_end { END_COMPLETE, END_CANCELLED, END_FAILED };

struct sched_host {
    void *user;
    /* begin, admitted, logits and progress may be NULL. */
    /* The sequence of a task that is apart; else an empty one. */
    kvasir_status (*begin)(void *user, struct task *t, struct kv_seq **out, kvasir_error *err);
    /* It is about to run, for the first time or after a preemption. */
    kvasir_status (*admitted)(void *user, struct task *t, kvasir_error *err);
    /* Runs the model over the parts' rows and commits them. */
    kvasir_status (*run)(void *user, const struct step_part *parts, uint32_t n, kvasir_error *err);
    /* Makes the logits of the step's wanted row `row` ready, before next is called for it; rows
     * come in rising order. */
    kvasir_status (*logits)(void *user, uint32_t row, kvasir_error *err);
    void (*progress)(void *user, struct task *t); /* rows of its prompt have been run */
    /* All of the task's tokens have been run, its logits are wanted row `row` of the step: picks a
     * token and appends it to tokens, n_tokens. False: the answer is complete. */
    bool (*next)(void *user, struct task *t, uint32_t row);
    /* The last call about a task. error: of END_FAILED. */
    void (*ended)(void *user, struct task *t, enum task_end end, const kvasir_error *error);
};

struct sched_options {
    uint32_t max_running; /* <= step_rows */
    uint32_t step_rows;
    /* recurrent layers' states are kept every so many tokens; 0: where prompts and answers end */
    uint32_t snapshot_tokens;
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
/* One step. *rows: how many it had; 0: nobody waits or runs. A failure is the device's: what ran
 * has ended with it. */
kvasir_status sched_step(struct sched *s, uint32_t *rows, kvasir_error *err);

struct sched_stats {
    uint32_t running, waiting;
    uint64_t steps, preemptions;
    uint64_t prompt_tokens, cached_tokens, rerun_tokens, generated_tokens;
    uint64_t hits[KVASIR_HIT_KINDS];
};
struct sched_stats sched_stats(const struct sched *s);
/* The same with the pool's and the tree's; what only a host knows is 0. */
kvasir_engine_stats sched_engine_stats(const struct sched *s);

#endif
