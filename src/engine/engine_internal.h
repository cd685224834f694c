/* SPDX-License-Identifier: Apache-2.0 */
/* What engine_api.c (the thread, its lists, its life), engine_request.c (requests and what becomes
 * of them) and engine_figures.c share.
 */
#ifndef ENGINE_INTERNAL_H
#define ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/sampler.h"
#include "engine/scheduler.h"

struct choice {
    struct task task; /* owner: this choice */
    struct request *request;
    uint32_t index;
    kvasir_sampler *sampler;
    kvasir_detok *detok; /* NULL: the model has no tokenizer */
    kvasir_stop *stop;
    char *text; /* [text_cap] of the token at hand */
    size_t text_cap;
    uint32_t generated;
    struct json_state json; /* where the answer stands, of a json_object */
    bool stuck;             /* no token can go on with it */
    bool ended;             /* its DONE event has been sent */
    kvasir_finish finish;
};

struct request {
    struct kvasir_engine *engine;
    uint64_t id;
    kvasir_request r; /* its pointers are copies below, or borrowed */
    char *salt;
    int32_t *stop_tokens;
    const struct json_vocab *json; /* NULL: any text */
    struct choice *choices;        /* [n] */
    struct task **followers;
    uint32_t open; /* choices that have not ended */
    uint32_t prompt_tokens, cached_tokens, prompt_done;
    bool taken; /* off the inbox: the scheduler's */
    bool started;
    atomic_bool cancel;
    struct request *prev, *next; /* of all that are open */
    struct request *inbox_next;
};

/* Prefixes of a salt are to be forgotten. */
struct forget_order {
    struct forget_order *next;
    char salt[];
};

struct kvasir_engine {
    const struct kvasir_model *model;
    struct kvasir_context *ctx;
    struct backend *backend;  /* for the context, until it is made; NULL: a CPU */
    struct prefix_tree *tree; /* NULL: prefixes are not kept */
    struct sched *sched;
    struct sampler_scratch *scratch;
    uint64_t *allowed;   /* [token_set_words(vocab)] of the json_object at hand */
    const float *logits; /* [vocab] of the row that host_next is called for */
    uint64_t fixed_bytes;
    uint32_t max_running, max_waiting;
    uint32_t fit_tokens; /* of a sequence that has the whole budget */
    bool rotates;
    kvasir_context_info info; /* as of the start */
    pthread_t thread;
    bool thread_runs;
    uint64_t finished, cancelled, failed;
    double step_seconds;
    uint64_t step_counts[KVASIR_STEP_COUNTS];
    kvasir_token_logprob top[TOP_LOGPROBS_MAX];
    pthread_mutex_t json_mutex; /* of json, which the first request that needs it makes */
    struct json_vocab *json;
    /* under the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    struct request *inbox, **inbox_end;
    struct request *open;
    uint32_t waiting;  /* submitted, and never admitted */
    uint64_t requests; /* ever; the last id */
    bool stop, cancels, forget_all;
    struct forget_order *forget; /* salts of prefixes to be forgotten */
    kvasir_engine_stats stats;
    /* [n_formats], the first: "tables"; of each class of the pool: its entry, or 0 */
    kvasir_format_bytes formats[PAGE_CLASSES_MAX + 1];
    size_t n_formats;
    uint16_t class_format[PAGE_CLASSES_MAX];
};

/* A copy of the request with all that its choices need, not submitted; on the thread that submits.
 * Refused is what could never run. */
kvasir_status request_make(struct kvasir_engine *e, const kvasir_request *r, struct request **out,
                           kvasir_error *err);
void request_close(struct request *q);
/* An engine on a backend that it takes, also when it fails. */
kvasir_status engine_create_take(const struct kvasir_model *model,
                                 const kvasir_engine_options *options, struct backend *backend,
                                 struct kvasir_engine **out, kvasir_error *err) MUST_CHECK;
/* On the engine's thread: a step took so long; the figures as they are now are what others read. */
void figures_note_step(struct kvasir_engine *e, double seconds);
void figures_copy(struct kvasir_engine *e);
/* What the scheduler asks for: tokens are sampled and sent as events. */
struct sched_host request_host(struct kvasir_engine *e);

#endif
