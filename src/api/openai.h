/* SPDX-License-Identifier: Apache-2.0 */
/* OpenAI's bodies of /v1/chat/completions and /v1/completions, both ways (openai_request.c,
 * openai_fields.c, openai_tools.c, openai_answer.c).
 *
 * Invariants
 *   R1  A field that would change the answer is honoured or refused by its name; unknown others are
 *       passed over. What mlx-lm, vllm-mlx and vLLM add to OpenAI's fields keeps their names.
 *   R2  An error about a field begins with its path, "messages[2].content: ", and is one line of
 *       UTF-8, whatever the body holds.
 *   R3  Nothing here prints, opens files or keeps state between requests. Functions may run on any
 *       thread; one struct is used by one thread at a time.
 */
#ifndef API_OPENAI_H
#define API_OPENAI_H

#include <jansson.h>
#include <kvasir.h>

#include "api/answer_syntax.h"
#include "util/util.h"

enum openai_api { OPENAI_CHAT, OPENAI_COMPLETIONS };
/* By the path of its URL; false: it is none of the two. */
bool openai_api_of(const char *url, enum openai_api *api);

/* ---- errors ---------------------------------------------------------------------------------- */

enum {
    OPENAI_BAD_REQUEST = 400,
    OPENAI_UNAUTHORIZED = 401,
    OPENAI_FORBIDDEN = 403,
    OPENAI_NOT_FOUND = 404,
    OPENAI_BUSY = 429,
    OPENAI_CANCELLED = 499, /* nobody is to try again by itself */
    OPENAI_SERVER_ERROR = 500,
    OPENAI_UNAVAILABLE = 503,
};
enum { OPENAI_PATH_MAX = 128 };
struct openai_error {
    int status;                  /* of HTTP */
    const char *code;            /* OpenAI's name for it; NULL: none */
    char param[OPENAI_PATH_MAX]; /* the field's path; "" where no field is to blame */
    char text[640];
};
/* Fills *err with "path: why", returns false. path NULL: no field is to blame. */
bool openai_refuse(struct openai_error *err, const char *path, const char *format, ...)
    PRINTF_LIKE(3, 4);
bool openai_no_memory(struct openai_error *err);
/* What a failed call of the library means to who sent the request. */
void openai_error_of(struct openai_error *out, const kvasir_error *err);
/* {"message", "type", "param", "code"}; NULL: out of memory */
json_t *openai_error_object(const struct openai_error *err);

/* ---- from a body to a request ---------------------------------------------------------------- */

/* What all requests of a front end share. */
struct openai_setup {
    const kvasir_tokenizer *tokenizer;
    /* of chats' answers; NULL: all of an answer is content */
    const struct answer_syntax *syntax;
    const json_t *variables;  /* object: of chat templates; a request's win. NULL: none */
    const char *model;        /* the name in answers to requests that say none */
    uint32_t vocab;           /* token ids lie below it */
    uint32_t max_choices;     /* of a request: the engine's max_running */
    uint32_t max_tokens;      /* of requests that do not say; 0: what there is room for */
    kvasir_sampling sampling; /* likewise */
    bool stream;              /* "stream": true is allowed */
    bool prompt_cache;        /* "prompt_cache", the path of a file, is allowed */
};

struct openai_request {
    enum openai_api api;
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
/* False: *err says why; there is nothing to free then. */
bool openai_read(const struct openai_setup *setup, enum openai_api api, const json_t *body,
                 struct openai_request *out, struct openai_error *err);
void openai_request_free(struct openai_request *r);

/* Submits it; a length that nobody asked for gives way where there is no room for it. */
kvasir_status openai_submit(kvasir_engine *engine, const struct openai_request *r,
                            kvasir_event_fn *on_event, void *user, uint64_t *id, kvasir_error *err);
/* For choice `choice` of the answer `id` (what its body is called); see answer_parser_create. */
struct answer_parser *openai_parser(const struct openai_request *r, const char *id, uint32_t choice,
                                    answer_part_fn *fn, void *user);

/* ---- from events to a body ------------------------------------------------------------------- */

/* Calls that were cut off by the length are "length", as they are at OpenAI. */
const char *openai_finish_reason(kvasir_finish finish, uint32_t calls);

struct openai_token {
    int32_t token;
    float logprob;
    uint32_t n_top;
};
/* The request's own text of an event's stop text, which is the engine's. NULL: none. */
const char *openai_stop_of(const struct openai_request *r, const char *stop);

struct openai_choice {
    char *text; /* [len] */
    size_t len, cap;
    struct openai_token *tokens; /* [n_tokens]; only counted where no logprobs are asked for */
    size_t n_tokens, tokens_cap;
    kvasir_token_logprob *top; /* [n_top]: n_top of each token, one's after the other's */
    size_t n_top, top_cap;
    kvasir_finish finish;
    const char *stop; /* the stop text that ended it, one of the request's; NULL: none */
};
/* One request's answer, collected event by event. Zero-initialised may be freed. */
struct openai_answer {
    const struct openai_request *request; /* borrowed */
    struct openai_choice *choices;        /* [request->engine.n] */
    uint32_t prompt_tokens, cached_tokens;
    bool complete;      /* the last event came */
    bool cancelled;     /* a choice ended so */
    bool failed;        /* error says why */
    kvasir_error error; /* of the engine, or that memory ran out here */
};
/* False: out of memory. */
bool openai_answer_init(struct openai_answer *a, const struct openai_request *request);
void openai_answer_event(struct openai_answer *a, const kvasir_event *event);
void openai_answer_free(struct openai_answer *a);
/* The body of a complete answer. NULL, with *err: the request failed, was cancelled, or memory ran
 * out. */
json_t *openai_answer_body(const struct openai_answer *a, const struct openai_setup *setup,
                           const char *id, int64_t created, struct openai_error *err);

#endif
