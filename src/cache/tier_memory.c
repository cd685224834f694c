/* SPDX-License-Identifier: Apache-2.0 */
/* tier_memory.c: records in host memory, the least recently used go first (tier.h).
 *
 *   table    [power of two] -> records by key, chained
 *   newest <-> ... <-> oldest, a list of the same records in the order of their last use
 *   record -> block -> block ..., of one size: memory does not become scattered, whatever sizes
 *             payloads have
 *   slabs    [SLAB_BYTES] of blocks. For a device each is pinned memory, which takes a tenth of a
 *             second to get: a thread gets them all, from the tier's making on
 *
 * It is for a device whose own memory is smaller than the host's, and the tier that tests compare
 * the others with. What it holds cannot rot, but it is checked as in every tier: a record that was
 * damaged before it came is found out when it is read.
 *
 * Any thread calls it; one mutex guards everything but payloads, which are copied without it. A
 * record that is being read is lent: it may be removed from table and list meanwhile, but keeps its
 * blocks.
 *
 * Invariants
 *   MEMORY-1  Struct, tables and slabs never exceed the limit. Nothing is allocated after them.
 *   MEMORY-2  A block is in one record, in the list of free blocks, or `fresh` or later.
 *   MEMORY-3  A record is in the table exactly if it is in the list. One that is in neither is
 *             lent, or being written.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "backend/backend.h"
#include "cache/tier.h"

enum { BUCKETS_LEAST = 64, BUCKET_RECORDS = 4 /* on average, at most */, BLOCK_LEAST = 4096 };
#define SLAB_BYTES ((uint64_t)256 << 20)
#define NO_BLOCK   UINT32_MAX

struct kept {
    struct kept *next; /* of its bucket */
    struct kept *newer, *older;
    uint32_t first_block;
    uint32_t loans;
    bool listed; /* in table and list */
    struct record_head head;
};
struct tier_memory {
    struct tier base;
    struct tier_memory_options options;
    bool pinned;
    uint32_t block_bytes, slab_blocks; /* of all slabs but the last */
    uint32_t n_blocks, n_slabs;        /* at most */
    uint8_t **slabs;                   /* [n_slabs] */
    uint32_t buckets;
    pthread_t getter;
    bool has_getter;
    pthread_mutex_t mutex; /* guards what follows; a leaf */
    pthread_cond_t got;    /* a slab, or there will be no more */
    uint32_t made_slabs, made_blocks;
    bool stop, all_made;
    struct kept **table;  /* [buckets] */
    struct kept *records; /* [n_blocks] that of a record is at its first block */
    uint32_t *next;       /* [n_blocks] of its record, or of the free ones */
    uint32_t free_block, n_free;
    uint32_t fresh; /* blocks from this one on were never used */
    struct kept *newest, *oldest;
    struct tier_stats stats;
};

static struct tier_memory *of_base(struct tier *t) {
    return (struct tier_memory *)t;
}

/* ---- slabs ----------------------------------------------------------------------------------- */

static uint32_t blocks_of_slab(const struct tier_memory *m, uint32_t slab) {
    const uint32_t before = slab * m->slab_blocks, left = m->n_blocks - before;
    return left < m->slab_blocks ? left : m->slab_blocks;
}

static uint64_t slab_bytes(const struct tier_memory *m, uint32_t slab) {
    return (uint64_t)blocks_of_slab(m, slab) * m->block_bytes;
}

/* False: no memory is left. */
static bool get_slab(struct tier_memory *m, uint32_t slab) {
    struct backend *b = m->options.backend;
    const uint64_t bytes = slab_bytes(m, slab);
    m->slabs[slab] = m->pinned ? b->ops->pinned_alloc(b, bytes) : mem_reserve(bytes);
    return m->slabs[slab] != NULL;
}

static void free_slab(struct tier_memory *m, uint32_t slab) {
    struct backend *b = m->options.backend;
    if (m->pinned)
        b->ops->pinned_free(b, m->slabs[slab]);
    else
        mem_unreserve(m->slabs[slab], slab_bytes(m, slab));
}

static void complain_of_slabs(const struct tier_memory *m, uint32_t got) {
    char line[160];
    snprintf(line, sizeof line,
             "host tier: only %llu of %llu MiB of host memory could be pinned for the device",
             (unsigned long long)(got * slab_bytes(m, 0) >> 20),
             (unsigned long long)(m->options.limit_bytes >> 20));
    if (m->options.complain)
        m->options.complain(m->options.user, line);
}

static void *getter_thread(void *user) {
    struct tier_memory *m = user;
    bool good = true, stop = false;
    for (uint32_t i = 0; i < m->n_slabs && good && !stop; i++) {
        good = get_slab(m, i);
        pthread_mutex_lock(&m->mutex);
        if (good) {
            m->made_slabs++;
            m->made_blocks += blocks_of_slab(m, i);
        }
        stop = m->stop;
        pthread_cond_broadcast(&m->got);
        pthread_mutex_unlock(&m->mutex);
        if (!good)
            complain_of_slabs(m, i);
    }
    pthread_mutex_lock(&m->mutex);
    m->all_made = true;
    pthread_cond_broadcast(&m->got);
    pthread_mutex_unlock(&m->mutex);
    return NULL;
}

/* ---- blocks, with the mutex held ------------------------------------------------------------- */

static uint32_t blocks_of(const struct tier_memory *m, uint64_t bytes) {
    return (uint32_t)((bytes + m->block_bytes - 1) / m->block_bytes);
}

static uint8_t *block_at(const struct tier_memory *m, uint32_t block) {
    ASSERT(block < m->n_blocks);
    return m->slabs[block / m->slab_blocks] + (uint64_t)(block % m->slab_blocks) * m->block_bytes;
}

static uint32_t free_blocks(const struct tier_memory *m) {
    return m->n_free + (m->made_blocks - m->fresh);
}

/* The first of n blocks, of which there are that many free ones. Those of a record are neighbours
 * unless blocks of records of other sizes were freed before: lent() joins neighbours. */
static uint32_t take_blocks(struct tier_memory *m, uint32_t n) {
    uint32_t first = NO_BLOCK, *link = &first;
    for (; n > 0; n--) {
        uint32_t block = m->free_block;
        if (m->n_free > 0) {
            m->free_block = m->next[block];
            m->n_free--;
        } else {
            ASSERT(m->fresh < m->made_blocks);
            block = m->fresh++;
        }
        *link = block;
        link = &m->next[block];
    }
    *link = NO_BLOCK;
    return first;
}

/* They are taken again in the same order. */
static void free_record(struct tier_memory *m, struct kept *r) {
    uint32_t last = r->first_block, n = 1;
    ASSERT(!r->listed && r->loans == 0);
    for (; m->next[last] != NO_BLOCK; last = m->next[last])
        n++;
    m->next[last] = m->free_block;
    m->free_block = r->first_block;
    m->n_free += n;
    ASSERT(m->n_free <= m->fresh);
}

/* ---- table and list, with the mutex held ----------------------------------------------------- */

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
    ASSERT(r->listed && m->stats.records > 0);
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    list_unlink(m, r);
    r->listed = false;
    m->stats.records--;
    m->stats.bytes -= sizeof r->head + r->head.bytes;
    m->stats.dropped++;
    if (r->loans == 0)
        free_record(m, r);
}

static void record_add(struct tier_memory *m, struct kept *r) {
    struct kept **at = bucket(m, r->head.key);
    r->next = *at;
    *at = r;
    list_push(m, r);
    r->listed = true;
    m->stats.records++;
    m->stats.bytes += sizeof r->head + r->head.bytes;
    m->stats.writes++;
    m->stats.write_bytes += sizeof r->head + r->head.bytes;
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

static bool memory_lend(struct tier *t, struct tier_key key, struct tier_loan *out) {
    struct tier_memory *m = of_base(t);
    pthread_mutex_lock(&m->mutex);
    struct kept *r = lookup(m, key);
    if (r) {
        list_unlink(m, r);
        list_push(m, r);
        r->loans++;
        *out = (struct tier_loan){&r->head, r, r->first_block, r->head.bytes};
    }
    m->stats.missing += !r;
    pthread_mutex_unlock(&m->mutex);
    return r != NULL;
}

/* Links and slabs of a lent record do not change. */
static const uint8_t *memory_lent(struct tier *t, struct tier_loan *l, size_t *bytes) {
    const struct tier_memory *m = of_base(t);
    if (l->left == 0)
        return NULL;
    const uint8_t *at = block_at(m, l->block), *end = at;
    do {
        end += m->block_bytes;
        l->block = m->next[l->block];
    } while (l->block != NO_BLOCK && block_at(m, l->block) == end);
    *bytes = min_size((size_t)(end - at), l->left);
    l->left -= *bytes;
    return at;
}

static void memory_give_back(struct tier *t, struct tier_loan *l, enum tier_result result,
                             double seconds) {
    struct tier_memory *m = of_base(t);
    struct kept *r = l->record;
    pthread_mutex_lock(&m->mutex);
    if (result == TIER_OK) {
        m->stats.reads++;
        m->stats.read_bytes += sizeof r->head + r->head.bytes;
        m->stats.read_seconds += seconds;
    }
    m->stats.damaged += result == TIER_DAMAGED;
    m->stats.failed += result == TIER_FAILED;
    ASSERT(r->loans > 0);
    if (--r->loans == 0 && !r->listed)
        free_record(m, r);
    pthread_mutex_unlock(&m->mutex);
}

static void read_one(struct tier *t, struct tier_read *r) {
    const double start = clock_seconds();
    struct tier_loan loan;
    const uint8_t *from;
    size_t bytes;
    r->result = TIER_MISSING;
    if (!memory_lend(t, r->key, &loan))
        return;
    if (record_begin(r, loan.head)) {
        uint8_t *to = r->payload;
        loan.left = min_size(loan.left, r->bytes);
        for (; (from = memory_lent(t, &loan, &bytes)) != NULL; to += bytes) {
            memcpy(to, from, bytes);
            record_piece(r, to, bytes);
        }
        record_end(r);
    }
    memory_give_back(t, &loan, r->result, clock_seconds() - start);
}

static void memory_read(struct tier *t, struct tier_read *reads, uint32_t n, double deadline) {
    XXH3_state_t *sum = XXH3_createState();
    (void)deadline; /* memory is never late */
    for (uint32_t i = 0; i < n; i++) {
        reads[i].sum = sum;
        if (sum)
            read_one(t, &reads[i]);
        else
            reads[i].result = TIER_FAILED;
        reads[i].sum = NULL;
        record_ended(&reads[i]);
    }
    XXH3_freeState(sum);
}

/* Waits for slabs that are still to come, then removes the oldest records that nobody reads. False:
 * n blocks are more than there are. */
static bool make_room(struct tier_memory *m, uint32_t n) {
    while (free_blocks(m) < n && !m->all_made)
        pthread_cond_wait(&m->got, &m->mutex);
    if (n > m->made_blocks)
        return false;
    for (struct kept *r = m->oldest, *newer; r && free_blocks(m) < n; r = newer) {
        newer = r->newer;
        if (r->loans == 0)
            record_remove(m, r);
    }
    return free_blocks(m) >= n;
}

/* A record in no list, with room for its payload. NULL: there is none. */
static struct kept *record_make(struct tier_memory *m, const struct record_head *head) {
    const uint32_t n = blocks_of(m, head->bytes);
    if (!make_room(m, n))
        return NULL;
    const uint32_t first = take_blocks(m, n);
    m->records[first] = (struct kept){.head = *head, .first_block = first};
    return &m->records[first];
}

static void fill(const struct tier_memory *m, const struct kept *r, const uint8_t *payload) {
    uint64_t left = r->head.bytes;
    for (uint32_t b = r->first_block; b != NO_BLOCK; b = m->next[b]) {
        const size_t bytes = min_size(left, m->block_bytes);
        memcpy(block_at(m, b), payload, bytes);
        payload += bytes;
        left -= bytes;
    }
    ASSERT(left == 0);
}

static bool memory_write(struct tier *t, const struct record_head *head, const void *payload) {
    struct tier_memory *m = of_base(t);
    ASSERT(head->bytes > 0);
    pthread_mutex_lock(&m->mutex);
    bool good = lookup(m, head->key) != NULL;
    struct kept *r = good ? NULL : record_make(m, head);
    if (r) {
        pthread_mutex_unlock(&m->mutex);
        fill(m, r, payload);
        pthread_mutex_lock(&m->mutex);
        if (lookup(m, head->key)) /* another thread wrote it meanwhile */
            free_record(m, r);
        else
            record_add(m, r);
        good = true;
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

/* Without heads of records, which count as theirs. */
static uint64_t own_bytes(uint32_t blocks, uint32_t slabs, uint32_t buckets) {
    return sizeof(struct tier_memory) + slabs * sizeof(uint8_t *) +
           buckets * sizeof(struct kept *) + blocks * sizeof(uint32_t);
}

static void memory_stats(struct tier *t, struct tier_stats *out) {
    struct tier_memory *m = of_base(t);
    pthread_mutex_lock(&m->mutex);
    *out = m->stats;
    out->table_bytes = own_bytes(m->n_blocks, m->n_slabs, m->buckets);
    pthread_mutex_unlock(&m->mutex);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void memory_destroy(struct tier *t) {
    struct tier_memory *m = of_base(t);
    pthread_mutex_lock(&m->mutex);
    m->stop = true;
    pthread_mutex_unlock(&m->mutex);
    if (m->has_getter)
        pthread_join(m->getter, NULL);
    while (m->oldest)
        record_remove(m, m->oldest);
    ASSERT(m->stats.records == 0 && m->n_free == m->fresh); /* nothing is lent */
    for (uint32_t i = 0; i < m->made_slabs; i++)
        free_slab(m, i);
    mem_free(m->slabs);
    mem_free(m->table);
    mem_free(m->records);
    mem_free(m->next);
    pthread_cond_destroy(&m->got);
    pthread_mutex_destroy(&m->mutex);
    mem_free(m);
}

enum { MEMORY_READERS = 8 }; /* one sums about a seventh of what a device's copies move */

static const struct tier_ops memory_ops = {.name = "host",
                                           .instant = true,
                                           .readers = MEMORY_READERS,
                                           .find = memory_find,
                                           .read = memory_read,
                                           .lend = memory_lend,
                                           .lent = memory_lent,
                                           .give_back = memory_give_back,
                                           .write = memory_write,
                                           .drop = memory_drop,
                                           .forget = memory_forget,
                                           .rest = memory_rest,
                                           .stats = memory_stats,
                                           .destroy = memory_destroy};

uint32_t tier_memory_block(const uint64_t *bytes, uint32_t n) {
    enum { BLOCK_FINE = 64 << 10, WASTE_PART = 16 };
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++)
        least = bytes[i] < least ? bytes[i] : least;
    for (uint32_t parts = 1;; parts *= 2) {
        const uint64_t block = (least / parts + BLOCK_LEAST - 1) / BLOCK_LEAST * BLOCK_LEAST;
        bool good = true;
        for (uint32_t i = 0; i < n; i++)
            good = good && (block - bytes[i] % block) % block <= bytes[i] / WASTE_PART;
        if (block <= SLAB_BYTES && (good || block <= BLOCK_FINE))
            return (uint32_t)block;
    }
}

/* As many blocks as the limit holds with all that belongs to them (MEMORY-1). */
static void size_up(struct tier_memory *m) {
    const uint64_t limit = m->options.limit_bytes, block = m->block_bytes;
    m->slab_blocks = (uint32_t)(SLAB_BYTES / block);
    m->buckets = BUCKETS_LEAST;
    m->n_slabs = (uint32_t)(limit / (m->slab_blocks * block) + 1);
    while ((uint64_t)m->buckets * BUCKET_RECORDS < limit / block && m->buckets < 1u << 30)
        m->buckets *= 2;
    const uint64_t own = own_bytes(0, m->n_slabs, m->buckets),
                   each = block + sizeof(struct kept) + sizeof(uint32_t),
                   blocks = limit > own ? (limit - own) / each : 0;
    m->n_blocks = blocks < NO_BLOCK ? (uint32_t)blocks : NO_BLOCK - 1;
    m->n_slabs = (m->n_blocks + m->slab_blocks - 1) / m->slab_blocks;
}

static bool get_memory(struct tier_memory *m) {
    m->table = mem_calloc(m->buckets, sizeof *m->table);
    m->next = mem_calloc(m->n_blocks, sizeof *m->next);
    m->records = mem_calloc(m->n_blocks, sizeof *m->records);
    m->slabs = mem_calloc(m->n_slabs, sizeof *m->slabs);
    if (!m->table || !m->next || !m->records || !m->slabs)
        return false;
    if (m->pinned) {
        m->has_getter = pthread_create(&m->getter, NULL, getter_thread, m) == 0;
        return m->has_getter;
    }
    getter_thread(m); /* address space alone */
    return m->made_slabs == m->n_slabs;
}

kvasir_status tier_memory_create(const struct tier_memory_options *o, struct tier **out,
                                 kvasir_error *err) {
    struct tier_memory *m = mem_calloc(1, sizeof *m);
    if (!m)
        return fail(err, KVASIR_ERR_MEMORY, "host tier: out of memory");
    m->base.ops = &memory_ops;
    m->options = *o;
    m->pinned = o->backend && o->backend->ops->pinned_alloc;
    m->block_bytes = o->block_bytes ? o->block_bytes : (uint32_t)BLOCK_LEAST;
    ASSERT(m->block_bytes % BLOCK_LEAST == 0 && m->block_bytes <= SLAB_BYTES);
    m->free_block = NO_BLOCK;
    m->stats.limit_bytes = o->limit_bytes;
    pthread_mutex_init(&m->mutex, NULL);
    pthread_cond_init(&m->got, NULL);
    size_up(m);
    kvasir_status status = KVASIR_OK;
    if (m->n_blocks == 0)
        status = fail(err, KVASIR_ERR_ARGUMENT, "a host tier of %llu bytes holds nothing",
                      (unsigned long long)o->limit_bytes);
    else if (!get_memory(m))
        status = fail(err, KVASIR_ERR_MEMORY, "host tier: out of memory");
    if (status != KVASIR_OK)
        memory_destroy(&m->base);
    else
        *out = &m->base;
    return status;
}
