/* SPDX-License-Identifier: Apache-2.0 */
/* ollama_answer.c: /api/chat and /api/generate as protocols. An answer is one choice.
 *
 *     {"model", "created_at", "message": {"role", "content": "The "}, "done": false}\n
 *     ...
 *     {.., "message": {.., "content": ""}, "done": true, "done_reason": "stop", "eval_count", ..}\n
 *
 * /api/generate has "response" and "thinking" instead of the message. If a request fails after the
 * first line, {"error": "why"} replaces the rest. Durations are nanoseconds: load_duration is how
 * long the request waited, since no model is loaded for it; the prompt's goes to the first token;
 * eval_duration from there to the last.
 */
#include "api/ollama.h"
#include "api/openai_internal.h"

#include <stdlib.h>

struct ollama_stream {
    struct protocol_context c;
    bool generate;
    struct answer_parser *parser;
    json_t *call; /* {"id", "function": {"name"}}, until its arguments come */
    uint64_t completion_tokens;
    json_t *logprobs;     /* array: of the current token, until a line takes it; or NULL */
    struct text_buf *out; /* of the current event */
};

/* ---- lines ----------------------------------------------------------------------------------- */

/* {"model", "created_at"}; NULL: out of memory */
static json_t *head_json(const struct protocol_context *c) {
    return json_pack("{s:s, s:o}", "model", c->request->model, "created_at", api_time(c->created));
}

/* A clock may stand still; clients divide by it. */
static json_t *ns_between(int64_t from_us, int64_t to_us) {
    const int64_t ns = (to_us - from_us) * 1000;
    return json_integer(from_us && ns > 0 ? ns : 1);
}

/* Adds what the last object has beside the text; to: of the whole answer. */
static bool add_end(json_t *to, const struct protocol_context *c, const char *reason,
                    uint32_t prompt_tokens, uint64_t completion_tokens,
                    uint64_t requantized_pages) {
    static const struct api_times NONE;
    const struct api_times *t = c->times ? c->times : &NONE;
    json_t *end = api_with_requantized(
        json_pack("{s:b, s:s, s:o, s:o, s:I, s:o, s:I, s:o}", "done", 1, "done_reason", reason,
                  "total_duration", ns_between(t->submitted_us, t->now_us), "load_duration",
                  ns_between(t->submitted_us, t->started_us), "prompt_eval_count",
                  (json_int_t)prompt_tokens, "prompt_eval_duration",
                  ns_between(t->started_us, t->first_us ? t->first_us : t->now_us), "eval_count",
                  (json_int_t)completion_tokens, "eval_duration",
                  ns_between(t->first_us, t->last_us)),
        requantized_pages);
    const bool good = end && json_object_update(to, end) == 0 &&
                      (!c->request->echo || json_object_update(to, c->request->echo) == 0);
    json_decref(end);
    return good;
}

/* {"message": {"role", "content", ..}} or {"response", ..}: a text, perhaps empty. */
static json_t *text_json(bool generate, const char *text, size_t len) {
    return generate
               ? json_pack("{s:s%}", "response", text, len)
               : json_pack("{s:{s:s, s:s%}}", "message", "role", "assistant", "content", text, len);
}

/* Adds a member to the message, or beside the response; takes value. */
static bool add_member(json_t *to, bool generate, const char *name, json_t *value) {
    return json_object_set_new(generate ? to : json_object_get(to, "message"), name, value) == 0;
}

/* [{"token", "logprob", "bytes", "top_logprobs"}]; NULL: out of memory */
static json_t *logprobs_json(const struct protocol_context *c, const struct api_choice *of) {
    json_t *logprobs = openai_token_logprobs(c->setup, of),
           *content = json_incref(json_object_get(logprobs, "content"));
    json_decref(logprobs);
    return content;
}

/* ---- streams --------------------------------------------------------------------------------- */

/* Takes value, one line. */
static bool add_line(json_t *value, struct text_buf *out) {
    return api_add_json(value, out) && text_puts(out, "\n");
}

/* Takes part, which becomes a line that is not the last. */
static bool add_part(struct ollama_stream *s, json_t *part) {
    json_t *line = part ? head_json(&s->c) : NULL;
    const bool good = line && json_object_update(line, part) == 0 &&
                      json_object_set_new(line, "done", json_false()) == 0 &&
                      (!s->logprobs || json_object_set(line, "logprobs", s->logprobs) == 0);
    json_decref(part);
    json_decref(s->logprobs);
    s->logprobs = NULL;
    if (good)
        return add_line(line, s->out);
    json_decref(line);
    return false;
}

/* answer_part_fn */
static bool take_part(void *stream, const struct answer_part *part) {
    struct ollama_stream *s = stream;
    json_t *made;
    if (part->kind == ANSWER_CALL) {
        json_decref(s->call);
        s->call =
            json_pack("{s:s, s:{s:s%}}", "id", part->id, "function", "name", part->text, part->len);
        return s->call != NULL;
    }
    if (part->kind == ANSWER_CONTENT)
        return part->len == 0 || add_part(s, text_json(s->generate, part->text, part->len));
    made = text_json(s->generate, "", 0);
    bool good = made != NULL;
    if (part->kind == ANSWER_REASONING) {
        good =
            good && add_member(made, s->generate, "thinking", json_stringn(part->text, part->len));
    } else {
        ASSERT(part->kind == ANSWER_ARGUMENTS && s->call);
        json_t *text = json_stringn(part->text, part->len);
        good = good && text &&
               json_object_set_new(json_object_get(s->call, "function"), "arguments",
                                   api_object_of(text)) == 0 &&
               add_member(made, s->generate, "tool_calls", json_pack("[O]", s->call));
        json_decref(text);
    }
    if (good)
        return add_part(s, made);
    json_decref(made);
    return false;
}

static void stream_close(void *stream) {
    struct ollama_stream *s = stream;
    if (s) {
        answer_parser_destroy(s->parser);
        json_decref(s->call);
        json_decref(s->logprobs);
    }
    free(s);
}

static void *stream_open(const struct protocol_context *c, bool generate) {
    struct ollama_stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->c = *c;
    s->generate = generate;
    s->parser = api_answer_parser(c->request, c->id, 0, take_part, s);
    if (s->parser)
        return s;
    stream_close(s);
    return NULL;
}

/* The text of a token, with its logprobs; they do not wait for text that is held back. */
static bool add_token(struct ollama_stream *s, const kvasir_event *e) {
    struct api_token token = api_token_of(e);
    const struct api_choice c = {
        .tokens = &token, .n_tokens = 1, .top = (kvasir_token_logprob *)e->top, .n_top = e->n_top};
    const bool wanted = e->kind == KVASIR_EVENT_TOKEN && s->c.request->engine.top_logprobs >= 0;
    if (wanted && !(s->logprobs = logprobs_json(&s->c, &c)))
        return false;
    return answer_parser_push(s->parser, e->text, e->len) &&
           (!s->logprobs || add_part(s, text_json(s->generate, "", 0)));
}

static bool stream_event(void *stream, const kvasir_event *e, struct text_buf *out) {
    struct ollama_stream *s = stream;
    s->out = out;
    s->completion_tokens += e->kind == KVASIR_EVENT_TOKEN;
    if (e->kind == KVASIR_EVENT_START)
        return true;
    if (!add_token(s, e))
        return false;
    if (e->kind != KVASIR_EVENT_DONE)
        return true;
    json_t *line = head_json(&s->c), *empty = text_json(s->generate, "", 0);
    bool good = answer_parser_finish(s->parser, e->finish == KVASIR_FINISH_LENGTH) && line &&
                empty && json_object_update(line, empty) == 0 &&
                add_end(line, &s->c, openai_finish_reason(e->finish, 0), e->prompt_tokens,
                        s->completion_tokens, e->requantized_pages);
    json_decref(empty);
    if (good)
        return add_line(line, out);
    json_decref(line);
    return false;
}

/* There are no comments between lines of JSON. */
static bool stream_silence(uint32_t prompt_done, uint32_t prompt_tokens, struct text_buf *out) {
    (void)prompt_done, (void)prompt_tokens, (void)out;
    return true;
}

json_t *ollama_error_json(const struct api_error *err) {
    return json_pack("{s:s}", "error", err->text);
}

static bool stream_failed(const struct api_error *err, struct text_buf *out) {
    return add_line(ollama_error_json(err), out);
}

/* ---- whole answers --------------------------------------------------------------------------- */

/* {"id", "function": {"name", "arguments": {}}} of OpenAI's calls */
static json_t *calls_json(json_t *calls) {
    json_t *list = json_array(), *call;
    bool good = list != NULL;
    size_t i;
    json_array_foreach(calls, i, call) {
        json_t *f = json_object_get(call, "function");
        good =
            good && json_array_append_new(
                        list, json_pack("{s:O, s:{s:O, s:o}}", "id", json_object_get(call, "id"),
                                        "function", "name", json_object_get(f, "name"), "arguments",
                                        api_object_of(json_object_get(f, "arguments")))) == 0;
    }
    if (good)
        return list;
    json_decref(list);
    return NULL;
}

/* Of OpenAI's answer, new. */
static json_t *answer_json(json_t *openai, bool generate) {
    json_t *choice = json_array_get(json_object_get(openai, "choices"), 0),
           *message = json_object_get(choice, "message"),
           *text = json_object_get(message ? message : choice, message ? "content" : "text"),
           *thinking = json_object_get(message, "reasoning_content"),
           *calls = json_object_get(message, "tool_calls");
    const char *content = json_string_value(text);
    json_t *made = text_json(generate, content ? content : "", json_string_length(text));
    bool good = made != NULL;
    if (good && thinking)
        good = add_member(made, generate, "thinking", json_incref(thinking));
    if (good && calls)
        good = add_member(made, generate, "tool_calls", calls_json(calls));
    if (good)
        return made;
    json_decref(made);
    return NULL;
}

/* A request without a prompt: it is done. */
static json_t *idle_body(const struct protocol_context *c, bool generate) {
    json_t *body = head_json(c), *empty = text_json(generate, "", 0);
    const bool good = body && empty && json_object_update(body, empty) == 0 &&
                      json_object_set_new(body, "done", json_true()) == 0 &&
                      json_object_set_new(body, "done_reason", json_string("load")) == 0;
    json_decref(empty);
    if (good)
        return body;
    json_decref(body);
    return NULL;
}

static json_t *full_body(const struct api_answer *a, const struct protocol_context *c,
                         bool generate, struct api_error *err) {
    json_t *openai = openai_answer_body(a, c->setup, c->id, c->created, err);
    if (!openai)
        return NULL;
    json_t *answer = answer_json(openai, generate), *body = head_json(c);
    const bool logprobs = c->request->engine.top_logprobs >= 0;
    const bool good = answer && body && json_object_update(body, answer) == 0 &&
                      (!logprobs || json_object_set_new(body, "logprobs",
                                                        logprobs_json(c, &a->choices[0])) == 0) &&
                      add_end(body, c, openai_finish_reason(a->choices[0].finish, 0),
                              a->prompt_tokens, a->choices[0].n_tokens, a->requantized_pages);
    json_decref(openai);
    json_decref(answer);
    if (good)
        return body;
    json_decref(body);
    api_no_memory(err);
    return NULL;
}

static json_t *answer_body(const struct api_answer *a, const struct protocol_context *c,
                           bool generate, struct api_error *err) {
    if (!c->request->idle)
        return full_body(a, c, generate, err);
    json_t *body = idle_body(c, generate);
    if (!body)
        api_no_memory(err);
    return body;
}

/* ---- the two --------------------------------------------------------------------------------- */

static json_t *chat_body(const struct api_answer *a, const struct protocol_context *c,
                         struct api_error *err) {
    return answer_body(a, c, false, err);
}

static json_t *generate_body(const struct api_answer *a, const struct protocol_context *c,
                             struct api_error *err) {
    return answer_body(a, c, true, err);
}

static void *open_chat(const struct protocol_context *c) {
    return stream_open(c, false);
}

static void *open_generate(const struct protocol_context *c) {
    return stream_open(c, true);
}

#define OLLAMA_PROTOCOL(name_, prompt_field_, read_, body_, open_)                                 \
    {                                                                                              \
        .name = name_, .id_prefix = "ollama-", .stream_type = "application/x-ndjson",              \
        .prompt_field = prompt_field_, .wants = ollama_wants, .read = read_, .body = body_,        \
        .error = ollama_error_json, .open = open_, .close = stream_close, .event = stream_event,   \
        .silence = stream_silence, .failed = stream_failed                                         \
    }
const struct protocol PROTOCOL_OLLAMA_CHAT =
    OLLAMA_PROTOCOL("ollama_chat", "messages", ollama_read_chat, chat_body, open_chat);
const struct protocol PROTOCOL_OLLAMA_GENERATE = OLLAMA_PROTOCOL(
    "ollama_generate", "prompt", ollama_read_generate, generate_body, open_generate);
