/* SPDX-License-Identifier: Apache-2.0 */
/* tier_memory.c: records in host memory, the least recently used go first (tier.h).
 *
 *   table    [power of two] -> records by key, chained
 *   newest <-> ... <-> oldest, a list of the same records in the order of their last use
 *
 * It is for a device whose own memory is smaller than the host's, and the tier that tests compare
 * the others with. What it holds cannot rot, but it is checked as in every tier: a record that was
 * damaged before it came is found out when it is read.
 *
 * Any thread calls it; one mutex guards everything. A reader copies a payload while it holds the
 * mutex, so a record can be removed at any time. Copies are of a few MiB: others wait for less
 * than a millisecond.
 *
 * Invariants
 *   held is the sum of record_cost over the records in the list, table and struct included, and
 *   <= limit whenever the mutex is free. A record is in the table exactly if it is in the list.
 */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "cache/tier.h"

enum { BUCKETS_LEAST = 64, BUCKET_RECORDS = 4 /* on average; then the table doubles */ };

struct kept {
    struct kept *next; /* of its bucket */
    struct kept *newer, *older;
    struct record_head head;
    uint8_t payload[]; /* [head.bytes] */
};

struct tier_memory {
    struct tier base;
    pthread_mutex_t mutex; /* guards what follows; a leaf */
    struct kept **table;   /* [buckets] */
    uint32_t buckets;
    struct kept *newest, *oldest;
    uint64_t held;
    struct tier_stats stats;
};

static struct tier_memory *of_base(struct tier *t) {
    return (struct tier_memory *)t;
}

/* What the allocator adds to a block is counted, too. */
static uint64_t record_cost(const struct record_head *head) {
    return sizeof(struct kept) + head->bytes + 16;
}

static uint64_t own_bytes(const struct tier_memory *m) {
    return sizeof *m + m->buckets * sizeof(struct kept *);
}

/* ---- table and list -------------------------------------------------------------------------- */

/* Keys are hashes: any bits of them will do. */
static struct kept **bucket(const struct tier_memory *m, struct tier_key key) {
    return &m->table[key.word[0] & (m->buckets - 1)];
}

static struct kept *lookup(const struct tier_memory *m, struct tier_key key) {
    struct kept *r = *bucket(m, key);
    while (r && !tier_key_equal(r->head.key, key))
        r = r->next;
    return r;
}

static void list_unlink(struct tier_memory *m, struct kept *r) {
    *(r->newer ? &r->newer->older : &m->newest) = r->older;
    *(r->older ? &r->older->newer : &m->oldest) = r->newer;
}

static void list_push(struct tier_memory *m, struct kept *r) {
    r->newer = NULL;
    r->older = m->newest;
    *(m->newest ? &m->newest->newer : &m->oldest) = r;
    m->newest = r;
}

static void record_remove(struct tier_memory *m, struct kept *r) {
    struct kept **at = bucket(m, r->head.key);
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    list_unlink(m, r);
    ASSERT(m->held >= record_cost(&r->head) && m->stats.records > 0);
    m->held -= record_cost(&r->head);
    m->stats.records--;
    m->stats.bytes -= sizeof r->head + r->head.bytes;
    m->stats.dropped++;
    mem_free(r);
}

static void record_add(struct tier_memory *m, struct kept *r) {
    struct kept **at = bucket(m, r->head.key);
    r->next = *at;
    *at = r;
    list_push(m, r);
    m->held += record_cost(&r->head);
    m->stats.records++;
    m->stats.bytes += sizeof r->head + r->head.bytes;
}

/* Twice as many buckets, if there is memory for them; without, chains grow. */
static void table_grow(struct tier_memory *m) {
    const uint64_t more = m->buckets * sizeof *m->table;
    if (m->buckets > UINT32_MAX / 2 || m->held + more > m->stats.limit_bytes)
        return;
    struct kept **table = mem_calloc(m->buckets * (size_t)2, sizeof *table);
    if (!table)
        return;
    mem_free(m->table);
    m->table = table;
    m->buckets *= 2;
    m->held += more;
    for (struct kept *r = m->oldest; r; r = r->newer) {
        struct kept **at = bucket(m, r->head.key);
        r->next = *at;
        *at = r;
    }
}

/* ---- the interface --------------------------------------------------------------------------- */

static void memory_find(struct tier *t, const struct tier_place *place, const struct tier_key *keys,
                        uint32_t n, bool *have, double deadline) {
    struct tier_memory *m = of_base(t);
    (void)place;
    (void)deadline;
    pthread_mutex_lock(&m->mutex);
    for (uint32_t i = 0; i < n; i++)
        have[i] = lookup(m, keys[i]) != NULL;
    pthread_mutex_unlock(&m->mutex);
}

/* A copy, summed after the mutex is free. */
static void read_one(struct tier_memory *m, struct tier_read *r) {
    const double start = clock_seconds();
    pthread_mutex_lock(&m->mutex);
    struct kept *kept = lookup(m, r->key);
    r->result = kept ? TIER_OK : TIER_MISSING;
    if (kept) {
        list_unlink(m, kept);
        list_push(m, kept);
        if (record_begin(r, &kept->head))
            memcpy(r->payload, kept->payload, min_size(r->bytes, kept->head.bytes));
    }
    pthread_mutex_unlock(&m->mutex);
    if (r->result == TIER_OK) {
        record_piece(r, r->payload, min_size(r->bytes, r->head.bytes));
        record_end(r);
    }
    pthread_mutex_lock(&m->mutex);
    if (r->result == TIER_OK) {
        m->stats.reads++;
        m->stats.read_bytes += sizeof r->head + r->bytes;
        m->stats.read_seconds += clock_seconds() - start;
    }
    m->stats.missing += r->result == TIER_MISSING;
    m->stats.damaged += r->result == TIER_DAMAGED;
    m->stats.failed += r->result == TIER_FAILED;
    pthread_mutex_unlock(&m->mutex);
}

static void memory_read(struct tier *t, struct tier_read *reads, uint32_t n, double deadline) {
    XXH3_state_t *sum = XXH3_createState();
    (void)deadline; /* memory is never late */
    for (uint32_t i = 0; i < n; i++) {
        reads[i].sum = sum;
        if (sum) {
            read_one(of_base(t), &reads[i]);
        } else {
            reads[i].result = TIER_FAILED;
        }
        reads[i].sum = NULL;
        record_ended(&reads[i]);
    }
    XXH3_freeState(sum);
}

/* Removes what has expired from the oldest on, then what is in the way. False: it does not fit. */
static bool make_room(struct tier_memory *m, uint64_t cost) {
    if (cost > m->stats.limit_bytes - own_bytes(m))
        return false;
    while (m->held + cost > m->stats.limit_bytes)
        record_remove(m, m->oldest);
    return true;
}

static bool memory_write(struct tier *t, const struct record_head *head, const void *payload) {
    struct tier_memory *m = of_base(t);
    pthread_mutex_lock(&m->mutex);
    bool good = lookup(m, head->key) != NULL;
    if (!good && make_room(m, record_cost(head))) {
        struct kept *r = mem_alloc(sizeof *r + head->bytes);
        if (r) {
            r->head = *head;
            memcpy(r->payload, payload, head->bytes);
            record_add(m, r);
            if (m->stats.records / BUCKET_RECORDS > m->buckets)
                table_grow(m);
            m->stats.writes++;
            m->stats.write_bytes += sizeof *head + head->bytes;
            good = true;
        }
    }
    m->stats.write_failures += !good;
    pthread_mutex_unlock(&m->mutex);
    return good;
}

static void memory_drop(struct tier *t, const struct tier_place *place, struct tier_key key) {
    struct tier_memory *m = of_base(t);
    (void)place;
    pthread_mutex_lock(&m->mutex);
    struct kept *r = lookup(m, key);
    if (r)
        record_remove(m, r);
    pthread_mutex_unlock(&m->mutex);
}

static bool is_among(struct tier_key key, const struct tier_key *keys, uint32_t n) {
    while (n > 0 && !tier_key_equal(keys[n - 1], key))
        n--;
    return n > 0;
}

static bool memory_forget(struct tier *t, struct tier_key context, const struct tier_key *roots,
                          uint32_t n, const atomic_bool *stop) {
    struct tier_memory *m = of_base(t);
    (void)stop;
    pthread_mutex_lock(&m->mutex);
    for (struct kept *r = m->oldest, *newer; r; r = newer) {
        newer = r->newer;
        if (tier_key_equal(r->head.context, context) &&
            (n == 0 || is_among(r->head.root, roots, n)))
            record_remove(m, r);
    }
    pthread_mutex_unlock(&m->mutex);
    return true;
}

/* Records that have expired give their memory back. */
static void memory_rest(struct tier *t) {
    struct tier_memory *m = of_base(t);
    const uint64_t now = (uint64_t)time(NULL);
    pthread_mutex_lock(&m->mutex);
    for (struct kept *r = m->oldest, *newer; r; r = newer) {
        newer = r->newer;
        if (r->head.expires != 0 && r->head.expires <= now)
            record_remove(m, r);
    }
    pthread_mutex_unlock(&m->mutex);
}

static void memory_stats(struct tier *t, struct tier_stats *out) {
    struct tier_memory *m = of_base(t);
    pthread_mutex_lock(&m->mutex);
    *out = m->stats;
    out->table_bytes = own_bytes(m);
    pthread_mutex_unlock(&m->mutex);
}

static void memory_destroy(struct tier *t) {
    struct tier_memory *m = of_base(t);
    while (m->oldest)
        record_remove(m, m->oldest);
    ASSERT(m->held == own_bytes(m) && m->stats.records == 0);
    mem_free(m->table);
    pthread_mutex_destroy(&m->mutex);
    mem_free(m);
}

static const struct tier_ops memory_ops = {.name = "memory",
                                           .instant = true,
                                           .find = memory_find,
                                           .read = memory_read,
                                           .write = memory_write,
                                           .drop = memory_drop,
                                           .forget = memory_forget,
                                           .rest = memory_rest,
                                           .stats = memory_stats,
                                           .destroy = memory_destroy};

kvasir_status tier_memory_create(uint64_t limit_bytes, struct tier **out, kvasir_error *err) {
    if (limit_bytes < 4096)
        return fail(err, KVASIR_ERR_ARGUMENT, "a memory tier of %u bytes holds nothing",
                    (unsigned)limit_bytes);
    struct tier_memory *m = mem_calloc(1, sizeof *m);
    struct kept **table = mem_calloc(BUCKETS_LEAST, sizeof *table);
    if (!m || !table) {
        mem_free(table);
        mem_free(m);
        return fail(err, KVASIR_ERR_MEMORY, "memory tier: out of memory");
    }
    m->base.ops = &memory_ops;
    pthread_mutex_init(&m->mutex, NULL);
    m->table = table;
    m->buckets = BUCKETS_LEAST;
    m->held = own_bytes(m);
    m->stats.limit_bytes = limit_bytes;
    *out = &m->base;
    return KVASIR_OK;
}
