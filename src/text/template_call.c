/* SPDX-License-Identifier: Apache-2.0 */
/* template_call.c: calls, and the arguments of macros.
 *
 * Macros follow Jinja2's rules. A missing argument takes its default, which is evaluated in the
 * macro's scope and so may use earlier parameters; without a default it is undefined. Surplus
 * arguments go to varargs and kwargs if the body uses these names; otherwise they are an error. The
 * block of {% call %} arrives as `caller`.
 */
#include "text/template_internal.h"

/* ---- macros ---------------------------------------------------------------------------------- */

static const struct tpl_named *find_kw(const struct tpl_call *call, const struct tpl_str *name) {
    for (size_t i = 0; i < call->n_kw; i++)
        if (tpl_str_equal(call->kw[i].name, name))
            return &call->kw[i];
    return NULL;
}

/* Whether the parameter `name` is not filled by a positional argument. */
static bool is_free_param(const struct tpl *t, const struct tpl_params *params, size_t n_pos,
                          const struct tpl_str *name) {
    for (size_t i = n_pos; i < params->n; i++)
        if (tpl_str_equal(t->tmpl->names[params->names[i]], name))
            return true;
    return false;
}

/* Keyword arguments without a parameter, and surplus positional arguments. */
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
    const size_t taken = min_size(call->n_pos, params->n);
    const tval *rest = call->n_pos ? call->pos + taken : NULL;
    if (params->uses_varargs)
        tpl_scope_set(t, scope, TPL_NAME_VARARGS,
                      tpl_list_of(t, TPL_TUPLE, rest, call->n_pos - taken));
    else if (call->n_pos > params->n)
        tpl_fail(t, "macro '%s' takes at most %zu argument(s)", tpl_excerpt(t, name), params->n);
}

static tval call_macro(struct tpl *t, const struct tpl_macro *macro, const struct tpl_call *call) {
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

/* ---- callable values ------------------------------------------------------------------------- */

tval tpl_call_value(struct tpl *t, tval callee, const struct tpl_call *call) {
    switch (callee.type) {
    case TPL_UNDEFINED:
        tpl_fail_undefined(t, callee);
    case TPL_MACRO:
        return call_macro(t, callee.macro, call);
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
