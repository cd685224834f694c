/* SPDX-License-Identifier: Apache-2.0 */
/* anthropic_answer.c: answers as Anthropic's body or events, and errors.
 *
 *     message_start, ping
 *         content_block_start, content_block_delta ..., content_block_stop     for each block
 *     message_delta, message_stop
 *
 * A block ends when a part of another kind begins. A thinking block ends with an empty signature.
 * An empty answer has one empty text block, because clients expect one.
 *
 * stop_reason: max_tokens if the answer was cut off; else tool_use if a tool was called; else
 * stop_sequence if one ended the answer; else end_turn.
 */
#include "api/anthropic.h"
#include "util/json.h"

#include <stdlib.h>
#include <string.h>

/* ---- errors ---------------------------------------------------------------------------------- */

static const char *error_type(int status) {
    static const struct {
        int status;
        const char *type;
    } TYPES[] = {
        {HTTP_UNAUTHORIZED, "authentication_error"},  {HTTP_FORBIDDEN, "permission_error"},
        {HTTP_NOT_FOUND, "not_found_error"},          {HTTP_CONTENT_TOO_LARGE, "request_too_large"},
        {HTTP_TOO_MANY_REQUESTS, "rate_limit_error"}, {HTTP_UNAVAILABLE, "overloaded_error"},
    };
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (TYPES[i].status == status)
            return TYPES[i].type;
    return status >= HTTP_SERVER_ERROR ? "api_error" : "invalid_request_error";
}

json_t *anthropic_error_body(int status, const char *message) {
    return json_pack("{s:s, s:{s:s, s:s}}", "type", "error", "error", "type", error_type(status),
                     "message", message);
}

/* ---- what body and events share -------------------------------------------------------------- */

static json_t *usage_json(const struct anthropic_usage *u) {
    const json_int_t prompt = u->prompt_tokens, cached = u->cached_tokens;
    return api_with_requantized(json_pack("{s:I, s:I, s:I, s:I}", "input_tokens", prompt - cached,
                                          "cache_creation_input_tokens", (json_int_t)0,
                                          "cache_read_input_tokens", cached, "output_tokens",
                                          (json_int_t)u->completion_tokens),
                                u->requantized_pages);
}

static const char *stop_reason(bool cut, bool calls, const char *stop) {
    return cut ? "max_tokens" : calls ? "tool_use" : stop ? "stop_sequence" : "end_turn";
}

/* The text if the reason is stop_sequence, else null. */
static const char *stop_sequence(bool cut, bool calls, const char *stop) {
    return cut || calls ? NULL : stop;
}

/* ---- body ------------------------------------------------------------------------------------ */

static bool has_text(json_t *text) {
    return json_string_length(text) > 0;
}

static json_t *content_json(json_t *message) {
    json_t *reasoning = json_object_get(message, "reasoning_content"),
           *text = json_object_get(message, "content"),
           *calls = json_object_get(message, "tool_calls");
    size_t n = json_array_size(calls);
    json_t *content = json_array();
    bool good = content != NULL;
    if (has_text(reasoning))
        good =
            json_array_append_new(content, json_pack("{s:s, s:O, s:s}", "type", "thinking",
                                                     "thinking", reasoning, "signature", "")) == 0;
    if (good && (has_text(text) || (!has_text(reasoning) && n == 0)))
        good =
            json_array_append_new(content, json_pack("{s:s, s:o}", "type", "text", "text",
                                                     json_is_string(text) ? json_incref(text)
                                                                          : json_string(""))) == 0;
    for (size_t i = 0; good && i < n; i++) {
        json_t *call = json_array_get(calls, i), *f = json_object_get(call, "function");
        good =
            json_array_append_new(
                content, json_pack("{s:s, s:O, s:O, s:o}", "type", "tool_use", "id",
                                   json_object_get(call, "id"), "name", json_object_get(f, "name"),
                                   "input", api_object_of(json_object_get(f, "arguments")))) == 0;
    }
    if (good)
        return content;
    json_decref(content);
    return NULL;
}

static json_int_t count_of(json_t *usage, const char *name) {
    return json_integer_value(json_object_get(usage, name));
}

json_t *anthropic_answer_body(json_t *answer, const char *id, const char *stop) {
    json_t *choice = json_array_get(json_object_get(answer, "choices"), 0),
           *message = json_object_get(choice, "message"), *usage = json_object_get(answer, "usage");
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    bool cut = finish && strcmp(finish, "length") == 0,
         calls = json_array_size(json_object_get(message, "tool_calls")) > 0;
    const struct anthropic_usage counts = {
        .prompt_tokens = (uint32_t)count_of(usage, "prompt_tokens"),
        .cached_tokens =
            (uint32_t)count_of(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"),
        .completion_tokens = (uint32_t)count_of(usage, "completion_tokens"),
        .requantized_pages = (uint64_t)count_of(usage, API_REQUANTIZED)};
    return json_pack("{s:s, s:s, s:s, s:O, s:o, s:s, s:s?, s:o, s:O*}", "id", id, "type", "message",
                     "role", "assistant", "model", json_object_get(answer, "model"), "content",
                     content_json(message), "stop_reason", stop_reason(cut, calls, stop),
                     "stop_sequence", stop_sequence(cut, calls, stop), "usage", usage_json(&counts),
                     "warnings", json_object_get(answer, "warnings"));
}

/* ---- events ---------------------------------------------------------------------------------- */

/* Takes data; NULL: out of memory. */
static bool event(struct anthropic_stream *s, json_t *data) {
    const char *type = json_string_value(json_object_get(data, "type"));
    char *text = data ? json_dumps(data, JSON_COMPACT) : NULL;
    bool good = text && text_puts(s->out, "event: ") && text_puts(s->out, type) &&
                text_puts(s->out, "\ndata: ") && text_puts(s->out, text) &&
                text_puts(s->out, "\n\n");
    free(text);
    json_decref(data);
    return good;
}

bool anthropic_stream_ping(struct anthropic_stream *s) {
    return event(s, json_pack("{s:s}", "type", "ping"));
}

bool anthropic_stream_start(struct anthropic_stream *s, const char *id, const char *model,
                            const struct anthropic_usage *usage) {
    json_t *message = json_pack("{s:s, s:s, s:s, s:s, s:[], s:n, s:n, s:o}", "id", id, "type",
                                "message", "role", "assistant", "model", model, "content",
                                "stop_reason", "stop_sequence", "usage", usage_json(usage));
    return event(s, json_pack("{s:s, s:o}", "type", "message_start", "message", message)) &&
           anthropic_stream_ping(s);
}

/* Takes delta. */
static bool delta_event(struct anthropic_stream *s, json_t *delta) {
    ASSERT(s->blocks > 0);
    return event(s, json_pack("{s:s, s:I, s:o}", "type", "content_block_delta", "index",
                              (json_int_t)s->blocks - 1, "delta", delta));
}

static bool end_block(struct anthropic_stream *s) {
    const enum anthropic_block kind = s->open;
    s->open = ANTHROPIC_NO_BLOCK;
    if (kind == ANTHROPIC_NO_BLOCK)
        return true;
    if (kind == ANTHROPIC_THINKING &&
        !delta_event(s, json_pack("{s:s, s:s}", "type", "signature_delta", "signature", "")))
        return false;
    return event(s, json_pack("{s:s, s:I}", "type", "content_block_stop", "index",
                              (json_int_t)s->blocks - 1));
}

/* Takes block. */
static bool begin_block(struct anthropic_stream *s, enum anthropic_block kind, json_t *block) {
    if (!end_block(s)) {
        json_decref(block);
        return false;
    }
    s->open = kind;
    return event(s, json_pack("{s:s, s:I, s:o}", "type", "content_block_start", "index",
                              (json_int_t)s->blocks++, "content_block", block));
}

static bool begin_text(struct anthropic_stream *s, enum anthropic_block kind) {
    return begin_block(s, kind,
                       kind == ANTHROPIC_TEXT ? json_pack("{s:s, s:s}", "type", "text", "text", "")
                                              : json_pack("{s:s, s:s, s:s}", "type", "thinking",
                                                          "thinking", "", "signature", ""));
}

/* Continues the open block if it is of this kind, else begins one. */
static bool text_part(struct anthropic_stream *s, enum anthropic_block kind, const char *text,
                      size_t len) {
    bool thinking = kind == ANTHROPIC_THINKING;
    if (len == 0)
        return true;
    if (s->open != kind && !begin_text(s, kind))
        return false;
    return delta_event(s,
                       json_pack("{s:s, s:o}", "type", thinking ? "thinking_delta" : "text_delta",
                                 thinking ? "thinking" : "text", json_stringn(text, len)));
}

bool anthropic_stream_part(void *stream, const struct answer_part *part) {
    struct anthropic_stream *s = stream;
    switch (part->kind) {
    case ANSWER_CONTENT:
        return text_part(s, ANTHROPIC_TEXT, part->text, part->len);
    case ANSWER_REASONING:
        return text_part(s, ANTHROPIC_THINKING, part->text, part->len);
    case ANSWER_CALL:
        s->calls = true;
        return begin_block(s, ANTHROPIC_TOOL_USE,
                           json_pack("{s:s, s:s, s:s, s:{}}", "type", "tool_use", "id", part->id,
                                     "name", part->text, "input"));
    case ANSWER_ARGUMENTS:
        break;
    }
    ASSERT(s->open == ANTHROPIC_TOOL_USE);
    return delta_event(s, json_pack("{s:s, s:o}", "type", "input_json_delta", "partial_json",
                                    json_stringn(part->text, part->len)));
}

bool anthropic_stream_finish(struct anthropic_stream *s, kvasir_finish finish, const char *stop,
                             const struct anthropic_usage *usage) {
    bool cut = finish == KVASIR_FINISH_LENGTH;
    if ((s->blocks == 0 && !begin_text(s, ANTHROPIC_TEXT)) || !end_block(s))
        return false;
    json_t *end = json_pack("{s:s, s:{s:s, s:s?}, s:o, s:O*}", "type", "message_delta", "delta",
                            "stop_reason", stop_reason(cut, s->calls, stop), "stop_sequence",
                            stop_sequence(cut, s->calls, stop), "usage", usage_json(usage),
                            "warnings", s->warnings);
    return event(s, end) && event(s, json_pack("{s:s}", "type", "message_stop"));
}

bool anthropic_stream_error(struct anthropic_stream *s, int status, const char *message) {
    return event(s, anthropic_error_body(status, message));
}
