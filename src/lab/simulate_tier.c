/* SPDX-License-Identifier: Apache-2.0 */
/* simulate_tier.c: a tier (cache/tier.h) that keeps names and no bytes.
 *
 *     oldest <-> ... <-> newest, and a hash table of the same records by key
 *
 * What makes room for a new record is as in the stores it stands for:
 *
 *     host     the record that was read or written longest ago goes
 *     disk     the record that was written first goes. One that was read since it was written, or
 *              since it was carried last, is carried to the newest end instead, and its count of
 *              reads is halved; at most as many bytes are carried as are written.
 *     remote   as on the host: Redis' allkeys-lru, without the error of its sampling
 *
 * Not modelled: whole segments, which go at once; records that expire; other servers.
 */
#include "lab/simulate_tier.h"

enum { DISK_BLOCK_BYTES = 4096, BUCKETS_LEAST = 1024 };

struct sim_record {
    struct tier_key key;
    struct sim_record *next; /* of its bucket */
    struct sim_record *newer, *older;
    uint64_t bytes;
    uint32_t uses;
    bool first_group; /* a page of the first layer group */
};

struct sim_tier {
    struct tier base;
    struct tier_ops ops; /* SIM_OPS with the kind's name */
    enum sim_tier_kind kind;
    const double *now;
    struct sim_record **table; /* [buckets] */
    uint64_t buckets;
    struct sim_record *newest, *oldest;
    uint64_t carry_bytes; /* that may be carried: written and not yet matched by carried ones */
    uint64_t tokens;
    struct tier_stats stats;
};

static struct sim_tier *of_base(struct tier *t) {
    return (struct sim_tier *)t;
}

uint64_t sim_tier_record_bytes(const struct tier *t, uint64_t payload) {
    const enum sim_tier_kind kind = ((const struct sim_tier *)t)->kind;
    return payload + (kind == SIM_DISK ? DISK_BLOCK_BYTES : RECORD_HEAD_BYTES);
}

/* ---- table and list -------------------------------------------------------------------------- */

static struct sim_record **bucket(const struct sim_tier *m, struct tier_key key) {
    return &m->table[key.word[0] & (m->buckets - 1)];
}

static struct sim_record *lookup(const struct sim_tier *m, struct tier_key key) {
    struct sim_record *r = *bucket(m, key);
    while (r && !tier_key_equal(r->key, key))
        r = r->next;
    return r;
}

static void list_unlink(struct sim_tier *m, struct sim_record *r) {
    *(r->newer ? &r->newer->older : &m->newest) = r->older;
    *(r->older ? &r->older->newer : &m->oldest) = r->newer;
}

static void list_push(struct sim_tier *m, struct sim_record *r) {
    r->newer = NULL;
    r->older = m->newest;
    *(m->newest ? &m->newest->newer : &m->oldest) = r;
    m->newest = r;
}

static void record_remove(struct sim_tier *m, struct sim_record *r) {
    struct sim_record **at = bucket(m, r->key);
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    list_unlink(m, r);
    m->stats.records--;
    m->stats.bytes -= r->bytes;
    mem_free(r);
}

/* Without memory for it, chains grow. */
static void table_grow(struct sim_tier *m) {
    struct sim_record **table = mem_calloc(m->buckets * 2, sizeof *table);
    if (!table)
        return;
    mem_free(m->table);
    m->table = table;
    m->buckets *= 2;
    for (struct sim_record *r = m->oldest; r; r = r->newer) {
        struct sim_record **at = bucket(m, r->key);
        r->next = *at;
        *at = r;
    }
}

/* ---- room ------------------------------------------------------------------------------------ */

static void make_room(struct sim_tier *m, uint64_t bytes) {
    m->carry_bytes += m->kind == SIM_DISK ? bytes : 0;
    while (m->stats.bytes + bytes > m->stats.limit_bytes) {
        struct sim_record *r = m->oldest;
        ASSERT(r);
        if (m->kind == SIM_DISK && r->uses && r->bytes <= m->carry_bytes) {
            m->carry_bytes -= r->bytes;
            r->uses /= 2;
            list_unlink(m, r);
            list_push(m, r);
        } else {
            m->stats.dropped++;
            record_remove(m, r);
        }
    }
}

/* ---- the interface --------------------------------------------------------------------------- */

static void sim_find(struct tier *t, const struct tier_place *place, const struct tier_key *keys,
                     uint32_t n, bool *have, double deadline) {
    (void)place;
    (void)deadline;
    for (uint32_t i = 0; i < n; i++)
        have[i] = lookup(of_base(t), keys[i]) != NULL;
}

static void sim_read(struct tier *t, struct tier_read *reads, uint32_t n, double deadline) {
    struct sim_tier *m = of_base(t);
    const bool late = *m->now > deadline;
    for (uint32_t i = 0; i < n; i++) {
        struct sim_record *r = lookup(m, reads[i].key);
        reads[i].result = r ? TIER_OK : TIER_MISSING;
        if (!r) {
            m->stats.missing++;
            continue;
        }
        r->uses++;
        if (m->kind != SIM_DISK) {
            list_unlink(m, r);
            list_push(m, r);
        }
        m->tokens += r->first_group && !late ? TILE_TOKENS : 0;
        m->stats.reads++;
        m->stats.read_bytes += r->bytes;
    }
}

static bool sim_write(struct tier *t, const struct record_head *head, const void *payload) {
    struct sim_tier *m = of_base(t);
    const uint64_t bytes = sim_tier_record_bytes(t, head->bytes);
    (void)payload;
    if (lookup(m, head->key))
        return true;
    struct sim_record *r = bytes <= m->stats.limit_bytes ? mem_calloc(1, sizeof *r) : NULL;
    if (!r) {
        m->stats.write_failures++;
        return false;
    }
    make_room(m, bytes);
    *r = (struct sim_record){.key = head->key,
                             .bytes = bytes,
                             .first_group = head->kind == RECORD_PAGE && head->group == 0};
    struct sim_record **at = bucket(m, r->key);
    r->next = *at;
    *at = r;
    list_push(m, r);
    m->stats.records++;
    m->stats.bytes += bytes;
    m->stats.writes++;
    m->stats.write_bytes += bytes;
    if (m->stats.records > m->buckets)
        table_grow(m);
    return true;
}

static void sim_drop(struct tier *t, const struct tier_place *place, struct tier_key key) {
    struct sim_record *r = lookup(of_base(t), key);
    (void)place;
    if (r)
        record_remove(of_base(t), r);
}

static void remove_all(struct sim_tier *m) {
    while (m->oldest)
        record_remove(m, m->oldest);
}

/* Nothing asks a replay to forget. */
static bool sim_forget(struct tier *t, struct tier_key context, const struct tier_key *roots,
                       uint32_t n, const atomic_bool *stop) {
    (void)context;
    (void)roots;
    (void)n;
    (void)stop;
    remove_all(of_base(t));
    return true;
}

static void sim_rest(struct tier *t) {
    (void)t;
}

static void sim_stats(struct tier *t, struct tier_stats *out) {
    *out = of_base(t)->stats;
}

static void sim_destroy(struct tier *t) {
    struct sim_tier *m = of_base(t);
    remove_all(m);
    mem_free(m->table);
    mem_free(m);
}

static const struct tier_ops SIM_OPS = {.instant = true,
                                        .find = sim_find,
                                        .read = sim_read,
                                        .write = sim_write,
                                        .drop = sim_drop,
                                        .forget = sim_forget,
                                        .rest = sim_rest,
                                        .stats = sim_stats,
                                        .destroy = sim_destroy};

uint64_t sim_tier_tokens(const struct tier *t) {
    return ((const struct sim_tier *)t)->tokens;
}

kvasir_status sim_tier_create(enum sim_tier_kind kind, uint64_t limit_bytes, const double *now,
                              struct tier **out, kvasir_error *err) {
    struct sim_tier *m = mem_calloc(1, sizeof *m);
    struct sim_record **table = mem_calloc(BUCKETS_LEAST, sizeof *table);
    if (!m || !table) {
        mem_free(table);
        mem_free(m);
        return fail(err, KVASIR_ERR_MEMORY, "simulate: out of memory");
    }
    m->ops = SIM_OPS;
    m->ops.name = kind == SIM_HOST ? "host" : kind == SIM_DISK ? "disk" : "remote";
    m->base.ops = &m->ops;
    m->kind = kind;
    m->now = now;
    m->table = table;
    m->buckets = BUCKETS_LEAST;
    m->stats.limit_bytes = limit_bytes;
    *out = &m->base;
    return KVASIR_OK;
}
