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
    struct accounts *all = accounts_create();
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

static void test_quotas(void **state) {
    (void)state;
    const struct server_key keys[] = {{.key = "a", .concurrent = 2},
                                      {.key = "b", .requests_per_minute = 6},
                                      {.key = "c", .tokens_per_minute = 600},
                                      {.key = "free"}};
    struct accounts *all = accounts_create();
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
    account_tokens(a, 0, 599);
    good(a, 0);
    account_tokens(a, 0, 301);
    refused(a, 0, "\"tokens_per_minute\" of 600 ", 31);
    good(a, 30.2);
    for (int i = 0; i < 3; i++)
        account_end(a);
    a = account_of(all, "free");
    for (int i = 0; i < 1000; i++) {
        good(a, 0);
        account_tokens(a, 0, 1000000);
    }
    for (int i = 0; i < 1000; i++)
        account_end(a);
    accounts_destroy(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_quotas),
        cmocka_unit_test(test_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
