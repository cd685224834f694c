/* SPDX-License-Identifier: Apache-2.0 */
/* anthropic_stream.c: /v1/messages as a protocol. A request is read as OpenAI's, and an
 * answer is one choice. */
#include "api/anthropic.h"
#include "api/protocol.h"

#include <stdlib.h>

struct messages_stream {
    struct protocol_context c;
    struct anthropic_stream events;
    struct answer_parser *parser;
    uint32_t completion_tokens;
};

static json_t *answer_body(const struct api_answer *a, const struct protocol_context *c,
                           struct api_error *err) {
    json_t *openai = openai_answer_body(a, c->setup, c->id, c->created, err);
    if (!openai)
        return NULL;
    json_t *body = anthropic_answer_body(openai, c->id, a->choices[0].stop);
    json_decref(openai);
    if (!body)
        api_no_memory(err);
    return body;
}

static json_t *error_json(const struct api_error *err) {
    return anthropic_error_body(err->status, err->text);
}

static void stream_close(void *stream) {
    struct messages_stream *s = stream;
    if (s)
        answer_parser_destroy(s->parser);
    free(s);
}

static void *stream_open(const struct protocol_context *c) {
    struct messages_stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->c = *c;
    s->parser = api_answer_parser(c->request, c->id, 0, anthropic_stream_part, &s->events);
    if (s->parser)
        return s;
    stream_close(s);
    return NULL;
}

static bool stream_event(void *stream, const kvasir_event *e, struct text_buf *out) {
    struct messages_stream *s = stream;
    const struct anthropic_usage usage = {e->prompt_tokens, e->cached_tokens,
                                          s->completion_tokens += e->kind == KVASIR_EVENT_TOKEN,
                                          e->requantized_pages};
    s->events.out = out;
    s->events.warnings = s->c.request->warnings;
    if (e->kind == KVASIR_EVENT_START)
        return anthropic_stream_start(&s->events, s->c.id, s->c.request->model, &usage);
    if (!answer_parser_push(s->parser, e->text, e->len))
        return false;
    return e->kind != KVASIR_EVENT_DONE ||
           (answer_parser_finish(s->parser, e->finish == KVASIR_FINISH_LENGTH) &&
            anthropic_stream_finish(&s->events, e->finish, e->stop, &usage));
}

static bool stream_silence(uint32_t prompt_done, uint32_t prompt_tokens, struct text_buf *out) {
    struct anthropic_stream events = {.out = out};
    (void)prompt_done;
    (void)prompt_tokens;
    return anthropic_stream_ping(&events);
}

static bool stream_failed(const struct api_error *err, struct text_buf *out) {
    struct anthropic_stream events = {.out = out};
    return anthropic_stream_error(&events, err->status, err->text);
}

const struct protocol PROTOCOL_MESSAGES = {.name = "messages",
                                           .id_prefix = "msg_",
                                           .prompt_field = "messages",
                                           .wants = anthropic_wants,
                                           .read = anthropic_read,
                                           .body = answer_body,
                                           .error = error_json,
                                           .open = stream_open,
                                           .close = stream_close,
                                           .event = stream_event,
                                           .silence = stream_silence,
                                           .failed = stream_failed};
