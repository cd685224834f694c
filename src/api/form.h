/* SPDX-License-Identifier: Apache-2.0 */
/* form.h: how a request of some API is read and its answers are written, behind one interface:
 * OpenAI's (openai_stream.c) and Anthropic's (anthropic_stream.c). */
#ifndef API_FORM_H
#define API_FORM_H

#include "api/openai.h"
#include "util/util.h"

/* What a stream of one request needs; borrowed. */
struct form_context {
    const struct openai_setup *setup;
    const struct openai_request *request;
    const char *id;
    int64_t created;
};

struct form {
    const char *name, *id_prefix;
    /* As openai_read. */
    bool (*read)(const struct openai_setup *setup, const json_t *body, struct openai_request *out,
                 struct openai_error *err);
    /* As openai_answer_body. */
    json_t *(*body)(const struct openai_answer *a, const struct form_context *c,
                    struct openai_error *err);
    /* {"error": ...}; NULL: out of memory */
    json_t *(*error)(const struct openai_error *err);

    /* Server-sent events, appended to *out; false: out of memory. NULL from open, too. */
    void *(*open)(const struct form_context *c);
    void (*close)(void *stream); /* NULL is allowed */
    bool (*event)(void *stream, const kvasir_event *event, struct text_buf *out);
    /* Nothing else is sent for a while. */
    bool (*silence)(uint32_t prompt_done, uint32_t prompt_tokens, struct text_buf *out);
    bool (*failed)(const struct openai_error *err, struct text_buf *out); /* in place of the rest */
};
extern const struct form FORM_CHAT, FORM_COMPLETIONS, FORM_MESSAGES;

#endif
