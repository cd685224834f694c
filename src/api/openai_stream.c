/* SPDX-License-Identifier: Apache-2.0 */
/* openai_stream.c: an engine's events as OpenAI's chunks, one server-sent event each:
 *
 *     data: {"id": ..., "object": "chat.completion.chunk", "choices": [{"delta": ...}]}\n\n
 *     ...
 *     data: {..., "choices": [], "usage": {...}}\n\n      if requested
 *     data: [DONE]\n\n
 *
 * If a request fails after the first chunk, {"error": ...} replaces the rest.
 *
 * A chat's text goes through its parser, which may hold text back, as the engine does with what may
 * become a stop text. With logprobs every token has a chunk, with the text that came with it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "api/openai_internal.h"
#include "api/protocol.h"

struct openai_stream {
    struct protocol_context c;
    struct chunk_choice {
        struct openai_stream *stream;
        struct answer_parser *parser; /* of a chat */
        bool begun;
        size_t offset;          /* characters so far */
    } * choices;                /* [api_choices(request)] */
    struct api_choice *prompts; /* [request->n_prompts] as in struct api_answer */
    uint64_t completion_tokens, requantized_pages;
    struct text_buf head; /* the start of all chunks, up to their choices */
    struct text_buf *out; /* of the current event */
    json_t *logprobs;     /* of its token, until a chunk takes them; may be NULL */
};

static bool is_chat(const struct openai_stream *s) {
    return s->c.request->api == API_CHAT;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* Encoded once, since it is half the cost of a chunk. */
static bool set_head(struct openai_stream *s) {
    json_t *head = json_pack("{s:s, s:s, s:I, s:s}", "id", s->c.id, "object",
                             is_chat(s) ? "chat.completion.chunk" : "text_completion", "created",
                             (json_int_t)s->c.created, "model", s->c.request->model);
    if (!text_puts(&s->head, "data: ") || !api_add_json(head, &s->head))
        return false;
    ASSERT(s->head.data[s->head.len - 1] == '}');
    s->head.len--;
    return text_puts(&s->head, ",\"choices\":");
}

/* Takes choices and usage. last: no chunk comes after it. */
static bool add_chunk(const struct openai_stream *s, json_t *choices, json_t *usage, bool last) {
    bool good = text_append(s->out, s->head.data, s->head.len);
    good = api_add_json(choices, s->out) && good;
    if (s->c.request->include_usage) {
        good = text_puts(s->out, ",\"usage\":") && good;
        good = api_add_json(usage ? usage : json_null(), s->out) && good;
    }
    if (last && s->c.request->warnings) {
        good = text_puts(s->out, ",\"warnings\":") && good;
        good = api_add_json(json_incref(s->c.request->warnings), s->out) && good;
    }
    return good && text_puts(s->out, "}\n\n");
}

/* Takes content: a chat's delta, or a completion's text. last: as add_chunk. */
static bool add_last_choice(struct openai_stream *s, const struct chunk_choice *c, json_t *content,
                            const char *finish, bool last) {
    json_t *logprobs = s->logprobs ? s->logprobs : json_null();
    s->logprobs = NULL;
    json_t *choices = json_pack("[{s:I, s:o, s:o, s:s?}]", "index", (json_int_t)(c - s->choices),
                                is_chat(s) ? "delta" : "text", content, "logprobs", logprobs,
                                "finish_reason", finish);
    return choices && add_chunk(s, choices, NULL, last);
}

static bool add_choice(struct openai_stream *s, const struct chunk_choice *c, json_t *content) {
    return add_last_choice(s, c, content, NULL, false);
}

static json_t *content_json(const struct openai_stream *s, const char *text, size_t len) {
    json_t *content = json_stringn(text, len);
    return is_chat(s) ? json_pack("{s:o}", "content", content) : content;
}

/* answer_part_fn */
static bool add_part(void *user, const struct answer_part *part) {
    const struct chunk_choice *c = user;
    struct openai_stream *s = c->stream;
    json_t *delta;
    if (part->kind == ANSWER_CALL)
        delta = json_pack("{s:[{s:I, s:s, s:s, s:{s:s%, s:s}}]}", "tool_calls", "index",
                          (json_int_t)part->call, "id", part->id, "type", "function", "function",
                          "name", part->text, part->len, "arguments", "");
    else if (part->kind == ANSWER_ARGUMENTS)
        delta = json_pack("{s:[{s:I, s:{s:s%}}]}", "tool_calls", "index", (json_int_t)part->call,
                          "function", "arguments", part->text, part->len);
    else if (part->kind == ANSWER_REASONING)
        delta = json_pack("{s:s%}", "reasoning_content", part->text, part->len);
    else
        delta = content_json(s, part->text, part->len);
    return add_choice(s, c, delta);
}

/* ---- events ---------------------------------------------------------------------------------- */

/* The prompt, as text of the answer. */
static bool add_echo(struct openai_stream *s, struct chunk_choice *c) {
    static const struct api_choice NONE = {0};
    const uint32_t prompt = (uint32_t)(c - s->choices) / s->c.request->engine.n;
    struct openai_echo echo = {.prompt = &s->c.request->prompts[prompt],
                               .scores = &s->prompts[prompt]};
    bool good = openai_echo_text(s->c.setup, &echo);
    if (good)
        s->logprobs = openai_logprobs(s->c.setup, s->c.request, &NONE, 0, &echo);
    good = good && s->logprobs &&
           add_choice(s, c, json_stringn(echo.text.data ? echo.text.data : "", echo.text.len));
    c->offset = openai_characters(echo.text.data, echo.text.len);
    text_free(&echo.text);
    return good;
}

static bool begin_choice(struct openai_stream *s, struct chunk_choice *c) {
    if (c->begun || !(is_chat(s) || s->prompts))
        return true;
    c->begun = true;
    if (s->prompts)
        return add_echo(s, c);
    return add_choice(s, c, json_pack("{s:s, s:s}", "role", "assistant", "content", ""));
}

static bool set_logprobs(struct openai_stream *s, const kvasir_event *e, size_t offset) {
    struct api_token token = api_token_of(e);
    const struct api_choice c = {
        .tokens = &token, .n_tokens = 1, .top = (kvasir_token_logprob *)e->top, .n_top = e->n_top};
    if (e->kind != KVASIR_EVENT_TOKEN || s->c.request->engine.top_logprobs < 0)
        return true;
    s->logprobs = openai_logprobs(s->c.setup, s->c.request, &c, offset, NULL);
    return s->logprobs != NULL;
}

static bool add_text(struct openai_stream *s, struct chunk_choice *c, const kvasir_event *e) {
    bool good = set_logprobs(s, e, c->offset);
    c->offset += openai_characters(e->text, e->len);
    if (good && c->parser)
        good = answer_parser_push(c->parser, e->text, e->len) &&
               (e->kind != KVASIR_EVENT_DONE ||
                answer_parser_finish(c->parser, e->finish == KVASIR_FINISH_LENGTH));
    else if (good && e->len)
        good = add_choice(s, c, content_json(s, e->text, e->len));
    if (good && s->logprobs) /* its text comes later */
        good = add_choice(s, c, content_json(s, "", 0));
    return good;
}

static bool add_end(struct openai_stream *s, struct chunk_choice *c, const kvasir_event *e) {
    const uint32_t calls = c->parser ? answer_parser_calls(c->parser) : 0;
    if (!add_last_choice(s, c, is_chat(s) ? json_object() : json_string(""),
                         openai_finish_reason(e->finish, calls),
                         e->last && !s->c.request->include_usage))
        return false;
    if (!e->last)
        return true;
    const struct openai_usage usage = {e->prompt_tokens, e->cached_tokens, s->completion_tokens,
                                       s->requantized_pages};
    if (s->c.request->include_usage && !add_chunk(s, json_array(), openai_usage_json(&usage), true))
        return false;
    return text_puts(s->out, "data: [DONE]\n\n");
}

static bool stream_event(void *stream, const kvasir_event *e, struct text_buf *out) {
    struct openai_stream *s = stream;
    ASSERT(e->choice < api_choices(s->c.request));
    struct chunk_choice *c = &s->choices[e->choice];
    if (e->kind == KVASIR_EVENT_PROMPT_TOKEN) /* another thread may be in here */
        return api_echo_event(&s->prompts[e->choice / s->c.request->engine.n], e);
    s->out = out;
    s->completion_tokens += e->kind == KVASIR_EVENT_TOKEN;
    s->requantized_pages += e->kind == KVASIR_EVENT_DONE ? e->requantized_pages : 0;
    if (s->prompts && e->kind == KVASIR_EVENT_START)
        return true; /* the prompt's tokens are not known yet */
    if (!begin_choice(s, c))
        return false;
    if (e->kind == KVASIR_EVENT_START)
        return true;
    return add_text(s, c, e) && (e->kind != KVASIR_EVENT_DONE || add_end(s, c, e));
}

/* ---- life ------------------------------------------------------------------------------------ */

static void stream_close(void *stream) {
    struct openai_stream *s = stream;
    if (!s)
        return;
    for (uint32_t i = 0; s->choices && i < api_choices(s->c.request); i++)
        answer_parser_destroy(s->choices[i].parser);
    for (uint32_t i = 0; s->prompts && i < s->c.request->n_prompts; i++)
        api_choice_free(&s->prompts[i]);
    free(s->prompts);
    json_decref(s->logprobs);
    text_free(&s->head);
    free(s->choices);
    free(s);
}

static void *stream_open(const struct protocol_context *c) {
    struct openai_stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->c = *c;
    s->choices = calloc(api_choices(c->request), sizeof *s->choices);
    bool good = s->choices && set_head(s);
    if (good && c->request->echoes)
        good = (s->prompts = calloc(c->request->n_prompts, sizeof *s->prompts)) != NULL;
    for (uint32_t i = 0; good && s->prompts && i < c->request->n_prompts; i++)
        good = api_echo_reserve(&s->prompts[i], c->request, i);
    for (uint32_t i = 0; good && is_chat(s) && i < api_choices(c->request); i++) {
        s->choices[i].stream = s;
        s->choices[i].parser = api_answer_parser(c->request, c->id, i, add_part, &s->choices[i]);
        good = s->choices[i].parser != NULL;
    }
    if (good)
        return s;
    stream_close(s);
    return NULL;
}

/* As in mlx_lm.server. */
static bool stream_silence(uint32_t prompt_done, uint32_t prompt_tokens, struct text_buf *out) {
    char comment[64];
    snprintf(comment, sizeof comment, ": keepalive %u/%u\n\n", prompt_done, prompt_tokens);
    return text_puts(out, comment);
}

static bool stream_failed(const struct api_error *err, struct text_buf *out) {
    return text_puts(out, "data: ") && api_add_json(openai_error_json(err), out) &&
           text_puts(out, "\n\n");
}

static bool read_chat(const struct api_setup *setup, struct api_body *body, struct api_request *out,
                      struct api_error *err) {
    return openai_read(setup, API_CHAT, body, out, err);
}

static bool read_completions(const struct api_setup *setup, struct api_body *body,
                             struct api_request *out, struct api_error *err) {
    return openai_read(setup, API_COMPLETIONS, body, out, err);
}

static json_t *answer_body(const struct api_answer *a, const struct protocol_context *c,
                           struct api_error *err) {
    return openai_answer_body(a, c->setup, c->id, c->created, err);
}

/* The two differ in what they read. */
#define OPENAI_PROTOCOL(name_, prefix_, prompt_field_, wants_, read_)                              \
    {                                                                                              \
        .name = name_, .id_prefix = prefix_, .prompt_field = prompt_field_, .wants = wants_,       \
        .read = read_, .body = answer_body, .error = openai_error_json, .open = stream_open,       \
        .close = stream_close, .event = stream_event, .silence = stream_silence,                   \
        .failed = stream_failed                                                                    \
    }
const struct protocol PROTOCOL_CHAT =
    OPENAI_PROTOCOL("chat", "chatcmpl-", "messages", openai_wants_chat, read_chat);
const struct protocol PROTOCOL_COMPLETIONS =
    OPENAI_PROTOCOL("completions", "cmpl-", "prompt", openai_wants_completion, read_completions);
