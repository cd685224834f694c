/* SPDX-License-Identifier: Apache-2.0 */
/* null.c: a backend without bytes, threads and kernels, to measure what the cache and the scheduler
 * cost by themselves. It has none of the operations. */
#include <string.h>

#include "backend/host.h"
#include "backend/null/null.h"

/* Most of these ignore their arguments. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

struct backend_arena {
    size_t bytes; /* of address space: the bounds of what callers name */
};

/* ---- life and memory ------------------------------------------------------------------------- */

static void null_destroy(struct backend *b) {
    mem_free(b);
}

static void null_info(const struct backend *b, struct backend_info *out) {
    *out = (struct backend_info){.name = "null",
                                 .kind = "null",
                                 .tier = "null",
                                 .workers = 1,
                                 .act_bits = 8,
                                 .rows_good = UINT32_MAX,
                                 .rows_max = UINT32_MAX,
                                 .logit_rows = 64,
                                 .pages_without_bytes = true,
                                 .gives_pages_back = true};
}

static kvasir_status null_reserve(struct backend *b, const struct backend_limits *limits,
                                  kvasir_error *err) {
    return KVASIR_OK;
}

static kvasir_status null_reserve_centre(struct backend *b, const struct key_centre *c,
                                         kvasir_error *err) {
    return KVASIR_OK;
}

static kvasir_status null_check_layout(const struct backend *b, const struct page_layout *l,
                                       kvasir_error *err) {
    return KVASIR_OK;
}

static kvasir_status null_read(struct backend *b, void *host, const void *device, size_t bytes,
                               kvasir_error *err) {
    memset(host, 0, bytes);
    return KVASIR_OK;
}

static void null_write(struct backend *b, void *device, const void *host, size_t bytes) {}

/* ---- the arena ------------------------------------------------------------------------------- */

static void check_unit(const struct backend_arena *a, uint32_t addr) {
    ASSERT(page_offset(addr) < a->bytes);
}

static struct backend_arena *null_arena_create(struct backend *b, size_t bytes) {
    struct backend_arena *a = mem_calloc(1, sizeof *a);
    if (a)
        a->bytes = bytes;
    return a;
}

static void null_arena_destroy(struct backend *b, struct backend_arena *a) {
    mem_free(a);
}

static void null_arena_take(struct backend *b, struct backend_arena *a, uint32_t addr, size_t bytes,
                            bool fresh) {
    check_unit(a, addr);
}

static void null_arena_release(struct backend *b, struct backend_arena *a, uint32_t addr,
                               size_t bytes) {
    check_unit(a, addr);
}

static void null_arena_copy(struct backend *b, struct backend_arena *a, uint32_t to, uint32_t from,
                            size_t bytes) {
    check_unit(a, to);
    check_unit(a, from);
}

static kvasir_status null_arena_read(struct backend *b, const struct backend_arena *a, size_t at,
                                     void *host, size_t bytes, kvasir_error *err) {
    ASSERT(at < a->bytes);
    memset(host, 0, bytes);
    return KVASIR_OK;
}

static void null_arena_write(struct backend *b, struct backend_arena *a, size_t at,
                             const void *host, size_t bytes) {}

static void null_arena_zero(struct backend *b, struct backend_arena *a, size_t at, size_t width,
                            size_t pitch, size_t count) {}

static void null_page_convert(struct backend *b, struct backend_arena *a,
                              const struct page_conversion *c) {
    check_unit(a, c->from_addr);
    check_unit(a, c->to_addr);
}

static void null_step_begin(struct backend *b, const struct batch *batch, uint32_t groups) {}

#define MEMBER(name) .name = null_##name,
static const struct backend_ops NULL_OPS = {HOST_MEMBERS, .read = null_read, .write = null_write,
                                            BACKEND_MEMBERS(MEMBER)};
#undef MEMBER

kvasir_status backend_null_create(struct backend **out, kvasir_error *err) {
    struct backend *b = mem_calloc(1, sizeof *b);
    if (!b)
        return fail(err, KVASIR_ERR_MEMORY, "backend: out of memory");
    b->ops = &NULL_OPS;
    *out = b;
    return KVASIR_OK;
}
