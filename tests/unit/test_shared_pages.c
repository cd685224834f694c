/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences whose page tables name the same pages are computed together (cpu/attention.h). Random
 * steps of random families of sequences: every row has the bits that it has alone, on every tier,
 * however the work is cut.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu_internal.h"

#include "random_programs.h"

#include <cmocka.h> /* after util.h, which defines a macro `fail` */

enum { KV_HEADS = 2, DIM = 64, LAYERS = 2, SEQS = 12, PAGES = 24, ROWS = 4, STEPS = 60 };

static kvasir_error err;

/* Page tables over one arena. */
struct family {
    struct page_layout layout;
    struct backend_arena *arena;
    uint32_t used; /* pages */
    uint32_t n;
    struct kv_page tables[SEQS][PAGES];
    struct kv_view views[SEQS];
    struct batch_seq seqs[SEQS];
};

static void *filled(size_t n) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)random_below(20001) / 10000 - 1;
    return x;
}

static void take_page(struct family *f, struct kv_page *page) {
    *page = (struct kv_page){.addr = (uint32_t)(f->used++ * f->layout.page_bytes / PAGE_ADDR_UNIT)};
}

/* A sequence that shares the first `from` pages of another and has the others of its own. */
static void add_sequence(struct backend *b, struct family *f, uint32_t other, uint32_t from,
                         uint32_t pages) {
    const uint32_t s = f->n++;
    memcpy(f->tables[s], f->tables[other], from * sizeof f->tables[0][0]);
    for (uint32_t p = from; p < pages; p++)
        take_page(f, &f->tables[s][p]);
    f->views[s] = (struct kv_view){
        .arena = f->arena, .layouts = &f->layout, .pages = f->tables[s], .n_pages = pages};
    struct batch_seq all = {.rows = (pages - from) * TILE_TOKENS, .pos = from * TILE_TOKENS};
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const size_t n = (size_t)all.rows * KV_HEADS * DIM;
        float *k = filled(n), *v = filled(n);
        op_kv_store(b, &(struct batch){.rows = all.rows, .n_seqs = 1, .seqs = &all}, &f->views[s],
                    layer, k, v);
        free(k);
        free(v);
    }
    const uint32_t rows = 1 + random_below(ROWS),
                   first = (pages - 1) * TILE_TOKENS + random_below(TILE_TOKENS - ROWS);
    f->seqs[s] = (struct batch_seq){.rows = rows, .pos = first};
}

static void add_random_sequence(struct backend *b, struct family *f) {
    const uint32_t pages = PAGES - random_below(random_below(2) ? 6 : PAGES);
    const uint32_t other = f->n ? random_below(f->n) : 0, shared = f->views[other].n_pages;
    const uint32_t from = shared && random_below(4) ? shared - random_below(shared) : 0;
    add_sequence(b, f, other, min_u32(from, pages - 1), pages); /* rows go to a page of its own */
}

static void start_family(struct backend *b, struct family *f) {
    static const struct kv_format formats[] = {{8, SCALAR_F16, 64, KV_ROWS},
                                               {4, SCALAR_F16, 64, KV_ROWS},
                                               {16, SCALAR_F16, 0, KV_ROWS},
                                               {3, SCALAR_F16, 32, KV_ROWS}};
    memset(f, 0, sizeof *f);
    page_layout_init(&f->layout, LAYERS, KV_HEADS, DIM, formats[random_below(4)],
                     formats[random_below(4)]);
    f->arena = backend_arena_create(b, SEQS * PAGES * f->layout.page_bytes);
}

static void end_family(struct family *f, uint32_t keep, uint32_t span) {
    uint32_t row = 0;
    for (uint32_t s = 0; s < f->n; s++) {
        f->views[s].keep = keep;
        f->views[s].span = span;
        f->seqs[s].row = row;
        row += f->seqs[s].rows;
    }
}

static void check_family(struct backend *b, struct family *f) {
    static const uint32_t groups[] = {1, 2, 3, 7, 16};
    const uint32_t heads = KV_HEADS * groups[random_below(5)], layer = random_below(LAYERS);
    const struct attention_args args = {heads, 0.3f, random_below(3) ? 0 : 5.0f, NULL};
    const uint32_t rows = f->seqs[f->n - 1].row + f->seqs[f->n - 1].rows;
    const size_t n = (size_t)rows * heads * DIM;
    float *q = filled(n), *together = malloc(n * sizeof *q), *alone = malloc(n * sizeof *q);
    const int threads = cpu_of(b)->threads;
    if (random_below(2))
        cpu_of(b)->threads = 64; /* attention divides the work as for so many */
    op_attention(b, &(struct batch){.rows = rows, .n_seqs = f->n, .seqs = f->seqs}, f->views, layer,
                 q, &args, together);
    cpu_of(b)->threads = threads;
    for (uint32_t s = 0; s < f->n; s++) {
        struct batch_seq one = f->seqs[s];
        const size_t at = (size_t)one.row * heads * DIM;
        one.row = 0;
        op_attention(b, &(struct batch){.rows = one.rows, .n_seqs = 1, .seqs = &one}, &f->views[s],
                     layer, q + at, &args, alone + at);
    }
    assert_memory_equal(together, alone, n * sizeof *q);
    free(q);
    free(together);
    free(alone);
}

static void random_families(struct backend *b, int n) {
    static struct family f;
    for (int i = 0; i < n; i++) {
        random_state = (uint64_t)i + 1;
        start_family(b, &f);
        for (uint32_t s = 2 + random_below(SEQS - 1); s > 0; s--)
            add_random_sequence(b, &f);
        const uint32_t keep = random_below(4) ? 0 : random_below(600),
                       span = random_below(2) ? UINT32_MAX : 1 + random_below(1200);
        end_family(&f, keep, span);
        check_family(b, &f);
        backend_arena_destroy(b, f.arena);
    }
}

/* The windows of two sequences begin in different splits, the earlier one in either. */
static void windows_apart(struct backend *b) {
    static struct family f;
    for (int i = 0; i < 2; i++) {
        start_family(b, &f);
        add_sequence(b, &f, 0, 0, i ? 20 : PAGES);
        add_sequence(b, &f, 0, 18, i ? PAGES : 20);
        end_family(&f, 0, 900);
        for (uint32_t s = 0; s < 2; s++) {
            const uint32_t start = (f.seqs[s].pos + 1 - 900) / SPLIT_TOKENS;
            assert_int_equal(start, f.views[s].n_pages == PAGES);
        }
        check_family(b, &f);
        backend_arena_destroy(b, f.arena);
    }
}

/* A window of no tokens, and the last position of a split: no split is left. */
static void nothing_seen(struct backend *b) {
    static struct family f;
    start_family(b, &f);
    for (uint32_t s = 0; s < 2; s++) {
        add_sequence(b, &f, 0, 0, (s + 1) * SPLIT_TILES);
        f.seqs[s] = (struct batch_seq){.rows = 1, .pos = (s + 1) * SPLIT_TOKENS - 1};
    }
    end_family(&f, 0, 0);
    check_family(b, &f);
    backend_arena_destroy(b, f.arena);
}

static void test_shared_pages(void **state) {
    (void)state;
    for (int tier = 0; tier < CPU_TIER_COUNT; tier++) {
        struct backend *b;
        struct backend_cpu_options o = {.threads = 2, .tier = (enum cpu_tier)tier, .act_bits = 8};
        const struct backend_limits limits = {
            .rows = PAGES * TILE_TOKENS, .dim = 64, .head_dim = DIM};
        if (!cpu_tier_have((enum cpu_tier)tier))
            continue;
        if (backend_cpu_create(&b, &o, &err) || backend_reserve(b, &limits, &err))
            fail_msg("%s", err.text);
        random_families(b, tier == CPU_TIER_REF ? STEPS / 4 : STEPS);
        windows_apart(b);
        nothing_seen(b);
        backend_destroy(b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shared_pages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
