/* SPDX-License-Identifier: Apache-2.0 */
/* template_eval.c: evaluates expressions: a walk over the nodes, one step and one level of depth
 * per node.
 *
 * t->at is the place of the node whose own work is being done, so an error names the operator,
 * filter or call that failed, not its last operand. Attributes and items follow the sandbox's
 * getattr and getitem: a.b prefers methods, a["b"] prefers items. What does not exist is an
 * Undefined that remembers why.
 */
#include "text/template_internal.h"

/* ---- attributes and items -------------------------------------------------------------------- */

/* What getattr(v, name) finds; UNSET if there is no such attribute. */
static tval own_attr(struct tpl *t, tval v, tval name) {
    bool unsafe;
    const struct tpl_builtin *b = tpl_method_find(v, name.s, &unsafe);
    if (unsafe)
        return tpl_undef(t, TPL_UNDEF_UNSAFE, tpl_type_name(v), name);
    if (b)
        return tpl_method_of(t, v, b);
    if (v.type == TPL_SPACE) {
        const tval *found = tpl_dict_get(t, v.dict, name);
        return found ? *found : tpl_unset();
    }
    if (v.type == TPL_LOOP)
        return tpl_loop_attr(t, v.loop, name.s);
    if (v.type == TPL_MACRO && tpl_str_is(name, "name"))
        return tpl_from_str(t->tmpl->names[v.macro->node->name]);
    if (v.type == TPL_TUPLE && v.list->group && tpl_str_is(name, "grouper"))
        return v.list->items[0];
    if (v.type == TPL_TUPLE && v.list->group && tpl_str_is(name, "list"))
        return v.list->items[1];
    return tpl_unset();
}

tval tpl_get_attr(struct tpl *t, tval v, tval name) {
    tpl_need_defined(t, v);
    tval found = own_attr(t, v, name);
    if (found.type == TPL_UNSET && v.type == TPL_DICT) {
        const tval *item = tpl_dict_get(t, v.dict, name);
        found = item ? *item : found;
    }
    return found.type == TPL_UNSET ? tpl_undef_attr(t, v, name) : found;
}

tval tpl_get_item(struct tpl *t, tval v, tval key) {
    int64_t i;
    bool sequence =
        v.type == TPL_STR || v.type == TPL_LIST || v.type == TPL_TUPLE || v.type == TPL_RANGE;
    tpl_need_defined(t, v);
    if (sequence && tpl_as_int(key, &i)) {
        int64_t n = (int64_t)tpl_length(t, v);
        i += i < 0 ? n : 0;
        return i >= 0 && i < n ? tpl_item(t, v, (size_t)i) : tpl_undef_attr(t, v, key);
    }
    if (v.type == TPL_DICT && tpl_is_hashable(t, key)) {
        const tval *found = tpl_dict_get(t, v.dict, key);
        if (found)
            return *found;
    }
    tval found = key.type == TPL_STR ? own_attr(t, v, key) : tpl_unset();
    return found.type == TPL_UNSET ? tpl_undef_attr(t, v, key) : found;
}

/* ---- slices ---------------------------------------------------------------------------------- */

struct slice_bounds {
    int64_t start, step;
    size_t n;
};

static bool slice_bound(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node,
                        int64_t *out) {
    tval v = node ? tpl_eval(t, scope, node) : tpl_none();
    if (v.type == TPL_NONE)
        return false;
    if (!tpl_as_int(v, out))
        tpl_fail(t, "slice indices must be integers or None");
    return true;
}

static int64_t clamp_bound(int64_t i, int64_t n, int64_t low, int64_t high) {
    if (i < 0)
        i = i < -n ? -1 - n : i; /* i + n must not overflow */
    i += i < 0 ? n : 0;
    return i < low ? low : i > high ? high : i;
}

static struct slice_bounds eval_bounds(struct tpl *t, struct tpl_scope *scope,
                                       const struct tpl_node *node, int64_t n) {
    int64_t start = 0, stop = 0, step = 1;
    bool has_start = slice_bound(t, scope, node->list[0], &start);
    bool has_stop = slice_bound(t, scope, node->list[1], &stop);
    if (!slice_bound(t, scope, node->list[2], &step))
        step = 1;
    t->at = node->at;
    if (step == 0)
        tpl_fail(t, "slice step cannot be zero");
    step = step < -INT64_MAX ? -INT64_MAX : step;
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    start = has_start ? clamp_bound(start, n, low, high) : step > 0 ? low : high;
    stop = has_stop ? clamp_bound(stop, n, low, high) : step > 0 ? high : low;
    int64_t count = step > 0 ? (stop > start ? (stop - start - 1) / step + 1 : 0)
                             : (stop < start ? (start - stop - 1) / -step + 1 : 0);
    ASSERT(count >= 0 && count <= n);
    return (struct slice_bounds){start, step, (size_t)count};
}

static tval slice_text(struct tpl *t, const struct tpl_str *s, struct slice_bounds c) {
    tpl_charge_bytes(t, s->len);
    if (c.n == 0)
        return tpl_substr(t, s, 0, 0);
    if (c.step == 1)
        return tpl_substr(t, s, tpl_str_offset(s, (size_t)c.start),
                          tpl_str_offset(s, (size_t)c.start + c.n));
    struct tpl_out out = {0};
    size_t *offsets = tpl_alloc(t, s->chars + 1, sizeof *offsets), k = 0;
    for (size_t i = 0; i < s->len; i++)
        if (!utf8_is_inside(s->data[i]))
            offsets[k++] = i;
    offsets[k] = s->len;
    for (size_t i = 0; i < c.n; i++) {
        size_t at = (size_t)(c.start + (int64_t)i * c.step);
        tpl_out_part(t, &out, s, offsets[at], offsets[at + 1]);
    }
    return tpl_str_like(t, tpl_str_from_out(t, &out), s);
}

static tval eval_slice(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node) {
    tval v = tpl_eval(t, scope, node->a);
    t->at = node->at;
    tpl_need_defined(t, v);
    if (v.type == TPL_DICT)
        tpl_fail(t, "unhashable type: 'slice'");
    if (v.type != TPL_STR && v.type != TPL_LIST && v.type != TPL_TUPLE && v.type != TPL_RANGE)
        tpl_fail(t, "'%s' object is not subscriptable", tpl_type_name(v));
    struct slice_bounds c = eval_bounds(t, scope, node, (int64_t)tpl_length(t, v));
    if (v.type == TPL_STR)
        return slice_text(t, v.s, c);
    if (v.type == TPL_RANGE) {
        struct tpl_range *r = tpl_alloc(t, 1, sizeof *r);
        *r = (struct tpl_range){v.range->start + c.start * v.range->step, 0, c.n};
        r->step = c.n > 1 ? v.range->step * c.step : 1; /* with one item any step is right */
        return (tval){.type = TPL_RANGE, .range = r};
    }
    if (c.step == 1)
        return tpl_list_of(t, v.type, c.n ? v.list->items + c.start : NULL, c.n);
    struct tpl_items items = {0};
    tpl_charge(t, c.n);
    for (size_t i = 0; i < c.n; i++)
        tpl_items_push(t, &items, v.list->items[c.start + (int64_t)i * c.step]);
    return tpl_items_finish(t, &items, v.type);
}

/* ---- calls, filters, tests ------------------------------------------------------------------- */

static void add_kw(struct tpl *t, struct tpl_call *call, size_t *cap, const struct tpl_str *name,
                   tval value) {
    for (size_t i = 0; i < call->n_kw; i++)
        if (tpl_str_equal(call->kw[i].name, name))
            tpl_fail(t, "two values for the keyword argument '%s'", tpl_excerpt(t, name));
    TPL_GROW(t, t->arena, call->kw, call->n_kw, *cap, 4);
    tpl_charge(t, call->n_kw);
    call->kw[call->n_kw++] = (struct tpl_named){name, value};
}

static void eval_star_star(struct tpl *t, struct tpl_call *call, size_t *cap, tval v) {
    if (v.type != TPL_DICT)
        tpl_fail(t, "argument after ** must be a mapping, not %s", tpl_type_name(v));
    for (size_t i = 0; i < v.dict->n; i++)
        add_kw(t, call, cap, tpl_need_str(t, v.dict->entries[i].key, "keywords"),
               v.dict->entries[i].value);
}

static struct tpl_call eval_args(struct tpl *t, struct tpl_scope *scope,
                                 const struct tpl_args *args) {
    struct tpl_call call = {0};
    struct tpl_items pos = {0};
    size_t cap = 0;
    for (size_t i = 0; i < args->n_pos; i++)
        tpl_items_push(t, &pos, tpl_eval(t, scope, args->pos[i]));
    if (args->star) {
        struct tpl_iter it = tpl_iter_begin(t, tpl_eval(t, scope, args->star));
        for (tval item; tpl_iter_next(t, &it, &item);)
            tpl_items_push(t, &pos, item);
    }
    for (size_t i = 0; i < args->n_kw; i++)
        add_kw(t, &call, &cap, args->kw[i].name, tpl_eval(t, scope, args->kw[i].value));
    if (args->star_star)
        eval_star_star(t, &call, &cap, tpl_eval(t, scope, args->star_star));
    call.pos = pos.items;
    call.n_pos = pos.n;
    return call;
}

static tval eval_call(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node) {
    tval callee = tpl_eval(t, scope, node->a);
    struct tpl_call call = eval_args(t, scope, node->args);
    t->at = node->at;
    tval v = tpl_call_value(t, callee, &call);
    t->at = node->at;
    return v;
}

/* Filters and tests. */
static tval eval_filter(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node) {
    tval input = node->a ? tpl_eval(t, scope, node->a) : t->captured;
    struct tpl_call call = eval_args(t, scope, node->args);
    t->at = node->at;
    if (!node->builtin)
        tpl_fail(t, "No %s named '%s'", node->kind == NODE_TEST ? "test" : "filter",
                 tpl_excerpt(t, node->value.s));
    return tpl_invoke(t, node->builtin, input, &call);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static tval eval_name(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node) {
    const tval *found = tpl_scope_find(t, scope, node->name);
    const struct tpl_str *name = t->tmpl->names[node->name];
    if (found)
        return *found;
    const tval *arg = tpl_dict_get(t, t->args, tpl_from_str(name));
    if (arg)
        return *arg;
    const struct tpl_builtin *b = tpl_global_find(name->data, name->len);
    return b ? (tval){.type = TPL_FUNCTION, .function = b} : tpl_undef_name(t, name);
}

static tval eval_items(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node) {
    struct tpl_items items = {0};
    for (uint32_t i = 0; i < node->n; i++)
        tpl_items_push(t, &items, tpl_eval(t, scope, node->list[i]));
    return tpl_items_finish(t, &items, node->kind == NODE_TUPLE ? TPL_TUPLE : TPL_LIST);
}

static tval eval_dict(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node) {
    struct tpl_dict *d = tpl_dict_new(t);
    for (uint32_t i = 0; i < node->n; i += 2) {
        tval key = tpl_eval(t, scope, node->list[i]);
        tval value = tpl_eval(t, scope, node->list[i + 1]);
        t->at = node->at;
        tpl_dict_set(t, d, key, value);
    }
    return (tval){.type = TPL_DICT, .dict = d};
}

static tval eval_compare(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node) {
    tval left = tpl_eval(t, scope, node->list[0]);
    for (uint32_t i = 1; i < node->n; i++) {
        tval right = tpl_eval(t, scope, node->list[i]);
        t->at = node->at;
        if (!tpl_compare(t, node->ops[i - 1], left, right))
            return tpl_bool(false);
        left = right;
    }
    return tpl_bool(true);
}

static tval eval_concat(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node) {
    const struct tpl_str *text = tpl_to_str(t, tpl_eval(t, scope, node->list[0]));
    for (uint32_t i = 1; i < node->n; i++)
        text = tpl_str_join2(t, text, tpl_to_str(t, tpl_eval(t, scope, node->list[i]))).s;
    return tpl_str_marked(t, text, false);
}

static tval eval_sign(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node) {
    tval v = tpl_eval(t, scope, node->a);
    int64_t i;
    t->at = node->at;
    tpl_need_defined(t, v);
    if (!tpl_is_number(v))
        tpl_fail(t, "bad operand type for unary %s: '%s'", node->kind == NODE_NEG ? "-" : "+",
                 tpl_type_name(v));
    if (!tpl_as_int(v, &i))
        return tpl_float(node->kind == NODE_NEG ? -v.f : v.f);
    return node->kind == NODE_NEG ? tpl_arith(t, OP_SUB, tpl_int(0), v) : tpl_int(i);
}

static tval eval_binary(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node) {
    tval left = tpl_eval(t, scope, node->a), right = tpl_eval(t, scope, node->b);
    t->at = node->at;
    return tpl_arith(t, node->op, left, right);
}

static tval eval_access(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node) {
    tval of = tpl_eval(t, scope, node->a);
    tval key = node->kind == NODE_ATTR ? node->value : tpl_eval(t, scope, node->b);
    t->at = node->at;
    return node->kind == NODE_ATTR ? tpl_get_attr(t, of, key) : tpl_get_item(t, of, key);
}

static tval eval_logic(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node) {
    tval v = tpl_eval(t, scope, node->a);
    if (node->kind == NODE_NOT)
        return tpl_bool(!tpl_truth(v));
    if (node->kind == NODE_COND) {
        const struct tpl_node *then = tpl_truth(v) ? node->b : node->c;
        return then ? tpl_eval(t, scope, then)
                    : tpl_undef_hint(t, "the inline if-expression evaluated to false and no else "
                                        "section was defined.");
    }
    return tpl_truth(v) == (node->kind == NODE_AND) ? tpl_eval(t, scope, node->b) : v;
}

tval tpl_eval(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node) {
    static tval (*const table[])(struct tpl *, struct tpl_scope *, const struct tpl_node *) = {
        [NODE_NAME] = eval_name,     [NODE_TUPLE] = eval_items,     [NODE_LIST] = eval_items,
        [NODE_DICT] = eval_dict,     [NODE_ATTR] = eval_access,     [NODE_ITEM] = eval_access,
        [NODE_SLICE] = eval_slice,   [NODE_CALL] = eval_call,       [NODE_FILTER] = eval_filter,
        [NODE_TEST] = eval_filter,   [NODE_NOT] = eval_logic,       [NODE_NEG] = eval_sign,
        [NODE_POS] = eval_sign,      [NODE_AND] = eval_logic,       [NODE_OR] = eval_logic,
        [NODE_COND] = eval_logic,    [NODE_COMPARE] = eval_compare, [NODE_BINARY] = eval_binary,
        [NODE_CONCAT] = eval_concat,
    };
    tpl_charge(t, 1);
    t->at = node->at;
    if (node->kind == NODE_CONST)
        return node->value;
    DEBUG_ASSERT(node->kind < COUNT(table) && table[node->kind]);
    tpl_enter(t);
    tval v = table[node->kind](t, scope, node);
    tpl_leave(t);
    return v;
}
