/* SPDX-License-Identifier: Apache-2.0 */
/* seq_requantize without a model. A row's values follow from its place, and rows are stored through
 * the definitions of quant/. For each sequence the test records in which formats every position has
 * been stored. It compares the rows in pages, bit for bit, with rows that were re-encoded in the
 * same formats one at a time.
 *
 * Two layer groups: one that may rotate, with key centres, and one with a window of 48. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "cache/cache_internal.h"

#include <cmocka.h>

enum { GROUPS = 2, LENGTH_MAX = 1024, CHAIN_MAX = 12, PAIRS = 8, DIM_MAX = 64 };

static kvasir_error err;
static uint32_t reached; /* set by seq_trim */

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

/* ---- a cache and its rows -------------------------------------------------------------------- */

static const struct kv_format FORMATS[] = {
    {32, SCALAR_F32, 0, KV_ROWS}, {16, SCALAR_F16, 0, KV_ROWS}, {16, SCALAR_BF16, 0, KV_ROWS},
    {8, 0, 0, KV_ROWS},           {6, 0, 0, KV_ROWS},           {5, 0, 0, KV_ROWS},
    {4, 0, 0, KV_ROWS},           {3, 0, 0, KV_ROWS},           {2, 0, 0, KV_ROWS}};
enum { F32, F16, BF16, Q8, Q6, Q5, Q4, Q3, Q2, N_FORMATS };

/* K and V, as indices of FORMATS. */
struct pair {
    uint8_t k, v;
};

static const double INV_FREQ[PAIRS] = {1, 0.5, 0.2, 0.07, 0.02, 0.006, 0.002, 0.0007};
static const uint32_t FIRST[] = {0, 3, 3, 5, 6}; /* one head has no pairs */
static const struct centre_pair CENTRES[] = {{0, 9, -7}, {3, -8, 5},  {7, 3, 11},
                                             {1, 6, 6},  {4, -10, 1}, {2, 4, -4}};
static const struct key_centre CENTRE = {.layers = 2,
                                         .kv_heads = 2,
                                         .n = PAIRS,
                                         .pairs_max = 3,
                                         .inv_freq = INV_FREQ,
                                         .first = FIRST,
                                         .pairs = CENTRES};

static const struct kv_shape SHAPES[GROUPS] = {
    {.layers = 2, .kv_heads = 2, .head_dim = 32, .centre = &CENTRE},
    {.layers = 1, .kv_heads = 1, .head_dim = 64, .window = 48}};

struct world {
    struct backend *backend;
    struct kv_cache *cache;
    struct pair own;
    uint32_t start_pages;
};

static struct world make_world(struct pair own, struct kv_cache_options o) {
    struct world w = {.own = own};
    struct backend_cpu_options b = {.threads = 1, .tier = CPU_TIER_REF, .act_bits = 8};
    o.k = FORMATS[own.k];
    o.v = FORMATS[own.v];
    if (!o.budget_bytes)
        o.budget_bytes = 64 << 20;
    need(backend_cpu_create(&w.backend, &b, &err));
    need(kv_cache_create(w.backend, SHAPES, GROUPS, &o, &w.cache, &err));
    w.start_pages = kv_cache_start_pages(w.cache);
    return w;
}

static struct kv_pool_stats stats(struct world w) {
    return kv_pool_stats(kv_cache_pool(w.cache));
}

static void free_world(struct world w) {
    assert_int_equal(stats(w).pages_used, 0);
    assert_int_equal(stats(w).used_bytes, 0);
    kv_cache_destroy(w.cache);
    backend_destroy(w.backend);
}

/* Values between -2 and 2; K also has a large constant part, rotated by the position. */
static void make_row(uint32_t group, enum tile_kind part, uint32_t layer, uint32_t head,
                     uint32_t position, float *row) {
    uint32_t x = position * 64 + group * 32 + (uint32_t)part * 16 + layer * 4 + head + 1;
    for (uint32_t i = 0; i < SHAPES[group].head_dim; i++) {
        x = x * 1664525u + 1013904223u;
        row[i] = (float)(int32_t)x * 0x1p-30f;
    }
    if (part == TILE_K && SHAPES[group].centre)
        key_centre_add(SHAPES[group].centre, layer, head, position, 1, row);
}

/* A sequence and the formats that each of its positions has been stored in, one after the other. */
struct track {
    struct kv_seq *s;
    struct pair now;
    uint32_t start_pages;
    uint8_t n[LENGTH_MAX];
    struct pair chain[LENGTH_MAX][CHAIN_MAX];
};

static struct track *track_make(struct world w) {
    struct track *t = calloc(1, sizeof *t);
    need(seq_create(w.cache, &t->s, &err));
    t->now = w.own;
    t->start_pages = w.start_pages;
    return t;
}

static struct track *track_fork(const struct track *t) {
    struct track *f = malloc(sizeof *f);
    *f = *t;
    need(seq_fork(t->s, &f->s, &err));
    return f;
}

static void track_free(struct track *t) {
    seq_destroy(t->s);
    free(t);
}

static uint8_t *tile_of(const struct kv_view *v, const struct kv_page *page, enum tile_kind part,
                        uint32_t layer, uint32_t head) {
    const struct page_layout *l = &v->layouts[page->layout];
    return backend_cpu_arena_bytes(v->arena) + page_offset(page->addr) +
           (size_t)layer * l->layer_bytes + (size_t)head * l->head_bytes +
           (part == TILE_V ? l->k.bytes : 0);
}

static void store_position(struct track *t, uint32_t group, uint32_t position) {
    struct kv_view v;
    seq_view(t->s, group, &v);
    const struct kv_page *page = &v.pages[kv_view_index(&v, position / TILE_TOKENS)];
    const struct page_layout *l = &v.layouts[page->layout];
    for (uint32_t layer = 0; layer < SHAPES[group].layers; layer++)
        for (uint32_t head = 0; head < SHAPES[group].kv_heads; head++)
            for (int part = TILE_K; part <= TILE_V; part++) {
                float row[DIM_MAX];
                make_row(group, part, layer, head, position, row);
                if (part == TILE_K && l->centred) {
                    assert_ptr_equal(v.centre, SHAPES[group].centre);
                    key_centre_add(v.centre, layer, head, position, -1, row);
                }
                tile_encode_row(part == TILE_K ? &l->k : &l->v,
                                tile_of(&v, page, part, layer, head), position % TILE_TOKENS, row);
            }
}

static kvasir_status store(struct track *t, uint32_t n, uint32_t step) {
    static const int32_t tokens[LENGTH_MAX];
    while (n) {
        uint32_t now = n < step ? n : step, at = seq_length(t->s);
        TRY(seq_prepare(t->s, now, &err));
        for (uint32_t p = at; p < at + now; p++) {
            for (uint32_t g = 0; g < GROUPS; g++)
                store_position(t, g, p);
            t->n[p] = 1;
            t->chain[p][0] = p / TILE_TOKENS < t->start_pages ? (struct pair){F16, F16} : t->now;
        }
        seq_commit(t->s, tokens, now);
        n -= now;
    }
    return KVASIR_OK;
}

static kvasir_status requantize(struct track *t, struct pair to) {
    TRY(seq_requantize(t->s, FORMATS[to.k], FORMATS[to.v], 0, 0, &err));
    t->now = to;
    t->start_pages = 0;
    for (uint32_t p = 0; p < seq_length(t->s); p++) {
        const struct pair last = t->chain[p][t->n[p] - 1];
        if (last.k != to.k || last.v != to.v) {
            assert_true(t->n[p] < CHAIN_MAX);
            t->chain[p][t->n[p]++] = to;
        }
    }
    return KVASIR_OK;
}

/* ---- what rows must be ----------------------------------------------------------------------- */

/* The row after its chain of formats; *centred: it is stored without its centre. */
static void expect_row(const struct track *t, uint32_t group, enum tile_kind part, uint32_t layer,
                       uint32_t head, uint32_t position, float *row, bool *centred) {
    static uint8_t tile[TILE_TOKENS * DIM_MAX * 4];
    const struct key_centre *c = part == TILE_K ? SHAPES[group].centre : NULL;
    int last = -1;
    make_row(group, part, layer, head, position, row);
    *centred = false;
    for (uint32_t i = 0; i < t->n[position]; i++) {
        const struct pair pair = t->chain[position][i];
        int place = part == TILE_K ? pair.k : pair.v;
        struct kv_format f = FORMATS[place];
        struct tile_layout l;
        if (place == last)
            continue; /* this part has the format already */
        last = place;
        need(kv_format_settle(&f, SHAPES[group].head_dim, 0, &err));
        if (c && *centred != !kv_format_exact(f)) {
            *centred = !*centred;
            key_centre_add(c, layer, head, position, *centred ? -1 : 1, row);
        }
        tile_layout_init(&l, part, f, SHAPES[group].head_dim);
        tile_encode_row(&l, tile, position % TILE_TOKENS, row);
        tile_decode_row(&l, tile, position % TILE_TOKENS, row);
    }
}

static unsigned fewest_bits(const struct track *t, enum tile_kind part, uint32_t position) {
    unsigned fewest = 32;
    for (uint32_t i = 0; i < t->n[position]; i++) {
        const struct pair pair = t->chain[position][i];
        unsigned bits = FORMATS[part == TILE_K ? pair.k : pair.v].bits;
        fewest = bits < fewest ? bits : fewest;
    }
    return fewest;
}

static void check_row(const struct track *t, uint32_t group, enum tile_kind part, uint32_t layer,
                      uint32_t head, uint32_t p) {
    const uint32_t dim = SHAPES[group].head_dim;
    float stored[DIM_MAX], expected[DIM_MAX], made[DIM_MAX];
    bool centred, lacks;
    need(seq_read(t->s, group, part, layer, head, p, 1, stored, &centred, &err));
    expect_row(t, group, part, layer, head, p, expected, &lacks);
    assert_int_equal(centred, lacks);
    assert_memory_equal(stored, expected, dim * sizeof *stored);
    /* Also against the original values, in case expect_row makes the same mistake. */
    unsigned bits = fewest_bits(t, part, p);
    make_row(group, part, layer, head, p, made);
    if (centred)
        key_centre_add(SHAPES[group].centre, layer, head, p, 1, stored);
    for (uint32_t i = 0; bits >= 8 && i < dim; i++)
        assert_true(fabsf(stored[i] - made[i]) < 0.15f);
}

/* Checks every position that the tables hold. Slots after the last one are zeros in fresh
 * sequences. */
static void check(const struct track *t) {
    for (uint32_t g = 0; g < GROUPS; g++) {
        struct kv_view v;
        seq_view(t->s, g, &v);
        for (uint32_t p = 0; p < seq_length(t->s); p++) {
            uint32_t i = kv_view_index(&v, p / TILE_TOKENS);
            if (i == UINT32_MAX)
                continue;
            if (v.layouts[v.pages[i].layout].centred)
                assert_non_null(v.centre);
            uint32_t layer = p % SHAPES[g].layers, head = p / 2 % SHAPES[g].kv_heads;
            check_row(t, g, TILE_K, layer, head, p);
            check_row(t, g, TILE_V, layer, head, p);
        }
    }
}

/* All bytes of all pages, in the order of the tables; *bytes is their number. */
static uint8_t *image(const struct kv_seq *s, size_t *bytes) {
    uint8_t *out = malloc((size_t)seq_bytes(s) + 1);
    *bytes = 0;
    for (uint32_t g = 0; g < GROUPS; g++) {
        struct kv_view v;
        seq_view(s, g, &v);
        for (uint32_t i = 0; i < v.n_pages; i++) {
            size_t n = v.layouts[v.pages[i].layout].page_bytes;
            memcpy(out + *bytes,
                   backend_cpu_arena_bytes(v.arena) + (size_t)v.pages[i].addr * PAGE_ADDR_UNIT, n);
            *bytes += n;
        }
    }
    return out;
}

static void check_image(const struct kv_seq *s, const uint8_t *before, size_t bytes) {
    size_t n;
    uint8_t *now = image(s, &n);
    assert_int_equal(n, bytes);
    assert_memory_equal(now, before, n);
    free(now);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* From every format to every other one, on forks of one sequence, which does not change. */
static void test_every_pair(void **state) {
    (void)state;
    for (uint8_t from = 0; from < N_FORMATS; from++) {
        struct world w =
            make_world((struct pair){from, (uint8_t)((from + 2) % N_FORMATS)},
                       (struct kv_cache_options){.quantized_start = from % 2 ? 60 : 0});
        struct track *a = track_make(w);
        need(store(a, 150, 64)); /* a partly filled page */
        size_t bytes;
        uint8_t *before = image(a->s, &bytes);
        for (uint8_t to = 0; to < N_FORMATS; to++) {
            struct track *b = track_fork(a);
            need(requantize(b, (struct pair){to, (uint8_t)((to + from) % N_FORMATS)}));
            check(b);
            need(store(b, 70, 33)); /* fills that page and begins another */
            check(b);
            need(seq_trim(b->s, 180, &reached, &err));
            need(store(b, 30, 7));
            check(b);
            check_image(a->s, before, bytes);
            track_free(b);
            assert_int_equal(stats(w).used_bytes, seq_bytes(a->s));
        }
        free(before);
        check(a);
        track_free(a);
        free_world(w);
    }
}

/* Pages that no other sequence holds are replaced, several times over, in tables that have
 * wrapped. */
static void test_after_a_wrap(void **state) {
    (void)state;
    static const struct {
        uint32_t max, keep;
    } shapes[] = {{0, 0}, {192, 0}, {192, 4}, {300, 70}, {128, 65}, {100, 99}};
    static const struct pair to[] = {{Q4, Q4}, {Q4, Q4},  {F16, F32},
                                     {Q8, Q3}, {F32, Q3}, {Q2, BF16}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct world w = make_world((struct pair){Q8, Q4},
                                    (struct kv_cache_options){.max_size = shapes[i].max,
                                                              .keep = shapes[i].keep,
                                                              .quantized_start = i % 2 ? 100 : 0});
        struct track *t = track_make(w);
        need(store(t, 400, 50));
        for (size_t k = 0; k < sizeof to / sizeof *to; k++) {
            need(requantize(t, to[k]));
            assert_int_equal(stats(w).used_bytes, seq_bytes(t->s));
            check(t);
            /* seq_need_bytes is exact in this format, too. */
            const uint32_t step = (uint32_t[]){1, 17, 64}[k % 3], end = seq_length(t->s) + 100;
            uint64_t most = stats(w).used_bytes + seq_need_bytes(t->s, end, step, 0), seen = 0;
            while (seq_length(t->s) < end) {
                uint32_t left = end - seq_length(t->s), now = left < step ? left : step;
                need(seq_prepare(t->s, now, &err));
                seen = stats(w).used_bytes > seen ? stats(w).used_bytes : seen;
                uint32_t same;
                need(seq_trim(t->s, seq_length(t->s), &same, &err)); /* undoes seq_prepare */
                need(store(t, now, step));
            }
            assert_int_equal(seen, most);
            assert_int_equal(stats(w).used_bytes, seq_bytes(t->s));
            check(t);
        }
        uint32_t length = seq_length(t->s) - 3;
        need(seq_trim(t->s, length, &reached, &err));
        check(t);
        need(seq_trim(t->s, 0, &reached, &err));
        need(store(t, 130, 64)); /* in the last format from the first token on */
        check(t);
        track_free(t);
        free_world(w);
    }
}

static void test_twice_is_nothing(void **state) {
    (void)state;
    for (int start = 0; start < 2; start++) {
        struct world w = make_world((struct pair){Q8, Q4},
                                    (struct kv_cache_options){.quantized_start = start ? 70 : 0});
        struct track *t = track_make(w);
        need(store(t, 300, 64));
        uint64_t taken = stats(w).pages_taken, pages = stats(w).pages_used;
        size_t bytes;
        uint8_t *before = image(t->s, &bytes);
        need(requantize(t, w.own));
        /* Only the exact start had other formats than those requested, and the window has dropped
         * its pages of it. */
        assert_int_equal(stats(w).pages_taken, taken + (start ? 2 : 0));
        assert_int_equal(stats(w).pages_used, pages);
        if (!start)
            check_image(t->s, before, bytes);
        free(before);
        check(t);
        need(requantize(t, (struct pair){Q4, Q4}));
        taken = stats(w).pages_taken;
        before = image(t->s, &bytes);
        need(requantize(t, (struct pair){Q4, Q4}));
        assert_int_equal(stats(w).pages_taken, taken);
        check_image(t->s, before, bytes);
        free(before);
        track_free(t);
        free_world(w);
    }
}

/* An empty sequence: tokens that come later are stored in the new formats. */
static void test_before_the_first_token(void **state) {
    (void)state;
    struct world w =
        make_world((struct pair){Q8, Q8}, (struct kv_cache_options){.quantized_start = 64});
    struct track *t = track_make(w), *f;
    need(requantize(t, (struct pair){F16, Q2}));
    need(store(t, 100, 64));
    f = track_fork(t);
    need(store(f, 100, 64));
    check(t);
    check(f);
    track_free(t);
    track_free(f);
    free_world(w);
}

/* Every 16-bit pattern except NaN goes to 32 bits and comes back. */
static void lossless(uint8_t format) {
    struct world w = make_world((struct pair){format, format}, (struct kv_cache_options){0});
    struct track *t = track_make(w);
    need(store(t, 300, 64));
    struct kv_view v;
    seq_view(t->s, 0, &v);
    uint32_t bits = 0;
    for (uint32_t i = 0; i < v.n_pages; i++) { /* page 4 is left out: it is not full */
        uint16_t *at = (uint16_t *)(void *)(backend_cpu_arena_bytes(v.arena) +
                                            (size_t)v.pages[i].addr * PAGE_ADDR_UNIT);
        for (size_t k = 0; i < 4 && k < v.layouts[0].page_bytes / 2; k++, bits++) {
            uint16_t x = (uint16_t)bits;
            float value = format == F16 ? f16_to_f32(x) : bf16_to_f32(x);
            at[k] = isnan(value) ? 0 : x;
        }
    }
    assert_true(bits >= 1 << 16);
    size_t bytes;
    uint8_t *before = image(t->s, &bytes);
    need(requantize(t, (struct pair){F32, F32}));
    need(requantize(t, (struct pair){format, format}));
    check_image(t->s, before, bytes);
    free(before);
    track_free(t);
    free_world(w);
}

static void test_lossless_ways(void **state) {
    (void)state;
    lossless(F16);
    lossless(BF16);
}

/* The bytes that it needs are known exactly: with one unit less of budget it is refused, and
 * nothing has changed. */
static void budget_to_the_page(struct pair from, struct pair to, bool shared) {
    uint64_t peak = 0;
    for (int round = 0; round < 3; round++) {
        struct kv_cache_options o = {.max_size = 300, .keep = 70, .quantized_start = 64};
        if (round)
            o.budget_bytes = round == 1 ? peak : peak - PAGE_ADDR_UNIT;
        struct world w = make_world(from, o);
        struct track *t = track_make(w), *f = NULL;
        need(store(t, 250, 1));
        if (shared) {
            f = track_fork(t);
            need(store(f, 64, 1));
        }
        size_t bytes;
        uint8_t *before = image(t->s, &bytes);
        uint64_t used = stats(w).used_bytes, taken = stats(w).pages_taken, held = seq_bytes(t->s);
        kvasir_status status = requantize(t, to);
        if (round < 2) {
            need(status);
            check(t);
            peak = stats(w).peak_bytes;
            assert_true(peak <= stats(w).budget_bytes);
        } else {
            assert_int_equal(status, KVASIR_ERR_BUDGET);
            assert_non_null(strstr(err.text, "more needed"));
            assert_int_equal(stats(w).used_bytes, used);
            assert_int_equal(stats(w).pages_taken, taken);
            assert_int_equal(seq_bytes(t->s), held);
            check_image(t->s, before, bytes);
            check(t);
            if (f) {
                track_free(f); /* now there is room, or not: either way it is intact */
                f = NULL;
                status = requantize(t, to);
                check(t);
            }
        }
        free(before);
        if (f) {
            check(f);
            track_free(f);
        }
        track_free(t);
        free_world(w);
    }
}

static void test_budget(void **state) {
    (void)state;
    budget_to_the_page((struct pair){Q4, Q4}, (struct pair){F32, F32}, false);
    budget_to_the_page((struct pair){Q4, Q4}, (struct pair){F16, Q8}, true);
    budget_to_the_page((struct pair){F32, F32}, (struct pair){Q8, F32}, true);
}

static void test_formats_run_out(void **state) {
    (void)state;
    struct world w = make_world((struct pair){F16, F16}, (struct kv_cache_options){0});
    struct track *t = track_make(w);
    need(store(t, 100, 64));
    uint32_t added = 0;
    kvasir_status status = KVASIR_OK;
    for (uint8_t k = 0; k < N_FORMATS && status == KVASIR_OK; k++)
        for (uint8_t v = 0; v < N_FORMATS && status == KVASIR_OK; v++) {
            struct track *f = track_fork(t);
            status = requantize(f, (struct pair){k, v});
            added += status == KVASIR_OK;
            check(f);
            need(store(f, 64, 64));
            check(f);
            track_free(f);
        }
    assert_int_equal(status, KVASIR_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "has had 16"));
    assert_int_equal(added, 16 - 2 + 1); /* two were f16 from the start, one request was, too */
    assert_int_equal(stats(w).used_bytes, seq_bytes(t->s));
    need(requantize(t, (struct pair){F32, Q8})); /* known pairs still work */
    need(requantize(t, (struct pair){F16, F16}));
    check(t);
    track_free(t);
    free_world(w);
}

/* Group 64 does not divide head size 32; it would fit the other head size. */
static void test_formats_that_do_not_fit(void **state) {
    (void)state;
    struct world w = make_world((struct pair){F16, F16}, (struct kv_cache_options){0});
    struct track *t = track_make(w);
    need(store(t, 100, 64));
    uint64_t taken = stats(w).pages_taken;
    assert_int_equal(seq_requantize(t->s, FORMATS[Q8], FORMATS[Q8], 64, 0, &err),
                     KVASIR_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "head size 32"));
    assert_int_equal(stats(w).pages_taken, taken);
    check(t);
    track_free(t);
    free_world(w);
}

/* States and snapshots, to which a trim goes back, do not change. */
static void test_states_stay(void **state) {
    (void)state;
    struct world w =
        make_world((struct pair){Q8, Q4}, (struct kv_cache_options){.state_bytes = 5000});
    struct track *t = track_make(w);
    for (uint32_t i = 0; i < 3; i++) {
        struct state_view v;
        need(seq_prepare(t->s, 1, &err)); /* makes the record private */
        seq_state(t->s, &v);
        memset(backend_cpu_arena_bytes(v.arena) + (size_t)v.addr * PAGE_ADDR_UNIT, (int)i + 1,
               5000);
        need(seq_trim(t->s, seq_length(t->s), &reached, &err));
        need(store(t, 30, 30));
        need(seq_snapshot(t->s, &err));
    }
    uint64_t records = seq_bytes(t->s);
    need(requantize(t, (struct pair){F16, F16}));
    need(requantize(t, (struct pair){Q8, Q4}));
    assert_int_equal(seq_bytes(t->s), records);
    need(requantize(t, (struct pair){Q4, Q2}));
    for (uint32_t i = 3; i-- > 0;) {
        struct state_view v;
        need(seq_trim(t->s, 30 * (i + 1), &reached, &err));
        assert_int_equal(reached, 30 * (i + 1));
        seq_state(t->s, &v);
        for (uint32_t k = 0; k < 5000; k++)
            assert_int_equal(backend_cpu_arena_bytes(v.arena)[(size_t)v.addr * PAGE_ADDR_UNIT + k],
                             i + 1);
        check(t);
        if (i == 1) {
            need(seq_trim(t->s, 45, &reached, &err));
            assert_int_equal(reached, 30);
        }
    }
    track_free(t);
    free_world(w);
}

/* Address space for later pages: a claim gets all of it or nothing, and leaves nothing claimed. */
static void test_claims(void **state) {
    (void)state;
    struct world w = make_world((struct pair){F16, F16}, (struct kv_cache_options){0});
    struct kv_pool *p;
    uint32_t small, large, addr[3];
    need(kv_pool_create(w.backend, 2 << 20, &p, &err)); /* 72 units of 2 MiB */
    need(page_class(p, 4096, FORMATS[F16], FORMATS[F16], &small, &err));
    need(page_class(p, 3 << 20, FORMATS[F16], FORMATS[F16], &large, &err));
    for (int round = 0; round < 2; round++) {
        assert_int_equal(pool_claim(p, small, 72 * 512 + 1, &err), KVASIR_ERR_BUDGET);
        assert_non_null(strstr(err.text, "address space"));
        pool_unclaim(p);
        need(pool_claim(p, small, 71 * 512, &err));
        need(pool_claim(p, small, 71 * 512, &err)); /* replaces the first claim */
        assert_int_equal(pool_claim(p, large, 1, &err), KVASIR_ERR_BUDGET);
        need(page_take(p, small, &addr[0], &err));
        need(page_take(p, small, &addr[1], &err));
        page_unref(p, addr[0]);
        pool_unclaim(p);
        need(pool_claim(p, large, 46, &err)); /* 2 pages per 3 units; one unit is in use */
        pool_unclaim(p);
        need(pool_claim(p, small, 72 * 512 - 1, &err)); /* with the one page that is in use */
        need(page_take(p, small, &addr[2], &err));
        page_unref(p, addr[1]);
        page_unref(p, addr[2]);
        pool_unclaim(p);
        assert_int_equal(kv_pool_stats(p).used_bytes, 0);
    }
    kv_pool_destroy(p);
    free_world(w);
}

/* Everything at once, at random, in a budget that often refuses. */
static void random_edits(uint32_t seed, struct kv_cache_options o) {
    static const struct pair pairs[] = {{Q8, Q4}, {F16, F16}, {Q4, Q4}, {F32, Q2}, {Q8, F16}};
    struct world w = make_world(pairs[0], o);
    struct track *live[5];
    uint32_t n = 0, x = seed, done = 0, refused = 0;
    for (int i = 0; i < 1500; i++) {
        x = x * 1664525u + 1013904223u;
        uint32_t r = x >> 8, what = r % 12, more = r / 97;
        if (n == 0 || (n < 5 && what == 0)) {
            live[n++] = track_make(w);
            continue;
        }
        struct track *t = live[r / 12 % n];
        uint64_t used = stats(w).used_bytes;
        uint32_t length = seq_length(t->s);
        if (n < 5 && what < 3) {
            live[n++] = track_fork(t);
        } else if (what == 3) {
            live[r / 12 % n] = live[n - 1];
            n--;
            track_free(t);
        } else if (what == 5 && more % 2) {
            (void)!seq_snapshot(t->s, &err);
        } else if (what < 6) {
            (void)!seq_trim(t->s, length ? length - more % (length + 1) : 0, &reached, &err);
        } else if (what < 9) {
            bool room = true;
            for (uint32_t p = 0; p < length; p++)
                room &= t->n[p] < CHAIN_MAX;
            if (!room)
                continue;
            kvasir_status status = requantize(t, pairs[more % 5]);
            done += status == KVASIR_OK;
            refused += status == KVASIR_ERR_BUDGET;
            assert_true(status == KVASIR_OK || status == KVASIR_ERR_BUDGET);
            if (status != KVASIR_OK)
                assert_int_equal(stats(w).used_bytes, used);
            check(t);
        } else {
            uint32_t count = 1 + more % 90;
            if (length + count <= LENGTH_MAX)
                (void)!store(t, count, count);
        }
        assert_true(stats(w).peak_bytes <= stats(w).budget_bytes);
        if (i % 16 == 0)
            for (uint32_t k = 0; k < n; k++)
                check(live[k]);
    }
    assert_true(done > 50 && refused > 5);
    while (n)
        track_free(live[--n]);
    free_world(w);
}

static void test_random_edits(void **state) {
    (void)state;
    random_edits(1, (struct kv_cache_options){.budget_bytes = 512 << 10});
    random_edits(2,
                 (struct kv_cache_options){.budget_bytes = 512 << 10, .max_size = 200, .keep = 70});
    random_edits(3, (struct kv_cache_options){
                        .budget_bytes = 512 << 10, .max_size = 150, .quantized_start = 30});
    random_edits(4, (struct kv_cache_options){.budget_bytes = 260 << 10, .state_bytes = 9000});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pair),       cmocka_unit_test(test_after_a_wrap),
        cmocka_unit_test(test_twice_is_nothing), cmocka_unit_test(test_before_the_first_token),
        cmocka_unit_test(test_lossless_ways),    cmocka_unit_test(test_budget),
        cmocka_unit_test(test_formats_run_out),  cmocka_unit_test(test_formats_that_do_not_fit),
        cmocka_unit_test(test_states_stay),      cmocka_unit_test(test_claims),
        cmocka_unit_test(test_random_edits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
