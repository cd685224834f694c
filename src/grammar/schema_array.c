/* SPDX-License-Identifier: Apache-2.0 */
/* schema_array.c: the keywords of arrays. */
#include <string.h>

#include "grammar/schema.h"

/* ---- items ----------------------------------------------------------------------------------- */

/* The first items' schemas, and that of all others (NULL: any). Up to draft 2019 `items` is either,
 * and `additionalItems` the others. */
static bool items_of(struct schema_compiler *c, json_t *node, json_t **first, json_t **rest) {
    json_t *items = json_object_get(node, "items");
    *first = json_object_get(node, "prefixItems");
    *rest = items;
    if (json_is_array(items)) {
        *first = items;
        *rest = json_object_get(node, "additionalItems");
    }
    if (*first && !json_is_array(*first))
        return schema_fail(c, KVASIR_ERR_ARGUMENT, node, "prefixItems", "is not an array");
    json_t *unevaluated = json_object_get(node, "unevaluatedItems");
    if (unevaluated && !*rest && !json_is_true(unevaluated))
        return schema_fail(c, KVASIR_ERR_UNSUPPORTED, node, "unevaluatedItems", "is not supported");
    return true;
}

/* Own copies of at least n first items. */
static bool unshare(struct schema_compiler *c, struct schema_branch *b, uint32_t n) {
    n = n > b->n_prefix ? n : b->n_prefix;
    ASSERT(b->type == SCHEMA_ARRAY);
    uint32_t *prefix = schema_alloc(c, n, sizeof *prefix);
    if (!prefix)
        return false;
    for (uint32_t i = 0; i < n; i++)
        prefix[i] = i < b->n_prefix ? b->prefix[i] : b->rest;
    b->prefix = prefix;
    b->n_prefix = n;
    return true;
}

static bool set_items(struct schema_compiler *c, struct schema_branch *b, json_t *first,
                      json_t *rest) {
    const uint32_t n = (uint32_t)json_array_size(first);
    if (!first && !rest)
        return true;
    if (!unshare(c, b, n))
        return false;
    for (uint32_t i = 0; i < b->n_prefix; i++) {
        json_t *schema = i < n ? json_array_get(first, i) : rest;
        if (schema && !schema_with(c, b->prefix[i], schema, false, &b->prefix[i]))
            return false;
    }
    return !rest || schema_with(c, b->rest, rest, false, &b->rest);
}

/* ---- counts ---------------------------------------------------------------------------------- */

static bool add_counted(struct schema_compiler *c, struct schema_branch *b, json_t *node,
                        struct schema_counted counted) {
    if (counted.min == 0 && counted.max == SCHEMA_UNBOUNDED)
        return true;
    if (b->n_counted == SCHEMA_COUNTED_MAX)
        return schema_fail(c, KVASIR_ERR_UNSUPPORTED, node, "contains",
                           "counts too many kinds of items at once");
    struct schema_counted *all = schema_alloc(c, b->n_counted + 1, sizeof *all);
    if (!all)
        return false;
    if (b->n_counted)
        memcpy(all, b->counted, b->n_counted * sizeof *all);
    all[b->n_counted++] = counted;
    b->counted = all;
    return true;
}

/* *out: min 1, or what minContains and maxContains say; false: failed. */
static bool contains_of(struct schema_compiler *c, json_t *node, struct schema_counted *out) {
    *out = (struct schema_counted){.min = 1, .max = SCHEMA_UNBOUNDED};
    return (!json_object_get(node, "minContains") ||
            schema_count(c, node, "minContains", &out->min)) &&
           (!json_object_get(node, "maxContains") ||
            schema_count(c, node, "maxContains", &out->max)) &&
           schema_with(c, GOAL_ANY, json_object_get(node, "contains"), false, &out->goal);
}

static bool counts(struct schema_compiler *c, struct schema_branch *b, json_t *node) {
    uint32_t count;
    if (json_object_get(node, "minItems")) {
        if (!schema_count(c, node, "minItems", &count))
            return false;
        b->min = count > b->min ? count : b->min;
    }
    if (json_object_get(node, "maxItems")) {
        if (!schema_count(c, node, "maxItems", &count))
            return false;
        b->max = count < b->max ? count : b->max;
    }
    if (!json_object_get(node, "contains"))
        return true;
    struct schema_counted counted;
    return contains_of(c, node, &counted) && add_counted(c, b, node, counted);
}

bool schema_arrays(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                   struct schema_list *out) {
    json_t *first, *rest;
    if (!items_of(c, node, &first, &rest))
        return false;
    for (size_t i = 0; i < in->n; i++) {
        struct schema_branch b = in->all[i];
        if (b.type == SCHEMA_ARRAY) {
            if (!set_items(c, &b, first, rest) || !counts(c, &b, node))
                return false;
            if (json_is_true(json_object_get(node, "uniqueItems")) && b.max > 1)
                return schema_fail(c, KVASIR_ERR_UNSUPPORTED, node, "uniqueItems",
                                   "cannot be enforced while an answer is written");
        }
        if (!schema_add(c, out, &b))
            return false;
    }
    return true;
}

/* ---- what must not hold ---------------------------------------------------------------------- */

static bool item_is_not(struct schema_compiler *c, const struct schema_branch *b, uint32_t at,
                        json_t *schema, struct schema_list *out) {
    struct schema_branch made = *b;
    if (!unshare(c, &made, at + 1) ||
        !schema_with(c, made.prefix[at], schema, true, &made.prefix[at]))
        return false;
    made.min = at + 1 > b->min ? at + 1 : b->min;
    return made.prefix[at] == GOAL_NONE || schema_add(c, out, &made);
}

static bool with_counted(struct schema_compiler *c, const struct schema_branch *b, json_t *node,
                         struct schema_counted counted, struct schema_list *out) {
    struct schema_branch made = *b;
    return counted.goal == GOAL_NONE
               ? counted.min > 0 || schema_add(c, out, &made)
               : unshare(c, &made, counted.from) && add_counted(c, &made, node, counted) &&
                     schema_add(c, out, &made);
}

static bool not_contains(struct schema_compiler *c, const struct schema_branch *b, json_t *node,
                         struct schema_list *out) {
    struct schema_counted counted;
    if (!contains_of(c, node, &counted))
        return false;
    struct schema_counted fewer = counted, more = counted;
    fewer.min = 0;
    fewer.max = counted.min - 1;
    more.min = counted.max + 1;
    more.max = SCHEMA_UNBOUNDED;
    return (counted.min == 0 || with_counted(c, b, node, fewer, out)) &&
           (counted.max == SCHEMA_UNBOUNDED || with_counted(c, b, node, more, out));
}

static bool not_counts(struct schema_compiler *c, const struct schema_branch *b, json_t *node,
                       struct schema_list *out) {
    uint32_t count;
    struct schema_branch made = *b;
    if (json_object_get(node, "minItems")) {
        if (!schema_count(c, node, "minItems", &count))
            return false;
        made.max = count && count - 1 < b->max ? count - 1 : b->max;
        if (count && !schema_add(c, out, &made))
            return false;
    }
    made = *b;
    if (json_object_get(node, "maxItems")) {
        if (!schema_count(c, node, "maxItems", &count))
            return false;
        made.min = count + 1 > b->min ? count + 1 : b->min;
        if (!schema_add(c, out, &made))
            return false;
    }
    return true;
}

bool schema_not_arrays(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                       struct schema_list *out) {
    json_t *first, *rest, *schema;
    size_t k;
    if (!items_of(c, node, &first, &rest))
        return false;
    for (size_t i = 0; i < in->n; i++) {
        const struct schema_branch *b = &in->all[i];
        if (b->type != SCHEMA_ARRAY)
            continue;
        if (json_is_true(json_object_get(node, "uniqueItems")))
            return schema_fail(c, KVASIR_ERR_UNSUPPORTED, node, "uniqueItems",
                               "cannot be enforced while an answer is written");
        json_array_foreach(first, k, schema) {
            if (!item_is_not(c, b, (uint32_t)k, schema, out))
                return false;
        }
        if (rest) {
            struct schema_counted some = {
                .min = 1, .max = SCHEMA_UNBOUNDED, .from = (uint32_t)json_array_size(first)};
            if (!schema_with(c, GOAL_ANY, rest, true, &some.goal) ||
                !with_counted(c, b, node, some, out))
                return false;
        }
        if (!not_counts(c, b, node, out) ||
            (json_object_get(node, "contains") && !not_contains(c, b, node, out)))
            return false;
    }
    return true;
}

/* ---- values ---------------------------------------------------------------------------------- */

static json_t *only(struct schema_compiler *c, json_t *value) {
    return schema_make(c, json_pack("{s:O}", "const", value));
}

bool schema_is_array(struct schema_compiler *c, const struct schema_branch *b, json_t *value,
                     struct schema_list *out) {
    struct schema_branch made = *b;
    const uint32_t n = (uint32_t)json_array_size(value);
    if (n < b->min || n > b->max)
        return true;
    if (!unshare(c, &made, n))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        json_t *schema = only(c, json_array_get(value, i));
        if (!schema || !schema_with(c, made.prefix[i], schema, false, &made.prefix[i]))
            return false;
    }
    made.min = made.max = n;
    return schema_add(c, out, &made);
}

bool schema_is_no_array(struct schema_compiler *c, const struct schema_branch *b, json_t *value,
                        struct schema_list *out) {
    const uint32_t n = (uint32_t)json_array_size(value);
    struct schema_branch shorter = *b, longer = *b;
    shorter.max = n && n - 1 < b->max ? n - 1 : b->max;
    longer.min = n + 1 > b->min ? n + 1 : b->min;
    if ((n && !schema_add(c, out, &shorter)) || !schema_add(c, out, &longer))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        json_t *schema = only(c, json_array_get(value, i));
        if (!schema || !item_is_not(c, b, i, schema, out))
            return false;
    }
    return true;
}
