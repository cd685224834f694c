/* SPDX-License-Identifier: Apache-2.0 */
/* sessions_kept.c: a list of sessions, the oldest first, under one mutex. The engine's thread never
 * takes it, so what is copied here keeps no step waiting; engine.mutex may be taken within it.
 */
#include "server/sessions_kept.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "server/metrics.h"
#include "server/server_internal.h"
#include "util/json.h"

/* Where a request ended: so many messages were so many tokens. */
struct turn {
    uint32_t messages, tokens;
};

struct session {
    struct session *next;
    char id[SESSION_ID_MAX], parent[SESSION_ID_MAX]; /* parent: it was forked from; "": none */
    char *key, *salt;                                /* salt: the engine's */
    char *body;                                      /* struct session_state's, JSON */
    int32_t *tokens;                                 /* [n_tokens] */
    uint32_t n_tokens, messages;                     /* messages 0: a text */
    struct turn *turns; /* [n_turns] of a chat, in order; tokens: of the present ones */
    size_t n_turns, turns_cap;
    size_t bytes; /* charged */
    int64_t created_s, used_us;
    uint32_t ttl_s;
    bool pin, busy;
};

struct sessions {
    struct sessions_options o;
    struct charge *charge;
    pthread_mutex_t mutex;
    struct session *first; /* under the mutex, as what follows */
    struct sessions_figures figures;
};

/* ---- one ------------------------------------------------------------------------------------- */

static void session_free(struct session *k) {
    if (!k)
        return;
    mem_free(k->key);
    mem_free(k->salt);
    mem_free(k->body);
    mem_free(k->tokens);
    mem_free(k->turns);
    mem_free(k);
}

static size_t bytes_of(const struct session *k) {
    return sizeof *k + strlen(k->key) + strlen(k->salt) + strlen(k->body) +
           k->n_tokens * sizeof *k->tokens + k->turns_cap * sizeof *k->turns;
}

static int32_t *copy_tokens(const int32_t *tokens, size_t n) {
    int32_t *copy = mem_calloc(n + 1, sizeof *copy);
    if (copy)
        memcpy(copy, tokens, n * sizeof *copy);
    return copy;
}

static uint32_t common(const int32_t *a, uint32_t n, const int32_t *b, uint32_t m) {
    uint32_t i = 0;
    while (i < n && i < m && a[i] == b[i])
        i++;
    return i;
}

static int64_t left_us(const struct session *k) {
    return k->used_us + (int64_t)k->ttl_s * 1000000 - metrics_now_us();
}

static bool has_id(struct session *k) {
    uint64_t seed;
    return server_new_id("sess_", k->id, &seed);
}

/* As clients see it. */
static json_t *view(const struct sessions *all, const struct session *k) {
    kvasir_sequence_plan plan = {0};
    if (k->n_tokens)
        kvasir_engine_plan_sequence(all->o.engine, k->n_tokens, &plan);
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s?, s:I, s:I, s:I, s:b, s:o, s:I, s:I}", "id", k->id, "object",
        "session", "kind", k->messages ? "chat" : "text", "model", all->o.model, "parent",
        *k->parent ? k->parent : NULL, "created", (json_int_t)k->created_s, "expires",
        (json_int_t)(time(NULL) + left_us(k) / 1000000), "ttl", (json_int_t)k->ttl_s, "pin", k->pin,
        "message_count", k->messages ? json_integer(k->messages) : json_null(), "tokens",
        (json_int_t)k->n_tokens, "cache_bytes", (json_int_t)plan.bytes);
}

static json_t *viewed(json_t *made, struct api_error *err) {
    if (!made)
        (void)api_no_memory(err);
    return made;
}

/* ---- the list (under the mutex) -------------------------------------------------------------- */

static struct session *find(struct sessions *all, const char *key, const char *id) {
    struct session *k = all->first;
    while (k && (strcmp(k->id, id) != 0 || strcmp(k->key, key) != 0))
        k = k->next;
    return k && (k->busy || left_us(k) > 0) ? k : NULL;
}

static bool not_kept(struct api_error *err, const char *id) {
    api_refuse(err, "session",
               "\"%.64s\" is not kept here: it was deleted, was not used for too long, or belongs "
               "to another key; make a new one",
               id);
    err->status = HTTP_NOT_FOUND;
    err->code = "session_not_found";
    return false;
}

/* One that no request continues; NULL with *err. */
static struct session *find_idle(struct sessions *all, const char *key, const char *id,
                                 struct api_error *err) {
    struct session *k = find(all, key, id);
    if (k && !k->busy)
        return k;
    if (!k) {
        not_kept(err, id);
        return NULL;
    }
    api_refuse(err, "session", "a request continues it: wait for its end, or fork it");
    err->status = HTTP_CONFLICT;
    err->code = "session_busy";
    return NULL;
}

static void hold(const struct sessions *all, const struct session *k) {
    if (k->pin) /* without memory its pages make room in their turn */
        (void)kvasir_engine_hold(all->o.engine, k->salt, k->tokens, k->n_tokens, NULL);
}

/* It does not hold its tokens after the first `keep` any more. Others may. */
static void release(const struct sessions *all, const struct session *k, uint32_t keep) {
    for (const struct session *o = all->first; k->pin && o; o = o->next)
        if (o != k && o->pin && strcmp(o->salt, k->salt) == 0)
            keep = max_u32(keep, common(o->tokens, o->n_tokens, k->tokens, k->n_tokens));
    if (k->pin && keep < k->n_tokens)
        (void)kvasir_engine_release(all->o.engine, k->salt, k->tokens, k->n_tokens, keep, NULL);
}

static void take_out(struct sessions *all, struct session *k) {
    struct session **at = &all->first;
    while (*at != k)
        at = &(*at)->next;
    *at = k->next;
    release(all, k, 0);
    charge_give(all->charge, k->bytes);
    all->figures.bytes -= k->bytes;
    all->figures.sessions--;
    session_free(k);
}

static void drop_old(struct sessions *all) {
    for (struct session *k = all->first, *next; k; k = next) {
        next = k->next;
        if (!k->busy && left_us(k) <= 0)
            take_out(all, k);
    }
}

static bool too_many(struct sessions *all, const char *key, struct api_error *err) {
    size_t own = 0;
    drop_old(all);
    for (const struct session *k = all->first; k; k = k->next)
        own += strcmp(k->key, key) == 0;
    if (own < SESSIONS_OF_KEY && all->figures.sessions < SESSIONS_MAX)
        return false;
    if (own >= SESSIONS_OF_KEY)
        api_refuse(err, NULL, "this key has %zu sessions, the most: delete one", own);
    else
        api_refuse(err, NULL, "this server has %d sessions, the most: try again later",
                   SESSIONS_MAX);
    err->status = HTTP_TOO_MANY_REQUESTS;
    err->code = "too_many_sessions";
    return true;
}

static bool no_room(struct api_error *err) {
    api_refuse(err, NULL, "there is no memory for this session: delete others, or try again later");
    err->status = HTTP_TOO_MANY_REQUESTS;
    err->code = "too_many_sessions";
    return false;
}

/* Charges what it has become. False: it does not fit. */
static bool recharge(struct sessions *all, struct session *k) {
    const size_t now = bytes_of(k), before = k->bytes, more = now > before ? now - before : 0;
    if (more && (all->figures.bytes + more > all->o.max_bytes || !charge_take(all->charge, more)))
        return false;
    if (now < before)
        charge_give(all->charge, before - now);
    all->figures.bytes = all->figures.bytes - before + now;
    k->bytes = now;
    return true;
}

/* Takes k. False with *err: it is gone. */
static bool add(struct sessions *all, struct session *k, struct api_error *err) {
    if (!recharge(all, k)) {
        session_free(k);
        return no_room(err);
    }
    struct session **end = &all->first;
    while (*end)
        end = &(*end)->next;
    *end = k;
    all->figures.sessions++;
    hold(all, k);
    return true;
}

/* ---- requests that make or continue one ------------------------------------------------------ */

static bool room(void *user, struct api_error *err) {
    const struct session_user *u = user;
    pthread_mutex_lock(&u->all->mutex);
    const bool good = !too_many(u->all, u->key, err);
    pthread_mutex_unlock(&u->all->mutex);
    return good;
}

/* mem_free */
static char *text_of(json_t *value) {
    return json_dumps(value, JSON_COMPACT);
}

static bool add_turn(struct session *k) {
    if (!k->messages)
        return true;
    if (!ARRAY_GROW(k->turns, k->turns_cap, k->n_turns + 1))
        return false;
    k->turns[k->n_turns++] = (struct turn){k->messages, k->n_tokens};
    return true;
}

/* With an id of its own, and copies of key, salt and tokens. Takes body. NULL: out of memory. */
static struct session *session_new(const char *key, const char *salt, char *body,
                                   const int32_t *tokens, size_t n) {
    struct session *k = mem_calloc(1, sizeof *k);
    if (!k) {
        mem_free(body);
        return NULL;
    }
    k->key = mem_strdup(key);
    k->salt = mem_strdup(salt);
    k->body = body;
    k->tokens = copy_tokens(tokens, n);
    k->n_tokens = (uint32_t)n;
    k->created_s = (int64_t)time(NULL);
    k->used_us = metrics_now_us();
    if (k->key && k->salt && k->body && k->tokens && has_id(k))
        return k;
    session_free(k);
    return NULL;
}

static struct session *session_make(const struct session_user *u, const struct api_request *r) {
    const kvasir_request *e = &r->engine;
    json_t *body = r->session.state.body;
    struct session *k = session_new(u->key, e->salt, text_of(body), e->tokens, e->n_tokens);
    if (!k)
        return NULL;
    k->messages = (uint32_t)json_array_size(json_object_get(body, "messages"));
    k->ttl_s = r->session.ttl_s;
    k->pin = r->session.pin;
    if (add_turn(k))
        return k;
    session_free(k);
    return NULL;
}

static json_t *create(void *user, const struct api_request *r, struct api_error *err) {
    const struct session_user *u = user;
    struct charge *before = charge_enter(NULL); /* it outlives the request */
    struct session *k = session_make(u, r);
    json_t *made = NULL;
    pthread_mutex_lock(&u->all->mutex);
    if (!k)
        (void)api_no_memory(err);
    else if (too_many(u->all, u->key, err))
        session_free(k);
    else if (add(u->all, k, err))
        made = viewed(view(u->all, k), err);
    pthread_mutex_unlock(&u->all->mutex);
    charge_leave(before);
    return made;
}

static bool take(void *user, const char *id, struct session_state *out, struct api_error *err) {
    struct session_user *u = user;
    char *body = NULL;
    *out = (struct session_state){0};
    ASSERT(!*u->id);
    pthread_mutex_lock(&u->all->mutex);
    struct session *k = find_idle(u->all, u->key, id, err);
    if (k) {
        k->busy = true;
        memcpy(u->id, k->id, sizeof u->id);
        body = mem_strdup(k->body);
        out->tokens = copy_tokens(k->tokens, k->n_tokens);
        out->n_tokens = k->n_tokens;
    }
    pthread_mutex_unlock(&u->all->mutex);
    const bool good =
        body && out->tokens &&
        json_load_request(body, strlen(body), JSON_ALLOW_NUL, &out->body, NULL) == KVASIR_OK;
    mem_free(body);
    if (good)
        return true;
    session_state_free(out);
    return k && api_no_memory(err);
}

/* It is what it was, with another end: what earlier turns still have of their tokens. */
static bool become(struct sessions *all, struct session *k, const struct session_state *now) {
    const uint32_t n = (uint32_t)now->n_tokens,
                   same = common(k->tokens, k->n_tokens, now->tokens, n);
    char *body = text_of(now->body);
    int32_t *tokens = copy_tokens(now->tokens, n);
    if (!body || !tokens) {
        mem_free(body);
        mem_free(tokens);
        return false;
    }
    release(all, k, same);
    mem_free(k->body);
    mem_free(k->tokens);
    k->body = body;
    k->tokens = tokens;
    k->n_tokens = n;
    k->messages = (uint32_t)json_array_size(json_object_get(now->body, "messages"));
    for (size_t i = 0; i < k->n_turns; i++)
        k->turns[i].tokens = min_u32(k->turns[i].tokens, same);
    const bool good = add_turn(k) && recharge(all, k);
    hold(all, k);
    return good;
}

static void save(void *user, const struct session_state *now) {
    struct session_user *u = user;
    struct charge *before = charge_enter(NULL);
    pthread_mutex_lock(&u->all->mutex);
    struct session *k = *u->id ? find(u->all, u->key, u->id) : NULL; /* it may be deleted */
    if (k && !(now && become(u->all, k, now)))
        take_out(u->all, k);
    pthread_mutex_unlock(&u->all->mutex);
    charge_leave(before);
}

void session_user_begin(struct session_user *u, struct sessions *all, const char *key,
                        bool may_pin) {
    *u = (struct session_user){
        .store = {u, all->o.max_ttl_s, may_pin, room, take, create, save}, .all = all, .key = key};
}

void session_user_end(struct session_user *u) {
    if (!*u->id)
        return;
    pthread_mutex_lock(&u->all->mutex);
    struct session *k = find(u->all, u->key, u->id);
    if (k) {
        k->busy = false;
        k->used_us = metrics_now_us();
    }
    pthread_mutex_unlock(&u->all->mutex);
    *u->id = 0;
}

/* ---- asked by clients ------------------------------------------------------------------------ */

json_t *sessions_get(struct sessions *all, const char *key, const char *id, struct api_error *err) {
    char *body = NULL;
    json_t *made = NULL, *kept = NULL;
    pthread_mutex_lock(&all->mutex);
    const struct session *k = find(all, key, id);
    if (k) {
        made = view(all, k);
        body = mem_strdup(k->body);
    }
    pthread_mutex_unlock(&all->mutex);
    if (!k) {
        not_kept(err, id);
        return NULL;
    }
    bool good = made && body && (kept = json_loads(body, JSON_ALLOW_NUL, NULL)) != NULL;
    json_t *messages = json_object_get(kept, "messages");
    good = good && (!messages || json_object_set(made, "messages", messages) == 0);
    json_decref(kept);
    mem_free(body);
    if (!good) {
        json_decref(made);
        made = NULL;
    }
    return viewed(made, err);
}

json_t *sessions_list(struct sessions *all, const char *key, struct api_error *err) {
    json_t *data = json_array();
    pthread_mutex_lock(&all->mutex);
    drop_old(all);
    for (const struct session *k = all->first; data && k; k = k->next)
        if (strcmp(k->key, key) == 0 && json_array_append_new(data, view(all, k)) != 0) {
            json_decref(data);
            data = NULL;
        }
    pthread_mutex_unlock(&all->mutex);
    return viewed(json_pack("{s:s, s:o, s:b}", "object", "list", "data", data, "has_more", 0), err);
}

/* Whether it may be changed so; *err: why not. */
static bool check_change(const struct session *k, const struct session_change *c,
                         struct api_error *err) {
    if (c->messages && !k->messages)
        return api_refuse(err, "messages", "this is a text's session: say how many \"tokens\"");
    if (c->tokens && k->messages)
        return api_refuse(err, "tokens", "this is a chat's session: say how many \"messages\"");
    if (c->messages > k->messages)
        return api_refuse(err, "messages", "%lld of %u messages cannot be kept",
                          (long long)c->messages, k->messages);
    return c->tokens <= k->n_tokens || api_refuse(err, "tokens", "%lld of %u tokens cannot be kept",
                                                  (long long)c->tokens, k->n_tokens);
}

/* The body with so many messages only. */
static bool cut_body(struct session *k, uint32_t messages) {
    json_t *body = json_loads(k->body, JSON_ALLOW_NUL, NULL),
           *all = json_object_get(body, "messages");
    while (json_array_size(all) > messages)
        (void)json_array_remove(all, json_array_size(all) - 1);
    char *text = body ? text_of(body) : NULL;
    json_decref(body);
    if (!text)
        return false;
    mem_free(k->body);
    k->body = text;
    k->messages = messages;
    return true;
}

/* How many tokens the first messages are sure to be: those of the last request that ended there or
 * before. */
static uint32_t cut_turns(struct session *k, uint32_t messages) {
    while (k->n_turns && k->turns[k->n_turns - 1].messages > messages)
        k->n_turns--;
    return k->n_turns ? k->turns[k->n_turns - 1].tokens : 0;
}

/* Under the mutex, of a session that is in the list; check_change was true. */
static bool change(struct sessions *all, struct session *k, const struct session_change *c) {
    uint32_t n = c->tokens ? (uint32_t)c->tokens : k->n_tokens;
    if (c->messages && c->messages < k->messages) {
        if (!cut_body(k, (uint32_t)c->messages))
            return false;
        n = cut_turns(k, k->messages);
    }
    if (c->pin == 0 || n < k->n_tokens)
        release(all, k, c->pin == 0 ? 0 : n);
    int32_t *less = mem_realloc(k->tokens, n + 1, sizeof *less);
    k->tokens = less ? less : k->tokens;
    k->n_tokens = n;
    k->pin = c->pin < 0 ? k->pin : c->pin;
    k->ttl_s = c->ttl_s ? (uint32_t)c->ttl_s : k->ttl_s;
    k->used_us = metrics_now_us();
    if (c->pin > 0)
        hold(all, k);
    const bool fits = recharge(all, k); /* it is no longer than it was */
    ASSERT(fits);
    (void)fits;
    return true;
}

json_t *sessions_change(struct sessions *all, const char *key, const char *id,
                        const struct session_change *c, struct api_error *err) {
    json_t *made = NULL;
    struct charge *before = charge_enter(NULL);
    pthread_mutex_lock(&all->mutex);
    struct session *k = find_idle(all, key, id, err);
    if (k && check_change(k, c, err))
        made = viewed(change(all, k, c) ? view(all, k) : NULL, err);
    pthread_mutex_unlock(&all->mutex);
    charge_leave(before);
    return made;
}

static struct session *session_copy(const struct session *from) {
    struct session *k =
        session_new(from->key, from->salt, mem_strdup(from->body), from->tokens, from->n_tokens);
    if (!k)
        return NULL;
    memcpy(k->parent, from->id, sizeof k->parent);
    k->messages = from->messages;
    k->ttl_s = from->ttl_s;
    k->pin = from->pin;
    if (from->n_turns && !ARRAY_GROW(k->turns, k->turns_cap, from->n_turns)) {
        session_free(k);
        return NULL;
    }
    if (from->n_turns)
        memcpy(k->turns, from->turns, from->n_turns * sizeof *k->turns);
    k->n_turns = from->n_turns;
    return k;
}

json_t *sessions_fork(struct sessions *all, const char *key, const char *id,
                      const struct session_change *c, struct api_error *err) {
    json_t *made = NULL;
    struct charge *before = charge_enter(NULL);
    pthread_mutex_lock(&all->mutex);
    const bool full = too_many(all, key, err); /* before it is found: the old ones leave */
    const struct session *from = full ? NULL : find(all, key, id);
    if (!full && !from)
        not_kept(err, id);
    if (from && check_change(from, c, err)) {
        struct session *k = session_copy(from);
        if (!k)
            (void)api_no_memory(err);
        else if (add(all, k, err)) {
            made = viewed(change(all, k, c) ? view(all, k) : NULL, err);
            if (!made)
                take_out(all, k);
        }
    }
    pthread_mutex_unlock(&all->mutex);
    charge_leave(before);
    return made;
}

bool sessions_forget(struct sessions *all, const char *key, const char *id, struct api_error *err) {
    pthread_mutex_lock(&all->mutex);
    struct session *k = find(all, key, id);
    if (k)
        take_out(all, k);
    pthread_mutex_unlock(&all->mutex);
    return k || not_kept(err, id);
}

/* ---- all ------------------------------------------------------------------------------------- */

struct sessions *sessions_create(const struct sessions_options *o) {
    struct sessions *all = mem_calloc(1, sizeof *all);
    if (!all || !(all->charge = charge_create(o->account, NULL))) {
        mem_free(all);
        return NULL;
    }
    all->o = *o;
    pthread_mutex_init(&all->mutex, NULL);
    return all;
}

void sessions_destroy(struct sessions *all) {
    if (!all)
        return;
    while (all->first)
        take_out(all, all->first);
    charge_unref(all->charge);
    pthread_mutex_destroy(&all->mutex);
    mem_free(all);
}

void sessions_tick(struct sessions *all) {
    if (!all)
        return;
    pthread_mutex_lock(&all->mutex);
    drop_old(all);
    pthread_mutex_unlock(&all->mutex);
}

struct sessions_figures sessions_figures(struct sessions *all) {
    if (!all)
        return (struct sessions_figures){0};
    pthread_mutex_lock(&all->mutex);
    const struct sessions_figures f = all->figures;
    pthread_mutex_unlock(&all->mutex);
    return f;
}
