/* SPDX-License-Identifier: Apache-2.0 */
/* The shared tier on a real redis-server, which the test starts and kills, and on one that lies.
 * Without redis-server (or valkey-server) the tests that need one are skipped.
 *
 *     unit_tier_redis [--faults=N]     N rounds of every lie, with and without a secret (soak.sh)
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "cache/tier_redis.h"
#include "lying_redis.h"
#include "records.h"
#include "redis_server.h"

/* Last: cmocka has a macro `fail`. */
#include <cmocka.h>

enum { BYTES = 8192 };
static int faults_of_each = 1;
static const uint8_t secret[] = "a secret of some thirty bytes...";

/* What was complained about. */
struct lines {
    pthread_mutex_t mutex;
    char text[8192];
    uint32_t n;
};
static struct lines lines = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void complain(void *user, const char *line) {
    struct lines *l = user;
    pthread_mutex_lock(&l->mutex);
    const size_t len = strlen(l->text);
    snprintf(l->text + len, sizeof l->text - len, "%s\n", line);
    l->n++;
    pthread_mutex_unlock(&l->mutex);
}

static uint32_t said(const char *text) {
    uint32_t n = 0;
    pthread_mutex_lock(&lines.mutex);
    for (const char *at = lines.text; (at = strstr(at, text)); at++)
        n++;
    pthread_mutex_unlock(&lines.mutex);
    return n;
}

static void forget_lines(void) {
    pthread_mutex_lock(&lines.mutex);
    lines.text[0] = 0;
    lines.n = 0;
    pthread_mutex_unlock(&lines.mutex);
}

static struct tier_redis_options options(const char *url, bool with_secret) {
    return (struct tier_redis_options){.url = url,
                                       .secret = with_secret ? secret : NULL,
                                       .secret_bytes = sizeof secret,
                                       .ttl_seconds = 600,
                                       .connect_seconds = 2,
                                       .exchange_seconds = 2,
                                       .connections = 2,
                                       .complain = complain,
                                       .user = &lines};
}

static struct tier *make(const struct tier_redis_options *o) {
    struct tier *t = NULL;
    kvasir_error err;
    forget_lines();
    if (tier_redis_create(o, &t, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    return t;
}

static struct tier_stats stats(struct tier *t) {
    struct tier_stats s;
    t->ops->stats(t, &s);
    return s;
}

/* Of a server that may hang. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define EXCHANGE_SECONDS 1.0 /* other tests run beside this one */
#else
#define EXCHANGE_SECONDS 0.2
#endif

static double soon(void) {
    return clock_seconds() + 10;
}

static void sleep_seconds(double s) {
    nanosleep(&(struct timespec){(time_t)s, (long)((s - (double)(time_t)s) * 1e9)}, NULL);
}

/* ---- without a server ------------------------------------------------------------------------ */

static void test_url(void **state) {
    static const struct {
        const char *url, *host, *user, *password;
        uint16_t port;
        uint32_t db;
    } good[] = {
        {"redis://localhost:6380", "localhost", "", "", 6380, 0},
        {"redis://localhost", "localhost", "", "", 6379, 0},
        {"redis://127.0.0.1:1/3", "127.0.0.1", "", "", 1, 3},
        {"redis://[::1]:6379/", "::1", "", "", 6379, 0},
        {"redis://me:p%40ss%2f%3A@h:65535/0", "h", "me", "p@ss/:", 65535, 0},
        {"redis://:pw@h:2", "h", "", "pw", 2, 0},
        {"redis://a:b@c@h:2", "h", "a", "b@c", 2, 0},
        {"redis://a:b:c@[fe80::1%25eth0]:2", "fe80::1%eth0", "a", "b:c", 2, 0},
    };
    static const char *const bad[] = {
        "",
        "hunter2",
        "http://h:1",
        "rediss://u:hunter2@h:1",
        "redis://",
        "redis://:1",
        "redis://hunter2@h:1",
        "redis://u:@h:1",
        "redis://u:hunter2%4@h:1",
        "redis://u:hunter2%00@h:1",
        "redis://u:hunter2@h:0",
        "redis://u:hunter2@h:65536",
        "redis://u:hunter2@h:",
        "redis://u:hunter2@h:1x",
        "redis://u:hunter2@h:1/x",
        "redis://u:hunter2@h:1/99999999999",
        "redis://u:hunter2@h:1?a=b",
        "redis://u:hunter2/x@h:1",
        "redis://u:hunter2#x@h:1",
        "redis://[::1:6379",
        "redis://[::1]6379",
        "redis://::1:6379",
        "redis://u:hunter2@h%20:1",
    };
    struct redis_url url;
    kvasir_error err;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(redis_url_parse(good[i].url, &url, &err), KVASIR_OK);
        assert_string_equal(url.address.host, good[i].host);
        assert_string_equal(url.user, good[i].user);
        assert_string_equal(url.password, good[i].password);
        assert_int_equal(url.address.port, good[i].port);
        assert_int_equal(url.db, good[i].db);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(redis_url_parse(bad[i], &url, &err), KVASIR_ERR_ARGUMENT);
        assert_null(strstr(err.text, "hunter2"));
    }
    assert_int_equal(redis_url_parse("rediss://h:1", &url, &err), KVASIR_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "stunnel"));
    struct tier *t = NULL;
    struct tier_redis_options o = options("redis://h:1", true);
    o.secret_bytes = 15;
    assert_int_equal(tier_redis_create(&o, &t, &err), KVASIR_ERR_ARGUMENT);
    o = options("redis://h:1", true);
    o.exchange_seconds = 0;
    assert_int_equal(tier_redis_create(&o, &t, &err), KVASIR_ERR_ARGUMENT);
}

static void test_names(void **state) {
    const struct tier_place place = {test_key(1, 1), test_key(2, 2)};
    const struct tier_key key = test_key(3, 3);
    struct redis_seal plain, keyed, other;
    char name[4][NAME_BYTES], text[33], prefix[NAME_BYTES];
    (void)state;
    seal_init(&plain, NULL, 0);
    seal_init(&keyed, secret, sizeof secret);
    seal_init(&other, secret, sizeof secret - 1);
    seal_name(&plain, &place, key, name[0]);
    seal_name(&keyed, &place, key, name[1]);
    seal_name(&other, &place, key, name[2]);
    seal_name(&keyed, &place, key, name[3]);
    assert_int_equal(strlen(name[0]), 105);
    assert_string_equal(name[1], name[3]);
    tier_key_text(key, text);
    assert_string_equal(name[0] + 73, text);
    tier_key_text(place.context, text);
    assert_memory_equal(name[0] + 7, text, 32);
    for (int i = 1; i < 3; i++) /* context, root and key all differ */
        for (int part = 7; part < 105; part += 33) {
            assert_memory_not_equal(name[0] + part, name[i] + part, 32);
            assert_memory_not_equal(name[1] + part, name[2 * (i == 1) + 0] + part, 32);
        }
    seal_prefix(&keyed, place.context, &place.root, prefix);
    assert_memory_equal(prefix, name[1], 73);
    assert_int_equal(strlen(prefix), 73);
    seal_prefix(&keyed, place.context, NULL, prefix);
    assert_int_equal(strlen(prefix), 40);
    assert_memory_equal(prefix, name[1], 40);
    seal_deinit(&keyed);
}

/* A store that is not there has nothing, soon says so, and does not make anybody wait. */
static void test_nobody(void **state) {
    char url[64];
    (void)state;
    snprintf(url, sizeof url, "redis://127.0.0.1:%u", free_port());
    struct tier_redis_options o = options(url, false);
    struct tier *t = make(&o);
    struct test_record a = record_make(1, 1, BYTES);
    assert_int_equal(said("faults, not malice"), 1);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(record_fetch(t, &a, soon()), TIER_FAILED);
        assert_false(record_found(t, &a));
        assert_false(t->ops->write(t, &a.head, a.payload));
    }
    assert_true(stats(t).down);
    assert_int_equal(said("does not work"), 1);
    assert_int_equal(lines.n, 2);
    const double start = clock_seconds();
    for (int i = 0; i < 1000; i++)
        assert_false(record_found(t, &a));
    assert_true(clock_seconds() - start < 0.5);
    t->ops->forget(t, a.head.context, NULL, 0, NULL);
    assert_int_equal(said("may not have forgotten"), 1);
    t->ops->destroy(t);
    record_free(&a);
}

/* ---- a real server --------------------------------------------------------------------------- */

static struct redis_server server;

static int start_server(void **state) {
    (void)state;
    return !redis_server_installed() || redis_server_start(&server, NULL) ? 0 : -1;
}

static int stop_server(void **state) {
    (void)state;
    redis_server_remove(&server);
    return 0;
}

#define NEEDS_REDIS()                                                                              \
    do {                                                                                           \
        if (!redis_server_installed()) {                                                           \
            print_message("skipped: needs redis-server or valkey-server\n");                       \
            skip();                                                                                \
        }                                                                                          \
    } while (0)

/* One command on a connection of the test's own; its integer, or the length of its text. */
static long long ask(const char *format, ...) {
    redisContext *c = redis_server_connect(&server, NULL);
    va_list args;
    assert_non_null(c);
    va_start(args, format);
    redisReply *r = redisvCommand(c, format, args);
    va_end(args);
    assert_non_null(r);
    if (r->type == REDIS_REPLY_ERROR)
        fail_msg("%s", r->str);
    const long long result = r->type == REDIS_REPLY_INTEGER  ? r->integer
                             : r->type == REDIS_REPLY_STRING ? (long long)r->len
                             : r->type == REDIS_REPLY_ARRAY  ? (long long)r->elements
                                                             : -1;
    freeReplyObject(r);
    redisFree(c);
    return result;
}

static void name_of(const struct tier *t, const struct test_record *r, char name[NAME_BYTES]) {
    const struct tier_place place = record_place(r);
    seal_name(&((const struct redis_tier *)t)->seal, &place, r->head.key, name);
}

static void round_trip(bool with_secret) {
    enum { N = 20 };
    struct tier_redis_options o = options(server.url, with_secret);
    struct tier *t = make(&o);
    struct test_record r[N];
    struct tier_read reads[N];
    struct tier_key keys[N];
    bool have[N];
    char name[NAME_BYTES];
    assert_int_equal(said("faults, not malice"), !with_secret);
    for (int i = 0; i < N; i++) {
        r[i] = record_make((uint64_t)i, 1, (uint64_t)(i % 4 + 1) * 4096 + (i == 9) * 3000000);
        reads[i] = record_read(&r[i]);
        keys[i] = r[i].head.key;
        if (i % 2) {
            assert_true(t->ops->write(t, &r[i].head, r[i].payload));
            assert_true(t->ops->write(t, &r[i].head, r[i].payload)); /* there already */
        }
    }
    const struct tier_place place = record_place(&r[0]);
    t->ops->find(t, &place, keys, N, have, soon());
    t->ops->read(t, reads, N, soon());
    for (int i = 0; i < N; i++) {
        assert_int_equal(have[i], i % 2);
        assert_int_equal(reads[i].result, i % 2 ? TIER_OK : TIER_MISSING);
        assert_true(i % 2 == 0 || record_same(&r[i], &reads[i]));
    }
    assert_int_equal(stats(t).writes, N / 2);
    assert_int_equal(stats(t).reads, N / 2);
    assert_int_equal(stats(t).missing, N / 2);
    assert_true(stats(t).read_seconds > 0 && !stats(t).down);
    name_of(t, &r[1], name);
    assert_int_equal(ask("STRLEN %s", name), RECORD_HEAD_BYTES + 8192 + (with_secret ? 40 : 0));
    assert_in_range(ask("TTL %s", name), 590, 600);
    t->ops->drop(t, &place, keys[1]);
    assert_int_equal(record_fetch(t, &r[1], soon()), TIER_MISSING);
    assert_int_equal(stats(t).dropped, 1);
    t->ops->find(t, &place, keys, 0, have, soon());
    t->ops->read(t, reads, 0, soon());
    t->ops->forget(t, place.context, NULL, 0, NULL);
    t->ops->destroy(t);
    for (int i = 0; i < N; i++) {
        record_free(&r[i]);
        free(reads[i].payload);
    }
    assert_int_equal(ask("DBSIZE"), 0);
}

static void test_round_trip(void **state) {
    (void)state;
    NEEDS_REDIS();
    round_trip(false);
    round_trip(true);
}

/* Times to live: the earlier of the tier's and the record's. */
static void test_lifetimes(void **state) {
    static const struct {
        uint32_t tier;
        int64_t record; /* seconds from now; 0: none */
        int64_t ttl;    /* -1: none; 0: it is not written */
    } cases[] = {{0, 0, -1},    {600, 0, 600},  {0, 50, 50},
                 {600, 50, 50}, {60, 5000, 60}, {60, -1, 0}};
    char name[NAME_BYTES];
    (void)state;
    NEEDS_REDIS();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tier_redis_options o = options(server.url, true);
        o.ttl_seconds = cases[i].tier;
        struct tier *t = make(&o);
        struct test_record r = record_make(i, 2, BYTES);
        if (cases[i].record) {
            r.head.expires = (uint64_t)(time(NULL) + cases[i].record);
            record_seal(&r.head, r.payload);
        }
        assert_int_equal(t->ops->write(t, &r.head, r.payload), cases[i].ttl != 0);
        name_of(t, &r, name);
        const long long ttl = ask("TTL %s", name);
        assert_true(cases[i].ttl == 0  ? ttl == -2
                    : cases[i].ttl < 0 ? ttl == -1
                                       : ttl <= cases[i].ttl && ttl >= cases[i].ttl - 2);
        t->ops->forget(t, r.head.context, NULL, 0, NULL);
        t->ops->destroy(t);
        record_free(&r);
    }
}

static void test_forget(void **state) {
    enum { N = 2500 };
    struct tier_redis_options o = options(server.url, true);
    (void)state;
    NEEDS_REDIS();
    struct tier *t = make(&o);
    struct test_record mine = record_make(1, 1, BYTES), other = record_make(1, 2, BYTES);
    char name[NAME_BYTES], prefix[NAME_BYTES];
    assert_true(t->ops->write(t, &mine.head, mine.payload));
    assert_true(t->ops->write(t, &other.head, other.payload));
    name_of(t, &mine, name);
    const struct tier_place place = record_place(&mine);
    seal_prefix(&((struct redis_tier *)t)->seal, place.context, &place.root, prefix);
    ask("EVAL %s 0 %s", "for i = 1, 2500 do redis.call('SET', ARGV[1] .. i, 'x') end return 1",
        prefix);
    ask("SET %s %s", "kvasir:somebody:else", "x");
    const atomic_bool stop = true;
    assert_false(t->ops->forget(t, mine.head.context, NULL, 0, &stop));
    assert_true(record_found(t, &mine));
    t->ops->forget(t, mine.head.context, &mine.head.root, 1, NULL);
    assert_int_equal(stats(t).dropped, N + 1);
    assert_false(record_found(t, &mine));
    assert_true(record_found(t, &other));
    struct test_record some[6];
    struct tier_key roots[5]; /* of all but the last */
    for (uint64_t i = 0; i < 6; i++) {
        some[i] = record_make(i, 10 + i, BYTES);
        assert_true(t->ops->write(t, &some[i].head, some[i].payload));
        if (i < 5)
            roots[i] = some[i].head.root;
    }
    assert_true(t->ops->forget(t, mine.head.context, roots, 5, NULL));
    for (int i = 0; i < 6; i++) {
        assert_int_equal(record_found(t, &some[i]), i == 5);
        record_free(&some[i]);
    }
    assert_true(record_found(t, &other));
    t->ops->forget(t, mine.head.context, NULL, 0, NULL);
    assert_false(record_found(t, &other));
    assert_int_equal(ask("DBSIZE"), 1);
    ask("FLUSHALL");
    assert_int_equal(lines.n, 0);
    t->ops->destroy(t);
    record_free(&mine);
    record_free(&other);
}

/* A root that has reached its limit gets no more, until it was forgotten. */
static void test_root_limit(void **state) {
    struct tier_redis_options o = options(server.url, true);
    (void)state;
    NEEDS_REDIS();
    o.root_limit_bytes = 3 * BYTES;
    struct tier *t = make(&o);
    for (uint64_t i = 0; i < 6; i++) {
        struct test_record r = record_make(i, 1, BYTES), s = record_make(i, 2, BYTES);
        assert_int_equal(t->ops->write(t, &r.head, r.payload), i < 3 || i == 5);
        if (i == 4)
            t->ops->forget(t, r.head.context, &r.head.root, 1, NULL);
        if (i == 5) {
            assert_true(t->ops->write(t, &s.head, s.payload));
            assert_true(t->ops->write(t, &r.head, r.payload));
            t->ops->forget(t, r.head.context, NULL, 0, NULL);
        }
        record_free(&r);
        record_free(&s);
    }
    assert_int_equal(stats(t).writes, 5);
    assert_int_equal(ask("DBSIZE"), 0);
    t->ops->destroy(t);
}

static void test_errors(void **state) {
    struct tier_redis_options o = options(server.url, false);
    (void)state;
    NEEDS_REDIS();
    struct tier *t = make(&o);
    struct test_record a = record_make(1, 1, BYTES), b = record_make(2, 1, 1 << 20);
    char name[NAME_BYTES];
    name_of(t, &a, name);
    ask("RPUSH %s x", name); /* another type */
    assert_true(record_found(t, &a));
    assert_int_equal(record_fetch(t, &a, soon()), TIER_DAMAGED);
    ask("DEL %s", name);
    ask("SET %s hello", name); /* another length */
    assert_int_equal(record_fetch(t, &a, soon()), TIER_DAMAGED);
    const struct tier_place place = record_place(&a);
    t->ops->drop(t, &place, a.head.key);
    ask("CONFIG SET maxmemory 1");
    for (int i = 0; i < 5; i++)
        assert_false(t->ops->write(t, &b.head, b.payload));
    ask("CONFIG SET maxmemory 0");
    assert_false(stats(t).down);
    assert_true(t->ops->write(t, &b.head, b.payload));
    assert_int_equal(stats(t).write_failures, 5);
    assert_int_equal(said("OOM"), 1);
    assert_int_equal(said("WRONGTYPE"), 1);
    assert_int_equal(said("damaged or not what was asked for"), 1);
    ask("FLUSHALL");
    t->ops->destroy(t);
    record_free(&a);
    record_free(&b);
}

/* Passwords: right, wrong, of a user, none where one is needed. No line has one in it. */
static void test_passwords(void **state) {
    static const struct {
        const char *who, *db;
        bool good;
    } cases[] = {
        {":hunter2@", "", true},      {":hunter3@", "", false}, {"kv:hunter%32@", "", true},
        {"kv:hunter3@", "", false},   {"", "", false},          {":hunter2@", "/2", true},
        {":hunter2@", "/9999", false}};
    struct test_record a = record_make(1, 1, BYTES);
    struct redis_server own = {0};
    (void)state;
    NEEDS_REDIS();
    assert_true(redis_server_start(&own, "hunter2"));
    redisContext *c = redis_server_connect(&own, "hunter2");
    redisReply *reply = redisCommand(
        c, "ACL SETUSER kv on >hunter2 ~kvasir:* +get +set +exists +unlink +scan +cluster|slots "
           "+incrby +expire +select");
    assert_int_equal(reply->type, REDIS_REPLY_STATUS);
    freeReplyObject(reply);
    redisFree(c);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char url[128];
        snprintf(url, sizeof url, "redis://%s127.0.0.1:%u%s", cases[i].who, own.port, cases[i].db);
        struct tier_redis_options o = options(url, false);
        o.root_limit_bytes = 1 << 30;
        struct tier *t = make(&o);
        for (int k = 0; k < 3; k++)
            assert_int_equal(t->ops->write(t, &a.head, a.payload), cases[i].good);
        assert_int_equal(record_fetch(t, &a, soon()), cases[i].good ? TIER_OK : TIER_FAILED);
        assert_int_equal(stats(t).down, !cases[i].good);
        t->ops->forget(t, a.head.context, NULL, 0, NULL);
        assert_int_equal(said("may not have forgotten"), !cases[i].good);
        assert_int_equal(record_found(t, &a), false);
        assert_int_equal(said("hunter"), 0);
        t->ops->destroy(t);
    }
    redis_server_remove(&own);
    record_free(&a);
}

/* Killed and started again in the middle of use. */
static void test_restart(void **state) {
    struct tier_redis_options o = options(server.url, true);
    (void)state;
    NEEDS_REDIS();
    struct tier *t = make(&o);
    struct test_record a = record_make(1, 1, BYTES);
    assert_true(t->ops->write(t, &a.head, a.payload));
    assert_int_equal(record_fetch(t, &a, soon()), TIER_OK);
    redis_server_kill(&server);
    assert_true(redis_server_start(&server, NULL)); /* at once: an idle connection is dead */
    assert_int_equal(record_fetch(t, &a, soon()), TIER_MISSING);
    assert_true(t->ops->write(t, &a.head, a.payload));
    redis_server_kill(&server);
    for (int i = 0; i < 6; i++)
        assert_int_equal(record_fetch(t, &a, soon()), TIER_FAILED);
    assert_true(stats(t).down);
    assert_int_equal(said("does not work"), 1);
    assert_true(redis_server_start(&server, NULL));
    const double start = clock_seconds();
    while (!t->ops->write(t, &a.head, a.payload) && clock_seconds() < start + 5)
        sleep_seconds(0.02);
    assert_true(clock_seconds() < start + 3); /* a pause of 1 s, and its jitter */
    assert_int_equal(record_fetch(t, &a, soon()), TIER_OK);
    assert_false(stats(t).down);
    assert_int_equal(said("works again"), 1);
    assert_int_equal(lines.n, 2);
    t->ops->forget(t, a.head.context, NULL, 0, NULL);
    t->ops->destroy(t);
    record_free(&a);
}

static void *work(void *user) {
    struct tier *t = user;
    for (uint64_t i = 0; i < 60; i++) {
        struct test_record r = record_make(i % 13, 1, (i % 13 + 1) * 4096);
        const struct tier_place place = record_place(&r);
        if (!t->ops->write(t, &r.head, r.payload))
            return t;
        const enum tier_result result = record_fetch(t, &r, soon());
        if (result != TIER_OK && result != TIER_MISSING)
            return t;
        record_found(t, &r);
        if (i % 7 == 0)
            t->ops->drop(t, &place, r.head.key);
        if (i % 31 == 0)
            t->ops->forget(t, r.head.context, NULL, 0, NULL);
        stats(t);
        record_free(&r);
    }
    return NULL;
}

/* More threads than connections. */
static void test_threads(void **state) {
    struct tier_redis_options o = options(server.url, true);
    pthread_t threads[5];
    (void)state;
    NEEDS_REDIS();
    o.exchange_seconds = 10;
    struct tier *t = make(&o);
    for (int i = 0; i < 5; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, t), 0);
    for (int i = 0; i < 5; i++) {
        void *bad = NULL;
        pthread_join(threads[i], &bad);
        assert_null(bad);
    }
    assert_int_equal(lines.n, 0);
    assert_in_range(ask("CLIENT LIST") > 0, 1, 1);
    ask("FLUSHALL");
    t->ops->destroy(t);
}

/* ---- a server that lies ---------------------------------------------------------------------- */

/* What a read of one record gives, without a secret and with one. */
static const enum tier_result of_lie[LIES][2] = {
    [LIE_NONE] = {TIER_OK, TIER_OK},
    [LIE_FLIP] = {TIER_DAMAGED, TIER_DAMAGED},
    [LIE_OTHER] = {TIER_DAMAGED, TIER_DAMAGED},
    [LIE_FORGE] = {TIER_OK, TIER_DAMAGED}, /* what a secret is for; and the control */
    [LIE_CLAIM] = {TIER_OK, TIER_DAMAGED}, /* likewise; record_is says that it is not wanted */
    [LIE_MISS] = {TIER_MISSING, TIER_MISSING},
    [LIE_SHORT] = {TIER_DAMAGED, TIER_DAMAGED},
    [LIE_LONG] = {TIER_DAMAGED, TIER_DAMAGED},
    [LIE_LENGTH] = {TIER_FAILED, TIER_FAILED},
    [LIE_CUT] = {TIER_FAILED, TIER_FAILED},
    [LIE_CLOSE] = {TIER_FAILED, TIER_FAILED},
    [LIE_STALL] = {TIER_FAILED, TIER_FAILED},
    [LIE_HANG] = {TIER_FAILED, TIER_FAILED},
    [LIE_DRIP] = {TIER_FAILED, TIER_FAILED},
    [LIE_HUGE] = {TIER_DAMAGED, TIER_DAMAGED},
    [LIE_LARGE] = {TIER_DAMAGED, TIER_DAMAGED},
    [LIE_NEGATIVE] = {TIER_FAILED, TIER_FAILED},
    [LIE_ARRAY] = {TIER_FAILED, TIER_FAILED},
    [LIE_NESTED] = {TIER_FAILED, TIER_FAILED},
    [LIE_INTEGER] = {TIER_FAILED, TIER_FAILED},
    [LIE_STATUS] = {TIER_FAILED, TIER_FAILED},
    [LIE_TYPE] = {TIER_DAMAGED, TIER_DAMAGED},
    [LIE_LOADING] = {TIER_FAILED, TIER_FAILED},
    [LIE_ERROR] = {TIER_FAILED, TIER_FAILED},
    [LIE_LINE] = {TIER_FAILED, TIER_FAILED},
    [LIE_NOISE] = {TIER_FAILED, TIER_FAILED},
    [LIE_MOVED] = {TIER_FAILED, TIER_FAILED},
    [LIE_ASK] = {TIER_FAILED, TIER_FAILED},
    [LIE_MOVED_BAD] = {TIER_FAILED, TIER_FAILED},
};

static void count_ended(struct tier_read *r) {
    assert_int_equal(r->result, TIER_OK);
    ++*(uint64_t *)r->user;
}

/* Every lie in a batch: all that is OK is right (but what is forged without a secret), each fault
 * is counted, and the tier works when the server does. */
static void lie_once(struct lying_redis *s, enum lie lie, bool with_secret) {
    enum { N = 4 };
    struct tier_redis_options o = options(s->url, with_secret);
    o.exchange_seconds = EXCHANGE_SECONDS;
    struct tier *t = make(&o);
    struct test_record r[N];
    struct tier_read reads[N];
    const uint64_t told = atomic_load(&s->told);
    uint64_t counted[TIER_RESULTS] = {0}, ended = 0;
    for (int i = 0; i < N; i++) {
        r[i] = record_make((uint64_t)i, lie, BYTES);
        assert_true(t->ops->write(t, &r[i].head, r[i].payload));
        reads[i] = record_read(&r[i]);
        reads[i].ended = count_ended;
        reads[i].user = &ended;
    }
    atomic_store(&s->lie, lie);
    const double start = clock_seconds();
    t->ops->read(t, reads, N, soon());
    assert_true(clock_seconds() - start < 10 * EXCHANGE_SECONDS);
    atomic_store(&s->lie, LIE_NONE);
    assert_true(lie == LIE_NONE || atomic_load(&s->told) > told);
    for (int i = 0; i < N; i++) {
        counted[reads[i].result]++;
        const bool same = reads[i].result == TIER_OK && record_same(&r[i], &reads[i]);
        /* The first has the lie; those behind it may have failed with the connection. */
        if (reads[i].result != of_lie[lie][with_secret] && !(i && reads[i].result == TIER_FAILED))
            fail_msg("%s, %d: result %d", lie_name(lie), i, reads[i].result);
        if (reads[i].result == TIER_OK && same != (lie != LIE_FORGE && lie != LIE_CLAIM))
            fail_msg("%s: wrong bytes", lie_name(lie));
        free(reads[i].payload);
    }
    const struct tier_stats now = stats(t);
    assert_int_equal(now.reads, counted[TIER_OK]);
    assert_int_equal(ended, counted[TIER_OK]); /* as soon as it has come */
    assert_int_equal(now.missing, counted[TIER_MISSING]);
    assert_int_equal(now.damaged, counted[TIER_DAMAGED]);
    assert_int_equal(now.failed, counted[TIER_FAILED]);
    for (int i = 0; i < N; i++) {
        assert_int_equal(record_fetch(t, &r[i], soon()), TIER_OK);
        record_free(&r[i]);
    }
    t->ops->destroy(t);
}

static void test_lies(void **state) {
    struct lying_redis s;
    (void)state;
    assert_true(lying_redis_start(&s));
    for (int lie = 0; lie < LIES; lie++)
        for (int i = 0; i < 2 * faults_of_each; i++)
            lie_once(&s, (enum lie)lie, i % 2);
    if (faults_of_each > 1)
        print_message("%llu faults\n", (unsigned long long)atomic_load(&s.told));
    lying_redis_stop(&s);
}

/* A lie in answer to EXISTS, SCAN and CLUSTER SLOTS. */
static void test_other_lies(void **state) {
    struct lying_redis s;
    (void)state;
    assert_true(lying_redis_start(&s));
    for (int lie = LIE_CLOSE; lie < LIES; lie++) {
        struct tier_redis_options o = options(s.url, false);
        o.exchange_seconds = EXCHANGE_SECONDS;
        struct tier *t = make(&o);
        struct test_record a = record_make(1, 1, BYTES);
        t->ops->write(t, &a.head, a.payload);
        atomic_store(&s.lie, lie);
        assert_false(record_found(t, &a));
        t->ops->forget(t, a.head.context, NULL, 0, NULL);
        assert_int_equal(said("may not have forgotten"), 1);
        atomic_store(&s.lie, LIE_NONE);
        assert_true(lie == LIE_LOADING || record_found(t, &a));
        t->ops->destroy(t);
        record_free(&a);
    }
    lying_redis_stop(&s);
}

/* Whoever hangs is waited for no longer than the caller has time, and then not any more. */
static void test_deadlines(void **state) {
    struct lying_redis s;
    (void)state;
    assert_true(lying_redis_start(&s));
    struct tier_redis_options o = options(s.url, false);
    o.exchange_seconds = 5;
    struct tier *t = make(&o);
    struct test_record a = record_make(1, 1, BYTES);
    assert_true(t->ops->write(t, &a.head, a.payload));
    double start = clock_seconds();
    atomic_store(&s.lie, LIE_DRIP); /* bytes come: the caller is in a hurry, the server is fine */
    for (int i = 0; i < 4; i++)
        assert_int_equal(record_fetch(t, &a, clock_seconds() + 0.05), TIER_FAILED);
    assert_false(stats(t).down);
    atomic_store(&s.lie, LIE_HANG);
    for (int i = 0; i < 3; i++)
        assert_int_equal(record_fetch(t, &a, clock_seconds() + 0.05), TIER_FAILED);
    assert_true(stats(t).down);
    assert_true(clock_seconds() - start < 1);
    start = clock_seconds();
    atomic_store(&s.lie, LIE_NONE);
    assert_int_equal(record_fetch(t, &a, clock_seconds() + 0.05), TIER_FAILED); /* not even asked */
    assert_true(clock_seconds() - start < 0.05);
    assert_int_equal(record_fetch(t, &a, clock_seconds() - 1), TIER_FAILED);
    t->ops->destroy(t);
    record_free(&a);
    lying_redis_stop(&s);
}

/* An error's text comes from outside: once of a kind, without what a terminal would obey. */
static void test_error_text(void **state) {
    struct lying_redis s;
    char url[96];
    (void)state;
    assert_true(lying_redis_start(&s));
    snprintf(url, sizeof url, "redis://:hunter2-password@127.0.0.1:%u", s.port);
    for (int with_password = 0; with_password < 2; with_password++) {
        struct tier_redis_options o = options(with_password ? url : s.url, true);
        struct tier *t = make(&o);
        struct test_record a = record_make(1, 1, BYTES);
        t->ops->write(t, &a.head, a.payload);
        atomic_store(&s.lie, LIE_ERROR);
        for (int i = 0; i < 5; i++)
            assert_int_equal(record_fetch(t, &a, soon()), TIER_FAILED);
        atomic_store(&s.lie, LIE_NONE);
        assert_int_equal(lines.n, 1);
        assert_int_equal(said("hunter2-password"), !with_password);
        assert_int_equal(said("\x1b") + said("\x07"), 0);
        assert_int_equal(said("ODD ?[31mred? %n%s"), !with_password);
        t->ops->destroy(t);
        record_free(&a);
    }
    lying_redis_stop(&s);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_url),        cmocka_unit_test(test_names),
        cmocka_unit_test(test_nobody),     cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_lifetimes),  cmocka_unit_test(test_forget),
        cmocka_unit_test(test_root_limit), cmocka_unit_test(test_errors),
        cmocka_unit_test(test_passwords),  cmocka_unit_test(test_restart),
        cmocka_unit_test(test_threads),    cmocka_unit_test(test_lies),
        cmocka_unit_test(test_other_lies), cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_error_text),
    };
    if (argc > 1 && strncmp(argv[1], "--faults=", 9) == 0)
        faults_of_each = atoi(argv[1] + 9);
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
