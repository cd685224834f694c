/* SPDX-License-Identifier: Apache-2.0 */
/* pushdown_check.c: what must be known of a grammar as a whole before it reads text.
 *
 *     need       the fewest frames that a text of a rule takes on the stack; PUSHDOWN_NEVER: no
 *                text ends it, and alternatives that call it are never entered
 *     nullable   it may be empty
 *
 * Left recursion is refused: the stack would grow without an end before the first byte is read. A
 * circle of calls at the end of their alternatives does not make it grow, so `x*` of an x that may
 * be empty is allowed.
 */
#include "grammar/pushdown.h"

enum { SWEEP_STEPS = 2, EDGE_STEPS = 8 };

static kvasir_status out_of_memory(kvasir_error *err) {
    return fail(err, KVASIR_ERR_MEMORY, "not enough memory for a grammar");
}

static struct pushdown_element element_at(const struct pushdown *p, uint32_t at) {
    return p->elements[at];
}

/* ---- need, nullable -------------------------------------------------------------------------- */

static bool is_empty_class(const struct pushdown *p, struct pushdown_element e) {
    return e.kind == PUSHDOWN_CLASS && p->classes[e.value].n == 0;
}

static uint32_t need_of(const struct pushdown *p, uint32_t at) {
    uint32_t need = 0;
    for (;; at++) {
        const struct pushdown_element e = element_at(p, at);
        if (e.kind == PUSHDOWN_END)
            return need;
        if (is_empty_class(p, e))
            return PUSHDOWN_NEVER;
        need = max_u32(need, 1);
        if (e.kind != PUSHDOWN_RULE)
            continue;
        const bool tail = element_at(p, at + 1).kind == PUSHDOWN_END;
        const uint32_t call = p->rules[e.value].need;
        if (call == PUSHDOWN_NEVER)
            return PUSHDOWN_NEVER;
        need = max_u32(need, call + !tail);
    }
}

static bool is_nullable(const struct pushdown *p, struct pushdown_element e) {
    if (e.kind == PUSHDOWN_RULE)
        return p->rules[e.value].nullable;
    return e.kind == PUSHDOWN_EMBED && p->embed_nullable[e.value];
}

static bool may_be_empty(const struct pushdown *p, uint32_t at) {
    while (is_nullable(p, element_at(p, at)))
        at++;
    return element_at(p, at).kind == PUSHDOWN_END;
}

/* True if something has changed. */
static bool update_rule(struct pushdown *p, struct pushdown_rule *r) {
    uint32_t need = PUSHDOWN_NEVER;
    bool nullable = false;
    for (uint32_t i = r->first; i < r->first + r->n; i++) {
        struct pushdown_alternative *a = &p->alternatives[i];
        a->need = need_of(p, a->at);
        need = min_u32(need, a->need);
        nullable |= may_be_empty(p, a->at);
    }
    const bool changed = need != r->need || nullable != r->nullable;
    r->need = need;
    r->nullable = nullable;
    return changed;
}

/* Sweeps over all rules, back and forth, until nothing changes. */
static kvasir_status sweep_rules(struct pushdown *p, struct grammar_budget *b, kvasir_error *err) {
    for (uint32_t i = 0; i < p->n_rules; i++)
        p->rules[i].need = PUSHDOWN_NEVER;
    bool changed = true;
    for (uint32_t round = 0; changed; round++) {
        if (!budget_take(b, (uint64_t)p->n_elements * SWEEP_STEPS, 0))
            return grammar_too_large(err, "the grammar");
        changed = false;
        for (uint32_t i = 0; i < p->n_rules; i++)
            changed |= update_rule(p, &p->rules[round % 2 ? i : p->n_rules - 1 - i]);
    }
    return KVASIR_OK;
}

/* ---- left recursion -------------------------------------------------------------------------- */

/* Tarjan's strongly connected components of the calls that may come first, without recursion. */
struct visit {
    uint32_t rule, alternative, at; /* the next element to look at */
};
struct circles {
    const struct pushdown *p;
    uint32_t *order, *low; /* [n_rules], from 1; 0: not visited */
    uint32_t *open;        /* [n_open] rules whose component is not complete */
    bool *is_open;
    struct visit *path; /* [depth] */
    uint32_t n_open, depth, n;
};

static void enter(struct circles *c, uint32_t rule) {
    const struct pushdown_rule *r = &c->p->rules[rule];
    c->order[rule] = c->low[rule] = ++c->n;
    c->open[c->n_open++] = rule;
    c->is_open[rule] = true;
    c->path[c->depth++] =
        (struct visit){rule, r->first, r->n ? c->p->alternatives[r->first].at : 0};
}

/* The next call of the rule that may come first; false: no more. */
static bool next_call(const struct pushdown *p, struct visit *v, uint32_t *rule) {
    const struct pushdown_rule *r = &p->rules[v->rule];
    while (v->alternative < r->first + r->n) {
        const struct pushdown_element e = element_at(p, v->at);
        if (e.kind == PUSHDOWN_RULE) {
            *rule = e.value;
            return true;
        }
        if (e.kind == PUSHDOWN_EMBED && is_nullable(p, e)) {
            v->at++;
            continue;
        }
        if (++v->alternative < r->first + r->n)
            v->at = p->alternatives[v->alternative].at;
    }
    return false;
}

/* Goes past the call at v. */
static void pass_call(const struct pushdown *p, struct visit *v) {
    const struct pushdown_rule *r = &p->rules[v->rule];
    if (is_nullable(p, element_at(p, v->at))) {
        v->at++;
        return;
    }
    if (++v->alternative < r->first + r->n)
        v->at = p->alternatives[v->alternative].at;
}

static void leave(struct circles *c) {
    const uint32_t rule = c->path[--c->depth].rule;
    if (c->depth) {
        const uint32_t above = c->path[c->depth - 1].rule;
        c->low[above] = min_u32(c->low[above], c->low[rule]);
    }
    if (c->low[rule] != c->order[rule])
        return;
    while (c->n_open) { /* a component: all get the same number */
        const uint32_t member = c->open[--c->n_open];
        c->is_open[member] = false;
        c->low[member] = c->order[rule];
        if (member == rule)
            break;
    }
}

static void find_circles(struct circles *c) {
    for (uint32_t root = 0; root < c->p->n_rules; root++) {
        if (c->order[root])
            continue;
        enter(c, root);
        while (c->depth) {
            struct visit *v = &c->path[c->depth - 1];
            uint32_t to;
            if (!next_call(c->p, v, &to)) {
                leave(c);
                continue;
            }
            const uint32_t from = v->rule;
            if (c->order[to]) {
                if (c->is_open[to])
                    c->low[from] = min_u32(c->low[from], c->order[to]);
                pass_call(c->p, v);
            } else {
                pass_call(c->p, v);
                enter(c, to);
            }
        }
    }
}

/* A call inside a component that leaves something on the stack. */
static kvasir_status refuse_growth(const struct circles *c, kvasir_error *err) {
    const struct pushdown *p = c->p;
    for (uint32_t rule = 0; rule < p->n_rules; rule++) {
        struct visit v = {rule, p->rules[rule].first, 0};
        uint32_t to;
        v.at = p->rules[rule].n ? p->alternatives[v.alternative].at : 0;
        for (; next_call(p, &v, &to); pass_call(p, &v))
            if (c->low[to] == c->low[rule] && element_at(p, v.at + 1).kind != PUSHDOWN_END)
                return fail(err, KVASIR_ERR_UNSUPPORTED,
                            "rule %.*s calls itself before it has read anything (left recursion); "
                            "write it with a repetition",
                            (int)min_size(p->rules[rule].name.len, 60), p->rules[rule].name.data);
    }
    return KVASIR_OK;
}

static kvasir_status check_circles(const struct pushdown *p, struct grammar_budget *b,
                                   kvasir_error *err) {
    const size_t n = p->n_rules;
    struct circles c = {.p = p};
    kvasir_status status = KVASIR_OK;
    if (!budget_take(b, ((uint64_t)p->n_elements + n) * EDGE_STEPS, 0))
        return grammar_too_large(err, "the grammar");
    c.order = mem_calloc(n, sizeof *c.order);
    c.low = mem_calloc(n, sizeof *c.low);
    c.open = mem_calloc(n, sizeof *c.open);
    c.is_open = mem_calloc(n, sizeof *c.is_open);
    c.path = mem_calloc(n, sizeof *c.path);
    if (!c.order || !c.low || !c.open || !c.is_open || !c.path) {
        status = out_of_memory(err);
    } else {
        find_circles(&c);
        status = refuse_growth(&c, err);
    }
    mem_free(c.order);
    mem_free(c.low);
    mem_free(c.open);
    mem_free(c.is_open);
    mem_free(c.path);
    return status;
}

kvasir_status pushdown_check(struct pushdown *p, struct grammar_budget *b, kvasir_error *err) {
    TRY(sweep_rules(p, b, err));
    if (p->rules[0].need == PUSHDOWN_NEVER)
        return fail(err, KVASIR_ERR_ARGUMENT, "no text can end the rule %.*s",
                    (int)min_size(p->rules[0].name.len, 60), p->rules[0].name.data);
    if (p->rules[0].need > PUSHDOWN_DEPTH_MAX)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "every text needs more than %d rules in each other", PUSHDOWN_DEPTH_MAX);
    return check_circles(p, b, err);
}
