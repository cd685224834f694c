/* SPDX-License-Identifier: Apache-2.0 */
/* A model on a GPU: how long it takes to load, tokens per second of steps and of prompts at some
 * depths and batches. Sequences are made long by copies of real pages (bench.h): what is generated
 * means nothing, but the work is the same. The device picks each step's tokens, greedily unless
 * said otherwise, as an engine has it do, and only they come back; or all logits are read back.
 *
 * At the end an engine: requests at once, and a long prompt again, whose prefix it has.
 *
 *     gpu MODEL [DEVICE [PART]]
 *
 * DEVICE is --device's value, cuda without it. PART: only steps of one sequence (one), of several
 * (batches), prompts, formats in turn (formats), or the engine (requests).
 */
#include "requests.h"

enum { BATCH_MAX = 64, STEPS = 32, REPEATS = 5 };

static const kvasir_model *model;
static const char *device = "cuda";
static uint32_t vocab;
static float *logits;
static int32_t *ids; /* PROMPT_MAX random tokens */
enum { PROMPT_MAX = 131072 };

static kvasir_context_options context_options(const char *bits, uint32_t ctx) {
    kvasir_context_options o = kvasir_context_defaults();
    o.device = device;
    o.kv_bits = bits;
    o.key_centre = "off";
    o.ctx = ctx;
    return o;
}

static kvasir_context *make_context_from(const char *bits, uint32_t start, uint32_t ctx,
                                         double gib) {
    kvasir_context_options o = context_options(bits, ctx);
    kvasir_context *c;
    o.quantized_kv_start = start;
    o.cache_bytes = (uint64_t)(gib * (1 << 30));
    need(kvasir_context_create(model, &o, &c, &err));
    return c;
}

static kvasir_context *make_context(const char *bits, uint32_t ctx, double gib) {
    return make_context_from(bits, KVASIR_START_BY_FORMAT, ctx, gib);
}

static kvasir_seq *make_seq(kvasir_context *c, uint32_t depth) {
    const uint32_t first = depth < SEED_TOKENS && depth > 0 ? depth : SEED_TOKENS;
    kvasir_seq *s;
    need(kvasir_seq_create(c, &s, &err));
    need(kvasir_seq_eval(s, ids, first, NULL, &err));
    if (depth > first)
        replicate(s, s, depth);
    else
        need(kvasir_seq_trim(s, depth, NULL, &err));
    return s;
}

enum how { GREEDY, RANDOM, READ_BACK };
static const char *const HOW[] = {"", ", temperature 0.8, top-k 40, top-p 0.95",
                                  ", logits read back"};

/* A step with a row of each sequence. Tokens are random ones, not those that are picked, so that
 * all formats do the same work. */
static void run_step(kvasir_context *c, kvasir_seq *const *seqs, uint32_t batch,
                     const int32_t *tokens, enum how how) {
    static struct step_part parts[BATCH_MAX];
    static struct pick list[BATCH_MAX];
    static struct picked out[BATCH_MAX];
    const struct step_picks picks = {list, batch, out};
    const float *row;
    for (uint32_t i = 0; i < batch; i++) {
        parts[i] = (struct step_part){.seq = seqs[i]->seq, .tokens = tokens + i, 1, 1, false};
        list[i] = (struct pick){.row = i,
                                .at = (double)rand() / ((double)RAND_MAX + 1),
                                .temp = how == RANDOM ? 0.8f : 0,
                                .top_p = 0.95f,
                                .top_k = 40,
                                .at_least = 1,
                                .n_top = -1};
        need(seq_reserve(seqs[i]->seq, seq_length(seqs[i]->seq) + 1, &err));
        need(seq_prepare(seqs[i]->seq, 1, &err));
    }
    need(step_run(c, parts, batch, how == READ_BACK ? NULL : &picks, &err));
    for (uint32_t i = 0; i < batch; i++)
        if (how == READ_BACK || out[i].token < 0)
            need(step_logits(c, i, &row, &err));
}

/* Tokens per second of steps with a row of each of `batch` sequences of `depth` tokens. */
static double decode_speed(kvasir_context *c, uint32_t batch, uint32_t depth, enum how how) {
    kvasir_seq *seqs[BATCH_MAX];
    double speed[REPEATS];
    for (uint32_t i = 0; i < batch; i++)
        seqs[i] = make_seq(c, depth);
    for (int r = -1; r < REPEATS; r++) { /* the first is a warm-up */
        const double start = clock_seconds();
        for (int i = 0; i < STEPS; i++)
            run_step(c, seqs, batch, ids + i * BATCH_MAX, how);
        if (r >= 0)
            speed[r] = batch * STEPS / (clock_seconds() - start);
    }
    for (uint32_t i = 0; i < batch; i++)
        kvasir_seq_destroy(seqs[i]);
    return median(speed, REPEATS);
}

/* A GPU that was idle takes a while to reach its clocks: the first format was 3 to 5 % slower. */
static void warm_up(void) {
    kvasir_context *c = make_context("8,4", 4096, 1);
    const double end = clock_seconds() + 1.5;
    while (clock_seconds() < end)
        decode_speed(c, 1, 0, GREEDY);
    kvasir_context_destroy(c);
}

/* Of a prompt of n tokens after `depth` others. */
static double prompt_speed(kvasir_context *c, uint32_t depth, uint32_t n, int repeats) {
    kvasir_eval_options last = {.struct_size = sizeof last, .last_logits = logits};
    kvasir_seq *s = make_seq(c, depth);
    double speed[REPEATS];
    for (int r = -1; r < repeats; r++) {
        const double start = clock_seconds();
        need(kvasir_seq_eval(s, ids, n, &last, &err));
        if (r >= 0 || repeats == 1)
            speed[r < 0 ? 0 : r] = n / (clock_seconds() - start);
        if (repeats == 1)
            break;
        need(kvasir_seq_trim(s, depth, NULL, &err));
    }
    kvasir_seq_destroy(s);
    return median(speed, repeats);
}

static void bench_format(const char *bits) {
    enum { DEEP = 131072 };
    kvasir_context *c = make_context(bits, DEEP + 8192, 24);
    const double none = decode_speed(c, 1, 0, GREEDY), deep = decode_speed(c, 1, DEEP, GREEDY);
    printf("%-4s batch 1: depth 0 %.0f tokens/s, depth %d %.0f tokens/s, %.1f ns a cached token\n",
           bits, none, DEEP, deep, (1e9 / deep - 1e9 / none) / DEEP);
    fflush(stdout);
    kvasir_context_destroy(c);
}

static void bench_batches(void) {
    static const char bits[] = "8,4";
    static const struct {
        uint32_t batch, depth;
        enum how how;
    } CASES[] = {{8, 0, GREEDY},     {64, 0, GREEDY},   {64, 0, RANDOM},
                 {64, 0, READ_BACK}, {8, 8192, GREEDY}, {64, 8192, GREEDY}};
    kvasir_context *c = make_context(bits, 16384, 48);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        printf("%-4s batch %u, depth %u: %.0f tokens/s in all%s\n", bits, CASES[i].batch,
               CASES[i].depth, decode_speed(c, CASES[i].batch, CASES[i].depth, CASES[i].how),
               HOW[CASES[i].how]);
        fflush(stdout);
    }
    kvasir_context_destroy(c);
}

static void bench_prompts(void) {
    static const char bits[] = "8,4";
    enum { PROMPT = 2048, DEEP = 32768 };
    kvasir_context *c = make_context(bits, PROMPT_MAX + 8192, 24);
    printf("%-4s prompt of %d: depth 0 %.0f tokens/s", bits, PROMPT,
           prompt_speed(c, 0, PROMPT, REPEATS));
    printf(", depth %d %.0f tokens/s\n", DEEP, prompt_speed(c, DEEP, PROMPT, REPEATS));
    fflush(stdout);
    printf("%-4s prompt of %d, cold: %.1f s\n", bits, PROMPT_MAX,
           PROMPT_MAX / prompt_speed(c, 0, PROMPT_MAX, 1));
    fflush(stdout);
    kvasir_context_destroy(c);
}

/* From more bits to fewer, at a depth at which attention counts; tiles also without the 64 tokens
 * that are exact by default. */
static void bench_formats(void) {
    static const char *const BITS[] = {"f16", "8,4", "r8,4", "t5,4", "t4", "t3", "4"};
    static const uint32_t STARTS[] = {KVASIR_START_BY_FORMAT, 0};
    enum { DEEP = 32768, FEW = 8 };
    for (size_t i = 0; i < sizeof BITS / sizeof *BITS; i++)
        for (int s = 0; s < 1 + (BITS[i][0] == 't'); s++) {
            kvasir_context *c = make_context_from(BITS[i], STARTS[s], DEEP + 8192, 48);
            printf("%-4s%s batch 1: depth 0 %.0f tokens/s", BITS[i], s ? ", start 0," : "",
                   decode_speed(c, 1, 0, GREEDY));
            printf(", depth %d %.0f tokens/s", DEEP, decode_speed(c, 1, DEEP, GREEDY));
            printf("; batch %d %.0f tokens/s in all", FEW, decode_speed(c, FEW, DEEP, GREEDY));
            printf("; prompt of 2048 %.0f tokens/s\n", prompt_speed(c, 0, 2048, REPEATS));
            fflush(stdout);
            kvasir_context_destroy(c);
        }
}

/* ---- requests of an engine ------------------------------------------------------------------- */

static void ask(kvasir_engine *e, struct answer *a, const int32_t *tokens, size_t n,
                uint32_t max_tokens) {
    const kvasir_request r = answer_request(a, tokens, n, max_tokens);
    uint64_t id;
    need(kvasir_engine_submit(e, &r, &id, &err));
}

/* Short prompts together: all tokens over the time in which all run. */
static void bench_requests(kvasir_engine *e) {
    enum { PROMPT = 16, REPLY = 256 };
    static struct answer answers[BATCH_MAX];
    double all_run = 0, one_ends = 0;
    for (int i = 0; i < BATCH_MAX; i++)
        ask(e, &answers[i], ids + i * PROMPT, PROMPT, REPLY);
    for (int i = 0; i < BATCH_MAX; i++) {
        const struct answer *a = &answers[i];
        answer_wait(&answers[i]);
        all_run = a->first > all_run ? a->first : all_run;
        one_ends = one_ends == 0 || a->last < one_ends ? a->last : one_ends;
    }
    printf("%d requests at once: %.0f tokens/s in all\n", BATCH_MAX,
           BATCH_MAX * (REPLY - 1) / (one_ends - all_run));
}

/* The same prompt twice. */
static void bench_hit(kvasir_engine *e) {
    enum { LONG = 131000, REPLY = 33 };
    struct answer a;
    double first[2], step = 0;
    for (int i = 0; i < 2; i++) {
        ask(e, &a, ids, LONG, REPLY);
        answer_wait(&a);
        first[i] = a.first - a.submitted;
        step = (a.last - a.first) / (REPLY - 1);
    }
    printf("prompt of %d: first token after %.2f s, %.1f ms after a hit; a step %.1f ms\n", LONG,
           first[0], first[1] * 1e3, step * 1e3);
}

static void bench_engine(void) {
    kvasir_engine_options o = kvasir_engine_defaults();
    kvasir_engine *e;
    o.context = context_options("8,4", PROMPT_MAX + 8192);
    o.cache_memory_bytes = (uint64_t)24 << 30;
    o.max_running = BATCH_MAX;
    need(kvasir_engine_create(model, &o, &e, &err));
    bench_requests(e);
    fflush(stdout);
    bench_hit(e);
    kvasir_engine_destroy(e);
}

static void bench_one(void) {
    bench_format("8,4");
    bench_format("4");
    bench_format("f16");
}

static const struct {
    const char *name;
    void (*run)(void);
} PARTS[] = {{"one", bench_one},
             {"batches", bench_batches},
             {"prompts", bench_prompts},
             {"formats", bench_formats},
             {"requests", bench_engine}};

int main(int argc, char **argv) {
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: gpu MODEL [DEVICE [PART]]\n");
        return 2;
    }
    if (argc > 2)
        device = argv[2];
    const char *part = argc > 3 ? argv[3] : NULL;
    size_t known = 0;
    while (part && known < sizeof PARTS / sizeof *PARTS && strcmp(part, PARTS[known].name) != 0)
        known++;
    if (known == sizeof PARTS / sizeof *PARTS) {
        fprintf(stderr, "gpu: no part \"%s\": one, batches, prompts, formats or requests\n", part);
        return 2;
    }
    kvasir_model *opened;
    kvasir_model_info info;
    need(kvasir_model_open(argv[1], &opened, &err));
    model = opened;
    kvasir_model_get_info(model, &info);
    vocab = info.vocab;
    logits = malloc(vocab * sizeof *logits);
    ids = malloc(PROMPT_MAX * sizeof *ids);
    for (int i = 0; i < PROMPT_MAX; i++)
        ids[i] = random_token(vocab);
    const double start = clock_seconds();
    kvasir_context_destroy(make_context("8,4", 4096, 1));
    const double load = clock_seconds() - start;
    printf("loaded in %.1f s, %.2f GB/s\n", load, (double)info.weight_bytes / load * 1e-9);
    fflush(stdout);
    warm_up();
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++)
        if (!part || strcmp(part, PARTS[i].name) == 0)
            PARTS[i].run();
    free(ids);
    free(logits);
    kvasir_model_close(opened);
    return 0;
}
