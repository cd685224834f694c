/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of a GPU that come back from the host's memory, against a plain copy of as many bytes.
 *
 *     host_tier DEVICE [MODEL [TOKENS]]
 *
 * First the cache alone, of Llama-8B's shape (32 layers, 8 KV heads of 128) at 8/4: TOKENS tokens
 * (32,768) are stored, written to the host tier, evicted and loaded, ROUNDS times. Beside it what
 * bounds a load: the same pages copied to the device from pinned memory by one lane, and the sums
 * that one thread makes of it. The issue allows 1.3 x the copy. At the end every page is compared.
 *
 * With MODEL then an engine: a prompt of TOKENS tokens is computed and evicted by others; while
 * BATCH requests decode it is asked again. How long its first token takes, and the others' steps
 * before and meanwhile; the same with a prompt that the device has.
 *
 * On cpu, where no lanes are, the figures mean nothing: it is there to try the program.
 */
#include <xxhash.h>

#include "cache/cache_internal.h"
#include "engine/engine_internal.h"
#include "requests.h"

enum { LAYERS = 32, KV_HEADS = 8, HEAD_DIM = 128, ROUNDS = 5, BATCH = 16 };

static const char *device;
static uint32_t n_tokens = 32768;
static int32_t *ids; /* [2 * n_tokens + BATCH] */

/* ---- the cache alone ------------------------------------------------------------------------- */

struct world {
    struct backend *backend;
    struct kv_cache *cache;
    struct prefix_tree *tree;
    struct tiers *tiers;
    uint32_t pages;
    uint64_t page_bytes;
    uint64_t *sums; /* [pages] */
    uint8_t *host;  /* [pages][page_bytes], pinned where there are lanes */
};

static bool has_lanes(const struct world *w) {
    return w->backend->ops->lane_create != NULL;
}

static void make_world(struct world *w) {
    const struct kv_shape shape = {.layers = LAYERS, .kv_heads = KV_HEADS, .head_dim = HEAD_DIM};
    struct kv_cache_options o = {.k = {.bits = 8}, .v = {.bits = 4}};
    kvasir_context_options context = kvasir_context_defaults();
    struct tiers_options t = {.n = 1, .context = {{1, 2}}, .late_seconds = 60};
    uint64_t bytes;
    context.device = device;
    w->pages = n_tokens / TILE_TOKENS;
    need(device_create(&context, &w->backend, &err));
    need(kv_cache_plan_bytes(&shape, 1, &o, n_tokens, TILE_TOKENS, &bytes, &err));
    o.budget_bytes = bytes + ((uint64_t)256 << 20);
    need(kv_cache_create(w->backend, &shape, 1, &o, &w->cache, &err));
    need(tree_create(w->cache, 5000, &w->tree, &err));
    struct tier_memory_options host = {.limit_bytes = 2 * bytes, .backend = w->backend};
    host.block_bytes = tiers_block_bytes(w->cache, &(uint64_t){0});
    w->page_bytes = w->cache->layouts[0][LAYOUT_OWN].page_bytes;
    need(tier_memory_create(&host, &t.tiers[0], &err));
    need(tiers_create(w->tree, &t, &w->tiers, &err));
    const uint64_t all = w->pages * w->page_bytes;
    w->sums = malloc(w->pages * sizeof *w->sums);
    w->host = has_lanes(w) ? w->backend->ops->pinned_alloc(w->backend, all) : malloc(all);
    if (!w->host || !w->sums)
        exit(1);
    for (uint64_t i = 0; i + 8 <= all; i += 8)
        memcpy(w->host + i, &(uint64_t){i * 0x9e3779b97f4a7c15}, 8);
    for (uint32_t i = 0; i < w->pages; i++)
        w->sums[i] = XXH3_64bits(w->host + i * w->page_bytes, w->page_bytes);
}

static void free_world(struct world *w) {
    if (has_lanes(w))
        w->backend->ops->pinned_free(w->backend, w->host);
    else
        free(w->host);
    free(w->sums);
    tiers_destroy(w->tiers);
    tree_destroy(w->tree);
    kv_cache_destroy(w->cache);
    backend_destroy(w->backend);
}

static size_t page_at(struct kv_seq *s, uint32_t i) {
    struct kv_page page;
    if (!seq_get_page(s, 0, i, &page))
        exit(1);
    return page_offset(page.addr);
}

static struct backend_arena *arena_of(const struct world *w) {
    return pool_arena(kv_cache_pool(w->cache));
}

/* Stores all pages, and while they are there copies them once more for the yardstick: bytes a
 * second of ROUNDS copies (median). */
static double store_and_copy(struct world *w) {
    struct kv_seq *s;
    struct tree_cursor at;
    struct tree_hit hit;
    struct backend_lane *lane = has_lanes(w) ? w->backend->ops->lane_create(w->backend) : NULL;
    double seconds[ROUNDS];
    need(seq_create(w->cache, &s, &err));
    need(tree_resume(w->tree, "", 0, ids, n_tokens + 1, s, &at, &hit, &err));
    for (uint32_t i = 0; i < w->pages; i++) {
        need(seq_prepare(s, TILE_TOKENS, &err));
        seq_commit(s, ids + i * TILE_TOKENS, TILE_TOKENS);
    }
    need(w->backend->ops->flush(w->backend, &err));
    if (has_lanes(w))
        w->backend->ops->lanes_follow(w->backend);
    for (int r = 0; r < ROUNDS; r++) {
        const double start = clock_seconds();
        for (uint32_t i = 0; i < w->pages; i++) {
            const uint8_t *from = w->host + i * w->page_bytes;
            if (lane)
                w->backend->ops->lane_put(lane, arena_of(w), page_at(s, i), from, w->page_bytes);
            else
                backend_arena_write(w->backend, arena_of(w), page_at(s, i), from, w->page_bytes);
        }
        if (lane && !w->backend->ops->lane_wait(lane))
            exit(1);
        seconds[r] = clock_seconds() - start;
    }
    if (lane)
        w->backend->ops->lane_destroy(w->backend, lane);
    tree_store(w->tree, &at, s, true);
    tiers_offer(w->tiers, &at);
    seq_destroy(s);
    tree_close(w->tree, &at);
    return (double)(w->pages * w->page_bytes) / median(seconds, ROUNDS);
}

/* Seconds until the tree has the prompt again. *begin: of these, until readers could begin, in
 * which an engine's thread computes no step. */
static double load(struct world *w, double *begin) {
    const double start = clock_seconds();
    struct tier_load *l = tiers_load(w->tiers, "", 0, ids, n_tokens + 1, UINT64_MAX);
    *begin = clock_seconds() - start;
    while (l && !tier_load_is_done(l)) {
        usleep(20);
        tiers_collect(w->tiers, clock_seconds());
    }
    const double seconds = clock_seconds() - start;
    tier_load_close(w->tiers, l);
    return seconds;
}

/* How many pages a hit has, all with the bytes that were stored. */
static uint32_t compare_pages(struct world *w) {
    struct kv_seq *s;
    struct tree_cursor at;
    struct tree_hit hit;
    uint8_t *bytes = malloc(w->page_bytes);
    uint32_t same = 0;
    need(seq_create(w->cache, &s, &err));
    need(tree_resume(w->tree, "", 0, ids, n_tokens + 1, s, &at, &hit, &err));
    for (uint32_t i = 0; i < hit.length / TILE_TOKENS; i++) {
        need(
            backend_arena_read(w->backend, arena_of(w), page_at(s, i), bytes, w->page_bytes, &err));
        same += XXH3_64bits(bytes, w->page_bytes) == w->sums[i];
    }
    seq_destroy(s);
    tree_close(w->tree, &at);
    free(bytes);
    return same;
}

static double sum_speed(const struct world *w) {
    const double start = clock_seconds();
    uint64_t all = 0;
    for (uint32_t i = 0; i < w->pages; i++)
        all ^= XXH3_128bits(w->host + i * w->page_bytes, w->page_bytes).low64;
    const double seconds = clock_seconds() - start;
    return all ? (double)(w->pages * w->page_bytes) / seconds : 0;
}

static void bench_cache(void) {
    struct world w;
    double seconds[ROUNDS], begin;
    make_world(&w);
    const uint64_t bytes = w.pages * w.page_bytes;
    const double copy = store_and_copy(&w), start = clock_seconds();
    tiers_flush(w.tiers, 60);
    printf("written: %u pages, %.3f GB, %.1f GB/s with the wait for pinned memory\n", w.pages,
           (double)bytes * 1e-9, (double)bytes * 1e-9 / (clock_seconds() - start));
    for (int r = 0; r < ROUNDS; r++) {
        (void)tree_make_room(w.tree, kv_pool_stats(kv_cache_pool(w.cache)).budget_bytes);
        const uint32_t left = tree_look(w.tree, "", 0, ids, n_tokens + 1).length;
        seconds[r] = load(&w, &begin);
        printf("load %d: %.1f ms, of which %.1f to begin (%u tokens were left)\n", r + 1,
               seconds[r] * 1e3, begin * 1e3, left);
    }
    const double each = median(seconds, ROUNDS);
    printf("plain copy %.1f GB/s; sums of one thread %.1f GB/s\n"
           "%u tokens back: %.1f ms, %.1f GB/s; a copy takes %.1f ms: %.2f x (the issue: 1.3 x)\n"
           "pages with the bytes that were stored: %u of %u\n",
           copy * 1e-9, sum_speed(&w) * 1e-9, n_tokens, each * 1e3, (double)bytes * 1e-9 / each,
           (double)bytes / copy * 1e3, each * copy / (double)bytes, compare_pages(&w), w.pages);
    fflush(stdout);
    free_world(&w);
}

/* ---- an engine ------------------------------------------------------------------------------- */

enum { REPLY = 600, TIMES_MAX = BATCH * REPLY };

static double times[TIMES_MAX]; /* of the first decoding request's tokens */
static atomic_uint n_times;

static void note_times(void *user, const kvasir_event *e) {
    answer_note(user, e);
    if (e->kind == KVASIR_EVENT_TOKEN && atomic_load(&n_times) < TIMES_MAX)
        times[atomic_fetch_add(&n_times, 1)] = clock_seconds();
}

static uint64_t ask(kvasir_engine *e, struct answer *a, const int32_t *tokens, size_t n,
                    uint32_t max_tokens, bool timed) {
    kvasir_request r = answer_request(a, tokens, n, max_tokens);
    uint64_t id;
    r.no_store = timed;
    if (timed)
        r.on_event = note_times;
    need(kvasir_engine_submit(e, &r, &id, &err));
    return id;
}

static void answer_whole(kvasir_engine *e, struct answer *a, const int32_t *tokens) {
    ask(e, a, tokens, n_tokens, 1, false);
    answer_wait(a);
}

/* Median and longest step between two moments. */
static void print_steps(const char *when, double from, double to) {
    static double steps[TIMES_MAX];
    uint32_t n = 0;
    double most = 0;
    for (uint32_t i = 1; i < atomic_load(&n_times); i++)
        if (times[i - 1] >= from && times[i] <= to) {
            steps[n] = times[i] - times[i - 1];
            most = steps[n] > most ? steps[n] : most;
            n++;
        }
    printf("    steps of %d others %s: %u, median %.2f ms, longest %.2f ms\n", BATCH, when, n,
           n ? median(steps, (int)n) * 1e3 : 0, most * 1e3);
}

/* Asks again, beside requests that decode. */
static void ask_beside(kvasir_engine *e, const char *what, const int32_t *tokens) {
    enum { BEFORE_MS = 500 };
    static struct answer others[BATCH];
    struct answer a;
    kvasir_tier_stats before, now;
    uint64_t open[BATCH];
    kvasir_engine_get_tiers(e, &before, 1);
    atomic_store(&n_times, 0);
    for (int i = 0; i < BATCH; i++)
        open[i] = ask(e, &others[i], ids + 2 * n_tokens + i, 1, REPLY, i == 0);
    for (int i = 0; i < BATCH; i++)
        while (atomic_load(&others[i].tokens) == 0)
            usleep(500);
    const double from = clock_seconds();
    usleep(BEFORE_MS * 1000);
    answer_whole(e, &a, tokens);
    kvasir_engine_get_tiers(e, &now, 1);
    printf("%s: first token after %.1f ms, %u of %u tokens cached, %llu from the host\n", what,
           (a.first - a.submitted) * 1e3, a.cached, n_tokens,
           (unsigned long long)(now.hit_pages - before.hit_pages) * TILE_TOKENS);
    print_steps("before", from, a.submitted);
    print_steps("meanwhile", a.submitted, a.first);
    fflush(stdout);
    for (int i = 0; i < BATCH; i++)
        kvasir_engine_cancel(e, open[i]);
    for (int i = 0; i < BATCH; i++)
        answer_wait(&others[i]);
}

static void make_engine(const kvasir_model *model, uint64_t host_bytes, kvasir_engine **out) {
    kvasir_engine_options o = kvasir_engine_defaults();
    kvasir_context *c;
    struct backend *b;
    o.context.device = device;
    o.context.kv_bits = "8,4";
    o.context.key_centre = "off";
    o.context.ctx = n_tokens + 2048;
    o.context.cache_bytes = (uint64_t)1 << 28;
    o.max_running = BATCH + 1;
    need(kvasir_context_create(model, &o.context, &c, &err));
    const uint64_t prompt = kv_cache_need_bytes(c->cache, n_tokens + 64, 2048),
                   other = kv_cache_need_bytes(c->cache, REPLY + 64, 1);
    kvasir_context_destroy(c);
    o.cache_memory_bytes = prompt + prompt / 2 + BATCH * other + ((uint64_t)3 << 30);
    need(device_create(&o.context, &b, &err));
    const bool lanes = b->ops->lane_create != NULL;
    backend_destroy(b);
    if (lanes) {
        o.cache_host_bytes = host_bytes;
        need(kvasir_engine_create(model, &o, out, &err));
        return;
    }
    struct tiers_options t = {.n = 1, .context = {{1, 2}}};
    const struct tier_memory_options host = {.limit_bytes = host_bytes};
    need(tier_memory_create(&host, &t.tiers[0], &err));
    o.cache_memory_bytes -= (uint64_t)3 << 30;
    o.cache_memory_bytes += (uint64_t)64 << 20;
    need(engine_create_take(model, &o, NULL, &t, out, &err));
}

/* Until the tier has what it was offered. */
static void wait_for_writes(kvasir_engine *e) {
    kvasir_tier_stats now, before = {.writes = UINT64_MAX};
    for (now = before; kvasir_engine_get_tiers(e, &now, 1) && now.writes != before.writes;
         before = now)
        usleep(300000);
}

static void bench_engine(const char *path) {
    kvasir_model *model;
    kvasir_engine *e;
    kvasir_engine_stats stats;
    struct answer a, other;
    uint32_t others = 0;
    need(kvasir_model_open(path, &model, &err));
    make_engine(model, (uint64_t)12 << 30, &e);
    answer_whole(e, &a, ids);
    wait_for_writes(e);
    do { /* the device's memory is full: what was used longest ago goes */
        answer_whole(e, &other, ids + ++others);
        wait_for_writes(e);
        kvasir_engine_get_stats(e, &stats);
    } while (stats.evicted_pages < n_tokens / TILE_TOKENS);
    kvasir_tier_stats tier;
    kvasir_engine_get_tiers(e, &tier, 1);
    printf("computed: first token after %.1f ms; evicted by %u others; the host tier has %.3f GB\n",
           (a.first - a.submitted) * 1e3, others, (double)tier.bytes * 1e-9);
    ask_beside(e, "from the host tier", ids);
    ask_beside(e, "from the device", ids);
    kvasir_engine_destroy(e);
    kvasir_model_close(model);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: host_tier DEVICE [MODEL [TOKENS]]\n");
        return 2;
    }
    device = argv[1];
    if (argc > 3)
        n_tokens = (uint32_t)atoi(argv[3]) / TILE_TOKENS * TILE_TOKENS;
    ids = malloc((2 * (size_t)n_tokens + BATCH) * sizeof *ids);
    if (!ids || !n_tokens)
        return 2;
    for (uint32_t i = 0; i < 2 * n_tokens + BATCH; i++)
        ids[i] = random_token(30000);
    bench_cache();
    if (argc > 2)
        bench_engine(argv[2]);
    free(ids);
    return 0;
}
