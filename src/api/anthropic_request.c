/* SPDX-License-Identifier: Apache-2.0 */
/* anthropic_request.c: Anthropic's body as one of OpenAI's.
 *
 *     system                          a message of the role system
 *     text                            content; texts of a message are joined by line ends
 *     thinking                        reasoning_content; redacted_thinking is dropped
 *     tool_use                        tool_calls
 *     tool_result                     a message of the role tool; with "Error: " if is_error
 *     a last assistant message        continue_final_message
 *     tools, stop_sequences           tools, stop
 *     tool_choice any, tool           tool_choice "required", a function
 *     output_config.format            response_format
 *     thinking.type                   chat_template_kwargs.enable_thinking; budgets are ignored
 *     output_config.effort            reasoning_effort
 *
 * Consecutive messages of one role become one, as Anthropic specifies. Parts of a user's message
 * keep their order, so that tool results come before the text after them. A message of the role
 * system between others, which Claude Code sends, stays where it is.
 *
 * Lines of system texts that begin with "x-anthropic-billing-header:" are dropped, as in vllm-mlx.
 * Claude Code begins with one that contains a number (cch=), which changes with every request, so
 * that no stored prefix would ever match. Nothing else is removed.
 *
 * Everything that openai_read would refuse in messages and tools is refused here by Anthropic's
 * names, except errors of a template, and that it cannot continue a last text.
 */
#include "api/anthropic.h"
#include "api/api_chat.h"
#include "api/api_fields.h"
#include "api/api_json.h"
#include "util/json.h"

#include <stdio.h>
#include <string.h>

/* ---- messages -------------------------------------------------------------------------------- */

static bool add_system(struct text_buf *b, const char *text, size_t len) {
    static const char BILLING[] = "x-anthropic-billing-header:";
    struct text_buf kept = {0};
    bool good = true;
    while (good && len > 0) {
        const char *end = memchr(text, '\n', len);
        size_t n = end ? (size_t)(end - text) + 1 : len;
        if (n < strlen(BILLING) || memcmp(text, BILLING, strlen(BILLING)) != 0)
            good = text_append(&kept, text, n);
        text += n;
        len -= n;
    }
    good = good && api_add_line(b, kept.data, kept.len);
    text_free(&kept);
    return good;
}

/* A text, or an array of text blocks, through `add`. */
static bool add_texts(struct text_buf *b, json_t *content, const char *at,
                      bool (*add)(struct text_buf *, const char *, size_t), struct api_error *err) {
    if (json_is_string(content))
        return add(b, json_string_value(content), json_string_length(content)) ||
               api_no_memory(err);
    if (!json_is_array(content))
        return api_wrong_type(err, at, content, "a string or an array of blocks");
    for (size_t i = 0; i < json_array_size(content); i++) {
        json_t *block = json_array_get(content, i), *text;
        const struct api_path here = api_item(at, i);
        const char *type = api_type_of(block, here.text, err);
        if (!type)
            return false;
        if (strcmp(type, "text") != 0)
            return api_refuse(err, api_member(here.text, "type").text,
                              "\"%.40s\" is not supported, only text is", type);
        if (!(text = api_string_of(block, here.text, "text", err)))
            return false;
        if (!add(b, json_string_value(text), json_string_length(text)))
            return api_no_memory(err);
    }
    return true;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static bool text_block(struct api_chat *c, json_t *block, const char *at) {
    json_t *text = api_string_of(block, at, "text", c->err);
    if (!text)
        return false;
    return api_add_line(&c->text, json_string_value(text), json_string_length(text)) ||
           api_no_memory(c->err);
}

static bool thinking_block(struct api_chat *c, json_t *block, const char *at) {
    json_t *text = api_string_of(block, at, "thinking", c->err);
    if (!text)
        return false;
    return api_add_line(&c->thinking, json_string_value(text), json_string_length(text)) ||
           api_no_memory(c->err);
}

static bool redacted_block(struct api_chat *c, json_t *block, const char *at) {
    (void)c, (void)block, (void)at;
    return true;
}

static bool tool_use_block(struct api_chat *c, json_t *block, const char *at) {
    json_t *id = api_string_of(block, at, "id", c->err), *name, *input;
    if (!id || !(name = api_string_of(block, at, "name", c->err)))
        return false;
    input = api_get(block, "input");
    if (!json_is_object(input))
        return api_wrong_type(c->err, api_member(at, "input").text, input, "an object");
    return api_chat_call(c, id, name, json_incref(input));
}

static bool tool_result_block(struct api_chat *c, json_t *block, const char *at) {
    json_t *id = api_string_of(block, at, "tool_use_id", c->err),
           *content = api_get(block, "content"), *failed = api_get(block, "is_error");
    if (!id)
        return false;
    if (failed && !json_is_boolean(failed))
        return api_wrong_type(c->err, api_member(at, "is_error").text, failed, "true or false");
    struct text_buf text = {0}, result = {0};
    bool good =
        !content || add_texts(&text, content, api_member(at, "content").text, api_add_line, c->err);
    if (good && !((!json_is_true(failed) || text_puts(&result, "Error: ")) &&
                  text_append(&result, text.data, text.len)))
        good = api_no_memory(c->err);
    if (good) {
        c->role = c->text.len ? c->role : NULL; /* no empty message before the first result */
        good = api_chat_end(c) && api_chat_result(c, id, &result);
    }
    text_free(&text);
    text_free(&result);
    return good;
}

static const struct block_kind {
    const char *type, *role; /* NULL: of any */
    bool (*read)(struct api_chat *c, json_t *block, const char *at);
} BLOCKS[] = {
    {"text", NULL, text_block},
    {"tool_use", "assistant", tool_use_block},
    {"thinking", "assistant", thinking_block},
    {"redacted_thinking", "assistant", redacted_block},
    {"tool_result", "user", tool_result_block},
};

static bool read_block(struct api_chat *c, const char *role, json_t *block, const char *at) {
    const char *type = api_type_of(block, at, c->err);
    const struct block_kind *kind = NULL;
    if (!type)
        return false;
    for (size_t i = 0; i < sizeof BLOCKS / sizeof *BLOCKS; i++)
        if (strcmp(type, BLOCKS[i].type) == 0)
            kind = &BLOCKS[i];
    if (!kind)
        return api_refuse(c->err, api_member(at, "type").text,
                          "\"%.40s\" is not supported, only text, tool_use, tool_result and "
                          "thinking are",
                          type);
    if (kind->role && strcmp(kind->role, role) != 0)
        return api_refuse(c->err, api_member(at, "type").text,
                          "\"%s\" blocks are not allowed in a message of the role \"%s\"", type,
                          role);
    return api_chat_enter(c, role) && kind->read(c, block, at);
}

static bool read_message(struct api_chat *c, json_t *message, const char *at) {
    static const char *const ROLES[] = {"user", "assistant", "system"};
    if (!json_is_object(message))
        return api_wrong_type(c->err, at, message, "an object");
    json_t *content = api_get(message, "content");
    const char *role = NULL, *given;
    const struct api_path here = api_member(at, "content");
    if (!api_word(api_get(message, "role"), api_member(at, "role").text, &given, c->err))
        return false;
    for (size_t i = 0; i < sizeof ROLES / sizeof *ROLES; i++)
        role = strcmp(given, ROLES[i]) == 0 ? ROLES[i] : role;
    if (!role)
        return api_refuse(c->err, api_member(at, "role").text,
                          "\"%.40s\" is not user, assistant or system", given);
    bool system = strcmp(role, "system") == 0;
    if (!json_is_array(content) || system)
        return api_chat_enter(c, role) &&
               add_texts(&c->text, content, here.text, system ? add_system : api_add_line, c->err);
    for (size_t i = 0; i < json_array_size(content); i++)
        if (!read_block(c, role, json_array_get(content, i), api_item(here.text, i).text))
            return false;
    return json_array_size(content) > 0 || api_chat_enter(c, role);
}

/* The chat into `out`, with continue_final_message if the last message is an assistant's. */
static bool read_chat(struct api_chat *c, json_t *body, json_t *out) {
    json_t *system = api_get(body, "system"), *messages = api_get(body, "messages");
    size_t n = json_array_size(messages);
    if (!json_is_array(messages))
        return api_wrong_type(c->err, "messages", messages, "an array");
    if (n == 0)
        return api_refuse(c->err, "messages", "is empty");
    if (system && (!api_chat_enter(c, "system") ||
                   !add_texts(&c->text, system, "system", add_system, c->err)))
        return false;
    if (c->text.len == 0)
        c->role = NULL; /* it was empty */
    for (size_t i = 0; i < n; i++)
        if (!read_message(c, json_array_get(messages, i), api_item("messages", i).text))
            return false;
    bool continues = c->role && strcmp(c->role, "assistant") == 0;
    if (continues && c->calls)
        return api_refuse(c->err, api_member(api_item("messages", n - 1).text, "content").text,
                          "the chat ends with tool_use: add its tool_result");
    if (!api_chat_end(c))
        return false;
    if (json_object_set(out, "messages", c->messages) != 0 ||
        json_object_set_new(out, "continue_final_message", json_boolean(continues)) != 0)
        return api_no_memory(c->err);
    return true;
}

/* ---- tools ----------------------------------------------------------------------------------- */

static bool read_tool(json_t *tool, const char *at, json_t *out, struct api_error *err) {
    if (!json_is_object(tool))
        return api_wrong_type(err, at, tool, "an object");
    json_t *type = api_get(tool, "type"), *about = api_get(tool, "description"),
           *schema = api_get(tool, "input_schema"), *strict = api_get(tool, "strict"), *name;
    const char *kind = "custom";
    if (type && !api_word(type, api_member(at, "type").text, &kind, err))
        return false;
    if (strcmp(kind, "custom") != 0)
        return api_refuse(err, api_member(at, "type").text,
                          "\"%.40s\" is not supported, only custom is", kind);
    if (!(name = api_string_of(tool, at, "name", err)))
        return false;
    if (about && !json_is_string(about))
        return api_wrong_type(err, api_member(at, "description").text, about, "a string");
    if (!json_is_object(schema))
        return api_wrong_type(err, api_member(at, "input_schema").text, schema, "an object");
    if (strict && !json_is_boolean(strict))
        return api_wrong_type(err, api_member(at, "strict").text, strict, "true or false");
    json_t *function = json_pack("{s:O, s:o, s:O, s:O*}", "name", name, "description",
                                 about ? json_incref(about) : json_string(""), "parameters", schema,
                                 "strict", strict);
    return json_array_append_new(
               out, json_pack("{s:s, s:o}", "type", "function", "function", function)) == 0 ||
           api_no_memory(err);
}

static bool read_tools(json_t *body, json_t *out, struct api_error *err) {
    json_t *tools = api_get(body, "tools");
    if (!tools)
        return true;
    if (!json_is_array(tools))
        return api_wrong_type(err, "tools", tools, "an array");
    json_t *list = json_array();
    bool good = list || api_no_memory(err);
    for (size_t i = 0; good && i < json_array_size(tools); i++)
        good = read_tool(json_array_get(tools, i), api_item("tools", i).text, list, err);
    if (good && json_object_set(out, "tools", list) != 0)
        good = api_no_memory(err);
    json_decref(list);
    return good;
}

static bool read_tool_choice(json_t *body, json_t *out, struct api_error *err) {
    json_t *choice = api_get(body, "tool_choice");
    if (!choice)
        return true;
    const char *type = api_type_of(choice, "tool_choice", err);
    if (!type)
        return false;
    const bool named = strcmp(type, "tool") == 0, any = strcmp(type, "any") == 0;
    if (!named && !any && strcmp(type, "auto") != 0 && strcmp(type, "none") != 0)
        return api_refuse(err, "tool_choice.type",
                          "\"%.40s\" is not \"auto\", \"any\", \"tool\" or \"none\"", type);
    json_t *name = named ? api_string_of(choice, "tool_choice", "name", err) : NULL;
    if (named && !name)
        return false;
    json_t *single = api_get(choice, "disable_parallel_tool_use");
    if (single && !json_is_boolean(single))
        return api_wrong_type(err, "tool_choice.disable_parallel_tool_use", single,
                              "true or false");
    json_t *made = named ? json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name)
                         : json_string(any ? "required" : type);
    if (json_object_set_new(out, "tool_choice", made) != 0 ||
        (single &&
         json_object_set_new(out, "parallel_tool_calls", json_boolean(!json_is_true(single))) != 0))
        return api_no_memory(err);
    return true;
}

/* ---- other fields ---------------------------------------------------------------------------- */

/* Edits of the prompt: only dropping older reasoning is accepted, which templates do anyway. */
static bool check_edits(json_t *body, struct api_error *err) {
    static const char KNOWN[] = "clear_thinking_";
    json_t *management = api_get(body, "context_management"), *edits = api_get(management, "edits");
    if (management && !json_is_object(management))
        return api_wrong_type(err, "context_management", management, "an object");
    if (edits && !json_is_array(edits))
        return api_wrong_type(err, "context_management.edits", edits, "an array");
    for (size_t i = 0; i < json_array_size(edits); i++) {
        const struct api_path at = api_item("context_management.edits", i);
        const char *type = api_type_of(json_array_get(edits, i), at.text, err);
        if (!type)
            return false;
        if (strncmp(type, KNOWN, strlen(KNOWN)) != 0)
            return api_refuse(err, api_member(at.text, "type").text, "\"%.40s\" is not supported",
                              type);
    }
    return true;
}

/* {"type": "enabled", "budget_tokens": 1024} */
static bool read_thinking(json_t *body, json_t *kwargs, struct api_error *err) {
    json_t *thinking = api_get(body, "thinking"), *budget = api_get(thinking, "budget_tokens");
    if (!thinking)
        return true;
    const char *type = api_type_of(thinking, "thinking", err);
    if (!type)
        return false;
    bool on = strcmp(type, "enabled") == 0 || strcmp(type, "adaptive") == 0;
    if (!on && strcmp(type, "disabled") != 0)
        return api_refuse(err, "thinking.type", "\"%.40s\" is not enabled, disabled or adaptive",
                          type);
    if (budget && !json_is_integer(budget))
        return api_wrong_type(err, "thinking.budget_tokens", budget, "a whole number");
    return json_object_set_new(kwargs, "enable_thinking", json_boolean(on)) == 0 ||
           api_no_memory(err);
}

/* chat_template_kwargs (of vLLM and vllm-mlx), with `thinking` added. */
static bool read_kwargs(json_t *body, json_t *out, struct api_error *err) {
    json_t *given = api_get(body, "chat_template_kwargs");
    if (given && !json_is_object(given))
        return api_wrong_type(err, "chat_template_kwargs", given, "an object");
    json_t *kwargs = given ? json_copy(given) : json_object();
    if (!kwargs)
        return api_no_memory(err);
    bool good = read_thinking(body, kwargs, err);
    if (good && json_object_set(out, "chat_template_kwargs", kwargs) != 0)
        good = api_no_memory(err);
    json_decref(kwargs);
    return good;
}

/* {"type": "json_schema", "schema": {..}}, at output_config.format and before at output_format */
static bool read_format(json_t *format, const char *at, json_t *out, struct api_error *err) {
    const char *type = api_type_of(format, at, err);
    if (!type)
        return false;
    if (strcmp(type, "json_schema") != 0)
        return api_refuse(err, api_member(at, "type").text,
                          "\"%.40s\" is not supported, only json_schema is", type);
    json_t *schema = api_get(format, "schema");
    if (!json_is_object(schema))
        return api_wrong_type(err, api_member(at, "schema").text, schema, "an object");
    return json_object_set_new(out, "response_format",
                               json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema",
                                         "schema", schema)) == 0 ||
           api_no_memory(err);
}

static bool read_formats(json_t *body, json_t *out, struct api_error *err) {
    json_t *format = api_get(api_get(body, "output_config"), "format"),
           *older = api_get(body, "output_format");
    if (format && older)
        return api_refuse(err, "output_format", "cannot be combined with \"output_config.format\"");
    return (!format || read_format(format, "output_config.format", out, err)) &&
           (!older || read_format(older, "output_format", out, err));
}

/* {"effort": "low"}; templates know low, medium and high */
static bool read_output_config(json_t *body, json_t *out, struct api_error *err) {
    static const char *const EFFORTS[][2] = {
        {"low", "low"}, {"medium", "medium"}, {"high", "high"}, {"xhigh", "high"}, {"max", "high"}};
    json_t *config = api_get(body, "output_config");
    const char *effort;
    if (!config)
        return true;
    if (!json_is_object(config))
        return api_wrong_type(err, "output_config", config, "an object");
    if (!api_get(config, "effort"))
        return true;
    if (!api_word(api_get(config, "effort"), "output_config.effort", &effort, err))
        return false;
    for (size_t i = 0; i < sizeof EFFORTS / sizeof *EFFORTS; i++)
        if (strcmp(effort, EFFORTS[i][0]) == 0)
            return json_object_set_new(out, "reasoning_effort", json_string(EFFORTS[i][1])) == 0 ||
                   api_no_memory(err);
    return api_refuse(err, "output_config.effort",
                      "\"%.40s\" is not low, medium, high, xhigh or max", effort);
}

/* Fields that are copied unchanged. */
static const struct {
    const char *theirs, *openai;
} FIELDS[] = {
    {"model", "model"},
    {"max_tokens", "max_tokens"},
    {"temperature", "temperature"},
    {"top_p", "top_p"},
    {"top_k", "top_k"},
    {"stop_sequences", "stop"},
    {"stream", "stream"},
    {"cache_salt", "cache_salt"},
    {"priority", "priority"},
    {"control_tokens", "control_tokens"},
    {"cache", "cache"},
    {"min_p", "min_p"},
    {"seed", "seed"},
    {"repetition_penalty", "repetition_penalty"},
    {"repetition_context_size", "repetition_context_size"},
    {"presence_penalty", "presence_penalty"},
    {"frequency_penalty", "frequency_penalty"},
};

static bool copy_fields(json_t *body, bool count, json_t *out, struct api_error *err) {
    json_t *stops = api_get(body, "stop_sequences");
    json_int_t tokens; /* -1 is for llama.cpp's clients */
    float temperature;
    if (!api_whole(body, "max_tokens", 1, UINT32_MAX, &tokens, err) ||
        !api_real(api_get(body, "temperature"), "temperature", 0, 1, &temperature, err))
        return false;
    if (stops && !json_is_array(stops))
        return api_wrong_type(err, "stop_sequences", stops, "an array of strings");
    if (!count && !api_get(body, "max_tokens"))
        return api_refuse(err, "max_tokens", "missing");
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        json_t *value = api_get(body, FIELDS[i].theirs);
        if (value && json_object_set(out, FIELDS[i].openai, value) != 0)
            return api_no_memory(err);
    }
    return true;
}

enum api_want anthropic_wants(const char *name, size_t len, const char **known) {
    static const char *const NAMES[] = {
        "system",   "messages",      "tools",         "tool_choice",          "context_management",
        "thinking", "output_config", "output_format", "chat_template_kwargs", NULL};
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        if (json_name_is(name, len, *known = FIELDS[i].theirs))
            return API_TREE;
    return api_want_of(&(struct api_names){API_TREE, NAMES}, 1, name, len, known);
}

/* ---- all of it ------------------------------------------------------------------------------- */

json_t *anthropic_translate(json_t *body, bool count, struct api_error *err) {
    struct api_chat chat = {.messages = json_array(), .err = err};
    json_t *out = json_object();
    bool good = (out && chat.messages) || api_no_memory(err);
    good = good && api_fields_check(body, NULL, err) && check_edits(body, err) &&
           copy_fields(body, count, out, err) && read_tools(body, out, err) &&
           read_tool_choice(body, out, err) && read_kwargs(body, out, err) &&
           read_output_config(body, out, err) && read_formats(body, out, err) &&
           read_chat(&chat, body, out);
    api_chat_free(&chat);
    if (good)
        return out;
    json_decref(out);
    return NULL;
}

/* Errors of what the answer must be: the path of a schema, of a tool's, of a tool's name. */
static void rename_constraint(json_t *body, struct api_error *err) {
    static const char SCHEMA[] = "response_format.json_schema";
    const bool older = api_get(body, "output_format") != NULL;
    (void)api_rename(err, SCHEMA, older ? "output_format" : "output_config.format");
    (void)api_rename(err, "tool_choice.function", "tool_choice");
    for (size_t i = 0; i < json_array_size(api_get(body, "tools")); i++) {
        const struct api_path ours = api_item("tools", i),
                              theirs = api_member(ours.text, "input_schema");
        const struct api_path function = api_member(ours.text, "function");
        (void)api_rename(err, api_member(function.text, "parameters").text, theirs.text);
        (void)api_rename(err, function.text, ours.text);
    }
}

/* Errors of openai_read, by Anthropic's names. */
static void rename_error(json_t *body, json_t *translated, struct api_error *err) {
    size_t last = json_array_size(json_object_get(translated, "messages")) - 1,
           theirs = json_array_size(json_object_get(body, "messages")) - 1;
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        if (api_rename(err, FIELDS[i].openai, FIELDS[i].theirs))
            return;
    api_rename(err, api_item("messages", last).text, api_item("messages", theirs).text);
    rename_constraint(body, err);
}

static bool read_body(const struct api_setup *setup, const struct api_body *body, bool count,
                      struct api_request *out, struct api_error *err) {
    struct api_body translated = {.members = anthropic_translate(body->members, count, err),
                                  .unknown = body->unknown};
    struct api_setup clamped = *setup;
    if (!translated.members)
        return false;
    clamped.clamp_tokens = true; /* Claude Code asks for 32,000 tokens, whatever the model */
    bool good = openai_read(&clamped, API_CHAT, &translated, out, err);
    if (good)
        out->answer.id_prefix = "toolu_";
    else {
        rename_error(body->members, translated.members, err);
        api_fields_rename(body, err);
    }
    api_body_free(&translated);
    return good;
}

bool anthropic_read(const struct api_setup *setup, struct api_body *body, struct api_request *out,
                    struct api_error *err) {
    return read_body(setup, body, false, out, err);
}

bool anthropic_count(const struct api_setup *setup, struct api_body *body, struct text_buf *out,
                     struct api_error *err) {
    struct api_request r;
    if (!read_body(setup, body, true, &r, err))
        return false;
    const bool good = text_printf(out, "{\"input_tokens\":%zu}", r.engine.n_tokens);
    api_request_free(&r);
    return good || api_no_memory(err);
}
