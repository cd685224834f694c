/* SPDX-License-Identifier: Apache-2.0 */
/* The memory tier: what is written is read, the least recently used goes first, the limit counts
 * all, and threads may do everything at once. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "backend/null/null.h"
#include "records.h"

/* Last: cmocka has a macro `fail`. */
#include <cmocka.h>

enum { BYTES = 8192 };

static struct tier *make(uint64_t limit) {
    struct tier *t = NULL;
    assert_int_equal(
        tier_memory_create(&(struct tier_memory_options){.limit_bytes = limit}, &t, NULL),
        KVASIR_OK);
    return t;
}

static struct tier_stats stats(struct tier *t) {
    struct tier_stats s;
    t->ops->stats(t, &s);
    return s;
}

static void test_round_trip(void **state) {
    struct tier *t = make(1 << 20);
    struct test_record a = record_make(1, 1, BYTES), b = record_make(2, 1, 2 * BYTES);
    (void)state;
    assert_true(t->ops->instant);
    assert_false(record_found(t, &a));
    assert_int_equal(record_fetch(t, &a, 0), TIER_MISSING);
    assert_true(t->ops->write(t, &a.head, a.payload));
    assert_true(t->ops->write(t, &a.head, a.payload)); /* there already */
    assert_true(t->ops->write(t, &b.head, b.payload));
    assert_true(record_found(t, &a) && record_found(t, &b));
    assert_int_equal(record_fetch(t, &a, 0), TIER_OK);
    assert_int_equal(record_fetch(t, &b, 0), TIER_OK);
    assert_int_equal(stats(t).writes, 2);
    assert_int_equal(stats(t).reads, 2);
    assert_int_equal(stats(t).records, 2);
    assert_int_equal(stats(t).bytes, 3 * BYTES + 2 * RECORD_HEAD_BYTES);
    const struct tier_place place = record_place(&a);
    t->ops->drop(t, &place, a.head.key);
    t->ops->drop(t, &place, a.head.key);
    assert_int_equal(record_fetch(t, &a, 0), TIER_MISSING);
    assert_int_equal(record_fetch(t, &b, 0), TIER_OK);
    assert_int_equal(stats(t).dropped, 1);
    assert_int_equal(stats(t).missing, 2);
    t->ops->destroy(t);
    record_free(&a);
    record_free(&b);
}

/* A record that was damaged before it came, and one that is not what the reader expects. */
static void test_damage(void **state) {
    struct tier *t = make(1 << 20);
    struct test_record a = record_make(1, 1, BYTES), b = record_make(2, 1, BYTES);
    (void)state;
    a.payload[77] ^= 1;
    assert_true(t->ops->write(t, &a.head, a.payload));
    assert_int_equal(record_fetch(t, &a, 0), TIER_DAMAGED);
    assert_true(t->ops->write(t, &b.head, b.payload));
    struct tier_read read = record_read(&b);
    read.bytes = BYTES / 2;
    t->ops->read(t, &read, 1, 0);
    assert_int_equal(read.result, TIER_DAMAGED);
    read.bytes = BYTES;
    t->ops->read(t, &read, 1, 0);
    assert_int_equal(read.result, TIER_OK);
    assert_int_equal(stats(t).damaged, 2);
    free(read.payload);
    struct tier_read unchecked = record_read(&a); /* the control */
    unchecked.unchecked = true;
    t->ops->read(t, &unchecked, 1, 0);
    assert_int_equal(unchecked.result, TIER_OK);
    free(unchecked.payload);
    t->ops->destroy(t);
    record_free(&a);
    record_free(&b);
}

static void test_limit(void **state) {
    enum { LIMIT = 100000, N = 40 };
    struct tier *t = make(LIMIT);
    struct test_record r[N];
    (void)state;
    for (int i = 0; i < N; i++) {
        r[i] = record_make((uint64_t)i, 1, BYTES);
        assert_true(t->ops->write(t, &r[i].head, r[i].payload));
        assert_int_equal(record_fetch(t, &r[0], 0), TIER_OK); /* used all the time: it stays */
        const struct tier_stats s = stats(t);
        assert_true(s.bytes + s.table_bytes <= LIMIT);
    }
    const uint64_t kept = stats(t).records;
    assert_true(kept >= 10 && kept < 13);
    assert_int_equal(stats(t).dropped, N - kept);
    for (int i = 1; i < N; i++)
        assert_int_equal(record_found(t, &r[i]), i > N - (int)kept);
    struct test_record large = record_make(99, 1, 128 * 1024); /* more than the limit */
    assert_false(t->ops->write(t, &large.head, large.payload));
    assert_int_equal(stats(t).records, kept);
    assert_int_equal(stats(t).write_failures, 1);
    record_free(&large);
    for (int i = 0; i < N; i++)
        record_free(&r[i]);
    t->ops->destroy(t);
    assert_int_equal(
        tier_memory_create(&(struct tier_memory_options){.limit_bytes = 100}, &t, NULL),
        KVASIR_ERR_ARGUMENT);
}

/* The table doubles as records come: they stay found. */
static void test_many(void **state) {
    enum { N = 3000 };
    struct tier *t = make(64 << 20);
    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        struct test_record r = record_make(i, 1, 4096);
        assert_true(t->ops->write(t, &r.head, r.payload));
        record_free(&r);
    }
    assert_int_equal(stats(t).records, N);
    for (uint64_t i = 0; i < N; i += 13) {
        struct test_record r = record_make(i, 1, 4096);
        assert_int_equal(record_fetch(t, &r, 0), TIER_OK);
        record_free(&r);
    }
    t->ops->destroy(t);
}

static void test_forget(void **state) {
    struct tier *t = make(1 << 20);
    struct test_record r[4];
    (void)state;
    for (uint64_t i = 0; i < 4; i++) {
        r[i] = record_make(i, i % 2, BYTES);
        if (i == 3) { /* its time is over */
            r[i].head.expires = (uint64_t)time(NULL);
            record_seal(&r[i].head, r[i].payload);
        }
        assert_true(t->ops->write(t, &r[i].head, r[i].payload));
    }
    t->ops->rest(t);
    assert_false(record_found(t, &r[3]));
    t->ops->forget(t, r[0].head.context, &r[0].head.root, 1, NULL);
    assert_false(record_found(t, &r[0]) || record_found(t, &r[2]));
    assert_true(record_found(t, &r[1]));
    t->ops->forget(t, test_key(8, 8), NULL, 0, NULL);
    assert_true(record_found(t, &r[1]));
    t->ops->forget(t, r[1].head.context, NULL, 0, NULL);
    assert_false(record_found(t, &r[1]));
    assert_int_equal(stats(t).records, 0);
    assert_int_equal(stats(t).bytes, 0);
    for (int i = 0; i < 4; i++)
        record_free(&r[i]);
    t->ops->destroy(t);
}

/* The payload as it is lent, in pieces. */
static void check_lent(struct tier *t, struct tier_loan loan, const struct test_record *r) {
    const uint8_t *at;
    size_t bytes, seen = 0;
    while ((at = t->ops->lent(t, &loan, &bytes)) != NULL) {
        assert_memory_equal(at, r->payload + seen, bytes);
        seen += bytes;
    }
    assert_int_equal(seen, r->head.bytes);
}

/* What is lent stays as it is, whatever becomes of the record; then its blocks are used again. */
static void test_lending(void **state) {
    enum { N = 40 };
    struct tier *t = make(100000);
    struct test_record a = record_make(0, 1, 5 * 4096), b = record_make(1, 1, BYTES);
    const struct tier_place place = record_place(&a);
    struct tier_loan loan, other;
    (void)state;
    assert_false(t->ops->lend(t, a.head.key, &loan));
    assert_true(t->ops->write(t, &a.head, a.payload) && t->ops->write(t, &b.head, b.payload));
    assert_true(t->ops->lend(t, a.head.key, &loan) && t->ops->lend(t, b.head.key, &other));
    t->ops->drop(t, &place, a.head.key);
    assert_false(record_found(t, &a));
    for (uint64_t i = 2; i < N; i++) { /* records of other sizes: memory is not scattered by them */
        struct test_record r = record_make(i, 1, (1 + i % 3) * 4096);
        assert_true(t->ops->write(t, &r.head, r.payload));
        assert_int_equal(record_fetch(t, &r, 0), TIER_OK);
        record_free(&r);
    }
    assert_true(record_found(t, &b)); /* the oldest, but it is lent */
    check_lent(t, loan, &a);
    check_lent(t, other, &b);
    t->ops->give_back(t, &loan, TIER_OK, 0);
    t->ops->give_back(t, &other, TIER_DAMAGED, 0);
    assert_int_equal(stats(t).damaged, 1);
    t->ops->destroy(t); /* which counts the blocks */
    record_free(&a);
    record_free(&b);
}

static uint32_t pinned_slabs;
static void *(*pinned_alloc)(struct backend *b, size_t bytes);
static void *pin_one(struct backend *b, size_t bytes) {
    return pinned_slabs++ == 0 ? pinned_alloc(b, bytes) : NULL;
}

static void count_line(void *user, const char *line) {
    assert_non_null(strstr(line, "only 256 of 600 MiB"));
    ++*(atomic_int *)user;
}

/* A device's memory comes while records do, and may be less than was asked for. */
static void test_pinned(void **state) {
    struct backend *b;
    struct tier *t = NULL;
    atomic_int lines = 0;
    (void)state;
    assert_int_equal(backend_null_create_lanes(&b, NULL), KVASIR_OK);
    struct backend_ops ops = *b->ops;
    pinned_alloc = ops.pinned_alloc;
    ops.pinned_alloc = pin_one;
    b->ops = &ops;
    const struct tier_memory_options o = {.limit_bytes = (uint64_t)600 << 20,
                                          .block_bytes = 1 << 20,
                                          .backend = b,
                                          .complain = count_line,
                                          .user = &lines};
    assert_int_equal(tier_memory_create(&o, &t, NULL), KVASIR_OK);
    for (uint64_t i = 0; i < 300; i++) {
        struct test_record r = record_make(i, 1, BYTES);
        assert_true(t->ops->write(t, &r.head, r.payload));
        assert_int_equal(record_fetch(t, &r, 0), TIER_OK);
        record_free(&r);
    }
    assert_int_equal(stats(t).records, 256);
    assert_int_equal(lines, 1);
    t->ops->destroy(t);
    backend_destroy(b);
}

/* Blocks are large, and at most a sixteenth of a payload is lost in its last one. */
static void test_blocks(void **state) {
    (void)state;
    assert_int_equal(tier_memory_block((const uint64_t[]){3407872}, 1), 3407872);
    assert_int_equal(tier_memory_block((const uint64_t[]){1 << 20, 5 << 20}, 2), 1 << 20);
    assert_int_equal(tier_memory_block((const uint64_t[]){5000, 100}, 2), 4096);
    const uint64_t bytes[] = {1000 << 10, 1500 << 10};
    const uint32_t block = tier_memory_block(bytes, 2);
    for (int i = 0; i < 2; i++)
        assert_true((bytes[i] + block - 1) / block * block - bytes[i] <= bytes[i] / 16);
}

static void *work(void *user) {
    struct tier *t = user;
    for (uint64_t i = 0; i < 300; i++) {
        struct test_record r = record_make(i % 29, 1, BYTES);
        const struct tier_place place = record_place(&r);
        t->ops->write(t, &r.head, r.payload);
        const enum tier_result result = record_fetch(t, &r, 0);
        if (result != TIER_OK && result != TIER_MISSING)
            return t;
        if (i % 17 == 0)
            t->ops->drop(t, &place, r.head.key);
        if (i % 101 == 0)
            t->ops->forget(t, r.head.context, NULL, 0, NULL);
        stats(t);
        record_free(&r);
    }
    return NULL;
}

static void test_threads(void **state) {
    struct tier *t = make(150000);
    pthread_t threads[4];
    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, t), 0);
    for (int i = 0; i < 4; i++) {
        void *bad = NULL;
        pthread_join(threads[i], &bad);
        assert_null(bad);
    }
    t->ops->destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_damage),
        cmocka_unit_test(test_limit),      cmocka_unit_test(test_many),
        cmocka_unit_test(test_forget),     cmocka_unit_test(test_lending),
        cmocka_unit_test(test_pinned),     cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
