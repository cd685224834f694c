/* SPDX-License-Identifier: Apache-2.0 */
/* template_arith.c: + - * / // % ** on values, with Python's rules and messages. Integers have 64
 * bits; overflow is an error.
 */
#include <math.h>

#include "text/template_internal.h"

static const char *const symbols[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

static _Noreturn void fail_operands(struct tpl *t, enum tpl_op op, tval a, tval b) {
    if (op == OP_ADD && (a.type == TPL_STR || a.type == TPL_LIST || a.type == TPL_TUPLE))
        tpl_fail(t, "can only concatenate %s (not \"%s\") to %s", tpl_type_name(a),
                 tpl_type_name(b), tpl_type_name(a));
    ASSERT(op < COUNT(symbols));
    tpl_fail(t, "unsupported operand type(s) for %s: '%s' and '%s'", symbols[op], tpl_type_name(a),
             tpl_type_name(b));
}

static _Noreturn void fail_overflow(struct tpl *t) {
    tpl_fail(t, "the integer result does not fit in 64 bits");
}

static int64_t floor_div(struct tpl *t, int64_t a, int64_t b) {
    if (a == INT64_MIN && b == -1)
        fail_overflow(t);
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

static tval arith_power(struct tpl *t, tval a, tval b) {
    int64_t x, n;
    double base = tpl_as_double(a), e = tpl_as_double(b);
    if (tpl_as_int(a, &x) && tpl_as_int(b, &n) && n >= 0) {
        int64_t result = 1;
        while (n) {
            if ((n & 1) && __builtin_mul_overflow(result, x, &result))
                fail_overflow(t);
            n >>= 1;
            if (n && __builtin_mul_overflow(x, x, &x))
                fail_overflow(t);
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
        fail_overflow(t);
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
static tval repeat_sequence(struct tpl *t, tval v, int64_t count) {
    size_t n = count < 0 ? 0 : (size_t)count, total;
    bool text = v.type == TPL_STR;
    size_t len = text ? v.s->len : v.list->n;
    if (!mul_size(len, n, &total) || total > SIZE_MAX / sizeof(tval) / 2)
        tpl_fail(t, "repeating %zu times %zu items is too large", n, len);
    if (total == 0)
        n = 0;
    if (text) {
        struct tpl_out out = {.data = tpl_arena_take(t, t->arena, total), .cap = total};
        tpl_charge_bytes(t, total);
        for (size_t i = 0; i < n; i++)
            tpl_out_str(t, &out, v.s);
        return tpl_str_like(t, tpl_str_from_out(t, &out), v.s);
    }
    struct tpl_items items = {.cap = total};
    tpl_charge(t, total);
    items.items = tpl_alloc(t, total, sizeof(tval));
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < len; k++)
            items.items[items.n++] = v.list->items[k];
    return tpl_items_finish(t, &items, v.type);
}

/* Addition with a Markup on one side escapes the other side. */
static const struct tpl_str *as_markup(struct tpl *t, const struct tpl_str *s) {
    if (s->markup)
        return s;
    struct tpl_out out = {0};
    tpl_put_escaped(t, &out, s);
    return tpl_str_marked(t, tpl_str_from_out(t, &out).s, true).s;
}

static tval add_sequences(struct tpl *t, tval a, tval b) {
    if (a.type == TPL_STR && b.type == TPL_STR) {
        if (a.s->markup != b.s->markup)
            return tpl_str_join2(t, as_markup(t, a.s), as_markup(t, b.s));
        return tpl_str_join2(t, a.s, b.s);
    }
    if (a.type == b.type && (a.type == TPL_LIST || a.type == TPL_TUPLE))
        return tpl_list_join2(t, a, b);
    fail_operands(t, OP_ADD, a, b);
}

tval tpl_arith(struct tpl *t, enum tpl_op op, tval a, tval b) {
    int64_t x, y;
    if (op == OP_MOD && a.type == TPL_STR)
        return tpl_format_percent(t, a.s, b);
    tpl_need_defined(t, a);
    tpl_need_defined(t, b);
    if (tpl_is_number(a) && tpl_is_number(b)) {
        if (op == OP_POW)
            return arith_power(t, a, b);
        if (tpl_as_int(a, &x) && tpl_as_int(b, &y))
            return arith_int(t, op, x, y);
        return arith_float(t, op, tpl_as_double(a), tpl_as_double(b));
    }
    if (op == OP_ADD)
        return add_sequences(t, a, b);
    if (op == OP_MUL) {
        bool a_seq = a.type == TPL_STR || a.type == TPL_LIST || a.type == TPL_TUPLE;
        bool b_seq = b.type == TPL_STR || b.type == TPL_LIST || b.type == TPL_TUPLE;
        if (a_seq && tpl_as_int(b, &y))
            return repeat_sequence(t, a, y);
        if (b_seq && tpl_as_int(a, &x))
            return repeat_sequence(t, b, x);
    }
    fail_operands(t, op, a, b);
}
