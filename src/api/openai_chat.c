/* SPDX-License-Identifier: Apache-2.0 */
/* openai_chat.c: messages of a body to the text of a prompt.
 *
 *     messages, tools ... -> a template's variables -> kvasir_chat_render_value -> text
 *
 * Templates are written for messages as Python has them, so texts in parts are joined, and the
 * arguments of tool calls, JSON in a string, become values, as mlx-lm and vLLM do.
 *
 * An answer begins a message of its own, as in mlx_lm.server and vLLM, also after an assistant's
 * message. With "continue_final_message" it continues that one: what the template writes after its
 * text is cut off. If a template trims texts, spaces at the end are cut off too, as in
 * transformers.
 *
 * With a prompt-cache file the prompt continues the user's text with which the file ends (`kvasir
 * cache-prompt`). The first message of a chat is the rest of that text: what the template writes
 * before it is cut off.
 */
#include "api/openai_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- messages -------------------------------------------------------------------------------- */

static const char *const ROLES[] = {"system", "developer", "user", "assistant", "tool", "function"};

static struct api_path openai_message_path(size_t i, const char *member) {
    struct api_path p;
    snprintf(p.text, sizeof p.text, "messages[%zu]%s%s", i, *member ? "." : "", member);
    return p;
}

static bool read_role(json_t *message, size_t i, const char **role, struct api_error *err) {
    if (!api_word(api_get(message, "role"), openai_message_path(i, "role").text, role, err))
        return false;
    for (size_t k = 0; k < sizeof ROLES / sizeof *ROLES; k++)
        if (strcmp(*role, ROLES[k]) == 0)
            return true;
    return api_refuse(err, openai_message_path(i, "role").text,
                      "\"%.40s\" is not system, developer, user, assistant, tool or function",
                      *role);
}

/* The text of a part {"type": "text", "text": ...}, or what an assistant refused with. */
static json_t *part_text(json_t *part, size_t i, size_t k, struct api_error *err) {
    char at[64], path[API_PATH_MAX];
    snprintf(at, sizeof at, "messages[%zu].content[%zu]", i, k);
    if (!json_is_object(part)) {
        api_wrong_type(err, at, part, "an object");
        return NULL;
    }
    const char *name;
    snprintf(path, sizeof path, "%s.type", at);
    if (!api_word(api_get(part, "type"), path, &name, err))
        return NULL;
    if (strcmp(name, "text") != 0 && strcmp(name, "refusal") != 0) {
        api_refuse(err, path, "\"%.40s\" is not supported, only text is", name);
        return NULL;
    }
    json_t *text = api_get(part, name);
    snprintf(path, sizeof path, "%s.%.10s", at, name);
    if (!json_is_string(text)) {
        api_wrong_type(err, path, text, "a string");
        return NULL;
    }
    return text;
}

static bool join_parts(json_t *parts, size_t i, json_t **out, struct api_error *err) {
    size_t len = 0, at = 0, n = json_array_size(parts);
    for (size_t k = 0; k < n; k++) {
        json_t *text = part_text(json_array_get(parts, k), i, k, err);
        if (!text)
            return false;
        len += json_string_length(text);
    }
    char *joined = malloc(len + 1);
    for (size_t k = 0; joined && k < n; k++) {
        json_t *text = part_text(json_array_get(parts, k), i, k, err);
        memcpy(joined + at, json_string_value(text), json_string_length(text));
        at += json_string_length(text);
    }
    *out = joined ? json_stringn(joined, len) : NULL;
    free(joined);
    return *out || api_no_memory(err);
}

/* *out: a new reference to a string, or to null if an assistant only calls tools, as templates
 * expect. */
static bool read_content(json_t *message, const char *role, size_t i, json_t **out,
                         struct api_error *err) {
    json_t *content = api_get(message, "content");
    bool assistant = strcmp(role, "assistant") == 0;
    if (json_is_array(content))
        return join_parts(content, i, out, err);
    if (content && !json_is_string(content))
        return api_wrong_type(err, openai_message_path(i, "content").text, content,
                              "a string or an array of parts");
    if (!content && !assistant)
        return api_refuse(err, openai_message_path(i, "content").text, "missing");
    if (content)
        *out = json_incref(content);
    else
        *out = api_get(message, "tool_calls") ? json_null() : json_string("");
    return *out || api_no_memory(err);
}

/* A message's reasoning has two names. Templates know the first; that of gpt-oss knows a third,
 * which it does not accept together with content and tool calls. */
static bool read_reasoning(const struct api_setup *setup, json_t *made, size_t i,
                           struct api_error *err) {
    static const char *const NAMES[] = {"reasoning_content", "reasoning"};
    json_t *text = NULL;
    for (size_t k = 0; k < 2; k++) {
        json_t *value = api_get(made, NAMES[k]);
        if (value && !json_is_string(value))
            return api_wrong_type(err, openai_message_path(i, NAMES[k]).text, value, "a string");
        text = text ? text : value;
    }
    if (!text)
        return true;
    bool harmony =
        setup->syntax && setup->syntax->tools == ANSWER_HARMONY && !api_get(made, "thinking") &&
        !(api_get(made, "tool_calls") && json_string_length(json_object_get(made, "content")) > 0);
    return (json_object_set(made, NAMES[0], text) == 0 &&
            (!harmony || json_object_set(made, "thinking", text) == 0)) ||
           api_no_memory(err);
}

/* A message as templates expect it, new; false with *err. */
static bool read_message(const struct api_setup *setup, json_t *message, size_t i, json_t **out,
                         struct api_error *err) {
    if (!json_is_object(message))
        return api_wrong_type(err, openai_message_path(i, "").text, message, "an object");
    const char *role;
    json_t *content = NULL, *calls = NULL, *made = NULL;
    if (!read_role(message, i, &role, err) || !read_content(message, role, i, &content, err))
        return false;
    json_t *given = api_get(message, "tool_calls"), *id = api_get(message, "tool_call_id");
    bool good = true;
    if (id && !json_is_string(id))
        good = api_wrong_type(err, openai_message_path(i, "tool_call_id").text, id, "a string");
    else if (given && !json_is_array(given))
        good = api_wrong_type(err, openai_message_path(i, "tool_calls").text, given, "an array");
    else if (given && !(calls = json_deep_copy(given)))
        good = api_no_memory(err);
    for (size_t k = 0; good && k < json_array_size(calls); k++)
        good = openai_read_call(json_array_get(calls, k), i, k, err);
    if (good) {
        made = json_copy(message);
        if (!made || json_object_set(made, "content", content) != 0 ||
            (calls && json_object_set(made, "tool_calls", calls) != 0))
            good = api_no_memory(err);
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

static bool read_messages(const struct api_setup *setup, json_t *body, json_t **out,
                          struct api_error *err) {
    json_t *given = api_get(body, "messages");
    if (!json_is_array(given))
        return api_wrong_type(err, "messages", given, "an array");
    if (json_array_size(given) == 0)
        return api_refuse(err, "messages", "is empty");
    json_t *list = json_array(), *message = NULL;
    bool good = list != NULL || api_no_memory(err);
    for (size_t i = 0; good && i < json_array_size(given); i++) {
        good = read_message(setup, json_array_get(given, i), i, &message, err);
        if (good && json_array_append_new(list, message) != 0)
            good = api_no_memory(err);
    }
    if (good)
        *out = list;
    else
        json_decref(list);
    return good;
}

/* ---- template -------------------------------------------------------------------------------- */

/* Members of the body that become variables of the template. */
static bool set_variables(const struct api_setup *setup, json_t *body, struct api_request *r,
                          json_t *variables, struct api_error *err) {
    json_t *tools;
    if (!openai_read_tools(body, r, &tools, err))
        return false;
    if (tools && json_object_set(variables, "tools", tools) != 0)
        return api_no_memory(err);
    json_t *effort = api_get(body, "reasoning_effort");
    if (effort && !json_is_string(effort))
        return api_wrong_type(err, "reasoning_effort", effort, "a string");
    json_t *documents = api_get(body, "documents");
    if (documents && !json_is_array(documents))
        return api_wrong_type(err, "documents", documents, "an array");
    json_t *more = api_get(body, "chat_template_kwargs");
    if (more && !json_is_object(more))
        return api_wrong_type(err, "chat_template_kwargs", more, "an object");
    if (api_get(more, "messages"))
        return api_refuse(err, "chat_template_kwargs.messages",
                          "belongs in the body, as \"messages\"");
    if (setup->variables && json_object_update(variables, setup->variables) != 0)
        return api_no_memory(err);
    if ((effort && json_object_set(variables, "reasoning_effort", effort) != 0) ||
        (documents && json_object_set(variables, "documents", documents) != 0) ||
        (more && json_object_update(variables, more) != 0))
        return api_no_memory(err);
    return true;
}

/* ---- where a chat's text begins and ends ----------------------------------------------------- */

bool openai_read_shape(json_t *body, struct openai_chat_shape *shape, struct api_error *err) {
    *shape = (struct openai_chat_shape){0};
    if (!api_flag(body, "continue_final_message", &shape->continues, err))
        return false;
    shape->begins_answer = !shape->continues;
    if (!api_flag(body, "add_generation_prompt", &shape->begins_answer, err))
        return false;
    return !(shape->begins_answer && shape->continues) ||
           api_refuse(err, "add_generation_prompt",
                      "cannot be true together with \"continue_final_message\"");
}

/* Put before the first message's text and after the last one's while a template is rendered, to
 * find where those end up. */
static const char BEGIN_MARK[] = "kvasir:the-text-of-the-user";
static const char END_MARK[] = "kvasir:the-end-of-the-text";

static bool mark_text(json_t *message, const char *before, const char *after,
                      struct api_error *err) {
    json_t *content = json_object_get(message, "content");
    size_t len = json_string_length(content), n = strlen(before), m = strlen(after);
    char *text = malloc(n + len + m + 1);
    if (!text)
        return api_no_memory(err);
    memcpy(text, before, n);
    if (len)
        memcpy(text + n, json_string_value(content), len);
    memcpy(text + n + len, after, m);
    json_t *marked = json_stringn(text, n + len + m);
    free(text);
    return json_object_set_new(message, "content", marked) == 0 || api_no_memory(err);
}

static bool mark_begin(json_t *messages, struct api_error *err) {
    json_t *first = json_array_get(messages, 0);
    if (strcmp(json_string_value(json_object_get(first, "role")), "user") != 0)
        return api_refuse(err, "messages[0].role",
                          "must be \"user\": its text continues that of \"prompt_cache\"");
    return mark_text(first, BEGIN_MARK, "", err);
}

/* A space follows the mark; a template that trims texts drops it. */
static bool mark_end(json_t *messages, struct api_error *err) {
    size_t i = json_array_size(messages) - 1;
    json_t *last = json_array_get(messages, i);
    char after[sizeof END_MARK + 1];
    if (strcmp(json_string_value(json_object_get(last, "role")), "assistant") != 0)
        return api_refuse(err, openai_message_path(i, "role").text,
                          "must be \"assistant\" to be continued");
    if (json_array_size(json_object_get(last, "tool_calls")) > 0)
        return api_refuse(err, openai_message_path(i, "tool_calls").text,
                          "a message that ends with tool calls cannot be continued");
    snprintf(after, sizeof after, "%s ", END_MARK);
    return mark_text(last, "", after, err);
}

/* The only occurrence of a mark in a text, which may contain NUL bytes; NULL: none or several. */
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

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Cuts the text after the last message's, whose `content` is as it was before the mark. */
static bool cut_end(const char *text, size_t *len, json_t *content, size_t i,
                    struct api_error *err) {
    const char *said = json_string_value(content), *mark = find_mark(text, *len, END_MARK);
    size_t n = json_string_length(content), end = mark ? (size_t)(mark - text) : 0;
    for (; n > 0 && is_space(*said); n--) /* templates may trim it */
        said++;
    if (!mark || end < n || (n && memcmp(mark - n, said, n) != 0))
        return api_refuse(err, openai_message_path(i, "content").text,
                          "the chat template does not write the last message's text exactly once "
                          "and unchanged, so it cannot be continued");
    const char *after = mark + strlen(END_MARK);
    bool trimmed = after == text + *len || *after != ' ';
    for (; trimmed && n > 0 && is_space(said[n - 1]); n--)
        end--;
    ASSERT(end <= *len);
    *len = end;
    return true;
}

/* Drops what precedes the first message's text. */
static bool cut_begin(char *text, char *authors, size_t *len, struct api_error *err) {
    const char *mark = find_mark(text, *len, BEGIN_MARK);
    if (!mark)
        return api_refuse(err, "prompt_cache",
                          "the chat template does not write the first message's text exactly once "
                          "and unchanged: use /v1/completions to continue a file");
    const char *from = mark + strlen(BEGIN_MARK);
    ASSERT(from <= text + *len);
    size_t dropped = (size_t)(from - text);
    *len -= dropped;
    memmove(text, from, *len);
    if (authors)
        memmove(authors, authors + dropped, *len);
    return true;
}

/* ---- a chat's text --------------------------------------------------------------------------- */

/* Makes contents that are null empty. Whether there were any. */
static bool empty_nulls(json_t *messages) {
    bool any = false;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        if (json_is_null(json_object_get(message, "content")))
            any |= json_object_set_new(message, "content", json_string("")) == 0;
    }
    return any;
}

/* By a content of null some templates tell calls from texts; others join it to a text, which fails:
 * they get an empty one. */
static bool render(const struct api_setup *setup, json_t *variables, char **text, char **authors,
                   size_t *len, struct api_error *err) {
    kvasir_error why = {0};
    kvasir_status status;
    do
        status = kvasir_chat_render_value(setup->tokenizer, variables, setup->limits, text, authors,
                                          len, &why);
    while (status == KVASIR_ERR_TEMPLATE && empty_nulls(json_object_get(variables, "messages")));
    return status == KVASIR_OK || api_library_failed(err, "messages", &why);
}

bool openai_chat_text(const struct api_setup *setup, json_t *body,
                      const struct openai_chat_shape *shape, struct api_request *r, char **text,
                      char **authors, size_t *len, struct api_error *err) {
    json_t *messages = NULL, *variables;
    if (!read_messages(setup, body, &messages, err))
        return false;
    size_t last = json_array_size(messages) - 1;
    json_t *said = json_incref(json_object_get(json_array_get(messages, last), "content"));
    bool good = (!shape->after_file || mark_begin(messages, err)) &&
                (!shape->continues || mark_end(messages, err));
    variables = json_pack("{s:o}", "messages", messages);
    if (!variables)
        good = api_no_memory(err);
    good = good && set_variables(setup, body, r, variables, err);
    if (good && !shape->begins_answer &&
        json_object_set_new(variables, "add_generation_prompt", json_false()) != 0)
        good = api_no_memory(err);
    good = good && render(setup, variables, text, authors, len, err);
    if (good && !((!shape->continues || cut_end(*text, len, said, last, err)) &&
                  (!shape->after_file || cut_begin(*text, authors ? *authors : NULL, len, err)))) {
        kvasir_free(*text);
        if (authors)
            kvasir_free(*authors);
        good = false;
    }
    json_decref(variables);
    json_decref(said);
    return good;
}
