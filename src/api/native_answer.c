/* SPDX-License-Identifier: Apache-2.0 */
/* native_answer.c: llama-server's /completion and /infill as protocols. An answer is one choice.
 *
 *     data: {"index": 0, "content": " the", "tokens": [279], "stop": false, ..}\n\n
 *     ...
 *     data: {"content": "", "stop": true, "stop_type": "eos", "timings": {..}, ..}\n\n
 *
 * timings: prompt_n are the tokens that were computed, cache_n those that were found; the prompt's
 * time ends with the first token, the answer's with the last.
 */
#include "api/native.h"
#include "api/openai_internal.h"

#include <stdlib.h>
#include <string.h>

struct native_stream {
    struct protocol_context c;
    struct native_usage {
        uint32_t prompt_tokens, cached_tokens;
        uint64_t completion_tokens, requantized_pages;
    } usage;
};

/* Takes value; false: out of memory. */
static bool set(json_t *to, const char *name, json_t *value) {
    return json_object_set_new(to, name, value) == 0;
}

/* made, or NULL if it is not complete. */
static json_t *if_good(json_t *made, bool good) {
    if (good)
        return made;
    json_decref(made);
    return NULL;
}

/* ---- parts ----------------------------------------------------------------------------------- */

json_t *native_settings(const kvasir_sampling *s, uint32_t max_tokens) {
    const json_int_t most = max_tokens ? (json_int_t)max_tokens : -1;
    return json_pack(
        "{s:I, s:f, s:i, s:f, s:f, s:f, s:I, s:f, s:f, s:f, s:f, s:I, s:I, s:i}", "seed",
        (json_int_t)s->seed, "temperature", (double)s->temp, "top_k", s->top_k, "top_p",
        s->top_p > 0 ? (double)s->top_p : 1.0, "min_p", (double)s->min_p, "repeat_penalty",
        s->repetition_penalty > 0 ? (double)s->repetition_penalty : 1.0, "repeat_last_n",
        (json_int_t)s->repetition_context, "presence_penalty", (double)s->presence_penalty,
        "frequency_penalty", (double)s->frequency_penalty, "xtc_probability",
        (double)s->xtc_probability, "xtc_threshold", (double)s->xtc_threshold, "n_predict", most,
        "max_tokens", most, "mirostat", 0);
}

static json_t *settings_json(const struct api_request *r) {
    json_t *made = native_settings(&r->engine.sampling, r->engine.max_tokens);
    json_t *stops = json_array();
    bool good = made && stops;
    for (size_t i = 0; good && i < r->engine.n_stops; i++)
        good = json_array_append_new(stops, json_string(r->stops[i])) == 0;
    good =
        good && json_object_set(made, "stop", stops) == 0 &&
        set(made, "stream", json_boolean(r->stream)) &&
        set(made, "ignore_eos", json_boolean(r->engine.ignore_end)) &&
        set(made, "n_probs", json_integer(r->engine.top_logprobs > 0 ? r->engine.top_logprobs : 0));
    json_decref(stops);
    return if_good(made, good);
}

/* A clock may stand still; clients divide by it. */
static double ms_between(int64_t from_us, int64_t to_us) {
    return from_us && to_us > from_us ? (double)(to_us - from_us) / 1000 : 0.001;
}

static json_t *timings_json(const struct protocol_context *c, const struct native_usage *u) {
    static const struct api_times NONE;
    const struct api_times *t = c->times ? c->times : &NONE;
    const double prompt_ms = ms_between(t->started_us, t->first_us ? t->first_us : t->now_us),
                 answer_ms = ms_between(t->first_us, t->last_us);
    const uint32_t computed = u->prompt_tokens - u->cached_tokens;
    const double prompt_n = computed, answer_n = (double)u->completion_tokens;
    return json_pack("{s:I, s:I, s:f, s:f, s:f, s:I, s:f, s:f, s:f}", "cache_n",
                     (json_int_t)u->cached_tokens, "prompt_n", (json_int_t)computed, "prompt_ms",
                     prompt_ms, "prompt_per_token_ms", computed ? prompt_ms / prompt_n : 0,
                     "prompt_per_second", 1000 * prompt_n / prompt_ms, "predicted_n",
                     (json_int_t)u->completion_tokens, "predicted_ms", answer_ms,
                     "predicted_per_token_ms", u->completion_tokens ? answer_ms / answer_n : 0,
                     "predicted_per_second", 1000 * answer_n / answer_ms);
}

/* [{"id", "token", "bytes", "logprob", "top_logprobs": [..]}]: OpenAI's, with ids. */
static json_t *probabilities_json(const struct protocol_context *c, const struct api_choice *of) {
    json_t *logprobs = openai_token_logprobs(c->setup, of);
    json_t *list = json_object_get(logprobs, "content"), *entry, *other;
    const kvasir_token_logprob *top = of->top;
    bool good = list != NULL;
    size_t i, k;
    json_array_foreach(list, i, entry) {
        good = good && set(entry, "id", json_integer(of->tokens[i].token));
        json_array_foreach(json_object_get(entry, "top_logprobs"), k, other) {
            good = good && set(other, "id", json_integer(top++->token));
        }
    }
    json_incref(list);
    json_decref(logprobs);
    return if_good(list, good);
}

static json_t *tokens_json(const struct api_choice *c) {
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = 0; good && i < c->n_tokens; i++)
        good = json_array_append_new(list, json_integer(c->tokens[i].token)) == 0;
    return if_good(list, good);
}

static bool wants(const struct api_request *r, const char *name) {
    return json_is_true(json_object_get(r->echo, name));
}

/* Probabilities are kept for the tokens' sake, too: with none wanted beside the token's own they
 * were not asked for. */
static bool add_probabilities(json_t *to, const struct protocol_context *c,
                              const struct api_choice *of) {
    return c->request->engine.top_logprobs <= 0 ||
           set(to, "completion_probabilities", probabilities_json(c, of));
}

/* The members of the last object beside its text. */
static bool add_end(json_t *to, const struct protocol_context *c, kvasir_finish finish,
                    const char *stop, const struct native_usage *u) {
    const char *type = finish == KVASIR_FINISH_LENGTH ? "limit" : stop ? "word" : "eos";
    json_t *end = api_with_requantized(
        json_pack("{s:i, s:i, s:b, s:s, s:s, s:s, s:I, s:I, s:I, s:b, s:o, s:o}", "index", 0,
                  "id_slot", -1, "stop", 1, "model", c->request->model, "stop_type", type,
                  "stopping_word", stop ? stop : "", "tokens_predicted",
                  (json_int_t)u->completion_tokens, "tokens_evaluated",
                  (json_int_t)u->prompt_tokens, "tokens_cached",
                  (json_int_t)u->prompt_tokens + (json_int_t)u->completion_tokens, "truncated", 0,
                  "timings", timings_json(c, u), "generation_settings", settings_json(c->request)),
        u->requantized_pages);
    json_t *warnings = json_object_get(c->request->echo, "warnings");
    const bool good = end && json_object_update(to, end) == 0 &&
                      (!warnings || json_object_set(to, "warnings", warnings) == 0);
    json_decref(end);
    return good;
}

/* ---- whole answers --------------------------------------------------------------------------- */

/* Of the body the wanted members, "timings/prompt_n" by that name. Takes body; NULL is allowed. */
static json_t *only(json_t *body, json_t *fields) {
    json_t *made = body ? json_object() : NULL, *field;
    bool good = made != NULL;
    size_t i;
    if (!body || !fields)
        return json_decref(made), body;
    json_array_foreach(fields, i, field) {
        const char *path = json_string_value(field);
        json_t *value = body;
        for (const char *at = path; value && *at;) {
            const size_t n = strcspn(at, "/");
            value = json_object_getn(value, at, n);
            at += n + (at[n] == '/');
        }
        good = good && (!value || json_object_set(made, path, value) == 0);
    }
    json_decref(body);
    return if_good(made, good);
}

static json_t *answer_body(const struct api_answer *a, const struct protocol_context *c,
                           struct api_error *err) {
    if (!api_answer_good(a, err))
        return NULL;
    const struct api_choice *choice = &a->choices[0];
    const struct native_usage usage = {a->prompt_tokens, a->cached_tokens, choice->n_tokens,
                                       a->requantized_pages};
    json_t *body =
        json_pack("{s:s%, s:o}", "content", choice->text ? choice->text : "", choice->len, "tokens",
                  wants(c->request, "return_tokens") ? tokens_json(choice) : json_array());
    const bool good = body && add_end(body, c, choice->finish, choice->stop, &usage) &&
                      add_probabilities(body, c, choice);
    body = only(if_good(body, good), json_object_get(c->request->echo, "response_fields"));
    if (!body)
        api_no_memory(err);
    return body;
}

/* ---- streams --------------------------------------------------------------------------------- */

static bool add_event(json_t *data, struct text_buf *out) {
    if (text_puts(out, "data: "))
        return api_add_json(data, out) && text_puts(out, "\n\n");
    json_decref(data);
    return false;
}

static void *stream_open(const struct protocol_context *c) {
    struct native_stream *s = calloc(1, sizeof *s);
    if (s)
        s->c = *c;
    return s;
}

static void stream_close(void *stream) {
    free(stream);
}

/* {"content", "tokens"} of one event; the token is none at the end. */
static json_t *piece_json(const struct native_stream *s, const kvasir_event *e) {
    struct api_token token = api_token_of(e);
    const struct api_choice c = {.tokens = &token,
                                 .n_tokens = e->kind == KVASIR_EVENT_TOKEN,
                                 .top = (kvasir_token_logprob *)e->top,
                                 .n_top = e->n_top};
    json_t *piece = json_pack("{s:s%, s:o}", "content", e->text, e->len, "tokens", tokens_json(&c));
    return if_good(piece, piece && (!c.n_tokens || add_probabilities(piece, &s->c, &c)));
}

static bool stream_event(void *stream, const kvasir_event *e, struct text_buf *out) {
    struct native_stream *s = stream;
    struct native_usage *u = &s->usage;
    u->prompt_tokens = e->prompt_tokens;
    u->cached_tokens = e->cached_tokens;
    u->requantized_pages = e->requantized_pages;
    u->completion_tokens += e->kind == KVASIR_EVENT_TOKEN;
    if (e->kind != KVASIR_EVENT_TOKEN && e->kind != KVASIR_EVENT_DONE)
        return true;
    json_t *data = piece_json(s, e);
    bool good = data != NULL;
    if (good && e->kind == KVASIR_EVENT_DONE)
        good = add_end(data, &s->c, e->finish, e->stop, u);
    else if (good)
        good = set(data, "index", json_integer(0)) && set(data, "id_slot", json_integer(-1)) &&
               set(data, "stop", json_false()) &&
               set(data, "tokens_predicted", json_integer((json_int_t)u->completion_tokens)) &&
               set(data, "tokens_evaluated", json_integer((json_int_t)u->prompt_tokens));
    return add_event(if_good(data, good), out);
}

static bool stream_silence(uint32_t prompt_done, uint32_t prompt_tokens, struct text_buf *out) {
    return text_printf(out, ": keepalive %u/%u\n\n", prompt_done, prompt_tokens);
}

/* OpenAI's, with HTTP's code. */
static json_t *error_json(const struct api_error *err) {
    json_t *error = openai_error_object(err);
    if (error && set(error, "code", json_integer(err->status)))
        return json_pack("{s:o}", "error", error);
    json_decref(error);
    return NULL;
}

static bool stream_failed(const struct api_error *err, struct text_buf *out) {
    return add_event(error_json(err), out);
}

#define NATIVE_PROTOCOL(name_, prompt_field_, read_)                                               \
    {                                                                                              \
        .name = name_, .id_prefix = "cmpl-", .prompt_field = prompt_field_, .wants = native_wants, \
        .read = read_, .body = answer_body, .error = error_json, .open = stream_open,              \
        .close = stream_close, .event = stream_event, .silence = stream_silence,                   \
        .failed = stream_failed                                                                    \
    }
const struct protocol PROTOCOL_NATIVE =
    NATIVE_PROTOCOL("completion", "prompt", native_read_completion);
const struct protocol PROTOCOL_INFILL =
    NATIVE_PROTOCOL("infill", "input_prefix", native_read_infill);
