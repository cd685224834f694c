/* SPDX-License-Identifier: Apache-2.0 */
/* util/meter.h: who decides what a thread may allocate (memory.c). account.h has the one that
 * counts what requests own. */
#ifndef KVASIR_UTIL_METER_H
#define KVASIR_UTIL_METER_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes include what malloc adds. */
struct mem_meter {
    /* False: mem_* return NULL, until the thread frees something also for more bytes, unasked. */
    bool (*take)(struct mem_meter *m, size_t bytes);
    void (*add)(struct mem_meter *m, size_t bytes); /* they are allocated already */
    void (*give)(struct mem_meter *m, size_t bytes);
};
/* Of this thread, from now on; NULL: none. Returns the one before. */
struct mem_meter *mem_meter_set(struct mem_meter *m);

/* For programs, since it changes malloc for the whole process: from now on large allocations go
 * back to the system when they are freed. mem_trim gives back the free memory between small ones;
 * it takes a millisecond for each few MiB. */
void mem_return_large(void);
void mem_trim(void);

#endif
