/* SPDX-License-Identifier: Apache-2.0 */
/* The null backend: a cache of 20 GB on it takes, copies, re-encodes and frees its pages like any
 * other, and none of them ever has memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include "backend/null/null.h"
#include "cache/cache_internal.h"

#include <cmocka.h>

/* Sanitizers keep freed memory for a while, and shadow memory for all of it. Pages of 20 GB would
 * still show. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLACK ((uint64_t)1 << 30)
#else
#define SLACK ((uint64_t)4 << 20)
#endif

static kvasir_error err;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

struct world {
    struct backend *backend;
    struct kv_cache *cache;
};

/* An f16 page of `layers` layers with 8 heads of 128: 256 KiB a layer. */
static struct world make_world(uint32_t layers, uint64_t budget_bytes, uint64_t state_bytes) {
    struct world w;
    struct kv_shape shape = {.layers = layers, .kv_heads = 8, .head_dim = 128};
    struct kv_cache_options o = {.k = {.bits = 16, .scalar = SCALAR_F16},
                                 .v = {.bits = 16, .scalar = SCALAR_F16},
                                 .state_bytes = state_bytes,
                                 .budget_bytes = budget_bytes};
    need(backend_null_create(&w.backend, &err));
    need(kv_cache_create(w.backend, &shape, 1, &o, &w.cache, &err));
    return w;
}

static void free_world(struct world w) {
    assert_int_equal(kv_pool_stats(kv_cache_pool(w.cache)).used_bytes, 0);
    kv_cache_destroy(w.cache);
    backend_destroy(w.backend);
}

static void append(struct kv_seq *s, uint32_t n) {
    static const int32_t tokens[STEP_TOKENS_MAX];
    while (n) {
        uint32_t now = n < STEP_TOKENS_MAX ? n : STEP_TOKENS_MAX;
        need(seq_prepare(s, now, &err));
        seq_commit(s, tokens, now);
        n -= now;
    }
}

static void test_pages_have_no_memory(void **state) {
    (void)state;
    const uint64_t budget = 20ull << 30, page = 512 << 10;
    const uint32_t pages = (uint32_t)(budget / page), odd = 3 * TILE_TOKENS;
    struct world w = make_world(2, budget, 0);
    struct kv_pool *pool = kv_cache_pool(w.cache);
    uint64_t before = memory_resident_peak_bytes();
    for (int round = 0; round < 3; round++) {
        struct kv_seq *s, *other, *fork;
        need(seq_create(w.cache, &s, &err));
        need(seq_create(w.cache, &other, &err));
        for (uint32_t at = 0; at + 2 * odd <= (pages - 1) * TILE_TOKENS; at += 2 * odd) {
            append(s, odd); /* in turn, so that superblocks stay when `other` goes */
            append(other, odd);
        }
        seq_destroy(other);
        append(s, (pages - 1) * TILE_TOKENS - seq_length(s) - 1); /* recycled pages */
        assert_int_equal(kv_pool_stats(pool).used_bytes, budget - page);
        need(seq_fork(s, &fork, &err));
        append(fork, 1); /* copies the open page */
        assert_int_equal(kv_pool_stats(pool).used_bytes, budget);
        seq_destroy(s);
        seq_destroy(fork);
        assert_int_equal(kv_pool_stats(pool).used_bytes, 0);
    }
    assert_true(kv_pool_stats(pool).pages_taken > 4 * pages);
    /* Token ids and page tables (before and after they grow, and a fork's), and the pool's slots,
     * for which support/budget.c has slots of its own. */
    uint64_t tables = (uint64_t)pages * (TILE_TOKENS * sizeof(int32_t) + sizeof(struct kv_page));
    uint64_t bookkeeping = 4 * tables + 2 * (budget / PAGE_ADDR_UNIT * 8);
    uint64_t grown = memory_resident_peak_bytes() - before;
    if (grown > bookkeeping + SLACK)
        fail_msg("resident memory grew by %llu bytes", (unsigned long long)grown);
    free_world(w);
}

/* On the null backend a page takes one address, whatever its size: 300,000 pages of 4 MiB, a
 * terabyte, need a few MiB of bookkeeping, and no budget is too large to be addressed. */
static void test_budgets_of_terabytes(void **state) {
    (void)state;
    enum { PAGES = 300000 };
    const uint64_t budget = 20ull << 40, page = 4 << 20;
    struct world w = make_world(16, budget, 0);
    struct kv_pool *pool = kv_cache_pool(w.cache);
    struct kv_seq *s;
    need(seq_create(w.cache, &s, &err));
    need(seq_reserve(s, PAGES * TILE_TOKENS, &err));
    const uint64_t before = memory_resident_peak_bytes();
    append(s, PAGES * TILE_TOKENS);
    assert_int_equal(kv_pool_stats(pool).used_bytes, PAGES * page);
    const uint64_t tables = PAGES * (TILE_TOKENS * sizeof(int32_t) + sizeof(struct kv_page)),
                   grown = memory_resident_peak_bytes() - before;
    if (grown > tables + PAGES * 64 + SLACK) /* slots: the pool's and budget.c's */
        fail_msg("resident memory grew by %llu bytes", (unsigned long long)grown);
    seq_destroy(s);
    free_world(w);
}

/* What is written to a page or a state is lost. Both read as zeros, also after re-encoding. */
static void test_pages_read_as_zeros(void **state) {
    (void)state;
    enum { STATE = 3 * 4096 };
    struct world w = make_world(2, 64 << 20, STATE);
    struct kv_seq *s;
    need(seq_create(w.cache, &s, &err));
    static uint8_t bytes[TILE_TOKENS * 128 * 2], record[STATE];
    static const int32_t tokens[100];
    memset(bytes, 1, sizeof bytes);
    memset(record, 1, sizeof record);
    need(seq_prepare(s, 100, &err));
    seq_write_tile(s, 0, TILE_K, 1, 3, 0, bytes);
    seq_write_state(s, record);
    seq_commit(s, tokens, 100);
    const struct tile_layout *layout;
    bool there;
    need(seq_read_tile(s, 0, TILE_K, 1, 3, 0, &there, &layout, bytes, &err));
    assert_true(there);
    assert_int_equal(layout->bytes, sizeof bytes);
    need(seq_read_state(s, record, &err));
    for (size_t i = 0; i < sizeof bytes; i++)
        assert_int_equal(bytes[i], 0);
    for (size_t i = 0; i < STATE; i++)
        assert_int_equal(record[i], 0);

    struct kv_format q4 = {.bits = 4};
    need(seq_requantize(s, q4, q4, 0, 0, &err));
    float rows[128];
    bool centred;
    need(seq_read(s, 0, TILE_V, 0, 0, 99, 1, rows, &centred, &err));
    for (int i = 0; i < 128; i++)
        assert_true(rows[i] == 0);
    seq_destroy(s);
    free_world(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_have_no_memory),
        cmocka_unit_test(test_budgets_of_terabytes),
        cmocka_unit_test(test_pages_read_as_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
