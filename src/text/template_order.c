/* SPDX-License-Identifier: Apache-2.0 */
/* template_order.c: comparison, membership, arithmetic and sorting of values, with Python's rules
 * and messages.
 *
 * Numbers of all three types compare by value (exactly: an int64 is never rounded to double for
 * it). Everything that walks nested values counts depth and steps, as values can share parts (x =
 * [x, x], fifty times).
 */
#include <math.h>

#include "text/template_internal.h"

/* ---- equality and order ---------------------------------------------------------------------- */

/* -1, 0, 1; 2 where one is not a number. */
static int order_numbers(tval a, tval b) {
    if (a.type != TPL_FLOAT && b.type != TPL_FLOAT) {
        int64_t x, y;
        tpl_as_int(a, &x);
        tpl_as_int(b, &y);
        return x < y ? -1 : x > y;
    }
    if (a.type == TPL_FLOAT && b.type == TPL_FLOAT)
        return a.f < b.f ? -1 : a.f > b.f ? 1 : a.f == b.f ? 0 : 2;
    bool swapped = a.type == TPL_FLOAT;
    double f = swapped ? a.f : b.f;
    int64_t i;
    tpl_as_int(swapped ? b : a, &i);
    int order; /* of i against f */
    if (isnan(f))
        return 2;
    if (f >= 9223372036854775808.0)
        order = -1;
    else if (f < -9223372036854775808.0)
        order = 1;
    else {
        int64_t whole = (int64_t)f;
        double rest = f - (double)whole;
        order = i < whole ? -1 : i > whole ? 1 : rest > 0 ? -1 : rest < 0;
    }
    return swapped ? -order : order;
}

static bool equal_lists(struct tpl *t, const struct tpl_list *a, const struct tpl_list *b) {
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!tpl_equal(t, a->items[i], b->items[i]))
            return false;
    return true;
}

static bool equal_dicts(struct tpl *t, const struct tpl_dict *a, const struct tpl_dict *b) {
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const tval *other = tpl_dict_get(t, b, a->entries[i].key);
        if (!other || !tpl_equal(t, a->entries[i].value, *other))
            return false;
    }
    return true;
}

static bool equal_same_type(struct tpl *t, tval a, tval b) {
    switch (a.type) {
    case TPL_UNSET:
    case TPL_UNDEFINED:
    case TPL_NONE:
        return true;
    case TPL_STR:
        tpl_charge_bytes(t, a.s->len);
        return tpl_str_equal(a.s, b.s);
    case TPL_LIST:
    case TPL_TUPLE:
        return equal_lists(t, a.list, b.list);
    case TPL_DICT:
        return equal_dicts(t, a.dict, b.dict);
    case TPL_VIEW:
        return a.view->kind == b.view->kind && a.view->kind != TPL_VALUES &&
               equal_dicts(t, a.view->dict, b.view->dict);
    case TPL_RANGE:
        return a.range->n == b.range->n &&
               (a.range->n == 0 || (a.range->start == b.range->start &&
                                    (a.range->n == 1 || a.range->step == b.range->step)));
    case TPL_METHOD:
        return a.method->builtin == b.method->builtin &&
               tpl_equal(t, a.method->self, b.method->self);
    default:
        return a.macro == b.macro; /* the same object */
    }
}

bool tpl_equal(struct tpl *t, tval a, tval b) {
    tpl_charge(t, 1);
    if (tpl_is_number(a) && tpl_is_number(b))
        return order_numbers(a, b) == 0;
    if (a.type != b.type)
        return false;
    tpl_enter(t);
    bool equal = equal_same_type(t, a, b);
    tpl_leave(t);
    return equal;
}

static bool less_text(const struct tpl_str *a, const struct tpl_str *b) {
    size_t n = a->len < b->len ? a->len : b->len;
    int order = n ? memcmp(a->data, b->data, n) : 0; /* UTF-8 sorts as code points do */
    return order < 0 || (order == 0 && a->len < b->len);
}

bool tpl_less(struct tpl *t, tval a, tval b, const char *op) {
    tpl_charge(t, 1);
    if (a.type == TPL_UNDEFINED)
        tpl_fail_undefined(t, a);
    if (b.type == TPL_UNDEFINED)
        tpl_fail_undefined(t, b);
    if (tpl_is_number(a) && tpl_is_number(b))
        return order_numbers(a, b) == -1;
    if (a.type == TPL_STR && b.type == TPL_STR) {
        tpl_charge_bytes(t, a.s->len < b.s->len ? a.s->len : b.s->len);
        return less_text(a.s, b.s);
    }
    if (a.type != b.type || (a.type != TPL_LIST && a.type != TPL_TUPLE))
        tpl_fail(t, "'%s' not supported between instances of '%s' and '%s'", op, tpl_type_name(a),
                 tpl_type_name(b));
    const struct tpl_list *x = a.list, *y = b.list;
    size_t i = 0, n = x->n < y->n ? x->n : y->n;
    tpl_enter(t);
    while (i < n && tpl_equal(t, x->items[i], y->items[i]))
        i++;
    bool less = i < n ? tpl_less(t, x->items[i], y->items[i], op) : x->n < y->n;
    tpl_leave(t);
    return less;
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
    case OP_LE: /* not "not >": NaN is neither */
        return tpl_less(t, a, b, "<=") || tpl_equal(t, a, b);
    case OP_GE:
        return tpl_less(t, b, a, ">=") || tpl_equal(t, a, b);
    case OP_IN:
        return tpl_contains(t, b, a);
    default:
        return !tpl_contains(t, b, a);
    }
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
    for (size_t k = 0; k < r->n; k++) /* at most 100,000, see range() */
        if (r->start + (int64_t)k * r->step == i)
            return true;
    return false;
}

bool tpl_contains(struct tpl *t, tval in, tval item) {
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

/* ---- arithmetic ------------------------------------------------------------------------------ */

static const char *const symbols[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

static _Noreturn void unsupported(struct tpl *t, enum tpl_op op, tval a, tval b) {
    if (op == OP_ADD && (a.type == TPL_STR || a.type == TPL_LIST || a.type == TPL_TUPLE))
        tpl_fail(t, "can only concatenate %s (not \"%s\") to %s", tpl_type_name(a),
                 tpl_type_name(b), tpl_type_name(a));
    tpl_fail(t, "unsupported operand type(s) for %s: '%s' and '%s'", symbols[op], tpl_type_name(a),
             tpl_type_name(b));
}

static _Noreturn void overflow(struct tpl *t) {
    tpl_fail(t, "an integer result that does not fit 64 bits");
}

static int64_t floor_div(struct tpl *t, int64_t a, int64_t b) {
    if (a == INT64_MIN && b == -1)
        overflow(t);
    int64_t q = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

static double power_whole(double base, uint64_t n) {
    double result = 1;
    for (; n; n >>= 1, base *= base)
        if (n & 1)
            result *= base;
    return result;
}

static tval power(struct tpl *t, tval a, tval b) {
    int64_t x, n;
    double base = tpl_as_double(a), e = tpl_as_double(b);
    if (tpl_as_int(a, &x) && tpl_as_int(b, &n) && n >= 0) {
        int64_t result = 1;
        while (n) {
            if ((n & 1) && __builtin_mul_overflow(result, x, &result))
                overflow(t);
            n >>= 1;
            if (n && __builtin_mul_overflow(x, x, &x))
                overflow(t);
        }
        return tpl_int(result);
    }
    if (base == 0 && e < 0)
        tpl_fail(t, "0.0 cannot be raised to a negative power");
    if (e == floor(e) && fabs(e) < 1e9) {
        double p = power_whole(base, (uint64_t)fabs(e));
        return tpl_float(e < 0 ? 1 / p : p);
    }
    if (base < 0)
        tpl_fail(t, "a negative number raised to a fraction is not a real number");
    return tpl_float(base == 0 ? 0 : m_pow(base, e));
}

static tval arith_int(struct tpl *t, enum tpl_op op, int64_t a, int64_t b) {
    int64_t r = 0;
    bool over = false;
    switch (op) {
    case OP_ADD:
        over = __builtin_add_overflow(a, b, &r);
        break;
    case OP_SUB:
        over = __builtin_sub_overflow(a, b, &r);
        break;
    case OP_MUL:
        over = __builtin_mul_overflow(a, b, &r);
        break;
    case OP_DIV:
        if (b == 0)
            tpl_fail(t, "division by zero");
        return tpl_float((double)a / (double)b);
    default:
        if (b == 0)
            tpl_fail(t, "integer division or modulo by zero");
        if (op == OP_FLOORDIV)
            return tpl_int(floor_div(t, a, b));
        r = b == -1 ? 0 : a % b;
        return tpl_int(r != 0 && (r < 0) != (b < 0) ? r + b : r);
    }
    if (over)
        overflow(t);
    return tpl_int(r);
}

static tval arith_float(struct tpl *t, enum tpl_op op, double a, double b) {
    if (b == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        tpl_fail(t, op == OP_DIV   ? "float division by zero"
                    : op == OP_MOD ? "float modulo"
                                   : "float floor division by zero");
    double r;
    switch (op) {
    case OP_ADD:
        return tpl_float(a + b);
    case OP_SUB:
        return tpl_float(a - b);
    case OP_MUL:
        return tpl_float(a * b);
    case OP_DIV:
        return tpl_float(a / b);
    default:
        r = fmod(a, b);
        double q = (a - r) / b;
        if (r != 0 && (r < 0) != (b < 0)) {
            r += b;
            q -= 1;
        }
        if (op == OP_MOD)
            return tpl_float(r == 0 ? copysign(0, b) : r);
        double whole = floor(q);
        return tpl_float(q - whole > 0.5 ? whole + 1 : q == 0 ? copysign(0, a / b) : whole);
    }
}

/* "ab" * 3, [0] * n */
static tval repeat(struct tpl *t, tval v, int64_t count) {
    size_t n = count < 0 ? 0 : (size_t)count, total;
    bool text = v.type == TPL_STR;
    size_t len = text ? v.s->len : v.list->n;
    if (!mul_size(len, n, &total) || total > SIZE_MAX / sizeof(tval) / 2)
        tpl_fail(t, "a repetition of %zu times %zu", n, len);
    if (total == 0)
        n = 0;
    if (text) {
        char *data = tpl_arena_take(t, t->arena, total);
        tpl_charge_bytes(t, total);
        for (size_t i = 0; i < n; i++)
            memcpy(data + i * len, v.s->data, len);
        return tpl_str_like(t, tpl_str_borrow(t, data, total), v.s);
    }
    struct tpl_items items = {.cap = total};
    tpl_charge(t, total);
    items.items = tpl_alloc(t, total, sizeof(tval));
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < len; k++)
            items.items[items.n++] = v.list->items[k];
    return tpl_items_finish(t, &items, v.type);
}

/* A side of + beside a Markup is escaped. */
static const struct tpl_str *as_markup(struct tpl *t, const struct tpl_str *s) {
    if (s->markup)
        return s;
    struct tpl_out out = {0};
    tpl_put_escaped(t, &out, s);
    struct tpl_str *m = tpl_alloc(t, 1, sizeof *m);
    *m = *tpl_str_from_out(t, &out).s;
    m->markup = true;
    return m;
}

static tval add(struct tpl *t, tval a, tval b) {
    if (a.type == TPL_STR && b.type == TPL_STR) {
        if (a.s->markup != b.s->markup)
            return tpl_str_join2(t, as_markup(t, a.s), as_markup(t, b.s));
        return tpl_str_join2(t, a.s, b.s);
    }
    if (a.type == b.type && (a.type == TPL_LIST || a.type == TPL_TUPLE))
        return tpl_list_join2(t, a, b);
    unsupported(t, OP_ADD, a, b);
}

tval tpl_arith(struct tpl *t, enum tpl_op op, tval a, tval b) {
    int64_t x, y;
    if (op == OP_MOD && a.type == TPL_STR)
        return tpl_format_percent(t, a.s, b);
    if (a.type == TPL_UNDEFINED)
        tpl_fail_undefined(t, a);
    if (b.type == TPL_UNDEFINED)
        tpl_fail_undefined(t, b);
    if (tpl_is_number(a) && tpl_is_number(b)) {
        if (op == OP_POW)
            return power(t, a, b);
        if (tpl_as_int(a, &x) && tpl_as_int(b, &y))
            return arith_int(t, op, x, y);
        return arith_float(t, op, tpl_as_double(a), tpl_as_double(b));
    }
    if (op == OP_ADD)
        return add(t, a, b);
    if (op == OP_MUL) {
        bool a_seq = a.type == TPL_STR || a.type == TPL_LIST || a.type == TPL_TUPLE;
        bool b_seq = b.type == TPL_STR || b.type == TPL_LIST || b.type == TPL_TUPLE;
        if (a_seq && tpl_as_int(b, &y))
            return repeat(t, a, y);
        if (b_seq && tpl_as_int(a, &x))
            return repeat(t, b, x);
    }
    unsupported(t, op, a, b);
}

/* ---- sorting --------------------------------------------------------------------------------- */

struct sorter {
    tval *keys, *items, *key_tmp, *item_tmp;
    bool reverse;
};

/* Merge sort, top down: stable, n log n, and free to leave with tpl_fail, which qsort is not. */
static void sort_part(struct tpl *t, struct sorter *s, size_t from, size_t to) {
    if (to - from < 2)
        return;
    size_t mid = from + (to - from) / 2;
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
