/* SPDX-License-Identifier: Apache-2.0 */
/* responses_items.c: items of /v1/responses as messages of a chat.
 *
 *     message                                   a message; its texts are joined by line ends
 *     reasoning                                 reasoning_content of the assistant's message
 *     function_call, custom_tool_call           tool_calls of it
 *     function_call_output, custom_...output    a message of the role tool
 *
 * An assistant's items that follow each other are one message, up to its calls: a text after calls
 * begins the next. Reasoning whose text is not there (only its summary, or encrypted) is passed
 * over, as are item types that only OpenAI's own tools make: they have no text.
 */
#include "api/api_chat.h"
#include "api/responses.h"
#include "util/json.h"

#include <string.h>

/* ---- texts ----------------------------------------------------------------------------------- */

static bool is_one_of(const char *word, const char *const *words) {
    for (; *words; words++)
        if (strcmp(word, *words) == 0)
            return true;
    return false;
}

/* A text, or an array of parts that have one, joined by line ends. */
static bool add_content(struct text_buf *b, json_t *content, const char *at,
                        struct api_error *err) {
    static const char *const TEXTS[] = {"input_text",   "output_text",    "text",
                                        "summary_text", "reasoning_text", NULL};
    if (json_is_string(content))
        return api_add_line(b, json_string_value(content), json_string_length(content)) ||
               api_no_memory(err);
    if (!json_is_array(content))
        return api_wrong_type(err, at, content, "a string or an array of parts");
    for (size_t i = 0; i < json_array_size(content); i++) {
        json_t *part = json_array_get(content, i), *text;
        const struct api_path here = api_item(at, i);
        const char *type = api_type_of(part, here.text, err);
        if (!type)
            return false;
        const bool refusal = strcmp(type, "refusal") == 0;
        if (!refusal && !is_one_of(type, TEXTS))
            return api_refuse(err, api_member(here.text, "type").text,
                              "\"%.40s\" is not supported, only text is", type);
        if (!(text = api_string_of(part, here.text, refusal ? "refusal" : "text", err)))
            return false;
        if (!api_add_line(b, json_string_value(text), json_string_length(text)))
            return api_no_memory(err);
    }
    return true;
}

/* ---- items ----------------------------------------------------------------------------------- */

static bool message_item(struct api_chat *c, json_t *item, const char *at) {
    static const char *const ROLES[] = {"user", "assistant", "system", "developer"};
    const char *given, *role = NULL;
    if (!api_word(api_get(item, "role"), api_member(at, "role").text, &given, c->err))
        return false;
    for (size_t i = 0; i < sizeof ROLES / sizeof *ROLES; i++)
        role = strcmp(given, ROLES[i]) == 0 ? ROLES[i] : role;
    if (!role)
        return api_refuse(c->err, api_member(at, "role").text,
                          "\"%.40s\" is not user, assistant, system or developer", given);
    const bool joins = strcmp(role, "assistant") == 0 && !c->calls;
    return (joins || api_chat_end(c)) && api_chat_enter(c, role) &&
           add_content(&c->text, api_get(item, "content"), api_member(at, "content").text, c->err);
}

static bool reasoning_item(struct api_chat *c, json_t *item, const char *at) {
    json_t *content = api_get(item, "content");
    if (!content)
        return true;
    if (c->calls && !api_chat_end(c))
        return false;
    return api_chat_enter(c, "assistant") &&
           add_content(&c->thinking, content, api_member(at, "content").text, c->err);
}

static bool call_item(struct api_chat *c, json_t *item, const char *at) {
    json_t *id = api_string_of(item, at, "call_id", c->err), *name, *text, *arguments;
    kvasir_error why;
    if (!id || !(name = api_string_of(item, at, "name", c->err)) ||
        !(text = api_string_of(item, at, "arguments", c->err)))
        return false;
    const size_t len = json_string_length(text);
    arguments = len ? NULL : json_object();
    if (len && json_load_request(json_string_value(text), len, JSON_ALLOW_NUL, &arguments, &why))
        return api_refuse(c->err, api_member(at, "arguments").text, "%.100s", why.text);
    if (!json_is_object(arguments)) {
        json_decref(arguments);
        return api_refuse(c->err, api_member(at, "arguments").text,
                          "is not the text of a JSON object");
    }
    if (api_chat_enter(c, "assistant"))
        return api_chat_call(c, id, name, arguments);
    json_decref(arguments);
    return false;
}

/* A custom tool is shown to the model as a function with one text. */
static bool custom_item(struct api_chat *c, json_t *item, const char *at) {
    json_t *id = api_string_of(item, at, "call_id", c->err), *name, *input;
    if (!id || !(name = api_string_of(item, at, "name", c->err)) ||
        !(input = api_string_of(item, at, "input", c->err)))
        return false;
    return api_chat_enter(c, "assistant") &&
           api_chat_call(c, id, name, json_pack("{s:O}", "input", input));
}

static bool result_item(struct api_chat *c, json_t *item, const char *at) {
    json_t *id = api_string_of(item, at, "call_id", c->err);
    struct text_buf text = {0};
    const bool good =
        id && add_content(&text, api_get(item, "output"), api_member(at, "output").text, c->err) &&
        api_chat_end(c) && api_chat_result(c, id, &text);
    text_free(&text);
    return good;
}

static bool no_text(struct api_chat *c, json_t *item, const char *at) {
    (void)c, (void)item, (void)at;
    return true;
}

static const struct item_kind {
    const char *type;
    bool (*read)(struct api_chat *c, json_t *item, const char *at);
} KINDS[] = {
    {"message", message_item},
    {"reasoning", reasoning_item},
    {"function_call", call_item},
    {"function_call_output", result_item},
    {"custom_tool_call", custom_item},
    {"custom_tool_call_output", result_item},
    /* calls of OpenAI's own tools, and of the protocol */
    {"web_search_call", no_text},
    {"file_search_call", no_text},
    {"image_generation_call", no_text},
    {"code_interpreter_call", no_text},
    {"mcp_list_tools", no_text},
    {"compaction", no_text},
};

/* A message may leave its type out. */
static bool read_item(struct api_chat *c, json_t *item, const char *at) {
    const char *type = "message";
    if (!json_is_object(item))
        return api_wrong_type(c->err, at, item, "an object");
    if (api_get(item, "type") && !(type = api_type_of(item, at, c->err)))
        return false;
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (strcmp(type, KINDS[i].type) == 0)
            return KINDS[i].read(c, item, at);
    return api_refuse(c->err, api_member(at, "type").text,
                      "\"%.40s\" is not supported, only message, reasoning, function_call, "
                      "custom_tool_call and their outputs are",
                      type);
}

bool responses_messages(json_t *items, size_t from, size_t first, json_t *messages,
                        struct api_error *err) {
    struct api_chat chat = {.messages = json_incref(messages), .err = err};
    bool good = true;
    for (size_t i = from; good && i < json_array_size(items); i++)
        good = read_item(&chat, json_array_get(items, i),
                         i < first ? "previous_response_id" : api_item("input", i - first).text);
    good = good && api_chat_end(&chat);
    api_chat_free(&chat);
    return good;
}
