/* SPDX-License-Identifier: Apache-2.0 */
/* sessions_answer.c: a session after an answer; and POST /v1/sessions, which makes one. */
#include <string.h>

#include "api/openai_internal.h"
#include "api/sessions.h"

/* ---- after an answer ------------------------------------------------------------------------- */

/* The kept members with the answer as a message. */
static json_t *longer_body(const struct api_request *r, const struct api_answer *a,
                           const char *id) {
    json_t *kept = r->session.state.body, *body = json_copy(kept);
    uint32_t calls;
    if (body && r->api == API_CHAT) {
        json_t *messages = json_copy(json_object_get(kept, "messages"));
        if (json_array_append_new(messages, openai_message(a, id, 0, &calls)) != 0 ||
            json_object_set(body, "messages", messages) != 0) {
            json_decref(body);
            body = NULL;
        }
        json_decref(messages);
    }
    return body;
}

void sessions_advance(const struct api_setup *setup, const struct api_request *r,
                      const struct api_answer *a, const char *id) {
    const struct session_store *store = setup->sessions;
    const kvasir_request *e = &r->engine;
    const struct api_choice *c = &a->choices[0];
    struct api_error err;
    if (!r->session.id || !a->complete || !api_answer_good(a, &err))
        return;
    struct session_state now = {.body = longer_body(r, a, id),
                                .tokens = mem_calloc(e->n_tokens + c->n_tokens, sizeof(int32_t)),
                                .n_tokens = e->n_tokens + c->n_tokens};
    if (now.tokens) {
        memcpy(now.tokens, e->tokens, e->n_tokens * sizeof *now.tokens);
        for (size_t i = 0; i < c->n_tokens; i++)
            now.tokens[e->n_tokens + i] = c->tokens[i].token;
    }
    store->save(store->user, now.body && now.tokens ? &now : NULL);
    session_state_free(&now);
}

/* ---- POST /v1/sessions ----------------------------------------------------------------------- */

static enum api_want sessions_wants(const char *name, size_t len, const char **known) {
    static const char *const TREES[] = {"model",
                                        "messages",
                                        "tools",
                                        "documents",
                                        "reasoning_effort",
                                        "chat_template_kwargs",
                                        "control_tokens",
                                        "cache_salt",
                                        "priority",
                                        "ttl",
                                        "pin",
                                        NULL};
    static const char *const PROMPT[] = {"prompt", NULL};
    static const struct api_names LISTS[] = {{API_TREE, TREES}, {API_PROMPT, PROMPT}};
    return api_want_of(LISTS, 2, name, len, known);
}

static bool sessions_read(const struct api_setup *given, struct api_body *body,
                          struct api_request *out, struct api_error *err) {
    const bool chat = api_get(body->members, "messages") != NULL,
               text = api_has_ids(body, "prompt") || api_get(body->members, "prompt");
    struct api_setup setup = *given;
    if (!given->sessions)
        return api_refuse(err, NULL, "this server keeps no sessions");
    if (chat == text)
        return api_refuse(err, NULL, "send either \"messages\" or \"prompt\"");
    setup.session_start = true;
    setup.grammars = NULL; /* nothing is generated */
    setup.max_prompts = 1;
    if (!openai_read(&setup, chat ? API_CHAT : API_COMPLETIONS, body, out, err))
        return false;
    out->engine.no_answer = true;
    return true;
}

static json_t *sessions_body(const struct api_answer *a, const struct protocol_context *c,
                             struct api_error *err) {
    const struct api_request *r = c->request;
    const struct session_store *store = c->setup->sessions;
    if (!api_answer_good(a, err))
        return NULL;
    json_t *made = store->create(store->user, r, err);
    if (made && !api_answer_warn(made, r)) {
        json_decref(made);
        (void)api_no_memory(err);
        return NULL;
    }
    return made;
}

const struct protocol PROTOCOL_SESSIONS = {.name = "sessions",
                                           .id_prefix = "sess_",
                                           .prompt_field = "prompt",
                                           .wants = sessions_wants,
                                           .read = sessions_read,
                                           .body = sessions_body,
                                           .error = openai_error_json,
                                           .close = protocol_close_none};
