/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of numbers: by hand, and against integers: every text of a few digits is in a set if its
 * thousandths say so, and each of its prefixes can begin. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "grammar/numbers.h"

#include <cmocka.h>

static struct grammar_budget budget = {UINT64_MAX, SIZE_MAX};

static struct text_span span(const char *text) {
    return (struct text_span){text, strlen(text)};
}

/* "whole", "*0.5" (multiples), ">=1", "<2.5" ...; takes `with`, which may be NULL. */
static struct numbers *made(const char *what, struct numbers *with) {
    struct numbers *n = NULL, *both = NULL;
    kvasir_error err = {0};
    kvasir_status status;
    if (strcmp(what, "whole") == 0)
        status = numbers_whole(&budget, &n, &err);
    else if (*what == '*')
        status = numbers_multiple(&budget, span(what + 1), &n, &err);
    else if (what[1] == '=')
        status =
            numbers_bounded(&budget, *what == '>' ? AT_LEAST : AT_MOST, span(what + 2), &n, &err);
    else
        status = numbers_bounded(&budget, *what == '>' ? MORE_THAN : LESS_THAN, span(what + 1), &n,
                                 &err);
    assert_int_equal(status, KVASIR_OK);
    if (!with)
        return n;
    assert_int_equal(numbers_and(&budget, with, n, &both, &err), KVASIR_OK);
    numbers_release(with);
    numbers_release(n);
    return both;
}

static void all_begin(const struct numbers *n, const char *text) {
    for (size_t len = 0; len <= strlen(text); len++)
        if (!numbers_can_begin(n, (struct text_span){text, len}))
            fail_msg("%.*s of %s cannot begin", (int)len, text, text);
}

/* Thousandths, for which the text has at most three digits after the point. */
static bool expected(int64_t thousandths, int set) {
    switch (set) {
    case 0:
        return thousandths % 1000 == 0 && thousandths >= -12000 && thousandths <= 105000;
    case 1:
        return thousandths > 500 && thousandths < 2250;
    case 2:
        return thousandths % 750 == 0 && thousandths >= 1000;
    case 3:
        return thousandths % 6000 == 0 && thousandths < 40000;
    default:
        return thousandths >= -1250 && thousandths <= 250;
    }
}

static struct numbers *set_of(int set) {
    switch (set) {
    case 0:
        return made("<=105", made(">=-12", made("whole", NULL)));
    case 1:
        return made("<2.25", made(">0.5", NULL));
    case 2:
        return made(">=1", made("*0.75", NULL));
    case 3:
        return made("<4e1", made("*3", made("*2", NULL)));
    default:
        return made("<=0.25", made(">=-1.25", NULL));
    }
}

static void test_against_integers(void **state) {
    (void)state;
    for (int set = 0; set < 5; set++) {
        struct numbers *n = set_of(set);
        for (int64_t t = -20000; t <= 120000; t += 125) {
            char text[40];
            const int64_t size = t < 0 ? -t : t;
            snprintf(text, sizeof text, "%s%d.%03d", t < 0 ? "-" : "", (int)(size / 1000),
                     (int)(size % 1000));
            const bool in = numbers_contains(n, span(text));
            if (in != expected(t, set))
                fail_msg("set %d: %s", set, text);
            if (in)
                all_begin(n, text);
        }
        numbers_release(n);
    }
}

static void test_empty(void **state) {
    (void)state;
    struct numbers *n = made("<1", made(">0", made("whole", NULL)));
    assert_true(numbers_is_empty(n));
    numbers_release(n);
    n = made("<=2", made(">=1", made("*3", NULL)));
    assert_true(numbers_is_empty(n));
    numbers_release(n);
    n = made("<=0", made(">=0", made("*3", NULL)));
    assert_false(numbers_is_empty(n));
    numbers_release(n);
    n = made("*1000003", made("*999983", NULL)); /* their first common multiple is far */
    assert_false(numbers_is_empty(n));
    all_begin(n, "999985999949");
    assert_true(numbers_can_begin(n, span("-9")));
    numbers_release(n);
}

static void test_dead_ends(void **state) {
    (void)state;
    struct numbers *n = made("<=9.25", made(">=9.24", NULL));
    assert_true(numbers_can_begin(n, span("9.2")));
    assert_false(numbers_can_begin(n, span("9.3")));
    assert_false(numbers_can_begin(n, span("9.26")));
    assert_false(numbers_can_begin(n, span("-")));
    assert_false(numbers_can_begin(n, span("01")));
    all_begin(n, "92.45e-1");
    numbers_release(n);
    n = made("<=1e-6", made(">0", NULL));
    all_begin(n, "1e-07");
    numbers_release(n);
    n = made(">=0", NULL);
    all_begin(n, "1E+16");
    all_begin(n, "12.5e3");
    all_begin(n, "-0");
    numbers_release(n);
}

static kvasir_status keep(void *user, struct numbers *part, kvasir_error *err) {
    struct numbers **parts = user;
    (void)err;
    while (*parts)
        parts++;
    *parts = part;
    return KVASIR_OK;
}

static void test_complement(void **state) {
    (void)state;
    struct numbers *n = set_of(0), *parts[8] = {NULL};
    kvasir_error err;
    assert_int_equal(numbers_not(&budget, n, keep, parts, &err), KVASIR_OK);
    for (int64_t t = -20000; t <= 120000; t += 125) {
        char text[40];
        const int64_t size = t < 0 ? -t : t;
        snprintf(text, sizeof text, "%s%d.%03d", t < 0 ? "-" : "", (int)(size / 1000),
                 (int)(size % 1000));
        bool in = false;
        for (int i = 0; parts[i]; i++)
            if (numbers_contains(parts[i], span(text))) {
                in = true;
                all_begin(parts[i], text);
            }
        assert_int_equal(in, !expected(t, 0));
    }
    for (int i = 0; parts[i]; i++)
        numbers_release(parts[i]);
    numbers_release(n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_integers),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_dead_ends),
        cmocka_unit_test(test_complement),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
