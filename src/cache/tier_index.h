/* SPDX-License-Identifier: Apache-2.0 */
/* tier_index.h: which record is where, in memory: at most 53 bytes a record.
 *
 *   entries   [n], dense: the last one moves into a removed one's place
 *   buckets   linear hashing: each add splits at most one bucket and each removal joins at most
 *             two, so nothing is ever rehashed as a whole
 *
 * Both arrays are reserved address space for the most records that can be there, and get memory as
 * they are touched. So no call allocates, and each takes a bounded short time. A bucket is chosen
 * with a secret number: whoever chooses prompts cannot make keys that meet in one bucket.
 *
 * No locks of its own: the caller's. */
#ifndef KVASIR_CACHE_TIER_INDEX_H
#define KVASIR_CACHE_TIER_INDEX_H

#include "cache/tier.h"

struct index_entry {
    struct tier_key key;
    uint32_t next;          /* entry of the same bucket, + 1; 0: none */
    uint32_t segment;       /* slot */
    uint32_t block;         /* of the head, in units of 4 KiB */
    uint32_t units;         /* of the payload, likewise */
    uint32_t context, root; /* tags: the low 32 bits */
    uint32_t expires;       /* seconds since 1970; 0: never */
    uint16_t uses;          /* since it was written; halved when carried to another segment */
    uint8_t kind;
};

struct tier_index {
    struct index_entry *entries;
    uint32_t *buckets; /* first entry + 1 */
    uint32_t n, capacity;
    uint32_t n_buckets;
    uint32_t touched, touched_buckets; /* so many have memory */
    uint64_t secret;
};

bool index_init(struct tier_index *ix, uint64_t capacity) MUST_CHECK; /* false: no memory */
void index_deinit(struct tier_index *ix);
/* For the start: so many entries come, at most, and index_add need not make buckets one by one. */
void index_expect(struct tier_index *ix, uint64_t n);
/* Soon a key is looked for. */
void index_prefetch(struct tier_index *ix, struct tier_key key);
/* NULL: not there. Valid until the next add or removal. */
struct index_entry *index_find(struct tier_index *ix, struct tier_key key);
/* The key is not there yet. False: full. */
bool index_add(struct tier_index *ix, const struct index_entry *entry) MUST_CHECK;
/* Whoever walks from the last entry to the first may remove the current one: what moves into its
 * place was visited. */
void index_remove(struct tier_index *ix, struct index_entry *entry);
/* Gives back memory behind the last entry, at most 1 MiB a call. */
void index_trim(struct tier_index *ix);
uint64_t index_bytes(const struct tier_index *ix); /* memory that it takes */

#endif
