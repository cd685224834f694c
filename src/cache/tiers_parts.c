/* SPDX-License-Identifier: Apache-2.0 */
/* tiers_parts.c: a page has a part for each layer group, and one more is the state of recurrent
 * layers. What a part takes, where it is, and what its record is called. Then what threads of all
 * kinds use. tiers_internal.h lists the files.
 */
#include <string.h>

#include "cache/tiers_internal.h"

bool part_is_state(const struct tiers *s, uint32_t part) {
    return part == s->cache->n_groups;
}

uint64_t part_bytes(const struct tiers *s, uint32_t part, uint32_t layout) {
    return part_is_state(s, part) ? s->cache->state_page_bytes
                                  : s->cache->layouts[part][layout].page_bytes;
}

struct kv_page part_at(const struct tiers *s, uint32_t x, uint32_t part) {
    if (x == NO_NODE)
        return (struct kv_page){.addr = NO_ADDR};
    return part_is_state(s, part) ? (struct kv_page){.addr = s->tree->nodes[x].state}
                                  : *node_page(s->tree, x, part);
}

uint8_t *part_host(const struct tiers *s, uint32_t addr, uint64_t bytes) {
    struct backend *b = s->cache->backend;
    if (s->options.now)
        return NULL;
    return b->ops->arena_host(b, pool_arena(s->cache->pool), addr, bytes);
}

void part_head(const struct tiers *s, uint32_t part, uint32_t layout, uint32_t number,
               struct tier_key root, struct tier_key parent, struct tier_key chain,
               const int32_t tokens[TILE_TOKENS], struct record_head *out) {
    *out = (struct record_head){.kind = part_is_state(s, part) ? RECORD_STATE : RECORD_PAGE,
                                .group = part_is_state(s, part) ? 0 : part,
                                .chain = chain,
                                .parent = parent,
                                .root = root,
                                .context = s->options.context,
                                .number = number,
                                .bytes = part_bytes(s, part, layout)};
    if (!part_is_state(s, part)) {
        out->k = s->cache->layouts[part][layout].k.format;
        out->v = s->cache->layouts[part][layout].v.format;
    }
    memcpy(out->tokens, tokens, sizeof out->tokens);
    out->key = record_key(out);
}

void wake_owner(const struct tiers *s) {
    if (s->options.wake)
        s->options.wake(s->options.user);
}

double longer_pause(double pause) {
    static const double LEAST = 1, MOST = 64;
    if (pause <= 0)
        return LEAST;
    return 2 * pause < MOST ? 2 * pause : MOST;
}
