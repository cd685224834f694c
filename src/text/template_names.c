/* SPDX-License-Identifier: Apache-2.0 */
/* template_names.c: all filters and tests by name, and those that take such a name: map("upper"),
 * select("eq", 1), "upper" is filter. */
#include "text/template_internal.h"

static tval named_value(const struct tpl_call *call, const char *name) {
    for (size_t i = 0; i < call->n_kw; i++)
        if (tpl_str_is(tpl_from_str(call->kw[i].name), name))
            return call->kw[i].value;
    return tpl_unset();
}

TPL_FN(filter_map) {
    struct tpl_items items = {0};
    if (self.type != TPL_CURSOR && !tpl_truth(self))
        return tpl_items_finish(t, &items, TPL_CURSOR);
    tval attribute = named_value(call, "attribute"), otherwise = named_value(call, "default");
    bool by_attribute = !call->n_pos && attribute.type != TPL_UNSET;
    const struct tpl_builtin *filter = NULL;
    struct tpl_call rest = *call;
    if (by_attribute) {
        if (call->n_kw > (otherwise.type == TPL_UNSET ? 1u : 2u))
            tpl_fail(t, "Unexpected keyword argument of map");
    } else {
        if (!call->n_pos)
            tpl_fail(t, "map requires a filter argument");
        const struct tpl_str *name = tpl_need_str(t, call->pos[0], "the filter's name");
        filter = tpl_filter_find(name->data, name->len);
        if (!filter)
            tpl_fail(t, "No filter named '%s'", tpl_excerpt(t, name));
        rest.pos++;
        rest.n_pos--;
    }
    struct tpl_iter it = tpl_iter_begin(t, self);
    tpl_enter(t);
    for (tval item; tpl_iter_next(t, &it, &item);)
        tpl_items_push(t, &items,
                       filter ? tpl_invoke(t, filter, item, &rest)
                              : tpl_follow(t, item, attribute, otherwise));
    tpl_leave(t);
    return tpl_items_finish(t, &items, TPL_CURSOR);
}

/* The items that pass a test (or are true), by themselves or by one of their attributes. */
static tval select_items(struct tpl *t, tval self, const struct tpl_call *call, bool by_attribute,
                         bool wanted) {
    struct tpl_items items = {0};
    struct tpl_call rest = *call;
    tval attribute = tpl_unset();
    const struct tpl_builtin *test = NULL;
    if (self.type != TPL_CURSOR && !tpl_truth(self))
        return tpl_items_finish(t, &items, TPL_CURSOR);
    if (by_attribute) {
        if (!call->n_pos)
            tpl_fail(t, "Missing parameter for attribute name");
        attribute = *rest.pos++;
        rest.n_pos--;
    }
    if (rest.n_pos) {
        const struct tpl_str *name = tpl_need_str(t, *rest.pos++, "the test's name");
        rest.n_pos--;
        test = tpl_test_find(name->data, name->len);
        if (!test)
            tpl_fail(t, "No test named '%s'", tpl_excerpt(t, name));
    }
    struct tpl_iter it = tpl_iter_begin(t, self);
    for (tval item; tpl_iter_next(t, &it, &item);) {
        tval v = tpl_follow(t, item, attribute, tpl_unset());
        if (tpl_truth(test ? tpl_invoke(t, test, v, &rest) : v) == wanted)
            tpl_items_push(t, &items, item);
    }
    return tpl_items_finish(t, &items, TPL_CURSOR);
}

TPL_EXPR(filter_select, select_items(t, self, call, false, true))

TPL_EXPR(filter_reject, select_items(t, self, call, false, false))

TPL_EXPR(filter_selectattr, select_items(t, self, call, true, true))

TPL_EXPR(filter_rejectattr, select_items(t, self, call, true, false))

TPL_FN(test_filter) {
    const struct tpl_str *name = tpl_need_str(t, self, "the filter's name");
    return tpl_bool(tpl_filter_find(name->data, name->len) != NULL);
}

TPL_FN(test_test) {
    const struct tpl_str *name = tpl_need_str(t, self, "the test's name");
    return tpl_bool(tpl_test_find(name->data, name->len) != NULL);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static const struct tpl_builtin naming_filters[] = {
    {"map", NULL, filter_map},
    {"reject", NULL, filter_reject},
    {"rejectattr", NULL, filter_rejectattr},
    {"select", NULL, filter_select},
    {"selectattr", NULL, filter_selectattr},
};
static const struct tpl_builtin naming_tests[] = {
    {"filter", "", test_filter},
    {"test", "", test_test},
};
static const struct tpl_table naming_filter_table = TPL_TABLE(naming_filters);
static const struct tpl_table naming_test_table = TPL_TABLE(naming_tests);

const struct tpl_builtin *tpl_filter_find(const char *name, size_t len) {
    const struct tpl_builtin *b = tpl_search(&tpl_value_filters, name, len);
    b = b ? b : tpl_search(&tpl_sequence_filters, name, len);
    return b ? b : tpl_search(&naming_filter_table, name, len);
}

const struct tpl_builtin *tpl_test_find(const char *name, size_t len) {
    const struct tpl_builtin *b = tpl_search(&tpl_value_tests, name, len);
    return b ? b : tpl_search(&naming_test_table, name, len);
}
