/* SPDX-License-Identifier: Apache-2.0 */
/* For one file of a test program: counts the calls of malloc and its family, on all threads.
 * COUNTS_ALLOCATIONS is 0 under sanitizers, which replace malloc themselves. A file that defines
 * COUNT_ALLOCATIONS_ON, an expression of type atomic_long *, counts there instead; while it is
 * NULL, calls are not counted. */
#ifndef COUNT_ALLOCATIONS_H
#define COUNT_ALLOCATIONS_H

#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)
#define COUNTS_ALLOCATIONS (!__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer))
#else
#define COUNTS_ALLOCATIONS 1
#endif

#if COUNTS_ALLOCATIONS
#ifndef COUNT_ALLOCATIONS_ON
static long allocations;
#endif

static void count_allocation(void) {
#ifdef COUNT_ALLOCATIONS_ON
    atomic_long *counter = COUNT_ALLOCATIONS_ON;
    if (counter)
        atomic_fetch_add(counter, 1);
#else
    __atomic_add_fetch(&allocations, 1, __ATOMIC_RELAXED);
#endif
}

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size) {
    count_allocation();
    return __libc_malloc(size);
}
void *calloc(size_t n, size_t size) {
    count_allocation();
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t size) {
    count_allocation();
    return __libc_realloc(p, size);
}
void *aligned_alloc(size_t alignment, size_t size) {
    count_allocation();
    return __libc_memalign(alignment, size);
}
#endif

#endif
