/* SPDX-License-Identifier: Apache-2.0 */
/* openai_answer.c: a complete answer to a body. Tokens become texts here.
 *
 * A token's text is what it adds after other text. A token that is a part of a character has U+FFFD
 * in its text and null for its bytes, which OpenAI allows. A token that the tokenizer does not know
 * (rows of padding; models without a tokenizer) is called token_id:N, as in vLLM.
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

/* ---- logprobs -------------------------------------------------------------------------------- */

/* Tokens to text. Between tokens, the detokenizer is at a character boundary. */
struct token_texts {
    const kvasir_tokenizer *tokenizer;
    kvasir_detok *detok;  /* NULL: no tokenizer */
    struct text_buf text; /* of the last token */
    bool whole;           /* it is what the token's bytes say */
    bool unknown;         /* it is token_id:N, which is not in the answer's text */
};

static bool holds_replacement(const char *text, size_t len) {
    for (; len >= 3; text++, len--)
        if (memcmp(text, "\xef\xbf\xbd", 3) == 0)
            return true;
    return false;
}

/* Control tokens add no text to an answer; they are shown by name. */
static bool token_name(struct token_texts *t, int32_t token) {
    char *name = NULL;
    size_t n = 0;
    const kvasir_status status = kvasir_detokenize(t->tokenizer, &token, 1, 0, &name, &n, NULL);
    const bool good = status != KVASIR_ERR_MEMORY && text_append(&t->text, name, n);
    kvasir_free(name);
    t->unknown = good && n == 0;
    return t->unknown ? text_printf(&t->text, "token_id:%d", token) : good;
}

static bool token_text(struct token_texts *t, int32_t token) {
    const char *part;
    size_t n;
    t->text.len = 0;
    t->unknown = false;
    bool good = !t->detok || (kvasir_detok_push(t->detok, token, &part, &n, NULL) == KVASIR_OK &&
                              text_append(&t->text, part, n) &&
                              kvasir_detok_finish(t->detok, &part, &n, NULL) == KVASIR_OK &&
                              text_append(&t->text, part, n));
    if (good && t->text.len == 0)
        good = token_name(t, token);
    t->whole = !t->unknown && !holds_replacement(t->text.data, t->text.len);
    return good;
}

/* JSON has no infinities; OpenAI uses this number for an impossible token. */
static json_t *logprob_json(float x) {
    static const double LOWEST = -9999;
    return json_real(x > LOWEST ? (double)x : LOWEST); /* NaN, too */
}

/* {"token", "logprob", "bytes"} */
static json_t *chat_token(struct token_texts *t, int32_t token, float logprob) {
    if (!token_text(t, token))
        return NULL;
    json_t *bytes = t->whole ? json_array() : json_null();
    for (size_t i = 0; t->whole && i < t->text.len; i++)
        json_array_append_new(bytes, json_integer((unsigned char)t->text.data[i]));
    return json_pack("{s:o, s:o, s:o}", "token", json_stringn(t->text.data, t->text.len), "logprob",
                     logprob_json(logprob), "bytes", bytes);
}

/* {"content": [{"token", "logprob", "bytes", "top_logprobs": [...]}], "refusal": null} */
static json_t *chat_logprobs(struct token_texts *t, const struct api_choice *c) {
    json_t *content = json_array();
    const kvasir_token_logprob *top = c->top;
    for (size_t i = 0; content && i < c->n_tokens; i++) {
        const struct api_token *token = &c->tokens[i];
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

/* The likeliest tokens of a position and the chosen one. Of tokens with the same text, the likelier
 * one is kept. */
static json_t *completion_top(struct token_texts *t, const struct api_token *token,
                              const kvasir_token_logprob *top) {
    json_t *object = json_object();
    bool good = object != NULL;
    for (uint32_t k = 0; good && k <= token->n_top; k++) {
        bool chosen = k == token->n_top;
        /* a key ends at its first NUL */
        good = token_text(t, chosen ? token->token : top[k].token) && text_append(&t->text, "", 1);
        if (good && !json_object_get(object, t->text.data))
            good = json_object_set_new(object, t->text.data,
                                       logprob_json(chosen ? token->logprob : top[k].logprob)) == 0;
    }
    if (good)
        return object;
    json_decref(object);
    return NULL;
}

size_t openai_characters(const char *text, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

/* {"tokens": [], "token_logprobs": [], "top_logprobs": [{}], "text_offset": []} */
struct logprob_lists {
    json_t *tokens, *values, *tops, *offsets;
    size_t offset; /* characters so far */
};

/* One token, whose text is in t; takes value and top. */
static bool add_token(struct logprob_lists *l, const struct token_texts *t, json_t *value,
                      json_t *top) {
    bool good = json_array_append_new(l->tops, top) == 0;
    good = json_array_append_new(l->values, value) == 0 && good;
    return json_array_append_new(l->tokens, json_stringn(t->text.data, t->text.len)) == 0 &&
           json_array_append_new(l->offsets, json_integer((json_int_t)l->offset)) == 0 && good;
}

static bool add_tokens(struct token_texts *t, const struct api_choice *c, struct logprob_lists *l) {
    const kvasir_token_logprob *top = c->top;
    bool good = true;
    for (size_t i = 0; good && i < c->n_tokens; i++) {
        const struct api_token *token = &c->tokens[i];
        json_t *tops = completion_top(t, token, top);
        good = token_text(t, token->token) && add_token(l, t, logprob_json(token->logprob), tops);
        l->offset += t->unknown ? 0 : openai_characters(t->text.data, t->text.len);
        top += token->n_top;
    }
    return good;
}

static bool begins_with(const struct text_buf *text, const char *part, size_t len) {
    return len <= text->len && memcmp(text->data, part, len) == 0;
}

/* Characters of the prompt's text that the token is. At its start, a BOS that the tokenizer added
 * is none of it, nor is a blank that it begins words with. */
static size_t advance(const struct token_texts *t, const struct openai_echo *echo, size_t offset) {
    const char *text = t->text.data;
    const size_t len = t->text.len;
    if (offset > 0 || begins_with(&echo->text, text, len))
        return t->unknown ? 0 : openai_characters(text, len);
    if (len && *text == ' ' && begins_with(&echo->text, text + 1, len - 1))
        return openai_characters(text + 1, len - 1);
    return 0;
}

/* The first token has null for its numbers. */
static bool add_echo(struct token_texts *t, const struct openai_echo *echo,
                     struct logprob_lists *l) {
    const struct api_choice *c = echo->scores;
    const kvasir_token_logprob *top = c->top;
    const size_t characters = openai_characters(echo->text.data, echo->text.len);
    bool good = true;
    for (size_t i = 0; good && i <= c->n_tokens; i++) {
        const struct api_token *token = i ? &c->tokens[i - 1] : NULL;
        json_t *tops = token ? completion_top(t, token, top) : json_null();
        good = token_text(t, token ? token->token : *echo->prompt->tokens) &&
               add_token(l, t, token ? logprob_json(token->logprob) : json_null(), tops);
        l->offset += advance(t, echo, l->offset);
        if (l->offset > characters) /* parts of characters count as more than they are */
            l->offset = characters;
        top += token ? token->n_top : 0;
    }
    l->offset = characters;
    return good;
}

/* {"123": {"logprob", "rank", "decoded_token"}}: the prompt's token, and the likeliest ones. */
static json_t *prompt_token(struct token_texts *t, const struct api_token *token,
                            const kvasir_token_logprob *top) {
    json_t *object = json_object();
    bool good = object != NULL;
    for (uint32_t k = 0; good && k <= token->n_top; k++) {
        const int32_t id = k ? top[k - 1].token : token->token;
        const float logprob = k ? top[k - 1].logprob : token->logprob;
        char key[16];
        snprintf(key, sizeof key, "%d", id);
        if (json_object_get(object, key))
            continue;
        good = token_text(t, id) &&
               json_object_set_new(object, key,
                                   json_pack("{s:o, s:I, s:o}", "logprob", logprob_json(logprob),
                                             "rank", (json_int_t)(k ? k : token->rank),
                                             "decoded_token",
                                             json_stringn(t->text.data, t->text.len))) == 0;
    }
    if (good)
        return object;
    json_decref(object);
    return NULL;
}

/* vLLM's list: null for the first token, then one object each. */
static json_t *prompt_logprobs(const struct api_setup *setup, const struct api_choice *c) {
    struct token_texts t = {.tokenizer = setup->tokenizer};
    const kvasir_token_logprob *top = c->top;
    json_t *list = json_array();
    bool good = list && json_array_append_new(list, json_null()) == 0 &&
                kvasir_detok_create(t.tokenizer, &t.detok, NULL) != KVASIR_ERR_MEMORY;
    for (size_t i = 0; good && i < c->n_tokens; i++) {
        good = json_array_append_new(list, prompt_token(&t, &c->tokens[i], top)) == 0;
        top += c->tokens[i].n_top;
    }
    kvasir_detok_destroy(t.detok);
    text_free(&t.text);
    if (good)
        return list;
    json_decref(list);
    return NULL;
}

static json_t *completion_logprobs(struct token_texts *t, const struct api_choice *c, size_t offset,
                                   const struct openai_echo *echo) {
    struct logprob_lists l = {json_array(), json_array(), json_array(), json_array(), offset};
    const bool good = (!echo || add_echo(t, echo, &l)) && add_tokens(t, c, &l);
    json_t *object = json_pack("{s:o, s:o, s:o, s:o}", "tokens", l.tokens, "token_logprobs",
                               l.values, "top_logprobs", l.tops, "text_offset", l.offsets);
    if (good)
        return object;
    json_decref(object);
    return NULL;
}

static json_t *logprobs_json(const struct api_setup *setup, bool chat, const struct api_choice *c,
                             size_t offset, const struct openai_echo *echo) {
    struct token_texts t = {.tokenizer = setup->tokenizer};
    json_t *made = NULL;
    if (kvasir_detok_create(t.tokenizer, &t.detok, NULL) != KVASIR_ERR_MEMORY)
        made = chat ? chat_logprobs(&t, c) : completion_logprobs(&t, c, offset, echo);
    kvasir_detok_destroy(t.detok);
    text_free(&t.text);
    return made;
}

json_t *openai_logprobs(const struct api_setup *setup, const struct api_request *r,
                        const struct api_choice *c, size_t offset, const struct openai_echo *echo) {
    return r->engine.top_logprobs < 0 ? json_null()
                                      : logprobs_json(setup, r->api == API_CHAT, c, offset, echo);
}

json_t *openai_token_logprobs(const struct api_setup *setup, const struct api_choice *c) {
    return logprobs_json(setup, true, c, 0, NULL);
}

bool openai_echo_text(const struct api_setup *setup, struct openai_echo *echo) {
    const struct api_prompt *p = echo->prompt;
    char *text = NULL;
    size_t len = 0;
    if (p->text)
        return text_append(&echo->text, p->text, p->len);
    if (kvasir_detokenize(setup->tokenizer, p->tokens, p->n_tokens, 0, &text, &len, NULL) ==
        KVASIR_ERR_MEMORY)
        return false;
    const bool good = text_append(&echo->text, text ? text : "", len);
    kvasir_free(text);
    return good;
}

/* ---- body ------------------------------------------------------------------------------------ */

json_t *openai_error_object(const struct api_error *err) {
    const char *type = err->status >= HTTP_SERVER_ERROR        ? "server_error"
                       : err->status == HTTP_TOO_MANY_REQUESTS ? "rate_limit_error"
                                                               : "invalid_request_error";
    return json_pack("{s:s, s:s, s:s?, s:s?}", "message", err->text, "type", type, "param",
                     *err->param ? err->param : NULL, "code", err->code);
}

json_t *openai_error_json(const struct api_error *err) {
    return json_pack("{s:o}", "error", openai_error_object(err));
}

const char *openai_finish_reason(kvasir_finish finish, uint32_t calls) {
    if (finish == KVASIR_FINISH_LENGTH)
        return "length";
    return calls ? "tool_calls" : "stop";
}

/* A message from the parts of its parser. */
struct message {
    struct text_buf texts[2]; /* ANSWER_CONTENT, ANSWER_REASONING */
    json_t *calls;            /* array */
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
    ASSERT(part->kind == ANSWER_CONTENT || part->kind == ANSWER_REASONING);
    return text_append(&m->texts[part->kind], part->text, part->len);
}

static bool parse_message(const struct api_answer *a, const char *id, uint32_t i,
                          struct message *m) {
    const struct api_choice *c = &a->choices[i];
    struct answer_parser *p = api_answer_parser(a->request, id, i, take_part, m);
    m->calls = json_array();
    bool good = p && m->calls && answer_parser_push(p, c->text, c->len) &&
                answer_parser_finish(p, c->finish == KVASIR_FINISH_LENGTH);
    answer_parser_destroy(p);
    return good;
}

json_t *openai_message(const struct api_answer *a, const char *id, uint32_t i, uint32_t *calls) {
    struct message m = {0};
    json_t *made = NULL;
    if (parse_message(a, id, i, &m)) {
        size_t n = m.texts[ANSWER_CONTENT].len, reasoned = m.texts[ANSWER_REASONING].len;
        *calls = (uint32_t)json_array_size(m.calls);
        json_t *content =
            n || !*calls ? json_stringn(n ? m.texts[ANSWER_CONTENT].data : "", n) : json_null();
        made = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content", content, "refusal");
        bool good = made != NULL;
        if (good && reasoned)
            good = json_object_set_new(made, "reasoning_content",
                                       json_stringn(m.texts[ANSWER_REASONING].data, reasoned)) == 0;
        if (good && *calls)
            good = json_object_set(made, "tool_calls", m.calls) == 0;
        if (!good) {
            json_decref(made);
            made = NULL;
        }
    }
    json_decref(m.calls);
    text_free(&m.texts[ANSWER_CONTENT]);
    text_free(&m.texts[ANSWER_REASONING]);
    return made;
}

static json_t *completion_json(const struct api_setup *setup, const struct api_answer *a,
                               uint32_t i) {
    const struct api_choice *c = &a->choices[i];
    const uint32_t prompt = i / a->request->engine.n;
    struct openai_echo echo = {0};
    json_t *made = NULL;
    const bool echoes = a->request->echoes;
    if (echoes)
        echo = (struct openai_echo){.prompt = &a->request->prompts[prompt],
                                    .scores = &a->prompts[prompt]};
    bool good = !echoes || openai_echo_text(setup, &echo);
    json_t *logprobs =
        good ? openai_logprobs(setup, a->request, c, 0, echoes ? &echo : NULL) : NULL;
    if (logprobs && text_append(&echo.text, c->text ? c->text : "", c->len))
        made = json_pack("{s:I, s:s%, s:O, s:s}", "index", (json_int_t)i, "text",
                         echo.text.data ? echo.text.data : "", echo.text.len, "logprobs", logprobs,
                         "finish_reason", openai_finish_reason(c->finish, 0));
    if (made && a->request->scores &&
        json_object_set_new(made, "prompt_logprobs", prompt_logprobs(setup, &a->prompts[prompt])) !=
            0) {
        json_decref(made);
        made = NULL;
    }
    json_decref(logprobs);
    text_free(&echo.text);
    return made;
}

static json_t *choice_json(const struct api_setup *setup, const struct api_answer *a,
                           const char *id, uint32_t i) {
    const struct api_choice *c = &a->choices[i];
    if (a->request->api == API_COMPLETIONS)
        return completion_json(setup, a, i);
    json_t *logprobs = openai_logprobs(setup, a->request, c, 0, NULL);
    uint32_t calls = 0;
    json_t *message = openai_message(a, id, i, &calls);
    return json_pack("{s:I, s:o, s:o, s:s}", "index", (json_int_t)i, "message", message, "logprobs",
                     logprobs, "finish_reason", openai_finish_reason(c->finish, calls));
}

json_t *openai_usage_json(const struct openai_usage *u) {
    const json_int_t prompt = u->prompt_tokens, completion = (json_int_t)u->completion_tokens;
    return api_with_requantized(json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", prompt,
                                          "completion_tokens", completion, "total_tokens",
                                          prompt + completion, "prompt_tokens_details",
                                          "cached_tokens", (json_int_t)u->cached_tokens),
                                u->requantized_pages);
}

static json_t *usage_json(const struct api_answer *a) {
    struct openai_usage u = {.prompt_tokens = a->prompt_tokens,
                             .cached_tokens = a->cached_tokens,
                             .requantized_pages = a->requantized_pages};
    for (uint32_t i = 0; i < api_choices(a->request); i++)
        u.completion_tokens += a->choices[i].n_tokens;
    return openai_usage_json(&u);
}

json_t *openai_answer_body(const struct api_answer *a, const struct api_setup *setup,
                           const char *id, int64_t created, struct api_error *err) {
    if (!api_answer_good(a, err))
        return NULL;
    bool chat = a->request->api == API_CHAT, good = true;
    json_t *choices = json_array();
    for (uint32_t i = 0; good && i < api_choices(a->request); i++)
        good = json_array_append_new(choices, choice_json(setup, a, id, i)) == 0;
    json_t *body =
        json_pack("{s:s, s:s, s:I, s:s, s:o, s:o}", "id", id, "object",
                  chat ? "chat.completion" : "text_completion", "created", (json_int_t)created,
                  "model", a->request->model, "choices", choices, "usage", usage_json(a));
    if (chat && body && a->request->scores)
        good =
            json_object_set_new(body, "prompt_logprobs", prompt_logprobs(setup, a->prompts)) == 0;
    if (good && body && api_answer_warn(body, a->request))
        return body;
    json_decref(body);
    api_no_memory(err);
    return NULL;
}
