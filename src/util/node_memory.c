/* SPDX-License-Identifier: Apache-2.0 */
/* node_memory.c: the system calls that place memory, without libnuma, which is not needed for two
 * of them. Whoever may call them while a server runs: LOADING of cli/sandbox.c. */
#define _GNU_SOURCE
#include "util/node_memory.h"

#include <linux/mempolicy.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Pages of a call, and the highest number of a node that the kernel knows, plus 1. */
enum { PAGES_MAX = 512, NUMBERS_MAX = 1024 };

void node_memory_move(const void *at, size_t bytes, int number) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const uintptr_t end = (uintptr_t)at + bytes;
    uintptr_t next = round_up((uintptr_t)at, page);
    void *pages[PAGES_MAX];
    int nodes[PAGES_MAX], result[PAGES_MAX];
    if (next >= end)
        return;
#ifdef MADV_POPULATE_READ /* older kernels refuse: then only what is in memory is moved */
    madvise((void *)next, round_up(end - next, page), MADV_POPULATE_READ);
#endif
    while (next < end) {
        unsigned long n = 0;
        for (; n < PAGES_MAX && next < end; n++, next += page) {
            pages[n] = (void *)next;
            nodes[n] = number;
        }
        (void)syscall(SYS_move_pages, 0, n, pages, nodes, result, MPOL_MF_MOVE);
    }
}

void node_memory_interleave(void *at, size_t bytes, const struct topology *t) {
    enum { BITS = 8 * sizeof(unsigned long) };
    unsigned long mask[NUMBERS_MAX / BITS] = {0};
    ASSERT((uintptr_t)at % 4096 == 0 && t->nodes >= 1);
    for (int i = 0; i < t->nodes; i++)
        if (t->node_number[i] < NUMBERS_MAX)
            mask[t->node_number[i] / BITS] |= 1UL << t->node_number[i] % BITS;
    /* The kernel takes one bit less than it is told. */
    (void)syscall(SYS_mbind, at, bytes, MPOL_INTERLEAVE, mask, (unsigned long)NUMBERS_MAX + 1, 0);
}
