/* SPDX-License-Identifier: Apache-2.0 */
/* schema_scalar.c: type, enum, const; and the keywords of numbers and strings. */
#include <string.h>

#include "grammar/schema.h"
#include "util/json.h"

/* ---- types ----------------------------------------------------------------------------------- */

enum { WHOLE = SCHEMA_TYPES, BIT_WHOLE = 1 << SCHEMA_TYPES };

/* Bits of schema_type; WHOLE: numbers, but only whole ones. 0: there is no such type. */
static unsigned type_bits(const char *name) {
    static const struct {
        const char *name;
        unsigned bits;
    } TYPES[] = {{"null", 1 << SCHEMA_NULL},     {"boolean", 1 << SCHEMA_FALSE | 1 << SCHEMA_TRUE},
                 {"number", 1 << SCHEMA_NUMBER}, {"integer", BIT_WHOLE},
                 {"string", 1 << SCHEMA_STRING}, {"array", 1 << SCHEMA_ARRAY},
                 {"object", 1 << SCHEMA_OBJECT}, {"any", (1 << SCHEMA_TYPES) - 1}};
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (strcmp(TYPES[i].name, name) == 0)
            return TYPES[i].bits;
    return 0;
}

static bool read_types(struct schema_compiler *c, json_t *node, unsigned *bits) {
    json_t *type = json_object_get(node, "type"), *one;
    size_t i;
    *bits = 0;
    if (json_is_string(type))
        *bits = type_bits(json_string_value(type));
    json_array_foreach(type, i, one) {
        const unsigned more = json_is_string(one) ? type_bits(json_string_value(one)) : 0;
        if (!more)
            return schema_fail(c, KVASIR_ERR_ARGUMENT, node, "type", "there is no such type");
        *bits |= more;
    }
    return *bits || schema_fail(c, KVASIR_ERR_ARGUMENT, node, "type", "there is no such type");
}

/* ---- numbers --------------------------------------------------------------------------------- */

static bool and_numbers(struct schema_compiler *c, struct schema_branch *b,
                        const struct numbers *with, json_t *node) {
    struct numbers *both;
    if (b->numbers == c->any_number) {
        b->numbers = with;
        return true;
    }
    const kvasir_status status = numbers_and(c->b, b->numbers, with, &both, c->err);
    b->numbers = schema_numbers(c, status, status ? NULL : both, node, "");
    return b->numbers != NULL;
}

static const struct numbers *whole(struct schema_compiler *c, json_t *node) {
    struct numbers *n;
    const kvasir_status status = numbers_whole(c->b, &n, c->err);
    return schema_numbers(c, status, status ? NULL : n, node, "type");
}

/* A number as text, as exactly as jansson keeps it. */
static bool number_text(json_t *value, char out[64]) {
    if (json_is_integer(value))
        return snprintf(out, 64, "%lld", (long long)json_integer_value(value)) > 0;
    for (int digits = 1; digits <= 17; digits++) { /* the shortest that is the same */
        snprintf(out, 64, "%.*g", digits, json_real_value(value));
        if (strtod(out, NULL) == json_real_value(value))
            break;
    }
    return true;
}

/* What a keyword with a number allows; bound NULL: multiples of it. NULL: that failed, or something
 * before it did, whose error stays. */
static const struct numbers *number_set(struct schema_compiler *c, json_t *node,
                                        const char *keyword, const enum numbers_bound *bound) {
    char text[64];
    struct numbers *n;
    json_t *value = json_object_get(node, keyword);
    if (c->status)
        return NULL;
    if (!json_is_number(value)) {
        schema_fail(c, KVASIR_ERR_ARGUMENT, node, keyword, "is not a number");
        return NULL;
    }
    number_text(value, text);
    const struct text_span span = {text, strlen(text)};
    const kvasir_status status = bound ? numbers_bounded(c->b, *bound, span, &n, c->err)
                                       : numbers_multiple(c->b, span, &n, c->err);
    return schema_numbers(c, status, status ? NULL : n, node, keyword);
}

/* The sets of a node's keywords for numbers, at most four; false: failed. */
static bool number_sets(struct schema_compiler *c, json_t *node, const struct numbers *sets[4],
                        uint32_t *n) {
    static const char *const ENDS[2][2] = {{"minimum", "exclusiveMinimum"},
                                           {"maximum", "exclusiveMaximum"}};
    static const enum numbers_bound BOUNDS[2][2] = {{AT_LEAST, MORE_THAN}, {AT_MOST, LESS_THAN}};
    *n = 0;
    for (int end = 0; end < 2; end++) {
        json_t *open = json_object_get(node, ENDS[end][1]);
        if (json_object_get(node, ENDS[end][0])) /* draft 4: exclusiveMinimum is true or false */
            sets[(*n)++] = number_set(c, node, ENDS[end][0], &BOUNDS[end][json_is_true(open)]);
        if (open && !json_is_boolean(open))
            sets[(*n)++] = number_set(c, node, ENDS[end][1], &BOUNDS[end][1]);
    }
    if (*n > 3)
        return schema_fail(c, KVASIR_ERR_UNSUPPORTED, node, "minimum", "has too many bounds");
    if (json_object_get(node, "multipleOf"))
        sets[(*n)++] = number_set(c, node, "multipleOf", NULL);
    return !c->status;
}

struct parts {
    struct schema_compiler *c;
    const struct schema_branch *branch;
    json_t *node;
    struct schema_list *out;
};

/* numbers_part_fn */
static kvasir_status add_part(void *user, struct numbers *part, kvasir_error *err) {
    struct parts *p = user;
    struct schema_branch b = *p->branch;
    const struct numbers *kept = schema_numbers(p->c, KVASIR_OK, part, p->node, "");
    (void)err;
    if (kept && and_numbers(p->c, &b, kept, p->node) && schema_add(p->c, p->out, &b))
        return KVASIR_OK;
    return p->c->status ? p->c->status : KVASIR_ERR_MEMORY;
}

static bool not_numbers(struct schema_compiler *c, const struct schema_branch *b,
                        const struct numbers *set, json_t *node, struct schema_list *out) {
    struct parts p = {c, b, node, out};
    const kvasir_status status = numbers_not(c->b, set, add_part, &p, c->err);
    if (status && !c->status)
        c->status = status;
    return !c->status;
}

/* ---- strings --------------------------------------------------------------------------------- */

static bool and_strings(struct schema_compiler *c, struct schema_branch *b,
                        const struct language *with, json_t *node) {
    struct language *both;
    if (b->strings == c->any_string) {
        b->strings = with;
        return true;
    }
    const kvasir_status status = language_and(c->b, b->strings, with, &both, c->err);
    b->strings = schema_language(c, status, status ? NULL : both, node, "");
    return b->strings != NULL;
}

static bool not_strings(struct schema_compiler *c, const struct schema_branch *b,
                        const struct language *set, json_t *node, struct schema_list *out) {
    struct language *other;
    struct schema_branch made = *b;
    const kvasir_status status = language_not(c->b, set, &other, c->err);
    const struct language *kept = schema_language(c, status, status ? NULL : other, node, "");
    return kept && and_strings(c, &made, kept, node) && schema_add(c, out, &made);
}

static bool string_sets(struct schema_compiler *c, json_t *node, const struct language *sets[4],
                        uint32_t *n) {
    json_t *pattern = json_object_get(node, "pattern"), *format = json_object_get(node, "format");
    struct language *l;
    *n = 0;
    if (pattern && !json_is_string(pattern))
        return schema_fail(c, KVASIR_ERR_ARGUMENT, node, "pattern", "is not a text");
    if (pattern && !schema_strings(c, schema_text(pattern), false, node, "pattern", &sets[(*n)++]))
        return false;
    if (json_is_string(format) &&
        !schema_strings(c, schema_text(format), true, node, "format", &sets[*n]))
        return false;
    if (json_is_string(format) && sets[*n])
        ++*n;
    for (int end = 0; end < 2; end++) {
        const char *keyword = end ? "maxLength" : "minLength";
        uint32_t count;
        if (!json_object_get(node, keyword))
            continue;
        if (!schema_count(c, node, keyword, &count))
            return false;
        const kvasir_status status =
            language_any(c->b, end ? 0 : count, end ? count : LANGUAGE_UNBOUNDED, &l, c->err);
        sets[(*n)++] = schema_language(c, status, status ? NULL : l, node, keyword);
    }
    return !c->status;
}

/* ---- type, and the keywords of both ---------------------------------------------------------- */

bool schema_scalars(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                    struct schema_list *out) {
    const struct numbers *numbers[4];
    const struct language *strings[4];
    uint32_t n_numbers, n_strings;
    unsigned types = (1 << SCHEMA_TYPES) - 1;
    if ((json_object_get(node, "type") && !read_types(c, node, &types)) ||
        !number_sets(c, node, numbers, &n_numbers) || !string_sets(c, node, strings, &n_strings))
        return false;
    for (size_t i = 0; i < in->n; i++) {
        struct schema_branch b = in->all[i];
        const bool only_whole = !(types >> SCHEMA_NUMBER & 1) && types & BIT_WHOLE;
        if (!(types >> b.type & 1) && !(b.type == SCHEMA_NUMBER && only_whole))
            continue;
        bool good = true;
        if (b.type == SCHEMA_NUMBER && only_whole) {
            const struct numbers *w = whole(c, node);
            good = w && and_numbers(c, &b, w, node);
        }
        for (uint32_t k = 0; good && b.type == SCHEMA_NUMBER && k < n_numbers; k++)
            good = and_numbers(c, &b, numbers[k], node);
        for (uint32_t k = 0; good && b.type == SCHEMA_STRING && k < n_strings; k++)
            good = and_strings(c, &b, strings[k], node);
        if (!good || !schema_add(c, out, &b))
            return false;
    }
    return true;
}

/* Numbers that the type takes, but which are not whole. */
static bool not_type(struct schema_compiler *c, const struct schema_branch *b, unsigned types,
                     json_t *node, struct schema_list *out) {
    if (types >> b->type & 1)
        return true;
    if (b->type == SCHEMA_NUMBER && types & BIT_WHOLE) {
        const struct numbers *w = whole(c, node);
        return w && not_numbers(c, b, w, node, out);
    }
    return schema_add(c, out, b);
}

bool schema_not_scalars(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                        struct schema_list *out) {
    const struct numbers *numbers[4];
    const struct language *strings[4];
    uint32_t n_numbers, n_strings;
    unsigned types = (1 << SCHEMA_TYPES) - 1;
    if ((json_object_get(node, "type") && !read_types(c, node, &types)) ||
        !number_sets(c, node, numbers, &n_numbers) || !string_sets(c, node, strings, &n_strings))
        return false;
    for (size_t i = 0; i < in->n; i++) {
        const struct schema_branch *b = &in->all[i];
        if (!not_type(c, b, types, node, out))
            return false;
        for (uint32_t k = 0; b->type == SCHEMA_NUMBER && k < n_numbers; k++)
            if (!not_numbers(c, b, numbers[k], node, out))
                return false;
        for (uint32_t k = 0; b->type == SCHEMA_STRING && k < n_strings; k++)
            if (!not_strings(c, b, strings[k], node, out))
                return false;
    }
    return true;
}

/* ---- values ---------------------------------------------------------------------------------- */

static enum schema_type type_of(json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return SCHEMA_OBJECT;
    case JSON_ARRAY:
        return SCHEMA_ARRAY;
    case JSON_STRING:
        return SCHEMA_STRING;
    case JSON_INTEGER:
    case JSON_REAL:
        return SCHEMA_NUMBER;
    case JSON_TRUE:
        return SCHEMA_TRUE;
    case JSON_FALSE:
        return SCHEMA_FALSE;
    default:
        return SCHEMA_NULL;
    }
}

static const struct numbers *one_number(struct schema_compiler *c, json_t *value, json_t *node) {
    char text[64];
    struct numbers *n;
    number_text(value, text);
    const struct text_span span = {text, strlen(text)};
    const kvasir_status status = numbers_bounded(c->b, EQUAL_TO, span, &n, c->err);
    return schema_numbers(c, status, status ? NULL : n, node, "enum");
}

/* All strings of a list in one set, which is small where many branches were not. */
static const struct language *string_values(struct schema_compiler *c, json_t *values,
                                            json_t *node) {
    struct text_span *strings = schema_alloc(c, json_array_size(values), sizeof *strings);
    struct language *l;
    json_t *value;
    size_t i, n = 0;
    if (!strings)
        return NULL;
    json_array_foreach(values, i, value) {
        if (json_is_string(value))
            strings[n++] = schema_text(value);
    }
    const kvasir_status status = language_literals(c->b, strings, n, &l, c->err);
    return schema_language(c, status, status ? NULL : l, node, "enum");
}

static bool is_value(struct schema_compiler *c, const struct schema_branch *b, json_t *value,
                     json_t *node, struct schema_list *out) {
    struct schema_branch made = *b;
    if (b->type == SCHEMA_OBJECT)
        return schema_is_object(c, b, value, out);
    if (b->type == SCHEMA_ARRAY)
        return schema_is_array(c, b, value, out);
    if (b->type == SCHEMA_NUMBER) {
        const struct numbers *n = one_number(c, value, node);
        if (!n || !and_numbers(c, &made, n, node))
            return false;
    }
    return schema_add(c, out, &made);
}

/* What is left of one branch if it must be none of the values. */
static bool is_none_of(struct schema_compiler *c, const struct schema_branch *b, json_t *values,
                       json_t *node, struct schema_list *out) {
    struct schema_list list = {0};
    json_t *value;
    size_t i;
    bool good = schema_add(c, &list, b);
    json_array_foreach(values, i, value) {
        struct schema_list next = {0};
        if (!good || type_of(value) != b->type || b->type == SCHEMA_STRING)
            continue;
        for (size_t k = 0; good && k < list.n; k++) {
            const struct schema_branch *one = &list.all[k];
            if (b->type == SCHEMA_OBJECT) {
                good = schema_is_no_object(c, one, value, &next);
            } else if (b->type == SCHEMA_ARRAY) {
                good = schema_is_no_array(c, one, value, &next);
            } else if (b->type == SCHEMA_NUMBER) {
                const struct numbers *n = one_number(c, value, node);
                good = n && not_numbers(c, one, n, node, &next);
            }
        }
        schema_list_free(&list);
        list = next;
    }
    for (size_t k = 0; good && k < list.n; k++) {
        const struct language *l = b->type == SCHEMA_STRING ? string_values(c, values, node) : NULL;
        good = b->type == SCHEMA_STRING ? l && not_strings(c, &list.all[k], l, node, out)
                                        : schema_add(c, out, &list.all[k]);
    }
    schema_list_free(&list);
    return good;
}

bool schema_value(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                  json_t *values, bool negative, struct schema_list *out) {
    json_t *value;
    size_t i;
    for (size_t k = 0; k < in->n; k++) {
        struct schema_branch b = in->all[k];
        if (negative) {
            if (!is_none_of(c, &b, values, node, out))
                return false;
            continue;
        }
        if (b.type == SCHEMA_STRING) {
            const struct language *l = string_values(c, values, node);
            if (!l || !and_strings(c, &b, l, node) || !schema_add(c, out, &b))
                return false;
            continue;
        }
        json_array_foreach(values, i, value) {
            if (type_of(value) == b.type && !is_value(c, &b, value, node, out))
                return false;
        }
    }
    return true;
}
