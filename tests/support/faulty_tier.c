/* SPDX-License-Identifier: Apache-2.0 */
#include "faulty_tier.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *const FAULT_NAMES[FAULTS] = {
    "payload bit",  "head bit",    "short",   "torn", "other record", "other context",
    "other tokens", "other place", "expired", "gone", "error",        "slow"};
_Atomic uint64_t faults_returned[FAULTS], faults_dropped;

struct record {
    struct record *next;
    struct record_head head;
    uint8_t payload[];
};

struct faulty_store {
    pthread_mutex_t mutex;
    struct record *first;
    uint64_t random, records;
};

struct faulty_tier {
    struct tier base;
    struct faulty_store *store;
    uint32_t every, slow_ms;
};

static struct faulty_tier *faulty(struct tier *t) {
    return (struct faulty_tier *)t;
}

/* With the mutex held. */
static uint32_t draw(struct faulty_store *s, uint32_t n) {
    s->random = mix_bits(s->random + 0x9e3779b97f4a7c15u);
    return (uint32_t)(s->random >> 33) % n;
}

static struct record **find_record(struct faulty_store *s, struct tier_key key) {
    struct record **at = &s->first;
    while (*at && !tier_key_equal((*at)->head.key, key))
        at = &(*at)->next;
    return at;
}

struct faulty_store *faulty_store_create(uint64_t seed) {
    struct faulty_store *s = calloc(1, sizeof *s);
    pthread_mutex_init(&s->mutex, NULL);
    s->random = seed;
    return s;
}

static void free_records(struct faulty_store *s) {
    while (s && s->first) {
        struct record *r = s->first;
        s->first = r->next;
        free(r);
    }
}

void faulty_store_destroy(struct faulty_store *s) {
    free_records(s);
    free(s);
}

void faulty_store_clear(struct faulty_store *s) {
    pthread_mutex_lock(&s->mutex);
    free_records(s);
    s->records = 0;
    pthread_mutex_unlock(&s->mutex);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void reseal(struct record_head *head, const void *payload) {
    const struct tier_key key = head->key;
    record_seal(head, payload);
    head->key = key; /* as it is called here, whatever it says about itself */
    const XXH128_hash_t sum = XXH3_128bits(head, offsetof(struct record_head, head_sum));
    head->head_sum[0] = sum.low64;
    head->head_sum[1] = sum.high64;
}

/* Changes a copy of a record. Returns how many bytes of its payload there are. */
static size_t spoil(struct faulty_store *s, enum fault fault, struct record_head *head,
                    uint8_t *payload) {
    size_t bytes = head->bytes;
    const uint32_t at = draw(s, (uint32_t)bytes), bit = draw(s, 8);
    switch (fault) {
    case FAULT_PAYLOAD_BIT:
        payload[at] ^= (uint8_t)(1 << bit);
        break;
    case FAULT_HEAD_BIT:
        ((uint8_t *)head)[at % sizeof *head] ^= (uint8_t)(1 << bit);
        break;
    case FAULT_SHORT:
        bytes = at;
        break;
    case FAULT_TORN:
        memset(payload + bytes / 2, at % 2 ? 0xff : 0, bytes - bytes / 2);
        payload[bytes / 2] ^= 1; /* the half may have been zeros */
        break;
    case FAULT_OTHER_CONTEXT:
        payload[at] ^= 1;
        head->context.word[bit % 2] ^= (uint64_t)1 << at % 64;
        reseal(head, payload);
        break;
    case FAULT_OTHER_TOKENS:
        payload[at] ^= 1;
        head->tokens[at % TILE_TOKENS]++;
        reseal(head, payload);
        break;
    case FAULT_OTHER_PLACE:
        payload[at] ^= 1;
        if (bit % 4 == 0)
            head->number++;
        else if (bit % 4 == 1)
            head->group++;
        else if (bit % 4 == 2)
            head->parent.word[0]++;
        else
            head->k.bits++;
        reseal(head, payload);
        break;
    case FAULT_EXPIRED:
        payload[at] ^= 1;
        head->expires = 1;
        reseal(head, payload);
        break;
    default:
        break;
    }
    return bytes;
}

/* Hands a record to whoever reads, as a tier does. */
static void give(struct tier_read *r, const struct record_head *head, const uint8_t *payload,
                 size_t bytes) {
    if (!record_begin(r, head))
        return;
    bytes = min_size(bytes, r->bytes);
    memcpy(r->payload, payload, bytes);
    for (size_t at = 0; at < bytes; at += 3000)
        record_piece(r, payload + at, min_size(3000, bytes - at));
    if (bytes < r->bytes && !r->unchecked)
        r->result = TIER_DAMAGED;
    else
        record_end(r);
}

static void read_one(struct faulty_tier *t, struct tier_read *r) {
    struct faulty_store *s = t->store;
    pthread_mutex_lock(&s->mutex);
    const struct record *found = *find_record(s, r->key);
    const bool bad = found && t->every && draw(s, t->every) == 0;
    const enum fault fault = bad ? (enum fault)draw(s, FAULTS) : FAULTS;
    if (fault == FAULT_OTHER_RECORD)
        for (uint32_t i = draw(s, (uint32_t)s->records); i > 0 || !found; i--)
            found = found && found->next ? found->next : s->first;
    r->result = found && fault != FAULT_GONE ? TIER_OK : TIER_MISSING;
    if (fault == FAULT_ERROR)
        r->result = TIER_FAILED;
    struct record_head head;
    uint8_t *payload = NULL;
    size_t bytes = 0;
    if (r->result == TIER_OK) {
        head = found->head;
        payload = malloc(head.bytes);
        memcpy(payload, found->payload, head.bytes);
        bytes = spoil(s, fault, &head, payload);
    }
    /* By chance the other record may be the same one. */
    if (bad && !(fault == FAULT_OTHER_RECORD && tier_key_equal(found->head.key, r->key)))
        faults_returned[fault]++;
    pthread_mutex_unlock(&s->mutex);
    if (fault == FAULT_SLOW)
        nanosleep(&(struct timespec){.tv_nsec = t->slow_ms * 1000000L}, NULL);
    if (payload)
        give(r, &head, payload, bytes);
    free(payload);
}

/* ---- the table ------------------------------------------------------------------------------- */

static void faulty_find(struct tier *base, const struct tier_place *place,
                        const struct tier_key *keys, uint32_t n, bool *have, double deadline) {
    struct faulty_store *s = faulty(base)->store;
    (void)place;
    (void)deadline;
    pthread_mutex_lock(&s->mutex);
    for (uint32_t i = 0; i < n; i++)
        have[i] = *find_record(s, keys[i]) != NULL;
    pthread_mutex_unlock(&s->mutex);
}

static void faulty_read(struct tier *base, struct tier_read *reads, uint32_t n, double deadline) {
    (void)deadline;
    for (uint32_t i = 0; i < n; i++) {
        read_one(faulty(base), &reads[i]);
        record_ended(&reads[i]);
    }
}

static bool faulty_write(struct tier *base, const struct record_head *head, const void *payload) {
    struct faulty_store *s = faulty(base)->store;
    struct record *r = malloc(sizeof *r + head->bytes);
    r->head = *head;
    r->next = NULL;
    memcpy(r->payload, payload, head->bytes);
    pthread_mutex_lock(&s->mutex);
    struct record **at = find_record(s, head->key);
    if (*at) { /* equal keys mean equal bytes */
        ASSERT((*at)->head.bytes == head->bytes);
        ASSERT(memcmp((*at)->payload, payload, head->bytes) == 0);
        (*at)->head = *head; /* it may have been dropped, to be written with another life */
        free(r);
    } else {
        *at = r;
        s->records++;
    }
    pthread_mutex_unlock(&s->mutex);
    return true;
}

static void faulty_drop(struct tier *base, const struct tier_place *place, struct tier_key key) {
    (void)base;
    (void)place;
    (void)key; /* the record itself is well */
    faults_dropped++;
}

static bool faulty_forget(struct tier *base, struct tier_key context, const struct tier_key *roots,
                          uint32_t n, const atomic_bool *stop) {
    struct faulty_store *s = faulty(base)->store;
    (void)stop;
    pthread_mutex_lock(&s->mutex);
    for (struct record **at = &s->first; *at;) {
        struct record *r = *at;
        bool named = n == 0;
        for (uint32_t i = 0; i < n; i++)
            named |= tier_key_equal(r->head.root, roots[i]);
        if (named && tier_key_equal(r->head.context, context)) {
            *at = r->next;
            free(r);
            s->records--;
        } else {
            at = &r->next;
        }
    }
    pthread_mutex_unlock(&s->mutex);
    return true;
}

static void faulty_rest(struct tier *base) {
    (void)base;
}
static void faulty_stats(struct tier *base, struct tier_stats *out) {
    (void)base;
    *out = (struct tier_stats){0};
}
static void faulty_destroy(struct tier *base) {
    free(base);
}

#define OPERATIONS                                                                                 \
    .find = faulty_find, .read = faulty_read, .write = faulty_write, .drop = faulty_drop,          \
    .forget = faulty_forget, .rest = faulty_rest, .stats = faulty_stats, .destroy = faulty_destroy

struct tier *faulty_tier_open(struct faulty_store *s, bool instant, uint32_t every,
                              uint32_t slow_ms) {
    static const struct tier_ops OPS[2] = {{.name = "slow", OPERATIONS},
                                           {.name = "quick", .instant = true, OPERATIONS}};
    struct faulty_tier *t = calloc(1, sizeof *t);
    *t = (struct faulty_tier){{&OPS[instant]}, s, every, slow_ms};
    return &t->base;
}
