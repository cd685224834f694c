/* SPDX-License-Identifier: Apache-2.0 */
/* How long it takes to pick a token.
 *
 *     sampler [VOCAB ...]
 *
 * For each vocabulary (49,152 and 151,936) and each kind of sampling: microseconds of processor
 * time per pick, the median of 25 groups of 20 picks, and how many candidates were kept. Logits are
 * random, normal with a spread of 2.5 (those of Qwen2.5-Coder have 2 to 3), but for 48 that stand
 * out, 20 and less, as likely as the next words of a text. Each pick has others.
 *
 * And milliseconds to pick for a step of 64 rows, temp 0.8, top-p 0.95: one after another, and in
 * lanes on all cores, as the engine does (engine/picks.c); the tokens must be the same.
 */
#include <stdatomic.h>

#include "bench.h"

#include "engine/sampler.h"
#include "util/topology.h"

enum { GROUPS = 25, PICKS = 20, ROWS = 8, LIKELY = 48, STEP_ROWS = 64, LANES = 8 };

static float normal(void) {
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (double)rand() / RAND_MAX;
    return (float)(sum - 6);
}

struct kind {
    const char *name;
    float temp, top_p, min_p, repetition_penalty, xtc;
    int top_k;
};
static const struct kind KINDS[] = {
    {.name = "greedy"},
    {.name = "temp 0.8", .temp = 0.8f},
    {.name = "temp 0.8, top-p 0.95", .temp = 0.8f, .top_p = 0.95f},
    {.name = "temp 0.8, top-p 0.5", .temp = 0.8f, .top_p = 0.5f},
    {.name = "temp 0.8, min-p 0.05", .temp = 0.8f, .min_p = 0.05f},
    {.name = "temp 0.7, top-k 20", .temp = 0.7f, .top_k = 20},
    {.name = "Qwen's", .temp = 0.7f, .top_p = 0.8f, .top_k = 20, .repetition_penalty = 1.1f},
    {.name = "top-p 0.95, xtc", .temp = 0.8f, .top_p = 0.95f, .xtc = 0.5f},
};

static void measure(const struct kind *k, uint32_t vocab, const float *logits) {
    kvasir_sampling o = kvasir_sampling_defaults();
    kvasir_sampler *s;
    double us[GROUPS];
    const uint32_t *ids;
    const double *weights;
    o.temp = k->temp;
    o.top_p = k->top_p;
    o.min_p = k->min_p;
    o.top_k = k->top_k;
    o.repetition_penalty = k->repetition_penalty;
    o.xtc_probability = k->xtc;
    need(kvasir_sampler_create(&o, vocab, &s, &err));
    for (int g = 0; g < GROUPS; g++) {
        const double begin = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
        for (int i = 0; i < PICKS; i++)
            kvasir_sampler_accept(s, kvasir_sampler_pick(s, logits + (size_t)(i % ROWS) * vocab));
        us[g] = (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - begin) * 1e6 / PICKS;
    }
    const size_t kept = sampler_weigh(s, logits, &ids, &weights);
    printf("%8u  %-24s %9.1f us  %7zu kept\n", vocab, k->name, median(us, GROUPS), kept);
    kvasir_sampler_destroy(s);
}

struct step {
    kvasir_sampler *samplers[STEP_ROWS];
    struct sampler_scratch *scratch[LANES];
    int32_t tokens[STEP_ROWS];
    const float *logits;
    uint32_t vocab;
    atomic_uint next;
};

static void pick_lane(void *ctx, size_t lane, int worker) {
    struct step *s = ctx;
    uint32_t i;
    (void)worker;
    while ((i = atomic_fetch_add(&s->next, 1)) < STEP_ROWS)
        s->tokens[i] = sampler_pick_with(s->samplers[i], s->scratch[lane],
                                         s->logits + (size_t)(i % ROWS) * s->vocab);
}

static void measure_step(uint32_t vocab, const float *logits) {
    static struct step alone, lanes;
    struct step *const steps[2] = {&alone, &lanes};
    struct thread_pool *pool;
    kvasir_sampling o = kvasir_sampling_defaults();
    double ms[2][GROUPS], gain[GROUPS];
    struct topology machine;
    topology_read(&machine);
    const int threads = topology_threads(&machine);
    const size_t n[2] = {1, threads < LANES ? (size_t)threads : LANES};
    o.temp = 0.8f;
    o.top_p = 0.95f;
    need(thread_pool_create(&pool, threads, &err));
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < n[k]; i++)
            need(sampler_scratch_create(vocab, &steps[k]->scratch[i], &err));
        for (size_t i = 0; i < STEP_ROWS; i++) {
            o.seed = i;
            need(sampler_create_shared(&o, vocab, GROUPS, steps[k]->scratch[0],
                                       &steps[k]->samplers[i], &err));
        }
        steps[k]->logits = logits;
        steps[k]->vocab = vocab;
    }
    for (int g = 0; g < GROUPS; g++) {
        for (int k = 0; k < 2; k++) {
            const double begin = clock_seconds();
            atomic_store(&steps[k]->next, 0);
            thread_pool_run(pool, n[k], pick_lane, steps[k]);
            ms[k][g] = (clock_seconds() - begin) * 1e3;
        }
        gain[g] = ms[0][g] / ms[1][g];
        if (memcmp(alone.tokens, lanes.tokens, sizeof alone.tokens) != 0) {
            printf("sampler: FAILED, other tokens in lanes\n");
            exit(1);
        }
    }
    printf("%8u  %d rows: %.2f ms, in %zu lanes %.2f ms: %.2f times as fast\n", vocab, STEP_ROWS,
           median(ms[0], GROUPS), n[1], median(ms[1], GROUPS), median(gain, GROUPS));
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < STEP_ROWS; i++)
            kvasir_sampler_destroy(steps[k]->samplers[i]);
        for (size_t i = 0; i < n[k]; i++)
            sampler_scratch_destroy(steps[k]->scratch[i]);
    }
    thread_pool_destroy(pool);
}

int main(int argc, char **argv) {
    static const uint32_t DEFAULTS[] = {49152, 151936};
    for (int a = 0; a < (argc > 1 ? argc - 1 : 2); a++) {
        const uint32_t vocab = argc > 1 ? (uint32_t)strtoul(argv[a + 1], NULL, 10) : DEFAULTS[a];
        float *logits = calloc((size_t)vocab * ROWS, sizeof *logits);
        if (!vocab || !logits)
            return 1;
        srand(1);
        for (size_t i = 0; i < (size_t)vocab * ROWS; i++)
            logits[i] = 2.5f * normal();
        for (size_t i = 0; i < (size_t)LIKELY * ROWS; i++)
            logits[i / LIKELY * vocab + (size_t)random_token(vocab)] =
                20 - 0.35f * (float)(i % LIKELY);
        for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
            measure(&KINDS[i], vocab, logits);
        measure_step(vocab, logits);
        free(logits);
    }
    return 0;
}
