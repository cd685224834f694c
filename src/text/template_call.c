/* SPDX-License-Identifier: Apache-2.0 */
/* template_call.c: calling things: evaluating arguments is in template_eval.c, binding them to
 * parameters is here, for built-in functions, filters, tests and methods (struct tpl_builtin) and
 * for macros. Also the global functions.
 *
 * A builtin's parameters are a string, "old new count?": positional arguments fill it from the
 * left, keywords by name, a ? marks what may be missing. Macros have Jinja2's rules: missing
 * arguments are undefined or take their default (evaluated in the macro's scope, so it may name
 * earlier parameters), surplus ones go to varargs and kwargs if the body names those and are an
 * error if not, and the block of {% call %} arrives as `caller`.
 */
#include "text/template_internal.h"

/* ---- builtins -------------------------------------------------------------------------------- */

/* The number of the parameter that `name` is, or TPL_MAX_PARAMS. */
static size_t param_number(const char *params, const struct tpl_str *name) {
    for (size_t i = 0; *params; i++) {
        size_t len = strcspn(params, "? ");
        if (len == name->len && memcmp(params, name->data, len) == 0)
            return i;
        params += len;
        params += strspn(params, "? ");
    }
    return TPL_MAX_PARAMS;
}

static void bind(struct tpl *t, const struct tpl_builtin *b, const struct tpl_call *call, tval *p) {
    bool optional[TPL_MAX_PARAMS];
    size_t n = 0;
    for (const char *s = b->params; *s; n++) {
        s += strcspn(s, "? ");
        optional[n] = *s == '?';
        s += strspn(s, "? ");
        p[n] = tpl_unset();
    }
    if (call->n_pos > n)
        tpl_fail(t, "%s() takes at most %zu argument(s), %zu given", b->name, n, call->n_pos);
    for (size_t i = 0; i < call->n_pos; i++)
        p[i] = call->pos[i];
    for (size_t i = 0; i < call->n_kw; i++) {
        size_t k = param_number(b->params, call->kw[i].name);
        if (k == TPL_MAX_PARAMS)
            tpl_fail(t, "%s() got an unexpected keyword argument '%s'", b->name,
                     tpl_excerpt(t, call->kw[i].name));
        if (p[k].type != TPL_UNSET)
            tpl_fail(t, "%s() got two values for '%s'", b->name, tpl_excerpt(t, call->kw[i].name));
        p[k] = call->kw[i].value;
    }
    for (size_t i = 0; i < n; i++)
        if (p[i].type == TPL_UNSET && !optional[i])
            tpl_fail(t, "%s() misses its argument number %zu (of %s)", b->name, i + 1, b->params);
}

tval tpl_invoke(struct tpl *t, const struct tpl_builtin *b, tval self,
                const struct tpl_call *call) {
    tval p[TPL_MAX_PARAMS];
    tpl_charge(t, 1);
    if (!b->params)
        return b->fn(t, self, NULL, call);
    bind(t, b, call, p);
    return b->fn(t, self, p, call);
}

/* ---- macros ---------------------------------------------------------------------------------- */

static const struct tpl_named *find_kw(const struct tpl_call *call, const struct tpl_str *name) {
    for (size_t i = 0; i < call->n_kw; i++)
        if (tpl_str_equal(call->kw[i].name, name))
            return &call->kw[i];
    return NULL;
}

/* Whether a parameter of that name is still free behind the positional arguments. */
static bool is_free_param(const struct tpl *t, const struct tpl_params *params, size_t n_pos,
                          const struct tpl_str *name) {
    for (size_t i = n_pos; i < params->n; i++)
        if (tpl_str_equal(t->tmpl->names[params->names[i]], name))
            return true;
    return false;
}

/* Keywords that are no parameter, and positions behind the last one. */
static void bind_rest(struct tpl *t, struct tpl_scope *scope, const struct tpl_macro *macro,
                      const struct tpl_call *call) {
    const struct tpl_params *params = macro->node->params;
    const struct tpl_str *name = t->tmpl->names[macro->node->name];
    struct tpl_dict *kwargs = tpl_dict_new(t);
    tval caller = tpl_unset();
    for (size_t i = 0; i < call->n_kw; i++) {
        const struct tpl_named *kw = &call->kw[i];
        if (is_free_param(t, params, call->n_pos, kw->name))
            continue;
        if (params->uses_caller && tpl_str_equal(kw->name, t->tmpl->names[TPL_NAME_CALLER]))
            caller = kw->value;
        else if (params->uses_kwargs)
            tpl_dict_set(t, kwargs, tpl_from_str(kw->name), kw->value);
        else
            tpl_fail(t, "macro '%s' takes no keyword argument '%s'", tpl_excerpt(t, name),
                     tpl_excerpt(t, kw->name));
    }
    const struct tpl_str *caller_name = t->tmpl->names[TPL_NAME_CALLER];
    bool explicit_caller = is_free_param(t, params, 0, caller_name);
    if (params->uses_caller && !explicit_caller)
        tpl_scope_set(t, scope, TPL_NAME_CALLER,
                      caller.type == TPL_UNSET ? tpl_undef_hint(t, "No caller defined") : caller);
    if (params->uses_kwargs)
        tpl_scope_set(t, scope, TPL_NAME_KWARGS, (tval){.type = TPL_DICT, .dict = kwargs});
    size_t taken = call->n_pos < params->n ? call->n_pos : params->n;
    if (params->uses_varargs)
        tpl_scope_set(t, scope, TPL_NAME_VARARGS,
                      tpl_list_of(t, TPL_TUPLE, call->pos + taken, call->n_pos - taken));
    else if (call->n_pos > params->n)
        tpl_fail(t, "macro '%s' takes not more than %zu argument(s)", tpl_excerpt(t, name),
                 params->n);
}

tval tpl_call_macro(struct tpl *t, const struct tpl_macro *macro, const struct tpl_call *call) {
    const struct tpl_params *params = macro->node->params;
    struct tpl_scope *scope = tpl_scope_new(t, macro->scope);
    tpl_enter(t);
    bind_rest(t, scope, macro, call);
    for (size_t i = 0; i < params->n; i++) {
        const struct tpl_str *name = t->tmpl->names[params->names[i]];
        const struct tpl_named *kw = i < call->n_pos ? NULL : find_kw(call, name);
        tval v;
        if (i < call->n_pos)
            v = call->pos[i];
        else if (kw)
            v = kw->value;
        else if (params->defaults[i])
            v = tpl_eval(t, scope, params->defaults[i]);
        else
            v = tpl_undef_name(t, name);
        tpl_scope_set(t, scope, params->names[i], v);
    }
    struct tpl_out out = {0}, *outer = t->out;
    t->out = &out;
    (void)tpl_exec(t, scope, macro->node->body);
    t->out = outer;
    tpl_leave(t);
    return tpl_str_from_out(t, &out);
}

/* ---- everything that can be called ----------------------------------------------------------- */

tval tpl_call_value(struct tpl *t, tval callee, const struct tpl_call *call) {
    switch (callee.type) {
    case TPL_UNDEFINED:
        tpl_fail_undefined(t, callee);
    case TPL_MACRO:
        return tpl_call_macro(t, callee.macro, call);
    case TPL_FUNCTION:
        return tpl_invoke(t, callee.function, tpl_none(), call);
    case TPL_METHOD:
        return tpl_invoke(t, callee.method->builtin, callee.method->self, call);
    case TPL_LOOP:
        return tpl_loop_recurse(t, callee.loop, call);
    default:
        tpl_fail(t, "'%s' object is not callable", tpl_type_name(callee));
    }
}

/* ---- global functions ------------------------------------------------------------------------ */

#define RANGE_LIMIT 100000 /* Jinja2's sandbox has the same */

static tval global_range(struct tpl *t, tval self, const tval *p, const struct tpl_call *call) {
    (void)self, (void)call;
    int64_t start = 0, stop = tpl_need_int(t, p[0], "range() argument"), step = 1;
    if (p[1].type != TPL_UNSET) {
        start = stop;
        stop = tpl_need_int(t, p[1], "range() argument");
    }
    if (p[2].type != TPL_UNSET)
        step = tpl_need_int(t, p[2], "range() argument");
    if (step == 0)
        tpl_fail(t, "range() arg 3 must not be zero");
    struct tpl_range *r = tpl_alloc(t, 1, sizeof *r);
    *r = (struct tpl_range){start, step, 0};
    if (step > 0 ? start < stop : start > stop) {
        uint64_t span =
            step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
        uint64_t by = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
        uint64_t n = (span - 1) / by + 1;
        if (n > RANGE_LIMIT)
            tpl_fail(t, "Range too big. The sandbox blocks ranges larger than %d", RANGE_LIMIT);
        r->n = (size_t)n;
    }
    return (tval){.type = TPL_RANGE, .range = r};
}

static void dict_fill(struct tpl *t, struct tpl_dict *d, tval from) {
    if (from.type == TPL_DICT || from.type == TPL_SPACE) {
        for (size_t i = 0; i < from.dict->n; i++) {
            tpl_charge(t, 1);
            tpl_dict_set(t, d, from.dict->entries[i].key, from.dict->entries[i].value);
        }
        return;
    }
    struct tpl_iter it = tpl_iter_begin(t, from);
    for (tval item; tpl_iter_next(t, &it, &item);) {
        const struct tpl_list *pair = tpl_to_list(t, item);
        if (pair->n != 2)
            tpl_fail(t, "a dictionary needs pairs, not %zu items", pair->n);
        tpl_dict_set(t, d, pair->items[0], pair->items[1]);
    }
}

static struct tpl_dict *dict_from_call(struct tpl *t, const struct tpl_call *call) {
    struct tpl_dict *d = tpl_dict_new(t);
    if (call->n_pos > 1)
        tpl_fail(t, "dict expected at most 1 argument, got %zu", call->n_pos);
    if (call->n_pos)
        dict_fill(t, d, call->pos[0]);
    for (size_t i = 0; i < call->n_kw; i++)
        tpl_dict_set(t, d, tpl_from_str(call->kw[i].name), call->kw[i].value);
    return d;
}

static tval global_dict(struct tpl *t, tval self, const tval *p, const struct tpl_call *call) {
    (void)self, (void)p;
    return (tval){.type = TPL_DICT, .dict = dict_from_call(t, call)};
}

static tval global_namespace(struct tpl *t, tval self, const tval *p, const struct tpl_call *call) {
    (void)self, (void)p;
    return (tval){.type = TPL_SPACE, .dict = dict_from_call(t, call)};
}

static tval global_raise(struct tpl *t, tval self, const tval *p, const struct tpl_call *call) {
    (void)self, (void)call;
    struct tpl_out out = {0};
    tpl_put_str(t, &out, p[0]);
    tpl_out_put(t, &out, "", 1);
    tpl_fail(t, "%s", out.data);
}

static tval global_strftime(struct tpl *t, tval self, const tval *p, const struct tpl_call *call) {
    (void)self, (void)call;
    return tpl_strftime(t, tpl_need_str(t, p[0], "strftime() argument 1"));
}

static const struct tpl_builtin globals[] = {
    {"range", "start stop? step?", global_range}, {"dict", NULL, global_dict},
    {"namespace", NULL, global_namespace},        {"raise_exception", "message", global_raise},
    {"strftime_now", "format", global_strftime},
};

const struct tpl_builtin *tpl_global_find(const char *name, size_t len) {
    return tpl_search(globals, sizeof globals / sizeof *globals, name, len);
}
