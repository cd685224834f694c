/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of tokens and characters: seeded random text, encoding and decoding that fail
 * the test if they fail, and texts that are hard to encode quickly.
 */
#ifndef KVASIR_TEXT_CHECKS_H
#define KVASIR_TEXT_CHECKS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/text.h"
#include "util/utf8.h"

#include <cmocka.h> /* after util.h, which defines a macro `fail` */

#include "cpu_time.h"

enum { MEGABYTE = 1 << 20 };

/* ---- random numbers (splitmix64), the seed is printed ---------------------------------------- */

static uint64_t rng_state;

/* The seed is KVASIR_SEED from the environment, if it is set. */
static inline void rng_start(uint64_t seed) {
    const char *given = getenv("KVASIR_SEED");
    rng_state = given ? strtoull(given, NULL, 10) : seed;
    printf("KVASIR_SEED=%llu\n", (unsigned long long)rng_state);
}

static inline uint32_t rng(uint32_t below) {
    uint64_t z = rng_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32) % below;
}

/* Random characters from all of Unicode, more often ASCII and white space. Returns the number of
 * bytes written, at most 4 * chars. */
static inline size_t random_text(char *out, size_t chars) {
    size_t n = 0;
    for (size_t i = 0; i < chars; i++) {
        uint32_t c;
        switch (rng(6)) {
        case 0:
            c = rng(0x80);
            break;
        case 1:
            c = "  \n\t\r\xa0'"[rng(7)] & 0xff;
            break;
        case 2:
            c = 'a' + rng(4);
            break;
        case 3:
            c = rng(0x3000);
            break;
        case 4:
            c = rng(0x10000);
            break;
        default:
            c = rng(0x110000);
        }
        n += utf8_put(out + n, c >= 0xd800 && c < 0xe000 ? 'x' : c);
    }
    return n;
}

/* ---- encoding and decoding ------------------------------------------------------------------- */

static inline struct tokenizer *create(const struct tokenizer_spec *spec) {
    struct tokenizer *t = NULL;
    kvasir_error err = {0};
    if (tokenizer_create(spec, &t, &err) != KVASIR_OK)
        fail_msg("tokenizer_create: %s", err.text);
    return t;
}

static inline int32_t *encode(const struct tokenizer *t, const char *text, size_t len,
                              unsigned flags, size_t *n) {
    int32_t *ids = NULL;
    kvasir_error err = {0};
    if (tokenizer_encode(t, text, len, flags, &ids, n, &err) != KVASIR_OK)
        fail_msg("tokenizer_encode: %s", err.text);
    for (size_t i = 0; i < *n; i++)
        assert_in_range(ids[i], 0, tokenizer_size(t) - 1);
    return ids;
}

static inline void check_ids(const struct tokenizer *t, const char *text, unsigned flags,
                             const int32_t *want, size_t n_want) {
    size_t n;
    int32_t *ids = encode(t, text, strlen(text), flags, &n);
    if (n != n_want || memcmp(ids, want, n * sizeof *ids) != 0) {
        for (size_t i = 0; i < n; i++)
            print_error(" %d", ids[i]);
        fail_msg(" are the ids of \"%s\"", text);
    }
    mem_free(ids);
}

#define CHECK_IDS(t, text, flags, ...)                                                             \
    check_ids(t, text, flags, (const int32_t[]){__VA_ARGS__},                                      \
              sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* The text of the ids, from the detokenizer, one token at a time. */
static inline struct text_buf decode(const struct tokenizer *t, const int32_t *ids, size_t n) {
    struct text_buf out = {0};
    struct detok d = {0};
    for (size_t i = 0; i < n; i++) {
        assert_true(detok_push(&d, tokenizer_bytes(t, ids[i]), &out));
        assert_int_equal(utf8_check(out.data, out.len), out.len);
    }
    assert_true(detok_finish(&d, &out));
    return out;
}

static inline void check_round_trip(const struct tokenizer *t, const char *text, size_t len,
                                    unsigned flags) {
    size_t n;
    int32_t *ids = encode(t, text, len, flags, &n);
    struct text_buf back = decode(t, ids, n);
    assert_int_equal(back.len, len);
    if (len)
        assert_memory_equal(back.data, text, len);
    text_free(&back);
    mem_free(ids);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* The bound is for normal builds; code under a sanitizer runs up to ten times slower. */
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) ||                               \
    __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define MEGABYTE_SECONDS 20.0
#else
#define MEGABYTE_SECONDS 2.0
#endif

/* 1 MB texts that are hard for a pre-tokenizer or a merge loop. */
static inline void check_time(const struct tokenizer *t, const char *vocabulary) {
    static const char *const names[] = {"one letter",
                                        "random letters",
                                        "two letters",
                                        "spaces",
                                        "spaces, then a letter",
                                        "digits",
                                        "punctuation",
                                        "CJK",
                                        "'<' with specials",
                                        "all of Unicode"};
    char *text = malloc(4 * MEGABYTE);
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        size_t len = MEGABYTE;
        for (size_t i = 0; i < len; i++)
            text[i] = k == 0   ? 'a'
                      : k == 1 ? (char)('a' + rng(26))
                      : k == 2 ? "ab"[i % 2]
                      : k <= 4 ? ' '
                      : k == 5 ? (char)('0' + rng(10))
                      : k == 6 ? "!#$%&*+-./:;=?@^_~"[rng(18)]
                               : '<';
        if (k == 4)
            text[len - 1] = 'x';
        if (k == 7)
            for (len = 0; len < MEGABYTE - 3;)
                len += utf8_put(text + len, 0x4e00 + rng(0x5000));
        if (k == 9)
            len = random_text(text, MEGABYTE / 2);
        double start = cpu_seconds();
        size_t n;
        int32_t *ids = encode(t, text, len, TOKENIZE_PARSE_SPECIAL, &n);
        double took = cpu_seconds() - start;
        print_message("%s, %s: %zu bytes, %zu tokens, %.3f s\n", vocabulary, names[k], len, n,
                      took);
        mem_free(ids);
        assert_true(took < MEGABYTE_SECONDS);
    }
    free(text);
}

#endif
