/* SPDX-License-Identifier: Apache-2.0 */
/* The shared tier on a cluster of three redis-servers, which the test starts: slots that move while
 * records are read (ASK, then MOVED), forgetting on all nodes, a node whose replica takes over, a
 * node that dies. Skipped without redis-server 7 or valkey-server. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "cache/tier_redis.h"
#include "records.h"
#include "redis_server.h"

/* Last: cmocka has a macro `fail`. */
#include <cmocka.h>

enum { NODES = 3, REPLICA = NODES, N = 60, BYTES = 8192 };
static const uint8_t secret[] = "a secret of some thirty bytes...";
static struct redis_server nodes[NODES + 1]; /* the last one only for test_failover */
static char ids[NODES][64];
static bool made;
static struct test_record records[N]; /* of two roots */
static _Atomic uint32_t complaints;

static void complain(void *user, const char *line) {
    (void)user;
    print_message("%s\n", line);
    atomic_fetch_add(&complaints, 1);
}

static struct tier *make(int node, const char *db) {
    char url[96];
    snprintf(url, sizeof url, "%s%s", nodes[node].url, db);
    const struct tier_redis_options o = {.url = url,
                                         .secret = secret,
                                         .secret_bytes = sizeof secret,
                                         .ttl_seconds = 600,
                                         .connect_seconds = 2,
                                         .exchange_seconds = 2,
                                         .connections = 2,
                                         .complain = complain};
    struct tier *t = NULL;
    atomic_store(&complaints, 0);
    assert_int_equal(tier_redis_create(&o, &t, NULL), KVASIR_OK);
    return t;
}

static struct tier_stats stats(struct tier *t) {
    struct tier_stats s;
    t->ops->stats(t, &s);
    return s;
}

static double soon(void) {
    return clock_seconds() + 10;
}

/* One command on a node. Its text is in out, or its integer is returned. */
static long long ask(int node, char *out, size_t room, const char *format, ...) {
    redisContext *c = redis_server_connect(&nodes[node], NULL);
    va_list args;
    long long result = -1;
    va_start(args, format);
    redisReply *r = c ? redisvCommand(c, format, args) : NULL;
    va_end(args);
    if (r && r->type == REDIS_REPLY_INTEGER)
        result = r->integer;
    else if (r && r->type == REDIS_REPLY_STRING && out)
        snprintf(out, room, "%s", r->str);
    else if (r && r->type == REDIS_REPLY_ERROR)
        print_message("%s: %s\n", format, r->str);
    freeReplyObject(r);
    if (c)
        redisFree(c);
    return result;
}

static bool all_know_all(void) {
    char text[4096];
    for (int i = 0; i < NODES; i++) {
        ask(i, text, sizeof text, "CLUSTER INFO");
        if (!strstr(text, "cluster_state:ok") || !strstr(text, "cluster_slots_assigned:16384") ||
            !strstr(text, "cluster_known_nodes:3"))
            return false;
    }
    return true;
}

static int start(void **state) {
    (void)state;
    if (!redis_server_installed())
        return 0;
    for (int i = 0; i < NODES; i++) {
        nodes[i].cluster = true;
        if (!redis_server_start(&nodes[i], NULL))
            return -1;
        ask(i, ids[i], sizeof ids[i], "CLUSTER MYID");
        ask(i, NULL, 0, "CLUSTER ADDSLOTSRANGE %d %d", i * SLOTS / NODES,
            (i + 1) * SLOTS / NODES - 1);
        if (i)
            ask(i, NULL, 0, "CLUSTER MEET 127.0.0.1 %d %d", nodes[0].port, nodes[0].bus_port);
    }
    for (int i = 0; i < 1000 && !made; i++) { /* 10 s */
        made = all_know_all();
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    for (int i = 0; i < N; i++)
        records[i] = record_make((uint64_t)i, (uint64_t)i % 2, BYTES);
    return made ? 0 : -1;
}

static int stop(void **state) {
    (void)state;
    for (int i = 0; i <= REPLICA; i++)
        redis_server_remove(&nodes[i]);
    for (int i = 0; i < N; i++)
        record_free(&records[i]);
    return 0;
}

#define NEEDS_CLUSTER()                                                                            \
    do {                                                                                           \
        if (!made) {                                                                               \
            print_message("skipped: needs redis-server 7 or valkey-server\n");                     \
            skip();                                                                                \
        }                                                                                          \
    } while (0)

/* All records in one batch; how many are right. */
static int read_all(struct tier *t) {
    struct tier_read reads[N];
    int good = 0;
    for (int i = 0; i < N; i++)
        reads[i] = record_read(&records[i]);
    t->ops->read(t, reads, N, soon());
    for (int i = 0; i < N; i++) {
        good += reads[i].result == TIER_OK && record_same(&records[i], &reads[i]);
        free(reads[i].payload);
    }
    return good;
}

static int find_all(struct tier *t) {
    int good = 0;
    for (int i = 0; i < N; i++)
        good += record_found(t, &records[i]);
    return good;
}

/* Our slot of a name is the server's. */
static void test_slots(void **state) {
    (void)state;
    NEEDS_CLUSTER();
    struct tier *t = make(0, "");
    struct redis_tier *redis = (struct redis_tier *)t;
    for (int i = 0; i < N; i++) {
        struct redis_item item;
        const struct tier_place place = record_place(&records[i]);
        seal_name(&redis->seal, &place, records[i].head.key, item.name);
        item_init(&redis->nodes, &item);
        assert_int_equal(item.slot, ask(0, NULL, 0, "CLUSTER KEYSLOT %s", item.name));
    }
    t->ops->destroy(t);
}

static void test_all_nodes(void **state) {
    (void)state;
    NEEDS_CLUSTER();
    struct tier *t = make(0, "");
    for (int i = 0; i < N; i++)
        assert_true(t->ops->write(t, &records[i].head, records[i].payload));
    for (int i = 0; i < NODES; i++)
        assert_true(ask(i, NULL, 0, "DBSIZE") > 5);
    assert_int_equal(read_all(t), N);
    struct tier *fresh = make(2, ""); /* knows nothing of slots */
    assert_int_equal(find_all(fresh), N);
    assert_int_equal(read_all(fresh), N);
    fresh->ops->destroy(fresh);
    fresh = make(1, "");
    assert_int_equal(read_all(fresh), N);
    assert_int_equal(atomic_load(&complaints), 0);
    const struct tier_place place = record_place(&records[0]);
    fresh->ops->drop(fresh, &place, records[0].head.key);
    assert_false(record_found(t, &records[0]));
    assert_true(t->ops->write(t, &records[0].head, records[0].payload));
    fresh->ops->destroy(fresh);
    t->ops->destroy(t);
}

struct reader {
    struct tier *t;
    _Atomic bool stop;
    uint32_t rounds, missed;
};

static void *reader(void *user) {
    struct reader *r = user;
    while (!atomic_load(&r->stop)) {
        r->missed += (uint32_t)(N - read_all(r->t));
        r->rounds++;
    }
    return NULL;
}

/* Of record i. */
static long long slot_of(struct tier *t, int i, char name[NAME_BYTES]) {
    const struct tier_place place = record_place(&records[i]);
    seal_name(&((struct redis_tier *)t)->seal, &place, records[i].head.key, name);
    return ask(0, NULL, 0, "CLUSTER KEYSLOT %s", name);
}

/* The slot of record i goes from its node to the next, with a stop half-way. */
static void move_slot(struct tier *t, int i, bool whole) {
    char name[NAME_BYTES];
    const struct tier_place place = record_place(&records[i]);
    const long long slot = slot_of(t, i, name);
    const int from = (int)(slot * NODES / SLOTS), to = (from + 1) % NODES;
    ask(to, NULL, 0, "CLUSTER SETSLOT %lld IMPORTING %s", slot, ids[from]);
    ask(from, NULL, 0, "CLUSTER SETSLOT %lld MIGRATING %s", slot, ids[to]);
    ask(from, NULL, 0, "MIGRATE 127.0.0.1 %d %s 0 2000", nodes[to].port, name);
    assert_true(record_found(t, &records[i])); /* by ASK */
    assert_int_equal(record_fetch(t, &records[i], soon()), TIER_OK);
    t->ops->drop(t, &place, records[i].head.key);
    assert_false(record_found(t, &records[i]));
    assert_true(t->ops->write(t, &records[i].head, records[i].payload)); /* to the new node */
    assert_int_equal(record_fetch(t, &records[i], soon()), TIER_OK);
    if (whole)
        for (int node = 0; node < NODES; node++)
            ask((to + node) % NODES, NULL, 0, "CLUSTER SETSLOT %lld NODE %s", slot, ids[to]);
    assert_int_equal(record_fetch(t, &records[i], soon()), TIER_OK);
}

/* Redis: if a heartbeat is under way while a slot moves, two nodes may send everybody to each other
 * for good. Says again whose the slots are that test_moving moves, and ends its half of a move. */
static void say_owners(struct tier *t) {
    char name[NAME_BYTES];
    for (int i = 0; i < 10; i++) {
        const long long slot = slot_of(t, i, name);
        const int from = (int)(slot * NODES / SLOTS), owner = i == 9 ? from : (from + 1) % NODES;
        for (int node = 0; node < NODES; node++)
            ask(node, NULL, 0, "CLUSTER SETSLOT %lld STABLE", slot);
        for (int node = 0; node < NODES; node++)
            ask((owner + node) % NODES, NULL, 0, "CLUSTER SETSLOT %lld NODE %s", slot, ids[owner]);
    }
}

/* Whether each node leads to all records. */
static bool nodes_agree(void) {
    bool good = true;
    for (int node = 0; node < NODES; node++) {
        struct tier *t = make(node, "");
        good = good && read_all(t) == N;
        t->ops->destroy(t);
    }
    return good;
}

/* Until they agree: the owners are said again, the records written again. */
static void make_agree(struct tier *t) {
    for (int tries = 0; tries < 50; tries++) { /* 10 s */
        say_owners(t);
        for (int i = 0; i < N; i++)
            (void)t->ops->write(t, &records[i].head, records[i].payload);
        if (nodes_agree())
            return;
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    }
    fail_msg("the nodes do not agree about slots");
}

static void test_moving(void **state) {
    pthread_t thread;
    (void)state;
    NEEDS_CLUSTER();
    struct tier *t = make(0, "");
    struct reader r = {.t = make(1, "")};
    assert_int_equal(pthread_create(&thread, NULL, reader, &r), 0);
    for (int i = 0; i < 10; i++)
        move_slot(t, i, i != 9);
    atomic_store(&r.stop, true);
    pthread_join(thread, NULL);
    const uint32_t said = atomic_load(&complaints);
    if (nodes_agree()) {
        assert_int_equal(stats(r.t).failed, 0);
        assert_true(r.rounds > 0 &&
                    r.missed <= 10 * r.rounds); /* those that were dropped, for a while */
        assert_int_equal(said, 0);
    } else {
        print_message("nodes that do not agree about slots\n");
        make_agree(t);
    }
    assert_int_equal(read_all(t), N);
    assert_int_equal(read_all(r.t), N);
    r.t->ops->destroy(r.t);
    t->ops->destroy(t);
}

static void test_forget(void **state) {
    (void)state;
    NEEDS_CLUSTER();
    struct tier *t = make(1, ""); /* has seen no MOVED: it must ask */
    long long before[NODES], left = 0;
    for (int i = 0; i < NODES; i++)
        before[i] = ask(i, NULL, 0, "DBSIZE");
    t->ops->forget(t, records[0].head.context, &records[0].head.root, 1, NULL);
    for (int i = 0; i < NODES; i++) { /* each had some of this root, and of the other */
        const long long after = ask(i, NULL, 0, "DBSIZE");
        assert_true(after > 0 && after < before[i]);
        left += after;
    }
    assert_int_equal(left, N / 2);
    assert_int_equal(find_all(t), N / 2);
    for (int i = 0; i < N; i++)
        assert_int_equal(record_found(t, &records[i]), i % 2);
    t->ops->forget(t, records[0].head.context, NULL, 0, NULL);
    for (int i = 0; i < NODES; i++)
        assert_int_equal(ask(i, NULL, 0, "DBSIZE"), 0);
    assert_int_equal(stats(t).dropped, N);
    t->ops->destroy(t);
}

static void test_database(void **state) {
    (void)state;
    NEEDS_CLUSTER();
    struct tier *t = make(0, "/1");
    for (int i = 0; i < 4; i++)
        assert_int_equal(record_fetch(t, &records[0], soon()), TIER_FAILED);
    assert_int_equal(atomic_load(&complaints), 1);
    t->ops->destroy(t);
}

/* Whether all masters know that node 1 has a replica, which has all of its records. */
static bool replica_is_ready(void) {
    char text[4096], of[80];
    bool good = ask(REPLICA, NULL, 0, "DBSIZE") == ask(1, NULL, 0, "DBSIZE");
    snprintf(of, sizeof of, "slave %s", ids[1]);
    for (int i = 0; i < NODES; i++) {
        ask(i, text, sizeof text, "CLUSTER NODES");
        good = good && strstr(text, of);
    }
    return good;
}

static void start_replica(void) {
    nodes[REPLICA].cluster = true;
    assert_true(redis_server_start(&nodes[REPLICA], NULL));
    ask(REPLICA, NULL, 0, "CLUSTER MEET 127.0.0.1 %d %d", nodes[0].port, nodes[0].bus_port);
    ask(1, NULL, 0, "CONFIG SET repl-diskless-sync-delay 0");
    char text[4096] = "";
    for (int i = 0; i < 1000 && !strstr(text, "master_link_status:up"); i++) { /* 10 s */
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        ask(REPLICA, text, sizeof text, "CLUSTER NODES");
        if (strstr(text, ids[1]) && !strstr(text, "slave"))
            ask(REPLICA, NULL, 0, "CLUSTER REPLICATE %s", ids[1]);
        ask(REPLICA, text, sizeof text, "INFO replication");
    }
    for (int i = 0; i < 1000; i++) {
        if (replica_is_ready())
            return;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    fail_msg("node 1 has got no replica");
}

/* A node dies and its replica takes over: nobody sends a MOVED for its slots. */
static void test_failover(void **state) {
    (void)state;
    NEEDS_CLUSTER();
    struct tier *t = make(0, "");
    make_agree(t);
    for (int i = 0; i < N; i++)
        assert_true(t->ops->write(t, &records[i].head, records[i].payload));
    start_replica();
    assert_int_equal(read_all(t), N);
    redis_server_kill(&nodes[1]);
    assert_in_range(read_all(t), 1, N - 1);
    ask(REPLICA, NULL, 0, "CLUSTER FAILOVER TAKEOVER");
    int there = 0;
    for (int i = 0; i < 100 && there < N; i++) { /* 10 s */
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        there = read_all(t);
    }
    assert_int_equal(there, N);
    assert_int_equal(find_all(t), N);
    const struct tier_place place = record_place(&records[0]);
    for (int i = 0; i < N; i++) {
        t->ops->drop(t, &place, records[i].head.key);
        assert_true(t->ops->write(t, &records[i].head, records[i].payload));
    }
    assert_false(stats(t).down);
    t->ops->destroy(t);
}

/* One of three dies: what the others have is still there. */
static void test_death(void **state) {
    (void)state;
    NEEDS_CLUSTER();
    struct tier *t = make(0, "");
    for (int i = 0; i < N; i++)
        assert_true(t->ops->write(t, &records[i].head, records[i].payload));
    const int there = N - (int)ask(2, NULL, 0, "DBSIZE");
    redis_server_kill(&nodes[2]);
    for (int i = 0; i < 5; i++)
        assert_int_equal(read_all(t), there);
    assert_int_equal(atomic_load(&complaints), 1);
    assert_false(stats(t).down);
    t->ops->destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots),    cmocka_unit_test(test_all_nodes),
        cmocka_unit_test(test_moving),   cmocka_unit_test(test_forget),
        cmocka_unit_test(test_database), cmocka_unit_test(test_failover),
        cmocka_unit_test(test_death),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
