/* SPDX-License-Identifier: Apache-2.0 */
/* api_request.h: a client's request, whatever protocol it came by. */
#ifndef API_API_REQUEST_H
#define API_API_REQUEST_H

#include <jansson.h>
#include <kvasir.h>

#include "api/answer_syntax.h"
#include "api/api_error.h"
#include "api/constraint.h"
#include "api/grammar_cache.h"

enum api_kind { API_CHAT, API_COMPLETIONS, API_EMBEDDINGS };

struct api_request;

/* Where responses are kept for requests that continue them; of one tenant. */
struct responses_store {
    void *user;
    /* Appends the items of response `id`, with those of the responses before it. False with *err:
     * there is none. */
    bool (*recall)(void *user, const char *id, json_t *items, struct api_error *err);
    /* Keeps a response and the items that were new in its request. `previous`: the one before it;
     * NULL: none. It is not kept if there is no memory for it. */
    void (*keep)(void *user, const char *previous, json_t *input, json_t *response);
};

/* A session as a request needs it. Zeros may be freed (session_state_free, sessions.h). */
struct session_state {
    json_t *body;    /* object: of a chat its messages, and what else is kept of bodies */
    int32_t *tokens; /* [n_tokens], mem_free: those of the last prompt and its answer */
    size_t n_tokens;
};
/* Where sessions are kept; of one tenant and one request. */
struct session_store {
    void *user;
    uint32_t max_ttl_s;
    bool may_pin;
    /* Whether one more may be made. False with *err. */
    bool (*room)(void *user, struct api_error *err);
    /* A session, which is this request's alone until its end. False with *err. */
    bool (*take)(void *user, const char *id, struct session_state *out, struct api_error *err);
    /* A new session of the request, whose prompt has been computed: as clients see it. NULL with
     * *err. */
    json_t *(*create)(void *user, const struct api_request *r, struct api_error *err);
    /* The session that was taken is this from now on; NULL: there was no memory for it, and it is
     * kept no longer. */
    void (*save)(void *user, const struct session_state *now);
};

enum {
    API_PROMPTS_MAX = 128, /* of a completion, with all choices: each is a sequence of the engine */
    API_PROMPT_PATH_MAX = 40
};

/* How documents are ranked: by embeddings, or by asking the model (rerank.h). */
enum rerank_form { RERANK_COSINE, RERANK_YES_NO };

/* What all requests of a server or batch share. */
struct api_setup {
    const kvasir_tokenizer *tokenizer;
    /* of chat answers; NULL: all of an answer is content */
    const struct answer_syntax *syntax;
    json_t *variables;    /* object: variables of chat templates, below a request's; NULL: none */
    const char *model;    /* the name in answers to requests without one */
    bool picked;          /* a request's "model" was found to name this one */
    uint32_t vocab;       /* token ids are below it */
    uint32_t max_choices; /* largest "n": the engine's max_running */
    uint32_t max_tokens;  /* default of requests; 0: as many as fit */
    kvasir_sampling sampling;                /* likewise */
    const kvasir_text_limits *limits;        /* of work on texts; NULL: none */
    struct grammar_cache *grammars;          /* NULL: grammars are written, and not compiled */
    bool all_control;                        /* default of "control_tokens": "all" */
    bool stream;                             /* "stream": true is allowed */
    const struct responses_store *responses; /* NULL: none are kept */
    const struct session_store *sessions;    /* likewise */
    bool session_start;     /* the prompt is computed for a new session, and not answered */
    uint32_t max_prompts;   /* of a request for completions; 0: 1 */
    uint32_t width;         /* of embeddings */
    kvasir_pooling pooling; /* likewise */
    enum rerank_form rerank;
    uint32_t ctx;       /* tokens of a prompt and its answer; 0: not known */
    bool prompt_cache;  /* "prompt_cache", the path of a file, is allowed */
    bool strict_fields; /* unknown fields are refused */
    bool clamp_tokens;  /* an answer that is asked to be longer than fits becomes shorter */
};

/* One of a request's prompts, and its request to the engine. */
struct api_prompt {
    const int32_t *tokens; /* [n_tokens] */
    size_t n_tokens;
    const char *text; /* [len], as the client wrote it; NULL: it wrote ids */
    size_t len;
    int32_t *tokenized;             /* the same, if they are to be freed (kvasir_free); or NULL */
    char path[API_PROMPT_PATH_MAX]; /* of the body's member: "prompt[3]" */
    struct api_prompts_run *run;
    uint32_t prompt_tokens, cached_tokens, prompt_done; /* once it has begun */
};

struct api_request {
    enum api_kind api;
    /* For kvasir_engine_submit, which also needs prompt_cache, on_event and user. It points into
     * the fields below. */
    kvasir_request engine;
    const char *model;
    const char *prompt_cache; /* path; NULL: none */
    struct api_embed {
        uint32_t width;      /* of the model; 0: no embeddings are asked for */
        uint32_t dimensions; /* as many of them */
        bool base64;
        uint32_t top_n; /* of documents */
        bool asks;      /* whether each is relevant; otherwise the first prompt is the query */
        bool returns_documents;
    } embed;
    bool stream, include_usage;
    bool echoes;      /* of completions: an answer begins with its prompt */
    bool scores;      /* the answer has the log-probabilities of the prompt's tokens beside it */
    bool all_control; /* of a chat: names of control tokens become tokens whoever wrote them */
    bool continues;   /* the answer continues the last message without repeating its text */
    /* Of a chat: how its answers are parsed, without the seed. All is content if the setup has no
     * syntax. */
    struct answer_options answer;
    struct constraint constraint; /* what the answers must be */
    struct kept_grammar *grammar; /* likewise, compiled; NULL: any */
    int32_t *tokenized;           /* a chat's tokens; kvasir_free */
    int32_t *ids; /* those that came as ids, of all prompts; or engine.asked_tokens */
    /* [n_prompts] of completions and what else may have several (api_prompts.h): each for engine.n
     * choices; engine has the first one. NULL: there is one, engine's. */
    struct api_prompt *prompts;
    uint32_t n_prompts;
    const char **stops;    /* [engine.n_stops] */
    int32_t *stop_tokens;  /* [engine.n_stop_tokens] */
    int32_t *shown_tokens; /* [engine.n_shown_tokens] */
    int32_t *xtc_special;  /* kvasir_free */
    kvasir_logit_bias *logit_bias;
    /* Nothing is generated: the answer is complete at once. There is no prompt. */
    bool idle;
    /* Members of the answer that repeat the request's or comment on it; of /v1/responses also the
     * new items. */
    json_t *echo, *input;
    bool store; /* the response is kept */
    struct api_session {
        const char *id; /* that the request continues; NULL: none */
        struct session_state state;
        uint32_t ttl_s; /* of a new one; likewise: */
        bool pin;
        bool closed; /* its prompt ends with the last message, not with what begins an answer */
    } session;
    json_t *warnings;            /* array of texts, for the answer; NULL: none */
    json_t *kept;                /* array: references to strings of the body that are used */
    struct api_prompts_run *run; /* of several prompts, from api_submit on */
};
void api_request_free(struct api_request *r);
static inline uint32_t api_prompt_count(const struct api_request *r) {
    return r->n_prompts ? r->n_prompts : 1;
}
/* Of all prompts. */
static inline uint32_t api_choices(const struct api_request *r) {
    return r->engine.n * api_prompt_count(r);
}
/* Submits it. Several prompts are several requests to the engine, whose events come as those of
 * one: choice i of prompt p is choice p * n + i, figures are sums over the prompts that have begun.
 * The status is the engine's; *err says more. */
kvasir_status api_submit(kvasir_engine *engine, struct api_request *r, kvasir_event_fn *on_event,
                         void *user, uint64_t *id, struct api_error *err);
/* The parser of choice `choice` of the answer `id`; see answer_parser_create. */
struct answer_parser *api_answer_parser(const struct api_request *r, const char *id,
                                        uint32_t choice, answer_part_fn *fn, void *user);

#endif
