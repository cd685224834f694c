/* SPDX-License-Identifier: Apache-2.0 */
/* The thread pool: it runs every item exactly once, and all writes are visible to the next run,
 * with more threads than cores and with pauses so long that workers park. What TSan reports is part
 * of the test. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "util/util.h"

#include <cmocka.h>

enum { ITEMS_MAX = 1000 };

struct job {
    int count[ITEMS_MAX];
    long sum[64]; /* per worker */
    int threads;
};

static void item(void *ctx, size_t i, int worker) {
    struct job *j = ctx;
    assert_true(worker >= 0 && worker < j->threads);
    j->count[i]++;
    j->sum[worker] += (long)i;
}

static void test_every_item_once(void **state) {
    (void)state;
    for (int threads = 1; threads <= 9; threads += 2) {
        struct thread_pool *pool;
        assert_int_equal(thread_pool_create(&pool, threads, NULL), KVASIR_OK);
        struct job j = {.threads = threads};
        long expected = 0;
        int runs[ITEMS_MAX] = {0};
        for (int r = 0; r < 600; r++) {
            size_t items = (size_t)(r * 37 % ITEMS_MAX);
            thread_pool_run(pool, items, item, &j);
            for (size_t i = 0; i < items; i++) {
                runs[i]++;
                expected += (long)i;
            }
            if (r % 100 == 0)
                usleep(3000); /* workers park */
        }
        for (size_t i = 0; i < ITEMS_MAX; i++)
            assert_int_equal(j.count[i], runs[i]);
        long sum = 0;
        for (int w = 0; w < threads; w++)
            sum += j.sum[w];
        assert_int_equal(sum, expected);
        thread_pool_destroy(pool);
    }
}

/* Each run reads what the one before wrote, on whichever thread. */
static void chain(void *ctx, size_t i, int worker) {
    long *values = ctx; /* [2][64]: this run's, the previous run's */
    (void)worker;
    values[i] = values[64 + (i + 1) % 64] + 1;
}

static void test_runs_see_each_other(void **state) {
    (void)state;
    struct thread_pool *pool;
    assert_int_equal(thread_pool_create(&pool, 4, NULL), KVASIR_OK);
    long values[128] = {0};
    for (long r = 1; r <= 2000; r++) {
        thread_pool_run(pool, 64, chain, values);
        for (int i = 0; i < 64; i++)
            assert_int_equal(values[i], r);
        memcpy(values + 64, values, 64 * sizeof *values);
    }
    thread_pool_destroy(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_item_once),
                                       cmocka_unit_test(test_runs_see_each_other)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
