/* SPDX-License-Identifier: Apache-2.0 */
/* template_builtin.c: what filters, tests, methods and global functions share (struct tpl_builtin):
 * finding one by name, binding arguments to parameters, and checking arguments.
 *
 * Parameters are a string such as "old new count?". Positional arguments fill it from the left,
 * keyword arguments by name. A ? marks an optional parameter.
 */
#include "text/template_internal.h"

const struct tpl_builtin *tpl_search(const struct tpl_table *table, const char *name, size_t len) {
    for (size_t i = 0; i < table->n; i++)
        if (strlen(table->builtins[i].name) == len &&
            memcmp(table->builtins[i].name, name, len) == 0)
            return &table->builtins[i];
    return NULL;
}

/* ---- binding --------------------------------------------------------------------------------- */

/* The index of the parameter `name`; TPL_MAX_PARAMS if there is none. */
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

static void bind_arguments(struct tpl *t, const struct tpl_builtin *b, const struct tpl_call *call,
                           tval *p) {
    bool optional[TPL_MAX_PARAMS];
    size_t n = 0;
    for (const char *s = b->params; *s; n++) {
        ASSERT(n < TPL_MAX_PARAMS);
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
            tpl_fail(t, "%s() lacks argument %zu (parameters: %s)", b->name, i + 1, b->params);
}

tval tpl_invoke(struct tpl *t, const struct tpl_builtin *b, tval self,
                const struct tpl_call *call) {
    tval p[TPL_MAX_PARAMS];
    tpl_charge(t, 1);
    if (!b->params)
        return b->fn(t, self, NULL, call);
    bind_arguments(t, b, call, p);
    return b->fn(t, self, p, call);
}

/* ---- arguments ------------------------------------------------------------------------------- */

int64_t tpl_need_int(struct tpl *t, tval v, const char *what) {
    int64_t i;
    tpl_need_defined(t, v);
    if (!tpl_as_int(v, &i))
        tpl_fail(t, "%s must be an integer, not '%s'", what, tpl_type_name(v));
    return i;
}

const struct tpl_str *tpl_need_str(struct tpl *t, tval v, const char *what) {
    tpl_need_defined(t, v);
    if (v.type != TPL_STR)
        tpl_fail(t, "%s must be str, not %s", what, tpl_type_name(v));
    return v.s;
}

int64_t tpl_int_or(struct tpl *t, tval v, int64_t otherwise, const char *what) {
    return v.type == TPL_UNSET ? otherwise : tpl_need_int(t, v, what);
}

tval tpl_method_of(struct tpl *t, tval self, const struct tpl_builtin *b) {
    struct tpl_method *m = tpl_alloc(t, 1, sizeof *m);
    *m = (struct tpl_method){self, b};
    return (tval){.type = TPL_METHOD, .method = m};
}
