/* SPDX-License-Identifier: Apache-2.0 */
/* What clients and the admin ask of stored prefixes over HTTP: forgetting a salt of one tenant or
 * of all, "cache" in bodies, who may pin, and explanations: of what, and to whom. A token is a
 * byte; the first one of a completion is "<s>". */
#include <stdio.h>
#include <string.h>

#include "http_client.h"
#include "tiny_server.h"

static struct tiny_server tiny;

static int end(void **state) {
    (void)state;
    tiny_server_close(&tiny);
    return 0;
}

static void make(const char *admin, size_t n, bool share) {
    static const struct server_key KEYS[] = {{.key = "key-a", .name = "alice"},
                                             {.key = "key-b", .name = "bob"},
                                             {.key = "key-b2", .name = "bob"},
                                             {.key = "key-c"}};
    tiny_server_init(&tiny);
    tiny.options.api_keys = KEYS;
    tiny.options.n_api_keys = n;
    tiny.options.admin_key = admin;
    tiny.options.share_prefixes = share;
    tiny_server_open(&tiny);
}

static int make_open(void **state) {
    (void)state;
    make(NULL, 0, false);
    return 0;
}

static int make_keys(void **state) {
    (void)state;
    make("key-admin", 4, false);
    return 0;
}

static int make_shared(void **state) {
    (void)state;
    make("key-admin", 4, true);
    return 0;
}

static int make_no_admin(void **state) {
    (void)state;
    make(NULL, 2, false);
    return 0;
}

/* The answer, to be decref'ed; key NULL: none. Fails the test unless it has this status. */
static json_t *ask(int status, const char *method, const char *path, const char *key,
                   const char *body) {
    struct client c;
    char headers[64] = "";
    if (key)
        snprintf(headers, sizeof headers, "X-Api-Key: %s\r\n", key);
    assert_true(client_open(&c, tiny.port, -1));
    assert_true(client_request(&c, method, path, headers, body));
    struct client_answer a = client_read(&c);
    client_close(&c);
    if (a.status != status)
        fail_msg("%s %s %s: %d, not %d: %s", method, path, body, a.status, status, a.body);
    json_t *value = json_loads(a.body, 0, NULL);
    assert_non_null(value);
    free(a.body);
    return value;
}

static void refused(int status, const char *method, const char *path, const char *key,
                    const char *body, const char *message) {
    json_t *a = ask(status, method, path, key, body);
    const char *text = json_string_value(json_object_get(json_object_get(a, "error"), "message"));
    if (!text || !strstr(text, message))
        fail_msg("\"%s\" does not have \"%s\"", text ? text : "", message);
    json_decref(a);
}

static json_int_t whole(json_t *object, const char *name) {
    json_t *value = json_object_get(object, name);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

/* Completes a prompt of 200 bytes and more; returns its cached tokens. id: [64], or NULL */
static json_int_t complete(const char *key, const char *first, const char *more, char *id) {
    char body[1024];
    char prompt[201];
    memset(prompt, 'x', 200);
    prompt[200] = 0;
    snprintf(body, sizeof body, "{\"prompt\":\"%s%s\",\"max_tokens\":3,\"ignore_eos\":true%s}",
             first, prompt, more);
    json_t *a = ask(200, "POST", "/v1/completions", key, body);
    if (id)
        snprintf(id, 64, "%s", json_string_value(json_object_get(a, "id")));
    const json_int_t cached = whole(
        json_object_get(json_object_get(a, "usage"), "prompt_tokens_details"), "cached_tokens");
    json_decref(a);
    return cached;
}
#define SALT(s)  ",\"cache_salt\":\"" s "\""
#define NO_STORE ",\"cache\":{\"no_store\":true}"

static json_int_t forget(const char *path, const char *key, const char *body) {
    json_t *a = ask(200, "DELETE", path, key, body);
    json_t *f = json_object_get(a, "forgotten");
    assert_string_equal(json_string_value(json_object_get(a, "status")), "cleared");
    const json_int_t tokens = whole(f, "tokens");
    assert_true((tokens > 0) == (whole(f, "bytes") > 0));
    assert_true((tokens > 0) == (whole(f, "entries") > 0));
    json_decref(a);
    return tokens;
}

/* ---- forgetting ------------------------------------------------------------------------------ */

static void test_forget_salt(void **state) {
    (void)state;
    static const char *const SALTS[] = {"", SALT("s"), SALT("a b&c"), SALT("\\u00e9")};
    enum { N = sizeof SALTS / sizeof *SALTS };
    for (int i = 0; i < N; i++)
        assert_int_equal(complete(NULL, "f", SALTS[i], NULL), 0);
    assert_int_equal(forget("/v1/cache?salt=none", NULL, ""), 0);
    assert_int_equal(forget("/v1/cache", NULL, "{\"salt\":\"none\"}"), 0);
    const json_int_t one = forget("/v1/cache?salt=s", NULL, "");
    assert_in_range(one, 201, 204);
    assert_int_equal(complete(NULL, "f", SALT("s") NO_STORE, NULL), 0);
    assert_true(complete(NULL, "f", "", NULL) > 190);
    assert_true(complete(NULL, "f", SALTS[2], NULL) > 190);
    assert_int_equal(forget("/v1/cache/prefix?salt=a+b%26c", NULL, ""), one);
    assert_int_equal(forget("/v1/cache", NULL, "{\"salt\":\"\\u00e9\"}"), one);
    assert_int_equal(forget("/v1/cache?salt=", NULL, ""), one);
    assert_int_equal(forget("/v1/cache", NULL, ""), 0);
    for (int i = 0; i < N; i++)
        assert_int_equal(complete(NULL, "f", SALTS[i], NULL), 0);
    assert_int_equal(forget("/v1/cache", NULL, "{}"), N * one);
}

static void test_what_cannot_be_forgotten(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *message;
    } BAD[] = {
        {"?sal=s", "", "\"sal\" is unknown"},
        {"?", "{\"salz\":\"s\"}", "unknown member"},
        {"?salt", "{\"salt\":\"s\"}", "given twice"},
        {"?salt=a&salt=b", "", "given twice"},
        {"?salt=%4", "", "percent"},
        {"?salt=a%00b", "", "percent"},
        {"", "{\"salt\":null}", "salt: is null"},
        {"", "{\"salt\":1}", "salt: is a number"},
        {"", "{\"salt\":\"a\\u0000b\"}", "NUL"},
        {"", "[\"s\"]", "not a JSON object"},
        {"", "{\"salt\":", "JSON"},
        {"?tenant=alice", "", "salt: missing"},
    };
    complete(NULL, "f", "", NULL);
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        char path[64];
        snprintf(path, sizeof path, "/v1/cache%s", BAD[i].path);
        refused(400, "DELETE", path, NULL, BAD[i].body, BAD[i].message);
    }
    refused(404, "DELETE", "/v1/cache?salt=s&tenant=eve", NULL, "", "\"eve\"");
    assert_true(forget("/v1/cache", NULL, "") > 200); /* it was all there */
}

static void test_forget_tenant(void **state) {
    (void)state;
    static const char *const KEYS[] = {"key-a", "key-b", "key-b2", "key-c", "key-admin"};
    enum { A, B, B2, C, ADMIN, N };
    json_int_t each = 0;
    refused(403, "DELETE", "/v1/cache?salt=s", "key-a", "", "admin key");
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < N; i++) {
            assert_int_equal(complete(KEYS[i], "f", SALT("s"), NULL), 0);
            assert_int_equal(complete(KEYS[i], "f", "", NULL), 0);
        }
        bool gone[N] = {false};
        if (round == 0) {
            each = forget("/v1/cache?salt=s&tenant=alice", "key-admin", "");
            gone[A] = true;
        } else if (round == 1) {
            assert_int_equal(
                forget("/v1/cache", "key-admin", "{\"tenant\":\"bob\",\"salt\":\"s\"}"), 2 * each);
            gone[B] = gone[B2] = true;
        } else if (round == 2) { /* those without a name, and the admin */
            assert_int_equal(forget("/v1/cache?tenant=-", "key-admin", "{\"salt\":\"s\"}"),
                             2 * each);
            gone[C] = gone[ADMIN] = true;
        } else { /* of all */
            assert_int_equal(forget("/v1/cache?salt=s", "key-admin", ""), N * each);
            memset(gone, true, sizeof gone);
        }
        for (int i = 0; i < N; i++) {
            assert_int_equal(complete(KEYS[i], "f", SALT("s") NO_STORE, NULL) == 0, gone[i]);
            assert_true(complete(KEYS[i], "f", NO_STORE, NULL) > 190);
        }
        forget("/v1/cache", "key-admin", "");
    }
    refused(404, "DELETE", "/v1/cache?salt=s&tenant=eve", "key-admin", "", "\"eve\"");
}

static void test_forget_shared(void **state) {
    (void)state;
    assert_int_equal(complete("key-a", "f", SALT("s"), NULL), 0);
    assert_true(complete("key-b", "f", SALT("s"), NULL) > 190);
    refused(400, "DELETE", "/v1/cache?salt=s&tenant=bob", "key-admin", "", "share");
    assert_true(forget("/v1/cache?salt=s", "key-admin", "") > 200);
    assert_int_equal(complete("key-b", "f", SALT("s"), NULL), 0);
}

/* ---- "cache" --------------------------------------------------------------------------------- */

static void test_cache_of_bodies(void **state) {
    (void)state;
    static const struct {
        const char *cache, *message;
    } BAD[] = {
        {"5", "cache: is a number"},
        {"{\"no_store\":1}", "cache.no_store: is a number"},
        {"{\"pin\":\"x\"}", "cache.pin: is a string"},
        {"{\"ttl\":1.5}", "cache.ttl: 1.5 is not a whole number"},
        {"{\"ttl\":0}", "cache.ttl: 0 is not between 1 and"},
        {"{\"ttl\":-5}", "cache.ttl: -5"},
        {"{\"ttl\":315360001}", "cache.ttl: 315360001"},
        {"{\"no-store\":true}", "cache.no-store: is unknown"},
        {"{\"no_store\":true,\"ttl\":5}", "cache.no_store: cannot be combined"},
        {"{\"no_store\":true,\"pin\":true}", "cache.no_store: cannot be combined"},
    };
    static const char *const BODIES[][2] = {
        {"/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":1,\"cache\":%s}"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
                                 "\"max_tokens\":1,\"cache\":%s}"},
        {"/v1/messages", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
                         "\"max_tokens\":1,\"cache\":%s}"},
    };
    for (size_t k = 0; k < sizeof BODIES / sizeof *BODIES; k++) {
        char body[256];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
            snprintf(body, sizeof body, BODIES[k][1], BAD[i].cache);
            refused(400, "POST", BODIES[k][0], NULL, body, BAD[i].message);
        }
        static const char *const GOOD[] = {"null", "{}",
                                           "{\"ttl\":5,\"pin\":true,\"no_store\":null}",
                                           "{\"no_store\":true,\"pin\":false}"};
        for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++) {
            snprintf(body, sizeof body, BODIES[k][1], GOOD[i]);
            json_decref(ask(200, "POST", BODIES[k][0], NULL, body));
        }
#pragma GCC diagnostic pop
    }
}

static void test_no_store(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(complete(NULL, "n", NO_STORE, NULL), 0);
    assert_int_equal(complete(NULL, "n", "", NULL), 0);
    assert_true(complete(NULL, "n", NO_STORE, NULL) > 190);
    assert_in_range(complete(NULL, "t", ",\"cache\":{\"ttl\":1}", NULL), 0, 1); /* "<s>" */
    pause_ms(1100);
    assert_in_range(complete(NULL, "t", NO_STORE, NULL), 0, 1);
}

#define PIN ",\"cache\":{\"pin\":true}"
static void test_who_may_pin(void **state) {
    (void)state;
    refused(403, "POST", "/v1/completions", "key-a", "{\"prompt\":\"x\",\"max_tokens\":1" PIN "}",
            "cache.pin: only the admin key may pin");
    complete("key-admin", "p", PIN, NULL);
    kvasir_engine_stats stats;
    assert_true(tiny_server_idle(&tiny, 300000, &stats));
    assert_true(stats.pinned_bytes > 0);
    assert_true(forget("/v1/cache?salt=", "key-admin", "") > 200);
    complete("key-a", "q", "", NULL);
    assert_true(tiny_server_idle(&tiny, 300000, &stats));
    assert_int_equal(stats.pinned_bytes, 0);
}

static void test_nobody_may_pin(void **state) {
    (void)state;
    refused(403, "POST", "/v1/completions", "key-a", "{\"prompt\":\"x\",\"max_tokens\":1" PIN "}",
            "cache.pin");
}

/* ---- explanations ---------------------------------------------------------------------------- */

static void expect(json_t *x, json_int_t common, json_int_t usable, const char *why,
                   const char *text, const char *stored) {
    json_t *at = json_object_get(x, "first_difference");
    const char *was = json_string_value(json_object_get(x, "why"));
    assert_string_equal(was ? was : "", why);
    assert_int_equal(whole(x, "common_tokens"), common);
    assert_int_equal(whole(x, "usable_tokens"), usable);
    if (!text && !stored) {
        assert_true(json_is_null(at));
        return;
    }
    assert_int_equal(whole(at, "position"), common);
    const char *said = json_string_value(json_object_get(at, "text")),
               *other = json_string_value(json_object_get(at, "stored_text"));
    assert_string_equal(said ? said : "-", text ? text : "-");
    assert_string_equal(other ? other : "-", stored ? stored : "-");
}

static json_t *recent(int status, const char *key, const char *id) {
    char path[128];
    snprintf(path, sizeof path, "/v1/cache/explain?request_id=%s", id);
    return ask(status, "GET", path, key, "");
}

static void test_recent_requests(void **state) {
    (void)state;
    char first[64], second[64], silent[64];
    complete("key-a", "abcd", "", first);
    complete("key-a", "abCd", "", second);
    complete("key-a", "aXcd", NO_STORE, silent);
    json_t *x = recent(200, "key-a", first);
    expect(x, 0, 0, "never_seen", "<s>", NULL);
    assert_int_equal(whole(x, "prompt_tokens"), 205);
    assert_string_equal(json_string_value(json_object_get(x, "request_id")), first);
    json_decref(x);
    x = recent(200, "key-admin", second);
    expect(x, 3, 3, "never_seen", "C", "c");
    json_decref(x);
    x = recent(200, "key-a", silent); /* nothing of its text is kept */
    expect(x, 2, 2, "never_seen", NULL, "b");
    json_decref(x);
    json_decref(recent(404, "key-b", first));
    json_decref(recent(404, "key-a", "cmpl-0"));
    json_decref(ask(401, "GET", "/v1/cache/explain?request_id=x", NULL, ""));
    static const char *const BAD[] = {
        "", "?", "?request_id", "?id=x", "?request_id=x&y=z", "?request_id=%"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        char path[64];
        snprintf(path, sizeof path, "/v1/cache/explain%s", BAD[i]);
        json_decref(ask(i == 2 ? 404 : 400, "GET", path, "key-a", ""));
    }
}

static void test_prompts_of_bodies(void **state) {
    (void)state;
    complete("key-a", "abcd", "", NULL);
    complete("key-b", "secret", SALT("t"), NULL);
    json_t *x = ask(200, "POST", "/v1/cache/explain", "key-a", "{\"prompt\":\"abZZ\"}");
    expect(x, 3, 3, "never_seen", "Z", "c");
    assert_int_equal(whole(x, "prompt_tokens"), 5);
    assert_int_equal(whole(x, "store_tokens"), 3);
    assert_null(json_object_get(x, "other_salt_tokens"));
    json_decref(x);
    x = ask(200, "POST", "/v1/cache/explain", "key-a", "{\"prompt\":\"ab\"}");
    expect(x, 3, 2, "nothing", NULL, NULL);
    json_decref(x);
    x = ask(200, "POST", "/v1/cache/explain", "key-a", "{\"prompt\":[97,98]}");
    expect(x, 0, 0, "never_seen", "a", "<s>");
    json_decref(x);
    x = ask(200, "POST", "/v1/cache/explain", "key-a",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"abcX\"}]}");
    expect(x, 0, 0, "never_seen", "a", "<s>"); /* the template writes none */
    json_decref(x);
    /* what others have is said to the admin alone, and no text of it */
    char secret[512];
    char same[101];
    memset(same, 'x', 100);
    same[100] = 0;
    snprintf(secret, sizeof secret, "{\"prompt\":\"secret%syy\"}", same);
    x = ask(200, "POST", "/v1/cache/explain", "key-a", secret);
    expect(x, 1, 1, "never_seen", "s", "a");
    assert_null(json_object_get(x, "other_salt_tokens"));
    json_decref(x);
    x = ask(200, "POST", "/v1/cache/explain", "key-b", secret);
    expect(x, 0, 0, "never_seen", "<s>", NULL); /* another salt of the same key */
    json_decref(x);
    x = ask(200, "POST", "/v1/cache/explain", "key-admin", secret);
    expect(x, 0, 0, "other_salt", "<s>", NULL);
    assert_int_equal(whole(x, "other_salt_tokens"), 107);
    json_decref(x);
    x = ask(200, "POST", "/v1/cache/explain", "key-admin", "{\"prompt\":\"zzz\"}");
    expect(x, 0, 0, "never_seen", "<s>", NULL);
    assert_int_equal(whole(x, "other_salt_tokens"), 1);
    json_decref(x);
    snprintf(secret, sizeof secret, "{\"prompt\":\"secret%syy\",\"cache_salt\":\"t\"}", same);
    x = ask(200, "POST", "/v1/cache/explain", "key-b", secret);
    expect(x, 107, 107, "never_seen", "y", "x");
    json_decref(x);
    refused(400, "POST", "/v1/cache/explain", "key-a", "", "empty");
    refused(400, "POST", "/v1/cache/explain", "key-a", "{}", "prompt");
    refused(400, "POST", "/v1/cache/explain", "key-a", "{\"prompt\":[]}", "prompt");
    refused(400, "POST", "/v1/cache/explain", "key-a", "{\"prompt\":[99999]}", "99999");
    refused(400, "POST", "/v1/cache/explain", "key-a", "{\"messages\":5}", "messages");
    json_decref(ask(401, "POST", "/v1/cache/explain", NULL, "{\"prompt\":\"a\"}"));
    json_decref(ask(405, "DELETE", "/v1/cache/explain", "key-admin", ""));
}

/* Without an admin key nobody is told of other salts: they may be other clients'. */
static void test_no_admin_sees_no_salts(void **state) {
    (void)state;
    complete(NULL, "abcd", SALT("t"), NULL);
    json_t *x = ask(200, "POST", "/v1/cache/explain", NULL, "{\"prompt\":\"abcd\"}");
    expect(x, 0, 0, "never_seen", "<s>", NULL);
    assert_null(json_object_get(x, "other_salt_tokens"));
    json_decref(x);
}

int main(void) {
#define TEST(f, make) cmocka_unit_test_setup_teardown(f, make, end)
    const struct CMUnitTest tests[] = {
        TEST(test_forget_salt, make_open),
        TEST(test_what_cannot_be_forgotten, make_open),
        TEST(test_forget_tenant, make_keys),
        TEST(test_forget_shared, make_shared),
        TEST(test_cache_of_bodies, make_open),
        TEST(test_no_store, make_open),
        TEST(test_who_may_pin, make_keys),
        TEST(test_nobody_may_pin, make_no_admin),
        TEST(test_recent_requests, make_keys),
        TEST(test_prompts_of_bodies, make_keys),
        TEST(test_no_admin_sees_no_salts, make_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
