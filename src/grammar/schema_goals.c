/* SPDX-License-Identifier: Apache-2.0 */
/* schema_goals.c: nodes and sets of literals by number, found again by hash. */
#include <string.h>

#include <xxhash.h>

#include "grammar/schema.h"

/* ---- tables ---------------------------------------------------------------------------------- */

typedef uint64_t hash_fn(const struct schema_compiler *c, uint32_t i);

static uint64_t hash_literals(const uint32_t *literals, uint32_t n) {
    return XXH3_64bits(n ? (const void *)literals : "", n * sizeof *literals);
}

static uint64_t hash_goal(const struct schema_compiler *c, uint32_t i) {
    return hash_literals(c->goals[i].literals, c->goals[i].n);
}

static uint64_t hash_pointer(const json_t *node) {
    return mix_bits((uint64_t)(uintptr_t)node);
}

static uint64_t hash_node(const struct schema_compiler *c, uint32_t i) {
    return hash_pointer(c->nodes[i]);
}

static uint64_t hash_referrer(const struct schema_compiler *c, uint32_t i) {
    return hash_pointer(c->referrers[i].node);
}

static void put(struct schema_table *t, uint64_t hash, uint32_t number) {
    size_t at = hash & (t->size - 1);
    while (t->slots[at])
        at = (at + 1) & (t->size - 1);
    t->slots[at] = number + 1;
}

/* Adds number n, the next one. */
static bool add(struct schema_compiler *c, struct schema_table *t, hash_fn *hash, uint32_t n) {
    enum { SIZE_MIN = 64 };
    if (2 * ((size_t)n + 1) > t->size) {
        const size_t size = t->size ? 2 * t->size : SIZE_MIN;
        uint32_t *slots = mem_calloc(size, sizeof *slots);
        if (!slots)
            return schema_no_memory(c);
        mem_free(t->slots);
        *t = (struct schema_table){slots, size};
        for (uint32_t i = 0; i < n; i++)
            put(t, hash(c, i), i);
    }
    put(t, hash(c, n), n);
    return true;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static bool node_number(struct schema_compiler *c, json_t *node, uint32_t *out) {
    const struct schema_table *t = &c->by_node;
    const size_t mask = t->size - 1;
    if (!schema_take(c, 10))
        return false;
    for (size_t at = hash_pointer(node) & mask; t->size && t->slots[at]; at = (at + 1) & mask)
        if (c->nodes[t->slots[at] - 1] == node) {
            *out = t->slots[at] - 1;
            return true;
        }
    if (!ARRAY_GROW(c->nodes, c->nodes_cap, c->n_nodes + 1))
        return schema_no_memory(c);
    *out = (uint32_t)c->n_nodes;
    c->nodes[c->n_nodes++] = node;
    return add(c, &c->by_node, hash_node, *out);
}

/* ---- goals ----------------------------------------------------------------------------------- */

static bool intern(struct schema_compiler *c, const uint32_t *literals, uint32_t n, uint32_t *out) {
    const struct schema_table *t = &c->by_literals;
    const size_t mask = t->size - 1;
    if (!schema_take(c, 12 + n / 4))
        return false;
    for (size_t at = hash_literals(literals, n) & mask; t->size && t->slots[at];
         at = (at + 1) & mask) {
        const uint32_t i = t->slots[at] - 1;
        if (c->goals[i].n == n && i != GOAL_NONE &&
            (!n || memcmp(c->goals[i].literals, literals, n * sizeof *literals) == 0)) {
            *out = i;
            return true;
        }
    }
    uint32_t *kept = schema_alloc(c, n, sizeof *kept);
    if (!kept)
        return false;
    if (!ARRAY_GROW(c->goals, c->goals_cap, c->n_goals + 1))
        return schema_no_memory(c);
    if (n)
        memcpy(kept, literals, n * sizeof *kept);
    *out = (uint32_t)c->n_goals;
    c->goals[c->n_goals++] = (struct schema_goal){.literals = kept, .n = n, .height = SCHEMA_DEAD};
    return add(c, &c->by_literals, hash_goal, *out);
}

bool schema_goals_begin(struct schema_compiler *c) {
    uint32_t any;
    if (!intern(c, NULL, 0, &any))
        return false;
    if (!ARRAY_GROW(c->goals, c->goals_cap, 2u))
        return schema_no_memory(c);
    ASSERT(any == GOAL_ANY && c->n_goals == GOAL_NONE);
    c->goals[c->n_goals++] = (struct schema_goal){.state = GOAL_DONE, .height = SCHEMA_DEAD};
    return add(c, &c->by_literals, hash_goal, GOAL_NONE);
}

bool schema_join(struct schema_compiler *c, uint32_t x, uint32_t y, uint32_t *out) {
    if (x == GOAL_NONE || y == GOAL_NONE) {
        *out = GOAL_NONE;
        return true;
    }
    ASSERT(x < c->n_goals && y < c->n_goals);
    const struct schema_goal *a = &c->goals[x], *b = &c->goals[y];
    uint32_t *both = mem_calloc(a->n + b->n + 1, sizeof *both), n = 0, i = 0, k = 0;
    bool none = false;
    if (!both)
        return schema_no_memory(c);
    while (i < a->n || k < b->n) {
        const bool first = k == b->n || (i < a->n && a->literals[i] <= b->literals[k]);
        const uint32_t literal = first ? a->literals[i++] : b->literals[k++];
        if (n && both[n - 1] == literal)
            continue;
        none |= n && both[n - 1] == (literal ^ 1); /* it must hold, and must not */
        both[n++] = literal;
    }
    *out = GOAL_NONE;
    const bool good = none || intern(c, both, n, out);
    mem_free(both);
    return good;
}

bool schema_with(struct schema_compiler *c, uint32_t goal, json_t *node, bool negative,
                 uint32_t *out) {
    uint32_t number = 0, one;
    if ((json_is_true(node) && !negative) || (json_is_false(node) && negative)) {
        *out = goal;
        return true;
    }
    if (json_is_boolean(node)) {
        *out = GOAL_NONE;
        return true;
    }
    if (!node_number(c, node, &number))
        return false;
    const uint32_t literal = number * 2 + negative;
    return intern(c, &literal, 1, &one) && schema_join(c, goal, one, out);
}

/* ---- bases ----------------------------------------------------------------------------------- */

bool schema_refers(struct schema_compiler *c, json_t *node, uint32_t base) {
    if (c->n_referrers && c->referrers[c->n_referrers - 1].node == node)
        return true; /* with another keyword */
    if (!schema_take(c, 4))
        return false;
    if (!ARRAY_GROW(c->referrers, c->referrers_cap, c->n_referrers + 1))
        return schema_no_memory(c);
    c->referrers[c->n_referrers++] = (struct schema_referrer){node, base};
    return add(c, &c->by_referrer, hash_referrer, (uint32_t)c->n_referrers - 1);
}

const struct schema_id *schema_base(const struct schema_compiler *c, json_t *node) {
    const struct schema_table *t = &c->by_referrer;
    const size_t mask = t->size - 1;
    for (size_t at = hash_pointer(node) & mask; t->size && t->slots[at]; at = (at + 1) & mask) {
        const struct schema_referrer r = c->referrers[t->slots[at] - 1];
        if (r.node == node)
            return &c->ids[r.base];
    }
    return NULL;
}
