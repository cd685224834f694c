/* SPDX-License-Identifier: Apache-2.0 */
/* responses_request.c: a body of /v1/responses as a chat's, and what its answer repeats of it.
 *
 *     instructions                    a message of the role system, before all
 *     input                           messages (responses_items.c)
 *     max_output_tokens               max_tokens
 *     text.format, .verbosity         response_format; the verbosity changes nothing
 *     reasoning.effort                reasoning_effort
 *     tools, tool_choice              the same in a chat's form
 *     truncation "auto"               the oldest items are left out until the prompt fits
 *
 * Everything that openai_read would refuse is refused by this body's names.
 */
#include "api/api_chat.h"
#include "api/api_fields.h"
#include "api/responses.h"
#include "util/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is read of a body, beside its members. */
struct reading {
    const struct api_setup *setup;
    json_t *body;
    json_t *chat;     /* object: the chat's body */
    json_t *items;    /* array: of responses before this one, then this body's */
    size_t first;     /* the first of this body's */
    json_t *warnings; /* array */
    const struct api_unknown *unknown;
    struct api_error *err;
};

/* Takes value. */
static bool put(struct reading *r, const char *name, json_t *value) {
    return json_object_set_new(r->chat, name, value) == 0 || api_no_memory(r->err);
}

/* ---- fields ---------------------------------------------------------------------------------- */

/* Fields that are copied unchanged: OpenAI's, and those that other servers add to it. */
static const struct {
    const char *theirs, *chats;
} FIELDS[] = {
    {"model", "model"},
    {"max_output_tokens", "max_tokens"},
    {"temperature", "temperature"},
    {"top_p", "top_p"},
    {"stream", "stream"},
    {"parallel_tool_calls", "parallel_tool_calls"},
    {"top_k", "top_k"},
    {"min_p", "min_p"},
    {"seed", "seed"},
    {"repetition_context_size", "repetition_context_size"},
    {"stop", "stop"},
    {"repetition_penalty", "repetition_penalty"},
    {"presence_penalty", "presence_penalty"},
    {"frequency_penalty", "frequency_penalty"},
    {"chat_template_kwargs", "chat_template_kwargs"},
    {"cache_salt", "cache_salt"},
    {"priority", "priority"},
    {"control_tokens", "control_tokens"},
    {"cache", "cache"},
};
/* Read here. */
static const char *const NAMES[] = {"input",
                                    "instructions",
                                    "previous_response_id",
                                    "store",
                                    "text",
                                    "reasoning",
                                    "tools",
                                    "tool_choice",
                                    "truncation",
                                    "include",
                                    "metadata",
                                    "user",
                                    "safety_identifier",
                                    "prompt_cache_key",
                                    NULL};
/* Fields that are not supported, unless they have this value (NULL: only null changes nothing). */
static const struct {
    const char *name;
    json_type harmless; /* false, or 0 */
} NOT_SUPPORTED[] = {
    {"background", JSON_FALSE},
    {"conversation", JSON_NULL},
    {"prompt", JSON_NULL},
    {"top_logprobs", JSON_INTEGER},
};

static bool check_supported(json_t *body, struct api_error *err) {
    for (size_t i = 0; i < sizeof NOT_SUPPORTED / sizeof *NOT_SUPPORTED; i++) {
        json_t *value = api_get(body, NOT_SUPPORTED[i].name);
        if (value && (json_typeof(value) != NOT_SUPPORTED[i].harmless || json_integer_value(value)))
            return api_refuse(err, NOT_SUPPORTED[i].name, "is not supported");
    }
    if (!api_fields_check(body, NULL, err))
        return false;
    json_t *include = api_get(body, "include"), *word;
    size_t i;
    if (include && !json_is_array(include))
        return api_wrong_type(err, "include", include, "an array");
    json_array_foreach(include, i, word) {
        if (!json_is_string(word))
            return api_wrong_type(err, api_item("include", i).text, word, "a string");
        if (strcmp(json_string_value(word), "message.output_text.logprobs") == 0)
            return api_refuse(err, api_item("include", i).text,
                              "logprobs are not supported here, only in /v1/chat/completions");
    }
    return true;
}

static bool copy_fields(struct reading *r) {
    json_int_t tokens; /* -1 is for llama.cpp's clients */
    if (!api_whole(r->body, "max_output_tokens", 1, UINT32_MAX, &tokens, r->err))
        return false;
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        json_t *value = api_get(r->body, FIELDS[i].theirs);
        if (value && !put(r, FIELDS[i].chats, json_incref(value)))
            return false;
    }
    return true;
}

/* {"effort": "low", "summary": "auto"}; templates know low, medium and high */
static bool read_reasoning(struct reading *r) {
    static const char *const EFFORTS[][2] = {{"minimal", "low"},
                                             {"low", "low"},
                                             {"medium", "medium"},
                                             {"high", "high"},
                                             {"xhigh", "high"}};
    json_t *reasoning = api_get(r->body, "reasoning"), *effort = api_get(reasoning, "effort");
    const char *word;
    if (reasoning && !json_is_object(reasoning))
        return api_wrong_type(r->err, "reasoning", reasoning, "an object");
    if (!effort)
        return true;
    if (!api_word(effort, "reasoning.effort", &word, r->err))
        return false;
    if (strcmp(word, "none") == 0) {
        json_t *given = api_get(r->body, "chat_template_kwargs");
        json_t *kwargs = json_is_object(given) ? json_copy(given) : json_object();
        if (!kwargs || json_object_set_new(kwargs, "enable_thinking", json_false()) != 0) {
            json_decref(kwargs);
            return api_no_memory(r->err);
        }
        return put(r, "chat_template_kwargs", kwargs);
    }
    for (size_t i = 0; i < sizeof EFFORTS / sizeof *EFFORTS; i++)
        if (strcmp(word, EFFORTS[i][0]) == 0)
            return put(r, "reasoning_effort", json_string(EFFORTS[i][1]));
    return api_refuse(r->err, "reasoning.effort",
                      "\"%.40s\" is not none, minimal, low, medium, high or xhigh", word);
}

/* {"format": {"type": "json_schema", "name", "schema", "strict"}, "verbosity"} */
static bool read_text(struct reading *r) {
    json_t *text = api_get(r->body, "text"), *format = api_get(text, "format");
    if (text && !json_is_object(text))
        return api_wrong_type(r->err, "text", text, "an object");
    if (!format)
        return true;
    const char *type = api_type_of(format, "text.format", r->err);
    if (!type)
        return false;
    if (strcmp(type, "json_schema") != 0)
        return put(r, "response_format", json_incref(format));
    json_t *inner = json_copy(format);
    if (!inner || json_object_del(inner, "type") != 0) {
        json_decref(inner);
        return api_no_memory(r->err);
    }
    return put(r, "response_format",
               json_pack("{s:s, s:o}", "type", "json_schema", "json_schema", inner));
}

/* ---- tools ----------------------------------------------------------------------------------- */

static bool warn(struct reading *r, const char *at, const char *type) {
    char text[256];
    snprintf(text, sizeof text,
             "%.80s: tools of the type \"%.40s\" are not available here; it was "
             "left out",
             at, type);
    return json_array_append_new(r->warnings, json_string(text)) == 0 || api_no_memory(r->err);
}

static bool add_function(struct reading *r, json_t *tool, const char *at, bool custom,
                         json_t *out) {
    json_t *name = api_string_of(tool, at, "name", r->err), *about = api_get(tool, "description"),
           *schema = api_get(tool, "parameters");
    if (!name)
        return false;
    if (about && !json_is_string(about))
        return api_wrong_type(r->err, api_member(at, "description").text, about, "a string");
    if (!custom && schema && !json_is_object(schema))
        return api_wrong_type(r->err, api_member(at, "parameters").text, schema, "an object");
    json_t *parameters = custom   ? json_pack("{s:s, s:{s:{s:s}}, s:[s], s:b}", "type", "object",
                                              "properties", "input", "type", "string", "required",
                                              "input", "additionalProperties", 0)
                         : schema ? json_incref(schema)
                                  : json_object();
    json_t *function =
        json_pack("{s:O, s:o, s:o}", "name", name, "description",
                  about ? json_incref(about) : json_string(""), "parameters", parameters);
    json_t *strict = api_get(tool, "strict");
    if (strict && !custom && json_object_set(function, "strict", strict) != 0)
        json_decref(function), function = NULL;
    return json_array_append_new(
               out, json_pack("{s:s, s:o}", "type", "function", "function", function)) == 0 ||
           api_no_memory(r->err);
}

static bool read_tools(struct reading *r) {
    json_t *tools = api_get(r->body, "tools"), *tool;
    size_t i;
    if (!tools)
        return true;
    if (!json_is_array(tools))
        return api_wrong_type(r->err, "tools", tools, "an array");
    json_t *out = json_array();
    bool good = out || api_no_memory(r->err);
    json_array_foreach(tools, i, tool) {
        const struct api_path at = api_item("tools", i);
        const char *type = good ? api_type_of(tool, at.text, r->err) : NULL;
        const bool custom = type && strcmp(type, "custom") == 0;
        if (!type)
            good = false;
        else
            good = custom || strcmp(type, "function") == 0
                       ? add_function(r, tool, at.text, custom, out)
                       : warn(r, at.text, type);
    }
    if (good && json_array_size(out) && json_object_set(r->chat, "tools", out) != 0)
        good = api_no_memory(r->err);
    json_decref(out);
    return good;
}

/* "auto", "none", "required", {"type": "function", "name"}, {"type": "custom", "name"} */
static bool read_tool_choice(struct reading *r) {
    json_t *choice = api_get(r->body, "tool_choice"), *name;
    if (!choice)
        return true;
    if (!json_is_object(choice))
        return put(r, "tool_choice", json_incref(choice));
    const char *type = api_type_of(choice, "tool_choice", r->err);
    if (!type)
        return false;
    if (strcmp(type, "function") != 0 && strcmp(type, "custom") != 0)
        return api_refuse(r->err, "tool_choice.type",
                          "\"%.40s\" is not supported, only function and custom are", type);
    if (!(name = api_string_of(choice, "tool_choice", "name", r->err)))
        return false;
    return put(r, "tool_choice",
               json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name));
}

/* ---- input ----------------------------------------------------------------------------------- */

static bool recall(struct reading *r) {
    json_t *previous = api_get(r->body, "previous_response_id");
    const struct responses_store *store = r->setup->responses;
    const char *id;
    if (!previous)
        return true;
    if (!api_word(previous, "previous_response_id", &id, r->err))
        return false;
    if (!store)
        return api_refuse(r->err, "previous_response_id",
                          "responses are not kept here: send the whole conversation as input");
    return store->recall(store->user, id, r->items, r->err);
}

static bool read_input(struct reading *r) {
    json_t *input = api_get(r->body, "input");
    if (!recall(r))
        return false;
    r->first = json_array_size(r->items);
    if (json_is_string(input))
        return json_array_append_new(r->items, json_pack("{s:s, s:s, s:[{s:s, s:O}]}", "type",
                                                         "message", "role", "user", "content",
                                                         "type", "input_text", "text", input)) ==
                   0 ||
               api_no_memory(r->err);
    if (!json_is_array(input))
        return api_wrong_type(r->err, "input", input, "a string or an array of items");
    if (json_array_size(input) == 0 && r->first == 0)
        return api_refuse(r->err, "input", "is empty");
    return json_array_extend(r->items, input) == 0 || api_no_memory(r->err);
}

/* The messages of instructions and of the items from `from` on, into the chat's body. */
static bool set_messages(struct reading *r, size_t from) {
    json_t *instructions = api_get(r->body, "instructions"), *messages = json_array();
    bool good = messages || api_no_memory(r->err);
    if (good && instructions && !json_is_string(instructions))
        good = api_wrong_type(r->err, "instructions", instructions, "a string");
    if (good && json_string_length(instructions) &&
        json_array_append_new(
            messages, json_pack("{s:s, s:O}", "role", "system", "content", instructions)) != 0)
        good = api_no_memory(r->err);
    good = good && responses_messages(r->items, from, r->first, messages, r->err);
    if (good && json_object_set(r->chat, "messages", messages) != 0)
        good = api_no_memory(r->err);
    json_decref(messages);
    return good;
}

/* ---- what the answer repeats ----------------------------------------------------------------- */

/* A member of the body, or what it is without one (JSON). */
static const struct {
    const char *name, *otherwise;
} ECHOED[] = {
    {"background", "false"},
    {"instructions", "null"},
    {"max_output_tokens", "null"},
    {"max_tool_calls", "null"},
    {"metadata", "{}"},
    {"parallel_tool_calls", "true"},
    {"previous_response_id", "null"},
    {"prompt_cache_key", "null"},
    {"reasoning", "{\"effort\":null,\"summary\":null}"},
    {"safety_identifier", "null"},
    {"service_tier", "\"default\""},
    {"store", "true"},
    {"temperature", "null"},
    {"text", "{\"format\":{\"type\":\"text\"}}"},
    {"tool_choice", "\"auto\""},
    {"tools", "[]"},
    {"top_logprobs", "0"},
    {"top_p", "null"},
    {"truncation", "\"disabled\""},
    {"user", "null"},
};

/* Sampling that the body leaves open is the server's. */
static bool echo_sampling(const struct api_setup *setup, json_t *body, json_t *echo) {
    return (api_get(body, "temperature") ||
            json_object_set_new(echo, "temperature", json_real((double)setup->sampling.temp)) ==
                0) &&
           (api_get(body, "top_p") ||
            json_object_set_new(echo, "top_p", json_real((double)setup->sampling.top_p)) == 0);
}

static json_t *echo_of(const struct reading *r, bool store) {
    json_t *echo = json_object();
    bool good = echo != NULL;
    for (size_t i = 0; good && i < sizeof ECHOED / sizeof *ECHOED; i++) {
        json_t *value = api_get(r->body, ECHOED[i].name);
        good = json_object_set_new(
                   echo, ECHOED[i].name,
                   value ? json_incref(value)
                         : json_loads(ECHOED[i].otherwise, JSON_DECODE_ANY, NULL)) == 0;
    }
    good = good && echo_sampling(r->setup, r->body, echo) &&
           json_object_set_new(echo, "store", json_boolean(store)) == 0;
    if (good)
        return echo;
    json_decref(echo);
    api_no_memory(r->err);
    return NULL;
}

/* What was left out here, beside unknown fields. */
static bool add_warnings(const struct reading *r, struct api_request *out) {
    if (!json_array_size(r->warnings))
        return true;
    if (!out->warnings)
        out->warnings = json_incref(r->warnings);
    else if (json_array_extend(out->warnings, r->warnings) != 0)
        return api_no_memory(r->err);
    return true;
}

/* Of the items, those that this body brought. */
static json_t *new_items(const struct reading *r) {
    json_t *items = json_array(), *item;
    size_t i;
    bool good = items != NULL;
    json_array_foreach(r->items, i, item) {
        if (good && i >= r->first)
            good = json_array_append(items, item) == 0;
    }
    if (good)
        return items;
    json_decref(items);
    api_no_memory(r->err);
    return NULL;
}

/* ---- all of it ------------------------------------------------------------------------------- */

enum api_want responses_wants(const char *name, size_t len, const char **known) {
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        if (json_name_is(name, len, *known = FIELDS[i].theirs))
            return API_TREE;
    for (size_t i = 0; i < sizeof NOT_SUPPORTED / sizeof *NOT_SUPPORTED; i++)
        if (json_name_is(name, len, *known = NOT_SUPPORTED[i].name))
            return API_TREE;
    return api_want_of(&(struct api_names){API_TREE, NAMES}, 1, name, len, known);
}

/* Messages are not counted as items are: such an error names the input as a whole. */
static void rename_message(struct api_error *err) {
    const struct api_error e = *err;
    const char *why = strstr(e.text, ": ");
    if (strncmp(e.param, "messages", strlen("messages")) != 0 || !why)
        return;
    api_refuse(err, "input", "%s", why + 2);
    err->status = e.status;
    err->code = e.code;
}

static void rename_error(const struct reading *r) {
    static const char *const RENAMED[][2] = {{"response_format.json_schema", "text.format"},
                                             {"response_format", "text.format"},
                                             {"reasoning_effort", "reasoning.effort"}};
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        if (strcmp(FIELDS[i].theirs, FIELDS[i].chats) != 0 &&
            api_rename(r->err, FIELDS[i].chats, FIELDS[i].theirs))
            return;
    for (size_t i = 0; i < sizeof RENAMED / sizeof *RENAMED; i++)
        if (api_rename(r->err, RENAMED[i][0], RENAMED[i][1]))
            return;
    rename_message(r->err);
}

/* Reads the chat of the items from `from` on. */
static bool read_chat(struct reading *r, size_t from, struct api_request *out) {
    if (!set_messages(r, from))
        return false;
    struct api_body body = {.members = json_copy(r->chat), /* reading changes it */
                            .unknown = *r->unknown};
    if (!body.members)
        return api_no_memory(r->err);
    const bool good = openai_read(r->setup, API_CHAT, &body, out, r->err);
    if (!good)
        rename_error(r);
    api_body_free(&body);
    return good;
}

static bool reads_auto(const struct reading *r, bool *automatic) {
    json_t *truncation = api_get(r->body, "truncation");
    const char *word = "disabled";
    if (truncation && !api_word(truncation, "truncation", &word, r->err))
        return false;
    *automatic = strcmp(word, "auto") == 0;
    return *automatic || strcmp(word, "disabled") == 0 ||
           api_refuse(r->err, "truncation", "\"%.40s\" is not auto or disabled", word);
}

/* Whether a prompt of n tokens leaves room for the answer. */
static bool fits(const struct reading *r, const struct api_request *request) {
    const uint64_t answer =
        request->engine.shorten || !request->engine.max_tokens ? 1 : request->engine.max_tokens;
    return !r->setup->ctx || request->engine.n_tokens + answer <= r->setup->ctx;
}

/* Reads the items from `from` on; *too_long: they leave no room for the answer. */
static bool read_from(struct reading *r, size_t from, struct api_request *out, bool *too_long) {
    const bool good = read_chat(r, from, out);
    *too_long =
        good ? !fits(r, out) : r->err->code && strcmp(r->err->code, API_CONTEXT_EXCEEDED) == 0;
    return good;
}

/* The places at which a conversation may begin: messages of a user's. The first is 0, whatever is
 * there. free(); NULL with *err. */
static size_t *begins_of(const struct reading *r, size_t *n) {
    size_t *begins = calloc(json_array_size(r->items) + 1, sizeof *begins), i;
    json_t *item;
    *n = 1;
    if (!begins)
        api_no_memory(r->err);
    json_array_foreach(r->items, i, item) {
        const char *role = json_string_value(json_object_get(item, "role"));
        if (begins && i && role && strcmp(role, "user") == 0)
            begins[(*n)++] = i;
    }
    return begins;
}

/* As little as possible of the conversation's beginning is left out: a search by halves, since each
 * try writes and tokenizes the whole prompt. */
static bool read_truncated(struct reading *r, struct api_request *out) {
    size_t n, *begins = begins_of(r, &n), none = 0;
    bool good = begins != NULL, too_long = true;
    for (size_t fit = n - 1, i = n - 1; good; i = none + (fit - none) / 2) {
        good = read_from(r, begins[i], out, &too_long);
        if (i == fit && (too_long || fit - none <= 1))
            break; /* it is the shortest, or the longest that fits */
        *(too_long ? &none : &fit) = i;
        if (good)
            api_request_free(out);
        good = true;
        if (fit - none <= 1) {
            good = read_from(r, begins[fit], out, &too_long);
            break;
        }
    }
    free(begins);
    return good;
}

static bool read_fitting(struct reading *r, struct api_request *out) {
    bool automatic, too_long;
    if (!reads_auto(r, &automatic))
        return false;
    const bool good = read_from(r, 0, out, &too_long);
    if (!automatic || !too_long)
        return good;
    if (good)
        api_request_free(out);
    return read_truncated(r, out);
}

static bool translate(struct reading *r) {
    r->chat = json_object();
    r->items = json_array();
    r->warnings = json_array();
    return ((r->chat && r->items && r->warnings) || api_no_memory(r->err)) &&
           check_supported(r->body, r->err) && copy_fields(r) && read_reasoning(r) &&
           read_text(r) && read_tools(r) && read_tool_choice(r) && read_input(r);
}

bool responses_read(const struct api_setup *setup, struct api_body *body, struct api_request *out,
                    struct api_error *err) {
    struct reading r = {
        .setup = setup, .body = body->members, .unknown = &body->unknown, .err = err};
    bool store = setup->responses != NULL;
    bool good = api_flag(r.body, "store", &store, err) && translate(&r) && read_fitting(&r, out);
    if (good) {
        out->store = store && setup->responses;
        out->echo = echo_of(&r, out->store);
        out->input = out->echo ? new_items(&r) : NULL;
        good = out->input != NULL && add_warnings(&r, out);
        if (!good)
            api_request_free(out);
    } else
        api_fields_rename(body, err);
    json_decref(r.chat);
    json_decref(r.items);
    json_decref(r.warnings);
    return good;
}

bool responses_count(const struct api_setup *setup, struct api_body *body, struct text_buf *out,
                     struct api_error *err) {
    struct api_request r;
    if (!responses_read(setup, body, &r, err))
        return false;
    const bool good = text_printf(
        out, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}", r.engine.n_tokens);
    api_request_free(&r);
    return good || api_no_memory(err);
}
