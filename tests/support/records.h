/* SPDX-License-Identifier: Apache-2.0 */
/* Records for tests of tiers: made from a number, so that whoever reads one knows what it must be.
 */
#ifndef RECORDS_H
#define RECORDS_H

#include <stdlib.h>
#include <string.h>

#include "cache/tier.h"

struct test_record {
    struct record_head head;
    uint8_t *payload; /* [head.bytes], aligned to 64 bytes */
};

static inline struct tier_key test_key(uint64_t a, uint64_t b) {
    return (struct tier_key){{mix_bits(a), mix_bits(b ^ 0x5555)}};
}

/* Page `number` of a conversation of this root. */
static inline struct test_record record_make(uint64_t number, uint64_t root, uint64_t bytes) {
    struct test_record r = {.head = {.kind = RECORD_PAGE,
                                     .group = 1,
                                     .chain = test_key(number + 1, root),
                                     .parent = test_key(number, root),
                                     .root = test_key(0, root),
                                     .context = test_key(7, 7),
                                     .number = (uint32_t)number,
                                     .bytes = bytes,
                                     .written = 1}};
    r.payload = aligned_alloc(64, round_up(bytes, 64));
    if (!r.payload)
        abort();
    for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
        const uint64_t word = mix_bits(number * 1000003 + root * 7919 + i);
        memcpy(r.payload + i, &word, 8);
    }
    record_seal(&r.head, r.payload);
    return r;
}

static inline void record_free(struct test_record *r) {
    free(r->payload);
    r->payload = NULL;
}

static inline struct tier_place record_place(const struct test_record *r) {
    return (struct tier_place){r->head.context, r->head.root};
}

/* A read of it into fresh memory, which holds something else before. */
static inline struct tier_read record_read(const struct test_record *r) {
    struct tier_read read = {.key = r->head.key,
                             .context = r->head.context,
                             .root = r->head.root,
                             .bytes = r->head.bytes,
                             .payload = aligned_alloc(64, round_up(r->head.bytes, 64)),
                             .result = TIER_RESULTS};
    if (!read.payload)
        abort();
    memset(read.payload, 0xee, r->head.bytes);
    return read;
}

/* Whether what was read is it, to the bit. */
static inline bool record_same(const struct test_record *r, const struct tier_read *read) {
    return memcmp(&r->head, &read->head, sizeof r->head) == 0 &&
           memcmp(r->payload, read->payload, r->head.bytes) == 0;
}

/* The result of reading one record; TIER_OK only if it is right to the bit. */
static inline enum tier_result record_fetch(struct tier *t, const struct test_record *r,
                                            double deadline) {
    struct tier_read read = record_read(r);
    t->ops->read(t, &read, 1, deadline);
    const enum tier_result result = read.result;
    if (result == TIER_OK && !record_same(r, &read))
        abort(); /* wrong bytes: what must never happen */
    free(read.payload);
    return result;
}

static inline bool record_found(struct tier *t, const struct test_record *r) {
    const struct tier_place place = record_place(r);
    bool have = true;
    t->ops->find(t, &place, &r->head.key, 1, &have, clock_seconds() + 10);
    return have;
}

#endif
