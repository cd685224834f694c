/* SPDX-License-Identifier: Apache-2.0 */
/* template_sequences.c: filters on sequences: join, sort, groupby and others.
 *
 * Generators of Jinja2 (items, batch, unique ...) are computed at once here, but behave like
 * generators: they can be walked once and have no length and no index (TPL_CURSOR). An `attribute`
 * is a path: "a.b.0" is item "a", then "b", then 0. sort takes several paths, separated by commas.
 */
#include "text/template_internal.h"

/* ---- attribute paths ------------------------------------------------------------------------- */

static tval path_part(struct tpl *t, const struct tpl_str *path, size_t from, size_t to) {
    int64_t number = 0;
    bool digits = to > from && to - from < 10;
    for (size_t i = from; i < to && digits; i++) {
        digits = path->data[i] >= '0' && path->data[i] <= '9';
        number = number * 10 + (path->data[i] - '0');
    }
    return digits ? tpl_int(number) : tpl_substr(t, path, from, to);
}

/* `path` NONE or UNSET: the value itself. */
tval tpl_follow(struct tpl *t, tval v, tval path, tval otherwise) {
    bool replaces = otherwise.type != TPL_UNSET && otherwise.type != TPL_NONE;
    if (path.type == TPL_UNSET || path.type == TPL_NONE)
        return v;
    if (path.type != TPL_STR) {
        v = tpl_get_item(t, v, path);
        return v.type == TPL_UNDEFINED && replaces ? otherwise : v;
    }
    for (size_t from = 0; from <= path.s->len;) {
        size_t to = tpl_find(path.s->data, from, path.s->len, ".", 1);
        to = to == SIZE_MAX ? path.s->len : to;
        tpl_charge(t, 1);
        v = tpl_get_item(t, v, path_part(t, path.s, from, to));
        if (v.type == TPL_UNDEFINED && replaces)
            v = otherwise;
        from = to + 1;
    }
    return v;
}

static tval fold_case(struct tpl *t, tval v, bool case_sensitive) {
    return v.type == TPL_STR && !case_sensitive ? tpl_change_case(t, v.s, CASE_LOWER) : v;
}

/* A sort key: for one path a value, for "a,b" a list of values. */
static tval sort_key(struct tpl *t, tval item, tval attribute, bool case_sensitive) {
    struct tpl_items key = {0};
    if (attribute.type != TPL_STR)
        return fold_case(t, tpl_follow(t, item, attribute, tpl_unset()), case_sensitive);
    for (size_t from = 0; from <= attribute.s->len;) {
        size_t to = tpl_find(attribute.s->data, from, attribute.s->len, ",", 1);
        to = to == SIZE_MAX ? attribute.s->len : to;
        tval v = tpl_follow(t, item, tpl_substr(t, attribute.s, from, to), tpl_unset());
        tpl_items_push(t, &key, fold_case(t, v, case_sensitive));
        from = to + 1;
    }
    return tpl_items_finish(t, &key, TPL_LIST);
}

/* ---- order ----------------------------------------------------------------------------------- */

static tval sort_sequence(struct tpl *t, tval self, tval attribute, bool case_sensitive,
                          bool reverse) {
    const struct tpl_list *list = tpl_to_list(t, self);
    tval *keys = tpl_alloc(t, list->n, sizeof *keys), *items = tpl_alloc(t, list->n, sizeof *items);
    for (size_t i = 0; i < list->n; i++) {
        tpl_charge(t, 1);
        items[i] = list->items[i];
        keys[i] = sort_key(t, items[i], attribute, case_sensitive);
    }
    tpl_sort(t, keys, items, list->n, reverse);
    return tpl_items_finish(t, &(struct tpl_items){items, list->n, list->n}, TPL_LIST);
}

TPL_EXPR(filter_sort, sort_sequence(t, self, p[2], tpl_truth(p[1]), tpl_truth(p[0])))

TPL_FN(filter_dictsort) {
    bool by_value = tpl_str_is(p[1], "value");
    if (p[1].type != TPL_UNSET && !by_value && !tpl_str_is(p[1], "key"))
        tpl_fail(t, "You can only sort by either \"key\" or \"value\"");
    tpl_need_defined(t, self);
    if (self.type != TPL_DICT)
        tpl_fail(t, "'%s' object has no attribute 'items'", tpl_type_name(self));
    struct tpl_items pairs = {0};
    for (size_t i = 0; i < self.dict->n; i++) {
        const struct tpl_entry *e = &self.dict->entries[i];
        tpl_items_push(t, &pairs, tpl_pair(t, e->key, e->value));
    }
    return sort_sequence(t, tpl_items_finish(t, &pairs, TPL_LIST), tpl_int(by_value),
                         tpl_truth(p[0]), tpl_truth(p[2]));
}

static tval find_extreme(struct tpl *t, tval self, const tval *p, bool greatest) {
    struct tpl_iter it = tpl_iter_begin(t, self);
    tval best = tpl_unset(), best_key = tpl_unset();
    for (tval item; tpl_iter_next(t, &it, &item);) {
        tval key = fold_case(t, tpl_follow(t, item, p[1], tpl_unset()), tpl_truth(p[0]));
        bool better = best.type == TPL_UNSET || (greatest ? tpl_less(t, best_key, key, ">")
                                                          : tpl_less(t, key, best_key, "<"));
        best = better ? item : best;
        best_key = better ? key : best_key;
    }
    return best.type == TPL_UNSET ? tpl_undef_hint(t, "No aggregated item, sequence was empty.")
                                  : best;
}
TPL_EXPR(filter_min, find_extreme(t, self, p, false))
TPL_EXPR(filter_max, find_extreme(t, self, p, true))

TPL_FN(filter_reverse) {
    struct tpl_items items = {0};
    struct tpl_out out = {0};
    const struct tpl_list *list = tpl_to_list(t, self);
    for (size_t i = list->n; i-- > 0;) {
        tpl_charge(t, 1);
        if (self.type == TPL_STR)
            tpl_put_str(t, &out, list->items[i]);
        else
            tpl_items_push(t, &items, list->items[i]);
    }
    if (self.type == TPL_STR)
        return tpl_str_from_out(t, &out);
    return tpl_items_finish(t, &items, self.type == TPL_CURSOR ? TPL_LIST : TPL_CURSOR);
}

TPL_FN(filter_unique) {
    struct tpl_items items = {0};
    struct tpl_dict *seen = tpl_dict_new(t);
    struct tpl_iter it = tpl_iter_begin(t, self);
    for (tval item; tpl_iter_next(t, &it, &item);) {
        tval key = fold_case(t, tpl_follow(t, item, p[1], tpl_unset()), tpl_truth(p[0]));
        if (tpl_dict_get(t, seen, key))
            continue;
        tpl_dict_set(t, seen, key, tpl_none());
        tpl_items_push(t, &items, item);
    }
    return tpl_items_finish(t, &items, TPL_CURSOR);
}

/* ---- parts ----------------------------------------------------------------------------------- */

TPL_FN(filter_first) {
    struct tpl_iter it = tpl_iter_begin(t, self);
    tval item;
    if (!tpl_iter_next(t, &it, &item))
        return tpl_undef_hint(t, "No first item, sequence was empty.");
    return item;
}

TPL_FN(filter_last) {
    if (self.type == TPL_CURSOR || !tpl_is_iterable(self))
        tpl_fail(t, "'%s' object is not reversible", tpl_type_name(self));
    size_t n = tpl_length(t, self);
    if (n == 0)
        return tpl_undef_hint(t, "No last item, sequence was empty.");
    if (self.type == TPL_DICT || self.type == TPL_VIEW)
        return tpl_to_list(t, self)->items[n - 1];
    return tpl_item(t, self, n - 1);
}

TPL_EXPR(filter_length, tpl_int((int64_t)tpl_length(t, self)))

TPL_FN(filter_list) {
    const struct tpl_list *list = tpl_to_list(t, self);
    return tpl_list_of(t, TPL_LIST, list->items, list->n);
}

TPL_FN(filter_items) {
    struct tpl_items items = {0};
    if (self.type != TPL_UNDEFINED && self.type != TPL_DICT)
        tpl_fail(t, "Can only get item pairs from a mapping.");
    for (size_t i = 0; self.type == TPL_DICT && i < self.dict->n; i++) {
        tpl_charge(t, 1);
        tpl_items_push(t, &items,
                       tpl_pair(t, self.dict->entries[i].key, self.dict->entries[i].value));
    }
    return tpl_items_finish(t, &items, TPL_CURSOR);
}

TPL_FN(filter_batch) {
    int64_t size = tpl_need_int(t, p[0], "linecount");
    bool fills = tpl_is_given(p[1]);
    const struct tpl_list *list = tpl_to_list(t, self);
    struct tpl_items rows = {0}, row = {0};
    for (size_t i = 0; i < list->n; i++) {
        tpl_charge(t, 1);
        if (i && (int64_t)row.n == size) {
            tpl_items_push(t, &rows, tpl_items_finish(t, &row, TPL_LIST));
            row = (struct tpl_items){0};
        }
        tpl_items_push(t, &row, list->items[i]);
    }
    while (row.n && fills && (int64_t)row.n < size) {
        tpl_charge(t, 1);
        tpl_items_push(t, &row, p[1]);
    }
    if (row.n)
        tpl_items_push(t, &rows, tpl_items_finish(t, &row, TPL_LIST));
    return tpl_items_finish(t, &rows, TPL_CURSOR);
}

TPL_FN(filter_slice) {
    int64_t slices = tpl_need_int(t, p[0], "slices");
    bool fills = tpl_is_given(p[1]);
    const struct tpl_list *list = tpl_to_list(t, self);
    struct tpl_items rows = {0};
    size_t at = 0;
    if (slices == 0)
        tpl_fail(t, "integer division or modulo by zero");
    for (int64_t i = 0; i < slices; i++) {
        size_t extra = list->n % (size_t)slices, n = list->n / (size_t)slices;
        struct tpl_items row = {0};
        tpl_charge(t, 1);
        for (size_t k = 0; k < n + ((size_t)i < extra); k++)
            tpl_items_push(t, &row, list->items[at++]);
        if (fills && (size_t)i >= extra)
            tpl_items_push(t, &row, p[1]);
        tpl_items_push(t, &rows, tpl_items_finish(t, &row, TPL_LIST));
    }
    return tpl_items_finish(t, &rows, TPL_CURSOR);
}

TPL_FN(filter_groupby) {
    bool case_sensitive = tpl_truth(p[2]);
    const struct tpl_list *list = tpl_to_list(t, self);
    tval *keys = tpl_alloc(t, list->n, sizeof *keys), *items = tpl_alloc(t, list->n, sizeof *items);
    struct tpl_items groups = {0};
    for (size_t i = 0; i < list->n; i++) {
        items[i] = list->items[i];
        keys[i] = fold_case(t, tpl_follow(t, items[i], p[0], p[1]), case_sensitive);
    }
    tpl_sort(t, keys, items, list->n, false);
    for (size_t from = 0, to; from < list->n; from = to) {
        for (to = from + 1; to < list->n && tpl_equal(t, keys[from], keys[to]);)
            to++;
        tval name = tpl_follow(t, items[from], p[0], p[1]);
        tval pair = tpl_pair(t, name, tpl_list_of(t, TPL_LIST, items + from, to - from));
        struct tpl_list *group = tpl_alloc(t, 1, sizeof *group);
        *group = *pair.list;
        group->group = true;
        tpl_items_push(t, &groups, (tval){.type = TPL_TUPLE, .list = group});
    }
    return tpl_items_finish(t, &groups, TPL_LIST);
}

/* ---- join and sum ---------------------------------------------------------------------------- */

TPL_FN(filter_join) {
    const struct tpl_str *between = p[0].type == TPL_UNSET ? NULL : tpl_to_str(t, p[0]);
    struct tpl_out out = {0};
    struct tpl_iter it = tpl_iter_begin(t, self);
    bool first = true;
    for (tval item; tpl_iter_next(t, &it, &item); first = false) {
        if (!first && between)
            tpl_out_str(t, &out, between);
        tpl_put_str(t, &out, tpl_follow(t, item, p[1], tpl_unset()));
    }
    return tpl_str_from_out(t, &out);
}

TPL_FN(filter_sum) {
    tval sum = p[1].type == TPL_UNSET ? tpl_int(0) : p[1];
    struct tpl_iter it = tpl_iter_begin(t, self);
    if (sum.type == TPL_STR)
        tpl_fail(t, "sum() can't sum strings [use ''.join(seq) instead]");
    for (tval item; tpl_iter_next(t, &it, &item);)
        sum = tpl_arith(t, OP_ADD, sum, tpl_follow(t, item, p[0], tpl_unset()));
    return sum;
}

/* ---- the table ------------------------------------------------------------------------------- */

static const struct tpl_builtin sequence_filters[] = {
    {"batch", "linecount fill_with?", filter_batch},
    {"count", "", filter_length},
    {"dictsort", "case_sensitive? by? reverse?", filter_dictsort},
    {"first", "", filter_first},
    {"groupby", "attribute default? case_sensitive?", filter_groupby},
    {"items", "", filter_items},
    {"join", "d? attribute?", filter_join},
    {"last", "", filter_last},
    {"length", "", filter_length},
    {"list", "", filter_list},
    {"max", "case_sensitive? attribute?", filter_max},
    {"min", "case_sensitive? attribute?", filter_min},
    {"reverse", "", filter_reverse},
    {"slice", "slices fill_with?", filter_slice},
    {"sort", "reverse? case_sensitive? attribute?", filter_sort},
    {"sum", "attribute? start?", filter_sum},
    {"unique", "case_sensitive? attribute?", filter_unique},
};

const struct tpl_table tpl_sequence_filters = TPL_TABLE(sequence_filters);
