/* SPDX-License-Identifier: Apache-2.0 */
/* api_chat.c: OpenAI's messages, part by part. */
#include "api/api_chat.h"

#include <string.h>

void api_chat_free(struct api_chat *c) {
    json_decref(c->messages);
    json_decref(c->calls);
    text_free(&c->text);
    text_free(&c->thinking);
}

static json_t *text_json(const struct text_buf *b) {
    return json_stringn(b->data ? b->data : "", b->len);
}

bool api_chat_append(struct api_chat *c, json_t *message) {
    return json_array_append_new(c->messages, message) == 0 || api_no_memory(c->err);
}

bool api_chat_end(struct api_chat *c) {
    if (!c->role)
        return true;
    bool silent = c->calls && c->text.len == 0; /* templates expect null then */
    json_t *message = json_pack("{s:s, s:o}", "role", c->role, "content",
                                silent ? json_null() : text_json(&c->text));
    bool good = message != NULL;
    if (good && c->calls)
        good = json_object_set(message, "tool_calls", c->calls) == 0;
    if (good && c->thinking.len)
        good = json_object_set_new(message, "reasoning_content", text_json(&c->thinking)) == 0;
    json_decref(c->calls);
    c->calls = NULL;
    c->role = NULL;
    c->text.len = c->thinking.len = 0;
    if (good)
        return api_chat_append(c, message);
    json_decref(message);
    return api_no_memory(c->err);
}

bool api_chat_enter(struct api_chat *c, const char *role) {
    if (c->role && strcmp(c->role, role) != 0 && !api_chat_end(c))
        return false;
    c->role = role;
    return true;
}

bool api_chat_call(struct api_chat *c, json_t *id, json_t *name, json_t *arguments) {
    if (!c->calls)
        c->calls = json_array();
    return json_array_append_new(c->calls, json_pack("{s:O, s:s, s:{s:O, s:o}}", "id", id, "type",
                                                     "function", "function", "name", name,
                                                     "arguments", arguments)) == 0 ||
           api_no_memory(c->err);
}

bool api_chat_result(struct api_chat *c, json_t *id, const struct text_buf *result) {
    return api_chat_append(c, json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id,
                                        "content", text_json(result)));
}

bool api_add_line(struct text_buf *b, const char *text, size_t len) {
    return (len == 0 || b->len == 0 || text_append(b, "\n", 1)) && text_append(b, text, len);
}
