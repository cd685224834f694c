/* SPDX-License-Identifier: Apache-2.0 */
/* The pool and sequences against their invariants (CACHE-1 to 7 of cache.h, POOL-1 to 3, SEQ-1
 * to 3), without a model: "storing" a token is a write of a byte pattern into its page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "cache/cache_internal.h"

#include <cmocka.h>

static kvasir_error err;
static uint32_t reached; /* seq_trim's result */

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

struct world {
    struct backend *backend;
    struct kv_cache *cache;
};

/* 2 layers, 1 head of 64: an f16 page is 2 * 2 * 64 * 64 * 2 bytes = 32 KiB, an 8/8 one 20 KiB. */
static struct world make_world(struct kv_cache_options o, uint32_t window) {
    struct world w;
    struct backend_cpu_options b = {.threads = 1, .tier = CPU_TIER_REF, .act_bits = 8};
    struct kv_shape shape = {.layers = 2, .kv_heads = 1, .head_dim = 64, .window = window};
    if (!o.k.bits)
        o.k = o.v = (struct kv_format){.bits = 16, .scalar = SCALAR_F16};
    if (!o.budget_bytes)
        o.budget_bytes = 64 << 20;
    need(backend_cpu_create(&w.backend, &b, &err));
    need(kv_cache_create(w.backend, &shape, 1, &o, &w.cache, &err));
    return w;
}

static void free_world(struct world w) {
    struct kv_pool_stats s = kv_pool_stats(kv_cache_pool(w.cache));
    assert_int_equal(s.pages_used, 0);
    assert_int_equal(s.used_bytes, 0);
    kv_cache_destroy(w.cache);
    backend_destroy(w.backend);
}

static uint64_t used(struct world w) {
    return kv_pool_stats(kv_cache_pool(w.cache)).used_bytes;
}

static uint8_t *slot_of(struct kv_seq *s, uint32_t position) {
    struct kv_view v;
    seq_view(s, 0, &v);
    uint32_t i = kv_view_index(&v, position / TILE_TOKENS);
    return i == UINT32_MAX ? NULL
                           : backend_cpu_arena_bytes(v.arena) +
                                 (size_t)v.pages[i].addr * PAGE_ADDR_UNIT + position % TILE_TOKENS;
}

/* Appends n tokens in steps. Each token writes `mark` into its own byte of its page. */
static void append(struct kv_seq *s, uint32_t n, uint32_t step, uint8_t mark) {
    while (n) {
        uint32_t now = n < step ? n : step, at = seq_length(s);
        int32_t tokens[4096] = {0};
        need(seq_prepare(s, now, &err));
        for (uint32_t i = 0; i < now; i++) {
            uint8_t *slot = slot_of(s, at + i);
            assert_non_null(slot);
            *slot = mark;
            tokens[i] = mark;
        }
        seq_commit(s, tokens, now);
        n -= now;
    }
}

/* ---- pool ------------------------------------------------------------------------------------ */

static void test_taken_pages_are_zero(void **state) {
    (void)state;
    struct world w = make_world((struct kv_cache_options){0}, 0);
    for (int round = 0; round < 3; round++) {
        struct kv_seq *s, *other;
        need(seq_create(w.cache, &s, &err));
        need(seq_create(w.cache, &other, &err));
        append(other, 64, 64, 1); /* keeps the superblock alive, so that pages are recycled */
        need(seq_prepare(s, 300, &err));
        struct kv_view v;
        seq_view(s, 0, &v);
        size_t bytes = v.layouts[0].page_bytes;
        for (uint32_t i = 0; i < v.n_pages; i++) {
            uint8_t *page =
                backend_cpu_arena_bytes(v.arena) + (size_t)v.pages[i].addr * PAGE_ADDR_UNIT;
            for (size_t k = 0; k < bytes; k++)
                assert_int_equal(page[k], 0);
            memset(page, 0xff, bytes);
        }
        seq_destroy(s);
        need(seq_create(w.cache, &s, &err));
        need(seq_prepare(s, 300, &err));
        seq_view(s, 0, &v);
        for (uint32_t i = 0; i < v.n_pages; i++)
            for (size_t k = 0; k < bytes; k++)
                assert_int_equal(
                    backend_cpu_arena_bytes(v.arena)[(size_t)v.pages[i].addr * PAGE_ADDR_UNIT + k],
                    0);
        seq_destroy(s);
        seq_destroy(other);
    }
    free_world(w);
}

static void test_pages_never_overlap(void **state) {
    (void)state;
    /* Two page sizes in one pool: an exact start and a quantized rest, many sequences. */
    struct kv_cache_options o = {.k = {.bits = 8}, .v = {.bits = 3}, .quantized_start = 100};
    struct world w = make_world(o, 0);
    struct kv_seq *seqs[24];
    for (int i = 0; i < 24; i++) {
        need(seq_create(w.cache, &seqs[i], &err));
        need(seq_prepare(seqs[i], 1 + 37 * (uint32_t)i, &err));
        struct kv_view v;
        seq_view(seqs[i], 0, &v);
        for (uint32_t p = 0; p < v.n_pages; p++)
            memset(backend_cpu_arena_bytes(v.arena) + (size_t)v.pages[p].addr * PAGE_ADDR_UNIT,
                   i + 1, v.layouts[v.pages[p].layout].page_bytes);
    }
    for (int i = 0; i < 24; i++) {
        struct kv_view v;
        seq_view(seqs[i], 0, &v);
        for (uint32_t p = 0; p < v.n_pages; p++) {
            assert_int_equal(v.pages[p].layout, p < 2 ? 1 : 0); /* CACHE-7: two pages */
            const uint8_t *page =
                backend_cpu_arena_bytes(v.arena) + (size_t)v.pages[p].addr * PAGE_ADDR_UNIT;
            for (size_t k = 0; k < v.layouts[v.pages[p].layout].page_bytes; k++)
                assert_int_equal(page[k], i + 1);
        }
    }
    for (int i = 0; i < 24; i++)
        seq_destroy(seqs[i]);
    free_world(w);
}

static void test_budget(void **state) {
    (void)state;
    const uint64_t page = 32 << 10;
    struct world w = make_world((struct kv_cache_options){.budget_bytes = 4 * page}, 0);
    struct kv_seq *s;
    need(seq_create(w.cache, &s, &err));
    append(s, 130, 50, 7); /* three pages */
    assert_int_equal(used(w), 3 * page);
    assert_int_equal(seq_need_bytes(s, 320, 64, 0), 2 * page);
    assert_int_equal(seq_prepare(s, 190, &err), KVASIR_ERR_BUDGET);
    assert_non_null(strstr(err.text, "128.0 KiB")); /* the error gives the budget and the need */
    assert_non_null(strstr(err.text, "64.0 KiB"));
    assert_int_equal(used(w), 3 * page); /* CACHE-5 */
    assert_int_equal(seq_length(s), 130);
    append(s, 126, 126, 8); /* fills the budget exactly */
    assert_int_equal(used(w), 4 * page);
    assert_int_equal(seq_prepare(s, 1, &err), KVASIR_ERR_BUDGET);
    seq_destroy(s);
    free_world(w);
}

static void test_budget_counts_copies(void **state) {
    (void)state;
    const uint64_t page = 32 << 10;
    struct world w = make_world((struct kv_cache_options){.budget_bytes = 2 * page}, 0);
    struct kv_seq *a, *b;
    need(seq_create(w.cache, &a, &err));
    append(a, 100, 100, 1);
    need(seq_fork(a, &b, &err));
    assert_int_equal(used(w), 2 * page);
    assert_int_equal(seq_need_bytes(b, 101, 1, 0), page);
    assert_int_equal(seq_prepare(b, 1, &err), KVASIR_ERR_BUDGET);
    assert_int_equal(seq_length(b), 100);
    seq_destroy(a);
    append(b, 1, 1, 2); /* no other sequence holds the page now: no copy */
    assert_int_equal(used(w), 2 * page);
    seq_destroy(b);
    free_world(w);
}

/* ---- sequences ------------------------------------------------------------------------------- */

static void test_fork_copies_only_the_open_page(void **state) {
    (void)state;
    struct world w = make_world((struct kv_cache_options){0}, 0);
    struct kv_seq *a, *b;
    need(seq_create(w.cache, &a, &err));
    append(a, 150, 64, 1);
    uint64_t before = used(w);
    need(seq_fork(a, &b, &err));
    assert_int_equal(used(w), before);
    append(b, 5, 5, 2);
    append(a, 9, 3, 3);
    assert_int_equal(used(w), before + (32 << 10));
    assert_ptr_equal(slot_of(a, 127), slot_of(b, 127));
    assert_ptr_not_equal(slot_of(a, 140), slot_of(b, 140));
    for (uint32_t p = 0; p < 159; p++)
        assert_int_equal(*slot_of(a, p), p < 150 ? 1 : 3);
    for (uint32_t p = 0; p < 155; p++)
        assert_int_equal(*slot_of(b, p), p < 150 ? 1 : 2);
    seq_destroy(a);
    for (uint32_t p = 0; p < 155; p++)
        assert_int_equal(*slot_of(b, p), p < 150 ? 1 : 2);
    seq_destroy(b);
    free_world(w);
}

static void test_trim_into_a_shared_page(void **state) {
    (void)state;
    struct world w = make_world((struct kv_cache_options){0}, 0);
    struct kv_seq *a, *b;
    need(seq_create(w.cache, &a, &err));
    append(a, 192, 64, 1);
    need(seq_fork(a, &b, &err));
    need(seq_trim(b, 100, &reached, &err));
    append(b, 60, 60, 2); /* positions 100..127 lie in a page that a still holds */
    for (uint32_t p = 0; p < 192; p++)
        assert_int_equal(*slot_of(a, p), 1);
    for (uint32_t p = 0; p < 160; p++)
        assert_int_equal(*slot_of(b, p), p < 100 ? 1 : 2);
    seq_destroy(a);
    seq_destroy(b);
    free_world(w);
}

/* CACHE-4: a table holds the pages that position `length` and later ones see, and no others. */
static void check_visible(struct kv_seq *s, uint32_t keep, uint32_t span) {
    uint32_t length = seq_length(s);
    for (uint32_t p = 0; p < length; p++) {
        bool seen = p < keep || p + span > length;
        bool page_seen = p / 64 * 64 < keep || p / 64 * 64 + 63 + span > length;
        assert_int_equal(slot_of(s, p) != NULL, page_seen);
        if (seen)
            assert_int_equal(*slot_of(s, p), 1 + p % 200);
    }
}

static void test_rotation(void **state) {
    (void)state;
    static const struct {
        uint32_t max, keep;
    } shapes[] = {{128, 0}, {128, 4}, {128, 64}, {128, 65}, {100, 99}, {1, 0}, {2, 1}, {300, 130}};
    static const uint32_t steps[] = {1, 3, 64, 200};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
            struct world w = make_world(
                (struct kv_cache_options){.max_size = shapes[i].max, .keep = shapes[i].keep}, 0);
            struct kv_seq *s;
            need(seq_create(w.cache, &s, &err));
            uint64_t need_most = seq_need_bytes(s, 900, steps[k], 0);
            for (uint32_t p = 0; p < 900;) {
                uint32_t n = steps[k] < 900 - p ? steps[k] : 900 - p;
                need(seq_prepare(s, n, &err));
                assert_true(used(w) <= need_most);
                int32_t tokens[200];
                for (uint32_t j = 0; j < n; j++)
                    *slot_of(s, p + j) = (uint8_t)(tokens[j] = (int32_t)(1 + (p + j) % 200));
                seq_commit(s, tokens, n);
                p += n;
                check_visible(s, shapes[i].keep, shapes[i].max - shapes[i].keep);
                assert_int_equal(used(w), seq_bytes(s));
            }
            uint64_t peak = kv_pool_stats(kv_cache_pool(w.cache)).peak_bytes;
            assert_int_equal(peak, need_most); /* the forecast is exact */
            seq_destroy(s);
            free_world(w);
        }
    }
}

static void test_trim_after_rotation(void **state) {
    (void)state;
    struct world w = make_world((struct kv_cache_options){.max_size = 128, .keep = 4}, 0);
    struct kv_seq *s;
    need(seq_create(w.cache, &s, &err));
    for (uint32_t to = 0; to <= 500; to += 7) {
        need(seq_trim(s, 0, &reached, &err));
        for (uint32_t p = 0; p < 500; p++) {
            int32_t token = (int32_t)(1 + p % 200);
            need(seq_prepare(s, 1, &err));
            *slot_of(s, p) = (uint8_t)token;
            seq_commit(s, &token, 1);
        }
        uint64_t bytes = used(w);
        kvasir_status status = seq_trim(s, to, &reached, &err);
        /* Pages that a query at 500 does not see were dropped: 500 - 124 + 1 = 377 is in page 5. */
        bool works = to <= 64 || (to + 1 > 124 && (to + 1 - 124) / 64 >= 5);
        assert_int_equal(status == KVASIR_OK, works);
        if (works) {
            assert_int_equal(seq_length(s), to);
            check_visible(s, 4, 124);
            for (uint32_t p = to; p < to + 300; p++) {
                int32_t token = (int32_t)(1 + p % 200);
                need(seq_prepare(s, 1, &err));
                *slot_of(s, p) = (uint8_t)token;
                seq_commit(s, &token, 1);
                check_visible(s, 4, 124);
            }
        } else {
            assert_int_equal(status, KVASIR_ERR_ARGUMENT);
            assert_int_equal(used(w), bytes);
            assert_int_equal(seq_length(s), 500);
            assert_non_null(strstr(err.text, "64 or less, or 443 or more"));
        }
    }
    seq_destroy(s);
    free_world(w);
}

static void test_window_ignores_rotation(void **state) {
    (void)state;
    struct world w = make_world((struct kv_cache_options){.max_size = 512, .keep = 4}, 48);
    struct kv_seq *s;
    need(seq_create(w.cache, &s, &err));
    for (uint32_t p = 0; p < 400; p++) {
        int32_t token = (int32_t)(1 + p % 200);
        need(seq_prepare(s, 1, &err));
        *slot_of(s, p) = (uint8_t)token;
        seq_commit(s, &token, 1);
        check_visible(s, 0, 48);
        assert_true(used(w) <= 2 * (32 << 10));
    }
    seq_destroy(s);
    free_world(w);
}

static void test_random_edits_leak_nothing(void **state) {
    (void)state;
    struct kv_cache_options o = {.k = {.bits = 8},
                                 .v = {.bits = 4},
                                 .max_size = 200,
                                 .keep = 70,
                                 .quantized_start = 30,
                                 .budget_bytes = 2 << 20};
    struct world w = make_world(o, 0);
    struct kv_seq *live[8];
    uint32_t n = 0, x = 12345;
    for (int i = 0; i < 20000; i++) {
        x = x * 1664525u + 1013904223u;
        uint32_t r = x >> 8;
        if (n == 0 || (n < 8 && r % 9 == 0)) {
            need(seq_create(w.cache, &live[n++], &err));
        } else if (n < 8 && r % 9 == 1) {
            need(seq_fork(live[r / 9 % n], &live[n], &err));
            n++;
        } else if (r % 9 == 2) {
            uint32_t k = r / 9 % n;
            seq_destroy(live[k]);
            live[k] = live[--n];
        } else if (r % 9 < 5) {
            struct kv_seq *s = live[r / 9 % n];
            (void)!seq_trim(s, seq_length(s) ? r / 81 % (seq_length(s) + 1) : 0, &reached, &err);
        } else {
            struct kv_seq *s = live[r / 9 % n];
            static const int32_t tokens[100];
            uint32_t count = 1 + r / 81 % 100;
            uint64_t before = used(w);
            if (seq_prepare(s, count, &err) == KVASIR_OK)
                seq_commit(s, tokens, count);
            else
                assert_int_equal(used(w), before);
        }
        struct kv_pool_stats stats = kv_pool_stats(kv_cache_pool(w.cache));
        assert_true(stats.peak_bytes <= stats.budget_bytes);
    }
    while (n)
        seq_destroy(live[--n]);
    free_world(w);
}

/* Pages that a fork still holds are not freed when they rotate out of this table: the forecast must
 * not count on them. */
static void test_forecast_with_shared_pages(void **state) {
    (void)state;
    struct world w = make_world((struct kv_cache_options){.max_size = 512}, 0);
    struct kv_seq *a, *b;
    need(seq_create(w.cache, &a, &err));
    append(a, 640, 64, 1);
    need(seq_fork(a, &b, &err));
    uint64_t forecast = used(w) + seq_need_bytes(b, 1400, 64, 0);
    append(b, 760, 64, 2);
    assert_true(kv_pool_stats(kv_cache_pool(w.cache)).peak_bytes <= forecast);
    seq_destroy(a);
    seq_destroy(b);
    free_world(w);
}

static void test_commit_of_less_than_prepared(void **state) {
    (void)state;
    struct world w = make_world((struct kv_cache_options){0}, 0);
    struct kv_seq *s;
    static const int32_t tokens[100];
    need(seq_create(w.cache, &s, &err));
    need(seq_prepare(s, 300, &err));
    seq_commit(s, tokens, 70);
    assert_int_equal(used(w), 2 * (32 << 10));
    append(s, 100, 100, 3);
    assert_int_equal(used(w), 3 * (32 << 10));
    seq_destroy(s);
    free_world(w);
}

static void test_extreme_options(void **state) {
    (void)state;
    struct kv_shape shape = {.layers = 2, .kv_heads = 1, .head_dim = 64};
    struct kv_cache_options o = {.k = {.bits = 8}, .v = {.bits = 8}};
    uint64_t bytes, all;
    o.max_size = UINT32_MAX;
    o.keep = UINT32_MAX - 1;
    assert_int_equal(kv_cache_plan_bytes(&shape, 1, &o, 64, 64, &bytes, &err), KVASIR_ERR_ARGUMENT);
    o = (struct kv_cache_options){.k = {.bits = 8}, .v = {.bits = 8}};
    need(kv_cache_plan_bytes(&shape, 1, &o, 640, 64, &bytes, &err));
    o.quantized_start = UINT32_MAX; /* everything stays f16 */
    need(kv_cache_plan_bytes(&shape, 1, &o, 640, 64, &all, &err));
    assert_true(all > bytes);
    assert_int_equal(all, 10 * (32 << 10));
    o.quantized_start = 0;
    need(kv_cache_plan_bytes(&shape, 1, &o, UINT32_MAX - 63, 1 << 30, &all, &err));
    assert_int_equal(all, (uint64_t)67108863 * (bytes / 10));
}

/* The exact start is in the basis of the pages after it, so that one pass of attention has both. */
static void test_basis_of_the_start(void **state) {
    (void)state;
    static const uint8_t KINDS[] = {KV_ROWS, KV_ROTATED, KV_TILE};
    for (size_t i = 0; i < sizeof KINDS; i++) {
        struct kv_cache_options o = {.k = {.bits = 4, .kind = KINDS[i]},
                                     .v = {.bits = 4, .kind = KINDS[i]},
                                     .quantized_start = 64};
        struct world w = make_world(o, 0);
        const struct page_layout *start = kv_cache_start_layout(w.cache, 0);
        assert_int_equal(start->basis, kv_cache_layout(w.cache, 0, true)->basis);
        assert_true(kv_format_exact(start->k.format) && kv_format_exact(start->v.format));
        free_world(w);
    }
}

/* kv_cache_need_bytes is enough for one sequence, wherever its steps begin and end. It includes one
 * copied page, which a sequence without forks never needs. */
static void test_need_holds_for_any_steps(void **state) {
    (void)state;
    static const uint32_t spans[] = {1, 2, 33, 64, 65, 193, 200}, steps[] = {1, 2, 7, 64, 65, 220},
                          starts[] = {0, 90, 600};
    for (uint32_t i = 0; i < 7 * 6 * 3 * 2; i++) {
        const uint32_t span = spans[i % 7], step = steps[i / 7 % 6], start = starts[i / 42 % 3];
        const bool rotates = i / 126;
        struct kv_cache_options o = {.k = {.bits = 8}, .v = {.bits = 8}, .quantized_start = start};
        o.max_size = rotates ? span + 70 : 0;
        o.keep = rotates ? 70 : 0;
        struct world w = make_world(o, rotates ? 0 : span);
        for (uint32_t run = 0; run < 4; run++) {
            struct kv_seq *s;
            const uint32_t length = 1 + (uint32_t)rand() % 700;
            need(seq_create(w.cache, &s, &err));
            const uint64_t most = kv_cache_need_bytes(w.cache, length, step);
            for (uint32_t now; (now = length - seq_length(s)) > 0;) {
                static const int32_t tokens[220];
                const uint32_t n = 1 + (uint32_t)rand() % step;
                now = n < now ? n : now;
                need(seq_prepare(s, now, &err));
                assert_true(used(w) + (start ? 32 << 10 : 20 << 10) <= most);
                seq_commit(s, tokens, now);
            }
            seq_destroy(s);
        }
        free_world(w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_taken_pages_are_zero),
        cmocka_unit_test(test_pages_never_overlap),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_budget_counts_copies),
        cmocka_unit_test(test_fork_copies_only_the_open_page),
        cmocka_unit_test(test_trim_into_a_shared_page),
        cmocka_unit_test(test_rotation),
        cmocka_unit_test(test_trim_after_rotation),
        cmocka_unit_test(test_window_ignores_rotation),
        cmocka_unit_test(test_random_edits_leak_nothing),
        cmocka_unit_test(test_forecast_with_shared_pages),
        cmocka_unit_test(test_commit_of_less_than_prepared),
        cmocka_unit_test(test_extreme_options),
        cmocka_unit_test(test_basis_of_the_start),
        cmocka_unit_test(test_need_holds_for_any_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
