/* SPDX-License-Identifier: Apache-2.0 */
/* The budget bounds memory, not only use: the system is asked which pages of the arena are
 * resident (mincore) while pages of several sizes come and go. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "backend/cpu/cpu.h"
#include "cache/cache_internal.h"

#include <cmocka.h>

/* Pages of SmolLM2 with 8,4 and 4 bits, and of a model of 8 billion parameters. */
enum { LARGE = 602112, SMALL = 331776, HUGE = 3407872 };
static const uint64_t BUDGET = (uint64_t)64 << 20;

static kvasir_error err;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

struct world {
    struct backend *backend;
    struct kv_pool *pool;
    uint32_t class[3]; /* LARGE, SMALL, HUGE */
    uint32_t *pages;   /* taken; 0xffffffff: given back */
    uint32_t n;
};

static const struct kv_format F8 = {.bits = 8}, F4 = {.bits = 4};

static struct world make_world(void) {
    struct world w = {0};
    const struct backend_cpu_options o = {.threads = 1, .tier = CPU_TIER_REF, .act_bits = 8};
    need(backend_cpu_create(&w.backend, &o, &err));
    need(kv_pool_create(w.backend, BUDGET, &w.pool, &err));
    need(page_class(w.pool, LARGE, F8, F4, &w.class[0], &err));
    need(page_class(w.pool, SMALL, F4, F4, &w.class[1], &err));
    need(page_class(w.pool, HUGE, F8, F8, &w.class[2], &err));
    w.pages = calloc(1 << 12, sizeof *w.pages);
    assert_non_null(w.pages);
    return w;
}

static void free_world(struct world *w) {
    for (uint32_t i = 0; i < w->n; i++)
        if (w->pages[i] != UINT32_MAX)
            page_unref(w->pool, w->pages[i]);
    kv_pool_destroy(w->pool);
    backend_destroy(w->backend);
    free(w->pages);
}

static uint8_t *bytes_of(const struct world *w, uint32_t addr) {
    return backend_cpu_arena_bytes(pool_arena(w->pool)) + page_offset(addr);
}

/* What the system says. The address space that the tests use is at its start. */
static uint64_t resident(const struct world *w) {
    enum { UNITS = 3 * (64 << 20) / 4096 };
    static unsigned char in[UNITS];
    uint64_t n = 0;
    assert_int_equal(mincore(bytes_of(w, 0), (size_t)UNITS * 4096, in), 0);
    for (size_t i = 0; i < UNITS; i++)
        n += in[i] & 1;
    return n * 4096;
}

static void check(const struct world *w) {
    const struct kv_pool_stats s = kv_pool_stats(w->pool);
    assert_int_equal(resident(w), s.resident_bytes);
    assert_true(s.resident_bytes + s.charged_bytes <= s.budget_bytes);
    assert_true(s.table_bytes <= s.budget_bytes / 100);
}

static bool take(struct world *w, int class, size_t bytes) {
    uint32_t addr;
    if (page_take(w->pool, w->class[class], &addr, &err) != KVASIR_OK)
        return false;
    const uint8_t *page = bytes_of(w, addr);
    for (size_t i = 0; i < bytes; i += 64)
        if (page[i])
            fail_msg("a taken page is not zero at byte %zu", i);
    memset(bytes_of(w, addr), 1, bytes);
    w->pages[w->n++] = addr;
    return true;
}

static void fill(struct world *w, int class, size_t bytes) {
    for (uint32_t i = 0; take(w, class, bytes); i++)
        if (i % 16 == 0)
            check(w);
    check(w);
}

/* Frees the pages from `first` on, but for every `stay`th. */
static void evict(struct world *w, uint32_t first, uint32_t stay) {
    for (uint32_t i = first; i < w->n; i++)
        if (w->pages[i] != UINT32_MAX && (i - first) % stay) {
            page_unref(w->pool, w->pages[i]);
            w->pages[i] = UINT32_MAX;
        }
}

static void rest(struct world *w) {
    while (kv_pool_rest(w->pool))
        check(w);
    check(w);
}

/* One class fills the budget and is evicted but for one page in ten, which pin their superblocks;
 * then the next class fills it. */
static void test_classes_share_the_budget(void **state) {
    (void)state;
    static const size_t bytes[3] = {LARGE, SMALL, HUGE};
    struct world w = make_world();
    for (int round = 0; round < 6; round++) {
        const int class = round % 3;
        const uint32_t first = w.n;
        fill(&w, class, bytes[class]);
        const struct kv_pool_stats full = kv_pool_stats(w.pool);
        assert_true(full.used_bytes > BUDGET - bytes[class]);
        evict(&w, first, 10);
        assert_true(kv_pool_stats(w.pool).resident_bytes >= full.used_bytes); /* no system call */
        check(&w);
        if (round == 3)
            rest(&w);
    }
    rest(&w);
    assert_int_equal(resident(&w), kv_pool_stats(w.pool).used_bytes);
    free_world(&w);
}

/* Charges take memory from free pages, too. */
static void test_charges_count(void **state) {
    (void)state;
    struct world w = make_world();
    fill(&w, 0, LARGE);
    evict(&w, 0, 10);
    const uint64_t left = BUDGET - kv_pool_stats(w.pool).used_bytes;
    for (uint64_t part = 0; part < 8; part++) {
        need(pool_charge(w.pool, left / 8, &err));
        check(&w);
        const struct kv_pool_stats s = kv_pool_stats(w.pool); /* no more went back than had to */
        assert_true(s.resident_bytes + s.charged_bytes > BUDGET - BUDGET / 64 - 2 * LARGE);
    }
    pool_discharge(w.pool, left / 8 * 8);
    fill(&w, 1, SMALL);
    free_world(&w);
}

static long page_faults(void) {
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_minflt + usage.ru_majflt;
}

/* Superblocks that empty keep their memory for the next pages: a step that frees and takes makes no
 * system call and no page fault. Memory goes back in a rest, but for the reserve, which is there
 * before the first page is taken, and is zeroed when it is. */
static void test_reserve(void **state) {
    (void)state;
    struct world w = make_world();
    fill(&w, 2, HUGE);
    const uint64_t before = resident(&w);
    evict(&w, 0, UINT32_MAX);
    page_unref(w.pool, w.pages[0]);
    w.n = 0;
    assert_int_equal(kv_pool_stats(w.pool).used_bytes, 0);
    assert_int_equal(resident(&w), before);
    fill(&w, 2, HUGE);
    assert_int_equal(resident(&w), before);
    const long faults = page_faults(); /* of pages in and out, as in steps that evict */
    for (uint32_t i = 1; i < 200; i++) {
        uint32_t *page = &w.pages[i % w.n];
        page_unref(w.pool, *page);
        need(page_take(w.pool, w.class[2], page, &err));
        memset(bytes_of(&w, *page), 1, HUGE);
    }
    assert_int_equal(page_faults(), faults);
    evict(&w, 0, UINT32_MAX);
    pool_keep_ready(w.pool, w.class[2], 2, 2);
    pool_keep_ready(w.pool, w.class[1], 5, 5);
    rest(&w);
    assert_int_equal(resident(&w), 3 * HUGE + 5 * SMALL);
    for (int i = 0; i < 5; i++)
        assert_true(take(&w, 1, SMALL));
    assert_int_equal(resident(&w), 3 * HUGE + 5 * SMALL);
    rest(&w);
    assert_int_equal(resident(&w), 3 * HUGE + 10 * SMALL);
    pool_keep_ready(w.pool, w.class[1], 5, 9); /* more at rest, for loads */
    rest(&w);
    assert_int_equal(resident(&w), 3 * HUGE + 14 * SMALL);
    for (int i = 0; i < 9; i++)
        assert_true(take(&w, 1, SMALL));
    assert_int_equal(resident(&w), 3 * HUGE + 14 * SMALL);
    free_world(&w);
}

/* Empty superblocks of one class do not keep address space from the others for ever. */
static void test_address_space_is_used_again(void **state) {
    (void)state;
    struct world w = make_world();
    for (size_t size = 64 << 10; size < 6 << 20; size += 192 << 10) {
        uint32_t class, addr, n = 0;
        static uint32_t taken[4096];
        need(page_class(w.pool, size, F8, F8, &class, &err));
        while (page_take(w.pool, class, &addr, &err) == KVASIR_OK)
            taken[n++] = addr;
        assert_true(kv_pool_stats(w.pool).used_bytes > BUDGET - size);
        while (n)
            page_unref(w.pool, taken[--n]);
    }
    rest(&w);
    assert_int_equal(kv_pool_stats(w.pool).resident_bytes, 0);
    assert_int_equal(kv_pool_stats(w.pool).table_bytes, 0);
    free_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classes_share_the_budget), cmocka_unit_test(test_charges_count),
        cmocka_unit_test(test_reserve), cmocka_unit_test(test_address_space_is_used_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
