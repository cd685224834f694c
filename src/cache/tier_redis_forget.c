/* SPDX-License-Identifier: Apache-2.0 */
/* tier_redis_forget.c: removing what a tenant has in a shared tier, and bounding it (tier_redis.h).
 *
 *   forget   the table of slots is read, then on every node SCAN with the prefix of the names, and
 *            UNLINK of what it finds. Several roots take one SCAN, of all names of the context.
 *            What is there when it begins and stays is found (SCAN guarantees it for a node); if a
 *            slot moved meanwhile, all is done again. Who writes meanwhile is not stopped.
 *   limit    kvasir:CONTEXT:ROOT:bytes counts what was stored since it began. A root whose counter
 *            has reached the limit gets no more. The counter lives as long as the last record, so
 *            it is never less than what the root has; it starts anew once all of it has expired or
 *            was forgotten. Without a TTL that is when it is forgotten. Servers that write at the
 *            same moment may each exceed the limit by one record.
 *
 * Runs on the caller's thread. A forget takes as long as the store is large: each exchange has its
 * time-out, and the whole FORGET_SECONDS; it ends before that if it is to stop.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/tier_redis.h"

enum { UNLINK_WINDOW = 512, UNLINK_AT_ONCE = 1024, FORGET_PASSES = 3 };
static const double FORGET_SECONDS = 600;

/* ---- UNLINK ---------------------------------------------------------------------------------- */

static bool put_unlink(void *user, uint32_t i, const struct redis_item *item,
                       struct redis_wire *w) {
    const struct redis_arg args[] = {{"UNLINK", 6}, {item->name, strlen(item->name)}};
    (void)user;
    (void)i;
    return wire_command(w, args, 2);
}

static bool take_unlink(void *user, uint32_t i, const struct redis_item *item, struct redis_wire *w,
                        const char *line) {
    uint64_t *gone = user;
    int64_t n;
    (void)i;
    (void)item;
    (void)w;
    if (!line_number(line, ':', &n) || n < 0 || n > 1)
        return false;
    *gone += (uint64_t)n;
    return true;
}

uint64_t redis_unlink(struct redis_nodes *ns, struct redis_item *items, uint32_t n,
                      double deadline) {
    uint64_t gone = 0;
    const struct redis_command command = {
        .window = UNLINK_WINDOW, .put = put_unlink, .take = take_unlink, .user = &gone};
    redis_exchange(ns, &command, items, n, deadline);
    return gone;
}

/* ---- forget ---------------------------------------------------------------------------------- */

struct forgetting {
    struct redis_nodes *nodes;
    char pattern[NAME_BYTES];     /* what all the names begin with */
    char (*prefixes)[NAME_BYTES]; /* [n_prefixes] of roots, in order; none: the pattern will do */
    uint32_t n_prefixes;
    double deadline;
    const atomic_bool *stop;  /* or NULL */
    struct redis_item *items; /* [UNLINK_AT_ONCE] */
    uint32_t n;
    uint64_t gone;
    bool failed, again; /* again: a slot moved */
};

static bool is_stopped(const struct forgetting *f) {
    return f->stop && atomic_load(f->stop);
}

static void unlink_found(struct forgetting *f) {
    /* twice the time of an exchange: a server that is slow with each reply holds up no more */
    const double deadline = clock_seconds() + 2 * f->nodes->exchange_seconds;
    f->gone += redis_unlink(f->nodes, f->items, f->n, deadline);
    for (uint32_t i = 0; i < f->n; i++) {
        f->failed |= f->items[i].state == ITEM_FAILED;
        f->again |= f->items[i].hops > 0;
    }
    f->n = 0;
}

/* A name against a prefix, which ends with the root's colon. */
static int order_prefix(const void *name, const void *prefix) {
    return strncmp(name, prefix, strlen(prefix));
}

static int order(const void *a, const void *b) {
    return strcmp(a, b);
}

/* Names of ours only, whatever else a server finds. */
static bool is_meant(const struct forgetting *f, const redisReply *name) {
    const size_t len = strlen(f->pattern);
    return name->type == REDIS_REPLY_STRING && name->len < NAME_BYTES && name->len > len &&
           memcmp(name->str, f->pattern, len) == 0 && strlen(name->str) == name->len &&
           (f->n_prefixes == 0 || bsearch(name->str, f->prefixes, f->n_prefixes,
                                          sizeof *f->prefixes, order_prefix) != NULL);
}

static void unlink_name(struct forgetting *f, const redisReply *name) {
    if (!is_meant(f, name))
        return;
    struct redis_item *item = &f->items[f->n++];
    memcpy(item->name, name->str, name->len + 1);
    item_init(f->nodes, item);
    if (f->n == UNLINK_AT_ONCE)
        unlink_found(f);
}

/* One SCAN; *cursor becomes the next. The connection is given back before names are removed, which
 * may need it. */
static redisReply *scan(struct forgetting *f, uint32_t node, const char *cursor) {
    char pattern[NAME_BYTES + 1];
    const size_t len = (size_t)snprintf(pattern, sizeof pattern, "%s*", f->pattern);
    const struct redis_arg args[] = {{"SCAN", 4},  {cursor, strlen(cursor)},
                                     {"MATCH", 5}, {pattern, len},
                                     {"COUNT", 5}, {"500", 3}};
    struct redis_wire *w = nodes_take(f->nodes, node, f->deadline);
    if (!w)
        return NULL;
    nodes_hurry(f->nodes, w, f->deadline);
    redisReply *reply = wire_command(w, args, 6) && wire_flush(w) ? wire_reply(w) : NULL;
    const bool good = reply && reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
                      reply->element[0]->type == REDIS_REPLY_STRING &&
                      reply->element[1]->type == REDIS_REPLY_ARRAY;
    if (reply && !good && reply->type != REDIS_REPLY_ERROR)
        wire_fail(w, WIRE_NONSENSE, "an answer to something else");
    nodes_give(f->nodes, w);
    if (good)
        return reply;
    freeReplyObject(reply);
    return NULL;
}

static void forget_on(struct forgetting *f, uint32_t node) {
    char cursor[32] = "0";
    do {
        redisReply *reply = is_stopped(f) ? NULL : scan(f, node, cursor);
        if (!reply || reply->element[0]->len >= sizeof cursor) {
            f->failed = true;
            freeReplyObject(reply);
            return;
        }
        snprintf(cursor, sizeof cursor, "%s", reply->element[0]->str);
        const redisReply *names = reply->element[1];
        for (size_t i = 0; i < names->elements; i++)
            unlink_name(f, names->element[i]);
        freeReplyObject(reply);
        unlink_found(f);
    } while (strcmp(cursor, "0") != 0);
}

/* The nodes that have slots, as they are now. False: nobody can say. */
static bool nodes_with_slots(struct forgetting *f, bool has[NODES_MAX]) {
    bool failed = true, cluster = false;
    memset(has, 0, NODES_MAX * sizeof *has);
    pthread_mutex_lock(&f->nodes->mutex);
    const uint32_t n = f->nodes->n;
    pthread_mutex_unlock(&f->nodes->mutex);
    for (uint32_t node = 0; node < n && failed && !cluster && !is_stopped(f); node++)
        cluster = nodes_learn(f->nodes, node, f->deadline, &failed);
    pthread_mutex_lock(&f->nodes->mutex);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        has[f->nodes->slot_node[slot]] = true;
    pthread_mutex_unlock(&f->nodes->mutex);
    return !failed;
}

static uint64_t slot_changes(struct redis_nodes *ns) {
    pthread_mutex_lock(&ns->mutex);
    const uint64_t changes = ns->changes;
    pthread_mutex_unlock(&ns->mutex);
    return changes;
}

/* All nodes once. */
static void forget_pass(struct forgetting *f) {
    bool has[NODES_MAX];
    f->again = false;
    f->failed = !nodes_with_slots(f, has);
    const uint64_t changes = slot_changes(f->nodes);
    for (uint32_t node = 0; node < NODES_MAX && !f->failed; node++)
        if (has[node])
            forget_on(f, node);
    f->failed = f->failed || !nodes_with_slots(f, has);
    f->again |= slot_changes(f->nodes) != changes;
}

/* One line when the store begins to fail, one when it has forgotten. */
static void note_forgotten(struct redis_tier *t, bool good, uint64_t gone) {
    const struct redis_address *at = &t->nodes.url.address;
    pthread_mutex_lock(&t->mutex);
    const bool changes = t->forget_failed == good;
    t->forget_failed = !good;
    t->stats.dropped += gone;
    pthread_mutex_unlock(&t->mutex);
    if (changes && good)
        nodes_complain(&t->nodes, COMPLAINT_ALWAYS,
                       "remote cache %s:%u has forgotten now what it was told to", at->host,
                       at->port);
    else if (changes)
        nodes_complain(&t->nodes, COMPLAINT_ALWAYS,
                       "remote cache %s:%u may not have forgotten all that it was told to; it is "
                       "told again until it has, as long as this process runs",
                       at->host, at->port);
}

/* What the names begin with. False: out of memory. */
static bool set_prefixes(struct forgetting *f, const struct redis_seal *seal,
                         struct tier_key context, const struct tier_key *roots, uint32_t n) {
    seal_prefix(seal, context, n == 1 ? roots : NULL, f->pattern);
    if (n <= 1)
        return true;
    f->prefixes = mem_alloc(n * sizeof *f->prefixes);
    for (; f->prefixes && f->n_prefixes < n; f->n_prefixes++)
        seal_prefix(seal, context, &roots[f->n_prefixes], f->prefixes[f->n_prefixes]);
    qsort(f->prefixes, f->n_prefixes, sizeof *f->prefixes, order);
    return f->prefixes != NULL;
}

bool redis_forget(struct tier *base, struct tier_key context, const struct tier_key *roots,
                  uint32_t n, const atomic_bool *stop) {
    struct redis_tier *t = (struct redis_tier *)base;
    struct forgetting f = {.nodes = &t->nodes,
                           .deadline = clock_seconds() + FORGET_SECONDS,
                           .stop = stop,
                           .items = mem_alloc(UNLINK_AT_ONCE * sizeof *f.items),
                           .again = true};
    f.failed = !set_prefixes(&f, &t->seal, context, roots, n) || !f.items;
    for (int pass = 0; pass < FORGET_PASSES && f.again && !f.failed; pass++)
        forget_pass(&f);
    mem_free(f.prefixes);
    mem_free(f.items);
    const bool good = !f.failed && !f.again;
    if (good || !is_stopped(&f)) /* whoever stops says what is left */
        note_forgotten(t, good, f.gone);
    return good;
}

/* ---- the limit of a root --------------------------------------------------------------------- */

struct counting {
    int64_t add;
    uint32_t ttl_seconds;
    int64_t value; /* of the counter */
};

static void counter_item(struct redis_tier *t, const struct tier_place *place,
                         struct redis_item *item) {
    seal_prefix(&t->seal, place->context, &place->root, item->name);
    const size_t len = strlen(item->name);
    ASSERT(len + sizeof "bytes" <= sizeof item->name);
    memcpy(item->name + len, "bytes", sizeof "bytes");
    item_init(&t->nodes, item);
}

static bool put_counter(void *user, uint32_t i, const struct redis_item *item,
                        struct redis_wire *w) {
    const struct counting *x = user;
    char number[24];
    const struct redis_arg name = {item->name, strlen(item->name)};
    if (x->add == 0)
        return wire_command(w, (struct redis_arg[]){{"GET", 3}, name}, 2);
    const int64_t value = i == 0 ? x->add : (int64_t)x->ttl_seconds;
    const size_t len = (size_t)snprintf(number, sizeof number, "%" PRId64, value);
    const struct redis_arg verb =
        i == 0 ? (struct redis_arg){"INCRBY", 6} : (struct redis_arg){"EXPIRE", 6};
    return wire_command(w, (struct redis_arg[]){verb, name, {number, len}}, 3);
}

static bool take_counter(void *user, uint32_t i, const struct redis_item *item,
                         struct redis_wire *w, const char *line) {
    struct counting *x = user;
    int64_t n;
    char text[32] = ":";
    (void)i;
    (void)item;
    if (x->add != 0)
        return line_number(line, ':', &n);
    if (!line_number(line, '$', &n) || n < -1 || n > 20)
        return false;
    if (n < 0)
        return true;
    if (!wire_bytes(w, text + 1, (size_t)n) || !wire_line_end(w))
        return false;
    text[1 + n] = 0;
    return line_number(text, ':', &x->value);
}

bool root_has_room(struct redis_tier *t, const struct tier_place *place) {
    struct counting x = {.add = 0};
    struct redis_item item;
    const struct redis_command command = {
        .window = 1, .put = put_counter, .take = take_counter, .user = &x};
    if (t->root_limit == 0)
        return true;
    counter_item(t, place, &item);
    redis_exchange(&t->nodes, &command, &item, 1, 0);
    return item.state == ITEM_DONE && x.value >= 0 && (uint64_t)x.value < t->root_limit;
}

void root_add(struct redis_tier *t, const struct tier_place *place, uint64_t bytes) {
    struct counting x = {.add = (int64_t)bytes, .ttl_seconds = t->ttl_seconds};
    struct redis_item items[2];
    const struct redis_command command = {
        .window = 2, .put = put_counter, .take = take_counter, .user = &x};
    if (t->root_limit == 0)
        return;
    counter_item(t, place, &items[0]);
    items[1] = items[0];
    redis_exchange(&t->nodes, &command, items, t->ttl_seconds ? 2 : 1, 0);
}
