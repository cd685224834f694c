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
#include "server/job_log.h"
#include "server/text_task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A worker has the job, and the exchange waits: JOB_UNREAD, JOB_WRITING. Without a stream: WRITING
 * if the answer is long, then WRITTEN. */
enum job_phase { JOB_UNREAD, JOB_REFUSED, JOB_SUBMITTED, JOB_WRITING, JOB_WRITTEN };
/* Events and what they point to, back to back. Address space of options.buffer_bytes, of which the
 * first `touched` bytes are charged. */
struct events {
    char *data;
    size_t len, touched;
};

struct job {
    struct task task; /* first */
    struct work work;
    struct text_end end; /* of the worker's work */
    struct server *server;
    uint64_t seed;         /* unless the request has one */
    struct charge *charge; /* what it owns */
    char id[JOB_ID_MAX], client_id[JOB_ID_MAX];
    const char *key; /* the tenant's; belongs to the options */
    struct tenant tenant;
    struct responses_store responses; /* the tenant's */
    char *salt;
    char *body;    /* its text, if it is logged */
    char *unknown; /* names of fields that nobody knows; NULL: none */
    struct api_setup setup;
    struct api_request request;
    int64_t created;
    const struct protocol *protocol;
    struct api_answer answer; /* unless stream */
    char *text;               /* the answer's, JOB_WRITTEN; NULL: `refused` says why */
    void *stream;
    struct text_buf out; /* of the stream; sent up to out_at */
    size_t out_at;
    struct events taken; /* from queue, read up to taken_at */
    size_t taken_at;
    kvasir_error taken_error;
    struct api_times seen;           /* when what is written happened */
    bool finished;                   /* the stream is complete */
    struct metrics_request measured; /* from submit on, of the engine's thread only */
    struct job *prev, *next;         /* under the server's mutex */
    /* under the mutex */
    pthread_mutex_t mutex;
    struct http_exchange *exchange; /* NULL: over */
    enum job_phase phase;
    struct served *served;    /* its model, with a lease; NULL: not picked yet */
    struct api_error refused; /* why there is no answer */
    uint64_t engine_id;
    bool complete, too_slow, gone, comment_due;
    struct events queue;
    kvasir_error error; /* of the last choice that failed */
    uint32_t prompt_tokens, cached_tokens, prompt_done, completion_tokens;
    uint64_t cache_bytes;
    kvasir_hit hit;
    uint32_t common_tokens;
    kvasir_miss why;
    kvasir_finish finish;
    struct metrics_request times; /* a copy of measured */
    int64_t sent_us;
};

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

static void job_list(struct job *j) {
    struct server *s = j->server;
    pthread_mutex_lock(&s->mutex);
    j->next = s->jobs;
    if (j->next)
        j->next->prev = j;
    s->jobs = j;
    if (s->n_jobs++ == 0)
        pthread_cond_broadcast(&s->changed);
    s->n_incomplete++;
    pthread_mutex_unlock(&s->mutex);
}

/* Under the server's mutex: off the list. */
static void unlist(struct job *j) {
    struct server *s = j->server;
    ASSERT(s->n_jobs > 0);
    *(j->prev ? &j->prev->next : &s->jobs) = j->next;
    if (j->next)
        j->next->prev = j->prev;
    if (--s->n_jobs == 0)
        pthread_cond_broadcast(&s->changed);
}

/* Under the server's mutex: a job's last event has come. */
static void count_complete(struct server *s) {
    ASSERT(s->n_incomplete > 0);
    if (--s->n_incomplete == 0)
        pthread_cond_broadcast(&s->changed);
}

/* The exchange is over, and the last event came before. */
static void job_end(struct job *j) {
    struct server *s = j->server;
    pthread_mutex_lock(&s->mutex);
    unlist(j);
    pthread_mutex_unlock(&s->mutex);
    job_free(j);
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
    if (!stream) { /* the answer is this thread's until it is complete */
        struct charge *before = charge_enter(j->charge);
        api_answer_event(&j->answer, e);
        charge_leave(before);
    }
    pthread_mutex_lock(&j->mutex);
    ASSERT(!j->complete);
    note_event(j, e);
    if (stream && e->kind != KVASIR_EVENT_PROGRESS)
        queue_event(j, e);
    j->complete = last;
    const bool over = last && !j->exchange;
    if (j->exchange && (last || (stream && e->kind != KVASIR_EVENT_PROGRESS)))
        http_wake(j->exchange);
    pthread_mutex_unlock(&j->mutex);
    if (!last)
        return;
    if (over) /* otherwise the job may be freed by now */
        job_end(j);
    pthread_mutex_lock(&s->mutex); /* last: then the server may end */
    count_complete(s);
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

static void stream_event(struct job *j, const kvasir_event *e) {
    static const kvasir_error CANCELLED = {.code = KVASIR_ERR_CANCELLED,
                                           .offset = -1,
                                           .text = "cancelled"},
                              NO_MEMORY = {.code = KVASIR_ERR_MEMORY,
                                           .offset = -1,
                                           .text = "out of memory for the answer"};
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
    if (j->request.stream) {
        j->stream = j->protocol->open(&context);
        return (j->stream && events_make(j, &j->queue) && events_make(j, &j->taken)) ||
               api_no_memory(err);
    }
    return api_answer_init(&j->answer, &j->request) || api_no_memory(err);
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
    j->sent_us = metrics_now_us();
    j->created = s->started_s + (j->sent_us - s->started_us) / 1000000;
    j->responses = (struct responses_store){j, recall, keep};
    server_client_id(exchange, j->client_id);
    snprintf(exchange->id, sizeof exchange->id, "%s", *j->client_id ? j->client_id : j->id);
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
        count_complete(s);
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
    job_list(j); /* either jobs_stop sees the job, or the worker sees `stopping` */
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
    return text ? reply_text(j->server, exchange, HTTP_OK, text)
                : reply_error(j->server, exchange, j->protocol, &j->refused);
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* Ends what the engine does for it; without the job's mutex, while somebody has the job. */
static void cancel(struct job *j) {
    pthread_mutex_lock(&j->mutex);
    const uint64_t id = j->engine_id; /* 0: the worker sees why, or there is nothing to end */
    const struct served *m = j->served;
    pthread_mutex_unlock(&j->mutex);
    if (m)
        kvasir_engine_cancel(m->engine, id);
}

static void job_gone(struct http_exchange *exchange) {
    struct job *j = job_of(exchange);
    pthread_mutex_lock(&j->mutex);
    j->gone = true;
    atomic_store(&j->end.cancelled, true);
    pthread_mutex_unlock(&j->mutex);
    cancel(j);
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
                               .model = j->server->many ? j->setup.model : NULL,
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
    memcpy(out->client_id, j->client_id, sizeof out->client_id);
    j->body = j->unknown = NULL;
}

static void job_done(struct http_exchange *exchange, unsigned status) {
    struct job *j = job_of(exchange);
    struct server *s = j->server;
    struct job_record record;
    pthread_mutex_lock(&j->mutex);
    ASSERT(j->phase != JOB_UNREAD && j->phase != JOB_WRITING);
    j->exchange = NULL;
    const bool refused = j->phase == JOB_REFUSED;
    const bool complete = j->complete;
    const uint64_t id = j->engine_id;
    struct served *m = complete || refused ? NULL : j->served;
    if (m) /* the last event may free the job, and its lease, from now on */
        served_again(m);
    record_job(j, status, &record);
    pthread_mutex_unlock(&j->mutex);
    if (refused)
        reply_log(s, exchange, j->protocol->name, status);
    if (complete || refused)
        job_end(j);
    else
        kvasir_engine_cancel(m->engine, id);
    served_give(m);
    if (!refused)
        job_log(s, &record, exchange->client);
    mem_free(record.body);
    mem_free(record.unknown);
}

static bool is_called(const struct job *j, const struct tenant *tenant, const char *id) {
    return (tenant->admin || strcmp(j->key, tenant->key) == 0) &&
           (strcmp(j->id, id) == 0 || (*j->client_id && strcmp(j->client_id, id) == 0));
}

uint32_t jobs_cancel(struct server *s, const struct tenant *tenant, const char *id) {
    uint32_t n = 0;
    pthread_mutex_lock(&s->mutex);
    for (struct job *j = s->jobs; j; j = j->next)
        if (is_called(j, tenant, id)) {
            pthread_mutex_lock(&j->mutex);
            n += !j->complete;
            atomic_store(&j->end.cancelled, true);
            pthread_mutex_unlock(&j->mutex);
            cancel(j);
        }
    pthread_mutex_unlock(&s->mutex);
    return n;
}

size_t jobs_running(const struct served *m, const struct tenant *tenant, struct native_slot *out,
                    size_t most) {
    struct server *s = m->server;
    size_t n = 0;
    pthread_mutex_lock(&s->mutex);
    for (struct job *j = s->jobs; j && n < most; j = j->next) {
        if (!tenant->sees_all && strcmp(j->key, tenant->key) != 0)
            continue;
        pthread_mutex_lock(&j->mutex);
        if (j->served == m && j->phase == JOB_SUBMITTED && !j->complete && j->times.started_us)
            out[n++] = (struct native_slot){j->engine_id, j->prompt_tokens, j->prompt_done,
                                            j->completion_tokens};
        pthread_mutex_unlock(&j->mutex);
    }
    pthread_mutex_unlock(&s->mutex);
    return n;
}

void jobs_stop(struct server *s) {
    pthread_mutex_lock(&s->mutex);
    ASSERT(atomic_load(&s->stopping));
    for (struct job *j = s->jobs; j; j = j->next)
        cancel(j);
    while (s->n_incomplete)
        pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
}

void jobs_tick(struct server *s) {
    const int64_t now = metrics_now_us(), silence = (int64_t)s->options.keepalive_s * 1000000;
    pthread_mutex_lock(&s->mutex);
    for (struct job *j = s->jobs; j && silence; j = j->next) {
        pthread_mutex_lock(&j->mutex);
        if (j->phase == JOB_SUBMITTED && j->request.stream && j->exchange && !j->complete &&
            now - j->sent_us > silence) {
            j->comment_due = true;
            http_wake(j->exchange);
        }
        pthread_mutex_unlock(&j->mutex);
    }
    pthread_mutex_unlock(&s->mutex);
}
