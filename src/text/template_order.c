/* SPDX-License-Identifier: Apache-2.0 */
/* template_order.c: order, membership and sorting of values, with Python's rules and messages.
 *
 * Numbers of all three types compare by value, and exactly: an int64 is never rounded to double. A
 * walk of nested values counts depth and steps, because values can share parts (x = [x, x], fifty
 * times).
 */
#include "text/template_internal.h"

/* ---- order ----------------------------------------------------------------------------------- */

bool tpl_less(struct tpl *t, tval a, tval b, const char *op) {
    tpl_charge(t, 1);
    tpl_need_defined(t, a);
    tpl_need_defined(t, b);
    if (tpl_is_number(a) && tpl_is_number(b))
        return tpl_order_numbers(a, b) == -1;
    if (a.type == TPL_STR && b.type == TPL_STR) {
        tpl_charge_bytes(t, min_size(a.s->len, b.s->len));
        return span_compare((struct text_span){a.s->data, a.s->len},
                            (struct text_span){b.s->data, b.s->len}) < 0;
    }
    if (a.type != b.type || (a.type != TPL_LIST && a.type != TPL_TUPLE))
        tpl_fail(t, "'%s' not supported between instances of '%s' and '%s'", op, tpl_type_name(a),
                 tpl_type_name(b));
    const struct tpl_list *x = a.list, *y = b.list;
    size_t i = 0, n = min_size(x->n, y->n);
    tpl_enter(t);
    while (i < n && tpl_equal(t, x->items[i], y->items[i]))
        i++;
    bool less = i < n ? tpl_less(t, x->items[i], y->items[i], op) : x->n < y->n;
    tpl_leave(t);
    return less;
}

static bool range_contains(const struct tpl_range *r, tval item) {
    int64_t i;
    if (item.type == TPL_FLOAT) {
        if (!(item.f >= -9e15 && item.f <= 9e15) || item.f != (double)(int64_t)item.f)
            return false;
        i = (int64_t)item.f;
    } else if (!tpl_as_int(item, &i)) {
        return false;
    }
    for (size_t k = 0; k < r->n; k++) /* at most 100,000, see global_range */
        if (r->start + (int64_t)k * r->step == i)
            return true;
    return false;
}

static bool contains_value(struct tpl *t, tval in, tval item) {
    if (in.type == TPL_STR) {
        if (item.type != TPL_STR)
            tpl_fail(t, "'in <string>' requires string as left operand, not %s",
                     tpl_type_name(item));
        tpl_charge_bytes(t, in.s->len);
        return tpl_find(in.s->data, 0, in.s->len, item.s->data, item.s->len) != SIZE_MAX;
    }
    if (in.type == TPL_DICT)
        return tpl_dict_get(t, in.dict, item) != NULL;
    if (in.type == TPL_RANGE) {
        tpl_charge(t, in.range->n / 64);
        return range_contains(in.range, item);
    }
    if (!tpl_is_iterable(in) || in.type == TPL_LOOP)
        tpl_fail(t, "argument of type '%s' is not iterable", tpl_type_name(in));
    struct tpl_iter it = tpl_iter_begin(t, in);
    for (tval other; tpl_iter_next(t, &it, &other);)
        if (tpl_equal(t, other, item))
            return true;
    return false;
}

bool tpl_compare(struct tpl *t, enum tpl_op op, tval a, tval b) {
    switch (op) {
    case OP_EQ:
        return tpl_equal(t, a, b);
    case OP_NE:
        return !tpl_equal(t, a, b);
    case OP_LT:
        return tpl_less(t, a, b, "<");
    case OP_GT:
        return tpl_less(t, b, a, ">");
    case OP_LE: /* not "not >", because of NaN */
        return tpl_less(t, a, b, "<=") || tpl_equal(t, a, b);
    case OP_GE:
        return tpl_less(t, b, a, ">=") || tpl_equal(t, a, b);
    case OP_IN:
        return contains_value(t, b, a);
    default:
        return !contains_value(t, b, a);
    }
}

/* ---- sorting --------------------------------------------------------------------------------- */

struct sorter {
    tval *keys, *items, *key_tmp, *item_tmp;
    bool reverse;
};

/* Merge sort, top down: stable, n log n, and unlike qsort it may be left with tpl_fail. */
static void sort_part(struct tpl *t, struct sorter *s, size_t from, size_t to) {
    if (to - from < 2)
        return;
    size_t mid = from + (to - from) / 2;
    DEBUG_ASSERT(from < mid && mid < to);
    sort_part(t, s, from, mid);
    sort_part(t, s, mid, to);
    size_t a = from, b = mid;
    for (size_t i = from; i < to; i++) {
        bool second = a == mid;
        if (a < mid && b < to)
            second = s->reverse ? tpl_less(t, s->keys[a], s->keys[b], "<")
                                : tpl_less(t, s->keys[b], s->keys[a], "<");
        size_t take = second ? b++ : a++;
        s->key_tmp[i] = s->keys[take];
        s->item_tmp[i] = s->items[take];
    }
    memcpy(s->keys + from, s->key_tmp + from, (to - from) * sizeof(tval));
    memcpy(s->items + from, s->item_tmp + from, (to - from) * sizeof(tval));
}

void tpl_sort(struct tpl *t, tval *keys, tval *items, size_t n, bool reverse) {
    struct sorter s = {keys, items, tpl_alloc(t, n, sizeof(tval)), tpl_alloc(t, n, sizeof(tval)),
                       reverse};
    sort_part(t, &s, 0, n);
}
