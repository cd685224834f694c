/* SPDX-License-Identifier: Apache-2.0 */
/* A Redis that lies: it keeps what is SET and answers GET and EXISTS with a fault of a kind. A
 * thread of the test serves each connection. It knows how values look (docs/tiers.md) but not the
 * secret, so what it forges has valid sums and no valid MAC. */
#ifndef LYING_REDIS_H
#define LYING_REDIS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum lie {
    LIE_NONE,
    LIE_FLIP,      /* one bit of the value, anywhere */
    LIE_OTHER,     /* the value of another key of the same length */
    LIE_FORGE,     /* another payload under sums that are right */
    LIE_CLAIM,     /* another record's payload under this name and right sums, for other tokens */
    LIE_MISS,      /* it is not there */
    LIE_SHORT,     /* fewer bytes, and it says so */
    LIE_LONG,      /* more bytes, and it says so */
    LIE_LENGTH,    /* more bytes than it says */
    LIE_CUT,       /* hangs up in the middle of a value */
    LIE_CLOSE,     /* hangs up instead of answering */
    LIE_STALL,     /* half of a value, then nothing */
    LIE_HANG,      /* nothing */
    LIE_DRIP,      /* a byte now and then */
    LIE_HUGE,      /* a value of 9 EB */
    LIE_LARGE,     /* a value of 400 MB, of which bytes do come */
    LIE_NEGATIVE,  /* a value of -7 bytes */
    LIE_ARRAY,     /* 2,000,000,000 elements */
    LIE_NESTED,    /* arrays in arrays */
    LIE_INTEGER,   /* another type */
    LIE_STATUS,    /* +OK */
    LIE_TYPE,      /* WRONGTYPE */
    LIE_LOADING,   /* LOADING */
    LIE_ERROR,     /* an error with control characters in its text */
    LIE_LINE,      /* a line that never ends */
    LIE_NOISE,     /* random bytes */
    LIE_MOVED,     /* to itself, for ever */
    LIE_ASK,       /* likewise */
    LIE_MOVED_BAD, /* to an address that makes no sense */
    LIES
};
const char *lie_name(enum lie lie);

enum { LYING_VALUES = 4096 };
struct lying_value {
    char name[128];
    uint8_t *bytes;
    uint64_t len;
};
struct lying_redis {
    _Atomic int lie;
    _Atomic bool only_values;  /* other answers than those of GET are right */
    _Atomic unsigned sound;    /* so many values are still right */
    _Atomic bool full;         /* SET: there is no memory */
    _Atomic uint64_t seed;     /* of what is random in lies */
    _Atomic uint64_t told;     /* lies so far, and values refused */
    _Atomic uint64_t commands; /* received */
    uint16_t port;
    char url[64];
    struct lying_redis_private *p;
};
bool lying_redis_start(struct lying_redis *s);
void lying_redis_stop(struct lying_redis *s);
/* It has nothing, and tells the truth. Nobody is connected. */
void lying_redis_empty(struct lying_redis *s);

#endif
