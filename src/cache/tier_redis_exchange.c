/* SPDX-License-Identifier: Apache-2.0 */
/* tier_redis_exchange.c: one command on each of many keys, in pipelines (tier_redis.h).
 *
 * A round sends to every node that has items first, then reads the replies node by node, so that
 * all nodes work at once and a lookup is one round trip however many there are. A window bounds the
 * replies that are awaited of a node; the next commands are sent when half of it has come.
 *
 * A MOVED or ASK puts the item into the next round, at most HOPS_MAX times. After a MOVED the whole
 * table of slots is read again, at most once a second; so it is after a node has failed, which
 * sends no MOVED, from another one.
 *
 * Time: each reply must be complete exchange_seconds after the one before it, and all of it by the
 * caller's deadline. Items whose replies did not come have failed; those before them have not.
 *
 * Runs on the caller's thread and keeps nothing.
 */
#include <stdlib.h>
#include <string.h>

#include "cache/tier_redis.h"

/* CRC-16/XMODEM, by which a cluster assigns keys to slots. Names have no hash tag. */
static uint16_t crc16(const char *text) {
    uint32_t crc = 0;
    for (; *text; text++) {
        crc ^= (uint32_t)(unsigned char)*text << 8;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1;
    }
    return (uint16_t)crc;
}

void item_init(struct redis_nodes *ns, struct redis_item *item) {
    item->slot = crc16(item->name) % SLOTS;
    item->node = (uint16_t)nodes_of_slot(ns, item->slot);
    item->hops = 0;
    item->asking = false;
    item->state = ITEM_WAITING;
    item->error = REDIS_ERROR_NONE;
}

bool line_number(const char *line, char type, int64_t *out) {
    char *end;
    if (line[0] != type || !(line[1] == '-' || (line[1] >= '0' && line[1] <= '9')))
        return false;
    *out = strtoll(line + 1, &end, 10);
    return *end == 0 && end > line + 1;
}

struct exchange {
    struct redis_nodes *nodes;
    const struct redis_command *command;
    struct redis_item *items; /* [n] */
    uint32_t n;
    double deadline;
    uint8_t round;
    uint32_t failed; /* a node that did; NO_NODE: none */
};

/* A node's share of a round. */
struct lane {
    struct redis_wire *wire;
    uint32_t node;
    uint32_t put;     /* items before this one were sent */
    uint32_t awaited; /* replies */
};

/* The first item at or after i that the node is asked for in this round; n: none. */
static uint32_t next_item(const struct exchange *x, uint32_t node, uint32_t i) {
    while (i < x->n && (x->items[i].state != ITEM_WAITING || x->items[i].hops != x->round ||
                        x->items[i].node != node))
        i++;
    return i;
}

static bool send_window(const struct exchange *x, struct lane *lane) {
    static const struct redis_arg asking = {"ASKING", 6};
    bool good = true;
    while (good && lane->awaited < x->command->window) {
        const uint32_t i = next_item(x, lane->node, lane->put);
        if (i == x->n)
            break;
        good = (!x->items[i].asking || wire_command(lane->wire, &asking, 1)) &&
               x->command->put(x->command->user, i, &x->items[i], lane->wire);
        lane->put = i + 1;
        lane->awaited++;
    }
    return good && wire_flush(lane->wire);
}

/* An error is not taken as a reply. The item waits for the next round, or it has failed. */
static void settle_error(const struct exchange *x, const struct lane *lane, struct redis_item *item,
                         const char *line) {
    uint32_t to;
    bool asking;
    if (item->hops < HOPS_MAX && nodes_redirect(x->nodes, lane->node, line, &to, &asking)) {
        item->node = (uint16_t)to;
        item->asking = asking;
        item->hops++;
        return;
    }
    item->state = ITEM_FAILED;
    item->error = redis_error_of(line);
    nodes_complain_error(x->nodes, lane->node, line);
    if (item->error == REDIS_ERROR_NODE)
        wire_fail(lane->wire, WIRE_LOST, line + 1); /* its breaker shall know */
}

static bool receive_one(const struct exchange *x, struct lane *lane, uint32_t i) {
    struct redis_item *item = &x->items[i];
    char line[WIRE_LINE_BYTES];
    nodes_hurry(x->nodes, lane->wire, x->deadline);
    if (!wire_line(lane->wire, line) || (item->asking && !wire_line(lane->wire, line)))
        return false;
    lane->awaited--;
    if (line[0] == '-') {
        settle_error(x, lane, item, line);
        return lane->wire->state == WIRE_GOOD;
    }
    if (!x->command->take(x->command->user, i, item, lane->wire, line))
        return wire_fail(lane->wire, WIRE_NONSENSE, "an answer to something else");
    item->state = ITEM_DONE;
    return true;
}

static void fail_rest(const struct exchange *x, uint32_t node) {
    for (uint32_t i = next_item(x, node, 0); i < x->n; i = next_item(x, node, i + 1))
        x->items[i].state = ITEM_FAILED;
}

static void drain(struct exchange *x, struct lane *lane) {
    bool good = lane->wire->state == WIRE_GOOD;
    for (uint32_t i = next_item(x, lane->node, 0); good && i < x->n;
         i = next_item(x, lane->node, i + 1)) {
        good = receive_one(x, lane, i);
        if (good && lane->awaited <= x->command->window / 2)
            good = send_window(x, lane);
    }
    fail_rest(x, lane->node); /* none is left if all went well */
    if (lane->wire->state != WIRE_GOOD)
        x->failed = lane->node;
    nodes_give(x->nodes, lane->wire);
}

/* All nodes once. False: nothing is left to do. */
static bool run_round(struct exchange *x) {
    struct lane lanes[NODES_MAX];
    uint32_t n = 0;
    for (uint32_t node = 0; node < NODES_MAX; node++) { /* in rising order: tier_redis_node.c */
        if (next_item(x, node, 0) == x->n)
            continue;
        struct lane *lane = &lanes[n];
        *lane = (struct lane){.wire = nodes_take(x->nodes, node, x->deadline), .node = node};
        if (!lane->wire) {
            fail_rest(x, node);
            x->failed = node;
            continue;
        }
        nodes_hurry(x->nodes, lane->wire, x->deadline);
        send_window(x, lane);
        n++;
    }
    for (uint32_t i = 0; i < n; i++)
        drain(x, &lanes[i]);
    for (uint32_t i = 0; i < x->n; i++)
        if (x->items[i].state == ITEM_WAITING)
            return true;
    return false;
}

/* The whole table, from a node that has just answered. */
static void learn_if_moved(const struct exchange *x, uint32_t node) {
    bool failed;
    pthread_mutex_lock(&x->nodes->mutex);
    const bool old = x->nodes->moved && clock_seconds() > x->nodes->learned + 1;
    if (old)
        x->nodes->moved = false; /* this thread does it */
    pthread_mutex_unlock(&x->nodes->mutex);
    if (old)
        nodes_learn(x->nodes, node, x->deadline, &failed);
}

void redis_exchange(struct redis_nodes *ns, const struct redis_command *c, struct redis_item *items,
                    uint32_t n, double deadline) {
    struct exchange x = {
        .nodes = ns, .command = c, .items = items, .n = n, .deadline = deadline, .failed = NO_NODE};
    bool more = n > 0;
    for (; more && x.round <= HOPS_MAX; x.round++)
        more = run_round(&x);
    for (uint32_t i = 0; i < n; i++)
        ASSERT(items[i].state != ITEM_WAITING);
    for (uint32_t i = 0; i < n; i++)
        if (items[i].hops && !items[i].asking) {
            learn_if_moved(&x, items[i].node);
            break;
        }
    if (x.failed != NO_NODE)
        nodes_learn_elsewhere(ns, x.failed, deadline);
}
