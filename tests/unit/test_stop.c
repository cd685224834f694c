/* SPDX-License-Identifier: Apache-2.0 */
/* Stop texts: the output is the text up to the first place where one begins, however the input is
 * cut into pieces, and no more is held back than necessary.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "text/text.h"

#include <cmocka.h>

enum { TEXT_MAX = 256, STOPS_MAX = 5 };

static kvasir_stop *make(const char *const *stops, size_t n) {
    kvasir_stop *s = NULL;
    kvasir_error err;
    assert_int_equal(kvasir_stop_create(stops, n, &s, &err), KVASIR_OK);
    return s;
}

/* The output for the pieces: '|' after each push and the finish, '#' instead where a stop text
 * ended it. Every piece and every output buffer is heap memory of exactly the allowed size. */
static char *feed(kvasir_stop *s, const char *const *pieces, size_t n) {
    static char all[TEXT_MAX];
    size_t at = 0, len;
    bool going = true;
    for (size_t i = 0; i <= n && going; i++) {
        size_t left = i < n ? strlen(pieces[i]) : 0;
        char *piece = malloc(left + 1), *out = malloc(left + kvasir_stop_hold(s) + 1);
        if (i < n) {
            memcpy(piece, pieces[i], left);
            going = kvasir_stop_push(s, piece, left, out, &len);
        } else {
            going = kvasir_stop_finish(s, out, &len);
        }
        assert_true(len <= left + kvasir_stop_hold(s));
        memcpy(all + at, out, len);
        at += len;
        all[at++] = going ? '|' : '#';
        free(piece);
        free(out);
    }
    all[at] = 0;
    return all;
}

/* two arguments: the texts and their number */
#define TEXTS(...)                                                                                 \
    (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)

static void check(const char *want, const char *const *stops, size_t n_stops,
                  const char *const *pieces, size_t n) {
    kvasir_stop *s = make(stops, n_stops);
    assert_string_equal(feed(s, pieces, n), want);
    kvasir_stop_destroy(s);
}

static void test_across_pieces(void **state) {
    (void)state;
    check("a|b#", TEXTS("STOP"), TEXTS("a", "bSTOPc"));
    check("a||||#", TEXTS("STOP"), TEXTS("aS", "T", "", "O", "P"));
    check("x||\ny#", TEXTS("\n\n"), TEXTS("x\n", "", "y\n\nz"));
    check("#", TEXTS("S"), TEXTS("S"));
    /* almost a stop text, at a piece's end and inside */
    check("a||STO.||", TEXTS("STOP"), TEXTS("aSTO", "", "."));
    check("||STOP|", TEXTS("STOPS"), TEXTS("STO", "P"));
    check("STO||STO|", TEXTS("STOP"), TEXTS("STOSTO", ""));
    /* no stop texts */
    check("ab|c||", NULL, 0, TEXTS("ab", "c"));
    kvasir_stop *s = make(NULL, 0);
    assert_int_equal(kvasir_stop_hold(s), 0);
    kvasir_stop_destroy(s);
    kvasir_stop_destroy(NULL);
}

static void test_several(void **state) {
    (void)state;
    /* overlapping ones: the output ends where the first begins */
    check("x#", TEXTS("bcd", "abc"), TEXTS("xabcd"));
    check("x|#", TEXTS("bcd", "abc"), TEXTS("xab", "cd"));
    /* one is the beginning of the other: the shorter one completes first */
    check("x#", TEXTS("end", "ending"), TEXTS("xend"));
    check("x|#", TEXTS("ending", "end"), TEXTS("xe", "nd"));
    /* one inside another that began earlier: waits for that one */
    check("x|#", TEXTS("bc", "abcd"), TEXTS("xabc", "d"));
    check("x|a#", TEXTS("bc", "abcd"), TEXTS("xabc", "e"));
    check("x|a#", TEXTS("bc", "abcd"), TEXTS("xabc"));
    check("x||ab#", TEXTS("bcbcd", "c", "abcbcbx"), TEXTS("xabcbc", "b", "d"));
}

/* Which stop text was found: the one that begins first; of those the shortest. */
static void found(const char *want, const char *const *stops, size_t n_stops,
                  const char *const *pieces, size_t n) {
    kvasir_stop *s = make(stops, n_stops);
    feed(s, pieces, n);
    if (want)
        assert_string_equal(kvasir_stop_found(s), want);
    else
        assert_null(kvasir_stop_found(s));
    kvasir_stop_destroy(s);
}

static void test_found(void **state) {
    (void)state;
    found("STOP", TEXTS("STOP"), TEXTS("aS", "TOP"));
    found(NULL, TEXTS("STOP"), TEXTS("aS", "TO"));
    found(NULL, TEXTS("STOP"), NULL, 0);
    found("abc", TEXTS("bcd", "abc"), TEXTS("xabcd"));
    found("end", TEXTS("ending", "end"), TEXTS("ending"));
    found("abcd", TEXTS("bc", "abcd"), TEXTS("xabc", "d"));
    found("bc", TEXTS("bc", "abcd"), TEXTS("xabc", "e"));
    found("bc", TEXTS("bc", "abcd"), TEXTS("xabc"));
    found("bcbcd", TEXTS("c!", "bcbcd", "abcbcbx"), TEXTS("xabcbc", "d"));
    kvasir_stop *s = make(TEXTS("ab"));
    assert_null(kvasir_stop_found(s));
    assert_string_equal(feed(s, TEXTS("xab")), "x#");
    assert_string_equal(kvasir_stop_found(s), "ab");
    assert_string_equal(feed(s, TEXTS("more")), "#"); /* stays ended until finish */
    char out[2];
    size_t n;
    assert_false(kvasir_stop_finish(s, out, &n));
    assert_string_equal(kvasir_stop_found(s), "ab");
    assert_string_equal(feed(s, TEXTS("a")), "|a|"); /* a new text */
    assert_null(kvasir_stop_found(s));
    kvasir_stop_destroy(s);
}

static void test_utf8(void **state) {
    (void)state;
    /* \u00e9 and \u00e8 differ in their second byte: whole characters come out */
    check("a|\u00e8|#", TEXTS("\u00e9"), TEXTS("a", "\u00e8", "\u00e9"));
    check("|\u20ac.||", TEXTS("\u20ac\u20ad"), TEXTS("\u20ac", "."));
    check("|\u20ac\u20ac\u20ab||", TEXTS("\u20ac\u20ad"), TEXTS("\u20ac", "\u20ac\u20ab"));
    /* pieces that end inside a character: bytes go through, stop texts are found */
    check("a||#", TEXTS("\u20ac!"), TEXTS("a\xe2", "\x82", "\xac!"));
    check("a||\xe2\x82\xad||", TEXTS("\u20ac!"), TEXTS("a\xe2", "\x82", "\xad"));
    /* a NUL is a byte like any other */
    kvasir_stop *s = make(TEXTS("b"));
    char out[8];
    size_t n;
    assert_true(kvasir_stop_push(s, "a\0c", 3, out, &n));
    assert_int_equal(n, 3);
    assert_memory_equal(out, "a\0c", 3);
    kvasir_stop_destroy(s);
}

static void test_after_the_end(void **state) {
    (void)state;
    kvasir_stop *s = make(TEXTS("ab", "xyz"));
    char out[8];
    size_t n = 9;
    assert_int_equal(kvasir_stop_hold(s), 2);
    assert_false(kvasir_stop_push(s, "abc", 3, out, &n));
    assert_int_equal(n, 0);
    assert_false(kvasir_stop_push(s, "more", 4, out, &n)); /* stays ended */
    assert_int_equal(n, 0);
    assert_false(kvasir_stop_finish(s, out, &n));
    assert_int_equal(n, 0);
    /* a new text: nothing before it counts */
    assert_string_equal(feed(s, TEXTS("xa")), "x|a|");
    assert_string_equal(feed(s, TEXTS("b", "xy")), "b||xy|");
    assert_string_equal(feed(s, TEXTS("z", "ab")), "z|#");
    kvasir_stop_destroy(s);
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *stop, *error;
    } CASES[] = {{"", "the text is empty"},
                 {"\x82\xac", "the text is not UTF-8 at byte 0"},
                 {"ab\xe2\x82", "the text is not UTF-8 at byte 2"}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        kvasir_stop *s = NULL;
        kvasir_error err;
        assert_int_equal(
            kvasir_stop_create((const char *const[]){"good", CASES[i].stop, "good"}, 3, &s, &err),
            KVASIR_ERR_ARGUMENT);
        assert_string_equal(err.field, "request.stops");
        assert_string_equal(err.text, CASES[i].error);
        assert_null(s);
    }
}

/* The first place where one of the stop texts begins in text; len: nowhere. */
static size_t first_stop(const char *text, size_t len, char stops[][16], size_t n) {
    for (size_t at = 0; at < len; at++)
        for (size_t i = 0; i < n; i++)
            if (strncmp(text + at, stops[i], strlen(stops[i])) == 0)
                return at;
    return len;
}

/* The first place from which text [len] could still continue as a stop text; len: none. */
static size_t first_begun(const char *text, size_t len, char stops[][16], size_t n) {
    for (size_t at = 0; at < len; at++)
        for (size_t i = 0; i < n; i++)
            if (len - at < strlen(stops[i]) && strncmp(text + at, stops[i], len - at) == 0)
                return at;
    return len;
}

static void random_text(char *text, size_t len) {
    static int letters;
    if (rand() % 50 == 0 || letters == 0)
        letters = 1 + rand() % 3;
    for (size_t i = 0; i < len; i++)
        text[i] = (char)('a' + rand() % letters);
    text[len] = 0;
}

static void one_random_text(void) {
    char stops[STOPS_MAX][16], text[64], out[64 + 16];
    const char *list[STOPS_MAX];
    size_t n = 1 + (size_t)rand() % STOPS_MAX, len = (size_t)rand() % 40;
    for (size_t i = 0; i < n; i++) {
        random_text(stops[i], 1 + (size_t)rand() % 12);
        list[i] = stops[i];
    }
    random_text(text, len);
    size_t end = first_stop(text, len, stops, n), at = 0, got = 0, more;
    kvasir_stop *s = make(list, n);
    bool going = true;
    while (going && at < len) {
        size_t piece = (size_t)rand() % 6;
        piece = piece < len - at ? piece : len - at;
        going = kvasir_stop_push(s, text + at, piece, out + got, &more);
        got += more;
        at += piece;
        /* what is certain after these bytes is out, and not a byte less */
        char now[64];
        memcpy(now, text, at);
        now[at] = 0;
        size_t stop = first_stop(now, at, stops, n), begun = first_begun(now, at, stops, n);
        assert_int_equal(going, stop == at || begun < stop);
        assert_int_equal(got, begun < stop ? begun : stop);
    }
    if (going)
        going = kvasir_stop_finish(s, out + got, &more), got += more;
    assert_int_equal(going, end == len);
    assert_int_equal(got, end);
    assert_memory_equal(out, text, got);
    const char *which = kvasir_stop_found(s);
    assert_int_equal(which == NULL, end == len);
    for (size_t i = 0; i < n && which; i++)
        if (strncmp(text + end, stops[i], strlen(stops[i])) == 0)
            assert_true(strlen(which) <= strlen(stops[i]));
    assert_true(!which || strncmp(text + end, which, strlen(which)) == 0);
    kvasir_stop_destroy(s);
}

static void test_random_texts(void **state) {
    (void)state;
    srand(3);
    for (int i = 0; i < 100000; i++)
        one_random_text();
}

/* Time grows with the text, not with what is held back at each byte. */
static void test_long_stop_text(void **state) {
    (void)state;
    enum { LEN = 200000 };
    char *stop = malloc(LEN + 1), *out = malloc(LEN + 2);
    memset(stop, 'a', LEN);
    stop[LEN] = 0;
    stop[LEN - 1] = 'b';
    size_t n, all = 0;
    kvasir_stop *s = make((const char *const[]){stop}, 1);
    for (int i = 0; i < 2 * LEN; i++) {
        assert_true(kvasir_stop_push(s, "a", 1, out, &n));
        all += n;
    }
    assert_int_equal(all, LEN + 1);
    assert_false(kvasir_stop_push(s, "b", 1, out, &n));
    assert_int_equal(n, 0);
    kvasir_stop_destroy(s);
    free(stop);
    free(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_across_pieces), cmocka_unit_test(test_several),
        cmocka_unit_test(test_found),         cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_after_the_end), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_random_texts),  cmocka_unit_test(test_long_stop_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
