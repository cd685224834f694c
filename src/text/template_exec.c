/* SPDX-License-Identifier: Apache-2.0 */
/* template_exec.c: statements, variables and loops.
 *
 * Scopes are those of Jinja2. Each pass of a for, each macro call and each block set, filter, with
 * and generation has its own; if has none. A macro keeps the scope it was defined in and sees what
 * that scope holds at the time of the call.
 *
 *     args ◀─ root ◀─ for, one pass ◀─ block set     read from the right, set in the rightmost
 *              ▲───── macro call                     whoever calls it
 *
 * A loop fetches at most one item ahead and tests its `if` when it fetches, like Jinja2's
 * generator. So a condition on a namespace sees what earlier passes did.
 */
#include "text/template_internal.h"

/* ---- scopes ---------------------------------------------------------------------------------- */

struct tpl_scope *tpl_scope_new(struct tpl *t, struct tpl_scope *outer) {
    struct tpl_scope *s = tpl_alloc(t, 1, sizeof *s);
    s->outer = outer;
    return s;
}

const tval *tpl_scope_find(struct tpl *t, const struct tpl_scope *scope, int32_t name) {
    for (; scope; scope = scope->outer) {
        tpl_charge(t, scope->n / 32); /* a scan: templates have a few dozen names */
        for (size_t i = 0; i < scope->n; i++)
            if (scope->vars[i].name == name)
                return &scope->vars[i].value;
    }
    return NULL;
}

void tpl_scope_set(struct tpl *t, struct tpl_scope *scope, int32_t name, tval value) {
    tpl_charge(t, scope->n / 32);
    for (size_t i = 0; i < scope->n; i++)
        if (scope->vars[i].name == name) {
            scope->vars[i].value = value;
            return;
        }
    TPL_GROW(t, t->arena, scope->vars, scope->n, scope->cap, 4);
    scope->vars[scope->n++] = (struct tpl_var){name, value};
}

static void assign_to(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *target,
                      tval value);

static void assign_tuple(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *target,
                         tval value) {
    const struct tpl_list *items = tpl_to_list(t, value);
    if (items->n > target->n)
        tpl_fail(t, "too many values to unpack (expected %u)", target->n);
    if (items->n < target->n)
        tpl_fail(t, "not enough values to unpack (expected %u, got %zu)", target->n, items->n);
    for (uint32_t i = 0; i < target->n; i++)
        assign_to(t, scope, target->list[i], items->items[i]);
}

static void assign_to(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *target,
                      tval value) {
    tpl_charge(t, 1);
    t->at = target->at;
    if (target->kind == NODE_NAME) {
        tpl_scope_set(t, scope, target->name, value);
    } else if (target->kind == NODE_TUPLE) {
        assign_tuple(t, scope, target, value);
    } else {
        const tval *space = tpl_scope_find(t, scope, target->name);
        if (!space || space->type != TPL_SPACE)
            tpl_fail(t, "cannot assign attribute on non-namespace object");
        tpl_dict_set(t, space->dict, target->value, value);
    }
}

/* ---- captured blocks ------------------------------------------------------------------------- */

/* Runs the body in its own scope and captures its output. */
static enum tpl_flow capture_body(struct tpl *t, struct tpl_scope *scope,
                                  const struct tpl_node *body, tval *text) {
    struct tpl_out out = {0}, *outer = t->out;
    t->out = &out;
    enum tpl_flow flow = tpl_exec(t, tpl_scope_new(t, scope), body);
    t->out = outer;
    *text = tpl_str_from_out(t, &out);
    return flow;
}

/* {% set x %} and {% filter f %}: the filtered text of the body goes to x or to the output. */
static enum tpl_flow exec_captured(struct tpl *t, struct tpl_scope *scope,
                                   const struct tpl_node *node) {
    tval text;
    enum tpl_flow flow = capture_body(t, scope, node->body, &text);
    if (flow != FLOW_NEXT)
        return flow;
    if (node->b) {
        t->captured = text;
        text = tpl_eval(t, scope, node->b);
    }
    if (node->a)
        assign_to(t, scope, node->a, text);
    else
        tpl_put_str(t, t->out, text);
    return FLOW_NEXT;
}

static tval macro_value(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node) {
    struct tpl_macro *macro = tpl_alloc(t, 1, sizeof *macro);
    *macro = (struct tpl_macro){node, scope};
    for (struct tpl_scope *s = scope; s; s = s->outer)
        s->kept = true;
    return (tval){.type = TPL_MACRO, .macro = macro};
}

/* {% call(x) f(a) %} body {% endcall %} is f(a, caller=...), with the body as a macro. */
static enum tpl_flow exec_call_block(struct tpl *t, struct tpl_scope *scope,
                                     const struct tpl_node *node) {
    struct tpl_node *with_caller = tpl_alloc(t, 1, sizeof *with_caller);
    struct tpl_node *caller = tpl_alloc(t, 1, sizeof *caller);
    struct tpl_args *args = tpl_alloc(t, 1, sizeof *args);
    *with_caller = *node->a;
    *args = *node->a->args;
    caller->kind = NODE_CONST;
    caller->at = node->at;
    caller->value = macro_value(t, scope, node);
    args->kw = tpl_alloc(t, args->n_kw + 1, sizeof *args->kw);
    if (args->n_kw)
        memcpy(args->kw, node->a->args->kw, args->n_kw * sizeof *args->kw);
    args->kw[args->n_kw++] = (struct tpl_keyword){t->tmpl->names[TPL_NAME_CALLER], caller};
    with_caller->args = args;
    tpl_put_str(t, t->out, tpl_eval(t, scope, with_caller));
    return FLOW_NEXT;
}

/* ---- loops ----------------------------------------------------------------------------------- */

/* The next item that passes the loop's `if`; false at the end. */
static bool loop_fetch(struct tpl *t, struct tpl_loop *loop, tval *out) {
    while (loop->next < loop->items->n) {
        tval item = loop->items->items[loop->next++];
        tpl_charge(t, 1);
        if (loop->node->d) {
            struct tpl_scope *scope = tpl_scope_new(t, loop->scope);
            assign_to(t, scope, loop->node->a, item);
            if (!tpl_truth(tpl_eval(t, scope, loop->node->d)))
                continue;
        }
        *out = item;
        return true;
    }
    return false;
}

static bool loop_peek(struct tpl *t, struct tpl_loop *loop) {
    return loop->peeked.type != TPL_UNSET || loop_fetch(t, loop, &loop->peeked);
}

/* The number of items that pass the `if`. Like Jinja2, this fetches all remaining items at once. */
static int64_t loop_length(struct tpl *t, struct tpl_loop *loop) {
    if (loop->passing >= 0)
        return loop->passing;
    struct tpl_items rest = {0};
    for (tval item; loop_fetch(t, loop, &item);)
        tpl_items_push(t, &rest, item);
    loop->passing = loop->index0 + 1 + (loop->peeked.type != TPL_UNSET) + (int64_t)rest.n;
    ASSERT(loop->passing >= 0);
    loop->items = tpl_items_finish(t, &rest, TPL_LIST).list;
    loop->next = 0;
    struct tpl_node *unfiltered = tpl_alloc(t, 1, sizeof *unfiltered);
    *unfiltered = *loop->node;
    unfiltered->d = NULL;
    loop->node = unfiltered;
    return loop->passing;
}

TPL_FN(loop_cycle) {
    if (!call->n_pos)
        tpl_fail(t, "no items for cycling given");
    return call->pos[(size_t)self.loop->index0 % call->n_pos];
}

TPL_FN(loop_changed) {
    tval now = tpl_list_of(t, TPL_TUPLE, call->pos, call->n_pos);
    bool changed = !tpl_equal(t, self.loop->changed, now);
    self.loop->changed = now;
    return tpl_bool(changed);
}

static const struct tpl_builtin loop_methods[] = {
    {"cycle", NULL, loop_cycle},
    {"changed", NULL, loop_changed},
};

static tval loop_number(struct tpl *t, struct tpl_loop *loop, const char *name) {
    if (strcmp(name, "index") == 0)
        return tpl_int(loop->index0 + 1);
    if (strcmp(name, "index0") == 0)
        return tpl_int(loop->index0);
    if (strcmp(name, "length") == 0)
        return tpl_int(loop_length(t, loop));
    if (strcmp(name, "revindex") == 0)
        return tpl_int(loop_length(t, loop) - loop->index0);
    if (strcmp(name, "revindex0") == 0)
        return tpl_int(loop_length(t, loop) - loop->index0 - 1);
    if (strcmp(name, "depth") == 0)
        return tpl_int((int64_t)loop->nesting + 1);
    if (strcmp(name, "depth0") == 0)
        return tpl_int((int64_t)loop->nesting);
    return tpl_unset();
}

tval tpl_loop_attr(struct tpl *t, struct tpl_loop *loop, const struct tpl_str *name) {
    char text[16] = ""; /* the longest attribute has 9 letters */
    if (name->len < sizeof text)
        memcpy(text, name->data, name->len);
    if (strcmp(text, "first") == 0)
        return tpl_bool(loop->index0 == 0);
    if (strcmp(text, "last") == 0)
        return tpl_bool(!loop_peek(t, loop));
    if (strcmp(text, "previtem") == 0)
        return loop->index0 == 0 ? tpl_undef_hint(t, "there is no previous item") : loop->prev;
    if (strcmp(text, "nextitem") == 0)
        return loop_peek(t, loop) ? loop->peeked : tpl_undef_hint(t, "there is no next item");
    static const struct tpl_table table = TPL_TABLE(loop_methods);
    const struct tpl_builtin *b = tpl_search(&table, text, strlen(text));
    return b ? tpl_method_of(t, (tval){.type = TPL_LOOP, .loop = loop}, b)
             : loop_number(t, loop, text);
}

static enum tpl_flow run_loop(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node,
                              tval iterable, uint32_t nesting) {
    struct tpl_loop *loop = tpl_alloc(t, 1, sizeof *loop);
    struct tpl_scope *pass = NULL;
    bool finished = false; /* a pass that ends with break or continue does not prevent `else` */
    *loop = (struct tpl_loop){.node = node, .scope = scope, .index0 = -1, .passing = -1};
    loop->nesting = nesting;
    t->at = node->b->at;
    loop->items = tpl_to_list(t, iterable);
    if (!node->d && iterable.type != TPL_CURSOR)
        loop->passing = (int64_t)loop->items->n;
    tpl_enter(t);
    while (loop_peek(t, loop)) {
        loop->prev = loop->current;
        loop->current = loop->peeked;
        loop->peeked = tpl_unset();
        loop->index0++;
        if (!pass || pass->kept)
            pass = tpl_scope_new(t, scope);
        pass->n = 0;
        tpl_scope_set(t, pass, TPL_NAME_LOOP, (tval){.type = TPL_LOOP, .loop = loop});
        assign_to(t, pass, node->a, loop->current);
        enum tpl_flow flow = tpl_exec(t, pass, node->body);
        finished = finished || flow == FLOW_NEXT;
        if (flow == FLOW_BREAK)
            break;
    }
    tpl_leave(t);
    if (!finished && node->c)
        return tpl_exec(t, tpl_scope_new(t, scope), node->c);
    return FLOW_NEXT;
}

tval tpl_loop_recurse(struct tpl *t, struct tpl_loop *loop, const struct tpl_call *call) {
    if (!loop->node->flag)
        tpl_fail(t, "The loop must have the 'recursive' marker to be called recursively.");
    if (call->n_pos != 1 || call->n_kw)
        tpl_fail(t, "loop() takes exactly one argument");
    struct tpl_out out = {0}, *outer = t->out;
    t->out = &out;
    (void)run_loop(t, loop->scope, loop->node, call->pos[0], loop->nesting + 1);
    t->out = outer;
    return tpl_str_from_out(t, &out);
}

/* ---- statements ------------------------------------------------------------------------------ */

static enum tpl_flow exec_block(struct tpl *t, struct tpl_scope *scope,
                                const struct tpl_node *node) {
    enum tpl_flow flow = FLOW_NEXT;
    for (uint32_t i = 0; i < node->n && flow == FLOW_NEXT; i++)
        flow = tpl_exec(t, scope, node->list[i]);
    return flow;
}

static enum tpl_flow exec_data(struct tpl *t, struct tpl_scope *scope,
                               const struct tpl_node *node) {
    (void)scope;
    tpl_out_str(t, t->out, node->value.s);
    return FLOW_NEXT;
}

static enum tpl_flow exec_output(struct tpl *t, struct tpl_scope *scope,
                                 const struct tpl_node *node) {
    tpl_put_str(t, t->out, tpl_eval(t, scope, node->a));
    return FLOW_NEXT;
}

static enum tpl_flow exec_if(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node) {
    for (uint32_t i = 0; i < node->n; i += 2)
        if (tpl_truth(tpl_eval(t, scope, node->list[i])))
            return tpl_exec(t, scope, node->list[i + 1]);
    return node->c ? tpl_exec(t, scope, node->c) : FLOW_NEXT;
}

static enum tpl_flow exec_for(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node) {
    return run_loop(t, scope, node, tpl_eval(t, scope, node->b), 0);
}

static enum tpl_flow exec_set(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node) {
    assign_to(t, scope, node->a, tpl_eval(t, scope, node->b));
    return FLOW_NEXT;
}

static enum tpl_flow exec_macro(struct tpl *t, struct tpl_scope *scope,
                                const struct tpl_node *node) {
    tpl_scope_set(t, scope, node->name, macro_value(t, scope, node));
    return FLOW_NEXT;
}

static enum tpl_flow exec_with(struct tpl *t, struct tpl_scope *scope,
                               const struct tpl_node *node) {
    struct tpl_scope *inner = tpl_scope_new(t, scope);
    for (uint32_t i = 0; i < node->n; i += 2)
        assign_to(t, inner, node->list[i], tpl_eval(t, scope, node->list[i + 1]));
    return tpl_exec(t, inner, node->body);
}

static enum tpl_flow exec_scope(struct tpl *t, struct tpl_scope *scope,
                                const struct tpl_node *node) {
    return tpl_exec(t, tpl_scope_new(t, scope), node->body);
}

enum tpl_flow tpl_exec(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node) {
    static enum tpl_flow (*const table[])(struct tpl *, struct tpl_scope *,
                                          const struct tpl_node *) = {
        [NODE_BLOCK] = exec_block,
        [NODE_DATA] = exec_data,
        [NODE_OUTPUT] = exec_output,
        [NODE_IF] = exec_if,
        [NODE_FOR] = exec_for,
        [NODE_SET] = exec_set,
        [NODE_SET_BLOCK] = exec_captured,
        [NODE_MACRO] = exec_macro,
        [NODE_CALL_BLOCK] = exec_call_block,
        [NODE_FILTER_BLOCK] = exec_captured,
        [NODE_WITH] = exec_with,
        [NODE_SCOPE] = exec_scope,
    };
    tpl_charge(t, 1);
    t->at = node->at;
    if (node->kind == NODE_BREAK || node->kind == NODE_CONTINUE)
        return node->kind == NODE_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
    DEBUG_ASSERT(node->kind < COUNT(table) && table[node->kind]);
    tpl_enter(t);
    enum tpl_flow flow = table[node->kind](t, scope, node);
    tpl_leave(t);
    return flow;
}
