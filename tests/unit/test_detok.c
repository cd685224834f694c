/* SPDX-License-Identifier: Apache-2.0 */
/* The detokenizer and the UTF-8 check: every character of Unicode and every short byte string
 * against the definition; broken text against Python's bytes.decode(errors="replace") (recorded
 * from Python 3.11); and neither the place of a cut nor the size of a token changes the output.
 *
 * Bugs that were planted and found: the byte that interrupts a character swallowed, surrogates
 * accepted, held bytes skipped by the fast path.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text_checks.h"

#define FFFD "\xef\xbf\xbd"

/* One character by the definition: decode it leniently, encode it again, and compare the bytes. */
static bool is_one_character(const uint8_t *s, size_t n) {
    uint32_t c = n == 1 ? s[0] : n == 2 ? s[0] & 0x1fu : n == 3 ? s[0] & 0x0fu : s[0] & 0x07u;
    for (size_t i = 1; i < n; i++)
        c = c << 6 | (s[i] & 0x3fu);
    uint8_t again[4];
    return c < 0x110000 && (c < 0xd800 || c > 0xdfff) && utf8_put((char *)again, c) == n &&
           memcmp(again, s, n) == 0;
}

static void test_utf8_check(void **state) {
    (void)state;
    /* All strings of three bytes that begin with a lead byte, and of four that begin with a lead
     * byte of four (the last byte in steps of four). */
    uint64_t accepted = 0;
    for (uint32_t bits = 0; bits < 1u << 24; bits++) {
        const uint8_t s[3] = {(uint8_t)(bits >> 16), (uint8_t)(bits >> 8), (uint8_t)bits};
        if (s[0] < 0xc0) /* a character of one byte, or invalid: the rest is another case */
            continue;
        bool ok = utf8_check((const char *)s, 3) == 3;
        bool want = is_one_character(s, 3) || (is_one_character(s, 2) && s[2] < 0x80);
        if (ok != want)
            fail_msg("%02x %02x %02x", s[0], s[1], s[2]);
        accepted += ok && s[0] >= 0xe0;
    }
    assert_int_equal(accepted, 0x10000 - 0x800 - 0x800); /* three-byte characters, no surrogates */
    accepted = 0;
    for (uint32_t bits = 0; bits < 1u << 24; bits++) {
        const uint8_t s[4] = {(uint8_t)(0xf0 | bits >> 21), (uint8_t)(bits >> 13),
                              (uint8_t)(bits >> 5), (uint8_t)(0x80 | (bits & 0x1f) * 4)};
        bool ok = utf8_check((const char *)s, 4) == 4;
        if (ok != is_one_character(s, 4))
            fail_msg("%02x %02x %02x %02x", s[0], s[1], s[2], s[3]);
        accepted += ok;
    }
    assert_int_equal(accepted, 0x100000 / 4);
    for (uint32_t c = 0; c < 0x110000; c++) {
        uint8_t s[4];
        size_t n = utf8_put((char *)s, c);
        bool surrogate = c >= 0xd800 && c < 0xe000;
        assert_int_equal(utf8_check((const char *)s, n), surrogate ? 0 : n);
        for (size_t cut = 1; cut < n; cut++)
            assert_int_equal(utf8_check((const char *)s, cut), 0);
    }
    /* The eight-byte stride: an invalid byte at every place of a longer text. */
    for (size_t at = 0; at < 40; at++) {
        char text[40];
        memset(text, 'x', sizeof text);
        text[at] = (char)0x80;
        assert_int_equal(utf8_check(text, sizeof text), at);
    }
    assert_int_equal(utf8_check("", 0), 0);
}

/* Pushes text in tokens of random sizes up to `most` (0: all at once) and checks every step. */
static struct text_buf run(const uint8_t *text, size_t len, size_t most) {
    struct detok d = {0};
    struct text_buf out = {0};
    for (size_t at = 0; at < len;) {
        size_t n = most ? rng((uint32_t)most + 1) : len;
        n = n > len - at ? len - at : n;
        assert_true(detok_push(&d, (struct text_span){(const char *)text + at, n}, &out));
        at += n;
        assert_int_equal(utf8_check(out.data, out.len), out.len);
        assert_true(d.n_held < 4);
    }
    assert_true(detok_finish(&d, &out));
    assert_int_equal(d.n_held, 0);
    return out;
}

static void test_every_cut(void **state) {
    (void)state;
    for (int round = 0; round < 300; round++) {
        uint8_t text[4 * 12];
        size_t len = 0;
        for (uint32_t chars = 1 + rng(11); chars > 0; chars--) {
            const uint32_t limits[] = {0x80, 0x800, 0xd800, 0x110000};
            uint32_t c = rng(limits[rng(4)]);
            len += utf8_put((char *)text + len, c >= 0xd800 && c < 0xe000 ? 'x' : c);
        }
        for (size_t a = 0; a <= len; a++) /* three tokens, with both cuts at every place */
            for (size_t b = a; b <= len; b++) {
                struct detok d = {0};
                struct text_buf out = {0};
                const size_t cuts[] = {0, a, b, len};
                for (int k = 0; k < 3; k++) {
                    const char *from = (const char *)text + cuts[k];
                    assert_true(
                        detok_push(&d, (struct text_span){from, cuts[k + 1] - cuts[k]}, &out));
                    /* All complete characters have come out; only the rest is held. */
                    assert_int_equal(out.len + d.n_held, cuts[k + 1]);
                    assert_int_equal(utf8_check(out.data, out.len), out.len);
                }
                assert_int_equal(d.n_held, 0);
                assert_memory_equal(out.data, text, len);
                text_free(&out);
            }
    }
}

static void test_broken_bytes(void **state) {
    (void)state;
    static const struct {
        const char *bytes, *want;
    } cases[] = {
        {"\x80", FFFD},
        {"a\xff"
         "b",
         "a" FFFD "b"},
        {"\xc3", FFFD},
        {"\xc3(", FFFD "("},
        {"\xe2\x82", FFFD},
        {"\xe2\x82(", FFFD "("},
        {"\xe2\x82\xe2\x82\xac", FFFD "\xe2\x82\xac"},
        {"\xf0\x9f\x98", FFFD},
        {"\xf0\x9f\x98"
         "a",
         FFFD "a"},
        {"\xf0\x9f\xf0\x9f\x98\x80", FFFD "\xf0\x9f\x98\x80"},
        {"\xc0\xaf", FFFD FFFD},
        {"\xed\xa0\x80", FFFD FFFD FFFD},
        {"\xf4\x90\x80\x80", FFFD FFFD FFFD FFFD},
        {"\xf8\x88\x80\x80\x80", FFFD FFFD FFFD FFFD FFFD},
        {"\xe0\x9f\x80", FFFD FFFD FFFD},
        {"\xf0\x8f\x80", FFFD FFFD FFFD},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t most = 0; most < 3; most++) {
            struct text_buf out =
                run((const uint8_t *)cases[i].bytes, strlen(cases[i].bytes), most);
            assert_string_equal(out.data, cases[i].want);
            text_free(&out);
        }
}

static void test_cuts_of_random_bytes(void **state) {
    (void)state;
    /* Bytes that often form characters, and often broken ones. */
    static const uint8_t likely[] = {0x00, 'a',  0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc2,
                                     0xdf, 0xe0, 0xe1, 0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xff};
    for (int round = 0; round < 20000; round++) {
        uint8_t text[64];
        size_t len = rng(sizeof text) + 1;
        for (size_t i = 0; i < len; i++)
            text[i] = rng(8) ? likely[rng(sizeof likely)] : (uint8_t)rng(256);
        struct text_buf whole = run(text, len, 0), cut = run(text, len, 1 + rng(6));
        assert_int_equal(whole.len, cut.len);
        assert_memory_equal(whole.data, cut.data, whole.len);
        text_free(&whole);
        text_free(&cut);
    }
}

static void test_finish(void **state) {
    (void)state;
    struct detok d = {0};
    struct text_buf out = {0};
    assert_true(detok_finish(&d, &out));
    assert_int_equal(out.len, 0);
    assert_true(detok_push(&d, (struct text_span){"\xf0\x9f", 2}, &out));
    assert_int_equal(out.len, 0);
    assert_true(detok_push(&d, (struct text_span){"", 0}, &out));
    assert_true(detok_finish(&d, &out));
    assert_true(detok_finish(&d, &out));
    assert_string_equal(out.data, FFFD);
    assert_true(detok_push(&d, (struct text_span){"ok", 2}, &out)); /* starts afresh */
    assert_string_equal(out.data, FFFD "ok");
    text_free(&out);
}

int main(void) {
    rng_start(20250312);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8_check),   cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_broken_bytes), cmocka_unit_test(test_cuts_of_random_bytes),
        cmocka_unit_test(test_finish),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
