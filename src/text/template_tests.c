/* SPDX-License-Identifier: Apache-2.0 */
/* template_tests.c: the tests of `is` and select: x is defined, x is divisibleby 3, select("eq",
 * 1). */
#include "text/template_internal.h"

TPL_EXPR(test_defined, tpl_bool(self.type != TPL_UNDEFINED))
TPL_EXPR(test_undefined, tpl_bool(self.type == TPL_UNDEFINED))
TPL_EXPR(test_none, tpl_bool(self.type == TPL_NONE))
TPL_EXPR(test_boolean, tpl_bool(self.type == TPL_BOOL))
TPL_EXPR(test_true, tpl_bool(self.type == TPL_BOOL && self.b))
TPL_EXPR(test_false, tpl_bool(self.type == TPL_BOOL && !self.b))
TPL_EXPR(test_integer, tpl_bool(self.type == TPL_INT))
TPL_EXPR(test_float, tpl_bool(self.type == TPL_FLOAT))
TPL_EXPR(test_number, tpl_bool(tpl_is_number(self)))
TPL_EXPR(test_string, tpl_bool(self.type == TPL_STR))
TPL_EXPR(test_mapping, tpl_bool(self.type == TPL_DICT))
TPL_EXPR(test_sequence, tpl_bool(tpl_has_length(self) && self.type != TPL_VIEW))
TPL_EXPR(test_iterable, tpl_bool(tpl_is_iterable(self)))
TPL_EXPR(test_escaped, tpl_bool(self.type == TPL_STR && self.s->markup))
TPL_EXPR(test_callable,
         tpl_bool(self.type == TPL_MACRO || self.type == TPL_FUNCTION || self.type == TPL_METHOD ||
                  self.type == TPL_LOOP || self.type == TPL_UNDEFINED))

static tval remainder_is(struct tpl *t, tval v, tval by, int64_t want) {
    return tpl_bool(tpl_equal(t, tpl_arith(t, OP_MOD, v, by), tpl_int(want)));
}
TPL_EXPR(test_even, remainder_is(t, self, tpl_int(2), 0))
TPL_EXPR(test_odd, remainder_is(t, self, tpl_int(2), 1))
TPL_EXPR(test_divisibleby, remainder_is(t, self, p[0], 0))

TPL_EXPR(test_eq, tpl_bool(tpl_compare(t, OP_EQ, self, p[0])))
TPL_EXPR(test_ne, tpl_bool(tpl_compare(t, OP_NE, self, p[0])))
TPL_EXPR(test_lt, tpl_bool(tpl_compare(t, OP_LT, self, p[0])))
TPL_EXPR(test_le, tpl_bool(tpl_compare(t, OP_LE, self, p[0])))
TPL_EXPR(test_gt, tpl_bool(tpl_compare(t, OP_GT, self, p[0])))
TPL_EXPR(test_ge, tpl_bool(tpl_compare(t, OP_GE, self, p[0])))
TPL_EXPR(test_in, tpl_bool(tpl_compare(t, OP_IN, self, p[0])))

/* Python's `is`: simple values are identical if they are equal and of one type, others if they are
 * the same object. */
TPL_FN(test_sameas) {
    bool small = self.type <= TPL_STR;
    return tpl_bool(self.type == p[0].type &&
                    (small ? tpl_equal(t, self, p[0]) : self.macro == p[0].macro));
}

TPL_EXPR(test_lower,
         tpl_str_method_find("islower", 7)->fn(t, tpl_from_str(tpl_to_str(t, self)), NULL, NULL))
TPL_EXPR(test_upper,
         tpl_str_method_find("isupper", 7)->fn(t, tpl_from_str(tpl_to_str(t, self)), NULL, NULL))

static const struct tpl_builtin value_tests[] = {
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
};

const struct tpl_table tpl_value_tests = TPL_TABLE(value_tests);
