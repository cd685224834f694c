/* SPDX-License-Identifier: Apache-2.0 */
/* The first token of a prompt after a restart, from the disk tier, against what reading as many
 * bytes takes.
 *
 *     restart MODEL KV_BITS FOLDER TOKENS [ROUNDS]
 *
 * Writes a stored prefix of TOKENS tokens into FOLDER, which must not exist (copies of real pages,
 * bench.h). Then, ROUNDS times (5) with the files in the page cache and without: reads the folder's
 * bytes with as many threads as the tier has into memory that was touched before; opens an engine
 * over the folder and takes the time of the first token of the prompt; takes it again, now from
 * memory, which is what one step costs. The issue allows 1.3 x the read and the step.
 *
 *     restart MODEL KV_BITS FOLDER TOKENS ROUNDS beside|behind [THREADS]
 *
 * Instead, with so many threads of the engine (2): `beside` is how much slower the tokens of
 * another request come while a load is under way, with files in the page cache and without;
 * `behind` is how much slower prompts of 512 tokens and answers of 32 come when all of it is
 * written to the folder.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"

enum { FILES_MAX = 4096, READ_THREADS = 2, OTHER = 400 };
static const uint64_t LIMIT = (uint64_t)40 << 30, MEMORY = (uint64_t)9 << 30;

static const char *bits, *folder;
static kvasir_model *model;
static int32_t *ids; /* [tokens + 1] */
static uint32_t tokens;
static int threads = 2;

/* ---- writing --------------------------------------------------------------------------------- */

static kvasir_context_options context_options(void) {
    kvasir_context_options o = kvasir_context_defaults();
    o.kv_bits = bits;
    o.ctx = tokens + 1024;
    o.threads = threads;
    return o;
}

static void write_folder(void) {
    kvasir_context_options o = context_options();
    kvasir_context *c;
    kvasir_seq *s;
    struct prefix_tree *tree;
    struct tiers *tiers;
    struct tiers_options t = {.n = 1, .queue_bytes = (uint64_t)1 << 30};
    struct tree_cursor at = {TREE_NOWHERE};
    struct tree_hit hit;
    struct tier_key checkpoint;
    char path[4096];
    o.cache_bytes = MEMORY;
    need(kvasir_context_create(model, &o, &c, &err));
    const struct tier_disk_options disk = {.dir = folder, .limit_bytes = LIMIT};
    need(tier_disk_create(&disk, &t.tiers[0], &err));
    snprintf(path, sizeof path, "%s/identities", folder);
    need(checkpoint_identity(model, path, NULL, NULL, &checkpoint, &err));
    need(context_identity(c, checkpoint, &t.context, &err));
    need(tree_create(c->cache, 5000, &tree, &err));
    need(tiers_create(tree, &t, &tiers, &err));
    need(kvasir_seq_create(c, &s, &err));
    need(tree_resume(tree, "", 0, ids, 2, s->seq, &at, &hit, &err));
    need(kvasir_seq_eval(s, ids, SEED_TOKENS, NULL, &err));
    replicate(s, s, tokens);
    memcpy(ids, seq_tokens(s->seq), tokens * sizeof *ids);
    const double start = clock_seconds();
    tree_store(tree, &at, s->seq, true);
    tiers_offer(tiers, &at);
    tiers_flush(tiers, 600);
    struct tier_stats stats;
    tiers_get_tier(tiers, 0, &stats);
    printf("written: %llu records, %.1f MiB in %.2f s (the last MiB may still be on their way)\n",
           (unsigned long long)stats.records, (double)stats.bytes / (1 << 20),
           clock_seconds() - start);
    tree_close(tree, &at);
    kvasir_seq_destroy(s);
    tiers_destroy(tiers);
    tree_destroy(tree);
    kvasir_context_destroy(c);
}

/* ---- reading --------------------------------------------------------------------------------- */

static struct {
    int fd[FILES_MAX];
    uint64_t size[FILES_MAX], bytes;
    int n;
    uint8_t *memory; /* [bytes], touched */
} files;

static void open_files(void) {
    glob_t found;
    char pattern[4096];
    snprintf(pattern, sizeof pattern, "%s/*.kvs", folder);
    if (glob(pattern, 0, NULL, &found) != 0 || found.gl_pathc > FILES_MAX)
        exit(1);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct stat st;
        files.fd[files.n] = open(found.gl_pathv[i], O_RDONLY);
        if (files.fd[files.n] < 0 || fstat(files.fd[files.n], &st) != 0)
            exit(1);
        fsync(files.fd[files.n]);
        files.size[files.n++] = (uint64_t)st.st_size;
        files.bytes += (uint64_t)st.st_size;
    }
    globfree(&found);
    files.memory = aligned_alloc(4096, (files.bytes + 4095) / 4096 * 4096);
    memset(files.memory, 1, files.bytes);
}

static void drop_page_cache(void) {
    for (int i = 0; i < files.n; i++)
        posix_fadvise(files.fd[i], 0, 0, POSIX_FADV_DONTNEED);
}

/* Thread `which` reads every second piece of each file. */
static void *read_share(void *which) {
    enum { PIECE = 2 << 20 };
    uint64_t to = 0;
    for (int i = 0; i < files.n; to += files.size[i++])
        for (uint64_t at = *(const uint64_t *)which * PIECE; at < files.size[i];
             at += READ_THREADS * PIECE) {
            const uint64_t left = files.size[i] - at;
            const size_t n = left < PIECE ? left : PIECE;
            if (pread(files.fd[i], files.memory + to + at, n, (off_t)at) != (ssize_t)n)
                exit(1);
        }
    return NULL;
}

static double read_seconds(void) {
    static const uint64_t which[READ_THREADS] = {0, 1};
    pthread_t readers[READ_THREADS];
    const double start = clock_seconds();
    for (int i = 0; i < READ_THREADS; i++)
        pthread_create(&readers[i], NULL, read_share, (void *)(uintptr_t)&which[i]);
    for (int i = 0; i < READ_THREADS; i++)
        pthread_join(readers[i], NULL);
    return clock_seconds() - start;
}

/* ---- asking ---------------------------------------------------------------------------------- */

struct answer {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    double started, first, times[OTHER];
    uint32_t cached, n;
    bool done;
};

static void on_event(void *user, const kvasir_event *e) {
    struct answer *a = user;
    pthread_mutex_lock(&a->mutex);
    if (e->kind == KVASIR_EVENT_START)
        a->started = clock_seconds();
    if (e->kind == KVASIR_EVENT_TOKEN) {
        const double now = clock_seconds();
        a->first = a->n ? a->first : now;
        a->cached = e->cached_tokens;
        if (a->n < OTHER)
            a->times[a->n++] = now;
    }
    a->done |= e->last;
    pthread_cond_signal(&a->cond);
    pthread_mutex_unlock(&a->mutex);
}

static void submit(kvasir_engine *e, struct answer *a, const int32_t *prompt, size_t n,
                   uint32_t answer) {
    kvasir_request r = kvasir_request_defaults();
    *a = (struct answer){.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    r.tokens = prompt;
    r.n_tokens = n;
    r.max_tokens = answer;
    r.ignore_end = true;
    r.on_event = on_event;
    r.user = a;
    need(kvasir_engine_submit(e, &r, NULL, &err));
}

static void await(struct answer *a, uint32_t tokens_or_end) {
    pthread_mutex_lock(&a->mutex);
    while (!a->done && a->n < tokens_or_end)
        pthread_cond_wait(&a->cond, &a->mutex);
    pthread_mutex_unlock(&a->mutex);
}

static double first_token(kvasir_engine *e) {
    struct answer a;
    const double start = clock_seconds();
    submit(e, &a, ids, tokens + 1, 1);
    await(&a, UINT32_MAX);
    if (a.cached < tokens / TILE_TOKENS * TILE_TOKENS) {
        fprintf(stderr, "restart: only %u of %u tokens were found\n", a.cached, tokens);
        exit(1);
    }
    return a.first - start;
}

static kvasir_engine *open_engine(void) {
    kvasir_engine_options o = kvasir_engine_defaults();
    kvasir_engine *e;
    o.context = context_options();
    o.cache_memory_bytes = MEMORY;
    o.cache_dir = folder;
    o.cache_disk_bytes = LIMIT;
    need(kvasir_engine_create(model, &o, &e, &err));
    return e;
}

/* Until the engine has memory for what it expects to load, as a server after a moment. */
static void let_rest(kvasir_engine *e) {
    kvasir_engine_stats s;
    uint64_t resident;
    kvasir_engine_get_stats(e, &s);
    do {
        resident = s.resident_bytes;
        usleep(200000);
        kvasir_engine_get_stats(e, &s);
    } while (s.resident_bytes != resident);
}

static void bench_first(bool in_page_cache, int rounds) {
    double read[VALUES_MAX], start[VALUES_MAX], first[VALUES_MAX], step[VALUES_MAX],
        ratio[VALUES_MAX] = {0};
    for (int r = 0; r < rounds; r++) {
        if (in_page_cache)
            (void)read_seconds();
        else
            drop_page_cache();
        read[r] = read_seconds();
        if (!in_page_cache)
            drop_page_cache();
        const double begin = clock_seconds();
        kvasir_engine *e = open_engine();
        start[r] = clock_seconds() - begin;
        let_rest(e);
        first[r] = first_token(e);
        step[r] = first_token(e);
        ratio[r] = (first[r] - step[r]) / read[r];
        kvasir_engine_destroy(e);
    }
    printf("%u tokens, page cache %s: read %.3f s (%.2f GB/s), start %.3f s, first token %.3f s, "
           "step %.3f s: %.2f x the read (issue: 1.3) [",
           tokens, in_page_cache ? "warm" : "cold", median(read, rounds),
           (double)files.bytes / median(read, rounds) / 1e9, median(start, rounds),
           median(first, rounds), median(step, rounds), median(ratio, rounds));
    for (int r = 0; r < rounds; r++)
        printf(" %.2f", ratio[r]);
    printf(" ]\n");
}

static double gap(const struct answer *a, double from, double to) {
    double sum = 0;
    int n = 0;
    for (uint32_t i = 1; i < a->n; i++)
        if (a->times[i - 1] >= from && a->times[i] <= to) {
            sum += a->times[i] - a->times[i - 1];
            n++;
        }
    return n ? sum / n : 0;
}

/* A request decodes; after a while the prompt is asked for. Until that starts, it loads. */
static void bench_beside(bool in_page_cache, int rounds) {
    double ratio[VALUES_MAX] = {0}, seconds[VALUES_MAX];
    for (int r = 0; r < rounds; r++) {
        struct answer other, asked;
        kvasir_engine *e = open_engine();
        let_rest(e);
        if (in_page_cache)
            (void)read_seconds();
        else
            drop_page_cache();
        submit(e, &other, ids, SEED_TOKENS - 12, OTHER);
        await(&other, 100);
        const double begin = clock_seconds();
        submit(e, &asked, ids, tokens + 1, 1);
        await(&asked, UINT32_MAX);
        await(&other, UINT32_MAX);
        ratio[r] = gap(&other, begin, asked.started) / gap(&other, other.times[10], begin);
        seconds[r] = asked.started - begin;
        kvasir_engine_destroy(e);
    }
    printf("%d threads, a token of another request while %u tokens load, page cache %s (%.3f s): "
           "%.3f x the time (issue: 1.05) [",
           threads, tokens, in_page_cache ? "warm" : "cold", median(seconds, rounds),
           median(ratio, rounds));
    for (int r = 0; r < rounds; r++)
        printf(" %.2f", ratio[r]);
    printf(" ]\n");
}

/* Seconds for 8 prompts, two at a time. */
static double work_seconds(bool with_tier) {
    enum { PROMPTS = 8, ANSWER = 32 };
    struct answer answers[PROMPTS];
    static int32_t prompts[PROMPTS][SEED_TOKENS];
    char kept[4096];
    snprintf(kept, sizeof kept, "%s.behind", folder);
    const char *before = folder;
    folder = with_tier ? kept : NULL;
    kvasir_engine *e = open_engine();
    folder = before;
    const double start = clock_seconds();
    for (int i = 0; i < PROMPTS; i++) {
        for (int t = 0; t < SEED_TOKENS; t++)
            prompts[i][t] = random_token(model_config(model->model)->vocab);
        submit(e, &answers[i], prompts[i], SEED_TOKENS, ANSWER);
        if (i > 0)
            await(&answers[i - 1], UINT32_MAX);
    }
    await(&answers[PROMPTS - 1], UINT32_MAX);
    const double seconds = clock_seconds() - start;
    kvasir_engine_destroy(e);
    return seconds;
}

static void bench_behind(int rounds) {
    double ratio[VALUES_MAX] = {0};
    for (int r = 0; r < rounds; r++) {
        const double first = work_seconds(r % 2), second = work_seconds(!(r % 2));
        ratio[r] = r % 2 ? first / second : second / first;
    }
    printf("%d threads, work while its pages are written: %.3f x the time (issue: 1.03) [", threads,
           median(ratio, rounds));
    for (int r = 0; r < rounds; r++)
        printf(" %.3f", ratio[r]);
    printf(" ]\n");
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: restart MODEL KV_BITS FOLDER TOKENS "
                        "[ROUNDS [beside|behind [THREADS]]]\n");
        return 2;
    }
    bits = argv[2];
    folder = argv[3];
    tokens = (uint32_t)atoi(argv[4]);
    int rounds = argc > 5 ? atoi(argv[5]) : 5;
    rounds = rounds < VALUES_MAX ? rounds : VALUES_MAX;
    threads = argc > 7 ? atoi(argv[7]) : threads;
    need(kvasir_model_open(argv[1], &model, &err));
    ids = malloc((tokens + SEED_TOKENS + 1) * sizeof *ids);
    for (uint32_t i = 0; i < tokens + 1; i++)
        ids[i] = random_token(model_config(model->model)->vocab);
    write_folder();
    open_files();
    const char *part = argc > 6 ? argv[6] : "";
    if (strcmp(part, "beside") == 0) {
        bench_beside(true, rounds);
        bench_beside(false, rounds);
    } else if (strcmp(part, "behind") == 0) {
        bench_behind(rounds);
    } else {
        bench_first(true, rounds);
        bench_first(false, rounds);
    }
    kvasir_model_close(model);
    return 0;
}
