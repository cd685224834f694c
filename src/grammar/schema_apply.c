/* SPDX-License-Identifier: Apache-2.0 */
/* schema_apply.c: a node of a schema on branches: references and combinators. The keywords of each
 * type are in schema_scalar.c, schema_object.c and schema_array.c.
 *
 *     holds        all of its keywords hold, one after the other
 *     must not     one of its keywords must not hold: the branches of each, side by side
 */
#include <string.h>

#include "grammar/schema.h"

enum { DEPTH_MAX = 60, NESTED_MAX = 24 };

/* ---- one after the other --------------------------------------------------------------------- */

typedef bool apply_fn(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                      struct schema_list *out);

/* *list becomes what fn makes of it. */
static bool then(struct schema_compiler *c, struct schema_list *list, json_t *node, apply_fn *fn) {
    struct schema_list out = {0};
    const bool good = fn(c, list, node, &out);
    schema_list_free(list);
    *list = out;
    return good;
}

static bool then_apply(struct schema_compiler *c, struct schema_list *list, json_t *node,
                       bool negative) {
    struct schema_list out = {0};
    const bool good = schema_apply(c, list, node, negative, &out);
    schema_list_free(list);
    *list = out;
    return good;
}

static bool copy(struct schema_compiler *c, const struct schema_list *in, struct schema_list *out) {
    for (size_t i = 0; i < in->n; i++)
        if (!schema_add(c, out, &in->all[i]))
            return false;
    return true;
}

static bool schemas_of(struct schema_compiler *c, json_t *node, const char *keyword, json_t **all) {
    *all = json_object_get(node, keyword);
    return !*all || (json_is_array(*all) && json_array_size(*all)) ||
           schema_fail(c, KVASIR_ERR_ARGUMENT, node, keyword, "is not an array of schemas");
}

/* ---- combinators ----------------------------------------------------------------------------- */

/* All of a node's keywords but combinators; their place in the order does not matter. */
static bool all_of(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                   struct schema_list *out) {
    json_t *all, *one;
    size_t i;
    if (!copy(c, in, out) || !schemas_of(c, node, "allOf", &all))
        return false;
    json_array_foreach(all, i, one) {
        if (!then_apply(c, out, one, false))
            return false;
    }
    return true;
}

static bool any_of(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                   struct schema_list *out) {
    json_t *all, *one;
    size_t i;
    if (!schemas_of(c, node, "anyOf", &all))
        return false;
    if (!all)
        return copy(c, in, out);
    json_array_foreach(all, i, one) {
        if (!schema_apply(c, in, one, false, out))
            return false;
    }
    return true;
}

/* Schema `which`, and none of the others. */
static bool only_one(struct schema_compiler *c, const struct schema_list *in, json_t *all,
                     size_t which, struct schema_list *out) {
    struct schema_list mine = {0};
    json_t *one;
    size_t i;
    bool good = schema_apply(c, in, json_array_get(all, which), false, &mine);
    json_array_foreach(all, i, one) {
        struct schema_list both = {0};
        if (!good || i == which || mine.n == 0)
            continue;
        good = schema_apply(c, &mine, one, false, &both);
        if (good && both.n) /* otherwise they exclude each other */
            good = then_apply(c, &mine, one, true);
        schema_list_free(&both);
    }
    good = good && copy(c, &mine, out);
    schema_list_free(&mine);
    return good;
}

static bool one_of(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                   struct schema_list *out) {
    json_t *all;
    if (!schemas_of(c, node, "oneOf", &all))
        return false;
    if (!all)
        return copy(c, in, out);
    for (size_t i = 0; i < json_array_size(all); i++)
        if (!only_one(c, in, all, i, out))
            return false;
    return true;
}

static bool not_one_of(struct schema_compiler *c, const struct schema_list *in, json_t *all,
                       struct schema_list *out) {
    struct schema_list none = {0};
    json_t *one, *other;
    size_t i, k;
    bool good = copy(c, in, &none);
    json_array_foreach(all, i, one) {
        good = good && then_apply(c, &none, one, true);
    }
    good = good && copy(c, &none, out);
    schema_list_free(&none);
    json_array_foreach(all, i, one) { /* or two of them */
        for (k = i + 1; good && k < json_array_size(all); k++) {
            struct schema_list both = {0};
            other = json_array_get(all, k);
            good = schema_apply(c, in, one, false, &both) && then_apply(c, &both, other, false) &&
                   copy(c, &both, out);
            schema_list_free(&both);
        }
    }
    return good;
}

/* Both of two: the second if, or if not, the first holds. */
static bool both_of(struct schema_compiler *c, const struct schema_list *in, json_t *first,
                    bool first_negative, json_t *second, bool second_negative,
                    struct schema_list *out) {
    struct schema_list mine = {0};
    bool good = schema_apply(c, in, first, first_negative, &mine);
    if (good && second)
        good = then_apply(c, &mine, second, second_negative);
    else if (second_negative) /* there is none, and it must not hold */
        mine.n = 0;
    good = good && copy(c, &mine, out);
    schema_list_free(&mine);
    return good;
}

static bool if_then(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                    bool negative, struct schema_list *out) {
    json_t *condition = json_object_get(node, "if"), *yes = json_object_get(node, "then"),
           *no = json_object_get(node, "else");
    return both_of(c, in, condition, false, yes, negative, out) &&
           both_of(c, in, condition, true, no, negative, out);
}

static bool condition(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                      struct schema_list *out) {
    return json_object_get(node, "if") ? if_then(c, in, node, false, out) : copy(c, in, out);
}

static bool not_that(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                     struct schema_list *out) {
    json_t *inner = json_object_get(node, "not");
    return inner ? schema_apply(c, in, inner, true, out) : copy(c, in, out);
}

/* ---- references ------------------------------------------------------------------------------ */

static bool references(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                       bool negative, bool *any, struct schema_list *out) {
    bool good = true;
    *any = false;
    for (size_t i = 0; good && i < SCHEMA_REFERENCES; i++) {
        json_t *reference = json_object_get(node, SCHEMA_REFERENCE[i]);
        if (!reference)
            continue;
        if (!json_is_string(reference))
            return schema_fail(c, KVASIR_ERR_ARGUMENT, node, SCHEMA_REFERENCE[i], "is not a text");
        json_t *to = schema_resolve(c, node, SCHEMA_REFERENCE[i], json_string_value(reference));
        *any = true;
        good = to && schema_apply(c, in, to, negative, out);
    }
    return good;
}

static bool referred(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                     struct schema_list *out) {
    bool any;
    const size_t before = out->n;
    if (!references(c, in, node, false, &any, out))
        return false;
    ASSERT(any || out->n == before);
    return any || copy(c, in, out);
}

/* ---- all keywords ---------------------------------------------------------------------------- */

static bool by_value(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                     struct schema_list *out) {
    json_t *list = json_object_get(node, "enum"), *one = json_object_get(node, "const");
    if (list && !json_is_array(list))
        return schema_fail(c, KVASIR_ERR_ARGUMENT, node, "enum", "is not an array");
    struct schema_list mine = {0};
    json_t *single = one ? json_pack("[O]", one) : NULL;
    bool good = list ? schema_value(c, in, node, list, false, &mine) : copy(c, in, &mine);
    if (good && one)
        good = single ? schema_value(c, &mine, node, single, false, out) : schema_no_memory(c);
    else
        good = good && copy(c, &mine, out);
    json_decref(single);
    schema_list_free(&mine);
    return good;
}

static bool not_by_value(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                         struct schema_list *out) {
    json_t *list = json_object_get(node, "enum"), *one = json_object_get(node, "const");
    bool good = !list || schema_value(c, in, node, list, true, out);
    if (good && one) {
        json_t *single = json_pack("[O]", one);
        good = single ? schema_value(c, in, node, single, true, out) : schema_no_memory(c);
        json_decref(single);
    }
    return good;
}

static bool holds(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                  struct schema_list *out) {
    static apply_fn *const STEPS[] = {by_value, schema_scalars, schema_objects, schema_arrays,
                                      referred, not_that,       all_of,         condition,
                                      any_of,   one_of};
    struct schema_list list = {0};
    const bool only = c->legacy && json_object_get(node, "$ref");
    bool good = copy(c, in, &list);
    for (size_t i = 0; good && i < sizeof STEPS / sizeof *STEPS; i++)
        if (!only || STEPS[i] == referred)
            good = then(c, &list, node, STEPS[i]);
    good = good && copy(c, &list, out);
    schema_list_free(&list);
    return good;
}

static bool holds_not(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                      struct schema_list *out) {
    json_t *all, *one, *inner = json_object_get(node, "not");
    size_t i;
    bool any;
    if (!references(c, in, node, true, &any, out))
        return false;
    if (c->legacy && any)
        return true;
    if (!not_by_value(c, in, node, out) || !schema_not_scalars(c, in, node, out) ||
        !schema_not_objects(c, in, node, out) || !schema_not_arrays(c, in, node, out) ||
        (inner && !schema_apply(c, in, inner, false, out)) ||
        (json_object_get(node, "if") && !if_then(c, in, node, true, out)) ||
        !schemas_of(c, node, "allOf", &all))
        return false;
    json_array_foreach(all, i, one) {
        if (!schema_apply(c, in, one, true, out))
            return false;
    }
    if (!schemas_of(c, node, "anyOf", &all))
        return false;
    if (all) {
        struct schema_list none = {0};
        bool good = copy(c, in, &none);
        json_array_foreach(all, i, one) {
            good = good && then_apply(c, &none, one, true);
        }
        good = good && copy(c, &none, out);
        schema_list_free(&none);
        if (!good)
            return false;
    }
    return schemas_of(c, node, "oneOf", &all) && (!all || not_one_of(c, in, all, out));
}

/* ---- dead branches --------------------------------------------------------------------------- */

/* Certainly no value meets the goal: its branches are known, and there are none. */
static bool is_none(struct schema_compiler *c, uint32_t goal) {
    if (goal == GOAL_ANY || goal == GOAL_NONE)
        return goal == GOAL_NONE;
    if (c->goals[goal].state == GOAL_NEW && c->nested < NESTED_MAX && !schema_branches(c, goal))
        return false;
    return c->goals[goal].state == GOAL_DONE && c->goals[goal].n_branches == 0;
}

/* What it needs cannot be. (schema_compile.c finds the rest, once all goals are known.) */
static bool is_dead(struct schema_compiler *c, const struct schema_branch *b) {
    if (b->type == SCHEMA_NUMBER)
        return numbers_is_empty(b->numbers);
    if (b->type == SCHEMA_STRING)
        return language_is_empty(b->strings);
    if (b->min > b->max)
        return true;
    uint32_t required = 0;
    for (uint32_t i = 0; i < b->n_named; i++)
        required += b->named[i].required;
    if (b->type == SCHEMA_OBJECT && required > b->max)
        return true;
    for (uint32_t i = 0; i < b->n_named; i++)
        if (b->named[i].required && is_none(c, b->named[i].goal))
            return true;
    for (uint32_t i = 0; b->type == SCHEMA_ARRAY && i < b->n_prefix && i < b->min; i++)
        if (is_none(c, b->prefix[i]))
            return true;
    return b->type == SCHEMA_ARRAY && b->min > b->n_prefix && is_none(c, b->rest);
}

bool schema_apply(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                  bool negative, struct schema_list *out) {
    struct schema_list mine = {0};
    if (json_is_boolean(node))
        return json_is_true(node) == negative || copy(c, in, out);
    if (!json_is_object(node))
        return schema_fail(c, KVASIR_ERR_ARGUMENT, node, "", "is not a schema");
    if (++c->depth > DEPTH_MAX)
        return schema_fail(c, KVASIR_ERR_UNSUPPORTED, node, "",
                           "refers to itself without end, or is nested too deeply");
    bool good = in->n == 0 || (negative ? holds_not : holds)(c, in, node, &mine);
    for (size_t i = 0; good && i < mine.n; i++)
        if (!is_dead(c, &mine.all[i]))
            good = schema_add(c, out, &mine.all[i]);
    c->depth--;
    schema_list_free(&mine);
    return good && !c->status;
}

/* ---- the branches of a goal ------------------------------------------------------------------ */

static bool any_value(struct schema_compiler *c, struct schema_list *out) {
    struct schema_class *classes = schema_alloc(c, 1, sizeof *classes);
    if (!classes)
        return false;
    *classes = (struct schema_class){c->any_string, GOAL_ANY};
    for (int type = 0; type < SCHEMA_TYPES; type++) {
        const struct schema_branch branch = {.type = (enum schema_type)type,
                                             .numbers = c->any_number,
                                             .strings = c->any_string,
                                             .classes = classes,
                                             .n_classes = 1,
                                             .rest = GOAL_ANY,
                                             .max = SCHEMA_UNBOUNDED};
        if (!schema_add(c, out, &branch))
            return false;
    }
    return true;
}

bool schema_branches(struct schema_compiler *c, uint32_t goal) {
    if (c->status || c->goals[goal].state != GOAL_NEW)
        return !c->status;
    const uint32_t depth = c->depth;
    struct schema_list list = {0};
    c->goals[goal].state = GOAL_OPEN;
    bool good = any_value(c, &list);
    c->depth = 0;
    c->nested++;
    for (uint32_t i = 0; good && i < c->goals[goal].n; i++) {
        const uint32_t literal = c->goals[goal].literals[i];
        good = then_apply(c, &list, c->nodes[literal / 2], literal & 1);
    }
    c->depth = depth;
    c->nested--;
    struct schema_branch *kept = good ? schema_alloc(c, list.n, sizeof *kept) : NULL;
    if (kept && list.n)
        memcpy(kept, list.all, list.n * sizeof *kept);
    if (kept) {
        c->goals[goal].branches = kept;
        c->goals[goal].n_branches = (uint32_t)list.n;
        c->goals[goal].state = GOAL_DONE;
    }
    schema_list_free(&list);
    return kept != NULL;
}
