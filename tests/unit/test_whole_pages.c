/* SPDX-License-Identifier: Apache-2.0 */
/* Pages that are encoded when they are full, their shadows and the exact tail: what is stored and
 * read back, steps, trims, snapshots, forks, other formats, budgets. Without a model: rows follow
 * from their place. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "cache/cache_internal.h"

#include <cmocka.h>

enum { LAYERS = 2, HEADS = 2, DIM = 64, PAIRS = 4, STEP_MOST = 200 };
enum { PAGE_16 = 2 * sizeof(uint16_t) * LAYERS * HEADS * DIM * TILE_TOKENS };

static kvasir_error err;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

/* ---- a cache --------------------------------------------------------------------------------- */

static const double INV_FREQ[PAIRS] = {1, 0.2, 0.02, 0.0007};
static const uint32_t FIRST[] = {0, 2, 2, 3, 4}; /* one head has no pairs */
static const struct centre_pair CENTRES[] = {{0, 9, -7}, {3, -8, 5}, {1, 6, 6}, {2, 4, -4}};
static const struct key_centre CENTRE = {.layers = LAYERS,
                                         .kv_heads = HEADS,
                                         .n = PAIRS,
                                         .pairs_max = 2,
                                         .inv_freq = INV_FREQ,
                                         .first = FIRST,
                                         .pairs = CENTRES};

static float inverse[LAYERS * HEADS][DIM][DIM], forward[LAYERS * HEADS][DIM][DIM];
static const struct key_basis BASIS = {LAYERS, HEADS, DIM, &inverse[0][0][0], &forward[0][0][0]};

/* M has ones on its diagonal and f below it, so M^-1 has (-f)^(row - column). */
static void make_basis(void) {
    for (uint32_t i = 0; i < LAYERS * HEADS; i++) {
        const float f = 0.25f + 0.0625f * (float)i;
        for (uint32_t row = 0; row < DIM; row++)
            for (uint32_t column = 0; column <= row; column++) {
                inverse[i][column][row] = powf(-f, (float)(row - column));
                forward[i][row][column] = row == column ? 1 : row == column + 1 ? f : 0;
            }
    }
}

struct world {
    struct backend *backend;
    struct kv_cache *cache;
    bool centred;
};

/* what: "c": centred keys, "b": a basis, both, or none. */
static struct world make_world(const char *bits, const char *what, struct kv_cache_options o) {
    struct world w = {.centred = strchr(what, 'c') != NULL};
    const struct backend_cpu_options cpu = {.threads = 2, .tier = CPU_TIER_COUNT, .act_bits = 8};
    const struct backend_limits limits = {.rows = STEP_MOST, .dim = DIM, .head_dim = DIM};
    const struct kv_shape shape = {.layers = LAYERS,
                                   .kv_heads = HEADS,
                                   .head_dim = DIM,
                                   .centre = w.centred ? &CENTRE : NULL,
                                   .basis = strchr(what, 'b') ? &BASIS : NULL};
    need(kv_format_parse_pair(bits, &o.k, &o.v, &err));
    if (!o.budget_bytes)
        o.budget_bytes = 32 << 20;
    need(backend_cpu_create(&w.backend, &cpu, &err));
    need(backend_reserve(w.backend, &limits, &err));
    if (w.centred)
        need(backend_reserve_centre(w.backend, &CENTRE, &err));
    need(kv_cache_create(w.backend, &shape, 1, &o, &w.cache, &err));
    return w;
}

static uint64_t used(struct world w) {
    return kv_pool_stats(kv_cache_pool(w.cache)).used_bytes;
}

static void free_world(struct world w) {
    assert_int_equal(used(w), 0);
    kv_cache_destroy(w.cache);
    backend_destroy(w.backend);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Values between -2 and 2; keys also have their centre. branch: another string of tokens. */
static void make_row(struct world w, enum tile_kind part, uint32_t layer, uint32_t head,
                     uint32_t position, uint32_t branch, float *row) {
    uint32_t x = position * 64 + (uint32_t)part * 16 + layer * 4 + head + 1 + 77777 * branch;
    for (uint32_t i = 0; i < DIM; i++) {
        x = x * 1664525u + 1013904223u;
        row[i] = (float)(int32_t)x * 0x1p-30f;
    }
    if (part == TILE_K && w.centred)
        key_centre_add(&CENTRE, layer, head, position, 1, row);
}

static void store(struct world w, struct kv_seq *s, uint32_t n, uint32_t branch) {
    static float k[STEP_MOST * HEADS * DIM], v[STEP_MOST * HEADS * DIM];
    int32_t tokens[STEP_MOST];
    uint32_t pos[STEP_MOST];
    const uint32_t at = seq_length(s);
    const struct batch_seq seq = {0, n, at};
    struct kv_view view;
    need(seq_prepare(s, n, &err));
    seq_view(s, 0, &view);
    for (uint32_t i = 0; i < n; i++) {
        pos[i] = at + i;
        tokens[i] = (int32_t)(at + i + 10000 * branch);
    }
    const struct batch b = {n, tokens, pos, 1, &seq, &view, NULL};
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t i = 0; i < n * HEADS; i++) {
            make_row(w, TILE_K, layer, i % HEADS, at + i / HEADS, branch, k + (size_t)i * DIM);
            make_row(w, TILE_V, layer, i % HEADS, at + i / HEADS, branch, v + (size_t)i * DIM);
        }
        op_kv_store(w.backend, &b, &view, layer, k, v);
    }
    seq_commit(s, tokens, n);
}

/* Rows [first, end) are those of the branch, within `most`. */
static void check(struct world w, const struct kv_seq *s, uint32_t first, uint32_t end,
                  uint32_t branch, float most) {
    float row[DIM], made[DIM];
    bool centred;
    for (uint32_t p = first; p < end; p++)
        for (uint32_t i = 0; i < LAYERS * HEADS * 2; i++) {
            const enum tile_kind part = i % 2 ? TILE_V : TILE_K;
            const uint32_t layer = i / 2 / HEADS, head = i / 2 % HEADS;
            need(seq_read(s, 0, part, layer, head, p, 1, row, &centred, &err));
            if (centred)
                key_centre_add(&CENTRE, layer, head, p, 1, row);
            make_row(w, part, layer, head, p, branch, made);
            for (uint32_t d = 0; d < DIM; d++)
                if (!(fabsf(row[d] - made[d]) <= most))
                    fail_msg("position %u, %s of layer %u, head %u, dim %u: %g, not %g", p,
                             part == TILE_K ? "K" : "V", layer, head, d, (double)row[d],
                             (double)made[d]);
        }
}

/* Rows of up to 8 in a rotated basis: a step of 8 bits is below 0.07, of 4 bits below 1.1; a row at
 * 16 bits is off by 2^-8 at most, and M multiplies errors by up to 2. */
static const float AT_16 = 0.02f, AT_8 = 0.2f, AT_4 = 3;

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_store(void **state) {
    (void)state;
    static const char *const BITS[] = {"t8", "r8", "t4", "r4,8"}, *const WHAT[] = {"", "c", "b",
                                                                                   "cb"};
    for (int i = 0; i < 16; i++) {
        const struct world w = make_world(BITS[i / 4], WHAT[i % 4], (struct kv_cache_options){0});
        const float most = i / 4 < 2 ? AT_8 : AT_4;
        struct kv_seq *s;
        need(seq_create(w.cache, &s, &err));
        assert_true(kv_cache_is_whole(w.cache));
        store(w, s, 40, 0); /* a page that is not full */
        check(w, s, 0, 40, 0, AT_16);
        store(w, s, 24, 0); /* full with its last row */
        check(w, s, 0, 64, 0, most);
        store(w, s, 150, 0); /* several in a step */
        check(w, s, 0, 192, 0, most);
        check(w, s, 192, 214, 0, AT_16);
        seq_destroy(s);
        free_world(w);
    }
}

/* The bytes of a page do not depend on the steps that filled it. */
static void test_steps(void **state) {
    (void)state;
    static const uint32_t STEPS[2][4] = {{128, 0}, {1, 62, 2, 63}};
    for (int kind = 0; kind < 2; kind++) {
        const struct world w =
            make_world(kind ? "r8,4" : "t4,3", "cb", (struct kv_cache_options){0});
        struct kv_seq *s[2];
        for (int i = 0; i < 2; i++) {
            need(seq_create(w.cache, &s[i], &err));
            for (int j = 0; j < 4 && STEPS[i][j]; j++)
                store(w, s[i], STEPS[i][j], 0);
        }
        for (uint32_t number = 0; number < 2; number++)
            for (uint32_t i = 0; i < LAYERS * HEADS * 2; i++) {
                uint8_t bytes[2][DIM * TILE_TOKENS * 2];
                const struct tile_layout *l;
                bool there;
                for (int j = 0; j < 2; j++)
                    need(seq_read_tile(s[j], 0, i % 2 ? TILE_V : TILE_K, i / 2 / HEADS,
                                       i / 2 % HEADS, number, &there, &l, bytes[j], &err));
                assert_true(there && kv_format_whole(l->format));
                assert_memory_equal(bytes[0], bytes[1], l->bytes);
            }
        seq_destroy(s[0]);
        seq_destroy(s[1]);
        free_world(w);
    }
}

static void trim(struct kv_seq *s, uint32_t length, uint32_t reaches) {
    uint32_t reached;
    assert_int_equal(seq_trim_reach(s, length), reaches);
    need(seq_trim(s, length, &reached, &err));
    assert_int_equal(reached, reaches);
    assert_int_equal(seq_length(s), reaches);
}

static void test_trim(void **state) {
    (void)state;
    const struct world w = make_world("t8", "b", (struct kv_cache_options){0});
    struct kv_seq *s;
    need(seq_create(w.cache, &s, &err));
    store(w, s, 200, 0);
    trim(s, 195, 195); /* its shadow is there */
    check(w, s, 192, 195, 0, AT_16);
    store(w, s, 10, 1);
    check(w, s, 192, 195, 0, AT_16);
    check(w, s, 195, 205, 1, AT_16);
    trim(s, 192, 192);
    trim(s, 100, 64); /* gone: from the page's start */
    store(w, s, 30, 1);
    check(w, s, 0, 64, 0, AT_8);
    check(w, s, 64, 94, 1, AT_16);
    trim(s, 94, 94);
    trim(s, 0, 0);
    assert_int_equal(used(w), 0);
    seq_destroy(s);
    free_world(w);
}

static void test_exact_start(void **state) {
    (void)state;
    const struct world w =
        make_world("t4", "cb", (struct kv_cache_options){.quantized_start = 100});
    struct kv_seq *s;
    need(seq_create(w.cache, &s, &err));
    store(w, s, 50, 0);
    trim(s, 20, 20); /* pages of the start have their rows */
    store(w, s, 130, 0);
    check(w, s, 0, 128, 0, AT_16);
    check(w, s, 128, 150, 0, AT_16);
    trim(s, 100, 100);
    store(w, s, 100, 0);
    check(w, s, 0, 128, 0, AT_16);
    check(w, s, 128, 192, 0, AT_4);
    check(w, s, 192, 200, 0, AT_16);
    seq_destroy(s);
    free_world(w);
}

static void test_fork(void **state) {
    (void)state;
    const struct world w = make_world("t8", "c", (struct kv_cache_options){0});
    struct kv_seq *s, *f;
    need(seq_create(w.cache, &s, &err));
    store(w, s, 100, 0);
    const uint64_t before = used(w);
    need(seq_fork(s, &f, &err));
    assert_int_equal(used(w), before); /* everything is shared */
    assert_int_equal(seq_bytes(f), seq_bytes(s));
    const uint64_t need_bytes = seq_need_bytes(f, 101, 1, 0);
    store(w, f, 1, 1);
    assert_int_equal(used(w), before + need_bytes);
    store(w, s, 40, 0);
    store(w, f, 39, 1);
    check(w, s, 0, 128, 0, AT_8);
    check(w, f, 0, 64, 0, AT_8);
    check(w, f, 64, 100, 0, AT_8); /* in a page of its own now */
    check(w, f, 100, 128, 1, AT_8);
    check(w, s, 128, 140, 0, AT_16);
    check(w, f, 128, 140, 1, AT_16);
    seq_destroy(s);
    check(w, f, 128, 140, 1, AT_16);
    seq_destroy(f);
    free_world(w);
}

/* seq_need_bytes and what is used agree, and a step that does not fit changes nothing. */
static void run_budget(uint32_t tail) {
    const struct world w = make_world(
        "t4", "", (struct kv_cache_options){.budget_bytes = 400 << 10, .exact_tail = tail});
    struct kv_seq *s;
    need(seq_create(w.cache, &s, &err));
    uint32_t steps = 0;
    for (;; steps++) {
        const uint64_t before = used(w), need_bytes = seq_need_bytes(s, seq_length(s) + 50, 50, 0);
        const uint32_t length = seq_length(s);
        const kvasir_status status = seq_prepare(s, 50, &err);
        if (status != KVASIR_OK) {
            assert_int_equal(status, KVASIR_ERR_BUDGET);
            assert_int_equal(used(w), before);
            assert_int_equal(seq_bytes(s), before);
            check(w, s, length / 64 * 64, length, 0, AT_16);
            break;
        }
        assert_int_equal(used(w), before + need_bytes);
        uint32_t reached;
        need(seq_trim(s, length, &reached, &err));
        assert_int_equal(used(w), before);
        store(w, s, 50, 0);
        assert_true(used(w) <= kv_cache_need_bytes(w.cache, seq_length(s), 50));
    }
    assert_true(steps >= 3);
    seq_destroy(s);
    free_world(w);
}

static void test_budget(void **state) {
    (void)state;
    run_budget(0);
    run_budget(100);
}

/* ---- the exact tail -------------------------------------------------------------------------- */

/* Pages [first, end) and no others have shadows, with the rows that were stored: from a position on
 * those of branch 1. */
static void check_shadows(struct world w, const struct kv_seq *s, uint32_t first, uint32_t end,
                          uint32_t branch_at, float most) {
    float row[DIM], made[DIM];
    uint8_t tile[DIM * TILE_TOKENS * 2];
    struct kv_view view;
    seq_view(s, 0, &view);
    assert_int_equal(view.n_shadows, end - first);
    for (uint32_t p = first * TILE_TOKENS; p < min_u32(end * TILE_TOKENS, seq_length(s)); p++)
        for (uint32_t i = 0; i < LAYERS * HEADS * 2; i++) {
            const struct row_place at = {i % 2 ? TILE_V : TILE_K, i / 2 / HEADS, i / 2 % HEADS, p};
            const struct kv_page *page = kv_view_shadow(&view, p / TILE_TOKENS);
            assert_non_null(page);
            const struct page_layout *l = &view.layouts[page->layout];
            const struct tile_layout *part = i % 2 ? &l->v : &l->k;
            need(backend_arena_read(w.backend, view.arena,
                                    page_offset(page->addr) +
                                        page_tile(l, at.layer, at.head, at.part),
                                    tile, part->bytes, &err));
            tile_decode_row(part, tile, p % TILE_TOKENS, row);
            page_row_to_plain(l, view.basis, &at, row);
            if (at.part == TILE_K && l->centred)
                key_centre_add(&CENTRE, at.layer, at.head, p, 1, row);
            make_row(w, at.part, at.layer, at.head, p, p >= branch_at, made);
            for (uint32_t d = 0; d < DIM; d++)
                assert_true(fabsf(row[d] - made[d]) <= most);
        }
}

static void test_tail(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        const struct world w = make_world(i == 2 ? "r4" : "t4", "cb",
                                          (struct kv_cache_options){.exact_tail = 65 + 63 * (i > 0),
                                                                    .max_size = i == 1 ? 120 : 0});
        struct kv_seq *s;
        uint32_t at = 0;
        assert_int_equal(kv_cache_tail_pages(w.cache), 2);
        need(seq_create(w.cache, &s, &err));
        static const uint32_t STEPS[] = {40, 24, 150, 1, 41, 1, 190, 64};
        for (uint32_t j = 0; j < sizeof STEPS / sizeof *STEPS; j++) {
            store(w, s, STEPS[j], 0);
            at += STEPS[j];
            const uint32_t page = at / TILE_TOKENS, tail = page < 2 ? 0 : page - 2,
                           seen = i == 1 && at > 120 ? (at - 119) / TILE_TOKENS : 0;
            check_shadows(w, s, max_u32(tail, seen), pages_for(at), UINT32_MAX, AT_16);
            check(w, s, max_u32(seen, 1) * TILE_TOKENS, at, 0, AT_4);
            assert_int_equal(seq_bytes(s), used(w));
            assert_true(used(w) <= kv_cache_need_bytes(w.cache, at, 190));
        }
        seq_destroy(s);
        free_world(w);
    }
}

/* Pages of the exact start have their rows; whatever is longer than a sequence is all of it. */
static void test_tail_start(void **state) {
    (void)state;
    const struct world w = make_world(
        "t4", "c", (struct kv_cache_options){.exact_tail = 1 << 20, .quantized_start = 70});
    struct kv_seq *s;
    need(seq_create(w.cache, &s, &err));
    store(w, s, 100, 0);
    trim(s, 77, 77);
    store(w, s, 123, 0);
    store(w, s, 101, 0);
    check(w, s, 0, 128, 0, AT_16);
    check_shadows(w, s, 2, 5, UINT32_MAX, AT_16);
    trim(s, 290, 290);
    trim(s, 193, 193); /* all shadows are there */
    check_shadows(w, s, 2, 4, UINT32_MAX, AT_16);
    trim(s, 60, 60);
    check_shadows(w, s, 0, 0, UINT32_MAX, AT_16);
    seq_destroy(s);
    free_world(w);
}

/* From a snapshot back into the exact start. */
static void test_tail_start_trim(void **state) {
    (void)state;
    const struct world w =
        make_world("t4", "b", (struct kv_cache_options){.exact_tail = 64, .quantized_start = 64});
    struct kv_seq *s;
    need(seq_create(w.cache, &s, &err));
    store(w, s, 192, 0);
    need(seq_snapshot(s, &err));
    store(w, s, 100, 0);
    trim(s, 250, 192);
    trim(s, 60, 60);
    assert_int_equal(used(w), PAGE_16); /* no snapshot is of use here */
    store(w, s, 80, 1);
    check(w, s, 0, 60, 0, AT_16);
    check(w, s, 60, 64, 1, AT_16);
    check_shadows(w, s, 1, 3, 60, AT_16);
    seq_destroy(s);
    free_world(w);
}

static void test_tail_trim(void **state) {
    (void)state;
    const struct world w = make_world("t8", "b", (struct kv_cache_options){.exact_tail = 128});
    struct kv_seq *s, *f;
    need(seq_create(w.cache, &s, &err));
    store(w, s, 192, 0);
    need(seq_snapshot(s, &err));
    store(w, s, 100, 0);
    need(seq_snapshot(s, &err)); /* not where a page ends */
    const uint64_t bytes = used(w);
    trim(s, 270, 270); /* in the same page */
    check_shadows(w, s, 2, 5, UINT32_MAX, AT_16);
    trim(s, 250, 192); /* the tail there is in a snapshot, which counts once */
    check_shadows(w, s, 0, 0, UINT32_MAX, AT_16);
    assert_int_equal(seq_bytes(s), used(w));
    need(seq_fork(s, &f, &err));
    const uint64_t before = used(w), more = seq_need_bytes(s, 260, 68, 0);
    assert_true(before < bytes);
    store(w, s, 68, 1);
    /* One of the shadows went again. */
    assert_int_equal(used(w), before + more - PAGE_16);
    check_shadows(w, s, 2, 5, 192, AT_16);
    trim(s, 256, 256);
    trim(s, 255, 192);
    store(w, f, 10, 0);
    check_shadows(w, f, 1, 4, UINT32_MAX, AT_16);
    trim(f, 191, 0); /* nothing nearer */
    seq_destroy(f);
    trim(s, 192, 192);
    store(w, s, 1, 0);
    check_shadows(w, s, 1, 4, UINT32_MAX, AT_16);
    trim(s, 0, 0);
    assert_int_equal(used(w), 0);
    seq_destroy(s);
    free_world(w);
}

/* What a hit is made of: a snapshot for a new sequence, of where the last page ended. */
static void test_tail_taken(void **state) {
    (void)state;
    const struct world w = make_world("r8,4", "c", (struct kv_cache_options){.exact_tail = 128});
    struct kv_seq *s, *f;
    uint32_t addr;
    need(seq_create(w.cache, &s, &err));
    store(w, s, 180, 0);
    store(w, s, 40, 0);
    need(seq_snapshot_take(s, 128, &addr, &err));
    assert_int_equal(addr, NO_SNAPSHOT);
    need(seq_snapshot_take(s, 192, &addr, &err));
    assert_int_not_equal(addr, NO_SNAPSHOT);
    need(seq_create(w.cache, &f, &err));
    need(seq_begin_at(f, seq_tokens(s), 192, &err));
    for (uint32_t n = 0; n < 3; n++) {
        struct kv_page page;
        assert_true(seq_get_page(s, 0, n, &page));
        page_ref(w.cache->pool, page.addr);
        seq_put_page(f, 0, n, page);
    }
    seq_put_state(f, addr);
    store(w, f, 28, 0);
    check_shadows(w, f, 1, 4, UINT32_MAX, AT_16);
    check(w, f, 0, 220, 0, AT_4);
    seq_destroy(s);
    store(w, f, 40, 0);
    check_shadows(w, f, 2, 5, UINT32_MAX, AT_16);
    seq_destroy(f);
    free_world(w);
}

static void test_tail_refused(void **state) {
    (void)state;
    struct kv_cache *cache;
    const struct world w = make_world("f16", "", (struct kv_cache_options){.exact_tail = 64});
    const struct kv_shape shape = {.layers = LAYERS, .kv_heads = HEADS, .head_dim = DIM};
    struct kv_cache_options o = {.exact_tail = 64, .budget_bytes = 1 << 20};
    assert_int_equal(kv_cache_tail_pages(w.cache), 0);
    need(kv_format_parse_pair("8,4", &o.k, &o.v, &err));
    assert_int_equal(kv_cache_create(w.backend, &shape, 1, &o, &cache, &err), KVASIR_ERR_ARGUMENT);
    assert_string_equal(err.field, "context.kv_exact_tail");
    free_world(w);
}

static void requantize(struct kv_seq *s, const char *bits) {
    struct kv_format k, v;
    need(kv_format_parse_pair(bits, &k, &v, &err));
    need(seq_requantize(s, k, v, 0, 0, &err));
}

/* Between all kinds, with a page that is not full; errors add up. */
static void test_requantize(void **state) {
    (void)state;
    static const char *const WAYS[][4] = {{"f16", "t8", "r8", "f16"},
                                          {"8", "r8", "t8", "8"},
                                          {"t8", "f16", "t8", "r8"},
                                          {"r8", "8", "bf16", "t8"}};
    for (int i = 0; i < 16; i++) {
        const struct world w = make_world(WAYS[i / 4][0],
                                          i % 4 == 0   ? ""
                                          : i % 4 == 1 ? "c"
                                          : i % 4 == 2 ? "b"
                                                       : "cb",
                                          (struct kv_cache_options){0});
        struct kv_seq *s, *f;
        need(seq_create(w.cache, &s, &err));
        store(w, s, 150, 0);
        need(seq_fork(s, &f, &err));
        for (int j = 1; j < 4; j++) {
            requantize(s, WAYS[i / 4][j]);
            check(w, s, 0, 150, 0, (float)(j + 1) * AT_8);
            assert_true(used(w) <= seq_bytes(s) + seq_bytes(f));
        }
        check(w, f, 0, 128, 0, AT_8);
        store(w, s, 60, 0);
        store(w, f, 60, 0);
        check(w, s, 0, 210, 0, 4 * AT_8);
        check(w, f, 0, 210, 0, AT_8);
        seq_destroy(s);
        seq_destroy(f);
        free_world(w);
    }
}

/* The exact tail comes and goes with the formats. */
static void test_tail_requantize(void **state) {
    (void)state;
    static const char *const WAY[] = {"r8", "8", "t8", "t4"};
    const struct world w =
        make_world("t8", "cb", (struct kv_cache_options){.exact_tail = 64, .quantized_start = 64});
    struct kv_seq *s, *f;
    need(seq_create(w.cache, &s, &err));
    store(w, s, 192, 0);
    need(seq_snapshot(s, &err));
    store(w, s, 48, 0);
    need(seq_fork(s, &f, &err));
    for (uint32_t i = 0; i < 4; i++) {
        const bool whole = i != 1;
        requantize(s, WAY[i]);
        check(w, s, 0, 240, 0, i < 3 ? (float)(i + 1) * AT_8 : AT_4);
        check_shadows(w, s, whole ? 2 : 0, whole ? 4 : 0, UINT32_MAX, i ? 3 * AT_8 : AT_16);
        assert_true(used(w) <= seq_bytes(s) + seq_bytes(f));
    }
    store(w, s, 60, 0);
    check_shadows(w, s, 3, 5, UINT32_MAX, 3 * AT_8);
    trim(f, 200, 200);
    trim(f, 195, 195);
    trim(f, 191, 0);
    seq_destroy(f);
    trim(s, 191, 0); /* its snapshots were of other pages */
    seq_destroy(s);
    free_world(w);
}

static void test_hadamard(void **state) {
    (void)state;
    static const uint32_t DIMS[] = {32, 64, 80, 96, 128, 192, 256, 512};
    for (size_t d = 0; d < sizeof DIMS / sizeof *DIMS; d++) {
        float x[512], y[512];
        double before = 0, after = 0;
        for (uint32_t i = 0; i < DIMS[d]; i++) {
            x[i] = y[i] = sinf((float)(i * i + 1));
            before += (double)x[i] * (double)x[i];
        }
        hadamard_rotate(y, DIMS[d]);
        for (uint32_t i = 0; i < DIMS[d]; i++)
            after += (double)y[i] * (double)y[i];
        assert_true(fabs(after / before - 1) < 1e-6); /* orthonormal */
        hadamard_rotate(y, DIMS[d]);
        for (uint32_t i = 0; i < DIMS[d]; i++)
            assert_true(fabsf(y[i] - x[i]) < 1e-6f); /* its own inverse */
    }
}

int main(void) {
    make_basis();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_trim),
        cmocka_unit_test(test_exact_start),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_requantize),
        cmocka_unit_test(test_hadamard),
        cmocka_unit_test(test_tail),
        cmocka_unit_test(test_tail_start),
        cmocka_unit_test(test_tail_trim),
        cmocka_unit_test(test_tail_start_trim),
        cmocka_unit_test(test_tail_taken),
        cmocka_unit_test(test_tail_refused),
        cmocka_unit_test(test_tail_requantize),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
