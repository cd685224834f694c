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

void api_answer_free(struct api_answer *a) {
    for (uint32_t i = 0; a->choices && i < a->request->engine.n; i++) {
        mem_free(a->choices[i].text);
        mem_free(a->choices[i].tokens);
        mem_free(a->choices[i].top);
    }
    free(a->choices);
    *a = (struct api_answer){0};
}

/* Room for an answer of usual length, so that events need no allocation. */
static bool reserve(struct api_choice *c, const kvasir_request *r) {
    enum { TOKENS = 2048, TOKEN_BYTES = 8 };
    const size_t n = r->max_tokens && r->max_tokens < TOKENS ? r->max_tokens : TOKENS;
    if (!ARRAY_GROW(c->text, c->cap, n * TOKEN_BYTES))
        return false;
    return r->top_logprobs < 0 || (ARRAY_GROW(c->tokens, c->tokens_cap, n) &&
                                   ARRAY_GROW(c->top, c->top_cap, n * (size_t)r->top_logprobs));
}

bool api_answer_init(struct api_answer *a, const struct api_request *request) {
    *a = (struct api_answer){.request = request};
    a->choices = calloc(request->engine.n, sizeof *a->choices);
    for (uint32_t i = 0; a->choices && i < request->engine.n; i++)
        if (!reserve(&a->choices[i], &request->engine)) {
            api_answer_free(a);
            return false;
        }
    return a->choices != NULL;
}

static bool take_text(struct api_choice *c, const kvasir_event *e) {
    if (!ARRAY_GROW(c->text, c->cap, c->len + e->len))
        return false;
    if (e->len)
        memcpy(c->text + c->len, e->text, e->len);
    c->len += e->len;
    return true;
}

static bool take_token(struct api_choice *c, const kvasir_event *e, bool logprobs) {
    size_t n = logprobs ? e->n_top : 0;
    if (logprobs && (!ARRAY_GROW(c->tokens, c->tokens_cap, c->n_tokens + 1) ||
                     !ARRAY_GROW(c->top, c->top_cap, c->n_top + n)))
        return false;
    if (logprobs)
        c->tokens[c->n_tokens] = (struct api_token){e->token, e->logprob, (uint32_t)n};
    if (n)
        memcpy(c->top + c->n_top, e->top, n * sizeof *c->top);
    c->n_top += n;
    c->n_tokens++;
    return true;
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
    ASSERT(e->choice < a->request->engine.n);
    ASSERT(!a->complete);
    struct api_choice *c = &a->choices[e->choice];
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
        c->stop = api_stop_of(a->request, e->stop);
        a->cancelled |= e->finish == KVASIR_FINISH_CANCELLED;
        if (e->finish == KVASIR_FINISH_ERROR)
            set_failed(a, e->error);
    }
    a->complete |= e->last;
}
