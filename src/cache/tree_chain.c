/* SPDX-License-Identifier: Apache-2.0 */
/* tree_chain.c: what the pages of a tree are called in tiers (tier.h). A node that ends a page
 * holds K(i), the hash of all tokens up to there; a root holds K(0). Other nodes have no name: what
 * ends inside a page is not stored outside. A name needs no change when nodes are split or merged,
 * since the lower part stays the same node.
 *
 * The names of pages that went lately are kept, so that a miss can be explained.
 */
#include <string.h>

#include "cache/tree_internal.h"

void tree_chain_begin(struct prefix_tree *t, struct tier_key context) {
    ASSERT(t->stats.nodes == 0);
    t->chained = true;
    t->context = context;
}

uint32_t node_root(const struct prefix_tree *t, uint32_t x) {
    while (!is_root(t, x))
        x = t->nodes[x].parent;
    return x;
}

uint32_t node_before_page(const struct prefix_tree *t, uint32_t x) {
    while (in_parents_page(t, x))
        x = t->nodes[x].parent;
    return t->nodes[x].parent;
}

void node_page_tokens(const struct prefix_tree *t, uint32_t x, int32_t tokens[TILE_TOKENS]) {
    ASSERT(t->nodes[x].to == TILE_TOKENS);
    const uint32_t before = node_before_page(t, x);
    for (uint32_t y = x; y != before; y = t->nodes[y].parent) {
        const struct node *n = &t->nodes[y];
        memcpy(tokens + n->from, n->tokens + n->from, (size_t)(n->to - n->from) * sizeof *tokens);
    }
}

void node_set_chain(struct prefix_tree *t, uint32_t x) {
    struct node *n = &t->nodes[x];
    if (!t->chained)
        return;
    if (is_root(t, x)) {
        n->chain = chain_root(t->context, n->salt->bytes, n->salt->len);
    } else if (n->to == TILE_TOKENS) {
        int32_t tokens[TILE_TOKENS];
        node_page_tokens(t, x, tokens);
        n->chain = chain_next(t->nodes[node_before_page(t, x)].chain, tokens);
    }
}

/* ---- what is gone ---------------------------------------------------------------------------- */

/* Of a name's last bit only its place is used: it says whether the page has expired. */
static struct tier_key gone_key(struct tier_key chain, bool expired) {
    chain.word[1] = (chain.word[1] & ~1ull) | expired;
    return chain;
}

void node_note_gone(struct prefix_tree *t, uint32_t x, bool expired) {
    const struct node *n = &t->nodes[x];
    if (t->chained && n->to == TILE_TOKENS)
        t->gone[n->chain.word[0] % GONE_MAX] = gone_key(n->chain, expired);
}

kvasir_miss tree_why_gone(const struct prefix_tree *t, struct tier_key chain) {
    const struct tier_key gone = t->gone[chain.word[0] % GONE_MAX];
    return tier_key_equal(gone, gone_key(chain, false))  ? KVASIR_MISS_EVICTED
           : tier_key_equal(gone, gone_key(chain, true)) ? KVASIR_MISS_EXPIRED
                                                         : KVASIR_MISS_NEW;
}

void tree_remember_gone(struct prefix_tree *t) {
    tree_chain_begin(t, (struct tier_key){{0}});
}

void tree_forget_gone(struct prefix_tree *t) {
    memset(t->gone, 0, sizeof t->gone);
}
