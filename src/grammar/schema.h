/* SPDX-License-Identifier: Apache-2.0 */
/* schema.h: what the files of the JSON Schema compiler share.
 *
 *     schema text --schema_read.c, schema_goals.c--> nodes, references
 *     node        --schema_apply.c, _scalar, _object, _array--> branches
 *     goals       --schema_compile.c--> which can be met, and what a recognizer needs
 *     bytes       --schema_state.c, schema_string.c--> states
 *
 * A *literal* is a node of the schema that must hold, or must not. A *goal* is a set of literals,
 * of one value: all of them hold. Its *branches* are its normal form: it holds if one of them does,
 * and each is of one type and has no combinators left, only what may be said member by member,
 * item by item and character by character. Goals of members and items stay goals, so that recursion
 * is natural. The *height* of a goal is how many containers in each other a value needs that meets
 * it; a goal that no value meets within SCHEMA_LEVELS_MAX is *dead*. Where a value does not have so
 * many levels left, the goal counts as dead (schema_room.c), so there are no dead ends.
 */
#ifndef KVASIR_GRAMMAR_SCHEMA_H
#define KVASIR_GRAMMAR_SCHEMA_H

#include <jansson.h>

#include "grammar/language.h"
#include "grammar/numbers.h"

enum schema_type {
    SCHEMA_NULL,
    SCHEMA_FALSE,
    SCHEMA_TRUE,
    SCHEMA_NUMBER,
    SCHEMA_STRING,
    SCHEMA_ARRAY,
    SCHEMA_OBJECT,
    SCHEMA_TYPES
};

enum {
    GOAL_ANY, /* the empty set: any value */
    GOAL_NONE,
    SCHEMA_UNBOUNDED = UINT32_MAX,
    SCHEMA_COUNTED_MAX = 3, /* constraints that count members or items */
    SCHEMA_LEVELS_MAX = 64,
    SCHEMA_DEAD = UINT16_MAX, /* a height */
    SCHEMA_BLANKS_MAX = 64,
};

/* Members with this name. */
struct schema_named {
    struct text_span name;
    uint32_t goal;
    bool required;
};
/* Members whose name is in `keys` and is none of those above; classes of a branch are disjoint. */
struct schema_class {
    const struct language *keys;
    uint32_t goal;
};
/* Some member with a name in `keys` meets the goal; or min to max items from `from` on do. */
struct schema_counted {
    const struct language *keys;
    uint32_t goal, min, max, from;
};
struct schema_branch {
    enum schema_type type;
    const struct numbers *numbers;
    const struct language *strings;
    /* of objects: sorted by name */
    struct schema_named *named;
    struct schema_class *classes;
    uint32_t n_named, n_classes;
    /* of arrays: the first items, and all others; who says that no two are equal (NULL: nobody) */
    uint32_t *prefix, n_prefix, rest;
    json_t *unique;
    /* members or items */
    uint32_t min, max;
    struct schema_counted *counted;
    uint32_t n_counted;
};
struct schema_list {
    struct schema_branch *all;
    size_t n, cap;
};

struct schema_chunk {
    struct schema_chunk *next;
    size_t used, size;
};
struct schema_id {
    const char *id;
    json_t *node;
};
/* A node with a reference, and the innermost id around it: in `ids`. */
struct schema_referrer {
    json_t *node;
    uint32_t base;
};
/* What an expression or a format means, once it was made. */
struct schema_known {
    struct text_span text;
    bool is_format;
    const struct language *language; /* NULL: a format that is an annotation */
};
/* Numbers by hash (schema_goals.c). */
struct schema_table {
    uint32_t *slots; /* [size]: number + 1; 0: free */
    size_t size;
};
struct schema_goal {
    uint32_t *literals; /* [n]: node x 2, + 1 if it must not hold */
    uint32_t n;
    enum { GOAL_NEW, GOAL_OPEN, GOAL_DONE } state; /* of its branches */
    struct schema_branch *branches;
    uint32_t n_branches;
    uint16_t height; /* the least of its branches */
};
struct schema_compiler {
    struct grammar_budget *b;
    kvasir_error *err;
    kvasir_status status;
    json_t *root;
    json_t *made; /* array: nodes that are in no text */
    bool legacy;  /* up to draft 7: nothing beside $ref counts */
    /* "x-canonical": numbers as numbers_make_canonical has them, and a character is escaped only
     * where it must be or where any character may stand. */
    bool canonical;
    struct schema_id *ids;
    size_t n_ids, ids_cap;
    struct schema_referrer *referrers;
    size_t n_referrers, referrers_cap;
    json_t **nodes;
    size_t n_nodes, nodes_cap;
    struct schema_goal *goals;
    size_t n_goals, goals_cap;
    struct schema_table by_node, by_literals, by_referrer;
    struct schema_chunk *chunks;
    struct language **languages;
    size_t n_languages, languages_cap;
    struct schema_known *known;
    size_t n_known, known_cap;
    struct numbers **numbers;
    size_t n_numbers, numbers_cap;
    const struct language *any_string;
    const struct numbers *any_number;
    /* schema_apply and schema_branches, for the files that those call */
    bool (*apply)(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                  bool negative, struct schema_list *out);
    bool (*make_branches)(struct schema_compiler *c, uint32_t goal);
    uint32_t depth, nested; /* of references and combinators; of goals in each other */
};

/* ---- schema_keep.c --------------------------------------------------------------------------- */

/* False, with c->status: at the node's keyword. code: ARGUMENT or UNSUPPORTED. */
bool schema_fail(struct schema_compiler *c, kvasir_status code, json_t *node, const char *keyword,
                 const char *why);
bool schema_no_memory(struct schema_compiler *c);
/* Steps and branches. */
bool schema_take(struct schema_compiler *c, uint64_t steps);
void *schema_alloc(struct schema_compiler *c, size_t n, size_t size); /* NULL: failed */
void schema_free(struct schema_compiler *c);
/* Keeps a node that is in no text; NULL: failed. Takes it. */
json_t *schema_make(struct schema_compiler *c, json_t *node);
/* These keep what they are given and return it; NULL: failed. */
const struct language *schema_language(struct schema_compiler *c, kvasir_status status,
                                       struct language *l, json_t *node, const char *keyword);
const struct numbers *schema_numbers(struct schema_compiler *c, kvasir_status status,
                                     struct numbers *n, json_t *node, const char *keyword);
/* The strings that an expression finds, or of a format; made once for all nodes that have it. A
 * text belongs to the schema. False: failed. *out NULL: the format is an annotation. */
bool schema_strings(struct schema_compiler *c, struct text_span text, bool is_format, json_t *node,
                    const char *keyword, const struct language **out);
struct text_span schema_text(json_t *string);
bool schema_add(struct schema_compiler *c, struct schema_list *list,
                const struct schema_branch *branch);
void schema_list_free(struct schema_list *list);
/* A whole number from 0 on, bounded; false: failed. */
bool schema_count(struct schema_compiler *c, json_t *node, const char *keyword, uint32_t *out);

/* ---- schema_goals.c -------------------------------------------------------------------------- */

/* Makes GOAL_ANY and GOAL_NONE. */
bool schema_goals_begin(struct schema_compiler *c);
/* A set of literals with one more; false: failed. */
bool schema_with(struct schema_compiler *c, uint32_t goal, json_t *node, bool negative,
                 uint32_t *out);
/* The union of two sets. */
bool schema_join(struct schema_compiler *c, uint32_t x, uint32_t y, uint32_t *out);
/* Keeps the id around a node with a reference. */
bool schema_refers(struct schema_compiler *c, json_t *node, uint32_t base);
/* That id; NULL: there is none. */
const struct schema_id *schema_base(const struct schema_compiler *c, json_t *node);

/* ---- schema_read.c --------------------------------------------------------------------------- */

bool schema_read(struct schema_compiler *c, struct text_span text);
enum { SCHEMA_REFERENCES = 3 };
extern const char *const SCHEMA_REFERENCE[SCHEMA_REFERENCES]; /* keywords */
/* The node of a reference; NULL: failed. */
json_t *schema_resolve(struct schema_compiler *c, json_t *node, const char *keyword,
                       const char *reference);

/* ---- schema_apply.c -------------------------------------------------------------------------- */

/* Appends what is left of each branch of `in` if the node must, or must not, hold. */
bool schema_apply(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                  bool negative, struct schema_list *out);
/* The goal's branches are made, unless that is under way. */
bool schema_branches(struct schema_compiler *c, uint32_t goal);

/* ---- by type: the same as schema_apply, for some keywords ------------------------------------ */

/* schema_scalar.c: a value that is the same, or one of several; and numbers and strings. */
bool schema_value(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                  json_t *values, bool negative, struct schema_list *out);
bool schema_scalars(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                    struct schema_list *out);
bool schema_not_scalars(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                        struct schema_list *out);
/* schema_object.c */
bool schema_objects(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                    struct schema_list *out);
bool schema_not_objects(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                        struct schema_list *out);
bool schema_is_object(struct schema_compiler *c, const struct schema_branch *b, json_t *value,
                      struct schema_list *out);
bool schema_is_no_object(struct schema_compiler *c, const struct schema_branch *b, json_t *value,
                         struct schema_list *out);
/* The names of classes that have few become names of their own. */
bool schema_name_classes(struct schema_compiler *c, struct schema_branch *b);
/* schema_array.c */
bool schema_arrays(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                   struct schema_list *out);
bool schema_not_arrays(struct schema_compiler *c, const struct schema_list *in, json_t *node,
                       struct schema_list *out);
bool schema_is_array(struct schema_compiler *c, const struct schema_branch *b, json_t *value,
                     struct schema_list *out);
bool schema_is_no_array(struct schema_compiler *c, const struct schema_branch *b, json_t *value,
                        struct schema_list *out);
/* Goals of the values that an item can have, of an array whose items are all different: an array
 * that the compiler keeps. NULL: failed. */
uint32_t *schema_item_values(struct schema_compiler *c, const struct schema_branch *b, uint32_t *n);

/* ---- schema_compile.c: what a recognizer reads ----------------------------------------------- */

/* A goal of one item or member, which then counts for the constraints of a set of bits; of an array
 * whose items are all different, the goal of one value, and its number. */
struct schema_choice {
    uint32_t goal;
    uint16_t counts, height; /* the goal's */
};
struct schema_choices {
    struct schema_choice *all; /* only those that can be met */
    uint32_t n;
};
/* How many names that a schema does not mention can be kept distinct in one object. */
enum { SCHEMA_NAMES_MAX = 32 };
/* A branch that can be met. */
struct schema_plan {
    struct schema_branch branch;
    struct schema_choices *named, *classes; /* none: no such member */
    struct schema_choices *prefix, rest;    /* of items */
    uint32_t max;                           /* items, at most, that can be met */
    uint16_t height;
    /* words of 64 bits of a frame: bits of `named`, or of `rest` if unique; then, where n_names,
     * a hash of the last name of a class, and of those that counted for branch.min */
    uint32_t words, n_names;
    bool *distinct; /* [n_classes]: a name that counted may not come again */
    bool unique;    /* each choice of `rest` may come once */
    uint32_t id;    /* of its strings, for keys of the machine */
};
struct schema {
    struct recognizer base; /* first */
    struct schema_compiler c;
    struct schema_plan *plans;
    struct schema_range {
        uint32_t first, n;
    } * goals; /* [c.n_goals]: the plans of each */
    uint32_t root;
    size_t bytes;
};

/* ---- schema_room.c --------------------------------------------------------------------------- */

/* A container that is open: what it has so far. */
struct schema_room {
    const struct schema_plan *plan;
    uint32_t reach;                       /* levels left within it: goals that need more are dead */
    uint32_t count;                       /* members or items */
    uint32_t counted[SCHEMA_COUNTED_MAX]; /* of them, for each constraint */
    const uint8_t *seen;                  /* bits of names that it has; NULL: none */
    uint32_t name;                        /* one more that it has, or SCHEMA_UNBOUNDED */
};
/* Whether it can be completed. Of its choices, heights are set. */
bool schema_has_room(const struct schema_room *r);
/* How many items an array can have with so many levels left within it. */
uint32_t schema_items_max(const struct schema_plan *p, uint32_t reach);
/* Whether its constraints count so little that schema_has_room can tell. */
bool schema_counts_are_few(const struct schema_branch *b);

/* schema_state.c */
extern const struct recognizer_ops SCHEMA_OPS;

#endif
