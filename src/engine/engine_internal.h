/* SPDX-License-Identifier: Apache-2.0 */
/* What engine_api.c (the thread and its lists), engine_request.c (requests) and engine_stats.c
 * share. */
#ifndef ENGINE_INTERNAL_H
#define ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/guide.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"

enum mask_state { MASK_NONE, MASK_WANTED, MASK_READY };

struct choice {
    struct task task; /* owner: this choice */
    struct request *request;
    uint32_t index;
    kvasir_sampler *sampler;
    kvasir_detok *detok; /* NULL: the model has no tokenizer */
    kvasir_stop *stop;
    char *text; /* [text_cap] of the current token */
    size_t text_cap;
    uint32_t generated;
    bool picked; /* token is the next one, from this row of the step (picks.c) */
    uint32_t picked_row;
    int32_t token;
    const struct pick_logs *logs; /* its log-probabilities, if the device has picked it */
    bool stuck;                   /* it cannot go on: failed and why say more, of a grammar */
    bool ended;                   /* its DONE event has been sent */
    kvasir_finish finish;
    /* ---- of a grammar (answer_grammar.c) ---- */
    struct guide guide;
    uint64_t *allowed;        /* [token_set_words(vocab)] tokens that may come next */
    enum mask_state mask;     /* of allowed; guarded by the mask worker's mutex */
    struct choice *next_mask; /* in its list */
    kvasir_status failed;
    kvasir_error why; /* of failed */
    /* ---- of the prompt's rows (prompt_rows.c) ---- */
    double *pooled;   /* [dim] sum of states; NULL: no embedding is asked for */
    float *embedding; /* [dim] the result, once there is one */
    bool embedded;
    /* ---- of a prompt-cache file (prompt_loads.c) ---- */
    struct prompt_load *load;  /* while it is read */
    kvasir_status load_status; /* guarded by the loader's mutex */
    kvasir_error load_error;
    struct choice *next_load;
};

struct request {
    struct kvasir_engine *engine;
    uint64_t id;
    kvasir_request r; /* its pointers are copies below, or borrowed */
    char *salt;
    uint64_t *stop_set;              /* [token_set_words(vocab)] tokens that end it; NULL: none */
    struct choice *choices;          /* [n] */
    int32_t asked[TOP_LOGPROBS_MAX]; /* [r.n_asked_tokens] */
    float asked_logprobs[TOP_LOGPROBS_MAX]; /* likewise, once it is complete */
    struct task **followers;
    uint32_t open; /* choices that have not ended */
    uint32_t prompt_tokens, cached_tokens, prompt_done;
    bool taken; /* from the inbox, by the scheduler */
    bool started;
    bool counted; /* in engine.waiting until it has started: the first of those that came at once */
    atomic_bool cancel;
    struct request *prev, *next; /* in the list of open requests */
    struct request *inbox_next;
};

/* Something about stored prefixes that the engine's thread does between two steps (engine_cache.c).
 */
struct engine_call;

/* Prefixes of a salt are to be forgotten. */
struct forget_order {
    struct forget_order *next;
    char salt[];
};

/* The thread that makes sets of tokens (answer_grammar.c). */
struct mask_worker {
    bool exists, runs;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wanted, ready;
    /* guarded by mutex */
    struct choice *first; /* whose sets are wanted, the oldest first */
    bool stop;
    uint64_t made;
    double seconds;
    /* the engine's thread's */
    uint64_t waits, forced;
    double wait_seconds;
};

/* The thread that reads prompt-cache files (prompt_loads.c). */
struct page_loader {
    bool exists, runs;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wanted, idle;
    uint64_t bytes; /* for slots */
    /* once there is a file */
    uint8_t *slots; /* [n_slots][slot_bytes] tiles of a page each */
    size_t slot_bytes;
    uint32_t n_slots;
    /* guarded by mutex */
    struct choice *first; /* whose files are to be read, the oldest first */
    uint32_t made, taken; /* pages of the first one's file */
    bool busy;            /* it makes one */
    bool stop;
};

/* A row whose token is picked beside others (picks.c). */
struct wanted_pick {
    struct choice *choice;
    uint32_t row;
    bool on_device;
    const float *logits; /* otherwise, when they are there */
};

struct picks {
    /* [max_running], rising rows; n of this step, the first `made` dealt with */
    struct wanted_pick *list;
    uint32_t n, made;
    /* if the device picks: those of list that are on_device, in order */
    struct device_picks device; /* list and out [max_running] */
    atomic_uint next;           /* of list, up to end: what lanes take */
    uint32_t end;
    struct sampler_scratch *scratch[8]; /* [lanes]; the first also for picks one by one */
    uint32_t lanes;
};

struct kvasir_engine {
    const struct kvasir_model *model;
    struct kvasir_context *ctx;
    struct backend *backend;          /* until the context owns it */
    struct prefix_tree *tree;         /* NULL: prefixes are not kept */
    struct tiers *tiers;              /* below the tree; NULL: none */
    struct tiers_options given_tiers; /* until they are made; n 0 from then on */
    bool tiers_given;                 /* to engine_create_take, not by the options */
    void (*on_note)(void *user, const char *line);
    void *note_user;
    double flush_seconds; /* at the end, for what the tiers lack */
    struct sched *sched;
    struct picks picks;
    const float *logits; /* [vocab] of the row that host_next handles, if needed, or */
    const float *state;  /* [dim] its state */
    uint64_t fixed_bytes, tiers_bytes; /* of the budget: buffers of steps; of tiers */
    uint32_t max_running, max_waiting, target_step_ms;
    uint32_t fit_tokens; /* the longest sequence that fits the budget alone */
    bool rotates;
    kvasir_context_info info; /* at the start */
    pthread_t thread;
    bool thread_runs;
    struct mask_worker masks;
    struct page_loader loads;
    uint64_t finished, cancelled, failed;
    double step_seconds;
    uint64_t step_counts[KVASIR_STEP_COUNTS];
    kvasir_token_logprob top[TOP_LOGPROBS_MAX];
    pthread_mutex_t vocab_mutex;
    struct guide_vocab guide_vocab; /* under it; the first request that needs it makes it */
    /* guarded by mutex */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    struct request *inbox, **inbox_end;
    struct request *open;
    uint32_t waiting;  /* submitted, not yet admitted */
    uint64_t requests; /* submitted so far; the last id */
    bool stop, cancels, forget_all;
    bool forgetting;             /* the engine's thread has taken orders to forget */
    bool io_ready;               /* a thread of the tiers or of loads has left something */
    struct forget_order *forget; /* salts of prefixes to be forgotten */
    struct engine_call *calls;   /* the oldest first */
    kvasir_engine_stats stats;
    kvasir_error lost; /* of the device, which runs nothing any more; code KVASIR_OK: it works */
    /* [n_formats], the first is "tables"; class_format: each class's entry, or 0 */
    kvasir_format_bytes formats[PAGE_CLASSES_MAX + 1];
    size_t n_formats;
    uint16_t class_format[PAGE_CLASSES_MAX];
};

/* By a thread that has left something for the engine's. */
static inline void engine_wake(struct kvasir_engine *e) {
    pthread_mutex_lock(&e->mutex);
    e->io_ready = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->mutex);
}

/* ---- engine_cache.c: on the engine's thread ---- */
/* What other threads ordered: forgetting all, forgetting salts, calls. The orders are freed. */
void cache_forget_orders(struct kvasir_engine *e, bool all, struct forget_order *orders);
void cache_run_calls(struct kvasir_engine *e, struct engine_call *calls);
/* Tells the tree the time. True: what has expired takes more calls to remove. */
bool cache_tell_time(struct kvasir_engine *e);
/* Seconds until something expires; 0: nothing will. */
double cache_next_expiry(const struct kvasir_engine *e);

/* ---- tiers_api.c ---- */
/* Makes the tiers that were given, or those of the options. */
kvasir_status engine_open_tiers(struct kvasir_engine *e, const kvasir_engine_options *o,
                                kvasir_error *err) MUST_CHECK;

/* ---- prompt_loads.c: prompt-cache files of requests ---- */
/* What the slots take of a budget, whether there are files or not. */
uint64_t loads_bytes(const struct kvasir_engine *e, uint64_t budget);
kvasir_status loads_start(struct kvasir_engine *e, uint64_t bytes, kvasir_error *err) MUST_CHECK;
void loads_stop(struct kvasir_engine *e); /* after the engine's thread */
/* On the engine's thread: begin, ready, fill and dropped of struct sched_host. */
kvasir_status loads_begin(struct choice *c, struct kv_seq **out, kvasir_error *err) MUST_CHECK;
uint32_t loads_ready(struct choice *c);
kvasir_status loads_fill(struct choice *c, uint32_t rows, kvasir_error *err) MUST_CHECK;
void loads_dropped(struct choice *c);

/* ---- answer_grammar.c: answers of a grammar ---- */
/* What grammars take of the budget, whether there are any or not. */
uint64_t answer_vocab_bytes(const struct kvasir_engine *e);
kvasir_status masks_start(struct kvasir_engine *e, kvasir_error *err) MUST_CHECK;
void masks_stop(struct kvasir_engine *e); /* after the engine's thread */
void masks_stats(struct kvasir_engine *e, kvasir_engine_stats *stats);
/* On the thread that submits: the vocabulary; a choice's guide and set, once it has its sampler. */
kvasir_status answer_need_vocab(struct request *q, kvasir_error *err) MUST_CHECK;
kvasir_status answer_init(struct choice *c, const kvasir_grammar *g, kvasir_error *err) MUST_CHECK;
void answer_deinit(struct choice *c);
/* On the engine's thread. Has the set for the choice's next token made, if it needs one. */
void answer_want(struct choice *c);
/* The choice will be freed. */
void answer_forget(struct choice *c);
/* Whether forced tokens are appended without waiting for logits, which nobody wants. */
static inline bool answer_jumps(const struct choice *c) {
    return guide_is_forced(&c->guide) && c->request->r.top_logprobs < 0;
}
/* Whether its next token can be picked now, and is not forced. */
bool answer_can_pick(struct choice *c);
/* Picks the next token, if picks.c has not. False: there is none (c->stuck). */
bool answer_pick(struct choice *c, const float *logits, int32_t *token);
/* The token has been appended. False: the answer is complete, or c->stuck. */
bool answer_add(struct choice *c, int32_t token);

/* ---- picks.c: tokens of several rows at once ---- */
/* Memory of the list and of scratch. Needs the context, and max_running. */
uint64_t picks_bytes(const struct kvasir_engine *e);
kvasir_status picks_init(struct kvasir_engine *e, kvasir_error *err) MUST_CHECK;
void picks_deinit(struct kvasir_engine *e);
/* A step is to be run; the choice's next token is picked from its row, in rising order of rows. */
void picks_begin(struct kvasir_engine *e);
void picks_want(struct choice *c, uint32_t row);
/* Another row has been reached: takes the picks of a device, and picks from all rows whose logits
 * are in host memory. */
kvasir_status picks_make(struct kvasir_engine *e, kvasir_error *err) MUST_CHECK;

/* Whether the device has picked the choice's token from this row: nothing else is needed of it. */
bool picks_have(const struct choice *c, uint32_t row);

/* ---- prompt_rows.c: what the rows of a prompt are wanted for ---- */
kvasir_status rows_check(const kvasir_request *r, kvasir_error *err) MUST_CHECK;
kvasir_status rows_init(struct choice *c, kvasir_error *err) MUST_CHECK;
void rows_deinit(struct choice *c);
/* On the engine's thread. Makes a row's logits, or its state, available. */
kvasir_status rows_read(struct choice *c, uint32_t row, kvasir_error *err) MUST_CHECK;
/* Row `position` of the prompt is available. The token after it gets its log-probability: true,
 * which is in *event with the token. */
bool rows_take(struct choice *c, uint32_t position, kvasir_event *event);
/* The last row is available, and there will be no answer. */
void rows_finish(struct choice *c);

/* Copies a request and makes all that its choices need, on the thread that submits. A request that
 * could never run is refused. */
kvasir_status request_make(struct kvasir_engine *e, const kvasir_request *r, struct request **out,
                           kvasir_error *err);
void request_close(struct request *q);
/* An engine on a backend and with tiers below its tree (their context, wake and user are set here),
 * which it owns from then on, also on failure. NULL: those of the options. */
kvasir_status engine_create_take(const struct kvasir_model *model,
                                 const kvasir_engine_options *options, struct backend *backend,
                                 const struct tiers_options *tiers, struct kvasir_engine **out,
                                 kvasir_error *err) MUST_CHECK;
/* On the engine's thread: counts a step's time; makes the current figures visible to readers. */
void stats_note_step(struct kvasir_engine *e, uint32_t rows, double seconds);
void stats_publish(struct kvasir_engine *e);
/* The same after a step that has failed: whether the device did. */
void stats_note_failure(struct kvasir_engine *e);
/* The scheduler's host: runs steps, samples tokens, sends events. */
struct sched_host request_host(struct kvasir_engine *e);

#endif
