/* SPDX-License-Identifier: Apache-2.0 */
/* ahead.h: a thread that gets memory for addresses before the engine's thread uses them, so that
 * decode steps cause no page faults while a cache grows.
 *
 * The engine's thread names ranges, at most AHEAD_RANGES at a time, and never waits but in
 * ahead_wait. The thread asks the system for their memory; it reads and writes none of their bytes,
 * so the owner may use them meanwhile: what has no memory yet costs a page fault, as ever.
 */
#ifndef KVASIR_AHEAD_H
#define KVASIR_AHEAD_H

#include "backend/backend.h"

enum { AHEAD_RANGES = 16 };

struct ahead;

/* NULL: there is no thread, or the backend has no use for one. `arena` must live as long. */
struct ahead *ahead_create(struct backend *b, struct backend_arena *arena);
void ahead_destroy(struct ahead *a); /* or NULL */
/* A page of the arena. False: the list is full, nothing was done. */
bool ahead_page(struct ahead *a, uint32_t addr, size_t bytes);
/* A table in address space that mem_reserve gave. Nothing happens if the list is full. */
void ahead_table(struct ahead *a, void *at, size_t bytes);
/* Returns once no range is listed or worked on. Before memory is given back: else a range could get
 * it again afterwards, and nobody would count it. */
void ahead_wait(struct ahead *a);

#endif
