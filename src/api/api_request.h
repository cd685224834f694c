/* SPDX-License-Identifier: Apache-2.0 */
/* api_request.h: a client's request, whatever protocol it came by. */
#ifndef API_API_REQUEST_H
#define API_API_REQUEST_H

#include <jansson.h>
#include <kvasir.h>

#include "api/answer_syntax.h"
#include "api/api_error.h"

enum api_kind { API_CHAT, API_COMPLETIONS };

/* What all requests of a front end share. */
struct api_setup {
    const kvasir_tokenizer *tokenizer;
    /* of chats' answers; NULL: all of an answer is content */
    const struct answer_syntax *syntax;
    json_t *variables;        /* object: of chat templates; a request's win. NULL: none */
    const char *model;        /* the name in answers to requests that say none */
    uint32_t vocab;           /* token ids lie below it */
    uint32_t max_choices;     /* of a request: the engine's max_running */
    uint32_t max_tokens;      /* of requests that do not say; 0: what there is room for */
    kvasir_sampling sampling; /* likewise */
    bool stream;              /* "stream": true is allowed */
    bool prompt_cache;        /* "prompt_cache", the path of a file, is allowed */
};

struct api_request {
    enum api_kind api;
    /* For kvasir_engine_submit, but for prompt_cache, on_event and user. Its pointers lead into
     * what follows. */
    kvasir_request engine;
    const char *model;
    const char *prompt_cache; /* path; NULL: none */
    bool stream, include_usage;
    bool continues; /* the answer goes on the last message, whose text it does not repeat */
    /* Of a chat: how its answers are read, but for the seed; all content where the setup has no
     * syntax. */
    struct answer_options answer;
    bool default_length;   /* no max_tokens said: the setup's, which may give way to 0 */
    int32_t *ids;          /* the prompt, from the body; or */
    int32_t *tokenized;    /* from the tokenizer; kvasir_free */
    const char **stops;    /* [engine.n_stops] */
    int32_t *stop_tokens;  /* [engine.n_stop_tokens] */
    int32_t *shown_tokens; /* [engine.n_shown_tokens] */
    int32_t *xtc_special;  /* kvasir_free */
    kvasir_logit_bias *logit_bias;
    json_t *kept; /* array of the body's texts that are pointed to */
};
void api_request_free(struct api_request *r);

/* Submits it; a length that nobody asked for gives way where there is no room for it. */
kvasir_status api_submit(kvasir_engine *engine, const struct api_request *r,
                         kvasir_event_fn *on_event, void *user, uint64_t *id, kvasir_error *err);
/* For choice `choice` of the answer `id` (what its body is called); see answer_parser_create. */
struct answer_parser *api_answer_parser(const struct api_request *r, const char *id,
                                        uint32_t choice, answer_part_fn *fn, void *user);

#endif
