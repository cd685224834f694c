/* SPDX-License-Identifier: Apache-2.0 */
/* responses_answer.c: the parts of an answer as items of /v1/responses, and events of a stream.
 *
 *     response.created, response.in_progress
 *       response.output_item.added                                      for each item
 *         response.content_part.added      reasoning and messages
 *           response.output_text.delta ...  response.reasoning_text.delta ...
 *         response.output_text.done, response.content_part.done
 *         response.function_call_arguments.delta, .done      calls
 *       response.output_item.done
 *     response.completed, or response.incomplete if it was cut off
 *
 * An item ends when a part of another kind begins. An empty answer has one empty message, because
 * clients expect one.
 */
#include "api/responses.h"
#include "util/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- events ---------------------------------------------------------------------------------- */

/* Takes data, an object. */
static bool event(struct responses_output *o, const char *type, json_t *data) {
    bool good = data && json_object_set_new(data, "type", json_string(type)) == 0 &&
                json_object_set_new(data, "sequence_number", json_integer(o->sequence++)) == 0;
    good = good && text_printf(o->out, "event: %s\ndata: ", type) &&
           api_add_json(json_incref(data), o->out) && text_puts(o->out, "\n\n");
    json_decref(data);
    return good;
}

/* With the place of the open item; takes data. */
static bool item_event(struct responses_output *o, const char *type, json_t *data) {
    const json_int_t index = (json_int_t)json_array_size(o->items) - 1;
    if (data && json_object_set_new(data, "output_index", json_integer(index)) == 0)
        return event(o, type, data);
    json_decref(data);
    return false;
}

/* With the item's id and the place in its content, too; takes data. */
static bool content_event(struct responses_output *o, const char *type, json_t *data) {
    if (data && json_object_set(data, "item_id", json_object_get(o->open, "id")) == 0 &&
        json_object_set_new(data, "content_index", json_integer(0)) == 0)
        return item_event(o, type, data);
    json_decref(data);
    return false;
}

static bool call_event(struct responses_output *o, const char *type, const char *name,
                       const char *text, size_t len) {
    json_t *data = json_pack("{s:s%}", name, text, len);
    if (data && json_object_set(data, "item_id", json_object_get(o->open, "id")) == 0)
        return item_event(o, type, data);
    json_decref(data);
    return false;
}

/* ---- items ----------------------------------------------------------------------------------- */

/* "msg_" and what makes the response's id its own, and the item's number. */
static json_t *item_id(const struct responses_output *o, const char *prefix) {
    const char *own = strchr(o->c.id, '_');
    char id[96];
    snprintf(id, sizeof id, "%s%s%02zx", prefix, own ? own + 1 : o->c.id,
             json_array_size(o->items));
    return json_string(id);
}

/* Whether the tool is one that takes a text: the model was shown a function with "input". */
static bool is_custom(const struct responses_output *o, const char *name, size_t len) {
    json_t *tools = json_object_get(o->c.request->echo, "tools"), *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        const char *type = json_string_value(json_object_get(tool, "type")),
                   *given = json_string_value(json_object_get(tool, "name"));
        if (type && given && strcmp(type, "custom") == 0 && strlen(given) == len &&
            memcmp(given, name, len) == 0)
            return true;
    }
    return false;
}

/* Takes item: it is the open one. */
static bool add_item(struct responses_output *o, enum answer_part_kind kind, json_t *item) {
    if (json_array_append_new(o->items, item) != 0)
        return false;
    o->open = item;
    o->kind = kind;
    o->text.len = 0;
    return !o->out || item_event(o, "response.output_item.added",
                                 json_pack("{s:o}", "item", json_deep_copy(item)));
}

static json_t *part_json(enum answer_part_kind kind, const char *text, size_t len) {
    return kind == ANSWER_REASONING
               ? json_pack("{s:s, s:s%}", "type", "reasoning_text", "text", text, len)
               : json_pack("{s:s, s:s%, s:[], s:[]}", "type", "output_text", "text", text, len,
                           "annotations", "logprobs");
}

static bool begin_text(struct responses_output *o, enum answer_part_kind kind) {
    json_t *item =
        kind == ANSWER_REASONING
            ? json_pack("{s:o, s:s, s:[], s:[], s:s}", "id", item_id(o, "rs_"), "type", "reasoning",
                        "summary", "content", "status", "in_progress")
            : json_pack("{s:o, s:s, s:s, s:s, s:[]}", "id", item_id(o, "msg_"), "type", "message",
                        "status", "in_progress", "role", "assistant", "content");
    return item && add_item(o, kind, item) &&
           (!o->out || content_event(o, "response.content_part.added",
                                     json_pack("{s:o}", "part", part_json(kind, "", 0))));
}

static const char *text_of(const struct text_buf *b) {
    return b->len ? b->data : "";
}

static bool end_text(struct responses_output *o) {
    const bool reasoning = o->kind == ANSWER_REASONING;
    const char *text = text_of(&o->text);
    const size_t len = o->text.len;
    json_t *part = part_json(o->kind, text, len);
    bool good = json_array_append_new(json_object_get(o->open, "content"),
                                      part ? json_incref(part) : NULL) == 0;
    if (good && o->out)
        good = content_event(
                   o, reasoning ? "response.reasoning_text.done" : "response.output_text.done",
                   reasoning ? json_pack("{s:s%}", "text", text, len)
                             : json_pack("{s:s%, s:[]}", "text", text, len, "logprobs")) &&
               content_event(o, "response.content_part.done", json_pack("{s:O}", "part", part));
    json_decref(part);
    return good;
}

/* status: "completed", or "incomplete" if the answer was cut off in it. */
static bool end_item(struct responses_output *o, const char *status) {
    if (!o->open)
        return true;
    bool good = o->kind == ANSWER_CALL || end_text(o);
    good = good && json_object_set_new(o->open, "status", json_string(status)) == 0 &&
           (!o->out || item_event(o, "response.output_item.done",
                                  json_pack("{s:o}", "item", json_deep_copy(o->open))));
    o->open = NULL;
    return good;
}

static bool add_text(struct responses_output *o, const struct answer_part *part) {
    const bool reasoning = part->kind == ANSWER_REASONING;
    if (!part->len)
        return true;
    if ((!o->open || o->kind != part->kind) &&
        (!end_item(o, "completed") || !begin_text(o, part->kind)))
        return false;
    if (!text_append(&o->text, part->text, part->len) ||
        (reasoning && !text_append(&o->reasoning, part->text, part->len)))
        return false;
    if (!o->out)
        return true;
    json_t *delta = json_pack("{s:s%}", "delta", part->text, part->len);
    if (delta && !reasoning && json_object_set_new(delta, "logprobs", json_array()) != 0) {
        json_decref(delta);
        return false;
    }
    return content_event(
        o, reasoning ? "response.reasoning_text.delta" : "response.output_text.delta", delta);
}

static bool add_call(struct responses_output *o, const struct answer_part *part) {
    const bool custom = is_custom(o, part->text, part->len);
    json_t *item = json_pack(
        "{s:o, s:s, s:s, s:s, s:s%, s:s}", "id", item_id(o, custom ? "ctc_" : "fc_"), "type",
        custom ? "custom_tool_call" : "function_call", "status", "in_progress", "call_id", part->id,
        "name", part->text, part->len, custom ? "input" : "arguments", "");
    return end_item(o, "completed") && item && add_item(o, ANSWER_CALL, item);
}

/* A custom tool's text, from the arguments of the function that the model saw. */
static json_t *custom_input(const struct answer_part *part) {
    json_t *arguments = NULL, *input = NULL;
    if (json_load_request(part->text, part->len, JSON_ALLOW_NUL, &arguments, NULL) == KVASIR_OK)
        input = json_incref(json_object_get(arguments, "input"));
    json_decref(arguments);
    if (json_is_string(input))
        return input;
    json_decref(input);
    return json_stringn(part->text, part->len);
}

static bool add_arguments(struct responses_output *o, const struct answer_part *part) {
    ASSERT(o->open && o->kind == ANSWER_CALL);
    const bool custom = json_object_get(o->open, "input") != NULL;
    json_t *text = custom ? custom_input(part) : json_stringn(part->text, part->len);
    if (json_object_set_new(o->open, custom ? "input" : "arguments", text) != 0)
        return false;
    if (o->out && (!call_event(o,
                               custom ? "response.custom_tool_call_input.delta"
                                      : "response.function_call_arguments.delta",
                               "delta", json_string_value(text), json_string_length(text)) ||
                   !call_event(o,
                               custom ? "response.custom_tool_call_input.done"
                                      : "response.function_call_arguments.done",
                               custom ? "input" : "arguments", json_string_value(text),
                               json_string_length(text))))
        return false;
    return end_item(o, "completed");
}

bool responses_output_part(void *output, const struct answer_part *part) {
    struct responses_output *o = output;
    return part->kind == ANSWER_CALL        ? add_call(o, part)
           : part->kind == ANSWER_ARGUMENTS ? add_arguments(o, part)
                                            : add_text(o, part);
}

/* ---- the response ---------------------------------------------------------------------------- */

bool responses_output_init(struct responses_output *o, const struct protocol_context *c) {
    *o = (struct responses_output){.c = *c, .items = json_array()};
    return o->items != NULL;
}

void responses_output_free(struct responses_output *o) {
    json_decref(o->items);
    text_free(&o->text);
    text_free(&o->reasoning);
}

/* Takes details and usage, which may be null. */
static json_t *response_json(const struct responses_output *o, const char *status, json_t *details,
                             json_t *usage) {
    json_t *made = json_pack("{s:s, s:s, s:I, s:s, s:n, s:o, s:s, s:O, s:o}", "id", o->c.id,
                             "object", "response", "created_at", (json_int_t)o->c.created, "status",
                             status, "error", "incomplete_details", details, "model",
                             o->c.request->model, "output", o->items, "usage", usage);
    if (made && json_object_update_missing(made, o->c.request->echo) == 0 &&
        api_answer_warn(made, o->c.request))
        return made;
    json_decref(made);
    return NULL;
}

bool responses_output_start(struct responses_output *o) {
    json_t *response = response_json(o, "in_progress", json_null(), json_null());
    const bool good = response &&
                      event(o, "response.created", json_pack("{s:O}", "response", response)) &&
                      event(o, "response.in_progress", json_pack("{s:O}", "response", response));
    json_decref(response);
    return good;
}

/* As many as the tokenizer makes of the text of the reasoning. */
static json_int_t reasoning_tokens(const struct responses_output *o) {
    int32_t *ids = NULL;
    size_t n = 0;
    if (!o->reasoning.len || kvasir_tokenize_by(o->c.setup->tokenizer, o->reasoning.data,
                                                o->reasoning.len, 0, NULL, NULL, &ids, &n, NULL))
        return 0;
    kvasir_free(ids);
    return (json_int_t)n;
}

static json_t *usage_json(const struct responses_output *o, const struct responses_usage *u) {
    json_int_t reasoned = reasoning_tokens(o);
    const json_int_t input = u->prompt_tokens, output = (json_int_t)u->completion_tokens;
    reasoned = reasoned < output ? reasoned : output;
    return api_with_requantized(json_pack("{s:I, s:{s:I}, s:I, s:{s:I}, s:I}", "input_tokens",
                                          input, "input_tokens_details", "cached_tokens",
                                          (json_int_t)u->cached_tokens, "output_tokens", output,
                                          "output_tokens_details", "reasoning_tokens", reasoned,
                                          "total_tokens", input + output),
                                u->requantized_pages);
}

static void keep(const struct responses_output *o, json_t *response) {
    const struct api_request *r = o->c.request;
    const struct responses_store *store = o->c.setup->responses;
    if (r->store)
        store->keep(store->user,
                    json_string_value(json_object_get(r->echo, "previous_response_id")), r->input,
                    response);
}

json_t *responses_output_finish(struct responses_output *o, kvasir_finish finish,
                                const struct responses_usage *usage) {
    const bool cut = finish == KVASIR_FINISH_LENGTH;
    const char *status = cut ? "incomplete" : "completed";
    if (json_array_size(o->items) == 0 && !begin_text(o, ANSWER_CONTENT))
        return NULL;
    if (!end_item(o, status))
        return NULL;
    json_t *response = response_json(
        o, status, cut ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null(),
        usage_json(o, usage));
    if (!response)
        return NULL;
    if (o->out && !event(o, cut ? "response.incomplete" : "response.completed",
                         json_pack("{s:O}", "response", response))) {
        json_decref(response);
        return NULL;
    }
    keep(o, response);
    return response;
}
