/* SPDX-License-Identifier: Apache-2.0 */
/* /v1/sessions and requests that continue a session: a chat's and a text's, streamed or not; forks,
 * trims, pins and lives; whose they are, and what is refused. A token is a byte; the first one of a
 * completion is "<s>". */
#include <stdio.h>
#include <string.h>

#include "http_client.h"
#include "server/sessions_kept.h"
#include "tiny_server.h"

static struct tiny_server tiny;

static int end(void **state) {
    (void)state;
    tiny_server_close(&tiny);
    return 0;
}

static void make(const char *admin, size_t n_keys) {
    static const struct server_key KEYS[] = {{.key = "key-a"}, {.key = "key-b"}};
    tiny_server_init(&tiny);
    tiny.options.api_keys = KEYS;
    tiny.options.n_api_keys = n_keys;
    tiny.options.admin_key = admin;
    tiny.options.sampling.temp = 0;
    tiny.options.session_ttl_s = 100;
    tiny_server_open(&tiny);
}

static int make_open(void **state) {
    (void)state;
    make(NULL, 0);
    return 0;
}

static int make_long(void **state) {
    (void)state;
    tiny_server_init(&tiny);
    tiny.engine_options.context.ctx = 32768;
    tiny.engine_options.cache_memory_bytes = 256 << 20;
    tiny_server_open(&tiny);
    return 0;
}

static int make_keys(void **state) {
    (void)state;
    make("key-admin", 2);
    return 0;
}

static int make_none(void **state) {
    (void)state;
    tiny_server_init(&tiny);
    tiny.options.session_ttl_s = 0;
    tiny_server_open(&tiny);
    return 0;
}

static struct client_answer send(const char *method, const char *path, const char *key,
                                 const char *body) {
    struct client c;
    char headers[64] = "";
    if (key)
        snprintf(headers, sizeof headers, "X-Api-Key: %s\r\n", key);
    assert_true(client_open(&c, tiny.port, -1));
    assert_true(client_request(&c, method, path, headers, body));
    struct client_answer a = client_read(&c);
    client_close(&c);
    return a;
}

/* The answer, to be decref'ed. Fails the test unless it has this status. */
static json_t *ask(int status, const char *method, const char *path, const char *key,
                   const char *body) {
    struct client_answer a = send(method, path, key, body);
    if (a.status != status)
        fail_msg("%s %s %s: %d, not %d: %s", method, path, body, a.status, status, a.body);
    json_t *value = json_loads(a.body, JSON_ALLOW_NUL, NULL);
    assert_non_null(value);
    free(a.body);
    return value;
}

static void refused(int status, const char *method, const char *path, const char *key,
                    const char *body, const char *message) {
    json_t *a = ask(status, method, path, key, body);
    const char *text = json_string_value(json_object_get(json_object_get(a, "error"), "message"));
    if (!text || !strstr(text, message))
        fail_msg("%s: \"%s\" does not have \"%s\"", body, text ? text : "", message);
    json_decref(a);
}

static json_int_t whole(json_t *object, const char *name) {
    json_t *value = json_object_get(object, name);
    if (!json_is_integer(value))
        fail_msg("%s is no number", name);
    return json_integer_value(value);
}

static const char *word(json_t *object, const char *name) {
    const char *text = json_string_value(json_object_get(object, name));
    assert_non_null(text);
    return text;
}

struct id {
    char text[SESSION_ID_MAX], path[128];
};

static struct id id_of(json_t *session) {
    struct id id;
    assert_string_equal(word(session, "object"), "session");
    snprintf(id.text, sizeof id.text, "%s", word(session, "id"));
    snprintf(id.path, sizeof id.path, "/v1/sessions/%s", id.text);
    json_decref(session);
    return id;
}

static struct id create(const char *key, const char *body) {
    return id_of(ask(200, "POST", "/v1/sessions", key, body));
}

/* A member of the session that is a number. */
static json_int_t now_is(const struct id *id, const char *key, const char *name) {
    json_t *a = ask(200, "GET", id->path, key, "");
    const json_int_t value = whole(a, name);
    json_decref(a);
    return value;
}

static json_t *act(int status, const struct id *id, const char *action, const char *key,
                   const char *body) {
    char path[160];
    snprintf(path, sizeof path, "%s%s", id->path, action);
    return ask(status, *action ? "POST" : "PATCH", path, key, body);
}

/* Continues it; more: further members, each with a comma before it. */
static struct said go_on(const struct id *id, const char *key, const char *path, const char *more) {
    static struct said said;
    char body[2048];
    snprintf(body, sizeof body, "{\"session\":\"%s\",\"max_tokens\":4,\"ignore_eos\":true%s}",
             id->text, more);
    struct client_answer a = send("POST", path, key, body);
    if (a.status != 200)
        fail_msg("%s: %d: %s", body, a.status, a.body);
    said_read(&a, &said);
    free(a.body);
    return said;
}
#define CHAT          "/v1/chat/completions"
#define TEXT          "/v1/completions"
#define STREAM        ",\"stream\":true,\"stream_options\":{\"include_usage\":true}"
#define MESSAGE(r, t) "{\"role\":\"" r "\",\"content\":\"" t "\"}"
#define LONG                                                                                       \
    "the quick brown fox jumps over the lazy dog and then does it again, and again, until evening"

/* ---- chats ----------------------------------------------------------------------------------- */

/* What a request without a session says to these messages. */
static struct said said_to(json_t *messages) {
    static struct said said;
    json_t *body =
        json_pack("{s:O, s:i, s:b}", "messages", messages, "max_tokens", 4, "ignore_eos", 1);
    char *text = json_dumps(body, 0);
    struct client_answer a = send("POST", CHAT, NULL, text);
    assert_int_equal(a.status, 200);
    said_read(&a, &said);
    free(a.body);
    free(text);
    json_decref(body);
    return said;
}

static void test_chat(void **state) {
    (void)state;
    json_t *made = ask(200, "POST", "/v1/sessions", NULL,
                       "{\"messages\":[" MESSAGE("system", LONG) "],\"ttl\":50}");
    assert_string_equal(word(made, "kind"), "chat");
    assert_int_equal(whole(made, "message_count"), 1);
    const json_int_t tokens = whole(made, "tokens");
    assert_in_range(tokens, strlen(LONG), strlen(LONG) + 8);
    assert_true(whole(made, "cache_bytes") > 0);
    assert_int_equal(whole(made, "ttl"), 50);
    assert_in_range(whole(made, "expires") - whole(made, "created"), 49, 51);
    assert_true(json_is_true(json_object_get(made, "pin")));
    const struct id id = id_of(made);
    for (int turn = 0; turn < 3; turn++) {
        const struct said s =
            go_on(&id, NULL, CHAT,
                  turn % 2 ? STREAM ",\"messages\":[" MESSAGE("user", "and then? ") "]"
                           : ",\"messages\":[" MESSAGE("user", "hello! ") "]");
        json_t *now = ask(200, "GET", id.path, NULL, ""),
               *messages = json_object_get(now, "messages");
        assert_int_equal(json_array_size(messages), 3 + 2 * turn);
        assert_int_equal(whole(now, "message_count"), 3 + 2 * turn);
        assert_int_equal(whole(now, "tokens"), s.prompt_tokens + s.completion_tokens);
        assert_true(s.cached_tokens >= tokens - 2);
        json_t *last = json_array_get(messages, json_array_size(messages) - 1);
        assert_string_equal(word(last, "role"), "assistant");
        assert_string_equal(word(last, "content"), s.text[0]);
        json_t *asked = json_copy(messages);
        json_array_remove(asked, json_array_size(asked) - 1);
        const struct said alone = said_to(asked);
        assert_string_equal(alone.text[0], s.text[0]);
        assert_int_equal(alone.prompt_tokens, s.prompt_tokens);
        json_decref(asked);
        json_decref(now);
    }
    const struct said s = go_on(&id, NULL, CHAT, ""); /* without a new message */
    assert_int_equal(s.completion_tokens, 4);
    assert_int_equal(now_is(&id, NULL, "message_count"), 8);
}

/* What the template shows beside messages is the session's, too. */
static void test_kept_members(void **state) {
    (void)state;
    const struct id id =
        create(NULL, "{\"messages\":[" MESSAGE("user", LONG) "],\"cache_salt\":\"s\","
                                                             "\"chat_template_kwargs\":{\"x\":1}}");
    const struct said s = go_on(&id, NULL, CHAT, "");
    assert_true(s.cached_tokens >= (int64_t)strlen(LONG) - 2);
    char body[256];
    snprintf(body, sizeof body, "{\"session\":\"%s\",\"cache_salt\":\"t\"}", id.text);
    refused(400, "POST", CHAT, NULL, body, "cache_salt: is not the session's");
}

/* ---- texts ----------------------------------------------------------------------------------- */

static void test_text(void **state) {
    (void)state;
    const struct id id = create(NULL, "{\"prompt\":\"" LONG "\"}");
    const json_int_t tokens = now_is(&id, NULL, "tokens");
    assert_int_equal(tokens, strlen(LONG) + 1);
    struct said s = go_on(&id, NULL, TEXT, ",\"prompt\":\" more\"");
    assert_int_equal(s.prompt_tokens, tokens + 5);
    assert_int_equal(s.cached_tokens, tokens);
    assert_int_equal(now_is(&id, NULL, "tokens"), tokens + 5 + 4);
    struct client_answer a = send("POST", TEXT, NULL,
                                  "{\"prompt\":\"" LONG " more\",\"max_tokens\":8,"
                                  "\"ignore_eos\":true,\"cache\":{\"no_store\":true}}");
    static struct said alone;
    said_read(&a, &alone);
    free(a.body);
    char first[64];
    snprintf(first, sizeof first, "%.60s", s.text[0]);
    s = go_on(&id, NULL, TEXT, STREAM); /* goes on where it ended */
    assert_int_equal(s.prompt_tokens, tokens + 5 + 4);
    assert_int_equal(now_is(&id, NULL, "tokens"), tokens + 5 + 8);
    if (!strstr(alone.text[0], "\xef\xbf\xbd")) { /* a character may be cut between the two */
        assert_memory_equal(alone.text[0], first, strlen(first));
        assert_string_equal(alone.text[0] + strlen(first), s.text[0]);
    }
    s = go_on(&id, NULL, TEXT, ",\"prompt\":[120,121]");
    assert_int_equal(s.prompt_tokens, tokens + 5 + 8 + 2);
}

/* ---- forks and trims ------------------------------------------------------------------------- */

static void test_forks_and_trims(void **state) {
    (void)state;
    const struct id id = create(NULL, "{\"prompt\":\"" LONG "\"}");
    const json_int_t tokens = now_is(&id, NULL, "tokens");
    json_t *made = act(200, &id, "/fork", NULL, "{\"tokens\":20,\"ttl\":7}");
    assert_string_equal(word(made, "parent"), id.text);
    assert_int_equal(whole(made, "tokens"), 20);
    assert_int_equal(whole(made, "ttl"), 7);
    const struct id part = id_of(made), same = id_of(act(200, &id, "/fork", NULL, ""));
    const struct said s = go_on(&part, NULL, TEXT, ",\"prompt\":\"a\"");
    assert_int_equal(s.cached_tokens, 20);
    assert_int_equal(now_is(&id, NULL, "tokens"), tokens);
    json_decref(act(200, &same, "/trim", NULL, "{\"tokens\":30}"));
    assert_int_equal(now_is(&same, NULL, "tokens"), 30);
    assert_int_equal(now_is(&id, NULL, "tokens"), tokens);
    json_t *list = ask(200, "GET", "/v1/sessions", NULL, "");
    assert_int_equal(json_array_size(json_object_get(list, "data")), 3);
    json_decref(list);
    json_decref(ask(200, "DELETE", id.path, NULL, ""));
    refused(404, "GET", id.path, NULL, "", "is not kept here");
    assert_int_equal(now_is(&same, NULL, "tokens"), 30);
}

static void test_trimmed_chats(void **state) {
    (void)state;
    const struct id id =
        create(NULL, "{\"messages\":[" MESSAGE("system", LONG) "," MESSAGE("user", "hi ") "]}");
    const json_int_t tokens = now_is(&id, NULL, "tokens");
    go_on(&id, NULL, CHAT, "");
    go_on(&id, NULL, CHAT, ",\"messages\":[" MESSAGE("user", "and? ") "]");
    assert_int_equal(now_is(&id, NULL, "message_count"), 5);
    const struct id fork = id_of(act(200, &id, "/fork", NULL, "{\"messages\":3}"));
    assert_int_equal(now_is(&fork, NULL, "message_count"), 3);
    assert_in_range(now_is(&fork, NULL, "tokens"), tokens, tokens + 4);
    json_decref(act(200, &id, "/trim", NULL, "{\"messages\":2}"));
    assert_in_range(now_is(&id, NULL, "tokens"), tokens - 2, tokens);
    json_decref(act(200, &id, "/trim", NULL, "{\"messages\":1}"));
    assert_int_equal(now_is(&id, NULL, "tokens"), 0); /* nobody counted them */
    const struct said s = go_on(&id, NULL, CHAT, ",\"messages\":[" MESSAGE("user", "new ") "]");
    assert_true(s.cached_tokens >= (int64_t)strlen(LONG));
    assert_int_equal(now_is(&id, NULL, "message_count"), 3);
}

/* ---- pins ------------------------------------------------------------------------------------ */

/* Waits until so many bytes are pinned: some, or 0. */
static uint64_t pinned(bool some) {
    kvasir_engine_stats stats = {0};
    for (int i = 0; i < 1000; i++) {
        kvasir_engine_get_stats(tiny.engine, &stats);
        if ((stats.pinned_bytes > 0) == some)
            break;
        pause_ms(10);
    }
    assert_true((stats.pinned_bytes > 0) == some);
    return stats.pinned_bytes;
}

static void test_pins(void **state) {
    (void)state;
    const struct id id = create(NULL, "{\"prompt\":\"" LONG LONG "\"}");
    pinned(true);
    const struct id fork = id_of(act(200, &id, "/fork", NULL, ""));
    json_decref(ask(200, "DELETE", id.path, NULL, ""));
    pause_ms(200);
    pinned(true); /* the fork holds the same pages */
    json_decref(act(200, &fork, "", NULL, "{\"pin\":false}"));
    pinned(false);
    json_decref(act(200, &fork, "", NULL, "{\"pin\":true}"));
    const uint64_t all = pinned(true);
    json_decref(act(200, &fork, "/trim", NULL, "{\"tokens\":64}"));
    for (int i = 0; i < 1000 && pinned(true) == all; i++)
        pause_ms(10);
    assert_true(pinned(true) < all);
    json_decref(ask(200, "DELETE", fork.path, NULL, ""));
    pinned(false);
    json_decref(ask(200, "POST", "/v1/sessions", NULL, "{\"prompt\":\"" LONG "\",\"pin\":false}"));
    pause_ms(100);
    pinned(false);
}

/* ---- lives ----------------------------------------------------------------------------------- */

static void test_lives(void **state) {
    (void)state;
    const struct id soon = create(NULL, "{\"prompt\":\"a" LONG "\",\"ttl\":1}"),
                    later = create(NULL, "{\"prompt\":\"b" LONG "\",\"pin\":false}");
    pinned(true);
    json_t *changed = act(200, &later, "", NULL, "{\"ttl\":60}");
    assert_int_equal(whole(changed, "ttl"), 60);
    json_decref(changed);
    pinned(false); /* once the first is over */
    refused(404, "GET", soon.path, NULL, "", "is not kept here");
    json_t *list = ask(200, "GET", "/v1/sessions", NULL, "");
    assert_int_equal(json_array_size(json_object_get(list, "data")), 1);
    json_decref(list);
}

/* One request at a time; one that does not end changes nothing. */
static void test_busy(void **state) {
    (void)state;
    struct client c;
    char body[256];
    const struct id id = create(NULL, "{\"prompt\":\"" LONG "\"}");
    const json_int_t tokens = now_is(&id, NULL, "tokens");
    snprintf(body, sizeof body,
             "{\"session\":\"%s\",\"max_tokens\":30000,\"ignore_eos\":true,\"stream\":true}",
             id.text);
    assert_true(client_open(&c, tiny.port, 4096));
    assert_true(client_request(&c, "POST", TEXT, "", body));
    assert_true(client_wait_bytes(&c, 300));
    snprintf(body, sizeof body, "{\"session\":\"%s\",\"prompt\":\"x\"}", id.text);
    refused(409, "POST", TEXT, NULL, body, "wait for its end, or fork it");
    json_decref(act(409, &id, "/trim", NULL, "{\"tokens\":3}"));
    json_decref(act(409, &id, "", NULL, "{\"ttl\":3}"));
    json_decref(act(200, &id, "/fork", NULL, ""));
    client_reset(&c);
    kvasir_engine_stats stats;
    assert_true(tiny_server_idle(&tiny, 60000, &stats));
    assert_int_equal(now_is(&id, NULL, "tokens"), tokens);
    go_on(&id, NULL, TEXT, ",\"prompt\":\"x\"");
    json_decref(ask(200, "DELETE", id.path, NULL, ""));
}

/* ---- whose they are, and what is refused ----------------------------------------------------- */

static void test_keys(void **state) {
    (void)state;
    const struct id id = create("key-a", "{\"prompt\":\"" LONG "\"}");
    char body[128];
    snprintf(body, sizeof body, "{\"session\":\"%s\",\"prompt\":\"x\"}", id.text);
    static const char *const OTHERS[] = {"key-b", "key-admin"};
    for (int i = 0; i < 2; i++) {
        char path[160];
        refused(404, "GET", id.path, OTHERS[i], "", "is not kept here");
        refused(404, "DELETE", id.path, OTHERS[i], "", "is not kept here");
        refused(404, "PATCH", id.path, OTHERS[i], "{\"ttl\":5}", "is not kept here");
        refused(404, "POST", TEXT, OTHERS[i], body, "is not kept here");
        snprintf(path, sizeof path, "%s/fork", id.path);
        refused(404, "POST", path, OTHERS[i], "", "is not kept here");
        json_t *list = ask(200, "GET", "/v1/sessions", OTHERS[i], "");
        assert_int_equal(json_array_size(json_object_get(list, "data")), 0);
        json_decref(list);
    }
    refused(403, "POST", "/v1/sessions", "key-a", "{\"prompt\":\"x\",\"pin\":true}", "admin key");
    refused(403, "PATCH", id.path, "key-a", "{\"pin\":true}", "admin key");
    create("key-admin", "{\"prompt\":\"x\",\"pin\":true}");
    for (int i = 1; i < SESSIONS_OF_KEY; i++)
        json_decref(act(200, &id, "/fork", "key-a", ""));
    json_decref(act(429, &id, "/fork", "key-a", ""));
    refused(429, "POST", "/v1/sessions", "key-a", "{\"prompt\":\"x\"}", "delete one");
    create("key-b", "{\"prompt\":\"x\"}");
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *path, *more, *message;
        int status;
    } BAD[] = {
        {TEXT, "\"prompt\":\"x\",\"echo\":true", "echo: cannot be combined", 400},
        {TEXT, "\"prompt\":\"x\",\"suffix\":\"y\"", "suffix: cannot be combined", 400},
        {TEXT, "\"prompt\":[\"x\",\"y\"]", "a session takes one", 400},
        {TEXT, "\"prompt\":\"x\",\"n\":2", "n: must be 1", 400},
        {TEXT, "\"cache\":{\"no_store\":true}", "cache.no_store: cannot be combined", 400},
        {CHAT, "\"messages\":[" MESSAGE("user", "x") "]", "continue it with /v1/completions", 400},
    };
    static const char *const STARTS[][2] = {
        {"{}", "either \"messages\" or \"prompt\""},
        {"{\"prompt\":\"x\",\"messages\":[" MESSAGE("user", "x") "]}", "either"},
        {"{\"prompt\":[\"a\",\"b\"]}", "takes one"},
        {"{\"prompt\":\"x\",\"ttl\":101}", "ttl: 101 is not between 1 and 100"},
        {"{\"prompt\":\"x\",\"pin\":1}", "pin: is a number"},
        {"{\"messages\":[]}", "messages"},
    };
    char body[512];
    const struct id id = create(NULL, "{\"prompt\":\"x\"}");
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        snprintf(body, sizeof body, "{\"session\":\"%s\",%s}", id.text, BAD[i].more);
        refused(BAD[i].status, "POST", BAD[i].path, NULL, body, BAD[i].message);
    }
    for (size_t i = 0; i < sizeof STARTS / sizeof *STARTS; i++)
        refused(400, "POST", "/v1/sessions", NULL, STARTS[i][0], STARTS[i][1]);
    refused(404, "POST", TEXT, NULL, "{\"session\":\"sess_none\",\"prompt\":\"x\"}", "sess_none");
    refused(400, "POST", TEXT, NULL, "{\"session\":5,\"prompt\":\"x\"}", "session: is a number");
    json_decref(act(400, &id, "/trim", NULL, "{\"messages\":1}"));
    json_decref(act(400, &id, "/trim", NULL, "{\"tokens\":99}"));
    json_decref(act(400, &id, "/trim", NULL, "{}"));
    json_decref(act(400, &id, "/trim", NULL, "{\"tokens\":1,\"pin\":false}"));
    json_decref(act(400, &id, "", NULL, "{\"tokens\":1}"));
    json_decref(act(400, &id, "", NULL, "{\"tll\":1}"));
    json_decref(act(404, &id, "/split", NULL, "{}"));
    refused(404, "POST", "/v1/sessions/x/y/z", NULL, "{}", "not found");
    json_t *warned = ask(200, "POST", "/v1/sessions", NULL, "{\"prompt\":\"x\",\"temprature\":1}");
    assert_int_equal(json_array_size(json_object_get(warned, "warnings")), 1);
    json_decref(warned);
    go_on(&id, NULL, TEXT, ",\"prompt\":\"x\""); /* it was not taken for good */
}

static void test_none(void **state) {
    (void)state;
    refused(400, "POST", "/v1/sessions", NULL, "{\"prompt\":\"x\"}", "keeps no sessions");
    refused(404, "GET", "/v1/sessions", NULL, "", "keeps no sessions");
    refused(400, "POST", TEXT, NULL, "{\"session\":\"s\",\"prompt\":\"x\"}",
            "session: is not supported here");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_chat, make_open, end),
        cmocka_unit_test_setup_teardown(test_kept_members, make_open, end),
        cmocka_unit_test_setup_teardown(test_text, make_open, end),
        cmocka_unit_test_setup_teardown(test_forks_and_trims, make_open, end),
        cmocka_unit_test_setup_teardown(test_trimmed_chats, make_open, end),
        cmocka_unit_test_setup_teardown(test_pins, make_open, end),
        cmocka_unit_test_setup_teardown(test_lives, make_open, end),
        cmocka_unit_test_setup_teardown(test_busy, make_long, end),
        cmocka_unit_test_setup_teardown(test_keys, make_keys, end),
        cmocka_unit_test_setup_teardown(test_refused, make_open, end),
        cmocka_unit_test_setup_teardown(test_none, make_none, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
