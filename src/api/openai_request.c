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
 * An answer begins a message of its own, as in mlx_lm.server and vLLM, also where the last message
 * is an assistant's; it goes on that one where "continue_final_message" says so. What the template
 * writes behind its text is left out then. Where a template trims texts, spaces at its end are left
 * out too, as in transformers.
 *
 * With a prompt-cache file the prompt goes on behind the user's text with which the file ends
 * (`kvasir cache-prompt`): no BOS; and of a chat, whose first message is the user's going on, what
 * the template writes before that message's text is left out.
 */
#include "api/openai_internal.h"

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

bool openai_library_failed(struct openai_error *err, const char *path, const kvasir_error *why) {
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
        return openai_library_failed(err, path, &why);
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

struct openai_path openai_message_path(size_t i, const char *member) {
    struct openai_path p;
    snprintf(p.text, sizeof p.text, "messages[%zu]%s%s", i, *member ? "." : "", member);
    return p;
}

static bool read_role(const json_t *message, size_t i, const char **role,
                      struct openai_error *err) {
    const json_t *value = openai_get(message, "role");
    *role = json_string_value(value);
    if (!*role)
        return openai_wrong_type(err, openai_message_path(i, "role").text, value, "a string");
    for (size_t k = 0; k < sizeof ROLES / sizeof *ROLES; k++)
        if (strcmp(*role, ROLES[k]) == 0)
            return true;
    return openai_refuse(err, openai_message_path(i, "role").text,
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
        return openai_wrong_type(err, openai_message_path(i, "content").text, content,
                                 "a string or an array of parts");
    if (!content && !assistant)
        return openai_refuse(err, openai_message_path(i, "content").text, "missing");
    if (content)
        *out = json_incref((json_t *)content);
    else
        *out = openai_get(message, "tool_calls") ? json_null() : json_string("");
    return *out || openai_no_memory(err);
}

/* What a message says of reasoning has two names; templates know the first, gpt-oss's a third,
 * which it does not take beside content where tools are called. */
static bool read_reasoning(const struct openai_setup *setup, json_t *made, size_t i,
                           struct openai_error *err) {
    static const char *const NAMES[] = {"reasoning_content", "reasoning"};
    const json_t *text = NULL;
    for (size_t k = 0; k < 2; k++) {
        const json_t *value = openai_get(made, NAMES[k]);
        if (value && !json_is_string(value))
            return openai_wrong_type(err, openai_message_path(i, NAMES[k]).text, value, "a string");
        text = text ? text : value;
    }
    if (!text)
        return true;
    bool harmony = setup->syntax && setup->syntax->tools == ANSWER_HARMONY &&
                   !openai_get(made, "thinking") &&
                   !(openai_get(made, "tool_calls") &&
                     json_string_length(json_object_get(made, "content")) > 0);
    return (json_object_set(made, NAMES[0], (json_t *)text) == 0 &&
            (!harmony || json_object_set(made, "thinking", (json_t *)text) == 0)) ||
           openai_no_memory(err);
}

/* A message as templates expect it, new; false with *err. */
static bool read_message(const struct openai_setup *setup, const json_t *message, size_t i,
                         json_t **out, struct openai_error *err) {
    if (!json_is_object(message))
        return openai_wrong_type(err, openai_message_path(i, "").text, message, "an object");
    const char *role;
    json_t *content = NULL, *calls = NULL, *made = NULL;
    if (!read_role(message, i, &role, err) || !read_content(message, role, i, &content, err))
        return false;
    const json_t *given = openai_get(message, "tool_calls"),
                 *id = openai_get(message, "tool_call_id");
    bool good = true;
    if (id && !json_is_string(id))
        good = openai_wrong_type(err, openai_message_path(i, "tool_call_id").text, id, "a string");
    else if (given && !json_is_array(given))
        good = openai_wrong_type(err, openai_message_path(i, "tool_calls").text, given, "an array");
    else if (given && !(calls = json_deep_copy(given)))
        good = openai_no_memory(err);
    for (size_t k = 0; good && k < json_array_size(calls); k++)
        good = openai_read_call(json_array_get(calls, k), i, k, err);
    if (good) {
        made = json_copy((json_t *)message);
        if (!made || json_object_set(made, "content", content) != 0 ||
            (calls && json_object_set(made, "tool_calls", calls) != 0))
            good = openai_no_memory(err);
        good = good && read_reasoning(setup, made, i, err);
    }
    json_decref(content);
    json_decref(calls);
    if (good)
        *out = made;
    else
        json_decref(made);
    return good;
}

static bool read_messages(const struct openai_setup *setup, const json_t *body, json_t **out,
                          struct openai_error *err) {
    const json_t *given = openai_get(body, "messages");
    if (!json_is_array(given))
        return openai_wrong_type(err, "messages", given, "an array");
    if (json_array_size(given) == 0)
        return openai_refuse(err, "messages", "is empty");
    json_t *list = json_array(), *message = NULL;
    bool good = list != NULL || openai_no_memory(err);
    for (size_t i = 0; good && i < json_array_size(given); i++) {
        good = read_message(setup, json_array_get(given, i), i, &message, err);
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
static bool set_variables(const struct openai_setup *setup, const json_t *body,
                          struct openai_request *r, json_t *variables, struct openai_error *err) {
    const json_t *tools;
    if (!openai_read_tools(body, r, &tools, err))
        return false;
    if (tools && json_object_set(variables, "tools", (json_t *)tools) != 0)
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

/* ---- where a chat's text begins and ends ----------------------------------------------------- */

bool openai_read_form(const json_t *body, struct openai_chat_form *form, struct openai_error *err) {
    *form = (struct openai_chat_form){0};
    if (!openai_flag(body, "continue_final_message", &form->continues, err))
        return false;
    form->begins = !form->continues;
    if (!openai_flag(body, "add_generation_prompt", &form->begins, err))
        return false;
    return !(form->begins && form->continues) ||
           openai_refuse(err, "add_generation_prompt",
                         "cannot be true beside \"continue_final_message\"");
}

/* Stand before the first message's text, and behind the last one's, while a template is rendered,
 * to find where those go. */
static const char BEGIN_MARK[] = "kvasir:the-text-of-the-user";
static const char END_MARK[] = "kvasir:the-end-of-the-text";

static bool mark_text(json_t *message, const char *before, const char *behind,
                      struct openai_error *err) {
    const json_t *content = json_object_get(message, "content");
    size_t len = json_string_length(content), n = strlen(before), m = strlen(behind);
    char *text = malloc(n + len + m + 1);
    if (!text)
        return openai_no_memory(err);
    memcpy(text, before, n);
    if (len)
        memcpy(text + n, json_string_value(content), len);
    memcpy(text + n + len, behind, m);
    json_t *marked = json_stringn(text, n + len + m);
    free(text);
    return json_object_set_new(message, "content", marked) == 0 || openai_no_memory(err);
}

static bool mark_begin(json_t *messages, struct openai_error *err) {
    json_t *first = json_array_get(messages, 0);
    if (strcmp(json_string_value(json_object_get(first, "role")), "user") != 0)
        return openai_refuse(err, "messages[0].role",
                             "is not \"user\", whose text goes on that of \"prompt_cache\"");
    return mark_text(first, BEGIN_MARK, "", err);
}

/* The mark has a space behind it, which a template that trims texts leaves away. */
static bool mark_end(json_t *messages, struct openai_error *err) {
    size_t i = json_array_size(messages) - 1;
    json_t *last = json_array_get(messages, i);
    char behind[sizeof END_MARK + 1];
    if (strcmp(json_string_value(json_object_get(last, "role")), "assistant") != 0)
        return openai_refuse(err, openai_message_path(i, "role").text,
                             "is not \"assistant\": there is no answer to go on with");
    if (json_array_size(json_object_get(last, "tool_calls")) > 0)
        return openai_refuse(err, openai_message_path(i, "tool_calls").text,
                             "end the last message: there is no text to go on with");
    snprintf(behind, sizeof behind, "%s ", END_MARK);
    return mark_text(last, "", behind, err);
}

/* What stands at the only mark of a text, which may hold NUL bytes; NULL: there are none or two. */
static const char *find_mark(const char *text, size_t len, const char *mark) {
    size_t n = strlen(mark);
    const char *found = NULL;
    for (; len >= n; text++, len--) {
        if (memcmp(text, mark, n) != 0)
            continue;
        if (found)
            return NULL;
        found = text;
    }
    return found;
}

/* How the answer to this prompt is read. */
static bool set_answer(const struct openai_setup *setup, const char *prompt, size_t len,
                       struct openai_request *r, struct openai_error *err) {
    if (!setup->syntax || r->engine.json_object) /* a JSON object holds no markers: all content */
        return true;
    r->answer.syntax = *setup->syntax;
    r->answer.start = answer_start_of(setup->syntax, prompt, len);
    if (!answer_shown_tokens(setup->syntax, r->answer.tools, setup->tokenizer, &r->shown_tokens,
                             &r->engine.n_shown_tokens))
        return openai_no_memory(err);
    r->engine.shown_tokens = r->shown_tokens;
    return true;
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Ends the text behind the last message's; `content` is what that said before it was marked. */
static bool cut_end(const char *text, size_t *len, const json_t *content, size_t i,
                    struct openai_error *err) {
    const char *said = json_string_value(content), *mark = find_mark(text, *len, END_MARK);
    size_t n = json_string_length(content), end = mark ? (size_t)(mark - text) : 0;
    for (; n > 0 && is_space(*said); n--) /* templates may trim it */
        said++;
    if (!mark || end < n || (n && memcmp(mark - n, said, n) != 0))
        return openai_refuse(err, openai_message_path(i, "content").text,
                             "the chat template does not write the last message's text once, as "
                             "it is: the answer cannot go on with it");
    const char *behind = mark + strlen(END_MARK);
    bool trimmed = behind == text + *len || *behind != ' ';
    for (; trimmed && n > 0 && is_space(said[n - 1]); n--)
        end--;
    *len = end;
    return true;
}

/* Leaves out what stands before the first message's text. */
static bool cut_begin(char *text, size_t *len, struct openai_error *err) {
    const char *mark = find_mark(text, *len, BEGIN_MARK);
    if (!mark)
        return openai_refuse(err, "prompt_cache",
                             "the chat template does not write the first message's text once, as "
                             "it is: only /v1/completions can go on a file");
    const char *from = mark + strlen(BEGIN_MARK);
    *len -= (size_t)(from - text);
    memmove(text, from, *len);
    return true;
}

/* ---- a chat's text --------------------------------------------------------------------------- */

static bool render(const struct openai_setup *setup, const json_t *variables, char **text,
                   size_t *len, struct openai_error *err) {
    char *request = json_dumps(variables, JSON_COMPACT);
    if (!request)
        return openai_no_memory(err);
    kvasir_error why = {0};
    kvasir_status status =
        kvasir_chat_render(setup->tokenizer, request, strlen(request), text, len, &why);
    free(request);
    return status == KVASIR_OK || openai_library_failed(err, "messages", &why);
}

bool openai_chat_text(const struct openai_setup *setup, const json_t *body,
                      const struct openai_chat_form *form, struct openai_request *r, char **text,
                      size_t *len, struct openai_error *err) {
    json_t *messages = NULL, *variables;
    if (!read_messages(setup, body, &messages, err))
        return false;
    size_t last = json_array_size(messages) - 1;
    json_t *said = json_incref(json_object_get(json_array_get(messages, last), "content"));
    bool good = (!form->behind_file || mark_begin(messages, err)) &&
                (!form->continues || mark_end(messages, err));
    variables = json_pack("{s:o}", "messages", messages);
    if (!variables)
        good = openai_no_memory(err);
    good = good && set_variables(setup, body, r, variables, err);
    if (good && !form->begins &&
        json_object_set_new(variables, "add_generation_prompt", json_false()) != 0)
        good = openai_no_memory(err);
    good = good && render(setup, variables, text, len, err);
    if (good && !((!form->continues || cut_end(*text, len, said, last, err)) &&
                  (!form->behind_file || cut_begin(*text, len, err)))) {
        kvasir_free(*text);
        good = false;
    }
    json_decref(variables);
    json_decref(said);
    return good;
}

static bool read_chat(const struct openai_setup *setup, const json_t *body,
                      struct openai_request *r, struct openai_error *err) {
    const struct openai_chat_form form = {
        .begins = !r->continues, .continues = r->continues, .behind_file = r->prompt_cache != NULL};
    char *text;
    size_t len;
    if (!openai_chat_text(setup, body, &form, r, &text, &len, err))
        return false;
    bool good =
        tokenize(setup, "messages", text, len, 0, r, err) && set_answer(setup, text, len, r, err);
    kvasir_free(text);
    return good;
}

/* ---- all of it ------------------------------------------------------------------------------- */

bool openai_read(const struct openai_setup *setup, enum openai_api api, const json_t *body,
                 struct openai_request *out, struct openai_error *err) {
    if (!openai_is_object(body, err))
        return false;
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

kvasir_status openai_submit(kvasir_engine *engine, const struct openai_request *r,
                            kvasir_event_fn *on_event, void *user, uint64_t *id,
                            kvasir_error *err) {
    kvasir_request request = r->engine;
    request.on_event = on_event;
    request.user = user;
    kvasir_status status = kvasir_engine_submit(engine, &request, id, err);
    if ((status != KVASIR_ERR_CONTEXT && status != KVASIR_ERR_BUDGET) || !r->default_length ||
        !request.max_tokens)
        return status;
    request.max_tokens = 0;
    return kvasir_engine_submit(engine, &request, id, err);
}

void openai_request_free(struct openai_request *r) {
    free(r->ids);
    kvasir_free(r->tokenized);
    free(r->stops);
    free(r->stop_tokens);
    free(r->shown_tokens);
    kvasir_free(r->xtc_special);
    free(r->logit_bias);
    json_decref(r->kept);
    *r = (struct openai_request){0};
}
