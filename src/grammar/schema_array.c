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
                b.unique = node;
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

/* Equal for JSON Schema: 1 is 1.0. */
static bool is_same(json_t *x, json_t *y) {
    const char *key;
    json_t *value;
    size_t i;
    if (json_is_number(x) && json_is_number(y) && json_typeof(x) != json_typeof(y))
        return json_number_value(x) == json_number_value(y);
    if (json_typeof(x) != json_typeof(y) || json_object_size(x) != json_object_size(y) ||
        json_array_size(x) != json_array_size(y))
        return false;
    json_object_foreach(x, key, value) {
        json_t *other = json_object_get(y, key);
        if (!other || !is_same(value, other))
            return false;
    }
    json_array_foreach(x, i, value) {
        if (!is_same(value, json_array_get(y, i)))
            return false;
    }
    return json_is_object(x) || json_is_array(x) || json_equal(x, y);
}

static bool has_same(json_t *values, json_t *value, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (is_same(json_array_get(values, i), value))
            return true;
    return false;
}

static bool has_equals(json_t *values) {
    json_t *value;
    size_t i;
    json_array_foreach(values, i, value) {
        if (has_same(values, value, i))
            return true;
    }
    return false;
}

static json_t *only(struct schema_compiler *c, json_t *value) {
    return schema_make(c, json_pack("{s:O}", "const", value));
}

bool schema_is_array(struct schema_compiler *c, const struct schema_branch *b, json_t *value,
                     struct schema_list *out) {
    struct schema_branch made = *b;
    const uint32_t n = (uint32_t)json_array_size(value);
    if (n < b->min || n > b->max)
        return true;
    if (b->unique && (!schema_take(c, (uint64_t)n * n) || has_equals(value)))
        return !c->status;
    made.unique = NULL;
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

/* ---- items that are all different ------------------------------------------------------------ */

enum { VALUES_MAX = 256, VALUES_DEPTH = 16 };

static bool add_value(struct schema_compiler *c, json_t *values, json_t *value) {
    const size_t n = json_array_size(values);
    if (n == VALUES_MAX || !schema_take(c, 20 + 4 * n))
        return false;
    return has_same(values, value, n) || json_array_append(values, value) == 0 ||
           schema_no_memory(c);
}

/* The values of a type, or of several; false: they are not few. */
static bool add_types(struct schema_compiler *c, json_t *values, json_t *type) {
    json_t *one;
    size_t i;
    const char *name = json_string_value(type);
    if (name && strcmp(name, "null") == 0)
        return add_value(c, values, json_null());
    if (name && strcmp(name, "boolean") == 0)
        return add_value(c, values, json_true()) && add_value(c, values, json_false());
    json_array_foreach(type, i, one) {
        if (!add_types(c, values, one))
            return false;
    }
    return json_array_size(type) > 0;
}

static bool add_all(struct schema_compiler *c, json_t *values, json_t *all) {
    json_t *one;
    size_t i;
    json_array_foreach(all, i, one) {
        if (!add_value(c, values, one))
            return false;
    }
    return true;
}

/* Adds all values that can meet the schema, and perhaps others. False: they are not few, or not
 * listed, or it failed. */
static bool add_values(struct schema_compiler *c, json_t *values, json_t *node, unsigned depth) {
    static const char *const SOME[] = {"anyOf", "oneOf"};
    json_t *list = json_object_get(node, "enum"), *one = json_object_get(node, "const"),
           *type = json_object_get(node, "type");
    json_t *reference = json_object_get(node, "$ref");
    const bool only_reference = c->legacy && reference;
    size_t i;
    if (depth > VALUES_DEPTH || !schema_take(c, 20))
        return false;
    if (list && !only_reference)
        return json_is_array(list) && add_all(c, values, list);
    if (one && !only_reference)
        return add_value(c, values, one);
    if (type && !only_reference && add_types(c, values, type))
        return true;
    for (int k = 0; k < 2 && !only_reference; k++) {
        json_t *some = json_object_get(node, SOME[k]);
        bool good = json_array_size(some) > 0;
        json_array_foreach(some, i, one) {
            good = good && add_values(c, values, one, depth + 1);
        }
        if (good)
            return true;
    }
    json_array_foreach(json_object_get(node, "allOf"), i, one) {
        if (!only_reference && add_values(c, values, one, depth + 1))
            return true;
    }
    json_t *to = json_is_string(reference)
                     ? schema_resolve(c, node, "$ref", json_string_value(reference))
                     : NULL;
    return to && add_values(c, values, to, depth + 1);
}

uint32_t *schema_item_values(struct schema_compiler *c, const struct schema_branch *b,
                             uint32_t *n) {
    const struct schema_goal g = c->goals[b->rest];
    json_t *values = schema_make(c, json_array()), *value;
    bool listed = false;
    size_t i;
    if (!values)
        return NULL;
    for (uint32_t k = 0; k < g.n && !listed && !c->status && b->rest != GOAL_NONE; k++)
        listed = !(g.literals[k] & 1) && add_values(c, values, c->nodes[g.literals[k] / 2], 0);
    if (c->status)
        return NULL;
    if ((!listed && b->rest != GOAL_NONE) || b->n_prefix || b->n_counted) {
        schema_fail(c, KVASIR_ERR_UNSUPPORTED, b->unique, "uniqueItems",
                    "cannot be enforced while an answer is written, unless all items are of one "
                    "short enum");
        return NULL;
    }
    uint32_t *goals = schema_alloc(c, json_array_size(values), sizeof *goals);
    *n = 0;
    json_array_foreach(values, i, value) {
        json_t *schema = goals ? only(c, value) : NULL;
        if (!schema || !schema_with(c, b->rest, schema, false, &goals[*n]))
            return NULL;
        *n += goals[*n] != GOAL_NONE;
    }
    return goals;
}
