/* SPDX-License-Identifier: Apache-2.0 */
/* template_tests.c: the tests behind `is` and in select: x is defined, x is divisibleby 3,
 * select("eq", 1). */
#include "text/template_internal.h"

#define TEST(fn_name)                                                                              \
    static tval fn_name(struct tpl *t, tval self, const tval *p, const struct tpl_call *call)
#define UNUSED(x) ((void)(x))

/* Tests of the type alone. */
#define TYPE_TEST(fn_name, expr)                                                                   \
    TEST(fn_name) {                                                                                \
        UNUSED(t), UNUSED(p), UNUSED(call);                                                        \
        return tpl_bool(expr);                                                                     \
    }
TYPE_TEST(test_defined, self.type != TPL_UNDEFINED)
TYPE_TEST(test_undefined, self.type == TPL_UNDEFINED)
TYPE_TEST(test_none, self.type == TPL_NONE)
TYPE_TEST(test_boolean, self.type == TPL_BOOL)
TYPE_TEST(test_true, self.type == TPL_BOOL && self.b)
TYPE_TEST(test_false, self.type == TPL_BOOL && !self.b)
TYPE_TEST(test_integer, self.type == TPL_INT)
TYPE_TEST(test_float, self.type == TPL_FLOAT)
TYPE_TEST(test_number, tpl_is_number(self))
TYPE_TEST(test_string, self.type == TPL_STR)
TYPE_TEST(test_mapping, self.type == TPL_DICT)
TYPE_TEST(test_sequence, tpl_has_length(self) && self.type != TPL_VIEW)
TYPE_TEST(test_iterable, tpl_is_iterable(self))
TYPE_TEST(test_escaped, self.type == TPL_STR && self.s->markup)
TYPE_TEST(test_callable, self.type == TPL_MACRO || self.type == TPL_FUNCTION ||
                             self.type == TPL_METHOD || self.type == TPL_LOOP ||
                             self.type == TPL_UNDEFINED)

static tval remainder_is(struct tpl *t, tval v, tval by, int64_t want) {
    return tpl_bool(tpl_equal(t, tpl_arith(t, OP_MOD, v, by), tpl_int(want)));
}
TEST(test_even) {
    UNUSED(p), UNUSED(call);
    return remainder_is(t, self, tpl_int(2), 0);
}
TEST(test_odd) {
    UNUSED(p), UNUSED(call);
    return remainder_is(t, self, tpl_int(2), 1);
}
TEST(test_divisibleby) {
    UNUSED(call);
    return remainder_is(t, self, p[0], 0);
}

#define COMPARE_TEST(fn_name, op)                                                                  \
    TEST(fn_name) {                                                                                \
        UNUSED(call);                                                                              \
        return tpl_bool(tpl_compare(t, op, self, p[0]));                                           \
    }
COMPARE_TEST(test_eq, OP_EQ)
COMPARE_TEST(test_ne, OP_NE)
COMPARE_TEST(test_lt, OP_LT)
COMPARE_TEST(test_le, OP_LE)
COMPARE_TEST(test_gt, OP_GT)
COMPARE_TEST(test_ge, OP_GE)
COMPARE_TEST(test_in, OP_IN)

/* Python's `is`: small values are one object if they are equal and of one type, others are where
 * they lie. */
TEST(test_sameas) {
    UNUSED(call);
    bool small = self.type <= TPL_STR;
    return tpl_bool(self.type == p[0].type &&
                    (small ? tpl_equal(t, self, p[0]) : self.macro == p[0].macro));
}

TEST(test_lower) {
    UNUSED(p), UNUSED(call);
    return tpl_str_method_find("islower", 7)->fn(t, tpl_from_str(tpl_to_str(t, self)), NULL, NULL);
}
TEST(test_upper) {
    UNUSED(p), UNUSED(call);
    return tpl_str_method_find("isupper", 7)->fn(t, tpl_from_str(tpl_to_str(t, self)), NULL, NULL);
}
TEST(test_filter) {
    UNUSED(p), UNUSED(call);
    const struct tpl_str *name = tpl_need_str(t, self, "the filter's name");
    return tpl_bool(tpl_filter_find(name->data, name->len) != NULL);
}
TEST(test_test) {
    UNUSED(p), UNUSED(call);
    const struct tpl_str *name = tpl_need_str(t, self, "the test's name");
    return tpl_bool(tpl_test_find(name->data, name->len) != NULL);
}

static const struct tpl_builtin tests[] = {
    {"defined", "", test_defined},
    {"undefined", "", test_undefined},
    {"none", "", test_none},
    {"boolean", "", test_boolean},
    {"true", "", test_true},
    {"false", "", test_false},
    {"integer", "", test_integer},
    {"float", "", test_float},
    {"number", "", test_number},
    {"string", "", test_string},
    {"mapping", "", test_mapping},
    {"sequence", "", test_sequence},
    {"iterable", "", test_iterable},
    {"callable", "", test_callable},
    {"escaped", "", test_escaped},
    {"even", "", test_even},
    {"odd", "", test_odd},
    {"divisibleby", "num", test_divisibleby},
    {"eq", "other", test_eq},
    {"equalto", "other", test_eq},
    {"==", "other", test_eq},
    {"ne", "other", test_ne},
    {"!=", "other", test_ne},
    {"lt", "other", test_lt},
    {"lessthan", "other", test_lt},
    {"<", "other", test_lt},
    {"le", "other", test_le},
    {"<=", "other", test_le},
    {"gt", "other", test_gt},
    {"greaterthan", "other", test_gt},
    {">", "other", test_gt},
    {"ge", "other", test_ge},
    {">=", "other", test_ge},
    {"in", "seq", test_in},
    {"sameas", "other", test_sameas},
    {"lower", "", test_lower},
    {"upper", "", test_upper},
    {"filter", "", test_filter},
    {"test", "", test_test},
};

const struct tpl_builtin *tpl_test_find(const char *name, size_t len) {
    return tpl_search(tests, sizeof tests / sizeof *tests, name, len);
}
