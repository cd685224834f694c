/* SPDX-License-Identifier: Apache-2.0 */
/* Normalizers: every character of Unicode, every pair that composes and random texts in all four
 * normal forms against utf8proc's own functions; the other steps by hand; runs of accents that take
 * quadratic time elsewhere; limits on growth.
 *
 * Bugs that were planted and found: ranges of sure characters (which normalization never touches)
 * extended to U+0E38 (an accent) or U+1161 (composes with the character before it), accents sorted
 * the wrong way or by insertion at any length (time), a run without the sure character before it,
 * U+0130 lowercased to a plain i.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/tokenizer_internal.h"
#include "text/unicode.h"

#include "text_checks.h"

static struct normalizer one_step(enum normalizer_kind kind) {
    return (struct normalizer){.step = {{.kind = kind}}, .n = 1};
}

static struct normalizer_scratch scratch;

static struct text_span run(const struct normalizer *n, const char *text, size_t len) {
    struct text_span out;
    kvasir_error err = {0};
    if (normalizer_run(n, &scratch, (struct text_span){text, len}, &out, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    return out;
}

static void check(enum normalizer_kind form, const char *text, size_t len) {
    static const utf8proc_option_t options[] = {
        [NORMALIZE_NFC] = UTF8PROC_COMPOSE,
        [NORMALIZE_NFD] = UTF8PROC_DECOMPOSE,
        [NORMALIZE_NFKC] = UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [NORMALIZE_NFKD] = UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    uint8_t *want;
    utf8proc_ssize_t n = utf8proc_map((const uint8_t *)text, (utf8proc_ssize_t)len, &want,
                                      options[form] | UTF8PROC_STABLE);
    assert_true(n >= 0);
    struct normalizer normalizer = one_step(form);
    struct text_span got = run(&normalizer, text, len);
    if (got.len != (size_t)n || memcmp(got.data, want, (size_t)n) != 0) {
        for (size_t i = 0; i < len; i++)
            print_error(" %02x", (uint8_t)text[i]);
        fail_msg(" differs in form %d", form);
    }
    free(want);
}

static bool is_surrogate(uint32_t c) {
    return c >= 0xd800 && c < 0xe000;
}

static void test_every_character(void **state) {
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        char text[16];
        if (is_surrogate(c))
            continue;
        for (enum normalizer_kind form = NORMALIZE_NFC; form <= NORMALIZE_NFKD; form++)
            check(form, text, utf8_put(text, c));
        /* After a letter and an accent, and between two accents. */
        size_t len = utf8_put(text, 'a');
        len += utf8_put(text + len, 0x301);
        len += utf8_put(text + len, c);
        check(NORMALIZE_NFC, text, len);
        len += utf8_put(text + len, 0x323);
        check(NORMALIZE_NFC, text, len);
    }
}

/* Every sequence that composes in Unicode is the decomposition of some character. */
static void test_every_pair(void **state) {
    (void)state;
    int pairs = 0;
    for (uint32_t c = 0; c < 0x110000; c++) {
        int32_t parts[18];
        int class = 0;
        utf8proc_ssize_t n =
            is_surrogate(c) ? 1
                            : utf8proc_decompose_char((int32_t)c, parts, 18,
                                                      UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &class);
        char text[80];
        size_t len = 0;
        for (utf8proc_ssize_t i = 0; i < n && n > 1; i++)
            len += utf8_put(text + len, (uint32_t)parts[i]);
        if (n < 2)
            continue;
        check(NORMALIZE_NFC, text, len);
        len += utf8_put(text + len, 0x323); /* sorts before most accents */
        check(NORMALIZE_NFC, text, len);
        pairs++;
    }
    assert_true(pairs > 12000); /* 11,172 of them Hangul */
}

static void test_random_texts(void **state) {
    (void)state;
    static const uint32_t likely[] = {'a',    ' ',    0x301,  0x323,  0x327, 0xe9,   0x1100, 0x1161,
                                      0x11a8, 0xac00, 0x3099, 0x304b, 0xf73, 0x1d5a, 0xfb01, 0xfdfa,
                                      0x212b, 0x0958, 0x4e00, 0x430,  0x308, 0x2019};
    for (int round = 0; round < 20000; round++) {
        char text[4 * 40];
        size_t len = 0, chars = rng(40);
        if (round % 4 == 0)
            len = random_text(text, chars);
        else
            for (size_t i = 0; i < chars; i++)
                len += utf8_put(text + len, likely[rng(sizeof likely / sizeof likely[0])]);
        for (enum normalizer_kind form = NORMALIZE_NFC; form <= NORMALIZE_NFKD; form++)
            check(form, text, len);
    }
}

/* A text that is normal already is not copied. */
static void test_untouched(void **state) {
    (void)state;
    static const char *const texts[] = {"", "plain text\r\n", "\xc3\xa9t\xc3\xa9",
                                        "\xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82",
                                        "\xe4\xb8\xad\xe6\x96\x87 \xea\xb0\x80 \xe3\x81\x8b"};
    struct normalizer nfc = one_step(NORMALIZE_NFC);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_ptr_equal(run(&nfc, texts[i], strlen(texts[i])).data, texts[i]);
}

static void check_steps(const struct normalizer *n, const char *text, const char *want) {
    struct text_span got = run(n, text, strlen(text));
    assert_int_equal(got.len, strlen(want));
    assert_memory_equal(got.data, want, got.len);
}

static void test_other_steps(void **state) {
    (void)state;
    struct normalizer n = one_step(NORMALIZE_LOWERCASE);
    check_steps(&n, "ABC \xc3\x89 \xce\xa3 x", "abc \xc3\xa9 \xcf\x83 x");
    check_steps(&n, "\xc4\xb0", "i\xcc\x87"); /* U+0130 */
    n = (struct normalizer){.step = {{.kind = NORMALIZE_STRIP, .left = true}}, .n = 1};
    check_steps(&n, " \t\xe3\x80\x80x ", "x ");
    check_steps(&n, " \n", "");
    n.step[0].right = true;
    check_steps(&n, " \t\xe3\x80\x80x\xc2\x85 ", "x");
    check_steps(&n, "x", "x");
    n = (struct normalizer){
        .step = {{.kind = NORMALIZE_PREPEND, .to = "<>", .to_len = 2},
                 {.kind = NORMALIZE_REPLACE, .from = "<", .from_len = 1, .to = "a<", .to_len = 2},
                 {.kind = NORMALIZE_REPLACE, .from = "aa", .from_len = 2, .to = "", .to_len = 0}},
        .n = 3};
    check_steps(&n, "", "");
    check_steps(&n, "x", "a<>x");
    check_steps(&n, "aaa<aa<", "a<><a<"); /* first a<>aaaa<aaa<, then pairs of a removed */
    check_steps(&n, "a", "a<>a");
}

static void test_limits(void **state) {
    (void)state;
    enum { LEN = 4096 };
    char text[LEN];
    memset(text, ' ', LEN);
    struct normalizer n = {.step = {{.kind = NORMALIZE_REPLACE, .from = " ", .from_len = 1}},
                           .n = 1};
    memset(n.step[0].to, ' ', NORMALIZER_TEXT_MAX);
    n.step[0].to_len = 16;
    assert_int_equal(run(&n, text, LEN).len, 16 * LEN);
    n.step[0].to_len = NORMALIZER_TEXT_MAX;
    struct text_span out;
    kvasir_error err = {0};
    assert_int_equal(normalizer_run(&n, &scratch, (struct text_span){text, LEN}, &out, &err),
                     KVASIR_ERR_TEXT);
    assert_non_null(strstr(err.text, "too long"));
    assert_true(scratch.text[0].len < 20 * LEN); /* it stopped soon */
}

/* A long run of accents out of order must be sorted in less than quadratic time. */
static void test_time(void **state) {
    (void)state;
    char *text = malloc(MEGABYTE + 1);
    size_t len = utf8_put(text, 'a');
    for (int i = 0; len + 2 <= MEGABYTE; i++)
        len += utf8_put(text + len, i % 2 ? 0x327 : 0x308); /* classes 202 and 230 */
    struct normalizer n = one_step(NORMALIZE_NFC);
    double start = cpu_seconds();
    struct text_span out = run(&n, text, len);
    double took = cpu_seconds() - start;
    print_message("accents: %zu bytes, %.3f s\n", len, took);
    assert_true(took < MEGABYTE_SECONDS);
    assert_memory_equal(out.data, "\xc3\xa4\xcc\xa7\xcc\xa7", 6); /* the first U+0308 composes */
    assert_memory_equal(out.data + out.len - 2, "\xcc\x88", 2);
    free(text);
}

static int free_scratch(void **state) {
    (void)state;
    normalizer_scratch_deinit(&scratch);
    return 0;
}

/* UTS 18: \w has the letters in squares and circles, too. */
static void test_words(void **state) {
    (void)state;
    static const uint32_t words[] = {'a',     '_',     '9',     0x24b6,  0x24e9, 0x1f130, 0x1f149,
                                     0x1f150, 0x1f169, 0x1f170, 0x1f189, 0x200c, 0x200d},
                          others[] = {' ',     '-',     0x24b5,  0x24ea,  0x1f12f, 0x1f14a,
                                      0x1f14f, 0x1f16a, 0x1f16f, 0x1f18a, 0x200b,  0x200e};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        assert_true(is_word(words[i]));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(is_word(others[i]));
}

int main(void) {
    rng_start(20250411);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_character), cmocka_unit_test(test_every_pair),
        cmocka_unit_test(test_random_texts),    cmocka_unit_test(test_untouched),
        cmocka_unit_test(test_words),           cmocka_unit_test(test_other_steps),
        cmocka_unit_test(test_limits),          cmocka_unit_test(test_time),
    };
    return cmocka_run_group_tests(tests, NULL, free_scratch);
}
