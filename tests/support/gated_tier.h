/* SPDX-License-Identifier: Apache-2.0 */
/* A tier for tests whose records survive it (faulty_tier.h, without faults), with gates at which
 * its calls wait until a test opens them, and counts of what came through. */
#ifndef GATED_TIER_H
#define GATED_TIER_H

#include <pthread.h>

#include "faulty_tier.h"

enum gate { GATE_FIND, GATE_READ, GATE_WRITE, GATE_FORGET, GATE_DROP, GATES };

/* Records that outlive engines, and what a test says about how they are reached. */
struct place {
    struct faulty_store *store;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool closed[GATES];
    uint32_t read_from;         /* GATE_READ is for pages from this number on */
    bool damages;               /* those are damaged */
    uint32_t at[GATES];         /* calls that wait at a gate */
    uint32_t finds, found_keys; /* that were asked for */
    uint32_t reads, read_by_bits[9], writes, written_by_bits[9], drops;
    uint32_t tries;               /* to write */
    uint32_t fails, forget_fails; /* so many writes and forgets are to fail */
    uint32_t forgets, forgotten_roots, forgotten_alls;
    bool down;            /* its figures say so, and it finds nothing */
    uint64_t limit_bytes; /* likewise, what they say */
    uint64_t expires;     /* of the last record that was written */
};

struct place *place_new(void);
void place_free(struct place *p);
struct tier *place_open(struct place *p, bool instant);
void gate_set(struct place *p, enum gate gate, bool closed);
void gate_wait(struct place *p, enum gate gate);   /* until somebody waits at a closed gate */
void place_fail(struct place *p, uint32_t writes); /* so many from now on; UINT32_MAX: all */
/* One of the counts, while engines run. */
uint32_t count_of_place(struct place *p, const uint32_t *count);
/* Until so many records were written, at most 20 s. */
bool place_wait(struct place *p, uint32_t writes);

#endif
