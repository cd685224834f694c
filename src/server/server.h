/* SPDX-License-Identifier: Apache-2.0 */
/* server/: between HTTP and JSON on one side and the engine's requests and events on the other; no
 * tensors. Like cli/ it is a user of the library: it sees <kvasir.h>, jansson and libmicrohttpd,
 * and nothing else of ours.
 *
 *     body (JSON) --openai_read--> struct api_request --kvasir_engine_submit--> engine
 *     body (JSON) <--openai_answer_body-- struct api_answer <--events-- engine
 */
#ifndef SERVER_H
#define SERVER_H

#include "api/api.h"

struct server_options {
    const char *host;            /* address to listen on */
    uint16_t port;               /* 0: one that is free (server_port) */
    const char *model_name;      /* as clients call it */
    bool strict_model;           /* other names are refused, else they are taken for it */
    const char *const *api_keys; /* [n_api_keys]; none: nobody is asked for a key */
    size_t n_api_keys;
    const char *admin_key;      /* of what changes the cache; NULL: see server_routes */
    bool share_prefixes;        /* keys are not tenants of their own in the prefix tree */
    const char *cors_origin;    /* NULL: no other site's pages may call */
    json_t *variables;          /* object: of chat templates; NULL: none */
    kvasir_sampling sampling;   /* of requests that do not say */
    uint32_t max_tokens;        /* likewise; 0: what there is room for */
    uint32_t max_choices;       /* "n" of a request at most */
    uint32_t max_prompt_tokens; /* 0: what the context has room for */
    uint32_t max_connections;
    uint64_t max_body_bytes;
    uint64_t buffer_bytes;    /* of an answer that its reader does not take, then it is cancelled */
    uint32_t idle_timeout_s;  /* between requests, and for a request to be complete */
    uint32_t write_timeout_s; /* for a reader to take something */
    uint32_t keepalive_s;     /* between comments of a stream while nothing else is sent */
    bool log_prompts;         /* prompts go to the log, too */
    /* A line of the log, without its end. Called on a thread of its own, which may wait as long as
     * it likes: requests go on, and lines that find no room are counted. NULL: none is kept. */
    void (*on_log)(void *user, const char *line);
    void *log_user;
};
/* 127.0.0.1, 8080, 1,024 connections, 32 MiB bodies, 1 MiB buffers, 75 s, 30 s, 5 s; all else 0. */
struct server_options server_defaults(void);

/* A name or address that only this machine can connect to. */
bool server_is_loopback(const char *host);

struct server;
/* Listens and answers on threads of its own. What options and model hold is borrowed for the
 * server's life, as is the engine. KVASIR_ERR_IO: the address cannot be had. */
kvasir_status server_create(const struct server_options *options, const kvasir_model *model,
                            kvasir_engine *engine, struct server **out, kvasir_error *err);
uint16_t server_port(const struct server *s);
/* No new connections and requests (503) from here on. */
void server_drain(struct server *s);
/* Requests that are not answered yet. */
uint32_t server_open_requests(struct server *s);
/* Waits until every request is answered, at most so many seconds; how many are still open. */
uint32_t server_wait_idle(struct server *s, double seconds);
/* Cancels what is open; ends the threads, the log's after its last line. */
void server_destroy(struct server *s);

#endif
