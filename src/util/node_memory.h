/* SPDX-License-Identifier: Apache-2.0 */
/* node_memory.h: on which memory node pages of the system lie (4 KiB or larger). These are
 * requests: where the kernel refuses (a container without CAP_SYS_NICE, a page that another process
 * maps, too), pages stay where they are, and reading them only takes longer. From any thread. */
#ifndef KVASIR_UTIL_NODE_MEMORY_H
#define KVASIR_UTIL_NODE_MEMORY_H

#include "util/topology.h"

/* Has [at, at + bytes) in memory, read from its file if it must be, and on node `number` (the
 * system's). A page is where its first byte belongs: one that begins before `at` is left alone. */
void node_memory_move(const void *at, size_t bytes, int number);

/* Pages that [at, at + bytes), of which none is in memory yet, will get later take turns at all
 * nodes. at: a multiple of 4096. */
void node_memory_interleave(void *at, size_t bytes, const struct topology *t);

#endif
