/* SPDX-License-Identifier: Apache-2.0 */
/* ollama_request.c: a body of /api/chat or /api/generate as a chat's, or as a completion's.
 *
 *     messages                        the same; images are refused, calls get ids, which templates
 *                                     expect, and results the id of the call that they answer
 *     prompt, system                  one or two messages; with "raw", or with "suffix", a prompt
 *     think                           enable_thinking, or reasoning_effort
 *     format                          response_format
 *     options                         sampling and limits, by their names here
 *
 * An answer that would not fit the context becomes as long as there is room, as at ollama.
 */
#include "api/llama_options.h"
#include "api/ollama.h"
#include "util/json.h"

#include <stdio.h>
#include <string.h>

/* What is read of a body. */
struct reading {
    const struct api_setup *setup;
    json_t *body;
    json_t *out;      /* object: the chat's or the completion's body */
    json_t *calls;    /* array of {"id", "name"}: those without a result yet */
    json_t *warnings; /* array */
    size_t n_calls;
    struct llama_options options;
    struct api_error *err;
};

/* Takes value. */
static bool put(struct reading *r, const char *name, json_t *value) {
    return json_object_set_new(r->out, name, value) == 0 || api_no_memory(r->err);
}

static bool is_empty(json_t *value) {
    return !value || (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

/* ---- model ----------------------------------------------------------------------------------- */

bool ollama_check_model(const struct api_setup *setup, json_t *body, struct api_error *err) {
    static const char LATEST[] = ":latest";
    json_t *given = api_get(body, "model");
    const char *name;
    if (!given)
        given = api_get(body, "name");
    if (!api_word(given, "model", &name, err))
        return false;
    const size_t n = strlen(setup->model);
    if (setup->picked ||
        (strncmp(name, setup->model, n) == 0 && (!name[n] || strcmp(name + n, LATEST) == 0)))
        return true;
    api_refuse(err, NULL, "model '%.100s' not found, this server runs '%.100s'", name,
               setup->model);
    err->status = HTTP_NOT_FOUND;
    err->code = "model_not_found";
    return false;
}

/* ---- options --------------------------------------------------------------------------------- */

/* How ollama runs a model: the server's options say that here. */
static const char *const HARMLESS[] = {
    "num_keep",       "num_batch",    "num_gpu",      "main_gpu", "num_thread", "numa",
    "use_mmap",       "use_mlock",    "low_vram",     "f16_kv",   "vocab_only", "logits_all",
    "embedding_only", "mirostat_tau", "mirostat_eta", "num_ctx"};

static bool is_harmless(const char *name) {
    const char *known;
    for (size_t i = 0; i < sizeof HARMLESS / sizeof *HARMLESS; i++)
        if (strcmp(name, HARMLESS[i]) == 0)
            return true;
    return llama_options_wants(name, strlen(name), &known);
}

static bool read_context(struct reading *r) {
    json_int_t n = 0;
    char why[128];
    if (!api_whole(r->options.from, "num_ctx", 0, INT64_MAX, &n, r->err)) {
        (void)api_rename(r->err, "num_ctx", "options.num_ctx");
        return false;
    }
    if (!r->setup->ctx || n <= r->setup->ctx)
        return true;
    snprintf(why, sizeof why, "the server's context is %u tokens and stays so", r->setup->ctx);
    return llama_options_warn(&r->options, "num_ctx", why);
}

static bool read_options(struct reading *r) {
    json_t *value;
    const char *name;
    r->options = (struct llama_options){.from = api_get(r->body, "options"),
                                        .at = "options",
                                        .out = r->out,
                                        .warnings = r->warnings,
                                        .err = r->err};
    if (!llama_options_read(&r->options))
        return false;
    json_object_foreach(r->options.from, name, value) {
        if (!json_is_null(value) && !is_harmless(name) &&
            !llama_options_warn(&r->options, name, "is unknown here and changes nothing"))
            return false;
    }
    return read_context(r);
}

/* ---- fields ---------------------------------------------------------------------------------- */

static bool read_think(struct reading *r) {
    static const char *const EFFORTS[][2] = {
        {"low", "low"}, {"medium", "medium"}, {"high", "high"}, {"max", "high"}};
    json_t *think = api_get(r->body, "think");
    const char *word;
    if (!think)
        return true;
    if (json_is_boolean(think))
        return put(r, "chat_template_kwargs", json_pack("{s:O}", "enable_thinking", think));
    if (!json_is_string(think))
        return api_wrong_type(r->err, "think", think, "true, false or a string");
    if (!api_word(think, "think", &word, r->err))
        return false;
    for (size_t i = 0; i < sizeof EFFORTS / sizeof *EFFORTS; i++)
        if (strcmp(word, EFFORTS[i][0]) == 0)
            return put(r, "reasoning_effort", json_string(EFFORTS[i][1]));
    return api_refuse(r->err, "think", "\"%.40s\" is not true, false, low, medium, high or max",
                      word);
}

static bool read_format(struct reading *r) {
    json_t *format = api_get(r->body, "format");
    if (is_empty(format))
        return true;
    if (json_is_object(format))
        return put(
            r, "response_format",
            json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema", "schema", format));
    if (!json_is_string(format))
        return api_wrong_type(r->err, "format", format, "\"json\" or a JSON schema");
    if (strcmp(json_string_value(format), "json") != 0)
        return api_refuse(r->err, "format", "\"%.40s\" is not \"json\" or a JSON schema",
                          json_string_value(format));
    return put(r, "response_format", json_pack("{s:s}", "type", "json_object"));
}

/* Fields of ours that are the same everywhere. */
static const char *const COPIED[] = {"cache_salt", "priority", "control_tokens",
                                     "cache",      "stream",   NULL};

/* A chat has a flag and a number, a completion the number alone. */
static bool read_logprobs(struct reading *r, bool chat) {
    bool wanted = false;
    json_int_t top = 0;
    if (!api_flag(r->body, "logprobs", &wanted, r->err) ||
        !api_whole(r->body, "top_logprobs", 0, KVASIR_TOP_LOGPROBS_MAX, &top, r->err))
        return false;
    if (!wanted)
        return top == 0 || api_refuse(r->err, "top_logprobs", "needs \"logprobs\": true");
    return chat ? put(r, "logprobs", json_true()) && put(r, "top_logprobs", json_integer(top))
                : put(r, "logprobs", json_integer(top));
}

static bool read_fields(struct reading *r, bool chat) {
    for (size_t i = 0; COPIED[i]; i++) {
        json_t *value = api_get(r->body, COPIED[i]);
        if (value && !put(r, COPIED[i], json_incref(value)))
            return false;
    }
    return (api_get(r->body, "stream") || put(r, "stream", json_true())) && read_options(r) &&
           read_format(r) && read_logprobs(r, chat);
}

/* ---- messages -------------------------------------------------------------------------------- */

static bool no_images(struct reading *r, json_t *of, const char *at) {
    return is_empty(api_get(of, "images")) ||
           api_refuse(r->err, at, "images are not supported, only text is");
}

/* Call k, with an id if it has none: nine characters, as Mistral's template wants. What is wrong
 * with it, openai_read says. */
static bool add_call(struct reading *r, json_t *call, json_t *out) {
    json_t *function = json_object_get(call, "function"), *id = api_get(call, "id");
    char made[16];
    if (!json_is_object(call))
        return json_array_append(out, call) == 0 || api_no_memory(r->err);
    snprintf(made, sizeof made, "call%05zu", ++r->n_calls % 100000);
    id = id ? json_incref(id) : json_string(made);
    const bool good =
        json_array_append_new(out, json_pack("{s:O, s:s, s:O*}", "id", id, "type", "function",
                                             "function", function)) == 0 &&
        json_array_append_new(r->calls, json_pack("{s:O, s:O*}", "id", id, "name",
                                                  json_object_get(function, "name"))) == 0;
    json_decref(id);
    return good || api_no_memory(r->err);
}

/* Results follow their calls, so only those of one message wait for any. */
static bool read_calls(struct reading *r, json_t *calls, const char *at, json_t *out) {
    enum { CALLS_MAX = 1024 };
    if (json_array_size(calls) > CALLS_MAX)
        return api_refuse(r->err, api_member(at, "tool_calls").text,
                          "%zu calls, at most %d are allowed", json_array_size(calls), CALLS_MAX);
    if (json_array_clear(r->calls) != 0)
        return api_no_memory(r->err);
    json_t *list = json_is_array(calls) ? json_array() : json_incref(calls);
    bool good = list || api_no_memory(r->err);
    for (size_t i = 0; good && i < json_array_size(calls); i++)
        good = add_call(r, json_array_get(calls, i), list);
    if (good && json_object_set(out, "tool_calls", list) != 0)
        good = api_no_memory(r->err);
    json_decref(list);
    return good;
}

/* A result is of the first call of its name that has none, or else of the first. */
static bool read_result(struct reading *r, json_t *message, json_t *out) {
    json_t *name = api_get(message, "tool_name"), *id = api_get(message, "tool_call_id"), *call;
    size_t i, at = 0;
    json_array_foreach(r->calls, i, call) {
        if (id ? json_equal(id, json_object_get(call, "id"))
               : name && json_equal(name, json_object_get(call, "name"))) {
            at = i;
            break;
        }
    }
    call = json_array_get(r->calls, at);
    id = json_incref(id ? id : json_object_get(call, "id"));
    const bool good = (!id || json_object_set(out, "tool_call_id", id) == 0) &&
                      (!name || json_object_set(out, "name", name) == 0);
    json_decref(id);
    if (call)
        json_array_remove(r->calls, at);
    return good || api_no_memory(r->err);
}

static bool read_message(struct reading *r, json_t *message, const char *at, json_t *out) {
    json_t *role = api_get(message, "role"), *content = api_get(message, "content"),
           *thinking = api_get(message, "thinking"), *calls = api_get(message, "tool_calls");
    if (!no_images(r, message, api_member(at, "images").text))
        return false;
    if (thinking && !json_is_string(thinking))
        return api_wrong_type(r->err, api_member(at, "thinking").text, thinking, "a string");
    if ((role && json_object_set(out, "role", role) != 0) ||
        json_object_set_new(out, "content", content ? json_incref(content) : json_string("")) !=
            0 ||
        (!is_empty(thinking) && json_object_set(out, "reasoning_content", thinking) != 0))
        return api_no_memory(r->err);
    if (!is_empty(calls) && !read_calls(r, calls, at, out))
        return false;
    const char *word = json_string_value(role);
    return !word || strcmp(word, "tool") != 0 || read_result(r, message, out);
}

static bool read_messages(struct reading *r, json_t *given) {
    json_t *messages = json_array(), *message;
    bool good = messages || api_no_memory(r->err);
    size_t i;
    json_array_foreach(given, i, message) {
        json_t *out = json_is_object(message) ? json_object() : json_incref(message);
        good = good && (!json_is_object(message) ||
                        read_message(r, message, api_item("messages", i).text, out));
        if (!good || json_array_append(messages, out) != 0)
            good = false;
        json_decref(out);
        if (!good)
            break;
    }
    if (good)
        good = put(r, "messages", json_incref(messages));
    json_decref(messages);
    return good;
}

/* An assistant's message at the end is continued, as templates of ollama do it. */
static bool read_end(struct reading *r, json_t *given) {
    json_t *last = json_array_get(given, json_array_size(given) - 1);
    const char *role = json_string_value(api_get(last, "role"));
    return !role || strcmp(role, "assistant") != 0 || !is_empty(api_get(last, "tool_calls")) ||
           put(r, "continue_final_message", json_true());
}

static bool read_chat(struct reading *r) {
    json_t *given = api_get(r->body, "messages"), *tools = api_get(r->body, "tools");
    if (!json_is_array(given))
        return api_wrong_type(r->err, "messages", given, "an array");
    return read_fields(r, true) && read_think(r) &&
           (!tools || put(r, "tools", json_incref(tools))) && read_messages(r, given) &&
           read_end(r, given);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static bool text_or_none(struct reading *r, const char *name) {
    json_t *value = api_get(r->body, name);
    return !value || json_is_string(value) || api_wrong_type(r->err, name, value, "a string");
}

/* *raw: the prompt is no chat. */
static bool read_generate(struct reading *r, bool *raw) {
    json_t *prompt = api_get(r->body, "prompt"), *system = api_get(r->body, "system"),
           *suffix = api_get(r->body, "suffix");
    *raw = false;
    if (!text_or_none(r, "prompt") || !text_or_none(r, "system") || !text_or_none(r, "suffix") ||
        !api_flag(r->body, "raw", raw, r->err) || !no_images(r, r->body, "images"))
        return false;
    if (!is_empty(api_get(r->body, "template")))
        return api_refuse(r->err, "template",
                          "is not supported: write the whole prompt, with \"raw\": true");
    if (!is_empty(api_get(r->body, "context")))
        return api_refuse(r->err, "context",
                          "is not supported: send the conversation to /api/chat, which finds what "
                          "it has computed of it");
    if (*raw && !is_empty(system))
        return api_refuse(r->err, "system", "cannot be combined with \"raw\": true");
    *raw |= !is_empty(suffix);
    if (!read_fields(r, !*raw))
        return false;
    if (*raw)
        return put(r, "prompt", prompt ? json_incref(prompt) : json_string("")) &&
               (is_empty(suffix) || put(r, "suffix", json_incref(suffix)));
    json_t *messages = json_array();
    bool good = messages != NULL;
    if (good && !is_empty(system))
        good = json_array_append_new(
                   messages, json_pack("{s:s, s:O}", "role", "system", "content", system)) == 0;
    good = good && json_array_append_new(
                       messages, json_pack("{s:s, s:O}", "role", "user", "content", prompt)) == 0;
    if (good)
        return put(r, "messages", messages) && read_think(r);
    json_decref(messages);
    return api_no_memory(r->err);
}

/* ---- all of it ------------------------------------------------------------------------------- */

enum api_want ollama_wants(const char *name, size_t len, const char **known) {
    static const char *const NAMES[] = {"model",        "name",   "messages", "tools",   "format",
                                        "think",        "raw",    "options",  "prompt",  "suffix",
                                        "system",       "images", "template", "context", "logprobs",
                                        "top_logprobs", NULL};
    static const struct api_names LISTS[] = {{API_TREE, NAMES}, {API_TREE, COPIED}};
    return api_want_of(LISTS, 2, name, len, known);
}

static void rename_error(const struct reading *r, bool generate) {
    struct api_error *err = r->err;
    if (llama_options_rename(&r->options) ||
        api_rename(err, "response_format.json_schema.schema", "format") ||
        api_rename(err, "response_format", "format") || !generate)
        return;
    /* the texts are strings, so only the template or the length can be wrong */
    (void)api_rename(err, "messages", "prompt");
}

/* Nothing to answer: at ollama such a request loads the model. */
static bool set_idle(const struct api_setup *setup, struct api_request *out,
                     struct api_error *err) {
    *out = (struct api_request){.engine = kvasir_request_defaults(),
                                .model = setup->model,
                                .idle = true,
                                .kept = json_array()};
    return out->kept || api_no_memory(err);
}

static bool read_as(struct reading *r, enum api_kind kind, bool generate, struct api_request *out) {
    struct api_body body = {.members = json_incref(r->out)};
    const bool good = openai_read(r->setup, kind, &body, out, r->err);
    api_body_free(&body);
    if (!good) {
        rename_error(r, generate);
        return false;
    }
    out->engine.shorten = true; /* also of a length that was asked for: it may become shorter */
    out->engine.no_answer = r->options.nothing;
    if (r->options.unlimited)
        out->engine.max_tokens = 0;
    if (json_array_size(r->warnings) == 0)
        return true;
    out->echo = json_pack("{s:O}", "warnings", r->warnings);
    if (out->echo)
        return true;
    api_request_free(out);
    return api_no_memory(r->err);
}

static bool read_body(const struct api_setup *setup, json_t *body, bool generate,
                      struct api_request *out, struct api_error *err) {
    struct reading r = {.setup = setup,
                        .body = body,
                        .out = json_object(),
                        .calls = json_array(),
                        .warnings = json_array(),
                        .err = err};
    bool raw = false;
    bool good = ((r.out && r.calls && r.warnings) || api_no_memory(err)) &&
                ollama_check_model(setup, body, err);
    if (good && is_empty(api_get(body, generate ? "prompt" : "messages")) &&
        is_empty(api_get(body, "suffix")))
        good = set_idle(setup, out, err);
    else if (good)
        good = (generate ? read_generate(&r, &raw) : read_chat(&r)) &&
               read_as(&r, raw ? API_COMPLETIONS : API_CHAT, generate, out);
    json_decref(r.out);
    json_decref(r.calls);
    json_decref(r.warnings);
    return good;
}

bool ollama_read_chat(const struct api_setup *setup, struct api_body *body, struct api_request *out,
                      struct api_error *err) {
    return read_body(setup, body->members, false, out, err);
}

bool ollama_read_generate(const struct api_setup *setup, struct api_body *body,
                          struct api_request *out, struct api_error *err) {
    return read_body(setup, body->members, true, out, err);
}
