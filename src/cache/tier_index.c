/* SPDX-License-Identifier: Apache-2.0 */
/* tier_index.c: the index of the disk tier (tier_index.h).
 *
 * Linear hashing (Litwin 1980): of n_buckets buckets, those below `split` = n_buckets - level have
 * been split already, where level is the largest power of two that is <= n_buckets. A key belongs
 * to the bucket of its low bits, one bit more if the bucket of the longer number exists. There is
 * one bucket for each entry once there are more than LEAST_BUCKETS.
 */
#include "cache/tier_index.h"

#include <sodium.h>

enum { LEAST_BUCKETS = 1024, TRIM_BYTES = 1 << 20, MEMORY_PAGE = 4096 };

bool index_init(struct tier_index *ix, uint64_t capacity) {
    capacity = capacity > UINT32_MAX - 1 ? UINT32_MAX - 1 : capacity;
    *ix = (struct tier_index){.capacity = (uint32_t)capacity, .n_buckets = LEAST_BUCKETS};
    const size_t most = max_u32(ix->capacity, LEAST_BUCKETS);
    ix->entries = mem_reserve(round_up(capacity * sizeof *ix->entries + 1, MEMORY_PAGE));
    ix->buckets = mem_reserve(round_up(most * sizeof *ix->buckets, MEMORY_PAGE));
    ix->touched_buckets = LEAST_BUCKETS;
    randombytes_buf(&ix->secret, sizeof ix->secret);
    if (ix->entries && ix->buckets)
        return true;
    index_deinit(ix);
    return false;
}

void index_deinit(struct tier_index *ix) {
    const size_t most = max_u32(ix->capacity, LEAST_BUCKETS);
    mem_unreserve(ix->entries, round_up(ix->capacity * sizeof *ix->entries + 1, MEMORY_PAGE));
    mem_unreserve(ix->buckets, round_up(most * sizeof *ix->buckets, MEMORY_PAGE));
    *ix = (struct tier_index){0};
}

static uint32_t highest_bit(uint32_t n) {
    return 1u << (31 - __builtin_clz(n));
}

static uint32_t *bucket_of(struct tier_index *ix, struct tier_key key) {
    const uint32_t hash = (uint32_t)mix_bits(key.word[0] ^ ix->secret);
    const uint32_t level = highest_bit(ix->n_buckets);
    const uint32_t longer = hash & (2 * level - 1);
    return &ix->buckets[longer < ix->n_buckets ? longer : hash & (level - 1)];
}

void index_expect(struct tier_index *ix, uint64_t n) {
    ASSERT(ix->n == 0);
    n = n < ix->capacity ? n : ix->capacity;
    ix->n_buckets = max_u32((uint32_t)n, LEAST_BUCKETS);
    ix->touched_buckets = max_u32(ix->touched_buckets, ix->n_buckets);
}

void index_prefetch(struct tier_index *ix, struct tier_key key) {
    __builtin_prefetch(bucket_of(ix, key));
}

struct index_entry *index_find(struct tier_index *ix, struct tier_key key) {
    for (uint32_t i = *bucket_of(ix, key); i; i = ix->entries[i - 1].next)
        if (tier_key_equal(ix->entries[i - 1].key, key))
            return &ix->entries[i - 1];
    return NULL;
}

/* Puts a whole list of entries into the buckets where they belong now. */
static void distribute(struct tier_index *ix, uint32_t list) {
    while (list) {
        struct index_entry *e = &ix->entries[list - 1];
        uint32_t *bucket = bucket_of(ix, e->key), next = e->next;
        e->next = *bucket;
        *bucket = list;
        list = next;
    }
}

static void add_bucket(struct tier_index *ix) {
    const uint32_t from = ix->n_buckets - highest_bit(ix->n_buckets), list = ix->buckets[from];
    ix->buckets[from] = ix->buckets[ix->n_buckets++] = 0;
    ix->touched_buckets = max_u32(ix->touched_buckets, ix->n_buckets);
    distribute(ix, list);
}

static void drop_bucket(struct tier_index *ix) {
    const uint32_t list = ix->buckets[--ix->n_buckets];
    ix->buckets[ix->n_buckets] = 0;
    distribute(ix, list);
}

bool index_add(struct tier_index *ix, const struct index_entry *entry) {
    if (ix->n == ix->capacity)
        return false;
    if (ix->n >= ix->n_buckets)
        add_bucket(ix);
    uint32_t *bucket = bucket_of(ix, entry->key);
    ix->entries[ix->n] = *entry;
    ix->entries[ix->n].next = *bucket;
    *bucket = ++ix->n;
    ix->touched = max_u32(ix->touched, ix->n);
    return true;
}

/* The link, in a bucket or an entry, that leads to an entry. */
static uint32_t *link_to(struct tier_index *ix, uint32_t i) {
    uint32_t *link = bucket_of(ix, ix->entries[i].key);
    while (*link != i + 1) {
        ASSERT(*link != 0);
        link = &ix->entries[*link - 1].next;
    }
    return link;
}

void index_remove(struct tier_index *ix, struct index_entry *entry) {
    const uint32_t i = (uint32_t)(entry - ix->entries), last = ix->n - 1;
    ASSERT(i < ix->n);
    *link_to(ix, i) = entry->next;
    if (i != last) {
        *link_to(ix, last) = i + 1;
        *entry = ix->entries[last];
    }
    ix->n--;
    if (ix->n_buckets > LEAST_BUCKETS && ix->n < ix->n_buckets)
        drop_bucket(ix);
}

/* Gives back pages of an array of which `used` bytes of `touched` are still wanted. */
static size_t trim(void *array, size_t used, size_t touched) {
    const size_t end = round_up(touched, MEMORY_PAGE);
    size_t begin = round_up(used, MEMORY_PAGE);
    if (end > begin + TRIM_BYTES)
        begin = end - TRIM_BYTES;
    if (end <= begin + TRIM_BYTES / 2) /* not for every entry that comes and goes */
        return touched;
    mem_release((char *)array + begin, end - begin);
    return begin;
}

void index_trim(struct tier_index *ix) {
    const size_t entry = sizeof *ix->entries, bucket = sizeof *ix->buckets;
    ix->touched =
        max_u32(ix->n, (uint32_t)(trim(ix->entries, ix->n * entry, ix->touched * entry) / entry));
    ix->touched_buckets =
        max_u32(ix->n_buckets,
                (uint32_t)(trim(ix->buckets, ix->n_buckets * bucket, ix->touched_buckets * bucket) /
                           bucket));
}

uint64_t index_bytes(const struct tier_index *ix) {
    return round_up(ix->touched * sizeof *ix->entries, MEMORY_PAGE) +
           round_up(ix->touched_buckets * sizeof *ix->buckets, MEMORY_PAGE);
}
