/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of the prefix tree at 1,000,000 pages, of the scheduler and of the whole engine at 16 to
 * 1,024 sequences, on the null backend, which computes nothing.
 *
 *     tree [PAGES]
 *
 * Prints, with the bounds, how long these take: a lookup of a 32,000-token prompt (all of
 * it stored), storing and evicting a page, and a step of sequences that generate, once the
 * scheduler alone and once the whole engine (medians; for lookups and steps the 99th percentile,
 * too). Exit code 1 if a bound is missed.
 *
 * The engine runs on the null backend with operations that do nothing, so that a forward pass costs
 * a few calls and logits are zeros. All else is real: inbox, scheduler, pages, the step's batch,
 * sampler, detokenizer, events, figures.
 */
#include "bench.h"

#include <semaphore.h>

#include "backend/null/null.h"
#include "engine/engine_internal.h"
#include "engine/scheduler.h"

#define MODEL "../shared/models/stories260K/stories260K-f32.gguf"

enum {
    PROMPT = 32000,
    LAYERS = 4,
    BATCH = 32,
    BATCH_MAX = 1024,
    STEPS = 4000,
    LOOKUPS = 400,
    PROMPTS_MAX = 8000
};

static int missed;
static void report(const char *what, double value, double bound, const char *unit) {
    printf("%-52s %10.3f %s (bound %g)%s\n", what, value, unit, bound,
           value < bound ? "" : "  MISSED");
    missed |= value >= bound;
}

/* Conversations of PROMPT tokens that share up to the first half. */
static void make_tokens(int32_t *tokens, uint32_t seed) {
    const uint32_t shared = seed % 64 * 251;
    for (uint32_t i = 0; i < PROMPT; i++)
        tokens[i] = (int32_t)((i < shared ? i : i * 2654435761u + seed * 40503u) % 100000);
}

/* ---- the tree -------------------------------------------------------------------------------- */

struct world {
    struct backend *backend;
    struct kv_cache *cache;
    struct prefix_tree *tree;
};

static void make_world(struct world *w, uint64_t budget) {
    const struct kv_shape shape = {.layers = LAYERS, .kv_heads = 1, .head_dim = 64};
    struct kv_cache_options o = {.k = {.bits = 8}, .v = {.bits = 4}, .budget_bytes = budget};
    need(backend_null_create(&w->backend, &err));
    need(kv_cache_create(w->backend, &shape, 1, &o, &w->cache, &err));
    need(tree_create(w->cache, 8192, &w->tree, &err));
}

/* Returns the microseconds per page that storing took. */
static double store_one(struct world *w, const int32_t *tokens) {
    struct kv_seq *s;
    struct tree_cursor at;
    struct tree_hit hit;
    need(seq_create(w->cache, &s, &err));
    need(tree_resume(w->tree, "", 0, tokens, PROMPT, s, &at, &hit, &err));
    tree_count(w->tree, &at, tokens, PROMPT);
    const uint32_t n = PROMPT - seq_length(s);
    tree_make_room(w->tree, seq_need_bytes(s, PROMPT, n, 0));
    need(seq_prepare(s, n, &err));
    seq_commit(s, tokens + hit.length, n);
    const double start = clock_seconds();
    tree_store(w->tree, &at, s, true);
    const double micros = 1e6 * (clock_seconds() - start);
    seq_destroy(s);
    tree_close(w->tree, &at);
    return micros / ((double)n / TILE_TOKENS);
}

static void bench_tree(uint32_t pages) {
    struct world w;
    int32_t *tokens = malloc(PROMPT * sizeof *tokens);
    const uint32_t prompts = pages / (PROMPT / TILE_TOKENS);
    static double lookups[LOOKUPS], stores[PROMPTS_MAX], evicts[PROMPTS_MAX];
    uint32_t n_stores = 0, n_evicts = 0;
    make_world(&w, (uint64_t)pages * 2 * 64 * 1024);
    for (uint32_t i = 0; kv_pool_stats(kv_cache_pool(w.cache)).pages_used < pages; i++) {
        make_tokens(tokens, i);
        stores[n_stores++] = store_one(&w, tokens);
    }
    const uint64_t held = kv_pool_stats(kv_cache_pool(w.cache)).pages_used;
    printf("%llu pages in %llu nodes\n", (unsigned long long)held,
           (unsigned long long)tree_stats(w.tree).nodes);
    for (uint32_t i = 0; i < LOOKUPS; i++) {
        make_tokens(tokens, i * 7919u % prompts);
        const double start = clock_seconds();
        const struct tree_hit hit = tree_look(w.tree, "", 0, tokens, PROMPT);
        lookups[i] = 1e3 * (clock_seconds() - start);
        if (hit.length != PROMPT - 1) {
            fprintf(stderr, "tree: a stored prompt was not found\n");
            exit(1);
        }
    }
    qsort(lookups, LOOKUPS, sizeof *lookups, by_value);
    report("lookup of a stored prompt of 32,000 tokens, median", lookups[LOOKUPS / 2], 1, "ms");
    printf("  99th percentile %.3f ms\n", lookups[LOOKUPS * 99 / 100]);
    qsort(stores, n_stores, sizeof *stores, by_value);
    report("store, a page, median of prompts", stores[n_stores / 2], 5, "us");
    const uint64_t portion = (uint64_t)500 * 64 * 1024;
    while (kv_pool_stats(kv_cache_pool(w.cache)).pages_used > held / 4 && n_evicts < PROMPTS_MAX) {
        const struct kv_pool_stats before = kv_pool_stats(kv_cache_pool(w.cache));
        const double start = clock_seconds();
        tree_make_room(w.tree,
                       before.budget_bytes - before.used_bytes - before.charged_bytes + portion);
        const double micros = 1e6 * (clock_seconds() - start);
        const uint64_t after = kv_pool_stats(kv_cache_pool(w.cache)).pages_used;
        evicts[n_evicts++] = micros / (double)(before.pages_used - after);
    }
    qsort(evicts, n_evicts, sizeof *evicts, by_value);
    report("evict, a page, median of portions", evicts[n_evicts / 2], 5, "us");
    printf("resident at most: %.0f MiB\n", (double)memory_resident_peak_bytes() / (1 << 20));
    free(tokens);
    tree_destroy(w.tree);
    kv_cache_destroy(w.cache);
    backend_destroy(w.backend);
}

/* ---- the scheduler --------------------------------------------------------------------------- */

static kvasir_status host_run(void *user, const struct step_part *parts, uint32_t n,
                              kvasir_error *e) {
    (void)user;
    (void)e;
    for (uint32_t i = 0; i < n; i++)
        seq_commit(parts[i].seq, parts[i].tokens, parts[i].rows);
    return KVASIR_OK;
}
static bool host_next(void *user, struct task *t, uint32_t row) {
    (void)user;
    t->tokens[t->n_tokens] = (int32_t)(t->n_tokens + row);
    t->n_tokens++;
    return t->n_tokens < t->cap;
}
static void host_ended(void *user, struct task *t, enum task_end end, const kvasir_error *error) {
    (void)user;
    (void)t;
    (void)end;
    (void)error;
}

/* n sequences; bound: microseconds. */
static void bench_steps(uint32_t n, double bound) {
    static struct task tasks[BATCH_MAX];
    static double times[STEPS];
    enum { LENGTH = 4000 };
    struct world w;
    struct sched *s;
    const struct sched_host host = {.run = host_run, .next = host_next, .ended = host_ended};
    const struct sched_options options = {.max_running = n, .step_rows = 4096};
    char what[64];
    make_world(&w, (uint64_t)32 << 30);
    need(sched_create(w.cache, w.tree, &options, &host, &s, &err));
    for (uint32_t i = 0; i < n; i++) {
        tasks[i] = (struct task){.salt = "", .n_prompt = LENGTH, .cap = LENGTH + STEPS + 1};
        tasks[i].tokens = malloc(tasks[i].cap * sizeof(int32_t));
        for (uint32_t p = 0; p < LENGTH; p++)
            tasks[i].tokens[p] = (int32_t)(p < LENGTH / 2 ? p : p * 31 + i);
        sched_submit(s, &tasks[i]);
    }
    uint32_t rows, done = 0;
    do { /* prompts */
        need(sched_step(s, &rows, &err));
    } while (rows != n || sched_stats(s).running != n);
    while (done < STEPS / 4) {
        const double start = clock_seconds();
        need(sched_step(s, &rows, &err));
        times[done++] = 1e6 * (clock_seconds() - start);
    }
    qsort(times, done, sizeof *times, by_value);
    snprintf(what, sizeof what, "the scheduler's step of %u that generate, median", n);
    report(what, times[done / 2], bound, "us");
    printf("  99th percentile %.1f us, most %.1f us\n", times[done * 99 / 100], times[done - 1]);
    for (uint32_t i = 0; i < n; i++) {
        sched_cancel(s, &tasks[i]);
        free(tasks[i].tokens);
    }
    sched_destroy(s);
    tree_destroy(w.tree);
    kv_cache_destroy(w.cache);
    backend_destroy(w.backend);
}

/* ---- the engine ------------------------------------------------------------------------------ */

/* Operations that do nothing ignore their arguments. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
static void no_embed(struct backend *b, const struct backend_weight *w, const int32_t *tokens,
                     uint32_t rows, float *y) {}
static void no_rms_norm(struct backend *b, const float *x, const float *gain, uint32_t rows,
                        uint32_t dim, float eps, float *y) {}
static void no_matmul(struct backend *b, const float *x, uint32_t rows,
                      const struct backend_weight *const *w, const float *const *bias,
                      float *const *y, uint32_t n) {}
static void no_rope_table(struct backend *b, const uint32_t *pos, uint32_t rows,
                          const double *inv_freq, uint32_t n, float scale, float *cos_out,
                          float *sin_out) {}
static void no_rope(struct backend *b, float *x, uint32_t rows, uint32_t heads, uint32_t head_dim,
                    const float *cos_in, const float *sin_in, uint32_t n, bool adjacent) {}
static void no_kv_store(struct backend *b, const struct batch *batch, const struct kv_view *views,
                        uint32_t layer, const float *k, const float *v) {}
static void no_attention(struct backend *b, const struct batch *batch, const struct kv_view *views,
                         uint32_t layer, const float *q, const struct attention_args *args,
                         float *out) {}
static void no_gate_mul(struct backend *b, enum gate_kind kind, const float *gate, const float *up,
                        size_t n, float *y) {}
static void no_add(struct backend *b, float *x, const float *y, float scale, size_t n) {}
static void no_scale(struct backend *b, float *x, float scale, size_t n) {}
static void no_gate_rows(struct backend *b, float *x, const float *gate, uint32_t rows,
                         uint32_t dim) {}
static void no_rearrange(struct backend *b, uint32_t rows, uint32_t blocks, uint32_t n,
                         const float *from, struct block_strides from_strides, float *to,
                         struct block_strides to_strides) {}
static void no_gather_rows(struct backend *b, const float *x, const uint32_t *index, uint32_t n,
                           uint32_t dim, float *y) {}
static void no_experts(struct backend *b, const float *x, uint32_t rows, const float *logits,
                       const struct expert_layer *layer, float *y) {}
static void no_short_conv(struct backend *b, const struct batch *batch, size_t at, const float *x,
                          const float *w, uint32_t width, uint32_t channels, bool silu, float *y) {}
static void no_delta_rule(struct backend *b, const struct batch *batch, size_t at, const float *qkv,
                          const float *beta, const float *a, const struct delta_layer *layer,
                          float *y) {}

#pragma GCC diagnostic pop

/* The null backend with operations. */
static struct backend *idle_backend(void) {
    static struct backend_ops ops;
    struct backend *b;
    need(backend_null_create(&b, &err));
    ops = *b->ops;
    ops.embed = no_embed;
    ops.rms_norm = no_rms_norm;
    ops.matmul = no_matmul;
    ops.rope_table = no_rope_table;
    ops.rope = no_rope;
    ops.kv_store = no_kv_store;
    ops.attention = no_attention;
    ops.gate_mul = no_gate_mul;
    ops.add = no_add;
    ops.scale = no_scale;
    ops.gate_rows = no_gate_rows;
    ops.rearrange = no_rearrange;
    ops.gather_rows = no_gather_rows;
    ops.experts = no_experts;
    ops.short_conv = no_short_conv;
    ops.delta_rule = no_delta_rule;
    ops.softcap = no_scale;
    b->ops = &ops;
    return b;
}

/* Written on the engine's thread: between two tokens of the first request, a step does everything
 * once. */
static struct {
    double times[STEPS], last;
    uint32_t n, generating, batch;
    sem_t submitted, done;
} steps;

static void wait_for(sem_t *semaphore) {
    while (sem_wait(semaphore) != 0)
        ;
}

static void on_event(void *user, const kvasir_event *e) {
    const uint32_t *first = user;
    if (e->kind == KVASIR_EVENT_START && *first) /* or it ends before the last one is submitted */
        wait_for(&steps.submitted);
    if (e->kind != KVASIR_EVENT_TOKEN)
        return;
    steps.generating += e->completion_tokens == 1;
    if (!*first || steps.generating < steps.batch)
        return;
    const double now = clock_seconds();
    if (steps.last > 0 && steps.n < STEPS / 2) {
        steps.times[steps.n++] = 1e6 * (now - steps.last);
        if (steps.n == STEPS / 2)
            sem_post(&steps.done);
    }
    steps.last = now;
}

/* temp 0 picks the most likely token. */
static void bench_engine(const kvasir_model *model, float temp, uint32_t batch) {
    enum { LENGTH = 4000 };
    char what[64];
    static const uint32_t is_first[2] = {1, 0};
    static int32_t tokens[LENGTH];
    kvasir_engine_options o = kvasir_engine_defaults();
    kvasir_engine *e;
    o.context.ctx = LENGTH + 2 * STEPS;
    o.context.kv_bits = "f16"; /* heads of 8 dims: no group size divides them */
    o.context.prefill_chunk = batch > 512 ? batch : 512;
    o.cache_memory_bytes = (uint64_t)16 << 30;
    o.max_running = o.max_waiting = batch;
    need(engine_create_take(model, &o, idle_backend(), NULL, &e, &err));
    steps.n = steps.generating = 0;
    steps.batch = batch;
    steps.last = 0;
    sem_init(&steps.submitted, 0, 0);
    sem_init(&steps.done, 0, 0);
    for (uint32_t i = 0; i < batch; i++) {
        kvasir_request r = kvasir_request_defaults();
        for (uint32_t p = 0; p < LENGTH; p++)
            tokens[p] = (int32_t)((p < LENGTH / 2 ? p : p * 31 + i) % 256) + 3;
        r.tokens = tokens;
        r.n_tokens = LENGTH;
        r.max_tokens = 2 * STEPS;
        r.ignore_end = true;
        r.sampling.temp = temp;
        r.sampling.seed = i;
        r.on_event = on_event;
        r.user = (void *)(uintptr_t)&is_first[i > 0];
        need(kvasir_engine_submit(e, &r, NULL, &err));
    }
    sem_post(&steps.submitted);
    wait_for(&steps.done);
    kvasir_engine_destroy(e);
    sem_destroy(&steps.submitted);
    sem_destroy(&steps.done);
    qsort(steps.times, steps.n, sizeof *steps.times, by_value);
    snprintf(what, sizeof what, "the engine's step of %u, 512 tokens, temperature %g", batch,
             (double)temp);
    if (temp > 0) /* no bound: the cost depends on the size of the vocabulary */
        printf("%-52s %10.3f us\n", what, steps.times[steps.n / 2]);
    else
        report(what, steps.times[steps.n / 2], batch * 50. / BATCH, "us");
    printf("  99th percentile %.1f us, most %.1f us\n", steps.times[steps.n * 99 / 100],
           steps.times[steps.n - 1]);
}

static void bench_engines(void) {
    kvasir_model *model;
    if (kvasir_model_open(MODEL, &model, &err) != KVASIR_OK) {
        printf("the engine: skipped: %s\n", err.text);
        return;
    }
    bench_engine(model, 0, BATCH);
    bench_engine(model, 1, BATCH);
    bench_engine(model, 0, BATCH_MAX / 4);
    bench_engine(model, 0, BATCH_MAX);
    kvasir_model_close(model);
}

int main(int argc, char **argv) {
    const long pages = argc > 1 ? atol(argv[1]) : 1000000;
    if (pages < 1000 || pages > 2000000) {
        fprintf(stderr, "usage: tree [PAGES]: 1000 to 2000000\n");
        return 2;
    }
    bench_tree((uint32_t)pages);
    static const uint32_t SIZES[] = {16, 32, 128, 512, BATCH_MAX};
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) /* linear: 50 us at 32 */
        bench_steps(SIZES[i], SIZES[i] * 50. / BATCH);
    bench_engines();
    return missed;
}
