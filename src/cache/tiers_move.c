/* SPDX-License-Identifier: Apache-2.0 */
/* tiers_move.c: how the bytes of a page come to a thread of a tier and from it. tiers_internal.h
 * lists the files.
 *
 *     the host reaches pages    readers are told where a page is; a writer copies it
 *     it does not               a lane (backend.h) copies between the page and memory that the
 *                               device reads at full speed: this thread's own, or a tier's (lend)
 */
#include <string.h>

#include "backend/backend.h"
#include "cache/tiers_internal.h"

bool pages_are_far(const struct tiers *s) {
    return !s->options.now && !s->cache->backend->ops->arena_host;
}

uint32_t tiers_block_bytes(const struct kv_cache *c, uint64_t *most) {
    uint64_t bytes[CACHE_GROUPS_MAX * CACHE_LAYOUTS_MAX + 1];
    uint32_t n = 0;
    *most = c->snapshot_bytes;
    if (c->snapshot_bytes)
        bytes[n++] = c->snapshot_bytes;
    for (uint32_t g = 0; g < c->n_groups; g++)
        for (uint32_t l = 0; l < c->groups[g].n_layouts; l++) {
            const uint64_t page = c->layouts[g][l].page_bytes;
            *most = page > *most ? page : *most;
            if (l != LAYOUT_START || c->rule.start_pages) /* else of shadows alone */
                bytes[n++] = page;
        }
    return tier_memory_block(bytes, n);
}

bool mover_open(const struct tiers *s, uint64_t bytes, struct mover *m) {
    struct backend *b = s->cache->backend;
    *m = (struct mover){.tiers = s};
    if (!pages_are_far(s))
        return bytes == 0 || (m->memory = mem_alloc_aligned(bytes)) != NULL;
    return (m->lane = b->ops->lane_create(b)) != NULL &&
           (bytes == 0 || (m->memory = b->ops->pinned_alloc(b, bytes)) != NULL);
}

void mover_close(struct mover *m) {
    if (!m->tiers)
        return;
    struct backend *b = m->tiers->cache->backend;
    if (!pages_are_far(m->tiers)) {
        mem_free(m->memory);
    } else {
        b->ops->lane_destroy(b, m->lane);
        b->ops->pinned_free(b, m->memory);
    }
    *m = (struct mover){0};
}

bool mover_get(const struct mover *m, uint32_t addr, uint64_t bytes) {
    const struct backend_ops *ops = m->tiers->cache->backend->ops;
    if (!m->lane) {
        memcpy(m->memory, part_host(m->tiers, addr, bytes), bytes);
        return true;
    }
    ops->lane_get(m->lane, pool_arena(m->tiers->cache->pool), page_offset(addr), m->memory, bytes);
    return ops->lane_wait(m->lane);
}

void mover_put(const struct mover *m, uint32_t addr, uint64_t at, const void *from, size_t bytes) {
    m->tiers->cache->backend->ops->lane_put(m->lane, pool_arena(m->tiers->cache->pool),
                                            page_offset(addr) + at, from, bytes);
}

bool mover_wait(const struct mover *m) {
    return m->tiers->cache->backend->ops->lane_wait(m->lane);
}

void movers_follow(const struct tiers *s) {
    if (pages_are_far(s))
        s->cache->backend->ops->lanes_follow(s->cache->backend);
}
