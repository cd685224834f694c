/* SPDX-License-Identifier: Apache-2.0 */
/* template_globals.c: the global functions: range, dict, namespace and the two of transformers. */
#include "text/template_internal.h"

#define RANGE_LIMIT 100000 /* as in Jinja2's sandbox */

TPL_FN(global_range) {
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

TPL_FN(global_dict) {
    return (tval){.type = TPL_DICT, .dict = dict_from_call(t, call)};
}

TPL_FN(global_namespace) {
    return (tval){.type = TPL_SPACE, .dict = dict_from_call(t, call)};
}

TPL_FN(global_raise) {
    struct tpl_out out = {0};
    tpl_put_str(t, &out, p[0]);
    tpl_out_put(t, &out, "", 1);
    tpl_fail(t, "%s", out.data);
}

TPL_EXPR(global_strftime, tpl_strftime(t, tpl_need_str(t, p[0], "strftime() argument 1")))

static const struct tpl_builtin globals[] = {
    {"range", "start stop? step?", global_range}, {"dict", NULL, global_dict},
    {"namespace", NULL, global_namespace},        {"raise_exception", "message", global_raise},
    {"strftime_now", "format", global_strftime},
};

const struct tpl_builtin *tpl_global_find(const char *name, size_t len) {
    static const struct tpl_table table = TPL_TABLE(globals);
    return tpl_search(&table, name, len);
}
