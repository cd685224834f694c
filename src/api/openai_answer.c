/* SPDX-License-Identifier: Apache-2.0 */
/* openai_answer.c: an engine's events to a body.
 *
 *     events (engine's thread: what is borrowed is copied, nothing is computed; memory for an
 *        v    answer of usual length is there before)
 *     choices: text, and the token ids with their logprobs where they were asked for
 *        v
 *     body (any thread, once the last event came): tokens become texts here
 *
 * A token's text is what it adds behind another text. One that holds a part of a character only has
 * U+FFFD in its text and null for its bytes, which OpenAI allows. One that the tokenizer does not
 * know (rows of padding; models without a tokenizer) is called token_id:N, as in vLLM.
 *
 * Completion tokens are the tokens that came as events.
 *
 * A chat's text goes through its parser here (answer_syntax.h): content, reasoning_content,
 * tool_calls.
 */
#include "api/openai_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- collecting ------------------------------------------------------------------------------ */

void openai_answer_free(struct openai_answer *a) {
    for (uint32_t i = 0; a->choices && i < a->request->engine.n; i++) {
        free(a->choices[i].text);
        free(a->choices[i].tokens);
        free(a->choices[i].top);
    }
    free(a->choices);
    *a = (struct openai_answer){0};
}

/* Room for n more items of an array that holds `len`. */
static bool grow(void **data, size_t *cap, size_t len, size_t n, size_t size) {
    if (*cap - len >= n)
        return true;
    size_t wanted = 2 * *cap + n + 16;
    void *grown = realloc(*data, wanted * size);
    if (!grown)
        return false;
    *data = grown;
    *cap = wanted;
    return true;
}

/* Room for an answer of usual length, so that events find it there. */
static bool reserve(struct openai_choice *c, const kvasir_request *r) {
    enum { TOKENS = 2048, TOKEN_BYTES = 8 };
    const size_t n = r->max_tokens && r->max_tokens < TOKENS ? r->max_tokens : TOKENS;
    if (!grow((void **)&c->text, &c->cap, 0, n * TOKEN_BYTES, 1))
        return false;
    if (r->top_logprobs < 0)
        return true;
    return grow((void **)&c->tokens, &c->tokens_cap, 0, n, sizeof *c->tokens) &&
           grow((void **)&c->top, &c->top_cap, 0, n * (size_t)r->top_logprobs, sizeof *c->top);
}

bool openai_answer_init(struct openai_answer *a, const struct openai_request *request) {
    *a = (struct openai_answer){.request = request};
    a->choices = calloc(request->engine.n, sizeof *a->choices);
    for (uint32_t i = 0; a->choices && i < request->engine.n; i++)
        if (!reserve(&a->choices[i], &request->engine)) {
            openai_answer_free(a);
            return false;
        }
    return a->choices != NULL;
}

static bool take_text(struct openai_choice *c, const kvasir_event *e) {
    if (!grow((void **)&c->text, &c->cap, c->len, e->len, 1))
        return false;
    if (e->len)
        memcpy(c->text + c->len, e->text, e->len);
    c->len += e->len;
    return true;
}

static bool take_token(struct openai_choice *c, const kvasir_event *e, bool logprobs) {
    size_t n = logprobs ? e->n_top : 0;
    if (logprobs &&
        (!grow((void **)&c->tokens, &c->tokens_cap, c->n_tokens, 1, sizeof *c->tokens) ||
         !grow((void **)&c->top, &c->top_cap, c->n_top, n, sizeof *c->top)))
        return false;
    if (logprobs)
        c->tokens[c->n_tokens] = (struct openai_token){e->token, e->logprob, (uint32_t)n};
    if (n)
        memcpy(c->top + c->n_top, e->top, n * sizeof *c->top);
    c->n_top += n;
    c->n_tokens++;
    return true;
}

const char *openai_stop_of(const struct openai_request *r, const char *stop) {
    for (size_t i = 0; stop && i < r->engine.n_stops; i++)
        if (strcmp(r->stops[i], stop) == 0)
            return r->stops[i];
    return NULL;
}

/* The first failure is what is told. */
static void set_failed(struct openai_answer *a, const kvasir_error *why) {
    static const kvasir_error NO_MEMORY = {
        .code = KVASIR_ERR_MEMORY, .offset = -1, .text = "out of memory for the answer"};
    if (!a->failed)
        a->error = why ? *why : NO_MEMORY;
    a->failed = true;
}

void openai_answer_event(struct openai_answer *a, const kvasir_event *e) {
    struct openai_choice *c = &a->choices[e->choice];
    a->prompt_tokens = e->prompt_tokens;
    a->cached_tokens = e->cached_tokens;
    bool good = true;
    if (e->kind == KVASIR_EVENT_TOKEN)
        good = take_token(c, e, a->request->engine.top_logprobs >= 0);
    if (e->kind == KVASIR_EVENT_TOKEN || e->kind == KVASIR_EVENT_DONE)
        good = good && take_text(c, e);
    if (!good)
        set_failed(a, NULL);
    if (e->kind == KVASIR_EVENT_DONE) {
        c->finish = e->finish;
        c->stop = openai_stop_of(a->request, e->stop);
        a->cancelled |= e->finish == KVASIR_FINISH_CANCELLED;
        if (e->finish == KVASIR_FINISH_ERROR)
            set_failed(a, e->error);
    }
    a->complete |= e->last;
}

/* ---- logprobs -------------------------------------------------------------------------------- */

/* Tokens to text, with a detokenizer that is at the beginning of a character between calls. */
struct token_texts {
    const kvasir_tokenizer *tokenizer;
    kvasir_detok *detok; /* NULL: there is no tokenizer */
    char *text;          /* [len], of the last token */
    size_t len, cap;
    bool whole;   /* it is what the token's bytes say */
    bool unknown; /* it is token_id:N, which is not in the answer's text */
};

static bool append(struct token_texts *t, const char *text, size_t len) {
    if (!grow((void **)&t->text, &t->cap, t->len, len, 1))
        return false;
    if (len)
        memcpy(t->text + t->len, text, len);
    t->len += len;
    return true;
}

static bool holds_replacement(const char *text, size_t len) {
    for (; len >= 3; text++, len--)
        if (memcmp(text, "\xef\xbf\xbd", 3) == 0)
            return true;
    return false;
}

/* Control tokens give no text to an answer: they are shown by their names. */
static bool token_name(struct token_texts *t, int32_t token) {
    char id[32], *name = NULL;
    size_t n = 0;
    const kvasir_status status = kvasir_detokenize(t->tokenizer, &token, 1, 0, &name, &n, NULL);
    const bool good = status != KVASIR_ERR_MEMORY && append(t, name, n);
    kvasir_free(name);
    t->unknown = good && n == 0;
    return t->unknown ? append(t, id, (size_t)snprintf(id, sizeof id, "token_id:%d", token)) : good;
}

static bool token_text(struct token_texts *t, int32_t token) {
    const char *part;
    size_t n;
    t->len = 0;
    t->unknown = false;
    bool good =
        !t->detok ||
        (kvasir_detok_push(t->detok, token, &part, &n, NULL) == KVASIR_OK && append(t, part, n) &&
         kvasir_detok_finish(t->detok, &part, &n, NULL) == KVASIR_OK && append(t, part, n));
    if (good && t->len == 0)
        good = token_name(t, token);
    t->whole = !t->unknown && !holds_replacement(t->text, t->len);
    return good;
}

/* JSON has no infinities; OpenAI's number for a token that was all but impossible. */
static json_t *logprob_json(float x) {
    static const double LOWEST = -9999;
    return json_real(x > LOWEST ? (double)x : LOWEST); /* NaN, too */
}

/* {"token", "logprob", "bytes"} */
static json_t *chat_token(struct token_texts *t, int32_t token, float logprob) {
    if (!token_text(t, token))
        return NULL;
    json_t *bytes = t->whole ? json_array() : json_null();
    for (size_t i = 0; t->whole && i < t->len; i++)
        json_array_append_new(bytes, json_integer((unsigned char)t->text[i]));
    return json_pack("{s:o, s:o, s:o}", "token", json_stringn(t->text, t->len), "logprob",
                     logprob_json(logprob), "bytes", bytes);
}

/* {"content": [{"token", "logprob", "bytes", "top_logprobs": [...]}], "refusal": null} */
static json_t *chat_logprobs(struct token_texts *t, const struct openai_choice *c) {
    json_t *content = json_array();
    const kvasir_token_logprob *top = c->top;
    for (size_t i = 0; content && i < c->n_tokens; i++) {
        const struct openai_token *token = &c->tokens[i];
        json_t *entry = chat_token(t, token->token, token->logprob), *list = json_array();
        bool good = entry && list;
        for (uint32_t k = 0; good && k < token->n_top; k++, top++)
            good = json_array_append_new(list, chat_token(t, top->token, top->logprob)) == 0;
        good = good && json_object_set(entry, "top_logprobs", list) == 0 &&
               json_array_append(content, entry) == 0;
        json_decref(list);
        json_decref(entry);
        if (!good) {
            json_decref(content);
            content = NULL;
        }
    }
    return json_pack("{s:o, s:n}", "content", content, "refusal");
}

/* The likeliest tokens of a place and the chosen one. Tokens of one text are one member: the
 * likelier. */
static json_t *completion_top(struct token_texts *t, const struct openai_token *token,
                              const kvasir_token_logprob *top) {
    json_t *object = json_object();
    bool good = object != NULL;
    for (uint32_t k = 0; good && k <= token->n_top; k++) {
        bool chosen = k == token->n_top;
        /* keys hold no NUL: such a text ends before it */
        good = token_text(t, chosen ? token->token : top[k].token) && append(t, "", 1);
        if (good && !json_object_get(object, t->text))
            good = json_object_set_new(object, t->text,
                                       logprob_json(chosen ? token->logprob : top[k].logprob)) == 0;
    }
    if (good)
        return object;
    json_decref(object);
    return NULL;
}

static size_t characters(const char *text, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

/* {"tokens": [], "token_logprobs": [], "top_logprobs": [{}], "text_offset": []} */
static json_t *completion_logprobs(struct token_texts *t, const struct openai_choice *c,
                                   size_t offset) {
    json_t *tokens = json_array(), *values = json_array(), *tops = json_array(),
           *offsets = json_array();
    const kvasir_token_logprob *top = c->top;
    bool good = true;
    for (size_t i = 0; good && i < c->n_tokens; i++) {
        const struct openai_token *token = &c->tokens[i];
        good = json_array_append_new(tops, completion_top(t, token, top)) == 0 &&
               token_text(t, token->token) &&
               json_array_append_new(tokens, json_stringn(t->text, t->len)) == 0 &&
               json_array_append_new(values, logprob_json(token->logprob)) == 0 &&
               json_array_append_new(offsets, json_integer((json_int_t)offset)) == 0;
        offset += t->unknown ? 0 : characters(t->text, t->len);
        top += token->n_top;
    }
    json_t *object = json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values,
                               "top_logprobs", tops, "text_offset", offsets);
    if (good)
        return object;
    json_decref(object);
    return NULL;
}

json_t *openai_logprobs(const struct openai_setup *setup, const struct openai_request *r,
                        const struct openai_choice *c, size_t offset) {
    if (r->engine.top_logprobs < 0)
        return json_null();
    struct token_texts t = {.tokenizer = setup->tokenizer};
    json_t *made = NULL;
    if (kvasir_detok_create(t.tokenizer, &t.detok, NULL) != KVASIR_ERR_MEMORY)
        made = r->api == OPENAI_CHAT ? chat_logprobs(&t, c) : completion_logprobs(&t, c, offset);
    kvasir_detok_destroy(t.detok);
    free(t.text);
    return made;
}

/* ---- body ------------------------------------------------------------------------------------ */

const char *openai_finish_reason(kvasir_finish finish, uint32_t calls) {
    if (finish == KVASIR_FINISH_LENGTH)
        return "length";
    return calls ? "tool_calls" : "stop";
}

struct answer_parser *openai_parser(const struct openai_request *r, const char *id, uint32_t choice,
                                    answer_part_fn *fn, void *user) {
    struct answer_options options = r->answer;
    options.seed = answer_seed(id, choice);
    return answer_parser_create(&options, fn, user);
}

/* A message as its parser gives it. */
struct message {
    struct {
        char *text; /* [len] */
        size_t len, cap;
    } texts[2];    /* ANSWER_CONTENT, ANSWER_REASONING */
    json_t *calls; /* array */
};

static bool take_part(void *user, const struct answer_part *part) {
    struct message *m = user;
    if (part->kind == ANSWER_CALL)
        return json_array_append_new(m->calls, json_pack("{s:s, s:s, s:{s:s%}}", "id", part->id,
                                                         "type", "function", "function", "name",
                                                         part->text, part->len)) == 0;
    if (part->kind == ANSWER_ARGUMENTS) {
        json_t *call = json_array_get(m->calls, part->call);
        return json_object_set_new(json_object_get(call, "function"), "arguments",
                                   json_stringn(part->text, part->len)) == 0;
    }
    size_t *len = &m->texts[part->kind].len;
    if (!grow((void **)&m->texts[part->kind].text, &m->texts[part->kind].cap, *len, part->len, 1))
        return false;
    memcpy(m->texts[part->kind].text + *len, part->text, part->len);
    *len += part->len;
    return true;
}

static bool parse_message(const struct openai_answer *a, const char *id, uint32_t i,
                          struct message *m) {
    const struct openai_choice *c = &a->choices[i];
    struct answer_parser *p = openai_parser(a->request, id, i, take_part, m);
    m->calls = json_array();
    bool good = p && m->calls && answer_parser_push(p, c->text, c->len) && answer_parser_finish(p);
    answer_parser_destroy(p);
    return good;
}

/* {"role", "content": null where it only calls, "refusal", "reasoning_content", "tool_calls"}, the
 * last two where there are any; *calls: how many. */
static json_t *message_json(const struct openai_answer *a, const char *id, uint32_t i,
                            uint32_t *calls) {
    struct message m = {0};
    json_t *made = NULL;
    if (parse_message(a, id, i, &m)) {
        size_t n = m.texts[ANSWER_CONTENT].len, reasoned = m.texts[ANSWER_REASONING].len;
        *calls = (uint32_t)json_array_size(m.calls);
        json_t *content =
            n || !*calls ? json_stringn(n ? m.texts[ANSWER_CONTENT].text : "", n) : json_null();
        made = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content", content, "refusal");
        bool good = made != NULL;
        if (good && reasoned)
            good = json_object_set_new(made, "reasoning_content",
                                       json_stringn(m.texts[ANSWER_REASONING].text, reasoned)) == 0;
        if (good && *calls)
            good = json_object_set(made, "tool_calls", m.calls) == 0;
        if (!good) {
            json_decref(made);
            made = NULL;
        }
    }
    json_decref(m.calls);
    free(m.texts[ANSWER_CONTENT].text);
    free(m.texts[ANSWER_REASONING].text);
    return made;
}

static json_t *choice_json(const struct openai_setup *setup, const struct openai_answer *a,
                           const char *id, uint32_t i) {
    const struct openai_choice *c = &a->choices[i];
    json_t *logprobs = openai_logprobs(setup, a->request, c, 0);
    if (a->request->api == OPENAI_COMPLETIONS)
        return json_pack("{s:I, s:o, s:o, s:s}", "index", (json_int_t)i, "text",
                         json_stringn(c->text ? c->text : "", c->len), "logprobs", logprobs,
                         "finish_reason", openai_finish_reason(c->finish, 0));
    uint32_t calls = 0;
    json_t *message = message_json(a, id, i, &calls);
    return json_pack("{s:I, s:o, s:o, s:s}", "index", (json_int_t)i, "message", message, "logprobs",
                     logprobs, "finish_reason", openai_finish_reason(c->finish, calls));
}

json_t *openai_usage(uint32_t prompt_tokens, uint32_t cached_tokens, uint64_t completion_tokens) {
    const json_int_t prompt = prompt_tokens, completion = (json_int_t)completion_tokens;
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", prompt, "completion_tokens",
                     completion, "total_tokens", prompt + completion, "prompt_tokens_details",
                     "cached_tokens", (json_int_t)cached_tokens);
}

static json_t *usage_json(const struct openai_answer *a) {
    uint64_t completion = 0;
    for (uint32_t i = 0; i < a->request->engine.n; i++)
        completion += a->choices[i].n_tokens;
    return openai_usage(a->prompt_tokens, a->cached_tokens, completion);
}

json_t *openai_answer_body(const struct openai_answer *a, const struct openai_setup *setup,
                           const char *id, int64_t created, struct openai_error *err) {
    if (a->failed || a->cancelled) {
        static const kvasir_error CANCELLED = {
            .code = KVASIR_ERR_CANCELLED, .offset = -1, .text = "cancelled"};
        openai_error_of(err, a->failed ? &a->error : &CANCELLED);
        return NULL;
    }
    bool chat = a->request->api == OPENAI_CHAT, good = true;
    json_t *choices = json_array();
    for (uint32_t i = 0; good && i < a->request->engine.n; i++)
        good = json_array_append_new(choices, choice_json(setup, a, id, i)) == 0;
    json_t *body =
        json_pack("{s:s, s:s, s:I, s:s, s:o, s:o}", "id", id, "object",
                  chat ? "chat.completion" : "text_completion", "created", (json_int_t)created,
                  "model", a->request->model, "choices", choices, "usage", usage_json(a));
    if (good && body)
        return body;
    json_decref(body);
    openai_no_memory(err);
    return NULL;
}
