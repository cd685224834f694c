/* SPDX-License-Identifier: Apache-2.0 */
/* A tier for tests whose records survive it, and that returns wrong things as often as it is told:
 * each kind of fault that a disk, a network or somebody else's program can produce. */
#ifndef FAULTY_TIER_H
#define FAULTY_TIER_H

#include "cache/tier.h"

enum fault {
    FAULT_PAYLOAD_BIT,   /* one bit is another */
    FAULT_HEAD_BIT,      /* likewise, in the head */
    FAULT_SHORT,         /* the payload ends early */
    FAULT_TORN,          /* the second half is what was there before: zeros */
    FAULT_OTHER_RECORD,  /* a whole and valid record, of another key */
    FAULT_OTHER_CONTEXT, /* below the right key, with valid sums: of other weights, rope, formats */
    FAULT_OTHER_TOKENS,  /* likewise: of other tokens */
    FAULT_OTHER_PLACE,   /* likewise: of another page, group or kind */
    FAULT_EXPIRED,       /* likewise: too old */
    FAULT_GONE,          /* found, but not there any more */
    FAULT_ERROR,         /* an error of the system */
    FAULT_SLOW,          /* correct, after a while */
    FAULTS
};
extern const char *const FAULT_NAMES[FAULTS];

struct faulty_store;
struct faulty_store *faulty_store_create(uint64_t seed);
void faulty_store_destroy(struct faulty_store *s);
void faulty_store_clear(struct faulty_store *s); /* all records are gone */
/* Every nth read has a fault; 0: none has. slow_ms: of FAULT_SLOW. */
struct tier *faulty_tier_open(struct faulty_store *s, bool instant, uint32_t every,
                              uint32_t slow_ms);
/* Faults that were returned so far, of all stores. */
extern _Atomic uint64_t faults_returned[FAULTS];
/* Reads that faults were part of and that were told to be damaged (`drop`). */
extern _Atomic uint64_t faults_dropped;

#endif
