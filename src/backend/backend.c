/* SPDX-License-Identifier: Apache-2.0 */
/* backend.c: what is the same for every backend's table. */
#include "backend/host.h"

/* The lists name every member: a table that is made from them has no hole. */
#define ONE(name) +1
enum {
    LISTED = 0 BACKEND_MEMBERS(ONE) BACKEND_OPERATIONS(ONE) LANE_MEMBERS(ONE),
    /* flush, alloc, free, upload, upload_free, read, fetch, write, pick, weight_put,
     * weight_drop, arena_populate, arena_host, host_run, reserve_basis */
    UNLISTED = 15
};
#undef ONE
_Static_assert(sizeof(struct backend_ops) == (LISTED + UNLISTED) * sizeof(void (*)(void)),
               "a member is in no list");

const char *backend_absent(const struct backend *b, uint32_t i) {
#define ABSENT(name)                                                                               \
    if (!b->ops->name && i-- == 0)                                                                 \
        return #name;
    BACKEND_OPERATIONS(ABSENT)
#undef ABSENT
    return NULL;
}
