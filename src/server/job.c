/* SPDX-License-Identifier: Apache-2.0 */
/* job.c: one request, from its body to the last byte of its answer.
 *
 *     HTTP threads                        engine's thread            watcher
 *       job_begin: hands it to a worker,
 *       which reads the body and submits
 *          stream: headers, fill     <--    on_event: copies       tick: a comment is due
 *          else:   waits                    into queue or answer   gone: cancel
 *       fill / job_continue: chunks, body
 *       (a long body: a worker writes it)
 *       job_done: a line of the log
 *
 * Invariants
 *   JOB-1  The engine's thread only copies and wakes; events become JSON on the exchange's thread.
 *          It copies into memory that was allocated before. Nobody allocates, frees or writes while
 *          holding the job's mutex.
 *   JOB-2  The events of a stream that its client does not read take at most options.buffer_bytes.
 *          Beyond that the request is cancelled and the connection cut.
 *          They are charged to the request as they come, and their text, before it is sent, is
 *          OUT_BYTES and one event at most.
 *   JOB-3  Log lines and errors contain no text of a prompt or an answer, unless
 *          options.log_prompts is set.
 */
#include "server/job_internal.h"
#include "server/job_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct job *job_of(const struct http_exchange *exchange) {
    return exchange->user;
}

/* ---- life ------------------------------------------------------------------------------------ */

static size_t events_room(const struct job *j) {
    return round_up(j->server->options.buffer_bytes, 4096);
}

static bool events_make(struct job *j, struct events *e) {
    enum { FIRST = 16 << 10 }; /* so that few streams need more */
    const size_t room = events_room(j);
    e->touched = min_size(FIRST, room);
    return charge_take(j->charge, e->touched) && (e->data = mem_reserve(room)) != NULL;
}

static void job_free(struct job *j) {
    account_end(j->tenant.account);
    api_answer_free(&j->answer);
    mem_free(j->text);
    j->protocol->close(j->stream);
    api_request_free(&j->request);
    mem_free(j->body);
    mem_free(j->unknown);
    mem_free(j->salt);
    text_free(&j->out);
    mem_unreserve(j->taken.data, events_room(j));
    mem_unreserve(j->queue.data, events_room(j));
    charge_unref(j->charge);
    pthread_mutex_destroy(&j->mutex);
    served_give(j->served);
    free(j);
}

/* The exchange is over, and the last event came before. */
static void job_end(struct job *j) {
    struct server *s = j->server;
    pthread_mutex_lock(&s->mutex);
    jobs_remove(j);
    pthread_mutex_unlock(&s->mutex);
    job_free(j);
}

static bool collects(const struct job *j) {
    return !j->request.stream || j->request.session.id;
}

/* ---- the engine's thread --------------------------------------------------------------------- */

static void note_event(struct job *j, const kvasir_event *e) {
    j->times = j->measured;
    j->prompt_tokens = e->prompt_tokens;
    j->cached_tokens = e->cached_tokens;
    j->prompt_done = e->prompt_done;
    j->hit = e->hit;
    j->common_tokens = e->common_tokens;
    j->why = e->why;
    j->completion_tokens += e->kind == KVASIR_EVENT_TOKEN;
    if (e->kind == KVASIR_EVENT_DONE) {
        j->finish = e->finish;
        j->cache_bytes += e->cache_bytes;
        if (e->error)
            j->error = *e->error;
    }
}

/* What GET /v1/cache/explain says of it later. */
static void note_lookup(const struct job *j, const kvasir_event *e) {
    const kvasir_request *r = &j->request.engine;
    struct lookup l = {.key = j->key,
                       .prompt_tokens = e->prompt_tokens,
                       .common_tokens = e->common_tokens,
                       .cached_tokens = e->cached_tokens,
                       .model = j->served->index,
                       .why = e->why,
                       .token = -1,
                       .other_token = e->other_token};
    memcpy(l.id, j->id, sizeof l.id);
    if (!r->no_store && e->common_tokens < r->n_tokens)
        l.token = r->tokens[e->common_tokens];
    lookups_add(j->server->lookups, &l);
}

/* The event, its top tokens and its text, rounded up so that the next one is aligned. */
static size_t queued_bytes(const kvasir_event *e) {
    return (sizeof *e + e->n_top * sizeof *e->top + e->len + 7) / 8 * 8;
}

static void queue_event(struct job *j, const kvasir_event *e) {
    const size_t tops = e->n_top * sizeof *e->top, bytes = queued_bytes(e);
    if (!j->exchange || j->too_slow)
        return;
    const size_t end = j->queue.len + bytes, touched = j->queue.touched;
    if (end > j->server->options.buffer_bytes ||
        (end > touched && !charge_take(j->charge, end - touched))) {
        j->too_slow = true;
        kvasir_engine_cancel(j->served->engine, e->request);
        http_break_off(j->exchange);
        return;
    }
    j->queue.touched = max_size(touched, end);
    ASSERT(end <= events_room(j));
    char *at = j->queue.data + j->queue.len;
    kvasir_event kept = *e;
    kept.stop = api_stop_of(&j->request, e->stop);
    memcpy(at, &kept, sizeof kept);
    if (tops)
        memcpy(at + sizeof *e, e->top, tops);
    if (e->len)
        memcpy(at + sizeof *e + tops, e->text, e->len);
    j->queue.len = end;
}

static void on_event(void *user, const kvasir_event *e) {
    struct job *j = user;
    struct server *s = j->server;
    const bool stream = j->request.stream, last = e->last;
    metrics_event(j->served->metrics, &j->measured, e, metrics_now_us());
    account_event(j->tenant.account, clock_seconds(), e, j->measured.started_us != 0);
    if (e->kind != KVASIR_EVENT_START && e->prompt_tokens > j->prompt_tokens && j->prompt_tokens)
        account_more(j->tenant.account, clock_seconds(), e->prompt_tokens - j->prompt_tokens,
                     e->cached_tokens - j->cached_tokens); /* another prompt has begun */
    if (e->kind == KVASIR_EVENT_START && j->request.n_prompts < 2)
        note_lookup(j, e);
    if (collects(j)) { /* the answer is this thread's until it is complete */
        struct charge *before = charge_enter(j->charge);
        api_answer_event(&j->answer, e);
        charge_leave(before);
    }
    const bool stored = stream && e->kind == KVASIR_EVENT_PROMPT_TOKEN,
               sent = stream && !stored && e->kind != KVASIR_EVENT_PROGRESS;
    if (stored) /* there is room for all of them, which JOB-2's buffer is not for */
        (void)j->protocol->event(j->stream, e, NULL);
    pthread_mutex_lock(&j->mutex);
    ASSERT(!j->complete);
    note_event(j, e);
    if (sent)
        queue_event(j, e);
    j->complete = last;
    const bool over = last && !j->exchange;
    if (j->exchange && (last || sent))
        http_wake(j->exchange);
    pthread_mutex_unlock(&j->mutex);
    if (!last)
        return;
    if (over) /* otherwise the job may be freed by now */
        job_end(j);
    pthread_mutex_lock(&s->mutex); /* last: then the server may end */
    jobs_count_complete(s);
    pthread_mutex_unlock(&s->mutex);
}

/* ---- streams --------------------------------------------------------------------------------- */

/* Under the job's mutex, or once the answer is complete. */
static void see_times(struct job *j) {
    const struct metrics_request *t = &j->times;
    j->seen = (struct api_times){t->submitted_us, t->started_us, t->first_us, t->last_us,
                                 metrics_now_us()};
}

static void read_queued(struct job *j, kvasir_event *e) {
    const char *at = j->taken.data + j->taken_at;
    memcpy(e, at, sizeof *e);
    j->taken_at += queued_bytes(e);
    ASSERT(j->taken_at <= j->taken.len); /* whole events only */
    e->top = (const kvasir_token_logprob *)(at + sizeof *e);
    e->text = at + sizeof *e + e->n_top * sizeof *e->top;
}

static void stream_failed(struct job *j, const kvasir_error *why) {
    struct api_error err;
    api_error_of(&err, why);
    (void)!j->protocol->failed(&err, &j->out);
    j->finished = true;
}

/* The session is longer by a good answer, and free before the client knows that it may go on. */
static void advance_session(struct job *j) {
    sessions_advance(&j->setup, &j->request, &j->answer, j->id);
    session_user_end(&j->session);
}

static void stream_event(struct job *j, const kvasir_event *e) {
    static const kvasir_error CANCELLED = {.code = KVASIR_ERR_CANCELLED,
                                           .offset = -1,
                                           .text = "cancelled"},
                              NO_MEMORY = {.code = KVASIR_ERR_MEMORY,
                                           .offset = -1,
                                           .text = "out of memory for the answer"};
    if (e->last)
        advance_session(j);
    if (e->kind == KVASIR_EVENT_DONE && e->finish == KVASIR_FINISH_ERROR)
        stream_failed(j, &j->taken_error);
    else if (e->kind == KVASIR_EVENT_DONE && e->finish == KVASIR_FINISH_CANCELLED)
        stream_failed(j, &CANCELLED);
    else if (!j->protocol->event(j->stream, e, &j->out))
        stream_failed(j, &NO_MEMORY);
    else
        j->finished = e->last;
}

/* Takes the queued events. False: the connection must be cut. */
static bool take_events(struct job *j) {
    pthread_mutex_lock(&j->mutex);
    const struct events empty = j->taken;
    j->taken = j->queue;
    j->queue = empty;
    j->queue.len = j->taken_at = 0;
    j->taken_error = j->error;
    see_times(j);
    const uint32_t done = j->prompt_done, tokens = j->prompt_tokens;
    const bool too_slow = j->too_slow, silent = j->comment_due && j->taken.len == 0;
    j->comment_due = false;
    if (silent || j->taken.len)
        j->sent_us = metrics_now_us();
    pthread_mutex_unlock(&j->mutex);
    return (!silent || j->protocol->silence(done, tokens, &j->out)) && !too_slow;
}

/* Events to text; what stays taken comes next time. False: as take_events. */
static bool write_events(struct job *j) {
    enum { OUT_BYTES = 64 << 10 };
    if (j->taken_at == j->taken.len && !take_events(j))
        return false;
    while (j->taken_at < j->taken.len && !j->finished && j->out.len < OUT_BYTES) {
        kvasir_event e;
        read_queued(j, &e);
        stream_event(j, &e);
    }
    return true;
}

static ssize_t fill(struct http_exchange *exchange, char *out, size_t max) {
    struct job *j = job_of(exchange);
    if (j->out_at == j->out.len) {
        j->out.len = j->out_at = 0;
        if (j->finished)
            return HTTP_FILL_END;
        struct charge *before = charge_enter(j->charge);
        const bool good = write_events(j);
        charge_leave(before);
        if (!good)
            return HTTP_FILL_ABORT;
        if (j->finished)
            http_last_bytes(exchange);
    }
    const size_t n = j->out.len - j->out_at < max ? j->out.len - j->out_at : max;
    ASSERT(j->out_at + n <= j->out.len && n <= max);
    if (n)
        memcpy(out, j->out.data + j->out_at, n);
    j->out_at += n;
    return n ? (ssize_t)n : HTTP_FILL_WAIT;
}

/* ---- from a body to the engine --------------------------------------------------------------- */

static bool set_salt(struct job *j, struct api_error *err) {
    j->salt = server_salt(j->server, j->key, j->request.engine.salt);
    if (!j->salt)
        return api_no_memory(err);
    j->request.engine.salt = j->salt;
    j->request.engine.tenant = j->tenant.number;
    j->request.engine.weight = j->tenant.weight;
    return true;
}

static bool check_limits(const struct job *j, struct api_error *err) {
    const struct server_options *o = &j->server->options;
    if (j->request.engine.pin && !j->tenant.sees_all) {
        api_refuse(err, "cache.pin", "only the admin key may pin: memory is shared by all keys");
        err->status = HTTP_FORBIDDEN;
        return false;
    }
    if (!api_prompts_check(&j->request, o->max_prompt_tokens, j->protocol->prompt_field, err))
        return false;
    if (!o->strict_model || strcmp(j->request.model, o->model_name) == 0)
        return true;
    api_refuse(err, "model", "\"%.100s\" not found, this server runs \"%.100s\"", j->request.model,
               o->model_name);
    err->status = HTTP_NOT_FOUND;
    err->code = "model_not_found";
    return false;
}

static struct protocol_context context_of(const struct job *j) {
    return (struct protocol_context){&j->setup, &j->request, j->id, j->created, &j->seen};
}

/* A JSON text as one line: all its control characters are blanks. */
static char *line_of(const char *text, size_t len) {
    char *line = mem_strndup(text, len);
    for (char *p = line; p && *p; p++)
        *p = (unsigned char)*p < 0x20 ? ' ' : *p;
    return line;
}

static bool read_request(struct job *j, struct http_exchange *exchange, struct api_error *err) {
    struct server *s = j->server;
    *err = (struct api_error){.status = HTTP_CLIENT_CLOSED};
    if (text_ended(&j->end))
        return false;
    struct api_body body;
    const bool parsed = reply_read_body(exchange, &j->setup, j->protocol->wants, &body, err);
    if (parsed && s->options.log_prompts)
        j->body = line_of(exchange->body, exchange->body_len);
    http_drop_body(exchange);
    if (!parsed)
        return false;
    j->unknown = api_fields_unknown(&body);
    const bool good = j->protocol->read(&j->setup, &body, &j->request, err);
    api_body_free(&body); /* the request has references to what it needs */
    if (!good || !set_salt(j, err) || !check_limits(j, err))
        return false;
    const struct protocol_context context = context_of(j);
    if (collects(j) && !api_answer_init(&j->answer, &j->request))
        return api_no_memory(err);
    if (j->request.stream) {
        j->stream = j->protocol->open(&context);
        return (j->stream && events_make(j, &j->queue) && events_make(j, &j->taken)) ||
               api_no_memory(err);
    }
    return true;
}

static bool recall(void *user, const char *id, json_t *items, struct api_error *err) {
    const struct job *j = user;
    return kept_recall(j->server->kept, j->key, id, items, err);
}

static void keep(void *user, const char *previous, json_t *input, json_t *response) {
    const struct job *j = user;
    kept_add(j->server->kept, j->key, previous, input, response);
}

static struct job *job_create(struct server *s, struct http_exchange *exchange,
                              const struct protocol *protocol, const struct tenant *tenant) {
    struct job *j = calloc(1, sizeof *j);
    if (!j || !server_new_id(protocol->id_prefix, j->id, &j->seed)) {
        free(j);
        return NULL;
    }
    j->server = s;
    j->exchange = exchange;
    j->charge = charge_ref(exchange->charge);
    j->protocol = protocol;
    j->key = tenant->key;
    j->tenant = *tenant;
    j->began_us = j->sent_us = metrics_now_us();
    j->created = s->started_s + (j->sent_us - s->started_us) / 1000000;
    j->responses = (struct responses_store){j, recall, keep};
    if (s->sessions)
        session_user_begin(&j->session, s->sessions, j->key, tenant->sees_all);
    server_client_id(exchange, j->client_id);
    snprintf(exchange->id, sizeof exchange->id, "%s", *j->client_id ? j->client_id : j->id);
    job_trace_begin(s, exchange, &j->trace);
    pthread_mutex_init(&j->mutex, NULL);
    return j;
}

static void refused(const struct job *j, enum metrics_refusal reason) {
    metrics_refused(j->server->metrics, reason);
    account_refused(j->tenant.account);
}

static bool submit(struct job *j, const struct http_exchange *exchange, struct api_error *err) {
    uint64_t id;
    metrics_submitted(&j->measured, metrics_now_us());
    if (!account_wait(j->tenant.account, err)) {
        refused(j, REFUSED_QUEUE);
        return false;
    }
    struct charge *before = charge_enter(j->charge); /* the engine makes copies */
    const kvasir_status status = api_submit(j->served->engine, &j->request, on_event, j, &id, err);
    charge_leave(before);
    if (status) {
        account_unwait(j->tenant.account);
        refused(j, reply_memory_error(exchange, err) ? REFUSED_MEMORY : metrics_refusal_of(status));
        return false;
    }
    pthread_mutex_lock(&j->mutex);
    j->engine_id = id;
    pthread_mutex_unlock(&j->mutex);
    /* who cancelled it before may have missed the id */
    if (atomic_load(&j->server->stopping) || atomic_load(&j->end.cancelled))
        kvasir_engine_cancel(j->served->engine, id);
    return true;
}

static void write_answer(struct job *j);

static struct job *job_of_work(struct work *work) {
    return (struct job *)(void *)((char *)work - offsetof(struct job, work));
}

static void set_model(struct job *j, struct served *m) {
    pthread_mutex_lock(&j->mutex);
    j->served = m;
    pthread_mutex_unlock(&j->mutex);
    j->setup = m->setup;
    j->setup.limits = &j->end.limits;
    if (!m->options->fixed_seed)
        j->setup.sampling.seed = j->seed;
    j->setup.max_prompts = API_PROMPTS_MAX;
    j->setup.responses = j->server->kept ? &j->responses : NULL;
    j->setup.sessions = j->server->sessions ? &j->session.store : NULL;
}

/* On a worker: reads the body and submits the request. False with *err. */
static bool read_and_submit(struct job *j, struct api_error *err) {
    struct charge *before = charge_enter(j->charge);
    const bool read = j->served && read_request(j, j->exchange, err);
    charge_leave(before);
    if (read) {
        if (j->request.idle)
            write_answer(j);
        if (!text_ended(&j->end))
            return j->request.idle || submit(j, j->exchange, err);
        *err = (struct api_error){.status = HTTP_CLIENT_CLOSED};
    }
    if (text_end_explain(&j->end, err))
        refused(j, REFUSED_TIME);
    else if (reply_memory_error(j->exchange, err))
        refused(j, REFUSED_MEMORY);
    else if (!j->served && err->status >= HTTP_SERVER_ERROR)
        refused(j, REFUSED_MODEL);
    else if (err->status != HTTP_CLIENT_CLOSED && err->status != HTTP_UNAVAILABLE)
        refused(j, err->code && strcmp(err->code, API_CONTEXT_EXCEEDED) == 0 ? REFUSED_CONTEXT
                                                                             : REFUSED_BODY);
    return false;
}

static void work_on(struct work *work) {
    struct job *j = job_of_work(work);
    struct server *s = j->server;
    struct api_error err;
    struct served *m;
    const enum pick got = text_pick(&j->end, j->exchange, j->key, NULL, &m, &err);
    if (got == PICK_WAITS)
        return; /* the job may be freed by now */
    if (got == PICKED)
        set_model(j, m);
    const bool good = read_and_submit(j, &err);
    const bool idle = good && j->request.idle;
    if (!good || idle) {
        pthread_mutex_lock(&s->mutex);
        jobs_count_complete(s);
        pthread_mutex_unlock(&s->mutex);
    }
    pthread_mutex_lock(&j->mutex);
    j->phase = idle ? JOB_WRITTEN : good ? JOB_SUBMITTED : JOB_REFUSED;
    j->complete |= idle;
    if (!good)
        j->refused = err;
    http_wake(j->exchange);
    pthread_mutex_unlock(&j->mutex); /* the job may be freed from now on */
}

static void job_gone(struct http_exchange *exchange);
static void job_done(struct http_exchange *exchange, unsigned status);
static enum http_step job_continue(struct http_exchange *exchange);

enum http_step job_begin(struct server *s, struct http_exchange *exchange,
                         const struct protocol *protocol, const struct tenant *tenant) {
    struct api_error err;
    if (!account_begin(tenant->account, clock_seconds(), &err)) {
        metrics_refused(s->metrics, REFUSED_QUOTA);
        return reply_error(s, exchange, protocol, &err);
    }
    struct job *j = job_create(s, exchange, protocol, tenant);
    if (!j) {
        account_end(tenant->account);
        api_no_memory(&err);
        return reply_error(s, exchange, protocol, &err);
    }
    j->task = (struct task){job_continue, job_gone, job_done};
    j->work = (struct work){.run = work_on, .bytes = exchange->body_len};
    text_end_begin(&j->end, s, &j->work);
    jobs_add(j); /* either jobs_stop sees the job, or the worker sees `stopping` */
    if (!http_attach(exchange, j))
        job_gone(exchange);
    work_pool_add(s->work, &j->work);
    return HTTP_WAIT;
}

static enum http_step begin_stream(struct job *j, struct http_exchange *exchange) {
    const char *type = j->protocol->stream_type;
    struct http_reply reply =
        reply_head(j->server, exchange, HTTP_OK, type ? type : "text/event-stream; charset=utf-8");
    http_reply_header(&reply, "X-Accel-Buffering", "no"); /* proxies pass it on at once */
    return http_reply_stream(exchange, &reply, fill);
}

/* Answer to text, all of it charged; what it is made of goes back at once. */
static void write_answer(struct job *j) {
    const struct protocol_context context = context_of(j);
    struct api_error err;
    see_times(j);
    struct charge *before = charge_enter(j->charge);
    advance_session(j);
    json_t *body = j->protocol->body(&j->answer, &context, &err);
    j->text = body ? reply_dump(body) : NULL;
    api_answer_free(&j->answer);
    charge_leave(before);
    if (j->text)
        return;
    if (body)
        api_no_memory(&err);
    if (err.status == HTTP_CLIENT_CLOSED && atomic_load(&j->server->stopping))
        err.status = HTTP_UNAVAILABLE;
    if (err.status == HTTP_SERVER_ERROR)
        (void)reply_memory_error(j->exchange, &err);
    j->refused = err;
}

static void write_on(struct work *work) {
    struct job *j = job_of_work(work);
    write_answer(j);
    pthread_mutex_lock(&j->mutex);
    j->phase = JOB_WRITTEN;
    http_wake(j->exchange);
    pthread_mutex_unlock(&j->mutex); /* the job may be freed from now on */
}

/* The answer is complete. False: a worker writes it, since that would keep this thread from others
 * for long. */
static bool written(struct job *j) {
    enum { LONG = 256 << 10 };
    const size_t bytes = api_answer_bytes(&j->answer); /* of JSON, about */
    if (bytes <= LONG) {
        write_answer(j);
        return true;
    }
    pthread_mutex_lock(&j->mutex);
    j->phase = JOB_WRITING;
    pthread_mutex_unlock(&j->mutex);
    j->work = (struct work){.run = write_on, .bytes = bytes};
    work_pool_add(j->server->work, &j->work);
    return false;
}

static enum http_step job_continue(struct http_exchange *exchange) {
    struct job *j = job_of(exchange);
    pthread_mutex_lock(&j->mutex);
    const enum job_phase phase = j->phase;
    const bool complete = j->complete;
    pthread_mutex_unlock(&j->mutex);
    if (phase == JOB_SUBMITTED && j->request.stream)
        return begin_stream(j, exchange);
    if (phase == JOB_UNREAD || phase == JOB_WRITING || (phase == JOB_SUBMITTED && !complete) ||
        (phase == JOB_SUBMITTED && !written(j)))
        return HTTP_WAIT;
    char *text = j->text; /* JOB_REFUSED: NULL */
    j->text = NULL;
    session_user_end(&j->session);
    return text ? reply_text(j->server, exchange, HTTP_OK, text)
                : reply_error(j->server, exchange, j->protocol, &j->refused);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void job_gone(struct http_exchange *exchange) {
    struct job *j = job_of(exchange);
    pthread_mutex_lock(&j->mutex);
    j->gone = true;
    atomic_store(&j->end.cancelled, true);
    pthread_mutex_unlock(&j->mutex);
    job_cancel(j);
}

static const char *finish_text(const struct job *j) {
    static const char *const TEXTS[] = {"stop", "length", "cancelled", "error"};
    _Static_assert(sizeof TEXTS / sizeof *TEXTS == KVASIR_FINISH_ERROR + 1, "a text for each");
    const bool broken = !j->complete || (j->gone && j->finish == KVASIR_FINISH_CANCELLED);
    return j->too_slow ? "slow_reader" : broken ? "client_gone" : TEXTS[j->finish];
}

/* Under the job's mutex. */
static void record_job(struct job *j, unsigned status, struct job_record *out) {
    *out = (struct job_record){.route = j->protocol->name,
                               .finish = finish_text(j),
                               .model = j->setup.model,
                               .trace = j->trace,
                               .began_us = j->began_us,
                               .refused = j->phase == JOB_REFUSED,
                               .embeds = j->request.embed.width > 0,
                               .status = status,
                               .prompt_tokens = j->prompt_tokens,
                               .cached_tokens = j->cached_tokens,
                               .completion_tokens = j->completion_tokens,
                               .cache_bytes = j->cache_bytes,
                               .hit = j->hit,
                               .common_tokens = j->common_tokens,
                               .why = j->why,
                               .times = j->times,
                               .body = j->body,
                               .unknown = j->unknown};
    memcpy(out->id, j->id, sizeof out->id);
    j->body = j->unknown = NULL;
}

static void job_done(struct http_exchange *exchange, unsigned status) {
    struct job *j = job_of(exchange);
    struct server *s = j->server;
    struct job_record record;
    session_user_end(&j->session);
    pthread_mutex_lock(&j->mutex);
    ASSERT(j->phase != JOB_UNREAD && j->phase != JOB_WRITING);
    j->exchange = NULL;
    const bool complete = j->complete;
    const uint64_t id = j->engine_id;
    struct served *m = complete || j->phase == JOB_REFUSED ? NULL : j->served;
    if (m) /* the last event may free the job, and its lease, from now on */
        served_again(m);
    record_job(j, status, &record);
    const bool refused = record.refused;
    pthread_mutex_unlock(&j->mutex);
    if (refused)
        reply_log(s, exchange, j->protocol->name, status);
    if (complete || refused)
        job_end(j);
    else
        kvasir_engine_cancel(m->engine, id);
    served_give(m);
    if (!refused)
        job_log(s, &record, exchange);
    job_trace_end(s, &record, exchange);
    mem_free(record.body);
    mem_free(record.unknown);
}
