/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of server/ share: the server, and jobs, which are requests that the engine runs.
 *
 * A job has two owners: its exchange (http.h) until that is over, and the engine until its last
 * event. The second to finish frees it. */
#ifndef SERVER_SERVER_INTERNAL_H
#define SERVER_SERVER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "api/api.h"
#include "http/http.h"
#include "server/accounts.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/otlp.h"
#include "server/responses_kept.h"
#include "server/served.h"
#include "server/server.h"
#include "server/sessions_kept.h"
#include "server/warm.h"
#include "server/work.h"
#include "util/account.h"

enum { JOB_ID_MAX = HTTP_ID_MAX };

struct server {
    struct server_options options;
    struct served *one;      /* the model; NULL: there are several */
    struct served_set *many; /* NULL: there is one */
    struct server_metrics *metrics;
    struct accounts *accounts; /* the API keys */
    bool needs_key;
    struct mem_account requests; /* what requests own */
    struct charge *buffers;      /* of it, what connections receive */
    uint64_t trimmed;            /* of the watcher: requests.returned at the last mem_trim */
    int64_t trimmed_us;
    struct http_net *proxies; /* trusted ones; mem_free */
    size_t n_proxies;
    struct http *http;
    struct http *admin_http;       /* NULL: there is no admin port */
    int64_t started_s, started_us; /* Unix time, and metrics_now_us then */
    atomic_bool draining, stopping, model_lost;
    struct log *log;   /* NULL: none is kept */
    struct otlp *otlp; /* NULL: nobody collects traces */
    struct work_pool *work;
    struct lookups *lookups;     /* of recent requests */
    struct kept_responses *kept; /* NULL: none are */
    struct sessions *sessions;   /* likewise; with several models there are none */
    struct warm *warm;           /* NULL: no prompts are put into the cache */
    /* under the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* n_jobs or n_incomplete is 0 now, or n_jobs no longer; or of warm.c */
    struct job *jobs;
    struct cache_task *forgets; /* that wait until stores have forgotten */
    uint32_t n_jobs;            /* with those that are not in the list (text_task.c) */
    uint32_t n_incomplete;      /* jobs whose last event has not come */
};

/* Whose request it is: requests of one tenant share prefixes and may cancel each other. */
struct tenant {
    const char *key; /* "": the server has no keys */
    uint64_t number; /* the engine's of this tenant */
    uint32_t weight;
    struct account *account;
    bool expired; /* the key was one of this tenant's */
    bool admin;
    bool sees_all; /* the figures of all tenants */
    struct mem_share *share;
};

/* What an exchange is about: the first member of its user. */
struct task {
    enum http_step (*go_on)(struct http_exchange *exchange); /* it was woken */
    void (*gone)(struct http_exchange *exchange);
    void (*done)(struct http_exchange *exchange, unsigned status);
};

/* ---- bodies (reply.c) ------------------------------------------------------------------------ */

/* The headers of all replies, X-Request-Id among them; there is room for six more. */
struct http_reply reply_head(const struct server *s, struct http_exchange *exchange,
                             unsigned status, const char *type);
/* The client's X-Request-Id; "": none that may be repeated. */
void server_client_id(const struct http_exchange *exchange, char out[JOB_ID_MAX]);
/* The prefix and 24 random hex digits, and a seed, random too: neither tells anybody what other
 * requests got or how many there were. False: the kernel gives no random bytes. */
bool server_new_id(const char *prefix, char out[JOB_ID_MAX], uint64_t *seed);
/* A line of the log of a request that is no job: its path, and the reason if it was refused,
 * without texts of its body. Of one that was not refused only at level debug. */
void reply_log(const struct server *s, const struct http_exchange *exchange, const char *route,
               unsigned status);
/* Takes value; NULL: out of memory. */
enum http_step reply_json(struct server *s, struct http_exchange *exchange, unsigned status,
                          json_t *value);
/* Takes value, and gives its memory back. Its text, charged like this thread's other allocations
 * before it is written; NULL: out of memory. */
char *reply_dump(json_t *value);
/* Takes text (malloc), a JSON value. */
enum http_step reply_text(struct server *s, struct http_exchange *exchange, unsigned status,
                          char *text);
/* As the protocol writes errors. */
enum http_step reply_error(struct server *s, struct http_exchange *exchange,
                           const struct protocol *protocol, const struct api_error *err);
/* With one header more. */
enum http_step reply_error_with(struct server *s, struct http_exchange *exchange,
                                const struct protocol *protocol, const struct api_error *err,
                                const char *name, const char *value);
/* If the exchange's memory was refused, that is why it failed, whatever *err says so far. Returns
 * whether it was. */
bool reply_memory_error(const struct http_exchange *exchange, struct api_error *err);
/* The JSON body of a request (api_body.h); false with *err. */
bool reply_read_body(const struct http_exchange *exchange, const struct api_setup *setup,
                     api_want_fn *wants, struct api_body *body, struct api_error *err);

/* ---- routes (routes.c) ----------------------------------------------------------------------- */

/* GET requests that tell how the server does: they are answered under any load. */
bool routes_probe(void *user, const struct http_exchange *exchange);
/* A new charge for an exchange, to its key's share. */
struct charge *routes_charge(void *user, const struct http_exchange *exchange);
/* Only a client that may post to a route may send a large body. */
uint64_t routes_body_limit(void *user, const struct http_exchange *exchange);
enum http_step routes_handle(void *user, struct http_exchange *exchange);
/* On the admin port: a few of the routes. */
enum http_step routes_handle_admin(void *user, struct http_exchange *exchange);
/* Replies to what HTTP itself refuses. */
void routes_refuse(void *user, struct http_exchange *exchange, unsigned status, const char *why);
/* The route's name for log and metrics; "other": there is none. */
const char *routes_name(const struct http_exchange *exchange);

/* Whether the Origin or Host header is refused (origin.c), and why. */
bool origin_refused(const struct server *s, const struct http_exchange *exchange, char *why,
                    size_t size);
/* The site whose pages may read the reply: "*", the one of the options, or the exchange's own on
 * this machine; NULL: none. */
const char *origin_allowed(const struct server *s, const struct http_exchange *exchange);

/* Reads options->trusted_proxies; *out: mem_free. False with *err. */
bool proxies_read(const struct server_options *o, struct http_net **out, size_t *n,
                  kvasir_error *err);

/* ---- stored prefixes (lookups.c, cache_task.c) ----------------------------------------------- */

/* The salt of a key's requests with this cache_salt (or NULL). It contains the key, so that no
 * other tenant finds its prefixes, unless all share them. mem_free; NULL: out of memory. */
char *server_salt(const struct server *s, const char *key, const char *cache_salt);

/* What a request found when it began to run. */
struct lookup {
    char id[JOB_ID_MAX]; /* of its answer */
    const char *key;     /* its tenant's; outlives the server's threads */
    size_t model;        /* index */
    uint32_t prompt_tokens, common_tokens, cached_tokens;
    kvasir_miss why;
    int32_t token, other_token; /* after those in common: the prompt's, the stored one; -1: none */
};
/* The last few hundred. */
struct lookups *lookups_create(void); /* NULL: out of memory */
void lookups_destroy(struct lookups *all);
void lookups_add(struct lookups *all, const struct lookup *l);
bool lookups_find(struct lookups *all, const char *id, struct lookup *out);

/* DELETE /v1/cache: all, or a salt that the query or the body names. */
enum http_step forget_begin(struct server *s, struct http_exchange *exchange,
                            const struct tenant *tenant);
/* By the watcher: those whose stores have forgotten, or took long, reply. */
void forgets_tick(struct server *s);
/* POST /v1/cache/explain: the body is that of a request. GET: of a recent request. */
enum http_step explain_begin(struct server *s, struct http_exchange *exchange,
                             const struct tenant *tenant);
enum http_step explain_recent(struct server *s, struct http_exchange *exchange,
                              const struct tenant *tenant);

/* session_routes.c: /v1/sessions, but for POST to it. */
enum http_step session_answer(struct server *s, struct http_exchange *exchange,
                              const struct tenant *tenant);

/* More (1) or fewer (-1) requests are open that are not in the list of jobs (text_task.c). */
void server_count_open(struct server *s, int n);

/* ---- jobs (job.c) ---------------------------------------------------------------------------- */

/* Has a worker read the body and submit it to the engine. */
enum http_step job_begin(struct server *s, struct http_exchange *exchange,
                         const struct protocol *protocol, const struct tenant *tenant);
/* By the id of the answer or the X-Request-Id; returns how many there were. */
uint32_t jobs_cancel(struct server *s, const struct tenant *tenant, const char *id);
/* Those of the model that run and that the tenant may see, up to `most`; returns how many. */
size_t jobs_running(const struct served *m, const struct tenant *tenant, struct native_slot *out,
                    size_t most);
/* Cancels all, and waits until the engine is done with them. */
void jobs_stop(struct server *s);
/* Streams that were silent for keepalive_s send a comment. */
void jobs_tick(struct server *s);

#endif
