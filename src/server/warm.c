/* SPDX-License-Identifier: Apache-2.0 */
/* warm.c: puts the prompts of a file into the cache after the start.
 *
 *     file --> prompts (tokens, salt, life)   all of them, before the server listens
 *     thread:  wait until no client has a request open
 *              one prompt to the engine, with an answer of one token
 *              a request comes: cancel it; what was computed is stored; again from the wait
 *
 * The engine takes from memory or from its tiers what they have of a prompt, as for any request.
 *
 * Invariants
 *   WARM-1  While a client has a request open, no prompt of the file is in the engine for longer
 *           than the step that was under way.
 *   WARM-2  A prompt is begun only if the cache has room for it. Once one made the cache evict
 *           something all the same (a limit on entries, a state), no further one is begun.
 *
 * The thread waits on the server's `changed`, under its mutex, for clients and for the engine. The
 * engine's thread takes that mutex at a prompt's end, as it does at a request's.
 */
#include "server/warm.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/server_internal.h"
#include "util/json.h"

enum { PAGE_TOKENS = 64 };

struct warm_prompt {
    int32_t *tokens; /* [n]; mem_free */
    size_t n;
    char *salt;
    uint64_t ttl_seconds; /* 0: for ever */
    bool pin;
    size_t line;
};

struct warm {
    struct server *server;
    struct warm_prompt *prompts; /* [figures.prompts] */
    size_t cap;
    uint64_t page_bytes;
    uint64_t start_tokens, start_more; /* of the exact start; bytes a token more than in pages */
    pthread_t thread;
    bool runs;
    int64_t told_us;  /* of the last line in the log */
    bool started;     /* of the engine's thread: the prompt has begun to run */
    uint32_t cached;  /* likewise: its tokens that were there */
    kvasir_error why; /* likewise: KVASIR_FINISH_ERROR */
    /* under the server's mutex */
    struct warm_figures figures;
    kvasir_finish finish; /* of the last prompt */
    bool ended, stop;
};

/* ---- the file -------------------------------------------------------------------------------- */

static kvasir_status fail_line(kvasir_error *err, size_t line, const char *text) {
    return fail_field(err, KVASIR_ERR_ARGUMENT, "server.warm_prompts", "line %zu: %s", line, text);
}

/* Which of the two a body has. */
struct body_kind {
    bool prompt, messages;
};

static kvasir_status note_member(void *user, const struct json_part *m, kvasir_error *err) {
    struct body_kind *k = user;
    (void)err;
    k->prompt |= m->name && json_name_is(m->name, m->name_len, "prompt");
    k->messages |= m->name && json_name_is(m->name, m->name_len, "messages");
    return KVASIR_OK;
}

static bool read_body(const struct server *s, const char *text, size_t len, struct api_request *out,
                      struct api_error *err) {
    struct body_kind kind = {0};
    struct api_body body;
    kvasir_error why;
    if (json_walk(text, len, note_member, &kind, &why) != KVASIR_OK)
        return api_refuse(err, NULL, "%s", why.text);
    if (kind.prompt == kind.messages)
        return api_refuse(err, NULL,
                          "must be a JSON object with either \"prompt\" or \"messages\"");
    const struct protocol *p = kind.messages ? &PROTOCOL_CHAT : &PROTOCOL_COMPLETIONS;
    if (!api_body_read(text, len, s->one->setup.vocab, p->wants, &body, err))
        return false;
    const bool good = p->read(&s->one->setup, &body, out, err);
    api_body_free(&body);
    return good;
}

/* Copies what is needed of the request. Whoever may give the file may pin: no key is asked for. */
static bool keep(const struct warm *w, const struct api_request *r, struct warm_prompt *p) {
    const struct server_options *o = &w->server->options;
    p->n = r->engine.n_tokens;
    p->ttl_seconds = r->engine.ttl_seconds;
    p->pin = r->engine.pin;
    p->tokens = mem_calloc(p->n, sizeof *p->tokens);
    p->salt = server_salt(w->server, o->warm_key ? o->warm_key : "", r->engine.salt);
    if (!p->tokens || !p->salt)
        return false;
    memcpy(p->tokens, r->engine.tokens, p->n * sizeof *p->tokens);
    return true;
}

static kvasir_status read_line(struct warm *w, const char *text, size_t len, size_t line,
                               kvasir_error *err) {
    struct warm_figures *f = &w->figures;
    struct api_request request = {0};
    struct api_error why;
    if (!read_body(w->server, text, len, &request, &why))
        return fail_line(err, line, why.text);
    if (request.engine.no_store) {
        api_request_free(&request);
        return fail_line(err, line,
                         "cache.no_store is not allowed here: prompts are stored; remove the line, "
                         "or the member");
    }
    struct warm_prompt p = {.line = line};
    const uint32_t most = w->server->one->most_prompt_tokens;
    bool good = keep(w, &request, &p) && ARRAY_GROW(w->prompts, w->cap, f->prompts + 1);
    api_request_free(&request);
    if (good)
        w->prompts[f->prompts++] = p;
    if (!good) {
        mem_free(p.tokens);
        mem_free(p.salt);
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for the prompts of the cache");
    }
    if (most && p.n >= most)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "server.warm_prompts",
                          "line %zu: the prompt has %zu tokens, at most %u fit", line, p.n,
                          most - 1);
    return KVASIR_OK;
}

static bool is_blank(const char *text, size_t len) {
    size_t at = 0;
    while (at < len && (text[at] == ' ' || text[at] == '\t' || text[at] == '\r'))
        at++;
    return at == len;
}

static kvasir_status read_file(struct warm *w, kvasir_error *err) {
    const struct server_options *o = &w->server->options;
    const char *at = o->warm_prompts, *end = at + o->warm_prompts_len;
    for (size_t line = 1; at < end; line++) {
        const char *next = memchr(at, '\n', (size_t)(end - at));
        const size_t len = (size_t)((next ? next : end) - at);
        if (!is_blank(at, len))
            TRY(read_line(w, at, len, line, err));
        at += len + 1;
    }
    if (!w->figures.prompts)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "server.warm_prompts", "contains no prompt");
    return KVASIR_OK;
}

kvasir_status warm_create(struct server *s, struct warm **out, kvasir_error *err) {
    kvasir_context_info info;
    kvasir_memory_plan plan;
    *out = NULL;
    if (!s->options.warm_prompts)
        return KVASIR_OK;
    struct warm *w = mem_calloc(1, sizeof *w);
    if (!w)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for the prompts of the cache");
    kvasir_engine_get_context(s->one->engine, &info);
    w->server = s;
    w->page_bytes = info.kv_bytes_per_token * PAGE_TOKENS;
    kvasir_engine_get_plan(s->one->engine, &plan);
    w->start_tokens = plan.start_tokens;
    if (plan.start_bytes > plan.start_bytes_quantized)
        w->start_more = (plan.start_bytes - plan.start_bytes_quantized) / plan.start_tokens;
    const kvasir_status status = read_file(w, err);
    if (status == KVASIR_OK)
        *out = w;
    else
        warm_destroy(w);
    return status;
}

/* ---- room ------------------------------------------------------------------------------------ */

static bool same_salt(const struct warm_prompt *a, const struct warm_prompt *b) {
    return strcmp(a->salt, b->salt) == 0;
}

/* The most tokens that a prompt before this one begins with, too. They are stored already, unless
 * they were evicted. */
static size_t shared_tokens(const struct warm *w, const struct warm_prompt *p) {
    size_t most = 0;
    for (const struct warm_prompt *q = w->prompts; q < p; q++) {
        size_t i = 0;
        const size_t n = min_size(p->n, q->n);
        while (same_salt(p, q) && i < n && p->tokens[i] == q->tokens[i])
            i++;
        most = max_size(most, i);
    }
    return most;
}

/* What a prompt takes if so many of its tokens are stored. A page more for its end, one for tables.
 */
static uint64_t needed_bytes(const struct warm *w, const struct warm_prompt *p, uint64_t stored) {
    const uint64_t exact = min_size(round_up(p->n, PAGE_TOKENS), w->start_tokens);
    return ((p->n - stored) / PAGE_TOKENS + 2) * w->page_bytes +
           (exact > stored ? exact - stored : 0) * w->start_more;
}

/* WARM-2. */
static bool has_room(const struct warm *w, const struct warm_prompt *p) {
    kvasir_engine_stats stats;
    kvasir_engine_get_stats(w->server->one->engine, &stats);
    const uint64_t room =
        stats.budget_bytes > stats.used_bytes ? stats.budget_bytes - stats.used_bytes : 0;
    return needed_bytes(w, p, 0) <= room || needed_bytes(w, p, shared_tokens(w, p)) <= room;
}

static uint64_t evicted(const struct warm *w) {
    kvasir_engine_stats stats;
    kvasir_engine_get_stats(w->server->one->engine, &stats);
    return stats.evicted_pages + stats.store_rejections;
}

/* ---- the engine's thread --------------------------------------------------------------------- */

static void on_event(void *user, const kvasir_event *e) {
    struct warm *w = user;
    struct server *s = w->server;
    if (e->kind == KVASIR_EVENT_START) {
        w->started = true;
        w->cached = e->cached_tokens;
    }
    if (!e->last)
        return;
    if (e->error)
        w->why = *e->error;
    pthread_mutex_lock(&s->mutex);
    w->finish = e->finish;
    w->ended = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Waits until no client has a request open. False: it is to stop. */
static bool wait_idle(struct warm *w) {
    struct server *s = w->server;
    pthread_mutex_lock(&s->mutex);
    while (s->n_jobs && !w->stop)
        pthread_cond_wait(&s->changed, &s->mutex);
    const bool go_on = !w->stop;
    pthread_mutex_unlock(&s->mutex);
    return go_on;
}

/* Waits for the prompt's end; cancels it once a client's request is there (WARM-1). */
static kvasir_finish wait_end(struct warm *w, uint64_t id) {
    struct server *s = w->server;
    bool cancelled = false;
    pthread_mutex_lock(&s->mutex);
    while (!w->ended) {
        if (!cancelled && (s->n_jobs || w->stop)) {
            cancelled = true;
            pthread_mutex_unlock(&s->mutex);
            kvasir_engine_cancel(s->one->engine, id);
            pthread_mutex_lock(&s->mutex);
            continue;
        }
        pthread_cond_wait(&s->changed, &s->mutex);
    }
    const kvasir_finish finish = w->finish;
    pthread_mutex_unlock(&s->mutex);
    return finish;
}

static uint64_t ended(const struct warm *w) {
    kvasir_engine_stats stats;
    kvasir_engine_get_stats(w->server->one->engine, &stats);
    return stats.finished + stats.cancelled + stats.failed;
}

/* The engine's figures tell of a request's end a moment later than its event. */
static void wait_figures(const struct warm *w, uint64_t before) {
    enum { TRIES = 500 };
    const struct timespec moment = {.tv_nsec = 1000000};
    for (int i = 0; i < TRIES && ended(w) == before; i++)
        nanosleep(&moment, NULL);
}

/* Runs the prompt once. KVASIR_FINISH_ERROR: w->why. */
static kvasir_finish run_prompt(struct warm *w, const struct warm_prompt *p) {
    kvasir_request r = kvasir_request_defaults();
    uint64_t id;
    r.tokens = p->tokens;
    r.n_tokens = p->n;
    r.max_tokens = 1;
    r.sampling.temp = 0;
    r.salt = p->salt;
    r.ttl_seconds = p->ttl_seconds;
    r.pin = p->pin;
    r.on_event = on_event;
    r.user = w;
    w->ended = false;
    const uint64_t before = ended(w);
    const kvasir_status status = kvasir_engine_submit(w->server->one->engine, &r, &id, &w->why);
    if (status != KVASIR_OK)
        return status == KVASIR_ERR_BUSY ? KVASIR_FINISH_CANCELLED : KVASIR_FINISH_ERROR;
    const kvasir_finish finish = wait_end(w, id);
    wait_figures(w, before);
    return finish;
}

/* Computes one prompt, in as many parts as clients leave time for. False: it is to stop. */
static bool compute(struct warm *w, const struct warm_prompt *p) {
    struct server *s = w->server;
    uint32_t cached = 0;
    bool started = false;
    kvasir_finish finish;
    do {
        if (!wait_idle(w))
            return false;
        w->started = false;
        finish = run_prompt(w, p);
        if (w->started && !started) { /* later parts find what the first one stored */
            started = true;
            cached = w->cached;
        }
    } while (finish == KVASIR_FINISH_CANCELLED);
    const bool good = finish != KVASIR_FINISH_ERROR;
    if (!good)
        log_note(s->log, SERVER_LOG_WARN, "warm prompts: line %zu: %s", p->line, w->why.text);
    pthread_mutex_lock(&s->mutex);
    struct warm_figures *f = &w->figures;
    f->done += good;
    f->failed += !good;
    f->cached_tokens += good ? cached : 0;
    f->computed_tokens += good ? p->n - cached : 0;
    pthread_mutex_unlock(&s->mutex);
    return !atomic_load(&s->model_lost);
}

static void tell(struct warm *w, const char *what) {
    const struct warm_figures f = warm_figures(w);
    log_note(w->server->log, SERVER_LOG_INFO,
             "warm prompts: %s%" PRIu64 " of %" PRIu64 " are in the cache, %" PRIu64
             " tokens computed, %" PRIu64 " found",
             what, f.done, f.prompts, f.computed_tokens, f.cached_tokens);
    w->told_us = metrics_now_us();
}

static void set_state(struct warm *w, enum warm_state state) {
    pthread_mutex_lock(&w->server->mutex);
    w->figures.state = state;
    pthread_mutex_unlock(&w->server->mutex);
}

static void *warm_thread(void *user) {
    enum { TELL_US = 10 * 1000000 };
    struct warm *w = user;
    w->told_us = metrics_now_us();
    for (uint64_t i = 0; i < w->figures.prompts; i++) {
        const uint64_t before = evicted(w);
        if (!wait_idle(w))
            return NULL;
        if (!has_room(w, &w->prompts[i])) {
            set_state(w, WARM_FULL);
            tell(w, "stopped, the cache is full: ");
            return NULL;
        }
        if (!compute(w, &w->prompts[i]))
            return NULL;
        if (evicted(w) != before && i + 1 < w->figures.prompts) {
            set_state(w, WARM_FULL);
            tell(w, "stopped, the cache evicts prefixes: ");
            return NULL;
        }
        if (metrics_now_us() - w->told_us > TELL_US)
            tell(w, "");
    }
    set_state(w, WARM_DONE);
    tell(w, "");
    return NULL;
}

kvasir_status warm_start(struct warm *w, kvasir_error *err) {
    w->runs = pthread_create(&w->thread, NULL, warm_thread, w) == 0;
    return w->runs ? KVASIR_OK : fail(err, KVASIR_ERR_MEMORY, "cannot start a thread");
}

void warm_stop(struct warm *w) {
    if (!w)
        return;
    pthread_mutex_lock(&w->server->mutex);
    w->stop = true;
    pthread_cond_broadcast(&w->server->changed);
    pthread_mutex_unlock(&w->server->mutex);
}

void warm_destroy(struct warm *w) {
    if (!w)
        return;
    warm_stop(w);
    if (w->runs)
        pthread_join(w->thread, NULL);
    for (uint64_t i = 0; i < w->figures.prompts; i++) {
        mem_free(w->prompts[i].tokens);
        mem_free(w->prompts[i].salt);
    }
    mem_free(w->prompts);
    mem_free(w);
}

struct warm_figures warm_figures(struct warm *w) {
    struct warm_figures f = {0};
    if (!w)
        return f;
    pthread_mutex_lock(&w->server->mutex);
    f = w->figures;
    pthread_mutex_unlock(&w->server->mutex);
    return f;
}
