/* SPDX-License-Identifier: Apache-2.0 */
/* work.h: threads for work that takes as long as a client's text is long (work.c): parsing,
 * templates, tokenizing. HTTP's threads only hand it over, so that they always have time for other
 * requests. */
#ifndef SERVER_WORK_H
#define SERVER_WORK_H

#include <stddef.h>
#include <stdint.h>

/* Part of what is worked on. */
struct work {
    struct work *next;
    void (*run)(struct work *work); /* on a worker; may free what contains it */
    size_t bytes;                   /* of the text: work on little has a thread of its own */
};

struct work_pool;
/* NULL: out of memory, or no thread. */
struct work_pool *work_pool_create(void);
/* After work_pool_end it runs at once, on the caller's thread. */
void work_pool_add(struct work_pool *pool, struct work *work);
uint32_t work_pool_waiting(struct work_pool *pool); /* added and not begun */
/* Runs what was added, then ends the threads. */
void work_pool_end(struct work_pool *pool);
void work_pool_destroy(struct work_pool *pool); /* once ended; NULL is allowed */

#endif
