/* SPDX-License-Identifier: Apache-2.0 */
/* openai_request.c: a body's prompt to token ids.
 *
 *     chat         messages, tools ... -> a template's variables -> kvasir_chat_render -> tokens;
 *                  control tokens that the template wrote are recognised, it writes its own BOS
 *     completions  prompt: a text -> tokens, with BOS, control tokens recognised (as in vLLM and
 *                  mlx-lm); token ids -> as they are
 *
 * What templates are written for is Python's messages, so that texts in parts are joined and the
 * arguments of tool calls, JSON in a string, become values, as mlx-lm and vLLM do.
 *
 * With a prompt-cache file the prompt goes on behind the user's text with which the file ends
 * (`kvasir cache-prompt`): no BOS; and of a chat, whose first message is the user's going on, what
 * the template writes before that message's text is left out.
 */
#include "server/openai_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool openai_api_of(const char *url, enum openai_api *api) {
    if (strcmp(url, "/v1/chat/completions") == 0)
        *api = OPENAI_CHAT;
    else if (strcmp(url, "/v1/completions") == 0)
        *api = OPENAI_COMPLETIONS;
    else
        return false;
    return true;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static bool set_tokens(struct openai_request *r, const char *path, const int32_t *ids, size_t n,
                       struct openai_error *err) {
    if (n == 0)
        return openai_refuse(err, path, "has no tokens");
    r->engine.tokens = ids;
    r->engine.n_tokens = n;
    return true;
}

static bool library_failed(struct openai_error *err, const char *path, const kvasir_error *why) {
    openai_error_of(err, why);
    if (err->status == OPENAI_SERVER_ERROR)
        return false;
    return openai_refuse(err, path, "%s", why->text);
}

static bool tokenize(const struct openai_setup *setup, const char *path, const char *text,
                     size_t len, unsigned flags, struct openai_request *r,
                     struct openai_error *err) {
    kvasir_error why;
    size_t n;
    if (kvasir_tokenize(setup->tokenizer, text, len, flags | KVASIR_TOKENIZE_PARSE_SPECIAL,
                        &r->tokenized, &n, &why))
        return library_failed(err, path, &why);
    return set_tokens(r, path, r->tokenized, n, err);
}

/* ---- completions ----------------------------------------------------------------------------- */

/* A list of prompts is allowed where it is one prompt. */
static const json_t *single_prompt(const json_t *prompt, const char **path) {
    const json_t *first = json_array_get(prompt, 0);
    bool list = json_is_string(first) || json_is_array(first);
    *path = list ? "prompt[0]" : "prompt";
    return list ? first : prompt;
}

static bool read_prompt(const struct openai_setup *setup, const json_t *body,
                        struct openai_request *r, struct openai_error *err) {
    const char *path = "prompt";
    const json_t *list = openai_get(body, "prompt"), *prompt = single_prompt(list, &path);
    if (prompt != list && json_array_size(list) > 1)
        return openai_refuse(err, "prompt", "%zu prompts: one to a request", json_array_size(list));
    if (json_is_string(prompt))
        return tokenize(setup, path, json_string_value(prompt), json_string_length(prompt),
                        r->prompt_cache ? 0 : KVASIR_TOKENIZE_ADD_SPECIAL, r, err);
    if (!json_is_array(prompt))
        return openai_wrong_type(err, path, prompt, "a string or an array of token ids");
    size_t n;
    return openai_ids(path, prompt, setup->vocab, &r->ids, &n, err) &&
           set_tokens(r, path, r->ids, n, err);
}

/* ---- messages -------------------------------------------------------------------------------- */

static const char *const ROLES[] = {"system", "developer", "user", "assistant", "tool", "function"};

struct message_path {
    char text[OPENAI_PATH_MAX];
};
/* "messages[2].content" */
static struct message_path path_of(size_t i, const char *member) {
    struct message_path p;
    snprintf(p.text, sizeof p.text, "messages[%zu]%s%s", i, *member ? "." : "", member);
    return p;
}

static bool read_role(const json_t *message, size_t i, const char **role,
                      struct openai_error *err) {
    const json_t *value = openai_get(message, "role");
    *role = json_string_value(value);
    if (!*role)
        return openai_wrong_type(err, path_of(i, "role").text, value, "a string");
    for (size_t k = 0; k < sizeof ROLES / sizeof *ROLES; k++)
        if (strcmp(*role, ROLES[k]) == 0)
            return true;
    return openai_refuse(err, path_of(i, "role").text,
                         "\"%.40s\" is none of system, developer, user, assistant, tool, function",
                         *role);
}

/* The text of a part {"type": "text", "text": ...}, or what an assistant refused with. */
static const json_t *part_text(const json_t *part, size_t i, size_t k, struct openai_error *err) {
    char at[64], path[OPENAI_PATH_MAX];
    snprintf(at, sizeof at, "messages[%zu].content[%zu]", i, k);
    if (!json_is_object(part)) {
        openai_wrong_type(err, at, part, "an object");
        return NULL;
    }
    const json_t *type = openai_get(part, "type");
    const char *name = json_string_value(type);
    snprintf(path, sizeof path, "%s.type", at);
    if (!name) {
        openai_wrong_type(err, path, type, "a string");
        return NULL;
    }
    if (strcmp(name, "text") != 0 && strcmp(name, "refusal") != 0) {
        openai_refuse(err, path, "\"%.40s\" is not supported (but for text)", name);
        return NULL;
    }
    const json_t *text = openai_get(part, name);
    snprintf(path, sizeof path, "%s.%.10s", at, name);
    if (!json_is_string(text)) {
        openai_wrong_type(err, path, text, "a string");
        return NULL;
    }
    return text;
}

static bool join_parts(const json_t *parts, size_t i, json_t **out, struct openai_error *err) {
    size_t len = 0, at = 0, n = json_array_size(parts);
    for (size_t k = 0; k < n; k++) {
        const json_t *text = part_text(json_array_get(parts, k), i, k, err);
        if (!text)
            return false;
        len += json_string_length(text);
    }
    char *joined = malloc(len + 1);
    for (size_t k = 0; joined && k < n; k++) {
        const json_t *text = part_text(json_array_get(parts, k), i, k, err);
        memcpy(joined + at, json_string_value(text), json_string_length(text));
        at += json_string_length(text);
    }
    *out = joined ? json_stringn(joined, len) : NULL;
    free(joined);
    return *out || openai_no_memory(err);
}

/* *out: a new reference to a string, or to null where an assistant only calls tools (templates ask
 * for that). */
static bool read_content(const json_t *message, const char *role, size_t i, json_t **out,
                         struct openai_error *err) {
    const json_t *content = openai_get(message, "content");
    bool assistant = strcmp(role, "assistant") == 0;
    if (json_is_array(content))
        return join_parts(content, i, out, err);
    if (content && !json_is_string(content))
        return openai_wrong_type(err, path_of(i, "content").text, content,
                                 "a string or an array of parts");
    if (!content && !assistant)
        return openai_refuse(err, path_of(i, "content").text, "missing");
    if (content)
        *out = json_incref((json_t *)content);
    else
        *out = openai_get(message, "tool_calls") ? json_null() : json_string("");
    return *out || openai_no_memory(err);
}

/* One tool call of a message that is ours to change: its arguments become values. */
static bool read_call(json_t *call, size_t i, size_t k, struct openai_error *err) {
    char path[OPENAI_PATH_MAX];
    snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu]", i, k);
    if (!json_is_object(call))
        return openai_wrong_type(err, path, call, "an object");
    json_t *function = json_object_get(call, "function");
    snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu].function", i, k);
    if (!json_is_object(function))
        return openai_wrong_type(err, path, function, "an object");
    const json_t *name = openai_get(function, "name");
    snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu].function.name", i, k);
    if (!json_is_string(name))
        return openai_wrong_type(err, path, name, "a string");
    const json_t *arguments = openai_get(function, "arguments");
    snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu].function.arguments", i, k);
    if (!arguments || json_is_object(arguments))
        return true;
    if (!json_is_string(arguments))
        return openai_wrong_type(err, path, arguments, "a string");
    json_error_t why;
    size_t len = json_string_length(arguments);
    json_t *values =
        len ? json_loadb(json_string_value(arguments), len, JSON_ALLOW_NUL, &why) : json_object();
    if (!json_is_object(values)) {
        bool parsed = values != NULL;
        json_decref(values);
        return parsed ? openai_refuse(err, path, "is not the JSON text of an object")
                      : openai_refuse(err, path, "is no JSON at byte %d: %.100s", why.position,
                                      len ? why.text : "");
    }
    return json_object_set_new(function, "arguments", values) == 0 || openai_no_memory(err);
}

/* A message as templates expect it, new; false with *err. */
static bool read_message(const json_t *message, size_t i, json_t **out, struct openai_error *err) {
    if (!json_is_object(message))
        return openai_wrong_type(err, path_of(i, "").text, message, "an object");
    const char *role;
    json_t *content = NULL, *calls = NULL, *made = NULL;
    if (!read_role(message, i, &role, err) || !read_content(message, role, i, &content, err))
        return false;
    const json_t *given = openai_get(message, "tool_calls");
    bool good = true;
    if (given && !json_is_array(given))
        good = openai_wrong_type(err, path_of(i, "tool_calls").text, given, "an array");
    else if (given && !(calls = json_deep_copy(given)))
        good = openai_no_memory(err);
    for (size_t k = 0; good && k < json_array_size(calls); k++)
        good = read_call(json_array_get(calls, k), i, k, err);
    if (good) {
        made = json_copy((json_t *)message);
        if (!made || json_object_set(made, "content", content) != 0 ||
            (calls && json_object_set(made, "tool_calls", calls) != 0))
            good = openai_no_memory(err);
    }
    json_decref(content);
    json_decref(calls);
    if (good)
        *out = made;
    else
        json_decref(made);
    return good;
}

static bool read_messages(const json_t *body, json_t **out, struct openai_error *err) {
    const json_t *given = openai_get(body, "messages");
    if (!json_is_array(given))
        return openai_wrong_type(err, "messages", given, "an array");
    if (json_array_size(given) == 0)
        return openai_refuse(err, "messages", "is empty");
    json_t *list = json_array(), *message = NULL;
    bool good = list != NULL || openai_no_memory(err);
    for (size_t i = 0; good && i < json_array_size(given); i++) {
        good = read_message(json_array_get(given, i), i, &message, err);
        if (good && json_array_append_new(list, message) != 0)
            good = openai_no_memory(err);
    }
    if (good)
        *out = list;
    else
        json_decref(list);
    return good;
}

/* ---- template -------------------------------------------------------------------------------- */

/* Members of the body that are variables of templates. */
static bool set_variables(const struct openai_setup *setup, const json_t *body, json_t *variables,
                          struct openai_error *err) {
    const json_t *tools = openai_get(body, "tools");
    const char *choice = json_string_value(openai_get(body, "tool_choice"));
    if (tools && !json_is_array(tools))
        return openai_wrong_type(err, "tools", tools, "an array");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        char path[32];
        snprintf(path, sizeof path, "tools[%zu]", i);
        if (!json_is_object(json_array_get(tools, i)))
            return openai_wrong_type(err, path, json_array_get(tools, i), "an object");
    }
    /* A model that does not know of tools does not call them. */
    bool show = json_array_size(tools) > 0 && !(choice && strcmp(choice, "none") == 0);
    if (show && json_object_set(variables, "tools", (json_t *)tools) != 0)
        return openai_no_memory(err);
    const json_t *effort = openai_get(body, "reasoning_effort");
    if (effort && !json_is_string(effort))
        return openai_wrong_type(err, "reasoning_effort", effort, "a string");
    const json_t *documents = openai_get(body, "documents");
    if (documents && !json_is_array(documents))
        return openai_wrong_type(err, "documents", documents, "an array");
    const json_t *more = openai_get(body, "chat_template_kwargs");
    if (more && !json_is_object(more))
        return openai_wrong_type(err, "chat_template_kwargs", more, "an object");
    if (openai_get(more, "messages"))
        return openai_refuse(err, "chat_template_kwargs.messages", "is \"messages\" of the body");
    if (setup->variables && json_object_update(variables, (json_t *)setup->variables) != 0)
        return openai_no_memory(err);
    if ((effort && json_object_set(variables, "reasoning_effort", (json_t *)effort) != 0) ||
        (documents && json_object_set(variables, "documents", (json_t *)documents) != 0) ||
        (more && json_object_update(variables, (json_t *)more) != 0))
        return openai_no_memory(err);
    return true;
}

/* Stands before the first message's text while a template is rendered, to find where that goes. */
static const char MARK[] = "kvasir:the-text-of-the-user";

static bool set_mark(json_t *messages, struct openai_error *err) {
    json_t *first = json_array_get(messages, 0);
    if (strcmp(json_string_value(json_object_get(first, "role")), "user") != 0)
        return openai_refuse(err, "messages[0].role",
                             "is not \"user\", whose text goes on that of \"prompt_cache\"");
    const json_t *content = json_object_get(first, "content");
    size_t len = json_string_length(content), mark = strlen(MARK);
    char *text = malloc(mark + len + 1);
    if (!text)
        return openai_no_memory(err);
    memcpy(text, MARK, mark);
    memcpy(text + mark, json_string_value(content), len);
    json_t *marked = json_stringn(text, mark + len);
    free(text);
    return json_object_set_new(first, "content", marked) == 0 || openai_no_memory(err);
}

/* What stands behind the first mark of a text, which may hold NUL bytes; NULL: there is none. */
static const char *find_mark(const char *text, size_t len) {
    size_t n = strlen(MARK);
    for (; len >= n; text++, len--)
        if (memcmp(text, MARK, n) == 0)
            return text + n;
    return NULL;
}

static const char *behind_only_mark(const char *text, size_t len, struct openai_error *err) {
    const char *behind = find_mark(text, len);
    if (behind && !find_mark(behind, len - (size_t)(behind - text)))
        return behind;
    openai_refuse(err, "prompt_cache",
                  "the chat template does not write the first message's text "
                  "once, as it is: only /v1/completions can go on a file");
    return NULL;
}

static bool render(const struct openai_setup *setup, const json_t *variables,
                   struct openai_request *r, struct openai_error *err) {
    char *request = json_dumps(variables, JSON_COMPACT), *text;
    if (!request)
        return openai_no_memory(err);
    kvasir_error why;
    size_t len;
    kvasir_status status =
        kvasir_chat_render(setup->tokenizer, request, strlen(request), &text, &len, &why);
    free(request);
    if (status)
        return library_failed(err, "messages", &why);
    const char *from = r->prompt_cache ? behind_only_mark(text, len, err) : text;
    bool good = from && tokenize(setup, "messages", from, len - (size_t)(from - text), 0, r, err);
    kvasir_free(text);
    return good;
}

static bool read_chat(const struct openai_setup *setup, const json_t *body,
                      struct openai_request *r, struct openai_error *err) {
    json_t *messages = NULL, *variables;
    if (!read_messages(body, &messages, err))
        return false;
    bool good = !r->prompt_cache || set_mark(messages, err);
    variables = json_pack("{s:o}", "messages", messages);
    if (!variables)
        good = openai_no_memory(err);
    good = good && set_variables(setup, body, variables, err) && render(setup, variables, r, err);
    json_decref(variables);
    return good;
}

/* ---- all of it ------------------------------------------------------------------------------- */

bool openai_read(const struct openai_setup *setup, enum openai_api api, const json_t *body,
                 struct openai_request *out, struct openai_error *err) {
    if (!json_is_object(body))
        return openai_refuse(err, NULL, "the body is not a JSON object");
    struct openai_request r = {
        .api = api, .engine = kvasir_request_defaults(), .kept = json_array()};
    bool good = r.kept || openai_no_memory(err);
    good = good && openai_read_fields(setup, body, &r, err);
    if (good)
        good = api == OPENAI_CHAT ? read_chat(setup, body, &r, err)
                                  : read_prompt(setup, body, &r, err);
    if (good)
        *out = r;
    else
        openai_request_free(&r);
    return good;
}

void openai_request_free(struct openai_request *r) {
    free(r->ids);
    kvasir_free(r->tokenized);
    free(r->stops);
    free(r->stop_tokens);
    kvasir_free(r->xtc_special);
    free(r->logit_bias);
    json_decref(r->kept);
    *r = (struct openai_request){0};
}
