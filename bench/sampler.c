/* SPDX-License-Identifier: Apache-2.0 */
/* How long it takes to pick a token.
 *
 *     sampler [VOCAB ...]
 *
 * For each vocabulary (49,152 and 151,936) and each kind of sampling: microseconds of processor
 * time per pick, the median of 25 groups of 20 picks, and how many candidates were kept. Logits are
 * random, normal with a spread of 2.5 (those of Qwen2.5-Coder have 2 to 3), but for 48 that stand
 * out, 20 and less, as likely as the next words of a text. Each pick has others.
 */
#include "bench.h"

#include "engine/sampler.h"

enum { GROUPS = 25, PICKS = 20, ROWS = 8, LIKELY = 48 };

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
        free(logits);
    }
    return 0;
}
