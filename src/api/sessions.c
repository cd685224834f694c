/* SPDX-License-Identifier: Apache-2.0 */
/* sessions.c: what a session brings to a request, and what of a request is kept. */
#include "api/sessions.h"

#include <string.h>

/* Members that are kept of a body, beside its messages. */
static const char *const KEPT[] = {
    "tools",          "documents", "reasoning_effort", "chat_template_kwargs",
    "control_tokens", "cache_salt"};
enum { N_KEPT = sizeof KEPT / sizeof *KEPT };

void session_state_free(struct session_state *s) {
    json_decref(s->body);
    mem_free(s->tokens);
    *s = (struct session_state){0};
}

/* What is kept of these members, in r->session. */
static bool keep_members(json_t *members, struct api_request *r, struct api_error *err) {
    json_t *messages = api_get(members, "messages"), *body = json_object();
    bool good = body && (!messages || json_object_set(body, "messages", messages) == 0);
    for (size_t i = 0; good && i < N_KEPT; i++) {
        json_t *value = api_get(members, KEPT[i]);
        good = !value || json_object_set(body, KEPT[i], value) == 0;
    }
    r->session.state.body = body;
    return good || api_no_memory(err);
}

/* ---- beginning one --------------------------------------------------------------------------- */

/* Whether an answer would come next: then the prompt ends with what begins one. */
static bool awaits_answer(json_t *messages) {
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    return role && (strcmp(role, "user") == 0 || strcmp(role, "tool") == 0);
}

static bool read_start(const struct api_setup *setup, struct api_body *body, struct api_request *r,
                       struct api_error *err) {
    const struct session_store *store = setup->sessions;
    json_int_t ttl = store->max_ttl_s;
    r->session.pin = store->may_pin;
    if (!api_whole(body->members, "ttl", 1, store->max_ttl_s, &ttl, err) ||
        !api_flag(body->members, "pin", &r->session.pin, err))
        return false;
    if (r->session.pin && !store->may_pin) {
        api_refuse(err, "pin", "only the admin key may pin: memory is shared by all keys");
        err->status = HTTP_FORBIDDEN;
        return false;
    }
    r->session.ttl_s = (uint32_t)ttl;
    r->session.closed = !awaits_answer(api_get(body->members, "messages"));
    return store->room(store->user, err) && keep_members(body->members, r, err);
}

/* ---- continuing one -------------------------------------------------------------------------- */

/* The session's messages, then the body's. */
static bool join_messages(json_t *members, json_t *kept, struct api_error *err) {
    json_t *more = api_get(members, "messages"), *all = json_copy(kept);
    bool good = all != NULL;
    if (more && !json_is_array(more)) {
        json_decref(all);
        return api_wrong_type(err, "messages", more, "an array");
    }
    good = good && (!more || json_array_extend(all, more) == 0);
    good = json_object_set_new(members, "messages", all) == 0 && good;
    return good || api_no_memory(err);
}

/* Members that the body does not have are the session's. */
static bool join_members(json_t *members, json_t *kept, struct api_error *err) {
    json_t *salt = api_get(members, "cache_salt");
    if (salt && !json_equal(salt, json_object_get(kept, "cache_salt")))
        return api_refuse(err, "cache_salt", "is not the session's: leave it out");
    for (size_t i = 0; i < N_KEPT; i++) {
        json_t *value = json_object_get(kept, KEPT[i]);
        if (value && !api_get(members, KEPT[i]) && json_object_set(members, KEPT[i], value) != 0)
            return api_no_memory(err);
    }
    return true;
}

/* Fields with which a session would not be what its answer says. */
static bool check_fields(json_t *members, struct api_error *err) {
    static const char *const NAMES[] = {"prompt_cache", "suffix", "echo", "continue_final_message"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        const json_t *value = api_get(members, NAMES[i]);
        if (value && !json_is_false(value))
            return api_refuse(err, NAMES[i], "cannot be combined with session");
    }
    return true;
}

static bool take(const struct api_setup *setup, enum api_kind api, struct api_body *body,
                 struct api_request *r, struct api_error *err) {
    const struct session_store *store = setup->sessions;
    struct session_state state;
    if (!store)
        return api_refuse(err, "session", "is not supported here");
    if (!check_fields(body->members, err) || !store->take(store->user, r->session.id, &state, err))
        return false;
    json_t *messages = json_object_get(state.body, "messages");
    bool good = (messages != NULL) == (api == API_CHAT);
    if (!good)
        api_refuse(err, "session", "is that of a %s: continue it with %s",
                   messages ? "chat" : "text",
                   messages ? "/v1/chat/completions" : "/v1/completions");
    good = good && (!messages || join_messages(body->members, messages, err)) &&
           join_members(body->members, state.body, err) && keep_members(body->members, r, err);
    if (good && !messages) {
        r->session.state.tokens = state.tokens;
        r->session.state.n_tokens = state.n_tokens;
        state.tokens = NULL;
        if (!api_has_ids(body, "prompt") && !api_get(body->members, "prompt"))
            good = json_object_set_new(body->members, "prompt", json_string("")) == 0 ||
                   api_no_memory(err);
    }
    session_state_free(&state);
    return good;
}

bool sessions_begin(const struct api_setup *setup, enum api_kind api, struct api_body *body,
                    struct api_request *r, struct api_error *err) {
    json_t *value = api_get(body->members, "session");
    if (setup->session_start)
        return read_start(setup, body, r, err);
    if (!value)
        return true;
    return api_text(r->kept, "session", value, &r->session.id, err) &&
           take(setup, api, body, r, err);
}

bool sessions_extend(struct api_request *r, struct api_error *err) {
    struct session_state *s = &r->session.state;
    if (!r->session.id)
        return true;
    if (r->engine.n > 1)
        return api_refuse(err, "n", "must be 1 with a session: fork it for each answer");
    if (r->engine.no_store)
        return api_refuse(err, "cache.no_store", "cannot be combined with session");
    if (r->api == API_CHAT)
        return true;
    if (r->n_prompts > 1)
        return api_refuse(err, "prompt", "%u prompts, a session takes one", r->n_prompts);
    struct api_prompt *p = &r->prompts[0];
    const size_t n = s->n_tokens + p->n_tokens;
    int32_t *all = mem_calloc(n, sizeof *all);
    if (!all)
        return api_no_memory(err);
    memcpy(all, s->tokens, s->n_tokens * sizeof *all);
    if (p->n_tokens)
        memcpy(all + s->n_tokens, p->tokens, p->n_tokens * sizeof *all);
    mem_free(r->ids);
    r->ids = all;
    r->engine.tokens = p->tokens = all;
    r->engine.n_tokens = p->n_tokens = n;
    return true;
}
