/* SPDX-License-Identifier: Apache-2.0 */
/* cache_task.c: requests about stored prefixes that the engine answers between two steps:
 *
 *     HTTP thread                    worker                      engine's thread
 *       begin: attach, add    -->      run: reads the body,
 *       (suspended)                    asks the engine     -->     on_...: copies, wakes
 *       go_on: reply          <------------------------------------'
 *
 * While it is suspended the exchange cannot end, so the task is the worker's and then the engine's
 * until that wakes it. Nobody waits on a thread of its own.
 *
 * A DELETE is then answered once the stores below the memory have forgotten, too, or after a few
 * seconds, with "pending": true. Until then it is in the server's list, which the watcher's tick
 * looks at.
 *
 * Of several models a request to explain is about the one that its body names; DELETE about the one
 * that it names, which is loaded for it, else about all that are loaded.
 *
 * Whose prefixes: a salt is a key and the cache_salt of requests (server_salt). DELETE names the
 * second, and by the name of its keys a tenant; without one the salt of every key is meant.
 */
#include "server/text_task.h"

#include <stdlib.h>
#include <string.h>

struct cache_task {
    struct task task; /* first */
    struct work work;
    struct server *server;
    struct account *account;
    struct http_exchange *exchange;
    const char *route, *key;
    bool all_salts; /* of explain: what other salts have is told, too */
    struct text_end end;
    atomic_bool finished;
    struct served **models; /* [n_models] with a lease; mem_free */
    size_t n_models;
    uint32_t unanswered; /* of them, of DELETE; under the server's mutex, as `forgotten` */
    bool failed;         /* likewise: to ask one of them */
    /* of DELETE; from the query, then from the body */
    char *salt, *tenant, *model; /* NULL: not given */
    const char **salts;          /* [n_salts], mem_free each */
    size_t n_salts;
    struct cache_task *next_waiting; /* of the server's list */
    int64_t until_us;                /* as long it waits for the stores; 0: it is not in the list */
    struct api_request request;      /* of explain */
    /* of the engine's thread or the worker, then of the HTTP thread */
    bool good;
    kvasir_forgotten forgotten;
    kvasir_explanation explained;
    struct api_error err;
};

static struct cache_task *task_of(const struct http_exchange *exchange) {
    return exchange->user;
}

char *server_salt(const struct server *s, const char *key, const char *cache_salt) {
    const char *asked = cache_salt ? cache_salt : "", *of = s->options.share_prefixes ? "" : key;
    const size_t n = strlen(of), m = strlen(asked);
    char *salt = mem_alloc(n + m + 2);
    if (!salt)
        return NULL;
    memcpy(salt, of, n);
    salt[n] = n || m ? '\n' : 0; /* nothing at all is the empty salt */
    memcpy(salt + n + 1, asked, m + 1);
    return salt;
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void task_free(struct cache_task *t) {
    for (size_t i = 0; i < t->n_salts; i++)
        mem_free((void *)(uintptr_t)t->salts[i]);
    mem_free(t->salts);
    mem_free(t->salt);
    mem_free(t->tenant);
    mem_free(t->model);
    for (size_t i = 0; i < t->n_models; i++)
        served_give(t->models[i]);
    mem_free(t->models);
    mem_free((void *)(uintptr_t)t->request.engine.salt);
    t->request.engine.salt = NULL;
    api_request_free(&t->request);
    free(t);
}

/* By whoever has the task, for the last time. */
static void finish(struct cache_task *t, bool good) {
    t->good = good;
    atomic_store(&t->finished, true);
    http_wake(t->exchange); /* the task may be freed by now */
}

static void gone(struct http_exchange *exchange) {
    atomic_store(&task_of(exchange)->end.cancelled, true);
}

static void leave_list(struct cache_task *t) {
    struct cache_task **at = &t->server->forgets;
    pthread_mutex_lock(&t->server->mutex);
    while (*at != t)
        at = &(*at)->next_waiting;
    *at = t->next_waiting;
    pthread_mutex_unlock(&t->server->mutex);
}

static void done(struct http_exchange *exchange, unsigned status) {
    struct cache_task *t = task_of(exchange);
    ASSERT(atomic_load(&t->finished));
    if (t->until_us)
        leave_list(t);
    if (status)
        reply_log(t->server, exchange, t->route, status);
    account_end(t->account);
    server_count_open(t->server, -1);
    task_free(t);
}

static enum http_step begin(struct server *s, struct http_exchange *exchange, const char *route,
                            const struct tenant *tenant, struct cache_task *t,
                            void (*run)(struct work *work),
                            enum http_step (*go_on)(struct http_exchange *exchange)) {
    t->task = (struct task){go_on, gone, done};
    t->work = (struct work){.run = run, .bytes = exchange->body_len};
    t->account = tenant->account;
    t->exchange = exchange;
    t->route = route;
    t->key = tenant->key;
    t->all_salts = tenant->admin && s->options.admin_key;
    text_end_begin(&t->end, s, &t->work);
    server_count_open(s, 1);
    if (!http_attach(exchange, t))
        gone(exchange);
    work_pool_add(s->work, &t->work);
    return HTTP_WAIT;
}

/* NULL, and a reply: a quota refuses it, or there is no memory. */
static struct cache_task *task_create(struct server *s, struct http_exchange *exchange,
                                      const struct tenant *tenant, enum http_step *step) {
    struct api_error err;
    struct cache_task *t = NULL;
    if (!account_begin(tenant->account, clock_seconds(), &err)) {
        metrics_refused(s->metrics, REFUSED_QUOTA);
    } else if (!(t = calloc(1, sizeof *t))) {
        account_end(tenant->account);
        api_no_memory(&err);
    }
    if (!t)
        *step = reply_error(s, exchange, &PROTOCOL_CHAT, &err);
    else
        t->server = s;
    return t;
}

/* The only model that it is about. */
static enum pick pick_model(struct cache_task *t, const char *name) {
    struct served *m;
    const enum pick got = text_pick(&t->end, t->exchange, t->key, name, &m, &t->err);
    if (got != PICKED)
        return got;
    t->models = mem_calloc(1, sizeof(struct served *));
    if (!t->models) {
        served_give(m);
        api_no_memory(&t->err);
        return PICK_REFUSED;
    }
    t->models[t->n_models++] = m;
    return got;
}

/* The worker could not ask the engine: *err of the task says why, but for the end of its time. */
static void fail_task(struct cache_task *t) {
    if (text_end_explain(&t->end, &t->err))
        metrics_refused(t->server->metrics, REFUSED_TIME);
    else if (reply_memory_error(t->exchange, &t->err))
        metrics_refused(t->server->metrics, REFUSED_MEMORY);
    finish(t, false);
}

static struct cache_task *task_of_work(struct work *work) {
    return (struct cache_task *)(void *)((char *)work - offsetof(struct cache_task, work));
}

/* ---- forgetting ------------------------------------------------------------------------------ */

/* Takes one of the names. False with *err. */
static bool set_name(struct cache_task *t, const char *name, const char *value,
                     struct api_error *err) {
    const bool many = t->server->many != NULL;
    char **to = strcmp(name, "salt") == 0            ? &t->salt
                : strcmp(name, "tenant") == 0        ? &t->tenant
                : many && strcmp(name, "model") == 0 ? &t->model
                                                     : NULL;
    if (!to)
        return api_refuse(err, NULL, "\"%.60s\" is unknown, only salt and tenant are supported",
                          name);
    if (*to)
        return api_refuse(err, name, "is given twice");
    *to = mem_strdup(value);
    return *to || api_no_memory(err);
}

static bool read_query(struct cache_task *t, const char *query, struct api_error *err) {
    char name[HTTP_PARAM_MAX], value[HTTP_PARAM_MAX];
    enum http_param got;
    while ((got = http_query_next(&query, name, value)) == HTTP_PARAM_NEXT)
        if (!set_name(t, name, value, err))
            return false;
    return got == HTTP_PARAM_END ||
           api_refuse(err, NULL, "the query has an invalid percent code or is too long");
}

static enum api_want wants_all(const char *name, size_t len, const char **known) {
    static const char *const NAMES[] = {"salt", "tenant", "model", NULL};
    const enum api_want want =
        api_want_of(&(struct api_names){API_TREE, NAMES}, 1, name, len, known);
    *known = want == API_SKIP ? "?" : *known; /* a misspelt name must not clear everything */
    return API_TREE;
}

/* The body is not empty. */
static bool read_names(struct cache_task *t, struct api_error *err) {
    struct api_body body;
    const char *name, *text;
    json_t *value;
    const struct api_setup no_ids = {0};
    bool good = reply_read_body(t->exchange, &no_ids, wants_all, &body, err);
    if (!good)
        return false;
    if (json_object_get(body.members, "?"))
        good = api_refuse(err, NULL,
                          "the body has an unknown member, only salt and tenant are "
                          "supported");
    json_object_foreach(body.members, name, value) good =
        good && api_word(value, name, &text, err) && set_name(t, name, text, err);
    api_body_free(&body);
    return good;
}

static bool add_salt(struct cache_task *t, const char *key, struct api_error *err) {
    t->salts[t->n_salts] = server_salt(t->server, key, t->salt);
    return t->salts[t->n_salts++] || api_no_memory(err);
}

/* The salts of the keys that are meant; none: all that is stored. */
static bool list_salts(struct cache_task *t, struct api_error *err) {
    static const char NO_NAME[] = "-"; /* of keys without a name, and of requests without a key */
    const struct server_options *o = &t->server->options;
    const bool others = o->share_prefixes || !t->tenant || strcmp(t->tenant, NO_NAME) == 0;
    size_t n = 0;
    if (t->tenant && !t->salt)
        return api_refuse(err, "salt",
                          "missing: a tenant's prefixes are forgotten by their "
                          "cache_salt, \"\" of requests without one");
    if (!t->salt)
        return true;
    if (t->tenant && o->share_prefixes)
        return api_refuse(err, "tenant", "all keys of this server share their prefixes");
    const char **keys = o->share_prefixes ? mem_calloc(1, sizeof *keys)
                                          : accounts_keys(t->server->accounts, t->tenant, &n);
    t->salts = keys ? mem_calloc(n + 2, sizeof *t->salts) : NULL;
    bool good = t->salts || api_no_memory(err);
    if (good && n == 0 && !others) {
        good = api_refuse(err, "tenant", "no API key has the name \"%.64s\"", t->tenant);
        err->status = HTTP_NOT_FOUND;
    }
    for (size_t i = 0; i < n && good; i++)
        good = add_salt(t, keys[i], err);
    if (good && others)
        good = add_salt(t, "", err);
    if (good && others && o->admin_key && !o->share_prefixes)
        good = add_salt(t, o->admin_key, err);
    mem_free(keys);
    return good;
}

/* All that are loaded. False: out of memory. */
static bool list_loaded(struct cache_task *t) {
    const size_t n = served_count(t->server);
    t->models = mem_calloc(n, sizeof(struct served *));
    for (size_t i = 0; t->models && i < n; i++) {
        struct served *m = served_peek(t->server, i);
        if (m)
            t->models[t->n_models++] = m;
    }
    return t->models || api_no_memory(&t->err);
}

/* n models have answered, or will not. */
static void count_answers(struct cache_task *t, const kvasir_forgotten *what, uint32_t n) {
    pthread_mutex_lock(&t->server->mutex);
    ASSERT(t->unanswered >= n);
    t->unanswered -= n;
    t->forgotten.entries += what->entries;
    t->forgotten.tokens += what->tokens;
    t->forgotten.bytes += what->bytes;
    const bool last = t->unanswered == 0, good = !t->failed;
    pthread_mutex_unlock(&t->server->mutex);
    if (last)
        finish(t, good);
}

static void on_forgotten(void *user, const kvasir_forgotten *what) {
    count_answers(user, what, 1);
}

/* The task may be freed at the end. */
static void ask_to_forget(struct cache_task *t) {
    static const kvasir_forgotten NOTHING = {0};
    kvasir_error why;
    kvasir_status status = KVASIR_OK;
    const uint32_t n = (uint32_t)t->n_models;
    uint32_t asked = 0;
    t->unanswered = n + 1; /* 1: this thread */
    for (; asked < n && status == KVASIR_OK; asked += status == KVASIR_OK)
        status = kvasir_engine_forget_counted(t->models[asked]->engine, t->salts, t->n_salts,
                                              on_forgotten, t, &why);
    pthread_mutex_lock(&t->server->mutex);
    t->failed = status != KVASIR_OK;
    if (t->failed)
        api_error_of(&t->err, &why);
    pthread_mutex_unlock(&t->server->mutex);
    count_answers(t, &NOTHING, n - asked + 1);
}

/* What is to be forgotten; once. */
static bool read_forget(struct cache_task *t) {
    struct charge *before = charge_enter(t->exchange->charge);
    t->err = (struct api_error){.status = HTTP_CLIENT_CLOSED};
    const bool good = !text_ended(&t->end) &&
                      (t->exchange->body_len == 0 || read_names(t, &t->err)) &&
                      list_salts(t, &t->err);
    http_drop_body(t->exchange);
    charge_leave(before);
    return good;
}

static void run_forget(struct work *work) {
    struct cache_task *t = task_of_work(work);
    bool good = t->end.pick.asked || read_forget(t);
    if (good && t->server->many && !t->model) {
        good = list_loaded(t);
    } else if (good) {
        const enum pick got = pick_model(t, t->model);
        if (got == PICK_WAITS)
            return;
        good = got == PICKED;
    }
    if (good)
        ask_to_forget(t);
    else
        fail_task(t);
}

static bool is_pending(const struct cache_task *t) {
    bool pending = false;
    for (size_t i = 0; i < t->n_models; i++)
        pending |= kvasir_engine_is_forgetting(t->models[i]->engine);
    return pending;
}

static bool is_over(const struct cache_task *t, bool pending) {
    return !pending || atomic_load(&t->server->stopping) || metrics_now_us() >= t->until_us;
}

void forgets_tick(struct server *s) {
    pthread_mutex_lock(&s->mutex);
    for (struct cache_task *t = s->forgets; t; t = t->next_waiting)
        if (is_over(t, is_pending(t)))
            http_wake(t->exchange);
    pthread_mutex_unlock(&s->mutex);
}

static void enter_list(struct cache_task *t) {
    enum { PATIENCE_US = 5000000 };
    pthread_mutex_lock(&t->server->mutex);
    t->until_us = metrics_now_us() + PATIENCE_US;
    t->next_waiting = t->server->forgets;
    t->server->forgets = t;
    pthread_mutex_unlock(&t->server->mutex);
}

/* Whose prefixes were forgotten; NULL: out of memory. */
static json_t *names_json(const struct cache_task *t) {
    json_t *names = json_array();
    for (size_t i = 0; names && i < t->n_models; i++)
        if (json_array_append_new(names, json_string(t->models[i]->options->model_name)) != 0) {
            json_decref(names);
            names = NULL;
        }
    return names;
}

static enum http_step forget_go_on(struct http_exchange *exchange) {
    struct cache_task *t = task_of(exchange);
    if (!atomic_load(&t->finished))
        return HTTP_WAIT;
    if (!t->good)
        return reply_error(t->server, exchange, &PROTOCOL_CHAT, &t->err);
    bool pending = is_pending(t);
    if (pending && !t->until_us) {
        enter_list(t); /* the tick may have missed the end, or the server's: it is asked again */
        pending = is_pending(t);
    }
    if (!is_over(t, pending))
        return HTTP_WAIT;
    const kvasir_forgotten *f = &t->forgotten;
    json_t *body =
        json_pack("{s:s, s:b, s:b, s:{s:I, s:I, s:I}}", "status", "cleared", "rewarm_scheduled", 0,
                  "pending", pending, "forgotten", "entries", (json_int_t)f->entries, "tokens",
                  (json_int_t)f->tokens, "bytes", (json_int_t)f->bytes);
    if (body && t->server->many && json_object_set_new(body, "models", names_json(t)) != 0) {
        json_decref(body);
        body = NULL;
    }
    return reply_json(t->server, exchange, HTTP_OK, body);
}

enum http_step forget_begin(struct server *s, struct http_exchange *exchange,
                            const struct tenant *tenant) {
    enum http_step step;
    struct api_error err;
    struct cache_task *t = task_create(s, exchange, tenant, &step);
    if (!t)
        return step;
    if (read_query(t, exchange->query, &err))
        return begin(s, exchange, "forget", tenant, t, run_forget, forget_go_on);
    account_end(tenant->account);
    task_free(t);
    return reply_error(s, exchange, &PROTOCOL_CHAT, &err);
}

/* ---- explaining ------------------------------------------------------------------------------ */

/* A token's text, as far as it is UTF-8 by itself; null: there is no token, or the model (NULL) is
 * not loaded. */
static json_t *token_text(const struct served *m, int32_t token) {
    char *text;
    size_t len;
    if (token < 0 || !m ||
        kvasir_detokenize(m->setup.tokenizer, &token, 1, 0, &text, &len, NULL) != KVASIR_OK)
        return json_null();
    json_t *value = json_stringn(text, len);
    kvasir_free(text);
    return value;
}

static json_t *token_id(int32_t token) {
    return token < 0 ? json_null() : json_integer(token);
}

/* The object of both explanations. */
static json_t *explanation(const struct served *m, const struct lookup *l) {
    json_t *differs = json_null();
    if (l->token >= 0 || l->other_token >= 0)
        differs =
            json_pack("{s:I, s:o, s:o, s:o, s:o}", "position", (json_int_t)l->common_tokens,
                      "token", token_id(l->token), "text", token_text(m, l->token), "stored_token",
                      token_id(l->other_token), "stored_text", token_text(m, l->other_token));
    return json_pack("{s:s, s:I, s:I, s:I, s:s, s:o}", "object", "cache.explanation",
                     "prompt_tokens", (json_int_t)l->prompt_tokens, "common_tokens",
                     (json_int_t)l->common_tokens, "usable_tokens", (json_int_t)l->cached_tokens,
                     "why", kvasir_miss_text(l->why), "first_difference", differs);
}

static enum api_want wants_prompt(const char *name, size_t len, const char **known) {
    const enum api_want want = openai_wants_chat(name, len, known);
    return want ? want : openai_wants_completion(name, len, known);
}

static void on_explained(void *user, const kvasir_explanation *e) {
    struct cache_task *t = user;
    t->explained = *e;
    finish(t, true);
}

static bool read_members(struct cache_task *t, struct api_error *err) {
    struct api_setup setup = t->models[0]->setup;
    struct api_body body;
    setup.limits = &t->end.limits;
    setup.grammars = NULL; /* nothing is generated */
    if (!reply_read_body(t->exchange, &setup, wants_prompt, &body, err))
        return false;
    const bool chat = json_object_get(body.members, "messages") != NULL;
    const bool good =
        openai_read(&setup, chat ? API_CHAT : API_COMPLETIONS, &body, &t->request, err);
    api_body_free(&body);
    if (!good)
        return false;
    t->request.engine.salt = server_salt(t->server, t->key, t->request.engine.salt);
    return t->request.engine.salt || api_no_memory(err);
}

static bool read_prompt(struct cache_task *t, struct api_error *err) {
    struct charge *before = charge_enter(t->exchange->charge);
    *err = (struct api_error){.status = HTTP_CLIENT_CLOSED};
    const bool good = !text_ended(&t->end) && read_members(t, err);
    http_drop_body(t->exchange);
    charge_leave(before);
    return good;
}

static void run_explain(struct work *work) {
    struct cache_task *t = task_of_work(work);
    const kvasir_request *r = &t->request.engine;
    kvasir_error why;
    const enum pick got = pick_model(t, NULL);
    if (got == PICK_WAITS)
        return; /* the task may be freed by now */
    bool good = got == PICKED && read_prompt(t, &t->err);
    if (good && kvasir_engine_explain(t->models[0]->engine, r->salt, r->tokens, r->n_tokens,
                                      t->all_salts, on_explained, t, &why) != KVASIR_OK) {
        api_error_of(&t->err, &why);
        good = false;
    }
    if (!good)
        fail_task(t);
}

static enum http_step explain_go_on(struct http_exchange *exchange) {
    const struct cache_task *t = task_of(exchange);
    if (!atomic_load(&t->finished))
        return HTTP_WAIT;
    if (!t->good)
        return reply_error(t->server, exchange, &PROTOCOL_CHAT, &t->err);
    const kvasir_explanation *e = &t->explained;
    enum { PAGE = 64 }; /* fewer tokens are no matter: all prompts may begin with the same one */
    const bool elsewhere = t->all_salts && e->other_salt_tokens >= e->common_tokens + PAGE;
    const struct lookup l = {.prompt_tokens = e->prompt_tokens,
                             .common_tokens = e->common_tokens,
                             .cached_tokens = e->usable_tokens,
                             .why = e->why,
                             .token = e->token,
                             .other_token = e->other_token};
    json_t *body = explanation(t->models[0], &l);
    bool good =
        body && json_object_set_new(body, "store_tokens", json_integer(e->store_tokens)) == 0;
    if (good && t->all_salts)
        good =
            json_object_set_new(body, "other_salt_tokens", json_integer(e->other_salt_tokens)) == 0;
    if (good && elsewhere)
        good = json_object_set_new(body, "why", json_string("other_salt")) == 0;
    if (!good) {
        json_decref(body);
        body = NULL;
    }
    return reply_json(t->server, exchange, HTTP_OK, body);
}

enum http_step explain_begin(struct server *s, struct http_exchange *exchange,
                             const struct tenant *tenant) {
    enum http_step step;
    struct cache_task *t = task_create(s, exchange, tenant, &step);
    return t ? begin(s, exchange, "explain", tenant, t, run_explain, explain_go_on) : step;
}

/* The id is the server's, which nobody guesses, not the client's. */
enum http_step explain_recent(struct server *s, struct http_exchange *exchange,
                              const struct tenant *tenant) {
    char name[HTTP_PARAM_MAX], value[HTTP_PARAM_MAX];
    const char *query = exchange->query;
    struct api_error err;
    struct lookup l;
    const enum http_param got = http_query_next(&query, name, value);
    if (got != HTTP_PARAM_NEXT || *query || strcmp(name, "request_id") != 0) {
        api_refuse(&err, NULL,
                   "send ?request_id= and the id of a recent answer, or POST a request's body");
        return reply_error(s, exchange, &PROTOCOL_CHAT, &err);
    }
    if (!lookups_find(s->lookups, value, &l) ||
        !(tenant->admin || strcmp(l.key, tenant->key) == 0)) {
        api_refuse(&err, "request_id", "no recent request has this id");
        err.status = HTTP_NOT_FOUND;
        return reply_error(s, exchange, &PROTOCOL_CHAT, &err);
    }
    struct served *m = served_peek(s, l.model);
    json_t *body = explanation(m, &l);
    served_give(m);
    if (body && json_object_set_new(body, "request_id", json_string(l.id)) != 0) {
        json_decref(body);
        body = NULL;
    }
    return reply_json(s, exchange, HTTP_OK, body);
}
