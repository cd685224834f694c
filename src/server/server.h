/* SPDX-License-Identifier: Apache-2.0 */
/* server/: HTTP requests to requests of the engine, and its events to responses. Like cli/ it uses
 * the library through <kvasir.h>.
 *
 *     exchange (http/) --> route --> job --protocol (api/)--> request --> engine
 *     exchange <------------ reply <-- protocol <-- answer or stream <-- events
 */
#ifndef SERVER_H
#define SERVER_H

#include "api/api.h"

/* What a client needs to know, and what it may ask for; 0: any number. */
enum { SERVER_KEY_NAME_MAX = 64 }; /* bytes of UTF-8 without control characters */
struct server_key {
    const char *key, *name; /* name: for messages, up to SERVER_KEY_NAME_MAX; NULL: none */
    uint32_t weight;        /* of its requests against those of other keys; 0: 1 */
    uint32_t concurrent, requests_per_minute, tokens_per_minute;
    int64_t expires_s; /* Unix time from which on it is refused; 0: never */
};
/* Reads "KEY [NAME=VALUE ...]", which it cuts into the texts of *out. NULL, or what is wrong at
 * *column, from 1. */
const char *server_read_key(char *line, struct server_key *out, size_t *column);

enum server_log_level { SERVER_LOG_ERROR, SERVER_LOG_WARN, SERVER_LOG_INFO, SERVER_LOG_DEBUG };
/* By its name, "warn". False: there is none. */
bool server_log_level_read(const char *name, enum server_log_level *out);
/* A line of the log without its end (log.h). Takes fields; NULL gives NULL. mem_free; NULL: out of
 * memory. */
char *server_log_line(bool json, enum server_log_level level, json_t *fields);

struct server_options {
    const char *host; /* address, or "unix:/path" of a socket */
    uint16_t port;    /* 0: a free one (server_port) */
    /* One more listener, for health and figures only, with connections and a thread of its own: on
     * the same address, or on 127.0.0.1 beside a Unix socket. 0: a free port; negative: none. */
    int32_t admin_port;
    const char *model_name; /* as clients see it */
    bool strict_model;      /* refuse other names; otherwise they are ignored */
    /* [n_api_keys], copied; none: requests need no key, now and later */
    const struct server_key *api_keys;
    size_t n_api_keys;
    const char *admin_key; /* may empty the cache; NULL: none, see routes.c */
    bool share_prefixes;   /* all keys share stored prefixes */
    /* [warm_prompts_len] prompts that are put into the cache after the start, while no client has a
     * request open: one JSON object a line, with "prompt" or "messages" and perhaps other members
     * of a request's body. NULL: none. warm_key: the client that finds them, if keys do not share
     * prefixes; NULL: "". Borrowed until server_create returns. */
    const char *warm_prompts, *warm_key;
    size_t warm_prompts_len;
    /* [n_allowed_hosts] further names in a Host header; "*": any */
    const char *const *allowed_hosts;
    size_t n_allowed_hosts;
    const char *cors_origin; /* site whose pages may send requests, "*": all; NULL: none */
    json_t *variables;       /* object: variables of chat templates; NULL: none */
    const char *tool_call_parser,
        *reasoning_parser;    /* server_check_parsers; NULL: by the template */
    enum rerank_form rerank;  /* how /v1/rerank asks the model */
    bool all_control;         /* chats: names of control tokens become tokens whoever wrote them */
    kvasir_sampling sampling; /* defaults of requests */
    bool fixed_seed;          /* sampling.seed is one of them; otherwise each has its own */
    uint32_t max_tokens;      /* likewise; 0: as many as fit */
    bool clamp_tokens;        /* a max_tokens that does not fit is made to, not refused */
    bool strict_fields;       /* unknown fields of bodies are refused, not ignored */
    bool mlx_health;          /* /health answers as mlx_lm.server's does, not vllm-mlx's */
    uint32_t max_choices;     /* largest "n" of a request */
    uint32_t max_prompt_tokens; /* 0: as many as fit the context */
    uint32_t max_waiting; /* the engine's; half of these places are shared by the keys' weights */
    uint32_t max_connections;
    /* of one client address, each request through a trusted proxy counted as one; 0: a quarter of
       max_connections, and any number from loopback */
    uint32_t max_address_connections;
    /* [n_trusted_proxies] lists of addresses and blocks, "10.0.0.1,fd00::/8": for a peer among them
       the client is the rightmost address of X-Forwarded-For that is not; read by server_create */
    const char *const *trusted_proxies;
    size_t n_trusted_proxies;
    uint64_t max_body_bytes;
    uint64_t request_memory_bytes; /* for all that requests own (util/account.h); 0: an eighth of
                                      the memory that is free, 256 MiB to 4 GiB */
    uint64_t buffer_bytes;     /* of a stream's events that its client does not read; beyond it the
                                 request is cancelled */
    uint32_t idle_timeout_s;   /* between requests, and until a request is complete */
    uint32_t head_timeout_s;   /* until the headers of a request are complete */
    uint32_t write_timeout_s;  /* until a client reads something */
    uint32_t text_timeout_s;   /* until a body is read, rendered and tokenized */
    uint64_t response_bytes;   /* for kept answers of /v1/responses, within the request memory, and
                                 as much for sessions */
    uint32_t response_ttl_s;   /* how long answers are kept unused; 0: none are */
    uint32_t session_ttl_s;    /* how long sessions are, at most; 0: there are none */
    uint32_t keepalive_s;      /* between comments in a stream that has nothing else to send */
    const char *otlp_endpoint; /* URL of a collector of traces; NULL: none are made */
    const char *otlp_headers;  /* "Name: value\n" each, of requests to it; NULL: none */
    bool log_prompts;          /* request bodies go to the log */
    bool log_json;             /* its lines are JSON objects */
    enum server_log_level log_level; /* the least important lines that are written */
    /* Writes one line of the log, without its end, on a thread of its own. It may block: requests
     * continue, and lines that do not fit the queue are counted. NULL: no log. */
    void (*on_log)(void *user, const char *line);
    void *log_user;
};
/* 127.0.0.1, 8080, no admin port, 1,024 connections, 32 MiB bodies, 1 MiB buffers, 75 s, 10 s,
 * 30 s, 30 s, 5 s; 64 MiB of responses and of sessions, a day; all else 0. */
struct server_options server_defaults(void);

/* A name or address that only this machine can connect to. */
bool server_is_loopback(const char *host);

/* Whether options->trusted_proxies are what they must be. False with *err. */
bool server_check_proxies(const struct server_options *options, kvasir_error *err);

/* Whether options->tool_call_parser and reasoning_parser are known. False with *err. */
bool server_check_parsers(const struct server_options *options, kvasir_error *err);

struct server;
/* Listens and answers on threads of its own. Borrows options, model and engine for its life.
 * KVASIR_ERR_IO: it cannot listen on the address. KVASIR_ERR_ARGUMENT: a line of warm_prompts. */
kvasir_status server_create(const struct server_options *options, const kvasir_model *model,
                            kvasir_engine *engine, struct server **out, kvasir_error *err);

/* ---- several models -------------------------------------------------------------------------- */

/* What is loaded of one. options: of these model_name, variables, all_control, the parsers,
 * sampling, max_tokens, max_choices and max_prompt_tokens are the model's own. */
struct server_loaded {
    kvasir_model *model;
    kvasir_engine *engine;
    const struct server_options *options;
};
struct server_model {
    const char *name;
    const char *const *aliases; /* [n_aliases] */
    size_t n_aliases;
    uint64_t need_bytes; /* of the budget, at most that */
    uint64_t file_bytes; /* about what it takes on disk, for clients; 0: unknown */
    bool pinned;         /* loaded by server_create_many, and never unloaded */
};
struct server_models {
    const struct server_model *items; /* [n] */
    size_t n, first;                  /* first: of requests that name none */
    uint64_t budget_bytes;
    uint32_t idle_s, wait_s; /* as in struct model_set_options */
    /* On a thread of the server's, one call at a time. KVASIR_ERR_MEMORY: it may be tried again
     * with fewer models loaded. */
    kvasir_status (*load)(void *user, size_t i, struct server_loaded *out, kvasir_error *err);
    void (*unload)(void *user, size_t i, const struct server_loaded *loaded);
    void *user;
};
/* The same with several models, all borrowed. No warm_prompts. Errors also as of load. */
kvasir_status server_create_many(const struct server_options *options,
                                 const struct server_models *models, struct server **out,
                                 kvasir_error *err);
/* Calls fn with each that is loaded, which stays so meanwhile. fn returns a text: why it can be
 * used no more; NULL: it can. Then later requests have it loaded again. */
void server_each_loaded(struct server *s,
                        const char *(*fn)(void *user, size_t i, const struct server_loaded *l),
                        void *user);

/* For all that requests own: options->request_memory_bytes, or its default at this moment. */
uint64_t server_request_memory(const struct server_options *options);
uint16_t server_port(const struct server *s);
uint16_t server_admin_port(const struct server *s); /* 0: none */
/* From now on refuses new connections and requests (503). The admin port answers until the end. */
void server_drain(struct server *s);
/* The model's files are no longer what was opened: from now on refuses requests, and /ready fails
 * (503). Connections are still accepted, so that clients and load balancers see it. */
void server_model_lost(struct server *s);
/* How many requests are not answered yet. */
uint32_t server_open_requests(struct server *s);
/* Waits until every request is answered, at most so many seconds; how many are still open. */
uint32_t server_wait_idle(struct server *s, double seconds);
/* Cancels open requests and ends the threads, the log's after its last line. */
void server_destroy(struct server *s);
/* The keys from now on, instead of options.api_keys, at least one if there was one; they are
 * copied. Requests of a key that is gone end as they would. False: out of memory, all is as it
 * was. */
bool server_set_keys(struct server *s, const struct server_key *keys, size_t n) MUST_CHECK;

#endif
