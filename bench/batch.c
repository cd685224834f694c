/* SPDX-License-Identifier: Apache-2.0 */
/* Many sequences at once, and stored prompts, against the bounds; both sides of each
 * comparison are measured in one run. Sequences are made long by copies of real pages (bench.h):
 * the generated tokens mean nothing, but the work is the same.
 *
 *     batch MODEL PART [ROUNDS]
 *
 *   decode      8 sequences of 500 to 4,000 tokens, 8/4: one step of all against a step of each
 *               alone; the gain against the one that bytes and matmuls allow; and the same number
 *               of cached tokens in equal and in very different lengths
 *   histories   two of 50,000 and 49,872 tokens, 4 bits against f16: bytes, decode speed
 *   hit         the first token of a prompt of 8,000 stored tokens against one decode step
 *   shared      64 requests that share 4,000 tokens: bytes
 *   prefix      a step of 64 sequences of 8,100 tokens that share 8,000, against one of 64 with
 *               the same tokens in pages of their own; logits must be the same bits
 */
#include <math.h>
#include <pthread.h>

#include "bench.h"

enum { BATCH = 8, STEPS = 8, SEQS_MAX = 64 };

static kvasir_context *make_context(const kvasir_model *m, const char *bits, uint32_t ctx,
                                    uint64_t bytes) {
    kvasir_context_options o = kvasir_context_defaults();
    kvasir_context *c;
    o.kv_bits = bits;
    o.ctx = ctx;
    o.cache_bytes = bytes;
    need(kvasir_context_create(m, &o, &c, &err));
    return c;
}

static kvasir_seq *make_seed(kvasir_context *c) {
    const uint32_t vocab = model_config(c->model->model)->vocab;
    int32_t ids[SEED_TOKENS];
    kvasir_seq *s;
    for (int i = 0; i < SEED_TOKENS; i++)
        ids[i] = random_token(vocab);
    need(kvasir_seq_create(c, &s, &err));
    need(kvasir_seq_eval(s, ids, SEED_TOKENS, NULL, &err));
    return s;
}

/* Milliseconds of a step of the n sequences together, median of STEPS, and the logits [n][vocab] of
 * the last one. Afterwards the sequences have their old lengths. */
static double timed_step(kvasir_context *c, kvasir_seq *const *seqs, uint32_t n, uint32_t rows,
                         float *logits) {
    const uint32_t vocab = model_config(c->model->model)->vocab;
    static uint32_t counts[SEQS_MAX];
    static int32_t ids[SEQS_MAX * SEED_TOKENS];
    double times[STEPS];
    uint32_t lengths[SEQS_MAX];
    kvasir_batch *b;
    for (uint32_t i = 0; i < n; i++) {
        lengths[i] = kvasir_seq_length(seqs[i]);
        counts[i] = rows;
    }
    need(kvasir_batch_merge(c, seqs, n, &b, &err));
    for (int t = 0; t < STEPS; t++) {
        for (uint32_t i = 0; i < n * rows; i++)
            ids[i] = random_token(vocab);
        const double start = clock_seconds();
        need(kvasir_batch_eval(b, ids, counts, logits, &err));
        times[t] = 1e3 * (clock_seconds() - start);
    }
    for (uint32_t i = n; i-- > 0;) {
        kvasir_seq *seq;
        need(kvasir_batch_extract(b, i, &seq, &err));
        need(kvasir_seq_trim(seq, lengths[i], NULL, &err));
    }
    kvasir_batch_destroy(b);
    return median(times, STEPS);
}

static double step_ms(kvasir_context *c, kvasir_seq *const *seqs, uint32_t n, uint32_t rows) {
    const uint32_t vocab = model_config(c->model->model)->vocab;
    float *logits = malloc((size_t)n * vocab * sizeof *logits);
    const double ms = timed_step(c, seqs, n, rows, logits);
    free(logits);
    return ms;
}

static uint64_t grow(kvasir_context *c, kvasir_seq *seed, const uint32_t *lengths, uint32_t n,
                     kvasir_seq **seqs) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        need(kvasir_seq_create(c, &seqs[i], &err));
        replicate(seqs[i], seed, lengths[i]);
        bytes += kvasir_seq_bytes(seqs[i]);
    }
    return bytes;
}

static void drop(kvasir_seq **seqs, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        kvasir_seq_destroy(seqs[i]);
}

/* MiB of mapped files (the weights) that the system maps in huge pages. All or none of them makes a
 * difference of up to a tenth of a step (docs/speed.md, "Weights in huge pages"). */
static double huge_file_mib(void) {
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    unsigned long kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "FilePmdMapped: %lu", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return (double)kib / 1024;
}

/* ---- decode ---------------------------------------------------------------------------------- */

static void bench_decode(const kvasir_model *m, int rounds) {
    static const uint32_t ragged[BATCH] = {500, 1000, 1500, 2000, 2500, 3000, 3500, 4000},
                          equal[BATCH] = {2250, 2250, 2250, 2250, 2250, 2250, 2250, 2250},
                          one_long[BATCH] = {200, 200, 200, 200, 200, 200, 200, 16600};
    kvasir_context *c = make_context(m, "8,4", 20000, (uint64_t)2 << 30);
    kvasir_seq *seed = make_seed(c), *seqs[BATCH];
    double gain[VALUES_MAX], alone_ms[VALUES_MAX], batch_ms[VALUES_MAX], row_ms[VALUES_MAX],
        flat[VALUES_MAX], steep[VALUES_MAX];
    kvasir_model_info info;
    kvasir_model_get_info(m, &info);
    const double w = (double)info.weight_bytes;
    double s = 0;
    for (int r = 0; r < rounds; r++) {
        s = (double)grow(c, seed, ragged, BATCH, seqs);
        alone_ms[r] = 0;
        for (uint32_t i = 0; i < BATCH; i++)
            alone_ms[r] += step_ms(c, &seqs[i], 1, 1);
        batch_ms[r] = step_ms(c, seqs, BATCH, 1);
        gain[r] = alone_ms[r] / batch_ms[r];
        drop(seqs, BATCH);
        grow(c, seed, equal, BATCH, seqs);
        flat[r] = step_ms(c, seqs, BATCH, 1);
        drop(seqs, BATCH);
        grow(c, seed, one_long, BATCH, seqs);
        steep[r] = step_ms(c, seqs, BATCH, 1) / flat[r];
        /* the cost per row of matmuls of many rows: 8 x 64 prompt rows over empty sequences */
        for (uint32_t i = 0; i < BATCH; i++)
            need(kvasir_seq_trim(seqs[i], 0, NULL, &err));
        row_ms[r] = step_ms(c, seqs, BATCH, 64) / (BATCH * 64);
        drop(seqs, BATCH);
    }
    const double allowed = (BATCH * w + s) / (w + s);
    /* bytes at the speed at which one sequence alone reads them, matmuls at that of prompts */
    const double by_bytes = median(alone_ms, rounds) / allowed,
                 by_rows = BATCH * median(row_ms, rounds) +
                           median(alone_ms, rounds) * s / (BATCH * w + s);
    const double bound = by_bytes > by_rows ? by_bytes : by_rows;
    printf("weights %.1f MiB (%.1f in huge pages), cache %.1f MiB in %d sequences\n", w / (1 << 20),
           huge_file_mib(), s / (1 << 20), BATCH);
    printf("decode: alone %.2f ms in all, together %.2f ms: gain %.2f\n", median(alone_ms, rounds),
           median(batch_ms, rounds), median(gain, rounds));
    printf("  allowed by bytes %.2f; by bytes or products %.2f (a row of a prompt %.3f ms)\n",
           allowed, median(alone_ms, rounds) / bound, median(row_ms, rounds));
    printf("  reached of the lower bound: %.1f %% (issue: 80 %%)\n",
           100 * median(gain, rounds) * bound / median(alone_ms, rounds));
    printf("  one of 16,600 and seven of 200 beside eight of 2,250 tokens: %.3f of the time\n",
           median(steep, rounds));
    kvasir_seq_destroy(seed);
    kvasir_context_destroy(c);
}

/* ---- histories ------------------------------------------------------------------------------- */

static void bench_histories(const kvasir_model *m, int rounds) {
    static const uint32_t lengths[2] = {50000, 49872};
    static const char *const bits[2] = {"4", "f16"};
    double speed[2][VALUES_MAX], ratio[VALUES_MAX];
    uint64_t bytes[2], bytes16 = 0;
    kvasir_context *c[2];
    kvasir_seq *seqs[2][2];
    for (int f = 0; f < 2; f++) {
        c[f] = make_context(m, bits[f], 60000, (uint64_t)8 << 30);
        kvasir_seq *seed = make_seed(c[f]);
        bytes[f] = grow(c[f], seed, lengths, 2, seqs[f]);
        kvasir_seq_destroy(seed);
    }
    for (int i = 0; i < 2; i++)
        bytes16 += kvasir_seq_bytes_16bit(seqs[0][i]);
    for (int r = 0; r < rounds; r++) {
        for (int f = 0; f < 2; f++)
            speed[f][r] = 2e3 / step_ms(c[f], seqs[f], 2, 1);
        ratio[r] = speed[0][r] / speed[1][r];
    }
    for (int f = 0; f < 2; f++) {
        kvasir_context_info info;
        kvasir_context_get_info(c[f], &info);
        printf("histories, %-3s: %.1f MiB (peak %.1f), %.2f tokens/s\n", bits[f],
               (double)bytes[f] / (1 << 20), (double)info.peak_bytes / (1 << 20),
               median(speed[f], rounds));
        drop(seqs[f], 2);
        kvasir_context_destroy(c[f]);
    }
    printf("  4 bits: %.1f %% of the bytes less than f16 (16 bits without pages: %.1f MiB), %.2f x "
           "as fast (theirs: 71.9 %%, 2.56 x)\n",
           100 * (1 - (double)bytes[0] / (double)bytes[1]), (double)bytes16 / (1 << 20),
           median(ratio, rounds));
}

/* ---- the engine ------------------------------------------------------------------------------ */

/* Waits for the last event of one request or of many. */
struct waiter {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t open;
    double first, previous, gap; /* time of the first token; of the newest; between the last two */
    uint32_t cached;
};

static void on_event(void *user, const kvasir_event *e) {
    struct waiter *w = user;
    if (e->kind == KVASIR_EVENT_TOKEN) {
        const double now = clock_seconds();
        w->first = w->first == 0 ? now : w->first;
        w->gap = now - w->previous;
        w->previous = now;
        w->cached = e->cached_tokens;
    }
    if (!e->last)
        return;
    pthread_mutex_lock(&w->mutex);
    w->open--;
    pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->mutex);
}

static void await(struct waiter *w) {
    pthread_mutex_lock(&w->mutex);
    while (w->open)
        pthread_cond_wait(&w->cond, &w->mutex);
    pthread_mutex_unlock(&w->mutex);
}

static kvasir_engine *make_engine(const kvasir_model *m, uint32_t running, uint32_t ctx) {
    kvasir_engine_options o = kvasir_engine_defaults();
    kvasir_engine *e;
    o.context.ctx = ctx;
    o.cache_memory_bytes = (uint64_t)2 << 30;
    o.max_running = running;
    need(kvasir_engine_create(m, &o, &e, &err));
    return e;
}

static void submit(kvasir_engine *e, struct waiter *w, const int32_t *ids, size_t n,
                   uint32_t answer) {
    kvasir_request r = kvasir_request_defaults();
    r.tokens = ids;
    r.n_tokens = n;
    r.max_tokens = answer;
    r.ignore_end = true;
    r.on_event = on_event;
    r.user = w;
    w->open++;
    need(kvasir_engine_submit(e, &r, NULL, &err));
}

static void bench_hit(const kvasir_model *m, int rounds) {
    enum { PROMPT = 8000 };
    kvasir_model_info info;
    kvasir_engine *e = make_engine(m, 4, 9000);
    struct waiter w = {.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    int32_t *ids = malloc(PROMPT * sizeof *ids);
    double first[VALUES_MAX], step[VALUES_MAX], over[VALUES_MAX];
    kvasir_model_get_info(m, &info);
    for (int i = 0; i < PROMPT; i++)
        ids[i] = random_token(info.vocab);
    submit(e, &w, ids, PROMPT, 4);
    await(&w);
    for (int r = 0; r < rounds; r++) {
        w.first = 0;
        const double start = clock_seconds();
        submit(e, &w, ids, PROMPT, 16);
        await(&w);
        first[r] = 1e3 * (w.first - start);
        step[r] = 1e3 * (w.previous - w.first) / 15;
        over[r] = first[r] - step[r];
    }
    printf("hit: %u of %d tokens: first token %.2f ms, a decode step %.2f ms: %.2f ms more (issue: "
           "2)\n",
           w.cached, PROMPT, median(first, rounds), median(step, rounds), median(over, rounds));
    kvasir_engine_destroy(e);
    free(ids);
}

static void bench_shared(const kvasir_model *m) {
    enum { SHARED = 4000, OWN = 60, REQUESTS = 64 };
    kvasir_model_info info;
    kvasir_context_info context;
    kvasir_engine_stats one, all;
    kvasir_engine *e = make_engine(m, REQUESTS, 5000);
    struct waiter w = {.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    int32_t *ids = malloc((SHARED + OWN) * sizeof *ids);
    kvasir_model_get_info(m, &info);
    for (int i = 0; i < SHARED; i++)
        ids[i] = random_token(info.vocab);
    kvasir_engine_get_stats(e, &one);
    const uint64_t before = one.used_bytes;
    submit(e, &w, ids, SHARED, 2);
    await(&w);
    kvasir_engine_forget(e, "another"); /* wakes the engine, which then updates its figures */
    kvasir_engine_get_stats(e, &one);
    for (int i = 0; i < REQUESTS; i++) {
        for (int p = SHARED; p < SHARED + OWN; p++)
            ids[p] = random_token(info.vocab);
        submit(e, &w, ids, SHARED + OWN, 40);
    }
    await(&w);
    kvasir_engine_get_stats(e, &all);
    kvasir_engine_get_context(e, &context);
    printf(
        "shared: one request of %d tokens %.2f MiB; %d requests with %d tokens of their own: peak "
        "%.2f MiB; without sharing %.2f MiB\n",
        SHARED, (double)(one.used_bytes - before) / (1 << 20), REQUESTS, OWN + 40,
        (double)(all.peak_bytes - before) / (1 << 20),
        (double)REQUESTS * (SHARED + OWN + 40) * (double)context.kv_bytes_per_token / (1 << 20));
    printf("  prompt tokens %llu, of which cached %llu\n", (unsigned long long)all.prompt_tokens,
           (unsigned long long)all.cached_tokens);
    kvasir_engine_destroy(e);
    free(ids);
}

/* ---- prefix ---------------------------------------------------------------------------------- */

static void bench_prefix(const kvasir_model *m, int rounds) {
    enum { SHARED = 8000, OWN = 100, STEP_ROOM = 64 };
    const uint32_t vocab = model_config(m->model)->vocab;
    kvasir_context_info info;
    kvasir_context *c = make_context(m, "8,4", 8192, (uint64_t)1 << 30);
    kvasir_context_get_info(c, &info);
    const uint64_t each = (SHARED + OWN + STEP_ROOM) * (uint64_t)info.kv_bytes_per_token;
    kvasir_context_destroy(c);
    c = make_context(m, "8,4", 8192, (SEQS_MAX + 20) * each);
    kvasir_seq *seed = make_seed(c), *prefix, *shared[SEQS_MAX], *own[SEQS_MAX];
    float *logits[2];
    double together[VALUES_MAX], apart[VALUES_MAX], gain[VALUES_MAX];
    need(kvasir_seq_create(c, &prefix, &err));
    replicate(prefix, seed, SHARED);
    for (int i = 0; i < SEQS_MAX; i++) {
        need(kvasir_seq_fork(prefix, &shared[i], &err));
        need(kvasir_seq_create(c, &own[i], &err));
        replicate(own[i], seed, SHARED);
        replicate(shared[i], seed, SHARED + OWN);
        replicate(own[i], seed, SHARED + OWN);
    }
    for (int i = 0; i < 2; i++)
        logits[i] = malloc(SEQS_MAX * (size_t)vocab * sizeof *logits[i]);
    for (int r = 0; r < rounds; r++) {
        srand(7);
        together[r] = timed_step(c, shared, SEQS_MAX, 1, logits[0]);
        srand(7);
        apart[r] = timed_step(c, own, SEQS_MAX, 1, logits[1]);
        gain[r] = apart[r] / together[r];
        if (memcmp(logits[0], logits[1], SEQS_MAX * (size_t)vocab * sizeof *logits[0]) != 0) {
            printf("prefix: FAILED, other logits\n");
            exit(1);
        }
    }
    qsort(gain, (size_t)rounds, sizeof *gain, by_value);
    printf("prefix: %d sequences of %d + %d tokens: a step %.0f ms, with pages of their own %.0f "
           "ms: %.2f times as long (%.2f to %.2f); the same bits\n",
           SEQS_MAX, SHARED, OWN, median(together, rounds), median(apart, rounds), gain[rounds / 2],
           gain[0], gain[rounds - 1]);
    drop(shared, SEQS_MAX);
    drop(own, SEQS_MAX);
    kvasir_seq_destroy(prefix);
    kvasir_seq_destroy(seed);
    kvasir_context_destroy(c);
    for (int i = 0; i < 2; i++)
        free(logits[i]);
}

int main(int argc, char **argv) {
    kvasir_model *m;
    if (argc < 3) {
        fprintf(stderr, "usage: batch MODEL decode|histories|hit|shared|prefix [ROUNDS]\n");
        return 2;
    }
    const int asked = argc > 3 ? atoi(argv[3]) : 5;
    const int rounds = asked < 1 ? 1 : asked > VALUES_MAX ? VALUES_MAX : asked;
    need(kvasir_model_open(argv[1], &m, &err));
    if (strcmp(argv[2], "decode") == 0)
        bench_decode(m, rounds);
    else if (strcmp(argv[2], "histories") == 0)
        bench_histories(m, rounds);
    else if (strcmp(argv[2], "hit") == 0)
        bench_hit(m, rounds);
    else if (strcmp(argv[2], "shared") == 0)
        bench_shared(m);
    else if (strcmp(argv[2], "prefix") == 0)
        bench_prefix(m, rounds);
    kvasir_model_close(m);
    return 0;
}
