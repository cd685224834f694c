/* SPDX-License-Identifier: Apache-2.0 */
/* engine_request.c: a request, made by the thread that submits it; and the scheduler's host, which
 * handles it on the engine's thread.
 *
 *     logits row --> sampler --> token --> detokenizer --> stop texts --> on_event
 *                       ^          |
 *                       `-- place in a grammar
 *                           (answer_grammar.c)
 *
 * Each choice of a request is a task of the scheduler with its own sampler, detokenizer and stop
 * matcher, and room for all tokens that its answer may have. The submitting thread makes them, so
 * that they can be charged to the request (util/meter.h), and that the engine's thread allocates
 * only on admission (I6): sequences.
 */
#include <inttypes.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "engine/struct_size.h"

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
                          .common_tokens = lead->hit.common,
                          .why = lead->miss.why,
                          .other_token = lead->miss.other,
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

/* Appends to c->text, at *len, what is certain not to be part of a stop text after n more bytes.
 * False: a stop text was found. */
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

/* ---- the scheduler's host -------------------------------------------------------------------- */

static struct choice *choice_of(struct task *t) {
    return t->owner;
}

static kvasir_status host_begin(void *user, struct task *t, struct kv_seq **out,
                                kvasir_error *err) {
    (void)user;
    return loads_begin(choice_of(t), out, err);
}

static uint32_t host_ready(void *user, struct task *t) {
    (void)user;
    return loads_ready(choice_of(t));
}

static kvasir_status host_fill(void *user, struct task *t, uint32_t rows, kvasir_error *err) {
    (void)user;
    return loads_fill(choice_of(t), rows, err);
}

static void host_dropped(void *user, struct task *t) {
    (void)user;
    loads_dropped(choice_of(t));
}

/* Tells the client when the request first runs. */
static kvasir_status host_admitted(void *user, struct task *t, kvasir_error *err) {
    struct kvasir_engine *e = user;
    struct choice *c = choice_of(t);
    struct request *q = c->request;
    (void)err;
    if (q->started)
        return KVASIR_OK;
    q->started = true;
    q->cached_tokens = q->prompt_done = t->from_host ? t->from_host : seq_length(t->seq);
    pthread_mutex_lock(&e->mutex);
    e->waiting -= q->counted;
    pthread_mutex_unlock(&e->mutex);
    kvasir_event event = event_of(c, KVASIR_EVENT_START);
    event.lookup_seconds = clock_seconds() - t->looked_at;
    send(c, &event);
    for (uint32_t i = 0; i < q->r.n; i++)
        answer_want(&q->choices[i]);
    return KVASIR_OK;
}

static void host_begins(void *user, struct task *const *tasks, const struct step_part *parts,
                        uint32_t n) {
    struct kvasir_engine *e = user;
    uint32_t row = 0;
    picks_begin(e);
    for (uint32_t i = 0; i < n; i++) {
        row += parts[i].wanted;
        if (parts[i].wanted && !parts[i].hidden &&
            seq_length(tasks[i]->seq) + parts[i].rows == tasks[i]->n_tokens)
            picks_want(choice_of(tasks[i]), row - 1);
    }
}

static kvasir_status host_run(void *user, const struct step_part *parts, uint32_t n,
                              kvasir_error *err) {
    struct kvasir_engine *e = user;
    return step_run(e->ctx, parts, n, &e->picks.device.step, err);
}

/* A row whose token the device has picked is not read, unless other choices pick from it, too, at
 * the end of their prompt. */
static kvasir_status host_logits(void *user, struct task *t, uint32_t row, kvasir_error *err) {
    struct kvasir_engine *e = user;
    struct choice *c = choice_of(t);
    TRY(step_reach(e->ctx, row, err));
    TRY(picks_make(e, err));
    const bool forks = t->n_followers && seq_length(t->seq) == t->n_prompt;
    if (picks_have(c, row) && !forks) {
        e->logits = NULL;
        return KVASIR_OK;
    }
    return rows_read(c, row, err);
}

static void host_give(void *user, struct task *t, uint32_t position) {
    struct choice *c = choice_of(t);
    kvasir_event event = event_of(c, KVASIR_EVENT_PROMPT_TOKEN);
    (void)user;
    if (rows_take(c, position, &event))
        send(c, &event);
}

static void host_progress(void *user, struct task *t) {
    const struct choice *c = choice_of(t);
    const uint32_t done = seq_length(t->seq);
    (void)user;
    if (c->generated || done <= c->request->prompt_done)
        return; /* after a preemption tokens are run again */
    c->request->prompt_done = done;
    const kvasir_event event = event_of(c, KVASIR_EVENT_PROGRESS);
    send(c, &event);
}

static bool ends_answer(const struct choice *c, int32_t token) {
    const kvasir_request *r = &c->request->r;
    const uint64_t *stop_set = c->request->stop_set;
    if (stop_set && stop_set[token / 64] >> token % 64 & 1)
        return true;
    return !r->ignore_end && kvasir_token_is_end(c->request->engine->model->text, token);
}

/* Appends a token to the answer. False: it ends there. */
static bool add_token(struct kvasir_engine *e, struct choice *c, int32_t token) {
    struct task *t = &c->task;
    const kvasir_request *r = &c->request->r;
    const uint32_t vocab = model_config(e->model->model)->vocab;
    size_t len;
    c->request->prompt_done = c->request->prompt_tokens;
    kvasir_sampler_accept(c->sampler, token);
    ASSERT(token >= 0 && (uint32_t)token < vocab && t->n_tokens < t->cap);
    t->tokens[t->n_tokens++] = token;
    c->generated++;
    kvasir_event event = event_of(c, KVASIR_EVENT_TOKEN);
    event.token = token;
    if (r->top_logprobs >= 0) {
        event.n_top = (size_t)r->top_logprobs < vocab ? (size_t)r->top_logprobs : vocab;
        event.top = e->top;
        if (c->logs)
            sampler_finish_logprobs(c->logs, (uint32_t)event.n_top, &event.logprob, e->top);
        else
            sampler_logprobs(e->logits, vocab, token, (uint32_t)event.n_top, &event.logprob,
                             e->top);
    }
    c->finish = KVASIR_FINISH_LENGTH;
    if (ends_answer(c, token)) {
        c->finish = KVASIR_FINISH_STOP;
        return false;
    }
    bool open = token_text(c, token, &len);
    event.text = c->text;
    event.len = len;
    send(c, &event);
    if (c->guide.place)
        open = answer_add(c, token) && open;
    if (!open)
        c->finish = KVASIR_FINISH_STOP;
    return open && t->n_tokens < t->cap;
}

/* The next token, and those that must follow it. */
static bool host_next(void *user, struct task *t, uint32_t row) {
    struct kvasir_engine *e = user;
    struct choice *c = choice_of(t);
    bool open;
    (void)row;
    if (c->request->r.no_answer) {
        rows_finish(c);
        return false;
    }
    do {
        int32_t token;
        if (!answer_pick(c, e->logits, &token))
            return false;
        open = add_token(e, c, token);
    } while (open && answer_jumps(c));
    if (open)
        answer_want(c);
    return open;
}

static void host_ended(void *user, struct task *t, enum task_end end, const kvasir_error *error) {
    struct kvasir_engine *e = user;
    struct choice *c = choice_of(t);
    struct request *q = c->request;
    size_t len = 0;
    answer_forget(c);
    if (c->stuck) {
        end = END_FAILED;
        error = &c->why;
        c->why.field = "request.grammar";
    }
    if (end == END_COMPLETE)
        rest_of_text(c, &len);
    else
        c->finish = end == END_CANCELLED ? KVASIR_FINISH_CANCELLED : KVASIR_FINISH_ERROR;
    kvasir_event event = event_of(c, KVASIR_EVENT_DONE);
    event.text = len ? c->text : "";
    event.len = len;
    event.finish = c->finish;
    event.stop = c->finish == KVASIR_FINISH_STOP ? kvasir_stop_found(c->stop) : NULL;
    event.error = end == END_FAILED ? error : NULL;
    event.cache_bytes = t->held_bytes;
    event.requantized_pages = t->descended_pages;
    event.embedding = c->embedded ? c->embedding : NULL;
    if (end == END_COMPLETE && q->r.n_asked_tokens) {
        event.asked_logprobs = q->asked_logprobs;
        event.n_asked = q->r.n_asked_tokens;
    }
    event.n_embedding = c->embedded ? model_config(e->model->model)->dim : 0;
    ASSERT(q->open > 0 && !c->ended);
    event.last = --q->open == 0;
    c->ended = true;
    if (event.last) { /* off the list, so that no cancel finds it */
        pthread_mutex_lock(&e->mutex);
        e->waiting -= q->counted && !q->started;
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

struct sched_host request_host(struct kvasir_engine *e) {
    return (struct sched_host){.user = e,
                               .begin = host_begin,
                               .ready = host_ready,
                               .fill = host_fill,
                               .dropped = host_dropped,
                               .admitted = host_admitted,
                               .begins = host_begins,
                               .run = host_run,
                               .logits = host_logits,
                               .give = host_give,
                               .progress = host_progress,
                               .next = host_next,
                               .ended = host_ended};
}

/* ---- requests -------------------------------------------------------------------------------- */

static void choice_deinit(struct choice *c) {
    kvasir_sampler_destroy(c->sampler);
    kvasir_detok_destroy(c->detok);
    kvasir_stop_destroy(c->stop);
    answer_deinit(c);
    rows_deinit(c);
    mem_free(c->text);
    mem_free(c->task.tokens);
}

void request_close(struct request *q) {
    for (uint32_t i = 0; q->choices && i < q->r.n; i++)
        choice_deinit(&q->choices[i]);
    mem_free(q->choices);
    mem_free(q->followers);
    mem_free(q->salt);
    mem_free(q->stop_set);
    mem_free(q);
}

/* The most tokens that the prompt and an answer may have together. */
static kvasir_status settle_length(const struct kvasir_engine *e, const kvasir_request *r,
                                   uint32_t base, uint32_t *cap, kvasir_error *err) {
    const uint64_t prompt = base + (uint64_t)r->n_tokens;
    const uint32_t ctx = e->rotates ? UINT32_MAX / 4 : e->ctx->options.ctx;
    const bool fits = prompt + r->max_tokens <= ctx && prompt + r->max_tokens <= e->fit_tokens;
    const uint32_t answer = r->no_answer || (r->shorten && !fits) ? 0 : r->max_tokens;
    if (r->no_answer && prompt > ctx)
        return fail(err, KVASIR_ERR_CONTEXT,
                    "a prompt of %" PRIu64 " tokens does not fit the context of %u tokens", prompt,
                    ctx);
    if (prompt + !r->no_answer > ctx || prompt + answer > ctx)
        return fail(err, KVASIR_ERR_CONTEXT,
                    "a prompt of %" PRIu64 " tokens and an answer of %u do not fit the context of "
                    "%u tokens",
                    prompt, answer ? answer : 1, ctx);
    const uint64_t wanted = prompt + (answer ? answer : !r->no_answer);
    if (wanted > e->fit_tokens) {
        return fail(err, KVASIR_ERR_BUDGET,
                    "a prompt of %" PRIu64 " tokens and an answer of %u need %" PRIu64
                    " bytes of cache: the budget is %" PRIu64 " bytes, of which buffers take "
                    "%" PRIu64 ", which leaves room for %u tokens",
                    prompt, answer ? answer : 1, sched_need(e->sched, (uint32_t)wanted),
                    e->info.cache_bytes, e->fixed_bytes, e->fit_tokens);
    }
    uint64_t most = e->rotates ? prompt + e->ctx->options.ctx : ctx;
    most = most < e->fit_tokens ? most : e->fit_tokens;
    *cap = (uint32_t)(answer || r->no_answer ? wanted : most);
    return KVASIR_OK;
}

static kvasir_status check_request(const struct kvasir_engine *e, const kvasir_request *r,
                                   kvasir_error *err) {
    if (!r->tokens || r->n_tokens == 0)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "request.tokens", "the prompt has no tokens");
    if (r->n < 1 || r->n > e->max_running)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "request.n", "%u is not between 1 and %u", r->n,
                          e->max_running);
    if (r->n > 1 && r->prompt_cache)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "request.n",
                          "must be 1 when a request continues a prompt cache");
    if (r->top_logprobs < -1 || r->top_logprobs > TOP_LOGPROBS_MAX)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "request.top_logprobs",
                          "%d is not between 0 and %d", r->top_logprobs, TOP_LOGPROBS_MAX);
    if (r->weight > KVASIR_WEIGHT_MAX)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "request.weight", "%u is above %d", r->weight,
                          KVASIR_WEIGHT_MAX);
    if (r->ttl_seconds > KVASIR_TTL_MAX)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "request.ttl_seconds",
                          "%" PRIu64 " is above %d", r->ttl_seconds, KVASIR_TTL_MAX);
    if (r->no_store && (r->ttl_seconds || r->pin))
        return fail_field(err, KVASIR_ERR_ARGUMENT, "request.no_store",
                          "cannot be combined with ttl_seconds or pin");
    TRY(rows_check(r, err));
    if (r->n_asked_tokens)
        TRY(seq_check_tokens(e->ctx, r->asked_tokens, r->n_asked_tokens, err));
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
    c->task = (struct task){
        .owner = c,
        .salt = q->salt,
        .salt_len = strlen(q->salt),
        .n_prompt = prompt,
        .cap = cap,
        .tenant = r->tenant,
        .weight = r->weight,
        .priority = r->priority,
        .every_row = index == 0 && (r->prompt_logprobs >= 0 || r->embed == KVASIR_POOLING_MEAN),
        .hidden = r->embed != KVASIR_POOLING_NONE,
        .no_store = r->no_store,
        .pin = r->pin,
        .ttl_seconds = (uint32_t)r->ttl_seconds,
        .detached = r->prompt_cache != NULL,
        .from_host = base};
    TRY(sampler_create_shared(&sampling, model_config(e->model->model)->vocab, cap,
                              e->picks.scratch[0], &c->sampler, err));
    if (r->grammar)
        TRY(answer_init(c, r->grammar, err));
    TRY(rows_init(c, err));
    for (uint32_t i = 0; i < base; i++) /* accept ignores -1, a token that the file does not name */
        kvasir_sampler_accept(c->sampler, prompt_cache_ids(r->prompt_cache)[i]);
    for (size_t i = 0; i < r->n_tokens; i++)
        kvasir_sampler_accept(c->sampler, r->tokens[i]);
    TRY(kvasir_stop_create(r->stops, r->n_stops, &c->stop, err));
    if (e->model->text->tokenizer || r->n_stops)
        TRY(kvasir_detok_create(e->model->text, &c->detok, err));
    if (c->detok)
        TRY(kvasir_detok_show(c->detok, r->shown_tokens, r->n_shown_tokens, err));
    c->text_cap = 1024 + kvasir_stop_hold(c->stop);
    c->text = mem_alloc(c->text_cap);
    c->task.tokens = mem_calloc(cap, sizeof *c->task.tokens); /* not touched before it is used */
    if (!c->text || !c->task.tokens)
        return fail(err, KVASIR_ERR_MEMORY, "request: out of memory");
    if (index == 0)
        memcpy(c->task.tokens + base, r->tokens, r->n_tokens * sizeof *r->tokens);
    return KVASIR_OK;
}

static const struct sized_struct SIZED_REQUEST = {
    .name = "kvasir_request",
    .maker = "kvasir_request_defaults()",
    .field = "request.struct_size",
    .size = sizeof(kvasir_request),
    .nested = &SIZED_SAMPLING,
    .nested_at = offsetof(kvasir_request, sampling),
};
_Static_assert(offsetof(kvasir_request, ttl_seconds) - sizeof(kvasir_sampling) == 136,
               "later fields begin here at the earliest (struct_size.h)");

static kvasir_request request_defaults(void) {
    return (kvasir_request){.struct_size = sizeof(kvasir_request),
                            .n = 1,
                            .sampling = kvasir_sampling_defaults(),
                            .top_logprobs = -1,
                            .prompt_logprobs = -1};
}

void kvasir_request_init(kvasir_request *request, size_t struct_size, size_t sampling_size) {
    const kvasir_request defaults = request_defaults();
    struct_write(&SIZED_REQUEST, &defaults, request, struct_size, sampling_size);
}

/* A set, because every token is looked up. Ids beyond the vocabulary never come. */
static bool set_stops(struct request *q) {
    const uint32_t vocab = model_config(q->engine->model->model)->vocab;
    if (q->r.n_stop_tokens == 0)
        return true;
    q->stop_set = mem_calloc(token_set_words(vocab), sizeof *q->stop_set);
    for (size_t i = 0; q->stop_set && i < q->r.n_stop_tokens; i++) {
        const uint32_t id = (uint32_t)q->r.stop_tokens[i];
        if (id < vocab)
            q->stop_set[id / 64] |= 1ULL << id % 64;
    }
    return q->stop_set != NULL;
}

kvasir_status request_make(struct kvasir_engine *e, const kvasir_request *given,
                           struct request **out, kvasir_error *err) {
    kvasir_request settled = request_defaults();
    const kvasir_request *r = &settled;
    TRY(struct_read(&SIZED_REQUEST, given, &settled, err));
    const uint32_t base = r->prompt_cache ? kvasir_prompt_cache_tokens(r->prompt_cache) : 0;
    uint32_t cap = 0;
    TRY(check_request(e, r, err));
    settled.no_answer |= settled.embed != KVASIR_POOLING_NONE || settled.n_asked_tokens;
    TRY(settle_length(e, r, base, &cap, err));
    struct request *q = mem_calloc(1, sizeof *q);
    if (!q)
        return fail(err, KVASIR_ERR_MEMORY, "request: out of memory");
    kvasir_status status = KVASIR_OK;
    q->engine = e;
    q->r = *r;
    q->open = r->n;
    q->prompt_tokens = base + (uint32_t)r->n_tokens;
    if (r->n_asked_tokens)
        memcpy(q->asked, r->asked_tokens, r->n_asked_tokens * sizeof *q->asked);
    q->salt = mem_strdup(r->salt ? r->salt : "");
    q->choices = mem_calloc(r->n, sizeof *q->choices);
    q->followers = mem_calloc(r->n, sizeof *q->followers);
    if (!q->salt || !q->choices || !q->followers || !set_stops(q))
        status = fail(err, KVASIR_ERR_MEMORY, "request: out of memory");
    if (status == KVASIR_OK && r->grammar)
        status = answer_need_vocab(q, err);
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
    q->r.tokens = NULL; /* the caller may free these now */
    q->r.stops = NULL;
    q->r.stop_tokens = NULL;
    q->r.asked_tokens = NULL;
    q->r.shown_tokens = NULL;
    q->r.grammar = NULL;
    *out = q;
    return KVASIR_OK;
}
