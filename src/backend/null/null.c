/* SPDX-License-Identifier: Apache-2.0 */
/* null.c: a backend without bytes, threads and kernels, to measure what the cache and the scheduler
 * cost by themselves; and two with bytes (null.h). They have none of the operations. */
#include <stdatomic.h>
#include <string.h>

#include "backend/host.h"
#include "backend/null/null.h"

/* Most of these ignore their arguments. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

struct null_backend {
    struct backend base;
    atomic_bool broken; /* lanes */
};

struct backend_arena {
    size_t bytes;  /* of address space: the bounds of what callers name */
    uint8_t *base; /* [bytes]; NULL: pages have none */
    bool *mapped;  /* [bytes / PAGE_ADDR_UNIT] what was taken or mapped; NULL: there are no lanes */
};

static bool has_bytes(const struct backend *b) {
    return b->ops->arena_host || b->ops->lane_create;
}

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
                                 .pages_without_bytes = !has_bytes(b),
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

static uint8_t *at_byte(const struct backend_arena *a, size_t at, size_t bytes) {
    ASSERT(at <= a->bytes && bytes <= a->bytes - at);
    return a->base + at;
}

static void null_arena_destroy(struct backend *b, struct backend_arena *a) {
    if (a->base)
        mem_unreserve(a->base, a->bytes);
    mem_free(a->mapped);
    mem_free(a);
}

static struct backend_arena *null_arena_create(struct backend *b, size_t bytes) {
    struct backend_arena *a = mem_calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->bytes = bytes;
    if (has_bytes(b))
        a->base = mem_reserve(bytes);
    if (b->ops->lane_create)
        a->mapped = mem_calloc(bytes / PAGE_ADDR_UNIT, sizeof *a->mapped);
    if ((has_bytes(b) && !a->base) || (b->ops->lane_create && !a->mapped)) {
        null_arena_destroy(b, a);
        return NULL;
    }
    return a;
}

static void set_mapped(struct backend_arena *a, uint32_t addr, size_t bytes, bool mapped) {
    check_unit(a, addr);
    if (a->mapped)
        memset(a->mapped + addr, mapped, bytes / PAGE_ADDR_UNIT);
}

static void null_arena_take(struct backend *b, struct backend_arena *a, uint32_t addr, size_t bytes,
                            bool fresh) {
    set_mapped(a, addr, bytes, true);
    if (a->base && !fresh)
        memset(at_byte(a, page_offset(addr), bytes), 0, bytes);
}

static uint8_t *null_arena_host(struct backend *b, struct backend_arena *a, uint32_t addr,
                                size_t bytes) {
    return at_byte(a, page_offset(addr), bytes);
}

static void null_arena_release(struct backend *b, struct backend_arena *a, uint32_t addr,
                               size_t bytes) {
    set_mapped(a, addr, bytes, false);
    if (a->base)
        mem_release(at_byte(a, page_offset(addr), bytes), bytes);
}

static void null_arena_copy(struct backend *b, struct backend_arena *a, uint32_t to, uint32_t from,
                            size_t bytes) {
    check_unit(a, to);
    check_unit(a, from);
    if (a->base)
        memcpy(at_byte(a, page_offset(to), bytes), at_byte(a, page_offset(from), bytes), bytes);
}

static kvasir_status null_arena_read(struct backend *b, const struct backend_arena *a, size_t at,
                                     void *host, size_t bytes, kvasir_error *err) {
    ASSERT(at < a->bytes);
    if (a->base)
        memcpy(host, at_byte(a, at, bytes), bytes);
    else
        memset(host, 0, bytes);
    return KVASIR_OK;
}

static void null_arena_write(struct backend *b, struct backend_arena *a, size_t at,
                             const void *host, size_t bytes) {
    if (a->base)
        memcpy(at_byte(a, at, bytes), host, bytes);
}

static void null_arena_zero(struct backend *b, struct backend_arena *a, size_t at, size_t width,
                            size_t pitch, size_t count) {
    for (size_t i = 0; a->base && i < count; i++)
        memset(at_byte(a, at + i * pitch, width), 0, width);
}

static void null_page_convert(struct backend *b, struct backend_arena *a,
                              const struct page_conversion *c) {
    check_unit(a, c->from_addr);
    check_unit(a, c->to_addr);
}

/* ---- lanes: every copy is done when its call returns ----------------------------------------- */

struct backend_lane {
    struct null_backend *backend;
};

static void *null_pinned_alloc(struct backend *b, size_t bytes) {
    return mem_alloc_aligned(bytes);
}

static void null_pinned_free(struct backend *b, void *p) {
    mem_free(p);
}

static struct backend_lane *null_lane_create(struct backend *b) {
    struct backend_lane *l = mem_calloc(1, sizeof *l);
    if (l)
        l->backend = (struct null_backend *)b;
    return l;
}

static void null_lane_destroy(struct backend *b, struct backend_lane *l) {
    mem_free(l);
}

static void null_lanes_follow(struct backend *b) {}

static void null_arena_map(struct backend *b, struct backend_arena *a, uint32_t addr,
                           size_t bytes) {
    set_mapped(a, addr, bytes, true);
}

static void null_lane_put(struct backend_lane *l, struct backend_arena *a, size_t at,
                          const void *host, size_t bytes) {
    ASSERT(a->mapped[at / PAGE_ADDR_UNIT] && a->mapped[(at + bytes - 1) / PAGE_ADDR_UNIT]);
    if (!l->backend->broken)
        memcpy(at_byte(a, at, bytes), host, bytes);
}

static void null_lane_get(struct backend_lane *l, const struct backend_arena *a, size_t at,
                          void *host, size_t bytes) {
    if (!l->backend->broken)
        memcpy(host, at_byte(a, at, bytes), bytes);
}

static bool null_lane_wait(struct backend_lane *l) {
    return !l->backend->broken;
}

static void null_step_begin(struct backend *b, const struct batch *batch, uint32_t groups) {}

#define MEMBER(name) .name = null_##name,
static const struct backend_ops NULL_OPS = {HOST_MEMBERS, .read = null_read, .write = null_write,
                                            .weight_put = host_weight_put, BACKEND_MEMBERS(MEMBER)};
static const struct backend_ops BYTES_OPS = {HOST_MEMBERS,
                                             .read = host_read,
                                             .write = host_write,
                                             .weight_put = host_weight_put,
                                             .arena_host = null_arena_host,
                                             BACKEND_MEMBERS(MEMBER)};
static const struct backend_ops LANES_OPS = {HOST_MEMBERS, .read = host_read, .write = host_write,
                                             .weight_put = host_weight_put,
                                             LANE_MEMBERS(MEMBER) BACKEND_MEMBERS(MEMBER)};
#undef MEMBER

static kvasir_status create(const struct backend_ops *ops, struct backend **out,
                            kvasir_error *err) {
    struct null_backend *b = mem_calloc(1, sizeof *b);
    if (!b)
        return fail(err, KVASIR_ERR_MEMORY, "backend: out of memory");
    b->base.ops = ops;
    *out = &b->base;
    return KVASIR_OK;
}

kvasir_status backend_null_create(struct backend **out, kvasir_error *err) {
    return create(&NULL_OPS, out, err);
}

kvasir_status backend_null_create_bytes(struct backend **out, kvasir_error *err) {
    return create(&BYTES_OPS, out, err);
}

kvasir_status backend_null_create_lanes(struct backend **out, kvasir_error *err) {
    return create(&LANES_OPS, out, err);
}

void backend_null_break_lanes(struct backend *b, bool broken) {
    ASSERT(b->ops == &LANES_OPS);
    ((struct null_backend *)b)->broken = broken;
}
