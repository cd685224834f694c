/* SPDX-License-Identifier: Apache-2.0 */
/* routes.c: what each path does, and who may use it.
 *
 *     origin -> key -> path -> method -> draining? -> route
 *
 * If the server has keys, every route but those marked ANYONE needs one, and so do unknown paths.
 * Websites cannot use a server that their visitor can reach (origin.c). Keys are compared in a time
 * that depends only on what the client sent.
 */
#include "api/api.h"
#include "server/page.h"
#include "server/server_internal.h"
#include "server/status_json.h"
#include "server/text_task.h"
#include "util/near.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum access { ANYONE, KEY, ADMIN };

struct route {
    const char *method, *path; /* a path that ends in '/' matches all that begin with it */
    const char *name;
    enum access access;
    enum http_step (*run)(struct server *s, struct http_exchange *exchange,
                          const struct route *route, const struct tenant *tenant);
    const struct protocol *protocol; /* of its errors, too; NULL: OpenAI's */
    const struct text_kind *text;    /* run_text's */
};
static const struct protocol *protocol_of(const struct http_exchange *exchange);
static const char *near_path(const char *path);

/* ---- keys ------------------------------------------------------------------------------------ */

static const char *given_key(const struct http_exchange *exchange) {
    const char *bearer = http_header(exchange, "Authorization"),
               *key = http_header(exchange, "X-Api-Key");
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0)
        return bearer + 7 + strspn(bearer + 7, " ");
    return key ? key : "";
}

/* False: no key, or an unknown one. */
static bool find_tenant(struct server *s, const struct http_exchange *exchange,
                        struct tenant *out) {
    const struct server_options *o = &s->options;
    const char *given = given_key(exchange);
    struct account_view found;
    const bool is_key = accounts_find(s->accounts, given, &found);
    const bool is_admin = o->admin_key && account_same_key(given, o->admin_key);
    if (!is_key || is_admin)
        accounts_other(s->accounts, &found);
    *out = (struct tenant){.key = is_admin ? o->admin_key : found.key,
                           .number = found.number,
                           .weight = found.weight,
                           .account = found.account,
                           .share = found.share,
                           .expired = found.expires_s && time(NULL) >= found.expires_s,
                           .admin = is_admin || (!o->admin_key && !s->needs_key)};
    out->sees_all =
        out->admin || !s->needs_key || (!o->admin_key && accounts_count(s->accounts) == 1);
    return (is_key && !out->expired) || out->admin || !s->needs_key;
}

/* ---- routes ---------------------------------------------------------------------------------- */

static enum http_step refuse(struct server *s, struct http_exchange *exchange, int status,
                             const char *text) {
    struct api_error err;
    api_refuse(&err, NULL, "%s", text);
    err.status = status;
    err.code = status == HTTP_UNAUTHORIZED ? "invalid_api_key" : NULL;
    return reply_error(s, exchange, protocol_of(exchange), &err);
}

static enum http_step not_found(struct server *s, struct http_exchange *exchange) {
    char path[160], text[320];
    const char *near = near_path(exchange->path);
    snprintf(text, sizeof text, "not found: %.16s %s%s%s%s", exchange->method,
             log_visible(exchange->path, path, sizeof path), near ? ": did you mean " : "",
             near ? near : "", near ? "?" : "");
    return refuse(s, exchange, HTTP_NOT_FOUND, text);
}

static enum http_step run_job(struct server *s, struct http_exchange *exchange,
                              const struct route *r, const struct tenant *t) {
    return job_begin(s, exchange, r->protocol, t);
}

/* m: the model that it is about; NULL: it is not loaded, or it is about the server. */
static struct server_figures figures(struct server *s, const struct served *m) {
    const struct kept_figures kept = kept_figures(s->kept);
    const struct sessions_figures sessions = sessions_figures(s->sessions);
    struct server_figures f = {.model = m ? m->options->model_name : s->options.model_name,
                               .created_s = s->started_s,
                               .connections = http_connections(s->http),
                               .unread = work_pool_waiting(s->work),
                               .requests = mem_account_figures(&s->requests),
                               .warm = warm_figures(s->warm),
                               .traces = otlp_figures(s->otlp),
                               .kept_responses = kept.responses,
                               .kept_bytes = kept.bytes,
                               .sessions = sessions.sessions,
                               .session_bytes = sessions.bytes};
    if (m)
        f.grammars = grammar_cache_figures(m->grammars);
    metrics_figures(m ? m->metrics : s->metrics, m ? m->engine : NULL, metrics_now_us(), &f);
    return f;
}

/* Of several models: f->models, to be freed. False: out of memory. */
static bool add_models(struct server *s, struct server_figures *f) {
    if (s->one)
        return true;
    const size_t n = served_count(s);
    struct model_figures *all = mem_calloc(n, sizeof *all);
    for (size_t i = 0; all && i < n; i++) {
        const struct server_model *spec = &s->many->models.items[i];
        struct served *m = served_peek(s, i);
        all[i] = (struct model_figures){.name = spec->name,
                                        .first = i == s->many->models.first,
                                        .pinned = spec->pinned,
                                        .max_model_len = m ? m->setup.ctx : 0};
        served_give(m);
        model_set_view(s->many->set, i, &all[i].view);
    }
    f->models = all;
    f->n_models = all ? n : 0;
    return all != NULL;
}

static void free_models(const struct server_figures *f) {
    mem_free((void *)(uintptr_t)f->models);
}

/* What a GET is about. */
struct asked {
    struct served *m; /* a lease; NULL: it is not loaded */
    const char *name; /* as clients see it */
};

/* The model of ?model=, else the default, or another if only that is loaded. False: there is no
 * such model, *step is the reply. */
static bool asked_model(struct server *s, struct http_exchange *exchange, struct asked *out,
                        enum http_step *step) {
    char name[HTTP_PARAM_MAX], value[HTTP_PARAM_MAX];
    const char *query = exchange->query, *wanted = NULL;
    struct api_error err;
    while (!wanted && http_query_next(&query, name, value) == HTTP_PARAM_NEXT)
        wanted = strcmp(name, "model") == 0 ? value : NULL;
    if (!served_peek_name(s, wanted, &out->m, &out->name)) {
        (void)served_unknown(s, wanted, &err);
        *step = reply_error(s, exchange, protocol_of(exchange), &err);
        return false;
    }
    return true;
}

/* Figures of the tenant, or of all if it may see them: f->tenants, to be freed. NULL: out of
 * memory, or the server has no keys. */
static struct tenant_figures *add_tenants(struct server *s, const struct tenant *t,
                                          struct server_figures *f) {
    f->own = !t->sees_all;
    struct tenant_figures *items =
        s->needs_key
            ? accounts_figures(s->accounts, f->own ? t->account : NULL, &s->requests, &f->n_tenants)
            : NULL;
    ASSERT(!f->own || !items || f->n_tenants == 1);
    f->tenants = items;
    return items;
}

static enum http_step reply_status(struct server *s, struct http_exchange *exchange,
                                   const struct tenant *t,
                                   json_t *(*status)(const struct server_figures *f)) {
    struct asked asked;
    enum http_step step;
    if (!asked_model(s, exchange, &asked, &step))
        return step;
    struct server_figures f = figures(s, asked.m);
    f.model = asked.name;
    served_give(asked.m);
    struct tenant_figures *tenants = add_tenants(s, t, &f);
    const bool good = add_models(s, &f) && (tenants || !s->needs_key);
    json_t *body = good ? status(&f) : NULL;
    mem_free(tenants);
    free_models(&f);
    return reply_json(s, exchange, HTTP_OK, body);
}

#define DEFINE_STATUS(name)                                                                        \
    static enum http_step run_##name(struct server *s, struct http_exchange *exchange,             \
                                     const struct route *r, const struct tenant *t) {              \
        (void)r;                                                                                   \
        return reply_status(s, exchange, t, status_##name);                                        \
    }
DEFINE_STATUS(now)
DEFINE_STATUS(cache_stats)

static enum http_step reply_list(struct server *s, struct http_exchange *exchange,
                                 json_t *(*list)(const struct server_figures *f)) {
    struct server_figures f = figures(s, s->one);
    json_t *body = add_models(s, &f) ? list(&f) : NULL;
    free_models(&f);
    return reply_json(s, exchange, HTTP_OK, body);
}

static enum http_step run_models(struct server *s, struct http_exchange *exchange,
                                 const struct route *r, const struct tenant *t) {
    (void)r, (void)t;
    return reply_list(s, exchange, status_models);
}

/* Why the server accepts no requests any more; NULL: it does. */
static const char *closed_why(const struct server *s) {
    if (atomic_load(&s->model_lost))
        return "the model's files were changed while they were in use: the server is shutting down";
    return atomic_load(&s->draining) ? "the server is shutting down" : NULL;
}

/* Whether the only model's device runs nothing any more. */
static bool device_is_lost(const struct server *s, kvasir_error *why) {
    return s->one && kvasir_engine_get_error(s->one->engine, why) != KVASIR_OK;
}

static enum http_step run_health(struct server *s, struct http_exchange *exchange,
                                 const struct route *r, const struct tenant *t) {
    const bool closed = closed_why(s) != NULL;
    kvasir_error lost;
    (void)r, (void)t;
    if (device_is_lost(s, &lost))
        return reply_json(s, exchange, HTTP_UNAVAILABLE,
                          json_pack("{s:s, s:s}", "status",
                                    s->options.mlx_health ? "unavailable" : "unhealthy", "error",
                                    lost.text));
    if (s->options.mlx_health)
        return reply_json(s, exchange, closed ? HTTP_UNAVAILABLE : HTTP_OK,
                          json_pack("{s:s}", "status", closed ? "unavailable" : "ok"));
    return reply_list(s, exchange, status_health);
}

static enum http_step run_model(struct server *s, struct http_exchange *exchange,
                                const struct route *r, const struct tenant *t) {
    const char *name = exchange->path + strlen("/v1/models/");
    const size_t i = s->many                                    ? model_set_find(s->many->set, name)
                     : strcmp(name, s->options.model_name) == 0 ? 0
                                                                : MODEL_NONE;
    struct api_error err;
    (void)r, (void)t;
    if (i == MODEL_NONE) {
        (void)served_unknown(s, name, &err);
        return reply_error(s, exchange, protocol_of(exchange), &err);
    }
    struct server_figures f = figures(s, s->one);
    json_t *body = add_models(s, &f) ? status_model(&f, i) : NULL;
    free_models(&f);
    return reply_json(s, exchange, HTTP_OK, body);
}

/* Of several models: what the tenant may see of f, the server's own, with pages of those that are
 * loaded. mem_free; NULL: out of memory. */
static char *pages_text(struct server *s, struct server_figures *f, size_t *len) {
    const size_t most = served_count(s) + 1;
    char **pages = mem_calloc(most, sizeof *pages), *text = NULL;
    const char **names = mem_calloc(most, sizeof *names);
    bool good = pages && names;
    size_t n = 0, page_len;
    for (size_t i = 0; good && !f->own && i + 1 < most; i++) {
        struct served *m = served_peek(s, i);
        if (!m)
            continue;
        struct server_figures of = figures(s, m);
        of.part = METRICS_OF_MODEL;
        f->cpu_tier = of.cpu_tier;
        pages[n] = metrics_text(m->metrics, &of, &page_len);
        names[n] = s->many->models.items[i].name;
        served_give(m);
        good = pages[n++] != NULL;
    }
    f->part = METRICS_OF_SERVER;
    good = good && (pages[n++] = metrics_text(s->metrics, f, &page_len)) != NULL;
    text = good ? metrics_join(pages, names, n, len) : NULL;
    for (size_t i = 0; pages && i < most; i++)
        mem_free(pages[i]);
    mem_free(pages);
    mem_free(names);
    return text;
}

static enum http_step run_metrics(struct server *s, struct http_exchange *exchange,
                                  const struct route *r, const struct tenant *t) {
    const struct http_reply reply = reply_head(s, exchange, HTTP_OK, METRICS_CONTENT_TYPE);
    struct server_figures f = figures(s, s->one);
    size_t len;
    char *text = NULL;
    struct tenant_figures *tenants = add_tenants(s, t, &f);
    const bool good = add_models(s, &f) && (tenants || !s->needs_key);
    (void)r;
    if (good)
        text = s->one ? metrics_text(s->metrics, &f, &len) : pages_text(s, &f, &len);
    mem_free(tenants);
    free_models(&f);
    return text ? http_reply_take(exchange, &reply, text, len)
                : refuse(s, exchange, HTTP_SERVER_ERROR, "out of memory");
}

static enum http_step run_page(struct server *s, struct http_exchange *exchange,
                               const struct route *r, const struct tenant *t) {
    struct http_reply reply = reply_head(s, exchange, HTTP_OK, SERVER_PAGE_TYPE);
    (void)r, (void)t;
    http_reply_header(&reply, "Content-Security-Policy", server_page_policy());
    return http_reply_static(exchange, &reply, SERVER_PAGE, SERVER_PAGE_LEN);
}

static struct api_model about_model(const struct served *m) {
    struct api_model about = {
        .name = m->setup.model, .setup = &m->setup, .since_s = m->server->started_s};
    kvasir_model_get_info(m->model, &about.info);
    return about;
}

/* One of several. *m: what is to be given back, when the description is not used any more. */
static struct api_model about_one_of(struct server *s, size_t i, struct served **m) {
    struct model_view view;
    *m = served_peek(s, i);
    model_set_view(s->many->set, i, &view);
    struct api_model about = {.since_s = s->started_s};
    if (*m)
        about = about_model(*m);
    about.name = s->many->models.items[i].name;
    about.file_bytes = s->many->models.items[i].file_bytes;
    about.state = model_state_text(view.state);
    return about;
}

/* Of all, or of those that are loaded, what `list` makes of them. */
static json_t *list_models(struct server *s, bool loaded_only,
                           json_t *(*list)(const struct api_model *models, size_t n)) {
    if (s->one) {
        const struct api_model about = about_model(s->one);
        return list(&about, 1);
    }
    const size_t all = served_count(s);
    struct api_model *about = mem_calloc(all, sizeof *about);
    struct served **served = mem_calloc(all, sizeof(struct served *));
    size_t n = 0;
    for (size_t i = 0; about && served && i < all; i++) {
        about[n] = about_one_of(s, i, &served[i]);
        n += served[i] || !loaded_only;
    }
    json_t *body = about && served ? list(about, n) : NULL;
    for (size_t i = 0; served && i < all; i++)
        served_give(served[i]);
    mem_free(about);
    mem_free(served);
    return body;
}

static enum http_step run_ollama_tags(struct server *s, struct http_exchange *exchange,
                                      const struct route *r, const struct tenant *t) {
    (void)r, (void)t;
    return reply_json(s, exchange, HTTP_OK, list_models(s, false, ollama_tags));
}

static enum http_step run_ollama_ps(struct server *s, struct http_exchange *exchange,
                                    const struct route *r, const struct tenant *t) {
    (void)r, (void)t;
    return reply_json(s, exchange, HTTP_OK, list_models(s, true, ollama_ps));
}

/* A model that must be loaded; NULL: *step is the reply. */
static struct served *loaded_model(struct server *s, struct http_exchange *exchange,
                                   enum http_step *step) {
    struct asked asked;
    if (!asked_model(s, exchange, &asked, step))
        return NULL;
    if (!asked.m)
        *step = refuse(s, exchange, HTTP_UNAVAILABLE,
                       "the model is not loaded: the first request for an answer loads it; "
                       "?model=NAME asks about another");
    return asked.m;
}

static enum http_step run_native_props(struct server *s, struct http_exchange *exchange,
                                       const struct route *r, const struct tenant *t) {
    enum http_step step;
    struct served *m = loaded_model(s, exchange, &step);
    (void)r, (void)t;
    if (!m)
        return step;
    const struct api_model about = about_model(m);
    json_t *body = native_props(&about);
    served_give(m);
    return reply_json(s, exchange, HTTP_OK, body);
}

static enum http_step run_native_slots(struct server *s, struct http_exchange *exchange,
                                       const struct route *r, const struct tenant *t) {
    enum http_step step;
    struct served *m = loaded_model(s, exchange, &step);
    (void)r;
    if (!m)
        return step;
    const struct api_model about = about_model(m);
    const size_t most = m->setup.max_choices;
    struct native_slot *busy = mem_calloc(most, sizeof *busy);
    const size_t n = busy ? jobs_running(m, t, busy, most) : 0;
    json_t *body = busy ? native_slots(&about, busy, n) : NULL;
    mem_free(busy);
    served_give(m);
    return reply_json(s, exchange, HTTP_OK, body);
}

static enum http_step run_ollama_version(struct server *s, struct http_exchange *exchange,
                                         const struct route *r, const struct tenant *t) {
    (void)r, (void)t;
    return reply_json(s, exchange, HTTP_OK, json_pack("{s:s}", "version", OLLAMA_VERSION));
}

#define TEXT_FUNCTION(name)                                                                        \
    static bool name(const struct served *m, const struct api_setup *setup, struct api_body *body, \
                     struct text_buf *out, struct api_error *err)

TEXT_FUNCTION(tokenize) {
    (void)m;
    return text_endpoint_tokenize(setup, setup->ctx, body, out, err);
}

TEXT_FUNCTION(detokenize) {
    (void)m;
    return text_endpoint_detokenize(setup, body, out, err);
}

TEXT_FUNCTION(apply_template) {
    (void)m;
    return text_endpoint_apply_template(setup, body, out, err);
}

TEXT_FUNCTION(count_tokens) {
    (void)m;
    return anthropic_count(setup, body, out, err);
}

TEXT_FUNCTION(count_input) {
    (void)m;
    return responses_count(setup, body, out, err);
}

TEXT_FUNCTION(show) {
    const struct api_model about = about_model(m);
    (void)setup;
    return ollama_show(&about, body, out, err);
}

static const struct text_kind TOKENIZE = {text_endpoint_wants, tokenize},
                              DETOKENIZE = {text_endpoint_wants, detokenize},
                              APPLY_TEMPLATE = {text_endpoint_wants, apply_template},
                              COUNT_TOKENS = {anthropic_wants, count_tokens},
                              COUNT_INPUT = {responses_wants, count_input},
                              SHOW = {ollama_wants, show};

static enum http_step run_text(struct server *s, struct http_exchange *exchange,
                               const struct route *r, const struct tenant *t) {
    return text_task_begin(s, exchange, r->name, protocol_of(exchange), r->text, t);
}

static enum http_step run_ready(struct server *s, struct http_exchange *exchange,
                                const struct route *r, const struct tenant *t) {
    const char *why = closed_why(s);
    kvasir_error lost;
    (void)r, (void)t;
    if (!why && device_is_lost(s, &lost))
        why = lost.text;
    if (why)
        return refuse(s, exchange, HTTP_UNAVAILABLE, why);
    return reply_json(s, exchange, HTTP_OK, json_pack("{s:s}", "status", "ready"));
}

static enum http_step run_version(struct server *s, struct http_exchange *exchange,
                                  const struct route *r, const struct tenant *t) {
    (void)r, (void)t;
    return reply_json(s, exchange, HTTP_OK, status_version());
}

/* DELETE /v1/requests/ID and POST /v1/requests/ID/cancel */
static enum http_step run_cancel(struct server *s, struct http_exchange *exchange,
                                 const struct route *r, const struct tenant *t) {
    (void)r;
    static const char END[] = "/cancel";
    char id[JOB_ID_MAX + sizeof END];
    snprintf(id, sizeof id, "%s", exchange->path + strlen("/v1/requests/"));
    const size_t n = strlen(id), end = sizeof END - 1;
    if (strcmp(exchange->method, "POST") == 0) {
        if (n < end || strcmp(id + n - end, END) != 0)
            return not_found(s, exchange);
        id[n - end] = 0;
    }
    if (jobs_cancel(s, t, id) == 0)
        return refuse(s, exchange, HTTP_NOT_FOUND, "no open request has this id");
    return reply_json(s, exchange, HTTP_OK,
                      json_pack("{s:s, s:s, s:b, s:s}", "object", "request.cancel", "id", id,
                                "cancelled", 1, "model", s->options.model_name));
}

static enum http_step run_forget(struct server *s, struct http_exchange *exchange,
                                 const struct route *r, const struct tenant *t) {
    (void)r;
    return forget_begin(s, exchange, t);
}

static enum http_step run_explain(struct server *s, struct http_exchange *exchange,
                                  const struct route *r, const struct tenant *t) {
    return strcmp(r->method, "POST") == 0 ? explain_begin(s, exchange, t)
                                          : explain_recent(s, exchange, t);
}

/* GET and DELETE /v1/responses/ID, and GET /v1/responses/ID/input_items */
static enum http_step run_response(struct server *s, struct http_exchange *exchange,
                                   const struct route *r, const struct tenant *t) {
    static const char END[] = "/input_items";
    const bool forget = strcmp(r->method, "DELETE") == 0;
    char id[JOB_ID_MAX + sizeof END];
    snprintf(id, sizeof id, "%s", exchange->path + strlen("/v1/responses/"));
    const size_t n = strlen(id), end = sizeof END - 1;
    const bool input = !forget && n > end && strcmp(id + n - end, END) == 0;
    if (input)
        id[n - end] = 0;
    bool found = false;
    char *text = NULL;
    if (s->kept && forget)
        found = kept_forget(s->kept, t->key, id);
    else if (s->kept)
        text = kept_text(s->kept, t->key, id, input, &found);
    if (!found)
        return refuse(s, exchange, HTTP_NOT_FOUND,
                      "no response with this id is kept: it was not stored, was deleted, is too "
                      "old, or belongs to another key");
    if (forget)
        return reply_json(
            s, exchange, HTTP_OK,
            json_pack("{s:s, s:s, s:b}", "id", id, "object", "response", "deleted", 1));
    if (text && !input)
        return reply_text(s, exchange, HTTP_OK, text);
    json_t *items = text ? json_loads(text, JSON_ALLOW_NUL, NULL) : NULL;
    mem_free(text);
    return reply_json(s, exchange, HTTP_OK,
                      json_pack("{s:s, s:o, s:b}", "object", "list", "data", items, "has_more", 0));
}

static enum http_step run_session(struct server *s, struct http_exchange *exchange,
                                  const struct route *r, const struct tenant *t) {
    (void)r;
    return session_answer(s, exchange, t);
}

static const struct route ROUTES[] = {
    {"POST", "/v1/chat/completions", "chat", KEY, run_job, &PROTOCOL_CHAT, NULL},
    {"POST", "/chat/completions", "chat", KEY, run_job, &PROTOCOL_CHAT,
     NULL}, /* mlx_lm.server's second name */
    {"POST", "/v1/completions", "completions", KEY, run_job, &PROTOCOL_COMPLETIONS, NULL},
    {"POST", "/v1/embeddings", "embeddings", KEY, run_job, &PROTOCOL_EMBEDDINGS, NULL},
    {"POST", "/api/embed", "ollama_embed", KEY, run_job, &PROTOCOL_OLLAMA_EMBED, NULL},
    {"POST", "/api/embeddings", "ollama_embeddings", KEY, run_job, &PROTOCOL_OLLAMA_EMBEDDINGS,
     NULL},
    {"POST", "/v1/rerank", "rerank", KEY, run_job, &PROTOCOL_RERANK, NULL},
    {"POST", "/rerank", "rerank", KEY, run_job, &PROTOCOL_RERANK, NULL}, /* llama-server's */
    {"POST", "/v1/messages", "messages", KEY, run_job, &PROTOCOL_MESSAGES, NULL},
    {"POST", "/v1/messages/count_tokens", "count_tokens", KEY, run_text, &PROTOCOL_MESSAGES,
     &COUNT_TOKENS},
    {"POST", "/v1/responses", "responses", KEY, run_job, &PROTOCOL_RESPONSES, NULL},
    {"POST", "/v1/responses/input_tokens", "input_tokens", KEY, run_text, &PROTOCOL_RESPONSES,
     &COUNT_INPUT},
    {"GET", "/v1/responses/", "response", KEY, run_response, NULL, NULL},
    {"DELETE", "/v1/responses/", "response", KEY, run_response, NULL, NULL},
    {"POST", "/v1/sessions", "sessions", KEY, run_job, &PROTOCOL_SESSIONS, NULL},
    {"GET", "/v1/sessions", "session", KEY, run_session, NULL, NULL},
    {"GET", "/v1/sessions/", "session", KEY, run_session, NULL, NULL},
    {"PATCH", "/v1/sessions/", "session", KEY, run_session, NULL, NULL},
    {"DELETE", "/v1/sessions/", "session", KEY, run_session, NULL, NULL},
    {"POST", "/v1/sessions/", "session", KEY, run_session, NULL, NULL},
    {"POST", "/tokenize", "tokenize", KEY, run_text, NULL, &TOKENIZE},
    {"POST", "/detokenize", "detokenize", KEY, run_text, NULL, &DETOKENIZE},
    {"POST", "/apply-template", "apply_template", KEY, run_text, NULL, &APPLY_TEMPLATE},
    {"POST", "/api/chat", "ollama_chat", KEY, run_job, &PROTOCOL_OLLAMA_CHAT, NULL},
    {"POST", "/api/generate", "ollama_generate", KEY, run_job, &PROTOCOL_OLLAMA_GENERATE, NULL},
    {"POST", "/api/show", "ollama_show", KEY, run_text, &PROTOCOL_OLLAMA_CHAT, &SHOW},
    {"GET", "/api/tags", "ollama_tags", KEY, run_ollama_tags, &PROTOCOL_OLLAMA_CHAT, NULL},
    {"GET", "/api/ps", "ollama_ps", KEY, run_ollama_ps, &PROTOCOL_OLLAMA_CHAT, NULL},
    {"GET", "/api/version", "ollama_version", KEY, run_ollama_version, &PROTOCOL_OLLAMA_CHAT, NULL},
    {"POST", "/completion", "completion", KEY, run_job, &PROTOCOL_NATIVE, NULL},
    {"POST", "/completions", "completion", KEY, run_job, &PROTOCOL_NATIVE, NULL},
    {"POST", "/infill", "infill", KEY, run_job, &PROTOCOL_INFILL, NULL},
    {"GET", "/props", "props", KEY, run_native_props, &PROTOCOL_NATIVE, NULL},
    {"GET", "/slots", "slots", KEY, run_native_slots, &PROTOCOL_NATIVE, NULL},
    {"GET", "/v1/models", "models", KEY, run_models, NULL, NULL},
    {"GET", "/v1/models/", "models", KEY, run_model, NULL, NULL},
    {"DELETE", "/v1/requests/", "cancel", KEY, run_cancel, NULL, NULL},
    {"POST", "/v1/requests/", "cancel", KEY, run_cancel, NULL, NULL},
    {"DELETE", "/v1/cache", "forget", ADMIN, run_forget, NULL, NULL},
    {"DELETE", "/v1/cache/prefix", "forget", ADMIN, run_forget, NULL, NULL},
    {"GET", "/v1/cache/stats", "cache_stats", KEY, run_cache_stats, NULL, NULL},
    {"GET", "/v1/cache/explain", "explain", KEY, run_explain, NULL, NULL},
    {"POST", "/v1/cache/explain", "explain", KEY, run_explain, NULL, NULL},
    {"GET", "/v1/status", "status", KEY, run_now, NULL, NULL},
    {"GET", "/metrics", "metrics", KEY, run_metrics, NULL, NULL},
    {"GET", "/", "page", ANYONE, run_page, NULL, NULL},
    {"GET", "/health", "health", ANYONE, run_health, NULL, NULL},
    {"GET", "/ready", "ready", ANYONE, run_ready, NULL, NULL},
    {"GET", "/version", "version", KEY, run_version, NULL, NULL},
};
enum { N_ROUTES = sizeof ROUTES / sizeof *ROUTES };

static bool has_path(const struct route *r, const char *path) {
    const size_t n = strlen(r->path);
    if (n > 1 && r->path[n - 1] == '/')
        return strncmp(path, r->path, n) == 0 && path[n];
    return strcmp(path, r->path) == 0;
}

/* The route of path and method, or else one of the path (*allowed is false then); NULL: none. */
static const struct route *find_route(const struct http_exchange *exchange, bool *allowed) {
    const char *method = strcmp(exchange->method, "HEAD") == 0 ? "GET" : exchange->method;
    const struct route *other = NULL;
    *allowed = true;
    for (size_t i = 0; i < N_ROUTES; i++)
        if (has_path(&ROUTES[i], exchange->path)) {
            if (strcmp(ROUTES[i].method, method) == 0)
                return &ROUTES[i];
            other = &ROUTES[i];
        }
    *allowed = false;
    return other;
}

/* That of a route which may be meant; NULL: none is near. */
static const char *near_path(const char *path) {
    struct near near = {0};
    const char *twice = strncmp(path, "/v1/v1/", 7) == 0 ? path + 3 : path;
    for (size_t i = 0; i < N_ROUTES; i++)
        if (strlen(ROUTES[i].path) > strlen("/v1/"))
            near_try(&near, twice, strlen(twice), ROUTES[i].path);
    return near.typos <= 2 ? near.best : NULL;
}

const char *routes_name(const struct http_exchange *exchange) {
    bool allowed;
    const struct route *r = find_route(exchange, &allowed);
    return r ? r->name : "other";
}

/* Of the route whose path is the exchange's or a prefix of it; ollama's for what else it has;
 * OpenAI's if there is none. */
static const struct protocol *protocol_of(const struct http_exchange *exchange) {
    for (size_t i = 0; i < N_ROUTES; i++) {
        const size_t n = strlen(ROUTES[i].path);
        if (ROUTES[i].protocol && strncmp(exchange->path, ROUTES[i].path, n) == 0 &&
            (exchange->path[n] == 0 || exchange->path[n] == '/'))
            return ROUTES[i].protocol;
    }
    return strncmp(exchange->path, "/api/", strlen("/api/")) == 0 ? &PROTOCOL_OLLAMA_CHAT
                                                                  : &PROTOCOL_CHAT;
}

/* A browser asks whether another site's page may send a request. */
static enum http_step preflight(struct server *s, struct http_exchange *exchange) {
    struct http_reply r = reply_head(s, exchange, HTTP_NO_CONTENT, NULL);
    if (origin_allowed(s, exchange)) {
        http_reply_header(&r, "Access-Control-Allow-Methods", "GET, POST, PATCH, DELETE");
        http_reply_header(&r, "Access-Control-Allow-Headers", "*, Authorization");
    }
    return http_reply_static(exchange, &r, "", 0);
}

static enum http_step not_allowed(struct server *s, struct http_exchange *exchange) {
    struct api_error err;
    char methods[64] = "OPTIONS";
    size_t n = strlen(methods);
    for (size_t i = 0; i < N_ROUTES; i++)
        if (has_path(&ROUTES[i], exchange->path))
            n += (size_t)snprintf(methods + n, sizeof methods - n, ", %s%s", ROUTES[i].method,
                                  strcmp(ROUTES[i].method, "GET") == 0 ? ", HEAD" : "");
    ASSERT(n < sizeof methods);
    api_refuse(&err, NULL, "method not allowed: use %s", methods + strlen("OPTIONS, "));
    err.status = HTTP_METHOD_NOT_ALLOWED;
    return reply_error_with(s, exchange, protocol_of(exchange), &err, "Allow", methods);
}

static enum http_step begin(struct server *s, struct http_exchange *exchange, bool admin_port) {
    struct tenant tenant;
    bool allowed;
    const struct route *r = find_route(exchange, &allowed);
    char refused[320];
    if (origin_refused(s, exchange, refused, sizeof refused))
        return refuse(s, exchange, HTTP_FORBIDDEN, refused);
    if (strcmp(exchange->method, "OPTIONS") == 0)
        return preflight(s, exchange);
    if (!find_tenant(s, exchange, &tenant) && !(r && r->access == ANYONE)) {
        metrics_refused(s->metrics, REFUSED_KEY);
        return refuse(s, exchange, HTTP_UNAUTHORIZED,
                      tenant.expired         ? "the API key has expired: ask for a new one"
                      : *given_key(exchange) ? "invalid API key"
                                             : "missing API key: send it in the header "
                                               "\"Authorization: Bearer KEY\" or \"X-Api-Key\"");
    }
    if (!r)
        return not_found(s, exchange);
    if (!allowed)
        return not_allowed(s, exchange);
    if (r->access == ADMIN && !tenant.admin)
        return refuse(s, exchange, HTTP_FORBIDDEN, "only the admin key may do this");
    if (closed_why(s) && r->access != ANYONE) {
        metrics_refused(s->metrics, REFUSED_DRAINING);
        return refuse(s, exchange, HTTP_UNAVAILABLE, closed_why(s));
    }
    tenant.sees_all |= admin_port;
    return r->run(s, exchange, r, &tenant);
}

bool routes_probe(void *user, const struct http_exchange *exchange) {
    bool allowed;
    const struct route *r = find_route(exchange, &allowed);
    (void)user;
    return allowed && (r->run == run_health || r->run == run_ready || r->run == run_metrics);
}

struct charge *routes_charge(void *user, const struct http_exchange *exchange) {
    struct server *s = user;
    struct tenant tenant;
    (void)find_tenant(s, exchange, &tenant); /* an unknown key: of none */
    return charge_create(&s->requests, tenant.share);
}

uint64_t routes_body_limit(void *user, const struct http_exchange *exchange) {
    enum { SMALL = 64 << 10 }; /* of refused requests: it may come together with the headers */
    struct server *s = user;
    const uint64_t most = s->options.max_body_bytes;
    struct tenant tenant;
    bool allowed;
    const struct route *r = find_route(exchange, &allowed);
    if (r && allowed && strcmp(r->method, "POST") == 0 && !origin_refused(s, exchange, NULL, 0) &&
        find_tenant(s, exchange, &tenant))
        return most;
    return most < SMALL ? most : SMALL;
}

enum http_step routes_handle(void *user, struct http_exchange *exchange) {
    const struct task *task = exchange->user;
    return task ? task->go_on(exchange) : begin(user, exchange, false);
}

enum http_step routes_handle_admin(void *user, struct http_exchange *exchange) {
    static const char *const PATHS[] = {"/health", "/ready", "/metrics", "/v1/status"};
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; i++)
        if (strcmp(exchange->path, PATHS[i]) == 0)
            return begin(user, exchange, true);
    return refuse(user, exchange, HTTP_NOT_FOUND,
                  "the admin port has /health, /ready, /metrics and /v1/status only");
}

void routes_refuse(void *user, struct http_exchange *exchange, unsigned status, const char *why) {
    struct api_error err;
    api_refuse(&err, NULL, "%s", why);
    err.status = (int)status;
    err.code = status == HTTP_CONTENT_TOO_LARGE ? "request_too_large" : NULL;
    if (exchange->charge && charge_refusal(exchange->charge, NULL, 0) != CHARGE_FITS)
        metrics_refused(((struct server *)user)->metrics, REFUSED_MEMORY);
    reply_error_with(user, exchange, protocol_of(exchange), &err, "Connection", "close");
}
