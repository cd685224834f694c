/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of numbers against exact fractions (numbers_cases.txt: drawn at random, "W,>=0,*0.5", a
 * number's text, and whether it is in the set, as Python's fractions say): what is in a set is
 * taken byte by byte, and no beginning that is taken is a dead end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/numbers.h"

#include <cmocka.h>

static kvasir_error err;
static struct grammar_budget budget;

static struct text_span span(const char *text) {
    return (struct text_span){text, strlen(text)};
}

static kvasir_status keep_last(void *user, struct numbers *made, kvasir_error *unused) {
    (void)unused;
    numbers_release(*(struct numbers **)user);
    *(struct numbers **)user = made;
    return KVASIR_OK;
}

/* W: whole; *M: multiples of M; !M: all others; >= <= > <: bounds; =V: one number; else all. */
static struct numbers *part(const char *word) {
    static const struct {
        const char *sign;
        enum numbers_bound bound;
    } BOUNDS[] = {
        {">=", AT_LEAST}, {"<=", AT_MOST}, {">", MORE_THAN}, {"<", LESS_THAN}, {"=", EQUAL_TO}};
    struct numbers *n = NULL;
    kvasir_status status = KVASIR_OK;
    if (*word == 'W')
        status = numbers_whole(&budget, &n, &err);
    else if (*word == '*')
        status = numbers_multiple(&budget, span(word + 1), &n, &err);
    else if (*word == '!') {
        struct numbers *of;
        status = numbers_multiple(&budget, span(word + 1), &of, &err);
        if (!status) {
            status = numbers_not(&budget, of, keep_last, &n, &err);
            numbers_release(of);
        }
    } else if (*word == 'A')
        status = numbers_any(&budget, &n, &err);
    for (size_t i = 0; !n && i < sizeof BOUNDS / sizeof *BOUNDS; i++)
        if (strncmp(word, BOUNDS[i].sign, strlen(BOUNDS[i].sign)) == 0)
            status = numbers_bounded(&budget, BOUNDS[i].bound, span(word + strlen(BOUNDS[i].sign)),
                                     &n, &err);
    if (status || !n)
        fail_msg("%s: %s", word, err.text);
    return n;
}

static struct numbers *set(const char *words) {
    char copy[256], *save, *word;
    budget = (struct grammar_budget){.steps = 10000000, .bytes = 64 << 20};
    snprintf(copy, sizeof copy, "%s", words);
    struct numbers *all = part("A");
    for (word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
        struct numbers *one = part(word), *both;
        assert_int_equal(numbers_and(&budget, all, one, &both, &err), KVASIR_OK);
        numbers_release(all);
        numbers_release(one);
        all = both;
    }
    return all;
}

static bool begins(const struct numbers *n, const char *text) {
    return numbers_can_begin(n, span(text));
}

/* Random bytes that are taken, until a number is complete. */
static void check_no_dead_ends(const struct numbers *n, const char *words, unsigned seed) {
    static const char BYTES[] = "-+.eE0123456789";
    char text[NUMBER_BYTES_MAX + 2] = "";
    if (numbers_is_empty(n))
        return;
    for (size_t len = 0; len < NUMBER_BYTES_MAX; len++) {
        char taken[sizeof BYTES];
        unsigned k = 0;
        for (const char *byte = BYTES; *byte; byte++) {
            text[len] = *byte;
            if (numbers_can_begin(n, (struct text_span){text, len + 1}))
                taken[k++] = *byte;
        }
        text[len] = 0;
        seed = seed * 1103515245 + 12345;
        const bool ends = numbers_contains(n, span(text));
        if (ends && (k == 0 || (seed >> 16) % 4 == 0))
            return;
        if (k == 0)
            fail_msg("%s: dead end at '%s'", words, text);
        text[len] = taken[(seed >> 20) % k];
    }
}

/* A point and digits as long as they are taken: then the last digits must leave an exponent that
 * makes it one of the set. */
static void test_full_fractions(void **state) {
    static const char *const SETS[] = {
        "<-100000,!429,!6,!7,*33",
        "<-100000,!429,*44,*12",
        ">1e60,!3,!10",
        "!3,<0,!0.001",
        ">=1e60,*7",
        "*0.07,!0.5,>1e20",
        "!7,!9,!13",
        ">=1,<1e6,!1e-60",
    };
    (void)state;
    for (unsigned i = 0; i < 40 * sizeof SETS / sizeof *SETS; i++) {
        const char *words = SETS[i / 40];
        struct numbers *n = set(words);
        const bool negative = begins(n, "-") && !begins(n, "1");
        char text[NUMBER_BYTES_MAX + 2] = "-", *start = text + negative;
        unsigned seed = i * 2654435761u;
        for (size_t len = 0; len < 100; len++) {
            char taken[10];
            unsigned k = 0;
            for (char digit = '0'; len != 1 && digit <= '9'; digit++) {
                start[len] = digit;
                start[len + 1] = 0;
                if (len ? begins(n, text) : digit > '0' && begins(n, text))
                    taken[k++] = digit;
            }
            seed = seed * 1103515245 + 12345;
            start[len] = len == 1 ? '.' : k ? taken[(seed >> 16) % k] : 0;
            if (!start[len])
                break;
        }
        const size_t len = strlen(text);
        if (!begins(n, text) ||
            (!begins(n, strcat(text, "e")) && (text[len] = 0, !numbers_contains(n, span(text)))))
            fail_msg("%s: dead end at '%s'", words, text);
        numbers_release(n);
    }
}

static void test_cases(void **state) {
    (void)state;
    FILE *file = fopen(SOURCE_DIR "/tests/unit/numbers_cases.txt", "r");
    char line[1024];
    int n = 0;
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        char *text = strchr(line, '\t'), *wanted;
        assert_non_null(text);
        *text++ = 0;
        wanted = strchr(text, '\t');
        assert_non_null(wanted);
        *wanted++ = 0;
        struct numbers *s = set(line);
        const bool in = *wanted == '1';
        if (numbers_contains(s, span(text)) != in)
            fail_msg("%s %s: not %d", line, text, in);
        for (size_t i = 1; in && i <= strlen(text); i++)
            if (!numbers_can_begin(s, (struct text_span){text, i}))
                fail_msg("%s %s: refused at %zu", line, text, i);
        if (n++ % 8 == 0)
            check_no_dead_ends(s, line, (unsigned)n);
        numbers_release(s);
    }
    fclose(file);
    assert_true(n > 700);
}

static void test_beginnings(void **state) {
    (void)state;
    struct numbers *n = set("W,>=10,<=99");
    assert_true(begins(n, "1") && begins(n, "10") && begins(n, "10.0") && begins(n, "1e1"));
    assert_false(begins(n, "0") || begins(n, "100") || begins(n, "-") || begins(n, "10.5") ||
                 begins(n, "1e2") || begins(n, "100e-"));
    numbers_release(n);
    n = set(">0,<1");
    assert_true(begins(n, "0") && begins(n, "0.") && begins(n, "0.5") && begins(n, "1e-07"));
    assert_false(begins(n, "-") || begins(n, "0e") ||
                 begins(n, "1."
                           "5e+"));
    numbers_release(n);
    n = set("<-5"); /* the sign is not known yet */
    assert_true(begins(n, "") && begins(n, "-"));
    assert_false(begins(n, "1"));
    numbers_release(n);
    n = set("*1000003,*999983"); /* what is a multiple of both is far away */
    assert_true(begins(n, "") && begins(n, "999985999949"));
    numbers_release(n);
    n = set("A");
    assert_true(begins(n, "-") && begins(n, "-0.0e+99"));
    assert_false(begins(n, "01") || begins(n, "+") || begins(n, ".") || begins(n, "1.e") ||
                 begins(n, "1e000"));
    numbers_release(n);
}

/* Numbers near 0 need an exponent, whose digits are few, and digits after the point. */
static void test_near_zero(void **state) {
    (void)state;
    struct numbers *n = set("=1e-100");
    check_no_dead_ends(n, "=1e-100", 1);
    assert_true(begins(n, "0.0") && begins(n, "0.1e-99") && begins(n, "0.001e-97"));
    assert_false(begins(n, "1") || begins(n, "0.1e-98") || begins(n, "0e"));
    numbers_release(n);
    n = set(">0,<1e-150");
    check_no_dead_ends(n, ">0,<1e-150", 2);
    assert_false(begins(n, "1"));
    numbers_release(n);
}

static void test_empty_sets(void **state) {
    (void)state;
    static const struct {
        const char *words;
        bool empty;
    } CASES[] = {
        {"W,>0,<1", true},       {"*3,>=1,<=2", true},   {">1,<1", true},     {">=1,<=1", false},
        {">1,<=1", true},        {"*0.5,>0.5,<1", true}, {"W", false},        {"<-5,W", false},
        {"*7,>=14,<=14", false}, {"W,>=1e70", true},     {"W,<=-1e70", true}, {">=1e70", false},
        {"<=-1e70", false},      {">=1e300", true},      {"=1e-163", false},  {"=1e-164", true}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct numbers *n = set(CASES[i].words);
        if (numbers_is_empty(n) != CASES[i].empty)
            fail_msg("%s", CASES[i].words);
        numbers_release(n);
    }
}

/* ---- complements ----------------------------------------------------------------------------- */

struct parts {
    struct numbers *all[8];
    size_t n;
};

static kvasir_status keep_part(void *user, struct numbers *one, kvasir_error *error) {
    struct parts *p = user;
    (void)error;
    assert_true(p->n < 8);
    p->all[p->n++] = one;
    return KVASIR_OK;
}

static void test_complements(void **state) {
    (void)state;
    static const char *const SETS[] = {"A", "W", "W,>=3,<7", "*0.5,>-2", "=4", ">=1,<=1,W"};
    static const char *const TEXTS[] = {"0",  "1",    "3", "7",   "6.5",
                                        "-2", "-1.5", "4", "4.0", "0.25"};
    for (size_t i = 0; i < sizeof SETS / sizeof *SETS; i++) {
        struct numbers *n = set(SETS[i]);
        struct parts p = {.n = 0};
        assert_int_equal(numbers_not(&budget, n, keep_part, &p, &err), KVASIR_OK);
        for (size_t k = 0; k < sizeof TEXTS / sizeof *TEXTS; k++) {
            bool in = false;
            for (size_t j = 0; j < p.n; j++)
                in |= numbers_contains(p.all[j], span(TEXTS[k]));
            if (in == numbers_contains(n, span(TEXTS[k])))
                fail_msg("%s %s", SETS[i], TEXTS[k]);
        }
        for (size_t j = 0; j < p.n; j++)
            numbers_release(p.all[j]);
        numbers_release(n);
    }
}

/* Digits that do not matter give the same key. */
static void test_keys(void **state) {
    (void)state;
    struct text_buf a = {0}, b = {0};
    struct numbers *n = set("W,>=10");
    assert_true(numbers_key(n, span("123"), &a) && numbers_key(n, span("456"), &b));
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.data, b.data, a.len);
    b.len = 0;
    assert_true(numbers_key(n, span("5"), &b));
    assert_false(a.len == b.len && memcmp(a.data, b.data, a.len) == 0);
    text_free(&a);
    text_free(&b);
    numbers_release(n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),      cmocka_unit_test(test_full_fractions),
        cmocka_unit_test(test_beginnings), cmocka_unit_test(test_near_zero),
        cmocka_unit_test(test_empty_sets), cmocka_unit_test(test_complements),
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
