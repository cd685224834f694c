/* SPDX-License-Identifier: Apache-2.0 */
/* api_chat.h: OpenAI's messages as they grow, part by part, from another protocol's: Anthropic's
 * blocks (anthropic_request.c) and Responses' items (responses_items.c). Parts that follow each
 * other and are of one role become one message. */
#ifndef API_API_CHAT_H
#define API_API_CHAT_H

#include "api/api_error.h"
#include "util/util.h"

#include <jansson.h>

/* Starts as zeros but for messages (an array) and err. */
struct api_chat {
    json_t *messages;
    /* the last message, not among them yet; role NULL: none */
    const char *role;
    struct text_buf text, thinking;
    json_t *calls; /* array, or NULL */
    struct api_error *err;
};
void api_chat_free(struct api_chat *c);

/* These return false with *c->err. What follows is of this role; and: ends the last message. */
bool api_chat_enter(struct api_chat *c, const char *role);
bool api_chat_end(struct api_chat *c);
/* Takes message, a whole one. */
bool api_chat_append(struct api_chat *c, json_t *message);
/* A call of the last message, an assistant's. Takes arguments, an object or its text. */
bool api_chat_call(struct api_chat *c, json_t *id, json_t *name, json_t *arguments);
/* A message of the role tool. */
bool api_chat_result(struct api_chat *c, json_t *id, const struct text_buf *result);

/* Appends a text; texts are joined by line ends. False: out of memory. */
bool api_add_line(struct text_buf *b, const char *text, size_t len);

#endif
