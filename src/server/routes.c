/* SPDX-License-Identifier: Apache-2.0 */
/* routes.c: which path does what, and who may.
 *
 *     origin -> key -> path -> method -> draining? -> route
 *
 * Everything but the routes marked ANYONE asks for a key where the server has keys, paths that are
 * not there included. No site can use what listens on its visitor's machine (origin.c).
 *
 * Keys are compared in a time that depends on what was sent only.
 */
#include "api/api.h"
#include "server/page.h"
#include "server/server_internal.h"
#include "server/status.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum access { ANYONE, KEY, ADMIN };

struct route {
    const char *method, *path; /* a path that ends in '/' begins others */
    const char *name;
    enum access access;
    enum http_step (*run)(struct server *s, struct http_call *call, const struct tenant *tenant);
};

/* ---- who ------------------------------------------------------------------------------------- */

static bool same_key(const char *given, const char *key) {
    const size_t n = strlen(given), len = strlen(key);
    volatile unsigned char differ = n != len;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned char)(given[i] ^ key[len ? i % len : 0]);
    return !differ;
}

static const char *given_key(const struct http_call *call) {
    const char *bearer = http_header(call, "Authorization"), *key = http_header(call, "X-Api-Key");
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0)
        return bearer + 7 + strspn(bearer + 7, " ");
    return key ? key : "";
}

/* False: no key, or one that is unknown. */
static bool find_tenant(const struct server *s, const struct http_call *call, struct tenant *out) {
    const struct server_options *o = &s->options;
    const char *given = given_key(call);
    *out = (struct tenant){.key = ""};
    bool known = o->n_api_keys == 0;
    for (size_t i = 0; i < o->n_api_keys; i++)
        if (same_key(given, o->api_keys[i])) {
            out->key = o->api_keys[i];
            known = true;
        }
    if (o->admin_key && same_key(given, o->admin_key))
        *out = (struct tenant){.key = o->admin_key, .admin = true};
    if (!o->admin_key && o->n_api_keys == 0)
        out->admin = true; /* nobody is asked for anything */
    return known || out->admin;
}

/* ---- routes ---------------------------------------------------------------------------------- */

static enum http_step refuse(struct server *s, struct http_call *call, int status,
                             const char *text) {
    struct openai_error err;
    openai_refuse(&err, NULL, "%s", text);
    err.status = status;
    err.code = status == OPENAI_UNAUTHORIZED ? "invalid_api_key" : NULL;
    return server_reply_error(s, call, &err);
}

static enum http_step run_job(struct server *s, struct http_call *call, const struct tenant *t) {
    return job_begin(s, call, route_form(call), t);
}

static struct server_figures figures(struct server *s) {
    struct server_figures f = {.model = s->options.model_name,
                               .created_s = s->started_s,
                               .connections = http_connections(s->http)};
    metrics_figures(s->metrics, s->engine, server_now_us(), &f);
    return f;
}

#define DEFINE_STATUS(name)                                                                        \
    static enum http_step run_##name(struct server *s, struct http_call *call,                     \
                                     const struct tenant *t) {                                     \
        const struct server_figures f = figures(s);                                                \
        (void)t;                                                                                   \
        return server_reply_json(s, call, 200, status_##name(&f));                                 \
    }
DEFINE_STATUS(models)
DEFINE_STATUS(health)
DEFINE_STATUS(now)
DEFINE_STATUS(cache_stats)

static enum http_step run_model(struct server *s, struct http_call *call, const struct tenant *t) {
    const struct server_figures f = figures(s);
    (void)t;
    if (strcmp(call->path + strlen("/v1/models/"), s->options.model_name) != 0)
        return refuse(s, call, OPENAI_NOT_FOUND, "no model is called so");
    return server_reply_json(s, call, 200, status_model(&f));
}

static enum http_step run_metrics(struct server *s, struct http_call *call,
                                  const struct tenant *t) {
    const struct http_reply reply = server_reply_head(s, 200, METRICS_CONTENT_TYPE);
    const struct server_figures f = figures(s);
    size_t len;
    char *text = metrics_text(s->metrics, &f, &len);
    (void)t;
    return text ? http_reply_take(call, &reply, text, len)
                : refuse(s, call, OPENAI_SERVER_ERROR, "out of memory");
}

static enum http_step run_page(struct server *s, struct http_call *call, const struct tenant *t) {
    struct http_reply reply = server_reply_head(s, 200, SERVER_PAGE_TYPE);
    (void)t;
    http_reply_header(&reply, "Content-Security-Policy", SERVER_PAGE_CSP);
    return http_reply_static(call, &reply, SERVER_PAGE, SERVER_PAGE_LEN);
}

/* Bodies that need no engine. */
static enum http_step run_text(struct server *s, struct http_call *call, const struct tenant *t) {
    struct openai_error err;
    kvasir_context_info info;
    json_t *body = NULL, *answer = NULL;
    (void)t;
    kvasir_engine_get_context(s->engine, &info);
    if (server_read_body(call, &body, &err)) {
        if (strcmp(call->path, "/tokenize") == 0)
            answer = text_api_tokenize(&s->setup, info.ctx, body, &err);
        else if (strcmp(call->path, "/detokenize") == 0)
            answer = text_api_detokenize(&s->setup, body, &err);
        else if (strcmp(call->path, "/apply-template") == 0)
            answer = text_api_apply_template(&s->setup, body, &err);
        else
            answer = anthropic_count(&s->setup, body, &err);
    }
    json_decref(body);
    return answer ? server_reply_json(s, call, 200, answer) : server_reply_error(s, call, &err);
}

static enum http_step run_ready(struct server *s, struct http_call *call, const struct tenant *t) {
    (void)t;
    if (atomic_load(&s->draining))
        return refuse(s, call, OPENAI_UNAVAILABLE, "the server is stopping");
    return server_reply_json(s, call, 200, json_pack("{s:s}", "status", "ready"));
}

static enum http_step run_version(struct server *s, struct http_call *call,
                                  const struct tenant *t) {
    (void)t;
    return server_reply_json(s, call, 200, status_version());
}

/* DELETE /v1/requests/ID and POST /v1/requests/ID/cancel */
static enum http_step run_cancel(struct server *s, struct http_call *call, const struct tenant *t) {
    static const char END[] = "/cancel";
    char id[JOB_ID_MAX + sizeof END];
    snprintf(id, sizeof id, "%s", call->path + strlen("/v1/requests/"));
    const size_t n = strlen(id), end = sizeof END - 1;
    if (strcmp(call->method, "POST") == 0) {
        if (n < end || strcmp(id + n - end, END) != 0)
            return refuse(s, call, OPENAI_NOT_FOUND, "there is no such path");
        id[n - end] = 0;
    }
    if (jobs_cancel(s, t, id) == 0)
        return refuse(s, call, OPENAI_NOT_FOUND, "no such request is under way");
    return server_reply_json(s, call, 200,
                             json_pack("{s:s, s:s, s:b, s:s}", "object", "request.cancel", "id", id,
                                       "cancelled", 1, "model", s->options.model_name));
}

static enum http_step run_forget(struct server *s, struct http_call *call, const struct tenant *t) {
    (void)t;
    kvasir_engine_forget(s->engine, NULL);
    return server_reply_json(s, call, 200,
                             json_pack("{s:s, s:b}", "status", "cleared", "rewarm_scheduled", 0));
}

static const struct route ROUTES[] = {
    {"POST", "/v1/chat/completions", "chat", KEY, run_job},
    {"POST", "/chat/completions", "chat", KEY, run_job}, /* mlx_lm.server's second name */
    {"POST", "/v1/completions", "completions", KEY, run_job},
    {"POST", "/v1/messages", "messages", KEY, run_job},
    {"POST", "/v1/messages/count_tokens", "count_tokens", KEY, run_text},
    {"POST", "/tokenize", "tokenize", KEY, run_text},
    {"POST", "/detokenize", "detokenize", KEY, run_text},
    {"POST", "/apply-template", "apply_template", KEY, run_text},
    {"GET", "/v1/models", "models", KEY, run_models},
    {"GET", "/v1/models/", "models", KEY, run_model},
    {"DELETE", "/v1/requests/", "cancel", KEY, run_cancel},
    {"POST", "/v1/requests/", "cancel", KEY, run_cancel},
    {"DELETE", "/v1/cache", "forget", ADMIN, run_forget},
    {"DELETE", "/v1/cache/prefix", "forget", ADMIN, run_forget},
    {"GET", "/v1/cache/stats", "cache_stats", KEY, run_cache_stats},
    {"GET", "/v1/status", "status", KEY, run_now},
    {"GET", "/metrics", "metrics", KEY, run_metrics},
    {"GET", "/", "page", ANYONE, run_page},
    {"GET", "/health", "health", ANYONE, run_health},
    {"GET", "/ready", "ready", ANYONE, run_ready},
    {"GET", "/version", "version", KEY, run_version},
};
enum { N_ROUTES = sizeof ROUTES / sizeof *ROUTES };

static bool has_path(const struct route *r, const char *path) {
    const size_t n = strlen(r->path);
    if (n > 1 && r->path[n - 1] == '/')
        return strncmp(path, r->path, n) == 0 && path[n];
    return strcmp(path, r->path) == 0;
}

/* Of the path and the method, or else of the path alone; NULL: there is none. */
static const struct route *find_route(const struct http_call *call, bool *allowed) {
    const char *method = strcmp(call->method, "HEAD") == 0 ? "GET" : call->method;
    const struct route *other = NULL;
    *allowed = true;
    for (size_t i = 0; i < N_ROUTES; i++)
        if (has_path(&ROUTES[i], call->path)) {
            if (strcmp(ROUTES[i].method, method) == 0)
                return &ROUTES[i];
            other = &ROUTES[i];
        }
    *allowed = false;
    return other;
}

const char *route_name(const struct http_call *call) {
    bool allowed;
    const struct route *r = find_route(call, &allowed);
    return r ? r->name : "other";
}

const struct form *route_form(const struct http_call *call) {
    if (strncmp(call->path, "/v1/messages", strlen("/v1/messages")) == 0)
        return &FORM_MESSAGES;
    return strcmp(call->path, "/v1/completions") == 0 ? &FORM_COMPLETIONS : &FORM_CHAT;
}

/* A browser asks whether another site's page may call. */
static enum http_step preflight(struct server *s, struct http_call *call) {
    struct http_reply r = server_reply_head(s, 204, NULL);
    if (s->options.cors_origin) {
        http_reply_header(&r, "Access-Control-Allow-Methods", "GET, POST, DELETE");
        http_reply_header(&r, "Access-Control-Allow-Headers", "*, Authorization");
    }
    return http_reply_static(call, &r, "", 0);
}

static enum http_step not_allowed(struct server *s, struct http_call *call) {
    struct openai_error err;
    char methods[64] = "OPTIONS";
    size_t n = strlen(methods);
    for (size_t i = 0; i < N_ROUTES; i++)
        if (has_path(&ROUTES[i], call->path))
            n += (size_t)snprintf(methods + n, sizeof methods - n, ", %s%s", ROUTES[i].method,
                                  strcmp(ROUTES[i].method, "GET") == 0 ? ", HEAD" : "");
    openai_refuse(&err, NULL, "the path does not know this method");
    err.status = 405;
    return server_reply_error_with(s, call, &err, "Allow", methods);
}

static enum http_step begin(struct server *s, struct http_call *call) {
    struct tenant tenant;
    bool allowed;
    const struct route *r = find_route(call, &allowed);
    const char *refused = origin_refused(s, call);
    if (refused)
        return refuse(s, call, OPENAI_FORBIDDEN, refused);
    if (strcmp(call->method, "OPTIONS") == 0)
        return preflight(s, call);
    if (!find_tenant(s, call, &tenant) && !(r && r->access == ANYONE)) {
        metrics_refused(s->metrics, REFUSED_KEY);
        return refuse(s, call, OPENAI_UNAUTHORIZED,
                      *given_key(call) ? "the API key is not known" : "an API key is needed");
    }
    if (!r)
        return refuse(s, call, OPENAI_NOT_FOUND, "there is no such path");
    if (!allowed)
        return not_allowed(s, call);
    if (r->access == ADMIN && !tenant.admin)
        return refuse(s, call, OPENAI_FORBIDDEN, "this needs the admin key");
    if (atomic_load(&s->draining) && r->access != ANYONE) {
        metrics_refused(s->metrics, REFUSED_DRAINING);
        return refuse(s, call, OPENAI_UNAVAILABLE, "the server is stopping");
    }
    return r->run(s, call, &tenant);
}

uint64_t routes_body_limit(void *user, const struct http_call *call) {
    enum { SMALL = 64 << 10 }; /* what is refused may have come in one piece with its headers */
    const struct server *s = user;
    const uint64_t most = s->options.max_body_bytes;
    struct tenant tenant;
    bool allowed;
    const struct route *r = find_route(call, &allowed);
    if (r && allowed && strcmp(r->method, "POST") == 0 && !origin_refused(s, call) &&
        find_tenant(s, call, &tenant))
        return most;
    return most < SMALL ? most : SMALL;
}

enum http_step routes_handle(void *user, struct http_call *call) {
    return call->user ? job_continue(call) : begin(user, call);
}
