/* SPDX-License-Identifier: Apache-2.0 */
/* backend.c: what is the same for every backend's table. */
#include "backend/backend.h"

const char *backend_absent(const struct backend *b, uint32_t i) {
#define ABSENT(name)                                                                               \
    if (!b->ops->name && i-- == 0)                                                                 \
        return #name;
    BACKEND_OPERATIONS(ABSENT)
#undef ABSENT
    return NULL;
}
