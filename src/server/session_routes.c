/* SPDX-License-Identifier: Apache-2.0 */
/* session_routes.c: what clients ask of sessions but to make and to continue them:
 *
 *     GET     /v1/sessions             all of the key's
 *     GET     /v1/sessions/ID          one, with its messages
 *     PATCH   /v1/sessions/ID          ttl, pin
 *     DELETE  /v1/sessions/ID
 *     POST    /v1/sessions/ID/fork     a copy; messages or tokens: of the first so many; ttl, pin
 *     POST    /v1/sessions/ID/trim     messages or tokens
 *
 * Bodies are small, so they are read at once, on the exchange's thread.
 */
#include "server/sessions_kept.h"

#include <string.h>

#include "server/server_internal.h"

enum { BODY_MAX = 4 << 10 };
static const char PREFIX[] = "/v1/sessions/";

static enum api_want wants(const char *name, size_t len, const char **known) {
    static const char *const NAMES[] = {"messages", "tokens", "ttl", "pin", NULL};
    static const struct api_names LISTS[] = {{API_TREE, NAMES}};
    const enum api_want want = api_want_of(LISTS, 1, name, len, known);
    *known = want == API_SKIP ? "?" : *known; /* a misspelt name must not do something else */
    return API_TREE;
}

static bool read_counts(json_t *members, const char *action, struct session_change *out,
                        struct api_error *err) {
    const bool trims = strcmp(action, "trim") == 0, forks = strcmp(action, "fork") == 0;
    const bool any = api_get(members, "messages") || api_get(members, "tokens");
    if (any && !trims && !forks)
        return api_refuse(err, api_get(members, "messages") ? "messages" : "tokens",
                          "is for fork and trim only");
    if (!any && trims)
        return api_refuse(err, NULL, "say how many \"messages\" or \"tokens\" stay");
    if (api_get(members, "messages") && api_get(members, "tokens"))
        return api_refuse(err, "tokens", "cannot be combined with messages");
    return api_whole(members, "messages", 1, UINT32_MAX, &out->messages, err) &&
           api_whole(members, "tokens", 1, UINT32_MAX, &out->tokens, err);
}

static bool read_life(const struct server *s, const struct tenant *t, json_t *members,
                      const char *action, struct session_change *out, struct api_error *err) {
    bool pin = false;
    json_t *given = api_get(members, "pin");
    if ((given || api_get(members, "ttl")) && strcmp(action, "trim") == 0)
        return api_refuse(err, given ? "pin" : "ttl", "is for fork and PATCH only");
    if (!api_whole(members, "ttl", 1, s->options.session_ttl_s, &out->ttl_s, err) ||
        !api_flag(members, "pin", &pin, err))
        return false;
    out->pin = given ? pin : -1;
    if (!pin || t->sees_all)
        return true;
    api_refuse(err, "pin", "only the admin key may pin: memory is shared by all keys");
    err->status = HTTP_FORBIDDEN;
    return false;
}

static bool read_change(const struct server *s, const struct http_exchange *exchange,
                        const struct tenant *t, const char *action, struct session_change *out,
                        struct api_error *err) {
    static const char EMPTY[] = "{}";
    const char *text = exchange->body_len ? exchange->body : EMPTY;
    const size_t len = exchange->body_len ? exchange->body_len : sizeof EMPTY - 1;
    struct api_body body;
    *out = (struct session_change){.pin = -1};
    if (len > BODY_MAX)
        return api_refuse(err, NULL, "a body of %zu bytes, at most %d are allowed", len, BODY_MAX);
    if (!api_body_read(text, len, s->one->setup.vocab, wants, &body, err))
        return false;
    const bool good =
        (!json_object_get(body.members, "?") ||
         api_refuse(err, NULL,
                    "the body has an unknown member, only messages, tokens, ttl and pin are "
                    "supported")) &&
        read_counts(body.members, action, out, err) &&
        read_life(s, t, body.members, action, out, err);
    api_body_free(&body);
    return good;
}

/* An answer, or NULL with *err. action: "fork", "trim" or "". */
static json_t *answer(struct server *s, const struct http_exchange *exchange,
                      const struct tenant *t, const char *id, const char *action,
                      struct api_error *err) {
    struct session_change change;
    if (strcmp(exchange->method, "DELETE") == 0)
        return sessions_forget(s->sessions, t->key, id, err)
                   ? json_pack("{s:s, s:s, s:b}", "id", id, "object", "session", "deleted", 1)
                   : NULL;
    if (strcmp(exchange->method, "POST") != 0 && strcmp(exchange->method, "PATCH") != 0)
        return *id ? sessions_get(s->sessions, t->key, id, err)
                   : sessions_list(s->sessions, t->key, err);
    if (!read_change(s, exchange, t, action, &change, err))
        return NULL;
    return strcmp(action, "fork") == 0 ? sessions_fork(s->sessions, t->key, id, &change, err)
                                       : sessions_change(s->sessions, t->key, id, &change, err);
}

/* The path's id, and what is to be done with it; false: there is no such path. */
static bool split_path(const struct http_exchange *exchange, char id[SESSION_ID_MAX],
                       const char **action) {
    static const char *const ACTIONS[] = {"fork", "trim"};
    const size_t prefix = strlen(PREFIX), len = strlen(exchange->path);
    const char *at = exchange->path + (len < prefix ? len : prefix), *slash = strchr(at, '/');
    const size_t n = slash ? (size_t)(slash - at) : strlen(at);
    const bool post = strcmp(exchange->method, "POST") == 0;
    *action = "";
    memcpy(id, at, min_size(n, SESSION_ID_MAX - 1));
    id[min_size(n, SESSION_ID_MAX - 1)] = 0; /* no id is as long */
    for (size_t i = 0; slash && i < sizeof ACTIONS / sizeof *ACTIONS; i++)
        *action = strcmp(slash + 1, ACTIONS[i]) == 0 ? ACTIONS[i] : *action;
    return post == (slash != NULL) && post == (**action != 0);
}

enum http_step session_answer(struct server *s, struct http_exchange *exchange,
                              const struct tenant *t) {
    char id[SESSION_ID_MAX];
    const char *action;
    struct api_error err;
    json_t *made = NULL;
    bool good = true;
    if (!s->sessions || !split_path(exchange, id, &action)) {
        api_refuse(&err, NULL,
                   s->sessions ? "not found: sessions have fork and trim, by POST"
                               : "this server keeps no sessions");
        err.status = HTTP_NOT_FOUND;
        good = false;
    }
    if (good)
        made = answer(s, exchange, t, id, action, &err);
    return made ? reply_json(s, exchange, HTTP_OK, made)
                : reply_error(s, exchange, &PROTOCOL_CHAT, &err);
}
