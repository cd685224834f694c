/* SPDX-License-Identifier: Apache-2.0 */
/* protocol.h: how requests of an API are read and its answers are written, behind one interface:
 * OpenAI's chats and completions (openai_stream.c) and responses (responses_stream.c), Anthropic's
 * messages (anthropic_stream.c), ollama's (ollama_stream.c) and llama-server's own
 * (native_answer.c). */
#ifndef API_PROTOCOL_H
#define API_PROTOCOL_H

#include "api/api_answer.h"

/* When what happened to a request, on one clock; 0: not yet. */
struct api_times {
    int64_t submitted_us, started_us, first_us, last_us; /* first and last token */
    int64_t now_us;
};

/* What the answer to one request needs; borrowed. */
struct protocol_context {
    const struct api_setup *setup;
    const struct api_request *request;
    const char *id;
    int64_t created;               /* Unix time */
    const struct api_times *times; /* so far; NULL: not known */
};

struct protocol {
    const char *name, *id_prefix;
    const char *stream_type;  /* the Content-Type of a stream; NULL: server-sent events */
    const char *prompt_field; /* the member of a body with the prompt */
    api_want_fn *wants;       /* of a body, for api_body_read */
    /* As openai_read. */
    bool (*read)(const struct api_setup *setup, struct api_body *body, struct api_request *out,
                 struct api_error *err);
    /* As openai_answer_body. */
    json_t *(*body)(const struct api_answer *a, const struct protocol_context *c,
                    struct api_error *err);
    /* {"error": ...}; NULL: out of memory */
    json_t *(*error)(const struct api_error *err);

    /* A stream, server-sent events or lines, appended to *out. False, and NULL from open: out of
     * memory. */
    void *(*open)(const struct protocol_context *c);
    void (*close)(void *stream); /* NULL is allowed */
    bool (*event)(void *stream, const kvasir_event *event, struct text_buf *out);
    /* KVASIR_EVENT_PROMPT_TOKEN alone comes on the engine's thread, with out NULL, before the
     * events that follow it: it is put into memory that open made. */
    /* Nothing else is sent for a while. */
    bool (*silence)(uint32_t prompt_done, uint32_t prompt_tokens, struct text_buf *out);
    bool (*failed)(const struct api_error *err, struct text_buf *out); /* in place of the rest */
};
/* close of protocols without streams: their requests never have `stream`. */
void protocol_close_none(void *stream);
extern const struct protocol PROTOCOL_CHAT, PROTOCOL_COMPLETIONS, PROTOCOL_MESSAGES,
    PROTOCOL_RESPONSES, PROTOCOL_OLLAMA_CHAT, PROTOCOL_OLLAMA_GENERATE, PROTOCOL_NATIVE,
    PROTOCOL_INFILL;

#endif
