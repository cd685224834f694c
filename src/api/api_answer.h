/* SPDX-License-Identifier: Apache-2.0 */
/* api_answer.h: one request's answer, collected event by event. */
#ifndef API_API_ANSWER_H
#define API_API_ANSWER_H

#include "api/api_request.h"

struct api_token {
    int32_t token;
    float logprob;
    uint32_t n_top;
    uint32_t rank; /* of a prompt's token */
};
static inline struct api_token api_token_of(const kvasir_event *e) {
    return (struct api_token){e->token, e->logprob, (uint32_t)e->n_top, e->rank};
}
/* An event's stop text, as the request's own copy of it. NULL: none. */
const char *api_stop_of(const struct api_request *r, const char *stop);

struct api_choice {
    char *text; /* [len] */
    size_t len, cap;
    struct api_token *tokens; /* [n_tokens]; only counted unless logprobs or a session need them */
    size_t n_tokens, tokens_cap;
    kvasir_token_logprob *top; /* [n_top]: n_top of each token, back to back */
    size_t n_top, top_cap;
    float *embedding; /* [request->embed.width] once it is complete */
    size_t embedding_cap;
    float asked[2]; /* of request->engine.asked_tokens */
    kvasir_finish finish;
    const char *stop; /* the stop text that ended it, one of the request's; NULL: none */
};
/* One request's answer, collected event by event. Zero-initialised may be freed. */
struct api_answer {
    const struct api_request *request; /* borrowed */
    struct api_choice *choices;        /* [api_choices(request)] */
    /* [n_prompts] of those that are echoed or scored: the tokens after the first, with their
     * log-probabilities. NULL: they are neither. */
    struct api_choice *prompts;
    uint32_t n_prompts;
    uint32_t prompt_tokens, cached_tokens;
    uint64_t requantized_pages; /* of all choices */
    bool complete;              /* the last event came */
    bool cancelled;             /* a choice was cancelled */
    bool failed;                /* error says why */
    kvasir_error error;         /* of the engine, or out of memory */
};
/* False: out of memory. */
bool api_answer_init(struct api_answer *a, const struct api_request *request);
void api_answer_event(struct api_answer *a, const kvasir_event *event);
/* False with *err: it failed or was cancelled. */
bool api_answer_good(const struct api_answer *a, struct api_error *err);
void api_answer_free(struct api_answer *a);
/* About so many bytes of JSON. */
size_t api_answer_bytes(const struct api_answer *a);

/* An echoed prompt's tokens: room for all; one event. False: out of memory. */
bool api_echo_reserve(struct api_choice *c, const struct api_request *r, uint32_t prompt);
bool api_echo_event(struct api_choice *c, const kvasir_event *event);
void api_choice_free(struct api_choice *c);
/* The request's warnings become a member of body, an object, if there are any. False: out of
 * memory. */
bool api_answer_warn(json_t *body, const struct api_request *r);
/* What every protocol calls an answer's pages with fewer bits (kvasir_event.requantized_pages). */
#define API_REQUANTIZED "requantized_pages"
/* `usage`, an object, with that member if it is not 0. Takes usage, which may be NULL. NULL: out of
 * memory. */
json_t *api_with_requantized(json_t *usage, uint64_t pages);

#endif
