/* SPDX-License-Identifier: Apache-2.0 */
/* What can go wrong in prefix caches over quantized pages, with a test for each: what other caches
 * got wrong (shared/reference/mlx-and-vllm-mlx.md 7.1), and what this one could. The tests use the
 * tree itself and tiny models. Whatever a sequence found, its logits are bit for bit those of the
 * same tokens run cold. */
#include "model_files.h"

#include <math.h>

#include "backend/cpu/cpu.h"
#include "cache/tree_internal.h"
#include "centres.h"
#include "exchange.h"
#include "tensors.h"

enum { VOCAB = 512, LONG = 330 };

static kvasir_error err;
static int32_t text[3][LONG];
static struct temp_folder folder;
static float cold[LONG][VOCAB]; /* logits after each token of text[0] */

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static int set_up(void **state) {
    uint32_t r = 11;
    (void)state;
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < LONG; i++) {
            r = r * 1664525 + 1013904223;
            text[p][i] = (int32_t)(r >> 16) % VOCAB;
        }
    temp_folder_make(&folder);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    temp_folder_remove(&folder);
    return 0;
}

/* ---- a model, its context and a tree --------------------------------------------------------- */

struct world {
    kvasir_model *model;
    kvasir_context *ctx;
    struct prefix_tree *tree;
};

struct found { /* a sequence that began with what the tree had */
    kvasir_seq *seq;
    struct tree_cursor at;
    struct tree_hit hit;
};

static bool keep_rows(void *user, size_t first, size_t rows, const float *logits) {
    (void)user;
    memcpy(cold[first], logits, rows * sizeof *cold);
    return true;
}

static kvasir_context_options options_of(const char *bits, uint64_t budget) {
    kvasir_context_options o = kvasir_context_defaults();
    o.kv_bits = bits;
    o.ctx = 1024;
    o.threads = 1;
    o.cache_bytes = budget;
    return o;
}

static void open_world_of(struct world *w, const char *name, kvasir_context_options o) {
    char path[512];
    snprintf(path, sizeof path, "%s/fixtures/tiny/%s", SHARED_DIR, name);
    need(kvasir_model_open(path, &w->model, &err));
    need(kvasir_context_create(w->model, &o, &w->ctx, &err));
    kvasir_seq *s;
    need(kvasir_seq_create(w->ctx, &s, &err));
    need(kvasir_seq_eval(
        s, text[0], LONG,
        &(kvasir_eval_options){.struct_size = sizeof(kvasir_eval_options), .on_logits = keep_rows},
        &err));
    kvasir_seq_destroy(s);
    need(tree_create(w->ctx->cache, 1000, &w->tree, &err));
}

static void open_world(struct world *w, const char *name, const char *bits, uint64_t budget) {
    open_world_of(w, name, options_of(bits, budget));
}

static struct kv_pool_stats pool_of(const struct world *w) {
    return kv_pool_stats(kv_cache_pool(w->ctx->cache));
}

static void close_world(struct world *w) {
    tree_check(w->tree);
    tree_destroy(w->tree);
    assert_int_equal(pool_of(w).used_bytes, 0);
    kvasir_context_destroy(w->ctx);
    kvasir_model_close(w->model);
}

static struct found find(struct world *w, const int32_t *tokens, uint32_t n) {
    struct found f;
    need(kvasir_seq_create(w->ctx, &f.seq, &err));
    need(tree_resume(w->tree, "", 0, tokens, n, f.seq->seq, &f.at, &f.hit, &err));
    tree_count(w->tree, &f.at, tokens, n);
    need(seq_reserve(f.seq->seq, w->ctx->options.ctx, &err));
    assert_int_equal(kvasir_seq_length(f.seq), f.hit.length);
    return f;
}

/* Runs up to n tokens; logits [VOCAB] of the last one. */
static void run(struct world *w, const struct found *f, const int32_t *tokens, uint32_t n,
                float *logits) {
    const uint32_t at = kvasir_seq_length(f->seq);
    (void)!tree_make_room(w->tree, seq_need_bytes(f->seq->seq, n, 512, 0));
    need(kvasir_seq_eval(
        f->seq, tokens + at, n - at,
        &(kvasir_eval_options){.struct_size = sizeof(kvasir_eval_options), .last_logits = logits},
        &err));
}

static void put_away(struct world *w, struct found *f, bool store) {
    if (store)
        tree_store(w->tree, &f->at, f->seq->seq, true);
    kvasir_seq_destroy(f->seq);
    tree_close(w->tree, &f->at);
    tree_check(w->tree);
}

/* A request of n tokens. A recurrent model also stores its prompt one token before the end. */
static uint32_t request(struct world *w, const int32_t *tokens, uint32_t n) {
    struct found f = find(w, tokens, n);
    float logits[VOCAB];
    if (kv_cache_snapshot_bytes(w->ctx->cache) && kvasir_seq_length(f.seq) < n - 1) {
        run(w, &f, tokens, n - 1, logits);
        tree_store(w->tree, &f.at, f.seq->seq, true);
    }
    run(w, &f, tokens, n, logits);
    put_away(w, &f, true);
    return f.hit.length;
}

/* ---- lengths --------------------------------------------------------------------------------- */

/* The longest hit, up to `most` tokens, in a prompt of `stored` tokens that one request has left:
 * no shorter than the pages of windows reach, and with recurrent layers at a state (request). */
static uint32_t longest_hit(const struct world *w, uint32_t stored, uint32_t most) {
    const struct kv_cache *c = w->ctx->cache;
    for (uint32_t length = most < stored ? most : stored; length > 0; length--) {
        bool good = !kv_cache_snapshot_bytes(c) || length == stored || length == stored - 1;
        for (uint32_t g = 0; g < c->n_groups; g++)
            good = good && first_held(&c->groups[g], length) >= first_held(&c->groups[g], stored);
        if (good)
            return length;
    }
    return 0;
}

static void check_lengths(const char *model, const char *bits) {
    struct world w;
    float logits[VOCAB];
    int32_t tokens[LONG];
    open_world(&w, model, bits, 64 << 20);
    request(&w, text[0], 300);
    for (uint32_t n = 2; n<LONG; n += n % 64> 60 || n % 64 < 3 ? 1 : 13) {
        struct found f = find(&w, text[0], n); /* supersequence, exact, prefix */
        assert_true(f.hit.length < n);
        assert_int_equal(f.hit.length, longest_hit(&w, 300, n - 1));
        run(&w, &f, text[0], n, logits);
        assert_memory_equal(logits, cold[n - 1], sizeof logits);
        put_away(&w, &f, false);
        if (n > 300)
            continue;
        memcpy(tokens, text[0], n * sizeof *tokens); /* diverges from the stored prompt at n */
        for (uint32_t i = n; i < LONG; i++)
            tokens[i] = (text[0][i] + 1) % VOCAB;
        f = find(&w, tokens, LONG);
        assert_int_equal(f.hit.common, n < 300 ? n : 300);
        assert_int_equal(f.hit.length, longest_hit(&w, 300, n));
        if (f.hit.length < n) { /* run again, to the same logits */
            run(&w, &f, tokens, n, logits);
            assert_memory_equal(logits, cold[n - 1], sizeof logits);
        }
        put_away(&w, &f, false);
    }
    close_world(&w);
}

static void test_hits_on_quantized_pages_leave_exactly_the_right_length(void **state) {
    (void)state;
    check_lengths("llama", "8,4");
    check_lengths("llama", "3");
    check_lengths("llama", "f16,2");
    check_lengths("gemma2", "4,2"); /* windows: as far as their pages reach */
    check_lengths("gpt_oss", "8");
    check_lengths("qwen3_next", "8,4"); /* states: where they were kept */
    check_lengths("lfm2", "4");
}

static void check_exact(const char *model) {
    struct world w;
    static const uint32_t lengths[] = {2, 63, 64, 65, 128, 200, 300};
    for (int i = 0; i < 7; i++) {
        float logits[VOCAB];
        open_world(&w, model, "8,4", 64 << 20);
        assert_int_equal(request(&w, text[0], lengths[i]), 0);
        const struct kv_pool_stats stored = pool_of(&w);
        for (int again = 0; again < 3; again++) {
            struct found f = find(&w, text[0], lengths[i]);
            assert_int_equal(f.hit.length, lengths[i] - 1);
            assert_int_equal(f.hit.kind, KVASIR_HIT_EXACT);
            run(&w, &f, text[0], lengths[i], logits);
            assert_memory_equal(logits, cold[lengths[i] - 1], sizeof logits);
            put_away(&w, &f, true);
            assert_int_equal(pool_of(&w).used_bytes, stored.used_bytes);
        }
        close_world(&w);
    }
}

static void test_an_exact_hit_runs_its_last_token_only(void **state) {
    (void)state;
    check_exact("llama");
    check_exact("qwen3_next");
}

static void test_a_short_hit_never_beats_a_longer_common_prefix(void **state) {
    (void)state;
    int32_t beside[LONG];
    memcpy(beside, text[0], sizeof beside);
    memcpy(beside + 150, text[1], 100 * sizeof *beside);
    for (int order = 0; order < 2; order++) {
        struct world w;
        float logits[VOCAB];
        open_world(&w, "llama", "8,4", 64 << 20);
        if (order)
            request(&w, beside, 250);
        request(&w, text[0], 50); /* the whole of a stored prompt is a hit, but a short one */
        request(&w, text[0], 30);
        if (!order)
            request(&w, beside, 250);
        struct found f = find(&w, text[0], 300);
        assert_int_equal(f.hit.length, 150);
        assert_int_equal(f.hit.kind, KVASIR_HIT_COMMON_PREFIX);
        run(&w, &f, text[0], 300, logits);
        assert_memory_equal(logits, cold[299], sizeof logits);
        put_away(&w, &f, true);
        close_world(&w);
    }
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* The script of the reference: a request, then one that continues it. There the stored bytes grew
 * with every hit; here they are those of the tokens, in whole pages, on a hit as on a miss. */
static void test_stored_bytes_are_those_of_the_tokens_on_a_hit_as_on_a_miss(void **state) {
    (void)state;
    static const uint32_t lengths[][2] = {{100, 101}, {100, 128}, {100, 129}, {64, 65},
                                          {63, 64},   {1, 300},   {256, 300}, {299, 300}};
    static const char *const bits[] = {"8,4", "8", "4", "f16"};
    for (size_t b = 0; b < 4; b++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            struct world w;
            kvasir_context_info info;
            uint64_t bytes[2];
            for (int hit = 0; hit < 2; hit++) {
                open_world(&w, "llama", bits[b], 64 << 20);
                kvasir_context_get_info(w.ctx, &info);
                if (hit)
                    request(&w, text[0], lengths[i][0]);
                assert_int_equal(request(&w, text[0], lengths[i][1]), hit ? lengths[i][0] : 0);
                bytes[hit] = pool_of(&w).stored_bytes;
                assert_int_equal(bytes[hit], pool_of(&w).used_bytes);
                close_world(&w);
            }
            const uint64_t page = round_up(info.kv_bytes_per_token * TILE_TOKENS, 4096);
            assert_int_equal(bytes[0], (lengths[i][1] + 63) / 64 * page);
            assert_int_equal(bytes[1], bytes[0]);
        }
}

/* The bytes of one page or state, if there is one; counts it. */
static uint64_t hash_extent(const struct kv_cache *c, uint32_t addr, size_t bytes, uint32_t *n) {
    if (addr == NO_ADDR)
        return 0;
    const uint8_t *at = backend_cpu_arena_bytes(pool_arena(c->pool)) + page_offset(addr);
    uint64_t hash = addr;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 0x100000001b3u;
    ++*n;
    return hash;
}

/* Sum over the bytes of all pages and states that the tree holds, and the number of those. */
static uint64_t hash_stored(const struct world *w, uint32_t *n) {
    const struct prefix_tree *t = w->tree;
    const struct kv_cache *c = t->cache;
    uint64_t hash = 0;
    *n = 0;
    for (uint32_t x = 0; x < t->n_made; x++) {
        if (!t->nodes[x].to)
            continue;
        for (uint32_t g = 0; g < c->n_groups; g++) {
            const struct kv_page *page = node_page(t, x, g);
            hash += hash_extent(c, page->addr, c->layouts[g][page->layout].page_bytes, n);
        }
        hash += hash_extent(c, t->nodes[x].state, c->options.state_bytes, n);
    }
    return hash;
}

static void check_alias(const char *model, const char *bits) {
    static const uint32_t lengths[] = {3, 40, 64, 100, 128, 199, 200};
    struct world w;
    int32_t tokens[LONG];
    float logits[VOCAB];
    uint32_t n, now;
    open_world(&w, model, bits, 64 << 20);
    struct found writer = find(&w, text[0], LONG);
    run(&w, &writer, text[0], 200, logits);
    tree_store(w.tree, &writer.at, writer.seq->seq, true);
    for (size_t i = 0; i < 7; i++) { /* split at each, so that none splits a node later */
        struct found f = find(&w, text[0], lengths[i] + 1);
        put_away(&w, &f, false);
    }
    const uint64_t hash = hash_stored(&w, &n);
    run(&w, &writer, text[0], 300, logits); /* the one that stored them goes on */
    assert_memory_equal(logits, cold[299], sizeof logits);
    assert_int_equal(hash_stored(&w, &now), hash);
    for (size_t i = 0; i < 7; i++) {
        kvasir_seq *fork;
        memcpy(tokens, text[1], sizeof tokens);
        memcpy(tokens, text[0], lengths[i] * sizeof *tokens);
        struct found f = find(&w, tokens, LONG);
        need(kvasir_seq_fork(f.seq, &fork, &err));
        run(&w, &f, tokens, 310, logits);
        need(kvasir_seq_eval(fork, text[2], 100, NULL, &err));
        (void)!kvasir_seq_trim(fork, lengths[i] / 2, NULL, &err);
        need(kvasir_seq_eval(fork, text[1], 30, NULL, &err));
        kvasir_seq_destroy(fork);
        put_away(&w, &f, false);
        assert_int_equal(hash_stored(&w, &now), hash);
        assert_int_equal(now, n);
    }
    put_away(&w, &writer, false);
    assert_int_equal(hash_stored(&w, &now), hash);
    close_world(&w);
}

static void test_a_stored_page_is_never_a_live_buffer(void **state) {
    (void)state;
    check_alias("llama", "8,4");
    check_alias("llama", "f16");
    check_alias("gemma2", "4,2");
    check_alias("qwen3_next", "8");
}

static void plant_infinity(const struct tile_layout *tile, uint8_t *bytes, uint32_t slot) {
    uint8_t codes[HEAD_DIM_MAX];
    float infinite[HEAD_DIM_MAX];
    memset(codes, 1, sizeof codes);
    for (size_t i = 0; i < HEAD_DIM_MAX; i++)
        infinite[i] = INFINITY;
    if (kv_format_exact(tile->format))
        tile_encode_row(tile, bytes, slot, infinite);
    else
        tile_put_row(tile, bytes, slot, codes, infinite, infinite);
}

static void check_zeros(const struct tile_layout *tile, uint8_t *bytes, uint32_t slot) {
    float x[HEAD_DIM_MAX] = {0};
    tile_decode_row(tile, bytes, slot, x);
    for (size_t i = 0; i < HEAD_DIM_MAX; i++)
        assert_true(x[i] == 0);
}

/* Visits the tokens from slot `from` on of page 1. */
static void later_tokens(const struct world *w, const struct kv_seq *s, uint32_t from,
                         void (*visit)(const struct tile_layout *, uint8_t *, uint32_t)) {
    for (uint32_t g = 0; g < w->ctx->n_groups; g++) {
        struct kv_view view;
        seq_view(s, g, &view);
        const uint32_t entry = kv_view_index(&view, 1);
        assert_int_not_equal(entry, UINT32_MAX);
        const struct page_layout *l = &view.layouts[view.pages[entry].layout];
        uint8_t *page = backend_cpu_arena_bytes(view.arena) + page_offset(view.pages[entry].addr);
        for (uint32_t i = 0; i < 2 * l->layers * l->kv_heads; i++) {
            const struct tile_layout *tile = i % 2 ? &l->v : &l->k;
            uint8_t *bytes = page + page_tile(l, i / 2 / l->kv_heads, i / 2 % l->kv_heads,
                                              i % 2 ? TILE_V : TILE_K);
            for (uint32_t slot = from; slot < TILE_TOKENS; slot++)
                visit(tile, bytes, slot);
        }
    }
}

static void check_infinities(const char *bits, bool alone) {
    static const uint32_t lengths[] = {99, 83, 82, 81, 80, 65};
    struct world w;
    int32_t tokens[LONG];
    float want[VOCAB], logits[VOCAB];
    open_world(&w, "llama", bits, 64 << 20);
    request(&w, text[0], 120);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const uint32_t n = lengths[i];
        struct found bare;
        memcpy(tokens, text[1], sizeof tokens);
        memcpy(tokens, text[0], n * sizeof *tokens);
        need(kvasir_seq_create(w.ctx, &bare.seq, &err));
        run(&w, &bare, tokens, n + 3, want);
        kvasir_seq_destroy(bare.seq);
        struct found f = find(&w, tokens, n + 3);
        assert_int_equal(f.hit.length, n);
        later_tokens(&w, f.seq->seq, n % TILE_TOKENS, plant_infinity);
        if (alone) { /* the tree forgets the page: the sequence goes on in it without a copy */
            tree_close(w.tree, &f.at);
            tree_forget(w.tree, NULL, 0);
        }
        run(&w, &f, tokens, n + 3, logits);
        assert_memory_equal(logits, want, sizeof logits);
        later_tokens(&w, f.seq->seq, (n + 3) % TILE_TOKENS, check_zeros);
        if (alone)
            kvasir_seq_destroy(f.seq);
        else
            put_away(&w, &f, false);
        if (alone)
            request(&w, text[0], 120);
    }
    close_world(&w);
}

/* A page of a hit also has tokens of others after the hit. Attention gives them weight 0, but they
 * may be infinite. Not every tier of kernels reads them, so the bytes are looked at, too. */
static void test_no_infinity_crosses_a_shared_page(void **state) {
    (void)state;
    static const char *const formats[] = {"f16", "f32", "8,4", "3"};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        for (int alone = 0; alone < 2; alone++)
            check_infinities(formats[i], alone);
}

static void check_evict(const char *model) {
    struct world w;
    float logits[VOCAB];
    open_world(&w, model, "8,4", 0);
    const uint64_t one = kv_cache_need_bytes(w.ctx->cache, LONG, 512);
    close_world(&w);
    open_world(&w, model, "8,4", 3 * one); /* two sequences, and what a third needs to fork */
    request(&w, text[0], 300);
    struct found live = find(&w, text[0], 290);
    const uint32_t begin = live.hit.length;
    for (int i = 0; i < 8; i++) {
        struct found f = find(&w, text[1] + i, 300);
        run(&w, &f, text[1] + i, 300, logits);
        put_away(&w, &f, true);
    }
    (void)!tree_make_room(w.tree, UINT64_MAX / 2); /* evicts all it can */
    assert_int_equal(kvasir_seq_length(live.seq), begin);
    for (uint32_t n = begin + 1; n <= LONG; n++) {
        run(&w, &live, text[0], n, logits);
        assert_memory_equal(logits, cold[n - 1], sizeof logits);
    }
    put_away(&w, &live, true);
    close_world(&w);
}

static void test_eviction_changes_nothing_that_a_live_sequence_sees(void **state) {
    (void)state;
    check_evict("llama");
    check_evict("gemma2");
    check_evict("qwen3_next");
}

/* ---- fewer bits ------------------------------------------------------------------------------ */

static void test_min_quantize_tokens_at_255_256_257(void **state) {
    (void)state;
    const struct kv_format four = {.bits = 4};
    static const uint32_t pages[] = {0, 4, 4}; /* with 255, 256, 257 tokens: whole pages only */
    for (uint32_t i = 0; i < 3; i++) {
        struct world w;
        float logits[VOCAB];
        const uint32_t n = 255 + i;
        open_world(&w, "llama", "8", 64 << 20);
        need(tree_requantize_begin(w.tree, four, four, 0, 0, 256, &err));
        struct found f = find(&w, text[0], n);
        run(&w, &f, text[0], n, logits);
        tree_store(w.tree, &f.at, f.seq->seq, true);
        assert_int_equal(tree_requantize(w.tree, 100, UINT32_MAX), 0); /* a sequence holds them */
        put_away(&w, &f, false);
        const uint64_t before = pool_of(&w).stored_bytes;
        assert_int_equal(tree_requantize(w.tree, 100, UINT32_MAX), pages[i]);
        assert_int_equal(tree_stats(w.tree).requantized_pages, pages[i]);
        assert_int_equal(tree_requantize(w.tree, 100, UINT32_MAX), 0); /* only once */
        assert_true(pages[i] ? pool_of(&w).stored_bytes < before
                             : pool_of(&w).stored_bytes == before);
        f = find(&w, text[0], LONG); /* continues after them, whatever their format */
        assert_int_equal(f.hit.length, n);
        run(&w, &f, text[0], LONG, logits);
        assert_int_equal(memcmp(logits, cold[LONG - 1], sizeof logits) == 0, pages[i] == 0);
        put_away(&w, &f, true);
        close_world(&w);
    }
}

/* What is stored, and what is requested then. */
struct stored_case {
    const char *model, *bits, *stored; /* formats of live pages, of stored ones */
    bool centres;                      /* keys have large constant parts, removed by centres */
    uint32_t start, max_size;          /* quantized_kv_start, max_kv_size */
    uint32_t length;                   /* stored tokens of text[0] */
    uint32_t parts;                    /* > 0: where another stored prompt diverges */
    uint32_t agrees;                   /* > 0: the prompt equals what is stored up to there */
    uint32_t hit;                      /* tokens of the prompt that are found */
    uint32_t fewer;                    /* bit i: page i of those has the stored formats */
};

static float after_hit[LONG][VOCAB]; /* logits after each token from `hit` on */

static bool keep_after_hit(void *user, size_t first, size_t rows, const float *logits) {
    memcpy(after_hit[*(const uint32_t *)user + first], logits, rows * sizeof *after_hit);
    return true;
}

/* A calibration file for the model. */
static const char *write_centres(const char *name) {
    char path[512];
    kvasir_model *m;
    snprintf(path, sizeof path, "%s/fixtures/tiny/%s", SHARED_DIR, name);
    need(kvasir_model_open(path, &m, &err));
    struct text_buf file = random_centres(m, 20, 1);
    assert_non_null(file.data);
    temp_write(&folder, "centres", file.data, file.len);
    text_free(&file);
    kvasir_model_close(m);
    return folder.file;
}

/* Both hold the same rows, with the same values, in pages of the same formats. */
static void check_same_kv(const kvasir_seq *a, const kvasir_seq *b) {
    static float rows[2][HEAD_DIM_MAX * TILE_TOKENS];
    const struct model_config *config = model_config(a->ctx->model->model);
    const uint32_t length = kvasir_seq_length(a);
    assert_int_equal(kvasir_seq_length(b), length);
    uint32_t checked = 0;
    for (uint32_t l = 0; l < config->n_layers; l++)
        for (uint32_t h = 0; h < config->layers[l].kv_heads; h++)
            for (uint32_t p = 0; p < length; p += TILE_TOKENS)
                for (int part = KVASIR_PART_K; part <= KVASIR_PART_V; part++) {
                    const uint32_t n = length - p < TILE_TOKENS ? length - p : TILE_TOKENS;
                    const kvasir_status status =
                        kvasir_seq_read_kv(a, (kvasir_kv_part)part, l, h, p, n, rows[0], NULL);
                    assert_int_equal(
                        kvasir_seq_read_kv(b, (kvasir_kv_part)part, l, h, p, n, rows[1], NULL),
                        status);
                    if (status != KVASIR_OK)
                        continue; /* another kind of layer, or a window has left the page */
                    assert_memory_equal(rows[0], rows[1],
                                        n * config->layers[l].head_dim * sizeof(float));
                    checked++;
                }
    assert_true(checked > 0);
    for (uint32_t g = 0; g < a->ctx->n_groups; g++) {
        struct kv_view x, y;
        seq_view(a->seq, g, &x);
        seq_view(b->seq, g, &y);
        assert_int_equal(x.n_pages, y.n_pages);
        for (uint32_t i = 0; i < x.n_pages; i++) {
            const struct page_layout *k = &x.layouts[x.pages[i].layout],
                                     *m = &y.layouts[y.pages[i].layout];
            assert_true(kv_format_equal(k->k.format, m->k.format));
            assert_true(kv_format_equal(k->v.format, m->v.format));
        }
    }
}

/* The resumed sequence continues in a batch, with one that has only live pages. */
static void check_beside(struct world *w, const struct stored_case *c, kvasir_seq *resumed,
                         const int32_t *tokens) {
    static const uint32_t counts[][2] = {{1, 70}, {5, 1}, {0, 3}, {1, 1}, {1, 90}, {1, 1}};
    static int32_t both[LONG];
    float logits[2][VOCAB];
    kvasir_seq *pair[2] = {resumed};
    kvasir_batch *batch;
    uint32_t at = c->hit, beside = 0;
    need(kvasir_seq_create(w->ctx, &pair[1], &err));
    need(kvasir_batch_merge(w->ctx, pair, 2, &batch, &err));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        memcpy(both, tokens + at, counts[i][0] * sizeof *both);
        memcpy(both + counts[i][0], text[0] + beside, counts[i][1] * sizeof *both);
        need(kvasir_batch_eval(batch, both, counts[i], &logits[0][0], &err));
        at += counts[i][0];
        beside += counts[i][1];
        if (counts[i][0])
            assert_memory_equal(logits[0], after_hit[at - 1], sizeof *logits);
        assert_memory_equal(logits[1], cold[beside - 1], sizeof *logits);
    }
    kvasir_batch_destroy(batch); /* and both sequences */
}

/* Stores what the case says, and re-encodes at fewer bits all of it that can be. */
static void store_fewer(struct world *w, const struct stored_case *c) {
    struct kv_cache_options o = {0};
    int32_t tokens[LONG];
    need(options_parse_formats(c->stored, NULL, &o, &err));
    need(tree_requantize_begin(w->tree, o.k, o.v, 0, 0, 0, &err));
    request(w, text[0], c->length);
    if (c->parts) {
        memcpy(tokens, text[0], c->parts * sizeof *tokens);
        memcpy(tokens + c->parts, text[1], 40 * sizeof *tokens);
        request(w, tokens, c->parts + 40);
    }
    assert_true(tree_requantize(w->tree, 100, UINT32_MAX) > 0);
    assert_int_equal(tree_requantize(w->tree, 100, UINT32_MAX), 0);
}

/* What follows stored pages at fewer bits gets the same logits, bit for bit, as after the same
 * pages of a sequence that was never stored: alone and in a batch. */
static void check_stored(const struct stored_case *c) {
    struct world w;
    kvasir_context *other;
    kvasir_seq *twin, *alone, *beside;
    int32_t tokens[LONG];
    static float expected[LONG][VOCAB];
    kvasir_context_options o = options_of(c->bits, 64 << 20);
    o.quantized_kv_start = c->start;
    o.max_kv_size = c->max_size;
    o.key_centre = c->centres ? write_centres(c->model) : "off";
    open_world_of(&w, c->model, o);
    assert_true(c->centres == (w.ctx->centres != NULL));
    store_fewer(&w, c);
    memcpy(tokens, text[0], sizeof tokens);
    if (c->agrees)
        memcpy(tokens + c->agrees, text[2], (LONG - c->agrees) * sizeof *tokens);
    struct found f = find(&w, tokens, LONG);
    assert_int_equal(f.hit.length, c->hit);

    need(kvasir_context_create(w.model, &o, &other, &err));
    need(kvasir_seq_create(other, &twin, &err));
    need(kvasir_seq_eval(twin, tokens, c->hit, NULL, &err));
    exchange_pages(twin, c->fewer, c->stored);
    check_same_kv(f.seq, twin);
    need(kvasir_seq_fork(f.seq, &alone, &err));
    need(kvasir_seq_fork(f.seq, &beside, &err));

    uint32_t first = c->hit;
    const kvasir_eval_options all = {
        .struct_size = sizeof(kvasir_eval_options), .on_logits = keep_after_hit, .user = &first};
    need(kvasir_seq_eval(alone, tokens + c->hit, LONG - c->hit, &all, &err));
    memcpy(expected, after_hit, sizeof after_hit);
    for (; first < LONG; first++) /* one by one: chunks change nothing here either */
        need(kvasir_seq_eval(twin, tokens + first, 1, &all, &err));
    assert_memory_equal(after_hit[c->hit], expected[c->hit], (LONG - c->hit) * sizeof *after_hit);
    check_same_kv(alone, twin);
    if (!c->agrees) /* and the logits differ from those of live pages */
        assert_memory_not_equal(after_hit[LONG - 1], cold[LONG - 1], sizeof *after_hit);
    check_beside(&w, c, beside, tokens);

    kvasir_seq_destroy(alone);
    kvasir_seq_destroy(twin);
    assert_int_equal(kv_pool_stats(kv_cache_pool(other->cache)).used_bytes, 0);
    kvasir_context_destroy(other);
    put_away(&w, &f, false);
    close_world(&w);
}

static void test_stored_pages_at_fewer_bits_are_attended_to_as_they_are(void **state) {
    (void)state;
    static const struct stored_case cases[] = {
        {"llama", "8", "4", .length = 256, .hit = 256, .fewer = 0xf},
        {"llama", "8", "4", .length = 300, .hit = 300, .fewer = 0xf}, /* then an open page */
        {"llama", "8,4", "4,2", .length = 257, .hit = 257, .fewer = 0xf},
        {"llama", "f16", "8,4", .length = 300, .hit = 300, .fewer = 0xf},
        {"llama", "f16,4", "3,4", .length = 255, .hit = 255, .fewer = 0x7},
        {"llama", "8", "4", .start = 64, .length = 300, .hit = 300, .fewer = 0xe},
        {"llama", "8", "4", .max_size = 150, .length = 300, .hit = 300, .fewer = 0xf},
        /* a page that is split is not re-encoded */
        {"llama", "8", "4", .length = 300, .parts = 100, .hit = 300, .fewer = 0xd},
        /* a hit does not end inside a re-encoded page */
        {"llama", "8", "4", .length = 300, .agrees = 150, .hit = 128, .fewer = 0x3},
        /* centred keys, in stored pages and in live ones */
        {"llama", "8", "4", .centres = true, .length = 300, .hit = 300, .fewer = 0xf},
        {"llama", "8", "4", .centres = true, .start = 64, .length = 300, .hit = 300, .fewer = 0xe},
        /* windows; states */
        {"gemma2", "8", "4,2", .length = 300, .hit = 300, .fewer = 0xf},
        {"gpt_oss", "8", "4", .length = 300, .hit = 300, .fewer = 0xf},
        {"qwen3_next", "8,4", "4,2", .length = 300, .hit = 300, .fewer = 0xf},
        {"lfm2", "8", "3", .length = 300, .hit = 300, .fewer = 0xf},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_stored(&cases[i]);
}

int main(void) {
    skip_without(SHARED_DIR "/fixtures/tiny/llama/config.json");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hits_on_quantized_pages_leave_exactly_the_right_length),
        cmocka_unit_test(test_an_exact_hit_runs_its_last_token_only),
        cmocka_unit_test(test_a_short_hit_never_beats_a_longer_common_prefix),
        cmocka_unit_test(test_stored_bytes_are_those_of_the_tokens_on_a_hit_as_on_a_miss),
        cmocka_unit_test(test_a_stored_page_is_never_a_live_buffer),
        cmocka_unit_test(test_no_infinity_crosses_a_shared_page),
        cmocka_unit_test(test_eviction_changes_nothing_that_a_live_sequence_sees),
        cmocka_unit_test(test_min_quantize_tokens_at_255_256_257),
        cmocka_unit_test(test_stored_pages_at_fewer_bits_are_attended_to_as_they_are),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
