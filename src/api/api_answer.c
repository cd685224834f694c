/* SPDX-License-Identifier: Apache-2.0 */
/* api_answer.c: events to an answer, on the engine's thread. Borrowed data is copied, nothing is
 * computed. Memory for an answer of usual length is allocated before.
 */
#include "api/api_answer.h"

#include <stdlib.h>
#include <string.h>

#include "util/util.h"

bool api_answer_good(const struct api_answer *a, struct api_error *err) {
    static const kvasir_error CANCELLED = {
        .code = KVASIR_ERR_CANCELLED, .offset = -1, .text = "cancelled"};
    if (a->failed || a->cancelled)
        api_error_of(err, a->failed ? &a->error : &CANCELLED);
    return !a->failed && !a->cancelled;
}

bool api_answer_warn(json_t *body, const struct api_request *r) {
    return !r->warnings || json_object_set(body, "warnings", r->warnings) == 0;
}

void api_choice_free(struct api_choice *c) {
    mem_free(c->text);
    mem_free(c->tokens);
    mem_free(c->top);
    mem_free(c->embedding);
}

void api_answer_free(struct api_answer *a) {
    for (uint32_t i = 0; a->choices && i < api_choices(a->request); i++)
        api_choice_free(&a->choices[i]);
    for (uint32_t i = 0; i < a->n_prompts; i++)
        api_choice_free(&a->prompts[i]);
    free(a->choices);
    free(a->prompts);
    *a = (struct api_answer){0};
}

static bool keeps_tokens(const struct api_request *r) {
    return r->engine.top_logprobs >= 0 || r->session.id;
}

/* Room for an answer of usual length, so that events need no allocation. */
static bool reserve(struct api_choice *c, const struct api_request *request) {
    enum { TOKENS = 2048, TOKEN_BYTES = 8 };
    const kvasir_request *r = &request->engine;
    if (request->embed.width)
        return ARRAY_GROW(c->embedding, c->embedding_cap, request->embed.width);
    const size_t usual = request->n_prompts ? TOKENS / request->n_prompts : TOKENS,
                 n = r->max_tokens && r->max_tokens < usual ? r->max_tokens : usual;
    if (!ARRAY_GROW(c->text, c->cap, n * TOKEN_BYTES))
        return false;
    return !keeps_tokens(request) ||
           (ARRAY_GROW(c->tokens, c->tokens_cap, n) &&
            ARRAY_GROW(c->top, c->top_cap,
                       n * (size_t)(r->top_logprobs > 0 ? r->top_logprobs : 0)));
}

json_t *api_with_requantized(json_t *usage, uint64_t pages) {
    if (!usage || !pages ||
        json_object_set_new(usage, API_REQUANTIZED, json_integer((json_int_t)pages)) == 0)
        return usage;
    json_decref(usage);
    return NULL;
}

bool api_answer_init(struct api_answer *a, const struct api_request *request) {
    *a = (struct api_answer){.request = request};
    a->choices = calloc(api_choices(request), sizeof *a->choices);
    const uint32_t n = request->echoes || request->scores ? api_prompt_count(request) : 0;
    a->prompts = n ? calloc(n, sizeof *a->prompts) : NULL;
    a->n_prompts = a->prompts ? n : 0;
    bool good = a->choices && a->n_prompts == n;
    for (uint32_t i = 0; good && i < n; i++)
        good = api_echo_reserve(&a->prompts[i], request, i);
    for (uint32_t i = 0; good && i < api_choices(request); i++)
        good = reserve(&a->choices[i], request);
    if (!good)
        api_answer_free(a);
    return good;
}

static bool take_text(struct api_choice *c, const kvasir_event *e) {
    if (!ARRAY_GROW(c->text, c->cap, c->len + e->len))
        return false;
    if (e->len)
        memcpy(c->text + c->len, e->text, e->len);
    c->len += e->len;
    return true;
}

static bool take_token(struct api_choice *c, const kvasir_event *e, bool keeps) {
    size_t n = keeps ? e->n_top : 0;
    if (keeps && (!ARRAY_GROW(c->tokens, c->tokens_cap, c->n_tokens + 1) ||
                  !ARRAY_GROW(c->top, c->top_cap, c->n_top + n)))
        return false;
    if (keeps)
        c->tokens[c->n_tokens] = api_token_of(e);
    if (n)
        memcpy(c->top + c->n_top, e->top, n * sizeof *c->top);
    c->n_top += n;
    c->n_tokens++;
    return true;
}

bool api_echo_reserve(struct api_choice *c, const struct api_request *r, uint32_t prompt) {
    const int32_t top = r->engine.prompt_logprobs;
    const size_t n = top < 0 ? 0 : r->n_prompts ? r->prompts[prompt].n_tokens : r->engine.n_tokens;
    return ARRAY_GROW(c->tokens, c->tokens_cap, n) &&
           ARRAY_GROW(c->top, c->top_cap, n * (size_t)top);
}

bool api_echo_event(struct api_choice *c, const kvasir_event *e) {
    return take_token(c, e, true);
}

size_t api_answer_bytes(const struct api_answer *a) {
    enum { TOKEN = 64, FLOAT = 16 };
    const uint32_t n = api_choices(a->request);
    size_t bytes = 0;
    for (uint32_t i = 0; i < n + a->n_prompts; i++) {
        const struct api_choice *c = i < n ? &a->choices[i] : &a->prompts[i - n];
        bytes += c->len + FLOAT * a->request->embed.width +
                 TOKEN * (c->n_top + (c->tokens ? c->n_tokens : 0));
    }
    return bytes;
}

const char *api_stop_of(const struct api_request *r, const char *stop) {
    for (size_t i = 0; stop && i < r->engine.n_stops; i++)
        if (strcmp(r->stops[i], stop) == 0)
            return r->stops[i];
    return NULL;
}

/* The first failure is the one reported. */
static void set_failed(struct api_answer *a, const kvasir_error *why) {
    static const kvasir_error NO_MEMORY = {
        .code = KVASIR_ERR_MEMORY, .offset = -1, .text = "out of memory for the answer"};
    if (!a->failed)
        a->error = why ? *why : NO_MEMORY;
    a->failed = true;
}

void api_answer_event(struct api_answer *a, const kvasir_event *e) {
    ASSERT(e->choice < api_choices(a->request));
    ASSERT(!a->complete);
    struct api_choice *c = &a->choices[e->choice];
    a->prompt_tokens = e->prompt_tokens;
    a->cached_tokens = e->cached_tokens;
    bool good = true;
    if (e->kind == KVASIR_EVENT_TOKEN)
        good = take_token(c, e, keeps_tokens(a->request));
    if (e->kind == KVASIR_EVENT_PROMPT_TOKEN)
        good = api_echo_event(&a->prompts[e->choice / a->request->engine.n], e);
    if (e->kind == KVASIR_EVENT_TOKEN || e->kind == KVASIR_EVENT_DONE)
        good = good && take_text(c, e);
    if (!good)
        set_failed(a, NULL);
    if (e->kind == KVASIR_EVENT_DONE && e->asked_logprobs) {
        ASSERT(e->n_asked * sizeof *c->asked <= sizeof c->asked);
        memcpy(c->asked, e->asked_logprobs, e->n_asked * sizeof *c->asked);
    }
    if (e->kind == KVASIR_EVENT_DONE && e->embedding) {
        ASSERT(e->n_embedding == a->request->embed.width && c->embedding);
        memcpy(c->embedding, e->embedding, e->n_embedding * sizeof *c->embedding);
    }
    if (e->kind == KVASIR_EVENT_DONE) {
        a->requantized_pages += e->requantized_pages;
        c->finish = e->finish;
        c->stop = api_stop_of(a->request, e->stop);
        a->cancelled |= e->finish == KVASIR_FINISH_CANCELLED;
        if (e->finish == KVASIR_FINISH_ERROR)
            set_failed(a, e->error);
    }
    a->complete |= e->last;
}
