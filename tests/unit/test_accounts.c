/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of key files, and quotas with a clock of the test's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "server/accounts.h"
#include "util/http_status.h"

#include <cmocka.h>

static void test_lines(void **state) {
    (void)state;
    struct server_key k;
    size_t column;
    char plain[] = "sk=a#1", full[] =
                                 "k1\tname=alice  weight=3 concurrent=8 requests_per_minute=60 "
                                 "tokens_per_minute=100000 expires=1970-01-02";
    assert_null(server_read_key(plain, &k, &column));
    assert_string_equal(k.key, "sk=a#1");
    assert_true(!k.name && !k.weight && !k.concurrent && !k.expires_s);
    assert_null(server_read_key(full, &k, &column));
    assert_string_equal(k.key, "k1");
    assert_string_equal(k.name, "alice");
    assert_int_equal(k.weight, 3);
    assert_int_equal(k.concurrent, 8);
    assert_int_equal(k.requests_per_minute, 60);
    assert_int_equal(k.tokens_per_minute, 100000);
    assert_int_equal(k.expires_s, 2 * 24 * 3600);
}

static void test_bad_lines(void **state) {
    (void)state;
    static const char *const LINES[] = {"key weight",
                                        "key weight=",
                                        "key weight=0",
                                        "key weight=1001",
                                        "key weight=+1",
                                        "key weight=1x",
                                        "key name=",
                                        "key name=\xff",
                                        "key name=a\x7f",
                                        "key expires=2027-02-30",
                                        "key expires=20270101",
                                        "key expires=2027-1-1",
                                        "key Weight=1",
                                        "key =1",
                                        "key tokens_per_minute=99999999999999999999"};
    for (size_t i = 0; i < sizeof LINES / sizeof *LINES; i++) {
        struct server_key k;
        size_t column = 0;
        char line[100];
        snprintf(line, sizeof line, "%s", LINES[i]);
        if (!server_read_key(line, &k, &column))
            fail_msg("accepted: %s", LINES[i]);
        assert_int_equal(column, 5);
    }
}

static void refused(struct account *a, double now, const char *quota, uint32_t wait) {
    struct api_error err;
    assert_false(account_begin(a, now, &err));
    assert_int_equal(err.status, HTTP_TOO_MANY_REQUESTS);
    assert_int_equal(err.retry_after_s, wait);
    assert_non_null(strstr(err.text, quota));
}

static void good(struct account *a, double now) {
    struct api_error err;
    if (!account_begin(a, now, &err))
        fail_msg("%s", err.text);
}

static struct account *account_of(struct accounts *all, const char *key) {
    struct account_view found;
    return accounts_find(all, key, &found) ? found.account : NULL;
}

/* Keys change while requests run. */
static void test_changes(void **state) {
    (void)state;
    static const struct server_key
        OLD[] = {{.key = "a", .name = "alice", .requests_per_minute = 2}, {.key = "b"}},
        NEW[] = {{.key = "c"}, {.key = "a", .name = "bob", .requests_per_minute = 2, .weight = 5}};
    struct accounts *all = accounts_create(64);
    struct account_view a, other;
    assert_false(accounts_find(all, "", &a));
    assert_true(accounts_set(all, OLD, 2));
    assert_true(accounts_find(all, "a", &a) && accounts_find(all, "b", &other));
    assert_true(a.number != other.number && a.share != other.share && a.weight == 0);
    good(a.account, 0);
    good(a.account, 0);
    good(other.account, 0);
    assert_true(accounts_set(all, NEW, 2));
    assert_false(accounts_find(all, "b", &other));
    account_end(other.account); /* a request of a key that is gone */
    assert_true(accounts_find(all, "c", &other) && other.number == 3);
    assert_true(accounts_find(all, "a", &other) && other.account == a.account);
    assert_int_equal(other.weight, 5);
    refused(a.account, 0, "of the API key \"bob\" is used up", 30); /* its bucket is the same */
    assert_true(accounts_set(all, OLD, 2));
    assert_true(accounts_find(all, "b", &other) && other.number == 2);
    assert_false(accounts_find(all, "c", &other) || accounts_find(all, "", &other));
    account_end(a.account);
    account_end(a.account);
    accounts_destroy(all);
}

static void waits(struct account *a) {
    struct api_error err;
    if (!account_wait(a, &err))
        fail_msg("%s", err.text);
}

/* A request with so many tokens in its prompt, from submit to end. */
static void tokens(struct account *a, double now, uint32_t n) {
    waits(a);
    account_event(a, now, &(kvasir_event){.kind = KVASIR_EVENT_START, .prompt_tokens = n}, true);
    account_event(a, now, &(kvasir_event){.kind = KVASIR_EVENT_DONE, .last = true}, true);
}

static void is_figures(const struct tenant_figures *f, const char *name, uint64_t requests,
                       uint64_t refused_, uint64_t prompt, uint64_t cached, uint64_t generated,
                       uint32_t running, uint32_t waiting) {
    assert_string_equal(f->name, name);
    assert_int_equal(f->requests, requests);
    assert_int_equal(f->refused, refused_);
    assert_int_equal(f->prompt_tokens, prompt);
    assert_int_equal(f->cached_tokens, cached);
    assert_int_equal(f->generated_tokens, generated);
    assert_int_equal(f->running, running);
    assert_int_equal(f->waiting, waiting);
}

static void test_figures(void **state) {
    (void)state;
    static const struct server_key KEYS[] = {{.key = "a", .name = "team"},
                                             {.key = "b", .name = "team"},
                                             {.key = "c", .concurrent = 1},
                                             {.key = "d", .name = "alice"}};
    const kvasir_event start = {.kind = KVASIR_EVENT_START,
                                .prompt_tokens = 100,
                                .cached_tokens = 64,
                                .hit = KVASIR_HIT_PREFIX},
                       token = {.kind = KVASIR_EVENT_TOKEN}, done = {.kind = KVASIR_EVENT_DONE},
                       last = {.kind = KVASIR_EVENT_DONE, .last = true};
    struct accounts *all = accounts_create(64);
    struct mem_account memory;
    struct account_view other;
    struct api_error err;
    size_t n;
    mem_account_init(&memory, 1 << 20, true);
    assert_int_equal(accounts_count(all), 0);
    assert_true(accounts_set(all, KEYS, 4));
    assert_int_equal(accounts_count(all), 4);
    struct account *a = account_of(all, "a"), *b = account_of(all, "b"), *c = account_of(all, "c");
    accounts_other(all, &other);
    struct charge *charge = charge_create(&memory, other.share);
    assert_true(charge && charge_take(charge, CHARGE_GRANULE));
    for (int i = 0; i < 3; i++) { /* one runs with two choices, one waits, one is cancelled */
        good(a, 0);
        waits(a);
    }
    account_event(a, 0, &start, true);
    account_event(a, 0, &token, true);
    account_event(a, 0, &token, true);
    account_event(a, 0, &done, true);
    account_event(a, 0, &last, false);
    good(b, 0);
    tokens(b, 0, 7);
    good(c, 0);
    assert_false(account_begin(c, 0, &err));
    waits(c);
    account_unwait(c); /* the engine refuses it */
    account_refused(c);
    good(other.account, 0);

    struct tenant_figures *f = accounts_figures(all, NULL, &memory, &n);
    assert_int_equal(n, 3);
    is_figures(&f[0], "-", 3, 2, 0, 0, 0, 0, 0);
    assert_int_equal(f[0].memory_bytes, CHARGE_GRANULE);
    is_figures(&f[1], "alice", 0, 0, 0, 0, 0, 0, 0);
    is_figures(&f[2], "team", 4, 0, 107, 64, 2, 1, 1);
    assert_int_equal(f[2].hits[KVASIR_HIT_PREFIX], 1);
    mem_free(f);
    f = accounts_figures(all, a, &memory, &n); /* without its namesake's */
    assert_int_equal(n, 1);
    is_figures(&f[0], "team", 3, 0, 100, 64, 2, 1, 1);
    mem_free(f);
    f = accounts_figures(all, c, &memory, &n);
    is_figures(&f[0], "-", 2, 2, 0, 0, 0, 0, 0);
    assert_int_equal(f[0].memory_bytes, 0);
    mem_free(f);

    account_event(a, 0, &last, true);
    account_event(a, 0, &last, false);
    assert_true(accounts_set(all, KEYS + 2, 1)); /* those of keys that are gone stay */
    assert_int_equal(accounts_count(all), 1);
    f = accounts_figures(all, NULL, &memory, &n);
    assert_int_equal(n, 3);
    is_figures(&f[2], "team", 4, 0, 107, 64, 2, 0, 0);
    mem_free(f);
    for (int i = 0; i < 3; i++)
        account_end(a);
    account_end(b);
    account_end(c);
    account_end(other.account);
    charge_unref(charge);
    accounts_destroy(all);
    mem_account_deinit(&memory);
}

static void no_place(struct account *a, const char *text) {
    struct api_error err;
    assert_false(account_wait(a, &err));
    assert_int_equal(err.status, HTTP_TOO_MANY_REQUESTS);
    assert_string_equal(err.text, text);
}

/* 21 places: of 10, 7 and 2 are the keys' own; 12 are for all. */
static void test_places(void **state) {
    (void)state;
    static const struct server_key KEYS[] = {{.key = "a", .name = "alice", .weight = 3},
                                             {.key = "b"}};
    const kvasir_event start = {.kind = KVASIR_EVENT_START},
                       last = {.kind = KVASIR_EVENT_DONE, .last = true};
    struct accounts *all = accounts_create(21);
    struct account_view other;
    accounts_other(all, &other);
    for (int i = 0; i < 21; i++) /* without keys all places are for all */
        waits(other.account);
    no_place(other.account, "21 requests of the API key are waiting: of 21 places 0 are its own, "
                            "and the 21 of all keys are taken: try again later");
    for (int i = 0; i < 21; i++)
        account_unwait(other.account);
    assert_true(accounts_set(all, KEYS, 2));
    struct account *a = account_of(all, "a"), *b = account_of(all, "b");
    for (int i = 0; i < 7 + 12; i++)
        waits(a);
    no_place(a, "19 requests of the API key \"alice\" are waiting: of 21 places 7 are its own, and "
                "the 12 of all keys are taken: try again later");
    no_place(other.account,
             "0 requests of the API key are waiting: of 21 places 0 are its own, and "
             "the 12 of all keys are taken: try again later");
    waits(b);
    waits(b);
    no_place(b, "2 requests of the API key are waiting: of 21 places 2 are its own, and the 12 of "
                "all keys are taken: try again later");
    account_event(a, 0, &start, true); /* one that runs waits no more: a place for all */
    waits(b);
    account_unwait(b);
    waits(other.account);
    account_event(a, 0, &last, false); /* one is cancelled while it waits */
    waits(a);
    assert_true(accounts_set(all, KEYS + 1, 1)); /* a is gone: 10 are b's, 11 for all */
    for (int i = 0; i < 8; i++)
        waits(b);
    struct api_error err;
    assert_false(account_wait(b, &err) || account_wait(other.account, &err));
    account_event(a, 0, &last, true);
    for (int i = 0; i < 18; i++)
        account_unwait(a);
    for (int i = 0; i < 10; i++) /* of 11, the admin has one */
        waits(b);
    assert_false(account_wait(b, &err) || account_wait(other.account, &err));
    for (int i = 0; i < 20; i++)
        account_unwait(b);
    account_unwait(other.account);
    accounts_destroy(all);
}

static void test_quotas(void **state) {
    (void)state;
    const struct server_key keys[] = {{.key = "a", .concurrent = 2},
                                      {.key = "b", .requests_per_minute = 6},
                                      {.key = "c", .tokens_per_minute = 600},
                                      {.key = "free"}};
    struct accounts *all = accounts_create(64);
    assert_true(accounts_set(all, keys, 4));
    struct account *a = account_of(all, "a");
    good(a, 100);
    good(a, 100);
    refused(a, 100, "\"concurrent\" of 2 ", 1);
    account_end(a);
    good(a, 100);
    account_end(a);
    account_end(a);
    a = account_of(all, "b"); /* 6 at once, then one every 10 s */
    for (int i = 0; i < 6; i++) {
        good(a, 1000);
        account_end(a);
    }
    refused(a, 1000, "\"requests_per_minute\" of 6 ", 10);
    refused(a, 1007.5, "\"requests_per_minute\" of 6 ", 3);
    good(a, 1010);
    account_end(a);
    refused(a, 1010, "requests_per_minute", 10);
    a = account_of(all, "c"); /* 10 a second; beyond the minute's 600 it owes them */
    good(a, 0);
    tokens(a, 0, 599);
    good(a, 0);
    tokens(a, 0, 301);
    refused(a, 0, "\"tokens_per_minute\" of 600 ", 31);
    good(a, 30.2);
    for (int i = 0; i < 3; i++)
        account_end(a);
    a = account_of(all, "free");
    for (int i = 0; i < 1000; i++) {
        good(a, 0);
        tokens(a, 0, 1000000);
    }
    for (int i = 0; i < 1000; i++)
        account_end(a);
    accounts_destroy(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),   cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_quotas),  cmocka_unit_test(test_changes),
        cmocka_unit_test(test_figures), cmocka_unit_test(test_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
