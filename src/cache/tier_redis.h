/* SPDX-License-Identifier: Apache-2.0 */
/* tier_redis.h: the parts of the shared tier, for its own files.
 *
 *   tier_redis.c           the interface of tier.h: find, read, write, drop
 *   tier_redis_forget.c    forgetting, and the limit of a root
 *   tier_redis_exchange.c  commands on keys, in a pipeline to each node; MOVED and ASK
 *   tier_redis_node.c      nodes, connections, breakers, the table of slots
 *   tier_redis_wire.c      one connection: hiredis connects and parses what has structure
 *   tier_redis_seal.c      names, and the authentication of values
 *   tier_redis_url.c       the URL
 *
 * Each includes those below it. Any thread may be in any of them. A connection belongs to one
 * thread at a time; what is common is guarded by the mutex of struct redis_nodes, which is never
 * held while anything is sent or awaited.
 *
 * Nothing that a server sends is trusted: not lengths, types, redirections or texts. A reply that
 * is not a value may take 2 MiB (REPLY_BYTES_MOST); a value goes straight to where it belongs.
 */
#ifndef KVASIR_CACHE_TIER_REDIS_H
#define KVASIR_CACHE_TIER_REDIS_H

#include <hiredis/hiredis.h>
#include <pthread.h>
#include <sodium.h>
#include <sys/uio.h>

#include "cache/tier.h"

/* ---- URL (tier_redis_url.c) ------------------------------------------------------------------ */

enum { HOST_BYTES = 256, CREDENTIAL_BYTES = 512 };

struct redis_address {
    char host[HOST_BYTES];
    uint16_t port;
};
struct redis_url {
    struct redis_address address;
    char user[CREDENTIAL_BYTES];     /* "": the server's default user */
    char password[CREDENTIAL_BYTES]; /* "": none */
    uint32_t db;
};
/* Errors never quote the text: there may be a password anywhere in it. */
kvasir_status redis_url_parse(const char *text, struct redis_url *out,
                              kvasir_error *err) MUST_CHECK;

/* ---- names and authentication (tier_redis_seal.c) -------------------------------------------- */

enum {
    NAME_BYTES = 112, /* kvasir:CONTEXT:ROOT:KEY and a NUL */
    NONCE_BYTES = 24,
    MAC_BYTES = crypto_onetimeauth_BYTES
};
struct redis_seal {
    bool keyed;
    uint8_t names[32], values[32]; /* keys that come from the secret */
};
void seal_init(struct redis_seal *s, const uint8_t *secret, size_t bytes);
void seal_deinit(struct redis_seal *s);
void seal_name(const struct redis_seal *s, const struct tier_place *place, struct tier_key key,
               char out[NAME_BYTES]);
/* What starts the names of a place; of a context if root is NULL. The last byte is a colon. */
void seal_prefix(const struct redis_seal *s, struct tier_key context, const struct tier_key *root,
                 char out[NAME_BYTES]);
/* Starts a sum over a value under the one-time key of its nonce and name. */
void seal_begin(const struct redis_seal *s, const uint8_t nonce[NONCE_BYTES], const char *name,
                crypto_onetimeauth_state *state);

/* ---- connections (tier_redis_wire.c) --------------------------------------------------------- */

enum {
    WIRE_IN_BYTES = 64 << 10,
    WIRE_OUT_BYTES = 16 << 10,
    WIRE_LINE_BYTES = 512,          /* kept of a line */
    REPLY_BYTES_MOST = 1 << 20,     /* of what is built */
    REPLY_RECEIVED_MOST = 512 << 10 /* hiredis's buffer may be twice as long */
};
enum wire_state {
    WIRE_GOOD,
    WIRE_LATE,    /* it timed out */
    WIRE_LOST,    /* an error of the system, or the server hung up */
    WIRE_NONSENSE /* what came is not an answer to what was asked */
};
struct redis_wire {
    struct redis_wire *next; /* in its node's list of idle ones */
    uint32_t node;
    bool trial; /* decides about its node's breaker */
    redisContext *context;
    const redisReplyObjectFunctions *plain; /* what builds replies once their size is allowed */
    double deadline;                        /* of all that follows; set by whoever uses it */
    enum wire_state state; /* once it is not WIRE_GOOD, all calls return false at once */
    bool heard;            /* something was received since nodes_take */
    bool hurried;          /* the deadline is the caller's, sooner than the time-out */
    char why[128];         /* of another state */
    size_t in_at, in_end, out_len, reply_left;
    uint8_t in[WIRE_IN_BYTES], out[WIRE_OUT_BYTES];
};
/* Connects and says who we are. NULL with the reason in `why` if that failed. */
struct redis_wire *wire_open(const struct redis_address *address, const struct redis_url *url,
                             double deadline, double connect_seconds, char why[128]);
void wire_close(struct redis_wire *w);
/* An idle connection is good if nothing has come on it, not even its end. */
bool wire_is_quiet(const struct redis_wire *w);
/* A fault that the caller found. Returns false. */
bool wire_fail(struct redis_wire *w, enum wire_state state, const char *why);
/* Adds a command to what is to be sent. wire_command_open adds the first n of `total` arguments;
 * the others are sent by wire_send, with their lengths and line ends. */
struct redis_arg {
    const void *at;
    size_t len;
};
bool wire_command(struct redis_wire *w, const struct redis_arg *args, uint32_t n);
bool wire_command_open(struct redis_wire *w, const struct redis_arg *args, uint32_t n,
                       uint32_t total);
bool wire_flush(struct redis_wire *w);
bool wire_send(struct redis_wire *w, struct iovec *parts, uint32_t n); /* flushes first */
/* The next line without its end, cut to what fits. */
bool wire_line(struct redis_wire *w, char line[WIRE_LINE_BYTES]);
/* At least one and at most `most` bytes; 0 if the connection failed. */
size_t wire_some(struct redis_wire *w, void *to, size_t most);
bool wire_bytes(struct redis_wire *w, void *to, size_t n);
bool wire_skip(struct redis_wire *w, uint64_t n);
bool wire_line_end(struct redis_wire *w);
/* A whole reply of any type; nothing else may be awaited on this connection. freeReplyObject. */
redisReply *wire_reply(struct redis_wire *w);

/* ---- nodes (tier_redis_node.c) --------------------------------------------------------------- */

enum { NODES_MAX = 64, SLOTS = 16384, HOPS_MAX = 5 };
#define NO_NODE UINT32_MAX

/* Errors of a server by the first word of their text. */
enum redis_error {
    REDIS_ERROR_NONE,
    REDIS_ERROR_TYPE, /* WRONGTYPE */
    REDIS_ERROR_NODE, /* the node cannot serve anything: LOADING, NOAUTH ... */
    REDIS_ERROR_OTHER
};

struct redis_node {
    struct redis_address address;
    struct redis_wire *idle;
    uint32_t open;     /* connections, idle or not */
    uint32_t failures; /* in a row */
    double pause;      /* seconds that the breaker is open; 0: it is closed */
    double until;      /* and until when */
    bool trial;        /* somebody is finding out whether the node is back */
};
struct redis_nodes {
    struct redis_url url;
    double connect_seconds, exchange_seconds;
    uint32_t connections;
    tier_complain_fn *complain;
    void *user;

    pthread_mutex_t mutex; /* guards what follows; complaints are made without it */
    pthread_cond_t freed;  /* a connection was given back */
    struct redis_node *list[NODES_MAX];
    uint32_t n;
    uint16_t slot_node[SLOTS];
    bool moved;       /* a node said that a slot is elsewhere: the table is old */
    double learned;   /* when the table was last read; 0: never, as far as we know no cluster */
    double asked;     /* when another node was last asked for it, because one had failed */
    uint64_t changes; /* of slot_node */
    uint64_t said;    /* kinds of complaints that were made */
};
kvasir_status nodes_init(struct redis_nodes *ns, const struct tier_redis_options *o,
                         kvasir_error *err) MUST_CHECK;
void nodes_deinit(struct redis_nodes *ns);
/* What follows on a connection ends at the earlier of the caller's deadline (0: none) and the
 * time-out of an exchange. */
void nodes_hurry(const struct redis_nodes *ns, struct redis_wire *w, double deadline);
/* A connection, waiting for one if all are in use; NULL: none by then, or the breaker is open. */
struct redis_wire *nodes_take(struct redis_nodes *ns, uint32_t node, double deadline);
/* Gives it back; one that has failed is closed, and its node's breaker learns of it. */
void nodes_give(struct redis_nodes *ns, struct redis_wire *w);
uint32_t nodes_of_slot(struct redis_nodes *ns, uint32_t slot);
/* Follows the text of a MOVED or ASK of a node. False: it is neither, or nonsense. */
bool nodes_redirect(struct redis_nodes *ns, uint32_t from, const char *line, uint32_t *to,
                    bool *asking);
/* Reads the table of slots from a node. False: it has none; `failed` tells an error from a server
 * that is no cluster. */
bool nodes_learn(struct redis_nodes *ns, uint32_t node, double deadline, bool *failed);
/* After a node has failed: a replica may have its slots now. Asks another node of a cluster for the
 * table, at most once a second. */
void nodes_learn_elsewhere(struct redis_nodes *ns, uint32_t failed, double deadline);
bool nodes_down(struct redis_nodes *ns); /* every breaker is open */
uint64_t nodes_bytes(struct redis_nodes *ns);
enum redis_error redis_error_of(const char *line);
/* One line for the log: with its kind only once (kind 0: always). Control characters and the
 * password are taken out of it. */
enum complaint {
    COMPLAINT_ALWAYS,
    COMPLAINT_DAMAGE,
    COMPLAINT_MEMORY,
    COMPLAINT_ERRORS /* and one kind for each hash of an error's first word */
};
void nodes_complain(struct redis_nodes *ns, uint32_t kind, const char *format, ...)
    PRINTF_LIKE(3, 4);
void nodes_complain_error(struct redis_nodes *ns, uint32_t node, const char *line);

/* ---- commands on keys (tier_redis_exchange.c) ------------------------------------------------ */

enum item_state { ITEM_WAITING, ITEM_DONE, ITEM_FAILED };
struct redis_item {
    char name[NAME_BYTES];
    uint16_t slot, node;
    uint8_t hops; /* redirections so far */
    bool asking;  /* the next request is preceded by ASKING */
    enum item_state state;
    enum redis_error error; /* if a reply was one */
};
void item_init(struct redis_nodes *ns, struct redis_item *item); /* its name is set */
/* What is done with items: put sends the command of item i (wire_command, wire_send); take reads
 * its reply, whose first line is given. */
struct redis_command {
    uint32_t window; /* so many replies of a node are awaited at a time */
    bool (*put)(void *user, uint32_t i, const struct redis_item *item, struct redis_wire *w);
    bool (*take)(void *user, uint32_t i, const struct redis_item *item, struct redis_wire *w,
                 const char *line);
    void *user;
};
/* To all nodes at once, and again where a node sends us elsewhere. Then every item is done or has
 * failed. */
void redis_exchange(struct redis_nodes *ns, const struct redis_command *c, struct redis_item *items,
                    uint32_t n, double deadline);
/* The number of ":123"; false: it is none. */
bool line_number(const char *line, char type, int64_t *out);

/* ---- the tier -------------------------------------------------------------------------------- */

struct redis_tier {
    struct tier base;
    struct redis_nodes nodes;
    struct redis_seal seal;
    uint32_t ttl_seconds;
    uint64_t root_limit;
    pthread_mutex_t mutex; /* guards what follows; a leaf */
    struct tier_stats stats;
    bool forget_failed; /* the last one did, and a line says so */
};
/* tier_redis_forget.c */
/* How many were there. Items that have failed say so. */
uint64_t redis_unlink(struct redis_nodes *ns, struct redis_item *items, uint32_t n,
                      double deadline);
bool redis_forget(struct tier *t, struct tier_key context, const struct tier_key *roots, uint32_t n,
                  const atomic_bool *stop);
/* Whether the root may have more; then what was stored is added. */
bool root_has_room(struct redis_tier *t, const struct tier_place *place);
void root_add(struct redis_tier *t, const struct tier_place *place, uint64_t bytes);

#endif
