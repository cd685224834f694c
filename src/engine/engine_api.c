/* SPDX-License-Identifier: Apache-2.0 */
/* kvasir_engine: one thread that owns a context, a prefix tree and a scheduler, and the two lists
 * through which others reach it.
 *
 *     any thread                          the engine's thread
 *       submit --> inbox --.                 take inbox, cancels, what to forget
 *       cancel --> flags --+--(mutex)-->     sched_step: admit, rows, pages, model
 *       forget --> list  --'                   next(): sample, text, stop texts --> on_event
 *       stats  <-- copy  <-----------------  copy of the figures
 *
 * A request has as many choices as it asks for; each is a task of the scheduler with a sampler, a
 * detokenizer and a matcher of stop texts of its own. All of it is made by the thread that submits,
 * so that the engine's allocates only where it admits (I6): sequences, and room for the answers'
 * tokens.
 *
 * One budget: the buffers of steps are charged to the pool at the start, what tasks hold beside
 * pages while they run, nodes of the tree as they come (I3). Requests that wait are bounded by
 * max_waiting, each by its prompt, and are not in the budget.
 */
#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

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
    bool ended; /* its DONE event has been sent */
    kvasir_finish finish;
};

struct request {
    struct kvasir_engine *engine;
    uint64_t id;
    kvasir_request r; /* its pointers are copies below, or borrowed */
    char *salt;
    int32_t *stop_tokens;
    struct choice *choices; /* [n] */
    struct task **followers;
    uint32_t open; /* choices that have not ended */
    uint32_t prompt_tokens, cached_tokens, prompt_done;
    bool taken; /* off the inbox: the scheduler's */
    bool started;
    atomic_bool cancel;
    struct request *prev, *next; /* of all that are open */
    struct request *inbox_next;
};

struct kvasir_engine {
    const struct kvasir_model *model;
    struct kvasir_context *ctx;
    struct prefix_tree *tree; /* NULL: prefixes are not kept */
    struct sched *sched;
    struct sampler_scratch *scratch;
    const float *logits; /* of the step under way */
    uint64_t fixed_bytes;
    uint32_t max_running, max_waiting;
    uint32_t fit_tokens; /* of a sequence that has the whole budget */
    bool rotates;
    pthread_t thread;
    bool thread_runs;
    uint64_t finished, cancelled, failed;
    kvasir_token_logprob top[TOP_LOGPROBS_MAX];
    /* under the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    struct request *inbox, **inbox_end;
    struct request *open;
    uint32_t waiting;  /* submitted, and never admitted */
    uint64_t requests; /* ever; the last id */
    bool stop, cancels, forget_all;
    char **forget; /* [n_forget] salts */
    size_t n_forget;
    kvasir_engine_stats stats;
};

/* ---- options --------------------------------------------------------------------------------- */

kvasir_engine_options kvasir_engine_defaults(void) {
    return (kvasir_engine_options){.context = kvasir_context_defaults(),
                                   .cache_memory_percent = 75,
                                   .max_running = 32,
                                   .max_waiting = 1024,
                                   .min_quantize_tokens = 256};
}

kvasir_request kvasir_request_defaults(void) {
    return (kvasir_request){.n = 1, .sampling = kvasir_sampling_defaults(), .top_logprobs = -1};
}

/* Products of a token: weights of its layers, and two of every head for each cached token. */
static uint32_t model_rebuild_tokens(const struct model_config *c) {
    double weights = 0, attention = 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_config *l = &c->layers[i];
        const double q = (double)c->heads * l->head_dim, kv = (double)l->kv_heads * l->head_dim,
                     ffn = l->experts ? (double)c->moe.top_k * c->moe.dim : (double)l->ffn_dim;
        weights += (double)c->dim * (2 * q + 2 * kv + 3 * ffn);
        attention += l->kind == LAYER_ATTENTION ? 2 * q : 0;
    }
    return rebuild_tokens(weights, attention);
}

static kvasir_status settle_budget(const struct kvasir_model *m, const kvasir_engine_options *o,
                                   uint64_t *bytes, kvasir_error *err) {
    const uint64_t available = memory_available_bytes(), weights = model_weight_bytes(m->model);
    *bytes = o->cache_memory_bytes;
    if (*bytes)
        return KVASIR_OK;
    if (!(o->cache_memory_percent > 0 && o->cache_memory_percent <= 100))
        return fail(err, KVASIR_ERR_ARGUMENT, "--cache-memory-percent: %g is not in (0, 100]",
                    o->cache_memory_percent);
    const uint64_t free_bytes = available > weights ? available - weights : available / 4;
    *bytes = (uint64_t)((double)free_bytes * o->cache_memory_percent / 100);
    return KVASIR_OK;
}

/* The longest sequence that fits the budget alone. */
static uint32_t longest_fit(const struct kvasir_engine *e) {
    const struct kv_pool_stats pool = kv_pool_stats(kv_cache_pool(e->ctx->cache));
    const uint64_t budget = pool.budget_bytes - pool.charged_bytes;
    uint32_t low = 0, high = e->rotates ? UINT32_MAX / 4 : e->ctx->options.ctx;
    while (low < high) {
        const uint32_t middle = low + (high - low + 1) / 2;
        if (sched_need(e->sched, middle) <= budget)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* ---- events ---------------------------------------------------------------------------------- */

static kvasir_event event_of(const struct choice *c, kvasir_event_kind kind) {
    const struct request *q = c->request;
    const struct task *lead = &q->choices[0].task;
    return (kvasir_event){.request = q->id,
                          .kind = kind,
                          .choice = c->index,
                          .prompt_tokens = q->prompt_tokens,
                          .cached_tokens = q->cached_tokens,
                          .prompt_done = q->prompt_done,
                          .completion_tokens = c->generated,
                          .hit = lead->hit.kind,
                          .token = -1,
                          .text = ""};
}

static void send(const struct choice *c, const kvasir_event *event) {
    if (c->request->r.on_event)
        c->request->r.on_event(c->request->r.user, event);
}

/* ---- text ------------------------------------------------------------------------------------ */

static bool text_room(struct choice *c, size_t bytes) {
    if (bytes <= c->text_cap)
        return true;
    char *text = mem_realloc(c->text, bytes, 1);
    c->text = text ? text : c->text;
    c->text_cap = text ? bytes : c->text_cap;
    return text != NULL;
}

/* What becomes certain with so much more text, into c->text behind *len. False: a stop text. */
static bool add_text(struct choice *c, const char *text, size_t n, size_t *len) {
    size_t more = 0;
    if (!text_room(c, *len + kvasir_stop_hold(c->stop) + n + 1))
        return true; /* out of memory: the text is cut, the tokens are not */
    const bool open = kvasir_stop_push(c->stop, text, n, c->text + *len, &more);
    *len += more;
    return open;
}

/* False: the answer ends here. */
static bool token_text(struct choice *c, int32_t token, size_t *len) {
    const char *text;
    size_t n;
    *len = 0;
    if (!c->detok || kvasir_detok_push(c->detok, token, &text, &n, NULL) != KVASIR_OK)
        return true;
    return add_text(c, text, n, len);
}

static void rest_of_text(struct choice *c, size_t *len) {
    const char *text;
    size_t n, more = 0;
    *len = 0;
    if (c->detok && kvasir_detok_finish(c->detok, &text, &n, NULL) == KVASIR_OK &&
        !add_text(c, text, n, len))
        c->finish = KVASIR_FINISH_STOP;
    if (!text_room(c, *len + kvasir_stop_hold(c->stop) + 1))
        return;
    if (!kvasir_stop_finish(c->stop, c->text + *len, &more))
        c->finish = KVASIR_FINISH_STOP;
    *len += more;
}

/* ---- what the scheduler asks of its host ----------------------------------------------------- */

static struct choice *choice_of(struct task *t) {
    return t->owner;
}

static kvasir_status host_begin(void *user, struct task *t, struct kv_seq **out,
                                kvasir_error *err) {
    struct kvasir_engine *e = user;
    kvasir_seq *loaded;
    if (e->tree) /* loading takes all pages at once */
        (void)!tree_make_room(e->tree, kv_cache_need_bytes(e->ctx->cache, t->n_prompt,
                                                           e->ctx->options.prefill_chunk));
    TRY(kvasir_seq_load(e->ctx, choice_of(t)->request->r.prompt_cache, false, &loaded, err));
    *out = loaded->seq;
    mem_free(loaded);
    return KVASIR_OK;
}

/* Room for the answers' tokens, once it runs. */
static kvasir_status host_admitted(void *user, struct task *t, kvasir_error *err) {
    struct kvasir_engine *e = user;
    struct choice *c = choice_of(t);
    struct request *q = c->request;
    if (q->started)
        return KVASIR_OK;
    for (uint32_t i = 0; i < q->r.n; i++) {
        struct task *answer = &q->choices[i].task;
        int32_t *tokens = mem_realloc(answer->tokens, answer->cap, sizeof *tokens);
        if (!tokens)
            return fail(err, KVASIR_ERR_MEMORY, "%u tokens of an answer: out of memory",
                        answer->cap);
        answer->tokens = tokens;
    }
    q->started = true;
    q->cached_tokens = q->prompt_done = seq_length(t->seq);
    pthread_mutex_lock(&e->mutex);
    e->waiting--;
    pthread_mutex_unlock(&e->mutex);
    const kvasir_event event = event_of(c, KVASIR_EVENT_START);
    send(c, &event);
    return KVASIR_OK;
}

static kvasir_status host_run(void *user, const struct step_part *parts, uint32_t n,
                              kvasir_error *err) {
    struct kvasir_engine *e = user;
    (void)err;
    e->logits = step_run(e->ctx, parts, n);
    return KVASIR_OK;
}

static void host_progress(void *user, struct task *t) {
    const struct choice *c = choice_of(t);
    const uint32_t done = seq_length(t->seq);
    (void)user;
    if (c->generated || done <= c->request->prompt_done)
        return; /* tokens are run again */
    c->request->prompt_done = done;
    const kvasir_event event = event_of(c, KVASIR_EVENT_PROGRESS);
    send(c, &event);
}

static bool ends_answer(const struct choice *c, int32_t token) {
    const kvasir_request *r = &c->request->r;
    for (size_t i = 0; i < r->n_stop_tokens; i++)
        if (c->request->stop_tokens[i] == token)
            return true;
    return !r->ignore_end && kvasir_token_is_end(c->request->engine->model->text, token);
}

static bool host_next(void *user, struct task *t, uint32_t row) {
    struct kvasir_engine *e = user;
    struct choice *c = choice_of(t);
    const kvasir_request *r = &c->request->r;
    const uint32_t vocab = model_config(e->model->model)->vocab;
    const float *logits = e->logits + (size_t)row * vocab;
    const int32_t token = kvasir_sampler_pick(c->sampler, logits);
    size_t len;
    c->request->prompt_done = c->request->prompt_tokens;
    kvasir_sampler_accept(c->sampler, token);
    t->tokens[t->n_tokens++] = token;
    c->generated++;
    kvasir_event event = event_of(c, KVASIR_EVENT_TOKEN);
    event.token = token;
    if (r->top_logprobs >= 0) {
        event.n_top = (size_t)r->top_logprobs < vocab ? (size_t)r->top_logprobs : vocab;
        event.top = e->top;
        sampler_logprobs(logits, vocab, token, (uint32_t)event.n_top, &event.logprob, e->top);
    }
    c->finish = KVASIR_FINISH_LENGTH;
    if (ends_answer(c, token)) {
        c->finish = KVASIR_FINISH_STOP;
        return false;
    }
    const bool open = token_text(c, token, &len);
    event.text = c->text;
    event.len = len;
    send(c, &event);
    if (!open)
        c->finish = KVASIR_FINISH_STOP;
    return open && t->n_tokens < t->cap;
}

static void request_close(struct request *q);

static void host_ended(void *user, struct task *t, enum task_end end, const kvasir_error *error) {
    struct kvasir_engine *e = user;
    struct choice *c = choice_of(t);
    struct request *q = c->request;
    size_t len = 0;
    if (end == END_COMPLETE)
        rest_of_text(c, &len);
    else
        c->finish = end == END_CANCELLED ? KVASIR_FINISH_CANCELLED : KVASIR_FINISH_ERROR;
    kvasir_event event = event_of(c, KVASIR_EVENT_DONE);
    event.text = len ? c->text : "";
    event.len = len;
    event.finish = c->finish;
    event.error = end == END_FAILED ? error : NULL;
    event.last = --q->open == 0;
    c->ended = true;
    if (event.last) { /* no cancel finds it any more */
        pthread_mutex_lock(&e->mutex);
        e->waiting -= !q->started;
        *(q->prev ? &q->prev->next : &e->open) = q->next;
        if (q->next)
            q->next->prev = q->prev;
        pthread_mutex_unlock(&e->mutex);
        e->finished += end == END_COMPLETE;
        e->cancelled += end == END_CANCELLED;
        e->failed += end == END_FAILED;
    }
    send(c, &event);
    if (event.last)
        request_close(q);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void choice_deinit(struct choice *c) {
    kvasir_sampler_destroy(c->sampler);
    kvasir_detok_destroy(c->detok);
    kvasir_stop_destroy(c->stop);
    mem_free(c->text);
    mem_free(c->task.tokens);
}

static void request_close(struct request *q) {
    for (uint32_t i = 0; q->choices && i < q->r.n; i++)
        choice_deinit(&q->choices[i]);
    mem_free(q->choices);
    mem_free(q->followers);
    mem_free(q->salt);
    mem_free(q->stop_tokens);
    mem_free(q);
}

/* Tokens that a prompt and its answers may have together. */
static kvasir_status settle_length(const struct kvasir_engine *e, const kvasir_request *r,
                                   uint32_t base, uint32_t *cap, kvasir_error *err) {
    const uint64_t prompt = base + (uint64_t)r->n_tokens;
    const uint32_t ctx = e->rotates ? UINT32_MAX / 4 : e->ctx->options.ctx;
    if (prompt >= ctx || prompt + r->max_tokens > ctx)
        return fail(err, KVASIR_ERR_CONTEXT,
                    "a prompt of %" PRIu64 " tokens and an answer of %u do not fit the context of "
                    "%u tokens (--ctx)",
                    prompt, r->max_tokens ? r->max_tokens : 1, ctx);
    const uint64_t wanted = prompt + (r->max_tokens ? r->max_tokens : 1);
    if (wanted > e->fit_tokens) {
        const struct kv_pool_stats pool = kv_pool_stats(kv_cache_pool(e->ctx->cache));
        return fail(err, KVASIR_ERR_BUDGET,
                    "a prompt of %" PRIu64 " tokens and an answer of %u need %" PRIu64
                    " bytes of cache alone: the budget is %" PRIu64 " bytes, of which buffers take "
                    "%" PRIu64 ": room for %u tokens (--cache-memory-mb)",
                    prompt, r->max_tokens ? r->max_tokens : 1,
                    sched_need(e->sched, (uint32_t)wanted), pool.budget_bytes, e->fixed_bytes,
                    e->fit_tokens);
    }
    uint64_t most = e->rotates ? prompt + e->ctx->options.ctx : ctx;
    most = most < e->fit_tokens ? most : e->fit_tokens;
    *cap = (uint32_t)(r->max_tokens ? wanted : most);
    return KVASIR_OK;
}

static kvasir_status check_request(const struct kvasir_engine *e, const kvasir_request *r,
                                   kvasir_error *err) {
    if (!r->tokens || r->n_tokens == 0)
        return fail(err, KVASIR_ERR_ARGUMENT, "a request needs tokens");
    if (r->n < 1 || r->n > e->max_running)
        return fail(err, KVASIR_ERR_ARGUMENT, "n: %u is not between 1 and %u (--max-num-seqs)",
                    r->n, e->max_running);
    if (r->n > 1 && r->prompt_cache)
        return fail(err, KVASIR_ERR_ARGUMENT, "n: 1 where a request begins with a prompt cache");
    if (r->top_logprobs < -1 || r->top_logprobs > TOP_LOGPROBS_MAX)
        return fail(err, KVASIR_ERR_ARGUMENT, "top_logprobs: %d is not between 0 and %d",
                    r->top_logprobs, TOP_LOGPROBS_MAX);
    return seq_check_tokens(e->ctx, r->tokens, r->n_tokens, err);
}

static kvasir_status choice_init(struct choice *c, struct request *q, uint32_t index, uint32_t base,
                                 uint32_t cap, kvasir_error *err) {
    struct kvasir_engine *e = q->engine;
    const kvasir_request *r = &q->r;
    const uint32_t prompt = base + (uint32_t)r->n_tokens;
    kvasir_sampling sampling = r->sampling;
    sampling.seed += index;
    c->request = q;
    c->index = index;
    c->task = (struct task){.owner = c,
                            .salt = q->salt,
                            .salt_len = strlen(q->salt),
                            .n_prompt = prompt,
                            .cap = cap,
                            .apart = r->prompt_cache != NULL};
    TRY(sampler_create_shared(&sampling, model_config(e->model->model)->vocab, e->scratch,
                              &c->sampler, err));
    for (uint32_t i = 0; i < base; i++) /* -1, which the file does not say, is passed over */
        kvasir_sampler_accept(c->sampler, prompt_cache_ids(r->prompt_cache)[i]);
    for (size_t i = 0; i < r->n_tokens; i++)
        kvasir_sampler_accept(c->sampler, r->tokens[i]);
    TRY(kvasir_stop_create(r->stops, r->n_stops, &c->stop, err));
    if (e->model->text->tokenizer || r->n_stops)
        TRY(kvasir_detok_create(e->model->text, &c->detok, err));
    c->text_cap = 1024 + kvasir_stop_hold(c->stop);
    c->text = mem_alloc(c->text_cap);
    c->task.tokens = index ? NULL : mem_calloc(prompt, sizeof *c->task.tokens);
    if (!c->text || (index == 0 && !c->task.tokens))
        return fail(err, KVASIR_ERR_MEMORY, "request: out of memory");
    if (index == 0)
        memcpy(c->task.tokens + base, r->tokens, r->n_tokens * sizeof *r->tokens);
    return KVASIR_OK;
}

static kvasir_status request_make(struct kvasir_engine *e, const kvasir_request *r,
                                  struct request **out, kvasir_error *err) {
    const uint32_t base = r->prompt_cache ? kvasir_prompt_cache_tokens(r->prompt_cache) : 0;
    uint32_t cap = 0;
    TRY(check_request(e, r, err));
    TRY(settle_length(e, r, base, &cap, err));
    struct request *q = mem_calloc(1, sizeof *q);
    if (!q)
        return fail(err, KVASIR_ERR_MEMORY, "request: out of memory");
    kvasir_status status = KVASIR_OK;
    q->engine = e;
    q->r = *r;
    q->open = r->n;
    q->prompt_tokens = base + (uint32_t)r->n_tokens;
    q->salt = mem_strdup(r->salt ? r->salt : "");
    q->choices = mem_calloc(r->n, sizeof *q->choices);
    q->followers = mem_calloc(r->n, sizeof *q->followers);
    q->stop_tokens = mem_calloc(r->n_stop_tokens + 1, sizeof *q->stop_tokens);
    if (!q->salt || !q->choices || !q->followers || !q->stop_tokens)
        status = fail(err, KVASIR_ERR_MEMORY, "request: out of memory");
    else if (r->n_stop_tokens)
        memcpy(q->stop_tokens, r->stop_tokens, r->n_stop_tokens * sizeof *q->stop_tokens);
    for (uint32_t i = 0; i < r->n && status == KVASIR_OK; i++) {
        status = choice_init(&q->choices[i], q, i, base, cap, err);
        if (i)
            q->followers[i - 1] = &q->choices[i].task;
    }
    if (status != KVASIR_OK) {
        request_close(q);
        return status;
    }
    q->choices[0].task.followers = q->followers;
    q->choices[0].task.n_followers = r->n - 1;
    q->r.tokens = NULL; /* the caller's, who may free them now */
    q->r.stops = NULL;
    *out = q;
    return KVASIR_OK;
}

kvasir_status kvasir_engine_submit(kvasir_engine *e, const kvasir_request *r, uint64_t *id,
                                   kvasir_error *err) {
    struct request *q = NULL;
    kvasir_status status = KVASIR_OK;
    TRY(request_make(e, r, &q, err));
    pthread_mutex_lock(&e->mutex);
    if (e->waiting >= e->max_waiting) {
        status = fail(err, KVASIR_ERR_BUSY, "%u requests wait, which is the most", e->max_waiting);
    } else {
        q->id = ++e->requests;
        if (id)
            *id = q->id;
        e->waiting++;
        *e->inbox_end = q;
        e->inbox_end = &q->inbox_next;
        q->next = e->open;
        if (q->next)
            q->next->prev = q;
        e->open = q;
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->mutex);
    if (status != KVASIR_OK)
        request_close(q);
    return status;
}

void kvasir_engine_cancel(kvasir_engine *e, uint64_t id) {
    pthread_mutex_lock(&e->mutex);
    for (struct request *q = e->open; q; q = q->next)
        if (q->id == id) {
            atomic_store(&q->cancel, true);
            e->cancels = true;
        }
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->mutex);
}

void kvasir_engine_forget(kvasir_engine *e, const char *salt) {
    char *copy = salt ? mem_strdup(salt) : NULL;
    pthread_mutex_lock(&e->mutex);
    char **list = copy ? mem_realloc(e->forget, e->n_forget + 1, sizeof *list) : NULL;
    if (list) {
        e->forget = list;
        list[e->n_forget++] = copy;
    } else { /* all; where memory is short for one, too: more is forgotten than asked for */
        mem_free(copy);
        e->forget_all = true;
    }
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->mutex);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* One that came after the inbox was emptied is left for the next time. */
static struct request *find_cancelled(struct kvasir_engine *e) {
    struct request *q;
    pthread_mutex_lock(&e->mutex);
    for (q = e->open; q && !(q->taken && atomic_load(&q->cancel)); q = q->next)
        ;
    pthread_mutex_unlock(&e->mutex);
    return q;
}

/* Ends all choices, the one that others follow last; the request is gone with the last of them. */
static void cancel_request(struct kvasir_engine *e, struct request *q) {
    uint32_t open = q->open;
    for (uint32_t i = q->r.n; open > 0;)
        if (!q->choices[--i].ended) {
            open--;
            sched_cancel(e->sched, &q->choices[i].task);
        }
}

static void forget(struct kvasir_engine *e, bool all, char **salts, size_t n) {
    if (all && e->tree)
        tree_forget(e->tree, NULL, 0);
    for (size_t i = 0; i < n; i++) {
        if (e->tree)
            tree_forget(e->tree, salts[i], strlen(salts[i]));
        mem_free(salts[i]);
    }
    mem_free(salts);
}

static void copy_stats(struct kvasir_engine *e) {
    kvasir_engine_stats stats = sched_engine_stats(e->sched);
    stats.finished = e->finished;
    stats.cancelled = e->cancelled;
    stats.failed = e->failed;
    stats.fixed_bytes = e->fixed_bytes;
    pthread_mutex_lock(&e->mutex);
    e->stats = stats; /* waiting and requests are read under the mutex, too */
    pthread_mutex_unlock(&e->mutex);
}

/* Takes what others left; waits for it where there is nothing to do. False: the end. */
static bool take_orders(struct kvasir_engine *e, bool idle) {
    pthread_mutex_lock(&e->mutex);
    while (idle && !e->stop && !e->inbox && !e->cancels && !e->forget_all && !e->n_forget)
        pthread_cond_wait(&e->wake, &e->mutex);
    struct request *inbox = e->inbox;
    char **salts = e->forget;
    const size_t n_salts = e->n_forget;
    const bool all = e->forget_all, cancels = e->cancels, stop = e->stop;
    e->inbox = NULL;
    e->inbox_end = &e->inbox;
    e->forget = NULL;
    e->n_forget = 0;
    e->forget_all = e->cancels = false;
    for (struct request *q = e->open; stop && q; q = q->next)
        atomic_store(&q->cancel, true);
    pthread_mutex_unlock(&e->mutex);
    for (struct request *q = inbox, *next; q; q = next) {
        next = q->inbox_next;
        q->taken = true;
        sched_submit(e->sched, &q->choices[0].task);
    }
    if (cancels || stop)
        for (struct request *q; (q = find_cancelled(e)) != NULL;)
            cancel_request(e, q);
    if (all || n_salts)
        forget(e, all, salts, n_salts);
    return !stop;
}

/* Stored pages to fewer bits: all of them while nothing else is to be done, else at most one every
 * so many steps, among so many nodes. */
static bool requantize(struct kvasir_engine *e, bool idle) {
    enum { STEPS_PER_PAGE = 16, NODES = 16 };
    if (!e->tree || (!idle && sched_stats(e->sched).steps % STEPS_PER_PAGE))
        return false;
    return tree_requantize(e->tree, 1, idle ? UINT32_MAX : NODES) > 0;
}

static void *engine_thread(void *user) {
    struct kvasir_engine *e = user;
    bool idle = false;
    while (take_orders(e, idle)) {
        uint32_t rows;
        (void)!sched_step(e->sched, &rows, NULL); /* its tasks have been told */
        idle = rows == 0 && !requantize(e, true);
        if (rows)
            requantize(e, false);
        copy_stats(e);
    }
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

static kvasir_status begin_stored_formats(struct kvasir_engine *e, const kvasir_engine_options *o,
                                          kvasir_error *err) {
    struct kv_cache_options k = {0};
    uint64_t bytes;
    if (!o->stored_kv_bits || !e->tree)
        return KVASIR_OK;
    kvasir_status status =
        kvasir_model_kv_bytes(e->model, o->stored_kv_bits, o->stored_kv_group_size, &bytes, err);
    if (status == KVASIR_OK)
        status = options_parse_formats(o->stored_kv_bits, o->stored_kv_group_size, &k, err);
    if (status == KVASIR_OK)
        status = tree_requantize_begin(e->tree, k.k, k.v, k.group_k, k.group_v,
                                       o->min_quantize_tokens, err);
    if (status != KVASIR_OK)
        fail_prefix(err, "--kv-cache-quantization-bits");
    return status;
}

/* The buffers of steps and of sampling count against the budget from the start. */
static kvasir_status charge_fixed(struct kvasir_engine *e, kvasir_error *err) {
    const struct settled *o = &e->ctx->options;
    struct kv_pool *pool = kv_cache_pool(e->ctx->cache);
    const uint32_t vocab = model_config(e->model->model)->vocab;
    const uint64_t bytes = model_run_bytes(e->model->model, o->prefill_chunk, o->logit_rows) +
                           step_bytes(e->ctx) + sampler_scratch_bytes(vocab);
    if (pool_charge(pool, bytes, NULL) != KVASIR_OK)
        return fail(err, KVASIR_ERR_BUDGET,
                    "--cache-memory-mb: a budget of %" PRIu64 " bytes does not hold the buffers "
                    "of steps of %u tokens (%" PRIu64 " bytes): raise it, or lower --prefill-chunk",
                    kv_pool_stats(pool).budget_bytes, o->prefill_chunk, bytes);
    e->fixed_bytes = bytes;
    return KVASIR_OK;
}

static kvasir_status make_scheduler(struct kvasir_engine *e, const kvasir_engine_options *o,
                                    kvasir_error *err) {
    enum { POINTS_TOKENS = 16 * TILE_TOKENS }; /* states of recurrent layers, by default */
    struct settled *s = &e->ctx->options;
    e->max_running = o->max_running;
    if (e->max_running < 1)
        return fail(err, KVASIR_ERR_ARGUMENT, "--max-num-seqs: must be at least 1");
    if (e->max_running > s->logit_rows || e->max_running > s->prefill_chunk) {
        e->max_running = s->logit_rows < s->prefill_chunk ? s->logit_rows : s->prefill_chunk;
        settled_note(s, "--max-num-seqs %u is lowered to %u", o->max_running, e->max_running);
    }
    const struct sched_options options = {.max_running = e->max_running,
                                          .step_rows = s->prefill_chunk,
                                          .snapshot_tokens = s->snapshot_tokens ? s->snapshot_tokens
                                                                                : POINTS_TOKENS};
    const struct sched_host host = {.user = e,
                                    .begin = host_begin,
                                    .admitted = host_admitted,
                                    .run = host_run,
                                    .progress = host_progress,
                                    .next = host_next,
                                    .ended = host_ended};
    return sched_create(e->ctx->cache, e->tree, &options, &host, &e->sched, err);
}

static kvasir_status engine_init(struct kvasir_engine *e, const kvasir_engine_options *o,
                                 kvasir_error *err) {
    kvasir_context_options context = o->context;
    if (o->max_waiting < 1)
        return fail(err, KVASIR_ERR_ARGUMENT, "max_waiting: must be at least 1");
    TRY(settle_budget(e->model, o, &context.cache_bytes, err));
    TRY(kvasir_context_create(e->model, &context, &e->ctx, err));
    const struct model_config *config = model_config(e->model->model);
    e->max_waiting = o->max_waiting;
    e->rotates = e->ctx->options.cache.max_size != 0;
    TRY(sampler_scratch_create(config->vocab, &e->scratch, err));
    TRY(charge_fixed(e, err));
    if (!o->no_prefix_cache)
        TRY(tree_create(e->ctx->cache, model_rebuild_tokens(config), &e->tree, err));
    TRY(begin_stored_formats(e, o, err));
    TRY(make_scheduler(e, o, err));
    e->fit_tokens = longest_fit(e);
    if (!e->fit_tokens)
        return fail(err, KVASIR_ERR_BUDGET,
                    "--cache-memory-mb: a budget of %" PRIu64 " bytes, of which the buffers of "
                    "steps take %" PRIu64 ", does not hold one page",
                    context.cache_bytes, e->fixed_bytes);
    if (!e->rotates && e->fit_tokens < e->ctx->options.ctx)
        settled_note(&e->ctx->options, "the budget has room for a sequence of %u tokens",
                     e->fit_tokens);
    copy_stats(e);
    if (pthread_create(&e->thread, NULL, engine_thread, e) != 0)
        return fail(err, KVASIR_ERR_MEMORY, "engine: no thread can be started");
    e->thread_runs = true;
    return KVASIR_OK;
}

kvasir_status kvasir_engine_create(const kvasir_model *model, const kvasir_engine_options *options,
                                   kvasir_engine **out, kvasir_error *err) {
    struct kvasir_engine *e = mem_calloc(1, sizeof *e);
    if (!e)
        return fail(err, KVASIR_ERR_MEMORY, "engine: out of memory");
    e->model = model;
    e->inbox_end = &e->inbox;
    pthread_mutex_init(&e->mutex, NULL);
    pthread_cond_init(&e->wake, NULL);
    kvasir_status status = engine_init(e, options, err);
    if (status != KVASIR_OK) {
        kvasir_engine_destroy(e);
        return status;
    }
    *out = e;
    return KVASIR_OK;
}

void kvasir_engine_destroy(kvasir_engine *e) {
    if (!e)
        return;
    if (e->thread_runs) {
        pthread_mutex_lock(&e->mutex);
        e->stop = true;
        pthread_cond_signal(&e->wake);
        pthread_mutex_unlock(&e->mutex);
        pthread_join(e->thread, NULL);
    }
    sched_destroy(e->sched);
    tree_destroy(e->tree);
    if (e->ctx)
        pool_discharge(kv_cache_pool(e->ctx->cache), e->fixed_bytes);
    sampler_scratch_destroy(e->scratch);
    kvasir_context_destroy(e->ctx);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->mutex);
    mem_free(e);
}

void kvasir_engine_get_stats(kvasir_engine *e, kvasir_engine_stats *stats) {
    pthread_mutex_lock(&e->mutex);
    *stats = e->stats;
    stats->waiting = e->waiting;
    stats->requests = e->requests;
    pthread_mutex_unlock(&e->mutex);
}

void kvasir_engine_get_context(const kvasir_engine *e, kvasir_context_info *info) {
    kvasir_context_get_info(e->ctx, info);
}
