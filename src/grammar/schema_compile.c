/* SPDX-License-Identifier: Apache-2.0 */
/* schema_compile.c: all goals that can come up, which of them some value meets, and their plans:
 * what the recognizer needs of each branch.
 *
 * Members and items may count for some constraints (contains, or what the negation of others asks
 * for): each has a choice of goals, one for each set of constraints that it counts for.
 */
#include <string.h>

#include "grammar/schema.h"

struct closure {
    struct schema *s;
    uint32_t *queue; /* goals in the order in which they came up */
    size_t n, cap;
    bool *seen; /* [seen_cap] */
    size_t seen_cap;
    size_t n_plans, plans_cap;
};

static bool reach(struct closure *c, uint32_t goal) {
    const size_t before = c->seen_cap;
    if (goal == GOAL_NONE)
        return true;
    if (!ARRAY_GROW(c->seen, c->seen_cap, (size_t)goal + 1))
        return schema_no_memory(&c->s->c);
    if (c->seen_cap > before)
        memset(c->seen + before, 0, (c->seen_cap - before) * sizeof *c->seen);
    if (c->seen[goal])
        return true;
    if (!ARRAY_GROW(c->queue, c->cap, c->n + 1))
        return schema_no_memory(&c->s->c);
    c->seen[goal] = true;
    c->queue[c->n++] = goal;
    return true;
}

/* ---- choices --------------------------------------------------------------------------------- */

/* A goal's one literal must not hold instead. */
static bool with_opposite(struct schema_compiler *c, uint32_t goal, uint32_t counted,
                          uint32_t *out) {
    const struct schema_goal g = c->goals[counted];
    ASSERT(g.n <= 1);
    if (g.n == 0) {
        *out = GOAL_NONE;
        return true;
    }
    return schema_with(c, goal, c->nodes[g.literals[0] / 2], !(g.literals[0] & 1), out);
}

/* The goal of a value that counts for these constraints and for none of the other eligible ones. */
static bool choice_goal(struct schema_compiler *c, const struct schema_branch *b, uint32_t goal,
                        uint32_t eligible, uint32_t counts, uint32_t *out) {
    *out = goal;
    for (uint32_t i = 0; i < b->n_counted; i++) {
        const struct schema_counted *k = &b->counted[i];
        if (!(eligible >> i & 1))
            continue;
        if (counts >> i & 1) {
            if (!schema_join(c, *out, k->goal, out))
                return false;
        } else if (k->max != SCHEMA_UNBOUNDED && *out != GOAL_NONE) {
            if (!with_opposite(c, *out, k->goal, out))
                return false;
        }
    }
    return true;
}

static bool choices(struct closure *c, const struct schema_branch *b, uint32_t goal,
                    uint32_t eligible, struct schema_choices *out) {
    struct schema_compiler *s = &c->s->c;
    *out = (struct schema_choices){
        .all = schema_alloc(s, (size_t)1 << b->n_counted, sizeof *out->all)};
    if (!out->all)
        return false;
    for (uint32_t counts = 0; counts < 1u << b->n_counted; counts++) {
        uint32_t one;
        if (counts & ~eligible)
            continue;
        if (!choice_goal(s, b, goal, eligible, counts, &one) || !reach(c, one))
            return false;
        if (one != GOAL_NONE)
            out->all[out->n++] = (struct schema_choice){one, (uint16_t)counts, SCHEMA_DEAD};
    }
    return true;
}

/* ---- plans ----------------------------------------------------------------------------------- */

static bool overlap(struct schema_compiler *c, const struct language *x, const struct language *y,
                    bool *out) {
    struct language *both;
    const kvasir_status status = language_and(c->b, x, y, &both, c->err);
    const struct language *kept = schema_language(c, status, status ? NULL : both, c->root, "");
    *out = kept && !language_is_empty(kept);
    return kept != NULL;
}

/* Names of their own are in no class. */
static bool take_names_out(struct schema_compiler *c, struct schema_branch *b) {
    struct text_span *names = schema_alloc(c, b->n_named, sizeof *names);
    struct schema_class *classes = schema_alloc(c, b->n_classes, sizeof *classes);
    struct language *l, *others;
    if (!names || !classes)
        return false;
    for (uint32_t i = 0; i < b->n_named; i++)
        names[i] = b->named[i].name;
    kvasir_status status = language_literals(c->b, names, b->n_named, &l, c->err);
    const struct language *named = schema_language(c, status, status ? NULL : l, c->root, "");
    status = named ? language_not(c->b, named, &others, c->err) : c->status;
    const struct language *rest = schema_language(c, status, status ? NULL : others, c->root, "");
    for (uint32_t i = 0; rest && i < b->n_classes; i++) {
        status = language_and(c->b, b->classes[i].keys, rest, &l, c->err);
        classes[i] = b->classes[i];
        if (!(classes[i].keys = schema_language(c, status, status ? NULL : l, c->root, "")))
            return false;
    }
    b->classes = classes;
    return rest != NULL;
}

/* Whether some class can be met is not known yet; that none has a goal is. */
static bool has_classes(const struct schema_branch *b) {
    for (uint32_t i = 0; i < b->n_classes; i++)
        if (b->classes[i].goal != GOAL_NONE)
            return true;
    return false;
}

/* A parser keeps one member of a name, so that a name must not count for `min` twice. Where all
 * names that begin in some way could have been used, nobody could go on: such classes are left. */
static bool plan_names(struct schema_compiler *s, struct schema_plan *p) {
    const struct schema_branch *b = &p->branch;
    bool some = false;
    if (b->min < 2)
        return true;
    p->distinct = schema_alloc(s, b->n_classes, sizeof *p->distinct);
    if (!p->distinct)
        return false;
    for (uint32_t i = 0; i < b->n_classes; i++) {
        p->distinct[i] = language_never_ends(b->classes[i].keys);
        some |= p->distinct[i];
    }
    p->n_names = some ? min_u32(b->min - 1, SCHEMA_NAMES_MAX) : 0;
    p->words += some ? 1 + p->n_names : 0;
    return true;
}

static bool plan_object(struct closure *c, struct schema_plan *p) {
    struct schema_compiler *s = &c->s->c;
    struct schema_branch *b = &p->branch;
    if (b->min > 1 && has_classes(b) && !schema_name_classes(s, b))
        return false;
    if (b->n_named && has_classes(b) && !take_names_out(s, b))
        return false;
    p->words = (b->n_named + 63) / 64;
    if (!plan_names(s, p))
        return false;
    p->named = schema_alloc(s, b->n_named, sizeof *p->named);
    p->classes = schema_alloc(s, b->n_classes, sizeof *p->classes);
    if (!p->named || !p->classes)
        return false;
    for (uint32_t i = 0; i < b->n_named; i++) {
        uint32_t eligible = 0;
        for (uint32_t k = 0; k < b->n_counted; k++)
            eligible |= (uint32_t)language_contains(b->counted[k].keys, b->named[i].name) << k;
        if (!choices(c, b, b->named[i].goal, eligible, &p->named[i]))
            return false;
    }
    for (uint32_t i = 0; i < b->n_classes; i++) {
        uint32_t eligible = 0;
        for (uint32_t k = 0; k < b->n_counted; k++) {
            bool in;
            if (!overlap(s, b->classes[i].keys, b->counted[k].keys, &in))
                return false;
            eligible |= (uint32_t)in << k;
        }
        if (language_is_empty(b->classes[i].keys))
            p->classes[i] = (struct schema_choices){0};
        else if (!choices(c, b, b->classes[i].goal, eligible, &p->classes[i]))
            return false;
    }
    return true;
}

/* Each value that an item can have is a choice, which may come once. */
static bool plan_unique(struct closure *c, struct schema_plan *p) {
    struct schema_compiler *s = &c->s->c;
    struct schema_branch *b = &p->branch;
    uint32_t n;
    const uint32_t *goals = schema_item_values(s, b, &n);
    struct schema_choice *all = goals ? schema_alloc(s, n, sizeof *all) : NULL;
    if (!all)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        all[i] = (struct schema_choice){goals[i], (uint16_t)i, SCHEMA_DEAD};
        if (!reach(c, goals[i]))
            return false;
    }
    p->rest = (struct schema_choices){all, n};
    p->unique = true;
    p->words = (n + 63) / 64;
    b->max = min_u32(b->max, n);
    return true;
}

static bool plan_array(struct closure *c, struct schema_plan *p) {
    const struct schema_branch *b = &p->branch;
    if (b->unique && b->max > 1)
        return plan_unique(c, p);
    p->prefix = schema_alloc(&c->s->c, b->n_prefix, sizeof *p->prefix);
    if (!p->prefix)
        return false;
    for (uint32_t i = 0; i <= b->n_prefix; i++) {
        uint32_t eligible = 0;
        for (uint32_t k = 0; k < b->n_counted; k++)
            eligible |= (uint32_t)(b->counted[k].from <= i) << k;
        if (!choices(c, b, i < b->n_prefix ? b->prefix[i] : b->rest, eligible,
                     i < b->n_prefix ? &p->prefix[i] : &p->rest))
            return false;
    }
    return true;
}

static bool add_plans(struct closure *c, uint32_t goal) {
    struct schema_compiler *s = &c->s->c;
    if (!schema_branches(s, goal))
        return false;
    const struct schema_goal g = s->goals[goal];
    for (uint32_t i = 0; i < g.n_branches; i++) {
        struct schema_plan p = {
            .branch = g.branches[i], .id = (uint32_t)c->n_plans, .height = SCHEMA_DEAD};
        if ((p.branch.type == SCHEMA_OBJECT && !plan_object(c, &p)) ||
            (p.branch.type == SCHEMA_ARRAY && !plan_array(c, &p)))
            return false;
        if (!schema_counts_are_few(&p.branch))
            return schema_fail(s, KVASIR_ERR_UNSUPPORTED, s->root, "",
                               "counts too many members or items that meet a schema");
        if (!budget_take(s->b, 8, sizeof p)) {
            s->status = grammar_too_large(s->err, "#");
            return false;
        }
        if (!ARRAY_GROW(c->s->plans, c->plans_cap, c->n_plans + 1))
            return schema_no_memory(s);
        c->s->plans[c->n_plans++] = p;
    }
    return true;
}

/* ---- what can be met ------------------------------------------------------------------------- */

static void set_heights(const struct schema_compiler *c, struct schema_choices *choices) {
    for (uint32_t i = 0; i < choices->n; i++)
        choices->all[i].height = c->goals[choices->all[i].goal].height;
}

/* Those of all choices of a plan. */
static void set_plan_heights(const struct schema_compiler *c, struct schema_plan *p) {
    for (uint32_t i = 0; p->named && i < p->branch.n_named; i++)
        set_heights(c, &p->named[i]);
    for (uint32_t i = 0; p->classes && i < p->branch.n_classes; i++)
        set_heights(c, &p->classes[i]);
    for (uint32_t i = 0; p->prefix && i < p->branch.n_prefix; i++)
        set_heights(c, &p->prefix[i]);
    set_heights(c, &p->rest);
}

/* Whether the plan can be met with goals of lower heights alone. */
static bool can_be_met(const struct schema_compiler *c, struct schema_plan *p, uint16_t height) {
    if (p->branch.type != SCHEMA_ARRAY && p->branch.type != SCHEMA_OBJECT)
        return true;
    set_plan_heights(c, p);
    return height > 0 && schema_has_room(&(struct schema_room){
                             .plan = p, .reach = height - 1u, .name = SCHEMA_UNBOUNDED});
}

static uint64_t steps_of(const struct schema_branch *b) {
    const uint64_t places = (uint64_t)b->n_named + b->n_classes + b->n_prefix;
    return 1 + places / 4 + (b->n_counted ? 100 + 10 * places : 0);
}

/* The height of each goal's plans, and so its own: those of height 0 first, then what needs no
 * others, and so on. */
static bool find_heights(struct closure *c) {
    struct schema_compiler *s = &c->s->c;
    bool changed = true;
    for (uint16_t height = 0; height <= SCHEMA_LEVELS_MAX && (changed || height < 2); height++) {
        changed = false;
        for (size_t i = 0; i < c->n; i++) {
            struct schema_goal *g = &s->goals[c->queue[i]];
            const struct schema_range r = c->s->goals[c->queue[i]];
            for (uint32_t k = r.first; k < r.first + r.n; k++) {
                struct schema_plan *p = &c->s->plans[k];
                if (!schema_take(s, steps_of(&p->branch)))
                    return false;
                if (p->height != SCHEMA_DEAD || !can_be_met(s, p, height))
                    continue;
                p->height = height;
                changed = true;
                if (g->height == SCHEMA_DEAD)
                    g->height = height;
            }
        }
    }
    return true;
}

static void keep_alive(struct schema_choices *choices) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < choices->n; i++)
        if (choices->all[i].height != SCHEMA_DEAD)
            choices->all[n++] = choices->all[i];
    choices->n = n;
}

/* Only what can be met is left. */
static void prune(struct closure *c) {
    struct schema *s = c->s;
    for (size_t i = 0; i < c->n; i++) {
        struct schema_range *r = &s->goals[c->queue[i]];
        uint32_t n = 0;
        for (uint32_t k = r->first; k < r->first + r->n; k++) {
            struct schema_plan p = s->plans[k];
            if (p.height == SCHEMA_DEAD)
                continue;
            set_plan_heights(&s->c, &p);
            for (uint32_t j = 0; p.named && j < p.branch.n_named; j++)
                keep_alive(&p.named[j]);
            for (uint32_t j = 0; p.classes && j < p.branch.n_classes; j++)
                keep_alive(&p.classes[j]);
            for (uint32_t j = 0; p.prefix && j < p.branch.n_prefix; j++)
                keep_alive(&p.prefix[j]);
            keep_alive(&p.rest);
            p.max = p.branch.type == SCHEMA_ARRAY ? schema_items_max(&p, SCHEMA_LEVELS_MAX) : 0;
            s->plans[r->first + n++] = p;
        }
        r->n = n;
    }
    for (size_t i = 0; i < c->n_plans; i++)
        s->plans[i].id = (uint32_t)i;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static bool explore(struct closure *c) {
    struct schema *s = c->s;
    size_t cap = 0;
    uint32_t root;
    if (!schema_with(&s->c, GOAL_ANY, s->c.root, false, &root) || !reach(c, root))
        return false;
    for (size_t i = 0; i < c->n; i++) {
        const size_t before = cap;
        const uint32_t first = (uint32_t)c->n_plans, goal = c->queue[i];
        if (!add_plans(c, goal))
            return false;
        if (!ARRAY_GROW(s->goals, cap, s->c.n_goals))
            return schema_no_memory(&s->c);
        memset(s->goals + before, 0, (cap - before) * sizeof *s->goals);
        s->goals[goal] = (struct schema_range){first, (uint32_t)c->n_plans - first};
    }
    if (!find_heights(c))
        return false;
    prune(c);
    ASSERT(root < s->c.n_goals);
    if (root == GOAL_NONE || s->c.goals[root].height == SCHEMA_DEAD)
        return schema_fail(&s->c, KVASIR_ERR_ARGUMENT, s->c.root, "", "no value meets this schema");
    s->root = root;
    s->bytes = c->n_plans * sizeof *s->plans + cap * sizeof *s->goals;
    return true;
}

kvasir_status schema_compile(struct text_span text, struct grammar_budget *b,
                             struct recognizer **out, kvasir_error *err) {
    struct schema *s = mem_calloc(1, sizeof *s);
    kvasir_error own;
    if (!s)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for a schema");
    s->base.ops = &SCHEMA_OPS;
    s->c.b = b;
    s->c.err = err ? err : &own;
    s->c.apply = schema_apply;
    s->c.make_branches = schema_branches;
    struct closure c = {.s = s};
    const size_t before = b->bytes;
    const bool good = schema_read(&s->c, text) && explore(&c);
    mem_free(c.queue);
    mem_free(c.seen);
    const kvasir_status status = s->c.status;
    if (!good) {
        ASSERT(status);
        SCHEMA_OPS.destroy(&s->base);
        return status;
    }
    s->bytes += before - b->bytes;
    s->c.err = NULL;
    *out = &s->base;
    return KVASIR_OK;
}
