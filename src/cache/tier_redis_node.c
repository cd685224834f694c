/* SPDX-License-Identifier: Apache-2.0 */
/* tier_redis_node.c: the nodes of a shared tier, their connections and breakers, and which node has
 * which slot of a cluster (tier_redis.h).
 *
 * Node 0 is the one of the URL. Others are learned from redirections and from CLUSTER SLOTS, which
 * is asked after the first, and of another node after one of a cluster has failed. Nodes are never
 * removed, as a table of 64 does no harm. Before anything is learned all slots are node 0's, so a
 * single server is a cluster that never redirects.
 *
 *   breaker    closed --3 failures in a row--> open for 1 s, then 2, 4 ... 60 s (+- 25 %)
 *              open   --time is over--> one call tries; all others do without the node meanwhile
 *              trial  --success--> closed      --failure--> open, twice as long
 *
 * A failure is a connection that was not made or broke, nonsense, and a time-out. A time-out at the
 * caller's deadline while bytes were coming in is none: the caller was in a hurry.
 *
 * Any thread calls this. The mutex guards the table; it is free while a connection is made or used.
 * A thread that holds several connections took them in rising order of their nodes, so that two
 * threads never wait for each other.
 *
 * Invariants
 *   open counts all connections of a node, in use, idle or being made: at most `connections`.
 *   trial is set exactly while one thread that nodes_take let through an open breaker has not come
 *   back to nodes_give.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cache/tier_redis.h"

enum { FAILURES_MOST = 3 };
static const double PAUSE_FIRST = 1, PAUSE_MOST = 60; /* seconds */
static const double SECONDS_LEAST = 0.002;            /* with less, nothing is begun */

/* ---- what is logged -------------------------------------------------------------------------- */

void nodes_complain(struct redis_nodes *ns, uint32_t kind, const char *format, ...) {
    char line[400];
    va_list args;
    ASSERT(kind < 64);
    if (kind != COMPLAINT_ALWAYS) {
        pthread_mutex_lock(&ns->mutex);
        const bool said = ns->said >> kind & 1;
        ns->said |= (uint64_t)1 << kind;
        pthread_mutex_unlock(&ns->mutex);
        if (said)
            return;
    }
    if (!ns->complain)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < ' ' || (unsigned char)*c >= 127)
            *c = '?';
    if (ns->url.password[0] && strstr(line, ns->url.password))
        snprintf(line, sizeof line, "remote cache: the server sent our password in an error");
    ns->complain(ns->user, line);
}

enum redis_error redis_error_of(const char *line) {
    static const char *const node_errors[] = {"LOADING", "NOAUTH",      "WRONGPASS",
                                              "BUSY",    "CLUSTERDOWN", "MASTERDOWN"};
    if (line[0] != '-')
        return REDIS_ERROR_NONE;
    const size_t len = strcspn(line + 1, " \t");
    if (len == 9 && memcmp(line + 1, "WRONGTYPE", 9) == 0)
        return REDIS_ERROR_TYPE;
    for (size_t i = 0; i < sizeof node_errors / sizeof *node_errors; i++)
        if (strlen(node_errors[i]) == len && memcmp(line + 1, node_errors[i], len) == 0)
            return REDIS_ERROR_NODE;
    return REDIS_ERROR_OTHER;
}

void nodes_complain_error(struct redis_nodes *ns, uint32_t node, const char *line) {
    const uint64_t hash = hash_fnv1a(line + 1, strcspn(line + 1, " \t"));
    const struct redis_address *at = &ns->list[node]->address;
    nodes_complain(ns, COMPLAINT_ERRORS + (uint32_t)(hash % (64 - COMPLAINT_ERRORS)),
                   "remote cache %s:%u answers with an error (said once of its kind): %.200s",
                   at->host, at->port, line + 1);
}

/* ---- breakers -------------------------------------------------------------------------------- */

/* A time between 3/4 and 5/4 of it, so that servers do not come back all at once. */
static double jitter(double seconds) {
    return seconds * (0.75 + 0.5 * (randombytes_random() / 4294967296.0));
}

/* A connection could not be made or has failed. Called with the mutex; true: the breaker opened. */
static bool note_failure(struct redis_node *node, bool trial) {
    node->failures++;
    if (trial)
        node->trial = false;
    if (node->pause > 0 ? !trial : node->failures < FAILURES_MOST)
        return false;
    const bool opened = node->pause == 0;
    node->pause = opened ? PAUSE_FIRST : fmin(2 * node->pause, PAUSE_MOST);
    node->until = clock_seconds() + jitter(node->pause);
    return opened;
}

static void say_open(struct redis_nodes *ns, const struct redis_node *node, const char *why) {
    nodes_complain(ns, COMPLAINT_ALWAYS,
                   "remote cache %s:%u does not work (%s); going on without it, trying again from "
                   "time to time",
                   node->address.host, node->address.port, why);
}

bool nodes_down(struct redis_nodes *ns) {
    bool down = true;
    pthread_mutex_lock(&ns->mutex);
    for (uint32_t i = 0; i < ns->n; i++)
        down = down && ns->list[i]->pause > 0;
    pthread_mutex_unlock(&ns->mutex);
    return down;
}

/* ---- connections ----------------------------------------------------------------------------- */

static double earlier(const struct redis_nodes *ns, double deadline) {
    const double limit = clock_seconds() + ns->exchange_seconds;
    return deadline > 0 ? fmin(deadline, limit) : limit;
}

void nodes_hurry(const struct redis_nodes *ns, struct redis_wire *w, double deadline) {
    w->deadline = earlier(ns, deadline);
    w->hurried = w->deadline == deadline;
}

static struct timespec timespec_of(double seconds) {
    return (struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)(fmod(seconds, 1) * 1e9)};
}

/* An idle connection that is still good, or NULL. With the mutex. */
static struct redis_wire *take_idle(struct redis_node *node) {
    while (node->idle) {
        struct redis_wire *w = node->idle;
        node->idle = w->next;
        if (wire_is_quiet(w))
            return w;
        wire_close(w);
        node->open--;
    }
    return NULL;
}

/* Waits until the node has an idle connection or room for another. False: neither, or the breaker
 * is open. With the mutex. */
static bool may_take(struct redis_nodes *ns, struct redis_node *node, double deadline,
                     struct redis_wire **idle, bool *trial) {
    const struct timespec until = timespec_of(deadline);
    for (;;) {
        *trial = node->pause > 0;
        if (*trial && (node->trial || clock_seconds() < node->until))
            return false;
        *idle = take_idle(node);
        if (*idle || node->open < ns->connections)
            break;
        if (pthread_cond_timedwait(&ns->freed, &ns->mutex, &until) != 0)
            return false;
    }
    node->trial |= *trial;
    node->open += !*idle;
    return true;
}

struct redis_wire *nodes_take(struct redis_nodes *ns, uint32_t index, double deadline) {
    struct redis_node *node = ns->list[index];
    struct redis_wire *w = NULL;
    char why[128];
    bool trial, opened = false;
    deadline = earlier(ns, deadline);
    if (deadline - clock_seconds() < SECONDS_LEAST)
        return NULL;
    pthread_mutex_lock(&ns->mutex);
    const bool may = may_take(ns, node, deadline, &w, &trial);
    pthread_mutex_unlock(&ns->mutex);
    if (!may)
        return NULL;
    if (!w) {
        w = wire_open(&node->address, &ns->url, deadline, ns->connect_seconds, why);
        if (!w) {
            pthread_mutex_lock(&ns->mutex);
            node->open--;
            opened = note_failure(node, trial);
            pthread_cond_broadcast(&ns->freed);
            pthread_mutex_unlock(&ns->mutex);
            if (opened)
                say_open(ns, node, why);
            return NULL;
        }
    }
    w->node = index;
    w->trial = trial;
    w->heard = false;
    return w;
}

/* A connection will be closed, and with it the idle ones, which may have the same fault without
 * showing it. With the mutex; they are linked by `next`. */
static void take_out(struct redis_node *node, struct redis_wire *w, bool alone) {
    w->next = alone ? NULL : node->idle;
    if (!alone)
        node->idle = NULL;
    for (; w; w = w->next) {
        ASSERT(node->open > 0);
        node->open--;
    }
}

void nodes_give(struct redis_nodes *ns, struct redis_wire *w) {
    struct redis_node *node = ns->list[w->node];
    bool opened = false, closed = false;
    /* The caller's own deadline is nobody's fault while the server does answer. */
    const bool excused = w->state == WIRE_LATE && w->heard && w->hurried;
    const bool good = w->state == WIRE_GOOD;
    pthread_mutex_lock(&ns->mutex);
    if (good) {
        closed = node->pause > 0;
        node->failures = 0;
        node->pause = 0;
    }
    if (good || excused)
        node->trial &= !w->trial;
    else
        opened = note_failure(node, w->trial);
    if (good) {
        w->next = node->idle;
        node->idle = w;
    } else {
        take_out(node, w, excused);
    }
    pthread_cond_broadcast(&ns->freed);
    pthread_mutex_unlock(&ns->mutex);
    if (opened)
        say_open(ns, node, w->why);
    if (closed)
        nodes_complain(ns, COMPLAINT_ALWAYS, "remote cache %s:%u works again", node->address.host,
                       node->address.port);
    for (struct redis_wire *next; !good && w; w = next) {
        next = w->next;
        wire_close(w);
    }
}

/* ---- slots and redirections ------------------------------------------------------------------ */

uint32_t nodes_of_slot(struct redis_nodes *ns, uint32_t slot) {
    ASSERT(slot < SLOTS);
    pthread_mutex_lock(&ns->mutex);
    const uint32_t node = ns->slot_node[slot];
    pthread_mutex_unlock(&ns->mutex);
    return node;
}

/* The node of an address, which may be new. With the mutex. NO_NODE: there are too many. */
static uint32_t node_at(struct redis_nodes *ns, const struct redis_address *at) {
    for (uint32_t i = 0; i < ns->n; i++)
        if (ns->list[i]->address.port == at->port &&
            strcasecmp(ns->list[i]->address.host, at->host) == 0)
            return i;
    struct redis_node *node = ns->n < NODES_MAX ? mem_calloc(1, sizeof *node) : NULL;
    if (!node)
        return NO_NODE;
    node->address = *at;
    ns->list[ns->n] = node;
    return ns->n++;
}

static void set_slot(struct redis_nodes *ns, uint32_t slot, uint32_t node) {
    ns->changes += ns->slot_node[slot] != node;
    ns->slot_node[slot] = (uint16_t)node;
}

/* Reads "123" up to a blank. */
static bool read_number(const char **at, uint32_t most, uint32_t *out) {
    char *end;
    if (**at < '0' || **at > '9')
        return false;
    const unsigned long n = strtoul(*at, &end, 10);
    *at = end;
    *out = (uint32_t)n;
    return n <= most;
}

bool nodes_redirect(struct redis_nodes *ns, uint32_t from, const char *line, uint32_t *to,
                    bool *asking) {
    const bool moved = strncmp(line, "-MOVED ", 7) == 0;
    struct redis_address at = {0};
    uint32_t slot, port;
    if (!moved && strncmp(line, "-ASK ", 5) != 0)
        return false;
    line += moved ? 7 : 5;
    if (!read_number(&line, SLOTS - 1, &slot) || *line++ != ' ')
        return false;
    const char *colon = strrchr(line, ':');
    if (!colon || (size_t)(colon - line) >= sizeof at.host)
        return false;
    memcpy(at.host, line, (size_t)(colon - line));
    colon++;
    if (!read_number(&colon, UINT16_MAX, &port) || *colon != 0 || port == 0)
        return false;
    at.port = (uint16_t)port;
    pthread_mutex_lock(&ns->mutex);
    if (!at.host[0]) /* a node that does not know its name: the host that was asked */
        memcpy(at.host, ns->list[from]->address.host, sizeof at.host);
    *to = node_at(ns, &at);
    if (moved && *to != NO_NODE) {
        set_slot(ns, slot, *to);
        ns->moved = true;
    }
    pthread_mutex_unlock(&ns->mutex);
    *asking = !moved;
    return *to != NO_NODE;
}

static bool is_number(const redisReply *r, long long most) {
    return r->type == REDIS_REPLY_INTEGER && r->integer >= 0 && r->integer <= most;
}

/* One range of CLUSTER SLOTS: first, last, [host, port ...] of the master, replicas. */
static void learn_range(struct redis_nodes *ns, uint32_t from, const redisReply *range) {
    if (range->type != REDIS_REPLY_ARRAY || range->elements < 3)
        return;
    const redisReply *first = range->element[0], *last = range->element[1],
                     *master = range->element[2];
    if (!is_number(first, SLOTS - 1) || !is_number(last, SLOTS - 1) ||
        master->type != REDIS_REPLY_ARRAY || master->elements < 2 ||
        !is_number(master->element[1], UINT16_MAX) || master->element[1]->integer == 0)
        return;
    const redisReply *host = master->element[0];
    struct redis_address at = {.port = (uint16_t)master->element[1]->integer};
    if (host->type == REDIS_REPLY_STRING && host->len < sizeof at.host)
        memcpy(at.host, host->str, host->len);
    if (!at.host[0])
        memcpy(at.host, ns->list[from]->address.host, sizeof at.host);
    const uint32_t node = node_at(ns, &at);
    if (node == NO_NODE)
        return;
    for (long long slot = first->integer; slot <= last->integer; slot++)
        set_slot(ns, (uint32_t)slot, node);
}

bool nodes_learn(struct redis_nodes *ns, uint32_t node, double deadline, bool *failed) {
    static const struct redis_arg args[] = {{"CLUSTER", 7}, {"SLOTS", 5}};
    struct redis_wire *w = nodes_take(ns, node, deadline);
    bool cluster = false;
    *failed = true;
    if (!w)
        return false;
    nodes_hurry(ns, w, deadline);
    redisReply *reply = wire_command(w, args, 2) && wire_flush(w) ? wire_reply(w) : NULL;
    if (reply && reply->type == REDIS_REPLY_ARRAY) {
        cluster = true;
        pthread_mutex_lock(&ns->mutex);
        for (size_t i = 0; i < reply->elements; i++)
            learn_range(ns, node, reply->element[i]);
        ns->moved = false;
        ns->learned = clock_seconds();
        pthread_mutex_unlock(&ns->mutex);
    }
    /* "ERR This instance has cluster support disabled" */
    *failed = !reply || (reply->type != REDIS_REPLY_ARRAY &&
                         (reply->type != REDIS_REPLY_ERROR || strncmp(reply->str, "ERR ", 4) != 0));
    freeReplyObject(reply);
    nodes_give(ns, w);
    return cluster;
}

/* With the mutex: a node that works and has slots as far as we know; NO_NODE: none but `failed`. */
static uint32_t other_master(const struct redis_nodes *ns, uint32_t failed) {
    uint32_t slot = 0;
    while (slot < SLOTS &&
           (ns->slot_node[slot] == failed || ns->list[ns->slot_node[slot]]->pause > 0))
        slot++;
    return slot < SLOTS ? ns->slot_node[slot] : NO_NODE;
}

void nodes_learn_elsewhere(struct redis_nodes *ns, uint32_t failed, double deadline) {
    bool unanswered;
    uint32_t node = NO_NODE;
    pthread_mutex_lock(&ns->mutex);
    const double now = clock_seconds();
    if (ns->learned > 0 && now > ns->asked + 1 && now > ns->learned + 1)
        node = other_master(ns, failed);
    if (node != NO_NODE)
        ns->asked = now; /* this thread does it */
    pthread_mutex_unlock(&ns->mutex);
    if (node != NO_NODE)
        (void)nodes_learn(ns, node, deadline, &unanswered);
}

/* ---- life ------------------------------------------------------------------------------------ */

uint64_t nodes_bytes(struct redis_nodes *ns) {
    uint64_t bytes = 0;
    pthread_mutex_lock(&ns->mutex);
    for (uint32_t i = 0; i < ns->n; i++)
        bytes += sizeof(struct redis_node) + ns->list[i]->open * sizeof(struct redis_wire);
    pthread_mutex_unlock(&ns->mutex);
    return bytes;
}

kvasir_status nodes_init(struct redis_nodes *ns, const struct tier_redis_options *o,
                         kvasir_error *err) {
    *ns = (struct redis_nodes){.connect_seconds = o->connect_seconds,
                               .exchange_seconds = o->exchange_seconds,
                               .connections = max_u32(o->connections, 1),
                               .complain = o->complain,
                               .user = o->user};
    TRY(redis_url_parse(o->url, &ns->url, err));
    struct redis_node *first = mem_calloc(1, sizeof *first);
    if (!first)
        return fail(err, KVASIR_ERR_MEMORY, "remote cache: out of memory");
    first->address = ns->url.address;
    ns->list[ns->n++] = first;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&ns->freed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&ns->mutex, NULL);
    return KVASIR_OK;
}

void nodes_deinit(struct redis_nodes *ns) {
    for (uint32_t i = 0; i < ns->n; i++) {
        struct redis_node *node = ns->list[i];
        for (struct redis_wire *w = node->idle, *next; w; w = next) {
            next = w->next;
            wire_close(w);
            node->open--;
        }
        ASSERT(node->open == 0); /* nobody is in the tier */
        mem_free(node);
    }
    pthread_cond_destroy(&ns->freed);
    pthread_mutex_destroy(&ns->mutex);
    sodium_memzero(&ns->url, sizeof ns->url);
}
