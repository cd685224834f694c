/* SPDX-License-Identifier: Apache-2.0 */
/* tier_redis.c: records in a shared Redis or Valkey (tier.h): what the operations are made of.
 *
 *   find    EXISTS of all names, in one round trip to each node
 *   read    GET; a value is received into the page and summed as it comes
 *   write   SET name value NX [EX seconds]
 *   drop    UNLINK;   forget: tier_redis_forget.c
 *
 *   value   head, 512 | payload                       without a secret
 *           nonce | head, 512 | payload | MAC         with one (tier_redis_seal.c)
 *
 * What a server returns is a record only if its length is that of the wanted one, the MAC is right
 * (where there is a secret), and record_begin and record_end say so. All else is damage, counted,
 * and the bytes of the next value are found behind it as long as its length is credible.
 *
 * Any thread calls this, several at once, each on connections of its own.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cache/tier_redis.h"

enum {
    READ_WINDOW_LEAST = 4, /* of values */
    READ_WINDOW_MOST = 64,
    READ_WINDOW_BYTES = 16 << 20, /* what a server may have to keep for us at a time, about */
    FIND_AT_ONCE = 4096 /* commands of half a MiB; their replies fit in a socket's buffer */
};
/* Longer values are not sent: Redis takes no more (proto-max-bulk-len). */
#define VALUE_BYTES_MOST ((uint64_t)512 << 20)

static struct redis_tier *of_base(struct tier *t) {
    return (struct redis_tier *)t;
}

static void add_to(struct redis_tier *t, uint64_t *counter, uint64_t n) {
    pthread_mutex_lock(&t->mutex);
    *counter += n;
    pthread_mutex_unlock(&t->mutex);
}

/* ---- find ------------------------------------------------------------------------------------ */

static bool put_exists(void *user, uint32_t i, const struct redis_item *item,
                       struct redis_wire *w) {
    const struct redis_arg args[] = {{"EXISTS", 6}, {item->name, strlen(item->name)}};
    (void)user;
    (void)i;
    return wire_command(w, args, 2);
}

static bool take_exists(void *user, uint32_t i, const struct redis_item *item, struct redis_wire *w,
                        const char *line) {
    bool *have = user;
    int64_t n;
    (void)item;
    (void)w;
    if (!line_number(line, ':', &n) || n < 0 || n > 1)
        return false;
    have[i] = n == 1;
    return true;
}

static void redis_find(struct tier *base, const struct tier_place *place,
                       const struct tier_key *keys, uint32_t n, bool *have, double deadline) {
    struct redis_tier *t = of_base(base);
    memset(have, 0, n * sizeof *have);
    struct redis_item *items = mem_alloc(min_u32(n, FIND_AT_ONCE) * sizeof *items);
    if (!items)
        return;
    for (uint32_t from = 0; from < n; from += FIND_AT_ONCE) {
        const uint32_t part = min_u32(n - from, FIND_AT_ONCE);
        const struct redis_command command = {
            .window = FIND_AT_ONCE, .put = put_exists, .take = take_exists, .user = have + from};
        for (uint32_t i = 0; i < part; i++) {
            seal_name(&t->seal, place, keys[from + i], items[i].name);
            item_init(&t->nodes, &items[i]);
        }
        redis_exchange(&t->nodes, &command, items, part, deadline);
    }
    mem_free(items);
}

/* ---- read ------------------------------------------------------------------------------------ */

struct reading {
    struct redis_tier *tier;
    struct tier_read *reads;
    XXH3_state_t *sum;
    double since; /* the last read that succeeded */
};

static bool put_get(void *user, uint32_t i, const struct redis_item *item, struct redis_wire *w) {
    const struct redis_arg args[] = {{"GET", 3}, {item->name, strlen(item->name)}};
    (void)user;
    (void)i;
    return wire_command(w, args, 2);
}

/* The payload comes in and is summed. False: the connection failed. */
static bool receive_payload(struct tier_read *r, struct redis_wire *w,
                            crypto_onetimeauth_state *mac) {
    for (uint64_t done = 0; done < r->bytes;) {
        const size_t n = wire_some(w, r->payload + done, r->bytes - done);
        if (n == 0)
            return false;
        record_piece(r, r->payload + done, n);
        if (mac)
            crypto_onetimeauth_update(mac, r->payload + done, n);
        done += n;
    }
    return true;
}

/* A value of the right length. Sets the result. */
static bool receive_value(const struct reading *x, struct tier_read *r, const char *name,
                          struct redis_wire *w) {
    const struct redis_seal *seal = &x->tier->seal;
    struct record_head head;
    uint8_t nonce[NONCE_BYTES], sent[MAC_BYTES], made[MAC_BYTES];
    crypto_onetimeauth_state mac;
    if ((seal->keyed && !wire_bytes(w, nonce, sizeof nonce)) || !wire_bytes(w, &head, sizeof head))
        return false;
    if (!record_begin(r, &head)) /* it is damaged: what follows is of no interest */
        return wire_skip(w, r->bytes + (seal->keyed ? MAC_BYTES : 0));
    if (seal->keyed) {
        seal_begin(seal, nonce, name, &mac);
        crypto_onetimeauth_update(&mac, (const uint8_t *)&head, sizeof head);
    }
    if (!receive_payload(r, w, seal->keyed ? &mac : NULL))
        return false;
    record_end(r);
    if (seal->keyed) {
        if (!wire_bytes(w, sent, sizeof sent))
            return false;
        crypto_onetimeauth_final(&mac, made);
        if (!r->unchecked && sodium_memcmp(sent, made, sizeof made) != 0)
            r->result = TIER_DAMAGED;
    }
    return true;
}

/* A value is whole and where it belongs. */
static void note_value(struct reading *x, struct tier_read *r) {
    struct redis_tier *t = x->tier;
    const double now = clock_seconds();
    pthread_mutex_lock(&t->mutex);
    t->stats.reads++;
    t->stats.read_bytes += sizeof r->head + r->bytes;
    t->stats.read_seconds += now - x->since;
    pthread_mutex_unlock(&t->mutex);
    x->since = now;
    record_ended(r);
}

static bool take_value(void *user, uint32_t i, const struct redis_item *item, struct redis_wire *w,
                       const char *line) {
    struct reading *x = user;
    struct tier_read *r = &x->reads[i];
    const uint64_t around =
        RECORD_HEAD_BYTES + (x->tier->seal.keyed ? (uint64_t)NONCE_BYTES + MAC_BYTES : 0);
    int64_t len;
    if (!line_number(line, '$', &len) || len < -1)
        return false;
    r->result = TIER_MISSING;
    if (len == -1)
        return true;
    bool good;
    if ((uint64_t)len == around + r->bytes) {
        good = receive_value(x, r, item->name, w);
    } else {
        r->result = TIER_DAMAGED;
        good = (uint64_t)len <= around + r->bytes + REPLY_BYTES_MOST ? wire_skip(w, (uint64_t)len)
                                                                     : false;
    }
    good = good && wire_line_end(w);
    if (good && r->result == TIER_OK)
        note_value(x, r);
    return good;
}

/* Results of replies that were errors or did not come; then they are counted. */
static void settle_reads(const struct reading *x, const struct redis_item *items, uint32_t n) {
    struct redis_tier *t = x->tier;
    uint64_t results[TIER_RESULTS] = {0};
    for (uint32_t i = 0; i < n; i++) {
        struct tier_read *r = &x->reads[i];
        r->sum = NULL;
        /* A connection that fails within a damaged value leaves the damage. */
        if (items[i].error == REDIS_ERROR_TYPE)
            r->result = TIER_DAMAGED;
        else if (items[i].state == ITEM_FAILED && r->result != TIER_DAMAGED)
            r->result = TIER_FAILED;
        results[r->result]++;
    }
    pthread_mutex_lock(&t->mutex);
    t->stats.missing += results[TIER_MISSING];
    t->stats.damaged += results[TIER_DAMAGED];
    t->stats.failed += results[TIER_FAILED];
    pthread_mutex_unlock(&t->mutex);
    if (results[TIER_DAMAGED])
        nodes_complain(&t->nodes, COMPLAINT_DAMAGE,
                       "remote cache %s:%u returns values that are damaged or not what was asked "
                       "for; they are not used, and from now on only counted",
                       t->nodes.url.address.host, t->nodes.url.address.port);
}

/* So many replies are awaited at a time. */
static uint32_t read_window(const struct tier_read *reads, uint32_t n) {
    uint64_t longest = 1;
    for (uint32_t i = 0; i < n; i++)
        longest = reads[i].bytes > longest ? reads[i].bytes : longest;
    const uint64_t window = READ_WINDOW_BYTES / longest;
    if (window > READ_WINDOW_MOST)
        return READ_WINDOW_MOST;
    return window < READ_WINDOW_LEAST ? READ_WINDOW_LEAST : (uint32_t)window;
}

static void redis_read(struct tier *base, struct tier_read *reads, uint32_t n, double deadline) {
    struct redis_tier *t = of_base(base);
    struct reading x = {
        .tier = t, .reads = reads, .sum = XXH3_createState(), .since = clock_seconds()};
    struct redis_item *items = mem_alloc(max_u32(n, 1) * sizeof *items);
    if (items && x.sum) {
        const struct redis_command command = {
            .window = read_window(reads, n), .put = put_get, .take = take_value, .user = &x};
        for (uint32_t i = 0; i < n; i++) {
            const struct tier_place place = {reads[i].context, reads[i].root};
            reads[i].result = TIER_FAILED;
            reads[i].sum = x.sum;
            seal_name(&t->seal, &place, reads[i].key, items[i].name);
            item_init(&t->nodes, &items[i]);
        }
        redis_exchange(&t->nodes, &command, items, n, deadline);
        settle_reads(&x, items, n);
    } else {
        for (uint32_t i = 0; i < n; i++)
            reads[i].result = TIER_FAILED;
        add_to(t, &t->stats.failed, n);
        nodes_complain(&t->nodes, COMPLAINT_MEMORY, "remote cache: out of memory");
    }
    XXH3_freeState(x.sum);
    mem_free(items);
}

/* ---- write ----------------------------------------------------------------------------------- */

struct writing {
    const struct redis_tier *tier;
    const struct record_head *head;
    const void *payload;
    uint64_t ttl; /* 0: none */
    uint8_t nonce[NONCE_BYTES], mac[MAC_BYTES];
    bool stored;
};

static bool put_set(void *user, uint32_t i, const struct redis_item *item, struct redis_wire *w) {
    const struct writing *x = user;
    const bool keyed = x->tier->seal.keyed;
    char options[64], lead[32];
    (void)i;
    const size_t len = sizeof *x->head + x->head->bytes + (keyed ? NONCE_BYTES + MAC_BYTES : 0);
    const size_t lead_len = (size_t)snprintf(lead, sizeof lead, "$%zu\r\n", len);
    const struct redis_arg args[] = {{"SET", 3}, {item->name, strlen(item->name)}};
    size_t n = (size_t)snprintf(options, sizeof options, "\r\n$2\r\nNX\r\n");
    if (x->ttl) {
        char seconds[24];
        const int digits = snprintf(seconds, sizeof seconds, "%" PRIu64, x->ttl);
        n += (size_t)snprintf(options + n, sizeof options - n, "$2\r\nEX\r\n$%d\r\n%s\r\n", digits,
                              seconds);
    }
    struct iovec parts[] = {{lead, lead_len},
                            {(void *)x->nonce, keyed ? NONCE_BYTES : 0},
                            {(void *)x->head, sizeof *x->head},
                            {(void *)x->payload, x->head->bytes},
                            {(void *)x->mac, keyed ? MAC_BYTES : 0},
                            {options, n}};
    return wire_command_open(w, args, 2, x->ttl ? 6 : 4) && wire_send(w, parts, 6);
}

static bool take_set(void *user, uint32_t i, const struct redis_item *item, struct redis_wire *w,
                     const char *line) {
    struct writing *x = user;
    (void)i;
    (void)item;
    (void)w;
    x->stored = strcmp(line, "+OK") == 0;
    return x->stored || strcmp(line, "$-1") == 0; /* it is there already */
}

/* Seconds that the record shall live, 0 for ever. False: its time is over. */
static bool lifetime(const struct redis_tier *t, const struct record_head *head, uint64_t *out) {
    const uint64_t now = (uint64_t)time(NULL);
    *out = t->ttl_seconds;
    if (head->expires == 0)
        return true;
    if (head->expires <= now)
        return false;
    if (*out == 0 || head->expires - now < *out)
        *out = head->expires - now;
    return true;
}

static bool redis_write(struct tier *base, const struct record_head *head, const void *payload) {
    struct redis_tier *t = of_base(base);
    const struct tier_place place = {head->context, head->root};
    struct writing x = {.tier = t, .head = head, .payload = payload};
    struct redis_item item;
    bool good =
        head->bytes <= VALUE_BYTES_MOST && lifetime(t, head, &x.ttl) && root_has_room(t, &place);
    if (good) {
        seal_name(&t->seal, &place, head->key, item.name);
        if (t->seal.keyed) {
            crypto_onetimeauth_state mac;
            randombytes_buf(x.nonce, sizeof x.nonce);
            seal_begin(&t->seal, x.nonce, item.name, &mac);
            crypto_onetimeauth_update(&mac, (const uint8_t *)head, sizeof *head);
            crypto_onetimeauth_update(&mac, payload, head->bytes);
            crypto_onetimeauth_final(&mac, x.mac);
        }
        const struct redis_command command = {
            .window = 1, .put = put_set, .take = take_set, .user = &x};
        item_init(&t->nodes, &item);
        redis_exchange(&t->nodes, &command, &item, 1, 0);
        good = item.state == ITEM_DONE;
    }
    if (x.stored)
        root_add(t, &place, sizeof *head + head->bytes);
    pthread_mutex_lock(&t->mutex);
    t->stats.writes += x.stored;
    t->stats.write_bytes += x.stored ? sizeof *head + head->bytes : 0;
    t->stats.write_failures += !good;
    pthread_mutex_unlock(&t->mutex);
    return good;
}

/* ---- drop and the rest ----------------------------------------------------------------------- */

static void redis_drop(struct tier *base, const struct tier_place *place, struct tier_key key) {
    struct redis_tier *t = of_base(base);
    struct redis_item item;
    seal_name(&t->seal, place, key, item.name);
    item_init(&t->nodes, &item);
    add_to(t, &t->stats.dropped, redis_unlink(&t->nodes, &item, 1, 0));
}

/* Redis itself makes room and keeps what it has. */
static void redis_rest(struct tier *base) {
    (void)base;
}

static void redis_stats(struct tier *base, struct tier_stats *out) {
    struct redis_tier *t = of_base(base);
    pthread_mutex_lock(&t->mutex);
    *out = t->stats;
    pthread_mutex_unlock(&t->mutex);
    out->down = nodes_down(&t->nodes);
    out->table_bytes = sizeof *t + nodes_bytes(&t->nodes);
}

static void redis_destroy(struct tier *base) {
    struct redis_tier *t = of_base(base);
    nodes_deinit(&t->nodes);
    seal_deinit(&t->seal);
    pthread_mutex_destroy(&t->mutex);
    mem_free(t);
}

static const struct tier_ops redis_ops = {.name = "remote",
                                          .find = redis_find,
                                          .read = redis_read,
                                          .write = redis_write,
                                          .drop = redis_drop,
                                          .forget = redis_forget,
                                          .rest = redis_rest,
                                          .stats = redis_stats,
                                          .destroy = redis_destroy};

kvasir_status tier_redis_create(const struct tier_redis_options *o, struct tier **out,
                                kvasir_error *err) {
    if (o->secret && o->secret_bytes < TIER_SECRET_LEAST)
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "the remote cache's secret has %zu bytes; at least %d are needed",
                    o->secret_bytes, TIER_SECRET_LEAST);
    if (!(o->connect_seconds > 0) || !(o->exchange_seconds > 0))
        return fail(err, KVASIR_ERR_ARGUMENT, "the remote cache needs time-outs above 0 s");
    struct redis_tier *t = mem_calloc(1, sizeof *t);
    if (!t || sodium_init() < 0) {
        mem_free(t);
        return fail(err, KVASIR_ERR_MEMORY, "remote cache: out of memory");
    }
    const kvasir_status status = nodes_init(&t->nodes, o, err);
    if (status != KVASIR_OK) {
        mem_free(t);
        return status;
    }
    t->base.ops = &redis_ops;
    t->ttl_seconds = o->ttl_seconds;
    t->root_limit = o->root_limit_bytes;
    pthread_mutex_init(&t->mutex, NULL);
    seal_init(&t->seal, o->secret, o->secret_bytes);
    if (!o->secret)
        nodes_complain(&t->nodes, COMPLAINT_ALWAYS,
                       "remote cache %s:%u is used without a secret: its checks detect faults, not "
                       "malice",
                       t->nodes.url.address.host, t->nodes.url.address.port);
    *out = &t->base;
    return KVASIR_OK;
}
