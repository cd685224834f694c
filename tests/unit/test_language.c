/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of strings: expressions against what Python's re says (language_cases.txt: s searches, w
 * matches the whole; drawn at random, where the two languages mean the same), operations against
 * their definition, bounds, formats, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/language.h"

#include <cmocka.h>

static kvasir_error err;

static struct grammar_budget budget(void) {
    return (struct grammar_budget){.steps = 10000000, .bytes = 64 << 20};
}

static struct text_span span(const char *text) {
    return (struct text_span){text, strlen(text)};
}

static struct language *regex(const char *expression, bool whole) {
    struct grammar_budget b = budget();
    struct language *l;
    if (language_regex(&b, span(expression), whole, &l, &err))
        fail_msg("%s: %s", expression, err.text);
    return l;
}

static bool has(const struct language *l, const char *string) {
    return language_contains(l, span(string));
}

/* Every step that is taken leads to a string of the language: along random ways, the shortest end
 * is near. */
static void check_no_dead_ends(const struct language *l, unsigned seed) {
    struct language_at at = language_start(l);
    for (int i = 0; i < 40 && at.state; i++) {
        uint8_t bytes[256];
        int n = 0;
        for (int byte = 0; byte < 256; byte++) {
            struct language_at to = at;
            if (language_step(l, &to, (uint8_t)byte))
                bytes[n++] = (uint8_t)byte;
        }
        assert_true(n > 0 || language_accepts(l, at));
        if (n == 0)
            return;
        seed = seed * 1103515245 + 12345;
        assert_true(language_step(l, &at, bytes[(seed >> 16) % (unsigned)n]));
    }
}

static void test_expressions(void **state) {
    (void)state;
    FILE *file = fopen(SOURCE_DIR "/tests/unit/language_cases.txt", "r");
    char line[1024];
    int n = 0;
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        char *expression = strchr(line, '\t'), *string, *wanted;
        assert_non_null(expression);
        *expression++ = 0;
        string = strchr(expression, '\t');
        assert_non_null(string);
        *string++ = 0;
        wanted = strchr(string, '\t');
        assert_non_null(wanted);
        *wanted++ = 0;
        struct language *l = regex(expression, *line == 'w');
        if (has(l, string) != (*wanted == '1'))
            fail_msg("%s %s '%s': not %c", line, expression, string, *wanted);
        check_no_dead_ends(l, (unsigned)n++);
        language_release(l);
    }
    fclose(file);
    assert_true(n > 1000);
}

static void test_what_ecma_262_has(void **state) {
    (void)state;
    static const struct {
        const char *expression, *good, *bad;
    } CASES[] = {
        {"^\\p{Lu}\\p{L}*$", "Ärger", "ärger"},
        {"^\\u00e9\\u{1F600}$", "é😀", "é"},
        {"^\\cJ\\x41\\-$", "\nA-", "A-"},
        {"^[\\d-x]+$", "1-x", "y"},
        {"^[^]$", "\n", ""},
        {"^a{,3}$", "a{,3}", "aa"},
        {"^(?<year>\\d{4})$", "2026", "26"},
        {"^(?!.*secret)(?=.*[0-9])[a-z0-9]+$", "abc1", "secret1"},
        {"^((?!ab).)*$", "ba", "cab"},
        {"(?<a>x)|^$", "", "y"},
        {"^.$", "😀", "\n"},
        {"^\\s$", "\xe2\x80\x83", "x"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct language *l = regex(CASES[i].expression, false);
        if (!has(l, CASES[i].good) || has(l, CASES[i].bad))
            fail_msg("%s", CASES[i].expression);
        check_no_dead_ends(l, 1);
        language_release(l);
    }
}

static void refused(const char *expression, kvasir_status code, const char *why) {
    struct grammar_budget b = budget();
    struct language *l;
    assert_int_equal(language_regex(&b, span(expression), false, &l, &err), code);
    if (!strstr(err.text, why))
        fail_msg("%s: %s", expression, err.text);
}

static void test_what_is_refused(void **state) {
    (void)state;
    refused("(a", KVASIR_ERR_ARGUMENT, "character 2: a group needs its ')'");
    refused("a)", KVASIR_ERR_ARGUMENT, "no group for this ')'");
    refused("[a", KVASIR_ERR_ARGUMENT, "a class needs its ']'");
    refused("[b-a]", KVASIR_ERR_ARGUMENT, "ends before it begins");
    refused("*a", KVASIR_ERR_ARGUMENT, "nothing to repeat");
    refused("a**", KVASIR_ERR_ARGUMENT, "nothing to repeat");
    refused("a{2,1}", KVASIR_ERR_ARGUMENT, "most is below its least");
    refused("\\", KVASIR_ERR_ARGUMENT, "ends with a backslash");
    refused("(a)\\1", KVASIR_ERR_UNSUPPORTED, "back references");
    refused("(?<=a)b", KVASIR_ERR_UNSUPPORTED, "looking behind");
    refused("(?=a)\\b", KVASIR_ERR_UNSUPPORTED, "\\b");
    refused("\\p{Klingon}", KVASIR_ERR_UNSUPPORTED, "general categories");
    refused("(a{1000}){1000}", KVASIR_ERR_UNSUPPORTED, "more time or memory");
    refused("(((a{100}){100}){100}){100}", KVASIR_ERR_UNSUPPORTED, "more time or memory");
    refused("(.*a){30}b(.*c){30}d.{30}", KVASIR_ERR_UNSUPPORTED, "more time or memory");
}

/* ---- operations ------------------------------------------------------------------------------ */

static void test_operations(void **state) {
    (void)state;
    static const char *const STRINGS[] = {"",    "a", "b",   "ab",  "abc",
                                          "aab", "é", "ééé", "cab", "😀a"};
    struct grammar_budget b = budget();
    struct language *x = regex("^a*b?$", false), *y = regex("b", false), *both, *either, *not_x;
    assert_int_equal(language_and(&b, x, y, &both, &err), KVASIR_OK);
    assert_int_equal(language_or(&b, x, y, &either, &err), KVASIR_OK);
    assert_int_equal(language_not(&b, x, &not_x, &err), KVASIR_OK);
    for (size_t i = 0; i < sizeof STRINGS / sizeof *STRINGS; i++) {
        const char *s = STRINGS[i];
        assert_int_equal(has(both, s), has(x, s) && has(y, s));
        assert_int_equal(has(either, s), has(x, s) || has(y, s));
        assert_int_equal(has(not_x, s), !has(x, s));
    }
    struct language *none;
    assert_int_equal(language_and(&b, x, not_x, &none, &err), KVASIR_OK);
    assert_true(language_is_empty(none));
    assert_false(language_is_empty(both));
    language_release(x), language_release(y), language_release(both);
    language_release(either), language_release(not_x), language_release(none);
}

static void test_literals(void **state) {
    (void)state;
    struct grammar_budget b = budget();
    const struct text_span strings[] = {
        span("on"), span("off"), span("on"), span("é"), {"\xff", 1}};
    struct language *l;
    assert_int_equal(language_literals(&b, strings, 5, &l, &err), KVASIR_OK);
    assert_true(has(l, "on") && has(l, "off") && has(l, "é"));
    assert_false(has(l, "o") || has(l, "onn") || has(l, "") || has(l, "\xff"));
    check_no_dead_ends(l, 3);
    language_release(l);
    assert_int_equal(language_literals(&b, NULL, 0, &l, &err), KVASIR_OK);
    assert_true(language_is_empty(l));
    language_release(l);
}

static struct language *bounded(const char *expression, uint32_t min, uint32_t max) {
    struct grammar_budget b = budget();
    struct language *bounds, *l, *x = regex(expression, false);
    assert_int_equal(language_any(&b, min, max, &bounds, &err), KVASIR_OK);
    assert_int_equal(language_and(&b, x, bounds, &l, &err), KVASIR_OK);
    language_release(x);
    language_release(bounds);
    return l;
}

/* Characters that may come behind `text` whatever they are; -1: it matters which. */
static int64_t room_behind(const struct language *l, const char *text) {
    struct language_at at = language_start(l);
    uint32_t room;
    for (; *text; text++)
        assert_true(language_step(l, &at, (uint8_t)*text));
    return language_room(l, at, &room) ? (int64_t)room : -1;
}

/* An expression that may match anywhere refuses nothing on the way. */
static void test_any_text(void **state) {
    (void)state;
    static const struct {
        const char *expression, *behind;
        bool any;
    } cases[] = {
        {"", "", true},           {"[0-9]{3}", "", true},      {"[0-9]{3}", "a12", true},
        {"a\u00e9$", "xa", true}, {"^a[^\\n]*$", "a", true},   {"^a.*$", "a", false},
        {"^[^ ]*$", "a", false},  {"^[^\u4e00]*$", "", false}, {"^(?!ab)", "", false},
        {"^(?!ab)", "ba", true},  {"^[a-z]+", "a", true},      {"^[a-z]+$", "a", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct language *l = regex(cases[i].expression, false);
        if ((room_behind(l, cases[i].behind) == LANGUAGE_UNBOUNDED) != cases[i].any)
            fail_msg("%s behind \"%s\"", cases[i].expression, cases[i].behind);
        language_release(l);
    }
    struct language *l = regex("a", false);
    assert_false(language_stays(l, language_start(l)));
    struct language_at at = language_start(l);
    assert_true(language_step(l, &at, 'a'));
    assert_true(language_stays(l, at));
    language_release(l);
}

static void test_bounds(void **state) {
    (void)state;
    struct language *l = bounded("", 2, 3); /* characters, not bytes */
    assert_true(has(l, "ab") && has(l, "éé😀"));
    assert_false(has(l, "é") || has(l, "abcd") || has(l, ""));
    assert_int_equal(room_behind(l, ""), 3);
    check_no_dead_ends(l, 4);
    language_release(l);
    l = bounded("^(ab)*$", 3, 3); /* nothing is as long */
    assert_true(language_is_empty(l));
    language_release(l);
    l = bounded("^(abc)*$", 4, 8); /* only 6 */
    assert_true(has(l, "abcabc"));
    assert_false(has(l, "abc") || has(l, "abcabcabc"));
    check_no_dead_ends(l, 5);
    language_release(l);
    l = bounded("", 5, 4);
    assert_true(language_is_empty(l));
    language_release(l);
    l = bounded("^[a-z]+$", 1, 60000); /* not expanded */
    assert_true(has(l, "abc"));
    assert_false(has(l, ""));
    language_release(l);
    l = bounded("", 0, 5);
    assert_int_equal(room_behind(l, ""), 5);
    assert_int_equal(room_behind(l, "a"), 4);
    assert_int_equal(room_behind(l, "abcde"), 0);
    language_release(l);
}

static void test_complements_of_bounds(void **state) {
    (void)state;
    struct grammar_budget b = budget();
    struct language *l = bounded("", 2, 3), *other;
    assert_int_equal(language_not(&b, l, &other, &err), KVASIR_OK);
    assert_true(has(other, "a") && has(other, "") && has(other, "abcd"));
    assert_false(has(other, "ab") || has(other, "ééé"));
    language_release(l), language_release(other);
    l = bounded("", 0, 70000); /* one side: stays a bound */
    assert_int_equal(language_not(&b, l, &other, &err), KVASIR_OK);
    assert_false(has(other, "ab"));
    assert_false(language_is_empty(other));
    language_release(l), language_release(other);
}

static void test_ranges_of_characters(void **state) {
    (void)state;
    struct language *l = regex("^[a-fé]", false);
    assert_true(language_takes_any_of(l, language_start(l), 'f', 0xffff));
    assert_false(language_takes_any_of(l, language_start(l), 'g', 0xe8));
    assert_false(language_takes_any_of(l, language_start(l), 0xd800, 0xdfff));
    language_release(l);
}

/* ---- formats --------------------------------------------------------------------------------- */

static void test_formats(void **state) {
    (void)state;
    static const struct {
        const char *format, *good, *bad;
    } CASES[] = {
        {"date", "2024-02-29", "2023-02-29"},
        {"time", "23:59:60Z", "24:00:00Z"},
        {"date-time", "2026-11-25T12:00:00.5+01:00", "2026-11-25 12:00:00Z"},
        {"duration", "P1Y2M3DT4H", "P1YT"},
        {"email", "a.b+c@example.org", "a..b@example.org"},
        {"hostname", "a-b.example", "-a.example"},
        {"ipv4", "192.168.0.1", "192.168.00.1"},
        {"ipv6", "2001:db8::1", "2001:db8:::1"},
        {"uri", "https://a.example/x?y#z", "//a/b"},
        {"uri-reference", "../x", "a b"},
        {"iri", "http://ƒøø.ßår/", "ƒøø"},
        {"uuid", "2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2eb8aa08"},
        {"json-pointer", "/a~1b", "/a~2"},
        {"relative-json-pointer", "0#", "01#"},
    };
    struct grammar_budget b;
    struct language *l;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        b = budget();
        if (language_format(&b, CASES[i].format, &l, &err))
            fail_msg("%s: %s", CASES[i].format, err.text);
        if (!has(l, CASES[i].good) || has(l, CASES[i].bad))
            fail_msg("%s", CASES[i].format);
        check_no_dead_ends(l, (unsigned)i);
        language_release(l);
    }
    b = budget();
    assert_int_equal(language_format(&b, "color", &l, &err), KVASIR_ERR_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expressions),
        cmocka_unit_test(test_what_ecma_262_has),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_operations),
        cmocka_unit_test(test_literals),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_any_text),
        cmocka_unit_test(test_complements_of_bounds),
        cmocka_unit_test(test_ranges_of_characters),
        cmocka_unit_test(test_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
