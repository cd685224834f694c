/* SPDX-License-Identifier: Apache-2.0 */
/* responses_stream.c: /v1/responses as a protocol. An answer is one choice. */
#include "api/responses.h"

#include <stdlib.h>

struct responses_stream {
    struct responses_output output;
    struct answer_parser *parser;
    uint64_t completion_tokens;
};

static json_t *answer_body(const struct api_answer *a, const struct protocol_context *c,
                           struct api_error *err) {
    if (!api_answer_good(a, err))
        return NULL;
    struct responses_output output;
    const struct api_choice *choice = &a->choices[0];
    const struct responses_usage usage = {a->prompt_tokens, a->cached_tokens, choice->n_tokens,
                                          a->requantized_pages};
    json_t *body = NULL;
    struct answer_parser *parser =
        responses_output_init(&output, c)
            ? api_answer_parser(a->request, c->id, 0, responses_output_part, &output)
            : NULL;
    if (parser && answer_parser_push(parser, choice->text, choice->len) &&
        answer_parser_finish(parser, choice->finish == KVASIR_FINISH_LENGTH))
        body = responses_output_finish(&output, choice->finish, &usage);
    answer_parser_destroy(parser);
    responses_output_free(&output);
    if (!body)
        api_no_memory(err);
    return body;
}

static void stream_close(void *stream) {
    struct responses_stream *s = stream;
    if (s) {
        answer_parser_destroy(s->parser);
        responses_output_free(&s->output);
    }
    free(s);
}

static void *stream_open(const struct protocol_context *c) {
    struct responses_stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    if (responses_output_init(&s->output, c))
        s->parser = api_answer_parser(c->request, c->id, 0, responses_output_part, &s->output);
    if (s->parser)
        return s;
    stream_close(s);
    return NULL;
}

static bool stream_event(void *stream, const kvasir_event *e, struct text_buf *out) {
    struct responses_stream *s = stream;
    s->completion_tokens += e->kind == KVASIR_EVENT_TOKEN;
    s->output.out = out;
    if (e->kind == KVASIR_EVENT_START)
        return responses_output_start(&s->output);
    if (!answer_parser_push(s->parser, e->text, e->len))
        return false;
    if (e->kind != KVASIR_EVENT_DONE)
        return true;
    const struct responses_usage usage = {e->prompt_tokens, e->cached_tokens, s->completion_tokens,
                                          e->requantized_pages};
    json_t *response = answer_parser_finish(s->parser, e->finish == KVASIR_FINISH_LENGTH)
                           ? responses_output_finish(&s->output, e->finish, &usage)
                           : NULL;
    json_decref(response);
    return response != NULL;
}

static bool stream_silence(uint32_t prompt_done, uint32_t prompt_tokens, struct text_buf *out) {
    return text_printf(out, ": keepalive %u/%u\n\n", prompt_done, prompt_tokens);
}

static bool stream_failed(const struct api_error *err, struct text_buf *out) {
    json_t *event = openai_error_object(err);
    char *text = event && json_object_set_new(event, "type", json_string("error")) == 0
                     ? json_dumps(event, JSON_COMPACT)
                     : NULL;
    const bool good = text && text_printf(out, "event: error\ndata: %s\n\n", text);
    free(text);
    json_decref(event);
    return good;
}

const struct protocol PROTOCOL_RESPONSES = {.name = "responses",
                                            .id_prefix = "resp_",
                                            .prompt_field = "input",
                                            .wants = responses_wants,
                                            .read = responses_read,
                                            .body = answer_body,
                                            .error = openai_error_json,
                                            .open = stream_open,
                                            .close = stream_close,
                                            .event = stream_event,
                                            .silence = stream_silence,
                                            .failed = stream_failed};
