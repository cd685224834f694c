/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of strings: expressions by hand, operations against their definitions on random strings, no
 * dead ends, and hostile expressions that must be refused soon. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <time.h>

#include "grammar/language.h"

#include <cmocka.h>

static struct text_span span(const char *text) {
    return (struct text_span){text, strlen(text)};
}

static struct grammar_budget budget(void) {
    const struct grammar_limits l = grammar_limits_default();
    return (struct grammar_budget){l.steps, l.compiled_bytes};
}

static struct language *regex(const char *expression, bool whole) {
    struct grammar_budget b = budget();
    struct language *l = NULL;
    kvasir_error err = {0};
    if (language_regex(&b, span(expression), whole, &l, &err))
        fail_msg("%s: %s", expression, err.text);
    return l;
}

static struct language *any(uint32_t min, uint32_t max) {
    struct grammar_budget b = budget();
    struct language *l = NULL;
    kvasir_error err;
    assert_int_equal(language_any(&b, min, max, &l, &err), KVASIR_OK);
    return l;
}

/* x and y, x or y, not x; takes both. */
static struct language *combined(char op, struct language *x, struct language *y) {
    struct grammar_budget b = budget();
    struct language *l = NULL;
    kvasir_error err = {0};
    const kvasir_status status = op == '&'   ? language_and(&b, x, y, &l, &err)
                                 : op == '|' ? language_or(&b, x, y, &l, &err)
                                             : language_not(&b, x, &l, &err);
    if (status)
        fail_msg("%c: %s", op, err.text);
    language_release(x);
    language_release(y);
    return l;
}

/* ---- expressions ----------------------------------------------------------------------------- */

static void test_expressions(void **state) {
    (void)state;
    static const struct {
        const char *expression, *good[5], *bad[5];
    } CASES[] = {
        {"^(ab)*$", {"", "ab", "abab"}, {"a", "aba", "xab"}},
        {"b",
         {"b", "abc",
          "\xc3\xa9"
          "b"},
         {"", "a"}},
        {"^a|b$", {"ax", "xb", "a", "b"}, {"xa", "bx", ""}},
        {"^a{2,3}$", {"aa", "aaa"}, {"a", "aaaa"}},
        {"^a{2,}?$", {"aa", "aaaaa"}, {"a"}},
        {"^[^a-c]$", {"d", "\xc3\xa9", "\xf0\x9f\x98\x80", "\n"}, {"a", "", "dd"}},
        {"^.$", {"x", "\xe2\x82\xac"}, {"\n", "", "\xe2\x80\xa8"}},
        {"^\\u{1F600}\\uD83D\\uDE00$", {"\xf0\x9f\x98\x80\xf0\x9f\x98\x80"}, {""}},
        {"^\\d\\w\\S\\D$", {"1_-x"}, {"1_-1", "x_-x", "1_ x"}},
        {"^[\\w.-]+@(?:x|yy)\\.de$", {"a.b-c@x.de", "a@yy.de"}, {"@x.de", "a@yxde"}},
        {"^(?<year>\\d{4})-(?:\\d\\d)$", {"2024-12"}, {"2024-1", "202-12"}},
        {"^(?!ab)\\w{2}$", {"ba", "aa"}, {"ab", "a"}},
        {"^(?=.*\\d)(?=.*[a-z]).{3,}$", {"a1x", "xx1"}, {"abc", "123", "a1"}},
        {"^(?!.*--)[a-z-]+$", {"a-b"}, {"a--b", ""}},
        {"x(?!y)", {"x", "xz", "xyx"}, {"xy", ""}},
        {"\\bab\\b", {"ab", "x ab-", "-ab"}, {"xab", "abc"}},
        {"^a\\Bb$", {"ab"}, {"a"}},
        {"^\\p{Lu}\\p{L}*$", {"A", "\xc3\x84pfel"}, {"a", "A1"}},
        {"^\\P{L}$", {"1"}, {"a"}},
        {"^a{x$", {"a{x"}, {"ax"}},
        {"^\\-\\/\\.$", {"-/."}, {"-/x"}},
        {"", {"", "x"}, {NULL}},
        {"$^", {""}, {"a"}},
        {"^[]$", {NULL}, {"", "a"}},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct language *l = regex(CASES[i].expression, false);
        for (int k = 0; k < 5; k++) {
            if (CASES[i].good[k] && !language_contains(l, span(CASES[i].good[k])))
                fail_msg("%s refuses \"%s\"", CASES[i].expression, CASES[i].good[k]);
            if (CASES[i].bad[k] && language_contains(l, span(CASES[i].bad[k])))
                fail_msg("%s takes \"%s\"", CASES[i].expression, CASES[i].bad[k]);
        }
        language_release(l);
    }
    struct language *l = regex("a|bc", true);
    assert_true(language_contains(l, span("bc")) && !language_contains(l, span("xbc")));
    language_release(l);
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *expression;
        kvasir_status code;
        const char *why;
    } CASES[] = {
        {"(a", KVASIR_ERR_ARGUMENT, "')'"},
        {"a)", KVASIR_ERR_ARGUMENT, "character 1"},
        {"[b-a]", KVASIR_ERR_ARGUMENT, "ends before"},
        {"*", KVASIR_ERR_ARGUMENT, "nothing to repeat"},
        {"a\\", KVASIR_ERR_ARGUMENT, "backslash"},
        {"(?i)a", KVASIR_ERR_ARGUMENT, "no group begins so"},
        {"(a)\\1", KVASIR_ERR_UNSUPPORTED, "back references"},
        {"(?<=a)b", KVASIR_ERR_UNSUPPORTED, "looking behind"},
        {"(a{1000}){1000}", KVASIR_ERR_UNSUPPORTED, "allowed"},
        {"((((a{99}){99}){99}){99}){99}", KVASIR_ERR_UNSUPPORTED, "allowed"},
        {"(a|b)*a(a|b){40}x", KVASIR_ERR_UNSUPPORTED, "allowed"},
        {"((()*)*){1000000}", KVASIR_ERR_UNSUPPORTED, "allowed"},
        {"(?:(?:(?:){99999}){99999}){99999}", KVASIR_ERR_UNSUPPORTED, "allowed"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct grammar_budget b = budget();
        struct language *l = NULL;
        kvasir_error err = {0};
        const clock_t begin = clock();
        const kvasir_status code = language_regex(&b, span(CASES[i].expression), false, &l, &err);
        const double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
        if (code != CASES[i].code || !strstr(err.text, CASES[i].why))
            fail_msg("%s: %d, %s", CASES[i].expression, (int)code, err.text);
        if (seconds > 2) /* 0.1 without sanitizers on an idle machine */
            fail_msg("%s: %g seconds", CASES[i].expression, seconds);
    }
}

/* ---- operations ------------------------------------------------------------------------------ */

static uint32_t next_random(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static const char *random_text(uint32_t *seed, uint32_t *characters) {
    static const char *const PIECES[] = {"a", "b", "ab", "1", "\xc3\xa9", "\xf0\x9f\x98\x80"};
    static char text[64];
    text[0] = '\0';
    *characters = 0;
    for (uint32_t n = next_random(seed) % 6; n > 0; n--) {
        const char *piece = PIECES[next_random(seed) % 6];
        strcat(text, piece);
        *characters += strcmp(piece, "ab") == 0 ? 2 : 1;
    }
    return text;
}

/* From each place of a text that is reached there is a way to the end: some byte can come, or it is
 * the end. */
static void walk(const struct language *l, const char *text, bool contained) {
    struct language_at at = language_start(l);
    size_t i = 0;
    bool good = at.state != 0;
    for (; good && text[i]; i++) {
        bool on = language_accepts(l, at);
        for (int byte = 0; byte < 256 && !on; byte++) {
            struct language_at to = at;
            on = language_step(l, &to, (uint8_t)byte);
        }
        assert_true(on);
        good = language_step(l, &at, (uint8_t)text[i]);
    }
    assert_int_equal(good && language_accepts(l, at), contained);
}

static void test_operations(void **state) {
    (void)state;
    static const char *const X[] = {"^(ab)*$", "a.*1", "^[^b]*$", "^(?!a)"}, *const Y[] = {
                                                                                 "b", "^.{2,4}$",
                                                                                 "\xc3\xa9$",
                                                                                 "^(a|b)+$"};
    uint32_t seed = 1;
    for (int i = 0; i < 16; i++) {
        struct language *x = regex(X[i / 4], false), *y = regex(Y[i % 4], false);
        struct language *both = combined('&', language_retain(x), language_retain(y));
        struct language *either = combined('|', language_retain(x), language_retain(y));
        struct language *not_x = combined('!', language_retain(x), NULL);
        struct language *sized = combined('&', language_retain(x), any(3, 4));
        struct language *not_sized = combined('!', language_retain(sized), NULL);
        for (int k = 0; k < 400; k++) {
            uint32_t n;
            const char *text = random_text(&seed, &n);
            const bool in_x = language_contains(x, span(text)),
                       in_y = language_contains(y, span(text)), fits = n >= 3 && n <= 4;
            walk(both, text, in_x && in_y);
            walk(either, text, in_x || in_y);
            walk(not_x, text, !in_x);
            walk(sized, text, in_x && fits);
            walk(not_sized, text, !(in_x && fits));
        }
        language_release(x);
        language_release(y);
        language_release(both);
        language_release(either);
        language_release(not_x);
        language_release(sized);
        language_release(not_sized);
    }
}

static void test_bounds(void **state) {
    (void)state;
    struct language *l = combined('&', regex("^(ab)*$", false), any(3, 3));
    assert_true(language_is_empty(l)); /* all have an even number */
    language_release(l);
    l = combined('&', regex("^(ab)*$", false), any(3, 5));
    assert_true(language_contains(l, span("abab")));
    assert_false(language_contains(l, span("ab")));
    language_release(l);
    l = any(0, LANGUAGE_UNBOUNDED);
    assert_true(language_is_any(l));
    language_release(l);
    l = any(2, 3);
    struct language_at at = language_start(l);
    assert_int_equal(language_room(l, at), 0);
    assert_true(language_contains(l, span("\xc3\xa9\xc3\xa9")));
    assert_false(language_contains(l, span("\xc3\xa9")));
    assert_false(language_contains(l, span("\x80\x80")));
    language_release(l);
    l = any(5, 4);
    assert_true(language_is_empty(l));
    language_release(l);
    l = any(3000000000u, 4000000000u); /* nothing is expanded */
    assert_false(language_is_empty(l));
    language_release(l);
}

static void test_literals(void **state) {
    (void)state;
    const struct text_span strings[] = {
        span("one"), span("on"), span(""), span("\xc3\xa9"), {"a\0b", 3}};
    struct grammar_budget b = budget();
    struct language *l;
    kvasir_error err;
    assert_int_equal(language_literals(&b, strings, 5, &l, &err), KVASIR_OK);
    for (size_t i = 0; i < 5; i++)
        assert_true(language_contains(l, strings[i]));
    assert_false(language_contains(l, span("o")));
    struct language_at at = language_start(l);
    assert_true(language_takes_any_of(l, at, 0xe0, 0xef));
    assert_false(language_takes_any_of(l, at, 0xf0, 0xffff));
    language_release(l);
    assert_int_equal(language_literals(&b, NULL, 0, &l, &err), KVASIR_OK);
    assert_true(language_is_empty(l));
    language_release(l);
}

static void test_formats(void **state) {
    (void)state;
    static const struct {
        const char *name, *good, *bad;
    } CASES[] = {
        {"date", "2024-02-29", "2023-02-29"},
        {"time", "12:00:00Z", "24:00:00Z"},
        {"date-time", "1990-12-31T23:59:60Z", "1990-12-31T15:59:60Z"},
        {"duration", "P4DT12H30M5S", "PT1D"},
        {"email", "joe@example.com", "2962"},
        {"hostname", "www.example.com", "-a-"},
        {"ipv4", "192.168.0.1", "256.1.1.1"},
        {"ipv6", "::ffff:1.2.3.4", "12345::"},
        {"uri", "http://a.b/c?d#e", "//a"},
        {"uri-reference", "/abc", "\\\\x"},
        {"iri", "http://\xc3\xa9.x", "abc"},
        {"uuid", "2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2eb8aa08"},
        {"json-pointer", "/a~0b/", "/a~2"},
        {"relative-json-pointer", "0#", "01/a"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct grammar_budget b = budget();
        struct language *l;
        kvasir_error err = {0};
        if (language_format(&b, CASES[i].name, &l, &err))
            fail_msg("%s: %s", CASES[i].name, err.text);
        if (!language_contains(l, span(CASES[i].good)) || language_contains(l, span(CASES[i].bad)))
            fail_msg("%s", CASES[i].name);
        language_release(l);
    }
    struct grammar_budget b = budget();
    struct language *l;
    kvasir_error err;
    assert_int_equal(language_format(&b, "colour", &l, &err), KVASIR_ERR_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expressions), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_operations),  cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_literals),    cmocka_unit_test(test_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
