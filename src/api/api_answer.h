/* SPDX-License-Identifier: Apache-2.0 */
/* api_answer.h: one request's answer, collected event by event. */
#ifndef API_API_ANSWER_H
#define API_API_ANSWER_H

#include "api/api_request.h"

struct api_token {
    int32_t token;
    float logprob;
    uint32_t n_top;
};
/* The request's own text of an event's stop text, which is the engine's. NULL: none. */
const char *api_stop_of(const struct api_request *r, const char *stop);

struct api_choice {
    char *text; /* [len] */
    size_t len, cap;
    struct api_token *tokens; /* [n_tokens]; only counted where no logprobs are asked for */
    size_t n_tokens, tokens_cap;
    kvasir_token_logprob *top; /* [n_top]: n_top of each token, one's after the other's */
    size_t n_top, top_cap;
    kvasir_finish finish;
    const char *stop; /* the stop text that ended it, one of the request's; NULL: none */
};
/* One request's answer, collected event by event. Zero-initialised may be freed. */
struct api_answer {
    const struct api_request *request; /* borrowed */
    struct api_choice *choices;        /* [request->engine.n] */
    uint32_t prompt_tokens, cached_tokens;
    bool complete;      /* the last event came */
    bool cancelled;     /* a choice ended so */
    bool failed;        /* error says why */
    kvasir_error error; /* of the engine, or that memory ran out here */
};
/* False: out of memory. */
bool api_answer_init(struct api_answer *a, const struct api_request *request);
void api_answer_event(struct api_answer *a, const kvasir_event *event);
void api_answer_free(struct api_answer *a);

#endif
