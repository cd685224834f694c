/* SPDX-License-Identifier: Apache-2.0 */
/* tiers_parts.c: a page has a part for each layer group, and one more is the snapshot at its end:
 * the state of recurrent layers and the exact tail. What a part takes, where it is, and what its
 * record is called. Then what threads of all kinds use. tiers_internal.h lists the files.
 */
#include <string.h>

#include "cache/tiers_internal.h"

bool part_is_state(const struct tiers *s, uint32_t part) {
    return part == s->cache->n_groups;
}

uint64_t part_bytes(const struct tiers *s, uint32_t part, uint32_t layout) {
    return part_is_state(s, part) ? s->cache->snapshot_bytes
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

void part_formats(const struct tiers *s, uint32_t part, uint32_t layout, struct record_head *out) {
    out->k = s->cache->layouts[part][layout].k.format;
    out->v = s->cache->layouts[part][layout].v.format;
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
    if (!part_is_state(s, part))
        part_formats(s, part, layout, out);
    memcpy(out->tokens, tokens, sizeof out->tokens);
    out->key = record_key(out);
}

uint32_t layout_of_variant(const struct tiers *s, uint32_t group, uint32_t number,
                           uint32_t variant) {
    const struct layout_rule *rule = variant ? &s->tree->stored_rule : &s->cache->rule;
    return layout_of(rule, group, number);
}

struct kv_page node_part(const struct tiers *s, uint32_t x, uint32_t part, struct tier_key root,
                         struct record_head *out) {
    const struct prefix_tree *t = s->tree;
    const struct kv_page at = part_at(s, x, part);
    int32_t tokens[TILE_TOKENS];
    ASSERT(at.addr != NO_ADDR);
    node_page_tokens(t, x, tokens);
    part_head(s, part, at.layout, t->nodes[x].number, root, t->nodes[node_before_page(t, x)].chain,
              t->nodes[x].chain, tokens, out);
    return at;
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
