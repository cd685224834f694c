/* SPDX-License-Identifier: Apache-2.0 */
/* model_set.h: several models that share a budget: which are loaded, and who uses them
 * (model_set.c). It knows nothing of engines: two functions load and unload.
 *
 *     take --------> it is loaded: a lease, at once
 *       `----------> else a place in its line --> the loader's thread loads it --> wake: a lease,
 *                                                 (unloads idle ones for it)            or why not
 *     give          the lease ends; a model without leases is idle
 *
 * Invariants
 *   MODELS-1  A model with leases is not unloaded.
 *   MODELS-2  Models that are loaded, or are being loaded or unloaded, need at most the budget.
 *   MODELS-3  All functions but create and destroy may run on any thread, give and again also on
 *             an engine's: they wait for no load, and hold the mutex for list operations.
 *   MODELS-4  load, unload and wake are called without the mutex; load and unload by one thread at
 *             a time.
 */
#ifndef SERVER_MODEL_SET_H
#define SERVER_MODEL_SET_H

#include <kvasir.h>

#include "util/util.h"

enum model_state {
    MODEL_UNLOADED,
    MODEL_WANTED, /* somebody waits for it, and the loader has not begun */
    MODEL_LOADING,
    MODEL_LOADED,
    MODEL_UNLOADING,
    MODEL_FAILED, /* its load; tried again later */
    MODEL_STATES
};
const char *model_state_text(enum model_state state); /* "unloaded" ... */

struct model_spec {
    const char *name;
    const char *const *aliases; /* [n_aliases] further names */
    size_t n_aliases;
    uint64_t need_bytes; /* of the budget, while it is loaded */
    bool pinned;         /* loaded from the start to the end */
};

struct model_set_options {
    const struct model_spec *models; /* [n], as are the options borrowed for the set's life */
    size_t n;
    uint64_t budget_bytes;
    uint32_t idle_s; /* a model that nobody used for so long is unloaded; 0: only for others */
    uint32_t wait_s; /* how long a request waits for its model */
    /* *out is what a lease gives. KVASIR_ERR_MEMORY: it is tried again once another is unloaded. */
    kvasir_status (*load)(void *user, size_t i, void **out, kvasir_error *err);
    void (*unload)(void *user, size_t i, void *loaded);
    void (*on_line)(void *user, const char *line); /* for the log; NULL: none */
    int64_t (*now_us)(void);                       /* monotonic */
    void *user;
};

/* Why there is no lease. */
struct model_refusal {
    bool for_ever;          /* it will not be tried again */
    uint32_t retry_after_s; /* 0: unknown */
    char text[400];
};

/* A place in a model's line; zero-initialised. */
struct model_wait {
    /* Set by the caller. wake is called once, unless model_set_take did not return MODEL_WAITS.
     * over: whether the wait is in vain (a client left); asked under the set's mutex. */
    void (*wake)(struct model_wait *w);
    bool (*over)(struct model_wait *w);
    /* The result, from wake on. */
    void *loaded; /* a lease on it; NULL: none */
    struct model_refusal why;
    /* the set's */
    struct model_wait *next;
    int64_t until_us;
};

struct model_set;
/* Loads the pinned models. */
kvasir_status model_set_create(const struct model_set_options *options, struct model_set **out,
                               kvasir_error *err);
/* There are no leases and nobody waits. NULL is allowed. */
void model_set_destroy(struct model_set *s);
/* From now on nothing is loaded, and who waits is refused. */
void model_set_stop(struct model_set *s);

/* By its name or an alias, perhaps with ollama's ":latest"; MODEL_NONE: there is none. */
#define MODEL_NONE SIZE_MAX
size_t model_set_find(const struct model_set *s, const char *name);

enum model_take { MODEL_TAKEN, MODEL_WAITS, MODEL_REFUSED };
/* A lease in w->loaded; or w->why; or w is in line, and may be woken by now. */
enum model_take model_set_take(struct model_set *s, size_t i, struct model_wait *w);
/* A lease if the model is loaded now; NULL: it is not. It stays as idle as it is. */
void *model_set_peek(struct model_set *s, size_t i);
/* One more lease, by who has one. */
void model_set_again(struct model_set *s, size_t i);
void model_set_give(struct model_set *s, size_t i);
/* What is loaded must not be used any more: no new leases; unloaded with the last one. Who asks for
 * it later has it loaded again, a pinned one too. */
void model_set_lose(struct model_set *s, size_t i, const char *why);
/* Every second or so: ends waits, and the leisure of idle models. */
void model_set_tick(struct model_set *s);

struct model_view {
    enum model_state state;
    uint32_t leases, waiting;
    uint64_t loads, unloads, failures;
    double load_s;   /* of the last load */
    char error[256]; /* of the last load; "": none */
};
void model_set_view(struct model_set *s, size_t i, struct model_view *out);

#endif
