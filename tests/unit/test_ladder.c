/* SPDX-License-Identifier: Apache-2.0 */
/* kv_bits "auto": the order in which pages get fewer bits, the floor, the budget, who holds a page,
 * and what is left of its rows. The name of each test says what it holds. */
#include "model_files.h"

#include <math.h>
#include <string.h>

#include "cache/seq_internal.h"
#include "cache/tree_internal.h"
#include "engine/engine.h"

enum { PAGES = 4, TOKENS = PAGES * TILE_TOKENS, PROMPTS = 8, ROOMY_MIB = 64 };

static kvasir_error err;
static kvasir_model *model;
static int32_t text[PROMPTS][2 * TOKENS];

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static int set_up(void **state) {
    uint32_t r = 5;
    (void)state;
    for (int p = 0; p < PROMPTS; p++)
        for (int i = 0; i < 2 * TOKENS; i++) {
            r = r * 1664525 + 1013904223;
            text[p][i] = (int32_t)(r >> 16) % 512;
        }
    need(kvasir_model_open(SHARED_DIR "/fixtures/tiny/llama", &model, &err));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    kvasir_model_close(model);
    return 0;
}

/* ---- a context and a tree -------------------------------------------------------------------- */

struct world {
    kvasir_context *ctx;
    struct kv_cache *cache;
    struct prefix_tree *tree;
};

static kvasir_context_options options_of(const char *bits, const char *floor, uint64_t budget) {
    kvasir_context_options o = kvasir_context_defaults();
    o.kv_bits = bits;
    o.kv_floor = floor;
    o.quantized_kv_start = 0; /* by format: test_the_exact_start_stays */
    o.ctx = 4096;
    o.threads = 1;
    o.prefill_chunk = TILE_TOKENS;
    o.cache_bytes = budget;
    return o;
}

static struct world open_world(const kvasir_context_options *o) {
    struct world w;
    need(kvasir_context_create(model, o, &w.ctx, &err));
    w.cache = w.ctx->cache;
    need(tree_create(w.cache, 1000, &w.tree, &err));
    return w;
}

static struct world roomy_world(const char *floor) {
    const kvasir_context_options o = options_of("auto", floor, ROOMY_MIB << 20);
    return open_world(&o);
}

static void close_world(struct world *w) {
    tree_check(w->tree);
    tree_destroy(w->tree);
    kvasir_context_destroy(w->ctx);
}

static uint64_t free_bytes(const struct world *w) {
    const struct kv_pool_stats p = kv_pool_stats(w->cache->pool);
    return p.budget_bytes - p.used_bytes - p.charged_bytes;
}

/* As many pages go down as one more byte takes: one. */
static bool one_down(const struct world *w) {
    return kv_cache_make_room(w->cache, free_bytes(w) + 1);
}

static void all_down(const struct world *w) {
    assert_false(kv_cache_make_room(w->cache, UINT64_MAX));
}

/* A sequence of n tokens of prompt p that stores them. */
static kvasir_seq *begin(struct world *w, int p, uint32_t n, struct tree_cursor *at) {
    kvasir_seq *s;
    struct tree_hit hit;
    need(kvasir_seq_create(w->ctx, &s, &err));
    need(tree_resume(w->tree, "", 0, text[p], n, s->seq, at, &hit, &err));
    tree_count(w->tree, at, text[p], n);
    need(kvasir_seq_eval(s, text[p] + hit.length, n - hit.length, NULL, &err));
    tree_store(w->tree, at, s->seq, true);
    return s;
}

static void end(struct world *w, kvasir_seq *s, struct tree_cursor *at) {
    kvasir_seq_destroy(s);
    tree_close(w->tree, at);
}

static void store(struct world *w, int p, uint32_t n) {
    struct tree_cursor at;
    end(w, begin(w, p, n, &at), &at);
}

/* The rank of a stored page of prompt p. */
static uint32_t stored_rank(const struct world *w, int p, uint32_t number) {
    const uint32_t n = (number + 1) * TILE_TOKENS, root = tree_find_root(w->tree, "", 0),
                   x = tree_walk(w->tree, root, text[p], n, n).node;
    assert_int_equal(node_end(w->tree, x), n);
    return ladder_rank(w->cache, 0, node_page(w->tree, x, 0)->layout);
}

static uint32_t held_rank(const kvasir_seq *s, uint32_t number) {
    return ladder_rank(s->ctx->cache, 0, s->seq->tables[0].pages[number].layout);
}

/* ---- order and floor ------------------------------------------------------------------------- */

/* Pages that go down of a prompt of TOKENS: all but the first. */
enum { DOWN = PAGES - 1 };

static void test_least_used_first_and_all_of_a_rank_before_the_next(void **state) {
    (void)state;
    struct world w = roomy_world(NULL);
    struct tree_cursor at;
    store(&w, 1, TOKENS);
    store(&w, 2, TOKENS);
    kvasir_seq *live = begin(&w, 0, TOKENS + 10, &at), *alone;
    store(&w, 2, TOKENS + 1); /* a use: it is the newest now */
    need(kvasir_seq_create(w.ctx, &alone, &err));
    need(kvasir_seq_eval(alone, text[3], TOKENS, NULL, &err));
    for (uint32_t rank = 0; rank < 2; rank++) {
        for (uint32_t i = 0; i < 4 * DOWN; i++) {
            /* stored and old, stored and new, held by a sequence, not stored */
            for (uint32_t k = 0; k < DOWN; k++) {
                assert_int_equal(stored_rank(&w, 1, k + 1), rank + (k < i));
                assert_int_equal(stored_rank(&w, 2, k + 1), rank + (k + DOWN < i));
                assert_int_equal(stored_rank(&w, 0, k + 1), rank + (k + 2 * DOWN < i));
                assert_int_equal(held_rank(live, k + 1), rank + (k + 2 * DOWN < i));
                assert_int_equal(held_rank(alone, k + 1), rank + (k + 3 * DOWN < i));
            }
            assert_true(one_down(&w));
            tree_check(w.tree);
        }
        assert_int_equal(kv_cache_descended(w.cache, rank), 4 * DOWN);
    }
    assert_false(one_down(&w));
    assert_int_equal(held_rank(live, PAGES), 0); /* it is not full */
    assert_int_equal(seq_descended_pages(live->seq), DOWN);
    for (int p = 0; p < 3; p++)
        assert_int_equal(stored_rank(&w, p, 0), 0); /* the first page stays */
    assert_int_equal(held_rank(alone, 0), 0);
    assert_int_equal(kv_cache_ladder_bytes(w.cache), 0);
    kvasir_seq_destroy(alone);
    end(&w, live, &at);
    close_world(&w);
}

static void test_no_page_goes_below_the_floor(void **state) {
    (void)state;
    static const char *const FLOORS[] = {"r8,4", "t4", "t3", NULL};
    static const uint32_t RANKS[] = {NO_RANK, 1, 2, 2};
    for (int i = 0; i < 4; i++) {
        struct world w = roomy_world(FLOORS[i]);
        store(&w, 1, TOKENS);
        all_down(&w);
        for (uint32_t k = 1; k < PAGES; k++)
            assert_int_equal(stored_rank(&w, 1, k), RANKS[i]);
        close_world(&w);
    }
    const struct {
        const char *bits, *floor;
    } bad[] = {{"auto", "8"}, {"auto", "t2"}, {"r8,4", "t4"}};
    for (int i = 0; i < 3; i++) {
        const kvasir_context_options o = options_of(bad[i].bits, bad[i].floor, ROOMY_MIB << 20);
        kvasir_context *c;
        assert_int_equal(kvasir_context_create(model, &o, &c, &err), KVASIR_ERR_ARGUMENT);
        assert_string_equal(err.field, "context.kv_floor");
    }
}

static void test_nothing_is_evicted_before_all_is_at_the_floor(void **state) {
    (void)state;
    struct world w = roomy_world("t3");
    uint64_t down = 0;
    for (int p = 0; p < 3; p++)
        store(&w, p, TOKENS);
    while (tree_make_room(w.tree, free_bytes(&w) + 1)) {
        const uint64_t now = kv_cache_descended(w.cache, 0) + kv_cache_descended(w.cache, 1);
        assert_int_equal(now, down + (tree_stats(w.tree).evicted_pages == 0));
        down = now;
    }
    assert_int_equal(down, 2 * 3 * DOWN);
    assert_int_equal(tree_stats(w.tree).evicted_pages, 3 * PAGES);
    close_world(&w);
}

/* What auto has unless another start is asked for: the first page is 16-bit, and stays, and so does
 * the next one. */
static void test_the_exact_start_stays(void **state) {
    (void)state;
    kvasir_context_options o = options_of("auto", NULL, ROOMY_MIB << 20);
    o.quantized_kv_start = KVASIR_START_BY_FORMAT;
    struct world w = open_world(&o);
    kvasir_seq *s;
    store(&w, 1, TOKENS);
    need(kvasir_seq_create(w.ctx, &s, &err));
    need(kvasir_seq_eval(s, text[3], TOKENS, NULL, &err));
    const struct page_layout *first = seq_page_layout(s->seq, 0, 0);
    all_down(&w);
    assert_int_equal(stored_rank(&w, 1, 0), NO_RANK);
    assert_int_equal(held_rank(s, 0), NO_RANK);
    assert_ptr_equal(seq_page_layout(s->seq, 0, 0), first);
    assert_true(kv_format_exact(first->k.format) && kv_format_exact(first->v.format));
    for (uint32_t k = 1; k < PAGES; k++) {
        assert_int_equal(stored_rank(&w, 1, k), k == 1 ? 0 : 2);
        assert_int_equal(held_rank(s, k), k == 1 ? 0 : 2);
    }
    assert_int_equal(seq_descended_pages(s->seq), DOWN - 1);
    assert_int_equal(kv_cache_ladder_bytes(w.cache), 0);
    kvasir_seq_destroy(s);
    close_world(&w);
}

/* ---- the budget ------------------------------------------------------------------------------ */

static void test_only_above_the_mark_and_a_few_at_a_time(void **state) {
    (void)state;
    struct world w = roomy_world(NULL);
    for (int p = 0; p < PROMPTS; p++)
        store(&w, p, TOKENS);
    const struct kv_pool_stats p = kv_pool_stats(w.cache->pool);
    const uint64_t mark = p.budget_bytes / 100 * LADDER_MARK_PERCENT,
                   below = mark - p.used_bytes - p.charged_bytes;
    need(pool_charge(w.cache->pool, below, &err));
    assert_int_equal(kv_cache_descend(w.cache, 3), 0);
    need(pool_charge(w.cache->pool, 1, &err));
    assert_int_equal(kv_cache_descend(w.cache, 3), 1); /* that is enough */
    assert_int_equal(kv_cache_descend(w.cache, 3), 0);
    need(pool_charge(w.cache->pool, p.budget_bytes / 20, &err));
    assert_int_equal(kv_cache_descend(w.cache, 3), 3);
    pool_discharge(w.cache->pool, below + 1 + p.budget_bytes / 20);
    close_world(&w);
}

static uint64_t peak_of(const struct world *w) {
    return kv_pool_stats(w->cache->pool).peak_bytes;
}

static void test_a_sequence_fits_that_new_pages_alone_would_not(void **state) {
    (void)state;
    enum { LONG = 2 * TOKENS };
    const char *const bits[] = {"r8,4", "auto"};
    uint64_t best;
    struct world w = roomy_world(NULL);
    store(&w, 0, LONG);
    best = peak_of(&w) - w.tree->stats.bytes - w.cache->ladder.spare_bytes;
    close_world(&w);
    for (int i = 0; i < 2; i++) {
        const kvasir_context_options o = options_of(bits[i], NULL, best / 100 * 95);
        kvasir_seq *s;
        w = open_world(&o);
        need(kvasir_seq_create(w.ctx, &s, &err));
        const kvasir_status status = kvasir_seq_eval(s, text[0], LONG, NULL, &err);
        assert_int_equal(status, i ? KVASIR_OK : KVASIR_ERR_BUDGET);
        assert_true(peak_of(&w) <= best / 100 * 95);
        assert_int_equal(i ? seq_descended_pages(s->seq) > 0 : kvasir_seq_length(s) == 0, true);
        assert_int_equal(kvasir_seq_eval(s, text[0], 5 * TOKENS, NULL, &err), KVASIR_ERR_BUDGET);
        assert_int_equal(kvasir_seq_length(s), i ? LONG : 0); /* refused before anything ran */
        kvasir_seq_destroy(s);
        close_world(&w);
    }
}

/* ---- who holds a page ------------------------------------------------------------------------ */

static void test_all_who_hold_a_page_get_the_other_one(void **state) {
    (void)state;
    struct world w = roomy_world(NULL);
    struct tree_cursor at;
    kvasir_seq *a = begin(&w, 0, TOKENS, &at), *b, *reader;
    need(kvasir_seq_fork(a, &b, &err));
    need(kvasir_seq_fork(a, &reader, &err));
    seq_unlist(reader->seq); /* as a load's, whose pages others write to */
    all_down(&w);
    for (uint32_t k = 1; k < PAGES; k++)
        assert_int_equal(stored_rank(&w, 0, k) + held_rank(b, k) + held_rank(reader, k), 0);
    kvasir_seq_destroy(reader);
    all_down(&w);
    for (uint32_t k = 1; k < PAGES; k++) {
        assert_int_equal(stored_rank(&w, 0, k), 2);
        assert_int_equal(held_rank(b, k), 2);
        assert_int_equal(a->seq->tables[0].pages[k].addr, b->seq->tables[0].pages[k].addr);
    }
    assert_true(seq_has_descended(a->seq) && seq_has_descended(b->seq));
    kvasir_seq_destroy(b);
    end(&w, a, &at);
    close_world(&w);
}

static void test_what_waits_for_a_tier_and_the_exact_tail_stay(void **state) {
    (void)state;
    kvasir_context_options o = options_of("auto", NULL, ROOMY_MIB << 20);
    o.kv_exact_tail = TILE_TOKENS;
    struct world w = open_world(&o);
    struct tree_cursor at;
    kvasir_seq *s = begin(&w, 0, TOKENS + 1, &at);
    const uint32_t root = tree_find_root(w.tree, "", 0),
                   x = tree_walk(w.tree, root, text[0], 2 * TILE_TOKENS, 2 * TILE_TOKENS).node;
    w.tree->nodes[x].queued = 1;
    all_down(&w);
    assert_int_equal(held_rank(s, 1), 0);
    assert_int_equal(held_rank(s, 2), 2);
    assert_int_equal(held_rank(s, PAGES - 1), 0); /* a query sees its shadow */
    assert_false(w.tree->nodes[x].descended);
    w.tree->nodes[x].queued = 0;
    all_down(&w);
    assert_int_equal(held_rank(s, 1), 2);
    assert_true(w.tree->nodes[x].descended);
    end(&w, s, &at);
    close_world(&w);
}

static void test_what_comes_after_such_pages_is_marked(void **state) {
    (void)state;
    struct world w = roomy_world(NULL);
    struct tree_cursor at;
    store(&w, 0, 2 * TILE_TOKENS);
    all_down(&w);
    kvasir_seq *s = begin(&w, 0, TOKENS, &at);
    assert_int_equal(held_rank(s, PAGES - 1), 0);
    assert_true(w.tree->nodes[at.node].descended);
    end(&w, s, &at);
    store(&w, 1, TOKENS);
    s = begin(&w, 1, TOKENS, &at);
    assert_false(w.tree->nodes[at.node].descended || seq_has_descended(s->seq));
    end(&w, s, &at);
    close_world(&w);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* What rows of layer 0, which depend on their tokens alone, are beside exact ones. */
struct distance {
    double squared; /* error */
    double gain;    /* least squares: each is so many times the exact one */
};

static struct distance distance_of(const kvasir_seq *exact, const kvasir_seq *of,
                                   enum tile_kind part) {
    const uint32_t dim = exact->ctx->cache->groups[0].shape.head_dim;
    float rows[2][TILE_TOKENS * 256];
    double squared = 0, along = 0, squares = 0;
    bool centred;
    for (uint32_t k = 1; k < PAGES; k++) {
        need(seq_read(exact->seq, 0, part, 0, 0, k * TILE_TOKENS, TILE_TOKENS, rows[0], &centred,
                      &err));
        need(seq_read(of->seq, 0, part, 0, 0, k * TILE_TOKENS, TILE_TOKENS, rows[1], &centred,
                      &err));
        for (uint32_t i = 0; i < TILE_TOKENS * dim; i++) {
            const double x = (double)rows[0][i], y = (double)rows[1][i];
            squared += (y - x) * (y - x);
            along += x * y;
            squares += x * x;
        }
    }
    return (struct distance){squared, along / squares};
}

/* Three roundings instead of one: a step of 4 bits adds 1/4.6 of the error of one of 3 bits, and
 * codes that lose a bit have an eighth less than new ranges. Errors that all have one sign would
 * cost far more than their squares say. */
static void test_the_way_down_costs_little_more_than_the_floor(void **state) {
    (void)state;
    const char *const bits[] = {"f32", "t3", "auto"};
    struct world w[3];
    kvasir_seq *s[3];
    for (int i = 0; i < 3; i++) {
        const kvasir_context_options o = options_of(bits[i], NULL, ROOMY_MIB << 20);
        w[i] = open_world(&o);
        need(kvasir_seq_create(w[i].ctx, &s[i], &err));
        need(kvasir_seq_eval(s[i], text[0], TOKENS, NULL, &err));
    }
    for (int part = TILE_K; part <= TILE_V; part++)
        assert_true(distance_of(s[0], s[2], part).squared <
                    distance_of(s[0], s[1], part).squared / 3);
    all_down(&w[2]);
    for (int part = TILE_K; part <= TILE_V; part++) {
        const struct distance floor = distance_of(s[0], s[1], part),
                              down = distance_of(s[0], s[2], part);
        if (down.squared > 1.15 * floor.squared || fabs(down.gain - 1) > 0.03)
            fail_msg("part %d: %g instead of %g, times %g instead of %g", part, down.squared,
                     floor.squared, down.gain, floor.gain);
    }
    for (int i = 0; i < 3; i++) {
        kvasir_seq_destroy(s[i]);
        close_world(&w[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_least_used_first_and_all_of_a_rank_before_the_next),
        cmocka_unit_test(test_no_page_goes_below_the_floor),
        cmocka_unit_test(test_nothing_is_evicted_before_all_is_at_the_floor),
        cmocka_unit_test(test_only_above_the_mark_and_a_few_at_a_time),
        cmocka_unit_test(test_a_sequence_fits_that_new_pages_alone_would_not),
        cmocka_unit_test(test_the_exact_start_stays),
        cmocka_unit_test(test_all_who_hold_a_page_get_the_other_one),
        cmocka_unit_test(test_what_waits_for_a_tier_and_the_exact_tail_stay),
        cmocka_unit_test(test_what_comes_after_such_pages_is_marked),
        cmocka_unit_test(test_the_way_down_costs_little_more_than_the_floor),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
