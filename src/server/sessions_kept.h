/* SPDX-License-Identifier: Apache-2.0 */
/* sessions_kept.h: sessions (/v1/sessions) by id, each with the key that it was made with.
 *
 *     session a  [messages or nothing | tokens ............ ]     its pages: in the prefix cache,
 *     session b  [a copy of both, up to where it was forked]      found by its tokens, shared
 *
 * A session owns texts and token ids, no pages: those are the cache's, immutable, and shared by all
 * whose tokens begin alike. So a fork copies ids, a trim drops some, and neither touches what
 * others use. A pinned session holds its tokens' pages (kvasir_engine_hold) until it ends, is
 * trimmed or is pinned no longer; what another pinned session begins with, too, stays held.
 *
 * Invariants
 *   SESSION-1  A session that a request continues is that request's alone until its end: others
 *              that would change it are refused. So an answer is never lost, nor half of one.
 *   SESSION-2  A request that fails or is cancelled changes nothing.
 *   SESSION-3  One that does not fit any more is gone. It is never older than its last answer.
 *   SESSION-4  A key finds its own sessions only.
 */
#ifndef SERVER_SESSIONS_KEPT_H
#define SERVER_SESSIONS_KEPT_H

#include "api/api.h"
#include "util/account.h"

enum {
    SESSION_ID_MAX = 64,
    SESSIONS_OF_KEY = 256, /* at most */
    SESSIONS_MAX = 4096
};

struct sessions;
struct sessions_options {
    kvasir_engine *engine;
    struct mem_account *account; /* they are charged to it */
    uint64_t max_bytes;
    uint32_t
        max_ttl_s;     /* the longest life after the last use, and that of those who ask for none */
    const char *model; /* borrowed, as the others */
};
struct sessions *sessions_create(const struct sessions_options *o); /* NULL: out of memory */
void sessions_destroy(struct sessions *all);                        /* NULL is allowed */
void sessions_tick(struct sessions *all); /* those whose time is over leave; NULL is allowed */

struct sessions_figures {
    uint64_t sessions, bytes;
};
struct sessions_figures sessions_figures(struct sessions *all); /* NULL is allowed */

/* What one request does with the sessions of its key. */
struct session_user {
    struct session_store store;
    struct sessions *all;
    const char *key;         /* outlives it */
    char id[SESSION_ID_MAX]; /* of the session that is this request's (SESSION-1); "": none */
};
void session_user_begin(struct session_user *u, struct sessions *all, const char *key,
                        bool may_pin);
void session_user_end(struct session_user *u); /* zeros are allowed */

/* What may be asked of a session; unset members are 0, and pin -1. */
struct session_change {
    json_int_t messages, tokens; /* keep so many of the first */
    json_int_t ttl_s;
    int pin;
};
/* Each is a session as clients see it, new, or NULL with *err. */
json_t *sessions_get(struct sessions *all, const char *key, const char *id, struct api_error *err);
json_t *sessions_list(struct sessions *all, const char *key, struct api_error *err);
/* A copy under another id, changed so. */
json_t *sessions_fork(struct sessions *all, const char *key, const char *id,
                      const struct session_change *change, struct api_error *err);
json_t *sessions_change(struct sessions *all, const char *key, const char *id,
                        const struct session_change *change, struct api_error *err);
bool sessions_forget(struct sessions *all, const char *key, const char *id, struct api_error *err);

#endif
