/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled grammars that are kept: found again by kind and text, bounded in number and bytes, used
 * by requests after they left the cache, asked for by many threads at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <pthread.h>

#include "api/grammar_cache.h"
#include "util/account.h"

#include <cmocka.h>

#define TEXT(letter) "root ::= \"" letter "\""

static struct kept_grammar *get(struct grammar_cache *c, kvasir_grammar_kind kind,
                                const char *text) {
    struct kept_grammar *k = NULL;
    kvasir_error err;
    if (grammar_cache_get(c, kind, text, strlen(text), &k, &err))
        fail_msg("%s: %s", text, err.text);
    assert_non_null(kept_grammar_of(k));
    return k;
}

static void test_found_again(void **state) {
    (void)state;
    struct grammar_cache *c = grammar_cache_create(0, 0);
    struct kept_grammar *a = get(c, KVASIR_GRAMMAR_GBNF, TEXT("a")),
                        *b = get(c, KVASIR_GRAMMAR_GBNF, TEXT("b")),
                        *again = get(c, KVASIR_GRAMMAR_GBNF, TEXT("a")),
                        *other = get(c, KVASIR_GRAMMAR_GBNF, TEXT("a") " ");
    assert_ptr_equal(a, again);
    assert_ptr_not_equal(a, b);
    assert_ptr_not_equal(a, other);
    struct grammar_figures f = grammar_cache_figures(c);
    assert_int_equal(f.compiled, 3);
    assert_int_equal(f.hits, 1);
    assert_int_equal(f.refused, 0);
    assert_int_equal(f.entries, 3);
    assert_true(f.bytes > 0 && f.seconds >= 0);
    kvasir_error err;
    struct kept_grammar *none;
    assert_int_not_equal(grammar_cache_get(c, KVASIR_GRAMMAR_GBNF, "(", 1, &none, &err), 0);
    f = grammar_cache_figures(c);
    assert_int_equal(f.refused, 1);
    assert_int_equal(f.entries, 3);
    kept_grammar_release(a);
    kept_grammar_release(again);
    kept_grammar_release(b);
    kept_grammar_release(other);
    kept_grammar_release(NULL);
    grammar_cache_destroy(c);
}

/* What was used last stays; what left is still good for those who have it. */
static void test_bounds(void **state) {
    (void)state;
    struct grammar_cache *c = grammar_cache_create(2, 0);
    struct kept_grammar *a = get(c, KVASIR_GRAMMAR_GBNF, TEXT("a")),
                        *b = get(c, KVASIR_GRAMMAR_GBNF, TEXT("b"));
    kept_grammar_release(b);
    kept_grammar_release(get(c, KVASIR_GRAMMAR_GBNF, TEXT("a")));
    kept_grammar_release(get(c, KVASIR_GRAMMAR_GBNF, TEXT("c"))); /* b goes */
    assert_int_equal(grammar_cache_figures(c).entries, 2);
    kept_grammar_release(get(c, KVASIR_GRAMMAR_GBNF, TEXT("a")));
    assert_int_equal(grammar_cache_figures(c).hits, 2);
    kept_grammar_release(get(c, KVASIR_GRAMMAR_GBNF, TEXT("b")));
    kept_grammar_release(get(c, KVASIR_GRAMMAR_GBNF, TEXT("c"))); /* a goes, and is in use */
    assert_int_equal(grammar_cache_figures(c).compiled, 5);
    bool matches = false;
    size_t at;
    kvasir_error err;
    assert_int_equal(kvasir_grammar_match(kept_grammar_of(a), "a", 1, &matches, &at, &err), 0);
    assert_true(matches);
    kept_grammar_release(a);
    grammar_cache_destroy(c);

    c = grammar_cache_create(0, 1); /* the last one stays whatever its size */
    kept_grammar_release(get(c, KVASIR_GRAMMAR_GBNF, TEXT("a")));
    kept_grammar_release(get(c, KVASIR_GRAMMAR_GBNF, TEXT("b")));
    assert_int_equal(grammar_cache_figures(c).entries, 1);
    kept_grammar_release(get(c, KVASIR_GRAMMAR_GBNF, TEXT("b")));
    assert_int_equal(grammar_cache_figures(c).hits, 1);
    grammar_cache_destroy(c);
}

/* The request that has a text compiled pays for it until it ends; others do not. */
static void test_charged(void **state) {
    (void)state;
    struct mem_account account;
    mem_account_init(&account, 64 << 20, false);
    struct charge *first = charge_create(&account, NULL), *second = charge_create(&account, NULL);
    struct grammar_cache *c = grammar_cache_create(1, 0);
    charge_enter(first);
    struct kept_grammar *k = get(c, KVASIR_GRAMMAR_GBNF, TEXT("abc"));
    charge_leave(NULL);
    assert_true(charge_used(first) > 0);
    charge_enter(second);
    assert_ptr_equal(get(c, KVASIR_GRAMMAR_GBNF, TEXT("abc")), k);
    kept_grammar_release(k);
    charge_leave(NULL);
    assert_int_equal(charge_used(second), 0);
    kept_grammar_release(k);
    charge_unref(first);
    assert_int_equal(mem_account_figures(&account).held, 0);
    charge_enter(second);
    const bool taken = charge_take(second, 4096);
    kept_grammar_release(get(c, KVASIR_GRAMMAR_GBNF, TEXT("y"))); /* the first one is freed */
    charge_leave(NULL);
    assert_true(taken && charge_used(second) >= 4096);
    charge_unref(second);
    grammar_cache_destroy(c);
    mem_account_deinit(&account);
}

static void *ask_often(void *user) {
    static const char *const TEXTS[] = {TEXT("a"), TEXT("b"), TEXT("c"), TEXT("d"), TEXT("e")};
    for (int i = 0; i < 200; i++)
        kept_grammar_release(get(user, KVASIR_GRAMMAR_GBNF, TEXTS[i * 7 % 5]));
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    struct grammar_cache *c = grammar_cache_create(3, 0);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask_often, c), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    const struct grammar_figures f = grammar_cache_figures(c);
    assert_int_equal(f.compiled + f.hits, 800);
    assert_int_equal(f.entries, 3);
    grammar_cache_destroy(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_found_again),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_charged),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
