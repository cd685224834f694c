/* SPDX-License-Identifier: Apache-2.0 */
/* schema_object.c: the keywords of objects.
 *
 *     named      names that a schema mentions, each with the goal of its value
 *     classes    all other names, in disjoint sets, each with a goal
 *
 * A pattern splits classes into names that match it and others; so what a name asks of its value is
 * known as soon as it has been read.
 */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema.h"

/* ---- names ----------------------------------------------------------------------------------- */

static int compare_names(struct text_span x, struct text_span y) {
    const int order = memcmp(x.data, y.data, x.len < y.len ? x.len : y.len);
    return order ? order : (x.len > y.len) - (x.len < y.len);
}

/* Own copies of what may change. */
static bool unshare(struct schema_compiler *c, struct schema_branch *b, uint32_t more) {
    struct schema_named *named = schema_alloc(c, b->n_named + more, sizeof *named);
    if (!named)
        return false;
    if (b->n_named)
        memcpy(named, b->named, b->n_named * sizeof *named);
    b->named = named;
    return true;
}

static uint32_t class_goal(const struct schema_branch *b, struct text_span name) {
    for (uint32_t i = 0; i < b->n_classes; i++)
        if (language_contains(b->classes[i].keys, name))
            return b->classes[i].goal;
    return GOAL_NONE;
}

static struct schema_named *find_name(const struct schema_branch *b, struct text_span name) {
    uint32_t low = 0, high = b->n_named;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        const int order = compare_names(b->named[middle].name, name);
        if (order == 0)
            return &b->named[middle];
        *(order < 0 ? &low : &high) = order < 0 ? middle + 1 : middle;
    }
    return NULL;
}

static int compare_named(const void *x, const void *y) {
    return compare_names(((const struct schema_named *)x)->name,
                         ((const struct schema_named *)y)->name);
}

/* Own entries for these names, where there is none yet. */
static bool add_names(struct schema_compiler *c, struct schema_branch *b,
                      const struct text_span *names, uint32_t n) {
    const uint32_t before = b->n_named;
    uint32_t all = before, kept = 0;
    ASSERT(b->type == SCHEMA_OBJECT);
    if (!unshare(c, b, n))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        if (!schema_take(c, 8 + names[i].len / 4 * b->n_classes))
            return false;
        if (!find_name(b, names[i]))
            b->named[all++] = (struct schema_named){names[i], class_goal(b, names[i]), false};
    }
    if (all == before)
        return true;
    qsort(b->named, all, sizeof *b->named, compare_named);
    for (uint32_t i = 0; i < all; i++)
        if (!kept || compare_named(&b->named[kept - 1], &b->named[i]) != 0)
            b->named[kept++] = b->named[i];
    b->n_named = kept;
    return true;
}

static struct text_span span_of_key(const char *key) {
    return (struct text_span){key, strlen(key)};
}

/* Own entries for the names of an object's members. */
static bool add_keys(struct schema_compiler *c, struct schema_branch *b, json_t *object) {
    struct text_span *names = schema_alloc(c, json_object_size(object), sizeof *names);
    uint32_t n = 0;
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        if (names)
            names[n++] = span_of_key(key);
    }
    return names && add_names(c, b, names, n);
}

/* A branch with one name more of which something is said. */
static bool with_name(struct schema_compiler *c, struct schema_branch *b, const char *key,
                      struct schema_named **out) {
    const struct text_span name = span_of_key(key);
    if (!schema_take(c, b->n_named / 4) || !add_names(c, b, &name, 1))
        return false;
    *out = find_name(b, name);
    return true;
}

bool schema_name_classes(struct schema_compiler *c, struct schema_branch *b) {
    bool good = true;
    for (uint32_t i = 0; good && i < b->n_classes; i++) {
        struct text_buf list = {0};
        struct text_span names[SCHEMA_NAMES_MAX];
        uint32_t n = 0;
        if (language_list(b->classes[i].keys, SCHEMA_NAMES_MAX, &list)) {
            char *copy = schema_alloc(c, list.len, 1);
            good = copy != NULL;
            for (size_t at = 0; good && at < list.len; at += 1 + names[n++].len) {
                const size_t len = (uint8_t)list.data[at];
                names[n] = (struct text_span){copy + at, len};
                memcpy(copy + at, list.data + at + 1, len);
            }
            good = good && schema_take(c, list.len * 64) && add_names(c, b, names, n);
        }
        text_free(&list);
    }
    return good;
}

/* ---- properties, patternProperties, additionalProperties ------------------------------------- */

static bool object_of(struct schema_compiler *c, json_t *node, const char *keyword, json_t **out) {
    *out = json_object_get(node, keyword);
    return !*out || json_is_object(*out) ||
           schema_fail(c, KVASIR_ERR_ARGUMENT, node, keyword, "is not an object");
}

/* NULL: failed. */
static const struct language *pattern_of(struct schema_compiler *c, json_t *node,
                                         const char *pattern) {
    const struct language *l = NULL;
    return schema_strings(c, span_of_key(pattern), false, node, "patternProperties", &l) ? l : NULL;
}

static const struct language *combined(struct schema_compiler *c, const struct language *x,
                                       const struct language *y, bool without, json_t *node) {
    struct language *l, *other = NULL;
    kvasir_status status = without ? language_not(c->b, y, &other, c->err) : KVASIR_OK;
    if (!status)
        status = language_and(c->b, x, without ? other : y, &l, c->err);
    language_release(other);
    return schema_language(c, status, status ? NULL : l, node, "patternProperties");
}

struct split {
    struct schema_class *classes; /* [n] */
    bool *matched;                /* by a pattern of this node */
    uint32_t n;
};

/* Each class in two by a pattern; names that match it must meet the goal of `value`. */
static bool split_classes(struct schema_compiler *c, json_t *node, const struct language *pattern,
                          json_t *value, struct split *s) {
    ASSERT(s->n <= 1u << 20);
    struct split made = {.classes = schema_alloc(c, s->n * 2, sizeof *made.classes),
                         .matched = schema_alloc(c, s->n * 2, sizeof *made.matched)};
    if (!made.classes || !made.matched)
        return false;
    for (uint32_t i = 0; i < s->n; i++) {
        const struct language *in = combined(c, s->classes[i].keys, pattern, false, node),
                              *out =
                                  in ? combined(c, s->classes[i].keys, pattern, true, node) : NULL;
        if (!out)
            return false;
        if (!language_is_empty(in)) {
            uint32_t goal = s->classes[i].goal;
            if (value && !schema_with(c, goal, value, false, &goal))
                return false;
            made.classes[made.n] = (struct schema_class){in, goal};
            made.matched[made.n++] = true;
        }
        if (!language_is_empty(out)) {
            made.classes[made.n] = (struct schema_class){out, s->classes[i].goal};
            made.matched[made.n++] = s->matched[i];
        }
    }
    *s = made;
    return true;
}

static bool begin_split(struct schema_compiler *c, const struct schema_branch *b, struct split *s) {
    s->n = b->n_classes;
    s->classes = schema_alloc(c, s->n, sizeof *s->classes);
    s->matched = schema_alloc(c, s->n, sizeof *s->matched);
    if (!s->classes || !s->matched)
        return false;
    if (s->n)
        memcpy(s->classes, b->classes, s->n * sizeof *s->classes);
    return true;
}

/* What the node says of one name. */
static bool name_goal(struct schema_compiler *c, json_t *node, const struct language **patterns,
                      json_t *additional, struct schema_named *named) {
    json_t *properties = json_object_get(node, "properties"),
           *by_pattern = json_object_get(node, "patternProperties"), *value;
    char *name = mem_strndup(named->name.data, named->name.len);
    json_t *own =
        name && strlen(name) == named->name.len ? json_object_get(properties, name) : NULL;
    const char *key;
    bool said = own != NULL, good = name != NULL || schema_no_memory(c);
    size_t i = 0;
    if (own)
        good = schema_with(c, named->goal, own, false, &named->goal);
    json_object_foreach(by_pattern, key, value) {
        if (good && language_contains(patterns[i], named->name)) {
            said = true;
            good = schema_with(c, named->goal, value, false, &named->goal);
        }
        i++;
    }
    if (good && !said && additional)
        good = schema_with(c, named->goal, additional, false, &named->goal);
    mem_free(name);
    return good;
}

static bool members(struct schema_compiler *c, struct schema_branch *b, json_t *node,
                    json_t *additional) {
    json_t *properties, *by_pattern, *value;
    const char *key;
    size_t i = 0;
    if (!object_of(c, node, "properties", &properties) ||
        !object_of(c, node, "patternProperties", &by_pattern))
        return false;
    if (!properties && !by_pattern && !additional)
        return true;
    const struct language **patterns =
        schema_alloc(c, json_object_size(by_pattern), sizeof *patterns);
    struct split s;
    if (!patterns || !add_keys(c, b, properties) || !begin_split(c, b, &s))
        return false;
    json_object_foreach(by_pattern, key, value) {
        patterns[i] = pattern_of(c, node, key);
        if (!patterns[i] || !split_classes(c, node, patterns[i], value, &s))
            return false;
        i++;
    }
    for (uint32_t k = 0; k < b->n_named; k++)
        if (!schema_take(c, 60) || !name_goal(c, node, patterns, additional, &b->named[k]))
            return false;
    for (uint32_t k = 0; k < s.n && additional; k++)
        if (!s.matched[k] &&
            !schema_with(c, s.classes[k].goal, additional, false, &s.classes[k].goal))
            return false;
    b->classes = s.classes;
    b->n_classes = s.n;
    return true;
}

/* additionalProperties, or unevaluatedProperties where it is the same. */
static bool additional_of(struct schema_compiler *c, json_t *node, json_t **out) {
    static const char *const IN_PLACE[] = {"allOf", "anyOf",       "oneOf",           "if",
                                           "$ref",  "$dynamicRef", "dependentSchemas"};
    json_t *unevaluated = json_object_get(node, "unevaluatedProperties");
    *out = json_object_get(node, "additionalProperties");
    if (!unevaluated || *out || json_is_true(unevaluated))
        return true;
    for (size_t i = 0; i < sizeof IN_PLACE / sizeof *IN_PLACE; i++)
        if (json_object_get(node, IN_PLACE[i]))
            return schema_fail(c, KVASIR_ERR_UNSUPPORTED, node, "unevaluatedProperties",
                               "is not supported beside other schemas of the same object");
    *out = unevaluated;
    return true;
}

/* ---- propertyNames --------------------------------------------------------------------------- */

/* The strings that meet a schema. */
static const struct language *strings_of(struct schema_compiler *c, json_t *schema, json_t *node) {
    uint32_t goal;
    const struct language *all = NULL;
    if (!schema_with(c, GOAL_ANY, schema, false, &goal))
        return NULL;
    if (goal == GOAL_ANY)
        return c->any_string;
    if (goal != GOAL_NONE && !c->make_branches(c, goal))
        return NULL;
    const struct schema_goal g = c->goals[goal];
    for (uint32_t i = 0; goal != GOAL_NONE && i < g.n_branches; i++) {
        struct language *l;
        if (g.branches[i].type != SCHEMA_STRING)
            continue;
        if (!all) {
            all = g.branches[i].strings;
            continue;
        }
        const kvasir_status status = language_or(c->b, all, g.branches[i].strings, &l, c->err);
        if (!(all = schema_language(c, status, status ? NULL : l, node, "propertyNames")))
            return NULL;
    }
    if (!all) { /* none */
        struct language *l;
        const kvasir_status status = language_literals(c->b, NULL, 0, &l, c->err);
        all = schema_language(c, status, status ? NULL : l, node, "propertyNames");
    }
    return all;
}

static bool property_names(struct schema_compiler *c, struct schema_branch *b, json_t *node) {
    json_t *schema = json_object_get(node, "propertyNames");
    const struct language *names = schema ? strings_of(c, schema, node) : NULL;
    struct split s;
    if (!schema)
        return true;
    if (!names || !unshare(c, b, 0) || !begin_split(c, b, &s))
        return false;
    for (uint32_t i = 0; i < b->n_named; i++)
        if (!language_contains(names, b->named[i].name))
            b->named[i].goal = GOAL_NONE;
    for (uint32_t i = 0; i < s.n; i++)
        if (!(s.classes[i].keys = combined(c, s.classes[i].keys, names, false, node)))
            return false;
    b->classes = s.classes;
    return true;
}

/* ---- required, counts, dependencies ---------------------------------------------------------- */

static bool require(struct schema_compiler *c, struct schema_branch *b, json_t *node,
                    const char *keyword, json_t *names) {
    json_t *name;
    size_t i;
    const uint32_t n = (uint32_t)json_array_size(names);
    struct text_span *all = schema_alloc(c, n, sizeof *all);
    if (!all)
        return false;
    json_array_foreach(names, i, name) {
        if (!json_is_string(name))
            return schema_fail(c, KVASIR_ERR_ARGUMENT, node, keyword, "is not a list of names");
        all[i] = schema_text(name);
    }
    if (!add_names(c, b, all, n))
        return false;
    for (i = 0; i < n; i++)
        find_name(b, all[i])->required = true;
    return true;
}

static bool counts(struct schema_compiler *c, struct schema_branch *b, json_t *node) {
    uint32_t count;
    if (json_object_get(node, "minProperties")) {
        if (!schema_count(c, node, "minProperties", &count))
            return false;
        b->min = count > b->min ? count : b->min;
    }
    if (json_object_get(node, "maxProperties")) {
        if (!schema_count(c, node, "maxProperties", &count))
            return false;
        b->max = count < b->max ? count : b->max;
    }
    return true;
}

static bool without_name(struct schema_compiler *c, const struct schema_branch *b, const char *key,
                         struct schema_list *out) {
    struct schema_branch made = *b;
    struct schema_named *named;
    if (!with_name(c, &made, key, &named))
        return false;
    if (named->required)
        return true;
    named->goal = GOAL_NONE;
    return schema_add(c, out, &made);
}

/* One dependency on each branch: the name is not there, or what depends on it holds. */
static bool depend(struct schema_compiler *c, struct schema_list *list, json_t *node,
                   const char *keyword, const char *key, json_t *value) {
    struct schema_list out = {0};
    bool good = true;
    for (size_t i = 0; good && i < list->n; i++) {
        struct schema_branch b = list->all[i];
        good = without_name(c, &b, key, &out);
        if (good && json_is_array(value)) {
            struct schema_named *named;
            good = require(c, &b, node, keyword, value) && with_name(c, &b, key, &named);
            if (good) {
                named->required = true;
                good = schema_add(c, &out, &b);
            }
        } else if (good) {
            const struct schema_list one = {&b, 1, 1};
            good = c->apply(c, &one, value, false, &out);
        }
    }
    schema_list_free(list);
    *list = out;
    return good;
}

static const char *const DEPENDENCIES[] = {"dependentRequired", "dependentSchemas", "dependencies"};

static bool dependencies(struct schema_compiler *c, struct schema_list *list, json_t *node) {
    for (size_t i = 0; i < sizeof DEPENDENCIES / sizeof *DEPENDENCIES; i++) {
        json_t *all, *value;
        const char *key;
        if (!object_of(c, node, DEPENDENCIES[i], &all))
            return false;
        json_object_foreach(all, key, value) {
            json_t *names = json_is_string(value) ? json_pack("[O]", value) : NULL; /* draft 3 */
            if (names && !schema_make(c, names))
                return false;
            if (!depend(c, list, node, DEPENDENCIES[i], key, names ? names : value))
                return false;
        }
    }
    return true;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static bool on_object(struct schema_compiler *c, struct schema_branch *b, json_t *node,
                      struct schema_list *out) {
    json_t *required = json_object_get(node, "required"), *additional;
    struct schema_list list = {0};
    if (!additional_of(c, node, &additional) || !members(c, b, node, additional) ||
        !property_names(c, b, node) || !counts(c, b, node))
        return false;
    if (json_is_array(required) && !require(c, b, node, "required", required))
        return false; /* draft 3's is true or false */
    bool good = schema_add(c, &list, b) && dependencies(c, &list, node);
    for (size_t i = 0; good && i < list.n; i++)
        good = schema_add(c, out, &list.all[i]);
    schema_list_free(&list);
    return good;
}

bool schema_objects(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                    struct schema_list *out) {
    for (size_t i = 0; i < in->n; i++) {
        struct schema_branch b = in->all[i];
        if (b.type == SCHEMA_OBJECT ? !on_object(c, &b, node, out) : !schema_add(c, out, &b))
            return false;
    }
    return true;
}

/* ---- what must not hold ---------------------------------------------------------------------- */

/* A member with a name in `keys` does not meet the schema. */
static bool some_member(struct schema_compiler *c, const struct schema_branch *b, json_t *node,
                        const struct language *keys, json_t *schema, struct schema_list *out) {
    struct schema_branch made = *b;
    struct split s;
    uint32_t goal;
    if (!keys || !schema_with(c, GOAL_ANY, schema, true, &goal))
        return false;
    if (goal == GOAL_NONE)
        return true;
    if (made.n_counted == SCHEMA_COUNTED_MAX)
        return schema_fail(c, KVASIR_ERR_UNSUPPORTED, node, "",
                           "counts too many kinds of members at once");
    /* classes are inside or outside */
    if (!begin_split(c, b, &s) || !split_classes(c, node, keys, NULL, &s))
        return false;
    made.classes = s.classes;
    made.n_classes = s.n;
    made.counted = schema_alloc(c, made.n_counted + 1, sizeof *made.counted);
    if (!made.counted)
        return false;
    if (b->n_counted)
        memcpy(made.counted, b->counted, b->n_counted * sizeof *b->counted);
    made.counted[made.n_counted++] =
        (struct schema_counted){.keys = keys, .goal = goal, .min = 1, .max = SCHEMA_UNBOUNDED};
    return schema_add(c, out, &made);
}

/* A named member is there and meets the schema, or does not. */
static bool has_member(struct schema_compiler *c, const struct schema_branch *b, const char *key,
                       json_t *schema, bool negative, struct schema_list *out) {
    struct schema_branch made = *b;
    struct schema_named *named;
    if (!with_name(c, &made, key, &named))
        return false;
    named->required = true;
    return schema_with(c, named->goal, schema, negative, &named->goal) && schema_add(c, out, &made);
}

/* Names that `additionalProperties` speaks of. */
static const struct language *other_names(struct schema_compiler *c, json_t *node) {
    json_t *properties = json_object_get(node, "properties"), *value;
    struct text_span *names = schema_alloc(c, json_object_size(properties), sizeof *names);
    struct language *l;
    const char *key;
    size_t n = 0;
    if (!names)
        return NULL;
    json_object_foreach(properties, key, value) {
        names[n++] = span_of_key(key);
    }
    const kvasir_status status = language_literals(c->b, names, n, &l, c->err);
    const struct language *all = c->any_string,
                          *those = schema_language(c, status, status ? NULL : l, node,
                                                   "additionalProperties");
    if (!those || !(all = combined(c, all, those, true, node)))
        return NULL;
    json_object_foreach(json_object_get(node, "patternProperties"), key, value) {
        const struct language *pattern = pattern_of(c, node, key);
        if (!pattern || !(all = combined(c, all, pattern, true, node)))
            return NULL;
    }
    return all;
}

static bool not_counts(struct schema_compiler *c, const struct schema_branch *b, json_t *node,
                       struct schema_list *out) {
    uint32_t count;
    struct schema_branch made = *b;
    if (json_object_get(node, "minProperties")) {
        if (!schema_count(c, node, "minProperties", &count))
            return false;
        made.max = count && count - 1 < b->max ? count - 1 : b->max;
        if (count && !schema_add(c, out, &made))
            return false;
    }
    made = *b;
    if (json_object_get(node, "maxProperties")) {
        if (!schema_count(c, node, "maxProperties", &count))
            return false;
        made.min = count + 1 > b->min ? count + 1 : b->min;
        if (!schema_add(c, out, &made))
            return false;
    }
    return true;
}

/* The name is there, and what depends on it does not hold. */
static bool not_dependencies(struct schema_compiler *c, const struct schema_branch *b, json_t *node,
                             struct schema_list *out) {
    for (size_t i = 0; i < sizeof DEPENDENCIES / sizeof *DEPENDENCIES; i++) {
        json_t *all, *value, *name;
        const char *key;
        size_t k;
        if (!object_of(c, node, DEPENDENCIES[i], &all))
            return false;
        json_object_foreach(all, key, value) {
            struct schema_branch made = *b;
            struct schema_named *named;
            const struct schema_list one = {&made, 1, 1};
            if (!with_name(c, &made, key, &named))
                return false;
            named->required = true;
            json_array_foreach(value, k, name) {
                if (!without_name(c, &made, json_string_value(name) ? json_string_value(name) : "",
                                  out))
                    return false;
            }
            if (!json_is_array(value) && !c->apply(c, &one, value, true, out))
                return false;
        }
    }
    return true;
}

static bool not_on_object(struct schema_compiler *c, const struct schema_branch *b, json_t *node,
                          struct schema_list *out) {
    json_t *all, *value, *additional, *names = json_object_get(node, "propertyNames");
    const char *key;
    size_t i;
    if (!object_of(c, node, "properties", &all))
        return false;
    json_object_foreach(all, key, value) {
        if (!has_member(c, b, key, value, true, out))
            return false;
    }
    if (!object_of(c, node, "patternProperties", &all))
        return false;
    json_object_foreach(all, key, value) {
        if (!some_member(c, b, node, pattern_of(c, node, key), value, out))
            return false;
    }
    if (!additional_of(c, node, &additional))
        return false;
    if (additional && !json_is_true(additional) &&
        !some_member(c, b, node, other_names(c, node), additional, out))
        return false;
    if (names) {
        const struct language *good = strings_of(c, names, node);
        const struct language *wrong = good ? combined(c, c->any_string, good, true, node) : NULL;
        json_t *never = wrong ? schema_make(c, json_false()) : NULL;
        if (!never || !some_member(c, b, node, wrong, never, out))
            return false;
    }
    all = json_object_get(node, "required");
    json_array_foreach(all, i, value) {
        if (json_is_string(value) && !without_name(c, b, json_string_value(value), out))
            return false;
    }
    return not_counts(c, b, node, out) && not_dependencies(c, b, node, out);
}

bool schema_not_objects(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                        struct schema_list *out) {
    for (size_t i = 0; i < in->n; i++)
        if (in->all[i].type == SCHEMA_OBJECT && !not_on_object(c, &in->all[i], node, out))
            return false;
    return true;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* A schema that only this value meets. */
static json_t *only(struct schema_compiler *c, json_t *value) {
    return schema_make(c, json_pack("{s:O}", "const", value));
}

bool schema_is_object(struct schema_compiler *c, const struct schema_branch *b, json_t *value,
                      struct schema_list *out) {
    struct schema_branch made = *b;
    const uint32_t n = (uint32_t)json_object_size(value);
    json_t *member;
    const char *key;
    if (n < b->min || n > b->max)
        return true;
    if (!add_keys(c, &made, value))
        return false;
    for (uint32_t i = 0; i < made.n_named; i++)
        if (!json_object_get(value, made.named[i].name.data)) {
            if (made.named[i].required)
                return true;
            made.named[i].goal = GOAL_NONE;
        }
    json_object_foreach(value, key, member) {
        struct schema_named *named = find_name(&made, span_of_key(key));
        json_t *schema = only(c, member);
        named->required = true;
        if (!schema || !schema_with(c, named->goal, schema, false, &named->goal))
            return false;
    }
    made.n_classes = 0;
    made.min = made.max = n;
    return schema_add(c, out, &made);
}

bool schema_is_no_object(struct schema_compiler *c, const struct schema_branch *b, json_t *value,
                         struct schema_list *out) {
    json_t *member;
    const char *key;
    struct schema_branch larger = *b;
    const uint32_t n = (uint32_t)json_object_size(value);
    json_object_foreach(value, key, member) {
        json_t *schema = only(c, member);
        if (!schema || !without_name(c, b, key, out) || !has_member(c, b, key, schema, true, out))
            return false;
    }
    larger.min = n + 1 > b->min ? n + 1 : b->min; /* with all of its names there is one more */
    return schema_add(c, out, &larger);
}
